/* source.h - the files of a corpus: their list, their forms, and their unpacked bytes. Private to
 * trainer/corpus. Errors: ERR_NOT_FOUND, ERR_IO, ERR_INVALID, ERR_CORRUPT, ERR_MEMORY. */
#ifndef HOLDFAST_TRAINER_CORPUS_SOURCE_H
#define HOLDFAST_TRAINER_CORPUS_SOURCE_H

#include "trainer/corpus/corpus.h"
#include "trainer/corpus/values.h"

#include <time.h>

struct source {
    char *path;
    enum values_form form;
    uint64_t bytes; /* size on the disk; 0: not a regular file */
    struct timespec changed;
};
struct sources {
    struct source *list;
    uint32_t count, room;
    uint64_t bytes;
    struct corpus_left_out left_out;
};
/* True if a file in a folder has a name of a corpus. Otherwise it is counted as left out. */
bool source_is_taken(struct corpus_left_out *left_out, const char *path);
/* Adds a file, or all files of a folder. Free with sources_free(), also after an error. */
int sources_add(struct sources *sources, const char *path);
void sources_free(struct sources *sources);

/* The bytes of a file, unpacked. */
struct stream;
int stream_open(struct stream **out, const char *path);
void stream_close(struct stream *stream);
/* Reads at least one byte; *got is 0 at the end of the file. */
int stream_read(struct stream *stream, char *out, size_t room, size_t *got);
uint64_t stream_place(const struct stream *stream); /* bytes of the file that have been read */

#endif
