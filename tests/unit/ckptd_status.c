/* ckptd_status.c - what ckptd's status says of a run, and its page.
 *
 * Goal: the copies of each tier are counted, 0 in a tier that has none, and of a checkpoint the
 * bytes of this node's shards; the page writes times in a fitting unit, and has the alarms and the
 * rates of other nodes. Method: a real service on the bed whose thread has ended; entries of the
 * catalog and a status are made by hand. */
#include "ckptd/core/copies.h"
#include "ckptd/status/http_page.h"
#include "proto/base/json.h"
#include "proto/format/places.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

static const struct places whole;

static int set_up(void **state)
{
    *state = bed_new();
    return bed_start(*state);
}

/* The run's object; the caller releases *out_status. */
static const json_t *described(json_t **out_status, struct bed *bed)
{
    char *text = service_status(bed->service, false, 0);
    *out_status = json_loads(text, 0, NULL);
    free(text);
    return json_array_get(json_object_get(*out_status, "runs"), 0);
}

static struct checkpoint *enter(struct bed *bed, uint32_t world_size, uint32_t shards)
{
    struct manifest_summary summary = {.step = 5,
                                       .attempt = 2,
                                       .bytes = 1000,
                                       .world_size = world_size,
                                       .shards = shards,
                                       .run = "run",
                                       .nonce = "one"};
    struct checkpoint *entry;
    struct run *run;
    bed_end_thread(bed);
    assert_int_equal(run_find(&run, bed->service, "run", true), 0);
    assert_int_equal(catalog_add(&entry, run, &summary, TIER_LOCAL, &whole), 0);
    return entry;
}

TEST_BETWEEN(test_status__a_tier_without_a_copy_has_0, set_up, bed_tear_down)
{
    struct bed *bed = *state;
    struct tier *tiers = bed->service->tiers;
    json_t *status;
    enter(bed, 1, 1);
    const json_t *run = described(&status, bed);
    assert_int_equal(json_integer_value(json_at(run, "copies.local")), 1);
    assert_null(json_at(run, "copies.far")); /* there is no such tier */
    json_decref(status);
    tiers[TIER_FAR].storage = tiers[TIER_LOCAL].storage;
    run = described(&status, bed);
    tiers[TIER_FAR].storage = NULL;
    assert_true(json_is_integer(json_at(run, "copies.far")));
    assert_int_equal(json_integer_value(json_at(run, "copies.far")), 0);
    json_decref(status);
}

/* As converted, it has fewer shards than the ranks that saved it. */
TEST_BETWEEN(test_status__the_bytes_here_are_those_of_the_shards_here, set_up, bed_tear_down)
{
    static const uint16_t places[] = {TIER_LOCAL, TIER_PEER, TIER_PEER, TIER_PEER, TIER_LOCAL};
    struct bed *bed = *state;
    struct checkpoint *entry = enter(bed, 5, 4);
    json_t *status;
    entry->places = malloc(sizeof places);
    memcpy(entry->places, places, sizeof places); /* the last one is beyond its shards */
    const json_t *run = described(&status, bed);
    assert_int_equal(json_integer_value(json_at(run, "newest_bytes")), 1000);
    assert_int_equal(json_integer_value(json_at(run, "newest_bytes_here")), 250);
    json_decref(status);
}

/* Of a status with these other nodes. Takes `peers`. */
static void assert_page_has(json_t *peers, const char *text)
{
    json_t *status = json_pack("{s{so}}", "nodes", "peers", peers);
    char page[16384] = "";
    FILE *out = fmemopen(page, sizeof page, "w");
    http_page_write(out, status);
    fclose(out);
    assert_non_null(strstr(page, text));
    json_decref(status);
}

/* A clock may be behind. */
TEST(test_page__a_time_has_the_unit_of_its_size)
{
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{-0.3, ">0 s<"},    {119, ">119 s<"},    {-119, ">-119 s<"}, {7000, ">117 min<"},
                 {-180, ">-3 min<"}, {-7200, ">-2.0 h<"}, {9000, ">2.5 h<"}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        assert_page_has(json_pack("[{sf}]", "clock_ahead_seconds", times[i].seconds),
                        times[i].text);
}

TEST(test_page__the_alarms_of_other_nodes_have_their_names)
{
    assert_page_has(json_pack("[{ss}{sss{s[s]}}]", "name", "n2", "name", "n3", "told", "alarms",
                              "its disk is full"),
                    "<h2>Alarms</h2>\n<ul class=\"alarms\">\n<li>n3: its disk is full</li>\n</ul>");
}

/* Without a bulk plane calls move them. */
TEST(test_page__the_rates_are_of_the_link_that_moves_the_bytes)
{
    static const struct {
        int moved;
        const char *text;
    } links[] = {{0, ">2.0 KiB</td><td class=\"n\">3.0 KiB<"},
                 {1, ">4.0 KiB</td><td class=\"n\">5.0 KiB<"}};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        assert_page_has(json_pack("[{s{s{sfsf}s{sisfsf}}}]", "links", "control",
                                  "bytes_per_second_in", 2048.0, "bytes_per_second_out", 3072.0,
                                  "bulk", "bytes_out", links[i].moved, "bytes_per_second_in",
                                  4096.0, "bytes_per_second_out", 5120.0),
                        links[i].text);
}

int main(void)
{
    log_setup("ckptd_status", NULL);
    return suite_run(NULL, NULL);
}
