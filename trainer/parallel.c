/* parallel.c - the recipe that spreads a model over ranks, and one step on them (see parallel.h).
 *
 * Parameters. Each rank keeps its shard in float, packed tensor after tensor in block order (every
 * tensor starts at a multiple of ALIGN elements, so that kernels and transports see aligned,
 * 64-byte units). For a block's compute the F shards are gathered in the compute dtype and unpacked
 * to whole tensors. After the forward they are dropped and gathered again for the backward, except
 * those of the last block, which is needed again at once; with reshard "never" a block is gathered
 * once per step.
 *
 * Gradients: reduce.c.
 *
 * Norm. Squares are summed exactly (kernel_sum_squares), each element by one rank, limbs as
 * integers over all ranks: the same bits however the rows are held. Loss. Leaf losses are gathered
 * and added in double in leaf order. */
#include "trainer/parallel.h"
#include "kernels/device.h"
#include "proto/report.h"
#include "trainer/data/ahead.h"
#include "trainer/memory.h"
#include "trainer/parallel_private.h"
#include "trainer/room.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- mesh and layouts ---- */

int parallel_mesh(struct mesh *out, const struct config *config, uint32_t rank, uint32_t size)
{
    int64_t replicas = config->dp_replicate, shards = config->dp_shard;
    const char *hint = "change the parallelism degrees or the number of ranks";
    if (config->tp != 1 || config->pp != 1 || config->cp != 1)
        return report_error(ERR_INVALID, "set them to 1",
                            "tensor, pipeline and context parallel are not available");
    if (replicas < 1)
        return report_error(ERR_INVALID, hint, "data_parallel_replicate_degree is %lld",
                            (long long)replicas);
    if (shards == -1 && size % replicas != 0)
        return report_error(ERR_INVALID, hint,
                            "%u ranks do not divide by data_parallel_replicate_degree %lld", size,
                            (long long)replicas);
    if (shards == -1)
        shards = size / replicas;
    if (shards < 1 || replicas * shards != size)
        return report_error(ERR_INVALID, hint,
                            "dp_replicate %lld x dp_shard %lld = %lld ranks, but %u were started",
                            (long long)replicas, (long long)shards, (long long)(replicas * shards),
                            size);
    *out = (struct mesh){.replicas = (uint32_t)replicas,
                         .shards = (uint32_t)shards,
                         .replica = rank / (uint32_t)shards,
                         .shard = rank % (uint32_t)shards};
    return 0;
}

void parallel_cut(uint64_t *out_first, uint64_t *out_rows, uint64_t rows, uint32_t parts,
                  uint32_t part)
{
    uint64_t chunk = (rows + parts - 1) / parts;
    uint64_t first = part * chunk < rows ? part * chunk : rows;
    *out_first = first;
    *out_rows = rows - first < chunk ? rows - first : chunk;
}

static void count_block(struct parallel *p, struct block *block)
{
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &p->table->tensors[i];
        p->full_at[i] = block->full_count;
        block->full_count += aligned(tensor->rows * tensor->width);
        for (uint32_t s = 0; s < p->mesh.shards; s++)
            block->shard_counts[s] += aligned(shard_of(p, tensor, s).rows * tensor->width);
        for (uint32_t r = 0; r < num_ranks(p); r++)
            block->piece_counts[r] += aligned(piece_of(p, tensor, r).rows * tensor->width);
    }
}

/* The state holds each tensor once: the tied output has accumulators only. */
static void lay_out_block(struct parallel *p, uint32_t index)
{
    struct block *block = &p->blocks[index];
    bool is_output = index == p->table->num_blocks;
    block->num = model_block_tensors(p->table, index, &block->first);
    block->at = is_output ? p->blocks[0].at : p->state.count;
    block->piece_at = p->piece_count;
    block->fast_at = p->fast_count;
    count_block(p, block);
    if (is_output)
        return;
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &p->table->tensors[i];
        struct part mine = shard_of(p, tensor, p->mesh.shard);
        struct state_slice *slice = &p->state.slices[i];
        *slice = (struct state_slice){tensor, mine.first, mine.rows, p->state.count,
                                      mine.rows * tensor->width};
        p->state.count += aligned(slice->count);
    }
    p->piece_count += block->piece_counts[my_rank(p)];
    p->fast_count += sum_of(block->shard_counts, p->mesh.shards);
}

