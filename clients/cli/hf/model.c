/* model.c - a Llama as Hugging Face keeps it (see hf.h): its sizes and its tensors. */
#include "clients/cli/hf/hf.h"

#include "proto/json.h"
#include "proto/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MAX_OF_MODEL (1 << 24) /* of any dimension */
#define LAYERS_MAX 4096
#define LAYER_TENSORS 9u
#define POSITIONS_MAX (1 << 30)
#define POSITIONS_DEFAULT 8192 /* of a model of which nothing is said */

/* ---- config.json ---- */

static int take_size(uint32_t *out, const json_t *config, const char *key, int64_t missing,
                     int64_t most)
{
    const json_t *member = json_object_get(config, key);
    int64_t value = member == NULL || json_is_null(member) ? missing : json_integer_value(member);
    if (value < 1 || value > most)
        return report_error(ERR_CORRUPT, NULL, "%s of the model is not a number from 1 to %lld",
                            key, (long long)most);
    *out = (uint32_t)value;
    return 0;
}

static double take_number(const json_t *config, const char *key, double missing)
{
    const json_t *member = json_object_get(config, key);
    return json_is_number(member) ? json_number_value(member) : missing;
}

static int fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the description of a model");
}

/* Both spellings: members of config.json, or of its rope_parameters. */
static int take_rope(struct hf_model *out, const json_t *config)
{
    const json_t *parameters = json_object_get(config, "rope_parameters");
    const json_t *scaling = json_object_get(config, "rope_scaling");
    if (json_is_object(parameters)) {
        out->rope_theta = take_number(parameters, "rope_theta", 10000.0);
        scaling = parameters;
    } else {
        out->rope_theta = take_number(config, "rope_theta", 10000.0);
    }
    const json_t *type = json_object_get(scaling, "rope_type");
    if (type == NULL)
        type = json_object_get(scaling, "type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "default") == 0)
        return 0;
    json_begin();
    out->rope_scaling = json_deep_copy(scaling);
    return json_end() ? 0 : fail_memory();
}

static int check_kind(const json_t *config)
{
    static const char *const absent[] = {"attention_bias", "mlp_bias"};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *act = json_string_value(json_object_get(config, "hidden_act"));
    if (type == NULL || strcmp(type, "llama") != 0)
        return report_error(ERR_INVALID, "models of the type llama can be imported",
                            "config.json: model_type is '%.64s'", type != NULL ? type : "");
    if (act != NULL && strcmp(act, "silu") != 0)
        return report_error(ERR_INVALID, "the trainer has silu",
                            "config.json: hidden_act is '%.64s'", act);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        if (json_is_true(json_object_get(config, absent[i])))
            return report_error(ERR_INVALID, "the trainer has no biases", "config.json: %s is true",
                                absent[i]);
    }
    return 0;
}

static int check_shape(const struct hf_model *model)
{
    if (model->head_dim % 2 != 0 || model->heads % model->kv_heads != 0)
        return report_error(ERR_CORRUPT, NULL, "%u heads of %u rows with %u key heads are no Llama",
                            model->heads, model->head_dim, model->kv_heads);
    if (!(model->rope_theta > 0) || !(model->norm_eps > 0))
        return report_error(ERR_CORRUPT, NULL, "rope_theta %g or rms_norm_eps %g is not positive",
                            model->rope_theta, model->norm_eps);
    return 0;
}

enum size { DIM, LAYERS, HEADS, HIDDEN, VOCAB, KV_HEADS, HEAD_DIM, NUM_SIZES };

/* `has_defaults`: the last two need not be there. */
static int take_sizes(struct hf_model *out, const json_t *from, const char *const keys[NUM_SIZES],
                      bool has_defaults)
{
    uint32_t *const sizes[NUM_SIZES] = {&out->dim,   &out->layers,   &out->heads,   &out->hidden,
                                        &out->vocab, &out->kv_heads, &out->head_dim};
    int error = 0;
    for (int i = 0; i < NUM_SIZES && error == 0; i++) {
        int64_t most = i == LAYERS     ? LAYERS_MAX
                       : i == KV_HEADS ? (int64_t)out->heads
                                       : SIZE_MAX_OF_MODEL;
        int64_t missing = i == KV_HEADS ? out->heads : i == HEAD_DIM ? out->dim / out->heads : 0;
        error = take_size(sizes[i], from, keys[i], has_defaults ? missing : 0, most);
    }
    return error;
}

int hf_model_read(struct hf_model *out, const json_t *config)
{
    static const char *const keys[NUM_SIZES] = {
        "hidden_size",       "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "vocab_size",        "num_key_value_heads",
        "head_dim"};
    memset(out, 0, sizeof *out);
    int error = check_kind(config);
    if (error == 0)
        error = take_sizes(out, config, keys, true);
    if (error != 0)
        return error;
    out->norm_eps = take_number(config, "rms_norm_eps", 1e-6);
    out->is_tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    error = take_rope(out, config);
    return error != 0 ? error : check_shape(out);
}

int hf_hand_out(json_t **out, json_t *root, bool is_whole)
{
    *out = is_whole ? root : NULL;
    if (is_whole && root != NULL)
        return 0;
    json_decref(root);
    return fail_memory();
}

