/* comm_local.c - ranks are threads of one process; collectives go through memory.
 *
 * A group of ranks shares one struct group. A collective is the same for all of them:
 *
 *     publish my arguments in my slot -> wait for all -> read from the others' slots -> wait for
 * all
 *
 * The first wait makes every slot visible, the second keeps buffers alive until everyone has read.
 * In-place sums need no scratch: rank k owns the k-th part of the index range, reads that part of
 * every rank's buffer in rank order and writes the result back into all of them.
 *
 * Waiting is on a condition variable (no spinning: ranks may outnumber cores). One mutex guards
 * every field of every group of a world; bulk copies are made outside of it.
 *
 * When a rank ends with an error, every wait of the world returns ERR_UNAVAILABLE, so the others
 * end too; when it ends well, only the groups that it belongs to do. A rank whose second wait is
 * broken off stays until all others have left their copies, because they may still read its
 * buffers.
 *
 * Sums are in rank order, so this back-end is deterministic in the fast mode too. */
#include "proto/report.h"
#include "trainer/comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LOCAL_RANKS_MAX 1024u
#define LOCAL_STACK_BYTES (8u << 20)

/* What a rank shows to the others during one collective. */
struct slot {
    const void *send;
    void *recv;
    const size_t *bytes, *at;
    uint32_t color, key, world_rank;
    struct group *group; /* split: the group that the slot's rank was put in */
};

/* A send on its way, in the caller's request; listed in its group until it is received. */
struct message {
    struct message *next;
    const void *data;
    size_t bytes;
    uint32_t from, to;
    int tag;
    enum { MESSAGE_POSTED, MESSAGE_COPYING, MESSAGE_DONE } state;
};
_Static_assert(sizeof(struct message) <= sizeof(struct comm_request), "a message fits");

struct world;
struct group {
    struct world *world;
    struct group *next; /* in the world's list */
    pthread_cond_t changed;
    uint32_t size, users; /* communicators that still point here */
    uint32_t arrived;     /* at the current wait */
    uint32_t copying;     /* ranks between the two waits */
    uint64_t generation;  /* waits completed */
    bool broken;          /* a member has left */
    struct slot *slots;
    struct message *messages; /* in the order of sending */
};

struct world {
    pthread_mutex_t mutex;
    struct group *groups;
    int (*rank_main)(struct comm *comm, void *user);
    void *user;
    bool failed; /* some rank ended with an error */
    int result;  /* of the rank that failed first; those that only lost a peer count last */
};

struct local {
    struct comm base;
    struct group *group;
    uint32_t world_rank;
};

struct thread {
    struct world *world;
    struct group *group;
    pthread_t id;
    uint32_t rank;
};

static const struct comm_ops local_ops;

/* ---- waiting ---- */

/* The last error stays empty: the rank that ended has the reason. */
static int lost(void)
{
    report_clear();
    return ERR_UNAVAILABLE;
}

static bool is_broken(const struct group *group)
{
    return group->broken || group->world->failed;
}

/* Waits until all ranks of the group are here. The last one to arrive sets `copying` to
 * `copying_next`. */
static int wait_all_locked(struct group *group, uint32_t copying_next)
{
    if (is_broken(group))
        return lost();
    uint64_t generation = group->generation;
    if (++group->arrived == group->size) {
        group->arrived = 0;
        group->copying = copying_next;
        group->generation++;
        pthread_cond_broadcast(&group->changed);
        return 0;
    }
    while (group->generation == generation && !is_broken(group))
        pthread_cond_wait(&group->changed, &group->world->mutex);
    return group->generation != generation ? 0 : lost();
}

static int collective_begin(struct local *l, const struct slot *slot)
{
    struct group *group = l->group;
    pthread_mutex_lock(&group->world->mutex);
    group->slots[l->base.rank] = *slot;
    int rc = wait_all_locked(group, group->size);
    pthread_mutex_unlock(&group->world->mutex);
    return rc;
}

static int collective_end(struct local *l)
{
    struct group *group = l->group;
    pthread_mutex_lock(&group->world->mutex);
    if (--group->copying == 0)
        pthread_cond_broadcast(&group->changed);
    int rc = wait_all_locked(group, 0);
    while (rc != 0 && group->copying > 0)
        pthread_cond_wait(&group->changed, &group->world->mutex);
    pthread_mutex_unlock(&group->world->mutex);
    return rc;
}

/* ---- groups ---- */

