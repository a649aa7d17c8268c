/* lanes.c - which operations of a program run beside its compute, and which operations wait for
 * them.
 *
 * Lowering (program.c) puts a gather before its first use and an exchange after its backward. Here
 * gathers move ahead by `gather_ahead` uses. Gathers and exchanges each get a lane; at most
 * `exchange_behind` of them are under way when the next backward begins. A lane runs its operations
 * in the order of the program, so folds stay in leaf order. It begins an operation when all compute
 * before it in the program has ended. Only compute waits: for the gather of the block that it
 * reads, and for the exchange that still reads the buffer that it will write.
 *
 * Data from another stage is received on a lane: its buffer is posted one action ahead (program.c),
 * and the first block that reads it waits. Data to send is first copied to the buffer of its slot
 * and direction; the copy waits for the previous send from that buffer.
 *
 * Keys and values go around a ring on a lane. A forward uses them at once. For a backward the kept
 * ones go around while the next block is computed (program.c).
 *
 * A save of the previous step copies on a lane from the start of the step; the update of a block
 * waits for the copy of that block. */
#include "proto/base/report.h"
#include "trainer/model/model.h"
#include "trainer/plan/program.h"

#include <stdlib.h>
#include <string.h>

struct overlap {
    const struct program_options *o;
    struct op *ops; /* the operations of the new program */
    uint32_t num_ops;
    bool *is_held; /* [num_blocks + 1] */
    const struct op *gathers;
    uint32_t num_gathers, next; /* `next`: the first gather that is not placed */
    /* [num_gathers] number of the use; gathers for the same use have the same number. */
    uint32_t *use;
};

/* Places the next gathers, up to a use, whose blocks are not held any more. */
static void place_gathers(struct overlap *v, uint32_t last_use)
{
    while (v->next < v->num_gathers && v->use[v->next] <= last_use &&
           !v->is_held[v->gathers[v->next].block]) {
        const struct op *gather = &v->gathers[v->next++];
        v->is_held[gather->block] = true;
        v->ops[v->num_ops++] = *gather;
    }
}

static void move_gathers(struct overlap *v, const struct program *p)
{
    uint32_t seen = 0, last_use = v->o->gather_ahead > 0 ? v->o->gather_ahead - 1 : 0;
    for (uint32_t i = 0; i < p->num_ops; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind == OP_GATHER) {
            last_use = v->use[seen++] + v->o->gather_ahead;
        } else {
            v->ops[v->num_ops++] = *op;
            if (op->kind == OP_DROP)
                v->is_held[op->block] = false;
        }
        bool is_use = op->kind == OP_GATHER && p->ops[i + 1].kind != OP_GATHER;
        if (is_use || op->kind == OP_DROP)
            place_gathers(v, last_use);
    }
}

static int reorder(struct program *p, const struct program_options *o)
{
    struct overlap v = {.o = o};
    struct op *gathers = calloc(p->num_ops, sizeof(*gathers));
    v.ops = calloc(p->num_ops, sizeof(*v.ops));
    v.use = calloc(p->num_ops, sizeof(*v.use));
    v.is_held = calloc(o->num_blocks + 1, sizeof(*v.is_held));
    bool is_short = gathers == NULL || v.ops == NULL || v.use == NULL || v.is_held == NULL;
    uint32_t use = 0;
    for (uint32_t i = 0; i < p->num_ops && !is_short; i++) {
        if (p->ops[i].kind != OP_GATHER)
            continue;
        use += i > 0 && p->ops[i - 1].kind != OP_GATHER;
        v.use[v.num_gathers] = use;
        gathers[v.num_gathers++] = p->ops[i];
    }
    v.gathers = gathers;
    if (!is_short) {
        move_gathers(&v, p);
        memcpy(p->ops, v.ops, p->num_ops * sizeof(*v.ops));
        CHECK(v.num_ops == p->num_ops);
    }
    free(gathers);
    free(v.ops);
    free(v.use);
    free(v.is_held);
    return is_short ? report_error(ERR_MEMORY, NULL, "no memory for the step's program") : 0;
}

