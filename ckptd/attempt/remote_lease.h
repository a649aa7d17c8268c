/* remote_lease.h - the lease of who trains a run, in the far tier; see tenure.h for the rules and
 * remote_lease.c for the object. On the service thread. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_REMOTE_LEASE_H
#define HOLDFAST_CKPTD_ATTEMPT_REMOTE_LEASE_H

#include "ckptd/core/loop.h"
#include "ckptd/core/store_identity.h"
#include "ckptd/machines/tenure.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct service;

/* What the object says. */
struct remote_lease_text {
    struct tenure_seen seen;
    char store[STORE_IDENTITY_BYTES], host[64], since[32];
    int64_t step; /* the newest that its attempt began to save; -1: none yet */
    int64_t every_ms;
};

/* Of a run whose attempt this ckptd coordinates. */
struct remote_lease {
    struct run *run;
    bool is_held, is_silent;
    uint64_t passed; /* what the next attempt takes over; with is_forced all that it finds */
    bool is_forced;
    bool busy; /* then the worker has what follows */
    struct job job;
    char own[STORE_IDENTITY_BYTES]; /* whose it is; "" until the first renewal */
    struct tenure_renewal renewal;
    struct remote_lease_text text; /* what it writes, then what it found */
    enum tenure_step step;
    struct fault fault;
};

/* A look by a start. */
struct remote_lease_query {
    struct service *service;
    const char *run; /* lives as long as the look */
    struct remote_lease_text found;
    struct fault fault;
    struct job job;
    void (*go_on)(struct remote_lease_query *query);
};

bool remote_lease_is_used(const struct service *service);
bool remote_lease_is_busy(const struct run *run);
void remote_lease_open(struct service *service); /* behind tier_open: renewals begin */
void remote_lease_read(struct remote_lease_query *query);
/* A start goes on that saw lease `passed`, 0: none; then its attempt is open. ERR_MEMORY. */
int remote_lease_pass(struct run *run, uint64_t passed, bool is_forced);
void remote_lease_opened(struct run *run);
/* ckptd ends: the leases that it holds end. False: not all have yet. */
bool remote_lease_end(struct service *service);
/* ERR_STALE: the attempt was fenced by a start elsewhere. */
int remote_lease_check(const struct run *run, uint64_t attempt);
int remote_lease_report(const char *run, const struct remote_lease_text *text, int code);

#endif
