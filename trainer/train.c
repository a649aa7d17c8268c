/* train.c - the trainer: load, step, save, log, stop.
 *
 * One process per rank under mpirun (comm.backend mpi), or one thread per rank (comm.backend
 * local). Exit codes: 0 done; 75 stopped early, start it again (a signal, a lost peer, no ckptd);
 * 78 a person must act (configuration, data, another model, a kill switch); 79 the time that this
 * start was given is over. SIGTERM, SIGINT, SIGHUP and SIGUSR1 save and end: the step in progress
 * is finished when its last micro-step has begun, otherwise dropped. A start that does not save (a
 * refused or finished run, checkpoint.load_only, debug.logits_file) takes no attempt, and so ends
 * nobody who trains. */
#include "proto/base/report.h"
#include "trainer/comm/flight_compare.h"
#include "trainer/plan/schedule.h"
#include "trainer/run/links.h"
#include "trainer/run/optimizer.h"
#include "trainer/run/preflight.h"
#include "trainer/run/ranks.h"
#include "trainer/run/signals.h"
#include "trainer/run/timeouts.h"
#include "trainer/run/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t stop_requested;

/* A step under way, and the progress when it is made. */
struct step_made {
    struct rank *r;
    struct progress next;
    bool is_skipped; /* its numbers are not finite: nothing is updated */
};

/* What is to be done about a step whose loss or norm is not finite. */
static int decide_break(struct step_made *made)
{
    struct step_break at;
    ERR_TRY(parallel_find_break(made->r->parallel, &at));
    ERR_TRY(breaks_decide(&made->r->breaks, &made->next, &at));
    made->is_skipped = true;
    return 0;
}

/* When loss and norm are known. */
static int decide(void *user, const struct step_result *result)
{
    struct step_made *made = user;
    struct rank *r = made->r;
    struct progress *next = &made->next;
    const struct config *config = r->config;
    double lr = schedule_lr(config, next->schedule_update);
    uint64_t samples = trainer_config_leaves(config, next->step);
    samples *= (uint64_t)config->local_batch_size;
    next->step++;
    next->schedule_update++;
    next->next_sample += samples;
    next->tokens += samples * (uint64_t)config->seq_len;
    next->loss = result->loss;
    next->grad_norm = result->grad_norm;
    if (!breaks_is_finite(&r->breaks, next))
        return decide_break(made);
    next->optimizer_update++;
    snapshot_phase(r->snapshot, true); /* the update is as fast as memory is */
    optimizer_begin(parallel_state(r->parallel), parallel_lane(r->parallel), config,
                    &(struct optimizer_step){next->optimizer_update, lr, next->grad_norm});
    return 0;
}

static void update(void *user, uint32_t block)
{
    const struct step_made *made = user;
    struct rank *r = made->r;
    if (!made->is_skipped)
        optimizer_update(parallel_state(r->parallel), r->kernels, parallel_lane(r->parallel),
                         block);
}

static bool post_copy(void *user, uint32_t block, const struct op *op)
{
    return snapshot_post_copy(user, block, op);
}

static void wait_copy(void *user, uint32_t block, struct lane *lane)
{
    snapshot_wait_copy(user, block, lane);
}

static unsigned look(void *user)
{
    const struct step_made *made = user;
    struct switches *switches = &made->r->switches;
    unsigned seen = snapshot_asked(made->r->snapshot);
    seen |= switches_memory_is_short(switches) ? SWITCH_MEMORY : 0;
    if (made->r->world->rank == 0)
        seen |= switches_look(switches, snapshot_times(made->r->snapshot)->longest_save_seconds);
    return seen;
}

/* The progress counts a step only when it is made: not when it is dropped because some rank was
 * asked to stop. */
