/* status.c - status and health of a running ckptd, or of a store without one.
 *
 * A ckptd reports its own status. From a directory the command reports what its files show, by the
 * same names: the disk, the number of checkpoints, the newest, the uncommitted saves, and whether a
 * process has the writer's lock (`in_use`). Without one those saves are rubbish, for gc. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* ---- of a directory ---- */

/* The facts in the files of a store, as far as they could be read. */
struct survey {
    struct storage *store;
    struct store_list catalog;
    struct store_rubbish_list rubbish;
    struct storage_space space;
    bool is_in_use;
    json_int_t num_runs;
};

static int survey_run(void *user, const char *run)
{
    struct survey *survey = user;
    survey->num_runs++;
    return store_rubbish_find(&survey->rubbish, survey->store, run);
}

static int survey_open(struct survey *out, const struct cli *cli)
{
    *out = (struct survey){0};
    int error = store_open(&out->store, cli);
    if (error == 0)
        error = storage_space(out->store, &out->space);
    if (error == 0)
        error = storage_find_holder(out->store, NULL);
    out->is_in_use = error == 0;
    if (error == ERR_NOT_FOUND && out->store != NULL)
        error = 0;
    if (error == 0)
        error = store_list_read(&out->catalog, out->store, "");
    if (error == 0)
        error = store_for_runs(out->store, survey_run, out);
    return error;
}

static void survey_close(struct survey *survey)
{
    store_rubbish_free(&survey->rubbish);
    store_list_free(&survey->catalog);
    storage_close(survey->store);
}

static json_t *describe_disk(const struct survey *survey)
{
    const struct storage_space *space = &survey->space;
    return json_pack("{sI sI sI sI sI}", "bytes_total", (json_int_t)space->bytes_total,
                     "bytes_used", (json_int_t)(space->bytes_total - space->bytes_free),
                     "bytes_free", (json_int_t)space->bytes_free, "inodes_total",
                     (json_int_t)space->inodes_total, "inodes_free",
                     (json_int_t)space->inodes_free);
}

/* Adds it once per run. `key` is the run, or an object in it. */
static void add_unreadable(json_t *list, const char *key, const char *reason)
{
    char run[STORAGE_KEY_MAX + 1], safe[512];
    size_t index;
    json_t *item;
    snprintf(run, sizeof run, "%.*s", (int)strcspn(key, "/"), key);
    json_array_foreach(list, index, item)
    {
        if (strcmp(run, member_text(item, "run")) == 0)
            return;
    }
    json_array_append_new(
        list, json_pack("{ss ss}", "run", run, "reason", text_safe(safe, sizeof safe, reason)));
}

static json_t *describe_unreadable(const struct survey *survey)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < survey->catalog.count; i++) {
        const struct store_entry *entry = &survey->catalog.entries[i];
        if (entry->summary.attempt == 0)
            add_unreadable(list, entry->summary.run, entry->damage);
    }
    for (size_t i = 0; i < survey->rubbish.count; i++) {
        const struct store_rubbish *item = &survey->rubbish.items[i];
        if (item->error != 0 &&
            item->error != ERR_CORRUPT) /* ERR_CORRUPT: it was read, but is invalid */
            add_unreadable(list, item->key, store_rubbish_reason(item));
    }
    return list;
}

static json_t *describe_catalog(const struct survey *survey)
{
    json_int_t checkpoints = 0, damaged = 0, bytes = 0;
    for (uint32_t i = 0; i < survey->catalog.count; i++) {
        const struct store_entry *entry = &survey->catalog.entries[i];
        checkpoints += entry->summary.attempt != 0;
        damaged += entry->summary.attempt != 0 && entry->damage != NULL;
        bytes += (json_int_t)entry->summary.bytes;
    }
    return json_pack("{sI sI sI sI so}", "runs", survey->num_runs, "checkpoints", checkpoints,
                     "damaged", damaged, "bytes", bytes, "unreadable", describe_unreadable(survey));
}

