/* rank.c - opens and closes the parts of a rank (see rank.h). */
#include "trainer/run/rank.h"
#include "kernels/device.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/flight.h"
#include "trainer/config/launched.h"
#include "trainer/data/ahead.h"
#include "trainer/forecast/estimate.h"
#include "trainer/forecast/suggest.h"
#include "trainer/model/shape.h"
#include "trainer/observe/peaks.h"
#include "trainer/plan/program.h"
#include "trainer/record/environment.h"
#include "trainer/run/introduce.h"
#include "trainer/run/samples.h"
#include "trainer/run/signals.h"
#include "trainer/run/timeouts.h"
#include "trainer/run/trace.h"
#include "trainer/tokenizer/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int new_kernels(struct kernels **out, const struct config *config,
                       const struct device *device)
{
    bool is_reference = config->kernels_backend == KERNELS_REFERENCE;
    struct kernels_options options = {
        .backend = is_reference ? KERNEL_BACKEND_REFERENCE : KERNEL_BACKEND_BEST,
        .num_threads = (uint32_t)config->threads,
        .isa = config->has_isa ? config->text.kernels_isa : NULL,
        .has_own_attention = config->kernels_attention == ATTENTION_OWN,
        .device = device};
    int rc = kernels_new(out, &options);
    if (rc == ERR_INVALID)
        return report_error(rc, "set kernels.isa to auto", "this CPU has no %s (kernels.isa)",
                            config->text.kernels_isa);
    if (rc != 0)
        return report_error(rc, NULL, "the kernels did not start with %lld threads: %s",
                            (long long)config->threads, err_text(rc));
    return 0;
}

/* The number of this process on its node; `unsaid` if no launcher gives one. */
static uint32_t place_on_node(const struct rank *r, uint32_t unsaid)
{
    bool is_local = r->config->comm_backend == BACKEND_LOCAL;
    const char *said = is_local ? NULL : launched(LAUNCHED_LOCAL_RANK);
    return said != NULL ? (uint32_t)strtoul(said, NULL, 10) : unsaid;
}

bool rank_is_first_on_node(const struct rank *r)
{
    return place_on_node(r, r->world->rank) == 0;
}

/* parallel.h opens the CPU. Ranks that are threads take the devices in turn. A missing device ends
 * the run for good: a restart cannot find it. */
static int open_device(struct rank *r)
{
    const struct device_ops *ops = device_find(r->config->text.device);
    bool is_thread = (r->world->ops->flags & COMM_ONE_MEMORY) != 0;
    struct device_options options = {.index = place_on_node(r, is_thread ? r->world->rank : 0),
                                     .is_shared = is_thread,
                                     .has_no_graphs = !r->config->kernels_graphs};
    if (ops == &device_cpu)
        return 0;
    if (ops == NULL)
        return report_error(ERR_INVALID, "set kernels.device to cpu, or build where nvcc is",
                            "kernels.device = %s: this trainer was built without CUDA",
                            r->config->text.device);
    int rc = device_open(&r->device, ops, &options);
    if (rc == 0 && device_identity(r->device)[0] != '\0')
        log_info("train", "rank %u has %s", r->world->rank, device_identity(r->device));
    return rc == ERR_UNAVAILABLE ? ERR_INVALID : rc;
}

/* Opens only the device and the kernels. */
static int open_compute(struct rank *r)
{
    if (!r->config->estimate) /* a plan needs no device */
        ERR_TRY(open_device(r));
    return new_kernels(&r->kernels, r->config, r->device);
}

int rank_bench_open(struct rank_bench *bench, struct rank *r, const char *name)
{
    ERR_TRY(open_compute(r));
    if (r->device == NULL)
        ERR_TRY(device_open(&bench->own, &device_cpu, NULL));
    bench->device = r->device != NULL ? r->device : bench->own;
    return lane_open(&bench->lane, bench->device, name, LANE_COMPUTES);
}

void rank_bench_close(struct rank_bench *bench)
{
    lane_close(bench->lane);
    device_close(bench->own);
}

static int new_table(struct model_table **out, const struct config *config, uint32_t vocab)
{
    struct model_shape shape;
    ERR_TRY(shape_of_settings(&shape, config, vocab));
    return model_table_new(out, &shape);
}

