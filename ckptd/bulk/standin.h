/* standin.h - a rank or reader on another node, as ckptd's core sees it; see standin.c. */
#ifndef HOLDFAST_CKPTD_BULK_STANDIN_H
#define HOLDFAST_CKPTD_BULK_STANDIN_H

#include "proto/bulk/wire.h"

#include <stdint.h>

/* So long a session lives without a connection: a link that was cut comes again. */
#define STANDIN_GRACE_MS 5000

struct tls_stream;
struct standins; /* of all sessions */
struct standin;  /* of one */

/* `arena_path` is borrowed. ERR_MEMORY. */
int standins_open(struct standins **out, const char *arena_path);
/* Ends what waits for ckptd's core, which answers no more; then, when nobody uses one, all go. NULL
 * is fine. */
void standins_cut(struct standins *standins);
void standins_close(struct standins *standins);
/* Those that nobody has come to for the grace, or whose session has ended, go. Now and then. */
void standins_sweep(struct standins *standins, int64_t now_ms);

/* For one connection more, or less. ERR_NOT_FOUND: no such session. */
int standin_enter(struct standin **out, struct standins *standins, uint64_t session);
void standin_leave(struct standin *standin, int64_t now_ms);

/* A run of bytes of a segment that LoadShard has lent, mapped; `*out_map` for standin_unmap.
 * ERR_DENIED, ERR_INVALID. */
struct standin_map {
    void *at;
    uint64_t bytes;
};
int standin_map(struct standin_map *out, struct standin *standin,
                const struct bulk_request *request);
void standin_unmap(struct standin_map *map);

/* Of a block that comes, as struct bulk_ops has it. ERR_ABORTED: of an older save; ERR_EXISTS: it
 * is there already; ERR_DENIED: not in what BeginSave lent. */
int standin_put_begin(struct standin *standin, const struct bulk_request *request, void **to,
                      struct tls_stream *cut);
int standin_put_end(struct standin *standin, const struct bulk_request *request, int error);
int standin_ask(struct standin *standin, const struct bulk_request *request,
                struct bulk_answer *answer);

#endif
