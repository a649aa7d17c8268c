/* health.h - whether ckptd can save, for Status, grpc.health.v1 and `ckpt-cli health`; see
 * health.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_STATUS_HEALTH_H
#define HOLDFAST_CKPTD_STATUS_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;

#define HEALTH_REASON_BYTES 700u

/* Checks again every limits.look_ms. */
int health_open(struct service *service);
/* Checks now, and updates grpc.health.v1. */
void health_check(struct service *service);
/* Can the next save of every run in training be expected to succeed? If not, `out` has the
 * reason. */
bool health_can_save(const struct service *service, char out[HEALTH_REASON_BYTES]);
/* Do an attempt and a save of `bytes` by this node's ranks fit? If not, `out` has the reason. */
bool health_expect(const struct service *service, uint64_t bytes, char out[HEALTH_REASON_BYTES]);
/* Seconds since the commit of the run's newest whole checkpoint; -1: none. */
int64_t health_age(const struct run *run);
/* Seconds between its commits; -1: unknown. */
double health_interval(const struct run *run);
/* Seconds for which its ranks here have waited for the next commit: since the newest one, or since
 * their attempt was opened. -1: no ranks here, or another node coordinates the run. */
int64_t health_wait(const struct run *run);

#endif
