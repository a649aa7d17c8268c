/* device.h - memory of a device, and lanes: order of work on it.
 *
 * A lane is a queue: its work runs in the order of posting. Lanes do not wait for each other by
 * themselves. A mark stands for all work posted on a lane so far; a lane that waits for the mark
 * begins later work only when that work is done.
 *
 *     lane_copy(copies, device_at, pinned_at, bytes);
 *     lane_mark(copies, &mark);
 *     lane_wait(compute, &mark);            queued as well: the caller continues
 *     kernel_add(kernels, compute, &args);  kernels.h
 *     ERR_TRY(lane_settle(compute));        here the caller waits
 *
 * Memory: ON_DEVICE is for work on lanes; the host neither reads nor writes it. PINNED is for both:
 * the host may access it while no lane uses it (after lane_settle, or in lane_call). device_pin()
 * pins memory of another owner. On the CPU device both are ordinary memory that the host may
 * access; the tests' device does not allow it.
 *
 * Errors: posting returns nothing. A lane keeps the first error of its work and drops all later
 * work. Marks are still reached, so no wait is endless. lane_settle returns the error, with its
 * text of report.h, until the lane is closed.
 *
 * Threads: each lane belongs to one posting thread. A device may be used by many. */
#ifndef HOLDFAST_KERNELS_DEVICE_H
#define HOLDFAST_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum device_memory { ON_DEVICE, PINNED };

/* Optional properties of a device. Callers check these flags, not names. */
enum device_flag {
    DEVICE_HOST_MEMORY = 1, /* host threads compute on it: the CPU's kernels serve this device */
    DEVICE_QUEUED = 2,      /* posting returns before the work is done */
    DEVICE_DRY = 4          /* stores and computes nothing: for plans */
};

/* The purpose of a lane. If a device supports it, ready work of lanes that communicate comes first,
 * since other ranks wait for it. Work of lanes that save comes last. */
enum lane_kind { LANE_COMPUTES, LANE_COMMUNICATES, LANE_SAVES };

struct device_options {
    uint32_t index;     /* one of several devices, as the system counts them */
    bool is_shared;     /* an index above the number of devices wraps around */
    bool is_queued;     /* CPU: a thread for each lane; false: work is done when it is posted */
    bool has_no_graphs; /* batches are queued one by one */
    const void *custom; /* options of a device outside this folder */
};

/* The base of every back-end's struct. */
struct device {
    const struct device_ops *ops;
};
struct lane {
    const struct device_ops *ops;
    struct device *device;
    void *scratch; /* for the operations on this lane, 64-byte aligned; owned by the caller */
    size_t scratch_bytes;
};

/* A device's own memory, in bytes. */
struct device_room {
    uint64_t all, free; /* free: not allocated by any process */
    uint32_t devices;   /* with the same memory in this system, itself included */
};

/* Facts from the driver's management library; -1: not known. */
struct device_health {
    int64_t memory_errors; /* uncorrected errors since the driver was loaded */
    int64_t rows_failed;   /* 1: a row of its memory needs a spare one, and none can be used */
    int64_t rows_pending;  /* 1: the next reset replaces a row */
    int64_t bus_width, bus_width_max; /* lanes of PCIe */
    int64_t links, links_max;         /* to other devices: up; all */
    int64_t celsius;
    int64_t slowed; /* bits of enum device_slowed: the causes of low clocks at the moment */
    int64_t bus_generation, bus_generation_max; /* of PCIe; a GPU without work lowers the first */
    char driver[32];                            /* its version; "": not known */
};
enum device_slowed { DEVICE_SLOWED_HEAT = 1, DEVICE_SLOWED_POWER = 2, DEVICE_SLOWED_HARDWARE = 4 };

/* A point in a lane's work. Owned by the caller, zero before its first use. A device may keep data
 * in `event`, which it frees when it is closed. A mark that is set again means the later point. */
struct mark {
    struct lane *lane; /* NULL: nothing to wait for */
    uint64_t sequence;
    void *event;
    bool is_timed; /* set before its first use, for lane_elapsed() */
};

/* Host work of a lane. Returns 0 or an error of report.h, which becomes the lane's error. */
typedef int lane_fn(void *args);
#define LANE_ARGS_MAX 384 /* bytes that lane_call copies */

