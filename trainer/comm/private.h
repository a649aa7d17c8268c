/* private.h - shared by the back-ends of comm.h. */
#ifndef HOLDFAST_TRAINER_COMM_PRIVATE_H
#define HOLDFAST_TRAINER_COMM_PRIVATE_H

#include "trainer/comm/flight.h"

#include <string.h>

/* The base of a world's communicator. */
struct comm comm_base(const struct comm_ops *ops, uint32_t rank, uint32_t size,
                      struct flight *flight);
/* The call's site, and the caller's place in its program. Any thread, while the call is under
 * way. */
#define COMM_SITE_MAX 360u
void comm_tell_site(const struct comm_call *call, char out[COMM_SITE_MAX]);
/* ERR_MISMATCH: names this rank's call, and the different call of another rank of the group. */
int comm_mismatch(const struct comm *comm, const struct comm_call *call, uint32_t other_rank,
                  enum comm_kind other_kind, const char *other_site);
/* The part of a call that ranks exchange, to compare their calls. */
struct comm_sign {
    uint64_t kind, peer, bytes;
    char site[COMM_SITE_MAX];
};
struct comm_sign comm_sign(const struct comm *comm, const struct comm_call *call);
/* 0, or ERR_MISMATCH with the first of `all` [size] that differs from this rank's. */
int comm_compare(const struct comm *comm, const struct comm_call *call,
                 const struct comm_sign *all);
/* ERR_UNAVAILABLE: other ranks did not come in time. */
int comm_late(const struct comm *comm, const struct comm_call *call);

/* A number of a sum: float, or bf16 if it has 2 bytes, rounded to nearest even. */
static inline float comm_number_at(const void *numbers, size_t i, size_t element)
{
    uint32_t bits;
    float x;
    if (element == sizeof(float))
        return ((const float *)numbers)[i];
    bits = (uint32_t)((const uint16_t *)numbers)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}
static inline void comm_put_number(void *numbers, size_t i, float x, size_t element)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (element == sizeof(float))
        ((float *)numbers)[i] = x;
    else
        ((uint16_t *)numbers)[i] =
            (uint16_t)(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
