/* metrics.c - step line, loss file, times of a start (see metrics.h).
 *
 * A start is measured from the kernel's start time of the process, so that loading the program and
 * the libraries counts. Its parts: init (until the model is laid out), attempt, load, weights
 * (their initial values, or their conversion after a load), first step. */
#include "trainer/metrics.h"
#include "proto/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct metrics {
    const struct config *config;
    uint32_t rank, num_ranks;
    double flops_per_token;
    FILE *loss_file;
    double loaded_at, loaded_age; /* when the load was over; seconds from process start to it */
    double ready_at;              /* when the first step began */
    double logged_at;
    int64_t logged_step;
    bool has_stepped, loss_is_broken;
};

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds since the process started (resolution 10 ms); 0 when /proc does not say. */
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
    return now(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

/* Largest resident size so far, in GiB. */
static double peak_memory(void)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtod(line + 6, NULL);
    if (file != NULL)
        fclose(file);
    return kib / 1048576.0;
}

int metrics_open(struct metrics **out, const struct metrics_options *options)
{
    struct metrics *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the metrics");
    m->config = options->config;
    m->rank = options->rank;
    m->num_ranks = options->num_ranks;
    m->flops_per_token = options->flops_per_token;
    if (m->rank == 0 && m->config->loss_file[0] != 0) {
        m->loss_file = fopen(m->config->loss_file, "a");
        if (m->loss_file == NULL) {
            int error = errno;
            free(m);
            return report_error(ERR_INVALID, "make its folder, or name another file",
                                "could not open metrics.loss_file %s: %s",
                                options->config->loss_file, strerror(error));
        }
    }
    *out = m;
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (m == NULL)
        return;
    if (m->loss_file != NULL)
        fclose(m->loss_file);
    free(m);
}

void metrics_loaded(struct metrics *m)
{
    m->loaded_at = now(CLOCK_MONOTONIC);
    m->loaded_age = process_age();
}

void metrics_ready(struct metrics *m)
{
    m->ready_at = m->logged_at = now(CLOCK_MONOTONIC);
}

static void write_loss(struct metrics *m, const struct progress *p)
{
    if (m->loss_file == NULL || m->loss_is_broken)
        return;
    fprintf(m->loss_file, "%" PRId64 " %a %a\n", p->step, p->loss, p->grad_norm);
    if (fflush(m->loss_file) == 0)
        return;
    report_errno(ERR_IO, "could not write metrics.loss_file", m->config->loss_file);
    log_warn("train", "%s; it ends here", report_line());
    m->loss_is_broken = true;
}

static void log_start(const struct metrics *m, const struct progress *p,
                      const struct snapshot_times *times)
{
    double first_step = now(CLOCK_MONOTONIC) - m->ready_at;
    double init = m->loaded_age - times->attempt_seconds - times->load_seconds;
    log_info("train",
             "start: init %.3f s, attempt %.3f s, load %.3f s (%.1f MiB), weights %.3f s, first "
             "step (%" PRId64 ") %.3f s: %.2f s since the process began",
             init, times->attempt_seconds, times->load_seconds,
             (double)times->loaded_bytes / 1048576.0, m->ready_at - m->loaded_at, p->step,
             first_step, process_age());
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

static void log_step(struct metrics *m, const struct progress *p)
{
    char tps_text[32];
    double time = now(CLOCK_MONOTONIC);
    double steps = (double)(p->step - m->logged_step), seconds = time - m->logged_at;
    double tokens = steps * (double)m->config->global_batch_size * (double)m->config->seq_len;
    double tps = seconds > 0 ? tokens / seconds / m->num_ranks : 0;
    log_info("train",
             "step: %2" PRId64 "  loss: %7.4f  grad_norm: %7.4f  memory: %5.2fGiB  tps: %s  "
             "tflops: %.2f  mfu: n/a",
             p->step, p->loss, p->grad_norm, peak_memory(),
             with_commas(tps_text, (uint64_t)llround(tps)), tps * m->flops_per_token * 1e-12);
    m->logged_at = time;
    m->logged_step = p->step;
}

int metrics_check(const struct metrics *m, const struct progress *p)
{
    if (isfinite(p->loss) && isfinite(p->grad_norm))
        return 0;
    report_error(ERR_INVALID, "lower optimizer.lr, or resume from an older checkpoint",
                 "training diverged in step %" PRId64 ": loss %g, gradient norm %g", p->step,
                 p->loss, p->grad_norm);
    if (m->rank != 0)
        report_clear();
    return ERR_INVALID;
}

void metrics_step(struct metrics *m, const struct progress *p, const struct snapshot_times *times)
{
    if (m->rank != 0)
        return;
    bool is_first = !m->has_stepped;
    if (is_first) {
        m->has_stepped = true;
        m->logged_step = p->step - 1;
        log_start(m, p, times);
    }
    if (is_first || p->step % m->config->log_freq == 0 || p->step == m->config->steps)
        log_step(m, p);
    write_loss(m, p);
}