/* Makes the plan of this rank without data, from the vocabulary of the tokenizer. */
static int plan_without_data(struct rank *plan)
{
    struct tokenizer *tokenizer;
    struct parallel_options options = {.config = plan->config, .world = plan->world};
    ERR_TRY(tokenizer_open(&tokenizer, plan->config->tokenizer_path));
    uint32_t vocab = tokenizer_vocab(tokenizer);
    tokenizer_close(tokenizer);
    ERR_TRY(new_kernels(&plan->kernels, plan->config, NULL));
    ERR_TRY(new_table(&plan->table, plan->config, vocab));
    options.table = plan->table;
    options.kernels = plan->kernels;
    return parallel_apply(&plan->parallel, &options);
}

int rank_check_fits(const struct rank *r)
{
    if (r->config->tokenizer_path[0] == 0 || r->config->estimate || r->parallel != NULL)
        return 0;
    struct config config = *r->config;
    config.estimate = true; /* allocates and sends nothing */
    struct comm world = {.rank = r->world->rank, .size = r->world->size};
    struct rank plan = {.config = &config, .world = &world};
    int rc = plan_without_data(&plan);
    if (rc == 0)
        rc = parallel_check_room(plan.parallel);
    rank_close(&plan);
    return rc;
}

/* Opens the parts that need no other ranks. */
static int open_own(struct rank *r)
{
    ERR_TRY(samples_open(r));
    ERR_TRY(open_compute(r));
    return new_table(&r->table, r->config, data_info(r->data)->vocab);
}

int rank_validate(struct rank *r, bool *out_stop)
{
    const struct config *config = r->config;
    uint64_t whole = data_info(r->validation)->num_samples;
    uint64_t wanted = (uint64_t)config->validation_steps * (uint64_t)config->micro_batches *
                      (uint64_t)config->validation_batch;
    bool is_whole = config->validation_steps < 0 || wanted > whole;
    struct evaluation of = {r->validation, is_whole ? whole : wanted, r->want_stop};
    struct evaluation_result result;
    double start = clock_seconds();
    timeouts_set(r->world->flight, config, TIMEOUT_TRAIN);
    int rc = parallel_evaluate(r->parallel, &of, &result);
    timeouts_set(r->world->flight, config, TIMEOUT_SERVER);
    ERR_TRY(rc);
    *out_stop = result.is_dropped;
    struct validated validated = {.loss = result.loss,
                                  .seconds = clock_seconds() - start,
                                  .tokens = of.samples * (uint64_t)config->validation_seq_len};
    if (!result.is_dropped)
        metrics_validation(r->metrics, &r->progress, &validated);
    return 0;
}

static int open_ahead(struct rank *r)
{
    const struct config *config = r->config;
    const struct mesh *mesh = parallel_mesh_of(r->parallel);
    struct ahead_options options = {.data = r->data,
                                    .batch = (uint32_t)config->local_batch_size,
                                    .rank = mesh_group_place(mesh, GROUP_DATA),
                                    .leaves = mesh_leaves(mesh, config),
                                    .wants_starts = config->document_mask,
                                    .leaves_of_step = trainer_config_leaves,
                                    .user = config};
    return ahead_open(&r->ahead, &options);
}

double rank_peak_tflops(const struct rank *r)
{
    bool is_float = r->config->mixed_precision_param == DTYPE_FLOAT32;
    double peak = r->config->peak_tflops;
    return peak > 0 ? peak : peaks_find(kernels_describe(r->kernels), is_float);
}

static int open_metrics(struct rank *r)
{
    r->stragglers.config = r->config;
    struct metrics_options options = {
        .config = r->config,
        .rank = r->world->rank,
        .num_ranks = r->world->size,
        .data = r->data,
        .flops_per_token = model_flops_per_token(r->table, (uint32_t)r->config->seq_len),
        .recomputed_flops = parallel_recomputed_flops(r->parallel),
        .peak_tflops = rank_peak_tflops(r),
        .connect_seconds = r->world->connect_seconds,
        .device = r->device,
        .flight = r->world->flight,
        .history = &r->history};
    return metrics_open(&r->metrics, &options);
}

static int open_trace(struct rank *r)
{
    const struct config *config = r->config;
    struct trace_options options = {.path = config->timeline_file,
                                    .at_step = config->timeline_step,
                                    .freq = config->profile_freq,
                                    .steps = config->profile_steps};
    if (config->profiling)
        snprintf(options.folder, sizeof(options.folder), "%.200s/%.200s", config->dump_folder,
                 config->profile_folder);
    return trace_new(&r->trace, &options, r->parallel);
}

static void note_copy(void *user, const struct op *op, bool is_end)
{
    const struct rank *r = user;
    parallel_note_copy(r->parallel, op, is_end);
}

