/* remove.c - Remove: removes a checkpoint, a set-aside directory or a whole run that an operator
 * names. It also removes checkpoints that no rule may remove: damaged, newer, set-aside or last
 * ones.
 *
 * It removes this node's copies: on the disk, in the far tier, and in memory, where there is no
 * trash. The reply names copies on other nodes: a node may not remove at another (peers/serve.c).
 *
 *   Remove ──► out of the catalog, so that it cannot be opened ──► worker: store_erase, or for a
 *              run store_erase_run ──► gone; or back in the list, with the reason
 *
 * Pins, readers, and a run that is being trained make ckptd refuse the call before anything is
 * removed. While a run is removed, every other call on it is answered ERR_BUSY; afterwards its slot
 * of limits.runs is free. If not all of a run could be removed, ckptd refuses calls that name it,
 * until a forced call has removed the rest, or ckptd is restarted. Of such a run, and of one that
 * could not be read at the start, the checkpoints are unknown: only a forced call removes it. */
#include "ckptd/keep/remove.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/trash.h"
#include "ckptd/memory/resident.h"
#include "ckptd/memory/session.h"
#include "ckptd/refresh/refresh.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/flaw.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOURNAL_MS 5 /* between two checks whether the journal is still being written */
/* Of run->adopting: no attempt is opened, no checkpoint is adopted. */
#define ADOPTING_ALL UINT64_MAX

struct removal {
    struct service *service;
    struct rpc_call *call;
    struct run *run;
    struct checkpoint *checkpoint; /* out of the list; NULL: the whole run is removed */
    uint64_t terms[2]; /* in the trash, of the local tier and the far one; 0: removed for good */
    bool to_trash;     /* in any tier */
    bool is_unread;    /* all of a run of which ckptd does not know what it has */
    bool is_on[NUM_TIERS]; /* whether the tier has any of it */
    char elsewhere[MEMBERS_PEERS_MAX * MEMBER_NAME_MAX];
    char prefix[STORAGE_KEY_MAX];
    Holdfast__V1__RemoveReply reply;
    struct fault fault;
    struct timer timer;
    struct job job;
};

static void count(struct removal *removal, const struct checkpoint *checkpoint)
{
    Holdfast__V1__RemoveReply *reply = &removal->reply;
    reply->checkpoints++;
    reply->damaged += checkpoint->damaged;
    reply->bytes += checkpoint->summary.bytes;
    for (uint32_t i = 0; i < copies_count(checkpoint); i++)
        removal->is_on[copies_get(checkpoint, i)->tier] |= copies_get(checkpoint, i)->is_there;
}

static void name_others(struct removal *removal)
{
    size_t used = 0;
    for (unsigned tier = TIER_PEER; tier < TIER_FAR; tier++)
        if (removal->is_on[tier])
            used += (size_t)snprintf(removal->elsewhere + used, sizeof removal->elsewhere - used,
                                     "%s%s", used > 0 ? "," : "",
                                     tier_name(removal->service, (enum tier_index)tier));
    removal->reply.elsewhere = removal->elsewhere;
}

/* The disk and the far tier hold files of a run besides its checkpoints. */
static bool is_in(const struct removal *removal, enum tier_index tier)
{
    bool has_tier = removal->service->tiers[tier].storage != NULL;
    bool is_all = !removal->checkpoint && tier != TIER_MEMORY;
    return has_tier && (is_all || removal->is_on[tier]);
}

static int remove_in(const struct removal *removal, enum tier_index tier)
{
    struct storage *storage = removal->service->tiers[tier].storage;
    uint64_t now = (uint64_t)time(NULL), count;
    bool to_trash = tier != TIER_MEMORY && removal->terms[tier == TIER_FAR] > 0;
    int error = 0;
    if (!is_in(removal, tier))
        return 0;
    if (to_trash && removal->checkpoint)
        error = store_trash_put(storage, removal->prefix, now, true);
    else if (to_trash)
        error = store_trash_put_all(storage, removal->prefix, now, &count);
    else if (removal->checkpoint)
        error = store_erase(storage, removal->prefix);
    else
        error = store_erase_run(storage, removal->prefix);
    return error;
}

/* The far tier first: if that fails, the checkpoint stays listed, and the call may be repeated. */
static void work_remove(struct job *job)
{
    struct removal *removal = CONTAINER_OF(job, struct removal, job);
    int error = remove_in(removal, TIER_FAR);
    if (error == 0)
        error = remove_in(removal, TIER_LOCAL);
    if (error == 0)
        error = remove_in(removal, TIER_MEMORY);
    if (error != 0)
        fault_take(&removal->fault, error);
}

