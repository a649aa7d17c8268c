/* ckptd_scrub.c - the scrub of the daemon.
 *
 * Goal: damage in checkpoints that no client loads is found, named and kept through restarts. A
 * pass continues where a restart interrupted it, keeps its rate, gives way to loads, and runs
 * once a period. A checkpoint that a tool found damaged is read first. List and Show report for
 * each checkpoint whether it was read back, and so does ckpt-cli on the directory. Method: the
 * service of ckptd_bed.h over a few checkpoints of 4 MiB, bytes changed on the disk, files moved
 * away; the numbers of Status. The scrub's waiting times are counted (--wrap) and, in some
 * tests, shortened. */
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

struct scrub;

#define STEPS 4u
#define CURSOR_PATIENCE_MS 3000 /* until it has been written */
#define HURRY 10                /* of a test that waits for the scrub's clock */
#define REST_MS 10000           /* as long it waits only where there is nothing to read */
#define SAVES_MAX 100u          /* before the scrub has read two */
#define TABLE_START 2101248     /* in each of the two shards: a header of 4 KiB, 2 MiB of data */

static struct peer peers[RANKS];

/* The daemon's clock runs ahead by so much (--wrap). */
static atomic_llong clock_ahead_ms;
uint64_t __real_clock_read(clockid_t clock);
uint64_t __wrap_clock_read(clockid_t clock);
uint64_t __wrap_clock_read(clockid_t clock)
{
    bool is_ahead = clock == CLOCK_MONOTONIC;
    return __real_clock_read(clock) + (is_ahead ? (uint64_t)clock_ahead_ms * 1000000 : 0);
}

static atomic_uint num_waits, num_rests;
static atomic_llong asked_ms;
static atomic_int hurry;
void __real_scrub_wait(struct scrub *scrub, int64_t ms);
void __wrap_scrub_wait(struct scrub *scrub, int64_t ms);
void __wrap_scrub_wait(struct scrub *scrub, int64_t ms)
{
    __real_scrub_wait(scrub, ms / hurry);
    if (ms >= REST_MS)
        num_rests++;
    else
        asked_ms += ms;
    num_waits++;
}

/* Waits until the scrub has looked for work that often, and done it. */
static void await_looks(unsigned count)
{
    unsigned until = num_waits + count;
    for (int ms = 0; num_waits < until; ms++) {
        assert_true(ms < BED_PATIENCE_MS);
        sleep_ms(1);
    }
}

/* Waits until there is nothing more to read, and the results are stored. */
static void await_rest(void)
{
    for (int ms = 0; num_rests == 0; ms++) {
        assert_true(ms < BED_PATIENCE_MS);
        sleep_ms(1);
    }
}

static void start(struct bed *bed)
{
    num_rests = 0;
    assert_int_equal(bed_start(bed), 0);
}

/* The store that each test has a copy of. */
static struct bed *made;

static int make_steps(void **state)
{
    (void)state;
    made = bed_new();
    made->config.scrub_rate = 0;
    assert_int_equal(bed_start(made), 0);
    bed_save_steps(made, peers, RANKS, 1, STEPS);
    bed_stop(made);
    return 0;
}

static int free_steps(void **state)
{
    (void)state;
    bed_free(made);
    return 0;
}

static int open_with_steps(void **state)
{
    struct bed *bed = bed_new();
    hurry = 1;
    *state = bed;
    shell("cp -r '%s/store' '%s'", made->root, bed->root);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_start_ms = 0;
    return 0;
}

/* It reads this step first, as when `ckpt-cli verify` found damage there; 0: it starts a pass. */
static void start_scrub(struct bed *bed, uint64_t step)
{
    Holdfast__V1__ScrubRequest request = HOLDFAST__V1__SCRUB_REQUEST__INIT;
    Holdfast__V1__ScrubReply *reply;
    request.run = RUN;
    request.step = step;
    request.attempt = step > 0;
    assert_int_equal(
        call(bed, "Scrub", &request.base, &holdfast__v1__scrub_reply__descriptor, &reply), 0);
    FREE_REPLY(reply);
}

static double scrubbed(struct bed *bed, const char *name)
{
    return status_number(bed, "scrub", name);
}

/* Waits until the number is at least `want`. */
static void wait_until(struct bed *bed, const char *name, double want)
{
    for (int ms = 0; ms < BED_PATIENCE_MS && scrubbed(bed, name) < want; ms += 5)
        sleep_ms(5);
    assert_true(scrubbed(bed, name) >= want);
}

