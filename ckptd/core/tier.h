/* tier.h - the places of durable copies, nearest first: the node's disk, its memory
 * (peers/replica.c), the peers' stores, and the far tier (a shared directory or a bucket), which
 * survives the nodes; see tier.c. Loads read from the first tier that has the bytes. Callers do not
 * depend on a tier's back-end. */
#ifndef HOLDFAST_CKPTD_CORE_TIER_H
#define HOLDFAST_CKPTD_CORE_TIER_H

#include "ckptd/core/loop.h"
#include "ckptd/machines/tier_index.h"
#include "proto/format/durability.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stddef.h>

struct config;
struct copy;
struct rpc_client;
struct service;
struct reach;

/* In answers and lists: "local", "memory", "far", or a node's name. */
const char *tier_name(const struct service *service, enum tier_index tier);

#define TIER_NICE 19       /* niceness of the threads that verify and send */
#define TIER_PEER_PARTS 2u /* parts in flight to each peer */

struct tier {
    _Atomic(struct storage *) storage; /* NULL: there is no such tier */
    struct rpc_client *client;         /* of a peer: for all calls, also those of its storage */
    struct reach *reach;               /* of the far tier; NULL: `storage` is open from the start */
    struct crew *crew;                 /* NULL: the loop's workers do its blocking work */
    struct lane lane;                  /* its jobs in the crew that all peers share */
    struct copy *copies;               /* copies.c: also of checkpoints in no list */
    bool takes_nothing;                /* the tier refused the last bytes that were sent */
    int64_t silent_since_ms; /* time of the first of successive failed refreshes; 0: it answers */
    bool is_unknown;         /* a peer that has not answered since the start */
    /* A peer that was silent for nodes.lost_ms: its copies count no more. */
    bool is_lost;
    char offline[512]; /* why it is not used, or does not answer; "" normally */
};

/* Call after open_storage(). A far tier that does not answer is no error: tier.c lists the
 * errors. */
int tier_open(struct service *service);
/* Can a start reach the far tier? Changes nothing, waits as long as the store does. *out_is_final:
 * the error keeps ckptd from starting; else it starts without the tier. */
int tier_check(bool *out_is_final, const struct config *config);
/* Makes the directory of a far tier a store; does nothing for other kinds. */
int tier_make_store(const struct config *config);
/* Call this, on its crew, before reading or writing the far tier: opens it if it was not reached
 * yet; checks that a directory is still the same. ERR_UNAVAILABLE, ERR_IO, those of storage. Of
 * other tiers: 0. */
int tier_reach(struct service *service, enum tier_index tier);
/* ckptd shuts down and needs the far tier no more: a bucket that does not answer delays jobs by a
 * few seconds at most. Later calls do nothing. */
void tier_hurry(struct service *service);
void tier_end(struct service *service); /* hurries, and waits for the jobs under way */
void tier_close(struct service *service);
bool tier_has_far(const struct service *service);
/* Is there such a tier? */
bool tier_is_open(const struct service *service, enum tier_index tier);
/* The tier whose threads move bytes between these two: slow transfers never use those of the local
 * tier. */
static inline enum tier_index tier_of_crew(enum tier_index from, enum tier_index to)
{
    return to == TIER_LOCAL ? from : to;
}
/* Runs a blocking job for that tier. */
void tier_work(struct service *service, enum tier_index tier, struct job *job);
/* A refresh of a peer has ended: one that does not answer gets only its share of the crew. */
void tier_note_answer(struct service *service, enum tier_index tier, bool answers);

/* storage_publish() with a definite outcome: if the name is taken, or there is no answer, reads the
 * file back, as an earlier try may have succeeded. `nonce`, 32 random digits, is in the first
 * TIER_NONCE_BYTES of this text and in no other text. Blocks; any thread. This thread's last error
 * explains outcomes other than DURABLE. */
#define TIER_NONCE_BYTES 4096u
enum publication tier_publish(struct storage *storage, const char *key, const void *text,
                              size_t bytes, const char *nonce);
/* Only the read: is this nonce's text there? */
enum publication tier_settle(struct storage *storage, const char *key, const char *nonce);

#endif
