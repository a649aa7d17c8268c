/* window.c - the order of the tensors in an image, and a save through an image that is a window.
 *
 * Where ckptd's memory does not hold a whole image of every rank, an image is a window over the
 * file: a ring of segments. ckptd says in the control page up to which byte it may be filled, and
 * moves that on as bytes reach the disk. So a copy waits for the disk, which is what keeps the
 * memory within its budget. Bytes leave the window only in the order of the file: a tensor that was
 * left out would hold up all after it for ever, which is an error here and not a hang.
 *
 * Bounds: a save fails that waits for one move of the window longer than WINDOW_STALL_MS, or
 * busy_ms where the rank may wait longer: the disk hangs. So does one that has waited, all waits
 * together, longer than that and than its image takes at WINDOW_RATE_MIN: the disk crawls, and
 * training is worth more than this save. A ckptd that dies is noticed after WINDOW_SLEEP_MS. */
#include "clients/remote.h"
#include "clients/session.h"

#include "proto/base/report.h"

#include <string.h>

#define WINDOW_STALL_MS 2000u
#define WINDOW_RATE_MIN (16u << 20) /* bytes per second, of one rank among many */
#define WINDOW_SLEEP_MS 100u
#define WINDOW_SPINS 64u /* looks before the first sleep: the disk may be nearly ready */

uint32_t ckpt_save_order(const struct ckpt *ckpt, uint32_t i)
{
    if (!session_handle_is_open(ckpt))
        return i;
    CHECK(i < ckpt->tensors.count);
    return ckpt->order != NULL ? ckpt->order[i] : i;
}

/* The next tensor of the order is the first of which something is left. */
static void skip_announced(struct ckpt_save *save)
{
    const struct ckpt *ckpt = save->ckpt;
    while (save->num_in_order < ckpt->tensors.count &&
           ckpt->left[ckpt->order[save->num_in_order]] == 0)
        save->num_in_order++;
}

void window_begin(struct ckpt_save *save)
{
    struct ckpt *ckpt = save->ckpt;
    memset(ckpt->left, 0, ckpt->tensors.count * sizeof *ckpt->left);
    for (uint32_t i = 0; i < ckpt->num_items; i++)
        ckpt->left[ckpt->items[i].tensor] += ckpt->items[i].bytes;
    save->num_in_order = 0;
    save->waited_ns = 0;
    skip_announced(save);
}

void window_announced(struct ckpt_save *save, uint32_t tensor, uint64_t bytes)
{
    save->ckpt->left[tensor] -= bytes;
    if (save->ckpt->left[tensor] == 0)
        skip_announced(save);
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

/* How long the save may wait for one move. */
static uint64_t stall_ms(const struct ckpt *ckpt)
{
    return ckpt->busy_ms > WINDOW_STALL_MS ? ckpt->busy_ms : WINDOW_STALL_MS;
}

/* And for all of them. */
static uint64_t total_ms(const struct ckpt *ckpt)
{
    return stall_ms(ckpt) + ckpt->image_bytes / (WINDOW_RATE_MIN / 1000);
}

/* Sleeps until the window changes, in a wait that began at `begun_ns`. The text of a failure says
 * what became of the save. */
static int wait_for_change(const struct ckpt_save *save, uint32_t changes, uint64_t begun_ns)
{
    const struct ckpt *ckpt = save->ckpt;
    if (ckpt->remote != NULL)
        remote_window(save->ckpt, WINDOW_SLEEP_MS);
    else
        arena_window_wait(ckpt->control, changes, WINDOW_SLEEP_MS);
    uint64_t waited_ns = session_clock_ns() - begun_ns;
    uint64_t all_ms = (save->waited_ns + waited_ns) / 1000000;
    if (!session_alive(ckpt))
        return report_error(ERR_UNAVAILABLE, "the next save reconnects",
                            "ckptd went away during the save of step %llu",
                            (unsigned long long)save->step);
    if (waited_ns / 1000000 >= stall_ms(ckpt))
        return report_error(ERR_TIMEOUT, "see ckptd's log: does the disk still write?",
                            "ckptd's window did not move for %llu ms in the save of step %llu",
                            (unsigned long long)stall_ms(ckpt), (unsigned long long)save->step);
    if (all_ms >= total_ms(ckpt))
        return report_error(ERR_TIMEOUT, "give ckptd more memory, or the store a faster disk",
                            "the disk is too slow: the save of step %llu waited %llu ms for room "
                            "in its window",
                            (unsigned long long)save->step, (unsigned long long)all_ms);
    return 0;
}

int window_wait(uint64_t *out_end, struct ckpt_save *save, uint32_t tensor, uint64_t image_byte)
{
    const struct ckpt *ckpt = save->ckpt;
    struct arena_window window;
    uint64_t begun_ns = 0;
    int error = 0;
    *out_end = UINT64_MAX;
    if (!ckpt->is_window)
        return 0;
    for (uint32_t looks = 0; error == 0; looks++) {
        if (looks == 0 && ckpt->remote != NULL && image_byte >= ckpt->control->window_end)
            remote_window(save->ckpt, 0);
        arena_window_get(&window, ckpt->control);
        if (window.save != save->id)
            return report_error(ERR_ABORTED, "older checkpoints are unharmed",
                                "the save of step %llu was given up",
                                (unsigned long long)save->step);
        *out_end = window.end;
        if (window.end > image_byte)
            break;
        if (looks == 0)
            error = check_order(save, tensor);
        if (looks < WINDOW_SPINS)
            continue;
        if (begun_ns == 0)
            begun_ns = session_clock_ns();
        error = wait_for_change(save, window.changes, begun_ns);
    }
    if (begun_ns != 0)
        save->waited_ns += session_clock_ns() - begun_ns;
    return error;
}
