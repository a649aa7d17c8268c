/* loads.h - the table of loads and the calls that wait, shared by the files of restore/. */
#ifndef HOLDFAST_CKPTD_RESTORE_LOADS_H
#define HOLDFAST_CKPTD_RESTORE_LOADS_H

#include "ckptd/core/loop.h"
#include "ckptd/machines/read_plan.h"
#include "ckptd/restore/together.h"
#include "proto/base/histogram.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct session;
struct checkpoint;
struct image;
struct rpc_call;

struct load {
    uint64_t number; /* 0: slot not in use */
    struct service *service;
    struct session *session;
    struct checkpoint *checkpoint;
    struct image **held;    /* per shard of the checkpoint: the image that was lent; NULL: none */
    struct read_load reads; /* the chunks that it wants */
    struct timer timer;     /* lease */
    int64_t opened_ms;
    struct together_member together;
};

/* A LoadShard call that waits for a pass, or for memory. */
struct shard_wait {
    struct shard_wait *next;
    struct service *service;
    struct rpc_call *call;
    uint64_t load; /* by number: the load may have ended */
    uint32_t shard;
    struct read_call read;
    struct timer timer; /* for memory only */
};

/* Callbacks of pump.c to shard.c for a pass over an image; restore.c connects the two. */
struct pass_events {
    void (*grew)(struct image *image); /* more of it is verified, while it is being read */
    void (*verified)(struct image *image);
    /* image->fault has the error; the image has left its checkpoint when this returns. */
    void (*failed)(struct image *image);
};

struct load_table {
    const struct pass_events *events;
    struct load *rows;          /* config limit_sessions of them */
    uint64_t newest;            /* number of a load */
    struct shard_wait *starved; /* LoadShard calls that wait for segments, oldest first */
    struct read_plan plan;
    uint64_t bytes_read;       /* since the start */
    struct histogram seconds;  /* likewise, of loads that their readers closed */
    struct together *together; /* the groups of attempts that load together */
};

#endif
