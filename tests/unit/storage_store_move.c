/* store_move.c - removals of a checkpoint that can be taken back: the trash.
 *
 * Goal: at any interruption, and with other processes acting in between, the checkpoint is whole in
 * its place or in the trash, or the trash was emptied. No manifest is ever visible without its
 * objects. Method: where names can be renamed every operation fails once, then the power. Where
 * none can, as in a bucket, each changing operation is cut before and after its effect. */
#include "storage/engine/backend.h"
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

/* ---- the trash ---- */

static int keep_item(void *user, const struct store_trashed *item)
{
    *(struct store_trashed *)user = *item;
    return 0;
}

static struct storage *open_memory(void)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    return storage;
}

TEST(test_move__what_is_held_does_not_go_into_the_trash)
{
    struct storage *storage = open_memory();
    assert_int_equal(make_checkpoint(storage), 0);
    for (int kept = STORE_PIN; kept <= STORE_QUARANTINE; kept++) {
        assert_int_equal(store_put_note(storage, (enum store_note)kept, GROUP, "keep"), 0);
        assert_int_equal(store_trash_put(storage, GROUP, 1000, false), ERR_DENIED);
        assert_true(is_whole(storage));
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
        assert_int_equal(store_remove_note(storage, (enum store_note)kept, GROUP), 0);
    }
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "keep"), 0);
    uint64_t count;
    assert_int_equal(store_trash_put_all(storage, "run", 1000, &count), ERR_DENIED);
    assert_true(is_whole(storage) && count == 0);
    storage_close(storage);
}

TEST(test_move__the_trash_holds_it_whole_until_it_is_taken_back_or_emptied)
{
    struct storage *storage = open_memory();
    struct store_trashed item = {.seconds = 0}, newer = {.seconds = 0};
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_put_note(storage, STORE_QUARANTINE, GROUP, "block 7"), 0);
    assert_int_equal(store_trash_put(storage, GROUP, 1000, true), 0); /* a person names it */
    assert_false(bed_exists(storage, MANIFEST));
    assert_int_equal(count_names(storage, "run/quarantine"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(store_trash_list(storage, "run", keep_item, &item), 0);
    assert_true(item.seconds == 1000 && item.files == SHARDS + 1 &&
                item.bytes == SHARDS * BYTES + the_checkpoint()->manifest_bytes);
    assert_string_equal(item.prefix, GROUP);
    assert_int_equal(make_checkpoint(storage), 0); /* another one has its name */
    assert_int_equal(store_trash_take(storage, &item), ERR_EXISTS);
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0); /* in the same second */
    newer = item;
    snprintf(newer.key, sizeof(newer.key), "run/trash/" STEP ".1001");
    assert_int_equal(store_trash_take(storage, &newer), 0);
    assert_true(is_whole(storage));
    assert_int_equal(store_discard(storage, item.key), 0);
    assert_int_equal(count_names(storage, "run/trash"), 0);
    assert_true(is_whole(storage));
    storage_close(storage);
}

TEST(test_move__the_term_of_the_trash_is_in_the_store)
{
    struct storage *storage = open_memory();
    uint64_t seconds = 1;
    assert_int_equal(store_trash_term(storage, "run", &seconds), 0);
    assert_true(seconds == 0);
    for (uint64_t term = 0; term <= 604800; term += 302400) {
        assert_int_equal(store_trash_set_term(storage, "run", term), 0);
        assert_int_equal(store_trash_term(storage, "run", &seconds), 0);
        assert_true(seconds == term);
    }
    assert_int_equal(store_trash_set_term(storage, "run", 0), 0);
    assert_int_equal(count_names(storage, "run/trash"), 0);
    storage_close(storage);
}

/* Where the checkpoint is: under one of the two names, and whole. */
static bool is_in_trash(struct storage *storage)
{
    bool is_there = bed_exists(storage, "run/trash/" STEP ".1000/manifest.json");
    assert_true(is_there ? count_names(storage, "run/trash/" STEP ".1000") == SHARDS + 1 &&
                               count_names(storage, GROUP) == 0
                         : is_whole(storage));
    return is_there;
}

/* Operation `n` of a removal into the trash fails, perhaps after it was carried out, then the
 * power; then a start and the removal again. False when the operation was never reached. */
