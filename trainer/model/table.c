/* table.c - the table of a Llama's tensors, and their initial weights (see model.h).
 *
 * Initial weights are torchtitan's (llama3, depth_init): embedding N(0, 1); wq, wk, wv, w1 N(0,
 * 0.02); wo, w2, w3 of layer l N(0, 0.02 / sqrt(2 (l + 1))); output N(0, 1/sqrt(C)) cut at three
 * deviations by drawing again, and so is a tied embedding; norms one. Element e (row-major, global)
 * of a tensor is deviate e of the stream "init/<name>", its k-th redraw is deviate e of
 * "init/<name>/<k>": values do not depend on the layout.
 */
#include "proto/base/report.h"
#include "trainer/data/random.h"
#include "trainer/model/private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

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
        enum model_role role;
    } list[NUM_LAYER_TENSORS] = {
        [WQ] = {"attention.wq", q, c, 0.02, MODEL_COLUMNS},
        [WK] = {"attention.wk", kv, c, 0.02, MODEL_KV_COLUMNS},
        [WV] = {"attention.wv", kv, c, 0.02, MODEL_KV_COLUMNS},
        [WO] = {"attention.wo", c, q, deep, MODEL_ROWS},
        [W1] = {"feed_forward.w1", s->hidden, c, 0.02, MODEL_COLUMNS},
        [W2] = {"feed_forward.w2", c, s->hidden, deep, MODEL_ROWS},
        [W3] = {"feed_forward.w3", s->hidden, c, deep, MODEL_COLUMNS},
        [ATTENTION_NORM] = {"attention_norm", c, 1, 0, MODEL_WHOLE},
        [FFN_NORM] = {"ffn_norm", c, 1, 0, MODEL_WHOLE},
    };
    for (uint32_t i = 0; i < NUM_LAYER_TENSORS; i++) {
        struct model_tensor tensor = {.dims = list[i].width == 1 ? 1 : 2,
                                      .rows = list[i].rows,
                                      .width = list[i].width,
                                      .block = layer + 1,
                                      .role = list[i].role,
                                      .heads = s->kv_heads,
                                      .init_std = list[i].std};
        snprintf(tensor.name, sizeof(tensor.name), "layers.%u.%s.weight", layer, list[i].name);
        add_tensor(table, &tensor);
    }
}

static void add_matrix(struct model_table *table, const char *name, uint32_t block)
{
    const struct model_shape *s = &table->shape;
    bool is_output = block > 0 || s->is_tied;
    struct model_tensor tensor = {
        .dims = 2, .rows = s->vocab, .width = s->dim, .block = block, .role = MODEL_COLUMNS};
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
    uint64_t embedding = s->is_tied ? 0 : (uint64_t)s->vocab * s->dim; /* not a product */
    uint64_t products = model_shape_parameters(s) - embedding;
    return 6.0 * (double)products + 12.0 * s->layers * s->heads * s->head_dim * seq;
}

double model_layer_flops(const struct model_table *table, uint32_t seq)
{
    const struct model_shape *s = &table->shape;
    uint32_t first, num = model_block_tensors(table, 1, &first);
    uint64_t products = 0;
    for (uint32_t i = first; i < first + num; i++)
        products += table->tensors[i].rows * table->tensors[i].width;
    return 2.0 * (double)products + 4.0 * s->heads * s->head_dim * seq;
}

/* ---- initial weights ---- */

#define REDRAWS_MAX 64u /* 64 deviates beyond three deviations in a row do not happen */

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

/* Elements [first, first + count) of the tensor, row-major. */
static void init_elements(float *out, const struct model_tensor *tensor, uint64_t first,
                          uint64_t count, uint64_t seed)
{
    char stream[96];
    snprintf(stream, sizeof(stream), "init/%s", tensor->name);
    struct random_key key = random_key(seed, stream);
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

void model_init_box(float *out, const struct model_tensor *tensor, const struct box *box,
                    uint64_t seed)
{
    uint64_t width = box->extent[1], rows = box->extent[0];
    if (width == tensor->width) { /* whole rows are contiguous */
        width *= rows;
        rows = rows > 0 ? 1 : 0;
    }
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t first = (box->offset[0] + row) * tensor->width + box->offset[1];
        init_elements(out + row * width, tensor, first, width, seed);
    }
}
