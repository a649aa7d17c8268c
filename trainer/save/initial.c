/* initial.c - finds where a run without a checkpoint starts: checkpoint.initial_load_path. It also
 * checks that the run does not exist under another name.
 *
 * A folder of Hugging Face and a run of another store become step 0 of this run (tool.h), which is
 * loaded like any checkpoint. With checkpoint.partial they become step 0 of a second run, since a
 * checkpoint that fits only in part cannot belong to this run. A run of the same ckptd is read in
 * place: only its weights, for a run that begins at step 0, or with initial_load_model_only = false
 * all of its state. If no step is named, a damaged checkpoint is skipped for the one before it, as
 * in a load of this run (load.c). */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/save/private.h"
#include "trainer/save/tool.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Earlier versions named every run without a name "default". */
int snapshot_check_nameless(const struct snapshot *s)
{
    struct ckpt *ckpt = NULL;
    struct ckpt_options options = {
        .server = s->config->ckptd_address, .run = "default", .world_size = s->mesh->world->size};
    struct ckpt_tensor none = {0};
    struct ckpt_load_options newest = {.step = CKPT_NEWEST, .tensors = &none};
    struct ckpt_loaded *loaded = NULL;
    if (!s->config->run_is_of_file)
        return 0;
    ERR_TRY(ckpt_open(&ckpt, &options));
    int rc = ckpt_load(ckpt, &newest, &loaded);
    if (rc == 0 && identity_is_same(&s->of, loaded))
        rc = report_error(ERR_EXISTS,
                          "go on with it by job.run = \"default\", or begin anew by giving job.run",
                          "job.run is not given, and would be \"%s\", the configuration's name: "
                          "run \"default\" has step %" PRIu64 " of this model and these data",
                          s->config->run, loaded->info.step);
    ckpt_loaded_free(loaded);
    ckpt_close(ckpt);
    return rc == ERR_NOT_FOUND || rc == ERR_CORRUPT ? 0 : rc;
}

bool snapshot_wants_initial(const struct snapshot *s)
{
    return s->config->initial_load_path[0] != 0;
}

bool snapshot_begins_in_part(const struct snapshot *s)
{
    return s->ckpt != NULL && s->newest_step < 0 && s->config->partial;
}

/* A replay changes no store, and makes no step of other weights than the run's. */
static int refuse_replay(const struct snapshot *s, const char *why)
{
    return report_error(
        ERR_NOT_FOUND,
        "name its step, RUN@STEP, or replay a step after the run's oldest checkpoint",
        "run %s began from checkpoint.initial_load_path = \"%s\", %s", s->config->run,
        s->config->initial_load_path, why);
}

/* Imports the model. With checkpoint.partial the import of an earlier start is reused; it exists
 * until the operator removes it. */
static int import(const struct snapshot *s)
{
    char run[CONFIG_TEXT_MAX];
    struct ckpt *ckpt = NULL;
    struct ckpt_info there;
    int rc = ERR_TIMEOUT;
    tool_name_imported(run, s->config);
    if (s->config->partial)
        rc = ckpt_open(&ckpt, &(struct ckpt_options){
                                  .server = s->config->ckptd_address, .run = run, .world_size = 1});
    if (rc == 0)
        rc = ckpt_newer(ckpt, 0, 0, 0, &there);
    if (ckpt != NULL)
        ckpt_close(ckpt);
    if (rc == ERR_TIMEOUT && s->config->replay_step > 0)
        return refuse_replay(s, "whose import, a checkpoint of step 0, is no longer there");
    return rc == ERR_TIMEOUT ? tool_import(s->config, &s->of.model->shape, s->want_stop) : rc;
}

int snapshot_import_initial(struct snapshot *s)
{
    if (!tool_must_import(s->config))
        return 0;
    return parallel_agree(s->mesh->world, snapshot_is_rank_0(s) ? import(s) : 0);
}

/* RUN[@STEP] */
struct source {
    char run[CONFIG_TEXT_MAX];
    bool has_step;       /* the operator named the step */
    int64_t step;        /* CKPT_NEWEST: not chosen yet */
    int64_t attempt;     /* 0: the newest that has the step */
    int64_t below, most; /* skipped steps: the last one, and the first; 0: none */
};

