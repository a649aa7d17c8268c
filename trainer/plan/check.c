/* check.c - can the programs of all ranks of a pipeline be run, and do they make a step?
 *
 * The programs are run against each other without arithmetic: each rank advances while the inputs
 * of its next operation exist. A forbidden operation is reported at once. If no rank can advance,
 * the operations that are left wait for ever. */
#include "proto/base/report.h"
#include "trainer/model/model.h"
#include "trainer/plan/axes.h"

#include <stdlib.h>

enum done { FORWARD, INPUT, WEIGHT, EXCHANGED, JOINED, COLLECTED, COPIED, UPDATED, NUM_DONE };

/* Bits of a rank: its codes are made; the operations that end its step are done. */
enum ended { REDUCED = 1, NORMED = 2, COUNTED = 4, SPREAD = 8, ENCODED = 16 };

/* Of a layer: 1 + the leaf whose keys and values are there: this rank's own, all ranks'; 0:
 * none. */
struct ring {
    uint32_t computed, around;
};

struct check {
    const struct program *const *ranks;
    const struct program_options *o;
    uint32_t blocks, leaves, stages;
    bool *done[NUM_DONE]; /* [blocks][leaves] */
    bool *sent[2];        /* down, up: [stages + 1 boundaries][leaves] */
    bool *arrived[2];     /* likewise */
    bool *loss;           /* [leaves] */
    bool *is_held;        /* [num_ranks][blocks] */
    uint8_t *ended;       /* [num_ranks] bits of enum ended */
    /* [num_ranks][blocks] the block's last operation on each lane, as op.after. */
    uint32_t *begun[NUM_LANES];
    uint32_t *latest;   /* [num_ranks][NUM_LANES] the last operation on each lane */
    uint32_t *waited;   /* [num_ranks][NUM_LANES] the operation up to which compute has waited */
    uint32_t *received; /* [num_ranks] the last operation whose receive is done, as op.after */
    uint32_t *from[2];  /* down, up: [num_ranks][slots_max] the last send of each buffer */
    uint32_t slots_max;
    struct ring *ring; /* [num_ranks][blocks] */
    uint32_t *at;      /* [num_ranks] the next operation */
    struct axes *axes;
    const char *reason; /* why an operation is wrong */
};

static bool *of_block(const struct check *c, enum done what, const struct op *op)
{
    return &c->done[what][(size_t)op->block * c->leaves + op->leaf];
}

/* The boundary before (`is_after`: after) an operation's stage. */
static size_t boundary(const struct check *c, const struct op *op, bool is_after)
{
    return (size_t)(op->stage + is_after) * c->leaves + op->leaf;
}

static bool has_stream(const struct check *c, const struct op *op)
{
    if (op->block > c->o->first_block[op->stage])
        return c->done[FORWARD][(size_t)(op->block - 1) * c->leaves + op->leaf];
    return op->stage == 0 || c->arrived[0][boundary(c, op, false)];
}

static bool has_gradient(const struct check *c, const struct op *op)
{
    uint32_t last = c->o->first_block[op->stage + 1] - 1;
    bool is_tied_output = op->block == c->o->num_blocks;
    if (!is_tied_output && op->block < last)
        return c->done[INPUT][(size_t)(op->block + 1) * c->leaves + op->leaf];
    if (op->stage + 1 == c->stages)
        /* The head's backward makes the loss itself. */
        return c->loss[op->leaf] || c->o->has_loss_chunks;
    return c->arrived[1][boundary(c, op, true)];
}

static void set_once(struct check *c, bool *flag, const char *reason)
{
    if (*flag)
        c->reason = reason;
    *flag = true;
}

static bool is_in_order(const struct check *c, enum done what, const struct op *op)
{
    return op->leaf == 0 || *(of_block(c, what, op) - 1);
}

static void check_backward(struct check *c, const struct op *op, bool is_held)
{
    bool has_input = op->kind != OP_BACKWARD_WEIGHT && op->block > 0;
    bool has_weight = op->kind != OP_BACKWARD_INPUT;
    bool was_forward = op->block == c->o->num_blocks || *of_block(c, FORWARD, op);
    if (!was_forward || (op->kind != OP_BACKWARD_WEIGHT && !has_gradient(c, op)))
        c->reason = "it has no gradient to begin with";
    if (has_input && !is_held)
        c->reason = "its parameters are not there";
    if (has_input)
        set_once(c, of_block(c, INPUT, op), "it comes twice");
    if (has_weight && op->block > 0 && !*of_block(c, INPUT, op))
        c->reason = "the gradient of its input is not there";
    if (has_weight && !is_in_order(c, WEIGHT, op))
        c->reason = "the leaf in front has not been through it";
    if (has_weight)
        set_once(c, of_block(c, WEIGHT, op), "it comes twice");
}

