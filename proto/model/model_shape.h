/* model_shape.h - the numbers that make one Llama another: sizes, rotary embedding, epsilon, ties.
 *
 * The trainer and ckpt-cli share it. A shape comes from a named flavor, from a Hugging Face
 * config.json, or from the member "model" of a manifest's identity. Every reader leaves a shape
 * that model_shape_check() accepts, also of hostile JSON.
 *
 * Query rows are heads x head_dim, which need not be dim: wq is [heads x head_dim, dim], wo is
 * [dim, heads x head_dim]. A tied model has no output projection: it computes logits with the
 * embedding. Thread safe: no state. */
#ifndef HOLDFAST_PROTO_MODEL_MODEL_SHAPE_H
#define HOLDFAST_PROTO_MODEL_MODEL_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_SIZE_MAX (1u << 24) /* of any dimension; the product of heads and head_dim, too */
#define MODEL_LAYERS_MAX 4096u
#define MODEL_POSITIONS_MAX (1u << 30)
#define MODEL_HEAD_DIM_MAX 4096u
#define MODEL_CONFIG_BYTES_MAX (1u << 20) /* of a config.json */

struct json_t; /* jansson's */

/* How positions beyond the first training's are reached. */
enum model_rope { MODEL_ROPE_PLAIN, MODEL_ROPE_LINEAR, MODEL_ROPE_LLAMA3 };

struct model_shape {
    uint32_t dim, layers, heads, kv_heads, head_dim, hidden, vocab;
    double rope_theta, norm_eps;
    bool is_tied;
    enum model_rope rope;
    double rope_factor;                       /* not plain: positions count 1 / factor */
    double rope_low_factor, rope_high_factor; /* llama3: which wave lengths are kept, scaled */
    uint32_t rope_positions;                  /* llama3: of the first training */
    uint32_t positions; /* what config.json says it is made for; 0: nothing. No part of identity */
};

/* ERR_INVALID names the flavors. `vocab`: that of the tokens; 0: the flavor's own. A flavor whose
 * name has a release (llama3.1-8B) always has its own vocabulary. */
int model_shape_of_flavor(struct model_shape *out, const char *name, uint32_t vocab);
/* All names, comma separated. */
const char *model_shape_flavors(void);

/* From config.json. ERR_CORRUPT, or ERR_INVALID for a model that is no Llama of ours: the message
 * names the member. */
int model_shape_of_config(struct model_shape *out, const struct json_t *config);
/* The same of a file, or of the config.json in a folder. ERR_INVALID: there is none. */
int model_shape_open(struct model_shape *out, const char *path);

/* From what model_shape_identity() wrote, now or in an earlier version. */
int model_shape_of_identity(struct model_shape *out, const struct json_t *model);
/* The member "model" of an identity; a new object, or NULL: no memory. What every Llama of earlier
 * versions was (untied, plain rotary embedding) is not written. */
struct json_t *model_shape_identity(const struct model_shape *shape);
/* As config.json has it, a new object; NULL: none is needed, or no memory (json_end tells). */
struct json_t *model_shape_rope_scaling(const struct model_shape *shape);

/* ERR_INVALID: these numbers make no Llama. */
int model_shape_check(const struct model_shape *shape);

struct model_difference {
    const char *field; /* as in the identity */
    char ours[40], theirs[40];
};
/* Whether two shapes differ, and in which field first. */
bool model_shape_differs(struct model_difference *out, const struct model_shape *ours,
                         const struct model_shape *theirs);

uint64_t model_shape_parameters(const struct model_shape *shape);
/* Turns per position of the pairs of a head, scaled: head_dim / 2 numbers. */
void model_shape_frequencies(double *out, const struct model_shape *shape);
/* What a scaling has that says nothing of its numbers: as Llama 3.1's. */
void model_shape_rope_defaults(struct model_shape *shape, enum model_rope rope);

#endif
