/* suggest.c - estimates and compares all meshes of a number of ranks (see suggest.h).
 *
 * A mesh that does not fit keeps only the activations that fit
 * (activation_checkpoint.memory_budget). A step takes the critical path of the slowest stage's
 * program, divided by (1 - bubble) for the schedule's bubble. */
#include "trainer/forecast/suggest.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/forecast/estimate.h"
#include "trainer/model/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* So many times as many leaves as stages show the pace of a pipeline. */
#define FULL_PIPELINES 3

struct search {
    const struct config *config;
    const struct model_table *table;
    struct kernels *kernels;
    uint32_t num_ranks;
    struct rates rates;
    struct suggestions *out;
};

static uint64_t rank_memory(const struct config *config)
{
    return (uint64_t)(config->rank_gib * (double)(1u << 30));
}

/* ---- one mesh ---- */

static struct config config_of(const struct search *s, const uint32_t degree[NUM_AXES])
{
    struct config c = *s->config;
    c.tp_blocks = c.tp_blocks == c.tp ? degree[AXIS_TP] : c.tp_blocks;
    c.cp_blocks = c.cp_blocks == c.cp ? degree[AXIS_CP] : c.cp_blocks;
    c.pp = degree[AXIS_PP];
    c.dp_replicate = degree[AXIS_REPLICATE];
    c.dp_shard = degree[AXIS_SHARD];
    c.cp = degree[AXIS_CP];
    c.tp = degree[AXIS_TP];
    return c;
}

static void add_stage(struct suggestion *to, const struct dry_rank *stage)
{
    uint64_t bytes = stage->kept + stage->shared;
    if (bytes > to->bytes)
        memcpy(to->layers, stage->layers, sizeof to->layers);
    to->bytes = bytes > to->bytes ? bytes : to->bytes;
    if (stage->seconds > to->seconds)
        to->seconds = stage->seconds;
    if (stage->compute_seconds > to->compute_seconds)
        to->compute_seconds = stage->compute_seconds;
    to->bubble = stage->bubble;
}

/* The first stage has the most leaves under way, the second as many layers as any, the last the
 * output. Errors as dry_run. */
static int estimate_stages(const struct search *s, const struct config *config,
                           struct suggestion *to)
{
    struct dry_options options = {.config = config,
                                  .table = s->table,
                                  .kernels = s->kernels,
                                  .size = s->num_ranks,
                                  .rates = &s->rates};
    uint32_t num = to->degree[AXIS_PP];
    to->bytes = 0;
    to->seconds = to->compute_seconds = 0;
    for (uint32_t stage = 0; stage < num; stage = stage == 1 && num > 3 ? num - 1 : stage + 1) {
        struct dry_rank rank;
        options.rank = s->num_ranks / num * stage;
        ERR_TRY(dry_run(&rank, &options));
        add_stage(to, &rank);
    }
    return 0;
}

/* Without the bubble. A full pipeline has a constant pace: instead of a long step two short ones
 * are estimated, and their difference gives the time of each further leaf. */
static int estimate_path(const struct search *s, const struct config *config, struct suggestion *to)
{
    int64_t data_ranks = config->dp_replicate * config->dp_shard;
    int64_t leaves = (config->micro_batches + data_ranks - 1) / data_ranks;
    int64_t most = FULL_PIPELINES * config->pp, less = most - config->pp;
    if (leaves <= most || config->groups > 1 || config->num_ramp > 0)
        return estimate_stages(s, config, to);
    struct config shorter = *config;
    struct suggestion one = *to;
    shorter.micro_batches = less * data_ranks;
    ERR_TRY(estimate_stages(s, &shorter, &one));
    shorter.micro_batches = most * data_ranks;
    ERR_TRY(estimate_stages(s, &shorter, to));
    double rest = (double)(leaves - most) / (double)(most - less);
    to->seconds += rest * (to->seconds - one.seconds);
    to->compute_seconds += rest * (to->compute_seconds - one.compute_seconds);
    /* The time that a stage is idle while the pipeline fills and drains is the same. */
    double idle = (double)most * to->bubble / (1 - to->bubble);
    to->bubble = idle / ((double)leaves + idle);
    return 0;
}

/* Estimates with the given settings. Errors as dry_run. */
static int estimate(const struct search *s, const struct config *config, struct suggestion *to)
{
    ERR_TRY(estimate_path(s, config, to));
    to->seconds /= 1 - to->bubble;
    return 0;
}

