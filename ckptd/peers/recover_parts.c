/* recover_parts.c - settles parts of saves that another node coordinated, after this node was
 * restarted: directories with a mark that names that node, without a manifest. It asks the
 * coordinator.
 *
 *   in doubt in the catalog ──► its mark names a coordinator ──► ReportPart without parts
 *   KEPT            ──► the manifest is written here: a checkpoint like the others
 *   OVER            ──► the mark is replaced by one of this node; the unfinished files are removed
 *   WAIT, no answer ──► the part stays, and is asked about again
 *
 * One at a time, every RETRY_MS. */
#include "ckptd/peers/recover_parts.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/scan.h"
#include "ckptd/machines/participating.h"
#include "ckptd/memory/resident.h"
#include "ckptd/peers/join_part.h"
#include "ckptd/peers/peer_call.h"
#include "proto/base/report.h"
#include "proto/format/flaw.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_MS 200
#define RETRY_MS 1000

struct asking {
    struct peer_call peer_call;
    Holdfast__V1__ReportPartRequest request;
    struct run *run; /* it has a checkpoint, so it is not freed */
    struct shard_identity identity;
    char run_name[RUN_NAME_MAX + 1];
    uint64_t step, attempt;
    struct participating part;
    enum participating_action action; /* set when the coordinator has answered */
    struct manifest_summary summary;
    struct places places;
};

static int dir_of(char out[STORAGE_KEY_MAX], const struct asking *asking)
{
    return shard_dir_key(out, STORAGE_KEY_MAX, asking->run_name, asking->step, asking->attempt);
}

/* ---- on the crew ---- */

/* Finds the coordinator by the mark. ERR_NOT_FOUND: this is no part of a peer's save. */
static int read_mark(struct peer_call *peer_call)
{
    struct asking *asking = CONTAINER_OF(peer_call, struct asking, peer_call);
    char dir[STORAGE_KEY_MAX], coordinator[MARK_NODE_BYTES];
    ERR_TRY(dir_of(dir, asking));
    ERR_TRY(store_read_part(&asking->identity, coordinator, peer_call->service->storage, dir));
    unsigned tier = catalog_tier_of(peer_call->service, coordinator);
    if (tier == NUM_TIERS || tier == TIER_LOCAL)
        return report_error(ERR_NOT_FOUND, NULL, "no peer coordinates it");
    peer_call->peer = tier - TIER_PEER;
    asking->request.nonce = asking->identity.nonce;
    return 0;
}

static int remove_part(struct asking *asking)
{
    struct service *service = asking->peer_call.service;
    char dir[STORAGE_KEY_MAX];
    ERR_TRY(dir_of(dir, asking));
    ERR_TRY(store_mark(service->storage, &(struct store_mark){.identity = asking->identity,
                                                              .boot_id = service->boot_id,
                                                              .may_replace = true}));
    return store_clear(service->storage, dir);
}

static int place_part(struct asking *asking, const Holdfast__V1__ReportPartReply *reply)
{
    struct service *service = asking->peer_call.service;
    struct manifest_summary summary;
    size_t head =
        reply->manifest.len < MANIFEST_SUMMARY_BYTES ? reply->manifest.len : MANIFEST_SUMMARY_BYTES;
    ERR_TRY(manifest_read_summary(&summary, (const char *)reply->manifest.data, head));
    ERR_TRY(places_read(&asking->places, (const char *)reply->places.data, reply->places.len,
                        &summary));
    snprintf(asking->places.here, sizeof asking->places.here, "%s", service->config->nodes_name);
    ERR_TRY(part_place(&asking->summary, service->storage, reply->manifest.data,
                       reply->manifest.len, asking->identity.nonce, &asking->places));
    return store_inspect_committed(&asking->summary, NULL, service->storage, asking->run->name,
                                   asking->step, asking->attempt);
}

