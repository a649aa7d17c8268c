/* disk_test.h - what a disk does with the requests of ckptd, measured through the storage that
 * ckptd uses; see disk_test.c. For bench and doctor. */
#ifndef HOLDFAST_CLIENTS_CLI_MACHINE_DISK_TEST_H
#define HOLDFAST_CLIENTS_CLI_MACHINE_DISK_TEST_H

#include "clients/cli/engine/cli.h"

#define DISK_TEST_FILES 8u              /* at most: one per block, where there are fewer */
#define DISK_TEST_MEMORY (1ull << 30)   /* bytes of all blocks that are under way, at most */
#define DISK_TEST_REQUESTS (1ull << 24) /* at most */
#define DISK_TEST_BLOCK (1u << 20)      /* ckptd's default, storage.block_bytes */
#define DISK_TEST_DEPTH 32u             /* likewise, storage.queue_depth */

/* Requests of one kind: how many, their bytes, the seconds in which any was under way; and of the
 * seconds of each, from its submission until it was done, percentiles and the longest. */
struct disk_rate {
    uint64_t count, bytes;
    double seconds;
    double p50, p99, p999, max;
};

struct disk_test {
    const char *folder; /* where its own is made, and removed */
    uint64_t bytes;     /* is cut to whole blocks */
    uint32_t block, depth;
    double seconds_max; /* of writes, and again of reads; 0: there is no limit */
    bool is_write_only;
    /* Found: */
    char storage[256]; /* as storage_describe() */
    uint32_t files;
    struct disk_rate write, sync, read;
};

/* Whatever comes, SIGINT, SIGTERM and SIGHUP included, nothing is left in the folder; those then
 * end the program as if they had come at the end. Before the first byte: ERR_INVALID, ERR_SPACE,
 * ERR_NOT_FOUND, ERR_DENIED. ERR_CORRUPT: other bytes were read than were written. */
int disk_test_run(struct disk_test *test, const struct cli *cli);
/* Bytes per second; 0 of none. */
double disk_rate_bytes(const struct disk_rate *rate);
/* Likewise of the writes with their syncs. */
double disk_test_durable(const struct disk_test *test);

#endif
