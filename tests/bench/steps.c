/* steps.c - training steps of two configurations in one process, in turns.
 *
 *     steps OPTION... -- OPTION...
 *
 * The options are the trainer's. Command on stdin: `step`, answered with {"a", "b"}: the times of a
 * step of either. `cpu`: seconds of all threads of the process, in which nothing else runs
 * meanwhile; `wall`; `compute`: CPU seconds of the threads in forwards, losses and backwards;
 * `leaves`: per leaf those in the exchange and the folds, on all ranks. Tokens are all 0. Kernels
 * have one thread per rank; otherwise their work is not charged to the caller.
 *
 * In turns within a process: both sides have the same memory, code and clock rate, and other
 * processes on the machine affect both. CPU seconds do not include waits for a core. */
#include "tests/bench/bench.h"

#include "proto/base/report.h"
#include "trainer/config/config.h"
#include "trainer/model/shape.h"
#include "trainer/parallel/execution.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define RANKS_MAX 16
#define LEAVES_MAX 256

/* CPU seconds of a rank's threads in its operations. */
struct spent {
    double compute, leaves[LEAVES_MAX];
    double begin[NUM_LANES]; /* of the operation that a lane is at */
};

struct side {
    struct config config;
    pthread_t thread;
    pthread_barrier_t gate; /* of its ranks and main(): before a step, and after it */
    bool is_over;
    struct spent spent[RANKS_MAX];
    uint32_t num_leaves; /* of a rank */
};

static void note_op(void *user, const struct op *op, uint32_t index, struct lane *lane, bool is_end)
{
    struct spent *spent = user;
    double now = bench_clock(CLOCK_THREAD_CPUTIME_ID), *begin = &spent->begin[op->lane];
    (void)index, (void)lane;
    if (!is_end) {
        *begin = now;
        return;
    }
    bool is_compute = op->kind == OP_FORWARD || op->kind == OP_LOSS || op->kind == OP_RECOMPUTE ||
                      op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_INPUT ||
                      op->kind == OP_BACKWARD_WEIGHT;
    if (is_compute)
        spent->compute += now - *begin;
    if (op->kind == OP_EXCHANGE)
        spent->leaves[op->leaf] += now - *begin;
}

static int make_steps(struct side *side, struct parallel *p, struct spent *spent)
{
    struct step_input input = {.step = 1};
    struct step_result result;
    side->num_leaves = leaves_micro_steps(&p->exchange.leaves);
    BENCH_TRY(leaves_micro_steps(&p->exchange.leaves) > LEAVES_MAX, "too many leaves");
    parallel_init_state(p, 3);
    parallel_observe(p, &(struct op_observer){note_op, spent});
    for (int rc = 0;; input.step++) {
        pthread_barrier_wait(&side->gate);
        if (side->is_over)
            return 0;
        memset(spent, 0, sizeof *spent);
        rc = parallel_step(p, &input, &result);
        if (rc != 0)
            return rc;
        pthread_barrier_wait(&side->gate);
    }
}

static int run_rank(struct comm *world, void *user)
{
    struct side *side = user;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    struct model_shape shape;
    BENCH_TRY(world->size > RANKS_MAX, "too many ranks");
    struct kernels_options options = {.num_threads = (uint32_t)side->config.threads,
                                      .isa = side->config.has_isa ? side->config.text.kernels_isa
                                                                  : NULL};
    ERR_TRY(kernels_new(&kernels, &options));
    if (side->config.numerics >= CONFIG_NUMERICS_CHAINED &&
        side->config.mixed_precision_param == DTYPE_FLOAT32)
        ERR_TRY(kernels_chain_products(kernels));
    ERR_TRY(shape_of_settings(&shape, &side->config, 0));
    ERR_TRY(model_table_new(&table, &shape));
    ERR_TRY(
        parallel_apply(&p, &(struct parallel_options){&side->config, table, kernels, world, NULL}));
    int rc = make_steps(side, p, &side->spent[world->rank]);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    return rc;
}

static void *run_side(void *user)
{
    struct side *side = user;
    BENCH_TRY(comm_local_run((uint32_t)side->config.comm_ranks, run_rank, side), report_line());
    return NULL;
}

static void print_step(struct side *side, const char *name)
{
    double cpu = bench_clock(CLOCK_PROCESS_CPUTIME_ID), wall = bench_seconds(), compute = 0;
    pthread_barrier_wait(&side->gate);
    pthread_barrier_wait(&side->gate);
    cpu = bench_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    wall = bench_seconds() - wall;
    for (int64_t r = 0; r < side->config.comm_ranks; r++)
        compute += side->spent[r].compute;
    printf("\"%s\": {\"cpu\": %.6f, \"wall\": %.6f, \"compute\": %.6f, \"leaves\": [", name, cpu,
           wall, compute);
    for (uint32_t leaf = 0; leaf < side->num_leaves; leaf++) {
        double seconds = 0;
        for (int64_t r = 0; r < side->config.comm_ranks; r++)
            seconds += side->spent[r].leaves[leaf];
        printf("%s%.6f", leaf > 0 ? ", " : "", seconds);
    }
    printf("]}");
}

static void open_side(struct side *side, int argc, char **argv)
{
    BENCH_TRY(trainer_config_load(&side->config, argc, argv), report_line());
    BENCH_TRY(pthread_barrier_init(&side->gate, NULL, (unsigned)side->config.comm_ranks + 1),
              "no barrier");
    BENCH_TRY(pthread_create(&side->thread, NULL, run_side, side), "no thread");
}

int main(int argc, char **argv)
{
    static struct side sides[2];
    char command[16];
    int middle = 1, first = 0; /* the side that begins alternates */
    while (middle < argc && strcmp(argv[middle], "--") != 0)
        middle++;
    BENCH_TRY(middle == argc, "usage: steps OPTION... -- OPTION...");
    open_side(&sides[0], middle, argv);
    open_side(&sides[1], argc - middle, argv + middle);
    while (scanf("%15s", command) == 1 && strcmp(command, "step") == 0) {
        printf("{");
        print_step(&sides[first], first == 0 ? "a" : "b");
        printf(", ");
        print_step(&sides[1 - first], first == 0 ? "b" : "a");
        printf("}\n");
        first = 1 - first;
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++) {
        sides[i].is_over = true;
        pthread_barrier_wait(&sides[i].gate);
        pthread_join(sides[i].thread, NULL);
    }
    return 0;
}
