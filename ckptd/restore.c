/* restore.c - loads: a leased checkpoint, a plan, and shards that are proven before they are lent.
 *
 *   OpenLoad ──► newest whole checkpoint, or the one asked for ──► worker: manifest, plan
 *   LoadShard ──► in memory, verified ──► lent at once
 *             └─► in memory: VERIFY pass, else READ pass ──► table, manifest ──► lent
 *
 * Nothing is lent whose every block was not hashed and compared, whatever tier it came from. An
 * image whose writer is still connected is verified for each LoadShard, because the writer may
 * still write; without a writer once is enough. Calls for one shard share one pass.
 *
 * Damage in memory drops the image and reads the file. Damage on disk, a shard that is missing or
 * cannot be read, quarantines the checkpoint: ERR_CORRUPT now, and passed over from then on. A load
 * of "the newest" passes over what is damaged when its manifest tells, and says so in `skipped`.
 *
 * Limits: limits.loads (ERR_BUSY); memory: a LoadShard waits limits.load_wait_ms for segments, in
 * order, then ERR_BUSY; a load that nobody asks anything for limits.lease_ms ends. */
#include "ckptd/ckptd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED_MAX 16u

/* ---- leases ---- */

static void lease(struct checkpoint *checkpoint)
{
    checkpoint->leases++;
}

static void unlease(struct checkpoint *checkpoint)
{
    CHECK(checkpoint->leases > 0);
    if (--checkpoint->leases > 0)
        return;
    manifest_free(checkpoint->manifest);
    checkpoint->manifest = NULL;
}

static int find_load(struct load **out, struct service *service, uint64_t number)
{
    for (int64_t i = 0; i < service->config->limit_loads && number != 0; i++) {
        if (service->loads[i].number != number)
            continue;
        *out = &service->loads[i];
        loop_timer(service->loop, &(*out)->timer, service->config->limit_lease_ms);
        return 0;
    }
    return report_error(ERR_NOT_FOUND, "open the load again", "the load is not known");
}

/* A reader less; images that only it kept go. */
static void release_image(struct load *load, uint32_t shard)
{
    struct image *image = load->held[shard];
    load->held[shard] = NULL;
    if (!image)
        return;
    image->readers--;
    bool stale = image->checkpoint && image->checkpoint != catalog_newest(image->checkpoint->run);
    if (image->readers == 0 && image->state == IMAGE_RESIDENT && stale)
        image_leave_checkpoint(image);
    else if (!image_settle(image))
        restore_wake(load->service);
}

static void end_load(struct load *load)
{
    struct session *session = load->session;
    for (uint32_t i = 0; i < load->checkpoint->summary.shards; i++)
        release_image(load, i);
    free(load->held);
    loop_timer_cancel(load->service->loop, &load->timer);
    unlease(load->checkpoint);
    load->number = 0;
    if (!session)
        return;
    session->num_loads--;
    if (!session->is_rank && session->num_loads == 0)
        session_end(session, "its last load was closed");
}

void restore_end_session(struct session *session)
{
    struct service *service = session->service;
    for (int64_t i = 0; i < service->config->limit_loads && session->num_loads > 0; i++) {
        struct load *load = &service->loads[i];
        if (load->number == 0 || load->session != session)
            continue;
        load->session = NULL;
        session->num_loads--;
        end_load(load);
    }
}

static bool holds_segment(const struct load *load, uint32_t segment)
{
    for (uint32_t shard = 0; shard < load->checkpoint->summary.shards; shard++) {
        const struct image *image = load->held[shard];
        for (uint32_t i = 0; image && i < image->num_segments; i++)
            if (image->segments[i] == segment)
                return true;
    }
    return false;
}

bool restore_lends(const struct session *session, uint32_t segment)
{
    const struct service *service = session->service;
    for (int64_t i = 0; i < service->config->limit_loads; i++) {
        const struct load *load = &service->loads[i];
        if (load->number != 0 && load->session == session && holds_segment(load, segment))
            return true;
    }
    return false;
}

