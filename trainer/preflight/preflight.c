/* preflight.c - see preflight.h. */
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "proto/base/clock.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/parallel/parallel.h"
#include "trainer/preflight/private.h"
#include "trainer/run/timeouts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_BYTES (32u << 20)
#define TIMES 4 /* the fastest counts, without the first, which plans or connects */

/* Buffers of one rank. The device can copy from and to the host memory. */
struct trial {
    struct rank *rank;
    struct rank_bench bench;
    struct finding *found;
    struct node_trial node;
};

static void note_problem(struct finding *found, const char *what)
{
    snprintf(found->problem, sizeof found->problem, "%s: %s", what, report_line());
    report_clear();
}

/* ---- one rank ---- */

static int look_at_health(struct trial *t)
{
    device_health(t->bench.device, &t->found->health);
    t->found->links_up = fmax(0, (double)t->found->health.links);
    return 0;
}

static int open_trial(struct trial *t)
{
    struct device_room room;
    ERR_TRY(rank_bench_open(&t->bench, t->rank, "preflight"));
    snprintf(t->found->device, sizeof t->found->device, "%s", kernels_describe(t->rank->kernels));
    snprintf(t->found->identity, sizeof t->found->identity, "%s", device_identity(t->bench.device));
    ERR_TRY(look_at_health(t));
    ERR_TRY(device_room(t->bench.device, &room));
    t->found->memory_all = room.all;
    t->found->memory_free = room.free;
    return 0;
}

void trial_fill(void *at, size_t bytes, uint32_t seed)
{
    uint32_t *words = at;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = (uint32_t)i * 2654435761u + seed * 40503u;
}

bool trial_is_filled(const void *at, size_t bytes, uint32_t seed)
{
    const uint32_t *words = at;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        if (words[i] != (uint32_t)i * 2654435761u + seed * 40503u)
            return false;
    return true;
}

static void note_rate(double *rate, int time, double amount, double start)
{
    if (time > 0)
        *rate = fmax(*rate, amount / (clock_seconds() - start));
}

/* Buffers of a measurement: the device's, and two of the host's. */
struct buffers {
    void *device, *from, *to;
};

static int take_buffers(struct buffers *out, struct device *device, size_t bytes)
{
    ERR_TRY(device_alloc(device, &out->device, bytes, ON_DEVICE));
    ERR_TRY(device_alloc(device, &out->from, bytes, PINNED));
    return device_alloc(device, &out->to, bytes, PINNED);
}

static void free_buffers(struct buffers *buffers, struct device *device)
{
    device_free(device, buffers->device);
    device_free(device, buffers->from);
    device_free(device, buffers->to);
}

static int fail_bytes(const char *what)
{
    return report_error(ERR_CORRUPT, "take this device out of the run", "%s", what);
}

static int copy_with(struct trial *t, struct buffers *b)
{
    ERR_TRY(take_buffers(b, t->bench.device, COPY_BYTES));
    for (int i = 0; i <= TIMES; i++) {
        uint32_t seed = t->rank->world->rank + (uint32_t)i;
        trial_fill(b->from, COPY_BYTES, seed);
        double start = clock_seconds();
        lane_copy(t->bench.lane, b->device, b->from, COPY_BYTES);
        lane_copy(t->bench.lane, b->to, b->device, COPY_BYTES);
        ERR_TRY(lane_settle(t->bench.lane));
        note_rate(&t->found->copy_rate, i, 2.0 * COPY_BYTES, start);
        if (!trial_is_filled(b->to, COPY_BYTES, seed))
            return fail_bytes("data copied to the device and back has other bits");
    }
    return 0;
}

static int try_copies(struct trial *t)
{
    struct buffers buffers = {0};
    int rc = copy_with(t, &buffers);
    free_buffers(&buffers, t->bench.device);
    return rc;
}

static int try_products(struct trial *t)
{
    return products_measure(t->found, t->rank, &t->bench);
}

static int examine_node(struct trial *t)
{
    return node_examine(&t->node, &t->found->node, t->rank);
}

static void test_rank(struct trial *t)
{
    static const struct {
        const char *what;
        int (*run)(struct trial *t);
    } parts[] = {{"the node", examine_node},
                 {"the device", open_trial},
                 {"copies", try_copies},
                 {"products", try_products},
                 {"health", look_at_health}}; /* again: without work a GPU slows its bus */
    process_host(t->found->host, sizeof t->found->host);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].run(t) != 0) {
            note_problem(t->found, parts[i].what);
            return;
        }
}

/* ---- all ranks ---- */

