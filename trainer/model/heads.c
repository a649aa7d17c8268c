/* heads.c - attention of cut sequences by ranks that share the heads (DeepSpeed Ulysses,
 * arXiv:2309.14509).
 *
 * If context ranks share the heads, no rank needs the keys and values of all heads. Each computes
 * its share of the blocks of heads, m->blocks / cp of them, with the rows of all ranks. An
 * all-to-all sends queries, keys and values to it, and another returns the attention; likewise in
 * the backward. Activations kept for the backward stay cut by rows, as for all other operations.
 * `canonical.tp_blocks` gives the blocks, so each kernel call has the operands that it has on one
 * rank. The queries' contributions to the gradients of keys and values go through the same tree
 * over the blocks of rows (context.c), here on one rank. So the bits are those of every other
 * method. Bytes per layer and rank: forward (cp - 1) / cp x (2 queries + 2 keys) of a micro-batch's
 * rows on the rank, backward (cp - 1) / cp x (4 queries + 4 keys), each with a float per head and
 * row. */
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/model/private.h"

static const char *const names[NUM_PARTS] = {
    [PART_Q] = "queries of all rows",
    [PART_OUT] = "attention of all rows",
    [PART_LSE] = "log-sums of all rows",
    [PART_D_OUT] = "attention's gradients of all rows",
    [PART_D_Q] = "queries' gradients of all rows",
    [PART_D_K] = "keys' gradients of all rows",
    [PART_D_V] = "values' gradients of all rows",
};
#define BIT(part) (1u << (part))
/* Parts sent for the forward, and for the backward. */
static const uint32_t coming[] = {BIT(PART_Q),
                                  BIT(PART_Q) | BIT(PART_OUT) | BIT(PART_LSE) | BIT(PART_D_OUT)};
static const uint32_t going[] = {BIT(PART_OUT) | BIT(PART_LSE),
                                 BIT(PART_D_Q) | BIT(PART_D_K) | BIT(PART_D_V)};

bool model_shares_heads(const struct model *m)
{
    return m->cut.shares_heads && m->cut.cp > 1;
}

/* ---- between ranks ---- */

static uint32_t share(const struct model *m)
{
    return m->blocks / m->cut.cp;
}

/* Exchanges [cp][share][rows, width] between ranks: this rank's rows by blocks of heads become this
 * rank's blocks by rows, or the reverse. */
static int swap(struct model *m, void *to, const void *from, size_t row_bytes)
{
    uint32_t cp = m->cut.cp;
    size_t *bytes = m->lists, *at = m->lists + cp;
    model_set_lists(m, cp, share(m) * m->rows * row_bytes);
    return comm_all_to_all_v(m->cut.cp_group, from, bytes, at, to, bytes, at);
}

/* The first block of keys that the blocks of heads of the rank at `place` read. */
static uint32_t first_kv(const struct model *m, uint32_t place)
{
    return place * share(m) / (m->blocks / m->kv_blocks);
}
static uint32_t num_kv(const struct model *m)
{
    uint32_t sharers = m->blocks / m->kv_blocks;
    return share(m) > sharers ? share(m) / sharers : 1;
}

/* full[num_kv][B, T, width] of own[kv blocks][rows, width] */
static int gather_keys(struct model *m, void *full, const void *own, bool is_active)
{
    static const char *const name = "keys or values by rank";
    uint32_t cp = m->cut.cp, width = m->kv_width / m->kv_blocks;
    size_t block = (size_t)m->rows * width * m->element;
    size_t *bytes = m->lists, *at = m->lists + cp, *from = m->lists + 2 * cp;
    struct context_rows rows = {.lane = m->lane,
                                .full = full,
                                .by_rank = model_take_bytes(m, name, 0, cp * num_kv(m) * block),
                                .blocks = num_kv(m),
                                .width = width,
                                .dtype = m->dtype};
    model_set_lists(m, cp, num_kv(m) * block);
    for (uint32_t r = 0; r < cp; r++)
        from[r] = first_kv(m, r) * block;
    if (is_active) {
        ERR_TRY(comm_all_to_all_v(m->cut.cp_group, own, bytes, from, rows.by_rank, bytes, at));
        context_move_rows(m, &rows, true);
    }
    model_give(m, name, 0);
    return 0;
}

static const char *const full_names[] = {"keys of all rows", "values of all rows"};
static const char *const starts_name = "starts of all rows";

