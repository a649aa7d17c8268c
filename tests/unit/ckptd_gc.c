/* ckptd_gc.c - the daemon removes rubbish while it serves, and nothing in use.
 *
 * Goal: a Gc finds the same as the search on the directory, and removes it. It leaves a save in
 * work, files that a tool writes or reads under a lease, young temporary files, pins, foreign
 * files. The daemon answers meanwhile. Method: the service and the raw client of ckptd_bed.h;
 * rubbish is made by hand beside a save that is begun, half written and ended only afterwards. A
 * tool is a second handle on the store's directory. A test controls how long a removal lasts
 * (storage_remove, --wrap, see WRAP_ckptd_gc in mk/tests.mk). */
#define ROWS 64u
#define COLUMNS 256u /* 64 KiB in all */
#include "tests/unit/ckptd_tools_bed.h"
#include "tests/unit/suite.h"

#define MADE 40u /* unfinished saves */

static struct peer peers[RANKS];

static void litter(const struct bed *bed)
{
    shell(
        "cd '%s/store/" RUN "' && for i in $(seq 101 %u); do d=step-00000$i-a0001;"
        " cp -r step-00000001-a0001 $d; rm $d/manifest.json; done;"
        " mkdir -p pins tombstones leases; touch pins/step-00000077-a0001"
        " pins/step-00000001-a0001 tombstones/step-00000101-a0001"
        " tombstones/step-00000001-a0001 leases/step-00000001-a0001.0123456789abcdef"
        " .holdfast.tmp.0123456789abcdef; touch -d '2 hours ago' ../.holdfast.tmp.0123456789abcdef;"
        " mkdir ../other; mkdir ../other/step-00000005-a0001;"
        " touch ../other/step-00000005-a0001/shard-00001-of-00001.safetensors",
        bed->root, 100 + MADE);
    char store[200];
    snprintf(store, sizeof store, "%s/store", bed->root);
    for (uint32_t i = 1; i <= MADE; i++)
        put_mark(store, RUN, 100 + i, 1);
    put_mark(store, "other", 5, 1);
}
#define MADE_BESIDE 6u /* a pin, two tombstones, a lease, an old temporary file, another run */

static void save_one(struct bed *bed, uint64_t step)
{
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, step));
}

BED_TEST(test_gc__removes_rubbish_beside_a_save_in_work)
{
    uint64_t planned = 0, removed = 0;
    save_one(bed, 1);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(peer_begin(&peers[i], 2), 0);
    peer_finish(&peers[0], 2); /* its file is written, the other's is made */
    litter(bed);
    assert_int_equal(gc(bed, true, &planned), MADE + MADE_BESIDE);
    assert_int_equal(gc(bed, true, NULL), MADE + MADE_BESIDE); /* nothing went */
    assert_int_equal(gc(bed, false, &removed), MADE + MADE_BESIDE);
    assert_int_equal(planned, removed);
    assert_true(removed > MADE * ROWS * COLUMNS * 4ull);
    assert_int_equal(gc(bed, true, NULL), 0);
    peer_finish(&peers[1], 2);
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_int_equal(load_all(bed, 2, NULL), 0);
    assert_true(save_step(peers, RANKS, 101)); /* where rubbish lay */
    peers_close(peers, RANKS);
    shell("cd '%s/store/" RUN "' && test -e pins/step-00000001-a0001 &&"
          " test -e .holdfast.tmp.0123456789abcdef && test \"$(ls -d step-* | wc -l)\" = 3",
          bed->root);
}

BED_TEST(test_gc__what_a_tool_writes_stays_until_it_dies)
{
    struct storage *tool;
    struct storage_hold *lease;
    save_one(bed, 1);
    peers_close(peers, RANKS);
    assert_int_equal(storage_open(&tool, &storage_local, bed->config.store, NULL), 0);
    assert_int_equal(store_lease(tool, &lease, "new/step-00000000-a0001", "the tool writes it"), 0);
    shell("cd '%s/store' && cp -r " RUN "/step-00000001-a0001 new/step-00000000-a0001 &&"
          " rm new/step-00000000-a0001/manifest.json",
          bed->root);
    put_mark(bed->config.store, "new", 0, 1);
    assert_int_equal(gc(bed, false, NULL), 0);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0); /* a start leaves it, too */
    assert_int_equal(gc(bed, false, NULL), 0);
    shell("test \"$(ls '%s/store/new/step-00000000-a0001' | wc -l)\" = 3", bed->root);
    storage_release(tool, lease);
    storage_close(tool);
    assert_int_equal(gc(bed, false, NULL), 1);
    shell("test ! -e '%s/store/new/step-00000000-a0001'", bed->root);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

