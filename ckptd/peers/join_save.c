/* join_save.c - ranks of this node in an attempt that another node coordinates: ranks call this
 * ckptd, and it calls the coordinator's ckptd.
 *
 *   Describe of an unknown attempt ──► its file, here or at a peer, names the coordinator
 *       this node ──► describe.c
 *       another   ──► describe.c gathers the ranks of this node and reports each to the
 *                     coordinator (Join), again every JOIN_MS until the plan comes and every rank
 *                     of this node is there ──► sessions, answers. From then on it reports, four
 *                     times in nodes.silent_ms, which ranks are connected (coordinating.C4).
 *                     machines/joining.c makes the decisions
 *   BeginSave ──► an image; asks the coordinator (BeginPart) ──► a part of its save: struct save
 *                 with `is_part`, which stage.c fills as any other; join_part.c reports it
 *
 * This node decides nothing about these saves: its commit.c has none in work. */
#include "ckptd/peers/join_save.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/joining.h"
#include "ckptd/machines/node_set.h"
#include "ckptd/machines/participating.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/peers/join_part.h"
#include "ckptd/peers/peer_call.h"
#include "ckptd/peers/recover_parts.h"
#include "ckptd/save/save.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CREW_THREADS 8u /* at most; one more than there are peers */
/* Calls to one peer at once: calls to others continue while it does not answer. */
#define PEER_ERRANDS 2u
#define ENDED_MAX (2 * COMMIT_SAVES_MAX) /* ended parts of a rank that a call names */
#define JOIN_MS 50
#define PARTS_WAIT_MS 3000 /* how long to wait for a decision of the former coordinator */

struct follow {
    struct run *run;
    uint32_t peer;          /* index of members.peers: the coordinator */
    struct joining joining; /* `told` is owned */
    struct timer timer;
};

static void free_follow(struct run *run)
{
    struct follow *follow = run->coordinator->follow;
    run->coordinator->follow = NULL;
    if (!follow)
        return;
    loop_timer_cancel(run->service->loop, &follow->timer);
    free(follow->joining.told);
    free(follow);
}

/* ---- Join ---- */

struct telling {
    struct peer_call peer_call;
    char run[RUN_NAME_MAX + 1];
    struct follow *follow; /* only compared, never dereferenced: it may have been freed */
    struct joining_call call;
    Holdfast__V1__JoinRequest request;
    struct slice *copies;
    Holdfast__V1__Slice *slices, **pointers;
    uint32_t *present;
};

static void free_telling(struct telling *telling)
{
    peer_call_end(&telling->peer_call);
    free(telling->copies);
    free(telling->slices);
    free(telling->pointers);
    free(telling->present);
    free(telling);
}

static int fill_slices(struct telling *telling, const struct group_rank *rank)
{
    telling->copies = calloc(rank->count + 1, sizeof *telling->copies);
    telling->slices = calloc(rank->count + 1, sizeof *telling->slices);
    telling->pointers = calloc(rank->count + 1, sizeof *telling->pointers);
    if (!telling->copies || !telling->slices || !telling->pointers)
        return report_error(ERR_MEMORY, NULL, "no memory to describe a rank");
    memcpy(telling->copies, rank->slices, rank->count * sizeof *telling->copies);
    for (uint32_t i = 0; i < rank->count; i++) {
        Holdfast__V1__Slice *out = &telling->slices[i];
        struct slice *slice = &telling->copies[i];
        holdfast__v1__slice__init(out);
        out->name = slice->tensor.name;
        out->dtype = (char *)(uintptr_t)dtype_name(slice->tensor.dtype);
        out->shape = slice->tensor.shape;
        out->offset = slice->box.offset;
        out->extent = slice->box.extent;
        out->n_shape = out->n_offset = out->n_extent = slice->tensor.dims;
        telling->pointers[i] = out;
    }
    telling->request.has_slices = true;
    telling->request.slices = telling->pointers;
    telling->request.n_slices = rank->count;
    telling->request.compares_replicas = rank->compares_replicas;
    return 0;
}

