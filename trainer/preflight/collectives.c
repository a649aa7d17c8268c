/* collectives.c - measures collectives of the ranks of a host, and of all ranks (see preflight.h).
 *
 * Sums and gathers use the transport of a step. The results are checked. In a sum one rank has 1
 * for each number and the others 0, which needs no rounding; every second time all have 0, which
 * shows wrong bits. Each rank gathers the data of the others. */
#include "kernels/device.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/preflight/links.h"
#include "trainer/preflight/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIMES 4 /* the fastest counts; one more before them connects */

/* A group and its buffers. */
struct together {
    struct comm *group;
    const struct trial_room *room;
    size_t *lists; /* [2 x ranks] of bytes and places of a gather */
    bool is_wrong; /* received numbers differ from the sent ones */
};

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void set_floats(void *at, size_t bytes, const struct comm *group, float value)
{
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)at)[i] = i % group->size == group->rank ? value : 0.0f;
}

static void set_words(void *at, size_t bytes, uint32_t value)
{
    for (size_t i = 0; i < bytes / sizeof value; i++)
        ((uint32_t *)at)[i] = value;
}

static bool has_words(const void *at, size_t bytes, uint32_t value)
{
    for (size_t i = 0; i < bytes / sizeof value; i++)
        if (((const uint32_t *)at)[i] != value)
            return false;
    return true;
}

/* Sums a payload of `bytes`; *best: seconds of the fastest time. */
static int sum(struct together *t, size_t bytes, double *best)
{
    const struct trial_room *r = t->room;
    for (int i = 0; i <= TIMES; i++) {
        float value = i % 2 == 0 ? 1.0f : 0.0f;
        set_floats(r->from, bytes, t->group, value);
        lane_copy(r->lane, r->device, r->from, bytes);
        ERR_TRY(lane_settle(r->lane));
        ERR_TRY(comm_barrier(t->group));
        double start = clock_seconds();
        ERR_TRY(comm_all_reduce_floats(t->group, r->device, bytes / sizeof(float), sizeof(float)));
        ERR_TRY(lane_settle(r->lane));
        *best = i > 0 ? fmin(*best, clock_seconds() - start) : INFINITY;
        lane_copy(r->lane, r->to, r->device, bytes);
        ERR_TRY(lane_settle(r->lane));
        t->is_wrong |= !has_words(r->to, bytes, float_bits(value));
    }
    return 0;
}

static int gather(struct together *t, size_t bytes, double *best)
{
    const struct trial_room *r = t->room;
    uint32_t size = t->group->size;
    size_t part = bytes / size / sizeof(uint32_t) * sizeof(uint32_t);
    char *receive = (char *)r->device + TRIAL_BYTES;
    for (uint32_t i = 0; i < size; i++) {
        t->lists[i] = part;
        t->lists[size + i] = i * part;
    }
    for (int i = 0; i <= TIMES; i++) {
        set_words(r->from, part, t->group->rank + 1);
        lane_copy(r->lane, r->device, r->from, part);
        ERR_TRY(lane_settle(r->lane));
        ERR_TRY(comm_barrier(t->group));
        double start = clock_seconds();
        ERR_TRY(comm_all_gather_v(t->group, r->device, part, receive, t->lists, t->lists + size));
        ERR_TRY(lane_settle(r->lane));
        *best = i > 0 ? fmin(*best, clock_seconds() - start) : INFINITY;
        lane_copy(r->lane, r->to, receive, part * size);
        ERR_TRY(lane_settle(r->lane));
        for (uint32_t from = 0; from < size; from++)
            t->is_wrong |= !has_words((const char *)r->to + from * part, part, from + 1);
    }
    return 0;
}

static double bus_rate(const struct comm *group, enum link_call call, size_t bytes, double seconds)
{
    return links_bus_factor(call, group->size) * (double)bytes / seconds;
}

static int measure(struct together *t, struct call_rates *out)
{
    double seconds;
    for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++) {
        size_t bytes = preflight_bytes(i);
        if (links_can_sum(t->group)) {
            ERR_TRY(sum(t, bytes, &seconds));
            out->sum[i] = bus_rate(t->group, LINK_SUM, bytes, seconds);
        }
        ERR_TRY(gather(t, bytes, &seconds));
        out->gather[i] = bus_rate(t->group, LINK_ALL_GATHER, bytes, seconds);
    }
    return 0;
}

int collectives_measure(struct call_rates *out, struct comm *group, const struct trial_room *room,
                        bool *out_wrong)
{
    struct together t = {.group = group, .room = room};
    t.lists = calloc(2 * (size_t)group->size, sizeof *t.lists);
    if (t.lists == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a group of %u ranks", group->size);
    int rc = measure(&t, out);
    free(t.lists);
    *out_wrong |= t.is_wrong;
    return rc;
}
