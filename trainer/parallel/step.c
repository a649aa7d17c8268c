/* step.c - one training step on a mesh (see parallel/parallel.h): the work of the step outside its
 * program.
 *
 * Stop. With one stage all ranks agree before each leaf whether a rank was asked to stop; with a
 * pipeline they agree before the step. Norm. Squares are summed exactly (kernel_sum_squares), each
 * element by one rank, limbs as integers over all ranks: the same bits for any layout of the rows.
 * Loss. Leaf losses are gathered and added in double in leaf order. The host reads them after its
 * wait for the norm, so no leaf waits. */
#include "kernels/device.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "trainer/config/hooks.h"
#include "trainer/config/switches.h"
#include "trainer/data/ahead.h"
#include "trainer/parallel/execution.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct step {
    struct walk walk;
    const struct step_input *input;
    struct step_result *out;
    struct model_batch batch;
};

static bool is_asked_to_stop(const struct step_input *input)
{
    return input->want_stop != NULL && *input->want_stop != 0;
}

/* ---- leaves ---- */

static void order_tokens(const struct parallel *p, const struct tokens *raw, struct tokens *out)
{
    uint32_t batch = (uint32_t)p->plan->config->local_batch_size,
             seq = (uint32_t)p->plan->config->seq_len;
    uint32_t chunk = model_chunk_length(&p->plan->cut, seq);
    if (p->plan->cut.cp_blocks == 1)
        return; /* they are read in place */
    for (uint32_t i = 0; i < model_num_chunks(&p->plan->cut) * batch; i++) { /* [chunk][sequence] */
        uint32_t first = model_chunk_first(&p->plan->cut, seq, p->plan->cut.cp_place, i / batch);
        size_t from = (size_t)(i % batch) * seq + first, at = (size_t)i * chunk;
        memcpy(out->inputs + at, raw->inputs + from, chunk * sizeof(int32_t));
        memcpy(out->targets + at, raw->targets + from, chunk * sizeof(int32_t));
        if (out->starts != NULL)
            memcpy(out->starts + at, raw->starts + from, chunk * sizeof(int32_t));
    }
}

int step_begin_tokens(struct parallel *p, struct leaf_tokens *tokens, struct tokens *out_raw)
{
    *out_raw = p->plan->cut.cp_blocks > 1 ? p->run.raw : tokens->host;
    return lane_settle_mark(p->plan->lane, &tokens->copied);
}

void step_clear_tokens(const struct parallel *p, const struct tokens *raw)
{
    size_t bytes = rows_of_leaf(p->plan) * sizeof(int32_t);
    memset(raw->inputs, 0, bytes);
    memset(raw->targets, 0xff, bytes);
    if (raw->starts != NULL)
        memset(raw->starts, 0, bytes);
}

void step_send_tokens(struct parallel *p, const struct tokens *raw, struct leaf_tokens *tokens)
{
    const struct tokens *from = &tokens->host, *to = &tokens->device;
    size_t rows = rows_of_leaf(p->plan) / p->plan->cut.cp;
    size_t lists = 2 + (from->starts != NULL) + (from->own != NULL ? 3 : 0);
    order_tokens(p, raw, &tokens->host);
    if (from->own != NULL)
        model_localize(p->plan->model, from->inputs, from->own, from->own_or_other, from->owners);
    lane_copy(p->plan->lane, to->inputs, from->inputs, lists * rows * sizeof(int32_t));
    lane_mark(p->plan->lane, &tokens->copied);
}

static void count_sequences(const struct parallel *p, const struct tokens *tokens, double *out)
{
    uint32_t seq_len = (uint32_t)p->plan->config->seq_len;
    for (int64_t b = 0; b < p->plan->config->local_batch_size; b++) {
        out[b] = 0;
        for (uint32_t t = 0; t < seq_len; t++)
            out[b] += tokens->targets[(size_t)b * seq_len + t] >= 0;
    }
}

static float *losses_of(const struct parallel *p, uint32_t leaf)
{
    return p->run.row_losses != NULL ? p->run.row_losses + leaf * rows_of_leaf(p->plan) : NULL;
}

