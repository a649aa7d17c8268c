/* trainer_model.c - the model's table, initial weights, forward and backward.
 *
 * Goal: shapes and parameter counts are Llama's; initial values do not depend on the rank that
 * makes them. The gradient of the whole model is the derivative of its loss. Method: published
 * parameter counts; blocks are called with whole tensors in plain arrays; per tensor, central
 * differences along a random direction and along the gradient itself (a wrong component shows in
 * the first, a wrong size in the second); the loss again, in double, from the logits. Recomputation
 * and a backward in halves have to give the same bits as neither. */
#include "kernels/backend.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "tests/unit/trainer_bed.h"
#include "trainer/base/memory_plan.h"
#include "trainer/data/random.h"
#include "trainer/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 37u
#define BATCH 2u
#define SEQ 9u
#define ROWS (BATCH * SEQ)
#define TENSORS_MAX 64u

/* Kernels that search again for the largest value to be rounded, where it was noted before. */
struct watch {
    struct kernels base;
    struct kernel_backend_ops ops;
    struct kernels *inner;
    uint32_t num_rounded, num_e5m2, num_noted, num_wrong;
};

static void watch_run(struct kernels *kernels, struct lane *lane, enum kernel_op op,
                      const void *args)
{
    struct watch *w = (struct watch *)kernels;
    const struct kernel_round_float8 *a = args;
    uint32_t largest;
    w->num_rounded += op == KERNEL_ROUND_FLOAT8;
    w->num_e5m2 += op == KERNEL_ROUND_FLOAT8 && a->format == KERNEL_E5M2;
    if (op == KERNEL_ROUND_FLOAT8 && a->largest != NULL) {
        const struct kernel_float8_largest again = {&largest, a->x, a->count, a->dtype};
        w->inner->ops->run(w->inner, lane, KERNEL_FLOAT8_LARGEST, &again);
        w->num_noted++;
        w->num_wrong += largest != *a->largest;
    }
    w->inner->ops->run(w->inner, lane, op, args);
}

/* A model on one rank, all tensors whole. */
struct bed {
    struct model_table *table;
    struct memory *memory;
    struct kernels *kernels;
    struct watch watch;
    struct lane *lane;
    struct model *model;
    enum kernel_dtype dtype;
    float *param[TENSORS_MAX], *grad[TENSORS_MAX];
    float *tied_grad;            /* of the embedding as the output */
    uint16_t *half[TENSORS_MAX]; /* bf16 copies */
    bool is_apart;               /* the halves of each block's backward are called one by one */
    bool has_loss_chunks;
    int32_t inputs[ROWS], targets[ROWS];
    float losses[ROWS];
    const int32_t *starts; /* of documents; NULL: none */
    void *scratch;
};

static size_t elements(const struct bed *bed, uint32_t tensor)
{
    return bed->table->tensors[tensor].rows * bed->table->tensors[tensor].width;
}

static void init_rows(float *out, const struct model_tensor *tensor, uint64_t first, uint64_t rows,
                      uint64_t seed)
{
    struct box box = {.offset = {first, 0}, .extent = {rows, tensor->width}};
    model_init_box(out, tensor, &box, seed);
}

static struct model_shape tiny(uint32_t vocab)
{
    struct model_shape shape;
    assert_int_equal(model_shape_of_flavor(&shape, "tiny", vocab), 0);
    return shape;
}

