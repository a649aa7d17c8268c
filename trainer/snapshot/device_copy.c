/* device_copy.c - copies the state between a device and ckptd's memory (see device_copy.h). */
#include "trainer/snapshot/device_copy.h"
#include "kernels/device.h"
#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 16u /* under way; libckpt's pieces have at most 8 MiB */
#define BOUNCE_BYTES ((size_t)1 << 20)

struct device_copy {
    const struct state *state;
    struct kernels *kernels; /* NULL: ckptd compares no digests */
    void *scratch;           /* of the lane */
    uint64_t *sums;          /* [tensors,2], of the current save */
    uint64_t *host_sums;     /* PINNED, a copy on the host */
    bool *is_summed;         /* per tensor */
    struct lane *state_lane, *lane;
    struct mark ready;   /* on the state's lane: the state to save is complete */
    struct mark *copied; /* per slice, of the last save that copied it */
    uint32_t num_slices;
    struct piece {
        struct ckpt_place place;
        struct mark mark;
    } pieces[PIECES_MAX]; /* posted, not announced */
    uint32_t first, num;
    void *bounce;    /* PINNED; NULL until a load needs it */
    bool has_failed; /* the lane keeps an error: the next save gets a new lane */
    bool is_said;    /* the log says that memory could not be page-locked */
};

static size_t num_tensors(const struct device_copy *c)
{
    return NUM_STATE_PARTS * (size_t)c->num_slices;
}

static size_t sums_bytes(const struct device_copy *c)
{
    return num_tensors(c) * 2 * sizeof(*c->sums);
}

static int open_lane(struct lane **out, const struct device_copy *c)
{
    ERR_TRY(lane_open(out, c->state_lane->device, "snapshot", LANE_SAVES));
    if (c->kernels != NULL)
        lane_set_scratch(*out, c->scratch, KERNEL_DIGEST_SCRATCH_BYTES);
    return 0;
}

static int open_sums(struct device_copy *c)
{
    void *sums = NULL, *host = NULL;
    struct device *device = c->state_lane->device;
    if (c->kernels == NULL)
        return 0;
    int rc = device_alloc(device, &c->scratch, KERNEL_DIGEST_SCRATCH_BYTES, ON_DEVICE);
    if (rc == 0)
        rc = device_alloc(device, &sums, sums_bytes(c), ON_DEVICE);
    if (rc == 0)
        rc = device_alloc(device, &host, sums_bytes(c), PINNED);
    c->sums = sums;
    c->host_sums = host;
    return rc;
}

int device_copy_open(struct device_copy **out, const struct state *state, struct kernels *kernels)
{
    *out = NULL;
    if (state_is_on_host(state))
        return 0;
    struct device_copy *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for copies of the state");
    *c = (struct device_copy){.state = state,
                              .kernels = kernels,
                              .state_lane = state->lane,
                              .num_slices = state->num_slices};
    c->copied = calloc(c->num_slices + (size_t)1, sizeof(*c->copied));
    c->is_summed = calloc(num_tensors(c) + 1, sizeof(*c->is_summed));
    int rc = c->copied != NULL && c->is_summed != NULL
                 ? open_sums(c)
                 : report_error(ERR_MEMORY, NULL, "no memory for copies of the state");
    if (rc == 0)
        rc = open_lane(&c->lane, c);
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
    void *const all[] = {c->bounce, c->scratch, c->sums, c->host_sums};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        device_free(c->state_lane->device, all[i]);
    free(c->copied);
    free(c->is_summed);
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
    (void)lane_settle(c->lane); /* the lane keeps its error */
    device_unpin(c->lane->device, at);
}

/* ---- a load ---- */

/* Copies memory that the device does not know through a page-locked buffer. */
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

/* The memory node of the device's link. */
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
    struct lane *lane = NULL;
    ERR_TRY(open_lane(&lane, c));
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
    if (c->kernels != NULL)
        lane_zero(c->lane, c->sums, sums_bytes(c));
    memset(c->is_summed, 0, num_tensors(c) * sizeof(*c->is_summed));
    return 0;
}

/* Digests bytes of a tensor that were copied: whole rows, as ckptd cuts them. Posted after their
 * copies, so before the slice may be changed. */
static void digest_rows(struct device_copy *c, uint32_t tensor, uint64_t from_byte,
                        uint64_t end_byte)
{
    if (c->kernels == NULL || from_byte >= end_byte)
        return;
    struct kernel_digest of =
        state_digested(c->state, &c->state->slices[tensor % c->num_slices], tensor / c->num_slices);
    uint64_t row_bytes = of.width * kernel_dtype_bytes(of.dtype);
    if (from_byte % row_bytes != 0 || end_byte % row_bytes != 0)
        return;
    of.sum = c->sums + (size_t)tensor * 2;
    of.x = (const char *)of.x + from_byte;
    of.first += from_byte / row_bytes * of.stride;
    of.rows = (end_byte - from_byte) / row_bytes;
    kernel_digest(c->kernels, c->lane, &of);
    c->is_summed[tensor] = true;
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
    uint64_t first = UINT64_MAX;
    for (uint64_t next = 0;;) {
        while (c->num > ahead)
            ERR_TRY(announce_oldest(c, save));
        struct piece *piece = &c->pieces[(c->first + c->num) % PIECES_MAX];
        struct ckpt_place *place = &piece->place;
        place->size = sizeof(*place);
        ERR_TRY(ckpt_save_place(save, tensor, next, place));
        if (place->bytes == 0) {
            digest_rows(c, tensor, first, next);
            return 0;
        }
        first = first < place->from_byte ? first : place->from_byte;
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

void device_copy_hold_lane(struct device_copy *c, uint32_t slice, struct lane *lane)
{
    lane_wait(lane, &c->copied[slice]);
}

int device_copy_end(struct device_copy *c, struct ckpt_save *save, int rc)
{
    while (rc == 0 && c->num > 0)
        rc = announce_oldest(c, save);
    if (rc == 0 && c->kernels != NULL)
        lane_copy(c->lane, c->host_sums, c->sums, sums_bytes(c));
    int settled = lane_settle(c->lane);
    c->has_failed = settled != 0;
    c->first = c->num = 0;
    rc = rc != 0 ? rc : settled;
    for (uint32_t i = 0; rc == 0 && i < num_tensors(c); i++)
        if (c->is_summed[i])
            rc = ckpt_save_digest(save, i, c->host_sums + (size_t)i * 2);
    return rc;
}