static void lease_expired(struct timer *timer)
{
    struct load *load = CONTAINER_OF(timer, struct load, timer);
    log_warn("restore", "run %s: a load of step %llu was idle for too long and ended",
             load->checkpoint->run->name, (unsigned long long)load->checkpoint->summary.step);
    end_load(load);
}

/* ---- OpenLoad ---- */

/* An OpenLoad on its way. */
struct opening {
    struct service *service;
    struct run *run;
    struct rpc_call *call;
    const Holdfast__V1__OpenLoadRequest *request;
    struct checkpoint *checkpoint; /* leased */
    const struct manifest *cached; /* of the checkpoint, or NULL */
    struct manifest *manifest;     /* read by the worker */
    struct slice *slices;
    struct load_item *items;
    uint32_t num_items;
    bool is_damage; /* the fault is the checkpoint's, not the request's */
    struct fault fault;
    char *skipped[SKIPPED_MAX];
    uint32_t num_skipped;
    struct job job;
};

static void free_opening(struct opening *opening)
{
    for (uint32_t i = 0; i < opening->num_skipped; i++)
        free(opening->skipped[i]);
    manifest_free(opening->manifest);
    free(opening->slices);
    free(opening->items);
    free(opening);
}

static void fail_opening(struct opening *opening, int error)
{
    rpc_call_fail(opening->call, error);
    free_opening(opening);
}

static void skip(struct opening *opening, const struct checkpoint *checkpoint)
{
    char text[sizeof checkpoint->damage + 64];
    if (opening->num_skipped == SKIPPED_MAX)
        return;
    snprintf(text, sizeof text, "step %llu, attempt %llu: %s",
             (unsigned long long)checkpoint->summary.step,
             (unsigned long long)checkpoint->summary.attempt, checkpoint->damage);
    char *copy = strdup(text);
    if (copy)
        opening->skipped[opening->num_skipped++] = copy;
}

/* Is this one asked for? */
static bool wanted(const Holdfast__V1__OpenLoadRequest *request,
                   const struct checkpoint *checkpoint)
{
    uint64_t step = checkpoint->summary.step;
    if (request->attempt != 0 && checkpoint->summary.attempt != request->attempt)
        return false;
    if (request->step >= 0)
        return step == (uint64_t)request->step;
    return request->below_step < 0 || step < (uint64_t)request->below_step;
}

/* ERR_NOT_FOUND; ERR_CORRUPT when a step was named and is damaged. */
static int choose(struct opening *opening)
{
    struct checkpoint *found = opening->run->checkpoints;
    for (uint32_t i = 0; i < opening->num_skipped; i++)
        free(opening->skipped[i]);
    opening->num_skipped = 0;
    for (; found; found = found->next) {
        if (!wanted(opening->request, found))
            continue;
        if (!found->damaged)
            break;
        skip(opening, found);
        if (opening->request->step >= 0)
            return report_error(
                ERR_CORRUPT, "load another step", "step %llu of run %s is damaged: %s",
                (unsigned long long)found->summary.step, opening->run->name, found->damage);
    }
    opening->checkpoint = found;
    if (found)
        return 0;
    char step[32] = "";
    if (opening->request->step >= 0)
        snprintf(step, sizeof step, " of step %lld", (long long)opening->request->step);
    return report_error(ERR_NOT_FOUND, "see ckpt-cli list", "run %s has no checkpoint%s%s%s",
                        opening->run->name, step, opening->num_skipped ? " that is whole" : "",
                        opening->request->attempt != 0 ? " by that attempt" : "");
}

