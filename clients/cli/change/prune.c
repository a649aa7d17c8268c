/* prune.c - prune: by a running ckptd, or on a directory without one.
 *
 * The plan is that of proto/format/retain.c and the removal that of store_remove(), the same as in
 * ckptd. The cursor that ckptd's scrub leaves in each run, and the results of verify beside the
 * checkpoints, show which are intact or damaged. On a directory, prune takes the store's lock: if a
 * ckptd has it, the error names its pid and the hint --server.
 *
 * A damaged checkpoint never makes another one removable.
 *
 * A prune prints its plan: a line per checkpoint with the rules that keep it. --dry-run prints the
 * plan and removes nothing. A plan that removes more than half of the run is refused without
 * --most. */
#include "clients/cli/engine/cli.h"

#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRUNE_CALL_MS 600000u

/* The result of a prune, from either side. */
struct outcome {
    uint64_t step, attempt, bytes;
    unsigned reasons;
    bool is_removed;
    int code; /* of the error, if known; 0: none, or a server's */
    char error[256];
};
struct outcomes {
    struct outcome *list;
    size_t count;
    uint64_t trash;   /* how long removed checkpoints can be restored, in seconds; 0: not at all */
    struct tags tags; /* of the run; the tags of a removed checkpoint become invalid */
};

static int new_outcomes(struct outcomes *out, size_t count)
{
    out->count = count;
    out->list = calloc(count + 1, sizeof *out->list);
    return out->list != NULL ? 0
                             : report_error(ERR_MEMORY, NULL, "no memory for %s",
                                            text_count(count, "result").text);
}

/* ---- the command line ---- */

static int parse_rules(struct retain_rules *out, const struct cli *cli)
{
    *out = (struct retain_rules){.keep_last = (uint32_t)cli->keep_last,
                                 .keep_every = (uint64_t)cli->keep_every,
                                 .keep_best = (uint32_t)cli->keep_best,
                                 .best_is_highest = strcmp(cli->best, "highest") == 0,
                                 .may_remove_most = cli->may_remove_most};
    int error = span_parse(&out->keep_within, "keep-within", cli->keep_within);
    return error != 0 ? error : retain_check(out);
}

/* Parses a run without a step. */
static int parse_run(struct selection *out, const struct cli *cli)
{
    int error = selection_parse(out, cli->args[0]);
    if (error == 0 && out->step >= 0)
        error = report_error(ERR_INVALID, "name the run alone", "prune takes a run, not a step");
    return error;
}

/* ---- through a server ---- */

