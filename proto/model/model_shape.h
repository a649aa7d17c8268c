/* model_shape.h - the sizes and settings of a Llama model: sizes, rotary embedding, epsilon, ties.
 *
 * The trainer and ckpt-cli share it. A shape comes from a named flavor, from a Hugging Face
 * config.json, or from the member "model" of a manifest's identity. Every reader produces a shape
 * that model_shape_check() accepts, also from hostile JSON.
 *
 * Query rows are heads x head_dim, which need not be dim: wq is [heads x head_dim, dim], wo is
 * [dim, heads x head_dim]. A tied model has no output projection: it computes logits with the
 * embedding. Thread safe: no state. */
#ifndef HOLDFAST_PROTO_MODEL_MODEL_SHAPE_H
#define HOLDFAST_PROTO_MODEL_MODEL_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_SIZE_MAX (1u << 24) /* of any dimension, and of heads * head_dim */
#define MODEL_LAYERS_MAX 4096u
#define MODEL_POSITIONS_MAX (1u << 30)
#define MODEL_HEAD_DIM_MAX 4096u
#define MODEL_CONFIG_BYTES_MAX (1u << 20) /* of a config.json */

struct json_t; /* jansson's */

/* The method for positions beyond those of the first training. */
enum model_rope { MODEL_ROPE_PLAIN, MODEL_ROPE_LINEAR, MODEL_ROPE_LLAMA3 };

struct model_shape {
    uint32_t dim, layers, heads, kv_heads, head_dim, hidden, vocab;
    double rope_theta, norm_eps;
    bool is_tied;
    enum model_rope rope;
    double rope_factor; /* not plain: positions count 1 / factor */
    double rope_low_factor,
        rope_high_factor;    /* llama3: limits of the wave lengths that are kept, scaled */
    uint32_t rope_positions; /* llama3: of the first training */
    uint32_t positions; /* config.json's limit of positions; 0: none. Not part of the identity */
};

/* ERR_INVALID lists the flavors. `vocab`: that of the tokens; 0: the flavor's own. A flavor whose
 * name has a release (llama3.1-8B) always has its own vocabulary. */
int model_shape_of_flavor(struct model_shape *out, const char *name, uint32_t vocab);
/* All names, comma separated. */
const char *model_shape_flavors(void);

/* Reads config.json. ERR_CORRUPT, or ERR_INVALID for an unsupported model: the message names the
 * member. */
int model_shape_of_config(struct model_shape *out, const struct json_t *config);
/* The same from a file, or from the config.json in a folder. ERR_INVALID: there is none. */
int model_shape_open(struct model_shape *out, const char *path);

/* Reads the output of model_shape_identity(), of this or an earlier version. */
int model_shape_of_identity(struct model_shape *out, const struct json_t *model);
/* The member "model" of an identity; a new object, or NULL: no memory. It omits the values that all
 * models of earlier versions had (untied, plain rotary embedding). */
struct json_t *model_shape_identity(const struct model_shape *shape);
/* In config.json's form, a new object; NULL: none is needed, or no memory (json_end tells). */
struct json_t *model_shape_rope_scaling(const struct model_shape *shape);

/* ERR_INVALID: these numbers are no valid Llama. */
int model_shape_check(const struct model_shape *shape);

struct model_difference {
    const char *field; /* as in the identity */
    char ours[40], theirs[40];
};
/* Whether two shapes differ, and the first differing field. */
bool model_shape_differs(struct model_difference *out, const struct model_shape *ours,
                         const struct model_shape *theirs);

uint64_t model_shape_parameters(const struct model_shape *shape);
/* Rotations per position of the pairs of a head, scaled: head_dim / 2 numbers. */
void model_shape_frequencies(double *out, const struct model_shape *shape);
/* The numbers of a scaling that gives none: those of Llama 3.1. */
void model_shape_rope_defaults(struct model_shape *shape, enum model_rope rope);

#endif
