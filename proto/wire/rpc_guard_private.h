/* rpc_guard_private.h - the guard's links, for rpc_guard.c (which relays) and rpc_places.c (which
 * admits clients). The guard's mutex guards everything here. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_GUARD_PRIVATE_H
#define HOLDFAST_PROTO_WIRE_RPC_GUARD_PRIVATE_H

#include "proto/base/report.h"
#include "proto/tls/crowd.h"
#include "proto/tls/stream.h"
#include "proto/wire/rpc_budget.h"
#include "proto/wire/rpc_frames.h"
#include "proto/wire/rpc_guard.h"

#include <pthread.h>
#include <stddef.h>

enum side { CLIENT, LIBRARY, NUM_SIDES };

/* Bytes that one side sent and the other has not read yet. */
struct flow {
    uint8_t *rest; /* NULL: none */
    size_t at, bytes;
    size_t passed;    /* [at, passed) may be written; the bytes after it have to wait */
    int64_t stuck_ms; /* since when no byte of it could be written */
};

struct link {
    struct link *next;
    struct tls_newcomer newcomer; /* of a stranger: in the crowd until its handshake is done */
    bool has_paid;                /* its address has paid for the handshake */
    bool is_in;                   /* in the guard's list: its peer is known */
    bool is_parted;               /* the library hung up: epoll must no longer watch it */
    bool ended;
    struct tls_stream *stream[NUM_SIDES]; /* NULL: none */
    int fd[NUM_SIDES];                    /* of the streams */
    uint32_t events[NUM_SIDES];           /* events that epoll watches */
    short reads_on[NUM_SIDES];            /* events to wait for before the next read */
    struct flow from[NUM_SIDES];
    struct rpc_frames frames;
    struct principal peer;
    struct rpc_account *account; /* of its user */
    struct rpc_account own;      /* of a privileged one: this connection's */
    int64_t added_ms, refilled_ms;
    int64_t active_ms;   /* when it last had an open stream */
    int64_t ticket_ms;   /* since when it has a ticket, or waits for one */
    size_t ticket_bytes; /* received since then */
    bool has_ticket, waits;
};

struct rpc_guard {
    struct rpc_guard_options options;
    struct tls_keys *keys; /* NULL: no TCP clients */
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll, wake;
    struct rpc_budget budget;
    uint32_t num_tickets; /* tickets that links have */
    bool someone_waits;
    size_t relayed; /* since free memory was returned */
    struct link *links, *graves;
    uint32_t num_links;
    struct tls_crowd crowd;             /* of strangers */
    struct log_limit expelled, refused; /* of users; of strangers */
    bool closing;
};

/* Opens a link to a client. Takes over the socket. */
int rpc_guard_open_link(struct link **out, struct rpc_guard *guard, int socket,
                        struct tls_keys *keys);
/* Closes both sockets. The memory is freed when no event of the link can be pending. */
void rpc_guard_end_link(struct rpc_guard *guard, struct link *link);
/* Ends a link for its behaviour, and logs that. */
void rpc_guard_expel(struct rpc_guard *guard, struct link *link, const char *why);
/* Sets how many bytes of unfinished requests it may send, by its ticket. */
void rpc_guard_set_allowance(struct link *link);
/* Relays the bytes that may pass now; then waits for more. */
void rpc_guard_resume(struct rpc_guard *guard, struct link *link);
/* Sets the events that epoll watches on that side; ends the link if that fails. */
void rpc_guard_watch(struct rpc_guard *guard, struct link *link, enum side side, uint32_t events);
/* Continues a stranger's handshake; then admits it, or ends the link. */
void rpc_guard_shake_hands(struct rpc_guard *guard, struct link *link);
/* Ends the handshakes that take too long. */
void rpc_guard_check_strangers(struct rpc_guard *guard, int64_t now_ms);
void rpc_guard_end_strangers(struct rpc_guard *guard);
/* The same, and the links whose peers were verified by certificates. */
void rpc_guard_end_verified(struct rpc_guard *guard);

#endif
