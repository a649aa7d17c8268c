/* list.c - List and Show: the catalog for clients, page by page, and one checkpoint. */
#include "ckptd/front/list.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/resident.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/flaw.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "proto/wire/arena.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_PAGE_MAX 16384u      /* checkpoints in one answer; the others are on further pages */
#define LIST_ENTRY_BYTES_MAX 240u /* of a whole one in the message: run, nonce, time, numbers */
_Static_assert(LIST_PAGE_MAX *LIST_ENTRY_BYTES_MAX < RPC_MESSAGE_BYTES_MAX, "a page is one reply");
#define LIST_UNREADABLE_MAX 256u /* unreadable runs in a list; Status has all */

#define LIST_DAMAGED_BYTES_MAX                                                      \
    (LIST_ENTRY_BYTES_MAX + sizeof((struct checkpoint *)0)->damage + PIN_NOTE_MAX + \
     COPIES_TEXT_MAX + 16u)

/* A page of a list: its entries, and the name of the last one, after which the next page begins. So
 * pages stay right while checkpoints come and go between them. */
struct page {
    Holdfast__V1__CheckpointSummary *summaries, **pointers;
    uint32_t count;
    size_t room; /* bytes left in the answer; the texts of damage and pins make entries longer */
    char next[STORAGE_KEY_MAX];
};

/* Finds the beginning of the page: its run, and its checkpoint. ERR_INVALID, ERR_NOT_FOUND. */
static int find_page(struct run **out_run, struct checkpoint **out, struct service *service,
                     const Holdfast__V1__ListRequest *request)
{
    char name[RUN_NAME_MAX + 1];
    unsigned long long step, attempt;
    int error = 0;
    *out_run = service->catalog->runs;
    if (request->page[0]) {
        if (sscanf(request->page, "%100[^/]/step-%llu-a%llu", name, &step, &attempt) != 3)
            return report_error(ERR_INVALID, "pass `next` of the previous page",
                                "\"%.120s\" is not a page", request->page);
        error = run_find(out_run, service, name, false);
        *out = error == 0 ? catalog_next_older(*out_run, step, attempt) : NULL;
        return error;
    }
    if (request->run[0])
        error = run_find(out_run, service, request->run, false);
    *out = error == 0 && *out_run ? (*out_run)->checkpoints : NULL;
    return error;
}

static Holdfast__V1__CheckpointSummary *add_entry(struct page *page)
{
    Holdfast__V1__CheckpointSummary *entry = &page->summaries[page->count];
    page->pointers[page->count++] = entry;
    return entry;
}

/* Their checkpoints are unknown; lists the runs. */
static void add_unreadable(struct page *page, const struct service *service)
{
    for (struct run *run = service->catalog->runs; run && page->count < LIST_UNREADABLE_MAX;
         run = run->next) {
        if (run->unreadable.code == 0)
            continue;
        Holdfast__V1__CheckpointSummary *entry = add_entry(page);
        holdfast__v1__checkpoint_summary__init(entry);
        entry->run = run->name;
        entry->durability = FLAW_UNREAD;
        entry->damage = run->unreadable.message;
        page->room -= LIST_ENTRY_BYTES_MAX + strlen(entry->damage);
    }
}

/* Adds entries from `checkpoint` of `run`, to the end of the run or of all runs. */
static int fill_page(struct page *page, struct run *run, struct checkpoint *checkpoint,
                     bool one_run)
{
    const struct checkpoint *last = NULL;
    while (run && page->count < LIST_PAGE_MAX && page->room > LIST_DAMAGED_BYTES_MAX) {
        if (!checkpoint) {
            run = one_run ? NULL : run->next;
            checkpoint = run ? run->checkpoints : NULL;
            continue;
        }
        const struct pin *pin = catalog_pin(checkpoint);
        Holdfast__V1__CheckpointSummary *entry = add_entry(page);
        resident_summary(entry, checkpoint);
        page->room -= LIST_ENTRY_BYTES_MAX + strlen(entry->tiers) + strlen(checkpoint->damage) +
                      (pin && pin->note ? strlen(pin->note) : 0);
        last = checkpoint;
        checkpoint = checkpoint->next;
    }
    if (!run || !last)
        return 0;
    return shard_dir_key(page->next, sizeof page->next, run->name, last->summary.step,
                         last->summary.attempt);
}

