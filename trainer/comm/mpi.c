/* mpi.c - ranks are processes under mpirun or another MPI launcher. Only this file uses MPI.
 *
 * MPI counts are int. Byte counts that fit are passed as bytes; larger ones as units of 64 bytes,
 * which takes collectives to 128 GiB per rank pair list; such counts must be multiples of 64 (all
 * of the trainer's are), else the call is refused. Simple collectives are cut into pieces of 1 GiB.
 *
 * Each lane calls from its thread, under a lock: one thread at a time is in MPI, and none waits
 * there. A call that has to wait is started, then tested until it has ended (finish). So no lane
 * blocks another. If only the first thread may call MPI, no lane runs beside compute; a warning
 * says so.
 *
 * Errors are returned, not fatal (MPI_ERRORS_RETURN), and become ERR_UNAVAILABLE. The launcher
 * handles a lost peer: Open MPI's mpirun ends every rank when one dies. When the world is lost, by
 * an error or by comm_fail, all waits of this rank end; those of other ranks end when it aborts. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/private.h"

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>

#define MPI_PIECE_BYTES ((size_t)1 << 30)
#define MPI_UNIT_BYTES ((size_t)64)
#define CHECKED_CALLS 256u
#define ASK_AGAIN 20u      /* tests without a pause */
#define ASK_EVERY_NS 50000 /* then a test each */

struct mpi {
    struct comm base;
    MPI_Comm comm;
    MPI_Datatype unit; /* MPI_UNIT_BYTES bytes */
    MPI_Op narrow_sum; /* adds bf16 numbers, which MPI does not support */
    struct mpi *world; /* itself for the world */
    int *counts;       /* room for four lists of `size` numbers */
};

static pthread_mutex_t within = PTHREAD_MUTEX_INITIALIZER;

static void lock_mpi(void)
{
    pthread_mutex_lock(&within);
}

/* `m` NULL: there is no world yet. */
static int unlock_mpi(struct mpi *m, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code != MPI_SUCCESS && MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    if (code != MPI_SUCCESS && m != NULL)
        m->world->base.is_lost = true;
    pthread_mutex_unlock(&within);
    if (code == MPI_SUCCESS)
        return 0;
    text[length] = 0;
    return report_error(ERR_UNAVAILABLE, "start the run again", "MPI's %s failed: %s", what, text);
}

/* Makes a call of MPI; one thread at a time. */
#define IN_MPI(m, call, what) (lock_mpi(), unlock_mpi(m, call, what))

/* world NULL: this is the world. */
static int wrap(struct comm **out, MPI_Comm comm, struct mpi *world, const struct comm_ops *ops)
{
    struct mpi *m = calloc(1, sizeof(*m));
    int rank = 0, size = 0;
    int rc = IN_MPI(world, MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "set_errhandler");
    if (rc == 0)
        rc = IN_MPI(world, MPI_Comm_rank(comm, &rank), "comm_rank");
    if (rc == 0)
        rc = IN_MPI(world, MPI_Comm_size(comm, &size), "comm_size");
    if (m != NULL)
        m->counts = calloc(4 * (size_t)size + 1, sizeof(int));
    if (rc == 0 && (m == NULL || m->counts == NULL))
        rc = report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    if (rc != 0) {
        free(m != NULL ? m->counts : NULL);
        free(m);
        return rc;
    }
    m->base = comm_base(ops, (uint32_t)rank, (uint32_t)size,
                        world != NULL ? world->base.flight : flight_new((uint32_t)rank));
    m->comm = comm;
    m->world = world != NULL ? world : m;
    m->unit = world != NULL ? world->unit : MPI_DATATYPE_NULL;
    m->narrow_sum = world != NULL ? world->narrow_sum : MPI_OP_NULL;
    *out = &m->base;
    return 0;
}

static int mpi_split(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    MPI_Comm child;
    CHECK(call->color <= INT_MAX && call->key <= INT_MAX);
    ERR_TRY(
        IN_MPI(m, MPI_Comm_split(m->comm, (int)call->color, (int)call->key, &child), "comm_split"));
    return wrap(call->out, child, m->world, comm->ops);
}

