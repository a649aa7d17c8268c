/* folder_files.h - the other files of the Hugging Face folder that a run began with. They are bytes
 * objects of the checkpoint that it loads (clients/cli/hf/kept.c makes them), and the run's
 * checkpoints contain them, too. Rank 0 has them. */
#ifndef HOLDFAST_TRAINER_FOLDER_FILES_H
#define HOLDFAST_TRAINER_FOLDER_FILES_H

#include "clients/ckpt.h"

#include <stdint.h>

struct folder_files {
    struct ckpt_object *objects; /* owns names and memory, and the list */
    uint32_t count;
};

/* Loads the files of that checkpoint and replaces earlier ones. On an error there are none. */
int folder_files_load(struct folder_files *inout, struct ckpt *ckpt, const struct ckpt_info *from);
/* [count]; valid as long as `files`. */
void folder_files_describe(struct ckpt_tensor *out, struct folder_files *files);
void folder_files_free(struct folder_files *files);

#endif
