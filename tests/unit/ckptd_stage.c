/* ckptd_stage.c - a chunk of a save is hashed and written concurrently, in either order.
 *
 * Goal: the table waits for the last hash and the sync for the last write; chunks of an aborted
 * save are not written any more. A write that fails while its chunk still waits to be hashed fails
 * that save alone; digests that a rank announces are used, except those of no tensor. A rank that
 * writes to an announced range is named, and with storage.verify_after_write its save fails.
 * Method: a service in this process (ckptd_bed.h); the linker sends checksum_block_beside and
 * storage_submit through this file, which delays hashes or completions of writes, or fails a write.
 * A new service reads the committed checkpoints from the disk. */
#include "ckptd/core/catalog.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#include "proto/base/checksum.h"
#include "storage/storage.h"

#define COMMITTED HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED
#define FAILED HOLDFAST__V1__SAVE_STATE__SAVE_FAILED

#define DATA_CHUNKS 4 /* that hold nothing of the table */

static struct peer peers[1];

/* ---- between the daemon, its hashes and its disk ---- */

/* The delayed kind, until `opened` is true; after a time limit if it never is. */
enum held { NOTHING, HASHES, FIRST_HASH, WRITES };
static atomic_int held, writes_to_fail;
static atomic_bool opened;
/* Since the last hold(): completed hashes and writes, and writes in progress. */
static atomic_bool digests_twice; /* of one block: digests that are not of its bytes */
static char to_change[300];       /* a file, before its next sync, */
static atomic_llong change_at;    /* at this byte; 0: none */
static atomic_int hashes, writes, writes_given_up, writes_under_way, under_way_at_sync;

static void hold(enum held what)
{
    atomic_store(&opened, what == NOTHING);
    atomic_store(&held, what);
    atomic_store(&hashes, 0);
    atomic_store(&writes, 0);
    atomic_store(&writes_given_up, 0);
    atomic_store(&under_way_at_sync, 0);
}

static void await(enum held what)
{
    for (int ms = 0;
         ms < BED_PATIENCE_MS && (int)what == atomic_load(&held) && !atomic_load(&opened); ms++)
        sleep_ms(1);
}

/* False: patience is over. */
static bool await_count(const atomic_int *count)
{
    for (int ms = 0; ms < BED_PATIENCE_MS && atomic_load(count) == 0; ms++)
        sleep_ms(1);
    return atomic_load(count) > 0;
}

__typeof__(checksum_block_beside) __real_checksum_block_beside, __wrap_checksum_block_beside;
uint64_t __wrap_checksum_block_beside(const void *data, size_t bytes, uint64_t identity,
                                      uint64_t block, checksum_piece_fn *piece, void *user)
{
    await(HASHES);
    if (block == 0)
        await(FIRST_HASH);
    uint64_t hash = __real_checksum_block_beside(data, bytes, identity, block, piece, user);
    if (atomic_exchange(&digests_twice, false))
        piece(user, 0, bytes);
    atomic_fetch_add(&hashes, 1);
    return hash;
}

/* Runs on a thread of the engine. The daemon's message is in `user`, which this thread does not
 * use. */
static void write_done(struct storage_request *request)
{
    void (*done)(struct storage_request *);
    memcpy(&done, &request->user, sizeof done);
    if (request->error == ERR_ABORTED)
        atomic_fetch_add(&writes_given_up, 1);
    else
        await(WRITES);
    if (request->error == 0 && atomic_load(&writes_to_fail) > 0) {
        atomic_fetch_sub(&writes_to_fail, 1);
        request->error = ERR_IO;
        request->error_number = EIO;
    }
    atomic_fetch_add(&writes, 1);
    atomic_fetch_sub(&writes_under_way, 1);
    done(request);
}

static void change_file(void)
{
    off_t at = atomic_exchange(&change_at, 0);
    uint8_t byte = 0;
    int fd = at != 0 ? open(to_change, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && pread(fd, &byte, 1, at) == 1 && (byte ^= 4, pwrite(fd, &byte, 1, at)) == 1)
        close(fd);
}