static int open_snapshot(struct rank *r)
{
    struct snapshot_options snapshot = {.config = r->config,
                                        .mesh = parallel_mesh_of(r->parallel),
                                        .state = parallel_state(r->parallel),
                                        .data = r->data,
                                        .model = r->table,
                                        .kernels = r->kernels,
                                        .history = &r->history,
                                        .environment = r->environment,
                                        .want_stop = r->want_stop,
                                        .asked_at = signals_asked_at,
                                        .note_copy = note_copy,
                                        .user = r};
    return snapshot_open(&r->snapshot, &snapshot);
}

int rank_open(struct rank *r)
{
    const struct config *config = r->config;
    struct comm *world = r->world;
    switches_open(&r->switches, config);
    r->breaks = (struct breaks){.config = config, .rank = world->rank};
    ERR_TRY(parallel_agree(world, open_own(r)));
    timeouts_set(world->flight, config, TIMEOUT_INIT);
    if (config->comm_backend == BACKEND_NCCL && r->device != NULL)
        ERR_TRY(comm_nccl_check_peers(world));
    struct parallel_options parallel = {config, r->table, r->kernels, world, r->device};
    ERR_TRY(parallel_apply(&r->parallel, &parallel));
    int rc = open_ahead(r);
    if (rc == 0)
        rc = samples_open_validation(r);
    if (rc == 0)
        rc = open_metrics(r);
    if (rc == 0)
        rc = open_trace(r);
    if (rc == 0)
        introduce_run(r);
    ERR_TRY(parallel_agree(world, rc));
    ERR_TRY(parallel_agree(world, samples_check_same(r)));
    rc = environment_gather(&r->environment, world, kernels_describe(r->kernels));
    ERR_TRY(parallel_agree(world, rc));
    ERR_TRY(open_snapshot(r));
    timeouts_set(world->flight, config, TIMEOUT_SERVER);
    return 0;
}

void rank_close(struct rank *r)
{
    metrics_close(r->metrics);
    snapshot_close(r->snapshot);
    free(r->environment);
    trace_free(r->trace);
    parallel_free(r->parallel);
    model_table_free(r->table);
    if (r->kernels != NULL)
        kernels_free(r->kernels);
    device_close(r->device);
    ahead_close(r->ahead);
    data_close(r->validation);
    data_close(r->data);
}

int rank_load(struct rank *r)
{
    bool is_loaded = false;
    int rc = 0;
    if (snapshot_begins_in_part(r->snapshot))
        rc = parallel_init_state(r->parallel, (uint64_t)r->config->seed);
    ERR_TRY(parallel_agree(r->world, rc));
    /* State that a load does not fill is zero, as the memory plan allocates it: the moments, if the
     * optimizer is excluded. */
    ERR_TRY(snapshot_load(r->snapshot, &r->progress, &is_loaded));
    r->loaded_step = r->progress.step;
    metrics_loaded(r->metrics);
    rc = is_loaded ? 0 : parallel_init_state(r->parallel, (uint64_t)r->config->seed);
    if (is_loaded)
        parallel_params_changed(r->parallel);
    /* All ranks wait, so that the first step's time does not include another rank's weights. */
    ERR_TRY(parallel_agree(r->world, rc));
    metrics_ready(r->metrics, snapshot_times(r->snapshot), r->progress.step);
    return 0;
}

/* A run without saves restarts from its beginning; a run whose older checkpoints are gone cannot go
 * back. */
static int check_way_back(const struct rank *r, int64_t newest, bool has_saved)
{
    if (newest >= 0 || !has_saved)
        return 0;
    int rc = report_error(
        ERR_NOT_FOUND, "lower training.roll_back_steps, or keep more checkpoints",
        "step %lld cannot be rolled back: run %s has no undamaged checkpoint of a step before %lld",
        (long long)r->progress.step + 1, r->config->run, (long long)r->config->load_below);
    return parallel_agree(r->world, rc);
}

/* Sets the options of the load that goes back. */
static void set_way_back(struct config *config, int64_t step)
{
    int64_t below = step + 1 - config->roll_back_steps;
    config->load_below = below > 1 ? below : 1;
    config->load_step = -1;
    config->skip_samples = 0;
    config->exclude_from_loading[0] = '\0';
}

_Static_assert(CONFIG_ROLL_BACKS_MAX <= JUMPS_MAX, "a run's progress lists all that it leaves out");

