/* attempt.c - the file of an attempt, "<run>/attempts/0003": the fencing number of a start, and the
 * description by its ranks.
 *
 * The file has the fields that every manifest of the attempt repeats (config, identity, mesh,
 * data), so a restarted ckptd continues with the newest attempt when its ranks describe themselves
 * again. Which checkpoint the attempt loaded is known later; it is stored in "0003.loaded" when the
 * attempt first saves.
 *
 * Limits: JSON_BYTES_MAX per field. */
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/sets_file.h"
#include "ckptd/core/store_key.h"
#include "ckptd/machines/commit.h"
#include "proto/base/json.h"
#include "proto/base/memfile.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/manifest.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPT_FORMAT "holdfast-attempt"
#define ATTEMPT_VERSION 1
#define ATTEMPT_BYTES_MAX (8u << 20)

static void key_of_loaded(char out[STORAGE_KEY_MAX], const char *run, uint64_t number)
{
    store_key_of_attempt(out, run, number);
    strcat(out, ".loaded");
}

bool attempt_needs_far(const struct service *service)
{
    return tier_has_far(service) && strcmp(service->config->tier_attempts, "far") == 0;
}

/* ---- struct attempt ---- */

/* 0: not set. */
static uint32_t read_wish(const struct attempt *attempt)
{
    json_t *config = json_loads(attempt->config_json, 0, NULL);
    const json_t *section = json_object_get(config, "checkpoint");
    json_int_t wish = json_integer_value(json_object_get(section, "keep_latest_k"));
    json_decref(config);
    return wish >= 2 && wish <= UINT32_MAX ? (uint32_t)wish : 0;
}

struct retain_rules attempt_rules(const struct run *run)
{
    const struct policy *policy = policy_of(&run->service->policies, run->name);
    const struct attempt *attempt = run->coordinator->attempt;
    struct retain_rules rules = policy_rules(policy, &policy->local);
    uint32_t wish = policy->heeds_trainers && attempt ? read_wish(attempt) : 0;
    if (rules.keep_last < wish)
        rules.keep_last = wish;
    return rules;
}

void attempt_free(struct attempt *attempt)
{
    if (!attempt)
        return;
    sets_free(&attempt->sets);
    free(attempt->config_json);
    free(attempt->identity_json);
    free(attempt->mesh_json);
    free(attempt->data_json);
    free(attempt);
}

int attempt_read_object(json_t **out, const char *text, const char *field)
{
    if (strlen(text) > JSON_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "%s is larger than %u bytes", field, JSON_BYTES_MAX);
    return json_read_object(out, *text ? text : "{}", field);
}

/* ---- the file ---- */

#define NUM_SECTIONS 4
static const char *const section_names[NUM_SECTIONS] = {"config", "identity", "mesh", "data"};

/* All members except the sections; the text without its closing brace. The caller frees it. */
static int write_head(char **out, const struct run *run, uint64_t number,
                      const struct attempt_facts *facts,
                      const Holdfast__V1__OpenAttemptRequest *request)
{
    char nonce[33]; /* unique to this text: identifies the owner of the number (tier.h) */
    ERR_TRY(manifest_new_nonce(nonce));
    json_begin();
    json_t *root = json_object();
    json_object_set_new(root, "format", json_string(ATTEMPT_FORMAT));
    json_object_set_new(root, "version", json_integer(ATTEMPT_VERSION));
    json_object_set_new(root, "run", json_string(run->name));
    json_object_set_new(root, "attempt", json_integer((json_int_t)number));
    json_object_set_new(root, "nonce", json_string(nonce));
    json_object_set_new(root, "world_size", json_integer(request->world_size));
    if (run->service->config->members.count > 0)
        json_object_set_new(root, "coordinator", json_string(run->service->config->nodes_name));
    if (facts->owner[0] != '\0')
        json_object_set_new(root, "owner", json_string(facts->owner));
    if (facts->sets.count > 0)
        json_object_set_new(root, "nodes", sets_describe(&facts->sets));
    bool is_text =
        json_object_set_new(root, "code_version", json_string(request->code_version)) == 0;
    *out = is_text ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!json_end()) {
        free(*out);
        *out = NULL;
        return report_error(ERR_MEMORY, NULL, "no memory to write an attempt");
    }
    if (!*out)
        return report_error(ERR_INVALID, "all texts must be UTF-8",
                            "the attempt could not be written as JSON");
    (*out)[strlen(*out) - 1] = '\0';
    return 0;
}

