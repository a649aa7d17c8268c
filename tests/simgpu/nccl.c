/* nccl.c - the part of NCCL that trainer/comm/nccl.c calls, between simulated GPUs.
 *
 * Ranks are threads; with the setting `folder` each is a process (the chapter Processes). The calls
 * of a rank in one group are one operation of its stream. It may run when each rank that it names
 * has the matching operation at the head of its own stream. Then it moves the bytes of both, so
 * that neither continues before they are moved. The n-th send from a rank to another meets the n-th
 * receive there, the n-th all-gather that of each rank, the n-th sum that of each. The operations
 * of one communicator, on any streams, run in the order of the calls.
 *
 * Communicators do not block: the end of a group says ncclInProgress. The group is on its stream
 * only when ncclCommGetAsyncError has been asked some times more (by the seed). A rank's first send
 * to another, and its first receive from it, connect the two: such a group waits until the other
 * has made the matching call.
 *
 * Refused as by NCCL: calls while a group is not on its stream yet, parts outside of a group's
 * ranks, and, as an asynchronous error of both, matching calls of another kind or size. Where two
 * ranks wait for calls that the other never makes, both wait until the caller's time limit.
 * ncclCommAbort drops the queued operations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/report.h"
#include "tests/simgpu/nccl_work.h"
#include "tests/simgpu/private.h"

#define ASKS_MAX 4

static struct world *worlds;
static uint64_t num_ids;
static _Thread_local struct work *open_work; /* of the group that this thread has open */
static _Thread_local int depth;

static bool begins(const char *call)
{
    pthread_mutex_lock(&simgpu.lock);
    simgpu_first_call();
    bool fails = simgpu_fails_locked(call);
    simgpu_unlock();
    return !fails;
}

/* ---- Communicators ---- */

/* Bytes from one process to another: the communicator, the sender, the receiver, the number. */
#define NAME_BYTES 128
static void name_part(char out[NAME_BYTES], const struct ncclComm *comm, const char *what, int from,
                      int to, uint64_t number)
{
    uint64_t id[2];
    memcpy(id, comm->world->id.internal, sizeof(id));
    snprintf(out, NAME_BYTES, "%llu.%llu.%s.%d.%d.%llu", (unsigned long long)id[1],
             (unsigned long long)id[0], what, from, to, (unsigned long long)number);
}

/* Have all said that they are here? */
static bool is_connected(struct ncclComm *comm)
{
    char name[NAME_BYTES];
    for (int r = 0; r < comm->world->size && !comm->is_connected; r++) {
        name_part(name, comm, "here", r, r, 0);
        if (!simgpu_has_part(name))
            return false;
    }
    comm->is_connected = true;
    return true;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    if (!begins(__func__))
        return ncclSystemError;
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&simgpu.lock);
    num_ids++;
    memcpy(out->internal, &num_ids, sizeof(num_ids));
    memcpy(out->internal + sizeof(num_ids), &(uint64_t){(uint64_t)getpid()}, sizeof(uint64_t));
    simgpu_unlock();
    return ncclSuccess;
}

static struct world *world_of(const ncclUniqueId *id, int size)
{
    for (struct world *w = worlds; w != NULL; w = w->next)
        if (memcmp(&w->id, id, sizeof(*id)) == 0)
            return w;
    struct world *w = calloc(1, sizeof(*w));
    CHECK(w != NULL);
    *w = (struct world){.next = worlds, .id = *id, .size = size};
    return worlds = w;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    *out = NULL;
    if (!begins(__func__))
        return ncclSystemError;
    if (size < 1 || size > RANKS_MAX || rank < 0 || rank >= size || config->blocking != 0)
        return ncclInvalidArgument;
    struct ncclComm *comm = calloc(1, sizeof(*comm));
    CHECK(comm != NULL);
    pthread_mutex_lock(&simgpu.lock);
    comm->world = world_of(&id, size);
    comm->rank = rank;
    comm->last = &comm->works;
    bool is_wrong = comm->world->size != size || comm->world->of[rank] != NULL;
    if (!is_wrong) {
        char name[NAME_BYTES];
        comm->world->of[rank] = comm;
        comm->world->joined++;
        name_part(name, comm, "here", rank, rank, 0);
        if (simgpu_has_processes())
            simgpu_post_part(name, "", 0);
    }
    simgpu_unlock();
    if (is_wrong) {
        free(comm);
        return ncclInvalidUsage;
    }
    *out = comm;
    return ncclInProgress;
}

