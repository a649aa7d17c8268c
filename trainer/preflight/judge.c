/* judge.c - finds odd ranks and hosts by comparison; pure (see preflight.h). */
#include "proto/base/report.h"
#include "trainer/base/median.h"
#include "trainer/preflight/private.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rate, and the bounds below which it is odd. */
struct bound {
    const char *what, *unit, *cause;
    double scale; /* of the unit */
    size_t field; /* of struct finding */
    double slow, broken;
    bool is_of_host;
};

#define SLOW_LINK "slow link of this rank"
#define SLOW_CALLS "slow memory, link or neighbour"
#define SLOW_DISK "a slow or full disk, or a neighbour that writes"

static const struct bound bounds[] = {
    {"products", "GFLOP/s", "slow core, clock or neighbour", 1e9,
     offsetof(struct finding, product_rate), 0.85, 0.5, false},
    {"products at the model's shapes", "GFLOP/s", "slow core, clock or neighbour", 1e9,
     offsetof(struct finding, model.rate), 0.85, 0.5, false},
    {"copies", "GB/s", "slow bus or memory", 1e9, offsetof(struct finding, copy_rate), 0.85, 0.25,
     false},
    {"links to it", "GB/s", SLOW_LINK, 1e9, offsetof(struct finding, link_rate), 0.5, 0.1, false},
    {"links from it", "GB/s", SLOW_LINK, 1e9, offsetof(struct finding, send_rate), 0.5, 0.1, false},
    {"NVLinks", "that are up", "a link is down", 1, offsetof(struct finding, links_up), 1, 0,
     false},
    {"memory, all ranks at once,", "GB/s a rank", "slow memory or neighbour", 1e9,
     offsetof(struct finding, node.memory_rate), 0.85, 0.25, true},
    {"memory, one rank alone,", "GB/s", "slow memory or neighbour", 1e9,
     offsetof(struct finding, node.memory_alone), 0.85, 0.5, true},
    {"sums of 64 KiB among its ranks", "GB/s", SLOW_CALLS, 1e9,
     offsetof(struct finding, node.calls.sum[PAYLOAD_64K]), 0.5, 0.1, true},
    {"sums of 4 MiB among its ranks", "GB/s", SLOW_CALLS, 1e9,
     offsetof(struct finding, node.calls.sum[PAYLOAD_4M]), 0.5, 0.1, true},
    {"gathers of 64 KiB among its ranks", "GB/s", SLOW_CALLS, 1e9,
     offsetof(struct finding, node.calls.gather[PAYLOAD_64K]), 0.5, 0.1, true},
    {"gathers of 4 MiB among its ranks", "GB/s", SLOW_CALLS, 1e9,
     offsetof(struct finding, node.calls.gather[PAYLOAD_4M]), 0.5, 0.1, true},
    {"its disk's writes", "GB/s", SLOW_DISK, 1e9, offsetof(struct finding, node.disk.write), 0.5,
     0.1, true},
    {"its disk's writes with syncs", "GB/s", SLOW_DISK, 1e9,
     offsetof(struct finding, node.disk.durable), 0.5, 0.1, true},
    {"its disk's reads", "GB/s", SLOW_DISK, 1e9, offsetof(struct finding, node.disk.read), 0.5, 0.1,
     true},
    {"its disk's writes by fio", "GB/s", SLOW_DISK, 1e9,
     offsetof(struct finding, node.disk.fio_write), 0.5, 0.1, true},
};

/* ---- hosts ---- */

uint32_t preflight_speaker(const struct finding *all, uint32_t i)
{
    uint32_t first = 0;
    while (strcmp(all[first].host, all[i].host) != 0)
        first++;
    return first;
}

uint32_t preflight_hosts(const struct finding *all, uint32_t num)
{
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < num; i++)
        hosts += preflight_speaker(all, i) == i;
    return hosts;
}