/* A rank that waits for its answer has no session yet. */
static int fill_present(struct telling *telling, const struct group *group)
{
    Holdfast__V1__JoinRequest *request = &telling->request;
    telling->present = calloc(group->world_size, sizeof *telling->present);
    if (!telling->present)
        return report_error(ERR_MEMORY, NULL, "no memory to name the ranks of this node");
    for (uint32_t i = 0; i < group->world_size; i++)
        if (group->ranks[i].call || session_is_there(group->run->service, group->ranks[i].session))
            telling->present[request->n_present++] = i;
    request->present = telling->present;
    return 0;
}

static int take_nodes(struct places *out, const struct service *service,
                      const Holdfast__V1__JoinReply *reply)
{
    uint32_t at = 0;
    ERR_TRY(places_make(out, PLACES_NODES_MAX, (uint32_t)reply->n_nodes));
    out->num_nodes = 0;
    snprintf(out->here, sizeof out->here, "%s", service->config->nodes_name);
    for (size_t i = 0; i < reply->n_nodes; i++) {
        if (at == out->num_nodes || strcmp(out->nodes[at], reply->nodes[i]) != 0)
            at = 0; /* ranks of a node often have neighbouring numbers */
        while (at < out->num_nodes && strcmp(out->nodes[at], reply->nodes[i]) != 0)
            at++;
        if (at == PLACES_NODES_MAX || strlen(reply->nodes[i]) >= PLACES_NODE_BYTES) {
            places_free(out);
            return report_error(ERR_CORRUPT, NULL, "the coordinator's node names are invalid");
        }
        if (at == out->num_nodes)
            strcpy(out->nodes[out->num_nodes++], reply->nodes[i]);
        out->shards[i] = (uint16_t)at;
    }
    return 0;
}

static int take_replicated(struct group *group, const ProtobufCBinaryData *bits)
{
    group->replicated = malloc(bits->len);
    if (!group->replicated)
        return report_error(ERR_MEMORY, NULL, "no memory for a plan");
    memcpy(group->replicated, bits->data, bits->len);
    group->replicated_bytes = bits->len;
    return 0;
}