double step_sum_losses(const struct parallel *p, uint32_t leaf, double *out_sequences)
{
    const float *losses = losses_of(p, leaf);
    size_t seq = (size_t)p->plan->config->seq_len,
           rows = losses != NULL ? rows_of_leaf(p->plan) : 0;
    double sum = 0, of_sequence = 0;
    for (size_t i = 0; i < rows; i++) {
        sum += losses[i];
        of_sequence = (i % seq == 0 ? 0 : of_sequence) + losses[i];
        if (out_sequences != NULL)
            out_sequences[i / seq] = of_sequence;
    }
    return sum;
}

static double *values_of(const struct parallel *p, uint32_t leaf)
{
    return p->run.losses + (size_t)leaf * p->run.leaf_values;
}

/* The first rank of the last stage, among the ranks that read a leaf, digests it: each leaf counts
 * once. */
static void add_digest(struct parallel *p, uint32_t micro_step, const struct tokens *raw)
{
    const uint32_t *place = p->plan->mesh.place;
    size_t bytes = rows_of_leaf(p->plan) * sizeof(int32_t);
    if (place[AXIS_PP] + 1 < p->plan->mesh.degree[AXIS_PP] || place[AXIS_CP] + place[AXIS_TP] > 0)
        return;
    uint32_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), micro_step);
    p->run.digest +=
        checksum_seeded(raw->targets, bytes, checksum_seeded(raw->inputs, bytes, leaf));
}

/* A leaf that could not be read is computed from zeros: the step is void, and all ranks learn it
 * when it ends. */
static int read_leaf(struct parallel *p, const struct step *s, uint32_t leaf)
{
    struct leaf_tokens *to = &p->run.tokens[leaf % p->plan->num_reads];
    struct tokens raw;
    double *values = values_of(p, leaf);
    memset(values, 0, p->run.leaf_values * sizeof(*values));
    if (!rank_has_leaf(&p->exchange, my_data_rank(p->plan), leaf))
        return 0;
    ERR_TRY(step_begin_tokens(p, to, &raw));
    if (p->run.failure == 0 && s->input->ahead != NULL)
        p->run.failure =
            ahead_take(s->input->ahead, &(struct data_batch){raw.inputs, raw.targets, raw.starts});
    if (p->run.failure != 0)
        step_clear_tokens(p, &raw);
    else if (s->input->ahead != NULL)
        add_digest(p, leaf, &raw);
    if (p->run.has_sources)
        count_sequences(p, &raw, values + 1 + p->plan->config->local_batch_size);
    step_send_tokens(p, &raw, to);
    return 0;
}

struct model_batch step_batch(const struct parallel *p, const struct leaf_tokens *tokens)
{
    const struct tokens *at = &tokens->device;
    return (struct model_batch){.inputs = at->inputs,
                                .targets = at->targets,
                                .starts = at->starts,
                                .own = at->own,
                                .own_or_other = at->own_or_other,
                                .owners = at->owners,
                                .loss_scale = &p->run.numbers->loss_scale,
                                .losses = p->run.row_losses};
}

static void begin_leaf(struct parallel *p, struct step *s, uint32_t leaf)
{
    s->batch = step_batch(p, &p->run.tokens[leaf % p->plan->num_reads]);
    s->batch.losses = losses_of(p, leaf);
    uint32_t batch = (uint32_t)p->plan->config->local_batch_size;
    uint64_t before = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), leaf) * (uint64_t)batch;
    if (hooks_break_sample(p->plan->config, s->input->first_sample + before, batch,
                           &s->batch.broken_sequence))
        s->batch.broken = &p->run.numbers->broken;
    s->walk.batch = rank_has_leaf(&p->exchange, my_data_rank(p->plan), leaf) ? &s->batch : NULL;
}

/* ---- stopping ---- */

static void end_leaf(struct parallel *p, const struct step *s, uint32_t leaf)
{
    const struct step_input *input = s->input;
    if (p->plan->mesh.world->rank != 0)
        return;
    log_debug("train", "micro-step %u of %u of step %lld is done", leaf + 1,
              leaves_micro_steps(&p->exchange.leaves), (long long)input->step);
    bool is_first = leaf == 0 || p->plan->mesh.degree[AXIS_PP] > 1;
    if (is_first)
        hooks_in_step(p->plan->config, input->step, input->want_stop);
}

