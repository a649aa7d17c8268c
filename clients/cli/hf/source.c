/* source.c - see source.h. */
#include "clients/cli/hf/source.h"
#include "clients/cli/engine/cli.h"
#include "clients/cli/engine/scan.h"
#include "proto/base/report.h"

#include <string.h>

/* Rows are permuted within heads, so a whole head is read at once: one range of a bucket. */
static int read_head(struct hf_room *room, const struct hf_source *source, uint64_t row)
{
    uint64_t row_bytes = source->tensor.shape[1] * dtype_bytes(source->dtype);
    uint64_t first = row - row % source->tensor.head_rows;
    if (room->source == source && room->first_row == first)
        return 0;
    room->source = NULL;
    ERR_TRY(hf_file_read(source->file, room->head, source->start + first * row_bytes,
                         (uint32_t)(source->tensor.head_rows * row_bytes)));
    room->source = source;
    room->first_row = first;
    return 0;
}

static int read_turned(float *out, struct hf_room *room, const struct hf_source *source,
                       uint64_t first, uint64_t count)
{
    uint64_t width = source->tensor.shape[1], size = dtype_bytes(source->dtype);
    int error = 0;
    while (count > 0 && error == 0) {
        uint64_t inside = first % width, row = first / width;
        uint64_t now = width - inside < count ? width - inside : count;
        error = read_head(room, source, row);
        if (error == 0) {
            uint64_t there = heads_to_halves(row, source->tensor.head_rows) - room->first_row;
            convert_elements(out, DTYPE_F32, room->head + (there * width + inside) * size,
                             source->dtype, now);
        }
        out += now;
        first += now;
        count -= now;
    }
    return error;
}

int hf_source_read(float *out, struct hf_room *room, const struct hf_source *source, uint64_t first,
                   uint64_t count)
{
    uint64_t size = dtype_bytes(source->dtype);
    if (source->tensor.head_rows != 0)
        return read_turned(out, room, source, first, count);
    int error = hf_file_read(source->file, room->read, source->start + first * size,
                             (uint32_t)(count * size));
    if (error == 0)
        convert_elements(out, DTYPE_F32, room->read, source->dtype, count);
    return error;
}

int hf_source_check_tied(const struct hf_source *embedding, const struct hf_source *head,
                         unsigned char *memory, size_t block)
{
    struct hf_room room = {.read = memory};
    float *ours = (float *)(void *)(memory + block),
          *theirs = (float *)(void *)(memory + 2 * block);
    uint64_t total = head->tensor.shape[0] * head->tensor.shape[1], count;
    for (uint64_t at = 0; at < total; at += count) {
        count = total - at < block / sizeof(float) ? total - at : block / sizeof(float);
        ERR_TRY(hf_source_read(ours, &room, embedding, at, count));
        ERR_TRY(hf_source_read(theirs, &room, head, at, count));
        if (memcmp(ours, theirs, count * sizeof(float)) != 0)
            return report_error(ERR_INVALID,
                                "set tie_word_embeddings to false in config.json to keep both, or "
                                "take lm_head.weight out of the file to drop it",
                                "%s holds a lm_head.weight that differs from "
                                "model.embed_tokens.weight, but config.json ties them",
                                head->file->name);
    }
    return 0;
}
