/* loads.h - what the files of restore/ know of loads: the table, and calls that wait. */
#ifndef HOLDFAST_CKPTD_RESTORE_LOADS_H
#define HOLDFAST_CKPTD_RESTORE_LOADS_H

#include "ckptd/core/loop.h"
#include "ckptd/restore/together.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct session;
struct checkpoint;
struct image;
struct chunk_range;
struct rpc_call;

struct load {
    uint64_t number; /* 0: slot not in use */
    struct service *service;
    struct session *session;
    struct checkpoint *checkpoint;
    struct load_shard {
        struct image *held;
        bool wanted;                      /* by its plan, and not released yet */
        uint32_t first_range, num_ranges; /* of it, in `ranges` */
    } * shards;                           /* per shard of the checkpoint */
    uint32_t *plan;                       /* the shards that it wanted first, ascending */
    uint32_t num_planned;
    struct chunk_range *ranges; /* what it wanted of them; ascending and apart within a shard */
    uint32_t next;              /* of the plan: what ahead.c looks at next */
    struct timer timer;         /* lease */
    struct together_member together;
};

/* A LoadShard call that waits for a pass, or for memory. */
struct shard_wait {
    struct shard_wait *next;
    struct service *service;
    struct rpc_call *call;
    uint64_t load; /* by number: the load may have ended */
    uint32_t shard;
    uint64_t from_byte; /* the first that is needed */
    bool checks;        /* the reader proves what it copies of memory that ranks may write to */
    bool from_file;     /* and found it changed */
    uint32_t end_chunk; /* those from that byte's to here were there when this was last looked at */
    struct timer timer; /* for memory only */
};

/* What a pass over an image tells those who wait for it; restore.c says who they are. */
struct pass_events {
    void (*begins)(struct image *image); /* a READ: it takes what is asked for by then, and later */
    void (*grew)(struct image *image);   /* more of it is verified, while it is being read */
    void (*verified)(struct image *image);
    /* image->fault says why; it has left its checkpoint when this returns. */
    void (*failed)(struct image *image);
};

struct load_table {
    const struct pass_events *events;
    struct load *rows;          /* config limit_loads of them */
    uint64_t newest;            /* number of a load */
    struct shard_wait *starved; /* LoadShard calls that wait for segments, oldest first */
    uint32_t chunks_in_passes;  /* under way, or about to be */
    uint64_t bytes_read;        /* since the start */
    struct together *together;  /* those of attempts that load together */
};

#endif
