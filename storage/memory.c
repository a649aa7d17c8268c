/* memory.c - objects in the process's memory: the tier without a disk, for tests and simulations.
 *
 * One list of entries (objects and directories) under one mutex; look-ups walk it, so it suits
 * thousands of names, not millions. An object that is removed while open exists until its last
 * close, as a file does. One worker thread executes requests, so callbacks behave like those of the
 * other back-ends.
 *
 * `where` is the limit for the bytes of all objects ("" for 1 GiB): ERR_SPACE beyond. Nothing is
 * durable; sync and sync_names succeed without effect. */
#include "storage/engine/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES_DEFAULT (1ull << 30)

struct entry {
    struct entry *next;
    char key[STORAGE_KEY_MAX + 1];
    bool is_dir;
    bool removed; /* no longer in the list, kept by its open handles */
    uint32_t open_count;
    uint64_t bytes;
    unsigned char *data;
};

struct memory {
    struct storage_base base;
    struct workers *workers;
    uint64_t bytes_max;
    char text[64];
    pthread_mutex_t mutex; /* guards everything below, and the entries with their data */
    struct entry *entries;
    uint64_t bytes_used;
};

struct memory_object {
    struct storage_base base;
    struct memory *memory;
    struct entry *entry;
    bool writable;
};

static struct memory *memory_of(struct storage *storage)
{
    return (struct memory *)storage;
}

/* ---- entries; the mutex is held ---- */

static struct entry *find_entry(const struct memory *memory, const char *key)
{
    for (struct entry *entry = memory->entries; entry != NULL; entry = entry->next)
        if (strcmp(entry->key, key) == 0)
            return entry;
    return NULL;
}

static void free_entry(struct memory *memory, struct entry *entry)
{
    memory->bytes_used -= entry->bytes;
    free(entry->data);
    free(entry);
}

/* The name of `key` directly below `prefix`, or NULL if it is elsewhere. */
static const char *name_below(const char *key, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(key, prefix, length) != 0)
        return NULL;
    if (length > 0 && key[length++] != '/')
        return NULL;
    return strchr(key + length, '/') == NULL ? key + length : NULL;
}

static int add_entry(struct memory *memory, struct entry **out, const char *key, bool is_dir,
                     uint64_t bytes)
{
    if (bytes > memory->bytes_max - memory->bytes_used)
        return report_error(ERR_SPACE, NULL, "\"%s\" of %llu bytes does not fit into memory", key,
                            (unsigned long long)bytes);
    struct entry *entry = calloc(1, sizeof(*entry));
    if (entry == NULL || (entry->data = calloc(1, bytes + 1)) == NULL) {
        free(entry);
        return report_error(ERR_MEMORY, NULL, "could not allocate the object \"%s\"", key);
    }
    snprintf(entry->key, sizeof(entry->key), "%s", key);
    entry->is_dir = is_dir;
    entry->bytes = bytes;
    memory->bytes_used += bytes;
    entry->next = memory->entries;
    memory->entries = entry;
    *out = entry;
    return 0;
}

