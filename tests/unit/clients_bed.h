/* clients_bed.h - shared by the tests of libckpt against a real ckptd: a model whose elements can
 * each be checked, groups of ranks as threads, and a ckptd of the test.
 *
 * Layouts are random grids with replicas and empty pieces. The value of an element follows from
 * tensor, step and global index. ckptd is $BUILD/ckptd with a small pool; segments of 1 MiB make
 * images and tensors straddle them. All files lie below $TMPDIR and are removed with the bed. */
#ifndef HOLDFAST_TESTS_CLIENTS_BED_H
#define HOLDFAST_TESTS_CLIENTS_BED_H

#include "clients/ckpt.h"
#include "tests/unit/random.h"
#include "tests/unit/shell.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS_MAX 6
#define RUN "trip"

/* ---- the model: tensors, random layouts, values ---- */

enum { TENSORS = 8 };
struct model_tensor {
    const char *name, *dtype;
    uint32_t dims, bytes; /* of an element */
    uint64_t shape[CKPT_DIMS_MAX];
};
extern const struct model_tensor model[TENSORS];

uint64_t mix(uint64_t value);

static inline uint64_t draw(uint64_t *random, uint64_t below)
{
    return splitmix64(random) % below;
}

/* Piece `index` of `parts` between random cuts of [0, length); equal arguments give equal cuts. */
void cut(uint64_t *out_offset, uint64_t *out_extent, uint64_t random, uint64_t length,
         uint32_t parts, uint32_t index);

/* Rank's slice of a tensor: the world is replicas x parts of one dimension x parts of another. */
void place(struct ckpt_tensor *out, uint32_t index, uint64_t seed, uint32_t rank, uint32_t world);

static inline uint64_t tensor_elements(const struct ckpt_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->extent[d];
    return elements;
}

/* Writes the values of a step, or counts the elements that differ from them. */
uint64_t values(const struct ckpt_tensor *tensor, uint32_t index, uint64_t step, bool fill);

/* ---- groups of ranks ---- */

struct group {
    const char *server;
    uint32_t world;
    uint64_t seed; /* of the layout */
    uint64_t step; /* to save or load; 0: the newest */
    uint64_t attempt;
    uint64_t loaded_step; /* by rank 0 */
    uint64_t bytes_memory, bytes_local;
    uint32_t describe_ms;
    pthread_barrier_t barrier;
    atomic_int failures;
    atomic_int votes; /* for agreements inside a step */
    /* Called by each rank after it described its tensors. */
    int (*work)(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors, uint32_t rank);
    uint64_t begin_ns_max; /* longest save_begin of rank 0 */
    uint32_t commits, losses;
};

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int rank_failed(struct group *group, const char *what, uint32_t rank);
/* Returns the number of failures. */
int run_group(struct group *group);
int copy_all(struct ckpt_save *save, struct ckpt_tensor *tensors, uint64_t step);
/* One step of a job in lockstep: all ranks save, or all abort. Waits for the commit, or only until
 * every byte is copied. */
int save_together(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                  uint32_t rank, uint64_t step, bool until_committed);
int check_values(struct group *group, struct ckpt_tensor *tensors, uint64_t step, uint32_t rank);
int work_save(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors, uint32_t rank);
int work_load(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors, uint32_t rank);
/* Loads a step of `run` into these slices by a separate handle without an attempt, as a reader.
 * `connect_ms`: how long it waits for ckptd; 0: libckpt's default. */
int load_alone(struct group *group, struct ckpt_tensor *tensors, const char *run, uint64_t step,
               uint32_t connect_ms);

/* ---- ckptd ---- */

struct bed {
    char root[200], server[240], store[260];
    char config[240]; /* a file of further settings, or "" */
    const char *pool; /* memory.pool_bytes */
    pid_t ckptd;
};

void start_ckptd(struct bed *bed);
/* Its exit status, or -1 when a signal ended it or it did not run. */
int end_process(pid_t *pid, int signal);
/* Ends ckptd by SIGTERM; it must exit with 0, and under a sanitizer any other status is a
 * finding. */
int end_ckptd(struct bed *bed);
/* SIGSTOP; returns when every thread of ckptd stands still. SIGCONT lets it continue. */
bool stop_ckptd(const struct bed *bed);

int bed_open_with(void **state, const char *pool);
int bed_open(void **state);
int bed_close(void **state);

/* Tests of `bed` (suite.h). */
#define BED_TEST(name) TEST_WITH(struct bed *bed, name, bed_open, bed_close)
void restart_ckptd(struct bed *bed, int signal);
/* Sets the configuration of the next ckptd. */
void configure_ckptd(struct bed *bed, const char *text);

static inline struct group make_group(const struct bed *bed, uint32_t world, uint64_t seed,
                                      uint64_t step)
{
    return (struct group){.server = bed->server, .world = world, .seed = seed, .step = step};
}

void save_world(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step);
/* Loads with new slices and checks every byte; returns the group for its figures. */
struct group load_world(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step);
/* A handle of one rank that owns everything, for tests without a group. */
struct ckpt *open_single(const struct bed *bed, const char *run);

static inline void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Changes a byte in the middle of the second MiB of a stored shard. */
void damage_shard(const struct bed *bed, uint64_t step, const char *shard);

#endif
