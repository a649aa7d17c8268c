/* links.c - see links.h. */
#include "trainer/preflight/links.h"
#include "kernels/device.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/base/median.h"
#include "trainer/comm/comm.h"
#include "trainer/config/launched.h"
#include "trainer/plan/mesh.h"
#include "trainer/run/timeouts.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MIN ((size_t)32 << 10) /* nccl-tests' table begins there */
#define BYTES_STEP 4u
#define MOVED_MAX ((size_t)64 << 20) /* in the repetitions of one row, */
#define TIMES_MIN 5u                 /* but at least so many repetitions, and at most those */
#define TIMES_MAX 100u
#define WARM_UPS 2u

static const char *const call_names[NUM_LINK_CALLS] = {
    [LINK_ALL_GATHER] = "all_gather",
    [LINK_ALL_TO_ALL] = "all_to_all",
    [LINK_RING] = "send_recv",
    [LINK_SUM] = "all_reduce",
};

/* Buffers of a rank's measurements. */
struct links {
    struct rank *rank;
    struct rank_bench bench;
    struct mesh mesh;
    char *send, *receive; /* [bytes_max] each, on the device */
    char *host;           /* likewise on the host, if a device has its own memory; else NULL */
    size_t bytes_max;
    double *seconds;             /* [TIMES_MAX] */
    double *of_ranks;            /* [ranks] */
    size_t *lists;               /* [4 x ranks] */
    json_t *rows;                /* on rank 0 */
    double bus_best, call_least; /* of all ranks: bytes/s; seconds */
};

double links_bus_factor(enum link_call call, uint32_t ranks)
{
    double others = (double)(ranks - 1) / ranks;
    return call == LINK_RING ? 1 : call == LINK_SUM ? 2 * others : others;
}

struct link_times links_times(double *seconds, uint32_t num)
{
    double median = median_of(seconds, num); /* sorts the values */
    return (struct link_times){seconds[0], median, seconds[(num * 99 - 1) / 100]};
}

/* ---- calls ---- */

/* Equal parts for all ranks of the group, one after the other: lists of bytes and of places. */
static size_t cut_parts(struct links *l, const struct comm *group, size_t bytes)
{
    size_t part = bytes / group->size;
    for (uint32_t i = 0; i < group->size; i++) {
        l->lists[i] = part;
        l->lists[group->size + i] = i * part;
    }
    return part;
}

static int send_around(const struct links *l, struct comm *group, size_t bytes)
{
    struct comm_request request = {0};
    uint32_t next = (group->rank + 1) % group->size;
    uint32_t before = (group->rank + group->size - 1) % group->size;
    ERR_TRY(comm_send(group, next, COMM_TAG_RING, l->send, bytes, &request));
    ERR_TRY(comm_receive(group, before, COMM_TAG_RING, l->receive, bytes));
    return comm_wait(group, &request);
}

static int call(struct links *l, struct comm *group, enum link_call which, size_t bytes)
{
    const size_t *of = l->lists, *at = l->lists + group->size;
    size_t part = cut_parts(l, group, bytes);
    switch (which) {
    case LINK_ALL_GATHER:
        return comm_all_gather_v(group, l->send, part, l->receive, of, at);
    case LINK_ALL_TO_ALL:
        return comm_all_to_all_v(group, l->send, of, at, l->receive, of, at);
    case LINK_RING:
        return send_around(l, group, bytes);
    default:
        return comm_all_reduce_floats(group, l->send, bytes / sizeof(float), sizeof(float));
    }
}

bool links_can_sum(const struct comm *group)
{
    return group->device_lane == NULL || (group->ops->flags & COMM_SUMS_ON_DEVICE);
}

/* The longest time of any rank of the world. */
static int slowest(struct links *l, double own, double *out)
{
    struct comm *world = l->rank->world;
    size_t *bytes = l->lists + 2 * (size_t)world->size, *at = bytes + world->size;
    for (uint32_t i = 0; i < world->size; i++) {
        bytes[i] = sizeof own;
        at[i] = i * sizeof own;
    }
    ERR_TRY(comm_all_gather_v(world, &own, sizeof own, l->of_ranks, bytes, at));
    *out = 0;
    for (uint32_t i = 0; i < world->size; i++)
        *out = l->of_ranks[i] > *out ? l->of_ranks[i] : *out;
    return 0;
}

static uint32_t times_of(size_t bytes)
{
    size_t times = MOVED_MAX / bytes;
    return times < TIMES_MIN ? TIMES_MIN : times > TIMES_MAX ? TIMES_MAX : (uint32_t)times;
}

