/* state.h - this rank's part of what a checkpoint saves: parameters and both moments of the
 * optimizer.
 *
 * A slice is one tensor's box. The optimizer updates slices, snapshots copy and load them. The
 * buffers are the memory plan's: parallel_apply() makes the struct, parallel_free() frees it. */
#ifndef HOLDFAST_TRAINER_EXCHANGE_STATE_H
#define HOLDFAST_TRAINER_EXCHANGE_STATE_H

#include "trainer/model/model.h"
#include "trainer/plan/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where this rank has a box of one tensor. */
struct state_place {
    struct box box;   /* of the global tensor; two dimensions */
    size_t at, count; /* elements, in the buffers of that part of the state, row-major */
};
/* What this rank has of one tensor. */
struct state_slice {
    const struct model_tensor *tensor;
    uint32_t block;                   /* of the program (plan/program.h) */
    struct state_place param, moment; /* the same, or ZeRO: the moments of some rows alone */
    size_t grad_at;                   /* in state->grad, of the moments' box */
    uint32_t segments; /* parts of a row in which the norm counts it: the run's blocks of it */
    bool is_counted;   /* this rank's tp place and stage answer for it in the norm */
};

/* What the optimizer is told of an update. */
struct state_update {
    struct kernel_adamw_numbers numbers[2]; /* of what decays and of what does not */
    struct kernel_adamw_piece pieces[];     /* of each slice */
};
static inline size_t state_update_bytes(uint32_t num_slices)
{
    return sizeof(struct state_update) + num_slices * sizeof(struct kernel_adamw_piece);
}

struct state {
    uint32_t num_slices; /* one per tensor of this rank's stages, in the table's order; a tied
                          * output on another stage than the embedding comes last */
    struct state_slice *slices;
    bool is_tied_apart; /* the first and the last rank of a pipeline hold the same tied matrix:
                         * there the first slice, here the last */
    bool is_zero;       /* copies of a shard hold different rows of its moments */
    size_t count, moment_count; /* elements per buffer, padding included */
    enum kernel_dtype moments, gradients;
    float *param;
    void *copy; /* bf16 [count] that the update writes beside param; NULL: made behind it */
    void *exp_avg, *exp_avg_sq; /* of `moments`; all four are memory that the lane reaches */
    struct lane *lane;
    struct state_update *update, *host_update; /* on the device and PINNED */
    void *grad; /* of `gradients`; valid between parallel_step and the next one */
};

/* What a checkpoint has of each slice. */
enum state_part { STATE_PARAM, STATE_EXP_AVG, STATE_EXP_AVG_SQ, NUM_STATE_PARTS };
static inline enum kernel_dtype state_dtype(const struct state *state, enum state_part part)
{
    return part == STATE_PARAM ? KERNEL_F32 : state->moments;
}
static inline size_t state_bytes(const struct state *state, enum state_part part)
{
    return (part == STATE_PARAM ? state->count : state->moment_count) *
           kernel_dtype_bytes(state_dtype(state, part));
}
static inline const struct state_place *state_place(const struct state_slice *slice,
                                                    enum state_part part)
{
    return part == STATE_PARAM ? &slice->param : &slice->moment;
}
/* The address of element `at` of that part. */
void *state_at(const struct state *state, enum state_part part, size_t at);
/* May the host read and write it? Else only lanes do. */
bool state_is_on_host(const struct state *state);

/* Zero moments, as a load begins that fills none. */
int state_zero_moments(const struct state *state);
/* Posts the digest of what this rank holds of one tensor's part (proto/base/checksum.h): added to
 * sum[2] in the device's memory. Those of all boxes of a tensor add up to the tensor's. */
void state_digest(const struct state *state, struct kernels *kernels,
                  const struct state_slice *slice, enum state_part part, uint64_t *sum);
/* All of it but the sum, for a caller who posts it elsewhere, or for some rows. */
struct kernel_digest state_digested(const struct state *state, const struct state_slice *slice,
                                    enum state_part part);

#endif