static int step(struct rank *r, struct step_result *out, bool *out_stop)
{
    struct step_made made = {.r = r, .next = r->progress};
    struct step_copies copies = {post_copy, wait_copy, r->snapshot};
    struct step_input input = {.ahead = r->ahead,
                               .first_sample = r->progress.next_sample,
                               .step = r->progress.step + 1,
                               .want_stop = &stop_requested,
                               .look = look,
                               .decide = decide,
                               .update = update,
                               .user = &made,
                               .copies = &copies};
    timeouts_set(r->world->flight, r->config, r->has_stepped ? PATIENCE_TRAIN : PATIENCE_INIT);
    if (r->world->flight != NULL)
        flight_clear_sums(r->world->flight);
    int rc = trace_step(r->trace, r->parallel, &input, out);
    timeouts_set(r->world->flight, r->config, PATIENCE_SERVER);
    r->has_stepped = true;
    snapshot_phase(r->snapshot, false);
    ERR_TRY(rc);
    *out_stop = out->stop || (out->seen & SWITCHES_STOP);
    if (out->is_dropped)
        return 0;
    parallel_params_updated(r->parallel);
    r->progress = made.next;
    return 0;
}

static bool save_is_due(const struct config *config, int64_t step, unsigned seen)
{
    return (config->interval_type == INTERVAL_STEPS && step % config->interval == 0) ||
           (seen & SWITCH_SAVE) || (config->first_step_checkpoint && step == 1);
}

static bool validation_is_due(const struct config *config, int64_t step)
{
    return config->validation_enable && (step == 1 || step % config->validation_freq == 0);
}

static int validate(struct rank *r, bool *out_stop)
{
    timeouts_set(r->world->flight, r->config, PATIENCE_TRAIN);
    int rc = rank_validate(r, &stop_requested, out_stop);
    timeouts_set(r->world->flight, r->config, PATIENCE_SERVER);
    return rc;
}

static int save(struct rank *r)
{
    switches_saved(&r->switches);
    return snapshot_save(r->snapshot, &r->progress);
}

static bool ends_unsaved(const struct config *config, int64_t step)
{
    return config->stop_after_step > 0 && step >= config->stop_after_step;
}

/* Steps, until the last one or until somebody or something asks to stop. *out_seen: the switches
 * behind the last step. */
static int train_steps(struct rank *r, unsigned *out_seen)
{
    const struct config *config = r->config;
    struct progress *p = &r->progress;
    struct step_result result;
    bool stop = false;
    switches_saved(&r->switches);
    snapshot_phase(r->snapshot, false); /* a first step that never ends is seen, too */
    while (p->step < config->steps && !stop) {
        int64_t before = p->step;
        uint64_t sample = p->next_sample;
        ERR_TRY(step(r, &result, &stop));
        *out_seen = result.seen;
        ERR_TRY(snapshot_copied(r->snapshot)); /* a save's copy overlaps one step at most */
        if (p->step == before)
            break;
        metrics_step(r->metrics, p, &result, snapshot_times(r->snapshot));
        stop = stop || ends_unsaved(config, p->step);
        if (r->world->rank == 0)
            data_warn_of_repeats(r->data, sample, p->next_sample);
        if (validation_is_due(config, p->step) && !stop)
            ERR_TRY(validate(r, &stop));
        if (save_is_due(config, p->step, result.seen) && p->step < config->steps && !stop)
            ERR_TRY(save(r));
        snapshot_poll(r->snapshot);
    }
    return 0;
}

static int train(struct rank *r, int *out_exit)
{
    const struct config *config = r->config;
    struct progress *p = &r->progress;
    unsigned seen = 0;
    int rc = train_steps(r, &seen);
    if (rc != 0 && !snapshot_must_stop(r->snapshot))
        return rc;
    if (rc != 0 && r->world->rank == 0)
        log_warn("train", "a save failed, and checkpoint.required is set: the run ends");
    if (r->world->rank == 0 && (seen & (SWITCH_STOP | SWITCH_STOP_UNSAVED)))
        log_warn("train", "ckptd was asked to stop the run%s; `ckpt-cli history` says by whom",
                 seen & SWITCH_STOP_UNSAVED ? " without a save" : "");
    bool saves = !(seen & SWITCH_STOP_UNSAVED) && !ends_unsaved(config, p->step);
    if (p->step > 0 && saves) /* before, there is nothing that a new start would not have */
        ERR_TRY(snapshot_save_final(r->snapshot, p));
    if (r->world->rank == 0)
        log_info("train", "%s after step %" PRId64, p->step < config->steps ? "stopped" : "done",
                 p->step);
    bool is_end = p->step >= config->steps || ends_unsaved(config, p->step);
    *out_exit = is_end ? EXIT_DONE : switches_exit_code(seen);
    return p->step < config->steps || !saves ? 0 : snapshot_export(r->snapshot, p->step);
}

