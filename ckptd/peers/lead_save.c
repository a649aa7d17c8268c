/* lead_save.c - the coordinator's side of an attempt whose ranks are on several nodes.
 *
 *   Join (a rank of a node) ──► describe.c ──► the plan, when every rank is there
 *   BeginPart               ──► enter.c: the save of the step, and its nonce
 *   ReportPart              ──► commit.c gets the state of each part; the answer tells the node
 *                               what to do: go on, write the manifest, commit it, remove it
 *
 * A node calls; the coordinator never calls one. Each call has the full state of its node, so a
 * lost, repeated or late call changes nothing. machines/coordinating.c makes the decisions;
 * coordinating.C1 is kept here. A node that has not reported its part of a save for nodes.silent_ms
 * has left it, whatever else it reports. A rank without a part has left when its node has not named
 * it for as long (Join, `present`): its trainer, its node or the link is gone. */
#include "ckptd/peers/lead_save.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/coordinating.h"
#include "ckptd/save/enter.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/save/save.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/format/replica.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_MS 500
#define TEXT_MAX (RPC_MESSAGE_BYTES_MAX - 65536u) /* bytes of a manifest in an answer */
#define NO_NONCE "00000000000000000000000000000000"

struct lead_save {
    struct service *service;
    struct timer timer;
    uint64_t boot_id[MEMBERS_PEERS_MAX + 1]; /* by 1 + the index of the peer; 0: none was heard */
};

static const char *name_of(const struct service *service, uint32_t node)
{
    return tier_name(service, (enum tier_index)(TIER_PEER + node - 1));
}

/* ---- nodes that have left ---- */

static void note_fault(struct save *save, int error)
{
    if (error != 0 && save->fault.code == 0)
        fault_take(&save->fault, error);
}

static bool is_silent(const struct save *save, int64_t heard_ms)
{
    return clock_ms() - heard_ms > save->service->config->nodes_silent_ms;
}

static struct coordinating_rank rank_of(const void *user, uint32_t rank)
{
    const struct save *save = user;
    const struct group_rank *known = &save->group->ranks[rank];
    int64_t named_ms = known->present_ms > save->begun_ms ? known->present_ms : save->begun_ms;
    return (struct coordinating_rank){.node = known->node,
                                      .is_silent = is_silent(save, save->remote[rank].heard_ms),
                                      .is_unnamed =
                                          known->present_ms != 0 && is_silent(save, named_ms)};
}

static int report_loss(const struct service *service, const struct coordinating_loss *loss)
{
    long long silent_ms = (long long)service->config->nodes_silent_ms;
    if (loss->kind == COORDINATING_NONE)
        return 0;
    if (loss->kind == COORDINATING_RESTARTED)
        return report_error(
            ERR_UNAVAILABLE, NULL,
            "node %s has no part of it in memory any more: its ckptd has restarted, "
            "or serves another start",
            name_of(service, loss->node));
    if (loss->kind == COORDINATING_UNNAMED)
        return report_error(ERR_UNAVAILABLE, NULL,
                            "rank %u has not begun it, and node %s has not named that rank for "
                            "more than %lld ms",
                            loss->rank, name_of(service, loss->node), silent_ms);
    return report_error(ERR_UNAVAILABLE, NULL, "node %s has been silent for more than %lld ms",
                        name_of(service, loss->node), silent_ms);
}

/* True: a save was given up, and the list has changed. */
static bool give_up_left(struct run *run, uint32_t restarted)
{
    for (struct save *save = run->coordinator->saves; save; save = save->next) {
        struct commit_actions actions = {0};
        const struct coordinating_ranks ranks = {rank_of, save};
        if (save->is_part)
            continue;
        const struct coordinating_loss loss = coordinating_check_ranks(
            &run->coordinator->machine, &actions, save->id, &ranks, restarted);
        note_fault(save, report_loss(run->service, &loss));
        run_perform(run, &actions);
        if (loss.kind != COORDINATING_NONE)
            return true;
    }
    return false;
}

