/* nccl.c - ranks whose GPUs exchange data by NCCL; another communicator connects the ranks first.
 *
 * A communicator here consists of two. The bootstrap's (threads, MPI or TCP) splits groups, moves
 * data in host memory and distributes NCCL's unique id. NCCL's, one for each group, moves data in
 * device memory. Each lane has its groups, so it has its own NCCL communicators.
 *
 * NCCL moves bits: equal, contiguous parts by its all-gather, all others by sends and receives of
 * one group. A rank's own part is a copy on its lane. The trainer's kernels add, except for the
 * sums of floats of the fast reduction, which NCCL makes.
 *
 * A call is queued on the lane's stream. The caller's thread waits: it polls the stream, the
 * communicator's asynchronous error and the deadline. A communicator that timed out or failed is
 * aborted, and every later call of it fails. The first calls of a group are compared between its
 * ranks. Communicators are non-blocking, so their set-up is waited for in the same way.
 *
 * Messages have no tags. The send of an exchange is held until the receive that follows it: both
 * form one group, since each rank's send may wait for the other's receive. A message between stages
 * is queued at once on a separate lane, after the earlier work of the communicator's lane; its wait
 * polls an event. Two ranks that send each other such messages have a communicator for each
 * direction (parallel/channels.c). */
#include "proto/base/clock.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "trainer/comm/private.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/device.h"

#define CHECKED_CALLS 256u
#define ASK_AGAIN 2000u    /* polls without a pause */
#define ASK_EVERY_NS 50000 /* then a poll each */

/* Contents of a send's request. */
struct message {
    struct mark sent; /* on the send lane; first, so that it keeps its event */
    const void *data; /* of a held send of an exchange; NULL: it was queued */
    size_t bytes;
    uint32_t peer;
};

struct nccl {
    struct comm base;
    struct comm *host;     /* the bootstrap's communicator of the same ranks */
    struct nccl *world;    /* itself for the world */
    ncclComm_t comm;       /* NULL: the world's, or aborted */
    size_t *bytes, *at;    /* room for a list of `size` each */
    struct comm_sign *all; /* of each rank, to compare */
    struct lane *sends;    /* for messages between stages; NULL: none so far */
    struct mark ready;     /* on the communicator's lane: the data to send are ready */
    struct message *held;  /* send of an exchange, until its receive; NULL: none */
    uint32_t under_way;    /* messages between stages that are queued and not waited for */
};

_Static_assert(sizeof(struct message) <= sizeof(struct comm_request), "a request holds it");

static int new_nccl(struct comm **out, struct comm *host, struct nccl *world);

/* ---- Errors ---- */

static int failed(struct nccl *n, ncclResult_t result, const struct comm_call *call)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return 0;
    n->world->base.is_lost = true;
    return report_error(ERR_UNAVAILABLE, "start the run again; NCCL_DEBUG=INFO says more",
                        "NCCL: %s in %s at %s: %s", ncclGetErrorString(result),
                        comm_kind_name(call->kind), call->site, ncclGetLastError(n->comm));
}

/* Aborts the communicator and the work queued on it. */
static int give_up(struct nccl *n, int rc)
{
    struct report_text text;
    report_keep(&text);
    n->world->base.is_lost = true;
    if (n->comm != NULL)
        (void)ncclCommAbort(n->comm);
    n->comm = NULL;
    return report_restore(&text, rc);
}

/* 0: continue to wait. */
static int check_wait(struct nccl *n, const struct comm_call *call, const struct timespec *until)
{
    if (until->tv_sec != 0 && clock_ms() / 1000 > until->tv_sec)
        return comm_late(&n->base, call);
    if (n->host->ops->is_failed == NULL || !n->host->ops->is_failed(n->host))
        return 0;
    report_clear(); /* the rank that ended has the reason */
    return ERR_UNAVAILABLE;
}

/* Polls the one that is not NULL. */
static cudaError_t poll_work(cudaStream_t stream, cudaEvent_t event)
{
    return event != NULL    ? cudaEventQuery(event)
           : stream != NULL ? cudaStreamQuery(stream)
                            : cudaSuccess;
}

