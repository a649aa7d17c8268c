/* identity.h - the description of a run in its checkpoints, and checks whether another run may
 * continue from them.
 *
 * Every checkpoint has the identity of the numerics. Another canonical order is refused, since it
 * defines the run's bits. Another model is refused even if the shapes of its tensors are the same:
 * heads, rotary base, epsilon. Another ISA, library or dtype, other settings, another environment
 * (environment.h) and other tokens are logged, and training continues. Values that a checkpoint
 * lacks, such as an imported one, are not compared. */
#ifndef HOLDFAST_TRAINER_RECORD_IDENTITY_H
#define HOLDFAST_TRAINER_RECORD_IDENTITY_H

#include "clients/ckpt.h"

struct config;
struct data;
struct model_table;

struct identity {
    const struct config *config;
    struct data *data;
    const struct model_table *model;
    const char *kernels;     /* kernels_describe() */
    const char *environment; /* environment.h; NULL: on ranks other than 0 */
};

/* Writes the JSON objects of the manifest, which the caller frees. ERR_MEMORY. */
int identity_write(char **out_identity, char **out_data, const struct identity *of);
/* Reads the origin that an import recorded of the model's folder (clients/cli/hf/hf.h), for the
 * run's own checkpoints. *inout is replaced by an object as text, which the caller frees; NULL: the
 * checkpoint has none. ERR_MEMORY. */
int identity_take_origin(char **inout, const struct ckpt_loaded *from);
/* Writes the settings, with the text from identity_take_origin or, without it, the model's number
 * of positions. The caller frees the text. ERR_MEMORY. */
int identity_write_config(char **out, const struct identity *of, const char *origin);
/* ERR_MISMATCH: the checkpoint is of another canonical order or model. `own_json`: from
 * identity_write. */
int identity_check(const struct identity *of, const char *own_json,
                   const struct ckpt_loaded *loaded);
/* For a replay that begins as the run began. ERR_MISMATCH: its oldest checkpoint was made with
 * other settings that give the first weights, so these are not known. */
int identity_check_beginning(const struct config *config, const struct ckpt_loaded *oldest);
/* True if the checkpoint is of this model and these tokens, as far as it records them. */
bool identity_is_same(const struct identity *of, const struct ckpt_loaded *loaded);
/* Checks a checkpoint of another run as the start of this one. ERR_MISMATCH: its model has another
 * shape, as in partial_check_shape(). */
int identity_check_initial(const struct identity *of, const struct ckpt_loaded *loaded);

#endif
