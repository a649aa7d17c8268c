/* ckptd_placement.c - which node gets a copy, what copies survive, what a majority is.
 *
 * Goal: the invariants R1 to R5 of ckptd/nodes/placement.c. Method: the cases where a mistake would
 * be believed, and every cluster of up to five nodes in three domains: copies are sent as the
 * function says until it says no more, then any n - 1 domains are taken away. */
#include "ckptd/nodes/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_placement__a_second_copy_in_a_domain_counts_once(void **state)
{
    (void)state;
    const struct site sites[] = {
        {"a", true, false, 0}, {"b", true, false, 1}, {"b", true, false, 2}};
    assert_int_equal(placement_domains(sites, 3), 2);
    assert_int_equal(placement_domains(sites, 1), 1);
    assert_false(placement_goes(sites, 3, 2, 1));
}

static void test_placement__a_copy_goes_to_another_domain_than_its_own(void **state)
{
    (void)state;
    const struct site sites[] = {
        {"a", true, false, 0}, {"a", false, false, 1}, {"b", false, false, 2}};
    assert_false(placement_goes(sites, 3, 2, 1));
    assert_true(placement_goes(sites, 3, 2, 2));
    assert_false(placement_goes(sites, 3, 2, 0));
}

static void test_placement__one_who_is_away_is_replaced_and_not_when_it_alone_is_left(void **state)
{
    (void)state;
    struct site sites[] = {{"a", true, false, 0}, {"b", false, true, 1}, {"c", false, false, 2}};
    assert_false(placement_goes(sites, 3, 2, 1));
    assert_true(placement_goes(sites, 3, 2, 2));
    sites[2].is_away = true;
    assert_true(placement_goes(sites, 3, 2, 1)); /* when it comes back */
}

static void test_placement__half_of_the_nodes_are_no_majority(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 9; nodes++)
        for (uint32_t a = 0; a <= nodes; a++) /* and those that are left */
            assert_false(placement_is_majority(a, nodes) &&
                         placement_is_majority(nodes - a, nodes));
    assert_true(placement_is_majority(2, 3));
    assert_false(placement_is_majority(1, 2));
    assert_true(placement_is_majority(1, 1));
}

/* Sends what is to be sent, all at once, as the nodes do beside each other. */
static uint32_t send_all(struct site *sites, uint32_t count, uint32_t replicas)
{
    bool goes[5];
    uint32_t sent = 0;
    for (uint32_t i = 0; i < count; i++)
        goes[i] = placement_goes(sites, count, replicas, i);
    for (uint32_t i = 0; i < count; i++) {
        assert_false(goes[i] && sites[i].has_copy);
        sites[i].has_copy |= goes[i];
        sent += goes[i];
    }
    return sent;
}

static void check_cluster(uint32_t code, uint32_t count, uint32_t replicas)
{
    static const char *const domains[] = {"a", "b", "c"};
    struct site sites[5];
    uint32_t present[3] = {0}, num_domains = 0;
    for (uint32_t i = 0; i < count; i++, code /= 6) {
        sites[i] = (struct site){.domain = domains[code % 3],
                                 .has_copy = i == 0,
                                 .is_away = i > 0 && code / 3 % 2,
                                 .order = placement_order("run", domains[code % 3]) + i};
        num_domains += !present[code % 3]++;
    }
    uint32_t sent = send_all(sites, count, replicas);
    uint32_t wanted = replicas < num_domains ? replicas : num_domains;
    assert_int_equal(placement_domains(sites, count), wanted);
    assert_int_equal(sent, wanted - 1); /* R2, R3 */
    assert_int_equal(send_all(sites, count, replicas), 0);
}

static void
test_placement__any_cluster_gets_as_many_domains_as_it_has_and_no_copy_more(void **state)
{
    (void)state;
    for (uint32_t count = 1, codes = 6; count <= 5; count++, codes *= 6)
        for (uint32_t code = 0; code < codes; code++)
            for (uint32_t replicas = 1; replicas <= 4; replicas++)
                check_cluster(code, count, replicas);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placement__a_second_copy_in_a_domain_counts_once),
        cmocka_unit_test(test_placement__a_copy_goes_to_another_domain_than_its_own),
        cmocka_unit_test(test_placement__one_who_is_away_is_replaced_and_not_when_it_alone_is_left),
        cmocka_unit_test(test_placement__half_of_the_nodes_are_no_majority),
        cmocka_unit_test(
            test_placement__any_cluster_gets_as_many_domains_as_it_has_and_no_copy_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