/* Checks one block of a bucket. */
static void check_exchange(struct check *c, const struct op *op)
{
    c->reason = !*of_block(c, WEIGHT, op) ? "there is no gradient" : c->reason;
    c->reason = !is_in_order(c, EXCHANGED, op) ? "leaves are out of order" : c->reason;
    set_once(c, of_block(c, EXCHANGED, op), "it comes twice");
    uint32_t round = c->o->round_leaves;
    bool begins = round > 0 && op->leaf > 0 && op->leaf % round == 0;
    if (begins && !*(of_block(c, JOINED, op) - 1))
        c->reason = "the group in front has not been added";
}

static void check_join(struct check *c, const struct op *op)
{
    uint32_t round = c->o->round_leaves;
    bool is_whole = round > 0 && (op->leaf + 1) % round == 0 && *of_block(c, EXCHANGED, op);
    c->reason = !is_whole ? "the sums of the group are not whole" : c->reason;
    set_once(c, of_block(c, JOINED, op), "it comes twice");
}

static void check_collect(struct check *c, const struct op *op, bool is_reduced)
{
    bool is_tied = c->o->is_tied && (op->block == 0 || op->block == c->o->num_blocks);
    bool is_whole =
        op->leaf + 1 == c->leaves && *of_block(c, c->o->round_leaves > 0 ? JOINED : EXCHANGED, op);
    c->reason = !is_whole || (is_tied && !is_reduced) ? "the sums are not whole" : c->reason;
    set_once(c, of_block(c, COLLECTED, op), "it comes twice");
}

/* ---- keys and values around a ring ---- */

static bool keeps_nothing(const struct check *c, uint32_t block)
{
    return c->o->keep != NULL && c->o->keep[block - 1] == MODEL_KEEP_NOTHING;
}

static struct ring *ring_of(const struct check *c, uint32_t rank, uint32_t block)
{
    return &c->ring[(size_t)rank * c->blocks + block];
}

static void check_keys(struct check *c, uint32_t rank, const struct op *op, bool is_held)
{
    struct ring *ring = ring_of(c, rank, op->block);
    c->reason = !is_held ? "its parameters are not there" : c->reason;
    c->reason = !has_stream(c, op) ? "the block in front has not been computed" : c->reason;
    c->reason = ring->computed > 0 || ring->around > 0 ? "it comes twice" : c->reason;
    ring->computed = op->leaf + 1;
}

/* There is room for the keys and values of two layers at a time. */
static void check_ring(struct check *c, uint32_t rank, const struct op *op)
{
    struct ring *ring = ring_of(c, rank, op->block);
    bool is_kept = !keeps_nothing(c, op->block) && *of_block(c, FORWARD, op);
    if (ring->computed != op->leaf + 1 && !is_kept)
        c->reason = "there are no keys to send";
    if (ring->around > 0)
        c->reason = "it comes twice";
    for (uint32_t b = op->block % 2; b < c->blocks; b += 2)
        if (b != op->block && ring_of(c, rank, b)->around > 0)
            c->reason = "there is no room for its keys";
    *ring = (struct ring){.around = op->leaf + 1};
}

/* A layer's forward, its full recomputation and its backward of the input use the ring. */
static void use_ring(struct check *c, uint32_t rank, const struct op *op)
{
    bool is_layer = op->block > 0 && op->block < c->o->num_blocks - 1;
    bool is_again = op->kind == OP_RECOMPUTE && is_layer && keeps_nothing(c, op->block);
    bool uses = op->kind == OP_FORWARD || is_again || op->kind == OP_BACKWARD ||
                op->kind == OP_BACKWARD_INPUT;
    if (!c->o->has_ring || !is_layer || !uses)
        return;
    struct ring *ring = ring_of(c, rank, op->block);
    size_t at = (size_t)rank * c->blocks + op->block;
    if (ring->around != op->leaf + 1)
        c->reason = "keys and values have not come";
    if (c->begun[LANE_RING][at] > c->waited[(size_t)rank * NUM_LANES + LANE_RING])
        c->reason = "it does not wait for keys and values";
    if (!is_again)
        ring->around = 0;
}

