/* pwrite.c - the engine of last resort: pread, pwrite and fdatasync on a few threads.
 *
 * Used where io_uring is refused (containers, hardened kernels) or with options->force_pwrite. Its
 * depth on the device is the number of threads. It ignores registered buffers. */
#include "storage/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct pwrite_engine {
    struct engine base;
    struct workers *workers;
    char text[64];
};

static void perform_transfer(struct storage_request *request)
{
    int fd = engine_file_of(request)->fd;
    for (;;) {
        char *data = (char *)request->data + request->bytes_done;
        size_t bytes = request->bytes - request->bytes_done;
        off_t offset = (off_t)(request->offset + request->bytes_done);
        ssize_t moved = request->op == STORAGE_READ ? pread(fd, data, bytes, offset)
                                                    : pwrite(fd, data, bytes, offset);
        if (moved < 0) {
            if (!engine_try_again(request, errno))
                return;
        } else if (engine_advance(request, (uint32_t)moved)) {
            return;
        }
    }
}

static void perform(struct storage_request *request)
{
    if (request->op != STORAGE_SYNC) {
        if (engine_accept(request))
            perform_transfer(request);
    } else if (fdatasync(engine_file_of(request)->fd) != 0) {
        engine_set_errno(request, errno); /* final, EINTR too */
    }
}

static int pwrite_open(struct engine **out, const struct storage_options *options)
{
    uint32_t num_threads = options->num_threads ? options->num_threads : ENGINE_THREADS_DEFAULT;
    if (num_threads > ENGINE_THREADS_MAX)
        return report_error(ERR_INVALID, NULL, "%u storage threads are over the limit of %u",
                            num_threads, ENGINE_THREADS_MAX);
    struct pwrite_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the pwrite engine");
    engine->base.ops = &engine_pwrite;
    int error = workers_open(&engine->workers, num_threads, "hf-pwrite", perform);
    if (error != 0) {
        free(engine);
        return error;
    }
    snprintf(engine->text, sizeof(engine->text), "%u pwrite threads", num_threads);
    *out = &engine->base;
    return 0;
}

static void pwrite_close(struct engine *base)
{
    struct pwrite_engine *engine = (struct pwrite_engine *)base;
    workers_close(engine->workers);
    free(engine);
}

static int pwrite_register_buffers(struct engine *base, const struct iovec *buffers, uint32_t count)
{
    (void)base, (void)buffers, (void)count;
    return 0;
}

static void pwrite_replace_buffer(struct engine *base, uint32_t index, const struct iovec *buffer)
{
    (void)base, (void)index, (void)buffer;
}

static void pwrite_submit(struct engine *base, struct storage_request *request)
{
    workers_submit(((struct pwrite_engine *)base)->workers, request);
}

static const char *pwrite_describe(struct engine *base)
{
    return ((struct pwrite_engine *)base)->text;
}

const struct engine_ops engine_pwrite = {
    .open = pwrite_open,
    .close = pwrite_close,
    .register_buffers = pwrite_register_buffers,
    .replace_buffer = pwrite_replace_buffer,
    .submit = pwrite_submit,
    .describe = pwrite_describe,
};
