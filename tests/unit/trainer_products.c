/* trainer_products.c - products over blocks, at once and with float8 operands
 * (trainer/model/products.c).
 *
 * Goal: products that can be one operation are, with the bits of each alone. Rows that several
 * products read are rounded once where they are one block, and the copy that a product reads is
 * never that of other rows. Method: kernels that count their roundings and products; each result
 * beside that of operands which are rounded for it alone. */
#include "kernels/backend.h"
#include "tests/unit/suite.h"
#include "tests/unit/trainer_bed.h"
#include "trainer/data/random.h"
#include "trainer/model/private.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 32u
#define DIM 16u
#define WIDTH 32u /* of a column, all its blocks */
#define VALUES_MAX (ROWS * WIDTH)

struct counting {
    struct kernels base;
    struct kernel_backend_ops ops;
    struct kernels *inner;
    uint32_t roundings, products; /* operations */
};

static void count_run(struct kernels *kernels, struct lane *lane, enum kernel_op op,
                      const void *args)
{
    struct counting *c = (struct counting *)kernels;
    c->roundings += op == KERNEL_ROUND_FLOAT8;
    c->products += op == KERNEL_LINEAR || op == KERNEL_LINEARS ||
                   op == KERNEL_LINEAR_BACKWARD_WEIGHT || op == KERNEL_LINEARS_BACKWARD_WEIGHT;
    c->inner->ops->run(c->inner, lane, op, args);
}

struct bed {
    struct counting counting;
    struct model m;
    void *scratch;
    float x[VALUES_MAX], w[3][VALUES_MAX], gradient[3][VALUES_MAX];
    float operands[NUM_OPERANDS][3 * VALUES_MAX] __attribute__((aligned(64)));
};

static struct bed *bed_open(uint32_t row_blocks, uint32_t blocks)
{
    struct bed *bed = aligned_alloc(64, (sizeof(*bed) + 63) / 64 * 64);
    memset(bed, 0, sizeof(*bed));
    assert_int_equal(new_kernels(&bed->counting.inner, 1), 0);
    bed->counting.ops = *bed->counting.inner->ops;
    bed->counting.ops.run = count_run;
    bed->counting.base.ops = &bed->counting.ops;
    bed->m = (struct model){.kernels = &bed->counting.base,
                            .lane = new_lane(),
                            .rows = ROWS,
                            .row_blocks = row_blocks,
                            .block_rows = ROWS / row_blocks,
                            .blocks = blocks,
                            .element = sizeof(float),
                            .dtype = KERNEL_F32,
                            .gradient_format = KERNEL_E5M2,
                            .s.dim = DIM};
    const struct kernel_shapes shapes = {1, ROWS, DIM, WIDTH, 1, 1, DIM, WIDTH, KERNEL_F32};
    size_t bytes = (kernels_scratch_bytes(bed->counting.inner, &shapes) + 63) / 64 * 64;
    bed->scratch = aligned_alloc(64, bytes);
    lane_set_scratch(bed->m.lane, bed->scratch, bytes);
    for (uint32_t i = 0; i < NUM_OPERANDS; i++)
        bed->m.operands[i] = bed->operands[i];
    for (uint32_t i = 0; i < VALUES_MAX; i++) {
        bed->x[i] = random_normal(random_key(1, "x"), i) * (i < VALUES_MAX / 4 ? 1 : 40);
        for (uint32_t j = 0; j < 3; j++) {
            bed->w[j][i] = random_normal(random_key(j, "w"), i);
            bed->gradient[j][i] = random_normal(random_key(j, "gradient"), i);
        }
    }
    return bed;
}
static void bed_close(struct bed *bed)
{
    free_lane(bed->m.lane);
    kernels_free(bed->counting.inner);
    free(bed->scratch);
    free(bed);
}

/* `from`, rounded for one product alone. */
static void round_for(struct bed *bed, float *out, const float *from, size_t count,
                      enum kernel_float8 format, bool is_float8)
{
    const struct kernel_round_float8 args = {out, from, NULL, count, 0, format, KERNEL_F32};
    memcpy(out, from, count * sizeof(*out));
    if (is_float8)
        kernel_round_float8(bed->counting.inner, bed->m.lane, &args);
}

