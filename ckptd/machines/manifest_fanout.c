/* manifest_fanout.c - see manifest_fanout.h.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_manifest_fanout.c):
 *   fanout.S1  Each node, including the coordinator, supplies at most FANOUT_EACH nodes that ask
 *       for the first time.
 *   fanout.S2  A node that asks again, as its answer was lost, is answered at once: the lost
 *       answer's slot of fanout.S1 delays no node.
 *   fanout.S3  Only a node that has reported the manifest is named.
 *   fanout.S4  A node whose named source failed gets it from the coordinator: no node waits for one
 *       that is gone. */
#include "ckptd/machines/manifest_fanout.h"

enum fanout_way fanout_ask(struct fanout *spread, uint32_t *from, uint32_t node, bool has_missed)
{
    bool asks_again = node_set_has(&spread->asked, node);
    uint32_t giver = spread->num_given / FANOUT_EACH; /* 0: the coordinator. fanout.S1 */
    if (asks_again)
        giver = spread->num_sources; /* fanout.S2 */
    if (giver > spread->num_sources)
        return FANOUT_WAIT; /* fanout.S3 */
    node_set_add(&spread->asked, node);
    spread->num_given += !asks_again;
    if (giver == 0 || has_missed)
        return FANOUT_HERE; /* fanout.S4 */
    *from = spread->sources[giver - 1];
    return FANOUT_FROM;
}

void fanout_has(struct fanout *spread, uint32_t node)
{
    bool has_room = spread->num_sources < sizeof spread->sources / sizeof spread->sources[0];
    for (uint32_t i = 0; i < spread->num_sources; i++)
        if (spread->sources[i] == node)
            return; /* it reports again */
    if (has_room)
        spread->sources[spread->num_sources++] = (uint16_t)node;
}
