/* trainer_axes.c - the proof of a step before it runs: the effect of its calls on buffers, axis by
 * axis.
 *
 * Goal: a collective that is missing, comes twice, or has another group or kind is found in the
 * program, and the report names operation, buffer, axis and the expected state. Every mesh and mode
 * passes. Method: one such bug is planted in the programs of a mesh, and these are checked. */
#include "tests/unit/program_bed.h"

#include <time.h>

/* A mesh and a mode, as the settings give them. */
struct mode {
    uint32_t pp, replicate, shard, cp, tp, parts; /* 0: 1 */
    bool is_tied, is_zero, is_fast, has_groups, has_ring, has_codes, has_lanes;
    enum pipe_schedule schedule;
};

static void shape(struct bed *bed, const struct mode *m)
{
    struct program_options *o = &bed->o;
    uint32_t copies = program_degree(o, AXIS_REPLICATE) * program_degree(o, AXIS_CP);
    uint32_t owners = copies * program_degree(o, AXIS_SHARD) * program_degree(o, AXIS_PARTS);
    o->adds_fast = m->is_fast;
    o->collects = m->is_fast ? owners > 1 : copies > 1 && !m->is_zero;
    o->spreads = m->is_zero && copies > 1;
    o->encodes = m->has_codes && owners > copies;
    o->has_ring = m->has_ring && program_degree(o, AXIS_CP) > 1;
    o->round_leaves = m->has_groups ? 2 : 0;
    o->gather_ahead = m->has_lanes && owners > copies;
    o->exchange_behind = m->has_lanes && owners > 1;
    o->receives_ahead = m->has_lanes && o->num_ranks > 1;
    o->ring_ahead = m->has_lanes && o->has_ring;
}

static void bed_open(struct bed *bed, const struct mode *m, uint32_t layers, uint32_t num_leaves)
{
    uint32_t pp = m->pp > 0 ? m->pp : 1;
    bed_shape(bed,
              (struct program_options){.num_blocks = layers + 2,
                                       .is_tied = m->is_tied,
                                       .num_ranks = pp,
                                       .degree = {pp, m->replicate, m->shard, m->cp, m->tp},
                                       .parts = m->parts,
                                       .schedule = m->schedule,
                                       .num_leaves = num_leaves,
                                       .drops = pp == 1},
              MODEL_KEEP_ALL);
    shape(bed, m);
    bed_build(bed);
}

/* ---- planted bugs ---- */

/* Of the first operation of a kind on a rank: */
enum change {
    DROP_CALL,   /* its call */
    DOUBLE_CALL, /* twice in place of the other */
    GROUP,       /* its call in group `to` */
    KIND,        /* its call of kind `to` */
    PEER,        /* rank `to` of the pipeline */
    ADD_DEAL,    /* a call that it has not, in group `to` */
    REMOVE,      /* the operation */
    DOUBLE,      /* likewise, twice */
    SWAP         /* with the next of kind `to` */
};

struct plant {
    const struct mode *mode;
    uint32_t rank;
    enum op_kind op;
    enum change change;
    uint32_t call, to;
    const char *reason;
};

static void plant(struct program *p, const struct plant *bug)
{
    uint32_t at = find(p, bug->op, 0), other;
    struct op first = p->ops[at];
    struct call *call = &p->ops[at].calls[bug->call];
    switch (bug->change) {
    case DROP_CALL:
        *call = (struct call){0};
        break;
    case DOUBLE_CALL:
        p->ops[at].calls[1 - bug->call] = *call;
        break;
    case GROUP:
        call->group = (uint8_t)bug->to;
        break;
    case KIND:
        call->kind = (uint8_t)bug->to;
        break;
    case PEER:
        p->ops[at].peer = (uint16_t)bug->to;
        break;
    case ADD_DEAL:
        *call = (struct call){.kind = CALL_DEAL, .group = (uint8_t)bug->to};
        break;
    case REMOVE:
        remove_op(p, at);
        break;
    case DOUBLE:
        double_op(p, at);
        break;
    case SWAP:
        other = find(p, bug->to, at + 1);
        p->ops[at] = p->ops[other];
        p->ops[other] = first;
        break;
    }
}

