/* model.c - a Llama in Hugging Face's format (see hf.h): its sizes and its tensors. */
#include "clients/cli/engine/cli.h"
#include "clients/cli/hf/hf.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_TENSORS 9u
#define POSITIONS_DEFAULT 8192 /* for a model without a known number */

/* ---- config.json ---- */

int hf_hand_out(json_t **out, json_t *root, bool is_whole)
{
    *out = is_whole ? root : NULL;
    if (is_whole && root != NULL)
        return 0;
    json_decref(root);
    return report_error(ERR_MEMORY, NULL, "no memory for the description of a model");
}

static json_t *make_config(const struct model_shape *model, const struct hf_ends *ends)
{
    json_t *config = json_pack(
        "{s[s] ss si si si si si si si si sf sf ss sb sb sb sf ss sO sO sb}", "architectures",
        "LlamaForCausalLM", "model_type", "llama", "hidden_size", (int)model->dim,
        "intermediate_size", (int)model->hidden, "num_hidden_layers", (int)model->layers,
        "num_attention_heads", (int)model->heads, "num_key_value_heads", (int)model->kv_heads,
        "head_dim", (int)model->head_dim, "vocab_size", (int)model->vocab,
        "max_position_embeddings", (int)model->positions, "rope_theta", model->rope_theta,
        "rms_norm_eps", model->norm_eps, "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0,
        "tie_word_embeddings", (int)model->is_tied, "initializer_range", 0.02, "torch_dtype", "",
        "bos_token_id", ends->begin != NULL ? ends->begin : json_null(), "eos_token_id",
        ends->end != NULL ? ends->end : json_null(), "use_cache", 1);
    if (config != NULL) {
        json_t *scaling = model_shape_rope_scaling(model);
        json_object_set_new(config, "rope_scaling", scaling != NULL ? scaling : json_null());
    }
    return config;
}

/* The folder's config.json, if the model is still the one that it describes; else NULL. */
static const json_t *imported_config(const struct hf_run *run, const struct model_shape *model)
{
    const json_t *config = json_object_get(run->config, "hf");
    struct model_shape shape;
    struct model_difference difference;
    if (json_object_get(config, "model_type") == NULL) /* the trainer sets only positions */
        return NULL;
    bool is_same = model_shape_of_config(&shape, config) == 0 &&
                   !model_shape_differs(&difference, model, &shape);
    report_clear();
    return is_same ? config : NULL;
}

/* The imported one, except for values that training changes. An import accepts only unquantized
 * weights, regardless of the folder's config. */
static json_t *change_config(const json_t *imported, const json_t *made)
{
    static const char *const keys[] = {"max_position_embeddings", "bos_token_id", "eos_token_id"};
    json_t *config = json_deep_copy(imported);
    json_object_del(config, HF_QUANTIZATION);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *was = json_object_get(imported, keys[i]);
        json_t *is = json_object_get(made, keys[i]);
        if (was != NULL || !json_is_null(is)) /* a null need not exist */
            json_object_set(config, keys[i], is);
    }
    return config;
}

int hf_model_config(json_t **out, const struct model_shape *model, const enum dtype *dtype,
                    const struct hf_ends *ends, const struct hf_run *run)
{
    const json_t *imported = imported_config(run, model);
    json_begin();
    json_t *config = make_config(model, ends);
    if (imported != NULL && config != NULL) {
        json_t *made = config;
        config = change_config(imported, made);
        json_decref(made);
    }
    const char *key = json_object_get(imported, "dtype") != NULL ? "dtype" : "torch_dtype";
    if (dtype != NULL || imported == NULL)
        json_object_set_new(config, key,
                            json_string(dtype == NULL || *dtype == DTYPE_F32 ? "float32"
                                        : *dtype == DTYPE_BF16               ? "bfloat16"
                                        : *dtype == DTYPE_F16                ? "float16"
                                                                             : "float64"));
    return hf_hand_out(out, config, json_end());
}

/* ---- the identity ---- */

int hf_model_identity(json_t **out, const struct model_shape *model)
{
    json_t *identity = model_shape_identity(model);
    json_begin();
    json_t *root = json_pack("{so}", "model", identity);
    return hf_hand_out(out, root, json_end());
}

static int read_section(json_t **out, const char *text)
{
    json_error_t reason;
    return text != NULL && json_read(out, text, strlen(text), &reason) == ERR_MEMORY ? ERR_MEMORY
                                                                                     : 0;
}

int hf_run_open(struct hf_run *out, const struct manifest *manifest)
{
    *out = (struct hf_run){0};
    ERR_TRY(read_section(&out->identity, manifest->identity_json));
    ERR_TRY(read_section(&out->config, manifest->config_json));
    return read_section(&out->data, manifest->data_json);
}

void hf_run_close(struct hf_run *run)
{
    json_decref(run->identity);
    json_decref(run->config);
    json_decref(run->data);
}

static int read_identity(struct model_shape *out, const json_t *identity)
{
    const json_t *model = json_object_get(identity, "model");
    if (model == NULL)
        return report_error(ERR_INVALID,
                            "name a folder with its config.json: --model FOLDER, or export "
                            "one file: --format safetensors",
                            "the checkpoint does not describe its model");
    return model_shape_of_identity(out, model);
}

