/* clients_budget.c - the host memory that ckptd and its clients take.
 *
 * Goal: ckptd never takes more than its pool and ARENA_BESIDE_BYTES (arena.h) under any load: saves
 * by several ranks at once, through whole images and through windows, loads of any world, of whole
 * shards and in parts, verification of images left by a killed job, thousands of tensors. A client
 * takes its own state and the pool that it maps, and little else. Method: jobs are separate
 * processes (this program run again), whose ranks are threads. ckptd runs in a memory cgroup with
 * exactly that limit and no swap: the kernel kills it beyond the limit, and the test detects it.
 * Its peak of resident memory is compared with the limit, too; that alone proves less, as it misses
 * memory that no process maps. Where no cgroup can be made the test runs and is reported as
 * skipped. Likewise under a sanitizer, whose own memory is many times larger: there only the bytes
 * are checked. */
#include "proto/base/sanitized.h"
#include "proto/wire/arena.h"
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define MIB 1048576ull
#define POOL_MIB 64u
#define SEGMENT_MIB 4u
#define WIDTH 1024u /* elements of a row: 4 KiB */
#define CLIENT_BESIDE_MIB 64u

/* ---- a job ---- */

enum action { SAVE, LOAD, DIE };

struct job_plan {
    const char *server;
    uint32_t world, tensors;
    uint64_t mib; /* of the whole state */
    enum action action;
    uint64_t step, num_steps;
};

struct job_rank {
    const struct job_plan *plan;
    uint32_t rank;
    pthread_t thread;
    struct ckpt *ckpt;
    struct ckpt_tensor *tensors;
    char (*names)[16];
    int errors;
};

static pthread_barrier_t job_barrier;
static uint64_t job_attempt;

static uint32_t value(uint64_t step, uint32_t tensor, uint64_t index)
{
    return (uint32_t)(step * 2654435761u + tensor * 97u + index * 40503u);
}

static void make_tensors(struct job_rank *rank)
{
    const struct job_plan *plan = rank->plan;
    uint64_t rows = plan->mib * MIB / plan->tensors / (4 * WIDTH);
    uint64_t begin = rows * rank->rank / plan->world, end = rows * (rank->rank + 1) / plan->world;
    rank->tensors = calloc(plan->tensors, sizeof *rank->tensors);
    rank->names = calloc(plan->tensors, sizeof *rank->names);
    for (uint32_t i = 0; i < plan->tensors; i++) {
        snprintf(rank->names[i], sizeof rank->names[i], "t%u", i);
        rank->tensors[i] = (struct ckpt_tensor){.name = rank->names[i],
                                                .dtype = "F32",
                                                .dims = 2,
                                                .shape = {rows, WIDTH},
                                                .offset = {begin, 0},
                                                .extent = {end - begin, WIDTH},
                                                .data = malloc((end - begin) * 4 * WIDTH + 1)};
    }
}

/* Writes the values of a step, or counts those that are wrong. */
static uint64_t visit_values(const struct job_rank *rank, uint64_t step, bool fill)
{
    uint64_t wrong = 0;
    for (uint32_t t = 0; t < rank->plan->tensors; t++) {
        const struct ckpt_tensor *tensor = &rank->tensors[t];
        uint32_t *data = tensor->data;
        uint64_t first = tensor->offset[0] * WIDTH, count = tensor->extent[0] * WIDTH;
        for (uint64_t i = 0; i < count; i++) {
            if (fill)
                data[i] = value(step, t, first + i);
            else
                wrong += data[i] != value(step, t, first + i);
        }
    }
    return wrong;
}

static int fail_rank(struct job_rank *rank, const char *what)
{
    fprintf(stderr, "# rank %u of %u: %s: %s\n", rank->rank, rank->plan->world, what, ckpt_error());
    return ++rank->errors;
}

static int save_one(struct job_rank *rank, uint64_t step)
{
    const struct job_plan *plan = rank->plan;
    struct ckpt_save *save;
    visit_values(rank, step, true);
    if (ckpt_save_begin(rank->ckpt, &save, step, NULL) != 0)
        return fail_rank(rank, "begin");
    for (uint32_t i = 0; i < plan->tensors; i++) {
        if (plan->action == DIE && rank->rank == 0 && i == plan->tensors / 2 &&
            step + 1 == plan->step + plan->num_steps)
            raise(SIGKILL);
        ckpt_save_copy(save, ckpt_save_order(rank->ckpt, i));
    }
    return ckpt_save_end(save) == 0 ? 0 : fail_rank(rank, "end");
}

/* Steps one after the other without a pause: two are in work at once where memory allows. */
static void save_steps(struct job_rank *rank)
{
    const struct job_plan *plan = rank->plan;
    uint64_t end = plan->step + plan->num_steps;
    for (uint64_t step = plan->step; step < end && rank->errors == 0; step++)
        save_one(rank, step);
    if (rank->errors == 0 && ckpt_save_wait(rank->ckpt, end - 1, 60000) != 0)
        fail_rank(rank, "wait");
}