static int read_manifest(struct opening *opening)
{
    struct checkpoint *checkpoint = opening->checkpoint;
    char key[STORAGE_KEY_MAX + 32];
    void *text = NULL;
    size_t bytes = 0;
    int error = shard_dir_key(key, sizeof key - 32, checkpoint->run->name, checkpoint->summary.step,
                              checkpoint->summary.attempt);
    if (error != 0)
        return error;
    strcat(key, "/" MANIFEST_NAME);
    error = storage_fetch_all(opening->service->storage, key, MANIFEST_BYTES_MAX, &text, &bytes);
    if (error == 0)
        error = manifest_read(&opening->manifest, text, bytes);
    free(text);
    if (error == 0 && strcmp(opening->manifest->summary.nonce, checkpoint->summary.nonce) != 0)
        error = report_error(ERR_CORRUPT, NULL, "its manifest was exchanged since ckptd started");
    return error;
}

static void work_open(struct job *job)
{
    struct opening *opening = CONTAINER_OF(job, struct opening, job);
    int error = opening->cached ? 0 : read_manifest(opening);
    /* The daemon's own lack of memory, descriptors or rights says nothing about the checkpoint. */
    opening->is_damage =
        error != 0 && error != ERR_MEMORY && error != ERR_BUSY && error != ERR_DENIED;
    const struct manifest *manifest = opening->cached ? opening->cached : opening->manifest;
    if (error == 0)
        error = layout_plan_load(&opening->items, &opening->num_items, manifest->table,
                                 opening->slices, (uint32_t)opening->request->n_slices);
    if (error != 0)
        fault_take(&opening->fault, error);
}

static void opened(struct event *event);

static void start_opening(struct opening *opening)
{
    int error = choose(opening);
    if (error != 0) {
        fail_opening(opening, error);
        return;
    }
    lease(opening->checkpoint);
    opening->cached = opening->checkpoint->manifest;
    opening->is_damage = false;
    opening->fault = (struct fault){0};
    opening->job = (struct job){.work = work_open, .done.run = opened};
    loop_work(opening->service->loop, &opening->job);
}

static int new_load(struct load **out, struct opening *opening, struct session *session)
{
    struct service *service = opening->service;
    struct load *load = NULL;
    for (int64_t i = 0; i < service->config->limit_loads && !load; i++)
        if (service->loads[i].number == 0)
            load = &service->loads[i];
    if (!load)
        return report_error(ERR_BUSY, "raise limits.loads", "all %lld loads are in use",
                            (long long)service->config->limit_loads);
    memset(load, 0, sizeof *load);
    load->held = calloc(opening->checkpoint->summary.shards + 1, sizeof *load->held);
    if (!load->held)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    load->number = ++service->next_load;
    load->service = service;
    load->session = session;
    load->checkpoint = opening->checkpoint;
    load->timer.run = lease_expired;
    session->num_loads++;
    lease(load->checkpoint);
    loop_timer(service->loop, &load->timer, service->config->limit_lease_ms);
    *out = load;
    return 0;
}

static void fill_item(Holdfast__V1__LoadItem *out, struct load_item *item,
                      const struct opening *opening)
{
    uint32_t dims = opening->slices[item->slice].tensor.dims;
    holdfast__v1__load_item__init(out);
    out->slice = item->slice;
    out->shard = item->shard;
    out->shard_byte =
        opening->checkpoint->manifest->shards[item->shard].data_start + item->data_byte;
    out->saved_offset = item->saved.offset;
    out->saved_extent = item->saved.extent;
    out->offset = item->part.offset;
    out->extent = item->part.extent;
    out->n_saved_offset = out->n_saved_extent = out->n_offset = out->n_extent = dims;
}