static int make_directories(struct memory *memory, const char *key)
{
    char path[STORAGE_KEY_MAX + 1];
    for (const char *slash = strchr(key, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(path, sizeof(path), "%.*s", (int)(slash - key), key);
        struct entry *entry = find_entry(memory, path);
        int error = entry ? 0 : add_entry(memory, &entry, path, true, 0);
        if (error != 0)
            return error;
        if (!entry->is_dir)
            return report_error(ERR_INVALID, NULL, "\"%s\" is an object, not a directory", path);
    }
    return 0;
}

static int create_entry(struct memory *memory, struct entry **out, const char *key, uint64_t bytes)
{
    ERR_TRY(make_directories(memory, key));
    if (find_entry(memory, key) != NULL)
        return report_error(ERR_EXISTS, NULL, "\"%s\" already exists", key);
    return add_entry(memory, out, key, false, bytes);
}

static int find_object(const struct memory *memory, struct entry **out, const char *key)
{
    struct entry *entry = find_entry(memory, key);
    if (entry == NULL || entry->is_dir)
        return report_error(ERR_NOT_FOUND, NULL, "\"%s\" is not an object", key);
    *out = entry;
    return 0;
}

/* ---- requests, on the worker thread ---- */

static void perform_locked(struct storage_request *request)
{
    struct memory_object *object = (struct memory_object *)request->object;
    struct entry *entry = object->entry;
    bool inside = request->offset + request->bytes <= entry->bytes;
    if (!engine_is_wanted(request))
        return;
    if (request->op == STORAGE_WRITE && !object->writable) {
        engine_set_errno(request, EBADF);
    } else if (request->op == STORAGE_WRITE && !inside) {
        request->error = ERR_INVALID;
        request->error_number = EFBIG;
    } else if (request->op == STORAGE_WRITE) {
        memcpy(entry->data + request->offset, request->data, request->bytes);
    } else if (request->op == STORAGE_READ && !inside) {
        request->error = ERR_CORRUPT;
    } else if (request->op == STORAGE_READ) {
        memcpy(request->data, entry->data + request->offset, request->bytes);
    }
}

static void perform(struct storage_request *request)
{
    struct memory *memory = ((struct memory_object *)request->object)->memory;
    pthread_mutex_lock(&memory->mutex);
    perform_locked(request);
    pthread_mutex_unlock(&memory->mutex);
}

static void memory_submit(struct storage *storage, struct storage_request *request)
{
    workers_submit(memory_of(storage)->workers, request);
}

/* ---- open and close ---- */

static int memory_open(struct storage **out, const char *where,
                       const struct storage_options *options)
{
    (void)options;
    char *end = NULL;
    uint64_t bytes_max = where[0] ? strtoull(where, &end, 10) : MEMORY_BYTES_DEFAULT;
    if (end != NULL && (*end != '\0' || where[0] == '-'))
        return report_error(ERR_INVALID, "give a number of bytes, or nothing",
                            "\"%s\" is not a size for the memory store", where);
    struct memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the memory store");
    memory->base.ops = &storage_memory;
    memory->base.text = memory->text;
    memory->bytes_max = bytes_max;
    int error = workers_open(&memory->workers, 1, "hf-memory", perform);
    if (error != 0) {
        free(memory);
        return error;
    }
    pthread_mutex_init(&memory->mutex, NULL);
    snprintf(memory->text, sizeof(memory->text), "memory, at most %llu bytes",
             (unsigned long long)bytes_max);
    *out = (struct storage *)memory;
    return 0;
}

static void memory_close(struct storage *storage)
{
    struct memory *memory = memory_of(storage);
    workers_close(memory->workers);
    while (memory->entries != NULL) {
        struct entry *entry = memory->entries;
        memory->entries = entry->next;
        free_entry(memory, entry);
    }
    pthread_mutex_destroy(&memory->mutex);
    free(memory);
}

/* ---- big objects ---- */

/* Makes an object without an entry, and locks the mutex. */
static int begin_object(struct memory_object **out, struct memory *memory, bool writable)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate an open object");
    **out =
        (struct memory_object){.base.ops = &storage_memory, .memory = memory, .writable = writable};
    pthread_mutex_lock(&memory->mutex);
    return 0;
}

/* `error`: of the function that set its entry. */
static int end_object(struct storage_object **out, struct memory_object *object, int error)
{
    if (error == 0)
        object->entry->open_count++;
    pthread_mutex_unlock(&object->memory->mutex);
    if (error == 0)
        *out = (struct storage_object *)object;
    else
        free(object);
    return error;
}

static int memory_object_create(struct storage *storage, struct storage_object **out,
                                const char *key, uint64_t bytes)
{
    struct memory_object *object;
    ERR_TRY(begin_object(&object, memory_of(storage), true));
    return end_object(out, object, create_entry(object->memory, &object->entry, key, bytes));
}

