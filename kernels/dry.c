/* dry.c - for plans: a device that stores nothing, and kernels that count.
 *
 * A step on the dry device is the step of a real one, operation by operation, with the sizes of any
 * model: memory is a range of addresses without memory, copies and operations are
 * dropped. Host memory (PINNED) is real. Counting kernels wrap other kernels, on any device; on a
 * dry one they count and drop.
 *
 * Work: a product of [N,I] and [I,O] is 2 N I O floating-point operations, a forward's attention 4
 * D for each head, query and visible key (causal; documents are ignored), its backward 10 D: five
 * products instead of the forward's two, because the scores are computed again. Other operations
 * are not counted. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/backend.h"
#include "proto/base/report.h"

/* ---- the device ---- */

struct piece { /* of memory; a list, since the size is stored at its end */
    struct piece *next;
    void *at;
    size_t bytes;
};

struct dry_device {
    struct device base;
    struct piece *pieces;
};

static int dry_open(struct device **out, const struct device_options *options)
{
    struct dry_device *device = calloc(1, sizeof(*device));
    (void)options;
    if (!device)
        return report_error(ERR_MEMORY, NULL, "no memory for the device of a plan");
    device->base.ops = &device_dry;
    *out = &device->base;
    return 0;
}

static void dry_free(struct device *base, void *at)
{
    struct dry_device *device = (struct dry_device *)base;
    for (struct piece **link = &device->pieces; *link; link = &(*link)->next) {
        struct piece *piece = *link;
        if (piece->at != at)
            continue;
        *link = piece->next;
        munmap(piece->at, piece->bytes);
        free(piece);
        return;
    }
}

static void dry_close(struct device *base)
{
    struct dry_device *device = (struct dry_device *)base;
    while (device->pieces)
        dry_free(base, device->pieces->at);
    free(device);
}

static int dry_alloc(struct device *base, void **out, size_t bytes, enum device_memory where)
{
    struct dry_device *device = (struct dry_device *)base;
    int allowed = where == PINNED ? PROT_READ | PROT_WRITE : PROT_NONE;
    struct piece *piece = calloc(1, sizeof(*piece));
    void *at = mmap(NULL, bytes + 64, allowed, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!piece || at == MAP_FAILED) {
        free(piece);
        if (at != MAP_FAILED)
            munmap(at, bytes + 64);
        return report_error(ERR_MEMORY, NULL, "no addresses for a buffer of %zu bytes", bytes);
    }
    *piece = (struct piece){.next = device->pieces, .at = at, .bytes = bytes + 64};
    device->pieces = piece;
    *out = at;
    return 0;
}

static int dry_lane_open(struct device *device, struct lane **out, const char *name,
                         enum lane_kind kind)
{
    struct lane *lane = calloc(1, sizeof(*lane));
    (void)name, (void)kind;
    if (!lane)
        return report_error(ERR_MEMORY, NULL, "no memory for a lane of a plan");
    *lane = (struct lane){.ops = &device_dry, .device = device};
    *out = lane;
    return 0;
}

static void dry_lane_close(struct lane *lane)
{
    free(lane);
}

static void dry_mark(struct lane *lane, struct mark *mark)
{
    mark->lane = lane;
}

static void dry_wait(struct lane *lane, const struct mark *mark)
{
    (void)lane;
    (void)mark;
}

static void dry_copy(struct lane *lane, void *to, const void *from, size_t bytes)
{
    (void)lane;
    (void)to;
    (void)from;
    (void)bytes;
}

static void dry_zero(struct lane *lane, void *at, size_t bytes)
{
    (void)lane;
    (void)at;
    (void)bytes;
}

/* Operations that count are called here, too. */
static void dry_call(struct lane *lane, lane_fn *fn, const void *args, size_t bytes)
{
    (void)lane;
    (void)bytes;
    (void)fn((void *)(uintptr_t)args);
}

static int dry_settle(struct lane *lane, const struct mark *mark)
{
    (void)lane;
    (void)mark;
    return 0;
}