static int lay_out(struct parallel *p)
{
    uint32_t num_blocks = num_all_blocks(p), d = num_ranks(p);
    p->blocks = calloc(num_blocks, sizeof(*p->blocks));
    p->full_at = calloc(p->table->num_tensors, sizeof(*p->full_at));
    p->state.slices = calloc(p->table->num_tensors, sizeof(*p->state.slices));
    p->state.num_slices = p->table->num_tensors;
    p->lists = calloc(4 * (size_t)d, sizeof(*p->lists));
    size_t values = (size_t)p->num_micro_steps * (1 + 2 * (size_t)p->config->local_batch_size);
    p->losses = calloc(values, sizeof(*p->losses));
    p->all_losses = calloc(values * d, sizeof(*p->all_losses));
    bool is_short = p->blocks == NULL || p->full_at == NULL || p->state.slices == NULL ||
                    p->lists == NULL || p->losses == NULL || p->all_losses == NULL;
    for (uint32_t b = 0; b < num_blocks && !is_short; b++) {
        p->blocks[b].shard_counts = calloc(p->mesh.shards, sizeof(size_t));
        p->blocks[b].piece_counts = calloc(d, sizeof(size_t));
        is_short = p->blocks[b].shard_counts == NULL || p->blocks[b].piece_counts == NULL;
    }
    if (is_short)
        return report_error(ERR_MEMORY, NULL, "no memory for the layouts");
    for (uint32_t b = 0; b < num_blocks; b++)
        lay_out_block(p, b);
    return 0;
}

/* ---- the provider: parameters ---- */

/* Copies this part's rows of every tensor of a block between packed and whole. */
static void unpack_shard(const struct parallel *p, const struct block *block, uint32_t shard,
                         char *full, const char *packed, size_t element)
{
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &p->table->tensors[i];
        struct part part = shard_of(p, tensor, shard);
        size_t count = part.rows * tensor->width;
        memcpy(full + (p->full_at[i] + part.first * tensor->width) * element, packed,
               count * element);
        packed += aligned(count) * element;
    }
}

static int gather(struct parallel *p, uint32_t index)
{
    struct block *block = &p->blocks[index];
    size_t element = kernel_dtype_bytes(p->dtype), total = 0;
    size_t *bytes = p->lists, *at = p->lists + num_ranks(p);
    for (uint32_t s = 0; s < p->mesh.shards; s++) {
        bytes[s] = block->shard_counts[s] * element;
        at[s] = total;
        total += bytes[s];
    }
    char *packed = memory_take(p->memory, "gathered shards", block->take_index, total);
    if (!memory_is_recording(p->memory)) {
        struct comm *comm = p->mesh.shard_group;
        const char *mine = (const char *)p->compute_params + block->at * element;
        ERR_TRY(comm->ops->all_gather_v(comm, mine, bytes[p->mesh.shard], packed, bytes, at));
        for (uint32_t s = 0; s < p->mesh.shards; s++)
            unpack_shard(p, block, s, block->gathered, packed + at[s], element);
    }
    memory_give(p->memory, "gathered shards", block->take_index);
    return 0;
}

