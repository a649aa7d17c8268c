/* ckptd_catalog.c - ckptd's scan of the store at start.
 *
 * Goal: rubbish is removed, damage is kept and named, foreign files are not touched, the order is
 * newest attempt first. Method: a store in memory, filled by hand with manifests and shards;
 * catalog_open on a service without other parts. Also catalog_add: an entry that is listed already
 * gains a place. */
#include "ckptd/core/copies.h"
#include "proto/format/flaw.h"
#include "proto/format/origin.h"
#include "proto/format/places.h"
#include "tests/fault/storage_fault.h"
#include "tests/unit/ckptd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#define SHARD_BYTES 8192u
#define RUN "run-1"

static struct config config;
static struct service service;

static int set_up(void **state)
{
    (void)state;
    memset(&service, 0, sizeof service);
    config.limit_runs = 8;
    config.limit_checkpoints = 64;
    service.config = &config;
    assert_int_equal(catalog_open(&service, &coordinator_events), 0);
    return storage_open(&service.storage, &storage_memory, "", NULL);
}

static int tear_down(void **state)
{
    (void)state;
    catalog_close(&service);
    storage_close(service.storage);
    return 0;
}

static void put(const char *key, size_t bytes)
{
    char *data = calloc(1, bytes);
    assert_int_equal(storage_publish(service.storage, key, data, bytes), 0);
    free(data);
}

static void put_shard(uint64_t step, uint64_t attempt, uint32_t shard, uint32_t shards,
                      size_t bytes)
{
    struct shard_identity identity = {
        .run = RUN, .step = step, .attempt = attempt, .shard = shard, .shards = shards};
    char key[STORAGE_KEY_MAX];
    assert_int_equal(shard_key(key, sizeof key, &identity), 0);
    put(key, bytes);
}

static void mark(uint64_t step, uint64_t attempt)
{
    char text[MARK_BYTES_MAX], dir[STORAGE_KEY_MAX], key[STORAGE_KEY_MAX + 32];
    mark_text(text, RUN, step, attempt);
    assert_int_equal(shard_dir_key(dir, sizeof dir, RUN, step, attempt), 0);
    snprintf(key, sizeof key, "%s/" MARK_NAME, dir);
    assert_int_equal(storage_publish(service.storage, key, text, strlen(text)), 0);
}

/* A manifest of no tensors, whose summary promises `shards` shards. */
static void put_manifest(uint64_t step, uint64_t attempt, uint64_t claimed_step, uint32_t shards)
{
    char dir[STORAGE_KEY_MAX], key[STORAGE_KEY_MAX + 32], *text;
    size_t bytes;
    struct layout_table table = {0};
    struct digest digest;
    struct manifest_shard *list = calloc(shards, sizeof *list);
    struct shard_geometry geometry;
    for (uint32_t i = 0; i < shards; i++) {
        assert_int_equal(shard_geometry_derive(&geometry, 4096, 0), 0);
        list[i] = (struct manifest_shard){.bytes = geometry.file_bytes, .data_start = 4096};
        assert_int_equal(geometry.file_bytes, SHARD_BYTES);
    }
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .run = RUN,
                                            .step = claimed_step,
                                            .attempt = attempt,
                                            .nonce = "0123456789abcdef0123456789abcdef",
                                            .bytes = (uint64_t)shards * SHARD_BYTES,
                                            .time = "2026-01-01T00:00:00Z",
                                            .world_size = shards,
                                            .shards = shards},
                                .table = &table,
                                .digests = &digest,
                                .shards = list};
    if (manifest_write(&text, &bytes, &manifest) != 0)
        fail_msg("%s", report_line());
    assert_int_equal(shard_dir_key(dir, sizeof dir, RUN, step, attempt), 0);
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    assert_int_equal(storage_publish(service.storage, key, text, bytes), 0);
    free(text);
    free(list);
}

static void put_checkpoint(uint64_t step, uint64_t attempt)
{
    for (uint32_t i = 0; i < 2; i++)
        put_shard(step, attempt, i, 2, SHARD_BYTES);
    put_manifest(step, attempt, step, 2);
}

static bool exists(const char *key)
{
    char byte;
    uint64_t bytes;
    return storage_fetch(service.storage, key, &byte, 1, &bytes) == 0;
}

