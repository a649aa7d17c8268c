/* tensorboard.h - scalars for TensorBoard: a file of events, in its format.
 *
 * A file is a list of records: length (u64), its checksum, an Event in protocol buffers' encoding,
 * its checksum; all little-endian. The first Event names the format; the others have wall_time (1,
 * double), step (2, varint) and summary (5) with a value (1) of tag (1) and simple_value (2, float)
 * each. The second one has a session_log (7) instead, of status (1) START and with the attempt in
 * its msg (3): TensorBoard drops the events of this folder from that step on. A checksum is
 * CRC-32C, rotated by 15 bits to the right, plus a constant. */
#ifndef HOLDFAST_TRAINER_TENSORBOARD_H
#define HOLDFAST_TRAINER_TENSORBOARD_H

#include <stdbool.h>
#include <stdint.h>

struct tensorboard;

struct tensorboard_scalar {
    const char *tag;
    double value;
};

/* Creates a file in a new folder below `folder`, named by the time. ERR_INVALID. */
int tensorboard_open(struct tensorboard **out, const char *folder);
void tensorboard_close(struct tensorboard *board);
/* True if the folder did not exist before, in the first start: a step that is rolled back is
 * followed by another one. */
bool tensorboard_is_first(const struct tensorboard *board);
/* Steps after `step` follow, of this attempt. */
void tensorboard_start(struct tensorboard *board, uint64_t attempt, int64_t step);
/* Writes and flushes. A write error is logged once. */
void tensorboard_add(struct tensorboard *board, int64_t step,
                     const struct tensorboard_scalar *scalars, uint32_t num);

#endif
