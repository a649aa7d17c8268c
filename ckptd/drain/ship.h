/* ship.h - one shard on its way from one tier into another, part by part; see ship.c. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_DRAIN_SHIP_H
#define HOLDFAST_CKPTD_DRAIN_SHIP_H

#include "ckptd/loop.h"
#include "ckptd/node/pace.h"
#include "ckptd/tier.h"
#include "proto/manifest.h"
#include "proto/shard.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;
struct image;
struct ship;

/* A buffer, and the part of the shard that it holds. */
struct part {
    struct ship *ship;
    void *data; /* tier.part_bytes, aligned */
    bool is_busy;
    uint64_t index, start;
    uint32_t bytes;
    struct image *image; /* it is read from there; NULL: from the file */
    struct fault fault;
    struct job job;
};

/* What moves shards: buffers that are used for one shard after the other. */
struct ship {
    struct service *service;
    enum tier_index from; /* whoever starts a checkpoint sets it */
    enum tier_index to;
    void (*arrived)(struct ship *ship); /* the shard is durable, or fault says why not */
    /* The shard under way. */
    struct checkpoint *checkpoint;
    const struct manifest *manifest;
    uint32_t shard;
    struct shard_geometry geometry;
    uint64_t identity;
    struct storage_object *source, *target;
    uint8_t *table;
    char (*sums)[CHECKSUM_SHA256_HEX]; /* per part */
    uint64_t num_parts, next_part, num_sent;
    bool is_kept;      /* what was there already is whole */
    bool is_replacing; /* what was there is not: the target is written beside it */
    bool is_hurried;   /* somebody waits: nothing is held back */
    bool is_from_file; /* an image did not hold what it should */
    bool is_of_source; /* the fault is */
    bool is_ending, is_under_way;
    struct fault fault;
    char sha256[CHECKSUM_SHA256_HEX]; /* of its parts' */
    struct job job;
    /* All shards. */
    struct part *parts;
    uint32_t num_parts_max, in_flight;
    struct pace pace;
    int64_t stamp;      /* of the checkpoint's first part: whoever starts one sets it */
    uint32_t num_paced; /* parts that wait in `pace` */
    struct timer timer;
    uint64_t bytes_sent, bytes_from_memory; /* since the start */
};

/* ERR_MEMORY. `rate` and `is_quiet` as in pace.h. */
int ship_open(struct ship *ship, struct service *service, enum tier_index to);
void ship_leave(struct ship *ship); /* when the crews have ended: lets go of images */
void ship_close(struct ship *ship); /* when nothing is under way, or the crew has ended */
/* Begins; then `arrived` once. The checkpoint is leased and the manifest stays meanwhile. */
void ship_start(struct ship *ship, struct checkpoint *checkpoint, const struct manifest *manifest,
                uint32_t shard);
/* Somebody waits for it, or a rank became quiet: what is held back is looked at. */
void ship_look(struct ship *ship);

#endif