static struct group *group_new(struct world *world, uint32_t size)
{
    struct group *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->slots = calloc(size, sizeof(*group->slots));
    if (group->slots == NULL) {
        free(group);
        return NULL;
    }
    group->world = world;
    group->size = group->users = size;
    pthread_cond_init(&group->changed, NULL);
    group->next = world->groups;
    world->groups = group;
    return group;
}

static void group_free(struct group *group)
{
    struct group **link = &group->world->groups;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    pthread_cond_destroy(&group->changed);
    free(group->slots);
    free(group);
}

/* What a rank that leaves has sent is the others' no more, when they are not just copying it. */
static void drop_messages(struct group *group, uint32_t rank)
{
    struct message **link = &group->messages;
    while (*link != NULL) {
        struct message *message = *link;
        if (message->from != rank) {
            link = &message->next;
        } else if (message->state == MESSAGE_COPYING) {
            pthread_cond_wait(&group->changed, &group->world->mutex);
            link = &group->messages;
        } else {
            *link = message->next;
        }
    }
}

static void group_leave(struct group *group, uint32_t rank)
{
    pthread_mutex_lock(&group->world->mutex);
    drop_messages(group, rank);
    group->broken = true;
    pthread_cond_broadcast(&group->changed);
    /* The last one out frees; broken waiters have left their copies before they come here. */
    bool is_last = --group->users == 0;
    struct world *world = group->world;
    if (is_last)
        group_free(group);
    pthread_mutex_unlock(&world->mutex);
}

static void world_fail(struct world *world, int result)
{
    pthread_mutex_lock(&world->mutex);
    if (!world->failed || world->result == ERR_UNAVAILABLE)
        world->result = result;
    world->failed = true;
    for (struct group *group = world->groups; group != NULL; group = group->next)
        pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&world->mutex);
}

/* Rank 0 of the parent makes the groups of all colours; members find theirs in their slot. */
static int split_make_groups(struct group *parent)
{
    int rc = 0;
    pthread_mutex_lock(&parent->world->mutex);
    for (uint32_t i = 0; i < parent->size && rc == 0; i++) {
        struct slot *slots = parent->slots;
        uint32_t count = 0, first = i;
        for (uint32_t j = 0; j < parent->size; j++) {
            if (slots[j].color != slots[i].color)
                continue;
            if (j < first)
                first = j;
            count++;
        }
        if (first == i)
            slots[i].group = group_new(parent->world, count);
        else
            slots[i].group = slots[first].group;
        if (slots[i].group == NULL)
            rc = report_error(ERR_MEMORY, NULL, "no memory for a group of %u ranks", count);
    }
    pthread_mutex_unlock(&parent->world->mutex);
    return rc;
}

static int local_split(struct comm *comm, struct comm **out, uint32_t color, uint32_t key)
{
    struct local *l = (struct local *)comm;
    struct local *child = calloc(1, sizeof(*child));
    if (child == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    struct slot mine = {.color = color, .key = key, .world_rank = l->world_rank};
    int rc = collective_begin(l, &mine);
    if (rc != 0)
        goto fail;
    int made = comm->rank == 0 ? split_make_groups(l->group) : 0;
    rc = collective_end(l);
    /* One more round: the slots now hold the groups. */
    const struct slot *slots = l->group->slots;
    struct slot again = slots[comm->rank];
    if (rc == 0)
        rc = collective_begin(l, &again);
    if (rc != 0)
        goto fail;
    for (uint32_t j = 0; j < comm->size; j++) {
        bool is_before = slots[j].key != key ? slots[j].key < key : j < comm->rank;
        if (slots[j].color == color && is_before)
            child->base.rank++;
    }
    child->group = slots[comm->rank].group;
    child->world_rank = l->world_rank;
    rc = collective_end(l);
    if (made != 0 || rc != 0 || child->group == NULL) {
        rc = made != 0 ? made : rc != 0 ? rc : lost();
        goto fail;
    }
    child->base.ops = &local_ops;
    child->base.size = child->group->size;
    *out = &child->base;
    return 0;
fail:
    free(child);
    return rc;
}

static void local_free(struct comm *comm)
{
    struct local *l = (struct local *)comm;
    if (l == NULL)
        return;
    group_leave(l->group, l->base.rank);
    free(l);
}

/* ---- collectives ---- */

static int local_barrier(struct comm *comm)
{
    struct local *l = (struct local *)comm;
    pthread_mutex_lock(&l->group->world->mutex);
    int rc = wait_all_locked(l->group, 0);
    pthread_mutex_unlock(&l->group->world->mutex);
    return rc;
}

static void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
}