/* The last rank that leaves frees everything: others may still read the queued operations. */
static void leave(struct ncclComm *comm)
{
    struct world *world = comm->world;
    comm->is_aborted = true;
    pthread_cond_broadcast(&simgpu.changed);
    if (++world->left < world->joined)
        return;
    struct world **link = &worlds;
    while (*link != world)
        link = &(*link)->next;
    *link = world->next;
    for (int r = 0; r < world->size; r++) {
        for (struct work *next, *w = world->of[r] ? world->of[r]->works : NULL; w != NULL;
             w = next) {
            next = w->next;
            free(w);
        }
        if (world->of[r] != NULL)
            free(world->of[r]->handed);
        free(world->of[r]);
    }
    free(world);
}

/* Queued operations that have not run are dropped: the streams continue. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&simgpu.lock);
    comm->is_aborted = true;
    for (struct work *w = comm->works; w != NULL; w = w->next)
        if (!w->is_over)
            simgpu_finish(w->stream, w->stream->posted);
    leave(comm);
    simgpu_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    pthread_mutex_lock(&simgpu.lock);
    leave(comm);
    simgpu_unlock();
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSystemError    ? "unhandled system error"
           : result == ncclInvalidUsage ? "invalid usage"
                                        : "an error of NCCL";
}
const char *ncclGetLastError(ncclComm_t comm)
{
    return comm != NULL && comm->error != ncclSuccess ? "ranks do not call the same" : "simulated";
}

/* ---- Work ---- */

/* The part of the peer's group that matches a part; NULL: none. */
static struct part *answer_of(struct work *of, const struct work *work, const struct part *part)
{
    enum part_kind wanted = part->kind == PART_SEND   ? PART_RECV
                            : part->kind == PART_RECV ? PART_SEND
                                                      : part->kind;
    for (uint32_t i = 0; i < of->num; i++)
        if (of->parts[i].kind == wanted && of->parts[i].peer == work->comm->rank &&
            of->parts[i].number == part->number)
            return &of->parts[i];
    return NULL;
}

/* The peer's operation that matches a part; NULL: it has not been queued. */
static struct part *answer(const struct work *work, const struct part *part, struct work **of)
{
    struct part *found = NULL;
    for (struct work *w = work->comm->world->of[part->peer]->works; w != NULL; w = w->next)
        if (!w->is_over && (found = answer_of(w, work, part)) != NULL) {
            *of = w;
            return found;
        }
    return NULL;
}

static bool is_given_up(const struct work *work)
{
    return work->comm->is_aborted || work->comm->error != ncclSuccess;
}

/* The communicator's earlier operation that has not ended; NULL: none. */
static const struct work *earlier(const struct work *work)
{
    const struct work *w = work->comm->works;
    while (w != work && w->is_over)
        w = w->next;
    return w != work ? w : NULL;
}

/* ---- Processes ---- */

static bool has_outgoing(const struct part *part)
{
    return part->kind == PART_SEND || part->kind == PART_GATHER;
}

/* The name of a file for outgoing or incoming bytes. */
static void name_of(char out[NAME_BYTES], const struct work *work, const struct part *part,
                    bool is_outgoing)
{
    int me = work->comm->rank;
    name_part(out, work->comm, part->kind == PART_GATHER ? "gather" : "message",
              is_outgoing ? me : part->peer, is_outgoing ? part->peer : me, part->number);
}

/* This rank's bytes are written once, when its stream reaches them. Sums are not supported between
 * processes. */
static void post_parts(struct work *work)
{
    char name[NAME_BYTES];
    simgpu_open_memory(SIMGPU_ALL_DEVICES);
    for (uint32_t i = 0; i < work->num && !work->is_posted; i++) {
        const struct part *part = &work->parts[i];
        CHECK(part->kind != PART_SUM && part->kind != PART_SCATTER);
        if (part->peer == work->comm->rank || !has_outgoing(part))
            continue;
        name_of(name, work, part, true);
        simgpu_post_part(name, part->from, part->bytes);
    }
    work->is_posted = true;
}

static bool have_come(const struct work *work)
{
    char name[NAME_BYTES];
    for (uint32_t i = 0; i < work->num; i++) {
        name_of(name, work, &work->parts[i], false);
        if (work->parts[i].kind != PART_SEND && work->parts[i].peer != work->comm->rank &&
            !simgpu_has_part(name))
            return false;
    }
    return true;
}

static void take_part(struct work *work, struct part *part)
{
    char name[NAME_BYTES];
    bool is_gather = part->kind == PART_GATHER;
    char *to = part->to + (is_gather ? (size_t)part->peer * part->bytes : 0);
    name_of(name, work, part, false);
    part->is_done = true;
    if (part->peer == work->comm->rank && part->from != to && part->bytes > 0)
        memcpy(to, part->from, part->bytes);
    else if (part->peer != work->comm->rank && !simgpu_take_part(name, to, part->bytes))
        work->comm->error = ncclInvalidUsage;
}

