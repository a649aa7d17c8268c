/* identity.h - what a checkpoint says about the run that made it, and whether another run may go on
 * from it.
 *
 * The identity of the numerics rides along with every checkpoint. Another canonical order is
 * refused, since the run's bits are defined by it, and so is another model where the shapes of its
 * tensors would not tell: heads, rotary base, epsilon. Another ISA, library or dtype, other
 * settings, another environment (environment.h) and other tokens are said, and training goes on.
 * What a checkpoint does not say, as one that was imported, is not compared. */
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
    const char *environment; /* environment.h; NULL: of other ranks than 0 */
};

/* The JSON objects of the manifest, to be freed. ERR_MEMORY. */
int identity_write(char **out_identity, char **out_data, const struct identity *of);
/* What an import recorded of the model's folder (clients/cli/hf/hf.h), which is handed on: an
 * object as text, to be freed, that replaces *inout; NULL where the checkpoint has none.
 * ERR_MEMORY. */
int identity_take_origin(char **inout, const struct ckpt_loaded *from);
/* The settings, with what identity_take_origin gave or, without that, the positions that the model
 * is made for. To be freed. ERR_MEMORY. */
int identity_write_config(char **out, const struct identity *of, const char *origin);
/* ERR_MISMATCH: the checkpoint is of another canonical order or model. `own_json`: what
 * identity_write gave.
 */
int identity_check(const struct identity *of, const char *own_json,
                   const struct ckpt_loaded *loaded);
/* Is it of this model and of these tokens, as far as it says so? */
bool identity_is_same(const struct identity *of, const struct ckpt_loaded *loaded);
/* What a run of another name has for a beginning. ERR_MISMATCH: its model has another shape, as
 * partial_check_shape() says. */
int identity_check_initial(const struct identity *of, const struct ckpt_loaded *loaded);

#endif
