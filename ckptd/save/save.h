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
    enum durability level; /* for which the client waits */
    uint32_t timeout_ms;
    struct timer timer;
};

/* The part of a rank at another node, as that node reports it. */
struct remote_part {
    uint64_t asked;   /* the number of the rank's BeginSave that began it; 0: none */
    int64_t heard_ms; /* time of its node's last report */
    struct manifest_shard shard;
    struct digest *digests;          /* of its tensors, owned; NULL until the shard is durable */
    struct replica_digest *replicas; /* as in a stage; owned */
    bool is_told; /* of a part here: its coordinator has answered a report with the digests */
};

struct save {
    struct save *next;
    struct service *service;
    struct run *run;
    struct group *group;
    uint64_t id, step, attempt;
    char nonce[33];
    pthread_mutex_t mark_lock; /* for workers that create the first files */
    bool is_marked;
    char dir[STORAGE_KEY_MAX];
    char *state_json;
    struct stage *stages;       /* per rank; without an image for a rank of another node */
    struct remote_part *remote; /* per rank */
    /* Another node coordinates it, and this one holds parts: the state of the reports. */
    bool is_part, is_accepted;
    struct participating part;
    struct timer report;
    struct places places; /* where its shards are; empty: all here */
    bool is_offered;      /* the other nodes' shards may be fetched before the commit */
    char *manifest_text;  /* owned, after its publication, if other nodes need it */
    size_t manifest_bytes;
    struct coordinating coordinating;
    /* Of a part: the node to fetch it from; TIER_LOCAL: it was in the answer. */
    unsigned manifest_tier;
    uint32_t world_size;
    uint32_t num_begun, num_stopped; /* stages */
    bool discarding;
    bool has_made_way; /* it yielded to a later one: no failure */
    bool urgent;       /* a client waits for it: throttle_queue.c does not delay it */
    struct save_waiter *waiters;
    struct job job;
    struct fault fault;
    enum commit_outcome outcome;
    struct manifest_summary summary;
    uint64_t manifest_hash;        /* of the published text */
    struct checkpoint *checkpoint; /* its catalog entry, until the commit */
    struct digest *digests;
    char content[CHECKSUM_SHA256_HEX]; /* one hash of the names and digests of all tensors */
    struct repeat repeat;
    struct replicas_found *replicas; /* where replicas differ; owned; NULL: nowhere */
    /* Of a part: where, as its coordinator reports; owned, or NULL. */
    char *told_of_replicas;
    /* The former checkpoint, if ckptd must still read its digests; attempt 0: it need not. */
    struct {
        uint64_t step, attempt;
        char content[CHECKSUM_SHA256_HEX];
    } before;
    uint64_t bytes;
    struct ledger_promise promise; /* of disk space that is not taken yet */
    int64_t begun_ms, ended_ms, durable_ms, named_ms;
};

void save_identity(struct shard_identity *out, const struct save *save, uint32_t rank);
struct save *save_find(struct run *run, uint64_t id); /* or NULL */
/* The files of a save: shards, the manifest, the mark and the directory. */
static inline uint64_t save_num_files(uint32_t world_size)
{
    return world_size + 3ull;
}
/* Before a save of `bytes` begins: is it within the quotas of its run, and of the run's owner?
 * ERR_SPACE. */
int save_check_quota(const struct run *run, uint64_t bytes);
/* The committed checkpoint that this save's digests are compared with, or NULL. */
struct checkpoint *save_before(const struct save *save);
/* The save is over, and no job of it is in progress. */
void save_free(struct save *save);
/* Callbacks of stages to their save. */
extern const struct stage_events save_stage_events;
/* For a rank that gave its part up, or has gone. */
void save_give_up_part(struct save *save, uint32_t rank, const char *why);
/* Every rank has begun: peers may get the save while it is written. */
void save_all_begun(struct save *save);
/* `bytes` of the shard of a rank at another node are in its file there, and may be fetched. */
void save_part_written(struct save *save, uint32_t rank, uint64_t bytes);
/* A rank begins its part, in the image of that slot. ERR_MEMORY. */
int save_begin_stage(struct save *save, struct session *session, uint32_t slot);
/* The manifest is durable here, and the holders must report that they have it: COMMIT_PLACE. */
void save_place(struct run *run, const struct commit_action *action);
/* Perform COMMIT_DONE, COMMIT_DISCARD, COMMIT_KEEP (run.c). */
void save_committed(struct run *run, const struct commit_action *action);
void save_discard(struct run *run, const struct commit_action *action);
void save_keep(struct run *run, const struct commit_action *action);

/* ---- wait.c ---- */

#define SAVE_WARNING_BYTES 640u

void save_wait(struct service *service, struct rpc_call *call,
               const Holdfast__V1__WaitSaveRequest *request);
/* The save is over: answers all its waiting clients, with the reason. */
void save_answer_waiters(struct save *save, Holdfast__V1__SaveState state, const char *reason);
/* The last rank has announced its end: answers clients that wait only for that. */
void save_answer_accepted(struct save *save);
/* The warning for clients of a committed save: "", or the alarms. */
const char *save_warning_text(char out[SAVE_WARNING_BYTES], const struct checkpoint *checkpoint);
/* A client waits for memory, or for the end of a run's saves. */
void save_hurry_all(struct service *service);
void save_hurry_run(struct run *run);

#endif
