/* storage.c - the functions for callers: they check arguments and keys, then call the back-end's
 * table.
 *
 * Keys are checked here, once, so every back-end may trust them: no "..", no absolute path, nothing
 * but plain characters. Also here: functions that need only the table (storage_transfer,
 * storage_fetch_all) and the translation of errno. */
#include "storage/engine/engine.h"
#include "storage/engine/measured.h"
#include "storage/engine/meter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPONENT_MAX 255u /* of one name, as on every file system in use */
#define RESERVED_PREFIX ".holdfast"

static const struct storage_options default_options;

bool storage_join(char out[STORAGE_KEY_MAX + 1], const char *prefix, const char *name)
{
    return snprintf(out, STORAGE_KEY_MAX + 1, "%s%s%s", prefix, prefix[0] ? "/" : "", name) <=
           STORAGE_KEY_MAX;
}

static const struct storage_ops *added; /* NULL: none */

void storage_add(const struct storage_ops *ops)
{
    added = ops;
}

const struct storage_ops *storage_find(const char *name)
{
    const struct storage_ops *const all[] = {&storage_local, &storage_s3, &storage_memory, added};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] && strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

int storage_code_of_errno(int number)
{
    switch (number) {
    case ENOENT:
        return ERR_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY:
        return ERR_EXISTS;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: /* a limit of the process, or of the file system */
        return ERR_SPACE;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP: /* a link: links are not followed */
        return ERR_DENIED;
    case ENOMEM:
        return ERR_MEMORY;
    case EMFILE:
    case ENFILE:
        return ERR_BUSY;
    case ENAMETOOLONG:
    case ENOTDIR:
    case EXDEV:
        return ERR_INVALID;
    default:
        return ERR_IO;
    }
}

/* ---- checks of every call ---- */

static const struct storage_ops *ops_of(struct storage *storage)
{
    CHECK(storage != NULL);
    return ((struct storage_base *)storage)->ops;
}

static int check_there(struct storage *storage)
{
    return ops_of(storage)->flags & STORAGE_ABSENT
               ? report_error(ERR_UNAVAILABLE, NULL, "the store was not reached yet")
               : 0;
}

static bool is_key_character(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

bool storage_name_is_valid(const char *name, size_t length)
{
    if (length == 0 || length > COMPONENT_MAX)
        return false;
    if (strncmp(name, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) == 0)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!is_key_character(name[i]))
            return false;
    return !(length == 1 && name[0] == '.') && !(length == 2 && memcmp(name, "..", 2) == 0);
}

static int check_key(struct storage *storage, const char *key)
{
    CHECK(key != NULL);
    ERR_TRY(check_there(storage));
    size_t length = strnlen(key, STORAGE_KEY_MAX + 1);
    if (length > STORAGE_KEY_MAX)
        return report_error(ERR_INVALID, NULL, "a storage key is longer than %d bytes",
                            STORAGE_KEY_MAX);
    const char *name = key;
    for (;;) {
        size_t name_length = strcspn(name, "/");
        if (!storage_name_is_valid(name, name_length))
            return report_error(ERR_INVALID, "keys are relative paths of [A-Za-z0-9._-] names",
                                "\"%s\" is not a storage key", key);
        if (name[name_length] == '\0')
            return 0;
        name += name_length + 1;
    }
}

/* Checks a key, or "" for the root. */
static int check_prefix(struct storage *storage, const char *prefix)
{
    CHECK(prefix != NULL);
    return prefix[0] == '\0' ? check_there(storage) : check_key(storage, prefix);
}

/* ---- the table's functions ---- */

uint32_t storage_align(struct storage *storage)
{
    return ops_of(storage)->flags & STORAGE_BYTES ? 1 : STORAGE_ALIGN;
}

static void check_owner(struct storage *storage, struct storage_object *object)
{
    CHECK(object != NULL);
    CHECK(((struct storage_base *)object)->ops == ops_of(storage));
}

