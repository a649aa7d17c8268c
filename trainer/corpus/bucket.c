/* bucket.c - corpora in a bucket, s3://BUCKET/PATH: a tokens file, or a folder; fetched once.
 *
 * Each start lists the objects of PATH. CACHE is the user's cache folder (places.h), KEY a hash of
 * the name and of path, size and ETag of every object:
 *
 *     CACHE/s3/KEY/        has the complete objects under their names; it does not change any more
 *     CACHE/s3/KEY.part/   has the part fetched so far, and one PATH.fetching
 *     CACHE/s3/KEY.lock    is locked (flock) by the process that fetches: others wait, then find
 *                          KEY/
 *
 * So changed objects are fetched into a new folder, and the old one stays until the operator
 * removes it. A file gets its name when it is complete and synced; a rename makes KEY/. After a
 * kill the next process continues. It keeps files that have their names, and of PATH.fetching the
 * bytes below the last multiple of SYNC_BYTES: bytes are written in order, and synced there before
 * later ones. After the last object the list is read again. If objects have changed meanwhile, the
 * files may be a mix: they are removed, and the fetch fails with ERR_BUSY.
 *
 * Server and keys come from the environment (storage.h). Only this file of the trainer uses the
 * store. ETags identify objects; if a server's lists have none, only sizes do. */
#include "trainer/corpus/bucket.h"
#include "trainer/corpus/places.h"
#include "trainer/corpus/source.h"

#include "proto/base/array.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BUCKET_SCHEME "s3://"
#define SLOTS 8u                 /* requests at once */
#define SLOT_BYTES (4u << 20)    /* of one */
#define SYNC_BYTES (16ull << 20) /* a multiple of SLOT_BYTES */
#define FETCHING ".fetching"

struct object {
    char *path; /* in the folder of the corpus */
    char tag[STORAGE_TAG_BYTES];
    uint64_t bytes;
    bool is_dir;
};

struct objects {
    struct object *list;
    uint32_t count, room;
    uint64_t bytes;
    struct corpus_left_out left_out;
};

struct slot {
    struct storage_transfer transfer;
    char *data;
    uint64_t at;
    uint32_t bytes;
};

struct fetch {
    const struct corpus_request *request;
    const char *name;                 /* s3://BUCKET/PATH */
    char parent[CORPUS_PATH_BYTES];   /* s3://BUCKET, and PATH without its last name */
    const char *last;                 /* the last name of PATH; "": the whole bucket */
    char folder[CORPUS_PATH_BYTES];   /* CACHE/s3/KEY */
    char part[CORPUS_PATH_BYTES + 8]; /* CACHE/s3/KEY.part */
    struct storage *store;            /* parent */
    struct objects objects;
    uint64_t bytes_done;
    struct slot slots[SLOTS];
    char *memory; /* of the objects */
};

bool bucket_is_named(const char *name)
{
    return strncmp(name, BUCKET_SCHEME, strlen(BUCKET_SCHEME)) == 0;
}

/* ---- the objects of a name ---- */

static void free_objects(struct objects *objects)
{
    for (uint32_t i = 0; i < objects->count; i++)
        free(objects->list[i].path);
    free(objects->list);
    *objects = (struct objects){0};
}

struct listing {
    struct objects *objects;
    const char *folder; /* the folder being listed */
    const char *only;   /* the only name that is wanted; NULL: all names of a corpus */
};

static bool is_wanted(const struct listing *listing, const struct storage_entry *entry)
{
    if (listing->only != NULL)
        return strcmp(entry->name, listing->only) == 0;
    return entry->name[0] != '.' &&
           (entry->is_dir || source_is_taken(&listing->objects->left_out, entry->name));
}

