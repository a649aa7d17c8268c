/* throttle.c - when a chunk may begin (see throttle.h). Chunks are asked for oldest first.
 *
 * Rate. A bucket of credit that is filled by `write_rate` and emptied by chunks, a whole chunk
 * before it begins. It is empty when the first chunk of a burst comes, so n bytes take at least n /
 * rate seconds; time without waiting chunks is not saved up. Timers come late: while chunks wait
 * the bucket may hold one chunk and THROTTLE_LATE_MS of the rate. So lateness up to that costs no
 * rate, and never more than that begins at once.
 *
 * Quiet phases. While a trainer is in a busy phase no chunk begins, until busy phases have delayed
 * it for quiet_wait_ms in all; then it begins in any phase. Time that it waits for the rate does
 * not count, so a slow rate does not use up quiet_wait_ms. So a save is longer by at most
 * quiet_wait_ms, whatever a trainer announces, and by bytes / rate.
 *
 * Window. A chunk that has begun runs to its end, also into a busy phase, so at most in_flight_max
 * chunks are in flight.
 *
 * Counters are 64 bits of milliseconds and of milli-bytes; a step of time is clipped to STEP_MS_MAX
 * before it is multiplied, and no counter saturates within a million years. A clock that goes back
 * counts as stopped. */
#include "ckptd/machines/throttle.h"
#include "proto/base/report.h"

#include <string.h>

#define STEP_MS_MAX (1ll << 22) /* more than the largest chunk takes at the lowest rate */

void throttle_init(struct throttle *pace, const struct throttle_options *options)
{
    CHECK(options->write_rate == 0 ||
          (options->write_rate >= THROTTLE_RATE_MIN && options->write_rate <= THROTTLE_RATE_MAX));
    CHECK(options->quiet_wait_ms >= 0 && options->in_flight_max > 0 && options->chunk_bytes > 0);
    memset(pace, 0, sizeof *pace);
    pace->options = *options;
}

bool throttle_is_on(const struct throttle *pace)
{
    return pace->options.write_rate > 0 || pace->options.quiet;
}

/* Counts the time since the last call for the reason of the wait. */
static void pass_time(struct throttle *pace, int64_t now_ms)
{
    int64_t passed = now_ms > pace->last_ms ? now_ms - pace->last_ms : 0;
    pace->last_ms += passed;
    if (pace->num_waiting == 0)
        return;
    if (pace->verdict == THROTTLE_HOLD_QUIET)
        pace->quiet_ms += passed;
    if (pace->verdict == THROTTLE_HOLD_RATE)
        pace->rate_ms += passed;
    uint64_t rate = (uint64_t)pace->options.write_rate;
    uint64_t most = rate * THROTTLE_LATE_MS + pace->options.chunk_bytes * 1000ull;
    pace->credit += rate * (uint64_t)(passed < STEP_MS_MAX ? passed : STEP_MS_MAX);
    if (pace->credit > most)
        pace->credit = most;
}

int64_t throttle_enter(struct throttle *pace, int64_t now_ms)
{
    pass_time(pace, now_ms);
    if (pace->num_waiting++ == 0) {
        pace->credit = 0;
        pace->verdict = THROTTLE_GO;
    }
    return pace->quiet_ms;
}

static enum throttle_verdict decide(const struct throttle *pace,
                                    const struct throttle_moment *moment, uint64_t cost,
                                    int64_t stamp, int64_t *out_wait_ms)
{
    uint64_t rate = (uint64_t)pace->options.write_rate;
    int64_t patience = pace->options.quiet_wait_ms - (pace->quiet_ms - stamp);
    *out_wait_ms = -1;
    if (moment->in_flight >= pace->options.in_flight_max)
        return THROTTLE_HOLD_WINDOW;
    if (pace->options.quiet && moment->busy && patience > 0) {
        *out_wait_ms = patience;
        return THROTTLE_HOLD_QUIET;
    }
    if (rate > 0 && pace->credit < cost) {
        *out_wait_ms = (int64_t)((cost - pace->credit + rate - 1) / rate);
        if (*out_wait_ms < THROTTLE_TICK_MS)
            *out_wait_ms = THROTTLE_TICK_MS;
        return THROTTLE_HOLD_RATE;
    }
    return THROTTLE_GO;
}

enum throttle_verdict throttle_ask(struct throttle *pace, const struct throttle_moment *moment,
                                   uint32_t bytes, int64_t stamp, int64_t *out_wait_ms)
{
    CHECK(pace->num_waiting > 0 && bytes <= pace->options.chunk_bytes);
    pass_time(pace, moment->now_ms);
    uint64_t cost = bytes * 1000ull;
    pace->verdict = decide(pace, moment, cost, stamp, out_wait_ms);
    if (pace->verdict != THROTTLE_GO)
        return pace->verdict;
    if (pace->options.write_rate > 0)
        pace->credit -= cost;
    pace->num_late += pace->options.quiet && moment->busy;
    pace->num_waiting--;
    return THROTTLE_GO;
}

void throttle_leave(struct throttle *pace, int64_t now_ms)
{
    CHECK(pace->num_waiting > 0);
    pass_time(pace, now_ms);
    pace->num_waiting--;
}
