/* nccl_sums.c - sums of NCCL between simulated GPUs: all-reduce, reduce, reduce-scatter.
 *
 * Sums are of floats or of bf16, added one rank after the other. Each element begins with another
 * rank, as NCCL's rings do, so bits are not those of a fixed order. A sum's input and output do not
 * overlap, or are placed as NCCL requires for sums in place; otherwise the result is NaN, and
 * NCCL's is undefined. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/simgpu/nccl_work.h"

bool simgpu_is_sum(const struct part *part)
{
    return part->kind == PART_SUM || part->kind == PART_SCATTER;
}

/* A rank's part of the sum of that number: of its own call. */
static struct part *sum_part(struct ncclComm *comm, const struct part *of)
{
    for (struct work *w = comm->works; w != NULL; w = w->next)
        for (uint32_t i = 0; i < w->num; i++)
            if (w->parts[i].kind == of->kind && w->parts[i].number == of->number &&
                w->parts[i].peer == of->peer)
                return &w->parts[i];
    return NULL;
}

/* May a rank write where it reads? */
static bool is_apart(const struct part *part, int rank, int size)
{
    bool scatters = part->kind == PART_SCATTER;
    size_t read = scatters ? (size_t)size * part->bytes : part->bytes;
    const char *in_place = part->from + (scatters ? (size_t)rank * part->bytes : 0);
    return part->to == in_place || part->to >= part->from + read ||
           part->to + part->bytes <= part->from;
}

static float number_at(const char *from, size_t i, size_t element)
{
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, from + i * element, element == 4 ? 4 : 0);
    memcpy(&half, from + i * element, 2);
    if (element == 2)
        bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* To the nearest number of bf16, to even. */
static float narrowed(float x)
{
    int exponent;
    float part = frexpf(x, &exponent);
    return isfinite(x) ? ldexpf(rintf(part * 256), exponent - 8) : x;
}

/* Of element i of the sum that `rank` gets. */
static float sum_of(struct part *const *of, int rank, int size, size_t i)
{
    size_t at = of[rank]->kind == PART_SCATTER ? (size_t)rank * of[rank]->bytes : 0;
    float sum = 0;
    for (int k = 0; k < size; k++) {
        const char *from = of[(i + (size_t)k) % (size_t)size]->from + at;
        float x = number_at(from, i, of[rank]->element);
        sum = k == 0 ? x : sum + x;
        if (of[rank]->element == 2) /* each rank passes on the fitting part */
            sum = narrowed(sum);
    }
    return sum;
}

/* All inputs are read before any output is written. */
void simgpu_add_all(const struct work *work, const struct part *call)
{
    struct world *world = work->comm->world;
    struct part *of[RANKS_MAX] = {NULL};
    char *sums[RANKS_MAX] = {NULL};
    int size = world->size;
    for (int r = 0; r < size; r++)
        CHECK((of[r] = sum_part(world->of[r], call)) != NULL);
    for (int r = 0; r < size; r++) {
        if (call->root != ALL && call->root != r)
            continue;
        sums[r] = malloc(call->bytes + 1);
        CHECK(sums[r] != NULL);
        for (size_t i = 0; i < call->bytes / call->element; i++) {
            float sum = is_apart(of[r], r, size) ? sum_of(of, r, size, i) : NAN;
            const char *first = (const char *)&sum + sizeof(sum) - call->element;
            memcpy(sums[r] + i * call->element, first, call->element);
        }
    }
    for (int r = 0; r < size; r++) {
        if (sums[r] != NULL)
            memcpy(of[r]->to, sums[r], call->bytes);
        free(sums[r]);
        for (struct part *part = of[r]; part < of[r] + size; part++)
            part->is_done = true;
    }
}