/* Estimates again, with fewer kept activations. ERR_INVALID: it does not fit then either. */
static int estimate_within(const struct search *s, struct config *config, struct suggestion *to)
{
    config->ac_mode = RECOMPUTE_BUDGET;
    config->budget_bytes = (int64_t)rank_memory(s->config);
    to->recomputes = true;
    return estimate(s, config, to);
}

static int add_suggestion(struct suggestions *out, const struct suggestion *found)
{
    if (out->num == out->capacity) {
        uint32_t capacity = out->capacity > 0 ? 2 * out->capacity : 64;
        struct suggestion *list = realloc(out->list, capacity * sizeof(*list));
        if (list == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for %u meshes", capacity);
        out->list = list;
        out->capacity = capacity;
    }
    out->list[out->num++] = *found;
    return 0;
}

static int try_mesh(struct search *s, const uint32_t degree[NUM_AXES])
{
    struct config config = config_of(s, degree);
    struct suggestion found = {0};
    memcpy(found.degree, degree, sizeof found.degree);
    s->out->num_meshes++;
    if ((uint64_t)degree[AXIS_REPLICATE] * degree[AXIS_SHARD] > (uint64_t)config.micro_batches) {
        s->out->num_idle++;
        return 0;
    }
    int rc = estimate(s, &config, &found);
    if (rc == ERR_INVALID) {
        report_clear();
        s->out->num_refused++;
        return 0;
    }
    return rc == 0 ? add_suggestion(s->out, &found) : rc;
}

/* ---- all meshes ---- */

static void show_progress(const struct suggestions *out)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%u meshes", out->num_meshes);
}

/* Tries all degrees of the axes from `axis` on whose product is `ranks`. */
static int try_axis(struct search *s, uint32_t degree[NUM_AXES], enum axis axis, uint32_t ranks)
{
    bool is_last = axis + 1 == NUM_AXES;
    for (uint32_t d = is_last ? ranks : 1; d <= ranks; d++) {
        if (ranks % d != 0)
            continue;
        degree[axis] = d;
        if (!is_last) {
            ERR_TRY(try_axis(s, degree, axis + 1, ranks / d));
            continue;
        }
        ERR_TRY(try_mesh(s, degree));
        show_progress(s->out);
    }
    return 0;
}

static int by_seconds(const void *a, const void *b)
{
    const struct suggestion *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return memcmp(x->degree, y->degree, sizeof x->degree);
}

/* The number of better meshes among the finished ones before it. */
static uint32_t count_better(const struct suggestions *out, uint32_t index)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < index; i++)
        num += out->list[i].fits && out->list[i].seconds <= out->list[index].seconds;
    return num;
}

/* Meshes that are too large keep less, the fastest first, until none can enter the printed list. */
static int shrink(struct search *s)
{
    struct suggestions *out = s->out;
    for (uint32_t i = 0; i < out->num; i++) {
        struct suggestion *found = &out->list[i];
        struct config config = config_of(s, found->degree);
        found->fits = found->bytes <= rank_memory(s->config);
        if (found->fits)
            continue;
        if (count_better(out, i) >= (uint32_t)s->config->suggestions) {
            out->num_slower++;
            continue;
        }
        int rc = estimate_within(s, &config, found);
        found->fits = rc == 0;
        if (rc != 0 && rc != ERR_INVALID)
            return rc;
        if (rc == ERR_INVALID)
            out->num_large++;
        report_clear();
    }
    return 0;
}

static void drop_others(struct suggestions *out)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < out->num; i++)
        if (out->list[i].fits)
            out->list[num++] = out->list[i];
    out->num = num;
}

static void sort(struct suggestions *out)
{
    if (out->num > 0)
        qsort(out->list, out->num, sizeof(*out->list), by_seconds);
}

/* If leaves of the fastest mesh go to other machines: is one sum per machine faster? Groups of a
 * run cannot change, so no suggested mesh has them unless the settings do. */
