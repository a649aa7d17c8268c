/* copies.h - which nodes and tiers have which shards of a checkpoint; see copies.c. On the service
 * thread. (What loads and answers ask is in catalog.h.) */
#ifndef HOLDFAST_CKPTD_CORE_COPIES_H
#define HOLDFAST_CKPTD_CORE_COPIES_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/machines/placement.h"

#include <stdbool.h>
#include <stdint.h>

struct places;

struct service;

/* Of a checkpoint that is made: it has none yet. */
void copies_init(struct checkpoint *checkpoint);
void copies_free(struct checkpoint *checkpoint);
/* Nothing is known of that one any more. */
void copies_forget(struct checkpoint *checkpoint, enum tier_index tier);
/* Was that shard saved there, or is the copy there whole? */
bool copies_has_shard(const struct checkpoint *checkpoint, enum tier_index tier, uint32_t shard);
/* A node that has shards of it, or all, which no other has, and does not answer; NUM_TIERS: there
 * is none. */
enum tier_index copies_out_of_reach(const struct checkpoint *checkpoint);
/* Had a node that is lost a copy of it, or a part? */
bool copies_were_lost(const struct checkpoint *checkpoint);
/* Between these nothing of what nodes hold changes, and a choice that was made counts for all
 * drains that ask for it. */
void copies_begin_scan(const struct service *service);
void copies_end_scan(const struct service *service);
int copies_open(struct service *service);
void copies_close(struct service *service);
/* Is that node to get a whole copy? placement.c */
bool copies_goes(const struct checkpoint *checkpoint, enum tier_index tier);
/* The tiers that are to get one; so many. */
uint32_t copies_chosen(enum tier_index out[PLACEMENT_COPIES_MAX],
                       const struct checkpoint *checkpoint);
/* Of a save in work, with shards at those places: those that are to, once it is committed. */
uint32_t copies_will_go(enum tier_index out[PLACEMENT_COPIES_MAX],
                        const struct checkpoint *promised, const struct places *places);
/* Has this node a copy in memory, and no disk that is not lost has one? */
bool copies_is_last_in_memory(const struct checkpoint *checkpoint);
/* The name of its level: "replicated(mem)" where that takes copies in memory, else
 * durability_text(). */
const char *copies_level(const struct checkpoint *checkpoint);
/* The tiers that list it, nearest first: "local,n2 (part),n3 (memory),far". Of more than
 * COPIES_NAMED_MAX peers the others are counted: ",7 more". The checkpoint's. */
#define COPIES_NAMED_MAX 16u
#define COPIES_TEXT_MAX ((COPIES_NAMED_MAX + 4) * (MEMBER_NAME_MAX + sizeof " (memory)"))
char *copies_names(struct checkpoint *checkpoint);

#endif
