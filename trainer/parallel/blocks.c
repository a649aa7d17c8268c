/* blocks.c - where each block of the model and each slice of the state lie in a rank's buffers:
 * the boxes of layout.c, one behind the other, aligned. */
#include "proto/base/report.h"
#include "trainer/parallel/private.h"

#include <stdlib.h>

static void count_block(struct parallel *p, struct block *block)
{
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &p->table->tensors[i];
        struct box tp = layout_tp_box(&p->mesh, tensor);
        uint64_t width = tp.extent[1];
        p->full_at[i] = block->full_count;
        p->held_at[i] = block->held_bytes;
        block->full_count += aligned(tp.extent[0] * width);
        block->held_bytes += codes_held_bytes(p, i);
        block->is_strided = block->is_strided || model_view_blocks(&p->cut, tensor) > 1;
        for (uint32_t s = 0; s < p->mesh.degree[AXIS_SHARD]; s++) {
            block->shard_counts[s] += aligned(shard_of(p, tensor, s).rows * width);
            block->shard_bytes[s] += codes_packed_bytes(p, i, shard_of(p, tensor, s));
        }
        for (uint32_t o = 0; o < mesh_group_size(&p->mesh, GROUP_OWNERS); o++)
            block->piece_counts[o] += aligned(piece_of(p, tensor, o).rows * width);
    }
}

/* Behind what is in the buffers already. Rows that fill a vocabulary up have room, and no place:
 * they stay zeros. */
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

static void add_slice(struct parallel *p, const struct model_tensor *tensor, uint32_t block)
{
    struct box box = layout_tp_box(&p->mesh, tensor);
    struct part mine = layout_shard(&p->mesh, &box, p->mesh.place[AXIS_SHARD]);
    struct state_slice *slice = &p->state.slices[p->state.num_slices++];
    bool is_twin = block == p->table->num_blocks;
    *slice = (struct state_slice){.tensor = tensor,
                                  .block = block,
                                  .param = place_rows(&p->state.count, tensor, &box, mine),
                                  .segments = model_view_blocks(&p->cut, tensor),
                                  .is_counted = !is_twin && layout_is_first(&p->mesh, tensor)};
    slice->grad_at = slice->param.at;
    slice->moment = slice->param;
    if (p->state.is_zero) {
        struct part piece = piece_of(p, tensor, mesh_group_place(&p->mesh, GROUP_OWNERS));
        slice->moment = place_rows(&p->state.moment_count, tensor, &box, piece);
        slice->grad_at = p->is_canonical
                             ? slice->moment.at /* the sums lie alike */
                             : slice->param.at + (piece.first - mine.first) * box.extent[1];
    } else {
        p->state.moment_count = p->state.count;
    }
}

/* The state holds each tensor once: a tied output beside its embedding has accumulators only. */
static void lay_out_block(struct parallel *p, uint32_t index)
{
    struct block *block = &p->blocks[index];
    bool is_output = index == p->table->num_blocks, is_beside = is_output && p->blocks[0].is_here;
    block->num = model_block_tensors(p->table, index, &block->first);
    block->is_here = program_stage_of(&p->shape, index) % p->shape.num_ranks == p->shape.rank;
    count_block(p, block);
    if (!block->is_here)
        return;
    block->at = is_beside ? p->blocks[0].at : p->state.count;
    block->compute_at = is_beside ? p->blocks[0].compute_at : p->compute_bytes;
    block->piece_at = p->piece_count;
    block->fast_at = p->fast_count;
    if (is_beside)
        return;
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        add_slice(p, &p->table->tensors[i], index);
        p->code_at[i] = p->num_codes;
        p->num_codes += p->code_parts[i];
    }
    p->compute_bytes += block->shard_bytes[p->mesh.place[AXIS_SHARD]];
    p->piece_count += block->piece_counts[mesh_group_place(&p->mesh, GROUP_OWNERS)];
    p->fast_count += sum_of(block->shard_counts, p->mesh.degree[AXIS_SHARD]);
}

/* One replica's pieces behind the other's, those of a bucket one behind the other. */
static int lay_out_groups(struct parallel *p)
{
    for (uint32_t b = 0; b < num_all_blocks(p); b++)
        if ((p->blocks[b].group_at = calloc(p->leaves.replicas, sizeof(size_t))) == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the layouts");
    for (uint32_t r = 0; r < p->leaves.replicas; r++)
        for (uint32_t b = 0; b < num_all_blocks(p); b++) {
            p->blocks[b].group_at[r] = p->group_count;
            p->group_count += p->blocks[b].is_here ? p->blocks[b].piece_counts[owner_in(p, r)] : 0;
        }
    return 0;
}

int blocks_lay_out(struct parallel *p)
{
    uint32_t num_blocks = num_all_blocks(p), d = num_data_ranks(p);
    uint32_t owners = mesh_group_size(&p->mesh, GROUP_OWNERS);
    p->blocks = calloc(num_blocks, sizeof(*p->blocks));
    p->full_at = calloc(p->table->num_tensors, sizeof(*p->full_at));
    p->held_at = calloc(p->table->num_tensors, sizeof(*p->held_at));
    p->code_parts = calloc(p->table->num_tensors, sizeof(*p->code_parts));
    p->code_at = calloc(p->table->num_tensors, sizeof(*p->code_at));
    p->boxes = calloc(p->table->num_tensors, sizeof(*p->boxes));
    p->state.slices = calloc(p->table->num_tensors + 1, sizeof(*p->state.slices));
    p->lists = calloc(4 * NUM_LANES * (size_t)owners, sizeof(*p->lists));
    for (uint32_t lane = 0; lane < NUM_LANES && p->lists != NULL; lane++)
        p->lane_lists[lane] = p->lists + lane * 4 * (size_t)owners;
    size_t values = (size_t)p->num_micro_steps * (1 + 2 * (size_t)p->config->local_batch_size);
    if (values < ROUND_NUMBERS)
        values = ROUND_NUMBERS;
    ERR_TRY(pinned_new(p, &p->losses, values * sizeof(*p->losses)));
    ERR_TRY(pinned_new(p, &p->all_losses, values * d * sizeof(*p->all_losses)));
    bool is_short = p->blocks == NULL || p->full_at == NULL || p->boxes == NULL ||
                    p->state.slices == NULL || p->lists == NULL || p->held_at == NULL ||
                    p->code_parts == NULL || p->code_at == NULL;
    for (uint32_t b = 0; b < num_blocks && !is_short; b++) {
        struct block *block = &p->blocks[b];
        block->shard_counts = calloc(p->mesh.degree[AXIS_SHARD], sizeof(size_t));
        block->shard_bytes = calloc(p->mesh.degree[AXIS_SHARD], sizeof(size_t));
        block->piece_counts = calloc(owners, sizeof(size_t));
        is_short = block->shard_counts == NULL || block->shard_bytes == NULL ||
                   block->piece_counts == NULL;
    }
    if (is_short)
        return report_error(ERR_MEMORY, NULL, "no memory for the layouts");
    for (uint32_t i = 0; i < p->table->num_tensors; i++) {
        p->boxes[i] = layout_tp_box(&p->mesh, &p->table->tensors[i]);
        if (has_codes(p))
            p->code_parts[i] = model_code_parts(p->table, &p->cut, i, p->config->float8_filter);
    }
    for (uint32_t b = 0; b < num_blocks; b++)
        lay_out_block(p, b);
    if (has_groups(p))
        ERR_TRY(lay_out_groups(p));
    p->state.is_tied_apart = is_tied(p) && p->mesh.degree[AXIS_PP] > 1;
    return 0;
}
