/* remote.h - the session of a rank whose ckptd is on another node; see remote.c. */
#ifndef HOLDFAST_CLIENTS_REMOTE_H
#define HOLDFAST_CLIENTS_REMOTE_H

#include "clients/session.h"
#include "proto/bulk/ask.h"

/* Is the handle's ckptd reached over the network? */
bool remote_is(const struct ckpt *ckpt);
/* Connections to the bulk plane for one session, which ends soon after them. Must not move while
 * open; bulk NULL: not open. */
struct remote_link {
    struct bulk *bulk;
    struct bulk_asker asker;
};
int remote_link_open(struct remote_link *out, struct ckpt *ckpt, uint64_t token);
void remote_link_close(struct remote_link *link);

/* Opens the session of a rank: makes the control page, and the threads that act on it. */
int remote_open(struct ckpt *ckpt, uint64_t token);
/* Closes the session, if any, and drops announced blocks that have not arrived. */
void remote_close(struct ckpt *ckpt);
bool remote_alive(const struct ckpt *ckpt);
/* Allocates the image in private memory: out[i] is its segment i. */
int remote_map(struct ckpt *ckpt, unsigned char **out, uint32_t count);
void remote_unmap(struct ckpt *ckpt);
/* Fetches lent segments into memory: `part` of each is the segment. */
int remote_fetch(struct remote_link *link, const struct bulk_get *gets, uint32_t count);
struct remote_link *remote_session_link(struct ckpt *ckpt); /* of the rank's session */
/* Waits, at most `timeout_ms`, until the previous save has arrived: the image is its memory.
 * ERR_BUSY; or the error that ended the session. */
int remote_wait(struct ckpt *ckpt, uint32_t timeout_ms);
/* Begins a save into these segments of ckptd. ERR_MEMORY. */
int remote_begin(struct ckpt *ckpt, uint64_t save, const uint32_t *segments,
                 const uint32_t *generations, uint32_t count);
/* ckptd has answered what it asks the rank: as in AttendReply. */
void remote_want(const struct ckpt *ckpt, uint32_t asked, uint32_t within_s, uint32_t saves_asked);
/* Drops the announced blocks of the save. */
void remote_give_up(struct ckpt *ckpt);
/* Updates the window in the control page; waits at most `wait_ms` for a change of it. */
void remote_window(struct ckpt *ckpt, uint32_t wait_ms);

#endif
