/* clients_kill.c - kills on either side of libckpt and ckptd.
 *
 * Goal: a ckptd that is killed or stopped costs saves, but neither a checkpoint, nor a load, nor
 * the training: ranks are not held up, and when it is back they save again. Method: ckptd is killed
 * under ranks that save in lockstep (clients_bed.h). This program is also the trainer that kills.py
 * and check_crowd.py kill ("resume"): it loses no committed checkpoint. */
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

/* ---- the trainer of the scripts ---- */

/* Saves step after step, prints each that is committed, until it is killed. */
static int work_until_killed(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                             uint32_t rank)
{
    for (uint64_t step = group->step;; step++) {
        struct ckpt_save *save;
        pthread_barrier_wait(&group->barrier);
        int error;
        while ((error = ckpt_save_begin(ckpt, &save, step, rank == 0 ? "{\"mark\":1}" : NULL)) ==
               CKPT_BUSY)
            sleep_ms(1);
        if (error != 0 || copy_all(save, tensors, step) != 0)
            return rank_failed(group, "save", rank);
        if (step % 3 == 0 && ckpt_save_wait(ckpt, step, 30000) != 0)
            return rank_failed(group, "wait", rank);
        if (step % 3 == 0 && rank == 0) {
            printf("%llu\n", (unsigned long long)step);
            fflush(stdout);
        }
    }
}

/* A restarted trainer: loads the newest checkpoint, checks every byte, prints its step, and
 * continues from there. */
static int work_from_newest(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                            uint32_t rank)
{
    if (work_load(group, ckpt, tensors, rank) != 0 || group->failures > 0)
        return rank_failed(group, "what it loaded", rank);
    if (rank == 0) {
        printf("loaded %llu\n", (unsigned long long)group->loaded_step);
        fflush(stdout);
        group->step = group->loaded_step + 1;
    }
    pthread_barrier_wait(&group->barrier);
    return work_until_killed(group, ckpt, tensors, rank);
}

/* "resume SERVER WORLD SEED", for tests/integration/kills.py and check_crowd.py. */
static int resume_main(char **argv)
{
    struct group group = {.server = argv[2],
                          .world = (uint32_t)atoi(argv[3]),
                          .seed = (uint64_t)atoll(argv[4]),
                          .work = work_from_newest};
    return run_group(&group) == 0 ? 0 : 1;
}

/* ---- ckptd is killed, or stopped ---- */

#define LOAD_KILLS_MAX 40
#define LOADS_ACROSS 3 /* that must have continued across a restart */
#define DOWN_MS 100

static struct {
    struct bed *bed;
    atomic_bool is_over;
    atomic_int across, all;
} loading;

/* Loads again and again. A load that takes longer than ckptd was down has met the restart. */
static int work_load_for_ever(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                              uint32_t rank)
{
    const struct ckpt_load_options options = {.step = 1};
    while (!loading.is_over) {
        struct ckpt_loaded *loaded;
        uint64_t begin = now_ns();
        int error = ckpt_load(ckpt, &options, &loaded);
        if (error == CKPT_UNAVAILABLE && strstr(ckpt_error(), "OpenLoad") != NULL) {
            sleep_ms(5); /* it was not open yet */
            continue;
        }
        if (error != 0) {
            loading.is_over = true;
            return rank_failed(group, "load", rank);
        }
        if (now_ns() - begin > DOWN_MS * 1000000ull) {
            check_values(group, tensors, loaded->info.step, rank);
            loading.across++;
        }
        loading.all++;
        ckpt_loaded_free(loaded);
    }
    return 0;
}

/* Until the rank is connected again. */
static void wait_for_loads(void)
{
    int before = loading.all;
    while (loading.all < before + 2 && !loading.is_over)
        sleep_ms(1);
}

static void *kill_under_loads(void *argument)
{
    uint64_t random = 5;
    (void)argument;
    wait_for_loads();
    for (int kill = 0; kill < LOAD_KILLS_MAX && loading.across < LOADS_ACROSS; kill++) {
        sleep_ms((long)draw(&random, 5));
        end_process(&loading.bed->ckptd, SIGKILL);
        sleep_ms(DOWN_MS);
        start_ckptd(loading.bed);
        wait_for_loads();
    }
    loading.is_over = true;
    return NULL;
}

BED_TEST(test_ckpt__a_load_goes_on_when_ckptd_is_killed_and_started_again)
{
    pthread_t killer;
    loading.bed = bed;
    save_world(loading.bed, 5, 3, 1);
    struct group group = make_group(loading.bed, 1, 9, 1);
    group.work = work_load_for_ever;
    assert_int_equal(pthread_create(&killer, NULL, kill_under_loads, NULL), 0);
    assert_int_equal(run_group(&group), 0);
    pthread_join(killer, NULL);
    assert_int_equal(group.failures, 0);
    assert_true(loading.across >= LOADS_ACROSS);
}

#define KILLS 6
#define COMMITS_BETWEEN 4   /* after a restart, before the next kill */
#define ALL_SECONDS_MAX 150 /* for all of it, on a busy machine */

