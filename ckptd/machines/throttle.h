/* throttle.h - decides when a chunk of a save may be hashed and written. Pure: time and events come
 * in, "now" or "ask again after so many milliseconds" goes out. It does no I/O, reads no clock,
 * starts no thread and allocates nothing, so tests use simulated time. The rules are at the head of
 * throttle.c; throttle_queue.c keeps the delayed chunks, and asks.
 *
 *     throttle_init(&pace, &options);
 *     stamp = throttle_enter(&pace, now);                  -- a chunk is ready
 *     verdict = throttle_ask(&pace, &moment, bytes, stamp, &wait_ms);
 *     if (verdict == THROTTLE_GO)  ... it is started, and waits no more ...
 *     else                     ... ask again after wait_ms, or when something changed ...
 *     throttle_leave(&pace, now);                          -- a chunk leaves without a verdict */
#ifndef HOLDFAST_CKPTD_MACHINES_THROTTLE_H
#define HOLDFAST_CKPTD_MACHINES_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_RATE_MIN (1ll << 20) /* bytes per second; a lower limit is refused by config.c */
#define THROTTLE_RATE_MAX (1ll << 40)
/* Chunks that the rate allows within this time begin together, as each wake-up costs. */
#define THROTTLE_TICK_MS 10
#define THROTTLE_LATE_MS 50 /* of the rate: the most that is made up for after a late call */

enum throttle_verdict {
    THROTTLE_GO,
    THROTTLE_HOLD_RATE,  /* the rate limit is used up */
    THROTTLE_HOLD_QUIET, /* a trainer is in a busy phase */
    THROTTLE_HOLD_WINDOW /* enough is in flight; decided again when some of it ended */
};

struct throttle_options {
    int64_t write_rate; /* bytes per second; 0: no limit */
    bool quiet;         /* begin chunks only in quiet phases */
    int64_t quiet_wait_ms;
    uint32_t in_flight_max; /* chunks */
    uint32_t chunk_bytes;   /* of the largest */
};

/* The state of the node when throttle_ask() is called. */
struct throttle_moment {
    int64_t now_ms;
    bool busy; /* some trainer is in a busy phase */
    uint32_t in_flight;
};

struct throttle {
    struct throttle_options options;
    uint32_t num_waiting;
    enum throttle_verdict verdict; /* the last one: the reason for the time that chunks wait */
    int64_t last_ms;
    uint64_t credit;   /* may be written now, in thousandths of a byte: rate times milliseconds */
    int64_t quiet_ms;  /* how long busy phases delayed chunks; the clock of stamps */
    int64_t rate_ms;   /* how long the rate did */
    uint64_t num_late; /* chunks written in a busy phase: quiet_wait_ms was over */
};

void throttle_init(struct throttle *pace, const struct throttle_options *options);
/* Is any chunk ever delayed? */
bool throttle_is_on(const struct throttle *pace);
/* A chunk begins to wait. The stamp belongs to it. */
int64_t throttle_enter(struct throttle *pace, int64_t now_ms);
/* May the chunk that waits longest, of `bytes`, begin? *out_wait_ms: when to ask again; -1: after a
 * change. */
enum throttle_verdict throttle_ask(struct throttle *pace, const struct throttle_moment *moment,
                                   uint32_t bytes, int64_t stamp, int64_t *out_wait_ms);
void throttle_leave(struct throttle *pace, int64_t now_ms);

#endif
