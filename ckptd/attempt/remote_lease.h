/* remote_lease.h - the lease in the far tier that shows which ckptd trains a run; see tenure.h for
 * the rules and remote_lease.c for the object. On the service thread. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_REMOTE_LEASE_H
#define HOLDFAST_CKPTD_ATTEMPT_REMOTE_LEASE_H

#include "ckptd/core/loop.h"
#include "ckptd/core/store_identity.h"
#include "ckptd/machines/tenure.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct service;

/* The contents of the object. */
struct remote_lease_text {
    struct tenure_seen seen;
    char store[STORE_IDENTITY_BYTES], host[64], since[32];
    int64_t step; /* the newest step that its attempt began to save; -1: none yet */
    int64_t every_ms;
};

/* For a run whose attempt this ckptd coordinates. */
struct remote_lease {
    struct run *run;
    bool is_held, is_silent;
    uint64_t passed; /* the lease that the next attempt takes over; with is_forced any lease */
    bool is_forced;
    bool busy; /* then the worker owns the fields below */
    struct job job;
    char own[STORE_IDENTITY_BYTES]; /* the identity in it; "" until the first renewal */
    struct tenure_renewal renewal;
    struct remote_lease_text text; /* to be written, then as found */
    enum tenure_step step;
    struct fault fault;
};

/* A query by a start. */
struct remote_lease_query {
    struct service *service;
    const char *run; /* valid as long as the query */
    struct remote_lease_text found;
    struct fault fault;
    struct job job;
    void (*go_on)(struct remote_lease_query *query);
};

bool remote_lease_is_used(const struct service *service);
bool remote_lease_is_busy(const struct run *run);
void remote_lease_open(struct service *service); /* call after tier_open(); begins renewals */
void remote_lease_read(struct remote_lease_query *query);
/* A start goes on that saw lease `passed`, 0: none; then its attempt is opened. ERR_MEMORY. */
int remote_lease_pass(struct run *run, uint64_t passed, bool is_forced);
void remote_lease_opened(struct run *run);
/* Shutdown: ends the leases that this ckptd holds. False: some have not ended yet. */
bool remote_lease_end(struct service *service);
/* ERR_STALE: a start elsewhere fenced the attempt. */
int remote_lease_check(const struct run *run, uint64_t attempt);
int remote_lease_report(const char *run, const struct remote_lease_text *text, int code);

#endif