/* Describes checkpoints without a manifest, except those that a tool is writing. */
static json_t *describe_saves(const struct survey *survey)
{
    json_t *list = json_array();
    for (size_t i = 0; i < survey->rubbish.count; i++) {
        const struct store_rubbish *item = &survey->rubbish.items[i];
        uint64_t step, attempt;
        size_t length = strcspn(item->key, "/");
        if (item->what == STORE_UNFINISHED && item->key[length] == '/' &&
            retain_parse(item->key + length + 1, &step, &attempt))
            json_array_append_new(
                list, json_pack("{ss% sI sI sI sI ss}", "run", item->key, length, "step",
                                (json_int_t)step, "attempt", (json_int_t)attempt, "bytes",
                                (json_int_t)item->bytes, "files", (json_int_t)item->files,
                                "durability", "accepted"));
    }
    return list;
}

/* Describes the last committed one of all runs. */
static json_t *describe_newest(const struct survey *survey, const char *store)
{
    const struct manifest_summary *newest = NULL;
    for (uint32_t i = 0; i < survey->catalog.count; i++) {
        const struct store_entry *entry = &survey->catalog.entries[i];
        if (entry->damage == NULL &&
            (newest == NULL || strcmp(entry->summary.time, newest->time) > 0))
            newest = &entry->summary;
    }
    if (newest == NULL)
        return json_null();
    return json_pack("{ss sI sI sI ss ss}", "run", newest->run, "step", (json_int_t)newest->step,
                     "attempt", (json_int_t)newest->attempt, "bytes", (json_int_t)newest->bytes,
                     "time", newest->time, "durability", store_durability(store));
}

/* Is it of a run that was unreadable before, so that its earlier checkpoints are unknown? */
static bool is_of_unread(const struct store_list *before, const struct store_entry *entry)
{
    struct manifest_summary run = {0};
    memcpy(run.run, entry->summary.run, sizeof run.run);
    return store_list_has(before, &run);
}

/* Adds what came since the previous poll, and keeps the catalog for the next. */
static void compare_polls(struct store_polls *polls, struct store_list *catalog)
{
    for (uint32_t i = 0; i < catalog->count && polls->count > 0; i++) {
        const struct store_entry *entry = &catalog->entries[i];
        if (entry->damage != NULL || store_list_has(&polls->before, &entry->summary) ||
            is_of_unread(&polls->before, entry))
            continue;
        polls->commits++;
        polls->bytes += entry->summary.bytes;
    }
    store_list_free(&polls->before);
    polls->before = *catalog;
    polls->count++;
    *catalog = (struct store_list){0};
}

int status_of_store(json_t **out, const struct cli *cli, struct store_polls *polls)
{
    struct survey survey;
    *out = NULL;
    int error = survey_open(&survey, cli);
    if (error == 0) {
        json_begin();
        *out = json_pack("{ss ss sb so so so so}", "version", report_version, "store", cli->store,
                         "in_use", (int)survey.is_in_use, "disk", describe_disk(&survey), "catalog",
                         describe_catalog(&survey), "saves", describe_saves(&survey), "last_commit",
                         describe_newest(&survey, cli->store));
        if (polls != NULL)
            compare_polls(polls, &survey.catalog);
        if (polls != NULL)
            json_object_set_new(*out, "since_start",
                                json_pack("{sI sI}", "commits", (json_int_t)polls->commits,
                                          "bytes_committed", (json_int_t)polls->bytes));
        if (!json_end())
            error = report_error(ERR_MEMORY, NULL, "no memory for the status");
        else if (*out == NULL)
            error = report_error(ERR_INVALID, "use another name",
                                 "the name of the store is not valid UTF-8: %s", cli->store);
    }
    if (error != 0) {
        json_decref(*out);
        *out = NULL;
    }
    survey_close(&survey);
    return error;
}

/* ---- status ---- */

