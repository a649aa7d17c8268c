/* collect.c - collects the facts about a run as one JSON object (see report.h).
 *
 * The list of checkpoints is that of `list --json`. collect.c reads each manifest for the metrics
 * of its save, and the first of each attempt for the changes since the previous start. The newest
 * has position, losses, lineage, and the steps that were skipped or rolled back. Starts without a
 * checkpoint are known only from --metrics. Unreadable items are listed under "notes", and the
 * report continues. */
#include "clients/cli/report/report.h"

#include "proto/format/flaw.h"
#include "proto/model/loss_history.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct told {
    struct manifest *manifest; /* NULL: none */
    json_t *state, *config, *mesh, *identity;
};

struct gather {
    const struct cli *cli;
    struct storage *store; /* NULL: the facts come from its server */
    json_t *root;
    struct told newest; /* of those read so far */
    bool has_damage;
    char run[128];
};

static void note(struct gather *gather, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note(struct gather *gather, const char *format, ...)
{
    char text[REPORT_TEXT_MAX];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    report_make_printable(text);
    json_array_append_new(json_object_get(gather->root, "notes"), json_string(text));
}

static json_t *member(struct gather *gather, const char *name)
{
    return json_object_get(gather->root, name);
}

static void copy_number(json_t *out, const json_t *from, const char *name)
{
    json_t *value = json_object_get(from, name);
    if (json_is_number(value))
        json_object_set(out, name, value);
}

/* Was there enough memory? Other users of jansson reset that, so call this before them, and at the
 * end. */
static int check_memory(void)
{
    return json_end() ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a report");
}

static void told_free(struct told *told)
{
    manifest_free(told->manifest);
    json_decref(told->state);
    json_decref(told->config);
    json_decref(told->mesh);
    json_decref(told->identity);
    *told = (struct told){0};
}

/* Takes over the manifest and reads its sections; an invalid one is an empty object. ERR_MEMORY. */
static int told_read(struct told *out, struct manifest *manifest)
{
    *out = (struct told){.manifest = manifest};
    struct {
        json_t **out;
        const char *text;
    } sections[] = {{&out->state, manifest->state_json},
                    {&out->config, manifest->config_json},
                    {&out->mesh, manifest->mesh_json},
                    {&out->identity, manifest->identity_json}};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const char *text = sections[i].text != NULL ? sections[i].text : "{}";
        int error = json_read_object(sections[i].out, text, "a section");
        if (error == ERR_INVALID)
            *sections[i].out = json_object();
        else if (error != 0)
            return error;
    }
    return check_memory();
}

/* ---- starts ---- */

/* The start of that attempt in the list, which is sorted by attempt. All starts without checkpoints
 * have attempt 0. */
static json_t *add_start(struct gather *gather, uint64_t attempt, int64_t step, uint64_t from)
{
    json_t *list = member(gather, "starts"), *start = NULL;
    size_t place = json_array_size(list);
    for (; place > 0 && start == NULL; place--) {
        json_t *before = json_array_get(list, place - 1);
        if (member_number(before, "attempt") == attempt && attempt != 0)
            start = before;
        else if (member_number(before, "attempt") <= attempt)
            break;
    }
    if (start == NULL) {
        start = json_pack("{sI sI}", "attempt", (json_int_t)attempt, "step", (json_int_t)step);
        json_array_insert_new(list, place, start);
    }
    if (from != 0)
        json_object_set_new(start, "from_attempt", json_integer((json_int_t)from));
    return start;
}

static void record_start(struct gather *gather, const struct told *told)
{
    const struct manifest_summary *summary = &told->manifest->summary;
    const json_t *hosts = json_at(told->identity, "environment.hosts");
    json_t *start = add_start(gather, summary->attempt, (int64_t)told->manifest->parent_step,
                              told->manifest->parent_attempt);
    json_object_set_new(start, "ranks", json_integer(summary->world_size));
    json_object_set(start, "mesh", told->mesh);
    if (json_is_object(hosts))
        json_object_set_new(start, "hosts", json_integer((json_int_t)json_object_size(hosts)));
}

/* Records the changes since the previous start. */
static int record_changes(struct gather *gather, const struct manifest *manifest)
{
    const struct manifest *former = gather->newest.manifest;
    const struct manifest_summary *before = &former->summary, *now = &manifest->summary;
    json_t *found = NULL;
    ERR_TRY(check_memory());
    ERR_TRY(settings_compare(&found, former, manifest));
    json_begin();
    if (json_array_size(found) > 0)
        json_array_append_new(
            member(gather, "changes"),
            json_pack("{ss ss sO}", "first",
                      text_checkpoint(gather->run, before->step, before->attempt).text, "second",
                      text_checkpoint(gather->run, now->step, now->attempt).text, "settings",
                      found));
    json_decref(found);
    return check_memory();
}

