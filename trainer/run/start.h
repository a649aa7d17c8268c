/* start.h - a start of the trainer before it has ranks: what it prints, its settings, signals. */
#ifndef HOLDFAST_TRAINER_RUN_START_H
#define HOLDFAST_TRAINER_RUN_START_H

#include "trainer/config/config.h"

#include <signal.h>

/* True: training may begin with the settings in *out; signals set *want_stop from here on. False:
 * the start is over with *out_exit, as it prints (--version, --help, --flight, --estimate), is
 * refused, or its kill switch is there. Errors are logged. */
bool start_prepare(struct config *out, int argc, char **argv, volatile sig_atomic_t *want_stop,
                   int *out_exit);

#endif
