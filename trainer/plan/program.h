/* program.h - one step of one rank as a list of operations in their order. Pure: built from
 * numbers, checked (check.c), printed (`trainer --print-program`); the memory plan is its walk,
 * execute.c runs it.
 *
 * A schedule (pipe.h) says which stage computes which leaf when. Lowering adds the operations that
 * this needs: blocks of parameters are gathered and dropped, the residual stream and its gradient
 * are sent from stage to stage, activations that were not kept are computed again, gradients are
 * exchanged and folded. */
#ifndef HOLDFAST_TRAINER_PLAN_PROGRAM_H
#define HOLDFAST_TRAINER_PLAN_PROGRAM_H

#include "trainer/plan/mesh.h"
#include "trainer/plan/pipe.h"

#include <stddef.h>
#include <stdio.h>

enum op_kind {
    /* A block's state to ckptd's memory, if a save of the previous step is under way. */
    OP_COPY,
    OP_ASK_STOP, /* asks all ranks whether one wants to stop; if so, the step is dropped */
    OP_ENCODE,   /* this rank's shard to float8 codes, for the gathers, with all shards' scales */
    OP_READ,     /* tokens of a leaf */
    OP_BEGIN,    /* of a leaf's way through a stage of this rank */
    OP_GATHER,
    OP_DROP,    /* the parameters of a block */
    OP_RECEIVE, /* the residual stream before a stage, from `peer` */
    OP_KEYS,    /* a layer's queries, keys and values, if these go around a ring */
    OP_RING,    /* its keys, then its values, to all ranks of context parallel */
    OP_FORWARD,
    OP_LOSS,
    OP_SEND,             /* the stream after a stage */
    OP_RECEIVE_GRADIENT, /* of the stream after a stage */
    OP_RECOMPUTE,
    OP_BACKWARD, /* both halves */
    OP_BACKWARD_INPUT,
    OP_BACKWARD_WEIGHT,
    OP_EXCHANGE, /* a bucket's gradient of a leaf to its owners, which fold it in leaf order */
    /* Adds a bucket's sums of a group of leaves to those of all groups, in their order. */
    OP_JOIN,
    /* A bucket's sums of the step, from their owners to all copies of the shard; with the fast
       reduction from all ranks to the shards. */
    OP_COLLECT,
    OP_SEND_GRADIENT, /* of the stream before a stage */
    OP_FORGET,        /* frees what a forward kept: no backward comes */
    OP_REDUCE,        /* the end of the sums: both sums of a tied matrix */
    OP_NORM,          /* of the gradient, with the values that all ranks have to know */
    OP_LOSSES,        /* of all leaves */
    OP_UPDATE,        /* a block's state, by the optimizer */
    OP_SPREAD,        /* sends parameters that one copy has updated to the other copies (ZeRO) */
    NUM_OP_KINDS
};

/* Queues of work. Each runs its operations in the order of the program, and begins one when all
 * compute before it has ended. Only `after` orders operations of different lanes. Compute posts a
 * send, which ends when it is received. Sends end in any order: an `after` on that lane is for this
 * operation only. Copies are made by the thread of the save (snapshot/copier.h), and end at once
 * where no save is under way. */
enum lane_of {
    LANE_COMPUTE,
    LANE_GATHER,
    LANE_REDUCE,
    LANE_RECEIVE,
    LANE_RING,
    LANE_SEND,
    LANE_COPY,
    NUM_LANES
};

/* Calls of a group's ranks, with the change of a buffer over the group's axes: from this state: to
 * that. */
enum call_kind {
    CALL_NONE,
    CALL_GATHER,    /* cut: whole */
    CALL_AROUND,    /* cut: whole, one part after the other */
    CALL_DEAL,      /* partial sums: cut; each rank gets all summands of its part and adds them */
    CALL_SCATTER,   /* partial sums: cut; added on the way */
    CALL_SUM,       /* partial sums: whole */
    CALL_SWAP,      /* partial sums on the two ends: whole */
    CALL_BROADCAST, /* one rank's data: whole */
    NUM_CALL_KINDS
};

struct call {
    uint8_t kind, group; /* enum call_kind, enum group */
};
#define OP_CALLS_MAX 2u

struct op {
    uint8_t kind;
    uint8_t lane;
    uint8_t is_second; /* OP_GATHER, OP_KEYS, OP_RING: for a backward */
    uint16_t peer;     /* rank of the pipeline */
    uint32_t stage, leaf;
    uint32_t block;
    uint32_t num_blocks;       /* of OP_EXCHANGE, _JOIN, _COLLECT: the bucket, from `block` on */
    uint32_t after[NUM_LANES]; /* 1 + an operation of that lane that must have ended; 0: none */
    struct call calls[OP_CALLS_MAX]; /* between ranks, in this order; groups of one rank: none */
};

