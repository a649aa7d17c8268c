/* recover_parts.h - parts of saves that were left here without a word of their coordinator; see
 * recover_parts.c. */
#ifndef HOLDFAST_CKPTD_PEERS_RECOVER_PARTS_H
#define HOLDFAST_CKPTD_PEERS_RECOVER_PARTS_H

struct service;

/* Looks for them now and then, and asks. On the service thread; needs service->followers. */
void recover_parts_start(struct service *service);

#endif
