/* trainer_program.c - the programs of a step, and their check.
 *
 * Goal: the programs of every schedule pass the check; a program in which one operation is missing,
 * comes twice or comes too early does not. Method: programs are built for many pipelines; then one
 * operation after the other is left out of one rank, doubled, or swapped with the next. */
#include "tests/unit/program_bed.h"

/* Six blocks, four of them layers, in equal stages; where parameters are dropped, gradients of two
 * blocks at a time are exchanged, and collected. */
static void bed_open(struct bed *bed, enum pipe_schedule schedule, uint32_t num_ranks, bool drops)
{
    bed_shape(bed,
              (struct program_options){.num_blocks = 6,
                                       .is_tied = drops,
                                       .num_ranks = num_ranks,
                                       .schedule = schedule,
                                       .num_leaves = 5,
                                       .drops = drops,
                                       .collects = drops,
                                       .spreads = drops,
                                       .copies = drops,
                                       .encodes = drops},
              MODEL_KEEP_NOTHING);
    for (uint32_t b = 0; b <= 6; b++)
        bed->ends_bucket[b] = b % 2;
    bed->o.ends_bucket = drops ? bed->ends_bucket : NULL;
    bed_build(bed);
}

/* And closes it. */
static void want_pass(struct bed *bed)
{
    if (check(bed) != 0)
        fail_msg("schedule %d on %u ranks: %s", (int)bed->o.schedule, bed->o.num_ranks,
                 report_line());
    bed_close(bed);
}

/* An operation that no other needs: the step's own, reading and forgetting. */
static bool is_free(const struct op *op)
{
    return op->kind == OP_ASK_STOP || op->kind == OP_READ || op->kind == OP_BEGIN ||
           op->kind == OP_RECOMPUTE || op->kind == OP_DROP;
}

static void want_refused_of(void (*open)(struct bed *bed), uint32_t rank,
                            void (*change)(struct program *p, uint32_t at))
{
    struct bed bed;
    open(&bed);
    uint32_t num = bed.ranks[rank]->num_ops;
    bed_close(&bed);
    for (uint32_t at = 0; at < num; at++) {
        open(&bed);
        struct op op = bed.ranks[rank]->ops[at];
        change(bed.ranks[rank], at);
        if (!is_free(&op) && check(&bed) != ERR_INVALID)
            fail_msg("operation %u (%s) of rank %u changed, and it passes", at, op_name(op.kind),
                     rank);
        bed_close(&bed);
    }
}

static void bed_open_zero_bubble(struct bed *bed)
{
    bed_open(bed, PIPE_ZBH1, 2, true);
}

/* Two groups of two leaves. */
static void bed_open_groups(struct bed *bed)
{
    bed_open(bed, PIPE_1F1B, 1, true);
    bed->o.num_leaves = 4;
    bed->o.round_leaves = 2;
    bed_build(bed);
    assert_int_equal(check(bed), 0);
}

/* As bed_open; the heads' backwards make the losses. */
static void bed_open_chunks(struct bed *bed, enum pipe_schedule schedule, uint32_t num_ranks,
                            bool drops)
{
    bed_open(bed, schedule, num_ranks, drops);
    bed->o.has_loss_chunks = true;
    bed_build(bed);
}

static void bed_open_chunks_of_last(struct bed *bed)
{
    bed_open_chunks(bed, PIPE_1F1B, 2, true);
}

static void want_refused(void (*change)(struct program *p, uint32_t at), uint32_t rank)
{
    want_refused_of(bed_open_zero_bubble, rank, change);
}

TEST(test_program__a_missing_operation_is_found)
{
    want_refused(remove_op, 0);
    want_refused(remove_op, 1);
    want_refused_of(bed_open_groups, 0, remove_op);
}

TEST(test_program__an_operation_that_comes_twice_is_found)
{
    want_refused(double_op, 0);
    want_refused(double_op, 1);
    want_refused_of(bed_open_groups, 0, double_op);
}