const struct device_ops device_dry = {
    .name = "dry",
    .flags = DEVICE_DRY,
    .open = dry_open,
    .close = dry_close,
    .alloc = dry_alloc,
    .free = dry_free,
    .lane_open = dry_lane_open,
    .lane_close = dry_lane_close,
    .mark = dry_mark,
    .wait = dry_wait,
    .copy = dry_copy,
    .zero = dry_zero,
    .call = dry_call,
    .settle = dry_settle,
};

/* ---- kernels that count ---- */

struct counting {
    struct kernels base;
    struct kernel_backend_ops ops;
    struct kernels *inner;
    _Atomic uint64_t work;
};

/* Pairs of a query and a visible key, of one sequence and head. */
static uint64_t causal_pairs(uint32_t seq, uint32_t queries, uint32_t first)
{
    uint64_t num = queries > 0 ? queries : seq;
    return num * first + num * (num + 1) / 2;
}

static uint64_t columns_of(const uint32_t *out_dim, uint32_t num)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < num; i++)
        sum += out_dim[i];
    return sum;
}

static uint64_t work_of(enum kernel_op op, const void *args)
{
    const struct kernel_linear *l = args;
    const struct kernel_linear_backward_input *i = args;
    const struct kernel_linear_backward_weight *w = args;
    const struct kernel_linears *ls = args;
    const struct kernel_linears_backward_weight *ws = args;
    const struct kernel_attention *a = args;
    const struct kernel_attention_backward *b = args;
    switch (op) {
    case KERNEL_LINEAR:
        return 2 * (uint64_t)l->rows * l->in * l->out_dim;
    case KERNEL_LINEAR_BACKWARD_INPUT:
        return 2 * (uint64_t)i->rows * i->in * i->out_dim;
    case KERNEL_LINEAR_BACKWARD_WEIGHT:
        return 2 * (uint64_t)w->rows * w->in * w->out_dim;
    case KERNEL_LINEARS:
        return 2 * (uint64_t)ls->rows * ls->in * columns_of(ls->out_dim, ls->num);
    case KERNEL_LINEARS_BACKWARD_WEIGHT:
        return 2 * (uint64_t)ws->rows * ws->in * columns_of(ws->out_dim, ws->num);
    case KERNEL_ATTENTION:
        return 4 * (uint64_t)a->head_dim * a->heads * a->batch *
               causal_pairs(a->seq, a->queries, a->first);
    case KERNEL_ATTENTION_BACKWARD:
        return 10 * (uint64_t)b->head_dim * b->heads * b->batch *
               causal_pairs(b->seq, b->queries, b->first);
    default:
        return 0;
    }
}

static void counting_run(struct kernels *kernels, struct lane *lane, enum kernel_op op,
                         const void *args)
{
    struct counting *c = (struct counting *)kernels;
    c->work += work_of(op, args);
    if (!(lane->device->ops->flags & DEVICE_DRY))
        c->inner->ops->run(c->inner, lane, op, args);
}

static size_t counting_prepare(const struct kernels *kernels, const struct kernel_shapes *shapes)
{
    return kernels_scratch_bytes(((const struct counting *)kernels)->inner, shapes);
}

static const char *counting_describe(const struct kernels *kernels)
{
    return kernels_describe(((const struct counting *)kernels)->inner);
}

static bool counting_has_float8(const struct kernels *kernels)
{
    return kernels_have_float8(((const struct counting *)kernels)->inner);
}

static void counting_close(struct kernels *kernels)
{
    free(kernels);
}

int kernels_count_new(struct kernels **out, struct kernels *inner)
{
    struct counting *c = calloc(1, sizeof(*c));
    if (!c)
        return report_error(ERR_MEMORY, NULL, "no memory to count operations");
    c->ops = (struct kernel_backend_ops){.name = "counting",
                                         .device_flags = inner->ops->device_flags,
                                         .close = counting_close,
                                         .describe = counting_describe,
                                         .has_float8 = counting_has_float8,
                                         .prepare = counting_prepare,
                                         .run = counting_run};
    c->base.ops = &c->ops;
    c->inner = inner;
    *out = &c->base;
    return 0;
}

uint64_t kernels_counted(const struct kernels *counting)
{
    return ((const struct counting *)counting)->work;
}
