/* ckptd_coordinating.c - how a save's coordinator handles reports of other nodes
 * (ckptd/machines/coordinating.c).
 *
 * Goal: the reports that fail a save or not, the answers about a save that is over, and
 * coordinating.C2 to C7. Method: one event at a time, on a save of three ranks: one at the
 * coordinator's node, one at node 1, one at node 2. tests/unit/ckptd_sim_nodes.c tests the way to a
 * commit, with nodes, trainers and failures together. */
#include "ckptd/machines/coordinating.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#define RANKS 3u
#define COMMITTED HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED
#define KEPT HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT
#define OVER HOLDFAST__V1__PART_VERDICT__VERDICT_OVER
#define BEGUN HOLDFAST__V1__PART_STATE__PART_BEGUN
#define ENDED HOLDFAST__V1__PART_STATE__PART_ENDED
#define DURABLE HOLDFAST__V1__PART_STATE__PART_DURABLE
#define FAILED HOLDFAST__V1__PART_STATE__PART_FAILED

static const struct coordinating_report node_1 = {.node = 1, .num_parts = 1};
static const struct coordinating_report node_1_placed = {
    .node = 1, .num_parts = 1, .says_placed = true};

/* The save, and the known facts about its ranks. */
static struct bed {
    struct commit commit;
    struct commit_actions actions;
    struct coordinating coordinating;
    uint64_t save;
    struct coordinating_rank ranks[RANKS];
} bed;

static struct coordinating_rank rank_of(const void *user, uint32_t rank)
{
    return ((const struct bed *)user)->ranks[rank];
}

static const struct coordinating_ranks ranks = {rank_of, &bed};

/* That many ranks have begun. */
static void begin(uint32_t num_ranks)
{
    static const struct bed empty = {.ranks = {{.node = 0}, {.node = 1}, {.node = 2}}};
    bed = empty;
    commit_init(&bed.commit, 0);
    assert_int_equal(commit_open(&bed.commit, &bed.actions, RANKS), 0);
    commit_taken(&bed.commit, &bed.actions, 1, 0);
    for (uint32_t i = 0; i < num_ranks; i++)
        assert_int_equal(commit_begin(&bed.commit, &bed.actions, &bed.save, 1, i, 1), 0);
    bed.actions.count = 0;
}

static const struct commit_save *save(void)
{
    return commit_find(&bed.commit, bed.save);
}

static void tell(uint32_t rank, Holdfast__V1__PartState state)
{
    coordinating_part(&bed.commit, &bed.actions, bed.save,
                      &(struct coordinating_part){rank, rank, state, 0});
}

static struct coordinating_loss report(const struct coordinating_report *what)
{
    return coordinating_reported(&bed.coordinating, &bed.commit, &bed.actions, bed.save, what,
                                 &ranks);
}

static struct coordinating_answer answer(const struct coordinating_report *what)
{
    return coordinating_answer(&bed.coordinating, &bed.commit, bed.save, what);
}

static struct coordinating_loss look(uint32_t restarted)
{
    return coordinating_check_ranks(&bed.commit, &bed.actions, bed.save, &ranks, restarted);
}

/* The holders are to have the manifest. */
static void begin_placing(void)
{
    begin(RANKS);
    commit_ended(&bed.commit, &bed.actions, bed.save, 0);
    commit_durable(&bed.commit, &bed.actions, bed.save, 0);
    tell(1, DURABLE);
    tell(2, DURABLE);
    commit_names_synced(&bed.commit, &bed.actions, bed.save, 0);
    commit_published(&bed.commit, &bed.actions, bed.save, OUTCOME_DURABLE, 0);
    assert_int_equal(save()->state, COMMIT_PLACING);
    bed.actions.count = 0;
}

/* coordinating.C6. */
TEST(test_coordinating__what_fails_or_has_no_digests_fails_the_save)
{
    static const struct coordinating_part parts[] = {{1, 1, FAILED, 0},
                                                     {1, 1, DURABLE, ERR_CORRUPT}};
    static const int errors[] = {ERR_ABORTED, ERR_CORRUPT};
    for (uint32_t i = 0; i < 2; i++) {
        begin(RANKS);
        coordinating_part(&bed.commit, &bed.actions, bed.save, &parts[i]);
        assert_int_equal(bed.actions.count, 1);
        assert_int_equal(bed.actions.items[0].kind, COMMIT_DISCARD);
        assert_int_equal(bed.actions.items[0].error, errors[i]);
        assert_int_equal(bed.actions.items[0].rank, 1);
        assert_int_equal(answer(&node_1).verdict, OVER);
    }
}

