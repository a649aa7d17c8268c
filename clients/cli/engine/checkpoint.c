/* checkpoint.c - one checkpoint of a store, opened offline: its selection, lease and manifest.
 *
 * Opening a checkpoint reads the whole manifest and verifies its SHA-256. A damaged checkpoint is
 * opened only if its step is given; otherwise it is skipped with a message. An open checkpoint is
 * leased, so that no prune of ckptd or of another tool removes it. A user without write access to
 * the store reads without a lease, with a warning. */
#include "clients/cli/engine/cli.h"

#include "proto/base/array.h"
#include "proto/format/flaw.h"
#include "proto/format/retain.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPTIMIZER_PREFIX "optimizer."

/* An unreadable checkpoint may be whole, and must not make an older one the newest. */
static int skip_damaged(void *user, const struct store_entry *entry)
{
    struct checkpoint *checkpoint = user;
    const struct manifest_summary *summary = &entry->summary;
    if (entry->unread != 0)
        return report_error(
            entry->unread, "fix the read error that its reason names, or name a step", "%s: %s",
            text_checkpoint(summary->run, summary->step, summary->attempt).text, entry->damage);
    uint32_t at = checkpoint->num_skipped;
    if (at == RPC_SKIPPED_MAX)
        return 0;
    ERR_TRY(array_reserve(&checkpoint->skipped, &checkpoint->room_skipped, at,
                          sizeof *checkpoint->skipped));
    struct skipped *skipped = &checkpoint->skipped[checkpoint->num_skipped++];
    skipped->step = summary->step;
    skipped->attempt = summary->attempt;
    snprintf(skipped->damage, sizeof skipped->damage, "%s", entry->damage);
    return 0;
}

void skipped_print(const char *run, uint64_t step, uint64_t attempt, const char *damage)
{
    log_warn("store", "%s is damaged and skipped: %s", text_checkpoint(run, step, attempt).text,
             damage);
}

/* The place of a selection with step and attempt. */
struct place {
    char directory[STORAGE_KEY_MAX];
    struct manifest_summary summary; /* only its names are set */
};

static int place_of(struct place *out, const struct selection *selection)
{
    out->summary =
        (struct manifest_summary){.step = (uint64_t)selection->step, .attempt = selection->attempt};
    strcpy(out->summary.run, selection->run);
    return shard_dir_key(out->directory, sizeof out->directory, selection->run,
                         (uint64_t)selection->step, selection->attempt);
}

/* 0: it has a manifest, whatever that says. ERR_NOT_FOUND: it has none. */
static int find_manifest(struct storage *store, const struct selection *selection)
{
    struct place place;
    char key[STORAGE_KEY_MAX + 32];
    uint64_t bytes;
    ERR_TRY(place_of(&place, selection));
    ERR_TRY(manifest_key(key, sizeof key, &place.summary));
    return storage_fetch(store, key, NULL, 0, &bytes);
}

/* ckptd says it in the same words (ckptd/front/list.c). */
int selection_fail_none(const struct selection *selection, bool any_damaged)
{
    char step[32] = "";
    if (selection->step < 0 && any_damaged)
        return report_error(ERR_CORRUPT, "name a step to show it anyway",
                            "every checkpoint of run '%s' is damaged", selection->run);
    if (selection->step >= 0)
        snprintf(step, sizeof step, " of step %lld", (long long)selection->step);
    return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "run '%s' has no checkpoint%s%s",
                        selection->run, step, selection->attempt != 0 ? " by that attempt" : "");
}

static int report_none(const struct checkpoint *passed, const struct selection *selection)
{
    ERR_TRY(store_need_run(passed->store, selection->run));
    return selection_fail_none(selection, passed->num_skipped > 0);
}

int store_need_checkpoint(struct storage *store, const struct selection *selection)
{
    int error = find_manifest(store, selection);
    return error == ERR_NOT_FOUND ? report_none(&(struct checkpoint){.store = store}, selection)
                                  : error;
}

