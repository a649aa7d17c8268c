/* metrics.c - step line, loss file, times of a start (see metrics.h).
 *
 * A start is measured from the kernel's start time of the process, so it includes loading the
 * program and the libraries. Its parts: init (until the model is laid out), attempt, load, weights
 * (their initial values, or their conversion after a load), first step. */
#include "trainer/observe/metrics.h"
#include "kernels/device.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/base/memory_check.h"
#include "trainer/observe/bar.h"
#include "trainer/observe/breaks.h"
#include "trainer/observe/jsonl.h"
#include "trainer/observe/spikes.h"
#include "trainer/observe/tensorboard.h"
#include "trainer/observe/textfile.h"
#include "trainer/observe/waits.h"
#include "trainer/plan/schedule.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct metrics {
    struct metrics_options of;
    FILE *loss_file;
    struct tensorboard *board; /* or NULL, as is jsonl */
    struct jsonl *jsonl;
    struct waits waits;
    struct spikes spikes;
    double loaded_at, loaded_age; /* when the load was over; seconds from process start to it */
    double ready_at;              /* when the first step began */
    double bar_at;                /* when the bar was shown */
    double logged_at;
    int64_t first_step, logged_step;
    /* Since the last line: */
    uint64_t logged_tokens; /* of the run at the last line */
    double data_seconds;
    struct source_loss sources[DATA_SOURCES_MAX];
    bool has_textfile;                         /* the file is set and can be written */
    bool has_stepped, is_back, loss_is_broken; /* is_back: no step was made since a roll-back */
};

/* Seconds since the process started (resolution 10 ms); 0 if /proc does not have it. */
static double process_age(void)
{
    char text[1024];
    unsigned long long ticks = 0;
    FILE *file = fopen("/proc/self/stat", "r");
    if (file == NULL)
        return 0;
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = 0;
    /* Field 22, counted from after the name, which may hold spaces: it ends at the last ')'. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    if (at == NULL || sscanf(at, "%llu", &ticks) != 1)
        return 0;
    struct timespec since_boot;
    clock_gettime(CLOCK_BOOTTIME, &since_boot);
    return (double)since_boot.tv_sec + (double)since_boot.tv_nsec * 1e-9 -
           (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

struct memory_use {
    double gib, percent; /* percent of all memory */
};

/* The memory of the state; zeros if not known. */
static struct memory_use memory_of(const struct metrics *m)
{
    struct device_room room = {0};
    uint64_t all, taken;
    if (m->of.device != NULL) {
        (void)device_room(m->of.device, &room);
        all = room.all;
        taken = room.all - room.free;
    } else {
        all = memory_check_capacity("");
        taken = memory_check_taken("").peak;
        memory_check_forget_peak("");
    }
    return (struct memory_use){(double)taken / (double)(1 << 30),
                               all > 0 ? 100 * (double)taken / (double)all : 0};
}

static int open_files(struct metrics *m)
{
    const struct config *config = m->of.config;
    char folder[2 * CONFIG_TEXT_MAX];
    if (config->loss_file[0] != 0 && (m->loss_file = fopen(config->loss_file, "a")) == NULL)
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not open metrics.loss_file %s: %s", config->loss_file,
                            strerror(errno));
    snprintf(folder, sizeof(folder), "%s/%s", config->dump_folder, config->tensorboard_folder);
    if (config->tensorboard)
        ERR_TRY(tensorboard_open(&m->board, folder));
    if (config->prometheus_file[0] != 0 &&
        textfile_write(config->prometheus_file, config->run, NULL, 0) != 0)
        return report_error(ERR_INVALID, "make its folder, or name another file", "%s",
                            report_line());
    m->has_textfile = config->prometheus_file[0] != 0;
    return config->jsonl_file[0] != 0 ? jsonl_open(&m->jsonl, config) : 0;
}