static struct run *open_and_find(void)
{
    struct run *run;
    assert_int_equal(scan_store(&service), 0);
    assert_int_equal(run_find(&run, &service, RUN, false), 0);
    return run;
}

TEST_BETWEEN(test_catalog__an_empty_store_has_nothing, set_up, tear_down)
{
    assert_int_equal(scan_store(&service), 0);
    assert_int_equal(service.catalog->num_runs + service.catalog->num_checkpoints, 0);
}

TEST_BETWEEN(test_catalog__the_newest_attempt_comes_first_then_the_newest_step, set_up, tear_down)
{
    put_checkpoint(20, 1);
    put_checkpoint(10, 1);
    put_checkpoint(15, 3); /* rolled back to 10 */
    struct run *run = open_and_find();
    struct checkpoint *list = run->checkpoints;
    assert_true(list->summary.step == 15 && list->summary.attempt == 3);
    assert_true(list->next->summary.step == 20);
    assert_true(list->next->next->summary.step == 10);
    assert_ptr_equal(catalog_newest(run), list);
    assert_true(run->coordinator->machine.attempt == 3);
    assert_true(catalog_find(run, 20, 1) && !catalog_find(run, 20, 3));
}

TEST_BETWEEN(test_catalog__each_checkpoint_has_its_place_among_attempts_that_overlap, set_up,
             tear_down)
{
    /* Five starts of ten steps each; every start continues from before the newest step of the
     * last. */
    for (uint64_t attempt = 1; attempt <= 5; attempt++)
        for (uint64_t i = 0; i < 10; i++)
            put_checkpoint(10 + 4 * attempt + i, attempt);
    struct run *run = open_and_find();
    uint64_t step = UINT64_MAX, attempt = UINT64_MAX;
    uint32_t count = 0;
    for (struct checkpoint *c = run->checkpoints; c; c = c->next, count++) {
        assert_true(c->summary.attempt < attempt ||
                    (c->summary.attempt == attempt && c->summary.step < step));
        step = c->summary.step;
        attempt = c->summary.attempt;
        assert_ptr_equal(catalog_find(run, step, attempt), c);
        assert_ptr_equal(catalog_next_older(run, step, attempt), c->next);
    }
    assert_int_equal(count, 50);
    /* Positions without an entry: before all, between two attempts, after all. */
    assert_ptr_equal(catalog_next_older(run, 0, 6), run->checkpoints);
    assert_non_null(catalog_find(run, 27, 2));
    assert_ptr_equal(catalog_next_older(run, 0, 3), catalog_find(run, 27, 2));
    assert_null(catalog_next_older(run, 0, 1));
    assert_null(catalog_find(run, 0, 1));
    assert_null(catalog_find(run, 100, 5));
}

TEST_BETWEEN(test_catalog__shards_with_a_mark_and_no_manifest_are_removed, set_up, tear_down)
{
    put_checkpoint(1, 1);
    put_shard(2, 1, 0, 2, SHARD_BYTES);
    put_shard(2, 1, 1, 2, SHARD_BYTES);
    mark(2, 1);
    mark(1, 1); /* interrupted between the manifest and the removal of the mark */
    struct run *run = open_and_find();
    assert_null(catalog_find(run, 2, 1));
    assert_false(exists(RUN "/step-00000002-a0001/shard-00001-of-00002.safetensors"));
    assert_false(exists(RUN "/step-00000002-a0001/" MARK_NAME));
    assert_true(exists(RUN "/step-00000001-a0001/shard-00001-of-00002.safetensors"));
    assert_false(exists(RUN "/step-00000001-a0001/" MARK_NAME));
    assert_ptr_equal(catalog_newest(run), catalog_find(run, 1, 1));
}

/* The manifest was moved away, or is yet to come in a restore: also where a mark is of other work.
 */
