/* attention.c - rotation and attention of a layer, by blocks of heads and chunks of positions (see
 * context.c). */
#include "proto/report.h"
#include "trainer/model/private.h"

static uint32_t chunk_first(const struct model *m, uint32_t index)
{
    return model_chunk_first(&m->cut, m->seq, m->cut.cp_place, index);
}

/* Where a chunk's rows begin, in rows of this rank. */
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

/* Bytes of a row of a block of heads, and how many heads that are. */
struct places {
    size_t q, kv, d_kv;
    uint32_t heads, kv_heads;
};

static struct places places_of(const struct model *m)
{
    return (struct places){.q = m->q_width / m->blocks * m->element,
                           .kv = m->kv_width / m->kv_blocks * m->element,
                           .d_kv = m->d_kv_width / m->blocks * m->element,
                           .heads = m->q_width / m->s.head_dim / m->blocks,
                           .kv_heads = m->kv_width / m->s.head_dim / m->kv_blocks};
}

/* ---- keys and values of whole sequences ---- */

/* [kv blocks][B, T, K D / kvB] */
struct keys {
    void *key, *value;
};

static int take_keys(struct model *m, uint32_t slot, uint32_t layer, struct keys *out)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved;
    void *all[] = {a[SAVED_K], a[SAVED_V]};
    if (m->cut.cp_blocks > 1)
        ERR_TRY(context_take_keys(m, s, layer, all));
    *out = (struct keys){all[0], all[1]};
    return 0;
}

static void give_keys(struct model *m, uint32_t layer)
{
    if (m->cut.cp_blocks > 1)
        context_give_keys(m, layer);
}

/* Those that block b of heads reads. */
static struct keys keys_of(const struct model *m, const struct keys *all, uint32_t b)
{
    size_t bytes = (size_t)m->batch * m->seq * (m->kv_width / m->kv_blocks) * m->element;
    size_t at = b / (m->blocks / m->kv_blocks) * bytes;
    return (struct keys){at_byte(all->key, at), at_byte(all->value, at)};
}

/* ---- forward ---- */

static void forward_chunk(struct model *m, const struct slot *s, void *const *a, struct keys keys,
                          uint32_t b, uint32_t chunk)
{
    struct places at = places_of(m);
    size_t row = (size_t)b * m->rows + chunk_row(m, chunk);
    kernel_attention(m->kernels, m->lane,
                     &(struct kernel_attention){.out = at_byte(a[SAVED_ATTENTION], row * at.q),
                                                .lse = (float *)a[SAVED_LSE] + row * at.heads,
                                                .q = at_byte(a[SAVED_Q], row * at.q),
                                                .key = keys.key,
                                                .value = keys.value,
                                                .starts = chunk_starts(m, s, chunk),
                                                .batch = m->batch,
                                                .seq = m->seq,
                                                .heads = at.heads,
                                                .kv_heads = at.kv_heads,
                                                .head_dim = m->s.head_dim,
                                                .queries = model_chunk_length(&m->cut, m->seq),
                                                .first = chunk_first(m, chunk),
                                                .dtype = m->dtype});
}

int attention_forward(struct model *m, uint32_t slot, uint32_t layer, uint32_t wanted,
                      bool is_again)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved;
    struct keys all;
    if ((wanted >> SAVED_ATTENTION & 1) == 0)
        return 0;
    ERR_TRY(take_keys(m, slot, layer, &all));
    for (uint32_t b = 0; b < m->blocks && s->is_active; b++)
        for (uint32_t i = 0; i < model_num_chunks(&m->cut); i++)
            forward_chunk(m, s, a, keys_of(m, &all, b), b, i);
    if (!is_again || !model_has_ring(m))
        give_keys(m, layer);
    return 0;
}

/* ---- backward ---- */

/* The gradients of keys and values that a chunk's queries bring. */
struct key_gradients {
    void *key, *value;
    bool is_partial, accumulate;
};