/* A back-end. The functions below call the slots, and have the asserts. */
struct device_ops {
    const char *name;
    uint32_t flags; /* of enum device_flag */
    /* ERR_UNAVAILABLE: the machine has no such device; ERR_MEMORY. The caller owns `out`. Closing
     * frees memory that is still allocated; close lanes before. */
    int (*open)(struct device **out, const struct device_options *options);
    void (*close)(struct device *device);
    /* 64-byte aligned, contents undefined. ERR_MEMORY. */
    int (*alloc)(struct device *device, void **out, size_t bytes, enum device_memory where);
    void (*free)(struct device *device, void *at);
    /* (optional) True if an address is in memory of this device, of either kind. With it, copies,
     * zeros and the arguments of operations are checked when they are posted. */
    bool (*owns)(struct device *device, const void *at);
    /* (optional) The size of its memory. Without it its memory is the host's. ERR_UNAVAILABLE. */
    int (*room)(struct device *device, struct device_room *out);
    /* (optional) 1 + the nearest NUMA node of the host's memory; 0, and the default: any. */
    uint32_t (*memory_node)(struct device *device);
    /* (optional) The hardware's name in its vendor's tools and the kernel's log. Owned by the
     * device. */
    const char *(*identity)(struct device *device);
    /* (optional) Writes known facts; other fields do not change. */
    void (*health)(struct device *device, struct device_health *out);
    /* (optional) Pins memory of another owner (PINNED) until unpin; before unpin the caller settles
     * all work queued with it. Without it, or if it fails (ERR_MEMORY, ERR_UNAVAILABLE), lanes copy
     * from and to that memory, too, but block the posting thread. */
    int (*pin)(struct device *device, void *at, size_t bytes, bool is_read_only);
    void (*unpin)(struct device *device, void *at);
    /* `name` is for threads and traces. Closing waits for queued work. ERR_BUSY: no thread;
     * ERR_MEMORY. */
    int (*lane_open)(struct device *device, struct lane **out, const char *name,
                     enum lane_kind kind);
    void (*lane_close)(struct lane *lane);
    void (*mark)(struct lane *lane, struct mark *mark);       /* all work queued so far */
    void (*wait)(struct lane *lane, const struct mark *mark); /* before work queued from here on */
    void (*copy)(struct lane *lane, void *to, const void *from, size_t bytes);
    void (*zero)(struct lane *lane, void *at, size_t bytes);
    /* Host work in the lane's order. With bytes > 0 the args are copied, otherwise the pointer is
     * passed. On a device with DEVICE_HOST_MEMORY the function may access the device's memory. */
    void (*call)(struct lane *lane, lane_fn *fn, const void *args, size_t bytes);
    /* Waits on the host until the mark is reached; NULL: for all queued work. */
    int (*settle)(struct lane *lane, const struct mark *mark);
    /* (optional) Seconds between two timed marks, by the device's clock; both are reached. Without
     * it the device keeps no times. ERR_UNAVAILABLE. */
    int (*elapsed)(double *out, const struct mark *from, const struct mark *to);
    /* (optional) The system's handle of the lane, for a library that queues on it. */
    void *(*native)(struct lane *lane);
    /* (optional) Begins or ends a batch. Work of a batch may be held back. If an earlier batch had
     * the same arguments, to the byte, it is queued at once. A mark, a wait, host work, settling
     * and a request for the system's handle come after held work. */
    void (*batch)(struct lane *lane, bool begins);
};

extern const struct device_ops device_cpu;
/* For plans: ON_DEVICE memory is addresses without memory, and posted work is dropped (dry.c).
 * device_find() does not return it. */
extern const struct device_ops device_dry;
/* "cpu", "cuda"; NULL: this program has no such device. */
const struct device_ops *device_find(const char *name);

int device_open(struct device **out, const struct device_ops *ops,
                const struct device_options *options);
void device_close(struct device *device); /* NULL is allowed */
int device_alloc(struct device *device, void **out, size_t bytes, enum device_memory where);
void device_free(struct device *device, void *at); /* NULL is allowed */

/* True also if the device cannot tell. */
bool device_owns(struct device *device, const void *at);
/* All zero if its memory is the host's. ERR_UNAVAILABLE. */
int device_room(struct device *device, struct device_room *out);
uint32_t device_memory_node(struct device *device);
const char *device_identity(struct device *device); /* "": none */
void device_health(struct device *device, struct device_health *out);
int device_pin(struct device *device, void *at, size_t bytes, bool is_read_only);
void device_unpin(struct device *device, void *at); /* also for memory that could not be pinned */

int lane_open(struct lane **out, struct device *device, const char *name, enum lane_kind kind);
void lane_close(struct lane *lane); /* NULL is allowed */
/* kernels_scratch_bytes gives the size. Do not call while work is queued. */
void lane_set_scratch(struct lane *lane, void *scratch, size_t bytes);

void lane_mark(struct lane *lane, struct mark *out);
void lane_wait(struct lane *lane, const struct mark *mark);
void lane_copy(struct lane *lane, void *to, const void *from, size_t bytes);
void lane_zero(struct lane *lane, void *at, size_t bytes);
void lane_call(struct lane *lane, lane_fn *fn, const void *args, size_t bytes);
/* A batch changes no result. It saves time if the same work is posted in each step. */
void lane_batch_begin(struct lane *lane);
void lane_batch_end(struct lane *lane);
/* NULL: none. Work that a library queues on it keeps the order of posted work. */
void *lane_native(struct lane *lane);
int lane_settle(struct lane *lane);
int lane_settle_mark(struct lane *lane, const struct mark *mark);
/* Do its lanes work at other times than the host's, which lane_elapsed() tells? */
bool device_keeps_time(const struct device *device);
int lane_elapsed(double *out, const struct mark *from, const struct mark *to);

#endif