/* Waits until the communicator is ready and the stream, or the event, is reached. */
static int finish(struct nccl *n, const struct comm_call *call, cudaStream_t stream,
                  cudaEvent_t event)
{
    struct timespec until = flight_deadline(n->base.flight);
    int rc = 0;
    for (uint32_t i = 0; rc == 0; i++) {
        ncclResult_t state = ncclSuccess;
        ncclResult_t asked = ncclCommGetAsyncError(n->comm, &state);
        rc = failed(n, asked != ncclSuccess ? asked : state, call);
        if (rc == 0 && state == ncclSuccess) {
            cudaError_t done = poll_work(stream, event);
            if (done == cudaSuccess)
                return 0;
            (void)cudaGetLastError(); /* CUDA keeps the error, and the next launch fails with it */
            if (done != cudaErrorNotReady)
                rc = report_error(ERR_UNAVAILABLE, "start the run again", "CUDA: %s in %s at %s",
                                  cudaGetErrorString(done), comm_kind_name(call->kind), call->site);
        }
        if (rc == 0 && i >= ASK_AGAIN) {
            clock_sleep_ns(ASK_EVERY_NS);
            rc = check_wait(n, call, &until);
        }
    }
    return give_up(n, rc);
}

/* ---- By the bootstrap ---- */

static int by_host(struct nccl *n, const struct comm_call *call)
{
    int rc = n->host->ops->run(n->host, call);
    n->host->num_calls += call->kind < COMM_SEND;
    return rc;
}

/* Compares the calls of all ranks. */
static int compare(struct nccl *n, const struct comm_call *call)
{
    struct comm_sign mine = comm_sign(&n->base, call);
    for (uint32_t r = 0; r < n->base.size; r++) {
        n->bytes[r] = sizeof(mine);
        n->at[r] = r * sizeof(mine);
    }
    ERR_TRY(by_host(n, &(struct comm_call){.kind = COMM_ALL_GATHER,
                                           .site = call->site,
                                           .mark = call->mark,
                                           .send = &mine,
                                           .bytes = sizeof(mine),
                                           .recv = n->all,
                                           .recv_bytes = n->bytes,
                                           .recv_at = n->at}));
    return comm_compare(&n->base, call, n->all);
}

/* Creates NCCL's communicator of a group: rank 0 makes the id. */
static int connect_ranks(struct nccl *n, const struct comm_call *split)
{
    struct {
        ncclResult_t result;
        ncclUniqueId id;
    } made = {.result = ncclSuccess};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (n->base.rank == 0)
        made.result = ncclGetUniqueId(&made.id);
    ERR_TRY(by_host(
        n, &(struct comm_call){
               .kind = COMM_BROADCAST, .site = split->site, .recv = &made, .bytes = sizeof(made)}));
    ERR_TRY(failed(n, made.result, split));
    ncclResult_t begun =
        ncclCommInitRankConfig(&n->comm, (int)n->base.size, made.id, (int)n->base.rank, &config);
    ERR_TRY(failed(n, begun, split));
    return finish(n, split, NULL, NULL);
}

static int split(struct nccl *n, const struct comm_call *call)
{
    struct comm *host = NULL, *child = NULL;
    struct comm_call same = *call;
    same.out = &host;
    ERR_TRY(by_host(n, &same));
    host->flight = n->base.flight;
    int rc = new_nccl(&child, host, n->world);
    if (rc != 0) {
        host->ops->free(host);
        return rc;
    }
    double began = clock_seconds();
    if (host->size > 1)
        rc = connect_ranks((struct nccl *)child, call);
    n->world->base.connect_seconds += clock_seconds() - began;
    if (rc == 0)
        *call->out = child;
    else
        child->ops->free(child);
    return rc;
}

/* ---- By NCCL ---- */

/* Moves one part for each pair of ranks, this rank's by a copy. Call inside a group. */
static ncclResult_t part(struct nccl *n, cudaStream_t stream, uint32_t peer, const void *send,
                         size_t send_bytes, void *recv, size_t recv_bytes)
{
    ncclResult_t result = ncclSuccess;
    if (peer == n->base.rank) {
        if (recv_bytes > 0 && send != recv)
            lane_copy(n->base.device_lane, recv, send, recv_bytes);
        return ncclSuccess;
    }
    if (send_bytes > 0)
        result = ncclSend(send, send_bytes, ncclUint8, (int)peer, n->comm, stream);
    if (recv_bytes > 0 && result == ncclSuccess)
        result = ncclRecv(recv, recv_bytes, ncclUint8, (int)peer, n->comm, stream);
    return result;
}

static ncclResult_t all_gather(struct nccl *n, const struct comm_call *call, cudaStream_t stream)
{
    const size_t *bytes = call->recv_bytes, *at = call->recv_at;
    ncclResult_t result = ncclSuccess;
    bool is_even = true;
    for (uint32_t r = 0; r < n->base.size; r++)
        is_even = is_even && bytes[r] == bytes[0] && at[r] == at[0] + r * bytes[0];
    if (is_even)
        return ncclAllGather(call->send, (char *)call->recv + at[0], bytes[0], ncclUint8, n->comm,
                             stream);
    for (uint32_t r = 0; r < n->base.size && result == ncclSuccess; r++)
        result = part(n, stream, r, call->send, call->bytes, (char *)call->recv + at[r], bytes[r]);
    return result;
}