BED_TEST(test_gc__what_is_not_ours_stays)
{
    save_one(bed, 1);
    peers_close(peers, RANKS);
    shell("cd '%s/store/" RUN "' && mkdir step-00000009-a0001 step-9 &&"
          " touch step-00000009-a0001/mine.txt step-9/shard-00001-of-00001.safetensors &&"
          " touch step-00000009-a0001/shard-00001-of-00001.safetensors",
          bed->root);
    put_mark(bed->config.store, RUN, 9, 1);
    assert_int_equal(gc(bed, false, NULL), 1);
    shell("cd '%s/store/" RUN "' && test -e step-00000009-a0001/mine.txt &&"
          " test ! -e step-00000009-a0001/shard-00001-of-00001.safetensors &&"
          " test -e step-9/shard-00001-of-00001.safetensors",
          bed->root);
}

/* Its manifest was moved away, or is yet to come: it is named, and left unchanged. */
BED_TEST(test_gc__whole_shards_without_a_manifest_are_set_aside)
{
    Holdfast__V1__GcReply *reply;
    save_one(bed, 1);
    assert_true(save_step(peers, RANKS, 2));
    peers_close(peers, RANKS);
    shell("cd '%s/store/" RUN "' && mv step-00000001-a0001/manifest.json ..", bed->root);
    for (int is_dry = 1; is_dry >= 0; is_dry--) {
        assert_int_equal(ask_gc(&reply, bed, is_dry != 0), 0);
        assert_int_equal(reply->n_entries, 1);
        assert_int_equal(reply->entries[0]->what, STORE_ASIDE);
        assert_string_equal(reply->entries[0]->name, RUN "/step-00000001-a0001");
        assert_true(reply->files == 0 && reply->bytes == 0 && !reply->entries[0]->error[0]);
        FREE_REPLY(reply);
    }
    shell("mv '%s/store/manifest.json' '%s/store/" RUN "/step-00000001-a0001'", bed->root,
          bed->root);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* One finding stays, and is the first in the answer. */
static void expect_to_stay(struct bed *bed, bool is_dry, const char *name, const char *reason)
{
    Holdfast__V1__GcReply *reply;
    assert_int_equal(ask_gc(&reply, bed, is_dry), 0);
    assert_true(reply->n_entries > 0);
    assert_string_equal(reply->entries[0]->name, name);
    assert_non_null(strstr(reply->entries[0]->error, reason));
    for (size_t i = 1; i < reply->n_entries; i++)
        assert_string_equal(reply->entries[i]->error, "");
    FREE_REPLY(reply);
}

BED_TEST(test_gc__what_cannot_be_looked_into_stays_and_the_rest_goes)
{
    save_one(bed, 1);
    peers_close(peers, RANKS);
    litter(bed); /* no search follows a link */
    shell("ln -s nowhere '%s/store/" RUN "/step-00000120-a0001/manifest.json'", bed->root);
    for (int is_dry = 1; is_dry >= 0; is_dry--)
        expect_to_stay(bed, is_dry != 0, RUN "/step-00000120-a0001", "manifest.json");
    assert_int_equal(gc(bed, true, NULL), 0);
    shell("cd '%s/store/" RUN "' && ls step-00000120-a0001/shard-* && test \"$(ls -d step-* |"
          " wc -l)\" = 2 && test ! -e ../other/step-00000005-a0001 &&"
          " rm step-00000120-a0001/manifest.json",
          bed->root);
    assert_int_equal(gc(bed, false, NULL), 1);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* A start could not read a run's list: it is unknown which of its files are rubbish. */
BED_TEST(test_gc__a_run_that_could_not_be_read_is_left_alone)
{
    char plain[sizeof bed->config.store];
    save_one(bed, 1);
    peers_close(peers, RANKS);
    bed_stop(bed);
    snprintf(plain, sizeof plain, "%s", bed->config.store);
    snprintf(bed->config.store, sizeof bed->config.store, "fault:only=list,fail_at=2:local:%.400s",
             plain); /* after the root: the run's attempts */
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(open_attempt(bed, RANKS), ERR_IO);
    assert_non_null(strstr(report_line(), "could not be read when ckptd started"));
    litter(bed);
    expect_to_stay(bed, true, RUN, "could not be read when ckptd started");
    assert_int_equal(gc(bed, false, NULL), 2); /* of the other run, and files above both */
    shell("cd '%s/store/" RUN "' && test -e pins/step-00000077-a0001 &&"
          " test -e tombstones/step-00000101-a0001 &&"
          " test \"$(ls -d step-* | wc -l)\" = %u && test ! -e ../other/step-00000005-a0001",
          bed->root, MADE + 1);
    bed_stop(bed);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* ---- removals that fail, or take long ---- */

/* The first removal of a Gc lasts until let_go(). */
static atomic_bool is_held, is_removing;
static const char *_Atomic refused; /* the key that the disk does not let go */

int __real_storage_remove(struct storage *storage, const char *key);
int __wrap_storage_remove(struct storage *storage, const char *key);
int __wrap_storage_remove(struct storage *storage, const char *key)
{
    while (is_held && strstr(key, "/step-") != NULL && strstr(key, MARK_NAME) == NULL) {
        is_removing = true;
        sleep_ms(1);
    }
    const char *stays = refused;
    if (stays && strcmp(key, stays) == 0)
        return report_error(ERR_IO, NULL, "the disk does not let go of %s", key);
    return __real_storage_remove(storage, key);
}

BED_TEST(test_gc__what_cannot_be_removed_is_named_and_the_rest_goes)
{
    save_one(bed, 1);
    peers_close(peers, RANKS);
    litter(bed);
    refused = RUN "/pins/step-00000077-a0001";
    expect_to_stay(bed, false, refused, "the disk does not let go");
    assert_int_equal(gc(bed, true, NULL), 1);
    refused = NULL;
    assert_int_equal(gc(bed, false, NULL), 1);
    assert_int_equal(gc(bed, false, NULL), 0);
}

static int let_go_and_tear_down(void **state)
{
    is_held = false;
    return bed_tear_down(state);
}

struct collector {
    struct bed *bed;
    int found;
};

static void *run_gc(void *argument)
{
    struct collector *collector = argument;
    collector->found = gc(collector->bed, false, NULL);
    return NULL;
}

/* The daemon answers, saves and loads while it removes; a second Gc gets "try again later". */
TEST_BETWEEN(test_gc__a_long_removal_keeps_nobody_waiting, bed_set_up, let_go_and_tear_down)
{
    struct bed *bed = *state;
    struct collector collector = {.bed = bed};
    pthread_t thread;
    save_one(bed, 1);
    litter(bed);
    is_removing = false;
    is_held = true;
    assert_int_equal(pthread_create(&thread, NULL, run_gc, &collector), 0);
    for (int ms = 0; ms < BED_PATIENCE_MS && !is_removing; ms++)
        sleep_ms(1);
    assert_true(is_removing);
    for (uint64_t step = 2; step < 6; step++) {
        assert_int_equal(gc(bed, true, NULL), ERR_BUSY);
        assert_true(save_step(peers, RANKS, step));
        assert_int_equal(load_all(bed, (int64_t)step, NULL), 0);
    }
    is_held = false;
    pthread_join(thread, NULL);
    assert_int_equal(collector.found, MADE + MADE_BESIDE);
    peers_close(peers, RANKS);
    assert_int_equal(gc(bed, false, NULL), 0);
    for (int64_t step = 1; step < 6; step++)
        assert_int_equal(load_all(bed, step, NULL), 0);
}

SUITE(NULL, NULL)
