/* shard_copy_private.h - private to ckptd/tiers/: a shard on its way into another tier, and the
 * buffers that it goes by, as shard_copy.c, which moves it, and copy_io.c share them. On the
 * service thread, but for what a job works on. */
#ifndef HOLDFAST_CKPTD_TIERS_SHARD_COPY_PRIVATE_H
#define HOLDFAST_CKPTD_TIERS_SHARD_COPY_PRIVATE_H

#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/throttle.h"
#include "ckptd/tiers/buffers.h"
#include "storage/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;
struct image;
struct stage;
struct precommit_copy;
struct shard_copy;

/* A part of a shard that is under way. */
struct part {
    struct shard_copy *copy;
    void *data; /* while it is busy: a buffer of tier.part_bytes, aligned */
    bool is_busy;
    uint64_t index, start;
    uint32_t bytes;
    struct image *image; /* it is read from there; NULL: from the file */
    struct fault fault;
    struct job job;
};

/* The parts that may be under way into a tier, and when they go; its ships share them, the first
 * one first. */
struct copy_queue {
    struct service *service;
    enum tier_index to;
    struct shard_copy *ships;
    struct part *parts;
    struct buffers *buffers; /* of all peers together, or the tier's own */
    struct buffers_waiter waiter;
    uint32_t num_parts_max, in_flight;
    struct throttle pace;
    struct timer timer;
};

/* What moves one shard after the other, or, of a save that is not committed, one. */
struct shard_copy {
    struct shard_copy *next; /* of the queue */
    struct copy_queue *queue;
    struct service *service;
    enum tier_index from; /* whoever starts a checkpoint sets it */
    enum tier_index to;
    void (*arrived)(struct shard_copy *copy); /* the shard is durable, or fault says why not */
    void (*at_rest)(
        struct shard_copy *copy); /* of shard_copy_start_early: nothing of it is under way */
    /* The shard under way. */
    struct stage *stage; /* of a save, here: what is written of it may go; else NULL */
    struct checkpoint *checkpoint;
    struct store_shard file;      /* as it is in `from` */
    struct shard_copy *left;      /* what went before the commit, or NULL */
    struct precommit_copy *early; /* whose it is: of shard_copy_start_early */
    struct storage_object *target;
    char (*sums)[CHECKSUM_SHA256_HEX]; /* per part */
    uint64_t num_parts, next_part, num_sent;
    uint64_t written; /* of a save, at another node: bytes from the start that are final there */
    struct ledger_promise room; /* of that, until its file is there */
    uint32_t in_flight;
    bool is_kept;      /* what was there already is whole */
    bool is_replacing; /* what was there is not: the target is written beside it */
    bool is_hurried;   /* somebody waits: nothing is held back */
    bool is_from_file; /* an image did not hold what it should */
    bool is_of_source; /* the fault is */
    bool is_early, is_stopped;
    bool is_made;    /* of a save, here: its file was, before the commit; */
    bool is_ours;    /* and nobody has taken it */
    bool is_working; /* `job` is under way */
    bool is_ending, is_under_way;
    struct fault fault;
    char sha256[CHECKSUM_SHA256_HEX]; /* of its parts' */
    struct job job;
    /* All shards. */
    int64_t stamp;      /* of the checkpoint's first part: whoever starts one sets it */
    uint32_t num_paced; /* parts that wait in `pace` */
    uint64_t bytes_sent, bytes_from_memory; /* since the start */
};

#endif
