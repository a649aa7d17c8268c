/* products.c - products and sums over blocks: the one place that knows how the model is cut.
 *
 * Rows. The tokens of a leaf are cut in cp_blocks blocks of block_rows rows; a rank has row_blocks
 * of them, one after the other. Work on single rows (norms, the residual stream) is cut again: a
 * tensor-parallel rank has own rows of each block, a contiguous tp-th (sequence parallel).
 * rows_gather makes rows from own rows. Columns. Heads, hidden width and vocabulary are cut in
 * tp_blocks; a rank has `blocks` of them, each a dense matrix [rows, columns of a block], so that a
 * product has the same shape, strides and bits on every rank.
 *
 * Sums. A block's contribution to a sum over a cut dimension is a partial result in float, summed
 * in the block's own order. Partial results are added as a balanced binary tree over the index of
 * the block (C2 of exchange/reduce.c), and rounded once. Blocks and degrees are powers of two, so a
 * rank adds a whole sub-tree and sends one partial result:
 *
 * - blocks of tp: products by rows, inputs of products by columns, weights of norms; and weights of
 *   keys and values, where several blocks share a head.
 * - blocks of cp: all weights; this file sums over this rank's blocks only; the owner of the
 *   gradient adds the rest (exchange/reduce.c). Gradients of keys and values: see context.c.
 *
 * With one block there is no partial result: the product writes the result.
 *
 * Together. Products of the same rows are one operation (kernel_linears): block b of products whose
 * weights have as many blocks. These are queries, keys and values, or keys and values; gate and up.
 * So are their gradients of weights. Gradients of the rows are separate: each is added to the
 * previous one, which is the order of the sum. Products in float8 are separate, too: each has its
 * own scales.
 *
 * Float8. Each operand is rounded before the product that reads it. Rows of one block are rounded
 * once for all consecutive products that read them. Gradients are rounded once for the gradients of
 * rows and weights, if both halves of a layer's backward are made together. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/model/private.h"

/* ---- trees ---- */

static void fold(struct model *m, float *acc, const float *leaf, size_t count)
{
    kernel_fold(m->kernels, m->lane,
                &(struct kernel_fold){.acc = acc, .leaf = leaf, .count = count});
}

void tree_in_place(struct model *m, float *parts, uint32_t num, size_t stride, size_t count)
{
    for (uint32_t step = 1; step < num; step *= 2)
        for (uint32_t i = 0; i < num; i += 2 * step)
            fold(m, parts + i * stride, parts + (i + step) * stride, count);
}

static uint32_t depth_of(uint32_t parts)
{
    uint32_t depth = 0;
    while (parts >> depth > 1)
        depth++;
    return depth;
}

float *tree_at(const struct tree *tree, uint32_t index)
{
    return tree->slot[__builtin_popcount(index)];
}

void tree_add(struct model *m, const struct tree *tree, uint32_t index)
{
    uint32_t height = (uint32_t)__builtin_popcount(index);
    for (; index & 1; index >>= 1, height--)
        fold(m, tree->slot[height - 1], tree->slot[height], tree->count);
}

struct tree tree_take(struct model *m, const char *name, float *sum, size_t count, uint32_t parts)
{
    struct tree tree = {.slot = {sum}, .count = count};
    for (uint32_t i = 1; i <= depth_of(parts); i++)
        tree.slot[i] = model_take_bytes(m, name, i, count * sizeof(float));
    return tree;
}

void tree_give(struct model *m, const char *name, uint32_t parts)
{
    for (uint32_t i = 1; i <= depth_of(parts); i++)
        model_give(m, name, i);
}

/* ---- rows among tensor-parallel ranks ---- */

int rows_gather(struct model *m, void *full, const void *own, size_t row_bytes)
{
    uint32_t tp = m->cut.tp, own_block = m->block_rows / tp;
    size_t *bytes = m->lists, *at = m->lists + tp;
    if (tp == 1)
        return 0;
    model_set_lists(m, tp, own_block * row_bytes);
    for (uint32_t p = 0; p < m->row_blocks; p++)
        ERR_TRY(comm_all_gather_v(m->cut.tp_group, at_byte(own, p * own_block * row_bytes),
                                  bytes[0], at_byte(full, p * m->block_rows * row_bytes), bytes,
                                  at));
    return 0;
}

