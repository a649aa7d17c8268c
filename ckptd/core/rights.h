/* rights.h - what a role may ask of ckptd; one table, in rights.c. What is not in it is denied. */
#ifndef HOLDFAST_CKPTD_CORE_RIGHTS_H
#define HOLDFAST_CKPTD_CORE_RIGHTS_H

#include "proto/base/principal.h"

enum right {
    RIGHT_CONNECT, /* to learn who answers */
    RIGHT_LOOK,    /* list, show, status, history; a dry run of anything */
    RIGHT_LOAD,
    RIGHT_SAVE,    /* open an attempt, save */
    RIGHT_STOP,    /* end a run: who may save into one could also take it over */
    RIGHT_PIN,     /* protect a checkpoint */
    RIGHT_PRUNE,   /* remove by rules, which spare what is pinned or in use */
    RIGHT_OPERATE, /* remove by name, free, add, take a protection away, reload */
    RIGHT_PEER,    /* put copies of checkpoints into the store, and read those that are there */
    NUM_RIGHTS
};

/* `who` is the principal in words; `run` the one that the request names, "" none. ERR_DENIED says
 * which right is missing, or whose run it is. */
int rights_check(const struct principal *principal, const char *who, enum right right,
                 const char *run);

#endif
