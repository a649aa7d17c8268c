/* files.h - the files of a Hugging Face folder, in a directory or in a bucket. */
#ifndef HOLDFAST_CLIENTS_HF_FILES_H
#define HOLDFAST_CLIENTS_HF_FILES_H

#include "storage/storage.h"

#include <stddef.h>
#include <stdint.h>

struct json_t; /* jansson's */

struct hf_folder {
    int fd;                 /* -1: it is in a bucket */
    struct storage *bucket; /* opened for reading */
};

struct hf_file {
    char name[256];
    int fd; /* -1: it is an object */
    struct storage *bucket;
    struct storage_object *object;
    uint64_t bytes;
};

/* `where`: a directory, or "s3://BUCKET/PREFIX". ERR_NOT_FOUND. */
int hf_folder_open(struct hf_folder *out, const char *where);
void hf_folder_close(struct hf_folder *folder);
/* `name` has no '/' in it. ERR_NOT_FOUND; ERR_IO: it is no regular file. */
int hf_file_open(struct hf_file *out, const struct hf_folder *folder, const char *name);
void hf_file_close(struct hf_file *file);
/* Reads all `bytes`, or returns an error; a failed read is not damage. Any thread. */
int hf_file_read(const struct hf_file *file, void *out, uint64_t start, uint32_t bytes);
/* Reads a small file as JSON; json_decref() it. ERR_NOT_FOUND; ERR_CORRUPT: it is longer than
 * `most`, or no object. */
int hf_folder_json(struct json_t **out, const struct hf_folder *folder, const char *name,
                   size_t most);

#endif
