/* lineage.h - the orders that a run has had: what decides which samples a leaf is made of, in which
 * order gradients are added, and by which arithmetic weights are updated. In the canonical order a
 * run's bits are defined by it.
 *
 * A manifest's "state" lists them under "orders", each with the step after which it began, as
 * settings and their values. What an older program did not list yet has the value that it had
 * before it was a setting; what this program does not know is of a newer one, and is refused by its
 * name. The last one must be that of the configuration; another one is a new
 * order, which has to be asked for: by training.reduction = "fast", which promises no bits, or by
 * checkpoint.new_order. A checkpoint that no trainer made, as one that was imported, has no order:
 * it begins there.
 *
 * A resume whose samples are not those that an undisturbed run would read next is allowed, and
 * listed, too: with data.next_sample, data.hash and data.seed from there on. So a loss that falls
 * because samples come again has its reason in the checkpoint. */
#ifndef HOLDFAST_TRAINER_RECORD_LINEAGE_H
#define HOLDFAST_TRAINER_RECORD_LINEAGE_H

#include "clients/ckpt.h"
#include "proto/base/json.h"
#include "trainer/config/config.h"

/* The list of a run that begins, as JSON text to be freed. ERR_MEMORY. */
int lineage_begin(char **out, const struct config *config);
/* training.numerics of the run that the checkpoint is of; 0: no trainer made it. */
int64_t lineage_numerics(const struct ckpt_loaded *from);
/* What the settings of `orders` do not say: samples were left out (state.left_out), or updates are,
 * of steps that are out of line (state.outlying). A trainer that does not know such a note refuses
 * the checkpoint. */
#define LINEAGE_LEFT_OUT "training.left_out"
#define LINEAGE_OUTLYING "training.outlying"
void lineage_note(json_t *orders, const char *what);
struct lineage_data {
    int64_t next_sample; /* where reading goes on; -1: where the checkpoint says */
    int64_t skip;        /* and so many behind that */
    const char *hash;    /* data_info */
};
/* The list of a run that goes on from a checkpoint. ERR_MISMATCH: a new order that nobody asked
 * for; the message has the first setting that differs. */
int lineage_go_on(char **out, const struct config *config, const struct ckpt_loaded *from,
                  const struct lineage_data *data);

#endif
