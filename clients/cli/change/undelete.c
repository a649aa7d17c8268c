/* undelete.c - undelete: restores what prune, rm or retention removed. A running ckptd does it
 * (ckptd/keep/undelete.c), or undelete itself on a directory without one, under the store's lock.
 * --dry-run lists the trash. */
#include "clients/cli/engine/cli.h"

#include "proto/base/array.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNDELETE_CALL_MS 120000u

/* One checkpoint in the trash, from either side. */
struct removed {
    struct store_trashed at; /* of a directory */
    uint64_t step, attempt, bytes, seconds;
    bool is_back, is_far;
    char error[256];
};
struct trash {
    struct removed *list;
    uint32_t count, room;
    uint64_t term, far_term;
    char far_error[256]; /* why the far tier's trash could not be read */
};

/* "7 days", "1 hour", "90 seconds": the largest unit that leaves no rest. */
static struct text_count span_text(uint64_t seconds)
{
    static const struct {
        uint64_t seconds;
        const char *name;
    } units[] = {{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}};
    size_t i = 0;
    while (seconds % units[i].seconds != 0)
        i++;
    return text_count(seconds / units[i].seconds, units[i].name);
}

struct trash_note trash_note(uint64_t seconds)
{
    struct trash_note note = {"\n"};
    if (seconds > 0)
        snprintf(note.text, sizeof note.text, "; for %s `ckpt-cli undelete` can restore it\n",
                 span_text(seconds).text);
    return note;
}

static int add_removed(struct trash *trash, const struct removed *removed)
{
    ERR_TRY(array_reserve(&trash->list, &trash->room, trash->count, sizeof *trash->list));
    trash->list[trash->count++] = *removed;
    return 0;
}

/* ---- through a server ---- */

static int undelete_served(struct trash *out, const struct cli *cli,
                           const struct selection *selection)
{
    Holdfast__V1__UndeleteRequest request = HOLDFAST__V1__UNDELETE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)selection->run;
    request.all = selection->step < 0;
    request.step = request.all ? 0 : (uint64_t)selection->step;
    request.attempt = selection->attempt;
    request.dry_run = cli->is_dry_run;
    ERR_TRY(cli_call(&answer, cli, &request.base, UNDELETE_CALL_MS));
    const Holdfast__V1__UndeleteReply *reply = (const Holdfast__V1__UndeleteReply *)answer;
    int error = 0;
    out->term = reply->trash_seconds;
    out->far_term = reply->far_trash_seconds;
    snprintf(out->far_error, sizeof out->far_error, "%s", reply->far_error);
    for (size_t i = 0; i < reply->n_entries && error == 0; i++) {
        const Holdfast__V1__UndeleteEntry *entry = reply->entries[i];
        struct removed removed = {.step = entry->step,
                                  .attempt = entry->attempt,
                                  .bytes = entry->bytes,
                                  .seconds = entry->removed_at,
                                  .is_back = entry->taken_back,
                                  .is_far = strcmp(entry->tier, "far") == 0};
        snprintf(removed.error, sizeof removed.error, "%s", entry->error);
        error = add_removed(out, &removed);
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

/* ---- on a directory ---- */

static int visit_trashed(void *user, const struct store_trashed *item)
{
    const struct removed removed = {.at = *item,
                                    .step = item->step,
                                    .attempt = item->attempt,
                                    .bytes = item->bytes,
                                    .seconds = item->seconds};
    return !item->is_back && item->attempt != 0 ? add_removed(user, &removed) : 0;
}

static int compare_removed(const void *a, const void *b)
{
    const struct removed *x = a, *y = b;
    if (x->attempt != y->attempt)
        return x->attempt > y->attempt ? -1 : 1;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->seconds > y->seconds ? -1 : x->seconds < y->seconds;
}

static bool is_meant(const struct removed *removed, const struct selection *selection)
{
    return selection->step < 0 ||
           (removed->step == (uint64_t)selection->step &&
            (selection->attempt == 0 || removed->attempt == selection->attempt));
}

/* Selects the matching ones, each in its newest form. */
static int select_items(struct trash *trash, struct storage *store,
                        const struct selection *selection)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < trash->count; i++) {
        struct removed *removed = &trash->list[i];
        bool is_older = kept > 0 && trash->list[kept - 1].step == removed->step &&
                        trash->list[kept - 1].attempt == removed->attempt;
        if (!is_meant(removed, selection) || is_older || (selection->step >= 0 && kept > 0))
            continue;
        int error = store_trash_take(store, &removed->at);
        removed->is_back = error == 0;
        if (error != 0)
            snprintf(removed->error, sizeof removed->error, "%s",
                     error == ERR_EXISTS ? "there is a checkpoint of this step and attempt"
                                         : report_line());
        trash->list[kept++] = *removed;
    }
    trash->count = kept;
    return kept > 0 ? 0
                    : report_error(ERR_NOT_FOUND, "see `ckpt-cli undelete RUN --dry-run`",
                                   "the trash of run %s has no such checkpoint", selection->run);
}

