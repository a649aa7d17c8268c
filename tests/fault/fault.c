/* fault.c - wraps another back-end and simulates failures of disks and power losses.
 *
 * Method. The outcome of every operation comes from a seeded generator, in the order of the calls,
 * so the seed replays a run with one calling thread exactly. Requests pass through one thread of
 * the wrapper: it delays them, starts them in the wrapped back-end and calls done().
 *
 * Power loss. Data and names go to the wrapped back-end at once, so reads see them. Unsynced data
 * is recorded by page (requests.c), unsynced names as a list of changes (names.c);
 * storage_fault_crash keeps, loses or tears it in the wrapped back-end.
 *
 * Limits. FAULT_OBJECT_BYTES_MAX per created object (it is held twice in memory). The reserved size
 * of an object survives a crash when its name does. Test equipment: running out of memory in submit
 * or release aborts. */
#include "tests/fault/fault.h"
#include "tests/fault/storage_fault.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_OBJECT_BYTES_MAX (1ull << 30)

/* ---- chance; the mutex is held ---- */

/* Steele, Lea, Flood: SplitMix64. */
uint64_t fault_draw(struct fault *fault)
{
    uint64_t z = fault->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

bool fault_chance(struct fault *fault, double rate)
{
    return (double)(fault_draw(fault) >> 11) * 0x1p-53 < rate;
}

bool fault_operation_fails(struct fault *fault, const char *what, const char *key)
{
    const struct fault_settings *settings = &fault->settings;
    if (settings->only[0] != '\0' && strcmp(settings->only, what) != 0)
        return false;
    if (settings->key[0] != '\0' && strstr(key, settings->key) == NULL)
        return false;
    bool unlucky = fault_chance(fault, settings->error_rate);
    uint64_t number = ++fault->num_operations;
    return number == settings->fail_at || unlucky ||
           (settings->fail_from > 0 && number >= settings->fail_from);
}

int fault_begin(struct fault *fault, const char *what, const char *key)
{
    pthread_mutex_lock(&fault->mutex);
    bool fails = fault_operation_fails(fault, what, key);
    uint64_t number = fault->num_operations;
    pthread_mutex_unlock(&fault->mutex);
    if (!fails)
        return 0;
    int fail_errno = (int)fault->settings.fail_errno;
    return report_error(storage_code_of_errno(fail_errno), NULL,
                        "injected fault: operation %llu, %s of \"%s\": %s",
                        (unsigned long long)number, what, key, strerror(fail_errno));
}

/* ---- open and close ---- */

static int start_thread(struct fault *fault)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&fault->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&fault->idle, NULL);
    pthread_mutex_init(&fault->mutex, NULL);
    pthread_mutex_init(&fault->names_mutex, NULL);
    return engine_thread_start(&fault->thread, "hf-fault", fault_run, fault);
}

