/* comm.h - communication between ranks: one interface, several implementations.
 *
 * `local`: ranks are threads of one process and the collectives go through memory. `mpi`: ranks are
 * processes. `nccl`: either of them, or processes that connect over TCP (comm/tcp); data in GPU
 * memory is moved by NCCL. All only move bits, except for two sums: all_reduce_i64 (exact in any
 * order) and the float sums of the fast mode, whose order the library decides (NCCL for GPUs).
 *
 * A communicator spans a group of ranks; split makes sub-groups (the axes of the mesh). Every
 * member calls the same collectives in the same order. Counts and displacements are in bytes,
 * except where `count` is named. Send and receive buffers never overlap. One thread at a time uses
 * a communicator; with COMM_THREADS several threads of a rank may use different ones, and one more
 * may receive messages of any.
 *
 * A call is a value, struct comm_call: the data, and the caller's place in the source. The macros
 * below fill it in; comm_run records it in the rank's flight recorder (flight.h) and passes it to
 * the back-end.
 *
 * Errors: codes of report.h; ERR_UNAVAILABLE when a peer is lost or did not come in time: the
 * caller ends with EXIT_RUN_AGAIN. With `local` the last error is empty when a peer is lost,
 * because the rank that ended has the reason. ERR_MISMATCH names two call sites of ranks with
 * different calls; `mpi` checks the first calls of a communicator (mpi.c). */
#ifndef HOLDFAST_COMM_H
#define HOLDFAST_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct flight;
struct lane;

/* A send under way, owned by the caller until its wait; zero before its first use. */
struct comm_request {
    void *of_backend[8];
    uint64_t record; /* in the flight recorder */
};
/* Tags of messages between two ranks: messages with the same tag are received in the order of
 * sending. */
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
    const char *site; /* file:line of the caller; a constant */
    const void *send;
    void *recv;
    size_t bytes;                       /* that this rank sends, broadcasts, sums or receives */
    const size_t *send_bytes, *send_at; /* per rank: all_to_all */
    const size_t *recv_bytes, *recv_at; /* per rank: all_gather, all_to_all */
    const size_t *counts;               /* per rank: numbers of a reduce_scatter */
    size_t element;                     /* of a sum's floats: 4 bytes, or 2 of bf16 */
    uint32_t peer;                      /* of a message; root of a broadcast */
    int tag;                            /* of a message */
    struct lane *device_lane;           /* of a receive, with `lane`: the lane that makes it */
    const char *lane;                   /* another thread than the communicator's; NULL: that */
    uint32_t color, key;                /* of a split */
    uint32_t group_size;                /* of a split: expected ranks; 0: any */
    struct comm **out;                  /* of a split */
    struct comm_request *request;       /* of a send and its wait */
    const struct flight_mark *mark;     /* set by comm_run: the caller's place in its program */
};

enum comm_flag {
    COMM_THREADS = 1,    /* threads of a rank may use different groups at the same time */
    COMM_ONE_MEMORY = 2, /* ranks are threads of one process */
    /* Messages in device memory have no tags: two ranks of a communicator receive them in the order
     * of sending. Messages with tags below COMM_TAG_STAGES are exchanges: each rank sends, receives
     * and waits, with no other message between. All others go in one direction in a
     * communicator. */
    COMM_UNTAGGED = 4,
    COMM_SUMS_ON_DEVICE = 8 /* sums of floats are in device memory; else in host memory */
};

struct comm_ops {
    const char *name;
    uint32_t flags; /* of enum comm_flag */
    /* Runs one call to its end; a send is only posted. */
    int (*run)(struct comm *comm, const struct comm_call *call);
    void (*free)(struct comm *comm);
    /* Ends all ranks: mpi at once, with this exit code; local at their next collective. */
    void (*abort)(struct comm *comm, int exit_code);
    /* (optional) comm_fail: returns false if another rank failed before this one. NULL: true. */
    bool (*fail)(struct comm *comm, int error);
    /* (optional) True if a rank of the world has ended with an error. For code that waits for other
     * ranks outside of run(). NULL: the launcher ends all ranks. */
    bool (*is_failed)(struct comm *comm);
};