int storage_open(struct storage **out, const struct storage_ops *ops, const char *where,
                 const struct storage_options *options)
{
    CHECK(out != NULL && ops != NULL);
    *out = NULL;
    int error = ops->open(out, where ? where : "", options ? options : &default_options);
    CHECK((error == 0) == (*out != NULL));
    if (error == 0)
        ((struct storage_base *)(void *)*out)->meter = storage_meter_new();
    return error;
}

void storage_close(struct storage *storage)
{
    if (storage == NULL)
        return;
    struct storage_meter *meter = ((struct storage_base *)(void *)storage)->meter;
    ops_of(storage)->close(storage); /* waits for all requests */
    storage_meter_free(meter);
}

int storage_register_buffers(struct storage *storage, const struct iovec *buffers, uint32_t count)
{
    CHECK(buffers != NULL && count > 0);
    const struct storage_ops *ops = ops_of(storage);
    return ops->register_buffers ? ops->register_buffers(storage, buffers, count) : 0;
}

void storage_replace_buffer(struct storage *storage, uint32_t index, const struct iovec *buffer)
{
    const struct storage_ops *ops = ops_of(storage);
    if (ops->replace_buffer)
        ops->replace_buffer(storage, index, buffer);
}

int storage_object_create(struct storage *storage, struct storage_object **out, const char *key,
                          uint64_t bytes)
{
    CHECK(out != NULL);
    *out = NULL;
    ERR_TRY(check_key(storage, key));
    if (bytes % storage_align(storage) != 0 || bytes > INT64_MAX)
        return report_error(ERR_INVALID, NULL,
                            "the size of \"%s\", %llu bytes, is not a multiple of %u", key,
                            (unsigned long long)bytes, storage_align(storage));
    return ops_of(storage)->object_create(storage, out, key, bytes);
}

int storage_object_open(struct storage *storage, struct storage_object **out, const char *key,
                        uint64_t *out_bytes)
{
    CHECK(out != NULL && out_bytes != NULL);
    *out = NULL;
    int error = check_key(storage, key);
    return error ? error : ops_of(storage)->object_open(storage, out, key, out_bytes);
}

void storage_object_close(struct storage *storage, struct storage_object *object)
{
    if (object == NULL)
        return;
    check_owner(storage, object);
    ops_of(storage)->object_close(storage, object);
}

void storage_submit(struct storage *storage, struct storage_request *request)
{
    CHECK(request != NULL && request->done != NULL);
    check_owner(storage, request->object);
    if (request->op != STORAGE_SYNC) {
        CHECK(request->op == STORAGE_READ || request->op == STORAGE_WRITE);
        uint32_t align = storage_align(storage);
        CHECK(request->data != NULL && (uintptr_t)request->data % align == 0);
        CHECK(request->bytes > 0 && request->bytes % align == 0);
        CHECK(request->offset % align == 0);
        CHECK(request->offset <= (uint64_t)INT64_MAX - request->bytes);
    }
    request->error = 0;
    request->error_number = 0;
    request->next = NULL;
    request->bytes_done = 0;
    request->retries = 0;
    storage_meter_begin(((struct storage_base *)(void *)storage)->meter, request);
    ops_of(storage)->submit(storage, request);
}

int storage_sync_names(struct storage *storage, const char *prefix)
{
    int error = check_prefix(storage, prefix);
    return error ? error : ops_of(storage)->sync_names(storage, prefix);
}

int storage_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    CHECK(data != NULL || bytes == 0);
    int error = check_key(storage, key);
    return error ? error : ops_of(storage)->publish(storage, key, data, bytes);
}

int storage_fetch(struct storage *storage, const char *key, void *data, size_t size,
                  uint64_t *out_bytes)
{
    CHECK(out_bytes != NULL && (data != NULL || size == 0));
    int error = check_key(storage, key);
    return error ? error : ops_of(storage)->fetch(storage, key, data, size, out_bytes);
}