static int take_keys(struct model *m, const struct slot *s, uint32_t layer, void *out[2])
{
    void *const own[] = {s->layers[layer].saved[SAVED_K], s->layers[layer].saved[SAVED_V]};
    size_t bytes = m->cut.cp * num_kv(m) * (m->kv_width / m->kv_blocks) * m->element * m->rows;
    for (uint32_t i = 0; i < 2; i++)
        out[i] = model_take_bytes(m, full_names[i], 0, bytes);
    for (uint32_t i = 0; i < 2; i++)
        ERR_TRY(gather_keys(m, out[i], own[i], s->is_active));
    return 0;
}

/* The first positions of documents, for the rows of all ranks. */
static int take_starts(struct model *m, const struct slot *s, const int32_t **out)
{
    uint32_t cp = m->cut.cp;
    size_t *bytes = m->lists, *at = m->lists + cp, mine = m->rows * sizeof(**out);
    void *all = model_take_bytes(m, starts_name, 0, cp * mine);
    *out = s->batch.starts != NULL ? all : NULL;
    if (!s->is_active || *out == NULL)
        return 0;
    model_set_lists(m, cp, mine);
    return comm_all_gather_v(m->cut.cp_group, s->batch.starts, mine, all, bytes, at);
}

/* ---- the view of a layer ---- */

static size_t part_bytes(const struct model *m, enum attention_part part)
{
    return (size_t)m->blocks * m->rows * attention_row_bytes(m, part);
}

int heads_take(struct model *m, const struct slot *s, uint32_t layer, bool is_backward,
               struct attention_view *out)
{
    void *own[NUM_PARTS], *keys[2];
    *out = (struct attention_view){
        .places = m->cut.cp, .first_block = m->cut.cp_place * share(m), .blocks = share(m)};
    attention_parts(s, layer, own);
    for (uint32_t part = 0; part < NUM_PARTS; part++)
        if ((coming[is_backward] | going[is_backward]) & BIT(part))
            out->part[part] = model_take_bytes(m, names[part], 0, part_bytes(m, part));
    for (uint32_t part = 0; part < NUM_PARTS && s->is_active; part++)
        if (coming[is_backward] & BIT(part))
            ERR_TRY(swap(m, out->part[part], own[part], attention_row_bytes(m, part)));
    ERR_TRY(take_keys(m, s, layer, keys));
    out->key = keys[0];
    out->value = keys[1];
    return take_starts(m, s, &out->starts);
}

int heads_give(struct model *m, const struct slot *s, uint32_t layer, bool is_backward,
               const struct attention_view *view)
{
    void *own[NUM_PARTS];
    attention_parts(s, layer, own);
    for (uint32_t part = 0; part < NUM_PARTS && s->is_active; part++)
        if (going[is_backward] & BIT(part))
            ERR_TRY(swap(m, own[part], view->part[part], attention_row_bytes(m, part)));
    for (uint32_t part = 0; part < NUM_PARTS; part++)
        if ((coming[is_backward] | going[is_backward]) & BIT(part))
            model_give(m, names[part], 0);
    model_give(m, full_names[0], 0);
    model_give(m, full_names[1], 0);
    model_give(m, starts_name, 0);
    return 0;
}

void heads_put_key_gradients(struct model *m, const struct attention_view *view, uint32_t b,
                             float *sum, uint32_t width, bool is_active)
{
    static const char *const name = "partial rows of context ranks";
    uint32_t cp = m->cut.cp;
    size_t count = (size_t)m->rows * width;
    struct context_rows rows = {.lane = m->lane,
                                .full = sum,
                                .by_rank =
                                    model_take_bytes(m, name, 0, 2 * cp * count * sizeof(*sum)),
                                .blocks = 2,
                                .width = width,
                                .dtype = KERNEL_F32};
    if (is_active)
        context_move_rows(m, &rows, false);
    for (uint32_t i = 0; i < 2 * cp && is_active; i++) {
        size_t at = ((size_t)(i / 2) * view->blocks + b) * count * m->element;
        enum attention_part part = i % 2 == 0 ? PART_D_K : PART_D_V;
        kernel_convert(m->kernels, m->lane,
                       &(struct kernel_convert){.out = at_byte(view->part[part], at),
                                                .in = (float *)rows.by_rank + i * count,
                                                .count = count,
                                                .out_dtype = m->dtype});
    }
    model_give(m, name, 0);
}
