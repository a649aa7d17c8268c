/* layer.c - one transformer layer: forward, recomputation, backward in two halves.
 *
 * The residual stream is kept once per norm: a projection writes its output to a new buffer, and
 * the following norm adds the stream to it in place, without a copy. After the layer the next
 * block's norm does this addition (`carry`), if this layer keeps the stream at its second norm.
 * Otherwise the layer adds it, with the same bits. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/model/private.h"

#define BIT(number) (1u << (number))
#define ALL_SAVED (BIT(NUM_SAVED) - 1)
/* Buffers that the second half needs. */
#define SAVED_FOR_WEIGHTS \
    (BIT(SAVED_ATTENTION_NORM) | BIT(SAVED_ATTENTION) | BIT(SAVED_FFN_NORM) | BIT(SAVED_SWIGLU))
#define TEMPORARIES_FOR_WEIGHTS                                                              \
    (BIT(TEMPORARY_D_GATE) | BIT(TEMPORARY_D_UP) | BIT(TEMPORARY_D_Q) | BIT(TEMPORARY_D_K) | \
     BIT(TEMPORARY_D_V) | BIT(TEMPORARY_D_OUT) | BIT(TEMPORARY_D_MID) |                      \
     BIT(TEMPORARY_D_NORM_WEIGHTS))
#define TEMPORARIES_FOR_INPUT \
    (BIT(TEMPORARY_D_SWIGLU) | BIT(TEMPORARY_D_NORM) | BIT(TEMPORARY_D_ATTENTION))

static struct layer_buffers *of(const struct model *m, uint32_t slot, uint32_t layer)
{
    return &m->slots[slot].layers[layer];
}

/* ---- forward ---- */

/* Computes queries, keys and values: those of bits `wanted`. */
static int keys_part(struct model *m, uint32_t slot, uint32_t layer, uint32_t wanted,
                     const void *const *w)
{
    struct layer_buffers *l = of(m, slot, layer);
    const struct slot *s = &m->slots[slot];
    void *const *a = l->saved;
    uint32_t heads = m->q_width / m->s.head_dim;
    uint32_t kv_heads = m->kv_width / m->s.head_dim;
    if (wanted & BIT(SAVED_ATTENTION_NORM))
        ERR_TRY(norm_forward(
            m, a[SAVED_ATTENTION_NORM], model_noted(m, slot, layer, NOTED_ATTENTION_NORM),
            a[SAVED_ATTENTION_RSTD], l->x_in, l->carry, w[ATTENTION_NORM], s->is_active));
    if (s->is_active && (wanted & BIT(SAVED_Q))) {
        const struct product_column columns[] = {
            {a[SAVED_Q], w[WQ], m->q_width, m->blocks, model_is_float8(m, layer, WQ)},
            {a[SAVED_K], w[WK], m->kv_width, m->kv_blocks, model_is_float8(m, layer, WK)},
            {a[SAVED_V], w[WV], m->kv_width, m->kv_blocks, model_is_float8(m, layer, WV)}};
        product_columns(m, a[SAVED_ATTENTION_NORM],
                        model_noted(m, slot, layer, NOTED_ATTENTION_NORM), m->s.dim, columns, 3);
        model_note_keys(m, slot, layer, w);
        attention_rotate(m, s, a[SAVED_Q], m->blocks, heads, false);
        attention_rotate(m, s, a[SAVED_K], m->kv_blocks, kv_heads, false);
    }
    return 0;
}

static int attention_part(struct model *m, uint32_t slot, uint32_t layer, uint32_t wanted,
                          bool is_again, const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved;
    ERR_TRY(attention_forward(m, slot, layer, wanted, is_again));
    if (wanted & BIT(SAVED_X_MID))
        ERR_TRY(product_rows(m, a[SAVED_X_MID], a[SAVED_ATTENTION], NULL, w[WO], m->q_width,
                             model_is_float8(m, layer, WO), s->is_active));
    model_note_attention(m, slot, layer, w);
    return 0;
}

