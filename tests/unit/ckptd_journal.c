/* ckptd_journal.c - the journal of a run and the removal of that run.
 *
 * Goal: a journal that a worker is writing does not reappear after the removal of its run. Method:
 * the service's store is a directory whose journals are slow: the run is removed while one is being
 * published. */
#include "storage/engine/backend.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

#include <stdatomic.h>

#define SLOW_MS 300
#define PATIENCE_MS 20000

static struct storage_ops slow;
static atomic_int num_begun, num_ended;

static int publish_slowly(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    bool is_journal = strstr(key, "/history/") != NULL;
    if (is_journal) {
        atomic_fetch_add(&num_begun, 1);
        sleep_ms(SLOW_MS);
    }
    int error = storage_local.publish(storage, key, data, bytes);
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

BED_TEST(test_journal__one_that_is_being_written_goes_with_its_run)
{
    struct peer peer;
    Holdfast__V1__RemoveRequest request = HOLDFAST__V1__REMOVE_REQUEST__INIT;
    Holdfast__V1__RemoveReply *reply;
    slow = storage_local;
    slow.publish = publish_slowly;
    slow.object_create = create_as_ours;
    bed_hold(bed);
    ((struct storage_base *)bed->service->storage)->ops = &slow;
    bed_go_on(bed);
    bed_open_world(bed, &peer, 1);
    assert_true(save_step(&peer, 1, 1));
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(&peer, 1);
    await_count(&num_begun);
    assert_true(has_directory(bed) && atomic_load(&num_ended) == 0);
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

SUITE(NULL, NULL)
