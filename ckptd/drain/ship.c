/* ship.c - one shard on its way from one tier into another.
 *
 *   crew: source opened, its checksum table proven by the manifest; what lies at the target under
 *   its name is kept when every block of it is right; else it is created, with its size
 *    ▼
 *   parts, several at once: taken (from the image where it is in memory still, else read), every
 *   block held against the table, SHA-256 of the part ──► sent
 *    ▼
 *   crew: synced, closed ──► arrived
 *
 * What lies at the target and is not right stays there until its successor is durable beside it and
 * was read back whole; then that takes its name. A tier that cannot do this (a bucket, a peer) has
 * it removed first, and the source proven before that: its good blocks may be the last ones.
 *
 * The bytes are proven in the very buffer that is sent, so what a rank writes into an image too
 * late, or a disk that lies, is found here and never sent. An image is held only while a part of it
 * is copied: a rank that needs it for its next save waits a few milliseconds at most. What is not
 * right in an image is read from the file; what is not right there is damage of the source.
 *
 * Of a save that is not committed (early.c) a part goes when its chunks are in the file here: the
 * sums by which they were hashed become the table, entry by entry. Where the shard is at another
 * node the sums are made of what comes. ship_start() goes on behind the last of those parts, where
 * the entries are those of the manifest's table.
 *
 * Parts wait for their time in pace.c: a rate, and the quiet phases of the ranks; for those a
 * checkpoint waits pace.quiet_wait_ms in all. When somebody waits for it nothing is held back.
 *
 * Memory: tier.connections buffers of tier.part_bytes for the far tier, nodes.connections for each
 * peer, but PEER_BUFFERS for all peers together (buffers.h); and 65 bytes per part. */
#include "ckptd/drain/ship.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/config.h"
#include "ckptd/drain/berth.h"
#include "ckptd/drain/room.h"
#include "ckptd/node/image.h"
#include "ckptd/node/session.h"
#include "ckptd/node/stage.h"
#include "ckptd/restore/file.h"
#include "ckptd/service.h"
#include "proto/checksum.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <stdlib.h>

#define PEER_BUFFERS 16u /* of all peers, at most, while one needs no more */

/* ---- the end ---- */

static void free_shard(struct ship *ship)
{
    free(ship->table);
    free(ship->sums);
    ship->table = NULL;
    ship->sums = NULL;
}

static void start_job(struct ship *ship, void (*work)(struct job *), void (*done)(struct event *))
{
    ship->is_working = true;
    ship->job = (struct job){.work = work, .done.run = done};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &ship->job);
}

static void ended(struct event *event)
{
    struct ship *ship = CONTAINER_OF(event, struct ship, job.done);
    ship->is_under_way = ship->is_working = false;
    if (ship->is_early) {
        ship->at_rest(ship);
        return;
    }
    free_shard(ship);
    ship->arrived(ship);
}

static void leave_pace(struct ship *ship)
{
    while (ship->num_paced > 0) {
        pace_leave(&ship->fleet->pace, loop_now_ms());
        ship->num_paced--;
    }
}

static void end(struct ship *ship)
{
    leave_pace(ship);
    ship->is_ending = true;
    start_job(ship, berth_end, ended);
}

static void end_if_done(struct ship *ship)
{
    if (ship->is_ending || ship->in_flight > 0)
        return;
    if (ship->fault.code != 0 || ship->num_sent == ship->num_parts) {
        end(ship);
    } else if (ship->is_stopped) {
        ship->is_under_way = false;
        ship->at_rest(ship);
    }
}

/* ---- a part ---- */

static void work_take(struct job *job)
{
    struct part *part = CONTAINER_OF(job, struct part, job);
    struct ship *ship = part->ship;
    int error = 0;
    if (part->image) {
        image_get(part->image, part->start, part->data, part->bytes);
        error = berth_prove(ship, part->data, part->start, part->bytes);
        if (error == 0)
            error = berth_hash_part(ship, part->index, part->data, part->bytes);
    } else if (ship->is_early) {
        error = berth_read_early(ship, part->data, part->start, part->bytes);
    } else {
        error = berth_read_part(ship, ship->from, ship->source, part->data, part->index);
    }
    if (error != 0)
        fault_take(&part->fault, error);
}

static void work_send(struct job *job)
{
    struct part *part = CONTAINER_OF(job, struct part, job);
    struct ship *ship = part->ship;
    const char *sha256 = tier_is_peer(ship->to) ? NULL : ship->sums[part->index];
    int error = storage_write_hashed(berth_storage(ship, ship->to), ship->target, part->start,
                                     part->data, part->bytes, sha256);
    if (error != 0)
        fault_take(&part->fault, error);
}

static void taken(struct event *event);

