/* gpu_memory.c - GPU memory outside the plan (see gpu_memory.h), from constants and from formulas
 * of the libraries. Sources:
 *
 *   CONTEXT     PyTorch's maintainers: about 400 MB, where modules are loaded when they are first
 *               used, as they are since CUDA 12.2 (pytorch/pytorch #109888). Rounded up.
 *   LIBRARIES   a log of vLLM on two GPUs: 0.33 GiB beyond the context and its tensors, with
 *               cuBLAS, NCCL's code and own kernels (vllm-project/vllm #14452).
 *   GRAPH_NODE  a user's measurement: 500, 1000, 2000 captured kernels take 362, 395, 458 MB
 *               (forums.developer.nvidia.com/t/244901).
 *   SENT,       NCCL 2.28.9, transport/p2p.cc: each channel's memory for a peer of the machine, in
 *   RECEIVED    pages of 2 MiB. The receiver has the buffers of computeBuffSizes() in init.cc:
 *               512 KiB of LL, 4800 KiB of LL128, 4 MiB of Simple. A log of 8 H100 has the same two
 *               sizes, and 32 channels to a peer (NVIDIA/nccl #1685).
 *   WORKSPACE   the workspace passed to cuBLASLt (kernels/cuda/library/blas.h). cuDNN's is that of
 *               its plans for an H200 and a B200 (tests/integration/cuda_plans.py): a score of a
 *               head takes 2 bytes. Where heads share keys, a value of a query's key and value
 *               takes 2 each. Past a part of the GPU's memory the trainer's own attention is used
 *               (dnn.h).
 *   NETWORK     transport/net.cc, sharedNetBuffersInit(): a communicator's sends to other machines
 *               share 16 steps of 128 KiB for each channel, its receives likewise.
 *
 * A group's buffers are allocated at its first call, those of sends and receives for all channels.
 * An all-gather of equal parts and a sum go around a ring: one neighbour each way. Not counted: a
 * communicator's memory without peers (some MiB), and the other buffers of NVLS, where NCCL chooses
 * it. NCCL_MAX_CTAS and NCCL_BUFFSIZE reduce all of these. */
#include "trainer/plan/gpu_memory.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define CONTEXT (512 * MIB)
#define LIBRARIES (340 * MIB)
#define GRAPH_NODE ((uint64_t)64 << 10)
#define NODES_OF_BATCH 20u /* of a layer's backward; a forward has fewer */
#define WORKSPACE (32 * MIB)
#define WORKSPACE_PART 16u
#define CHANNELS 32u
#define SENT (2 * MIB)
#define RECEIVED (10 * MIB)
#define NETWORK (CHANNELS * 2 * 16 * ((uint64_t)128 << 10))

/* ---- NCCL ---- */

enum { BY_RING = 1, BY_SENDS = 2 };

/* The program does not list the calls that the model makes in its groups: all-to-alls and
 * gathers. */
static uint32_t ways_of(const struct gpu_memory_options *o, enum group group)
{
    static const uint8_t ways[NUM_CALL_KINDS] = {
        [CALL_GATHER] = BY_RING,    [CALL_AROUND] = BY_RING, [CALL_DEAL] = BY_SENDS,
        [CALL_SCATTER] = BY_RING,   [CALL_SUM] = BY_RING,    [CALL_SWAP] = BY_RING,
        [CALL_BROADCAST] = BY_RING,
    };
    uint32_t found = group == GROUP_TP || group == GROUP_CP ? BY_RING | BY_SENDS : 0;
    for (uint32_t i = 0; i < o->program->num_ops; i++)
        for (uint32_t c = 0; c < OP_CALLS_MAX; c++)
            if (o->program->ops[i].calls[c].group == group)
                found |= ways[o->program->ops[i].calls[c].kind];
    if (group == GROUP_SHARD && !o->has_even_shards)
        found = found != 0 ? BY_SENDS : 0;
    return found;
}

static uint64_t group_bytes(const struct gpu_memory_options *o, enum group group)
{
    uint32_t size = mesh_group_size(o->mesh, group), ways = ways_of(o, group);
    uint32_t here = mesh_group_on_machine(o->mesh, group, o->machine_ranks);
    uint64_t bytes = 0;
    if (size == 1)
        return 0;
    if (ways & BY_RING)
        bytes += CHANNELS * (SENT + RECEIVED);
    if (ways & BY_SENDS)
        bytes += CHANNELS * (SENT + RECEIVED) * (here - 1) + (size > here ? NETWORK : 0);
    return bytes;
}

/* Each direction over a boundary between two stages has a communicator (parallel/channels.c): this
 * rank sends by one and receives by the other. */
static uint64_t stage_bytes(const struct gpu_memory_options *o)
{
    uint32_t ranks = o->shape->num_ranks, stages = ranks * o->shape->chunks, num = 0;
    bool is_here = mesh_group_on_machine(o->mesh, GROUP_PP, o->machine_ranks) > 1;
    for (uint32_t next = 1; next < stages && ranks > 1; next++)
        num += (next - 1) % ranks == o->shape->rank || next % ranks == o->shape->rank;
    return num * (is_here ? CHANNELS * (SENT + RECEIVED) : NETWORK);
}

/* ---- graphs ---- */

/* A batch is captured for the first leaf of each slot and reused for later leaves. A leaf that is
 * the first to be folded is captured separately. */
static uint64_t num_graphs(const struct gpu_memory_options *o)
{
    uint64_t num = 0;
    for (uint32_t i = 0; i < o->program->num_ops; i++) {
        const struct op *op = &o->program->ops[i];
        const uint32_t *first = &o->program->first_slot[op->stage / o->shape->num_ranks];
        bool is_folded = o->has_folds && op->block > 0 &&
                         (op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_WEIGHT);
        num += op_is_batch(op) && op->leaf < first[1] - first[0] + is_folded;
    }
    return num;
}

/* ---- workspaces: one is in use at a time ---- */

static uint64_t dnn_bytes(const struct kernel_shapes *s)
{
    bool is_taken = s->dtype == KERNEL_BF16 && (s->head_dim == 64 || s->head_dim == 128);
    uint64_t queries = (uint64_t)s->batch * s->heads * s->seq;
    uint64_t shared = s->heads > s->kv_heads ? 4 * (uint64_t)s->head_dim : 0;
    return is_taken ? queries * (2 * (uint64_t)s->seq + shared) : 0;
}

static uint64_t workspace_bytes(const struct gpu_memory_options *o)
{
    uint64_t attention = dnn_bytes(o->shapes);
    bool is_own = attention > o->bytes / WORKSPACE_PART;
    return !is_own && attention > WORKSPACE ? attention : WORKSPACE;
}

void gpu_memory_estimate(struct gpu_memory *out, const struct gpu_memory_options *o)
{
    *out = (struct gpu_memory){.context = CONTEXT, .libraries = LIBRARIES};
    if (o->shapes != NULL)
        out->workspace = workspace_bytes(o);
    if (o->has_graphs)
        out->graphs = num_graphs(o) * NODES_OF_BATCH * GRAPH_NODE;
    for (enum group group = 0; group < NUM_GROUPS && o->has_nccl; group++)
        out->nccl += group_bytes(o, group);
    if (o->has_nccl)
        out->nccl += stage_bytes(o);
}