static int fault_open(struct storage **out, const char *where,
                      const struct storage_options *options)
{
    struct fault_settings settings = {.seed = 1, .lost_rate = 0.5, .fail_errno = EIO};
    const struct storage_ops *ops = NULL;
    const char *inner_where = "";
    ERR_TRY(fault_settings_read(&settings, &ops, &inner_where, where));
    struct fault *fault = calloc(1, sizeof(*fault));
    if (fault == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the fault wrapper");
    fault->base.ops = &storage_fault;
    fault->settings = settings;
    fault->random = settings.seed;
    int error = storage_open(&fault->inner, ops, inner_where, options);
    if (error != 0)
        goto free_fault;
    fault->names.inner = fault->inner;
    fault->base.text = fault->text;
    snprintf(fault->text, sizeof fault->text,
             "faults (seed %llu, error %g, lost %g, delay %llu us) over %s",
             (unsigned long long)settings.seed, settings.error_rate, settings.lost_rate,
             (unsigned long long)settings.delay_us, storage_describe(fault->inner));
    error = start_thread(fault);
    if (error != 0)
        goto close_inner;
    *out = (struct storage *)fault;
    return 0;
close_inner:
    storage_close(fault->inner);
free_fault:
    free(fault);
    return error;
}

static void free_object(struct fault *fault, struct fault_object *object)
{
    storage_object_close(fault->inner, object->inner);
    free(object->stamps);
    free(object);
}

/* Removes the objects that only wait for a crash from the list, and frees them. */
static void free_objects(struct fault *fault)
{
    struct fault_object **link = &fault->objects;
    while (*link != NULL) {
        struct fault_object *object = *link;
        if (!object->closed) {
            link = &object->next;
            continue;
        }
        *link = object->next;
        free_object(fault, object);
    }
}

static void fault_close(struct storage *storage)
{
    struct fault *fault = fault_of(storage);
    pthread_mutex_lock(&fault->mutex);
    fault->stop = true;
    pthread_cond_signal(&fault->wake);
    pthread_mutex_unlock(&fault->mutex);
    pthread_join(fault->thread, NULL);
    free_objects(fault);
    CHECK(fault->objects == NULL); /* the holder of the descriptor has closed it */
    storage_close(fault->inner);
    fault_names_deinit(&fault->names);
    fault_free_requests(fault);
    pthread_mutex_destroy(&fault->names_mutex);
    pthread_mutex_destroy(&fault->mutex);
    pthread_cond_destroy(&fault->idle);
    pthread_cond_destroy(&fault->wake);
    free(fault);
}

static int fault_register_buffers(struct storage *storage, const struct iovec *buffers,
                                  uint32_t count)
{
    int error = fault_begin(fault_of(storage), "register", "");
    return error != 0 ? error : storage_register_buffers(fault_of(storage)->inner, buffers, count);
}

static void fault_replace_buffer(struct storage *storage, uint32_t index,
                                 const struct iovec *buffer)
{
    storage_replace_buffer(fault_of(storage)->inner, index, buffer);
}

/* ---- big objects ---- */

static void add_object(struct fault *fault, struct fault_object *object)
{
    pthread_mutex_lock(&fault->mutex);
    object->next = fault->objects;
    fault->objects = object;
    pthread_mutex_unlock(&fault->mutex);
}

static int new_object(struct fault_object **out)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate an open object");
    (*out)->base.ops = &storage_fault;
    return 0;
}

