/* save.h - one save of all ranks; see save.c. */
#ifndef HOLDFAST_CKPTD_SAVE_SAVE_H
#define HOLDFAST_CKPTD_SAVE_SAVE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/coordinating.h"
#include "ckptd/machines/participating.h"
#include "proto/format/durability.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;
struct group;
struct stage;
struct session;
struct commit_action;
struct replicas_found;
struct replica_digest;

struct save_waiter {
    struct save_waiter *next;
    struct rpc_call *call;
    struct save *save;
    enum durability level; /* that is waited for */
    uint32_t timeout_ms;
    struct timer timer;
};

/* The part of a rank at another node, as that one has told of it. */
struct remote_part {
    uint64_t asked;   /* the number of the rank's BeginSave that began it; 0: none */
    int64_t heard_ms; /* when its node last told of it */
    struct manifest_shard shard;
    struct digest *digests;          /* of its tensors, owned; NULL until the shard is durable */
    struct replica_digest *replicas; /* as of a stage; owned */
    bool is_told; /* of a part here: its coordinator has answered a report with the digests */
};

struct save {
    struct save *next;
    struct service *service;
    struct run *run;
    struct group *group;
    uint64_t id, step, attempt;
    char nonce[33];
    pthread_mutex_t mark_lock; /* of workers that create the first files */
    bool is_marked;
    char dir[STORAGE_KEY_MAX];
    char *state_json;
    struct stage *stages;       /* per rank; without an image that of another node's */
    struct remote_part *remote; /* per rank */
    /* Another node coordinates it, and this one holds parts: what has been told and heard. */
    bool is_part, is_accepted;
    struct participating part;
    struct timer report;
    struct places places; /* where its shards are; without shards: all here */
    bool is_offered;      /* the other nodes' shards may come here before the commit */
    char *manifest_text;  /* owned, once it was published, where other nodes need it */
    size_t manifest_bytes;
    struct coordinating coordinating;
    unsigned manifest_tier; /* of a part: the node to fetch it from; TIER_LOCAL: it came */
    uint32_t world_size;
    uint32_t num_begun, num_stopped; /* stages */
    bool discarding;
    bool has_made_way; /* for a later one: no failure */
    bool urgent;       /* somebody waits for it: throttle_queue.c holds nothing of it back */
    struct save_waiter *waiters;
    struct job job;
    struct fault fault;
    enum commit_outcome outcome;
    struct manifest_summary summary;
    uint64_t manifest_hash;        /* of the text that was published */
    struct checkpoint *checkpoint; /* its entry in the catalog, until it is committed */
    struct digest *digests;
    char content[CHECKSUM_SHA256_HEX]; /* one hash of the names and digests of all tensors */
    struct repeat repeat;
    struct replicas_found *replicas; /* where they differ; owned; NULL: nowhere */
    char *told_of_replicas;          /* of a part: where, as its coordinator says; owned, or NULL */
    /* The checkpoint before it when ckptd has not seen its digests yet; attempt 0: it has. */
    struct {
        uint64_t step, attempt;
        char content[CHECKSUM_SHA256_HEX];
    } before;
    uint64_t bytes;
    struct ledger_promise promise; /* of the disk, not taken yet */
    int64_t begun_ms, ended_ms, durable_ms, named_ms;
};

void save_identity(struct shard_identity *out, const struct save *save, uint32_t rank);
struct save *save_find(struct run *run, uint64_t id); /* or NULL */
/* What a save makes on the disk: shards, the manifest, the mark and the directory. */
static inline uint64_t save_num_files(uint32_t world_size)
{
    return world_size + 3ull;
}
/* Before a save of so many bytes begins: is it within the quotas of its run, and of whose that is?
 * ERR_SPACE. */
int save_check_quota(const struct run *run, uint64_t bytes);
/* The committed checkpoint that this save's digests are compared with, or NULL. */
struct checkpoint *save_before(const struct save *save);
/* It is over: nothing of it is under way. */
void save_free(struct save *save);
/* What stages tell their save. */
extern const struct stage_events save_stage_events;
/* Of a rank that gave its part up, or is gone. */
void save_give_up_part(struct save *save, uint32_t rank, const char *why);
/* Every rank has begun: it may go to peers while it is written. */
void save_all_begun(struct save *save);
/* So much of the shard of a rank at another node is in its file there: it may come here. */
void save_part_written(struct save *save, uint32_t rank, uint64_t bytes);
/* A rank begins its part, in the image of that slot. ERR_MEMORY. */
int save_begin_stage(struct save *save, struct session *session, uint32_t slot);
/* The manifest is durable here, and holders are to say that they have it: COMMIT_PLACE. */
void save_place(struct run *run, const struct commit_action *action);
/* Performers of COMMIT_DONE, COMMIT_DISCARD, COMMIT_KEEP (run.c). */
void save_committed(struct run *run, const struct commit_action *action);
void save_discard(struct run *run, const struct commit_action *action);
void save_keep(struct run *run, const struct commit_action *action);

/* ---- wait.c ---- */

#define SAVE_WARNING_BYTES 640u

void save_wait(struct service *service, struct rpc_call *call,
               const Holdfast__V1__WaitSaveRequest *request);
/* It is over: everybody who waits for it hears so, with the reason. */
void save_answer_waiters(struct save *save, Holdfast__V1__SaveState state, const char *reason);
/* The last rank has announced its end: some wait for no more than that. */
void save_answer_accepted(struct save *save);
/* What a client is told about a committed save: "", or the alarms. */
const char *save_warning_text(char out[SAVE_WARNING_BYTES], const struct checkpoint *checkpoint);
/* Somebody waits for memory, or for the end of a run's saves. */
void save_hurry_all(struct service *service);
void save_hurry_run(struct run *run);

#endif
