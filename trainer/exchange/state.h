/* state.h - this rank's part of the saved state: parameters and both moments of the optimizer.
 *
 * A slice is one tensor's box. The optimizer updates slices, snapshots copy and load them. The
 * memory plan has the buffers; parallel_apply() makes the struct, parallel_free() frees it. */
#ifndef HOLDFAST_TRAINER_EXCHANGE_STATE_H
#define HOLDFAST_TRAINER_EXCHANGE_STATE_H

#include "trainer/model/model.h"
#include "trainer/plan/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The place of this rank's box of one tensor. */
struct state_place {
    struct box box;   /* of the global tensor; two dimensions */
    size_t at, count; /* elements, in the buffers of that part of the state, row-major */
};
/* This rank's box of one tensor. */
struct state_slice {
    const struct model_tensor *tensor;
    uint32_t block;                   /* of the program (plan/program.h) */
    struct state_place param, moment; /* the same, or with ZeRO the moments of some rows */
    size_t grad_at;                   /* in state->grad; the box is that of the moments */
    uint32_t segments; /* parts of a row that the norm counts separately: the run's blocks */
    bool is_counted;   /* this rank's tp place and stage count it in the norm */
};

/* Arguments of an update. */
struct state_update {
    struct kernel_adamw_numbers numbers[2]; /* with weight decay, and without */
    struct kernel_adamw_piece pieces[];     /* per slice */
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
    bool is_zero;       /* copies of a shard have moments of different rows */
    size_t count, moment_count; /* elements per buffer, padding included */
    enum kernel_dtype moments, gradients;
    float *param;
    void *copy; /* bf16 [count] that the update also writes; NULL: copied after the update */
    void *exp_avg, *exp_avg_sq; /* of `moments`; all four are memory that the lane can access */
    struct lane *lane;
    struct state_update *update, *host_update; /* on the device and PINNED */
    void *grad; /* of `gradients`; valid between parallel_step and the next one */
};

/* Parts of each slice in a checkpoint. */
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
/* True if the host may read and write it; otherwise only lanes do. */
bool state_is_on_host(const struct state *state);

/* Zeroes the moments before a load that does not fill them. */
int state_zero_moments(const struct state *state);
/* Posts the digest of this rank's box of one tensor's part (proto/base/checksum.h). It is added to
 * sum[2] in the device's memory. The digests of all boxes of a tensor add up to the tensor's. */
void state_digest(const struct state *state, struct kernels *kernels,
                  const struct state_slice *slice, enum state_part part, uint64_t *sum);
/* The arguments without the sum, for a caller that posts the digest elsewhere, or for some rows. */
struct kernel_digest state_digested(const struct state *state, const struct state_slice *slice,
                                    enum state_part part);

#endif
