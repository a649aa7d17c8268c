/* comm.h - communication between ranks: one interface, several implementations.
 *
 * `local`: ranks are threads of one process and the collectives go through memory. `mpi`: ranks are
 * processes. `nccl`: either of them, or processes that meet over TCP (trainer/tcp), and what is in
 * the memory of GPUs goes by NCCL. All only move bits, except for the sums named below:
 * all_reduce_i64 (exact in any order) and the float sums of the fast mode, whose order belongs to
 * the library, of GPUs to NCCL.
 *
 * A communicator spans a group of ranks; split makes sub-groups (the axes of the mesh). Every
 * member calls the same collectives in the same order. Counts and displacements are in bytes,
 * except where `count` is named. Send and receive buffers never overlap. One thread at a time uses
 * a communicator; with COMM_THREADS several threads of a rank may use different ones, and one more
 * may receive messages of any.
 *
 * A call is a value, struct comm_call: what moves, and where in the source it was asked for. The
 * macros below fill it in; comm_run notes it in the rank's flight recorder (flight.h) and hands it
 * to the back-end.
 *
 * Errors: codes of report.h; ERR_UNAVAILABLE when a peer is lost or did not come in time: the
 * caller ends with EXIT_RUN_AGAIN. With `local` the last error is empty when a peer is lost,
 * because the rank that ended has the reason. ERR_MISMATCH names two call sites of ranks that did
 * not call the same; `mpi` looks for it in the first calls of a communicator (mpi.c). */
#ifndef HOLDFAST_COMM_H
#define HOLDFAST_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct flight;
struct lane;

/* A send on its way; the caller's, until wait; zero before its first use. */
struct comm_request {
    void *of_backend[8];
    uint64_t record; /* of the flight recorder */
};
/* Tags of what is sent between two ranks: equal tags are received in the order of sending. */
enum { COMM_TAG_TIED = 1, COMM_TAG_RING = 2, COMM_TAG_STAGES = 16 };

enum comm_kind {
    COMM_SPLIT,
    COMM_BARRIER,
    COMM_BROADCAST,
    COMM_ALL_GATHER,
    COMM_ALL_TO_ALL,
    COMM_SUM_I64,
    COMM_SUM_FLOATS,
    COMM_REDUCE_SCATTER,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_WAIT,
    NUM_COMM_KINDS
};

struct comm_call {
    enum comm_kind kind;
    const char *site; /* file:line of the caller; lives as long as the program */
    const void *send;
    void *recv;
    size_t bytes;                       /* of what this rank sends, or broadcasts, sums, receives */
    const size_t *send_bytes, *send_at; /* per rank: all_to_all */
    const size_t *recv_bytes, *recv_at; /* per rank: all_gather, all_to_all */
    const size_t *counts;               /* per rank: numbers of a reduce_scatter */
    size_t element;                     /* of a sum's floats: 4 bytes, or 2 of bf16 */
    uint32_t peer;                      /* of a message; root of a broadcast */
    int tag;                            /* of a message */
    struct lane *device_lane;           /* of a receive, with `lane`: who makes it, where that is */
    const char *lane;                   /* another thread than the communicator's; NULL: that */
    uint32_t color, key;                /* of a split */
    uint32_t group_size;                /* of a split: the ranks that the caller expects; 0: any */
    struct comm **out;                  /* of a split */
    struct comm_request *request;       /* of a send and its wait */
    const struct flight_mark *mark;     /* set by comm_run: where the caller's program is */
};

enum comm_flag {
    COMM_THREADS = 1,    /* threads of a rank may be in different groups at a time */
    COMM_ONE_MEMORY = 2, /* ranks are threads of one process */
    /* Messages of the device's memory have no tags: between two ranks of a communicator they are
     * received in the order of sending. Those below COMM_TAG_STAGES are exchanges: each rank sends,
     * receives and waits, and posts nothing between. Others go one way in a communicator. */
    COMM_UNTAGGED = 4,
    COMM_SUMS_ON_DEVICE = 8 /* sums of floats are of the device's memory; else of the host's */
};

struct comm_ops {
    const char *name;
    uint32_t flags; /* of enum comm_flag */
    /* One call, to its end; a send is posted only. */
    int (*run)(struct comm *comm, const struct comm_call *call);
    void (*free)(struct comm *comm);
    /* Ends all ranks: mpi now, with this exit code; local at their next collective. */
    void (*abort)(struct comm *comm, int exit_code);
    /* (optional) comm_fail: false when another rank was before this one. NULL: true. */
    bool (*fail)(struct comm *comm, int error);
    /* (optional) Has a rank of the world ended with an error? Who waits for others outside of run()
     * asks. NULL: the launcher ends them all. */
    bool (*is_failed)(struct comm *comm);
};

struct comm {
    const struct comm_ops *ops;
    uint32_t rank, size;
    bool is_lost;       /* world communicator: a collective has failed, or this rank (comm_fail),
                         * so only abort() ends all ranks */
    const char *name;   /* of the group: "world", "dp_shard"; a constant */
    const char *lane;   /* whose thread uses it; a constant */
    uint64_t num_calls; /* collectives so far: the sequence number of the next */
    /* NULL: buffers are the host's. Else they are of its device, of either kind, and what was
     * queued on it before a call is done before a buffer is read. Sums of integers are of the
     * host's memory always, those of floats as COMM_SUMS_ON_DEVICE says. Of a group: its owner sets
     * it. */
    struct lane *device_lane;
    struct flight *flight;  /* of the rank; all its communicators share it */
    double connect_seconds; /* of a world: what the device's library took for communicators */
};

