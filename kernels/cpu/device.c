/* device.c - the CPU as a device: lanes that work at once on the posting thread, or each on its
 * thread with a queue (device_options.is_queued).
 *
 * A queued lane counts posted and finished work. A mark is a count; a wait for it sleeps until that
 * much work is done. The queue is a ring of QUEUE_ENTRIES; posting on a full one waits. This cannot
 * deadlock: a lane waits only for marks, and the work of a mark was posted before it.
 *
 * Lock: `lock` of a lane guards posted, done, stop, error and text. An entry belongs to the poster
 * until `posted` has passed it, then to the lane's thread until `done` has. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "proto/base/report.h"
#include "proto/base/stacks.h"

#define QUEUE_ENTRIES 256

struct cpu_device {
    struct device base;
    bool is_queued;
};

struct entry {
    lane_fn *fn;         /* NULL: wait for `until` */
    const void *pointer; /* NULL: args */
    struct mark until;
    max_align_t args[LANE_ARGS_MAX / sizeof(max_align_t)];
};

struct cpu_lane {
    struct lane base;
    bool is_queued, stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t posted, done;
    int error;
    struct report_text text;
    struct entry *queue; /* [QUEUE_ENTRIES] */
};

static struct cpu_lane *of(const struct lane *lane)
{
    return (struct cpu_lane *)lane;
}

/* ---- The device ---- */

static int cpu_open(struct device **out, const struct device_options *options)
{
    struct cpu_device *device = calloc(1, sizeof(*device));
    if (!device)
        return report_error(ERR_MEMORY, NULL, "no memory for the CPU as a device");
    device->base.ops = &device_cpu;
    device->is_queued = options && options->is_queued;
    *out = &device->base;
    return 0;
}

static void cpu_close(struct device *device)
{
    free(device);
}

static int cpu_alloc(struct device *device, void **out, size_t bytes, enum device_memory where)
{
    (void)device;
    (void)where;
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    return *out ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a buffer of %zu bytes", bytes);
}

static void cpu_free(struct device *device, void *at)
{
    (void)device;
    free(at);
}

/* ---- A lane's thread ---- */

static void reach(struct cpu_lane *lane, uint64_t sequence)
{
    pthread_mutex_lock(&lane->lock);
    while (lane->done < sequence)
        pthread_cond_wait(&lane->changed, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
}

/* Called by the only thread that runs the lane's work, so it may read these fields without the
 * lock. */
static void run_entry(struct cpu_lane *lane, lane_fn *fn, const void *args)
{
    int error = lane->error == 0 ? fn((void *)args) : 0;
    if (error == 0)
        return;
    pthread_mutex_lock(&lane->lock);
    lane->error = error;
    report_keep(&lane->text);
    pthread_mutex_unlock(&lane->lock);
}

static void *lane_main(void *argument)
{
    struct cpu_lane *lane = argument;
    stacks_join(-1);
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (lane->done == lane->posted && !lane->stop)
            pthread_cond_wait(&lane->changed, &lane->lock);
        if (lane->done == lane->posted)
            break;
        struct entry *entry = &lane->queue[lane->done % QUEUE_ENTRIES];
        pthread_mutex_unlock(&lane->lock);
        if (entry->fn)
            run_entry(lane, entry->fn, entry->pointer ? entry->pointer : entry->args);
        else
            reach(of(entry->until.lane), entry->until.sequence);
        pthread_mutex_lock(&lane->lock);
        lane->done++;
        pthread_cond_broadcast(&lane->changed);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

/* ---- Lanes ---- */

static void cpu_lane_close(struct lane *base)
{
    struct cpu_lane *lane = of(base);
    if (lane->is_queued) {
        pthread_mutex_lock(&lane->lock);
        lane->stop = true;
        pthread_cond_broadcast(&lane->changed);
        pthread_mutex_unlock(&lane->lock);
        pthread_join(lane->thread, NULL);
    }
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->lock);
    free(lane->queue);
    free(lane);
}

static int cpu_lane_open(struct device *device, struct lane **out, const char *name,
                         enum lane_kind kind)
{
    (void)kind;
    struct cpu_lane *lane = calloc(1, sizeof(*lane));
    bool is_queued = ((struct cpu_device *)device)->is_queued;
    struct entry *queue = is_queued ? calloc(QUEUE_ENTRIES, sizeof(*queue)) : NULL;
    if (!lane || (is_queued && !queue)) {
        free(lane);
        free(queue);
        return report_error(ERR_MEMORY, NULL, "no memory for the lane %s", name);
    }
    lane->base = (struct lane){.ops = device->ops, .device = device};
    lane->queue = queue;
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->changed, NULL);
    if (is_queued && pthread_create(&lane->thread, NULL, lane_main, lane) != 0) {
        cpu_lane_close(&lane->base);
        return report_error(ERR_BUSY, "raise the limit of threads (ulimit -u)",
                            "could not start the thread of the lane %s", name);
    }
    lane->is_queued = is_queued;
    if (is_queued)
        pthread_setname_np(lane->thread, name);
    *out = &lane->base;
    return 0;
}