static void give_up_saves(struct lead_save *lead, uint32_t restarted)
{
    for (struct run *run = lead->service->catalog->runs; run; run = run->next)
        while (give_up_left(run, restarted)) {
        }
}

static void note_boot(struct lead_save *lead, uint32_t node, uint64_t boot_id)
{
    if (coordinating_hear_boot(&lead->boot_id[node], boot_id))
        give_up_saves(lead, node);
}

/* ---- Join ---- */

/* The calling node: 1 + the index of the peer. ERR_INVALID. */
static int find_node(uint32_t *out, struct service *service, struct rpc_call *call,
                     uint64_t boot_id)
{
    struct principal principal;
    char who[RPC_WHO_MAX];
    bool is_known = rpc_call_principal(call, &principal, who) && principal.role == ROLE_NODE;
    const char *name = is_known ? strrchr(principal.name, '/') : NULL;
    unsigned tier = name ? catalog_tier_of(service, name + 1) : NUM_TIERS;
    if (tier == NUM_TIERS || tier == TIER_LOCAL || !service->lead_save)
        return report_error(ERR_INVALID, "add it to nodes.peers", "%s is not a peer of this node",
                            is_known ? principal.name : "the client");
    *out = tier - TIER_PEER + 1;
    note_boot(service->lead_save, *out, boot_id);
    return 0;
}

/* The table of the plan, as a manifest without digests. The caller frees it. */
static int write_plan(char **out, const struct group *group)
{
    size_t bytes;
    struct manifest manifest = {.table = group->table};
    struct manifest_summary *summary = &manifest.summary;
    manifest.digests = calloc(group->table->num_tensors + 1, sizeof *manifest.digests);
    manifest.shards = calloc(group->world_size, sizeof *manifest.shards);
    int error = manifest.digests && manifest.shards
                    ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for a plan");
    *summary = (struct manifest_summary){.version = MANIFEST_VERSION,
                                         .attempt = group->attempt,
                                         .nonce = NO_NONCE,
                                         .world_size = group->world_size,
                                         .shards = group->world_size};
    snprintf(summary->run, sizeof summary->run, "%s", group->run->name);
    manifest_now(summary->time);
    for (uint32_t i = 0; i < group->world_size && error == 0; i++) {
        const struct shard_geometry *geometry = &group->ranks[i].geometry;
        manifest.shards[i] = (struct manifest_shard){.bytes = geometry->file_bytes,
                                                     .data_start = geometry->data_start};
        summary->bytes += geometry->file_bytes;
    }
    if (error == 0)
        error = manifest_write(out, &bytes, &manifest);
    free(manifest.digests);
    free(manifest.shards);
    return error;
}

static int reply_plan(struct rpc_call *call, const struct group *group)
{
    Holdfast__V1__JoinReply reply = HOLDFAST__V1__JOIN_REPLY__INIT;
    const struct places *places = &group->places;
    char **nodes = calloc(group->world_size, sizeof *nodes), *plan = NULL;
    int error =
        nodes ? write_plan(&plan, group) : report_error(ERR_MEMORY, NULL, "no memory for a plan");
    for (uint32_t i = 0; i < group->world_size && error == 0; i++)
        nodes[i] = (char *)(uintptr_t)places->nodes[places->shards[i]];
    reply.is_known = true;
    reply.plan = plan;
    reply.nodes = nodes;
    reply.n_nodes = group->world_size;
    reply.replicated = (ProtobufCBinaryData){group->replicated_bytes, group->replicated};
    if (error == 0)
        error = rpc_call_check_reply(call, &reply.base);
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    free(plan);
    free(nodes);
    return error;
}

static void note_present(struct run *run, const Holdfast__V1__JoinRequest *request, uint32_t node)
{
    struct group *group = run->coordinator->group;
    for (size_t i = 0; group && i < request->n_present; i++) {
        uint32_t rank = request->present[i];
        if (rank < group->world_size && group->ranks[rank].node == node)
            group->ranks[rank].present_ms = clock_ms();
    }
}

