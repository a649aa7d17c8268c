/* crowd.h - connections that somebody has opened and not authenticated on yet, and which of them
 * makes room for the next.
 *
 * Who connects and says nothing keeps no one out: where no more fit, a newcomer takes the place of
 * another. First goes one that has said nothing, before one that has; of these one of an address
 * that nobody was verified from lately, before one of which somebody was; of these the oldest.
 *
 * Of the guard (wire/rpc_guard.h) and of the bulk plane (bulk/server.h). The caller guards it. */
#ifndef HOLDFAST_TLS_CROWD_H
#define HOLDFAST_TLS_CROWD_H

#include <stdbool.h>
#include <stdint.h>

#define TLS_FROM_MAX 64
#define TLS_KNOWN_MAX 64u /* addresses that peers were verified from last */

/* Embedded in a connection. */
struct tls_newcomer {
    struct tls_newcomer *next; /* an older one */
    char from[TLS_FROM_MAX];   /* its address */
    int socket;                /* borrowed */
    bool has_spoken;           /* something came of it */
    bool is_in;                /* the crowd */
};

struct tls_crowd {
    uint32_t most, most_each; /* at all, of one address */
    struct tls_newcomer *newest;
    char known[TLS_KNOWN_MAX][TLS_FROM_MAX];
    uint32_t next_known;
};

void tls_newcomer_init(struct tls_newcomer *out, int socket, const char *from);
/* Has it sent something that nobody has read? */
bool tls_newcomer_has_bytes(const struct tls_newcomer *newcomer);
/* `is_full`: there is no place beside those that are taken. *out_leaves: it made room, has left the
 * crowd, and is to be closed; NULL: none had to. False: only a verified connection could have. */
bool tls_crowd_enter(struct tls_crowd *crowd, struct tls_newcomer *newcomer, bool is_full,
                     struct tls_newcomer **out_leaves);
/* It was verified, or has gone; nothing of one that has left. */
void tls_crowd_leave(struct tls_crowd *crowd, struct tls_newcomer *newcomer, bool is_verified);

#endif
