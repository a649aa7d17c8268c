/* identity.c - the description of a run in its checkpoints (see identity.h). */
#include "trainer/record/identity.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/config/config.h"
#include "trainer/data/manifest.h"
#include "trainer/model/model.h"
#include "trainer/model/shape.h"
#include "trainer/record/environment.h"
#include "trainer/record/partial.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the manifest ---- */

static int pack_json(char **out, json_t *object)
{
    *out = object != NULL ? json_dumps(object, JSON_COMPACT | json_shortest(object)) : NULL;
    json_decref(object);
    return *out != NULL ? 0 : report_error(ERR_MEMORY, NULL, "could not write the manifest's JSON");
}

/* ERR_MEMORY. A text that is not JSON gives NULL, in which nothing is found. */
static int parse(json_t **out, const char *text)
{
    json_error_t reason;
    *out = NULL;
    return text != NULL && json_read(out, text, strlen(text), &reason) == ERR_MEMORY ? ERR_MEMORY
                                                                                     : 0;
}

int identity_take_origin(char **inout, const struct ckpt_loaded *from)
{
    static const char *const sections[] = {"hf", "hf_dtypes"};
    json_t *config = NULL;
    free(*inout);
    *inout = NULL;
    ERR_TRY(parse(&config, from->config_json));
    json_t *origin = json_object();
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        json_t *section = json_object_get(config, sections[i]);
        if (json_is_object(section))
            json_object_set(origin, sections[i], section);
    }
    json_decref(config);
    if (origin != NULL && json_object_size(origin) == 0) {
        json_decref(origin);
        return 0;
    }
    return pack_json(inout, origin);
}

int identity_write_config(char **out, const struct identity *of, const char *origin)
{
    json_t *config = NULL, *more = NULL;
    char *own = trainer_config_to_json(of->config);
    json_int_t positions = of->model->shape.positions;
    int rc = own != NULL ? parse(&config, own) : ERR_MEMORY;
    free(own);
    if (rc == 0 && origin != NULL)
        rc = parse(&more, origin);
    else if (rc == 0 && positions > 0)
        more = json_pack("{s{sI}}", "hf", "max_position_embeddings", positions);
    if (rc == 0 && more != NULL)
        rc = json_object_update(config, more) == 0 ? 0 : ERR_MEMORY;
    json_decref(more);
    if (rc == 0)
        return pack_json(out, config);
    json_decref(config);
    return report_error(ERR_MEMORY, NULL, "could not write the manifest's JSON");
}

static json_t *canonical_json(const struct config *config)
{
    return json_pack("{sI sI sI sI}", "micro_batches", (json_int_t)config->micro_batches, "groups",
                     (json_int_t)config->groups, "tp_blocks", (json_int_t)config->tp_blocks,
                     "cp_blocks", (json_int_t)config->cp_blocks);
}

int identity_write(char **out_identity, char **out_data, const struct identity *of)
{
    const struct config *c = of->config;
    const char *kernels = of->kernels;
    char dtype[CONFIG_TYPE_MAX],
        isa[32]; /* the description begins with it: "avx512, products by ..." */
    snprintf(isa, sizeof(isa), "%.*s", (int)strcspn(kernels, ","), kernels);
    config_describe_type(dtype, c);
    ERR_TRY(pack_json(
        out_identity,
        json_pack("{ss ss ss ss so so so*}", "isa", isa, "kernels", kernels, "dtype", dtype,
                  "reduction", c->text.reduction, "canonical", canonical_json(c), "model",
                  model_shape_identity(&of->model->shape), "environment",
                  of->environment != NULL ? json_loads(of->environment, 0, NULL) : NULL)));
    return pack_json(out_data, data_run_json(of->data, trainer_config_data(c)));
}

/* ---- does a checkpoint fit this run? ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* True for settings that decide the order of samples: a run that changes one differs from an
 * uninterrupted run. The lineage has the sizes of a step. */
static bool shapes_leaves(const char *section, const char *key)
{
    return strcmp(section, "debug") == 0 && strcmp(key, "seed") == 0;
}

/* A replay sets these keys itself. */
static bool is_debug_of_replay(const struct config *config, const char *section)
{
    return config->replay_step > 0 && strcmp(section, "debug") == 0;
}

