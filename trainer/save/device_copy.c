/* device_copy.c - the state between a device and ckptd's memory (see device_copy.h). */
#include "trainer/save/device_copy.h"
#include "kernels/device.h"
#include "proto/report.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 16u /* under way; libckpt's pieces have at most 8 MiB */
#define BOUNCE_BYTES ((size_t)1 << 20)

struct device_copy {
    struct lane *state_lane, *lane;
    struct mark ready;   /* of the state's lane: the state to be saved */
    struct mark *copied; /* per slice, of the last save that copied it */
    uint32_t num_slices;
    struct piece {
        struct ckpt_place place;
        struct mark mark;
    } pieces[PIECES_MAX]; /* posted and not announced */
    uint32_t first, num;
    void *bounce;    /* PINNED; NULL until a load needs it */
    bool has_failed; /* the lane keeps an error: the next save gets another */
    bool is_said;    /* that memory could not be page-locked */
};

int device_copy_open(struct device_copy **out, const struct state *state)
{
    *out = NULL;
    if (state_is_on_host(state))
        return 0;
    struct device_copy *c = calloc(1, sizeof(*c));
    struct mark *copied = calloc(state->num_slices + (size_t)1, sizeof(*copied));
    if (c == NULL || copied == NULL) {
        free(c);
        free(copied);
        return report_error(ERR_MEMORY, NULL, "no memory for copies of the state");
    }
    *c = (struct device_copy){
        .state_lane = state->lane, .copied = copied, .num_slices = state->num_slices};
    int rc = lane_open(&c->lane, state->lane->device, "snapshot");
    if (rc == 0)
        *out = c;
    else
        device_copy_close(c);
    return rc;
}

void device_copy_close(struct device_copy *c)
{
    if (c == NULL)
        return;
    lane_close(c->lane);
    device_free(c->state_lane->device, c->bounce);
    free(c->copied);
    free(c);
}

/* ---- ckptd's memory ---- */

static void came(void *user, void *at, uint64_t bytes, bool is_writable)
{
    struct device_copy *c = user;
    if (device_pin(c->lane->device, at, bytes, !is_writable) == 0)
        return;
    if (!c->is_said)
        log_warn("checkpoint", "copies from and to ckptd's memory are slow: %s", report_line());
    report_clear();
    c->is_said = true;
}

static void goes(void *user, void *at, uint64_t bytes)
{
    struct device_copy *c = user;
    (void)bytes;
    (void)lane_settle(c->lane); /* it keeps its error */
    device_unpin(c->lane->device, at);
}

/* ---- a load ---- */

/* What the device does not know: by a buffer that it does. */
static int copy_by_bounce(struct device_copy *c, char *to, const char *from, size_t bytes)
{
    if (c->bounce == NULL)
        ERR_TRY(device_alloc(c->lane->device, &c->bounce, BOUNCE_BYTES, PINNED));
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < BOUNCE_BYTES ? bytes - done : BOUNCE_BYTES;
        ERR_TRY(lane_settle(c->lane)); /* the buffer is free */
        memcpy(c->bounce, from + done, n);
        lane_copy(c->lane, to + done, c->bounce, n);
    }
    return 0;
}

static int load_copy(void *user, void *to, const void *from, uint64_t bytes)
{
    struct device_copy *c = user;
    if (!device_owns(c->lane->device, from))
        return copy_by_bounce(c, to, from, bytes);
    lane_copy(c->lane, to, from, bytes);
    return 0;
}

static int load_copied(void *user)
{
    struct device_copy *c = user;
    return lane_settle(c->lane);
}

/* Of the device's memory node: where its link ends. */
static uint32_t node_of(const struct device_copy *c)
{
    return c != NULL ? device_memory_node(c->lane->device) : 0;
}

int device_copy_hook(struct device_copy *c, struct ckpt *ckpt)
{
    struct ckpt_memory_hooks hooks = {.size = sizeof(hooks),
                                      .came = came,
                                      .goes = goes,
                                      .copy = load_copy,
                                      .copied = load_copied,
                                      .user = c,
                                      .memory_node = node_of(c)};
    return c != NULL ? ckpt_hook_memory(ckpt, &hooks) : 0;
}

/* ---- a save ---- */

/* A lane keeps its error until it is closed. */
static int renew_lane(struct device_copy *c)
{
    struct device *device = c->lane->device;
    struct lane *lane = NULL;
    ERR_TRY(lane_open(&lane, device, "snapshot"));
    lane_close(c->lane);
    c->lane = lane;
    for (uint32_t i = 0; i < c->num_slices; i++)
        c->copied[i].lane = NULL;
    for (uint32_t i = 0; i < PIECES_MAX; i++)
        c->pieces[i].mark.lane = NULL;
    c->has_failed = false;
    return 0;
}

int device_copy_begin(struct device_copy *c)
{
    if (c == NULL)
        return 0;
    if (c->has_failed)
        ERR_TRY(renew_lane(c));
    lane_mark(c->state_lane, &c->ready);
    lane_wait(c->lane, &c->ready);
    return 0;
}

static int announce_oldest(struct device_copy *c, struct ckpt_save *save)
{
    const struct piece *piece = &c->pieces[c->first];
    c->first = (c->first + 1) % PIECES_MAX;
    c->num--;
    ERR_TRY(lane_settle_mark(c->lane, &piece->mark));
    return ckpt_save_announce(save, &piece->place);
}

int device_copy_tensor(struct device_copy *c, struct ckpt_save *save, uint32_t tensor,
                       const void *from)
{
    uint32_t ahead = ckpt_save_is_window(save) ? 0 : PIECES_MAX - 1;
    for (uint64_t next = 0;;) {
        while (c->num > ahead)
            ERR_TRY(announce_oldest(c, save));
        struct piece *piece = &c->pieces[(c->first + c->num) % PIECES_MAX];
        struct ckpt_place *place = &piece->place;
        place->size = sizeof(*place);
        ERR_TRY(ckpt_save_place(save, tensor, next, place));
        if (place->bytes == 0)
            return 0;
        lane_copy(c->lane, place->to, (const char *)from + place->from_byte, place->bytes);
        lane_mark(c->lane, &piece->mark);
        next = place->from_byte + place->bytes;
        c->num++;
    }
}

void device_copy_mark(struct device_copy *c, uint32_t slice)
{
    lane_mark(c->lane, &c->copied[slice]);
}

void device_copy_hold(struct device_copy *c, uint32_t slice, struct lane *lane)
{
    lane_wait(lane, &c->copied[slice]);
}

int device_copy_end(struct device_copy *c, struct ckpt_save *save, int rc)
{
    while (rc == 0 && c->num > 0)
        rc = announce_oldest(c, save);
    int settled = lane_settle(c->lane);
    c->has_failed = settled != 0;
    c->first = c->num = 0;
    return rc != 0 ? rc : settled;
}