#define PROGRAM_BLOCK_NONE UINT32_MAX

struct program {
    struct op *ops;
    uint32_t num_ops, capacity;
    uint32_t num_leaves, rank;
    uint32_t num_slots;   /* leaves under way at a time, of all stages of this rank */
    uint32_t *first_slot; /* per chunk, and one more for the end */
    uint32_t num_reads;   /* leaves whose tokens are held at a time */
    double bubble;
};

struct program_options {
    uint32_t num_blocks; /* L + 2; the tied output is block num_blocks */
    bool is_tied;
    const uint8_t *keep;              /* [L] enum model_keep */
    uint32_t num_ranks, rank, chunks; /* of the pipeline */
    uint32_t degree[NUM_AXES];        /* of the mesh without its pipeline; 0 is 1 */
    uint32_t parts;                   /* of its shards; 0 is 1 */
    bool adds_fast;              /* fast reduction: each rank keeps its own sums until OP_COLLECT */
    const uint32_t *first_block; /* [num_ranks * chunks + 1] of each stage, and the end */
    enum pipe_schedule schedule;
    const char *file;
    /* [num_blocks + 1] A block's gradient is exchanged together with the waiting gradients of the
     * blocks after it. The rest are exchanged at the end of a stage's backward. NULL: each
     * alone. */
    const uint8_t *ends_bucket;
    bool has_ring;            /* of context parallel */
    bool ring_ahead;          /* for a backward: while the next block is computed */
    uint32_t num_leaves;      /* per data rank */
    uint32_t round_leaves;    /* OP_JOIN comes after so many leaves; 0: never */
    uint32_t gather_ahead;    /* a gather starts so many uses ahead; 0: at its use */
    uint32_t exchange_behind; /* exchanges that may be under way when a backward begins; 0: none */
    bool receives_ahead; /* data from another stage is received while the previous action works */
    /* Each copy of a shard updates all of it, or the sums are made with OP_COLLECT. */
    bool collects;
    bool spreads; /* each copy of a shard updates a part of it */
    bool encodes; /* shards are coded before they are gathered */
    bool copies;  /* copies of a save may continue during the step */
    bool drops;   /* parameters are dropped after each use, else kept until the step ends */
    /* The head's backward makes the loss, which is known after it; its halves are never
     * separate. */
    bool has_loss_chunks;
};

/* ERR_INVALID as pipe_new; ERR_MEMORY. */
int program_build(struct program **out, const struct program_options *options);
/* One leaf forward through all stages, and its loss; nothing is kept. */
int program_build_evaluation(struct program **out, const struct program_options *options);
void program_free(struct program *program);
/* lanes.c: the last part of both. ERR_MEMORY. */
int program_overlap(struct program *program, const struct program_options *options);
/* calls.c: sets the calls of each operation. */
void program_add_calls(struct program *program, const struct program_options *options);
/* The degree of an axis, AXIS_PARTS too; the degree of AXIS_SHARD is within one part. */
uint32_t program_degree(const struct program_options *options, enum axis axis);
/* True if the group has more than one rank. */
bool program_has_group(const struct program_options *options, enum group group);

/* The slot of a leaf in a stage of this rank. */
uint32_t program_slot(const struct program *program, const struct program_options *options,
                      uint32_t stage, uint32_t leaf);
/* True if the operation is the same in each step, to the byte: a device may queue it as a batch. */
bool op_is_batch(const struct op *op);
uint32_t program_stage_of(const struct program_options *options, uint32_t block);
/* True if this rank has a state of the block. A tied output has its own state only if another stage
 * has the embedding. */
bool program_has_state(const struct program_options *options, uint32_t block);

/* check.c: checks the programs of all ranks of a pipeline together: each leaf of each block once
 * forward, once backward of input and once of weight, those and the exchange in the order of
 * leaves; parameters are there where they are used; every receive finds its send, and no operation
 * waits for itself; sums, norm, losses, then the update of each block, once and after its copy.
 * Keys and values have been around the whole ring when they are used, for at most two layers at a
 * time. The ranks of a ring have the same list. By symmetry the ranks of a pipeline stand for all
 * of the mesh: over each axis, parameters, gradients, sums, norm, losses, scales and keys are
 * whole, cut or partial sums as their use wants them (axes.h). ERR_INVALID names the operation. */
int program_check(const struct program *const *ranks, const struct program_options *options);

const char *op_name(enum op_kind kind);
const char *lane_name(enum lane_of lane);
void program_print(const struct program *program, FILE *out);

#endif
