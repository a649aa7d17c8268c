/* ckptd_mark.c - the mark of unfinished work beside shards of an aborted save.
 *
 * Goal: shards that could not be removed keep their mark while the next save of the step makes its
 * own, wherever that is interrupted. Method: mark.c on a directory, of which one operation and all
 * later ones fail, as after a SIGKILL; then the directory is checked. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/save/mark.h"
#include "ckptd/save/save.h"
#include "storage/store/store.h"
#include "tests/fault/storage_fault.h"
#include "tests/unit/storage_bed.h"

#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#define DIR "run/step-00000005-a0002"
#define SHARD DIR "/shard-00001-of-00001.safetensors"

struct bed {
    char path[BED_PATH_BYTES];
    struct storage *plain;
    struct service service;
    struct run run;
    struct save save;
};

/* On a store in which a save of the step has left a shard. */
static void open_bed(struct bed *bed, const char *settings)
{
    char where[2 * BED_PATH_BYTES], text[MARK_BYTES_MAX];
    memset(bed, 0, sizeof *bed);
    bed_make_directory(bed->path);
    assert_int_equal(storage_open(&bed->plain, &storage_local, bed->path, NULL), 0);
    mark_text(text, "run", 5, 2);
    assert_int_equal(storage_publish(bed->plain, DIR "/" MARK_NAME, text, strlen(text)), 0);
    assert_int_equal(storage_publish(bed->plain, SHARD, "", 0), 0);
    snprintf(where, sizeof where, "%slocal:%s", settings, bed->path);
    assert_int_equal(storage_open(&bed->service.storage, &storage_fault, where, NULL), 0);
    snprintf(bed->run.name, sizeof bed->run.name, "run");
    bed->save = (struct save){.service = &bed->service,
                              .run = &bed->run,
                              .step = 5,
                              .attempt = 2,
                              .world_size = 1,
                              .dir = DIR,
                              .nonce = "fedcba9876543210fedcba9876543210"};
    pthread_mutex_init(&bed->save.mark_lock, NULL);
}

static void close_bed(struct bed *bed)
{
    pthread_mutex_destroy(&bed->save.mark_lock);
    storage_close(bed->service.storage);
    storage_close(bed->plain);
    bed_remove_directory(bed->path);
}

static enum store_rest rest_of(const struct bed *bed)
{
    enum store_rest rest;
    assert_int_equal(store_rest(bed->plain, DIR, &rest), 0);
    return rest;
}

TEST(test_mark__a_shard_that_stayed_is_marked_at_every_moment)
{
    int error = ERR_IO;
    for (unsigned at = 1; error != 0; at++) {
        char settings[64];
        struct bed bed;
        snprintf(settings, sizeof settings, "lost=0,fail_from=%u:", at);
        open_bed(&bed, settings);
        error = mark_make(&bed.save);
        assert_true(error == 0 || error == ERR_IO);
        assert_int_equal(bed.save.is_marked, error == 0);
        assert_int_equal(storage_fault_crash(bed.service.storage), 0);
        assert_int_equal(rest_of(&bed), STORE_REST_UNFINISHED);
        close_bed(&bed);
        assert_true(at < 10);
    }
}

/* A file under the mark's name that is no mark proves nothing: a save replaces it with its own. */
TEST(test_mark__what_is_none_is_replaced)
{
    struct bed bed;
    open_bed(&bed, "seed=1:");
    assert_int_equal(storage_remove(bed.plain, DIR "/" MARK_NAME), 0);
    assert_int_equal(storage_publish(bed.plain, DIR "/" MARK_NAME, "{}", 2), 0);
    assert_int_equal(rest_of(&bed), STORE_REST_ASIDE);
    assert_int_equal(mark_make(&bed.save), 0);
    assert_int_equal(rest_of(&bed), STORE_REST_UNFINISHED);
    close_bed(&bed);
}

TEST(test_mark__goes_when_no_shard_needs_it)
{
    struct bed bed;
    open_bed(&bed, "seed=1:");
    assert_int_equal(mark_make(&bed.save), 0);
    mark_give_up(&bed.save);
    assert_int_equal(rest_of(&bed), STORE_REST_UNFINISHED);
    assert_int_equal(storage_remove(bed.service.storage, SHARD), 0);
    mark_give_up(&bed.save);
    assert_false(bed_exists(bed.service.storage, DIR "/" MARK_NAME));
    assert_int_equal(storage_remove(bed.service.storage, DIR), ERR_NOT_FOUND);
    close_bed(&bed);
}

SUITE(NULL, NULL)