void __real_storage_submit(struct storage *storage, struct storage_request *request);
void __wrap_storage_submit(struct storage *storage, struct storage_request *request);
void __wrap_storage_submit(struct storage *storage, struct storage_request *request)
{
    if (request->op == STORAGE_WRITE) {
        memcpy(&request->user, &request->done, sizeof request->user);
        request->done = write_done;
        atomic_fetch_add(&writes_under_way, 1);
    }
    if (request->op == STORAGE_SYNC)
        change_file();
    int under_way = atomic_load(&writes_under_way);
    if (request->op == STORAGE_SYNC && under_way > atomic_load(&under_way_at_sync))
        atomic_store(&under_way_at_sync, under_way);
    __real_storage_submit(storage, request);
}

/* ---- the bed ---- */

static int set_up(void **state)
{
    hold(NOTHING);
    atomic_store(&writes_to_fail, 0);
    return bed_set_up_stopped(state);
}

static int tear_down(void **state)
{
    hold(NOTHING);
    peers_close(peers, 1);
    return bed_tear_down(state);
}

/* At most `depth` writes have begun and not ended. */
static struct bed *start(void **state, int64_t depth)
{
    struct bed *bed = *state;
    bed->config.queue_depth = depth;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    return bed;
}

static void begin(uint64_t step)
{
    assert_int_equal(peer_begin_within(&peers[0], step, CALL_MS), 0);
    peer_finish(&peers[0], step);
}

static void expect_on_disk(struct bed *bed, int64_t step)
{
    hold(NOTHING);
    peers_close(peers, 1);
    bed_restart(bed);
    assert_int_equal(load_all(bed, step, NULL), 0);
}

/* ---- the orders ---- */

/* A save of which something is held back, until one of `ended` has come. */
static struct bed *begin_held(void **state, enum held what, const atomic_int *ended)
{
    struct bed *bed = start(state, 8);
    hold(what);
    begin(1);
    assert_true(await_count(ended));
    return bed;
}

/* Neither waits for the other. The table waits for the hash that comes last, when all others are
 * hashed, also the last chunk, which waits for the table. */
TEST(test_stage__the_disk_and_hashes_do_not_wait_and_the_sync_and_the_table_do)
{
    static const struct {
        enum held what;
        const atomic_int *ended, *waits;
    } orders[] = {
        {HASHES, &writes, &hashes}, {WRITES, &hashes, &writes}, {FIRST_HASH, &hashes, NULL}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        assert_int_equal(set_up(state), 0);
        struct bed *bed = begin_held(state, orders[i].what, orders[i].ended);
        if (orders[i].waits)
            assert_int_equal(atomic_load(orders[i].waits), 0);
        else
            sleep_ms(300);
        assert_int_equal(ask_save(bed, 1, 0, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_STAGING);
        atomic_store(&opened, true); /* releases the delayed ones */
        assert_int_equal(wait_save(bed, 1, NULL), COMMITTED);
        assert_int_equal(atomic_load(&under_way_at_sync), 0);
        expect_on_disk(bed, 1);
        tear_down(state);
    }
}

/* ---- failures on the way ---- */

TEST_BETWEEN(test_stage__what_is_given_up_is_not_written_any_more, set_up, tear_down)
{
    struct bed *bed = start(state, 1);
    hold(WRITES);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    peer_fill(&peers[0], 1);
    peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte, peers[0].bytes);
    assert_true(await_count(&writes_under_way));
    peer_abort(&peers[0]);
    atomic_store(&opened, true);
    assert_int_equal(wait_save(bed, 1, NULL), FAILED);
    for (uint64_t step = 2; step <= 3; step++) { /* in the other memory, and in the same */
        begin(step);
        assert_int_equal(wait_save(bed, step, NULL), COMMITTED);
    }
    assert_true(atomic_load(&writes_given_up) > 0);
    expect_on_disk(bed, 3);
    assert_int_equal(load_all(bed, 2, NULL), 0);
    assert_int_equal(load_all(bed, 1, NULL), ERR_NOT_FOUND);
}

TEST_BETWEEN(test_stage__a_write_that_fails_before_its_hash_fails_that_save_alone, set_up,
             tear_down)
{
    char reason[512];
    atomic_store(&writes_to_fail, 1);
    struct bed *bed = begin_held(state, HASHES, &writes);
    assert_int_equal(atomic_load(&hashes), 0);
    atomic_store(&opened, true);
    assert_int_equal(wait_save(bed, 1, reason), FAILED);
    assert_non_null(strstr(reason, "could not be written"));
    begin(2);
    assert_int_equal(wait_save(bed, 2, NULL), COMMITTED);
    expect_on_disk(bed, 2);
}

