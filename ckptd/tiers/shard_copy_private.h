/* shard_copy_private.h - private to ckptd/tiers/: a shard copy and its queue, shared by
 * shard_copy.c, which moves the parts, and copy_io.c. On the service thread, except for the fields
 * that a job uses. */
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

/* A part of a shard in transfer. */
struct part {
    struct shard_copy *copy;
    void *data; /* while busy: an aligned buffer of tier.part_bytes */
    bool is_busy;
    uint64_t index, start;
    uint32_t bytes;
    struct image *image; /* source of the part; NULL: the file */
    struct fault fault;
    struct job job;
};

/* The parts that may be in flight to a tier, and their throttle; its shard copies share them, the
 * first copy first. */
struct copy_queue {
    struct service *service;
    enum tier_index to;
    struct shard_copy *ships;
    struct part *parts;
    struct buffers *buffers; /* shared by all peers, or the tier's own */
    struct buffers_waiter waiter;
    uint32_t num_parts_max, in_flight;
    struct throttle pace;
    struct timer timer;
};

/* Copies one shard after the other; for a save that is not committed, one. */
struct shard_copy {
    struct shard_copy *next; /* of the queue */
    struct copy_queue *queue;
    struct service *service;
    enum tier_index from; /* set by the caller that starts a checkpoint */
    enum tier_index to;
    void (*arrived)(struct shard_copy *copy); /* the shard is durable, or `fault` has the error */
    void (*at_rest)(
        struct shard_copy *copy); /* of shard_copy_start_early(): no part is in flight */
    /* The current shard. */
    /* Of a local save that is not committed, whose written chunks may be sent; else NULL. */
    struct stage *stage;
    struct checkpoint *checkpoint;
    struct store_shard file;      /* as it is in `from` */
    struct shard_copy *left;      /* the copy from before the commit, or NULL */
    struct precommit_copy *early; /* its owner, for shard_copy_start_early() */
    struct storage_object *target;
    char (*sums)[CHECKSUM_SHA256_HEX]; /* a SHA-256 per part */
    uint64_t num_parts, next_part, num_sent;
    /* Of an uncommitted save at another node: bytes from the start that are final there. */
    uint64_t written;
    struct ledger_promise room; /* for it, until its file exists */
    uint32_t in_flight;
    bool is_kept;      /* the file at the target is whole already */
    bool is_replacing; /* the file at the target is damaged: the new one is written beside it */
    bool is_hurried;   /* a client waits: no throttle */
    bool is_from_file; /* the image did not have the right bytes */
    bool is_of_source; /* the fault is of the source */
    bool is_early, is_stopped;
    bool is_made;    /* of an uncommitted save: the file was made here; */
    bool is_ours;    /* and no replication has taken it */
    bool is_working; /* `job` is in progress */
    bool is_ending, is_under_way;
    struct fault fault;
    char sha256[CHECKSUM_SHA256_HEX]; /* hash of the parts' hashes */
    struct job job;
    /* For all shards. */
    /* Of the checkpoint's first part; set by the caller that starts a checkpoint. */
    int64_t stamp;
    uint32_t num_paced;                     /* parts that wait in `pace` */
    uint64_t bytes_sent, bytes_from_memory; /* since the start */
};

#endif
