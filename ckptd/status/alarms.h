/* alarms.h - what needs a person, of all that Status tells; see alarms.c. */
#ifndef HOLDFAST_CKPTD_STATUS_ALARMS_H
#define HOLDFAST_CKPTD_STATUS_ALARMS_H

struct service;
struct json_t;

/* A list of sentences; empty: nothing does. On the service thread. */
struct json_t *alarms_describe(const struct service *service);

#endif