int attempt_write(char **out, const struct run *run, uint64_t number,
                  const struct attempt_facts *facts,
                  const Holdfast__V1__OpenAttemptRequest *request)
{
    const char *sections[NUM_SECTIONS] = {request->config_json, request->identity_json,
                                          request->mesh_json, request->data_json};
    char *head;
    size_t bytes;
    ERR_TRY(write_head(&head, run, number, facts, request));
    if (facts->is_held) {
        char *taken = head;
        int error = sets_held_text(&head, taken, strlen(taken));
        free(taken);
        ERR_TRY(error);
    }
    FILE *file = memfile_open(out, &bytes);
    if (file) {
        fputs(head, file);
        for (int i = 0; i < NUM_SECTIONS; i++)
            fprintf(file, ",\n\"%s\":%s", section_names[i], *sections[i] ? sections[i] : "{}");
        fputs("}\n", file);
    }
    free(head);
    if (file && memfile_close(file))
        return 0;
    free(*out);
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory to write an attempt");
}

/* Every manifest repeats them as they were sent. */
static int keep_sections(struct attempt *attempt, const char *text, size_t bytes, const char *key)
{
    char **const sections[NUM_SECTIONS] = {&attempt->config_json, &attempt->identity_json,
                                           &attempt->mesh_json, &attempt->data_json};
    const char *bad;
    int error = json_copy_objects(sections, section_names, NUM_SECTIONS, text, bytes, &bad);
    if (error == ERR_MEMORY)
        return report_error(error, NULL, "no memory for an attempt");
    if (error == ERR_CORRUPT)
        return report_error(error, "open a new attempt", "%s lacks the member '%s'", key, bad);
    return 0;
}

static int read_attempt(struct attempt **out, const char *text, size_t bytes, const char *key)
{
    json_t *root;
    json_error_t reason;
    struct attempt *attempt = calloc(1, sizeof *attempt);
    int error = json_read(&root, text, bytes, &reason);
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *code = json_string_value(json_object_get(root, "code_version"));
    json_int_t world = json_integer_value(json_object_get(root, "world_size"));
    if (!attempt || error == ERR_MEMORY) {
        json_decref(root);
        free(attempt);
        return report_error(ERR_MEMORY, NULL, "no memory for an attempt");
    }
    attempt->number = (uint64_t)json_integer_value(json_object_get(root, "attempt"));
    attempt->world_size = (uint32_t)world;
    snprintf(attempt->code_version, sizeof attempt->code_version, "%s", code ? code : "");
    const char *node = json_string_value(json_object_get(root, "coordinator"));
    snprintf(attempt->coordinator, sizeof attempt->coordinator, "%s", node ? node : "");
    const char *owner = json_string_value(json_object_get(root, "owner"));
    snprintf(attempt->owner, sizeof attempt->owner, "%s", owner ? owner : "");
    /* A text that is not JSON has no format either. */
    if (!format || strcmp(format, ATTEMPT_FORMAT) != 0)
        error = report_error(ERR_CORRUPT, "open a new attempt", "%s is not an attempt", key);
    else if (json_integer_value(json_object_get(root, "version")) != ATTEMPT_VERSION)
        error =
            report_error(ERR_VERSION, "use a newer ckptd", "%s has another format version", key);
    else if (world < 1 || world > (json_int_t)COMMIT_RANKS_MAX)
        error = report_error(ERR_CORRUPT, "open a new attempt", "%s lacks the member 'world_size'",
                             key);
    else
        error = keep_sections(attempt, text, bytes, key);
    if (error == 0)
        error = sets_parse(&attempt->sets, root);
    json_decref(root);
    if (error != 0)
        attempt_free(attempt);
    else
        *out = attempt;
    return error;
}

/* ---- the parent ---- */

static void work_keep_parent(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct coordinator, parent)->run;
    char key[STORAGE_KEY_MAX];
    key_of_loaded(key, run->name, work->number);
    int error = storage_publish(run->service->storage, key, work->text, strlen(work->text));
    if (error != 0 && error != ERR_EXISTS)
        fault_take(&work->fault, error);
}

