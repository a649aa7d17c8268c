/* scale_model.h - the slices of a 405B Llama on any mesh of pp, dp_shard and tp: shared by the
 * measuring programs of the control path. None of the model's 4.9 TB is allocated.
 *
 * Per parameter three tensors of fp32: the weight, exp_avg and exp_avg_sq. Cuts are those of
 * torchtitan: layers in runs of consecutive ones over pp; attention and feed-forward by columns and
 * rows over tp, embedding and head over the vocabulary; then each rank's rows over dp_shard in
 * chunks of ceil(rows / dp), so the last ranks may hold less or nothing. Norm weights are whole on
 * every tp rank. Rank = (pp * dp + dp_shard) * tp_size + tp. */
#ifndef HOLDFAST_TESTS_SCALE_MODEL_H
#define HOLDFAST_TESTS_SCALE_MODEL_H

#include "proto/layout/layout.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MODEL_LAYERS 126u
#define MODEL_DIM 16384u
#define MODEL_FFN 53248u
#define MODEL_KV 1024u /* 8 heads of 128 */
#define MODEL_VOCAB 128256u
#define MODEL_COPIES 3u    /* weight, exp_avg, exp_avg_sq */
#define MODEL_PER_LAYER 9u /* parameters */
#define MODEL_OTHERS 3u    /* embedding, norm, head */
#define MODEL_TENSORS (MODEL_COPIES * (MODEL_LAYERS * MODEL_PER_LAYER + MODEL_OTHERS))

struct model_mesh {
    uint32_t pp, dp, tp;
};

enum model_cut { CUT_NONE, CUT_ROWS, CUT_COLUMNS }; /* over tp */

struct model_parameter {
    const char *name;
    uint64_t rows, columns; /* columns 0: one dimension */
    enum model_cut cut;
};

static const struct model_parameter model_layer[MODEL_PER_LAYER] = {
    {"attention.wq.weight", MODEL_DIM, MODEL_DIM, CUT_ROWS},
    {"attention.wk.weight", MODEL_KV, MODEL_DIM, CUT_ROWS},
    {"attention.wv.weight", MODEL_KV, MODEL_DIM, CUT_ROWS},
    {"attention.wo.weight", MODEL_DIM, MODEL_DIM, CUT_COLUMNS},
    {"feed_forward.w1.weight", MODEL_FFN, MODEL_DIM, CUT_ROWS},
    {"feed_forward.w2.weight", MODEL_DIM, MODEL_FFN, CUT_COLUMNS},
    {"feed_forward.w3.weight", MODEL_FFN, MODEL_DIM, CUT_ROWS},
    {"attention_norm.weight", MODEL_DIM, 0, CUT_NONE},
    {"ffn_norm.weight", MODEL_DIM, 0, CUT_NONE},
};
static const struct model_parameter model_embedding = {"tok_embeddings.weight", MODEL_VOCAB,
                                                       MODEL_DIM, CUT_ROWS};
static const struct model_parameter model_norm = {"norm.weight", MODEL_DIM, 0, CUT_NONE};
static const struct model_parameter model_head = {"output.weight", MODEL_VOCAB, MODEL_DIM,
                                                  CUT_ROWS};

static inline uint32_t model_ranks(struct model_mesh mesh)
{
    return mesh.pp * mesh.dp * mesh.tp;
}

/* The slices of one parameter and its two moments; `layer` negative: outside the layers. */
static inline uint32_t model_add(struct slice *out, const struct model_parameter *parameter,
                                 int layer, struct model_mesh mesh, uint32_t d, uint32_t t)
{
    static const char *const prefixes[MODEL_COPIES] = {"", "optimizer.exp_avg.",
                                                       "optimizer.exp_avg_sq."};
    uint64_t rows = parameter->rows, first = 0, columns = parameter->columns, column = 0;
    if (parameter->cut == CUT_ROWS) {
        rows /= mesh.tp;
        first = rows * t;
    }
    if (parameter->cut == CUT_COLUMNS) {
        columns /= mesh.tp;
        column = columns * t;
    }
    uint64_t chunk = (rows + mesh.dp - 1) / mesh.dp;
    uint64_t start = chunk * d < rows ? chunk * d : rows;
    uint64_t end = start + chunk < rows ? start + chunk : rows;
    for (uint32_t copy = 0; copy < MODEL_COPIES; copy++) {
        char number[32] = "";
        struct slice *slice = &out[copy];
        memset(slice, 0, sizeof *slice);
        if (layer >= 0)
            snprintf(number, sizeof number, "layers.%d.", layer);
        snprintf(slice->tensor.name, sizeof slice->tensor.name, "%s%s%s", prefixes[copy], number,
                 parameter->name);
        slice->tensor.dtype = DTYPE_F32;
        slice->tensor.dims = parameter->columns ? 2 : 1;
        for (uint32_t i = 0; i < LAYOUT_DIMS_MAX; i++)
            slice->tensor.shape[i] = slice->box.extent[i] = 1;
        slice->tensor.shape[0] = parameter->rows;
        slice->box.offset[0] = first + start;
        slice->box.extent[0] = end - start;
        if (parameter->columns) {
            slice->tensor.shape[1] = parameter->columns;
            slice->box.offset[1] = column;
            slice->box.extent[1] = columns;
        }
    }
    return MODEL_COPIES;
}

/* The slices of one rank; `out` has room for MODEL_TENSORS. Returns how many. */
static inline uint32_t model_slices(struct slice *out, struct model_mesh mesh, uint32_t rank)
{
    uint32_t t = rank % mesh.tp, d = rank / mesh.tp % mesh.dp, p = rank / mesh.tp / mesh.dp;
    uint32_t count = 0;
    if (p == 0)
        count += model_add(out + count, &model_embedding, -1, mesh, d, t);
    for (uint32_t l = MODEL_LAYERS * p / mesh.pp; l < MODEL_LAYERS * (p + 1) / mesh.pp; l++)
        for (uint32_t i = 0; i < MODEL_PER_LAYER; i++)
            count += model_add(out + count, &model_layer[i], (int)l, mesh, d, t);
    if (p == mesh.pp - 1) {
        count += model_add(out + count, &model_norm, -1, mesh, d, t);
        count += model_add(out + count, &model_head, -1, mesh, d, t);
    }
    return count;
}

#endif
