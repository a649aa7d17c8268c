/* rights.h - which role may make which call; one table, in rights.c. A call that is not in the
 * table is denied. */
#ifndef HOLDFAST_CKPTD_CORE_RIGHTS_H
#define HOLDFAST_CKPTD_CORE_RIGHTS_H

#include "proto/base/principal.h"

enum right {
    RIGHT_CONNECT, /* to connect and identify ckptd */
    RIGHT_LOOK,    /* list, show, status, history; any dry run */
    RIGHT_LOAD,
    RIGHT_SAVE,    /* open an attempt, save */
    RIGHT_STOP,    /* end a run: a user who may save into it could also take it over */
    RIGHT_PIN,     /* protect a checkpoint */
    RIGHT_PRUNE,   /* remove by rules, which spare pinned and used checkpoints */
    RIGHT_OPERATE, /* remove by name, free, add, unpin, reload */
    RIGHT_PEER,    /* write copies of checkpoints into the store, and read those there */
    NUM_RIGHTS
};

/* `who` is the name of the principal for the log; `run` the run in the request, "" none.
 * ERR_DENIED: the message names the missing right, or the owner of the run. */
int rights_check(const struct principal *principal, const char *who, enum right right,
                 const char *run);

#endif
