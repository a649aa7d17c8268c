/* health.h - can ckptd save? What Status, grpc.health.v1 and `ckpt-cli health` say; see health.c.
 * On the service thread. */
#ifndef HOLDFAST_CKPTD_HEALTH_H
#define HOLDFAST_CKPTD_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;

/* The saves of a run since its last commit, or since ckptd started. */
struct run_health {
    uint32_t failures; /* in a row, for whatever reason */
    bool is_store;     /* the store or ckptd caused one of them: `reason` is the newest of those */
    char reason[512];  /* else of the newest; "": none */
};

#define HEALTH_REASON_BYTES 700u

/* Looks again every limits.look_ms. */
void health_open(struct service *service);
/* A save of the run failed: `code` is the error that explains it; 0 or ERR_ABORTED: its ranks gave
 * it up, which says nothing about the store. */
void health_failed(struct run *run, int code, const char *reason);
void health_saved(struct run *run);
/* Looks now, and tells grpc.health.v1. */
void health_look(struct service *service);
/* May the next save of every run that is trained be expected to succeed? Else why not, in `out`. */
bool health_can_save(const struct service *service, char out[HEALTH_REASON_BYTES]);
/* Seconds since the newest whole checkpoint of the run was committed; -1: there is none. */
int64_t health_age(const struct run *run);

#endif
