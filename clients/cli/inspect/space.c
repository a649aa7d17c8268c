/* space.c - du and gc: the space that a store uses, and the part of it that belongs to no
 * checkpoint.
 *
 * Rubbish is what a crash leaves. These are shards of a save that was never committed, interrupted
 * removals, notes on missing checkpoints, leases whose holder died, and temporary files of
 * publications. storage/store/rubbish.c finds and removes it. In a store that is served ckptd does
 * that (ckptd/keep/gc.c), because it knows what it is writing.
 *
 * On a directory gc takes the store's lock, so it does not take files that are being written for
 * rubbish. A dry run takes no lock, and so counts a save in progress as unfinished; it reports when
 * a process has the lock. Files of other programs are counted as such and never touched. Items that
 * cannot be read or removed are listed and stay; the others are removed, and the command fails
 * (ERR_IO). */
#include "clients/cli/engine/cli.h"

#include "proto/base/array.h"
#include "proto/format/mark.h"
#include "proto/format/origin.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define KINDS_MAX 16u      /* kinds of tensors that are listed separately */
#define GC_CALL_MS 600000u /* as for a prune: ckptd answers when all is removed */

struct space {
    const struct cli *cli;
    struct storage *store;
    struct store_rubbish_list rubbish;
    uint64_t found_files, found_bytes; /* of all that is removed, also beyond the list */
    bool is_first;
    struct progress *progress;
    uint64_t total, rubbish_bytes, shared, other, trash; /* bytes, for du */
    struct failure failure; /* for du: the first; further ones are only printed */
};

/* ---- names ---- */

struct names {
    char (*list)[256];
    uint32_t count, room;
};

static int add_directory(void *user, const struct storage_entry *entry)
{
    struct names *names = user;
    if (!entry->is_dir)
        return 0;
    ERR_TRY(array_reserve(&names->list, &names->room, names->count, sizeof *names->list));
    snprintf(names->list[names->count++], sizeof *names->list, "%s", entry->name);
    return 0;
}

/* Sorts runs, and checkpoints, like a list (other names last). */
static int compare_runs(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int compare_checkpoints(const void *a, const void *b)
{
    struct retain_item left = {0}, right = {0};
    retain_parse(a, &left.step, &left.attempt);
    retain_parse(b, &right.step, &right.attempt);
    return retain_newest_first(&left, &right);
}

static int list_sorted(struct names *out, struct storage *store, const char *directory,
                       int (*compare)(const void *a, const void *b))
{
    int error = storage_list(store, directory, add_directory, out);
    if (error == 0 && out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, compare);
    return error;
}

static bool is_wanted(const char *name, const struct selection *selection)
{
    return shard_run_is_valid(name) &&
           (selection->run[0] == '\0' || strcmp(selection->run, name) == 0);
}

static int for_all_runs(struct space *space, const struct selection *selection,
                        int (*visit)(struct space *space, const char *run))
{
    struct names names = {0};
    int error = selection->run[0] != '\0' ? store_need_run(space->store, selection->run) : 0;
    if (error == 0)
        error = list_sorted(&names, space->store, "", compare_runs);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        if (is_wanted(names.list[i], selection))
            error = visit(space, names.list[i]);
    }
    free(names.list);
    return error;
}

static int count_steps(struct space *space, const char *run)
{
    struct names names = {0};
    int error = storage_list(space->store, run, add_directory, &names);
    for (size_t i = 0; i < names.count; i++)
        space->progress->total += retain_is_checkpoint(names.list[i]);
    free(names.list);
    return error;
}

/* Begins the progress bar over the directories of steps. Counts them only if the bar is shown. */
static int begin_progress(struct space *space, const char *verb, const struct selection *selection)
{
    int error = 0;
    *space->progress = (struct progress){0};
    if (progress_is_wanted(space->cli))
        error = for_all_runs(space, selection, count_steps);
    progress_begin(space->progress, space->cli, verb, space->progress->total);
    space->progress->unit = "directory";
    return error;
}

/* ---- gc ---- */

static const char *what_text(enum store_rubbish_what what)
{
    static const char *const texts[] = {[STORE_UNFINISHED] = "unfinished save",
                                        [STORE_CUT_SHORT] = "removal that was cut short",
                                        [STORE_STALE] = "note or lease that is over",
                                        [STORE_LEFTOVER] = "temporary file of a publication",
                                        [STORE_UNKNOWN] = "nobody knows what",
                                        [STORE_ASIDE] =
                                            "set aside: without a manifest, stays (rm)"};
    return texts[what];
}