int storage_list(struct storage *storage, const char *prefix,
                 int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    CHECK(visit != NULL);
    int error = check_prefix(storage, prefix);
    return error ? error : ops_of(storage)->list(storage, prefix, visit, user);
}

int storage_remove(struct storage *storage, const char *key)
{
    int error = check_key(storage, key);
    return error ? error : ops_of(storage)->remove(storage, key);
}

static int check_move(struct storage *storage, const char *key, const char *other, bool can,
                      const char *what)
{
    ERR_TRY(check_key(storage, key));
    ERR_TRY(check_key(storage, other));
    return can ? 0
               : report_error(ERR_INVALID, NULL, "a store of kind %s %s nothing",
                              ops_of(storage)->name, what);
}

int storage_rename(struct storage *storage, const char *key, const char *other)
{
    ERR_TRY(check_move(storage, key, other, storage_renames(storage), "renames"));
    return ops_of(storage)->rename(storage, key, other);
}

bool storage_renames(struct storage *storage)
{
    return ops_of(storage)->rename != NULL;
}

bool storage_is_locked(struct storage *storage)
{
    return ((const struct storage_base *)storage)->is_locked;
}

bool storage_is_shared(struct storage *storage)
{
    const struct storage_ops *ops = ops_of(storage);
    return ops->find_holder != NULL || ops->flags & STORAGE_ABSENT;
}

bool storage_replaces(struct storage *storage)
{
    return ops_of(storage)->replace != NULL;
}

int storage_replace(struct storage *storage, const char *key, const char *other)
{
    ERR_TRY(check_move(storage, key, other, storage_replaces(storage), "replaces"));
    return ops_of(storage)->replace(storage, key, other);
}

int storage_lock(struct storage *storage)
{
    const struct storage_ops *ops = ops_of(storage);
    int error = check_there(storage);
    if (error == 0 && ops->lock)
        error = ops->lock(storage);
    ((struct storage_base *)storage)->is_locked = error == 0;
    return error;
}

int storage_space(struct storage *storage, struct storage_space *out)
{
    CHECK(out != NULL);
    *out = (struct storage_space){0};
    int error = check_there(storage);
    return error ? error : ops_of(storage)->space(storage, out);
}

int storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                 const void *data, size_t bytes)
{
    const struct storage_ops *ops = ops_of(storage);
    CHECK(out != NULL && (data != NULL || bytes == 0));
    *out = NULL;
    int error = check_key(storage, key);
    return error != 0 || !ops->hold ? error : ops->hold(storage, out, key, data, bytes);
}

void storage_release(struct storage *storage, struct storage_hold *hold)
{
    if (hold != NULL)
        ops_of(storage)->release(storage, hold, false);
}

void storage_leave(struct storage *storage, struct storage_hold *hold)
{
    if (hold != NULL)
        ops_of(storage)->release(storage, hold, true);
}

int storage_stamp(struct storage *storage, const char *prefix, uint64_t *out, uint64_t *out_age_ms)
{
    const struct storage_ops *ops = ops_of(storage);
    *out = *out_age_ms = 0;
    int error = check_prefix(storage, prefix);
    return error != 0 || !ops->stamp ? error : ops->stamp(storage, prefix, out, out_age_ms);
}

int storage_find_holder(struct storage *storage, const char *key)
{
    const struct storage_ops *ops = ops_of(storage);
    int error = key != NULL ? check_key(storage, key) : check_there(storage);
    if (error == 0 && !ops->find_holder && key != NULL)
        return report_error(ERR_NOT_FOUND, NULL, "no other process can open the store");
    if (error == 0 && !ops->find_holder)
        return 0; /* this process is the only writer */
    return error == 0 ? ops->find_holder(storage, key) : error;
}