static int perform_verdict(struct peer_call *peer_call)
{
    struct asking *asking = CONTAINER_OF(peer_call, struct asking, peer_call);
    const Holdfast__V1__ReportPartReply *reply =
        (const Holdfast__V1__ReportPartReply *)peer_call->reply;
    int error = 0;
    asking->action =
        participating_answered(&asking->part, &(struct participating_report){0}, reply->verdict);
    if (asking->action == PARTICIPATING_PLACE) {
        error = place_part(asking, reply);
        asking->action = participating_placed(&asking->part, error == 0, false);
    } else if (asking->action == PARTICIPATING_DISCARD) {
        error = remove_part(asking);
    }
    return error;
}

/* ---- on the service thread ---- */

static void add_to_catalog(struct asking *asking)
{
    struct checkpoint *checkpoint;
    if (catalog_add(&checkpoint, asking->run, &asking->summary, TIER_LOCAL, &asking->places) != 0)
        log_warn("catalog", "%s", report_line()); /* the next start lists it */
}

static void settle_part(struct asking *asking)
{
    struct checkpoint *part = catalog_find(asking->run, asking->step, asking->attempt);
    if (!part || !catalog_has_flaw(part, FLAW_IN_DOUBT) || !resident_take_out(part))
        return;
    catalog_drop(part);
    log_info("catalog", "run %s, step %llu, attempt %llu: its part on this node %s",
             asking->run_name, (unsigned long long)asking->step,
             (unsigned long long)asking->attempt,
             asking->action == PARTICIPATING_KEEP
                 ? "belongs to a checkpoint, according to its coordinator"
                 : "was given up, according to its coordinator, and is removed");
    if (asking->action == PARTICIPATING_KEEP)
        add_to_catalog(asking);
}

static void verdict_received(struct peer_call *peer_call)
{
    struct asking *asking = CONTAINER_OF(peer_call, struct asking, peer_call);
    struct service *service = peer_call->service;
    bool is_settled = peer_call->fault.code == 0 && asking->part.state == PARTICIPATING_OVER;
    if (is_settled)
        settle_part(asking);
    loop_timer(service->loop, &service->followers->timer, is_settled ? 1 : RETRY_MS);
    peer_call_end(peer_call);
    places_free(&asking->places);
    free(asking);
}

/* The parts that are in doubt in turn, so that one without an answer delays no other; or NULL. */
static const struct checkpoint *find_in_doubt(struct followers *followers)
{
    const struct checkpoint *first = NULL, *found = NULL;
    uint64_t at = 0;
    for (struct run *run = followers->service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
            if (!catalog_has_flaw(c, FLAW_IN_DOUBT))
                continue;
            first = first ? first : c;
            if (at++ == followers->turn)
                found = c;
        }
    followers->turn = found ? followers->turn + 1 : 1;
    return found ? found : first;
}

static void ask_next_part(struct timer *timer)
{
    struct followers *followers = CONTAINER_OF(timer, struct followers, timer);
    struct service *service = followers->service;
    const struct checkpoint *part = find_in_doubt(followers);
    struct asking *asking = part ? calloc(1, sizeof *asking) : NULL;
    if (!asking) {
        loop_timer(service->loop, timer, RETRY_MS);
        return;
    }
    holdfast__v1__report_part_request__init(&asking->request);
    asking->run = part->run;
    asking->step = asking->request.step = part->summary.step;
    asking->attempt = asking->request.attempt = part->summary.attempt;
    snprintf(asking->run_name, sizeof asking->run_name, "%s", part->run->name);
    asking->request.run = asking->run_name;
    asking->request.boot_id = service->boot_id;
    participating_recover(&asking->part);
    asking->peer_call =
        (struct peer_call){.service = service,
                           .method = "ReportPart",
                           .request = &asking->request.base,
                           .reply_type = &holdfast__v1__report_part_reply__descriptor,
                           .before = read_mark,
                           .then = perform_verdict,
                           .done = verdict_received};
    peer_call_send(&asking->peer_call);
}

void recover_parts_start(struct service *service)
{
    service->followers->service = service;
    service->followers->timer.run = ask_next_part;
    loop_timer(service->loop, &service->followers->timer, FIRST_MS);
}
