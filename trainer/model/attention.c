/* attention.c - rotation and attention of a layer, by blocks of heads and chunks of positions (see
 * context.c and heads.c). */
#include <string.h>

#include "proto/base/report.h"
#include "trainer/model/private.h"

static uint32_t chunk_first(const struct model *m, uint32_t index)
{
    return model_chunk_first(&m->cut, m->seq, m->cut.cp_place, index);
}

/* The first row of a chunk among this rank's rows. */
static size_t chunk_row(const struct model *m, uint32_t index)
{
    return (size_t)index * m->batch * model_chunk_length(&m->cut, m->seq);
}

static const int32_t *chunk_starts(const struct model *m, const struct slot *s, uint32_t index)
{
    return s->batch.starts != NULL ? s->batch.starts + chunk_row(m, index) : NULL;
}

void attention_rotate(struct model *m, const struct slot *slot, void *x, uint32_t blocks,
                      uint32_t heads, bool inverse)
{
    uint32_t chunks = model_num_chunks(&m->cut);
    size_t row = (size_t)(heads / blocks) * m->s.head_dim * m->element;
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t i = 0; i < chunks; i++)
            kernel_rope(
                m->kernels, m->lane,
                &(struct kernel_rope){.x = at_byte(x, (b * m->rows + chunk_row(m, i)) * row),
                                      .cos = m->rope_cos,
                                      .sin = m->rope_sin,
                                      .starts = chunk_starts(m, slot, i),
                                      .batch = m->batch,
                                      .seq = model_chunk_length(&m->cut, m->seq),
                                      .heads = heads / blocks,
                                      .head_dim = m->s.head_dim,
                                      .first = chunk_first(m, i),
                                      .inverse = inverse,
                                      .dtype = m->dtype});
}

/* ---- the view of this rank ---- */

/* The number of heads of a block. */
static uint32_t block_heads(const struct model *m)
{
    return m->q_width / m->s.head_dim / m->blocks;
}

void attention_parts(const struct slot *s, uint32_t layer, void *part[NUM_PARTS])
{
    void *const *a = s->layers[layer].saved, *const *t = s->layers[layer].temporary;
    void *const parts[NUM_PARTS] = {
        [PART_Q] = a[SAVED_Q],         [PART_OUT] = a[SAVED_ATTENTION],
        [PART_LSE] = a[SAVED_LSE],     [PART_D_OUT] = t[TEMPORARY_D_ATTENTION],
        [PART_D_Q] = t[TEMPORARY_D_Q], [PART_D_K] = t[TEMPORARY_D_K],
        [PART_D_V] = t[TEMPORARY_D_V],
    };
    memcpy(part, parts, sizeof(parts));
}

size_t attention_row_bytes(const struct model *m, enum attention_part part)
{
    if (part == PART_LSE)
        return block_heads(m) * sizeof(float);
    bool is_key = part == PART_D_K || part == PART_D_V;
    return (is_key ? m->d_kv_width : m->q_width) / m->blocks * m->element;
}

static int take_view(struct model *m, const struct slot *s, uint32_t layer, bool is_backward,
                     struct attention_view *out)
{
    void *const *a = s->layers[layer].saved, *keys[] = {a[SAVED_K], a[SAVED_V]};
    if (model_shares_heads(m))
        return heads_take(m, s, layer, is_backward, out);
    if (m->cut.cp_blocks > 1)
        ERR_TRY(context_take_keys(m, s, layer, keys));
    *out = (struct attention_view){.first_place = m->cut.cp_place,
                                   .places = 1,
                                   .blocks = m->blocks,
                                   .starts = s->batch.starts,
                                   .key = keys[0],
                                   .value = keys[1]};
    attention_parts(s, layer, out->part);
    return 0;
}

/* has_keys: keys and values from a ring are kept for the backward. */
static int give_view(struct model *m, const struct slot *s, uint32_t layer, bool is_backward,
                     bool has_keys, const struct attention_view *view)
{
    if (model_shares_heads(m))
        return heads_give(m, s, layer, is_backward, view);
    if (m->cut.cp_blocks > 1 && !has_keys)
        context_give_keys(m, layer);
    return 0;
}

/* A chunk of the rows of a place, for one block of heads. */
struct piece {
    uint32_t place, block, chunk; /* places and blocks count from the view's first */
};

static size_t piece_row(const struct model *m, const struct attention_view *v, struct piece at)
{
    return ((size_t)at.place * v->blocks + at.block) * m->rows + chunk_row(m, at.chunk);
}

static void *piece_of(const struct model *m, const struct attention_view *v, struct piece at,
                      enum attention_part part)
{
    return at_byte(v->part[part], piece_row(m, v, at) * attention_row_bytes(m, part));
}

static const int32_t *piece_starts(const struct model *m, const struct attention_view *v,
                                   struct piece at)
{
    return v->starts != NULL ? v->starts + (size_t)at.place * m->rows + chunk_row(m, at.chunk)
                             : NULL;
}

static uint32_t piece_first(const struct model *m, const struct attention_view *v, struct piece at)
{
    return model_chunk_first(&m->cut, m->seq, v->first_place + at.place, at.chunk);
}

/* The keys (or values) that a block of the view reads. */
static const void *keys_of(const struct model *m, const struct attention_view *v, const void *keys,
                           uint32_t block)
{
    uint32_t sharers = m->blocks / m->kv_blocks;
    size_t bytes = (size_t)m->batch * m->seq * (m->kv_width / m->kv_blocks) * m->element;
    return at_byte(keys, ((v->first_block + block) / sharers - v->first_block / sharers) * bytes);
}