static void check_block(struct check *c, uint32_t rank, const struct op *op)
{
    bool *is_held = &c->is_held[(size_t)rank * c->blocks + op->block], is_made;
    use_ring(c, rank, op);
    switch (op->kind) {
    case OP_KEYS:
        check_keys(c, rank, op, *is_held);
        break;
    case OP_RING:
        check_ring(c, rank, op);
        break;
    case OP_GATHER:
        if (c->o->encodes && (c->ended[rank] & ENCODED) == 0)
            c->reason = "its codes are not made";
        set_once(c, is_held, "its parameters are there already");
        break;
    case OP_DROP:
        c->reason = *is_held ? c->reason : "its parameters are not there";
        *is_held = false;
        break;
    case OP_FORWARD:
        c->reason = !has_stream(c, op) ? "the block in front has not been computed" : c->reason;
        c->reason = !*is_held ? "its parameters are not there" : c->reason;
        set_once(c, of_block(c, FORWARD, op), "it comes twice");
        break;
    case OP_RECOMPUTE:
        c->reason = !*is_held ? "its parameters are not there" : c->reason;
        break;
    case OP_COPY:
        set_once(c, of_block(c, COPIED, op), "it comes twice");
        break;
    case OP_UPDATE:
        set_once(c, of_block(c, UPDATED, op), "it comes twice");
        break;
    case OP_LOSS:
        is_made = *of_block(c, c->o->has_loss_chunks ? WEIGHT : FORWARD, op);
        c->reason = !is_made ? "there is no loss yet" : c->reason;
        set_once(c, &c->loss[op->leaf], "it comes twice");
        break;
    case OP_EXCHANGE:
        for (uint32_t b = 0; b < op->num_blocks; b++)
            check_exchange(c, &(struct op){.leaf = op->leaf, .block = op->block + b});
        break;
    case OP_JOIN:
        for (uint32_t b = 0; b < op->num_blocks; b++)
            check_join(c, &(struct op){.leaf = op->leaf, .block = op->block + b});
        break;
    case OP_COLLECT:
        for (uint32_t b = 0; b < op->num_blocks; b++)
            check_collect(c, &(struct op){.leaf = op->leaf, .block = op->block + b},
                          c->ended[rank] & REDUCED);
        break;
    default:
        check_backward(c, op, *is_held);
        break;
    }
}

static bool is_send(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_SEND_GRADIENT;
}

static bool is_receive(const struct op *op)
{
    return op->kind == OP_RECEIVE || op->kind == OP_RECEIVE_GRADIENT;
}

/* Is the stage on the other side of the boundary the peer's? */
static void check_peer(struct check *c, const struct op *op)
{
    bool is_after = op->kind == OP_SEND || op->kind == OP_RECEIVE_GRADIENT;
    uint32_t ranks = c->o->num_ranks, other = op->stage + (is_after ? 1 : ranks - 1);
    if (op->peer != other % ranks)
        c->reason = "its peer has not the stage on the other side";
}

/* The flag that says whether the data of a send or receive has been sent. */
static bool *of_transfer(const struct check *c, bool *const flags[2], const struct op *op)
{
    bool is_up = op->kind == OP_SEND_GRADIENT || op->kind == OP_RECEIVE_GRADIENT;
    bool is_after = op->kind == OP_SEND || op->kind == OP_RECEIVE_GRADIENT;
    return &flags[is_up][boundary(c, op, is_after)];
}

static void send(struct check *c, uint32_t rank, const struct op *op)
{
    uint32_t slot = program_slot(c->ranks[rank], c->o, op->stage, op->leaf);
    uint32_t *last = &c->from[op->kind == OP_SEND_GRADIENT][rank * c->slots_max + slot];
    if (op->after[LANE_SEND] != *last)
        c->reason = "it does not wait for what was sent from its buffer before";
    *last = c->at[rank] + 1;
    set_once(c, of_transfer(c, c->sent, op), "it comes twice");
}

/* Returns false if the data has not been sent yet. */
static bool receive(struct check *c, const struct op *op)
{
    if (!*of_transfer(c, c->sent, op))
        return false;
    set_once(c, of_transfer(c, c->arrived, op), "it comes twice");
    return true;
}