static int visit(void *user, const struct storage_entry *entry)
{
    struct listing *listing = user;
    struct objects *objects = listing->objects;
    char path[STORAGE_KEY_MAX + 1];
    if (!is_wanted(listing, entry))
        return 0;
    if (entry->is_no_key)
        return report_error(ERR_INVALID, "give it a name of [A-Za-z0-9._-]",
                            "the bucket has \"%s\", a name that is not supported", entry->name);
    if (!storage_join(path, listing->folder, entry->name))
        return report_error(ERR_INVALID, NULL, "the name of an object is too long: %s/%s",
                            listing->folder, entry->name);
    if (objects->count == CORPUS_FILES_MAX)
        return report_error(ERR_INVALID, "join some of them", "over %u objects", CORPUS_FILES_MAX);
    ERR_TRY(array_reserve(&objects->list, &objects->room, objects->count, sizeof *objects->list));
    struct object object = {.path = strdup(path), .bytes = entry->bytes, .is_dir = entry->is_dir};
    if (object.path == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the objects of a bucket");
    snprintf(object.tag, sizeof object.tag, "%s", entry->tag != NULL ? entry->tag : "");
    objects->list[objects->count++] = object;
    objects->bytes += entry->bytes;
    return 0;
}

static int compare_objects(const void *left, const void *right)
{
    const struct object *a = left, *b = right;
    return strcmp(a->path, b->path);
}

/* If a name is an object and a folder, the folder is used. */
static void drop_objects_beside_folder(struct objects *objects)
{
    bool has_folder = false;
    for (uint32_t i = 0; i < objects->count; i++)
        has_folder |= objects->list[i].is_dir;
    for (uint32_t i = 0; has_folder && i < objects->count; i++)
        if (!objects->list[i].is_dir) {
            objects->bytes -= objects->list[i].bytes;
            free(objects->list[i].path);
            objects->list[i--] = objects->list[--objects->count];
        }
}

static int list_folders(struct fetch *fetch, struct objects *objects)
{
    for (uint32_t i = 0; i < objects->count; i++) {
        struct listing listing = {.objects = objects, .folder = objects->list[i].path};
        if (objects->list[i].is_dir)
            ERR_TRY(storage_list(fetch->store, listing.folder, visit, &listing));
    }
    uint32_t files = 0;
    for (uint32_t i = 0; i < objects->count; i++)
        if (objects->list[i].is_dir)
            free(objects->list[i].path);
        else
            objects->list[files++] = objects->list[i];
    objects->count = files;
    return 0;
}

static int list_objects(struct fetch *fetch, struct objects *objects)
{
    bool is_all = fetch->last[0] == '\0';
    struct listing listing = {objects, "", is_all ? NULL : fetch->last};
    ERR_TRY(storage_list(fetch->store, "", visit, &listing));
    if (!is_all)
        drop_objects_beside_folder(objects);
    if (objects->count == 0 && !is_all)
        return report_error(ERR_NOT_FOUND, "check its name in the bucket",
                            "there is neither an object %s nor one below it", fetch->name);
    ERR_TRY(list_folders(fetch, objects));
    qsort(objects->list, objects->count, sizeof *objects->list, compare_objects);
    return objects->count > 0
               ? 0
               : report_error(ERR_NOT_FOUND, "known are .jsonl, .ndjson, .json, .txt, .text, .md",
                              "no object below %s has the name of a text file", fetch->name);
}

/* ---- the key ---- */

static int make_key(uint64_t *out, const struct fetch *fetch, const struct objects *objects)
{
    struct checksum_stream *stream = checksum_stream_begin();
    if (stream == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the objects of a bucket");
    checksum_stream_add(stream, fetch->parent, strlen(fetch->parent) + 1);
    checksum_stream_add(stream, fetch->last, strlen(fetch->last) + 1);
    for (uint32_t i = 0; i < objects->count; i++) {
        const struct object *object = &objects->list[i];
        checksum_stream_add(stream, object->path, strlen(object->path) + 1);
        checksum_stream_add(stream, object->tag, strlen(object->tag) + 1);
        checksum_stream_add(stream, &object->bytes, sizeof object->bytes);
    }
    *out = checksum_stream_value(stream);
    checksum_stream_end(stream);
    return 0;
}

static int find_folder(struct fetch *fetch)
{
    char cache[CORPUS_PATH_BYTES];
    uint64_t key;
    ERR_TRY(places_user_cache(cache));
    ERR_TRY(make_key(&key, fetch, &fetch->objects));
    int length = snprintf(fetch->folder, sizeof fetch->folder, "%s/s3/%016" PRIx64, cache, key);
    if (length >= (int)sizeof fetch->folder - STORAGE_KEY_MAX)
        return report_error(ERR_INVALID, "set XDG_CACHE_HOME", "the path is too long: %s", cache);
    snprintf(fetch->part, sizeof fetch->part, "%s.part", fetch->folder);
    return 0;
}

/* ---- one object ---- */

static int report_progress(struct fetch *fetch, uint64_t bytes)
{
    const struct tokenizer_progress *progress = fetch->request->progress;
    fetch->bytes_done += bytes;
    if (progress != NULL)
        progress->report(progress->user, "fetching", fetch->bytes_done, fetch->objects.bytes);
    return fetch->request->want_stop != NULL && *fetch->request->want_stop != 0
               ? report_error(ERR_ABORTED, NULL, "fetching %s was stopped", fetch->name)
               : 0;
}

static int write_slot(int file, const char *path, const struct slot *slot)
{
    for (uint32_t done = 0; done < slot->bytes;) {
        ssize_t wrote =
            pwrite(file, slot->data + done, slot->bytes - done, (off_t)(slot->at + done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return report_errno(errno == ENOSPC || errno == EDQUOT ? ERR_SPACE : ERR_IO,
                                "could not write the fetched file", path);
        done += (uint32_t)wrote;
    }
    bool is_due = (slot->at + slot->bytes) % SYNC_BYTES == 0;
    return is_due && fdatasync(file) != 0
               ? report_errno(ERR_IO, "could not sync the fetched file", path)
               : 0;
}

/* Copies bytes [at, end) of an object: SLOTS requests at once, written in order. */
static int copy_bytes(struct fetch *fetch, struct storage_object *from, int file, const char *path,
                      uint64_t at, uint64_t end)
{
    uint32_t oldest = 0, pending = 0;
    int result = 0;
    while (pending > 0 || (result == 0 && at < end)) {
        while (result == 0 && pending < SLOTS && at < end) {
            struct slot *slot = &fetch->slots[(oldest + pending++) % SLOTS];
            slot->at = at;
            slot->bytes = end - at < SLOT_BYTES ? (uint32_t)(end - at) : SLOT_BYTES;
            at += slot->bytes;
            storage_begin(&slot->transfer, fetch->store, STORAGE_READ, from, slot->at, slot->data,
                          slot->bytes);
        }
        const struct slot *slot = &fetch->slots[oldest];
        int ended = storage_end(&fetch->slots[oldest].transfer);
        result = result == 0 ? ended : result;
        if (result == 0)
            result = write_slot(file, path, slot);
        if (result == 0)
            result = report_progress(fetch, slot->bytes);
        oldest = (oldest + 1) % SLOTS;
        pending--;
    }
    return result;
}

static int changed_meanwhile(const struct fetch *fetch)
{
    return report_error(ERR_BUSY, "start again when no other program writes there",
                        "%s changed while it was fetched", fetch->name);
}

/* `file` is PATH.fetching, which may have bytes of an earlier process. */
static int fill(struct fetch *fetch, const struct object *object, int file, const char *path)
{
    struct storage_object *from;
    struct stat status;
    uint64_t bytes, at = 0;
    if (fstat(file, &status) != 0)
        return report_errno(ERR_IO, "could not read the attributes of the file", path);
    if (status.st_size > 0 && (uint64_t)status.st_size <= object->bytes)
        at = ((uint64_t)status.st_size - 1) / SYNC_BYTES * SYNC_BYTES;
    ERR_TRY(storage_object_open(fetch->store, &from, object->path, &bytes));
    int result = bytes == object->bytes ? report_progress(fetch, at) : changed_meanwhile(fetch);
    if (result == 0)
        result = copy_bytes(fetch, from, file, path, at, object->bytes);
    storage_object_close(fetch->store, from);
    if (result == 0 && (ftruncate(file, (off_t)object->bytes) != 0 || fsync(file) != 0))
        result = report_errno(ERR_IO, "could not sync the fetched file", path);
    return result;
}

static int fetch_object(struct fetch *fetch, const struct object *object)
{
    char path[2 * CORPUS_PATH_BYTES], fetching[2 * CORPUS_PATH_BYTES + 16];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", fetch->part, object->path);
    snprintf(fetching, sizeof fetching, "%s" FETCHING, path);
    if (stat(path, &status) == 0)
        return report_progress(fetch, object->bytes);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    bool is_made = places_make_folder(path);
    *slash = '/';
    int file = is_made ? open(fetching, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file < 0)
        return report_errno(ERR_IO, "could not create the file", fetching);
    int result = fill(fetch, object, file, fetching);
    close(file);
    if (result == 0 && rename(fetching, path) != 0)
        result = report_errno(ERR_IO, "could not rename the fetched data", path);
    return result;
}

/* ---- all objects ---- */

static uint64_t size_of_file(const struct fetch *fetch, const char *path, const char *ending)
{
    char whole[2 * CORPUS_PATH_BYTES];
    struct stat status;
    snprintf(whole, sizeof whole, "%s/%s%s", fetch->part, path, ending);
    return stat(whole, &status) == 0 ? (uint64_t)status.st_size : 0;
}

/* Checks the disk's room for objects that are not fetched yet. */
static int check_room(const struct fetch *fetch)
{
    struct statvfs system;
    uint64_t there = 0;
    for (uint32_t i = 0; i < fetch->objects.count; i++)
        there += size_of_file(fetch, fetch->objects.list[i].path, "") +
                 size_of_file(fetch, fetch->objects.list[i].path, FETCHING);
    if (statvfs(fetch->part, &system) != 0)
        return report_errno(ERR_IO, "could not read the free space of the file system",
                            fetch->part);
    uint64_t wanted = fetch->objects.bytes > there ? fetch->objects.bytes - there : 0;
    uint64_t room = (uint64_t)system.f_bavail * system.f_frsize;
    return wanted <= room
               ? 0
               : report_error(
                     ERR_SPACE, "remove something, or name another folder in XDG_CACHE_HOME",
                     "%s: %.1f MiB are to be fetched, and %s has room for %.1f MiB", fetch->name,
                     (double)wanted / 1048576.0, fetch->part, (double)room / 1048576.0);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)type, (void)place;
    return remove(path);
}

/* Checks that the fetched objects are of one state of the bucket. */
static int check_unchanged(struct fetch *fetch)
{
    struct objects now = {0};
    uint64_t before, after;
    int result = list_objects(fetch, &now);
    if (result == 0)
        result = make_key(&after, fetch, &now);
    free_objects(&now);
    ERR_TRY(result);
    ERR_TRY(make_key(&before, fetch, &fetch->objects));
    if (before == after)
        return 0;
    nftw(fetch->part, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return changed_meanwhile(fetch);
}

static int reserve_slots(struct fetch *fetch)
{
    fetch->memory = aligned_alloc(STORAGE_ALIGN, SLOTS * SLOT_BYTES);
    for (uint32_t i = 0; i < SLOTS && fetch->memory != NULL; i++)
        fetch->slots[i].data = fetch->memory + (size_t)i * SLOT_BYTES;
    return fetch->memory != NULL
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory to fetch %s", fetch->name);
}

static int fetch_all(struct fetch *fetch)
{
    const struct objects *objects = &fetch->objects;
    if (!places_make_folder(fetch->part))
        return report_error(ERR_DENIED, "make it writable, or set XDG_CACHE_HOME",
                            "%s cannot be written to", fetch->part);
    ERR_TRY(check_room(fetch));
    ERR_TRY(reserve_slots(fetch));
    log_info("data", "fetching %s (%u objects, %.1f MiB), once; they are kept in %s", fetch->name,
             objects->count, (double)objects->bytes / 1048576.0, fetch->folder);
    corpus_log_left_out(&objects->left_out);
    for (uint32_t i = 0; i < objects->count; i++)
        ERR_TRY(fetch_object(fetch, &objects->list[i]));
    ERR_TRY(check_unchanged(fetch));
    if (rename(fetch->part, fetch->folder) != 0)
        return report_errno(ERR_IO, "could not rename the fetched data", fetch->folder);
    log_info("data", "%s is fetched", fetch->name);
    return 0;
}

static int fetch_in_turn(struct fetch *fetch)
{
    char lock_path[CORPUS_PATH_BYTES + 8];
    int lock;
    snprintf(lock_path, sizeof lock_path, "%s.lock", fetch->folder);
    char *slash = strrchr(lock_path, '/');
    *slash = '\0';
    places_make_folder(lock_path);
    *slash = '/';
    ERR_TRY(places_lock(&lock, lock_path, fetch->request->want_stop));
    int result = access(fetch->folder, R_OK) == 0 ? 0 : fetch_all(fetch);
    if (result == 0)
        unlink(lock_path); /* waiting processes have it open, and then find the folder */
    close(lock);
    return result;
}

/* Ranks may be threads of one process: the first to open a store clears the environment. */
static int open_store(struct fetch *fetch)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const struct storage_options options = {
        .read_only = true, .is_quiet = true, .lists_all_names = true};
    pthread_mutex_lock(&mutex);
    int result = storage_open_where(&fetch->store, fetch->parent, &options);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Splits s3://BUCKET/A/B into s3://BUCKET/A and B. */
static void take_apart(struct fetch *fetch, const char *name)
{
    snprintf(fetch->parent, sizeof fetch->parent, "%s", name);
    size_t length = strlen(fetch->parent), scheme = strlen(BUCKET_SCHEME);
    while (length > scheme && fetch->parent[length - 1] == '/')
        fetch->parent[--length] = '\0';
    char *slash = strrchr(fetch->parent + scheme, '/');
    fetch->last = slash != NULL ? slash + 1 : "";
    if (slash != NULL)
        *slash = '\0';
}

int bucket_fetch_corpus(char out[CORPUS_PATH_BYTES], const char *name,
                        const struct corpus_request *request)
{
    struct fetch *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to fetch %s", name);
    fetch->request = request;
    fetch->name = name;
    take_apart(fetch, name);
    int result = open_store(fetch);
    if (result == 0)
        result = list_objects(fetch, &fetch->objects);
    if (result == 0)
        result = find_folder(fetch);
    if (result == 0 && access(fetch->folder, R_OK) != 0)
        result = fetch_in_turn(fetch);
    if (result == 0)
        snprintf(out, CORPUS_PATH_BYTES, "%.*s/%s", (int)(CORPUS_PATH_BYTES - STORAGE_KEY_MAX - 2),
                 fetch->folder, fetch->last);
    if (fetch->store != NULL)
        storage_close(fetch->store);
    free_objects(&fetch->objects);
    free(fetch->memory);
    free(fetch);
    return result;
}