/* Fills in step and attempt if the selection leaves them open. */
static int find_selected(struct selection *selection, struct checkpoint *out)
{
    struct store_entry entry;
    if (selection->step >= 0 && selection->attempt != 0 &&
        find_manifest(out->store, selection) == 0)
        return 0;
    int error = store_find(&entry, out->store,
                           &(struct store_choice){.run = selection->run,
                                                  .step = selection->step,
                                                  .attempt = selection->attempt,
                                                  .passed_step = selection->passed_step,
                                                  .passed_attempt = selection->passed_attempt},
                           skip_damaged, out);
    if (error == ERR_NOT_FOUND)
        return report_none(out, selection);
    if (error != 0)
        return error;
    selection->step = (int64_t)entry.summary.step;
    selection->attempt = entry.summary.attempt;
    for (uint32_t i = 0; i < out->num_skipped; i++)
        skipped_print(selection->run, out->skipped[i].step, out->skipped[i].attempt,
                      out->skipped[i].damage);
    store_entry_free(&entry);
    return 0;
}

/* Without write access, or space for a file, there is no lease. Then a prune may remove the
 * checkpoint during the read, which ends with an error and never with wrong data. */
static int take_lease(struct checkpoint *out, const struct place *place)
{
    char text[64];
    snprintf(text, sizeof text, "ckpt-cli, process %ld\n", (long)getpid());
    int error = store_lease(out->store, &out->lease, place->directory, text);
    if (error != ERR_DENIED && error != ERR_SPACE)
        return error;
    log_warn("store", "%s is read without a lease, a prune may remove it: %s", place->directory,
             report_line());
    return 0;
}