static int reply_opened(struct opening *opening, struct load *load)
{
    const struct manifest *manifest = opening->checkpoint->manifest;
    Holdfast__V1__OpenLoadReply reply = HOLDFAST__V1__OPEN_LOAD_REPLY__INIT;
    Holdfast__V1__CheckpointSummary summary;
    Holdfast__V1__LoadItem *items = calloc(opening->num_items + 1, sizeof *items);
    Holdfast__V1__LoadItem **pointers = calloc(opening->num_items + 1, sizeof *pointers);
    if (!items || !pointers) {
        free(items);
        free(pointers);
        return report_error(ERR_MEMORY, NULL, "no memory for the answer to a load");
    }
    for (uint32_t i = 0; i < opening->num_items; i++) {
        fill_item(&items[i], &opening->items[i], opening);
        pointers[i] = &items[i];
    }
    catalog_summary(&summary, opening->checkpoint);
    reply.load = load->number;
    reply.checkpoint = &summary;
    reply.state_json = manifest->state_json;
    reply.identity_json = manifest->identity_json;
    reply.config_json = manifest->config_json;
    reply.data_json = manifest->data_json;
    reply.items = pointers;
    reply.n_items = opening->num_items;
    reply.skipped = opening->skipped;
    reply.n_skipped = opening->num_skipped;
    reply.session = load->session->token;
    reply.segment_bytes = pool_segment_bytes(opening->service->pool);
    rpc_call_reply(opening->call, &reply.base);
    free(items);
    free(pointers);
    return 0;
}

/* The session of the request, or a new one. */
static int session_of(struct session **out, struct opening *opening)
{
    if (opening->request->session != 0)
        return session_find(out, opening->service, opening->request->session);
    return session_new(out, opening->service, opening->run);
}

static int finish_opening(struct opening *opening)
{
    struct checkpoint *checkpoint = opening->checkpoint;
    struct session *session = NULL;
    struct load *load = NULL;
    if (!checkpoint->manifest) {
        checkpoint->manifest = opening->manifest;
        opening->manifest = NULL;
    }
    int error = session_of(&session, opening);
    if (error == 0)
        error = new_load(&load, opening, session);
    if (error == 0)
        error = reply_opened(opening, load);
    if (error != 0) {
        struct fault fault;
        fault_take(&fault, error);
        if (load)
            end_load(load);
        else if (session && !session->is_rank && session->num_loads == 0)
            session_end(session, "its load could not be opened");
        return fault_raise(&fault);
    }
    if (session->is_rank && session->run == opening->run)
        attempt_set_parent(opening->run, checkpoint->summary.step, checkpoint->summary.attempt);
    log_debug("restore", "run %s: load %llu of step %llu, %u boxes", opening->run->name,
              (unsigned long long)load->number, (unsigned long long)checkpoint->summary.step,
              opening->num_items);
    return 0;
}

static void opened(struct event *event)
{
    struct opening *opening = CONTAINER_OF(event, struct opening, job.done);
    struct checkpoint *checkpoint = opening->checkpoint;
    if (opening->fault.code == 0) {
        int error = finish_opening(opening);
        unlease(checkpoint);
        if (error != 0)
            fail_opening(opening, error);
        else
            free_opening(opening);
        return;
    }
    unlease(checkpoint);
    if (!opening->is_damage) {
        fail_opening(opening, fault_raise(&opening->fault));
        return;
    }
    if (!checkpoint->damaged)
        catalog_damage(checkpoint, &opening->fault);
    manifest_free(opening->manifest);
    opening->manifest = NULL;
    start_opening(opening); /* the next one, or the error that says why there is none */
}

void restore_open_load(struct service *service, struct rpc_call *call,
                       const Holdfast__V1__OpenLoadRequest *request)
{
    struct opening *opening = calloc(1, sizeof *opening);
    struct session *session;
    if (!opening) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for a load"));
        return;
    }
    opening->service = service;
    opening->call = call;
    opening->request = request;
    int error = service_check_open(service);
    if (error == 0 && request->session != 0)
        error = session_find(&session, service, request->session);
    if (error == 0)
        error = run_find(&opening->run, service, request->run, false);
    if (error == 0)
        error = session_take_slices(&opening->slices, request->slices, request->n_slices);
    if (error != 0)
        fail_opening(opening, error);
    else
        start_opening(opening);
}

