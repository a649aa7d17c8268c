/* lineage.h - the orders that a run has had: the settings that decide the samples of a leaf, the
 * order in which gradients are added, and the arithmetic of updates. With reduction "canonical"
 * they define a run's bits.
 *
 * A manifest's "state" lists them under "orders", each with the step after which it began, as
 * settings and their values. A setting that an older program did not list has the value in use
 * before it existed. An unknown setting is of a newer program and is refused by its name. The last
 * order must be that of the configuration. Another one is a new order, which the operator has to
 * allow: by training.reduction = "fast", which does not fix bits, or by checkpoint.new_order. A
 * checkpoint that no trainer made, such as an imported one, has no order: the list begins after it.
 *
 * A resume with other samples than those an uninterrupted run reads next is allowed, and listed,
 * too: with data.next_sample, data.hash and data.seed from there on. So the checkpoint explains a
 * loss that falls because samples are repeated. */
#ifndef HOLDFAST_TRAINER_RECORD_LINEAGE_H
#define HOLDFAST_TRAINER_RECORD_LINEAGE_H

#include "clients/ckpt.h"
#include "proto/base/json.h"
#include "trainer/config/config.h"

/* The list of a new run, as JSON text that the caller frees. ERR_MEMORY. */
int lineage_begin(char **out, const struct config *config);
/* training.numerics of the run of the checkpoint; 0: no trainer made it. */
int64_t lineage_numerics(const struct ckpt_loaded *from);
/* Notes beside the settings of `orders`: samples were left out (state.left_out), or updates of
 * steps that are out of line (state.outlying). A trainer that does not know such a note refuses the
 * checkpoint. */
#define LINEAGE_LEFT_OUT "training.left_out"
#define LINEAGE_OUTLYING "training.outlying"
void lineage_note(json_t *orders, const char *what);
struct lineage_data {
    int64_t next_sample; /* where reading continues; -1: where the checkpoint says */
    int64_t skip;        /* samples to leave out after it */
    const char *hash;    /* of data_info */
    /* Not 0: a replay begins at step 0 with this step as its last one. The checkpoint is a later
     * one. ERR_NOT_FOUND: the run changed its order between them. */
    int64_t replay_step;
};
/* The list of a run that continues from a checkpoint. ERR_MISMATCH: a new order that the operator
 * has not allowed; the message has the first setting that differs. */
int lineage_continue(char **out, const struct config *config, const struct ckpt_loaded *from,
                     const struct lineage_data *data);

#endif
