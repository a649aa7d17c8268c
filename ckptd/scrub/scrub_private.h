/* scrub_private.h - the scrub of a tier, for scrub.c, which runs it, scrub_read.c, which reads, and
 * the two orders of reading: scrub_pass.c and scrub_log.c. */
#ifndef HOLDFAST_CKPTD_SCRUB_SCRUB_PRIVATE_H
#define HOLDFAST_CKPTD_SCRUB_SCRUB_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/scrub/scrub.h"
#include "proto/base/clock.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "storage/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct scrub;

struct scrub_turn {
    struct checkpoint *checkpoint; /* NULL: none */
    bool is_aside;                 /* out of order: the cursor of the run stays */
};

enum scrub_outcome {
    SCRUB_GOES_ON, /* some blocks were read */
    SCRUB_STOPPED, /* stopped early: this and the outcomes below end the turn */
    SCRUB_WHOLE,
    SCRUB_DAMAGED,
    SCRUB_UNREAD /* an error that proves no damage */
};

/* The order in which the checkpoints of a tier are read. */
struct scrub_order {
    enum tier_index tier;
    const char *where;   /* in messages */
    uint32_t read_bytes; /* of one read; whole blocks */
    int64_t idle_ms;     /* between two searches for a checkpoint that is due, or a period */
    /* Other ckptds remove checkpoints there, so each is leased while it is read; a missing one, or
     * an error on the way, is no damage. If not shared: missing files are damage, some shards may
     * be on other nodes, and the scrub yields to saves and loads. */
    bool is_shared;
    /* On the service thread while no job is in progress. Starts the job that reads or stores the
     * place, if one is due. */
    bool (*note)(struct scrub *scrub);
    /* The checkpoint to read now; the same as before until it is read whole. */
    struct scrub_turn (*next)(struct scrub *scrub);
    /* scrub->turn begins: sets where to continue. */
    void (*begin)(struct scrub *scrub);
    void (*was_read)(struct scrub *scrub, enum scrub_outcome outcome);
};
extern const struct scrub_order scrub_pass, scrub_log;

struct scrub {
    const struct scrub_order *order;
    struct service *service;
    struct timer timer;
    struct job job;
    bool is_working, is_paused; /* a job is in progress; for the local tier: of all */
    bool rests;                 /* there is no work before the next search */
    struct scrub_turn turn;     /* leased */
    /* rest_ms: the pause that scrub.rate requires after the place was stored. */
    int64_t yielded_ms, rest_ms;
    int64_t kept_ms;                                /* clock_ms() when the place was last stored */
    struct run *run;                                /* of the checkpoint, or NULL */
    uint64_t bytes_read, checkpoints_read, damaged; /* since the start */
    /* Owned by the worker during its job. */
    struct manifest_summary summary;
    struct manifest *manifest;
    struct places places;
    struct storage_hold *lease;
    struct store_shard file;
    uint8_t *buffer;      /* order->read_bytes */
    uint64_t shard, byte; /* the next to read */
    uint64_t bytes;       /* read by the job */
    bool is_read;         /* the whole checkpoint */
    bool proves_nothing;  /* the fault is no proof */
    struct fault fault;
    /* For scrub_pass.c. The newest checkpoint when the pass came to that run; later ones wait for
     * the next pass, else a run that saves faster than this reads keeps it from the others. */
    uint64_t last_attempt, last_step;
    uint64_t first_attempt, first_step; /* the newest, if it was read before them; 0: none */
    bool has_no_newest;                 /* in this pass the newest could not be read out of order */
    bool must_keep;                     /* the cursor must be stored */
    struct scrub_cursor cursor;         /* to be stored */
    uint64_t passes;
    /* For scrub_log.c: when the checkpoint was begun, seconds since the epoch; the run whose log is
     * being read or written. */
    int64_t begun;
    struct run *log_run;
    char folder[STORAGE_KEY_MAX + 1];
    uint64_t number; /* of its former log */
};

static inline struct storage *scrub_storage(const struct scrub *scrub)
{
    return scrub->service->tiers[scrub->order->tier].storage;
}

/* In scrub_read.c. `done` ends with scrub_wait(), which sets the time of the next step. */
void scrub_start_job(struct scrub *scrub, void (*work)(struct job *), void (*done)(struct event *));
void scrub_wait(struct scrub *scrub, int64_t ms);
/* On a worker: scrub->job. */
void scrub_work_read(struct job *job);
void scrub_work_close(struct job *job);
/* While no job is in progress. */
void scrub_close_checkpoint(struct scrub *scrub);
/* In scrub_pass.c: its part of Status; `scrub` is NULL if it is off. */
struct json_t *scrub_pass_describe(const struct service *service, const struct scrub *scrub);

#endif