int metrics_open(struct metrics **out, const struct metrics_options *options)
{
    struct metrics *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the metrics");
    m->of = *options;
    m->waits.config = m->spikes.config = options->config;
    int rc = options->rank == 0 ? open_files(m) : 0;
    if (rc != 0) {
        metrics_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (m == NULL)
        return;
    if (m->bar_at > 0)
        log_show(NULL);
    if (m->loss_file != NULL)
        fclose(m->loss_file);
    if (m->has_textfile)
        unlink(m->of.config->prometheus_file);
    tensorboard_close(m->board);
    jsonl_close(m->jsonl);
    free(m);
}

void metrics_loaded(struct metrics *m)
{
    m->loaded_at = clock_seconds();
    m->loaded_age = process_age();
}

/* Adds earlier steps to a folder that has none. */
static void fill_board(struct metrics *m)
{
    for (uint32_t i = 0; i < m->of.history->num && tensorboard_is_first(m->board); i++)
        tensorboard_add(
            m->board, history_step(m->of.history, i),
            &(struct tensorboard_scalar){"loss_metrics/global_avg_loss", m->of.history->loss[i]},
            1);
}

void metrics_ready(struct metrics *m, const struct snapshot_times *times, int64_t step)
{
    history_cut(m->of.history, step); /* a run that begins with another run's weights has no past */
    jsonl_start(m->jsonl, times, step, m->of.history);
    if (m->board != NULL) {
        tensorboard_start(m->board, times->attempt, step);
        fill_board(m);
    }
    m->ready_at = m->logged_at = clock_seconds();
}

void metrics_left_out(struct metrics *m, const struct broken_step *step)
{
    jsonl_left_out(m->jsonl, step);
    m->is_back = m->is_back || step->is_rolled_back;
}

void metrics_outlier(struct metrics *m, int64_t step, const struct outlier *outlier)
{
    jsonl_outlier(m->jsonl, step, outlier);
}

void metrics_straggler(struct metrics *m, int64_t step, const struct straggler *late)
{
    if (m->of.rank != 0)
        return;
    char more[48] = "";
    if (late->num_late > 1)
        snprintf(more, sizeof(more), " (and %u more there)", late->num_late - 1);
    log_warn("train",
             "step %" PRId64
             ": rank %u on %s%s is a straggler: it waited %.1f%% of its time for other ranks, the "
             "others of its stage %.1f%% (metrics.straggler_percent = %g): check that host's "
             "clocks, temperature and load (trainer --preflight)",
             step, late->rank, late->host, more, late->percent, late->others,
             m->of.config->straggler_percent);
    jsonl_straggler(m->jsonl, step, late);
}

/* A write error of the loss file is logged once. */
static void flush_loss(struct metrics *m)
{
    if (fflush(m->loss_file) == 0)
        return;
    report_errno(ERR_IO, "could not write metrics.loss_file", m->of.config->loss_file);
    log_warn("train", "%s; nothing more is written to it", report_line());
    m->loss_is_broken = true;
}

static void write_loss(struct metrics *m, const struct progress *p,
                       const struct step_result *result)
{
    if (m->loss_file == NULL || m->loss_is_broken)
        return;
    const struct data_place *place = data_place(m->of.data);
    fprintf(m->loss_file, "%" PRId64 " %a %a", p->step, breaks_without_sign(p->loss),
            breaks_without_sign(p->grad_norm));
    for (uint32_t i = 0; i < place->num_sources; i++)
        if (result->sources[i].counted > 0)
            fprintf(m->loss_file, " loss.%s=%a", place->sources[i].name,
                    result->sources[i].sum / (double)result->sources[i].counted);
    fputc('\n', m->loss_file);
    flush_loss(m);
}

static void log_start(const struct metrics *m, const struct progress *p,
                      const struct snapshot_times *times)
{
    double first_step = clock_seconds() - m->ready_at;
    double init = m->loaded_age - times->attempt_seconds - times->load_seconds;
    char connect[64] = "";
    if (m->of.connect_seconds > 0)
        snprintf(connect, sizeof(connect), "; NCCL's communicators: %.3f s of init",
                 m->of.connect_seconds);
    log_info("train",
             "start: init %.3f s, attempt %.3f s, load %.3f s (%.1f MiB), weights %.3f s, first "
             "step (%" PRId64 ") %.3f s: %.2f s since the process began%s",
             init, times->attempt_seconds, times->load_seconds,
             (double)times->loaded_bytes / 1048576.0, m->ready_at - m->loaded_at, p->step,
             first_step, process_age(), connect);
}

/* 1234567 -> "1,234,567" */
static const char *with_commas(char out[32], uint64_t value)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%" PRIu64, value), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

/* "  epoch: 0.31"; of several sources "  prose: 3.1416 (epoch 0.31)" each. */
static void describe_sources(const struct metrics *m, const struct progress *p, FILE *out)
{
    const struct data_place *place = data_place(m->of.data);
    uint32_t num = data_info(m->of.data)->num_sources;
    for (uint32_t i = 0; i < num; i++) {
        const struct data_source *source = &place->sources[i];
        const struct source_loss *loss = &m->sources[i];
        double epoch =
            (double)data_drawn(m->of.data, i, p->next_sample) / (double)source->num_samples;
        if (num == 1)
            fprintf(out, "  epoch: %.2f", epoch);
        else if (loss->counted > 0)
            fprintf(out, "  %s: %7.4f (epoch %.2f)", source->name,
                    loss->sum / (double)loss->counted, epoch);
        else
            fprintf(out, "  %s: - (epoch %.2f)", source->name, epoch);
    }
}

struct speed {
    double seconds, data_seconds; /* of a step */
    double tps, tflops, mfu, hfu; /* the last two in percent; 0 if the peak is not known */
    /* In percent: of a step; of the time since the first step began. */
    double data_share, save_share;
};

static struct speed speed_of(const struct metrics *m, const struct progress *p, double time,
                             const struct snapshot_times *times)
{
    double steps = (double)(p->step - m->logged_step), seconds = time - m->logged_at;
    double tokens = (double)(p->tokens - m->logged_tokens), peak = m->of.peak_tflops;
    struct speed s = {.seconds = seconds / steps, .data_seconds = m->data_seconds / steps};
    s.data_share = seconds > 0 ? 100 * m->data_seconds / seconds : 0;
    s.save_share = 100 * times->save_seconds / (time - m->ready_at + 1e-9);
    s.tps = seconds > 0 ? tokens / seconds / m->of.num_ranks : 0;
    s.tflops = s.tps * m->of.flops_per_token * 1e-12;
    if (peak > 0) {
        s.mfu = 100 * s.tflops / peak;
        s.hfu = s.mfu * (1 + m->of.recomputed_flops / m->of.flops_per_token);
    }
    return s;
}

static const char *describe_mfu(char out[64], const struct metrics *m, const struct speed *s)
{
    snprintf(out, 64, "n/a");
    if (m->of.peak_tflops > 0)
        snprintf(out, 64, "%.2f%%  hfu: %.2f%%", s->mfu, s->hfu);
    return out;
}

static const char *describe_saves(char out[32], const struct metrics *m, const struct speed *s)
{
    out[0] = 0;
    if (m->of.config->checkpoint_enable)
        snprintf(out, 32, "  saves: %.2f%%", s->save_share);
    return out;
}

static void add_to_board(struct metrics *m, const struct progress *p, const struct speed *s,
                         double max_loss, struct memory_use memory)
{
    bool is_host = m->of.device == NULL;
    const struct tensorboard_scalar scalars[] = {
        {"loss_metrics/global_avg_loss", p->loss},
        {"loss_metrics/global_max_loss", max_loss},
        {"grad_norm", p->grad_norm},
        {"lr", schedule_lr(m->of.config, p->schedule_update - 1)},
        {"n_tokens_seen", (double)p->tokens},
        {"throughput(tps)", s->tps},
        {"tflops", s->tflops},
        {"time_metrics/end_to_end(s)", s->seconds},
        {"time_metrics/data_loading(s)", s->data_seconds},
        {"time_metrics/data_loading(%)", s->data_share},
        {"time_metrics/saves(%)", s->save_share},
        {is_host ? "memory/max_resident(GiB)" : "memory/device_in_use(GiB)", memory.gib},
        {is_host ? "memory/max_resident(%)" : "memory/device_in_use(%)", memory.percent},
        {"mfu(%)", s->mfu}, /* if the peak is known */
        {"hfu(%)", s->hfu},
    };
    uint32_t num = sizeof(scalars) / sizeof(scalars[0]);
    if (m->board != NULL)
        tensorboard_add(m->board, p->step, scalars, m->of.peak_tflops > 0 ? num : num - 2);
}

static void write_textfile(struct metrics *m, const struct progress *p, const struct speed *s,
                           double max_loss, struct memory_use memory)
{
    const struct config *config = m->of.config;
    double ranks = m->of.num_ranks;
    const struct textfile_value values[] = {
        {"time_seconds", "Time of this file, in seconds since 1970.", (double)time(NULL)},
        {"step", "The last completed step.", (double)p->step},
        {"steps", "Steps of the run (training.steps).", (double)config->steps},
        {"loss", "Loss of that step, a mean over its tokens.", p->loss},
        {"max_loss", "The largest loss of its micro-batches.", max_loss},
        {"grad_norm", "Gradient norm before clipping.", p->grad_norm},
        {"learning_rate", "Learning rate of that step.",
         schedule_lr(config, p->schedule_update - 1)},
        {"tokens_total", "Tokens that the run has trained on.", (double)p->tokens},
        {"ranks", "Ranks of this start.", ranks},
        {"tokens_per_second", "Tokens per second of all ranks.", s->tps * ranks},
        {"flops_per_second", "FLOP/s of a rank.", 1e12 * s->tflops},
        {"step_seconds", "Mean time of a step since the step line before.", s->seconds},
        {"data_wait_seconds", "Part of step_seconds that rank 0 waited for samples.",
         s->data_seconds},
        {"save_wait_ratio", "Part of the time that training waited for saves.",
         s->save_share / 100},
        {"memory_bytes", "Memory in use by rank 0, or on its GPU.", memory.gib * (double)(1 << 30)},
        {"memory_ratio", "Part of the available memory.", memory.percent / 100},
        {"mfu_ratio", "Model FLOP/s divided by the processor's peak.", s->mfu / 100},
    };
    size_t num = sizeof(values) / sizeof(values[0]);
    if (!m->has_textfile || textfile_write(config->prometheus_file, config->run, values,
                                           m->of.peak_tflops > 0 ? num : num - 1) == 0)
        return;
    log_warn("train", "%s; nothing more is written to it", report_line());
    m->has_textfile = false;
}

static void log_step(struct metrics *m, const struct progress *p, double max_loss,
                     const struct snapshot_times *times)
{
    char tps_text[32], tokens_text[32], mfu[64], saves[32], sources[DATA_SOURCES_MAX * 128] = "";
    double time = clock_seconds();
    struct speed speed = speed_of(m, p, time, times);
    struct memory_use memory = memory_of(m);
    FILE *out = fmemopen(sources, sizeof(sources), "w");
    if (out != NULL) {
        describe_sources(m, p, out);
        fclose(out);
    }
    log_info("train",
             "step: %2" PRId64 "  loss: %7.4f  grad_norm: %7.4f  memory: %5.2fGiB(%.2f%%)  "
             "tps: %s  "
             "tflops: %.2f  mfu: %s  time: %.3fs  data: %.3fs (%.1f%%)%s  tokens: %s%s",
             p->step, p->loss, p->grad_norm, memory.gib, memory.percent,
             with_commas(tps_text, (uint64_t)llround(speed.tps)), speed.tflops,
             describe_mfu(mfu, m, &speed), speed.seconds, speed.data_seconds, speed.data_share,
             describe_saves(saves, m, &speed), with_commas(tokens_text, p->tokens), sources);
    add_to_board(m, p, &speed, max_loss, memory);
    write_textfile(m, p, &speed, max_loss, memory);
    if (m->logged_step > m->first_step) /* before the first step the reader cannot read ahead */
        waits_check(&m->waits, p->step, speed.data_share, speed.data_seconds);
    m->logged_at = time;
    m->logged_step = p->step;
    m->logged_tokens = p->tokens;
    m->data_seconds = 0;
    memset(m->sources, 0, sizeof(m->sources));
}

/* Logs the calls of a step, by group and kind. */
static void log_calls(const struct progress *p, const struct step_calls *calls)
{
    char text[FLIGHT_SUMS_MAX * 64] = "";
    size_t at = 0;
    uint64_t num = 0, sent = 0;
    for (uint32_t i = 0; i < calls->num; i++) {
        const struct flight_sum *sum = &calls->of[i];
        num += sum->calls;
        sent += sum->sent;
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%.20s %.24s %" PRIu64 " (%.2f MiB)",
                               i > 0 ? ", " : "; payloads: ", sum->group, comm_kind_name(sum->kind),
                               sum->calls, (double)sum->bytes / 1048576.0);
        at = at < sizeof(text) ? at : sizeof(text) - 1;
    }
    log_info("train", "step %" PRId64 ": %" PRIu64 " calls of rank 0 sent %.2f MiB%s", p->step, num,
             (double)sent / 1048576.0, text);
}