static int read_quarantine(struct checkpoint *out, const struct place *place)
{
    int error =
        store_read_reason(out->quarantine, sizeof out->quarantine, out->store, place->directory);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* Prefixes the fault of the manifest with the directory. */
static int prefix_directory(const struct place *place, int error)
{
    char message[REPORT_TEXT_MAX];
    if (error != ERR_CORRUPT && error != ERR_VERSION && error != ERR_MISMATCH)
        return error;
    snprintf(message, sizeof message, "%s: %s", place->directory, report_message());
    return report_set(error, message, report_detail(),
                      report_hint()[0] != '\0' ? report_hint() : DAMAGE_HINT);
}

static int read_manifest(struct checkpoint *out, const struct place *place)
{
    void *text = NULL;
    int error = store_fetch_manifest(&text, &out->text_bytes, out->store, &place->summary);
    out->text = text;
    if (error == 0)
        error = store_parse_manifest(&out->manifest, out->store, &place->summary, text,
                                     out->text_bytes);
    return prefix_directory(place, error);
}

int checkpoint_open_selected(struct checkpoint *out, struct storage *store,
                             const struct selection *selection)
{
    struct selection found = *selection;
    struct place place;
    memset(out, 0, sizeof *out);
    out->store = store;
    int error = find_selected(&found, out);
    if (error == 0)
        error = place_of(&place, &found);
    if (error == 0)
        error = take_lease(out, &place);
    if (error == 0)
        error = read_quarantine(out, &place);
    if (error == 0)
        error = read_manifest(out, &place);
    if (error == 0)
        strcpy(out->name, text_checkpoint(found.run, (uint64_t)found.step, found.attempt).text);
    else
        checkpoint_close(out);
    return error;
}

int checkpoint_open(struct checkpoint *out, struct storage *store, const char *text)
{
    struct selection selection;
    memset(out, 0, sizeof *out);
    ERR_TRY(selection_parse(&selection, text));
    return checkpoint_open_selected(out, store, &selection);
}

int checkpoint_find(struct selection *selection, const struct cli *cli)
{
    struct storage *store = NULL;
    struct checkpoint checkpoint = {0};
    struct manifest *manifest = NULL;
    int error = 0;
    if (cli->server[0] != '\0')
        error = server_manifest(&manifest, NULL, cli, selection);
    else if ((error = store_open(&store, cli)) == 0)
        error = checkpoint_open_selected(&checkpoint, store, selection);
    const struct manifest *found = manifest != NULL ? manifest : checkpoint.manifest;
    if (error == 0) {
        selection->step = (int64_t)found->summary.step;
        selection->attempt = found->summary.attempt;
    }
    manifest_free(manifest);
    checkpoint_close(&checkpoint);
    storage_close(store);
    return error;
}

static int read_manifest_alone(struct manifest **out, struct storage *store,
                               const struct selection *selection)
{
    struct place place;
    *out = NULL;
    ERR_TRY(place_of(&place, selection));
    return prefix_directory(&place, store_read_manifest(out, store, &place.summary));
}

int checkpoint_manifest(struct manifest **out, struct storage *store,
                        const struct selection *selection)
{
    struct selection one = *selection;
    struct store_entry entry;
    struct store_choice choice = {.run = one.run, .step = -1, .attempt = one.attempt};
    int unread = ERR_NOT_FOUND, error = 0;
    *out = NULL;
    if (one.step >= 0)
        return read_manifest_alone(out, store, &one);
    while (unread != 0 && (error = store_find(&entry, store, &choice, NULL, NULL)) == 0) {
        choice.passed_step = entry.summary.step;
        choice.passed_attempt = entry.summary.attempt;
        one.step = (int64_t)entry.summary.step;
        store_entry_free(&entry);
        unread = read_manifest_alone(out, store, &one);
        if (unread == ERR_MEMORY)
            return unread;
    }
    return error != 0 && error != ERR_NOT_FOUND ? error : unread;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    checkpoint_unload(checkpoint);
    if (checkpoint->lease != NULL)
        storage_release(checkpoint->store, checkpoint->lease);
    free(checkpoint->text);
    free(checkpoint->skipped);
    if (checkpoint->manifest != NULL)
        manifest_free(checkpoint->manifest);
    memset(checkpoint, 0, sizeof *checkpoint);
}

/* Copies the first pattern of a comma separated list, for fnmatch(); returns the rest, or NULL. */
static const char *next_pattern(char out[LAYOUT_NAME_MAX], const char *list)
{
    size_t length = strcspn(list, ",");
    snprintf(out, LAYOUT_NAME_MAX, "%.*s", (int)length, list);
    return list[length] == ',' ? list + length + 1 : NULL;
}

bool tensor_is_object(const struct tensor_meta *tensor)
{
    return tensor->dims == 1 && tensor->dtype == DTYPE_U8 &&
           strncmp(tensor->name, LAYOUT_OBJECT_PREFIX, strlen(LAYOUT_OBJECT_PREFIX)) == 0;
}

bool tensor_is_wanted(const struct tensor_meta *tensor, const struct cli *cli)
{
    char pattern[LAYOUT_NAME_MAX];
    bool is_wanted = cli->only[0] == '\0';
    for (const char *at = is_wanted ? NULL : cli->only; at != NULL && !is_wanted;) {
        at = next_pattern(pattern, at);
        is_wanted = fnmatch(pattern, tensor->name, 0) == 0;
    }
    return is_wanted && (!cli->is_weights_only ||
                         strncmp(tensor->name, OPTIMIZER_PREFIX, strlen(OPTIMIZER_PREFIX)) != 0);
}

int tensors_check_wanted(const struct layout_table *table, const struct cli *cli)
{
    char pattern[LAYOUT_NAME_MAX];
    uint32_t count = 0;
    for (const char *at = cli->only[0] != '\0' ? cli->only : NULL; at != NULL;) {
        at = next_pattern(pattern, at);
        ERR_TRY(pattern_check("--only", pattern, table));
    }
    for (uint32_t i = 0; i < table->num_tensors; i++)
        count += tensor_is_wanted(&table->tensors[i], cli);
    return count > 0 || cli->only[0] == '\0'
               ? 0
               : report_error(ERR_INVALID, NULL, "--only and --weights-only leave no tensor");
}