static int feed_forward_part(struct model *m, uint32_t slot, uint32_t layer, uint32_t wanted,
                             const void *const *w)
{
    struct layer_buffers *l = of(m, slot, layer);
    const struct slot *s = &m->slots[slot];
    void *const *a = l->saved;
    /* Else it is added already. */
    const void *residual = wanted & BIT(SAVED_X_MID) ? l->x_in : NULL;
    if (wanted & BIT(SAVED_FFN_NORM))
        ERR_TRY(norm_forward(m, a[SAVED_FFN_NORM], model_noted(m, slot, layer, NOTED_FFN_NORM),
                             a[SAVED_FFN_RSTD], a[SAVED_X_MID], residual, w[FFN_NORM],
                             s->is_active));
    if (s->is_active && (wanted & BIT(SAVED_GATE))) {
        const struct product_column columns[] = {
            {a[SAVED_GATE], w[W1], m->hidden, m->blocks, model_is_float8(m, layer, W1)},
            {a[SAVED_UP], w[W3], m->hidden, m->blocks, model_is_float8(m, layer, W3)}};
        product_columns(m, a[SAVED_FFN_NORM], model_noted(m, slot, layer, NOTED_FFN_NORM), m->s.dim,
                        columns, 2);
    }
    if (s->is_active && (wanted & BIT(SAVED_SWIGLU)))
        kernel_swiglu(m->kernels, m->lane,
                      &(struct kernel_swiglu){.out = a[SAVED_SWIGLU],
                                              .gate = a[SAVED_GATE],
                                              .up = a[SAVED_UP],
                                              .largest = model_noted(m, slot, layer, NOTED_SWIGLU),
                                              .count = (size_t)m->rows * m->hidden,
                                              .dtype = m->dtype});
    model_note_feed_forward(m, slot, layer, w);
    return 0;
}

int layer_keys(struct model *m, uint32_t slot, uint32_t layer, bool is_again, const void *const *w)
{
    uint32_t wanted = is_again ? ALL_SAVED & ~model_kept(m, layer) : ALL_SAVED;
    model_take_saved(m, slot, layer, wanted);
    model_take_operands(m, layer, false);
    ERR_TRY(keys_part(m, slot, layer, wanted, w));
    model_give_operands(m, layer, false);
    return 0;
}

int layer_forward(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    uint32_t kept = model_kept(m, layer);
    if (!model_has_ring(m))
        ERR_TRY(layer_keys(m, slot, layer, false, w));
    model_take_operands(m, layer, false);
    void *out = model_take_stream(m, slot, layer + 2);
    void *const *a = of(m, slot, layer)->saved;
    ERR_TRY(attention_part(m, slot, layer, ALL_SAVED, false, w));
    ERR_TRY(feed_forward_part(m, slot, layer, ALL_SAVED, w));
    ERR_TRY(product_rows(m, out, a[SAVED_SWIGLU], model_noted(m, slot, layer, NOTED_SWIGLU), w[W2],
                         m->hidden, model_is_float8(m, layer, W2), m->slots[slot].is_active));
    model_note_down(m, slot, layer, w, out);
    model_give_operands(m, layer, false);
    of(m, slot, layer)->carry = NULL;
    of(m, slot, layer + 1)->carry = a[SAVED_X_MID];
    if ((kept & BIT(SAVED_X_MID)) == 0)
        ERR_TRY(model_close_stream(m, slot, layer + 2));
    model_give_saved(m, slot, layer, ALL_SAVED & ~kept);
    return 0;
}

int layer_recompute(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    uint32_t wanted = ALL_SAVED & ~model_kept(m, layer);
    bool had_keys = model_has_ring(m) && (wanted & BIT(SAVED_K)) != 0; /* OP_KEYS made them */
    /* A recomputed norm writes its statistics again: the same values. */
    if (!had_keys)
        ERR_TRY(layer_keys(m, slot, layer, true, w));
    model_take_operands(m, layer, false);
    ERR_TRY(attention_part(m, slot, layer, wanted, true, w));
    ERR_TRY(feed_forward_part(m, slot, layer, wanted, w));
    model_give_operands(m, layer, false);
    return 0;
}

/* ---- backward ---- */

/* The gradient of the stream as all rows, for the products before it: gathered, copied if it must
 * survive later changes, or in place. */
static int stream_gradient(struct model *m, uint32_t slot, void *copy, bool is_kept,
                           const void **out)
{
    const struct slot *s = &m->slots[slot];
    *out = copy != NULL ? copy : s->dx;
    if (!s->is_active)
        return 0;
    if (m->cut.tp > 1)
        return rows_gather(m, copy, s->dx, m->s.dim * m->element);
    if (is_kept)
        lane_copy(m->lane, copy, s->dx, model_stream_bytes(m));
    return 0;
}

