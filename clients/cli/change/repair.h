/* repair.h - what repair.c has of rebuild.c: a manifest in place of one that is lost or damaged,
 * durably, in a directory that is named with step and attempt. */
#ifndef HOLDFAST_CLIENTS_CLI_CHANGE_REPAIR_H
#define HOLDFAST_CLIENTS_CLI_CHANGE_REPAIR_H

#include "clients/cli/engine/cli.h"

/* Of the headers of its shards, all of which are read and proved; it has no state. ERR_CORRUPT
 * names the shard that is damaged or missing, ERR_NOT_FOUND: there is none. */
int rebuild_from_shards(struct storage *store, const struct cli *cli,
                        const struct selection *selection);
/* That of the run in another store. ERR_MISMATCH: it is of another save. */
int rebuild_from_copy(struct storage *store, const struct selection *selection,
                      struct storage *other, const char *other_run);

#endif
