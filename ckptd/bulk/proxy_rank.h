/* proxy_rank.h - a rank or reader on another node, as ckptd's core sees it; see proxy_rank.c. */
#ifndef HOLDFAST_CKPTD_BULK_PROXY_RANK_H
#define HOLDFAST_CKPTD_BULK_PROXY_RANK_H

#include "proto/bulk/wire.h"

#include <stdint.h>

/* So long a session lives without a connection: a link that was cut comes again. */
#define PROXY_RANK_GRACE_MS 5000

struct tls_stream;
struct proxy_ranks; /* of all sessions */
struct proxy_rank;  /* of one */

/* `arena_path` is borrowed. ERR_MEMORY. */
int proxy_ranks_open(struct proxy_ranks **out, const char *arena_path);
/* Ends what waits for ckptd's core, which answers no more; then, when nobody uses one, all go. NULL
 * is fine. */
void proxy_ranks_cut(struct proxy_ranks *proxies);
void proxy_ranks_close(struct proxy_ranks *proxies);
/* Those that nobody has come to for the grace, or whose session has ended, go. Now and then. */
void proxy_ranks_sweep(struct proxy_ranks *proxies, int64_t now_ms);

/* For one connection more, or less. ERR_NOT_FOUND: no such session. */
int proxy_rank_enter(struct proxy_rank **out, struct proxy_ranks *proxies, uint64_t session);
void proxy_rank_leave(struct proxy_rank *proxy, int64_t now_ms);

/* A run of bytes of a segment that LoadShard has lent, mapped; `*out_map` for proxy_rank_unmap.
 * ERR_DENIED, ERR_INVALID. */
struct proxy_rank_map {
    void *at;
    uint64_t bytes;
};
int proxy_rank_map(struct proxy_rank_map *out, struct proxy_rank *proxy,
                   const struct bulk_request *request);
void proxy_rank_unmap(struct proxy_rank_map *map);

/* Of a block that comes, as struct bulk_ops has it. ERR_ABORTED: of an older save; ERR_EXISTS: it
 * is there already; ERR_DENIED: not in what BeginSave lent. */
int proxy_rank_put_begin(struct proxy_rank *proxy, const struct bulk_request *request, void **to,
                         struct tls_stream *cut);
int proxy_rank_put_end(struct proxy_rank *proxy, const struct bulk_request *request, int error);
int proxy_rank_ask(struct proxy_rank *proxy, const struct bulk_request *request,
                   struct bulk_answer *answer);

#endif