/* The reason of step `step`, which is listed; "" when it is whole. */
static void damage_of(char out[600], struct bed *bed, uint64_t step)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_int_equal(reply->n_checkpoints, STEPS);
    bool is_listed = false;
    for (size_t i = 0; i < STEPS; i++)
        if (reply->checkpoints[i]->step == step) {
            snprintf(out, 600, "%s", reply->checkpoints[i]->damage);
            is_listed = true;
        }
    FREE_REPLY(reply);
    assert_true(is_listed);
}

static void expect_damage(struct bed *bed, uint64_t step, const char *want)
{
    char text[600];
    damage_of(text, bed, step);
    if (want[0] == '\0' ? text[0] != '\0' : strstr(text, want) == NULL)
        fail_msg("step %llu: \"%s\" instead of \"%s\"", (unsigned long long)step, text, want);
}

#define SCRUB_TEST(name) TEST_WITH(struct bed *bed, name, open_with_steps, bed_tear_down)

SCRUB_TEST(test_scrub__damage_that_nobody_loads_is_found_and_stays_known)
{
    bed_flip_byte(bed, 1, 1, "shard-00002-of-00002.safetensors", MIB + 77);
    bed_flip_byte(bed, 2, 1, "manifest.json", 4200); /* after the summary that a start reads */
    bed_flip_byte(bed, 3, 1, "shard-00001-of-00002.safetensors", TABLE_START + 5);
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "damaged") == 3);
    assert_true(scrubbed(bed, "checkpoints_read") == STEPS - 3);
    for (int life = 0; life < 2; life++) {
        expect_damage(bed, 1, "block 1 of shard-00002-of-00002 is damaged");
        expect_damage(bed, 2, "sha256");
        expect_damage(bed, 3, "checksum table");
        expect_damage(bed, 4, "");
        assert_int_equal(load_all(bed, 1, NULL), ERR_CORRUPT);
        assert_int_equal(load_all(bed, -1, NULL), 0);
        bed_stop(bed);
        bed->config.scrub_rate = 0; /* the next one has not read them */
        assert_int_equal(bed_start(bed), 0);
    }
}

SCRUB_TEST(test_scrub__a_restart_goes_on_and_the_next_pass_waits_for_its_time)
{
    bed->config.scrub_rate = 16 * MIB;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "checkpoints_read", 2);
    bed_end_thread(bed);
    json_t *first = scrub_describe(bed->service);
    uint64_t checkpoints = (uint64_t)json_integer_value(json_object_get(first, "checkpoints_read"));
    json_decref(first);
    bed_close_service(bed);
    hurry = HURRY;
    start(bed);
    wait_until(bed, "passes", 1);
    /* The cursor of the last one may not have been written. */
    assert_in_range(checkpoints + (uint64_t)scrubbed(bed, "checkpoints_read"), STEPS, STEPS + 1);
    await_rest();
    assert_true(scrubbed(bed, "passes") == 1);
    bed_stop(bed);
    start(bed); /* it knows when the last pass ended */
    await_rest();
    assert_true(scrubbed(bed, "bytes_read") == 0);
    assert_true(scrubbed(bed, "all_read_at") > 1e9);
    bed_stop(bed);
    bed->config.scrub_period = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
}

SCRUB_TEST(test_scrub__a_cursor_that_cannot_be_read_costs_a_pass_only)
{
    start(bed);
    await_rest();
    bed_stop(bed);
    shell("cd '%s/store/" RUN "/scrub' && echo nonsense >$(ls | tail -n 1)", bed->root);
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "checkpoints_read") == STEPS);
    assert_true(scrubbed(bed, "damaged") == 0);
}

SCRUB_TEST(test_scrub__the_rate_is_kept)
{
    bed->config.scrub_rate = 16 * MIB; /* of 16 MiB and some */
    hurry = HURRY;
    asked_ms = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "bytes_read") >= 2.0 * STEPS * TABLE_START);
    assert_true(asked_ms >= 900);
}

/* Otherwise a run that saves faster than the scrub reads would never let it continue with
 * another. */
SCRUB_TEST(test_scrub__what_is_saved_during_a_pass_waits_for_the_next)
{
    bed->config.scrub_rate = 16 * MIB;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "checkpoints_read", 1);
    bed_save_steps(bed, peers, RANKS, STEPS + 1, STEPS + 2);
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "checkpoints_read") == STEPS);
    bed_stop(bed);
    hurry = HURRY;
    bed->config.scrub_period = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "checkpoints_read") == STEPS + 2);
}