/* A step may take longer than the notice before a job is killed. */
static int agree_to_stop(struct parallel *p, struct step *s, const struct op *op)
{
    int64_t stop = is_asked_to_stop(s->input);
    ERR_TRY(comm_all_reduce_i64(comm_of(&p->exchange, op, CALL_SUM), &stop, 1));
    s->out->stop = s->out->is_dropped = s->walk.is_asked_to_stop = stop != 0;
    return 0;
}

static int norm_and_stop(struct parallel *p, struct step *s, const struct op *op)
{
    const struct step_input *input = s->input;
    unsigned seen = input->poll_switches != NULL ? input->poll_switches(input->user) : 0;
    struct {
        struct kernel_exact_sum sum;
        /* Digest: low and high half, so that sums do not overflow. */
        int64_t stop, failures, digest[2];
        int64_t seen[SWITCHES_BITS]; /* number of ranks that saw each */
    } all = {.stop = is_asked_to_stop(input),
             .failures = p->run.failure != 0,
             .digest = {(int64_t)(p->run.digest & UINT32_MAX), (int64_t)(p->run.digest >> 32)}};
    for (uint32_t bit = 0; bit < SWITCHES_BITS; bit++)
        all.seen[bit] = seen >> bit & 1;
    lane_zero(p->plan->lane, &p->run.numbers->squares, sizeof(all.sum));
    reduce_sum_squares(&p->exchange, &p->run.numbers->squares, NULL);
    lane_copy(p->plan->lane, &p->run.host_numbers->squares, &p->run.numbers->squares,
              sizeof(all.sum));
    ERR_TRY(lane_settle(p->plan->lane));
    all.sum = p->run.host_numbers->squares;
    ERR_TRY(comm_all_reduce_i64(comm_of(&p->exchange, op, CALL_SUM), (int64_t *)&all,
                                sizeof(all) / sizeof(int64_t)));
    s->out->grad_norm = sqrt(kernel_exact_value(&all.sum));
    s->out->stop = all.stop != 0;
    s->out->tokens_digest = (uint64_t)all.digest[0] + ((uint64_t)all.digest[1] << 32);
    s->out->seen = 0;
    for (uint32_t bit = 0; bit < SWITCHES_BITS; bit++)
        s->out->seen |= (all.seen[bit] != 0 ? 1u : 0u) << bit;
    s->walk.is_common = all.failures != 0;
    return all.failures == 0 ? 0 : parallel_agree(p->plan->mesh.world, p->run.failure);
}

/* ---- losses ---- */

/* Adds a leaf's sequences to the sums of their sources. */
static void add_to_sources(const struct parallel *p, const struct step_input *input, uint32_t leaf,
                           const double *values, struct step_result *out)
{
    uint32_t batch = (uint32_t)p->plan->config->local_batch_size;
    uint64_t sample;
    for (uint32_t b = 0; b < batch; b++) {
        uint32_t source = data_locate(ahead_data(input->ahead),
                                      input->first_sample + (uint64_t)leaf * batch + b, &sample);
        out->sources[source].sum += values[b];
        out->sources[source].counted += (uint64_t)values[batch + b];
    }
}

/* Sums the losses of this rank's leaves. */
static void sum_leaves(struct parallel *p)
{
    for (uint32_t leaf = 0; leaf < leaves_micro_steps(&p->exchange.leaves); leaf++) {
        double *values = values_of(p, leaf);
        if (rank_has_leaf(&p->exchange, my_data_rank(p->plan), leaf))
            values[0] = step_sum_losses(p, leaf, p->run.leaf_values > 1 ? values + 1 : NULL);
    }
}

int step_gather_losses(struct parallel *p, struct comm *data, struct comm *stages, size_t each)
{
    uint32_t d = num_data_ranks(p->plan);
    size_t *bytes = p->exchange.lists, *at = p->exchange.lists + d;
    for (uint32_t r = 0; r < d; r++) {
        bytes[r] = each;
        at[r] = r * each;
    }
    if (data != NULL)
        ERR_TRY(comm_all_gather_v(data, p->run.losses, each, p->run.all_losses, bytes, at));
    else
        memcpy(p->run.all_losses, p->run.losses, each);
    if (stages == NULL)
        return 0;
    return comm_broadcast(stages, p->run.all_losses, d * each, stages->size - 1);
}

