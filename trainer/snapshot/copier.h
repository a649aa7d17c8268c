/* copier.h - a thread that copies the training state while training continues.
 *
 * A copy is made piece by piece, in the order of the checkpoint's image; a slice of the state may
 * consist of several pieces. The step's program posts how far the copy may go, slice by slice;
 * before the trainer changes a slice, it waits until the slice's last piece is copied:
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
 * On a device `copy` only posts the copies of a piece on a separate lane. `hold` makes the lane
 * that changes a slice wait for that slice's copies (device_copy.h).
 *
 * Threads: the thread that opened makes all calls. The data of `copy` and `end` belong to the
 * copier's thread from copier_start until copier_wait has returned. */
#ifndef HOLDFAST_TRAINER_COPIER_H
#define HOLDFAST_TRAINER_COPIER_H

#include <stdbool.h>
#include <stdint.h>

#define COPIER_THREAD_NAME "copier" /* the thread's name in ps and /proc */

struct copier;
struct lane;

/* Called on the copier's thread. */
struct copier_options {
    uint32_t num_pieces, num_slices;
    /* Per slice: the number of pieces after which all of it is copied. Borrowed. */
    const uint32_t *copied_at;
    /* Copies piece `piece`. The first failure ends the copy. */
    int (*copy)(void *user, uint32_t piece);
    /* Called after the last piece (rc 0) or the first failure (its code). Returns the copy's
     * result. */
    int (*end)(void *user, int rc);
    /* Rate limit until the caller waits for the copy; 0: none. */
    uint64_t bytes_per_second;
    uint64_t (*piece_bytes)(void *user, uint32_t piece); /* NULL if there is no limit */
    /* NULL, or called by copier_wait_slice after the slice's pieces were posted. */
    void (*hold)(void *user, uint32_t slice, struct lane *lane);
    void *user;
};

struct copier_times {
    double copy_seconds;   /* from the start to the end of the copy */
    double waited_seconds; /* the caller's share of it in the calls below */
    double ended_at;       /* CLOCK_MONOTONIC */
};

/* Starts the thread, which sleeps while there is nothing to copy. It runs at idle priority until
 * its caller waits for it. */
int copier_open(struct copier **out, const struct copier_options *options);
/* Completes a copy in progress first, since its state is valid. */
void copier_close(struct copier *copier);

/* No other copy may be in progress. */
void copier_start(struct copier *copier);
/* Allows copies up to the slice's last piece. Returns false if it was posted before, or if there is
 * no copy. */
bool copier_post(struct copier *copier, uint32_t slice);
/* Waits until a posted slice may be changed on the lane: it is copied, the copy failed, or there is
 * no copy. */
void copier_wait_slice(struct copier *copier, uint32_t slice, struct lane *lane);
/* Waits until the copy has ended and returns its result. A failure's text becomes the caller's last
 * error. */
int copier_wait(struct copier *copier, struct copier_times *out);

#endif