/* The model requires kernels with at least 64-byte alignment. */
static void *aligned_bytes(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void make_params(struct bed *bed)
{
    for (uint32_t i = 0; i < bed->table->num_tensors; i++) {
        const struct model_tensor *tensor = &bed->table->tensors[i];
        size_t bytes = elements(bed, i) * sizeof(float);
        bed->param[i] = aligned_bytes(bytes);
        bed->grad[i] = aligned_bytes(bytes);
        bed->half[i] = aligned_bytes(bytes / 2);
        init_rows(bed->param[i], tensor, 0, tensor->rows, 5);
        /* Norms off one, and weights so large that every path counts (attention is far from
         * uniform). */
        for (size_t k = 0; k < elements(bed, i); k++) {
            if (tensor->init_std == 0)
                bed->param[i][k] += 0.1f * random_normal(random_key(5, tensor->name), k);
            else if (tensor->block > 0 && tensor->block < bed->table->num_blocks - 1)
                bed->param[i][k] *= 6;
        }
        POST(bed->kernels, bed->lane, convert, .out = bed->half[i], .out_dtype = KERNEL_BF16,
             .in = bed->param[i], .count = elements(bed, i));
    }
}

static void pointers(const struct bed *bed, uint32_t block, const void **w, float **dw)
{
    uint32_t first, num = model_block_tensors(bed->table, block, &first);
    bool is_tied_output = block == bed->table->num_blocks;
    for (uint32_t i = first; i < first + num; i++) {
        w[i - first] =
            bed->dtype == KERNEL_F32 ? (const void *)bed->param[i] : (const void *)bed->half[i];
        dw[i - first] = is_tied_output ? bed->tied_grad : bed->grad[i];
    }
    if (block == bed->table->num_blocks - 1 && bed->table->shape.is_tied)
        w[1] = bed->dtype == KERNEL_F32 ? (const void *)bed->param[0] : (const void *)bed->half[0];
}

static void block_backward(struct bed *bed, uint32_t block, uint32_t halves)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    pointers(bed, block, w, dw);
    bool is_layer = block > 0 && block < bed->table->num_blocks - 1;
    if (is_layer && (halves & MODEL_INPUT))
        assert_int_equal(model_recompute(bed->model, 0, block, w), 0);
    assert_int_equal(model_backward(bed->model, 0, block, halves, w, dw), 0);
}

/* After a forward of the last block, or its backward in chunks. */
static double loss_behind(struct bed *bed)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    double loss = 0;
    pointers(bed, bed->table->num_blocks - 1, w, dw);
    memset(bed->losses, 0, sizeof(bed->losses));
    assert_int_equal(model_loss(bed->model, 0, w), 0);
    for (size_t i = 0; i < ROWS; i++)
        loss += bed->losses[i];
    return loss;
}

static void forward_blocks(struct bed *bed, const struct model_batch *batch)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    model_begin(bed->model, 0, batch);
    for (uint32_t block = 0; block < bed->table->num_blocks; block++) {
        pointers(bed, block, w, dw);
        assert_int_equal(model_forward(bed->model, 0, block, w), 0);
    }
}

/* Forward and loss; out_logits [T, V] before they become their gradient, or NULL. */
static double run_forward(struct bed *bed, const struct model_batch *batch, float *out_logits)
{
    forward_blocks(bed, batch);
    if (out_logits != NULL)
        assert_int_equal(model_copy_logits(bed->model, 0, out_logits), 0);
    return loss_behind(bed);
}

static double run_leaf(struct bed *bed, const struct model_batch *batch)
{
    uint32_t last = bed->table->num_blocks - !bed->table->shape.is_tied;
    double loss = 0;
    forward_blocks(bed, batch);
    if (!bed->has_loss_chunks)
        loss = loss_behind(bed);
    for (uint32_t block = last + 1; block-- > 0;)
        block_backward(bed, block, bed->is_apart ? MODEL_INPUT : MODEL_INPUT | MODEL_WEIGHT);
    for (uint32_t block = last + 1; block-- > 0 && bed->is_apart;)
        block_backward(bed, block, MODEL_WEIGHT);
    return bed->has_loss_chunks ? loss_behind(bed) : loss;
}

struct way {
    enum model_keep keep;
    bool is_apart;
    uint32_t tp_blocks, cp_blocks, loss_chunks; /* 0: 1 */
    bool is_float8, is_in_order;
    enum kernel_float8 gradient_format;
};