static void add_result(struct metrics *m, const struct step_result *result)
{
    m->data_seconds += result->data_seconds;
    for (uint32_t i = 0; i < DATA_SOURCES_MAX; i++) {
        m->sources[i].sum += result->sources[i].sum;
        m->sources[i].counted += result->sources[i].counted;
    }
}

void metrics_validation(struct metrics *m, const struct progress *p, const struct validated *v)
{
    char tps_text[32];
    double tps = v->seconds > 0 ? (double)v->tokens / v->seconds / m->of.num_ranks : 0;
    const struct tensorboard_scalar scalars[] = {{"validation_metrics/loss", v->loss},
                                                 {"validation_metrics/throughput(tps)", tps}};
    if (m->of.rank != 0)
        return;
    m->logged_at += v->seconds;
    struct memory_use memory = memory_of(m);
    log_info("train",
             "validate step: %2" PRId64 "  loss: %7.4f  memory: %5.2fGiB(%.2f%%)  tps: %s  "
             "time: %.3fs",
             p->step, v->loss, memory.gib, memory.percent,
             with_commas(tps_text, (uint64_t)llround(tps)), v->seconds);
    if (m->board != NULL)
        tensorboard_add(m->board, p->step, scalars, sizeof(scalars) / sizeof(scalars[0]));
    if (m->loss_file != NULL && !m->loss_is_broken) {
        fprintf(m->loss_file, "%" PRId64 " validation=%a\n", p->step, v->loss);
        flush_loss(m);
    }
    jsonl_validation(m->jsonl, p, v->loss);
}

