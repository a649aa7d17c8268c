/* refresh_private.h - scans of a tier, for refresh.c, which begins them and keeps the waiters,
 * refresh_read.c, which reads the tier, and refresh_take.c, which updates the catalog. */
#ifndef HOLDFAST_CKPTD_REFRESH_REFRESH_PRIVATE_H
#define HOLDFAST_CKPTD_REFRESH_REFRESH_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/machines/sets.h"
#include "ckptd/refresh/refresh.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"

/* A step that was not known, or a part. */
struct scan_news {
    struct manifest_summary summary;
    struct places places; /* owned */
    struct fault fault;   /* of the local tier: why it is not listed; code 0: it is whole */
};

struct scan_step {
    uint64_t step, attempt;
    bool is_known;     /* when the scan began */
    bool is_part;      /* and there as a part, which may have become whole, */
    bool was_volatile; /* or in memory */
    bool is_there, is_volatile;
    bool is_pinned;         /* by any user */
    struct pin pin;         /* owned */
    struct scan_news *news; /* owned; NULL: not read */
};

struct scan_run {
    char name[RUN_NAME_MAX + 1];
    bool is_known;  /* it is in the catalog */
    bool has_names; /* of the steps */
    bool is_gone;   /* it has no directory; of the local tier */
    /* Of the local directory at the last scan, then at this one; 0: read it. */
    uint64_t stamp;
    uint64_t attempt;        /* the highest attempt number there */
    uint64_t held;           /* the highest number that is marked as held (sets.h) */
    uint64_t seen;           /* scan_sets_mark() at the last scan */
    struct sets sets;        /* its nodes, if that mark has changed */
    struct scan_step *steps; /* newest first; before their names are read: the known ones */
    uint32_t num_steps, room_steps;
};

/* A step that must be read beyond its name. */
struct scan_due {
    struct scan_run *run;
    struct scan_step *step;
};

struct scan {
    struct service *service;
    enum tier_index tier;
    struct scan_run *runs;
    uint32_t num_runs, room_runs;
    struct scan_due *due;
    uint32_t num_due, room_due;
    uint64_t stamp;   /* as of a run: for the root */
    uint64_t changes; /* as of the beginning of the scan */
    bool tells_why;   /* a peer was silent before */
    struct fault fault;
    struct job job;
};

#define REFRESH_SKIPPED_MAX 64u

/* All scans of one tier. */
struct refresh {
    struct service *service;
    enum tier_index tier;
    struct scan *now;                        /* the one in progress, or NULL */
    struct refresh_waiter *present, *coming; /* waiters for this scan, and for the next */
    uint64_t changes;                        /* number of removals by this ckptd */
    int64_t scanned_ms;                      /* end of the last successful one; 0: none */
    /* For the local tier: stamp of the root; counts since the start; checkpoints that the last scan
     * did not list, and why. */
    uint64_t stamp, added, vanished;
    char *skipped[REFRESH_SKIPPED_MAX];
    uint32_t num_skipped;
};

/* In refresh_read.c. `is_known`: it is in the catalog. */
int scan_add_run(struct scan_run **out, struct scan *scan, const char *name, bool is_known);
int scan_add_step(struct scan_run *run, const struct scan_step *step);
void scan_free(struct scan *scan);
/* Changes when there are new nodes on which an attempt depends. */
uint64_t scan_sets_mark(const struct scan_run *run);
void scan_work(struct job *job); /* on the tier's threads */
/* In refresh_take.c: applies the results to the catalog. */
void scan_apply(struct scan *scan);

#endif