static void count_directory(void *user)
{
    struct space *space = user;
    progress_add(space->progress, 1);
}

static int collect(struct space *space, const char *run)
{
    return store_rubbish_find(&space->rubbish, space->store, run);
}

static void remove_rubbish(struct space *space)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < space->rubbish.count; i++)
        bytes += space->rubbish.items[i].bytes;
    progress_begin(space->progress, space->cli, "gc", bytes);
    for (size_t i = 0; i < space->rubbish.count; i++) {
        struct store_rubbish *item = &space->rubbish.items[i];
        store_rubbish_remove(space->store, item);
        progress_add(space->progress, item->bytes);
    }
    progress_end(space->progress);
}

/* 0, or an error that names the first item which could not be `deed`. ERR_IO, ERR_MEMORY. */
static int report_failures(const struct store_rubbish_list *list, const char *deed)
{
    const struct store_rubbish *first = NULL;
    size_t failed = 0;
    for (size_t i = list->count; i-- > 0;)
        if (list->items[i].error != 0) {
            first = &list->items[i];
            failed++;
        }
    return failed == 0 ? 0
                       : report_error(first->error == ERR_MEMORY ? ERR_MEMORY : ERR_IO, NULL,
                                      "%zu of %zu findings could not be %s: %s", failed,
                                      list->count, deed, store_rubbish_reason(first));
}

static void print_found(const struct cli *cli, const struct store_rubbish *item, bool is_first)
{
    char size[32], safe[STORAGE_KEY_MAX + 1], why[REPORT_TEXT_MAX];
    const char *key = item->key[0] != '\0' ? item->key : ".";
    const char *reason = item->error != 0 ? store_rubbish_reason(item) : "";
    if (!cli->is_json) {
        printf("%-56s %11s  %s%s%s\n", text_safe(safe, sizeof safe, key),
               text_bytes(size, sizeof size, item->bytes), what_text(item->what),
               reason[0] != '\0' ? ", kept: " : "", text_safe(why, sizeof why, reason));
        return;
    }
    printf("%s\n  {\"what\": \"%s\", \"name\": ", is_first ? "" : ",", what_text(item->what));
    text_json(stdout, key);
    printf(", \"files\": %llu, \"bytes\": %llu, \"error\": ", (unsigned long long)item->files,
           (unsigned long long)item->bytes);
    text_json(stdout, reason);
    printf("}");
}

static int compare_rubbish(const void *a, const void *b)
{
    return strcmp(((const struct store_rubbish *)a)->key, ((const struct store_rubbish *)b)->key);
}

/* `note`: printed after the sum. */
static void print_collected(const struct space *space, bool is_served, const char *note)
{
    const struct cli *cli = space->cli;
    char size[32];
    if (space->rubbish.count > 0)
        qsort(space->rubbish.items, space->rubbish.count, sizeof *space->rubbish.items,
              compare_rubbish);
    if (cli->is_json)
        printf("{\"rubbish\": [");
    for (size_t i = 0; i < space->rubbish.count; i++)
        print_found(cli, &space->rubbish.items[i], i == 0);
    if (cli->is_json)
        printf("%s], \"files\": %llu, \"bytes\": %llu, \"dry_run\": %s, \"served\": %s}\n",
               space->rubbish.count > 0 ? "\n" : "", (unsigned long long)space->found_files,
               (unsigned long long)space->found_bytes, cli->is_dry_run ? "true" : "false",
               is_served ? "true" : "false");
    else
        printf("%s, %s %s%s\n", text_count(space->found_files, "file").text,
               text_bytes(size, sizeof size, space->found_bytes),
               cli->is_dry_run ? "to be removed; nothing was touched" : "removed", note);
}

static int gc_store(struct space *space)
{
    static const char note[] = "; the store is in use: saves in progress are counted, too";
    const struct cli *cli = space->cli;
    struct selection all = {.step = -1};
    ERR_TRY(store_begin(&space->store, cli, NULL, !cli->is_dry_run));
    bool is_served = cli->is_dry_run && storage_find_holder(space->store, NULL) == 0;
    space->rubbish.on_checkpoint = count_directory;
    space->rubbish.user = space;
    int error = begin_progress(space, "gc", &all);
    if (error == 0)
        error = for_all_runs(space, &all, collect);
    if (error == 0)
        error = store_rubbish_find_above(&space->rubbish, space->store);
    progress_end(space->progress);
    if (error != 0)
        return error;
    if (!cli->is_dry_run)
        remove_rubbish(space);
    for (size_t i = 0; i < space->rubbish.count; i++) {
        const struct store_rubbish *item = &space->rubbish.items[i];
        space->found_files += store_rubbish_goes(item) ? item->files : 0;
        space->found_bytes += store_rubbish_goes(item) ? item->bytes : 0;
    }
    print_collected(space, is_served, is_served ? note : "");
    return report_failures(&space->rubbish, "read or removed");
}

