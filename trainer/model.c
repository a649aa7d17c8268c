/* model.c - Llama by hand (see model.h): the table, the initial weights, forward and backward.
 *
 * Initial weights are torchtitan's (llama3, depth_init): embedding N(0, 1); wq, wk, wv, w1 N(0,
 * 0.02); wo, w2, w3 of layer l N(0, 0.02 / sqrt(2 (l + 1))); output N(0, 1/sqrt(C)) cut at three
 * deviations by drawing again, and so is a tied embedding; norms one. Element e (row-major, global)
 * of a tensor is deviate e of the stream "init/<name>", its k-th redraw is deviate e of
 * "init/<name>/<k>": values do not depend on the layout.
 *
 * The residual stream is kept once per norm: a projection writes its output to a new buffer and the
 * following norm adds the stream to it in place, so no copy is made. All that the backward needs is
 * kept from the forward; nothing is recomputed but attention's probabilities. */
#include "trainer/model.h"
#include "proto/report.h"
#include "trainer/data/random.h"
#include "trainer/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

/* Order of a layer's tensors in its block. */
enum { WQ, WK, WV, WO, W1, W2, W3, ATTENTION_NORM, FFN_NORM, NUM_LAYER_TENSORS };
enum { NORM, OUTPUT, NUM_HEAD_TENSORS };

static void add_tensor(struct model_table *table, const struct model_tensor *tensor)
{
    table->tensors[table->num_tensors++] = *tensor;
}

static void add_layer(struct model_table *table, uint32_t layer)
{
    const struct model_shape *s = &table->shape;
    uint64_t c = s->dim, q = (uint64_t)s->heads * s->head_dim;
    uint64_t kv = (uint64_t)s->kv_heads * s->head_dim;
    double deep = 0.02 / sqrt(2.0 * (layer + 1.0));
    const struct {
        const char *name;
        uint64_t rows, width;
        double std;
    } list[NUM_LAYER_TENSORS] = {
        [WQ] = {"attention.wq", q, c, 0.02},
        [WK] = {"attention.wk", kv, c, 0.02},
        [WV] = {"attention.wv", kv, c, 0.02},
        [WO] = {"attention.wo", c, q, deep},
        [W1] = {"feed_forward.w1", s->hidden, c, 0.02},
        [W2] = {"feed_forward.w2", c, s->hidden, deep},
        [W3] = {"feed_forward.w3", s->hidden, c, deep},
        [ATTENTION_NORM] = {"attention_norm", c, 1, 0},
        [FFN_NORM] = {"ffn_norm", c, 1, 0},
    };
    for (uint32_t i = 0; i < NUM_LAYER_TENSORS; i++) {
        struct model_tensor tensor = {.dims = list[i].width == 1 ? 1 : 2,
                                      .rows = list[i].rows,
                                      .width = list[i].width,
                                      .block = layer + 1,
                                      .init_std = list[i].std};
        snprintf(tensor.name, sizeof(tensor.name), "layers.%u.%s.weight", layer, list[i].name);
        add_tensor(table, &tensor);
    }
}

static void add_matrix(struct model_table *table, const char *name, uint32_t block)
{
    const struct model_shape *s = &table->shape;
    bool is_output = block > 0 || s->is_tied;
    struct model_tensor tensor = {.dims = 2, .rows = s->vocab, .width = s->dim, .block = block};
    snprintf(tensor.name, sizeof(tensor.name), "%s", name);
    tensor.init_std = is_output ? 1.0 / sqrt(s->dim) : 1.0;
    tensor.init_cut = is_output ? 3.0 : 0;
    add_tensor(table, &tensor);
}

static void fill_table(struct model_table *table)
{
    const struct model_shape *s = &table->shape;
    uint32_t head = s->layers + 1;
    add_matrix(table, "tok_embeddings.weight", 0);
    table->first_tensor[0] = 0;
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        table->first_tensor[layer + 1] = table->num_tensors;
        add_layer(table, layer);
    }
    table->first_tensor[head] = table->num_tensors;
    add_tensor(table,
               &(struct model_tensor){
                   .name = "norm.weight", .dims = 1, .rows = s->dim, .width = 1, .block = head});
    if (!s->is_tied)
        add_matrix(table, "output.weight", head);
    table->num_blocks = head + 1;
    table->first_tensor[head + 1] = table->num_tensors;
}

