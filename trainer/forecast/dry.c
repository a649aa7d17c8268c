/* dry.c - counts the work of a step (see dry.h). */
#include "trainer/forecast/dry.h"
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/plan/program.h"
#include "trainer/plan/timeline.h"

#include <stdlib.h>
#include <string.h>

static const char *const module_names[NUM_MODULES] = {
    [MODULE_EMBEDDING] = "tok_embeddings", [MODULE_ATTENTION] = "attention",
    [MODULE_FFN] = "feed_forward",         [MODULE_OUTPUT] = "norm, output",
    [MODULE_STREAM] = "residual stream",
};

const char *module_name(enum module module)
{
    return module_names[module];
}

/* ---- buffers ---- */

enum buffer_class { CLASS_STATE, CLASS_ACTIVATION, CLASS_ON_THE_WAY, CLASS_SCRATCH, NUM_CLASSES };

/* The kind of each buffer of the plan; `module` is for activations. */
static const struct {
    const char *name;
    enum buffer_class class;
    enum module module;
} buffer_names[] = {
    {"parameters", CLASS_STATE, 0},
    {"exp_avg", CLASS_STATE, 0},
    {"exp_avg_sq", CLASS_STATE, 0},
    {"gradient accumulators", CLASS_STATE, 0},
    {"sums of a group", CLASS_STATE, 0},
    {"gradient shard", CLASS_STATE, 0},
    {"parameters in compute dtype", CLASS_STATE, 0},
    {"embedding of own vocabulary", CLASS_ACTIVATION, MODULE_EMBEDDING},
    {"embedding received", CLASS_ACTIVATION, MODULE_EMBEDDING},
    {"d embedding and other rows", CLASS_ACTIVATION, MODULE_EMBEDDING},
    {"d embedding of all rows", CLASS_ACTIVATION, MODULE_EMBEDDING},
    {"attention norm", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"attention rstd", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"query", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"key and value", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"attention", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"attention lse", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"keys of all rows", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"values of all rows", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"d attention", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"d query", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"d key and value", CLASS_ACTIVATION, MODULE_ATTENTION},
    {"ffn norm", CLASS_ACTIVATION, MODULE_FFN},
    {"ffn rstd", CLASS_ACTIVATION, MODULE_FFN},
    {"gate and up", CLASS_ACTIVATION, MODULE_FFN},
    {"swiglu", CLASS_ACTIVATION, MODULE_FFN},
    {"d swiglu", CLASS_ACTIVATION, MODULE_FFN},
    {"d gate and up", CLASS_ACTIVATION, MODULE_FFN},
    {"head norm", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"head rstd", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"d head norm", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"d head norm weight", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"logits", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"logits by rows", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"logits on their way", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"losses", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"losses of all rows", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"losses of own rows", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"logits of a chunk", CLASS_ACTIVATION, MODULE_OUTPUT},
    {"residual in", CLASS_ACTIVATION, MODULE_STREAM},
    {"residual mid", CLASS_ACTIVATION, MODULE_STREAM},
    {"d residual", CLASS_ACTIVATION, MODULE_STREAM},
    {"d norm", CLASS_ACTIVATION, MODULE_STREAM},
    {"d block out", CLASS_ACTIVATION, MODULE_STREAM},
    {"d block mid", CLASS_ACTIVATION, MODULE_STREAM},
    {"d norm weights", CLASS_ACTIVATION, MODULE_STREAM},
    {"gathered parameters", CLASS_ON_THE_WAY, 0},
    {"gathered shards", CLASS_ON_THE_WAY, 0},
    {"leaf gradient", CLASS_ON_THE_WAY, 0},
    {"leaf by shard", CLASS_ON_THE_WAY, 0},
    {"leaf pieces to send", CLASS_ON_THE_WAY, 0},
    {"leaf pieces received", CLASS_ON_THE_WAY, 0},
    {"pieces of the replicas", CLASS_ON_THE_WAY, 0},
    {"sums of groups received", CLASS_ON_THE_WAY, 0},
    {"updated parameters", CLASS_ON_THE_WAY, 0},
    {"sum of the tied matrix", CLASS_ON_THE_WAY, 0},
    {"stream to send", CLASS_ON_THE_WAY, 0},
    {"gradient to send", CLASS_ON_THE_WAY, 0},
};
#define NUM_NAMES (sizeof(buffer_names) / sizeof(buffer_names[0]))

