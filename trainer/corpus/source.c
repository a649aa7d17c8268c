/* source.c - lists the files of a corpus and unpacks them (see source.h).
 *
 * A stream reads a file into a buffer and unpacks it as the file's name says: with zlib's inflate
 * (also several members) or libzstd. A packed file that ends early is an error, not a short text.
 * Only this file uses zlib and libzstd. */
#include "trainer/corpus/source.h"

#include "proto/base/array.h"
#include "proto/base/report.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define PACKED_BYTES (256u << 10) /* of the buffer before the unpacker */
#define FILES_MAX (1u << 20)
#define FOLDERS_DEEP_MAX 32u

/* ---- names ---- */

enum packing { PACKING_NONE, PACKING_GZIP, PACKING_ZSTD };

static bool ends_with(const char *path, size_t length, const char *ending)
{
    size_t of_ending = strlen(ending);
    return length > of_ending && strncasecmp(path + length - of_ending, ending, of_ending) == 0;
}

static enum packing packing_of(const char *path, size_t *length)
{
    *length = strlen(path);
    enum packing packing = ends_with(path, *length, ".gz")    ? PACKING_GZIP
                           : ends_with(path, *length, ".zst") ? PACKING_ZSTD
                                                              : PACKING_NONE;
    *length -= packing == PACKING_GZIP ? 3 : packing == PACKING_ZSTD ? 4 : 0;
    return packing;
}

static const struct {
    const char *ending;
    enum values_form form;
} known_names[] = {{".jsonl", FORM_LINES}, {".ndjson", FORM_LINES}, {".json", FORM_JSON},
                   {".txt", FORM_TEXT},    {".text", FORM_TEXT},    {".md", FORM_TEXT}};

static bool is_known(const char *path, enum values_form *form)
{
    size_t length;
    packing_of(path, &length);
    *form = FORM_TEXT;
    for (size_t i = 0; i < sizeof known_names / sizeof known_names[0]; i++) {
        if (!ends_with(path, length, known_names[i].ending))
            continue;
        *form = known_names[i].form;
        return true;
    }
    return false;
}

bool source_is_taken(struct corpus_left_out *left_out, const char *path)
{
    enum values_form form;
    if (is_known(path, &form))
        return true;
    if (left_out->count < CORPUS_LEFT_OUT_NAMED)
        snprintf(left_out->names[left_out->count], sizeof left_out->names[0], "%s", path);
    left_out->count++;
    return false;
}

void corpus_log_left_out(const struct corpus_left_out *left_out)
{
    char names[sizeof left_out->names + 16] = "";
    size_t length = 0;
    for (uint32_t i = 0; i < CORPUS_LEFT_OUT_NAMED && i < left_out->count; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "",
                                   left_out->names[i]);
    if (left_out->count > 0)
        log_warn("data",
                 "files left out because their names are not those of text files: %" PRIu64
                 " (%s%s)",
                 left_out->count, names, left_out->count > CORPUS_LEFT_OUT_NAMED ? ", ..." : "");
}

/* ---- the list ---- */

static int no_memory(const char *path)
{
    return report_error(ERR_MEMORY, NULL, "no memory to read %s", path);
}

static int add_file(struct sources *sources, const char *path, const struct stat *status)
{
    struct source source = {.path = strdup(path), .changed = status->st_mtim};
    if (source.path == NULL)
        return no_memory(path);
    if (S_ISREG(status->st_mode))
        source.bytes = (uint64_t)status->st_size;
    is_known(path, &source.form);
    int result =
        sources->count < FILES_MAX
            ? array_reserve(&sources->list, &sources->room, sources->count, sizeof source)
            : report_error(ERR_INVALID, "join some of them", "over %u files to read", FILES_MAX);
    if (result != 0) {
        free(source.path);
        return result;
    }
    sources->bytes += source.bytes;
    sources->list[sources->count++] = source;
    return 0;
}

