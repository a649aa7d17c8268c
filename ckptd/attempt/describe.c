/* describe.c - the rendezvous of the ranks of an attempt: their slices, and the plan made of them.
 *
 *   Describe (every rank) ──► group complete ──► worker plans ──► a session per rank, answers
 *
 * The rendezvous has a deadline (limits.describe_ms from the first rank): then every waiting call
 * is answered ERR_TIMEOUT with the missing ranks, and all begin again. A rank that describes itself
 * again, with the same slices, gets a new session under the old plan; with other slices it needs a
 * new attempt.
 *
 * When the first rank describes itself after a restart of ckptd, the newest attempt is read
 * back. */
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/plan.h"
#include "ckptd/attempt/quota.h"
#include "ckptd/attempt/replicas.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/slots.h"
#include "proto/base/report.h"
#include "proto/layout/layout.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICES_MAX 262144u /* of one request; more are refused */
#define MISSING_TEXT_MAX 160u

/* ---- slices ---- */

static int take_slice(struct slice *out, const Holdfast__V1__Slice *slice)
{
    memset(out, 0, sizeof *out);
    if (slice->n_shape > LAYOUT_DIMS_MAX || slice->n_offset != slice->n_shape ||
        slice->n_extent != slice->n_shape || strlen(slice->name) >= LAYOUT_NAME_MAX)
        return report_error(ERR_INVALID, NULL, "the slice of tensor %.64s has an impossible form",
                            slice->name);
    snprintf(out->tensor.name, sizeof out->tensor.name, "%s", slice->name);
    int error = dtype_parse(&out->tensor.dtype, slice->dtype);
    out->tensor.dims = (uint32_t)slice->n_shape;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        bool used = d < slice->n_shape;
        out->tensor.shape[d] = used ? slice->shape[d] : 1;
        out->box.offset[d] = used ? slice->offset[d] : 0;
        out->box.extent[d] = used ? slice->extent[d] : 1;
    }
    return error == 0 ? slice_check(out) : error;
}

int describe_take_slices(struct slice **out, Holdfast__V1__Slice *const *slices, size_t count)
{
    if (count > SLICES_MAX)
        return report_error(ERR_INVALID, NULL, "%zu slices are more than %u", count, SLICES_MAX);
    struct slice *list = calloc(count + 1, sizeof *list);
    int error = list ? 0 : report_error(ERR_MEMORY, NULL, "no memory for %zu slices", count);
    for (size_t i = 0; i < count && error == 0; i++)
        error = take_slice(&list[i], slices[i]);
    if (error != 0) {
        free(list);
        return error;
    }
    *out = list;
    return 0;
}

/* ---- groups ---- */

static void free_group_memory(struct group *group)
{
    for (uint32_t i = 0; i < group->world_size; i++) {
        free(group->ranks[i].slices);
        free(group->ranks[i].items);
        free(group->ranks[i].tensors);
        free(group->ranks[i].replicas);
    }
    layout_table_free(group->table);
    free(group->plan);
    free(group->replicated);
    places_free(&group->places);
    free(group->ranks);
    free(group);
}

/* Waiting calls are answered with this thread's last error. */
static void fail_group_calls(struct group *group, int error)
{
    struct fault fault;
    fault_take(&fault, error);
    for (uint32_t i = 0; i < group->world_size; i++) {
        if (group->ranks[i].call)
            rpc_call_fail(group->ranks[i].call, fault_raise(&fault));
        group->ranks[i].call = NULL;
    }
}

void group_free(struct group *group)
{
    report_error(ERR_STALE, "end this process", "a new attempt of the run began");
    fail_group_calls(group, ERR_STALE);
    loop_timer_cancel(group->run->service->loop, &group->timer);
    group->run->coordinator->group = NULL;
    if (group->planning)
        group->abandoned = true; /* freed when its job ends */
    else
        free_group_memory(group);
}

