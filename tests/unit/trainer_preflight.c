/* trainer_preflight.c - the health of ranks, and the speed of their connections.
 *
 * Goal: a rank or a host far below the others is named, with the rate and the median; further below
 * it is broken, and so is one with a problem, whatever its rates. A test that was not run makes no
 * rank slow, and two ranks alone are not compared. A warning names hosts that differ otherwise. The
 * bus bandwidth of a call is computed as in nccl-tests. Method: findings as ranks send them, times
 * as they measure them. */
#include "tests/unit/suite.h"
#include "trainer/preflight/links.h"
#include "trainer/preflight/private.h"

#include <errno.h>
#include <string.h>

#define RANKS 4u

static struct finding all[RANKS];

/* Equal ranks, each on a separate host. */
static void make_equal(void)
{
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct finding *f = &all[i];
        *f = (struct finding){.copy_rate = 20e9, .product_rate = 600e9, .links_up = 18};
        f->model = (struct preflight_products){.rate = 900e12, .mean_flops = 1e11, .peak = 1e15};
        for (uint32_t round = 0; round < preflight_rounds(RANKS); round++)
            for (uint32_t payload = 0; payload < PREFLIGHT_PAYLOADS; payload++)
                f->pairs.of[round][payload] = 50e9;
        f->host[0] = (char)('a' + i);
        f->node.memory_rate = 10e9;
        f->node.memory_alone = 12e9;
        f->node.calls = (struct call_rates){{1e9, 1e9, 2e9, 3e9, 4e9}, {2e9, 2e9, 3e9, 4e9, 5e9}};
        f->node.disk =
            (struct disk_facts){.write = 2e9, .durable = 1e9, .read = 3e9, .fio_write = 2e9};
        f->node.threads = 2;
        f->node.shm_bytes = 1ull << 30;
        strcpy(f->node.kernel, "6.1");
        strcpy(f->node.version, "1.0");
        for (size_t core = 0; core < 2; core++)
            CPU_SET(core, &f->node.cores);
    }
}

static void judge(uint32_t num)
{
    assert_int_equal(preflight_set_fitness(all, num), 0);
}

TEST(test_preflight__equal_ranks_are_fit_and_nothing_is_said)
{
    make_equal();
    judge(RANKS);
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_string_equal(all[i].problem, "");
        assert_string_equal(all[i].warning, "");
    }
}

