/* copies.h - which nodes and tiers have which shards of a checkpoint; see copies.c. On the service
 * thread. (catalog.h has the functions for loads and answers.) */
#ifndef HOLDFAST_CKPTD_CORE_COPIES_H
#define HOLDFAST_CKPTD_CORE_COPIES_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/machines/placement.h"

#include <stdbool.h>
#include <stdint.h>

struct places;

struct service;

/* For a new checkpoint: it has no copies yet. */
void copies_init(struct checkpoint *checkpoint);
void copies_free(struct checkpoint *checkpoint);
/* Forgets the copy in that tier. */
void copies_forget(struct checkpoint *checkpoint, enum tier_index tier);
/* Does that tier have the shard: by its place, or in a whole copy? */
bool copies_has_shard(const struct checkpoint *checkpoint, enum tier_index tier, uint32_t shard);
/* A silent node that has shards, or all, which no other node has; NUM_TIERS: none. */
enum tier_index copies_out_of_reach(const struct checkpoint *checkpoint);
/* Did a lost node have a copy of it, or a part? */
bool copies_were_lost(const struct checkpoint *checkpoint);
/* Between these calls the copies on nodes do not change, and one choice serves all drains that ask
 * for it. */
void copies_begin_scan(const struct service *service);
void copies_end_scan(const struct service *service);
int copies_open(struct service *service);
void copies_close(struct service *service);
/* Does placement.c choose that tier for a whole copy? */
bool copies_goes(const struct checkpoint *checkpoint, enum tier_index tier);
/* The tiers that shall have a copy; returns their number. */
uint32_t copies_chosen(enum tier_index out[PLACEMENT_COPIES_MAX],
                       const struct checkpoint *checkpoint);
/* For a save in work with shards at those places: the tiers that shall have a copy once it is
 * committed. */
uint32_t copies_will_go(enum tier_index out[PLACEMENT_COPIES_MAX],
                        const struct checkpoint *promised, const struct places *places);
/* True if this node has a copy in memory, and every disk with a copy is lost. */
bool copies_is_last_in_memory(const struct checkpoint *checkpoint);
/* The name of its level: "replicated(mem)" if that needs copies in memory, else
 * durability_text(). */
const char *copies_level(const struct checkpoint *checkpoint);
/* The tiers that list it, nearest first: "local,n2 (part),n3 (memory),far". Of more than
 * COPIES_NAMED_MAX peers the others are counted: ",7 more". The text belongs to the checkpoint. */
#define COPIES_NAMED_MAX 16u
#define COPIES_TEXT_MAX ((COPIES_NAMED_MAX + 4) * (MEMBER_NAME_MAX + sizeof " (memory)"))
char *copies_names(struct checkpoint *checkpoint);

#endif
