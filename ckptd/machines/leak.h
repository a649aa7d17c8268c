/* leak.h - does ckptd's own memory grow without end, and is there too much of it? Pure: a sample at
 * a time goes in.
 *
 * What ckptd holds beside its pool follows what its clients ask, up and down. So of each
 * LEAK_WINDOW_MS only the least counts: what stays when the work is done. It leaks when that rose
 * by LEAK_STEP_BYTES or more from each of LEAK_WINDOWS windows in a row to the next. One window
 * that is no higher ends the verdict: a heap that was filled once, or a catalog that retention
 * bounds, is no leak.
 *
 * Too much is what is over the limit at LEAK_LOOKS samples in a row: one large request ends sooner.
 */
#ifndef HOLDFAST_CKPTD_MACHINES_LEAK_H
#define HOLDFAST_CKPTD_MACHINES_LEAK_H

#include <stdbool.h>
#include <stdint.h>

#define LEAK_WINDOW_MS INT64_C(1800000)
#define LEAK_WINDOWS 9u
#define LEAK_STEP_BYTES (UINT64_C(2) << 20)
#define LEAK_LOOKS 10u

/* All zeros: nothing was seen. */
struct leak {
    struct leak_window {
        int64_t ms;            /* when it began, by a monotonic clock */
        uint64_t bytes;        /* the least in it */
    } now, past[LEAK_WINDOWS]; /* past: oldest first */
    uint32_t num_past;
    uint32_t num_over; /* samples in a row that are over the limit */
};

/* `bytes_max` 0: no limit. */
void leak_note(struct leak *leak, int64_t now_ms, uint64_t bytes, uint64_t bytes_max);
/* Bytes per hour by which it grows without end; 0: it does not, as far as is known. */
double leak_rate(const struct leak *leak);
/* There is too much. */
bool leak_is_over(const struct leak *leak);

#endif
