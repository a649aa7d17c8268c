/* parallel.c - the recipe that spreads a model over ranks (see parallel.h).
 *
 * Gathering of parameters: gather.c. Gradients: reduce.c. The step: parallel/step.c, whose program
 * parallel/execute.c runs. */
#include "trainer/parallel/parallel.h"
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_check.h"
#include "trainer/base/memory_plan.h"
#include "trainer/config/launched.h"
#include "trainer/parallel/execution.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* Products read a copy of the parameters in another type. */
static bool has_compute_params(const struct parallel *p)
{
    return p->plan->dtype != KERNEL_F32 || has_codes(p->plan);
}

/* State that only the optimizer reads may lie on the host: its kernel reads and writes it over the
 * bus. */
static void *take_state(struct parallel *p, const char *name, enum state_part part)
{
    bool is_used = part == STATE_PARAM && !has_compute_params(p); /* by all products */
    bool is_on_host =
        p->plan->config->cpu_offload && p->plan->config->device == DEVICE_CUDA && !is_used;
    return (is_on_host ? memory_take_on_host : memory_take)(p->plan->memory, name, 0,
                                                            state_bytes(&p->state, part));
}

/* Takes the buffers of the whole run: noted while recording, addresses afterwards. */
static void take_kept(struct parallel *p)
{
    struct memory *m = p->plan->memory;
    struct kernel_shapes shapes;
    p->state.lane = p->plan->lane;
    p->state.param = take_state(p, "parameters", STATE_PARAM);
    p->state.exp_avg = take_state(p, "exp_avg", STATE_EXP_AVG);
    p->state.exp_avg_sq = take_state(p, "exp_avg_sq", STATE_EXP_AVG_SQ);
    p->exchange.accumulators =
        memory_take(m, "gradient accumulators", 0,
                    sums_bytes(&p->state, reduce_accumulator_count(&p->exchange)));
    if (reduce_seen_rows(&p->exchange) > 0)
        p->exchange.seen = memory_take(m, "rows of the embedding with a gradient", 0,
                                       reduce_seen_rows(&p->exchange) * sizeof(uint32_t));
    if (has_groups(p->plan))
        p->exchange.group_sums =
            memory_take(m, "sums of a group", 0, p->plan->group_count * sizeof(float));
    bool is_where_wanted = p->plan->is_canonical ? !is_gathered_whole(p->plan, &p->state)
                                                 : p->plan->mesh.degree[AXIS_SHARD] == 1;
    p->state.grad = is_where_wanted ? p->exchange.accumulators
                                    : memory_take(m, "gradient shard", 0,
                                                  sums_bytes(&p->state, p->state.count));
    p->exchange.compute_params = p->state.param;
    if (has_compute_params(p))
        p->exchange.compute_params =
            memory_take(m, "parameters in compute dtype", 0, p->plan->compute_bytes);
    bool is_copy = p->plan->dtype == KERNEL_BF16 && !has_codes(p->plan); /* laid out as the state */
    p->state.copy = is_copy && !p->state.is_zero ? p->exchange.compute_params : NULL;
    if (has_codes(p->plan))
        p->exchange.largest = memory_take(m, "scales of float8", 0,
                                          p->plan->num_codes * sizeof(*p->exchange.largest));
    model_kernel_shapes(p->plan->model, &shapes);
    size_t scratch_bytes = kernels_scratch_bytes(p->plan->kernels, &shapes);
    void *scratch = memory_take(m, "kernel scratch", 0, scratch_bytes);
    pinned_take_tokens(p);
    p->run.numbers = memory_take(m, "numbers of the step", 0, sizeof(*p->run.numbers));
    p->state.update =
        memory_take(m, "lists of the optimizer", 0, state_update_bytes(p->state.num_slices));
    p->exchange.squares =
        memory_take(m, "lists of the norm", 0, p->state.num_slices * sizeof(*p->exchange.squares));
    transfers_take(p);
    if (!memory_is_recording(m))
        lane_set_scratch(p->plan->lane, scratch, scratch_bytes);
}

