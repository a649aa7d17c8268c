/* pins.c - Pin: an operator's hold on a checkpoint, as a note beside it, which retention reads anew
 * for every plan (retain.c).
 *
 *   worker: the note in this node's store ──► is it in the far tier, or being sent there?
 *                                               │ yes ──► crew: the note there ──► answer
 *                                               └ no ───────────────────────────► answer
 *
 * So the pin holds for every ckptd and tool that removes from the far tier. A checkpoint that
 * drains later takes its pin along (tiers/remote_manifest.c). A drain that began before may have
 * read the note already, so this call writes the pin there. Unpinning removes both notes; the note
 * in another node's store belongs to that node.
 *
 * If the far tier does not accept the note, the call fails and may be repeated: the local note
 * stays and holds here. */
#include "ckptd/keep/pins.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/refresh/refresh.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pinning {
    struct service *service;
    struct rpc_call *call;
    struct run *run;
    uint64_t step, attempt;
    bool is_unpin;
    char note[PIN_NOTE_MAX]; /* as requested */
    struct pin there[2];     /* as stored: here, and in the far tier */
    bool is_changed;         /* by this call */
    /* is_here: the note here is written; is_far: the far tier needs it as well. */
    bool is_here, is_far;
    char prefix[STORAGE_KEY_MAX];
    struct fault fault;
    struct job job;
};

static void free_pinning(struct pinning *pinning)
{
    free(pinning->there[0].note);
    free(pinning->there[1].note);
    free(pinning);
}

/* A note that is already as requested is no error here. */
static int change_note(struct pinning *pinning, struct storage *storage, struct pin *out)
{
    int error = pinning->is_unpin
                    ? store_remove_note(storage, STORE_PIN, pinning->prefix)
                    : store_put_note(storage, STORE_PIN, pinning->prefix, pinning->note);
    bool was_so = error == (pinning->is_unpin ? ERR_NOT_FOUND : ERR_EXISTS);
    pinning->is_changed |= error == 0;
    if (error != 0 && !was_so)
        return error;
    return pinning->is_unpin ? 0
                             : catalog_read_pin(out, storage, pinning->run->name, pinning->step,
                                                pinning->attempt);
}

static void work_pin(struct job *job)
{
    struct pinning *pinning = CONTAINER_OF(job, struct pinning, job);
    int error = change_note(pinning, pinning->service->storage, &pinning->there[0]);
    pinning->is_here = error == 0;
    if (error != 0)
        fault_take(&pinning->fault, error);
}

static void work_pin_far(struct job *job)
{
    struct pinning *pinning = CONTAINER_OF(job, struct pinning, job);
    struct service *service = pinning->service;
    int error = change_note(pinning, service->tiers[TIER_FAR].storage, &pinning->there[1]);
    if (error != 0)
        fault_take(&pinning->fault,
                   report_error(error, "try again", "it is %s only on this node; the far tier: %s",
                                pinning->is_unpin ? "unpinned" : "pinned", report_message()));
}

/* ---- the answer ---- */

/* The pin existed before: the caller is told, with the older note. */
static int check_change(const struct pinning *pinning)
{
    if (pinning->is_changed)
        return 0;
    return pinning->is_unpin
               ? report_error(ERR_NOT_FOUND, NULL, "%s is not pinned", pinning->prefix)
               : report_error(ERR_EXISTS, NULL, "%s is pinned already", pinning->prefix);
}

static void log_change(struct pinning *pinning)
{
    history_note(pinning->run, &(struct history_event){.name = pinning->is_unpin ? "unpin" : "pin",
                                                       .step = pinning->step,
                                                       .attempt = pinning->attempt,
                                                       .call = pinning->call,
                                                       .detail = pinning->note});
    log_info("retain", "run %s: %s step %llu, attempt %llu%s%s", pinning->run->name,
             pinning->is_unpin ? "unpinned" : "pinned", (unsigned long long)pinning->step,
             (unsigned long long)pinning->attempt, pinning->note[0] ? ": " : "", pinning->note);
}

static void note_pin(struct checkpoint *checkpoint, enum tier_index tier, struct pin *pin)
{
    catalog_set_pin(checkpoint, tier, pin);
    *pin = (struct pin){0};
}

