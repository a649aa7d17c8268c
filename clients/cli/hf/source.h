/* source.h - where a tensor of ours lies in the files of a model of Hugging Face, and its elements.
 */
#ifndef HOLDFAST_CLIENTS_HF_SOURCE_H
#define HOLDFAST_CLIENTS_HF_SOURCE_H

#include "clients/cli/hf/files.h"
#include "clients/cli/hf/hf.h"

struct hf_source {
    struct hf_tensor tensor;
    const struct hf_file *file; /* NULL: not found yet */
    uint64_t start;             /* in the file */
    enum dtype dtype;
    const unsigned char *object; /* not NULL: no tensor, but such bytes */
};

/* What a thread reads with. */
struct hf_room {
    unsigned char *read;            /* for `count` elements as the file has them */
    unsigned char *head;            /* the rows of one head, */
    const struct hf_source *source; /* of this tensor; NULL: none yet */
    uint64_t first_row;
};

/* `count` elements of a tensor of ours from the element `first` on, as floats. */
int hf_source_read(float *out, struct hf_room *room, const struct hf_source *source, uint64_t first,
                   uint64_t count);
/* Of a model that has them tied. ERR_INVALID: they differ. `memory`: 3 * `block` bytes. */
int hf_source_check_tied(const struct hf_source *embedding, const struct hf_source *head,
                         unsigned char *memory, size_t block);

#endif
