/* loss.c - the logits, the loss and its gradient: of all rows at once, or chunk by chunk, when only
 * one chunk's logits exist.
 *
 * If tensor parallel cuts the vocabulary, logits are transposed between ranks: each tp rank gets
 * the whole vocabulary of a tp-th of the rows, so no rank has more logits than before. Without loss
 * parallel (cut.is_loss_whole) each rank gets the whole vocabulary of all rows, tp times as many
 * logits. It keeps its part of the vocabulary of their gradient. A row's loss and gradient are
 * those of one rank.
 *
 * Chunks. A cp block's rows are cut in loss_chunks. The gradients of chunks are added to the head's
 * weight in turn. For the norm's rows, the partial results of blocks of the vocabulary are added
 * chunk by chunk (products.c). They are reduced among the tp ranks after the last chunk of the cp
 * block: its rows are cut among them, as elsewhere. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/model/private.h"

/* Rows that go through the loss together. */
struct loss_rows {
    char *logits;  /* [blocks][stride, columns of a block]; `rows` rows of each block are used */
    size_t stride; /* in rows */
    size_t first;  /* the first of this rank's rows */
    uint32_t rows;
};

static uint32_t columns_of(const struct model *m)
{
    return m->vocab / m->blocks;
}

static char *logits_of_block(const struct model *m, const struct loss_rows *r, uint32_t b)
{
    return at_byte(r->logits, b * r->stride * columns_of(m) * m->element);
}

/* Puts the NaN into the first row of the sequence, on the rank that has its first chunk. */
static void break_sequence(struct model *m, const struct slot *s, void *logits, size_t first,
                           uint32_t rows)
{
    size_t row = (size_t)s->batch.broken_sequence * model_chunk_length(&m->cut, m->seq);
    if (s->batch.broken != NULL && m->cut.cp_place == 0 && row >= first && row < first + rows)
        lane_copy(m->lane, at_byte(logits, (row - first) * m->s.vocab * m->element),
                  s->batch.broken, m->element);
}

static void cross_entropy(struct model *m, const struct slot *s, float *losses, void *logits,
                          size_t first, uint32_t rows)
{
    kernel_cross_entropy(m->kernels, m->lane,
                         &(struct kernel_cross_entropy){.losses = losses,
                                                        .logits = logits,
                                                        .targets = s->batch.targets + first,
                                                        .scale = s->batch.loss_scale,
                                                        .rows = rows,
                                                        .vocab = m->s.vocab,
                                                        .dtype = m->dtype});
    break_sequence(m, s, logits, first, rows);
}

/* ---- rows of a cut vocabulary ---- */

static bool has_loss_parallel(const struct model *m)
{
    return m->cut.tp > 1 && !m->cut.is_loss_whole;
}

/* The number of rows of `r` whose whole vocabulary this rank gets. */
static uint32_t turned_rows(const struct model *m, const struct loss_rows *r)
{
    return has_loss_parallel(m) ? r->rows / m->cut.tp : r->rows;
}

/* Columns [first, first + columns) of rows of `width`, copied to or from dense rows. */
struct columns {
    size_t first, width;
    uint32_t columns, rows;
};

static void take_columns(struct model *m, void *dense, const void *full, const struct columns *of)
{
    kernel_pack(m->kernels, m->lane,
                &(struct kernel_pack){.packed = dense,
                                      .full = full,
                                      .rows = of->rows,
                                      .first_column = of->first,
                                      .columns = of->columns,
                                      .width = of->width,
                                      .dtype = m->dtype});
}

static void put_columns(struct model *m, void *full, const void *dense, const struct columns *of)
{
    kernel_unpack(m->kernels, m->lane,
                  &(struct kernel_unpack){.full = full,
                                          .packed = dense,
                                          .rows = of->rows,
                                          .first_column = of->first,
                                          .columns = of->columns,
                                          .width = of->width,
                                          .dtype = m->dtype});
}

/* Copies one block of the vocabulary between whole rows and that block's columns. The padding of
 * the vocabulary is not in the rows, and its gradient is zero. `some`: [rows, columns of a
 * block]. */
