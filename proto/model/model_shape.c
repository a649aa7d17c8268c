/* model_shape.c - the sizes and settings of a Llama model (see model_shape.h).
 *
 * One table of fields serves config.json, the identity and the comparison. Numbers of flavors are
 * those published with the weights. */
#include "proto/model/model_shape.h"

#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/layout/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- flavors ---- */

#define LLAMA2(p) .rope_theta = 10000.0, .norm_eps = 1e-5, .vocab = 32000, .positions = (p)
#define LLAMA3 .rope_theta = 500000.0, .norm_eps = 1e-5, .vocab = 128256, .positions = 8192
#define LLAMA31_OF(v, scale)                                                     \
    .rope_theta = 500000.0, .norm_eps = 1e-5, .vocab = (v), .positions = 131072, \
    .rope = MODEL_ROPE_LLAMA3, .rope_factor = (scale), .rope_low_factor = 1,     \
    .rope_high_factor = 4, .rope_positions = 8192
#define LLAMA31(scale) LLAMA31_OF(128256, scale)
#define SIZES(c, l, h, k, d, f) \
    .dim = (c), .layers = (l), .heads = (h), .kv_heads = (k), .head_dim = (d), .hidden = (f)
#define SIZES_8B SIZES(4096, 32, 32, 8, 128, 14336)
#define SIZES_70B SIZES(8192, 80, 64, 8, 128, 28672)
#define SIZES_405B SIZES(16384, 126, 128, 8, 128, 53248)
#define SMALL(v) .rope_theta = 500000.0, .norm_eps = 1e-5, .vocab = (v)

/* `is_open`: the vocabulary is that of the tokens. */
static const struct flavor {
    const char *name;
    bool is_open;
    struct model_shape shape;
} flavors[] = {
    {"tiny", true, {SIZES(64, 2, 4, 2, 16, 192), SMALL(256)}},
    {"debugmodel", true, {SIZES(256, 10, 16, 4, 16, 768), SMALL(4096)}},
    {"torchtitan-debugmodel", true, {SIZES(256, 6, 16, 16, 16, 768), LLAMA31_OF(2048, 8)}},
    {"110M", true, {SIZES(768, 12, 12, 4, 64, 1536), SMALL(32000)}},
    {"8B", true, {SIZES_8B, LLAMA3}},
    {"70B", true, {SIZES_70B, LLAMA3}},
    {"405B", true, {SIZES_405B, LLAMA3}},
    {"llama2-7B", false, {SIZES(4096, 32, 32, 32, 128, 11008), LLAMA2(4096)}},
    {"llama2-13B", false, {SIZES(5120, 40, 40, 40, 128, 13824), LLAMA2(4096)}},
    {"llama2-70B", false, {SIZES_70B, LLAMA2(4096)}},
    {"llama3-8B", false, {SIZES_8B, LLAMA3}},
    {"llama3-70B", false, {SIZES_70B, LLAMA3}},
    {"llama3.1-8B", false, {SIZES_8B, LLAMA31(8)}},
    {"llama3.1-70B", false, {SIZES_70B, LLAMA31(8)}},
    {"llama3.1-405B", false, {SIZES_405B, LLAMA31(8)}},
    {"llama3.2-1B", false, {SIZES(2048, 16, 32, 8, 64, 8192), LLAMA31(32), .is_tied = true}},
    {"llama3.2-3B", false, {SIZES(3072, 28, 24, 8, 128, 8192), LLAMA31(32), .is_tied = true}},
    {"tinyllama-1.1B", false, {SIZES(2048, 22, 32, 4, 64, 5632), LLAMA2(2048)}},
};
#define NUM_FLAVORS (sizeof flavors / sizeof *flavors)

const char *model_shape_flavors(void)
{
    return "tiny, debugmodel, torchtitan-debugmodel, 110M, 8B, 70B, 405B, llama2-7B, llama2-13B, "
           "llama2-70B, llama3-8B, llama3-70B, llama3.1-8B, llama3.1-70B, llama3.1-405B, "
           "llama3.2-1B, llama3.2-3B, tinyllama-1.1B";
}

int model_shape_of_flavor(struct model_shape *out, const char *name, uint32_t vocab)
{
    for (size_t i = 0; i < NUM_FLAVORS; i++) {
        if (strcmp(flavors[i].name, name) != 0)
            continue;
        *out = flavors[i].shape;
        if (flavors[i].is_open && vocab != 0)
            out->vocab = vocab;
        return model_shape_check(out);
    }
    char hint[REPORT_TEXT_MAX];
    snprintf(hint, sizeof hint, "there are %s", model_shape_flavors());
    return report_error(ERR_INVALID, hint, "there is no model.flavor \"%.64s\"", name);
}

