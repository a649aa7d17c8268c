/* blocks.c - places each block of the model and each slice of the state in a rank's buffers: the
 * boxes of layout.c, one after the other, aligned. */
#include "proto/base/report.h"
#include "trainer/exchange/rank_plan.h"

#include <stdlib.h>

static void count_block(struct rank_plan *plan, struct block *block)
{
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &plan->table->tensors[i];
        struct box tp = layout_tp_box(&plan->mesh, tensor);
        uint64_t width = tp.extent[1];
        plan->full_at[i] = block->full_count;
        plan->held_at[i] = block->held_bytes;
        block->full_count += aligned(tp.extent[0] * width);
        block->held_bytes += codes_held_bytes(plan, i);
        block->is_strided = block->is_strided || model_view_blocks(&plan->cut, tensor) > 1;
        for (uint32_t s = 0; s < plan->mesh.degree[AXIS_SHARD]; s++) {
            block->shard_counts[s] += aligned(shard_of(plan, tensor, s).rows * width);
            block->shard_bytes[s] += codes_packed_bytes(plan, i, shard_of(plan, tensor, s));
        }
        for (uint32_t o = 0; o < mesh_group_size(&plan->mesh, GROUP_OWNERS); o++)
            block->piece_counts[o] += aligned(piece_of(plan, tensor, o).rows * width);
    }
}

/* Places rows after the current end of the buffers. Padding rows of a vocabulary have room in
 * buffers and no place in the state: they stay zeros. */
static struct state_place place_rows(size_t *count, const struct model_tensor *tensor,
                                     const struct box *tp, struct part rows)
{
    struct state_place place = {.box = *tp, .at = *count};
    uint64_t first = tp->offset[0] + rows.first, end = first + rows.rows;
    place.box.offset[0] = first < tensor->rows ? first : tensor->rows;
    place.box.extent[0] = (end < tensor->rows ? end : tensor->rows) - place.box.offset[0];
    place.count = place.box.extent[0] * tp->extent[1];
    *count += aligned(rows.rows * tp->extent[1]);
    return place;
}

static void add_slice(const struct rank_plan *plan, struct state *state,
                      const struct model_tensor *tensor, uint32_t block)
{
    struct box box = layout_tp_box(&plan->mesh, tensor);
    struct part mine = layout_shard(&plan->mesh, &box, plan->mesh.place[AXIS_SHARD]);
    struct state_slice *slice = &state->slices[state->num_slices++];
    bool is_twin = block == plan->table->num_blocks;
    *slice = (struct state_slice){.tensor = tensor,
                                  .block = block,
                                  .param = place_rows(&state->count, tensor, &box, mine),
                                  .segments = model_view_blocks(&plan->cut, tensor),
                                  .is_counted = !is_twin && layout_is_first(&plan->mesh, tensor)};
    slice->grad_at = slice->param.at;
    slice->moment = slice->param;
    if (state->is_zero) {
        struct part piece = piece_of(plan, tensor, mesh_group_place(&plan->mesh, GROUP_OWNERS));
        slice->moment = place_rows(&state->moment_count, tensor, &box, piece);
        slice->grad_at = plan->is_canonical
                             ? slice->moment.at /* the sums have the same layout */
                             : slice->param.at + (piece.first - mine.first) * box.extent[1];
    } else {
        state->moment_count = state->count;
    }
}

/* The state holds each tensor once: if the embedding is on the same rank, a tied output has only
 * accumulators. */
static void lay_out_block(struct rank_plan *plan, struct state *state, uint32_t index)
{
    struct block *block = &plan->blocks[index];
    bool is_output = index == plan->table->num_blocks,
         is_beside = is_output && plan->blocks[0].is_here;
    block->num = model_block_tensors(plan->table, index, &block->first);
    block->is_here =
        program_stage_of(&plan->shape, index) % plan->shape.num_ranks == plan->shape.rank;
    count_block(plan, block);
    if (!block->is_here)
        return;
    block->at = is_beside ? plan->blocks[0].at : state->count;
    block->compute_at = is_beside ? plan->blocks[0].compute_at : plan->compute_bytes;
    block->piece_at = plan->piece_count;
    block->fast_at = plan->fast_count;
    if (is_beside)
        return;
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        add_slice(plan, state, &plan->table->tensors[i], index);
        plan->code_at[i] = plan->num_codes;
        plan->num_codes += plan->code_parts[i];
    }
    plan->compute_bytes += block->shard_bytes[plan->mesh.place[AXIS_SHARD]];
    plan->piece_count += block->piece_counts[mesh_group_place(&plan->mesh, GROUP_OWNERS)];
    plan->fast_count += sum_of(block->shard_counts, plan->mesh.degree[AXIS_SHARD]);
}