static void describe_expired(struct timer *timer)
{
    struct group *group = CONTAINER_OF(timer, struct group, timer);
    char missing[MISSING_TEXT_MAX] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < group->world_size && at + 16 < sizeof missing; i++)
        if (!group->ranks[i].described)
            at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%u", at ? ", " : "", i);
    report_error(ERR_TIMEOUT, "start the missing ranks, or raise limits.describe_ms",
                 "not every rank described its tensors in time; missing: %s", missing);
    fail_group_calls(group, ERR_TIMEOUT);
    group_free(group);
}

void describe_fail(struct group *group, int error)
{
    fail_group_calls(group, error);
    group_free(group);
}

static void work_plan(struct job *job)
{
    struct group *group = CONTAINER_OF(job, struct group, job);
    int error = group_plan(group);
    if (error != 0)
        fault_take(&group->fault, error);
}

/* ---- the answer ---- */

/* Only here are sessions of a rank made, so only its last one can be left. */
static void end_former(struct group *group, uint32_t rank)
{
    struct session *session;
    uint64_t token = group->ranks[rank].session;
    if (token != 0 && session_find(&session, group->run->service, token) == 0)
        session_end(session, "the rank described itself again");
}

static int new_session(struct session **out, struct group *group, uint32_t rank,
                       struct rpc_call *call)
{
    char who[RPC_WHO_MAX];
    end_former(group, rank);
    struct session_options options = {.run = group->run,
                                      .attempt = group->attempt,
                                      .rank = rank,
                                      .world_size = group->world_size,
                                      .memory_node = group->ranks[rank].memory_node,
                                      .geometry = group->ranks[rank].geometry,
                                      .image_segments = group->ranks[rank].image_segments};
    (void)rpc_call_principal(call, &options.owner, who); /* unknown: it matches no caller */
    int error = session_new_rank(out, group->run->service, &options);
    if (error == 0)
        group->ranks[rank].session = (*out)->token;
    return error;
}

static void reply_described(struct group *group, uint32_t rank, struct rpc_call *call)
{
    const struct group_rank *mine = &group->ranks[rank];
    struct service *service = group->run->service;
    Holdfast__V1__DescribeReply reply = HOLDFAST__V1__DESCRIBE_REPLY__INIT;
    Holdfast__V1__ImageItem *items = calloc(mine->num_items + 1, sizeof *items);
    Holdfast__V1__ImageItem **pointers = calloc(mine->num_items + 1, sizeof *pointers);
    size_t room = (size_t)SLOTS_PER_RANK * mine->image_segments + 1;
    uint32_t *segments = calloc(room, sizeof *segments);
    uint32_t *generations = calloc(room, sizeof *generations);
    uint32_t *replicated = calloc(mine->num_replicas + 1, sizeof *replicated);
    struct session *session = NULL;
    int error = items && pointers && segments && generations && replicated
                    ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for an answer");
    if (error == 0)
        error = new_session(&session, group, rank, call);
    for (uint32_t i = 0; i < mine->num_items && error == 0; i++) {
        holdfast__v1__image_item__init(&items[i]);
        items[i].slice = mine->items[i].slice;
        items[i].slice_byte = mine->items[i].slice_byte;
        items[i].image_byte = mine->geometry.data_start + mine->items[i].data_byte;
        items[i].bytes = mine->items[i].bytes;
        pointers[i] = &items[i];
    }
    for (uint32_t i = 0; i < mine->num_replicas && error == 0; i++)
        replicated[i] = mine->replicas[i].slice;
    if (error == 0) {
        reply.session = session->token;
        reply.image_bytes = mine->geometry.file_bytes;
        reply.segment_bytes = pool_segment_bytes(service->pool);
        reply.image_segments = mine->image_segments;
        reply.items = pointers;
        reply.n_items = mine->num_items;
        reply.boot_id = service->boot_id;
        reply.room_saves = group->room_saves;
        reply.takes_digests = true;
        reply.replicated = replicated;
        reply.n_replicated = mine->num_replicas;
        reply.segments = segments;
        reply.n_segments = reply.n_generations = slots_lend_ahead(segments, session);
        reply.generations = generations;
        pool_generations(service->pool, generations, segments, (uint32_t)reply.n_segments);
        rpc_call_reply(call, &reply.base);
    } else {
        rpc_call_fail(call, error);
    }
    free(replicated);
    free(generations);
    free(segments);
    free(items);
    free(pointers);
}