static const struct mode fsdp = {.shard = 4}, hsdp = {.replicate = 2, .shard = 2, .is_tied = true},
                         ddp = {.replicate = 4},
                         zero = {.replicate = 2, .shard = 2, .is_zero = true},
                         fast = {.replicate = 2, .shard = 2, .is_fast = true},
                         groups = {.replicate = 2, .shard = 2, .has_groups = true},
                         parts = {.shard = 4, .parts = 2, .has_groups = true},
                         tensor = {.shard = 2, .tp = 4}, context = {.shard = 2, .cp = 2},
                         ring = {.shard = 2, .cp = 2, .tp = 2, .has_ring = true},
                         codes = {.shard = 4, .has_codes = true},
                         pipe = {.pp = 2, .shard = 2, .is_tied = true, .schedule = PIPE_1F1B};

static const struct plant plants[] = {
    {&fsdp, 0, OP_GATHER, DROP_CALL, 0, 0, "parameters: cut over dp_shard, where whole"},
    {&fsdp, 0, OP_GATHER, DOUBLE_CALL, 0, 0, "parameters: whole over dp_shard, where cut"},
    {&fsdp, 0, OP_GATHER, GROUP, 0, GROUP_COPIES, "its group has one rank"},
    {&hsdp, 0, OP_GATHER, GROUP, 0, GROUP_COPIES, "parameters: whole over dp_replicate, where cut"},
    {&tensor, 0, OP_GATHER, GROUP, 0, GROUP_TP, "parameters: cut over dp_shard, where whole"},
    {&fsdp, 0, OP_GATHER, KIND, 0, CALL_SUM, "parameters: cut over dp_shard, where a partial sum"},
    {&fsdp, 0, OP_GATHER, REMOVE, 0, 0, "its parameters are not there"},
    {&fsdp, 0, OP_GATHER, DOUBLE, 0, 0, "its parameters are there already"},
    {&fsdp, 0, OP_EXCHANGE, DROP_CALL, 0, 0, "gradient: a partial sum over dp_shard, where cut"},
    {&fsdp, 0, OP_EXCHANGE, DOUBLE_CALL, 0, 0, "gradient: cut over dp_shard, where a partial sum"},
    {&hsdp, 0, OP_EXCHANGE, GROUP, 0, GROUP_SHARD, "a partial sum over dp_replicate, where cut"},
    {&context, 0, OP_EXCHANGE, GROUP, 0, GROUP_DATA, "gradient: a partial sum over cp, where cut"},
    {&tensor, 0, OP_EXCHANGE, GROUP, 0, GROUP_TP, "gradient: cut over tp, where a partial sum"},
    {&hsdp, 0, OP_EXCHANGE, KIND, 0, CALL_SUM, "gradient: whole over dp_replicate, where cut"},
    {&hsdp, 0, OP_EXCHANGE, REMOVE, 0, 0, "leaves are out of order"},
    {&hsdp, 0, OP_EXCHANGE, DOUBLE, 0, 0, "it comes twice"},
    {&fast, 0, OP_EXCHANGE, ADD_DEAL, 0, GROUP_OWNERS,
     "cut over dp_replicate, where a partial sum"},
    {&fsdp, 0, OP_UPDATE, ADD_DEAL, 0, GROUP_SHARD, "it has nothing to call for"},
    {&hsdp, 0, OP_COLLECT, DROP_CALL, 0, 0, "sums: cut over dp_replicate, where whole"},
    {&hsdp, 0, OP_COLLECT, GROUP, 0, GROUP_SHARD, "sums: cut over dp_replicate, where whole"},
    {&hsdp, 0, OP_COLLECT, REMOVE, 0, 0, "sums: cut over dp_replicate, where whole"},
    {&hsdp, 0, OP_COLLECT, DOUBLE, 0, 0, "it comes twice"},
    {&ddp, 0, OP_COLLECT, KIND, 0, CALL_SUM, "sums: cut over dp_replicate, where a partial sum"},
    {&fast, 0, OP_COLLECT, DROP_CALL, 0, 0, "sums: a partial sum over dp_shard, where cut"},
    {&fast, 0, OP_COLLECT, DROP_CALL, 1, 0, "sums: a partial sum over dp_replicate, where whole"},
    {&fast, 0, OP_COLLECT, DOUBLE_CALL, 1, 0, "whole over dp_replicate, where a partial sum"},
    {&fast, 0, OP_COLLECT, GROUP, 1, GROUP_SHARD, "sums: cut over dp_shard, where a partial sum"},
    {&groups, 0, OP_EXCHANGE, GROUP, 0, GROUP_OWNERS, "cut over dp_replicate, where a partial sum"},
    {&groups, 0, OP_JOIN, DROP_CALL, 0, 0, "a partial sum over dp_replicate, where cut"},
    {&parts, 0, OP_EXCHANGE, GROUP, 0, GROUP_OWNERS, "cut over the parts of dp_shard, where a"},
    {&parts, 0, OP_JOIN, DROP_CALL, 0, 0, "a partial sum over the parts of dp_shard, where cut"},
    {&parts, 0, OP_JOIN, GROUP, 0, GROUP_REPLICA, "cut over dp_shard, where a partial sum"},
    {&groups, 0, OP_JOIN, REMOVE, 0, 0, "the group in front has not been added"},
    {&groups, 0, OP_JOIN, DOUBLE, 0, 0, "it comes twice"},
    {&zero, 0, OP_SPREAD, DROP_CALL, 0, 0, "parameters: cut over dp_replicate, where whole"},
    {&zero, 0, OP_SPREAD, GROUP, 0, GROUP_SHARD, "parameters: cut over dp_replicate, where whole"},
    {&zero, 0, OP_SPREAD, KIND, 0, CALL_SUM, "cut over dp_replicate, where a partial sum"},
    {&zero, 0, OP_SPREAD, REMOVE, 0, 0, "spreads nothing"},
    {&pipe, 0, OP_REDUCE, DROP_CALL, 0, 0, "sums: a partial sum over pp, where whole"},
    {&pipe, 1, OP_REDUCE, DROP_CALL, 0, 0, "sums: a partial sum over pp, where whole"},
    {&pipe, 0, OP_REDUCE, KIND, 0, CALL_GATHER, "tied matrix: a partial sum over pp, where cut"},
    {&pipe, 0, OP_SEND, PEER, 0, 0, "its peer has not the stage on the other side"},
    {&pipe, 1, OP_SEND_GRADIENT, PEER, 0, 1, "its peer has not the stage on the other side"},
    {&pipe, 1, OP_RECEIVE, PEER, 0, 1, "its peer has not the stage on the other side"},
    {&pipe, 0, OP_SEND, REMOVE, 0, 0, "is never sent"},
    {&pipe, 1, OP_ASK_STOP, REMOVE, 0, 0, "does not call with it over pp"},
    {&pipe, 1, OP_NORM, SWAP, 0, OP_LOSSES, "does not call with it over pp"},
    {&tensor, 0, OP_NORM, GROUP, 0, GROUP_DATA, "squares of the norm: a partial sum over tp"},
    {&fsdp, 0, OP_NORM, DROP_CALL, 0, 0, "squares of the norm: a partial sum over dp_shard"},
    {&hsdp, 0, OP_COLLECT, SWAP, 0, OP_NORM, "the sums are not whole"},
    {&fsdp, 0, OP_LOSSES, DROP_CALL, 0, 0, "losses: cut over dp_shard, where whole"},
    {&pipe, 1, OP_LOSSES, DROP_CALL, 1, 0, "losses: different by rank over pp, where whole"},
    {&ring, 0, OP_RING, DROP_CALL, 0, 0, "keys and values: cut over cp, where whole"},
    {&ring, 0, OP_RING, GROUP, 0, GROUP_TP, "keys and values: cut over cp, where whole"},
    {&codes, 0, OP_ENCODE, DROP_CALL, 0, 0, "scales: cut over dp_shard, where whole"},
    {&codes, 0, OP_ENCODE, REMOVE, 0, 0, "its codes are not made"},
};
#define NUM_PLANTS (sizeof(plants) / sizeof(plants[0]))

