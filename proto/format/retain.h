/* retain.h - selects the checkpoints of a run that may be removed. A pure decision, the same in
 * ckptd and in ckpt-cli.
 *
 * Rules keep checkpoints and are OR-ed: a checkpoint stays if any rule keeps it. The caller knows
 * of each checkpoint that it is intact, that it is damaged (by any check), or neither. Intact
 * means: all of it was read back since it was written, or it was uploaded and the server accepted
 * its checksum. These hold for all rules:
 *
 * retain.R1  A checkpoint known to be intact is not removed while fewer than RETAIN_GOOD_MIN newer
 *     ones are known to be: if newer ones turn out to be damaged, these remain.
 * retain.R2  A checkpoint not known to be damaged is not removed while fewer than RETAIN_GOOD_MIN
 *     newer ones are not, either. A run without verified checkpoints is pruned by retain.R2 alone.
 * retain.R3  A checkpoint known to be damaged is not removed: it is evidence. It does not count
 *     for retain.R1 and retain.R2, for any rule, or for the limit of more than half of a run.
 * retain.R4  A pinned or leased checkpoint is not removed.
 *
 * Ages are measured from the newest undamaged checkpoint of the run, never from a clock, and from
 * one checkpoint to the next. A gap that is negative, or longer than both `keep_within` and
 * RETAIN_JUMP usual gaps, counts as no time: the clock jumped, or the run paused. So a jump only
 * keeps more.
 *
 * A kept checkpoint makes others removable, so it must exist: retain_plan_seen() has each one
 * checked before any other is removed, and plans again without the missing ones.
 *
 * "Newest" is the highest attempt, then the highest step: after a roll-back the highest step is an
 * abandoned branch. `keep_every` keeps the steps that it divides; if several attempts have such a
 * step, that of the newest attempt stays. */
#ifndef HOLDFAST_PROTO_FORMAT_RETAIN_H
#define HOLDFAST_PROTO_FORMAT_RETAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETAIN_GOOD_MIN 2u /* retain.R1, retain.R2 */
#define RETAIN_JUMP 100    /* times the median gap between checkpoints */

/* Zero: no such rule. At least one must be given. */
struct retain_rules {
    uint32_t keep_last;   /* the newest so many */
    uint64_t keep_every;  /* steps that are multiples of it */
    uint64_t keep_within; /* seconds before the newest checkpoint of the run */
    uint32_t keep_best;   /* so many with the best metric; of equal ones the newer */
    bool best_is_highest; /* of the metric; for a loss the lowest is best */
    bool may_remove_most; /* more than half of a run, or all removable ones, in one plan */
};

enum retain_reason {
    RETAIN_LAST = 1 << 0,
    RETAIN_EVERY = 1 << 1,
    RETAIN_WITHIN = 1 << 2,
    RETAIN_BEST = 1 << 3,
    RETAIN_PINNED = 1 << 4,
    RETAIN_LEASED = 1 << 5,
    RETAIN_UNVERIFIABLE = 1 << 6,
    RETAIN_GOOD = 1 << 7,     /* one of the newest undamaged ones */
    RETAIN_PROVEN = 1 << 8,   /* one of the newest that were read back */
    RETAIN_VANISHED = 1 << 9, /* it is missing: nothing to keep or remove */
    RETAIN_DRAINS = 1 << 10,  /* it must go to another tier, which is not known to have it */
};
#define RETAIN_REASONS 11u

/* One checkpoint of a run. */
struct retain_item {
    uint64_t step, attempt;
    int64_t time; /* seconds since the epoch, from the manifest */
    bool has_metric, is_pinned, is_leased;
    bool is_damaged;  /* known to be damaged, regardless of is_proven */
    bool is_proven;   /* known to be intact */
    bool is_vanished; /* it is no longer in the store: no rule counts it */
    double metric;
    unsigned reasons; /* result: enum retain_reason, or-ed; 0: it is removed */
};