/* The image that has the shard, or NULL. */
static struct image *find_image(const struct ship *ship)
{
    if (ship->is_early)
        return ship->stage ? ship->stage->image : NULL;
    struct image *image = ship->is_from_file ? NULL : catalog_image(ship->checkpoint, ship->shard);
    bool is_usable = image && image->state == IMAGE_RESIDENT && image->num_missing == 0 &&
                     !image->is_window &&
                     image->table_hash == ship->manifest->shards[ship->shard].table_hash;
    return is_usable ? image : NULL;
}

static void take(struct part *part)
{
    struct ship *ship = part->ship;
    part->image = find_image(ship);
    part->fault = (struct fault){0};
    if (part->image)
        part->image->readers++;
    part->job = (struct job){.work = work_take, .done.run = taken};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &part->job);
}

static void end_part(struct part *part)
{
    part->is_busy = false;
    part->ship->in_flight--;
    part->ship->fleet->in_flight--;
    buffers_give(part->ship->fleet->buffers, part->data);
}

static void fail_part(struct part *part, bool is_of_source)
{
    struct ship *ship = part->ship;
    struct buffers *buffers = ship->fleet->buffers;
    end_part(part);
    if (ship->fault.code == 0) {
        ship->fault = part->fault;
        ship->is_of_source = is_of_source;
    }
    end_if_done(ship);
    buffers_look(buffers);
}

static void sent(struct event *event)
{
    struct part *part = CONTAINER_OF(event, struct part, job.done);
    struct ship *ship = part->ship;
    if (part->fault.code != 0) {
        fail_part(part, false);
        return;
    }
    struct fleet *fleet = ship->fleet;
    end_part(part);
    ship->num_sent++;
    ship->bytes_sent += part->bytes;
    buffers_look(fleet->buffers);
    fleet_look(fleet);
    end_if_done(ship);
}

/* The image is somebody else's again. */
static void leave_image(struct part *part)
{
    struct image *image = part->image;
    struct service *service = image->service;
    part->image = NULL;
    image_end_reading(image); /* its save may have been given up, and its rank gone */
    service_retry_waiting(service);
    service_retry_saves(service);
}

static void taken(struct event *event)
{
    struct part *part = CONTAINER_OF(event, struct part, job.done);
    struct ship *ship = part->ship;
    bool was_image = part->image != NULL;
    if (was_image)
        leave_image(part);
    if (part->fault.code != 0 && was_image && !ship->is_early) {
        ship->is_from_file = true;
        take(part);
        return;
    }
    if (part->fault.code != 0 || ship->fault.code != 0) {
        fail_part(part, true);
        return;
    }
    if (was_image)
        ship->bytes_from_memory += part->bytes;
    part->job = (struct job){.work = work_send, .done.run = sent};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &part->job);
}

/* ---- when ---- */

static struct part *find_free(struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->num_parts_max; i++)
        if (!fleet->parts[i].is_busy)
            return &fleet->parts[i];
    return NULL;
}

/* A part that may begin now has its buffer. */
static bool take_buffer(struct part *part, struct fleet *fleet)
{
    part->data = buffers_take(fleet->buffers, &fleet->waiter);
    return part->data;
}

/* May the next part begin? */
static bool is_time(struct ship *ship, uint32_t bytes)
{
    struct service *service = ship->service;
    int64_t wait_ms;
    struct fleet *fleet = ship->fleet;
    if (ship->is_early && ship->num_paced == 0 && pace_is_on(&fleet->pace)) {
        pace_enter(&fleet->pace, loop_now_ms()); /* it is there since now */
        ship->num_paced++;
    }
    if (ship->is_hurried || ship->num_paced == 0)
        return true;
    const struct pace_moment moment = {loop_now_ms(),
                                       fleet->pace.options.quiet && session_num_busy(service) > 0,
                                       fleet->in_flight};
    if (pace_ask(&fleet->pace, &moment, bytes, ship->stamp, &wait_ms) == PACE_GO) {
        ship->num_paced--;
        return true;
    }
    if (wait_ms >= 0)
        loop_timer(service->loop, &fleet->timer, wait_ms);
    return false;
}

/* Of a save: are the bytes final, hashed and in the file? What has been announced is, chunk by
 * chunk; the table is behind all of them. Of a file at another node a table proves nothing. */
static bool is_written(const struct ship *ship, uint64_t start, uint64_t bytes)
{
    if (!ship->stage) /* E8 of early.c */
        return start + bytes <= ship->written && start + bytes <= ship->geometry.table_start;
    const struct image *image = ship->stage->image;
    uint64_t size = (uint64_t)ship->service->config->block_bytes;
    for (uint64_t i = start / size; i * size < start + bytes; i++)
        if (!image_chunk(image, (uint32_t)i)->is_written)
            return false;
    return true;
}

