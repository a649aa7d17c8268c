/* source.h - the place of one of our tensors in the files of a Hugging Face model, and its
 * elements. */
#ifndef HOLDFAST_CLIENTS_HF_SOURCE_H
#define HOLDFAST_CLIENTS_HF_SOURCE_H

#include "clients/cli/hf/files.h"
#include "clients/cli/hf/hf.h"

struct hf_source {
    struct hf_tensor tensor;
    const struct hf_file *file; /* NULL: not found yet */
    uint64_t start;             /* in the file */
    enum dtype dtype;
    const unsigned char *object; /* not NULL: these bytes, not a tensor */
};

/* A thread's buffers for reading. */
struct hf_room {
    unsigned char *read;            /* for `count` elements in the file's type */
    unsigned char *head;            /* the rows of one head, */
    const struct hf_source *source; /* of this tensor; NULL: none yet */
    uint64_t first_row;
};

/* Reads `count` elements of one of our tensors, from element `first` on, as floats. */
int hf_source_read(float *out, struct hf_room *room, const struct hf_source *source, uint64_t first,
                   uint64_t count);
/* For a tied model. ERR_INVALID: they differ. `memory`: 3 * `block` bytes. */
int hf_source_check_tied(const struct hf_source *embedding, const struct hf_source *head,
                         unsigned char *memory, size_t block);

#endif
