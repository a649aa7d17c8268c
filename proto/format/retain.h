/* retain.h - which checkpoints of a run may go. A pure decision, the same in ckptd and in ckpt-cli.
 *
 * Rules say what is kept, and are OR-ed: what any of them keeps, stays. Of each checkpoint the
 * caller knows that it is whole (all of it was read since it was written, or uploaded, and the
 * server took its checksum), that it is damaged (whatever found it), or neither. Whatever the rules
 * say:
 *
 * retain.R1  A checkpoint that is known whole is not removed while fewer than RETAIN_GOOD_MIN newer
 *     ones are known whole: if what is newer turns out to be damaged, these are left.
 * retain.R2  One that is not known to be damaged is not removed while fewer than RETAIN_GOOD_MIN
 *     newer ones are not, either. A run of which nothing was read back is pruned by retain.R2
 *     alone.
 * retain.R3  One that is known to be damaged is not removed: it is evidence. It counts nowhere: not
 *     for retain.R1 and retain.R2, for no rule, and not among those of which more than half may not
 *     go.
 * retain.R4  What is pinned or leased is not removed.
 *
 * Ages are measured from the newest checkpoint of the run that is not damaged, never from a
 * clock, and from one checkpoint to the next: where the clock jumped in between, or the run paused
 * (a gap longer than `keep_within` and than RETAIN_JUMP usual ones, or one backwards), no time
 * passed. So a jump only keeps more.
 *
 * A checkpoint that is kept keeps others from being needed, so it must be there: retain_plan_seen()
 * has each one looked at before any other may go, and plans again without those that are not.
 *
 * "Newest" is the highest attempt, then the highest step: after a roll-back the highest step is an
 * abandoned branch. Steps that `keep_every` keeps are those it divides; where several attempts have
 * such a step, the newest attempt's stays. */
#ifndef HOLDFAST_PROTO_FORMAT_RETAIN_H
#define HOLDFAST_PROTO_FORMAT_RETAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETAIN_GOOD_MIN 2u /* retain.R1, retain.R2 */
#define RETAIN_JUMP 100    /* times the median gap between checkpoints */

/* Zero means: no such rule. At least one must be given. */
struct retain_rules {
    uint32_t keep_last;   /* the newest so many */
    uint64_t keep_every;  /* steps that are multiples of it */
    uint64_t keep_within; /* seconds before the newest checkpoint of the run */
    uint32_t keep_best;   /* so many with the best metric; ties: the newer one */
    bool best_is_highest; /* of the metric; a loss is best when lowest */
    bool may_remove_most; /* more than half of a run, or all that may go, in one plan */
};

enum retain_reason {
    RETAIN_LAST = 1 << 0,
    RETAIN_EVERY = 1 << 1,
    RETAIN_WITHIN = 1 << 2,
    RETAIN_BEST = 1 << 3,
    RETAIN_PINNED = 1 << 4,
    RETAIN_LEASED = 1 << 5,
    RETAIN_UNVERIFIABLE = 1 << 6,
    RETAIN_GOOD = 1 << 7,     /* one of the last whole ones */
    RETAIN_PROVEN = 1 << 8,   /* one of the last that were read back */
    RETAIN_VANISHED = 1 << 9, /* it is not there: nothing to keep, nothing to remove */
    RETAIN_DRAINS = 1 << 10,  /* it is to lie in another tier, which is not known to have it now */
};
#define RETAIN_REASONS 11u

/* One checkpoint of a run. */
struct retain_item {
    uint64_t step, attempt;
    int64_t time; /* seconds since the epoch, from the manifest */
    bool has_metric, is_pinned, is_leased;
    bool is_damaged;  /* known to be; whatever is_proven says */
    bool is_proven;   /* known whole */
    bool is_vanished; /* it is not in the store any more: no rule counts it */
    double metric;
    unsigned reasons; /* result: enum retain_reason, or-ed; 0: it goes */
};