static int measure(struct links *l, struct comm *group, enum link_call which, size_t bytes,
                   struct link_times *out)
{
    uint32_t num = times_of(bytes);
    for (uint32_t i = 0; i < num + WARM_UPS; i++) {
        ERR_TRY(comm_barrier(l->rank->world));
        double start = clock_seconds();
        ERR_TRY(call(l, group, which, bytes));
        ERR_TRY(lane_settle(l->bench.lane));
        double took = clock_seconds() - start, longest;
        ERR_TRY(slowest(l, took, &longest));
        if (i >= WARM_UPS)
            l->seconds[i - WARM_UPS] = longest;
    }
    *out = links_times(l->seconds, num);
    return 0;
}

/* ---- output ---- */

struct row {
    const char *group, *call;
    uint32_t ranks;
    size_t bytes;
    double bus_factor;
    struct link_times times;
};

static void print_row(struct links *l, const struct row *row)
{
    double rate = (double)row->bytes / row->times.median, bus = rate * row->bus_factor;
    const struct link_times *times = &row->times;
    if (l->rank->config->estimate_json)
        json_array_append_new(l->rows,
                              json_pack("{ss si ss sI sf sf sf sf sf}", "group", row->group,
                                        "ranks", (int)row->ranks, "call", row->call, "bytes",
                                        (json_int_t)row->bytes, "least_seconds", times->least,
                                        "median_seconds", times->median, "p99_seconds", times->p99,
                                        "bytes_per_second", rate, "bus_bytes_per_second", bus));
    else
        printf("%-10s %6u  %-10s %11zu %12.1f %12.1f %12.1f %10.3f %10.3f\n", row->group,
               row->ranks, row->call, row->bytes, 1e6 * times->least, 1e6 * times->median,
               1e6 * times->p99, rate / 1e9, bus / 1e9);
}

static void write_row(struct links *l, const struct comm *group, enum link_call which, size_t bytes,
                      const struct link_times *times)
{
    struct row row = {
        group->name, call_names[which], group->size, bytes, links_bus_factor(which, group->size),
        *times};
    print_row(l, &row);
    if (group->size < l->rank->world->size)
        return;
    double bus = row.bus_factor * (double)bytes / times->median;
    if (which != LINK_SUM && bus > l->bus_best)
        l->bus_best = bus;
    if (l->call_least == 0 || times->median < l->call_least)
        l->call_least = times->median;
}

static int print_json(json_t *root)
{
    int rc = root != NULL && json_dumpf(root, stdout, JSON_INDENT(2)) == 0
                 ? 0
                 : report_error(ERR_MEMORY, NULL, "could not print the links as JSON");
    printf("\n");
    json_decref(root);
    return rc;
}

static int print_end(const struct links *l, bool is_one_host)
{
    const char *key = is_one_host ? "machine_gb_per_s" : "network_gb_per_s";
    if (!l->rank->config->estimate_json) {
        printf("links: for --suggest: --memory_estimation.%s %.3g --memory_estimation.call_us "
               "%.3g\n",
               key, l->bus_best / 1e9, 1e6 * l->call_least);
        return 0;
    }
    json_t *root = json_pack("{sO s{sf sf}}", "rows", l->rows, "memory_estimation", key,
                             l->bus_best / 1e9, "call_us", 1e6 * l->call_least);
    return print_json(root);
}

/* Of a single rank. */
static int print_rows(const struct links *l)
{
    return l->rank->config->estimate_json ? print_json(json_pack("{sO}", "rows", l->rows)) : 0;
}

/* ---- groups ---- */

static int measure_group(struct links *l, struct comm *group)
{
    struct link_times times;
    group->device_lane = l->rank->device != NULL ? l->bench.lane : NULL;
    for (enum link_call which = 0; which < NUM_LINK_CALLS; which++) {
        if (which == LINK_SUM && !links_can_sum(group))
            continue;
        for (size_t bytes = BYTES_MIN; bytes <= l->bytes_max; bytes *= BYTES_STEP) {
            ERR_TRY(measure(l, group, which, bytes, &times));
            if (l->rank->world->rank == 0)
                write_row(l, group, which, bytes, &times);
        }
    }
    return 0;
}

/* Copies between the host's memory and the devices, by all ranks at once; the slowest counts. */
static int measure_copies(struct links *l, bool is_to_device, size_t bytes)
{
    void *to = is_to_device ? l->send : l->host, *from = is_to_device ? l->host : l->send;
    struct row row = {.group = "device",
                      .call = is_to_device ? "to_device" : "to_host",
                      .ranks = 1,
                      .bytes = bytes,
                      .bus_factor = 1};
    uint32_t num = times_of(bytes);
    for (uint32_t i = 0; i < num + WARM_UPS; i++) {
        double longest;
        ERR_TRY(comm_barrier(l->rank->world));
        double start = clock_seconds();
        lane_copy(l->bench.lane, to, from, bytes);
        ERR_TRY(lane_settle(l->bench.lane));
        ERR_TRY(slowest(l, clock_seconds() - start, &longest));
        if (i >= WARM_UPS)
            l->seconds[i - WARM_UPS] = longest;
    }
    row.times = links_times(l->seconds, num);
    if (l->rank->world->rank == 0)
        print_row(l, &row);
    return 0;
}

