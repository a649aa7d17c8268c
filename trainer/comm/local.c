/* local.c - ranks are threads of one process; collectives go through memory.
 *
 * This file has the world, its groups and the waits of ranks; local_calls.c has the exchanges. A
 * group of ranks shares one struct group. All collectives have the same form:
 *
 *     publish my arguments in my slot -> wait for all -> read others' slots -> wait for all
 *
 * The first wait makes every slot visible, the second keeps buffers alive until everyone has read.
 *
 * If a communicator has a lane, copies are queued on it, and each wait also waits for the lane.
 *
 * Waiting is on a condition variable (no spinning: ranks may outnumber cores). One mutex guards
 * every field of every group of a world; bulk copies are made outside of it.
 *
 * When a rank ends with an error, or reports one (comm_fail), every wait of the world returns
 * ERR_UNAVAILABLE. So the other ranks end, too, and so do the failed rank's other lanes. When a
 * rank ends without an error, or its wait times out, only the waits in its groups end. A rank whose
 * second wait is aborted stays until all others have finished their copies, because they may still
 * read its buffers. */
#include "trainer/comm/local.h"
#include "kernels/device.h"
#include "proto/base/report.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LOCAL_RANKS_MAX 1024u
#define LOCAL_STACK_BYTES (8u << 20)

struct thread {
    struct world *world;
    struct group *group;
    pthread_t id;
    uint32_t rank;
};

static const struct comm_ops local_ops;

/* ---- waiting ---- */

int local_lost(void)
{
    report_clear();
    return ERR_UNAVAILABLE;
}

bool local_is_broken(const struct group *group)
{
    return group->broken || group->world->failed;
}

int local_wait_change(struct group *group, const struct timespec *deadline)
{
    pthread_mutex_t *mutex = &group->world->mutex;
    if (deadline->tv_sec == 0)
        return pthread_cond_wait(&group->changed, mutex);
    return pthread_cond_timedwait(&group->changed, mutex, deadline);
}

/* Waits until all ranks of the group are here. The last one to arrive sets `copying` to
 * `copying_next`. */
static int wait_all_locked(struct local *l, const struct comm_call *call, uint32_t copying_next)
{
    struct group *group = l->group;
    struct timespec deadline = flight_deadline(l->base.flight);
    if (local_is_broken(group))
        return local_lost();
    uint64_t generation = group->generation;
    if (++group->arrived == group->size) {
        group->arrived = 0;
        group->copying = copying_next;
        group->generation++;
        pthread_cond_broadcast(&group->changed);
        return 0;
    }
    bool is_late = false;
    while (group->generation == generation && !local_is_broken(group) && !is_late)
        is_late = local_wait_change(group, &deadline) == ETIMEDOUT;
    if (group->generation != generation)
        return 0;
    if (local_is_broken(group))
        return local_lost();
    group->broken = true; /* a later rank must not join a call that others have left */
    pthread_cond_broadcast(&group->changed);
    return comm_late(&l->base, call);
}

int local_settle(struct lane *lane)
{
    return lane != NULL ? lane_settle(lane) : 0;
}

int local_end(struct local *l, const struct comm_call *call)
{
    struct group *group = l->group;
    int copied = local_settle(l->base.device_lane);
    pthread_mutex_lock(&group->world->mutex);
    if (--group->copying == 0)
        pthread_cond_broadcast(&group->changed);
    int rc = wait_all_locked(l, call, 0);
    while (rc != 0 && group->copying > 0)
        pthread_cond_wait(&group->changed, &group->world->mutex);
    pthread_mutex_unlock(&group->world->mutex);
    return copied != 0 ? copied : rc;
}

/* True if two ranks make the same collective. */
static bool is_same(const struct comm_call *a, uint32_t rank_a, const struct comm_call *b,
                    uint32_t rank_b)
{
    if (a->kind != b->kind || a->peer != b->peer)
        return false;
    if (a->kind == COMM_ALL_TO_ALL)
        return a->send_bytes[rank_b] == b->recv_bytes[rank_a];
    if (a->kind == COMM_ALL_GATHER)
        return a->bytes == b->recv_bytes[rank_a];
    return a->bytes == b->bytes;
}

int local_begin(struct local *l, const struct comm_call *call)
{
    struct group *group = l->group;
    uint32_t me = l->base.rank;
    ERR_TRY(local_settle(l->base.device_lane));
    pthread_mutex_lock(&group->world->mutex);
    group->slots[me].call = call;
    int rc = wait_all_locked(l, call, group->size);
    pthread_mutex_unlock(&group->world->mutex);
    for (uint32_t j = 0; j < group->size && rc == 0; j++) {
        const struct comm_call *other = group->slots[j].call;
        if (is_same(other, j, call, me) && is_same(call, me, other, j))
            continue;
        char site[COMM_SITE_MAX];
        comm_tell_site(other, site);
        rc = comm_mismatch(&l->base, call, j, other->kind, site);
        local_end(l, call); /* other ranks may still read their calls */
    }
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
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&group->changed, &attributes);
    pthread_condattr_destroy(&attributes);
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

