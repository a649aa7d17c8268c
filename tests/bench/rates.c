/* rates.c - the time of single operations and of copies: on a GPU, for gpu_bench to compare, or on
 * the CPU.
 *
 *     rates [NAME=NUMBER]...     batch seq dim hidden heads kv_heads head_dim vocab parameters
 *                                copy (bytes of a copy) repeats; the defaults are in main()
 *                                threads (of the CPU; none: a GPU) bits (16: bf16; 32: float)
 *
 * Method: an operation is posted `repeats` times after two that are not timed, and the host waits
 * for all: a round. The median of ROUNDS rounds is printed, one line for each:
 *
 *     NAME SECONDS BYTES         BYTES: of copies, what was moved; 0: budgets.toml has the formula
 *
 * "copy" is within the GPU's memory, which it reads and writes; "host_to_device" and
 * "device_to_host" are from and to page-locked memory. "attention" is that of a library, if
 * present, and "own_attention" ours. "linear" and its gradients are those of w1: [hidden,dim]. All
 * operands are small positive numbers, moments and sums of float. Without a GPU, where one is asked
 * for: one line, and status 78. */
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 5
#define WARM_UPS 2
#define PATTERN_BYTES ((size_t)1 << 20)
#define ALIGNMENT ((size_t)256)

struct bench {
    struct device *device;
    struct lane *lane;
    struct kernels *kernels, *own; /* with a library's attention, where there is one; without */
    struct kernel_shapes s;
    unsigned long long parameters, copy, repeats, threads, bits;
    size_t rows;
    char *arena; /* of all operands, those of one operation at a time; NULL: they are counted */
    size_t used, most;
    void *pinned; /* `copy` bytes, PATTERN_BYTES at least */
    int32_t *ids; /* [rows], below vocab */
    struct lists {
        struct kernel_adamw_numbers numbers;
        struct kernel_adamw_piece piece;
        struct kernel_squares_piece squares;
    } * lists; /* on the device, as all of these */
};

