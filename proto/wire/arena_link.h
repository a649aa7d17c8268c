/* arena_link.h - the client's side of the arena socket (described in arena.h), for a rank or a
 * process that acts for one.
 *
 * Bounds: one exchange takes at most ARENA_LINK_MS. ckptd refuses a connection whose user has spent
 * its budget (rpc_budget.h). The client tries again every ARENA_PAUSE_MS or so. */
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

/* Connects and names the session. While ckptd refuses, it retries for at most `timeout_ms` and
 * ARENA_LINK_MS. ERR_UNAVAILABLE, at once when no process listens; ERR_INVALID: the path is too
 * long. */
int arena_link_open(struct arena_link *out, const char *arena_path, uint64_t token,
                    uint32_t timeout_ms);
/* Sleeps half to one and a half times ARENA_PAUSE_MS, so that clients that were refused together do
 * not retry together. */
void arena_link_pause(void);
void arena_link_close(struct arena_link *link);
/* A request of the session; the caller fills in the rest. */
struct arena_request arena_request_make(uint32_t kind, uint64_t token);
/* One exchange; `count` <= ARENA_FDS_MAX descriptors, owned by the caller. ERR_CORRUPT: the reply
 * has another number of descriptors than the request. */
int arena_link_fetch(struct arena_link *link, int *out_fds, const struct arena_request *request,
                     uint32_t count);
/* Maps `bytes` of a descriptor for writing and closes it. Prefaults the first `used` bytes, so that
 * no copy takes a page fault there. Works on kernels without MADV_POPULATE_WRITE (before 5.14),
 * too. */
int arena_link_map(void **out, int fd, uint64_t bytes, uint64_t used);

#endif
