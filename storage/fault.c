/* fault.c - wraps another back-end and does to it what disks and power cuts do.
 *
 * Method. Every operation draws its fate from a seeded generator, in the order of the calls, so a
 * run with one calling thread is replayed exactly by its seed. Requests pass through one thread of
 * the wrapper: it holds them back for their delay, starts them in the wrapped back-end (in two
 * parts when short, the first only when torn) and calls done().
 *
 * Power loss. Data and names go to the wrapped back-end at once, so reads see them. For each object
 * created here the wrapper keeps two images, what was written and what was synced, and a stamp per
 * 4 KiB page: 0 when both agree, else the time of the write. A sync makes durable the pages whose
 * writes had completed when it started. A failed sync marks them LOST: no later sync saves them,
 * only a new write (Linux drops dirty pages whose write-back failed and reports once).
 * storage_fault_crash then puts, page by page, the synced bytes, the written ones or a mixture of
 * 512-byte sectors into the wrapped back-end, and undoes names (fault_names.c).
 *
 * Limits. FAULT_OBJECT_BYTES_MAX per created object (it is held twice in memory). The reserved size
 * of an object survives a crash when its name does. Test equipment: running out of memory in submit
 * aborts. */
#include "storage/engine.h"
#include "storage/fault_names.h"
#include "storage/fault_settings.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAULT_OBJECT_BYTES_MAX (1ull << 30)
#define SECTOR_BYTES 512u
#define STAMP_LOST UINT64_MAX
#define TORN_PAGE_CHANCE 0.125 /* of an unsynced page that is not lost whole */

struct fault_object {
    struct storage_base base;
    struct fault_object *next;
    struct storage_object *inner;
    uint64_t bytes;
    /* Of created objects only; guarded by the wrapper's mutex. */
    unsigned char *written, *durable;
    uint64_t *stamps;
    uint64_t num_dirty;
    bool closed; /* by the caller; kept for the crash because it is not clean */
    bool dead;   /* opened before a crash */
};

/* One request on its way. */
struct fault_io {
    struct storage_request inner;
    struct storage_request *outer;
    struct fault *fault;
    struct fault_io *next;
    uint64_t due_us;
    uint64_t started;     /* clock when a sync began */
    uint32_t first_bytes; /* of the first part; 0 fails the request at once */
    bool torn;            /* the first part is all */
    bool is_started, is_finished;
};

struct fault {
    struct storage_base base;
    struct fault_settings settings;
    struct storage *inner;
    char text[512];
    pthread_t thread;
    pthread_mutex_t names_mutex; /* guards names; taken before `mutex` */
    struct fault_names names;
    pthread_mutex_t mutex; /* guards all below, and the images of objects */
    pthread_cond_t wake;   /* the thread has something to do */
    pthread_cond_t idle;   /* no request is on its way */
    uint64_t random;
    uint64_t num_operations;
    uint64_t clock; /* counts completions, so that stamps are ordered */
    struct fault_object *objects;
    struct fault_io *steps; /* by due_us, then first come first served */
    struct fault_io *spare;
    uint64_t num_on_the_way;
    bool crashing, stop;
};

static struct fault *fault_of(struct storage *storage)
{
    return (struct fault *)storage;
}

/* ---- chance; the mutex is held ---- */

