/* notes.c - the range of the numbers that modules read and write (debug.watch_numbers).
 *
 * While a buffer holds numbers that a module read or wrote, an operation of the lane finds their
 * extremes. It changes no value. Without a watch nothing is posted. Recomputed numbers are not
 * noted again. Weights that arrive as float8 codes are not noted, nor are logits that exist only in
 * chunks. */
#include "proto/base/report.h"
#include "trainer/model/private.h"

#include <stdio.h>
#include <string.h>

void model_watch(struct model *m, struct model_notes *notes)
{
    m->notes = notes;
    if (notes != NULL)
        notes->num = 0;
}

static bool is_watched(const struct model *m, uint32_t slot)
{
    return m->notes != NULL && m->slots[slot].is_active;
}

static void note(struct model *m, const char *module, const char *what, const void *x, size_t count,
                 enum kernel_dtype dtype)
{
    struct model_notes *notes = m->notes;
    CHECK(notes->num < MODEL_NOTES_MAX);
    struct model_note *to = &notes->of[notes->num];
    snprintf(to->module, sizeof(to->module), "%s", module);
    to->what = what;
    kernel_extremes(
        m->kernels, m->lane,
        &(struct kernel_extremes){
            .out = &notes->extents[notes->num], .x = x, .count = count, .dtype = dtype});
    notes->num++;
}

