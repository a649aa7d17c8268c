/* node.c - examines a host before training (see preflight.h).
 *
 * Memory is copied between two buffers larger than the caches: first by all ranks of all hosts at
 * once, then by the first rank of each host. Clocks are compared with that of rank 0's host: rank 0
 * asks all ranks for the time, and assumes that they read it in the middle of the shortest round.
 * Collectives carry the times, since TCP has no messages between two ranks. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/preflight/private.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BYTES_MIN ((size_t)64 << 20)
#define BYTES_MAX ((size_t)128 << 20) /* a larger cache serves several groups of cores */
#define COPIES 4
#define ROUNDS 8 /* the shortest counts */

/* ---- one rank ---- */

static uint64_t limit_of(int kind)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)kind, &limit) != 0)
        return 0;
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

static uint64_t shm_bytes(void)
{
    struct statvfs space;
    return statvfs("/dev/shm", &space) == 0 ? (uint64_t)space.f_blocks * space.f_frsize : 0;
}

/* Containers refuse io_uring_setup. */
static int ring_error(void)
{
    struct io_uring_params params = {0};
    long ring = syscall(SYS_io_uring_setup, 1u, &params);
    if (ring < 0)
        return errno;
    close((int)ring);
    return 0;
}

/* Reads the choice in brackets. */
static void find_huge_pages(char *out, size_t size)
{
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        line[0] = '\0';
    if (file != NULL)
        fclose(file);
    const char *begin = strchr(line, '[');
    snprintf(out, size, "%.*s", begin != NULL ? (int)strcspn(begin + 1, "]") : 1,
             begin != NULL ? begin + 1 : "?");
}

/* Allocates buffers of the size of the last cache each. Both are touched, so that no page faults
 * occur during copies. */
static int take_memory(struct node_trial *trial)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    trial->bytes = cache > (long)BYTES_MIN ? (size_t)cache : BYTES_MIN;
    if (trial->bytes > BYTES_MAX)
        trial->bytes = BYTES_MAX;
    trial->from = malloc(trial->bytes);
    trial->to = malloc(trial->bytes);
    if (trial->from == NULL || trial->to == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for two buffers of %zu bytes",
                            trial->bytes);
    memset(trial->from, 1, trial->bytes);
    memset(trial->to, 2, trial->bytes);
    return 0;
}

int node_examine(struct node_trial *trial, struct node_facts *out, const struct rank *rank)
{
    struct utsname system = {0};
    if (sched_getaffinity(0, sizeof out->cores, &out->cores) != 0)
        CPU_ZERO(&out->cores);
    out->threads = rank->config->device == DEVICE_CPU ? (uint32_t)rank->config->threads : 0;
    out->memlock = limit_of(RLIMIT_MEMLOCK);
    out->nofile = limit_of(RLIMIT_NOFILE);
    out->shm_bytes = shm_bytes();
    out->ring_error = ring_error();
    find_huge_pages(out->huge_pages, sizeof out->huge_pages);
    (void)uname(&system);
    snprintf(out->kernel, sizeof out->kernel, "%.63s", system.release);
    snprintf(out->version, sizeof out->version, "%s", report_version);
    return take_memory(trial);
}

void node_free(struct node_trial *trial)
{
    free(trial->from);
    free(trial->to);
}

/* ---- all ranks ---- */

/* bytes/s read and written, from the first to the last copy; *out_best: of the fastest copy. */
static double copy_memory(const struct node_trial *trial, double *out_best)
{
    double begin = clock_seconds();
    *out_best = 0;
    for (int i = 0; i < COPIES; i++) {
        double start = clock_seconds();
        memcpy(trial->to, trial->from, trial->bytes);
        *out_best = fmax(*out_best, (double)trial->bytes / (clock_seconds() - start));
    }
    return COPIES * (double)trial->bytes / (clock_seconds() - begin);
}

/* One round: rank 0 tells all ranks to read their clocks, and gathers the times. Collective. */
static int exchange_clocks(struct comm *world, double *times, const size_t *bytes, double *out_sent,
                           double *out_trip)
{
    double start = clock_seconds(), now;
    *out_sent = clock_wall_seconds();
    ERR_TRY(comm_broadcast(world, out_sent, sizeof *out_sent, 0));
    now = clock_wall_seconds();
    ERR_TRY(comm_all_gather_v(world, &now, sizeof now, times, bytes, bytes + world->size));
    *out_trip = clock_seconds() - start;
    return 0;
}

/* best: the time by which each rank is ahead of rank 0, then the shortest round trip; [size +
 * 1]. */
static int compare_clocks(struct comm *world, double *best, double *times, size_t *bytes)
{
    double sent, trip;
    for (uint32_t i = 0; i < world->size; i++) {
        bytes[i] = sizeof *times;
        bytes[world->size + i] = i * sizeof *times;
    }
    best[world->size] = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        ERR_TRY(exchange_clocks(world, times, bytes, &sent, &trip));
        if (trip >= best[world->size])
            continue;
        best[world->size] = trip;
        for (uint32_t r = 0; r < world->size; r++)
            best[r] = times[r] - (sent + trip / 2);
    }
    return comm_broadcast(world, best, (world->size + (size_t)1) * sizeof *best, 0);
}

static int measure_clock(struct node_facts *out, struct comm *world)
{
    double *times = calloc(2 * (size_t)world->size + 1, sizeof *times);
    size_t *bytes = calloc(2 * (size_t)world->size, sizeof *bytes);
    int rc = times != NULL && bytes != NULL
                 ? compare_clocks(world, times + world->size, times, bytes)
                 : report_error(ERR_MEMORY, NULL, "no memory for a world of %u ranks", world->size);
    if (rc == 0 && world->rank > 0) { /* rank 0 is the reference */
        out->clock = times[world->size + world->rank];
        out->round_trip = times[2 * (size_t)world->size];
    }
    free(times);
    free(bytes);
    return rc;
}

int node_measure(const struct node_trial *trial, struct node_facts *out, struct comm *world,
                 const struct finding *all)
{
    double best;
    ERR_TRY(comm_barrier(world));
    out->memory_rate = copy_memory(trial, &best);
    ERR_TRY(comm_barrier(world));
    if (preflight_speaker(all, world->rank) == world->rank)
        (void)copy_memory(trial, &out->memory_alone);
    ERR_TRY(comm_barrier(world));
    return measure_clock(out, world);
}
