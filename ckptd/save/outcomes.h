/* outcomes.h - the results of saves since ckptd started; see outcomes.c. */
#ifndef HOLDFAST_CKPTD_SAVE_OUTCOMES_H
#define HOLDFAST_CKPTD_SAVE_OUTCOMES_H

#include "ckptd/core/checkpoint.h"

#include <stdint.h>

struct service;

struct failure { /* of a finished save; the newest FAILURES_MAX are kept */
    char run[RUN_NAME_MAX + 1];
    uint64_t step, attempt;
    char reason[512];
};
#define FAILURES_MAX 256u

struct outcomes {
    struct failure failures[FAILURES_MAX]; /* a ring */
    uint32_t num_failures;
    uint64_t commits, failed, refused, unchanged, replicas_differ, bytes_written;
    struct { /* of the newest commit */
        char run[RUN_NAME_MAX + 1];
        uint64_t step, attempt, bytes;
        double seconds, staging_seconds, sync_seconds, names_seconds, manifest_seconds;
    } newest;
    /* From the begin, and from the last durable shard, to the commit. */
    struct histogram save, commit;
    char unchanged_run[RUN_NAME_MAX + 1]; /* the newest save that equals its predecessor */
    struct repeat unchanged_save, unchanged_before;
};

int outcomes_open(struct service *service);
void outcomes_close(struct service *service);
/* A save of the run failed: `code` is the error; 0 or ERR_ABORTED: its ranks gave it up, which says
 * nothing about the store. */
void outcomes_failed(struct run *run, uint64_t step, uint64_t attempt, int code,
                     const char *reason);
/* A save yielded to a later one: no failure. */
void outcomes_made_way(struct run *run, uint64_t step, uint64_t attempt, const char *reason);
/* A save that does not fit ends before it began; this thread's last error is its reason for
 * WaitSave. Each rank is refused; the save is noted once. */
void outcomes_refused(struct run *run, uint64_t step, uint64_t attempt, int error);
/* A rank reports why its save failed, which ckptd may have counted already. The first rank of a
 * save counts. */
void outcomes_failed_at_client(struct run *run, uint64_t step, uint64_t attempt,
                               const char *reason);
/* A save of that attempt was committed. */
void outcomes_committed(struct run *run, uint64_t attempt);
/* The failure of that save, or NULL: not known. */
const struct failure *outcomes_find(const struct service *service, const char *run, uint64_t step,
                                    uint64_t attempt);

#endif