struct node_sum preflight_sum(const struct finding *all, uint32_t num, uint32_t speaker)
{
    struct node_sum sum = {0};
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (uint32_t i = speaker; i < num; i++) {
        if (strcmp(all[i].host, all[speaker].host) != 0)
            continue;
        CPU_OR(&cores, &cores, &all[i].node.cores);
        sum.ranks++;
        sum.threads += all[i].node.threads;
        sum.memory_rate += all[i].node.memory_rate;
    }
    sum.cores = (uint32_t)CPU_COUNT(&cores);
    return sum;
}

uint32_t preflight_count(const struct finding *all, uint32_t num, enum fitness fitness)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < num; i++)
        count += all[i].fitness == fitness;
    return count;
}

/* ---- rates ---- */

void preflight_add_text(char text[PREFLIGHT_TEXT_BYTES], const char *format, ...)
{
    va_list list;
    size_t at = strlen(text);
    at += (size_t)snprintf(text + at, PREFLIGHT_TEXT_BYTES - at, "%s", at > 0 ? "; " : "");
    if (at >= PREFLIGHT_TEXT_BYTES)
        return;
    va_start(list, format);
    vsnprintf(text + at, PREFLIGHT_TEXT_BYTES - at, format, list);
    va_end(list);
}

/* 0: the rate was not measured, or another rank is judged for this one. */
static double rate_of(const struct finding *all, uint32_t num, uint32_t i,
                      const struct bound *bound)
{
    double rate;
    if (bound->is_of_host && preflight_speaker(all, i) != i)
        return 0;
    if (bound->field == offsetof(struct finding, node.memory_rate)) {
        struct node_sum sum = preflight_sum(all, num, i);
        return sum.memory_rate / sum.ranks;
    }
    memcpy(&rate, (const char *)&all[i] + bound->field, sizeof rate);
    return rate;
}

/* True if ranks of the host share cores: then rates vary. */
static bool is_crowded(const struct finding *all, uint32_t num, uint32_t i)
{
    struct node_sum sum = preflight_sum(all, num, preflight_speaker(all, i));
    return sum.cores > 0 && sum.threads > sum.cores;
}

void preflight_mark_slow(struct finding *all, uint32_t num, uint32_t i, bool is_broken)
{
    if (is_broken && !is_crowded(all, num, i))
        all[i].fitness = BROKEN;
    else if (all[i].fitness == FIT)
        all[i].fitness = SLOW;
}

/* rates: [num], sorted. */
static void judge_rate(struct finding *all, uint32_t num, const struct bound *bound, double *rates,
                       double *sorted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < num; i++) {
        rates[i] = rate_of(all, num, i, bound);
        if (rates[i] > 0)
            sorted[count++] = rates[i];
    }
    if (count < PREFLIGHT_COMPARED)
        return;
    double median = median_of(sorted, count);
    for (uint32_t i = 0; i < num; i++) {
        double rate = rates[i], part = rate / median;
        if (rate <= 0 || part >= bound->slow)
            continue;
        preflight_add_text(all[i].problem, "%s at %.0f %% of the median, %.3g of %.3g %s: %s",
                           bound->what, 100 * part, rate / bound->scale, median / bound->scale,
                           bound->unit, bound->cause);
        preflight_mark_slow(all, num, i, part < bound->broken);
    }
}

/* ---- GPUs ---- */

/* Causes of slowed clocks. */
static const struct {
    int64_t bit;
    const char *by;
} slowed_by[] = {{DEVICE_SLOWED_HEAT, "heat"},
                 {DEVICE_SLOWED_POWER, "its power supply"},
                 {DEVICE_SLOWED_HARDWARE, "its hardware"}};