TEST(test_program__a_loss_in_chunks_comes_once_behind_the_heads_backward)
{
    want_refused_of(bed_open_chunks_of_last, 1, remove_op);
    want_refused_of(bed_open_chunks_of_last, 1, double_op);
    struct bed bed;
    bed_open_chunks(&bed, PIPE_GPIPE, 1, false);
    struct program *p = bed.ranks[0];
    uint32_t backward = find(p, OP_BACKWARD, 0), loss = find(p, OP_LOSS, 0);
    struct op early = p->ops[loss];
    remove_op(p, loss);
    double_op(p, backward);
    p->ops[backward] = early;
    want_refused_with(&bed, "there is no loss yet");
    bed_close(&bed);
}

/* Its logits are gone when it is the other weights' turn. */
TEST(test_program__a_head_in_chunks_is_never_apart)
{
    struct bed bed;
    bed_open_chunks(&bed, PIPE_ZBH1, 2, true);
    struct program *p = bed.ranks[1];
    uint32_t head = bed.o.num_blocks - 1;
    for (uint32_t i = 0; i < p->num_ops; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind == OP_BACKWARD)
            assert_true(op->block >= head);
        if (op->kind == OP_BACKWARD_INPUT || op->kind == OP_BACKWARD_WEIGHT)
            assert_true(op->block < head);
        if (op->kind == OP_EXCHANGE && op->block + op->num_blocks > head)
            assert_int_equal(op->num_blocks, 1);
    }
    bed_close(&bed);
}

/* Where the head's parameters are dropped, its losses come first. */
TEST(test_program__an_evaluation_makes_chunks_before_it_drops_the_head)
{
    struct bed bed;
    struct program *p = NULL;
    bed_open_chunks(&bed, PIPE_1F1B, 1, true);
    assert_int_equal(program_build_evaluation(&p, &bed.o), 0);
    uint32_t losses = 0;
    uint32_t at = find(p, OP_LOSS, 0);
    assert_int_equal(p->ops[at - 1].kind, OP_FORWARD);
    assert_int_equal(p->ops[at - 1].block, p->ops[at].block);
    for (uint32_t i = 0; i < p->num_ops; i++)
        losses += p->ops[i].kind == OP_LOSS;
    assert_int_equal(losses, 1);
    program_free(p);
    bed_close(&bed);
}

TEST(test_program__ranks_that_wait_for_each_other_are_found)
{
    struct bed bed;
    bed_open(&bed, PIPE_1F1B, 2, false);
    struct program *first = bed.ranks[0];
    uint32_t at = find(first, OP_RECEIVE_GRADIENT, 0);
    struct op early = first->ops[at];
    remove_op(first, at);
    double_op(first, 0);
    first->ops[0] = early; /* before the forward that leads to it */
    want_refused_with(&bed, "receive_gradient of stage 0, leaf 0");
    assert_non_null(strstr(report_message(), "is never sent"));
    bed_close(&bed);
}

TEST(test_program__leaves_out_of_order_are_found)
{
    struct bed bed;
    bed_open(&bed, PIPE_GPIPE, 1, false);
    struct program *p = bed.ranks[0];
    for (uint32_t i = 0; i < p->num_ops; i++) /* the first two leaves change places */
        if (p->ops[i].leaf < 2 && p->ops[i].kind >= OP_RECOMPUTE)
            p->ops[i].leaf = 1 - p->ops[i].leaf;
    want_refused_with(&bed, "the leaf in front has not been through it");
    bed_close(&bed);
    bed_open(&bed, PIPE_GPIPE, 1, false);
    p = bed.ranks[0];
    uint32_t at[2] = {0, 0}; /* of the embedding's exchanges: the first is moved after the second */
    for (uint32_t i = 0; i < p->num_ops; i++)
        if (p->ops[i].kind == OP_EXCHANGE && p->ops[i].block == 0 && p->ops[i].leaf < 2)
            at[p->ops[i].leaf] = i;
    struct op first = p->ops[at[0]];
    double_op(p, at[1]);
    p->ops[at[1] + 1] = first;
    remove_op(p, at[0]);
    want_refused_with(&bed, "leaves are out of order");
    bed_close(&bed);
}

