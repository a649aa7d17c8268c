/* read_plan.c - the states of reads for loads.
 *
 * A load's plan says which box of which saved slice is copied. From its first element to its last
 * that is a span of the shard's file; the load wants the chunks that its spans touch. A pass reads
 * chunks of one shard into memory. It reads the chunks that open loads and waiting calls want, each
 * once, including those they ask for until it ends:
 *
 *            read_plan_begin            opened: START          the last started chunk came
 *     IDLE ───────────────────► OPENING ────────────► RUNNING ────────────────────────────┐
 *      ▲                          ▲  │ not opened, or                                     │
 *      │                          │  │ nothing asked for                                  ▼
 *      │ closed: DONE, FAILED     │  └──────────────────── CLOSE ──────────────────► CLOSING
 *      └──────────────────────────┼────────────────────────────────────────────────────┤
 *                                 └──── closed, and more was asked for meanwhile: OPEN ─┘
 *
 *     chunk:  MISSING ──ask──► ASKED ──start──► STARTED ──verified──► THERE
 *                ▲               │ pass failed     │ failed
 *                └───────────────┴─────────────────┘
 *
 * So an image may be sparse: idle, with chunks missing. A load that wants one of them starts
 * another pass. Two rules ask for more than the ranges of loads. If these are all chunks with
 * tensor data, the rest (header, checksum table) is read as well: such an image is whole and serves
 * later calls. A call for a byte outside the ranges gets all from there to the end: a client that
 * reads whole shards asks so.
 *
 * Reading ahead. Every client walks through its plan in the order of the shard numbers, and so does
 * ckptd, over the plans of all open loads of one checkpoint together. Thus the ranks of a job find
 * the same shard in memory at the same time, and its memory is free when the last of them has
 * released it: a load through a pool much smaller than the checkpoint still reads each byte once.
 *
 * A shard that is larger than the pool is read in parts on a grid of PART_SHARE of the pool, so
 * that several loads can have theirs at once. A part belongs to one load and is lent when it is
 * complete.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_read_plan.c):
 *   read_plan.P1  A chunk is started only when it is asked for, never while it is there or in
 *       progress: as long as an image stays, each of its chunks is read once.
 *   read_plan.P2  Only chunks that open loads or waiting calls need are asked for, and the rest of
 *       an image whose tensor data are all there or asked for.
 *   read_plan.P3  A call is lent verified chunks in one piece, from the chunk of its byte on.
 *   read_plan.P4  A pass ends when no chunk is asked for, or, after a failure, when none is in
 *       progress. Chunks asked for while the file is closed are read before the pass is DONE.
 *   read_plan.P5  read_plan.num_asked is the sum over all shards, and 0 when all are idle.
 *   read_plan.P6  The lowest shard that an open load of the checkpoint lacks is read ahead first,
 *       and none while a call starves or chunks_max chunks are asked for.
 *   read_plan.P7  Memory that open loads want goes to a lower shard of the same checkpoint, or to
 *       another checkpoint's when a call waits. Never to a higher shard: else a fast rank takes the
 *       shards that a slow one needs.
 *   read_plan.P8  Memory that ranks may write to is lent only to a reader that verifies its
 *       copies. */
#include "ckptd/machines/read_plan.h"
#include "proto/base/report.h"

#include <stdlib.h>

#define LEND_BYTES (64ull << 20)
#define DEPTHS_MAX 4u /* keeps the device busy from one shard to the next */
#define PART_SHARE 8u

void read_plan_init(struct read_plan *plan, uint32_t queue_depth, uint64_t segment_bytes)
{
    *plan = (struct read_plan){
        .chunks_max = DEPTHS_MAX * queue_depth,
        .lend_bytes = segment_bytes < LEND_BYTES ? segment_bytes : LEND_BYTES,
    };
}

bool read_plan_has_room(const struct read_plan *plan, bool is_starved)
{
    return !is_starved && plan->num_asked < plan->chunks_max; /* read_plan.P6 */
}

/* ---- chunks wanted by loads ---- */

