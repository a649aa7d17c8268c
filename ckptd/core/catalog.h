/* catalog.h - the checkpoints that exist: the list of each run, by the contents of the store; see
 * catalog.c. On the service thread, except where stated otherwise. */
#ifndef HOLDFAST_CKPTD_CORE_CATALOG_H
#define HOLDFAST_CKPTD_CORE_CATALOG_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/machines/placement.h"
#include "proto/format/manifest.h"
#include "proto/format/verified.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

/* FLAW_ASIDE, ... of proto/format/flaw.h */
bool catalog_has_flaw(const struct checkpoint *checkpoint, const char *flaw);
/* It is damaged or unreadable. */
bool catalog_is_quarantined(const struct checkpoint *checkpoint);
/* It has no manifest: it is set aside or in doubt. */
bool catalog_is_uncommitted(const struct checkpoint *checkpoint);

/* Functions of the owner of attempts and saves, for catalog.c and scan.c: attempt/coordinator.c. */
struct catalog_events {
    int (*made)(struct run *run);   /* a run was added: ERR_MEMORY */
    void (*read)(struct run *run);  /* its newest attempt is known */
    void (*freed)(struct run *run); /* the run is freed */
    /* newest_attempt has grown without a start by this ckptd. */
    void (*saw)(struct run *run);
    bool (*is_idle)(const struct run *run); /* no attempt, and no save in work */
    /* A checkpoint was added other than by a save, is damaged, or its load has ended: it may be
     * sent, mended or kept. */
    void (*changed)(struct service *service);
};

/* The runs of the store, and their lists. */
struct catalog {
    const struct catalog_events *events;
    struct run *runs; /* by name */
    uint32_t num_runs, num_checkpoints;
    uint32_t num_promised; /* entries that are promised or taken out, and are in no list */
};

int catalog_open(struct service *service, const struct catalog_events *events);
void catalog_close(struct service *service);
/* ERR_NOT_FOUND; with `create`, ERR_BUSY, ERR_INVALID. If the run could not be read at the start:
 * that error. */
int run_find(struct run **out, struct service *service, const char *name, bool create);
bool run_name_valid(const char *name);
/* Before a save begins: is there room for one more checkpoint besides the promised ones?
 * ERR_BUSY. */
int catalog_check_room(const struct service *service);
/* Makes an entry for the list before an irreversible step, so that no lack of memory can leave the
 * checkpoint out, and no refresh of a tier enters it meanwhile. ERR_MEMORY; ERR_BUSY: it is
 * promised. */
int catalog_new(struct checkpoint **out, struct run *run, uint64_t step, uint64_t attempt);
/* True if such an entry was made or taken out: its owner enters or drops it. */
bool catalog_is_promised(const struct run *run, uint64_t step, uint64_t attempt);
void catalog_drop(struct checkpoint *checkpoint); /* NULL is allowed */
/* The only way into the list, also for an entry that was taken out. An entry without a tier is in
 * the local one. If the list has the same save, from another tier or a peer, the entry is merged
 * into that and freed. Returns the listed entry; NULL: another save of that name is listed, and the
 * entry is freed (ERR_EXISTS is reported). */
struct checkpoint *catalog_enter(struct checkpoint *entry, const struct manifest_summary *summary);
/* Adds copies and places of `from`, an entry of the same save. */
void catalog_merge(struct checkpoint *into, struct checkpoint *from);
/* That tier has no copy any more. False, with no change: no other tier has one. */
bool catalog_lost(struct checkpoint *checkpoint, enum tier_index tier);
/* The copy in that tier has all shards now. */
void catalog_completed(struct checkpoint *checkpoint, enum tier_index tier);
/* The copy in that tier was damaged, and every block of it is right again. */
void catalog_mended(struct checkpoint *checkpoint, enum tier_index tier);
/* catalog_new() and catalog_enter(): that tier has the checkpoint, or the shards that `places`
 * name. ERR_EXISTS, ERR_BUSY, ERR_MEMORY. */
struct places;
int catalog_add(struct checkpoint **out, struct run *run, const struct manifest_summary *summary,
                enum tier_index tier, const struct places *places);
