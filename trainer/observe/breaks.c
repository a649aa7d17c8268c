/* breaks.c - handles steps whose numbers are not finite, or out of line (see breaks.h). */
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

#define REASON_BYTES 400

static const char *describe_outlier(char out[REASON_BYTES], const struct outlier *o)
{
    snprintf(out, REASON_BYTES,
             "its %s %g is %.1f deviations above the median %g of the %u steps before",
             o->is_norm ? "gradient norm" : "loss", o->value, (o->value - o->median) / o->deviation,
             o->median, o->window);
    return out;
}

enum step_kind breaks_classify(struct breaks *b, struct progress *p)
{
    char why[REASON_BYTES];
    if (!isfinite(p->loss) || !isfinite(p->grad_norm))
        return STEP_NONFINITE;
    bool is_outlier = outliers_find(&p->outliers, b->config, p->loss, p->grad_norm, &b->outlier);
    if (is_outlier && b->config->outlying != OUTLYING_WARN)
        return STEP_OUTLYING;
    if (is_outlier && b->rank == 0)
        log_warn("train", "step %" PRId64 " is an outlier: %s", p->step,
                 describe_outlier(why, &b->outlier));
    outliers_add(&p->outliers, b->config, p->loss, p->grad_norm);
    b->in_row = 0;
    b->has_updated = true;
    return is_outlier ? STEP_WARNED : STEP_USUAL;
}

static const char *describe_break(char out[200], const struct breaks *b, const struct progress *p,
                                  const struct step_break *at)
{
    uint64_t batch = (uint64_t)b->config->local_batch_size;
    uint64_t leaves = trainer_config_leaves(b->config, p->step - 1);
    uint64_t first = p->next_sample - (leaves - at->leaf) * batch;
    if (at->is_weight)
        snprintf(out, 200, "the weights of %s (%u such tensors)", at->tensor, at->num_tensors);
    else if (at->is_loss)
        snprintf(out, 200, "the loss of leaf %u, samples %" PRIu64 " to %" PRIu64, at->leaf, first,
                 first + batch - 1);
    else if (at->tensor[0] != 0)
        snprintf(out, 200, "the gradient of %s (%u such tensors)", at->tensor, at->num_tensors);
    else
        snprintf(out, 200, "no gradient that a rank holds");
    return out;
}

/* "loss nan, ..., first on rank 3, ..." */
static const char *describe(char out[REASON_BYTES], const struct breaks *b,
                            const struct progress *p, const struct step_break *at)
{
    char text[200];
    snprintf(out, REASON_BYTES, "loss %g, gradient norm %g, first on rank %u, stage %u: %s",
             breaks_without_sign(p->loss), breaks_without_sign(p->grad_norm), at->rank, at->stage,
             describe_break(text, b, p, at));
    return out;
}

static int end_run(const struct breaks *b, const struct progress *p, const struct step_break *at,
                   const char *why)
{
    bool is_loaded = at->is_weight && !b->has_updated;
    const char *hint = is_loaded ? "load another checkpoint, or import an undamaged model"
                                 : "lower optimizer.lr, or resume from an older checkpoint";
    char limit[64] = "";
    if (!at->is_weight && b->config->nonfinite != NONFINITE_STOP)
        snprintf(limit, sizeof limit, ", training.nonfinite = %s does not help",
                 b->config->text.nonfinite);
    report_error(ERR_INVALID, hint, "%s in step %" PRId64 "%s: %s",
                 is_loaded ? "the loaded weights are not finite, seen" : "training diverged",
                 p->step, limit, why);
    if (b->rank != 0)
        report_clear();
    return ERR_INVALID;
}

static void note_broken(struct breaks *b, const struct progress *p, bool is_rolled_back,
                        const char *why)
{
    bool is_finite = isfinite(p->loss) && isfinite(p->grad_norm);
    uint64_t samples = trainer_config_samples(b->config, p->step - 1);
    b->last =
        (struct broken_step){.step = p->step,
                             .is_outlying = is_finite,
                             .is_rolled_back = is_rolled_back,
                             .samples = {p->next_sample - samples, samples},
                             .loss = isfinite(p->loss) ? p->loss : (double)NAN,
                             .grad_norm = isfinite(p->grad_norm) ? p->grad_norm : (double)NAN};
    snprintf(b->last.why, sizeof(b->last.why), "%.199s", why);
}

static int roll_back(struct breaks *b, const struct progress *p, const char *why)
{
    note_broken(b, p, true, why);
    b->bad = b->last.samples;
    if (b->rank == 0)
        log_warn("train",
                 "step %" PRId64 " is rolled back (%u of %" PRId64
                 " times), and repeated without samples %" PRIu64 " to %" PRIu64 ": %s",
                 p->step, p->jumps.num + 1, b->config->roll_back_times, b->bad.first,
                 p->next_sample - 1, why);
    return 0;
}

static bool may_roll_back(const struct breaks *b, const struct progress *p)
{
    return p->jumps.num < b->config->roll_back_times;
}

/* Returns false if there are too many in a row. */
static bool skip(struct breaks *b, struct progress *p, const char *why)
{
    if (++b->in_row >= b->config->nonfinite_skips_max)
        return false;
    b->skips++;
    note_broken(b, p, false, why);
    broken_add(&p->broken, &b->last);
    if (b->rank == 0)
        log_warn("train",
                 "the update of step %" PRId64 " is skipped (%" PRId64 " in a row, %" PRId64
                 " of this start): %s",
                 p->step, b->in_row, b->skips, why);
    return true;
}

int breaks_decide_outlier(struct breaks *b, struct progress *p)
{
    char why[REASON_BYTES];
    describe_outlier(why, &b->outlier);
    if (p->step == b->config->replay_step) {
        if (b->rank == 0)
            log_warn("replay", "step %" PRId64 " is an outlier: %s", p->step, why);
        return 0;
    }
    if (b->config->outlying == OUTLYING_ROLL_BACK && may_roll_back(b, p))
        return roll_back(b, p, why);
    if (b->config->outlying == OUTLYING_SKIP && skip(b, p, why)) {
        outliers_skip(&p->outliers, p->step);
        return 0;
    }
    report_error(ERR_INVALID,
                 "lower optimizer.lr, raise training.outlying_deviations, or resume from an older "
                 "checkpoint",
                 "training.outlying = %s does not help: step %" PRId64 " is an outlier again: %s",
                 b->config->text.outlying, p->step, why);
    if (b->rank != 0)
        report_clear();
    return ERR_INVALID;
}

int breaks_decide(struct breaks *b, struct progress *p, const struct step_break *at)
{
    char why[REASON_BYTES], text[200];
    bool may_skip = b->config->nonfinite == NONFINITE_SKIP && !at->is_weight;
    describe(why, b, p, at);
    if (p->step == b->config->replay_step) {
        if (b->rank == 0)
            log_warn("replay", "step %" PRId64 " is not finite, first on rank %u, stage %u: %s",
                     p->step, at->rank, at->stage, describe_break(text, b, p, at));
        return 0;
    }
    if (b->config->nonfinite == NONFINITE_ROLL_BACK && !at->is_weight && may_roll_back(b, p))
        return roll_back(b, p, why);
    if (may_skip && skip(b, p, why))
        return 0;
    return end_run(b, p, at, why);
}
