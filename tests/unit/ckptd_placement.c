/* ckptd_placement.c - which node gets a copy, and which losses the copies survive.
 *
 * Goal: the invariants placement.R1 to R5 of ckptd/machines/placement.c. Method: cases where a
 * mistake is likely, and every cluster of up to five nodes in three domains. Copies are sent as the
 * function decides until it stops, then any n - 1 domains are removed. With parts, every cluster of
 * up to four. */
#include "ckptd/machines/members.h"
#include "ckptd/machines/node_set.h"
#include "ckptd/machines/placement.h"
#include "proto/base/report.h"
#include "proto/format/places.h"
#include "tests/unit/placement_goes.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TEST(test_placement__a_second_copy_in_a_domain_counts_once)
{
    const struct site sites[] = {
        {"a", true, false, 0, false}, {"b", true, false, 1, false}, {"b", true, false, 2, false}};
    assert_int_equal(placement_domains(sites, 3), 2);
    assert_int_equal(placement_domains(sites, 1), 1);
    assert_false(placement_goes(sites, 3, 2, 1));
}

/* Sends all copies that are due at once, as the nodes do independently. */
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
    assert_int_equal(sent, wanted - 1); /* placement.R2, placement.R3 */
    assert_int_equal(send_all(sites, count, replicas), 0);
}

TEST(test_placement__any_cluster_gets_as_many_domains_as_it_has_and_no_copy_more)
{
    for (uint32_t count = 1, codes = 6; count <= 5; count++, codes *= 6)
        for (uint32_t code = 0; code < codes; code++)
            for (uint32_t replicas = 1; replicas <= 4; replicas++)
                check_cluster(code, count, replicas);
}

/* Which domains, a bit each, keep every shard of a checkpoint when they are lost? */
static bool survives(const struct site *sites, uint32_t count, uint32_t lost)
{
    bool has_whole = false, has_parts = true, is_any = false;
    for (uint32_t i = 0; i < count; i++) {
        bool is_lost = lost >> (sites[i].domain[0] - 'a') & 1;
        has_whole |= sites[i].has_copy && !is_lost;
        has_parts &= !sites[i].has_part || !is_lost;
        is_any |= sites[i].has_part;
    }
    return has_whole || (is_any && has_parts);
}

/* As many copies as any n - 1 of three domains may be lost, and not any n. */
static void check_level(const struct site *sites, uint32_t count)
{
    uint32_t level = placement_domains(sites, count), worst = 3;
    for (uint32_t lost = 0; lost < 8; lost++) {
        uint32_t num = (uint32_t)__builtin_popcount(lost);
        if (!survives(sites, count, lost))
            worst = num - 1 < worst ? num - 1 : worst;
    }
    assert_int_equal(level, worst + 1);
}

/* As the nodes do it: this one fetches its missing shards before it sends to others that have a
 * part. */
static uint32_t send_parts(struct site *sites, uint32_t count, uint32_t replicas)
{
    uint32_t sent = 0;
    bool goes[5], fetches = placement_goes(sites, count, replicas, 0);
    for (uint32_t i = 0; i < count; i++)
        goes[i] =
            placement_goes(sites, count, replicas, i) && !(fetches && i > 0 && sites[i].has_part);
    for (uint32_t i = 0; i < count; i++) {
        sent += goes[i];
        sites[i].has_copy |= goes[i];
    }
    return sent;
}

/* A node's parts and domains by digits of the code. */
static void check_parts(uint32_t code, uint32_t count, uint32_t replicas)
{
    static const char *const domains[] = {"a", "b", "c"};
    struct site sites[5];
    uint32_t present[3] = {0}, num_domains = 0, turns = 0;
    for (uint32_t i = 0; i < count; i++, code /= 12) {
        sites[i] = (struct site){.domain = domains[code % 3],
                                 .is_away = i > 0 && code / 3 % 2,
                                 .order = placement_order("run", domains[code % 3]) + i,
                                 .has_part = i == 0 || code / 6 % 2};
        num_domains += !present[code % 3]++;
    }
    do {
        check_level(sites, count);
        assert_true(++turns < 10);
    } while (send_parts(sites, count, replicas) > 0);
    uint32_t wanted = replicas < num_domains ? replicas : num_domains;
    assert_in_range(placement_domains(sites, count), wanted, 3);
}

TEST(test_placement__parts_become_copies_until_so_many_domains_may_be_lost)
{
    for (uint32_t count = 1, codes = 12; count <= 4; count++, codes *= 12)
        for (uint32_t code = 0; code < codes; code++)
            for (uint32_t replicas = 1; replicas <= 4; replicas++)
                check_parts(code, count, replicas);
}

TEST(test_placement__a_part_is_no_copy_and_one_in_its_domain_replaces_it)
{
    struct site sites[] = {
        {.domain = "a", .has_part = true}, {.domain = "b", .has_part = true}, {.domain = "c"}};
    assert_int_equal(placement_domains(sites, 3), 1);
    assert_true(placement_goes(sites, 3, 2, 2)); /* where one copy is enough */
    assert_false(placement_goes(sites, 3, 2, 0));
    sites[2].is_away = true;
    assert_true(placement_goes(sites, 3, 2, 0));
    assert_true(placement_goes(sites, 3, 2, 1));
    sites[1].has_copy = true; /* but the others' shards are lost with a, or with b */
    assert_int_equal(placement_domains(sites, 3), 1);
    sites[2].has_copy = true;
    assert_int_equal(placement_domains(sites, 3), 2);
}

