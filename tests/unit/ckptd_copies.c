/* ckptd_copies.c - the copies of a checkpoint, and the losses that they survive.
 *
 * Goal: a part is no copy. A level counts only existing copies. A copy on a node that does not
 * answer is unreachable unless another node has it. A node that refuses is skipped. Method: a
 * checkpoint of four shards on three of four nodes, in a catalog without a store. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/service.h"
#include "ckptd/tiers/queue.h"
#include "proto/format/places.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N2 TIER_PEER
#define N3 ((enum tier_index)(TIER_PEER + 1))
#define N4 ((enum tier_index)(TIER_PEER + 2))

/* This node is n1; n1, n2 and n3 have parts. */
struct world {
    struct config config;
    struct service service;
    struct run run;
    struct checkpoint checkpoint;
};

static struct world *new_world(void)
{
    static uint16_t shards[] = {0, 0, 1, 2};
    static char nodes[][PLACES_NODE_BYTES] = {"n1", "n2", "n3"};
    struct places places = {.num_nodes = 3, .num_shards = 4, .nodes = nodes, .shards = shards};
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->config.nodes_replicas = 2;
    snprintf(w->config.nodes_name, sizeof w->config.nodes_name, "n1");
    snprintf(w->config.nodes_domain, sizeof w->config.nodes_domain, "a");
    assert_int_equal(members_parse(&w->config.members, "n1", "n2@b=h:1,n3@c=h:2,n4@d=h:3"), 0);
    w->service.config = &w->config;
    w->run.service = &w->service;
    w->checkpoint.run = &w->run;
    w->checkpoint.summary.shards = 4;
    copies_init(&w->checkpoint);
    w->checkpoint.copies.local.is_there = true;
    assert_int_equal(catalog_set_places(&w->checkpoint, TIER_LOCAL, &places), 0);
    return w;
}

static void free_world(struct world *w)
{
    copies_free(&w->checkpoint);
    free(w->checkpoint.places);
    free(w->checkpoint.tier_text);
    free(w);
}

static int set_up(void **state)
{
    *state = new_world();
    return 0;
}

static int tear_down(void **state)
{
    free_world(*state);
    return 0;
}

#define COPIES_TEST(name) TEST_WITH(struct world *w, name, set_up, tear_down)

COPIES_TEST(test_copies__parts_on_three_nodes_are_of_the_level_local)
{
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_LOCAL);
    assert_string_equal(copies_names(&w->checkpoint), "local (part),n2 (part),n3 (part)");
    assert_false(catalog_has_whole(&w->checkpoint, N2));
    assert_true(copies_has_shard(&w->checkpoint, N2, 2));
    assert_false(copies_has_shard(&w->checkpoint, N2, 3));
}

TEST(test_copies__a_whole_copy_elsewhere_makes_it_replicated_while_all_parts_are_there)
{
    struct world *w = new_world();
    catalog_completed(&w->checkpoint, N4);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_REPLICATED);
    copies_forget(&w->checkpoint, N3);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_LOCAL);
    free_world(w);
    w = new_world(); /* or two of the parts become whole */
    catalog_completed(&w->checkpoint, TIER_LOCAL);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_LOCAL);
    catalog_completed(&w->checkpoint, N3);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_REPLICATED);
    free_world(w);
}

COPIES_TEST(test_copies__one_that_refuses_is_passed_over)
{
    assert_true(copies_goes(&w->checkpoint, N4)); /* which has none of the parts */
    w->service.tiers[N4].takes_nothing = true;
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    w->service.tiers[N4].takes_nothing = false;
    copies_note(&w->checkpoint, N4)->is_given_up = true;
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    assert_false(copies_goes(&w->checkpoint, N4));
}

COPIES_TEST(test_copies__what_is_chosen_counts_for_one_look)
{
    assert_int_equal(copies_open(&w->service), 0);
    copies_begin_scan(&w->service);
    assert_true(copies_goes(&w->checkpoint, N4));
    w->service.tiers[N4].takes_nothing = true; /* which no look sees happen */
    assert_true(copies_goes(&w->checkpoint, N4));
    copies_end_scan(&w->service);
    assert_false(copies_goes(&w->checkpoint, N4));
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    copies_begin_scan(&w->service);
    assert_false(copies_goes(&w->checkpoint, N4));
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    copies_end_scan(&w->service);
    copies_close(&w->service);
}

COPIES_TEST(test_copies__shards_of_a_node_that_does_not_answer_are_out_of_reach)
{
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    strcpy(w->service.tiers[N3].offline, "gone");
    assert_int_equal(copies_out_of_reach(&w->checkpoint), N3);
    catalog_completed(&w->checkpoint, N4);
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    assert_int_equal(catalog_shard_source(&w->checkpoint, 3), N4);
    assert_int_equal(catalog_shard_source(&w->checkpoint, 2), N2);
}