#define LIKE_LEAVES 4u /* leaves of a step that takes all buffers of a longer one */

/* Checks the programs of all stages of a step against each other. */
static int check_programs(const struct program_options *of)
{
    struct program_options shape = *of;
    struct program **ranks = calloc(shape.num_ranks, sizeof(struct program *));
    int rc = ranks != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the programs");
    for (shape.rank = 0; shape.rank < shape.num_ranks && rc == 0; shape.rank++)
        rc = program_build(&ranks[shape.rank], &shape);
    if (rc == 0)
        rc = program_check((const struct program *const *)ranks, &shape);
    for (uint32_t r = 0; r < shape.num_ranks && ranks != NULL; r++)
        program_free(ranks[r]);
    free(ranks);
    return rc;
}

/* Walks a step of `num_leaves` leaves per data rank; 0: of a step of `all_leaves` leaves. */
static int walk_step(struct parallel *p, uint32_t num_leaves, uint32_t all_leaves)
{
    struct walk walk = {0};
    struct program_options shape = p->plan->shape;
    struct program *program = NULL;
    struct leaves leaves = p->plan->leaves;
    leaves.num = all_leaves;
    shape.num_leaves = num_leaves > 0 ? num_leaves : leaves_micro_steps(&leaves);
    shape.round_leaves = has_groups(p->plan) ? leaves_round(&leaves) : 0;
    ERR_TRY(check_programs(&shape));
    ERR_TRY(program_build(&program, &shape));
    int rc = execute_program(p, program, &walk);
    program_free(program);
    return rc;
}

/* The dry run: the walk of a step notes every buffer. If one leaf is under way at a time and keeps
 * nothing for the next, one leaf stands for all. With lanes the leaves between the first and the
 * last are alike. Otherwise (a pipeline, GPipe on one stage, gathered parameters that are never
 * dropped) each possible length of a step is walked. */
static int plan_memory(struct parallel *p)
{
    struct walk walk = {0};
    uint32_t most = leaves_micro_steps(&p->exchange.leaves);
    bool is_one_like_all = p->plan->mesh.degree[AXIS_PP] == 1 && p->run.program->num_slots == 1 &&
                           p->plan->shape.drops;
    take_kept(p);
    if (is_one_like_all && !has_groups(p->plan)) {
        bool overlaps = p->plan->shape.gather_ahead + p->plan->shape.exchange_behind > 0;
        for (uint32_t leaves = 1; leaves <= (overlaps ? LIKE_LEAVES : 1); leaves++)
            ERR_TRY(walk_step(p, leaves < most ? leaves : most, p->exchange.leaves.num));
        if (overlaps)
            ERR_TRY(execute_program(p, p->run.evaluation, &walk));
        return memory_place(p->plan->memory);
    }
    ERR_TRY(walk_step(p, 0, p->exchange.leaves.num));
    for (uint32_t i = 0; i < p->plan->config->num_ramp; i++)
        if (p->plan->config->ramp[i].micro_batches < p->exchange.leaves.num)
            ERR_TRY(walk_step(p, 0, (uint32_t)p->plan->config->ramp[i].micro_batches));
    ERR_TRY(execute_program(p, p->run.evaluation, &walk));
    return memory_place(p->plan->memory);
}

/* ---- the recipe ---- */

/* Checks the groups for every length of a step. */
static int check_groups(const struct config *config)
{
    int64_t groups = config->groups, leaves = config->micro_batches;
    for (uint32_t i = 0; i < config->num_ramp; i++)
        if (config->ramp[i].micro_batches % groups != 0)
            leaves = config->ramp[i].micro_batches;
    if (leaves % groups == 0)
        return 0;
    return report_error(ERR_INVALID, "choose a number that divides",
                        "a step of %lld micro-batches does not divide by canonical.groups = %lld",
                        (long long)leaves, (long long)groups);
}

