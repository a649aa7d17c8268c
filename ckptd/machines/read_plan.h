/* read_plan.h - decides which chunks of a checkpoint's shards are read for loads, in which order,
 * and which bytes a LoadShard call is lent. Pure state machines: events go in, the action that is
 * due comes out. No I/O, no clock, no threads, no allocation: the caller owns every array. States
 * and invariants are drawn at the head of read_plan.c; ckptd/restore/pump.c performs the actions.
 *
 *     read_plan_add ... read_plan_added     -- a load names the chunks that it wants
 *     read_plan_at, read_plan_offer         -- which shard is read ahead
 *     read_plan_call                        -- a LoadShard call: lend, wait, or read
 *     read_plan_begin ──► OPEN ──► read_plan_opened ──► START ──► read_plan_start ... image read
 *     read_plan_came ──► CLOSE ──► read_plan_closed ──► DONE, FAILED, or OPEN again */
#ifndef HOLDFAST_CKPTD_MACHINES_READ_PLAN_H
#define HOLDFAST_CKPTD_MACHINES_READ_PLAN_H

#include "ckptd/machines/tier_index.h"

#include <stdbool.h>
#include <stdint.h>

struct read_range {
    uint32_t first, end; /* chunks of a file */
};

/* Shared by all reads of a service. */
struct read_plan {
    uint32_t chunks_max; /* chunks asked for at once, beyond which ckptd does not read ahead */
    uint64_t lend_bytes; /* verified in one piece before a part of a shard is lent */
    uint32_t num_asked;  /* chunks, of all shards, that are asked for or in progress */
};

void read_plan_init(struct read_plan *plan, uint32_t queue_depth, uint64_t segment_bytes);
/* May more be read ahead? `is_starved`: a LoadShard call waits for memory. */
bool read_plan_has_room(const struct read_plan *plan, bool is_starved);

/* ---- chunks wanted by loads ---- */

struct read_want {
    bool is_wanted;                   /* planned, and not released yet */
    bool is_in_parts;                 /* the shard is larger than the pool */
    uint32_t first_range, num_ranges; /* in read_load.ranges; ascending and disjoint */
};

struct read_load {
    const void *checkpoint;    /* identity only */
    struct read_want *shards;  /* per shard of the checkpoint */
    uint32_t *order;           /* the planned shards, ascending */
    struct read_range *ranges; /* room for one per read_plan_add */
    uint32_t num_planned, num_ranges;
    uint32_t next; /* of `order`: the first that reading ahead has not considered */
};

/* The load wants a range of a shard. Shards come in ascending order, ranges of one in any order. */
void read_plan_add(struct read_load *load, uint32_t shard, struct read_range range);
void read_plan_added(struct read_load *load); /* that was the last one */
/* The load is done with the shard. False: it did not want the shard, or no longer. */
bool read_plan_release(struct read_load *load, uint32_t shard);

/* ---- the chunks of a shard in memory ---- */

enum read_chunk { READ_CHUNK_MISSING, READ_CHUNK_ASKED, READ_CHUNK_STARTED, READ_CHUNK_THERE };

enum read_state { READ_IDLE, READ_OPENING, READ_RUNNING, READ_CLOSING };

enum read_action {
    READ_NOTHING,
    READ_OPEN,  /* open the file; then read_plan_opened */
    READ_START, /* start chunks until read_plan_start is false */
    READ_CLOSE, /* close the file; then read_plan_closed */
    READ_DONE,  /* the pass is over, and its chunks are there */
    READ_FAILED /* the pass is over; the image may not stay */
};

struct read_file {
    uint64_t file_bytes, data_start, table_start, chunk_bytes;
};

/* All zero: every chunk is there, as in the image of a save. */
struct read_shard {
    struct read_plan *plan;
    struct read_file file;
    uint8_t *chunks; /* enum read_chunk, num_rooms of them: a ring over [first, end) */
    uint32_t num_rooms, num_chunks;
    uint32_t first, end; /* chunks that may be in memory; for a part not all of the file */
    bool is_part;
    enum read_state state;
    bool has_failed;        /* a chunk of this pass, or its opening */
    uint32_t num_missing;   /* chunks of the file that are missing; 0: none */
    uint32_t num_asked;     /* asked for or in progress */
    uint32_t num_started;   /* of those, in progress */
    uint32_t cursor;        /* no chunk before it is asked for and not started */
    uint64_t started_bytes; /* since the pass began */
};

