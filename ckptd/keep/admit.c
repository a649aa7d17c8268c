/* admit.c - adds checkpoints to the catalog without a save: those that a tool wrote (Adopt), and
 * those that a tool has verified as whole again (Release).
 *
 * Adopt. A tool that imports, converts or reshards into a served store writes the shards itself,
 * into their final directory. Without a manifest that is no checkpoint. The tool leases the
 * directory, so no gc and no start removes it while the tool lives. Then the tool sends ckptd the
 * manifest:
 *
 *   no trainer can save this step in this attempt (check_run); from now on no attempt of the run
 *   │ is opened or resumed that could (run->adopting)
 *   │ worker: a lease of ckptd, as the tool may die now; the directory and its files belong to
 *   │         the tool's user alone, are complete, match the manifest: sizes, headers, checksum
 *   │         tables; names synced, manifest published
 *   ▼
 *   in the catalog
 *
 * So the commit order is that of a save (machines/commit.c): shards durable, names durable,
 * manifest. After a kill at any time there is a complete checkpoint, or rubbish. A repeated Adopt
 * finds the checkpoint in the catalog and succeeds: a client that missed the answer may call again.
 *
 * For an existing run: a checkpoint of a finished attempt can be adopted at any time. One of the
 * newest attempt, or of a later one, only while the run is closed, and none of its trainers was
 * heard of since the start of ckptd. A later attempt is then the newest, as for a start that finds
 * it. An import begins a run (begins_run).
 *
 * The directory is not trusted: ckptd refuses links, and files with a second name or of another
 * user, which others can change later. It does not read the data: loads and scrubs verify them, as
 * always. If newer checkpoints were read back, the scrub's cursor notes before the commit that this
 * one was not.
 *
 * Release. The tool has read the data. ckptd checks what a start checks, removes the note, and
 * lists the checkpoint anew; one whose copy waits for another tier stays listed, and is whole
 * again. */
#include "ckptd/keep/admit.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/history.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/scan.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/resident.h"
#include "ckptd/scrub/scrub.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/manifest.h"
#include "proto/format/mark.h"
#include "proto/format/origin.h"
#include "proto/format/places.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call in progress on a worker. */
struct admission {
    struct service *service;
    struct rpc_call *call;
    struct run *run;
    const void
        *text; /* of Adopt: the manifest; part of the request, valid until the call is answered */
    size_t text_bytes;
    /* Of Adopt: the run in whose directory it lies, part of the request; "": the manifest's run. */
    const char *place;
    struct manifest_summary summary;
    struct places places;          /* of Release, owned */
    struct checkpoint *checkpoint; /* of Adopt: its entry, until it is in the catalog */
    char prefix[STORAGE_KEY_MAX];  /* its directory */
    /* Of Adopt, if there is a cursor: notes that it was not read back. */
    struct scrub_cursor note;
    bool begins_run, has_note;
    bool is_unknown; /* it is unknown whether the manifest is durable */
    struct fault fault;
    struct job job;
};

static int new_admission(struct admission **out, struct service *service, struct rpc_call *call)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return report_error(ERR_MEMORY, NULL, "no memory to admit a checkpoint");
    (*out)->service = service;
    (*out)->call = call;
    return 0;
}

static void free_admission(struct admission *admission)
{
    if (admission)
        catalog_drop(admission->checkpoint);
    free(admission);
}

static int check_online(const struct service *service)
{
    int error = service_check_open(service);
    return error == 0 ? service_check_online(service) : error;
}

/* ---- Adopt: the directory, on a worker ---- */

struct directory {
    const char *name;
    bool is_there, is_foreign;
};

static int visit_directory(void *user, const struct storage_entry *entry)
{
    struct directory *directory = user;
    if (entry->is_dir && strcmp(entry->name, directory->name) == 0) {
        directory->is_there = true;
        directory->is_foreign = entry->is_foreign;
    }
    return 0;
}

static int refuse_foreign(const char *folder, const char *name)
{
    return report_error(ERR_DENIED, "run the tool as the user that ckptd runs as",
                        "%s/%s belongs to another user", folder, name);
}

static int check_directory(struct storage *storage, const char *parent, const char *name)
{
    struct directory directory = {.name = name};
    int error = storage_list(storage, parent, visit_directory, &directory);
    if (error == 0 && !directory.is_there)
        error = report_error(ERR_NOT_FOUND, NULL, "%s/%s is not a directory of the store", parent,
                             name);
    return error == 0 && directory.is_foreign ? refuse_foreign(parent, name) : error;
}

struct files {
    const char *prefix;
    uint64_t count, bytes;
};

