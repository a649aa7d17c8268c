/* scan.c - reads and verifies blocks of shards at the speed of the device.
 *
 *     caller's thread   next() -> a free buffer -> storage_submit;  damaged();  the progress bar
 *     storage's thread  read done -> ready list
 *     workers           ready -> checksum -> take() -> free
 *
 * There are more buffers than the engine puts on the device, so the device always has its full
 * depth. A damaged block keeps its buffer until every earlier block is done, so damage is reported
 * in order. The oldest block under way never waits for another, so there is always progress.
 *
 * Buffers are not registered with the storage: with huge pages that saves no measurable time (0.15
 * CPU seconds per GiB either way), and registering faults all of them in at the start.
 *
 * The lock guards all of struct scan but `hooks`; it is held for a few instructions at a time. */
#include "clients/cli/engine/scan.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE (2u << 20)

enum slot_state { SLOT_FREE, SLOT_BUSY, SLOT_DAMAGED };

struct slot {
    struct storage_request request;
    struct scan *scan;
    struct scan_read read;
    enum slot_state state;
    uint64_t sequence; /* order of next() */
    int error_number;
    struct slot *next; /* in the ready list */
    unsigned char *data;
};

struct scan {
    struct storage *store;
    const struct scan_hooks *hooks;
    unsigned char *memory;
    pthread_t workers[SCAN_WORKERS_MAX];
    uint32_t num_workers;
    pthread_mutex_t lock;
    pthread_cond_t ready_more; /* workers wait */
    pthread_cond_t changed;    /* the caller's thread waits */
    struct slot slots[SCAN_BUFFERS];
    struct slot *ready, **ready_tail;
    uint32_t num_free, num_damaged;
    uint64_t sequence, changes, bytes_done;
    bool stop;
    struct failure failure;
};

void *scan_memory(size_t bytes)
{
    bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, bytes);
    if (memory != NULL)
        madvise(memory, bytes, MADV_HUGEPAGE); /* on refusal small pages remain */
    return memory;
}

uint32_t scan_workers(void)
{
    static atomic_uint counted; /* counts once: this number sizes and frees the workers' memory */
    uint32_t workers = atomic_load(&counted);
    if (workers > 0)
        return workers;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    workers = cores < 1 ? 1 : cores > SCAN_WORKERS_MAX ? SCAN_WORKERS_MAX : (uint32_t)cores;
    unsigned none = 0;
    return atomic_compare_exchange_strong(&counted, &none, workers) ? workers : none;
}