static void mpi_free(struct comm *comm)
{
    struct mpi *m = (struct mpi *)comm;
    if (m == NULL)
        return;
    if (m->world == m) {
        MPI_Type_free(&m->unit);
        MPI_Op_free(&m->narrow_sum);
        MPI_Finalize();
        flight_free(m->base.flight);
    } else {
        MPI_Comm_free(&m->comm);
    }
    free(m->counts);
    free(m);
}

/* ---- waiting ---- */

/* Marks the world as lost if `is_lost`. Returns whether it was lost before. */
static bool mark_lost(struct mpi *m, bool is_lost)
{
    lock_mpi();
    bool was_lost = m->world->base.is_lost;
    m->world->base.is_lost = was_lost || is_lost;
    pthread_mutex_unlock(&within);
    return was_lost;
}

/* Waits until a request has ended: tests it a few times, then sleeps between tests so that compute
 * gets the processor. It does not call sched_yield() in a loop, as MPI does: that keeps every other
 * process of the machine from running for up to minutes (seen with Linux 6.18). */
static int finish(struct mpi *m, const struct comm_call *call, MPI_Request *request)
{
    struct timespec deadline = flight_deadline(m->base.flight);
    int is_done = 0;
    for (uint32_t i = 0; !is_done; i++) {
        ERR_TRY(
            IN_MPI(m, MPI_Test(request, &is_done, MPI_STATUS_IGNORE), comm_kind_name(call->kind)));
        if (is_done || i < ASK_AGAIN)
            continue;
        clock_sleep_ns(ASK_EVERY_NS);
        bool is_late = deadline.tv_sec != 0 && clock_ms() / 1000 > deadline.tv_sec;
        if (mark_lost(m, is_late)) {
            report_clear(); /* another lane has the reason */
            return ERR_UNAVAILABLE;
        }
        if (is_late)
            return comm_late(&m->base, call);
    }
    return 0;
}

/* ---- collectives ---- */

static int mpi_barrier(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    MPI_Request request;
    ERR_TRY(IN_MPI(m, MPI_Ibarrier(m->comm, &request), "barrier"));
    return finish(m, call, &request);
}

static int mpi_broadcast(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    for (size_t at = 0; at < call->bytes; at += MPI_PIECE_BYTES) {
        size_t left = call->bytes - at, piece = left < MPI_PIECE_BYTES ? left : MPI_PIECE_BYTES;
        MPI_Request request;
        ERR_TRY(IN_MPI(m,
                       MPI_Ibcast((char *)call->recv + at, (int)piece, MPI_BYTE, (int)call->peer,
                                  m->comm, &request),
                       "broadcast"));
        ERR_TRY(finish(m, call, &request));
    }
    return 0;
}

/* Byte lists as int lists: in bytes if all fit, else in units. Ranks may choose differently, since
 * MPI matches the sequence of bytes, not the name of the type. */
static int lists_as_int(struct mpi *m, int *out_counts, int *out_at, MPI_Datatype *out_type,
                        const size_t *bytes, const size_t *at)
{
    size_t largest = 0, total = 0, bits = 0;
    for (uint32_t i = 0; i < m->base.size; i++) {
        size_t end = at[i] + bytes[i];
        largest = end > largest ? end : largest;
        total += bytes[i];
        bits |= at[i] | bytes[i];
    }
    largest = total > largest ? total : largest;
    size_t unit = largest <= INT_MAX ? 1 : MPI_UNIT_BYTES;
    if (unit > 1 && (bits % unit != 0 || largest / unit > INT_MAX))
        return report_error(ERR_INVALID,
                            "use more ranks, or tensors whose rows are 64-byte multiples",
                            "an exchange of %zu bytes does not fit MPI's counts", largest);
    *out_type = unit == 1 ? MPI_BYTE : m->unit;
    for (uint32_t i = 0; i < m->base.size; i++) {
        out_counts[i] = (int)(bytes[i] / unit);
        out_at[i] = (int)(at[i] / unit);
    }
    return 0;
}

static int mpi_all_gather(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    CHECK(call->bytes == call->recv_bytes[comm->rank]);
    int *counts = m->counts, *at = m->counts + comm->size;
    MPI_Datatype type;
    MPI_Request request;
    ERR_TRY(lists_as_int(m, counts, at, &type, call->recv_bytes, call->recv_at));
    ERR_TRY(IN_MPI(m,
                   MPI_Iallgatherv(call->send, counts[comm->rank], type, call->recv, counts, at,
                                   type, m->comm, &request),
                   "all_gather"));
    return finish(m, call, &request);
}

