/* hints.c - settings that make a run slow without need (see hints.h).
 *
 * A row of `rules` is a hint: its name, when it applies, its text. No hint refuses a start: each of
 * these settings can be right, such as the given sizes of borrowed weights. */
#include "trainer/parallel/hints.h"
#include "trainer/base/cores.h"
#include "trainer/parallel/execution.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- gathers in a pipeline ---- */

static bool gathers_per_micro_batch(const struct hint_facts *f)
{
    return f->drops && f->degree[AXIS_PP] > 1 && f->degree[AXIS_SHARD] > 1 && f->micro_steps > 1;
}

static void describe_gathers(char *out, const struct hint_facts *f)
{
    snprintf(out, HINT_TEXT_BYTES,
             "parallelism.fsdp_reshard_after_forward = always in a pipeline gathers the "
             "parameters of each block for every micro-batch: rank 0 gathers its %u blocks %u "
             "times in a step of %u micro-batches; with default or never it gathers each once, "
             "and holds %.1f MiB of them",
             f->blocks, f->gathers, f->micro_steps, (double)f->gathered_bytes / 1048576.0);
}

/* ---- tensor parallel ---- */

/* Ranks of tensor parallel are neighbours (mesh.h), and launchers fill one machine after the
 * other. */
static bool tp_leaves_machine(const struct hint_facts *f)
{
    return f->ranks_on_machine > 0 && f->ranks_on_machine < f->num_ranks &&
           f->ranks_on_machine % f->degree[AXIS_TP] != 0;
}

static void describe_tp(char *out, const struct hint_facts *f)
{
    uint32_t n = f->ranks_on_machine, fits = f->degree[AXIS_TP];
    while (n % fits != 0)
        fits--;
    snprintf(out, HINT_TEXT_BYTES,
             "the %u ranks of tensor parallel are on several machines, which have %u ranks each: "
             "every layer waits for the network; parallelism.tensor_parallel_degree = %u stays "
             "on a machine",
             f->degree[AXIS_TP], n, fits);
}

/* ---- gradients between machines ---- */

/* A stage's ranks are neighbours. */
static uint32_t machines_of_stage(const struct hint_facts *f)
{
    uint32_t ranks = f->num_ranks / f->degree[AXIS_PP], here = f->ranks_on_machine;
    return here > 0 && ranks % here == 0 ? ranks / here : 1;
}

static bool leaves_cross_machines(const struct hint_facts *f)
{
    uint32_t machines = machines_of_stage(f), within = f->degree[AXIS_TP] * f->degree[AXIS_CP];
    return f->sums_leaves && machines > 1 && f->ranks_on_machine > within &&
           f->ranks_on_machine % within == 0 && f->leaves % machines == 0;
}

/* A replica within one machine does not sum a group on its machine. */
static void describe_leaves(char *out, const struct hint_facts *f)
{
    uint32_t machines = machines_of_stage(f), within = f->degree[AXIS_TP] * f->degree[AXIS_CP];
    bool has_parts = f->degree[AXIS_SHARD] * within % f->ranks_on_machine == 0;
    char mesh[80] = "";
    if (!has_parts)
        snprintf(mesh, sizeof(mesh), "parallelism.data_parallel_replicate_degree = %u with ",
                 machines);
    snprintf(out, HINT_TEXT_BYTES,
             "the gradient of each micro-batch is sent to its owners on %u machines: %u times the "
             "network traffic of one sum per machine; %scanonical.groups = %u sums on each machine "
             "first (canonical.groups belongs to a run's bits: set it when one begins)",
             machines, f->ranks_on_machine / within, mesh, machines);
}

/* ---- sizes ---- */

static const struct size {
    const char *key;
    size_t at;      /* in struct model_shape */
    bool must_hold; /* entries exist: only a larger size is valid */
} sizes[] = {
    {"model.dim", offsetof(struct model_shape, dim), false},
    {"model.hidden_dim", offsetof(struct model_shape, hidden), false},
    {"model.vocab_size", offsetof(struct model_shape, vocab), true},
};
#define NUM_SIZES (sizeof(sizes) / sizeof(*sizes))

/* The largest multiple is wanted that increases a size by at most a thirty-second. */
#define PADDED_PART 32u
static const struct multiple {
    uint32_t of;
    const char *reason;
} multiples[] = {
    {128, "GPUs compute products in tiles of 128"},
    {64, "rows of bfloat16 begin where lines of 128 bytes do"},
    {8, "rows of bfloat16 begin at multiples of 16 bytes, as tensor cores read them"},
};
#define NUM_MULTIPLES (sizeof(multiples) / sizeof(*multiples))

static uint32_t size_in(const struct model_shape *shape, const struct size *size)
{
    uint32_t value;
    memcpy(&value, (const char *)shape + size->at, sizeof value);
    return value;
}