TEST(test_preflight__a_gpu_that_is_not_well_is_named)
{
    static const struct {
        struct device_health health;
        enum fitness want;
        const char *says;
    } table[] = {
        {{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, ""}, FIT, ""},
        {{0, 0, 0, 16, 16, 0, 0, 60, 0, 5, 5, ""}, FIT, ""},
        {{.memory_errors = 3}, BROKEN, "3 errors of its memory since the driver was loaded"},
        {{.rows_failed = 1}, BROKEN, "a row of its memory cannot be replaced"},
        {{.rows_pending = 1}, SLOW, "rows of its memory are replaced at a reset"},
        {{.bus_width = 8, .bus_width_max = 16}, SLOW, "its bus has 8 of 16 lanes"},
        {{.bus_generation = 1, .bus_generation_max = 5}, SLOW, "at PCIe generation 1 of 5"},
        {{.slowed = DEVICE_SLOWED_HEAT, .celsius = 93}, SLOW, "slowed by heat, at 93 degrees"},
        {{.slowed = DEVICE_SLOWED_POWER}, SLOW, "slowed by its power supply"},
        {{.slowed = DEVICE_SLOWED_HARDWARE}, SLOW, "slowed by its hardware"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        make_equal();
        all[2].health = table[i].health;
        judge(RANKS);
        assert_int_equal(all[2].fitness, table[i].want);
        assert_non_null(strstr(all[2].problem, table[i].says));
        assert_int_equal(preflight_count(all, RANKS, FIT), RANKS - (table[i].want != FIT));
    }
}

TEST(test_preflight__products_far_below_the_peak_are_slow_even_alone)
{
    static const struct {
        double rate, mean_flops, peak;
        enum fitness want;
    } table[] = {
        {290e12, 1e11, 1e15, SLOW}, {310e12, 1e11, 1e15, FIT},
        {290e12, 1e10, 1e15, FIT}, /* too short */
        {290e12, 1e11, 0, FIT},    /* not known */
        {0, 0, 1e15, FIT},         /* not measured */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        make_equal();
        all[0].model = (struct preflight_products){
            .rate = table[i].rate, .mean_flops = table[i].mean_flops, .peak = table[i].peak};
        judge(1);
        assert_int_equal(all[0].fitness, table[i].want);
    }
    make_equal();
    all[0].model.rate = 290e12;
    judge(1);
    assert_non_null(strstr(all[0].problem, "at 29.0 % of the peak, 290 of 1e+03 TFLOP/s: low"));
}

TEST(test_preflight__what_is_far_below_the_median_is_odd)
{
    static const struct {
        size_t field;
        double part; /* of the others' */
        enum fitness want;
        const char *says;
    } table[] = {
        {offsetof(struct finding, product_rate), 0.86, FIT, ""},
        {offsetof(struct finding, product_rate), 0.61, SLOW,
         "products at 61 % of the median, 366 of 600 GFLOP/s: slow core, clock or neighbour"},
        {offsetof(struct finding, product_rate), 0.49, BROKEN, "products at 49 % of the median, "},
        {offsetof(struct finding, model.rate), 0.84, SLOW,
         "products at the model's shapes at 84 % of the median, 7.56e+05 of 9e+05 GFLOP/s: slow"},
        {offsetof(struct finding, model.rate), 0.49, BROKEN,
         "products at the model's shapes at 49"},
        {offsetof(struct finding, copy_rate), 0.26, SLOW, "copies at 26 % of the median, "},
        {offsetof(struct finding, copy_rate), 0.24, BROKEN, "copies at 24 % of the median, "},
        {offsetof(struct finding, links_up), 17. / 18, SLOW,
         "NVLinks at 94 % of the median, 17 of 18 that are up: a link is down"},
        {offsetof(struct finding, node.memory_rate), 0.8, SLOW,
         "memory, all ranks at once, at 80 % of the median, 8 of 10 GB/s a rank"},
        {offsetof(struct finding, node.memory_rate), 0.24, BROKEN,
         "memory, all ranks at once, at 24"},
        {offsetof(struct finding, node.memory_alone), 0.4, BROKEN,
         "memory, one rank alone, at 40 % of the median, 4.8 of 12 GB/s: "},
        {offsetof(struct finding, node.calls.sum[PAYLOAD_64K]), 0.51, FIT, ""},
        {offsetof(struct finding, node.calls.sum[PAYLOAD_4M]), 0.4, SLOW,
         "sums of 4 MiB among its ranks at 40 % of the median, 1.6 of 4 GB/s: slow memory, link"},
        {offsetof(struct finding, node.calls.gather[PAYLOAD_4M]), 0.09, BROKEN,
         "gathers of 4 MiB among its ranks at 9 % of the median, "},
        {offsetof(struct finding, node.disk.write), 0.4, SLOW,
         "its disk's writes at 40 % of the median, 0.8 of 2 GB/s: a slow or full disk"},
        {offsetof(struct finding, node.disk.durable), 0.05, BROKEN,
         "its disk's writes with syncs at 5 % of the median, "},
        {offsetof(struct finding, node.disk.fio_write), 0.4, SLOW, "its disk's writes by fio at"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        make_equal();
        *(double *)((char *)&all[2] + table[i].field) *= table[i].part;
        judge(RANKS);
        assert_int_equal(all[2].fitness, table[i].want);
        assert_memory_equal(all[2].problem, table[i].says, strlen(table[i].says));
        assert_int_equal(preflight_count(all, RANKS, FIT), RANKS - (table[i].want != FIT));
    }
}

/* Scales a payload's rate from one rank to another; RANKS as `to` or `from`: of all ranks. */
static void slow_payload(uint32_t payload, uint32_t from, uint32_t to, double part)
{
    for (uint32_t i = 0; i < RANKS; i++)
        for (uint32_t round = 0; round < preflight_rounds(RANKS); round++) {
            uint32_t peer = preflight_peer(i, RANKS, preflight_offset(RANKS, round));
            if ((to == i || to == RANKS) && (from == peer || from == RANKS))
                all[i].pairs.of[round][payload] *= part;
        }
}

static void slow_link(uint32_t from, uint32_t to, double part)
{
    slow_payload(PAYLOAD_4M, from, to, part);
}

TEST(test_preflight__a_slow_link_is_named_by_its_ranks)
{
    static const struct {
        uint32_t from, to;
        double part;
        uint32_t named;
        enum fitness want;
        const char *says;
    } table[] = {
        {1, 2, 0.51, 2, FIT, ""},
        {1, 2, 0.49, 2, SLOW,
         "links from rank 1 (host b) at 49 % of the median, 24.5 of 50 GB/s: slow link between"},
        {3, 0, 0.09, 0, BROKEN, "links from rank 3 (host d) at 9 % of the median, "},
        {RANKS, 2, 0.49, 2, SLOW,
         "links to it at 49 % of the median, 24.5 of 50 GB/s: slow link of this rank"},
        {RANKS, 2, 0.09, 2, BROKEN, "links to it at 9 % of the median, "},
        {1, RANKS, 0.49, 1, SLOW, "links from it at 49 % of the median, "},
        {1, RANKS, 0.09, 1, BROKEN, "links from it at 9 % of the median, "},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        make_equal();
        slow_link(table[i].from, table[i].to, table[i].part);
        judge(RANKS);
        const struct finding *named = &all[table[i].named];
        assert_int_equal(named->fitness, table[i].want);
        assert_memory_equal(named->problem, table[i].says, strlen(table[i].says));
        assert_int_equal(preflight_count(all, RANKS, FIT), RANKS - (table[i].want != FIT));
    }
}

TEST(test_preflight__links_are_compared_by_the_largest_payload_alone)
{
    make_equal();
    for (uint32_t payload = 0; payload < PAYLOAD_4M; payload++)
        slow_payload(payload, 1, 2, 0.01);
    judge(RANKS);
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS);
}

TEST(test_preflight__the_slowest_and_the_fastest_link_are_found_by_payload)
{
    struct pair_link slowest, fastest;
    make_equal();
    slow_payload(PAYLOAD_64K, 1, 2, 0.5);
    slow_payload(PAYLOAD_64K, 3, 0, 2);
    slow_payload(PAYLOAD_4M, 0, 1, 0.1);
    preflight_extremes(all, RANKS, PAYLOAD_64K, &slowest, &fastest);
    assert_true(slowest.from == 1 && slowest.to == 2 && slowest.rate == 25e9);
    assert_true(fastest.from == 3 && fastest.to == 0 && fastest.rate == 100e9);
    strcpy(all[2].host, "b"); /* of the same host as 1 now */
    preflight_extremes(all, RANKS, PAYLOAD_64K, &slowest, &fastest);
    assert_true(slowest.rate == 50e9);
    memset(all[0].pairs.of, 0, sizeof all[0].pairs.of);
    preflight_extremes(all, 1, PAYLOAD_64K, &slowest, &fastest);
    assert_true(slowest.rate == 0 && fastest.rate == 0);
}

TEST(test_preflight__links_of_one_host_are_not_compared_with_those_between_hosts)
{
    make_equal();
    strcpy(all[1].host, "a");
    strcpy(all[3].host, "c");
    slow_link(0, 1, 0.01);
    slow_link(3, 2, 100);
    judge(RANKS);
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS);
    assert_true(all[2].link_rate == 50e9 && all[3].send_rate == 50e9);
    assert_true(all[1].slowest_rate == 50e9);
}

