/* program.c - from a schedule to the operations of a rank (see program.h).
 *
 * Lowering walks a rank's actions and tracks which blocks are gathered, so that a block that the
 * next action needs is not dropped. */
#include "trainer/plan/program.h"
#include "proto/base/report.h"
#include "trainer/model/model.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[NUM_OP_KINDS] = {
    [OP_COPY] = "copy",
    [OP_ASK_STOP] = "ask_stop",
    [OP_ENCODE] = "encode",
    [OP_READ] = "read",
    [OP_BEGIN] = "begin",
    [OP_GATHER] = "gather",
    [OP_DROP] = "drop",
    [OP_RECEIVE] = "receive",
    [OP_KEYS] = "keys",
    [OP_RING] = "ring",
    [OP_FORWARD] = "forward",
    [OP_LOSS] = "loss",
    [OP_SEND] = "send",
    [OP_RECEIVE_GRADIENT] = "receive_gradient",
    [OP_RECOMPUTE] = "recompute",
    [OP_BACKWARD] = "backward",
    [OP_BACKWARD_INPUT] = "backward_input",
    [OP_BACKWARD_WEIGHT] = "backward_weight",
    [OP_EXCHANGE] = "exchange",
    [OP_JOIN] = "join",
    [OP_COLLECT] = "collect",
    [OP_SEND_GRADIENT] = "send_gradient",
    [OP_FORGET] = "forget",
    [OP_REDUCE] = "reduce",
    [OP_NORM] = "norm",
    [OP_LOSSES] = "losses",
    [OP_UPDATE] = "update",
    [OP_SPREAD] = "spread",
};

static const char *const lane_names[NUM_LANES] = {"compute", "gather", "reduce", "receive",
                                                  "ring",    "send",   "copy"};

const char *op_name(enum op_kind kind)
{
    return names[kind];
}

const char *lane_name(enum lane_of lane)
{
    return lane_names[lane];
}

uint32_t program_stage_of(const struct program_options *o, uint32_t block)
{
    uint32_t stage = 0, last = o->num_blocks - 1;
    block = block > last ? last : block; /* the tied output goes with the head */
    while (block >= o->first_block[stage + 1])
        stage++;
    return stage;
}

bool program_has_state(const struct program_options *o, uint32_t block)
{
    bool is_twin = block == o->num_blocks;
    return program_stage_of(o, block) % o->num_ranks == o->rank &&
           (!is_twin || (o->is_tied && o->num_ranks > 1));
}

bool op_is_batch(const struct op *op)
{
    return op->kind == OP_FORWARD || op->kind == OP_RECOMPUTE || op->kind == OP_BACKWARD ||
           op->kind == OP_BACKWARD_INPUT || op->kind == OP_BACKWARD_WEIGHT || op->kind == OP_UPDATE;
}

uint32_t program_slot(const struct program *p, const struct program_options *o, uint32_t stage,
                      uint32_t leaf)
{
    uint32_t chunk = stage / o->num_ranks;
    uint32_t slots = p->first_slot[chunk + 1] - p->first_slot[chunk];
    return p->first_slot[chunk] + leaf % slots;
}

/* ---- lowering ---- */

struct lowering {
    const struct program_options *o;
    struct program *p;
    bool *is_held;     /* [num_blocks + 1] */
    struct op late[2]; /* OP_COLLECT of buckets whose sums are added to others first */
    uint32_t num_late;
    uint32_t bucket;                /* blocks whose gradients wait for an exchange */
    uint32_t ring_ahead;            /* the layer whose ring runs ahead of its backward; 0: none */
    bool is_full;                   /* no memory for an operation */
    bool is_evaluation;             /* no backward comes */
    bool has_asked;                 /* OP_ASK_STOP is in the program */
    const struct pipe_action *next; /* the next action, or NULL */
};

static void add_op(struct lowering *l, enum op_kind kind, uint32_t stage, uint32_t leaf,
                   uint32_t block)
{
    struct program *p = l->p;
    if (p->num_ops == p->capacity) {
        uint32_t capacity = p->capacity == 0 ? 1024 : 2 * p->capacity;
        struct op *grown = realloc(p->ops, capacity * sizeof(*grown));
        if (grown == NULL) {
            l->is_full = true;
            return;
        }
        p->ops = grown;
        p->capacity = capacity;
    }
    p->ops[p->num_ops++] =
        (struct op){.kind = (uint8_t)kind, .stage = stage, .leaf = leaf, .block = block};
}