static int backward_norm(struct model *m, uint32_t slot, uint32_t layer, float *dweight,
                         const void *const *w, bool is_attention)
{
    const struct slot *s = &m->slots[slot];
    const struct layer_buffers *l = &s->layers[layer];
    struct norm_gradient norm = {
        .dx = s->dx,
        .dweight = dweight,
        .dout = l->temporary[TEMPORARY_D_NORM],
        .x = is_attention ? l->x_in : l->saved[SAVED_X_MID],
        .weight = w[is_attention ? ATTENTION_NORM : FFN_NORM],
        .rstd = l->saved[is_attention ? SAVED_ATTENTION_RSTD : SAVED_FFN_RSTD]};
    return norm_backward(m, &norm, s->is_active);
}

static int feed_forward_input(struct model *m, uint32_t slot, uint32_t layer, const void *d_out,
                              const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved, *const *t = s->layers[layer].temporary;
    uint32_t *of_d_gate = model_noted(m, slot, layer, NOTED_D_GATE);
    uint32_t *of_d_up = model_noted(m, slot, layer, NOTED_D_UP);
    if (s->is_active) {
        product_rows_input(m, t[TEMPORARY_D_SWIGLU], d_out, w[W2], m->hidden,
                           model_is_float8(m, layer, W2));
        kernel_swiglu_backward(
            m->kernels, m->lane,
            &(struct kernel_swiglu_backward){.dgate = t[TEMPORARY_D_GATE],
                                             .dup = t[TEMPORARY_D_UP],
                                             .dout = t[TEMPORARY_D_SWIGLU],
                                             .gate = a[SAVED_GATE],
                                             .up = a[SAVED_UP],
                                             .largest_dgate = of_d_gate,
                                             .largest_dup = of_d_up,
                                             .count = (size_t)m->rows * m->hidden,
                                             .dtype = m->dtype});
    }
    const struct product_term terms[] = {
        {t[TEMPORARY_D_GATE], w[W1], m->hidden, m->blocks, model_is_float8(m, layer, W1),
         of_d_gate},
        {t[TEMPORARY_D_UP], w[W3], m->hidden, m->blocks, model_is_float8(m, layer, W3), of_d_up}};
    return product_columns_input(m, t[TEMPORARY_D_NORM], terms, 2, s->is_active);
}

static int attention_input(struct model *m, uint32_t slot, uint32_t layer, const void *d_mid,
                           const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    void *const *t = s->layers[layer].temporary;
    uint32_t heads = m->q_width / m->s.head_dim, d_kv_heads = m->d_kv_width / m->s.head_dim;
    if (s->is_active)
        product_rows_input(m, t[TEMPORARY_D_ATTENTION], d_mid, w[WO], m->q_width,
                           model_is_float8(m, layer, WO));
    ERR_TRY(attention_backward(m, slot, layer));
    if (s->is_active) {
        attention_rotate(m, s, t[TEMPORARY_D_Q], m->blocks, heads, true);
        attention_rotate(m, s, t[TEMPORARY_D_K], m->blocks, d_kv_heads, true);
    }
    const struct product_term terms[] = {
        {t[TEMPORARY_D_Q], w[WQ], m->q_width, m->blocks, model_is_float8(m, layer, WQ), NULL},
        {t[TEMPORARY_D_K], w[WK], m->d_kv_width, m->kv_blocks, model_is_float8(m, layer, WK), NULL},
        {t[TEMPORARY_D_V], w[WV], m->d_kv_width, m->kv_blocks, model_is_float8(m, layer, WV),
         NULL}};
    return product_columns_input(m, t[TEMPORARY_D_NORM], terms, 3, s->is_active);
}

/* dw of products by columns of the normalized rows x: their outputs are cut. is_packed, here and
 * below: the other half has made the float8 copies of the gradients. */
static int columns_weights(struct model *m, const struct slot *s, const void *x,
                           const uint32_t *largest, struct product_weight *a, uint32_t num,
                           bool is_packed)
{
    for (uint32_t i = 0; i < num; i++) {
        a[i].x = x;
        a[i].largest_x = largest;
        a[i].in = m->s.dim;
        a[i].out_dim /= m->blocks;
        a[i].dout_is_cut = true;
        a[i].dout_operand = (enum operand)(OPERAND_D_FIRST + i);
        a[i].dout_was_read = is_packed;
        a[i].w_blocks = a[i].w_blocks > 0 ? a[i].w_blocks : m->blocks;
        a[i].sharers = a[i].sharers > 0 ? a[i].sharers : 1;
        a[i].x_was_read = i > 0 && (a[i - 1].x_was_read || a[i - 1].is_float8);
    }
    return product_weights(m, a, num, s->is_active);
}

