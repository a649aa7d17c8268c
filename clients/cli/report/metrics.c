/* metrics.c - reads a run's lines of metrics.jsonl_file, and finds the steps that are still part of
 * the run.
 *
 * trainer/observe/jsonl.h has the format. A line with "start_step" begins a start: it names the
 * run, and the attempt and step from which the start continues. Lines of steps have only their
 * attempt, so the run of a line is that of the last start above it. Lines above the first start
 * belong to its run: a trainer writes them there when the file is empty.
 *
 * The steps that lasted are found backwards from the last start: its own, then those up to its
 * first step of the start from which it continued, and so on. All other steps were given up. A
 * start gives up the steps of the previous start after the last step that both share.
 *
 * A line that is not JSON, or is of another run, is counted and skipped. */
#include "clients/cli/report/report.h"

#include "proto/base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES_MAX (1u << 20) /* with its end; a trainer writes no longer line */
#define STEP_MAX ((json_int_t)1 << 53)

const char *const METRIC_NAMES[NUM_METRICS] = {
    [METRIC_LOSS] = "loss", [METRIC_VALIDATION] = "validation_loss", [METRIC_NORM] = "grad_norm",
    [METRIC_LR] = "lr",     [METRIC_RATE] = "tokens_per_second",     [METRIC_TOKENS] = "tokens"};

struct reading {
    struct metrics *metrics;
    const json_t *runs;
    uint64_t num_ours; /* lines since the begin, or since the last start */
    bool is_other;     /* the last start is of another run */
};

/* -1: there is none, or no step. */
static int64_t step_at(const json_t *line, const char *name)
{
    const json_t *value = json_object_get(line, name);
    json_int_t step = json_is_integer(value) ? json_integer_value(value) : -1;
    return step >= 0 && step <= STEP_MAX ? step : -1;
}

