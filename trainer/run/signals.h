/* signals.h - the trainer's signal thread, which receives all signals.
 *
 * No handler may run on a thread that computes: oneDNN's generated code keeps data deeper below the
 * stack pointer than the 128 bytes of the x86-64 ABI's red zone, and the kernel writes the frame of
 * a handler there. With 2.6.3 one signal in some dozens ended a run with a damaged heap; its effect
 * on sums is not known. So all signals except a thread's own faults are blocked in all threads, and
 * the signal thread waits for those with a meaning. Handlers that a library may have set run there,
 * too.
 *
 * This thread waits for no other rank, so it also notes twice a second that the process runs
 * (flight_beat_all): after a hang, a process that stood still is told from those that waited.
 *
 * The one exception is the signal of proto/base/stacks.h, by which SIGQUIT and SIGUSR2 make each
 * thread print its stack. Its handler runs on a separate stack, so it does not write below the
 * thread's stack pointer. */
#ifndef HOLDFAST_TRAINER_RUN_SIGNALS_H
#define HOLDFAST_TRAINER_RUN_SIGNALS_H

#include <signal.h>

/* Call before other threads are started: they inherit the blocked signals. From here on SIGTERM,
 * SIGUSR1, SIGHUP and SIGINT (the last two unless they are ignored: nohup, a background job of a
 * script) set *out_stop; a second SIGINT ends the process at once; SIGUSR2 dumps the flight
 * recorders and the stacks of all threads, SIGQUIT only the stacks, also when every rank hangs. A
 * crash prints stacks, too. ERR_BUSY: no thread could be started. */
int signals_start(volatile sig_atomic_t *out_stop);
/* The time of the first signal that set *out_stop, as clock_seconds(); 0: none. Any thread. */
double signals_asked_at(void);

#endif
