/* window.c - the order of the tensors in an image, and a save through an image that is a window.
 *
 * Where ckptd's memory does not hold a whole image of every rank, an image is a window over the
 * file: a ring of segments. ckptd says in the control page up to which byte it may be filled, and
 * moves that on as bytes reach the disk. So a copy waits for the disk, which is what keeps the
 * memory within its budget. Bytes leave the window only in the order of the file: a tensor that was
 * left out would hold up all after it for ever, which is an error here and not a hang.
 *
 * Bounds: without any progress of the window for WINDOW_WAIT_MS the save fails. A ckptd that dies
 * is noticed after WINDOW_SLEEP_MS. */
#include "clients/session.h"

#include "proto/report.h"

#include <string.h>

#define WINDOW_WAIT_MS 60000u
#define WINDOW_SLEEP_MS 100u
#define WINDOW_SPINS 64u /* looks before the first sleep: the disk may be nearly ready */

uint32_t ckpt_save_order(const struct ckpt *ckpt, uint32_t i)
{
    CHECK(i < ckpt->tensors.count);
    return ckpt->order != NULL ? ckpt->order[i] : i;
}

void window_begin(struct ckpt_save *save)
{
    struct ckpt *ckpt = save->ckpt;
    memset(ckpt->is_copied, 0, ckpt->tensors.count * sizeof *ckpt->is_copied);
    save->num_in_order = 0;
}

void window_copied(struct ckpt_save *save, uint32_t tensor)
{
    const struct ckpt *ckpt = save->ckpt;
    ckpt->is_copied[tensor] = true;
    while (save->num_in_order < ckpt->tensors.count &&
           ckpt->is_copied[ckpt->order[save->num_in_order]])
        save->num_in_order++;
}

/* May the window come to `tensor` at all? */
static int check_order(const struct ckpt_save *save, uint32_t tensor)
{
    const struct ckpt *ckpt = save->ckpt;
    uint32_t next = ckpt->order[save->num_in_order];
    if (next == tensor)
        return 0;
    return report_error(ERR_INVALID, "copy the tensors in the order that ckpt_save_order gives",
                        "tensor %s is beyond the window of %llu bytes that ckptd's memory allows, "
                        "and tensor %s before it is not copied yet",
                        ckpt->tensors.slices[tensor].tensor.name,
                        (unsigned long long)(ckpt->image_segments * ckpt->segment_bytes),
                        ckpt->tensors.slices[next].tensor.name);
}

/* Sleeps until the window changes. The text of a failure says what became of the save. */
static int wait_for_change(const struct ckpt_save *save, uint32_t changes, uint64_t deadline)
{
    const struct ckpt *ckpt = save->ckpt;
    arena_window_wait(ckpt->control, changes, WINDOW_SLEEP_MS);
    if (!session_alive(ckpt))
        return report_error(ERR_UNAVAILABLE, "the next save reconnects",
                            "ckptd went away during the save of step %llu",
                            (unsigned long long)save->step);
    if (session_clock_ns() >= deadline)
        return report_error(ERR_TIMEOUT, "see ckptd's log: does the disk still write?",
                            "ckptd's window did not move for %u ms in the save of step %llu",
                            WINDOW_WAIT_MS, (unsigned long long)save->step);
    return 0;
}

int window_wait(uint64_t *out_end, struct ckpt_save *save, uint32_t tensor, uint64_t image_byte)
{
    const struct ckpt *ckpt = save->ckpt;
    struct arena_window window;
    uint64_t deadline = 0;
    int error = 0;
    *out_end = UINT64_MAX;
    if (!ckpt->is_window)
        return 0;
    for (uint32_t looks = 0; error == 0; looks++) {
        arena_window_get(&window, ckpt->control);
        if (window.save != save->id)
            return report_error(ERR_ABORTED, "older checkpoints are unharmed",
                                "the save of step %llu was given up",
                                (unsigned long long)save->step);
        *out_end = window.end;
        if (window.end > image_byte)
            return 0;
        if (looks == 0)
            error = check_order(save, tensor);
        if (looks < WINDOW_SPINS)
            continue;
        if (deadline == 0)
            deadline = session_clock_ns() + WINDOW_WAIT_MS * 1000000ull;
        error = wait_for_change(save, window.changes, deadline);
    }
    return error;
}
