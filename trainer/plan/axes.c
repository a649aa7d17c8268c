/* axes.c - the state of each buffer over the axes of the mesh (see axes.h). */
#include "trainer/plan/axes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ANY: accepted by a use in any state; no buffer is in this state. */
enum state { WHOLE, CUT, PARTIAL, DIFFERENT, ANY };

static const char *const names[] = {"whole", "cut", "a partial sum", "different by rank"};

struct buffer {
    uint8_t over[NUM_CUTS]; /* enum state; not used over an axis of degree 1 */
};

/* The buffers of one block. A block belongs to one rank of the pipeline. */
struct block_axes {
    struct buffer parameters, sums; /* of a group of leaves, until they are joined */
};

struct axes {
    const struct program_options *o;
    struct block_axes *blocks; /* [num_blocks + 1] */
    char text[192];
    const char *reason; /* the text, or NULL */
};

/* The order is pp, dp_replicate, dp_shard, cp, tp, the parts of dp_shard. `resting`: a block's
 * parameters between steps. `gradient`: a block's gradient of one leaf. */
static const struct buffer resting = {{CUT, WHOLE, CUT, WHOLE, CUT, CUT}},
                           gradient = {{CUT, PARTIAL, PARTIAL, PARTIAL, CUT, PARTIAL}};

/* Both ends of the pipeline hold a tied matrix, and each has a summand of its gradient. */
static struct buffer of_block(const struct axes *a, uint32_t block, struct buffer buffer,
                              enum state tied)
{
    if (a->o->is_tied && (block == 0 || block == a->o->num_blocks))
        buffer.over[AXIS_PP] = (uint8_t)tied;
    return buffer;
}

struct axes *axes_new(const struct program_options *o)
{
    struct axes *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return NULL;
    a->o = o;
    a->blocks = calloc(o->num_blocks + 1, sizeof(*a->blocks));
    for (uint32_t b = 0; b <= o->num_blocks && a->blocks != NULL; b++)
        a->blocks[b].parameters = of_block(a, b, resting, WHOLE);
    if (a->blocks != NULL)
        return a;
    free(a);
    return NULL;
}

void axes_free(struct axes *a)
{
    if (a == NULL)
        return;
    free(a->blocks);
    free(a);
}

/* ---- wanted states ---- */

static void refuse_buffer(struct axes *a, const char *buffer, enum axis axis, enum state is,
                          enum state wanted)
{
    if (a->reason != NULL)
        return;
    snprintf(a->text, sizeof(a->text), "%s: %s over %s, where %s is expected", buffer, names[is],
             mesh_axis_name(axis), names[wanted]);
    a->reason = a->text;
}

static void check_buffer(struct axes *a, const char *name, const struct buffer *is,
                         const struct buffer *wanted)
{
    for (uint32_t axis = 0; axis < NUM_CUTS; axis++)
        if (program_degree(a->o, axis) > 1 && wanted->over[axis] != ANY &&
            is->over[axis] != wanted->over[axis])
            refuse_buffer(a, name, axis, is->over[axis], wanted->over[axis]);
}

/* ---- changes of state by calls ---- */

static void call(struct axes *a, const char *name, struct buffer *buffer, const struct call *call)
{
    static const struct {
        uint8_t from, to;
    } rules[NUM_CALL_KINDS] = {
        [CALL_GATHER] = {CUT, WHOLE},          [CALL_AROUND] = {CUT, WHOLE},
        [CALL_DEAL] = {PARTIAL, CUT},          [CALL_SCATTER] = {PARTIAL, CUT},
        [CALL_SUM] = {PARTIAL, WHOLE},         [CALL_SWAP] = {PARTIAL, WHOLE},
        [CALL_BROADCAST] = {DIFFERENT, WHOLE},
    };
    if (call->kind == CALL_NONE)
        return;
    for (uint32_t axis = 0; axis < NUM_CUTS; axis++) {
        if (!(mesh_group_axes(call->group) >> axis & 1) || program_degree(a->o, axis) == 1)
            continue;
        if (buffer->over[axis] != rules[call->kind].from)
            refuse_buffer(a, name, axis, buffer->over[axis], rules[call->kind].from);
        buffer->over[axis] = rules[call->kind].to;
    }
}

