/* evaluate.c - the loss of a validation set on the ranks of a mesh (see parallel.h).
 *
 * Data rank i % d has leaf i of local_batch_size sequences, as in a step. After each round of d
 * leaves their losses are gathered and added in rank order, which is leaf order: so the sum is the
 * same bits on every mesh. Shorter sequences than those of training lie at the beginning of their
 * rows. The rest of a row is not counted, and no token attends to it. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/parallel/execution.h"

#include <string.h>

enum { STOP = 1, FAILED = 2 };

/* A rank's contribution to a round: at most as many numbers as a step gathers of a leaf. */
struct round {
    double loss, counted, flags;
};
_Static_assert(sizeof(struct round) == ROUND_NUMBERS * sizeof(double), "a round fits");

/* Moves rows of `seq` numbers to rows of `row` numbers, in place, the last row first. */
static void widen_rows(int32_t *numbers, uint32_t rows, uint32_t seq, uint32_t row, int32_t fill)
{
    for (uint32_t b = rows; b-- > 0;) {
        memmove(numbers + (size_t)b * row, numbers + (size_t)b * seq, seq * sizeof(*numbers));
        for (uint32_t t = seq; t < row; t++)
            numbers[(size_t)b * row + t] = fill;
    }
}

static int read_leaf(struct parallel *p, const struct evaluation *of, uint64_t leaf,
                     const struct tokens *to)
{
    uint32_t batch = (uint32_t)p->plan->config->local_batch_size,
             row = (uint32_t)p->plan->config->seq_len;
    uint32_t seq = data_info(of->data)->seq_len;
    uint64_t first = leaf * batch;
    ERR_TRY(data_read(of->data, first, batch,
                      &(struct data_batch){to->inputs, to->targets, to->starts}));
    widen_rows(to->inputs, batch, seq, row, 0);
    widen_rows(to->targets, batch, seq, row, -1);
    if (to->starts != NULL)
        widen_rows(to->starts, batch, seq, row, (int32_t)seq);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t t = 0; t < row && first + b >= of->samples; t++)
            to->targets[(size_t)b * row + t] = -1;
    return 0;
}

/* Computes this rank's leaf of a round. Without a leaf the rank walks the program. */
static int evaluate_leaf(struct parallel *p, const struct evaluation *of, uint64_t leaf,
                         struct round *out)
{
    size_t rows = rows_of_leaf(p->plan);
    bool has_leaf = leaf * (uint64_t)p->plan->config->local_batch_size < of->samples;
    struct leaf_tokens *to = &p->run.tokens[0];
    struct tokens raw;
    struct model_batch mine = step_batch(p, to);
    struct walk walk = {.batch = has_leaf ? &mine : NULL};
    *out = (struct round){0};
    if (has_leaf) {
        ERR_TRY(step_begin_tokens(p, to, &raw));
        p->run.failure = read_leaf(p, of, leaf, &raw);
        if (p->run.failure != 0)
            step_clear_tokens(p, &raw);
        step_send_tokens(p, &raw, to);
    }
    for (size_t i = 0; i < rows && has_leaf; i++)
        out->counted += raw.targets[i] >= 0;
    out->flags = (of->want_stop != NULL && *of->want_stop != 0 ? STOP : 0) +
                 (p->run.failure != 0 ? FAILED : 0);
    ERR_TRY(execute_program(p, p->run.evaluation, &walk));
    ERR_TRY(lane_settle(p->plan->lane));
    out->loss = has_leaf ? step_sum_losses(p, 0, NULL) : 0;
    return 0;
}

/* Combines the flags of all ranks in one number: has a rank failed, does a rank want to stop? */
static int agree_on_flags(struct parallel *p, const struct round *mine, bool *out_failed,
                          bool *out_stop)
{
    int64_t counts[2] = {mine->flags >= FAILED, mine->flags == STOP};
    struct comm *world = p->plan->mesh.world;
    ERR_TRY(comm_all_reduce_i64(world, counts, 2));
    *out_failed = counts[0] > 0;
    *out_stop = counts[1] > 0;
    return 0;
}

/* Evaluates leaves [first, first + d), one per data rank; *out is valid until the next call. */
static int evaluate_round(struct parallel *p, const struct evaluation *of, uint64_t first,
                          const struct round **out, bool *out_failed, bool *out_stop)
{
    struct round mine;
    ERR_TRY(evaluate_leaf(p, of, first + my_data_rank(p->plan), &mine));
    memcpy(p->run.losses, &mine, sizeof(mine));
    *out = (const struct round *)p->run.all_losses;
    ERR_TRY(step_gather_losses(p, p->plan->mesh.of[GROUP_DATA], p->plan->mesh.of[GROUP_PP],
                               sizeof(mine)));
    return agree_on_flags(p, &mine, out_failed, out_stop);
}

int parallel_evaluate(struct parallel *p, const struct evaluation *of,
                      struct evaluation_result *out)
{
    uint32_t d = num_data_ranks(p->plan);
    uint64_t batch = (uint64_t)p->plan->config->local_batch_size;
    uint64_t leaves = (of->samples + batch - 1) / batch;
    double sum = 0, counted = 0;
    p->run.failure = 0;
    *out = (struct evaluation_result){0};
    for (uint64_t first = 0; first < leaves && !out->is_dropped; first += d) {
        const struct round *all;
        bool has_failed = false;
        int rc = evaluate_round(p, of, first, &all, &has_failed, &out->is_dropped);
        if (rc != 0)
            return comm_fail(p->plan->mesh.world, rc);
        for (uint32_t r = 0; r < d; r++) {
            sum += all[r].loss;
            counted += all[r].counted;
        }
        if (has_failed)
            return parallel_agree(p->plan->mesh.world, p->run.failure);
    }
    out->loss = counted > 0 ? sum / counted : 0;
    return 0;
}
