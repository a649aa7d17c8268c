/* clients_bed.h - what the tests of libckpt against a real ckptd share: a model whose every element
 * can be checked by itself, groups of ranks as threads, and a ckptd of the test's own.
 *
 * Layouts are random grids with replicas and empty pieces. The value of an element follows from
 * tensor, step and global index. ckptd is $BUILD/ckptd with a small pool; segments of 1 MiB make
 * images and tensors straddle them. Everything lives below $TMPDIR and goes with the bed. */
#ifndef HOLDFAST_TESTS_CLIENTS_BED_H
#define HOLDFAST_TESTS_CLIENTS_BED_H

#include "clients/ckpt.h"
#include "tests/unit/random.h"
#include "tests/unit/shell.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
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

extern char **environ;

/* ---- the model: tensors, random layouts, values ---- */

enum { TENSORS = 8 };
static const struct model_tensor {
    const char *name, *dtype;
    uint32_t dims, bytes; /* of an element */
    uint64_t shape[CKPT_DIMS_MAX];
} model[TENSORS] = {
    {"tok_embeddings.weight", "F32", 2, 4, {517, 1300, 0, 0}},
    {"layers.0.attention.wq.weight", "BF16", 2, 2, {700, 811, 0, 0}},
    {"layers.0.attention_norm.weight", "F32", 1, 4, {37, 0, 0, 0}},
    {"optimizer.exp_avg.tok_embeddings.weight", "F32", 2, 4, {517, 1300, 0, 0}},
    {"experts", "F16", 4, 2, {3, 5, 7, 11}},
    {"optimizer.step", "I64", 0, 8, {0}},
    {"mask", "U8", 3, 1, {13, 1, 29, 0}},
    {"tiny", "F64", 1, 8, {2, 0, 0, 0}},
};

static inline uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
    value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
    return value ^ value >> 33;
}

static inline uint64_t draw(uint64_t *random, uint64_t below)
{
    return splitmix64(random) % below;
}

/* Piece `index` of `parts` between random cuts of [0, length); the same for all who ask alike. */
static inline void cut(uint64_t *out_offset, uint64_t *out_extent, uint64_t random, uint64_t length,
                       uint32_t parts, uint32_t index)
{
    uint64_t cuts[RANKS_MAX + 1] = {0};
    cuts[parts] = length;
    for (uint32_t i = 1; i < parts; i++) {
        uint64_t cut = draw(&random, length + 1);
        uint32_t at = i;
        for (; at > 1 && cuts[at - 1] > cut; at--)
            cuts[at] = cuts[at - 1];
        cuts[at] = cut;
    }
    *out_offset = cuts[index];
    *out_extent = cuts[index + 1] - cuts[index];
}

static inline uint32_t draw_divisor(uint64_t *random, uint32_t number)
{
    uint32_t divisor;
    do
        divisor = 1 + (uint32_t)draw(random, number);
    while (number % divisor != 0);
    return divisor;
}

/* Rank's slice of a tensor: the world is replicas x parts of one dimension x parts of another. */
static inline void place(struct ckpt_tensor *out, uint32_t index, uint64_t seed, uint32_t rank,
                         uint32_t world)
{
    const struct model_tensor *tensor = &model[index];
    uint64_t random = seed * 1000 + index;
    *out = (struct ckpt_tensor){.name = tensor->name, .dtype = tensor->dtype, .dims = tensor->dims};
    for (uint32_t d = 0; d < tensor->dims; d++)
        out->shape[d] = out->extent[d] = tensor->shape[d];
    uint32_t replicas = tensor->dims == 0 ? world : draw_divisor(&random, world);
    uint32_t parts = tensor->dims < 2 ? world / replicas : draw_divisor(&random, world / replicas);
    uint32_t other = world / replicas / parts, d = 0, e = 0;
    if (tensor->dims > 0)
        d = (uint32_t)draw(&random, tensor->dims);
    if (tensor->dims > 1)
        e = (d + 1 + (uint32_t)draw(&random, tensor->dims - 1)) % tensor->dims;
    uint32_t place = rank / replicas;
    if (parts > 1)
        cut(&out->offset[d], &out->extent[d], random, out->shape[d], parts, place / other);
    if (other > 1)
        cut(&out->offset[e], &out->extent[e], random + 1, out->shape[e], other, place % other);
}

static inline uint64_t tensor_elements(const struct ckpt_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->extent[d];
    return elements;
}

static inline uint64_t value_of(uint32_t tensor, uint64_t step, uint64_t global)
{
    return mix(global + ((uint64_t)tensor << 40) + (step << 48));
}

