/* load_copy.c - copies boxes from a view of a shard to their slices.
 *
 * Bytes in ckptd's memory, or read from a store, are copied, by the user's copy if there is one.
 * For a ckptd on another node the view is empty at first. A box with long runs of bytes is received
 * straight into its place, so that its bytes move once. Boxes with short runs, and the user's
 * copies, are received into the view, in one piece with their neighbours, and copied from there.
 * All requests of a view are sent at once, so that the connections never wait for a copy.
 *
 * A damaged block is in its place before it is requested again: on an error the contents of the
 * slices are undefined (ckpt.h). */
#include "clients/load/load.h"

#include "proto/base/array.h"
#include "proto/base/report.h"

#include <stdlib.h>

/* Copying shorter runs is cheaper than requesting them: a request and its answer cost both ends as
 * much as a copy of about so many bytes. */
#define DIRECT_BYTES (256u << 10)

/* ---- copies ---- */

static void move_by_hook(void *user, void *to, const void *from, uint64_t bytes)
{
    struct load *load = user;
    const struct ckpt_memory_hooks *hooks = &load->ckpt->hooks;
    if (load->copy_error == 0)
        load->copy_error = hooks->copy(hooks->user, to, from, bytes);
}

/* The address of the saved box, which may begin before the view; only bytes within the view are
 * read. */
static const void *data_of(const struct shard_view *view, const struct load_item *item)
{
    return (const void *)((uintptr_t)view->data + item->data_byte - view->start);
}

static void copy_now(struct load *load, const struct shard_view *view, const struct load_item *item,
                     const struct box *part)
{
    const struct slice *wanted = &load->tensors.slices[item->slice];
    const struct box_mover mover = {.move = move_by_hook, .user = load};
    const void *from = data_of(view, item);
    void *to = load->tensors.data[item->slice];
    uint32_t dims = wanted->tensor.dims, size = dtype_bytes(wanted->tensor.dtype);
    if (load->ckpt->hooks.copy != NULL)
        box_copy_by(&mover, to, &wanted->box, from, &item->saved, part, dims, size);
    else
        box_copy(to, &wanted->box, from, &item->saved, part, dims, size);
}

/* ---- over the network ---- */

/* Requests bytes of the view, cut at the ends of its segments. */
static int add_gets(struct load *load, const struct shard_view *view, uint64_t at, uint64_t bytes,
                    unsigned char *to)
{
    struct load_fetch *fetch = &load->fetch;
    CHECK(at + bytes <= view->bytes);
    while (bytes > 0) {
        uint64_t inside = at % load->segment_bytes, left = load->segment_bytes - inside;
        uint64_t now = bytes < left ? bytes : left;
        ERR_TRY(
            array_reserve(&fetch->gets, &fetch->room_gets, fetch->num_gets, sizeof *fetch->gets));
        fetch->gets[fetch->num_gets++] =
            (struct bulk_get){.part = view->segments[at / load->segment_bytes],
                              .offset = inside,
                              .bytes = now,
                              .to = to};
        at += now;
        to += now;
        bytes -= now;
    }
    return 0;
}

struct straight {
    struct load *load;
    const struct shard_view *view;
};

static void get_run(void *user, void *to, const void *from, uint64_t bytes)
{
    const struct straight *straight = user;
    struct load *load = straight->load;
    uint64_t at = (uintptr_t)from - (uintptr_t)straight->view->data;
    if (load->copy_error == 0)
        load->copy_error = add_gets(load, straight->view, at, bytes, to);
}

/* Requests the gathered bytes of boxes, in one large request. */
static int get_gathered(struct load *load, const struct shard_view *view)
{
    struct load_fetch *fetch = &load->fetch;
    uint64_t begin = fetch->begin, end = fetch->end;
    fetch->begin = fetch->end = 0;
    if (begin == end)
        return 0;
    if (end - begin < BULK_LITTLE_BYTES)
        end = view->bytes - begin < BULK_LITTLE_BYTES ? view->bytes : begin + BULK_LITTLE_BYTES;
    return add_gets(load, view, begin, end - begin, view->data + begin);
}

