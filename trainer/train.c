/* train.c - the trainer: load, step, save, log, stop.
 *
 * One process per rank under mpirun (comm.backend mpi), or one thread per rank (local). On SIGTERM,
 * SIGINT, SIGHUP and SIGUSR1 the trainer saves and ends: it finishes the step in progress when the
 * last micro-step has begun, and drops it otherwise. A start that does not save (a finished or
 * refused run, checkpoint.load_only, --replay, debug.logits_file) takes no attempt, so it never
 * ends a start that trains. ../README.md lists the exit codes. */
#include "proto/base/report.h"
#include "trainer/preflight/links.h"
#include "trainer/preflight/preflight.h"
#include "trainer/run/introduce.h"
#include "trainer/run/ranks.h"
#include "trainer/run/replay.h"
#include "trainer/run/start.h"
#include "trainer/run/train_step.h"

#include <inttypes.h>

static bool save_is_due(const struct config *config, int64_t step, unsigned seen)
{
    return (config->interval_type == INTERVAL_STEPS && step % config->interval == 0) ||
           (seen & SWITCH_SAVE) || (config->first_step_checkpoint && step == 1);
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

/* Trains until the last step, or until a signal or a switch asks to stop. *out_seen: the switches
 * seen in the last step. */
static int train_steps(struct rank *r, unsigned *out_seen)
{
    const struct config *config = r->config;
    struct progress *p = &r->progress;
    struct step_result result;
    bool stop = false;
    switches_saved(&r->switches);
    snapshot_phase(r->snapshot, false); /* from the first step on ckptd watches for a hang */
    while (p->step < config->steps && !stop) {
        int64_t before = p->step;
        r->in_step = before + 1;
        uint64_t sample = p->next_sample;
        ERR_TRY(train_step(r, &result, &stop));
        *out_seen = result.seen;
        ERR_TRY(snapshot_copied(r->snapshot)); /* a save's copy overlaps one step at most */
        if (result.is_dropped)
            break;
        if (result.seen & SWITCH_RENEW)
            snapshot_renew(r->snapshot);
        if (p->step <= before) /* the step was undone */
            continue;
        ERR_TRY(train_step_made(r, &result));
        stop = stop || ends_unsaved(config, p->step);
        if (r->world->rank == 0)
            data_warn_of_repeats(r->data, sample, p->next_sample);
        if (config_validates_at(config, p->step) && !stop)
            ERR_TRY(rank_validate(r, &stop));
        if (save_is_due(config, p->step, result.seen) && p->step < config->steps && !stop)
            ERR_TRY(save(r));
        snapshot_poll(r->snapshot);
    }
    r->in_step = 0;
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
    if (r->world->rank == 0)
        switches_log_stop(seen);
    bool saves = !(seen & SWITCH_STOP_UNSAVED) && !ends_unsaved(config, p->step);
    rc = p->step > 0 && saves /* a new start begins with step 0 */
             ? snapshot_save_final(r->snapshot, p)
             : 0;
    rank_log_end(r);
    ERR_TRY(rc);
    bool is_end = p->step >= config->steps || ends_unsaved(config, p->step);
    *out_exit = is_end ? EXIT_DONE : switches_exit_code(seen);
    if (p->step == config->replay_step)
        return replay_compare(r, out_exit);
    return p->step < config->steps || !saves ? 0 : snapshot_export(r->snapshot, p->step);
}

/* True in *out_saves if this start saves. `newest`: the step to load, or -1. */
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

/* A seed checkpoint, logits, or training, as the configuration says. */
static int work(struct rank *r, int *out_exit)
{
    const struct config *config = r->config;
    bool saves = false;
    int64_t newest;
    ERR_TRY(rank_open(r));
    ERR_TRY(snapshot_find_step(r->snapshot, &newest));
    ERR_TRY(introduce_config(r));
    ERR_TRY(check_purpose(r, newest, &saves));
    if (saves)
        ERR_TRY(snapshot_take(r->snapshot));
    ERR_TRY(rank_load(r)); /* also of a finished run: the load verifies its last checkpoint */
    if (config->replay_step > 0)
        ERR_TRY(replay_begin(r));
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
    if (!saves && !config->load_only) { /* its last checkpoint is damaged: continue training */
        ERR_TRY(snapshot_take(r->snapshot));
        ERR_TRY(rank_load(r));
    }
    return train(r, out_exit);
}

int main(int argc, char **argv)
{
    static struct config config;
    static volatile sig_atomic_t stop_requested;
    int exit_code;
    if (!start_prepare(&config, argc, argv, &stop_requested, &exit_code))
        return exit_code;
    return ranks_run(&config, &stop_requested,
                     config.preflight ? preflight
                     : config.links   ? links
                                      : work);
}
