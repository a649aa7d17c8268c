/* open.c - OpenLoad: chooses a checkpoint, reads its manifest, plans the copies from it.
 *
 *   OpenLoad ──► newest whole checkpoint, or the one asked for ──► worker: manifest, plan ──► load
 *
 * A load of "the newest" passes over a checkpoint whose manifest is damaged, quarantines it, and
 * names it in `skipped` (the first SKIPPED_MAX). It also passes over one with shards on a node that
 * does not answer, if it can reach an older one. If a client names an unknown step, ckptd refreshes
 * all tiers first. It refuses a plan that is too large for an answer, by its bytes or by BOXES_MAX
 * (ERR_INVALID). The daemon's own lack of memory, descriptors or rights says nothing about a
 * checkpoint. */
#include "ckptd/restore/open.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/resident.h"
#include "ckptd/memory/session.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/together.h"
#include "proto/base/report.h"
#include "proto/format/flaw.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/layout/layout.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED_MAX 16u
/* Of a plan. A box takes at least 16 bytes of an answer, except the one box of a tensor without
 * dimensions. */
#define BOXES_MAX (RPC_MESSAGE_BYTES_MAX / 16)

/* An OpenLoad in progress. */
struct opening {
    struct service *service;
    struct run *run;
    struct rpc_call *call;
    const Holdfast__V1__OpenLoadRequest *request;
    struct checkpoint *checkpoint; /* leased */
    enum tier_index tier;          /* the tier whose manifest is read */
    const struct manifest *cached; /* of the checkpoint, or NULL */
    struct manifest *manifest;     /* read by the worker, */
    struct places places;          /* read by the worker, if they are not known yet */
    bool needs_hold;               /* the worker makes the file of its lease as well */
    bool needs_far_hold;           /* the same in the far tier */
    struct storage_hold *hold, *far_hold;
    struct slice *slices;
    struct load_item *items;
    uint32_t num_items;
    bool is_damage; /* the fault is the checkpoint's, not the request's */
    struct fault fault;
    char *skipped[SKIPPED_MAX];
    uint32_t num_skipped;
    struct together_member together; /* with the other ranks of the attempt */
    struct job job;
};

static void let_go(struct opening *opening)
{
    if (opening->hold)
        held_release(opening->service, TIER_LOCAL, opening->hold);
    if (opening->far_hold)
        held_release(opening->service, TIER_FAR, opening->far_hold);
    opening->hold = opening->far_hold = NULL;
}

static void free_opening(struct opening *opening)
{
    for (uint32_t i = 0; i < opening->num_skipped; i++)
        free(opening->skipped[i]);
    let_go(opening);
    manifest_free(opening->manifest);
    places_free(&opening->places);
    free(opening->slices);
    free(opening->items);
    free(opening);
}

static void fail_opening(struct opening *opening, int error)
{
    rpc_call_fail(opening->call, error);
    together_end(&opening->together);
    free_opening(opening);
}

static void skip_checkpoint(struct opening *opening, const struct checkpoint *checkpoint,
                            const char *why)
{
    char text[sizeof checkpoint->damage + 64];
    if (opening->num_skipped == SKIPPED_MAX)
        return;
    snprintf(text, sizeof text, "step %llu, attempt %llu: %s",
             (unsigned long long)checkpoint->summary.step,
             (unsigned long long)checkpoint->summary.attempt, why);
    char *copy = strdup(text);
    if (copy)
        opening->skipped[opening->num_skipped++] = copy;
}

/* Does the request ask for this checkpoint? */
static bool wanted(const Holdfast__V1__OpenLoadRequest *request,
                   const struct checkpoint *checkpoint)
{
    uint64_t step = checkpoint->summary.step;
    if (request->attempt != 0 && checkpoint->summary.attempt != request->attempt)
        return false;
    if (request->step >= 0)
        return step == (uint64_t)request->step;
    return request->below_step < 0 || step < (uint64_t)request->below_step;
}

/* True for a load of the newest whose shards are on a node that does not answer. ckptd may be able
 * to read an older one. */
static bool is_away(struct opening *opening, const struct checkpoint *checkpoint)
{
    char why[64 + MEMBER_NAME_MAX];
    enum tier_index tier = copies_out_of_reach(checkpoint);
    if (opening->request->step >= 0 || tier == NUM_TIERS)
        return false;
    snprintf(why, sizeof why, "shards of it lie on %s, which does not answer",
             tier_name(opening->service, tier));
    skip_checkpoint(opening, checkpoint, why);
    return true;
}

