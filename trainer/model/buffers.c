/* buffers.c - the buffers of a leaf under way: their sizes, and which of them are kept.
 *
 * One table names each buffer of a layer, its size, and whether MODEL_KEEP_PRODUCTS keeps it.
 * Forward, recomputation and backward take and free buffers by bits of that table. */
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/model/private.h"

/* Rows of a buffer, and the contents of a row. A pair is one buffer with the second part after the
 * first: a GPU's library computes both products at once (kernel_linears). */
enum rows { ROWS, OWN_ROWS, ONE_ROW };
enum row { ROW_DIM, ROW_Q, ROW_KV, ROW_D_KV, ROW_HIDDEN, ROW_FLOAT, ROW_LSE, ROW_NORM_WEIGHTS };

struct buffer_kind {
    const char *name;
    enum rows rows;
    enum row row;
    bool is_product; /* kept with MODEL_KEEP_PRODUCTS */
    enum pair { ALONE, FIRST, SECOND } pair;
};

static const struct buffer_kind saved_kinds[NUM_SAVED] = {
    [SAVED_ATTENTION_NORM] = {"attention norm", ROWS, ROW_DIM, false, ALONE},
    [SAVED_ATTENTION_RSTD] = {"attention rstd", OWN_ROWS, ROW_FLOAT, true, ALONE},
    [SAVED_Q] = {"query", ROWS, ROW_Q, true, ALONE},
    [SAVED_K] = {"key and value", ROWS, ROW_KV, true, FIRST},
    [SAVED_V] = {"key and value", ROWS, ROW_KV, true, SECOND},
    [SAVED_ATTENTION] = {"attention", ROWS, ROW_Q, true, ALONE},
    [SAVED_LSE] = {"attention lse", ROWS, ROW_LSE, true, ALONE},
    [SAVED_X_MID] = {"residual mid", OWN_ROWS, ROW_DIM, true, ALONE},
    [SAVED_FFN_NORM] = {"ffn norm", ROWS, ROW_DIM, false, ALONE},
    [SAVED_FFN_RSTD] = {"ffn rstd", OWN_ROWS, ROW_FLOAT, true, ALONE},
    [SAVED_GATE] = {"gate and up", ROWS, ROW_HIDDEN, true, FIRST},
    [SAVED_UP] = {"gate and up", ROWS, ROW_HIDDEN, true, SECOND},
    [SAVED_SWIGLU] = {"swiglu", ROWS, ROW_HIDDEN, false, ALONE},
};

static const struct buffer_kind temporary_kinds[NUM_TEMPORARIES] = {
    [TEMPORARY_D_SWIGLU] = {"d swiglu", ROWS, ROW_HIDDEN, false, ALONE},
    [TEMPORARY_D_GATE] = {"d gate and up", ROWS, ROW_HIDDEN, false, FIRST},
    [TEMPORARY_D_UP] = {"d gate and up", ROWS, ROW_HIDDEN, false, SECOND},
    [TEMPORARY_D_NORM] = {"d norm", OWN_ROWS, ROW_DIM, false, ALONE},
    [TEMPORARY_D_ATTENTION] = {"d attention", ROWS, ROW_Q, false, ALONE},
    [TEMPORARY_D_Q] = {"d query", ROWS, ROW_Q, false, ALONE},
    [TEMPORARY_D_K] = {"d key and value", ROWS, ROW_D_KV, false, FIRST},
    [TEMPORARY_D_V] = {"d key and value", ROWS, ROW_D_KV, false, SECOND},
    [TEMPORARY_D_OUT] = {"d block out", ROWS, ROW_DIM, false, ALONE},
    [TEMPORARY_D_MID] = {"d block mid", ROWS, ROW_DIM, false, ALONE},
    [TEMPORARY_D_NORM_WEIGHTS] = {"d norm weights", ONE_ROW, ROW_NORM_WEIGHTS, false, ALONE},
};

static size_t bytes_of(const struct model *m, const struct buffer_kind *kind)
{
    const size_t row_bytes[] = {
        [ROW_DIM] = m->s.dim * m->element,
        [ROW_Q] = m->q_width * m->element,
        [ROW_KV] = m->kv_width * m->element,
        [ROW_D_KV] = m->d_kv_width * m->element,
        [ROW_HIDDEN] = m->hidden * m->element,
        [ROW_FLOAT] = sizeof(float),
        [ROW_LSE] = m->q_width / m->s.head_dim * sizeof(float),
        [ROW_NORM_WEIGHTS] = 2 * (size_t)m->s.dim * sizeof(float),
    };
    const size_t rows[] = {[ROWS] = m->rows, [OWN_ROWS] = m->own_rows, [ONE_ROW] = 1};
    return rows[kind->rows] * row_bytes[kind->row];
}

