/* model.c - Llama by hand, block by block (see model.h): its sizes on this rank, its slots, and the
 * calls of each block's functions. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/model/private.h"

#include <stdlib.h>
#include <string.h>

/* ---- the cut ---- */

static int refuse_size(const char *what, uint64_t have, const char *key, uint32_t blocks)
{
    return report_error(ERR_INVALID, "choose a number that divides, or fewer blocks",
                        "%s %llu does not divide by %s = %u", what, (unsigned long long)have, key,
                        blocks);
}

static bool is_power_of_two(uint32_t number)
{
    return number > 0 && (number & (number - 1)) == 0;
}

static int check_degree(const char *axis, uint32_t degree, const char *key, uint32_t blocks)
{
    if (!is_power_of_two(degree))
        return report_error(ERR_INVALID, NULL,
                            "parallelism.%s_parallel_degree = %u is not a power of two", axis,
                            degree);
    if (!is_power_of_two(blocks) || blocks > 1024)
        return report_error(ERR_INVALID, "give a power of two up to 1024", "canonical.%s = %u", key,
                            blocks);
    if (blocks % degree != 0)
        return report_error(ERR_INVALID, "give at least as many blocks",
                            "parallelism.%s_parallel_degree = %u does not divide canonical.%s = %u "
                            "blocks, in which the run's sums are made",
                            axis, degree, key, blocks);
    return 0;
}

int model_cut_check(const struct model_options *options)
{
    const struct model_cut *cut = &options->cut;
    const struct model_shape *s = &options->table->shape;
    const char *key = "canonical.tp_blocks";
    uint32_t tokens = options->batch * options->seq, kv = s->kv_heads;
    ERR_TRY(check_degree("tensor", cut->tp, "tp_blocks", cut->tp_blocks));
    ERR_TRY(check_degree("context", cut->cp, "cp_blocks", cut->cp_blocks));
    if (cut->shares_heads && cut->tp_blocks / cut->tp % cut->cp != 0)
        return report_error(ERR_INVALID,
                            "set canonical.tp_blocks to a multiple of tp x cp, or "
                            "parallelism.context_parallel_rotate_method to \"allgather\"",
                            "%u blocks of heads (canonical.tp_blocks = %u, tp %u) cannot be "
                            "divided among %u ranks of context parallel",
                            cut->tp_blocks / cut->tp, cut->tp_blocks, cut->tp, cut->cp);
    if (s->heads % cut->tp_blocks != 0)
        return refuse_size("the number of heads", s->heads, key, cut->tp_blocks);
    if (kv % cut->tp_blocks != 0 && cut->tp_blocks % kv != 0)
        return report_error(ERR_INVALID, "choose a number that divides",
                            "canonical.tp_blocks = %u is neither a divisor nor a multiple of the "
                            "%u key and value heads",
                            cut->tp_blocks, kv);
    if (s->hidden % cut->tp_blocks != 0)
        return refuse_size("the hidden width", s->hidden, key, cut->tp_blocks);
    if (cut->cp_blocks > 1 && options->seq % (2 * cut->cp_blocks) != 0)
        return refuse_size("training.seq_len", options->seq, "2 x canonical.cp_blocks",
                           2 * cut->cp_blocks);
    if (tokens / cut->cp_blocks % cut->tp_blocks != 0)
        return refuse_size(
            "the number of tokens of a micro-batch (of a block of canonical.cp_blocks)",
            tokens / cut->cp_blocks, key, cut->tp_blocks);
    uint32_t parts = cut->loss_chunks * cut->tp_blocks;
    if (cut->loss_chunks > 1 && tokens / cut->cp_blocks % parts != 0)
        return refuse_size(
            "the number of tokens of a micro-batch (of a block of canonical.cp_blocks)",
            tokens / cut->cp_blocks,
            cut->tp_blocks > 1 ? "canonical.loss_chunks x canonical.tp_blocks"
                               : "canonical.loss_chunks",
            parts);
    return 0;
}

uint32_t model_view_blocks(const struct model_cut *cut, const struct model_tensor *tensor)
{
    return tensor->role == MODEL_ROWS ? cut->tp_blocks / cut->tp : 1;
}

/* ---- the model ---- */