static int acquire(void *user, const void **out_params, uint32_t index, enum model_pass pass)
{
    struct parallel *p = user;
    struct block *block = &p->blocks[index];
    size_t element = kernel_dtype_bytes(p->dtype);
    if (p->mesh.shards == 1) {
        block->gathered = (char *)p->compute_params + block->at * element;
    } else if (!block->is_held) {
        block->is_held = true;
        block->take_index = 2 * index + (pass == MODEL_BACKWARD);
        block->gathered = memory_take(p->memory, "gathered parameters", block->take_index,
                                      block->full_count * element);
        ERR_TRY(gather(p, index));
    }
    for (uint32_t i = 0; i < block->num; i++)
        out_params[i] = (char *)block->gathered + p->full_at[block->first + i] * element;
    return 0;
}

static int release(void *user, uint32_t index, enum model_pass pass)
{
    struct parallel *p = user;
    struct block *block = &p->blocks[index];
    bool is_last = index >= p->table->num_blocks - 1;
    if (p->mesh.shards == 1 || !p->reshard || (is_last && pass == MODEL_FORWARD))
        return 0;
    memory_give(p->memory, "gathered parameters", block->take_index);
    block->is_held = false;
    return 0;
}

void parallel_params_changed(struct parallel *p)
{
    if (p->dtype != KERNEL_F32)
        kernel_convert(p->kernels, p->lane,
                       &(struct kernel_convert){.out = p->compute_params,
                                                .out_dtype = p->dtype,
                                                .in = p->state.param,
                                                .count = p->state.count});
    for (uint32_t b = 0; b < num_all_blocks(p); b++)
        p->blocks[b].is_held = false;
}

static bool is_asked_to_stop(const struct step_input *input)
{
    return input->want_stop != NULL && *input->want_stop != 0;
}

/* Before each micro-step: a step may take longer than the notice that whoever stops a job gives. */
static int agree_to_stop(struct parallel *p, const struct step_input *input, bool *out)
{
    int64_t stop = is_asked_to_stop(input);
    ERR_TRY(p->mesh.world->ops->all_reduce_i64(p->mesh.world, &stop, 1));
    *out = stop != 0;
    return 0;
}

static int norm_and_stop(struct parallel *p, const struct step_input *input,
                         struct step_result *out)
{
    struct {
        struct kernel_exact_sum sum;
        int64_t stop, failures;
    } all = {.stop = is_asked_to_stop(input), .failures = p->failure != 0};
    reduce_sum_squares(p, &all.sum);
    ERR_TRY(p->mesh.world->ops->all_reduce_i64(p->mesh.world, (int64_t *)&all,
                                               sizeof(all) / sizeof(int64_t)));
    out->grad_norm = sqrt(kernel_exact_value(&all.sum));
    out->stop = all.stop != 0;
    return all.failures == 0 ? 0 : parallel_agree(p->mesh.world, p->failure);
}

static double tokens_that_count(const struct parallel *p)
{
    double leaf = (double)((uint64_t)p->config->local_batch_size * (uint64_t)p->config->seq_len);
    return p->counted > 0 ? (double)p->counted : (double)p->num_leaves * leaf;
}

/* Adds a leaf's sequences to the sums of their sources. */
static void add_to_sources(const struct parallel *p, const struct step_input *input, uint32_t leaf,
                           const double *values, struct step_result *out)
{
    uint32_t batch = (uint32_t)p->config->local_batch_size;
    uint64_t sample;
    for (uint32_t b = 0; b < batch; b++) {
        uint32_t source = data_locate(ahead_data(input->ahead),
                                      input->first_sample + (uint64_t)leaf * batch + b, &sample);
        out->sources[source].sum += values[b];
        out->sources[source].counted += (uint64_t)values[batch + b];
    }
}

/* Each leaf's loss, and when there are several sources the loss and the number of tokens that count
 * of each of its sequences; added in leaf order. */
