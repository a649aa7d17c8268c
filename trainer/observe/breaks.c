/* breaks.c - steps whose numbers are not finite (see breaks.h). */
#include "trainer/observe/breaks.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

double breaks_without_sign(double value)
{
    return isnan(value) ? (double)NAN : value;
}

bool breaks_is_finite(struct breaks *b, const struct progress *p)
{
    bool is_finite = isfinite(p->loss) && isfinite(p->grad_norm);
    if (is_finite) {
        b->in_row = 0;
        b->has_updated = true;
    }
    return is_finite;
}

static const char *describe_break(char out[200], const struct breaks *b, const struct progress *p,
                                  const struct step_break *at)
{
    uint64_t batch = (uint64_t)b->config->local_batch_size;
    uint64_t leaves = trainer_config_leaves(b->config, p->step - 1);
    uint64_t first = p->next_sample - (leaves - at->leaf) * batch;
    if (at->is_weight)
        snprintf(out, 200, "the weights of %s (%u tensors have such)", at->tensor, at->num_tensors);
    else if (at->is_loss)
        snprintf(out, 200, "the loss of leaf %u, samples %" PRIu64 " to %" PRIu64, at->leaf, first,
                 first + batch - 1);
    else if (at->tensor[0] != 0)
        snprintf(out, 200, "the gradient of %s (%u tensors have such)", at->tensor,
                 at->num_tensors);
    else
        snprintf(out, 200, "no gradient that a rank holds");
    return out;
}

static int end_run(const struct breaks *b, const struct progress *p, const struct step_break *at,
                   const char *text)
{
    bool is_loaded = at->is_weight && !b->has_updated;
    const char *hint = is_loaded ? "load another checkpoint, or import a model that is whole"
                                 : "lower optimizer.lr, or resume from an older checkpoint";
    report_error(
        ERR_INVALID, hint,
        "%s in step %" PRId64 ": loss %g, gradient norm %g, first on rank %u, stage %u: %s",
        is_loaded ? "the weights that were loaded are not finite, seen" : "training diverged",
        p->step, breaks_without_sign(p->loss), breaks_without_sign(p->grad_norm), at->rank,
        at->stage, text);
    if (b->rank != 0)
        report_clear();
    return ERR_INVALID;
}

static int roll_back(struct breaks *b, const struct progress *p, const struct step_break *at,
                     const char *text)
{
    uint64_t samples = trainer_config_leaves(b->config, p->step - 1);
    samples *= (uint64_t)b->config->local_batch_size;
    b->bad = (struct jump){p->next_sample - samples, samples};
    if (b->rank == 0)
        log_warn("train",
                 "step %" PRId64 " is taken back (%u of %" PRId64
                 " times), and made again without samples %" PRIu64 " to %" PRIu64
                 ": loss %g, gradient norm %g, first on rank %u, stage %u: %s",
                 p->step, p->jumps.num + 1, b->config->roll_back_times, b->bad.first,
                 p->next_sample - 1, breaks_without_sign(p->loss),
                 breaks_without_sign(p->grad_norm), at->rank, at->stage, text);
    return 0;
}

int breaks_decide(struct breaks *b, const struct progress *p, const struct step_break *at)
{
    char text[200];
    bool may_skip = b->config->nonfinite == NONFINITE_SKIP && !at->is_weight;
    bool skips = may_skip && ++b->in_row < b->config->nonfinite_skips_max;
    describe_break(text, b, p, at);
    if (p->step == b->config->replay_step) {
        if (b->rank == 0)
            log_warn("replay", "step %" PRId64 " is not finite, first on rank %u, stage %u: %s",
                     p->step, at->rank, at->stage, text);
        return 0;
    }
    if (b->config->nonfinite == NONFINITE_ROLL_BACK && !at->is_weight &&
        p->jumps.num < b->config->roll_back_times)
        return roll_back(b, p, at, text);
    if (skips) {
        b->skips++;
        if (b->rank == 0)
            log_warn("train",
                     "step %" PRId64 " updates nothing (%" PRId64 " in a row, %" PRId64
                     " of this start): loss %g, gradient norm %g, first on rank %u, stage %u: %s",
                     p->step, b->in_row, b->skips, breaks_without_sign(p->loss),
                     breaks_without_sign(p->grad_norm), at->rank, at->stage, text);
        return 0;
    }
    return end_run(b, p, at, text);
}