static void set_sizes(struct model *m, const struct model_options *options)
{
    const struct model_cut *cut = &options->cut;
    uint32_t tp = cut->tp, kv_heads = m->s.kv_heads > tp ? m->s.kv_heads / tp : 1;
    m->cut = *cut;
    m->batch = options->batch;
    m->seq = options->seq;
    m->block_rows = options->batch * options->seq / cut->cp_blocks;
    m->row_blocks = cut->cp_blocks / cut->cp;
    m->rows = m->block_rows * m->row_blocks;
    m->own_rows = m->rows / tp;
    m->blocks = cut->tp_blocks / tp;
    m->kv_blocks = kv_heads < m->blocks ? kv_heads : m->blocks;
    m->q_width = m->s.heads / tp * m->s.head_dim;
    m->kv_width = kv_heads * m->s.head_dim;
    m->d_kv_width = m->kv_width / m->kv_blocks * m->blocks;
    m->hidden = m->s.hidden / tp;
    m->vocab = (m->s.vocab + cut->tp_blocks - 1) / cut->tp_blocks * m->blocks;
    m->dtype = options->dtype;
    m->element = kernel_dtype_bytes(options->dtype);
    m->has_codes = options->has_codes;
    m->gradient_format = options->gradient_format;
}

static int allocate(struct model *m, const struct model_options *options)
{
    uint32_t layers = m->s.layers, tp = m->cut.tp, cp = m->cut.cp;
    m->num_slots = options->num_slots;
    if (options->not_float8 != NULL)
        m->float8 = calloc(layers, sizeof(*m->float8));
    m->slots = calloc(m->num_slots, sizeof(*m->slots));
    m->keep = calloc(layers, sizeof(*m->keep));
    m->lists = calloc(4 * (size_t)(tp > cp ? tp : cp), sizeof(*m->lists));
    bool is_short = (options->not_float8 != NULL && m->float8 == NULL) || m->slots == NULL ||
                    m->keep == NULL || m->lists == NULL;
    for (uint32_t i = 0; i < m->num_slots && !is_short; i++) {
        m->slots[i].layers = calloc(layers + 1, sizeof(*m->slots[i].layers));
        is_short = m->slots[i].layers == NULL;
    }
    if (is_short)
        return report_error(ERR_MEMORY, NULL, "no memory for the model");
    if (options->keep != NULL)
        memcpy(m->keep, options->keep, layers);
    for (uint32_t i = 0; i < layers && m->float8 != NULL; i++)
        m->float8[i] = model_float8_of(m->table, i, options->not_float8);
    return 0;
}

