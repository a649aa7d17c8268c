/* signals.h - the one thread of a trainer that signals come to.
 *
 * No handler may run on a thread that computes: oneDNN's generated code keeps data deeper below the
 * stack pointer than the 128 bytes of the x86-64 ABI's red zone, and the kernel writes the frame of
 * a handler there. With 2.6.3 one signal in some dozens ended a run with a damaged heap; what it
 * does to sums is not known. So every signal but a thread's own faults is blocked in all threads,
 * and a thread of its own waits for those that mean something. Handlers that a library may have
 * set run there, too.
 *
 * The one exception is asked for by an operator: SIGQUIT has each thread print its stack
 * (proto/base/stacks.h), from a handler on a stack of its own, below which nothing is written. */
#ifndef HOLDFAST_TRAINER_RUN_SIGNALS_H
#define HOLDFAST_TRAINER_RUN_SIGNALS_H

#include <signal.h>

/* Before other threads are started: they inherit what is blocked. From here on SIGTERM, SIGUSR1,
 * SIGHUP and SIGINT (the last two unless they are ignored: nohup, a background job of a script) set
 * *out_stop; a second SIGINT ends the process at once; SIGUSR2 dumps the flight recorders and
 * SIGQUIT the stacks of all threads, also when every rank hangs. A crash prints stacks, too.
 * Errors: ERR_BUSY, no thread. */
int signals_start(volatile sig_atomic_t *out_stop);
/* When the first of those that set it came, as clock_seconds() has it; 0: none has. Any thread. */
double signals_asked_at(void);

#endif
