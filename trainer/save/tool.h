/* tool.h - ckpt-cli as a child of the trainer: it brings a model of Hugging Face into ckptd's store
 * before a run begins, and takes the weights out after its last save. Only rank 0 calls these. */
#ifndef HOLDFAST_TRAINER_SAVE_TOOL_H
#define HOLDFAST_TRAINER_SAVE_TOOL_H

#include "proto/model/model_shape.h"
#include "trainer/config/config.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>

/* Beside the trainer's own program, or by its name. */
void tool_find(char out[PATH_MAX]);
/* Is checkpoint.initial_load_path a folder of Hugging Face, or a run of a store that no ckptd of
 * ours serves (STORE:RUN)? Then it is imported. Else it names a run of our ckptd. */
bool tool_must_import(const struct config *config);
/* Of which run it becomes step 0: of this one, or with checkpoint.partial of one beside it. */
void tool_name_imported(char out[CONFIG_TEXT_MAX], const struct config *config);
/* Makes it that step 0, where the run has no checkpoint. Ends ckpt-cli when *want_stop is not 0
 * (ERR_ABORTED). ERR_MISMATCH: it has another shape than the run's, and nothing was made of it;
 * ERR_INVALID: ckpt-cli refused, and has said why on stderr; ERR_UNAVAILABLE. */
int tool_import(const struct config *config, const struct model_shape *shape,
                const volatile sig_atomic_t *want_stop);
/* ERR_INVALID: the folder of tool_export() holds something else than the weights of `step`, or
 * there is no ckpt-cli to write it with. */
int tool_check_export(const struct config *config, int64_t step);
/* Writes the weights of `step` into checkpoint.export_folder in Hugging Face's form, unless they
 * are there already. Errors as tool_check_export() and tool_import(). */
int tool_export(const struct config *config, int64_t step, const volatile sig_atomic_t *want_stop);

#endif