/* ---- forward ---- */

static void forward_piece(struct model *m, const struct attention_view *v, struct piece at)
{
    kernel_attention(
        m->kernels, m->lane,
        &(struct kernel_attention){.out = piece_of(m, v, at, PART_OUT),
                                   .lse = piece_of(m, v, at, PART_LSE),
                                   .q = piece_of(m, v, at, PART_Q),
                                   .key = keys_of(m, v, v->key, at.block),
                                   .value = keys_of(m, v, v->value, at.block),
                                   .starts = piece_starts(m, v, at),
                                   .batch = m->batch,
                                   .seq = m->seq,
                                   .heads = block_heads(m),
                                   .kv_heads = m->kv_width / m->s.head_dim / m->kv_blocks,
                                   .head_dim = m->s.head_dim,
                                   .queries = model_chunk_length(&m->cut, m->seq),
                                   .first = piece_first(m, v, at),
                                   .dtype = m->dtype});
}

int attention_forward(struct model *m, uint32_t slot, uint32_t layer, uint32_t wanted,
                      bool is_again)
{
    const struct slot *s = &m->slots[slot];
    struct attention_view v;
    if ((wanted >> SAVED_ATTENTION & 1) == 0)
        return 0;
    ERR_TRY(take_view(m, s, layer, false, &v));
    for (uint32_t place = 0; place < v.places && s->is_active; place++)
        for (uint32_t b = 0; b < v.blocks; b++)
            for (uint32_t i = 0; i < model_num_chunks(&m->cut); i++)
                forward_piece(m, &v, (struct piece){place, b, i});
    return give_view(m, s, layer, false, is_again && model_has_ring(m), &v);
}

/* ---- backward ---- */

/* The gradients of keys and values from a chunk's queries. */
struct key_gradients {
    void *key, *value;
    bool is_partial, accumulate;
};

static void backward_piece(struct model *m, const struct attention_view *v, struct key_gradients to,
                           struct piece at)
{
    kernel_attention_backward(
        m->kernels, m->lane,
        &(struct kernel_attention_backward){.dq = piece_of(m, v, at, PART_D_Q),
                                            .dkey = to.key,
                                            .dvalue = to.value,
                                            .dout = piece_of(m, v, at, PART_D_OUT),
                                            .out = piece_of(m, v, at, PART_OUT),
                                            .lse = piece_of(m, v, at, PART_LSE),
                                            .q = piece_of(m, v, at, PART_Q),
                                            .key = keys_of(m, v, v->key, at.block),
                                            .value = keys_of(m, v, v->value, at.block),
                                            .starts = piece_starts(m, v, at),
                                            .batch = m->batch,
                                            .seq = m->seq,
                                            .heads = block_heads(m),
                                            .kv_heads = m->kv_width / m->s.head_dim / m->kv_blocks,
                                            .head_dim = m->s.head_dim,
                                            .queries = model_chunk_length(&m->cut, m->seq),
                                            .first = piece_first(m, v, at),
                                            .is_partial = to.is_partial,
                                            .accumulate = to.accumulate,
                                            .dtype = m->dtype});
}

/* Block b of heads, if sequences are cut: a partial result for each block of rows. */
static int backward_by_blocks(struct model *m, const struct slot *s, const struct attention_view *v,
                              uint32_t b)
{
    static const char *const name = "partial keys and values";
    uint32_t width = m->d_kv_width / m->blocks, parts = v->places * m->row_blocks;
    size_t count = (size_t)m->batch * m->seq * width;
    float *sum = model_take_bytes(m, name, 0, 2 * count * sizeof(*sum));
    struct tree tree = tree_take(m, name, sum, 2 * count, parts);
    for (uint32_t p = 0; p < parts && s->is_active; p++) {
        uint32_t place = p / m->row_blocks, chunk = 2 * (p % m->row_blocks);
        float *part = tree_at(&tree, p);
        struct key_gradients to = {part, part + count, true, false};
        backward_piece(m, v, to, (struct piece){place, b, chunk});
        to.accumulate = true;
        backward_piece(m, v, to, (struct piece){place, b, chunk + 1});
        tree_add(m, &tree, p);
    }
    const struct piece first = {0, b, 0};
    void *const own[] = {piece_of(m, v, first, PART_D_K), piece_of(m, v, first, PART_D_V)};
    if (model_shares_heads(m))
        heads_put_key_gradients(m, v, b, sum, width, s->is_active);
    else
        ERR_TRY(context_reduce(m, own, sum, width, s->is_active));
    tree_give(m, name, parts);
    model_give(m, name, 0);
    return 0;
}

int attention_backward(struct model *m, uint32_t slot, uint32_t layer)
{
    const struct slot *s = &m->slots[slot];
    struct attention_view v;
    ERR_TRY(take_view(m, s, layer, true, &v));
    for (uint32_t b = 0; b < v.blocks && m->cut.cp_blocks > 1; b++)
        ERR_TRY(backward_by_blocks(m, s, &v, b));
    for (uint32_t b = 0; b < v.blocks && m->cut.cp_blocks == 1 && s->is_active; b++) {
        const struct piece all = {0, b, 0};
        struct key_gradients to = {.key = piece_of(m, &v, all, PART_D_K),
                                   .value = piece_of(m, &v, all, PART_D_V)};
        backward_piece(m, &v, to, all);
    }
    return give_view(m, s, layer, true, false, &v);
}