/* Stamps and both images are one mapping; pages that are never written cost nothing. */
static int add_images(struct fault_object *object, uint64_t bytes)
{
    if (bytes > FAULT_OBJECT_BYTES_MAX)
        return report_error(ERR_SPACE, NULL, "an object of %llu bytes is over the limit of %llu",
                            (unsigned long long)bytes, FAULT_OBJECT_BYTES_MAX);
    uint64_t num_pages = bytes / STORAGE_ALIGN;
    object->stamps = calloc(1, num_pages * sizeof(uint64_t) + 2 * bytes + 1);
    if (object->stamps == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the images of an object");
    object->bytes = bytes;
    object->written = (unsigned char *)(object->stamps + num_pages);
    object->durable = object->written + bytes;
    return 0;
}

/* Unless the operation fails, an object that is not there yet, and the names locked. */
static int begin_object(struct fault *fault, struct fault_object **out, const char *what,
                        const char *key)
{
    ERR_TRY(fault_begin(fault, what, key));
    ERR_TRY(new_object(out));
    pthread_mutex_lock(&fault->names_mutex);
    return 0;
}

/* `error`: of the calls in between. */
static int end_object(struct fault *fault, struct storage_object **out, struct fault_object *object,
                      int error)
{
    pthread_mutex_unlock(&fault->names_mutex);
    if (error != 0) {
        free_object(fault, object);
        return error;
    }
    add_object(fault, object);
    *out = (struct storage_object *)object;
    return 0;
}

static int fault_object_create(struct storage *storage, struct storage_object **out,
                               const char *key, uint64_t bytes)
{
    struct fault *fault = fault_of(storage);
    struct fault_object *object;
    ERR_TRY(begin_object(fault, &object, "create", key));
    int error = add_images(object, bytes);
    if (error == 0)
        error = fault_names_prepare(&fault->names, key);
    if (error == 0)
        error = storage_object_create(fault->inner, &object->inner, key, bytes);
    if (error == 0)
        error = fault_names_created(&fault->names, key);
    return end_object(fault, out, object, error);
}

static int fault_object_open(struct storage *storage, struct storage_object **out, const char *key,
                             uint64_t *out_bytes)
{
    struct fault *fault = fault_of(storage);
    struct fault_object *object;
    ERR_TRY(begin_object(fault, &object, "open", key));
    int error = fault_names_hidden(&fault->names, key)
                    ? report_error(ERR_NOT_FOUND, NULL, "\"%s\" is not an object", key)
                    : storage_object_open(fault->inner, &object->inner, key, out_bytes);
    return end_object(fault, out, object, error);
}

static void fault_object_close(struct storage *storage, struct storage_object *base)
{
    struct fault *fault = fault_of(storage);
    struct fault_object *object = (struct fault_object *)base;
    pthread_mutex_lock(&fault->mutex);
    object->closed = object->num_dirty > 0 && !object->dead;
    struct fault_object **link = &fault->objects;
    while (*link != object)
        link = &(*link)->next;
    if (!object->closed)
        *link = object->next;
    bool free_now = !object->closed;
    pthread_mutex_unlock(&fault->mutex);
    if (free_now)
        free_object(fault, object);
}

/* ---- names and small objects ---- */

static int fault_sync_names(struct storage *storage, const char *prefix)
{
    struct fault *fault = fault_of(storage);
    int error = fault_begin(fault, "sync_names", prefix);
    if (error != 0)
        return error;
    pthread_mutex_lock(&fault->names_mutex);
    if (fault_names_hidden(&fault->names, prefix))
        error = report_error(ERR_NOT_FOUND, NULL, "there is no directory \"%s\"", prefix);
    else
        error = storage_sync_names(fault->inner, prefix);
    if (error == 0)
        error = fault_names_synced(&fault->names, prefix);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

/* True when a failing publish or rename fails at its end, after the name was made. */
static bool is_late_failure(struct fault *fault)
{
    pthread_mutex_lock(&fault->mutex);
    bool is_late = fault_chance(fault, fault->settings.late_rate);
    pthread_mutex_unlock(&fault->mutex);
    return is_late;
}

static int fault_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    struct fault *fault = fault_of(storage);
    int error = fault_begin(fault, "publish", key);
    bool is_late = error != 0 && is_late_failure(fault);
    if (error != 0 && !is_late)
        return error;
    pthread_mutex_lock(&fault->names_mutex);
    error = fault_names_prepare(&fault->names, key);
    if (error == 0)
        error = storage_publish(fault->inner, key, data, bytes);
    if (error == 0 && !is_late)
        error = fault_names_published(&fault->names, key);
    if (error == 0 && is_late)
        error = fault_names_remove(&fault->names, key); /* which a crash may undo */
    pthread_mutex_unlock(&fault->names_mutex);
    if (error == 0 && is_late)
        error = report_error(ERR_IO, NULL, "injected fault: publish of \"%s\", at its end", key);
    return error;
}

static int fault_fetch(struct storage *storage, const char *key, void *data, size_t size,
                       uint64_t *out_bytes)
{
    struct fault *fault = fault_of(storage);
    int error = fault_begin(fault, "fetch", key);
    if (error != 0)
        return error;
    pthread_mutex_lock(&fault->names_mutex);
    if (fault_names_hidden(&fault->names, key))
        error = report_error(ERR_NOT_FOUND, NULL, "\"%s\" is not an object", key);
    else
        error = storage_fetch(fault->inner, key, data, size, out_bytes);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

/* Not counted as an operation: list answers the same question about names. */
static int fault_stamp(struct storage *storage, const char *prefix, uint64_t *out,
                       uint64_t *out_age_ms)
{
    return storage_stamp(fault_of(storage)->inner, prefix, out, out_age_ms);
}

static int fault_list(struct storage *storage, const char *prefix,
                      int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    struct fault *fault = fault_of(storage);
    ERR_TRY(fault_begin(fault, "list", prefix));
    struct name_list *list = NULL;
    pthread_mutex_lock(&fault->names_mutex);
    int error = fault_names_list(&fault->names, &list, prefix);
    pthread_mutex_unlock(&fault->names_mutex);
    if (error != 0)
        return error;
    int result = fault_names_visit(list, visit, user);
    fault_names_free_list(list);
    return result;
}

static int fault_remove(struct storage *storage, const char *key)
{
    struct fault *fault = fault_of(storage);
    ERR_TRY(fault_begin(fault, "remove", key));
    pthread_mutex_lock(&fault->names_mutex);
    int error = fault_names_remove(&fault->names, key);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

/* A failed operation may have been carried out: its caller does not know. */
static int fault_rename(struct storage *storage, const char *key, const char *other)
{
    struct fault *fault = fault_of(storage);
    int failed = fault_begin(fault, "rename", key);
    bool is_late = failed != 0 && is_late_failure(fault);
    if (failed != 0 && !is_late)
        return failed;
    pthread_mutex_lock(&fault->names_mutex);
    int error = fault_names_rename(&fault->names, key, other);
    pthread_mutex_unlock(&fault->names_mutex);
    if (error == 0 && is_late)
        error = report_error(ERR_IO, NULL, "injected fault: rename of \"%s\", at its end", key);
    return error;
}

static int fault_lock(struct storage *storage)
{
    int error = fault_begin(fault_of(storage), "lock", "");
    return error != 0 ? error : storage_lock(fault_of(storage)->inner);
}

static int fault_space(struct storage *storage, struct storage_space *out)
{
    int error = fault_begin(fault_of(storage), "space", "");
    return error != 0 ? error : storage_space(fault_of(storage)->inner, out);
}

/* ---- the crash ---- */

static bool lose(void *user)
{
    struct fault *fault = user;
    return fault_chance(fault, fault->settings.lost_rate);
}

uint64_t storage_fault_operations(struct storage *storage)
{
    struct fault *fault = fault_of(storage);
    CHECK(storage != NULL && fault->base.ops == &storage_fault);
    pthread_mutex_lock(&fault->mutex);
    uint64_t number = fault->num_operations;
    pthread_mutex_unlock(&fault->mutex);
    return number;
}

int storage_fault_crash(struct storage *storage)
{
    struct fault *fault = fault_of(storage);
    CHECK(storage != NULL && fault->base.ops == &storage_fault);
    CHECK(!pthread_equal(pthread_self(), fault->thread));
    pthread_mutex_lock(&fault->names_mutex);
    pthread_mutex_lock(&fault->mutex);
    fault->crashing = true;
    pthread_cond_signal(&fault->wake);
    while (fault->num_on_the_way > 0)
        pthread_cond_wait(&fault->idle, &fault->mutex);
    int error = 0;
    for (struct fault_object *object = fault->objects; object != NULL; object = object->next) {
        object->dead = true;
        if (error == 0)
            error = fault_crash_pages(fault, object);
    }
    if (error == 0)
        error = fault_crash_holds(fault);
    if (error == 0)
        error = fault_names_crash(&fault->names, lose, fault);
    free_objects(fault);
    fault->crashing = false;
    pthread_mutex_unlock(&fault->mutex);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

const struct storage_ops storage_fault = {
    .name = "fault",
    .version = 1,
    .flags = STORAGE_DURABLE,
    .open = fault_open,
    .close = fault_close,
    .register_buffers = fault_register_buffers,
    .replace_buffer = fault_replace_buffer,
    .object_create = fault_object_create,
    .object_open = fault_object_open,
    .object_close = fault_object_close,
    .submit = fault_submit,
    .sync_names = fault_sync_names,
    .publish = fault_publish,
    .fetch = fault_fetch,
    .list = fault_list,
    .stamp = fault_stamp,
    .remove = fault_remove,
    .rename = fault_rename,
    .lock = fault_lock,
    .space = fault_space,
    .hold = fault_hold,
    .release = fault_release,
    .find_holder = fault_find_holder,
    .sweep = fault_sweep,
};

/* Programs that link this file may open "fault:" stores. */
__attribute__((constructor)) static void add_backend(void)
{
    storage_add(&storage_fault);
}