static void move_columns(struct model *m, void *by_row, void *block_logits, void *some,
                         uint32_t rows, uint32_t block, bool is_back)
{
    uint32_t columns = columns_of(m);
    size_t first = (size_t)block * columns, left = first < m->s.vocab ? m->s.vocab - first : 0;
    struct columns of_row = {first, m->s.vocab, left < columns ? (uint32_t)left : columns, rows};
    struct columns of_block = {0, columns, of_row.columns, rows};
    bool is_filled = left < columns;
    void *dense = is_filled ? some : block_logits;
    if (is_filled && is_back)
        lane_zero(m->lane, block_logits, (size_t)rows * columns * m->element);
    if (left == 0)
        return;
    if (is_back) {
        take_columns(m, dense, by_row, &of_row);
        if (is_filled)
            put_columns(m, block_logits, dense, &of_block);
        return;
    }
    if (is_filled)
        take_columns(m, dense, block_logits, &of_block);
    put_columns(m, by_row, dense, &of_row);
}

/* Transposes logits by blocks of the vocabulary to whole rows, or back: this rank's block b and
 * columns of `by_row` [turned rows, V]. `part`: [tp + 1][turned rows, columns of a block]. */
static int turn_block(struct model *m, const struct loss_rows *r, char *by_row, char *part,
                      uint32_t b, bool is_back)
{
    uint32_t tp = m->cut.tp, rows = turned_rows(m, r);
    size_t *bytes = m->lists, *at = m->lists + tp;
    char *block = logits_of_block(m, r, b), *mine = tp > 1 ? part : block;
    model_set_lists(m, tp, (size_t)rows * columns_of(m) * m->element);
    char *some = part + tp * bytes[0];
    if (m->cut.is_loss_whole && is_back) {
        move_columns(m, by_row, block, some, rows, m->cut.tp_place * m->blocks + b, true);
        return 0;
    }
    if (m->cut.is_loss_whole && tp > 1)
        ERR_TRY(comm_all_gather_v(m->cut.tp_group, block, bytes[0], part, bytes, at));
    else if (tp > 1 && !is_back)
        ERR_TRY(comm_all_to_all_v(m->cut.tp_group, block, bytes, at, part, bytes, at));
    for (uint32_t i = 0; i < tp; i++)
        move_columns(m, by_row, mine + at[i], some, rows, i * m->blocks + b, is_back);
    if (tp > 1 && is_back)
        ERR_TRY(comm_all_to_all_v(m->cut.tp_group, part, bytes, at, block, bytes, at));
    return 0;
}

static int turn_logits(struct model *m, const struct loss_rows *r, char *by_row, char *part,
                       bool is_back)
{
    for (uint32_t b = 0; b < m->blocks; b++)
        ERR_TRY(turn_block(m, r, by_row, part, b, is_back));
    return 0;
}

/* `own`: [rows / tp] floats, the losses of this rank's rows. */
static int losses_of_turned(struct model *m, const struct slot *s, const struct loss_rows *r,
                            char *by_row, char *part, float *own)
{
    uint32_t rows = turned_rows(m, r);
    size_t *bytes = m->lists, *at = m->lists + m->cut.tp;
    size_t first = has_loss_parallel(m) ? (size_t)m->cut.tp_place * rows : 0;
    float *losses = s->losses + r->first;
    ERR_TRY(turn_logits(m, r, by_row, part, false));
    cross_entropy(m, s, has_loss_parallel(m) ? own : losses, by_row, r->first + first, rows);
    ERR_TRY(turn_logits(m, r, by_row, part, true));
    if (!has_loss_parallel(m))
        return 0;
    model_set_lists(m, m->cut.tp, rows * sizeof(*own));
    return comm_all_gather_v(m->cut.tp_group, own, bytes[0], losses, bytes, at);
}

/* Computes the losses of `r`; its logits become their gradient. */
static int losses_of(struct model *m, const struct slot *s, const struct loss_rows *r)
{
    size_t rows = turned_rows(m, r);
    if (m->cut.tp_blocks == 1) {
        if (s->is_active)
            cross_entropy(m, s, s->losses + r->first, r->logits, r->first, r->rows);
        return 0;
    }
    bool is_filled = m->vocab * m->cut.tp != m->s.vocab;
    char *by_row = model_take_bytes(m, "logits by rows", 0, rows * m->s.vocab * m->element);
    char *part = model_take_bytes(m, "logits on their way", 0,
                                  (m->cut.tp + is_filled) * rows * columns_of(m) * m->element);
    float *own = model_take_bytes(m, "losses of own rows", 0, rows * sizeof(float));
    int rc = s->is_active ? losses_of_turned(m, s, r, by_row, part, own) : 0;
    model_give(m, "logits by rows", 0);
    model_give(m, "logits on their way", 0);
    model_give(m, "losses of own rows", 0);
    return rc;
}