/* The model's number of positions, or the length of longer sequences on which it was trained. */
static uint32_t positions_of(const struct hf_run *run)
{
    const json_t *imported = json_object_get(run->config, "hf");
    json_int_t own = json_integer_value(json_object_get(imported, "max_position_embeddings"));
    json_int_t trained = json_integer_value(json_object_get(run->data, "seq_len"));
    json_int_t positions = own > trained && own <= MODEL_POSITIONS_MAX ? own : trained;
    return positions < 1 || positions > MODEL_POSITIONS_MAX ? POSITIONS_DEFAULT
                                                            : (uint32_t)positions;
}

int hf_model_of(struct model_shape *out, const struct hf_run *run)
{
    *out = (struct model_shape){0};
    ERR_TRY(read_identity(out, run->identity));
    out->positions = positions_of(run);
    return 0;
}

/* If a text has several end tokens, the imported value is a list. */
static bool names_token(const json_t *imported, const json_t *token)
{
    for (size_t i = 0; i < json_array_size(imported); i++)
        if (json_equal(json_array_get(imported, i), token))
            return true;
    return json_equal(imported, token);
}

static json_t *end_of(const json_t *data, const char *ours, int64_t of_file, const json_t *imported,
                      const char *theirs)
{
    json_t *trained = json_object_get(data, ours), *came = json_object_get(imported, theirs);
    if (trained != NULL)
        return json_incref(names_token(came, trained) ? came : trained);
    return of_file >= 0 ? json_integer(of_file) : json_incref(came);
}

int hf_ends_of(struct hf_ends *out, const struct hf_run *run, const struct hf_tokenizer *tokenizer,
               bool keeps)
{
    const json_t *imported = json_object_get(run->config, "hf"), *data = keeps ? NULL : run->data;
    bool names_them = !keeps && tokenizer != NULL && tokenizer->name == NULL;
    *out = (struct hf_ends){0};
    json_begin();
    out->begin = end_of(data, "bos", names_them ? (int64_t)tokenizer->vocab.num_tokens : -1,
                        imported, "bos_token_id");
    out->end = end_of(data, "eos", names_them ? (int64_t)tokenizer->vocab.num_tokens + 1 : -1,
                      imported, "eos_token_id");
    return json_end() ? 0
                      : report_error(ERR_MEMORY, NULL, "no memory for the description of a model");
}

void hf_ends_close(struct hf_ends *ends)
{
    json_decref(ends->begin);
    json_decref(ends->end);
    *ends = (struct hf_ends){0};
}

/* ---- tensors ---- */

uint32_t hf_num_tensors(const struct model_shape *model)
{
    return model->layers * LAYER_TENSORS + (model->is_tied ? 2 : 3);
}

bool hf_dtype_of(enum dtype *out, const struct hf_run *run, const struct hf_tensor *tensor,
                 enum dtype stored)
{
    const json_t *dtypes = json_object_get(run->config, "hf_dtypes");
    const json_t *own = json_object_get(json_object_get(dtypes, "tensors"), tensor->theirs);
    const char *name = json_string_value(own != NULL ? own : json_object_get(dtypes, "default"));
    bool is_known = stored == DTYPE_F32 && name != NULL && dtype_parse(out, name) == 0;
    return is_known && convert_is_float(*out); /* an import stores fp32 */
}

static void set_tensor(struct hf_tensor *out, const char *ours, const char *theirs, uint64_t rows,
                       uint64_t width)
{
    *out = (struct hf_tensor){.dims = width == 0 ? 1 : 2, .shape = {rows, width == 0 ? 1 : width}};
    snprintf(out->ours, sizeof out->ours, "%s.weight", ours);
    snprintf(out->theirs, sizeof out->theirs, "%s.weight", theirs);
}

void hf_tensor(struct hf_tensor *out, const struct model_shape *model, uint32_t index)
{
    uint64_t dim = model->dim, heads = (uint64_t)model->heads * model->head_dim;
    uint64_t kv = (uint64_t)model->kv_heads * model->head_dim, hidden = model->hidden;
    const struct {
        const char *ours, *theirs;
        uint64_t rows, width; /* width 0: a vector */
        bool has_heads;
    } layer[LAYER_TENSORS] = {
        {"attention_norm", "input_layernorm", dim, 0, false},
        {"attention.wq", "self_attn.q_proj", heads, dim, true},
        {"attention.wk", "self_attn.k_proj", kv, dim, true},
        {"attention.wv", "self_attn.v_proj", kv, dim, false},
        {"attention.wo", "self_attn.o_proj", dim, heads, false},
        {"ffn_norm", "post_attention_layernorm", dim, 0, false},
        {"feed_forward.w1", "mlp.gate_proj", hidden, dim, false},
        {"feed_forward.w2", "mlp.down_proj", dim, hidden, false},
        {"feed_forward.w3", "mlp.up_proj", hidden, dim, false},
    };
    uint32_t number = (index - 1) / LAYER_TENSORS, part = (index - 1) % LAYER_TENSORS;
    char ours[96], theirs[96];
    if (index == 0) {
        set_tensor(out, "tok_embeddings", "model.embed_tokens", model->vocab, dim);
    } else if (number < model->layers) {
        snprintf(ours, sizeof ours, "layers.%u.%s", number, layer[part].ours);
        snprintf(theirs, sizeof theirs, "model.layers.%u.%s", number, layer[part].theirs);
        set_tensor(out, ours, theirs, layer[part].rows, layer[part].width);
        out->head_rows = layer[part].has_heads ? model->head_dim : 0;
    } else if (part == 0) {
        set_tensor(out, "norm", "model.norm", dim, 0);
    } else {
        set_tensor(out, "output", "lm_head", model->vocab, dim);
    }
}
