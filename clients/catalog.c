/* catalog.c - the catalog: lists, metadata and pins, from a ckptd or from a store (offline.c).
 *
 * These calls need no attempt and no session. Metadata is ckptd's manifest, parsed by the same
 * parser as in ckptd: it checks every claim of a hostile answer. */
#include "clients/offline.h"
#include "clients/session.h"

#include "proto/base/array.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/flaw.h"
#include "proto/format/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_EVERY_MS 200u    /* of ckpt_newer */
#define LIST_PAGES_MAX 65536u /* no store has more pages of 65,536 checkpoints */

/* ---- metadata ---- */

/* The public struct, and the memory that it borrows from. */
struct metadata {
    struct ckpt_metadata seen; /* first: the user frees it */
    struct manifest *manifest;
    struct ckpt_tensor_info *tensors;
    char *damage;
};

static const char *json_or_empty(const char *json)
{
    return json != NULL ? json : "{}";
}

static int fill_metadata(struct metadata *out, const char *durability)
{
    const struct manifest *manifest = out->manifest;
    const struct layout_table *table = manifest->table;
    out->tensors = calloc((size_t)table->num_tensors + 1, sizeof *out->tensors);
    if (out->tensors == NULL || out->damage == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the metadata of a checkpoint");
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta = &table->tensors[i];
        out->tensors[i] = (struct ckpt_tensor_info){
            .size = sizeof out->tensors[i],
            .dims = meta->dims,
            .name = meta->name,
            .dtype = dtype_name(meta->dtype),
            .digest = {manifest->digests[i].sum[0], manifest->digests[i].sum[1]}};
        memcpy(out->tensors[i].shape, meta->shape, sizeof meta->shape);
    }
    out->seen = (struct ckpt_metadata){.size = sizeof out->seen,
                                       .num_tensors = table->num_tensors,
                                       .tensors = out->tensors,
                                       .state_json = json_or_empty(manifest->state_json),
                                       .identity_json = json_or_empty(manifest->identity_json),
                                       .config_json = json_or_empty(manifest->config_json),
                                       .data_json = json_or_empty(manifest->data_json),
                                       .mesh_json = json_or_empty(manifest->mesh_json),
                                       .damage = out->damage};
    session_info_read(&out->seen.info, &manifest->summary, durability);
    return 0;
}

