/* store.c - which checkpoints a store directory holds, read offline and without a lock.
 *
 * A checkpoint is a directory <run>/step-NNNNNNNN-aNNNN with a manifest; a directory without one is
 * not committed and is passed over. The catalog reads only the summaries (the first 4 KiB). What
 * the manifest says about itself must agree with the name of its directory. A manifest that cannot
 * be read is listed as damaged, never hidden, and so is what ckptd found damaged and put into
 * quarantine.
 *
 * Bounds: CATALOG_MAX checkpoints, then ERR_BUSY. */
#include "clients/cli/engine/cli.h"

#include "proto/base/array.h"
#include "proto/format/mark.h"
#include "proto/format/origin.h"
#include "proto/format/presence.h"
#include "proto/format/retain.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CATALOG_MAX (1u << 20)
#define THREADS_AFAR 4u /* transfers at once, of a store that another ckptd serves */

/* ---- a store, or another directory ---- */

struct search {
    struct storage *storage;
    bool is_run;   /* what was looked through last */
    bool is_store; /* a run was found */
    struct failure failure;
};

/* A run has checkpoints, or at least attempts. */
static int visit_part(void *user, const struct storage_entry *entry)
{
    struct search *search = user;
    search->is_run = search->is_run || (entry->is_dir && (strcmp(entry->name, "attempts") == 0 ||
                                                          retain_is_checkpoint(entry->name)));
    return 0;
}

/* What cannot be looked into keeps nobody from finding a run beside it. */
static int visit_top(void *user, const struct storage_entry *entry)
{
    struct search *search = user;
    if (!entry->is_dir || !shard_run_is_valid(entry->name) || search->is_store)
        return 0;
    search->is_run = false;
    failure_keep(&search->failure, storage_list(search->storage, entry->name, visit_part, search));
    search->is_store = search->is_run;
    return 0;
}

/* Where nobody can tell, the failure is kept, for when nothing else shows that it is a store. A
 * bucket has no such file. */
static bool has_lock_file(struct search *search, const char *path)
{
    struct storage_where where;
    char name[sizeof where.place + sizeof STORAGE_LOCK_NAME + 1];
    struct stat status;
    if (storage_where_parse(&where, path) != 0 || where.ops != &storage_local)
        return false;
    snprintf(name, sizeof name, "%s/" STORAGE_LOCK_NAME, where.place);
    if (lstat(name, &status) == 0)
        return S_ISREG(status.st_mode);
    if (errno != ENOENT)
        failure_keep(&search->failure,
                     report_errno(ERR_IO, "could not look for the lock file of a store", name));
    return false;
}

/* Whoever writes into a store leaves its lock file. A copy may be without: then its runs tell. A
 * ckptd serves nothing else. */
static int check_is_store(struct storage *storage, const char *path)
{
    struct search search = {.storage = storage};
    struct storage_where where;
    if ((storage_where_parse(&where, path) == 0 && where.ops == &storage_peer) ||
        has_lock_file(&search, path))
        return 0;
    int error = storage_list(storage, "", visit_top, &search);
    if (error != 0 || search.is_store)
        return error;
    ERR_TRY(failure_report(&search.failure));
    search.is_run = false;
    ERR_TRY(storage_list(storage, "", visit_part, &search));
    return report_error(ERR_NOT_FOUND,
                        search.is_run ? "it is a run of one: name the directory above it"
                                      : "name the directory that ckptd has as its store",
                        "%s is not a Holdfast store", path);
}

int store_open(struct storage **out, const struct cli *cli)
{
    static const struct storage_options options = {.read_only = true, .num_threads = THREADS_AFAR};
    if (cli->store[0] == '\0')
        return report_error(ERR_INVALID, "add --store DIR", "no store was named");
    ERR_TRY(storage_open_where(out, cli->store, &options));
    int error = check_is_store(*out, cli->store);
    if (error != 0) {
        storage_close(*out);
        *out = NULL;
    }
    return error;
}

int store_open_writable(struct storage **out, const struct cli *cli)
{
    ERR_TRY(store_open(out, cli));
    storage_close(*out);
    *out = NULL;
    return storage_open_where(out, cli->store, &(struct storage_options){.is_quiet = true});
}

const char *store_durability(const char *store)
{
    struct storage_where where;
    bool is_known = storage_where_parse(&where, store) == 0;
    bool is_here = is_known && strncmp(where.place, "unix:", strlen("unix:")) == 0;
    return is_here && where.ops == &storage_peer  ? "served"
           : is_known && where.ops == &storage_s3 ? "bucket"
                                                  : CLI_STORED;
}

