/* throttle.h - decides when a chunk of a save may be hashed and written. Pure: time and events come
 * in, "now" or "ask again after so many milliseconds" goes out. It does no I/O, reads no clock,
 * starts no thread and allocates nothing, so its promises are tested against simulated time. The
 * rules are at the head of throttle.c; throttle_queue.c keeps the chunks that wait, and asks.
 *
 *     throttle_init(&pace, &options);
 *     stamp = throttle_enter(&pace, now);                  -- a chunk is ready
 *     verdict = throttle_ask(&pace, &moment, bytes, stamp, &wait_ms);
 *     if (verdict == THROTTLE_GO)  ... it is started, and waits no more ...
 *     else                     ... ask again after wait_ms, or when something changed ...
 *     throttle_leave(&pace, now);                          -- a chunk waits no more, and has not
 * asked
 */
#ifndef HOLDFAST_CKPTD_MACHINES_THROTTLE_H
#define HOLDFAST_CKPTD_MACHINES_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_RATE_MIN (1ll << 20) /* bytes per second; a lower limit is refused by config.c */
#define THROTTLE_RATE_MAX (1ll << 40)
/* Chunks that the rate allows within so long begin together: each wake-up costs, too. */
#define THROTTLE_TICK_MS 10
#define THROTTLE_LATE_MS \
    50 /* of the rate, is the most that is made up for when we are asked late */

enum throttle_verdict {
    THROTTLE_GO,
    THROTTLE_HOLD_RATE,  /* the rate limit has nothing left */
    THROTTLE_HOLD_QUIET, /* a trainer is in a busy phase */
    THROTTLE_HOLD_WINDOW /* enough is under way; what follows is decided when some of it ended */
};

struct throttle_options {
    int64_t write_rate; /* bytes per second; 0: no limit */
    bool quiet;         /* begin chunks in quiet phases only */
    int64_t quiet_wait_ms;
    uint32_t in_flight_max; /* chunks */
    uint32_t chunk_bytes;   /* of the largest */
};

/* The state of the world when throttle_ask is called. */
struct throttle_moment {
    int64_t now_ms;
    bool busy; /* some trainer is in a busy phase */
    uint32_t in_flight;
};

struct throttle {
    struct throttle_options options;
    uint32_t num_waiting;
    enum throttle_verdict verdict; /* the last: what time is spent on while chunks wait */
    int64_t last_ms;
    uint64_t credit;   /* may be written now, in thousandths of a byte: rate times milliseconds */
    int64_t quiet_ms;  /* how long chunks were held back by busy phases; the clock of stamps */
    int64_t rate_ms;   /* how long by the rate */
    uint64_t num_late; /* chunks written in a busy phase: quiet_wait_ms was over */
};

void throttle_init(struct throttle *pace, const struct throttle_options *options);
/* Is anything held back, ever? */
bool throttle_is_on(const struct throttle *pace);
/* A chunk begins to wait. The stamp belongs to it. */
int64_t throttle_enter(struct throttle *pace, int64_t now_ms);
/* May the chunk that waits longest, of `bytes`, begin? *out_wait_ms: when to ask again; -1: not
 * before something changes. */
enum throttle_verdict throttle_ask(struct throttle *pace, const struct throttle_moment *moment,
                                   uint32_t bytes, int64_t stamp, int64_t *out_wait_ms);
void throttle_leave(struct throttle *pace, int64_t now_ms);

#endif
