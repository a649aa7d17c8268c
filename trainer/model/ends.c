/* ends.c - the two ends of the model: the embedding, and the final norm with the output projection
 * and the loss. */
#include "proto/report.h"
#include "trainer/model/private.h"

#include <string.h>

/* ---- embedding ---- */

int embedding_forward(struct model *m, uint32_t slot, const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    void *out = model_take_stream(m, slot, 1);
    if (s->is_active)
        kernel_embedding(m->kernels, m->lane,
                         &(struct kernel_embedding){.out = out,
                                                    .tokens = s->batch.inputs,
                                                    .table = w[0],
                                                    .rows = m->rows,
                                                    .dim = m->s.dim,
                                                    .dtype = m->dtype});
    return 0;
}

int embedding_backward(struct model *m, uint32_t slot, float *const *dw)
{
    const struct slot *s = &m->slots[slot];
    if (s->is_active)
        kernel_embedding_backward(m->kernels, m->lane,
                                  &(struct kernel_embedding_backward){.dtable = dw[0],
                                                                      .tokens = s->batch.inputs,
                                                                      .dout = s->dx,
                                                                      .rows = m->rows,
                                                                      .dim = m->s.dim,
                                                                      .vocab = m->vocab,
                                                                      .dtype = m->dtype});
    model_give_gradient(m, slot);
    return 0;
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
    s->logits = model_take_bytes(m, "logits", index, full_bytes(m, m->vocab));
    ERR_TRY(norm_forward(m, s->head_norm, s->head_rstd, last->x_in, last->carry, w[NORM],
                         s->is_active));
    last->carry = NULL;
    if (s->is_active)
        product_columns(m, s->logits, s->head_norm, w[OUTPUT], m->s.dim, m->vocab, m->blocks);
    return 0;
}

static void sum_sequences(const struct model *m, const float *losses, double *out)
{
    for (uint32_t b = 0; b < m->batch; b++) {
        out[b] = 0;
        for (uint32_t t = 0; t < m->seq; t++)
            out[b] += losses[(size_t)b * m->seq + t];
    }
}

int model_loss(struct model *m, uint32_t slot, double *out_loss)
{
    const struct slot *s = &m->slots[slot];
    uint32_t index = slot_index(m, slot, 0);
    float *losses = model_take_bytes(m, "losses", index, m->rows * sizeof(float));
    *out_loss = 0;
    if (s->is_active) {
        kernel_cross_entropy(m->kernels, m->lane,
                             &(struct kernel_cross_entropy){.losses = losses,
                                                            .logits = s->logits,
                                                            .targets = s->batch.targets,
                                                            .rows = m->rows,
                                                            .vocab = m->s.vocab,
                                                            .scale = &s->batch.loss_scale,
                                                            .dtype = m->dtype});
        for (uint32_t i = 0; i < m->rows; i++)
            *out_loss += losses[i];
        if (s->batch.sequence_losses != NULL)
            sum_sequences(m, losses, s->batch.sequence_losses);
    }
    model_give(m, "losses", index);
    return 0;
}

/* d_norm of the head = d_logits w, and dw = d_logits^T norm. */
static int output_backward(struct model *m, uint32_t slot, uint32_t halves, const void *w,
                           float *dw)
{
    const struct slot *s = &m->slots[slot];
    const struct product_term term = {s->logits, w, m->vocab, m->blocks};
    if (halves & MODEL_INPUT)
        ERR_TRY(product_columns_input(m, s->d_head_norm, &term, 1, s->is_active));
    if ((halves & MODEL_WEIGHT) == 0)
        return 0;
    return product_weight(m,
                          &(struct product_weight){.dw = dw,
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
    return output_backward(m, slot, halves, halves & MODEL_INPUT ? w[0] : NULL,
                           halves & MODEL_WEIGHT ? dw[0] : NULL);
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
        memset(s->dx, 0, model_stream_bytes(m));
    return norm_backward(m, &norm, s->is_active);
}

/* The weight of the final norm waits in "d head norm weight" where the halves are apart. */
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
    if (!is_tied)
        ERR_TRY(output_backward(m, slot, halves, halves & MODEL_INPUT ? w[OUTPUT] : NULL,
                                halves & MODEL_WEIGHT ? dw[OUTPUT] : NULL));
    if (halves & MODEL_INPUT) {
        ERR_TRY(norm_half(m, slot, is_apart ? s->d_norm_weight : dw[NORM], w));
        model_give(m, "head rstd", index);
        model_give(m, "d head norm", index);
        model_give_stream(m, slot, m->s.layers + 1);
    }
    if (halves == MODEL_WEIGHT && s->is_active)
        memcpy(dw[NORM], s->d_norm_weight, bytes);
    if (halves & MODEL_WEIGHT) {
        if (is_apart)
            model_give(m, "d head norm weight", index);
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

void model_copy_logits(struct model *m, uint32_t slot, float *out_logits)
{
    size_t count = (size_t)m->seq * m->s.vocab;
    CHECK(m->cut.tp == 1 && m->cut.cp == 1);
    for (size_t i = 0; i < count && m->slots[slot].is_active; i++)
        out_logits[i] = as_float(m->slots[slot].logits, i, m->dtype);
}