COPIES_TEST(test_copies__a_whole_one_on_a_node_that_does_not_answer_is_out_of_reach)
{
    free(w->checkpoint.places);
    w->checkpoint.places = NULL;
    for (enum tier_index tier = TIER_LOCAL; tier <= N4; tier++)
        copies_forget(&w->checkpoint, tier);
    copies_note(&w->checkpoint, N3)->is_there = true;
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    strcpy(w->service.tiers[N3].offline, "gone");
    assert_int_equal(copies_out_of_reach(&w->checkpoint), N3);
    w->checkpoint.copies.far.is_there = true;
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    copies_forget(&w->checkpoint, N3);
    strcpy(w->service.tiers[TIER_FAR].offline, "gone"); /* a start waits for it, see open.c */
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
}

COPIES_TEST(test_copies__a_part_is_next_only_while_a_node_answers_for_each_shard)
{
    struct catalog catalog = {.runs = &w->run, .num_runs = 1};
    uint64_t left, bytes;
    w->service.catalog = &catalog;
    w->run.checkpoints = &w->checkpoint;
    w->service.tiers[N4].takes_nothing = true; /* so this node is to have all of it */
    assert_ptr_equal(queue_next(&w->service, TIER_LOCAL, &left, &bytes), &w->checkpoint);
    strcpy(w->service.tiers[N3].offline, "gone");
    assert_null(queue_next(&w->service, TIER_LOCAL, &left, &bytes));
    assert_int_equal(left, 0);
    w->service.tiers[N3].offline[0] = '\0';
    assert_ptr_equal(queue_next(&w->service, TIER_LOCAL, &left, &bytes), &w->checkpoint);
}

/* ---- many nodes ---- */

enum { RUNS = 4, STEPS = 250 };

/* This node and as many peers as there may be. Of each run the newest of STEPS checkpoints is here
 * alone, and of the others each peer but the last has some. */
struct cluster {
    struct config config;
    struct service service;
    struct catalog catalog;
    struct run runs[RUNS];
    struct checkpoint checkpoints[RUNS][STEPS];
};

static void add_peers(struct cluster *cluster)
{
    enum { ITEM = 32 };
    char *text = calloc(MEMBERS_PEERS_MAX, ITEM);
    assert_non_null(text);
    size_t used = 0;
    for (unsigned i = 0; i < MEMBERS_PEERS_MAX; i++)
        used += (size_t)snprintf(text + used, ITEM, "p%u@d%u=h:1,", i, i);
    assert_int_equal(members_parse(&cluster->config.members, "n1", text), 0);
    free(text);
}

static struct cluster *new_cluster(void)
{
    struct cluster *cluster = calloc(1, sizeof *cluster);
    assert_non_null(cluster);
    cluster->config.nodes_replicas = 2;
    snprintf(cluster->config.nodes_name, sizeof cluster->config.nodes_name, "n1");
    snprintf(cluster->config.nodes_domain, sizeof cluster->config.nodes_domain, "a");
    add_peers(cluster);
    cluster->service.config = &cluster->config;
    cluster->service.catalog = &cluster->catalog;
    assert_int_equal(copies_open(&cluster->service), 0);
    assert_int_equal(queue_open(&cluster->service), 0);
    for (int r = RUNS - 1; r >= 0; r--) {
        struct run *run = &cluster->runs[r];
        *run = (struct run){.service = &cluster->service, .next = cluster->catalog.runs};
        snprintf(run->name, sizeof run->name, "run-%d", r);
        cluster->catalog.runs = run;
        for (unsigned step = 0; step < STEPS; step++) {
            struct checkpoint *checkpoint = &cluster->checkpoints[r][step];
            *checkpoint = (struct checkpoint){.run = run, .next = run->checkpoints};
            checkpoint->summary.step = step;
            run->checkpoints = checkpoint;
            copies_init(checkpoint);
            checkpoint->copies.local.is_there = true;
            if (step < STEPS - 1)
                catalog_completed(checkpoint, TIER_PEER + step % (MEMBERS_PEERS_MAX - 1));
        }
    }
    return cluster;
}

static void free_cluster(struct cluster *cluster)
{
    for (int r = 0; r < RUNS; r++)
        for (unsigned step = 0; step < STEPS; step++)
            copies_free(&cluster->checkpoints[r][step]);
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        assert_null(cluster->service.tiers[tier].copies);
    queue_close(&cluster->service);
    copies_close(&cluster->service);
    free(cluster);
}

static int set_up_cluster(void **state)
{
    *state = new_cluster();
    return 0;
}

static int tear_down_cluster(void **state)
{
    free_cluster(*state);
    return 0;
}

