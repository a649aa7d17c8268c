/* stage.h - one rank's part of a save: from announced ranges to a durable file; see stage.c. */
#ifndef HOLDFAST_CKPTD_NODE_STAGE_H
#define HOLDFAST_CKPTD_NODE_STAGE_H

#include "ckptd/loop.h"
#include "proto/arena.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct save;
struct session;
struct image;

struct interval {
    uint64_t start, end;
};

/* One rank's part of a save: from announced ranges to a durable file. */
struct stage {
    struct save *save; /* NULL: this rank has not begun */
    uint32_t rank;
    struct session *session; /* NULL when the rank has gone */
    uint32_t slot;
    struct image *image;
    struct interval *announced; /* sorted, disjoint, merged */
    uint32_t num_announced, max_announced;
    uint64_t unannounced;
    uint32_t unwritten;          /* chunks */
    uint32_t num_tail, unhashed; /* chunks that touch the table; of them, with data to be hashed */
    uint32_t released;           /* of a window: leading chunks that are written and have left it */
    bool ended, created, tabling, tabled, syncing, durable, rewritten, stopping, removing;
    bool has_job;                     /* `job` is under way; there is one at a time */
    uint64_t header_hash, table_hash; /* as the manifest has them */
    struct fault fault;               /* the first */
    struct fault job_fault;           /* of the job, set by the worker */
    struct job job;
    struct storage_request sync;
    struct event synced;
};

int stage_begin(struct stage *stage, struct save *save, struct session *session, uint32_t slot);
void stage_entry(struct session *session, const struct arena_entry *entry);
/* Stops the I/O and removes the file; save_stage_stopped() is called when it is done. */
void stage_stop(struct stage *stage);

#endif
