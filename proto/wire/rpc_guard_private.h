/* rpc_guard_private.h - the guard's links, for rpc_guard.c (what they relay) and rpc_places.c (who
 * comes in). Everything here is guarded by the guard's mutex. */
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

/* What one side sent and the other has not taken yet. */
struct flow {
    uint8_t *rest; /* NULL: nothing */
    size_t at, bytes;
    size_t passed;    /* [at, passed) may be written; what follows has to wait */
    int64_t stuck_ms; /* since when nothing of it could be written */
};

struct link {
    struct link *next;
    struct tls_newcomer newcomer; /* of a stranger: in the crowd until its handshake is done */
    bool has_paid;                /* its address, for the handshake */
    bool is_in;                   /* the list of the guard: its peer is known */
    bool is_parted;               /* the library hung up: epoll would tell it for ever */
    bool ended;
    struct tls_stream *stream[NUM_SIDES]; /* NULL: none */
    int fd[NUM_SIDES];                    /* the streams' */
    uint32_t events[NUM_SIDES];           /* what epoll watches */
    short reads_on[NUM_SIDES];            /* what has to come before more can be read */
    struct flow from[NUM_SIDES];
    struct rpc_frames frames;
    struct principal peer;
    struct rpc_account *account; /* of its user */
    struct rpc_account own;      /* of a privileged one: this connection's */
    int64_t added_ms, refilled_ms;
    int64_t active_ms;   /* when it last had an open stream */
    int64_t ticket_ms;   /* since when it has one, or waits for one */
    size_t ticket_bytes; /* that came since */
    bool has_ticket, waits;
};

struct rpc_guard {
    struct rpc_guard_options options;
    struct tls_keys *keys; /* NULL: no strangers come */
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll, wake;
    struct rpc_budget budget;
    uint32_t num_tickets; /* that links have */
    bool someone_waits;
    size_t relayed; /* since memory was given back */
    struct link *links, *graves;
    uint32_t num_links;
    struct tls_crowd crowd;             /* of strangers */
    struct log_limit expelled, refused; /* users; strangers */
    bool closing;
};

int64_t rpc_guard_now_ms(void);
/* A new link to a client. Takes the socket over. */
int rpc_guard_open_link(struct link **out, struct rpc_guard *guard, int socket,
                        struct tls_keys *keys);
/* Closes both sockets; its memory goes when no event of it can be on its way. */
void rpc_guard_end_link(struct rpc_guard *guard, struct link *link);
/* Ends it for its behaviour, which the log tells. */
void rpc_guard_expel(struct rpc_guard *guard, struct link *link, const char *why);
/* How many bytes of unfinished requests it may send, by its ticket. */
void rpc_guard_set_allowance(struct link *link);
/* Passes on what may pass now; then waits for more. */
void rpc_guard_go_on(struct rpc_guard *guard, struct link *link);
/* Asks epoll for these events of that side; ends the link where that fails. */
void rpc_guard_watch(struct rpc_guard *guard, struct link *link, enum side side, uint32_t events);
/* A stranger's handshake goes on; it may come in, or end. */
void rpc_guard_shake_hands(struct rpc_guard *guard, struct link *link);
/* Ends the handshakes that take too long. */
void rpc_guard_check_strangers(struct rpc_guard *guard, int64_t now_ms);
void rpc_guard_end_strangers(struct rpc_guard *guard);
/* Likewise, and the links whose peers were verified by certificates. */
void rpc_guard_end_verified(struct rpc_guard *guard);

#endif