SCRUB_TEST(test_scrub__it_stands_still_while_somebody_loads_or_saves)
{
    struct loading loading;
    hurry = HURRY;
    bed->config.scrub_start_ms = 3600000 * HURRY;
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_open(&loading, bed, -1), 0);
    start_scrub(bed, 0);
    await_looks(3);
    assert_true(scrubbed(bed, "bytes_read") == 0);
    bed_open_world(bed, peers, RANKS);
    assert_int_equal(peer_begin(&peers[0], STEPS + 1), 0);
    load_close(&loading);
    await_looks(3);
    assert_true(scrubbed(bed, "bytes_read") == 0);
    peers_close(peers, RANKS); /* which gives the save up */
    wait_until(bed, "passes", 1);
}

SCRUB_TEST(test_scrub__a_load_that_stays_open_lets_a_job_through_every_ten_seconds)
{
    struct loading loading;
    hurry = HURRY;
    bed->config.scrub_start_ms = 3600000 * HURRY;
    bed->config.scrub_rate = 16 * MIB; /* a job reads a block of 1 MiB */
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_open(&loading, bed, -1), 0);
    start_scrub(bed, 0);
    for (int round = 1; round <= 2; round++) {
        double before = scrubbed(bed, "bytes_read");
        clock_ahead_ms += 5000;
        await_looks(3);
        assert_true(scrubbed(bed, "bytes_read") == before);
        clock_ahead_ms += 5000;
        wait_until(bed, "bytes_read", before + 1);
        await_looks(3);
        assert_true(scrubbed(bed, "bytes_read") == before + MIB);
    }
    load_close(&loading);
    wait_until(bed, "passes", 1);
}

static bool is_shown_as_read(struct bed *bed, uint64_t step)
{
    Holdfast__V1__ShowRequest request = HOLDFAST__V1__SHOW_REQUEST__INIT;
    Holdfast__V1__ShowReply *reply;
    request.run = RUN;
    request.step = (int64_t)step;
    assert_int_equal(
        call(bed, "Show", &request.base, &holdfast__v1__show_reply__descriptor, &reply), 0);
    bool is_read = reply->read_back;
    FREE_REPLY(reply);
    return is_read;
}

#define ALL_STEPS (((1ull << STEPS) - 1) << 1)

/* The answer of `ckpt-cli list` on the directory: a bit for each step. (prune.py checks that show
 * agrees.) */
static uint64_t read_on_directory(const struct bed *bed)
{
    const char *build = getenv("BUILD");
    char path[300];
    snprintf(path, sizeof path, "%s/said", bed->root);
    shell("'%s/ckpt-cli' list " RUN " --store '%s/store' --json >'%s' || [ $? = 1 ]",
          build ? build : "build", bed->root, path);
    json_t *list = json_load_file(path, 0, NULL), *entry;
    uint64_t listed = 0;
    size_t i;
    assert_non_null(list);
    json_array_foreach(list, i, entry)
    {
        uint64_t step = (uint64_t)json_integer_value(json_object_get(entry, "step"));
        listed |= (uint64_t)json_is_true(json_object_get(entry, "read_back")) << step;
    }
    json_decref(list);
    return listed;
}

/* List and Show report these steps as read back: a bit each. So does ckpt-cli on the directory,
 * when the cursor has been written. */
static void expect_read(struct bed *bed, uint64_t want)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t listed = 0, shown = 0;
    uint64_t on_directory = read_on_directory(bed);
    for (int ms = 0; ms < CURSOR_PATIENCE_MS && on_directory != want; ms += 20) {
        sleep_ms(20);
        on_directory = read_on_directory(bed);
    }
    assert_int_equal(on_directory, want);
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        uint64_t step = reply->checkpoints[i]->step;
        listed |= (uint64_t)reply->checkpoints[i]->read_back << step;
        shown |= (uint64_t)is_shown_as_read(bed, step) << step;
    }
    FREE_REPLY(reply);
    assert_int_equal(listed, want);
    assert_int_equal(shown, want);
}

/* Started anew, and with nothing in its way. */
static void expect_read_by_a_new_pass(struct bed *bed)
{
    bed->config.scrub_start_ms = 0;
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_period = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS);
}

