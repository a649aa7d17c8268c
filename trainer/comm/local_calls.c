/* local_calls.c - collectives and messages between ranks that are threads (see local.c).
 *
 * In-place sums need no scratch: rank k owns the k-th part of the index range, reads that part of
 * every rank's buffer in rank order and writes the result back into all of them.
 * Sums are in rank order, so this back-end is deterministic in the fast mode too. A message is
 * copied by its receiver, straight from the sender's memory. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/comm/local.h"

#include <errno.h>
#include <string.h>

/* Copies from another rank's buffer to this rank's. */
static void copy_bytes(struct lane *lane, void *to, const void *from, size_t bytes)
{
    if (lane != NULL)
        lane_copy(lane, to, from, bytes);
    else if (bytes > 0)
        memcpy(to, from, bytes);
}

/* ---- collectives ---- */

static int local_barrier(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    ERR_TRY(local_begin(l, call));
    return local_end(l, call);
}

static const struct comm_call *call_of(const struct local *l, uint32_t rank)
{
    return l->group->slots[rank].call;
}

static int local_broadcast(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    CHECK(call->peer < comm->size);
    ERR_TRY(local_begin(l, call));
    if (comm->rank != call->peer)
        copy_bytes(comm->device_lane, call->recv, call_of(l, call->peer)->recv, call->bytes);
    return local_end(l, call);
}

static int local_all_gather(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    ERR_TRY(local_begin(l, call));
    for (uint32_t j = 0; j < comm->size; j++)
        copy_bytes(comm->device_lane, (char *)call->recv + call->recv_at[j], call_of(l, j)->send,
                   call->recv_bytes[j]);
    return local_end(l, call);
}

static int local_all_to_all(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    ERR_TRY(local_begin(l, call));
    for (uint32_t j = 0; j < comm->size; j++) {
        const struct comm_call *other = call_of(l, j);
        if (call->recv_bytes[j] > 0)
            copy_bytes(comm->device_lane, (char *)call->recv + call->recv_at[j],
                       (const char *)other->send + other->send_at[comm->rank], call->recv_bytes[j]);
    }
    return local_end(l, call);
}

/* The part of an index range of `count` that rank `rank` of `size` sums. */
static size_t part_start(size_t count, uint32_t rank, uint32_t size)
{
    return count / size * rank + (rank < count % size ? rank : count % size);
}

static int local_sum_i64(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    size_t count = call->bytes / sizeof(int64_t);
    ERR_TRY(local_begin(l, call));
    size_t end = part_start(count, comm->rank + 1, comm->size);
    for (size_t i = part_start(count, comm->rank, comm->size); i < end; i++) {
        int64_t sum = 0;
        for (uint32_t j = 0; j < comm->size; j++)
            sum += ((const int64_t *)call_of(l, j)->recv)[i];
        for (uint32_t j = 0; j < comm->size; j++)
            ((int64_t *)call_of(l, j)->recv)[i] = sum;
    }
    return local_end(l, call);
}

/* Sums are of float, rounded once; also those of bf16. */
static int local_sum_floats(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    size_t element = call->element, count = call->bytes / element;
    ERR_TRY(local_begin(l, call));
    size_t end = part_start(count, comm->rank + 1, comm->size);
    for (size_t i = part_start(count, comm->rank, comm->size); i < end; i++) {
        float sum = comm_number_at(call_of(l, 0)->recv, i, element);
        for (uint32_t j = 1; j < comm->size; j++)
            sum += comm_number_at(call_of(l, j)->recv, i, element);
        for (uint32_t j = 0; j < comm->size; j++)
            comm_put_number(call_of(l, j)->recv, i, sum, element);
    }
    return local_end(l, call);
}

static int local_reduce_scatter(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    size_t first = 0, count = call->counts[comm->rank];
    for (uint32_t j = 0; j < comm->rank; j++)
        first += call->counts[j];
    ERR_TRY(local_begin(l, call));
    for (size_t i = 0; i < count; i++) {
        float sum = comm_number_at(call_of(l, 0)->send, first + i, call->element);
        for (uint32_t j = 1; j < comm->size; j++)
            sum += comm_number_at(call_of(l, j)->send, first + i, call->element);
        comm_put_number(call->recv, i, sum, call->element);
    }
    return local_end(l, call);
}