/* ---- the fields ---- */

enum kind { SIZE, NUMBER, FLAG, ROPE };

static const struct field {
    const char *name; /* in the identity */
    const char *hf;   /* in config.json; NULL: it has no member with this value alone */
    enum kind kind;
    size_t at;
    uint32_t most; /* SIZE */
} fields[] = {
#define FIELD(member) offsetof(struct model_shape, member)
    {"dim", "hidden_size", SIZE, FIELD(dim), MODEL_SIZE_MAX},
    {"layers", "num_hidden_layers", SIZE, FIELD(layers), MODEL_LAYERS_MAX},
    {"heads", "num_attention_heads", SIZE, FIELD(heads), MODEL_SIZE_MAX},
    {"kv_heads", "num_key_value_heads", SIZE, FIELD(kv_heads), MODEL_SIZE_MAX},
    {"head_dim", "head_dim", SIZE, FIELD(head_dim), MODEL_HEAD_DIM_MAX},
    {"hidden", "intermediate_size", SIZE, FIELD(hidden), MODEL_SIZE_MAX},
    {"vocab", "vocab_size", SIZE, FIELD(vocab), MODEL_SIZE_MAX},
    {"rope_theta", NULL, NUMBER, FIELD(rope_theta), 0},
    {"norm_eps", "rms_norm_eps", NUMBER, FIELD(norm_eps), 0},
    {"tied", "tie_word_embeddings", FLAG, FIELD(is_tied), 0},
    {"rope_scaling", NULL, ROPE, FIELD(rope), 0},
    /* Of the scaling: members of a separate object in both. */
    {"factor", NULL, NUMBER, FIELD(rope_factor), 0},
    {"low_freq_factor", NULL, NUMBER, FIELD(rope_low_factor), 0},
    {"high_freq_factor", NULL, NUMBER, FIELD(rope_high_factor), 0},
    {"original_max_position_embeddings", NULL, SIZE, FIELD(rope_positions), MODEL_POSITIONS_MAX},
};
#define NUM_FIELDS (sizeof fields / sizeof *fields)
#define NUM_SIZES 7u /* the first ones */

static const char *const rope_names[] = {
    [MODEL_ROPE_PLAIN] = "default", [MODEL_ROPE_LINEAR] = "linear", [MODEL_ROPE_LLAMA3] = "llama3"};
#define NUM_ROPES (sizeof rope_names / sizeof *rope_names)

/* "linear" to MODEL_ROPE_LINEAR, and so on; false: an unknown name. */
static bool rope_of_name(enum model_rope *out, const char *name)
{
    for (size_t i = 0; i < NUM_ROPES; i++) {
        if (strcmp(rope_names[i], name) != 0)
            continue;
        *out = (enum model_rope)i;
        return true;
    }
    return false;
}

static const void *field_of(const struct model_shape *shape, const struct field *field)
{
    return (const char *)shape + field->at;
}

static bool is_same(const struct field *field, const void *ours, const void *theirs)
{
    switch (field->kind) {
    case SIZE:
        return *(const uint32_t *)ours == *(const uint32_t *)theirs;
    case NUMBER: /* one of them may have been written as a float */
        return (float)*(const double *)ours == (float)*(const double *)theirs;
    case FLAG:
        return *(const bool *)ours == *(const bool *)theirs;
    default:
        return *(const enum model_rope *)ours == *(const enum model_rope *)theirs;
    }
}

static void print_field(char *out, size_t size, const struct field *field, const void *value)
{
    if (field->kind == SIZE) {
        snprintf(out, size, "%u", *(const uint32_t *)value);
    } else if (field->kind == FLAG) {
        snprintf(out, size, "%s", *(const bool *)value ? "true" : "false");
    } else if (field->kind == ROPE) {
        snprintf(out, size, "%s", rope_names[*(const enum model_rope *)value]);
    } else {
        double number = *(const double *)value;
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(out, size, "%.*g", digits, number);
            if (strtod(out, NULL) == number)
                break;
        }
    }
}

bool model_shape_differs(struct model_difference *out, const struct model_shape *ours,
                         const struct model_shape *theirs)
{
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        const void *a = field_of(ours, &fields[i]), *b = field_of(theirs, &fields[i]);
        if (is_same(&fields[i], a, b))
            continue;
        out->field = fields[i].name;
        print_field(out->ours, sizeof out->ours, &fields[i], a);
        print_field(out->theirs, sizeof out->theirs, &fields[i], b);
        return true;
    }
    return false;
}

