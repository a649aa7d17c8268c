/* ends.c - the two ends of the model: the embedding, and the final norm with the output projection.
 * The loss is in loss.c. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/model/private.h"

#include <string.h>

/* ---- embedding: each tp rank has a part of the vocabulary ---- */

/* Tokens as rows of this rank's part; those of other parts become `other`. */
static void local_tokens(const struct model *m, int32_t *out, const int32_t *tokens, int32_t other)
{
    int32_t first = (int32_t)(m->cut.tp_place * m->vocab);
    for (uint32_t i = 0; i < m->rows; i++) {
        int32_t local = tokens[i] - first;
        out[i] = local >= 0 && local < (int32_t)m->vocab ? local : other;
    }
}

void model_localize(const struct model *m, const int32_t *tokens, int32_t *own,
                    int32_t *own_or_other, int32_t *owners)
{
    uint32_t own_block = m->block_rows / m->cut.tp;
    local_tokens(m, own, tokens, 0);
    local_tokens(m, own_or_other, tokens, (int32_t)m->vocab);
    for (uint32_t row = 0; row < m->own_rows; row++) {
        uint32_t p = row / own_block, i = row % own_block;
        uint32_t token = p * m->block_rows + m->cut.tp_place * own_block + i;
        owners[row] = tokens[token] / (int32_t)m->vocab * (int32_t)own_block + (int32_t)i;
    }
}

static void embed(struct model *m, void *out, const int32_t *tokens, const void *table,
                  uint32_t rows)
{
    kernel_embedding(m->kernels, m->lane,
                     &(struct kernel_embedding){.out = out,
                                                .tokens = tokens,
                                                .table = table,
                                                .rows = rows,
                                                .dim = m->s.dim,
                                                .dtype = m->dtype});
}

/* Of row block p: receives, from each rank, values for this rank's rows, and takes each row from
 * the rank that owns its token, as from a table. Without a sum: the bits of a row are those of the
 * embedding. */
static int take_own_rows(struct model *m, char *own, const char *all, char *received,
                         const int32_t *owners, uint32_t p)
{
    uint32_t tp = m->cut.tp, own_block = m->block_rows / tp;
    size_t row = m->s.dim * m->element, *bytes = m->lists, *at = m->lists + tp;
    model_set_lists(m, tp, own_block * row);
    ERR_TRY(comm_all_to_all_v(m->cut.tp_group, all + p * m->block_rows * row, bytes, at, received,
                              bytes, at));
    embed(m, own + (size_t)p * own_block * row, owners + (size_t)p * own_block, received,
          own_block);
    return 0;
}

int embedding_forward(struct model *m, uint32_t slot, const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    void *out = model_take_stream(m, slot, 1);
    size_t row = m->s.dim * m->element;
    int rc = 0;
    if (m->cut.tp == 1) {
        if (s->is_active)
            embed(m, out, s->batch.inputs, w[0], m->rows);
        model_note_embedding(m, slot, w, out);
        return 0;
    }
    char *all = model_take_bytes(m, "embedding of own vocabulary", 0, m->rows * row);
    char *received = model_take_bytes(m, "embedding received", 0, m->block_rows * row);
    if (s->is_active)
        embed(m, all, s->batch.own, w[0], m->rows);
    for (uint32_t p = 0; p < m->row_blocks && s->is_active && rc == 0; p++)
        rc = take_own_rows(m, out, all, received, s->batch.owners, p);
    model_note_embedding(m, slot, w, out);
    model_give(m, "embedding of own vocabulary", 0);
    model_give(m, "embedding received", 0);
    return rc;
}

/* Sum over this rank's cp blocks. In a walk it takes the parts' buffers, too. */
static void embedding_weight(struct model *m, const struct slot *s, float *dtable,
                             const int32_t *tokens, const void *dout, uint32_t vocab)
{
    static const char *const name = "partial embeddings";
    size_t row = m->s.dim * m->element;
    struct tree tree = tree_take(m, name, dtable, (size_t)vocab * m->s.dim, m->row_blocks);
    for (uint32_t p = 0; p < m->row_blocks && s->is_active; p++) {
        size_t first = (size_t)p * m->block_rows;
        kernel_embedding_backward(
            m->kernels, m->lane,
            &(struct kernel_embedding_backward){.dtable = tree_at(&tree, p),
                                                .tokens = tokens + first,
                                                .dout = at_byte(dout, first * row),
                                                .seen = m->seen,
                                                .rows = m->block_rows,
                                                .dim = m->s.dim,
                                                .vocab = vocab,
                                                .dtype = m->dtype,
                                                .is_folded = m->folds});
        tree_add(m, &tree, p);
    }
    tree_give(m, name, m->row_blocks);
}