void list_call(struct service *service, struct rpc_call *call,
               const Holdfast__V1__ListRequest *request)
{
    Holdfast__V1__ListReply reply = HOLDFAST__V1__LIST_REPLY__INIT;
    struct run *run = NULL;
    struct checkpoint *checkpoint = NULL;
    uint32_t most = service->catalog->num_checkpoints + LIST_UNREADABLE_MAX;
    most = most < LIST_PAGE_MAX ? most : LIST_PAGE_MAX;
    struct page page = {.summaries = calloc(most, sizeof *page.summaries),
                        .pointers = calloc(most, sizeof *page.pointers),
                        .room = RPC_MESSAGE_BYTES_MAX};
    int error = page.summaries && page.pointers
                    ? find_page(&run, &checkpoint, service, request)
                    : report_error(ERR_MEMORY, NULL, "no memory for a list");
    if (error == 0 && !request->run[0] && !request->page[0])
        add_unreadable(&page, service);
    if (error == 0)
        error = fill_page(&page, run, checkpoint, request->run[0]);
    reply.checkpoints = page.pointers;
    reply.n_checkpoints = page.count;
    reply.next = page.next;
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
    free(page.summaries);
    free(page.pointers);
}

struct showing {
    struct service *service;
    enum tier_index tier; /* to read from */
    Holdfast__V1__SkippedCheckpoint skipped[RPC_SKIPPED_MAX], *pointers[RPC_SKIPPED_MAX];
    uint32_t num_skipped;
    struct rpc_call *call;
    char key[STORAGE_KEY_MAX + 1], prefix[STORAGE_KEY_MAX + 1];
    const char *durability;      /* static */
    char tiers[COPIES_TEXT_MAX]; /* tiers with a copy */
    bool is_read_back;
    char pin_note[PIN_NOTE_MAX];
    bool is_pinned;
    char damage[sizeof((struct checkpoint *)0)->damage];
    void *text;
    struct fault fault;
    struct job job;
};

static void work_show(struct job *job)
{
    struct showing *showing = CONTAINER_OF(job, struct showing, job);
    struct storage *own = showing->service->storage,
                   *storage = showing->service->tiers[showing->tier].storage;
    size_t bytes = 0;
    int error =
        storage_fetch_all(storage, showing->key, MANIFEST_BYTES_MAX, &showing->text, &bytes);
    if (error == 0 && !showing->is_pinned) /* an unreadable note does not hide the manifest */
        store_find_pin(own, &showing->is_pinned, showing->prefix, showing->pin_note,
                       sizeof showing->pin_note);
    if (error != 0)
        fault_take(&showing->fault, error);
}

static void free_showing(struct showing *showing)
{
    for (uint32_t i = 0; i < showing->num_skipped; i++)
        free(showing->skipped[i].damage);
    free(showing->text);
    free(showing);
}

static void shown(struct event *event)
{
    struct showing *showing = CONTAINER_OF(event, struct showing, job.done);
    Holdfast__V1__ShowReply reply = HOLDFAST__V1__SHOW_REPLY__INIT;
    reply.manifest_json = showing->text;
    reply.durability = (char *)(uintptr_t)showing->durability;
    reply.tiers = showing->tiers;
    reply.damage = showing->damage;
    reply.pinned = showing->is_pinned;
    reply.pin_note = showing->pin_note;
    reply.read_back = showing->is_read_back;
    reply.skipped = showing->pointers;
    reply.n_skipped = showing->num_skipped;
    if (showing->fault.code == 0)
        rpc_call_reply(showing->call, &reply.base);
    else
        rpc_call_fail(showing->call, fault_raise(&showing->fault));
    free_showing(showing);
}