int scan_open(struct scan **out, struct storage *store)
{
    struct scan *scan = calloc(1, sizeof *scan);
    *out = NULL;
    if (scan == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to read with");
    scan->store = store;
    scan->ready_tail = &scan->ready;
    scan->num_free = SCAN_BUFFERS;
    pthread_mutex_init(&scan->lock, NULL);
    pthread_cond_init(&scan->ready_more, NULL);
    pthread_cond_init(&scan->changed, NULL);
    scan->memory = scan_memory((size_t)SCAN_BUFFERS * SCAN_BLOCK);
    int error = scan->memory != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory to read with");
    for (uint32_t i = 0; i < SCAN_BUFFERS && error == 0; i++) {
        scan->slots[i].scan = scan;
        scan->slots[i].data = scan->memory + (size_t)i * SCAN_BLOCK;
    }
    if (error != 0)
        scan_close(scan);
    else
        *out = scan;
    return error;
}

void scan_close(struct scan *scan)
{
    if (scan == NULL)
        return;
    pthread_mutex_destroy(&scan->lock);
    pthread_cond_destroy(&scan->ready_more);
    pthread_cond_destroy(&scan->changed);
    free(scan->memory);
    free(scan);
}

/* ---- from any thread ---- */

/* With the lock held. */
static void note_change(struct scan *scan)
{
    scan->changes++;
    pthread_cond_signal(&scan->changed);
}

void scan_wake(struct scan *scan)
{
    pthread_mutex_lock(&scan->lock);
    note_change(scan);
    pthread_mutex_unlock(&scan->lock);
}

void scan_fail(struct scan *scan, int error)
{
    pthread_mutex_lock(&scan->lock);
    failure_keep(&scan->failure, error);
    note_change(scan);
    pthread_mutex_unlock(&scan->lock);
}

static void read_done(struct storage_request *request)
{
    struct slot *slot = request->user;
    struct scan *scan = slot->scan;
    pthread_mutex_lock(&scan->lock);
    slot->next = NULL;
    *scan->ready_tail = slot;
    scan->ready_tail = &slot->next;
    pthread_cond_signal(&scan->ready_more);
    pthread_mutex_unlock(&scan->lock);
}

/* ---- workers ---- */

/* Waits for a ready slot. NULL: there will be none. */
static struct slot *wait_for_ready(struct scan *scan, bool *out_failed)
{
    pthread_mutex_lock(&scan->lock);
    while (scan->ready == NULL && !scan->stop)
        pthread_cond_wait(&scan->ready_more, &scan->lock);
    struct slot *slot = scan->ready;
    if (slot != NULL)
        scan->ready = slot->next;
    if (scan->ready == NULL)
        scan->ready_tail = &scan->ready;
    *out_failed = scan->failure.error != 0;
    pthread_mutex_unlock(&scan->lock);
    return slot;
}

static int work_on(struct scan *scan, uint32_t worker, struct slot *slot, bool *out_damaged)
{
    int error = slot->request.error, number = slot->request.error_number;
    if (error != 0 && error != ERR_CORRUPT &&
        error != ERR_IO) /* the error tells nothing about the block */
        return report_error(error, NULL, "could not read a block: %s", err_text(error));
    *out_damaged = error != 0 || store_shard_check_blocks(&slot->read.file->stored, slot->data,
                                                          slot->read.block * CHECKSUM_BLOCK_BYTES,
                                                          CHECKSUM_BLOCK_BYTES) != 0;
    slot->error_number = error == ERR_IO && number == 0 ? EIO : error != 0 ? number : 0;
    return *out_damaged ? 0 : scan->hooks->take(scan->hooks->user, worker, &slot->read, slot->data);
}

/* With the lock held. */
static void free_slot(struct scan *scan, struct slot *slot)
{
    uint64_t start, bytes;
    shard_block(&start, &bytes, &slot->read.file->stored.geometry, slot->read.block);
    scan->bytes_done += bytes;
    shard_drop(slot->read.file);
    slot->state = SLOT_FREE;
    scan->num_free++;
}

struct worker {
    struct scan *scan;
    uint32_t index;
};

static void *run_worker(void *argument)
{
    struct worker worker = *(struct worker *)argument;
    struct scan *scan = worker.scan;
    struct slot *slot;
    free(argument);
    bool has_failed;
    while ((slot = wait_for_ready(scan, &has_failed)) != NULL) {
        bool is_damaged = false;
        int error = has_failed ? 0 : work_on(scan, worker.index, slot, &is_damaged);
        pthread_mutex_lock(&scan->lock);
        failure_keep(&scan->failure, error);
        if (is_damaged) {
            slot->state = SLOT_DAMAGED;
            scan->num_damaged++;
        } else {
            free_slot(scan, slot);
        }
        note_change(scan);
        pthread_mutex_unlock(&scan->lock);
    }
    return NULL;
}

static int start_workers(struct scan *scan)
{
    uint32_t wanted = scan_workers();
    for (scan->num_workers = 0; scan->num_workers < wanted; scan->num_workers++) {
        struct worker *worker = malloc(sizeof *worker);
        if (worker != NULL)
            *worker = (struct worker){scan, scan->num_workers};
        if (worker == NULL ||
            pthread_create(&scan->workers[scan->num_workers], NULL, run_worker, worker) != 0) {
            free(worker);
            break;
        }
    }
    return scan->num_workers > 0
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for a thread to read with");
}

static void stop_workers(struct scan *scan)
{
    pthread_mutex_lock(&scan->lock);
    scan->stop = true;
    pthread_cond_broadcast(&scan->ready_more);
    pthread_mutex_unlock(&scan->lock);
    for (uint32_t i = 0; i < scan->num_workers; i++)
        pthread_join(scan->workers[i], NULL);
}

/* ---- the caller's thread ---- */

/* The damaged block whose earlier blocks are all done; NULL: none. */
static struct slot *find_damaged(struct scan *scan)
{
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < SCAN_BUFFERS && scan->num_damaged > 0; i++) {
        struct slot *slot = &scan->slots[i];
        if (slot->state != SLOT_FREE && (oldest == NULL || slot->sequence < oldest->sequence))
            oldest = slot;
    }
    return oldest != NULL && oldest->state == SLOT_DAMAGED ? oldest : NULL;
}

