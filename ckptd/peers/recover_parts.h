/* recover_parts.h - settles parts of saves that remained here without a verdict of their
 * coordinator; see recover_parts.c. */
#ifndef HOLDFAST_CKPTD_PEERS_RECOVER_PARTS_H
#define HOLDFAST_CKPTD_PEERS_RECOVER_PARTS_H

struct service;

/* Looks for such parts periodically and asks their coordinators. On the service thread; needs
 * service->followers. */
void recover_parts_start(struct service *service);

#endif
