/* tool.h - ckpt-cli as a child of the trainer: it imports a Hugging Face model into ckptd's store
 * before a run begins, and exports the weights after its last save. Only rank 0 calls these. */
#ifndef HOLDFAST_TRAINER_SAVE_TOOL_H
#define HOLDFAST_TRAINER_SAVE_TOOL_H

#include "proto/model/model_shape.h"
#include "trainer/config/config.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>

/* The path of ckpt-cli in the folder of the trainer's program, or its name. */
void tool_find(char out[PATH_MAX]);
/* True if checkpoint.initial_load_path is a folder of Hugging Face, or a run of a store that this
 * ckptd does not serve (STORE:RUN): it is then imported. Otherwise it names a run of this ckptd. */
bool tool_must_import(const struct config *config);
/* The run that gets the import as step 0: this run, or with checkpoint.partial a separate one. */
void tool_name_imported(char out[CONFIG_TEXT_MAX], const struct config *config);
/* Imports the model as that step 0, if the run has no checkpoint. Ends ckpt-cli when *want_stop is
 * not 0 (ERR_ABORTED). ERR_MISMATCH: the model's shape is not the run's, and nothing was imported;
 * ERR_INVALID: ckpt-cli refused, with the reason on stderr; ERR_UNAVAILABLE. */
int tool_import(const struct config *config, const struct model_shape *shape,
                const volatile sig_atomic_t *want_stop);
/* ERR_INVALID: the folder of tool_export() has other contents than the weights of `step`, or there
 * is no ckpt-cli to write it. */
int tool_check_export(const struct config *config, int64_t step);
/* Exports the weights of `step` to checkpoint.export_folder in Hugging Face's form, unless they are
 * there already. Errors as tool_check_export() and tool_import(). */
int tool_export(const struct config *config, int64_t step, const volatile sig_atomic_t *want_stop);

#endif