/* The sums of its blocks come into the table, against which they are proven. */
static void note_sums(struct ship *ship, uint64_t start, uint64_t bytes)
{
    uint8_t *table = ship->table + ship->geometry.table_start % STORAGE_ALIGN;
    const struct image *image = ship->stage->image;
    uint64_t end = start + bytes;
    if (end > ship->geometry.table_start)
        end = ship->geometry.table_start;
    for (uint64_t at = start; at < end; at += CHECKSUM_BLOCK_BYTES)
        shard_table_put(table, at / CHECKSUM_BLOCK_BYTES, image->sums[at / CHECKSUM_BLOCK_BYTES]);
}

static void look_at(struct ship *ship)
{
    if (!ship->is_under_way || ship->is_ending || ship->is_kept || ship->is_stopped)
        return;
    while (ship->next_part < ship->num_parts && ship->fault.code == 0) {
        struct part *part = find_free(ship->fleet);
        uint64_t start;
        uint32_t bytes;
        berth_part_range(ship, ship->next_part, &start, &bytes);
        if (!part || !ship->target || (ship->is_early && !is_written(ship, start, bytes)) ||
            !take_buffer(part, ship->fleet))
            return;
        if (!is_time(ship, bytes)) {
            buffers_give(ship->fleet->buffers, part->data);
            return;
        }
        if (ship->stage)
            note_sums(ship, start, bytes);
        part->ship = ship;
        part->is_busy = true;
        part->index = ship->next_part++;
        part->start = start;
        part->bytes = bytes;
        ship->in_flight++;
        ship->fleet->in_flight++;
        take(part);
    }
}

void fleet_look(struct fleet *fleet)
{
    for (struct ship *ship = fleet->ships; ship; ship = ship->next)
        look_at(ship);
}

static void look_again(struct timer *timer)
{
    fleet_look(CONTAINER_OF(timer, struct fleet, timer));
}

static void look_for_buffer(struct buffers_waiter *waiter)
{
    fleet_look(CONTAINER_OF(waiter, struct fleet, waiter));
}

static void prepared(struct event *event)
{
    struct ship *ship = CONTAINER_OF(event, struct ship, job.done);
    struct fleet *fleet = ship->fleet;
    ship->is_working = false;
    room_end(&ship->room, ship->service); /* what it was promised is a file now */
    if (ship->is_kept)
        ship->num_sent = ship->num_parts;
    else if (ship->fault.code == 0 && pace_is_on(&fleet->pace) && !ship->is_early) {
        for (; ship->num_paced < ship->num_parts - ship->next_part; ship->num_paced++)
            pace_enter(&fleet->pace, loop_now_ms());
    }
    fleet_look(fleet);
    end_if_done(ship);
}

/* ---- beginning ---- */

/* Of the shard that comes next nothing is known yet. */
static void begin(struct ship *ship, const struct manifest *manifest, uint32_t shard)
{
    CHECK(!ship->is_under_way && ship->in_flight == 0 && ship->num_paced == 0);
    ship->manifest = manifest;
    ship->shard = shard;
    ship->fault = (struct fault){0};
    ship->is_of_source = ship->is_kept = ship->is_from_file = ship->is_ending = false;
    ship->is_replacing = false;
    ship->next_part = ship->num_sent = ship->num_parts = 0;
    ship->is_under_way = true;
    ship->identity =
        checksum_shard_identity(manifest->summary.nonce, shard, manifest->summary.shards);
}

static int make_sums(struct ship *ship)
{
    uint64_t size = (uint64_t)ship->service->config->tier_part_bytes;
    ship->num_parts = (ship->geometry.file_bytes + size - 1) / size;
    ship->sums = calloc(ship->num_parts, sizeof *ship->sums);
    return ship->sums ? 0 : report_error(ERR_MEMORY, NULL, "no memory for hashes of parts");
}

/* What cannot even begin has failed. */
static void go(struct ship *ship, int error, void (*work)(struct job *))
{
    const struct config *config = ship->service->config;
    bool is_of_nodes = tier_is_peer(ship->from) || tier_is_peer(ship->to);
    ship->fleet->pace.options.write_rate = is_of_nodes ? config->nodes_rate : config->tier_rate;
    if (error != 0) {
        fault_take(&ship->fault, error);
        end(ship);
    } else {
        start_job(ship, work, prepared);
    }
}

void ship_start(struct ship *ship, struct checkpoint *checkpoint, const struct manifest *manifest,
                uint32_t shard, struct ship *left)
{
    begin(ship, manifest, shard);
    ship->checkpoint = checkpoint;
    ship->left = left;
    if (checkpoint->places)
        ship->from = catalog_shard_source(checkpoint, shard);
    int error = file_geometry(&ship->geometry, manifest, shard);
    go(ship, error != 0 ? error : make_sums(ship), berth_prepare);
}