static void judge_health(struct finding *f)
{
    const struct device_health *has = &f->health;
    enum fitness fitness = has->memory_errors > 0 || has->rows_failed > 0 ? BROKEN : SLOW;
    size_t length = strlen(f->problem);
    if (has->memory_errors > 0)
        preflight_add_text(f->problem,
                           "%lld errors of its memory since the driver was loaded: reset it",
                           (long long)has->memory_errors);
    if (has->rows_failed > 0)
        preflight_add_text(f->problem, "a row of its memory cannot be replaced: it needs a repair");
    if (has->rows_pending > 0)
        preflight_add_text(f->problem, "rows of its memory are replaced at a reset: reset it");
    if (has->bus_width > 0 && has->bus_width < has->bus_width_max)
        preflight_add_text(f->problem,
                           "its bus has %lld of %lld lanes: check its slot and the BIOS",
                           (long long)has->bus_width, (long long)has->bus_width_max);
    if (has->bus_generation > 0 && has->bus_generation < has->bus_generation_max)
        preflight_add_text(
            f->problem, "its bus is at PCIe generation %lld of %lld: check its slot and the BIOS",
            (long long)has->bus_generation, (long long)has->bus_generation_max);
    for (size_t i = 0; i < sizeof slowed_by / sizeof slowed_by[0]; i++)
        if (has->slowed > 0 && (has->slowed & slowed_by[i].bit) != 0)
            preflight_add_text(f->problem, "its clocks are slowed by %s, at %lld degrees",
                               slowed_by[i].by, (long long)has->celsius);
    if (strlen(f->problem) > length && fitness > f->fitness)
        f->fitness = fitness;
}

/* ---- the peak ---- */

static void judge_peak(struct finding *f)
{
    const struct preflight_products *model = &f->model;
    if (model->rate <= 0 || model->rate >= PREFLIGHT_PEAK_PART * model->peak ||
        model->mean_flops < PREFLIGHT_PEAK_SECONDS * model->peak)
        return;
    preflight_add_text(f->problem,
                       "products at the model's shapes at %.1f %% of the peak, %.3g of %.3g "
                       "TFLOP/s: low clocks or power limit, or metrics.peak_tflops is wrong",
                       100 * model->rate / model->peak, model->rate / 1e12, model->peak / 1e12);
    if (f->fitness == FIT)
        f->fitness = SLOW;
}

/* ---- warnings ---- */

/* Limits of hosts, of which less than most others have is odd. */
static const struct {
    const char *what;
    size_t field; /* of struct node_facts; cores: of the whole host */
} limits[] = {{"memlock", offsetof(struct node_facts, memlock)},
              {"nofile", offsetof(struct node_facts, nofile)},
              {"cores", offsetof(struct node_facts, cores)}};

static double limit_of(const struct finding *all, uint32_t num, uint32_t i, size_t field)
{
    uint64_t limit;
    if (field == offsetof(struct node_facts, cores))
        return preflight_sum(all, num, i).cores;
    memcpy(&limit, (const char *)&all[i].node + field, sizeof limit);
    return (double)limit;
}

/* The value that most have; of several the greatest. Sorts. count > 0. */
static double most_common(double *values, uint32_t count)
{
    uint32_t best = 0;
    double found = 0;
    (void)median_of(values, count); /* sorts them */
    for (uint32_t i = 0, run = 0; i < count; i++) {
        run = i > 0 && values[i] == values[i - 1] ? run + 1 : 1;
        if (run >= best) {
            best = run;
            found = values[i];
        }
    }
    return found;
}

static const char *limit_text(char out[24], double limit)
{
    snprintf(out, 24, limit >= (double)UINT64_MAX ? "unlimited" : "%.0f", limit);
    return out;
}

/* values, sorted: [num]. */
static void warn_of_limits(struct finding *all, uint32_t num, double *values, double *sorted)
{
    char own[24], usual[24];
    for (size_t k = 0; k < sizeof limits / sizeof limits[0]; k++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < num; i++) {
            bool is_examined = preflight_speaker(all, i) == i && all[i].node.version[0] != '\0';
            values[i] = is_examined ? limit_of(all, num, i, limits[k].field) : -1;
            if (is_examined)
                sorted[count++] = values[i];
        }
        double most = count > 0 ? most_common(sorted, count) : 0;
        for (uint32_t i = 0; i < num; i++)
            if (values[i] >= 0 && values[i] < most)
                preflight_add_text(all[i].warning, "%s %s, not %s as on most hosts", limits[k].what,
                                   limit_text(own, values[i]), limit_text(usual, most));
    }
}

/* The first rank of the host of rank i whose GPU has another fact than that of rank 0; num: none.
 * `field`: a text of struct finding; "" is not known. */
