/* private.h - what the back-ends of comm.h share. */
#ifndef HOLDFAST_TRAINER_COMM_PRIVATE_H
#define HOLDFAST_TRAINER_COMM_PRIVATE_H

#include "trainer/comm/flight.h"

#include <string.h>

/* The head of a world's communicator. */
struct comm comm_base(const struct comm_ops *ops, uint32_t rank, uint32_t size,
                      struct flight *flight);
/* The call's site, and where in its program the caller is. Any thread, while the call goes on. */
#define COMM_SITE_MAX 360u
void comm_tell_site(const struct comm_call *call, char out[COMM_SITE_MAX]);
/* ERR_MISMATCH: this rank's call, and what another rank of the group has called instead. */
int comm_mismatch(const struct comm *comm, const struct comm_call *call, uint32_t other_rank,
                  enum comm_kind other_kind, const char *other_site);
/* What ranks show each other of a call, to see whether they mean the same. */
struct comm_sign {
    uint64_t kind, peer, bytes;
    char site[COMM_SITE_MAX];
};
struct comm_sign comm_sign(const struct comm *comm, const struct comm_call *call);
/* 0, or ERR_MISMATCH with the first of `all` [size] that differs from this rank's. */
int comm_compare(const struct comm *comm, const struct comm_call *call,
                 const struct comm_sign *all);
/* ERR_UNAVAILABLE: the others did not come in time. */
int comm_late(const struct comm *comm, const struct comm_call *call);

/* A number of a sum: float, or of 2 bytes bf16, to nearest even. */
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
