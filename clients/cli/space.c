/* space.c - du and gc: what takes the space of a store, and what of it belongs to no checkpoint.
 *
 * Rubbish is what a crash leaves: shards of a save that was never committed, removals that were cut
 * short, notes on checkpoints that are gone, leases whose holder died, temporary files of
 * publications. ckptd removes its own when it starts; gc does the same for a store that nobody
 * serves: it takes the store's lock, so nothing that is being written can be taken for rubbish. A
 * dry run takes no lock, and so counts a save in work as unfinished; it says when somebody has the
 * lock. Files that are not ours are counted as such and never touched. */
#include "clients/cli/cli.h"

#include "proto/retain.h"

#include <stdlib.h>
#include <string.h>

#define LEFTOVER_SECONDS_MIN 600u /* readers publish notes and leases without the lock */
#define KINDS_MAX 16u             /* of tensors, told apart */

static const struct storage_group_kind checkpoint_kind = {.marker = MANIFEST_NAME,
                                                          .is_ours = shard_is_file_name};

struct usage {
    uint64_t bytes, files;
};

/* ---- rubbish ---- */

enum rubbish { UNFINISHED, CUT_SHORT, STALE_NOTE, LEFTOVER, NUM_RUBBISH };
static const char *const RUBBISH_NAMES[NUM_RUBBISH] = {
    "unfinished save", "removal that was cut short", "note without its checkpoint",
    "temporary file of a publication"};

struct space {
    const struct cli *cli;
    struct storage *store;
    bool removes;  /* rubbish is removed as it is found */
    bool is_quiet; /* it is counted, not told */
    bool is_first;
    struct usage rubbish[NUM_RUBBISH]; /* of all runs */
    uint64_t total, shared, other;     /* bytes */
};

static int remove_key(struct space *space, const char *key)
{
    int error = space->removes ? storage_remove(space->store, key) : 0;
    return error == ERR_NOT_FOUND ? 0 : error;
}

static void tell_rubbish(struct space *space, enum rubbish kind, const char *key,
                         const struct usage *usage)
{
    char size[32], safe[STORAGE_KEY_MAX + 1];
    space->rubbish[kind].bytes += usage->bytes;
    space->rubbish[kind].files += usage->files;
    if (space->is_quiet)
        return;
    if (space->cli->is_json) {
        printf("%s\n  {\"what\": \"%s\", \"name\": ", space->is_first ? "" : ",",
               RUBBISH_NAMES[kind]);
        text_json(stdout, key);
        printf(", \"files\": %llu, \"bytes\": %llu}", (unsigned long long)usage->files,
               (unsigned long long)usage->bytes);
    } else {
        printf("%-56s %11s  %s\n", text_safe(safe, sizeof safe, key),
               text_bytes(size, sizeof size, usage->bytes), RUBBISH_NAMES[kind]);
    }
    space->is_first = false;
}

/* ---- names ---- */

struct names {
    char (*list)[256];
    bool *is_dir;
    size_t count, room;
};