static int mpi_all_to_all(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    int *send_counts = m->counts, *send_starts = m->counts + comm->size;
    int *recv_counts = m->counts + 2 * comm->size, *recv_starts = m->counts + 3 * comm->size;
    MPI_Datatype send_type, recv_type;
    MPI_Request request;
    ERR_TRY(lists_as_int(m, send_counts, send_starts, &send_type, call->send_bytes, call->send_at));
    ERR_TRY(lists_as_int(m, recv_counts, recv_starts, &recv_type, call->recv_bytes, call->recv_at));
    ERR_TRY(IN_MPI(m,
                   MPI_Ialltoallv(call->send, send_counts, send_starts, send_type, call->recv,
                                  recv_counts, recv_starts, recv_type, m->comm, &request),
                   "all_to_all"));
    return finish(m, call, &request);
}

/* to += from, in bf16. */
static void add_narrow(void *from, void *to, int *count, MPI_Datatype *type)
{
    const size_t width = sizeof(uint16_t);
    (void)type;
    for (size_t i = 0; i < (size_t)*count; i++)
        comm_put_number(to, i, comm_number_at(to, i, width) + comm_number_at(from, i, width),
                        width);
}

static int all_reduce(struct mpi *m, const struct comm_call *call, size_t width, MPI_Datatype type,
                      MPI_Op op)
{
    size_t step = MPI_PIECE_BYTES / width, count = call->bytes / width;
    for (size_t at = 0; at < count; at += step) {
        size_t piece = count - at < step ? count - at : step;
        MPI_Request request;
        ERR_TRY(IN_MPI(m,
                       MPI_Iallreduce(MPI_IN_PLACE, (char *)call->recv + at * width, (int)piece,
                                      type, op, m->comm, &request),
                       "all_reduce"));
        ERR_TRY(finish(m, call, &request));
    }
    return 0;
}

static int mpi_sum_i64(struct comm *comm, const struct comm_call *call)
{
    return all_reduce((struct mpi *)comm, call, sizeof(int64_t), MPI_INT64_T, MPI_SUM);
}

static bool is_narrow(const struct comm_call *call)
{
    return call->element == sizeof(uint16_t);
}

static int mpi_sum_floats(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    return all_reduce(m, call, call->element, is_narrow(call) ? MPI_UINT16_T : MPI_FLOAT,
                      is_narrow(call) ? m->narrow_sum : MPI_SUM);
}

static int mpi_reduce_scatter(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    size_t total = 0;
    MPI_Request request;
    for (uint32_t i = 0; i < comm->size; i++) {
        total += call->counts[i];
        m->counts[i] = (int)call->counts[i];
    }
    if (total > INT_MAX)
        return report_error(ERR_INVALID, "set training.reduction to canonical",
                            "a reduce-scatter of %zu numbers does not fit MPI's counts", total);
    ERR_TRY(
        IN_MPI(m,
               MPI_Ireduce_scatter(call->send, call->recv, m->counts,
                                   is_narrow(call) ? MPI_UINT16_T : MPI_FLOAT,
                                   is_narrow(call) ? m->narrow_sum : MPI_SUM, m->comm, &request),
               "reduce_scatter"));
    return finish(m, call, &request);
}

/* ---- point to point ---- */

_Static_assert(sizeof(MPI_Request) <= offsetof(struct comm_request, record), "a request fits");

static int check_bytes(size_t bytes)
{
    if (bytes <= INT_MAX)
        return 0;
    return report_error(ERR_INVALID, "use a smaller training.local_batch_size or seq_len",
                        "a message of %zu bytes does not fit MPI's counts", bytes);
}

static int mpi_send(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    ERR_TRY(check_bytes(call->bytes));
    return IN_MPI(m,
                  MPI_Isend(call->send, (int)call->bytes, MPI_BYTE, (int)call->peer, call->tag,
                            m->comm, (MPI_Request *)(void *)call->request),
                  "isend");
}

static int mpi_receive(struct comm *comm, const struct comm_call *call)
{
    struct mpi *m = (struct mpi *)comm;
    MPI_Request request;
    ERR_TRY(check_bytes(call->bytes));
    ERR_TRY(IN_MPI(m,
                   MPI_Irecv(call->recv, (int)call->bytes, MPI_BYTE, (int)call->peer, call->tag,
                             m->comm, &request),
                   "irecv"));
    return finish(m, call, &request);
}

