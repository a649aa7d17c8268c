/* run.h - the coordinators of runs as a whole; see run.c. */
#ifndef HOLDFAST_CKPTD_RUN_RUN_H
#define HOLDFAST_CKPTD_RUN_RUN_H

struct service;
struct session;
struct hooks;

extern const struct catalog_events coordinator_events;

int run_open(struct service *service, const struct hooks *hooks);
void run_close(struct service *service);
/* The session of a rank ends, and its ring is empty: gives up saves that it has not ended. */
void run_rank_left(struct session *session);
/* A rank copies no more into the images of its saves so far. */
void run_rank_let_go(struct session *session);

#endif
