/* ckptd_copies.c - which copies of a checkpoint there are, and what they survive.
 *
 * Goal: a part is no copy; a level is said only of what is there; what lies on a node that does not
 * answer is out of reach unless another has it; a node that refuses is passed over. Method: a
 * checkpoint of four shards on three of four nodes, in a catalog without a store. */
#include "ckptd/catalog.h"
#include "ckptd/config.h"
#include "ckptd/copies.h"
#include "ckptd/drain/queue.h"
#include "ckptd/service.h"
#include "proto/places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
    struct places places = {
        .num_nodes = 3, .num_shards = 4, .nodes = {"n1", "n2", "n3"}, .shards = shards};
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
    w->checkpoint.copies[TIER_LOCAL].is_there = true;
    assert_int_equal(catalog_set_places(&w->checkpoint, TIER_LOCAL, &places), 0);
    return w;
}

static void free_world(struct world *w)
{
    free(w->checkpoint.places);
    free(w->checkpoint.tier_text);
    free(w);
}

static void test_copies__parts_on_three_nodes_are_of_the_level_local(void **state)
{
    (void)state;
    struct world *w = new_world();
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_LOCAL);
    assert_string_equal(copies_names(&w->checkpoint), "local (part),n2 (part),n3 (part)");
    assert_false(catalog_has_whole(&w->checkpoint, N2));
    assert_true(copies_has_shard(&w->checkpoint, N2, 2));
    assert_false(copies_has_shard(&w->checkpoint, N2, 3));
    free_world(w);
}

static void
test_copies__a_whole_copy_elsewhere_makes_it_replicated_while_all_parts_are_there(void **state)
{
    (void)state;
    struct world *w = new_world();
    catalog_completed(&w->checkpoint, N4);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_REPLICATED);
    w->checkpoint.copies[N3] = (struct copy){0};
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_LOCAL);
    free_world(w);
}

static void test_copies__two_of_the_parts_must_become_whole(void **state)
{
    (void)state;
    struct world *w = new_world();
    catalog_completed(&w->checkpoint, TIER_LOCAL);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_LOCAL);
    catalog_completed(&w->checkpoint, N3);
    assert_int_equal(catalog_durability(&w->checkpoint), DURABLE_REPLICATED);
    free_world(w);
}

static void test_copies__one_that_refuses_is_passed_over(void **state)
{
    (void)state;
    struct world *w = new_world();
    assert_true(copies_goes(&w->checkpoint, N4)); /* which has none of the parts */
    w->service.tiers[N4].takes_nothing = true;
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    w->service.tiers[N4].takes_nothing = false;
    w->checkpoint.copies[N4].is_given_up = true;
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    assert_false(copies_goes(&w->checkpoint, N4));
    free_world(w);
}

static void test_copies__what_is_chosen_counts_for_one_look(void **state)
{
    (void)state;
    struct world *w = new_world();
    assert_int_equal(copies_open(&w->service), 0);
    copies_begin_look(&w->service);
    assert_true(copies_goes(&w->checkpoint, N4));
    w->service.tiers[N4].takes_nothing = true; /* which no look sees happen */
    assert_true(copies_goes(&w->checkpoint, N4));
    copies_end_look(&w->service);
    assert_false(copies_goes(&w->checkpoint, N4));
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    copies_begin_look(&w->service);
    assert_false(copies_goes(&w->checkpoint, N4));
    assert_true(copies_goes(&w->checkpoint, TIER_LOCAL));
    copies_end_look(&w->service);
    copies_close(&w->service);
    free_world(w);
}

static void test_copies__shards_of_a_node_that_does_not_answer_are_out_of_reach(void **state)
{
    (void)state;
    struct world *w = new_world();
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    strcpy(w->service.tiers[N3].offline, "gone");
    assert_int_equal(copies_out_of_reach(&w->checkpoint), N3);
    catalog_completed(&w->checkpoint, N4);
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    assert_int_equal(catalog_shard_source(&w->checkpoint, 3), N4);
    assert_int_equal(catalog_shard_source(&w->checkpoint, 2), N2);
    free_world(w);
}

static void test_copies__a_whole_one_on_a_node_that_does_not_answer_is_out_of_reach(void **state)
{
    (void)state;
    struct world *w = new_world();
    free(w->checkpoint.places);
    w->checkpoint.places = NULL;
    memset(w->checkpoint.copies, 0, sizeof w->checkpoint.copies);
    w->checkpoint.copies[N3].is_there = true;
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    strcpy(w->service.tiers[N3].offline, "gone");
    assert_int_equal(copies_out_of_reach(&w->checkpoint), N3);
    w->checkpoint.copies[TIER_FAR].is_there = true;
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    w->checkpoint.copies[N3] = (struct copy){0};
    strcpy(w->service.tiers[TIER_FAR].offline, "gone"); /* a start waits for it, see open.c */
    assert_int_equal(copies_out_of_reach(&w->checkpoint), NUM_TIERS);
    free_world(w);
}

static void test_copies__a_part_is_next_only_while_a_node_answers_for_each_shard(void **state)
{
    (void)state;
    struct world *w = new_world();
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
    free_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies__parts_on_three_nodes_are_of_the_level_local),
        cmocka_unit_test(
            test_copies__a_whole_copy_elsewhere_makes_it_replicated_while_all_parts_are_there),
        cmocka_unit_test(test_copies__two_of_the_parts_must_become_whole),
        cmocka_unit_test(test_copies__one_that_refuses_is_passed_over),
        cmocka_unit_test(test_copies__what_is_chosen_counts_for_one_look),
        cmocka_unit_test(test_copies__shards_of_a_node_that_does_not_answer_are_out_of_reach),
        cmocka_unit_test(test_copies__a_whole_one_on_a_node_that_does_not_answer_is_out_of_reach),
        cmocka_unit_test(test_copies__a_part_is_next_only_while_a_node_answers_for_each_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
