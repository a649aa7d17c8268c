/* backend.h - the interface of a back-end of kernels.h: a table, and the base of its struct.
 * kernels.c chooses a back-end and keeps the lane's order; the back-end does the rest. */
#ifndef HOLDFAST_KERNELS_BACKEND_H
#define HOLDFAST_KERNELS_BACKEND_H

#include "kernels/device.h"
#include "kernels/kernels.h"

/* The base of every back-end's struct. */
struct kernels {
    const struct kernel_backend_ops *ops;
};

struct kernel_backend_ops {
    const char *name;
    /* The device's flags that this back-end needs, all of them. A back-end with DEVICE_HOST_MEMORY
     * runs in the lane's order on its thread: run() computes and returns when it is done. In other
     * back-ends run() queues on the lane and returns at once. */
    uint32_t device_flags;
    const char *device_name; /* the only device that it serves; NULL: any with these flags */
    int (*open)(struct kernels **out, const struct kernels_options *options);
    void (*close)(struct kernels *kernels);
    /* For messages, and part of the numeric identity. Borrowed. */
    const char *(*describe)(const struct kernels *kernels);
    /* See kernels_chain_products. */
    int (*chain_products)(struct kernels *kernels);
    /* (optional) Whether the device has float8 products. Default: yes. */
    bool (*has_float8)(const struct kernels *kernels);
    /* (optional) See kernels_choices. Default: the back-end has no choices. */
    char *(*choices)(struct kernels *kernels);
    void (*choose)(struct kernels *kernels, const char *choices, struct kernel_choices *out);
    /* Bytes of scratch that each lane needs so that every operation can run at these shapes. */
    size_t (*prepare)(const struct kernels *kernels, const struct kernel_shapes *shapes);
    /* `args`: the operation's struct of kernels.h; the caller may change it after the return. */
    void (*run)(struct kernels *kernels, struct lane *lane, enum kernel_op op, const void *args);
};
extern const struct kernel_backend_ops kernel_backend_cpu;
/* Defined in programs that link kernels/cuda/device.c: those that use device_cuda. */
extern const struct kernel_backend_ops kernel_backend_cuda __attribute__((weak));

/* Bytes of the arguments, to the end of their last field. */
size_t kernel_op_bytes(enum kernel_op op);

/* Checks a condition that a caller has to meet; kept in release builds, outside the inner loops. */
_Noreturn void kernels_require_failed(const char *file, int line, const char *condition);
#define REQUIRE(condition) \
    ((condition) ? (void)0 : kernels_require_failed(__FILE__, __LINE__, #condition))

#endif