struct checkpoint *catalog_find(struct run *run, uint64_t step, uint64_t attempt);
/* The next older one in the list, also if this one is not listed; or NULL. */
struct checkpoint *catalog_next_older(struct run *run, uint64_t step, uint64_t attempt);
/* Takes a checkpoint out of the list; it must not be in use or have an image in memory
 * (memory/resident.h). Then call catalog_drop() or catalog_enter(). */
void catalog_take_out(struct checkpoint *checkpoint);
/* Marks the copy in the tier as damaged, with the fault. A proof of damage (ERR_CORRUPT) is also
 * noted durably there, by a worker. Without another whole copy it is quarantined. */
void catalog_damage(struct checkpoint *checkpoint, enum tier_index tier, const struct fault *fault);
/* That tier has a whole copy. */
bool catalog_has_whole(const struct checkpoint *checkpoint, unsigned tier);
/* The tier to read from: the first with a whole copy that answers, else the first with a whole
 * copy. */
enum tier_index catalog_source(const struct checkpoint *checkpoint);
/* The same for one shard. */
enum tier_index catalog_shard_source(const struct checkpoint *checkpoint, uint32_t shard);
/* Its shards are on several nodes, as the directory in the tier `of` says, which has a part; does
 * nothing if `places` is empty. ERR_MEMORY. */
int catalog_set_places(struct checkpoint *checkpoint, enum tier_index of,
                       const struct places *places);
/* The tier of a node's store here; NUM_TIERS: it is no peer. */
unsigned catalog_tier_of(const struct service *service, const char *node);
/* Does that fault prove damage? ERR_NOT_FOUND does not: the file may be unreachable; the next start
 * lists it. */
bool catalog_is_proof(const struct fault *fault);
/* The text of a fault for lists and notes. */
void catalog_damage_text(char *out, size_t size, const struct fault *fault);
/* Lists it with that flaw: it is not served, not removed, and no note is written; an operator must
 * act. */
void catalog_set_aside(struct checkpoint *checkpoint, const char *flaw, const char *text);
#define CATALOG_ASIDE_TEXT                                                                        \
    "it has no manifest, and no mark of unfinished work: put the manifest back, and start ckptd " \
    "again; or remove it: ckpt-cli rm"
/* Quarantines it with this reason, in memory: as damaged, or, without a proof, as unreadable. */
void catalog_quarantine(struct checkpoint *checkpoint, const char *text, bool is_proven);
/* Takes over the note beside its local copy, which has the result of the last verification
 * (proto/format/verified.h). A copy that a tool found damaged is suspect until ckptd has read it
 * again. */
void catalog_take_verified(struct checkpoint *checkpoint, const struct verified *verified);
/* Writes such a note: all of the local copy was read now, and is whole. Blocks; any thread. */
void catalog_note_whole(struct storage *storage, const struct manifest_summary *summary);
/* Writes the durable quarantine note beside it. Blocks; any thread. */
void catalog_write_note(struct storage *storage, const char *prefix, const char *text);
enum durability
catalog_durability(const struct checkpoint *checkpoint); /* of its copies together */
/* Empties the list of a run. */
void catalog_forget(struct run *run);
/* Reads the pin that exists there, with its note. Blocks; any thread. ERR_MEMORY. */
int catalog_read_pin(struct pin *out, struct storage *storage, const char *run, uint64_t step,
                     uint64_t attempt);
/* In the local tier or the far one; takes ownership of the note. */
void catalog_set_pin(struct checkpoint *checkpoint, enum tier_index tier, const struct pin *pin);

/* True if it was read back whole since its commit, and is not known to be damaged. */
bool catalog_is_read_back(const struct checkpoint *checkpoint);

/* The manifest stays cached between the two calls. */
void catalog_lease(struct checkpoint *checkpoint);
void catalog_unlease(struct checkpoint *checkpoint);

/* ERR_BUSY: no attempt can be opened while a tool adds a checkpoint. */
int catalog_report_adopting(const struct run *run);

#endif