/* Logs the settings that differ, in the sections that affect training. */
static void log_settings(const struct config *config, const char *stored_json)
{
    static const char *const sections[] = {"model", "optimizer", "lr_scheduler", "training",
                                           "debug"};
    char *own_json = trainer_config_to_json(config);
    json_t *own = own_json != NULL ? json_loads(own_json, 0, NULL) : NULL;
    json_t *stored = json_loads(stored_json, 0, NULL);
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        json_t *ours = json_object_get(own, sections[i]);
        const char *key;
        json_t *theirs;
        json_object_foreach(json_object_get(stored, sections[i]), key, theirs)
        {
            json_t *value = json_object_get(ours, key);
            bool is_other = shapes_leaves(sections[i], key);
            if (value == NULL || json_equal(value, theirs) ||
                (is_debug_of_replay(config, sections[i]) && !is_other))
                continue;
            char *was = json_dumps(theirs, JSON_ENCODE_ANY | json_shortest(theirs)),
                 *is = json_dumps(value, JSON_ENCODE_ANY | json_shortest(value));
            log_print(is_other ? LOG_WARN : LOG_INFO, "checkpoint",
                      "%s.%s was %s when the checkpoint was made, now it is %s%s", sections[i], key,
                      was != NULL ? was : "?", is != NULL ? is : "?",
                      is_other ? ": training goes on with other samples" : "");
            free(was);
            free(is);
        }
    }
    json_decref(own);
    json_decref(stored);
    free(own_json);
}

/* The learning-rate curve ends with the run, unless lr_scheduler.total_steps is set. */
static void log_stretch(const struct config *config, const char *stored_json)
{
    json_t *stored = json_loads(stored_json, 0, NULL);
    const json_t *steps = json_object_get(json_object_get(stored, "training"), "steps");
    const json_t *total = json_object_get(json_object_get(stored, "lr_scheduler"), "total_steps");
    int64_t was = json_integer_value(steps);
    if (json_is_integer(steps) && json_equal(steps, total) && was != config->steps &&
        config->decay_total_steps == config->steps)
        log_warn(
            "checkpoint",
            "training.steps was %lld, now it is %lld: that %s the learning-rate curve; to keep "
            "it set lr_scheduler.total_steps = %lld",
            (long long)was, (long long)config->steps,
            was < config->steps ? "stretches" : "shortens", (long long)was);
    json_decref(stored);
}