static int parse_source(struct source *out, const struct config *config)
{
    char imported[CONFIG_TEXT_MAX];
    const char *path = config->initial_load_path;
    char *end = NULL;
    tool_name_imported(imported, config);
    if (tool_must_import(config))
        path = imported;
    const char *at = strchr(path, '@');
    *out = (struct source){.has_step = at != NULL, .step = CKPT_NEWEST};
    snprintf(out->run, sizeof(out->run), "%.*s", (int)(at ? at - path : (ptrdiff_t)strlen(path)),
             path);
    if (at != NULL)
        out->step = strtoll(at + 1, &end, 10);
    if (out->run[0] == 0 || (at != NULL && (end == at + 1 || *end != 0 || out->step < 0)))
        return report_error(ERR_INVALID,
                            "name a folder of Hugging Face, RUN[@STEP], or STORE:RUN[@STEP]",
                            "checkpoint.initial_load_path = \"%s\"", path);
    return 0;
}

/* Finds the named checkpoint of the handle's run, or the newest one below `below`. */
static int find_checkpoint(struct ckpt *ckpt, const struct source *source, struct ckpt_loaded **out)
{
    struct ckpt_tensor none = {0};
    struct ckpt_load_options options = {.step = source->has_step ? source->step : CKPT_NEWEST,
                                        .below_step = source->below,
                                        .tensors = &none};
    int rc = ckpt_load(ckpt, &options, out);
    if (rc == ERR_NOT_FOUND && source->most > 0)
        rc = report_error(ERR_CORRUPT, "check it with ckpt-cli verify",
                          "run %s has checkpoints up to step %" PRId64 ", but none can be loaded",
                          source->run, source->most);
    return rc;
}

/* Rank 0 chooses the checkpoint for all ranks. */
static int choose(struct snapshot *s, struct ckpt *ckpt, struct source *source)
{
    struct ckpt_loaded *loaded = NULL;
    int rc = find_checkpoint(ckpt, source, &loaded);
    if (rc == ERR_NOT_FOUND && s->config->replay_step > 0)
        rc = refuse_replay(s, "which is no longer there");
    ERR_TRY(rc);
    source->step = (int64_t)loaded->info.step;
    source->attempt = (int64_t)loaded->info.attempt;
    bool is_first_time = s->attempt == 0; /* later the files are described and must not change */
    if (is_first_time)
        snapshot_log_skipped(loaded);
    rc = identity_check_initial(&s->of, loaded);
    if (s->oldest_time[0] != '\0' && strcmp(loaded->info.time, s->oldest_time) > 0)
        rc = refuse_replay(s, "which has saved it, or a newer step, since");
    if (rc == 0)
        rc = identity_take_origin(&s->origin_json, loaded);
    if (rc == 0 && is_first_time)
        rc = folder_files_load(&s->files, ckpt, &loaded->info);
    ckpt_loaded_free(loaded);
    return rc;
}

/* Goes back to the previous checkpoint if the chosen one is damaged and no step was named. The rank
 * that has the error's text logs it. */
static bool go_back(struct source *source, int rc)
{
    bool may_help = (rc == ERR_CORRUPT || rc == ERR_IO) && !source->has_step && source->step > 0;
    if (!may_help)
        return false;
    if (report_message()[0] != 0)
        log_warn("checkpoint",
                 "step %" PRId64 " of run %s cannot be loaded: %s; trying an older one",
                 source->step, source->run, report_line());
    report_clear();
    source->most = source->most > 0 ? source->most : source->step;
    source->below = source->step;
    source->step = CKPT_NEWEST;
    return true;
}

static int check_source(struct snapshot *s)
{
    struct source source;
    struct ckpt *ckpt = NULL;
    ERR_TRY(parse_source(&source, s->config));
    int rc = ckpt_open(&ckpt, &(struct ckpt_options){.server = s->config->ckptd_address,
                                                     .run = source.run,
                                                     .world_size = s->mesh->world->size});
    if (rc != 0)
        return rc;
    do
        rc = choose(s, ckpt, &source);
    while (go_back(&source, rc));
    ckpt_close(ckpt);
    return rc;
}

int snapshot_check_initial(struct snapshot *s)
{
    return parallel_agree(s->mesh->world, snapshot_is_rank_0(s) ? check_source(s) : 0);
}

/* The tensors of this rank, cut, that the source has; if nothing is cut, all of them. */
static uint32_t wanted_tensors(const struct snapshot *s, struct ckpt_tensor *out, bool all)
{
    uint32_t num = 0, slices = s->state->num_slices;
    for (uint32_t i = 0; i < (all ? s->num_tensors : slices); i++) {
        const struct model_tensor *of = s->state->slices[i % slices].tensor;
        out[num] = s->tensors[i];
        if (!s->config->partial ||
            partial_clip(&s->partial, &out[num], (uint32_t)(of - s->of.model->tensors)))
            num++;
    }
    return num;
}

