/* memfile.c - a stdio stream into memory that grows by doubling (fopencookie). */
#include "proto/base/memfile.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define FIRST_BYTES 4096u

struct memfile {
    char **out;
    size_t *out_bytes;
    size_t room;
};

static bool make_room(struct memfile *memfile, size_t bytes)
{
    size_t room = memfile->room;
    while (room < bytes)
        room *= 2;
    char *text = room > memfile->room ? realloc(*memfile->out, room) : *memfile->out;
    if (!text)
        return false;
    *memfile->out = text;
    memfile->room = room;
    return true;
}

/* stdio takes 0 as an error, which ferror() then reports. */
static ssize_t write_bytes(void *cookie, const char *data, size_t bytes)
{
    struct memfile *memfile = cookie;
    size_t end = *memfile->out_bytes + bytes;
    if (!make_room(memfile, end + 1))
        return 0;
    memcpy(*memfile->out + *memfile->out_bytes, data, bytes);
    (*memfile->out)[end] = '\0';
    *memfile->out_bytes = end;
    return (ssize_t)bytes;
}

static int forget(void *cookie)
{
    free(cookie);
    return 0;
}

FILE *memfile_open(char **out, size_t *out_bytes)
{
    struct memfile *memfile = malloc(sizeof *memfile);
    *out = calloc(1, FIRST_BYTES);
    *out_bytes = 0;
    FILE *file = NULL;
    if (memfile && *out) {
        *memfile = (struct memfile){out, out_bytes, FIRST_BYTES};
        file = fopencookie(memfile, "w",
                           (cookie_io_functions_t){.write = write_bytes, .close = forget});
    }
    if (!file) {
        free(memfile);
        free(*out);
        *out = NULL;
    }
    return file;
}

bool memfile_close(FILE *file)
{
    bool failed = ferror(file) != 0;
    return fclose(file) == 0 && !failed;
}
