/* repair.h - functions of rebuild.c for repair.c: durably replace a lost or damaged manifest, in a
 * directory that is named with step and attempt. */
#ifndef HOLDFAST_CLIENTS_CLI_CHANGE_REPAIR_H
#define HOLDFAST_CLIENTS_CLI_CHANGE_REPAIR_H

#include "clients/cli/engine/cli.h"

/* Makes it from the headers of its shards, which are all read and verified; it has no state.
 * ERR_CORRUPT names a damaged or missing shard, ERR_NOT_FOUND: there is none. */
int rebuild_from_shards(struct storage *store, const struct cli *cli,
                        const struct selection *selection);
/* Copies it from the run in another store. ERR_MISMATCH: it is of another save. */
int rebuild_from_copy(struct storage *store, const struct selection *selection,
                      struct storage *other, const char *other_run);

#endif
