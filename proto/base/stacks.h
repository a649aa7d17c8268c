/* stacks.h - prints the stacks of this process's threads to stderr, on request and in a crash.
 *
 * A joined thread gets a signal, prints its frames from within the handler and continues. The
 * handler runs on a separate stack, because some code keeps data below its stack pointer
 * (trainer/run/signals.h). Threads that have not joined, such as those of libraries, are listed by
 * name only.
 *
 * A frame is printed as "PROGRAM(+OFFSET)"; `addr2line -f -e PROGRAM OFFSET` prints function and
 * line. */
#ifndef HOLDFAST_PROTO_BASE_STACKS_H
#define HOLDFAST_PROTO_BASE_STACKS_H

/* Call it once, before other threads start. From then on SIGSEGV, SIGBUS, SIGFPE, SIGILL and
 * SIGABRT print the stack of their thread, then those of the other joined threads. Then they end
 * the process as before. A program with a sanitizer prints its own report instead. */
void stacks_start(void);
/* From now on this thread prints its stack on request, until it ends. `rank`: the thread's rank;
 * -1: unknown, or the one rank that the other threads gave. A second call sets the rank. Without
 * stacks_start(), or when the table is full, nothing happens. */
void stacks_join(int rank);
/* Prints all stacks, one thread after the other. Do not call it from a handler. */
void stacks_dump_all(const char *reason);

#endif
