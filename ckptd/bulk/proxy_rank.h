/* proxy_rank.h - a rank or reader on another node, as ckptd's core sees it; see proxy_rank.c. */
#ifndef HOLDFAST_CKPTD_BULK_PROXY_RANK_H
#define HOLDFAST_CKPTD_BULK_PROXY_RANK_H

#include <stdint.h>

/* So long a session lives without a connection: a link that was cut comes again. */
#define PROXY_RANK_GRACE_MS 5000

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

#endif