SCRUB_TEST(test_scrub__what_was_not_read_back_since_its_commit_is_told)
{
    bed->config.scrub_start_ms = 3600000;
    assert_int_equal(bed_start(bed), 0);
    expect_read(bed, 0);
    bed_stop(bed);
    bed->config.scrub_start_ms = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS);
    bed_save_steps(bed, peers, RANKS, STEPS + 1, STEPS + 1);
    expect_read(bed, ALL_STEPS);
    bed_stop(bed);
    bed->config.scrub_rate = 0; /* it has read them all the same */
    assert_int_equal(bed_start(bed), 0);
    expect_read(bed, ALL_STEPS);
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_period = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS | 1ull << (STEPS + 1));
}

SCRUB_TEST(test_scrub__what_is_damaged_is_not_read_back)
{
    bed_flip_byte(bed, 2, 1, "shard-00002-of-00002.safetensors", MIB + 77);
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS & ~(1ull << 2));
    bed_stop(bed);
    bed->config.scrub_rate = 0;
    assert_int_equal(bed_start(bed), 0);
    expect_read(bed, ALL_STEPS & ~(1ull << 2));
}

#define SHARD_OF "'%s/store/" RUN "/step-%08d-a0001/shard-00001-of-00002.safetensors'"

static int remove_step(struct bed *bed, uint64_t step, bool is_forced)
{
    Holdfast__V1__RemoveRequest request = HOLDFAST__V1__REMOVE_REQUEST__INIT;
    Holdfast__V1__RemoveReply *reply;
    request.run = RUN;
    request.step = step;
    request.attempt = 1;
    request.force = is_forced;
    request.dry_run = true;
    int error = call(bed, "Remove", &request.base, &holdfast__v1__remove_reply__descriptor, &reply);
    if (error == 0)
        FREE_REPLY(reply);
    return error;
}

/* A failed read that proves no damage is not recorded, and removes nothing without --force; the
 * next start does not detect it again. */
SCRUB_TEST(test_scrub__what_could_not_be_read_is_not_read_back_for_a_later_start)
{
    bed->config.scrub_start_ms = 3600000; /* when all is prepared */
    assert_int_equal(bed_start(bed), 0);
    shell("f=" SHARD_OF "; mv $f $f.away; ln -s $(basename $f).away $f", bed->root, 2);
    shell("f=" SHARD_OF "; mv $f $f.away", bed->root, 3);
    start_scrub(bed, 0);
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "damaged") == 1);
    assert_true(scrubbed(bed, "checkpoints_read") == STEPS - 2);
    expect_read(bed, 1 << 1 | 1 << 4);
    assert_int_equal(remove_step(bed, 3, false), ERR_DENIED);
    assert_int_equal(remove_step(bed, 3, true), 0);
    assert_int_equal(remove_step(bed, 4, false), 0);
    bed_stop(bed);
    for (int step = 2; step <= 3; step++)
        shell("f=" SHARD_OF "; mv -T $f.away $f", bed->root, step);
    bed->config.scrub_rate = 0;
    assert_int_equal(bed_start(bed), 0);
    expect_damage(bed, 3, "");
    expect_read(bed, 1 << 1 | 1 << 4);
    bed_stop(bed);
    expect_read_by_a_new_pass(bed);
}

SCRUB_TEST(test_scrub__nor_for_a_start_in_the_middle_of_the_pass)
{
    bed->config.scrub_start_ms = 3600000; /* when all is prepared */
    bed->config.scrub_rate = 16 * MIB;
    assert_int_equal(bed_start(bed), 0);
    shell("f=" SHARD_OF "; mv $f $f.away", bed->root, 1);
    start_scrub(bed, 0);
    wait_until(bed, "checkpoints_read", 2); /* the newest, and the one after this one */
    bed_stop(bed);
    shell("f=" SHARD_OF "; mv $f.away $f", bed->root, 1);
    hurry = HURRY;
    bed->config.scrub_start_ms = 0;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS & ~(1ull << 1));
}

/* From a copy of the store, into the store or a ckptd that serves it. */
static void bring(const struct bed *bed, int step, const char *into)
{
    const char *build = getenv("BUILD");
    shell("'%s/ckpt-cli' convert " RUN "@%d --shards 3 --store '%s/copy' --output '%s' >/dev/null",
          build ? build : "build", step, bed->root, into);
}

