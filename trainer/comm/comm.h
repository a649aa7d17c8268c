/* comm.h - communication between ranks: one interface, several implementations.
 *
 * `local`: ranks are threads of one process and the collectives go through memory. `mpi`: ranks are
 * processes. Both only move bits, except for the sums named below: all_reduce_i64 (exact in any
 * order) and the float sums of the fast mode, whose order belongs to the library.
 *
 * A communicator spans a group of ranks; split() makes sub-groups (the axes of the mesh). Every
 * member calls the same collectives in the same order. Counts and displacements are in bytes,
 * except where `count` is named. Send and receive buffers never overlap. A communicator belongs to
 * one thread. Errors: codes of report.h; ERR_UNAVAILABLE when a peer is lost: the caller ends with
 * EXIT_RUN_AGAIN. With `local` the last error is empty then, because the rank that ended has the
 * reason. */
#ifndef HOLDFAST_COMM_H
#define HOLDFAST_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;

/* A send on its way; the caller's, until wait. */
struct comm_request {
    void *of_backend[8];
};
/* Tags of what is sent between two ranks: equal tags are received in the order of sending. */
enum { COMM_TAG_TIED = 1, COMM_TAG_STAGES = 16 };

struct comm_ops {
    const char *name;
    int (*split)(struct comm *comm, struct comm **out, uint32_t color, uint32_t key);
    void (*free)(struct comm *comm);
    int (*barrier)(struct comm *comm);
    int (*broadcast)(struct comm *comm, void *data, size_t bytes, uint32_t root);
    int (*all_gather_v)(struct comm *comm, const void *send, size_t send_bytes, void *recv,
                        const size_t *recv_bytes, const size_t *recv_at);
    int (*all_to_all_v)(struct comm *comm, const void *send, const size_t *send_bytes,
                        const size_t *send_at, void *recv, const size_t *recv_bytes,
                        const size_t *recv_at);
    int (*all_reduce_i64)(struct comm *comm, int64_t *data, size_t count); /* sum, in place */
    int (*all_reduce_f32)(struct comm *comm, float *data,
                          size_t count); /* sum, in place; fast mode */
    /* recv[counts[rank]] = sum over ranks of their send[sum(counts)] part; fast mode */
    int (*reduce_scatter_f32)(struct comm *comm, const float *send, float *recv,
                              const size_t *counts);
    /* Posts and returns: data stay untouched until wait, which returns when they may be changed. */
    int (*send)(struct comm *comm, uint32_t peer, int tag, const void *data, size_t bytes,
                struct comm_request *request);
    int (*receive)(struct comm *comm, uint32_t peer, int tag, void *data, size_t bytes);
    int (*wait)(struct comm *comm, struct comm_request *request);
    /* Ends all ranks: mpi now, with this exit code; local at their next collective. */
    void (*abort)(struct comm *comm, int exit_code);
};

struct comm {
    const struct comm_ops *ops;
    uint32_t rank, size;
    bool is_lost; /* world communicator: a collective has failed, so only abort() ends all ranks */
};

/* `mpi`: MPI_Init (funnelled); the world communicator, whose free() is MPI_Finalize. Once per
 * process. */
int comm_mpi_open(struct comm **out);
/* `local`: runs `rank_main` on `size` threads, each with its communicator (freed for it at the
 * end); returns 0 or the result of the rank that failed first, a cause before its ERR_UNAVAILABLE.
 */
int comm_local_run(uint32_t size, int (*rank_main)(struct comm *comm, void *user), void *user);

#endif