static void *take(struct bench *b, size_t count, size_t bytes_of_one)
{
    size_t at = b->used;
    b->used += (count * bytes_of_one + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    b->most = b->used > b->most ? b->used : b->most;
    return b->arena != NULL ? b->arena + at : NULL;
}

static void *take_values(struct bench *b, size_t count)
{
    return take(b, count, kernel_dtype_bytes(b->s.dtype));
}

static void *take_float(struct bench *b, size_t count)
{
    return take(b, count, 4);
}

static void post(struct bench *b, enum kernel_op op, const void *args)
{
    if (b->arena != NULL)
        kernel_run(b->kernels, b->lane, op, args);
}

/* ---- The timed operations ---- */

static void copy(struct bench *b)
{
    void *to = take(b, b->copy, 1), *from = take(b, b->copy, 1);
    if (b->arena != NULL)
        lane_copy(b->lane, to, from, b->copy);
}

static void host_to_device(struct bench *b)
{
    void *to = take(b, b->copy, 1);
    if (b->arena != NULL)
        lane_copy(b->lane, to, b->pinned, b->copy);
}

static void device_to_host(struct bench *b)
{
    void *from = take(b, b->copy, 1);
    if (b->arena != NULL)
        lane_copy(b->lane, b->pinned, from, b->copy);
}

static void embedding(struct bench *b)
{
    struct kernel_embedding args = {.out = take_values(b, b->rows * b->s.dim),
                                    .tokens = b->ids,
                                    .table = take_values(b, (size_t)b->s.vocab * b->s.dim),
                                    .rows = (uint32_t)b->rows,
                                    .dim = b->s.dim,
                                    .dtype = b->s.dtype};
    post(b, KERNEL_EMBEDDING, &args);
}

static void embedding_backward(struct bench *b)
{
    struct kernel_embedding_backward args = {.dtable = take_float(b, (size_t)b->s.vocab * b->s.dim),
                                             .tokens = b->ids,
                                             .dout = take_values(b, b->rows * b->s.dim),
                                             .rows = (uint32_t)b->rows,
                                             .dim = b->s.dim,
                                             .vocab = b->s.vocab,
                                             .dtype = b->s.dtype};
    post(b, KERNEL_EMBEDDING_BACKWARD, &args);
}

static void rmsnorm(struct bench *b)
{
    size_t count = b->rows * b->s.dim;
    struct kernel_rmsnorm args = {.out = take_values(b, count),
                                  .rstd = take_float(b, b->rows),
                                  .x = take_values(b, count),
                                  .residual = take_values(b, count),
                                  .weight = take_values(b, b->s.dim),
                                  .rows = (uint32_t)b->rows,
                                  .dim = b->s.dim,
                                  .eps = 1e-5f,
                                  .dtype = b->s.dtype};
    post(b, KERNEL_RMSNORM, &args);
}

static void rmsnorm_backward(struct bench *b)
{
    size_t count = b->rows * b->s.dim;
    struct kernel_rmsnorm_backward args = {.dx = take_values(b, count),
                                           .dweight = take_float(b, b->s.dim),
                                           .dout = take_values(b, count),
                                           .x = take_values(b, count),
                                           .rstd = take_float(b, b->rows),
                                           .weight = take_values(b, b->s.dim),
                                           .rows = (uint32_t)b->rows,
                                           .dim = b->s.dim,
                                           .dtype = b->s.dtype};
    post(b, KERNEL_RMSNORM_BACKWARD, &args);
}

static void linear(struct bench *b)
{
    struct kernel_linear args = {.out = take_values(b, b->rows * b->s.hidden),
                                 .x = take_values(b, b->rows * b->s.dim),
                                 .w = take_values(b, (size_t)b->s.hidden * b->s.dim),
                                 .rows = (uint32_t)b->rows,
                                 .in = b->s.dim,
                                 .out_dim = b->s.hidden,
                                 .dtype = b->s.dtype};
    post(b, KERNEL_LINEAR, &args);
}

static void linear_backward_input(struct bench *b)
{
    struct kernel_linear_backward_input args = {.dx = take_values(b, b->rows * b->s.dim),
                                                .dout = take_values(b, b->rows * b->s.hidden),
                                                .w = take_values(b, (size_t)b->s.hidden * b->s.dim),
                                                .rows = (uint32_t)b->rows,
                                                .in = b->s.dim,
                                                .out_dim = b->s.hidden,
                                                .dtype = b->s.dtype};
    post(b, KERNEL_LINEAR_BACKWARD_INPUT, &args);
}

static void linear_backward_weight(struct bench *b)
{
    struct kernel_linear_backward_weight args = {.dw =
                                                     take_float(b, (size_t)b->s.hidden * b->s.dim),
                                                 .dout = take_values(b, b->rows * b->s.hidden),
                                                 .x = take_values(b, b->rows * b->s.dim),
                                                 .rows = (uint32_t)b->rows,
                                                 .in = b->s.dim,
                                                 .out_dim = b->s.hidden,
                                                 .dtype = b->s.dtype};
    post(b, KERNEL_LINEAR_BACKWARD_WEIGHT, &args);
}

static void rope(struct bench *b)
{
    size_t turns = (size_t)b->s.seq * b->s.head_dim / 2;
    struct kernel_rope args = {.x = take_values(b, b->rows * b->s.heads * b->s.head_dim),
                               .cos = take_float(b, turns),
                               .sin = take_float(b, turns),
                               .batch = b->s.batch,
                               .seq = b->s.seq,
                               .heads = b->s.heads,
                               .head_dim = b->s.head_dim,
                               .dtype = b->s.dtype};
    post(b, KERNEL_ROPE, &args);
}

static void swiglu(struct bench *b)
{
    size_t count = b->rows * b->s.hidden;
    struct kernel_swiglu args = {.out = take_values(b, count),
                                 .gate = take_values(b, count),
                                 .up = take_values(b, count),
                                 .count = count,
                                 .dtype = b->s.dtype};
    post(b, KERNEL_SWIGLU, &args);
}

static void swiglu_backward(struct bench *b)
{
    size_t count = b->rows * b->s.hidden;
    struct kernel_swiglu_backward args = {.dgate = take_values(b, count),
                                          .dup = take_values(b, count),
                                          .dout = take_values(b, count),
                                          .gate = take_values(b, count),
                                          .up = take_values(b, count),
                                          .count = count,
                                          .dtype = b->s.dtype};
    post(b, KERNEL_SWIGLU_BACKWARD, &args);
}

static void cross_entropy(struct bench *b)
{
    struct kernel_cross_entropy args = {.losses = take_float(b, b->rows),
                                        .logits = take_values(b, b->rows * b->s.vocab),
                                        .targets = b->ids,
                                        .scale = take_float(b, 1),
                                        .rows = (uint32_t)b->rows,
                                        .vocab = b->s.vocab,
                                        .dtype = b->s.dtype};
    post(b, KERNEL_CROSS_ENTROPY, &args);
}

static void add(struct bench *b)
{
    size_t count = b->rows * b->s.dim;
    struct kernel_add args = {.y = take_values(b, count),
                              .x = take_values(b, count),
                              .count = count,
                              .dtype = b->s.dtype};
    post(b, KERNEL_ADD, &args);
}

static void fold(struct bench *b)
{
    struct kernel_fold args = {.acc = take_float(b, b->parameters),
                               .leaf = take_float(b, b->parameters),
                               .count = b->parameters,
                               .is_first = true};
    post(b, KERNEL_FOLD, &args);
}

static void convert(struct bench *b)
{
    size_t count = b->rows * b->s.dim;
    struct kernel_convert args = {.out = take_values(b, count),
                                  .in = take_float(b, count),
                                  .count = count,
                                  .out_dtype = b->s.dtype};
    post(b, KERNEL_CONVERT, &args);
}

static struct kernel_squares_piece take_squares(struct bench *b)
{
    return (struct kernel_squares_piece){
        .x = take_float(b, b->parameters), .width = b->s.dim, .end = b->parameters / b->s.dim};
}

static void sum_squares(struct bench *b)
{
    (void)take_squares(b); /* the list has it, too */
    struct kernel_sum_squares args = {.sum = take(b, 1, sizeof(struct kernel_exact_sum)),
                                      .pieces = &b->lists->squares,
                                      .rows = b->parameters / b->s.dim,
                                      .num = 1};
    post(b, KERNEL_SUM_SQUARES, &args);
}

/* Of three times as many values: parameters and both moments. */
static void digest(struct bench *b)
{
    struct kernel_digest args = {.sum = take(b, 2, sizeof(uint64_t)),
                                 .x = take_float(b, 3 * b->parameters),
                                 .rows = 3 * b->parameters / b->s.dim,
                                 .width = b->s.dim,
                                 .stride = b->s.dim,
                                 .dtype = KERNEL_F32};
    post(b, KERNEL_DIGEST, &args);
}

static struct kernel_adamw_piece take_adamw(struct bench *b)
{
    return (struct kernel_adamw_piece){.param = take_float(b, b->parameters),
                                       .exp_avg = take_float(b, b->parameters),
                                       .exp_avg_sq = take_float(b, b->parameters),
                                       .grad = take_float(b, b->parameters),
                                       .numbers = &b->lists->numbers,
                                       .copy = take(b, b->parameters, 2),
                                       .count = b->parameters};
}

static void adamw(struct bench *b)
{
    struct kernel_adamw args = {.pieces = &b->lists->piece, .moments = KERNEL_F32};
    (void)take_adamw(b);
    kernel_adamw_add(&args, b->parameters);
    post(b, KERNEL_ADAMW, &args);
}

struct attention {
    void *q, *key, *value, *out, *dout, *dq, *dkey, *dvalue;
    float *lse;
};

static struct attention take_attention(struct bench *b)
{
    size_t wide = b->rows * b->s.heads * b->s.head_dim;
    size_t narrow = b->rows * b->s.kv_heads * b->s.head_dim;
    struct attention a = {.lse = take_float(b, b->rows * b->s.heads)};
    void **const queries[] = {&a.q, &a.out, &a.dout, &a.dq};
    void **const keys[] = {&a.key, &a.value, &a.dkey, &a.dvalue};
    for (int i = 0; i < 4; i++) {
        *queries[i] = take_values(b, wide);
        *keys[i] = take_values(b, narrow);
    }
    return a;
}

static void attention_by(struct bench *b, struct kernels *kernels)
{
    struct attention a = take_attention(b);
    struct kernel_attention args = {.out = a.out,
                                    .lse = a.lse,
                                    .q = a.q,
                                    .key = a.key,
                                    .value = a.value,
                                    .batch = b->s.batch,
                                    .seq = b->s.seq,
                                    .heads = b->s.heads,
                                    .kv_heads = b->s.kv_heads,
                                    .head_dim = b->s.head_dim,
                                    .dtype = b->s.dtype};
    if (b->arena != NULL)
        kernel_attention(kernels, b->lane, &args);
}

/* From the forward's results in the same places. */
static void backward_by(struct bench *b, struct kernels *kernels)
{
    struct attention a = take_attention(b);
    struct kernel_attention_backward args = {.dq = a.dq,
                                             .dkey = a.dkey,
                                             .dvalue = a.dvalue,
                                             .dout = a.dout,
                                             .out = a.out,
                                             .lse = a.lse,
                                             .q = a.q,
                                             .key = a.key,
                                             .value = a.value,
                                             .batch = b->s.batch,
                                             .seq = b->s.seq,
                                             .heads = b->s.heads,
                                             .kv_heads = b->s.kv_heads,
                                             .head_dim = b->s.head_dim,
                                             .dtype = b->s.dtype};
    if (b->arena != NULL)
        kernel_attention_backward(kernels, b->lane, &args);
}

static void attention(struct bench *b)
{
    attention_by(b, b->kernels);
}
static void attention_backward(struct bench *b)
{
    backward_by(b, b->kernels);
}
static void own_attention(struct bench *b)
{
    attention_by(b, b->own);
}
static void own_attention_backward(struct bench *b)
{
    backward_by(b, b->own);
}

#define OF(name) #name, name
static const struct {
    const char *name;
    void (*post)(struct bench *b);
    unsigned copies; /* how often each byte of a copy is moved; 0: no copy */
} timed[] = {
    {OF(copy), 2},
    {OF(host_to_device), 1},
    {OF(device_to_host), 1},
    {OF(embedding), 0},
    {OF(embedding_backward), 0},
    {OF(rmsnorm), 0},
    {OF(rmsnorm_backward), 0},
    {OF(linear), 0},
    {OF(linear_backward_input), 0},
    {OF(linear_backward_weight), 0},
    {OF(rope), 0},
    {OF(swiglu), 0},
    {OF(swiglu_backward), 0},
    {OF(cross_entropy), 0},
    {OF(add), 0},
    {OF(fold), 0},
    {OF(convert), 0},
    {OF(sum_squares), 0},
    {OF(digest), 0},
    {OF(adamw), 0},
    {OF(attention), 0},
    {OF(attention_backward), 0},
    {OF(own_attention), 0},
    {OF(own_attention_backward), 0},
};
#define NUM_TIMED (sizeof(timed) / sizeof(timed[0]))

/* ---- Rounds ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int round_of(struct bench *b, void (*to_post)(struct bench *b), unsigned long long times)
{
    for (unsigned long long i = 0; i < times; i++) {
        b->used = 0;
        to_post(b);
    }
    return lane_settle(b->lane);
}

static int measure(struct bench *b, size_t which)
{
    double seconds[ROUNDS];
    ERR_TRY(round_of(b, timed[which].post, WARM_UPS));
    for (int i = 0; i < ROUNDS; i++) {
        double start = now();
        ERR_TRY(round_of(b, timed[which].post, b->repeats));
        seconds[i] = (now() - start) / (double)b->repeats;
    }
    qsort(seconds, ROUNDS, sizeof(seconds[0]), compare);
    printf("%s %.9g %llu\n", timed[which].name, seconds[ROUNDS / 2], timed[which].copies * b->copy);
    return 0;
}

/* ---- Set-up ---- */

/* The pattern all over the arena. */
static int fill(struct bench *b)
{
    uint16_t *pattern = b->pinned;
    for (uint32_t i = 0; i < PATTERN_BYTES / 2; i++)
        pattern[i] = (uint16_t)(0x3c00 + (i * 2654435761u >> 25)); /* 0.0078 to 0.0155 */
    for (size_t at = 0; at < b->most; at += PATTERN_BYTES)
        lane_copy(b->lane, b->arena + at, pattern,
                  b->most - at < PATTERN_BYTES ? b->most - at : PATTERN_BYTES);
    return lane_settle(b->lane);
}

/* After the allocation of the arena. */
static int fill_arguments(struct bench *b)
{
    int32_t *ids = b->pinned;
    struct lists *lists = b->pinned;
    for (size_t i = 0; i < b->rows; i++)
        ids[i] = (int32_t)(i * 7919 % b->s.vocab);
    lane_copy(b->lane, b->ids, ids, b->rows * sizeof(*ids));
    ERR_TRY(lane_settle(b->lane));
    b->used = 0;
    *lists = (struct lists){.numbers = {.lr = 1e-3f,
                                        .keep1 = 1,
                                        .rest1 = 0.1f,
                                        .keep2 = 1,
                                        .rest2 = 0.05f,
                                        .is_mean = 1,
                                        .eps = 1e-8f,
                                        .grad_scale = 1,
                                        .bias1 = 0.1f,
                                        .bias2 = 0.05f},
                            .piece = take_adamw(b)};
    b->used = 0;
    lists->squares = take_squares(b);
    lane_copy(b->lane, b->lists, lists, sizeof(*lists));
    return lane_settle(b->lane);
}

static int alloc(struct bench *b, void *out, size_t bytes, enum device_memory where)
{
    void *at = NULL;
    ERR_TRY(device_alloc(b->device, &at, bytes, where));
    memcpy(out, &at, sizeof(at));
    return 0;
}

static int take_memory(struct bench *b)
{
    size_t pinned = b->copy > PATTERN_BYTES ? b->copy : PATTERN_BYTES, scratch = 0;
    void *at = NULL;
    struct kernels *const both[] = {b->kernels, b->own};
    for (size_t i = 0; i < NUM_TIMED; i++, b->used = 0)
        timed[i].post(b);
    for (int i = 0; i < 2; i++) {
        size_t bytes = kernels_scratch_bytes(both[i], &b->s);
        scratch = bytes > scratch ? bytes : scratch;
    }
    pinned = b->rows * sizeof(*b->ids) > pinned ? b->rows * sizeof(*b->ids) : pinned;
    ERR_TRY(alloc(b, &b->pinned, pinned, PINNED));
    ERR_TRY(alloc(b, &b->ids, b->rows * sizeof(*b->ids), ON_DEVICE));
    ERR_TRY(alloc(b, &b->lists, sizeof(*b->lists), ON_DEVICE));
    ERR_TRY(alloc(b, &at, scratch, ON_DEVICE));
    lane_set_scratch(b->lane, at, scratch);
    ERR_TRY(alloc(b, &b->arena, b->most, ON_DEVICE));
    ERR_TRY(fill_arguments(b));
    return fill(b);
}

static int open_bench(struct bench *b)
{
    const struct device_ops *ops = b->threads > 0 ? &device_cpu : device_find("cuda");
    if (ops == NULL)
        return report_error(ERR_UNAVAILABLE, NULL, "no GPU: built without CUDA");
    ERR_TRY(device_open(&b->device, ops, NULL));
    struct kernels_options options = {.num_threads = b->threads > 0 ? (uint32_t)b->threads : 1,
                                      .isa = getenv("KERNELS_ISA"),
                                      .device = b->device};
    ERR_TRY(kernels_new(&b->kernels, &options));
    options.has_own_attention = true;
    ERR_TRY(kernels_new(&b->own, &options));
    ERR_TRY(lane_open(&b->lane, b->device, "rates", LANE_COMPUTES));
    return take_memory(b);
}

static void close_bench(struct bench *b)
{
    lane_close(b->lane);
    kernels_free(b->own);
    kernels_free(b->kernels);
    if (b->device != NULL)
        device_close(b->device);
}

static int read_word(struct bench *b, const char *word)
{
    const struct {
        const char *name;
        uint32_t *narrow;
        unsigned long long *wide;
    } numbers[] = {
        {"batch", &b->s.batch, NULL},       {"seq", &b->s.seq, NULL},
        {"dim", &b->s.dim, NULL},           {"hidden", &b->s.hidden, NULL},
        {"heads", &b->s.heads, NULL},       {"kv_heads", &b->s.kv_heads, NULL},
        {"head_dim", &b->s.head_dim, NULL}, {"vocab", &b->s.vocab, NULL},
        {"copy", NULL, &b->copy},           {"parameters", NULL, &b->parameters},
        {"repeats", NULL, &b->repeats},     {"threads", NULL, &b->threads},
        {"bits", NULL, &b->bits},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        size_t length = strlen(numbers[i].name);
        char *end = NULL;
        if (strncmp(word, numbers[i].name, length) != 0 || word[length] != '=')
            continue;
        unsigned long long value = strtoull(word + length + 1, &end, 10);
        if (value == 0 || *end != '\0' || (numbers[i].narrow != NULL && value > UINT32_MAX))
            break;
        if (numbers[i].narrow != NULL)
            *numbers[i].narrow = (uint32_t)value;
        else
            *numbers[i].wide = value;
        return 0;
    }
    return report_error(ERR_INVALID, NULL, "\"%s\" is no NAME=NUMBER of this program", word);
}

int main(int argc, char **argv)
{
    /* One layer of the largest model of gpu_bench. */
    struct bench b = {.s = {.batch = 1,
                            .seq = 8192,
                            .dim = 4096,
                            .hidden = 14336,
                            .heads = 32,
                            .kv_heads = 8,
                            .head_dim = 128,
                            .vocab = 128256},
                      .parameters = (unsigned long long)64 << 20,
                      .copy = (unsigned long long)1 << 30,
                      .repeats = 10,
                      .bits = 16};
    int rc = 0;
    for (int i = 1; i < argc && rc == 0; i++)
        rc = read_word(&b, argv[i]);
    b.parameters -= b.parameters % b.s.dim; /* whole rows */
    b.rows = (size_t)b.s.batch * b.s.seq;
    b.s.dtype = b.bits == 32 ? KERNEL_F32 : KERNEL_BF16;
    if (rc == 0)
        rc = open_bench(&b);
    if (rc == 0)
        printf("# %s\n", kernels_describe(b.kernels));
    for (size_t i = 0; i < NUM_TIMED && rc == 0; i++)
        rc = measure(&b, i);
    if (rc != 0)
        fprintf(stderr, "rates: %s\n", report_line());
    close_bench(&b);
    return rc == 0 ? 0 : rc == ERR_UNAVAILABLE ? 78 : 1;
}