SCRUB_TEST(test_scrub__what_a_tool_brings_behind_the_cursor_is_not_read_back)
{
    char store[200];
    snprintf(store, sizeof store, "%s/store", bed->root);
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS);
    bed_stop(bed);
    shell("cp -r '%s' '%s/copy'; rm -r '%s/" RUN "/step-00000001-a0001'", store, bed->root, store);
    shell("rm -r '%s/" RUN "/step-00000003-a0001'", store);
    bring(bed, 1, store);
    bed->config.scrub_rate = 0;
    for (int life = 0; life < 2; life++) {
        assert_int_equal(bed_start(bed), 0);
        if (life == 0) {
            expect_read(bed, 1 << 2 | 1 << 4);
            bring(bed, 3, bed->config.listen);
        }
        expect_read(bed, 1 << 4);
        bed_stop(bed);
    }
    expect_read_by_a_new_pass(bed);
}

SCRUB_TEST(test_scrub__where_a_tool_found_damage_is_read_first_also_behind_the_cursor)
{
    bed->config.scrub_rate = 16 * MIB;
    bed->config.scrub_start_ms = 3600000;
    assert_int_equal(bed_start(bed), 0);
    start_scrub(bed, STEPS); /* that is whole */
    wait_until(bed, "checkpoints_read", 1);
    assert_false(is_shown_as_read(bed, STEPS - 1));
    wait_until(bed, "checkpoints_read", 2);
    bed_flip_byte(bed, 1, 1, "shard-00001-of-00002.safetensors", MIB + 77);
    start_scrub(bed, 1);
    wait_until(bed, "damaged", 1);
    assert_true(scrubbed(bed, "passes") == 0);
    hurry = HURRY;
    expect_damage(bed, 1, "block 1 of shard-00001-of-00002 is damaged");
    wait_until(bed, "passes", 1);
    assert_true(scrubbed(bed, "checkpoints_read") == STEPS + 1);
}

/* By a load: also without a scrub, and for the next start. */
SCRUB_TEST(test_scrub__what_a_load_read_whole_is_read_back)
{
    bed->config.scrub_rate = 0;
    for (int life = 0; life < 2; life++) {
        assert_int_equal(bed_start(bed), 0);
        assert_int_equal(load_all(bed, 2, NULL), 0);
        for (int ms = 0; ms < BED_PATIENCE_MS && !is_shown_as_read(bed, 2); ms += 10)
            sleep_ms(10);
        expect_read(bed, 1ull << 2);
        bed_stop(bed);
    }
}

/* The newest is damaged: the one before it is the first that retention may count on. */
SCRUB_TEST(test_scrub__where_none_is_known_whole_the_newest_is_read_first)
{
    bed_flip_byte(bed, STEPS, 1, "shard-00001-of-00002.safetensors", MIB + 77);
    bed->config.scrub_rate = 4 * MIB;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "checkpoints_read", 1);
    assert_true(is_shown_as_read(bed, STEPS - 1) && scrubbed(bed, "damaged") == 1);
    bed_stop(bed);
    bed->config.scrub_rate = 0; /* the next start knows of it, and of no other */
    assert_int_equal(bed_start(bed), 0);
    expect_read(bed, 1ull << (STEPS - 1));
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    assert_int_equal(bed_start(bed), 0);
    wait_until(bed, "passes", 1);
    expect_read(bed, ALL_STEPS & ~(1ull << STEPS));
}

/* Each checkpoint is there for two saves, less than its reading takes. */
SCRUB_TEST(test_scrub__a_run_that_removes_faster_than_it_reads_still_has_one_read_back)
{
    uint64_t step = STEPS;
    bed->config.scrub_rate = 8 * MIB;
    bed->config.scrub_period = 0;
    bed->config.policies.all.local.last = 1;
    bed->config.policies.all.may_remove_most = true;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    while (scrubbed(bed, "checkpoints_read") < 2 && step < STEPS + SAVES_MAX) {
        assert_true(save_step(peers, RANKS, ++step));
        sleep_ms(100);
    }
    assert_true(scrubbed(bed, "checkpoints_read") >= 2);
    assert_true(status_number(bed, "since_start", "pruned") > 2);
    assert_true(scrubbed(bed, "damaged") == 0);
    peers_close(peers, RANKS);
}

int main(void)
{
    log_setup("ckptd_scrub", NULL);
    return suite_run(make_steps, free_steps);
}