int hf_model_config(json_t **out, const struct hf_model *model, enum dtype dtype,
                    const struct hf_tokenizer *tokenizer)
{
    const char *type = dtype == DTYPE_F32    ? "float32"
                       : dtype == DTYPE_BF16 ? "bfloat16"
                       : dtype == DTYPE_F16  ? "float16"
                                             : "float64";
    json_begin();
    json_t *begin = tokenizer != NULL ? json_integer(tokenizer->vocab.num_tokens) : json_null();
    json_t *end = tokenizer != NULL ? json_integer(tokenizer->vocab.num_tokens + 1) : json_null();
    json_t *config = json_pack(
        "{s[s] ss si si si si si si si si sf sf ss sb sb sb sf ss so so sb}", "architectures",
        "LlamaForCausalLM", "model_type", "llama", "hidden_size", (int)model->dim,
        "intermediate_size", (int)model->hidden, "num_hidden_layers", (int)model->layers,
        "num_attention_heads", (int)model->heads, "num_key_value_heads", (int)model->kv_heads,
        "head_dim", (int)model->head_dim, "vocab_size", (int)model->vocab,
        "max_position_embeddings", (int)model->positions, "rope_theta", model->rope_theta,
        "rms_norm_eps", model->norm_eps, "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0,
        "tie_word_embeddings", (int)model->is_tied, "initializer_range", 0.02, "torch_dtype", type,
        "bos_token_id", begin, "eos_token_id", end, "use_cache", 1);
    if (config != NULL)
        json_object_set_new(config, "rope_scaling",
                            model->rope_scaling != NULL ? json_deep_copy(model->rope_scaling)
                                                        : json_null());
    return hf_hand_out(out, config, json_end());
}

/* ---- the identity ---- */

int hf_model_identity(json_t **out, const struct hf_model *model)
{
    json_begin();
    json_t *identity =
        json_pack("{si si si si si si si sf sf}", "dim", (int)model->dim, "layers",
                  (int)model->layers, "heads", (int)model->heads, "kv_heads", (int)model->kv_heads,
                  "head_dim", (int)model->head_dim, "hidden", (int)model->hidden, "vocab",
                  (int)model->vocab, "rope_theta", model->rope_theta, "norm_eps", model->norm_eps);
    if (identity != NULL && model->rope_scaling != NULL)
        json_object_set_new(identity, "rope_scaling", json_deep_copy(model->rope_scaling));
    json_t *root = json_pack("{so}", "model", identity);
    return hf_hand_out(out, root, json_end());
}

int hf_section(json_t **out, const char *text)
{
    json_error_t reason;
    *out = NULL;
    return text != NULL && json_read(out, text, strlen(text), &reason) == ERR_MEMORY ? ERR_MEMORY
                                                                                     : 0;
}

static int take_identity(struct hf_model *out, const json_t *identity)
{
    static const char *const keys[NUM_SIZES] = {"dim",   "layers",   "heads",   "hidden",
                                                "vocab", "kv_heads", "head_dim"};
    const json_t *model = json_object_get(identity, "model");
    if (model == NULL)
        return report_error(ERR_INVALID, "export one file: --format safetensors",
                            "the checkpoint does not say what model it is of");
    int error = take_sizes(out, model, keys, false);
    if (error != 0)
        return error;
    out->rope_theta = take_number(model, "rope_theta", 0);
    out->norm_eps = take_number(model, "norm_eps", 0);
    json_begin();
    if (json_is_object(json_object_get(model, "rope_scaling")))
        out->rope_scaling = json_deep_copy(json_object_get(model, "rope_scaling"));
    return json_end() ? check_shape(out) : fail_memory();
}

/* What the model is made for: what it was imported with, until it is trained; then the length of
 * the sequences. */
static uint32_t positions_of(const json_t *config, const json_t *data)
{
    const json_t *found = json_object_get(json_object_get(config, "hf"), "max_position_embeddings");
    if (!json_is_integer(found))
        found = json_object_get(data, "seq_len");
    json_int_t positions = json_integer_value(found);
    return positions < 1 || positions > POSITIONS_MAX ? POSITIONS_DEFAULT : (uint32_t)positions;
}

int hf_model_of(struct hf_model *out, const struct manifest *manifest)
{
    json_t *identity = NULL, *config = NULL, *data = NULL;
    memset(out, 0, sizeof *out);
    int error = hf_section(&identity, manifest->identity_json);
    if (error == 0)
        error = hf_section(&config, manifest->config_json);
    if (error == 0)
        error = hf_section(&data, manifest->data_json);
    if (error == 0)
        error = take_identity(out, identity);
    out->positions = positions_of(config, data);
    json_decref(identity);
    json_decref(config);
    json_decref(data);
    return error;
}

void hf_model_free(struct hf_model *model)
{
    json_decref(model->rope_scaling);
    model->rope_scaling = NULL;
}

/* ---- tensors ---- */

uint32_t hf_num_tensors(const struct hf_model *model)
{
    return model->layers * LAYER_TENSORS + 3;
}

static void set_tensor(struct hf_tensor *out, const char *ours, const char *theirs, uint64_t rows,
                       uint64_t width)
{
    *out = (struct hf_tensor){.dims = width == 0 ? 1 : 2, .shape = {rows, width == 0 ? 1 : width}};
    snprintf(out->ours, sizeof out->ours, "%s.weight", ours);
    snprintf(out->theirs, sizeof out->theirs, "%s.weight", theirs);
}

void hf_tensor(struct hf_tensor *out, const struct hf_model *model, uint32_t index)
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
