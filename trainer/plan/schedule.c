/* schedule.c - torchtitan v0.2.2's warm-up, stable, decay curve (the formula stands in config.h).
 *
 * A pure function of the update's number, so a resumed run needs only that number. Computed in
 * double; the optimizer rounds once. The curve has a virtual last step, so the rate of the last
 * real update is not zero. */
#include "trainer/plan/schedule.h"

#include <math.h>

static double decayed(enum decay_type type, double progress)
{
    if (type == DECAY_SQRT)
        return 1.0 - sqrt(progress);
    if (type == DECAY_COSINE)
        return 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
    return 1.0 - progress;
}

double schedule_lr(const struct config *config, int64_t update)
{
    int64_t total = config->decay_total_steps;
    int64_t warmup = config->warmup_steps < total ? config->warmup_steps : total;
    int64_t decay = total - warmup;
    if (config->decay_ratio >= 0) {
        int64_t wanted = (int64_t)nearbyint((double)total * config->decay_ratio);
        decay = wanted < decay ? wanted : decay;
    }
    int64_t stable = total + 1 - warmup - decay;
    if (update < warmup)
        return config->lr * ((double)(update + 1) / (double)warmup);
    if (update < warmup + stable)
        return config->lr;
    double progress = (double)(update + 1 - warmup - stable) / (double)decay;
    double factor = decayed(config->decay_type, progress < 1.0 ? progress : 1.0);
    return config->lr * (config->min_lr_factor + (1.0 - config->min_lr_factor) * factor);
}