static int mpi_wait(struct comm *comm, const struct comm_call *call)
{
    return finish((struct mpi *)comm, call, (MPI_Request *)(void *)call->request);
}

/* ---- comparing the calls of ranks ---- */

/* A program that differs between ranks differs in its first steps. So these are compared: one more
 * small all-gather for each of the first CHECKED_CALLS collectives of a communicator. */
static int compare(struct mpi *m, const struct comm_call *call)
{
    struct comm_sign mine = comm_sign(&m->base, call);
    struct comm_sign *all = calloc(m->base.size, sizeof(*all));
    MPI_Request request;
    if (all == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare a call of %u ranks",
                            m->base.size);
    int rc = IN_MPI(m,
                    MPI_Iallgather(&mine, sizeof(mine), MPI_BYTE, all, sizeof(mine), MPI_BYTE,
                                   m->comm, &request),
                    "all_gather");
    rc = rc == 0 ? finish(m, call, &request) : rc;
    rc = rc == 0 ? comm_compare(&m->base, call, all) : rc;
    free(all);
    return rc;
}

static int mpi_run(struct comm *comm, const struct comm_call *call)
{
    static int (*const runs[NUM_COMM_KINDS])(struct comm *, const struct comm_call *) = {
        [COMM_SPLIT] = mpi_split,
        [COMM_BARRIER] = mpi_barrier,
        [COMM_BROADCAST] = mpi_broadcast,
        [COMM_ALL_GATHER] = mpi_all_gather,
        [COMM_ALL_TO_ALL] = mpi_all_to_all,
        [COMM_SUM_I64] = mpi_sum_i64,
        [COMM_SUM_FLOATS] = mpi_sum_floats,
        [COMM_REDUCE_SCATTER] = mpi_reduce_scatter,
        [COMM_SEND] = mpi_send,
        [COMM_RECEIVE] = mpi_receive,
        [COMM_WAIT] = mpi_wait,
    };
    if (call->kind < COMM_SEND && comm->num_calls < CHECKED_CALLS)
        ERR_TRY(compare((struct mpi *)comm, call));
    return runs[call->kind](comm, call);
}

/* The other ranks learn of it when this rank aborts. */
static bool mpi_fail(struct comm *comm, int error)
{
    (void)error;
    (void)mark_lost((struct mpi *)comm, true);
    return true;
}

static void mpi_abort(struct comm *comm, int exit_code)
{
    lock_mpi();
    MPI_Abort(((struct mpi *)comm)->comm, exit_code);
}

/* ---- the world ---- */

#define MPI_OPS \
    .name = "mpi", .run = mpi_run, .free = mpi_free, .abort = mpi_abort, .fail = mpi_fail
static const struct comm_ops ops_of_any_thread = {MPI_OPS, .flags = COMM_THREADS};
static const struct comm_ops ops_of_one_thread = {MPI_OPS};

int comm_mpi_open(struct comm **out)
{
    int provided = 0;
    ERR_TRY(IN_MPI(NULL, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "init"));
    if (provided < MPI_THREAD_FUNNELED)
        return report_error(ERR_INVALID, "use an MPI library built with support for threads",
                            "the MPI library does not support threads (MPI_THREAD_FUNNELED)");
    bool is_open_to_all = provided >= MPI_THREAD_SERIALIZED;
    ERR_TRY(
        wrap(out, MPI_COMM_WORLD, NULL, is_open_to_all ? &ops_of_any_thread : &ops_of_one_thread));
    if (!is_open_to_all && (*out)->rank == 0)
        log_warn("comm",
                 "MPI allows calls from one thread only (thread level %d, not "
                 "MPI_THREAD_SERIALIZED): a rank does not exchange data while it computes",
                 provided);
    struct mpi *m = (struct mpi *)*out;
    ERR_TRY(IN_MPI(m, MPI_Type_contiguous((int)MPI_UNIT_BYTES, MPI_BYTE, &m->unit), "type"));
    ERR_TRY(IN_MPI(m, MPI_Type_commit(&m->unit), "type_commit"));
    return IN_MPI(m, MPI_Op_create(add_narrow, 1, &m->narrow_sum), "op_create");
}