static void send_answer(struct pinning *pinning)
{
    Holdfast__V1__PinReply reply = HOLDFAST__V1__PIN_REPLY__INIT;
    struct checkpoint *checkpoint = catalog_find(pinning->run, pinning->step, pinning->attempt);
    if (checkpoint && pinning->is_here)
        note_pin(checkpoint, TIER_LOCAL, &pinning->there[0]);
    if (checkpoint && pinning->is_far && pinning->fault.code == 0)
        note_pin(checkpoint, TIER_FAR, &pinning->there[1]);
    if (pinning->is_far) /* a refresh may have read the former state */
        refresh_changed(pinning->service);
    if (pinning->is_changed)
        log_change(pinning);
    int error = pinning->fault.code != 0 ? fault_raise(&pinning->fault) : check_change(pinning);
    reply.durability =
        (char *)(uintptr_t)durability_text(pinning->is_far ? DURABLE_BUCKET : DURABLE_LOCAL);
    if (error != 0)
        rpc_call_fail(pinning->call, error);
    else
        rpc_call_reply(pinning->call, &reply.base);
    free_pinning(pinning);
}

static void pinned_far(struct event *event)
{
    send_answer(CONTAINER_OF(event, struct pinning, job.done));
}

static bool is_for_far(const struct pinning *pinning)
{
    const struct checkpoint *checkpoint =
        catalog_find(pinning->run, pinning->step, pinning->attempt);
    if (!tier_has_far(pinning->service) || pinning->fault.code != 0)
        return false;
    return checkpoint ? checkpoint->copies.far.is_there || checkpoint->is_going_far
                      : pinning->is_unpin;
}

/* A pin is not stored beside a checkpoint that is not in this store. */
static bool is_for_here(const struct pinning *pinning)
{
    const struct checkpoint *checkpoint =
        catalog_find(pinning->run, pinning->step, pinning->attempt);
    return pinning->is_unpin || !checkpoint || checkpoint->copies.local.is_there;
}

static void pinned_here(struct event *event)
{
    struct pinning *pinning = CONTAINER_OF(event, struct pinning, job.done);
    pinning->is_far = is_for_far(pinning);
    if (!pinning->is_far && !is_for_here(pinning))
        fault_take(&pinning->fault, report_error(ERR_NOT_FOUND, "pin it at their ckptd",
                                                 "%s is only on other nodes", pinning->prefix));
    if (!pinning->is_far) {
        send_answer(pinning);
        return;
    }
    pinning->job = (struct job){.work = work_pin_far, .done.run = pinned_far};
    tier_work(pinning->service, TIER_FAR, &pinning->job);
}

/* ---- the call ---- */

static int find_pinned(struct pinning *pinning, const Holdfast__V1__PinRequest *request)
{
    struct run *run;
    int error = run_find(&run, pinning->service, request->run, false);
    if (error != 0)
        return error;
    pinning->run = run;
    pinning->step = request->step;
    pinning->attempt = request->attempt;
    /* A pin outlives its checkpoint, so unpinning needs none. */
    if (!request->unpin && !catalog_find(run, request->step, request->attempt))
        return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`",
                            "run '%s' has no checkpoint of step %llu by that attempt", run->name,
                            (unsigned long long)request->step);
    return shard_dir_key(pinning->prefix, sizeof pinning->prefix, run->name, request->step,
                         request->attempt);
}

void pins_call(struct service *service, struct rpc_call *call,
               const Holdfast__V1__PinRequest *request)
{
    struct pinning *pinning = calloc(1, sizeof *pinning);
    int error = pinning ? service_check_open(service)
                        : report_error(ERR_MEMORY, NULL, "no memory for a pin");
    if (error == 0) {
        pinning->service = service;
        pinning->call = call;
        pinning->is_unpin = request->unpin;
        snprintf(pinning->note, sizeof pinning->note, "%s", request->note);
        report_make_printable(pinning->note); /* it may have been cut, or be invalid UTF-8 */
        error = find_pinned(pinning, request);
    }
    if (error != 0) {
        free(pinning);
        rpc_call_fail(call, error);
        return;
    }
    pinning->job = (struct job){.work = work_pin, .done.run = pinned_here};
    if (is_for_here(pinning))
        loop_work(service->loop, &pinning->job);
    else
        pinned_here(&pinning->job.done);
}
