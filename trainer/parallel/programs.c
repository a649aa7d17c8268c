/* programs.c - what the settings make of a step: which rank has which blocks, what a forward keeps,
 * which gradients are exchanged at once, and the programs that follow (plan/program.h). */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/parallel/private.h"
#include "trainer/plan/stages.h"

#include <stdlib.h>
#include <string.h>

/* ---- stages ---- */

/* Stages of a rank unless the settings say how many. */
static uint32_t chunks_of(enum pipe_schedule schedule)
{
    bool is_interleaved = schedule == PIPE_LOOPED || schedule == PIPE_INTERLEAVED ||
                          schedule == PIPE_INTERLEAVED_ZERO;
    return is_interleaved ? 2 : 1;
}

/* Stages that the settings ask for; 0: as many as the schedule has. */
static int count_stages(const struct parallel *p, uint64_t *out)
{
    const struct config *config = p->config;
    uint32_t ranks = p->mesh.degree[AXIS_PP], named;
    uint64_t cost = p->table->shape.layers + (uint64_t)config->first_stage_less +
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

/* Stages of a rank: those of the schedule, or as many as the settings ask for. */
static int count_chunks(struct parallel *p)
{
    const struct config *config = p->config;
    uint32_t ranks = p->mesh.degree[AXIS_PP];
    uint32_t chunks = ranks > 1 ? chunks_of(p->shape.schedule) : 1;
    bool has_chunks = chunks > 1 || p->shape.schedule == PIPE_FILE;
    uint64_t stages = 0;
    if (ranks > 1)
        ERR_TRY(count_stages(p, &stages));
    if (stages > 0)
        chunks = (uint32_t)(stages / ranks);
    if (chunks > 1 && !has_chunks)
        return report_error(ERR_INVALID, "take Interleaved1F1B, or more layers per stage",
                            "parallelism.pipeline_parallel_schedule = %s has one stage per rank, "
                            "but %u are asked for",
                            config->text.pipeline_schedule, chunks);
    p->shape.chunks = chunks;
    return 0;
}

/* Without a pipeline there is one stage, whatever the names. */
static int cut_stages(struct parallel *p)
{
    const struct config *config = p->config;
    uint32_t ranks = p->mesh.degree[AXIS_PP];
    struct stages_options options = {.table = p->table,
                                     .num_stages = ranks * p->shape.chunks,
                                     .first_less = config->first_stage_less,
                                     .last_less = config->last_stage_less,
                                     .by_cost = config->pipeline_cut == CUT_COST,
                                     .seq = (uint32_t)config->seq_len,
                                     .names = ranks > 1 ? config->stage_names : "",
                                     .split_points = ranks > 1 ? config->split_points : ""};
    p->first_block = calloc(options.num_stages + 1, sizeof(*p->first_block));
    if (p->first_block == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the stages");
    p->shape.first_block = p->first_block;
    return stages_cut(p->first_block, &options);
}

/* ---- activations ---- */

/* Every n-th layer of a selective mode, or of a budget as many as are over it. */
static bool is_recomputed(const struct config *config, uint32_t layer)
{
    double left = 1.0 - config->kept_part;
    if (config->ac_mode == RECOMPUTE_FULL)
        return true;
    if (config->ac_mode == RECOMPUTE_BUDGET)
        return (int64_t)((layer + 1) * left + 1e-9) > (int64_t)(layer * left + 1e-9);
    return layer % (uint64_t)config->recompute_every == 0;
}

/* `given`: by a budget in bytes, or NULL. */
static int choose_kept(struct parallel *p, const uint8_t *given)
{
    const struct config *config = p->config;
    bool by_operation = config->ac_mode == RECOMPUTE_SELECTIVE && config->recompute_every == 0;
    uint32_t layers = p->table->shape.layers;
    p->keep = calloc(layers, sizeof(*p->keep));
    if (p->keep == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the list of layers");
    p->shape.keep = p->keep;
    if (given != NULL) {
        memcpy(p->keep, given, layers);
        return 0;
    }
    for (uint32_t i = 0; i < layers && config->ac_mode != RECOMPUTE_NONE; i++)
        p->keep[i] = by_operation               ? MODEL_KEEP_PRODUCTS
                     : is_recomputed(config, i) ? MODEL_KEEP_NOTHING
                                                : MODEL_KEEP_ALL;
    return 0;
}

void parallel_count_kept(const struct parallel *p, uint32_t *out)
{
    memset(out, 0, NUM_MODEL_KEEPS * sizeof(*out));
    for (uint32_t b = 1; b <= p->table->shape.layers; b++)
        if (program_stage_of(&p->shape, b) % p->shape.num_ranks == p->shape.rank)
            out[p->keep[b - 1]]++;
}

double parallel_recomputed_flops(const struct parallel *p)
{
    double flops = 0;
    for (uint32_t i = 0; i < p->table->shape.layers; i++)
        if (p->keep[i] == MODEL_KEEP_NOTHING)
            flops += model_layer_flops(p->table, (uint32_t)p->config->seq_len);
    return flops;
}

/* ---- buckets ---- */

static uint64_t gradient_bytes(const struct parallel *p, uint32_t index)
{
    uint32_t first, num = model_block_tensors(p->table, index, &first);
    uint64_t bytes = 0;
    for (uint32_t i = first; i < first + num; i++) {
        struct box tp = layout_tp_box(&p->mesh, &p->table->tensors[i]);
        bytes += box_elements(&tp, 2) * sizeof(float);
    }
    return bytes;
}

/* From the last block of each stage on: a bucket ends with the block that fills it, or in front of
 * one that would be too much. */
static int choose_buckets(struct parallel *p)
{
    uint64_t most = (uint64_t)p->config->bucket_cap_mb << 20, bytes = 0;
    if (most == 0)
        return 0;
    p->ends_bucket = calloc(num_all_blocks(p) + 1, sizeof(*p->ends_bucket));
    if (p->ends_bucket == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the buckets");
    for (uint32_t b = num_all_blocks(p); b-- > 0;) {
        uint32_t stage = program_stage_of(&p->shape, b);
        bool is_first = b <= p->shape.first_block[stage];
        bytes += gradient_bytes(p, b);
        p->ends_bucket[b] = is_first || bytes + gradient_bytes(p, b - 1) > most;
        bytes = p->ends_bucket[b] ? 0 : bytes;
    }
    p->shape.ends_bucket = p->ends_bucket;
    return 0;
}

/* ---- programs ---- */

static bool drops_parameters(const struct parallel *p)
{
    if (p->config->reshard_after_forward == RESHARD_DEFAULT)
        return p->mesh.degree[AXIS_PP] == 1;
    return p->config->reshard_after_forward == RESHARD_ALWAYS;
}

int programs_make(struct parallel *p, const uint8_t *keep)
{
    p->shape.num_blocks = p->table->num_blocks;
    p->shape.is_tied = is_tied(p);
    p->shape.num_ranks = p->mesh.degree[AXIS_PP];
    p->shape.rank = p->mesh.place[AXIS_PP];
    p->shape.num_leaves = p->num_micro_steps;
    p->shape.round_leaves = has_groups(p) ? leaves_round(&p->leaves) : 0;
    p->shape.has_ring = p->cut.is_ring && p->cut.cp > 1;
    p->shape.ring_ahead = p->shape.has_ring && p->config->receives_ahead &&
                          (p->mesh.world->ops->flags & COMM_THREADS) != 0;
    if (p->mesh.degree[AXIS_SHARD] > 1) /* else there is nothing to wait for */
        p->shape.gather_ahead = (uint32_t)p->config->gather_ahead;
    if (mesh_group_size(&p->mesh, GROUP_OWNERS) > 1)
        p->shape.exchange_behind = (uint32_t)p->config->exchange_behind;
    p->shape.receives_ahead = p->config->receives_ahead && p->shape.num_ranks > 1 &&
                              (p->mesh.world->ops->flags & COMM_THREADS) != 0;
    p->shape.drops = drops_parameters(p);
    p->shape.has_loss_chunks = p->cut.loss_chunks > 1;
    p->shape.collects = is_gathered_whole(p) || sums_by_library(p);
    p->shape.spreads = p->state.is_zero;
    p->shape.encodes = p->config->float8_gather && p->config->is_float8 &&
                       p->mesh.degree[AXIS_SHARD] > 1; /* else each rounds what it has */
    p->shape.copies = p->config->checkpoint_enable && p->config->async_mode == ASYNC_AT_ONCE;
    p->shape.file = p->config->pipeline_csv;
    p->shape.schedule = p->config->pipeline_schedule;
    ERR_TRY(count_chunks(p));
    ERR_TRY(cut_stages(p));
    ERR_TRY(choose_kept(p, keep));
    ERR_TRY(choose_buckets(p));
    ERR_TRY(program_build(&p->program, &p->shape));
    ERR_TRY(program_build_evaluation(&p->evaluation, &p->shape));
    return p->mesh.degree[AXIS_PP] > 1 ? transfers_new(p) : 0;
}
