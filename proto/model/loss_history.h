/* loss_history.h - the losses of a run's steps, which are stored in its checkpoints.
 *
 * A start on another machine, or with other files, shows the curve from the run's begin: if
 * metrics.jsonl_file, or TensorBoard's folder, is new or empty, the trainer first writes the losses
 * of the earlier steps there. metrics.loss_file gets none, because it has gradient norms, too.
 *
 * At most HISTORY_POINTS losses are kept: at first of every step. When they are full, every second
 * is dropped, and from then on half as many are added. So a manifest grows by 16 bytes per step up
 * to 8 KiB, and has 4 to 8 KiB for a longer run. The losses are exact: 16 digits of hex are the
 * bits. */
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
/* Steps come in order. A repeated step replaces its loss and drops later ones; after a gap earlier
 * losses are dropped. */
void history_add(struct history *history, int64_t step, double loss);
/* The loss of that step; false: it is not kept. */
bool history_find(const struct history *history, int64_t step, double *out);
/* Drops the steps after this one. */
void history_cut(struct history *history, int64_t step);
/* {"first": .., "halvings": .., "losses": ".."}. NULL: no memory. */
json_t *history_json(const struct history *history);
/* Reads the result of history_json(); anything else is an empty history. */
void history_read(struct history *history, const json_t *json);

#endif