int rows_reduce(struct model *m, void *own_out, uint32_t p, float *partial, bool is_active)
{
    uint32_t tp = m->cut.tp, own_block = m->block_rows / tp;
    size_t count = (size_t)own_block * m->s.dim;
    size_t *bytes = m->lists, *at = m->lists + tp;
    float *sum = partial;
    if (tp > 1)
        sum = model_take_bytes(m, "partial rows received", 0, tp * count * sizeof(float));
    if (is_active && tp > 1) {
        model_set_lists(m, tp, count * sizeof(float));
        ERR_TRY(comm_all_to_all_v(m->cut.tp_group, partial, bytes, at, sum, bytes, at));
        tree_in_place(m, sum, tp, count, count);
    }
    if (is_active)
        kernel_convert(m->kernels, m->lane,
                       &(struct kernel_convert){.out = at_byte(own_out, p * count * m->element),
                                                .in = sum,
                                                .count = count,
                                                .out_dtype = m->dtype});
    if (tp > 1)
        model_give(m, "partial rows received", 0);
    return 0;
}

/* ---- products ---- */

static const void *part_of(const struct model *m, const void *base, uint32_t block, uint32_t p,
                           uint32_t width)
{
    size_t row = (size_t)block * m->rows + (size_t)p * m->block_rows;
    return at_byte(base, row * width * m->element);
}

/* The float8 copy of an operand of a product. Its scale is that of the data that one product reads,
 * a block of rows or of a weight: so the scale is the same on every mesh. */
static const void *round_operand(struct model *m, enum operand which, void *out, const void *x,
                                 const uint32_t *largest, size_t count, uint32_t width)
{
    bool is_gradient = which >= OPERAND_D_ROWS;
    kernel_round_float8(
        m->kernels, m->lane,
        &(struct kernel_round_float8){.out = out,
                                      .x = x,
                                      .largest = largest,
                                      .count = count,
                                      .width = width,
                                      .format = is_gradient ? m->gradient_format : KERNEL_E4M3,
                                      .dtype = m->dtype});
    return out;
}

static const void *weight_operand(struct model *m, bool is_float8, const void *w, uint32_t block,
                                  size_t rows, uint32_t width)
{
    size_t count = rows * width;
    const void *part = at_byte(w, block * count * m->element);
    if (!is_float8)
        return part;
    if (!m->has_codes)
        return round_operand(m, OPERAND_W, m->operands[OPERAND_W], part, NULL, count, width);
    kernel_float8_decode(
        m->kernels, m->lane,
        &(struct kernel_float8_decode){.out = m->operands[OPERAND_W],
                                       .coded = at_byte(w, block * kernel_coded_bytes(count)),
                                       .count = count,
                                       .width = width,
                                       .dtype = m->dtype});
    return m->operands[OPERAND_W];
}

/* Rows that a product reads. `was_read`: an earlier product has read them, so their copy exists,
 * unless it is of x and another block of rows was rounded since. */
struct rows {
    const void *x;
    const uint32_t *largest;
    uint32_t block, width;
    bool is_float8, was_read;
};

static const void *row_operand(struct model *m, enum operand which, struct rows r, uint32_t p)
{
    const void *part = part_of(m, r.x, r.block, p, r.width);
    bool has_all = which != OPERAND_X;
    size_t place = has_all ? (size_t)r.block * m->row_blocks + p : 0;
    if (!r.is_float8)
        return part;
    void *copy = at_byte(m->operands[which], place * model_operand_bytes(m, r.width));
    if (r.was_read && (has_all || m->row_blocks == 1))
        return copy;
    return round_operand(m, which, copy, part, r.largest, (size_t)m->block_rows * r.width, r.width);
}

/* Block b of one column; marks x as read. */
static void product_column(struct model *m, const struct product_column *to, struct rows *x,
                           uint32_t b)
{
    uint32_t width = to->out_dim / to->blocks;
    const void *part = weight_operand(m, to->is_float8, to->w, b, width, x->width);
    x->is_float8 = to->is_float8;
    for (uint32_t p = 0; p < m->row_blocks; p++)
        kernel_linear(
            m->kernels, m->lane,
            &(struct kernel_linear){.out = (void *)(uintptr_t)part_of(m, to->out, b, p, width),
                                    .x = row_operand(m, OPERAND_X, *x, p),
                                    .w = part,
                                    .rows = m->block_rows,
                                    .in = x->width,
                                    .out_dim = width,
                                    .dtype = m->dtype,
                                    .is_float8 = to->is_float8});
    x->was_read = x->was_read || to->is_float8;
}

