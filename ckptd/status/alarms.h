/* alarms.h - the conditions in Status that need an operator; see alarms.c. */
#ifndef HOLDFAST_CKPTD_STATUS_ALARMS_H
#define HOLDFAST_CKPTD_STATUS_ALARMS_H

struct service;
struct json_t;

/* A list of sentences; empty: no alarm. On the service thread. */
struct json_t *alarms_describe(const struct service *service);

#endif
