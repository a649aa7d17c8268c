/* scan.h - reads the contents of the store at a start; see scan.c. Blocks. */
#ifndef HOLDFAST_CKPTD_KEEP_SCAN_H
#define HOLDFAST_CKPTD_KEEP_SCAN_H

struct service;

/* Fills the catalog with runs, attempts and checkpoints; removes rubbish. Call before the service
 * runs. */
int scan_store(struct service *service);

#endif