static int begin_early(struct ship *ship, uint32_t shard, const struct shard_geometry *geometry,
                       const struct manifest *manifest)
{
    begin(ship, manifest, shard);
    ship->is_early = true;
    ship->geometry = *geometry;
    ship->stamp = ship->fleet->pace.quiet_ms;
    ship->table = calloc(1, geometry->file_bytes - geometry->table_start +
                                geometry->table_start % STORAGE_ALIGN);
    return ship->table ? make_sums(ship)
                       : report_error(ERR_MEMORY, NULL, "no memory for a checksum table");
}

void ship_start_early(struct ship *ship, struct stage *stage, const struct manifest *manifest)
{
    int error = begin_early(ship, stage->rank, &stage->image->geometry, manifest);
    ship->stage = stage;
    go(ship, error, berth_prepare_early);
}

void ship_start_pulled(struct ship *ship, uint32_t rank, enum tier_index from,
                       const struct shard_geometry *geometry, const struct manifest *manifest)
{
    int error = begin_early(ship, rank, geometry, manifest);
    ship->from = from;
    if (error == 0 && ship->to == TIER_LOCAL)
        error = room_promise(&ship->room, ship->service, geometry->file_bytes, 1);
    go(ship, error, berth_prepare_early);
}

bool ship_is_at_rest(const struct ship *ship)
{
    return !ship->is_working && ship->in_flight == 0;
}

bool ship_stop(struct ship *ship)
{
    ship->stage = NULL;
    ship->is_stopped = true;
    leave_pace(ship);
    if (!ship_is_at_rest(ship))
        return false;
    ship->is_under_way = false;
    return true;
}

void ship_open(struct ship *ship, struct fleet *fleet)
{
    struct ship **at = &fleet->ships;
    *ship = (struct ship){.fleet = fleet, .service = fleet->service, .to = fleet->to};
    while (*at)
        at = &(*at)->next;
    *at = ship;
}

void ship_close(struct ship *ship)
{
    struct ship **at = &ship->fleet->ships;
    while (*at != ship)
        at = &(*at)->next;
    *at = ship->next;
    berth_close(ship);
    room_end(&ship->room, ship->service);
    free_shard(ship);
}

/* ---- the fleet ---- */

static int open_buffers(struct fleet *fleet)
{
    struct service *service = fleet->service;
    uint64_t bytes = (uint64_t)service->config->tier_part_bytes;
    if (!tier_is_peer(fleet->to))
        return buffers_open(&fleet->buffers, fleet->num_parts_max, bytes);
    uint32_t each = fleet->num_parts_max, all = each * service->config->members.count;
    uint32_t most = each > PEER_BUFFERS ? each : PEER_BUFFERS;
    if (!service->peer_buffers)
        ERR_TRY(buffers_open(&service->peer_buffers, all < most ? all : most, bytes));
    fleet->buffers = service->peer_buffers;
    return 0;
}

int fleet_open(struct fleet *fleet, struct service *service, enum tier_index to)
{
    const struct config *config = service->config;
    bool is_peer = tier_is_peer(to);
    uint32_t connections =
        (uint32_t)(is_peer ? config->nodes_connections : config->tier_connections);
    const struct pace_options options = {.write_rate =
                                             is_peer ? config->nodes_rate : config->tier_rate,
                                         .quiet = config->tier_quiet,
                                         .quiet_wait_ms = config->pace_quiet_wait_ms,
                                         .in_flight_max = connections,
                                         .chunk_bytes = (uint32_t)config->tier_part_bytes};
    *fleet = (struct fleet){.service = service,
                            .to = to,
                            .timer.run = look_again,
                            .waiter.look = look_for_buffer,
                            .num_parts_max = connections};
    pace_init(&fleet->pace, &options);
    ERR_TRY(open_buffers(fleet));
    fleet->parts = calloc(connections, sizeof *fleet->parts);
    return fleet->parts ? 0 : report_error(ERR_MEMORY, NULL, "no memory for parts of shards");
}

void fleet_leave(struct fleet *fleet)
{
    for (uint32_t i = 0; fleet->parts && i < fleet->num_parts_max; i++)
        if (fleet->parts[i].image) {
            fleet->parts[i].image->readers--;
            fleet->parts[i].image = NULL;
        }
}

void fleet_close(struct fleet *fleet)
{
    if (!tier_is_peer(fleet->to))
        buffers_close(fleet->buffers);
    fleet->buffers = NULL;
    free(fleet->parts);
    fleet->parts = NULL;
}