/* Adds a transfer to or from the rank that has the stage `stage + delta`. */
static void add_transfer(struct lowering *l, enum op_kind kind, uint32_t stage, uint32_t leaf,
                         int delta)
{
    uint32_t ranks = l->o->num_ranks;
    add_op(l, kind, stage, leaf, PROGRAM_BLOCK_NONE);
    if (!l->is_full)
        l->p->ops[l->p->num_ops - 1].peer = (uint16_t)((stage + ranks + (uint32_t)delta) % ranks);
}

static void gather_block(struct lowering *l, uint32_t stage, uint32_t leaf, uint32_t block,
                         bool is_second)
{
    if (l->is_held[block])
        return;
    add_op(l, OP_GATHER, stage, leaf, block);
    if (!l->is_full)
        l->p->ops[l->p->num_ops - 1].is_second = is_second;
    l->is_held[block] = true;
}

static void drop_block(struct lowering *l, uint32_t stage, uint32_t leaf, uint32_t block)
{
    if (!l->o->drops)
        return;
    add_op(l, OP_DROP, stage, leaf, block);
    l->is_held[block] = false;
}

/* Drops the blocks that are held to the end of the step. */
static void drop_all_blocks(struct lowering *l)
{
    for (uint32_t block = 0; block <= l->o->num_blocks; block++)
        if (l->is_held[block])
            add_op(l, OP_DROP, 0, 0, block);
}

static bool is_in_ring(const struct lowering *l, uint32_t block)
{
    return l->o->has_ring && block > 0 && block < l->o->num_blocks - 1;
}

static void add_second(struct lowering *l, enum op_kind kind, const struct pipe_action *a,
                       uint32_t block)
{
    add_op(l, kind, a->stage, a->leaf, block);
    if (!l->is_full)
        l->p->ops[l->p->num_ops - 1].is_second = true;
}

static bool is_head(const struct lowering *l, uint32_t block)
{
    return block == l->o->num_blocks - 1;
}

/* True if the backward of the same leaf follows: it needs the head's parameters at once. */
static bool is_needed_next(const struct lowering *l, uint32_t stage, uint32_t leaf)
{
    return l->next != NULL && l->next->stage == stage && l->next->leaf == leaf &&
           (l->next->kind == PIPE_BACKWARD || l->next->kind == PIPE_INPUT);
}

static void begin_forward(struct lowering *l, uint32_t stage, uint32_t leaf)
{
    const struct program_options *o = l->o;
    if (o->num_ranks == 1 || !l->has_asked)
        add_op(l, OP_ASK_STOP, stage, leaf, PROGRAM_BLOCK_NONE);
    l->has_asked = true;
    if (stage < o->num_ranks)
        add_op(l, OP_READ, stage, leaf, PROGRAM_BLOCK_NONE);
    add_op(l, OP_BEGIN, stage, leaf, PROGRAM_BLOCK_NONE);
    if (stage > 0)
        add_transfer(l, OP_RECEIVE, stage, leaf, -1);
}

static void lower_forward(struct lowering *l, uint32_t stage, uint32_t leaf)
{
    const struct program_options *o = l->o;
    uint32_t stages = o->num_ranks * o->chunks, head = o->num_blocks - 1;
    for (uint32_t b = o->first_block[stage]; b < o->first_block[stage + 1]; b++) {
        gather_block(l, stage, leaf, b, false);
        if (is_head(l, b) && o->is_tied)
            gather_block(l, stage, leaf, o->num_blocks, false);
        if (is_in_ring(l, b)) {
            add_op(l, OP_KEYS, stage, leaf, b);
            add_op(l, OP_RING, stage, leaf, b);
        }
        add_op(l, OP_FORWARD, stage, leaf, b);
        if (is_head(l, b) && o->has_loss_chunks && l->is_evaluation)
            add_op(l, OP_LOSS, stage, leaf, b); /* with the head's parameters */
        if (is_head(l, b) && is_needed_next(l, stage, leaf))
            continue;
        if (is_head(l, b) && o->is_tied)
            drop_block(l, stage, leaf, o->num_blocks);
        drop_block(l, stage, leaf, b);
    }
    if (stage + 1 < stages)
        add_transfer(l, OP_SEND, stage, leaf, 1);
    else if (!o->has_loss_chunks)
        add_op(l, OP_LOSS, stage, leaf, head);
}