/* The kind of other buffers: tokens, numbers, a library's scratch, partial sums, operands in
 * float8. */
static size_t find_name(const char *name)
{
    size_t i = 0;
    while (i < NUM_NAMES && strcmp(buffer_names[i].name, name) != 0)
        i++;
    return i;
}

static enum buffer_class class_of(const char *name)
{
    size_t i = find_name(name);
    return i < NUM_NAMES ? buffer_names[i].class : CLASS_SCRATCH;
}

static bool is_of_class(const char *name, const void *class)
{
    return class_of(name) == *(const enum buffer_class *)class;
}

static bool is_of_module(const char *name, const void *module)
{
    size_t i = find_name(name);
    return i < NUM_NAMES && buffer_names[i].class == CLASS_ACTIVATION &&
           buffer_names[i].module == *(const enum module *)module;
}

/* ---- memory ---- */

static enum module module_of_tensor(const struct model_table *table,
                                    const struct model_tensor *tensor)
{
    if (tensor->block == 0)
        return MODULE_EMBEDDING;
    if (tensor->block == table->num_blocks - 1)
        return MODULE_OUTPUT;
    return strstr(tensor->name, "attention") != NULL ? MODULE_ATTENTION : MODULE_FFN;
}

static void add_state(struct parallel *p, const struct model_table *table, struct dry_rank *out)
{
    const struct state *state = parallel_state(p);
    for (uint32_t i = 0; i < state->num_slices; i++) {
        struct footprint bytes = parallel_footprint(p, &state->slices[i]);
        struct module_memory *m = &out->of[module_of_tensor(table, state->slices[i].tensor)];
        m->elements += state->slices[i].param.count;
        m->weights += bytes.weights;
        m->optimizer += bytes.optimizer;
        m->gradients += bytes.gradients;
    }
}

static void add_memory(struct parallel *p, const struct model_table *table, struct dry_rank *out)
{
    const struct memory *memory = parallel_memory(p);
    uint64_t of_class[NUM_CLASSES];
    add_state(p, table, out);
    for (enum module module = 0; module < NUM_MODULES; module++)
        out->of[module].activations = memory_peak(memory, is_of_module, &module);
    for (enum buffer_class class = 0; class < NUM_CLASSES; class ++)
        of_class[class] = memory_peak(memory, is_of_class, &class);
    out->activations = of_class[CLASS_ACTIVATION];
    out->gathered = of_class[CLASS_ON_THE_WAY];
    out->scratch = of_class[CLASS_SCRATCH];
    out->kept = memory_kept_bytes(memory);
    parallel_count_kept(p, out->layers);
    out->shared = memory_shared_bytes(memory);
    out->host = memory_host_bytes(memory);
    parallel_gpu_memory(p, &out->gpu);
}

/* ---- a step ---- */

struct counter {
    struct parallel *p;
    struct dry_rank *out;
    const struct kernels *kernels;
    uint64_t before;
    const struct rates *rates; /* NULL: calls take no time */
    uint32_t machine_ranks;
    double *seconds; /* [operations] */
};

/* A block's part of an image; each copy of a shard writes a part of it. */
static uint64_t copied_bytes(struct parallel *p, uint32_t block)
{
    const struct state *state = parallel_state(p);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < state->num_slices; i++)
        if (state->slices[i].block == block)
            bytes += parallel_footprint(p, &state->slices[i]).image;
    return bytes;
}

/* Only operations of compute have work, one after the other. */
static void count_op(void *user, const struct op *op, uint32_t index, struct lane *lane,
                     bool is_end)
{
    (void)lane;
    struct counter *c = user;
    enum op_kind kind = op->kind != OP_KEYS ? op->kind : op->is_second ? OP_RECOMPUTE : OP_FORWARD;
    uint64_t work = is_end ? kernels_counted(c->kernels) - c->before : 0;
    c->out->work[kind] += work;
    if (c->rates != NULL && work > 0) {
        c->seconds[index] += (double)work / c->rates->flops;
        c->out->compute_seconds += (double)work / c->rates->flops;
    }
    c->before = kernels_counted(c->kernels);
    if (op->kind == OP_COPY && is_end)
        c->out->image += copied_bytes(c->p, op->block);
}