/* Converts the server's findings to the form of local ones. */
static int read_reply(struct space *space, const Holdfast__V1__GcReply *reply)
{
    struct store_rubbish_list *list = &space->rubbish;
    list->items = calloc(reply->n_entries + 1, sizeof *list->items);
    if (list->items == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list of rubbish");
    for (size_t i = 0; i < reply->n_entries; i++) {
        const Holdfast__V1__GcEntry *entry = reply->entries[i];
        struct store_rubbish *item = &list->items[list->count];
        if (entry->what > STORE_ASIDE)
            continue; /* from a newer ckptd */
        item->what = (enum store_rubbish_what)entry->what;
        item->files = entry->files;
        item->bytes = entry->bytes;
        snprintf(item->key, sizeof item->key, "%s", entry->name);
        list->count++;
        if (entry->error[0] == '\0')
            continue;
        item->error = ERR_IO; /* the code is unknown */
        item->reason = strdup(entry->error);
    }
    space->found_files = reply->files;
    space->found_bytes = reply->bytes;
    return 0;
}

static int gc_server(struct space *space)
{
    Holdfast__V1__GcRequest request = HOLDFAST__V1__GC_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.dry_run = space->cli->is_dry_run;
    ERR_TRY(cli_call(&answer, space->cli, &request.base, GC_CALL_MS));
    int error = read_reply(space, (const Holdfast__V1__GcReply *)answer);
    protobuf_c_message_free_unpacked(answer, NULL);
    if (error != 0)
        return error;
    print_collected(space, true, "");
    return report_failures(&space->rubbish, "read or removed");
}

int cli_gc(const struct cli *cli)
{
    struct progress progress = {0};
    struct space space = {.cli = cli, .progress = &progress};
    int error = cli->store[0] != '\0' ? gc_store(&space) : gc_server(&space);
    store_rubbish_free(&space.rubbish);
    storage_close(space.store);
    return error;
}

/* ---- du ---- */

/* The contents of a step's directory. */
struct contents {
    uint64_t ours, others; /* bytes */
    uint64_t shared;       /* bytes of files with a further hard link */
    bool is_committed;
};

static int count_file(void *user, const struct storage_entry *entry)
{
    struct contents *contents = user;
    bool is_manifest = !entry->is_dir && strcmp(entry->name, MANIFEST_NAME) == 0;
    bool is_mark = !entry->is_dir && strcmp(entry->name, MARK_NAME) == 0;
    bool is_ours = is_manifest || is_mark || (!entry->is_dir && origin_is_member(entry->name));
    *(is_ours ? &contents->ours : &contents->others) += entry->bytes;
    contents->shared += entry->links > 1 ? entry->bytes : 0;
    contents->is_committed = contents->is_committed || is_manifest;
    return 0;
}

struct kind {
    char name[64];
    uint64_t bytes;
};

struct measure {
    struct space *space; /* of the run */
    const struct space *sums;
    const char *run;
    struct selection selection;
    struct kind kinds[KINDS_MAX];
    uint32_t num_kinds, num_checkpoints;
    struct failure failure; /* of the first part that could not be read */
};

/* "weights", "optimizer.exp_avg", or "optimizer" for bytes that belong to no tensor. */
static void kind_of(char out[64], const char *tensor)
{
    static const char optimizer[] = "optimizer.";
    size_t length = strlen(optimizer);
    bool is_weight = strncmp(tensor, optimizer, length) != 0;
    const char *dot = is_weight ? NULL : strchr(tensor + length, '.');
    if (is_weight)
        snprintf(out, 64, "weights");
    else if (dot == NULL)
        snprintf(out, 64, "optimizer");
    else
        snprintf(out, 64, "%.*s", (int)(dot - tensor), tensor);
}

static void add_kind(struct measure *measure, const char *name, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < measure->num_kinds && strcmp(measure->kinds[i].name, name) != 0)
        i++;
    if (i == KINDS_MAX)
        i = KINDS_MAX - 1; /* the last one stands for all others */
    else if (i == measure->num_kinds)
        snprintf(measure->kinds[measure->num_kinds++].name, sizeof measure->kinds->name, "%s",
                 i + 1 < KINDS_MAX ? name : "others");
    measure->kinds[i].bytes += bytes;
}