static void run_in_process(struct work *work)
{
    for (uint32_t i = 0; i < work->num && !is_given_up(work); i++)
        if (work->parts[i].kind != PART_SEND)
            take_part(work, &work->parts[i]);
    work->is_over = true;
}

/* ---- Its turn ---- */

static bool work_is_ready(void *args)
{
    struct work *work = *(struct work **)args, *other = NULL;
    if (earlier(work) != NULL && !is_given_up(work))
        return false;
    if (simgpu_has_processes() && !is_given_up(work)) {
        if (!work->is_posted)
            post_parts(work);
        return have_come(work);
    }
    work->has_arrived = true;
    for (uint32_t i = 0; i < work->num && !is_given_up(work); i++) {
        struct part *part = &work->parts[i];
        if (part->is_done || part->peer == work->comm->rank)
            continue;
        struct part *theirs = answer(work, part, &other);
        if (theirs == NULL || !other->has_arrived)
            return false;
        if (theirs->bytes != part->bytes || theirs->root != part->root)
            work->comm->error = other->comm->error = ncclInvalidUsage;
    }
    return true;
}

/* The stream that has to progress before this work may run; NULL: none. */
static void *work_blocker(void *args)
{
    struct work *work = *(struct work **)args, *other = NULL;
    if (earlier(work) != NULL)
        return earlier(work)->stream != work->stream ? earlier(work)->stream : NULL;
    if (simgpu_has_processes())
        return NULL;
    for (uint32_t i = 0; i < work->num; i++) {
        struct part *part = &work->parts[i];
        if (!part->is_done && part->peer != work->comm->rank &&
            answer(work, part, &other) != NULL && !other->has_arrived)
            return other->stream;
    }
    return NULL;
}

static void move(struct part *from, struct part *to, int rank_from)
{
    size_t at = to->kind == PART_GATHER ? (size_t)rank_from * from->bytes : 0;
    if (from->bytes > 0 && from->from != to->to + at)
        memcpy(to->to + at, from->from, from->bytes);
}

static void run_work(void *args)
{
    struct work *work = *(struct work **)args, *other = NULL;
    int me = work->comm->rank;
    if (simgpu_has_processes()) {
        run_in_process(work);
        return;
    }
    for (uint32_t i = 0; i < work->num && !is_given_up(work); i++) {
        struct part *part = &work->parts[i];
        struct part *theirs = part->peer == me ? part : answer(work, part, &other);
        if (part->is_done || theirs == NULL)
            continue;
        if (simgpu_is_sum(part)) {
            simgpu_add_all(work, part);
            continue;
        }
        if (part->kind != PART_SEND)
            move(theirs, part, part->peer);
        if (part->kind != PART_RECV && theirs != part)
            move(part, theirs, me);
        part->is_done = theirs->is_done = true;
    }
    work->is_over = true;
    for (uint32_t i = 0; i < work->num; i++)
        work->is_over = work->is_over && (work->parts[i].is_done || is_given_up(work));
}

/* ---- Groups that are not on their streams yet ---- */

/* True when the other rank has made the call that matches a part. */
static bool is_called(const struct work *work, const struct part *part)
{
    const struct ncclComm *peer = work->comm->world->of[part->peer];
    struct work *of = NULL;
    return answer(work, part, &of) != NULL ||
           (peer->handed != NULL && answer_of(peer->handed, work, part) != NULL);
}

/* The first parts between two ranks connect them, which needs both. Between processes this is not
 * simulated. */
static bool is_met(const struct work *work)
{
    for (uint32_t i = 0; i < work->num && !simgpu_has_processes(); i++) {
        const struct part *part = &work->parts[i];
        if (part->number == 0 && (part->kind == PART_SEND || part->kind == PART_RECV) &&
            part->peer != work->comm->rank && !is_called(work, part))
            return false;
    }
    return true;
}

/* With the lock. The group whose turn it is, and which is in no list yet; NULL: none. */
static struct work *take_handed(struct ncclComm *comm)
{
    struct work *work = comm->handed;
    if (work == NULL || (comm->asks > 0 && --comm->asks > 0) || !is_met(work))
        return NULL;
    comm->handed = NULL;
    *comm->last = work;
    comm->last = &work->next;
    return work;
}