int store_compare(bool *out_is_same, const char *store, const char *other)
{
    struct storage_where one, two;
    struct stat source, target;
    *out_is_same = false;
    ERR_TRY(storage_where_parse(&one, store));
    ERR_TRY(storage_where_parse(&two, other));
    *out_is_same = one.ops == two.ops && strcmp(one.place, two.place) == 0;
    if (*out_is_same || one.ops != two.ops || one.ops != &storage_local)
        return 0;
    if (stat(one.place, &source) != 0)
        return report_errno(ERR_IO, "could not look at the store of the source", store);
    bool exists = stat(two.place, &target) == 0;
    if (!exists && errno != ENOENT)
        return report_errno(ERR_IO, "could not look at the store of the output", other);
    *out_is_same = exists && source.st_dev == target.st_dev && source.st_ino == target.st_ino;
    return 0;
}

int store_lock(struct storage *store, const char *option)
{
    char hint[96];
    int error = storage_lock(store);
    if (error != ERR_BUSY)
        return error;
    snprintf(hint, sizeof hint, "if a ckptd serves it, let that do the work: %s unix:/PATH",
             option);
    return report_error(error, hint, "%s", report_message());
}

/* ---- names ---- */

/* Decimal digits only; ERR_INVALID otherwise. */
static int parse_number(uint64_t *out, const char *text, const char **out_end)
{
    uint64_t value = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9'; c++) {
        uint64_t digit = (uint64_t)(*c - '0');
        if (value > (INT64_MAX - digit) / 10)
            return ERR_INVALID;
        value = value * 10 + digit;
    }
    *out = value;
    *out_end = c;
    return c == text ? ERR_INVALID : 0;
}

int selection_parse(struct selection *out, const char *text)
{
    static const char hint[] = "RUN, RUN@STEP or RUN@STEP-aATTEMPT, as `ckpt-cli list` prints them";
    const char *at = strchr(text, '@'), *end = NULL;
    size_t length = at != NULL ? (size_t)(at - text) : strlen(text);
    uint64_t step = 0;
    memset(out, 0, sizeof *out);
    out->step = -1;
    snprintf(out->run, sizeof out->run, "%.*s", (int)length, text);
    if (length >= sizeof out->run || !shard_run_is_valid(out->run))
        return report_error(ERR_INVALID, hint, "'%s' does not name a run", text);
    if (at == NULL)
        return 0;
    int error = parse_number(&step, at + 1, &end);
    if (error == 0 && *end == '-' && end[1] == 'a') {
        error = parse_number(&out->attempt, end + 2, &end);
        if (error == 0 && out->attempt == 0)
            error = ERR_INVALID;
    }
    out->step = (int64_t)step;
    if (error != 0 || *end != '\0')
        return report_error(ERR_INVALID, hint, "'%s' does not name a checkpoint", text);
    return 0;
}

int selection_parse_run(struct selection *out, const char *text)
{
    ERR_TRY(selection_parse(out, text));
    return out->step < 0 ? 0
                         : report_error(ERR_INVALID, "name the run alone",
                                        "'%s' names a checkpoint, not a run", text);
}

/* ---- the catalog ---- */

struct visit {
    struct catalog *catalog;
    struct storage *store;
    const char *run;
    uint32_t first; /* its first entry */
};

static int add_entry(struct catalog *catalog, struct catalog_entry **out)
{
    if (catalog->count == CATALOG_MAX)
        return report_error(ERR_BUSY, "name one run", "the store has over %u checkpoints",
                            CATALOG_MAX);
    ERR_TRY(
        array_reserve(&catalog->entries, &catalog->room, catalog->count, sizeof *catalog->entries));
    *out = &catalog->entries[catalog->count++];
    memset(*out, 0, sizeof **out);
    return 0;
}

int store_settle(struct manifest_summary *summary, struct storage *store, const char *run,
                 uint64_t step, uint64_t attempt)
{
    return origin_settle(summary, &(struct origin_place){run, step, attempt, storage_fetch, store});
}

static int keep_damage(struct catalog_entry *entry, const char *text)
{
    free(entry->damage);
    entry->damage = strdup(text);
    return entry->damage != NULL ? 0
                                 : report_error(ERR_MEMORY, NULL, "no memory for what is damaged");
}