static int gather_loss(struct parallel *p, const struct step_input *input, struct step_result *out)
{
    uint32_t d = num_ranks(p);
    size_t *bytes = p->lists, *at = p->lists + d;
    for (uint32_t r = 0; r < d; r++) {
        bytes[r] = (size_t)p->num_micro_steps * p->leaf_values * sizeof(double);
        at[r] = r * bytes[r];
    }
    ERR_TRY(p->mesh.world->ops->all_gather_v(p->mesh.world, p->losses, bytes[0], p->all_losses,
                                             bytes, at));
    double sum = 0;
    memset(out->sources, 0, sizeof(out->sources));
    for (uint32_t leaf = 0; leaf < p->num_leaves; leaf++) {
        size_t place = (size_t)(leaf % d) * p->num_micro_steps + leaf / d;
        const double *values = p->all_losses + place * p->leaf_values;
        sum += values[0];
        if (p->leaf_values > 1)
            add_to_sources(p, input, leaf, values + 1, out);
    }
    if (p->counted > 0) {
        out->loss = sum / (double)p->counted;
        return 0;
    }
    uint64_t tokens = (uint64_t)p->config->local_batch_size * (uint64_t)p->config->seq_len;
    out->loss = sum / (double)p->num_leaves / (double)tokens;
    return 0;
}

/* ---- one step ---- */

/* debug.pause_at_step: rank 0 waits in mid-step, and so do the others in their next collective,
 * until it is killed or asked to stop. */
