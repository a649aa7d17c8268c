/* durability.h - how much a checkpoint survives, by name. Each level includes those before it. The
 * names are what clients ask for and what every answer, log line and metric says. */
#ifndef HOLDFAST_PROTO_FORMAT_DURABILITY_H
#define HOLDFAST_PROTO_FORMAT_DURABILITY_H

#include <stdbool.h>

enum durability {
    DURABLE_NOT,
    DURABLE_ACCEPTED,   /* in memory: dies with ckptd or its host */
    DURABLE_LOCAL,      /* on the node's disk, synced: survives a loss of power */
    DURABLE_REPLICATED, /* on the disks of several nodes */
    DURABLE_BUCKET      /* in the far tier, a bucket or a shared directory: survives the node */
};

/* "", "accepted", "local", "replicated", "bucket". */
const char *durability_text(enum durability durability);
/* False: no such name; "" is DURABLE_NOT. */
bool durability_parse(enum durability *out, const char *text);

#endif
