/* handles.h - what others have open in this ckptd's store, over TCP: objects that nodes read or
 * write and tools read, and what they hold.
 *
 * serve.P3: a handle is used by the identity that it was given to, and by no other. It ends when
 * its client, one store that was opened from afar, has been silent for HANDLES_SILENT_MS, or for
 * nodes.lost_ms where that is less, and it is not in use. At most HANDLES_MAX; of them of those who
 * are no nodes HANDLES_READERS, of one HANDLES_EACH.
 * Threads: any, for what is no object yet and what says so; a handle in use stays. */
#ifndef HOLDFAST_CKPTD_PEERS_HANDLES_H
#define HOLDFAST_CKPTD_PEERS_HANDLES_H

#include "proto/base/principal.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

#define HANDLES_MAX 512u
#define HANDLES_READERS 256u
#define HANDLES_EACH 160u /* two checkpoints with as many files open as ckpt-cli has at once */
#define HANDLES_SILENT_MS 120000
#define HANDLE_BLOCK_MAX (1u << 20) /* bytes of one transfer */

struct handle {
    struct handle *next;
    uint64_t token, client;
    char who[PRINCIPAL_NAME_MAX];
    bool is_node;
    struct storage_object *object;
    struct storage *elsewhere; /* where the object or the hold is: a peer's store, another tier, or
                                  memory (replica.h); NULL: in this ckptd's own */
    struct storage_hold *hold;
    char held[STORAGE_KEY_MAX]; /* its key */
    uint64_t bytes;
    bool is_writer;
    uint32_t busy;
    int64_t used_ms;
};

struct handles;
int handles_open(struct handles **out); /* ERR_MEMORY */
/* Nothing is in use any more. What is held stays held. Blocks. NULL is fine. */
void handles_close(struct handles *handles, struct storage *storage);

/* One that is empty, and in use. ERR_BUSY, ERR_MEMORY. */
int handles_new(struct handles *handles, struct handle **out, const struct principal *who,
                uint64_t client);
/* In use until handles_used(). ERR_UNAVAILABLE: `who` has none of that token. */
int handles_use(struct handles *handles, struct handle **out, const char *who, uint64_t token);
void handles_used(struct handles *handles, struct handle *handle);
/* Takes it out: it is the caller's, for handles_end(). ERR_UNAVAILABLE; ERR_BUSY: it is in use. */
int handles_take(struct handles *handles, struct handle **out, const char *who, uint64_t token);
/* Takes those of clients that were silent for so long out, chained. */
struct handle *handles_take_silent(struct handles *handles, int64_t silent_ms);
/* Takes out a new one, for which nothing was opened, and frees it. */
void handles_drop(struct handles *handles, struct handle *handle);
/* Closes and frees a chain that was taken out; what they hold is released, or stays. Blocks. */
void handles_end(struct handle *first, struct storage *storage, bool stays);

/* Where its object is, of a ckptd with that store. */
static inline struct storage *handle_storage(const struct handle *handle, struct storage *own)
{
    return handle->elsewhere ? handle->elsewhere : own;
}
/* Are these whole blocks of the object? Storage takes no others. ERR_INVALID. */
int handle_check_range(const struct handle *handle, uint64_t offset, uint64_t bytes);
/* ERR_INVALID: it is open for reading, or there is no object. */
int handle_check_writer(const struct handle *handle);

#endif
