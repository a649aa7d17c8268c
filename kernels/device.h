/* device.h - memory of a device, and lanes: order of work on it.
 *
 * A lane is a queue: what is posted on one lane happens in the order of posting. Lanes do not wait
 * for each other unless told so: a mark notes all that a lane has been given so far, and another
 * lane that waits for the mark begins nothing more before that is done.
 *
 *     lane_copy(copies, device_at, pinned_at, bytes);
 *     lane_mark(copies, &mark);
 *     lane_wait(compute, &mark);            queued as well: the caller goes on
 *     kernel_add(kernels, compute, &args);  kernels.h
 *     ERR_TRY(lane_settle(compute));        here the caller waits
 *
 * Memory: ON_DEVICE is for what runs on lanes; the host neither reads nor writes it. PINNED is for
 * both: the host may touch it when no lane is about to (after lane_settle, or in lane_call);
 * device_pin() makes such memory of somebody else's.
 * On the CPU device both are ordinary memory and the host may touch all of it; the device that the
 * tests have does not allow it.
 *
 * Errors: posting returns nothing. A lane keeps the first error of what ran on it, drops all that
 * comes after it (marks are still reached, so nobody waits for ever), and lane_settle returns it,
 * with its text of report.h, until the lane is closed.
 *
 * Threads: each lane belongs to one posting thread. A device may be used by many. */
#ifndef HOLDFAST_KERNELS_DEVICE_H
#define HOLDFAST_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum device_memory { ON_DEVICE, PINNED };

/* What a device has beyond the least; the core asks for these, not for names. */
enum device_flag {
    DEVICE_HOST_MEMORY = 1, /* host threads compute on it: the CPU's kernels serve this device */
    DEVICE_QUEUED = 2,      /* posting returns before the work is done */
    DEVICE_DRY = 4          /* stores and computes nothing: for plans */
};

/* What a lane is for. Of the work that is ready a device that can begins with that of lanes which
 * communicate, as other ranks wait for it. It ends with that of lanes which save. */
enum lane_kind { LANE_COMPUTES, LANE_COMMUNICATES, LANE_SAVES };

struct device_options {
    uint32_t index;     /* which of several, as the system counts them */
    bool is_shared;     /* where there are fewer, counting begins anew */
    bool is_queued;     /* CPU: a thread for each lane; false: work is done when it is posted */
    bool has_no_graphs; /* batches are queued one by one */
    const void *custom; /* what a device outside this folder wants to be told */
};

/* Head of every back-end's own struct. */
struct device {
    const struct device_ops *ops;
};
struct lane {
    const struct device_ops *ops;
    struct device *device;
    void *scratch; /* for the operations on this lane, 64-byte aligned; the caller's memory */
    size_t scratch_bytes;
};

/* Memory of a device's own, in bytes. */
struct device_room {
    uint64_t all, free; /* free: what may still be taken, by whomever */
    uint32_t devices;   /* like it in this system, itself included */
};

/* What the driver's own management says of a device; -1: it does not say. */
struct device_health {
    int64_t memory_errors; /* that were not corrected, since the driver was loaded */
    int64_t rows_failed;  /* 1: a row of its memory should be replaced by a spare one, and cannot */
    int64_t rows_pending; /* 1: the next reset does so */
    int64_t bus_width, bus_width_max; /* lanes of PCIe */
    int64_t links, links_max;         /* to other devices, that are up; of so many */
    int64_t celsius;
    int64_t slowed; /* of enum device_slowed: why its clocks are low at the moment */
};
enum device_slowed { DEVICE_SLOWED_HEAT = 1, DEVICE_SLOWED_POWER = 2, DEVICE_SLOWED_HARDWARE = 4 };

/* A point in a lane's work. The caller's, zero before its first use; a device may keep something
 * of its own in `event`, which it frees when it is closed. Used again, it means the later point. */
struct mark {
    struct lane *lane; /* NULL: nothing to wait for */
    uint64_t sequence;
    void *event;
};

/* Host work of a lane. Returns 0 or an error of report.h, which becomes the lane's. */
typedef int lane_fn(void *args);
#define LANE_ARGS_MAX 384 /* bytes that lane_call copies */

