/* clients_drain.c - a ckptd that SIGTERM ends again and again, while all its parts are active.
 *
 * Goal: saves that every rank had copied when SIGTERM came are committed before ckptd ends, with 0
 * and in time. The ranks save again when the next ckptd runs. Retention, the scrub and readers of
 * the directory do not disturb this. No reader finds damage: the checkpoint that it reads is not
 * removed. Method: 3 ranks save without waiting for commits, also for a while after the signal,
 * with retention and a fast scrub; `ckpt-cli verify` runs on the directory all the time. The signal
 * comes at random moments. SEED= repeats them. */
#include "tests/unit/clients_bed.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <fcntl.h>
#include <spawn.h>

#define DRAINS 6
#define SAVES_BETWEEN 6
#define DRAIN_SECONDS_MAX 20

static struct {
    struct bed *bed;
    atomic_bool is_ending, is_over;
    uint64_t accepted; /* the newest step of which rank 0 copied all */
    int saves, drains;
    pthread_t killer;
} plan;

static void *terminate(void *argument)
{
    sleep_ms((long)(uintptr_t)argument);
    kill(plan.bed->ckptd, SIGTERM);
    return NULL;
}

/* Rank 0, when ckptd accepts no more saves: it shuts down properly, and the next one has the
 * accepted saves. */
static int end_and_check(struct group *group, struct ckpt *ckpt, uint32_t rank)
{
    pthread_join(plan.killer, NULL);
    uint64_t began = now_ns();
    int error = -1, status = end_process(&plan.bed->ckptd, SIGTERM);
    if (status != 0 || now_ns() - began > DRAIN_SECONDS_MAX * 1000000000ull)
        return rank_failed(group, "ckptd did not end well", rank);
    start_ckptd(plan.bed);
    for (int i = 0; i < 200 && error != 0; i++) {
        error = ckpt_save_wait(ckpt, plan.accepted, 20000);
        if (error != 0)
            sleep_ms(50);
    }
    if (error != 0)
        return rank_failed(group, "what was accepted is not committed", rank);
    group->commits++;
    plan.saves = 0;
    plan.is_over = ++plan.drains == DRAINS;
    plan.is_ending = false;
    return 0;
}

static int work_through_drains(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                               uint32_t rank)
{
    for (uint64_t step = 1; !plan.is_over; step++) {
        int error = save_together(group, ckpt, tensors, rank, step, false);
        if (rank == 0 && error == 0) {
            plan.accepted = step;
            plan.saves++;
        }
        if (rank == 0 && plan.saves == SAVES_BETWEEN && !plan.is_ending) {
            plan.is_ending = true;
            pthread_create(&plan.killer, NULL, terminate, (void *)(uintptr_t)next_random(30));
        }
        pthread_barrier_wait(&group->barrier);
        if (rank == 0 && plan.is_ending && error == CKPT_UNAVAILABLE)
            plan.is_over = end_and_check(group, ckpt, rank) != 0 || plan.is_over;
        pthread_barrier_wait(&group->barrier);
        sleep_ms(error == 0 ? 1 : 20);
    }
    return 0;
}

/* ---- a reader of the directory ---- */

static struct {
    int count, whole, gone, other; /* runs of ckpt-cli, and how they ended */
} reads;

static void *read_all_the_time(void *argument)
{
    char program[512], run[] = RUN, verify[] = "verify", store[] = "--store", log[300];
    const char *build = getenv("BUILD");
    posix_spawn_file_actions_t actions;
    snprintf(program, sizeof program, "%s/ckpt-cli", build != NULL ? build : "build");
    snprintf(log, sizeof log, "%s/read.log", plan.bed->root);
    char *argv[] = {program, verify, run, store, plan.bed->store, NULL};
    (void)argument;
    while (!plan.is_over) {
        pid_t pid;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
        posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (posix_spawn(&pid, program, &actions, NULL, argv, environ) != 0)
            break;
        posix_spawn_file_actions_destroy(&actions);
        int status = 0;
        waitpid(pid, &status, 0);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        reads.count++;
        reads.whole += code == 0;
        reads.gone += code == 66; /* pruned between its choice and its lease */
        reads.other += code != 0 && code != 66;
    }
    return NULL;
}

BED_TEST(test_ckpt__what_was_accepted_is_committed_before_ckptd_ends)
{
    struct group group = make_group(bed, 3, 8, 0);
    pthread_t reader;
    seed_random();
    configure_ckptd(bed, "[retention]\nkeep_last = 3\nmay_remove_most = true\n"
                         "[limits]\nlast_save_ms = 300\n"
                         "[scrub]\nrate = \"64MiB\"\nperiod_s = 0\nstart_ms = 0\n");
    group.work = work_through_drains;
    plan.bed = bed;
    pthread_create(&reader, NULL, read_all_the_time, NULL);
    int failed = run_group(&group);
    plan.is_over = true;
    pthread_join(reader, NULL);
    print_message("# step %llu, %d drains; %d reads: %d whole, %d gone before their lease\n",
                  (unsigned long long)plan.accepted, plan.drains, reads.count, reads.whole,
                  reads.gone);
    if (reads.other > 0)
        shell("grep -v whole '%s/read.log' | tail -n 20 >&2", bed->root);
    assert_int_equal(failed + reads.other, 0);
    assert_int_equal(plan.drains, DRAINS);
    assert_true(reads.whole > 0);
    struct group loaded = load_world(bed, 2, 9, 0);
    assert_true(loaded.loaded_step >= plan.accepted);
}

SUITE(NULL, NULL)