static void apply_calls(struct axes *a, const char *name, const struct op *op,
                        struct buffer *buffer)
{
    for (uint32_t i = 0; i < OP_CALLS_MAX; i++)
        call(a, name, buffer, &op->calls[i]);
}

/* Applies the operation's calls to the buffer, then checks that it is as wanted. */
static void call_and_check(struct axes *a, const char *name, const struct op *op,
                           struct buffer *buffer, const struct buffer *wanted)
{
    apply_calls(a, name, op, buffer);
    check_buffer(a, name, buffer, wanted);
}

/* The same for a buffer that only this operation uses. */
static void call_own_and_check(struct axes *a, const char *name, const struct op *op,
                               struct buffer buffer, const struct buffer *wanted)
{
    call_and_check(a, name, op, &buffer, wanted);
}

/* Applies the exchange of a leaf's gradient: fast sums keep it on each rank, else it goes to its
 * owners, of one replica or of all. */
static void exchange(struct axes *a, const struct op *op, uint32_t block)
{
    static const struct buffer owned = {{ANY, CUT, CUT, CUT, CUT, CUT}},
                               of_replica = {{ANY, PARTIAL, CUT, CUT, CUT, PARTIAL}};
    struct buffer own = of_block(a, block, gradient, PARTIAL);
    const struct buffer *wanted = a->o->round_leaves > 0 ? &of_replica : &owned;
    a->blocks[block].sums = own;
    call_and_check(a, "gradient", op, &a->blocks[block].sums, a->o->adds_fast ? &own : wanted);
}

static void run_bucket(struct axes *a, const struct op *op)
{
    static const struct buffer joined = {{ANY, CUT, CUT, CUT, CUT, CUT}},
                               collected = {{ANY, WHOLE, CUT, WHOLE, CUT, CUT}};
    for (uint32_t block = op->block; block < op->block + op->num_blocks; block++)
        if (op->kind == OP_EXCHANGE)
            exchange(a, op, block);
        else if (op->kind == OP_JOIN)
            call_and_check(a, "sums of the group", op, &a->blocks[block].sums, &joined);
        else
            call_and_check(a, "sums", op, &a->blocks[block].sums, &collected);
}

/* ---- the end of a step ---- */

/* A tied output has its own sums. It has its own parameters only where the pipeline puts it on
 * another rank than the embedding. */
static bool has_sums(const struct axes *a, uint32_t rank, uint32_t block)
{
    return (block < a->o->num_blocks || a->o->is_tied) &&
           program_stage_of(a->o, block) % a->o->num_ranks == rank;
}

/* Both sums of a tied matrix, on this rank or on the two ends of the pipeline. */
static void reduce(struct axes *a, uint32_t rank, const struct op *op)
{
    struct buffer *in = &a->blocks[0].sums, *out = &a->blocks[a->o->num_blocks].sums;
    bool has_in = a->o->is_tied && has_sums(a, rank, 0);
    bool has_out = a->o->is_tied && has_sums(a, rank, a->o->num_blocks);
    if (has_in)
        apply_calls(a, "sums of the tied matrix", op, in);
    if (has_out)
        apply_calls(a, "sums of the tied matrix", op, out);
    if (has_in && has_out)
        check_buffer(a, "sums of the tied matrix", in, out);
    if (!has_in && !has_out && op->calls[0].kind != CALL_NONE)
        a->reason = "it has nothing to call for";
}

/* Checks the sums that the norm and the optimizer read: they are laid out as the parameters. With
 * ZeRO copies have pieces of them, unless the sums were added fast. */