TEST(test_placement__copies_that_gain_nothing_are_not_made)
{
    const struct site sites[] = {{.domain = "a", .has_part = true},
                                 {.domain = "a", .has_part = true}};
    const struct site without[] = {{.domain = "a"}, {.domain = "b"}};
    assert_false(placement_goes(sites, 2, 2, 0));
    assert_false(placement_goes(sites, 2, 2, 1));
    assert_false(placement_goes(without, 2, 2, 0));
}

/* ---- many nodes ---- */

enum { MANY = 1024, CHECKPOINTS = 1000, DOMAINS = 256 };

/* Of one checkpoint: some nodes have copies, some are away. */
static void make_many(struct site *sites, char (*names)[8], uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t chance = placement_order("chance", names[i % DOMAINS]) * (i + 1) * (2 * seed + 1);
        sites[i] = (struct site){.domain = names[i % DOMAINS],
                                 .has_copy = i == 0,
                                 .is_away = chance >> 40 & 1,
                                 .order = chance};
    }
}

/* Of all that answer and have no copy in their domain the lowest, in different domains. */
static void check_many(const struct site *sites, const uint32_t *chosen, uint32_t num)
{
    assert_int_equal(num, 2);
    assert_string_not_equal(sites[chosen[0]].domain, sites[chosen[1]].domain);
    for (uint32_t k = 0; k < num; k++)
        assert_string_not_equal(sites[chosen[k]].domain, sites[0].domain);
    for (uint32_t i = 1; i < MANY; i++) {
        bool is_of_own = strcmp(sites[i].domain, sites[0].domain) == 0 || i == chosen[0];
        bool is_of_first = strcmp(sites[i].domain, sites[chosen[0]].domain) == 0;
        assert_true(is_of_own || sites[i].is_away || sites[i].order > sites[chosen[0]].order);
        assert_true(is_of_own || is_of_first || sites[i].is_away || i == chosen[1] ||
                    sites[i].order > sites[chosen[1]].order);
    }
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double time_many(uint32_t count, char (*names)[8])
{
    static struct site sites[MANY];
    uint32_t chosen[PLACEMENT_COPIES_MAX];
    double seconds = 0;
    for (uint32_t k = 0; k < CHECKPOINTS; k++) {
        make_many(sites, names, count, k);
        double begin = cpu_seconds();
        uint32_t num = placement_choose(chosen, sites, count, 3);
        seconds += cpu_seconds() - begin;
        if (count == MANY)
            check_many(sites, chosen, num);
    }
    return seconds;
}

/* 8 times the nodes cost 8 * 10 / 7 times as much to sort; 64 times, where each is held against
 * each other. */
TEST(test_placement__a_choice_among_1024_nodes_costs_what_sorting_them_costs)
{
    char names[DOMAINS][8];
    for (uint32_t i = 0; i < DOMAINS; i++)
        sprintf(names[i], "d%u", i);
    double few = time_many(MANY / 8, names), many = time_many(MANY, names);
    print_message("# 1,000 checkpoints: %.4f CPU s with 128 nodes, %.4f with 1,024\n", few, many);
    assert_true(many < 32 * few);
}

/* A choice has room for as many nodes as the settings and places.json name. */
TEST(test_placement__a_node_has_255_peers)
{
    enum { PEERS = MEMBERS_PEERS_MAX, ITEM = 24 };
    static struct members members;
    struct site sites[PEERS + 1];
    char *text = calloc(PEERS + 1, ITEM);
    size_t used = 0;
    assert_non_null(text);
    assert_true(PEERS + 1 <= NODE_SET_MAX);
    assert_true(PEERS + 1 <= PLACES_NODES_MAX);
    for (int i = PEERS; i >= 1; i--) /* not by name */
        used += (size_t)sprintf(text + used, "p%d@d%d=h:%d,", i, i, i);
    assert_int_equal(members_parse(&members, "n", text), 0);
    assert_int_equal(members.count, 255);
    for (uint32_t i = 0; i < PEERS; i++) {
        const char *name = members.peers[i].name;
        assert_int_equal(members_find(&members, name, strlen(name)), i);
    }
    assert_int_equal(members_find(&members, "p", 1), PEERS);
    assert_int_equal(members_find(&members, "p10234", 6), PEERS);
    sites[0] = (struct site){.domain = "n", .has_copy = true};
    for (uint32_t i = 0; i < PEERS; i++)
        sites[i + 1] = (struct site){.domain = members.peers[i].domain, .order = PEERS - i};
    for (uint32_t i = 0; i <= PEERS; i++)
        assert_int_equal(placement_goes(sites, PEERS + 1, 2, i), i == PEERS);
    strcpy(text + used, "p0@d0=h:64");
    assert_int_equal(members_parse(&members, "n", text), ERR_INVALID);
    assert_non_null(strstr(report_line(), "255 peers"));
    assert_int_equal(members_parse(&members, "n", "p7@d=h:1,p2@d=h:1,p7@e=h:2"), ERR_INVALID);
    assert_non_null(strstr(report_line(), "twice"));
    free(text);
}

SUITE(NULL, NULL)
