/* execute.c - runs the program of a step, operation by operation.
 *
 * The thread that walks the program computes. It posts gathers and exchanges on lanes, each a
 * thread with a queue, and waits where the program says `after`. The lane's thread waits until the
 * device has finished the earlier compute; meanwhile more work is queued. If communicators do not
 * allow threads, a posted operation ends at once: the same order and buffers, without overlap. Only
 * the walking thread takes and frees buffers: it takes them when it posts an operation, and frees
 * them after it has waited for it.
 *
 * The same walk without compute records the memory plan: each operation takes and frees the buffers
 * that it needs. The caller's `at_op` does the work of the step outside the model: tokens, losses,
 * the norm, stopping.
 *
 * Data for another stage is copied to a send buffer; there is one for each leaf under way, for the
 * whole run. A send waits for its receiver only when its buffer is needed again. Data from another
 * stage is received on a lane, directly where it is read.
 *
 * The save that is under way copies the state (parallel.h, struct step_copies).
 *
 * An error of an operation ends the waits of all lanes of all ranks at once (comm_fail): otherwise
 * other ranks wait for this one for ever, and lanes of this rank for them. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/comm/flight.h"
#include "trainer/parallel/execution.h"

#include <stdlib.h>
#include <string.h>

struct transfer {
    void *buffer;
    struct comm *comm; /* of the last send */
    struct comm_request request;
    bool is_posted;
};

struct transfers {
    uint32_t num_slots;
    struct transfer *of[NUM_WAYS]; /* [num_slots] */
};

/* ---- between stages ---- */