TEST_BETWEEN(test_catalog__shards_that_no_mark_proves_unfinished_are_set_aside, set_up, tear_down)
{
    char text[MARK_BYTES_MAX];
    put_checkpoint(1, 1);
    put_shard(2, 1, 0, 2, SHARD_BYTES);
    put_shard(3, 1, 0, 2, SHARD_BYTES);
    mark_text(text, RUN, 2, 1);
    assert_int_equal(
        storage_publish(service.storage, RUN "/step-00000003-a0001/" MARK_NAME, text, strlen(text)),
        0);
    struct run *run = open_and_find();
    for (uint64_t step = 2; step <= 3; step++) {
        struct checkpoint *aside = catalog_find(run, step, 1);
        assert_true(aside && catalog_has_flaw(aside, FLAW_ASIDE));
        assert_non_null(strstr(aside->damage, "ckpt-cli rm"));
    }
    assert_ptr_equal(catalog_newest(run), catalog_find(run, 1, 1));
    assert_true(exists(RUN "/step-00000002-a0001/shard-00001-of-00002.safetensors"));
    assert_true(exists(RUN "/step-00000003-a0001/shard-00001-of-00002.safetensors"));
    assert_false(exists(RUN "/quarantine/step-00000002-a0001"));
}

/* Another node may be asked whether it holds a part of a checkpoint. */
TEST_BETWEEN(test_catalog__a_part_is_in_doubt_until_its_coordinator_was_asked, set_up, tear_down)
{
    char text[MARK_BYTES_MAX];
    struct shard_identity identity = {
        .run = RUN, .step = 2, .attempt = 1, .nonce = "0123456789abcdef0123456789abcdef"};
    put_shard(2, 1, 0, 2, SHARD_BYTES);
    mark_write_part(text, &identity, "n7");
    assert_int_equal(
        storage_publish(service.storage, RUN "/step-00000002-a0001/" MARK_NAME, text, strlen(text)),
        0);
    struct checkpoint *part = catalog_find(open_and_find(), 2, 1);
    assert_true(part && catalog_has_flaw(part, FLAW_IN_DOUBT) && catalog_is_uncommitted(part));
    assert_non_null(strstr(part->damage, "node n7"));
    assert_null(strstr(part->damage, "ckpt-cli rm"));
}

TEST_BETWEEN(test_catalog__files_of_other_names_are_never_touched, set_up, tear_down)
{
    put_shard(2, 1, 0, 2, SHARD_BYTES);
    mark(2, 1);
    put(RUN "/step-00000002-a0001/notes.txt", 10);
    put(RUN "/step-2-a1/shard-00001-of-00001.safetensors", 10); /* not how we write it */
    put("README", 10);
    put("..odd/file", 10);
    open_and_find();
    assert_false(exists(RUN "/step-00000002-a0001/shard-00001-of-00002.safetensors"));
    assert_true(exists(RUN "/step-00000002-a0001/notes.txt"));
    assert_true(exists(RUN "/step-2-a1/shard-00001-of-00001.safetensors"));
    assert_true(exists("README"));
    assert_true(exists("..odd/file"));
}

/* The checkpoint of step 5 is damaged in the way of `reason`, that of step 4 is whole. */
static void expect_damage(const char *reason)
{
    put_checkpoint(4, 1);
    struct run *run = open_and_find();
    struct checkpoint *damaged = catalog_find(run, 5, 1);
    assert_non_null(damaged);
    assert_true(damaged->damaged);
    if (!strstr(damaged->damage, reason))
        fail_msg("\"%s\" lacks \"%s\"", damaged->damage, reason);
    assert_true(catalog_newest(run)->summary.step == 4);
    assert_true(exists(RUN "/step-00000005-a0001/" MANIFEST_NAME)); /* kept */
    assert_true(exists(RUN "/quarantine/step-00000005-a0001"));     /* for every later start */
}

TEST_BETWEEN(test_catalog__a_missing_shard_is_damage, set_up, tear_down)
{
    put_shard(5, 1, 0, 2, SHARD_BYTES);
    put_manifest(5, 1, 5, 2);
    expect_damage("shard-00002-of-00002.safetensors is missing");
}

TEST_BETWEEN(test_catalog__a_short_shard_is_damage, set_up, tear_down)
{
    put_shard(5, 1, 0, 2, SHARD_BYTES);
    put_shard(5, 1, 1, 2, SHARD_BYTES / 2);
    put_manifest(5, 1, 5, 2);
    expect_damage("12288 bytes instead of 16384");
}

