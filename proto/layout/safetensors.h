/* safetensors.h - the header of any safetensors file, also of other programs.
 *
 *   0    u64 little-endian: length of the JSON header
 *   8    JSON: {"name": {"dtype", "shape", "data_offsets"}, ..., "__metadata__": {...}}
 *   then the data; data_offsets count from here
 *
 * Everything is hostile: arithmetic is checked. As the stock library, it refuses a hole, an
 * overlap, and bytes after the last tensor. Shards of a checkpoint have more rules (shard.h).
 * Format: README of huggingface/safetensors. */
#ifndef HOLDFAST_PROTO_LAYOUT_SAFETENSORS_H
#define HOLDFAST_PROTO_LAYOUT_SAFETENSORS_H

#include "proto/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_HEADER_BYTES_MAX (16u << 20) /* some 100,000 tensors */
/* Limits of one header, or of the index of several files: a tensor has at most three objects and
 * arrays and eleven commas. At both limits `ckpt-cli import` needs 206 MiB (objects and zeros, 4.7
 * MB). */
#define SAFETENSORS_CONTAINERS_MAX (1u << 19)
#define SAFETENSORS_COMMAS_MAX (1u << 21)

struct json_t; /* jansson's */

struct safetensors_tensor {
    struct tensor_meta meta;
    uint64_t data_byte, bytes; /* from the start of the data */
};

struct safetensors {
    uint64_t data_start;
    uint32_t num_tensors;
    struct safetensors_tensor *tensors; /* in file order */
};

/* Length of the JSON from a file's first 8 bytes. ERR_CORRUPT. */
int safetensors_length(uint64_t *out, const void *first, uint64_t file_bytes);
/* `text`: the `length` bytes of JSON. ERR_CORRUPT names the tensor; also for an element type that
 * Holdfast does not have. ERR_MEMORY. */
int safetensors_parse(struct safetensors *out, const char *text, uint64_t length,
                      uint64_t file_bytes);
void safetensors_free(struct safetensors *header);

/* Parses a header, or an index, as a JSON object; NULL after an error. ERR_CORRUPT: *out_why has
 * the reason, and no text is set. ERR_MEMORY. */
int safetensors_read_json(struct json_t **out, const char *text, size_t bytes,
                          const char **out_why);
/* Returns ERR_CORRUPT. `name`: the invalid member or tensor, or NULL. */
int safetensors_fail(const char *message, const char *what, const char *name);
/* Parses one member of a header: exactly dtype, extents and data_offsets. */
bool safetensors_entry(enum dtype *out_dtype, uint64_t out_extent[LAYOUT_DIMS_MAX],
                       uint32_t *out_dims, uint64_t out_range[2], const struct json_t *entry);

#endif