static int check_canonical(const struct config *config)
{
    ERR_TRY(check_groups(config));
    if (config->micro_batches < 1 || config->micro_batches > UINT32_MAX)
        return report_error(ERR_INVALID, "set training.global_batch_size",
                            "a step of %lld micro-batches is not possible",
                            (long long)config->micro_batches);
    return 0;
}

/* The fast reduction keeps each rank's whole gradient in one sum. If ZeRO-2 or groups divide the
 * sums, the canonical order is used: it is one of the orders that "fast" allows. */
static bool sums_canonically(const struct config *config)
{
    return config->reduction == REDUCTION_CANONICAL || config->zero_stage == 2 ||
           config->groups > 1;
}

/* Sums of bf16 are rounded after each leaf: another order gives other bits. */
static int check_sums(const struct parallel *p)
{
    if (p->state.gradients == KERNEL_F32 || !p->plan->is_canonical)
        return 0;
    return report_error(ERR_INVALID,
                        p->plan->config->reduction != REDUCTION_FAST
                            ? "set training.reduction to fast as well"
                            : "leave parallelism.zero_stage below 2 and canonical.groups at 1",
                        "training.mixed_precision_reduce = bfloat16: sums in the canonical order "
                        "are float32");
}

static void choose_cut(struct rank_plan *plan)
{
    const struct config *config = plan->config;
    plan->cut = (struct model_cut){.tp_blocks = (uint32_t)config->tp_blocks,
                                   .cp_blocks = (uint32_t)config->cp_blocks,
                                   .tp = plan->mesh.degree[AXIS_TP],
                                   .cp = plan->mesh.degree[AXIS_CP],
                                   .tp_place = plan->mesh.place[AXIS_TP],
                                   .cp_place = plan->mesh.place[AXIS_CP],
                                   .loss_chunks = (uint32_t)config->loss_chunks,
                                   .is_loss_whole = config->disable_loss_parallel,
                                   .is_in_order = config->cp_load_balancer == BALANCER_NONE,
                                   .is_ring = plan->mesh.has_ring,
                                   .shares_heads = config->cp_rotate_method == ROTATE_ULYSSES};
}

static struct model_options model_options_of(const struct rank_plan *plan)
{
    return (struct model_options){.table = plan->table,
                                  .memory = plan->memory,
                                  .batch = (uint32_t)plan->config->local_batch_size,
                                  .seq = (uint32_t)plan->config->seq_len,
                                  .dtype = plan->dtype,
                                  .cut = plan->cut};
}

