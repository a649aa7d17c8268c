/* manifest.h - the small file whose existence makes a checkpoint committed.
 *
 * One JSON document. Its first 4096 bytes are the summary in a fixed form (keys in this order:
 * format, version, run, step, attempt, nonce, bytes, time, world_size, shards, summary_hash),
 * padded with spaces; list and start-up read only those. summary_hash is the XXH3-64 of the bytes
 * before its digits. Then: lineage, mesh, identity, config, code_version, data, state, layouts,
 * tensors (name, dtype, shape, layout, digest), shard table (file, bytes, data_start, header_hash,
 * table_hash). From "layouts" on every byte is fixed: an entry a line, no spaces, no escapes, see
 * manifest_tables.c. Last member: "sha256" of all bytes before its key's opening quote. Offsets
 * inside shards are derived with layout_shard_tensors(). u64 hashes and digests are 16 hex digits
 * each.
 *
 * ckptd adds a member "replicas_differ" to the mesh of a checkpoint of whose tensors ranks held
 * different copies (ckptd/attempt/replicas.h): older readers take a free section as it comes.
 *
 * Reading is safe on hostile input: at most 64 MiB, every number range-checked, ERR_CORRUPT with
 * the member's name. A later version is ERR_VERSION when its summary_hash fits, which every version
 * has; damage otherwise. Version 1, which had no header_hash, is read
 * and no longer written.
 *
 * A far tier's manifest is version 3: the same body, and behind it the size of the parts in which
 * the shards were sent there and per shard one SHA-256: that of the SHA-256 of its parts, 32 bytes
 * each, in order. So a part is proven by itself while it passes, whoever sends or fetches it. */
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
    char origin[128]; /* the run that manifest and shards name, where that is another one: origin.h;
                         not part of the text */
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
    uint64_t header_hash; /* what the header ends with: shard_header_hash() */
    uint64_t table_hash;  /* checksum_bytes() of the checksum table tensor */
};

struct manifest_part_sum {
    char sha256[CHECKSUM_SHA256_HEX];
};

struct manifest {
    struct manifest_summary summary;
    uint64_t parent_step,
        parent_attempt; /* lineage: what the attempt resumed from; attempt 0: none */
    /* Lineage too: the nonce of the checkpoint that `ckpt-cli convert` made this one of, which
     * then is a third member, "converted_from"; "": none. */
    char converted_from[33];
    /* JSON objects, owned, kept as text: what was written comes back byte for byte, but for
     * space around it. NULL is written as {}. Integers must fit int64. */
    char *mesh_json, *identity_json, *config_json, *data_json, *state_json;
    char code_version[64];
    struct layout_table *table; /* owned */
    struct digest *digests;     /* per tensor of the table, owned */
    struct manifest_shard *shards;
    uint64_t part_bytes;                 /* of a tier's manifest; else 0, */
    struct manifest_part_sum *part_sums; /* and NULL; per shard, owned */
    uint64_t text_hash;                  /* checksum_bytes() of the text that it was read of */
};

/* What every new checkpoint is given: 32 hex digits of the system's random numbers (ERR_IO: it has
 * none), and the time in the form of `time`. */
int manifest_new_nonce(char out[33]);
void manifest_now(char out[32]);
/* The text, to be freed; *out_bytes its length. ERR_INVALID names the member that cannot be
 * written. */
int manifest_write(char **out, size_t *out_bytes, const struct manifest *manifest);
int manifest_read(struct manifest **out, const void *text, size_t bytes);
int manifest_read_summary(struct manifest_summary *out, const void *text, size_t bytes);
/* Not those of version 1. */
bool manifest_has_header_hashes(const struct manifest *manifest);
bool manifest_is_of_tier(const struct manifest *manifest); /* version 3 */
/* Does the header of a shard, of which these are the last bytes, end with the hash that was
 * committed? Of version 1 nothing is known, so it does. */
bool manifest_header_fits(const struct manifest *manifest, uint32_t shard, const void *bytes,
                          uint64_t num_bytes);
/* Is `header`, the first data_start bytes of a shard's file, what the manifest says that it is, in
 * every name, type, shape and place of its tensors, and the one that was committed? What every
 * reader asks before it believes a file. ERR_CORRUPT; ERR_VERSION: the header is of a later format;
 * ERR_MEMORY. `expected` as of shard_header_expect(), for the shards of one manifest. */
int manifest_check_header(struct shard_expected *expected, const struct manifest *manifest,
                          uint32_t shard, const void *header);
/* Do both tell of the same checkpoint? The time is not looked at. */
bool manifest_summary_equal(const struct manifest_summary *a, const struct manifest_summary *b);
void manifest_free(struct manifest *manifest);
/* Of one of its shards. */
void manifest_identity(struct shard_identity *out, const struct manifest_summary *summary,
                       uint32_t shard);
/* "<run>/step-.../manifest.json". ERR_INVALID: it is longer than `size`. */
int manifest_key(char *out, size_t size, const struct manifest_summary *summary);

#endif