static void load_step_of(struct job_rank *rank)
{
    struct ckpt_loaded *loaded;
    struct ckpt_load_options options = {.step = (int64_t)rank->plan->step};
    if (ckpt_load(rank->ckpt, &options, &loaded) != 0) {
        fail_rank(rank, "load");
        return;
    }
    ckpt_loaded_free(loaded);
    if (visit_values(rank, rank->plan->step, false) != 0)
        fail_rank(rank, "what was loaded is wrong");
}

static void *job_rank_main(void *argument)
{
    struct job_rank *rank = argument;
    const struct job_plan *plan = rank->plan;
    make_tensors(rank);
    if (ckpt_open(&rank->ckpt, &(struct ckpt_options){.server = plan->server,
                                                      .run = "budget",
                                                      .rank = rank->rank,
                                                      .world_size = plan->world,
                                                      .busy_ms = 60000}) != 0)
        fail_rank(rank, "open");
    if (rank->rank == 0 && rank->errors == 0 &&
        ckpt_attempt_open(rank->ckpt, &job_attempt, NULL, NULL) != 0)
        fail_rank(rank, "attempt");
    pthread_barrier_wait(&job_barrier);
    if (rank->errors == 0 && job_attempt != 0 &&
        ckpt_describe(rank->ckpt, job_attempt, rank->tensors, plan->tensors) != 0)
        fail_rank(rank, "describe");
    if (rank->errors == 0 && plan->action == LOAD)
        load_step_of(rank);
    else if (rank->errors == 0)
        save_steps(rank);
    ckpt_close(rank->ckpt);
    for (uint32_t i = 0; i < plan->tensors; i++)
        free(rank->tensors[i].data);
    free(rank->tensors);
    free(rank->names);
    return NULL;
}

/* argv: self, server, world, tensors, MiB, action, step, steps */
static int job_main(char **argv)
{
    struct job_plan plan = {.server = argv[1],
                            .world = (uint32_t)atoi(argv[2]),
                            .tensors = (uint32_t)atoi(argv[3]),
                            .mib = (uint64_t)atoll(argv[4]),
                            .action = (enum action)atoi(argv[5]),
                            .step = (uint64_t)atoll(argv[6]),
                            .num_steps = (uint64_t)atoll(argv[7])};
    struct job_rank ranks[16] = {0};
    int errors = 0;
    pthread_barrier_init(&job_barrier, NULL, plan.world);
    for (uint32_t i = 0; i < plan.world; i++) {
        ranks[i].plan = &plan;
        ranks[i].rank = i;
        pthread_create(&ranks[i].thread, NULL, job_rank_main, &ranks[i]);
    }
    for (uint32_t i = 0; i < plan.world; i++) {
        pthread_join(ranks[i].thread, NULL);
        errors += ranks[i].errors;
    }
    return errors == 0 ? 0 : 1;
}

/* Runs a job to its end, and checks its own budget. */
static void run_job(const struct bed *bed, const struct job_plan *plan)
{
    char numbers[6][24], self[] = "/proc/self/exe";
    char *argv[] = {self,       (char *)(uintptr_t)bed->server,
                    numbers[0], numbers[1],
                    numbers[2], numbers[3],
                    numbers[4], numbers[5],
                    NULL};
    const uint64_t values[] = {plan->world, plan->tensors,  plan->mib, (uint64_t)plan->action,
                               plan->step,  plan->num_steps};
    struct rusage usage;
    pid_t pid;
    int status;
    for (uint32_t i = 0; i < 6; i++)
        snprintf(numbers[i], sizeof numbers[i], "%llu", (unsigned long long)values[i]);
    assert_int_equal(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
    while (wait4(pid, &status, 0, &usage) < 0)
        assert_int_equal(errno, EINTR);
    if (plan->action == DIE)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    uint64_t limit_mib = plan->mib + POOL_MIB + CLIENT_BESIDE_MIB;
    if (!IS_SANITIZED)
        assert_in_range(usage.ru_maxrss / 1024, 1, limit_mib);
}

/* ---- ckptd under a limit ---- */

static char cgroup_path[160]; /* of its memory cgroup; "": there is none */

static bool write_file(const char *folder, const char *name, uint64_t number)
{
    char path[240];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return false;
    bool is_written = fprintf(file, "%llu\n", (unsigned long long)number) > 0;
    return fclose(file) == 0 && is_written;
}

/* A cgroup of version 1 or 2 with this limit and no swap. */
static void make_cgroup(uint64_t bytes)
{
    static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    for (uint32_t i = 0; i < 2 && !IS_SANITIZED; i++) {
        bool is_v1 = i == 0;
        snprintf(cgroup_path, sizeof cgroup_path, "%s/holdfast-budget-%d", roots[i], (int)getpid());
        if (mkdir(cgroup_path, 0755) != 0)
            continue;
        if (write_file(cgroup_path, is_v1 ? "memory.limit_in_bytes" : "memory.max", bytes)) {
            /* Without swap accounting, or without swap, there is no such file. */
            write_file(cgroup_path, is_v1 ? "memory.memsw.limit_in_bytes" : "memory.swap.max",
                       is_v1 ? bytes : 0);
            return;
        }
        rmdir(cgroup_path);
    }
    cgroup_path[0] = '\0';
}

static int open_limited(void **state)
{
    static char command[1200];
    struct bed *bed = calloc(1, sizeof *bed);
    const char *parent = getenv("TMPDIR"), *build = getenv("BUILD");
    char *argv[] = {"sh", "-c", command, NULL};
    snprintf(bed->root, sizeof bed->root, "%s/ckpt-XXXXXX", parent != NULL ? parent : "/var/tmp");
    if (mkdtemp(bed->root) == NULL)
        return -1;
    snprintf(bed->server, sizeof bed->server, "unix:%s/s", bed->root);
    snprintf(bed->store, sizeof bed->store, "%s/store", bed->root);
    make_cgroup(POOL_MIB * MIB + ARENA_BESIDE_BYTES);
    /* It is in the group before it takes the first byte. */
    snprintf(command, sizeof command,
             "%s%s%s exec '%s/ckptd' --listen '%s' --store '%s' --memory.pool_bytes %uMiB "
             "--memory.segment_bytes %uMiB >> '%s/ckptd.log' 2>&1",
             cgroup_path[0] ? "echo $$ > " : "", cgroup_path,
             cgroup_path[0] ? "/cgroup.procs &&" : "", build != NULL ? build : "build", bed->server,
             bed->store, POOL_MIB, SEGMENT_MIB, bed->root);
    *state = bed;
    if (posix_spawn(&bed->ckptd, "/bin/sh", NULL, NULL, argv, environ) != 0)
        return -1;
    ckpt_close(open_single(bed, "await"));
    return 0;
}

static int close_limited(void **state)
{
    int error = bed_close(state);
    if (cgroup_path[0] != '\0')
        rmdir(cgroup_path);
    return error;
}

/* A number of KiB in /proc/<pid>/status. */
static uint64_t status_kib(pid_t pid, const char *name)
{
    char path[64], line[160];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), ": %llu", &kib);
    fclose(file);
    return kib;
}