int model_new(struct model **out, const struct model_options *options)
{
    ERR_TRY(model_cut_check(options));
    struct model *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the model");
    m->table = options->table;
    m->memory = options->memory;
    m->s = options->table->shape;
    set_sizes(m, options);
    int rc = allocate(m, options);
    if (rc != 0) {
        model_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void model_free(struct model *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; m->slots != NULL && i < m->num_slots; i++)
        free(m->slots[i].layers);
    free(m->slots);
    free(m->keep);
    free(m->float8);
    free(m->lists);
    if (m->lane != NULL) {
        device_free(m->lane->device, m->rope_cos);
        device_free(m->lane->device, m->rope_sin);
        device_free(m->lane->device, m->noted);
    }
    free(m);
}

/* Copies the table to the device through `pinned` [2][T, D/2]. */
static int copy_rope_table(struct model *m, float *pinned)
{
    size_t count = (size_t)m->seq * (m->s.head_dim / 2);
    double frequencies[MODEL_HEAD_DIM_MAX / 2];
    if (m->lane->device->ops->flags & DEVICE_DRY)
        return 0; /* a plan does not read it */
    model_shape_frequencies(frequencies, &m->s);
    kernel_rope_table(pinned, pinned + count, m->seq, m->s.head_dim, frequencies);
    lane_copy(m->lane, m->rope_cos, pinned, count * sizeof(*pinned));
    lane_copy(m->lane, m->rope_sin, pinned + count, count * sizeof(*pinned));
    return lane_settle(m->lane);
}

int model_set_kernels(struct model *m, struct kernels *kernels, struct lane *lane)
{
    struct device *device = lane->device;
    size_t bytes = (size_t)m->seq * (m->s.head_dim / 2) * sizeof(float);
    void *cos, *sin, *pinned;
    m->kernels = kernels;
    m->lane = lane;
    ERR_TRY(device_alloc(device, &cos, bytes, ON_DEVICE));
    m->rope_cos = cos;
    ERR_TRY(device_alloc(device, &sin, bytes, ON_DEVICE));
    m->rope_sin = sin;
    ERR_TRY(model_take_noted(m));
    ERR_TRY(device_alloc(device, &pinned, 2 * bytes, PINNED));
    int rc = copy_rope_table(m, pinned);
    device_free(device, pinned);
    return rc;
}

void model_set_groups(struct model *m, struct comm *tp_group, struct comm *cp_group)
{
    m->cut.tp_group = tp_group;
    m->cut.cp_group = cp_group;
}

void model_kernel_shapes(const struct model *m, struct kernel_shapes *out)
{
    *out = (struct kernel_shapes){.batch = m->batch,
                                  .seq = m->seq,
                                  .dim = m->s.dim,
                                  .hidden = m->s.hidden,
                                  .heads = m->q_width / m->s.head_dim / m->blocks,
                                  .kv_heads = m->kv_width / m->s.head_dim / m->kv_blocks,
                                  .head_dim = m->s.head_dim,
                                  .vocab = m->vocab * m->cut.tp,
                                  .dtype = m->dtype};
}

/* ---- blocks ---- */

void model_begin(struct model *m, uint32_t slot, const struct model_batch *batch)
{
    CHECK(slot < m->num_slots);
    m->slots[slot].is_active = batch != NULL;
    if (batch == NULL)
        return;
    m->slots[slot].batch = *batch;
    model_clear_noted(m, slot);
}

bool model_is_active(const struct model *m, uint32_t slot)
{
    return m->slots[slot].is_active;
}

int model_forward(struct model *m, uint32_t slot, uint32_t block, const void *const *w)
{
    if (block == 0)
        return embedding_forward(m, slot, w);
    return block <= m->s.layers ? layer_forward(m, slot, block - 1, w) : head_forward(m, slot, w);
}

int model_keys(struct model *m, uint32_t slot, uint32_t block, bool is_again, const void *const *w)
{
    CHECK(block >= 1 && block <= m->s.layers && model_has_ring(m));
    return layer_keys(m, slot, block - 1, is_again, w);
}

int model_recompute(struct model *m, uint32_t slot, uint32_t block, const void *const *w)
{
    CHECK(block >= 1 && block <= m->s.layers);
    return layer_recompute(m, slot, block - 1, w);
}

int model_backward(struct model *m, uint32_t slot, uint32_t block, uint32_t halves,
                   const void *const *w, float *const *dw)
{
    if (block == 0)
        return halves & MODEL_WEIGHT ? embedding_backward(m, slot, dw) : 0;
    if (block <= m->s.layers)
        return layer_backward(m, slot, block - 1, halves, w, dw);
    return block == m->s.layers + 1 ? head_backward(m, slot, halves, w, dw)
                                    : tied_backward(m, slot, halves, w, dw);
}

uint32_t model_foldable(const struct model *m, uint32_t block)
{
    bool is_layer = block >= 1 && block <= m->s.layers;
    bool is_head = block > m->s.layers;
    if (m->cut.tp_blocks * m->cut.cp_blocks > 1 || (is_head && model_has_chunks(m)))
        return 0;
    if (is_layer)
        return (1u << ATTENTION_NORM) - 1; /* all products */
    return block != m->s.layers + 1 ? 1 : m->s.is_tied ? 0 : 1u << OUTPUT;
}

void model_fold(struct model *m, bool folds, uint32_t *seen)
{
    m->folds = folds;
    m->seen = seen;
}

void model_forget(struct model *m, uint32_t slot, uint32_t first, uint32_t end)
{
    for (uint32_t block = end; block-- > first;) {
        if (block == m->s.layers + 1) {
            if (!model_has_chunks(m))
                model_give(m, "logits", slot_index(m, slot, 0));
            model_give(m, "head norm", slot_index(m, slot, 0));
            model_give(m, "head rstd", slot_index(m, slot, 0));
        } else if (block > 0) {
            model_give_saved(m, slot, block - 1, model_kept(m, block - 1));
        }
        if (block > 0)
            model_give_stream(m, slot, block);
    }
}
