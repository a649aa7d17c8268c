/* rates.h - durations of a step's calls on machines of given speed. */
#ifndef HOLDFAST_TRAINER_PLAN_RATES_H
#define HOLDFAST_TRAINER_PLAN_RATES_H

#include "trainer/plan/mesh.h"

/* Of one rank. */
struct rates {
    double flops;         /* a second, of products and attention */
    double machine_bytes; /* a second, to ranks of its machine */
    double network_bytes; /* a second, to ranks of other machines */
    double call_seconds;  /* per call, added to the time of its bytes */
    uint32_t machine_ranks;
};

/* Seconds of a call in a group of the mesh. Data that goes around a ring passes from machine to
 * machine once, over the links of all its ranks on a machine. Data that each rank sends to each
 * other rank goes over its own link. The time of a send is counted at its receive. */
double rates_call(const struct rates *rates, const struct mesh *mesh, const struct comm *comm,
                  const struct comm_call *call);

/* Bytes of a call that leave this rank's machine over its own link, counted in the same way. */
uint64_t rates_away(uint32_t machine_ranks, const struct mesh *mesh, const struct comm *comm,
                    const struct comm_call *call);

#endif
