/* start.h - the part of a start before ranks exist: output, settings, signals. */
#ifndef HOLDFAST_TRAINER_RUN_START_H
#define HOLDFAST_TRAINER_RUN_START_H

#include "trainer/config/config.h"

#include <signal.h>

/* Returns true if training may begin with the settings in *out; signals set *want_stop from here
 * on. Returns false if the start ends with *out_exit: it prints (--version, --help, --flight,
 * --estimate), is refused, or its kill switch exists. Errors are logged. */
bool start_prepare(struct config *out, int argc, char **argv, volatile sig_atomic_t *want_stop,
                   int *out_exit);

#endif