static int try_groups(const struct search *s)
{
    struct suggestions *out = s->out;
    if (out->num == 0 || s->config->groups > 1)
        return 0;
    struct suggestion found = out->list[0];
    struct config config = config_of(s, found.degree);
    int64_t within = config.cp * config.tp, here = config.machine_ranks;
    int64_t ranks = config.dp_replicate * config.dp_shard * within;
    config.groups = ranks / here;
    bool has_parts = config.dp_shard * within % here == 0 && here % within == 0;
    if (!has_parts || config.groups < 2 || config.micro_batches % config.groups != 0)
        return 0;
    int rc = found.recomputes ? estimate_within(s, &config, &found) : estimate(s, &config, &found);
    bool fits = rc == 0 && found.bytes <= rank_memory(s->config);
    if (fits && found.seconds < out->list[0].seconds) {
        out->groups = (uint32_t)config.groups;
        out->grouped_seconds = found.seconds;
    }
    if (rc == ERR_INVALID)
        report_clear();
    return rc == ERR_INVALID ? 0 : rc;
}

int suggest_meshes(struct suggestions *out, const struct config *config,
                   const struct model_table *table, struct kernels *kernels, uint32_t num_ranks)
{
    struct search s = {.config = config,
                       .table = table,
                       .kernels = kernels,
                       .num_ranks = num_ranks,
                       .out = out,
                       .rates = {.flops = config->rank_tflops * 1e12,
                                 .machine_bytes = config->machine_gb * 1e9,
                                 .network_bytes = config->network_gb * 1e9,
                                 .call_seconds = config->call_us * 1e-6,
                                 .machine_ranks = (uint32_t)config->machine_ranks}};
    uint32_t degree[NUM_AXES];
    *out = (struct suggestions){0};
    ERR_TRY(try_axis(&s, degree, 0, num_ranks));
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    sort(out);
    ERR_TRY(shrink(&s));
    drop_others(out);
    sort(out);
    return try_groups(&s);
}

void suggestions_free(struct suggestions *suggestions)
{
    free(suggestions->list);
    *suggestions = (struct suggestions){0};
}

/* ---- text ---- */

static double tokens_of(const struct config *config)
{
    return (double)(config->micro_batches * config->local_batch_size * config->seq_len);
}

/* Prints the degrees as options, but no blocks: those of a run cannot change. */
static void print_settings(const struct config *config, const struct suggestion *best)
{
    static const struct {
        enum axis axis;
        const char *key;
    } keys[] = {{AXIS_PP, "parallelism.pipeline_parallel_degree"},
                {AXIS_REPLICATE, "parallelism.data_parallel_replicate_degree"},
                {AXIS_SHARD, "parallelism.data_parallel_shard_degree"},
                {AXIS_CP, "parallelism.context_parallel_degree"},
                {AXIS_TP, "parallelism.tensor_parallel_degree"}};
    printf("settings of the first:");
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        printf(" \\\n    --%s %u", keys[i].key, best->degree[keys[i].axis]);
    if (best->recomputes)
        printf(" \\\n    --activation_checkpoint.mode memory_budget "
               "--activation_checkpoint.memory_budget %" PRIu64,
               rank_memory(config));
    printf("\n");
}

static void print_row(const struct config *config, const struct suggestion *at, uint32_t num_ranks)
{
    const uint32_t *d = at->degree;
    printf("%10.4g %13.0f %7.1f %7.1f %7.1f %4u %12u %8u %4u %4u  %u, %u, %u\n", at->seconds,
           tokens_of(config) / at->seconds / num_ranks, 100 * at->compute_seconds / at->seconds,
           100 * at->bubble, (double)at->bytes / (1u << 30), d[AXIS_PP], d[AXIS_REPLICATE],
           d[AXIS_SHARD], d[AXIS_CP], d[AXIS_TP], at->layers[MODEL_KEEP_ALL],
           at->layers[MODEL_KEEP_PRODUCTS], at->layers[MODEL_KEEP_NOTHING]);
}

