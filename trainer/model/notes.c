/* notes.c - the range of the numbers that modules read and write (debug.watch_numbers).
 *
 * While a buffer holds numbers that a module read or wrote, an operation of the lane finds their
 * extremes. It changes no value. Without a watch nothing is posted. Recomputed numbers are not
 * noted again. Weights that arrive as float8 codes are not noted, nor are logits that exist only in
 * chunks.
 *
 * By samples. Sequences of a batch meet only in gradients of weights. So each part of a sequence in
 * a tensor's rows has extremes of its own: [blocks][chunks][B, positions of a chunk], cut by tensor
 * parallel if it has own rows. A tensor whose rows are no multiples of 16 bytes is noted as a
 * whole. The squares of the gradient that reaches the embedding are summed for each sequence. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/model/private.h"

#include <stdio.h>
#include <string.h>

void model_watch(struct model *m, struct model_notes *notes)
{
    m->notes = notes;
    if (notes == NULL)
        return;
    notes->num = notes->num_extents = 0;
    notes->has_squares = false;
}

static uint32_t num_parts(const struct model *m)
{
    return model_num_chunks(&m->cut) * m->batch;
}

uint32_t model_note_parts(const struct model *m)
{
    return num_parts(m) * m->blocks;
}

uint32_t model_note_extents(const struct model *m)
{
    return MODEL_NOTES_MAX * model_note_parts(m);
}

static bool is_watched(const struct model *m, uint32_t slot)
{
    return m->notes != NULL && m->slots[slot].is_active;
}

/* A tensor of activations; x NULL: nothing is noted. */
struct side {
    const void *x; /* [blocks][rows, width]; rows: this rank's, or its own */
    uint32_t rows, blocks;
    size_t width;
    enum kernel_dtype dtype;
};

static size_t row_bytes(struct side side)
{
    return side.width * kernel_dtype_bytes(side.dtype);
}

static void begin_note(struct model *m, const char *module, const char *what)
{
    struct model_notes *notes = m->notes;
    CHECK(notes->num < MODEL_NOTES_MAX);
    struct model_note *to = &notes->of[notes->num++];
    *to = (struct model_note){.what = what, .first = notes->num_extents};
    snprintf(to->module, sizeof(to->module), "%s", module);
}

/* Adds an extent to the newest note. */
static void post(struct model *m, uint32_t sample, const void *x, size_t count,
                 enum kernel_dtype dtype)
{
    struct model_notes *notes = m->notes;
    uint32_t at = notes->num_extents++;
    notes->of[notes->num - 1].num++;
    if (notes->samples != NULL)
        notes->samples[at] = sample;
    kernel_extremes(m->kernels, m->lane,
                    &(struct kernel_extremes){
                        .out = &notes->extents[at], .x = x, .count = count, .dtype = dtype});
}

/* Rows of one sequence in a block of a tensor. */
struct span {
    uint32_t first, num;
};

/* Part `i` in a tensor of `rows` rows: all of this rank, or its own, a tp-th of each cp block. */
static struct span span_of(const struct model *m, uint32_t rows, uint32_t i)
{
    uint32_t length = model_chunk_length(&m->cut, m->seq), first = i * length;
    if (rows == m->rows)
        return (struct span){first, length};
    uint32_t block = first / m->block_rows, own = m->block_rows / m->cut.tp;
    uint32_t start = block * m->block_rows + m->cut.tp_place * own;
    uint32_t from = first > start ? first : start;
    uint32_t to = first + length < start + own ? first + length : start + own;
    return (struct span){block * own + from - start, to > from ? to - from : 0};
}

/* A GPU reads 16 bytes at once, so each part must begin at a multiple of them. */
static bool has_aligned_parts(const struct model *m, struct side side)
{
    size_t part = row_bytes(side) * model_chunk_length(&m->cut, m->seq);
    return row_bytes(side) % 16 == 0 || (side.width == 1 && part % 16 == 0);
}

static void note_rows(struct model *m, const char *module, const char *what, struct side side)
{
    uint32_t num = num_parts(m);
    if (side.x == NULL)
        return;
    begin_note(m, module, what);
    if (m->notes->samples == NULL || !has_aligned_parts(m, side)) {
        post(m, MODEL_NO_SAMPLE, side.x, side.blocks * side.rows * side.width, side.dtype);
        return;
    }
    for (uint32_t i = 0; i < side.blocks * num; i++) {
        struct span span = span_of(m, side.rows, i % num);
        size_t first = (size_t)(i / num) * side.rows + span.first;
        if (span.num > 0)
            post(m, i % m->batch, at_byte(side.x, first * row_bytes(side)), span.num * side.width,
                 side.dtype);
    }
}