int storage_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep)
{
    int error = check_prefix(storage, prefix);
    if (error != 0 || ops_of(storage)->sweep == NULL)
        return error;
    return ops_of(storage)->sweep(storage, prefix, sweep);
}

void storage_link(struct storage *storage, struct storage_link *out)
{
    *out = (struct storage_link){.rtt_seconds = 0};
    if (ops_of(storage)->link)
        ops_of(storage)->link(storage, out);
}

const char *storage_describe(struct storage *storage)
{
    const char *text = ((const struct storage_base *)storage)->text;
    return text ? text : ops_of(storage)->name;
}

/* ---- functions made of the above ---- */

int storage_fetch_all(struct storage *storage, const char *key, size_t max, void **out,
                      size_t *out_bytes)
{
    CHECK(out != NULL && out_bytes != NULL);
    *out = NULL;
    uint64_t bytes = 0, bytes_now = 0;
    ERR_TRY(storage_fetch(storage, key, NULL, 0, &bytes));
    if (bytes > max)
        return report_error(ERR_CORRUPT, NULL, "\"%s\" has %llu bytes, more than the limit of %zu",
                            key, (unsigned long long)bytes, max);
    char *data = malloc(bytes + 1);
    if (data == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate %llu bytes for \"%s\"",
                            (unsigned long long)bytes, key);
    int error = storage_fetch(storage, key, data, bytes, &bytes_now);
    if (error == 0 && bytes_now != bytes)
        error = report_error(ERR_CORRUPT, NULL, "\"%s\" changed its size while it was read", key);
    if (error != 0) {
        free(data);
        return error;
    }
    data[bytes] = '\0';
    *out = data;
    *out_bytes = bytes;
    return 0;
}

static void post_done(struct storage_request *request)
{
    sem_post(request->user);
}

static void begin_request(struct storage_transfer *transfer, struct storage *storage,
                          const struct storage_request *request)
{
    CHECK(sem_init(&transfer->done, 0, 0) == 0);
    transfer->request = *request;
    transfer->request.buffer = -1;
    transfer->request.done = post_done;
    transfer->request.user = &transfer->done;
    storage_submit(storage, &transfer->request);
}

void storage_begin(struct storage_transfer *transfer, struct storage *storage, enum storage_op op,
                   struct storage_object *object, uint64_t offset, void *data, uint32_t bytes)
{
    begin_request(transfer, storage,
                  &(struct storage_request){
                      .op = op, .object = object, .offset = offset, .data = data, .bytes = bytes});
}

int storage_end(struct storage_transfer *transfer)
{
    static const char *const messages[] = {
        [STORAGE_READ] = "could not read from storage",
        [STORAGE_WRITE] = "could not write to storage",
        [STORAGE_SYNC] = "could not make an object durable",
    };
    const struct storage_request *request = &transfer->request;
    while (sem_wait(&transfer->done) != 0)
        CHECK(errno == EINTR);
    sem_destroy(&transfer->done);
    if (request->error == 0)
        return 0;
    return report_error(request->error, NULL, "%s at offset %llu: %s", messages[request->op],
                        (unsigned long long)request->offset,
                        request->error_number ? strerror(request->error_number)
                                              : err_text(request->error));
}

int storage_transfer(struct storage *storage, enum storage_op op, struct storage_object *object,
                     uint64_t offset, void *data, uint32_t bytes)
{
    struct storage_transfer transfer;
    storage_begin(&transfer, storage, op, object, offset, data, bytes);
    return storage_end(&transfer);
}

int storage_write_hashed(struct storage *storage, struct storage_object *object, uint64_t offset,
                         void *data, uint32_t bytes, const char *sha256)
{
    struct storage_transfer transfer;
    begin_request(&transfer, storage,
                  &(struct storage_request){.op = STORAGE_WRITE,
                                            .object = object,
                                            .offset = offset,
                                            .data = data,
                                            .bytes = bytes,
                                            .sha256 = sha256});
    return storage_end(&transfer);
}