static int memory_object_open(struct storage *storage, struct storage_object **out, const char *key,
                              uint64_t *out_bytes)
{
    struct memory_object *object;
    ERR_TRY(begin_object(&object, memory_of(storage), false));
    int error = find_object(object->memory, &object->entry, key);
    if (error == 0)
        *out_bytes = object->entry->bytes;
    return end_object(out, object, error);
}

static void memory_object_close(struct storage *storage, struct storage_object *base)
{
    struct memory *memory = memory_of(storage);
    struct memory_object *object = (struct memory_object *)base;
    pthread_mutex_lock(&memory->mutex);
    struct entry *entry = object->entry;
    if (--entry->open_count == 0 && entry->removed)
        free_entry(memory, entry);
    pthread_mutex_unlock(&memory->mutex);
    free(object);
}

/* ---- names and small objects ---- */

static int memory_sync_names(struct storage *storage, const char *prefix)
{
    struct memory *memory = memory_of(storage);
    pthread_mutex_lock(&memory->mutex);
    const struct entry *entry = find_entry(memory, prefix);
    bool found = prefix[0] == '\0' || (entry != NULL && entry->is_dir);
    pthread_mutex_unlock(&memory->mutex);
    return found ? 0 : report_error(ERR_NOT_FOUND, NULL, "there is no directory \"%s\"", prefix);
}

static int memory_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    struct memory *memory = memory_of(storage);
    struct entry *entry = NULL;
    pthread_mutex_lock(&memory->mutex);
    int error = create_entry(memory, &entry, key, bytes);
    if (error == 0 && bytes > 0)
        memcpy(entry->data, data, bytes);
    pthread_mutex_unlock(&memory->mutex);
    return error;
}

static int memory_fetch(struct storage *storage, const char *key, void *data, size_t size,
                        uint64_t *out_bytes)
{
    struct memory *memory = memory_of(storage);
    struct entry *entry = NULL;
    pthread_mutex_lock(&memory->mutex);
    int error = find_object(memory, &entry, key);
    if (error == 0) {
        *out_bytes = entry->bytes;
        size_t wanted = entry->bytes < size ? entry->bytes : size;
        if (wanted > 0)
            memcpy(data, entry->data, wanted);
    }
    pthread_mutex_unlock(&memory->mutex);
    return error;
}

/* The names directly below a directory are copied first, because visit() may call the store. */
struct name_copy {
    char name[STORAGE_KEY_MAX + 1];
    bool is_dir;
    uint64_t bytes;
};

