/* tier.h - where checkpoints lie durably, nearest first: the node's own disk, its memory
 * (peers/replica.c), the stores of its peers, and the far tier (a shared directory or a bucket),
 * which outlives the nodes; see tier.c. Loads take their bytes from the first tier that has them.
 * Nobody asks which back-end a tier has. */
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

#define TIER_NICE 19       /* niceness of the threads that prove and send */
#define TIER_PEER_PARTS 2u /* under way at once to each peer */

struct tier {
    _Atomic(struct storage *) storage; /* NULL: there is no such tier */
    struct rpc_client *client;         /* of a peer: all calls go by it, its storage's too */
    struct reach *reach;               /* of the far tier; NULL: `storage` is open from the start */
    struct crew *crew;                 /* NULL: what blocks on it is the loop's workers' */
    struct lane lane;                  /* its jobs in the crew, which all peers share */
    struct copy *copies;               /* copies.c: of checkpoints in no list, too */
    bool takes_nothing;                /* the last thing that was sent there was not taken */
    int64_t silent_since_ms; /* the first look of a row that had no answer; 0: it answers */
    bool is_unknown;         /* a peer that has not answered since the start */
    bool is_lost;            /* a peer, for nodes.lost_ms: what it had counts no more */
    char offline[512];       /* why it is not used any more, or does not answer; "" normally */
};

/* Behind open_storage. A far tier that does not answer is no error: see tier.c for what is one. */
int tier_open(struct service *service);
/* Would a start reach the far tier? Changes nothing, waits as long as the store does. Of an error:
 * does it keep ckptd from starting, or is it one that ckptd starts without? */
int tier_check(bool *out_is_final, const struct config *config);
/* Makes the directory of a far tier a store; other kinds need nothing. */
int tier_make_store(const struct config *config);
/* Whoever wants to know of the far tier, or sends there, calls this first, on its crew: opens it if
 * it was not reached yet; is a directory still the one that was opened? ERR_UNAVAILABLE, ERR_IO,
 * those of storage. Of other tiers: 0. */
int tier_reach(struct service *service, enum tier_index tier);
void tier_end(struct service *service); /* nothing of the far tier is under way any more */
void tier_close(struct service *service);
bool tier_has_far(const struct service *service);
/* Is there such a tier? */
bool tier_is_open(const struct service *service, enum tier_index tier);
/* Whose threads move bytes between these: what is slow never has those of the local tier. */
static inline enum tier_index tier_of_crew(enum tier_index from, enum tier_index to)
{
    return to == TIER_LOCAL ? from : to;
}
/* Blocking work on that tier. */
void tier_work(struct service *service, enum tier_index tier, struct job *job);
/* A look at a peer has ended: one that does not answer takes no more than its share of the crew. */
void tier_note_answer(struct service *service, enum tier_index tier, bool answers);

/* storage_publish(), told apart: who finds the name taken, or hears no answer, reads what is there,
 * as its own first try may have had its effect. `nonce`, 32 random digits, stands in the text's
 * first TIER_NONCE_BYTES and in no other text's. Blocks; any thread. Of all but DURABLE this
 * thread's last error says why. */
#define TIER_NONCE_BYTES 4096u
enum publication tier_publish(struct storage *storage, const char *key, const void *text,
                              size_t bytes, const char *nonce);
/* Only the reading: is this nonce's text there? */
enum publication tier_settle(struct storage *storage, const char *key, const char *nonce);

#endif