/* Drops messages of a rank that leaves, after copies in progress. */
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
    /* The last rank frees the group; aborted waits have finished their copies before. */
    bool is_last = --group->users == 0;
    struct world *world = group->world;
    if (is_last)
        group_free(group);
    pthread_mutex_unlock(&world->mutex);
}

/* Returns true if this rank is the first. */
static bool world_fail(struct world *world, uint32_t rank, int result)
{
    pthread_mutex_lock(&world->mutex);
    if (!world->failed)
        world->failed_by = rank;
    if (!world->failed || (world->result == ERR_UNAVAILABLE && result != ERR_ABORTED))
        world->result = result;
    world->failed = true;
    for (struct group *group = world->groups; group != NULL; group = group->next)
        pthread_cond_broadcast(&group->changed);
    bool is_first = world->failed_by == rank;
    pthread_mutex_unlock(&world->mutex);
    return is_first;
}

/* Rank 0 of the parent makes the groups of all colours; members find their group in their slot. */
static int split_make_groups(struct group *parent)
{
    int rc = 0;
    pthread_mutex_lock(&parent->world->mutex);
    for (uint32_t i = 0; i < parent->size && rc == 0; i++) {
        struct slot *slots = parent->slots;
        uint32_t count = 0, first = i;
        for (uint32_t j = 0; j < parent->size; j++) {
            if (slots[j].call->color != slots[i].call->color)
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

int local_split(struct comm *comm, const struct comm_call *call)
{
    struct local *l = (struct local *)comm;
    struct local *child = calloc(1, sizeof(*child));
    if (child == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    const struct slot *slots = l->group->slots;
    int rc = local_begin(l, call);
    if (rc != 0)
        goto fail;
    int made = comm->rank == 0 ? split_make_groups(l->group) : 0;
    rc = local_end(l, call);
    /* One more round: the slots now hold the groups. */
    if (rc == 0)
        rc = local_begin(l, call);
    if (rc != 0)
        goto fail;
    for (uint32_t j = 0; j < comm->size; j++) {
        const struct comm_call *other = slots[j].call;
        bool is_before = other->key != call->key ? other->key < call->key : j < comm->rank;
        if (other->color == call->color && is_before)
            child->base.rank++;
    }
    child->group = slots[comm->rank].group;
    rc = local_end(l, call);
    if (made != 0 || rc != 0 || child->group == NULL) {
        rc = made != 0 ? made : rc != 0 ? rc : local_lost();
        goto fail;
    }
    child->base.ops = &local_ops;
    child->base.size = child->group->size;
    *call->out = &child->base;
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

static bool local_fail(struct comm *comm, int error)
{
    return world_fail(((struct local *)comm)->group->world, comm->rank, error);
}

static void local_abort(struct comm *comm, int exit_code)
{
    (void)exit_code; /* with threads the process's caller chooses the exit code */
    (void)local_fail(comm, ERR_ABORTED);
}

static bool local_is_failed(struct comm *comm)
{
    struct world *world = ((struct local *)comm)->group->world;
    pthread_mutex_lock(&world->mutex);
    bool failed = world->failed;
    pthread_mutex_unlock(&world->mutex);
    return failed;
}

static const struct comm_ops local_ops = {
    .name = "local",
    .flags = COMM_THREADS | COMM_ONE_MEMORY,
    .run = local_run,
    .free = local_free,
    .abort = local_abort,
    .fail = local_fail,
    .is_failed = local_is_failed,
};

/* ---- the world ---- */

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    struct local *l = calloc(1, sizeof(*l));
    struct flight *flight = flight_new(thread->rank);
    if (l == NULL || flight == NULL) {
        free(l);
        flight_free(flight);
        world_fail(thread->world, thread->rank,
                   report_error(ERR_MEMORY, NULL, "no memory for a communicator"));
        return NULL;
    }
    *l = (struct local){.base = comm_base(&local_ops, thread->rank, thread->group->size, flight),
                        .group = thread->group};
    int rc = thread->world->rank_main(&l->base, thread->world->user);
    if (rc != 0)
        world_fail(thread->world, thread->rank, rc);
    local_free(&l->base);
    flight_free(flight);
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
        world_fail(world, 0,
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
    while (world.groups != NULL) /* of ranks that never ran or did not free their groups */
        group_free(world.groups);
    pthread_mutex_destroy(&world.mutex);
    free(threads);
    return world.result;
}