/* For one image of every rank of this node. */
static uint64_t num_segments(const struct group *group)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < group->world_size; i++)
        sum += group->ranks[i].image_segments;
    return sum;
}

/* A disk without retention fills up. The ranks are told as well. */
static void report_room(struct group *group)
{
    const struct service *service = group->run->service;
    const struct retain_rules rules = attempt_rules(group->run);
    struct report_text text;
    struct storage_space space;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < group->world_size; i++)
        bytes += group->ranks[i].geometry.file_bytes;
    report_keep(&text);
    if (retain_check(&rules) != 0 && storage_space(service->storage, &space) == 0 && bytes > 0) {
        uint64_t saves = ledger_room(&service->ledger, &space) / bytes;
        group->room_saves = 1 + saves;
        log_info("disk",
                 "run %s: there is room for %llu saves of %llu bytes, and no rule removes older "
                 "ones (retention.keep_last)",
                 group->run->name, (unsigned long long)saves, (unsigned long long)bytes);
    }
    report_restore(&text, 0);
}

static void planned(struct event *event)
{
    struct group *group = CONTAINER_OF(event, struct group, job.done);
    group->planning = false;
    if (group->abandoned) {
        free_group_memory(group);
        return;
    }
    int error = fault_raise(&group->fault);
    if (error == 0)
        error = quota_check_plan(group->run, num_segments(group));
    if (error != 0) {
        describe_fail(group, error);
        return;
    }
    group->planned = true;
    if (group->num_windows > 0)
        log_info(
            "session",
            "run %s, attempt %llu: the pool is too small for an image of each of %u ranks: %u "
            "ranks save through a window, which is slower, and their images do not stay in memory",
            group->run->name, (unsigned long long)group->attempt, group->world_size,
            group->num_windows);
    log_debug("session", "run %s, attempt %llu: %u ranks described %u tensors in %u layouts",
              group->run->name, (unsigned long long)group->attempt, group->world_size,
              group->table->num_tensors, group->table->num_layouts);
    report_room(group);
    for (uint32_t i = 0; i < group->world_size; i++) {
        struct rpc_call *call = group->ranks[i].call;
        group->ranks[i].call = NULL;
        if (call)
            reply_described(group, i, call);
    }
}

static void start_planning(struct group *group)
{
    loop_timer_cancel(group->run->service->loop, &group->timer);
    group->planning = true;
    group->job = (struct job){.work = work_plan, .done.run = planned};
    loop_work(group->run->service->loop, &group->job);
}

void describe_take_plan(struct group *group, char *plan, struct places *places)
{
    CHECK(!group->planning && !group->planned && !group->plan);
    group->plan = plan;
    group->places = *places;
    memset(places, 0, sizeof *places);
    start_planning(group);
}

/* ---- resume after a restart ---- */

static void work_resume(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct coordinator, resume)->run;
    int error = attempt_read_back(&work->attempt, run, work->number);
    if (error != 0)
        fault_take(&work->fault, error);
}

static void resumed(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct coordinator, resume)->run;
    struct parked *parked = run->coordinator->describing;
    run->coordinator->describing = NULL;
    work->busy = false;
    if (work->attempt &&
        commit_resume(&run->coordinator->machine, work->number, work->attempt->world_size) == 0 &&
        !run->coordinator->attempt) {
        run->coordinator->attempt = work->attempt;
        log_info("session", "run %s: continuing attempt %llu after a restart of ckptd", run->name,
                 (unsigned long long)work->number);
    } else {
        attempt_free(work->attempt);
    }
    work->attempt = NULL;
    while (parked) {
        struct parked *next = parked->next;
        if (work->fault.code != 0)
            rpc_call_fail(parked->call, fault_raise(&work->fault));
        else
            describe_rank(run->service, parked->call,
                          (const Holdfast__V1__DescribeRequest *)parked->message);
        free(parked);
        parked = next;
    }
}