static void parent_kept(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct coordinator, parent)->run;
    work->busy = false;
    free(work->text);
    if (work->fault.code != 0)
        log_warn("session",
                 "run %s: could not record the checkpoint that attempt %llu resumed from: %s",
                 run->name, (unsigned long long)work->number, work->fault.message);
}

void attempt_set_parent(struct run *run, uint64_t step, uint64_t attempt)
{
    if (!run->coordinator->attempt || run->coordinator->attempt->parent_is_final)
        return;
    run->coordinator->attempt->parent_step = step;
    run->coordinator->attempt->parent_attempt = attempt;
}

void attempt_keep_parent(struct run *run)
{
    struct attempt *attempt = run->coordinator->attempt;
    struct attempt_work *work = &run->coordinator->parent;
    attempt->parent_is_final = true; /* from here on workers read it, for manifests */
    if (attempt->parent_kept || attempt->parent_attempt == 0 || work->busy)
        return;
    char text[128];
    snprintf(text, sizeof text, "{\"step\": %llu, \"attempt\": %llu}\n",
             (unsigned long long)attempt->parent_step, (unsigned long long)attempt->parent_attempt);
    *work = (struct attempt_work){.job = {.work = work_keep_parent, .done.run = parent_kept},
                                  .busy = true,
                                  .number = attempt->number,
                                  .text = strdup(text)};
    if (!work->text) {
        work->busy = false;
        return;
    }
    attempt->parent_kept = true;
    loop_work(run->service->loop, &work->job);
}

static void read_parent(struct attempt *attempt, const struct run *run)
{
    char key[STORAGE_KEY_MAX], text[256];
    uint64_t bytes = 0;
    key_of_loaded(key, run->name, attempt->number);
    if (storage_fetch(run->service->storage, key, text, sizeof text, &bytes) != 0 ||
        bytes > sizeof text)
        return;
    json_t *root;
    json_error_t reason;
    json_read(&root, text, bytes, &reason);
    attempt->parent_step = (uint64_t)json_integer_value(json_object_get(root, "step"));
    attempt->parent_attempt = (uint64_t)json_integer_value(json_object_get(root, "attempt"));
    attempt->parent_is_final = attempt->parent_kept = true;
    json_decref(root);
}

int attempt_read_from(struct attempt **out, struct storage *storage, const char *run,
                      uint64_t number)
{
    char key[STORAGE_KEY_MAX];
    void *text = NULL;
    size_t bytes = 0;
    store_key_of_attempt(key, run, number);
    int error = storage_fetch_all(storage, key, ATTEMPT_BYTES_MAX, &text, &bytes);
    if (error == 0)
        error = read_attempt(out, text, bytes, key);
    free(text);
    return error;
}

int attempt_read_back(struct attempt **out, const struct run *run, uint64_t number)
{
    ERR_TRY(attempt_read_from(out, run->service->storage, run->name, number));
    read_parent(*out, run);
    return 0;
}

void attempt_nonce(char out[33], const char *text)
{
    const char *at = strstr(text, "\"nonce\":\"");
    CHECK(at && strlen(at) > 9 + 32); /* written by attempt_write() */
    memcpy(out, at + 9, 32);
    out[32] = '\0';
}

/* Exclusive among all that share the far tier. While it does not answer, the owner of the number is
 * unknown, so no attempt is opened with it. */
static int take_far(const struct run *run, const char *key, const char *text)
{
    struct service *service = run->service;
    char nonce[33];
    attempt_nonce(nonce, text);
    switch (tier_publish(service->tiers[TIER_FAR].storage, key, text, strlen(text), nonce)) {
    case PUBLICATION_DURABLE:
        return 0;
    case PUBLICATION_TAKEN:
        return ERR_EXISTS;
    default:
        return report_error(ERR_UNAVAILABLE,
                            "start again, or set tier.attempts = \"local\" to start without it",
                            "the far tier did not record the attempt's number: %s", report_line());
    }
}

int attempt_publish(struct attempt **out, const struct run *run, uint64_t number, const char *text)
{
    char key[STORAGE_KEY_MAX];
    struct sets sets;
    store_key_of_attempt(key, run->name, number);
    if (attempt_needs_far(run->service))
        ERR_TRY(take_far(run, key, text));
    int error = sets_file_take_last(&sets, run->service->storage, key, text);
    if (error == 0)
        error = read_attempt(out, text, strlen(text), key);
    if (error == 0)
        (*out)->sets.is_held = true;
    sets_free(&sets);
    return error;
}