/* Must this start save? One that only reads takes nothing from one that trains. `newest`: the step
 * that would be loaded, or -1. */
static int check_purpose(const struct rank *r, int64_t newest, bool *out_saves)
{
    const struct config *config = r->config;
    *out_saves = config->logits_file[0] == 0 && !config->load_only && newest < config->steps;
    if (!config->create_seed_checkpoint || newest <= 0)
        return 0;
    int rc = report_error(ERR_EXISTS, "give job.run another name",
                          "a seed checkpoint cannot be made: the run is at step %" PRId64, newest);
    return parallel_agree(r->world, rc);
}

/* What the configuration asks for: seed checkpoint, logits, or training. */
static int work(struct rank *r, int *out_exit)
{
    const struct config *config = r->config;
    bool saves = false;
    int64_t newest;
    ERR_TRY(rank_open(r));
    timeouts_set(r->world->flight, config, PATIENCE_SERVER);
    ERR_TRY(snapshot_look(r->snapshot, &newest));
    ERR_TRY(rank_show_config(r));
    ERR_TRY(check_purpose(r, newest, &saves));
    if (saves)
        ERR_TRY(snapshot_take(r->snapshot));
    ERR_TRY(rank_load(r)); /* also the proof that what a finished run saved is whole */
    if (config->logits_file[0] != 0)
        return rank_write_logits(r);
    if (config->create_seed_checkpoint)
        return snapshot_save_final(r->snapshot, &r->progress);
    if (r->progress.step >= config->steps) {
        if (r->world->rank == 0)
            log_info("train", "the run is finished: step %" PRId64 " of %" PRId64 " is saved",
                     r->progress.step, config->steps);
        return snapshot_export(r->snapshot, r->progress.step);
    }
    if (!saves && !config->load_only) { /* it is not: its last checkpoint is damaged */
        ERR_TRY(snapshot_take(r->snapshot));
        ERR_TRY(rank_load(r));
    }
    return train(r, out_exit);
}

/* trainer --flight FOLDER [PREFIX]: of dumps, after a run hung. */
static int compare_dumps(int argc, char **argv)
{
    int rc = flight_compare(argv[2], argc > 3 ? argv[3] : "rank_", stdout);
    if (rc != 0)
        log_error("train", "%s", report_line());
    return rc == 0 ? EXIT_DONE : EXIT_DO_NOT_RETRY;
}

int main(int argc, char **argv)
{
    static struct config config;
    char name[CONFIG_NAME_MAX];
    if (report_print_version("trainer", argc, argv))
        return EXIT_DONE;
    log_setup("trainer", getenv("HOLDFAST_LOG"));
    if (config_name_process(name))
        log_set_origin(name);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            trainer_config_print_help();
            return EXIT_DONE;
        }
    }
    if (argc > 2 && strcmp(argv[1], "--flight") == 0)
        return compare_dumps(argc, argv);
    int rc = trainer_config_load(&config, argc, argv);
    if (rc == 0 && config.estimate)
        rc = rank_estimate(&config);
    if (rc != 0)
        log_error("train", "%s", report_line());
    if (rc != 0 || config.estimate)
        return rc == 0 ? EXIT_DONE : EXIT_DO_NOT_RETRY;
    if (switches_is_killed(&config)) {
        if (config_is_first_process())
            log_warn("train", "the kill switch %s is there: nothing is started",
                     config.kill_switch);
        return EXIT_DO_NOT_RETRY;
    }
    if (signals_start(&stop_requested) != 0) {
        log_error("train", "%s", report_line());
        return EXIT_RUN_AGAIN;
    }
    return ranks_run(&config, &stop_requested,
                     config.preflight ? preflight
                     : config.links   ? links
                                      : work);
}