TEST_BETWEEN(test_stage__a_digest_of_no_tensor_or_after_the_end_is_a_breach, set_up, tear_down)
{
    struct bed *bed = start(state, 8);
    char reason[512];
    const uint64_t wrong[] = {0, peers[0].data_byte - 8, peers[0].data_byte + 4,
                              peers[0].data_byte + peers[0].bytes, UINT64_MAX};
    uint64_t step = 1;
    for (; step <= sizeof wrong / sizeof *wrong; step++) {
        assert_int_equal(peer_begin_within(&peers[0], step, CALL_MS), 0);
        peer_announce(&peers[0], ARENA_ENTRY_DIGEST_0, wrong[step - 1], 5);
        assert_int_equal(wait_save(bed, step, reason), FAILED);
        assert_non_null(strstr(reason, "no tensor begins"));
    }
    hold(HASHES);
    begin(step);
    peer_announce(&peers[0], ARENA_ENTRY_DIGEST_1, peers[0].data_byte, 5);
    sleep_ms(100);
    atomic_store(&opened, true);
    assert_int_equal(wait_save(bed, step, reason), FAILED);
    assert_non_null(strstr(reason, "after the end"));
}

/* The rank holds nothing that others hold, too. */
static int tell_replicas(const struct peer *peer, size_t words)
{
    uint64_t digests[6] = {1};
    Holdfast__V1__TellReplicasRequest request = HOLDFAST__V1__TELL_REPLICAS_REQUEST__INIT;
    request.session = peer->token;
    request.save = peer->save;
    request.digests = digests;
    request.n_digests = words;
    return try_call(peer->bed, "TellReplicas", &request.base);
}

TEST_BETWEEN(test_stage__digests_of_replicas_fit_the_description_or_are_refused, set_up, tear_down)
{
    struct bed *bed = start(state, 8);
    char reason[512];
    assert_int_equal(peer_begin_within(&peers[0], 1, CALL_MS), 0);
    assert_int_equal(tell_replicas(&peers[0], 6), ERR_INVALID);
    assert_int_equal(tell_replicas(&peers[0], 0), 0);
    peer_finish(&peers[0], 1);
    assert_int_equal(wait_save(bed, 1, NULL), COMMITTED);
    hold(HASHES);
    begin(2);
    assert_int_equal(tell_replicas(&peers[0], 0), ERR_INVALID); /* after the end */
    atomic_store(&opened, true);
    assert_int_equal(wait_save(bed, 2, NULL), COMMITTED);
    assert_int_equal(peer_begin_within(&peers[0], 3, CALL_MS), 0);
    peer_announce(&peers[0], ARENA_ENTRY_REPLICA, 1, 1);
    assert_int_equal(wait_save(bed, 3, reason), FAILED);
    assert_non_null(strstr(reason, "are too many"));
}

/* One sum alone says nothing; the second one of other bytes fails the save before its sync. */
TEST_BETWEEN(test_stage__what_came_is_compared_when_both_sums_are_there, set_up, tear_down)
{
    struct bed *bed = start(state, 8);
    for (uint64_t step = 1; step <= 2; step++) {
        assert_int_equal(peer_begin_within(&peers[0], step, CALL_MS), 0);
        for (uint32_t i = 0; i < step; i++)
            peer_announce(&peers[0], ARENA_ENTRY_DIGEST_0 + i, peers[0].data_byte, 5);
        peer_finish(&peers[0], step);
        assert_int_equal(wait_save(bed, step, NULL), step == 1 ? COMMITTED : FAILED);
    }
    expect_on_disk(bed, 1);
    assert_int_equal(load_all(bed, 2, NULL), ERR_NOT_FOUND);
}

/* ---- ranks that write after announcing ---- */

/* The announced bytes are written to the disk; other bytes of it are hashed later. */
static void save_rewritten(uint64_t step)
{
    hold(HASHES);
    begin(step);
    for (int ms = 0; ms < BED_PATIENCE_MS && atomic_load(&writes) < DATA_CHUNKS; ms++)
        sleep_ms(1);
    *peer_byte(&peers[0], peers[0].data_byte + 99) ^= 1;
    atomic_store(&opened, true);
}

