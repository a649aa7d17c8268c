/* storage_store_list.c - the checkpoints that a store lists, and the one that a name selects.
 *
 * Goal: damage is listed with its reason and is never selected as the newest. One of a later
 * version ends the search. The order is that of attempts, then steps. Method: a store in memory
 * with one whole checkpoint beside directories that lack something each.
 */
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

#include "proto/base/checksum.h"
#include "proto/format/flaw.h"

#define STEP_2 "run/step-00000002-a0001"
#define STEP_3 "run/step-00000003-a0001"

static struct storage *open_with_one(void)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    assert_int_equal(make_checkpoint(storage), 0);
    return storage;
}

/* The manifest of step 1 as of a version that is to come. */
static void put_newer(struct storage *storage, const char *key)
{
    static const char hash[] = "\"summary_hash\":\"", version[] = "\"version\":";
    char text[MANIFEST_SUMMARY_BYTES], digits[17];
    memcpy(text, the_checkpoint()->manifest, sizeof text);
    char *at = memmem(text, sizeof text, version, strlen(version));
    at[strlen(version)] = '9';
    at = (char *)memmem(text, sizeof text, hash, strlen(hash)) + strlen(hash);
    snprintf(digits, sizeof digits, "%016llx",
             (unsigned long long)checksum_bytes(text, (size_t)(at - text)));
    memcpy(at, digits, 16);
    assert_int_equal(storage_publish(storage, key, text, sizeof text), 0);
}

struct skips {
    uint32_t count;
    uint64_t last_step;
};

static int note_skip(void *user, const struct store_entry *entry)
{
    struct skips *skips = user;
    assert_non_null(entry->damage);
    skips->count++;
    skips->last_step = entry->summary.step;
    return 0;
}

static int find(struct store_entry *out, struct storage *storage, struct store_choice choice,
                struct skips *skips)
{
    *skips = (struct skips){0};
    choice.run = "run";
    return store_find(out, storage, &choice, note_skip, skips);
}

TEST(test_list__the_newest_is_never_a_damaged_one)
{
    struct storage *storage = open_with_one();
    struct store_entry entry;
    struct skips skips;
    assert_int_equal(storage_publish(storage, STEP_2 "/manifest.json", "{}", 2), 0);
    assert_int_equal(find(&entry, storage, (struct store_choice){.step = -1}, &skips), 0);
    assert_true(entry.summary.step == 1 && !entry.damage && skips.count == 1);
    assert_int_equal(find(&entry, storage, (struct store_choice){.step = 2}, &skips), 0);
    assert_true(entry.summary.step == 2 && entry.damage && skips.count == 0); /* it is named */
    assert_string_equal(entry.flaw, FLAW_DAMAGED);
    store_entry_free(&entry);
    assert_int_equal(store_put_note(storage, STORE_QUARANTINE, GROUP, "block 7"), 0);
    assert_int_equal(find(&entry, storage, (struct store_choice){.step = -1}, &skips),
                     ERR_NOT_FOUND);
    assert_true(skips.count == 2 && skips.last_step == 1);
    storage_close(storage);
}

/* An older state in its place would roll a run back silently. */
TEST(test_list__names_come_newest_first_however_they_were_made)
{
    struct storage *storage = open_with_one();
    struct store_names names;
    assert_int_equal(storage_publish(storage, STEP_3 "/manifest.json", "{}", 2), 0);
    assert_int_equal(storage_publish(storage, STEP_2 "/manifest.json", "{}", 2), 0);
    assert_int_equal(store_list_names(&names, storage, "run"), 0);
    assert_int_equal(names.count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(names.list[i].step, 3 - i);
    store_names_free(&names);
    storage_close(storage);
}

TEST(test_list__one_of_a_later_version_ends_the_search)
{
    struct storage *storage = open_with_one();
    struct store_entry entry;
    struct skips skips;
    put_newer(storage, STEP_3 "/manifest.json");
    assert_int_equal(find(&entry, storage, (struct store_choice){.step = -1}, &skips), 0);
    assert_true(entry.summary.step == 3 && skips.count == 0);
    assert_string_equal(entry.flaw, FLAW_NEWER);
    store_entry_free(&entry);
    assert_int_equal(
        find(&entry, storage, (struct store_choice){.step = -1, .below_step = 3}, &skips), 0);
    assert_true(entry.summary.step == 1 && !entry.damage);
    storage_close(storage);
}

TEST(test_list__what_comes_after_one_that_was_passed)
{
    struct storage *storage = open_with_one();
    struct store_entry entry;
    struct skips skips;
    struct store_choice choice = {.step = -1, .passed_step = 1, .passed_attempt = 1};
    assert_int_equal(find(&entry, storage, choice, &skips), ERR_NOT_FOUND);
    choice.passed_attempt = 2; /* of a younger attempt, whatever its step */
    assert_int_equal(find(&entry, storage, choice, &skips), 0);
    assert_true(entry.summary.step == 1);
    storage_close(storage);
}

/* Unfinished work is not listed; unexplained shards are, and misplaced checkpoints too. */
TEST(test_list__each_is_listed_with_its_flaw_newest_attempt_first)
{
    struct storage *storage = open_with_one();
    struct store_list list;
    char mark[MARK_BYTES_MAX];
    mark_text(mark, "run", 2, 1);
    assert_int_equal(storage_publish(storage, STEP_2 "/" MARK_NAME, mark, strlen(mark)), 0);
    assert_int_equal(storage_publish(storage, STEP_3 "/shard-00001-of-00001.safetensors", "x", 1),
                     0);
    assert_int_equal(publish_manifest(storage, "run/step-00000001-a0002/manifest.json"), 0);
    assert_int_equal(publish_manifest(storage, "other/" STEP "/manifest.json"), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "keep"), 0);
    assert_int_equal(store_list_read(&list, storage, ""), 0);
    assert_int_equal(store_list_find_pins(&list, storage), 0);
    static const struct {
        const char *run, *flaw;
        uint64_t step, attempt;
        bool is_pinned;
    } want[] = {{"other", FLAW_MOVED, 1, 1, false},
                {"run", FLAW_MOVED, 1, 2, false},
                {"run", FLAW_ASIDE, 3, 1, false},
                {"run", NULL, 1, 1, true}};
    assert_int_equal(list.count, sizeof want / sizeof want[0]);
    for (uint32_t i = 0; i < list.count; i++) {
        const struct store_entry *entry = &list.entries[i];
        assert_string_equal(entry->summary.run, want[i].run);
        assert_true(entry->summary.step == want[i].step &&
                    entry->summary.attempt == want[i].attempt);
        assert_int_equal(entry->may_be_pinned, want[i].is_pinned);
        assert_true(want[i].flaw ? strcmp(entry->flaw, want[i].flaw) == 0 && entry->damage
                                 : !entry->flaw && !entry->damage);
    }
    store_list_free(&list);
    storage_close(storage);
}