int transfers_new(struct parallel *p)
{
    struct transfers *t = calloc(1, sizeof(*t));
    p->run.transfers = t;
    if (t == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for transfers between stages");
    t->num_slots = p->run.program->num_slots;
    for (uint32_t d = 0; d < NUM_WAYS; d++) {
        t->of[d] = calloc(t->num_slots, sizeof(*t->of[d]));
        if (t->of[d] == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for transfers between stages");
    }
    return 0;
}

void transfers_free(struct parallel *p)
{
    if (p->run.transfers == NULL)
        return;
    for (uint32_t d = 0; d < NUM_WAYS; d++)
        free(p->run.transfers->of[d]);
    free(p->run.transfers);
}

void transfers_take(struct parallel *p)
{
    static const char *const names[NUM_WAYS] = {"stream to send", "gradient to send"};
    for (uint32_t d = 0; d < NUM_WAYS && p->run.transfers != NULL; d++)
        for (uint32_t slot = 0; slot < p->run.transfers->num_slots; slot++)
            p->run.transfers->of[d][slot].buffer =
                memory_take(p->plan->memory, names[d], slot, model_stream_bytes(p->plan->model));
}

/* Both ends number a boundary by the stage after it. */
static int tag_of(const struct program_options *o, const struct op *op, enum direction d,
                  uint32_t boundary)
{
    uint32_t stages = o->num_ranks * o->chunks;
    return (int)(((op->leaf % 4096) * (stages + 1) + boundary) * NUM_WAYS + d) + COMM_TAG_STAGES;
}

static int settle(struct transfer *transfer)
{
    if (!transfer->is_posted)
        return 0;
    transfer->is_posted = false;
    return comm_wait(transfer->comm, &transfer->request);
}

static bool is_live(const struct parallel *p, uint32_t slot)
{
    return model_is_active(p->plan->model, slot) && !memory_is_recording(p->plan->memory);
}

static int run_keys(struct parallel *p, const struct op *op, uint32_t slot)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    gather_pointers(&p->exchange, op->block, w);
    return model_keys(p->plan->model, slot, op->block, op->is_second, w);
}

/* Waits until an operation's send was received. */
static int settle_send(struct parallel *p, const struct program *program, const struct op *op)
{
    enum direction d = op->kind == OP_SEND ? WAY_DOWN : WAY_UP;
    uint32_t slot = program_slot(program, &p->plan->shape, op->stage, op->leaf);
    return settle(&p->run.transfers->of[d][slot]);
}

static int send(struct parallel *p, const struct op *op, uint32_t slot, enum direction d,
                const void *data)
{
    struct transfer *transfer = &p->run.transfers->of[d][slot];
    uint32_t boundary = op->stage + (d == WAY_DOWN ? 1 : 0), peer;
    size_t bytes = model_stream_bytes(p->plan->model);
    CHECK(!transfer->is_posted); /* the program waits for the previous send */
    lane_copy(p->plan->lane, transfer->buffer, data, bytes);
    transfer->comm = channel_to_send(&p->exchange, op, boundary, &peer);
    transfer->is_posted = true;
    return comm_send(transfer->comm, peer, tag_of(&p->plan->shape, op, d, boundary),
                     transfer->buffer, bytes, &transfer->request);
}

static int run_send(struct parallel *p, const struct op *op, uint32_t slot)
{
    struct model *m = p->plan->model;
    uint32_t next = p->plan->first_block[op->stage + 1];
    int rc = 0;
    if (op->kind == OP_SEND) {
        model_close_stream(m, slot, next);
        rc = is_live(p, slot) ? send(p, op, slot, WAY_DOWN, model_stream(m, slot, next)) : 0;
        model_give_stream(m, slot, next);
        return rc;
    }
    rc = is_live(p, slot) ? send(p, op, slot, WAY_UP, model_gradient(m, slot)) : 0;
    model_give_gradient(m, slot);
    return rc;
}

/* Takes the buffer that a receive fills and compute reads. */
static void receive_take(struct parallel *p, const struct op *op, uint32_t slot)
{
    if (op->kind == OP_RECEIVE)
        (void)model_take_stream(p->plan->model, slot, p->plan->first_block[op->stage]);
    else
        (void)model_take_gradient(p->plan->model, slot);
}

static int receive_run(struct parallel *p, struct lane *lane, const struct op *op, uint32_t slot)
{
    const struct model *m = p->plan->model;
    enum direction d = op->kind == OP_RECEIVE ? WAY_DOWN : WAY_UP;
    void *to = d == WAY_DOWN ? model_stream(m, slot, p->plan->first_block[op->stage])
                             : model_gradient(m, slot);
    uint32_t boundary = op->stage + (d == WAY_UP ? 1 : 0), peer;
    struct comm *comm = channel_to_receive(&p->exchange, op, boundary, &peer);
    if (!model_is_active(m, slot))
        return 0;
    return comm_receive_on(comm, peer, tag_of(&p->plan->shape, op, d, boundary), to,
                           model_stream_bytes(m), lane, lane_name(op->lane));
}

static int settle_all(struct parallel *p)
{
    for (uint32_t d = 0; d < NUM_WAYS && p->run.transfers != NULL; d++)
        for (uint32_t slot = 0; slot < p->run.transfers->num_slots; slot++)
            ERR_TRY(settle(&p->run.transfers->of[d][slot]));
    return 0;
}

/* ---- lanes beside compute ---- */

#define UNDER_WAY_MAX 64u /* of a lane; more than gather_ahead and exchange_behind allow */

struct side_ring {
    struct under_way {
        const struct op *op;
        uint32_t after; /* 1 + the operation's index, as op.after counts */
        struct mark mark;
    } ops[UNDER_WAY_MAX]; /* in the order of posting */
    uint32_t first, num;
};

struct side_lanes {
    struct device *device;
    struct lane *here[NUM_LANES]; /* on the rank's device: a lane's thread posts its work there */
    struct lane *of[NUM_LANES];
    struct mark ready[NUM_LANES][UNDER_WAY_MAX]; /* of compute, before each operation under way */
};

struct side_work {
    struct parallel *p;
    const struct program *program; /* it outlives the step */
    const struct op *op;
    const struct mark *ready;
    uint32_t slot;
};

static void use_lane(struct parallel *p, enum group group, enum lane_of lane, bool is_beside)
{
    struct comm *comm = p->plan->mesh.of[group];
    if (comm == NULL)
        return;
    comm->lane = lane_name(lane);
    if (is_beside)
        comm->device_lane = p->run.sides->here[lane];
}

int side_lanes_open(struct parallel *p)
{
    bool has_sides = p->plan->shape.gather_ahead + p->plan->shape.exchange_behind > 0 ||
                     p->plan->shape.receives_ahead || p->plan->shape.ring_ahead;
    bool is_queued = (p->plan->mesh.world->ops->flags & COMM_THREADS) != 0 &&
                     (p->plan->device->ops->flags & DEVICE_DRY) == 0;
    if (!has_sides)
        return 0;
    p->run.sides = calloc(1, sizeof(*p->run.sides));
    if (p->run.sides == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for lanes");
    ERR_TRY(device_open(&p->run.sides->device, &device_cpu,
                        &(struct device_options){.is_queued = is_queued}));
    for (uint32_t lane = LANE_COMPUTE + 1; lane < LANE_SEND; lane++) {
        ERR_TRY(lane_open(&p->run.sides->of[lane], p->run.sides->device, lane_name(lane),
                          LANE_COMMUNICATES));
        ERR_TRY(lane_open(&p->run.sides->here[lane], p->plan->device, lane_name(lane),
                          LANE_COMMUNICATES));
    }
    use_lane(p, GROUP_SHARD, LANE_GATHER, p->plan->shape.gather_ahead > 0);
    use_lane(p, GROUP_RING, LANE_RING, p->plan->shape.ring_ahead);
    use_lane(p, GROUP_SUMS, LANE_REDUCE, p->plan->shape.exchange_behind > 0);
    use_lane(p, GROUP_OWNERS, LANE_REDUCE, p->plan->shape.exchange_behind > 0);
    use_lane(p, GROUP_REPLICA, LANE_REDUCE, p->plan->shape.exchange_behind > 0);
    use_lane(p, GROUP_REPLICAS, LANE_REDUCE, p->plan->shape.exchange_behind > 0);
    return 0;
}

void side_lanes_close(struct parallel *p)
{
    if (p->run.sides == NULL)
        return;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        lane_close(p->run.sides->of[lane]);
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        lane_close(p->run.sides->here[lane]);
    device_close(p->run.sides->device);
    free(p->run.sides);
    p->run.sides = NULL;
}

/* The lane for the flight recorder: the compute thread calls sends. */
static enum lane_of thread_of(const struct op *op)
{
    return op->lane == LANE_SEND ? LANE_COMPUTE : op->lane;
}

static struct flight_place place_of(const struct program *program, const struct op *op)
{
    return (struct flight_place){.what = op_name(op->kind),
                                 .index = (uint32_t)(op - program->ops),
                                 .stage = op->stage,
                                 .leaf = op->leaf,
                                 .block = op->block};
}

static bool find_next(const void *user, const char *lane, uint32_t index, struct flight_place *out)
{
    const struct program *program = user;
    for (; index < program->num_ops; index++) {
        const struct op *op = &program->ops[index];
        if (strcmp(lane_name(thread_of(op)), lane) != 0)
            continue;
        *out = place_of(program, op);
        return true;
    }
    return false;
}

static void begin_op(struct parallel *p, const struct program *program, const struct op *op,
                     struct lane *lane)
{
    struct flight_place place = place_of(program, op);
    flight_enter_op(p->plan->mesh.world->flight, lane_name(thread_of(op)), &place);
    observe(p, op, lane, false);
}

static void end_op(struct parallel *p, const struct op *op, struct lane *lane)
{
    observe(p, op, lane, true);
    flight_leave_op();
}

static void take_for(struct parallel *p, const struct op *op, uint32_t slot)
{
    if (op->kind == OP_GATHER)
        gather_take(&p->exchange, op->block, op->is_second);
    else if (op->kind == OP_EXCHANGE)
        reduce_take(&p->exchange, op->block, op->num_blocks);
    else if (op->kind == OP_JOIN)
        join_take(&p->exchange, op->block, op->num_blocks);
    else if (op->kind == OP_COLLECT)
        collect_take(&p->exchange, op->block, op->num_blocks);
    else if (op->kind == OP_RING)
        model_ring_take(p->plan->model, op->block);
    else
        receive_take(p, op, slot);
}

static int run_for(struct parallel *p, struct lane *lane, const struct op *op, uint32_t slot)
{
    if (op->kind == OP_GATHER)
        return gather_run(&p->exchange, lane, op);
    if (op->kind == OP_EXCHANGE)
        return reduce_run(&p->exchange, lane, op);
    if (op->kind == OP_JOIN)
        return join_run(&p->exchange, lane, op);
    if (op->kind == OP_COLLECT)
        return collect_run(&p->exchange, lane, op);
    if (op->kind == OP_RING)
        return model_ring_run(p->plan->model, lane, comm_of(&p->exchange, op, CALL_AROUND), slot,
                              op->block);
    return receive_run(p, lane, op, slot);
}

/* The operation that reads received data frees its buffer. */
static void give_for(struct parallel *p, const struct op *op)
{
    if (op->kind == OP_GATHER)
        gather_give(&p->exchange, op->block);
    else if (op->kind == OP_EXCHANGE)
        reduce_give(&p->exchange, op->block, op->num_blocks);
    else if (op->kind == OP_JOIN)
        join_give(&p->exchange, op->block, op->num_blocks);
    else if (op->kind == OP_COLLECT)
        collect_give(&p->exchange, op->block, op->num_blocks);
    else if (op->kind == OP_RING)
        model_ring_give(p->plan->model, op->block);
}

static int run_side_work(void *args)
{
    const struct side_work *work = args;
    struct lane *lane = work->p->run.sides->here[work->op->lane];
    lane_wait(lane, work->ready);
    int rc = lane_settle(lane); /* on this thread: compute continues, ahead of its device */
    if (rc == 0) {
        begin_op(work->p, work->program, work->op, lane);
        rc = run_for(work->p, lane, work->op, work->slot);
    }
    if (rc == 0)
        rc = lane_settle(lane); /* a wait for the thread's mark includes this work */
    if (rc != 0)                /* fail at once: other ranks may be waiting for this rank */
        return comm_fail(work->p->plan->mesh.world, rc);
    end_op(work->p, work->op, lane);
    return 0;
}

static void post_side(struct parallel *p, const struct program *program, struct side_ring *ring,
                      const struct op *op)
{
    uint32_t slot = program_slot(program, &p->plan->shape, op->stage, op->leaf);
    CHECK(ring->num < UNDER_WAY_MAX);
    uint32_t place = (ring->first + ring->num++) % UNDER_WAY_MAX;
    struct under_way *at = &ring->ops[place];
    *at = (struct under_way){.op = op, .after = (uint32_t)(op - program->ops) + 1};
    take_for(p, op, slot);
    if (memory_is_recording(p->plan->memory))
        return;
    struct lane *lane = p->run.sides->of[op->lane];
    struct mark *ready = &p->run.sides->ready[op->lane][place];
    lane_mark(p->plan->lane, ready);
    lane_call(lane, run_side_work, &(struct side_work){p, program, op, ready, slot},
              sizeof(struct side_work));
    lane_mark(lane, &at->mark);
}

/* Waits for a lane's operations up to `after`. */
static int settle_side(struct parallel *p, struct side_ring *ring, uint32_t lane, uint32_t after)
{
    while (ring->num > 0 && ring->ops[ring->first].after <= after) {
        struct under_way *at = &ring->ops[ring->first];
        if (!memory_is_recording(p->plan->memory))
            ERR_TRY(lane_settle_mark(p->run.sides->of[lane], &at->mark));
        give_for(p, at->op);
        ring->first = (ring->first + 1) % UNDER_WAY_MAX;
        ring->num--;
    }
    return 0;
}

/* Runs an operation of another lane on the compute thread. */
static int run_here(struct parallel *p, const struct op *op, uint32_t slot)
{
    take_for(p, op, slot);
    int rc = memory_is_recording(p->plan->memory) ? 0 : run_for(p, p->plan->lane, op, slot);
    give_for(p, op);
    return rc;
}

/* ---- a save's copies ---- */

void parallel_note_copy(struct parallel *p, const struct op *op, bool is_end)
{
    observe(p, op, NULL, is_end);
}

static void post_copy(struct parallel *p, const struct walk *e, const struct op *op)
{
    if (e->copies != NULL && e->copies->post(e->copies->user, op->block, op))
        return;
    observe(p, op, NULL, false);
    observe(p, op, NULL, true);
}

/* `copy`: the last copy that must have ended. */
static void settle_copy(struct parallel *p, const struct walk *e, const struct op *copy)
{
    if (e->copies != NULL)
        e->copies->wait(e->copies->user, copy->block, p->plan->lane);
}

/* ---- blocks ---- */

static void forward_pointers(struct parallel *p, uint32_t block, const void **w)
{
    gather_pointers(&p->exchange, block, w);
    if (block == p->plan->table->num_blocks - 1 && is_tied(p->plan))
        gather_pointers(&p->exchange, p->plan->table->num_blocks, &w[1]);
}

static int run_forward(struct parallel *p, const struct op *op, uint32_t slot)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    forward_pointers(p, op->block, w);
    return model_forward(p->plan->model, slot, op->block, w);
}

static int run_loss(struct parallel *p, const struct op *op, uint32_t slot)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    forward_pointers(p, op->block, w);
    return model_loss(p->plan->model, slot, w);
}