/* It is not served and no note is made: moving the file back restores it. */
static void expect_moved(struct run *run, uint64_t step, const char *reason)
{
    struct checkpoint *moved = catalog_find(run, step, 1);
    char note[STORAGE_KEY_MAX];
    assert_non_null(moved);
    assert_true(strcmp(moved->flaw, "moved") == 0 && moved->damaged);
    if (!strstr(moved->damage, reason))
        fail_msg("\"%s\" lacks \"%s\"", moved->damage, reason);
    assert_true(catalog_newest(run) != moved);
    snprintf(note, sizeof note, "%s/quarantine/step-%08u-a0001", run->name, (unsigned)step);
    assert_false(exists(note));
}

TEST_BETWEEN(test_catalog__a_manifest_of_another_step_was_moved, set_up, tear_down)
{
    put_shard(5, 1, 0, 2, SHARD_BYTES);
    put_shard(5, 1, 1, 2, SHARD_BYTES);
    put_manifest(5, 1, 6, 2);
    expect_moved(open_and_find(), 5, "belongs to");
}

TEST_BETWEEN(test_catalog__a_run_that_was_moved_is_served_once_it_is_adopted, set_up, tear_down)
{
    char origin[ORIGIN_BYTES_MAX];
    struct run *run;
    put_checkpoint(4, 1);
    put_checkpoint(5, 1);
    put_checkpoint(6, 1);
    assert_int_equal(storage_rename(service.storage, RUN, "moved"), 0);
    origin_write(origin, RUN, "0123456789abcdef0123456789abcdef");
    assert_int_equal(storage_publish(service.storage, "moved/step-00000005-a0001/" ORIGIN_NAME,
                                     origin, strlen(origin)),
                     0);
    origin_write(origin, RUN, "ffff456789abcdef0123456789abcdef");
    assert_int_equal(storage_publish(service.storage, "moved/step-00000006-a0001/" ORIGIN_NAME,
                                     origin, strlen(origin)),
                     0);
    assert_int_equal(scan_store(&service), 0);
    assert_int_equal(run_find(&run, &service, "moved", false), 0);
    expect_moved(run, 4, "it was saved in run " RUN);
    assert_int_equal(catalog_newest(run)->summary.step, 5);
    assert_string_equal(catalog_newest(run)->summary.origin, RUN);
    assert_true(catalog_find(run, 6, 1)->damaged); /* vouched for by a file of another one */
}

TEST_BETWEEN(test_catalog__an_unreadable_manifest_is_damage, set_up, tear_down)
{
    put_shard(5, 1, 0, 2, SHARD_BYTES);
    put(RUN "/step-00000005-a0001/" MANIFEST_NAME, 100);
    expect_damage("shorter than its summary");
    assert_true(exists(RUN "/step-00000005-a0001/shard-00001-of-00002.safetensors"));
}

/* A summary with its own hash made right again, but with four billion shards. */
TEST_BETWEEN(test_catalog__a_summary_with_an_impossible_count_is_damage, set_up, tear_down)
{
    static const char key[] = RUN "/step-00000002-a0001/" MANIFEST_NAME;
    static const char from[] = "\"shards\":2,", to[] = "\"shards\":4294967295,";
    static const char hash[] = "\"summary_hash\":\"";
    void *text;
    size_t bytes;
    put_checkpoint(1, 1);
    put_checkpoint(2, 1);
    assert_int_equal(storage_fetch_all(service.storage, key, 1 << 20, &text, &bytes), 0);
    char *changed = calloc(1, bytes + 32), *at = memmem(text, bytes, from, strlen(from));
    size_t before = (size_t)(at - (char *)text);
    memcpy(changed, text, before);
    strcpy(changed + before, to);
    /* The padding after the summary shrinks. */
    memcpy(changed + before + strlen(to), at + strlen(from),
           MANIFEST_SUMMARY_BYTES - before - strlen(to));
    changed[MANIFEST_SUMMARY_BYTES - 1] = '\n';
    at = (char *)memmem(changed, MANIFEST_SUMMARY_BYTES, hash, strlen(hash)) + strlen(hash);
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx",
             (unsigned long long)checksum_bytes(changed, (size_t)(at - changed)));
    memcpy(at, digits, 16);
    assert_int_equal(storage_remove(service.storage, key), 0);
    assert_int_equal(storage_publish(service.storage, key, changed, MANIFEST_SUMMARY_BYTES), 0);
    struct run *run = open_and_find();
    struct checkpoint *damaged = catalog_find(run, 2, 1);
    assert_true(damaged && catalog_has_flaw(damaged, FLAW_DAMAGED) && damaged->summary.shards == 0);
    assert_non_null(strstr(damaged->damage, "is missing"));
    assert_ptr_equal(catalog_newest(run), catalog_find(run, 1, 1));
    free(changed);
    free(text);
}

