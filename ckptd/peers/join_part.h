/* join_part.h - this node's part of a save that another node coordinates; see join_part.c. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_JOIN_PART_H
#define HOLDFAST_CKPTD_PEERS_JOIN_PART_H

#include "proto/format/manifest.h"

#include <stddef.h>

struct save;
struct storage;
struct places;

/* The part has changed: reports it to the coordinator, now or after the answer to the former
 * report. */
void part_report(struct save *save);
/* Another attempt begins, and the coordinator has not answered: removes shards that are incomplete.
 * A complete part stays with its mark until the coordinator can be asked (recover_parts.c). */
void part_leave(struct save *save);
/* The other nodes' shards have arrived here, before this node heard of the commit. */
struct run;
void part_completed(struct run *run, const struct manifest_summary *summary);

/* Writes the manifest of a save of which shards lie here: places first, the mark last. May be
 * repeated. Blocks; any thread. ERR_EXISTS: another manifest is there. */
int part_place(struct manifest_summary *out, struct storage *storage, const void *text,
               size_t bytes, const char *nonce, const struct places *places);

#endif
