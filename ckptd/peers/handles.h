/* handles.h - handles of remote clients over TCP: objects in this ckptd's store that nodes read or
 * write and tools read, and leases.
 *
 * serve.P3: only the identity that got a handle may use it. A handle that is not in use expires
 * when its client (one store opened from afar) has been silent for HANDLES_SILENT_MS, or
 * nodes.lost_ms if less. At most HANDLES_MAX handles, HANDLES_READERS of clients that are not
 * nodes, HANDLES_EACH of one such client. Any thread; a handle in use is not freed. */
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
    /* Storage of the object or lease: a peer's store, another tier, or memory (replica.h); NULL:
     * this ckptd's own store. */
    struct storage *elsewhere;
    struct storage_hold *hold;
    char held[STORAGE_KEY_MAX]; /* key of the lease */
    uint64_t bytes;
    bool is_writer;
    uint32_t busy;
    int64_t used_ms;
};

struct handles;
int handles_open(struct handles **out); /* ERR_MEMORY */
/* Call when no handle is in use. Lease files remain. Blocks. NULL is allowed. */
void handles_close(struct handles *handles, struct storage *storage);

/* Makes an empty handle that is in use. ERR_BUSY, ERR_MEMORY. */
int handles_new(struct handles *handles, struct handle **out, const struct principal *who,
                uint64_t client);
/* The handle is in use until handles_used(). ERR_UNAVAILABLE: `who` has no handle with that
 * token. */
int handles_use(struct handles *handles, struct handle **out, const char *who, uint64_t token);
void handles_used(struct handles *handles, struct handle *handle);
/* Takes the handle out of the table; the caller owns it, for handles_end(). ERR_UNAVAILABLE;
 * ERR_BUSY: it is in use. */
int handles_take(struct handles *handles, struct handle **out, const char *who, uint64_t token);
/* Takes out the handles of clients that were silent for `silent_ms`, chained. */
struct handle *handles_take_silent(struct handles *handles, int64_t silent_ms);
/* Takes out a new handle for which nothing was opened, and frees it. */
void handles_drop(struct handles *handles, struct handle *handle);
/* Closes and frees a chain of handles. Releases their leases; with `stays` the lease files remain.
 * Blocks. */
void handles_end(struct handle *first, struct storage *storage, bool stays);

/* The storage of its object; `own` is this ckptd's store. */
static inline struct storage *handle_storage(const struct handle *handle, struct storage *own)
{
    return handle->elsewhere ? handle->elsewhere : own;
}
/* Checks that the range is whole blocks inside the object: storage accepts no others.
 * ERR_INVALID. */
int handle_check_range(const struct handle *handle, uint64_t offset, uint64_t bytes);
/* ERR_INVALID: the object is open for reading only, or there is none. */
int handle_check_writer(const struct handle *handle);

#endif