static void bed_open_way(struct bed *bed, const struct model_shape *shape,
                         enum kernel_backend backend, enum kernel_dtype dtype, struct way way)
{
    const uint8_t keep[16] = {(uint8_t)way.keep, (uint8_t)way.keep};
    *bed = (struct bed){
        .dtype = dtype, .is_apart = way.is_apart, .has_loss_chunks = way.loss_chunks > 1};
    struct kernel_shapes shapes;
    struct kernels_options kernels = {.backend = backend, .num_threads = 1};
    assert_int_equal(kernels_new(&bed->kernels, &kernels), 0);
    bed->lane = new_lane();
    assert_int_equal(model_table_new(&bed->table, shape), 0);
    assert_true(bed->table->num_tensors <= TENSORS_MAX);
    assert_int_equal(memory_new(&bed->memory), 0);
    struct model_options options = {.table = bed->table,
                                    .memory = bed->memory,
                                    .batch = BATCH,
                                    .seq = way.cp_blocks > 1 ? SEQ / 4 * 4 : SEQ,
                                    .dtype = dtype,
                                    .num_slots = 1,
                                    .cut = {.tp_blocks = way.tp_blocks > 0 ? way.tp_blocks : 1,
                                            .cp_blocks = way.cp_blocks > 0 ? way.cp_blocks : 1,
                                            .tp = 1,
                                            .cp = 1,
                                            .loss_chunks = way.loss_chunks,
                                            .is_in_order = way.is_in_order},
                                    .not_float8 = way.is_float8 ? "" : NULL,
                                    .gradient_format = way.gradient_format,
                                    .keep = keep};
    assert_int_equal(model_new(&bed->model, &options), 0);
    bed->watch = (struct watch){.ops = *bed->kernels->ops, .inner = bed->kernels};
    bed->watch.ops.run = watch_run;
    bed->watch.base.ops = &bed->watch.ops;
    assert_int_equal(model_set_kernels(bed->model, &bed->watch.base, bed->lane), 0);
    run_leaf(bed, NULL); /* the walk: a leaf must take what it noted */
    assert_int_equal(memory_place(bed->memory), 0);
    assert_int_equal(memory_commit(bed->memory, NULL), 0);
    model_kernel_shapes(bed->model, &shapes);
    size_t scratch_bytes = kernels_scratch_bytes(bed->kernels, &shapes);
    bed->scratch = aligned_bytes(scratch_bytes);
    lane_set_scratch(bed->lane, bed->scratch, scratch_bytes);
    make_params(bed);
    bed->tied_grad = aligned_bytes(elements(bed, 0) * sizeof(float));
    for (uint32_t i = 0; i < ROWS; i++) {
        bed->inputs[i] = (int32_t)((i * 17 + 3) % VOCAB);
        bed->targets[i] = (int32_t)((i * 29 + 11) % VOCAB);
    }
}

static void bed_open_shape(struct bed *bed, const struct model_shape *shape,
                           enum kernel_backend backend, enum kernel_dtype dtype)
{
    bed_open_way(bed, shape, backend, dtype, (struct way){0});
}

static void bed_open(struct bed *bed, enum kernel_backend backend, enum kernel_dtype dtype)
{
    struct model_shape shape = tiny(VOCAB);
    bed_open_shape(bed, &shape, backend, dtype);
}

static void bed_close(struct bed *bed)
{
    for (uint32_t i = 0; i < bed->table->num_tensors; i++) {
        free(bed->param[i]);
        free(bed->grad[i]);
        free(bed->half[i]);
    }
    free(bed->tied_grad);
    free(bed->scratch);
    model_free(bed->model);
    memory_free(bed->memory);
    model_table_free(bed->table);
    free_lane(bed->lane);
    kernels_free(bed->kernels);
}

static double loss_of(struct bed *bed)
{
    static const float whole = 1.0f;
    struct model_batch batch = {.inputs = bed->inputs,
                                .targets = bed->targets,
                                .starts = bed->starts,
                                .loss_scale = &whole,
                                .losses = bed->losses};
    double loss = run_leaf(bed, &batch);
    for (size_t k = 0; bed->table->shape.is_tied && k < elements(bed, 0); k++)
        bed->grad[0][k] += bed->tied_grad[k];
    return loss;
}

/* ---- the gradient ---- */

/* (L(p + h u) - L(p - h u)) / 2h for tensor `tensor`. */
static double slope(struct bed *bed, uint32_t tensor, const float *direction, double h)
{
    size_t count = elements(bed, tensor);
    float *param = bed->param[tensor], *saved = malloc(count * sizeof(*saved));
    memcpy(saved, param, count * sizeof(*saved));
    double sides[2];
    for (int side = 0; side < 2; side++) {
        for (size_t k = 0; k < count; k++)
            param[k] = (float)(saved[k] + (side == 0 ? h : -h) * direction[k]);
        sides[side] = loss_of(bed);
    }
    memcpy(param, saved, count * sizeof(*saved));
    free(saved);
    return (sides[0] - sides[1]) / (2 * h);
}