/* ---- passes ---- */

static void begin_wait(struct shard_wait *wait);

static void lend(struct shard_wait *wait, struct image *image)
{
    struct load *load;
    int error = find_load(&load, wait->service, wait->load);
    if (error != 0) {
        rpc_call_fail(wait->call, error);
        free(wait);
        return;
    }
    if (!load->held[wait->shard]) {
        load->held[wait->shard] = image;
        image->readers++;
    }
    Holdfast__V1__LoadShardReply reply = HOLDFAST__V1__LOAD_SHARD_REPLY__INIT;
    reply.segments = image->segments;
    reply.n_segments = image->num_segments;
    reply.bytes = image->geometry.file_bytes;
    reply.tier = wait->from_memory ? "memory" : "local";
    rpc_call_reply(wait->call, &reply.base);
    free(wait);
}

static struct shard_wait *take_waiting(struct image *image)
{
    struct shard_wait *first = image->waiting;
    image->waiting = NULL;
    return first;
}

static void pass_succeeded(struct image *image)
{
    struct shard_wait *wait = take_waiting(image);
    if (image->state == IMAGE_READING) {
        image->service->stats.bytes_read += image->geometry.file_bytes;
        image->state = IMAGE_RESIDENT;
    }
    image->verified = image->session == NULL;
    while (wait) {
        struct shard_wait *next = wait->next;
        lend(wait, image);
        wait = next;
    }
}

/* The image is not what the manifest says, or could not be read. */
static void pass_failed(struct image *image)
{
    struct checkpoint *checkpoint = image->checkpoint;
    struct fault fault = image->fault;
    struct shard_wait *wait = take_waiting(image);
    bool from_disk = image->state == IMAGE_READING;
    bool damage = fault.code == ERR_CORRUPT || fault.code == ERR_NOT_FOUND || fault.code == ERR_IO;
    if (!from_disk)
        log_error("restore",
                  "run %s, step %llu: shard %u was changed in memory after the save; it "
                  "is read from disk: %s",
                  checkpoint->run->name, (unsigned long long)checkpoint->summary.step, image->shard,
                  fault.message);
    else if (damage && !checkpoint->damaged)
        catalog_damage(checkpoint, &fault);
    if (damage)
        fault.code = ERR_CORRUPT;
    image_leave_checkpoint(image);
    while (wait) {
        struct shard_wait *next = wait->next;
        if (from_disk) {
            rpc_call_fail(wait->call, fault_raise(&fault));
            free(wait);
        } else {
            begin_wait(wait);
        }
        wait = next;
    }
}

static void pass_ended(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    struct checkpoint *checkpoint = image->checkpoint;
    struct service *service = image->service;
    image->readers--; /* the pass itself */
    if (image->fault.code == 0)
        pass_succeeded(image);
    else
        pass_failed(image);
    unlease(checkpoint);
    restore_wake(service); /* nobody may want the image any more */
}

static void work_end_pass(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    const struct manifest *manifest = image->checkpoint->manifest;
    if (image->object)
        storage_object_close(image->service->storage, image->object);
    image->object = NULL;
    int error = image->fault.code == 0
                    ? image_check_table(image, manifest->shards[image->shard].table_hash)
                    : 0;
    if (error != 0)
        fault_take(&image->fault, error);
}

static void end_pass(struct image *image)
{
    image->job = (struct job){.work = work_end_pass, .done.run = pass_ended};
    loop_work(image->service->loop, &image->job);
}

static void chunk_advanced(struct image *image, struct chunk *chunk)
{
    (void)chunk;
    if (image->busy == 0)
        end_pass(image);
}

/* A pass keeps its image and its checkpoint until pass_ended. */
static void hold_for_pass(struct image *image)
{
    image->readers++;
    lease(image->checkpoint);
    image->advance = chunk_advanced;
    image->fault = (struct fault){0};
    atomic_store(&image->stopped, false);
    image->identity = checksum_shard_identity(image->checkpoint->summary.nonce, image->shard,
                                              image->checkpoint->summary.shards);
}

