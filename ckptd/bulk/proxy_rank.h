/* proxy_rank.h - represents a rank or reader of another node to ckptd's core; see proxy_rank.c. */
#ifndef HOLDFAST_CKPTD_BULK_PROXY_RANK_H
#define HOLDFAST_CKPTD_BULK_PROXY_RANK_H

#include <stdint.h>

/* A session lives this long without a connection: a broken link is opened again. */
#define PROXY_RANK_GRACE_MS 5000

struct proxy_ranks; /* of all sessions */
struct proxy_rank;  /* of one */

/* `arena_path` is borrowed. ERR_MEMORY. */
int proxy_ranks_open(struct proxy_ranks **out, const char *arena_path);
/* Ends calls that wait for ckptd's core, which answers no more; then frees all that are not in use.
 * NULL is allowed. */
void proxy_ranks_cut(struct proxy_ranks *proxies);
void proxy_ranks_close(struct proxy_ranks *proxies);
/* Frees those without a connection for the grace time, and those whose session has ended. Called
 * periodically. */
void proxy_ranks_sweep(struct proxy_ranks *proxies, int64_t now_ms);

/* Adds or removes a connection of the session. ERR_NOT_FOUND: no such session. */
int proxy_rank_enter(struct proxy_rank **out, struct proxy_ranks *proxies, uint64_t session);
void proxy_rank_leave(struct proxy_rank *proxy, int64_t now_ms);

#endif
