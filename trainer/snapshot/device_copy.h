/* device_copy.h - copies the state between a device and ckptd's memory, without host memory.
 *
 * A save. The copy thread (copier.h) posts copies straight from the device's memory into ckptd's on
 * a separate lane, beside the next step's forward and backward. It announces each piece when its
 * mark is reached:
 *
 *     device_copy_begin(c);                          -- training: after the update
 *     device_copy_tensor(c, save, tensor, from);     -- the copy thread, for each
 *     device_copy_mark(c, slice);                    -- after the last of a slice
 *     device_copy_hold_lane(c, slice, compute);           -- training: before the slice is changed
 *     rc = device_copy_end(c, save, rc);             -- the copy thread: all is announced
 *
 * With kernels the device digests each tensor after its copies. ckptd digests the bytes that
 * arrived, and does not commit a save that a copy changed (ckpt_save_digest).
 *
 * So the update of a tensor waits, on its lane, only for the copies of that tensor. The host waits
 * for no copy. At most PIECES_MAX pieces are under way.
 *
 * A load. libckpt's copies out of ckptd's memory are posted on the same lane; other data goes
 * through a small buffer.
 *
 * ckptd places its memory on the device's NUMA node (device_memory_node). It is page-locked when it
 * is mapped (ckpt_hook_memory), and unlocked after all copies. If locking fails, copies still work,
 * but block the copy thread: logged once.
 *
 * Threads: all calls but device_copy_begin and device_copy_hold_lane are made by the owner of
 * libckpt's handle, one thread at a time. */
#ifndef HOLDFAST_TRAINER_DEVICE_COPY_H
#define HOLDFAST_TRAINER_DEVICE_COPY_H

#include "clients/ckpt.h"
#include "trainer/parallel/parallel.h"

struct device_copy;

/* *out is NULL if the host has the state. Then calls with it do nothing, and device_copy_tensor,
 * _mark, _hold and _end must not be called. kernels: the device's; NULL: ckptd compares no digests.
 * State and kernels are borrowed. ERR_MEMORY, ERR_BUSY. */
int device_copy_open(struct device_copy **out, const struct state *state, struct kernels *kernels);
/* Close the hooked handles of libckpt first. */
void device_copy_close(struct device_copy *copy);
int device_copy_hook(struct device_copy *copy, struct ckpt *ckpt);

/* Copies that follow come after all work posted on the state's lane so far. */
int device_copy_begin(struct device_copy *copy);
/* `tensor`: part * slices + slice. */
int device_copy_tensor(struct device_copy *copy, struct ckpt_save *save, uint32_t tensor,
                       const void *from);
void device_copy_mark(struct device_copy *copy, uint32_t slice);
void device_copy_hold_lane(struct device_copy *copy, uint32_t slice, struct lane *lane);
/* Ends the copies. rc 0: all pieces were announced; otherwise the save has to be aborted. */
int device_copy_end(struct device_copy *copy, struct ckpt_save *save, int rc);

#endif