int model_table_new(struct model_table **out, const struct model_shape *shape)
{
    ERR_TRY(model_shape_check(shape));
    struct model_table *table = calloc(1, sizeof(*table));
    if (table == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the model's table");
    table->shape = *shape;
    table->tensors = calloc(shape->layers * NUM_LAYER_TENSORS + 3, sizeof(*table->tensors));
    table->first_tensor = calloc(shape->layers + 3, sizeof(*table->first_tensor));
    if (table->tensors == NULL || table->first_tensor == NULL) {
        model_table_free(table);
        return report_error(ERR_MEMORY, NULL, "no memory for the model's table");
    }
    fill_table(table);
    *out = table;
    return 0;
}

void model_table_free(struct model_table *table)
{
    if (table == NULL)
        return;
    free(table->tensors);
    free(table->first_tensor);
    free(table);
}

uint32_t model_block_tensors(const struct model_table *table, uint32_t block, uint32_t *out_first)
{
    bool is_tied_output = block == table->num_blocks;
    CHECK(block < table->num_blocks || (is_tied_output && table->shape.is_tied));
    const uint32_t *first = &table->first_tensor[is_tied_output ? 0 : block];
    *out_first = first[0];
    return first[1] - first[0];
}

double model_flops_per_token(const struct model_table *table, uint32_t seq)
{
    const struct model_shape *s = &table->shape;
    uint64_t embedding = s->is_tied ? 0 : (uint64_t)s->vocab * s->dim; /* no product */
    uint64_t products = model_shape_parameters(s) - embedding;
    return 6.0 * (double)products + 12.0 * s->layers * s->heads * s->head_dim * seq;
}

/* ---- initial weights ---- */

#define REDRAWS_MAX 64u /* a deviate beyond three deviations 64 times in a row does not happen */

static double draw_cut(const struct model_tensor *tensor, uint64_t element, uint64_t seed)
{
    char stream[96];
    double value = 0;
    for (uint32_t k = 1; k <= REDRAWS_MAX; k++) {
        snprintf(stream, sizeof(stream), "init/%s/%u", tensor->name, k);
        value = random_normal(random_key(seed, stream), element);
        if (fabs(value) <= tensor->init_cut)
            return value;
    }
    return value < 0 ? -tensor->init_cut : tensor->init_cut;
}

void model_init_rows(float *out, const struct model_tensor *tensor, uint64_t first_row,
                     uint64_t rows, uint64_t seed)
{
    char stream[96];
    snprintf(stream, sizeof(stream), "init/%s", tensor->name);
    struct random_key key = random_key(seed, stream);
    uint64_t first = first_row * tensor->width, count = rows * tensor->width;
    if (tensor->init_std > 0)
        random_normals(out, key, first, count);
    for (uint64_t i = 0; i < count; i++) {
        if (tensor->init_std == 0) {
            out[i] = 1.0f;
            continue;
        }
        double value = out[i];
        if (tensor->init_cut > 0 && fabs(value) > tensor->init_cut)
            value = draw_cut(tensor, first + i, seed);
        out[i] = (float)(value * tensor->init_std);
    }
}

/* ---- the model ---- */

/* What a layer keeps from its forward for its backward. */
struct layer_saved {
    void *x_in, *x_mid;               /* [N, C] the residual stream at the two norms */
    void *attention_norm, *ffn_norm;  /* [N, C] */
    float *attention_rstd, *ffn_rstd; /* [N] */
    void *q;                          /* [B, T, H, D], rotated */
    void *k, *v;                      /* [B, T, K, D], k rotated */
    void *attention;                  /* [B, T, H, D] */
    float *lse;                       /* [B, H, T] */
    void *gate, *up, *swiglu;         /* [N, F] */
};

struct model {
    const struct model_table *table;
    struct memory *memory;
    struct kernels *kernels;
    struct lane *lane;
    struct model_shape s;
    uint32_t batch, seq, rows; /* B, T, N */
    uint32_t q_rows, kv_rows;  /* H x D, K x D */
    enum kernel_dtype dtype;
    const struct model_provider *provider;
    bool active;                /* compute; false in a walk */
    const int32_t *starts;      /* of the leaf's documents, or NULL */
    float *rope_cos, *rope_sin; /* [T, D/2] */
    struct layer_saved *layers; /* L + 1: the last has x_in alone, the head's */
    void *head_norm, *logits;   /* [N, C], [N, V] */
    float *head_rstd, *losses;  /* [N] */
    void *dx;                   /* [N, C] gradient of the residual stream */
};

int model_new(struct model **out, const struct model_options *options)
{
    struct model *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the model");
    m->table = options->table;
    m->memory = options->memory;
    m->s = options->table->shape;
    m->batch = options->batch;
    m->seq = options->seq;
    m->rows = options->batch * options->seq;
    m->q_rows = m->s.heads * m->s.head_dim;
    m->kv_rows = m->s.kv_heads * m->s.head_dim;
    m->dtype = options->dtype;
    size_t table_floats = (size_t)m->seq * (m->s.head_dim / 2);
    m->layers = calloc(m->s.layers + 1, sizeof(*m->layers));
    m->rope_cos = malloc(table_floats * sizeof(float));
    m->rope_sin = malloc(table_floats * sizeof(float));
    if (m->layers == NULL || m->rope_cos == NULL || m->rope_sin == NULL) {
        model_free(m);
        return report_error(ERR_MEMORY, NULL, "no memory for the model");
    }
    double frequencies[MODEL_HEAD_DIM_MAX / 2];
    model_shape_frequencies(frequencies, &m->s);
    kernel_rope_table(m->rope_cos, m->rope_sin, m->seq, m->s.head_dim, frequencies);
    *out = m;
    return 0;
}

void model_free(struct model *m)
{
    if (m == NULL)
        return;
    free(m->layers);
    free(m->rope_cos);
    free(m->rope_sin);
    free(m);
}

void model_set_kernels(struct model *m, struct kernels *kernels, struct lane *lane)
{
    m->kernels = kernels;
    m->lane = lane;
}

void model_kernel_shapes(const struct model *m, struct kernel_shapes *out)
{
    *out = (struct kernel_shapes){.batch = m->batch,
                                  .seq = m->seq,
                                  .dim = m->s.dim,
                                  .hidden = m->s.hidden,
                                  .heads = m->s.heads,
                                  .kv_heads = m->s.kv_heads,
                                  .head_dim = m->s.head_dim,
                                  .vocab = m->s.vocab,
                                  .dtype = m->dtype};
}

static void *take(struct model *m, const char *name, uint32_t index, size_t width)
{
    return memory_take(m->memory, name, index, m->rows * width * kernel_dtype_bytes(m->dtype));
}

static float *take_floats(struct model *m, const char *name, uint32_t index, size_t count)
{
    return memory_take(m->memory, name, index, count * sizeof(float));
}

static void give(struct model *m, const char *name, uint32_t index)
{
    memory_give(m->memory, name, index);
}

static int acquire(struct model *m, const void **w, uint32_t block, enum model_pass pass)
{
    return m->provider->acquire(m->provider->user, w, block, pass);
}

static int release(struct model *m, uint32_t block, enum model_pass pass)
{
    return m->provider->release(m->provider->user, block, pass);
}

static int gradients_begin(struct model *m, float **dw, uint32_t block)
{
    return m->provider->gradients_begin(m->provider->user, dw, block);
}

static int gradients_end(struct model *m, uint32_t block)
{
    return m->provider->gradients_end(m->provider->user, block);
}

/* out[N, O] = x[N, I] w^T */
static void linear(struct model *m, void *out, const void *x, const void *w, uint32_t in,
                   uint32_t out_dim)
{
    kernel_linear(m->kernels, m->lane,
                  &(struct kernel_linear){.out = out,
                                          .x = x,
                                          .w = w,
                                          .rows = m->rows,
                                          .in = in,
                                          .out_dim = out_dim,
                                          .dtype = m->dtype});
}

enum input_mode { SET, ADD };

/* dx[N, I] = or += dout[N, O] w; dw[O, I] = dout^T x */
static void linear_backward(struct model *m, void *dx, enum input_mode mode, float *dw,
                            const void *dout, const void *x, const void *w, uint32_t in,
                            uint32_t out_dim)
{
    kernel_linear_backward_input(m->kernels, m->lane,
                                 &(struct kernel_linear_backward_input){.dx = dx,
                                                                        .dout = dout,
                                                                        .w = w,
                                                                        .rows = m->rows,
                                                                        .in = in,
                                                                        .out_dim = out_dim,
                                                                        .accumulate = mode == ADD,
                                                                        .dtype = m->dtype});
    kernel_linear_backward_weight(m->kernels, m->lane,
                                  &(struct kernel_linear_backward_weight){.dw = dw,
                                                                          .dout = dout,
                                                                          .x = x,
                                                                          .rows = m->rows,
                                                                          .in = in,
                                                                          .out_dim = out_dim,
                                                                          .dtype = m->dtype});
}

static void rope(struct model *m, void *x, uint32_t heads, bool inverse)
{
    kernel_rope(m->kernels, m->lane,
                &(struct kernel_rope){.x = x,
                                      .cos = m->rope_cos,
                                      .sin = m->rope_sin,
                                      .starts = m->starts,
                                      .batch = m->batch,
                                      .seq = m->seq,
                                      .heads = heads,
                                      .head_dim = m->s.head_dim,
                                      .inverse = inverse,
                                      .dtype = m->dtype});
}

/* ---- forward ---- */

static int embedding_forward(struct model *m, const int32_t *inputs)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    m->layers[0].x_in = take(m, "residual in", 0, m->s.dim);
    ERR_TRY(acquire(m, w, 0, MODEL_FORWARD));
    if (m->active)
        kernel_embedding(m->kernels, m->lane,
                         &(struct kernel_embedding){.out = m->layers[0].x_in,
                                                    .tokens = inputs,
                                                    .table = w[0],
                                                    .rows = m->rows,
                                                    .dim = m->s.dim,
                                                    .dtype = m->dtype});
    return release(m, 0, MODEL_FORWARD);
}