/* ---- the loss in chunks ---- */

/* Sums over the chunks. */
struct chunk_sums {
    float *rows;        /* [block_rows, C] of a cp block, where tp cuts the vocabulary */
    struct tree blocks; /* over blocks of the vocabulary, of one chunk's `rows` */
    struct tree weight; /* over cp blocks */
};

static const char rows_name[] = "partial rows", chunk_name[] = "partial rows of a chunk",
                  weight_name[] = "partial output";

static struct chunk_sums chunk_sums_take(struct model *m, float *dw, uint32_t rows)
{
    size_t c = m->s.dim;
    struct chunk_sums sums = {.weight = tree_take(m, weight_name, dw, m->vocab * c, m->row_blocks)};
    if (m->cut.tp_blocks == 1)
        return sums;
    sums.rows = model_take_bytes(m, rows_name, 0, m->block_rows * c * sizeof(float));
    sums.blocks = tree_take(m, chunk_name, sums.rows, rows * c, m->blocks);
    return sums;
}

static void chunk_sums_give(struct model *m)
{
    tree_give(m, weight_name, m->row_blocks);
    if (m->cut.tp_blocks == 1)
        return;
    tree_give(m, chunk_name, m->blocks);
    model_give(m, rows_name, 0);
}

static int chunk_losses(struct model *m, const struct slot *s, const struct loss_rows *r,
                        const void *w)
{
    size_t c = m->s.dim;
    for (uint32_t b = 0; b < m->blocks && s->is_active; b++)
        kernel_linear(m->kernels, m->lane,
                      &(struct kernel_linear){.out = logits_of_block(m, r, b),
                                              .x = at_byte(s->head_norm, r->first * c * m->element),
                                              .w = at_byte(w, b * columns_of(m) * c * m->element),
                                              .rows = r->rows,
                                              .in = m->s.dim,
                                              .out_dim = columns_of(m),
                                              .dtype = m->dtype});
    return losses_of(m, s, r);
}

/* Computes the gradients of the norm's rows and of the weight from the gradient of block b's
 * logits. `dw`: of the cp block; its chunks add to it in turn. */
static void chunk_gradients(struct model *m, const struct slot *s, const struct loss_rows *r,
                            const struct chunk_sums *sums, const void *w, float *dw, uint32_t b)
{
    size_t at = r->first * m->s.dim * m->element;
    size_t weights = b * columns_of(m) * (size_t)m->s.dim;
    bool is_partial = m->cut.tp_blocks > 1;
    const void *d_logits = logits_of_block(m, r, b);
    kernel_linear_backward_input(
        m->kernels, m->lane,
        &(struct kernel_linear_backward_input){.dx = is_partial ? (void *)tree_at(&sums->blocks, b)
                                                                : at_byte(s->d_head_norm, at),
                                               .dout = d_logits,
                                               .w = at_byte(w, weights * m->element),
                                               .rows = r->rows,
                                               .in = m->s.dim,
                                               .out_dim = columns_of(m),
                                               .dtype = m->dtype,
                                               .is_partial = is_partial});
    if (is_partial)
        tree_add(m, &sums->blocks, b);
    kernel_linear_backward_weight(
        m->kernels, m->lane,
        &(struct kernel_linear_backward_weight){.dw = dw + weights,
                                                .dout = d_logits,
                                                .x = at_byte(s->head_norm, at),
                                                .rows = r->rows,
                                                .in = m->s.dim,
                                                .out_dim = columns_of(m),
                                                .dtype = m->dtype,
                                                .accumulate = r->first % m->block_rows > 0});
}

