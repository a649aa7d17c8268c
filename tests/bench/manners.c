/* manners.c - the cost of saves for concurrent computing: a loop on all cores, with and without
 * saves.
 *
 *     manners SERVER RUN MIB THREADS
 *
 * The loop simulates training. A step has two parts, each the same work every time, with all
 * threads meeting at its end:
 *
 *     memory   x = x * a + y over arrays far larger than the caches (an optimizer's update)
 *     compute  products and sums in the first-level cache (a layer's products)
 *
 * The memory part is announced as a busy phase, the compute part as a quiet one. The amount of work
 * of a part is fixed at the start, such that without saves it takes MEMORY_MS and COMPUTE_MS.
 * Meanwhile another thread saves a state of MIB MiB through ckptd, back to back: it copies the
 * state and polls until it is committed (waiting would end ckptd's throttling).
 *
 * Commands on stdin, each answered with one JSON line; N is the number of steps:
 *
 *     alone N    no saves: {"memory": seconds, "compute": seconds, "saves": 0}
 *     saving N   the first save has begun before the first step, and the last one is finished after
 *                the last; "saves" counts what was committed meanwhile, the last one by the part of
 *                its time that had passed, measured by the one before */
#include "clients/ckpt.h"
#include "tests/bench/bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define TENSOR_BYTES (64u << 20)
#define TENSORS_MAX 256u
#define THREADS_MAX 256u
#define ARRAY_FLOATS (6u << 20) /* 24 MiB each of two per thread */
#define CACHE_FLOATS 2048u      /* 8 KiB each of two per thread */
#define MEMORY_MS 30
#define COMPUTE_MS 70
#define POLL_NS 5000000

struct worker {
    pthread_t thread;
    float *x, *y;
    float a[CACHE_FLOATS], b[CACHE_FLOATS];
};

static struct {
    struct ckpt *ckpt;
    struct ckpt_tensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][24];
    uint32_t num_tensors;
    uint64_t step; /* of the save in work */
    atomic_bool saving, begun;
    /* The saver's, read when it is joined. */
    uint32_t saves;
    double begun_at, save_seconds; /* of the last save; the time of the one before */

    uint32_t num_threads;
    struct worker workers[THREADS_MAX];
    pthread_barrier_t barrier;
    uint64_t memory_rounds, compute_rounds; /* of a step */
    uint32_t steps;
    double memory_seconds, compute_seconds; /* of all steps; thread 0's */
} job;

/* ---- the loop ---- */

static void use_memory(struct worker *w, uint64_t rounds)
{
    for (uint64_t r = 0; r < rounds; r++) {
        /* A round is 64 KiB of both arrays, so that the work can be set finely. */
        size_t at = r * 16384 % ARRAY_FLOATS;
        for (size_t i = at; i < at + 16384; i++)
            w->x[i] = w->x[i] * 0.999f + w->y[i];
    }
}

static void use_cache(struct worker *w, uint64_t rounds)
{
    for (uint64_t r = 0; r < rounds; r++)
        for (size_t i = 0; i < CACHE_FLOATS; i++)
            w->a[i] = w->a[i] * 0.999f + w->b[i];
}

static void *run_steps(void *argument)
{
    struct worker *w = argument;
    bool is_first = w == &job.workers[0];
    for (uint32_t step = 0; step < job.steps; step++) {
        if (is_first)
            ckpt_phase(job.ckpt, CKPT_PHASE_BUSY);
        pthread_barrier_wait(&job.barrier);
        double start = bench_seconds();
        use_memory(w, job.memory_rounds);
        pthread_barrier_wait(&job.barrier);
        double middle = bench_seconds();
        if (is_first)
            ckpt_phase(job.ckpt, CKPT_PHASE_QUIET);
        use_cache(w, job.compute_rounds);
        pthread_barrier_wait(&job.barrier);
        if (is_first) {
            job.memory_seconds += middle - start;
            job.compute_seconds += bench_seconds() - middle;
        }
    }
    return NULL;
}

static void compute(uint32_t steps)
{
    job.steps = steps;
    job.memory_seconds = job.compute_seconds = 0;
    for (uint32_t i = 1; i < job.num_threads; i++)
        BENCH_TRY(pthread_create(&job.workers[i].thread, NULL, run_steps, &job.workers[i]),
                  "pthread_create");
    run_steps(&job.workers[0]);
    for (uint32_t i = 1; i < job.num_threads; i++)
        pthread_join(job.workers[i].thread, NULL);
}

static void new_worker(struct worker *w)
{
    w->x = aligned_alloc(4096, ARRAY_FLOATS * sizeof(float));
    w->y = aligned_alloc(4096, ARRAY_FLOATS * sizeof(float));
    BENCH_TRY(w->x == NULL || w->y == NULL, "out of memory");
    for (size_t i = 0; i < ARRAY_FLOATS; i++)
        w->x[i] = w->y[i] = (float)(i % 1000) * 0.001f;
    for (size_t i = 0; i < CACHE_FLOATS; i++)
        w->a[i] = w->b[i] = (float)(i % 1000) * 0.001f;
}

