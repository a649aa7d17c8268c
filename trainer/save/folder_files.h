/* folder_files.h - what the Hugging Face folder that a run began with has beside its weights: bytes
 * objects of the checkpoint that it goes on from (clients/cli/hf/kept.c makes them), which its own
 * checkpoints have again. Rank 0 has them. */
#ifndef HOLDFAST_TRAINER_FOLDER_FILES_H
#define HOLDFAST_TRAINER_FOLDER_FILES_H

#include "clients/ckpt.h"

#include <stdint.h>

struct folder_files {
    struct ckpt_object *objects; /* names and memory are owned, as is the list */
    uint32_t count;
};

/* Those of that checkpoint, in place of those that are in there. On an error there are none. */
int folder_files_load(struct folder_files *inout, struct ckpt *ckpt, const struct ckpt_info *from);
/* [count]; valid while they are. */
void folder_files_describe(struct ckpt_tensor *out, struct folder_files *files);
void folder_files_free(struct folder_files *files);

#endif