/* The store's call of this kind and number fails. */
static void fail_call(const char *kind, int number)
{
    char where[64];
    storage_close(service.storage);
    snprintf(where, sizeof where, "only=%s,fail_at=%d:memory:", kind, number);
    assert_int_equal(storage_open(&service.storage, &storage_fault, where, NULL), 0);
}

/* The state that a daemon loses at its shutdown. */
static void forget(void)
{
    catalog_close(&service);
    assert_int_equal(catalog_open(&service, &coordinator_events), 0);
}

TEST_BETWEEN(test_catalog__an_error_of_the_disk_proves_no_damage, set_up, tear_down)
{
    fail_call("fetch", 1); /* the oldest step's summary */
    put_checkpoint(1, 1);
    put_checkpoint(2, 1);
    struct run *run = open_and_find();
    struct checkpoint *failed = catalog_find(run, 1, 1);
    assert_true(failed && catalog_has_flaw(failed, FLAW_UNREAD));
    assert_non_null(strstr(failed->damage, "injected fault"));
    assert_false(exists(RUN "/quarantine/step-00000001-a0001")); /* the next start reads it again */
    forget();
    assert_false(catalog_find(open_and_find(), 1, 1)->damaged);
}

/* Of the root, attempts, tombstones, the run, steps, pins, quarantine. */
#define LISTS_BEFORE_STEPS 4

/* It is unknown whether it is a checkpoint or rubbish: the start continues, and it stays. */
TEST_BETWEEN(test_catalog__a_step_that_cannot_be_listed_is_kept_and_named, set_up, tear_down)
{
    for (uint64_t step = 2; step <= 3; step++) {
        char shard[STORAGE_KEY_MAX], note[STORAGE_KEY_MAX];
        fail_call("list", LISTS_BEFORE_STEPS + (int)step);
        put_checkpoint(1, 1);
        put_checkpoint(2, 1);
        put_shard(3, 1, 0, 2, SHARD_BYTES);
        mark(3, 1);
        struct run *run = open_and_find();
        struct checkpoint *unread = catalog_find(run, step, 1);
        assert_true(unread && unread->damaged);
        assert_non_null(strstr(unread->damage, "injected fault"));
        assert_true(catalog_newest(run)->summary.step == (step == 2 ? 1 : 2));
        snprintf(note, sizeof note, RUN "/quarantine/step-%08d-a0001", (int)step);
        snprintf(shard, sizeof shard, RUN "/step-%08d-a0001/shard-00001-of-00002.safetensors",
                 (int)step);
        assert_false(exists(note)); /* the next start reads it again */
        assert_true(exists(shard));
        forget();
        run = open_and_find();
        assert_true(catalog_newest(run)->summary.step == 2 && !catalog_find(run, 3, 1));
        forget();
    }
}

/* Its attempts and checkpoints are unknown: the other runs are served. */
TEST_BETWEEN(test_catalog__a_run_that_cannot_be_listed_is_refused_by_name, set_up, tear_down)
{
    static const int lists[] = {2, 4, 7, 8}; /* attempts, the run, pins, quarantine */
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct run *run;
        fail_call("list", lists[i]);
        put_checkpoint(1, 1);
        put_checkpoint(2, 1);
        put("run-2/attempts/0007", 10);
        assert_int_equal(scan_store(&service), 0);
        assert_int_equal(run_find(&run, &service, RUN, true), ERR_IO);
        assert_non_null(strstr(report_line(), RUN " could not be read when ckptd started"));
        assert_int_equal(service.catalog->num_checkpoints, 0);
        assert_int_equal(run_find(&run, &service, "run-2", false), 0);
        assert_int_equal(run->coordinator->machine.attempt, 7);
        forget();
        assert_true(catalog_newest(open_and_find())->summary.step == 2);
        forget();
    }
    fail_call("list", 1); /* the root */
    put_checkpoint(1, 1);
    assert_int_equal(scan_store(&service), ERR_IO);
}

