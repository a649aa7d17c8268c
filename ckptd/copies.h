/* copies.h - which nodes and tiers have which shards of a checkpoint; see copies.c. On the service
 * thread. (What loads and answers ask is in catalog.h.) */
#ifndef HOLDFAST_CKPTD_COPIES_H
#define HOLDFAST_CKPTD_COPIES_H

#include "ckptd/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

struct places;

struct service;

/* Was that shard saved there, or is the copy there whole? */
bool copies_has_shard(const struct checkpoint *checkpoint, enum tier_index tier, uint32_t shard);
/* A node that has shards of it, or all, which no other has, and does not answer; NUM_TIERS: there
 * is none. */
enum tier_index copies_out_of_reach(const struct checkpoint *checkpoint);
/* Had a node that is lost a copy of it, or a part? */
bool copies_were_lost(const struct checkpoint *checkpoint);
/* Between these nothing of what nodes hold changes, and a choice that was made counts for all
 * drains that ask for it. */
void copies_begin_look(struct service *service);
void copies_end_look(struct service *service);
int copies_open(struct service *service);
void copies_close(struct service *service);
/* Is that node to get a whole copy? placement.c */
bool copies_goes(const struct checkpoint *checkpoint, enum tier_index tier);
/* Of a save in work, with shards at those places: is it to, once it is committed? */
bool copies_will_go(const struct checkpoint *promised, const struct places *places,
                    enum tier_index tier);
/* Has this node a copy in memory, and no disk that is not lost has one? */
bool copies_is_last_in_memory(const struct checkpoint *checkpoint);
/* The name of its level: "replicated(mem)" where that takes copies in memory, else
 * durability_text(). */
const char *copies_level(const struct checkpoint *checkpoint);
/* The tiers that list it, nearest first: "local,n2 (part),n3 (memory),far". The checkpoint's. */
char *copies_names(struct checkpoint *checkpoint);

#endif