/* Gathers each leaf's loss. With several sources, also the loss and the number of counted tokens of
 * each of its sequences; they are added in leaf order. A blame compares the losses of sequences. */
static int gather_losses(struct parallel *p, struct step *s, const struct op *op)
{
    struct step_result *out = s->out;
    sum_leaves(p);
    ERR_TRY(step_gather_losses(
        p, comm_of(&p->exchange, op, CALL_GATHER), comm_of(&p->exchange, op, CALL_BROADCAST),
        (size_t)leaves_micro_steps(&p->exchange.leaves) * p->run.leaf_values * sizeof(double)));
    double sum = 0, most = 0;
    memset(out->sources, 0, sizeof(out->sources));
    for (uint32_t leaf = 0; leaf < p->exchange.leaves.num; leaf++) {
        const double *values = gathered_of_leaf(p, leaf);
        sum += values[0];
        most = fmax(most, values[0]);
        if (p->run.has_sources)
            add_to_sources(p, s->input, leaf, values + 1, out);
    }
    out->data_seconds = s->input->ahead != NULL ? ahead_waited(s->input->ahead) : 0;
    out->max_loss = most / (tokens_that_count(p) / (double)p->exchange.leaves.num);
    if (p->run.counted > 0) {
        out->loss = sum / (double)p->run.counted;
        return 0;
    }
    out->loss = sum / (double)p->exchange.leaves.num / (double)rows_of_leaf(p->plan);
    return 0;
}

/* ---- the step ---- */

/* All ranks decide the same. */
static int decide(struct step *s)
{
    const struct step_input *input = s->input;
    int rc = input->decide != NULL ? input->decide(input->user, s->out) : 0;
    s->walk.is_common = rc != 0;
    return rc;
}

static int at_op(struct parallel *p, struct walk *e, const struct op *op)
{
    struct step *s = (struct step *)e;
    switch (op->kind) {
    case OP_ASK_STOP:
        if (op->leaf > 0)
            end_leaf(p, s, op->leaf - 1);
        return agree_to_stop(p, s, op);
    case OP_READ:
        return read_leaf(p, s, op->leaf);
    case OP_BEGIN:
        begin_leaf(p, s, op->leaf);
        return 0;
    case OP_NORM:
        end_leaf(p, s, leaves_micro_steps(&p->exchange.leaves) - 1);
        ERR_TRY(watch_agree(p, s->input->step, &e->is_common));
        return norm_and_stop(p, s, op);
    case OP_LOSSES:
        ERR_TRY(gather_losses(p, s, op));
        return decide(s);
    case OP_UPDATE:
        if (s->input->update != NULL)
            s->input->update(s->input->user, op->block);
        return 0;
    default:
        return 0;
    }
}

/* Counts the tokens that divide the loss if a mask leaves tokens out. All ranks know the count
 * before the first leaf, so each leaf's gradient is scaled once, when it is computed. */
static int count_tokens(struct parallel *p, const struct step_input *input)
{
    struct comm *data = p->plan->mesh.of[GROUP_DATA];
    int64_t counted = 0;
    uint64_t mine = 0;
    p->run.counted = 0;
    if (input->ahead == NULL || !data_info(ahead_data(input->ahead))->has_mask)
        return 0;
    p->run.failure = ahead_count(input->ahead, &mine);
    counted = (int64_t)mine;
    if (data != NULL)
        ERR_TRY(comm_all_reduce_i64(data, &counted, 1));
    p->run.counted = counted > 0 ? (uint64_t)counted : 1; /* never 0: it divides */
    if (counted == 0 && p->run.failure == 0 && p->plan->mesh.world->rank == 0 &&
        !p->run.has_warned_of_masks) {
        log_warn("data",
                 "step %" PRId64 " has no token to train on: the mask excludes all, and its "
                 "gradient is 0; later such steps are not logged",
                 input->step);
        p->run.has_warned_of_masks = true;
    }
    return 0;
}

