/* replay.c - repeats a step and compares its results (see replay.h). */
#include "trainer/run/replay.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_same(double a, double b)
{
    a = breaks_without_sign(a);
    b = breaks_without_sign(b);
    return memcmp(&a, &b, sizeof(a)) == 0;
}

/* Returns false and logs the difference if the values differ. */
static bool compare(int64_t step, const char *what, double then, double now)
{
    if (is_same(then, now))
        return true;
    log_error("replay", "differs: step %" PRId64 ": %s %a (%.9g) then, %a (%.9g) now", step, what,
              then, then, now, now);
    return false;
}

static void explain(const struct rank *r)
{
    uint64_t then = r->recorded.tokens_digest, now = r->progress.tokens_digest;
    if (then != 0 && then != now) {
        log_error("replay",
                  "step %" PRId64 " had other tokens: digest %016" PRIx64 " then, %016" PRIx64
                  " now: the data were changed",
                  r->progress.step, then, now);
        return;
    }
    log_error("replay", "%s",
              r->config->reduction == REDUCTION_FAST
                  ? "training.reduction = \"fast\" does not promise the same bits on another mesh"
                  : "see the lines of \"checkpoint\" above for a setting, a library or a version "
                    "that was different when the checkpoint was made. If there is none, a core, a "
                    "GPU or memory computed wrong, then or now: repeat the step on other hosts, "
                    "and check them with --preflight");
}

/* A run that took the whole state of another one begins after a later step than 0. */
static int check_start(const struct rank *r)
{
    if (r->loaded_step < r->config->replay_step)
        return 0;
    return report_error(ERR_NOT_FOUND, "replay it in that run",
                        "run %s began with step %" PRId64
                        " of checkpoint.initial_load_path = \"%s\"",
                        r->config->run, r->loaded_step, r->config->initial_load_path);
}

int replay_begin(struct rank *r)
{
    struct jumps *jumps = &r->progress.jumps;
    bool is_first = r->world->rank == 0;
    ERR_TRY(parallel_agree(r->world, is_first ? check_start(r) : 0));
    int rc = is_first ? snapshot_recorded(r->snapshot, r->loaded_step, &r->recorded) : 0;
    ERR_TRY(parallel_agree(r->world, rc));
    if (is_first)
        *jumps = r->recorded.jumps;
    return comm_broadcast(r->world, jumps, sizeof(*jumps), 0);
}

/* A step that passes a jump was undone, and had no jump before it when it was first made. What was
 * recorded of it later is of the step as it was made again. */
void replay_as_first_made(struct rank *r)
{
    struct progress *p = &r->progress;
    if (jumps_pass(&p->jumps, p->next_sample) == p->next_sample)
        return;
    p->jumps.num = 0; /* the replay makes no other step */
    r->recorded.attempt = 0;
    r->recorded.has_norm = false;
    r->recorded.tokens_digest = 0;
    const struct broken_step *known = broken_find(&r->recorded.broken, p->step + 1, p->next_sample);
    r->undone = known != NULL ? *known : (struct broken_step){.step = 0};
    r->undone.samples = (struct jump){p->next_sample, trainer_config_samples(r->config, p->step)};
    if (r->world->rank == 0)
        log_warn("replay",
                 "step %" PRId64 " was rolled back and made again without samples %" PRIu64
                 " to %" PRIu64 ": it is replayed as it was first made, with them%s%s",
                 p->step + 1, p->next_sample, p->next_sample + r->undone.samples.count - 1,
                 known != NULL ? "; " : "", r->undone.why);
}

static bool compare_undone(const struct rank *r)
{
    const struct broken_step *then = &r->undone;
    const struct progress *p = &r->progress;
    double loss = isfinite(p->loss) ? p->loss : (double)NAN;
    double norm = isfinite(p->grad_norm) ? p->grad_norm : (double)NAN;
    return compare(p->step, "loss", then->loss, loss) &&
           compare(p->step, "gradient norm", then->grad_norm, norm);
}

/* Returns false and logs the first difference of the step's own checkpoint. */
static bool compare_checkpoint(const struct rank *r, const struct state_compared *state)
{
    const struct recorded *then = &r->recorded;
    const struct progress *p = &r->progress;
    if (then->has_norm && !compare(p->step, "gradient norm", then->grad_norm, p->grad_norm))
        return false;
    if (state->num_apart == 0)
        return true;
    log_error("replay",
              "differs: step %" PRId64 ": %s is not that of its checkpoint (attempt %" PRId64
              "), %u of its %u tensors differ",
              p->step, state->first_apart, then->attempt, state->num_apart, state->num);
    return false;
}

/* An error that the loaded checkpoint already has gives the same bits. */
static void log_start(const struct rank *r)
{
    char hint[128] = "";
    if (snapshot_times(r->snapshot)->from_attempt == 0) {
        log_info("replay", "the replay began as the run began");
        return;
    }
    if (r->recorded.older_step >= 0)
        snprintf(hint, sizeof(hint),
                 "; --checkpoint.load_step %" PRId64 " compares the steps from there on, too",
                 r->recorded.older_step);
    log_info("replay", "the replay took the checkpoint of step %" PRId64 " as right%s",
             r->loaded_step, hint);
}

static void log_same(const struct rank *r, uint32_t losses, const struct state_compared *state)
{
    const char *norm = r->recorded.has_norm ? ", the gradient norm" : "";
    char rest[96] = "; no checkpoint is known to have the state of this step";
    if (r->undone.step > 0)
        snprintf(rest, sizeof(rest), " and those of the undone step");
    else if (r->undone.samples.count > 0)
        snprintf(rest, sizeof(rest), "; no numbers of the undone step are recorded");
    else if (state->num > 0)
        snprintf(rest, sizeof(rest), ", %u tensors of the checkpoint", state->num);
    log_info("replay", "step %" PRId64 ": the same bits (compared: %u losses%s%s)",
             r->progress.step, losses, norm, rest);
    log_start(r);
}

