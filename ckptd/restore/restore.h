/* restore.h - the table of loads as a whole: opened, retried, closed; see restore.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_RESTORE_H
#define HOLDFAST_CKPTD_RESTORE_RESTORE_H

struct service;

int restore_open(struct service *service);
void restore_close(struct service *service);

#endif