TEST(test_preflight__all_pairs_are_tried_and_of_many_ranks_some_with_each)
{
    for (uint32_t ranks = 1; ranks <= 300; ranks++) {
        uint32_t last = 0;
        assert_int_equal(preflight_rounds(ranks), ranks <= 64 ? ranks - 1 : 63);
        for (uint32_t round = 0; round < preflight_rounds(ranks); round++) {
            uint32_t offset = preflight_offset(ranks, round);
            assert_true(offset > last && offset < ranks);
            assert_true(ranks > 64 || offset == round + 1);
            assert_int_equal((preflight_peer(5 % ranks, ranks, offset) + offset) % ranks,
                             5 % ranks);
            last = offset;
        }
    }
}

TEST(test_preflight__one_that_is_slow_and_broken_says_both)
{
    make_equal();
    all[1].product_rate *= 0.3;
    all[1].copy_rate *= 0.5;
    judge(3);
    assert_int_equal(all[1].fitness, BROKEN);
    assert_non_null(strstr(all[1].problem, "products at 30 %"));
    assert_non_null(strstr(all[1].problem, "; copies at 50 %"));
}

TEST(test_preflight__two_are_not_compared)
{
    make_equal();
    all[1].product_rate = all[1].node.memory_alone = 1;
    judge(2);
    assert_int_equal(preflight_count(all, 2, FIT), 2);
}

