/* budget.c - chooses what layers keep if a rank's memory has a bound in bytes
 * (activation_checkpoint.memory_budget).
 *
 * A rank of the pipeline with n layers has levels 0 to 2 n, the cheapest first. At level l <= n, l
 * layers compute norms and SwiGLU again, and the others keep all. At level n + l, l layers keep
 * their input only. These layers are spread evenly. A higher level takes fewer bytes, so a binary
 * search finds the lowest level that fits. To try a level, the search makes the rank's plan with
 * it, as an estimate does, so the result is exact.
 *
 * Each rank of the pipeline has its own level. The plan is that of the first data rank, which has
 * the most leaves and the largest shard. So all ranks find the same levels without
 * communication. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/parallel/execution.h"

#include <string.h>

struct search {
    const struct parallel_options *options;
    struct config config; /* for plans only */
    struct device *device;
    uint8_t *keep;                       /* [L] */
    const struct program_options *shape; /* the stages of all ranks */
    uint32_t rank;                       /* in the pipeline */
    uint32_t num_layers;                 /* of that rank */
    uint64_t bytes;                      /* of the last plan */
};

/* The activations that layer i of the rank keeps. */
static enum model_keep kept_at(const struct search *s, uint64_t i, uint32_t level)
{
    uint64_t layers = s->num_layers;
    bool is_full = level > layers;
    uint64_t chosen = is_full ? level - layers : level;
    bool is_chosen = (i + 1) * chosen / layers > i * chosen / layers;
    if (is_full)
        return is_chosen ? MODEL_KEEP_NOTHING : MODEL_KEEP_PRODUCTS;
    return is_chosen ? MODEL_KEEP_PRODUCTS : MODEL_KEEP_ALL;
}

/* Returns the number of the rank's layers. */
static uint32_t set_level(const struct search *s, uint32_t level)
{
    const struct program_options *o = s->shape;
    uint32_t num = 0;
    for (uint32_t b = 1; b + 1 < o->num_blocks; b++) {
        if (program_stage_of(o, b) % o->num_ranks != s->rank)
            continue;
        if (s->num_layers > 0)
            s->keep[b - 1] = (uint8_t)kept_at(s, num, level);
        num++;
    }
    return num;
}

/* Makes the plan of the first data rank with what layers keep now. */
static int make_plan(struct search *s, struct parallel **out)
{
    uint32_t size = s->options->world->size;
    struct parallel_options options = *s->options;
    options.config = &s->config;
    options.device = s->device;
    ERR_TRY(comm_dry_open(&options.world, size / (uint32_t)s->config.pp * s->rank, size));
    int rc = parallel_try(out, &options, s->keep);
    if (rc == 0)
        s->bytes =
            memory_kept_bytes(parallel_memory(*out)) + memory_shared_bytes(parallel_memory(*out));
    comm_free(options.world);
    return rc;
}

static int try_level(struct search *s, uint32_t level)
{
    struct parallel *trial = NULL;
    (void)set_level(s, level);
    int rc = make_plan(s, &trial);
    parallel_free(trial);
    return rc;
}

/* Finds the lowest level that fits. */
static int choose_level(struct search *s)
{
    uint64_t most = (uint64_t)s->config.budget_bytes;
    uint32_t low = 0, high = 2 * s->num_layers;
    ERR_TRY(try_level(s, high));
    if (s->bytes > most)
        return report_error(ERR_INVALID, "give more, use more ranks, or a smaller local_batch_size",
                            "activation_checkpoint.memory_budget = %s: rank %u of the pipeline "
                            "takes %llu bytes even with full recomputation",
                            s->config.memory_budget, s->rank, (unsigned long long)s->bytes);
    while (low < high) {
        uint32_t level = low + (high - low) / 2;
        ERR_TRY(try_level(s, level));
        if (s->bytes > most)
            low = level + 1;
        else
            high = level;
    }
    (void)set_level(s, low);
    return 0;
}

int budget_choose(uint8_t *keep, const struct parallel_options *options)
{
    struct search s = {.options = options, .config = *options->config, .keep = keep};
    struct parallel *first = NULL; /* it knows the stages */
    s.config.estimate = true;
    memset(keep, MODEL_KEEP_NOTHING, options->table->shape.layers);
    int rc = device_open(&s.device, &device_dry, NULL);
    if (rc == 0)
        rc = make_plan(&s, &first);
    for (; rc == 0 && s.rank < first->plan->shape.num_ranks; s.rank++) {
        s.shape = &first->plan->shape;
        s.num_layers = 0;
        s.num_layers = set_level(&s, 0);
        rc = choose_level(&s);
    }
    parallel_free(first);
    device_close(s.device);
    return rc;
}
