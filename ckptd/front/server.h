/* server.h - the service as a whole: opened, run, closed; see server.c. */
#ifndef HOLDFAST_CKPTD_FRONT_SERVER_H
#define HOLDFAST_CKPTD_FRONT_SERVER_H

struct service;
struct config;

/* Makes the directory of the store, with the mark of one. */
int service_make_store(const struct config *config);
int service_open(struct service **out, const struct config *config);
/* Runs until the shutdown. ERR_MEMORY: it gave up, and has logged why. */
int service_run(struct service *service);
void service_close(struct service *service);

#endif