static double number_at(const json_t *line, const char *name)
{
    const json_t *value = json_object_get(line, name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static int64_t find_start(const struct metrics *metrics, uint64_t attempt)
{
    int64_t i = (int64_t)metrics->num_starts - 1;
    while (i >= 0 && metrics->starts[i].attempt != attempt)
        i--;
    return i;
}

static int add_start(struct metrics *metrics, const struct metrics_start *start)
{
    ERR_TRY(array_reserve(&metrics->starts, &metrics->room_starts, metrics->num_starts,
                          sizeof *metrics->starts));
    metrics->starts[metrics->num_starts++] = *start;
    return 0;
}

/* The start of a line. A start without a line of its own continued from the start above it, at its
 * first step here. */
static int start_of(uint32_t *out, struct metrics *metrics, const json_t *line)
{
    uint64_t attempt = member_number(line, "attempt");
    int64_t found = find_start(metrics, attempt), step = step_at(line, "step");
    if (found < 0) {
        found = metrics->num_starts;
        ERR_TRY(add_start(metrics, &(struct metrics_start){.attempt = attempt,
                                                           .step = step > 0 ? step - 1 : -1,
                                                           .reached = step,
                                                           .time = (double)NAN,
                                                           .parent = found - 1}));
    }
    *out = (uint32_t)found;
    return 0;
}

static int record_start(struct reading *reading, const json_t *line)
{
    struct metrics *metrics = reading->metrics;
    bool is_first = !metrics->has_start && !reading->is_other;
    reading->is_other = json_object_get(reading->runs, member_text(line, "run")) == NULL;
    if (reading->is_other) {
        metrics->num_others += 1 + (is_first ? reading->num_ours : 0);
        if (is_first) {
            metrics->num_lines = metrics->num_starts = 0;
            json_array_clear(metrics->spikes);
        }
        return 0;
    }
    struct metrics_start start = {.attempt = member_number(line, "attempt"),
                                  .from_attempt = member_number(line, "from_attempt"),
                                  .is_told = true,
                                  .step = step_at(line, "start_step"),
                                  .time = number_at(line, "time"),
                                  .parent = -1};
    start.reached = start.step;
    if (start.from_attempt != 0)
        start.parent = find_start(metrics, start.from_attempt);
    metrics->has_start = true;
    return add_start(metrics, &start);
}

/* The end of a spike follows its begin, and replaces it. "start" is removed when the lasting steps
 * are known. */
static void record_spike(struct metrics *metrics, const json_t *line, uint32_t start)
{
    json_int_t began = step_at(line, "began"), steps = step_at(line, "steps");
    json_t *spike = json_pack("{sI ss sI}", "step", began, "kind", member_text(line, "loss_spike"),
                              "start", (json_int_t)start);
    if (steps >= 0)
        json_object_set_new(spike, "steps", json_integer(steps));
    json_object_set_new(spike, "most", json_real(number_at(line, "most")));
    json_object_set_new(spike, "median", json_real(number_at(line, "median")));
    for (size_t i = json_array_size(metrics->spikes); i-- > 0;) {
        const json_t *before = json_array_get(metrics->spikes, i);
        if (member_number(before, "start") == start && step_at(before, "step") == began)
            json_array_remove(metrics->spikes, i);
    }
    json_array_append_new(metrics->spikes, spike);
}

static int record_step(struct metrics *metrics, const json_t *line, uint32_t start)
{
    struct metrics_line out = {.step = step_at(line, "step"),
                               .time = number_at(line, "time"),
                               .start = start,
                               .place = metrics->num_lines};
    for (int i = 0; i < NUM_METRICS; i++) {
        const json_t *value = json_object_get(line, METRIC_NAMES[i]);
        out.value[i] = number_at(line, METRIC_NAMES[i]);
        out.has |= json_is_number(value) || json_is_null(value) ? 1u << i : 0;
    }
    if (out.step < 0 || out.has == 0) /* of a kind that this version does not know */
        return 0;
    ERR_TRY(array_reserve(&metrics->lines, &metrics->room_lines, metrics->num_lines,
                          sizeof *metrics->lines));
    metrics->lines[metrics->num_lines++] = out;
    if (metrics->starts[start].reached < out.step)
        metrics->starts[start].reached = out.step;
    return 0;
}

static int record_line(struct reading *reading, const json_t *line)
{
    struct metrics *metrics = reading->metrics;
    uint32_t start;
    if (json_object_get(line, "start_step") != NULL)
        return record_start(reading, line);
    if (reading->is_other) {
        metrics->num_others++;
        return 0;
    }
    reading->num_ours++;
    ERR_TRY(start_of(&start, metrics, line));
    if (json_object_get(line, "loss_spike") == NULL)
        return record_step(metrics, line, start);
    record_spike(metrics, line, start);
    return 0;
}

/* ---- the steps that lasted ---- */

/* The last step that both share, each with the starts from which it continued; -1: none. */
static int64_t common_step(const struct metrics *metrics, int64_t a, int64_t a_last, int64_t b,
                           int64_t b_last)
{
    const struct metrics_start *starts = metrics->starts;
    while (a >= 0 && b >= 0 && a != b) { /* the one that began later goes back */
        if (a > b) {
            a_last = starts[a].step;
            a = starts[a].parent;
        } else {
            b_last = starts[b].step;
            b = starts[b].parent;
        }
    }
    return a < 0 || b < 0 ? -1 : a_last < b_last ? a_last : b_last;
}

static void count_lost(struct metrics *metrics)
{
    for (uint32_t i = 1; i < metrics->num_starts; i++) {
        struct metrics_start *start = &metrics->starts[i];
        int64_t reached = metrics->starts[i - 1].reached;
        int64_t common = common_step(metrics, i - 1, reached, start->parent, start->step);
        if (common < 0)
            common = start->step;
        start->lost = common >= 0 && reached > common ? reached - common : 0;
    }
}

static void find_lasting(struct metrics *metrics)
{
    int64_t last = INT64_MAX;
    for (uint32_t i = 0; i < metrics->num_starts; i++)
        metrics->starts[i].last = -1;
    for (int64_t i = (int64_t)metrics->num_starts - 1; i >= 0; i = metrics->starts[i].parent) {
        struct metrics_start *start = &metrics->starts[i];
        start->last = last;
        start->lasts_from = start->step < last ? start->step : last;
        last = start->lasts_from;
    }
}

static bool lasts(const struct metrics *metrics, uint32_t start, int64_t step)
{
    return step > metrics->starts[start].lasts_from && step <= metrics->starts[start].last;
}

static int by_step(const void *left, const void *right)
{
    const struct metrics_line *a = left, *b = right;
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Between two steps of the same start, with all that the run waited for. */
static void find_rates(struct metrics *metrics)
{
    const struct metrics_line *before = NULL;
    for (uint32_t i = 0; i < metrics->num_lines; i++) {
        struct metrics_line *line = &metrics->lines[i];
        if ((line->has >> METRIC_TOKENS & 1u) == 0)
            continue;
        if (before != NULL && before->start == line->start && line->time > before->time) {
            line->value[METRIC_RATE] = (line->value[METRIC_TOKENS] - before->value[METRIC_TOKENS]) /
                                       (line->time - before->time);
            line->has |= 1u << METRIC_RATE;
        }
        before = line;
    }
}

static void keep_lasting(struct metrics *metrics)
{
    uint32_t num_lines = 0;
    count_lost(metrics);
    find_lasting(metrics);
    for (uint32_t i = 0; i < metrics->num_lines; i++) {
        if (lasts(metrics, metrics->lines[i].start, metrics->lines[i].step))
            metrics->lines[num_lines++] = metrics->lines[i];
    }
    for (size_t i = json_array_size(metrics->spikes); i-- > 0;) {
        json_t *spike = json_array_get(metrics->spikes, i);
        uint32_t start = (uint32_t)member_number(spike, "start");
        json_object_del(spike, "start");
        if (!lasts(metrics, start, step_at(spike, "step")))
            json_array_remove(metrics->spikes, i);
    }
    metrics->num_lines = num_lines;
    if (num_lines > 0)
        qsort(metrics->lines, num_lines, sizeof *metrics->lines, by_step);
    find_rates(metrics);
}

/* ---- the file ---- */

/* `text` is the file up to the end of a line, or to its own end. */
static int read_line(struct reading *reading, const char *text, size_t bytes, bool is_whole)
{
    struct metrics *metrics = reading->metrics;
    json_error_t reason;
    json_t *line = NULL;
    int error = json_read(&line, text, bytes, &reason);
    if (error == ERR_MEMORY)
        return error;
    error = 0;
    if (json_is_object(line))
        error = record_line(reading, line);
    else if (is_whole)
        metrics->num_bad++;
    else
        metrics->is_torn = true;
    json_decref(line);
    return error;
}

int metrics_read(struct metrics *out, FILE *file, const char *path, const json_t *runs)
{
    struct reading reading = {.metrics = out, .runs = runs};
    char *text = malloc(LINE_BYTES_MAX);
    bool is_long = false; /* the rest belongs to a line that was counted */
    int error = 0;
    *out = (struct metrics){.spikes = json_array()};
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to read --metrics");
    while (error == 0 && fgets(text, LINE_BYTES_MAX, file) != NULL) {
        size_t bytes = strlen(text);
        bool is_whole = bytes > 0 && text[bytes - 1] == '\n';
        bool is_rest = is_long;
        out->num_bad += out->is_torn; /* it was not the last */
        out->is_torn = false;
        is_long = !is_whole && bytes == LINE_BYTES_MAX - 1;
        if (is_rest)
            continue;
        if (is_long)
            out->num_bad++;
        else if (strspn(text, " \t\r\n") < bytes)
            error = read_line(&reading, text, bytes, is_whole);
    }
    free(text);
    if (error == 0 && ferror(file))
        error = report_errno(ERR_IO, "could not read --metrics", path);
    if (error == 0)
        keep_lasting(out);
    return error;
}

void metrics_free(struct metrics *metrics)
{
    free(metrics->lines);
    free(metrics->starts);
    json_decref(metrics->spikes);
    *metrics = (struct metrics){0};
}

int metrics_curve(struct point **out, uint32_t *out_count, const struct metrics *metrics,
                  enum metric metric)
{
    uint32_t count = 0;
    *out_count = 0;
    *out = calloc((size_t)metrics->num_lines + 1, sizeof **out);
    if (*out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a curve");
    for (uint32_t i = 0; i < metrics->num_lines; i++) {
        const struct metrics_line *line = &metrics->lines[i];
        if ((line->has >> metric & 1u) == 0)
            continue;
        count -= count > 0 && (*out)[count - 1].step == line->step;
        (*out)[count++] = (struct point){line->step, line->value[metric]};
    }
    *out_count = count;
    return 0;
}