static void backward_chunk(struct model *m, const struct slot *s, const struct layer_buffers *l,
                           struct keys keys, struct key_gradients to, uint32_t b, uint32_t chunk)
{
    struct places at = places_of(m);
    void *const *a = l->saved, *const *t = l->temporary;
    size_t row = (size_t)b * m->rows + chunk_row(m, chunk);
    kernel_attention_backward(
        m->kernels, m->lane,
        &(struct kernel_attention_backward){.dq = at_byte(t[TEMPORARY_D_Q], row * at.q),
                                            .dkey = to.key,
                                            .dvalue = to.value,
                                            .dout = at_byte(t[TEMPORARY_D_ATTENTION], row * at.q),
                                            .out = at_byte(a[SAVED_ATTENTION], row * at.q),
                                            .lse = (float *)a[SAVED_LSE] + row * at.heads,
                                            .q = at_byte(a[SAVED_Q], row * at.q),
                                            .key = keys.key,
                                            .value = keys.value,
                                            .starts = chunk_starts(m, s, chunk),
                                            .batch = m->batch,
                                            .seq = m->seq,
                                            .heads = at.heads,
                                            .kv_heads = at.kv_heads,
                                            .head_dim = m->s.head_dim,
                                            .queries = model_chunk_length(&m->cut, m->seq),
                                            .first = chunk_first(m, chunk),
                                            .is_partial = to.is_partial,
                                            .accumulate = to.accumulate,
                                            .dtype = m->dtype});
}

/* Block b of heads, where sequences are cut: a partial result of each block of rows. */
static int backward_by_blocks(struct model *m, const struct slot *s, const struct layer_buffers *l,
                              const struct keys *all, uint32_t b)
{
    static const char *const name = "partial keys and values";
    struct places at = places_of(m);
    uint32_t width = m->d_kv_width / m->blocks;
    size_t count = (size_t)m->batch * m->seq * width, row = (size_t)b * m->rows;
    float *sum = model_take_bytes(m, name, 0, 2 * count * sizeof(*sum));
    struct tree tree = tree_take(m, name, sum, 2 * count, m->row_blocks);
    for (uint32_t p = 0; p < m->row_blocks && s->is_active; p++) {
        float *part = tree_at(&tree, p);
        struct key_gradients to = {part, part + count, true, false};
        backward_chunk(m, s, l, keys_of(m, all, b), to, b, 2 * p);
        to.accumulate = true;
        backward_chunk(m, s, l, keys_of(m, all, b), to, b, 2 * p + 1);
        tree_add(m, &tree, p);
    }
    void *const own[] = {at_byte(l->temporary[TEMPORARY_D_K], row * at.d_kv),
                         at_byte(l->temporary[TEMPORARY_D_V], row * at.d_kv)};
    ERR_TRY(context_reduce(m, own, sum, width, s->is_active));
    tree_give(m, name, m->row_blocks);
    model_give(m, name, 0);
    return 0;
}

int attention_backward(struct model *m, uint32_t slot, uint32_t layer)
{
    const struct slot *s = &m->slots[slot];
    const struct layer_buffers *l = &s->layers[layer];
    struct places at = places_of(m);
    struct keys all;
    ERR_TRY(take_keys(m, slot, layer, &all));
    for (uint32_t b = 0; b < m->blocks && m->cut.cp_blocks > 1; b++)
        ERR_TRY(backward_by_blocks(m, s, l, &all, b));
    for (uint32_t b = 0; b < m->blocks && m->cut.cp_blocks == 1 && s->is_active; b++) {
        size_t row = (size_t)b * m->rows * at.d_kv;
        struct key_gradients to = {.key = at_byte(l->temporary[TEMPORARY_D_K], row),
                                   .value = at_byte(l->temporary[TEMPORARY_D_V], row)};
        backward_chunk(m, s, l, keys_of(m, &all, b), to, b, 0);
    }
    give_keys(m, layer);
    return 0;
}