static int local_broadcast(struct comm *comm, void *data, size_t bytes, uint32_t root)
{
    struct local *l = (struct local *)comm;
    CHECK(root < comm->size);
    ERR_TRY(collective_begin(l, &(struct slot){.send = data}));
    if (comm->rank != root)
        copy_bytes(data, l->group->slots[root].send, bytes);
    return collective_end(l);
}

static int local_all_gather_v(struct comm *comm, const void *send, size_t send_bytes, void *recv,
                              const size_t *recv_bytes, const size_t *recv_at)
{
    struct local *l = (struct local *)comm;
    CHECK(send_bytes == recv_bytes[comm->rank]);
    ERR_TRY(collective_begin(l, &(struct slot){.send = send}));
    for (uint32_t j = 0; j < comm->size; j++)
        copy_bytes((char *)recv + recv_at[j], l->group->slots[j].send, recv_bytes[j]);
    return collective_end(l);
}

static int local_all_to_all_v(struct comm *comm, const void *send, const size_t *send_bytes,
                              const size_t *send_at, void *recv, const size_t *recv_bytes,
                              const size_t *recv_at)
{
    struct local *l = (struct local *)comm;
    struct slot mine = {.send = send, .bytes = send_bytes, .at = send_at};
    ERR_TRY(collective_begin(l, &mine));
    for (uint32_t j = 0; j < comm->size; j++) {
        const struct slot *other = &l->group->slots[j];
        CHECK(other->bytes[comm->rank] == recv_bytes[j]);
        if (recv_bytes[j] > 0)
            memcpy((char *)recv + recv_at[j], (const char *)other->send + other->at[comm->rank],
                   recv_bytes[j]);
    }
    return collective_end(l);
}

/* The part of an index range of `count` that rank `rank` of `size` sums. */
static size_t part_start(size_t count, uint32_t rank, uint32_t size)
{
    return count / size * rank + (rank < count % size ? rank : count % size);
}

static int local_all_reduce_i64(struct comm *comm, int64_t *data, size_t count)
{
    struct local *l = (struct local *)comm;
    ERR_TRY(collective_begin(l, &(struct slot){.recv = data}));
    size_t end = part_start(count, comm->rank + 1, comm->size);
    for (size_t i = part_start(count, comm->rank, comm->size); i < end; i++) {
        int64_t sum = 0;
        for (uint32_t j = 0; j < comm->size; j++)
            sum += ((const int64_t *)l->group->slots[j].recv)[i];
        for (uint32_t j = 0; j < comm->size; j++)
            ((int64_t *)l->group->slots[j].recv)[i] = sum;
    }
    return collective_end(l);
}

static int local_all_reduce_f32(struct comm *comm, float *data, size_t count)
{
    struct local *l = (struct local *)comm;
    ERR_TRY(collective_begin(l, &(struct slot){.recv = data}));
    size_t end = part_start(count, comm->rank + 1, comm->size);
    for (size_t i = part_start(count, comm->rank, comm->size); i < end; i++) {
        float sum = ((const float *)l->group->slots[0].recv)[i];
        for (uint32_t j = 1; j < comm->size; j++)
            sum += ((const float *)l->group->slots[j].recv)[i];
        for (uint32_t j = 0; j < comm->size; j++)
            ((float *)l->group->slots[j].recv)[i] = sum;
    }
    return collective_end(l);
}

static int local_reduce_scatter_f32(struct comm *comm, const float *send, float *recv,
                                    const size_t *counts)
{
    struct local *l = (struct local *)comm;
    size_t first = 0, count = counts[comm->rank];
    for (uint32_t j = 0; j < comm->rank; j++)
        first += counts[j];
    ERR_TRY(collective_begin(l, &(struct slot){.send = send}));
    for (uint32_t j = 0; j < comm->size; j++) {
        const float *from = (const float *)l->group->slots[j].send + first;
        for (size_t i = 0; i < count; i++)
            recv[i] = j == 0 ? from[i] : recv[i] + from[i];
    }
    return collective_end(l);
}

/* ---- point to point ---- */