/* The module of a tensor of the block. A tied output's matrix is not in the block. */
static const char *module_of(char out[64], const struct model *m, uint32_t block, uint32_t tensor)
{
    uint32_t first, num = model_block_tensors(m->table, block, &first);
    const char *name = tensor < num ? m->table->tensors[first + tensor].name : "output.weight";
    snprintf(out, 64, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    return out;
}

static size_t weight_count(const struct model *m, uint32_t tensor)
{
    const size_t rows[NUM_LAYER_TENSORS] = {
        [WQ] = m->q_width, [WK] = m->kv_width,   [WV] = m->kv_width,
        [WO] = m->q_width, [W1] = m->hidden,     [W2] = m->hidden,
        [W3] = m->hidden,  [ATTENTION_NORM] = 1, [FFN_NORM] = 1};
    return rows[tensor] * m->s.dim;
}

/* An input or output of a module, of the compute dtype; x NULL: nothing is noted. */
struct side {
    const void *x;
    size_t count;
};

static void note_sides(struct model *m, const char *module, bool is_backward, struct side first,
                       struct side second)
{
    static const char *const names[2][2] = {{"input", "output"},
                                            {"gradient of output", "gradient of input"}};
    if (first.x != NULL)
        note(m, module, names[is_backward][0], first.x, first.count, m->dtype);
    if (second.x != NULL)
        note(m, module, names[is_backward][1], second.x, second.count, m->dtype);
}

static void note_weight_gradient(struct model *m, const char *module, const float *dw, size_t count)
{
    if (dw != NULL)
        note(m, module, "gradient of weight", dw, count, KERNEL_F32);
}

static struct side stream_of(const struct model *m, const void *x)
{
    return (struct side){x, (size_t)m->own_rows * m->s.dim};
}

static struct side rows_of(const struct model *m, const void *x, size_t width)
{
    return (struct side){x, m->rows * width};
}

/* ---- layers ---- */

static void forward(struct model *m, uint32_t layer, uint32_t tensor, const void *const *w,
                    struct side in, struct side out)
{
    char module[64];
    module_of(module, m, layer + 1, tensor);
    if (!m->has_codes || tensor > W3 || !model_is_float8(m, layer, tensor))
        note(m, module, "weight", w[tensor], weight_count(m, tensor), m->dtype);
    note_sides(m, module, false, in, out);
}

/* dw NULL: the other half makes them. */
static void backward(struct model *m, uint32_t layer, uint32_t tensor, float *const *dw,
                     struct side d_out, struct side d_in)
{
    char module[64];
    module_of(module, m, layer + 1, tensor);
    note_sides(m, module, true, d_out, d_in);
    if (dw != NULL)
        note_weight_gradient(m, module, dw[tensor], weight_count(m, tensor));
}

void model_note_keys(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    const struct layer_buffers *l = &m->slots[slot].layers[layer];
    if (!is_watched(m, slot))
        return;
    struct side norm = rows_of(m, l->saved[SAVED_ATTENTION_NORM], m->s.dim);
    forward(m, layer, ATTENTION_NORM, w, stream_of(m, l->x_in), norm);
    forward(m, layer, WQ, w, norm, rows_of(m, l->saved[SAVED_Q], m->q_width));
    forward(m, layer, WK, w, norm, rows_of(m, l->saved[SAVED_K], m->kv_width));
    forward(m, layer, WV, w, norm, rows_of(m, l->saved[SAVED_V], m->kv_width));
}

void model_note_attention(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    void *const *a = m->slots[slot].layers[layer].saved;
    struct side out = rows_of(m, a[SAVED_ATTENTION], m->q_width);
    char module[64];
    if (!is_watched(m, slot))
        return;
    snprintf(module, sizeof(module), "layers.%u.attention", layer);
    note(m, module, "query", a[SAVED_Q], (size_t)m->rows * m->q_width, m->dtype);
    note(m, module, "key", a[SAVED_K], (size_t)m->rows * m->kv_width, m->dtype);
    note(m, module, "value", a[SAVED_V], (size_t)m->rows * m->kv_width, m->dtype);
    note_sides(m, module, false, (struct side){0}, out);
    forward(m, layer, WO, w, out, stream_of(m, a[SAVED_X_MID]));
}

void model_note_feed_forward(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    void *const *a = m->slots[slot].layers[layer].saved;
    struct side norm = rows_of(m, a[SAVED_FFN_NORM], m->s.dim);
    if (!is_watched(m, slot))
        return;
    forward(m, layer, FFN_NORM, w, stream_of(m, a[SAVED_X_MID]), norm);
    forward(m, layer, W1, w, norm, rows_of(m, a[SAVED_GATE], m->hidden));
    forward(m, layer, W3, w, norm, rows_of(m, a[SAVED_UP], m->hidden));
}

void model_note_down(struct model *m, uint32_t slot, uint32_t layer, const void *const *w,
                     const void *out)
{
    void *const *a = m->slots[slot].layers[layer].saved;
    if (is_watched(m, slot))
        forward(m, layer, W2, w, rows_of(m, a[SAVED_SWIGLU], m->hidden), stream_of(m, out));
}

void model_note_feed_forward_backward(struct model *m, uint32_t slot, uint32_t layer,
                                      const void *d_out, float *const *dw)
{
    void *const *t = m->slots[slot].layers[layer].temporary;
    const struct side none = {0};
    if (!is_watched(m, slot))
        return;
    backward(m, layer, W2, dw, rows_of(m, d_out, m->s.dim),
             rows_of(m, t[TEMPORARY_D_SWIGLU], m->hidden));
    backward(m, layer, W1, dw, rows_of(m, t[TEMPORARY_D_GATE], m->hidden), none);
    backward(m, layer, W3, dw, rows_of(m, t[TEMPORARY_D_UP], m->hidden), none);
}

void model_note_attention_backward(struct model *m, uint32_t slot, uint32_t layer,
                                   const void *d_mid, float *const *dw)
{
    void *const *t = m->slots[slot].layers[layer].temporary;
    const struct side none = {0};
    if (!is_watched(m, slot))
        return;
    backward(m, layer, WO, dw, rows_of(m, d_mid, m->s.dim),
             rows_of(m, t[TEMPORARY_D_ATTENTION], m->q_width));
    backward(m, layer, WQ, dw, rows_of(m, t[TEMPORARY_D_Q], m->q_width), none);
    backward(m, layer, WK, dw, rows_of(m, t[TEMPORARY_D_K], m->d_kv_width), none);
    backward(m, layer, WV, dw, rows_of(m, t[TEMPORARY_D_V], m->d_kv_width), none);
}

void model_note_norm_backward(struct model *m, uint32_t slot, uint32_t layer, bool is_attention,
                              float *const *dw)
{
    const struct slot *s = &m->slots[slot];
    if (is_watched(m, slot))
        backward(m, layer, is_attention ? ATTENTION_NORM : FFN_NORM, dw,
                 stream_of(m, s->layers[layer].temporary[TEMPORARY_D_NORM]), stream_of(m, s->dx));
}

void model_note_weights(struct model *m, uint32_t slot, uint32_t layer, float *const *dw)
{
    static const uint8_t order[NUM_LAYER_TENSORS] = {W2, W1, W3, FFN_NORM,      WO,
                                                     WQ, WK, WV, ATTENTION_NORM};
    const struct side none = {0};
    for (uint32_t i = 0; i < NUM_LAYER_TENSORS && is_watched(m, slot); i++)
        backward(m, layer, order[i], dw, none, none);
}

/* ---- the ends ---- */

void model_note_embedding(struct model *m, uint32_t slot, const void *const *w, const void *out)
{
    if (!is_watched(m, slot))
        return;
    note(m, "tok_embeddings", "weight", w[0], (size_t)m->vocab * m->s.dim, m->dtype);
    note_sides(m, "tok_embeddings", false, (struct side){0}, stream_of(m, out));
}

void model_note_embedding_backward(struct model *m, uint32_t slot, float *const *dw)
{
    if (!is_watched(m, slot))
        return;
    note_sides(m, "tok_embeddings", true, stream_of(m, m->slots[slot].dx), (struct side){0});
    note_weight_gradient(m, "tok_embeddings", dw[0], (size_t)m->vocab * m->s.dim);
}

static struct side logits_of(const struct model *m, const struct slot *s)
{
    return rows_of(m, model_has_chunks(m) ? NULL : s->logits, m->vocab);
}

void model_note_head(struct model *m, uint32_t slot, const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    struct side norm = rows_of(m, s->head_norm, m->s.dim);
    if (!is_watched(m, slot))
        return;
    note(m, "norm", "weight", w[NORM], m->s.dim, m->dtype);
    note_sides(m, "norm", false, stream_of(m, s->layers[m->s.layers].x_in), norm);
    note(m, "output", "weight", w[OUTPUT], (size_t)m->vocab * m->s.dim, m->dtype);
    note_sides(m, "output", false, norm, logits_of(m, s));
}

void model_note_loss(struct model *m, uint32_t slot)
{
    if (is_watched(m, slot))
        note(m, "loss", "output", m->slots[slot].losses, m->rows, KERNEL_F32);
}

void model_note_output_backward(struct model *m, uint32_t slot, uint32_t halves, const float *dw)
{
    const struct slot *s = &m->slots[slot];
    const struct side none = {0};
    bool has_input = (halves & MODEL_INPUT) != 0;
    if (!is_watched(m, slot))
        return;
    note_sides(m, "output", true, has_input ? logits_of(m, s) : none,
               has_input ? stream_of(m, s->d_head_norm) : none);
    note_weight_gradient(m, "output", dw, (size_t)m->vocab * m->s.dim);
}

void model_note_head_norm_backward(struct model *m, uint32_t slot, uint32_t halves, const float *dw)
{
    const struct slot *s = &m->slots[slot];
    const struct side none = {0};
    bool has_input = (halves & MODEL_INPUT) != 0;
    if (!is_watched(m, slot))
        return;
    note_sides(m, "norm", true, has_input ? stream_of(m, s->d_head_norm) : none,
               has_input ? stream_of(m, s->dx) : none);
    note_weight_gradient(m, "norm", dw, m->s.dim);
}