static void start_resume(struct run *run)
{
    struct attempt_work *work = &run->coordinator->resume;
    if (work->busy)
        return;
    *work = (struct attempt_work){.job = {.work = work_resume, .done.run = resumed},
                                  .busy = true,
                                  .number = run->coordinator->machine.attempt};
    loop_work(run->service->loop, &work->job);
}

static bool resume(struct run *run, struct rpc_call *call,
                   const Holdfast__V1__DescribeRequest *request)
{
    if (!commit_may_resume(&run->coordinator->machine, request->attempt))
        return false;
    if (run->adopting != 0 && run->adopting >= run->newest_attempt) {
        rpc_call_fail(call, catalog_report_adopting(run));
        return true;
    }
    struct parked *parked = calloc(1, sizeof *parked);
    if (!parked) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to describe"));
        return true;
    }
    *parked = (struct parked){run->coordinator->describing, call, &request->base};
    run->coordinator->describing = parked;
    start_resume(run);
    return true;
}

/* ---- Describe ---- */

/* A rank's description. */
struct description {
    struct slice *slices; /* owned until it is taken over */
    size_t count;
    bool compares_replicas;
};

static bool is_as_before(const struct group_rank *rank, const struct description *now)
{
    if (now->count != rank->count || now->compares_replicas != rank->compares_replicas)
        return false;
    for (size_t i = 0; i < now->count; i++) {
        const struct slice *a = &rank->slices[i], *b = &now->slices[i];
        if (strcmp(a->tensor.name, b->tensor.name) != 0 || a->tensor.dtype != b->tensor.dtype ||
            a->tensor.dims != b->tensor.dims || !box_equal(&a->box, &b->box, LAYOUT_DIMS_MAX) ||
            memcmp(a->tensor.shape, b->tensor.shape, sizeof a->tensor.shape) != 0)
            return false;
    }
    return true;
}

static int new_group(struct group **out, struct run *run, uint64_t attempt)
{
    struct group *group = calloc(1, sizeof *group);
    struct group_rank *ranks = calloc(run->coordinator->machine.world_size, sizeof *ranks);
    if (!group || !ranks) {
        free(group);
        free(ranks);
        return report_error(ERR_MEMORY, NULL, "no memory for the ranks of an attempt");
    }
    group->run = run;
    group->attempt = attempt;
    group->world_size = run->coordinator->machine.world_size;
    group->ranks = ranks;
    group->timer.run = describe_expired;
    loop_timer(run->service->loop, &group->timer, run->service->config->limit_describe_ms);
    run->coordinator->group = group;
    *out = group;
    return 0;
}

/* Handles a rank of a group that is planned or being planned. Only compares its description. */
static int describe_again(struct group *group, uint32_t rank, struct rpc_call *call,
                          const struct description *now)
{
    struct group_rank *mine = &group->ranks[rank];
    if (mine->node != 0)
        return report_error(ERR_MISMATCH, "open a new attempt",
                            "rank %u has described itself at another node", rank);
    if (!is_as_before(mine, now))
        return report_error(ERR_MISMATCH, "open a new attempt",
                            "rank %u described other slices than before", rank);
    if (group->planned) {
        reply_described(group, rank, call);
        return 0;
    }
    if (mine->call)
        rpc_call_fail(mine->call, report_error(ERR_ABORTED, NULL, "the rank repeated the request"));
    mine->call = call;
    return 0;
}

