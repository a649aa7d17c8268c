/* jsonl.c - writes a run's steps as lines of JSON (see jsonl.h). */
#include "trainer/observe/jsonl.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/observe/digests.h"
#include "trainer/plan/schedule.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct jsonl {
    const struct config *config;
    FILE *file;
    uint64_t attempt;
    bool is_new, is_broken;
    struct digests digests;
};

int jsonl_open(struct jsonl **out, const struct config *config)
{
    struct jsonl *j = calloc(1, sizeof(*j));
    if (j == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for metrics.jsonl_file");
    j->config = config;
    j->file = fopen(config->jsonl_file, "ae");
    if (j->file == NULL) {
        int reason = errno;
        free(j);
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not open metrics.jsonl_file %s: %s", config->jsonl_file,
                            strerror(reason));
    }
    j->is_new = fseek(j->file, 0, SEEK_END) == 0 && ftell(j->file) == 0;
    *out = j;
    return 0;
}

void jsonl_close(struct jsonl *j)
{
    if (j == NULL)
        return;
    digests_free(&j->digests);
    fclose(j->file);
    free(j);
}

static void set(json_t *line, const char *key, double value)
{
    json_object_set_new(line, key, isfinite(value) ? json_real(value) : json_null());
}

static json_t *begin_line(const struct jsonl *j, const char *key, int64_t step)
{
    json_t *line = json_object();
    json_object_set_new(line, "attempt", json_integer((json_int_t)j->attempt));
    json_object_set_new(line, key, json_integer(step));
    set(line, "time", 1e-3 * (double)clock_wall_ms());
    return line;
}

static void end_line(struct jsonl *j, json_t *line)
{
    bool is_written = line != NULL && json_dumpf(line, j->file, 0) == 0 &&
                      fputc('\n', j->file) != EOF && fflush(j->file) == 0;
    json_decref(line);
    if (is_written)
        return;
    report_errno(ERR_IO, "could not write metrics.jsonl_file", j->config->jsonl_file);
    log_warn("train", "%s; nothing more is written to it", report_line());
    j->is_broken = true;
}

/* Writes lines with the attempt that saved the history, by which its steps are found (jsonl.h). */
static void write_history(struct jsonl *j, const struct history *history)
{
    for (uint32_t i = 0; i < history->num && !j->is_broken; i++) {
        json_t *line = begin_line(j, "step", history_step(history, i));
        set(line, "loss", history->loss[i]);
        json_object_set_new(line, "restored", json_true());
        end_line(j, line);
    }
}

void jsonl_start(struct jsonl *j, const struct snapshot_times *times, int64_t step,
                 const struct history *history)
{
    if (j == NULL || j->is_broken)
        return;
    j->attempt = times->from_attempt;
    if (j->is_new)
        write_history(j, history);
    j->is_new = false;
    if (digests_read(&j->digests, j->config->jsonl_file, j->config->run, step) != 0)
        log_warn("data", "%s; repeated steps are not compared with it", report_line());
    if (j->is_broken)
        return;
    j->attempt = times->attempt;
    json_t *line = begin_line(j, "start_step", step);
    if (times->from_attempt > 0)
        json_object_set_new(line, "from_attempt", json_integer((json_int_t)times->from_attempt));
    json_object_set_new(line, "run", json_string(j->config->run));
    end_line(j, line);
}

static void add_sources(json_t *line, const struct step_result *result,
                        const struct data_place *place)
{
    json_t *losses = json_object();
    for (uint32_t i = 0; i < place->num_sources; i++)
        if (result->sources[i].counted > 0)
            set(losses, place->sources[i].name,
                result->sources[i].sum / (double)result->sources[i].counted);
    if (json_object_size(losses) > 0)
        json_object_set(line, "losses", losses);
    json_decref(losses);
}

static void add_calls(json_t *line, const struct step_calls *calls)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < calls->num; i++) {
        const struct flight_sum *sum = &calls->of[i];
        char key[64];
        snprintf(key, sizeof(key), "%.30s %.30s", sum->group, comm_kind_name(sum->kind));
        json_object_set_new(all, key,
                            json_pack("{sIsIsI}", "calls", (json_int_t)sum->calls, "bytes",
                                      (json_int_t)sum->bytes, "sent", (json_int_t)sum->sent));
    }
    if (calls->num > 0)
        json_object_set(line, "calls", all);
    json_decref(all);
}