static int compare_ranges(const void *a, const void *b)
{
    const struct read_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Lengthens the last range of the shard, or begins another. */
static void add_range(struct read_load *load, struct read_want *want, struct read_range range)
{
    struct read_range *ranges = load->ranges + want->first_range;
    struct read_range *last = want->num_ranges > 0 ? &ranges[want->num_ranges - 1] : NULL;
    if (!last || range.first < last->first || range.first > last->end)
        ranges[want->num_ranges++] = range;
    else if (range.end > last->end)
        last->end = range.end;
}

void read_plan_added(struct read_load *load)
{
    if (load->num_planned == 0)
        return;
    struct read_want *want = &load->shards[load->order[load->num_planned - 1]];
    struct read_range *ranges = load->ranges + want->first_range;
    uint32_t count = want->num_ranges;
    qsort(ranges, count, sizeof *ranges, compare_ranges);
    want->num_ranges = 0;
    for (uint32_t i = 0; i < count; i++)
        add_range(load, want, ranges[i]);
    load->num_ranges = want->first_range + want->num_ranges;
}

void read_plan_add(struct read_load *load, uint32_t shard, struct read_range range)
{
    struct read_want *want = &load->shards[shard];
    if (!want->is_wanted) {
        CHECK(load->num_planned == 0 || load->order[load->num_planned - 1] < shard);
        read_plan_added(load);
        want->is_wanted = true;
        want->first_range = load->num_ranges;
        load->order[load->num_planned++] = shard;
    }
    add_range(load, want, range);
}

bool read_plan_release(struct read_load *load, uint32_t shard)
{
    bool was_wanted = load->shards[shard].is_wanted;
    load->shards[shard].is_wanted = false;
    return was_wanted;
}

/* ---- the chunks of a shard ---- */

static uint8_t *at(const struct read_shard *shard, uint32_t chunk)
{
    return &shard->chunks[chunk % shard->num_rooms];
}

static uint32_t chunk_of(const struct read_shard *shard, uint64_t byte)
{
    return (uint32_t)(byte / shard->file.chunk_bytes);
}

static uint64_t end_of(const struct read_shard *shard, uint32_t chunk)
{
    uint64_t end = (chunk + 1ull) * shard->file.chunk_bytes;
    return end < shard->file.file_bytes ? end : shard->file.file_bytes;
}

static bool is_asked(const struct read_shard *shard, uint32_t chunk)
{
    return *at(shard, chunk) == READ_CHUNK_ASKED || *at(shard, chunk) == READ_CHUNK_STARTED;
}

void read_plan_shard(struct read_shard *shard, struct read_plan *plan, const struct read_file *file,
                     uint8_t *chunks)
{
    uint32_t count = (uint32_t)((file->file_bytes + file->chunk_bytes - 1) / file->chunk_bytes);
    *shard = (struct read_shard){.plan = plan,
                                 .file = *file,
                                 .chunks = chunks,
                                 .num_rooms = count,
                                 .num_chunks = count,
                                 .end = count,
                                 .num_missing = count};
}

void read_plan_part(struct read_shard *shard, struct read_plan *plan, const struct read_file *file,
                    uint8_t *chunks, uint32_t num_rooms, uint64_t byte)
{
    read_plan_shard(shard, plan, file, chunks);
    uint32_t chunk = chunk_of(shard, byte);
    shard->is_part = true;
    shard->num_rooms = num_rooms;
    shard->first = chunk - chunk % num_rooms;
    if (shard->end - shard->first > num_rooms)
        shard->end = shard->first + num_rooms;
}

uint32_t read_plan_part_segments(uint32_t pool_segments)
{
    return pool_segments < PART_SHARE ? 1 : pool_segments / PART_SHARE;
}

bool read_plan_has(const struct read_shard *shard, uint32_t chunk)
{
    if (shard->num_missing == 0)
        return true;
    return chunk >= shard->first && chunk < shard->end && *at(shard, chunk) == READ_CHUNK_THERE;
}

static bool lacks(const struct read_shard *shard, const struct read_load *load, uint32_t number)
{
    const struct read_want *want = &load->shards[number];
    for (uint32_t i = 0; i < want->num_ranges && shard->num_missing > 0; i++) {
        const struct read_range *range = &load->ranges[want->first_range + i];
        for (uint32_t chunk = range->first; chunk < range->end; chunk++)
            if (!read_plan_has(shard, chunk))
                return true;
    }
    return false;
}

/* ---- asking ---- */

static void ask_range(struct read_shard *shard, struct read_range range)
{
    CHECK(shard->state != READ_IDLE);
    uint32_t first = range.first > shard->first ? range.first : shard->first;
    uint32_t end = range.end < shard->end ? range.end : shard->end;
    for (uint32_t chunk = first; chunk < end; chunk++) {
        if (*at(shard, chunk) != READ_CHUNK_MISSING) /* read_plan.P1 */
            continue;
        *at(shard, chunk) = READ_CHUNK_ASKED;
        shard->num_asked++;
        shard->plan->num_asked++; /* read_plan.P5 */
        if (chunk < shard->cursor)
            shard->cursor = chunk;
    }
}

static bool all_is_asked(const struct read_shard *shard)
{
    return shard->num_asked >= shard->num_missing;
}

/* read_plan.P2: is every chunk with tensor data there, or asked for? Then so are the others. */
static void ask_rest(struct read_shard *shard)
{
    if (shard->is_part || all_is_asked(shard))
        return;
    uint32_t end = chunk_of(shard, shard->file.table_start - 1) + 1;
    for (uint32_t chunk = chunk_of(shard, shard->file.data_start); chunk < end; chunk++)
        if (*at(shard, chunk) == READ_CHUNK_MISSING)
            return;
    ask_range(shard, (struct read_range){0, shard->num_chunks});
}

void read_plan_ask(struct read_shard *shard, const struct read_load *load, uint32_t number)
{
    const struct read_want *want = &load->shards[number];
    for (uint32_t i = 0; i < want->num_ranges && !all_is_asked(shard); i++)
        ask_range(shard, load->ranges[want->first_range + i]);
    ask_rest(shard);
}

void read_plan_ask_from(struct read_shard *shard, uint64_t byte)
{
    uint32_t chunk = chunk_of(shard, byte);
    if (!read_plan_has(shard, chunk) && !is_asked(shard, chunk))
        ask_range(shard, (struct read_range){chunk, shard->num_chunks});
    ask_rest(shard);
}

/* ---- a pass ---- */

enum read_action read_plan_begin(struct read_shard *shard)
{
    CHECK(shard->state == READ_IDLE && shard->num_missing > 0 && shard->num_asked == 0);
    shard->state = READ_OPENING;
    shard->has_failed = false;
    shard->started_bytes = 0;
    shard->cursor = shard->end;
    return READ_OPEN;
}

enum read_action read_plan_opened(struct read_shard *shard, bool is_open)
{
    CHECK(shard->state == READ_OPENING);
    shard->has_failed = !is_open;
    bool runs = is_open && shard->num_asked > 0;
    shard->state = runs ? READ_RUNNING : READ_CLOSING;
    return runs ? READ_START : READ_CLOSE;
}

bool read_plan_start(struct read_shard *shard, uint32_t *out_chunk, bool *out_wakes)
{
    if (shard->state != READ_RUNNING || shard->has_failed || shard->num_started == shard->num_asked)
        return false;
    while (*at(shard, shard->cursor) != READ_CHUNK_ASKED)
        shard->cursor++;
    uint32_t chunk = shard->cursor;
    CHECK(chunk < shard->end);
    uint64_t before = shard->started_bytes, lend = shard->plan->lend_bytes;
    *at(shard, chunk) = READ_CHUNK_STARTED;
    shard->num_started++;
    shard->started_bytes += end_of(shard, chunk) - chunk * shard->file.chunk_bytes;
    *out_chunk = chunk;
    *out_wakes = before / lend != shard->started_bytes / lend;
    return true;
}

enum read_action read_plan_came(struct read_shard *shard, uint32_t chunk, bool is_there)
{
    CHECK(shard->state == READ_RUNNING && *at(shard, chunk) == READ_CHUNK_STARTED);
    *at(shard, chunk) = is_there ? READ_CHUNK_THERE : READ_CHUNK_MISSING;
    shard->has_failed |= !is_there;
    shard->num_missing -= is_there;
    shard->num_started--;
    shard->num_asked--;
    shard->plan->num_asked--;
    if (shard->num_started > 0)
        return READ_NOTHING;
    shard->state = READ_CLOSING;
    return READ_CLOSE;
}

enum read_action read_plan_closed(struct read_shard *shard)
{
    CHECK(shard->state == READ_CLOSING);
    if (!shard->has_failed && shard->num_asked > 0) { /* read_plan.P4 */
        shard->state = READ_OPENING;
        return READ_OPEN;
    }
    for (uint32_t chunk = shard->first; chunk < shard->end && shard->num_asked > 0; chunk++) {
        if (*at(shard, chunk) != READ_CHUNK_ASKED)
            continue;
        *at(shard, chunk) = READ_CHUNK_MISSING;
        shard->num_asked--;
        shard->plan->num_asked--; /* read_plan.P5 */
    }
    shard->state = READ_IDLE;
    return shard->has_failed ? READ_FAILED : READ_DONE;
}

/* ---- which shard is read ahead ---- */

bool read_plan_at(uint32_t *out_shard, const struct read_next *next, const struct read_load *load)
{
    if (load->next >= load->num_planned ||
        (next->load && next->load->checkpoint != load->checkpoint))
        return false;
    *out_shard = load->order[load->next];
    return true;
}

/* A shard that was in memory or in progress at its turn is not considered again: if it goes, a
 * LoadShard call reads it. */
bool read_plan_offer(struct read_next *next, struct read_load *load, const struct read_shard *shard)
{
    uint32_t number = load->order[load->next];
    const struct read_want *want = &load->shards[number];
    bool is_due =
        shard ? shard->state == READ_IDLE && lacks(shard, load, number) : !want->is_in_parts;
    if (!want->is_wanted || !is_due) {
        load->next++;
        return false;
    }
    if (!next->load || number < next->shard) /* read_plan.P6 */
        *next = (struct read_next){load, number};
    return true;
}

void read_plan_pass_over(const struct read_next *next)
{
    next->load->next++;
}

/* ---- a LoadShard call ---- */

/* An image that a pass reads is usable, as only ckptd writes to it. */
static bool may_use(const struct read_call *call, const struct read_found *found)
{
    if (found->image->state != READ_IDLE)
        return true;
    return found->is_right &&
           (!found->is_of_save || (call->checks && !call->from_file)); /* read_plan.P8 */
}

enum read_answer read_plan_call(struct read_call *call, const struct read_found *found,
                                uint64_t chunk_bytes)
{
    const struct read_shard *image = found->image;
    uint32_t chunk = (uint32_t)(call->from_byte / chunk_bytes);
    call->end_chunk = chunk;
    if (call->from_byte >= found->bytes)
        return READ_ANSWER_BEYOND;
    if (!image && found->is_in_parts)
        return found->part && read_plan_has(found->part, chunk) ? READ_ANSWER_LEND_PART
                                                                : READ_ANSWER_MAKE_PART;
    if (!image)
        return READ_ANSWER_MAKE;
    if (!may_use(call, found))
        return READ_ANSWER_REPLACE;
    if (image->state != READ_IDLE)
        return READ_ANSWER_WAIT;
    return read_plan_has(image, chunk) ? READ_ANSWER_LEND : READ_ANSWER_READ;
}

uint64_t read_plan_lend_end(struct read_call *call, const struct read_shard *shard)
{
    if (shard->num_missing == 0)
        return shard->file.file_bytes;
    while (call->end_chunk < shard->end && read_plan_has(shard, call->end_chunk))
        call->end_chunk++;
    return end_of(shard, call->end_chunk - 1);
}

bool read_plan_may_lend(struct read_call *call, const struct read_shard *shard)
{
    if (shard->is_part || shard->has_failed ||
        !read_plan_has(shard, chunk_of(shard, call->from_byte))) /* read_plan.P3 */
        return false;
    return read_plan_lend_end(call, shard) >= call->from_byte + shard->plan->lend_bytes ||
           call->end_chunk >= shard->end || !is_asked(shard, call->end_chunk);
}

/* ---- memory, damage ---- */

bool read_plan_may_take(const struct read_taker *taker, const void *checkpoint, uint32_t shard)
{
    if (taker->checkpoint == checkpoint)
        return shard > taker->shard; /* read_plan.P7 */
    return taker->is_awaited;
}

/* A remote tier that does not answer proves nothing about its copy. */
bool read_plan_is_damage(int code, enum tier_index tier)
{
    return code == ERR_CORRUPT || code == ERR_NOT_FOUND || (code == ERR_IO && tier == TIER_LOCAL);
}