/* Rows of other ranks' tokens are added to an extra row, which is never read. */
static int embedding_weight_by_vocabulary(struct model *m, const struct slot *s, float *dtable)
{
    size_t row = m->s.dim * m->element, count = (size_t)m->vocab * m->s.dim;
    void *all = model_take_bytes(m, "d embedding of all rows", 0, m->rows * row);
    float *table =
        model_take_bytes(m, "d embedding and other rows", 0, (count + m->s.dim) * sizeof(*table));
    int rc = s->is_active ? rows_gather(m, all, s->dx, row) : 0;
    if (rc == 0)
        embedding_weight(m, s, table, s->batch.own_or_other, all, m->vocab + 1);
    if (s->is_active && rc == 0)
        lane_copy(m->lane, dtable, table, count * sizeof(*table));
    model_give(m, "d embedding of all rows", 0);
    model_give(m, "d embedding and other rows", 0);
    return rc;
}

int embedding_backward(struct model *m, uint32_t slot, float *const *dw)
{
    const struct slot *s = &m->slots[slot];
    int rc = 0;
    if (m->cut.tp > 1)
        rc = embedding_weight_by_vocabulary(m, s, dw[0]);
    else
        embedding_weight(m, s, dw[0], s->batch.inputs, s->dx, m->vocab);
    model_note_embedding_backward(m, slot, dw);
    model_give_gradient(m, slot);
    return rc;
}

/* ---- head ---- */

static size_t full_bytes(const struct model *m, uint32_t width)
{
    return (size_t)m->rows * width * m->element;
}

int head_forward(struct model *m, uint32_t slot, const void *const *w)
{
    struct slot *s = &m->slots[slot];
    struct layer_buffers *last = &s->layers[m->s.layers];
    uint32_t index = slot_index(m, slot, 0);
    s->head_norm = model_take_bytes(m, "head norm", index, full_bytes(m, m->s.dim));
    s->head_rstd = model_take_bytes(m, "head rstd", index, m->own_rows * sizeof(float));
    if (!model_has_chunks(m))
        s->logits = model_take_bytes(m, "logits", index, full_bytes(m, m->vocab));
    ERR_TRY(norm_forward(m, s->head_norm, NULL, s->head_rstd, last->x_in, last->carry, w[NORM],
                         s->is_active));
    last->carry = NULL;
    const struct product_column logits = {s->logits, w[OUTPUT], m->vocab, m->blocks, false};
    if (s->is_active && !model_has_chunks(m))
        product_columns(m, s->head_norm, NULL, m->s.dim, &logits, 1);
    model_note_head(m, slot, w);
    return 0;
}

/* d_norm of the head = d_logits w, and dw = d_logits^T norm. */
static int output_backward(struct model *m, uint32_t slot, uint32_t halves, const void *w,
                           float *dw)
{
    const struct slot *s = &m->slots[slot];
    const struct product_term term = {s->logits, w, m->vocab, m->blocks, false, NULL};
    if (model_has_chunks(m)) {
        CHECK(halves == (MODEL_INPUT | MODEL_WEIGHT)); /* program_build makes no other */
        return losses_in_chunks(m, slot, w, dw, true);
    }
    if (halves & MODEL_INPUT)
        ERR_TRY(product_columns_input(m, s->d_head_norm, &term, 1, s->is_active));
    if ((halves & MODEL_WEIGHT) == 0)
        return 0;
    return product_weight(m,
                          &(struct product_weight){.name = "partial output",
                                                   .dw = dw,
                                                   .dout = s->logits,
                                                   .x = s->head_norm,
                                                   .out_dim = m->vocab / m->blocks,
                                                   .in = m->s.dim,
                                                   .dout_is_cut = true,
                                                   .w_blocks = m->blocks,
                                                   .sharers = 1},
                          s->is_active);
}