/* Takes the checkpoint that was found, or the choice of the ranks that load together.
 * ERR_CORRUPT. */
static int take_checkpoint(struct opening *opening, struct checkpoint *found)
{
    const Holdfast__V1__OpenLoadRequest *request = opening->request;
    struct session *session = NULL;
    if (request->together && request->step < 0 && request->attempt == 0 &&
        request->below_step < 0) {
        ERR_TRY(session_find(&session, opening->service, request->session));
        if (session->is_rank && session->run == opening->run)
            ERR_TRY(together_enter(&opening->together, &found, session));
    }
    opening->checkpoint = found;
    return 0;
}

/* ERR_NOT_FOUND; ERR_CORRUPT when a step was named and is damaged. */
static int choose_checkpoint(struct opening *opening)
{
    struct checkpoint *found = opening->run->checkpoints, *away = NULL;
    for (uint32_t i = 0; i < opening->num_skipped; i++)
        free(opening->skipped[i]);
    opening->num_skipped = 0;
    opening->together = (struct together_member){.run = NULL};
    for (; found; found = found->next) {
        if (!wanted(opening->request, found))
            continue;
        if (!found->damaged && !is_away(opening, found))
            break;
        if (!found->damaged) {
            away = away ? away : found;
            continue;
        }
        if (catalog_has_flaw(found, FLAW_NEWER)) /* an older one would roll training back */
            return report_error(ERR_VERSION, "load with that version, or name an older step",
                                "step %llu, attempt %llu of run %s was saved by a later Holdfast: "
                                "%s",
                                (unsigned long long)found->summary.step,
                                (unsigned long long)found->summary.attempt, opening->run->name,
                                found->damage);
        skip_checkpoint(opening, found, found->damage);
        if (opening->request->step >= 0)
            return report_error(
                ERR_CORRUPT, "load another step", "step %llu of run %s is damaged: %s",
                (unsigned long long)found->summary.step, opening->run->name, found->damage);
    }
    found = found ? found : away; /* the load reports the missing shards */
    if (found)
        return take_checkpoint(opening, found);
    char step[32] = "";
    if (opening->request->step >= 0)
        snprintf(step, sizeof step, " of step %lld", (long long)opening->request->step);
    return report_error(ERR_NOT_FOUND, "see ckpt-cli list", "run %s has no checkpoint%s%s%s",
                        opening->run->name, step, opening->num_skipped ? " that is whole" : "",
                        opening->request->attempt != 0 ? " by that attempt" : "");
}

static int read_manifest(struct opening *opening)
{
    return opening->cached ? 0
                           : store_read_manifest(&opening->manifest,
                                                 opening->service->tiers[opening->tier].storage,
                                                 &opening->checkpoint->summary);
}

static void work_open(struct job *job)
{
    struct opening *opening = CONTAINER_OF(job, struct opening, job);
    int error = opening->needs_far_hold ? held_take_far(&opening->far_hold, opening->service,
                                                        &opening->checkpoint->summary)
                                        : 0;
    bool is_going = error != 0; /* another machine removes it there */
    if (error == 0)
        error = read_manifest(opening);
    if (error == 0 && !opening->cached && opening->tier != TIER_FAR)
        error = store_read_places(&opening->places, opening->service->tiers[opening->tier].storage,
                                  &opening->checkpoint->summary);
    /* The daemon's own lack of memory, descriptors or rights says nothing about the checkpoint, nor
     * does a remote tier that does not answer. */
    opening->is_damage =
        error != 0 && !is_going && error != ERR_MEMORY && error != ERR_BUSY &&
        error != ERR_DENIED &&
        (opening->tier == TIER_LOCAL || error == ERR_CORRUPT || error == ERR_NOT_FOUND);
    const struct manifest *manifest = opening->cached ? opening->cached : opening->manifest;
    if (error == 0)
        error = layout_plan_load(
            &opening->items, &opening->num_items, manifest->table,
            &(struct load_wish){opening->slices, (uint32_t)opening->request->n_slices, BOXES_MAX});
    if (error != 0)
        fault_take(&opening->fault, error);
    else if (opening->needs_hold)
        held_take(&opening->hold, opening->service->storage, &opening->checkpoint->summary);
}

