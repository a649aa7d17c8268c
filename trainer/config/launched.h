/* launched.h - variables that the launcher of this process sets: torchrun, mpirun, srun.
 *
 * If all of torchrun's variables are set, they take precedence: srun or mpirun may have started
 * torchrun, and then their variables describe the node. */
#ifndef HOLDFAST_TRAINER_LAUNCHED_H
#define HOLDFAST_TRAINER_LAUNCHED_H

#include <stdbool.h>

enum launched { LAUNCHED_RANK, LAUNCHED_SIZE, LAUNCHED_LOCAL_RANK, LAUNCHED_LOCAL_SIZE };

/* NULL: no launcher sets it. Borrowed from the environment. */
const char *launched(enum launched what);
/* True if RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are all set. */
bool launched_by_torchrun(void);
/* The end of the job's time in seconds since 1970, from HOLDFAST_JOB_END_TIME or SLURM; 0: not
 * known. Warns once on rank 0 of one that is no such number. */
double launched_job_end(void);
/* True if a launcher of MPI sets a rank, even if others do, too. */
bool launched_by_mpi(void);

#endif
