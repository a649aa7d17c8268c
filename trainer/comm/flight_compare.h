/* flight_compare.h - compares the flight recorders' dumps of all ranks after a run hung.
 *
 * A rank that waits has a call that began and has not ended; the call is printed with its place in
 * the step's program. A rank that did not come is one of these, printed first: it left no dump (it
 * is dead, or its node is); its ring exists and its process is dead, while others live
 * (flight_ring.h); its process did not run for seconds while others did (SIGSTOP, a stopped node),
 * though by its ring it waits like they; it has a dump and waits in no call: it is between two
 * calls, in the printed operation; it has not begun a call of a group of all ranks in which another
 * waits, or waits in a call of the whole world of another kind. If others made dumps, a rank that
 * has only a ring is printed as one that may stand still. Calls of smaller groups are listed and
 * not compared: a dump does not have the ranks of a group. */
#ifndef HOLDFAST_TRAINER_FLIGHT_COMPARE_H
#define HOLDFAST_TRAINER_FLIGHT_COMPARE_H

#include <stdio.h>

/* Compares the dumps and rings in a folder (comm.save_traces_folder, save_traces_file_prefix) and
 * prints the result. ERR_NOT_FOUND: there is none; ERR_INVALID: a file is no dump; ERR_MEMORY. */
int flight_compare(const char *folder, const char *prefix, FILE *out);

#endif