void lead_save_join(struct service *service, struct rpc_call *call,
                    const Holdfast__V1__JoinRequest *request)
{
    Holdfast__V1__JoinReply reply = HOLDFAST__V1__JOIN_REPLY__INIT;
    uint32_t node;
    bool is_known = false;
    struct run *run = NULL;
    int error = find_node(&node, service, call, request->boot_id);
    if (error == 0)
        error = describe_join(service, request, node, &is_known);
    if (error == 0)
        error = run_find(&run, service, request->run, false);
    if (error == 0)
        note_present(run, request, node);
    if (error == 0 && is_known && !request->only_tells && run->coordinator->group->planned) {
        error = reply_plan(call, run->coordinator->group);
        if (error == 0)
            return;
    }
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    reply.is_known = is_known;
    rpc_call_reply(call, &reply.base);
}

/* ---- BeginPart ---- */

void lead_save_begin(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__BeginPartRequest *request)
{
    Holdfast__V1__BeginPartReply reply = HOLDFAST__V1__BEGIN_PART_REPLY__INIT;
    char nonce[33];
    uint32_t node;
    int error = find_node(&node, service, call, request->boot_id);
    if (error == 0)
        error = enter_remote(service, request, node, nonce);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    reply.nonce = nonce;
    rpc_call_reply(call, &reply.base);
}

/* ---- ReportPart ---- */

/* coordinating.C1. */
static struct save *find_save(const struct run *run, const Holdfast__V1__ReportPartRequest *request)
{
    struct save *save = run->coordinator->saves;
    while (save && (save->step != request->step || save->attempt != request->attempt ||
                    save->is_part || strcmp(save->nonce, request->nonce) != 0))
        save = save->next;
    return save;
}

/* Takes the digests of slices that other ranks hold as well. */
static int take_replicas(struct remote_part *remote, const struct group_rank *rank,
                         const Holdfast__V1__Part *part)
{
    size_t bytes = rank->num_replicas * sizeof *remote->replicas;
    if (part->n_replicas == 0)
        return 0;
    if (part->n_replicas != bytes / sizeof *part->replicas)
        return report_error(ERR_CORRUPT, "use the same release on both nodes",
                            "received %zu words of digests of %u replicas of rank %u",
                            part->n_replicas, rank->num_replicas, part->rank);
    remote->replicas = malloc(bytes);
    if (!remote->replicas)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of rank %u", part->rank);
    memcpy(remote->replicas, part->replicas, bytes);
    return 0;
}

/* The facts of a durable shard, for the manifest. */
static int take_shard(struct save *save, const Holdfast__V1__Part *part)
{
    const struct group_rank *rank = &save->group->ranks[part->rank];
    struct remote_part *remote = &save->remote[part->rank];
    if (remote->digests)
        return 0;
    if (part->n_digests != 2 * (size_t)rank->num_tensors ||
        part->bytes != rank->geometry.file_bytes || part->data_start != rank->geometry.data_start)
        return report_error(ERR_CORRUPT, "use the same release on both nodes",
                            "the shard of rank %u does not match the plan", part->rank);
    remote->digests = calloc(rank->num_tensors + 1, sizeof *remote->digests);
    if (!remote->digests)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of rank %u", part->rank);
    for (size_t i = 0; i < part->n_digests; i++)
        remote->digests[i / 2].sum[i % 2] = part->digests[i];
    ERR_TRY(take_replicas(remote, rank, part));
    remote->shard =
        (struct manifest_shard){part->bytes, part->data_start, part->header_hash, part->table_hash};
    return 0;
}