static int add_folder(struct sources *sources, const char *path, uint32_t depth);

static int add_entry(struct sources *sources, const char *folder, const char *name, uint32_t depth)
{
    struct stat status;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return report_error(ERR_INVALID, NULL, "a path is too long in %s", folder);
    if (stat(path, &status) != 0)
        return report_errno(ERR_IO, "could not read the attributes of the file", path);
    if (S_ISDIR(status.st_mode))
        return add_folder(sources, path, depth + 1);
    return S_ISREG(status.st_mode) && source_is_taken(&sources->left_out, path)
               ? add_file(sources, path, &status)
               : 0;
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* In the order of the bytes of their names, in any locale. */
static int by_bytes(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

static int add_folder(struct sources *sources, const char *path, uint32_t depth)
{
    struct dirent **entries;
    if (depth > FOLDERS_DEEP_MAX)
        return report_error(ERR_INVALID, NULL, "%s: more than %u nested folders", path,
                            FOLDERS_DEEP_MAX);
    int count = scandir(path, &entries, not_hidden, by_bytes), result = 0;
    if (count < 0)
        return report_errno(ERR_IO, "could not list the folder", path);
    for (int i = 0; i < count; i++) {
        if (result == 0)
            result = add_entry(sources, path, entries[i]->d_name, depth);
        free(entries[i]);
    }
    free(entries);
    return result;
}

int sources_add(struct sources *sources, const char *path)
{
    struct stat status = {0};
    uint32_t before = sources->count;
    if (strcmp(path, "-") == 0)
        return add_file(sources, path, &status);
    if (stat(path, &status) != 0)
        return report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "could not open the file",
                            path);
    if (!S_ISDIR(status.st_mode))
        return add_file(sources, path, &status);
    ERR_TRY(add_folder(sources, path, 0));
    if (sources->count == before)
        return report_error(ERR_NOT_FOUND,
                            "files of a corpus end in .txt, .text, .md, .jsonl, .ndjson or .json, "
                            "and then perhaps in .gz or .zst; .parquet: convert them by python -m "
                            "holdfast from-parquet",
                            "the folder %s has no file of text", path);
    return 0;
}

void sources_free(struct sources *sources)
{
    for (uint32_t i = 0; i < sources->count; i++)
        free(sources->list[i].path);
    free(sources->list);
    *sources = (struct sources){0};
}

/* ---- streams ---- */

struct stream {
    char *path;
    int fd;
    enum packing packing;
    z_stream zlib;
    bool is_inside;  /* within a member (zlib) or a frame (zstd) */
    bool has_member; /* zlib: zeros that follow are padding */
    ZSTD_DStream *zstd;
    char *packed;
    size_t packed_at, packed_bytes;
    uint64_t place;
};

static int bad_packing(const struct stream *stream, const char *what)
{
    return report_error(ERR_CORRUPT, "fetch the file again", "%s: %s", stream->path, what);
}

static int open_unpacker(struct stream *stream)
{
    if (stream->packing == PACKING_NONE)
        return 0;
    stream->packed = malloc(PACKED_BYTES);
    if (stream->packing == PACKING_ZSTD)
        stream->zstd = ZSTD_createDStream();
    if (stream->packed == NULL || (stream->packing == PACKING_ZSTD && stream->zstd == NULL) ||
        (stream->packing == PACKING_GZIP && inflateInit2(&stream->zlib, 15 + 16) != Z_OK))
        return no_memory(stream->path);
    if (stream->packing == PACKING_ZSTD) /* --long=31; the window is allocated as it fills */
        ZSTD_DCtx_setParameter(stream->zstd, ZSTD_d_windowLogMax,
                               ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    return 0;
}

int stream_open(struct stream **out, const char *path)
{
    size_t length;
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return no_memory(path);
    stream->fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    int result = stream->fd < 0 ? report_errno(ERR_IO, "could not open the file", path) : 0;
    stream->packing = packing_of(path, &length);
    stream->path = strdup(path);
    if (result == 0 && stream->path == NULL)
        result = no_memory(path);
    if (result == 0)
        result = open_unpacker(stream);
    if (result != 0) {
        stream_close(stream);
        return result;
    }
    *out = stream;
    return 0;
}

void stream_close(struct stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->fd >= 0)
        close(stream->fd);
    if (stream->packing == PACKING_GZIP)
        inflateEnd(&stream->zlib);
    ZSTD_freeDStream(stream->zstd);
    free(stream->packed);
    free(stream->path);
    free(stream);
}

uint64_t stream_place(const struct stream *stream)
{
    return stream->place;
}

static int read_file(struct stream *stream, char *out, size_t room, size_t *got)
{
    ssize_t bytes;
    do
        bytes = read(stream->fd, out, room);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0)
        return report_errno(ERR_IO, "could not read the file", stream->path);
    stream->place += (uint64_t)bytes;
    *got = (size_t)bytes;
    return 0;
}