/* Queues the box: it is copied when its bytes are in the view. */
static int gather(struct load *load, const struct shard_view *view, const struct load_item *item,
                  const struct box *part)
{
    struct load_fetch *fetch = &load->fetch;
    const struct tensor_meta *tensor = &load->tensors.slices[item->slice].tensor;
    uint64_t first, end;
    box_span(&first, &end, &item->saved, part, tensor->dims, dtype_bytes(tensor->dtype));
    first += item->data_byte - view->start;
    end += item->data_byte - view->start;
    ERR_TRY(
        array_reserve(&fetch->boxes, &fetch->room_boxes, fetch->num_boxes, sizeof *fetch->boxes));
    fetch->boxes[fetch->num_boxes++] = (struct load_box){*item, *part};
    if (first < fetch->begin || first > fetch->end + BULK_LITTLE_BYTES) {
        ERR_TRY(get_gathered(load, view));
        fetch->begin = first;
    }
    fetch->end = end > fetch->end ? end : fetch->end;
    return 0;
}

static void fetch_box(struct load *load, const struct shard_view *view,
                      const struct load_item *item, const struct box *part)
{
    const struct slice *wanted = &load->tensors.slices[item->slice];
    const struct straight straight = {load, view};
    const struct box_mover mover = {.move = get_run, .user = (void *)(uintptr_t)&straight};
    uint32_t dims = wanted->tensor.dims, size = dtype_bytes(wanted->tensor.dtype);
    if (load->ckpt->hooks.copy == NULL &&
        box_run_bytes(&wanted->box, &item->saved, part, dims, size) >= DIRECT_BYTES)
        box_copy_by(&mover, load->tensors.data[item->slice], &wanted->box, data_of(view, item),
                    &item->saved, part, dims, size);
    else if (load->copy_error == 0)
        load->copy_error = gather(load, view, item, part);
}

int load_copy_fetch(struct load *load, const struct shard_view *view, uint64_t at, uint64_t bytes,
                    void *to)
{
    struct load_fetch *fetch = &load->fetch;
    int error = add_gets(load, view, at, bytes, to);
    if (error == 0)
        error = remote_fetch(load->remote, fetch->gets, fetch->num_gets);
    fetch->num_gets = 0;
    return error;
}

/* Waits for all requested bytes; then copies the boxes. */
static int fetch_all(struct load *load, const struct shard_view *view)
{
    struct load_fetch *fetch = &load->fetch;
    ERR_TRY(get_gathered(load, view));
    ERR_TRY(remote_fetch(load->remote, fetch->gets, fetch->num_gets));
    for (uint32_t i = 0; i < fetch->num_boxes; i++)
        copy_now(load, view, &fetch->boxes[i].item, &fetch->boxes[i].part);
    return 0;
}

/* ---- both ---- */

void load_copy_box(struct load *load, const struct shard_view *view, const struct load_item *item,
                   const struct box *part)
{
    (view->segments != NULL ? fetch_box : copy_now)(load, view, item, part);
}

int load_copy_finish(struct load *load, const struct shard_view *view, int error)
{
    const struct ckpt_memory_hooks *hooks = &load->ckpt->hooks;
    struct load_fetch *fetch = &load->fetch;
    error = error != 0 ? error : load->copy_error;
    if (error == 0 && view->segments != NULL)
        error = fetch_all(load, view);
    fetch->num_gets = fetch->num_boxes = 0;
    fetch->begin = fetch->end = 0;
    int late = hooks->copied != NULL ? hooks->copied(hooks->user) : 0;
    if (error == 0)
        error = load->copy_error != 0 ? load->copy_error : late;
    return error;
}

void load_copy_free(struct load *load)
{
    free(load->fetch.gets);
    free(load->fetch.boxes);
}