/* ---- waits ---- */

/* Numbers of operations on a lane so far, as program_op.after counts them. */
struct waits {
    uint32_t *gather;   /* [num_blocks + 1] the last gather of each block; 0: none */
    uint32_t *exchange; /* likewise, the last exchange */
    uint32_t *order;    /* [num_ops] all exchanges */
    uint32_t num_exchanges, last_gather, last_reduce;
    bool is_reduced;   /* OP_REDUCE has come: the lanes are done */
    uint32_t *sent[2]; /* [num_slots] down, up: the last send from each buffer */
    uint32_t *ring;    /* [num_blocks + 1] the last ring operation of each layer; 0: none */
    uint32_t *copied;  /* [num_blocks + 1] the copy of each block; 0: none */
};

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static bool is_send(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_SEND_GRADIENT;
}

static bool is_receive(const struct op *op)
{
    return op->kind == OP_RECEIVE || op->kind == OP_RECEIVE_GRADIENT;
}

/* The last receive for an operation's stage and leaf, as op.after counts; 0: none. */
static uint32_t received_for(const struct program *p, const struct op *op, enum op_kind kind)
{
    for (const struct op *at = op; at-- > p->ops;)
        if (at->kind == kind && at->stage == op->stage && at->leaf == op->leaf)
            return (uint32_t)(at - p->ops) + 1;
    return 0;
}

static void wait_for_stage(const struct program *p, const struct program_options *o, struct op *op)
{
    uint32_t stages = o->num_ranks * o->chunks;
    bool is_backward = op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_INPUT ||
                       (op->kind == OP_BACKWARD_WEIGHT && op->block == 0); /* only this one */
    bool is_forward = op->kind == OP_FORWARD || (op->kind == OP_KEYS && !op->is_second);
    if (is_forward && op->stage > 0 && op->block == o->first_block[op->stage])
        op->after[LANE_RECEIVE] = received_for(p, op, OP_RECEIVE);
    if (is_backward && op->stage + 1 < stages && op->block + 1 == o->first_block[op->stage + 1])
        op->after[LANE_RECEIVE] = received_for(p, op, OP_RECEIVE_GRADIENT);
}

static void wait_for(struct waits *w, const struct program_options *o, struct op *op)
{
    uint32_t head = o->num_blocks - 1;
    switch (op->kind) {
    case OP_KEYS:
    case OP_FORWARD:
        op->after[LANE_GATHER] = w->gather[op->block];
        if (op->block == head && o->is_tied)
            op->after[LANE_GATHER] = larger(w->gather[head], w->gather[o->num_blocks]);
        break;
    case OP_RECOMPUTE:
    case OP_BACKWARD_INPUT:
        op->after[LANE_GATHER] = w->gather[op->block];
        break;
    case OP_BACKWARD:
        if (op->block > 0) /* the embedding needs no parameters */
            op->after[LANE_GATHER] = w->gather[op->block];
        /* fall through */
    case OP_BACKWARD_WEIGHT:
        op->after[LANE_REDUCE] = w->exchange[op->block];
        if (w->num_exchanges > o->exchange_behind)
            op->after[LANE_REDUCE] =
                larger(op->after[LANE_REDUCE], w->order[w->num_exchanges - 1 - o->exchange_behind]);
        break;
    case OP_REDUCE:
        op->after[LANE_GATHER] = w->last_gather;
        op->after[LANE_REDUCE] = w->last_reduce;
        w->is_reduced = true;
        break;
    default:
        break;
    }
}

static void put_on_pipe(struct waits *w, const struct program *p, const struct program_options *o,
                        struct op *op)
{
    if (is_receive(op) && o->receives_ahead)
        op->lane = LANE_RECEIVE;
    if (!is_send(op))
        return;
    uint32_t slot = program_slot(p, o, op->stage, op->leaf);
    uint32_t *sent = &w->sent[op->kind == OP_SEND_GRADIENT][slot];
    op->lane = LANE_SEND;
    op->after[LANE_SEND] = *sent;
    *sent = (uint32_t)(op - p->ops) + 1;
}