static void add_bucket(struct lowering *l, enum op_kind kind, const struct pipe_action *a,
                       uint32_t block)
{
    add_op(l, kind, a->stage, a->leaf, block);
    if (!l->is_full)
        l->p->ops[l->p->num_ops - 1].num_blocks = l->bucket;
}

/* The sums of a bucket are complete with the last leaf, except those of a tied matrix: there are
 * two of them (C5). */
static void collect_bucket(struct lowering *l, const struct pipe_action *a, uint32_t block)
{
    bool is_tied = l->o->is_tied && (block == 0 || block + l->bucket > l->o->num_blocks);
    add_bucket(l, OP_COLLECT, a, block);
    if (is_tied && !l->is_full)
        l->late[l->num_late++] = l->p->ops[--l->p->num_ops];
}

/* `ends`: end the bucket here, whatever the options say. */
static void add_to_bucket(struct lowering *l, const struct pipe_action *a, uint32_t block,
                          bool ends)
{
    const struct program_options *o = l->o;
    l->bucket++;
    ends = ends || o->ends_bucket == NULL || o->ends_bucket[block] ||
           block == o->first_block[a->stage];
    if (!ends)
        return;
    add_bucket(l, OP_EXCHANGE, a, block);
    if (o->round_leaves > 0 && (a->leaf + 1) % o->round_leaves == 0)
        add_bucket(l, OP_JOIN, a, block);
    if (o->collects && a->leaf + 1 == o->num_leaves)
        collect_bucket(l, a, block);
    l->bucket = 0;
}

static uint8_t kept_of(const struct lowering *l, uint32_t block)
{
    return l->o->keep != NULL ? l->o->keep[block - 1] : MODEL_KEEP_ALL;
}

/* Sends the kept keys and values of the previous layer around for its backward, while this block's
 * backward is computed. */
static void ring_ahead(struct lowering *l, const struct pipe_action *a, uint32_t block)
{
    bool is_here = block > l->o->first_block[a->stage] && block < l->o->num_blocks;
    if (!l->o->ring_ahead || !is_here || !is_in_ring(l, block - 1) ||
        kept_of(l, block - 1) == MODEL_KEEP_NOTHING)
        return;
    add_second(l, OP_RING, a, block - 1);
    l->ring_ahead = block - 1;
}

/* Computes what a backward needs of a layer's forward from the activations that the forward
 * kept. */
static void restore(struct lowering *l, const struct pipe_action *a, uint32_t block)
{
    if (is_in_ring(l, block) && l->ring_ahead != block) {
        if (kept_of(l, block) == MODEL_KEEP_NOTHING)
            add_second(l, OP_KEYS, a, block);
        add_second(l, OP_RING, a, block);
    }
    l->ring_ahead = 0;
}

/* A chunk's logits are discarded with it, so the head's weights get their gradient with its
 * input's. */
static bool is_never_apart(const struct lowering *l, uint32_t block)
{
    return block >= l->o->num_blocks - 1 && l->o->has_loss_chunks;
}

static void lower_block_backward(struct lowering *l, const struct pipe_action *a, uint32_t block)
{
    static const enum op_kind kinds[] = {[PIPE_BACKWARD] = OP_BACKWARD,
                                         [PIPE_INPUT] = OP_BACKWARD_INPUT,
                                         [PIPE_WEIGHT] = OP_BACKWARD_WEIGHT};
    const struct program_options *o = l->o;
    bool is_layer = block > 0 && block < o->num_blocks - 1;
    bool has_input = a->kind != PIPE_WEIGHT && block > 0; /* the embedding needs no parameters */
    bool is_both = a->kind == PIPE_INPUT && is_never_apart(l, block);
    if ((block == 0 && a->kind == PIPE_INPUT) ||
        (a->kind == PIPE_WEIGHT && is_never_apart(l, block)))
        return;
    if (has_input) {
        gather_block(l, a->stage, a->leaf, block, true);
        if (is_layer)
            restore(l, a, block);
        ring_ahead(l, a, block);
        if (is_layer && kept_of(l, block) != MODEL_KEEP_ALL)
            add_op(l, OP_RECOMPUTE, a->stage, a->leaf, block);
    }
    add_op(l, is_both ? OP_BACKWARD : kinds[a->kind], a->stage, a->leaf, block);
    if (a->kind != PIPE_INPUT || is_both)
        add_to_bucket(l, a, block, is_both);
    if (has_input)
        drop_block(l, a->stage, a->leaf, block);
}

