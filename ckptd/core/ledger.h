/* ledger.h - what the disk holds, what was promised of it, and when it will be full. Pure: numbers
 * in, decisions out; the service thread asks.
 *
 * A save is promised all its bytes and files before its first byte, or refused with the numbers:
 * what is used and what is promised to others, with it, may be at most the usable part of the file
 * system. A promise ends file by file, as the disk gives what was promised (fallocate, so the file
 * system counts it as used from then on), and with the save. So saves that begin at the same time
 * cannot all count on the same free bytes.
 *
 * LEDGER_INODES_KEPT files are never promised: a removal needs one (its tombstone), and must go on
 * when nothing else fits.
 *
 * How fast the disk fills is measured over the last LEDGER_CHANGES_MAX commits and removals:
 *
 *     growth = (bytes committed, copied or taken back - bytes removed) behind the oldest of them
 *              / the time from the oldest until now
 *     hours to full = bytes left for saves (ledger_room) / growth
 *
 * What went into the trash counts as removed, and takes room until it is emptied. The rate is not
 * known with less than two changes, or within LEDGER_SPAN_MS_MIN of the oldest: nothing is guessed
 * then, nor across a restart. */
#ifndef HOLDFAST_CKPTD_CORE_LEDGER_H
#define HOLDFAST_CKPTD_CORE_LEDGER_H

#include "storage/storage.h"

#define LEDGER_CHANGES_MAX 32u
#define LEDGER_INODES_KEPT 64u
#define LEDGER_SPAN_MS_MIN 60000 /* over less, the rate of a few saves says nothing about hours */
#define LEDGER_WARN_HOURS 24.0   /* a commit warns once when the disk will be full sooner, */
#define LEDGER_WARN_MS 3600000   /* and again when it was better meanwhile, not before this */

struct ledger_promise {
    uint64_t bytes, inodes;
};

struct ledger {
    double usable_fraction;
    struct ledger_promise promised; /* to all saves in work, and not taken from the disk yet */
    struct ledger_change {
        int64_t ms;
        int64_t bytes;             /* negative: removed */
    } changes[LEDGER_CHANGES_MAX]; /* a ring */
    uint32_t num_changes;          /* since the start */
    bool is_short;                 /* that was said */
    int64_t warned_ms;             /* when; 0: never */
};

/* The sum of the two is promised to all in work when it fits; *out is what this one may take. */
int ledger_promise(struct ledger *ledger, struct ledger_promise *out,
                   const struct storage_space *space, uint64_t bytes, uint64_t inodes);
/* What must become free before such a promise fits; 0, 0: nothing. */
struct ledger_promise ledger_deficit(const struct ledger *ledger, const struct storage_space *space,
                                     uint64_t bytes, uint64_t inodes);
/* So much of a promise was taken from the disk. */
void ledger_take(struct ledger *ledger, struct ledger_promise *promise, uint64_t bytes,
                 uint64_t inodes);
/* The save is over: what is left of its promise is everybody's again. */
void ledger_end(struct ledger *ledger, struct ledger_promise *promise);
/* At `ms` of a monotonic clock so many bytes were committed, or removed (negative). */
void ledger_note(struct ledger *ledger, int64_t ms, int64_t bytes);

/* Bytes that checkpoints may fill the file system up to. */
uint64_t ledger_usable(const struct ledger *ledger, const struct storage_space *space);
uint64_t ledger_used(const struct storage_space *space);
/* Of them neither used nor promised. */
uint64_t ledger_room(const struct ledger *ledger, const struct storage_space *space);
/* Is the rate known? */
bool ledger_knows_growth(const struct ledger *ledger, int64_t now_ms);
/* Bytes per hour, less what was removed; 0 while it is not known. */
double ledger_growth(const struct ledger *ledger, int64_t now_ms);
/* Hours until the room is used up; negative: it is not getting less, or nobody knows. */
double ledger_hours_to_full(const struct ledger *ledger, const struct storage_space *space,
                            int64_t now_ms);
/* The same in words, as "it is full in 5.2 hours at the rate of the last saves". */
#define LEDGER_TEXT_BYTES 80u
void ledger_say_hours(char out[LEDGER_TEXT_BYTES], const struct ledger *ledger,
                      const struct storage_space *space, int64_t now_ms);
/* After a commit of `bytes`: the room got short, and that was not said yet. */
bool ledger_must_warn(struct ledger *ledger, const struct storage_space *space, int64_t now_ms,
                      uint64_t bytes);

#endif
