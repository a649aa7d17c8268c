/* rpc_guard_private.h - the guard's links, for rpc_guard.c (what they relay) and rpc_places.c (who
 * gets a place). Everything here is guarded by the guard's mutex. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_GUARD_PRIVATE_H
#define HOLDFAST_PROTO_WIRE_RPC_GUARD_PRIVATE_H

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
    int fd[NUM_SIDES];          /* -1: closed */
    uint32_t events[NUM_SIDES]; /* what epoll watches */
    bool unwatched[NUM_SIDES];  /* hung up: epoll would tell it for ever */
    struct flow from[NUM_SIDES];
    struct rpc_frames frames;
    struct principal peer;
    struct rpc_account *account; /* of its user; NULL: a privileged one, without bounds */
    int64_t added_ms, refilled_ms;
    int64_t active_ms;   /* when it last had an open stream */
    int64_t ticket_ms;   /* since when it has one, or waits for one */
    size_t ticket_bytes; /* that came since */
    bool has_ticket, waits;
    bool ended;
};

struct rpc_guard {
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll, wake;
    uint32_t num_places, num_links;
    int64_t silent_ms, logged_ms;
    uint32_t num_unlogged;
    struct rpc_budget budget;
    uint32_t num_tickets; /* that links have */
    bool someone_waits;
    size_t relayed; /* since memory was given back */
    struct link *links, *graves;
    bool closing;
};

int64_t rpc_guard_now_ms(void);
/* Closes both sockets; its memory goes when no event of it can be on its way. */
void rpc_guard_end_link(struct rpc_guard *guard, struct link *link);
/* Ends it for its behaviour, which the log tells. */
void rpc_guard_expel(struct rpc_guard *guard, struct link *link, const char *why);
/* How many bytes of unfinished requests it may send, by its ticket. */
void rpc_guard_set_allowance(struct link *link);

#endif