/* Shared by the ranks and the killer. */
static struct {
    struct bed *bed;
    atomic_bool is_killing; /* from the decision until ckptd is started again */
    atomic_bool is_over;
    int kills, commits; /* rank 0's; commits since the last restart */
} kill_plan;

static void *kill_and_restart(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument;
    sleep_ms((long)draw(&random, 15));
    end_process(&kill_plan.bed->ckptd, SIGKILL);
    sleep_ms(100 + (long)draw(&random, 300));
    start_ckptd(kill_plan.bed);
    kill_plan.is_killing = false;
    return NULL;
}

/* Rank 0, after every step: decides whether to kill ckptd now, and whether it was enough. */
static void plan_kill(struct group *group, uint64_t step, int error)
{
    pthread_t killer;
    *(error == 0 ? &group->commits : &group->losses) += 1;
    if (error == 0)
        group->loaded_step = step;
    if (kill_plan.is_killing || error != 0 || ++kill_plan.commits < COMMITS_BETWEEN)
        return;
    kill_plan.commits = 0;
    kill_plan.is_over = kill_plan.kills == KILLS;
    if (kill_plan.is_over)
        return;
    kill_plan.kills++;
    kill_plan.is_killing = true;
    pthread_create(&killer, NULL, kill_and_restart, (void *)(uintptr_t)step);
    pthread_detach(killer);
}

static int work_through_kills(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                              uint32_t rank)
{
    uint64_t end = now_ns() + ALL_SECONDS_MAX * 1000000000ull;
    for (uint64_t step = 1;; step++) {
        int error = save_together(group, ckpt, tensors, rank, step, true);
        if (rank == 0)
            plan_kill(group, step, error);
        if (rank == 0 && now_ns() > end)
            kill_plan.is_over = true;
        pthread_barrier_wait(&group->barrier);
        if (kill_plan.is_over)
            break;
        sleep_ms(error == 0 ? 1 : 50);
    }
    while (kill_plan.is_killing)
        sleep_ms(10);
    return 0;
}

BED_TEST(test_ckpt__a_killed_ckptd_costs_saves_but_not_the_training)
{
    struct group group = make_group(bed, 3, 8, 0);
    group.work = work_through_kills;
    kill_plan.bed = bed;
    assert_int_equal(run_group(&group), 0);
    fprintf(stderr, "# %u commits, %u saves lost, longest begin %llu ms\n", group.commits,
            group.losses, (unsigned long long)(group.begin_ns_max / 1000000));
    assert_int_equal(kill_plan.kills,
                     KILLS); /* and after each of them saves were committed again */
    assert_int_equal(kill_plan.commits, 0);
    assert_true(group.losses > 0);
    assert_true(group.begin_ns_max < 5000000000ull);
    struct group loaded = load_world(bed, 2, 9, 0);
    assert_int_equal(loaded.loaded_step, group.loaded_step);
}

#define TRY_NS_MAX 1000000000ull
#define PAUSE_NS_MIN 500000000ull
#define FOUND_NS_MAX 20000000000ull /* behind the pause, which is so many times the try: */
#define PAUSE_TRIES 200u

static int renew_until_found(struct ckpt *ckpt, uint64_t try_ns)
{
    uint64_t end = now_ns() + PAUSE_TRIES * try_ns + FOUND_NS_MAX;
    int error = CKPT_UNAVAILABLE;
    while (error != 0 && now_ns() < end) {
        error = ckpt_is_lost(ckpt) ? ckpt_renew(ckpt) : error;
        sleep_ms(error != 0 ? 5 : 0);
    }
    return error;
}

/* Loses ckptd between two saves, and finds it again before the second. */
static int find_again(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                      uint32_t rank)
{
    if (ckpt_is_lost(ckpt) || save_together(group, ckpt, tensors, rank, 1, true) != 0)
        return rank_failed(group, "the save before", rank);
    end_process(&kill_plan.bed->ckptd, SIGKILL);
    uint64_t began = now_ns();
    bool is_lost = ckpt_is_lost(ckpt) && ckpt_renew(ckpt) == CKPT_UNAVAILABLE;
    uint64_t try_ns = now_ns() - began;
    fprintf(stderr, "# a try took %llu us\n", (unsigned long long)(try_ns / 1000));
    if (!is_lost || try_ns > TRY_NS_MAX)
        rank_failed(group, "a try without a ckptd", rank);
    if (ckpt_is_lost(ckpt) && now_ns() - began < PAUSE_NS_MIN)
        rank_failed(group, "the pause after a try", rank);
    start_ckptd(kill_plan.bed);
    if (renew_until_found(ckpt, try_ns) != 0 || ckpt_is_lost(ckpt) || ckpt_renew(ckpt) != 0)
        rank_failed(group, "ckptd is back", rank);
    struct ckpt_save *save;
    if (ckpt_save_begin(ckpt, &save, 2, "{}") != 0)
        return rank_failed(group, "the save after", rank);
    if (ckpt_renew(ckpt) != CKPT_INVALID)
        rank_failed(group, "an open save", rank);
    ckpt_save_abort(save);
    return 0;
}