/* Prints members of nested objects with dotted names, and items of arrays with their numbers. */
static void print_value(const char *name, const json_t *value, int depth)
{
    char text[160], inner[256];
    const char *key;
    json_t *member;
    size_t index;
    if (json_is_object(value) && depth < 4) {
        json_object_foreach((json_t *)value, key, member)
        {
            snprintf(inner, sizeof inner, "%s%s%s", name, name[0] != '\0' ? "." : "", key);
            print_value(inner, member, depth + 1);
        }
    } else if (json_array_size(value) > 0 && depth < 4) {
        json_array_foreach(value, index, member)
        {
            snprintf(inner, sizeof inner, "%s[%zu]", name, index);
            print_value(inner, member, depth + 1);
        }
    } else {
        char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        printf("%-36s %s\n", text_safe(inner, sizeof inner, name),
               text_safe(text, sizeof text, dump != NULL ? dump : "?"));
        free(dump);
    }
}

int cli_status(const struct cli *cli)
{
    json_t *root;
    int error =
        cli->store[0] != '\0' ? status_of_store(&root, cli, NULL) : cli_call_status(&root, cli);
    if (error != 0)
        return error;
    if (cli->is_json) {
        error = text_document(root);
    } else if (!cli->is_all) {
        status_print_screen(root);
    } else {
        json_begin();
        print_value("", root, 0);
        if (!json_end())
            error = report_error(ERR_MEMORY, NULL, "no memory to print the status");
    }
    json_decref(root);
    return error;
}

/* ---- health ---- */

/* Calls the standard health service. Its two messages have the wire form of two of ours: a request
 * whose one field, number 1, is a string, and a reply whose one field, number 1, is a small integer
 * (1: SERVING). */
static int call_health(bool *out, const struct cli *cli, const char *service)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)service;
    int error = cli_call_other(&answer, cli, "/grpc.health.v1.Health/Check", &request.base,
                               &holdfast__v1__hello_reply__descriptor, CLI_CALL_MS);
    *out = error == 0 && ((const Holdfast__V1__HelloReply *)answer)->protocol == 1;
    if (error == 0)
        protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

/* Prints each run: as text, or the objects of Status. */
static void print_runs(const json_t *runs)
{
    char name[128];
    size_t index;
    json_t *run;
    json_array_foreach(runs, index, run)
    {
        const json_t *age = json_object_get(run, "newest_age_seconds");
        json_int_t count = json_integer_value(json_object_get(run, "checkpoints"));
        printf("run %s: ", text_safe(name, sizeof name, member_text(run, "run")));
        if (json_is_integer(age))
            printf("newest checkpoint step %lld, %lld s old",
                   (long long)json_integer_value(json_object_get(run, "newest_step")),
                   (long long)json_integer_value(age));
        else
            printf(count > 0 ? "every checkpoint is damaged" : "no checkpoint");
        printf(", failed saves in a row: %lld\n",
               (long long)json_integer_value(json_object_get(run, "failures_in_row")));
    }
}

static void print_alarms(const json_t *alarms)
{
    char safe[1200];
    size_t index;
    const json_t *alarm;
    json_array_foreach(alarms, index, alarm)
        printf("alarm: %s\n", text_safe(safe, sizeof safe, json_string_value(alarm)));
}

/* ERR_UNAVAILABLE: ranks have reported saves that failed before ckptd learned of them. */
static int check_clients(const json_t *run)
{
    const char *why = json_string_value(json_object_get(run, "last_failure_at_client"));
    json_int_t count = json_integer_value(json_object_get(run, "failures_at_client"));
    char name[128], safe[512];
    if (count == 0)
        return 0;
    return report_error(ERR_UNAVAILABLE, "fix the run; its next commit clears this",
                        "run %s: %lld save%s in a row failed at the client: %s",
                        text_safe(name, sizeof name, member_text(run, "run")), (long long)count,
                        count == 1 ? "" : "s",
                        text_safe(safe, sizeof safe, why != NULL ? why : "?"));
}