/* Copies the text: it may be gone when the answer is sent. */
static int skip_damaged(struct showing *showing, const struct checkpoint *checkpoint)
{
    if (showing->num_skipped == RPC_SKIPPED_MAX)
        return 0;
    Holdfast__V1__SkippedCheckpoint *skipped = &showing->skipped[showing->num_skipped];
    holdfast__v1__skipped_checkpoint__init(skipped);
    skipped->step = checkpoint->summary.step;
    skipped->attempt = checkpoint->summary.attempt;
    skipped->damage = strdup(checkpoint->damage);
    if (!skipped->damage)
        return report_error(ERR_MEMORY, NULL, "no memory to show a manifest");
    showing->pointers[showing->num_skipped++] = skipped;
    return 0;
}

/* The same text as of ckpt-cli on a directory. */
static int report_none(const struct run *run, const Holdfast__V1__ShowRequest *request,
                       bool any_damaged)
{
    char step[32] = "";
    if (request->step < 0 && !request->attempt && any_damaged)
        return report_error(ERR_CORRUPT, "name a step to show it anyway",
                            "every checkpoint of run '%s' is damaged", run->name);
    if (request->step >= 0)
        snprintf(step, sizeof step, " of step %lld", (long long)request->step);
    return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "run '%s' has no checkpoint%s%s",
                        run->name, step, request->attempt ? " by that attempt" : "");
}

static int find_shown(struct showing *showing, struct checkpoint **out, struct service *service,
                      const Holdfast__V1__ShowRequest *request)
{
    struct run *run;
    int error = 0;
    struct checkpoint *found = NULL;
    ERR_TRY(run_find(&run, service, request->run, false));
    for (struct checkpoint *c = run->checkpoints; c && !found && error == 0; c = c->next) {
        if ((request->step >= 0 && c->summary.step != (uint64_t)request->step) ||
            (request->attempt && c->summary.attempt != request->attempt))
            continue;
        if (request->step < 0 && c->damaged && !catalog_has_flaw(c, FLAW_NEWER))
            error = skip_damaged(showing, c);
        else
            found = c;
    }
    *out = found;
    if (error == 0 && !found)
        error = report_none(run, request, showing->num_skipped > 0);
    return error;
}

void list_show(struct service *service, struct rpc_call *call,
               const Holdfast__V1__ShowRequest *request)
{
    Holdfast__V1__CheckpointSummary summary;
    struct checkpoint *checkpoint = NULL;
    struct showing *showing = calloc(1, sizeof *showing);
    int error = showing ? 0 : report_error(ERR_MEMORY, NULL, "no memory to show a manifest");
    if (error == 0)
        error = find_shown(showing, &checkpoint, service, request);
    if (error == 0)
        error = manifest_key(showing->key, sizeof showing->key, &checkpoint->summary);
    if (error == 0)
        error = shard_dir_key(showing->prefix, sizeof showing->prefix, checkpoint->run->name,
                              checkpoint->summary.step, checkpoint->summary.attempt);
    if (error != 0) {
        if (showing)
            free_showing(showing);
        rpc_call_fail(call, error);
        return;
    }
    resident_summary(&summary, checkpoint);
    showing->durability = summary.durability;
    snprintf(showing->tiers, sizeof showing->tiers, "%s", summary.tiers);
    showing->is_read_back = summary.read_back;
    showing->is_pinned = checkpoint->far_pin.is_made;
    if (checkpoint->far_pin.note)
        snprintf(showing->pin_note, sizeof showing->pin_note, "%s", checkpoint->far_pin.note);
    snprintf(showing->damage, sizeof showing->damage, "%s", summary.damage);
    showing->service = service;
    showing->call = call;
    showing->tier = checkpoint->copies.local.is_there ? TIER_LOCAL : catalog_source(checkpoint);
    showing->job = (struct job){.work = work_show, .done.run = shown};
    tier_work(service, showing->tier, &showing->job);
}
