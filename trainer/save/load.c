/* load.c - loads the state from the same checkpoint on all ranks (see snapshot.h).
 *
 * Load. Rank 0 asks ckptd for the newest complete checkpoint. All ranks load it and agree on the
 * result. If one rank fails, all go back to the next older checkpoint; the log has the skipped ones
 * with the reason. So ranks never continue from different checkpoints. Moments before the first
 * update are zeros and are not read, even if the checkpoint has them. So training can start from an
 * imported model without moments. The state on devices is compared with the checkpoint's digests
 * (arrived.c). */
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/data/manifest.h"
#include "trainer/record/lineage.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "optimizer,dataloader" */
static bool is_excluded(const struct config *config, const char *part)
{
    size_t length = strlen(part);
    for (const char *at = config->exclude_from_loading; *at != 0;) {
        at += strspn(at, ", ");
        size_t word = strcspn(at, ", ");
        if (word == length && strncmp(at, part, length) == 0)
            return true;
        at += word;
    }
    return false;
}

static int64_t number_in(const json_t *state, const char *section, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(json_object_get(state, section), key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : missing;
}

/* Reads the position in the data from the state. */
static int read_place(struct snapshot *s, struct progress *p, const json_t *state,
                      const struct ckpt_loaded *loaded)
{
    json_t *run_data = json_loads(loaded->data_json, 0, NULL);
    struct data_place place;
    int rc = data_state_read(&place, &p->tokens, state, run_data, p->next_sample);
    json_decref(run_data);
    return rc == 0 ? data_resume(s->of.data, &place, p->next_sample) : rc;
}

/* The lines of the manifest as one text; NULL: no memory. */
static char *choices_text(const json_t *lines)
{
    size_t bytes = 1, at = 0;
    for (size_t i = 0; i < json_array_size(lines); i++)
        bytes += json_string_length(json_array_get(lines, i)) + 1;
    char *text = calloc(1, bytes);
    for (size_t i = 0; i < json_array_size(lines) && text != NULL; i++) {
        const char *line = json_string_value(json_array_get(lines, i));
        if (line != NULL)
            at += (size_t)snprintf(text + at, bytes - at, "%s\n", line);
    }
    return text;
}

/* Uses the recorded algorithms of the run's library again, if it still offers them: so the bits are
 * those of an uninterrupted run. */
static int take_choices(struct snapshot *s, const json_t *state)
{
    struct kernel_choices choices;
    char *text = choices_text(json_object_get(state, "algorithms"));
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the manifest's algorithms");
    kernels_choose(s->kernels, text, &choices);
    free(text);
    if (choices.not_offered > 0 && snapshot_is_rank_0(s))
        log_warn("checkpoint",
                 "%u of %u algorithms of the run's products are not offered by %s: it chooses "
                 "others, its bits may differ from an uninterrupted run's",
                 choices.not_offered, choices.not_offered + choices.taken, s->of.kernels);
    return 0;
}

int snapshot_read_progress(struct snapshot *s, struct progress *p, const struct ckpt_loaded *loaded)
{
    json_t *state = NULL;
    json_error_t reason;
    if (json_read(&state, loaded->state_json, strlen(loaded->state_json), &reason) == ERR_MEMORY)
        return ERR_MEMORY;
    int64_t next_sample = number_in(state, "data", "next_sample", -1);
    if (json_is_true(json_object_get(state, "lost"))) {
        json_decref(state);
        return report_error(ERR_MISMATCH,
                            "start another run from it by checkpoint.initial_load_path, or remove "
                            "it: the run then goes on from an older one",
                            "the state of step %" PRIu64 " is lost: `ckpt-cli repair` made its "
                            "manifest of its shards",
                            loaded->info.step);
    }
    if (next_sample < 0) {
        json_decref(state);
        return report_error(ERR_MISMATCH, "load a checkpoint that the trainer made",
                            "the checkpoint of step %" PRIu64 " has no data position",
                            loaded->info.step);
    }
    p->step = (int64_t)loaded->info.step;
    p->next_sample = is_excluded(s->config, "dataloader") ? 0 : (uint64_t)next_sample;
    p->schedule_update =
        is_excluded(s->config, "lr_scheduler") ? 0 : number_in(state, "schedule", "step", p->step);
    p->optimizer_update =
        is_excluded(s->config, "optimizer") ? 0 : number_in(state, "optimizer", "step", p->step);
    const json_t *metrics = json_object_get(state, "metrics");
    p->loss = json_number_value(json_object_get(metrics, "loss"));
    p->grad_norm = json_number_value(json_object_get(metrics, "grad_norm"));
    if (s->history != NULL)
        history_read(s->history, json_object_get(state, "history"));
    broken_read(&p->broken, json_object_get(state, "broken"));
    int rc = jumps_read(&p->jumps, json_object_get(state, "left_out"));
    if (rc == 0)
        rc = outliers_read(&p->outliers, json_object_get(state, "outlying"));
    if (rc == 0 && !is_excluded(s->config, "dataloader"))
        rc = read_place(s, p, state, loaded);
    if (rc == 0)
        rc = take_choices(s, state);
    json_decref(state);
    return rc;
}

/* Rank 0's choice, for all ranks. */
struct candidate {
    int64_t step, attempt; /* step -1: none */
    bool has_moments;
    int64_t skip; /* samples to leave out after it */
};

static bool state_has_moments(const char *state_json)
{
    json_t *state = json_loads(state_json, 0, NULL);
    bool is_fresh = number_in(state, "optimizer", "step", -1) == 0;
    json_decref(state);
    return !is_fresh;
}

static bool loads_moments(const struct config *config, const struct candidate *candidate)
{
    return candidate->has_moments && !is_excluded(config, "optimizer");
}

/* ERR_MISMATCH: the moments are of another type than this configuration's. */
static int check_moments(const struct config *config, const struct ckpt_loaded *loaded)
{
    json_t *stored = json_loads(loaded->config_json, 0, NULL);
    const json_t *optimizer = json_object_get(stored, "optimizer");
    const char *theirs = json_string_value(json_object_get(optimizer, "moments_dtype"));
    const char *ours = config_dtype_name(config->moments_dtype);
    int rc = 0;
    if (theirs == NULL) /* written before the setting existed */
        theirs = json_is_object(optimizer) ? "float32" : ours;
    if (strcmp(theirs, ours) != 0)
        rc = report_error(ERR_MISMATCH,
                          "give the run's own value, or begin with fresh moments by "
                          "checkpoint.exclude_from_loading = \"optimizer\"",
                          "the checkpoint was made with optimizer.moments_dtype = %s, this "
                          "configuration has %s",
                          theirs, ours);
    json_decref(stored);
    return rc;
}

/* The step that an earlier start of this launcher saved of the run; -1: none. */
static int64_t saved_step(const struct config *config)
{
    const char *path = getenv(SAVED_FILE_VARIABLE);
    FILE *file = path != NULL && path[0] != '\0' ? fopen(path, "r") : NULL;
    char run[CONFIG_TEXT_MAX] = "";
    long long step = 0;
    if (file == NULL)
        return -1;
    bool has_saved = fscanf(file, "%255s %lld", run, &step) == 2 && strcmp(run, config->run) == 0;
    fclose(file);
    return has_saved ? step : -1;
}

/* checkpoint.load_step applies once: later starts of the launcher continue from the step that
 * earlier starts saved, which need not be the run's newest step. */
static int64_t wanted_step(const struct config *config)
{
    int64_t saved = config->load_step >= 0 ? saved_step(config) : -1;
    return saved >= 0 ? saved : config->load_step;
}

void snapshot_log_skipped(const struct ckpt_loaded *loaded)
{
    const char *line = loaded->skipped;
    while (*line != 0) {
        size_t length = strcspn(line, "\n");
        log_warn("checkpoint", "skipped on the way to step %" PRIu64 ": %.*s", loaded->info.step,
                 (int)length, line);
        line += length + (line[length] != 0);
    }
}

/* Sets the arithmetic of the kernels and of checkpoints to that of the run. `numerics` 0: the run
 * has none yet, so it gets the newest that this rank supports. */
static int settle_numerics(struct snapshot *s, int64_t numerics)
{
    bool is_float = s->config->mixed_precision_param == DTYPE_FLOAT32;
    bool wants_chains = is_float && (numerics == 0 || numerics >= CONFIG_NUMERICS_CHAINED);
    bool has_chains = wants_chains && kernels_chain_products(s->kernels) == 0;
    if (numerics == 0)
        numerics = wants_chains && !has_chains ? CONFIG_NUMERICS_CHAINED - 1 : CONFIG_NUMERICS;
    s->config->numerics = numerics;
    if (numerics < CONFIG_NUMERICS_CHAINED || !is_float)
        return 0;
    if (!has_chains)
        return report_error(ERR_INVALID, "set training.numerics = 2, or kernels.isa = auto",
                            "training.numerics = %" PRId64 " has no float32 products by %s",
                            numerics, kernels_describe(s->kernels));
    if (s->identity_json == NULL)
        return 0;
    free(s->identity_json);
    free(s->data_json);
    s->identity_json = s->data_json = NULL;
    return identity_write(&s->identity_json, &s->data_json, &s->of);
}

/* Finds the next checkpoint: the newest complete one below `below` (0: any), or the configured
 * step. Rank 0 asks for no tensors: ckptd returns the manifest's texts. */
static int find_candidate(struct snapshot *s, int64_t below, struct candidate *candidate)
{
    struct ckpt_tensor none = {0};
    struct ckpt_load_options options = {
        .step = wanted_step(s->config), .below_step = below, .tensors = &none};
    struct ckpt_loaded *loaded = NULL;
    int rc = ckpt_load(s->ckpt, &options, &loaded);
    if (rc == ERR_NOT_FOUND && s->config->load_step < 0) {
        candidate->step = -1;
        return 0;
    }
    if (rc != 0)
        return rc;
    *candidate = (struct candidate){.step = (int64_t)loaded->info.step,
                                    .attempt = (int64_t)loaded->info.attempt,
                                    .skip = saved_step(s->config) < 0 ? s->config->skip_samples : 0,
                                    .has_moments = state_has_moments(loaded->state_json)};
    bool is_checked =
        candidate->step == s->checked_step && candidate->attempt == s->checked_attempt;
    if (!is_checked)
        snapshot_log_skipped(loaded);
    int64_t numerics = s->config->numerics;
    rc = settle_numerics(s, numerics != 0 ? numerics : lineage_numerics(loaded));
    if (rc == 0 && !is_checked)
        rc = identity_check(&s->of, s->identity_json, loaded);
    if (rc == 0 && loads_moments(s->config, candidate))
        rc = check_moments(s->config, loaded);
    if (rc == 0)
        rc = identity_take_origin(&s->origin_json, loaded);
    if (rc == 0 && s->attempt == 0) /* later the files are described and must not change */
        rc = folder_files_load(&s->files, s->ckpt, &loaded->info);
    char *orders = NULL;
    struct lineage_data data = {is_excluded(s->config, "dataloader") ? 0 : -1, candidate->skip,
                                data_info(s->of.data)->hash, 0};
    if (rc == 0 && !is_checked)
        rc = lineage_continue(&orders, s->config, loaded, &data);
    if (orders != NULL) {
        free(s->orders_json);
        s->orders_json = orders;
    }
    ckpt_loaded_free(loaded);
    s->checked_step = candidate->step;
    s->checked_attempt = candidate->attempt;
    return rc;
}

/* Fails if there is no checkpoint although an earlier start of this launcher saved one. ckptd may
 * use another store, or its disk is not mounted; the run must not begin at step 0. */
static int check_saved(const struct snapshot *s)
{
    int64_t step = saved_step(s->config);
    if (step < 0)
        return 0;
    return report_error(
        ERR_MISMATCH,
        "check that the store's disk is mounted; to begin anew start the launcher again",
        "run %s has saved step %" PRId64 " since its launcher began, and ckptd at %s has no "
        "checkpoint of it: it does not begin at step 0 again",
        s->config->run, step, s->config->ckptd_address);
}

/* A run with checkpoints of which none can be loaded must not restart by itself. */
static int fail_none_left(const struct snapshot *s, int64_t newest)
{
    return report_error(ERR_CORRUPT,
                        "check it with ckpt-cli verify; to begin anew give job.run another name",
                        "run %s has checkpoints up to step %" PRId64 ", but none can be loaded",
                        s->config->run, newest);
}

/* True if an older checkpoint may help. */
static bool may_help(const struct snapshot *s, const struct candidate *candidate, int rc)
{
    return (rc == ERR_CORRUPT || rc == ERR_IO) && s->config->load_step < 0 && candidate->step > 0;
}

static void warn_of_damage(const struct candidate *candidate, uint32_t rank)
{
    log_warn("checkpoint", "step %" PRId64 " cannot be loaded (rank %u): %s; trying an older one",
             candidate->step, rank, report_line());
}

/* Rank 0: the newest checkpoint whose texts and files can be read; step -1: none. */
static int find_start_candidate(struct snapshot *s, struct candidate *candidate)
{
    int64_t below = s->config->load_below, newest = -1;
    int rc;
    do {
        *candidate = (struct candidate){.step = -1};
        rc = find_candidate(s, below, candidate);
        below = candidate->step;
        newest = newest < 0 ? candidate->step : newest;
        if (may_help(s, candidate, rc))
            warn_of_damage(candidate, 0);
    } while (may_help(s, candidate, rc));
    if (s->config->replay_step > 0) /* it may begin anew: check_beginning() */
        return rc;
    if (rc == 0 && candidate->step < 0)
        rc = newest < 0 ? check_saved(s) : fail_none_left(s, newest);
    return rc == 0 && candidate->step < 0 ? snapshot_check_nameless(s) : rc;
}

static int find_step(struct snapshot *s, int64_t *out_step)
{
    *out_step = -1;
    if (s->ckpt == NULL)
        return 0;
    struct comm *world = s->mesh->world;
    struct candidate candidate = {.step = -1};
    ERR_TRY(parallel_agree(world, snapshot_is_rank_0(s) ? find_start_candidate(s, &candidate) : 0));
    ERR_TRY(comm_broadcast(world, &candidate, sizeof(candidate), 0));
    *out_step = s->newest_step = candidate.step;
    return 0;
}

/* Rank 0: the run's oldest checkpoint describes how the run began. */
static int check_oldest(struct snapshot *s, const struct ckpt_loaded *oldest)
{
    int64_t numerics = s->config->numerics;
    struct ckpt_loaded beginning = *oldest;
    struct lineage_data data = {-1, 0, data_info(s->of.data)->hash, s->config->replay_step};
    beginning.info.step = 0;
    snprintf(s->oldest_time, sizeof(s->oldest_time), "%s", oldest->info.time);
    ERR_TRY(identity_check_beginning(s->config, oldest));
    ERR_TRY(settle_numerics(s, numerics != 0 ? numerics : lineage_numerics(oldest)));
    ERR_TRY(identity_check(&s->of, s->identity_json, &beginning));
    ERR_TRY(lineage_continue(&s->orders_json, s->config, &beginning, &data));
    log_info("checkpoint",
             "no undamaged checkpoint before step %" PRId64 ": the replay begins as the run began, "
             "which its oldest one describes, step %" PRIu64 " of attempt %" PRIu64 "%s",
             s->config->replay_step, oldest->info.step, oldest->info.attempt,
             oldest->info.attempt > 1 ? "; other settings of earlier attempts are not known" : "");
    return 0;
}

/* A replay of a step before all checkpoints begins as the run began. Collective. */
static int check_beginning(struct snapshot *s)
{
    struct comm *world = s->mesh->world;
    struct ckpt_tensor none = {0};
    struct ckpt_load_options options = {.step = -1, .tensors = &none};
    struct ckpt_loaded *oldest = NULL;
    bool is_first = snapshot_is_rank_0(s);
    int64_t last;
    int found = is_first ? snapshot_find_steps(s, INT64_MAX, &options.step, &last) : 0;
    ERR_TRY(parallel_agree(world, found));
    ERR_TRY(comm_broadcast(world, &options.step, sizeof(options.step), 0));
    if (options.step < 0 && is_first)
        log_warn(
            "checkpoint",
            "run %s has no undamaged checkpoint: the replay begins as this configuration says, "
            "and nothing is compared",
            s->config->run);
    if (options.step < 0)
        return 0;
    int rc = ckpt_load(s->ckpt, &options, &oldest);
    if (rc == 0 && is_first)
        rc = check_oldest(s, oldest);
    if (rc == 0) {
        json_t *state = json_loads(oldest->state_json, 0, NULL);
        rc = take_choices(s, state);
        json_decref(state);
    }
    ckpt_loaded_free(oldest);
    return parallel_agree(world, rc);
}

static int find_start(struct snapshot *s, int64_t *out_step)
{
    ERR_TRY(find_step(s, out_step));
    ERR_TRY(snapshot_check_export(s, *out_step > s->config->steps ? *out_step : s->config->steps));
    if (s->ckpt == NULL || *out_step >= 0)
        return 0;
    if (s->config->replay_step > 0)
        ERR_TRY(check_beginning(s));
    if (!snapshot_wants_initial(s))
        return 0;
    ERR_TRY(snapshot_import_initial(s));
    ERR_TRY(find_step(s, out_step));
    return *out_step >= 0 ? 0 : snapshot_check_initial(s);
}

int snapshot_find_step(struct snapshot *s, int64_t *out_step)
{
    ERR_TRY(find_start(s, out_step));
    struct comm *world = s->mesh->world;
    bool is_first = world->rank == 0; /* only rank 0 knows the run's state */
    ERR_TRY(parallel_agree(world, is_first ? settle_numerics(s, s->config->numerics) : 0));
    int64_t numerics = s->config->numerics;
    ERR_TRY(comm_broadcast(world, &numerics, sizeof(numerics), 0));
    ERR_TRY(parallel_agree(world, settle_numerics(s, numerics)));
    if (s->ckpt == NULL)
        return 0;
    if (*out_step >= 0 && snapshot_is_rank_0(s))
        log_info("checkpoint", "goes on with training.numerics = %" PRId64, numerics);
    int rc = s->orders_json == NULL ? lineage_begin(&s->orders_json, s->config) : 0;
    return parallel_agree(s->mesh->world, rc);
}

static void add_fresh(char *text, size_t bytes, const char *part, const char *why)
{
    size_t at = strlen(text);
    snprintf(text + at, bytes - at, "%s%s (%s)", at > 0 ? ", " : "", part, why);
}

/* The moments of an imported model are always fresh. */
static void log_fresh(const struct config *config, const struct candidate *candidate)
{
    static const char excluded[] = "checkpoint.exclude_from_loading";
    char text[400] = "";
    if (is_excluded(config, "optimizer"))
        add_fresh(text, sizeof(text), "the moments", excluded);
    else if (!candidate->has_moments)
        add_fresh(text, sizeof(text), "the moments",
                  candidate->step > 0 ? "the checkpoint has no optimizer state: "
                                        "checkpoint.last_save_model_only leaves it out"
                                      : "an imported model has none");
    if (is_excluded(config, "lr_scheduler"))
        add_fresh(text, sizeof(text), "the schedule", excluded);
    if (is_excluded(config, "dataloader"))
        add_fresh(text, sizeof(text), "the place in the data", excluded);
    if (text[0] != 0)
        log_warn("checkpoint", "not loaded from step %" PRId64 ", begins fresh: %s",
                 candidate->step, text);
}

static int load_candidate(struct snapshot *s, struct progress *p, const struct candidate *candidate)
{
    struct ckpt_load_options options = {.step = candidate->step,
                                        .attempt = (uint64_t)candidate->attempt,
                                        .tensors = s->tensors,
                                        .num_tensors = s->num_tensors};
    struct ckpt_loaded *loaded = NULL;
    if (!candidate->has_moments) /* an older candidate may have set some */
        ERR_TRY(state_zero_moments(s->state));
    if (!loads_moments(s->config, candidate))
        options.num_tensors = s->state->num_slices;
    ERR_TRY(ckpt_load(s->ckpt, &options, &loaded));
    s->times.from_attempt = (uint64_t)candidate->attempt;
    s->times.loaded_bytes = loaded->bytes_memory + loaded->bytes_local;
    if (snapshot_is_rank_0(s))
        log_info("checkpoint",
                 "loaded step %" PRId64 " of attempt %" PRId64 " (%s), %.1f MiB from memory, %.1f "
                 "MiB from disk on rank 0",
                 candidate->step, candidate->attempt, loaded->info.durability,
                 (double)loaded->bytes_memory / 1048576.0, (double)loaded->bytes_local / 1048576.0);
    if (snapshot_is_rank_0(s))
        log_fresh(s->config, candidate);
    int rc = snapshot_read_progress(s, p, loaded);
    ckpt_loaded_free(loaded);
    if (candidate->skip > 0 && snapshot_is_rank_0(s))
        log_warn("checkpoint", "%" PRId64 " samples from %" PRIu64 " on are left out",
                 candidate->skip, p->next_sample);
    p->next_sample += (uint64_t)candidate->skip;
    return rc;
}

/* All ranks load the candidate; if one fails, all fail. *out_retry: it is damaged, an older one may
 * work. */
static int try_candidate(struct snapshot *s, struct progress *p, const struct candidate *candidate,
                         bool *out_retry)
{
    uint32_t first;
    int rc = parallel_agree_quietly(s->mesh->world, load_candidate(s, p, candidate), &first);
    *out_retry = may_help(s, candidate, rc);
    bool is_mine = first == s->mesh->world->rank;
    if (*out_retry && is_mine)
        warn_of_damage(candidate, first);
    if (rc != 0 && !is_mine)
        report_clear();
    if (rc == 0)
        rc = snapshot_check_arrived(s, s->ckpt, candidate->step, candidate->attempt,
                                    loads_moments(s->config, candidate));
    return rc;
}

static int none_left(const struct snapshot *s)
{
    if (s->newest_step < 0) {
        if (snapshot_is_rank_0(s))
            log_info("checkpoint", "run %s has no checkpoint to load: it begins with new weights",
                     s->config->run);
        return 0;
    }
    return parallel_agree(s->mesh->world, fail_none_left(s, s->newest_step));
}

int snapshot_load(struct snapshot *s, struct progress *p, bool *out_loaded)
{
    *out_loaded = false;
    if (s->ckpt == NULL)
        return 0;
    struct comm *world = s->mesh->world;
    double start = clock_seconds();
    /* The next candidate is below its step. */
    struct candidate candidate = {.step = s->config->load_below};
    bool retry = false;
    int rc;
    do {
        int64_t below = candidate.step;
        candidate.step = -1;
        rc = snapshot_is_rank_0(s) ? find_candidate(s, below, &candidate) : 0;
        ERR_TRY(parallel_agree(world, rc));
        ERR_TRY(comm_broadcast(world, &candidate, sizeof(candidate), 0));
        if (candidate.step < 0 && s->newest_step < 0 && snapshot_wants_initial(s)) {
            *out_loaded = true;
            return snapshot_load_initial(s, p);
        }
        if (candidate.step < 0)
            return none_left(s);
        rc = try_candidate(s, p, &candidate, &retry);
    } while (retry);
    ERR_TRY(rc);
    s->times.load_seconds = clock_seconds() - start;
    s->durable_step = s->newest_durable = p->step;
    *out_loaded = true;
    return 0;
}