/* `mpi`: MPI_Init_thread; the world communicator, whose free() is MPI_Finalize. Once per process.
 */
int comm_mpi_open(struct comm **out);
/* `nccl`: a communicator over `bootstrap`, which stays its owner's and is freed after it. Each rank
 * has opened its GPU before it splits. NULL in a program that was built without NCCL's header. */
extern int comm_nccl_open(struct comm **out, struct comm *bootstrap) __attribute__((weak));
/* When each rank has opened its GPU: one warning for each host where GPUs do not reach each other's
 * memory. Collective. */
extern int comm_nccl_check_peers(struct comm *world) __attribute__((weak));
/* `local`: runs `rank_main` on `size` threads, each with its communicator (freed for it at the
 * end); returns 0 or the result of the rank that failed first, a cause before its ERR_UNAVAILABLE.
 */
int comm_local_run(uint32_t size, int (*rank_main)(struct comm *comm, void *user), void *user);

/* `dry`: moves nothing and waits for nobody, for plans; its flight recorder counts (flight_sums).
 * A split has the group_size that it was asked for. ERR_MEMORY. */
int comm_dry_open(struct comm **out, uint32_t rank, uint32_t size);
/* From here on `at` is told of each call of that world and of what was split from it, on the thread
 * that calls. NULL: nobody. */
typedef void comm_dry_call(void *user, const struct comm *comm, const struct comm_call *call);
void comm_dry_watch(struct comm *world, comm_dry_call *at, void *user);

const char *comm_kind_name(enum comm_kind kind);
/* The bytes of this rank's buffers that a call moves, its own part included. */
size_t comm_call_bytes(const struct comm *comm, const struct comm_call *call);

/* The bytes that leave this rank: to each receiver its own; of a sum those of a ring,
 * 2 (n - 1) / n; of a broadcast the root's, to each of the others. */
size_t comm_call_sent(const struct comm *comm, const struct comm_call *call);

int comm_run(struct comm *comm, const struct comm_call *call);
void comm_free(struct comm *comm); /* NULL is none */
void comm_abort(struct comm *comm, int exit_code);
/* This rank cannot go on, and the others do not know: whatever waits for others ends now, on every
 * lane. With threads that is on all ranks; a process ends the others when it calls comm_abort, as
 * is_lost says. The rank that fails first has the reason: it gets `error` back with its text;
 * another one ERR_UNAVAILABLE without any, and so does a rank that has only lost others. Any
 * thread. */
int comm_fail(struct comm *world, int error);

#define COMM_TEXT_OF(x) #x
#define COMM_TEXT(x) COMM_TEXT_OF(x)
#define COMM_CALL(comm, ...) \
    comm_run(comm, &(struct comm_call){.site = __FILE__ ":" COMM_TEXT(__LINE__), __VA_ARGS__})

#define comm_split(comm, to, by_color, by_key) \
    COMM_CALL(comm, .kind = COMM_SPLIT, .out = (to), .color = (by_color), .key = (by_key))
#define comm_barrier(comm) COMM_CALL(comm, .kind = COMM_BARRIER)
#define comm_broadcast(comm, data, size, root) \
    COMM_CALL(comm, .kind = COMM_BROADCAST, .recv = (data), .bytes = (size), .peer = (root))
#define comm_all_gather_v(comm, from, from_bytes, to, to_bytes, to_at)                            \
    COMM_CALL(comm, .kind = COMM_ALL_GATHER, .send = (from), .bytes = (from_bytes), .recv = (to), \
              .recv_bytes = (to_bytes), .recv_at = (to_at))
#define comm_all_to_all_v(comm, from, from_bytes, from_at, to, to_bytes, to_at)          \
    COMM_CALL(comm, .kind = COMM_ALL_TO_ALL, .send = (from), .send_bytes = (from_bytes), \
              .send_at = (from_at), .recv = (to), .recv_bytes = (to_bytes), .recv_at = (to_at))
/* Sums in place. */
#define comm_all_reduce_i64(comm, data, count) \
    COMM_CALL(comm, .kind = COMM_SUM_I64, .recv = (data), .bytes = (count) * sizeof(int64_t))
#define comm_all_reduce_floats(comm, data, count, size) /* fast mode */                 \
    COMM_CALL(comm, .kind = COMM_SUM_FLOATS, .recv = (data), .bytes = (count) * (size), \
              .element = (size))
/* to[of[rank]] = sum over ranks of their from[sum(of)] part; fast mode */
#define comm_reduce_scatter_floats(comm, from, to, of, size)                                   \
    COMM_CALL(comm, .kind = COMM_REDUCE_SCATTER, .send = (from), .recv = (to), .counts = (of), \
              .element = (size))
/* Posts and returns: data stay untouched until wait, which returns when they may be changed. */
#define comm_send(comm, to, by_tag, data, size, of)                                   \
    COMM_CALL(comm, .kind = COMM_SEND, .peer = (to), .tag = (by_tag), .send = (data), \
              .bytes = (size), .request = (of))
#define comm_receive(comm, from, by_tag, data, size)                                       \
    COMM_CALL(comm, .kind = COMM_RECEIVE, .peer = (from), .tag = (by_tag), .recv = (data), \
              .bytes = (size))
/* By another thread than the one that uses the communicator, whose device lane and name follow. */
#define comm_receive_on(comm, from, by_tag, data, size, on, name)                          \
    COMM_CALL(comm, .kind = COMM_RECEIVE, .peer = (from), .tag = (by_tag), .recv = (data), \
              .bytes = (size), .device_lane = (on), .lane = (name))
#define comm_wait(comm, of) COMM_CALL(comm, .kind = COMM_WAIT, .request = (of))

#endif
