/* products.c - matrix products of a preflight.
 *
 * Products of small integers come first: they are exact in any order of additions, so every device
 * has to have the same bits. Then come the model's, for their rates: of each different matrix of a
 * layer and of the output, cut by tensor and context parallel, the forward and both halves of the
 * backward. Every rank multiplies the same shapes, so that their rates can be compared. */
#include "kernels/kernels.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/model/model.h"
#include "trainer/model/shape.h"
#include "trainer/preflight/private.h"

#include <math.h>
#include <string.h>

#define IN 256u /* sums of so many of -1, 0 and 1 are exact in bfloat16 */
#define SIDE_MIN 256u
#define SIDE_MAX 4096u
#define ENOUGH_SECONDS 0.01 /* shorter products are made larger, up to SIDE_MAX, or repeated */
#define TIMES 4u            /* the fastest counts, without the first, which plans */

/* Larger dimensions of the model are measured at this one: the rate no longer depends on it. */
#define DIMENSION_MAX 16384u
/* A CPU multiplies as many rows as these operations allow, at least ROWS_MIN. */
#define CPU_FLOPS 4e9
#define ROWS_MIN 256u
#define SHAPE_SECONDS 1.0 /* no further repetition after this time */
#define FILL_BYTES ((size_t)64 << 10)

struct products {
    struct rank *rank;
    struct device *device;
    struct lane *lane;
    void *memory, *scratch, *host; /* host: PINNED */
};

static void free_memory(struct products *p)
{
    device_free(p->device, p->memory);
    device_free(p->device, p->scratch);
    device_free(p->device, p->host);
    p->memory = p->scratch = p->host = NULL;
}

/* For products of [rows, in] and [out_dim, in]. */
static int take_memory(struct products *p, const struct preflight_shape *shape,
                       enum kernel_dtype dtype, size_t bytes, size_t host_bytes)
{
    struct kernel_shapes shapes = {1, shape->rows, shape->in,      shape->out_dim, 1,
                                   1, 8,           shape->out_dim, dtype};
    size_t scratch_bytes = kernels_scratch_bytes(p->rank->kernels, &shapes);
    ERR_TRY(device_alloc(p->device, &p->memory, bytes, ON_DEVICE));
    ERR_TRY(device_alloc(p->device, &p->scratch, scratch_bytes, ON_DEVICE));
    ERR_TRY(device_alloc(p->device, &p->host, host_bytes, PINNED));
    lane_set_scratch(p->lane, p->scratch, scratch_bytes);
    return 0;
}

/* ---- small integers ---- */

/* -1, 0 or 1, the same on every rank. */
static int small(size_t i)
{
    return (int)((uint32_t)(i * 2654435761u) >> 16) % 3 - 1;
}

static uint16_t bf16_of(int value) /* exact up to 256 */
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Checks one row in 16, to save the host's time. */
static bool is_product(const uint16_t *out, size_t side)
{
    for (size_t row = 0; row < side; row += 16)
        for (size_t column = 0; column < side; column++) {
            int sum = 0;
            for (size_t i = 0; i < IN; i++)
                sum += small(row * IN + i) * small(column * IN + i);
            if (out[row * side + column] != bf16_of(sum))
                return false;
        }
    return true;
}

/* x and w have the same numbers: the product of a SIDE x IN matrix with its transpose. */
static int multiply_small(struct products *p, uint32_t side, double *out_rate)
{
    size_t operand = (size_t)side * IN * 2, product = (size_t)side * side * 2;
    struct preflight_shape shape = {.rows = side, .in = IN, .out_dim = side};
    ERR_TRY(take_memory(p, &shape, KERNEL_BF16, operand + product,
                        operand > product ? operand : product));
    for (size_t i = 0; i < (size_t)side * IN; i++)
        ((uint16_t *)p->host)[i] = bf16_of(small(i));
    struct kernel_linear linear = {.out = (char *)p->memory + operand,
                                   .x = p->memory,
                                   .w = p->memory,
                                   .rows = side,
                                   .in = IN,
                                   .out_dim = side,
                                   .dtype = KERNEL_BF16};
    lane_copy(p->lane, p->memory, p->host, operand);
    for (uint32_t i = 0; i <= TIMES; i++) {
        double start = clock_seconds();
        kernel_linear(p->rank->kernels, p->lane, &linear);
        ERR_TRY(lane_settle(p->lane));
        if (i > 0)
            *out_rate = fmax(*out_rate, 2.0 * side * side * IN / (clock_seconds() - start));
    }
    lane_copy(p->lane, p->host, linear.out, product);
    ERR_TRY(lane_settle(p->lane));
    if (!is_product(p->host, side))
        return report_error(ERR_CORRUPT, "take this device out of the run",
                            "a product of small integers is wrong");
    return 0;
}