static void want_column(struct bed *bed, const float *got, const float *w, bool is_float8)
{
    uint32_t width = WIDTH / bed->m.blocks, rows = bed->m.block_rows;
    float x[VALUES_MAX] __attribute__((aligned(64))), part[VALUES_MAX] __attribute__((aligned(64)));
    float want[VALUES_MAX] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < bed->m.blocks * bed->m.row_blocks; i++) {
        uint32_t b = i / bed->m.row_blocks, p = i % bed->m.row_blocks;
        round_for(bed, x, bed->x + (size_t)p * rows * DIM, (size_t)rows * DIM, KERNEL_E4M3,
                  is_float8);
        round_for(bed, part, w + (size_t)b * width * DIM, (size_t)width * DIM, KERNEL_E4M3,
                  is_float8);
        POST(bed->counting.inner, bed->m.lane, linear, .out = want, .x = x, .w = part, .rows = rows,
             .in = DIM, .out_dim = width);
        assert_memory_equal(got + (size_t)(b * ROWS + p * rows) * width, want,
                            (size_t)rows * width * sizeof(*want));
    }
}

TEST(test_products__rows_of_one_block_are_rounded_once_for_all_columns)
{
    for (uint32_t row_blocks = 1; row_blocks <= 2; row_blocks++) {
        struct bed *bed = bed_open(row_blocks, 2);
        float out[3][VALUES_MAX] __attribute__((aligned(64)));
        /* The first is not of float8: the buffer does not contain x then. */
        for (uint32_t i = 0; i < 3; i++) {
            const struct product_column columns[] = {{out[0], bed->w[0], WIDTH, 2, i == 0},
                                                     {out[1], bed->w[1], WIDTH, 2, true},
                                                     {out[2], bed->w[2], WIDTH, 2, i < 2}};
            uint32_t before = bed->counting.roundings, weights = 2 * (1 + (i == 0) + (i < 2));
            product_columns(&bed->m, bed->x, NULL, DIM, columns, 3);
            assert_int_equal(bed->counting.roundings - before,
                             weights + (row_blocks == 1 ? 1 : weights * row_blocks));
            for (uint32_t j = 0; j < 3; j++)
                want_column(bed, out[j], bed->w[j], columns[j].is_float8);
            memset(bed->operands, 0xff, sizeof(bed->operands));
        }
        bed_close(bed);
    }
}

/* Of the second and third the weights have as many blocks as the first's, or half as many, or one
 * of them is of float8. */
TEST(test_products__columns_of_as_many_blocks_are_one_operation)
{
    static const struct {
        uint32_t blocks, row_blocks, products;
        bool is_float8[3];
    } ways[] = {{2, 1, 2, {false}},
                {2, 2, 4, {false}},
                {1, 1, 2 + 1, {false}},
                {2, 1, 2 + 2, {true, false, false}},
                {2, 1, 3 * 2, {false, true, false}},
                {2, 1, 2 + 2, {false, false, true}}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct bed *bed = bed_open(ways[i].row_blocks, 2);
        float out[3][VALUES_MAX] __attribute__((aligned(64)));
        struct product_column columns[3];
        for (uint32_t j = 0; j < 3; j++)
            columns[j] = (struct product_column){.out = out[j],
                                                 .w = bed->w[j],
                                                 .out_dim = WIDTH,
                                                 .blocks = j == 0 ? 2 : ways[i].blocks,
                                                 .is_float8 = ways[i].is_float8[j]};
        product_columns(&bed->m, bed->x, NULL, DIM, columns, 3);
        assert_int_equal(bed->counting.products, ways[i].products);
        for (uint32_t j = 0; j < 3; j++) {
            bed->m.blocks = columns[j].blocks;
            want_column(bed, out[j], bed->w[j], columns[j].is_float8);
        }
        bed_close(bed);
    }
}

static void want_weight(struct bed *bed, const float *got, const float *dout, bool x_is_cut,
                        bool is_float8)
{
    uint32_t width = WIDTH / bed->m.blocks;
    float x[VALUES_MAX] __attribute__((aligned(64))), part[VALUES_MAX] __attribute__((aligned(64)));
    float want[VALUES_MAX] __attribute__((aligned(64)));
    for (uint32_t b = 0; b < bed->m.blocks; b++) {
        round_for(bed, x, bed->x + (x_is_cut ? b : 0) * (size_t)ROWS * DIM, (size_t)ROWS * DIM,
                  KERNEL_E4M3, is_float8);
        round_for(bed, part, dout + (x_is_cut ? 0 : b) * (size_t)ROWS * width, (size_t)ROWS * width,
                  bed->m.gradient_format, is_float8);
        POST(bed->counting.inner, bed->m.lane, linear_backward_weight, .dw = want, .dout = part,
             .x = x, .rows = ROWS, .in = DIM, .out_dim = width);
        assert_memory_equal(got + (size_t)b * width * DIM, want,
                            (size_t)width * DIM * sizeof(*want));
    }
}

