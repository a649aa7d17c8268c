/* manifest_fanout.h - decides which node sends the manifest of a save to which.
 *
 * A save is committed when every node with a part has the manifest, whose size grows with the
 * ranks. If the coordinator sent it to all, its bytes would grow with ranks times nodes. So it
 * sends it to FANOUT_EACH nodes, and names a node that has it for each further one. Pure: the
 * daemon and the simulator of many nodes run the same code; see manifest_fanout.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_MANIFEST_FANOUT_H
#define HOLDFAST_CKPTD_MACHINES_MANIFEST_FANOUT_H

#include "ckptd/machines/node_set.h"

#include <stdbool.h>
#include <stdint.h>

#define FANOUT_EACH 8u /* nodes that get it from one node */

/* State of one save; begins as zeros. */
struct fanout {
    struct node_set asked;
    uint32_t num_given, num_sources;
    uint16_t sources[NODE_SET_MAX / FANOUT_EACH]; /* in the order in which they had it */
};

enum fanout_way {
    FANOUT_HERE, /* the coordinator sends it */
    FANOUT_FROM, /* the node `from` has it */
    FANOUT_WAIT  /* a node will have it soon */
};

/* A node without the manifest asks. `has_missed`: the named node did not supply it. */
enum fanout_way fanout_ask(struct fanout *spread, uint32_t *from, uint32_t node, bool has_missed);
/* That node has the manifest durably, and can supply it. */
void fanout_has(struct fanout *spread, uint32_t node);

#endif