/* ---- lanes ---- */

/* Like bed_open, with gathers and receives ahead and exchanges after compute. */
static void bed_open_lanes(struct bed *bed, enum pipe_schedule schedule, uint32_t num_ranks,
                           uint32_t depth)
{
    bed_open(bed, schedule, num_ranks, true);
    bed->o.gather_ahead = bed->o.exchange_behind = depth;
    bed->o.receives_ahead = true;
    bed->o.round_leaves = depth > 1; /* each leaf is a group */
    bed_build(bed);
}

TEST(test_program__every_schedule_depth_and_loss_makes_programs_that_pass)
{
    for (uint32_t i = 0; i < NUM_SCHEDULES * 3 * 5 * 2; i++) {
        struct bed bed;
        uint32_t depth = i / 2 % 5; /* 0: no lanes; 4: nor any drops */
        if (depth == 0 || depth == 4)
            bed_open(&bed, schedules[i / 30], i / 10 % 3 + 1, depth == 0);
        else
            bed_open_lanes(&bed, schedules[i / 30], i / 10 % 3 + 1, depth);
        bed.o.has_loss_chunks = i % 2 == 1;
        bed_build(&bed);
        want_pass(&bed);
    }
}

/* Blocks that are gathered, and exchanges under way, when the nth compute of a block begins. */
TEST(test_program__a_block_is_gathered_while_the_one_in_front_is_computed)
{
    struct bed bed;
    uint32_t ahead = 0, behind = 0, most_behind = 0, gathered = 0, exchanged = 0, waited = 0;
    bed_open_lanes(&bed, PIPE_GPIPE, 1, 1);
    for (uint32_t i = 0; i < bed.ranks[0]->num_ops; i++) {
        const struct op *op = &bed.ranks[0]->ops[i];
        gathered += op->kind == OP_GATHER;
        exchanged += op->kind == OP_EXCHANGE;
        if (op->kind == OP_EXCHANGE || op->kind == OP_GATHER)
            assert_int_not_equal(op->lane, LANE_COMPUTE);
        if (op->after[LANE_GATHER] > 0 && op->kind == OP_FORWARD)
            for (uint32_t later = op->after[LANE_GATHER]; later < i; later++)
                ahead += bed.ranks[0]->ops[later].kind == OP_GATHER;
        if (op->kind != OP_BACKWARD)
            continue;
        waited = op->after[LANE_REDUCE] > waited ? op->after[LANE_REDUCE] : waited;
        behind = 0;
        for (uint32_t at = waited; at < i; at++)
            behind += bed.ranks[0]->ops[at].kind == OP_EXCHANGE;
        most_behind = behind > most_behind ? behind : most_behind;
    }
    assert_true(gathered > 0 && exchanged > 0);
    assert_true(ahead >= 5 * 5); /* all forwards but the last block's, of five leaves */
    assert_int_equal(most_behind, 1);
    bed_close(&bed);
}

/* Removes one wait after the other from a program: the check detects those that are not
 * redundant. */
TEST(test_program__a_missing_wait_between_lanes_is_found)
{
    struct bed bed;
    uint32_t num_missed = 0;
    bed_open_lanes(&bed, PIPE_1F1B, 1, 1);
    struct program *p = bed.ranks[0];
    uint32_t waited = 0;
    for (uint32_t i = 0; i < p->num_ops; i++) {
        struct op *op = &p->ops[i];
        uint32_t after = op->after[LANE_GATHER];
        bool is_new = after > waited && op->kind != OP_REDUCE;
        waited = after > waited ? after : waited;
        if (!is_new)
            continue;
        op->after[LANE_GATHER] = 0;
        want_refused_with(&bed, "does not wait for the gather");
        op->after[LANE_GATHER] = after;
        num_missed++;
    }
    assert_true(num_missed > 30);
    for (uint32_t i = 0; i < p->num_ops; i++)
        if (p->ops[i].kind == OP_REDUCE)
            p->ops[i].after[LANE_REDUCE] = 0;
    want_refused_with(&bed, "a lane is still at work");
    bed_close(&bed);
}