/* Block b of each column, as one operation. */
static void columns_together(struct model *m, const struct product_column *columns, uint32_t num,
                             const struct rows *x, uint32_t b)
{
    for (uint32_t p = 0; p < m->row_blocks; p++) {
        struct kernel_linears args = {.x = part_of(m, x->x, x->block, p, x->width),
                                      .num = num,
                                      .rows = m->block_rows,
                                      .in = x->width,
                                      .dtype = m->dtype};
        for (uint32_t i = 0; i < num; i++) {
            uint32_t width = columns[i].out_dim / columns[i].blocks;
            args.out[i] = (void *)(uintptr_t)part_of(m, columns[i].out, b, p, width);
            args.w[i] = weight_operand(m, false, columns[i].w, b, width, x->width);
            args.out_dim[i] = width;
        }
        kernel_linears(m->kernels, m->lane, &args);
    }
}

/* The number of columns, from the first on, that are one operation. */
static uint32_t num_together(const struct product_column *columns, uint32_t num)
{
    uint32_t n = 1;
    while (n < num && n < KERNEL_LINEARS_MAX && columns[n].blocks == columns[0].blocks &&
           !columns[0].is_float8 && !columns[n].is_float8)
        n++;
    return n;
}

void product_columns(struct model *m, const void *x, const uint32_t *largest, uint32_t in,
                     const struct product_column *columns, uint32_t num_columns)
{
    struct rows rows = {.x = x, .largest = largest, .width = in};
    for (uint32_t i = 0, n; i < num_columns; i += n) {
        n = num_together(columns + i, num_columns - i);
        for (uint32_t b = 0; b < columns[i].blocks; b++)
            if (n > 1)
                columns_together(m, columns + i, n, &rows, b);
            else
                product_column(m, &columns[i], &rows, b);
    }
}

/* Results of all blocks of rows, one block of rows after the other. If the model's blocks are cut,
 * the products are partial: a tree adds them, and the tp ranks reduce its root. */
struct row_sums {
    struct model *m;
    void *own; /* this rank's part of the result */
    size_t count;
    bool is_partial;
    struct tree tree;
};

static struct row_sums row_sums_begin(struct model *m, void *own)
{
    size_t count = (size_t)m->block_rows * m->s.dim;
    struct row_sums s = {.m = m, .own = own, .count = count, .is_partial = m->cut.tp_blocks > 1};
    if (s.is_partial)
        s.tree = tree_take(m, "partial rows",
                           model_take_bytes(m, "partial rows", 0, count * sizeof(float)), count,
                           m->blocks);
    return s;
}

/* The output of block b's product for row block p. */
static void *row_sums_at(const struct row_sums *s, uint32_t b, uint32_t p)
{
    return s->is_partial ? (void *)tree_at(&s->tree, b)
                         : at_byte(s->own, p * s->count * s->m->element);
}

static void row_sums_add(struct row_sums *s, uint32_t b)
{
    if (s->is_partial)
        tree_add(s->m, &s->tree, b);
}

/* Call when all blocks of row block p are written. */
static int row_sums_reduce(struct row_sums *s, uint32_t p, bool is_active)
{
    return s->is_partial ? rows_reduce(s->m, s->own, p, s->tree.slot[0], is_active) : 0;
}

static void row_sums_end(struct row_sums *s)
{
    if (s->is_partial) {
        tree_give(s->m, "partial rows", s->m->blocks);
        model_give(s->m, "partial rows", 0);
    }
}

int product_rows(struct model *m, void *own_out, const void *x, const uint32_t *largest,
                 const void *w, uint32_t in, bool is_float8, bool is_active)
{
    uint32_t width = in / m->blocks, c = m->s.dim;
    struct row_sums sums = row_sums_begin(m, own_out);
    for (uint32_t p = 0; p < m->row_blocks; p++) {
        for (uint32_t b = 0; b < m->blocks && is_active; b++) {
            const struct rows rows = {x, largest, b, width, is_float8, false};
            kernel_linear(m->kernels, m->lane,
                          &(struct kernel_linear){.out = row_sums_at(&sums, b, p),
                                                  .x = row_operand(m, OPERAND_X, rows, p),
                                                  .w = weight_operand(m, is_float8, w, b, c, width),
                                                  .rows = m->block_rows,
                                                  .in = width,
                                                  .out_dim = c,
                                                  .dtype = m->dtype,
                                                  .is_partial = sums.is_partial,
                                                  .is_float8 = is_float8});
            row_sums_add(&sums, b);
        }
        ERR_TRY(row_sums_reduce(&sums, p, is_active));
    }
    row_sums_end(&sums);
    return 0;
}