static ncclResult_t all_to_all(struct nccl *n, const struct comm_call *call, cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;
    for (uint32_t r = 0; r < n->base.size && result == ncclSuccess; r++)
        result =
            part(n, stream, r, (const char *)call->send + call->send_at[r], call->send_bytes[r],
                 (char *)call->recv + call->recv_at[r], call->recv_bytes[r]);
    return result;
}

static ncclResult_t broadcast(struct nccl *n, const struct comm_call *call, cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;
    if (n->base.rank != call->peer)
        return ncclRecv(call->recv, call->bytes, ncclUint8, (int)call->peer, n->comm, stream);
    for (uint32_t r = 0; r < n->base.size && result == ncclSuccess; r++)
        if (r != call->peer)
            result = ncclSend(call->recv, call->bytes, ncclUint8, (int)r, n->comm, stream);
    return result;
}

static ncclDataType_t type_of(const struct comm_call *call)
{
    return call->element == sizeof(float) ? ncclFloat32 : ncclBfloat16;
}

static ncclResult_t all_reduce(struct nccl *n, const struct comm_call *call, cudaStream_t stream)
{
    return ncclAllReduce(call->recv, call->recv, call->bytes / call->element, type_of(call),
                         ncclSum, n->comm, stream);
}

/* Equal parts at once; other parts each to its rank. */
static ncclResult_t reduce_scatter(struct nccl *n, const struct comm_call *call,
                                   cudaStream_t stream)
{
    const char *part = call->send;
    const size_t *counts = call->counts;
    ncclResult_t result = ncclSuccess;
    bool is_even = true;
    for (uint32_t r = 0; r < n->base.size; r++)
        is_even = is_even && counts[r] == counts[0];
    if (is_even)
        return ncclReduceScatter(part, call->recv, counts[0], type_of(call), ncclSum, n->comm,
                                 stream);
    for (uint32_t r = 0; r < n->base.size && result == ncclSuccess; r++) {
        if (counts[r] > 0)
            result = ncclReduce(part, call->recv, counts[r], type_of(call), ncclSum, (int)r,
                                n->comm, stream);
        part += counts[r] * call->element;
    }
    return result;
}

typedef ncclResult_t move_fn(struct nccl *n, const struct comm_call *call, cudaStream_t stream);
static move_fn *const moves[NUM_COMM_KINDS] = {
    [COMM_BROADCAST] = broadcast,           [COMM_ALL_GATHER] = all_gather,
    [COMM_ALL_TO_ALL] = all_to_all,         [COMM_SUM_FLOATS] = all_reduce,
    [COMM_REDUCE_SCATTER] = reduce_scatter,
};

static int check_comm(const struct nccl *n, const struct comm_call *call)
{
    if (n->comm != NULL)
        return 0;
    return report_error(ERR_UNAVAILABLE, "start the run again",
                        "NCCL: %s at %s was called after the communicator was aborted",
                        comm_kind_name(call->kind), call->site);
}

/* Queues a call as one group on the stream. A thread of NCCL queues it. Until the communicator
 * reports success, its work is not on the stream or its events, and its next call is refused. */
static int queue(struct nccl *n, const struct comm_call *call, move_fn *move, cudaStream_t stream)
{
    ncclResult_t result = ncclGroupStart(), ended;
    if (result == ncclSuccess) {
        result = move(n, call, stream);
        ended = ncclGroupEnd();
        result = result == ncclSuccess ? ended : result;
    }
    int rc = failed(n, result, call);
    return rc != 0 ? give_up(n, rc) : finish(n, call, NULL, NULL);
}

static int by_nccl(struct nccl *n, const struct comm_call *call)
{
    cudaStream_t stream = lane_native(n->base.device_lane);
    ERR_TRY(check_comm(n, call));
    ERR_TRY(lane_settle(n->base.device_lane));
    if (n->base.num_calls < CHECKED_CALLS)
        ERR_TRY(compare(n, call));
    ERR_TRY(queue(n, call, moves[call->kind], stream));
    return finish(n, call, stream, NULL);
}

/* ---- Messages ---- */

static ncclResult_t move_send(struct nccl *n, const struct comm_call *call, cudaStream_t stream)
{
    return ncclSend(call->send, call->bytes, ncclUint8, (int)call->peer, n->comm, stream);
}