static void check_sums(struct axes *a, uint32_t rank)
{
    for (uint32_t block = 0; block <= a->o->num_blocks; block++) {
        struct buffer wanted = a->blocks[block].parameters;
        if (a->o->spreads && !a->o->adds_fast)
            wanted.over[AXIS_REPLICATE] = wanted.over[AXIS_CP] = CUT;
        if (has_sums(a, rank, block))
            check_buffer(a, "sums", &a->blocks[block].sums, &wanted);
    }
}

/* With ZeRO each copy of a shard updates rows of it. */
static void update(struct axes *a, uint32_t block)
{
    struct buffer *parameters = &a->blocks[block].parameters;
    if (a->o->spreads)
        parameters->over[AXIS_REPLICATE] = parameters->over[AXIS_CP] = CUT;
}

static void spread(struct axes *a, uint32_t rank, const struct op *op)
{
    for (uint32_t block = 0; block <= a->o->num_blocks; block++)
        if (has_sums(a, rank, block) && (block < a->o->num_blocks || a->o->num_ranks > 1))
            apply_calls(a, "parameters", op, &a->blocks[block].parameters);
}

/* ---- operations ---- */

/* The squares of a rank's part are a summand. Only the last stage has losses, each rank those of
 * its leaves. */
static const struct buffer summands = {{PARTIAL, PARTIAL, PARTIAL, PARTIAL, PARTIAL, PARTIAL}},
                           losses = {{DIFFERENT, CUT, CUT, WHOLE, WHOLE, CUT}},
                           all_whole = {{WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE}},
                           scales = {{CUT, WHOLE, CUT, WHOLE, CUT, CUT}},
                           common_scales = {{CUT, WHOLE, WHOLE, WHOLE, CUT, WHOLE}},
                           keys = {{DIFFERENT, DIFFERENT, DIFFERENT, CUT, CUT, DIFFERENT}},
                           keys_around = {{DIFFERENT, DIFFERENT, DIFFERENT, WHOLE, CUT, DIFFERENT}},
                           gathered = {{ANY, WHOLE, WHOLE, WHOLE, CUT, WHOLE}};

static void run_op(struct axes *a, uint32_t rank, const struct op *op)
{
    switch (op->kind) {
    case OP_ASK_STOP:
        call_own_and_check(a, "wish to stop", op, summands, &all_whole);
        break;
    case OP_ENCODE:
        call_own_and_check(a, "scales", op, scales, &common_scales);
        break;
    case OP_GATHER:
        call_own_and_check(a, "parameters", op, a->blocks[op->block].parameters, &gathered);
        break;
    case OP_RING:
        call_own_and_check(a, "keys and values", op, keys, &keys_around);
        break;
    case OP_EXCHANGE:
    case OP_JOIN:
    case OP_COLLECT:
        run_bucket(a, op);
        break;
    case OP_REDUCE:
        reduce(a, rank, op);
        break;
    case OP_NORM:
        check_sums(a, rank);
        call_own_and_check(a, "squares of the norm", op, summands, &all_whole);
        break;
    case OP_LOSSES:
        call_own_and_check(a, "losses", op, losses, &all_whole);
        break;
    case OP_SPREAD:
        spread(a, rank, op);
        break;
    case OP_UPDATE:
        update(a, op->block);
        /* fall through */
    default:
        if (op->calls[0].kind != CALL_NONE)
            a->reason = "it has nothing to call for";
        break;
    }
}

const char *axes_run(struct axes *a, uint32_t rank, const struct op *op)
{
    a->reason = NULL;
    for (uint32_t i = 0; i < OP_CALLS_MAX && a->reason == NULL; i++)
        if (op->calls[i].kind != CALL_NONE && op->calls[i].group != GROUP_WORLD &&
            !program_has_group(a->o, op->calls[i].group))
            a->reason = "its group has one rank";
    run_op(a, rank, op);
    return a->reason;
}

const char *axes_end(struct axes *a, uint32_t block)
{
    struct buffer wanted = of_block(a, block, resting, WHOLE);
    a->reason = NULL;
    check_buffer(a, "parameters", &a->blocks[block].parameters, &wanted);
    return a->reason;
}