void jsonl_step(struct jsonl *j, const struct progress *p, const struct step_result *result,
                const struct data_place *place, const struct step_calls *calls)
{
    if (j == NULL || j->is_broken)
        return;
    uint64_t samples = trainer_config_samples(j->config, p->step - 1);
    json_t *line = begin_line(j, "step", p->step);
    set(line, "loss", p->loss);
    set(line, "max_loss", result->max_loss);
    set(line, "grad_norm", p->grad_norm);
    set(line, "lr", schedule_lr(j->config, p->schedule_update - 1));
    json_object_set_new(line, "tokens", json_integer((json_int_t)p->tokens));
    json_object_set_new(line, "first_sample", json_integer((json_int_t)(p->next_sample - samples)));
    json_object_set_new(line, "last_sample", json_integer((json_int_t)p->next_sample - 1));
    char digest[24];
    snprintf(digest, sizeof(digest), "%016" PRIx64, p->tokens_digest);
    json_object_set_new(line, "tokens_digest", json_string(digest));
    int64_t other = digests_compare(&j->digests, p, samples);
    if (other >= 0)
        json_object_set_new(line, "tokens_differ_from", json_integer(other));
    set(line, "data_seconds", result->data_seconds);
    add_sources(line, result, place);
    add_calls(line, calls);
    end_line(j, line);
}

void jsonl_spike(struct jsonl *j, int64_t step, const struct spike *spike)
{
    if (j == NULL || j->is_broken || spike->kind == SPIKE_NONE)
        return;
    json_t *line = begin_line(j, "step", step);
    json_object_set_new(line, "loss_spike", json_string(spike_name(spike->kind)));
    json_object_set_new(line, "began", json_integer(spike->began));
    json_object_set_new(line, "steps", json_integer(spike->steps));
    set(line, "most", spike->most);
    set(line, "median", spike->median);
    set(line, "deviation", spike->deviation);
    end_line(j, line);
}

void jsonl_outlier(struct jsonl *j, int64_t step, const struct outlier *o)
{
    if (j == NULL || j->is_broken)
        return;
    json_t *line = begin_line(j, "step", step);
    json_object_set_new(line, "outlying", json_string(o->is_norm ? "grad_norm" : "loss"));
    set(line, "value", o->value);
    set(line, "median", o->median);
    set(line, "deviation", o->deviation);
    json_object_set_new(line, "window", json_integer(o->window));
    json_object_set_new(line, "policy", json_string(j->config->text.outlying));
    end_line(j, line);
}

void jsonl_straggler(struct jsonl *j, int64_t step, const struct straggler *late)
{
    if (j == NULL || j->is_broken)
        return;
    json_t *line = begin_line(j, "step", step);
    json_object_set_new(line, "straggler", json_integer(late->rank));
    json_object_set_new(line, "host", json_string(late->host));
    json_object_set_new(line, "late", json_integer(late->num_late));
    set(line, "percent", late->percent);
    set(line, "others", late->others);
    end_line(j, line);
}

void jsonl_left_out(struct jsonl *j, const struct broken_step *step)
{
    if (j == NULL || j->is_broken)
        return;
    const struct jump *samples = &step->samples;
    json_t *line = begin_line(j, "step", step->step);
    json_object_set_new(line, "kind", json_string(broken_kind(step)));
    json_object_set_new(line, "policy", json_string(broken_policy(step)));
    json_object_set_new(line, "reason", json_string(step->why));
    json_object_set_new(line, step->is_rolled_back ? "rolled_back" : "skipped", json_true());
    json_object_set_new(line, "first_sample", json_integer((json_int_t)samples->first));
    json_object_set_new(line, "last_sample",
                        json_integer((json_int_t)(samples->first + samples->count) - 1));
    end_line(j, line);
}

void jsonl_validation(struct jsonl *j, const struct progress *p, double loss)
{
    if (j == NULL || j->is_broken)
        return;
    json_t *line = begin_line(j, "step", p->step);
    set(line, "validation_loss", loss);
    end_line(j, line);
}
