/* health.h - can ckptd save? What Status, grpc.health.v1 and `ckpt-cli health` say; see health.c.
 * On the service thread. */
#ifndef HOLDFAST_CKPTD_STATUS_HEALTH_H
#define HOLDFAST_CKPTD_STATUS_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;

#define HEALTH_REASON_BYTES 700u

/* Looks again every limits.look_ms. */
int health_open(struct service *service);
/* Looks now, and tells grpc.health.v1. */
void health_check(struct service *service);
/* May the next save of every run that is trained be expected to succeed? Else why not, in `out`. */
bool health_can_save(const struct service *service, char out[HEALTH_REASON_BYTES]);
/* Do an attempt and a save of so many bytes of this node's ranks fit? Else what lacks, in `out`. */
bool health_expect(const struct service *service, uint64_t bytes, char out[HEALTH_REASON_BYTES]);
/* Seconds since the newest whole checkpoint of the run was committed; -1: there is none. */
int64_t health_age(const struct run *run);
/* Seconds between its commits; -1: not known. */
double health_interval(const struct run *run);
/* Seconds for which its ranks here wait for the next commit: since the newest one, or since their
 * attempt was opened. -1: it has none here, or another node coordinates it. */
int64_t health_wait(const struct run *run);

#endif