/* Together with the held send of an exchange, if there is one. */
static ncclResult_t move_receive(struct nccl *n, const struct comm_call *call, cudaStream_t stream)
{
    const struct message *held = n->held;
    ncclResult_t result = ncclSuccess;
    if (held != NULL)
        result = ncclSend(held->data, held->bytes, ncclUint8, (int)held->peer, n->comm, stream);
    if (result == ncclSuccess)
        result = ncclRecv(call->recv, call->bytes, ncclUint8, (int)call->peer, n->comm, stream);
    return result;
}

static int post_message(struct nccl *n, const struct comm_call *call)
{
    struct message *message = (struct message *)call->request;
    struct lane *lane = n->base.device_lane;
    *message = (struct message){
        .sent = message->sent, .data = call->send, .bytes = call->bytes, .peer = call->peer};
    if (call->tag < COMM_TAG_STAGES) {
        CHECK(n->held == NULL);
        n->held = message;
        return 0;
    }
    message->data = NULL;
    if (n->sends == NULL)
        ERR_TRY(lane_open(&n->sends, lane->device, "send", LANE_COMMUNICATES));
    lane_mark(lane, &n->ready);
    lane_wait(n->sends, &n->ready);
    ERR_TRY(queue(n, call, move_send, lane_native(n->sends)));
    lane_mark(n->sends, &message->sent);
    n->under_way++;
    return 0;
}

static int receive_message(struct nccl *n, const struct comm_call *call)
{
    struct lane *lane = call->lane != NULL ? call->device_lane : n->base.device_lane;
    cudaStream_t stream = lane_native(lane);
    ERR_TRY(queue(n, call, move_receive, stream));
    ERR_TRY(finish(n, call, stream, NULL));
    n->held = NULL;
    return 0;
}

/* The send of an exchange has ended with its receive. */
static int wait_message(struct nccl *n, const struct comm_call *call)
{
    const struct message *message = (const struct message *)call->request;
    if (message->data != NULL)
        return 0;
    ERR_TRY(finish(n, call, NULL, message->sent.event));
    n->under_way--;
    return 0;
}

static int by_message(struct nccl *n, const struct comm_call *call)
{
    ERR_TRY(check_comm(n, call));
    return call->kind == COMM_SEND      ? post_message(n, call)
           : call->kind == COMM_RECEIVE ? receive_message(n, call)
                                        : wait_message(n, call);
}

static int nccl_run(struct comm *comm, const struct comm_call *call)
{
    struct nccl *n = (struct nccl *)comm;
    if (call->kind == COMM_SPLIT)
        return split(n, call);
    bool is_message =
        call->kind == COMM_SEND || call->kind == COMM_RECEIVE || call->kind == COMM_WAIT;
    int rc = comm->device_lane == NULL ? by_host(n, call)
             : is_message              ? by_message(n, call)
             : moves[call->kind]       ? by_nccl(n, call)
                                       : by_host(n, call);
    if (n->world->host->is_lost)
        n->world->base.is_lost = true;
    return rc;
}

/* ---- Life ---- */

static void nccl_free(struct comm *comm)
{
    struct nccl *n = (struct nccl *)comm;
    if (n->comm != NULL && (n->world->base.is_lost || n->under_way > 0))
        (void)ncclCommAbort(n->comm);
    else if (n->comm != NULL)
        (void)ncclCommDestroy(n->comm);
    lane_close(n->sends);
    if (n->world != n) /* its owner frees the world's */
        n->host->ops->free(n->host);
    free(n->bytes);
    free(n->at);
    free(n->all);
    free(n);
}

static void nccl_abort(struct comm *comm, int exit_code)
{
    struct nccl *n = (struct nccl *)comm;
    n->host->ops->abort(n->host, exit_code);
}

static bool nccl_fail(struct comm *comm, int error)
{
    struct nccl *n = (struct nccl *)comm;
    n->world->base.is_lost = true;
    return n->host->ops->fail(n->host, error);
}

static bool nccl_is_failed(struct comm *comm)
{
    struct nccl *n = (struct nccl *)comm;
    return n->host->ops->is_failed != NULL && n->host->ops->is_failed(n->host);
}

#define NCCL_OPS                                                                                \
    .name = "nccl", .run = nccl_run, .free = nccl_free, .abort = nccl_abort, .fail = nccl_fail, \
    .is_failed = nccl_is_failed