/* dw of a product by rows: its input is cut. */
static int rows_weight(struct model *m, const struct slot *s, struct product_weight a,
                       bool is_packed)
{
    a.dout_operand = OPERAND_D_ROWS;
    a.dout_was_read = is_packed;
    a.out_dim = m->s.dim;
    a.in /= m->blocks;
    a.x_is_cut = true;
    a.w_blocks = m->blocks;
    a.sharers = 1;
    return product_weight(m, &a, s->is_active);
}

static int feed_forward_weights(struct model *m, uint32_t slot, uint32_t layer, const void *d_out,
                                bool is_packed, float *const *dw)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved, *const *t = s->layers[layer].temporary;
    const struct product_weight w2 = {.name = "partial w2",
                                      .dw = dw[W2],
                                      .dout = d_out,
                                      .x = a[SAVED_SWIGLU],
                                      .largest_x = model_noted(m, slot, layer, NOTED_SWIGLU),
                                      .in = m->hidden,
                                      .is_float8 = model_is_float8(m, layer, W2)};
    struct product_weight columns[] = {{.name = "partial w1",
                                        .dw = dw[W1],
                                        .dout = t[TEMPORARY_D_GATE],
                                        .largest_dout = model_noted(m, slot, layer, NOTED_D_GATE),
                                        .out_dim = m->hidden,
                                        .is_float8 = model_is_float8(m, layer, W1)},
                                       {.name = "partial w3",
                                        .dw = dw[W3],
                                        .dout = t[TEMPORARY_D_UP],
                                        .largest_dout = model_noted(m, slot, layer, NOTED_D_UP),
                                        .out_dim = m->hidden,
                                        .is_float8 = model_is_float8(m, layer, W3)}};
    ERR_TRY(rows_weight(m, s, w2, is_packed));
    return columns_weights(m, s, a[SAVED_FFN_NORM], model_noted(m, slot, layer, NOTED_FFN_NORM),
                           columns, 2, is_packed);
}

static int attention_weights(struct model *m, uint32_t slot, uint32_t layer, const void *d_mid,
                             bool is_packed, float *const *dw)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved, *const *t = s->layers[layer].temporary;
    const struct product_weight wo = {.name = "partial wo",
                                      .dw = dw[WO],
                                      .dout = d_mid,
                                      .x = a[SAVED_ATTENTION],
                                      .in = m->q_width,
                                      .is_float8 = model_is_float8(m, layer, WO)};
    uint32_t sharers = m->cut.tp > m->s.kv_heads ? m->cut.tp / m->s.kv_heads : 1;
    struct product_weight columns[] = {{.name = "partial wq",
                                        .dw = dw[WQ],
                                        .dout = t[TEMPORARY_D_Q],
                                        .out_dim = m->q_width,
                                        .is_float8 = model_is_float8(m, layer, WQ)},
                                       {.name = "partial wk",
                                        .shared_name = "partial shared wk",
                                        .dw = dw[WK],
                                        .dout = t[TEMPORARY_D_K],
                                        .out_dim = m->d_kv_width,
                                        .w_blocks = m->kv_blocks,
                                        .sharers = sharers,
                                        .is_float8 = model_is_float8(m, layer, WK)},
                                       {.name = "partial wv",
                                        .shared_name = "partial shared wv",
                                        .dw = dw[WV],
                                        .dout = t[TEMPORARY_D_V],
                                        .out_dim = m->d_kv_width,
                                        .w_blocks = m->kv_blocks,
                                        .sharers = sharers,
                                        .is_float8 = model_is_float8(m, layer, WV)}};
    ERR_TRY(rows_weight(m, s, wo, is_packed));
    return columns_weights(m, s, a[SAVED_ATTENTION_NORM],
                           model_noted(m, slot, layer, NOTED_ATTENTION_NORM), columns, 3,
                           is_packed);
}

/* The buffers that hold the gradient of the stream for the halves. */
static uint32_t stream_copies(const struct model *m, uint32_t halves)
{
    bool is_apart = halves != (MODEL_INPUT | MODEL_WEIGHT);
    return m->cut.tp > 1 || is_apart ? BIT(TEMPORARY_D_OUT) | BIT(TEMPORARY_D_MID) : 0;
}