struct comm {
    const struct comm_ops *ops;
    uint32_t rank, size;
    /* World communicator: a collective or this rank (comm_fail) has failed, so only abort() ends
     * all ranks. */
    bool is_lost;
    const char *name;   /* of the group: "world", "dp_shard"; a constant */
    const char *lane;   /* of the thread that uses it; a constant */
    uint64_t num_calls; /* number of collectives so far: the sequence number of the next */
    /* NULL: buffers are in host memory. Otherwise they are in memory of the lane's device, of
     * either kind. Work queued on the lane before a call ends before a buffer is read. Sums of
     * integers are always in host memory, those of floats as COMM_SUMS_ON_DEVICE says. The owner of
     * a group sets it. */
    struct lane *device_lane;
    struct flight *flight;  /* of the rank; all its communicators share it */
    double connect_seconds; /* of a world: time to create the device library's communicators */
};

/* `mpi`: MPI_Init_thread; the world communicator, whose free() is MPI_Finalize. Once per process.
 */
int comm_mpi_open(struct comm **out);
/* `nccl`: a communicator over `bootstrap`, which its owner frees after it. Each rank opens its GPU
 * before it splits. NULL in a program that was built without NCCL's header. */
extern int comm_nccl_open(struct comm **out, struct comm *bootstrap) __attribute__((weak));
/* Call when each rank has opened its GPU: logs one warning for each host whose GPUs cannot access
 * each other's memory. Collective. */
extern int comm_nccl_check_peers(struct comm *world) __attribute__((weak));
/* `local`: runs `rank_main` on `size` threads, each with its communicator, which is freed
 * afterwards. Returns 0 or the result of the rank that failed first; an error with a cause comes
 * before the ERR_UNAVAILABLE that it leads to. */
int comm_local_run(uint32_t size, int (*rank_main)(struct comm *comm, void *user), void *user);

/* `dry`: moves nothing and waits for no rank; for plans. Its flight recorder counts calls
 * (flight_sums). A split has the group_size that the caller gives. ERR_MEMORY. */
int comm_dry_open(struct comm **out, uint32_t rank, uint32_t size);
/* From here on `at` is called for each call of that world and of its splits, on the calling thread.
 * NULL: no calls. */
typedef void comm_dry_call(void *user, const struct comm *comm, const struct comm_call *call);
void comm_dry_watch(struct comm *world, comm_dry_call *at, void *user);

const char *comm_kind_name(enum comm_kind kind);
/* The bytes of this rank's buffers that a call moves, its own part included. */
size_t comm_call_bytes(const struct comm *comm, const struct comm_call *call);

/* The bytes that leave this rank: for each receiver its part; for a sum those of a ring, 2 (n - 1)
 * / n; for a broadcast the root's bytes to each other rank. */
size_t comm_call_sent(const struct comm *comm, const struct comm_call *call);

int comm_run(struct comm *comm, const struct comm_call *call);
void comm_free(struct comm *comm); /* NULL is allowed */
void comm_abort(struct comm *comm, int exit_code);
/* Call when this rank cannot continue and other ranks do not know: all waits for other ranks end at
 * once, on every lane. With threads they end on all ranks; a process ends other ranks when it calls
 * comm_abort, as is_lost says. The rank that fails first has the reason: `error` is returned to it
 * with its text. Others get ERR_UNAVAILABLE without a text, and so does a rank that has only lost
 * others. Any thread. */
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
/* Posts a send and returns. The data must not change before the wait has returned. */
#define comm_send(comm, to, by_tag, data, size, of)                                   \
    COMM_CALL(comm, .kind = COMM_SEND, .peer = (to), .tag = (by_tag), .send = (data), \
              .bytes = (size), .request = (of))
#define comm_receive(comm, from, by_tag, data, size)                                       \
    COMM_CALL(comm, .kind = COMM_RECEIVE, .peer = (from), .tag = (by_tag), .recv = (data), \
              .bytes = (size))
/* A receive by a thread that does not use the communicator otherwise; its device lane and name
 * follow. */
#define comm_receive_on(comm, from, by_tag, data, size, on, name)                          \
    COMM_CALL(comm, .kind = COMM_RECEIVE, .peer = (from), .tag = (by_tag), .recv = (data), \
              .bytes = (size), .device_lane = (on), .lane = (name))
#define comm_wait(comm, of) COMM_CALL(comm, .kind = COMM_WAIT, .request = (of))

#endif
