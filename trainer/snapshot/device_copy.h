/* device_copy.h - the state between a device and ckptd's memory, without memory of the host's.
 *
 * A save. The copy thread (copier.h) posts copies straight from the device's memory into ckptd's on
 * a lane of its own, beside the next step's forward and backward, and announces each piece when its
 * mark is reached:
 *
 *     device_copy_begin(c);                          -- training: after the update
 *     device_copy_tensor(c, save, tensor, from);     -- the copy thread, for each
 *     device_copy_mark(c, slice);                    -- behind the last of a slice
 *     device_copy_hold(c, slice, compute);           -- training: before the slice is changed
 *     rc = device_copy_end(c, save, rc);             -- the copy thread: all is announced
 *
 * With kernels the device digests each tensor behind its copies. ckptd digests what came, and
 * commits no save that a copy changed (ckpt_save_digest).
 *
 * So the update of a tensor waits, on its lane, for the copies of that tensor and for nothing else,
 * and the host waits for no copy. At most PIECES_MAX pieces are under way.
 *
 * A load. libckpt's copies out of ckptd's memory are posted on the same lane; what it reads from
 * elsewhere goes through a small buffer.
 *
 * ckptd places its memory on the device's NUMA node (device_memory_node). It is page-locked when it
 * is mapped (ckpt_hook_memory), and given back behind all copies. Where that is refused copies
 * still work, but hold the copy thread up: said once.
 *
 * Threads: save for device_copy_begin and device_copy_hold all is called by who owns the handle of
 * libckpt, one thread at a time. */
#ifndef HOLDFAST_TRAINER_DEVICE_COPY_H
#define HOLDFAST_TRAINER_DEVICE_COPY_H

#include "clients/ckpt.h"
#include "trainer/parallel/parallel.h"

struct device_copy;

/* *out is NULL where the host has the state, and then all that takes it does nothing, but
 * device_copy_tensor, _mark, _hold and _end may not be called. kernels: the device's; NULL: ckptd
 * compares nothing. State and kernels are borrowed. ERR_MEMORY, ERR_BUSY. */
int device_copy_open(struct device_copy **out, const struct state *state, struct kernels *kernels);
/* The hooked handles of libckpt are closed before. */
void device_copy_close(struct device_copy *copy);
int device_copy_hook(struct device_copy *copy, struct ckpt *ckpt);

/* What follows comes after all that the state's lane was given so far. */
int device_copy_begin(struct device_copy *copy);
/* `tensor`: part * slices + slice. */
int device_copy_tensor(struct device_copy *copy, struct ckpt_save *save, uint32_t tensor,
                       const void *from);
void device_copy_mark(struct device_copy *copy, uint32_t slice);
void device_copy_hold(struct device_copy *copy, uint32_t slice, struct lane *lane);
/* Nothing is copied any more. With rc 0 all was announced, else the save is to be aborted. */
int device_copy_end(struct device_copy *copy, struct ckpt_save *save, int rc);

#endif