/* Counts the copies that are due, over all peers. */
static uint64_t count_dues(const struct cluster *cluster)
{
    uint64_t all = 0, left, bytes;
    queue_begin_scan(&cluster->service);
    for (enum tier_index tier = TIER_PEER; tier < TIER_FAR; tier++) {
        const struct checkpoint *next = queue_next(&cluster->service, tier, &left, &bytes);
        assert_true((next != NULL) == (left > 0));
        all += left;
    }
    queue_end_scan(&cluster->service);
    return all;
}

#define CLUSTER_TEST(name) \
    TEST_WITH(struct cluster *cluster, name, set_up_cluster, tear_down_cluster)

CLUSTER_TEST(test_copies__a_checkpoint_has_a_record_of_each_node_that_has_it_alone)
{
    struct checkpoint *newest = cluster->runs[0].checkpoints, *older = newest->next;
    enum tier_index first = TIER_PEER, last = (enum tier_index)(TIER_FAR - 1);
    assert_int_equal(copies_count(newest), 3);
    assert_int_equal(copies_count(older), 4);
    catalog_completed(newest, last);
    catalog_completed(newest, first);
    assert_int_equal(copies_get(newest, 2)->tier, first);
    assert_int_equal(copies_get(newest, 3)->tier, last);
    assert_int_equal(copies_get(newest, 4)->tier, TIER_FAR);
    assert_ptr_equal(cluster->service.tiers[last].copies->checkpoint, newest);
    assert_true(catalog_lost(newest, first));
    assert_int_equal(copies_count(newest), 4);
    assert_false(copies_at(newest, first)->is_there);
    assert_true(copies_at(newest, last)->is_there);
}

CLUSTER_TEST(test_copies__of_many_nodes_the_first_are_named_and_the_others_counted)
{
    struct checkpoint *newest = cluster->runs[0].checkpoints;
    for (unsigned i = 0; i < 20; i++)
        catalog_completed(newest, (enum tier_index)(TIER_PEER + i));
    assert_string_equal(copies_names(newest), "local,p0,p1,p2,p3,p4,p5,p6,p7,p8,p9,p10,p11,p12,"
                                              "p13,p14,p15,4 more");
    free(newest->tier_text);
}

CLUSTER_TEST(test_copies__of_many_nodes_those_that_are_chosen_have_something_in_their_queues)
{
    assert_int_equal(count_dues(cluster), RUNS); /* the newest of each, and one more copy of it */
    struct checkpoint *older = cluster->runs[1].checkpoints->next->next;
    older->is_wanted_replicated = true; /* which it is */
    assert_int_equal(count_dues(cluster), RUNS);
    enum tier_index lost = TIER_PEER;
    cluster->service.tiers[lost].is_lost = true;
    cluster->service.num_lost = 1;
    strcpy(cluster->service.tiers[lost].offline, "gone");
    uint64_t had = 0;
    for (unsigned step = 0; step < STEPS - 1; step++)
        had += step % (MEMBERS_PEERS_MAX - 1) == 0;
    assert_int_equal(count_dues(cluster), RUNS + RUNS * had); /* made anew */
}

CLUSTER_TEST(test_copies__what_is_waited_for_goes_first_to_a_peer)
{
    struct run *run = &cluster->runs[0];
    struct checkpoint *older = run->checkpoints->next;
    uint64_t left, bytes;
    cluster->catalog.runs = run;
    run->next = NULL;
    copies_forget(older, (enum tier_index)(TIER_PEER + (STEPS - 2) % (MEMBERS_PEERS_MAX - 1)));
    older->is_wanted_replicated = true;
    for (enum tier_index tier = TIER_PEER; tier < TIER_FAR; tier++) {
        const struct checkpoint *next = queue_next(&cluster->service, tier, &left, &bytes);
        assert_true(next == NULL || (next == older && left == 2));
    }
    copies_note(older, TIER_PEER)->is_given_up = true;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

CLUSTER_TEST(test_copies__queues_of_many_nodes_cost_no_pass_over_the_checkpoints_each)
{
    uint64_t left, bytes;
    double begin = cpu_seconds();
    for (int i = 0; i < 10; i++)
        queue_next(&cluster->service, TIER_PEER, &left, &bytes);
    double one = cpu_seconds() - begin;
    begin = cpu_seconds();
    for (int i = 0; i < 10; i++)
        count_dues(cluster);
    double all = cpu_seconds() - begin;
    print_message("# a look at %d checkpoints: %.6f CPU s for one peer, %.6f for %u\n",
                  RUNS * STEPS, one / 10, all / 10, MEMBERS_PEERS_MAX);
    assert_true(all < 8 * one);
}

SUITE(NULL, NULL)