static void check_budget(const struct bed *bed, const char *after)
{
    uint64_t peak_kib = status_kib(bed->ckptd, "VmHWM"), pool_kib = POOL_MIB * 1024u;
    uint64_t limit_kib = pool_kib + ARENA_BESIDE_BYTES / 1024;
    print_message("# %s: ckptd took at most %.1f MiB beside its pool of %u MiB (%s)\n", after,
                  ((double)peak_kib - (double)pool_kib) / 1024.0, POOL_MIB,
                  cgroup_path[0] ? "limited by a cgroup" : "measured only");
    if (IS_SANITIZED)
        return;
    assert_in_range(peak_kib, pool_kib, limit_kib); /* the pool is all there, and counted */
}

/* ---- the story ---- */

static void run(const struct bed *bed, enum action action, uint32_t world, uint64_t mib,
                uint64_t step, uint64_t num_steps)
{
    run_job(bed, &(struct job_plan){.world = world,
                                    .tensors = 16,
                                    .mib = mib,
                                    .action = action,
                                    .step = step,
                                    .num_steps = num_steps});
}

TEST_BETWEEN(test_budget__ckptd_stays_within_its_pool_and_a_named_amount, open_limited,
             close_limited)
{
    struct bed *bed = *state;
    /* Images are whole, two of each rank. */
    run(bed, SAVE, 4, 24, 1, 4);
    run(bed, LOAD, 4, 24, 4, 0);
    run(bed, LOAD, 3, 24, 3, 0);
    check_budget(bed, "whole images");
    /* A killed job leaves images that ckptd verifies; the next one has other ranks. */
    run(bed, DIE, 4, 24, 5, 3);
    run(bed, LOAD, 2, 24, 4, 0);
    run(bed, LOAD, 8, 24, 4, 0);
    check_budget(bed, "a killed client");
    /* Windows: 48 MiB of each of four ranks go through 16 MiB; then one of 192 MiB through 64. */
    run(bed, SAVE, 4, 192, 10, 2);
    run(bed, LOAD, 2, 192, 11, 0);
    check_budget(bed, "windows");
    run(bed, DIE, 4, 192, 12, 1);
    run(bed, SAVE, 1, 192, 13, 2);
    run(bed, LOAD, 3, 192, 14, 0); /* shards larger than the pool, in parts */
    check_budget(bed, "parts");
    /* Many tensors: plans, answers, headers, manifests. */
    struct job_plan many = {.world = 4, .tensors = 3000, .mib = 24, .step = 20, .num_steps = 3};
    run_job(bed, &many);
    many.action = LOAD;
    many.step = 22;
    many.world = 3;
    run_job(bed, &many);
    check_budget(bed, "3000 tensors");
    if (cgroup_path[0] == '\0') { /* a finding above is one all the same */
        print_message("# %s: nothing held ckptd to its limit\n",
                      IS_SANITIZED ? "a sanitizer takes memory of its own"
                                   : "the system lets us make no memory cgroup");
        skip();
    }
}

int main(int argc, char **argv)
{
    if (argc == 8)
        return job_main(argv);
    return suite_run(NULL, NULL);
}
