/* requests.c - of fault: requests on their way, and the pages that they write.
 *
 * Each object that was created here has two images, the written and the synced bytes, and a stamp
 * per 4 KiB page: 0 when both agree, otherwise the time of the write. A sync makes durable the
 * pages whose writes had completed when it started. A failed sync marks them LOST: no later sync
 * saves them, only a new write (Linux drops dirty pages whose write-back failed and reports once).
 * A crash puts, page by page, the synced bytes, the written ones or a mixture of 512-byte sectors
 * into the wrapped back-end. */
#include "tests/fault/fault.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECTOR_BYTES 512u
#define STAMP_LOST UINT64_MAX
#define TORN_PAGE_CHANCE 0.125 /* of an unsynced page that is not lost whole */

/* One request on its way. */
struct fault_io {
    struct storage_request inner;
    struct storage_request *outer;
    struct fault *fault;
    struct fault_io *next;
    uint64_t due_us;
    uint64_t started; /* clock when a sync began */
    bool fails, is_started;
};

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
}

/* It has ended in the wrapped back-end; runs on that one's thread. */
static void inner_done(struct storage_request *inner)
{
    struct fault_io *io = inner->user;
    pthread_mutex_lock(&io->fault->mutex);
    add_step(io->fault, io, 0);
    pthread_mutex_unlock(&io->fault->mutex);
}

/* True when it is to be submitted. */
static bool start_io(struct fault *fault, struct fault_io *io)
{
    struct storage_request *outer = io->outer;
    struct fault_object *object = (struct fault_object *)outer->object;
    if (object->dead || fault->crashing) {
        fail_io(io, ERR_IO, EIO);
    } else if (io->fails) {
        int number = (int)fault->settings.fail_errno;
        if (outer->op == STORAGE_SYNC)
            note_failed_sync(object);
        fail_io(io, storage_code_of_errno(number), number);
    } else {
        io->is_started = true;
        io->started = fault->clock;
        io->inner = *outer;
        io->inner.object = object->inner;
        io->inner.done = inner_done;
        io->inner.user = io;
    }
    return io->is_started;
}

/* Accounts for requests that were carried out, or failed in the wrapped back-end. */
static void end_io(struct fault *fault, struct fault_io *io)
{
    struct storage_request *outer = io->outer, *inner = &io->inner;
    if (inner->error != 0) {
        if (outer->op == STORAGE_SYNC)
            note_failed_sync((struct fault_object *)outer->object);
        fail_io(io, inner->error, inner->error_number);
        return;
    }
    if (outer->op == STORAGE_WRITE)
        note_write(fault, io);
    if (fault->crashing)
        fail_io(io, ERR_IO, EIO);
    else if (outer->op == STORAGE_SYNC)
        note_sync(io);
}

/* Advances a request by one step. Called with the mutex, which is released around calls. */
static void run_step(struct fault *fault, struct fault_io *io)
{
    bool submit = false;
    if (io->is_started)
        end_io(fault, io);
    else
        submit = start_io(fault, io);
    pthread_mutex_unlock(&fault->mutex);
    if (submit)
        storage_submit(fault->inner, &io->inner);
    else
        storage_done(io->outer);
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

void *fault_run(void *argument)
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

void fault_submit(struct storage *storage, struct storage_request *request)
{
    static const char *const names[] = {
        [STORAGE_READ] = "read", [STORAGE_WRITE] = "write", [STORAGE_SYNC] = "sync"};
    struct fault *fault = (struct fault *)storage;
    const struct fault_settings *settings = &fault->settings;
    pthread_mutex_lock(&fault->mutex);
    struct fault_io *io = fault->spare;
    if (io != NULL)
        fault->spare = io->next;
    else
        io = malloc(sizeof(*io));
    CHECK(io != NULL);
    *io = (struct fault_io){.outer = request,
                            .fault = fault,
                            .fails = fault_operation_fails(fault, names[request->op], "")};
    uint64_t delay_us = settings->least_us + fault_draw(fault) % (settings->delay_us + 1);
    fault->num_on_the_way++;
    add_step(fault, io, delay_us ? now_us() + delay_us : 0);
    pthread_mutex_unlock(&fault->mutex);
}

void fault_free_requests(struct fault *fault)
{
    while (fault->spare != NULL) {
        struct fault_io *io = fault->spare;
        fault->spare = io->next;
        free(io);
    }
}

/* ---- pages after a power loss ---- */

/* Decides the contents of one unsynced page on the disk. */
static void mix_page(struct fault *fault, unsigned char *out, const unsigned char *written,
                     const unsigned char *durable)
{
    bool lost = fault_chance(fault, fault->settings.lost_rate);
    bool torn = fault_chance(fault, TORN_PAGE_CHANCE);
    uint64_t sectors = lost ? UINT64_MAX : torn ? fault_draw(fault) : 0;
    for (uint32_t i = 0; i < STORAGE_ALIGN / SECTOR_BYTES; i++) {
        const unsigned char *from = sectors >> i & 1 ? durable : written;
        memcpy(out + i * SECTOR_BYTES, from + i * SECTOR_BYTES, SECTOR_BYTES);
    }
}

int fault_crash_pages(struct fault *fault, struct fault_object *object)
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
