/* evaluate.c - the loss of a validation set on the ranks of a mesh (see parallel.h).
 *
 * Leaf i of local_batch_size sequences is of rank i % d, as in a step. After each round of d leaves
 * their losses are gathered and added in rank order, which is leaf order: so the sum is the same
 * bits on every mesh. Sequences that are shorter than those of training lie at the beginning of
 * their rows; what is behind them counts for nothing, and nothing looks back at it. */
#include "proto/report.h"
#include "trainer/parallel_private.h"

#include <string.h>

enum { STOP = 1, FAILED = 2 };

/* What a rank brings to a round: at most as many numbers as a step brings of a leaf. */
struct round {
    double loss, counted, flags;
};

/* From rows of `seq` numbers to rows of `row` numbers, in place, the last row first. */
static void widen_rows(int32_t *numbers, uint32_t rows, uint32_t seq, uint32_t row, int32_t fill)
{
    for (uint32_t b = rows; b-- > 0;) {
        memmove(numbers + (size_t)b * row, numbers + (size_t)b * seq, seq * sizeof(*numbers));
        for (uint32_t t = seq; t < row; t++)
            numbers[(size_t)b * row + t] = fill;
    }
}

static int read_leaf(struct parallel *p, const struct evaluation *of, uint64_t leaf)
{
    uint32_t batch = (uint32_t)p->config->local_batch_size, row = (uint32_t)p->config->seq_len;
    uint32_t seq = data_info(of->data)->seq_len;
    uint64_t first = leaf * batch;
    ERR_TRY(
        data_read(of->data, first, batch, &(struct data_batch){p->inputs, p->targets, p->starts}));
    widen_rows(p->inputs, batch, seq, row, 0);
    widen_rows(p->targets, batch, seq, row, -1);
    if (p->starts != NULL)
        widen_rows(p->starts, batch, seq, row, (int32_t)seq);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t t = 0; t < row && first + b >= of->samples; t++)
            p->targets[(size_t)b * row + t] = -1;
    return 0;
}

/* This rank's leaf of a round; without one, or when it cannot be read, the walk. */
static int evaluate_leaf(struct parallel *p, const struct evaluation *of, uint64_t leaf,
                         struct round *out)
{
    uint32_t batch = (uint32_t)p->config->local_batch_size;
    size_t rows = (size_t)batch * (size_t)p->config->seq_len;
    bool has_leaf = leaf * batch < of->samples;
    *out = (struct round){0};
    if (has_leaf)
        p->failure = read_leaf(p, of, leaf);
    has_leaf = has_leaf && p->failure == 0;
    struct model_batch mine = {
        .inputs = p->inputs, .targets = p->targets, .starts = p->starts, .loss_scale = 0};
    for (size_t i = 0; i < rows && has_leaf; i++)
        out->counted += p->targets[i] >= 0;
    out->flags =
        (of->want_stop != NULL && *of->want_stop != 0 ? STOP : 0) + (p->failure != 0 ? FAILED : 0);
    return model_evaluate(p->model, &p->provider, has_leaf ? &mine : NULL, &out->loss);
}

/* All ranks' rounds in rank order, in *out; valid until the next call. */
static int gather_rounds(struct parallel *p, const struct round *mine, const struct round **out)
{
    uint32_t d = p->mesh.replicas * p->mesh.shards;
    size_t *bytes = p->lists, *at = p->lists + d;
    for (uint32_t r = 0; r < d; r++) {
        bytes[r] = sizeof(*mine);
        at[r] = r * sizeof(*mine);
    }
    *out = (const struct round *)p->all_losses;
    return p->mesh.world->ops->all_gather_v(p->mesh.world, mine, sizeof(*mine), p->all_losses,
                                            bytes, at);
}

int parallel_evaluate(struct parallel *p, const struct evaluation *of,
                      struct evaluation_result *out)
{
    uint32_t d = p->mesh.replicas * p->mesh.shards;
    uint64_t batch = (uint64_t)p->config->local_batch_size;
    uint64_t leaves = (of->samples + batch - 1) / batch;
    uint32_t me = p->mesh.replica * p->mesh.shards + p->mesh.shard;
    double sum = 0, counted = 0;
    p->failure = 0;
    *out = (struct evaluation_result){0};
    for (uint64_t first = 0; first < leaves && !out->is_dropped; first += d) {
        struct round mine;
        const struct round *all;
        ERR_TRY(evaluate_leaf(p, of, first + me, &mine));
        ERR_TRY(gather_rounds(p, &mine, &all));
        bool has_failed = false;
        for (uint32_t r = 0; r < d; r++) {
            sum += all[r].loss;
            counted += all[r].counted;
            has_failed = has_failed || all[r].flags >= FAILED;
            out->is_dropped = out->is_dropped || all[r].flags == STOP;
        }
        if (has_failed)
            return parallel_agree(p->mesh.world, p->failure);
    }
    out->loss = counted > 0 ? sum / counted : 0;
    return 0;
}