static void pause_in_step(const struct step_input *input)
{
    log_info("train", "process %d pauses within step %lld", (int)getpid(), (long long)input->step);
    while (!is_asked_to_stop(input))
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* What the loss is divided by, where a mask leaves tokens out: known to all before the first leaf,
 * so that each leaf's gradient is scaled once, as it is computed. */
static int count_tokens(struct parallel *p, const struct step_input *input)
{
    int64_t counted = 0;
    uint64_t mine = 0;
    p->counted = 0;
    if (!data_info(ahead_data(input->ahead))->has_mask)
        return 0;
    p->failure = ahead_count(input->ahead, &mine);
    counted = (int64_t)mine;
    ERR_TRY(p->mesh.world->ops->all_reduce_i64(p->mesh.world, &counted, 1));
    p->counted = counted > 0 ? (uint64_t)counted : 1; /* a step without any has no gradient */
    return 0;
}

static void count_sequences(const struct parallel *p, double *out)
{
    uint32_t seq_len = (uint32_t)p->config->seq_len;
    for (int64_t b = 0; b < p->config->local_batch_size; b++) {
        out[b] = 0;
        for (uint32_t t = 0; t < seq_len; t++)
            out[b] += p->targets[(size_t)b * seq_len + t] >= 0;
    }
}

static int run_micro_step(struct parallel *p, const struct step_input *input)
{
    double *values = p->losses + (size_t)p->micro_step * p->leaf_values;
    bool by_source = p->leaf_values > 1;
    struct model_batch mine = {.inputs = p->inputs,
                               .starts = p->starts,
                               .targets = p->targets,
                               .loss_scale = (float)(1.0 / tokens_that_count(p)),
                               .sequence_losses = by_source ? values + 1 : NULL};
    memset(values, 0, p->leaf_values * sizeof(*values));
    bool has_batch = rank_has_leaf(p, my_rank(p));
    if (has_batch && p->failure == 0)
        p->failure =
            ahead_take(input->ahead, &(struct data_batch){p->inputs, p->targets, p->starts});
    /* A leaf that could not be read is walked and sent as it lies: the step is void, all learn at
     * its end. */
    has_batch = has_batch && p->failure == 0;
    if (has_batch && by_source)
        count_sequences(p, values + 1 + p->config->local_batch_size);
    return model_leaf(p->model, &p->provider, has_batch ? &mine : NULL, values);
}

/* The sizes of the step, which a ramp changes, and what it is divided by. */
static int begin_step(struct parallel *p, const struct step_input *input)
{
    bool by_source = data_info(ahead_data(input->ahead))->num_sources > 1;
    memset(p->accumulators, 0, reduce_accumulator_count(p) * sizeof(float));
    p->failure = 0;
    p->num_leaves = trainer_config_leaves(p->config, input->step - 1);
    p->num_micro_steps = (p->num_leaves + num_ranks(p) - 1) / num_ranks(p);
    p->leaf_values = by_source ? 1 + 2 * (uint32_t)p->config->local_batch_size : 1;
    ahead_step(input->ahead, input->step - 1, input->first_sample);
    return count_tokens(p, input);
}

int parallel_step(struct parallel *p, const struct step_input *input, struct step_result *out)
{
    ERR_TRY(begin_step(p, input));
    for (p->micro_step = 0; p->micro_step < p->num_micro_steps; p->micro_step++) {
        ERR_TRY(agree_to_stop(p, input, &out->stop));
        out->is_dropped = out->stop;
        if (out->is_dropped)
            return 0;
        ERR_TRY(run_micro_step(p, input));
        if (my_rank(p) == 0)
            log_debug("train", "micro-step %u of %u of step %lld is done", p->micro_step + 1,
                      p->num_micro_steps, (long long)input->step);
        if (p->micro_step == 0 && input->step == p->config->crash_at_step && my_rank(p) == 0)
            pause_in_step(input);
    }
    ERR_TRY(reduce_step(p));
    ERR_TRY(norm_and_stop(p, input, out));
    out->data_seconds = ahead_waited(input->ahead);
    return gather_loss(p, input, out);
}

int parallel_logits(struct parallel *p, struct ahead *ahead, uint64_t first_sample,
                    float *out_logits)
{
    bool is_mine = p->mesh.world->rank == 0;
    int rc = 0;
    if (is_mine) {
        ahead_step(ahead, 0, first_sample);
        rc = ahead_take(ahead, &(struct data_batch){p->inputs, p->targets, NULL});
    }
    /* The others wait in the gathers: what could not be read is walked. */
    const int32_t *inputs = is_mine && rc == 0 ? p->inputs : NULL;
    ERR_TRY(model_logits(p->model, &p->provider, inputs, out_logits));
    return rc;
}

/* ---- agreement ---- */

int parallel_agree_quietly(struct comm *world, int rc, uint32_t *out_first)
{
    uint32_t size = world->size, first = 0;
    int64_t *codes = calloc(size, sizeof(*codes));
    *out_first = world->rank;
    if (codes == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u codes", size);
    codes[world->rank] = rc;
    int agreed = world->ops->all_reduce_i64(world, codes, size);
    while (agreed == 0 && first < size && codes[first] == 0)
        first++;
    if (agreed == 0 && first < size)
        agreed = (int)codes[first];
    *out_first = first;
    free(codes);
    return agreed;
}

int parallel_agree(struct comm *world, int rc)
{
    uint32_t first = 0;
    int agreed = parallel_agree_quietly(world, rc, &first);
    if (agreed != 0 && first != world->rank && first < world->size)
        report_clear();
    return agreed;
}

/* ---- the recipe ---- */

/* Buffers of the whole run: noted while recording, addresses afterwards. */
static void take_kept(struct parallel *p)
{
    struct memory *m = p->memory;
    struct kernel_shapes shapes;
    size_t bytes = p->state.count * sizeof(float);
    size_t tokens = (size_t)p->config->local_batch_size * (size_t)p->config->seq_len;
    p->state.param = memory_take(m, "parameters", 0, bytes);
    p->state.exp_avg = memory_take(m, "exp_avg", 0, bytes);
    p->state.exp_avg_sq = memory_take(m, "exp_avg_sq", 0, bytes);
    p->accumulators =
        memory_take(m, "gradient accumulators", 0, reduce_accumulator_count(p) * sizeof(float));
    bool is_whole = p->is_canonical ? p->mesh.replicas == 1 : p->mesh.shards == 1;
    p->state.grad = is_whole ? p->accumulators : memory_take(m, "gradient shard", 0, bytes);
    p->compute_params = p->state.param;
    if (p->dtype != KERNEL_F32)
        p->compute_params = memory_take(m, "parameters in compute dtype", 0,
                                        p->state.count * kernel_dtype_bytes(p->dtype));
    model_kernel_shapes(p->model, &shapes);
    size_t scratch_bytes = kernels_scratch_bytes(p->kernels, &shapes);
    p->scratch = memory_take(m, "kernel scratch", 0, scratch_bytes);
    p->inputs = memory_take(m, "input tokens", 0, tokens * sizeof(int32_t));
    if (p->config->document_mask)
        p->starts = memory_take(m, "document starts", 0, tokens * sizeof(int32_t));
    p->targets = memory_take(m, "target tokens", 0, tokens * sizeof(int32_t));
    if (!memory_is_recording(m))
        lane_set_scratch(p->lane, p->scratch, scratch_bytes);
}

/* The dry run: a step's walk, which notes every buffer. */
static int plan_memory(struct parallel *p)
{
    double loss;
    take_kept(p);
    ERR_TRY(model_leaf(p->model, &p->provider, NULL, &loss));
    ERR_TRY(reduce_step(p));
    for (uint32_t b = 0; b < num_all_blocks(p); b++)
        p->blocks[b].is_held = false;
    return memory_place(p->memory);
}

static int check_canonical(const struct config *config)
{
    if (config->groups != 1 || config->tp_blocks != 1 || config->cp_blocks != 1)
        return report_error(ERR_INVALID, "set canonical.groups, tp_blocks and cp_blocks to 1",
                            "canonical groups %lld, tp_blocks %lld, cp_blocks %lld: only 1 is "
                            "available in this version",
                            (long long)config->groups, (long long)config->tp_blocks,
                            (long long)config->cp_blocks);
    if (config->micro_batches < 1 || config->micro_batches > UINT32_MAX)
        return report_error(ERR_INVALID, "set training.global_batch_size",
                            "a step of %lld micro-batches is not possible",
                            (long long)config->micro_batches);
    return 0;
}

static int new_model(struct parallel *p)
{
    const struct config *config = p->config;
    p->provider =
        (struct model_provider){p, acquire, release, reduce_begin_block, reduce_end_block};
    struct model_options options = {.table = p->table,
                                    .memory = p->memory,
                                    .batch = (uint32_t)config->local_batch_size,
                                    .seq = (uint32_t)config->seq_len,
                                    .dtype = p->dtype};
    ERR_TRY(model_new(&p->model, &options));
    model_set_kernels(p->model, p->kernels, p->lane);
    return 0;
}

static int split_world(struct parallel *p)
{
    struct mesh *mesh = &p->mesh;
    ERR_TRY(mesh->world->ops->split(mesh->world, &mesh->shard_group, mesh->replica, mesh->shard));
    return mesh->world->ops->split(mesh->world, &mesh->replica_group, mesh->shard, mesh->replica);
}

/* A run keeps its S wherever it goes on: ranks above it help to hold the state. */
static void note_idle_ranks(const struct parallel *p)
{
    if (num_ranks(p) > p->num_leaves && p->mesh.world->rank == 0)
        log_warn("train",
                 "%u data ranks, but a step has only canonical.micro_batches = %u: the ranks from "
                 "%u on hold their shards and compute nothing",
                 num_ranks(p), p->num_leaves, p->num_leaves);
}

/* Of this run. A launcher that does not say is taken at one rank. */
static uint32_t ranks_on_machine(const struct parallel *p)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
    if (strcmp(p->config->comm_backend, "local") == 0)
        return p->mesh.world->size;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *size = getenv(names[i]);
        if (size != NULL && strtoul(size, NULL, 10) > 0)
            return (uint32_t)strtoul(size, NULL, 10);
    }
    return 1;
}