/* Weights, or their gradients. */
static void note_weights(struct model *m, const char *module, const char *what, const void *x,
                         size_t count, enum kernel_dtype dtype)
{
    begin_note(m, module, what);
    post(m, MODEL_NO_SAMPLE, x, count, dtype);
}

/* Sums the squares of a gradient of this rank's own rows. */
static void note_squares(struct model *m, struct side side)
{
    struct model_notes *notes = m->notes;
    uint32_t num = num_parts(m);
    for (uint32_t i = 0; i < num; i++) {
        struct span span = span_of(m, side.rows, i);
        notes->host_pieces[i] =
            (struct kernel_squares_piece){.x = at_byte(side.x, span.first * row_bytes(side)),
                                          .width = side.width,
                                          .end = span.num};
    }
    lane_copy(m->lane, notes->pieces, notes->host_pieces, num * sizeof(*notes->pieces));
    lane_zero(m->lane, notes->squares, m->batch * sizeof(*notes->squares));
    for (uint32_t i = 0; i < num; i++)
        if (notes->host_pieces[i].end > 0)
            kernel_sum_squares(m->kernels, m->lane,
                               &(struct kernel_sum_squares){.sum = &notes->squares[i % m->batch],
                                                            .pieces = &notes->pieces[i],
                                                            .rows = notes->host_pieces[i].end,
                                                            .num = 1,
                                                            .dtype = side.dtype});
    notes->has_squares = true;
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

static void note_sides(struct model *m, const char *module, bool is_backward, struct side first,
                       struct side second)
{
    static const char *const names[2][2] = {{"input", "output"},
                                            {"gradient of output", "gradient of input"}};
    note_rows(m, module, names[is_backward][0], first);
    note_rows(m, module, names[is_backward][1], second);
}

static void note_weight_gradient(struct model *m, const char *module, const float *dw, size_t count)
{
    if (dw != NULL)
        note_weights(m, module, "gradient of weight", dw, count, KERNEL_F32);
}

/* Columns that tensor parallel cuts: `width` of this rank. */
static struct side columns_of(const struct model *m, const void *x, size_t width, uint32_t blocks)
{
    return (struct side){x, m->rows, blocks, width / blocks, m->dtype};
}

static struct side rows_of(const struct model *m, const void *x)
{
    return columns_of(m, x, m->s.dim, 1);
}

static struct side stream_of(const struct model *m, const void *x)
{
    return (struct side){x, m->own_rows, 1, m->s.dim, m->dtype};
}

static struct side hidden_of(const struct model *m, const void *x)
{
    return columns_of(m, x, m->hidden, m->blocks);
}

static struct side queries_of(const struct model *m, const void *x)
{
    return columns_of(m, x, m->q_width, m->blocks);
}

static struct side keys_of(const struct model *m, const void *x)
{
    return columns_of(m, x, m->kv_width, m->kv_blocks);
}

static struct side d_keys_of(const struct model *m, const void *x)
{
    return columns_of(m, x, m->d_kv_width, m->blocks);
}

/* ---- layers ---- */

static void forward(struct model *m, uint32_t layer, uint32_t tensor, const void *const *w,
                    struct side in, struct side out)
{
    char module[64];
    module_of(module, m, layer + 1, tensor);
    if (!m->has_codes || tensor > W3 || !model_is_float8(m, layer, tensor))
        note_weights(m, module, "weight", w[tensor], weight_count(m, tensor), m->dtype);
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
    struct side norm = rows_of(m, l->saved[SAVED_ATTENTION_NORM]);
    forward(m, layer, ATTENTION_NORM, w, stream_of(m, l->x_in), norm);
    forward(m, layer, WQ, w, norm, queries_of(m, l->saved[SAVED_Q]));
    forward(m, layer, WK, w, norm, keys_of(m, l->saved[SAVED_K]));
    forward(m, layer, WV, w, norm, keys_of(m, l->saved[SAVED_V]));
}

void model_note_attention(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    void *const *a = m->slots[slot].layers[layer].saved;
    struct side out = queries_of(m, a[SAVED_ATTENTION]);
    char module[64];
    if (!is_watched(m, slot))
        return;
    snprintf(module, sizeof(module), "layers.%u.attention", layer);
    note_rows(m, module, "query", queries_of(m, a[SAVED_Q]));
    note_rows(m, module, "key", keys_of(m, a[SAVED_K]));
    note_rows(m, module, "value", keys_of(m, a[SAVED_V]));
    note_sides(m, module, false, (struct side){0}, out);
    forward(m, layer, WO, w, out, stream_of(m, a[SAVED_X_MID]));
}

void model_note_feed_forward(struct model *m, uint32_t slot, uint32_t layer, const void *const *w)
{
    void *const *a = m->slots[slot].layers[layer].saved;
    struct side norm = rows_of(m, a[SAVED_FFN_NORM]);
    if (!is_watched(m, slot))
        return;
    forward(m, layer, FFN_NORM, w, stream_of(m, a[SAVED_X_MID]), norm);
    forward(m, layer, W1, w, norm, hidden_of(m, a[SAVED_GATE]));
    forward(m, layer, W3, w, norm, hidden_of(m, a[SAVED_UP]));
}

void model_note_down(struct model *m, uint32_t slot, uint32_t layer, const void *const *w,
                     const void *out)
{
    void *const *a = m->slots[slot].layers[layer].saved;
    if (is_watched(m, slot))
        forward(m, layer, W2, w, hidden_of(m, a[SAVED_SWIGLU]), stream_of(m, out));
}

void model_note_feed_forward_backward(struct model *m, uint32_t slot, uint32_t layer,
                                      const void *d_out, float *const *dw)
{
    void *const *t = m->slots[slot].layers[layer].temporary;
    const struct side none = {0};
    if (!is_watched(m, slot))
        return;
    backward(m, layer, W2, dw, rows_of(m, d_out), hidden_of(m, t[TEMPORARY_D_SWIGLU]));
    backward(m, layer, W1, dw, hidden_of(m, t[TEMPORARY_D_GATE]), none);
    backward(m, layer, W3, dw, hidden_of(m, t[TEMPORARY_D_UP]), none);
}

void model_note_attention_backward(struct model *m, uint32_t slot, uint32_t layer,
                                   const void *d_mid, float *const *dw)
{
    void *const *t = m->slots[slot].layers[layer].temporary;
    const struct side none = {0};
    if (!is_watched(m, slot))
        return;
    backward(m, layer, WO, dw, rows_of(m, d_mid), queries_of(m, t[TEMPORARY_D_ATTENTION]));
    backward(m, layer, WQ, dw, queries_of(m, t[TEMPORARY_D_Q]), none);
    backward(m, layer, WK, dw, d_keys_of(m, t[TEMPORARY_D_K]), none);
    backward(m, layer, WV, dw, d_keys_of(m, t[TEMPORARY_D_V]), none);
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
    note_weights(m, "tok_embeddings", "weight", w[0], (size_t)m->vocab * m->s.dim, m->dtype);
    note_sides(m, "tok_embeddings", false, (struct side){0}, stream_of(m, out));
}

void model_note_embedding_backward(struct model *m, uint32_t slot, float *const *dw)
{
    if (!is_watched(m, slot))
        return;
    const struct side d_out = stream_of(m, m->slots[slot].dx);
    note_rows(m, "tok_embeddings", "gradient of output", d_out);
    if (m->notes->samples != NULL)
        note_squares(m, d_out);
    note_weight_gradient(m, "tok_embeddings", dw[0], (size_t)m->vocab * m->s.dim);
}

static struct side logits_of(const struct model *m, const struct slot *s)
{
    return columns_of(m, model_has_chunks(m) ? NULL : s->logits, m->vocab, m->blocks);
}

void model_note_head(struct model *m, uint32_t slot, const void *const *w)
{
    const struct slot *s = &m->slots[slot];
    struct side norm = rows_of(m, s->head_norm);
    if (!is_watched(m, slot))
        return;
    note_weights(m, "norm", "weight", w[NORM], m->s.dim, m->dtype);
    note_sides(m, "norm", false, stream_of(m, s->layers[m->s.layers].x_in), norm);
    note_weights(m, "output", "weight", w[OUTPUT], (size_t)m->vocab * m->s.dim, m->dtype);
    note_sides(m, "output", false, norm, logits_of(m, s));
}

void model_note_loss(struct model *m, uint32_t slot)
{
    if (is_watched(m, slot))
        note_rows(m, "loss", "output",
                  (struct side){m->slots[slot].losses, m->rows, 1, 1, KERNEL_F32});
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
