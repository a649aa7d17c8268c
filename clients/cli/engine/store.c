/* store.c - opens the store of a command, and checks whether it has the run. storage/store/store.h
 * lists checkpoints. */
#include "clients/cli/engine/cli.h"

#include "proto/format/retain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define THREADS_AFAR 4u /* parallel transfers, of a store that another ckptd serves */

/* ---- a store, or another directory ---- */

struct search {
    struct storage *storage;
    bool is_run;   /* the directory searched last is a run */
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

/* An unreadable directory does not stop the search for a run. */
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

/* An unreadable file is no answer: the failure is kept, in case nothing else shows that it is a
 * store. A bucket has no such file. */
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

/* Every writer leaves the lock file in a store. A copy may lack it: then its runs show that it is
 * one. ckptd serves only directories with the file. */
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
                        search.is_run ? "it is a run's directory: name the directory above it"
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

int store_begin(struct storage **out, const struct cli *cli, const char *run, bool changes)
{
    ERR_TRY(changes ? store_open_writable(out, cli) : store_open(out, cli));
    int error = run != NULL ? store_need_run(*out, run) : 0;
    if (error == 0 && changes)
        error = store_lock(*out, "--server");
    if (error != 0) {
        storage_close(*out);
        *out = NULL;
    }
    return error;
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
        return report_errno(ERR_IO, "could not check the store of the source", store);
    bool exists = stat(two.place, &target) == 0;
    if (!exists && errno != ENOENT)
        return report_errno(ERR_IO, "could not check the store of the output", other);
    *out_is_same = exists && source.st_dev == target.st_dev && source.st_ino == target.st_ino;
    return 0;
}

int store_lock(struct storage *store, const char *option)
{
    char hint[96];
    int error = storage_lock(store);
    if (error != ERR_BUSY)
        return error;
    snprintf(hint, sizeof hint, "if a ckptd serves it, name that ckptd: %s unix:/PATH", option);
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

/* ---- runs and checkpoints ---- */

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

const char *tiers_level(const char *durability, const char *tiers)
{
    return tiers_have_copies(tiers) && strcmp(durability, "bucket") == 0 ? "remote tier"
                                                                         : durability;
}