static int new_model(struct parallel *p, struct rank_plan *plan)
{
    struct model_options options = model_options_of(plan);
    options.num_slots = p->run.program->num_slots;
    options.keep = plan->keep;
    options.not_float8 = plan->config->is_float8 ? plan->config->float8_filter : NULL;
    options.has_codes = has_codes(plan);
    options.gradient_format =
        plan->config->float8_gradients == FLOAT8_E4M3 ? KERNEL_E4M3 : KERNEL_E5M2;
    if (options.not_float8 != NULL && !kernels_have_float8(plan->kernels))
        return report_error(ERR_INVALID,
                            "leave model.converters empty, or use a GPU of capability 8.9 or more",
                            "%s has no float8 products", kernels_describe(plan->kernels));
    plan->num_reads = p->run.program->num_reads;
    p->run.tokens = calloc(plan->num_reads, sizeof(*p->run.tokens));
    if (p->run.tokens == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the tokens' places");
    ERR_TRY(model_new(&plan->model, &options));
    return model_set_kernels(plan->model, plan->kernels, plan->lane);
}

void set_leaves(struct parallel *p, uint32_t num_leaves)
{
    p->exchange.leaves = p->plan->leaves;
    p->exchange.leaves.num = num_leaves;
}

static void note_settings(const struct parallel *p)
{
    if (p->plan->is_canonical && p->plan->config->reduction == REDUCTION_FAST &&
        p->plan->mesh.world->rank == 0)
        log_info("train",
                 "training.reduction = fast: %s divides sums of gradients, so they are "
                 "made in the canonical order",
                 p->plan->config->zero_stage == 2 ? "parallelism.zero_stage = 2"
                                                  : "canonical.groups");
}

/* A run keeps its S and G on any mesh: ranks beyond them only hold parts of the state. */
static void note_idle_ranks(const struct parallel *p)
{
    uint32_t idle = 0;
    for (uint32_t r = 0; r < num_data_ranks(p->plan); r++)
        idle += leaves_at(&p->exchange.leaves, r, 0) ==
                LEAF_NONE; /* a rank with leaves has one in the first micro-step */
    if (idle > 0 && p->plan->mesh.world->rank == 0)
        log_warn("train",
                 "%u of %u data ranks hold their shards and compute nothing: a step has only "
                 "canonical.micro_batches = %u, canonical.groups = %u",
                 idle, num_data_ranks(p->plan), p->exchange.leaves.num, p->exchange.leaves.groups);
}

uint32_t ranks_said_on_machine(const struct rank_plan *plan)
{
    const char *said = launched(LAUNCHED_LOCAL_SIZE);
    if (plan->config->comm_backend == BACKEND_LOCAL)
        return plan->mesh.world->size;
    return said != NULL ? (uint32_t)strtoul(said, NULL, 10) : 0;
}

/* Of this run: 1 if the launcher does not say. */
static uint32_t ranks_on_machine(const struct parallel *p)
{
    uint32_t said = ranks_said_on_machine(p->plan);
    return said > 0 ? said : 1;
}

int parallel_check_room(const struct parallel *p)
{
    struct memory_need need = {.plan = p->plan->memory,
                               .of = p->plan->config->device == DEVICE_CUDA ? MEMORY_HOST_OF_GPU
                                                                            : MEMORY_MACHINE,
                               .num_ranks = ranks_on_machine(p)};
    return memory_check(&need, memory_check_available(""));
}

static bool has_even_shards(const struct rank_plan *plan)
{
    for (uint32_t b = 0; b < num_all_blocks(plan); b++)
        for (uint32_t s = 1; s < plan->mesh.degree[AXIS_SHARD]; s++)
            if (plan->blocks[b].shard_bytes[s] != plan->blocks[b].shard_bytes[0])
                return false;
    return true;
}

void parallel_gpu_memory(const struct parallel *p, struct gpu_memory *out)
{
    const struct config *config = p->plan->config;
    uint32_t said = ranks_said_on_machine(p->plan);
    bool is_dry = (p->plan->device->ops->flags & DEVICE_DRY) != 0;
    bool has_dnn = config->kernels_attention != ATTENTION_OWN && !config->document_mask;
    struct kernel_shapes shapes;
    model_kernel_shapes(p->plan->model, &shapes);
    *out = (struct gpu_memory){0};
    if (config->device == DEVICE_CUDA)
        gpu_memory_estimate(out,
                            &(struct gpu_memory_options){
                                .mesh = &p->plan->mesh,
                                .program = p->run.program,
                                .shape = &p->plan->shape,
                                .machine_ranks = said > 0 ? said : (uint32_t)config->machine_ranks,
                                .has_graphs = config->kernels_graphs,
                                .has_nccl = config->comm_backend == BACKEND_NCCL,
                                .has_folds = mesh_group_size(&p->plan->mesh, GROUP_OWNERS) == 1,
                                .has_even_shards = has_even_shards(p->plan),
                                .shapes = is_dry ? &shapes : NULL,
                                .bytes = has_dnn ? (uint64_t)(config->rank_gib * (1 << 30)) : 0});
}

/* Refuses settings that need host access to the device's memory. */
static int check_device(const struct parallel *p)
{
    const char *name = p->plan->device->ops->name;
    if (p->plan->device->ops->flags & DEVICE_HOST_MEMORY)
        return 0;
    if (sums_by_library(p->plan) && !(p->plan->mesh.world->ops->flags & COMM_SUMS_ON_DEVICE))
        return report_error(ERR_INVALID,
                            "set comm.backend to nccl, or training.reduction to canonical",
                            "training.reduction = fast between ranks: comm.backend = %s cannot sum "
                            "in the memory of the device %s",
                            p->plan->mesh.world->ops->name, name);
    if (p->plan->config->comm_backend == BACKEND_MPI)
        return report_error(ERR_INVALID, "use local: ranks as threads on one GPU",
                            "comm.backend = mpi cannot access the memory of the device %s", name);
    return 0;
}

/* Checks the memory of the machine and of the rank's device. */
static int check_room(const struct parallel *p)
{
    bool are_threads = (p->plan->mesh.world->ops->flags & COMM_ONE_MEMORY) != 0;
    if (p->plan->device->ops->flags & DEVICE_DRY)
        return 0;
    ERR_TRY(check_device(p));
    ERR_TRY(parallel_check_room(p));
    if (p->plan->own_device != NULL)
        return 0;
    struct gpu_memory gpu;
    parallel_gpu_memory(p, &gpu); /* its context exists already, and its free memory excludes it */
    return memory_check_device(
        p->plan->memory,
        &(struct memory_beside){.once = gpu.libraries, .each = gpu.graphs + gpu.nccl},
        p->plan->device, are_threads ? p->plan->mesh.world->size : 1);
}

/* Allocates buffers of gathered blocks, and the lists that calls use. */
static int new_exchange(struct parallel *p)
{
    struct exchange *x = &p->exchange;
    size_t owners = mesh_group_size(&p->plan->mesh, GROUP_OWNERS);
    x->buffers = calloc(num_all_blocks(p->plan), sizeof(*x->buffers));
    x->lists = calloc(4 * NUM_LANES * owners, sizeof(*x->lists));
    if (x->buffers == NULL || x->lists == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the layouts");
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        x->lane_lists[lane] = x->lists + lane * 4 * owners;
    return 0;
}

static int build_programs(struct parallel *p)
{
    ERR_TRY(program_build(&p->run.program, &p->plan->shape));
    p->run.round_leaves = p->plan->shape.round_leaves;
    ERR_TRY(program_build_evaluation(&p->run.evaluation, &p->plan->shape));
    return p->plan->mesh.degree[AXIS_PP] > 1 ? transfers_new(p) : 0;
}

/* Steps 1 to 5, without communication. `keep`: as in parallel_try. */
static int prepare(struct parallel *p, struct rank_plan *plan, const uint8_t *keep)
{
    const struct config *config = plan->config;
    struct comm *world = plan->mesh.world;
    /* 1. The mesh: this rank's place, and how it cuts the model. */
    ERR_TRY(mesh_init(&plan->mesh, config, world->rank, world->size));
    plan->mesh.world = world;
    ERR_TRY(check_canonical(config));
    ERR_TRY(check_sums(p));
    choose_cut(plan);
    struct model_options model = model_options_of(plan);
    ERR_TRY(model_cut_check(&model));
    plan->leaves = mesh_leaves(&plan->mesh, config);
    set_leaves(p, (uint32_t)config->micro_batches);
    p->state.is_zero = config->zero_stage > 0 && mesh_group_size(&plan->mesh, GROUP_COPIES) > 1;
    /* 2. The program: this rank's stage, and the operations of a step in order. */
    ERR_TRY(programs_plan(plan, &p->state, keep));
    ERR_TRY(build_programs(p));
    /* 3. The layouts: the boxes of tensors that this rank holds. */
    ERR_TRY(blocks_lay_out(plan, &p->state));
    ERR_TRY(new_exchange(p));
    /* 4. The model, block by block. */
    ERR_TRY(memory_new(&plan->memory));
    ERR_TRY(new_model(p, plan));
    /* 5. The memory: every buffer of a step, by a dry run. */
    ERR_TRY(plan_memory(p));
    if (config->estimate)
        return 0;
    return check_room(p);
}

static int take_memory(struct parallel *p)
{
    ERR_TRY(memory_commit(p->plan->memory, p->plan->own_device != NULL ? NULL : p->plan->device));
    take_kept(p);
    return pinned_take(p);
}

static int apply(struct parallel *p, struct rank_plan *plan, const uint8_t *keep)
{
    if (plan->config->estimate)
        return prepare(p, plan, keep);
    ERR_TRY(parallel_agree(plan->mesh.world, prepare(p, plan, keep)));
    /* If one rank's memory is missing, all ranks fail. */
    ERR_TRY(parallel_agree(plan->mesh.world, take_memory(p)));
    /* 6. The groups in which it communicates. */
    ERR_TRY(mesh_split(&plan->mesh));
    for (uint32_t group = 0; group < NUM_GROUPS; group++)
        if (plan->mesh.of[group] != NULL)
            plan->mesh.of[group]->device_lane = plan->lane;
    ERR_TRY(channels_open(&p->exchange));
    ERR_TRY(side_lanes_open(p));
    model_set_groups(plan->model, plan->mesh.of[GROUP_TP], plan->mesh.of[GROUP_CP]);
    return watch_open(p);
}

static enum kernel_dtype kernel_dtype_of(enum config_dtype dtype)
{
    return dtype == DTYPE_BFLOAT16 ? KERNEL_BF16 : KERNEL_F32;
}

int parallel_try(struct parallel **out, const struct parallel_options *options, const uint8_t *keep)
{
    const struct config *config = options->config;
    struct parallel *p = calloc(1, sizeof(*p));
    struct rank_plan *plan = calloc(1, sizeof(*plan));
    if (p == NULL || plan == NULL) {
        free(p);
        free(plan);
        return report_error(ERR_MEMORY, NULL, "no memory for the parallel state");
    }
    p->plan = p->exchange.plan = plan;
    p->exchange.state = &p->state;
    plan->config = config;
    plan->table = options->table;
    plan->kernels = options->kernels;
    plan->mesh.world = options->world;
    plan->dtype = kernel_dtype_of(config->mixed_precision_param);
    p->state.moments = kernel_dtype_of(config->moments_dtype);
    p->state.gradients = kernel_dtype_of(config->mixed_precision_reduce);
    plan->is_canonical = sums_canonically(config);
    plan->mesh.has_sums = !plan->is_canonical;
    int rc = options->device == NULL ? device_open(&plan->own_device, &device_cpu, NULL) : 0;
    plan->device = options->device != NULL ? options->device : plan->own_device;
    if (rc == 0)
        rc = lane_open(&plan->lane, plan->device, "compute", LANE_COMPUTES);
    if (rc == 0)
        rc = apply(p, plan, keep);
    if (rc != 0) {
        struct report_text text;
        report_keep(&text);
        parallel_free(p);
        return report_restore(&text, rc); /* a lane that is settled reports its error again */
    }
    *out = p;
    return 0;
}

int parallel_apply(struct parallel **out, const struct parallel_options *options)
{
    const struct config *config = options->config;
    uint8_t *keep = NULL;
    int rc = 0;
    if (config->ac_mode == RECOMPUTE_BUDGET && config->budget_bytes > 0) {
        keep = calloc(options->table->shape.layers, sizeof(*keep));
        rc = keep == NULL ? report_error(ERR_MEMORY, NULL, "no memory for the list of layers")
                          : budget_choose(keep, options);
        if (!config->estimate)
            rc = parallel_agree(options->world, rc);
    }
    if (rc == 0)
        rc = parallel_try(out, options, keep);
    free(keep);
    if (rc == 0) {
        note_idle_ranks(*out);
        note_settings(*out);
    }
    return rc;
}

static void free_blocks(struct rank_plan *plan)
{
    for (uint32_t b = 0; plan->blocks != NULL && b < num_all_blocks(plan); b++) {
        free(plan->blocks[b].shard_counts);
        free(plan->blocks[b].shard_bytes);
        free(plan->blocks[b].piece_counts);
        free(plan->blocks[b].group_at);
    }
    free(plan->blocks);
    free(plan->full_at);
    free(plan->held_at);
    free(plan->code_parts);
    free(plan->code_at);
    free(plan->boxes);
}

void parallel_free(struct parallel *p)
{
    if (p == NULL)
        return;
    struct rank_plan *plan = (struct rank_plan *)(uintptr_t)p->plan; /* parallel_try made it */
    side_lanes_close(p);
    channels_close(&p->exchange);
    mesh_free_groups(&plan->mesh);
    if (plan->lane != NULL)
        (void)lane_settle(plan->lane); /* wait: the lane still uses what is freed next */
    blame_close(p->run.blame, plan->device);
    watch_close(p->run.watch); /* the blame has buffers of it */
    model_free(plan->model);
    memory_free(plan->memory);
    pinned_free(p);
    lane_close(plan->lane);
    device_close(plan->own_device);
    transfers_free(p);
    program_free(p->run.program);
    program_free(p->run.evaluation);
    free(p->run.tokens);
    free(p->exchange.lists);
    free(p->exchange.buffers);
    free(p->state.slices);
    free_blocks(plan);
    free(plan->first_block);
    free(plan->keep);
    free(plan->ends_bucket);
    free(plan);
    free(p);
}

const struct mesh *parallel_mesh_of(const struct parallel *p)
{
    return &p->plan->mesh;
}
struct state *parallel_state(struct parallel *p)
{
    return &p->state;
}
struct lane *parallel_lane(struct parallel *p)
{
    return p->plan->lane;
}
const struct program *parallel_program(const struct parallel *p)
{
    return p->run.program;
}
const struct memory *parallel_memory(const struct parallel *p)
{
    return p->plan->memory;
}

uint32_t parallel_own_leaves(const struct parallel *p)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < leaves_micro_steps(&p->exchange.leaves); i++)
        num += rank_has_leaf(&p->exchange, my_data_rank(p->plan), i);
    return num;
}