static void take_layer(struct model *m, uint32_t layer)
{
    struct layer_saved *a = &m->layers[layer];
    uint32_t c = m->s.dim, q = m->q_rows, kv = m->kv_rows;
    a->attention_norm = take(m, "attention norm", layer, c);
    a->attention_rstd = take_floats(m, "attention rstd", layer, m->rows);
    a->q = take(m, "query", layer, q);
    a->k = take(m, "key", layer, kv);
    a->v = take(m, "value", layer, kv);
    a->attention = take(m, "attention", layer, q);
    a->lse = take_floats(m, "attention lse", layer, (size_t)m->rows * m->s.heads);
    a->x_mid = take(m, "residual mid", layer, c);
    a->ffn_norm = take(m, "ffn norm", layer, c);
    a->ffn_rstd = take_floats(m, "ffn rstd", layer, m->rows);
    a->gate = take(m, "gate", layer, m->s.hidden);
    a->up = take(m, "up", layer, m->s.hidden);
    a->swiglu = take(m, "swiglu", layer, m->s.hidden);
    m->layers[layer + 1].x_in = take(m, "residual in", layer + 1, c);
}

/* All but the residual that comes in, which the block before still needs. */
static void give_layer(struct model *m, uint32_t layer)
{
    static const char *const names[] = {
        "attention norm", "attention rstd", "query",    "key",      "value", "attention",
        "attention lse",  "residual mid",   "ffn norm", "ffn rstd", "gate",  "up",
        "swiglu"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        give(m, names[i], layer);
    give(m, "residual in", layer + 1);
}

/* Adds the stream `residual` [N, C] (NULL: none) to `x`, then out = norm(x) weight. */
static void norm(struct model *m, void *out, float *rstd, void *x, const void *residual,
                 const void *weight)
{
    kernel_rmsnorm(m->kernels, m->lane,
                   &(struct kernel_rmsnorm){.out = out,
                                            .rstd = rstd,
                                            .x = x,
                                            .residual = residual,
                                            .weight = weight,
                                            .rows = m->rows,
                                            .dim = m->s.dim,
                                            .eps = (float)m->s.norm_eps,
                                            .dtype = m->dtype});
}

static void layer_forward_compute(struct model *m, uint32_t layer, const void *const *w)
{
    struct layer_saved *a = &m->layers[layer];
    uint32_t c = m->s.dim, f = m->s.hidden, q = m->q_rows, kv = m->kv_rows;
    const void *residual = layer > 0 ? m->layers[layer - 1].x_mid : NULL;

    norm(m, a->attention_norm, a->attention_rstd, a->x_in, residual, w[ATTENTION_NORM]);
    linear(m, a->q, a->attention_norm, w[WQ], c, q);
    linear(m, a->k, a->attention_norm, w[WK], c, kv);
    linear(m, a->v, a->attention_norm, w[WV], c, kv);
    rope(m, a->q, m->s.heads, false);
    rope(m, a->k, m->s.kv_heads, false);
    kernel_attention(m->kernels, m->lane,
                     &(struct kernel_attention){.out = a->attention,
                                                .lse = a->lse,
                                                .q = a->q,
                                                .key = a->k,
                                                .value = a->v,
                                                .starts = m->starts,
                                                .batch = m->batch,
                                                .seq = m->seq,
                                                .heads = m->s.heads,
                                                .kv_heads = m->s.kv_heads,
                                                .head_dim = m->s.head_dim,
                                                .dtype = m->dtype});
    linear(m, a->x_mid, a->attention, w[WO], q, c);

    norm(m, a->ffn_norm, a->ffn_rstd, a->x_mid, a->x_in, w[FFN_NORM]);
    linear(m, a->gate, a->ffn_norm, w[W1], c, f);
    linear(m, a->up, a->ffn_norm, w[W3], c, f);
    kernel_swiglu(m->kernels, m->lane,
                  &(struct kernel_swiglu){.out = a->swiglu,
                                          .gate = a->gate,
                                          .up = a->up,
                                          .count = (size_t)m->rows * f,
                                          .dtype = m->dtype});
    linear(m, m->layers[layer + 1].x_in, a->swiglu, w[W2], f, c);
}

static int layer_forward(struct model *m, uint32_t layer)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    take_layer(m, layer);
    ERR_TRY(acquire(m, w, layer + 1, MODEL_FORWARD));
    if (m->active)
        layer_forward_compute(m, layer, w);
    return release(m, layer + 1, MODEL_FORWARD);
}