/* Writes the values of a step, or counts the elements that are not theirs. */
static inline uint64_t values(const struct ckpt_tensor *tensor, uint32_t index, uint64_t step,
                              bool fill)
{
    unsigned char *at = tensor->data;
    uint32_t bytes = model[index].bytes;
    uint64_t wrong = 0, elements = tensor_elements(tensor);
    for (uint64_t i = 0; i < elements; i++, at += bytes) {
        uint64_t rest = i, global = 0, stride = 1;
        for (uint32_t d = tensor->dims; d-- > 0;) {
            global += (tensor->offset[d] + rest % tensor->extent[d]) * stride;
            rest /= tensor->extent[d];
            stride *= tensor->shape[d];
        }
        uint64_t value = value_of(index, step, global);
        if (fill)
            memcpy(at, &value, bytes);
        else
            wrong += memcmp(at, &value, bytes) != 0;
    }
    return wrong;
}

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
    /* What each rank does when it has described. */
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

static inline int rank_failed(struct group *group, const char *what, uint32_t rank)
{
    group->failures++;
    fprintf(stderr, "# rank %u of %u: %s: %s\n", rank, group->world, what, ckpt_error());
    return -1;
}

struct rank_start {
    struct group *group;
    uint32_t rank;
};

static inline int run_rank(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                           uint32_t rank)
{
    bool is_ready = ckpt != NULL;
    if (is_ready && rank == 0 && ckpt_attempt_open(ckpt, &group->attempt, NULL, NULL) != 0)
        rank_failed(group, "attempt", rank);
    pthread_barrier_wait(&group->barrier);
    if (group->failures > 0)
        return -1;
    if (ckpt_describe(ckpt, group->attempt, tensors, TENSORS) != 0)
        return rank_failed(group, "describe", rank);
    return group->work(group, ckpt, tensors, rank);
}

static inline void *rank_main(void *argument)
{
    const struct rank_start *start = argument;
    struct group *group = start->group;
    struct ckpt_tensor tensors[TENSORS];
    struct ckpt *ckpt = NULL;
    for (uint32_t i = 0; i < TENSORS; i++) {
        place(&tensors[i], i, group->seed, start->rank, group->world);
        tensors[i].data = malloc(tensor_elements(&tensors[i]) * model[i].bytes + 1);
    }
    if (ckpt_open(&ckpt, &(struct ckpt_options){.server = group->server,
                                                .run = RUN,
                                                .rank = start->rank,
                                                .world_size = group->world,
                                                .describe_ms = group->describe_ms}) != 0)
        rank_failed(group, "open", start->rank);
    run_rank(group, ckpt, tensors, start->rank);
    ckpt_close(ckpt);
    for (uint32_t i = 0; i < TENSORS; i++)
        free(tensors[i].data);
    return NULL;
}

/* Returns the number of failures. */
static inline int run_group(struct group *group)
{
    pthread_t threads[RANKS_MAX];
    struct rank_start starts[RANKS_MAX];
    pthread_barrier_init(&group->barrier, NULL, group->world);
    for (uint32_t rank = 0; rank < group->world; rank++) {
        starts[rank] = (struct rank_start){group, rank};
        pthread_create(&threads[rank], NULL, rank_main, &starts[rank]);
    }
    for (uint32_t rank = 0; rank < group->world; rank++)
        pthread_join(threads[rank], NULL);
    pthread_barrier_destroy(&group->barrier);
    return group->failures;
}

static inline int copy_all(struct ckpt_save *save, struct ckpt_tensor *tensors, uint64_t step)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint32_t index = (i * 3 + (uint32_t)step) % TENSORS; /* in another order each time */
        values(&tensors[index], index, step, true);
        ckpt_save_copy(save, index);
        if (tensors[index].data != NULL) /* the copy is the save's: this must not reach it */
            memset(tensors[index].data, 0xee,
                   tensor_elements(&tensors[index]) * model[index].bytes);
    }
    return ckpt_save_end(save);
}

static inline int work_save(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                            uint32_t rank)
{
    struct ckpt_save *save;
    const char *state = "{\n \"mark\" : 1,\n \"said\": \"a  \\\"b\" }"; /* of any layout */
    if (ckpt_save_begin(ckpt, &save, group->step, rank == 0 ? state : NULL) != 0)
        return rank_failed(group, "begin", rank);
    if (copy_all(save, tensors, group->step) != 0)
        return rank_failed(group, "end", rank);
    if (ckpt_save_wait(ckpt, group->step, 30000) != 0)
        return rank_failed(group, "wait", rank);
    return 0;
}

/* One step of a job in lockstep: all ranks save, or all give it up. Until it is committed, or only
 * until every byte is copied. */
