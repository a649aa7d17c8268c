/* programs.c - derives from the settings the blocks of each rank, the activations that a forward
 * keeps, the gradients that are exchanged together, and the programs (plan/program.h). */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/exchange/rank_plan.h"
#include "trainer/plan/stages.h"

#include <stdlib.h>
#include <string.h>

/* ---- stages ---- */

/* Stages per rank, unless the settings give a number. */
static uint32_t chunks_of(enum pipe_schedule schedule)
{
    bool is_interleaved = schedule == PIPE_LOOPED || schedule == PIPE_INTERLEAVED ||
                          schedule == PIPE_INTERLEAVED_ZERO;
    return is_interleaved ? 2 : 1;
}

/* Stages that the settings ask for; 0: those of the schedule. */
static int count_stages(const struct rank_plan *plan, uint64_t *out)
{
    const struct config *config = plan->config;
    uint32_t ranks = plan->mesh.degree[AXIS_PP], named;
    uint64_t cost = plan->table->shape.layers + (uint64_t)config->first_stage_less +
                    (uint64_t)config->last_stage_less;
    uint64_t per_stage = (uint64_t)config->layers_per_stage;
    named = stages_named(config->stage_names, config->split_points);
    *out = named > 0 ? named : per_stage > 0 ? (cost + per_stage - 1) / per_stage : 0;
    if (*out % ranks == 0 && *out / ranks <= UINT16_MAX)
        return 0;
    if (named > 0)
        return report_error(ERR_INVALID, "name as many stages for each rank of the pipeline",
                            "parallelism.%s makes %u stages, not a multiple of %u ranks",
                            config->stage_names[0] != '\0' ? "module_fqns_per_model_part"
                                                           : "pipeline_parallel_split_points",
                            named, ranks);
    return report_error(ERR_INVALID, "choose layers per stage so that stages divide by ranks",
                        "parallelism.pipeline_parallel_layers_per_stage = %llu makes %llu stages "
                        "of %llu layers (ends counted), not a multiple of %u ranks",
                        (unsigned long long)per_stage, (unsigned long long)*out,
                        (unsigned long long)cost, ranks);
}

/* Stages per rank: those of the schedule, or those that the settings ask for. */
static int count_chunks(struct rank_plan *plan)
{
    const struct config *config = plan->config;
    uint32_t ranks = plan->mesh.degree[AXIS_PP];
    uint32_t chunks = ranks > 1 ? chunks_of(plan->shape.schedule) : 1;
    bool has_chunks = chunks > 1 || plan->shape.schedule == PIPE_FILE;
    uint64_t stages = 0;
    if (ranks > 1)
        ERR_TRY(count_stages(plan, &stages));
    if (stages > 0)
        chunks = (uint32_t)(stages / ranks);
    if (chunks > 1 && !has_chunks)
        return report_error(ERR_INVALID, "use Interleaved1F1B, or more layers per stage",
                            "parallelism.pipeline_parallel_schedule = %s has one stage per rank, "
                            "but %u are asked for",
                            config->text.pipeline_schedule, chunks);
    plan->shape.chunks = chunks;
    return 0;
}