void product_rows_input(struct model *m, void *dx, const void *dout, const void *w, uint32_t in,
                        bool is_float8)
{
    uint32_t width = in / m->blocks, c = m->s.dim;
    for (uint32_t b = 0; b < m->blocks; b++) {
        const struct rows rows = {dout, NULL, 0, c, is_float8, b > 0};
        const void *part = weight_operand(m, is_float8, w, b, c, width);
        for (uint32_t p = 0; p < m->row_blocks; p++)
            kernel_linear_backward_input(m->kernels, m->lane,
                                         &(struct kernel_linear_backward_input){
                                             .dx = (void *)(uintptr_t)part_of(m, dx, b, p, width),
                                             .dout = row_operand(m, OPERAND_D_ROWS, rows, p),
                                             .w = part,
                                             .rows = m->block_rows,
                                             .in = width,
                                             .out_dim = c,
                                             .dtype = m->dtype,
                                             .dout_format = m->gradient_format,
                                             .is_float8 = is_float8});
    }
}

/* All terms of one block and one row block, one after the other. */
static void input_terms(struct model *m, void *to, const struct product_term *terms,
                        uint32_t num_terms, uint32_t b, uint32_t p)
{
    uint32_t c = m->s.dim;
    for (uint32_t i = 0; i < num_terms; i++) {
        const struct product_term *term = &terms[i];
        uint32_t width = term->out_dim / m->blocks;
        uint32_t w_block = b / (m->blocks / term->w_blocks);
        const struct rows rows = {term->dout, term->largest, b, width, term->is_float8, false};
        kernel_linear_backward_input(
            m->kernels, m->lane,
            &(struct kernel_linear_backward_input){
                .dx = to,
                .dout = row_operand(m, (enum operand)(OPERAND_D_FIRST + i), rows, p),
                .w = weight_operand(m, term->is_float8, term->w, w_block, width, c),
                .rows = m->block_rows,
                .in = c,
                .out_dim = width,
                .accumulate = i > 0,
                .dtype = m->dtype,
                .dout_format = m->gradient_format,
                .is_partial = m->cut.tp_blocks > 1,
                .is_float8 = term->is_float8});
    }
}

int product_columns_input(struct model *m, void *own_dx, const struct product_term *terms,
                          uint32_t num_terms, bool is_active)
{
    struct row_sums sums = row_sums_begin(m, own_dx);
    for (uint32_t p = 0; p < m->row_blocks; p++) {
        for (uint32_t b = 0; b < m->blocks && is_active; b++) {
            input_terms(m, row_sums_at(&sums, b, p), terms, num_terms, b, p);
            row_sums_add(&sums, b);
        }
        ERR_TRY(row_sums_reduce(&sums, p, is_active));
    }
    row_sums_end(&sums);
    return 0;
}

/* ---- gradients of weights ---- */

/* Block b of `num` products, as one operation. */
static void weights_together(struct model *m, const struct product_weight *a, uint32_t num,
                             float *const *to, uint32_t b, uint32_t p)
{
    struct kernel_linears_backward_weight args = {
        .x = part_of(m, a->x, a->x_is_cut ? b : 0, p, a->in),
        .num = num,
        .rows = m->block_rows,
        .in = a->in,
        .dtype = m->dtype,
        .is_folded = m->folds};
    for (uint32_t i = 0; i < num; i++) {
        args.dw[i] = to[i];
        args.dout[i] = part_of(m, a[i].dout, a[i].dout_is_cut ? b : 0, p, a[i].out_dim);
        args.out_dim[i] = a[i].out_dim;
    }
    kernel_linears_backward_weight(m->kernels, m->lane, &args);
}

static void weight_part(struct model *m, const struct product_weight *a, float *to, uint32_t b,
                        uint32_t p)
{
    const struct rows dout = {
        a->dout,    a->largest_dout, a->dout_is_cut ? b : 0,
        a->out_dim, a->is_float8,    a->dout_was_read || (!a->dout_is_cut && b > 0)};
    const struct rows x = {a->x,  a->largest_x, a->x_is_cut ? b : 0,
                           a->in, a->is_float8, !a->x_is_cut && (b > 0 || a->x_was_read)};
    kernel_linear_backward_weight(
        m->kernels, m->lane,
        &(struct kernel_linear_backward_weight){.dw = to,
                                                .dout = row_operand(m, a->dout_operand, dout, p),
                                                .x = row_operand(m, OPERAND_X, x, p),
                                                .rows = m->block_rows,
                                                .in = a->in,
                                                .out_dim = a->out_dim,
                                                .dtype = m->dtype,
                                                .dout_format = m->gradient_format,
                                                .is_folded = m->folds,
                                                .is_float8 = a->is_float8});
}