static inline int save_together(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                                uint32_t rank, uint64_t step, bool until_committed)
{
    struct ckpt_save *save = NULL;
    pthread_barrier_wait(&group->barrier);
    if (rank == 0)
        group->votes = 0;
    pthread_barrier_wait(&group->barrier);
    uint64_t begin = now_ns();
    int error = ckpt_save_begin(ckpt, &save, step, rank == 0 ? "{\"mark\":1}" : NULL);
    uint64_t took = now_ns() - begin;
    if (rank == 0 && took > group->begin_ns_max)
        group->begin_ns_max = took;
    if (error != 0 && error != CKPT_UNAVAILABLE && error != CKPT_BUSY && error != CKPT_ABORTED)
        rank_failed(group, "begin", rank);
    if (error == 0)
        group->votes++;
    pthread_barrier_wait(&group->barrier);
    if (group->votes < (int)group->world) {
        if (error == 0)
            ckpt_save_abort(save);
        return CKPT_UNAVAILABLE;
    }
    error = copy_all(save, tensors, step);
    return error != 0 || !until_committed ? error : ckpt_save_wait(ckpt, step, 20000);
}

static inline int check_values(struct group *group, struct ckpt_tensor *tensors, uint64_t step,
                               uint32_t rank)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint64_t wrong = values(&tensors[i], i, step, false);
        if (wrong == 0)
            continue;
        fprintf(stderr, "# rank %u: %s: %llu elements are wrong\n", rank, model[i].name,
                (unsigned long long)wrong);
        group->failures++;
    }
    return 0;
}

static inline int work_load(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                            uint32_t rank)
{
    struct ckpt_loaded *loaded;
    struct ckpt_load_options options = {.step =
                                            group->step != 0 ? (int64_t)group->step : CKPT_NEWEST};
    if (ckpt_load(ckpt, &options, &loaded) != 0)
        return rank_failed(group, "load", rank);
    check_values(group, tensors, loaded->info.step, rank);
    if (strstr(loaded->state_json, "\"mark\"") == NULL)
        group->failures++;
    pthread_barrier_wait(&group->barrier);
    if (rank == 0)
        group->loaded_step = loaded->info.step;
    __atomic_fetch_add(&group->bytes_memory, loaded->bytes_memory, __ATOMIC_RELAXED);
    __atomic_fetch_add(&group->bytes_local, loaded->bytes_local, __ATOMIC_RELAXED);
    ckpt_loaded_free(loaded);
    pthread_barrier_wait(&group->barrier);
    return 0;
}

/* Loads a step of `run` into these slices by a handle of its own, as who trains nothing does:
 * without an attempt. `connect_ms`: for how long it looks for ckptd, 0: as long as libckpt does. */
static inline int load_alone(struct group *group, struct ckpt_tensor *tensors, const char *run,
                             uint64_t step, uint32_t connect_ms)
{
    struct ckpt *reader = NULL;
    struct ckpt_loaded *loaded = NULL;
    int error = ckpt_open(&reader, &(struct ckpt_options){.server = group->server,
                                                          .run = run,
                                                          .world_size = 1,
                                                          .connect_ms = connect_ms});
    if (error == 0)
        error = ckpt_load(reader,
                          &(struct ckpt_load_options){
                              .step = (int64_t)step, .tensors = tensors, .num_tensors = TENSORS},
                          &loaded);
    if (error == 0) {
        check_values(group, tensors, step, 0);
        group->bytes_local += loaded->bytes_local;
        ckpt_loaded_free(loaded);
    }
    ckpt_close(reader);
    return error;
}

/* ---- ckptd ---- */

struct bed {
    char root[200], server[240], store[260];
    char config[240]; /* a file of further settings, or "" */
    const char *pool; /* memory.pool_bytes */
    pid_t ckptd;
};

