/* scrub_private.h - the scrub of a tier, for scrub.c, which runs it, scrub_read.c, which reads, and
 * the two orders in which checkpoints are read: scrub_pass.c and scrub_log.c. */
#ifndef HOLDFAST_CKPTD_SCRUB_SCRUB_PRIVATE_H
#define HOLDFAST_CKPTD_SCRUB_SCRUB_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/scrub/scrub.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "storage/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct scrub;

struct scrub_turn {
    struct checkpoint *checkpoint; /* NULL: none */
    bool is_aside;                 /* out of turn: the cursor of the run stays */
};

enum scrub_outcome {
    SCRUB_GOES_ON, /* some blocks were read */
    SCRUB_STOPPED, /* the turn ends before the last one; what follows ends it as well */
    SCRUB_WHOLE,
    SCRUB_DAMAGED,
    SCRUB_UNREAD /* an error that proves nothing */
};

/* How the checkpoints of a tier are read. */
struct scrub_order {
    enum tier_index tier;
    const char *where;   /* in messages */
    uint32_t read_bytes; /* of one read: whole blocks */
    int64_t idle_ms;     /* between two looks for a checkpoint that is due, or a period */
    /* Other ckptds remove checkpoints there, so each is leased while it is read; what was gone
     * before is no damage, nor is an error of the way there. Else all of this is the other way
     * round, some shards may lie on other nodes, and the scrub gives way to saves and loads. */
    bool is_shared;
    /* On the service thread while no job is under way. Starts the job that fetches or keeps the
     * place, where one is due. */
    bool (*note)(struct scrub *scrub);
    /* What is to be read now; the same as before until that is read whole. */
    struct scrub_turn (*next)(struct scrub *scrub);
    /* scrub->turn begins: where is it read on? */
    void (*begin)(struct scrub *scrub);
    void (*was_read)(struct scrub *scrub, enum scrub_outcome outcome);
};
extern const struct scrub_order scrub_pass, scrub_log;

struct scrub {
    const struct scrub_order *order;
    struct service *service;
    struct timer timer;
    struct job job;
    bool is_working, is_paused;  /* a job is under way; of the local one: of all */
    bool rests;                  /* there is nothing to do before its next look */
    struct scrub_turn turn;      /* leased */
    int64_t yielded_ms, rest_ms; /* rest_ms: as scrub.rate asks, once what is to be kept is */
    int64_t kept_ms;             /* loop_now_ms() of the last note */
    struct run *run;             /* that it is in, or NULL */
    uint64_t bytes_read, checkpoints_read, damaged; /* since the start */
    /* The worker's while it has the job. */
    struct manifest_summary summary;
    struct manifest *manifest;
    struct places places;
    struct storage_hold *lease;
    struct store_shard file;
    uint8_t *buffer;      /* order->read_bytes */
    uint64_t shard, byte; /* read next */
    uint64_t bytes;       /* that the job read */
    bool is_read;         /* the whole checkpoint */
    bool proves_nothing;  /* the fault */
    struct fault fault;
    /* Of scrub_pass.c. The newest when it came to that run; what is saved meanwhile waits for the
     * next pass, or a run that saves faster than this reads would keep it from the others. */
    uint64_t last_attempt, last_step;
    uint64_t first_attempt, first_step; /* the newest, that was read before them; 0: none */
    bool has_no_newest;                 /* in this pass: it could not be read out of turn */
    bool must_keep;                     /* the cursor */
    struct scrub_cursor cursor;         /* to be kept */
    uint64_t passes;
    /* Of scrub_log.c: the checkpoint, seconds since the epoch; the run whose log is on its way. */
    int64_t begun;
    struct run *log_run;
    char folder[STORAGE_KEY_MAX + 1];
    uint64_t number; /* of its log before */
};

static inline struct storage *scrub_storage(const struct scrub *scrub)
{
    return scrub->service->tiers[scrub->order->tier].storage;
}

/* Of scrub_read.c. `done` ends with scrub_wait(): until the next thing to do. */
void scrub_start_job(struct scrub *scrub, void (*work)(struct job *), void (*done)(struct event *));
void scrub_wait(struct scrub *scrub, int64_t ms);
/* On a worker: scrub->job. */
void scrub_work_read(struct job *job);
void scrub_work_close(struct job *job);
/* While no job is under way. */
void scrub_close_checkpoint(struct scrub *scrub);
/* Of scrub_pass.c: what Status says beyond scrub.c; `scrub` is NULL where it is off. */
struct json_t *scrub_pass_describe(const struct service *service, const struct scrub *scrub);

#endif