/* One call of the unpacker: from the buffered packed bytes to *got bytes of text. */
static int unpack_gzip(struct stream *stream, char *out, size_t room, size_t *got)
{
    z_stream *zlib = &stream->zlib;
    while (stream->has_member && !stream->is_inside && stream->packed_at < stream->packed_bytes &&
           stream->packed[stream->packed_at] == '\0')
        stream->packed_at++;
    if (stream->packed_at == stream->packed_bytes && !stream->is_inside)
        return 0;
    zlib->next_in = (unsigned char *)stream->packed + stream->packed_at;
    zlib->avail_in = (unsigned)(stream->packed_bytes - stream->packed_at);
    zlib->next_out = (unsigned char *)out;
    zlib->avail_out = (unsigned)(room < INT_MAX ? room : INT_MAX);
    unsigned before = zlib->avail_out;
    stream->is_inside = true;
    int result = inflate(zlib, Z_NO_FLUSH);
    stream->packed_at = stream->packed_bytes - zlib->avail_in;
    *got = before - zlib->avail_out;
    if (result == Z_STREAM_END) { /* another member may follow */
        stream->is_inside = false;
        stream->has_member = true;
        result = inflateReset(zlib);
    }
    if (result == Z_MEM_ERROR)
        return no_memory(stream->path);
    return result == Z_OK || result == Z_BUF_ERROR ? 0 : bad_packing(stream, "not a gzip file");
}

static int unpack_zstd(struct stream *stream, char *out, size_t room, size_t *got)
{
    ZSTD_inBuffer in = {stream->packed, stream->packed_bytes, stream->packed_at};
    ZSTD_outBuffer to = {out, room, 0};
    size_t result = ZSTD_decompressStream(stream->zstd, &to, &in);
    stream->packed_at = in.pos;
    *got = to.pos;
    if (ZSTD_isError(result))
        return bad_packing(stream, ZSTD_getErrorName(result));
    stream->is_inside = result != 0;
    return 0;
}

int stream_read(struct stream *stream, char *out, size_t room, size_t *got)
{
    if (stream->packing == PACKING_NONE)
        return read_file(stream, out, room, got);
    for (*got = 0;;) {
        bool had_input = stream->packed_at < stream->packed_bytes;
        if (had_input || stream->is_inside)
            ERR_TRY(stream->packing == PACKING_GZIP ? unpack_gzip(stream, out, room, got)
                                                    : unpack_zstd(stream, out, room, got));
        if (*got > 0)
            return 0;
        if (stream->packed_at < stream->packed_bytes)
            continue;
        ERR_TRY(read_file(stream, stream->packed, PACKED_BYTES, &stream->packed_bytes));
        stream->packed_at = 0;
        if (stream->packed_bytes == 0)
            return stream->is_inside ? bad_packing(stream, "the packed file is cut off") : 0;
    }
}