/* Both halves at once: a temporary is free when both have used it. */
static int backward_together(struct model *m, uint32_t slot, uint32_t layer, uint32_t halves,
                             const void *const *w, float *const *dw)
{
    void *const *t = of(m, slot, layer)->temporary;
    uint32_t copies = stream_copies(m, halves);
    bool is_apart = halves != (MODEL_INPUT | MODEL_WEIGHT);
    void *out_copy = copies != 0 ? t[TEMPORARY_D_OUT] : NULL;
    void *mid_copy = copies != 0 ? t[TEMPORARY_D_MID] : NULL;
    float *kept = is_apart ? t[TEMPORARY_D_NORM_WEIGHTS] : NULL;
    float *ffn_norm = is_apart ? kept : dw[FFN_NORM];
    float *attention_norm = !is_apart ? dw[ATTENTION_NORM] : kept != NULL ? kept + m->s.dim : NULL;
    float *const *noted = is_apart ? NULL : dw;
    const void *d_out, *d_mid;
    ERR_TRY(stream_gradient(m, slot, out_copy, is_apart, &d_out));
    ERR_TRY(feed_forward_input(m, slot, layer, d_out, w));
    if (!is_apart)
        ERR_TRY(feed_forward_weights(m, slot, layer, d_out, true, dw));
    model_note_feed_forward_backward(m, slot, layer, d_out, noted);
    ERR_TRY(backward_norm(m, slot, layer, ffn_norm, w, false));
    model_note_norm_backward(m, slot, layer, false, noted);
    ERR_TRY(stream_gradient(m, slot, mid_copy, is_apart, &d_mid));
    ERR_TRY(attention_input(m, slot, layer, d_mid, w));
    if (!is_apart)
        ERR_TRY(attention_weights(m, slot, layer, d_mid, true, dw));
    model_note_attention_backward(m, slot, layer, d_mid, noted);
    ERR_TRY(backward_norm(m, slot, layer, attention_norm, w, true));
    model_note_norm_backward(m, slot, layer, true, noted);
    return 0;
}

static int backward_weights(struct model *m, uint32_t slot, uint32_t layer, float *const *dw)
{
    void *const *t = of(m, slot, layer)->temporary;
    const float *kept = t[TEMPORARY_D_NORM_WEIGHTS];
    size_t c = m->s.dim;
    if (m->slots[slot].is_active) {
        lane_copy(m->lane, dw[FFN_NORM], kept, c * sizeof(float));
        lane_copy(m->lane, dw[ATTENTION_NORM], kept + c, c * sizeof(float));
    }
    ERR_TRY(feed_forward_weights(m, slot, layer, t[TEMPORARY_D_OUT], false, dw));
    ERR_TRY(attention_weights(m, slot, layer, t[TEMPORARY_D_MID], false, dw));
    model_note_weights(m, slot, layer, dw);
    return 0;
}

int layer_backward(struct model *m, uint32_t slot, uint32_t layer, uint32_t halves,
                   const void *const *w, float *const *dw)
{
    bool is_apart = halves != (MODEL_INPUT | MODEL_WEIGHT);
    uint32_t for_weights = TEMPORARIES_FOR_WEIGHTS & ~(BIT(TEMPORARY_D_OUT) | BIT(TEMPORARY_D_MID) |
                                                       BIT(TEMPORARY_D_NORM_WEIGHTS));
    for_weights |= stream_copies(m, halves) | (is_apart ? BIT(TEMPORARY_D_NORM_WEIGHTS) : 0);
    model_take_operands(m, layer, true);
    if (halves & MODEL_INPUT) {
        model_take_temporaries(m, slot, layer, for_weights | TEMPORARIES_FOR_INPUT);
        ERR_TRY(backward_together(m, slot, layer, halves, w, dw));
        model_give_temporaries(m, slot, layer, TEMPORARIES_FOR_INPUT);
        model_give_saved(m, slot, layer, ALL_SAVED & ~SAVED_FOR_WEIGHTS);
        model_give_stream(m, slot, layer + 1);
    } else {
        ERR_TRY(backward_weights(m, slot, layer, dw));
    }
    model_give_operands(m, layer, true);
    if (halves & MODEL_WEIGHT) {
        model_give_temporaries(m, slot, layer, for_weights);
        model_give_saved(m, slot, layer, SAVED_FOR_WEIGHTS);
    }
    return 0;
}