/* Returns false if an operation waits for data between stages. */
static bool has_transfers(struct check *c, uint32_t rank, const struct op *op)
{
    const struct op *ops = c->ranks[rank]->ops;
    uint32_t sent = op->after[LANE_SEND], up_to = op->after[LANE_RECEIVE];
    if ((sent > c->at[rank] || up_to > c->at[rank]) && c->reason == NULL) {
        c->reason = "it waits for what comes behind it";
        return true;
    }
    for (; c->received[rank] < up_to; c->received[rank]++)
        if (ops[c->received[rank]].lane == LANE_RECEIVE && !receive(c, &ops[c->received[rank]]))
            return false;
    if (sent == 0)
        return true;
    return *of_transfer(c, c->arrived, &ops[sent - 1]);
}

/* Checks what an operation needs of other lanes, its own waits included. */
static void check_lanes(struct check *c, uint32_t rank, const struct op *op)
{
    uint32_t *waited = c->waited + (size_t)rank * NUM_LANES;
    uint32_t *latest = c->latest + (size_t)rank * NUM_LANES;
    size_t at = (size_t)rank * c->blocks + op->block;
    bool is_backward = op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_INPUT;
    bool reads = op->kind == OP_KEYS || op->kind == OP_FORWARD || op->kind == OP_RECOMPUTE ||
                 (is_backward && op->block > 0); /* the embedding's backward needs no parameters */
    bool writes = op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_WEIGHT;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        if (op->after[lane] > c->at[rank])
            c->reason = "it waits for what comes behind it";
        waited[lane] = op->after[lane] > waited[lane] ? op->after[lane] : waited[lane];
        if (op->kind == OP_REDUCE && lane != LANE_COPY && waited[lane] < latest[lane])
            c->reason = "a lane is still at work";
    }
    if (op->block == PROGRAM_BLOCK_NONE)
        return;
    if ((reads || op->kind == OP_DROP) && c->begun[LANE_GATHER][at] > waited[LANE_GATHER])
        c->reason = "it does not wait for the gather of its parameters";
    if (writes && c->begun[LANE_REDUCE][at] > waited[LANE_REDUCE])
        c->reason = "it does not wait for the exchange of the gradient that it overwrites";
    if (op->kind == OP_UPDATE && c->begun[LANE_COPY][at] > waited[LANE_COPY])
        c->reason = "it does not wait for the copy of what it overwrites";
    if (op->lane == LANE_COMPUTE)
        return;
    latest[op->lane] = c->at[rank] + 1;
    for (uint32_t b = 0; b == 0 || b < op->num_blocks; b++)
        c->begun[op->lane][at + b] = latest[op->lane];
}

/* Checks an operation that ends a step: its inputs, and that it comes once. */
static void check_end(struct check *c, uint32_t rank, const struct op *op)
{
    static const struct {
        uint8_t needs, ends;
        const char *reason;
    } rules[NUM_OP_KINDS] = {
        [OP_ENCODE] = {0, ENCODED, NULL},
        [OP_REDUCE] = {0, REDUCED, NULL},
        [OP_NORM] = {REDUCED, NORMED, "the sums are not whole"},
        [OP_LOSSES] = {0, COUNTED, NULL},
        [OP_UPDATE] = {NORMED | COUNTED, 0, "norm and loss are not known"},
        [OP_SPREAD] = {NORMED | COUNTED, SPREAD, "nothing has been updated"},
    };
    uint8_t *ended = &c->ended[rank], needs = rules[op->kind].needs, ends = rules[op->kind].ends;
    if ((*ended & needs) != needs)
        c->reason = rules[op->kind].reason;
    if ((*ended & ends) != 0)
        c->reason = "it comes twice";
    if (op->kind == OP_UPDATE && (*ended & SPREAD) != 0)
        c->reason = "the parameters have been spread";
    *ended |= ends;
}