/* Swaps neighbours. */
static void want_swap_refused(struct bed *bed, enum op_kind first, enum op_kind second,
                              const char *reason)
{
    struct program *p = bed->ranks[0];
    uint32_t at = 0;
    while (p->ops[at].kind != first || p->ops[at + 1].kind != second)
        at++;
    struct op op = p->ops[at];
    for (int round = 0; round < 2; round++) {
        p->ops[at] = p->ops[at + 1];
        p->ops[at + 1] = op;
        op = p->ops[at];
        assert_int_equal(check(bed), round == 0 ? ERR_INVALID : 0);
        assert_true(round == 1 || strstr(report_message(), reason) != NULL);
    }
}

TEST(test_program__a_step_ends_in_order_and_updates_behind_a_saves_copies)
{
    struct bed bed;
    uint32_t num_updates = 0;
    bed_open(&bed, PIPE_1F1B, 2, true);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < bed.ranks[r]->num_ops; i++) {
            struct op *op = &bed.ranks[r]->ops[i];
            uint32_t after = op->after[LANE_COPY];
            if (op->kind != OP_UPDATE)
                continue;
            assert_int_equal(bed.ranks[r]->ops[after - 1].block, op->block);
            op->after[LANE_COPY] = after - 1;
            want_refused_with(&bed, "does not wait for the copy");
            op->after[LANE_COPY] = after;
            num_updates++;
        }
    assert_int_equal(num_updates, 6 + 1); /* the tied matrix on both ranks */
    want_swap_refused(&bed, OP_LOSSES, OP_UPDATE, "norm and loss are not known");
    want_swap_refused(&bed, OP_UPDATE, OP_SPREAD, "the parameters have been spread");
    bed_close(&bed);
}

static bool is_compute(const struct op *op)
{
    return op->kind == OP_FORWARD || op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_INPUT ||
           op->kind == OP_BACKWARD_WEIGHT;
}

/* Receives of a rank after which blocks of another leaf or stage are computed. */
static uint32_t count_ahead(const struct program *p)
{
    uint32_t ahead = 0;
    for (uint32_t i = 0; i < p->num_ops; i++) {
        uint32_t from = p->ops[i].after[LANE_RECEIVE], at = from;
        while (from > 0 && at < i && !is_compute(&p->ops[at]))
            at++;
        ahead += from > 0 && at < i;
    }
    return ahead;
}

TEST(test_program__what_a_stage_needs_comes_while_it_computes)
{
    static const uint32_t want[2] = {4, 4}; /* of five leaves all but the one that comes first */
    struct bed bed;
    bed_open_lanes(&bed, PIPE_GPIPE, 2, 1);
    for (uint32_t r = 0; r < 2; r++)
        assert_in_range(count_ahead(bed.ranks[r]), want[r], 5);
    bed_close(&bed);
}

/* Takes one wait after the other out of the programs of a pipeline. */
static void want_no_wait_missing(enum lane_of lane, enum pipe_schedule schedule, const char *reason)
{
    struct bed bed;
    uint32_t num_missed = 0;
    bed_open_lanes(&bed, schedule, 2, 1);
    for (uint32_t at = 0; at < bed.ranks[0]->num_ops + bed.ranks[1]->num_ops; at++) {
        uint32_t of_first = bed.ranks[0]->num_ops;
        struct op *op = at < of_first ? &bed.ranks[0]->ops[at] : &bed.ranks[1]->ops[at - of_first];
        uint32_t after = op->after[lane];
        if (after == 0)
            continue;
        op->after[lane] = 0;
        want_refused_with(&bed, reason);
        op->after[lane] = after;
        num_missed++;
    }
    assert_true(num_missed >= 4);
    bed_close(&bed);
}