TEST(test_axes__a_planted_collective_is_found_and_named)
{
    assert_true(NUM_PLANTS >= 30);
    for (size_t i = 0; i < NUM_PLANTS; i++) {
        struct bed bed;
        bed_open(&bed, plants[i].mode, 2, 4);
        if (check(&bed) != 0)
            fail_msg("bug %zu, before it is planted: %s", i, report_message());
        plant(bed.ranks[plants[i].rank], &plants[i]);
        want_refused_with(&bed, plants[i].reason);
        bed_close(&bed);
    }
}

TEST(test_axes__a_refusal_names_rank_operation_block_buffer_and_axis)
{
    struct bed bed;
    bed_open(&bed, &fsdp, 2, 4);
    uint32_t at = find(bed.ranks[0], OP_GATHER, 0);
    bed.ranks[0]->ops[at].calls[0] = (struct call){0};
    assert_int_equal(check(&bed), ERR_INVALID);
    assert_string_equal(report_message(),
                        "rank 0 of the pipeline, operation 3, gather of stage 0, leaf 0, block 0: "
                        "parameters: cut over dp_shard, where whole is expected");
    bed_close(&bed);
}

/* ---- correct programs ---- */

static void want_pass(const struct mode *m, uint32_t layers, uint32_t num_leaves)
{
    struct bed bed;
    bed_open(&bed, m, layers, num_leaves);
    if (check(&bed) != 0)
        fail_msg("pp %u, dp_replicate %u, dp_shard %u, cp %u, tp %u, zero %d, fast %d, groups %d, "
                 "ring %d: %s",
                 m->pp, m->replicate, m->shard, m->cp, m->tp, m->is_zero, m->is_fast, m->has_groups,
                 m->has_ring, report_message());
    bed_close(&bed);
}