static void post(struct cpu_lane *lane, const struct entry *head, const void *args, size_t bytes)
{
    pthread_mutex_lock(&lane->lock);
    while (lane->posted - lane->done == QUEUE_ENTRIES)
        pthread_cond_wait(&lane->changed, &lane->lock);
    struct entry *entry = &lane->queue[lane->posted % QUEUE_ENTRIES];
    entry->fn = head->fn;
    entry->pointer = head->pointer;
    entry->until = head->until;
    if (bytes > 0)
        memcpy(entry->args, args, bytes);
    lane->posted++;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->lock);
}

static void cpu_call(struct lane *base, lane_fn *fn, const void *args, size_t bytes)
{
    struct cpu_lane *lane = of(base);
    if (lane->is_queued)
        post(lane, &(struct entry){.fn = fn, .pointer = bytes > 0 ? NULL : args}, args, bytes);
    else
        run_entry(lane, fn, args);
}

static void cpu_mark(struct lane *base, struct mark *mark)
{
    struct cpu_lane *lane = of(base);
    mark->lane = base;
    mark->sequence = lane->posted;
}

static void cpu_wait(struct lane *base, const struct mark *mark)
{
    struct cpu_lane *lane = of(base);
    if (lane->is_queued)
        post(lane, &(struct entry){.until = *mark}, NULL, 0);
}

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
};

static int run_copy(void *args)
{
    const struct copy *copy = args;
    if (copy->from)
        memcpy(copy->to, copy->from, copy->bytes);
    else
        memset(copy->to, 0, copy->bytes);
    return 0;
}

static void cpu_copy(struct lane *lane, void *to, const void *from, size_t bytes)
{
    struct copy copy = {to, from, bytes};
    cpu_call(lane, run_copy, &copy, sizeof(copy));
}

static void cpu_zero(struct lane *lane, void *at, size_t bytes)
{
    cpu_copy(lane, at, NULL, bytes);
}

static int cpu_settle(struct lane *base, const struct mark *mark)
{
    struct cpu_lane *lane = of(base);
    reach(lane, mark ? mark->sequence : lane->posted);
    pthread_mutex_lock(&lane->lock);
    int error = lane->error;
    pthread_mutex_unlock(&lane->lock);
    return error == 0 ? 0 : report_restore(&lane->text, error); /* the text is written once */
}

const struct device_ops device_cpu = {
    .name = "cpu",
    .flags = DEVICE_HOST_MEMORY,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .lane_open = cpu_lane_open,
    .lane_close = cpu_lane_close,
    .mark = cpu_mark,
    .wait = cpu_wait,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .call = cpu_call,
    .settle = cpu_settle,
};