static int local_send(struct comm *comm, uint32_t peer, int tag, const void *data, size_t bytes,
                      struct comm_request *request)
{
    struct local *l = (struct local *)comm;
    struct group *group = l->group;
    struct message *message = (struct message *)request, **last = &group->messages;
    CHECK(peer < comm->size && peer != comm->rank);
    *message =
        (struct message){.data = data, .bytes = bytes, .from = comm->rank, .to = peer, .tag = tag};
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

static int local_receive(struct comm *comm, uint32_t peer, int tag, void *data, size_t bytes)
{
    struct local *l = (struct local *)comm;
    struct group *group = l->group;
    struct message *message;
    int rc = 0;
    pthread_mutex_lock(&group->world->mutex);
    while ((message = find_message(group, peer, comm->rank, tag)) == NULL && !is_broken(group))
        pthread_cond_wait(&group->changed, &group->world->mutex);
    if (message == NULL) {
        rc = lost();
    } else {
        CHECK(message->bytes == bytes);
        message->state = MESSAGE_COPYING;
        pthread_mutex_unlock(&group->world->mutex);
        copy_bytes(data, message->data, bytes);
        pthread_mutex_lock(&group->world->mutex);
        end_message(group, message);
    }
    pthread_mutex_unlock(&group->world->mutex);
    return rc;
}

static int local_wait(struct comm *comm, struct comm_request *request)
{
    struct group *group = ((struct local *)comm)->group;
    const struct message *message = (const struct message *)request;
    pthread_mutex_lock(&group->world->mutex);
    while (message->state != MESSAGE_DONE && !is_broken(group))
        pthread_cond_wait(&group->changed, &group->world->mutex);
    int rc = message->state == MESSAGE_DONE ? 0 : lost();
    pthread_mutex_unlock(&group->world->mutex);
    return rc;
}

static void local_abort(struct comm *comm, int exit_code)
{
    (void)exit_code; /* of threads, the process's exit code is its caller's to choose */
    world_fail(((struct local *)comm)->group->world, ERR_ABORTED);
}

static const struct comm_ops local_ops = {
    .name = "local",
    .split = local_split,
    .free = local_free,
    .barrier = local_barrier,
    .broadcast = local_broadcast,
    .all_gather_v = local_all_gather_v,
    .all_to_all_v = local_all_to_all_v,
    .all_reduce_i64 = local_all_reduce_i64,
    .all_reduce_f32 = local_all_reduce_f32,
    .reduce_scatter_f32 = local_reduce_scatter_f32,
    .send = local_send,
    .receive = local_receive,
    .wait = local_wait,
    .abort = local_abort,
};

/* ---- the world ---- */

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    struct local *l = calloc(1, sizeof(*l));
    if (l == NULL) {
        world_fail(thread->world, report_error(ERR_MEMORY, NULL, "no memory for a communicator"));
        return NULL;
    }
    *l = (struct local){
        .base = {.ops = &local_ops, .rank = thread->rank, .size = thread->group->size},
        .group = thread->group,
        .world_rank = thread->rank};
    int rc = thread->world->rank_main(&l->base, thread->world->user);
    if (rc != 0)
        world_fail(thread->world, rc);
    local_free(&l->base);
    return NULL;
}

/* Starts threads [1, size), runs rank 0 on the caller's, and waits for all. */
static void run_threads(struct world *world, struct thread *threads, uint32_t size)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, LOCAL_STACK_BYTES);
    struct group *group = world->groups;
    uint32_t num_started = 0;
    for (; num_started < size; num_started++) {
        struct thread *thread = &threads[num_started];
        *thread = (struct thread){.world = world, .group = group, .rank = num_started};
        if (num_started > 0 && pthread_create(&thread->id, &attributes, thread_main, thread) != 0)
            break;
    }
    pthread_attr_destroy(&attributes);
    if (num_started == size)
        thread_main(&threads[0]);
    else
        world_fail(world,
                   report_error(ERR_BUSY, "lower comm.ranks", "could not start %u threads", size));
    for (uint32_t rank = 1; rank < num_started; rank++)
        pthread_join(threads[rank].id, NULL);
}

int comm_local_run(uint32_t size, int (*rank_main)(struct comm *comm, void *user), void *user)
{
    if (size < 1 || size > LOCAL_RANKS_MAX)
        return report_error(ERR_INVALID, "set comm.ranks", "%u ranks are not in 1 to %u", size,
                            LOCAL_RANKS_MAX);
    struct world world = {.rank_main = rank_main, .user = user};
    struct thread *threads = calloc(size, sizeof(*threads));
    if (threads == NULL || group_new(&world, size) == NULL) {
        free(threads);
        return report_error(ERR_MEMORY, NULL, "no memory for %u ranks", size);
    }
    pthread_mutex_init(&world.mutex, NULL);
    run_threads(&world, threads, size);
    while (world.groups != NULL) /* of ranks that never ran or did not free theirs */
        group_free(world.groups);
    pthread_mutex_destroy(&world.mutex);
    free(threads);
    return world.result;
}