static int undelete_stored(struct trash *out, const struct cli *cli,
                           const struct selection *selection)
{
    struct storage *store = NULL;
    int error = store_begin(&store, cli, selection->run, !cli->is_dry_run);
    if (error == 0)
        error = store_trash_term(store, selection->run, &out->term);
    if (error == 0)
        error = store_trash_list(store, selection->run, visit_trashed, out);
    if (error == 0 && out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, compare_removed);
    if (error == 0 && !cli->is_dry_run)
        error = select_items(out, store, selection);
    storage_close(store);
    return error;
}

/* ---- the result ---- */

static void time_text(char out[32], uint64_t seconds)
{
    struct tm tm;
    time_t at = (time_t)seconds;
    if (gmtime_r(&at, &tm) == NULL || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        snprintf(out, 32, "?");
}

/* A far tier's trash is not removed to make space for saves. */
static bool is_far_store(const struct cli *cli)
{
    return strncmp(cli->store, "s3://", 5) == 0 || strncmp(cli->store, "dir:", 4) == 0;
}

static void print_one(const struct cli *cli, const struct trash *trash, const char *run, uint32_t i)
{
    const struct removed *removed = &trash->list[i];
    char size[32], at[32], until[32] = "a save needs the space", safe[256];
    const uint64_t term = removed->is_far ? trash->far_term : trash->term;
    bool is_shared = removed->is_far || is_far_store(cli);
    time_text(at, removed->seconds);
    if (term > 0)
        time_text(until, removed->seconds + term);
    else if (is_shared)
        snprintf(until, sizeof until, "it is removed for good");
    if (cli->is_json) {
        printf("%s\n  {\"step\": %llu, \"attempt\": %llu, \"bytes\": %llu, \"removed_at\": "
               "\"%s\", \"taken_back\": %s, \"tier\": \"%s\", \"error\": ",
               i > 0 ? "," : "", (unsigned long long)removed->step,
               (unsigned long long)removed->attempt, (unsigned long long)removed->bytes, at,
               removed->is_back ? "true" : "false", removed->is_far ? "far" : "");
        text_json(stdout, removed->error);
        printf("}");
        return;
    }
    printf("%-32s %11s  removed %s%s", text_checkpoint(run, removed->step, removed->attempt).text,
           text_bytes(size, sizeof size, removed->bytes), at,
           removed->is_far ? ", in the far tier" : "");
    if (cli->is_dry_run)
        printf(", kept until %s\n", until);
    else
        printf(", %s%s%s%s\n", removed->is_back ? "restored, " : "stays in the trash",
               removed->is_back ? removed->is_far ? "bucket" : store_durability(cli->store) : "",
               removed->error[0] != '\0' ? ": " : "", text_safe(safe, sizeof safe, removed->error));
}

static void print_trash(const struct cli *cli, const struct trash *trash, const char *run)
{
    if (cli->is_json)
        printf("{\"run\": \"%s\", \"dry_run\": %s, \"checkpoints\": [", run,
               cli->is_dry_run ? "true" : "false");
    for (uint32_t i = 0; i < trash->count; i++)
        print_one(cli, trash, run, i);
    if (cli->is_json)
        printf("\n], \"trash_seconds\": %llu, \"durability\": \"%s\"}\n",
               (unsigned long long)trash->term, store_durability(cli->store));
    else if (trash->count == 0)
        printf("the trash of run %s is empty\n", run);
}

static int find_failure(const struct trash *trash)
{
    for (uint32_t i = 0; i < trash->count; i++)
        if (trash->list[i].error[0] != '\0')
            return report_error(ERR_IO, NULL, "step %llu, attempt %llu: %s",
                                (unsigned long long)trash->list[i].step,
                                (unsigned long long)trash->list[i].attempt, trash->list[i].error);
    return trash->far_error[0] == '\0'
               ? 0
               : report_error(ERR_IO, "try again when it answers",
                              "the trash of the far tier could not be read: %s", trash->far_error);
}

int cli_undelete(const struct cli *cli)
{
    struct selection selection;
    struct trash trash = {0};
    int error = selection_parse(&selection, cli->args[0]);
    if (error == 0)
        error =
            (cli->store[0] != '\0' ? undelete_stored : undelete_served)(&trash, cli, &selection);
    if (error == 0) {
        print_trash(cli, &trash, selection.run);
        error = find_failure(&trash);
    }
    free(trash.list);
    return error;
}