static int run_recompute(struct parallel *p, const struct op *op, uint32_t slot)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    gather_pointers(&p->exchange, op->block, w);
    return model_recompute(p->plan->model, slot, op->block, w);
}

static int run_backward(struct parallel *p, const struct op *op, uint32_t slot)
{
    const void *w[MODEL_BLOCK_TENSORS_MAX];
    float *dw[MODEL_BLOCK_TENSORS_MAX];
    uint32_t halves = op->kind == OP_BACKWARD         ? MODEL_INPUT | MODEL_WEIGHT
                      : op->kind == OP_BACKWARD_INPUT ? MODEL_INPUT
                                                      : MODEL_WEIGHT;
    if (op->block > 0 && (halves & MODEL_INPUT))
        gather_pointers(&p->exchange, op->block, w);
    if (halves & MODEL_WEIGHT)
        reduce_begin_block(&p->exchange, op->block, dw);
    return model_backward(p->plan->model, slot, op->block, halves, w, dw);
}

static int run(struct parallel *p, struct walk *e, const struct op *op, uint32_t slot)
{
    uint32_t first = p->plan->first_block[op->stage], end = p->plan->first_block[op->stage + 1];
    switch (op->kind) {
    case OP_BEGIN:
        model_begin(p->plan->model, slot, e->batch);
        return 0;
    case OP_GATHER:
    case OP_EXCHANGE:
    case OP_JOIN:
    case OP_COLLECT:
    case OP_RECEIVE:
    case OP_RECEIVE_GRADIENT:
    case OP_RING:
        return run_here(p, op, slot);
    case OP_DROP:
        gather_drop(&p->exchange, op->block);
        return 0;
    case OP_KEYS:
        return run_keys(p, op, slot);
    case OP_FORWARD:
        return run_forward(p, op, slot);
    case OP_LOSS:
        return run_loss(p, op, slot);
    case OP_RECOMPUTE:
        return run_recompute(p, op, slot);
    case OP_BACKWARD:
    case OP_BACKWARD_INPUT:
    case OP_BACKWARD_WEIGHT:
        return run_backward(p, op, slot);
    case OP_FORGET:
        model_forget(p->plan->model, slot, first, end);
        return 0;
    case OP_ENCODE:
        return codes_make(&p->exchange, op);
    case OP_REDUCE:
        return reduce_step(&p->exchange, op);
    case OP_SPREAD:
        return gather_updated(&p->exchange, op);
    case OP_SEND:
    case OP_SEND_GRADIENT:
        return run_send(p, op, slot);
    default: /* operations of the step */
        return 0;
    }
}

