/* ledger.h - accounts for disk space: used, promised, and the time until it is full. Pure: numbers
 * in, decisions out; the service thread asks.
 *
 * A save is promised all its bytes and files before its first byte, or refused with the numbers.
 * Used and promised bytes together may be at most the usable part of the file system. A promise
 * shrinks file by file, as fallocate() takes the bytes from the disk, and ends with the save. So
 * saves that begin at the same time cannot count on the same free bytes.
 *
 * LEDGER_INODES_KEPT files are never promised: a removal needs one (its tombstone), and must work
 * on a full disk.
 *
 * How fast the disk fills is measured over the last LEDGER_CHANGES_MAX commits and removals:
 *
 *     growth = (bytes committed, copied or taken back - bytes removed) after the oldest of them
 *              / the time from the oldest until now
 *     hours to full = bytes left for saves (ledger_room) / growth
 *
 * Bytes moved to the trash count as removed, but occupy the disk until it is emptied. The rate is
 * unknown with less than two changes, or within LEDGER_SPAN_MS_MIN of the oldest, or across a
 * restart: ckptd does not guess. */
#ifndef HOLDFAST_CKPTD_CORE_LEDGER_H
#define HOLDFAST_CKPTD_CORE_LEDGER_H

#include "storage/storage.h"

#define LEDGER_CHANGES_MAX 32u
#define LEDGER_INODES_KEPT 64u
/* Over a shorter time the rate of a few saves is meaningless for hours. */
#define LEDGER_SPAN_MS_MIN 60000
#define LEDGER_WARN_HOURS 24.0 /* a commit warns once if the disk is full sooner, */
#define LEDGER_WARN_MS 3600000 /* and again, if it was better meanwhile, after this time */

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
    bool is_short;                 /* a warning was logged */
    int64_t warned_ms;             /* when it was logged; 0: never */
};

/* Promises the bytes and files to a save if they fit; *out is its promise. */
int ledger_promise(struct ledger *ledger, struct ledger_promise *out,
                   const struct storage_space *space, uint64_t bytes, uint64_t inodes);
/* How much must become free before such a promise fits; 0, 0: nothing. */
struct ledger_promise ledger_deficit(const struct ledger *ledger, const struct storage_space *space,
                                     uint64_t bytes, uint64_t inodes);
/* That much of a promise was taken from the disk. */
void ledger_take(struct ledger *ledger, struct ledger_promise *promise, uint64_t bytes,
                 uint64_t inodes);
/* The save is over: frees the rest of its promise. */
void ledger_end(struct ledger *ledger, struct ledger_promise *promise);
/* At `ms` of a monotonic clock so many bytes were committed, or removed (negative). */
void ledger_note(struct ledger *ledger, int64_t ms, int64_t bytes);

/* Bytes up to which checkpoints may fill the file system. */
uint64_t ledger_usable(const struct ledger *ledger, const struct storage_space *space);
uint64_t ledger_used(const struct storage_space *space);
/* Usable bytes that are neither used nor promised. */
uint64_t ledger_room(const struct ledger *ledger, const struct storage_space *space);
/* Is the rate known? */
bool ledger_knows_growth(const struct ledger *ledger, int64_t now_ms);
/* Bytes per hour, less the removed ones; 0: unknown. */
double ledger_growth(const struct ledger *ledger, int64_t now_ms);
/* Hours until the room is used up; negative: it does not shrink, or unknown. */
double ledger_hours_to_full(const struct ledger *ledger, const struct storage_space *space,
                            int64_t now_ms);
/* The same as text: "it is full in 5.2 hours at the rate of the last saves". */
#define LEDGER_TEXT_BYTES 80u
void ledger_say_hours(char out[LEDGER_TEXT_BYTES], const struct ledger *ledger,
                      const struct storage_space *space, int64_t now_ms);
/* After a commit of `bytes`: the room is short, and no warning was logged yet. */
bool ledger_must_warn(struct ledger *ledger, const struct storage_space *space, int64_t now_ms,
                      uint64_t bytes);

#endif