/* Tries larger products while they are too short for the clock. */
static int measure_small(struct products *p, double *out_rate)
{
    double seconds = 0;
    for (uint32_t side = SIDE_MIN; side <= SIDE_MAX && seconds < ENOUGH_SECONDS; side *= 2) {
        *out_rate = 0;
        int rc = multiply_small(p, side, out_rate);
        free_memory(p);
        ERR_TRY(rc);
        seconds = 2.0 * side * side * IN / *out_rate;
    }
    return 0;
}

/* ---- the model's ---- */

/* The product of a micro-batch by this matrix. */
static struct preflight_shape cut_matrix(const struct config *config,
                                         const struct model_tensor *tensor)
{
    uint32_t blocks = (uint32_t)fmax(1, (double)config->tp_blocks);
    uint64_t rows = (uint64_t)(config->local_batch_size * config->seq_len / config->cp);
    uint64_t out = tensor->rows, in = tensor->width;
    if (tensor->role == MODEL_ROWS)
        in /= blocks;
    else if (tensor->role == MODEL_COLUMNS)
        out = (out + blocks - 1) / blocks;
    else
        out /= blocks < tensor->heads ? blocks : tensor->heads;
    double flops = 2.0 * (double)rows * (double)in * (double)out;
    out = out < DIMENSION_MAX ? out : DIMENSION_MAX;
    in = in < DIMENSION_MAX ? in : DIMENSION_MAX;
    return (struct preflight_shape){(uint32_t)rows, (uint32_t)in, (uint32_t)out, 1, flops, 0};
}

static void add_shape(struct preflight_products *out, const struct preflight_shape *shape)
{
    uint32_t i = 0;
    while (i < out->num && (out->of[i].in != shape->in || out->of[i].out_dim != shape->out_dim))
        i++;
    if (i == out->num)
        out->of[out->num++] = *shape;
    else {
        out->of[i].count += shape->count;
        out->of[i].flops += shape->flops;
    }
}

/* All layers are alike. The output is left out if only the tokens tell the vocabulary. */
static int list_shapes(struct preflight_products *out, const struct config *config)
{
    bool has_output = !shape_has_vocab_of_tokens(config);
    struct model_shape shape;
    struct model_table *table;
    uint32_t first;
    ERR_TRY(shape_of_settings(&shape, config, has_output ? 0 : 1));
    ERR_TRY(model_table_new(&table, &shape));
    uint32_t num = model_block_tensors(table, 1, &first);
    for (uint32_t i = first; i < first + num; i++) {
        struct preflight_shape of = cut_matrix(config, &table->tensors[i]);
        of.count = shape.layers;
        of.flops *= shape.layers;
        if (table->tensors[i].dims == 2)
            add_shape(out, &of);
    }
    if (has_output) {
        struct preflight_shape of = cut_matrix(config, &table->tensors[0]);
        add_shape(out, &of);
    }
    model_table_free(table);
    return 0;
}

static double measured_flops(const struct preflight_shape *shape) /* of one of three products */
{
    return 2.0 * shape->rows * shape->in * shape->out_dim;
}

static void limit_rows(struct preflight_shape *shape)
{
    double rows = CPU_FLOPS / (2.0 * shape->in * shape->out_dim);
    uint32_t most = rows > ROWS_MIN ? (uint32_t)rows / ROWS_MIN * ROWS_MIN : ROWS_MIN;
    shape->rows = shape->rows < most ? shape->rows : most;
}

/* Places of the operands, in bytes. */
struct places {
    size_t x, w, y, dx, dw, end;
};

static struct places place_operands(const struct preflight_shape *s, size_t width)
{
    struct places at = {0};
    at.w = at.x + ((size_t)s->rows * s->in * width + 63) / 64 * 64;
    at.y = at.w + ((size_t)s->out_dim * s->in * width + 63) / 64 * 64;
    at.dx = at.y + ((size_t)s->rows * s->out_dim * width + 63) / 64 * 64;
    at.dw = at.dx + ((size_t)s->rows * s->in * width + 63) / 64 * 64;
    at.end = at.dw + (size_t)s->out_dim * s->in * sizeof(float);
    return at;
}

