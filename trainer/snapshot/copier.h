/* copier.h - a thread that copies the training state while training goes on.
 *
 * A copy is made piece by piece, in the order of the checkpoint's image; a slice of the state may
 * consist of several pieces. The step's program posts how far the copy may go, slice by slice;
 * whoever is about to change a slice waits until its last piece is copied:
 *
 *     copier_start(copier);                 -- returns at once; the state may still be read by all
 *     for (i = 0; i < num_slices; i++)
 *         copier_post(copier, i);
 *     ... forward, backward ...
 *     for (i = 0; i < num_slices; i++) {
 *         copier_wait_slice(copier, i, lane);
 *         ... change slice i on the lane... -- while later pieces are copied
 *     }
 *     rc = copier_wait(copier, &times);     -- all posted, copied and ended, or failed
 *
 * On a device `copy` only posts the copies of a piece, on a lane of its own, and the lane that
 * changes a slice is told by `hold` to wait for those of that slice (device_copy.h).
 *
 * Threads: all calls are made by one thread, the one that opened. What `copy` and `end` use belongs
 * to the copier's thread from copier_start until copier_wait has returned. */
#ifndef HOLDFAST_TRAINER_COPIER_H
#define HOLDFAST_TRAINER_COPIER_H

#include <stdbool.h>
#include <stdint.h>

#define COPIER_THREAD_NAME "copier" /* what ps and /proc call it */

struct copier;
struct lane;

/* Called on the copier's thread. */
struct copier_options {
    uint32_t num_pieces, num_slices;
    /* Per slice: all of it is copied when so many pieces are. Borrowed. */
    const uint32_t *copied_at;
    /* Copies piece `piece`. The first failure ends the copy. */
    int (*copy)(void *user, uint32_t piece);
    /* After the last piece (rc 0) or the first failure (its code); the result is the copy's. */
    int (*end)(void *user, int rc);
    /* At most so many are copied in a second until somebody waits for the copy; 0: no bound. */
    uint64_t bytes_per_second;
    uint64_t (*piece_bytes)(void *user, uint32_t piece); /* NULL where there is no bound */
    /* NULL, or called by copier_wait_slice, when the slice's pieces were posted. */
    void (*hold)(void *user, uint32_t slice, struct lane *lane);
    void *user;
};

struct copier_times {
    double copy_seconds;   /* from the start to the end of the copy */
    double waited_seconds; /* of these the calls below held their caller up */
    double ended_at;       /* CLOCK_MONOTONIC */
};

/* Starts the thread, which sleeps while there is nothing to copy, and takes only time that no other
 * thread wants until its caller waits for it. */
int copier_open(struct copier **out, const struct copier_options *options);
/* A copy in progress is completed first: its state is a good one. */
void copier_close(struct copier *copier);

/* No other copy may be in progress. */
void copier_start(struct copier *copier);
/* Up to the slice's last piece all may be copied. False: it was posted, or there is no copy. */
bool copier_post(struct copier *copier, uint32_t slice);
/* Until the slice, which was posted, may be changed on the lane: it is copied, or the copy failed,
 * or there is none. */
void copier_wait_slice(struct copier *copier, uint32_t slice, struct lane *lane);
/* Until the copy has ended; its result, with the thread's last error as if it were the caller's. */
int copier_wait(struct copier *copier, struct copier_times *out);

#endif