/* ---- rules of a Llama ---- */

static int check_rope(const struct model_shape *s)
{
    if (s->rope == MODEL_ROPE_PLAIN)
        return 0;
    if (!(s->rope_factor >= 1) || !isfinite(s->rope_factor))
        return report_error(ERR_INVALID, "give 1 or more", "a rope scaling by the factor %g",
                            s->rope_factor);
    if (s->rope == MODEL_ROPE_LLAMA3 &&
        (!(s->rope_low_factor > 0) || !(s->rope_high_factor > s->rope_low_factor) ||
         !isfinite(s->rope_high_factor) || s->rope_positions == 0))
        return report_error(ERR_INVALID,
                            "high_freq_factor must be above low_freq_factor, both positive",
                            "a rope scaling with low_freq_factor %g, high_freq_factor %g, "
                            "original_max_position_embeddings %u",
                            s->rope_low_factor, s->rope_high_factor, s->rope_positions);
    return 0;
}

int model_shape_check(const struct model_shape *s)
{
    for (size_t i = 0; i < NUM_SIZES; i++) {
        uint32_t value = *(const uint32_t *)field_of(s, &fields[i]);
        if (value < 1 || value > fields[i].most)
            return report_error(ERR_INVALID, NULL,
                                "a model with %s = %u: from 1 to %u are possible", fields[i].name,
                                value, fields[i].most);
    }
    if (s->head_dim % 2 != 0)
        return report_error(ERR_INVALID, "rotary embedding turns pairs: give an even number",
                            "a model with head_dim = %u", s->head_dim);
    if (s->heads % s->kv_heads != 0)
        return report_error(ERR_INVALID, "give a number of key/value heads that divides the heads",
                            "a model with %u heads and %u key/value heads", s->heads, s->kv_heads);
    if ((uint64_t)s->heads * s->head_dim > MODEL_SIZE_MAX)
        return report_error(ERR_INVALID, NULL, "a model with %u heads of %u rows: above %u",
                            s->heads, s->head_dim, MODEL_SIZE_MAX);
    if (!(s->rope_theta > 0) || !(s->norm_eps > 0) || !isfinite(s->rope_theta) ||
        !isfinite(s->norm_eps))
        return report_error(ERR_INVALID, NULL,
                            "a model with rope_theta %g and norm_eps %g: both must be positive",
                            s->rope_theta, s->norm_eps);
    return check_rope(s);
}

uint64_t model_shape_parameters(const struct model_shape *s)
{
    uint64_t dim = s->dim, queries = (uint64_t)s->heads * s->head_dim;
    uint64_t keys = (uint64_t)s->kv_heads * s->head_dim;
    uint64_t layer = 2 * queries * dim + 2 * keys * dim + 3 * (uint64_t)s->hidden * dim + 2 * dim;
    return s->layers * layer + dim + (s->is_tied ? 1u : 2u) * (uint64_t)s->vocab * dim;
}

/* As Llama 3.1: stretches waves longer than `longest` positions, keeps those shorter than
 * `shortest`, and interpolates in between. */
static double scale_llama3(const struct model_shape *s, double frequency)
{
    double wave = 6.283185307179586476925 / frequency, positions = s->rope_positions;
    if (wave < positions / s->rope_high_factor)
        return frequency;
    if (wave > positions / s->rope_low_factor)
        return frequency / s->rope_factor;
    double kept =
        (positions / wave - s->rope_low_factor) / (s->rope_high_factor - s->rope_low_factor);
    return (1 - kept) * frequency / s->rope_factor + kept * frequency;
}

void model_shape_frequencies(double *out, const struct model_shape *s)
{
    for (uint32_t i = 0; i < s->head_dim / 2; i++) {
        out[i] = pow(s->rope_theta, -2.0 * i / s->head_dim);
        if (s->rope == MODEL_ROPE_LINEAR)
            out[i] /= s->rope_factor;
        else if (s->rope == MODEL_ROPE_LLAMA3)
            out[i] = scale_llama3(s, out[i]);
    }
}

void model_shape_rope_defaults(struct model_shape *s, enum model_rope rope)
{
    s->rope = rope;
    s->rope_factor = rope == MODEL_ROPE_LLAMA3 ? 8 : rope == MODEL_ROPE_LINEAR ? 1 : 0;
    s->rope_low_factor = rope == MODEL_ROPE_LLAMA3 ? 1 : 0;
    s->rope_high_factor = rope == MODEL_ROPE_LLAMA3 ? 4 : 0;
    s->rope_positions = rope == MODEL_ROPE_LLAMA3 ? 8192 : 0;
}