static double dot(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t k = 0; k < count; k++)
        sum += (double)a[k] * b[k];
    return sum;
}

/* The step that changes the loss by about 0.02, far above float's noise, but small enough for the
 * loss to be nearly linear. */
static double step_for(double slope)
{
    return fmin(0.02 / (fabs(slope) + 1e-9), 0.05);
}

static void want_slope(struct bed *bed, uint32_t tensor, const float *direction, double expected,
                       double tolerance)
{
    double got = slope(bed, tensor, direction, step_for(expected));
    if (fabs(got - expected) > tolerance * (fabs(expected) + 1e-2))
        fail_msg("%s: the loss changes by %g per unit, the gradient says %g",
                 bed->table->tensors[tensor].name, got, expected);
}

static void check_tensor(struct bed *bed, uint32_t tensor)
{
    size_t count = elements(bed, tensor);
    float *gradient = malloc(count * sizeof(float)), *direction = malloc(count * sizeof(float));
    loss_of(bed);
    memcpy(gradient, bed->grad[tensor], count * sizeof(float));
    double norm = sqrt(dot(gradient, gradient, count));
    assert_true(norm > 1e-4);
    for (size_t k = 0; k < count; k++)
        direction[k] = (float)(gradient[k] / norm);
    want_slope(bed, tensor, direction, norm, 0.02);
    for (int draw = 0; draw < 3; draw++) {
        for (size_t k = 0; k < count; k++)
            direction[k] = random_normal(random_key((uint64_t)draw, "direction"), k) +
                           (float)(0.5 * gradient[k] / norm);
        double length = sqrt(dot(direction, direction, count));
        for (size_t k = 0; k < count; k++)
            direction[k] = (float)(direction[k] / length);
        want_slope(bed, tensor, direction, dot(gradient, direction, count), 0.05);
    }
    free(gradient);
    free(direction);
}

/* Two documents of the same four tokens, and one more token, in either sequence. */
static const int32_t two_documents[ROWS] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 0, 0, 0, 0, 4, 4, 4, 4, 8};

static void repeat_document(struct bed *bed)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t t = i % SEQ, like = i - t + t % 4;
        bed->inputs[i] = bed->inputs[like];
        bed->targets[i] = bed->targets[like];
    }
}

/* The loss of positions [first, first + 4) of each sequence alone. */
static double loss_of_document(struct bed *bed, uint32_t first)
{
    int32_t kept[ROWS];
    memcpy(kept, bed->targets, sizeof(kept));
    for (uint32_t i = 0; i < ROWS; i++)
        if (i % SEQ < first || i % SEQ >= first + 4)
            bed->targets[i] = -1;
    double loss = loss_of(bed);
    memcpy(bed->targets, kept, sizeof(kept));
    return loss;
}

TEST(test_model__a_masked_document_knows_nothing_of_what_is_before_it)
{
    for (int i = 0; i < 2; i++) {
        struct bed bed;
        bed_open(&bed, i == 0 ? KERNEL_BACKEND_REFERENCE : KERNEL_BACKEND_BEST, KERNEL_F32);
        repeat_document(&bed);
        double unmasked = loss_of_document(&bed, 4);
        bed.starts = two_documents;
        double first = loss_of_document(&bed, 0), second = loss_of_document(&bed, 4);
        assert_true(fabs(first / second - 1) < 1e-6);
        assert_true(fabs(unmasked / second - 1) > 1e-4);
        bed_close(&bed);
    }
}

/* `vocab` and the later ones: 0 is the flavor's value. */
static const struct {
    const char *name;
    uint32_t vocab, kv_heads, head_dim;
    bool is_tied, has_documents;
    struct way way;
} gradients[] = {
    {.name = "plain"},
    {.name = "documents, and tokens that do not count", .has_documents = true},
    {.name = "tied, heads wider than the model, one of keys, a scaled rotation",
     .kv_heads = 1,
     .head_dim = 24,
     .is_tied = true},
    {.name = "sums over heads, hidden width and vocabulary in two parts that share keys",
     .vocab = VOCAB + 1,
     .kv_heads = 1,
     .way = {.tp_blocks = 2}},
    {.name = "sums over positions, too: of chunks whose queries see keys of others",
     .vocab = VOCAB + 1,
     .way = {.tp_blocks = 2, .cp_blocks = 2}},
    {.name = "the same of chunks as they come",
     .vocab = VOCAB + 1,
     .way = {.tp_blocks = 2, .cp_blocks = 2, .is_in_order = true}},
    {.name = "output and loss of six rows at a time", .way = {.loss_chunks = 3}},
    {.name = "the same of a cut vocabulary, tied",
     .vocab = VOCAB + 1,
     .is_tied = true,
     .way = {.tp_blocks = 2, .loss_chunks = 3}},
};

