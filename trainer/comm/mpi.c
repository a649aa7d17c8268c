/* comm_mpi.c - ranks are processes under mpirun or another MPI launcher. The only file that knows
 * MPI.
 *
 * MPI counts are int. Byte counts that fit are passed as bytes; larger ones as units of 64 bytes,
 * which takes collectives to 128 GiB per rank pair list; such counts must be multiples of 64 (all
 * of the trainer's are), else the call is refused. Simple collectives are cut into pieces of 1 GiB.
 *
 * Errors are returned, not fatal (MPI_ERRORS_RETURN), and become ERR_UNAVAILABLE. What a lost peer
 * does is up to the launcher: Open MPI's mpirun ends every rank when one dies. */
#include "proto/report.h"
#include "trainer/comm/comm.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

#define MPI_PIECE_BYTES ((size_t)1 << 30)
#define MPI_UNIT_BYTES ((size_t)64)

struct mpi {
    struct comm base;
    MPI_Comm comm;
    MPI_Datatype unit; /* MPI_UNIT_BYTES bytes */
    struct mpi *world; /* itself for the world */
    int *counts;       /* room for four lists of `size` */
};

static const struct comm_ops mpi_ops;

/* `m` NULL: before there is a world. */
static int check(struct mpi *m, int code, const char *what)
{
    if (code == MPI_SUCCESS)
        return 0;
    if (m != NULL)
        m->world->base.is_lost = true;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    text[length] = 0;
    return report_error(ERR_UNAVAILABLE, "start the run again", "MPI's %s failed: %s", what, text);
}

/* world NULL: this is the world. */
static int wrap(struct comm **out, MPI_Comm comm, struct mpi *world)
{
    struct mpi *m = calloc(1, sizeof(*m));
    int rank = 0, size = 0;
    int rc = check(world, MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "set_errhandler");
    if (rc == 0)
        rc = check(world, MPI_Comm_rank(comm, &rank), "comm_rank");
    if (rc == 0)
        rc = check(world, MPI_Comm_size(comm, &size), "comm_size");
    if (m != NULL)
        m->counts = calloc(4 * (size_t)size + 1, sizeof(int));
    if (rc == 0 && (m == NULL || m->counts == NULL))
        rc = report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    if (rc != 0) {
        free(m != NULL ? m->counts : NULL);
        free(m);
        return rc;
    }
    m->base = (struct comm){.ops = &mpi_ops, .rank = (uint32_t)rank, .size = (uint32_t)size};
    m->comm = comm;
    m->world = world != NULL ? world : m;
    m->unit = world != NULL ? world->unit : MPI_DATATYPE_NULL;
    *out = &m->base;
    return 0;
}

int comm_mpi_open(struct comm **out)
{
    int provided = 0;
    ERR_TRY(check(NULL, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "init"));
    if (provided < MPI_THREAD_FUNNELED)
        return report_error(ERR_INVALID, "use an MPI library built with threads",
                            "MPI cannot run beside threads");
    ERR_TRY(wrap(out, MPI_COMM_WORLD, NULL));
    struct mpi *m = (struct mpi *)*out;
    ERR_TRY(check(m, MPI_Type_contiguous((int)MPI_UNIT_BYTES, MPI_BYTE, &m->unit), "type"));
    return check(m, MPI_Type_commit(&m->unit), "type_commit");
}

static int mpi_split(struct comm *comm, struct comm **out, uint32_t color, uint32_t key)
{
    struct mpi *m = (struct mpi *)comm;
    MPI_Comm child;
    CHECK(color <= INT_MAX && key <= INT_MAX);
    ERR_TRY(check(m, MPI_Comm_split(m->comm, (int)color, (int)key, &child), "comm_split"));
    return wrap(out, child, m->world);
}

static void mpi_free(struct comm *comm)
{
    struct mpi *m = (struct mpi *)comm;
    if (m == NULL)
        return;
    if (m->world == m) {
        MPI_Type_free(&m->unit);
        MPI_Finalize();
    } else {
        MPI_Comm_free(&m->comm);
    }
    free(m->counts);
    free(m);
}

static int mpi_barrier(struct comm *comm)
{
    struct mpi *m = (struct mpi *)comm;
    return check(m, MPI_Barrier(m->comm), "barrier");
}

static int mpi_broadcast(struct comm *comm, void *data, size_t bytes, uint32_t root)
{
    struct mpi *m = (struct mpi *)comm;
    for (size_t at = 0; at < bytes; at += MPI_PIECE_BYTES) {
        size_t piece = bytes - at < MPI_PIECE_BYTES ? bytes - at : MPI_PIECE_BYTES;
        ERR_TRY(check(m, MPI_Bcast((char *)data + at, (int)piece, MPI_BYTE, (int)root, m->comm),
                      "broadcast"));
    }
    return 0;
}

/* Byte lists as int lists: in bytes when all fit, else in units. Ranks may choose differently,
 * since MPI matches the sequence of bytes, not the type that names it. */
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