/* Takes over the plan, for a group that waits for it. */
static int take_plan(struct group *group, const Holdfast__V1__JoinReply *reply)
{
    struct places places;
    char *plan = NULL;
    int error = reply->n_nodes == group->world_size
                    ? take_nodes(&places, group->run->service, reply)
                    : report_error(ERR_CORRUPT, NULL, "the coordinator's plan has %zu ranks",
                                   reply->n_nodes);
    if (error == 0 && (plan = strdup(reply->plan)) == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory for a plan");
    if (error == 0 && reply->replicated.len > 0)
        error = take_replicated(group, &reply->replicated);
    if (error == 0)
        describe_take_plan(group, plan, &places);
    return error;
}

/* Counts the ranks that the plan has at this node and that have not described themselves yet. */
static uint32_t count_away(const struct group *group, const Holdfast__V1__JoinReply *reply)
{
    const char *here = group->run->service->config->nodes_name;
    uint32_t count = 0;
    for (uint32_t i = 0; i < reply->n_nodes && i < group->world_size; i++)
        count += strcmp(reply->nodes[i], here) == 0 && !group->ranks[i].described;
    return count;
}

static bool awaits_plan(const struct group *group)
{
    return !group->planned && !group->planning;
}

/* Answers the waiting ranks with the error; they describe themselves again. */
static void fail_join(struct run *run, const struct fault *fault)
{
    struct group *group = run->coordinator->group;
    log_warn("session", "run %s: the coordinator of attempt %llu accepts no ranks: %s", run->name,
             (unsigned long long)run->coordinator->machine.attempt, fault->message);
    if (group && awaits_plan(group)) {
        fault_raise(fault);
        describe_fail(group, fault->code);
    }
}

/* The coordinator was restarted: reports the ranks to it again. */
static void repeat_join(struct run *run)
{
    if (run->coordinator->follow)
        joining_forgotten(&run->coordinator->follow->joining);
    join_attempt(run);
}

/* Performs the action that follows an answer; `reply` NULL: there was none. */
static void perform_answer(struct run *run, enum joining_action action, struct fault *fault,
                           const Holdfast__V1__JoinReply *reply)
{
    int error = action == JOINING_PLAN ? take_plan(run->coordinator->group, reply) : 0;
    if (error != 0)
        fault_take(fault, error);
    if (error != 0 || action == JOINING_FAIL)
        fail_join(run, fault);
    else if (action == JOINING_WAIT)
        loop_timer(run->service->loop, &run->coordinator->follow->timer, JOIN_MS);
    else
        join_attempt(run);
}

static void joined(struct peer_call *peer_call)
{
    struct telling *telling = CONTAINER_OF(peer_call, struct telling, peer_call);
    struct run *run = NULL;
    bool is_there = run_find(&run, peer_call->service, telling->run, false) == 0;
    struct follow *follow = is_there ? run->coordinator->follow : NULL;
    struct group *group = is_there ? run->coordinator->group : NULL;
    const Holdfast__V1__JoinReply *reply = (const Holdfast__V1__JoinReply *)peer_call->reply;
    if (follow && follow == telling->follow) {
        const struct joining_answer answer = {.error = reply ? 0 : peer_call->fault.code,
                                              .is_known = reply && reply->is_known,
                                              .has_plan = reply && reply->plan[0],
                                              .num_away =
                                                  group && reply ? count_away(group, reply) : 0};
        enum joining_action action = joining_answered(&follow->joining, &telling->call, &answer,
                                                      group && awaits_plan(group));
        if (group)
            perform_answer(run, action, &peer_call->fault, reply);
    }
    free_telling(telling);
}

static bool is_described(const void *user, uint32_t rank)
{
    return ((const struct group *)user)->ranks[rank].slices != NULL;
}

static bool is_connected(const void *user, uint32_t rank)
{
    const struct group *group = user;
    return session_is_there(group->run->service, group->ranks[rank].session);
}

static int fill_telling(struct telling *telling, const struct group *group)
{
    const struct follow *follow = telling->follow;
    Holdfast__V1__JoinRequest *request = &telling->request;
    holdfast__v1__join_request__init(request);
    snprintf(telling->run, sizeof telling->run, "%s", group->run->name);
    request->rank = telling->call.rank;
    request->run = telling->run;
    request->attempt = group->attempt;
    request->world_size = group->world_size;
    request->boot_id = group->run->service->boot_id;
    request->only_tells = telling->call.action == JOINING_NAME;
    telling->peer_call = (struct peer_call){.service = group->run->service,
                                            .peer = follow->peer,
                                            .method = "Join",
                                            .request = &request->base,
                                            .reply_type = &holdfast__v1__join_reply__descriptor,
                                            .done = joined};
    if (!follow->joining.told[request->rank])
        ERR_TRY(fill_slices(telling, &group->ranks[request->rank]));
    return fill_present(telling, group);
}

static void send_telling(struct run *run, const struct joining_call *call)
{
    struct follow *follow = run->coordinator->follow;
    struct telling *telling = calloc(1, sizeof *telling);
    if (telling)
        *telling = (struct telling){.follow = follow, .call = *call};
    if (telling && fill_telling(telling, run->coordinator->group) == 0) {
        peer_call_send(&telling->peer_call);
        return;
    }
    if (telling)
        free_telling(telling);
    joining_answered(&follow->joining, call, &(struct joining_answer){.error = ERR_BUSY}, false);
    loop_timer(run->service->loop, &follow->timer, JOIN_MS);
}

void join_attempt(struct run *run)
{
    struct follow *follow = run->coordinator->follow;
    const struct group *group = run->coordinator->group;
    if (!follow || !group)
        return;
    const struct joining_facts facts = {.awaits_plan = awaits_plan(group),
                                        .now_ms = clock_ms(),
                                        .every_ms = run->service->config->nodes_silent_ms / 4,
                                        .is_described = is_described,
                                        .is_connected = is_connected,
                                        .user = group};
    const struct joining_call call = joining_next(&follow->joining, &facts);
    if (call.action == JOINING_NOTHING)
        return;
    loop_timer_cancel(run->service->loop, &follow->timer);
    if (call.action == JOINING_REST)
        loop_timer(run->service->loop, &follow->timer, facts.every_ms);
    else
        send_telling(run, &call);
}

static void join_again(struct timer *timer)
{
    join_attempt(CONTAINER_OF(timer, struct follow, timer)->run);
}

/* ---- BeginPart ---- */

struct beginning_part {
    struct peer_call peer_call;
    Holdfast__V1__BeginPartRequest request;
    char run[RUN_NAME_MAX + 1];
    char *state;
    char ended[ENDED_MAX][33], *pointers[ENDED_MAX];
    struct part_asking *asking;
};

static void answered(struct peer_call *peer_call)
{
    struct beginning_part *part = CONTAINER_OF(peer_call, struct beginning_part, peer_call);
    struct part_asking *asking = part->asking;
    struct run *run;
    const Holdfast__V1__BeginPartReply *reply =
        (const Holdfast__V1__BeginPartReply *)peer_call->reply;
    asking->fault = peer_call->fault;
    if (reply && shard_nonce_is_valid(reply->nonce))
        snprintf(asking->nonce, sizeof asking->nonce, "%s", reply->nonce);
    else if (reply)
        fault_take(&asking->fault, report_error(ERR_CORRUPT, NULL, "a save has an invalid nonce"));
    else if (peer_call->fault.code == ERR_UNAVAILABLE &&
             run_find(&run, peer_call->service, part->run, false) == 0)
        repeat_join(run);
    peer_call_end(peer_call);
    free(part->state);
    free(part);
    asking->go_on(asking);
}

/* The report that a rank's part has ended may arrive later than this call. So the call names it:
 * else the coordinator takes that rank to have left its save. */
static void fill_ended(struct beginning_part *part, const struct session *session)
{
    Holdfast__V1__BeginPartRequest *request = &part->request;
    request->ended = part->pointers;
    for (const struct save *save = session->run->coordinator->saves;
         save && request->n_ended < ENDED_MAX; save = save->next) {
        const struct stage *stage = &save->stages[session->rank];
        if (!save->is_part || save->discarding || !stage->options.save || !stage->ended)
            continue;
        part->pointers[request->n_ended] = part->ended[request->n_ended];
        memcpy(part->ended[request->n_ended++], save->nonce, sizeof save->nonce);
    }
}

int join_ask(struct session *session, const Holdfast__V1__BeginSaveRequest *request,
             uint64_t number, struct part_asking *asking)
{
    struct beginning_part *part = calloc(1, sizeof *part);
    char *state = strdup(request->state_json);
    if (!part || !state) {
        free(part);
        free(state);
        return report_error(ERR_MEMORY, NULL, "no memory to begin a part");
    }
    holdfast__v1__begin_part_request__init(&part->request);
    snprintf(part->run, sizeof part->run, "%s", session->run->name);
    part->state = part->request.state_json = state;
    part->asking = asking;
    part->request.run = part->run;
    part->request.attempt = session->attempt;
    part->request.rank = session->rank;
    part->request.step = request->step;
    part->request.asked = session->token ^ number; /* unique to this session and call */
    part->request.boot_id = session->service->boot_id;
    fill_ended(part, session);
    part->peer_call = (struct peer_call){.service = session->service,
                                         .peer = session->run->coordinator->follow->peer,
                                         .method = "BeginPart",
                                         .request = &part->request.base,
                                         .reply_type = &holdfast__v1__begin_part_reply__descriptor,
                                         .done = answered};
    peer_call_send(&part->peer_call);
    return 0;
}

/* ---- leaving ---- */

void join_part_changed(struct save *save)
{
    part_report(save);
}

void join_leave(struct run *run)
{
    struct save *next;
    for (struct save *save = run->coordinator->saves; save; save = next) {
        next = save->next;
        if (save->is_part)
            part_leave(save);
    }
    if (!run->coordinator->saves)
        free_follow(run);
}

/* ---- finding the attempt and its coordinator ---- */

/* A Describe of an attempt that this node does not know yet. */
struct arrival {
    struct peer_call peer_call;
    struct rpc_call *call;
    const Holdfast__V1__DescribeRequest *request; /* lives as long as the call */
    struct attempt *attempt;
    struct node_set answering; /* peers, by their index, that answered the last request */
    struct timer timer;
    int64_t came_ms;
};

/* Reads the attempt's file at the peers that answer, or at the others. */
static int find_at_peers(struct arrival *arrival, bool is_answering)
{
    const struct service *service = arrival->peer_call.service;
    for (uint32_t i = 0; i < service->config->members.count; i++)
        if (node_set_has(&arrival->answering, i) == is_answering &&
            attempt_read_from(&arrival->attempt, service->tiers[TIER_PEER + i].storage,
                              arrival->request->run, arrival->request->attempt) == 0)
            return 0;
    return ERR_NOT_FOUND;
}

/* Reads the attempt's file: here, else at a peer (most of the nodes have it). */
static int find_attempt(struct peer_call *peer_call)
{
    struct arrival *arrival = CONTAINER_OF(peer_call, struct arrival, peer_call);
    const Holdfast__V1__DescribeRequest *request = arrival->request;
    struct service *service = peer_call->service;
    int error =
        attempt_read_from(&arrival->attempt, service->storage, request->run, request->attempt);
    if (error == ERR_NOT_FOUND)
        error = find_at_peers(arrival, true);
    if (error == ERR_NOT_FOUND) /* each such peer may take as long as a call waits */
        error = find_at_peers(arrival, false);
    return error;
}

static void end_arrival(struct arrival *arrival)
{
    attempt_free(arrival->attempt);
    free(arrival);
}

/* From now on the run's ranks here belong to the attempt of that node. Takes ownership of
 * `attempt`. */
static int begin_following(struct run *run, struct attempt *attempt, uint32_t peer)
{
    struct coordinator *coordinator = run->coordinator;
    struct follow *follow = calloc(1, sizeof *follow);
    bool *told = calloc(attempt->world_size, sizeof *told);
    if (!follow || !told) {
        free(follow);
        free(told);
        return report_error(ERR_MEMORY, NULL, "no memory to follow an attempt");
    }
    session_end_older(run, attempt->number);
    if (coordinator->group)
        group_free(coordinator->group);
    free_follow(run);
    attempt_free(coordinator->attempt);
    *follow = (struct follow){.run = run,
                              .peer = peer,
                              .joining = {.told = told, .num_ranks = attempt->world_size},
                              .timer.run = join_again};
    coordinator->follow = follow;
    coordinator->attempt = attempt;
    sets_merge(&run->sets, &attempt->sets);
    commit_follow(&coordinator->machine, attempt->number, attempt->world_size);
    if (attempt->number > run->newest_attempt)
        run->newest_attempt = attempt->number;
    log_info("session", "run %s: attempt %llu of %u ranks is coordinated by node %s", run->name,
             (unsigned long long)attempt->number, attempt->world_size, attempt->coordinator);
    return 0;
}

static void settle_arrival(struct arrival *arrival);

/* Saves of an older attempt are undecided, of this node or another: gives them up, or waits for
 * their coordinator. */
static void settle_older(struct run *run, struct arrival *arrival, bool gives_up)
{
    struct commit_actions actions = {0};
    commit_yield(&run->coordinator->machine, &actions);
    run_perform(run, &actions);
    if (gives_up)
        join_leave(run);
    loop_timer(run->service->loop, &arrival->timer, JOIN_MS);
}

static void settle_again(struct timer *timer)
{
    settle_arrival(CONTAINER_OF(timer, struct arrival, timer));
}

static enum participating_entry decide_entry(const struct run *run, const struct arrival *arrival)
{
    const struct coordinator *coordinator = run->coordinator;
    const struct attempt *attempt = arrival->attempt;
    unsigned tier = catalog_tier_of(run->service, attempt->coordinator);
    return participating_arrive(&(struct participating_arrival){
        .attempt = attempt->number,
        .served = coordinator->attempt ? coordinator->attempt->number : 0,
        .whose = attempt->coordinator[0] == '\0' || tier == TIER_LOCAL ? PARTICIPATING_OURS
                 : tier == NUM_TIERS                                   ? PARTICIPATING_A_STRANGERS
                                                                       : PARTICIPATING_A_PEERS,
        .has_saves = coordinator->saves != NULL,
        .has_waited = clock_ms() - arrival->came_ms > PARTS_WAIT_MS});
}

static int follow_attempt(struct arrival *arrival, struct run *run)
{
    struct attempt *attempt = arrival->attempt;
    ERR_TRY(begin_following(run, attempt,
                            catalog_tier_of(run->service, attempt->coordinator) - TIER_PEER));
    arrival->attempt = NULL;
    return 0;
}

static int refuse_stranger(const struct attempt *attempt)
{
    return report_error(ERR_INVALID, "add it to nodes.peers",
                        "attempt %llu is coordinated by node %s, which is no peer of this one",
                        (unsigned long long)attempt->number, attempt->coordinator);
}

static void settle_arrival(struct arrival *arrival)
{
    struct service *service = arrival->peer_call.service;
    struct run *run = NULL;
    enum participating_entry entry = PARTICIPATING_DESCRIBE;
    int error = service_check_open(service);
    if (error == 0)
        error = run_find(&run, service, arrival->request->run, true);
    if (error == 0)
        entry = decide_entry(run, arrival);
    if (entry == PARTICIPATING_SETTLE || entry == PARTICIPATING_GIVE_UP) {
        settle_older(run, arrival, entry == PARTICIPATING_GIVE_UP);
        return;
    }
    if (entry == PARTICIPATING_FOLLOW)
        error = follow_attempt(arrival, run);
    else if (entry == PARTICIPATING_REFUSE)
        error = refuse_stranger(arrival->attempt);
    if (error == 0)
        describe_rank(service, arrival->call, arrival->request);
    else
        rpc_call_fail(arrival->call, error);
    end_arrival(arrival);
}

static void found_attempt(struct peer_call *peer_call)
{
    struct arrival *arrival = CONTAINER_OF(peer_call, struct arrival, peer_call);
    if (peer_call->fault.code == 0) {
        settle_arrival(arrival);
        return;
    }
    if (peer_call->fault.code == ERR_NOT_FOUND) /* describe.c answers with the usual error */
        describe_rank(peer_call->service, arrival->call, arrival->request);
    else
        rpc_call_fail(arrival->call, fault_raise(&peer_call->fault));
    end_arrival(arrival);
}

static bool is_unknown(struct service *service, const Holdfast__V1__DescribeRequest *request)
{
    struct run *run;
    if (service->config->members.count == 0 || request->attempt == 0 ||
        !run_name_valid(request->run))
        return false;
    if (run_find(&run, service, request->run, false) != 0)
        return true;
    const struct attempt *attempt = run->coordinator->attempt;
    return participating_is_unknown(
        &(struct participating_arrival){.attempt = request->attempt,
                                        .served = attempt ? attempt->number : 0,
                                        .newest = run->newest_attempt});
}

void join_describe(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__DescribeRequest *request)
{
    struct arrival *arrival = is_unknown(service, request) ? calloc(1, sizeof *arrival) : NULL;
    if (!arrival) {
        describe_rank(service, call, request);
        return;
    }
    *arrival = (struct arrival){
        .peer_call = {.service = service, .before = find_attempt, .done = found_attempt},
        .call = call,
        .request = request,
        .timer.run = settle_again,
        .came_ms = clock_ms()};
    for (uint32_t i = 0; i < service->config->members.count; i++)
        if (!service->tiers[TIER_PEER + i].offline[0] && !service->tiers[TIER_PEER + i].is_unknown)
            node_set_add(&arrival->answering, i);
    peer_call_send(&arrival->peer_call);
}

/* ---- beginning and end ---- */

int join_open(struct service *service)
{
    const struct config *config = service->config;
    if (config->members.count == 0)
        return 0;
    struct followers *followers = service->followers = calloc(1, sizeof *followers);
    if (!followers)
        return report_error(ERR_MEMORY, NULL, "no memory to follow other nodes");
    uint32_t num_threads =
        config->members.count < CREW_THREADS ? config->members.count + 1 : CREW_THREADS;
    ERR_TRY(crew_open(&followers->crew, service->loop, num_threads, (int)config->pace_cpu_nice));
    for (uint32_t i = 0; i < config->members.count; i++)
        crew_lane(followers->crew, &followers->lanes[i], PEER_ERRANDS);
    recover_parts_start(service);
    return 0;
}

void join_end(struct service *service)
{
    if (!service->followers)
        return;
    crew_close(service->followers->crew);
    service->followers->crew = NULL;
}

void join_close(struct service *service)
{
    for (struct run *run = service->catalog ? service->catalog->runs : NULL; run; run = run->next)
        free_follow(run);
    free(service->followers);
    service->followers = NULL;
}
