/* manifest.h - the small file that commits a checkpoint by its existence.
 *
 * One JSON document. Its first 4096 bytes are the summary in a fixed form (keys in this order:
 * format, version, run, step, attempt, nonce, bytes, time, world_size, shards, summary_hash),
 * padded with spaces; listing and start-up read only those. summary_hash is the XXH3-64 of the
 * bytes before its digits. Then: lineage, mesh, identity, config, code_version, data, state,
 * layouts, tensors (name, dtype, shape, layout, digest), shard table (file, bytes, data_start,
 * header_hash, table_hash). From "layouts" on every byte is fixed: one entry per line, no spaces,
 * no escapes, see manifest_tables.c. Last member: "sha256" of all bytes before its key's opening
 * quote. Offsets inside shards are derived with layout_shard_tensors(). u64 hashes and digests are
 * 16 hex digits each.
 *
 * ckptd adds a member "replicas_differ" to the mesh of a checkpoint whose ranks held different
 * copies of a tensor (ckptd/attempt/replicas.h). Older readers accept any members of a free
 * section.
 *
 * Reading is safe on hostile input: at most 64 MiB, every number range-checked, ERR_CORRUPT with
 * the member's name. A later version is ERR_VERSION when its summary_hash fits, which every version
 * has; else it is damage. Version 1, without header_hash, is read but no longer written.
 *
 * A far tier's manifest is version 3. After the same body it has the size of the parts in which the
 * shards were uploaded, and per shard one SHA-256: over the SHA-256 of its parts, 32 bytes each, in
 * order. So each part can be verified alone, during an upload or a download. */
#ifndef HOLDFAST_PROTO_FORMAT_MANIFEST_H
#define HOLDFAST_PROTO_FORMAT_MANIFEST_H

#include "proto/base/checksum.h"
#include "proto/format/shard.h"
#include "proto/layout/layout.h"

#define MANIFEST_VERSION 2
#define MANIFEST_VERSION_OF_TIER 3 /* with part_bytes and part_sums */
#define MANIFEST_SUMMARY_BYTES 4096u
#define MANIFEST_BYTES_MAX (64u << 20)
#define MANIFEST_NAME "manifest.json"

struct manifest_summary {
    uint32_t version;
    char run[128];
    /* The run in the manifest and the shards, if it is another one: origin.h; not part of the text.
     */
    char origin[128];
    uint64_t step;
    uint64_t attempt;
    char nonce[33];
    uint64_t bytes; /* of all shards */
    char time[32];  /* RFC 3339, UTC */
    uint32_t world_size;
    uint32_t shards;
};

struct manifest_shard {
    uint64_t bytes;
    uint64_t data_start;
    uint64_t header_hash; /* shard_header_hash() of the header's end */
    uint64_t table_hash;  /* checksum_bytes() of the checksum table tensor */
};

struct manifest_part_sum {
    char sha256[CHECKSUM_SHA256_HEX];
};

struct manifest {
    struct manifest_summary summary;
    uint64_t parent_step,
        parent_attempt; /* lineage: the checkpoint that the attempt resumed from; attempt 0: none */
    /* Lineage, too: the nonce of the checkpoint that `ckpt-cli convert` made this one from, stored
     * as a third member "converted_from"; "": none. */
    char converted_from[33];
    /* JSON objects, owned, kept as text: they are read back byte for byte, except for space around
     * them. NULL is written as {}. Integers must fit int64. */
    char *mesh_json, *identity_json, *config_json, *data_json, *state_json;
    char code_version[64];
    struct layout_table *table; /* owned */
    struct digest *digests;     /* per tensor of the table, owned */
    struct manifest_shard *shards;
    uint64_t part_bytes;                 /* of a far tier's manifest; else 0, */
    struct manifest_part_sum *part_sums; /* and NULL; per shard, owned */
    uint64_t text_hash;                  /* checksum_bytes() of the text that was read */
};

/* For a new checkpoint: a nonce of 32 hex digits of the system's random numbers (ERR_IO: it has
 * none), and the time in the form of `time`. */
int manifest_new_nonce(char out[33]);
void manifest_now(char out[32]);
/* Writes the text, which the caller frees; *out_bytes is its length. ERR_INVALID names the member
 * that cannot be written. */
int manifest_write(char **out, size_t *out_bytes, const struct manifest *manifest);
int manifest_read(struct manifest **out, const void *text, size_t bytes);
int manifest_read_summary(struct manifest_summary *out, const void *text, size_t bytes);
/* False for version 1. */
bool manifest_has_header_hashes(const struct manifest *manifest);
bool manifest_is_of_tier(const struct manifest *manifest); /* version 3 */
/* Does the header of a shard, whose last bytes these are, end with the committed hash? True for
 * version 1, which has no hash. */
bool manifest_header_fits(const struct manifest *manifest, uint32_t shard, const void *bytes,
                          uint64_t num_bytes);
/* Checks `header`, the first data_start bytes of a shard's file, against the manifest: names,
 * types, shapes and places of all tensors, and the committed hash. Every reader calls this before
 * it uses a file. ERR_CORRUPT; ERR_VERSION: the header is of a later format; ERR_MEMORY. `expected`
 * as in shard_header_expect(), for the shards of one manifest. */
int manifest_check_header(struct shard_expected *expected, const struct manifest *manifest,
                          uint32_t shard, const void *header);
/* Do both describe the same checkpoint? Ignores the time. */
bool manifest_summary_equal(const struct manifest_summary *a, const struct manifest_summary *b);
void manifest_free(struct manifest *manifest);
/* The identity of one of its shards. */
void manifest_identity(struct shard_identity *out, const struct manifest_summary *summary,
                       uint32_t shard);
/* "<run>/step-.../manifest.json". ERR_INVALID: it is longer than `size`. */
int manifest_key(char *out, size_t size, const struct manifest_summary *summary);

#endif
