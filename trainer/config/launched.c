/* launched.c - the variables of launchers (see launched.h). */
#include "trainer/config/launched.h"

#include "proto/base/report.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 5
static const char *const torchrun[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
static const char *const of_mpi[][NAMES_MAX] = {
    [LAUNCHED_RANK] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"},
    /* of a step of srun, with any plug-in */
    [LAUNCHED_SIZE] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"},
    [LAUNCHED_LOCAL_RANK] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"},
    /* the last has the form "4(x2)" */
    [LAUNCHED_LOCAL_SIZE] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                             "SLURM_STEP_TASKS_PER_NODE"},
};

bool launched_by_torchrun(void)
{
    return getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL && getenv("LOCAL_RANK") != NULL &&
           getenv("MASTER_ADDR") != NULL && getenv("MASTER_PORT") != NULL;
}

static const char *of_mpi_or_none(enum launched what)
{
    const char *found = NULL;
    for (size_t i = 0; of_mpi[what][i] != NULL && found == NULL; i++)
        found = getenv(of_mpi[what][i]);
    return found;
}

const char *launched(enum launched what)
{
    return launched_by_torchrun() ? getenv(torchrun[what]) : of_mpi_or_none(what);
}

bool launched_by_mpi(void)
{
    return of_mpi_or_none(LAUNCHED_RANK) != NULL;
}

/* The moment that the variable gives; 0: it is not set, or no number, of which rank 0 warns. */
static double moment_in(const char *name)
{
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    const char *said = getenv(name), *rank = launched(LAUNCHED_RANK);
    char *end;
    if (said == NULL || said[0] == '\0')
        return 0;
    double at = strtod(said, &end);
    if (*end == '\0' && at > 0 && isfinite(at))
        return at;
    if ((rank == NULL || strcmp(rank, "0") == 0) && !atomic_flag_test_and_set(&has_warned))
        log_warn("config",
                 "%s = \"%s\" is no number of seconds since 1970: the end of the job is not known "
                 "from it",
                 name, said);
    return 0;
}

double launched_job_end(void)
{
    double at = moment_in("HOLDFAST_JOB_END_TIME");
    return at > 0 ? at : moment_in("SLURM_JOB_END_TIME");
}