static void opened(struct event *event);

static void start_opening(struct opening *opening)
{
    int error = choose_checkpoint(opening);
    if (error != 0) {
        fail_opening(opening, error);
        return;
    }
    catalog_lease(opening->checkpoint);
    opening->cached = opening->checkpoint->manifest;
    opening->tier = catalog_source(opening->checkpoint);
    opening->needs_hold = !opening->checkpoint->hold;
    opening->needs_far_hold = opening->tier == TIER_FAR && !opening->checkpoint->far_hold;
    opening->is_damage = false;
    opening->fault = (struct fault){0};
    opening->job = (struct job){.work = work_open, .done.run = opened};
    bool is_near = opening->cached && !opening->needs_far_hold;
    tier_work(opening->service, is_near ? TIER_LOCAL : opening->tier, &opening->job);
}

static void fill_item(Holdfast__V1__LoadItem *out, struct load_item *item,
                      const struct opening *opening)
{
    uint32_t dims = opening->slices[item->slice].tensor.dims;
    holdfast__v1__load_item__init(out);
    out->slice = item->slice;
    out->shard = item->shard;
    out->shard_byte =
        opening->checkpoint->manifest->shards[item->shard].data_start + item->data_byte;
    out->saved_offset = item->saved.offset;
    out->saved_extent = item->saved.extent;
    out->offset = item->part.offset;
    out->extent = item->part.extent;
    out->n_saved_offset = out->n_saved_extent = out->n_offset = out->n_extent = dims;
}

/* Returns an error and does not answer it: the caller ends the load, as no client has its number
 * yet. */
static int reply_opened(struct opening *opening, struct load *load)
{
    const struct manifest *manifest = opening->checkpoint->manifest;
    Holdfast__V1__OpenLoadReply reply = HOLDFAST__V1__OPEN_LOAD_REPLY__INIT;
    Holdfast__V1__CheckpointSummary summary;
    Holdfast__V1__LoadItem *items = calloc(opening->num_items + 1, sizeof *items);
    Holdfast__V1__LoadItem **pointers = calloc(opening->num_items + 1, sizeof *pointers);
    if (!items || !pointers) {
        free(items);
        free(pointers);
        return report_error(ERR_MEMORY, NULL, "no memory for the answer to a load");
    }
    for (uint32_t i = 0; i < opening->num_items; i++) {
        fill_item(&items[i], &opening->items[i], opening);
        pointers[i] = &items[i];
    }
    resident_summary(&summary, opening->checkpoint);
    reply.load = load->number;
    reply.checkpoint = &summary;
    reply.state_json = manifest->state_json;
    reply.identity_json = manifest->identity_json;
    reply.config_json = manifest->config_json;
    reply.data_json = manifest->data_json;
    reply.items = pointers;
    reply.n_items = opening->num_items;
    reply.skipped = opening->skipped;
    reply.n_skipped = opening->num_skipped;
    reply.session = load->session->token;
    reply.segment_bytes = pool_segment_bytes(opening->service->pool);
    reply.together = load->together.run != NULL;
    int error = rpc_call_check_reply(opening->call, &reply.base);
    if (error == 0)
        rpc_call_reply(opening->call, &reply.base);
    free(items);
    free(pointers);
    return error;
}

/* The session of the request, or a new one. */
static int session_of(struct session **out, struct opening *opening)
{
    if (opening->request->session != 0)
        return session_find(out, opening->service, opening->request->session);
    return session_new(out, opening->service, opening->run);
}