static void add_tensors(struct measure *measure, const struct manifest *manifest, uint64_t bytes)
{
    char name[64];
    uint64_t data = 0;
    for (uint32_t i = 0; i < manifest->table->num_tensors; i++) {
        const struct tensor_meta *meta = &manifest->table->tensors[i];
        uint64_t size = tensor_elements(meta) * dtype_bytes(meta->dtype);
        kind_of(name, meta->name);
        add_kind(measure, name, size);
        data += size;
    }
    add_kind(measure, "headers, checksums, manifest", bytes > data ? bytes - data : 0);
}

/* Printed before the first line of the run. */
static void print_run_begin(const struct measure *measure)
{
    const struct space *sums = measure->sums;
    if (sums->cli->is_json)
        printf("%s\n    {\"run\": \"%s\", \"checkpoints\": [",
               sums->is_first ? "{\"runs\": [" : ",", measure->run);
}

/* `unread`: why its manifest could not be read; "": it could. */
static void print_checkpoint(struct measure *measure, const char *name, uint64_t bytes,
                             const char *damage, const char *unread)
{
    char size[32], safe[200];
    progress_hide(measure->space->progress);
    if (measure->num_checkpoints == 0)
        print_run_begin(measure);
    if (!measure->space->cli->is_json) {
        printf("  %-46s %11s%s\n", name, text_bytes(size, sizeof size, bytes),
               damage[0] != '\0'   ? "  DAMAGED"
               : unread[0] != '\0' ? "  not read"
                                   : "");
        for (uint32_t i = 0; i < measure->num_kinds && measure->selection.step >= 0; i++)
            printf("    %-44s %11s\n", text_safe(safe, sizeof safe, measure->kinds[i].name),
                   text_bytes(size, sizeof size, measure->kinds[i].bytes));
        return;
    }
    printf("%s\n      {\"checkpoint\": \"%s\", \"bytes\": %llu, \"kinds\": {",
           measure->num_checkpoints == 0 ? "" : ",", name, (unsigned long long)bytes);
    for (uint32_t i = 0; i < measure->num_kinds; i++) {
        printf("%s", i > 0 ? ", " : "");
        text_json(stdout, measure->kinds[i].name);
        printf(": %llu", (unsigned long long)measure->kinds[i].bytes);
    }
    printf("}, \"damage\": ");
    text_json(stdout, damage);
    printf(", \"error\": ");
    text_json(stdout, unread);
    printf("}");
}

static int measure_checkpoint(struct measure *measure, const char *name,
                              const struct contents *contents)
{
    struct selection selection = {.step = -1};
    struct manifest *manifest = NULL;
    uint64_t step = 0, attempt = 0;
    struct text_checkpoint selected;
    char damage[160] = "", unread[REPORT_TEXT_MAX] = "";
    CHECK(retain_parse(name, &step, &attempt));
    if ((measure->selection.step >= 0 && (uint64_t)measure->selection.step != step) ||
        (measure->selection.attempt != 0 && measure->selection.attempt != attempt))
        return 0;
    selected = text_checkpoint(measure->run, step, attempt);
    measure->num_kinds = 0;
    memset(measure->kinds, 0, sizeof measure->kinds);
    int error = selection_parse(&selection, selected.text);
    if (error == 0)
        error = checkpoint_manifest(&manifest, measure->space->store, &selection);
    if (error == 0) {
        add_tensors(measure, manifest, contents->ours);
        manifest_free(manifest);
    } else if (error == ERR_CORRUPT || error == ERR_MISMATCH || error == ERR_VERSION) {
        snprintf(damage, sizeof damage, "%.159s", report_message());
    } else if (error == ERR_MEMORY) {
        return error;
    } else if (error != ERR_NOT_FOUND) { /* not found: it was removed meanwhile */
        failure_keep(&measure->failure, error);
        snprintf(unread, sizeof unread, "%s", report_line());
    }
    print_checkpoint(measure, selected.text, contents->ours, damage, unread);
    measure->num_checkpoints++;
    return 0;
}

static int add_trashed(void *user, const struct store_trashed *item)
{
    struct space *space = user;
    if (item->is_back)
        return 0;
    space->trash += item->bytes;
    if (storage_renames(space->store)) /* otherwise it is counted in its own place */
        space->total += item->bytes;
    return 0;
}

