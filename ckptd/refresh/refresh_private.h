/* refresh_private.h - looks at a tier, for refresh.c, which begins them and knows who waits,
 * refresh_read.c, which reads the tier, and refresh_take.c, which tells the catalog. */
#ifndef HOLDFAST_CKPTD_REFRESH_REFRESH_PRIVATE_H
#define HOLDFAST_CKPTD_REFRESH_REFRESH_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/machines/sets.h"
#include "ckptd/refresh/refresh.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"

/* Of a step that was not known, or a part. */
struct scan_news {
    struct manifest_summary summary;
    struct places places; /* owned */
    struct fault fault;   /* of the local tier: why it is not listed; code 0: it is whole */
};

struct scan_step {
    uint64_t step, attempt;
    bool is_known;     /* when the look began, */
    bool is_part;      /* and a part of it there: it may have become whole, */
    bool was_volatile; /* or in memory */
    bool is_there, is_volatile;
    bool is_pinned;         /* whoever made the pin */
    struct pin pin;         /* owned */
    struct scan_news *news; /* owned; NULL: it was not read */
};

struct scan_run {
    char name[RUN_NAME_MAX + 1];
    bool is_known;           /* the catalog has it */
    bool has_names;          /* they were read */
    uint64_t stamp;          /* of the local directory at the last look, then at this; 0: look */
    uint64_t attempt;        /* the highest number there */
    uint64_t held;           /* the highest that is said to be held (sets.h) */
    uint64_t seen;           /* as look_sets_mark() said at the last look */
    struct sets sets;        /* its nodes, where there is more to see than that */
    struct scan_step *steps; /* newest first; before their names were read those that are known */
    uint32_t num_steps, room_steps;
};

/* A step of which more is to be read than its name. */
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
    uint64_t stamp;   /* as of a run: of the root */
    uint64_t changes; /* when it began */
    bool tells_why;   /* a peer was silent before */
    struct fault fault;
    struct job job;
};

#define REFRESH_SKIPPED_MAX 64u

/* All looks at one tier. */
struct refresh {
    struct service *service;
    enum tier_index tier;
    struct scan *now;                        /* the one under way, or NULL */
    struct refresh_waiter *present, *coming; /* who waits for it, and for the next */
    uint64_t changes;                        /* removals by this ckptd */
    int64_t scanned_ms; /* when the last one that went well ended; 0: none has */
    /* Of the local tier: of the root; since the start; of the last look what is not listed, and
     * why. */
    uint64_t stamp, added, vanished;
    char *skipped[REFRESH_SKIPPED_MAX];
    uint32_t num_skipped;
};

/* Of refresh_read.c. `is_known`: the catalog has it. */
int scan_add_run(struct scan_run **out, struct scan *scan, const char *name, bool is_known);
int scan_add_step(struct scan_run *run, const struct scan_step *step);
void scan_free(struct scan *scan);
/* Another one than before: there are nodes to be read that an attempt counts on. */
uint64_t scan_sets_mark(const struct scan_run *run);
void scan_work(struct job *job); /* on the tier's threads */
/* Of refresh_take.c: what it found, into the catalog. */
void scan_apply(struct scan *scan);

#endif