/* All chunks of cp block p; a walk takes the buffers of one chunk. */
static int chunks_of_block(struct model *m, const struct slot *s, struct loss_rows *r,
                           struct chunk_sums *sums, const void *w, uint32_t p)
{
    for (uint32_t c = 0; c < (s->is_active ? m->cut.loss_chunks : 1); c++) {
        size_t first = (size_t)c * r->rows;
        r->first = (size_t)p * m->block_rows + first;
        ERR_TRY(chunk_losses(m, s, r, w));
        if (sums == NULL || !s->is_active)
            continue;
        if (sums->rows != NULL)
            sums->blocks.slot[0] = sums->rows + first * m->s.dim;
        for (uint32_t b = 0; b < m->blocks; b++)
            chunk_gradients(m, s, r, sums, w, tree_at(&sums->weight, p), b);
    }
    if (sums == NULL)
        return 0;
    if (s->is_active)
        tree_add(m, &sums->weight, p);
    return m->cut.tp_blocks > 1 ? rows_reduce(m, s->d_head_norm, p, sums->rows, s->is_active) : 0;
}

int losses_in_chunks(struct model *m, uint32_t slot, const void *w, float *dw, bool has_gradients)
{
    struct slot *s = &m->slots[slot];
    struct loss_rows r = {.rows = m->block_rows / m->cut.loss_chunks};
    struct chunk_sums sums = {0};
    int rc = 0;
    r.stride = r.rows;
    r.logits = model_take_bytes(m, "logits of a chunk", 0, (size_t)r.rows * m->vocab * m->element);
    s->losses = model_take_bytes(m, "losses", slot_index(m, slot, 0), m->rows * sizeof(*s->losses));
    if (has_gradients)
        sums = chunk_sums_take(m, dw, r.rows);
    for (uint32_t p = 0; p < m->row_blocks && rc == 0; p++)
        rc = chunks_of_block(m, s, &r, has_gradients ? &sums : NULL, w, p);
    if (has_gradients)
        chunk_sums_give(m);
    model_give(m, "logits of a chunk", 0);
    s->has_losses = true;
    return rc;
}

/* ---- the loss of a leaf ---- */

/* Losses from whole logits, which become their gradient, one cp block after the other. */
static int losses_of_logits(struct model *m, uint32_t slot)
{
    struct slot *s = &m->slots[slot];
    size_t bytes = (size_t)m->block_rows * columns_of(m) * m->element;
    s->losses = model_take_bytes(m, "losses", slot_index(m, slot, 0), m->rows * sizeof(*s->losses));
    for (uint32_t p = 0; p < m->row_blocks; p++) {
        const struct loss_rows r = {.logits = at_byte(s->logits, p * bytes),
                                    .stride = m->rows,
                                    .first = (size_t)p * m->block_rows,
                                    .rows = m->block_rows};
        ERR_TRY(losses_of(m, s, &r));
    }
    return 0;
}

/* Puts the rows' losses in the order of their sequences. */
static int losses_in_order(struct model *m, const struct slot *s, float *all, const float *losses)
{
    const struct context_width of = {"losses by rank", 1, 1, KERNEL_F32};
    return context_gather(m, all, losses, &of, s->is_active);
}

int model_loss(struct model *m, uint32_t slot, const void *const *w)
{
    struct slot *s = &m->slots[slot];
    uint32_t index = slot_index(m, slot, 0);
    size_t all_bytes = (size_t)m->batch * m->seq * sizeof(float);
    float *ordered;
    int rc = 0;
    if (!model_has_chunks(m))
        rc = losses_of_logits(m, slot);
    else if (!s->has_losses)
        rc = losses_in_chunks(m, slot, w[OUTPUT], NULL, false);
    s->has_losses = false;
    if (rc == 0)
        model_note_loss(m, slot);
    ordered = s->losses;
    if (m->cut.cp_blocks > 1)
        ordered = model_take_bytes(m, "losses of all rows", index, all_bytes);
    if (m->cut.cp_blocks > 1 && rc == 0)
        rc = losses_in_order(m, s, ordered, s->losses);
    if (s->is_active && rc == 0)
        lane_copy(m->lane, s->batch.losses, ordered, all_bytes);
    if (m->cut.cp_blocks > 1)
        model_give(m, "losses of all rows", index);
    model_give(m, "losses", index);
    return rc;
}