int rank_roll_back(struct rank *r)
{
    struct jumps jumps = r->progress.jumps;
    struct broken_steps broken = r->progress.broken;
    bool saves = snapshot_is_taken(r->snapshot);
    bool has_saved = r->loaded_step > 0 || snapshot_times(r->snapshot)->num_saves > 0;
    int64_t step = r->progress.step + 1, newest;
    jumps.of[jumps.num++] = r->breaks.bad;
    broken_add(&broken, &r->breaks.last);
    metrics_left_out(r->metrics, &r->breaks.last);
    r->breaks.bad.count = 0;
    ERR_TRY(snapshot_settle(r->snapshot));
    snapshot_close(r->snapshot);
    r->snapshot = NULL;
    ahead_close(r->ahead); /* it owns the data, whose place a load sets */
    r->ahead = NULL;
    set_way_back(r->config, step);
    ERR_TRY(open_snapshot(r));
    ERR_TRY(snapshot_find_step(r->snapshot, &newest));
    ERR_TRY(check_way_back(r, newest, has_saved));
    if (saves)
        ERR_TRY(snapshot_take(r->snapshot));
    r->progress = (struct progress){.step = 0};
    ERR_TRY(rank_load(r));
    r->progress.jumps = jumps;
    broken_cut(&broken, r->loaded_step);
    r->progress.broken = broken;
    r->config->load_below = 0;
    return parallel_agree(r->world, open_ahead(r));
}

void rank_log_end(const struct rank *r)
{
    const char *how = r->progress.step < r->config->steps ? "stopped" : "done";
    long long step = r->progress.step, durable = snapshot_durable_step(r->snapshot);
    if (r->world->rank != 0)
        return;
    if (durable == step || !snapshot_is_taken(r->snapshot))
        log_info("train", "%s after step %lld", how, step);
    else if (durable >= 0)
        log_info("train", "%s after step %lld; step %lld is the newest durable one", how, step,
                 durable);
    else
        log_info("train", "%s after step %lld; none is durable", how, step);
}

static int write_floats(const char *path, const float *values, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not create debug.logits_file %s: %s", path, strerror(errno));
    bool is_written = fwrite(values, sizeof(*values), count, file) == count;
    if (fclose(file) != 0 || !is_written)
        return report_errno(ERR_IO, "could not write debug.logits_file", path);
    log_info("train", "wrote %zu logits to %s", count, path);
    return 0;
}

int rank_write_logits(struct rank *r)
{
    size_t count = (size_t)r->config->seq_len * r->table->shape.vocab;
    float *logits = malloc(count * sizeof(*logits));
    int rc = logits != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the logits");
    rc = parallel_agree(r->world, rc);
    if (rc == 0)
        rc = parallel_logits(r->parallel, r->ahead, 0, logits);
    if (rc == 0 && r->world->rank == 0)
        rc = write_floats(r->config->logits_file, logits, count);
    free(logits);
    return parallel_agree(r->world, rc);
}

static int print_programs(struct rank *r)
{
    struct parallel_options options = {
        .config = r->config, .table = r->table, .kernels = r->kernels};
    uint32_t stages = (uint32_t)r->config->pp, num_ranks = r->world->size;
    int rc = 0;
    for (uint32_t stage = 0; stage < stages && rc == 0; stage++) {
        rc = comm_dry_open(&options.world, num_ranks / stages * stage, num_ranks);
        if (rc == 0) /* the first rank of each stage */
            rc = parallel_apply(&r->parallel, &options);
        if (rc == 0)
            program_print(parallel_program(r->parallel), stdout);
        parallel_free(r->parallel);
        r->parallel = NULL;
        comm_free(options.world);
        options.world = NULL;
    }
    return rc;
}

int rank_estimate(struct config *config)
{
    bool is_open = config->dp_shard < 0;
    int64_t others = config->pp * config->dp_replicate * config->cp * config->tp;
    uint32_t num_ranks = (uint32_t)(is_open ? config->comm_ranks : others * config->dp_shard);
    struct comm world = {.rank = 0, .size = num_ranks};
    struct rank r = {.config = config, .world = &world};
    int rc = samples_are_prepared(config) ? open_own(&r) : new_kernels(&r.kernels, config, NULL);
    if (rc == 0 && r.table == NULL)
        rc = new_table(&r.table, config, 0);
    if (rc == 0 && config->print_program)
        rc = print_programs(&r);
    else if (rc == 0)
        rc = (config->suggest ? suggest_print : estimate_print)(config, r.table, r.kernels,
                                                                num_ranks);
    rank_close(&r);
    return rc;
}