static void print_text(const struct config *config, const struct model_table *table,
                       const struct suggestions *all, uint32_t num_ranks)
{
    printf("%s %s, %.2f M parameters, on %u ranks; a step: %" PRId64 " micro-batches of %" PRId64
           " x %" PRId64 " tokens\n",
           config->text.model_name, shape_name(config),
           (double)model_shape_parameters(&table->shape) * 1e-6, num_ranks, config->micro_batches,
           config->local_batch_size, config->seq_len);
    printf("a rank: %g GiB, %g TFLOP/s; %g GB/s to the %" PRId64
           " ranks of its machine, %g GB/s to others, %g us a call (memory_estimation.*)\n",
           config->rank_gib, config->rank_tflops, config->machine_gb, config->machine_ranks,
           config->network_gb, config->call_us);
    if (config->rates_measured[0] != '\0')
        printf("measured: %s (%s)\n", config->rates_measured, config->rates_file);
    printf("\n");
    printf("%10s %13s %7s %7s %7s %4s %12s %8s %4s %4s  %s\n", "s a step", "tokens/s/rank",
           "% busy", "% idle", "GiB", "pp", "dp_replicate", "dp_shard", "cp", "tp",
           "layers that keep all, products, their input");
    for (uint32_t i = 0; i < all->num && i < config->suggestions; i++)
        print_row(config, &all->list[i], num_ranks);
    printf("\n%u meshes: %u fit, %u are slower than the printed ones before they recompute, %u are "
           "too large, %u have more data ranks than micro-batches, %u are refused by the model's "
           "sizes or the settings\n",
           all->num_meshes, all->num, all->num_slower, all->num_large, all->num_idle,
           all->num_refused);
    printf("busy: products and attention; idle: the pipeline's bubble. Norms, the optimizer and "
           "what ranks wait for each other cost no time here: trust the order more than the "
           "seconds.\n");
    print_settings(config, &all->list[0]);
    if (all->groups > 0)
        printf("with canonical.groups = %u, which belongs to a run's bits from its first step on, "
               "it takes %.4g s a step\n",
               all->groups, all->grouped_seconds);
}

/* ---- JSON ---- */

static json_t *json_of_mesh(const struct config *config, const struct suggestion *at,
                            uint32_t num_ranks)
{
    json_t *mesh = json_object();
    for (enum axis axis = 0; axis < NUM_AXES; axis++)
        json_object_set_new(mesh, mesh_axis_name(axis), json_integer(at->degree[axis]));
    json_t *layers = json_pack("{s:I, s:I, s:I}", "all", (json_int_t)at->layers[MODEL_KEEP_ALL],
                               "products", (json_int_t)at->layers[MODEL_KEEP_PRODUCTS], "input",
                               (json_int_t)at->layers[MODEL_KEEP_NOTHING]);
    return json_pack("{s:o, s:f, s:f, s:f, s:f, s:I, s:o, s:b}", "mesh", mesh, "seconds",
                     at->seconds, "compute_seconds", at->compute_seconds, "tokens_per_second",
                     tokens_of(config) / at->seconds / num_ranks, "bubble", at->bubble, "bytes",
                     (json_int_t)at->bytes, "layers_keep", layers, "needs_memory_budget",
                     (int)at->recomputes);
}

static int print_json(const struct config *config, const struct suggestions *all,
                      uint32_t num_ranks)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < all->num && i < config->suggestions; i++)
        json_array_append_new(list, json_of_mesh(config, &all->list[i], num_ranks));
    json_t *rates = json_pack("{s:f, s:f, s:f, s:s}", "machine_gb_per_s", config->machine_gb,
                              "network_gb_per_s", config->network_gb, "call_us", config->call_us,
                              "measured", config->rates_measured);
    json_t *groups =
        json_pack("{s:I, s:f}", "groups", (json_int_t)all->groups, "seconds", all->grouped_seconds);
    json_t *out = json_pack(
        "{s:s, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "model", shape_name(config),
        "ranks", (json_int_t)num_ranks, "rates", rates, "meshes", (json_int_t)all->num_meshes,
        "fit", (json_int_t)all->num, "slower", (json_int_t)all->num_slower, "too_large",
        (json_int_t)all->num_large, "idle", (json_int_t)all->num_idle, "refused",
        (json_int_t)all->num_refused, "suggestions", list, "with_groups", groups);
    return estimate_print_json(out);
}

int suggest_print(const struct config *config, const struct model_table *table,
                  struct kernels *kernels, uint32_t num_ranks)
{
    struct suggestions all;
    int rc = suggest_meshes(&all, config, table, kernels, num_ranks);
    if (rc == 0 && all.num == 0)
        rc = report_error(ERR_INVALID,
                          "use more ranks or a smaller training.local_batch_size, or give "
                          "memory_estimation.rank_gib",
                          "none of %u meshes of %u ranks fits: %u take more than %g GiB a rank, %u "
                          "have more data ranks than the %" PRId64
                          " micro-batches, %u are refused by the model's sizes or the settings",
                          all.num_meshes, num_ranks, all.num_large, config->rank_gib, all.num_idle,
                          config->micro_batches, all.num_refused);
    else if (rc == 0 && config->estimate_json)
        rc = print_json(config, &all, num_ranks);
    else if (rc == 0)
        print_text(config, table, &all, num_ranks);
    suggestions_free(&all);
    return rc;
}