static int measure_all_copies(struct links *l)
{
    for (size_t bytes = BYTES_MIN; bytes <= l->bytes_max && l->host != NULL; bytes *= BYTES_STEP) {
        ERR_TRY(measure_copies(l, true, bytes));
        ERR_TRY(measure_copies(l, false, bytes));
    }
    return 0;
}

/* Measures the group of all ranks, then those of each axis; other groups have the same ranks, or
 * more of them. */
static int measure_groups(struct links *l)
{
    static const enum group groups[] = {GROUP_PP, GROUP_SHARD, GROUP_COPIES, GROUP_CP, GROUP_TP};
    struct comm *world = l->rank->world, *all = NULL;
    ERR_TRY(comm_split(world, &all, 0, world->rank));
    all->name = "world";
    int rc = measure_group(l, all);
    for (size_t i = 0; i < sizeof groups / sizeof groups[0] && rc == 0; i++) {
        struct comm *group = l->mesh.of[groups[i]];
        if (group != NULL && group->size < world->size)
            rc = measure_group(l, group);
    }
    if (rc == 0)
        rc = comm_barrier(world); /* a rank that leaves a group ends it for the others */
    comm_free(all);
    return rc;
}

/* ---- all measurements ---- */

/* If the launcher does not say, each host is assumed to have one rank. */
static bool are_on_one_host(const struct comm *world)
{
    const char *said = launched(LAUNCHED_LOCAL_SIZE);
    return (world->ops->flags & COMM_ONE_MEMORY) ||
           (said != NULL && strtoul(said, NULL, 10) == world->size);
}

static int take_buffers(struct links *l)
{
    uint32_t size = l->rank->world->size;
    void *send = NULL, *receive = NULL, *host = NULL;
    l->bytes_max = (size_t)l->rank->config->links_max_bytes;
    l->seconds = calloc(TIMES_MAX, sizeof *l->seconds);
    l->of_ranks = calloc(size, sizeof *l->of_ranks);
    l->lists = calloc(4 * (size_t)size, sizeof *l->lists);
    l->rows = json_array();
    if (l->seconds == NULL || l->of_ranks == NULL || l->lists == NULL || l->rows == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a world of %u ranks", size);
    ERR_TRY(rank_bench_open(&l->bench, l->rank, "links"));
    ERR_TRY(device_alloc(l->bench.device, &send, l->bytes_max, ON_DEVICE));
    l->send = send;
    ERR_TRY(device_alloc(l->bench.device, &receive, l->bytes_max, ON_DEVICE));
    l->receive = receive;
    if (l->rank->device != NULL) {
        ERR_TRY(device_alloc(l->bench.device, &host, l->bytes_max, PINNED));
        l->host = host;
    }
    lane_zero(l->bench.lane, l->send, l->bytes_max);
    lane_zero(l->bench.lane, l->receive, l->bytes_max);
    return lane_settle(l->bench.lane);
}

static void free_buffers(struct links *l)
{
    mesh_free_groups(&l->mesh);
    if (l->bench.device != NULL) {
        device_free(l->bench.device, l->send);
        device_free(l->bench.device, l->receive);
        device_free(l->bench.device, l->host);
    }
    rank_bench_close(&l->bench);
    json_decref(l->rows);
    free(l->seconds);
    free(l->of_ranks);
    free(l->lists);
}

static int measure_all(struct links *l)
{
    struct comm *world = l->rank->world;
    ERR_TRY(mesh_init(&l->mesh, l->rank->config, world->rank, world->size));
    if (world->size < 2 && l->host == NULL)
        return report_error(
            ERR_INVALID, "give --comm.ranks, or start it under mpirun or torchrun",
            "--links measures between ranks, and there is one, without a device of its own");
    l->mesh.world = world;
    ERR_TRY(mesh_split(&l->mesh));
    if (world->rank == 0 && !l->rank->config->estimate_json)
        printf("%-10s %6s  %-10s %11s %12s %12s %12s %10s %10s\n", "GROUP", "RANKS", "CALL",
               "BYTES", "LEAST US", "MEDIAN US", "P99 US", "ALG GB/S", "BUS GB/S");
    ERR_TRY(measure_all_copies(l));
    if (world->size < 2) /* there are no calls, nor rates of them */
        return print_rows(l);
    ERR_TRY(measure_groups(l));
    return world->rank == 0 ? print_end(l, are_on_one_host(world)) : 0;
}

int links(struct rank *rank, int *out_exit)
{
    struct links l = {.rank = rank};
    timeouts_set(rank->world->flight, rank->config, TIMEOUT_INIT);
    int rc = take_buffers(&l);
    if (rc == 0)
        rc = measure_all(&l);
    free_buffers(&l);
    *out_exit = EXIT_DONE;
    return rc;
}
