/* scrub_private.h - the scrub and what it has open, for scrub.c, which says what is next, and
 * scrub_read.c, which reads it. */
#ifndef HOLDFAST_CKPTD_KEEP_SCRUB_PRIVATE_H
#define HOLDFAST_CKPTD_KEEP_SCRUB_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/keep/scrub.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct scrub {
    struct service *service;
    struct timer timer;
    struct job job;
    struct run *run;         /* that the pass is in, or NULL */
    struct run *read_run;    /* of what was read last: another, where that is a suspect */
    struct checkpoint *held; /* that is being read, or NULL */
    /* The newest when it came to that run; what is saved meanwhile waits for the next pass, or a
     * run that saves faster than this reads would keep it from the others. */
    uint64_t last_attempt, last_step;
    uint64_t first_attempt, first_step; /* the newest, that was read before them; 0: none */
    int64_t yielded_ms, saved_ms;
    bool must_save, is_paused, is_working; /* a job is under way */
    bool is_aside;                         /* it is read out of turn: the cursor stays */
    bool has_no_newest;                    /* in this pass: it could not be read out of turn */
    struct scrub_note note;                /* the cursor that is being kept */
    uint8_t *buffer;                       /* a block */
    struct scrub_state state;
    /* The checkpoint and the shard that are open. The worker's while it has the job. */
    struct manifest_summary summary;
    struct scrub_cursor at;
    struct manifest *manifest;
    struct places places;
    struct storage_object *object;
    struct shard_geometry geometry;
    uint8_t *table;
    uint64_t bytes; /* that the job read */
    bool is_read;   /* the whole checkpoint */
    struct fault fault;
};

/* Of scrub_read.c, on a worker: scrub->job. */
void scrub_work_read(struct job *job);
void scrub_work_save(struct job *job);
/* While no job is under way. */
void scrub_close_checkpoint(struct scrub *scrub);

#endif