/* Only the run's entry in the list of runs stays, which is vacant. */
static void forget_run(struct run *run)
{
    struct coordinator *coordinator = run->coordinator;
    if (coordinator->group)
        group_free(coordinator->group);
    attempt_free(coordinator->attempt);
    coordinator->group = NULL;
    coordinator->attempt = NULL;
    run->newest_attempt = 0;
    sets_free(&run->sets);
    commit_init(&coordinator->machine, 0);
    run->scrubbed = (struct scrub_cursor){0};
    run->proven = (struct proven){0};
    run->health = (struct run_health){0};
    free(run->history.lines);
    run->history = (struct history){0};
}

static void settle_checkpoint(struct removal *removal)
{
    struct checkpoint *checkpoint = removal->checkpoint;
    if (removal->fault.code != 0) {
        catalog_enter(checkpoint, &checkpoint->summary);
        return;
    }
    history_note(removal->run,
                 &(struct history_event){.name = "remove",
                                         .step = checkpoint->summary.step,
                                         .attempt = checkpoint->summary.attempt,
                                         .detail = removal->to_trash ? "into the trash" : "",
                                         .call = removal->call});
    catalog_drop(checkpoint);
}

static void settle_run(struct removal *removal)
{
    struct run *run = removal->run;
    run->unreadable = (struct fault){0};
    if (removal->fault.code == 0) {
        struct history_event event = {.name = "remove", .call = removal->call};
        event.detail = removal->to_trash ? "all of them, into the trash" : "all of them";
        if (!removal->to_trash) { /* its attempts stay with the trash */
            history_log(run->name, &event);
            forget_run(run);
        } else {
            history_note(run, &event);
        }
        if (removal->is_unread && removal->to_trash) /* its attempts stay, and are unknown */
            fault_take(&run->unreadable,
                       report_error(ERR_IO, "start ckptd again",
                                    "run %s was not read since it went into the trash", run->name));
        return;
    }
    fault_raise(&removal->fault);
    report_error(ERR_IO, "remove it again with --force, or start ckptd again",
                 "not all of run %s was removed: %s", run->name, report_line());
    fault_take(&run->unreadable, ERR_IO);
}

static void removed(struct event *event)
{
    struct removal *removal = CONTAINER_OF(event, struct removal, job.done);
    removal->run->adopting = 0;
    if (tier_has_far(removal->service))
        refresh_changed(removal->service);
    if (removal->checkpoint)
        settle_checkpoint(removal);
    else
        settle_run(removal);
    trash_sweep_soon(removal->service, TIER_LOCAL);
    trash_sweep_soon(removal->service, TIER_FAR);
    if (removal->fault.code == 0) {
        ledger_note(&removal->service->ledger, clock_ms(), -(int64_t)removal->reply.bytes);
        log_info("remove", "%s is removed: %llu checkpoints, %llu bytes%s", removal->prefix,
                 (unsigned long long)removal->reply.checkpoints,
                 (unsigned long long)removal->reply.bytes,
                 removal->to_trash ? ", into the trash" : "");
        rpc_call_reply(removal->call, &removal->reply.base);
    } else {
        rpc_call_fail(removal->call, fault_raise(&removal->fault));
    }
    free(removal);
}

/* ---- checks ---- */

static int check_run(const struct run *run, bool is_whole)
{
    const struct coordinator *coordinator = run->coordinator;
    if (run->pruning || run->adopting != 0 || gc_is_removing(run->service))
        return report_error(ERR_BUSY, "try again", "run %s is being changed", run->name);
    if (!is_whole)
        return 0;
    bool is_trained = coordinator->saves || coordinator->opening.call || coordinator->describing ||
                      coordinator->take.busy || session_any_of(run);
    return is_trained ? report_error(ERR_BUSY, "end its ranks first",
                                     "run %s is being trained or read", run->name)
                      : 0;
}

/* ERR_DENIED: nobody knows what the run has; or the rest of a removal is left. */
static int check_unread_run(const struct run *run, bool is_forced)
{
    return is_forced ? 0
                     : report_error(ERR_DENIED,
                                    "fix that and start ckptd again, or remove it with --force",
                                    "%s", run->unreadable.message);
}

/* ERR_DENIED: it may be whole, because a read failed; or its coordinator may still declare it a
 * checkpoint. */
static int check_unknown(const struct checkpoint *checkpoint, bool is_forced)
{
    bool is_in_doubt = catalog_has_flaw(checkpoint, FLAW_IN_DOUBT);
    bool is_unread = catalog_has_flaw(checkpoint, FLAW_UNREAD);
    if (is_forced || (!is_in_doubt && !is_unread))
        return 0;
    return report_error(ERR_DENIED,
                        is_in_doubt ? "wait for that node, or remove it with --force"
                                    : "fix the cause of its read errors, or remove it with --force",
                        "step %llu of run %s %s: %s", (unsigned long long)checkpoint->summary.step,
                        checkpoint->run->name, is_in_doubt ? "is in doubt" : "could not be read",
                        checkpoint->damage);
}