static bool has_alarm(struct bed *bed, const char *text)
{
    json_t *status = bed_status(bed), *alarm;
    size_t index;
    bool found = false;
    json_array_foreach(json_object_get(status, "alarms"), index, alarm) found |=
        strstr(json_string_value(alarm), text) != NULL;
    json_decref(status);
    return found;
}

static const char writers[] = "run bed: its ranks write after announcing: 2 checkpoints";

TEST_BETWEEN(test_stage__a_rank_that_writes_after_announcing_is_named_and_no_other, set_up,
             tear_down)
{
    struct bed *bed = start(state, 8);
    for (uint64_t step = 1; step <= 2; step++) {
        save_rewritten(step);
        assert_int_equal(wait_save(bed, step, NULL), COMMITTED);
        assert_int_equal(load_all(bed, (int64_t)step, NULL), ERR_CORRUPT);
        assert_true(has_alarm(bed, "damaged checkpoints"));
        assert_int_equal(has_alarm(bed, writers), step == 2);
    }
    peers_close(peers, 1);
    bed->run = "other";
    bed_save_steps(bed, peers, 1, 1, 1);
    assert_true(has_alarm(bed, writers));
    /* Then the disk may be to blame. */
    bed_hold(bed);
    struct run *other;
    assert_int_equal(run_find(&other, bed->service, "other", false), 0);
    other->checkpoints->came_damaged = true;
    bed_go_on(bed);
    assert_false(has_alarm(bed, writers));
}

/* A disk that loses bits: the other copies are whole, or this one was. */
TEST_BETWEEN(test_stage__damage_that_other_checkpoints_speak_against_is_no_ranks, set_up, tear_down)
{
    struct bed *bed = start(state, 8);
    for (uint64_t step = 1; step <= 4; step++) {
        begin(step);
        assert_int_equal(wait_save(bed, step, NULL), COMMITTED);
    }
    bed_hold(bed);
    struct run *run;
    assert_int_equal(run_find(&run, bed->service, RUN, false), 0);
    report_error(ERR_CORRUPT, NULL, "of the test");
    struct fault fault = {0};
    fault_take(&fault, ERR_CORRUPT);
    catalog_find(run, 4, bed->attempt)->copies.local.proven = 1;
    for (uint64_t step = 1; step <= 2; step++)
        catalog_find(run, step, bed->attempt)->came_damaged = true;
    catalog_find(run, 3, bed->attempt)->copies.local.proven = 1;
    bed_go_on(bed);
    assert_false(has_alarm(bed, "write after announcing"));
    bed_hold(bed);
    catalog_damage(catalog_find(run, 3, bed->attempt), TIER_LOCAL, &fault);
    bed_go_on(bed);
    assert_true(has_alarm(bed, writers)); /* it was whole: two are against one, not three */
}

static void expect_refused(struct bed *bed, uint64_t step, const char *why)
{
    char reason[512];
    assert_int_equal(wait_save(bed, step, reason), FAILED);
    if (strstr(reason, why) == NULL || strstr(reason, "storage.verify_after_write") == NULL)
        fail_msg("\"%s\" instead of \"%s\"", reason, why);
}

TEST_BETWEEN(test_stage__verify_after_write_refuses_what_is_not_on_the_disk, set_up, tear_down)
{
    static const off_t places[] = {9, 4096 + 2 * MIB, 4096 + 4 * MIB};
    static const char *const reasons[] = {"byte 0 of shard-00001", "block 2 of shard-00001",
                                          "byte 4198400 of shard-00001"};
    struct bed *bed = *state;
    bed->config.verify_after_write = true;
    start(state, 8);
    uint64_t step = 1;
    save_rewritten(step);
    expect_refused(bed, step++, "its rank wrote to it after announcing it");
    hold(NOTHING);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(to_change, sizeof to_change,
                 "%s/store/" RUN "/step-%08llu-a0001/shard-00001-of-00001.safetensors", bed->root,
                 (unsigned long long)step);
        atomic_store(&change_at, places[i]);
        begin(step);
        expect_refused(bed, step++, reasons[i]);
    }
    atomic_store(&digests_twice, true);
    begin(step);
    expect_refused(bed, step++, "tensor 0 of shard-00001");
    begin(step);
    assert_int_equal(wait_save(bed, step, NULL), COMMITTED);
    expect_on_disk(bed, (int64_t)step);
    assert_int_equal(load_all(bed, 1, NULL), ERR_NOT_FOUND);
}

SUITE(NULL, NULL)