static int visit_file(void *user, const struct storage_entry *entry)
{
    struct files *files = user;
    if (!entry->is_dir && strcmp(entry->name, MANIFEST_NAME) == 0)
        return report_error(ERR_EXISTS, NULL, "%s has a manifest already", files->prefix);
    if (!entry->is_dir && strcmp(entry->name, MARK_NAME) == 0)
        return 0;
    if (entry->is_dir || !origin_is_member(entry->name))
        return report_error(ERR_INVALID, NULL, "%s/%s is not a file of a checkpoint", files->prefix,
                            entry->name);
    if (entry->is_foreign)
        return refuse_foreign(files->prefix, entry->name);
    if (entry->links > 1)
        return report_error(ERR_DENIED, NULL, "%s/%s has further hard links", files->prefix,
                            entry->name);
    if (shard_is_file_name(entry->name)) {
        files->count++;
        files->bytes += entry->bytes;
    }
    return 0;
}

static int check_files(const struct admission *admission)
{
    const struct manifest_summary *summary = &admission->summary;
    struct files files = {.prefix = admission->prefix};
    int error = storage_list(admission->service->storage, admission->prefix, visit_file, &files);
    if (error == 0 && (files.count != summary->shards || files.bytes != summary->bytes))
        error = report_error(ERR_CORRUPT, NULL,
                             "%s has %llu shards of %llu bytes, but its manifest lists %u of %llu",
                             admission->prefix, (unsigned long long)files.count,
                             (unsigned long long)files.bytes, summary->shards,
                             (unsigned long long)summary->bytes);
    return error;
}

/* ---- Adopt: the commit ---- */

static int publish_adopted(struct admission *admission)
{
    struct storage *storage = admission->service->storage;
    ERR_TRY(storage_sync_names(storage, admission->prefix));
    int error = store_commit(storage, admission->prefix, admission->text, admission->text_bytes);
    admission->is_unknown = error == ERR_IO;
    return error;
}

static int adopt_directory(struct admission *admission)
{
    struct storage *storage = admission->service->storage;
    struct storage_hold *lease = NULL;
    const char *run = admission->run->name, *name = strrchr(admission->prefix, '/') + 1;
    int error = check_directory(storage, "", run);
    if (error == 0)
        error = check_directory(storage, run, name);
    if (error == 0)
        error = store_lease(storage, &lease, admission->prefix, "ckptd adopts it\n");
    if (error == 0)
        error = check_files(admission);
    if (error == 0)
        error = store_prove_shards(storage, &admission->summary, admission->text,
                                   admission->text_bytes);
    if (error == 0 && admission->has_note)
        error = store_put_cursor(storage, run, &admission->note);
    if (error == 0)
        error = publish_adopted(admission);
    storage_release(storage, lease);
    return error;
}

static void work_adopt(struct job *job)
{
    struct admission *admission = CONTAINER_OF(job, struct admission, job);
    int error = adopt_directory(admission);
    if (error != 0)
        fault_take(&admission->fault, error);
}

static void enter_catalog(struct admission *admission)
{
    const struct manifest_summary *summary = &admission->summary;
    struct run *run = admission->run;
    if (summary->attempt > run->newest_attempt) {
        run->newest_attempt = summary->attempt;
        commit_init(&run->coordinator->machine, summary->attempt);
    }
    /* check_run() found none, and it was promised since. */
    CHECK(catalog_enter(admission->checkpoint, summary));
    admission->checkpoint = NULL;
    scrub_brought(run, summary);
    ledger_note(&admission->service->ledger, clock_ms(), (int64_t)summary->bytes);
    history_note(run, &(struct history_event){.name = "adopt",
                                              .step = summary->step,
                                              .attempt = summary->attempt,
                                              .call = admission->call});
    log_info("catalog", "run %s, step %llu, attempt %llu: adopted, %llu bytes in %u shards",
             run->name, (unsigned long long)summary->step, (unsigned long long)summary->attempt,
             (unsigned long long)summary->bytes, summary->shards);
}

static void adopted(struct event *event)
{
    struct admission *admission = CONTAINER_OF(event, struct admission, job.done);
    Holdfast__V1__AdoptReply reply = HOLDFAST__V1__ADOPT_REPLY__INIT;
    reply.durability = DURABILITY_LOCAL;
    admission->run->adopting = 0;
    if (admission->is_unknown)
        service_go_offline(admission->service, admission->fault.message);
    if (admission->fault.code == 0) {
        enter_catalog(admission);
        admission->service->catalog->events->changed(admission->service);
        rpc_call_reply(admission->call, &reply.base);
    } else {
        rpc_call_fail(admission->call, fault_raise(&admission->fault));
    }
    free_admission(admission);
}