/* Behind the last block: the embedding as output of a tied model. */
static uint32_t tied_block(const struct model *m)
{
    return m->s.layers + 2;
}

static int head_forward(struct model *m)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    uint32_t last = m->s.layers;
    m->head_norm = take(m, "head norm", 0, m->s.dim);
    m->head_rstd = take_floats(m, "head rstd", 0, m->rows);
    m->logits = take(m, "logits", 0, m->s.vocab);
    ERR_TRY(acquire(m, w, last + 1, MODEL_FORWARD));
    if (m->s.is_tied)
        ERR_TRY(acquire(m, &w[OUTPUT], tied_block(m), MODEL_FORWARD));
    if (m->active) {
        norm(m, m->head_norm, m->head_rstd, m->layers[last].x_in, m->layers[last - 1].x_mid,
             w[NORM]);
        linear(m, m->logits, m->head_norm, w[OUTPUT], m->s.dim, m->s.vocab);
    }
    if (m->s.is_tied)
        ERR_TRY(release(m, tied_block(m), MODEL_FORWARD));
    return release(m, last + 1, MODEL_FORWARD);
}

static int forward(struct model *m, const int32_t *inputs)
{
    ERR_TRY(embedding_forward(m, inputs));
    for (uint32_t layer = 0; layer < m->s.layers; layer++)
        ERR_TRY(layer_forward(m, layer));
    return head_forward(m);
}

