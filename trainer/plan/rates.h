/* rates.h - what the calls of a step last on machines of given speed. */
#ifndef HOLDFAST_TRAINER_PLAN_RATES_H
#define HOLDFAST_TRAINER_PLAN_RATES_H

#include "trainer/plan/mesh.h"

/* Of one rank. */
struct rates {
    double flops;         /* a second, of products and attention */
    double machine_bytes; /* a second, that it sends to ranks of its machine */
    double network_bytes; /* a second, that it sends to those of others */
    double call_seconds;  /* of each call, beside its bytes */
    uint32_t machine_ranks;
};

/* Seconds of a call in a group of the mesh. What goes around a ring of ranks passes from machine to
 * machine once, over the links of all its ranks on a machine; what each rank sends to each other
 * one goes over its own link. A send lasts what its receive does, and nothing itself. */
double rates_call(const struct rates *rates, const struct mesh *mesh, const struct comm *comm,
                  const struct comm_call *call);

/* Bytes of a call that leave this rank's machine over its own link, counted likewise. */
uint64_t rates_away(uint32_t machine_ranks, const struct mesh *mesh, const struct comm *comm,
                    const struct comm_call *call);

#endif
