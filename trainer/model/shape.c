/* shape.c - the shape of the model that a configuration asks for (see shape.h).
 *
 * Sources, later ones win: the flavor; a config.json, which gives all values; single keys. If a key
 * changes dim or heads and none gives a head's width, the width follows from them. */
#include "trainer/model/shape.h"
#include "proto/base/report.h"

#include <stdio.h>

#define NOT_GIVEN (-1) /* the key is not set */

/* 0 counts as a value: model_shape_check() refuses it. */
static void take_size(uint32_t *out, int64_t key)
{
    if (key != NOT_GIVEN)
        *out = (uint32_t)key;
}

static void take_number(double *out, double key)
{
    if (key != NOT_GIVEN)
        *out = key;
}

static int take_sizes(struct model_shape *out, const struct config *config)
{
    take_size(&out->dim, config->model_dim);
    take_size(&out->layers, config->model_layers);
    take_size(&out->heads, config->model_heads);
    take_size(&out->kv_heads, config->model_kv_heads);
    take_size(&out->hidden, config->model_hidden);
    take_size(&out->vocab, config->model_vocab);
    bool follows = config->model_head_dim == NOT_GIVEN && out->heads > 0 &&
                   (config->model_dim != NOT_GIVEN || config->model_heads != NOT_GIVEN);
    if (follows && out->dim % out->heads != 0)
        return report_error(ERR_INVALID, "give model.head_dim",
                            "model.dim = %u does not divide by %u heads", out->dim, out->heads);
    if (follows)
        out->head_dim = out->dim / out->heads;
    take_size(&out->head_dim, config->model_head_dim);
    return 0;
}

/* Refuses a key that the kind of scaling does not use, since it has no effect. */
static int check_rope_keys(const struct config *config, enum model_rope rope)
{
    const bool is_llama3 = rope == MODEL_ROPE_LLAMA3;
    const struct {
        const char *key;
        double value;
        bool has_meaning;
    } keys[] = {
        {"factor", config->rope_factor, rope != MODEL_ROPE_PLAIN},
        {"low_freq_factor", config->rope_low_freq_factor, is_llama3},
        {"high_freq_factor", config->rope_high_freq_factor, is_llama3},
        {"original_positions", (double)config->rope_original_positions, is_llama3},
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].value != NOT_GIVEN && !keys[i].has_meaning)
            return report_error(ERR_INVALID,
                                "leave it out, or set model.rope_scaling (llama3 has all, linear "
                                "the factor)",
                                "model.rope_%s = %g does not apply to this model", keys[i].key,
                                keys[i].value);
    return 0;
}

static int take_rope(struct model_shape *out, const struct config *config)
{
    static const enum model_rope ropes[] = {[ROPE_NONE] = MODEL_ROPE_PLAIN,
                                            [ROPE_LINEAR] = MODEL_ROPE_LINEAR,
                                            [ROPE_LLAMA3] = MODEL_ROPE_LLAMA3};
    take_number(&out->rope_theta, config->rope_theta);
    if (config->rope_scaling != ROPE_DEFAULT)
        model_shape_rope_defaults(out, ropes[config->rope_scaling]);
    ERR_TRY(check_rope_keys(config, out->rope));
    take_number(&out->rope_factor, config->rope_factor);
    take_number(&out->rope_low_factor, config->rope_low_freq_factor);
    take_number(&out->rope_high_factor, config->rope_high_freq_factor);
    take_size(&out->rope_positions, config->rope_original_positions);
    return 0;
}

/* torchtitan's older files have sizes of Llama 2 under that name: "llama2", "7B". */
static int take_flavor(struct model_shape *out, const struct config *config, uint32_t vocab)
{
    char older[sizeof(config->model_flavor) + 8];
    snprintf(older, sizeof(older), "llama2-%s", config->model_flavor);
    if (config->model_family == FAMILY_LLAMA2 && model_shape_of_flavor(out, older, vocab) == 0)
        return 0;
    return model_shape_of_flavor(out, config->model_flavor, vocab);
}

bool shape_has_vocab_of_tokens(const struct config *config)
{
    struct model_shape one, other;
    return config->model_config[0] == '\0' && config->model_vocab < 0 &&
           take_flavor(&one, config, 1) == 0 && take_flavor(&other, config, 2) == 0 &&
           one.vocab != other.vocab;
}

const char *shape_name(const struct config *config)
{
    return config->model_config[0] != '\0' ? config->model_config : config->model_flavor;
}

int shape_of_settings(struct model_shape *out, const struct config *config, uint32_t tokens_vocab)
{
    if (config->model_config[0] != '\0')
        ERR_TRY(model_shape_open(out, config->model_config));
    else
        ERR_TRY(take_flavor(out, config, tokens_vocab));
    ERR_TRY(take_sizes(out, config));
    ERR_TRY(take_rope(out, config));
    take_number(&out->norm_eps, config->norm_eps);
    if (config->tied_embeddings != TIED_DEFAULT)
        out->is_tied = config->tied_embeddings == TIED_TRUE;
    ERR_TRY(model_shape_check(out));
    if (tokens_vocab > out->vocab)
        return report_error(ERR_INVALID,
                            "use tokens of the model's own tokenizer, or set "
                            "model.vocab_size to at least the tokens' vocabulary",
                            "the tokens of %s have a vocabulary of %u, the model %u",
                            trainer_config_data(config), tokens_vocab, out->vocab);
    return 0;
}