static bool needs_gradient(const struct program_options *o, const struct pipe_action *a)
{
    return a->stage + 1 < o->num_ranks * o->chunks && a->kind != PIPE_FORWARD &&
           a->kind != PIPE_WEIGHT;
}

static bool needs_stream(const struct pipe_action *a)
{
    return a->kind == PIPE_FORWARD && a->stage > 0;
}

/* Adds the operations before an action's compute: the drop of a block, receives from other
 * stages. */
static void begin_action(struct lowering *l, const struct pipe_action *a)
{
    if (a->kind == PIPE_FORWARD)
        begin_forward(l, a->stage, a->leaf);
    else if (needs_gradient(l->o, a))
        add_transfer(l, OP_RECEIVE_GRADIENT, a->stage, a->leaf, 1);
}

static void lower_backward(struct lowering *l, const struct pipe_action *a)
{
    const struct program_options *o = l->o;
    for (uint32_t b = o->first_block[a->stage + 1]; b-- > o->first_block[a->stage];) {
        if (is_head(l, b) && o->is_tied)
            lower_block_backward(l, a, o->num_blocks);
        lower_block_backward(l, a, b);
        if (is_head(l, b) && o->has_loss_chunks && a->kind != PIPE_WEIGHT)
            add_op(l, OP_LOSS, a->stage, a->leaf, b);
    }
    if (a->stage > 0 && a->kind != PIPE_WEIGHT)
        add_transfer(l, OP_SEND_GRADIENT, a->stage, a->leaf, -1);
}

/* The most leaves of a chunk that are under way at a time, from the forward to the last half. */
static uint32_t most_under_way(const struct pipe *pipe, uint32_t rank, uint32_t chunk)
{
    uint32_t now = 0, most = 1;
    for (uint32_t i = 0; i < pipe->num_actions[rank]; i++) {
        const struct pipe_action *a = &pipe->actions[rank][i];
        if (a->stage / pipe->num_ranks != chunk)
            continue;
        now += a->kind == PIPE_FORWARD;
        most = now > most ? now : most;
        now -= a->kind == PIPE_BACKWARD || a->kind == PIPE_WEIGHT;
    }
    return most;
}

static int new_program(struct program **out, const struct program_options *o)
{
    struct program *p = calloc(1, sizeof(*p));
    if (p != NULL)
        p->first_slot = calloc(o->chunks + 1, sizeof(*p->first_slot));
    if (p == NULL || p->first_slot == NULL) {
        program_free(p);
        return report_error(ERR_MEMORY, NULL, "no memory for the step's program");
    }
    p->num_leaves = o->num_leaves;
    p->rank = o->rank;
    *out = p;
    return 0;
}

/* Adds an operation for each block with a state, in the order of the state. */
static void add_for_state(struct lowering *l, enum op_kind kind)
{
    for (uint32_t block = 0; block <= l->o->num_blocks; block++)
        if (program_has_state(l->o, block))
            add_op(l, kind, program_stage_of(l->o, block), 0, block);
}