static int add_name(void *user, const struct storage_entry *entry)
{
    struct names *names = user;
    if (names->count == names->room) {
        size_t room = names->room > 0 ? 2 * names->room : 64;
        void *list = realloc(names->list, room * sizeof *names->list);
        names->list = list != NULL ? list : names->list;
        void *is_dir = list != NULL ? realloc(names->is_dir, room * sizeof *names->is_dir) : NULL;
        names->is_dir = is_dir != NULL ? is_dir : names->is_dir;
        if (is_dir == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for a list of %zu names", room);
        names->room = room;
    }
    snprintf(names->list[names->count], sizeof *names->list, "%s", entry->name);
    names->is_dir[names->count++] = entry->is_dir;
    return 0;
}

static void free_names(struct names *names)
{
    free(names->list);
    free(names->is_dir);
    *names = (struct names){0};
}

/* ---- one directory of a step ---- */

struct contents {
    struct usage ours, others;
    uint64_t shared; /* bytes of files that have a name elsewhere too */
};

static int count_file(void *user, const struct storage_entry *entry)
{
    struct contents *contents = user;
    bool is_ours = !entry->is_dir &&
                   (shard_is_file_name(entry->name) || strcmp(entry->name, MANIFEST_NAME) == 0);
    struct usage *usage = is_ours ? &contents->ours : &contents->others;
    usage->bytes += entry->bytes;
    usage->files++;
    contents->shared += entry->links > 1 ? entry->bytes : 0;
    return 0;
}

/* An error is no answer: what hangs on it is removed. */
static int look_for(bool *out, struct storage *store, const char *key)
{
    uint64_t bytes;
    int error = storage_fetch(store, key, NULL, 0, &bytes);
    *out = error == 0;
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int look_for_holder(bool *out, struct storage *store, const char *key)
{
    int error = storage_find_holder(store, key);
    *out = error == 0;
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* Shards without a manifest; what is not ours stays, with its directory. */
static int remove_unfinished(struct space *space, const char *directory)
{
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 300];
    int error = storage_list(space->store, directory, add_name, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        if (names.is_dir[i] || !shard_is_file_name(names.list[i]))
            continue;
        snprintf(key, sizeof key, "%s/%s", directory, names.list[i]);
        error = remove_key(space, key);
    }
    free_names(&names);
    if (error == 0)
        error = storage_remove(space->store, directory);
    return error == ERR_EXISTS || error == ERR_NOT_FOUND ? 0 : error;
}

/* True when the directory holds a checkpoint. */
static int look_at_step(bool *out_committed, struct contents *contents, struct space *space,
                        const char *run, const char *name)
{
    char directory[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 32];
    bool is_cut_short = false;
    snprintf(directory, sizeof directory, "%s/%s", run, name);
    *contents = (struct contents){0};
    int error = storage_list(space->store, directory, count_file, contents);
    snprintf(key, sizeof key, "%s/%s", directory, MANIFEST_NAME);
    if (error == 0)
        error = look_for(out_committed, space->store, key);
    if (error != 0 || *out_committed)
        return error;
    snprintf(key, sizeof key, "%s/tombstones/%s", run, name);
    error = look_for(&is_cut_short, space->store, key);
    if (error != 0)
        return error;
    tell_rubbish(space, is_cut_short ? CUT_SHORT : UNFINISHED, directory, &contents->ours);
    return space->removes && !is_cut_short ? remove_unfinished(space, directory) : 0;
}

/* ---- what lies beside them ---- */

/* A note, or a lease: its name begins with that of its checkpoint. */
static int look_at_note(struct space *space, const char *run, const char *folder, const char *name)
{
    char key[STORAGE_KEY_MAX + 32], manifest[STORAGE_KEY_MAX + 32];
    bool is_lease = strcmp(folder, "leases") == 0, is_used = false;
    snprintf(key, sizeof key, "%s/%s/%s", run, folder, name);
    snprintf(manifest, sizeof manifest, "%s/%.*s/%s", run, (int)strcspn(name, "."), name,
             MANIFEST_NAME);
    if (strcmp(folder, "tombstones") == 0) { /* the removal is ended, or taken back, in the end */
        tell_rubbish(space, CUT_SHORT, key, &(struct usage){0, 1});
        return 0;
    }
    if (name[0] == '.') /* of no checkpoint: not ours */
        return 0;
    int error = is_lease ? look_for_holder(&is_used, space->store, key)
                         : look_for(&is_used, space->store, manifest);
    if (error != 0 || is_used)
        return error;
    tell_rubbish(space, STALE_NOTE, key, &(struct usage){0, 1});
    return remove_key(space, key);
}

static int look_at_notes(struct space *space, const char *run)
{
    static const char *const folders[] = {"pins", "quarantine", "tombstones", "leases"};
    int error = 0;
    for (size_t f = 0; f < sizeof folders / sizeof *folders && error == 0; f++) {
        struct names names = {0};
        char key[STORAGE_KEY_MAX + 1];
        snprintf(key, sizeof key, "%s/%s", run, folders[f]);
        error = storage_list(space->store, key, add_name, &names);
        for (size_t i = 0; i < names.count && error == 0; i++)
            if (!names.is_dir[i])
                error = look_at_note(space, run, folders[f], names.list[i]);
        free_names(&names);
    }
    return error;
}

static int sweep(struct space *space, const char *folder)
{
    struct storage_sweep found = {.seconds = LEFTOVER_SECONDS_MIN, .removes = space->removes};
    int error = storage_sweep(space->store, folder, &found);
    if (error == 0 && found.files > 0)
        tell_rubbish(space, LEFTOVER, folder[0] != '\0' ? folder : ".",
                     &(struct usage){found.bytes, found.files});
    return error;
}

/* Rubbish of one run; the hook sees its checkpoints. */
static int look_at_run(struct space *space, const char *run,
                       int (*checkpoint)(void *user, const char *name,
                                         const struct contents *contents),
                       void *user)
{
    struct names names = {0};
    char key[STORAGE_KEY_MAX + 300];
    uint64_t step, attempt;
    int error = storage_list(space->store, run, add_name, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        struct contents contents = {0};
        bool is_committed = false, is_step = retain_parse(names.list[i], &step, &attempt);
        if (!names.is_dir[i])
            continue;
        snprintf(key, sizeof key, "%s/%s", run, names.list[i]);
        error = sweep(space, key);
        if (error == 0 && is_step)
            error = look_at_step(&is_committed, &contents, space, run, names.list[i]);
        if (is_step) {
            space->total += contents.ours.bytes + contents.others.bytes;
            space->other += contents.others.bytes;
            space->shared += contents.shared;
        }
        if (error == 0 && is_committed)
            error = checkpoint(user, names.list[i], &contents);
    }
    free_names(&names);
    if (error == 0)
        error = look_at_notes(space, run);
    if (error == 0 && space->removes)
        error = storage_groups_recover(space->store, &checkpoint_kind, run);
    return error != 0 ? error : sweep(space, run);
}

static bool is_wanted(const char *name, const struct selection *selection)
{
    return shard_run_is_valid(name) &&
           (selection->run[0] == '\0' || strcmp(selection->run, name) == 0);
}

static int for_all_runs(struct space *space, const struct selection *selection,
                        int (*look)(struct space *space, const char *run))
{
    struct names names = {0};
    bool is_found = selection->run[0] == '\0';
    int error = storage_list(space->store, "", add_name, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        if (!names.is_dir[i] || !is_wanted(names.list[i], selection))
            continue;
        is_found = true;
        error = look(space, names.list[i]);
    }
    free_names(&names);
    if (error == 0 && !is_found)
        error = report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "the store has no run '%s'",
                             selection->run);
    return error;
}

/* ---- gc ---- */

static int pass_over(void *user, const char *name, const struct contents *contents)
{
    (void)user, (void)name, (void)contents;
    return 0;
}

static int collect(struct space *space, const char *run)
{
    int error = look_at_run(space, run, pass_over, NULL);
    return error == 0 && space->removes ? storage_sync_names(space->store, run) : error;
}

static int open_for_gc(struct space *space)
{
    int error = space->removes ? store_open_writable(&space->store, space->cli)
                               : store_open(&space->store, space->cli);
    if (error == 0 && space->removes) {
        error = storage_lock(space->store);
        if (error == ERR_BUSY)
            error = report_error(error, "ckptd removes its rubbish when it starts",
                                 "the store is served: %s", report_message());
    }
    return error;
}

static void print_collected(const struct space *space, bool is_served)
{
    struct usage sum = {0};
    char size[32];
    for (int kind = 0; kind < NUM_RUBBISH; kind++) {
        sum.bytes += space->rubbish[kind].bytes;
        sum.files += space->rubbish[kind].files;
    }
    if (space->cli->is_json)
        printf("%s], \"files\": %llu, \"bytes\": %llu, \"dry_run\": %s, \"served\": %s}\n",
               space->is_first ? "" : "\n", (unsigned long long)sum.files,
               (unsigned long long)sum.bytes, space->removes ? "false" : "true",
               is_served ? "true" : "false");
    else
        printf("%llu files, %s %s%s\n", (unsigned long long)sum.files,
               text_bytes(size, sizeof size, sum.bytes),
               space->removes ? "removed" : "to be removed; nothing was touched",
               is_served ? "; the store is in use: what is being saved is counted too" : "");
}

int cli_gc(const struct cli *cli)
{
    struct space space = {.cli = cli, .removes = !cli->is_dry_run, .is_first = true};
    struct selection all = {.step = -1};
    int error = open_for_gc(&space);
    if (error == 0) {
        bool is_served = !space.removes && storage_find_holder(space.store, NULL) == 0;
        if (cli->is_json)
            printf("{\"rubbish\": [");
        error = for_all_runs(&space, &all, collect);
        if (error == 0)
            error = sweep(&space, "");
        if (error == 0)
            print_collected(&space, is_served);
    }
    storage_close(space.store);
    return error;
}

/* ---- du ---- */

struct kind {
    char name[64];
    uint64_t bytes;
};

struct measure {
    struct space *space;
    const char *run;
    struct selection selection;
    struct kind kinds[KINDS_MAX];
    uint32_t num_kinds, num_checkpoints;
    bool is_first;
};

/* "weights", "optimizer.exp_avg", or "optimizer" for what belongs to no tensor. */
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
        i = KINDS_MAX - 1; /* the last one stands for all that are left */
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

static void print_checkpoint(struct measure *measure, const char *name, uint64_t bytes,
                             const char *damage)
{
    char size[32], safe[200];
    if (!measure->space->cli->is_json) {
        printf("  %-46s %11s%s\n", name, text_bytes(size, sizeof size, bytes),
               damage[0] != '\0' ? "  DAMAGED" : "");
        for (uint32_t i = 0; i < measure->num_kinds && measure->selection.step >= 0; i++)
            printf("    %-44s %11s\n", text_safe(safe, sizeof safe, measure->kinds[i].name),
                   text_bytes(size, sizeof size, measure->kinds[i].bytes));
        return;
    }
    printf("%s\n      {\"checkpoint\": \"%s\", \"bytes\": %llu, \"kinds\": {",
           measure->is_first ? "" : ",", name, (unsigned long long)bytes);
    for (uint32_t i = 0; i < measure->num_kinds; i++) {
        printf("%s", i > 0 ? ", " : "");
        text_json(stdout, measure->kinds[i].name);
        printf(": %llu", (unsigned long long)measure->kinds[i].bytes);
    }
    printf("}, \"damage\": ");
    text_json(stdout, damage);
    printf("}");
}

static int measure_checkpoint(void *user, const char *name, const struct contents *contents)
{
    struct measure *measure = user;
    struct checkpoint checkpoint;
    uint64_t step = 0, attempt = 0;
    char selected[256], damage[160] = "";
    CHECK(retain_parse(name, &step, &attempt));
    if ((measure->selection.step >= 0 && (uint64_t)measure->selection.step != step) ||
        (measure->selection.attempt != 0 && measure->selection.attempt != attempt))
        return 0;
    snprintf(selected, sizeof selected, "%s@%llu-a%llu", measure->run, (unsigned long long)step,
             (unsigned long long)attempt);
    measure->num_kinds = 0;
    memset(measure->kinds, 0, sizeof measure->kinds);
    int error = checkpoint_open(&checkpoint, measure->space->store, selected);
    if (error == 0) {
        add_tensors(measure, checkpoint.manifest, contents->ours.bytes);
        checkpoint_close(&checkpoint);
    } else if (error == ERR_CORRUPT || error == ERR_VERSION) {
        snprintf(damage, sizeof damage, "%.159s", report_message());
    } else if (error != ERR_NOT_FOUND) {
        return error; /* not found: it was removed meanwhile */
    }
    print_checkpoint(measure, selected, contents->ours.bytes, damage);
    measure->num_checkpoints++;
    measure->is_first = false;
    return 0;
}

static uint64_t rubbish_bytes(const struct space *space)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < NUM_RUBBISH; kind++)
        bytes += space->rubbish[kind].bytes;
    return bytes;
}