/* ---- checkpoints ---- */

static int read_manifest(void *user, struct manifest **out, const struct selection *selection)
{
    struct gather *gather = user;
    return gather->store != NULL ? checkpoint_manifest(out, gather->store, selection)
                                 : server_manifest(out, NULL, gather->cli, selection);
}

static int record_told(struct gather *gather, json_t *row, const struct told *told)
{
    static const char *const measured[] = {"loss", "grad_norm", "step_seconds",
                                           "save_wait_seconds"};
    const struct manifest *manifest = told->manifest, *former = gather->newest.manifest;
    if (former == NULL || former->summary.attempt != manifest->summary.attempt) {
        record_start(gather, told);
        if (former != NULL)
            ERR_TRY(record_changes(gather, manifest));
    }
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        copy_number(row, json_object_get(told->state, "metrics"), measured[i]);
    copy_number(row, json_object_get(told->state, "data"), "tokens");
    return check_memory();
}

static int record_manifest(struct gather *gather, json_t *row, struct manifest *manifest)
{
    struct told told;
    int error = told_read(&told, manifest);
    if (error == 0)
        error = record_told(gather, row, &told);
    told_free(&gather->newest);
    gather->newest = told;
    return error;
}

static int record_row(struct gather *gather, json_t *row)
{
    struct manifest *manifest;
    struct selection selection = {.step = (int64_t)member_number(row, "step"),
                                  .attempt = member_number(row, "attempt")};
    const char *damage = member_text(row, "damage");
    snprintf(selection.run, sizeof selection.run, "%s", gather->run);
    if (selection.attempt == 0) { /* the run itself */
        note(gather, "The run could not be read: %s", damage);
        return 0;
    }
    const struct text_checkpoint name =
        text_checkpoint(gather->run, (uint64_t)selection.step, selection.attempt);
    json_object_set_new(row, "checkpoint", json_string(name.text));
    ERR_TRY(check_memory());
    int error = read_manifest(gather, &manifest, &selection);
    if (error == 0)
        return record_manifest(gather, row, manifest);
    if (!lineage_is_lost(error))
        return error;
    if (damage[0] == '\0' && error == ERR_CORRUPT) { /* a list reads only the summary */
        json_object_set_new(row, "flaw", json_string(FLAW_DAMAGED));
        json_object_set_new(row, "damage", json_string(report_message()));
        gather->has_damage = true;
    }
    note(gather, "%s is shown without the data of its manifest: %s", name.text,
         damage[0] != '\0' ? damage : report_line());
    return check_memory();
}

/* Reads how long the last save of this ckptd took until it was durable. Not every user may do
 * that. */
static int record_durable(struct gather *gather)
{
    json_t *status = NULL;
    int error = cli_call_status(&status, gather->cli);
    const json_t *commit = json_object_get(status, "last_commit"),
                 *rows = member(gather, "checkpoints");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        if (strcmp(member_text(commit, "run"), gather->run) == 0 &&
            member_number(commit, "step") == member_number(row, "step") &&
            member_number(commit, "attempt") == member_number(row, "attempt") &&
            json_is_number(json_object_get(commit, "seconds")))
            json_object_set(row, "durable_seconds", json_object_get(commit, "seconds"));
    }
    json_decref(status);
    return error == ERR_MEMORY ? error : check_memory();
}

static int record_rows(struct gather *gather)
{
    json_t *rows;
    ERR_TRY(list_read(&rows, &gather->has_damage, gather->cli));
    json_object_set_new(gather->root, "checkpoints", rows);
    int error = 0;
    for (size_t i = json_array_size(rows); i-- > 0 && error == 0;) /* the oldest first */
        error = record_row(gather, json_array_get(rows, i));
    if (error == 0 && gather->store == NULL)
        error = record_durable(gather);
    return error;
}

/* ---- the newest ---- */

static int record_history(struct gather *gather, const char *name)
{
    struct history *history = malloc(sizeof *history);
    struct point *points = malloc(HISTORY_POINTS * sizeof *points);
    bool has_memory = history != NULL && points != NULL;
    if (has_memory) {
        history_read(history, json_object_get(gather->newest.state, "history"));
        for (uint32_t i = 0; i < history->num; i++)
            points[i] = (struct point){history_step(history, i), history->loss[i]};
        if (history->num > 0)
            json_object_set_new(member(gather, "curves"), "loss", curve_json(points, history->num));
    }
    if (has_memory && history->num == 0)
        note(gather, "%s has no losses of the steps before it.", name);
    else if (has_memory && gather->cli->metrics[0] == '\0')
        note(gather,
             "Without --metrics there are no gradient norm, learning rate and spikes; %s has the "
             "loss of every %s.",
             name,
             history->halvings > 0 ? text_count(1ull << history->halvings, "step").text : "step");
    free(history);
    free(points);
    return has_memory ? check_memory() : report_error(ERR_MEMORY, NULL, "no memory for a curve");
}