int parallel_check_room(const struct parallel *p)
{
    return room_check(p->memory, ranks_on_machine(p), room_available(""));
}

/* Steps 1 to 4: no communication. */
static int prepare(struct parallel *p)
{
    const struct config *config = p->config;
    struct comm *world = p->mesh.world;
    /* 1. The mesh: which place this rank has. */
    ERR_TRY(parallel_mesh(&p->mesh, config, world->rank, world->size));
    p->mesh.world = world;
    ERR_TRY(check_canonical(config));
    p->num_leaves = (uint32_t)config->micro_batches;
    p->num_micro_steps = (p->num_leaves + num_ranks(p) - 1) / num_ranks(p);
    note_idle_ranks(p);
    /* 2. The layouts: which rows of every tensor it holds. */
    ERR_TRY(lay_out(p));
    /* 3. The model, which asks for its parameters through the provider. */
    ERR_TRY(memory_new(&p->memory));
    ERR_TRY(new_model(p));
    /* 4. The memory: every buffer of a step, by a dry run. */
    ERR_TRY(plan_memory(p));
    if (config->estimate)
        return 0;
    ERR_TRY(parallel_check_room(p));
    ERR_TRY(memory_commit(p->memory));
    take_kept(p);
    return 0;
}

static int apply(struct parallel *p)
{
    if (p->config->estimate)
        return prepare(p);
    ERR_TRY(parallel_agree(p->mesh.world, prepare(p)));
    /* 5. The groups in which it communicates. */
    return split_world(p);
}