/* The first by rows, whose x is cut; the others by columns, with the same x. */
TEST(test_products__gradients_of_weights_round_their_common_rows_once_in_either_format)
{
    static const enum kernel_float8 formats[] = {KERNEL_E5M2, KERNEL_E4M3};
    for (uint32_t format = 0; format < 2; format++) {
        struct bed *bed = bed_open(1, 2);
        float dw[VALUES_MAX] __attribute__((aligned(64)));
        bed->m.gradient_format = formats[format];
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t before = bed->counting.roundings;
            const struct product_weight weight = {.name = "partial",
                                                  .dw = dw,
                                                  .dout = bed->gradient[i],
                                                  .x = bed->x,
                                                  .out_dim = WIDTH / 2,
                                                  .in = DIM,
                                                  .dout_is_cut = i > 0,
                                                  .x_is_cut = i == 0,
                                                  .is_float8 = true,
                                                  .dout_operand = OPERAND_D_FIRST,
                                                  .x_was_read = i > 1,
                                                  .w_blocks = 2,
                                                  .sharers = 1};
            assert_int_equal(product_weight(&bed->m, &weight, true), 0);
            want_weight(bed, dw, bed->gradient[i], i == 0, true);
            assert_int_equal(bed->counting.roundings - before, i < 2 ? 3 : 2);
        }
        bed_close(bed);
    }
}

TEST(test_products__gradients_of_weights_of_as_many_blocks_are_one_operation)
{
    static const struct {
        uint32_t products;
        bool is_float8[3];
    } ways[] = {{2, {false}}, {2 + 2, {true, false, false}}, {3 * 2, {false, true, false}}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct bed *bed = bed_open(1, 2);
        float dw[3][VALUES_MAX] __attribute__((aligned(64)));
        struct product_weight weights[3];
        for (uint32_t j = 0; j < 3; j++)
            weights[j] = (struct product_weight){.name = "partial",
                                                 .dw = dw[j],
                                                 .dout = bed->gradient[j],
                                                 .x = bed->x,
                                                 .out_dim = WIDTH / 2,
                                                 .in = DIM,
                                                 .dout_is_cut = true,
                                                 .is_float8 = ways[i].is_float8[j],
                                                 .dout_operand = OPERAND_D_FIRST,
                                                 .w_blocks = 2,
                                                 .sharers = 1};
        assert_int_equal(product_weights(&bed->m, weights, 3, true), 0);
        assert_int_equal(bed->counting.products, ways[i].products);
        for (uint32_t j = 0; j < 3; j++)
            want_weight(bed, dw[j], bed->gradient[j], false, weights[j].is_float8);
        bed_close(bed);
    }
}

/* Of each block of two gradients one copy: the weight that reads it has the bits of one that rounds
 * for itself. */
TEST(test_products__a_gradient_is_rounded_once_for_rows_and_weights)
{
    struct bed *bed = bed_open(1, 2);
    float dx[VALUES_MAX] __attribute__((aligned(64)));
    float dw[2][2][WIDTH * DIM] __attribute__((aligned(64)));
    const struct product_term terms[] = {{bed->gradient[0], bed->w[0], WIDTH, 2, true, NULL},
                                         {bed->gradient[1], bed->w[1], WIDTH, 2, true, NULL}};
    assert_int_equal(product_columns_input(&bed->m, dx, terms, 2, true), 0);
    for (uint32_t i = 0; i < 4; i++) {
        const struct product_weight weight = {.name = "partial",
                                              .dw = dw[i / 2][i % 2],
                                              .dout = bed->gradient[i % 2],
                                              .x = bed->x,
                                              .out_dim = WIDTH / 2,
                                              .in = DIM,
                                              .dout_is_cut = true,
                                              .is_float8 = true,
                                              .dout_operand =
                                                  (enum operand)(OPERAND_D_FIRST + i % 2),
                                              .dout_was_read = i < 2,
                                              .w_blocks = 2,
                                              .sharers = 1};
        uint32_t before = bed->counting.roundings;
        assert_int_equal(product_weight(&bed->m, &weight, true), 0);
        assert_int_equal(bed->counting.roundings - before, i < 2 ? 1 : 3);
    }
    assert_memory_equal(dw[0], dw[1], sizeof(dw[0]));
    bed_close(bed);
}

SUITE(NULL, NULL)