static ncclResult_t queue(struct work *work)
{
    static const struct simgpu_work how = {run_work, work_is_ready, work_blocker,
                                           SIMGPU_ALL_DEVICES};
    return simgpu_queue(work->stream, &how, &work, sizeof(work)) == 0 ? ncclSuccess
                                                                      : ncclUnhandledCudaError;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    if (!begins(__func__))
        return ncclSystemError;
    pthread_mutex_lock(&simgpu.lock);
    bool is_whole =
        simgpu_has_processes() ? is_connected(comm) : comm->world->joined == comm->world->size;
    struct work *work = is_whole ? take_handed(comm) : NULL;
    simgpu_unlock();
    ncclResult_t queued = work != NULL ? queue(work) : ncclSuccess;
    pthread_mutex_lock(&simgpu.lock);
    if (comm->error == ncclSuccess)
        comm->error = queued;
    *out = comm->error;
    if (*out == ncclSuccess && (!is_whole || comm->handed != NULL))
        *out = ncclInProgress;
    simgpu_unlock();
    return ncclSuccess;
}

/* ---- Groups ---- */

ncclResult_t ncclGroupStart(void)
{
    if (!begins(__func__))
        return ncclSystemError;
    depth++;
    return ncclSuccess;
}

/* Its thread will queue it. */
static ncclResult_t hand_over(struct work *work)
{
    pthread_mutex_lock(&simgpu.lock);
    work->comm->handed = work;
    work->comm->asks = 1 + (uint32_t)(simgpu_draw() % ASKS_MAX);
    simgpu_unlock();
    return ncclInProgress;
}

ncclResult_t ncclGroupEnd(void)
{
    struct work *work = open_work;
    bool is_well = begins(__func__);
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    open_work = NULL;
    if (is_well)
        return work != NULL ? hand_over(work) : ncclSuccess;
    free(work);
    return ncclSystemError;
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, struct part part)
{
    if (depth == 0 || part.peer < 0 || part.peer >= comm->world->size || comm->handed != NULL)
        return ncclInvalidArgument;
    if (open_work == NULL) {
        open_work = calloc(1, sizeof(*open_work));
        CHECK(open_work != NULL);
        open_work->comm = comm;
        open_work->stream = stream;
    }
    if (open_work->comm != comm || open_work->stream != stream || open_work->num == PARTS_MAX)
        return ncclInvalidUsage;
    open_work->parts[open_work->num++] = part;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    if (!begins(__func__))
        return ncclSystemError;
    if (type != ncclUint8 || peer < 0 || peer >= comm->world->size)
        return ncclInvalidArgument;
    return add(comm, stream,
               (struct part){.kind = PART_SEND,
                             .peer = peer,
                             .number = comm->sent[peer]++,
                             .from = from,
                             .bytes = count});
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    if (!begins(__func__))
        return ncclSystemError;
    if (type != ncclUint8 || peer < 0 || peer >= comm->world->size)
        return ncclInvalidArgument;
    return add(comm, stream,
               (struct part){.kind = PART_RECV,
                             .peer = peer,
                             .number = comm->received[peer]++,
                             .to = to,
                             .bytes = count});
}

/* A part for each rank, of one call. */
static ncclResult_t add_for_all(const char *call, ncclComm_t comm, cudaStream_t stream,
                                ncclDataType_t type, struct part part)
{
    bool is_wanted =
        simgpu_is_sum(&part) ? type == ncclFloat32 || type == ncclBfloat16 : type == ncclUint8;
    ncclResult_t result = begins(call) ? ncclSuccess : ncclSystemError;
    if (result == ncclSuccess && (!is_wanted || part.root >= comm->world->size))
        result = ncclInvalidArgument;
    for (part.peer = 0; part.peer < comm->world->size && result == ncclSuccess; part.peer++)
        result = add(comm, stream, part);
    return result;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add_for_all(__func__, comm, stream, type,
                       (struct part){.kind = PART_GATHER,
                                     .number = comm->gathered++,
                                     .from = from,
                                     .to = to,
                                     .bytes = count});
}

/* part.bytes: as many numbers. */
static ncclResult_t add_sum(const char *call, ncclComm_t comm, cudaStream_t stream,
                            ncclDataType_t type, ncclRedOp_t op, struct part part)
{
    if (op != ncclSum)
        return ncclInvalidArgument;
    part.number = comm->summed++;
    part.element = type == ncclBfloat16 ? 2 : 4;
    part.bytes *= part.element;
    return add_for_all(call, comm, stream, type, part);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add_sum(
        __func__, comm, stream, type, op,
        (struct part){.kind = PART_SUM, .root = ALL, .from = from, .to = to, .bytes = count});
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return add_sum(
        __func__, comm, stream, type, op,
        (struct part){.kind = PART_SUM, .root = root, .from = from, .to = to, .bytes = count});
}

/* count: of each rank. */
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add_sum(
        __func__, comm, stream, type, op,
        (struct part){.kind = PART_SCATTER, .root = ALL, .from = from, .to = to, .bytes = count});
}
