/* scrub_log.h - when each checkpoint of a run was proven in the far tier, and where the scrub of
 * that tier stands: as it is kept over a restart; see scrub_log.c. */
#ifndef HOLDFAST_CKPTD_KEEP_SCRUB_LOG_H
#define HOLDFAST_CKPTD_KEEP_SCRUB_LOG_H

#include <stdint.h>

struct run;
struct storage;

#define SCRUB_LOG_BYTES_MAX (1u << 20) /* of the object; checkpoints beyond that are read again */

/* What is to be written: to be freed; NULL: no memory. On the service thread. */
char *scrub_log_write(const struct run *run);
/* Of what was read: what is newer than is known counts. */
void scrub_log_take(struct run *run, const char *text);
/* The object of that run. Both block; any thread. *out_text is to be freed. */
int scrub_log_fetch(struct storage *storage, const char *run, uint64_t *out_number,
                    char **out_text);
/* As the one after `number`. ERR_EXISTS: another ckptd has written that. */
int scrub_log_keep(struct storage *storage, const char *run, uint64_t number, const char *text);

#endif