/* Runs one operation of a rank. Returns false if it has to wait. */
static bool advance(struct check *c, uint32_t rank)
{
    const struct op *op = &c->ranks[rank]->ops[c->at[rank]];
    if (!has_transfers(c, rank, op))
        return false;
    if (is_receive(op) || is_send(op))
        check_peer(c, op);
    if (is_receive(op))
        return op->lane == LANE_RECEIVE || receive(c, op);
    if (is_send(op)) {
        send(c, rank, op);
        return true;
    }
    check_lanes(c, rank, op);
    if (op->block != PROGRAM_BLOCK_NONE)
        check_block(c, rank, op);
    check_end(c, rank, op);
    const char *reason = axes_run(c->axes, rank, op);
    c->reason = c->reason == NULL ? reason : c->reason;
    return true;
}

static int refuse_program(const struct check *c, uint32_t rank, const char *reason)
{
    const struct op *op = &c->ranks[rank]->ops[c->at[rank]];
    return report_error(ERR_INVALID, "correct the file of the schedule, or report this defect",
                        "rank %u of the pipeline, operation %u, %s of stage %u, leaf %u, block %d: "
                        "%s",
                        rank, c->at[rank], op_name(op->kind), op->stage, op->leaf, (int)op->block,
                        reason);
}

/* Runs a rank until it has to wait. */
static int run_rank(struct check *c, uint32_t rank, bool *out_moved)
{
    while (c->at[rank] < c->ranks[rank]->num_ops && advance(c, rank)) {
        if (c->reason != NULL)
            return refuse_program(c, rank, c->reason);
        c->at[rank]++;
        *out_moved = true;
    }
    return 0;
}

static int run_all(struct check *c)
{
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (uint32_t r = 0; r < c->o->num_ranks; r++)
            ERR_TRY(run_rank(c, r, &has_moved));
    }
    for (uint32_t r = 0; r < c->o->num_ranks; r++)
        if (c->at[r] < c->ranks[r]->num_ops)
            return refuse_program(c, r, "what it waits for is never sent");
    return 0;
}

/* The next operation in which all ranks of a pipeline call, or the end. */
static uint32_t next_common(const struct program *p, uint32_t at)
{
    for (; at < p->num_ops; at++)
        for (uint32_t i = 0; i < OP_CALLS_MAX; i++) {
            const struct call *call = &p->ops[at].calls[i];
            bool is_of_all = call->kind != CALL_NONE && call->kind != CALL_SWAP;
            if (is_of_all && (mesh_group_axes(call->group) >> AXIS_PP & 1))
                return at;
        }
    return at;
}

/* An operation that only one rank calls waits for ever. */
static int check_common(struct check *c, uint32_t rank)
{
    const struct program *first = c->ranks[0], *p = c->ranks[rank];
    uint32_t expected = next_common(first, 0), at = next_common(p, 0);
    while (expected < first->num_ops && at < p->num_ops &&
           first->ops[expected].kind == p->ops[at].kind) {
        expected = next_common(first, expected + 1);
        at = next_common(p, at + 1);
    }
    if (expected == first->num_ops && at == p->num_ops)
        return 0;
    uint32_t who = at < p->num_ops ? rank : 0;
    c->at[who] = who > 0 ? at : expected;
    return refuse_program(c, who, "another rank of the pipeline does not call with it over pp");
}

/* Every block is updated. Where a save may be under way, every block is copied. */
static int check_updates(const struct check *c)
{
    struct program_options o = *c->o;
    for (uint32_t r = 0; r < o.num_ranks; r++)
        if (c->o->spreads != ((c->ended[r] & SPREAD) != 0))
            return report_error(ERR_INVALID, NULL, "rank %u of the pipeline spreads %s", r,
                                c->o->spreads ? "nothing" : "what all have");
    for (uint32_t block = 0; block < c->blocks; block++) {
        o.rank = program_stage_of(&o, block) % o.num_ranks;
        size_t at = (size_t)block * c->leaves;
        if (!program_has_state(&o, block))
            continue;
        if (!c->done[UPDATED][at] || c->done[COPIED][at] != o.copies)
            return report_error(ERR_INVALID, NULL, "the state of block %u is not %s", block,
                                c->done[UPDATED][at] ? "copied as a save needs it" : "updated");
        const char *reason = axes_end(c->axes, block);
        if (reason != NULL)
            return report_error(ERR_INVALID, NULL, "block %u behind the step: %s", block, reason);
    }
    return 0;
}