TEST(test_model__gradient_is_the_derivative_of_the_loss_in_every_tensor)
{
    for (size_t i = 0; i < sizeof(gradients) / sizeof(gradients[0]); i++) {
        struct bed bed;
        struct model_shape shape = tiny(gradients[i].vocab > 0 ? gradients[i].vocab : VOCAB);
        shape.is_tied = gradients[i].is_tied;
        if (gradients[i].kv_heads > 0)
            shape.kv_heads = gradients[i].kv_heads;
        if (gradients[i].head_dim > 0) {
            shape.head_dim = gradients[i].head_dim;
            model_shape_rope_defaults(&shape, MODEL_ROPE_LINEAR);
            shape.rope_factor = 3;
        }
        print_message("%s\n", gradients[i].name);
        bed_open_way(&bed, &shape, KERNEL_BACKEND_REFERENCE, KERNEL_F32, gradients[i].way);
        if (gradients[i].has_documents) {
            bed.starts = two_documents;
            bed.targets[2] = bed.targets[ROWS - 1] = -1;
        }
        for (uint32_t tensor = 0; tensor < bed.table->num_tensors; tensor++)
            check_tensor(&bed, tensor);
        bed_close(&bed);
    }
}

TEST(test_model__a_rank_has_chunks_as_they_come)
{
    const struct model_cut cut = {.cp_blocks = 4, .cp = 2, .is_in_order = true};
    for (uint32_t i = 0; i < 4; i++) /* of eight chunks the second rank's, as they come */
        assert_int_equal(model_chunk_first(&cut, 16, 1, i), 8 + 2 * i);
}

/* ---- back-ends, dtypes, logits ---- */

static double relative_distance(const float *a, const float *b, size_t count)
{
    double difference = 0, size = 0;
    for (size_t k = 0; k < count; k++) {
        difference += ((double)a[k] - b[k]) * ((double)a[k] - b[k]);
        size += (double)a[k] * a[k];
    }
    return sqrt(difference / size);
}

static void want_close(enum kernel_backend backend, enum kernel_dtype dtype, double loss_tolerance,
                       double gradient_tolerance)
{
    struct bed plain, other;
    bed_open(&plain, KERNEL_BACKEND_REFERENCE, KERNEL_F32);
    bed_open(&other, backend, dtype);
    double expected = loss_of(&plain), got = loss_of(&other);
    assert_true(fabs(got - expected) <= loss_tolerance * expected);
    for (uint32_t i = 0; i < plain.table->num_tensors; i++)
        assert_true(relative_distance(plain.grad[i], other.grad[i], elements(&plain, i)) <=
                    gradient_tolerance);
    bed_close(&plain);
    bed_close(&other);
}

TEST(test_model__back_ends_agree_to_rounding)
{
    want_close(KERNEL_BACKEND_BEST, KERNEL_F32, 1e-6, 1e-4);
}

TEST(test_model__bf16_is_near_float)
{
    want_close(KERNEL_BACKEND_REFERENCE, KERNEL_BF16, 0.01, 0.06);
}

TEST(test_model__loss_is_the_cross_entropy_of_its_logits)
{
    struct bed bed;
    bed_open(&bed, KERNEL_BACKEND_REFERENCE, KERNEL_F32);
    static float logits[SEQ * VOCAB];
    double sum = 0;
    /* The logits are those of the first sequence: make all targets beyond it free. */
    for (uint32_t i = SEQ; i < ROWS; i++)
        bed.targets[i] = -1;
    const float scale = 1.0f;
    struct model_batch batch = {
        .inputs = bed.inputs, .targets = bed.targets, .loss_scale = &scale, .losses = bed.losses};
    run_forward(&bed, &batch, logits);
    model_forget(bed.model, 0, 0, bed.table->num_blocks);
    for (uint32_t t = 0; t < SEQ; t++) {
        double total = 0;
        for (uint32_t v = 0; v < VOCAB; v++)
            total += exp(logits[t * VOCAB + v]);
        sum += log(total) - logits[t * VOCAB + (uint32_t)bed.targets[t]];
    }
    assert_true(fabs(loss_of(&bed) - sum) < 1e-4 * sum);
    bed_close(&bed);
}

