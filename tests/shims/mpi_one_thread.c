/* mpi_one_thread.c - an MPI that permits only its first thread to call, in front of the installed
 * one.
 *
 *     mpirun -x LD_PRELOAD=build/shims/mpi_one_thread.so trainer --comm.backend mpi ...
 *
 * It grants MPI_THREAD_FUNNELED, which is 1 with Open MPI and with MPICH, whatever level is
 * requested. */
#define FUNNELED 1

int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    (void)required;
    return PMPI_Init_thread(argc, argv, *provided = FUNNELED, provided);
}
