/* crowd.h - open connections that are not authenticated yet (strangers), and which of them makes
 * room for the next.
 *
 * A silent client shuts out no other: when the crowd is full, a newcomer replaces a connection.
 * Silent ones are replaced first. Among them come first those of an address without a recently
 * verified peer, and of these the oldest.
 *
 * Used by the guard (wire/rpc_guard.h) and the bulk plane (bulk/server.h). The caller locks it. */
#ifndef HOLDFAST_TLS_CROWD_H
#define HOLDFAST_TLS_CROWD_H

#include <stdbool.h>
#include <stdint.h>

#define TLS_FROM_MAX 64
#define TLS_KNOWN_MAX 64u /* addresses of the last verified peers */

/* Embedded in a connection. */
struct tls_newcomer {
    struct tls_newcomer *next; /* an older one */
    char from[TLS_FROM_MAX];   /* its address */
    int socket;                /* borrowed */
    bool has_spoken;           /* it has sent something */
    bool is_in;                /* in the crowd */
};

struct tls_crowd {
    uint32_t most, most_each; /* in total, of one address */
    struct tls_newcomer *newest;
    char known[TLS_KNOWN_MAX][TLS_FROM_MAX];
    uint32_t next_known;
};

void tls_newcomer_init(struct tls_newcomer *out, int socket, const char *from);
/* Has it sent bytes that were not read yet? */
bool tls_newcomer_has_bytes(const struct tls_newcomer *newcomer);
/* `is_full`: all other places are taken. *out_leaves: the connection that made room; it has left
 * the crowd and must be closed; NULL: none had to. False: only a verified connection could make
 * room. */
bool tls_crowd_enter(struct tls_crowd *crowd, struct tls_newcomer *newcomer, bool is_full,
                     struct tls_newcomer **out_leaves);
/* It was verified, or has ended; no effect if it has already left. */
void tls_crowd_leave(struct tls_crowd *crowd, struct tls_newcomer *newcomer, bool is_verified);

#endif
