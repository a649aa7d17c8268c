/* offline.h - a store without ckptd, as ckpt_open("dir:/path") and ckpt_open("s3://bucket/prefix")
 * read it; see offline.c.
 *
 * catalog.c and load.c convert both sources to the same records. */
#ifndef HOLDFAST_CLIENTS_OFFLINE_H
#define HOLDFAST_CLIENTS_OFFLINE_H

#include "clients/session.h"
#include "storage/store/store.h"

static inline bool offline_is(const struct ckpt *ckpt)
{
    return ckpt->store != NULL;
}
/* Does the address name a store instead of a ckptd? */
bool offline_is_named(const char *server);
/* ERR_NOT_FOUND: there is no such directory. For a bucket also errors of storage_open(). */
int offline_open(struct ckpt *ckpt);
void offline_close(struct ckpt *ckpt);
/* The durability of its checkpoints: "local", or "bucket". */
const char *offline_durability(const struct ckpt *ckpt);
/* Lists the checkpoints of a run, or of all runs with "", newest first, with their pins; free with
 * store_list_free(). ERR_NOT_FOUND: there is no such run. */
int offline_list(struct store_list *out, const struct ckpt *ckpt, const char *run);
/* Reads the manifest of a named checkpoint or of the newest intact one. *out_damage, when not NULL,
 * is the damage of a named one. ERR_NOT_FOUND; ERR_CORRUPT: all are damaged. */
int offline_manifest(struct manifest **out, char out_damage[STORE_DAMAGE_BYTES],
                     const struct ckpt *ckpt, const struct store_choice *choice);

/* A load in progress. */
struct offline_load;
/* Plans a load: *out_items has items like those that load.c reads from ckptd's OpenLoad reply. Free
 * both, also after an error, with offline_load_free() and free(). */
int offline_load_open(struct offline_load **out, struct load_item **out_items,
                      uint32_t *out_num_items, const struct ckpt *ckpt,
                      const struct store_choice *choice, const struct session_tensors *wanted);
const struct manifest *offline_load_manifest(const struct offline_load *load);
void offline_load_free(struct offline_load *load);
/* Reads whole, verified blocks of a shard, from the block of byte `at` on, up to `end` and at most
 * OFFLINE_PART_BYTES, into new memory: munmap(*out_data, *out_mapped). ERR_CORRUPT, ERR_IO. */
#define OFFLINE_PART_BYTES (32ull << 20)
struct offline_part {
    unsigned char *data;
    uint64_t start, bytes, mapped; /* of the shard's file */
    uint64_t length;               /* of the file */
};
int offline_load_part(struct offline_part *out, struct offline_load *load, uint32_t shard,
                      uint64_t at, uint64_t end);

#endif
