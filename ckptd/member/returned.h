/* returned.h - parts of saves that were left here without a word of their coordinator; see
 * returned.c. */
#ifndef HOLDFAST_CKPTD_MEMBER_RETURNED_H
#define HOLDFAST_CKPTD_MEMBER_RETURNED_H

struct service;

/* Looks for them now and then, and asks. On the service thread; needs service->followers. */
void recover_parts_start(struct service *service);

#endif