/* ERR_EXISTS: the run exists already (for begins_run), or has this checkpoint with another nonce.
 * ERR_DENIED: a trainer may be about to save it. */
static int check_run(const struct admission *admission)
{
    struct run *run = admission->run;
    const struct manifest_summary *summary = &admission->summary;
    const struct checkpoint *there = catalog_find(run, summary->step, summary->attempt);
    bool is_open = run->coordinator->attempt || run->coordinator->opening.call ||
                   run->coordinator->describing || run->coordinator->saves;
    if (run->adopting != 0)
        return catalog_report_adopting(run);
    if (admission->begins_run && (run->checkpoints || is_open || run->newest_attempt != 0))
        return report_error(ERR_EXISTS, "give the new run another name",
                            "the run %s exists already", run->name);
    if (there &&
        (there->copies.local.is_there || !manifest_summary_equal(&there->summary, summary)))
        return report_error(ERR_EXISTS, "name another store, or remove that checkpoint",
                            "run %s has a checkpoint of step %llu, attempt %llu already", run->name,
                            (unsigned long long)summary->step,
                            (unsigned long long)summary->attempt);
    if (summary->attempt >= run->newest_attempt && is_open)
        return report_error(ERR_DENIED, "name another store",
                            "run %s is being trained here, in attempt %llu: a checkpoint of "
                            "attempt %llu could be its own",
                            run->name, (unsigned long long)run->newest_attempt,
                            (unsigned long long)summary->attempt);
    return 0;
}

/* *out_is_there: it is committed already, with the same nonce. A checkpoint that only another tier
 * has gets this copy. */
static int begin_adoption(struct admission *admission, bool *out_is_there)
{
    struct service *service = admission->service;
    const struct manifest_summary *summary = &admission->summary;
    struct run **run = &admission->run;
    *out_is_there = false;
    size_t bytes = admission->text_bytes < MANIFEST_SUMMARY_BYTES ? admission->text_bytes
                                                                  : MANIFEST_SUMMARY_BYTES;
    int error = manifest_read_summary(&admission->summary, admission->text, bytes);
    if (error == 0 && run_name_valid(admission->place))
        origin_rename(&admission->summary, admission->place);
    if (error == 0)
        error = shard_dir_key(admission->prefix, sizeof admission->prefix, summary->run,
                              summary->step, summary->attempt);
    if (error == 0 && summary->attempt == 0)
        error = report_error(ERR_INVALID, NULL, "attempts are counted from 1");
    if (error != 0)
        return error;
    if (run_find(run, service, summary->run, false) == 0) {
        const struct checkpoint *there = catalog_find(*run, summary->step, summary->attempt);
        *out_is_there = there && there->copies.local.is_there &&
                        manifest_summary_equal(&there->summary, summary);
        error = *out_is_there ? 0 : check_run(admission);
    } else {
        error = run_find(run, service, summary->run, true);
    }
    if (error == 0 && !*out_is_there)
        error = catalog_check_room(service);
    if (error == 0 && !*out_is_there)
        error = catalog_new(&admission->checkpoint, *run, summary->step, summary->attempt);
    if (error == 0 && gc_removes(service, summary->run, summary->step, summary->attempt))
        error =
            report_error(ERR_BUSY, "try again", "rubbish of run %s is being removed", summary->run);
    return error;
}

void admit_adopt(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__AdoptRequest *request)
{
    Holdfast__V1__AdoptReply reply = HOLDFAST__V1__ADOPT_REPLY__INIT;
    struct admission *admission = NULL;
    bool is_there = false;
    int error = check_online(service);
    if (error == 0)
        error = new_admission(&admission, service, call);
    if (error == 0) {
        admission->text = request->manifest.data;
        admission->text_bytes = request->manifest.len;
        admission->place = request->run;
        admission->begins_run = request->begins_run;
        error = begin_adoption(admission, &is_there);
    }
    if (error == 0 && !is_there) {
        admission->run->adopting = admission->summary.attempt;
        admission->has_note = scrub_expect(&admission->note, admission->run, &admission->summary);
        admission->job = (struct job){.work = work_adopt, .done.run = adopted};
        loop_work(service->loop, &admission->job);
        return;
    }
    free_admission(admission);
    reply.durability = DURABILITY_LOCAL;
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
}

/* ---- Release ---- */