static int finish_opening(struct opening *opening)
{
    struct checkpoint *checkpoint = opening->checkpoint;
    struct session *session = NULL;
    struct load *load = NULL;
    if (!checkpoint->manifest) {
        checkpoint->manifest = opening->manifest;
        opening->manifest = NULL;
    }
    int error = session_of(&session, opening);
    if (error == 0)
        error = catalog_set_places(checkpoint, opening->tier, &opening->places);
    if (error == 0)
        error = load_new(&load, session, checkpoint, &opening->hold, opening->items,
                         opening->num_items, opening->slices);
    if (error == 0) {
        held_enter_far(checkpoint, &opening->far_hold);
        load->together = opening->together;
        error = reply_opened(opening, load);
    }
    if (error != 0) {
        struct fault fault;
        fault_take(&fault, error);
        if (load)
            load_end(load);
        else if (session && !session->is_rank && session->num_loads == 0)
            session_end(session, "its load could not be opened");
        return fault_raise(&fault);
    }
    if (session->is_rank && session->run == opening->run) {
        attempt_set_parent(opening->run, checkpoint->summary.step, checkpoint->summary.attempt);
        checkpoint->is_wanted_local = !checkpoint->copies.local.is_there;
    }
    log_debug("restore", "run %s: load %llu of step %llu, %u boxes", opening->run->name,
              (unsigned long long)load->number, (unsigned long long)checkpoint->summary.step,
              opening->num_items);
    service_retry_waiting(opening->service); /* its shards are read ahead */
    return 0;
}

/* Images in memory and plans of open loads rest on the manifest that was saved or read first:
 * ERR_CORRUPT for any other. */
static int hold_to_first_manifest(const struct opening *opening)
{
    struct checkpoint *checkpoint = opening->checkpoint;
    uint64_t *hash = opening->tier == TIER_LOCAL
                         ? &checkpoint->manifest_hash
                         : &copies_note(checkpoint, opening->tier)->manifest_hash;
    if (!opening->manifest)
        return 0;
    if (*hash == 0)
        *hash = opening->manifest->text_hash;
    return *hash == opening->manifest->text_hash
               ? 0
               : report_error(ERR_CORRUPT, NULL, "its manifest was replaced after ckptd read it");
}

static void opened(struct event *event)
{
    struct opening *opening = CONTAINER_OF(event, struct opening, job.done);
    struct checkpoint *checkpoint = opening->checkpoint;
    if (opening->fault.code == 0 && hold_to_first_manifest(opening) != 0) {
        opening->is_damage = true;
        fault_take(&opening->fault, ERR_CORRUPT);
    }
    if (opening->fault.code == 0) {
        int error = finish_opening(opening);
        catalog_unlease(checkpoint);
        if (error != 0)
            fail_opening(opening, error);
        else
            free_opening(opening);
        return;
    }
    catalog_unlease(checkpoint);
    if (!opening->is_damage) {
        fail_opening(opening, fault_raise(&opening->fault));
        return;
    }
    if (!checkpoint->damaged && !copies_at(checkpoint, opening->tier)->is_damaged)
        catalog_damage(checkpoint, opening->tier, &opening->fault);
    let_go(opening);
    manifest_free(opening->manifest);
    places_free(&opening->places);
    free(opening->items);
    opening->manifest = NULL;
    opening->items = NULL;
    start_opening(opening); /* the next one, or the error that explains why there is none */
}

static void open_load(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__OpenLoadRequest *request)
{
    struct opening *opening = calloc(1, sizeof *opening);
    struct session *session;
    if (!opening) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for a load"));
        return;
    }
    opening->service = service;
    opening->call = call;
    opening->request = request;
    int error = service_check_open(service);
    if (error == 0 && request->session != 0)
        error = session_find(&session, service, request->session);
    if (error == 0)
        error = run_find(&opening->run, service, request->run, false);
    if (error == 0)
        error = describe_take_slices(&opening->slices, request->slices, request->n_slices);
    if (error != 0)
        fail_opening(opening, error);
    else
        start_opening(opening);
}

static void open_known(struct service *service, struct rpc_call *call,
                       const ProtobufCMessage *request)
{
    open_load(service, call, (const Holdfast__V1__OpenLoadRequest *)request);
}

static bool is_known(struct service *service, const Holdfast__V1__OpenLoadRequest *request)
{
    struct run *run = NULL;
    const struct checkpoint *checkpoint = NULL;
    if (run_find(&run, service, request->run, false) == 0)
        checkpoint = run->checkpoints;
    while (checkpoint && !wanted(request, checkpoint))
        checkpoint = checkpoint->next;
    report_clear();
    return checkpoint != NULL;
}

/* A client that names a step may have heard of it at the node that has just saved it. */
void restore_open_load(struct service *service, struct rpc_call *call,
                       const Holdfast__V1__OpenLoadRequest *request)
{
    if (request->step >= 0 && !is_known(service, request))
        refresh_first(service, -1, call, &request->base, open_known);
    else
        open_load(service, call, request);
}
