/* pins.c - Pin: an operator's hold on a checkpoint, as a note beside it, which retention reads anew
 * for every plan (retain.c). It lies in the local tier, and holds in every tier of this ckptd. */
#include "ckptd/keep/pins.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/history.h"
#include "ckptd/loop.h"
#include "ckptd/service.h"
#include "proto/ckpt.pb-c.h"
#include "proto/report.h"
#include "proto/rpc.h"
#include "proto/shard.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pinning {
    struct service *service;
    struct rpc_call *call;
    struct run *run;
    uint64_t step, attempt;
    bool is_unpin;
    char note[PIN_NOTE_MAX]; /* of one that was there before: what it says */
    char prefix[STORAGE_KEY_MAX];
    struct fault fault;
    struct job job;
};

static void work_pin(struct job *job)
{
    struct pinning *pinning = CONTAINER_OF(job, struct pinning, job);
    struct storage *storage = pinning->service->storage;
    int error = pinning->is_unpin
                    ? storage_group_unnote(storage, STORAGE_PIN, pinning->prefix)
                    : storage_group_note(storage, STORAGE_PIN, pinning->prefix, pinning->note);
    if (error == 0)
        return;
    fault_take(&pinning->fault, error);
    if (error == ERR_EXISTS)
        storage_group_find_note(storage, STORAGE_PIN, pinning->prefix, pinning->note,
                                sizeof pinning->note);
}

static void pinned(struct event *event)
{
    struct pinning *pinning = CONTAINER_OF(event, struct pinning, job.done);
    Holdfast__V1__PinReply reply = HOLDFAST__V1__PIN_REPLY__INIT;
    struct checkpoint *checkpoint = catalog_find(pinning->run, pinning->step, pinning->attempt);
    bool is_done = pinning->fault.code == 0 || pinning->fault.code == ERR_EXISTS;
    reply.durability = DURABILITY_LOCAL;
    if (checkpoint && is_done)
        catalog_set_pin(checkpoint, !pinning->is_unpin,
                        !pinning->is_unpin && pinning->note[0] ? strdup(pinning->note) : NULL);
    if (pinning->fault.code == 0)
        history_note(pinning->run,
                     &(struct history_event){.name = pinning->is_unpin ? "unpin" : "pin",
                                             .step = pinning->step,
                                             .attempt = pinning->attempt,
                                             .call = pinning->call,
                                             .detail = pinning->note});
    if (pinning->fault.code == 0)
        log_info("retain", "run %s: %s step %llu, attempt %llu%s%s", pinning->run->name,
                 pinning->is_unpin ? "unpinned" : "pinned", (unsigned long long)pinning->step,
                 (unsigned long long)pinning->attempt, pinning->note[0] ? ": " : "", pinning->note);
    if (pinning->fault.code != 0)
        rpc_call_fail(pinning->call, fault_raise(&pinning->fault));
    else
        rpc_call_reply(pinning->call, &reply.base);
    free(pinning);
}

static int find_pinned(struct pinning *pinning, const Holdfast__V1__PinRequest *request)
{
    struct run *run;
    int error = run_find(&run, pinning->service, request->run, false);
    if (error != 0)
        return error;
    pinning->run = run;
    pinning->step = request->step;
    pinning->attempt = request->attempt;
    /* A pin outlives what it names: it may be taken away all the same. */
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
        report_make_printable(pinning->note); /* it may have been cut, or be no UTF-8 */
        error = find_pinned(pinning, request);
    }
    if (error != 0) {
        free(pinning);
        rpc_call_fail(call, error);
        return;
    }
    pinning->job = (struct job){.work = work_pin, .done.run = pinned};
    loop_work(service->loop, &pinning->job);
}
