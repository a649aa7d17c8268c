/* disk_test.h - measures a disk with ckptd's requests, through the storage that ckptd uses; see
 * disk_test.c. For bench and doctor. */
#ifndef HOLDFAST_CLIENTS_CLI_MACHINE_DISK_TEST_H
#define HOLDFAST_CLIENTS_CLI_MACHINE_DISK_TEST_H

#include "clients/cli/engine/cli.h"

#define DISK_TEST_FILES 8u              /* at most: one per block, if there are fewer */
#define DISK_TEST_MEMORY (1ull << 30)   /* limit of the bytes of all blocks under way */
#define DISK_TEST_REQUESTS (1ull << 24) /* limit */
#define DISK_TEST_BLOCK (1u << 20)      /* ckptd's default, storage.block_bytes */
#define DISK_TEST_DEPTH 32u             /* ckptd's default, storage.queue_depth */

/* Requests of one kind: their number, their bytes, and the seconds in which any was under way. Of
 * the seconds of each, from submission until done: percentiles and the longest. */
struct disk_rate {
    uint64_t count, bytes;
    double seconds;
    double p50, p99, p999, max;
};

struct disk_test {
    const char *folder; /* the test's folder is made in it, and removed */
    uint64_t bytes;     /* cut to whole blocks */
    uint32_t block, depth;
    double seconds_max; /* of writes, and again of reads; 0: no limit */
    bool is_write_only;
    /* Results: */
    char storage[256]; /* from storage_describe() */
    uint32_t files;
    struct disk_rate write, sync, read;
};

/* Removes all its files in any case, also after SIGINT, SIGTERM and SIGHUP; those then end the
 * program. Before the first byte: ERR_INVALID, ERR_SPACE, ERR_NOT_FOUND, ERR_DENIED. ERR_CORRUPT:
 * the read bytes differ from the written ones. */
int disk_test_run(struct disk_test *test, const struct cli *cli);
/* Bytes per second; 0 of none. */
double disk_rate_bytes(const struct disk_rate *rate);
/* The same for the writes with their syncs. */
double disk_test_durable(const struct disk_test *test);

#endif