static int mpi_all_gather_v(struct comm *comm, const void *send, size_t send_bytes, void *recv,
                            const size_t *recv_bytes, const size_t *recv_at)
{
    struct mpi *m = (struct mpi *)comm;
    CHECK(send_bytes == recv_bytes[comm->rank]);
    int *counts = m->counts, *at = m->counts + comm->size;
    MPI_Datatype type;
    ERR_TRY(lists_as_int(m, counts, at, &type, recv_bytes, recv_at));
    return check(m, MPI_Allgatherv(send, counts[comm->rank], type, recv, counts, at, type, m->comm),
                 "all_gather");
}

static int mpi_all_to_all_v(struct comm *comm, const void *send, const size_t *send_bytes,
                            const size_t *send_at, void *recv, const size_t *recv_bytes,
                            const size_t *recv_at)
{
    struct mpi *m = (struct mpi *)comm;
    int *send_counts = m->counts, *send_starts = m->counts + comm->size;
    int *recv_counts = m->counts + 2 * comm->size, *recv_starts = m->counts + 3 * comm->size;
    MPI_Datatype send_type, recv_type;
    ERR_TRY(lists_as_int(m, send_counts, send_starts, &send_type, send_bytes, send_at));
    ERR_TRY(lists_as_int(m, recv_counts, recv_starts, &recv_type, recv_bytes, recv_at));
    return check(m,
                 MPI_Alltoallv(send, send_counts, send_starts, send_type, recv, recv_counts,
                               recv_starts, recv_type, m->comm),
                 "all_to_all");
}

static int all_reduce(struct mpi *m, char *data, size_t count, size_t width, MPI_Datatype type)
{
    size_t step = MPI_PIECE_BYTES / width;
    for (size_t at = 0; at < count; at += step) {
        size_t piece = count - at < step ? count - at : step;
        ERR_TRY(check(
            m, MPI_Allreduce(MPI_IN_PLACE, data + at * width, (int)piece, type, MPI_SUM, m->comm),
            "all_reduce"));
    }
    return 0;
}

static int mpi_all_reduce_i64(struct comm *comm, int64_t *data, size_t count)
{
    return all_reduce((struct mpi *)comm, (char *)data, count, sizeof(*data), MPI_INT64_T);
}

static int mpi_all_reduce_f32(struct comm *comm, float *data, size_t count)
{
    return all_reduce((struct mpi *)comm, (char *)data, count, sizeof(*data), MPI_FLOAT);
}

static int mpi_reduce_scatter_f32(struct comm *comm, const float *send, float *recv,
                                  const size_t *counts)
{
    struct mpi *m = (struct mpi *)comm;
    size_t total = 0;
    for (uint32_t i = 0; i < comm->size; i++) {
        total += counts[i];
        m->counts[i] = (int)counts[i];
    }
    if (total > INT_MAX)
        return report_error(ERR_INVALID, "set training.reduction to canonical",
                            "a reduce-scatter of %zu floats does not fit MPI's counts", total);
    return check(m, MPI_Reduce_scatter(send, recv, m->counts, MPI_FLOAT, MPI_SUM, m->comm),
                 "reduce_scatter");
}

_Static_assert(sizeof(MPI_Request) <= sizeof(struct comm_request), "a request fits");

static int check_bytes(size_t bytes)
{
    if (bytes <= INT_MAX)
        return 0;
    return report_error(ERR_INVALID, "use a smaller training.local_batch_size or seq_len",
                        "a message of %zu bytes does not fit MPI's counts", bytes);
}

static int mpi_send(struct comm *comm, uint32_t peer, int tag, const void *data, size_t bytes,
                    struct comm_request *request)
{
    struct mpi *m = (struct mpi *)comm;
    ERR_TRY(check_bytes(bytes));
    return check(m,
                 MPI_Isend(data, (int)bytes, MPI_BYTE, (int)peer, tag, m->comm,
                           (MPI_Request *)(void *)request),
                 "isend");
}

static int mpi_receive(struct comm *comm, uint32_t peer, int tag, void *data, size_t bytes)
{
    struct mpi *m = (struct mpi *)comm;
    ERR_TRY(check_bytes(bytes));
    return check(m,
                 MPI_Recv(data, (int)bytes, MPI_BYTE, (int)peer, tag, m->comm, MPI_STATUS_IGNORE),
                 "recv");
}

static int mpi_wait(struct comm *comm, struct comm_request *request)
{
    return check((struct mpi *)comm, MPI_Wait((MPI_Request *)(void *)request, MPI_STATUS_IGNORE),
                 "wait");
}

static void mpi_abort(struct comm *comm, int exit_code)
{
    MPI_Abort(((struct mpi *)comm)->comm, exit_code);
}

static const struct comm_ops mpi_ops = {
    .name = "mpi",
    .split = mpi_split,
    .free = mpi_free,
    .barrier = mpi_barrier,
    .broadcast = mpi_broadcast,
    .all_gather_v = mpi_all_gather_v,
    .all_to_all_v = mpi_all_to_all_v,
    .all_reduce_i64 = mpi_all_reduce_i64,
    .all_reduce_f32 = mpi_all_reduce_f32,
    .reduce_scatter_f32 = mpi_reduce_scatter_f32,
    .send = mpi_send,
    .receive = mpi_receive,
    .wait = mpi_wait,
    .abort = mpi_abort,
};