/* Also in an evaluation, where no backward comes. The second time the vocabulary is cut, too. */
TEST(test_model__a_loss_in_chunks_is_that_of_the_whole)
{
    for (int tied = 0; tied < 2; tied++) {
        struct bed bed, whole;
        struct model_shape shape = tiny(VOCAB + 1);
        struct way way = {.tp_blocks = 1 + (uint32_t)tied};
        shape.is_tied = tied == 1;
        bed_open_way(&whole, &shape, KERNEL_BACKEND_REFERENCE, KERNEL_F32, way);
        way.loss_chunks = 3;
        bed_open_way(&bed, &shape, KERNEL_BACKEND_REFERENCE, KERNEL_F32, way);
        assert_true(loss_of(&bed) == loss_of(&whole));
        bed_close(&whole);
        bed_close(&bed);
    }
}

/* Every way of keeping activations, and a backward in one go or in halves. */
TEST(test_model__recomputation_and_halves_change_no_bit)
{
    struct model_shape shape = tiny(VOCAB);
    for (int tied = 0; tied < 2; tied++) {
        struct bed plain, other;
        shape.is_tied = tied == 1;
        bed_open_shape(&plain, &shape, KERNEL_BACKEND_BEST, KERNEL_BF16);
        double loss = loss_of(&plain);
        for (int i = 1; i < 6; i++) {
            struct way way = {.keep = (enum model_keep)(i / 2), .is_apart = i % 2 == 1};
            bed_open_way(&other, &shape, KERNEL_BACKEND_BEST, KERNEL_BF16, way);
            assert_true(loss_of(&other) == loss);
            for (uint32_t t = 0; t < plain.table->num_tensors; t++)
                assert_memory_equal(plain.grad[t], other.grad[t],
                                    elements(&plain, t) * sizeof(float));
            bed_close(&other);
        }
        bed_close(&plain);
    }
}

static void halve_params(struct bed *bed)
{
    for (uint32_t t = 0; t < bed->table->num_tensors; t++)
        for (size_t k = 0; k < elements(bed, t); k++)
            bed->param[t][k] /= 2;
}

/* Of a layer: three operands in the forward (two again where it is computed again), two in the
 * backward of the input, three in that of the weights, and where the halves are apart the two
 * gradients again. The second leaf has smaller values, so that of the first none may be left. */
TEST(test_model__the_largest_of_a_float8_operand_is_noted_by_what_makes_it)
{
    struct model_shape shape = tiny(VOCAB);
    for (int i = 0; i < 4; i++) {
        struct way way = {.keep = i % 2 == 0 ? MODEL_KEEP_ALL : MODEL_KEEP_NOTHING,
                          .is_apart = i / 2 == 1,
                          .is_float8 = true};
        struct bed bed;
        bed_open_way(&bed, &shape, KERNEL_BACKEND_BEST, KERNEL_F32, way);
        for (int leaf = 0; leaf < 2; leaf++) {
            bed.watch.num_noted = 0;
            loss_of(&bed);
            assert_int_equal(bed.watch.num_noted,
                             2 * (8 + (i % 2 == 0 ? 0 : 2) + (way.is_apart ? 2 : 0)));
            assert_int_equal(bed.watch.num_wrong, 0);
            halve_params(&bed);
        }
        bed_close(&bed);
    }
}

/* Of a layer: four operands of rows and seven weights in the forward; in the backward seven
 * gradients, as many weights, and four operands of rows. Halves that are apart round the gradients
 * once more. */
