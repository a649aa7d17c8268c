/* remove.c - rm: removes a checkpoint or a whole run that the user names. A running ckptd does it
 * (ckptd/keep/remove.c), or rm itself on a directory without one, under the store's lock.
 *
 * It first prints the loss, then asks; without a terminal --yes is required. The user names the
 * attempt, too, so that no other checkpoint is removed. */
#include "clients/cli/engine/cli.h"

#include "proto/format/flaw.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REMOVE_CALL_MS 600000u

/* The loss. */
struct loss {
    uint64_t checkpoints, damaged, bytes;
    uint64_t trash;       /* how long it can be restored, in seconds; 0: not at all */
    char elsewhere[2200]; /* nodes that keep copies, "n2,n3" */
};

static int remove_served(struct loss *out, const struct cli *cli, const struct selection *selection,
                         bool is_dry)
{
    Holdfast__V1__RemoveRequest request = HOLDFAST__V1__REMOVE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)selection->run;
    request.step = selection->step >= 0 ? (uint64_t)selection->step : 0;
    request.attempt = selection->attempt;
    request.dry_run = is_dry;
    request.now = cli->is_now;
    request.force = cli->is_forced;
    ERR_TRY(cli_call(&answer, cli, &request.base, REMOVE_CALL_MS));
    const Holdfast__V1__RemoveReply *reply = (const Holdfast__V1__RemoveReply *)answer;
    *out = (struct loss){.checkpoints = reply->checkpoints,
                         .damaged = reply->damaged,
                         .bytes = reply->bytes,
                         .trash = reply->trash_seconds};
    text_safe(out->elsewhere, sizeof out->elsewhere, reply->elsewhere);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

/* A checkpoint that could not be read may be whole; one in doubt may yet become so. No force
 * removes a pinned one. */
static int refuse_kept(const struct store_entry *entry, bool is_forced)
{
    const struct manifest_summary *summary = &entry->summary;
    const char *name = text_checkpoint(summary->run, summary->step, summary->attempt).text;
    if (entry->may_be_pinned)
        return report_error(ERR_DENIED, "unpin it first",
                            "%s is pinned, or the pins of its run cannot be read", name);
    if (is_forced)
        return 0;
    if (entry->unread != 0)
        return report_error(ERR_DENIED,
                            "fix the read error that its reason names, or remove it with --force",
                            "%s could not be read: %s", name, entry->damage);
    return entry->flaw && strcmp(entry->flaw, FLAW_IN_DOUBT) == 0
               ? report_error(ERR_DENIED, "start that ckptd, or remove it with --force",
                              "%s is in doubt: %s", name, entry->damage)
               : 0;
}

static int measure_stored(struct loss *out, struct storage *store,
                          const struct selection *selection, bool is_forced)
{
    int error = 0;
    struct store_list catalog = {0};
    ERR_TRY(store_list_read(&catalog, store, selection->run));
    error = store_list_find_pins(&catalog, store);
    for (uint32_t i = 0; i < catalog.count && error == 0; i++) {
        const struct store_entry *entry = &catalog.entries[i];
        if (selection->attempt != 0 && (entry->summary.step != (uint64_t)selection->step ||
                                        entry->summary.attempt != selection->attempt))
            continue;
        error = refuse_kept(entry, is_forced);
        out->checkpoints++;
        out->damaged += entry->damage != NULL;
        out->bytes += entry->summary.bytes;
    }
    store_list_free(&catalog);
    if (error != 0)
        return error;
    return out->checkpoints > 0 || selection->attempt == 0 ? 0
                                                           : selection_fail_none(selection, false);
}

static int erase_stored(const struct loss *loss, struct storage *store,
                        const struct selection *selection)
{
    uint64_t count, now = (uint64_t)time(NULL);
    char prefix[STORAGE_KEY_MAX];
    if (selection->attempt == 0)
        return loss->trash > 0 ? store_trash_put_all(store, selection->run, now, &count)
                               : store_erase_run(store, selection->run);
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, selection->run, (uint64_t)selection->step,
                          selection->attempt));
    return loss->trash > 0 ? store_trash_put(store, prefix, now, true) : store_erase(store, prefix);
}