/* Without a pipeline there is one stage, whatever the settings name. */
static int cut_stages(struct rank_plan *plan)
{
    const struct config *config = plan->config;
    uint32_t ranks = plan->mesh.degree[AXIS_PP];
    struct stages_options options = {.table = plan->table,
                                     .num_stages = ranks * plan->shape.chunks,
                                     .first_less = config->first_stage_less,
                                     .last_less = config->last_stage_less,
                                     .by_cost = config->pipeline_cut == CUT_COST,
                                     .seq = (uint32_t)config->seq_len,
                                     .names = ranks > 1 ? config->stage_names : "",
                                     .split_points = ranks > 1 ? config->split_points : ""};
    plan->first_block = calloc(options.num_stages + 1, sizeof(*plan->first_block));
    if (plan->first_block == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the stages");
    plan->shape.first_block = plan->first_block;
    return stages_cut(plan->first_block, &options);
}

/* ---- activations ---- */

/* True for every n-th layer of a selective mode; with a budget, for as many layers as exceed it. */
static bool is_recomputed(const struct config *config, uint32_t layer)
{
    double left = 1.0 - config->kept_part;
    if (config->ac_mode == RECOMPUTE_FULL)
        return true;
    if (config->ac_mode == RECOMPUTE_BUDGET)
        return (int64_t)((layer + 1) * left + 1e-9) > (int64_t)(layer * left + 1e-9);
    return layer % (uint64_t)config->recompute_every == 0;
}

/* `given`: the choice for a budget in bytes, or NULL. */
static int choose_kept(struct rank_plan *plan, const uint8_t *given)
{
    const struct config *config = plan->config;
    bool by_operation = config->ac_mode == RECOMPUTE_SELECTIVE && config->recompute_every == 0;
    uint32_t layers = plan->table->shape.layers;
    plan->keep = calloc(layers, sizeof(*plan->keep));
    if (plan->keep == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the list of layers");
    plan->shape.keep = plan->keep;
    if (given != NULL) {
        memcpy(plan->keep, given, layers);
        return 0;
    }
    for (uint32_t i = 0; i < layers && config->ac_mode != RECOMPUTE_NONE; i++)
        plan->keep[i] = by_operation               ? MODEL_KEEP_PRODUCTS
                        : is_recomputed(config, i) ? MODEL_KEEP_NOTHING
                                                   : MODEL_KEEP_ALL;
    return 0;
}

/* ---- buckets ---- */

static uint64_t gradient_bytes(const struct rank_plan *plan, uint32_t index)
{
    uint32_t first, num = model_block_tensors(plan->table, index, &first);
    uint64_t bytes = 0;
    for (uint32_t i = first; i < first + num; i++) {
        struct box tp = layout_tp_box(&plan->mesh, &plan->table->tensors[i]);
        bytes += box_elements(&tp, 2) * sizeof(float);
    }
    return bytes;
}

/* From the last block of each stage backwards: a bucket ends with the block that fills it, or
 * before a block that exceeds the limit. */
static int choose_buckets(struct rank_plan *plan)
{
    uint64_t most = (uint64_t)plan->config->bucket_cap_mb << 20, bytes = 0;
    if (most == 0)
        return 0;
    plan->ends_bucket = calloc(num_all_blocks(plan) + 1, sizeof(*plan->ends_bucket));
    if (plan->ends_bucket == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the buckets");
    for (uint32_t b = num_all_blocks(plan); b-- > 0;) {
        uint32_t stage = program_stage_of(&plan->shape, b);
        bool is_first = b <= plan->shape.first_block[stage];
        bytes += gradient_bytes(plan, b);
        plan->ends_bucket[b] = is_first || bytes + gradient_bytes(plan, b - 1) > most;
        bytes = plan->ends_bucket[b] ? 0 : bytes;
    }
    plan->shape.ends_bucket = plan->ends_bucket;
    return 0;
}

/* ---- programs ---- */

static bool drops_parameters(const struct rank_plan *plan)
{
    if (plan->config->reshard_after_forward == RESHARD_DEFAULT)
        return plan->mesh.degree[AXIS_PP] == 1;
    return plan->config->reshard_after_forward == RESHARD_ALWAYS;
}

int programs_plan(struct rank_plan *plan, const struct state *state, const uint8_t *keep)
{
    plan->shape.num_blocks = plan->table->num_blocks;
    plan->shape.is_tied = is_tied(plan);
    plan->shape.num_ranks = plan->mesh.degree[AXIS_PP];
    plan->shape.rank = plan->mesh.place[AXIS_PP];
    memcpy(plan->shape.degree, plan->mesh.degree, sizeof(plan->shape.degree));
    plan->shape.parts = plan->mesh.parts;
    plan->shape.adds_fast = !plan->is_canonical;
    plan->shape.num_leaves = leaves_micro_steps(&plan->leaves);
    plan->shape.round_leaves = has_groups(plan) ? leaves_round(&plan->leaves) : 0;
    plan->shape.has_ring = plan->cut.is_ring && plan->cut.cp > 1;
    plan->shape.ring_ahead = plan->shape.has_ring && plan->config->receives_ahead &&
                             (plan->mesh.world->ops->flags & COMM_THREADS) != 0;
    if (plan->mesh.degree[AXIS_SHARD] > 1) /* otherwise there is no gather to overlap */
        plan->shape.gather_ahead = (uint32_t)plan->config->gather_ahead;
    if (mesh_group_size(&plan->mesh, GROUP_OWNERS) > 1)
        plan->shape.exchange_behind = (uint32_t)plan->config->exchange_behind;
    plan->shape.receives_ahead = plan->config->receives_ahead && plan->shape.num_ranks > 1 &&
                                 (plan->mesh.world->ops->flags & COMM_THREADS) != 0;
    plan->shape.drops = drops_parameters(plan);
    plan->shape.has_loss_chunks = plan->cut.loss_chunks > 1;
    plan->shape.collects = is_gathered_whole(plan, state) || sums_by_library(plan);
    plan->shape.spreads = state->is_zero;
    plan->shape.encodes = plan->config->float8_gather && plan->config->is_float8 &&
                          plan->mesh.degree[AXIS_SHARD] > 1; /* else ranks round their own */
    plan->shape.copies =
        plan->config->checkpoint_enable && plan->config->async_mode == ASYNC_AT_ONCE;
    plan->shape.file = plan->config->pipeline_csv;
    plan->shape.schedule = plan->config->pipeline_schedule;
    ERR_TRY(count_chunks(plan));
    ERR_TRY(cut_stages(plan));
    ERR_TRY(choose_kept(plan, keep));
    return choose_buckets(plan);
}