static int load_source(struct snapshot *s, struct progress *p, struct ckpt *ckpt,
                       const struct source *source)
{
    bool all = !s->config->initial_load_model_only;
    struct ckpt_tensor *tensors = calloc(s->num_tensors + 1, sizeof(*tensors));
    if (tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list of %u tensors", s->num_tensors);
    struct ckpt_load_options options = {.step = source->step,
                                        .attempt = (uint64_t)source->attempt,
                                        .tensors = tensors,
                                        .num_tensors = wanted_tensors(s, tensors, all)};
    struct ckpt_loaded *loaded = NULL;
    int loads = ckpt_load(ckpt, &options, &loaded);
    free(tensors);
    ERR_TRY(loads);
    s->times.loaded_bytes = loaded->bytes_memory + loaded->bytes_local;
    int rc = all ? snapshot_read_progress(s, p, loaded) : 0;
    ckpt_loaded_free(loaded);
    return rc;
}

/* All ranks load the checkpoint that rank 0 chooses; if one fails, all fail. */
static int try_source(struct snapshot *s, struct progress *p, struct source *source)
{
    struct comm *world = s->mesh->world;
    struct ckpt *ckpt = NULL;
    struct ckpt_options options = {.server = s->config->ckptd_address,
                                   .run = source->run,
                                   .rank = world->rank,
                                   .world_size = world->size};
    int rc = parallel_agree(world, ckpt_open(&ckpt, &options));
    if (rc == 0) {
        int chosen = snapshot_is_rank_0(s) ? choose(s, ckpt, source) : 0;
        rc = comm_broadcast(world, source, sizeof(*source), 0); /* go_back() needs it */
        rc = rc == 0 ? parallel_agree(world, chosen) : rc;
    }
    if (rc == 0 && s->config->partial) /* call before loads go to devices */
        rc = partial_open(&s->partial, s->config, s->of.model, world, ckpt, source->step,
                          source->attempt);
    if (rc == 0)
        rc = parallel_agree(world, device_copy_hook(s->device_copy, ckpt));
    if (rc == 0)
        rc = parallel_agree(world, load_source(s, p, ckpt, source));
    if (rc == 0 && s->config->partial)
        rc = parallel_agree(world, partial_fill(&s->partial, s->state));
    if (rc == 0)
        rc = snapshot_check_arrived(s, ckpt, source->step, source->attempt,
                                    !s->config->initial_load_model_only);
    if (ckpt != NULL)
        ckpt_close(ckpt);
    partial_close(&s->partial);
    return rc;
}

int snapshot_load_initial(struct snapshot *s, struct progress *p)
{
    struct source source;
    double start = clock_seconds();
    ERR_TRY(parallel_agree(s->mesh->world, parse_source(&source, s->config)));
    int rc;
    do
        rc = try_source(s, p, &source);
    while (go_back(&source, rc));
    if (rc == 0 && snapshot_is_rank_0(s))
        log_info("checkpoint", "run %s starts from %s of run %s, step %" PRId64 "%s",
                 s->config->run,
                 s->config->initial_load_model_only ? "the weights" : "the whole state", source.run,
                 source.step,
                 s->config->initial_load_model_only
                     ? "; moments, schedule and the place in the data begin fresh "
                       "(checkpoint.initial_load_model_only)"
                     : "");
    s->times.load_seconds = clock_seconds() - start;
    return rc;
}

/* Call before training, and not after it. */
int snapshot_check_export(struct snapshot *s, int64_t step)
{
    if (s->ckpt == NULL || !s->config->last_save_in_hf)
        return 0;
    return parallel_agree(s->mesh->world,
                          snapshot_is_rank_0(s) ? tool_check_export(s->config, step) : 0);
}

int snapshot_export(struct snapshot *s, int64_t step)
{
    if (s->ckpt == NULL || !s->config->last_save_in_hf)
        return 0;
    if (!isinf(s->grace_end)) { /* every rank knows the same */
        if (snapshot_is_rank_0(s))
            log_warn("checkpoint",
                     "the weights of step %" PRId64
                     " are not exported before the deadline: start the run again to export them",
                     step);
        return 0;
    }
    return parallel_agree(s->mesh->world,
                          snapshot_is_rank_0(s) ? tool_export(s->config, step, s->want_stop) : 0);
}