/* Called on the operation's thread, which sees only its own operation. */
static void count_call(void *user, const struct comm *comm, const struct comm_call *call)
{
    struct counter *c = user;
    struct flight_mark mark = flight_mark(comm->flight);
    c->out->away += rates_away(c->machine_ranks, parallel_mesh_of(c->p), comm, call);
    if (c->rates != NULL && mark.at.what != NULL)
        c->seconds[mark.at.index] += rates_call(c->rates, parallel_mesh_of(c->p), comm, call);
}

static double seconds_of(const void *user, const struct op *op)
{
    const struct counter *c = user;
    return c->seconds[op - parallel_program(c->p)->ops];
}

static int walk_rank(const struct counter *c)
{
    struct timeline timeline;
    int rc = timeline_walk(parallel_program(c->p), seconds_of, c, &timeline);
    c->out->seconds = timeline.total;
    return rc;
}

/* The number of steps before the first step with the most leaves. */
static int64_t step_with_most(const struct config *config)
{
    int64_t step = 0;
    for (uint32_t i = 0; i < config->num_ramp; i++)
        if (config->ramp[i].micro_batches == config->micro_batches)
            step = config->ramp[i].step;
    return step;
}

static int count_step(struct counter *c, const struct config *config, struct comm *world)
{
    struct parallel *p = c->p;
    struct dry_rank *out = c->out;
    struct step_input input = {.step = step_with_most(config) + 1};
    struct step_result result;
    parallel_observe(p, &(struct op_observer){count_op, c});
    comm_dry_watch(world, count_call, c);
    flight_clear_sums(world->flight);
    ERR_TRY(parallel_step(p, &input, &result));
    out->num_sent = flight_sums(world->flight, out->sent);
    out->stage_rank = parallel_mesh_of(p)->place[AXIS_PP];
    out->bubble = parallel_program(p)->bubble;
    out->leaves = parallel_own_leaves(p);
    return c->rates != NULL ? walk_rank(c) : 0;
}

static int count_rank(struct parallel *p, const struct parallel_options *options,
                      const struct rates *rates, struct dry_rank *out)
{
    struct counter counter = {.p = p,
                              .out = out,
                              .kernels = options->kernels,
                              .rates = rates,
                              .machine_ranks = (uint32_t)options->config->machine_ranks};
    counter.seconds = calloc(parallel_program(p)->num_ops, sizeof(*counter.seconds));
    int rc = counter.seconds != NULL
                 ? count_step(&counter, options->config, options->world)
                 : report_error(ERR_MEMORY, NULL, "no memory for the seconds of a step");
    free(counter.seconds);
    return rc;
}

int dry_run(struct dry_rank *out, const struct dry_options *o)
{
    struct config real = *o->config;
    struct parallel_options options = {.config = &real, .table = o->table};
    struct parallel *p = NULL;
    real.estimate = false;         /* otherwise the recipe ends before the step */
    real.checkpoint_enable = true; /* a save continues during the step: its copies are counted */
    real.async_mode = ASYNC_AT_ONCE;
    *out = (struct dry_rank){.rank = o->rank};
    int rc = device_open(&options.device, &device_dry, NULL);
    if (rc == 0)
        rc = kernels_count_new(&options.kernels, o->kernels);
    if (rc == 0)
        rc = comm_dry_open(&options.world, o->rank, o->size);
    if (rc == 0)
        rc = parallel_apply(&p, &options);
    if (rc == 0) /* of the longest step */
        out->num_hints = parallel_hints(out->hints, p);
    if (rc == 0)
        rc = count_rank(p, &options, o->rates, out);
    if (rc == 0)
        add_memory(p, o->table, out);
    if (rc == 0 && o->plan != NULL)
        memory_print(parallel_memory(p), o->plan);
    parallel_free(p);
    comm_free(options.world);
    if (options.kernels != NULL)
        kernels_free(options.kernels);
    device_close(options.device);
    return rc;
}