/* Fills x and w with values of +-[0.5, 1), as the power that a product takes depends on them. */
static void fill_operands(struct products *p, const struct places *at, enum kernel_dtype dtype)
{
    uint32_t *words = p->host;
    uint32_t kept = dtype == KERNEL_BF16 ? 0x807f807f : 0x807fffff;
    uint32_t exponent = dtype == KERNEL_BF16 ? 0x3f003f00 : 0x3f000000;
    for (size_t i = 0; i < FILL_BYTES / sizeof *words; i++)
        words[i] = ((uint32_t)i * 2654435761u & kept) | exponent;
    for (size_t done = 0; done < at->y; done += FILL_BYTES)
        lane_copy(p->lane, (char *)p->memory + done, words,
                  at->y - done < FILL_BYTES ? at->y - done : FILL_BYTES);
}

/* The forward and both halves of the backward, `times` times. */
static int multiply(struct products *p, const struct preflight_shape *s, const struct places *at,
                    enum kernel_dtype dtype, uint32_t times, double *out_seconds)
{
    char *base = p->memory;
    void *x = base + at->x, *w = base + at->w, *y = base + at->y;
    struct kernel_linear forward = {.out = y,
                                    .x = x,
                                    .w = w,
                                    .rows = s->rows,
                                    .in = s->in,
                                    .out_dim = s->out_dim,
                                    .dtype = dtype};
    struct kernel_linear_backward_input input = {.dx = base + at->dx,
                                                 .dout = y,
                                                 .w = w,
                                                 .rows = s->rows,
                                                 .in = s->in,
                                                 .out_dim = s->out_dim,
                                                 .dtype = dtype};
    struct kernel_linear_backward_weight weight = {.dw = (float *)(base + at->dw),
                                                   .dout = y,
                                                   .x = x,
                                                   .rows = s->rows,
                                                   .in = s->in,
                                                   .out_dim = s->out_dim,
                                                   .dtype = dtype};
    double start = clock_seconds();
    for (uint32_t i = 0; i < times; i++) {
        kernel_linear(p->rank->kernels, p->lane, &forward);
        kernel_linear_backward_input(p->rank->kernels, p->lane, &input);
        kernel_linear_backward_weight(p->rank->kernels, p->lane, &weight);
    }
    ERR_TRY(lane_settle(p->lane));
    *out_seconds = (clock_seconds() - start) / times;
    return 0;
}

/* The first time does not count, unless it is long; the second tells how often one measurement
 * multiplies. */
static int time_shape(struct products *p, struct preflight_shape *s, enum kernel_dtype dtype)
{
    struct places at = place_operands(s, kernel_dtype_bytes(dtype));
    double seconds = 0, least = 0, begin = clock_seconds();
    ERR_TRY(take_memory(p, s, dtype, at.end, FILL_BYTES));
    fill_operands(p, &at, dtype);
    ERR_TRY(multiply(p, s, &at, dtype, 1, &least));
    if (least < SHAPE_SECONDS)
        ERR_TRY(multiply(p, s, &at, dtype, 1, &least));
    uint32_t times = (uint32_t)ceil(fmin(1000, ENOUGH_SECONDS / least));
    for (uint32_t i = 1; i < TIMES && clock_seconds() - begin < SHAPE_SECONDS; i++) {
        ERR_TRY(multiply(p, s, &at, dtype, times, &seconds));
        least = fmin(least, seconds);
    }
    s->rate = 3 * measured_flops(s) / least;
    return 0;
}

static int measure_model(struct products *p, struct preflight_products *out)
{
    const struct config *config = p->rank->config;
    bool is_float = config->mixed_precision_param == DTYPE_FLOAT32;
    double flops = 0, seconds = 0, num = 0;
    ERR_TRY(list_shapes(out, config));
    for (uint32_t i = 0; i < out->num; i++) {
        struct preflight_shape *shape = &out->of[i];
        if (p->rank->device == NULL)
            limit_rows(shape);
        int rc = time_shape(p, shape, is_float ? KERNEL_F32 : KERNEL_BF16);
        free_memory(p);
        ERR_TRY(rc);
        flops += shape->flops;
        seconds += shape->flops / shape->rate;
        num += shape->count;
    }
    out->rate = flops / seconds;
    out->peak = 1e12 * rank_peak_tflops(p->rank);
    out->mean_flops = flops / num;
    return 0;
}

int products_check(const struct config *config)
{
    struct preflight_products unused = {0};
    return list_shapes(&unused, config);
}

int products_measure(struct finding *out, struct rank *rank, const struct rank_bench *bench)
{
    struct products products = {.rank = rank, .device = bench->device, .lane = bench->lane};
    int rc = measure_small(&products, &out->product_rate);
    if (rc == 0)
        rc = measure_model(&products, &out->model);
    free_memory(&products);
    return rc;
}