/* ERR_UNAVAILABLE names what is missing for --expect. */
static int check_expected(const struct cli *cli, const json_t *status)
{
    const json_t *expected = json_object_get(json_object_get(status, "health"), "expected");
    const char *why = json_string_value(json_object_get(expected, "reason"));
    char safe[768], size[32];
    if (cli->expected == 0 || json_is_true(json_object_get(expected, "fits")))
        return 0;
    if (expected == NULL)
        return report_error(ERR_VERSION, "update that ckptd",
                            "the ckptd at %s is too old to support --expect", cli->server);
    return report_error(ERR_UNAVAILABLE, "fix that, or save less",
                        "an attempt and a save of %s do not fit at the ckptd at %s: %s",
                        text_bytes(size, sizeof size, (uint64_t)cli->expected), cli->server,
                        text_safe(safe, sizeof safe, why != NULL ? why : "?"));
}

/* 0; CLI_DIFFERS: every checkpoint of some run is damaged; ERR_UNAVAILABLE with the reason. */
static int check_health(const struct cli *cli, const json_t *status, bool serving, bool saving)
{
    const char *why =
        json_string_value(json_object_get(json_object_get(status, "health"), "reason"));
    const char *offline = json_string_value(json_object_get(status, "offline"));
    bool is_offline = offline != NULL && offline[0] != '\0';
    char safe[768];
    size_t index;
    json_t *run;
    int code = 0;
    if (!serving)
        return report_error(ERR_UNAVAILABLE,
                            "wait until it has started, unless it is being drained",
                            "ckptd at %s is not serving", cli->server);
    if (!saving)
        return report_error(ERR_UNAVAILABLE,
                            is_offline ? "fix that, then restart ckptd"
                                       : "fix that; then the next committed save, or a "
                                         "restart, clears this",
                            "ckptd at %s cannot save: %s", cli->server,
                            text_safe(safe, sizeof safe, why != NULL ? why : "?"));
    ERR_TRY(check_expected(cli, status));
    json_array_foreach(json_object_get(status, "runs"), index, run)
    {
        ERR_TRY(check_clients(run));
        uint64_t count = member_number(run, "checkpoints");
        if (count > 0 && member_number(run, "damaged") == count)
            code = CLI_DIFFERS;
    }
    return code;
}

static int print_health(const struct cli *cli, const json_t *status, bool serving, bool saving)
{
    json_t *runs = json_object_get(status, "runs"), *alarms = json_object_get(status, "alarms");
    const json_t *reason = json_object_get(json_object_get(status, "health"), "reason");
    json_t *expected = json_object_get(json_object_get(status, "health"), "expected");
    if (!cli->is_json) {
        printf("serving: %s\nsaving: %s\n", serving ? "true" : "false", saving ? "true" : "false");
        if (expected != NULL)
            printf("expected fits: %s\n",
                   json_is_true(json_object_get(expected, "fits")) ? "true" : "false");
        print_runs(runs);
        print_alarms(alarms);
        return 0;
    }
    return text_pack("{sb sb ss sO* sO* sO*}", "serving", (int)serving, "saving", (int)saving,
                     "reason", saving || !reason ? "" : json_string_value(reason), "expected",
                     expected, "runs", runs, "alarms", alarms);
}

int cli_health(const struct cli *cli)
{
    bool serving = false, saving = false;
    json_t *status = NULL;
    int error = cli_call_status(&status, cli);
    if (error == 0)
        error = call_health(&serving, cli, "");
    if (error == 0)
        error = call_health(&saving, cli, "holdfast.v1.Checkpoint");
    if (error != 0) {
        json_decref(status);
        return error;
    }
    /* Of two answers at almost the same time the worse counts. */
    const json_t *can_save = json_object_get(json_object_get(status, "health"), "saving");
    saving = saving && !json_is_false(can_save);
    error = print_health(cli, status, serving, saving);
    if (error == 0)
        error = check_health(cli, status, serving, saving);
    json_decref(status);
    return error;
}
