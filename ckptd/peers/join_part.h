/* join_part.h - this node's part of a save that another node coordinates; see join_part.c. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_PEERS_JOIN_PART_H
#define HOLDFAST_CKPTD_PEERS_JOIN_PART_H

#include "proto/format/manifest.h"

#include <stddef.h>

struct save;
struct storage;
struct places;

/* Something has become of it: the coordinator is told, now or when it has heard what came before.
 */
void part_report(struct save *save);
/* Another attempt comes, and its coordinator has said nothing: what is not whole here is removed;
 * what is stays with its mark, until that node can be asked (recover_parts.c). */
void part_leave(struct save *save);
/* The other nodes' shards have come beside it, before it was heard that it is committed. */
struct run;
void part_completed(struct run *run, const struct manifest_summary *summary);

/* The manifest of a save of which shards lie here: places first, the mark last. The same once more
 * is fine. Blocks; any thread. ERR_EXISTS: another manifest is there. */
int part_place(struct manifest_summary *out, struct storage *storage, const void *text,
               size_t bytes, const char *nonce, const struct places *places);

#endif