/* A back-end. Slots are called through the functions below, which hold the asserts. */
struct device_ops {
    const char *name;
    uint32_t flags; /* of enum device_flag */
    /* ERR_UNAVAILABLE: no such device here; ERR_MEMORY. `out` belongs to the caller. Closing frees
     * memory that is still allocated; lanes are closed before. */
    int (*open)(struct device **out, const struct device_options *options);
    void (*close)(struct device *device);
    /* 64-byte aligned, contents undefined. ERR_MEMORY. */
    int (*alloc)(struct device *device, void **out, size_t bytes, enum device_memory where);
    void (*free)(struct device *device, void *at);
    /* (optional) Whether an address is in memory of this device, of either kind. Where it is there,
     * copies, zeros and the arguments of operations are checked when they are posted. */
    bool (*owns)(struct device *device, const void *at);
    /* (optional) How much memory it has. Without it its memory is the host's. ERR_UNAVAILABLE. */
    int (*room)(struct device *device, struct device_room *out);
    /* (optional) 1 + the NUMA node of the host's memory that is nearest; 0, and without it: any. */
    uint32_t (*memory_node)(struct device *device);
    /* (optional) Which piece of hardware it is, as its maker's tools and the kernel's log name it.
     * The device's memory. */
    const char *(*identity)(struct device *device);
    /* (optional) Writes what it knows; the rest stays. */
    void (*health)(struct device *device, struct device_health *out);
    /* (optional) Memory that somebody else has becomes PINNED, until unpin, whose caller has
     * settled all that is queued with it. Without it, or when it fails (ERR_MEMORY,
     * ERR_UNAVAILABLE), lanes copy from and to that memory, too, but hold up who posts. */
    int (*pin)(struct device *device, void *at, size_t bytes, bool is_read_only);
    void (*unpin)(struct device *device, void *at);
    /* `name` is for people (threads, traces). Closing waits for what is queued. ERR_BUSY: no
     * thread; ERR_MEMORY. */
    int (*lane_open)(struct device *device, struct lane **out, const char *name,
                     enum lane_kind kind);
    void (*lane_close)(struct lane *lane);
    void (*mark)(struct lane *lane, struct mark *mark);       /* all queued so far */
    void (*wait)(struct lane *lane, const struct mark *mark); /* before what is queued from here */
    void (*copy)(struct lane *lane, void *to, const void *from, size_t bytes);
    void (*zero)(struct lane *lane, void *at, size_t bytes);
    /* Host work in the lane's order. With bytes > 0 the args are copied, else the pointer passes
     * as it is. On a device with DEVICE_HOST_MEMORY the function may touch the device's memory. */
    void (*call)(struct lane *lane, lane_fn *fn, const void *args, size_t bytes);
    /* The host waits until the mark is reached, or for all that is queued when it is NULL. */
    int (*settle)(struct lane *lane, const struct mark *mark);
    /* (optional) The system's own handle of the lane, for a library that queues on it. */
    void *(*native)(struct lane *lane);
    /* (optional) Between its beginning and its end what is posted may be held back, and is queued
     * at once where the same was before, to the byte of its arguments. A mark, a wait, host work,
     * settling and what asks for the system's handle come behind what is held. */
    void (*batch)(struct lane *lane, bool begins);
};

extern const struct device_ops device_cpu;
/* ON_DEVICE is addresses without memory; nothing that is posted happens (dry.c). For plans: no name
 * finds it. */
extern const struct device_ops device_dry;
/* "cpu", "cuda"; NULL: there is no such device in this program. */
const struct device_ops *device_find(const char *name);

int device_open(struct device **out, const struct device_ops *ops,
                const struct device_options *options);
void device_close(struct device *device); /* NULL is none */
int device_alloc(struct device *device, void **out, size_t bytes, enum device_memory where);
void device_free(struct device *device, void *at); /* NULL is none */

/* True where the device cannot tell. */
bool device_owns(struct device *device, const void *at);
/* All zero where its memory is the host's. ERR_UNAVAILABLE. */
int device_room(struct device *device, struct device_room *out);
uint32_t device_memory_node(struct device *device);
const char *device_identity(struct device *device); /* "": it has none */
void device_health(struct device *device, struct device_health *out);
int device_pin(struct device *device, void *at, size_t bytes, bool is_read_only);
void device_unpin(struct device *device, void *at); /* also of what could not be pinned */

int lane_open(struct lane **out, struct device *device, const char *name, enum lane_kind kind);
void lane_close(struct lane *lane); /* NULL is none */
/* kernels_scratch_bytes says how much. Not while work is queued. */
void lane_set_scratch(struct lane *lane, void *scratch, size_t bytes);

void lane_mark(struct lane *lane, struct mark *out);
void lane_wait(struct lane *lane, const struct mark *mark);
void lane_copy(struct lane *lane, void *to, const void *from, size_t bytes);
void lane_zero(struct lane *lane, void *at, size_t bytes);
void lane_call(struct lane *lane, lane_fn *fn, const void *args, size_t bytes);
/* A batch changes no result. Pays where the same is posted step after step. */
void lane_batch_begin(struct lane *lane);
void lane_batch_end(struct lane *lane);
/* NULL: it has none. What a library queues on it is ordered like what is posted. */
void *lane_native(struct lane *lane);
int lane_settle(struct lane *lane);
int lane_settle_mark(struct lane *lane, const struct mark *mark);

#endif