/* ERR_INVALID: there is no rule. */
int retain_check(const struct retain_rules *rules);
/* Fills `reasons` of all checkpoints of one run, in any order; *out_removed is the number to
 * remove. ERR_INVALID: no rule was given; keep_best without a metric anywhere. ERR_DENIED: more
 * than half of the counted ones are to be removed and may_remove_most is false; the reasons are
 * filled all the same. */
int retain_plan(struct retain_item *items, uint32_t count, const struct retain_rules *rules,
                uint32_t *out_removed);
/* The same, for a plan that is carried out. Before any removal it calls `check` for every item not
 * known to be damaged. `check` sets is_vanished or is_damaged if that is so; a nonzero result of it
 * ends the plan. */
int retain_plan_seen(struct retain_item *items, uint32_t count, const struct retain_rules *rules,
                     uint32_t *out_removed, int (*check)(void *user, uint32_t index), void *user);
/* Does it count for the limit of more than half of a run? */
static inline bool retain_counts(unsigned reasons)
{
    return (reasons & (RETAIN_UNVERIFIABLE | RETAIN_VANISHED)) == 0;
}
/* Does removing so many of `count` need may_remove_most? */
static inline bool retain_is_most(size_t removed, size_t count)
{
    return removed > count / 2;
}
/* The order "newest first" by attempt and step alone, for qsort(). */
int retain_newest_first(const struct retain_item *a, const struct retain_item *b);
/* Parses step and attempt from the name of a checkpoint's directory, or of its pin; false: not a
 * name that ckptd writes. */
bool retain_parse(const char *name, uint64_t *out_step, uint64_t *out_attempt);
bool retain_is_checkpoint(const char *name); /* such a name? */
/* Seconds since the epoch of a manifest's time; 0 when it cannot be read. */
int64_t retain_time(const char *text);
/* The number `metrics.<name>` of a manifest's state; without it the item has no rank among the
 * best. ERR_MEMORY. */
int retain_metric(struct retain_item *item, const char *state_json, const char *name);

/* ---- the scrub's progress ---- */

/* The progress of the scrub's pass over a run. Durable as the numbered object (storage.h) of
 * "<run>/scrub", so that readers without a ckptd know it, too. */
struct scrub_cursor {
    uint64_t attempt, step; /* the checkpoint to read or continue next; older ones are done */
    uint64_t shard, block;  /* the position in it */
    int64_t begun, ended;   /* this pass, the last one; seconds since the epoch, 0: never */
    /* The newest that was found intact: older undamaged ones were, too, 0: none; */
    uint64_t proven_attempt, proven_step;
    /* except some between these, the oldest and the newest: the disk did not answer, or they came
     * after the pass had passed them. 0: none. */
    uint64_t unread_attempt, unread_step, last_unread_attempt, last_unread_step;
    uint64_t missed; /* 1: this pass will not read some of them */
    uint64_t number; /* of the object that holds it; 0: none */
};
#define SCRUB_FOLDER "scrub"
#define SCRUB_CURSOR_BYTES_MAX 320u /* of the object, with the NUL */
/* The contents of the object: all fields except the number. */
void scrub_cursor_write(char out[SCRUB_CURSOR_BYTES_MAX], const struct scrub_cursor *cursor);
/* Reads the object of that number. Without one, or from an invalid text (false): a pass that
 * begins, with nothing read back. */
bool scrub_cursor_read(struct scrub_cursor *out, uint64_t number, const char *text);
/* Records that this checkpoint was not read, even if a newer one was. */
void scrub_cursor_except(struct scrub_cursor *cursor, uint64_t step, uint64_t attempt);
/* The same for a checkpoint that a tool adds, as this pass may be beyond it. */
void scrub_cursor_brought(struct scrub_cursor *cursor, uint64_t step, uint64_t attempt);
/* Was it read back, if it is not damaged? */
bool scrub_has_proven(const struct scrub_cursor *cursor, uint64_t step, uint64_t attempt);

/* "last, pinned"; "remove" for 0. */
const char *retain_text(char *out, size_t size, unsigned reasons);

#endif