/* Takes one rank's part. The machine ignores parts that it knows or that come too late. */
static void take_part(struct save *save, struct commit_actions *actions,
                      const Holdfast__V1__Part *part, uint32_t node)
{
    bool is_durable = part->state == HOLDFAST__V1__PART_STATE__PART_DURABLE;
    int error = is_durable ? take_shard(save, part) : 0;
    if (part->state == HOLDFAST__V1__PART_STATE__PART_FAILED)
        error = report_error(ERR_ABORTED, NULL, "%.200s", part->reason);
    note_fault(save, error);
    coordinating_part(&save->run->coordinator->machine, actions, save->id,
                      &(struct coordinating_part){node, part->rank, part->state, error});
    if (error != 0)
        return;
    if (part->state >= HOLDFAST__V1__PART_STATE__PART_ENDED) {
        save->ended_ms = clock_ms();
        save_answer_accepted(save);
    }
    save_part_written(save, part->rank, is_durable ? UINT64_MAX : part->written);
}

/* coordinating.C1. ERR_DENIED: one of the parts is not of a rank of that node. */
static int check_parts(const struct save *save, const Holdfast__V1__ReportPartRequest *request,
                       uint32_t node)
{
    for (size_t i = 0; i < request->n_parts; i++) {
        uint32_t rank = request->parts[i]->rank;
        if (rank >= save->world_size || save->group->ranks[rank].node != node)
            return report_error(ERR_DENIED, NULL, "rank %u is not one of that node", rank);
    }
    return 0;
}

static void reply_answer(struct rpc_call *call, struct save *save,
                         const struct coordinating_report *report)
{
    Holdfast__V1__ReportPartReply reply = HOLDFAST__V1__REPORT_PART_REPLY__INIT;
    const struct coordinating_answer answer = coordinating_answer(
        &save->coordinating, &save->run->coordinator->machine, save->id, report);
    reply.verdict = answer.verdict;
    reply.accepted = answer.is_accepted;
    if (answer.verdict == HOLDFAST__V1__PART_VERDICT__VERDICT_OVER)
        reply.reason = "its coordinator has given it up";
    if (answer.has_manifest) {
        reply.manifest =
            (ProtobufCBinaryData){save->manifest_bytes, (uint8_t *)save->manifest_text};
    } else if (answer.verdict == HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE) {
        reply.manifest_at = (char *)(uintptr_t)name_of(save->service, answer.from);
        reply.manifest_hash = save->manifest_hash;
    }
    int error = rpc_call_check_reply(call, &reply.base);
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
}

/* A save that is over, whose manifest and places are in the store. */
struct keeping {
    struct service *service;
    struct rpc_call *call;
    struct manifest_summary summary;
    void *manifest, *places;
    size_t manifest_bytes, places_bytes;
    struct fault fault;
    struct job job;
};

static void work_fetch(struct job *job)
{
    struct keeping *keeping = CONTAINER_OF(job, struct keeping, job);
    struct storage *storage = keeping->service->storage;
    char key[STORAGE_KEY_MAX];
    int error = manifest_key(key, sizeof key, &keeping->summary);
    if (error == 0)
        error =
            storage_fetch_all(storage, key, TEXT_MAX, &keeping->manifest, &keeping->manifest_bytes);
    if (error == 0)
        error = places_key(key, sizeof key, &keeping->summary);
    if (error == 0)
        error = storage_fetch_all(storage, key, PLACES_BYTES_MAX, &keeping->places,
                                  &keeping->places_bytes);
    if (error != 0)
        fault_take(&keeping->fault, error);
}

static void fetched(struct event *event)
{
    struct keeping *keeping = CONTAINER_OF(event, struct keeping, job.done);
    Holdfast__V1__ReportPartReply reply = HOLDFAST__V1__REPORT_PART_REPLY__INIT;
    reply.verdict = HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT;
    reply.manifest = (ProtobufCBinaryData){keeping->manifest_bytes, keeping->manifest};
    reply.places = (ProtobufCBinaryData){keeping->places_bytes, keeping->places};
    if (keeping->fault.code == 0)
        rpc_call_reply(keeping->call, &reply.base);
    else
        rpc_call_fail(keeping->call, fault_raise(&keeping->fault));
    free(keeping->manifest);
    free(keeping->places);
    free(keeping);
}