/* It has the place in the list that its directory's name says. ERR_MEMORY. */
__attribute__((format(printf, 5, 6))) static int note_damage(struct catalog_entry *entry,
                                                             const char *run, uint64_t step,
                                                             uint64_t attempt, const char *format,
                                                             ...)
{
    char text[DAMAGE_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memset(&entry->summary, 0, sizeof entry->summary);
    snprintf(entry->summary.run, sizeof entry->summary.run, "%s", run);
    entry->summary.step = step;
    entry->summary.attempt = attempt;
    return keep_damage(entry, text);
}

/* Nobody knows what is in it, and why. ERR_MEMORY. */
static int note_unread(struct catalog_entry *entry, const char *run, uint64_t step,
                       uint64_t attempt, const char *what, const struct report_text *why)
{
    entry->is_denied = true;
    return note_damage(entry, run, step, attempt, "%s%s%s%s", what, why->message,
                       why->detail[0] != '\0' ? ": " : "", why->detail);
}

/* What is wrong with it is noted; ERR_MEMORY: nobody knows. */
static int read_summary(struct catalog_entry *entry, const void *text, size_t bytes,
                        const struct visit *visit, uint64_t step, uint64_t attempt)
{
    char origin[sizeof entry->summary.origin];
    int error = manifest_read_summary(&entry->summary, text, bytes);
    if (error == 0)
        error = store_settle(&entry->summary, visit->store, visit->run, step, attempt);
    if (error == ERR_MEMORY || error == 0)
        return error;
    memcpy(origin, entry->summary.origin, sizeof origin);
    entry->flaw = error == ERR_MISMATCH  ? FLAW_MOVED
                  : error == ERR_VERSION ? FLAW_NEWER
                                         : FLAW_DAMAGED;
    ERR_TRY(note_damage(entry, visit->run, step, attempt, "%s", report_message()));
    memcpy(entry->summary.origin, origin, sizeof origin);
    return 0;
}

/* Not committed: in work, rubbish, or shards of which nobody knows what they are. */
static int look_aside(struct catalog_entry *entry, const struct visit *visit, const char *directory)
{
    enum store_rest rest = STORE_REST_EMPTY;
    int error = store_rest(visit->store, directory, &rest);
    if (error == ERR_MEMORY)
        return error;
    if (error != 0 || rest != STORE_REST_ASIDE)
        return 0;
    char coordinator[MARK_NODE_BYTES];
    struct shard_identity identity;
    error = mark_fetch_part(&identity, coordinator, visit->store, storage_fetch, directory);
    if (error == ERR_MEMORY)
        return error;
    entry->flaw = error == 0 ? FLAW_IN_DOUBT : FLAW_ASIDE;
    if (error == 0)
        return note_damage(entry, visit->run, entry->summary.step, entry->summary.attempt,
                           IN_DOUBT_TEXT, coordinator);
    return note_damage(entry, visit->run, entry->summary.step, entry->summary.attempt,
                       "it has no manifest, and no mark of unfinished work: put the manifest back, "
                       "or remove it: ckpt-cli rm");
}

/* Its entry has no run until somebody has looked. */
static int visit_step(void *user, const struct storage_entry *found)
{
    const struct visit *visit = user;
    uint64_t step, attempt;
    char directory[STORAGE_KEY_MAX];
    struct catalog_entry *entry = NULL;
    if (!found->is_dir || !retain_parse(found->name, &step, &attempt))
        return 0;
    if (shard_dir_key(directory, sizeof directory, visit->run, step, attempt) != 0)
        return 0;
    ERR_TRY(add_entry(visit->catalog, &entry));
    entry->summary.step = step;
    entry->summary.attempt = attempt;
    return 0;
}

/* On any thread; touches its entry and nothing else. */
static int look_at_step(void *user, size_t index)
{
    const struct visit *visit = user;
    struct catalog_entry *entry = &visit->catalog->entries[visit->first + index];
    const uint64_t step = entry->summary.step, attempt = entry->summary.attempt;
    char directory[STORAGE_KEY_MAX], key[STORAGE_KEY_MAX + 32], text[MANIFEST_SUMMARY_BYTES];
    uint64_t size = 0;
    ERR_TRY(shard_dir_key(directory, sizeof directory, visit->run, step, attempt));
    snprintf(key, sizeof key, "%s/%s", directory, MANIFEST_NAME);
    int error = storage_fetch(visit->store, key, text, sizeof text, &size);
    if (error == ERR_NOT_FOUND)
        return look_aside(entry, visit, directory);
    if (error == 0)
        return read_summary(entry, text, size < sizeof text ? size : sizeof text, visit, step,
                            attempt);
    if (error != ERR_DENIED)
        return error;
    struct report_text why; /* it keeps nobody from the rest */
    report_keep(&why);
    return note_unread(entry, visit->run, step, attempt, "", &why);
}

/* Those that are no checkpoints. */
static void drop_others(struct catalog *catalog, uint32_t first)
{
    uint32_t count = first;
    for (uint32_t i = first; i < catalog->count; i++)
        if (catalog->entries[i].summary.run[0] != '\0')
            catalog->entries[count++] = catalog->entries[i];
    catalog->count = count;
}

/* The entry of a note on a checkpoint, or NULL. */
static struct catalog_entry *find_entry(struct catalog *catalog, const char *run, const char *name)
{
    uint64_t step, attempt;
    for (uint32_t i = 0; retain_parse(name, &step, &attempt) && i < catalog->count; i++) {
        const struct manifest_summary *summary = &catalog->entries[i].summary;
        if (summary->step == step && summary->attempt == attempt && strcmp(summary->run, run) == 0)
            return &catalog->entries[i];
    }
    return NULL;
}

int store_fetch_reason(char *out, size_t size, struct storage *store, const char *directory)
{
    int error = store_find_note(store, STORE_QUARANTINE, directory, out, size);
    if (error == 0 && out[0] == '\0')
        snprintf(out, size, "no reason was noted");
    return error;
}

static int visit_quarantine(void *user, const struct storage_entry *found)
{
    struct visit *visit = user;
    char prefix[STORAGE_KEY_MAX], reason[DAMAGE_BYTES];
    struct catalog_entry *entry = find_entry(visit->catalog, visit->run, found->name);
    if (entry == NULL || shard_dir_key(prefix, sizeof prefix, visit->run, entry->summary.step,
                                       entry->summary.attempt) != 0)
        return 0;
    int error = store_fetch_reason(reason, sizeof reason, visit->store, prefix);
    if (error == ERR_NOT_FOUND) /* it was released meanwhile */
        return 0;
    return error == 0 ? keep_damage(entry, reason) : error;
}

/* The checkpoints of one run, and which of them are in quarantine. */
static int read_run(struct visit *visit)
{
    struct catalog *catalog = visit->catalog;
    visit->first = catalog->count;
    int error = storage_list(visit->store, visit->run, visit_step, visit);
    if (error == 0)
        error = storage_for_many(visit->store, catalog->count - visit->first, look_at_step, visit);
    if (error == 0)
        drop_others(catalog, visit->first);
    return error == 0 ? store_for_notes(visit->store, STORE_QUARANTINE, visit->run,
                                        visit_quarantine, visit)
                      : error;
}

/* Leaves the first `count`. */
static void cut_catalog(struct catalog *catalog, uint32_t count)
{
    while (catalog->count > count)
        free(catalog->entries[--catalog->count].damage);
}

/* Nobody knows which checkpoints it has: of those that were found none is told. */
static int note_unread_run(struct catalog *catalog, uint32_t count_before, const char *run)
{
    struct report_text why;
    struct catalog_entry *entry;
    report_keep(&why);
    cut_catalog(catalog, count_before);
    ERR_TRY(add_entry(catalog, &entry));
    return note_unread(entry, run, 0, 0, "the run could not be read: ", &why);
}

struct runs {
    int (*look)(void *user, const char *run);
    void *user;
};

static int visit_run(void *user, const struct storage_entry *found)
{
    const struct runs *runs = user;
    char run[128]; /* the name is borrowed, and lists follow */
    if (!found->is_dir || strlen(found->name) >= sizeof run || found->name[0] == '.')
        return 0;
    strcpy(run, found->name);
    return runs->look(runs->user, run);
}

int store_for_runs(struct storage *store, int (*look)(void *user, const char *run), void *user)
{
    return storage_list(store, "", visit_run, &(struct runs){look, user});
}

static int add_run(void *user, const char *run)
{
    struct visit *outer = user;
    struct visit inner = {outer->catalog, outer->store, run, 0};
    uint32_t before = outer->catalog->count;
    int error = read_run(&inner);
    bool is_of_all = error == ERR_MEMORY || error == ERR_BUSY; /* no more of them can be read */
    return error == 0 || is_of_all ? error : note_unread_run(outer->catalog, before, run);
}

/* By run; then the newest attempt first, since a younger attempt may have gone back to an older
 * step and left the rest of a branch behind. ckptd's idea of the newest is the same. */
static int compare_entries(const void *left, const void *right)
{
    const struct manifest_summary *a = &((const struct catalog_entry *)left)->summary;
    const struct manifest_summary *b = &((const struct catalog_entry *)right)->summary;
    int order = strcmp(a->run, b->run);
    return order != 0
               ? order
               : retain_newest_first(&(struct retain_item){.step = a->step, .attempt = a->attempt},
                                     &(struct retain_item){.step = b->step, .attempt = b->attempt});
}

static struct catalog_entry *search(const struct catalog *catalog,
                                    const struct manifest_summary *summary)
{
    return catalog->count > 0
               ? bsearch(&(struct catalog_entry){.summary = *summary}, catalog->entries,
                         catalog->count, sizeof *catalog->entries, compare_entries)
               : NULL;
}

bool catalog_has(const struct catalog *catalog, const struct manifest_summary *summary)
{
    return search(catalog, summary) != NULL;
}

static int visit_pin(void *user, const struct storage_entry *found)
{
    const struct visit *visit = user;
    struct manifest_summary summary = {0};
    snprintf(summary.run, sizeof summary.run, "%s", visit->run);
    if (!retain_parse(found->name, &summary.step, &summary.attempt))
        return 0;
    struct catalog_entry *entry = search(visit->catalog, &summary);
    if (entry != NULL)
        entry->may_be_pinned = true;
    return 0;
}

int catalog_find_pins(struct catalog *catalog, struct storage *store)
{
    for (uint32_t i = 0; i < catalog->count;) {
        struct visit visit = {catalog, store, catalog->entries[i].summary.run, i};
        int error = store_for_notes(store, STORE_PIN, visit.run, visit_pin, &visit);
        if (error == ERR_MEMORY)
            return error;
        for (; i < catalog->count && strcmp(catalog->entries[i].summary.run, visit.run) == 0; i++)
            catalog->entries[i].may_be_pinned |= error != 0;
    }
    return 0;
}

struct sought {
    const char *run;
    bool is_found;
};

static int visit_sought(void *user, const struct storage_entry *entry)
{
    struct sought *sought = user;
    sought->is_found = sought->is_found || (entry->is_dir && strcmp(entry->name, sought->run) == 0);
    return 0;
}

int store_need_run(struct storage *store, const char *run)
{
    struct sought sought = {.run = run};
    int error = storage_list(store, "", visit_sought, &sought);
    if (error == 0 && !(sought.is_found && shard_run_is_valid(run)))
        error = report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "there is no run \"%s\"", run);
    return error;
}