int parallel_apply(struct parallel **out, const struct parallel_options *options)
{
    const struct config *config = options->config;
    struct parallel *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the parallel state");
    p->config = config;
    p->table = options->table;
    p->kernels = options->kernels;
    p->mesh.world = options->world;
    p->dtype = strcmp(config->mixed_precision_param, "bfloat16") == 0 ? KERNEL_BF16 : KERNEL_F32;
    p->is_canonical = strcmp(config->reduction, "canonical") == 0;
    p->reshard = strcmp(config->reshard_after_forward, "never") != 0;
    int rc = device_open(&p->device, &device_cpu, NULL);
    if (rc == 0)
        rc = lane_open(&p->lane, p->device, "compute");
    if (rc == 0)
        rc = apply(p);
    if (rc != 0) {
        parallel_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void parallel_free(struct parallel *p)
{
    if (p == NULL)
        return;
    if (p->mesh.shard_group != NULL)
        p->mesh.shard_group->ops->free(p->mesh.shard_group);
    if (p->mesh.replica_group != NULL)
        p->mesh.replica_group->ops->free(p->mesh.replica_group);
    for (uint32_t b = 0; p->blocks != NULL && b < num_all_blocks(p); b++) {
        free(p->blocks[b].shard_counts);
        free(p->blocks[b].piece_counts);
    }
    lane_close(p->lane);
    device_close(p->device);
    model_free(p->model);
    memory_free(p->memory);
    free(p->blocks);
    free(p->full_at);
    free(p->state.slices);
    free(p->lists);
    free(p->losses);
    free(p->all_losses);
    free(p);
}

const struct mesh *parallel_mesh_of(const struct parallel *p)
{
    return &p->mesh;
}
struct state *parallel_state(struct parallel *p)
{
    return &p->state;
}
struct lane *parallel_lane(struct parallel *p)
{
    return p->lane;
}
const struct memory *parallel_memory(const struct parallel *p)
{
    return p->memory;
}

void parallel_init_state(struct parallel *p, uint64_t seed)
{
    size_t bytes = p->state.count * sizeof(float);
    memset(p->state.exp_avg, 0, bytes);
    memset(p->state.exp_avg_sq, 0, bytes);
    for (uint32_t i = 0; i < p->state.num_slices; i++) {
        const struct state_slice *slice = &p->state.slices[i];
        model_init_rows(p->state.param + slice->at, slice->tensor, slice->first_row, slice->rows,
                        seed);
    }
    parallel_params_changed(p);
}
