/* loss_history.h - the losses of a run's steps, which its checkpoints take along.
 *
 * A start elsewhere, or with other files, shows the curve from the run's begin: where
 * metrics.jsonl_file is new or empty, or the folder of TensorBoard, the losses of the steps before
 * go there first. metrics.loss_file gets none: it has gradient norms, too.
 *
 * At most HISTORY_POINTS losses are kept: of every step at first; when they are full, every second
 * is dropped, and from there on half as many come. So a manifest grows by 16 bytes a step up to
 * 8 KiB, and has 4 to 8 KiB of a longer run. The losses are exact: 16 digits of hex are the bits.
 */
#ifndef HOLDFAST_PROTO_MODEL_LOSS_HISTORY_H
#define HOLDFAST_PROTO_MODEL_LOSS_HISTORY_H

#include "proto/base/json.h"

#include <stdbool.h>
#include <stdint.h>

#define HISTORY_POINTS 512u

/* Zeros: none. Point i is of step (first + i) * 2^halvings. */
struct history {
    int64_t first;
    uint32_t halvings, num;
    double loss[HISTORY_POINTS];
};

int64_t history_step(const struct history *history, uint32_t point);
/* Steps come in their order. One that is made again, and those behind it, take the place of what
 * was; where steps are missing, what was before them is forgotten. */
void history_add(struct history *history, int64_t step, double loss);
/* The loss of that step; false: it is not kept. */
bool history_find(const struct history *history, int64_t step, double *out);
/* The steps behind this one are forgotten. */
void history_cut(struct history *history, int64_t step);
/* {"first": .., "halvings": .., "losses": ".."}. NULL: no memory. */
json_t *history_json(const struct history *history);
/* Of history_json; anything else is no history. */
void history_read(struct history *history, const json_t *json);

#endif
