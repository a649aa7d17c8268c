/* catalog.h - which checkpoints exist: the list of each run, as the store has them, and what is
 * known of each; see catalog.c. Called on the service thread, but for what says otherwise. */
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
/* It has no manifest: it is set aside or in doubt. */
bool catalog_is_uncommitted(const struct checkpoint *checkpoint);

/* What catalog.c and scan.c need of whom attempts and saves belong to: attempt/coordinator.c. */
struct catalog_events {
    int (*made)(struct run *run);             /* a run has come: ERR_MEMORY */
    void (*read)(struct run *run);            /* its newest attempt is known */
    void (*freed)(struct run *run);           /* it goes */
    void (*saw)(struct run *run);             /* newest_attempt has grown without a start of ours */
    bool (*is_idle)(const struct run *run);   /* no attempt, and nothing in work */
    void (*changed)(struct service *service); /* one has come otherwise than by a save, is noted as
                                                 damaged, or its load has ended: it may be sent,
                                                 mended or kept */
};

/* The runs of the store, and what is in their lists. */
struct catalog {
    const struct catalog_events *events;
    struct run *runs; /* by name */
    uint32_t num_runs, num_checkpoints;
    uint32_t num_promised; /* entries that were made or taken out, and are in no list */
};

int catalog_open(struct service *service, const struct catalog_events *events);
void catalog_close(struct service *service);
/* ERR_NOT_FOUND; with `create`, ERR_BUSY, ERR_INVALID. Of a run that could not be read at the start
 * why not. */
int run_find(struct run **out, struct service *service, const char *name, bool create);
bool run_name_valid(const char *name);
/* Before a save begins: is there room for one more beside those in work? ERR_BUSY. */
int catalog_check_room(const struct service *service);
/* An entry of a checkpoint for the list: made before what cannot be undone, so that nothing is
 * missing in the list for want of memory, and so that no look at a tier enters it meanwhile.
 * ERR_MEMORY; ERR_BUSY: it is promised. */
int catalog_new(struct checkpoint **out, struct run *run, uint64_t step, uint64_t attempt);
/* There is such an entry, made or taken out: whoever has it enters it, or drops it. */
bool catalog_is_promised(const struct run *run, uint64_t step, uint64_t attempt);
void catalog_drop(struct checkpoint *checkpoint); /* NULL is allowed */
/* The one way into the list, also of what was taken out. An entry that is in no tier is in the
 * local one. Where the list has the same save, as another tier or a peer does, the entry is merged
 * into that and freed. Returns that which is listed; NULL: another save of that name is, and the
 * entry is freed (ERR_EXISTS is reported). */
struct checkpoint *catalog_enter(struct checkpoint *entry, const struct manifest_summary *summary);
/* What the other one, of the same save, knows beyond it: copies and places. */
void catalog_merge(struct checkpoint *into, struct checkpoint *from);
/* That tier has it no more. False, and nothing happened: no tier is left. */
bool catalog_lost(struct checkpoint *checkpoint, enum tier_index tier);
/* Its copy there has all shards by now. */
void catalog_completed(struct checkpoint *checkpoint, enum tier_index tier);
/* Its copy there was damaged, and every block of it is right again. */
void catalog_mended(struct checkpoint *checkpoint, enum tier_index tier);
/* Both at once: that tier has it, or of it what `places` say. ERR_EXISTS, ERR_BUSY, ERR_MEMORY. */
struct places;
int catalog_add(struct checkpoint **out, struct run *run, const struct manifest_summary *summary,
                enum tier_index tier, const struct places *places);
struct checkpoint *catalog_find(struct run *run, uint64_t step, uint64_t attempt);
/* The one behind it in the list, also when it is not there itself; or NULL. */
struct checkpoint *catalog_next_older(struct run *run, uint64_t step, uint64_t attempt);
/* Takes one out of the list that is not in use and has no image in memory (memory/resident.h). Then
 * catalog_drop, or catalog_enter again. */
void catalog_take_out(struct checkpoint *checkpoint);
/* Its copy in the tier is damaged: `fault` says why. What is proof of damage (ERR_CORRUPT) is also
 * noted durably there, by a worker. Without another whole copy it is quarantined. */
void catalog_damage(struct checkpoint *checkpoint, enum tier_index tier, const struct fault *fault);
/* That tier has all of it. */
bool catalog_has_whole(const struct checkpoint *checkpoint, unsigned tier);
/* Where its bytes are read: the first tier that has it whole and answers, else the first that has
 * it whole. */
enum tier_index catalog_source(const struct checkpoint *checkpoint);
/* Likewise of one shard. */
enum tier_index catalog_shard_source(const struct checkpoint *checkpoint, uint32_t shard);
/* Its shards lie on several nodes, as the directory in the tier `of` says, which has a part of it;
 * without shards in `places` nothing is told. ERR_MEMORY. */
int catalog_set_places(struct checkpoint *checkpoint, enum tier_index of,
                       const struct places *places);
/* The tier that a node's store is here, NUM_TIERS: it is no peer. */
unsigned catalog_tier_of(const struct service *service, const char *node);
/* Is that fault a proof of damage? A file that was not found may be one that could not be looked
 * for: the next start lists it. */
bool catalog_is_proof(const struct fault *fault);
/* The text of a fault, as it stands in a list and a note. */
void catalog_damage_text(char *out, size_t size, const struct fault *fault);
/* It is listed with that flaw, not served, not removed, and nothing is noted beside it: a person
 * must act. */
void catalog_set_aside(struct checkpoint *checkpoint, const char *flaw, const char *text);
/* Quarantines it for this reason, in memory. */
void catalog_quarantine(struct checkpoint *checkpoint, const char *text, bool is_proven);
/* What the note beside its local copy says was found when that was read last
 * (proto/format/verified.h). One that a tool found damaged is a suspect until ckptd has read it
 * again. */
void catalog_take_verified(struct checkpoint *checkpoint, const struct verified *verified);
/* Leaves such a note: all of it was read in the local tier now, and is whole. Blocks; any thread.
 */
void catalog_note_whole(struct storage *storage, const struct manifest_summary *summary);
/* The durable note beside it. Blocks; any thread. */
void catalog_write_note(struct storage *storage, const char *prefix, const char *text);
enum durability
catalog_durability(const struct checkpoint *checkpoint); /* of its copies together */
/* Empties the list of a run. */
void catalog_forget(struct run *run);
/* The pin that is there, with its note. Blocks; any thread. ERR_MEMORY. */
int catalog_read_pin(struct pin *out, struct storage *storage, const char *run, uint64_t step,
                     uint64_t attempt);
/* In the local tier or the far one; takes the note. */
void catalog_set_pin(struct checkpoint *checkpoint, enum tier_index tier, const struct pin *pin);

/* Was it read back whole since it was committed, and is not known to be damaged? */
bool catalog_is_read_back(const struct checkpoint *checkpoint);

/* The checkpoint's manifest stays cached between the two. */
void catalog_lease(struct checkpoint *checkpoint);
void catalog_unlease(struct checkpoint *checkpoint);

/* ERR_BUSY: no attempt can be opened while a tool brings a checkpoint. */
int catalog_report_adopting(const struct run *run);

#endif