static int gather(struct comm *world, const struct finding *own, struct finding *all)
{
    size_t *bytes = calloc(2 * (size_t)world->size, sizeof *bytes);
    if (bytes == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a world of %u ranks", world->size);
    for (uint32_t i = 0; i < world->size; i++) {
        bytes[i] = sizeof *own;
        bytes[world->size + i] = i * sizeof *own;
    }
    int rc = comm_all_gather_v(world, own, sizeof *own, all, bytes, bytes + world->size);
    free(bytes);
    return rc;
}

static int measure_pairs(struct trial *t, struct comm *group, const struct trial_room *room)
{
    uint32_t wrong = UINT32_MAX;
    ERR_TRY(pairs_measure(&t->found->pairs, group, room, &wrong));
    if (wrong != UINT32_MAX)
        snprintf(t->found->problem, sizeof t->found->problem,
                 "links: data from rank %u arrived with other bits", wrong);
    return 0;
}

/* Tests sums, by which every step agrees. */
static int add_up(struct trial *t)
{
    struct comm *world = t->rank->world;
    int64_t sum = (int64_t)world->rank + 1, want = (int64_t)world->size * (world->size + 1) / 2;
    ERR_TRY(comm_all_reduce_i64(world, &sum, 1));
    if (sum != want && t->found->problem[0] == '\0')
        snprintf(t->found->problem, sizeof t->found->problem,
                 "sums: the sum of 1 to %u is %lld, not %lld", world->size, (long long)sum,
                 (long long)want);
    return 0;
}

static void note_wrong(struct trial *t, bool is_wrong)
{
    if (is_wrong && t->found->problem[0] == '\0')
        snprintf(t->found->problem, sizeof t->found->problem,
                 "calls: a sum or a gather of all ranks' numbers is wrong");
}

/* Measures sums and gathers among the ranks of each host and, if there are several hosts, among
 * all. */
static int measure_calls(struct trial *t, struct comm *group, const struct trial_room *room,
                         const struct finding *all)
{
    struct comm *world = t->rank->world, *here = NULL;
    bool is_wrong = false;
    int rc = 0;
    ERR_TRY(comm_split(world, &here, preflight_speaker(all, world->rank), world->rank));
    here->name = "host";
    here->device_lane = group->device_lane;
    if (here->size > 1)
        rc = collectives_measure(&t->found->node.calls, here, room, &is_wrong);
    if (rc == 0)
        rc = comm_barrier(world);
    if (rc == 0 && preflight_hosts(all, world->size) > 1)
        rc = collectives_measure(&t->found->calls, group, room, &is_wrong);
    note_wrong(t, is_wrong);
    if (rc == 0)
        rc = comm_barrier(world); /* a rank that leaves a group ends it for the others */
    comm_free(here);
    return rc;
}

#define DISK_SECONDS 30 /* of each program, if others wait so long */

/* Runs on the first rank of each host, all at once; other ranks wait, up to their own limit. */
static int measure_disks(struct trial *t, const struct finding *all)
{
    const struct comm *world = t->rank->world;
    const char *folder = t->rank->config->preflight_folder;
    int64_t limit_ms = timeouts_init_seconds(t->rank->config) * 1000 / 4;
    if (limit_ms == 0 || limit_ms > DISK_SECONDS * 1000)
        limit_ms = DISK_SECONDS * 1000;
    if (folder[0] != '\0' && preflight_speaker(all, world->rank) == world->rank)
        disk_measure(&t->found->node.disk, folder, limit_ms);
    return comm_barrier(t->rank->world);
}

static int test_ranks(struct trial *t, const struct finding *all)
{
    struct comm *group = NULL;
    struct buffers buffers = {0};
    ERR_TRY(measure_disks(t, all));
    ERR_TRY(add_up(t));
    ERR_TRY(node_measure(&t->node, &t->found->node, t->rank->world, all));
    if (t->rank->world->size == 1)
        return 0;
    ERR_TRY(comm_split(t->rank->world, &group, 0, t->rank->world->rank));
    group->name = "preflight";
    group->device_lane = t->rank->device != NULL ? t->bench.lane : NULL;
    int rc = take_buffers(&buffers, t->bench.device, 2 * TRIAL_BYTES);
    struct trial_room room = {t->bench.lane, buffers.from, buffers.to, buffers.device};
    if (rc == 0)
        rc = measure_pairs(t, group, &room);
    if (rc == 0)
        rc = measure_calls(t, group, &room, all);
    if (rc == 0)
        rc = comm_barrier(t->rank->world); /* a rank that leaves a group ends it for the others */
    free_buffers(&buffers, t->bench.device);
    comm_free(group);
    return rc;
}

/* ---- the whole preflight ---- */

static bool is_some_broken(const struct finding *all, uint32_t num)
{
    for (uint32_t i = 0; i < num; i++)
        if (all[i].problem[0] != '\0')
            return true;
    return false;
}

static int run_tests(struct trial *t, struct finding *all, int *out_exit)
{
    struct comm *world = t->rank->world;
    ERR_TRY(parallel_agree(world, products_check(t->rank->config))); /* no fault of a rank */
    test_rank(t);
    ERR_TRY(gather(world, t->found, all));
    if (!is_some_broken(all, world->size)) { /* otherwise ranks wait for one without a device */
        ERR_TRY(test_ranks(t, all));
        ERR_TRY(gather(world, t->found, all));
    }
    ERR_TRY(preflight_set_fitness(all, world->size)); /* same result on all ranks */
    *out_exit = preflight_count(all, world->size, BROKEN) > 0 ? EXIT_DO_NOT_RETRY : EXIT_DONE;
    if (world->rank > 0)
        return 0;
    return t->rank->config->estimate_json ? preflight_print_json(all, world->size)
                                          : preflight_print(all, world->size);
}

int preflight(struct rank *rank, int *out_exit)
{
    struct finding found = {0}, *all = calloc(rank->world->size, sizeof *all);
    struct trial trial = {.rank = rank, .found = &found};
    if (all == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a world of %u ranks",
                            rank->world->size);
    timeouts_set(rank->world->flight, rank->config, TIMEOUT_INIT);
    int rc = run_tests(&trial, all, out_exit);
    rank_bench_close(&trial.bench);
    node_free(&trial.node);
    free(all);
    return rc;
}
