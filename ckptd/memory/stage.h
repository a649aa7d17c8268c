/* stage.h - one rank's part of a save: from announced ranges to a durable file; see stage.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_STAGE_H
#define HOLDFAST_CKPTD_MEMORY_STAGE_H

#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/memory/readback.h"
#include "proto/base/checksum.h"
#include "proto/format/shard.h"
#include "proto/layout/layout.h"
#include "proto/wire/arena.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct save;
struct session;
struct image;
struct replica_digest;

struct interval {
    uint64_t start, end;
};

/* The digest that a rank reports of a tensor's bytes. */
#define TOLD_BOTH 3u
struct told_digest {
    struct digest digest;
    uint32_t sums; /* it has reported the first (1), the second (2), or both */
};

struct stage;
/* Callbacks of a stage to its save. */
struct stage_events {
    int (*prepare)(struct stage *stage);   /* on a worker, before its file is created */
    void (*advanced)(struct stage *stage); /* one more chunk is hashed and in its file */
    void (*ended)(struct stage *stage);    /* its rank has announced all bytes */
    void (*durable)(struct stage *stage);  /* its shard is written and synced */
    void (*failed)(struct stage *stage, const char *reason);
    void (*stopped)(
        struct stage *stage); /* after stage_stop(): no I/O is in progress, its file is removed */
};

/* Arguments of stage_begin(). The pointers are borrowed until the stage is over. */
struct stage_options {
    const struct stage_events *events;
    struct save *save; /* its save; opaque here */
    uint64_t save_id;
    struct shard_identity identity;
    const struct layout_table *table;
    const struct shard_tensor *tensors; /* of the rank */
    uint32_t num_tensors, num_items;
    uint32_t num_replicas;          /* of its slices that other ranks hold as well */
    struct ledger_promise *promise; /* of the whole save */
    bool is_urgent;
};

/* One rank's part of a save: from announced ranges to a durable file. */
struct stage {
    struct stage_options options; /* save NULL: this rank has not begun */
    struct service *service;
    uint32_t rank;
    struct session *session; /* NULL when the rank has gone */
    uint32_t slot;
    struct image *image;
    struct interval *announced; /* sorted, disjoint, merged */
    uint32_t num_announced, max_announced;
    struct told_digest *told; /* per tensor; NULL: its rank reports no digests */
    /* Of slices that others hold as well (save/compare.c); owned, or NULL. */
    struct replica_digest *replicas;
    uint32_t num_replica_words; /* of them, so far */
    uint64_t unannounced;
    uint32_t unwritten;          /* chunks */
    uint32_t num_tail, unhashed; /* chunks that touch the table; of them, those with data to hash */
    /* Of a window: leading chunks that were written and have left it. */
    uint32_t released;
    bool ended, created, tabling, tabled, syncing, durable, rewritten, stopping, removing;
    bool is_read_back;
    bool has_job;                     /* `job` is in progress; one at a time */
    uint64_t header_hash, table_hash; /* as the manifest has them */
    struct readback readback;         /* its digests are freed with the save */
    struct fault fault;               /* the first */
    struct fault job_fault;           /* of the job, set by the worker */
    struct job job;
    struct storage_request sync;
    struct event synced;
};

int stage_begin(struct stage *stage, const struct stage_options *options, struct session *session,
                uint32_t slot);
/* Handles a ring entry of a rank. */
void stage_entry(struct session *session, const struct arena_entry *entry);
/* The rank, or its session, has gone: its stages continue without it. */
void stage_leave_session(struct session *session);
/* A client waits for it. throttle_queue_hurry() starts its delayed chunks. */
void stage_hurry(struct stage *stage);
/* Bytes from the start of its file that are written and final; 0 for a rewritten file (after a
 * failed sync) until it is durable. */
uint64_t stage_written(const struct stage *stage);
/* Stops the I/O and removes the file; then events->stopped is called. */
void stage_stop(struct stage *stage);

#endif