static void log_identity(const json_t *own, const json_t *stored)
{
    static const char *const keys[] = {"isa", "kernels", "dtype", "reduction"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (text_of(stored, keys[i])[0] != 0 &&
            strcmp(text_of(own, keys[i]), text_of(stored, keys[i])) != 0)
            log_warn("checkpoint",
                     "%s was \"%s\" when the checkpoint was made, now it is \"%s\": training goes "
                     "on, its bits may differ from an uninterrupted run's",
                     keys[i], text_of(stored, keys[i]), text_of(own, keys[i]));
    char line[ENVIRONMENT_LINE_MAX];
    if (environment_changes(line, json_object_get(own, "environment"),
                            json_object_get(stored, "environment")))
        log_warn("checkpoint",
                 "since the checkpoint was made: %s: training goes on, its bits may differ from an "
                 "uninterrupted run's",
                 line);
}

/* Logs another build if bits are compared. */
static void log_program(const struct identity *of, const json_t *own, const json_t *stored)
{
    const char *is = text_of(json_object_get(own, "environment"), "program");
    const char *was = text_of(json_object_get(stored, "environment"), "program");
    if (of->config->replay_step > 0 && was[0] != '\0' && strcmp(is, was) != 0)
        log_warn("checkpoint",
                 "the build of the trainer was %s when the checkpoint was made, now it is %s", was,
                 is);
}

/* Refuses another vocabulary, if only the tokens file gives its size. */
static int refuse_tokens(const struct identity *of, const struct model_difference *difference)
{
    char hint[REPORT_TEXT_MAX];
    snprintf(hint, sizeof(hint),
             "give the tokens file that the run was trained with; for one of a smaller vocabulary "
             "set model.vocab_size = %s",
             difference->theirs);
    return report_error(ERR_MISMATCH, hint,
                        "the checkpoint's model has a vocabulary of %s, the tokens of %s have %s",
                        difference->theirs, trainer_config_data(of->config), difference->ours);
}

/* A checkpoint that does not record its model is not compared. */
static int check_model(const struct identity *of, const json_t *stored)
{
    const json_t *model = json_object_get(stored, "model");
    struct model_shape theirs;
    struct model_difference difference;
    if (!json_is_object(model))
        return 0;
    ERR_TRY(model_shape_of_identity(&theirs, model));
    if (!model_shape_differs(&difference, &of->model->shape, &theirs))
        return 0;
    if (strcmp(difference.field, "vocab") == 0 && shape_has_vocab_of_tokens(of->config))
        return refuse_tokens(of, &difference);
    return report_error(ERR_MISMATCH,
                        "give the model settings that the run was created with, or give job.run "
                        "another name",
                        "the checkpoint's model has %s = %s, this configuration %s",
                        difference.field, difference.theirs, difference.ours);
}

int identity_check_initial(const struct identity *of, const struct ckpt_loaded *loaded)
{
    json_t *stored = NULL;
    struct model_shape theirs;
    int rc = parse(&stored, loaded->identity_json);
    const json_t *model = json_object_get(stored, "model");
    if (rc == 0 && json_is_object(model))
        rc = model_shape_of_identity(&theirs, model);
    if (rc == 0 && json_is_object(model))
        rc = partial_check_shape(of->config, &of->model->shape, &theirs, loaded->info.run,
                                 "give the model settings that it was trained with");
    json_decref(stored);
    return rc;
}

/* "RUN" and "RUN@STEP": the source as it was given, and with its step. */
static bool names_step(const json_t *was, const json_t *is)
{
    const char *run = json_string_value(was), *path = json_string_value(is);
    size_t length = run != NULL ? strlen(run) : 0;
    return length > 0 && path != NULL && strncmp(path, run, length) == 0 && path[length] == '@';
}

int identity_check_beginning(const struct config *config, const struct ckpt_loaded *oldest)
{
    static const char *const keys[][2] = {{"debug", "seed"},
                                          {"checkpoint", "initial_load_path"},
                                          {"checkpoint", "partial"},
                                          {"checkpoint", "initial_load_model_only"},
                                          {"checkpoint", "partial_rows"},
                                          {"checkpoint", "partial_fresh"}};
    json_t *own = NULL, *stored = NULL;
    char *own_json = trainer_config_to_json(config);
    int rc = parse(&own, own_json);
    if (rc == 0)
        rc = parse(&stored, oldest->config_json);
    size_t num = config->initial_load_path[0] != '\0' ? sizeof(keys) / sizeof(keys[0]) : 2;
    for (size_t i = 0; rc == 0 && i < num; i++) {
        json_t *was = json_object_get(json_object_get(stored, keys[i][0]), keys[i][1]);
        json_t *is = json_object_get(json_object_get(own, keys[i][0]), keys[i][1]);
        if (was == NULL || json_equal(was, is) || names_step(was, is))
            continue;
        char *was_text = json_dumps(was, JSON_ENCODE_ANY),
             *is_text = json_dumps(is, JSON_ENCODE_ANY);
        rc = report_error(
            ERR_MISMATCH, "give the value that the run began with, or a step after that checkpoint",
            "the run's oldest checkpoint, step %" PRIu64 ", was made with %s.%s = %s, "
            "this configuration has %s: a replay would begin with other weights",
            oldest->info.step, keys[i][0], keys[i][1], was_text != NULL ? was_text : "?",
            is_text != NULL ? is_text : "?");
        free(was_text);
        free(is_text);
    }
    json_decref(own);
    json_decref(stored);
    free(own_json);
    return rc;
}

bool identity_is_same(const struct identity *of, const struct ckpt_loaded *loaded)
{
    json_t *stored = NULL, *data = NULL;
    bool is_same = parse(&stored, loaded->identity_json) == 0 &&
                   parse(&data, loaded->data_json) == 0 && check_model(of, stored) == 0 &&
                   strcmp(text_of(data, "hash"), data_info(of->data)->hash) == 0;
    json_decref(stored);
    json_decref(data);
    return is_same;
}

/* Other data needs another name. The same name in a bucket means that the object was
 * overwritten. */
static int check_not_overwritten(const struct identity *of, const char *path)
{
    const char *own = trainer_config_data(of->config);
    return strstr(own, "s3://") == NULL || strcmp(own, path) != 0
               ? 0
               : report_error(ERR_MISMATCH,
                              "put the old data back, or give the new data another name",
                              "%s has other tokens than when the run was saved", own);
}

int identity_check(const struct identity *of, const char *own_json,
                   const struct ckpt_loaded *loaded)
{
    json_t *own = NULL, *stored = NULL, *data = NULL;
    int rc = parse(&own, own_json);
    if (rc == 0)
        rc = parse(&stored, loaded->identity_json);
    if (rc == 0)
        rc = parse(&data, loaded->data_json);
    if (rc == 0)
        rc = check_model(of, stored);
    if (rc == 0) {
        const char *hash = text_of(data, "hash");
        log_identity(own, stored);
        log_program(of, own, stored);
        log_settings(of->config, loaded->config_json);
        log_stretch(of->config, loaded->config_json);
        bool is_same = hash[0] == 0 || strcmp(hash, data_info(of->data)->hash) == 0;
        if (!is_same)
            rc = check_not_overwritten(of, text_of(data, "path"));
        if (!is_same && rc == 0)
            log_warn("checkpoint",
                     "the checkpoint was trained on other tokens (%s, now %s, from step %" PRIu64
                     " on): new sources are read from their beginning, sources left out keep their "
                     "position",
                     hash, data_info(of->data)->hash, loaded->info.step + 1);
    }
    json_decref(own);
    json_decref(stored);
    json_decref(data);
    return rc;
}