static void work_release(struct job *job)
{
    struct admission *admission = CONTAINER_OF(job, struct admission, job);
    uint64_t step = admission->summary.step, attempt = admission->summary.attempt;
    struct storage *storage = admission->service->storage;
    int error = store_inspect_committed(&admission->summary, &admission->places, storage,
                                        admission->run->name, step, attempt);
    if (error == 0) {
        error = store_remove_note(storage, STORE_QUARANTINE, admission->prefix);
        error = error == ERR_NOT_FOUND ? 0 : error; /* a read error leaves no note */
    }
    if (error != 0)
        fault_take(&admission->fault, error);
}

/* Only copies that wait for their tier use it: they go on with the released one. */
static int release_in_place(struct checkpoint *known, const struct manifest_summary *summary)
{
    unsigned reader;
    uint32_t copies = replicate_count_holds(known, &reader);
    if (reader != NUM_TIERS)
        return report_error(ERR_BUSY, "try again", "it is being copied to the tier %s",
                            tier_name(known->run->service, (enum tier_index)reader));
    if (known->leases > copies || !manifest_summary_equal(&known->summary, summary))
        return report_error(ERR_BUSY, "try again",
                            "a load or a scrub that had begun before has not ended");
    catalog_mended(known, TIER_LOCAL);
    return 0;
}

/* The state of the damaged one is outdated: nothing else of it stays. */
static void replace(struct checkpoint *known, struct checkpoint *anew,
                    const struct manifest_summary *summary)
{
    catalog_set_pin(anew, TIER_LOCAL, &known->pin);
    catalog_set_pin(anew, TIER_FAR, &known->far_pin);
    known->pin.note = known->far_pin.note = NULL;
    copies_forget(known, TIER_LOCAL);
    if (strcmp(known->summary.nonce, summary->nonce) == 0)
        catalog_merge(anew, known);
    catalog_drop(known);
    catalog_enter(anew, summary);
}

static int list_again(const struct admission *admission)
{
    const struct manifest_summary *summary = &admission->summary;
    struct checkpoint *known = catalog_find(admission->run, summary->step, summary->attempt);
    struct checkpoint *anew = NULL;
    if (!known)
        return report_error(ERR_NOT_FOUND, "see ckpt-cli list", "it was removed meanwhile");
    bool was_damaged = known->damaged; /* else `ckpt-cli repair` may have written a manifest */
    int error = catalog_new(&anew, admission->run, summary->step, summary->attempt);
    if (error != 0)
        return error;
    anew->copies.local.is_there = true;
    error = catalog_set_places(anew, TIER_LOCAL, &admission->places);
    if (error == 0 && resident_take_out(known)) {
        replace(known, anew, summary);
    } else {
        catalog_drop(anew);
        if (error == 0 && was_damaged)
            error = release_in_place(known, summary);
        if (error != 0 || !was_damaged)
            return error;
    }
    log_info("catalog", "run %s, step %llu, attempt %llu is %s", admission->run->name,
             (unsigned long long)summary->step, (unsigned long long)summary->attempt,
             was_damaged ? "released from quarantine" : "listed again");
    return 0;
}

static void released(struct event *event)
{
    struct admission *admission = CONTAINER_OF(event, struct admission, job.done);
    Holdfast__V1__ReleaseReply reply = HOLDFAST__V1__RELEASE_REPLY__INIT;
    reply.durability = DURABILITY_LOCAL;
    int error = fault_raise(&admission->fault);
    if (error == 0)
        error = list_again(admission);
    if (error == 0)
        admission->service->catalog->events->changed(admission->service);
    if (error == 0)
        rpc_call_reply(admission->call, &reply.base);
    else
        rpc_call_fail(admission->call, error);
    places_free(&admission->places);
    free(admission);
}

void admit_release(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__ReleaseRequest *request)
{
    struct admission *admission = NULL;
    int error = check_online(service);
    if (error == 0)
        error = new_admission(&admission, service, call);
    if (error == 0)
        error = run_find(&admission->run, service, request->run, false);
    if (error == 0 && !catalog_find(admission->run, request->step, request->attempt))
        error = report_error(ERR_NOT_FOUND, "see ckpt-cli list",
                             "run %s has no checkpoint of step %llu, attempt %llu",
                             admission->run->name, (unsigned long long)request->step,
                             (unsigned long long)request->attempt);
    if (error == 0)
        error = shard_dir_key(admission->prefix, sizeof admission->prefix, admission->run->name,
                              request->step, request->attempt);
    if (error != 0) {
        free(admission);
        rpc_call_fail(call, error);
        return;
    }
    admission->summary.step = request->step;
    admission->summary.attempt = request->attempt;
    admission->job = (struct job){.work = work_release, .done.run = released};
    loop_work(service->loop, &admission->job);
}