static int run_op(struct parallel *p, const struct program *program, struct walk *e,
                  const struct op *op)
{
    uint32_t slot = program_slot(program, &p->plan->shape, op->stage, op->leaf);
    begin_op(p, program, op, p->plan->lane);
    if (op->kind == OP_BEGIN && e->at_op != NULL) /* at_op sets the batch */
        ERR_TRY(e->at_op(p, e, op));
    watch_begin(p, program, op);
    if (op_is_batch(op))
        lane_batch_begin(p->plan->lane);
    int rc = run(p, e, op, slot);
    if (rc == 0 && op->kind != OP_BEGIN && e->at_op != NULL)
        rc = e->at_op(p, e, op);
    if (op_is_batch(op))
        lane_batch_end(p->plan->lane);
    if (rc == 0)
        rc = watch_end(p, op);
    if (rc == 0)
        end_op(p, op, p->plan->lane);
    return rc;
}

static int walk(struct parallel *p, const struct program *program, struct walk *e)
{
    struct side_ring sides[NUM_LANES] = {0};
    for (uint32_t i = 0; i < program->num_ops && !e->is_asked_to_stop; i++) {
        const struct op *op = &program->ops[i];
        for (uint32_t lane = 0; lane < NUM_LANES; lane++)
            ERR_TRY(settle_side(p, &sides[lane], lane, op->after[lane]));
        if (op->after[LANE_SEND] > 0)
            ERR_TRY(settle_send(p, program, &program->ops[op->after[LANE_SEND] - 1]));
        if (op->after[LANE_COPY] > 0)
            settle_copy(p, e, &program->ops[op->after[LANE_COPY] - 1]);
        if (op->lane == LANE_COPY)
            post_copy(p, e, op);
        else if (op->lane == LANE_COMPUTE || op->lane == LANE_SEND)
            ERR_TRY(run_op(p, program, e, op));
        else
            post_side(p, program, &sides[op->lane], op);
    }
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        ERR_TRY(settle_side(p, &sides[lane], lane, UINT32_MAX));
    return settle_all(p);
}

/* An error of another lane may have ended the walk's wait. If this rank has no error text, take the
 * lane's. */
static int fail_all(struct parallel *p, int rc)
{
    rc = comm_fail(p->plan->mesh.world, rc);
    for (uint32_t lane = LANE_COMPUTE + 1; lane < LANE_SEND && p->run.sides != NULL; lane++) {
        int kept = report_message()[0] == '\0' ? lane_settle(p->run.sides->of[lane]) : 0;
        rc = kept != 0 ? kept : rc;
    }
    return rc;
}

int execute_program(struct parallel *p, const struct program *program, struct walk *e)
{
    struct flight *flight = p->plan->mesh.world->flight;
    flight_follow(flight, &(struct flight_program){find_next, program});
    int rc = walk(p, program, e);
    if (rc != 0 && !e->is_common && !memory_is_recording(p->plan->memory))
        rc = fail_all(p, rc);
    flight_follow(flight, NULL);
    flight_leave_op();
    return rc;
}