/* Sets the waits of operations that send keys and values around a ring, and of those that use
 * them. */
static void put_in_ring(struct waits *w, const struct program_options *o, struct op *op,
                        uint32_t number)
{
    bool is_layer = op->block > 0 && op->block < o->num_blocks - 1;
    bool is_again = op->kind == OP_RECOMPUTE && is_layer && o->keep != NULL &&
                    o->keep[op->block - 1] == MODEL_KEEP_NOTHING;
    bool uses = op->kind == OP_FORWARD || op->kind == OP_BACKWARD ||
                op->kind == OP_BACKWARD_INPUT || is_again;
    if (o->ring_ahead && is_layer && uses)
        op->after[LANE_RING] = w->ring[op->block];
    if (!o->ring_ahead || op->kind != OP_RING)
        return;
    op->lane = LANE_RING;
    w->ring[op->block] = number;
}

/* The block's next backward waits for a join, too: its buffers are used once at a time. */
static void put_in_reduce(struct waits *w, struct op *op, uint32_t number)
{
    if (op->kind != OP_EXCHANGE && op->kind != OP_JOIN && op->kind != OP_COLLECT)
        return;
    op->lane = LANE_REDUCE;
    for (uint32_t b = 0; b < op->num_blocks && op->kind != OP_COLLECT; b++)
        w->exchange[op->block + b] = number;
    if (op->kind == OP_EXCHANGE)
        w->order[w->num_exchanges++] = number;
    w->last_reduce = number;
}

static void put_copies(struct waits *w, struct op *op, uint32_t number)
{
    if (op->kind == OP_UPDATE)
        op->after[LANE_COPY] = w->copied[op->block];
    if (op->kind != OP_COPY)
        return;
    op->lane = LANE_COPY;
    w->copied[op->block] = number;
}

static int assign(struct program *p, const struct program_options *o)
{
    struct waits w = {
        .gather = calloc(o->num_blocks + 1, sizeof(uint32_t)),
        .exchange = calloc(o->num_blocks + 1, sizeof(uint32_t)),
        .order = calloc(p->num_ops, sizeof(uint32_t)),
        .copied = calloc(o->num_blocks + 1, sizeof(uint32_t)),
        .ring = calloc(o->num_blocks + 1, sizeof(uint32_t)),
        .sent = {calloc(p->num_slots, sizeof(uint32_t)), calloc(p->num_slots, sizeof(uint32_t))}};
    bool is_short = w.gather == NULL || w.exchange == NULL || w.order == NULL || w.copied == NULL ||
                    w.ring == NULL || w.sent[0] == NULL || w.sent[1] == NULL;
    for (uint32_t i = 0; i < p->num_ops && !is_short; i++) {
        struct op *op = &p->ops[i];
        wait_for(&w, o, op);
        if (o->receives_ahead)
            wait_for_stage(p, o, op);
        put_on_pipe(&w, p, o, op);
        put_in_ring(&w, o, op, i + 1);
        put_copies(&w, op, i + 1);
        if (op->kind == OP_GATHER && o->gather_ahead > 0) {
            op->lane = LANE_GATHER;
            w.gather[op->block] = w.last_gather = i + 1;
        } else if (o->exchange_behind > 0 && !w.is_reduced) {
            put_in_reduce(&w, op, i + 1);
        }
    }
    free(w.gather);
    free(w.exchange);
    free(w.order);
    free(w.copied);
    free(w.ring);
    free(w.sent[0]);
    free(w.sent[1]);
    return is_short ? report_error(ERR_MEMORY, NULL, "no memory for the step's program") : 0;
}

int program_overlap(struct program *p, const struct program_options *o)
{
    ERR_TRY(o->gather_ahead > 0 ? reorder(p, o) : 0);
    program_add_calls(p, o);
    return assign(p, o);
}