static int remove_stored(struct loss *out, const struct cli *cli, const struct selection *selection,
                         bool is_dry)
{
    struct storage *store = NULL;
    *out = (struct loss){0};
    int error = store_begin(&store, cli, selection->run, !is_dry);
    if (error == 0)
        error = measure_stored(out, store, selection, cli->is_forced);
    if (error == 0 && !cli->is_now && out->checkpoints > 0)
        error = store_trash_term(store, selection->run, &out->trash);
    if (error == 0 && !is_dry)
        error = erase_stored(out, store, selection);
    storage_close(store);
    return error;
}

/* Prints the loss before the question: `lost` if it is final, `kept` if into the trash. JSON output
 * has it, too. */
static void print_loss(const struct cli *cli, const char *lost, const char *kept,
                       const struct loss *loss)
{
    char size[32];
    FILE *to = cli->is_json ? stderr : stdout;
    if (cli->is_json && (cli->is_yes || cli->is_dry_run || !isatty(STDIN_FILENO)))
        return;
    fprintf(to, "%s: %s, %s", cli->args[0], text_count(loss->checkpoints, "checkpoint").text,
            text_bytes(size, sizeof size, loss->bytes));
    if (loss->damaged > 0)
        fprintf(to, " (%llu of them damaged, newer or set aside)",
                (unsigned long long)loss->damaged);
    fprintf(to, "%s\n", loss->trash > 0 ? kept : lost);
    if (loss->elsewhere[0] != '\0')
        fprintf(to, "copies of it stay at %s, until it is removed there\n", loss->elsewhere);
    fflush(to);
}

/* ERR_DENIED: the answer was no. */
static int confirm_loss(const struct cli *cli, const struct loss *loss)
{
    print_loss(cli, " will be lost", " will go into the trash", loss);
    return text_confirm(cli, loss->trash > 0 ? "remove it" : "remove it for good",
                        "nothing was removed");
}

int cli_rm(const struct cli *cli)
{
    int (*remove_it)(struct loss * out, const struct cli *cli, const struct selection *selection,
                     bool is_dry) = cli->store[0] != '\0' ? remove_stored : remove_served;
    struct selection selection;
    struct loss loss = {0};
    int error = selection_parse(&selection, cli->args[0]);
    if (error == 0 && selection.step >= 0 && selection.attempt == 0)
        error = report_error(ERR_INVALID, "RUN@STEP-aATTEMPT, as `ckpt-cli list` prints it",
                             "'%s' does not name an attempt", cli->args[0]);
    if (error == 0)
        error = remove_it(&loss, cli, &selection, true);
    if (error == 0 && cli->is_dry_run)
        print_loss(cli, " would be lost; nothing was touched",
                   " would go into the trash; nothing was touched", &loss);
    else if (error == 0)
        error = confirm_loss(cli, &loss);
    if (error == 0 && !cli->is_dry_run)
        error = remove_it(&loss, cli, &selection, false);
    if (error == 0 && cli->is_json)
        printf("{\"removed\": \"%s\", \"dry_run\": %s, \"checkpoints\": %llu, \"damaged\": %llu, "
               "\"bytes\": %llu, \"trash_seconds\": %llu, \"elsewhere\": \"%s\", "
               "\"durability\": \"%s\"}\n",
               cli->args[0], cli->is_dry_run ? "true" : "false",
               (unsigned long long)loss.checkpoints, (unsigned long long)loss.damaged,
               (unsigned long long)loss.bytes, (unsigned long long)loss.trash, loss.elsewhere,
               store_durability(cli->store));
    else if (error == 0 && !cli->is_dry_run)
        printf("removed, %s%s", store_durability(cli->store), trash_note(loss.trash).text);
    return error;
}
