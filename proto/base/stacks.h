/* stacks.h - where the threads of this process are: stacks on stderr, when asked and in a crash.
 *
 * A thread that has joined is asked by a signal of its own, and prints its frames from within the
 * handler; then it goes on. The handler runs on a stack of its own: code that keeps data below its
 * stack pointer finds them again (trainer/run/signals.h). Threads that have not joined, as those of
 * libraries, are listed by name alone.
 *
 * A frame is printed as "PROGRAM(+OFFSET)"; `addr2line -f -e PROGRAM OFFSET` names function and
 * line. */
#ifndef HOLDFAST_PROTO_BASE_STACKS_H
#define HOLDFAST_PROTO_BASE_STACKS_H

/* Once, before other threads are started. From here on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT
 * print the stack of their thread, then those of the others that have joined, and end the process
 * as they would have. Not in a program with a sanitizer, which does so itself. */
void stacks_start(void);
/* This thread may be asked until it ends. `rank`: which it belongs to; -1: not said, or the one
 * that others of this process have said. Again: says the rank. Does nothing in a process that has
 * not called stacks_start(), or when there is no room. */
void stacks_join(int rank);
/* Prints all, one thread after the other. Not from a handler. */
void stacks_dump_all(const char *reason);

#endif