/* One run: its checkpoints, then the sums. */
static int measure_run(struct space *sums, const char *run, const struct selection *selection)
{
    struct space space = {.cli = sums->cli, .store = sums->store, .is_quiet = true};
    struct measure measure = {.space = &space, .run = run, .is_first = true};
    char size[4][32];
    measure.selection = *selection;
    if (space.cli->is_json)
        printf("%s\n    {\"run\": \"%s\", \"checkpoints\": [",
               sums->is_first ? "{\"runs\": [" : ",", run);
    int error = look_at_run(&space, run, measure_checkpoint, &measure);
    uint64_t rubbish = rubbish_bytes(&space);
    if (error != 0)
        return error;
    if (space.cli->is_json)
        printf("%s], \"bytes\": %llu, \"rubbish\": %llu, \"other\": %llu, \"shared\": %llu}",
               measure.is_first ? "" : "\n    ", (unsigned long long)space.total,
               (unsigned long long)rubbish, (unsigned long long)space.other,
               (unsigned long long)space.shared);
    else
        printf("%-48s %11s  (rubbish %s, not ours %s, shared %s)\n", run,
               text_bytes(size[0], 32, space.total), text_bytes(size[1], 32, rubbish),
               text_bytes(size[2], 32, space.other), text_bytes(size[3], 32, space.shared));
    sums->is_first = false;
    sums->total += space.total;
    sums->other += space.other;
    sums->shared += space.shared;
    sums->rubbish[UNFINISHED].bytes += rubbish;
    if (selection->step >= 0 && measure.num_checkpoints == 0)
        error =
            report_error(ERR_NOT_FOUND, "see `ckpt-cli list`",
                         "run %s has no checkpoint of step %lld", run, (long long)selection->step);
    return error;
}