/* Whether a call may remove it; also for a dry run. */
static int check_one(const struct checkpoint *checkpoint, bool is_forced)
{
    const char *run = checkpoint->run->name;
    unsigned long long step = checkpoint->summary.step;
    ERR_TRY(check_unknown(checkpoint, is_forced));
    if (catalog_in_use(checkpoint))
        return report_error(ERR_BUSY, "try again when it is closed",
                            "step %llu of run %s is being read", step, run);
    return catalog_pin(checkpoint) ? report_error(ERR_DENIED, "unpin it first",
                                                  "step %llu of run %s is pinned", step, run)
                                   : 0;
}

static int take_out_one(struct removal *removal, const Holdfast__V1__RemoveRequest *request)
{
    struct checkpoint *found = catalog_find(removal->run, request->step, request->attempt);
    if (!found)
        return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`",
                            "run '%s' has no checkpoint of step %llu by that attempt",
                            removal->run->name, (unsigned long long)request->step);
    ERR_TRY(check_one(found, request->force));
    count(removal, found);
    if (request->dry_run)
        return 0;
    CHECK(resident_take_out(found));
    removal->checkpoint = found;
    return 0;
}

static int take_out_all(struct removal *removal, const Holdfast__V1__RemoveRequest *request)
{
    struct run *run = removal->run;
    for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
        ERR_TRY(check_one(c, request->force));
        count(removal, c);
    }
    while (!request->dry_run && run->checkpoints) {
        struct checkpoint *checkpoint = run->checkpoints;
        CHECK(resident_take_out(checkpoint));
        catalog_drop(checkpoint);
    }
    return 0;
}

/* The reply has the longer term. */
static void note_terms(struct removal *removal)
{
    for (unsigned i = 0; i < 2; i++) {
        enum tier_index tier = i == 0 ? TIER_LOCAL : TIER_FAR;
        removal->terms[i] = is_in(removal, tier) ? trash_term(removal->run, tier) : 0;
        if (removal->reply.trash_seconds < removal->terms[i])
            removal->reply.trash_seconds = removal->terms[i];
    }
    removal->to_trash = removal->reply.trash_seconds > 0;
}

static int begin_removal(struct removal *removal, const Holdfast__V1__RemoveRequest *request)
{
    struct service *service = removal->service;
    bool is_whole = request->attempt == 0;
    int error = service_check_open(service);
    if (error == 0 && !request->dry_run)
        error = service_check_online(service);
    if (error == 0)
        error = run_find(&removal->run, service, request->run, false);
    removal->is_unread = error != 0 && removal->run && is_whole;
    if (error == 0 || removal->is_unread)
        error = check_run(removal->run, is_whole);
    if (error == 0 && removal->is_unread)
        error = check_unread_run(removal->run, request->force);
    if (error == 0 && is_whole)
        snprintf(removal->prefix, sizeof removal->prefix, "%s", removal->run->name);
    else if (error == 0)
        error = shard_dir_key(removal->prefix, sizeof removal->prefix, removal->run->name,
                              request->step, request->attempt);
    if (error == 0)
        error = is_whole ? take_out_all(removal, request) : take_out_one(removal, request);
    if (error == 0 && !request->now && (removal->reply.checkpoints > 0 || removal->is_unread))
        note_terms(removal);
    name_others(removal);
    return error;
}

/* Waits for a journal write and the trash: else a write after the removal creates the run's
 * directory again. */
static void start_removal(struct timer *timer)
{
    struct removal *removal = CONTAINER_OF(timer, struct removal, timer);
    struct loop *loop = removal->service->loop;
    bool is_written = history_is_written(removal->run) || removal->service->trash->is_busy;
    if (!removal->checkpoint && is_written) {
        loop_timer(loop, timer, JOURNAL_MS);
        return;
    }
    removal->job = (struct job){.work = work_remove, .done.run = removed};
    struct service *service = removal->service;
    tier_work(service, tier_has_far(service) ? TIER_FAR : TIER_LOCAL, &removal->job);
}

void remove_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__RemoveRequest *request)
{
    struct removal *removal = calloc(1, sizeof *removal);
    if (!removal) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for a removal"));
        return;
    }
    removal->service = service;
    removal->call = call;
    holdfast__v1__remove_reply__init(&removal->reply);
    removal->reply.durability = (char *)(uintptr_t)DURABILITY_LOCAL;
    int error = begin_removal(removal, request);
    if (error != 0 || request->dry_run) {
        if (error != 0)
            rpc_call_fail(call, error);
        else
            rpc_call_reply(call, &removal->reply.base);
        free(removal);
        return;
    }
    removal->run->adopting = ADOPTING_ALL;
    if (!removal->checkpoint) {
        report_error(ERR_BUSY, "try again", "run %s is being removed", removal->run->name);
        fault_take(&removal->run->unreadable, ERR_BUSY);
    }
    removal->timer.run = start_removal;
    start_removal(&removal->timer);
}