static int check_whole(struct check *c)
{
    ERR_TRY(check_updates(c));
    for (uint32_t r = 1; r < c->o->num_ranks; r++)
        ERR_TRY(check_common(c, r));
    for (uint32_t leaf = 0; leaf < c->leaves; leaf++)
        if (!c->loss[leaf])
            return report_error(ERR_INVALID, NULL, "the loss of leaf %u is never made", leaf);
    for (uint32_t block = 0; block < c->blocks; block++)
        for (uint32_t leaf = 0; leaf < c->leaves; leaf++)
            if (!c->done[EXCHANGED][(size_t)block * c->leaves + leaf])
                return report_error(ERR_INVALID, NULL,
                                    "no gradient of block %u for leaf %u is exchanged", block,
                                    leaf);
    for (uint32_t block = 0; block < c->blocks && c->o->round_leaves > 0; block++)
        if (!c->done[JOINED][(size_t)(block + 1) * c->leaves - 1])
            return report_error(ERR_INVALID, NULL, "the last group of block %u is not added",
                                block);
    for (uint32_t block = 0; block < c->blocks && c->o->collects; block++)
        if (!c->done[COLLECTED][(size_t)(block + 1) * c->leaves - 1])
            return report_error(ERR_INVALID, NULL, "the sums of block %u are not collected", block);
    return 0;
}

static bool allocate(struct check *c)
{
    size_t all = (size_t)c->blocks * c->leaves, boundaries = (size_t)(c->stages + 1) * c->leaves;
    bool is_whole = true;
    for (uint32_t i = 0; i < NUM_DONE; i++)
        is_whole = (c->done[i] = calloc(all, sizeof(bool))) != NULL && is_whole;
    for (uint32_t i = 0; i < 2; i++) {
        is_whole = (c->sent[i] = calloc(boundaries, sizeof(bool))) != NULL && is_whole;
        is_whole = (c->arrived[i] = calloc(boundaries, sizeof(bool))) != NULL && is_whole;
    }
    c->loss = calloc(c->leaves, sizeof(bool));
    c->is_held = calloc((size_t)c->o->num_ranks * c->blocks, sizeof(bool));
    c->ended = calloc(c->o->num_ranks, sizeof(*c->ended));
    c->axes = axes_new(c->o);
    is_whole = is_whole && c->ended != NULL && c->axes != NULL;
    c->at = calloc(c->o->num_ranks, sizeof(*c->at));
    size_t blocks = (size_t)c->o->num_ranks * c->blocks, lanes = c->o->num_ranks * NUM_LANES;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        is_whole = (c->begun[lane] = calloc(blocks, sizeof(uint32_t))) != NULL && is_whole;
    c->latest = calloc(lanes, sizeof(*c->latest));
    c->ring = calloc(blocks, sizeof(*c->ring));
    is_whole = is_whole && c->ring != NULL;
    c->waited = calloc(lanes, sizeof(*c->waited));
    c->received = calloc(c->o->num_ranks, sizeof(*c->received));
    for (uint32_t r = 0; r < c->o->num_ranks; r++)
        c->slots_max =
            c->ranks[r]->num_slots > c->slots_max ? c->ranks[r]->num_slots : c->slots_max;
    for (uint32_t i = 0; i < 2; i++)
        is_whole = (c->from[i] =
                        calloc((size_t)c->o->num_ranks * c->slots_max, sizeof(uint32_t))) != NULL &&
                   is_whole;
    is_whole = is_whole && c->received != NULL && c->latest != NULL && c->waited != NULL;
    return is_whole && c->loss != NULL && c->is_held != NULL && c->at != NULL;
}

int program_check(const struct program *const *ranks, const struct program_options *o)
{
    struct check c = {.ranks = ranks,
                      .o = o,
                      .blocks = o->num_blocks + o->is_tied,
                      .leaves = o->num_leaves,
                      .stages = o->num_ranks * o->chunks};
    int rc = allocate(&c) ? run_all(&c)
                          : report_error(ERR_MEMORY, NULL, "no memory to check the programs");
    if (rc == 0)
        rc = check_whole(&c);
    for (uint32_t i = 0; i < NUM_DONE; i++)
        free(c.done[i]);
    for (uint32_t i = 0; i < 2; i++) {
        free(c.sent[i]);
        free(c.arrived[i]);
        free(c.from[i]);
    }
    free(c.loss);
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        free(c.begun[lane]);
    free(c.latest);
    free(c.ring);
    free(c.waited);
    free(c.received);
    free(c.is_held);
    free(c.ended);
    free(c.at);
    axes_free(c.axes);
    return rc;
}
