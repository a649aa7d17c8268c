/* manifest_fanout.h - who hands the manifest of a save to whom.
 *
 * A save is committed when every node that has a part has the manifest, whose size follows the
 * ranks. If the coordinator sent it to each, its bytes would follow ranks x nodes. So it sends it
 * to FANOUT_EACH nodes, and names for each further one a node that has it by then. Pure: the daemon
 * and the simulator of many nodes run the same code; see manifest_fanout.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_MANIFEST_FANOUT_H
#define HOLDFAST_CKPTD_MACHINES_MANIFEST_FANOUT_H

#include "ckptd/machines/node_set.h"

#include <stdbool.h>
#include <stdint.h>

#define FANOUT_EACH 8u /* nodes that get it from one */

/* Of one save; begins as zeros. */
struct fanout {
    struct node_set asked;
    uint32_t num_given, num_sources;
    uint16_t sources[NODE_SET_MAX / FANOUT_EACH]; /* in the order in which they had it */
};

enum fanout_way {
    FANOUT_HERE, /* the coordinator sends it */
    FANOUT_FROM, /* the node `from` has it */
    FANOUT_WAIT  /* soon one will have it */
};

/* A node that has not got it asks. `has_missed`: the one that was named did not give it. */
enum fanout_way fanout_ask(struct fanout *spread, uint32_t *from, uint32_t node, bool has_missed);
/* That node has it, durable, and can be asked for it. */
void fanout_has(struct fanout *spread, uint32_t node);

#endif