/* A part that several tp ranks hold: adds the contributions of all of them. */
static int add_sharers(struct model *m, float *part, size_t count, uint32_t sharers, bool is_active)
{
    uint32_t tp = m->cut.tp, first = m->cut.tp_place / sharers * sharers;
    size_t *bytes = m->lists, *at = m->lists + tp;
    if (sharers == 1)
        return 0;
    float *all =
        model_take_bytes(m, "partial weights of sharers", 0, sharers * count * sizeof(float));
    if (is_active) {
        /* Each part goes only to the sharers of its head. */
        size_t *send_at = m->lists + 2 * (size_t)tp;
        for (uint32_t r = 0; r < tp; r++) {
            bool is_mine = r / sharers * sharers == first;
            bytes[r] = is_mine ? count * sizeof(float) : 0;
            at[r] = is_mine ? (r - first) * count * sizeof(float) : 0;
            send_at[r] = 0;
        }
        ERR_TRY(comm_all_to_all_v(m->cut.tp_group, part, bytes, send_at, all, bytes, at));
        tree_in_place(m, all, sharers, count, count);
        lane_copy(m->lane, part, all, count * sizeof(float));
    }
    model_give(m, "partial weights of sharers", 0);
    return 0;
}

/* Sums of a gradient: over blocks of rows, and over blocks that share a part of the weight. */
struct weight_sums {
    struct tree rows, shared;
    size_t count;
};

static struct weight_sums weight_sums_take(struct model *m, const struct product_weight *a)
{
    size_t count = (size_t)a->out_dim * a->in;
    return (struct weight_sums){
        .rows = tree_take(m, a->name, NULL, count, m->row_blocks),
        .shared = tree_take(m, a->shared_name, NULL, count, m->blocks / a->w_blocks),
        .count = count};
}

static void weight_sums_give(struct model *m, const struct product_weight *a)
{
    tree_give(m, a->name, m->row_blocks);
    tree_give(m, a->shared_name, m->blocks / a->w_blocks);
}

/* Block i of the blocks that share part w, of all products. */
static void weights_block(struct model *m, const struct product_weight *a, uint32_t num,
                          const struct weight_sums *sums, uint32_t w, uint32_t i, uint32_t p)
{
    float *to[KERNEL_LINEARS_MAX];
    uint32_t b = w * (m->blocks / a->w_blocks) + i;
    for (uint32_t j = 0; j < num; j++)
        to[j] = tree_at(&sums[j].shared, i);
    if (num > 1)
        weights_together(m, a, num, to, b, p);
    else
        weight_part(m, a, to[0], b, p);
    for (uint32_t j = 0; j < num; j++)
        tree_add(m, &sums[j].shared, i);
}

/* Products that are one operation: their weights have the same number of blocks. */
static int weights_of(struct model *m, const struct product_weight *a, uint32_t num, bool is_active)
{
    struct weight_sums sums[KERNEL_LINEARS_MAX];
    for (uint32_t j = 0; j < num; j++)
        sums[j] = weight_sums_take(m, &a[j]);
    for (uint32_t i = 0; i < a->w_blocks * m->row_blocks; i++) {
        uint32_t w = i / m->row_blocks, p = i % m->row_blocks;
        for (uint32_t j = 0; j < num; j++) {
            sums[j].rows.slot[0] = is_active ? a[j].dw + w * sums[j].count : NULL;
            sums[j].shared.slot[0] = tree_at(&sums[j].rows, p);
        }
        for (uint32_t b = 0; b < m->blocks / a->w_blocks && is_active; b++)
            weights_block(m, a, num, sums, w, b, p);
        for (uint32_t j = 0; j < num; j++) {
            ERR_TRY(add_sharers(m, sums[j].shared.slot[0], sums[j].count, a[j].sharers, is_active));
            if (is_active)
                tree_add(m, &sums[j].rows, p);
        }
    }
    for (uint32_t j = 0; j < num; j++)
        weight_sums_give(m, &a[j]);
    return 0;
}

int product_weights(struct model *m, const struct product_weight *a, uint32_t num, bool is_active)
{
    for (uint32_t i = 0, n; i < num; i += n) {
        for (n = 1; i + n < num && n < KERNEL_LINEARS_MAX; n++)
            if (a[i].is_float8 || a[i + n].is_float8 || a[i + n].w_blocks != a[i].w_blocks)
                break;
        ERR_TRY(weights_of(m, a + i, n, is_active));
    }
    return 0;
}