static int measure_checkpoints(struct measure *measure)
{
    struct space *space = measure->space;
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 300];
    int error = list_sorted(&names, space->store, measure->run, compare_checkpoints);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        struct contents contents = {0};
        if (!retain_is_checkpoint(names.list[i]))
            continue;
        snprintf(key, sizeof key, "%s/%s", measure->run, names.list[i]);
        error = storage_list(space->store, key, count_file, &contents);
        space->total += contents.ours + contents.others;
        space->other += contents.others;
        space->shared += contents.shared;
        if (error == 0 && contents.is_committed)
            error = measure_checkpoint(measure, names.list[i], &contents);
        progress_add(space->progress, 1);
    }
    free(names.list);
    return error == 0 ? store_trash_list(space->store, measure->run, add_trashed, space) : error;
}

/* `error`: the first failure; "": none. */
static void print_run_end(const struct measure *measure, uint64_t rubbish, const char *error)
{
    const struct space *space = measure->space;
    char size[5][32];
    progress_hide(space->progress);
    if (measure->num_checkpoints == 0)
        print_run_begin(measure);
    if (space->cli->is_json) {
        printf("%s], \"bytes\": %llu, \"rubbish\": %llu, \"other\": %llu, \"shared\": %llu, "
               "\"trash\": %llu, \"error\": ",
               measure->num_checkpoints == 0 ? "" : "\n    ", (unsigned long long)space->total,
               (unsigned long long)rubbish, (unsigned long long)space->other,
               (unsigned long long)space->shared, (unsigned long long)space->trash);
        text_json(stdout, error);
        printf("}");
        return;
    }
    printf("%-48s %11s  (rubbish %s, trash %s, not ours %s, shared %s)%s\n", measure->run,
           text_bytes(size[0], 32, space->total), text_bytes(size[1], 32, rubbish),
           text_bytes(size[4], 32, space->trash), text_bytes(size[2], 32, space->other),
           text_bytes(size[3], 32, space->shared),
           error[0] != '\0' ? ", and what could not be read" : "");
}

/* Measures one run: its checkpoints, then the sums. Unreadable parts count as nothing, and du
 * returns their error at the end. */
static int measure_run(struct space *sums, const char *run, const struct selection *selection)
{
    struct space space = {.cli = sums->cli, .store = sums->store, .progress = sums->progress};
    struct measure measure = {.space = &space, .sums = sums, .run = run, .selection = *selection};
    int error = measure_checkpoints(&measure);
    if (error == 0 && selection->step >= 0 && measure.num_checkpoints == 0)
        return selection_fail_none(selection, false);
    if (error == 0)
        error = store_rubbish_find(&space.rubbish, space.store, run);
    uint64_t rubbish = 0;
    for (size_t i = 0; i < space.rubbish.count; i++)
        rubbish += space.rubbish.items[i].bytes;
    if (error == 0)
        error = report_failures(&space.rubbish, "read");
    if (error == 0)
        error = failure_report(&measure.failure);
    store_rubbish_free(&space.rubbish);
    failure_keep(&sums->failure, error);
    print_run_end(&measure, rubbish, error != 0 ? report_line() : "");
    sums->is_first = false;
    sums->total += space.total;
    sums->other += space.other;
    sums->shared += space.shared;
    sums->trash += space.trash;
    sums->rubbish_bytes += rubbish;
    return 0;
}

static int measure_all(struct space *space, const char *run)
{
    return measure_run(space, run, &(struct selection){.step = -1});
}

int cli_du(const struct cli *cli)
{
    struct progress progress = {0};
    struct space space = {.cli = cli, .progress = &progress, .is_first = true};
    struct selection selection = {.step = -1};
    char size[2][32];
    int error = cli->num_args > 0 ? selection_parse(&selection, cli->args[0]) : 0;
    if (error == 0)
        error = store_open(&space.store, cli);
    if (error == 0)
        error = begin_progress(&space, "du", &selection);
    if (error == 0 && selection.step >= 0)
        error = measure_run(&space, selection.run, &selection);
    else if (error == 0)
        error = for_all_runs(&space, &selection, measure_all);
    progress_end(&progress);
    if (error == 0 && cli->is_json)
        printf("%s], \"bytes\": %llu, \"rubbish\": %llu, \"other\": %llu, \"shared\": %llu, "
               "\"trash\": %llu}\n",
               space.is_first ? "{\"runs\": [" : "\n  ", (unsigned long long)space.total,
               (unsigned long long)space.rubbish_bytes, (unsigned long long)space.other,
               (unsigned long long)space.shared, (unsigned long long)space.trash);
    else if (error == 0 && selection.run[0] == '\0')
        printf("%-48s %11s  (rubbish %s)\n", "all runs", text_bytes(size[0], 32, space.total),
               text_bytes(size[1], 32, space.rubbish_bytes));
    storage_close(space.store);
    return error != 0 ? error : failure_report(&space.failure);
}