/* Fixes the work of a step. */
static void calibrate(void)
{
    enum { ROUNDS = 2000, STEPS = 5 };
    job.memory_rounds = job.compute_rounds = ROUNDS;
    compute(STEPS);
    job.memory_rounds = 1 + (uint64_t)(MEMORY_MS * 1e-3 * ROUNDS * STEPS / job.memory_seconds);
    job.compute_rounds = 1 + (uint64_t)(COMPUTE_MS * 1e-3 * ROUNDS * STEPS / job.compute_seconds);
}

/* ---- the saves ---- */

static void open_state(const char *server, const char *run, uint64_t mib)
{
    struct ckpt_options options = {.server = server, .run = run, .rank = 0, .world_size = 1};
    uint64_t attempt;
    job.num_tensors = (uint32_t)((mib << 20) / TENSOR_BYTES);
    BENCH_TRY(job.num_tensors == 0 || job.num_tensors > TENSORS_MAX, "MIB is 64 to 16384");
    for (uint32_t i = 0; i < job.num_tensors; i++) {
        snprintf(job.names[i], sizeof job.names[i], "tensor.%u", i);
        job.tensors[i] = (struct ckpt_tensor){.name = job.names[i],
                                              .dtype = "F32",
                                              .dims = 2,
                                              .shape = {4096, 4096},
                                              .extent = {4096, 4096},
                                              .data = aligned_alloc(4096, TENSOR_BYTES)};
        BENCH_TRY(job.tensors[i].data == NULL, "out of memory");
        memset(job.tensors[i].data, (int)i + 1, TENSOR_BYTES);
    }
    BENCH_TRY(ckpt_open(&job.ckpt, &options), ckpt_error());
    BENCH_TRY(ckpt_attempt_open(job.ckpt, &attempt, NULL, NULL), ckpt_error());
    BENCH_TRY(ckpt_describe(job.ckpt, attempt, job.tensors, job.num_tensors), ckpt_error());
}

/* Until it is committed; polls, and waits only when the measurement is over. */
static void see_to_commit(void)
{
    for (;;) {
        bool hurry = !atomic_load(&job.saving);
        int error = ckpt_save_wait(job.ckpt, job.step, hurry ? 300000 : 0);
        if (error == 0)
            return;
        BENCH_TRY(hurry || error != CKPT_TIMEOUT, ckpt_error());
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

static void *save_always(void *unused)
{
    (void)unused;
    while (atomic_load(&job.saving)) {
        struct ckpt_save *save;
        ((float *)job.tensors[0].data)[0] = (float)++job.step;
        job.begun_at = bench_seconds();
        BENCH_TRY(ckpt_save_begin(job.ckpt, &save, job.step, "{}"), ckpt_error());
        atomic_store(&job.begun, true);
        for (uint32_t i = 0; i < job.num_tensors; i++)
            BENCH_TRY(ckpt_save_copy(save, i), ckpt_error());
        BENCH_TRY(ckpt_save_end(save), ckpt_error());
        see_to_commit();
        if (!atomic_load(&job.saving))
            break;
        job.saves++;
        job.save_seconds = bench_seconds() - job.begun_at;
    }
    return NULL;
}

/* ---- commands ---- */

static void answer(double saves)
{
    printf("{\"memory\": %.6f, \"compute\": %.6f, \"saves\": %.2f}\n", job.memory_seconds,
           job.compute_seconds, saves);
    fflush(stdout);
}

static void measure_saving(uint32_t steps)
{
    pthread_t saver;
    atomic_store(&job.saving, true);
    atomic_store(&job.begun, false);
    job.saves = 0;
    BENCH_TRY(pthread_create(&saver, NULL, save_always, NULL), "pthread_create");
    while (!atomic_load(&job.begun))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    compute(steps);
    double ended = bench_seconds();
    atomic_store(&job.saving, false);
    pthread_join(saver, NULL);
    double part = job.save_seconds > 0 ? (ended - job.begun_at) / job.save_seconds : 0;
    answer(job.saves + (part < 1 ? part : 1));
}

int main(int argc, char **argv)
{
    char line[64], word[16];
    uint32_t steps;
    BENCH_TRY(argc != 5, "usage: manners SERVER RUN MIB THREADS");
    job.num_threads = (uint32_t)strtoul(argv[4], NULL, 10);
    BENCH_TRY(job.num_threads == 0 || job.num_threads > THREADS_MAX, "THREADS is 1 to 256");
    open_state(argv[1], argv[2], strtoull(argv[3], NULL, 10));
    pthread_barrier_init(&job.barrier, NULL, job.num_threads);
    for (uint32_t i = 0; i < job.num_threads; i++)
        new_worker(&job.workers[i]);
    calibrate();
    while (fgets(line, sizeof line, stdin) != NULL) {
        BENCH_TRY(sscanf(line, "%15s %u", word, &steps) != 2, "a command is a word and a number");
        if (strcmp(word, "saving") == 0) {
            measure_saving(steps);
        } else {
            BENCH_TRY(strcmp(word, "alone") != 0, "unknown command on stdin");
            compute(steps);
            answer(0);
        }
    }
    ckpt_close(job.ckpt);
    return 0;
}