TEST_BETWEEN(test_catalog__a_note_of_quarantine_holds_also_when_it_cannot_be_read, set_up,
             tear_down)
{
    fail_call("fetch", 3); /* after two summaries */
    put_checkpoint(1, 1);
    put_checkpoint(2, 1);
    put(RUN "/quarantine/step-00000002-a0001", 10);
    struct run *run = open_and_find();
    struct checkpoint *damaged = catalog_find(run, 2, 1);
    assert_true(damaged && damaged->damaged);
    assert_non_null(strstr(damaged->damage, "the reason cannot be read: injected fault"));
    assert_ptr_equal(catalog_newest(run), catalog_find(run, 1, 1));
}

/* Enough for several threads to read them: the answer is the same. */
TEST_BETWEEN(test_catalog__hundreds_are_found_whole_damaged_or_removed, set_up, tear_down)
{
    config.limit_checkpoints = 1000;
    for (uint64_t step = 0; step < 400; step++) {
        uint64_t attempt = 1 + step / 100;
        put_shard(step, attempt, 0, 2, SHARD_BYTES);
        if (step % 10 != 3) /* else a shard is missing */
            put_shard(step, attempt, 1, 2, SHARD_BYTES);
        if (step % 10 != 7) /* else the save was cut short */
            put_manifest(step, attempt, step, 2);
        else
            mark(step, attempt);
    }
    struct run *run = open_and_find();
    uint64_t step = 400;
    for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
        step -= step % 10 == 8 ? 2 : 1;
        assert_true(c->summary.step == step && c->summary.attempt == 1 + step / 100);
        assert_true(c->damaged == (step % 10 == 3));
    }
    assert_true(step == 0);
    assert_false(exists(RUN "/step-00000007-a0001/shard-00001-of-00002.safetensors"));
    config.limit_checkpoints = 64;
}

TEST_BETWEEN(test_catalog__attempts_are_read_from_their_names, set_up, tear_down)
{
    put(RUN "/attempts/0001", 10);
    put(RUN "/attempts/0012", 10);
    put(RUN "/attempts/0012.loaded", 10);
    put(RUN "/attempts/9999x", 10);
    assert_true(open_and_find()->coordinator->machine.attempt == 12);
}

TEST_BETWEEN(test_catalog__names_that_cannot_be_a_run_are_refused, set_up, tear_down)
{
    static const char *const bad[] = {"", ".", "..", ".x", "a/b", "a b", "a\n", "\xc3\xa4"};
    struct run *run;
    char name[RUN_NAME_MAX + 2];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(run_find(&run, &service, bad[i], true), ERR_INVALID);
    memset(name, 'r', sizeof name);
    name[RUN_NAME_MAX + 1] = 0;
    assert_int_equal(run_find(&run, &service, name, true), ERR_INVALID);
    name[RUN_NAME_MAX] = 0;
    assert_int_equal(run_find(&run, &service, name, true), 0);
}

TEST_BETWEEN(test_catalog__more_than_the_limit_is_refused, set_up, tear_down)
{
    config.limit_checkpoints = 2;
    for (uint64_t step = 1; step <= 3; step++)
        put_checkpoint(step, 1);
    assert_int_equal(scan_store(&service), ERR_BUSY);
    config.limit_checkpoints = 64;
}

/* ---- the one way into the list ---- */

static struct run *a_run(void)
{
    struct run *run;
    assert_int_equal(run_find(&run, &service, RUN, true), 0);
    return run;
}

static struct manifest_summary of_save(const char *nonce)
{
    struct manifest_summary summary = {.run = RUN, .step = 5, .attempt = 2, .shards = 2};
    snprintf(summary.nonce, sizeof summary.nonce, "%s", nonce);
    return summary;
}

static const struct places whole;

