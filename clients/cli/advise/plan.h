/* plan.h - the decisions of advise. Pure: measured numbers in, settings out.
 *
 *   failures   the mean time between failures, from the run's journal
 *   retention  how many checkpoints to keep, from the room on the disk
 *   copies     where a second copy should be, from the time that a copy takes
 *
 * proto/base/daly.h decides on the interval. All times are in seconds. */
#ifndef HOLDFAST_CLIENTS_CLI_ADVISE_PLAN_H
#define HOLDFAST_CLIENTS_CLI_ADVISE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* ---- failures ---- */

enum plan_event {
    PLAN_START,
    PLAN_SAVE,
    PLAN_COPY, /* of a save to another tier */
    PLAN_LOST,
    PLAN_STOP, /* an operator asks the ranks to end */
    PLAN_END,  /* the last rank has left by itself */
    PLAN_OTHER
};

/* Ranks that leave so soon after a save, or its copy, have lost nothing, and were not lost. */
#define PLAN_END_SECONDS 5

/* Zero before the first event. A start fails if a rank is lost before anyone asks it to stop. It
 * also counts as failed if it ended without a stop, not with a save, and another one followed: a
 * node that goes down with its ckptd leaves no event, and a rank that loses a peer leaves by
 * itself. The time of a start ends with its last event, so pauses between starts do not count. */
struct plan_failures {
    uint64_t starts, lost, unexplained;
    double trained;       /* of all starts */
    int64_t begin, last;  /* of the present start; begin 0: none */
    int64_t saved, ended; /* likewise: its last save or copy, its end; 0: none */
    bool is_lost, is_stopped;
};
/* Takes events in their order; `at` is seconds since the epoch. An early part of the journal may be
 * missing. */
void plan_failures_note(struct plan_failures *failures, enum plan_event event, int64_t at);
/* After the last event. */
void plan_failures_end(struct plan_failures *failures);

/* A run without a failure is taken to have one in its own time, and in no less than this: the
 * default of checkpoint.mtbf. */
#define PLAN_FAILURE_MIN 86400.0
/* The mean time between failures; 0: unknown. *out_is_assumed: there was no failure. */
double plan_failures_mean(const struct plan_failures *failures, bool *out_is_assumed);

/* ---- retention ---- */

#define PLAN_KEEP_MIN 2u /* ckptd never keeps fewer */
/* What ckptd may keep beside the rule: the last two intact, and the one that the scrub reads. */
#define PLAN_KEPT_BESIDE 5u
/* Reach back this far: the default of scrub.period_s, after which all were read back once. */
#define PLAN_REACH 604800.0

struct plan_disk {
    double bytes;       /* of a checkpoint; above 0 */
    double room;        /* for saves; negative: no limit */
    double held, trash; /* by this run's checkpoints; by the trash, which saves may take */
    double interval;    /* between two saves, as advised */
};
struct plan_retention {
    bool is_limited, has_space; /* is there space for PLAN_KEEP_MIN, and one that is being saved? */
    uint64_t fit;               /* checkpoints, with those that are there */
    double missing;             /* bytes, unless has_space */
    uint64_t keep_last;
    double reach; /* from the newest to the oldest of keep_last */
    double trash; /* for retention.trash_s: so long removed ones fit as well; 0: they do not */
    double full;  /* until the room is used up, if nothing is removed; negative: never */
};
struct plan_retention plan_retention(const struct plan_disk *disk);
/* `full` with another interval; negative: never, or unknown. */
double plan_full(const struct plan_disk *disk, double interval);

/* ---- copies ---- */

enum plan_place { PLAN_LOCAL, PLAN_PEER, PLAN_FAR };

struct plan_tier {
    bool is_there;
    double copy; /* the time of a copy; 0: none was measured */
};
struct plan_copying {
    struct plan_tier peer, far;
    double interval;  /* between two saves */
    double failures;  /* between two failures */
    double trained;   /* so far: without a copy all of it is lost with the disk */
    bool has_nodes;   /* the job has several nodes */
    int64_t replicas; /* nodes.replicas; 0: unknown */
};
struct plan_copies {
    enum plan_place place;
    bool is_there;  /* false: its tier must be set up first */
    bool is_slow;   /* no tier completes a copy between two failures */
    double lost[3]; /* by enum plan_place: training lost with the node's disk, at most; negative:
                       there is no such tier */
    bool is_every;  /* can the far tier take each save, or only the newest? */
    int64_t replicas;
};
struct plan_copies plan_copies(const struct plan_copying *copying);

#endif