/* ---- backward ---- */

static void sum_sequences(const struct model *m, double *out)
{
    for (uint32_t b = 0; b < m->batch; b++) {
        out[b] = 0;
        for (uint32_t t = 0; t < m->seq; t++)
            out[b] += m->losses[(size_t)b * m->seq + t];
    }
}

static double loss_and_its_gradient(struct model *m, const struct model_batch *batch)
{
    m->losses = take_floats(m, "losses", 0, m->rows);
    double sum = 0;
    if (m->active) {
        kernel_cross_entropy(m->kernels, m->lane,
                             &(struct kernel_cross_entropy){.losses = m->losses,
                                                            .logits = m->logits,
                                                            .targets = batch->targets,
                                                            .rows = m->rows,
                                                            .vocab = m->s.vocab,
                                                            .scale = &batch->loss_scale,
                                                            .dtype = m->dtype});
        for (uint32_t i = 0; i < m->rows; i++)
            sum += m->losses[i];
        if (batch->sequence_losses != NULL)
            sum_sequences(m, batch->sequence_losses);
    }
    give(m, "losses", 0);
    return sum;
}

/* The output of a tied model: a block of its own. */
static int tied_backward(struct model *m, void *d_norm)
{
    const void *w = NULL;
    float *dw = NULL;
    ERR_TRY(acquire(m, &w, tied_block(m), MODEL_BACKWARD));
    ERR_TRY(gradients_begin(m, &dw, tied_block(m)));
    if (m->active)
        linear_backward(m, d_norm, SET, dw, m->logits, m->head_norm, w, m->s.dim, m->s.vocab);
    ERR_TRY(gradients_end(m, tied_block(m)));
    return release(m, tied_block(m), MODEL_BACKWARD);
}