/* Steele, Lea, Flood: SplitMix64. */
static uint64_t draw(struct fault *fault)
{
    uint64_t z = fault->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool chance(struct fault *fault, double rate)
{
    return (double)(draw(fault) >> 11) * 0x1p-53 < rate;
}

/* Counts an operation and says whether it fails. */
static bool operation_fails(struct fault *fault)
{
    const struct fault_settings *settings = &fault->settings;
    bool unlucky = chance(fault, settings->error_rate);
    uint64_t number = ++fault->num_operations;
    return number == settings->fail_at || unlucky ||
           (settings->fail_from > 0 && number >= settings->fail_from);
}

static int begin_operation(struct fault *fault, const char *what, const char *key)
{
    pthread_mutex_lock(&fault->mutex);
    bool counts = fault->settings.only[0] == '\0' || strcmp(fault->settings.only, what) == 0;
    bool fails = counts && operation_fails(fault);
    uint64_t number = fault->num_operations;
    pthread_mutex_unlock(&fault->mutex);
    if (!fails)
        return 0;
    int fail_errno = (int)fault->settings.fail_errno;
    return report_error(storage_code_of_errno(fail_errno), NULL,
                        "injected fault: operation %llu, %s of \"%s\": %s",
                        (unsigned long long)number, what, key, strerror(fail_errno));
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- pages; the mutex is held ---- */

static void set_stamp(struct fault_object *object, uint64_t page, uint64_t stamp)
{
    object->num_dirty += (stamp != 0) - (object->stamps[page] != 0);
    object->stamps[page] = stamp;
}

static void note_write(struct fault *fault, const struct fault_io *io)
{
    struct fault_object *object = (struct fault_object *)io->outer->object;
    const struct storage_request *inner = &io->inner;
    if (object->written == NULL)
        return;
    memcpy(object->written + inner->offset, inner->data, inner->bytes);
    fault->clock++;
    for (uint64_t done = 0; done < inner->bytes; done += STORAGE_ALIGN)
        set_stamp(object, (inner->offset + done) / STORAGE_ALIGN, fault->clock);
}

static void note_sync(const struct fault_io *io)
{
    struct fault_object *object = (struct fault_object *)io->outer->object;
    uint64_t num_pages = object->stamps ? object->bytes / STORAGE_ALIGN : 0;
    for (uint64_t page = 0; page < num_pages; page++) {
        if (object->stamps[page] == 0 || object->stamps[page] > io->started)
            continue;
        uint64_t at = page * STORAGE_ALIGN;
        memcpy(object->durable + at, object->written + at, STORAGE_ALIGN);
        set_stamp(object, page, 0);
    }
}

static void note_failed_sync(struct fault_object *object)
{
    uint64_t num_pages = object->stamps ? object->bytes / STORAGE_ALIGN : 0;
    for (uint64_t page = 0; page < num_pages; page++)
        if (object->stamps[page] != 0)
            object->stamps[page] = STAMP_LOST;
}

/* ---- requests ---- */

static void add_step(struct fault *fault, struct fault_io *io, uint64_t due_us)
{
    struct fault_io **link = &fault->steps;
    while (*link != NULL && (*link)->due_us <= due_us)
        link = &(*link)->next;
    io->due_us = due_us;
    io->next = *link;
    *link = io;
    pthread_cond_signal(&fault->wake);
}

static void fail_io(struct fault_io *io, int error, int number)
{
    io->outer->error = error;
    io->outer->error_number = number;
    io->is_finished = true;
}

/* A part has ended in the wrapped back-end, on that one's thread. */
static void part_done(struct storage_request *inner)
{
    struct fault_io *io = inner->user;
    pthread_mutex_lock(&io->fault->mutex);
    add_step(io->fault, io, 0);
    pthread_mutex_unlock(&io->fault->mutex);
}

/* True when the first part is to be submitted. */
static bool start_io(struct fault *fault, struct fault_io *io)
{
    struct storage_request *outer = io->outer;
    struct fault_object *object = (struct fault_object *)outer->object;
    if (object->dead || fault->crashing) {
        fail_io(io, ERR_IO, EIO);
    } else if (io->first_bytes == 0) {
        int number = (int)fault->settings.fail_errno;
        if (outer->op == STORAGE_SYNC)
            note_failed_sync(object);
        fail_io(io, storage_code_of_errno(number), number);
    } else {
        io->is_started = true;
        io->started = fault->clock;
        io->inner = *outer;
        io->inner.object = object->inner;
        io->inner.bytes = outer->op == STORAGE_SYNC ? 0 : io->first_bytes;
        io->inner.done = part_done;
        io->inner.user = io;
    }
    return io->is_started;
}

/* Accounts for a part; true when the second part is to be submitted. */
static bool continue_io(struct fault *fault, struct fault_io *io)
{
    struct storage_request *outer = io->outer, *inner = &io->inner;
    uint64_t end = inner->offset + inner->bytes;
    if (inner->error != 0) {
        if (outer->op == STORAGE_SYNC)
            note_failed_sync((struct fault_object *)outer->object);
        fail_io(io, inner->error, inner->error_number);
        return false;
    }
    if (outer->op == STORAGE_WRITE)
        note_write(fault, io);
    if (io->torn || fault->crashing) {
        fail_io(io, ERR_IO, EIO);
        return false;
    }
    if (outer->op == STORAGE_SYNC)
        note_sync(io);
    if (outer->op == STORAGE_SYNC || end == outer->offset + outer->bytes) {
        io->is_finished = true;
        return false;
    }
    inner->data = (char *)inner->data + inner->bytes;
    inner->offset = end;
    inner->bytes = (uint32_t)(outer->offset + outer->bytes - end);
    return true;
}

/* Takes a request one step further. The mutex is held, and given up around calls. */
static void run_step(struct fault *fault, struct fault_io *io)
{
    bool submit = io->is_started ? continue_io(fault, io) : start_io(fault, io);
    pthread_mutex_unlock(&fault->mutex);
    if (submit)
        storage_submit(fault->inner, &io->inner);
    else
        io->outer->done(io->outer);
    pthread_mutex_lock(&fault->mutex);
    if (submit)
        return;
    io->next = fault->spare;
    fault->spare = io;
    if (--fault->num_on_the_way == 0)
        pthread_cond_broadcast(&fault->idle);
}

static void wait_until(struct fault *fault, uint64_t due_us)
{
    struct timespec until = {(time_t)(due_us / 1000000), (long)(due_us % 1000000) * 1000};
    pthread_cond_timedwait(&fault->wake, &fault->mutex, &until);
}

static void *run_fault(void *argument)
{
    struct fault *fault = argument;
    pthread_mutex_lock(&fault->mutex);
    for (;;) {
        struct fault_io *io = fault->steps;
        if (io == NULL && fault->stop && fault->num_on_the_way == 0)
            break;
        if (io == NULL) {
            pthread_cond_wait(&fault->wake, &fault->mutex);
        } else if (io->due_us > now_us() && !fault->crashing) {
            wait_until(fault, io->due_us);
        } else {
            fault->steps = io->next;
            run_step(fault, io);
        }
    }
    pthread_mutex_unlock(&fault->mutex);
    return NULL;
}

/* How much of a transfer its first part is: all, or some whole pages of it. */
static uint32_t draw_part(struct fault *fault, const struct storage_request *request, bool whole)
{
    uint64_t number = draw(fault);
    uint32_t num_pages = request->bytes / STORAGE_ALIGN;
    if (whole || num_pages < 2)
        return request->bytes;
    return STORAGE_ALIGN * (uint32_t)(1 + number % (num_pages - 1));
}

static void fault_submit(struct storage *storage, struct storage_request *request)
{
    struct fault *fault = fault_of(storage);
    const struct fault_settings *settings = &fault->settings;
    pthread_mutex_lock(&fault->mutex);
    struct fault_io *io = fault->spare;
    if (io != NULL)
        fault->spare = io->next;
    else
        io = malloc(sizeof(*io));
    CHECK(io != NULL);
    *io = (struct fault_io){.outer = request, .fault = fault};
    bool fails = settings->only[0] == '\0' && operation_fails(fault);
    bool is_short = chance(fault, settings->short_rate);
    io->torn = chance(fault, settings->torn_rate) && request->op != STORAGE_SYNC;
    uint64_t delay_us = draw(fault) % (settings->delay_us + 1);
    io->first_bytes = draw_part(fault, request, !is_short && !io->torn);
    if (request->op == STORAGE_SYNC)
        io->first_bytes = 1;
    if (fails)
        io->first_bytes = 0;
    fault->num_on_the_way++;
    add_step(fault, io, delay_us ? now_us() + delay_us : 0);
    pthread_mutex_unlock(&fault->mutex);
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
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int number = pthread_create(&fault->thread, NULL, run_fault, fault);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number == 0)
        return 0;
    errno = number;
    return report_errno(ERR_BUSY, "could not start the thread of the fault wrapper", NULL);
}

static int fault_open(struct storage **out, const char *where,
                      const struct storage_options *options)
{
    struct fault_settings settings = {.seed = 1, .lost_rate = 0.5, .fail_errno = EIO};
    const struct storage_ops *ops = NULL;
    const char *inner_where = "";
    int error = fault_settings_read(&settings, &ops, &inner_where, where);
    if (error != 0)
        return error;
    struct fault *fault = calloc(1, sizeof(*fault));
    if (fault == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the fault wrapper");
    fault->base.ops = &storage_fault;
    fault->settings = settings;
    fault->random = settings.seed;
    error = storage_open(&fault->inner, ops, inner_where, options);
    if (error != 0)
        goto free_fault;
    fault->names.inner = fault->inner;
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

/* Takes the objects that only wait for a crash, or all, off the list and frees them. */
static void free_objects(struct fault *fault, bool all)
{
    struct fault_object **link = &fault->objects;
    while (*link != NULL) {
        struct fault_object *object = *link;
        if (!all && !object->closed) {
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
    free_objects(fault, true);
    storage_close(fault->inner);
    fault_names_deinit(&fault->names);
    while (fault->spare != NULL) {
        struct fault_io *io = fault->spare;
        fault->spare = io->next;
        free(io);
    }
    pthread_mutex_destroy(&fault->names_mutex);
    pthread_mutex_destroy(&fault->mutex);
    pthread_cond_destroy(&fault->idle);
    pthread_cond_destroy(&fault->wake);
    free(fault);
}

static const char *fault_describe(struct storage *storage)
{
    struct fault *fault = fault_of(storage);
    const struct fault_settings *s = &fault->settings;
    pthread_mutex_lock(&fault->mutex);
    snprintf(fault->text, sizeof(fault->text),
             "faults (seed %llu, error %g, short %g, torn %g, lost %g, delay %llu us) over %s",
             (unsigned long long)s->seed, s->error_rate, s->short_rate, s->torn_rate, s->lost_rate,
             (unsigned long long)s->delay_us, storage_describe(fault->inner));
    pthread_mutex_unlock(&fault->mutex);
    return fault->text;
}

static int fault_register_buffers(struct storage *storage, const struct iovec *buffers,
                                  uint32_t count)
{
    return storage_register_buffers(fault_of(storage)->inner, buffers, count);
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

/* Stamps and both images are one piece of memory; what is never written of it costs nothing. */
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

static int fault_object_create(struct storage *storage, struct storage_object **out,
                               const char *key, uint64_t bytes)
{
    struct fault *fault = fault_of(storage);
    int error = begin_operation(fault, "create", key);
    if (error != 0)
        return error;
    struct fault_object *object;
    error = new_object(&object);
    if (error != 0)
        return error;
    pthread_mutex_lock(&fault->names_mutex);
    error = add_images(object, bytes);
    if (error == 0)
        error = fault_names_prepare(&fault->names, key);
    if (error == 0)
        error = storage_object_create(fault->inner, &object->inner, key, bytes);
    if (error == 0)
        error = fault_names_created(&fault->names, key);
    pthread_mutex_unlock(&fault->names_mutex);
    if (error != 0) {
        free_object(fault, object);
        return error;
    }
    add_object(fault, object);
    *out = (struct storage_object *)object;
    return 0;
}

static int fault_object_open(struct storage *storage, struct storage_object **out, const char *key,
                             uint64_t *out_bytes)
{
    struct fault *fault = fault_of(storage);
    int error = begin_operation(fault, "open", key);
    if (error != 0)
        return error;
    struct fault_object *object;
    error = new_object(&object);
    if (error != 0)
        return error;
    pthread_mutex_lock(&fault->names_mutex);
    if (fault_names_hidden(&fault->names, key))
        error = report_error(ERR_NOT_FOUND, NULL, "\"%s\" is not an object", key);
    else
        error = storage_object_open(fault->inner, &object->inner, key, out_bytes);
    pthread_mutex_unlock(&fault->names_mutex);
    if (error != 0) {
        free_object(fault, object);
        return error;
    }
    add_object(fault, object);
    *out = (struct storage_object *)object;
    return 0;
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
    int error = begin_operation(fault, "sync_names", prefix);
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

/* Does a failed publish fail at its last sync, when the name was there already? */
static bool is_publish_late(struct fault *fault)
{
    pthread_mutex_lock(&fault->mutex);
    bool is_late = chance(fault, fault->settings.late_rate);
    pthread_mutex_unlock(&fault->mutex);
    return is_late;
}

static int fault_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    struct fault *fault = fault_of(storage);
    int error = begin_operation(fault, "publish", key);
    bool is_late = error != 0 && is_publish_late(fault);
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
    int error = begin_operation(fault, "fetch", key);
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

static int fault_list(struct storage *storage, const char *prefix,
                      int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    struct fault *fault = fault_of(storage);
    int error = begin_operation(fault, "list", prefix);
    if (error != 0)
        return error;
    struct name_list *list = NULL;
    pthread_mutex_lock(&fault->names_mutex);
    error = fault_names_list(&fault->names, &list, prefix);
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
    int error = begin_operation(fault, "remove", key);
    if (error != 0)
        return error;
    pthread_mutex_lock(&fault->names_mutex);
    error = fault_names_remove(&fault->names, key);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

static int fault_lock(struct storage *storage)
{
    int error = begin_operation(fault_of(storage), "lock", "");
    return error != 0 ? error : storage_lock(fault_of(storage)->inner);
}

static int fault_space(struct storage *storage, struct storage_space *out)
{
    int error = begin_operation(fault_of(storage), "space", "");
    return error != 0 ? error : storage_space(fault_of(storage)->inner, out);
}

/* ---- the crash ---- */

static bool lose(void *user)
{
    struct fault *fault = user;
    return chance(fault, fault->settings.lost_rate);
}

/* Decides what is on the disk of one unsynced page. */
static void mix_page(struct fault *fault, unsigned char *out, const unsigned char *written,
                     const unsigned char *durable)
{
    bool lost = lose(fault);
    bool torn = chance(fault, TORN_PAGE_CHANCE);
    uint64_t sectors = lost ? UINT64_MAX : torn ? draw(fault) : 0;
    for (uint32_t i = 0; i < STORAGE_ALIGN / SECTOR_BYTES; i++) {
        const unsigned char *from = sectors >> i & 1 ? durable : written;
        memcpy(out + i * SECTOR_BYTES, from + i * SECTOR_BYTES, SECTOR_BYTES);
    }
}

static int crash_object(struct fault *fault, struct fault_object *object)
{
    if (object->num_dirty == 0)
        return 0;
    unsigned char *page = aligned_alloc(STORAGE_ALIGN, STORAGE_ALIGN);
    if (page == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a page");
    int error = 0;
    for (uint64_t i = 0; error == 0 && i < object->bytes / STORAGE_ALIGN; i++) {
        uint64_t at = i * STORAGE_ALIGN;
        if (object->stamps[i] == 0)
            continue;
        mix_page(fault, page, object->written + at, object->durable + at);
        error =
            storage_transfer(fault->inner, STORAGE_WRITE, object->inner, at, page, STORAGE_ALIGN);
        set_stamp(object, i, 0);
    }
    free(page);
    return error;
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
            error = crash_object(fault, object);
    }
    if (error == 0)
        error = fault_names_crash(&fault->names, lose, fault);
    free_objects(fault, false);
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
    .remove = fault_remove,
    .lock = fault_lock,
    .space = fault_space,
    .describe = fault_describe,
};
