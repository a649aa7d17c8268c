/* ckptd_journal.c - the journal of a run that is removed, or moved away.
 *
 * Goal: a journal that a worker is writing does not reappear after the removal of its run, nor
 * after its directory was moved away. Method: the service's store is a directory whose journals are
 * slow: the run goes while one is being published. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/history.h"
#include "storage/engine/backend.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

#include <stdatomic.h>

#define SLOW_MS 300
#define PATIENCE_MS 20000

static struct storage_ops slow;
static atomic_int num_begun, num_ended;
static bool is_held; /* a journal that is there does not end before may_end */
static atomic_bool may_end;

static int publish_slowly(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    bool is_journal = strstr(key, "/history/") != NULL;
    int error = 0;
    if (!is_journal || is_held)
        error = storage_local.publish(storage, key, data, bytes);
    atomic_fetch_add(&num_begun, is_journal);
    for (int ms = 0; is_journal && (is_held ? !atomic_load(&may_end) : ms < SLOW_MS); ms++)
        sleep_ms(1);
    if (is_journal && !is_held)
        error = storage_local.publish(storage, key, data, bytes);
    atomic_fetch_add(&num_ended, is_journal);
    return error;
}

/* Objects say whose they are. */
static int create_as_ours(struct storage *storage, struct storage_object **out, const char *key,
                          uint64_t bytes)
{
    int error = storage_local.object_create(storage, out, key, bytes);
    if (error == 0)
        ((struct storage_base *)*out)->ops = &slow;
    return error;
}

static void await_count(atomic_int *count)
{
    for (int ms = 0; atomic_load(count) == 0; ms++) {
        assert_true(ms < PATIENCE_MS);
        sleep_ms(1);
    }
}

static bool has_directory(const struct bed *bed)
{
    char path[512];
    snprintf(path, sizeof path, "%s/store/" RUN, bed->root);
    return access(path, F_OK) == 0;
}

/* A run of one checkpoint, whose journal is being written. */
static void save_slowly(struct bed *bed, bool held)
{
    struct peer peer;
    slow = storage_local;
    slow.publish = publish_slowly;
    slow.object_create = create_as_ours;
    is_held = held;
    num_begun = num_ended = 0;
    may_end = false;
    bed_hold(bed);
    ((struct storage_base *)bed->service->storage)->ops = &slow;
    bed_go_on(bed);
    bed_open_world(bed, &peer, 1);
    assert_true(save_step(&peer, 1, 1));
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(&peer, 1);
    await_count(&num_begun);
    assert_true(has_directory(bed) && atomic_load(&num_ended) == 0);
}

BED_TEST(test_journal__one_that_is_being_written_goes_with_its_run)
{
    Holdfast__V1__RemoveRequest request = HOLDFAST__V1__REMOVE_REQUEST__INIT;
    Holdfast__V1__RemoveReply *reply;
    save_slowly(bed, false);
    request.run = RUN;
    request.now = true;
    int error = call(bed, "Remove", &request.base, &holdfast__v1__remove_reply__descriptor, &reply);
    if (error != 0)
        print_error("%s\n", report_line());
    assert_int_equal(error, 0);
    assert_int_equal(reply->checkpoints, 1);
    FREE_REPLY(reply);
    await_count(&num_ended);
    assert_false(has_directory(bed));
}

static bool is_being_written(struct bed *bed)
{
    bed_hold(bed);
    bool is_written = history_is_written(bed->service->catalog->runs);
    bed_go_on(bed);
    return is_written;
}

BED_TEST(test_journal__one_that_is_being_written_follows_a_run_that_is_moved_away)
{
    Holdfast__V1__RescanRequest request = HOLDFAST__V1__RESCAN_REQUEST__INIT;
    Holdfast__V1__RescanReply *reply;
    char path[512], aside[512];
    save_slowly(bed, true);
    snprintf(path, sizeof path, "%s/store/" RUN, bed->root);
    snprintf(aside, sizeof aside, "%s/aside", bed->root);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(
        call(bed, "Rescan", &request.base, &holdfast__v1__rescan_reply__descriptor, &reply), 0);
    FREE_REPLY(reply);
    assert_true(is_being_written(bed)); /* so what came meanwhile was to be written behind it */
    atomic_store(&may_end, true);
    for (int ms = 0; is_being_written(bed); ms++) {
        assert_true(ms < PATIENCE_MS);
        sleep_ms(1);
    }
    assert_int_equal(atomic_load(&num_ended), 1);
    assert_false(has_directory(bed));
}

SUITE(NULL, NULL)