TEST(test_program__a_missing_wait_between_stages_is_found)
{
    want_no_wait_missing(LANE_RECEIVE, PIPE_GPIPE, "");
    want_no_wait_missing(LANE_RECEIVE, PIPE_ZBH1, "");
    want_no_wait_missing(LANE_SEND, PIPE_1F1B, "what was sent from its buffer before");
}

/* ---- the ring of context parallel ---- */

/* Layers keep all, products, nothing, all. */
static void bed_rebuild_in_ring(struct bed *bed, bool is_ahead)
{
    static const uint8_t keep[] = {MODEL_KEEP_ALL, MODEL_KEEP_PRODUCTS, MODEL_KEEP_NOTHING,
                                   MODEL_KEEP_ALL};
    memcpy(bed->keep, keep, sizeof(keep));
    bed->o.has_ring = true;
    bed->o.ring_ahead = is_ahead;
    bed_build(bed);
}

static void bed_open_ring(struct bed *bed)
{
    bed_open(bed, PIPE_1F1B, 1, true);
    bed_rebuild_in_ring(bed, true);
}

TEST(test_program__keys_and_values_go_around_in_every_schedule)
{
    for (uint32_t i = 0; i < NUM_SCHEDULES * 2 * 2; i++) {
        struct bed bed;
        uint32_t rings = 0;
        bed_open_lanes(&bed, schedules[i / 4], i / 2 % 2 + 1, 1);
        bed_rebuild_in_ring(&bed, i % 2 == 1);
        for (uint32_t r = 0; r < bed.o.num_ranks; r++)
            for (uint32_t at = 0; at < bed.ranks[r]->num_ops; at++)
                rings += bed.ranks[r]->ops[at].kind == OP_RING;
        /* Leaves, layers, directions: for a recomputation no more. */
        assert_int_equal(rings, 5 * 4 * 2);
        want_pass(&bed);
    }
}

/* All except those of the layer that keeps nothing, whose keys are not there. */
TEST(test_program__a_ring_of_a_backward_goes_while_the_block_behind_is_computed)
{
    struct bed bed;
    uint32_t ahead = 0;
    bed_open_ring(&bed);
    const struct program *p = bed.ranks[0];
    for (uint32_t at = 0; at < p->num_ops; at++) {
        const struct op *op = &p->ops[at];
        uint32_t next = at + 1;
        if (op->kind != OP_RING || !op->is_second)
            continue;
        while (p->ops[next].kind != OP_BACKWARD)
            next++;
        ahead += p->ops[next].block == op->block + 1;
        assert_int_equal(op->lane, LANE_RING);
    }
    assert_int_equal(ahead, 5 * 3);
    bed_close(&bed);
}

TEST(test_program__a_ring_missing_or_twice_is_found)
{
    want_refused_of(bed_open_ring, 0, remove_op);
    want_refused_of(bed_open_ring, 0, double_op);
}

/* One layer more ahead: it would lay down its keys where those of the layer at hand are read. */
TEST(test_program__a_ring_two_layers_ahead_is_found)
{
    struct bed bed;
    uint32_t at = 0, early = 0;
    bed_open_ring(&bed);
    struct program *p = bed.ranks[0];
    while (p->ops[at].kind != OP_RING || !p->ops[at].is_second || p->ops[at].block != 2)
        at++;
    while (p->ops[early].kind != OP_RING || !p->ops[early].is_second)
        early++;
    struct op op = p->ops[at];
    memmove(&p->ops[early + 1], &p->ops[early], (at - early) * sizeof(op));
    p->ops[early] = op;
    want_refused_with(&bed, "there is no room for its keys");
    bed_close(&bed);
}