TEST(test_preflight__a_problem_is_broken_and_what_was_not_tried_is_not_slow)
{
    make_equal();
    for (uint32_t i = 0; i < RANKS; i++)
        all[i].pairs = (struct pair_rates){0};
    all[0] = (struct finding){.host = "a", .problem = "the device: there is none"};
    judge(RANKS);
    assert_int_equal(all[0].fitness, BROKEN);
    assert_string_equal(all[0].problem, "the device: there is none");
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS - 1);
    all[3].product_rate *= 0.45; /* of the median of the three that have a rate */
    judge(RANKS);
    assert_int_equal(all[3].fitness, BROKEN);
    make_equal();
    all[0].product_rate = 0;
    all[2].product_rate *= 0.1; /* of two */
    judge(3);
    assert_int_equal(preflight_count(all, 3, FIT), 3);
}

TEST(test_preflight__the_first_rank_of_a_host_speaks_for_it)
{
    make_equal();
    strcpy(all[2].host, "b");
    all[2].node.memory_alone = 0;
    CPU_ZERO(&all[2].node.cores);
    CPU_SET(7, &all[2].node.cores);
    struct node_sum sum = preflight_sum(all, RANKS, 1);
    assert_int_equal(sum.ranks, 2);
    assert_int_equal(sum.cores, 3);
    assert_int_equal(sum.threads, 4);
    assert_true(sum.memory_rate == 20e9);
    assert_int_equal(preflight_hosts(all, RANKS), 3);
    all[2].node.memory_rate = 1e9; /* its host's part of a rank is 5.5 */
    judge(RANKS);
    assert_int_equal(all[1].fitness, SLOW);
    assert_int_equal(all[2].fitness, FIT);
    assert_string_equal(all[1].warning, "4 threads of 2 ranks on 3 cores");
    assert_string_equal(all[2].warning, "");
    make_equal();
    strcpy(all[2].host, "b");
    all[2].product_rate *= 0.1; /* four threads on two cores: they disturb each other */
    judge(RANKS);
    assert_int_equal(all[2].fitness, SLOW);
}

