/* durability.h - the levels of durability. Each level includes those before it. Clients request
 * them by name; answers, log lines and metrics use the same names. */
#ifndef HOLDFAST_PROTO_FORMAT_DURABILITY_H
#define HOLDFAST_PROTO_FORMAT_DURABILITY_H

#include <stdbool.h>

enum durability {
    DURABLE_NOT,
    DURABLE_ACCEPTED,   /* in memory: lost with ckptd or its host */
    DURABLE_LOCAL,      /* on the node's disk, synced: survives power loss */
    DURABLE_REPLICATED, /* on the disks of several nodes */
    DURABLE_BUCKET /* in the far tier, a bucket or a shared directory: survives the loss of the node
                    */
};

/* "", "accepted", "local", "replicated", "bucket". */
const char *durability_text(enum durability durability);
/* False: no such name; "" is DURABLE_NOT. */
bool durability_parse(enum durability *out, const char *text);

#endif
