/* shard.h - the file that one rank writes: a genuine safetensors file with checksums.
 *
 *   0            u64 little-endian: length of the JSON header (data_start - 8)
 *   8            JSON header, padded with spaces so that data_start is a multiple of 4096
 *   data_start   tensors, by descending element size then name, back to back
 *   table_start  tensor `__block_checksums__` (U8): a u64 per block, then zeros, as long as makes
 * the file a multiple of 4096
 *
 * A block is 1 MiB of the file, header included; the last block ends at table_start. An entry is
 * checksum_block() with the shard's identity. The table covers all before it; the manifest holds
 * the plain XXH3-64 of the table, and the header's own hash. Format of safetensors: its README
 * (huggingface/safetensors).
 *
 * __metadata__ (all strings): "format"="holdfast-shard", "version"="1", "run", "step", "attempt",
 * "nonce", "shard" ("0"-based index), "shards", "data_start", per tensor "slice.<name>" =
 * "offset,...;shape,..." in decimal, and last "header_hash": 16 hex digits, the XXH3-64 of the
 * file's bytes before those digits. It is the last member of the header, so any change of a header
 * is found by itself, before a block is read. Readers treat every field as hostile all the same:
 * checked arithmetic, offsets sorted and contiguous, no hole, no overlap, header at most 16 MiB. */
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
    char run[128];    /* in whose directory it lies */
    char origin[128]; /* the run that the header names (origin.h); "": `run` */
    uint64_t step;
    uint64_t attempt;
    char nonce[33];
    uint32_t shard, shards;
};

/* Geometry of the file; derived from the header's length and the bytes of tensor data alone. */
struct shard_geometry {
    uint64_t data_start;  /* multiple of 4096 */
    uint64_t table_start; /* data_start + tensor bytes */
    uint64_t file_bytes;  /* multiple of 4096 */
    uint64_t num_blocks;
};

/* `data_start` and the bytes of tensor data (layout_shard_bytes()) give all the rest. ERR_CORRUPT
 * when data_start is not a positive multiple of 4096 within the header's limit. */
int shard_geometry_derive(struct shard_geometry *out, uint64_t data_start, uint64_t tensor_bytes);

/* A run's name is one component of a key: 1 to 127 of [A-Za-z0-9._-], not "." or "..". A nonce is
 * 32 digits of [0-9a-f]. */
bool shard_run_is_valid(const char *run);
bool shard_nonce_is_valid(const char *nonce);

/* "<run>/step-00001000-a0003" and "<run>/step-00001000-a0003/shard-00002-of-00008.safetensors".
 * File numbers are 1-based as Hugging Face names them; `shard` here is 0-based. */
int shard_dir_key(char *out, size_t size, const char *run, uint64_t step, uint64_t attempt);
int shard_key(char *out, size_t size, const struct shard_identity *identity);
/* Has a file in such a directory the name of a shard? */
bool shard_is_file_name(const char *name);
/* Behind the name of a shard: the one that is to take its place, being written and proven. */
#define SHARD_NEW_SUFFIX ".new"

/* Upper bound of the header's size that depends on the tensors only, so that data_start is the same
 * for every step: numbers in the header are space-padded by the final padding. ERR_INVALID: a bad
 * run, or more than a reader takes: tensors, by their number or by the header's length, or data, by
 * the length of their checksum table. */
int shard_geometry(struct shard_geometry *out, const struct layout_table *table, uint32_t shard,
                   const char *run, uint32_t shards);
/* Writes exactly geometry->data_start bytes to `out`. ERR_INVALID: a bad run, nonce or shard
 * number. ERR_CORRUPT: data_start, which may come from a manifest, leaves too little room. */
int shard_header_write(void *out, const struct shard_geometry *geometry,
                       const struct layout_table *table, const struct shard_identity *identity);
/* The hash that a header ends with, as it stands there. `bytes`: the last `num_bytes` of the
 * header; its text ends in the last page of what shard_geometry() gives, or in the one before.
 * False: no header of ours ends there. */
bool shard_header_hash(uint64_t *out, const void *bytes, uint64_t num_bytes);

/* The header that a file has to have, for readers: comparing is far cheaper than parsing. Shards
 * follow one another in the same place, and the text of the tensors is written again only where it
 * differs from that of the shard before. Zeroed before the first call, one unchanged table in all
 * of them; free with shard_expected_free. */
struct shard_expected {
    unsigned char *header; /* data_start bytes, of the last call; NULL: that had an error */
    struct shard_geometry geometry;
    struct shard_tensor *tensors;
    uint32_t num_tensors;
    uint64_t tensors_length; /* of the text up to the last tensor */
};
/* `tensors`: of layout_shard_tensors(); the identity was checked before. ERR_MEMORY, and
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
/* `bytes` holds the first `num_bytes` of a file of `file_bytes`. ERR_CORRUPT names what is wrong.
 * When more bytes are needed: returns ERR_BUSY with *out_need set to the number of bytes. */
int shard_header_parse(struct shard_header *out, uint64_t *out_need, const void *bytes,
                       uint64_t num_bytes, uint64_t file_bytes);
void shard_header_free(struct shard_header *header);

/* The checksum table: an entry per block, little-endian, and zeros behind them, from table_start to
 * the end of the file. Returns its hash, which the manifest keeps. */
uint64_t shard_table_write(void *out, const struct shard_geometry *geometry, const uint64_t *sums);
uint64_t shard_table_entry(const void *table, uint64_t block);
void shard_table_put(void *table, uint64_t block, uint64_t sum);
/* Bytes of block `index`: [start, start + length). */
void shard_block(uint64_t *start, uint64_t *length, const struct shard_geometry *geometry,
                 uint64_t index);

#endif