int catalog_read(struct catalog *out, struct storage *store, const char *run)
{
    struct visit visit = {out, store, run, 0};
    memset(out, 0, sizeof *out);
    int error = run[0] != '\0' ? read_run(&visit) : store_for_runs(store, add_run, &visit);
    if (error != 0)
        catalog_free(out);
    else if (out->count > 0)
        qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    return error;
}

int store_read_cursor(struct scrub_cursor *out, struct storage *store, const char *run)
{
    char folder[STORAGE_KEY_MAX], text[SCRUB_CURSOR_BYTES_MAX];
    uint64_t number;
    snprintf(folder, sizeof folder, "%s/" SCRUB_FOLDER, run);
    int error = storage_fetch_numbered(store, folder, &number, text, sizeof text);
    if (error == ERR_MEMORY)
        return error;
    if (!scrub_cursor_read(out, number, text) || error != 0)
        log_warn("store", "%s cannot be read: nobody knows what the scrub has read back", folder);
    return 0;
}

int store_note_unread(struct storage *store, const struct manifest_summary *summary)
{
    struct scrub_cursor cursor;
    char folder[STORAGE_KEY_MAX], text[SCRUB_CURSOR_BYTES_MAX];
    ERR_TRY(store_read_cursor(&cursor, store, summary->run));
    if (cursor.number == 0)
        return 0;
    scrub_cursor_brought(&cursor, summary->step, summary->attempt);
    scrub_cursor_write(text, &cursor);
    snprintf(folder, sizeof folder, "%s/" SCRUB_FOLDER, summary->run);
    return storage_publish_numbered(store, folder, cursor.number, text);
}

void catalog_free(struct catalog *catalog)
{
    cut_catalog(catalog, 0);
    free(catalog->entries);
    memset(catalog, 0, sizeof *catalog);
}

int store_read_pin(struct store_pin *out, struct storage *store,
                   const struct manifest_summary *summary)
{
    char prefix[STORAGE_KEY_MAX];
    out->note[0] = '\0';
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error == 0)
        error = store_find_pin(store, &out->is_there, prefix, out->note, sizeof out->note);
    if (error == 0 || error == ERR_MEMORY)
        return error;
    snprintf(out->note, sizeof out->note, "its note could not be read");
    return 0;
}

bool tiers_have_copies(const char *tiers)
{
    return tiers && tiers[0] != '\0' && strcmp(tiers, "local") != 0;
}