BED_TEST(test_ckpt__a_killed_ckptd_is_found_again_between_two_saves)
{
    struct group group = make_group(bed, 1, 12, 0);
    group.work = find_again;
    kill_plan.bed = bed;
    assert_int_equal(run_group(&group), 0);
}

#define ASK_NS 5000000000ull    /* of asking a stopped ckptd */
#define ASK_WAIT_NS 80000000ull /* a call that took so long has asked ckptd */
#define ASK_WAITS_MAX 4         /* after 0, 1, 3 s, and one that the machine held up */
#define GOES_ON_NS 20000000000ull

static int ask_until_told(struct ckpt *ckpt, uint64_t most_ns)
{
    uint64_t began = now_ns();
    int error;
    while ((error = ckpt_save_wait(ckpt, 1, 0)) == CKPT_TIMEOUT && now_ns() - began < most_ns)
        sleep_ms(20);
    return error;
}

/* Saves once, then asks for its state while ckptd is stopped and when it continues. */
static int ask_while_stopped(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                             uint32_t rank)
{
    int error = save_together(group, ckpt, tensors, rank, 1, true);
    if (error != 0)
        return error;
    if (!stop_ckptd(kill_plan.bed))
        return rank_failed(group, "stopping ckptd", rank);
    uint64_t began = now_ns(), before = began, after = began;
    int waits = 0;
    for (; after - began < ASK_NS; before = after) {
        int asked = ckpt_save_wait(ckpt, 1, 0);
        after = now_ns();
        if (asked != CKPT_TIMEOUT || after - before > 2000000000ull)
            rank_failed(group, "a question to a stopped ckptd", rank);
        waits += after - before > ASK_WAIT_NS;
        sleep_ms(20);
        after = now_ns();
    }
    if (waits == 0 || waits > ASK_WAITS_MAX)
        rank_failed(group, "how often a stopped ckptd is asked", rank);
    kill(kill_plan.bed->ckptd, SIGCONT);
    error = ask_until_told(ckpt, GOES_ON_NS);
    if (error ==
        0) /* ckptd has answered: the next question is asked at once, or after a pause for a miss */
        error = ask_until_told(ckpt, ASK_NS);
    return error == 0 ? 0 : rank_failed(group, "a question to a ckptd that goes on", rank);
}

BED_TEST(test_ckpt__a_stopped_ckptd_does_not_hold_up_a_question)
{
    struct group group = make_group(bed, 1, 12, 0);
    group.work = ask_while_stopped;
    kill_plan.bed = bed;
    assert_int_equal(run_group(&group), 0);
}

#define STOPPED_STEPS 5
#define FIRST_BEGIN_NS_MAX 5000000000ull /* not two deadlines of a call; then it backs off */
#define NEXT_BEGIN_NS_MAX 3000000000ull

/* Steps under a ckptd that is stopped in the middle of a save, and after it continues. */
static int work_through_a_stop(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                               uint32_t rank)
{
    struct ckpt_save *save;
    int error = save_together(group, ckpt, tensors, rank, 1, true);
    if (error == 0)
        error = ckpt_save_begin(ckpt, &save, 2, "{}");
    if (error != 0)
        return rank_failed(group, "the saves before", rank);
    if (!stop_ckptd(kill_plan.bed))
        return rank_failed(group, "stopping ckptd", rank);
    if (copy_all(save, tensors, 2) != 0) /* memory is there, whichever process is stopped */
        rank_failed(group, "the copy under a stopped ckptd", rank);
    for (uint64_t step = 3; step < 3 + STOPPED_STEPS; step++) {
        uint64_t began = now_ns();
        error = ckpt_save_begin(ckpt, &save, step, "{}");
        uint64_t took = now_ns() - began;
        if (error == 0 || took > (step == 3 ? FIRST_BEGIN_NS_MAX : NEXT_BEGIN_NS_MAX)) {
            fprintf(stderr, "# step %llu: error %d after %llu ms\n", (unsigned long long)step,
                    error, (unsigned long long)(took / 1000000));
            rank_failed(group, "a save under a stopped ckptd", rank);
        }
    }
    kill(kill_plan.bed->ckptd, SIGCONT);
    error = CKPT_UNAVAILABLE;
    for (uint64_t step = 100; step < 400 && error != 0; step++) {
        error = save_together(group, ckpt, tensors, rank, step, true);
        group->loaded_step = step;
        sleep_ms(error != 0 ? 100 : 0);
    }
    return error == 0 ? 0 : rank_failed(group, "the saves afterwards", rank);
}

BED_TEST(test_ckpt__a_stopped_ckptd_costs_saves_but_not_the_training)
{
    struct group group = make_group(bed, 1, 13, 0);
    group.work = work_through_a_stop;
    kill_plan.bed = bed;
    assert_int_equal(run_group(&group), 0);
    struct group loaded = load_world(bed, 2, 14, 0);
    assert_int_equal(loaded.loaded_step, group.loaded_step);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "resume") == 0)
        return resume_main(argv);
    return suite_run(NULL, NULL);
}
