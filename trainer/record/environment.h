/* environment.h - on what the ranks of an attempt run: what else than settings and code explains
 * that two runs differ in bits or in speed.
 *
 * A manifest's identity has it as "environment": what rank 0 found, and where other ranks differ:
 *
 *     command    of rank 0's process
 *     program    its build id, which tells two builds of an edited tree apart
 *     hosts      {"node1": "0-3", "node2": "4-7"}: host names, and their ranks
 *     cpu, kernel, libc, driver (NVIDIA's)
 *     libraries  that compute or carry: {"libdnnl": "libdnnl.so.2.7, build 0123456789abcdef"}
 *     variables  that change what those do; none whose name or value looks like a secret
 *     ranks      {"4-7": {"variables.LD_PRELOAD": "x.so"}}: what differs there; null: it is not
 *                there. The kernels, which the identity has beside it, are compared, too
 *
 * It is bounded: ENVIRONMENT_*_MAX. "left_out" counts variables, and ranks that differ. */
#ifndef HOLDFAST_TRAINER_RECORD_ENVIRONMENT_H
#define HOLDFAST_TRAINER_RECORD_ENVIRONMENT_H

#include "proto/base/json.h"

struct comm;

#define ENVIRONMENT_VALUE_MAX 1024u      /* bytes of a text, longer ones are cut; but for: */
#define ENVIRONMENT_COMMAND_MAX 4096u    /* that */
#define ENVIRONMENT_VARIABLES_MAX 12288u /* bytes of names and values together */
#define ENVIRONMENT_LINE_MAX 900u        /* bytes of what a warning lists */
#define ENVIRONMENT_HOSTS_MAX 256u
#define ENVIRONMENT_OTHERS_MAX 8u /* different sets of differences from rank 0 */

/* *out: the object as text, to be freed; of other ranks than 0 NULL. Rank 0 warns of ranks that
 * differ from it. `kernels`: kernels_describe(). Collective. */
int environment_gather(char **out, struct comm *world, const char *kernels);
/* One line of what is different since then and may change bits; false: nothing that is known. NULL
 * is an environment that is not known. */
bool environment_changes(char out[ENVIRONMENT_LINE_MAX], const json_t *own, const json_t *stored);

#endif