TEST_BETWEEN(test_catalog__what_another_tier_lists_gains_the_place_that_it_comes_to, set_up,
             tear_down)
{
    static const enum tier_index order[][2] = {{TIER_FAR, TIER_LOCAL}, {TIER_LOCAL, TIER_FAR}};
    for (size_t i = 0; i < 2; i++) {
        struct run *run = a_run();
        struct manifest_summary summary = of_save("one");
        struct checkpoint *listed, *again;
        assert_int_equal(catalog_add(&listed, run, &summary, order[i][0], &whole), 0);
        assert_int_equal(catalog_add(&again, run, &summary, order[i][1], &whole), 0);
        assert_ptr_equal(again, listed);
        assert_ptr_equal(run->checkpoints, listed);
        assert_null(listed->next);
        assert_int_equal(service.catalog->num_checkpoints, 1);
        assert_string_equal(copies_names(listed), "local,far");
        catalog_forget(run);
    }
}

/* A save, a removal that failed, an adoption: another tier may list it already. */
TEST_BETWEEN(test_catalog__an_entry_that_was_promised_is_merged_with_its_pin, set_up, tear_down)
{
    struct run *run = a_run();
    struct manifest_summary summary = of_save("one");
    struct checkpoint *listed, *entry;
    assert_int_equal(catalog_add(&listed, run, &summary, TIER_FAR, &whole), 0);
    assert_int_equal(catalog_new(&entry, run, 5, 2), 0);
    catalog_set_pin(entry, TIER_LOCAL, &(struct pin){.is_made = true});
    assert_ptr_equal(catalog_enter(entry, &summary), listed);
    assert_string_equal(copies_names(listed), "local,far");
    assert_true(listed->pin.is_made);
    assert_int_equal(service.catalog->num_promised, 0);
}

TEST_BETWEEN(test_catalog__another_save_of_that_name_is_refused, set_up, tear_down)
{
    struct run *run = a_run();
    struct manifest_summary summary = of_save("one"), other = of_save("other");
    struct checkpoint *listed, *refused;
    assert_int_equal(catalog_add(&listed, run, &summary, TIER_FAR, &whole), 0);
    assert_int_equal(catalog_add(&refused, run, &other, TIER_LOCAL, &whole), ERR_EXISTS);
    assert_non_null(strstr(report_line(), "(far) with another nonce"));
    assert_string_equal(copies_names(listed), "far");
    assert_int_equal(service.catalog->num_promised, 0);
}

TEST_BETWEEN(test_catalog__what_is_promised_is_not_entered_by_others, set_up, tear_down)
{
    struct run *run = a_run();
    struct manifest_summary summary = of_save("one");
    struct checkpoint *entry, *refused;
    assert_int_equal(catalog_new(&entry, run, 5, 2), 0);
    assert_int_equal(catalog_add(&refused, run, &summary, TIER_FAR, &whole), ERR_BUSY);
    assert_int_equal(catalog_new(&refused, run, 5, 2), ERR_BUSY);
    catalog_drop(entry);
    assert_int_equal(catalog_add(&entry, run, &summary, TIER_FAR, &whole), 0);
}

TEST_BETWEEN(test_catalog__a_part_stays_one_where_another_tier_has_all, set_up, tear_down)
{
    static uint16_t shards[] = {0, 1};
    static char nodes[][PLACES_NODE_BYTES] = {"n1", "n2"};
    const struct places part = {.num_nodes = 2, .num_shards = 2, .nodes = nodes, .shards = shards};
    snprintf(config.nodes_name, sizeof config.nodes_name, "n1");
    struct run *run = a_run();
    struct manifest_summary summary = of_save("one");
    struct checkpoint *listed, *again;
    assert_int_equal(catalog_add(&listed, run, &summary, TIER_FAR, &whole), 0);
    assert_int_equal(catalog_add(&again, run, &summary, TIER_LOCAL, &part), 0);
    assert_string_equal(copies_names(listed), "local (part),far");
    assert_int_equal(catalog_add(&again, run, &summary, TIER_LOCAL, &whole), 0);
    assert_string_equal(copies_names(listed), "local,far");
    config.nodes_name[0] = '\0';
}

SUITE(NULL, NULL)
