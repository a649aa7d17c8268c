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
    RIGHT_STOP,    /* end or save a run that the same identity trains (rights_check_owner) */
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
/* May a caller with RIGHT_STOP stop the run, or make it save, that `owner` trains? Operators may,
 * and the same user or certificate. ERR_DENIED. */
int rights_check_owner(const struct principal *caller, const char *who,
                       const struct principal *owner, const char *run);

#endif