static bool cut_trash_short(int n, const char *settings, int *made)
{
    char where[96];
    snprintf(where, sizeof(where), "seed=%d,%s,fail_at=%d:memory:", n, settings, n);
    struct storage *storage = open_fault(where);
    if (make_checkpoint(storage) != 0) { /* it failed before the removal */
        storage_close(storage);
        return true;
    }
    int error = store_trash_put(storage, GROUP, 1000, false);
    assert_true(error == 0 || error == ERR_IO);
    assert_int_equal(storage_fault_crash(storage), 0);
    if (error == 0) /* the failing operation is still to come: it fails here */
        assert_int_equal(storage_sync_names(storage, ""), ERR_IO);
    assert_true(is_in_trash(storage) || error != 0);
    assert_int_equal(store_recover_run(storage, "run"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    if (!is_in_trash(storage))
        assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(is_in_trash(storage));
    *made += error != 0;
    storage_close(storage);
    return error != 0;
}

TEST(test_move__a_way_into_the_trash_cut_anywhere_leaves_it_whole)
{
    static const char *const settings[] = {"lost=0",        "lost=0.5",        "lost=1",
                                           "lost=0,late=1", "lost=0.5,late=1", "lost=1,late=1"};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        int made = 0;
        for (int n = 1; cut_trash_short(n, settings[i], &made); n++)
            continue;
        /* hold, other removers, a tool, tombstone, pin, quarantine, leases, rename, sync of both
         * directories, leases, tombstone, its sync */
        assert_int_equal(made, 13);
    }
}

/* ---- the trash where nothing can be renamed, as in a bucket ---- */

/* storage_memory without a rename. Operation `cut` of those that change something fails, and so do
 * all later ones, as those of a killed process: before its effect, or after it. */
static int cut, made;
static bool cuts_behind;

static bool begins_cut(void)
{
    return cut > 0 && ++made >= cut && !(made == cut && cuts_behind);
}

static int end_cut(int error)
{
    return error == 0 && cut > 0 && made == cut ? report_error(ERR_IO, NULL, "cut behind it")
                                                : error;
}

#define CUTS_MAX 1000 /* operations that have not ended then never will */

/* Another process's action just before the manifest at `key` is published or removed. */
static struct {
    const char *key;
    void (*act)(struct storage *storage);
} other;

static void let_other_act(struct storage *storage, const char *key)
{
    if (!other.key || strcmp(key, other.key) != 0)
        return;
    other.key = NULL; /* once */
    other.act(storage);
}

static int publish_cut(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    let_other_act(storage, key);
    return begins_cut() ? report_error(ERR_IO, NULL, "cut")
                        : end_cut(storage_memory.publish(storage, key, data, bytes));
}

/* A bucket has no directories but those of its objects. */
static void drop_empty(struct storage *storage, const char *key)
{
    char folder[STORAGE_KEY_MAX + 1], *slash;
    snprintf(folder, sizeof(folder), "%s", key);
    while ((slash = strrchr(folder, '/')) != NULL) {
        *slash = '\0';
        if (storage_memory.remove(storage, folder) != 0)
            return;
    }
}

static const char *refused; /* its removal; NULL: none is */

static int remove_cut(struct storage *storage, const char *key)
{
    let_other_act(storage, key);
    if (refused && strcmp(key, refused) == 0)
        return report_error(ERR_EXISTS, NULL, "a condition does not hold");
    if (begins_cut())
        return report_error(ERR_IO, NULL, "cut");
    int error = storage_memory.remove(storage, key);
    if (error == 0)
        drop_empty(storage, key);
    return end_cut(error);
}

static int damaged; /* of the next reads of shards so many come with another byte */

static int fetch_damaged(struct storage *storage, const char *key, void *data, size_t size,
                         uint64_t *out_bytes)
{
    int error = storage_memory.fetch(storage, key, data, size, out_bytes);
    if (error == 0 && size > 100 && strstr(key, "/shard-") != NULL && damaged > 0) {
        ((char *)data)[100] ^= 1;
        damaged--;
    }
    return error;
}

static int sync_nothing(struct storage *storage, const char *prefix)
{
    (void)storage;
    (void)prefix;
    return 0;
}

static struct storage *open_parted(void)
{
    static struct storage_ops ops;
    struct storage *storage;
    ops = storage_memory;
    ops.rename = NULL;
    ops.publish = publish_cut;
    ops.remove = remove_cut;
    ops.fetch = fetch_damaged;
    ops.sync_names = sync_nothing;
    cut = made = damaged = 0;
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    assert_int_equal(make_checkpoint(storage), 0);
    ((struct storage_base *)storage)->ops = &ops;
    return storage;
}

static bool has_shards(struct storage *storage)
{
    int count = 0;
    for (int i = 0; i < SHARDS; i++) {
        char key[96];
        shard_of(key, i);
        count += bed_exists(storage, key);
    }
    assert_true(count == 0 || count == SHARDS || cut > 0);
    return count == SHARDS;
}

static void collect_all(struct storage *storage)
{
    struct store_rubbish_list list = {0};
    assert_int_equal(store_recover_run(storage, "run"), 0);
    assert_int_equal(store_rubbish_find(&list, storage, "run"), 0);
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(store_rubbish_remove(storage, &list.items[i]), 0);
    store_rubbish_free(&list);
}

static const struct store_trashed in_trash = {
    .prefix = GROUP, .key = "run/trash/" STEP ".1000", .seconds = 1000};

TEST(test_move__parted__the_marker_goes_alone_and_comes_back)
{
    struct storage *storage = open_parted();
    struct store_trashed item = {.seconds = 0};
    enum store_rest rest = STORE_REST_ASIDE;
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    assert_true(!bed_exists(storage, MANIFEST) && has_shards(storage));
    assert_int_equal(store_rest(storage, GROUP, &rest), 0);
    assert_int_equal(rest, STORE_REST_TRASHED);
    assert_int_equal(store_trash_list(storage, "run", keep_item, &item), 0);
    assert_string_equal(item.key, in_trash.key);
    assert_true(!item.is_back && item.files == SHARDS + 1 && item.bytes > SHARDS * BYTES);
    collect_all(storage); /* gc does not remove objects that a manifest in the trash names */
    assert_true(has_shards(storage));
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_true(has_shards(storage));
    assert_int_equal(store_trash_take(storage, &item), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/trash"), 0);
    assert_int_equal(store_trash_take(storage, &item), ERR_NOT_FOUND);
    storage_close(storage);
}

/* A manifest in the trash beside the checkpoint's own one names nothing that may go. */
TEST(test_move__parted__a_marker_left_in_the_trash_costs_no_shard)
{
    struct storage *storage = open_parted();
    struct store_trashed item = {.seconds = 0};
    assert_int_equal(publish_manifest(storage, "run/trash/" STEP ".1000/manifest.json"), 0);
    assert_int_equal(store_trash_list(storage, "run", keep_item, &item), 0);
    assert_true(item.is_back);
    assert_int_equal(store_trash_take(storage, &item), ERR_EXISTS);
    assert_int_equal(store_trash_empty(storage, &item), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/trash"), 0);
    assert_int_equal(store_trash_put(storage, GROUP, 2000, false), 0);
    assert_int_equal(publish_manifest(storage, "run/trash/" STEP ".1000/manifest.json"), 0);
    assert_int_equal(store_trash_empty(storage, &in_trash), 0); /* the other checkpoint stays */
    assert_true(has_shards(storage) &&
                bed_exists(storage, "run/trash/" STEP ".2000/manifest.json"));
    storage_close(storage);
}

/* A pinned checkpoint stays, also when its term in the trash is over. */
TEST(test_move__parted__what_is_held_is_not_emptied)
{
    struct storage *storage = open_parted();
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "keep"), 0);
    assert_int_equal(store_trash_empty(storage, &in_trash), ERR_DENIED);
    assert_true(has_shards(storage) &&
                bed_exists(storage, "run/trash/" STEP ".1000/manifest.json"));
    assert_int_equal(store_remove_note(storage, STORE_PIN, GROUP), 0);
    assert_int_equal(store_trash_take(storage, &in_trash), 0);
    assert_true(is_whole(storage));
    storage_close(storage);
}

TEST(test_move__parted__what_was_not_removed_is_not_told_as_emptied)
{
    struct storage *storage = open_parted();
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    refused = SHARD(2);
    assert_int_equal(store_trash_empty(storage, &in_trash), ERR_EXISTS);
    refused = NULL;
    collect_all(storage); /* the tombstone says that it is to go */
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    storage_close(storage);
}

TEST(test_move__parted__what_lacks_a_shard_does_not_come_back)
{
    struct storage *storage = open_parted();
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    assert_int_equal(store_trash_take(storage, &in_trash), 0);
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    assert_int_equal(storage_remove(storage, SHARD(2)), 0);
    cut = 1000; /* has_shards() may find some */
    assert_int_equal(store_trash_take(storage, &in_trash), ERR_CORRUPT);
    assert_false(bed_exists(storage, MANIFEST));
    assert_true(bed_exists(storage, "run/trash/" STEP ".1000/manifest.json"));
    storage_close(storage);
}

TEST(test_move__parted__a_header_that_comes_damaged_once_is_read_again)
{
    for (int times = 1; times <= 2; times++) {
        struct storage *storage = open_parted();
        assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
        damaged = times;
        assert_int_equal(store_trash_take(storage, &in_trash), times == 1 ? 0 : ERR_CORRUPT);
        assert_int_equal(damaged, 0);
        assert_true(bed_exists(storage, MANIFEST) == (times == 1) && has_shards(storage));
        storage_close(storage);
    }
}

/* As an undelete's lease is whose holder could not renew it. */
static int lose_lease(void *user, const struct storage_entry *entry)
{
    char key[STORAGE_KEY_MAX + 1];
    snprintf(key, sizeof(key), "run/leases/%s", entry->name);
    return entry->is_dir ? 0 : storage_memory.remove(user, key);
}

static void empty_without_lease(struct storage *storage)
{
    assert_int_equal(storage_list(storage, "run/leases", lose_lease, storage), 0);
    assert_int_equal(store_trash_empty(storage, &in_trash), 0);
}

static void bring_back_late(struct storage *storage)
{
    const struct made_checkpoint *made = the_checkpoint();
    assert_int_equal(
        storage_memory.publish(storage, MANIFEST, made->manifest, made->manifest_bytes), 0);
}

/* Between an undelete's check of the shards and its publication its lease is lost. */
TEST(test_move__parted__emptied_behind_a_lost_lease_it_does_not_come_back)
{
    struct storage *storage = open_parted();
    assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
    other.key = MANIFEST;
    other.act = empty_without_lease;
    assert_int_equal(store_trash_take(storage, &in_trash), ERR_NOT_FOUND);
    assert_false(bed_exists(storage, MANIFEST) || has_shards(storage));
    storage_close(storage);
}

/* Likewise others remove it while it is published: it is whole then, or gone. */
TEST(test_move__parted__brought_back_behind_a_lost_lease_it_is_whole_or_gone)
{
    for (int is_erased = 0; is_erased < 2; is_erased++) {
        struct storage *storage = open_parted();
        assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
        other.key = "run/trash/" STEP ".1000/manifest.json";
        other.act = bring_back_late;
        assert_int_equal(
            is_erased ? store_erase(storage, GROUP) : store_trash_empty(storage, &in_trash), 0);
        assert_null(other.key);
        assert_int_equal(has_shards(storage), !is_erased);
        assert_int_equal(bed_exists(storage, MANIFEST), !is_erased);
        storage_close(storage);
    }
}

/* Lists of the trash are still empty: the tombstone of a killed put names the place of the
 * manifest. */
static int list_behind(struct storage *storage, const char *prefix,
                       int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    return strcmp(prefix, "run/trash") == 0 ? 0 : storage_memory.list(storage, prefix, visit, user);
}

TEST(test_move__parted__a_list_that_lags_behind_costs_no_shard)
{
    for (int n = 1, error = ERR_IO; error != 0; n++) {
        assert_true(n < CUTS_MAX);
        struct storage *storage = open_parted();
        struct storage_ops late = *((struct storage_base *)storage)->ops;
        cut = n;
        error = store_trash_put(storage, GROUP, 1000, false);
        cut = 0;
        late.list = list_behind;
        ((struct storage_base *)storage)->ops = &late;
        collect_all(storage);
        assert_true(has_shards(storage));
        if (!bed_exists(storage, MANIFEST))
            assert_int_equal(store_trash_take(storage, &in_trash), 0);
        assert_true(is_whole(storage));
        storage_close(storage);
    }
}

/* Each way, killed at each operation: the checkpoint is in the list or in the trash, and whole. */
TEST(test_move__parted__cut_anywhere_it_is_in_one_of_two_places)
{
    for (int way = 0; way < 4; way++) {
        cuts_behind = way % 2;
        for (int n = 1, error = ERR_IO; error != 0; n++) {
            assert_true(n < CUTS_MAX);
            struct storage *storage = open_parted();
            if (way >= 2)
                assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
            cut = n;
            error = way < 2 ? store_trash_put(storage, GROUP, 1000, false)
                            : store_trash_take(storage, &in_trash);
            assert_true(n > 1 || error != 0);
            cut = 0;
            collect_all(storage);
            assert_true(has_shards(storage));
            if (!bed_exists(storage, MANIFEST))
                assert_int_equal(store_trash_take(storage, &in_trash), 0);
            assert_true(is_whole(storage));
            assert_int_equal(count_names(storage, "run/tombstones"), 0);
            storage_close(storage);
        }
    }
}

TEST(test_move__parted__emptied_and_cut_anywhere_nothing_stays_for_ever)
{
    for (int n = 1, error = ERR_IO; error != 0; n++) {
        assert_true(n < CUTS_MAX);
        struct storage *storage = open_parted();
        assert_int_equal(store_trash_put(storage, GROUP, 1000, false), 0);
        cut = n;
        error = store_trash_empty(storage, &in_trash);
        cut = 0;
        if (bed_exists(storage, "run/trash/" STEP ".1000/manifest.json"))
            assert_true(has_shards(storage));
        collect_all(storage);
        if (bed_exists(storage, "run/trash/" STEP ".1000/manifest.json"))
            assert_int_equal(store_trash_empty(storage, &in_trash), 0);
        assert_int_equal(count_names(storage, GROUP), 0);
        assert_int_equal(count_names(storage, "run/trash"), 0);
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
        storage_close(storage);
    }
}

int main(void)
{
    tell_in_memory();
    return suite_run(NULL, NULL);
}