/* ---- JSON ---- */

/* A size that is missing, or null, is `missing`; 0: it is required. */
static int read_size(uint32_t *out, const json_t *from, const char *key, uint32_t missing,
                     uint32_t most)
{
    const json_t *member = json_object_get(from, key);
    json_int_t value =
        member == NULL || json_is_null(member) ? missing : json_integer_value(member);
    if (value < 1 || value > most)
        return report_error(ERR_CORRUPT, NULL, "%s of the model is not a number from 1 to %u", key,
                            most);
    *out = (uint32_t)value;
    return 0;
}

static int read_number(double *out, const json_t *from, const char *key, double missing)
{
    const json_t *member = json_object_get(from, key);
    *out = missing;
    if (member == NULL || json_is_null(member))
        return 0;
    *out = json_number_value(member);
    return json_is_number(member) && *out > 0 && isfinite(*out)
               ? 0
               : report_error(ERR_CORRUPT, NULL, "%s of the model is not a positive number", key);
}

/* `is_config`: the names are config.json's, and two of them are optional. */
static int read_sizes(struct model_shape *out, const json_t *from, bool is_config)
{
    int error = 0;
    out->kv_heads = out->head_dim = 0;
    for (size_t i = 0; i < NUM_SIZES && error == 0; i++) {
        uint32_t *size = (uint32_t *)((char *)out + fields[i].at), missing = 0;
        uint32_t most = size == &out->kv_heads ? out->heads : fields[i].most;
        if (is_config && size == &out->kv_heads)
            missing = out->heads;
        if (is_config && size == &out->head_dim)
            missing = out->dim / out->heads;
        error = read_size(size, from, is_config ? fields[i].hf : fields[i].name, missing, most);
    }
    return error;
}

/* Reads the scaling from an object with a type and its numbers; NULL, or type default: plain. */
static int read_scaling(struct model_shape *out, const json_t *scaling)
{
    const json_t *type = json_object_get(scaling, "rope_type");
    if (type == NULL)
        type = json_object_get(scaling, "type");
    const char *name = json_string_value(type);
    model_shape_rope_defaults(out, MODEL_ROPE_PLAIN);
    if (scaling == NULL || json_is_null(scaling) || type == NULL)
        return 0;
    if (name == NULL || !rope_of_name(&out->rope, name))
        return report_error(ERR_INVALID, "the trainer has linear and llama3",
                            "config.json: rope_scaling is of type '%.64s'",
                            name != NULL ? name : "?");
    model_shape_rope_defaults(out, out->rope);
    if (out->rope == MODEL_ROPE_PLAIN)
        return 0;
    int error = read_number(&out->rope_factor, scaling, "factor", out->rope_factor);
    if (out->rope != MODEL_ROPE_LLAMA3 || error != 0)
        return error;
    error = read_number(&out->rope_low_factor, scaling, "low_freq_factor", out->rope_low_factor);
    if (error == 0)
        error =
            read_number(&out->rope_high_factor, scaling, "high_freq_factor", out->rope_high_factor);
    return error != 0 ? error
                      : read_size(&out->rope_positions, scaling, "original_max_position_embeddings",
                                  out->rope_positions, MODEL_POSITIONS_MAX);
}

static int check_kind(const json_t *config, const json_t *scaling)
{
    static const char *const absent[] = {"attention_bias", "mlp_bias"};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *act = json_string_value(json_object_get(config, "hidden_act"));
    const json_t *partial = json_object_get(scaling, "partial_rotary_factor");
    if (partial == NULL)
        partial = json_object_get(config, "partial_rotary_factor");
    if (type == NULL || strcmp(type, "llama") != 0)
        return report_error(ERR_INVALID, "models of the type llama can be taken",
                            "config.json: model_type is '%.64s'", type != NULL ? type : "");
    if (act != NULL && strcmp(act, "silu") != 0)
        return report_error(ERR_INVALID, "the trainer has silu",
                            "config.json: hidden_act is '%.64s'", act);
    if (json_is_number(partial) && json_number_value(partial) != 1)
        return report_error(ERR_INVALID, "the trainer turns whole heads",
                            "config.json: partial_rotary_factor is %g", json_number_value(partial));
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        if (json_is_true(json_object_get(config, absent[i])))
            return report_error(ERR_INVALID, "the trainer has no biases", "config.json: %s is true",
                                absent[i]);
    }
    return 0;
}