/* Answers for a save that is not in work, by the contents of the store. */
static void reply_past(struct run *run, struct rpc_call *call,
                       const Holdfast__V1__ReportPartRequest *request)
{
    struct service *service = run->service;
    Holdfast__V1__ReportPartReply reply = HOLDFAST__V1__REPORT_PART_REPLY__INIT;
    const struct checkpoint *checkpoint = catalog_find(run, request->step, request->attempt);
    bool is_it = checkpoint && strcmp(checkpoint->summary.nonce, request->nonce) == 0;
    const struct coordinating_past past = {.is_here = is_it,
                                           .was_committed = is_it && checkpoint->was_committed,
                                           .is_unsure = request->attempt > run->newest_attempt ||
                                                        (checkpoint && checkpoint->damaged)};
    const struct failure *failure =
        outcomes_find(service, run->name, request->step, request->attempt);
    reply.reason =
        failure ? (char *)(uintptr_t)failure->reason : "its coordinator knows no such save";
    if (!coordinating_recall(&reply.verdict, request->placed, &past)) {
        rpc_call_fail(call, report_error(ERR_NOT_FOUND, NULL,
                                         "this node cannot tell what became of the save"));
        return;
    }
    if (reply.verdict == HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED)
        reply.replicas = checkpoint && checkpoint->replicas ? checkpoint->replicas : "";
    if (reply.verdict != HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT) {
        rpc_call_reply(call, &reply.base);
        return;
    }
    struct keeping *keeping = calloc(1, sizeof *keeping);
    if (!keeping) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to answer a node"));
        return;
    }
    *keeping = (struct keeping){.service = service, .call = call, .summary = checkpoint->summary};
    keeping->job = (struct job){.work = work_fetch, .done.run = fetched};
    loop_work(service->loop, &keeping->job);
}

void lead_save_report(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__ReportPartRequest *request)
{
    struct commit_actions actions = {0};
    struct run *run = NULL;
    uint32_t node;
    int error = find_node(&node, service, call, request->boot_id);
    if (error == 0)
        error = run_find(&run, service, request->run, false);
    struct save *save = error == 0 ? find_save(run, request) : NULL;
    if (save)
        error = check_parts(save, request, node);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    const struct coordinating_report report = {.node = node,
                                               .num_parts = (uint32_t)request->n_parts,
                                               .says_placed = request->placed,
                                               .has_missed = request->missed};
    for (size_t i = 0; save && i < request->n_parts; i++) {
        actions.count = 0;
        save->remote[request->parts[i]->rank].heard_ms = clock_ms();
        take_part(save, &actions, request->parts[i], node);
        run_perform(run, &actions);
        save = find_save(run, request);
    }
    if (save) {
        const struct coordinating_ranks ranks = {rank_of, save};
        actions.count = 0;
        const struct coordinating_loss loss = coordinating_reported(
            &save->coordinating, &run->coordinator->machine, &actions, save->id, &report, &ranks);
        note_fault(save, report_loss(service, &loss));
        run_perform(run, &actions);
        save = find_save(run, request);
    }
    if (save)
        reply_answer(call, save, &report);
    else
        reply_past(run, call, request);
}

/* ---- beginning and end ---- */

static void check_nodes(struct timer *timer)
{
    struct lead_save *lead = CONTAINER_OF(timer, struct lead_save, timer);
    give_up_saves(lead, 0);
    loop_timer(lead->service->loop, timer, CHECK_MS);
}

int lead_save_open(struct service *service)
{
    if (service->config->members.count == 0)
        return 0;
    service->lead_save = calloc(1, sizeof *service->lead_save);
    if (!service->lead_save)
        return report_error(ERR_MEMORY, NULL, "no memory for other nodes");
    service->lead_save->service = service;
    service->lead_save->timer.run = check_nodes;
    loop_timer(service->loop, &service->lead_save->timer, CHECK_MS);
    return 0;
}

void lead_save_close(struct service *service)
{
    free(service->lead_save);
    service->lead_save = NULL;
}