static int prune_server(struct outcomes *out, const struct cli *cli, const char *run,
                        const struct retain_rules *rules)
{
    Holdfast__V1__PruneRequest request = HOLDFAST__V1__PRUNE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)run;
    request.keep_last = rules->keep_last;
    request.keep_every = rules->keep_every;
    request.keep_within_seconds = rules->keep_within;
    request.keep_best = rules->keep_best;
    request.metric = (char *)(uintptr_t)cli->metric;
    request.best_is_highest = rules->best_is_highest;
    request.may_remove_most = rules->may_remove_most;
    request.dry_run = cli->is_dry_run;
    request.now = cli->is_now;
    ERR_TRY(cli_call(&answer, cli, &request.base, PRUNE_CALL_MS));
    const Holdfast__V1__PruneReply *reply = (const Holdfast__V1__PruneReply *)answer;
    int error = new_outcomes(out, reply->n_entries);
    out->trash = reply->trash_seconds;
    for (size_t i = 0; error == 0 && i < out->count; i++) {
        const Holdfast__V1__PruneEntry *entry = reply->entries[i];
        out->list[i] = (struct outcome){.step = entry->step,
                                        .attempt = entry->attempt,
                                        .bytes = entry->bytes,
                                        .reasons = entry->reasons,
                                        .is_removed = entry->removed};
        snprintf(out->list[i].error, sizeof out->list[i].error, "%s", entry->error);
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

/* ---- on a directory ---- */

struct files {
    uint64_t bytes;
    uint32_t count;
};

static int visit_file(void *user, const struct storage_entry *entry)
{
    struct files *files = user;
    if (!entry->is_dir && shard_is_file_name(entry->name)) {
        files->bytes += entry->bytes;
        files->count++;
    }
    return 0;
}

/* Do all its files exist, with all their bytes? If not, it counts as unverifiable, and stays.
 * ERR_MEMORY: unknown. */
static int check_files(bool *out_whole, struct storage *store, const struct store_entry *entry,
                       const char *prefix)
{
    struct files files = {0};
    int error = storage_list(store, prefix, visit_file, &files);
    *out_whole = error == 0 && entry->damage == NULL && files.count == entry->summary.shards &&
                 files.bytes == entry->summary.bytes;
    return error == ERR_MEMORY ? error : 0;
}

static int read_metric(struct retain_item *item, struct storage *store, const char *run,
                       const char *metric)
{
    struct selection selection = {.step = (int64_t)item->step, .attempt = item->attempt};
    struct manifest *manifest = NULL;
    snprintf(selection.run, sizeof selection.run, "%s", run);
    int error = checkpoint_manifest(&manifest, store, &selection);
    if (error == 0) {
        error = retain_metric(item, manifest->state_json, metric);
    } else if (error == ERR_NOT_FOUND) {
        item->is_vanished = true;
        error = 0;
    } else if (error == ERR_CORRUPT || error == ERR_VERSION) { /* then it stays */
        item->is_damaged = true;
        error = 0;
    } /* after a disk failure the metric is unknown: no plan can be made */
    manifest_free(manifest);
    return error;
}

static int fill_item(struct retain_item *out, struct storage *store,
                     const struct store_entry *entry, const struct scrub_cursor *scrubbed,
                     const struct cli *cli)
{
    const struct manifest_summary *summary = &entry->summary;
    char prefix[STORAGE_KEY_MAX];
    struct verified verified;
    *out = (struct retain_item){
        .step = summary->step, .attempt = summary->attempt, .time = retain_time(summary->time)};
    bool is_whole = false;
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    ERR_TRY(check_files(&is_whole, store, entry, prefix));
    int error = store_read_verified(&verified, store, summary);
    if (error == ERR_MEMORY)
        return error;
    out->is_damaged = !is_whole || verified_stays(error, &verified);
    out->is_proven = verified_is_read_back(
        &verified, scrub_has_proven(scrubbed, summary->step, summary->attempt));
    error = store_find_note(store, STORE_PIN, prefix, NULL, 0);
    out->is_pinned = error == 0;
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    return cli->keep_best > 0 && !out->is_damaged
               ? read_metric(out, store, summary->run, cli->metric)
               : 0;
}

static void remove_one(struct outcome *outcome, struct storage *store, const char *run, bool keeps)
{
    char prefix[STORAGE_KEY_MAX];
    int error = shard_dir_key(prefix, sizeof prefix, run, outcome->step, outcome->attempt);
    if (error == 0)
        error = keeps ? store_trash_put(store, prefix, (uint64_t)time(NULL), false)
                      : store_remove(store, prefix);
    outcome->is_removed = error == 0;
    outcome->code = error;
    if (error != 0)
        snprintf(outcome->error, sizeof outcome->error, "%s", report_line());
}

struct item_check {
    struct storage *store;
    const struct store_list *catalog;
    struct retain_item *items;
};

static int check_item(void *user, uint32_t index)
{
    const struct item_check *item_check = user;
    struct retain_item *item = &item_check->items[index];
    int error = store_check(item_check->store, &item_check->catalog->entries[index].summary, 0);
    item->is_vanished = error == ERR_NOT_FOUND;
    item->is_damaged = error == ERR_CORRUPT || error == ERR_VERSION;
    return item->is_vanished || item->is_damaged ? 0 : error;
}

struct leasing {
    struct retain_item *items;
    uint32_t count;
};

static int visit_lease(void *user, const struct storage_entry *entry)
{
    const struct leasing *leasing = user;
    uint64_t step, attempt;
    bool is_ours = retain_parse(entry->name, &step, &attempt);
    for (uint32_t i = 0; is_ours && i < leasing->count; i++)
        if (leasing->items[i].step == step && leasing->items[i].attempt == attempt)
            leasing->items[i].is_leased = true;
    return 0;
}

/* Fills the items from the files of each checkpoint. */
static int fill_items(struct retain_item *items, struct storage *store, const struct cli *cli,
                      const struct store_list *catalog)
{
    struct progress progress;
    struct scrub_cursor scrubbed = {0};
    int error = catalog->count > 0
                    ? store_read_cursor(&scrubbed, store, catalog->entries[0].summary.run)
                    : 0;
    progress_begin(&progress, cli, "prune", catalog->count);
    progress.unit = "checkpoint";
    for (uint32_t i = 0; i < catalog->count && error == 0; i++) {
        error = fill_item(&items[i], store, &catalog->entries[i], &scrubbed, cli);
        progress_add(&progress, 1);
    }
    progress_end(&progress);
    return error;
}

static void remove_planned(struct outcomes *outcomes, struct storage *store, const struct cli *cli,
                           const char *run)
{
    struct progress progress;
    uint64_t bytes = 0;
    for (size_t i = 0; i < outcomes->count; i++)
        bytes += outcomes->list[i].reasons == 0 ? outcomes->list[i].bytes : 0;
    progress_begin(&progress, cli, "prune", bytes);
    for (size_t i = 0; i < outcomes->count; i++) {
        struct outcome *outcome = &outcomes->list[i];
        if (outcome->reasons != 0)
            continue;
        remove_one(outcome, store, run, outcomes->trash > 0);
        progress_add(&progress, outcome->bytes);
    }
    progress_end(&progress);
}

static int prune_catalog(struct outcomes *out, struct storage *store, const struct cli *cli,
                         const char *run, const struct store_list *catalog,
                         const struct retain_rules *rules)
{
    uint32_t removed = 0;
    struct retain_item *items = calloc(catalog->count + 1, sizeof *items);
    int error = items != NULL ? new_outcomes(out, catalog->count)
                              : report_error(ERR_MEMORY, NULL, "no memory for the plan");
    if (error == 0)
        error = fill_items(items, store, cli, catalog);
    if (error == 0)
        error = store_for_leases(store, run, visit_lease, &(struct leasing){items, catalog->count});
    if (error == 0) {
        error = retain_plan_seen(items, catalog->count, rules, &removed, check_item,
                                 &(struct item_check){store, catalog, items});
        if (error == ERR_DENIED && cli->is_dry_run) /* prints a refused plan, too */
            error = 0;
    }
    for (uint32_t i = 0; i < catalog->count && error == 0; i++)
        out->list[i] = (struct outcome){.step = items[i].step,
                                        .attempt = items[i].attempt,
                                        .bytes = catalog->entries[i].summary.bytes,
                                        .reasons = items[i].reasons};
    if (error == 0 && !cli->is_now)
        error = store_trash_term(store, run, &out->trash);
    if (error == 0 && !cli->is_dry_run)
        remove_planned(out, store, cli, run);
    free(items);
    return error;
}

static int prune_store(struct outcomes *out, const struct cli *cli, const char *run,
                       const struct retain_rules *rules)
{
    struct storage *store = NULL;
    struct store_list catalog = {0};
    int error = store_begin(&store, cli, run, !cli->is_dry_run);
    if (error == 0 && !cli->is_dry_run) /* rest of an interrupted prune */
        error = store_recover_run(store, run);
    if (error == 0)
        error = store_list_read(&catalog, store, run);
    if (error == 0)
        error = prune_catalog(out, store, cli, run, &catalog, rules);
    store_list_free(&catalog);
    storage_close(store);
    return error;
}

/* ---- the result ---- */

/* A dry run: would the plan be refused otherwise? */
static bool needs_most(const struct cli *cli, const struct outcomes *outcomes)
{
    size_t going = 0, counted = 0;
    for (size_t i = 0; i < outcomes->count; i++) {
        going += outcomes->list[i].reasons == 0;
        counted += retain_counts(outcomes->list[i].reasons);
    }
    return cli->is_dry_run && !cli->may_remove_most && retain_is_most(going, counted);
}

static void print_json(const struct cli *cli, const char *run, const struct outcomes *outcomes)
{
    char reasons[128], tags[256];
    printf("{\"run\": ");
    text_json(stdout, run);
    printf(", \"dry_run\": %s, \"needs_most\": %s, \"checkpoints\": [",
           cli->is_dry_run ? "true" : "false", needs_most(cli, outcomes) ? "true" : "false");
    for (size_t i = 0; i < outcomes->count; i++) {
        const struct outcome *outcome = &outcomes->list[i];
        printf("%s\n  {\"step\": %llu, \"attempt\": %llu, \"bytes\": %llu, \"plan\": \"%s\", "
               "\"removed\": %s, \"error\": ",
               i > 0 ? "," : "", (unsigned long long)outcome->step,
               (unsigned long long)outcome->attempt, (unsigned long long)outcome->bytes,
               retain_text(reasons, sizeof reasons, outcome->reasons),
               outcome->is_removed ? "true" : "false");
        text_json(stdout, outcome->error);
        if (tags_text(tags, sizeof tags, &outcomes->tags, outcome->step, outcome->attempt)[0])
            printf(", \"tags\": \"%s\"", tags);
        printf("}");
    }
    printf("\n], \"trash_seconds\": %llu, \"durability\": \"%s\"}\n",
           (unsigned long long)outcomes->trash, store_durability(cli->store));
}

static void print_plan(const struct cli *cli, const char *run, const struct outcomes *outcomes)
{
    char size[32], text[300], reasons[128], tags[256];
    uint64_t bytes = 0;
    size_t count = 0;
    if (outcomes->count == 0) {
        printf("no checkpoint of %s is in the store; prune does not remove from other tiers\n",
               run);
        return;
    }
    printf("%-32s %11s  %s\n", "CHECKPOINT", "SIZE", cli->is_dry_run ? "PLAN" : "RESULT");
    for (size_t i = 0; i < outcomes->count; i++) {
        const struct outcome *outcome = &outcomes->list[i];
        bool goes = cli->is_dry_run ? outcome->reasons == 0 : outcome->is_removed;
        count += goes;
        bytes += goes ? outcome->bytes : 0;
        if ((outcome->reasons & RETAIN_VANISHED) != 0)
            snprintf(text, sizeof text, "no longer in the store; removed from the list");
        else if (outcome->reasons != 0)
            snprintf(text, sizeof text, "kept: %s",
                     retain_text(reasons, sizeof reasons, outcome->reasons));
        else
            snprintf(text, sizeof text, "%s", cli->is_dry_run ? "to be removed" : "removed");
        if (outcome->error[0] != '\0')
            text_safe(text, sizeof text, outcome->error);
        tags_text(tags, sizeof tags, &outcomes->tags, outcome->step, outcome->attempt);
        printf("%-32s %11s  %s%s%s\n", text_checkpoint(run, outcome->step, outcome->attempt).text,
               text_bytes(size, sizeof size, outcome->bytes), text, tags[0] != '\0' ? ", tag " : "",
               tags);
    }
    printf("%zu of %s, %s, %s%s%s", count, text_count(outcomes->count, "checkpoint").text,
           text_bytes(size, sizeof size, bytes),
           cli->is_dry_run ? "to be removed; nothing was touched" : "removed, ",
           cli->is_dry_run ? "" : store_durability(cli->store),
           trash_note(count > 0 ? outcomes->trash : 0).text);
    if (needs_most(cli, outcomes))
        printf("more than half: without --most nothing will be removed\n");
}

/* 0, or the first failure. */
static int find_failure(const struct outcomes *outcomes)
{
    size_t failed = 0;
    const char *first = "";
    bool is_memory = false;
    for (size_t i = outcomes->count; i-- > 0;)
        if (outcomes->list[i].error[0] != '\0') {
            first = outcomes->list[i].error;
            is_memory = outcomes->list[i].code == ERR_MEMORY;
            failed++;
        }
    return failed == 0 ? 0
                       : report_error(is_memory ? ERR_MEMORY : ERR_IO,
                                      "the remaining checkpoints are intact; prune again",
                                      "%s could not be removed: %s",
                                      text_count(failed, "checkpoint").text, first);
}

/* If tags cannot be read, the plan is printed without them. */
static void read_tags(struct outcomes *outcomes, const struct cli *cli, const char *run)
{
    struct storage *store = verified_store(cli);
    tags_read(&outcomes->tags, store, run);
    storage_close(store);
}

int cli_prune(const struct cli *cli)
{
    struct selection selection;
    struct retain_rules rules;
    struct outcomes outcomes = {0};
    int error = parse_run(&selection, cli);
    if (error == 0)
        error = parse_rules(&rules, cli);
    if (error == 0)
        error = (cli->store[0] != '\0' ? prune_store : prune_server)(&outcomes, cli, selection.run,
                                                                     &rules);
    if (error == 0)
        read_tags(&outcomes, cli, selection.run);
    if (error == 0 && cli->is_json)
        print_json(cli, selection.run, &outcomes);
    else if (error == 0)
        print_plan(cli, selection.run, &outcomes);
    if (error == 0)
        error = find_failure(&outcomes);
    tags_free(&outcomes.tags);
    free(outcomes.list);
    return error;
}