static int head_backward(struct model *m)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    uint32_t last = m->s.layers, c = m->s.dim;
    m->dx = take(m, "d residual", 0, c);
    void *d_norm = take(m, "d head norm", 0, c);
    if (m->s.is_tied)
        ERR_TRY(tied_backward(m, d_norm));
    ERR_TRY(acquire(m, w, last + 1, MODEL_BACKWARD));
    ERR_TRY(gradients_begin(m, dw, last + 1));
    if (m->active && !m->s.is_tied)
        linear_backward(m, d_norm, SET, dw[OUTPUT], m->logits, m->head_norm, w[OUTPUT], c,
                        m->s.vocab);
    if (m->active) {
        memset(m->dx, 0, (size_t)m->rows * c * kernel_dtype_bytes(m->dtype));
        kernel_rmsnorm_backward(m->kernels, m->lane,
                                &(struct kernel_rmsnorm_backward){.dx = m->dx,
                                                                  .dweight = dw[NORM],
                                                                  .dout = d_norm,
                                                                  .x = m->layers[last].x_in,
                                                                  .rstd = m->head_rstd,
                                                                  .weight = w[NORM],
                                                                  .rows = m->rows,
                                                                  .dim = c,
                                                                  .dtype = m->dtype});
    }
    give(m, "logits", 0);
    give(m, "head norm", 0);
    give(m, "head rstd", 0);
    give(m, "d head norm", 0);
    ERR_TRY(gradients_end(m, last + 1));
    return release(m, last + 1, MODEL_BACKWARD);
}

struct layer_temporary {
    void *d_swiglu, *d_gate, *d_up; /* [N, F] */
    void *d_norm;                   /* [N, C], of either norm */
    void *d_attention, *d_q;        /* [B, T, H, D] */
    void *d_k, *d_v;                /* [B, T, K, D] */
};

