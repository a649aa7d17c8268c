/* environment.h - the hosts and programs of an attempt's ranks. Besides settings and code they
 * explain why two runs differ in bits or in speed.
 *
 * A manifest's identity has it as "environment": the findings of rank 0, and the differences of
 * other ranks:
 *
 *     command    of rank 0's process
 *     program    its build id, which differs between two builds of an edited tree
 *     hosts      {"node1": "0-3", "node2": "4-7"}: host names, and their ranks
 *     cpu, kernel, libc, driver (NVIDIA's)
 *     libraries  that compute or transport: {"libdnnl": "libdnnl.so.2.7, build 0123456789abcdef"}
 *     variables  that affect the libraries; none whose name or value looks like a secret
 *     ranks      {"4-7": {"variables.LD_PRELOAD": "x.so"}}: the differences; null: missing there.
 *                Kernels, which the identity has, too, are also compared
 *
 * It is bounded: ENVIRONMENT_*_MAX. "left_out" counts variables, and ranks that differ. */
#ifndef HOLDFAST_TRAINER_RECORD_ENVIRONMENT_H
#define HOLDFAST_TRAINER_RECORD_ENVIRONMENT_H

#include "proto/base/json.h"

struct comm;

#define ENVIRONMENT_VALUE_MAX 1024u      /* bytes of a text; longer ones are cut; exception: */
#define ENVIRONMENT_COMMAND_MAX 4096u    /* of a command */
#define ENVIRONMENT_VARIABLES_MAX 12288u /* bytes of names and values together */
#define ENVIRONMENT_LINE_MAX 900u        /* bytes of the list in a warning */
#define ENVIRONMENT_HOSTS_MAX 256u
#define ENVIRONMENT_OTHERS_MAX 8u /* different sets of differences from rank 0 */

/* *out: the object as text, which the caller frees; NULL on ranks other than 0. Rank 0 warns of
 * ranks that differ from it. `kernels`: kernels_describe(). Collective. */
int environment_gather(char **out, struct comm *world, const char *kernels);
/* Lists in one line the differences that may change bits; returns false if none is known. NULL: an
 * unknown environment. */
bool environment_changes(char out[ENVIRONMENT_LINE_MAX], const json_t *own, const json_t *stored);

#endif