#define NCCL_FLAGS (COMM_UNTAGGED | COMM_SUMS_ON_DEVICE)
static const struct comm_ops ops_of_one_thread = {NCCL_OPS, .flags = NCCL_FLAGS};
static const struct comm_ops ops_of_processes = {NCCL_OPS, .flags = COMM_THREADS | NCCL_FLAGS};
static const struct comm_ops ops_of_threads = {NCCL_OPS, .flags = COMM_THREADS | COMM_ONE_MEMORY |
                                                                  NCCL_FLAGS};

static int new_nccl(struct comm **out, struct comm *host, struct nccl *world)
{
    const struct comm_ops *ops = host->ops->flags & COMM_ONE_MEMORY ? &ops_of_threads
                                 : host->ops->flags & COMM_THREADS  ? &ops_of_processes
                                                                    : &ops_of_one_thread;
    struct nccl *n = calloc(1, sizeof(*n));
    if (n != NULL) {
        n->bytes = calloc(host->size, sizeof(*n->bytes));
        n->at = calloc(host->size, sizeof(*n->at));
        n->all = calloc(host->size, sizeof(*n->all));
    }
    if (n == NULL || n->bytes == NULL || n->at == NULL || n->all == NULL) {
        if (n != NULL) {
            free(n->bytes);
            free(n->at);
            free(n->all);
        }
        free(n);
        return report_error(ERR_MEMORY, NULL, "no memory for a communicator of NCCL");
    }
    n->base = comm_base(ops, host->rank, host->size, host->flight);
    n->host = host;
    n->world = world != NULL ? world : n;
    *out = &n->base;
    return 0;
}

int comm_nccl_open(struct comm **out, struct comm *bootstrap)
{
    return new_nccl(out, bootstrap, NULL);
}

/* ---- GPUs that access each other ---- */

#define HOST_BYTES 64u
#define BUS_BYTES 16u
/* The place of a rank's GPU. */
struct gpu_place {
    char host[HOST_BYTES], bus[BUS_BYTES];
};

static cudaError_t find_place(struct gpu_place *out)
{
    int device = 0;
    process_host(out->host, HOST_BYTES);
    cudaError_t error = cudaGetDevice(&device);
    return error != cudaSuccess ? error : cudaDeviceGetPCIBusId(out->bus, BUS_BYTES, device);
}

/* A GPU that is not visible to this process is not checked. */
static bool is_apart(const struct gpu_place *a, const struct gpu_place *b)
{
    int from = 0, to = 0, can = 1;
    bool is_known = strcmp(a->bus, b->bus) != 0 &&
                    cudaDeviceGetByPCIBusId(&from, a->bus) == cudaSuccess &&
                    cudaDeviceGetByPCIBusId(&to, b->bus) == cudaSuccess &&
                    cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess;
    (void)cudaGetLastError(); /* of a GPU that is not visible: must not fail the next call */
    return is_known && can == 0;
}

/* Called on the first rank of a host, for all pairs on it. */
static void warn_of_apart(const struct gpu_place *all, uint32_t size, uint32_t rank)
{
    const struct gpu_place *from = NULL, *to = NULL;
    uint32_t num = 0;
    for (uint32_t a = 0; a < size; a++) {
        bool is_here = strcmp(all[a].host, all[rank].host) == 0;
        if (is_here && a < rank)
            return;
        for (uint32_t b = a + 1; b < size && is_here; b++) {
            if (strcmp(all[b].host, all[a].host) != 0 || !is_apart(&all[a], &all[b]))
                continue;
            from = num == 0 ? &all[a] : from;
            to = num == 0 ? &all[b] : to;
            num++;
        }
    }
    if (num > 0)
        log_warn(
            "comm",
            "GPUs %s and %s of %s cannot read each other's memory (pairs like these: %u): NCCL "
            "copies through the host's memory between them",
            from->bus, to->bus, from->host, num);
}

int comm_nccl_check_peers(struct comm *world)
{
    struct nccl *n = (struct nccl *)world;
    struct gpu_place mine = {0}, *all = calloc(world->size, sizeof(*all));
    if (all == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the places of GPUs");
    (void)find_place(&mine); /* unknown: different from all that are checked */
    for (uint32_t r = 0; r < world->size; r++) {
        n->bytes[r] = sizeof(mine);
        n->at[r] = r * sizeof(mine);
    }
    int rc = by_host(n, &(struct comm_call){.kind = COMM_ALL_GATHER,
                                            .site = "the start",
                                            .send = &mine,
                                            .bytes = sizeof(mine),
                                            .recv = all,
                                            .recv_bytes = n->bytes,
                                            .recv_at = n->at});
    if (rc == 0)
        warn_of_apart(all, world->size, world->rank);
    free(all);
    return rc;
}