static int record_lineage(struct gather *gather)
{
    const struct manifest *manifest = gather->newest.manifest;
    const json_t *initial = json_at(gather->newest.config, "checkpoint.initial_load_path");
    struct lineage lineage;
    json_t *out = json_object();
    json_object_set_new(gather->root, "lineage", out);
    ERR_TRY(check_memory());
    ERR_TRY(lineage_read(&lineage, manifest, read_manifest, gather));
    int error = lineage_add_json(out, &lineage);
    lineage_free(&lineage);
    if (error != 0)
        return error;
    if (json_string_length(initial) > 0)
        json_object_set_new(out, "initial_load_path", json_string(json_string_value(initial)));
    if (manifest->summary.origin[0] != '\0')
        json_object_set_new(out, "origin", json_string(manifest->summary.origin));
    if (manifest->converted_from[0] != '\0')
        json_object_set_new(out, "converted_from", json_string(manifest->converted_from));
    return check_memory();
}

static int record_newest(struct gather *gather)
{
    json_t *head = member(gather, "head");
    if (gather->newest.manifest == NULL) {
        note(gather, "The run has no checkpoint that can be read.");
        return 0;
    }
    const struct manifest_summary *summary = &gather->newest.manifest->summary;
    const struct text_checkpoint name =
        text_checkpoint(gather->run, summary->step, summary->attempt);
    json_object_set_new(head, "newest", json_string(name.text));
    json_object_set_new(head, "newest_time", json_string(summary->time));
    json_object_set_new(head, "steps", json_integer((json_int_t)summary->step));
    copy_number(head, json_object_get(gather->newest.state, "data"), "tokens");
    json_t *broken = json_object_get(gather->newest.state, "broken");
    if (json_array_size(broken) > 0)
        json_object_set(gather->root, "broken", broken);
    ERR_TRY(record_history(gather, name.text));
    return record_lineage(gather);
}

/* ---- --metrics ---- */

/* The names of the run in such a file: a renamed run had another. */
static json_t *names_of(struct gather *gather)
{
    json_t *names = json_pack("{sb}", gather->run, 1);
    const json_t *rows = member(gather, "checkpoints");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const char *origin = member_text(json_array_get(rows, i), "origin");
        if (origin[0] != '\0')
            json_object_set_new(names, origin, json_true());
    }
    return names;
}