TEST(test_model__gradients_are_rounded_once_in_the_format_that_is_set)
{
    struct model_shape shape = tiny(VOCAB);
    for (int i = 0; i < 4; i++) {
        struct way way = {.is_apart = i / 2 == 1,
                          .is_float8 = true,
                          .gradient_format = i % 2 == 0 ? KERNEL_E5M2 : KERNEL_E4M3};
        struct bed bed;
        bed_open_way(&bed, &shape, KERNEL_BACKEND_BEST, KERNEL_F32, way);
        loss_of(&bed);
        uint32_t gradients = way.is_apart ? 14 : 7;
        assert_int_equal(bed.watch.num_rounded, shape.layers * (4 + 7 + 7 + 4 + gradients));
        assert_int_equal(bed.watch.num_e5m2, i % 2 == 0 ? shape.layers * gradients : 0);
        bed_close(&bed);
    }
}

/* ---- table and initial weights ---- */

TEST(test_model__a_part_of_a_list_that_names_no_tensor_is_found)
{
    static const struct {
        const char *list, *nothing; /* NULL: each part is in some name */
    } lists[] = {{"", NULL},     {"output", NULL}, {"wq,layers.1,w2", NULL},
                 {",wq,", NULL}, {"wqq", "wqq"},   {"w1,layers.2,nor", "layers.2"}};
    char part[MODEL_PART_BYTES];
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", 256), 0);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        bool any = model_names_nothing(part, table, lists[i].list);
        assert_int_equal(any, lists[i].nothing != NULL);
        if (any)
            assert_string_equal(part, lists[i].nothing);
    }
    model_table_free(table);
}

TEST(test_model__initial_values_do_not_depend_on_how_rows_are_cut)
{
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", 200), 0);
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct model_tensor *tensor = &table->tensors[i];
        size_t count = tensor->rows * tensor->width;
        float *whole = malloc(count * sizeof(float)), *cut = malloc(count * sizeof(float));
        init_rows(whole, tensor, 0, tensor->rows, 11);
        for (uint64_t row = 0; row < tensor->rows; row += 13) {
            uint64_t rows = tensor->rows - row < 13 ? tensor->rows - row : 13;
            init_rows(cut + row * tensor->width, tensor, row, rows, 11);
        }
        assert_memory_equal(whole, cut, count * sizeof(float));
        double square = 0, largest = 0;
        for (size_t k = 0; k < count; k++) {
            square += (double)whole[k] * whole[k];
            largest = fmax(largest, fabs(whole[k]));
        }
        double std = tensor->init_std > 0 ? tensor->init_std : 1.0;
        assert_true(fabs(sqrt(square / (double)count) / std - 1) < 0.05);
        if (tensor->init_cut > 0)
            assert_true(largest <= tensor->init_cut * std * 1.000001);
        free(whole);
        free(cut);
    }
    model_table_free(table);
}

TEST(test_model__initial_deviations_are_torchtitans)
{
    static const struct {
        const char *name;
        double std, cut;
    } wanted[] = {
        {"tok_embeddings.weight", 1, 0},
        {"layers.0.attention.wq.weight", 0.02, 0},
        {"layers.0.attention.wk.weight", 0.02, 0},
        {"layers.0.attention.wv.weight", 0.02, 0},
        {"layers.0.attention.wo.weight", 0.0141421356, 0}, /* 0.02 / sqrt(2 (layer + 1)) */
        {"layers.0.feed_forward.w1.weight", 0.02, 0},
        {"layers.0.feed_forward.w2.weight", 0.0141421356, 0},
        {"layers.0.feed_forward.w3.weight", 0.0141421356, 0},
        {"layers.1.attention.wo.weight", 0.01, 0},
        {"layers.1.feed_forward.w2.weight", 0.01, 0},
        {"layers.1.feed_forward.w3.weight", 0.01, 0},
        {"output.weight", 0.125, 3}, /* 1 / sqrt(64), cut at three deviations */
        {"norm.weight", 0, 0},       /* ones */
        {"layers.1.ffn_norm.weight", 0, 0},
    };
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", 256), 0);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        uint32_t at = 0;
        while (at < table->num_tensors && strcmp(table->tensors[at].name, wanted[i].name) != 0)
            at++;
        assert_true(at < table->num_tensors);
        assert_true(fabs(table->tensors[at].init_std - wanted[i].std) < 1e-9);
        assert_true(table->tensors[at].init_cut == wanted[i].cut);
    }
    model_table_free(table);
}

SUITE(NULL, NULL)
