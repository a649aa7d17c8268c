/* launched.c - the variables of launchers (see launched.h). */
#include "trainer/config/launched.h"

#include <stddef.h>
#include <stdlib.h>

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

double launched_job_end(void)
{
    const char *said = getenv("HOLDFAST_JOB_END_TIME");
    if (said == NULL)
        said = getenv("SLURM_JOB_END_TIME");
    double at = said != NULL ? strtod(said, NULL) : 0;
    return at > 0 ? at : 0;
}
