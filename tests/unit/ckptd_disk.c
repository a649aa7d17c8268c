/* ckptd_disk.c - the daemon on a disk that is full or fails.
 *
 * Goal: a save that does not fit is refused before its first byte, with the numbers, and returns
 * its reservation of space. After a failed sync ckptd trusts only data written again. An unknown
 * outcome takes the store offline. Method: a service in this process, a raw client (ckptd_bed.h), a
 * store that is small or fails as planned. ckptd_faults.c makes each operation fail in turn. */
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

static struct peer peers[RANKS];

/* The store takes two checkpoints of 4 MiB in its usable part of 10, not three. */
BED_TEST(test_disk__a_full_disk_is_a_save_refused_with_the_numbers)
{
    char reason[512];
    bed_stop(bed);
    snprintf(bed->config.store, sizeof bed->config.store, "memory:%u", 12 * MIB);
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 2);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_true(status_number(bed, "disk", "bytes_promised") > 2 * MIB); /* rank 1 is to begin */
    assert_int_equal(peer_begin(&peers[1], 1), 0);
    assert_true(wait_number(bed, "disk", "bytes_promised", 0)); /* the disk counts both files */
    peer_finish(&peers[0], 1);
    peer_finish(&peers[1], 1);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_true(save_step(peers, 2, 2));
    assert_true(status_number(bed, "disk", "bytes_promised") == 0);
    assert_true(status_number(bed, "disk", "bytes_left") < 4 * MIB);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(peer_begin(&peers[rank], 3), ERR_SPACE);
        assert_non_null(strstr(report_message(), "usable bytes are in use"));
    }
    assert_int_equal(wait_save(bed, 3, reason), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_non_null(strstr(reason, "does not fit"));
    assert_true(status_number(bed, "since_start", "refused_saves") == 1);
    assert_true(status_number(bed, "since_start", "failed_saves") == 1);
    assert_int_equal(load_all(bed, 2, NULL), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    peers_close(peers, 2);
    bed_end_thread(bed); /* both commits count for the rate, and it warned */
    assert_int_equal(bed->service->ledger.num_changes, 2);
    assert_true(bed->service->ledger.changes[1].bytes > 4 * MIB);
    assert_true(bed->service->ledger.warned_ms != 0);
    bed_close_service(bed);
}

/* A save that fails gives its promise back. */
BED_TEST(test_disk__a_save_given_up_holds_no_room)
{
    bed_open_world(bed, peers, 2);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_true(status_number(bed, "disk", "bytes_promised") > 0);
    assert_true(status_number(bed, "disk", "inodes_promised") > 0);
    peer_close(&peers[0]);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_true(wait_number(bed, "disk", "bytes_promised", 0));
    assert_true(status_number(bed, "disk", "inodes_promised") == 0);
    peers_close(peers, 2);
}

static void start_on(struct bed *bed, const char *faults)
{
    bed_stop(bed);
    snprintf(bed->config.store, sizeof bed->config.store, "%s%s/store", faults, bed->root);
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
}

/* The kernel may have dropped the data that the failed sync should have written. */
BED_TEST(test_disk__a_shard_whose_sync_failed_is_written_once_more)
{
    start_on(bed, "fault:only=sync,fail_at=1:local:");
    assert_true(save_step(peers, 1, 1));
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_true(save_step(peers, 1, 2)); /* the store is not offline */
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(peers, 1);
    start_on(bed, "");
    assert_int_equal(load_all(bed, 1, NULL), 0); /* from disk */
    peers_close(peers, 1);
}

/* The disk fails from some operation on: where that is a sync, the later ones fail as well. */
static bool is_offline_after(struct bed *bed, uint64_t operation, char reason[512])
{
    bed_stop(bed);
    snprintf(bed->config.store, sizeof bed->config.store,
             "fault:fail_from=%llu,errno=%d:memory:", (unsigned long long)operation, EROFS);
    reason[0] = '\0';
    if (bed_start(bed) != 0)
        return false;
    if (open_attempt(bed, 1) == 0 && peers_open(peers, bed, 1) == 0 && !save_step(peers, 1, 1))
        wait_save(bed, 1, reason);
    json_t *status = bed_status(bed);
    bool is_offline = json_string_value(json_object_get(status, "offline"))[0] != '\0';
    json_decref(status);
    peers_close(peers, 1);
    return is_offline;
}

BED_TEST(test_disk__a_disk_that_fails_a_sync_and_the_new_file_takes_the_store_offline)
{
    uint32_t num_replaced = 0, num_others = 0;
    char reason[512];
    /* A slow machine has more of them: those of health. */
    for (uint64_t operation = 1;
         operation <= 40 || (operation <= 200 && (num_replaced == 0 || num_others == 0));
         operation++) {
        bool is_offline = is_offline_after(bed, operation, reason);
        if (strstr(reason, "could not be replaced after a failed sync") != NULL) {
            num_replaced++;
            assert_true(is_offline);
        } else if (strstr(reason, "could not be created") != NULL ||
                   strstr(reason, "could not be written") != NULL) {
            num_others++; /* there was no failed sync before it */
            assert_false(is_offline);
        }
    }
    assert_true(num_replaced > 0 && num_others > 0);
    bed_stop(bed);
    start_on(bed, "");
    peers_close(peers, 1);
}

/* A publish fails at its end: it is unknown whether the manifest is durable. */
BED_TEST(test_disk__an_unsure_manifest_takes_the_store_offline_until_a_restart)
{
    char reason[512];
    /* After an attempt, the directory of tombstones, and the mark. */
    start_on(bed, "fault:late=1,only=publish,fail_at=4:local:");
    assert_false(save_step(peers, 1, 1));
    assert_int_equal(wait_save(bed, 1, reason), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_int_equal(peer_begin(&peers[0], 2), ERR_IO);
    assert_non_null(strstr(report_message(), "the store is offline: "));
    json_t *status = bed_status(bed);
    assert_string_equal(json_string_value(json_object_get(status, "offline")), reason);
    json_decref(status);
    peers_close(peers, 1);
    start_on(bed, "");
    assert_true(save_step(peers, 1, 2));
    assert_int_equal(load_all(bed, -1, NULL), 0);
    peers_close(peers, 1);
}

SUITE(NULL, NULL)
