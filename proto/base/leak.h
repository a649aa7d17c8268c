/* leak.h - detects whether a process's own memory grows without bound, and whether there is too
 * much of it: of ckptd and of the trainer. Pure: takes one sample at a time.
 *
 * ckptd's memory besides its pool follows the work of its clients, up and down, and a trainer's its
 * saves and evaluations. So only the minimum of each LEAK_WINDOW_MS counts: the memory that stays
 * after the work. It is a leak if that rose by LEAK_STEP_BYTES or more in each of LEAK_WINDOWS
 * successive windows. A single window without a rise ends the verdict: a heap that filled once, or
 * a catalog that retention bounds, is no leak.
 *
 * Too much means over the limit in LEAK_LOOKS successive samples: one large request ends sooner. */
#ifndef HOLDFAST_PROTO_BASE_LEAK_H
#define HOLDFAST_PROTO_BASE_LEAK_H

#include <stdbool.h>
#include <stdint.h>

#define LEAK_WINDOW_MS INT64_C(1800000)
#define LEAK_WINDOWS 9u
#define LEAK_STEP_BYTES (UINT64_C(2) << 20)
#define LEAK_LOOKS 10u

/* All zeros: no samples. */
struct leak {
    struct leak_window {
        int64_t ms;            /* when it began, by a monotonic clock */
        uint64_t bytes;        /* the minimum in it */
    } now, past[LEAK_WINDOWS]; /* past: oldest first */
    uint32_t num_past;
    uint32_t num_over; /* successive samples over the limit */
};

/* `bytes_max` 0: no limit. */
void leak_note(struct leak *leak, int64_t now_ms, uint64_t bytes, uint64_t bytes_max);
/* Bytes per hour of growth without bound; 0: none, as far as known. */
double leak_rate(const struct leak *leak);
/* True if there is too much. */
bool leak_is_over(const struct leak *leak);

#endif