static int measure_all(struct space *space, const char *run)
{
    return measure_run(space, run, &(struct selection){.step = -1});
}

int cli_du(const struct cli *cli)
{
    struct space space = {.cli = cli, .is_first = true, .is_quiet = true};
    struct selection selection = {.step = -1};
    char size[2][32];
    int error = cli->num_args > 0 ? selection_parse(&selection, cli->args[0]) : 0;
    if (error == 0)
        error = store_open(&space.store, cli);
    if (error == 0 && selection.step >= 0)
        error = measure_run(&space, selection.run, &selection);
    else if (error == 0)
        error = for_all_runs(&space, &selection, measure_all);
    if (error == 0 && cli->is_json)
        printf("%s], \"bytes\": %llu, \"rubbish\": %llu, \"other\": %llu, \"shared\": %llu}\n",
               space.is_first ? "{\"runs\": [" : "\n  ", (unsigned long long)space.total,
               (unsigned long long)rubbish_bytes(&space), (unsigned long long)space.other,
               (unsigned long long)space.shared);
    else if (error == 0 && selection.run[0] == '\0')
        printf("%-48s %11s  (rubbish %s)\n", "all runs", text_bytes(size[0], 32, space.total),
               text_bytes(size[1], 32, rubbish_bytes(&space)));
    storage_close(space.store);
    return error;
}