/* A ramp changes the number of leaves, and so the program. */
static int adapt_program(struct parallel *p)
{
    struct program_options shape = p->plan->shape;
    shape.num_leaves = leaves_micro_steps(&p->exchange.leaves);
    shape.round_leaves = has_groups(p->plan) ? leaves_round(&p->exchange.leaves) : 0;
    if (p->run.program->num_leaves == shape.num_leaves && p->run.round_leaves == shape.round_leaves)
        return 0;
    program_free(p->run.program);
    p->run.program = NULL;
    p->run.round_leaves = shape.round_leaves;
    return program_build(&p->run.program, &shape);
}

/* Sets the sizes of the step, which a ramp changes, and its divisor. */
static int begin_step(struct parallel *p, const struct step_input *input)
{
    bool has_data = input->ahead != NULL;
    p->run.has_sources = has_data && data_info(ahead_data(input->ahead))->num_sources > 1;
    bool by_sample = p->run.has_sources || p->run.blame != NULL;
    p->run.failure = 0;
    p->run.digest = 0;
    watch_step(p, input->step);
    set_leaves(p, trainer_config_leaves(p->plan->config, input->step - 1));
    reduce_begin(&p->exchange);
    p->run.leaf_values = by_sample ? 1 + 2 * (uint32_t)p->plan->config->local_batch_size : 1;
    ERR_TRY(adapt_program(p));
    if (has_data)
        ahead_step(input->ahead, input->step - 1, input->first_sample);
    ERR_TRY(count_tokens(p, input));
    /* The copy of the previous step has ended: its norm was waited for. */
    p->run.host_numbers->loss_scale =
        hooks_loss_scale(p->plan->config, input->step, (float)(1.0 / tokens_that_count(p)));
    p->run.host_numbers->broken = UINT32_MAX;
    lane_copy(p->plan->lane, &p->run.numbers->loss_scale, &p->run.host_numbers->loss_scale,
              sizeof(float) + sizeof(uint32_t));
    return 0;
}

int parallel_step(struct parallel *p, const struct step_input *input, struct step_result *out)
{
    struct step step = {
        .walk = {.at_op = at_op, .copies = input->copies}, .input = input, .out = out};
    int rc = begin_step(p, input);
    out->seen = 0;
    if (rc != 0)
        return comm_fail(p->plan->mesh.world, rc);
    return execute_program(p, p->run.program, &step.walk);
}

/* ---- logits ---- */

static int at_logits(struct parallel *p, struct walk *e, const struct op *op)
{
    bool is_head = op->kind == OP_FORWARD && op->block == p->plan->table->num_blocks - 1;
    if (is_head && e->logits != NULL)
        return model_copy_logits(p->plan->model, 0, e->logits);
    return 0;
}

int parallel_logits(struct parallel *p, struct ahead *ahead, uint64_t first_sample,
                    float *out_logits)
{
    struct leaf_tokens *tokens = &p->run.tokens[0];
    struct model_batch batch = step_batch(p, tokens);
    struct tokens raw;
    struct walk walk = {.at_op = at_logits};
    uint32_t stages = p->plan->mesh.degree[AXIS_PP];
    int rc = 0;
    if (stages * p->plan->cut.cp_blocks * p->plan->cut.tp_blocks > 1 ||
        p->plan->cut.loss_chunks > 1)
        return report_error(ERR_INVALID, "run it without a pipeline, with one block or chunk each",
                            "debug.logits_file: pp %u, canonical.cp_blocks %u, tp_blocks %u and "
                            "loss_chunks %u split the logits",
                            stages, p->plan->cut.cp_blocks, p->plan->cut.tp_blocks,
                            p->plan->cut.loss_chunks);
    if (p->plan->mesh.world->rank == 0) {
        ahead_step(ahead, 0, first_sample);
        rc = step_begin_tokens(p, tokens, &raw);
        if (rc == 0)
            rc = ahead_take(ahead, &(struct data_batch){raw.inputs, raw.targets, NULL});
        if (rc == 0)
            step_send_tokens(p, &raw, tokens);
        batch.starts = NULL;
        /* Other ranks wait in the gathers: a rank that could not read its sample walks the
         * program. */
        walk.batch = rc == 0 ? &batch : NULL;
        walk.logits = out_logits;
    }
    ERR_TRY(execute_program(p, p->run.evaluation, &walk));
    return rc;
}
