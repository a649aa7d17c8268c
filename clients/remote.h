/* remote.h - a rank without a ckptd on its node: its session with one on another; see remote.c. */
#ifndef HOLDFAST_CLIENTS_REMOTE_H
#define HOLDFAST_CLIENTS_REMOTE_H

#include "clients/session.h"
#include "proto/bulk/ask.h"

/* Is its ckptd reached over the network? */
bool remote_is(const struct ckpt *ckpt);
/* Connections to the bulk plane for one session: it ends soon after them. Lies still while it is
 * open; bulk NULL: it is not. */
struct remote_link {
    struct bulk *bulk;
    struct bulk_asker asker;
};
int remote_link_open(struct remote_link *out, struct ckpt *ckpt, uint64_t token);
void remote_link_close(struct remote_link *link);

/* The session of a rank: makes the ring and what empties it. */
int remote_open(struct ckpt *ckpt, uint64_t token);
/* What was announced and has not arrived is given up. Also where there is none. */
void remote_close(struct ckpt *ckpt);
bool remote_alive(const struct ckpt *ckpt);
/* Memory for an image in the place of shared memory: out[i] is its segment i. */
int remote_map(struct ckpt *ckpt, unsigned char **out, uint32_t count);
void remote_unmap(struct ckpt *ckpt);
/* What the session was lent, into memory: `part` of each is the segment. */
int remote_fetch(struct remote_link *link, const struct bulk_get *gets, uint32_t count);
struct remote_link *remote_session_link(struct ckpt *ckpt); /* of the rank's session */
/* Until all of the save before has arrived, at most so long: the memory is its. ERR_BUSY; or why
 * the session is over. */
int remote_wait(struct ckpt *ckpt, uint32_t timeout_ms);
/* A save begins, into these segments. ERR_MEMORY. */
int remote_begin(struct ckpt *ckpt, uint64_t save, const uint32_t *segments,
                 const uint32_t *generations, uint32_t count);
/* What it has announced is given up. */
void remote_give_up(struct ckpt *ckpt);
/* Brings the window of the control page up to date; waits for a change of it. */
void remote_window(struct ckpt *ckpt, uint32_t wait_ms);

#endif