/* A whole shard, all of it missing. `chunks`: one for each of the file, zeroed. */
void read_plan_shard(struct read_shard *shard, struct read_plan *plan, const struct read_file *file,
                     uint8_t *chunks);
/* The part around `byte` of a shard that is larger than the pool, in num_rooms chunks. */
void read_plan_part(struct read_shard *shard, struct read_plan *plan, const struct read_file *file,
                    uint8_t *chunks, uint32_t num_rooms, uint64_t byte);
/* The number of segments of a part, for a pool of that size. */
uint32_t read_plan_part_segments(uint32_t pool_segments);
/* Is the chunk in memory, verified or of a save? */
bool read_plan_has(const struct read_shard *shard, uint32_t chunk);

/* These two ask for missing chunks, in a pass only: those that the load wants of its shard number
 * `number`; and all from `byte` to the end of the file, if that byte is missing. */
void read_plan_ask(struct read_shard *shard, const struct read_load *load, uint32_t number);
void read_plan_ask_from(struct read_shard *shard, uint64_t byte);

enum read_action read_plan_begin(struct read_shard *shard); /* OPEN */
enum read_action read_plan_opened(struct read_shard *shard, bool is_open);
/* The next chunk to start. *out_wakes: with it another part can be lent, so its end is announced at
 * once. False: none now. */
bool read_plan_start(struct read_shard *shard, uint32_t *out_chunk, bool *out_wakes);
/* A started chunk has ended; `is_there`: it was read and verified. */
enum read_action read_plan_came(struct read_shard *shard, uint32_t chunk, bool is_there);
enum read_action read_plan_closed(struct read_shard *shard);

/* ---- which shard is read ahead ---- */

struct read_next {
    struct read_load *load; /* NULL: none yet */
    uint32_t shard;
};

/* One pass over the open loads, in the order of their table. `next` begins all zero; for each load,
 * while read_plan_at() is true, offer the image of that shard (NULL: none) until one is taken. Then
 * `next` is the read to begin. */
bool read_plan_at(uint32_t *out_shard, const struct read_next *next, const struct read_load *load);
bool read_plan_offer(struct read_next *next, struct read_load *load,
                     const struct read_shard *shard);
/* The chosen read failed at once: the LoadShard call that needs it reads it. */
void read_plan_pass_over(const struct read_next *next);

/* ---- a LoadShard call ---- */

struct read_call {
    uint64_t from_byte; /* the first that is needed */
    bool checks;        /* the reader verifies its copies of memory that ranks may write to */
    bool from_file;     /* and found it changed */
    uint32_t end_chunk; /* chunks from that byte's to here were there at the last check */
};

struct read_found {
    const struct read_shard *image; /* of the shard, in memory; NULL: none */
    const struct read_shard *part;  /* of the shard, lent to this load before; NULL: none */
    bool is_of_save;                /* ranks may still write to the image */
    bool is_right;                  /* it has the checksum table of the manifest */
    bool is_in_parts;               /* the shard is larger than the pool */
    uint64_t bytes;                 /* of the shard */
};

enum read_answer {
    READ_ANSWER_BEYOND,    /* an error: the byte is after the end */
    READ_ANSWER_LEND,      /* the image */
    READ_ANSWER_LEND_PART, /* the part */
    READ_ANSWER_WAIT,      /* join the pass in progress */
    READ_ANSWER_READ,      /* begin a pass over the image, and wait for it */
    READ_ANSWER_MAKE,      /* make an image, begin a pass over it, and wait */
    READ_ANSWER_MAKE_PART, /* the same, of the part around the byte */
    READ_ANSWER_REPLACE    /* the call cannot use the image: drop it; then as MAKE */
};

enum read_answer read_plan_call(struct read_call *call, const struct read_found *found,
                                uint64_t chunk_bytes);
/* Moves call->end_chunk over the chunks that are there; returns the byte where they end. */
uint64_t read_plan_lend_end(struct read_call *call, const struct read_shard *shard);
/* A pass is in progress: is there enough for the call? */
bool read_plan_may_lend(struct read_call *call, const struct read_shard *shard);

/* ---- memory, damage ---- */

struct read_taker {
    const void *checkpoint;
    uint32_t shard;
    bool is_awaited; /* a LoadShard call waits for it */
};

/* May a read take the memory of a shard that open loads want and none is lent? */
bool read_plan_may_take(const struct read_taker *taker, const void *checkpoint, uint32_t shard);
/* Does this error of a read prove that the copy in the tier is damaged? */
bool read_plan_is_damage(int code, enum tier_index tier);

#endif