static int copy_names(struct memory *memory, struct name_copy **out, size_t *out_count,
                      const char *prefix)
{
    size_t count = 0;
    for (struct entry *entry = memory->entries; entry != NULL; entry = entry->next)
        count += name_below(entry->key, prefix) != NULL;
    struct name_copy *copies = calloc(count + 1, sizeof(*copies));
    if (copies == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a list of names");
    count = 0;
    for (struct entry *entry = memory->entries; entry != NULL; entry = entry->next) {
        const char *name = name_below(entry->key, prefix);
        if (name == NULL)
            continue;
        struct name_copy *copy = &copies[count++];
        snprintf(copy->name, sizeof(copy->name), "%s", name);
        copy->is_dir = entry->is_dir;
        copy->bytes = entry->bytes;
    }
    *out = copies;
    *out_count = count;
    return 0;
}

static int memory_list(struct storage *storage, const char *prefix,
                       int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    struct memory *memory = memory_of(storage);
    struct name_copy *copies = NULL;
    size_t count = 0;
    pthread_mutex_lock(&memory->mutex);
    int result = copy_names(memory, &copies, &count, prefix);
    pthread_mutex_unlock(&memory->mutex);
    for (size_t i = 0; result == 0 && i < count; i++) {
        struct storage_entry entry = {.name = copies[i].name,
                                      .is_dir = copies[i].is_dir,
                                      .bytes = copies[i].bytes,
                                      .is_volatile = true};
        result = visit(user, &entry);
    }
    free(copies);
    return result;
}

static int remove_locked(struct memory *memory, const char *key)
{
    struct entry **link = &memory->entries;
    while (*link != NULL && strcmp((*link)->key, key) != 0)
        link = &(*link)->next;
    struct entry *entry = *link;
    if (entry == NULL)
        return report_error(ERR_NOT_FOUND, NULL, "there is no \"%s\"", key);
    for (struct entry *other = memory->entries; entry->is_dir && other; other = other->next)
        if (name_below(other->key, key) != NULL)
            return report_error(ERR_EXISTS, NULL, "the directory \"%s\" is not empty", key);
    *link = entry->next;
    entry->removed = true;
    if (entry->open_count == 0)
        free_entry(memory, entry);
    return 0;
}

static int memory_remove(struct storage *storage, const char *key)
{
    struct memory *memory = memory_of(storage);
    pthread_mutex_lock(&memory->mutex);
    int error = remove_locked(memory, key);
    pthread_mutex_unlock(&memory->mutex);
    return error;
}

static bool lies_in(const char *key, const char *directory)
{
    size_t length = strlen(directory);
    return strncmp(key, directory, length) == 0 && (key[length] == '\0' || key[length] == '/');
}

/* Renames every key of the tree; changes nothing if a new key is too long. */
static int rename_locked(struct memory *memory, const char *key, const char *other)
{
    char moved[STORAGE_KEY_MAX + 1];
    size_t length = strlen(key), longer = strlen(other) - length;
    if (find_entry(memory, key) == NULL)
        return report_error(ERR_NOT_FOUND, NULL, "there is no \"%s\"", key);
    if (find_entry(memory, other) != NULL)
        return report_error(ERR_EXISTS, NULL, "\"%s\" is there already", other);
    for (struct entry *entry = memory->entries; entry != NULL; entry = entry->next)
        if (lies_in(entry->key, key) && strlen(entry->key) + longer > STORAGE_KEY_MAX)
            return report_error(ERR_INVALID, "choose a shorter name",
                                "the name of \"%s\" in \"%s\" has more than %d bytes", entry->key,
                                other, STORAGE_KEY_MAX);
    ERR_TRY(make_directories(memory, other));
    for (struct entry *entry = memory->entries; entry != NULL; entry = entry->next) {
        if (!lies_in(entry->key, key))
            continue;
        snprintf(moved, sizeof(moved), "%s%s", other, entry->key + length);
        strcpy(entry->key, moved);
    }
    return 0;
}

static int memory_rename(struct storage *storage, const char *key, const char *other)
{
    struct memory *memory = memory_of(storage);
    pthread_mutex_lock(&memory->mutex);
    int error = rename_locked(memory, key, other);
    pthread_mutex_unlock(&memory->mutex);
    return error;
}

static int memory_replace(struct storage *storage, const char *key, const char *other)
{
    struct memory *memory = memory_of(storage);
    int error = 0;
    pthread_mutex_lock(&memory->mutex);
    if (find_entry(memory, key) == NULL)
        error = report_error(ERR_NOT_FOUND, NULL, "there is no \"%s\"", key);
    if (error == 0 && find_entry(memory, other) != NULL)
        error = remove_locked(memory, other);
    if (error == 0)
        error = rename_locked(memory, key, other);
    pthread_mutex_unlock(&memory->mutex);
    return error;
}

static int memory_space(struct storage *storage, struct storage_space *out)
{
    struct memory *memory = memory_of(storage);
    pthread_mutex_lock(&memory->mutex);
    out->bytes_total = memory->bytes_max;
    out->bytes_free = memory->bytes_max - memory->bytes_used;
    pthread_mutex_unlock(&memory->mutex);
    return 0;
}

const struct storage_ops storage_memory = {
    .name = "memory",
    .version = 1,
    .flags = 0,
    .open = memory_open,
    .close = memory_close,
    .object_create = memory_object_create,
    .object_open = memory_object_open,
    .object_close = memory_object_close,
    .submit = memory_submit,
    .sync_names = memory_sync_names,
    .publish = memory_publish,
    .fetch = memory_fetch,
    .list = memory_list,
    .remove = memory_remove,
    .rename = memory_rename,
    .replace = memory_replace,
    .space = memory_space,
};