TEST(test_program__a_missing_wait_for_the_ring_is_found)
{
    struct bed bed;
    uint32_t num_missed = 0;
    bed_open_ring(&bed);
    for (uint32_t at = 0; at < bed.ranks[0]->num_ops; at++) {
        struct op *op = &bed.ranks[0]->ops[at];
        uint32_t after = op->after[LANE_RING];
        op->after[LANE_RING] = 0;
        bool was_waited_for =
            op->kind == OP_BACKWARD && op->block == 3; /* by recomputed operations */
        if (after > 0 && !was_waited_for && check(&bed) != ERR_INVALID)
            fail_msg("operation %u (%s) waits for no ring, and it passes", at, op_name(op->kind));
        op->after[LANE_RING] = after;
        num_missed += after > 0;
    }
    /* Each forward and backward, and the recomputation of all. */
    assert_int_equal(num_missed, 5 * (4 + 4 + 1));
    bed_close(&bed);
}

/* ---- printing ---- */

/* The second of two stages of four blocks, one leaf: each number of an operation is listed. */
TEST(test_program__a_list_tells_what_each_operation_waits_for)
{
    static const char want[] =
        "rank 1 of the pipeline: 23 operations, 1 leaves, 2 under way at most\n"
        "     0  ask_stop         stage 1 leaf 0\n"
        "     1  read             stage 1 leaf 0\n"
        "     2  begin            stage 1 leaf 0\n"
        "     3  receive          stage 1 leaf 0 peer 0 lane receive\n"
        "     4  gather           stage 1 leaf 0 block 2 lane gather\n"
        "     5  gather           stage 1 leaf 0 block 3 lane gather\n"
        "     6  forward          stage 1 leaf 0 block 2 after 4 after 3\n"
        "     7  drop             stage 1 leaf 0 block 2\n"
        "     8  gather           stage 1 leaf 0 block 2 lane gather\n"
        "     9  forward          stage 1 leaf 0 block 3 after 5\n"
        "    10  loss             stage 1 leaf 0 block 3\n"
        "    11  backward         stage 1 leaf 0 block 3 after 5\n"
        "    12  drop             stage 1 leaf 0 block 3\n"
        "    13  recompute        stage 1 leaf 0 block 2 after 8\n"
        "    14  backward         stage 1 leaf 0 block 2 after 8\n"
        "    15  exchange         stage 1 leaf 0 block 2 to 3 lane reduce\n"
        "    16  drop             stage 1 leaf 0 block 2\n"
        "    17  send_gradient    stage 1 leaf 0 peer 0 lane send\n"
        "    18  reduce           stage 0 leaf 0 after 8 after 15\n"
        "    19  norm             stage 0 leaf 0\n"
        "    20  losses           stage 0 leaf 0\n"
        "    21  update           stage 1 leaf 0 block 2\n"
        "    22  update           stage 1 leaf 0 block 3\n";
    static const uint32_t first_block[] = {0, 2, 4};
    static const uint8_t keep[] = {MODEL_KEEP_ALL, MODEL_KEEP_NOTHING}, ends_bucket[5] = {0};
    const struct program_options o = {.num_blocks = 4,
                                      .keep = keep,
                                      .num_ranks = 2,
                                      .rank = 1,
                                      .chunks = 1,
                                      .first_block = first_block,
                                      .ends_bucket = ends_bucket,
                                      .schedule = PIPE_1F1B,
                                      .num_leaves = 1,
                                      .gather_ahead = 1,
                                      .exchange_behind = 1,
                                      .receives_ahead = true,
                                      .drops = true};
    struct program *p = NULL;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_int_equal(program_build(&p, &o), 0);
    program_print(p, out);
    fclose(out);
    assert_string_equal(text, want);
    free(text);
    program_free(p);
}

SUITE(NULL, NULL)