/* ---- point to point ---- */

static int local_send(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    struct group *group = l->group;
    struct message *message = (struct message *)call->request, **last = &group->messages;
    CHECK(call->peer < comm->size && call->peer != comm->rank);
    ERR_TRY(local_settle(comm->device_lane));
    *message = (struct message){.data = call->send,
                                .bytes = call->bytes,
                                .from = comm->rank,
                                .to = call->peer,
                                .tag = call->tag};
    pthread_mutex_lock(&group->world->mutex);
    while (*last != NULL)
        last = &(*last)->next;
    *last = message;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->world->mutex);
    return 0;
}

static struct message *find_message(struct group *group, uint32_t from, uint32_t to, int tag)
{
    struct message *message = group->messages;
    while (message != NULL && (message->state != MESSAGE_POSTED || message->from != from ||
                               message->to != to || message->tag != tag))
        message = message->next;
    return message;
}

static void end_message(struct group *group, struct message *message)
{
    struct message **link = &group->messages;
    while (*link != message)
        link = &(*link)->next;
    *link = message->next;
    message->state = MESSAGE_DONE;
    pthread_cond_broadcast(&group->changed);
}

static int local_receive(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    struct group *group = l->group;
    struct lane *lane = call->lane != NULL ? call->device_lane : comm->device_lane;
    struct timespec deadline = flight_deadline(comm->flight);
    struct message *message;
    bool is_late = false;
    int rc = 0;
    pthread_mutex_lock(&group->world->mutex);
    while ((message = find_message(group, call->peer, comm->rank, call->tag)) == NULL &&
           !local_is_broken(group) && !is_late)
        is_late = local_wait_change(group, &deadline) == ETIMEDOUT;
    if (message == NULL) {
        rc = local_is_broken(group) ? local_lost() : comm_late(&l->base, call);
    } else {
        CHECK(message->bytes == call->bytes);
        message->state = MESSAGE_COPYING;
        pthread_mutex_unlock(&group->world->mutex);
        copy_bytes(lane, call->recv, message->data, call->bytes);
        rc = local_settle(lane);
        pthread_mutex_lock(&group->world->mutex);
        end_message(group, message);
    }
    pthread_mutex_unlock(&group->world->mutex);
    return rc;
}

/* Withdraws a message: its memory belongs to the sender again. */
static void take_back(struct group *group, struct message *message)
{
    while (message->state == MESSAGE_COPYING)
        pthread_cond_wait(&group->changed, &group->world->mutex);
    if (message->state == MESSAGE_POSTED)
        end_message(group, message);
}

static int local_wait(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    struct group *group = l->group;
    struct timespec deadline = flight_deadline(comm->flight);
    struct message *message = (struct message *)call->request;
    bool is_late = false;
    pthread_mutex_lock(&group->world->mutex);
    while (message->state != MESSAGE_DONE && !local_is_broken(group) && !is_late)
        is_late = local_wait_change(group, &deadline) == ETIMEDOUT;
    int rc = message->state == MESSAGE_DONE ? 0
             : local_is_broken(group)       ? local_lost()
                                            : comm_late(&l->base, call);
    if (rc != 0)
        take_back(group, message);
    pthread_mutex_unlock(&group->world->mutex);
    return rc;
}

int local_run(struct comm *comm, const struct comm_call *call)
{
    static int (*const runs[NUM_COMM_KINDS])(struct comm *, const struct comm_call *) = {
        [COMM_SPLIT] = local_split,
        [COMM_BARRIER] = local_barrier,
        [COMM_BROADCAST] = local_broadcast,
        [COMM_ALL_GATHER] = local_all_gather,
        [COMM_ALL_TO_ALL] = local_all_to_all,
        [COMM_SUM_I64] = local_sum_i64,
        [COMM_SUM_FLOATS] = local_sum_floats,
        [COMM_REDUCE_SCATTER] = local_reduce_scatter,
        [COMM_SEND] = local_send,
        [COMM_RECEIVE] = local_receive,
        [COMM_WAIT] = local_wait,
    };
    return runs[call->kind](comm, call);
}