static int show(struct metadata *out, struct ckpt *ckpt, int64_t step, uint64_t attempt)
{
    Holdfast__V1__ShowRequest request = HOLDFAST__V1__SHOW_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = ckpt->run;
    request.step = step;
    request.attempt = attempt;
    ERR_TRY(session_call(ckpt, &answer, &request.base, SESSION_CALL_MS));
    const Holdfast__V1__ShowReply *reply = (Holdfast__V1__ShowReply *)answer;
    int error = manifest_read(&out->manifest, reply->manifest_json, strlen(reply->manifest_json));
    if (error == 0) {
        out->damage = strdup(reply->damage);
        error = fill_metadata(out, reply->durability);
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

static int show_offline(struct metadata *out, const struct ckpt *ckpt, int64_t step,
                        uint64_t attempt)
{
    char damage[STORE_DAMAGE_BYTES];
    const struct store_choice choice = {.run = ckpt->run, .step = step, .attempt = attempt};
    ERR_TRY(offline_manifest(&out->manifest, damage, ckpt, &choice));
    out->damage = strdup(damage);
    return fill_metadata(out, damage[0] != '\0' ? FLAW_DAMAGED : offline_durability(ckpt));
}

int ckpt_metadata(struct ckpt *ckpt, int64_t step, uint64_t attempt, struct ckpt_metadata **out)
{
    ERR_TRY(session_handle_check(ckpt));
    struct metadata *made = calloc(1, sizeof *made);
    *out = NULL;
    if (made == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the metadata of a checkpoint");
    int error = offline_is(ckpt) ? show_offline(made, ckpt, step, attempt)
                                 : show(made, ckpt, step, attempt);
    if (error == 0)
        *out = &made->seen;
    else
        ckpt_metadata_free(&made->seen);
    return error;
}

void ckpt_metadata_free(struct ckpt_metadata *metadata)
{
    struct metadata *made = (struct metadata *)metadata;
    if (made == NULL)
        return;
    manifest_free(made->manifest);
    free(made->tensors);
    free(made->damage);
    free(made);
}

/* ---- lists ---- */

struct list {
    struct ckpt_list seen; /* first: the user frees it */
    struct ckpt_list_entry *entries;
    uint32_t room;
};

/* Copies a text; "" needs no memory. */
static int keep_text(const char **out, const char *text)
{
    const char *kept = text[0] != '\0' ? strdup(text) : "";
    *out = kept != NULL ? kept : "";
    return kept != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a list");
}

static void free_text(const char *text)
{
    if (text[0] != '\0')
        free((char *)(uintptr_t)text);
}

/* Appends an empty entry. */
static int new_entry(struct ckpt_list_entry **out, struct list *list)
{
    ERR_TRY(
        array_reserve(&list->entries, &list->room, list->seen.num_entries, sizeof *list->entries));
    list->seen.entries = list->entries;
    *out = &list->entries[list->seen.num_entries++];
    **out = (struct ckpt_list_entry){.size = sizeof **out, .damage = "", .pin_note = ""};
    return 0;
}

static int add_entry(struct list *list, const Holdfast__V1__CheckpointSummary *summary)
{
    struct ckpt_list_entry *entry;
    ERR_TRY(new_entry(&entry, list));
    entry->pinned = summary->pinned;
    entry->read_back = summary->read_back;
    session_info_fill(&entry->info, summary);
    ERR_TRY(keep_text(&entry->damage, summary->damage));
    return keep_text(&entry->pin_note, summary->pin_note);
}

static int add_offline(struct list *list, const struct ckpt *ckpt, const char *run)
{
    struct store_list found;
    struct ckpt_list_entry *entry;
    ERR_TRY(offline_list(&found, ckpt, run));
    int error = 0;
    for (uint32_t i = 0; i < found.count && error == 0; i++) {
        const char *damage = found.entries[i].damage;
        error = new_entry(&entry, list);
        if (error != 0)
            break;
        entry->pinned = found.entries[i].may_be_pinned;
        session_info_read(&entry->info, &found.entries[i].summary,
                          damage == NULL                  ? offline_durability(ckpt)
                          : found.entries[i].flaw != NULL ? found.entries[i].flaw
                                                          : FLAW_DAMAGED);
        error = keep_text(&entry->damage, damage != NULL ? damage : "");
    }
    store_list_free(&found);
    return error;
}

/* Adds one page; *page is the name of the next one, "" after the last. */
static int add_page(struct list *list, struct ckpt *ckpt, const char *run, char **page)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)run;
    request.page = *page;
    int error = session_call(ckpt, &answer, &request.base, SESSION_CALL_MS);
    if (error != 0)
        return error;
    const Holdfast__V1__ListReply *reply = (Holdfast__V1__ListReply *)answer;
    for (size_t i = 0; i < reply->n_checkpoints && error == 0; i++)
        error = add_entry(list, reply->checkpoints[i]);
    free(*page);
    *page = strdup(reply->next);
    if (error == 0 && *page == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory for a list");
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

int ckpt_list(struct ckpt *ckpt, bool all_runs, struct ckpt_list **out)
{
    ERR_TRY(session_handle_check(ckpt));
    struct list *list = calloc(1, sizeof *list);
    char *page = strdup("");
    int error = list != NULL && page != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory");
    *out = NULL;
    if (list != NULL)
        list->seen.size = sizeof list->seen;
    if (error == 0 && offline_is(ckpt))
        error = add_offline(list, ckpt, all_runs ? "" : ckpt->run);
    for (uint32_t i = 0; error == 0 && !offline_is(ckpt) && (i == 0 || page[0] != '\0'); i++) {
        error = add_page(list, ckpt, all_runs ? "" : ckpt->run, &page);
        if (error == 0 && i == LIST_PAGES_MAX)
            error =
                report_error(ERR_CORRUPT, NULL, "ckptd's list of checkpoints has too many pages");
    }
    free(page);
    if (error == 0)
        *out = &list->seen;
    else if (list != NULL)
        ckpt_list_free(&list->seen);
    return error;
}

void ckpt_list_free(struct ckpt_list *list)
{
    struct list *made = (struct list *)list;
    if (made == NULL)
        return;
    for (uint32_t i = 0; i < made->seen.num_entries; i++) {
        free_text(made->entries[i].damage);
        free_text(made->entries[i].pin_note);
    }
    free(made->entries);
    free(made);
}

/* ---- what is newer ---- */

/* Is (attempt, step) of `a` after that of `b`? */
static bool is_after(const struct ckpt_info *a, const struct ckpt_info *b)
{
    return a->attempt != b->attempt ? a->attempt > b->attempt : a->step > b->step;
}

/* Advances *newest to the newest intact checkpoint after it, if there is one. */
static int find_newer(struct ckpt_info *newest, struct ckpt *ckpt)
{
    struct ckpt_list *list = NULL;
    int error = ckpt_list(ckpt, false, &list);
    for (uint32_t i = 0; error == 0 && i < list->num_entries; i++) {
        const struct ckpt_list_entry *entry = &list->entries[i];
        if (entry->damage[0] == '\0' && is_after(&entry->info, newest))
            *newest = entry->info;
    }
    ckpt_list_free(list);
    return error;
}

/* May a later call succeed? ckptd cancels calls when it shuts down. */
static bool may_wait_for(int error, const struct ckpt *ckpt)
{
    bool is_stopped = ckpt->stop != NULL && *ckpt->stop != 0;
    return error == ERR_NOT_FOUND || error == ERR_UNAVAILABLE || error == ERR_TIMEOUT ||
           error == ERR_BUSY || (error == ERR_ABORTED && !is_stopped);
}

int ckpt_newer(struct ckpt *ckpt, uint64_t attempt, uint64_t step, uint32_t timeout_ms,
               struct ckpt_info *out)
{
    ERR_TRY(session_handle_check(ckpt));
    const struct ckpt_info after = {.attempt = attempt, .step = step};
    uint64_t end = clock_ns() + timeout_ms * 1000000ull;
    for (;;) {
        *out = after;
        int error = find_newer(out, ckpt);
        bool is_found = error == 0 && is_after(out, &after);
        if (is_found && !offline_is(ckpt)) /* a new hello names the ckptd that has it now */
            error = session_hello(ckpt, SESSION_CALL_MS);
        if ((is_found && error == 0) || !(error == 0 || may_wait_for(error, ckpt)))
            return error;
        uint64_t now = clock_ns(), left_ms = now < end ? (end - now) / 1000000u : 0;
        if (left_ms == 0)
            return report_error(
                ERR_TIMEOUT, "check that the run is training",
                "no checkpoint of %s newer than %llu-a%llu was committed within %u ms", ckpt->run,
                (unsigned long long)step, (unsigned long long)attempt, timeout_ms);
        uint64_t pause_ms = left_ms < POLL_EVERY_MS ? left_ms : POLL_EVERY_MS;
        clock_sleep_ms(pause_ms);
    }
}

/* ---- pins ---- */

int ckpt_pin(struct ckpt *ckpt, uint64_t step, uint64_t attempt, const char *note)
{
    ERR_TRY(session_handle_check(ckpt));
    Holdfast__V1__PinRequest request = HOLDFAST__V1__PIN_REQUEST__INIT;
    request.run = ckpt->run;
    request.step = step;
    request.attempt = attempt;
    request.unpin = note == NULL;
    request.note = (char *)(uintptr_t)(note != NULL ? note : "");
    return session_send(ckpt, &request.base, SESSION_CALL_MS);
}
