/* scrub.h - reads committed checkpoints again, slowly, so that damage is found while there is still
 * another copy or an older checkpoint; see scrub.c. */
#ifndef HOLDFAST_CKPTD_KEEP_SCRUB_H
#define HOLDFAST_CKPTD_KEEP_SCRUB_H

#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

struct service;
struct run;
struct checkpoint;
struct scrub;
struct manifest_summary;

/* What it has done since ckptd started, and does. */
struct scrub_state {
    uint64_t bytes, checkpoints, passes, damaged;
    const char *run;        /* that it is in; "": none */
    uint64_t step, attempt; /* likewise */
    const char *doing;      /* "off", "paused", "waiting" for a run that is due, "reading" */
    uint64_t pass_bytes, pass_bytes_read; /* of the pass over that run, by whole checkpoints */
    int64_t ended; /* the oldest end of a pass over a run; 0: one was never read whole */
};

/* A cursor on its way to the disk. */
struct scrub_note {
    char folder[STORAGE_KEY_MAX], text[SCRUB_CURSOR_BYTES_MAX];
    uint64_t number; /* of the one before */
};

/* Of scrub_cursor.c: the next note, and at a start the last one. Without one that can be read the
 * pass begins again. ERR_MEMORY. */
void scrub_take_note(struct scrub_note *out, struct run *run);
int scrub_read_cursor(struct run *run);
/* Behind catalog_open: reads the cursors, also where the scrub is off. Blocks. */
int scrub_open(struct service *service);
/* Behind loop_close, before the storage is closed. */
void scrub_close(struct service *service);
/* A tool brings a checkpoint, run->adopting, and nobody must take it for one that was read back:
 * true, and a note that is to be kept before it is committed. */
bool scrub_expect(struct scrub_note *out, struct run *run, const struct manifest_summary *summary);
/* Blocks; any thread. Of two, that with the higher number counts. */
int scrub_keep(struct storage *storage, const struct scrub_note *note);
/* It is there. */
void scrub_brought(struct run *run, const struct manifest_summary *summary);
/* Starts a pass, or pauses. */
void scrub_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ScrubRequest *request);
bool scrub_is_paused(const struct service *service);
void scrub_state(struct scrub_state *out, const struct service *service);

#endif
