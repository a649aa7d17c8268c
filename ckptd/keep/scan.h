/* scan.h - what the store holds, read at a start; see scan.c. Blocks. */
#ifndef HOLDFAST_CKPTD_KEEP_SCAN_H
#define HOLDFAST_CKPTD_KEEP_SCAN_H

struct service;

/* Fills the catalog: runs, attempts, checkpoints; removes rubbish. Before the service runs. */
int scan_store(struct service *service);

#endif