/* Invalid numbers are damage if they come from a file. */
static int check_read(const struct model_shape *shape)
{
    int error = model_shape_check(shape);
    return error != 0 ? report_set(ERR_CORRUPT, report_message(), report_detail(), report_hint())
                      : 0;
}

int model_shape_of_config(struct model_shape *out, const json_t *config)
{
    /* transformers 5 reads both spellings: the older one has precedence, and a base missing in the
     * scaling is the config's. */
    const json_t *scaling = json_object_get(config, "rope_scaling");
    if (json_object_size(scaling) == 0)
        scaling = json_object_get(config, "rope_parameters");
    const json_t *base = json_object_get(scaling, "rope_theta");
    bool has_base = base != NULL && !json_is_null(base);
    *out = (struct model_shape){0};
    ERR_TRY(check_kind(config, scaling));
    ERR_TRY(read_sizes(out, config, true));
    ERR_TRY(read_number(&out->norm_eps, config, "rms_norm_eps", 1e-6));
    ERR_TRY(read_number(&out->rope_theta, has_base ? scaling : config, "rope_theta", 10000.0));
    ERR_TRY(read_scaling(out, scaling));
    out->is_tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    json_int_t positions = json_integer_value(json_object_get(config, "max_position_embeddings"));
    out->positions = positions > 0 && positions <= MODEL_POSITIONS_MAX ? (uint32_t)positions : 0;
    return check_read(out);
}

int model_shape_of_identity(struct model_shape *out, const json_t *model)
{
    *out = (struct model_shape){0};
    ERR_TRY(read_sizes(out, model, false));
    ERR_TRY(read_number(&out->rope_theta, model, "rope_theta", 0));
    ERR_TRY(read_number(&out->norm_eps, model, "norm_eps", 0));
    ERR_TRY(read_scaling(out, json_object_get(model, "rope_scaling")));
    out->is_tied = json_is_true(json_object_get(model, "tied"));
    return check_read(out);
}

json_t *model_shape_rope_scaling(const struct model_shape *s)
{
    if (s->rope == MODEL_ROPE_PLAIN)
        return NULL;
    json_t *scaling =
        json_pack("{ss sf}", "rope_type", rope_names[s->rope], "factor", s->rope_factor);
    if (s->rope == MODEL_ROPE_LINEAR || scaling == NULL)
        return scaling;
    json_object_set_new(scaling, "low_freq_factor", json_real(s->rope_low_factor));
    json_object_set_new(scaling, "high_freq_factor", json_real(s->rope_high_factor));
    json_object_set_new(scaling, "original_max_position_embeddings",
                        json_integer(s->rope_positions));
    return scaling;
}

json_t *model_shape_identity(const struct model_shape *s)
{
    json_begin();
    json_t *model = json_object();
    for (size_t i = 0; i < NUM_FIELDS && fields[i].kind != FLAG; i++) {
        const void *value = field_of(s, &fields[i]);
        json_object_set_new(model, fields[i].name,
                            fields[i].kind == SIZE ? json_integer(*(const uint32_t *)value)
                                                   : json_real(*(const double *)value));
    }
    if (s->is_tied)
        json_object_set_new(model, "tied", json_true());
    json_t *scaling = model_shape_rope_scaling(s);
    if (scaling != NULL)
        json_object_set_new(model, "rope_scaling", scaling);
    if (json_end())
        return model;
    json_decref(model);
    return NULL;
}

/* ---- a file ---- */

static int read_config(json_t **out, int fd, const char *path)
{
    struct stat status;
    const char *why = "it is no file, or above the limit";
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size > (off_t)MODEL_CONFIG_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "%s cannot be read: %s", path, why);
    size_t bytes = (size_t)status.st_size;
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", path);
    int error = pread(fd, text, bytes, 0) == (ssize_t)bytes
                    ? safetensors_read_json(out, text, bytes, &why)
                    : report_errno(ERR_IO, "could not read the model's config.json", path);
    free(text);
    return error == ERR_CORRUPT ? report_error(error, NULL, "%s cannot be read: %s", path, why)
                                : error;
}

int model_shape_open(struct model_shape *out, const char *path)
{
    char file[4096];
    struct stat status;
    bool is_folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    snprintf(file, sizeof file, is_folder ? "%s/config.json" : "%s", path);
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return report_error(ERR_INVALID, "name a config.json, or the folder of a model",
                            "could not open %s: %s", file, strerror(errno));
    json_t *config = NULL;
    int error = read_config(&config, fd, file);
    close(fd);
    if (error == 0)
        error = model_shape_of_config(out, config);
    json_decref(config);
    return error;
}
