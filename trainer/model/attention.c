/* attention.c - rotation and attention of a layer, block by block of heads. */
#include "proto/report.h"
#include "trainer/model/private.h"

void attention_rotate(struct model *m, const struct slot *slot, void *x, uint32_t blocks,
                      uint32_t heads, bool inverse)
{
    size_t block_bytes = (size_t)m->rows * (heads / blocks) * m->s.head_dim * m->element;
    for (uint32_t b = 0; b < blocks; b++)
        kernel_rope(m->kernels, m->lane,
                    &(struct kernel_rope){.x = at_byte(x, b * block_bytes),
                                          .cos = m->rope_cos,
                                          .sin = m->rope_sin,
                                          .starts = slot->batch.starts,
                                          .batch = m->batch,
                                          .seq = m->seq,
                                          .heads = heads / blocks,
                                          .head_dim = m->s.head_dim,
                                          .inverse = inverse,
                                          .dtype = m->dtype});
}

/* Bytes of a block of heads, and which block of keys it reads. */
struct places {
    size_t q, kv, d_kv; /* bytes per block */
    uint32_t heads, kv_heads;
};

static struct places places_of(const struct model *m)
{
    size_t row = m->rows * m->element;
    return (struct places){.q = row * m->q_width / m->blocks,
                           .kv = row * m->kv_width / m->kv_blocks,
                           .d_kv = row * m->d_kv_width / m->blocks,
                           .heads = m->q_width / m->s.head_dim / m->blocks,
                           .kv_heads = m->kv_width / m->s.head_dim / m->kv_blocks};
}

int attention_forward(struct model *m, uint32_t slot, uint32_t layer, uint32_t todo)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved;
    struct places at = places_of(m);
    for (uint32_t b = 0; b < m->blocks && s->is_active && (todo >> SAVED_ATTENTION & 1); b++) {
        uint32_t kv = b / (m->blocks / m->kv_blocks);
        float *lse = a[SAVED_LSE];
        kernel_attention(m->kernels, m->lane,
                         &(struct kernel_attention){.out = at_byte(a[SAVED_ATTENTION], b * at.q),
                                                    .lse = lse + (size_t)b * m->rows * at.heads,
                                                    .q = at_byte(a[SAVED_Q], b * at.q),
                                                    .key = at_byte(a[SAVED_K], kv * at.kv),
                                                    .value = at_byte(a[SAVED_V], kv * at.kv),
                                                    .starts = s->batch.starts,
                                                    .batch = m->batch,
                                                    .seq = m->seq,
                                                    .heads = at.heads,
                                                    .kv_heads = at.kv_heads,
                                                    .head_dim = m->s.head_dim,
                                                    .dtype = m->dtype});
    }
    return 0;
}

int attention_backward(struct model *m, uint32_t slot, uint32_t layer)
{
    const struct slot *s = &m->slots[slot];
    void *const *a = s->layers[layer].saved, *const *t = s->layers[layer].temporary;
    struct places at = places_of(m);
    for (uint32_t b = 0; b < m->blocks && s->is_active; b++) {
        uint32_t kv = b / (m->blocks / m->kv_blocks);
        float *lse = a[SAVED_LSE];
        kernel_attention_backward(
            m->kernels, m->lane,
            &(struct kernel_attention_backward){.dq = at_byte(t[TEMPORARY_D_Q], b * at.q),
                                                .dkey = at_byte(t[TEMPORARY_D_K], b * at.d_kv),
                                                .dvalue = at_byte(t[TEMPORARY_D_V], b * at.d_kv),
                                                .dout = at_byte(t[TEMPORARY_D_ATTENTION], b * at.q),
                                                .out = at_byte(a[SAVED_ATTENTION], b * at.q),
                                                .lse = lse + (size_t)b * m->rows * at.heads,
                                                .q = at_byte(a[SAVED_Q], b * at.q),
                                                .key = at_byte(a[SAVED_K], kv * at.kv),
                                                .value = at_byte(a[SAVED_V], kv * at.kv),
                                                .starts = s->batch.starts,
                                                .batch = m->batch,
                                                .seq = m->seq,
                                                .heads = at.heads,
                                                .kv_heads = at.kv_heads,
                                                .head_dim = m->s.head_dim,
                                                .dtype = m->dtype});
    }
    return 0;
}