void metrics_step(struct metrics *m, const struct progress *p, const struct step_result *result,
                  const struct snapshot_times *times)
{
    if (m->of.rank != 0)
        return;
    history_add(m->of.history, p->step, p->loss);
    uint64_t samples = trainer_config_samples(m->of.config, p->step - 1);
    log_debug("data",
              "step %" PRId64 ": samples %" PRIu64 " to %" PRIu64
              ", their tokens' digest %016" PRIx64,
              p->step, p->next_sample - samples, p->next_sample - 1, p->tokens_digest);
    bool is_first = !m->has_stepped;
    if (is_first || m->is_back) {
        m->has_stepped = true;
        m->is_back = false;
        m->logged_step = m->first_step = p->step - 1;
        m->logged_tokens = p->tokens - samples * (uint64_t)m->of.config->seq_len;
    }
    if (is_first)
        log_start(m, p, times);
    struct step_calls calls = {0};
    if (m->of.flight != NULL)
        calls.num = flight_sums(m->of.flight, calls.of);
    add_result(m, result);
    if (is_first && calls.num > 0)
        log_calls(p, &calls);
    if (is_first || p->step % m->of.config->log_freq == 0 || p->step == m->of.config->steps)
        log_step(m, p, result->max_loss, times);
    write_loss(m, p, result);
    jsonl_step(m->jsonl, p, result, data_place(m->of.data), &calls);
    struct spike spike = spikes_update(&m->spikes, p->step, p->loss);
    spikes_log(&spike, p->step);
    jsonl_spike(m->jsonl, p->step, &spike);
    bar_show(&m->bar_at, p->step, m->of.config->steps,
             (clock_seconds() - m->ready_at) / (double)(p->step - m->first_step));
}