/* Reports a damaged block. Called with the lock held; releases it while the hook runs. */
static void report_damage(struct scan *scan)
{
    struct slot *slot;
    while ((slot = find_damaged(scan)) != NULL) {
        pthread_mutex_unlock(&scan->lock);
        int error = scan->hooks->damaged(scan->hooks->user, &slot->read, slot->error_number);
        pthread_mutex_lock(&scan->lock);
        failure_keep(&scan->failure, error);
        scan->num_damaged--;
        free_slot(scan, slot);
    }
}

static struct slot *find_free(struct scan *scan)
{
    uint32_t i = 0;
    while (scan->slots[i].state != SLOT_FREE)
        i++;
    return &scan->slots[i];
}

static void submit_read(struct scan *scan, struct slot *slot)
{
    uint64_t start, bytes;
    shard_block(&start, &bytes, &slot->read.file->stored.geometry, slot->read.block);
    bytes = (bytes + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
    slot->request = (struct storage_request){.op = STORAGE_READ,
                                             .object = slot->read.file->stored.object,
                                             .offset = start,
                                             .data = slot->data,
                                             .bytes = (uint32_t)bytes,
                                             .buffer = -1,
                                             .done = read_done,
                                             .user = slot};
    storage_submit(scan->store, &slot->request);
}

/* Starts a read into a free buffer; SCAN_READ: it did. Called with the lock held; released while
 * next() runs. */
static int start_read(struct scan *scan)
{
    struct slot *slot = find_free(scan);
    pthread_mutex_unlock(&scan->lock);
    int result = scan->hooks->next(scan->hooks->user, &slot->read);
    pthread_mutex_lock(&scan->lock);
    if (result < 0)
        failure_keep(&scan->failure, result);
    if (result != SCAN_READ)
        return result;
    slot->state = SLOT_BUSY;
    slot->sequence = scan->sequence++;
    scan->num_free--;
    pthread_mutex_unlock(&scan->lock);
    submit_read(scan, slot);
    pthread_mutex_lock(&scan->lock);
    return SCAN_READ;
}

static void show_progress(struct scan *scan, uint64_t *shown)
{
    if (scan->hooks->progress != NULL && scan->bytes_done > *shown)
        progress_add(scan->hooks->progress, scan->bytes_done - *shown);
    *shown = scan->bytes_done;
}

/* Reads until there is nothing more to read and every buffer is free. */
static void run_reads(struct scan *scan)
{
    uint64_t shown = 0;
    bool ended = false;
    pthread_mutex_lock(&scan->lock);
    for (;;) {
        uint64_t changes = scan->changes;
        int result = SCAN_WAIT;
        report_damage(scan);
        show_progress(scan, &shown);
        ended = ended || scan->failure.error != 0;
        if (ended && scan->num_free == SCAN_BUFFERS)
            break;
        if (!ended && scan->num_free > 0)
            result = start_read(scan);
        ended = ended || result == SCAN_END || scan->failure.error != 0;
        while (result != SCAN_READ && scan->changes == changes &&
               !(ended && scan->num_free == SCAN_BUFFERS))
            pthread_cond_wait(&scan->changed, &scan->lock);
    }
    pthread_mutex_unlock(&scan->lock);
}

int scan_run(struct scan *scan, const struct scan_hooks *hooks)
{
    scan->hooks = hooks;
    int error = start_workers(scan);
    if (error == 0)
        run_reads(scan);
    stop_workers(scan);
    return error != 0 ? error : failure_report(&scan->failure);
}