/* If one rank has all leaves, the sums of a tied output take the state's places. Those of the
 * embedding, with few rows, come after all others and are added to them (reduce.c). */
static void swap_tied_sums(struct rank_plan *plan)
{
    struct block *in = &plan->blocks[0], *out = &plan->blocks[plan->table->num_blocks];
    size_t piece_at = in->piece_at, fast_at = in->fast_at;
    if (!is_tied(plan) || !in->is_here || !out->is_here ||
        mesh_group_size(&plan->mesh, GROUP_OWNERS) > 1 || has_groups(plan))
        return;
    in->piece_at = out->piece_at;
    in->fast_at = out->fast_at;
    out->piece_at = piece_at;
    out->fast_at = fast_at;
}

/* The pieces of replicas one after the other; within a replica those of a bucket one after the
 * other. */
static int lay_out_groups(struct rank_plan *plan)
{
    for (uint32_t b = 0; b < num_all_blocks(plan); b++)
        if ((plan->blocks[b].group_at = calloc(plan->leaves.replicas, sizeof(size_t))) == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the layouts");
    for (uint32_t r = 0; r < plan->leaves.replicas; r++)
        for (uint32_t b = 0; b < num_all_blocks(plan); b++) {
            plan->blocks[b].group_at[r] = plan->group_count;
            plan->group_count +=
                plan->blocks[b].is_here ? plan->blocks[b].piece_counts[owner_in(plan, r)] : 0;
        }
    return 0;
}

int blocks_lay_out(struct rank_plan *plan, struct state *state)
{
    uint32_t num_blocks = num_all_blocks(plan);
    uint32_t owners = mesh_group_size(&plan->mesh, GROUP_OWNERS);
    plan->blocks = calloc(num_blocks, sizeof(*plan->blocks));
    plan->full_at = calloc(plan->table->num_tensors, sizeof(*plan->full_at));
    plan->held_at = calloc(plan->table->num_tensors, sizeof(*plan->held_at));
    plan->code_parts = calloc(plan->table->num_tensors, sizeof(*plan->code_parts));
    plan->code_at = calloc(plan->table->num_tensors, sizeof(*plan->code_at));
    plan->boxes = calloc(plan->table->num_tensors, sizeof(*plan->boxes));
    state->slices = calloc(plan->table->num_tensors + 1, sizeof(*state->slices));
    bool is_short = plan->blocks == NULL || plan->full_at == NULL || plan->boxes == NULL ||
                    state->slices == NULL || plan->held_at == NULL || plan->code_parts == NULL ||
                    plan->code_at == NULL;
    for (uint32_t b = 0; b < num_blocks && !is_short; b++) {
        struct block *block = &plan->blocks[b];
        block->shard_counts = calloc(plan->mesh.degree[AXIS_SHARD], sizeof(size_t));
        block->shard_bytes = calloc(plan->mesh.degree[AXIS_SHARD], sizeof(size_t));
        block->piece_counts = calloc(owners, sizeof(size_t));
        is_short = block->shard_counts == NULL || block->shard_bytes == NULL ||
                   block->piece_counts == NULL;
    }
    if (is_short)
        return report_error(ERR_MEMORY, NULL, "no memory for the layouts");
    for (uint32_t i = 0; i < plan->table->num_tensors; i++) {
        plan->boxes[i] = layout_tp_box(&plan->mesh, &plan->table->tensors[i]);
        if (has_codes(plan))
            plan->code_parts[i] =
                model_code_parts(plan->table, &plan->cut, i, plan->config->float8_filter);
    }
    for (uint32_t b = 0; b < num_blocks; b++)
        lay_out_block(plan, state, b);
    swap_tied_sums(plan);
    if (has_groups(plan))
        ERR_TRY(lay_out_groups(plan));
    state->is_tied_apart = is_tied(plan) && plan->mesh.degree[AXIS_PP] > 1;
    return 0;
}