static int lower(struct program *p, const struct program_options *o, const struct pipe *pipe)
{
    struct lowering l = {.o = o, .p = p};
    l.is_held = calloc(o->num_blocks + 1, sizeof(*l.is_held));
    if (l.is_held == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the step's program");
    for (uint32_t c = 0; c < o->chunks; c++) {
        bool is_ahead = o->receives_ahead && c * o->num_ranks + o->rank > 0; /* one more leaf */
        p->first_slot[c + 1] = p->first_slot[c] + most_under_way(pipe, o->rank, c) + is_ahead;
    }
    p->num_slots = p->first_slot[o->chunks];
    p->num_reads = p->first_slot[1];
    bool has_begun = false;
    if (o->copies)
        add_for_state(&l, OP_COPY);
    if (o->encodes)
        add_op(&l, OP_ENCODE, 0, 0, PROGRAM_BLOCK_NONE);
    for (uint32_t i = 0; i < pipe->num_actions[o->rank]; i++) {
        const struct pipe_action *a = &pipe->actions[o->rank][i];
        l.next = i + 1 < pipe->num_actions[o->rank] ? a + 1 : NULL;
        if (!has_begun)
            begin_action(&l, a);
        has_begun = o->receives_ahead && l.next != NULL &&
                    (needs_stream(l.next) || needs_gradient(o, l.next));
        if (has_begun)
            begin_action(&l, l.next);
        if (a->kind == PIPE_FORWARD)
            lower_forward(&l, a->stage, a->leaf);
        else
            lower_backward(&l, a);
    }
    drop_all_blocks(&l);
    add_op(&l, OP_REDUCE, 0, 0, PROGRAM_BLOCK_NONE);
    for (uint32_t i = 0; i < l.num_late; i++) {
        add_op(&l, OP_COLLECT, l.late[i].stage, l.late[i].leaf, l.late[i].block);
        if (!l.is_full)
            p->ops[p->num_ops - 1].num_blocks = l.late[i].num_blocks;
    }
    add_op(&l, OP_NORM, 0, 0, PROGRAM_BLOCK_NONE);
    add_op(&l, OP_LOSSES, 0, 0, PROGRAM_BLOCK_NONE);
    add_for_state(&l, OP_UPDATE);
    if (o->spreads)
        add_op(&l, OP_SPREAD, 0, 0, PROGRAM_BLOCK_NONE);
    free(l.is_held);
    return l.is_full ? report_error(ERR_MEMORY, NULL, "no memory for the step's program")
                     : program_overlap(p, o);
}

int program_build(struct program **out, const struct program_options *o)
{
    struct pipe *pipe = NULL;
    struct program *p = NULL;
    struct pipe_options options = {.num_ranks = o->num_ranks,
                                   .chunks = o->chunks,
                                   .num_leaves = o->num_leaves,
                                   .schedule = o->schedule,
                                   .file = o->file};
    ERR_TRY(pipe_new(&pipe, &options));
    int rc = new_program(&p, o);
    if (rc == 0)
        rc = lower(p, o, pipe);
    if (rc == 0)
        p->bubble = pipe->bubble;
    pipe_free(pipe);
    if (rc != 0) {
        program_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

int program_build_evaluation(struct program **out, const struct program_options *o)
{
    struct program *p = NULL;
    ERR_TRY(new_program(&p, o));
    struct lowering l = {.o = o, .p = p, .is_evaluation = true};
    l.is_held = calloc(o->num_blocks + 1, sizeof(*l.is_held));
    for (uint32_t c = 0; c < o->chunks; c++)
        p->first_slot[c + 1] = c + 1;
    p->num_slots = o->chunks;
    p->num_reads = 1;
    if (o->encodes && l.is_held != NULL)
        add_op(&l, OP_ENCODE, 0, 0, PROGRAM_BLOCK_NONE);
    for (uint32_t c = 0; c < o->chunks && l.is_held != NULL; c++) {
        uint32_t stage = c * o->num_ranks + o->rank;
        begin_forward(&l, stage, 0);
        lower_forward(&l, stage, 0);
        add_op(&l, OP_FORGET, stage, 0, PROGRAM_BLOCK_NONE);
    }
    if (l.is_held != NULL)
        drop_all_blocks(&l);
    bool is_short = l.is_full || l.is_held == NULL;
    free(l.is_held);
    if (is_short) {
        program_free(p);
        return report_error(ERR_MEMORY, NULL, "no memory for the program of an evaluation");
    }
    int rc = program_overlap(p, o);
    if (rc != 0) {
        program_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void program_free(struct program *p)
{
    if (p == NULL)
        return;
    free(p->ops);
    free(p->first_slot);
    free(p);
}

/* ---- printing ---- */

void program_print(const struct program *p, FILE *out)
{
    fprintf(out, "rank %u of the pipeline: %u operations, %u leaves, %u under way at most\n",
            p->rank, p->num_ops, p->num_leaves, p->num_slots);
    for (uint32_t i = 0; i < p->num_ops; i++) {
        const struct op *op = &p->ops[i];
        fprintf(out, "%6u  %-16s stage %u leaf %u", i, names[op->kind], op->stage, op->leaf);
        if (op->block != PROGRAM_BLOCK_NONE)
            fprintf(out, " block %u", op->block);
        if (op->num_blocks > 1)
            fprintf(out, " to %u", op->block + op->num_blocks - 1);
        if (op->kind == OP_SEND || op->kind == OP_RECEIVE || op->kind == OP_SEND_GRADIENT ||
            op->kind == OP_RECEIVE_GRADIENT)
            fprintf(out, " peer %u", op->peer);
        if (op->lane != LANE_COMPUTE)
            fprintf(out, " lane %s", lane_names[op->lane]);
        for (uint32_t lane = 0; lane < NUM_LANES; lane++)
            if (op->after[lane] > 0)
                fprintf(out, " after %u", op->after[lane] - 1);
        fputc('\n', out);
    }
}