/* It may be whole, or its coordinator may still declare it a checkpoint: no list says otherwise. */
TEST(test_list__where_a_read_fails_it_is_unreadable_and_not_damaged)
{
    static const struct {
        const char *where;
        int error;
    } cases[] = {{"only=fetch,key=manifest.json,fail_from=1,errno=30:memory:", ERR_DENIED},
                 {"only=fetch,key=manifest.json,fail_from=1,errno=5:memory:", ERR_IO}};
    for (size_t i = 0; i < 2; i++) {
        struct storage *storage = open_fault(cases[i].where);
        struct store_list list;
        assert_int_equal(make_checkpoint(storage), 0);
        assert_int_equal(store_list_read(&list, storage, "run"), 0);
        assert_int_equal(list.count, 1);
        assert_int_equal(list.entries[0].unread, cases[i].error);
        assert_true(list.entries[0].damage && strcmp(list.entries[0].flaw, FLAW_UNREAD) == 0);
        store_list_free(&list);
        storage_close(storage);
    }
}

/* The name of the note is enough; the rest of the run is listed. */
TEST(test_list__one_whose_reason_cannot_be_read_stays_quarantined)
{
    struct storage *storage = open_fault("only=fetch,key=quarantine,fail_from=1:memory:");
    struct store_list list;
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(storage_publish(storage, STEP_2 "/manifest.json", "{}", 2), 0);
    assert_int_equal(store_put_note(storage, STORE_QUARANTINE, GROUP, "block 7"), 0);
    assert_int_equal(store_list_read(&list, storage, "run"), 0);
    assert_int_equal(list.count, 2);
    assert_non_null(strstr(list.entries[1].damage, "the reason cannot be read"));
    store_list_free(&list);
    storage_close(storage);
}

/* Its mark is read twice, for what it proves and for the coordinator. */
TEST(test_list__nor_is_a_part_set_aside_whose_mark_cannot_be_read)
{
    static const char *const faults[] = {"1", "2", "9"};
    for (size_t i = 0; i < 3; i++) {
        const struct shard_identity part = {
            .run = "run", .step = 2, .attempt = 1, .nonce = "0123456789abcdef0123456789abcdef"};
        struct store_list list;
        struct store_seen seen;
        char where[100], mark[MARK_BYTES_MAX];
        int want = i < 2 ? ERR_IO : 0;
        mark_write_part(mark, &part, "n2");
        snprintf(where, sizeof where, "only=fetch,key=" MARK_NAME ",fail_at=%s:memory:", faults[i]);
        for (int is_list = 0; is_list < 2; is_list++) {
            struct storage *storage = open_fault(where);
            assert_int_equal(
                storage_publish(storage, STEP_2 "/shard-00001-of-00002.safetensors", "x", 1), 0);
            assert_int_equal(storage_publish(storage, STEP_2 "/" MARK_NAME, mark, strlen(mark)), 0);
            assert_int_equal(is_list ? store_list_read(&list, storage, "run")
                                     : store_inspect(&seen, storage, "run", 2, 1),
                             is_list ? 0 : want);
            if (want != 0 && is_list)
                assert_true(list.entries[0].unread == want &&
                            strcmp(list.entries[0].flaw, FLAW_UNREAD) == 0);
            else if (is_list)
                assert_string_equal(list.entries[0].flaw, FLAW_IN_DOUBT);
            else if (want == 0)
                assert_string_equal(seen.coordinator, "n2");
            if (is_list)
                store_list_free(&list);
            storage_close(storage);
        }
    }
}

int main(void)
{
    tell_in_memory();
    return suite_run(NULL, NULL);
}