static void take_head_gradients(struct model *m, uint32_t slot)
{
    struct slot *s = &m->slots[slot];
    model_take_gradient(m, slot);
    s->d_head_norm =
        model_take_bytes(m, "d head norm", slot_index(m, slot, 0), model_stream_bytes(m));
}

int tied_backward(struct model *m, uint32_t slot, uint32_t halves, const void *const *w,
                  float *const *dw)
{
    if (halves & MODEL_INPUT)
        take_head_gradients(m, slot);
    float *to = halves & MODEL_WEIGHT ? dw[0] : NULL;
    ERR_TRY(output_backward(m, slot, halves, halves & MODEL_INPUT ? w[0] : NULL, to));
    model_note_output_backward(m, slot, halves, to);
    return 0;
}

static int norm_half(struct model *m, uint32_t slot, float *dweight, const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    struct norm_gradient norm = {.dx = s->dx,
                                 .dweight = dweight,
                                 .dout = s->d_head_norm,
                                 .x = s->layers[m->s.layers].x_in,
                                 .weight = w[NORM],
                                 .rstd = s->head_rstd};
    if (s->is_active)
        lane_zero(m->lane, s->dx, model_stream_bytes(m));
    return norm_backward(m, &norm, s->is_active);
}

/* If the halves are separate, the final norm's gradient of the weight waits in "d head norm
 * weight". */
int head_backward(struct model *m, uint32_t slot, uint32_t halves, const void *const *w,
                  float *const *dw)
{
    struct slot *s = &m->slots[slot];
    bool is_tied = m->s.is_tied, is_apart = halves != (MODEL_INPUT | MODEL_WEIGHT);
    uint32_t index = slot_index(m, slot, 0);
    size_t bytes = m->s.dim * sizeof(float);
    if (halves == MODEL_INPUT)
        s->d_norm_weight = model_take_bytes(m, "d head norm weight", index, bytes);
    if ((halves & MODEL_INPUT) && !is_tied)
        take_head_gradients(m, slot);
    if (!is_tied) {
        float *to = halves & MODEL_WEIGHT ? dw[OUTPUT] : NULL;
        ERR_TRY(output_backward(m, slot, halves, halves & MODEL_INPUT ? w[OUTPUT] : NULL, to));
        model_note_output_backward(m, slot, halves, to);
    }
    if (halves & MODEL_INPUT) {
        ERR_TRY(norm_half(m, slot, is_apart ? s->d_norm_weight : dw[NORM], w));
        model_note_head_norm_backward(m, slot, halves, is_apart ? NULL : dw[NORM]);
        model_give(m, "head rstd", index);
        model_give(m, "d head norm", index);
        model_give_stream(m, slot, m->s.layers + 1);
    }
    if (halves == MODEL_WEIGHT && s->is_active) {
        lane_copy(m->lane, dw[NORM], s->d_norm_weight, bytes);
        model_note_head_norm_backward(m, slot, halves, dw[NORM]);
    }
    if (halves & MODEL_WEIGHT) {
        if (is_apart)
            model_give(m, "d head norm weight", index);
        if (!model_has_chunks(m))
            model_give(m, "logits", index);
        model_give(m, "head norm", index);
    }
    return 0;
}

/* ---- logits ---- */

static float as_float(const void *values, size_t i, enum kernel_dtype dtype)
{
    if (dtype == KERNEL_F32)
        return ((const float *)values)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

int model_copy_logits(struct model *m, uint32_t slot, float *out_logits)
{
    size_t count = (size_t)m->seq * m->s.vocab;
    struct device *device = m->lane->device;
    void *pinned = NULL;
    CHECK(m->cut.tp == 1 && m->cut.cp == 1);
    if (!m->slots[slot].is_active)
        return 0;
    ERR_TRY(device_alloc(device, &pinned, count * m->element, PINNED));
    lane_copy(m->lane, pinned, m->slots[slot].logits, count * m->element);
    int rc = lane_settle(m->lane);
    for (size_t i = 0; i < count && rc == 0; i++)
        out_logits[i] = as_float(pinned, i, m->dtype);
    device_free(device, pinned);
    return rc;
}