/* The multiple that a size misses; NULL: none, or the size is too small to matter. */
static const struct multiple *missed_by(uint32_t value)
{
    for (size_t i = 0; i < NUM_MULTIPLES; i++)
        if (value >= PADDED_PART * multiples[i].of)
            return value % multiples[i].of != 0 ? &multiples[i] : NULL;
    return NULL;
}

static bool sizes_are_odd(const struct hint_facts *f)
{
    bool any = false;
    for (size_t i = 0; i < NUM_SIZES; i++)
        any = any || missed_by(size_in(&f->shape, &sizes[i])) != NULL;
    return any;
}

static void describe_sizes(char *out, const struct hint_facts *f)
{
    size_t at = 0;
    for (size_t i = 0; i < NUM_SIZES && at < HINT_TEXT_BYTES; i++) {
        uint32_t value = size_in(&f->shape, &sizes[i]);
        const struct multiple *missed = missed_by(value);
        if (missed == NULL)
            continue;
        uint32_t up = missed->of - value % missed->of, down = value % missed->of;
        uint32_t good = up <= down || sizes[i].must_hold ? value + up : value - down;
        at += (size_t)snprintf(out + at, HINT_TEXT_BYTES - at,
                               "%s%s = %u is not a multiple of %u, %u is the nearest (%s)",
                               at > 0 ? "; " : "", sizes[i].key, value, missed->of, good,
                               missed->reason);
    }
}

/* ---- cores ---- */

static bool cores_are_few(const struct hint_facts *f)
{
    return f->cores > 0 && (uint64_t)f->sharers * f->threads > f->cores;
}

static void describe_cores(char *out, const struct hint_facts *f)
{
    snprintf(out, HINT_TEXT_BYTES,
             "%u ranks with %u threads each (kernels.threads) share %u cores: they wait for each "
             "other, and for the threads that read and exchange; give more cores (srun "
             "--cpus-per-task, mpirun --bind-to none), or lower one of them",
             f->sharers, f->threads, f->cores);
}

/* Ranks that are processes may each have their own cores. They share cores if each sees all cores
 * of the machine. */
static void add_cores(struct hint_facts *out, const struct parallel *p)
{
    bool is_process = p->plan->config->comm_backend != BACKEND_LOCAL;
    if (p->plan->config->estimate)
        return; /* an estimate may be for another machine */
    out->cores = cores_visible();
    out->threads = p->plan->config->device == DEVICE_CPU ? (uint32_t)p->plan->config->threads : 1;
    out->sharers = 1;
    if (out->ranks_on_machine > 0 &&
        (!is_process || out->cores >= (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)))
        out->sharers = out->ranks_on_machine;
}

/* ---- all ---- */

static const struct rule {
    const char *id;
    bool (*applies)(const struct hint_facts *facts);
    void (*describe)(char *out, const struct hint_facts *facts);
} rules[HINTS_MAX] = {
    {"gathers_per_micro_batch", gathers_per_micro_batch, describe_gathers},
    {"tensor_across_machines", tp_leaves_machine, describe_tp},
    {"leaves_across_machines", leaves_cross_machines, describe_leaves},
    {"unaligned_sizes", sizes_are_odd, describe_sizes},
    {"few_cores", cores_are_few, describe_cores},
};

uint32_t hints_of_facts(struct hint *out, const struct hint_facts *facts)
{
    uint32_t num = 0;
    for (size_t i = 0; i < HINTS_MAX; i++) {
        if (!rules[i].applies(facts))
            continue;
        out[num].id = rules[i].id;
        rules[i].describe(out[num++].text, facts);
    }
    return num;
}

static uint32_t gathers_of(const struct program *program, uint32_t block)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < program->num_ops; i++)
        num += program->ops[i].kind == OP_GATHER && program->ops[i].block == block;
    return num;
}

uint32_t parallel_hints(struct hint *out, const struct parallel *p)
{
    struct hint_facts facts = {.num_ranks = p->plan->mesh.world->size,
                               .ranks_on_machine = ranks_said_on_machine(p->plan),
                               .drops = p->plan->shape.drops,
                               .micro_steps = p->run.program->num_leaves,
                               .sums_leaves = p->plan->is_canonical && !has_groups(p->plan),
                               .leaves = p->plan->leaves.num,
                               .shape = p->plan->table->shape};
    memcpy(facts.degree, p->plan->mesh.degree, sizeof facts.degree);
    add_cores(&facts, p);
    for (uint32_t b = 0; b < num_all_blocks(p->plan); b++) {
        uint32_t gathers = p->plan->blocks[b].is_here ? gathers_of(p->run.program, b) : 0;
        facts.gathers += gathers;
        facts.blocks += gathers > 0;
        facts.gathered_bytes += gathers > 0 ? p->plan->blocks[b].held_bytes : 0;
    }
    return hints_of_facts(out, &facts);
}