TEST(test_preflight__hosts_that_differ_are_warned_of)
{
    make_equal();
    strcpy(all[1].node.kernel, "5.4");
    strcpy(all[1].node.version, "0.9");
    all[2].node.clock = -2;
    all[2].node.round_trip = 0.1;
    all[3].node.clock = 0.3; /* may be the round's */
    all[3].node.round_trip = 0.5;
    all[3].node.ring_error = EPERM;
    all[0].node.shm_bytes = 64 << 20;
    judge(RANKS);
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS);
    assert_string_equal(all[0].warning, "/dev/shm has 64 MiB: NCCL and MPI need more");
    assert_string_equal(all[1].warning,
                        "kernel 5.4, not 6.1 as on a; trainer 0.9, not 1.0 as on a");
    assert_string_equal(all[2].warning, "its clock is 2.0 s behind that of a");
    assert_string_equal(all[3].warning, "io_uring is refused: Operation not permitted");
}

TEST(test_preflight__a_host_with_lower_limits_than_most_is_warned_of)
{
    make_equal();
    for (uint32_t i = 0; i < RANKS; i++) {
        all[i].node.memlock = UINT64_MAX;
        all[i].node.nofile = 1 << 20;
    }
    all[0].node.memlock = 8 << 20;
    all[1].node.nofile = 1024;
    all[2].node.nofile = 1 << 21; /* more is not odd */
    CPU_CLR(1, &all[3].node.cores);
    all[3].node.threads = 1;
    judge(RANKS);
    assert_string_equal(all[0].warning, "memlock 8388608, not unlimited as on most hosts");
    assert_string_equal(all[1].warning, "nofile 1024, not 1048576 as on most hosts");
    assert_string_equal(all[2].warning, "");
    assert_string_equal(all[3].warning, "cores 1, not 2 as on most hosts");
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS);
    make_equal();
    all[1].node.nofile = 1024; /* of two alike the greater one is usual */
    judge(2);
    assert_string_equal(all[0].warning, "nofile 0, not 1024 as on most hosts");
    make_equal();
    memset(&all[1].node, 0, sizeof all[1].node); /* not examined */
    judge(RANKS);
    assert_string_equal(all[1].warning, "");
}

TEST(test_preflight__gpus_that_differ_are_warned_of)
{
    make_equal();
    for (uint32_t i = 0; i < RANKS; i++) {
        strcpy(all[i].device, "GPU X");
        strcpy(all[i].health.driver, "550.54.15");
        all[i].health.bus_generation = all[i].health.bus_generation_max = 5;
    }
    strcpy(all[1].health.driver, "535.1");
    strcpy(all[2].host, "b"); /* its first rank speaks for it */
    strcpy(all[2].device, "GPU Y");
    all[3].health.bus_generation = all[3].health.bus_generation_max = 4;
    judge(RANKS);
    assert_non_null(strstr(all[1].warning, "rank 2 computes with GPU Y, not GPU X as rank 0; "
                                           "driver 535.1, not 550.54.15 as on a"));
    assert_string_equal(all[0].warning, "");
    assert_string_equal(all[3].warning, "rank 3 has PCIe generation 4 at most, not 5 as rank 0");
    assert_int_equal(preflight_count(all, RANKS, FIT), RANKS);
    strcpy(all[0].health.driver, ""); /* not known: not compared */
    all[0].health.bus_generation_max = -1;
    memset(all[3].warning, 0, sizeof all[3].warning);
    judge(RANKS);
    assert_string_equal(all[3].warning, "");
}

TEST(test_links__the_bus_carries_what_nccl_tests_say)
{
    assert_true(links_bus_factor(LINK_RING, 8) == 1);
    assert_true(links_bus_factor(LINK_ALL_GATHER, 8) == 0.875);
    assert_true(links_bus_factor(LINK_ALL_TO_ALL, 2) == 0.5);
    assert_true(links_bus_factor(LINK_SUM, 8) == 1.75);
}

TEST(test_links__the_median_is_not_moved_by_one_slow_call)
{
    double seconds[] = {3, 1, 900, 2, 4};
    struct link_times times = links_times(seconds, 5);
    assert_true(times.least == 1 && times.median == 3 && times.p99 == 900);
    assert_true(links_times(seconds, 1).p99 == 1);
}

SUITE(NULL, NULL)
