/* ranks.c - the ranks of a process (see ranks.h). */
#include "trainer/run/ranks.h"
#include "kernels/device.h"
#include "proto/base/report.h"
#include "proto/base/stacks.h"
#include "trainer/comm/comm.h"
#include "trainer/comm/flight.h"
#include "trainer/comm/tcp/tcp.h"
#include "trainer/config/launched.h"
#include "trainer/run/seed.h"
#include "trainer/run/timeouts.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct launch {
    const struct config *config;
    const volatile sig_atomic_t *want_stop;
    int (*work)(struct rank *rank, int *out_exit);
    atomic_int exit_code; /* the same from all ranks that did not fail */
};

/* Missing memory ends the run for good: a restart cannot find it. */
static int exit_code_of(int error)
{
    return err_retry(error) && error != ERR_MEMORY ? EXIT_RUN_AGAIN : EXIT_DO_NOT_RETRY;
}

static int set_flight(struct comm *world, const struct config *config)
{
    struct flight_options options = {
        .num_records = config->trace_records > 0 ? (uint32_t)config->trace_records : 1,
        .folder = config->trace_folder,
        .prefix = config->trace_prefix};
    return flight_set(world->flight, &options);
}

static bool are_threads(const struct config *config)
{
    return config->comm_backend == BACKEND_LOCAL ||
           (config->comm_backend == BACKEND_NCCL && config_num_launched() == 1);
}

/* Logs the error with the step, and with the GPU's names in its vendor's tools and the kernel's
 * log. */
static void log_error_of(const struct rank *rank)
{
    const char *gpu = rank->device != NULL ? device_identity(rank->device) : "";
    char step[40] = "";
    if (rank->in_step > 0)
        snprintf(step, sizeof(step), ", in step %" PRId64, rank->in_step);
    log_error("train", "rank %u%s%s%s: %s", rank->world->rank, gpu[0] != '\0' ? " on " : "", gpu,
              step, report_line());
}

/* In a preflight each process ends alone, so that the launcher sees which ones did not answer: an
 * abort of MPI ends them all at once. */
static void leave_lost_world(struct comm *world, const struct config *config, int exit_code)
{
    if (config->preflight && !are_threads(config)) {
        fflush(NULL);
        _exit(exit_code);
    }
    comm_abort(world, exit_code);
}

/* A list beyond the world is only warned of: a start after a lost rank has one rank less. */
static void choose_log(const struct comm *world, const struct config *config)
{
    int64_t last = config_last_rank(config->log_ranks);
    if (!config_has_rank(config->log_ranks, world->rank))
        log_hush(!are_threads(config));
    if (world->rank == 0 && last >= (int64_t)world->size)
        log_warn("config",
                 "metrics.log_ranks = \"%s\": there is no rank %" PRId64 ", the last one is %u",
                 config->log_ranks, last, world->size - 1);
}

static int with_world(struct comm *world, void *user)
{
    struct launch *launch = user;
    struct config config = *launch->config;
    struct rank rank = {.config = &config, .world = world, .want_stop = launch->want_stop};
    int exit_code = EXIT_DONE;
    stacks_join((int)world->rank);
    choose_log(world, &config);
    int rc = set_flight(world, launch->config);
    if (rc == 0)
        rc = seed_settle(&config, world);
    if (rc == 0)
        rc = launch->work(&rank, &exit_code);
    if (rc != 0 && report_message()[0] != 0)
        log_error_of(&rank);
    if (world->is_lost)
        leave_lost_world(world, &config, exit_code_of(rc));
    rank_close(&rank);
    launch->exit_code = exit_code;
    return rc;
}

/* With comm.backend nccl the world is NCCL's, set up over that of threads, MPI or TCP. */
static int rank_main(struct comm *bootstrap, void *user)
{
    struct launch *launch = user;
    struct comm *world = NULL;
    if (launch->config->comm_backend != BACKEND_NCCL)
        return with_world(bootstrap, user);
    int rc = comm_nccl_open(&world, bootstrap);
    if (rc != 0) {
        log_error("train", "rank %u: %s", bootstrap->rank, report_line());
        return rc;
    }
    rc = with_world(world, user);
    comm_free(world);
    return rc;
}

/* Opens the world of processes: by torchrun, else by MPI. */
static int open_world(struct comm **out, const struct config *config)
{
    struct tcp_options options;
    if (config->comm_backend != BACKEND_NCCL || !launched_by_torchrun()) {
        ERR_TRY(timeouts_meet(config));
        int rc = comm_mpi_open(out);
        timeouts_met();
        return rc;
    }
    ERR_TRY(tcp_options_of_environment(&options));
    options.timeout_seconds = timeouts_init_seconds(config);
    return comm_tcp_open(out, &options);
}

int ranks_run(const struct config *config, const volatile sig_atomic_t *want_stop,
              int (*work)(struct rank *rank, int *out_exit))
{
    struct launch launch = {.config = config, .want_stop = want_stop, .work = work};
    struct comm *world = NULL;
    if (config->comm_backend == BACKEND_NCCL && comm_nccl_open == NULL) {
        log_error("train", "comm.backend = nccl: this trainer was built without NCCL (set "
                           "comm.backend to local or mpi, or build where nvcc and nccl.h are)");
        return EXIT_DO_NOT_RETRY;
    }
    if (are_threads(config)) {
        int rc = comm_local_run((uint32_t)config->comm_ranks, rank_main, &launch);
        return rc != 0 ? exit_code_of(rc) : launch.exit_code;
    }
    int rc = open_world(&world, config);
    if (rc != 0) {
        log_error("train", "%s", report_line());
        return exit_code_of(rc);
    }
    rc = rank_main(world, &launch);
    comm_free(world);
    return rc != 0 ? exit_code_of(rc) : launch.exit_code;
}