/* coordinating.C2, coordinating.C3. */
TEST(test_coordinating__what_is_over_is_told_by_what_is_known)
{
    static const struct {
        bool says_placed;
        struct coordinating_past past;
        bool is_told;
        Holdfast__V1__PartVerdict verdict;
    } rows[] = {
        {false, {.is_here = false}, true, OVER},
        {false, {.is_unsure = true}, false, OVER},
        {true, {.is_unsure = true}, false, OVER},
        {false, {.is_here = true}, true, KEPT},
        {true, {.is_here = true}, true, KEPT},
        {false, {.is_here = true, .was_committed = true}, true, KEPT},
        {true, {.is_here = true, .was_committed = true}, true, COMMITTED},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Holdfast__V1__PartVerdict verdict;
        assert_int_equal(coordinating_recall(&verdict, rows[i].says_placed, &rows[i].past),
                         rows[i].is_told);
        assert_true(!rows[i].is_told || verdict == rows[i].verdict);
    }
}

/* coordinating.C7. */
TEST(test_coordinating__an_attempt_is_over_only_when_another_has_come)
{
    begin(RANKS);
    assert_int_equal(coordinating_check(&bed.commit, 1, true), 0);
    assert_int_equal(coordinating_check(&bed.commit, 1, false), ERR_UNAVAILABLE);
    assert_int_equal(coordinating_check(&bed.commit, 2, true), ERR_STALE);
    commit_init(&bed.commit, 1); /* it was started again */
    assert_int_equal(coordinating_check(&bed.commit, 1, false), ERR_UNAVAILABLE);
    assert_int_equal(commit_resume(&bed.commit, 1, RANKS), 0);
    assert_int_equal(coordinating_check(&bed.commit, 1, false), ERR_UNAVAILABLE);
    commit_init(&bed.commit, 2);
    assert_int_equal(coordinating_check(&bed.commit, 1, true), ERR_STALE);
}

/* coordinating.C5. */
TEST(test_coordinating__another_boot_id_is_a_restart)
{
    uint64_t known = 0;
    assert_false(coordinating_hear_boot(&known, 7));
    assert_false(coordinating_hear_boot(&known, 7));
    assert_false(coordinating_hear_boot(&known, 0)); /* of a release that reports none */
    assert_true(coordinating_hear_boot(&known, 8));
    assert_false(coordinating_hear_boot(&known, 8));
}

/* coordinating.C4, coordinating.C5: of rank 1 at node 1, in each of its states. */
TEST(test_coordinating__a_save_waits_for_a_rank_while_its_node_tells_of_it)
{
    static const struct {
        Holdfast__V1__PartState told;
        bool has_begun, is_silent, is_unnamed;
        uint32_t restarted;
        enum coordinating_loss_kind kind;
    } rows[] = {
        {BEGUN, true, false, true, 0, COORDINATING_NONE},
        {BEGUN, true, true, false, 0, COORDINATING_SILENT},
        {ENDED, true, true, false, 0, COORDINATING_SILENT},
        {DURABLE, true, true, true, 0, COORDINATING_NONE}, /* nothing of it is missing */
        {BEGUN, true, true, true, 2, COORDINATING_NONE},
        {BEGUN, true, false, false, 1, COORDINATING_RESTARTED},
        {ENDED, true, false, false, 1, COORDINATING_RESTARTED},
        {DURABLE, true, false, false, 1, COORDINATING_NONE},
        {BEGUN, false, true, false, 0, COORDINATING_NONE},
        {BEGUN, false, false, true, 0, COORDINATING_UNNAMED},
        {BEGUN, false, false, true, 1, COORDINATING_NONE}, /* it begins when it is back */
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin(rows[i].has_begun ? 2 : 1);
        tell(1, rows[i].told);
        bed.ranks[0] = (struct coordinating_rank){0, true, true}; /* its own: commit_rank_died */
        bed.ranks[1] = (struct coordinating_rank){1, rows[i].is_silent, rows[i].is_unnamed};
        const struct coordinating_loss loss = look(rows[i].restarted);
        assert_int_equal(loss.kind, rows[i].kind);
        assert_int_equal(bed.actions.count, rows[i].kind != COORDINATING_NONE);
        if (rows[i].kind == COORDINATING_NONE)
            continue;
        assert_int_equal(loss.rank, 1);
        assert_int_equal(loss.node, 1);
        assert_int_equal(bed.actions.items[0].kind, COMMIT_DISCARD);
        assert_int_equal(look(rows[i].restarted).kind, COORDINATING_NONE); /* once */
    }
}

TEST(test_coordinating__a_save_whose_holder_has_left_is_kept)
{
    for (uint32_t has_placed = 0; has_placed < 2; has_placed++) {
        begin_placing();
        if (has_placed)
            report(&node_1_placed);
        bed.ranks[1].is_silent = true;
        assert_int_equal(look(0).kind, has_placed ? COORDINATING_NONE : COORDINATING_SILENT);
        assert_int_equal(bed.actions.count, !has_placed);
        if (!has_placed)
            assert_int_equal(bed.actions.items[0].kind, COMMIT_KEEP);
    }
}

SUITE(NULL, NULL)