static uint32_t other_gpu(const struct finding *all, uint32_t num, uint32_t i, size_t field)
{
    const char *first = (const char *)&all[0] + field;
    for (uint32_t j = i; j < num; j++) {
        const char *own = (const char *)&all[j] + field;
        bool is_here = strcmp(all[j].host, all[i].host) == 0;
        if (is_here && own[0] != '\0' && first[0] != '\0' && strcmp(own, first) != 0)
            return j;
    }
    return num;
}

static void warn_of_gpus(struct finding *all, uint32_t num, uint32_t i)
{
    const struct device_health *first = &all[0].health;
    char *text = all[i].warning;
    uint32_t j = other_gpu(all, num, i, offsetof(struct finding, device));
    if (j < num)
        preflight_add_text(text, "rank %u computes with %s, not %s as rank 0", j, all[j].device,
                           all[0].device);
    j = other_gpu(all, num, i, offsetof(struct finding, health.driver));
    if (j < num)
        preflight_add_text(text, "driver %s, not %s as on %s", all[j].health.driver, first->driver,
                           all[0].host);
    for (j = i; j < num; j++) {
        int64_t most = all[j].health.bus_generation_max;
        if (strcmp(all[j].host, all[i].host) != 0 || most <= 0 || first->bus_generation_max <= 0 ||
            most == first->bus_generation_max)
            continue;
        preflight_add_text(text, "rank %u has PCIe generation %lld at most, not %lld as rank 0", j,
                           (long long)most, (long long)first->bus_generation_max);
        return;
    }
}

static void warn(struct finding *all, uint32_t num, uint32_t i)
{
    const struct node_facts *node = &all[i].node, *first = &all[0].node;
    struct node_sum sum = preflight_sum(all, num, i);
    char *text = all[i].warning;
    if (node->version[0] == '\0') /* its host was not examined */
        return;
    if (is_crowded(all, num, i))
        preflight_add_text(text, "%u threads of %u ranks on %u cores", sum.threads, sum.ranks,
                           sum.cores);
    if (node->shm_bytes <= PREFLIGHT_SHM_WARN)
        preflight_add_text(text, "/dev/shm has %.0f MiB: NCCL and MPI need more",
                           (double)node->shm_bytes / (1 << 20));
    if (node->disk.has_failed)
        preflight_add_text(text, "its disk %s (ckpt-cli bench io)",
                           node->disk.is_stuck ? "did not answer in time"
                                               : "could not be measured");
    if (node->ring_error != 0)
        preflight_add_text(text, "io_uring is refused: %s", strerror(node->ring_error));
    if (fabs(node->clock) - node->round_trip / 2 > PREFLIGHT_CLOCK_WARN)
        preflight_add_text(text, "its clock is %.1f s %s that of %s", fabs(node->clock),
                           node->clock > 0 ? "ahead of" : "behind", all[0].host);
    if (strcmp(node->kernel, first->kernel) != 0)
        preflight_add_text(text, "kernel %s, not %s as on %s", node->kernel, first->kernel,
                           all[0].host);
    if (strcmp(node->version, first->version) != 0)
        preflight_add_text(text, "trainer %s, not %s as on %s", node->version, first->version,
                           all[0].host);
    warn_of_gpus(all, num, i);
}

int preflight_set_fitness(struct finding *all, uint32_t num)
{
    double *values = calloc(2 * (size_t)num, sizeof *values);
    if (values == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a world of %u ranks", num);
    for (uint32_t i = 0; i < num; i++) {
        all[i].fitness = all[i].problem[0] != '\0' ? BROKEN : FIT;
        judge_health(&all[i]);
        judge_peak(&all[i]);
    }
    int rc = preflight_judge_pairs(all, num);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        judge_rate(all, num, &bounds[i], values, values + num);
    for (uint32_t i = 0; i < num; i++)
        if (preflight_speaker(all, i) == i)
            warn(all, num, i);
    warn_of_limits(all, num, values, values + num);
    free(values);
    return rc;
}
