/* spikes.c - finds loss spikes (see spikes.h). */
#include "trainer/observe/spikes.h"
#include "proto/base/report.h"
#include "trainer/base/median.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static uint32_t window_size(const struct spikes *s)
{
    uint32_t most = (uint32_t)s->config->spike_window;
    return s->num < most ? s->num : most;
}

#define LEAST_PART 0.005

/* The spread of the window. */
static struct spread measure(const struct spikes *s)
{
    double values[SPIKES_WINDOW_MAX];
    uint32_t num = window_size(s);
    memcpy(values, s->window, num * sizeof(*values));
    return spread_of(values, num, LEAST_PART);
}

static struct spike continue_spike(struct spikes *s, int64_t step, double loss)
{
    struct spike *now = &s->now;
    double limit = now->median + s->config->spike_deviations / 2 * now->deviation;
    bool is_over = loss < limit;
    now->kind = SPIKE_NONE;
    now->steps = step - now->began;
    if (!is_over) {
        now->steps++;
        now->most = fmax(now->most, loss);
    }
    if (is_over)
        now->kind = now->steps <= s->config->spike_fast_steps ? SPIKE_FAST : SPIKE_SLOW;
    else if (now->steps >= s->config->spike_steps)
        now->kind = SPIKE_LASTS;
    s->is_in = now->kind == SPIKE_NONE;
    if (now->kind == SPIKE_LASTS)
        s->num = 0; /* the loss has a new level */
    return *now;
}

struct spike spikes_update(struct spikes *s, int64_t step, double loss)
{
    struct spike found = {.kind = SPIKE_NONE};
    if (s->config->spike_deviations == 0 || !isfinite(loss))
        return found;
    if (s->is_in)
        found = continue_spike(s, step, loss);
    if (s->is_in || found.kind == SPIKE_LASTS)
        return found;
    if (found.kind == SPIKE_NONE && window_size(s) >= SPIKES_LEAST) {
        struct spread of = measure(s);
        s->is_in = loss > of.median + s->config->spike_deviations * of.deviation;
        if (s->is_in)
            s->now = (struct spike){SPIKE_BEGINS, step, 1, loss, of.median, of.deviation};
        if (s->is_in)
            return s->now;
    }
    s->window[s->num++ % (uint32_t)s->config->spike_window] = loss;
    return found;
}

const char *spike_name(enum spike_kind kind)
{
    static const char *const names[] = {"none", "begins", "fast", "slow", "lasts"};
    return names[kind];
}

void spikes_log(const struct spike *spike, int64_t step)
{
    if (spike->kind == SPIKE_BEGINS)
        log_warn("train",
                 "step %" PRId64 ": the loss spikes to %.4f, %.1f deviations above the median "
                 "%.4f of the steps before",
                 step, spike->most, (spike->most - spike->median) / spike->deviation,
                 spike->median);
    else if (spike->kind == SPIKE_LASTS)
        log_warn("train",
                 "the spike of step %" PRId64 " lasts: the loss has not come back within %" PRId64
                 " steps; resume from a checkpoint before it, with checkpoint.skip_samples",
                 spike->began, spike->steps);
    else if (spike->kind != SPIKE_NONE)
        log_info("train",
                 "the spike of step %" PRId64 " is over after %" PRId64
                 " steps (%s); its largest loss was %.4f",
                 spike->began, spike->steps, spike_name(spike->kind), spike->most);
}
