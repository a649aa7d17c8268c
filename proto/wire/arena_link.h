/* arena_link.h - the client's side of the arena socket (arena.h has the story): a rank's, or that
 * of who stands in for one.
 *
 * Bounds: one exchange takes at most ARENA_LINK_MS. A connection that ckptd refuses, because its
 * user has used up what one user may cost (rpc_budget.h), is tried again every ARENA_PAUSE_MS or
 * so. */
#ifndef HOLDFAST_PROTO_WIRE_ARENA_LINK_H
#define HOLDFAST_PROTO_WIRE_ARENA_LINK_H

#include "proto/wire/arena.h"

#define ARENA_LINK_MS 10000u
#define ARENA_PAUSE_MS 50u

/* A connection to the arena socket, bound to one session token. */
struct arena_link {
    int socket; /* -1: none */
    uint64_t token;
};

/* Connects and says whose connection it is; while ckptd refuses, for at most `timeout_ms` and
 * ARENA_LINK_MS. ERR_UNAVAILABLE, at once when nobody listens; ERR_INVALID: the path is too long.
 */
int arena_link_open(struct arena_link *out, const char *arena_path, uint64_t token,
                    uint32_t timeout_ms);
/* Sleeps half to one and a half times ARENA_PAUSE_MS: clients that were refused together do not
 * come again together. */
void arena_link_pause(void);
void arena_link_close(struct arena_link *link);
/* A request of the session, to be completed. */
struct arena_request arena_request_make(uint32_t kind, uint64_t token);
/* One exchange; `count` <= ARENA_FDS_MAX descriptors, owned by the caller. ERR_CORRUPT when the
 * answer has another number of descriptors than was asked for. */
int arena_link_fetch(struct arena_link *link, int *out_fds, const struct arena_request *request,
                     uint32_t count);
/* Maps `bytes` of a descriptor, to be written, and closes it; of them the first `used` are made
 * present, so that no copy takes a page fault. Where the kernel does not know how (before 5.14), it
 * does. */
int arena_link_map(void **out, int fd, uint64_t bytes, uint64_t used);

#endif