/* ERR_INVALID: there is no rule. */
int retain_check(const struct retain_rules *rules);
/* Fills `reasons` of all checkpoints of one run, in any order; *out_removed is how many go.
 * ERR_INVALID: no rule was given; keep_best without a metric anywhere. ERR_DENIED: more than half
 * of those that count would go and may_remove_most is false; the reasons are filled all the same.
 */
int retain_plan(struct retain_item *items, uint32_t count, const struct retain_rules *rules,
                uint32_t *out_removed);
/* Likewise, for a plan that is carried out: before anything goes, `look` is asked about every item
 * that is not known to be damaged. It sets is_vanished or is_damaged where that is so; what it
 * returns other than 0 ends the plan. */
int retain_plan_seen(struct retain_item *items, uint32_t count, const struct retain_rules *rules,
                     uint32_t *out_removed, int (*look)(void *user, uint32_t index), void *user);
/* Is it among those of which more than half may not go? */
static inline bool retain_counts(unsigned reasons)
{
    return (reasons & (RETAIN_UNVERIFIABLE | RETAIN_VANISHED)) == 0;
}
/* So many of those that count are more than may go without may_remove_most. */
static inline bool retain_is_most(size_t removed, size_t count)
{
    return removed > count / 2;
}
/* The order "newest first" by attempt and step alone, for qsort(). */
int retain_newest_first(const struct retain_item *a, const struct retain_item *b);
/* Step and attempt of a checkpoint's directory name, which its pin has too; false: not a name that
 * we write. */
bool retain_parse(const char *name, uint64_t *out_step, uint64_t *out_attempt);
bool retain_is_checkpoint(const char *name); /* such a name? */
/* Seconds since the epoch of a manifest's time; 0 when it cannot be read. */
int64_t retain_time(const char *text);
/* The number `metrics.<name>` of a manifest's state; without it the item has no rank among the
 * best. ERR_MEMORY. */
int retain_metric(struct retain_item *item, const char *state_json, const char *name);

/* ---- what the scrub has read back ---- */

/* Where its pass over a run stands. Durable as the numbered object (storage.h) of "<run>/scrub": so
 * who looks without a ckptd knows what that would know. */
struct scrub_cursor {
    uint64_t attempt, step; /* read next, or read on; older ones are done */
    uint64_t shard, block;  /* of it */
    int64_t begun, ended;   /* this pass, the last one; seconds since the epoch, 0: never */
    /* The newest that was found whole: what is older and not damaged was, too, 0: none; */
    uint64_t proven_attempt, proven_step;
    /* but for some between these, the oldest and the newest: the disk did not answer, or they came
     * when the pass was beyond them. 0: none. */
    uint64_t unread_attempt, unread_step, last_unread_attempt, last_unread_step;
    uint64_t missed; /* 1: some of them this pass will not read */
    uint64_t number; /* of the object that holds it; 0: none */
};
#define SCRUB_FOLDER "scrub"
#define SCRUB_CURSOR_BYTES_MAX 320u /* of the object, with a NUL */
/* What the object holds: all but the number. */
void scrub_cursor_write(char out[SCRUB_CURSOR_BYTES_MAX], const struct scrub_cursor *cursor);
/* Of the object of that number. Without one, and of a text that we do not write, which is false: a
 * pass that begins, and nothing was read back. */
bool scrub_cursor_read(struct scrub_cursor *out, uint64_t number, const char *text);
/* It was not read, whatever newer one was. */
void scrub_cursor_except(struct scrub_cursor *cursor, uint64_t step, uint64_t attempt);
/* Likewise: a tool brings it, and this pass may be beyond it. */
void scrub_cursor_brought(struct scrub_cursor *cursor, uint64_t step, uint64_t attempt);
/* Was it read back, if it is not damaged? */
bool scrub_has_proven(const struct scrub_cursor *cursor, uint64_t step, uint64_t attempt);

/* "last, pinned"; "remove" for 0. */
const char *retain_text(char *out, size_t size, unsigned reasons);

#endif