static void feed_forward_backward(struct model *m, uint32_t layer, const struct layer_temporary *t,
                                  const void *const *w, float *const *dw)
{
    const struct layer_saved *a = &m->layers[layer];
    uint32_t c = m->s.dim, f = m->s.hidden;
    linear_backward(m, t->d_swiglu, SET, dw[W2], m->dx, a->swiglu, w[W2], f, c);
    kernel_swiglu_backward(m->kernels, m->lane,
                           &(struct kernel_swiglu_backward){.dgate = t->d_gate,
                                                            .dup = t->d_up,
                                                            .dout = t->d_swiglu,
                                                            .gate = a->gate,
                                                            .up = a->up,
                                                            .count = (size_t)m->rows * f,
                                                            .dtype = m->dtype});
    linear_backward(m, t->d_norm, SET, dw[W1], t->d_gate, a->ffn_norm, w[W1], c, f);
    linear_backward(m, t->d_norm, ADD, dw[W3], t->d_up, a->ffn_norm, w[W3], c, f);
    kernel_rmsnorm_backward(m->kernels, m->lane,
                            &(struct kernel_rmsnorm_backward){.dx = m->dx,
                                                              .dweight = dw[FFN_NORM],
                                                              .dout = t->d_norm,
                                                              .x = a->x_mid,
                                                              .rstd = a->ffn_rstd,
                                                              .weight = w[FFN_NORM],
                                                              .rows = m->rows,
                                                              .dim = c,
                                                              .dtype = m->dtype});
}

static void attention_backward(struct model *m, uint32_t layer, const struct layer_temporary *t,
                               const void *const *w, float *const *dw)
{
    const struct layer_saved *a = &m->layers[layer];
    uint32_t c = m->s.dim, q = m->q_rows, kv = m->kv_rows;
    linear_backward(m, t->d_attention, SET, dw[WO], m->dx, a->attention, w[WO], q, c);
    kernel_attention_backward(m->kernels, m->lane,
                              &(struct kernel_attention_backward){.dq = t->d_q,
                                                                  .dkey = t->d_k,
                                                                  .dvalue = t->d_v,
                                                                  .dout = t->d_attention,
                                                                  .out = a->attention,
                                                                  .lse = a->lse,
                                                                  .q = a->q,
                                                                  .key = a->k,
                                                                  .value = a->v,
                                                                  .starts = m->starts,
                                                                  .batch = m->batch,
                                                                  .seq = m->seq,
                                                                  .heads = m->s.heads,
                                                                  .kv_heads = m->s.kv_heads,
                                                                  .head_dim = m->s.head_dim,
                                                                  .dtype = m->dtype});
    rope(m, t->d_q, m->s.heads, true);
    rope(m, t->d_k, m->s.kv_heads, true);
    linear_backward(m, t->d_norm, SET, dw[WQ], t->d_q, a->attention_norm, w[WQ], c, q);
    linear_backward(m, t->d_norm, ADD, dw[WK], t->d_k, a->attention_norm, w[WK], c, kv);
    linear_backward(m, t->d_norm, ADD, dw[WV], t->d_v, a->attention_norm, w[WV], c, kv);
    kernel_rmsnorm_backward(m->kernels, m->lane,
                            &(struct kernel_rmsnorm_backward){.dx = m->dx,
                                                              .dweight = dw[ATTENTION_NORM],
                                                              .dout = t->d_norm,
                                                              .x = a->x_in,
                                                              .rstd = a->attention_rstd,
                                                              .weight = w[ATTENTION_NORM],
                                                              .rows = m->rows,
                                                              .dim = c,
                                                              .dtype = m->dtype});
}

static void take_temporary(struct model *m, struct layer_temporary *t, uint32_t layer)
{
    uint32_t c = m->s.dim, q = m->q_rows, kv = m->kv_rows;
    t->d_swiglu = take(m, "d swiglu", layer, m->s.hidden);
    t->d_gate = take(m, "d gate", layer, m->s.hidden);
    t->d_up = take(m, "d up", layer, m->s.hidden);
    t->d_norm = take(m, "d norm", layer, c);
    t->d_attention = take(m, "d attention", layer, q);
    t->d_q = take(m, "d query", layer, q);
    t->d_k = take(m, "d key", layer, kv);
    t->d_v = take(m, "d value", layer, kv);
}