/* Returns false and logs the first difference. */
static bool compare_losses(const struct rank *r, int64_t last, uint32_t *out_compared)
{
    double was, is;
    *out_compared = 0;
    for (int64_t step = r->loaded_step + 1; step <= last; step++) {
        if (!history_find(&r->recorded.losses, step, &was) || !history_find(&r->history, step, &is))
            continue;
        ++*out_compared;
        if (!compare(step, "loss", was, is))
            return false;
    }
    return true;
}

/* Returns the exit code. Logs the first difference. */
static int compare_recorded(const struct rank *r, const struct state_compared *state)
{
    const struct progress *p = &r->progress;
    bool is_known = r->undone.step > 0;
    uint32_t compared;
    if (!compare_losses(r, r->undone.samples.count > 0 ? p->step - 1 : p->step, &compared))
        return REPLAY_DIFFERS;
    if (is_known ? !compare_undone(r) : !compare_checkpoint(r, state))
        return REPLAY_DIFFERS;
    if (compared == 0 && state->num == 0 && !is_known) {
        log_error("replay",
                  "nothing is compared: no checkpoint of the run has a loss of steps %" PRId64
                  " to %" PRId64,
                  r->loaded_step + 1, p->step);
        return REPLAY_NOTHING;
    }
    log_same(r, compared, state);
    return EXIT_DONE;
}

static int compare_all(const struct rank *r, const struct state_compared *state)
{
    const struct progress *p = &r->progress;
    double loss = breaks_without_sign(p->loss), norm = breaks_without_sign(p->grad_norm);
    log_info("replay", "step %" PRId64 ": loss %a (%.9g), gradient norm %a (%.9g)", p->step, loss,
             loss, norm, norm);
    int result = compare_recorded(r, state);
    if (result == REPLAY_DIFFERS)
        explain(r);
    return result;
}

/* Describes a sample of the step: its number in the run's order, its leaf, its place in the
 * data. */
static void describe(const struct rank *r, const struct progress *next, uint32_t sample,
                     char out[CONFIG_TEXT_MAX])
{
    const struct config *config = r->config;
    uint64_t batch = (uint64_t)config->local_batch_size, of_source;
    uint64_t number = next->next_sample - trainer_config_samples(config, next->step - 1) + sample;
    uint32_t source = data_locate(r->data, number, &of_source);
    uint64_t at = of_source * (uint64_t)config->seq_len;
    snprintf(out, CONFIG_TEXT_MAX,
             "sample %" PRIu64 " of the run (leaf %" PRIu64 "; tokens %" PRIu64 " to %" PRIu64
             " of %s)",
             number, sample / batch, at, at + (uint64_t)config->seq_len,
             data_place(r->data)->sources[source].name);
}

static void log_samples(const struct rank *r, const struct progress *next,
                        const struct step_blame *of)
{
    const struct sample_value *gradient = &of->gradient, *loss = &of->loss;
    char text[CONFIG_TEXT_MAX];
    describe(r, next, gradient->sample, text);
    log_warn("replay",
             "step %" PRId64 ": %s has the largest gradient%s: norm %g at the output of "
             "tok_embeddings, where the samples' median is %g",
             next->step, text, of->is_named ? " of its leaf" : "",
             breaks_without_sign(gradient->value), breaks_without_sign(gradient->median));
    bool is_both = loss->sample == gradient->sample;
    describe(r, next, loss->sample, text);
    log_warn("replay", "step %" PRId64 ": %s has the largest loss%s: %g, the median is %g",
             next->step, is_both ? "it" : text, is_both ? ", too" : "",
             breaks_without_sign(loss->value), breaks_without_sign(loss->median));
}

static void log_module(const struct rank *r, const struct step_blame *of)
{
    const struct blamed_module *module = &of->module;
    if (of->is_named)
        return;
    if (module->name[0] == '\0')
        log_warn("replay",
                 "no module is an outlier: in none the sample is above the mean of all samples");
    else
        log_warn(
            "replay",
            "largest outlier: %s of %s, leaf %u, reaches %.3g, the mean of all samples is %.3g "
            "(rank %u, stage %u)",
            module->what, module->name, of->gradient.sample / (uint32_t)r->config->local_batch_size,
            module->reach, module->mean, module->rank, module->stage);
}

int replay_blame(struct rank *r, const struct progress *next)
{
    struct step_blame blame;
    ERR_TRY(parallel_blame(r->parallel, &blame));
    if (r->world->rank != 0)
        return 0;
    log_module(r, &blame);
    if (blame.gradient.num_finite == 0 && blame.num_samples > 1)
        log_warn("replay",
                 "step %" PRId64 ": no sample is to blame: the gradients of all %u samples are not "
                 "finite",
                 next->step, blame.num_samples);
    else
        log_samples(r, next, &blame);
    return 0;
}

int replay_compare(struct rank *r, int *out_exit)
{
    struct state_compared state = {.num = 0};
    int64_t attempt = r->recorded.attempt, result = EXIT_DONE;
    ERR_TRY(comm_broadcast(r->world, &attempt, sizeof(attempt), 0));
    if (attempt > 0)
        ERR_TRY(snapshot_compare_made(r->snapshot, r->progress.step, attempt, &state));
    if (r->world->rank == 0)
        result = compare_all(r, &state);
    ERR_TRY(comm_broadcast(r->world, &result, sizeof(result), 0));
    *out_exit = (int)result;
    return 0;
}