void *model_take_bytes(struct model *m, const char *name, uint32_t index, size_t bytes)
{
    return memory_take(m->memory, name, index, bytes);
}

void model_give(struct model *m, const char *name, uint32_t index)
{
    memory_give(m->memory, name, index);
}

void model_set_lists(struct model *m, uint32_t ranks, size_t bytes_each)
{
    for (uint32_t r = 0; r < ranks; r++) {
        m->lists[r] = bytes_each;
        m->lists[ranks + r] = r * bytes_each;
    }
}

uint32_t model_kept(const struct model *m, uint32_t layer)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < NUM_SAVED; i++)
        if (m->keep[layer] == MODEL_KEEP_ALL ||
            (m->keep[layer] == MODEL_KEEP_PRODUCTS && saved_kinds[i].is_product))
            kept |= 1u << i;
    return kept;
}

static size_t aligned_bytes(size_t bytes)
{
    return (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
}

/* Takes the buffers of bits `which`; a pair has both bits or neither. */
static void take_buffers(struct model *m, const struct buffer_kind *kinds, void **out, uint32_t num,
                         uint32_t index, uint32_t which)
{
    for (uint32_t i = 0; i < num; i++) {
        size_t bytes = aligned_bytes(bytes_of(m, &kinds[i]));
        if ((which >> i & 1) == 0)
            continue;
        if (kinds[i].pair == SECOND)
            out[i] = out[i - 1] == NULL ? NULL : at_byte(out[i - 1], bytes);
        else
            out[i] = memory_take(m->memory, kinds[i].name, index,
                                 kinds[i].pair == FIRST ? 2 * bytes : bytes);
    }
}

static void give_buffers(struct model *m, const struct buffer_kind *kinds, uint32_t num,
                         uint32_t index, uint32_t which)
{
    for (uint32_t i = 0; i < num; i++)
        if ((which >> i & 1) != 0 && kinds[i].pair != SECOND)
            memory_give(m->memory, kinds[i].name, index);
}

void model_take_saved(struct model *m, uint32_t slot, uint32_t layer, uint32_t which)
{
    take_buffers(m, saved_kinds, m->slots[slot].layers[layer].saved, NUM_SAVED,
                 slot_index(m, slot, layer), which);
}

void model_give_saved(struct model *m, uint32_t slot, uint32_t layer, uint32_t which)
{
    give_buffers(m, saved_kinds, NUM_SAVED, slot_index(m, slot, layer), which);
}

void model_take_temporaries(struct model *m, uint32_t slot, uint32_t layer, uint32_t which)
{
    take_buffers(m, temporary_kinds, m->slots[slot].layers[layer].temporary, NUM_TEMPORARIES,
                 slot_index(m, slot, layer), which);
}

void model_give_temporaries(struct model *m, uint32_t slot, uint32_t layer, uint32_t which)
{
    give_buffers(m, temporary_kinds, NUM_TEMPORARIES, slot_index(m, slot, layer), which);
}

/* ---- the residual stream ---- */

size_t model_stream_bytes(const struct model *m)
{
    return (size_t)m->own_rows * m->s.dim * m->element;
}

void *model_take_stream(struct model *m, uint32_t slot, uint32_t block)
{
    struct layer_buffers *layer = &m->slots[slot].layers[block - 1];
    layer->carry = NULL;
    layer->x_in =
        model_take_bytes(m, "residual in", slot_index(m, slot, block - 1), model_stream_bytes(m));
    return layer->x_in;
}

void *model_stream(const struct model *m, uint32_t slot, uint32_t block)
{
    return m->slots[slot].layers[block - 1].x_in;
}

void model_give_stream(struct model *m, uint32_t slot, uint32_t block)
{
    model_give(m, "residual in", slot_index(m, slot, block - 1));
}

void *model_take_gradient(struct model *m, uint32_t slot)
{
    m->slots[slot].dx =
        model_take_bytes(m, "d residual", slot_index(m, slot, 0), model_stream_bytes(m));
    return m->slots[slot].dx;
}

void *model_gradient(const struct model *m, uint32_t slot)
{
    return m->slots[slot].dx;
}

void model_give_gradient(struct model *m, uint32_t slot)
{
    model_give(m, "d residual", slot_index(m, slot, 0));
}

int model_close_stream(struct model *m, uint32_t slot, uint32_t block)
{
    struct layer_buffers *layer = &m->slots[slot].layers[block - 1];
    if (layer->carry != NULL && m->slots[slot].is_active)
        kernel_add(m->kernels, m->lane,
                   &(struct kernel_add){.y = layer->x_in,
                                        .x = layer->carry,
                                        .count = (size_t)m->own_rows * m->s.dim,
                                        .dtype = m->dtype});
    layer->carry = NULL;
    return 0;
}