/* NULL: there is none. */
static json_t *time_json(double seconds)
{
    char text[32];
    struct tm parts;
    time_t whole = seconds >= 0 && seconds < 1e11 ? (time_t)seconds : -1;
    if (whole < 0 || gmtime_r(&whole, &parts) == NULL ||
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        return NULL;
    return json_string(text);
}

static void record_starts(struct gather *gather, const struct metrics *metrics)
{
    for (uint32_t i = 0; i < metrics->num_starts; i++) {
        const struct metrics_start *from = &metrics->starts[i];
        if (!from->is_told || from->step < 0)
            continue;
        json_t *start = add_start(gather, from->attempt, from->step, from->from_attempt);
        json_object_set_new(start, "time", time_json(from->time));
        json_object_set_new(start, "lost_steps", json_integer(from->lost));
    }
}

static int record_curves(struct gather *gather, const struct metrics *metrics)
{
    for (int i = 0; i < METRIC_TOKENS; i++) {
        struct point *points;
        uint32_t count, gaps = 0;
        ERR_TRY(metrics_curve(&points, &count, metrics, (enum metric)i));
        for (uint32_t at = 0; at < count; at++)
            gaps += points[at].value != points[at].value;
        if (gaps > 0)
            note(gather, "%s has %s that %s not finite: a gap in the curve.", METRIC_NAMES[i],
                 text_count(gaps, "value").text, gaps == 1 ? "is" : "are");
        if (count > 0)
            json_object_set_new(member(gather, "curves"), METRIC_NAMES[i],
                                curve_json(points, count));
        free(points);
    }
    return 0;
}

static void note_missing(struct gather *gather, const struct metrics *metrics)
{
    const char *file = gather->cli->metrics;
    const struct metrics_start *last =
        metrics->num_starts > 0 ? &metrics->starts[metrics->num_starts - 1] : NULL;
    if (metrics->num_lines == 0)
        note(gather, "%s has no step of the run.", file);
    else if (!metrics->has_start)
        note(gather, "No line of %s names its run; all are taken as lines of this run.", file);
    if (metrics->is_torn)
        note(gather, "Left out of %s: its last line, which is incomplete.", file);
    if (metrics->num_bad > 0)
        note(gather, "Left out of %s: %s that %s not JSON.", file,
             text_count(metrics->num_bad, "line").text, metrics->num_bad == 1 ? "is" : "are");
    if (metrics->num_others > 0)
        note(gather, "Left out of %s: %s of other runs.", file,
             text_count(metrics->num_others, "line").text);
    const struct manifest *newest = gather->newest.manifest;
    if (last != NULL && newest != NULL && last->attempt < newest->summary.attempt)
        note(gather, "%s ends with attempt %llu; the newest checkpoint is of attempt %llu.", file,
             (unsigned long long)last->attempt, (unsigned long long)newest->summary.attempt);
}

/* Records the newest step of the run, if it is newer than the newest checkpoint. */
static void record_last(struct gather *gather, const struct metrics *metrics)
{
    json_t *head = member(gather, "head");
    if (metrics->num_lines == 0)
        return;
    const struct metrics_line *first = metrics->lines, *last = first + metrics->num_lines - 1;
    if (last->step < (int64_t)member_number(head, "steps"))
        return;
    json_object_set_new(head, "steps", json_integer(last->step));
    json_object_set_new(head, "time", time_json(last->time));
    for (; last > first && (last->has >> METRIC_TOKENS & 1u) == 0;)
        last--;
    double tokens = last->value[METRIC_TOKENS];
    if (tokens >= 0 && tokens < 1e18)
        json_object_set_new(head, "tokens", json_integer((json_int_t)tokens));
}

static int record_metrics(struct gather *gather)
{
    struct metrics metrics = {0};
    FILE *file = fopen(gather->cli->metrics, "re");
    if (file == NULL)
        return report_errno(errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO,
                            "could not open --metrics", gather->cli->metrics);
    json_t *names = names_of(gather);
    int error = metrics_read(&metrics, file, gather->cli->metrics, names);
    fclose(file);
    json_decref(names);
    if (error == 0) {
        record_starts(gather, &metrics);
        json_array_extend(member(gather, "spikes"), metrics.spikes);
        record_last(gather, &metrics);
        note_missing(gather, &metrics);
        error = record_curves(gather, &metrics);
    }
    metrics_free(&metrics);
    return error == 0 ? check_memory() : error;
}

/* ---- everything ---- */

/* Records the run's begin, if known, and the number of attempts. */
static void finish_head(struct gather *gather)
{
    json_t *head = member(gather, "head");
    const json_t *rows = member(gather, "checkpoints"), *starts = member(gather, "starts");
    const json_t *oldest = json_array_get(rows, json_array_size(rows) - 1);
    const json_t *first = json_array_get(starts, 0);
    const json_t *last = json_array_get(starts, json_array_size(starts) - 1);
    const char *begin = member_text(first, "time");
    if (begin[0] == '\0')
        begin = member_text(oldest, "time");
    if (begin[0] != '\0')
        json_object_set_new(head, "begin", json_string(begin));
    if (json_object_get(head, "time") == NULL && json_object_get(head, "newest_time") != NULL)
        json_object_set(head, "time", json_object_get(head, "newest_time"));
    if (last != NULL)
        json_object_set(head, "attempts", json_object_get(last, "attempt"));
}

static int gather_all(struct gather *gather)
{
    json_begin();
    gather->root = json_pack("{s{ss} s[] s{} s[] s[] s[] s[]}", "head", "run", gather->run, "notes",
                             "curves", "spikes", "checkpoints", "starts", "changes");
    ERR_TRY(check_memory());
    int error = record_rows(gather);
    if (error == 0)
        error = record_newest(gather);
    if (error == 0 && gather->cli->metrics[0] != '\0')
        error = record_metrics(gather);
    if (error == 0)
        finish_head(gather);
    return error == 0 ? check_memory() : error;
}

int report_collect(json_t **out, bool *out_has_damage, const struct cli *cli)
{
    struct gather gather = {.cli = cli};
    struct selection selection;
    ERR_TRY(selection_parse_run(&selection, cli->args[0]));
    strcpy(gather.run, selection.run);
    int error = cli->store[0] != '\0' ? store_begin(&gather.store, cli, gather.run, false) : 0;
    if (error == 0)
        error = gather_all(&gather);
    *out = gather.root;
    *out_has_damage = gather.has_damage;
    if (error != 0) {
        json_decref(gather.root);
        *out = NULL;
    }
    told_free(&gather.newest);
    storage_close(gather.store);
    return error;
}
