/* move.c - adopt and rename: put a run's directory under another name than the one that its
 * checkpoints were saved under.
 *
 * Both write a file beside each manifest that names the original run (proto/format/origin.h), and
 * change neither manifest nor shards. adopt does that after a directory was moved or copied by
 * hand. rename does it first, and then renames the directory in one step. A crash before that
 * leaves the old run, with files that name that same run. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/format/flaw.h"
#include "proto/format/origin.h"
#include "proto/wire/ckpt.pb-c.h"

#include <string.h>

#define RUN_NAME_MAX 100 /* as in ckptd */

/* Reads the original summary of the manifest in an entry's directory. */
static int read_own_summary(struct manifest_summary *out, struct storage *store,
                            const struct manifest_summary *entry)
{
    char key[STORAGE_KEY_MAX + 32], text[MANIFEST_SUMMARY_BYTES];
    uint64_t bytes = 0;
    ERR_TRY(manifest_key(key, sizeof key, entry));
    ERR_TRY(storage_fetch(store, key, text, sizeof text, &bytes));
    ERR_TRY(manifest_read_summary(out, text, bytes < sizeof text ? bytes : sizeof text));
    return out->step == entry->step && out->attempt == entry->attempt
               ? 0
               : report_error(ERR_MISMATCH, "rename the directory back",
                              "its manifest belongs to %s, step %llu, attempt %llu", out->run,
                              (unsigned long long)out->step, (unsigned long long)out->attempt);
}

/* Writes the file; only prints a checkpoint that is damaged. */
static int put_or_print(bool *out_is_put, struct storage *store, const struct store_entry *entry)
{
    struct manifest_summary own;
    int error = read_own_summary(&own, store, &entry->summary);
    if (error == 0)
        error = store_put_origin(store, &own, entry->summary.run);
    *out_is_put = error == 0;
    if (error != ERR_CORRUPT && error != ERR_MISMATCH && error != ERR_VERSION)
        return error;
    log_warn("move", "%s is not adopted: %s",
             text_checkpoint(entry->summary.run, entry->summary.step, entry->summary.attempt).text,
             report_line());
    return 0;
}

/* ---- adopt ---- */

static int adopt_entry(bool *out_is_put, const struct cli *cli, struct storage *store,
                       const struct store_entry *entry)
{
    *out_is_put = false;
    if (!entry->flaw || strcmp(entry->flaw, FLAW_MOVED) != 0)
        return 0;
    int error = put_or_print(out_is_put, store, entry);
    return error == 0 && *out_is_put && cli->server[0] != '\0'
               ? server_release(cli, &entry->summary)
               : error;
}

static int adopt_all(const struct cli *cli, struct storage *store, const struct store_list *catalog)
{
    struct progress progress;
    uint32_t adopted = 0;
    int error = 0;
    progress_begin(&progress, cli, "adopt", catalog->count);
    progress.unit = "checkpoint";
    for (uint32_t i = 0; i < catalog->count && error == 0; i++) {
        bool is_put;
        error = adopt_entry(&is_put, cli, store, &catalog->entries[i]);
        adopted += is_put;
        progress_add(&progress, 1);
    }
    progress_end(&progress);
    if (error != 0)
        return error;
    if (cli->is_json)
        printf("{\"run\": \"%s\", \"adopted\": %u}\n", cli->args[0], adopted);
    else
        printf("%s: %s adopted, %s%s\n", cli->args[0], text_count(adopted, "checkpoint").text,
               store_durability(cli->store),
               adopted == 0 ? "; none was saved under another run's name" : "");
    return 0;
}

int cli_adopt(const struct cli *cli)
{
    struct storage *store = NULL;
    struct store_list catalog = {0};
    struct selection selection;
    int error = selection_parse_run(&selection, cli->args[0]);
    if (error == 0 && cli->server[0] != '\0')
        error = server_prepare_write(cli, ORIGIN_BYTES_MAX);
    if (error == 0)
        error = store_open_writable(&store, cli);
    if (error == 0)
        error = store_need_run(store, selection.run);
    if (error == 0)
        error = store_list_read(&catalog, store, selection.run);
    if (error == 0)
        error = adopt_all(cli, store, &catalog);
    store_list_free(&catalog);
    storage_close(store);
    return error;
}

/* ---- rename ---- */

static int refuse_lease(void *user, const struct storage_entry *entry)
{
    return report_error(ERR_BUSY, "wait for its reader to end", "%s/%s is being read",
                        (const char *)user, entry->name);
}

static int check_names(const struct cli *cli)
{
    struct selection from, to;
    ERR_TRY(selection_parse_run(&from, cli->args[0]));
    ERR_TRY(selection_parse_run(&to, cli->args[1]));
    if (strcmp(from.run, to.run) == 0)
        return report_error(ERR_INVALID, "give it another name", "%s has this name already",
                            from.run);
    return strlen(to.run) <= RUN_NAME_MAX && to.run[0] != '.'
               ? 0
               : report_error(ERR_INVALID, "use at most 100 bytes, and no '.' at the beginning",
                              "'%s' is not a valid run name", to.run);
}

static int rename_stored(const struct cli *cli, struct storage *store,
                         const struct store_list *catalog)
{
    struct progress progress;
    int error = 0;
    progress_begin(&progress, cli, "rename", catalog->count);
    progress.unit = "checkpoint";
    for (uint32_t i = 0; i < catalog->count && error == 0; i++) {
        bool is_put;
        error = put_or_print(&is_put, store, &catalog->entries[i]);
        progress_add(&progress, 1);
    }
    progress_end(&progress);
    if (error == 0)
        error = storage_rename(store, cli->args[0], cli->args[1]);
    if (error == ERR_EXISTS)
        error = report_error(error, "give it another name", "the store has a run %s already",
                             cli->args[1]);
    return error == 0 ? storage_sync_names(store, "") : error;
}

static int rename_store(const struct cli *cli)
{
    struct storage *store = NULL;
    struct store_list catalog = {0};
    int error = store_begin(&store, cli, cli->args[0], true);
    if (error == 0)
        error =
            store_for_leases(store, cli->args[0], refuse_lease, (void *)(uintptr_t)cli->args[0]);
    if (error == 0)
        error = store_list_read(&catalog, store, cli->args[0]);
    if (error == 0)
        error = rename_stored(cli, store, &catalog);
    store_list_free(&catalog);
    storage_close(store);
    return error;
}

int cli_rename(const struct cli *cli)
{
    int error = check_names(cli);
    if (error == 0 && cli->store[0] == '\0')
        error = report_error(ERR_BUSY, "stop ckptd, then rename with --store DIR",
                             "a served run cannot be renamed");
    if (error == 0)
        error = rename_store(cli);
    if (error != 0)
        return error;
    printf(cli->is_json ? "{\"run\": \"%s\", \"renamed_to\": \"%s\", \"durability\": \"%s\"}\n"
                        : "%s is %s now, %s\n",
           cli->args[0], cli->args[1], store_durability(cli->store));
    return 0;
}