static void give_temporary(struct model *m, uint32_t layer)
{
    static const char *const names[] = {"d swiglu",    "d gate",  "d up",  "d norm",
                                        "d attention", "d query", "d key", "d value"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        give(m, names[i], layer);
}

static int layer_backward(struct model *m, uint32_t layer)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    struct layer_temporary t;
    take_temporary(m, &t, layer);
    ERR_TRY(acquire(m, w, layer + 1, MODEL_BACKWARD));
    ERR_TRY(gradients_begin(m, dw, layer + 1));
    if (m->active) {
        feed_forward_backward(m, layer, &t, w, dw);
        attention_backward(m, layer, &t, w, dw);
    }
    give_temporary(m, layer);
    give_layer(m, layer);
    ERR_TRY(gradients_end(m, layer + 1));
    return release(m, layer + 1, MODEL_BACKWARD);
}

static int embedding_backward(struct model *m, const int32_t *inputs)
{
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    ERR_TRY(gradients_begin(m, dw, 0));
    if (m->active)
        kernel_embedding_backward(m->kernels, m->lane,
                                  &(struct kernel_embedding_backward){.dtable = dw[0],
                                                                      .tokens = inputs,
                                                                      .dout = m->dx,
                                                                      .rows = m->rows,
                                                                      .dim = m->s.dim,
                                                                      .vocab = m->s.vocab,
                                                                      .dtype = m->dtype});
    give(m, "d residual", 0);
    give(m, "residual in", 0);
    return gradients_end(m, 0);
}

int model_leaf(struct model *m, const struct model_provider *provider,
               const struct model_batch *batch, double *out_loss)
{
    const int32_t *inputs = batch != NULL ? batch->inputs : NULL;
    m->provider = provider;
    m->active = batch != NULL;
    m->starts = batch != NULL ? batch->starts : NULL;
    ERR_TRY(forward(m, inputs));
    *out_loss = loss_and_its_gradient(m, batch);
    ERR_TRY(head_backward(m));
    for (uint32_t layer = m->s.layers; layer-- > 0;)
        ERR_TRY(layer_backward(m, layer));
    return embedding_backward(m, inputs);
}

/* ---- logits ---- */

static float as_float(const void *values, size_t i, enum kernel_dtype dtype)
{
    if (dtype == KERNEL_F32)
        return ((const float *)values)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Gives what a forward keeps for a backward that does not come. */
static int end_forward(struct model *m)
{
    give(m, "logits", 0);
    give(m, "head norm", 0);
    give(m, "head rstd", 0);
    for (uint32_t layer = m->s.layers; layer-- > 0;)
        give_layer(m, layer);
    give(m, "residual in", 0);
    if (m->s.is_tied)
        ERR_TRY(release(m, tied_block(m), MODEL_BACKWARD));
    return release(m, m->s.layers + 1, MODEL_BACKWARD);
}

int model_evaluate(struct model *m, const struct model_provider *provider,
                   const struct model_batch *batch, double *out_loss)
{
    m->provider = provider;
    m->active = batch != NULL;
    m->starts = batch != NULL ? batch->starts : NULL;
    ERR_TRY(forward(m, batch != NULL ? batch->inputs : NULL));
    *out_loss = loss_and_its_gradient(m, batch);
    return end_forward(m);
}

int model_logits(struct model *m, const struct model_provider *provider, const int32_t *inputs,
                 float *out_logits)
{
    m->provider = provider;
    m->active = inputs != NULL;
    m->starts = NULL;
    ERR_TRY(forward(m, inputs));
    size_t count = (size_t)m->seq * m->s.vocab;
    for (size_t i = 0; i < count && m->active; i++)
        out_logits[i] = as_float(m->logits, i, m->dtype);
    return end_forward(m);
}
