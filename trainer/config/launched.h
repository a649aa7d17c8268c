/* launched.h - what the launcher of this process says in the environment: torchrun, mpirun, srun.
 *
 * torchrun is taken where all that it sets is there, before others: srun or mpirun may have started
 * it, and their variables are those of the node then. */
#ifndef HOLDFAST_TRAINER_LAUNCHED_H
#define HOLDFAST_TRAINER_LAUNCHED_H

#include <stdbool.h>

enum launched { LAUNCHED_RANK, LAUNCHED_SIZE, LAUNCHED_LOCAL_RANK, LAUNCHED_LOCAL_SIZE };

/* NULL: no launcher says. Borrowed from the environment. */
const char *launched(enum launched what);
/* RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are all there. */
bool launched_by_torchrun(void);
/* When the job's time is over, in seconds since 1970: what HOLDFAST_JOB_END_TIME or SLURM says; 0:
 * nobody does. */
double launched_job_end(void);
/* A launcher of MPI says a rank, whoever else does. */
bool launched_by_mpi(void);

#endif
