/* window.c - the order of the tensors in an image, and a save through an image that is a window.
 *
 * Where ckptd's memory does not hold a whole image of every rank, an image is a window over the
 * file: a ring of segments. The control page holds the byte up to which the rank may fill it; ckptd
 * raises it as bytes reach the disk. So a copy waits for the disk, which keeps the memory within
 * its budget. Bytes leave the window only in the order of the file. A tensor that was left out
 * blocks all later ones for ever, so the save returns an error instead of hanging.
 *
 * Bounds: a save fails when the window does not move for WINDOW_STALL_MS, or busy_ms if that is
 * longer: the disk hangs. It also fails when all its waits together exceed that time plus the time
 * of its image at WINDOW_RATE_MIN: the disk is too slow, and training is worth more than this save.
 * The rank notices a dead ckptd after WINDOW_SLEEP_MS. */
#include "clients/remote.h"
#include "clients/session.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <string.h>

#define WINDOW_STALL_MS 2000u
#define WINDOW_RATE_MIN (16u << 20) /* bytes per second, of one rank among many */
#define WINDOW_SLEEP_MS 100u
#define WINDOW_SPINS 64u /* polls before the first sleep: the disk may be nearly ready */

uint32_t ckpt_save_order(const struct ckpt *ckpt, uint32_t i)
{
    if (!session_handle_is_open(ckpt))
        return i;
    CHECK(i < ckpt->tensors.count);
    return ckpt->order != NULL ? ckpt->order[i] : i;
}

/* The next tensor in order is the first with bytes left to announce. */
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

/* May the window move to `tensor` at all? */
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

/* How long the save may wait for one move of the window. */
static uint64_t stall_ms(const struct ckpt *ckpt)
{
    return ckpt->busy_ms > WINDOW_STALL_MS ? ckpt->busy_ms : WINDOW_STALL_MS;
}

/* How long the save may wait for all moves together. */
static uint64_t total_ms(const struct ckpt *ckpt)
{
    return stall_ms(ckpt) + ckpt->image_bytes / (WINDOW_RATE_MIN / 1000);
}

/* Sleeps until the window changes, in a wait that began at `begun_ns`. After a failure the error
 * text tells the fate of the save. */
static int wait_for_change(const struct ckpt_save *save, uint32_t changes, uint64_t begun_ns)
{
    const struct ckpt *ckpt = save->ckpt;
    if (ckpt->remote != NULL)
        remote_window(save->ckpt, WINDOW_SLEEP_MS);
    else
        arena_window_wait(ckpt->control, changes, WINDOW_SLEEP_MS);
    uint64_t waited_ns = clock_ns() - begun_ns;
    uint64_t all_ms = (save->waited_ns + waited_ns) / 1000000;
    if (!session_alive(ckpt))
        return report_error(ERR_UNAVAILABLE, "the next save reconnects",
                            "the connection to ckptd was lost during the save of step %llu",
                            (unsigned long long)save->step);
    if (waited_ns / 1000000 >= stall_ms(ckpt))
        return report_error(ERR_TIMEOUT, "see ckptd's log, and check that the disk still writes",
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
    for (uint32_t polls = 0; error == 0; polls++) {
        if (polls == 0 && ckpt->remote != NULL && image_byte >= ckpt->control->window_end)
            remote_window(save->ckpt, 0);
        arena_window_get(&window, ckpt->control);
        if (window.save != save->id)
            return report_error(ERR_ABORTED, "older checkpoints are unharmed",
                                "the save of step %llu was aborted",
                                (unsigned long long)save->step);
        *out_end = window.end;
        if (window.end > image_byte)
            break;
        if (polls == 0)
            error = check_order(save, tensor);
        if (polls < WINDOW_SPINS)
            continue;
        if (begun_ns == 0)
            begun_ns = clock_ns();
        error = wait_for_change(save, window.changes, begun_ns);
    }
    if (begun_ns != 0)
        save->waited_ns += clock_ns() - begun_ns;
    return error;
}