static inline void start_ckptd(struct bed *bed)
{
    char program[512];
    const char *build = getenv("BUILD");
    bool has_faults = strncmp(bed->store, "fault:", 6) == 0; /* only the tests' ckptd knows those */
    snprintf(program, sizeof program, "%s/%s", build != NULL ? build : "build",
             has_faults ? "tests/ckptd" : "ckptd");
    char *argv[] = {program,
                    "--listen",
                    bed->server,
                    "--store",
                    bed->store,
                    "--memory.pool_bytes",
                    (char *)(uintptr_t)bed->pool,
                    "--limits.takeover_ms",
                    "0", /* a start ends the one before at once */
                    "--memory.segment_bytes",
                    "1MiB",
                    bed->config[0] != '\0' ? "--config" : NULL,
                    bed->config,
                    NULL};
    char log[260];
    posix_spawn_file_actions_t actions;
    snprintf(log, sizeof log, "%s/ckptd.log", bed->root);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    assert_int_equal(posix_spawn(&bed->ckptd, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
}

/* Its exit status, or -1 when a signal ended it (or there was none). */
static inline int end_process(pid_t *pid, int signal)
{
    int status;
    if (*pid <= 0)
        return -1;
    kill(*pid, signal);
    while (waitpid(*pid, &status, 0) < 0 && errno == EINTR)
        continue;
    *pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A ckptd that is told to end does so with 0; under a sanitizer anything else is a finding. */
static inline int end_ckptd(struct bed *bed)
{
    if (bed->ckptd <= 0 || end_process(&bed->ckptd, SIGTERM) == 0)
        return 0;
    fprintf(stderr, "# ckptd did not end well; its log:\n");
    shell("tail -n 60 '%s/ckptd.log' >&2", bed->root);
    return -1;
}

static inline int bed_open_with(void **state, const char *pool)
{
    struct bed *bed = calloc(1, sizeof *bed);
    const char *parent = getenv("TMPDIR");
    bed->pool = pool;
    snprintf(bed->root, sizeof bed->root, "%s/ckpt-XXXXXX", parent != NULL ? parent : "/var/tmp");
    if (mkdtemp(bed->root) == NULL)
        return -1;
    snprintf(bed->server, sizeof bed->server, "unix:%s/s", bed->root);
    snprintf(bed->store, sizeof bed->store, "%s/store", bed->root);
    start_ckptd(bed);
    *state = bed;
    return 0;
}

static inline int bed_open(void **state)
{
    return bed_open_with(state, "96MiB");
}

static inline int bed_close(void **state)
{
    struct bed *bed = *state;
    int error = end_ckptd(bed);
    if (getenv("KEEP") == NULL)
        shell("rm -rf '%s'", bed->root);
    free(bed);
    return error;
}

static inline void restart_ckptd(struct bed *bed, int signal)
{
    if (signal == SIGTERM)
        assert_int_equal(end_ckptd(bed), 0);
    end_process(&bed->ckptd, signal);
    start_ckptd(bed);
}

/* Settings from now on, for a ckptd that has begun nothing. */
static inline void configure_ckptd(struct bed *bed, const char *text)
{
    snprintf(bed->config, sizeof bed->config, "%s/ckptd.conf", bed->root);
    FILE *file = fopen(bed->config, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    restart_ckptd(bed, SIGKILL);
}

static inline struct group make_group(const struct bed *bed, uint32_t world, uint64_t seed,
                                      uint64_t step)
{
    return (struct group){.server = bed->server, .world = world, .seed = seed, .step = step};
}

static inline void save_step(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step)
{
    struct group group = make_group(bed, world, seed, step);
    group.work = work_save;
    assert_int_equal(run_group(&group), 0);
}

/* Loads with new slices and checks every byte; returns the group for its figures. */
static inline struct group load_step(const struct bed *bed, uint32_t world, uint64_t seed,
                                     uint64_t step)
{
    struct group group = make_group(bed, world, seed, step);
    group.work = work_load;
    assert_int_equal(run_group(&group), 0);
    return group;
}

/* A handle of one rank that owns everything; for what needs no group. */
static inline struct ckpt *open_single(const struct bed *bed, const char *run)
{
    struct ckpt *ckpt = NULL;
    assert_int_equal(
        ckpt_open(&ckpt,
                  &(struct ckpt_options){.server = bed->server, .run = run, .world_size = 1}),
        0);
    return ckpt;
}

static inline void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Changes a byte in the middle of the second MiB of a stored shard. */
static inline void damage_shard(const struct bed *bed, uint64_t step, const char *shard)
{
    char directory[300], path[700];
    struct dirent *entry;
    unsigned char value;
    snprintf(directory, sizeof directory, "%s/" RUN, bed->store);
    DIR *list = opendir(directory);
    assert_non_null(list);
    int found = 0;
    while ((entry = readdir(list)) != NULL) {
        if (strncmp(entry->d_name, "step-", 5) != 0 ||
            strtoull(entry->d_name + 5, NULL, 10) != step)
            continue;
        snprintf(path, sizeof path, "%s/%s/%s", directory, entry->d_name, shard);
        int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &value, 1, 1500000), 1);
        value ^= 1;
        assert_int_equal(pwrite(fd, &value, 1, 1500000), 1);
        fsync(fd);
        close(fd);
        found++;
    }
    closedir(list);
    assert_int_equal(found, 1);
}

#endif