/* On a worker. */
static void work_open_file(struct job *job)
{
    struct image *image = CONTAINER_OF(job, struct image, job);
    const struct manifest_summary *summary = &image->checkpoint->summary;
    struct shard_identity identity = {.step = summary->step,
                                      .attempt = summary->attempt,
                                      .shard = image->shard,
                                      .shards = summary->shards};
    char key[STORAGE_KEY_MAX];
    uint64_t bytes = 0;
    snprintf(identity.run, sizeof identity.run, "%s", summary->run);
    pool_clean(image->service->pool, image->segments, image->num_segments);
    int error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_object_open(image->service->storage, &image->object, key, &bytes);
    if (error == 0 && bytes != image->geometry.file_bytes)
        error =
            report_error(ERR_CORRUPT, NULL, "shard %u has %llu bytes instead of %llu", image->shard,
                         (unsigned long long)bytes, (unsigned long long)image->geometry.file_bytes);
    if (error != 0)
        fault_take(&image->fault, error);
}

static void file_opened(struct event *event)
{
    struct image *image = CONTAINER_OF(event, struct image, job.done);
    if (image->fault.code != 0)
        end_pass(image);
    else
        image_start_all(image, PASS_READ);
}

/* ERR_BUSY: no memory now. */
static int start_read(struct load *load, uint32_t shard)
{
    struct checkpoint *checkpoint = load->checkpoint;
    const struct manifest_shard *entry = &checkpoint->manifest->shards[shard];
    struct shard_tensor *tensors = NULL;
    struct shard_geometry geometry;
    struct image *image = NULL;
    uint32_t count;
    uint64_t bytes;
    int error = layout_shard_tensors(&tensors, &count, &bytes, checkpoint->manifest->table, shard);
    free(tensors);
    if (error == 0)
        error = shard_geometry_derive(&geometry, entry->data_start, bytes);
    if (error == 0)
        error = image_new(&image, load->service, &geometry);
    if (error != 0)
        return error;
    error = image_take_segments(image, checkpoint->run);
    if (error != 0) {
        image_free(image);
        return error;
    }
    image->state = IMAGE_READING;
    image->checkpoint = checkpoint;
    image->shard = shard;
    checkpoint->images[shard] = image;
    hold_for_pass(image);
    image->job = (struct job){.work = work_open_file, .done.run = file_opened};
    loop_work(load->service->loop, &image->job);
    return 0;
}

/* ---- LoadShard ---- */

static void fail_wait(struct shard_wait *wait, int error)
{
    loop_timer_cancel(wait->service->loop, &wait->timer);
    rpc_call_fail(wait->call, error);
    free(wait);
}

static void starve(struct shard_wait *wait)
{
    struct service *service = wait->service;
    struct shard_wait **at = &service->starved;
    while (*at)
        at = &(*at)->next;
    wait->next = NULL;
    *at = wait;
    if (!wait->timer.armed)
        loop_timer(service->loop, &wait->timer, service->config->limit_load_wait_ms);
}

static void starved_to_death(struct timer *timer)
{
    struct shard_wait *wait = CONTAINER_OF(timer, struct shard_wait, timer);
    struct shard_wait **at = &wait->service->starved;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    fail_wait(wait, report_error(ERR_BUSY, "enlarge memory.pool_bytes, or load with fewer ranks",
                                 "no memory became free for shard %u in limits.load_wait_ms",
                                 wait->shard));
}

static void wake_starved(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, wake_timer);
    struct shard_wait *wait = service->starved;
    service->starved = NULL;
    while (wait) {
        struct shard_wait *next = wait->next;
        begin_wait(wait); /* starves again, in the same order, while memory is short */
        wait = next;
    }
}

