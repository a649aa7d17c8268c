/* server.h - the service as a whole: opened, run, closed; see server.c. */
#ifndef HOLDFAST_CKPTD_FRONT_SERVER_H
#define HOLDFAST_CKPTD_FRONT_SERVER_H

struct service;
struct config;

/* The directory of the store, and in it the mark of one. */
int service_make_store(const struct config *config);
int service_open(struct service **out, const struct config *config);
/* Until the end. ERR_MEMORY: it gave up, and has said why in the log. */
int service_run(struct service *service);
void service_close(struct service *service);

#endif
