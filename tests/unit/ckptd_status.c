/* ckptd_status.c - what ckptd's status says of a run, and its page.
 *
 * Goal: the copies of each tier are counted, 0 in a tier that has none, and of a checkpoint the
 * bytes of this node's shards; the page writes times in a fitting unit. Method: a real service on
 * the bed whose thread has ended; entries of the catalog and a status are made by hand. */
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

/* A clock may be behind. */
TEST(test_page__a_time_has_the_unit_of_its_size)
{
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{-0.3, ">0 s<"},    {119, ">119 s<"},    {-119, ">-119 s<"}, {7000, ">117 min<"},
                 {-180, ">-3 min<"}, {-7200, ">-2.0 h<"}, {9000, ">2.5 h<"}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        json_t *status =
            json_pack("{s{s[{sf}]}}", "nodes", "peers", "clock_ahead_seconds", times[i].seconds);
        char page[16384] = "";
        FILE *out = fmemopen(page, sizeof page, "w");
        http_page_write(out, status);
        fclose(out);
        assert_non_null(strstr(page, times[i].text));
        json_decref(status);
    }
}

int main(void)
{
    log_setup("ckptd_status", NULL);
    return suite_run(NULL, NULL);
}