/* Bits of a number: axes of 1 or 2, then modes. */
TEST(test_axes__every_mesh_mode_and_schedule_passes)
{
    for (uint32_t bits = 0; bits < 1u << 12; bits++) {
        struct mode m = {.pp = 1 + (bits & 1),
                         .replicate = 1 + (bits >> 1 & 1),
                         .shard = 1 + (bits >> 2 & 1),
                         .cp = 1 + (bits >> 3 & 1),
                         .tp = 1 + (bits >> 4 & 1),
                         .is_tied = bits >> 5 & 1,
                         .is_zero = bits >> 6 & 1,
                         .is_fast = bits >> 7 & 1,
                         .has_groups = bits >> 8 & 1,
                         .has_ring = bits >> 9 & 1,
                         .has_codes = bits >> 10 & 1,
                         .has_lanes = bits >> 11 & 1};
        m.is_fast = m.is_fast && !m.has_groups; /* which divide sums */
        m.parts = m.has_groups && m.is_tied ? m.shard : 1;
        for (size_t s = 0; s < (m.pp > 1 ? NUM_SCHEDULES : 1); s++) {
            m.schedule = m.pp > 1 ? schedules[s] : PIPE_1F1B;
            want_pass(&m, 2, 4);
        }
    }
}

/* 405B on 16,384 ranks: the ranks of one pipeline represent all. */
TEST(test_axes__a_step_of_16384_ranks_is_proved_in_seconds)
{
    static const struct mode large[] = {
        {16, 1, 128, 1, 8, .has_lanes = true, .schedule = PIPE_INTERLEAVED},
        {16, 4, 8, 4, 8, .is_zero = true, .has_ring = true, .schedule = PIPE_ZBH1},
        {1, 16, 64, 2, 8, .is_fast = true, .has_lanes = true, .schedule = PIPE_1F1B}};
    struct timespec begin, end;
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
        want_pass(&large[i], LAYERS_MAX, 32);
        (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        assert_true(end.tv_sec - begin.tv_sec < 5);
    }
}

SUITE(NULL, NULL)