void restore_wake(struct service *service)
{
    /* By a timer: whoever gives memory back is in the middle of something. */
    service->wake_timer.run = wake_starved;
    if (service->starved && !service->wake_timer.armed)
        loop_timer(service->loop, &service->wake_timer, 0);
}

/* Finds out what the call needs, and starts it or waits for it. */
static void begin_wait(struct shard_wait *wait)
{
    struct load *load;
    int error = find_load(&load, wait->service, wait->load);
    if (error == 0 && load->checkpoint->damaged)
        error = report_error(ERR_CORRUPT, "load another step", "the checkpoint is damaged: %s",
                             load->checkpoint->damage);
    if (error != 0) {
        fail_wait(wait, error);
        return;
    }
    struct image *image = load->checkpoint->images[wait->shard];
    wait->from_memory = image && image->state == IMAGE_RESIDENT;
    bool under_way = image && (image->state == IMAGE_READING || image->waiting);
    if (image && !under_way && (image->verified || load->held[wait->shard] == image)) {
        loop_timer_cancel(wait->service->loop, &wait->timer);
        lend(wait, image);
        return;
    }
    if (!image) {
        error = start_read(load, wait->shard);
        if (error != 0) {
            error == ERR_BUSY ? starve(wait) : fail_wait(wait, error);
            return;
        }
        image = load->checkpoint->images[wait->shard];
    } else if (!under_way) {
        hold_for_pass(image);
        image_start_all(image, PASS_VERIFY);
    }
    loop_timer_cancel(wait->service->loop, &wait->timer);
    wait->next = image->waiting;
    image->waiting = wait;
}

void restore_load_shard(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__LoadShardRequest *request)
{
    struct load *load;
    struct shard_wait *wait = NULL;
    int error = service_check_open(service);
    if (error == 0)
        error = find_load(&load, service, request->load);
    if (error == 0 && request->shard >= load->checkpoint->summary.shards)
        error = report_error(ERR_INVALID, NULL, "shard %u of %u does not exist", request->shard,
                             load->checkpoint->summary.shards);
    if (error == 0 && (wait = calloc(1, sizeof *wait)) == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory to wait for a shard");
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    *wait = (struct shard_wait){.service = service,
                                .call = call,
                                .load = request->load,
                                .shard = request->shard,
                                .timer.run = starved_to_death};
    begin_wait(wait);
}

void restore_release_shard(struct service *service, struct rpc_call *call,
                           const Holdfast__V1__ReleaseShardRequest *request)
{
    Holdfast__V1__ReleaseShardReply reply = HOLDFAST__V1__RELEASE_SHARD_REPLY__INIT;
    struct load *load;
    int error = find_load(&load, service, request->load);
    if (error == 0 && request->shard >= load->checkpoint->summary.shards)
        error = report_error(ERR_INVALID, NULL, "shard %u does not exist", request->shard);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    release_image(load, request->shard);
    rpc_call_reply(call, &reply.base);
}

void restore_close_load(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__CloseLoadRequest *request)
{
    Holdfast__V1__CloseLoadReply reply = HOLDFAST__V1__CLOSE_LOAD_REPLY__INIT;
    struct load *load;
    int error = find_load(&load, service, request->load);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    end_load(load);
    rpc_call_reply(call, &reply.base);
}

int restore_open(struct service *service)
{
    service->loads = calloc((size_t)service->config->limit_loads, sizeof *service->loads);
    if (!service->loads)
        return report_error(ERR_MEMORY, NULL, "no memory for the table of loads");
    return 0;
}

void restore_close(struct service *service)
{
    for (int64_t i = 0; service->loads && i < service->config->limit_loads; i++)
        if (service->loads[i].number != 0)
            end_load(&service->loads[i]);
    while (service->starved) {
        struct shard_wait *wait = service->starved;
        service->starved = wait->next;
        fail_wait(wait, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
    }
    free(service->loads);
    service->loads = NULL;
}
