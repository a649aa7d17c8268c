/* bulk_handles.c - reads and writes another node's handles (peers/handles.h) over the bulk plane.
 *
 * A request names the handle in `save`. A PUT is written at its offset before it is answered, so
 * that the node's sync after the answers covers it. A repeated one, after a broken connection,
 * writes the same bytes at the same place, so HAVE need not track it. */
#include "ckptd/bulk/entered.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"

#include <stdlib.h>

static void stop_using(struct bulk_handle *opened)
{
    handles_used(opened->handles, opened->handle);
    opened->handle = NULL;
}

/* The handle is in use from now on, until an error or stop_using(). */
static int use_handle(struct bulk_handle *opened, const struct bulk_request *request, bool writes)
{
    struct handle *handle;
    ERR_TRY(handles_use(opened->handles, &handle, opened->who, request->save));
    opened->handle = handle;
    int error = writes ? handle_check_writer(handle) : 0;
    for (uint64_t at = 0; error == 0 && at < request->bytes; at += HANDLE_BLOCK_MAX) {
        uint64_t left = request->bytes - at;
        error = handle_check_range(handle, request->offset + at,
                                   left < HANDLE_BLOCK_MAX ? left : HANDLE_BLOCK_MAX);
    }
    if (error != 0)
        stop_using(opened);
    return error;
}

static int begin_opened(struct bulk_entered *entered, const struct bulk_request *request)
{
    return use_handle(&entered->opened, request, false);
}

static int block_opened(struct bulk_entered *entered, const struct bulk_request *request,
                        uint64_t offset, uint64_t bytes, void *room, const void **out)
{
    const struct bulk_handle *opened = &entered->opened;
    (void)request;
    *out = room;
    return storage_transfer(handle_storage(opened->handle, opened->storage), STORAGE_READ,
                            opened->handle->object, offset, room, (uint32_t)bytes);
}

static void end_opened(struct bulk_entered *entered)
{
    stop_using(&entered->opened);
}

static int put_opened(struct bulk_entered *entered, const struct bulk_request *request, void **to,
                      struct tls_stream *cut)
{
    struct bulk_handle *opened = &entered->opened;
    (void)cut; /* a repeated write is harmless */
    if (!opened->room)
        opened->room = aligned_alloc(STORAGE_ALIGN, BULK_BLOCK_BYTES);
    if (!opened->room)
        return report_error(ERR_MEMORY, NULL, "no memory for a block");
    *to = opened->room;
    return use_handle(opened, request, true);
}

static int came_opened(struct bulk_entered *entered, const struct bulk_request *request, int error)
{
    struct bulk_handle *opened = &entered->opened;
    if (error == 0)
        error = storage_transfer(handle_storage(opened->handle, opened->storage), STORAGE_WRITE,
                                 opened->handle->object, request->offset, opened->room,
                                 (uint32_t)request->bytes);
    stop_using(opened);
    return error;
}

static int ask_opened(struct bulk_entered *entered, const struct bulk_request *request,
                      struct bulk_answer *answer)
{
    (void)entered;
    (void)request;
    (void)answer; /* 0: send it again */
    return 0;
}

const struct bulk_ops opened_source = {.get_begin = begin_opened,
                                       .get_block = block_opened,
                                       .get_end = end_opened,
                                       .put_begin = put_opened,
                                       .put_end = came_opened,
                                       .ask = ask_opened};

void bulk_handle_close(struct bulk_handle *opened)
{
    free(opened->room);
}