void parallel_count_kept(const struct parallel *p, uint32_t *out)
{
    memset(out, 0, NUM_MODEL_KEEPS * sizeof(*out));
    for (uint32_t b = 1; b <= p->plan->table->shape.layers; b++)
        if (program_stage_of(&p->plan->shape, b) % p->plan->shape.num_ranks == p->plan->shape.rank)
            out[p->plan->keep[b - 1]]++;
}

double parallel_recomputed_flops(const struct parallel *p)
{
    double flops = 0;
    for (uint32_t i = 0; i < p->plan->table->shape.layers; i++)
        if (p->plan->keep[i] == MODEL_KEEP_NOTHING)
            flops += model_layer_flops(p->plan->table, (uint32_t)p->plan->config->seq_len);
    return flops;
}

void parallel_observe(struct parallel *p, const struct op_observer *observer)
{
    p->run.observer = *observer;
}

void parallel_params_changed(struct parallel *p)
{
    p->exchange.are_codes_made = false;
    if (has_codes(p->plan))
        codes_copy_others(&p->exchange);
    else if (p->plan->dtype != KERNEL_F32)
        kernel_convert(p->plan->kernels, p->plan->lane,
                       &(struct kernel_convert){.out = p->exchange.compute_params,
                                                .out_dtype = p->plan->dtype,
                                                .in = p->state.param,
                                                .count = p->state.count});
}

void parallel_params_updated(struct parallel *p)
{
    if (p->state.copy == NULL)
        parallel_params_changed(p);
}
