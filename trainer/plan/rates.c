/* rates.c - seconds of calls (see rates.h). */
#include "trainer/plan/rates.h"

#include <math.h>

/* The communicator's ranks on this rank's machine. */
static uint32_t ranks_here(uint32_t machine_ranks, const struct mesh *mesh, const struct comm *comm)
{
    for (enum group group = 0; group < NUM_GROUPS; group++)
        if (mesh->of[group] == comm)
            return mesh_group_on_machine(mesh, group, machine_ranks);
    return comm->size < machine_ranks ? comm->size : machine_ranks;
}

/* Each rank sends to each; data for other machines goes over the rank's own link, at the same
 * time. */
static double scattered(const struct rates *rates, double bytes, uint32_t here, uint32_t all)
{
    double away = bytes * (all - here) / (all - 1);
    return fmax(away / rates->network_bytes, (bytes - away) / rates->machine_bytes);
}

static double in_ring(const struct rates *rates, double bytes, uint32_t here, uint32_t all)
{
    double network = rates->network_bytes * here;
    bool stays = here == all || network > rates->machine_bytes;
    return bytes / (stays ? rates->machine_bytes : network);
}

double rates_call(const struct rates *rates, const struct mesh *mesh, const struct comm *comm,
                  const struct comm_call *call)
{
    uint32_t here = ranks_here(rates->machine_ranks, mesh, comm), all = comm->size;
    double bytes = (double)comm_call_sent(comm, call), lasts = 0;
    if (all == 1)
        return 0;
    switch (call->kind) {
    case COMM_SPLIT:
    case COMM_SEND:
    case COMM_WAIT:
        return 0;
    case COMM_RECEIVE:
        lasts = (double)comm_call_bytes(comm, call) /
                (here == all ? rates->machine_bytes : rates->network_bytes);
        break;
    case COMM_ALL_TO_ALL:
        lasts = scattered(rates, bytes, here, all);
        break;
    default:
        lasts = in_ring(rates, bytes, here, all);
    }
    return rates->call_seconds + lasts;
}

uint64_t rates_away(uint32_t machine_ranks, const struct mesh *mesh, const struct comm *comm,
                    const struct comm_call *call)
{
    uint32_t here = ranks_here(machine_ranks, mesh, comm), all = comm->size;
    uint64_t bytes = comm_call_sent(comm, call);
    if (here == all)
        return 0;
    if (call->kind == COMM_ALL_TO_ALL)
        return bytes * (all - here) / (all - 1);
    return call->kind == COMM_SEND ? bytes : bytes / here;
}
