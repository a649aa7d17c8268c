/* shard.h - the file that one rank writes: a genuine safetensors file with checksums.
 *
 *   0            u64 little-endian: length of the JSON header (data_start - 8)
 *   8            JSON header, padded with spaces so that data_start is a multiple of 4096
 *   data_start   tensors, by descending element size then name, back to back
 *   table_start  tensor `__block_checksums__` (U8): a u64 per block, then zeros that make the file
 *                a multiple of 4096
 *
 * A block is 1 MiB of the file, header included; the last block ends at table_start. An entry is
 * checksum_block() with the shard's identity. The table covers all before it; the manifest holds
 * the plain XXH3-64 of the table, and the header's own hash. Format of safetensors: its README
 * (huggingface/safetensors).
 *
 * __metadata__ (all strings): "format"="holdfast-shard", "version"="1", "run", "step", "attempt",
 * "nonce", "shard" ("0"-based index), "shards", "data_start", per tensor "slice.<name>" =
 * "offset,...;shape,..." in decimal, and last "header_hash": 16 hex digits, the XXH3-64 of the
 * file's bytes before those digits. It is the last member of the header, so it detects any change
 * of a header before a block is read. Readers still treat every field as hostile: checked
 * arithmetic, offsets sorted and contiguous, no hole, no overlap, header at most 16 MiB. */
#ifndef HOLDFAST_PROTO_FORMAT_SHARD_H
#define HOLDFAST_PROTO_FORMAT_SHARD_H

#include "proto/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARD_ALIGN 4096u
#define SHARD_TABLE_NAME "__block_checksums__"
#define SHARD_HEADER_BYTES_MAX (16u << 20)
#define SHARD_TABLE_BYTES_MAX (256u << 20) /* of one shard's checksums: a shard of 32 TiB */

struct shard_identity {
    char run[128];    /* the run of its directory */
    char origin[128]; /* the run in the header (origin.h); "": `run` */
    uint64_t step;
    uint64_t attempt;
    char nonce[33];
    uint32_t shard, shards;
};

/* Geometry of the file, derived only from the header's length and the bytes of tensor data. */
struct shard_geometry {
    uint64_t data_start;  /* multiple of 4096 */
    uint64_t table_start; /* data_start + tensor bytes */
    uint64_t file_bytes;  /* multiple of 4096 */
    uint64_t num_blocks;
};

/* Derives the rest from `data_start` and the bytes of tensor data (layout_shard_bytes()).
 * ERR_CORRUPT when data_start is not a positive multiple of 4096 within the header's limit. */
int shard_geometry_derive(struct shard_geometry *out, uint64_t data_start, uint64_t tensor_bytes);

/* A run's name is one component of a key: 1 to 127 of [A-Za-z0-9._-], not "." or "..". A nonce is
 * 32 digits of [0-9a-f]. */
bool shard_run_is_valid(const char *run);
bool shard_nonce_is_valid(const char *nonce);

/* "<run>/step-00001000-a0003" and "<run>/step-00001000-a0003/shard-00002-of-00008.safetensors".
 * File numbers are 1-based as Hugging Face names them; `shard` here is 0-based. */
int shard_dir_key(char *out, size_t size, const char *run, uint64_t step, uint64_t attempt);
int shard_key(char *out, size_t size, const struct shard_identity *identity);
/* Does the file name belong to a shard? */
bool shard_is_file_name(const char *name);
/* Suffix of a shard's replacement, while it is written and verified. */
#define SHARD_NEW_SUFFIX ".new"

/* The geometry from an upper bound of the header's size. The bound depends on the tensors only, so
 * that data_start is the same for every step: the final padding fills up shorter numbers.
 * ERR_INVALID: a bad run; more tensors, or a longer header, than a reader accepts; data whose
 * checksum table is too long. */
int shard_geometry(struct shard_geometry *out, const struct layout_table *table, uint32_t shard,
                   const char *run, uint32_t shards);
/* Writes exactly geometry->data_start bytes to `out`. ERR_INVALID: a bad run, nonce or shard
 * number. ERR_CORRUPT: data_start, which may come from a manifest, is too small. */
int shard_header_write(void *out, const struct shard_geometry *geometry,
                       const struct layout_table *table, const struct shard_identity *identity);
/* The hash that a header ends with, as stored. `bytes`: the last `num_bytes` of the header; its
 * text ends in the last page of shard_geometry()'s size, or in the one before. False: no such
 * header ends there. */
bool shard_header_hash(uint64_t *out, const void *bytes, uint64_t num_bytes);

/* The expected header of a file, for readers: comparing is far cheaper than parsing. One buffer
 * serves shards one after another; the text of the tensors is rewritten only where it differs from
 * the previous shard. Zero it before the first call, and use one unchanged table in all of them;
 * free with shard_expected_free. */
struct shard_expected {
    unsigned char *header; /* data_start bytes, from the last call; NULL: it failed */
    struct shard_geometry geometry;
    struct shard_tensor *tensors;
    uint32_t num_tensors;
    uint64_t tensors_length; /* of the text up to the last tensor */
};
/* `tensors`: of layout_shard_tensors(); the caller has checked the identity. ERR_MEMORY, and
 * ERR_CORRUPT as above. */
int shard_header_expect(struct shard_expected *expected, const struct shard_geometry *geometry,
                        const struct layout_table *table, const struct shard_tensor *tensors,
                        uint32_t count, const struct shard_identity *identity);
void shard_expected_free(struct shard_expected *expected);

/* A parsed header. Free with shard_header_free. */
struct shard_header {
    struct shard_identity identity;
    struct shard_geometry geometry;
    uint32_t num_tensors;
    struct slice *tensors; /* without the checksum table; in file order */
    uint64_t *data_byte;   /* per tensor, from data_start */
};
/* `bytes` has the first `num_bytes` of a file of `file_bytes`. ERR_CORRUPT names the fault.
 * ERR_BUSY: more bytes are needed, *out_need of them. */
int shard_header_parse(struct shard_header *out, uint64_t *out_need, const void *bytes,
                       uint64_t num_bytes, uint64_t file_bytes);
void shard_header_free(struct shard_header *header);

/* The checksum table: an entry per block, little-endian, then zeros, from table_start to the end of
 * the file. Returns its hash, which the manifest keeps. */
uint64_t shard_table_write(void *out, const struct shard_geometry *geometry, const uint64_t *sums);
uint64_t shard_table_entry(const void *table, uint64_t block);
void shard_table_put(void *table, uint64_t block, uint64_t sum);
/* Bytes of block `index`: [start, start + length). */
void shard_block(uint64_t *start, uint64_t *length, const struct shard_geometry *geometry,
                 uint64_t index);

#endif