/* Adds a rank to the rendezvous; takes over the slices. */
static void join_group(struct group *group, uint32_t rank, struct rpc_call *call,
                       struct description *now)
{
    struct group_rank *mine = &group->ranks[rank];
    if (mine->call)
        rpc_call_fail(mine->call, report_error(ERR_ABORTED, NULL, "the rank repeated the request"));
    free(mine->slices);
    mine->slices = now->slices;
    now->slices = NULL;
    mine->count = (uint32_t)now->count;
    mine->compares_replicas = now->compares_replicas;
    mine->call = call;
    group->num_described += !mine->described;
    mine->described = true;
    if (group->run->coordinator->follow)
        group->run->service->hooks->join(group->run);
    else if (group->num_described == group->world_size)
        start_planning(group);
}

static int check_describe(struct run *run, uint64_t attempt, uint32_t rank, uint32_t world_size)
{
    int error = commit_check(&run->coordinator->machine, attempt);
    if (error == 0 && (world_size != run->coordinator->machine.world_size ||
                       rank >= run->coordinator->machine.world_size))
        error = report_error(ERR_MISMATCH, "start all ranks with the same world size",
                             "rank %u of %u does not belong to attempt %llu of %u ranks", rank,
                             world_size, (unsigned long long)attempt,
                             run->coordinator->machine.world_size);
    return error;
}

void describe_rank(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__DescribeRequest *request)
{
    struct run *run = NULL;
    struct description now = {.count = request->n_slices,
                              .compares_replicas = request->compares_replicas};
    int error = service_check_open(service);
    if (error == 0)
        error = run_find(&run, service, request->run, false);
    if (error == 0 && resume(run, call, request))
        return;
    if (error == 0)
        error = check_describe(run, request->attempt, request->rank, request->world_size);
    if (error == 0)
        error = describe_take_slices(&now.slices, request->slices, request->n_slices);
    if (error == 0)
        quota_note_owner(run, call);
    struct group *group = run ? run->coordinator->group : NULL;
    if (error == 0 && !group)
        error = new_group(&group, run, request->attempt);
    if (error == 0)
        group->ranks[request->rank].memory_node = request->memory_node;
    if (error == 0 && (group->planning || group->planned))
        error = describe_again(group, request->rank, call, &now);
    else if (error == 0)
        join_group(group, request->rank, call, &now);
    free(now.slices);
    if (error != 0)
        rpc_call_fail(call, error);
}

/* ---- ranks of other nodes ---- */

/* Takes the rank's description, before all are there or once more. */
static int take_remote(struct run *run, const Holdfast__V1__JoinRequest *request, uint32_t node)
{
    struct group *group = run->coordinator->group;
    struct description now = {.count = request->n_slices,
                              .compares_replicas = request->compares_replicas};
    ERR_TRY(describe_take_slices(&now.slices, request->slices, request->n_slices));
    int error = group ? 0 : new_group(&group, run, request->attempt);
    struct group_rank *mine = error == 0 ? &group->ranks[request->rank] : NULL;
    if (error == 0 && mine->described && (mine->node != node || !is_as_before(mine, &now)))
        error =
            report_error(ERR_MISMATCH, "open a new attempt",
                         "rank %u has described other slices, or at another node", request->rank);
    if (error == 0 && !mine->described) {
        mine->node = node;
        join_group(group, request->rank, NULL, &now);
    }
    free(now.slices);
    return error;
}

int describe_join(struct service *service, const Holdfast__V1__JoinRequest *request, uint32_t node,
                  bool *out_known)
{
    struct run *run;
    *out_known = false;
    ERR_TRY(service_check_open(service));
    ERR_TRY(run_find(&run, service, request->run, false));
    if (commit_may_resume(&run->coordinator->machine, request->attempt)) {
        start_resume(run); /* it asks again */
        return 0;
    }
    ERR_TRY(check_describe(run, request->attempt, request->rank, request->world_size));
    if (request->has_slices)
        ERR_TRY(take_remote(run, request, node));
    const struct group *group = run->coordinator->group;
    *out_known =
        group && group->ranks[request->rank].described && group->ranks[request->rank].node == node;
    return 0;
}
