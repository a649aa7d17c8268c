/* rpc_budget.h - limits what the connections of one user cost a server. Private to rpc*.c.
 *
 * Every unprivileged user has one account for all of its connections, over any socket. Every
 * address has one for the handshakes of TCP clients. Each connection of a privileged user has an
 * account for itself (rpc_places.c), with RPC_PRIVILEGED_TIMES as much. Frames and connections are
 * charged to it (rpc_frames.h); it refills at the rate in the server's options. A frame passes
 * while the account is above 0, so one frame, and answers, may overdraw it. At a cost of 10
 * microseconds the rate is a twentieth of a processor.
 *
 * Not thread-safe: the caller holds the guard's mutex around every call and passes the time. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_BUDGET_H
#define HOLDFAST_PROTO_WIRE_RPC_BUDGET_H

#include "proto/base/principal.h"

#include <stdbool.h>
#include <stdint.h>

/* The maximum of an account, and its refill per second. */
struct rpc_rate {
    int64_t per_second, burst;
};

struct rpc_account {
    struct rpc_account *next;
    struct principal user;
    struct rpc_rate rate;
    int64_t left, refilled_ms;
    uint32_t num_links; /* links that use it */
};

#define RPC_PRIVILEGED_TIMES 8
/* At this limit a new address waits until an account is full again. */
#define RPC_ACCOUNTS_MAX 1024u

struct rpc_budget {
    struct rpc_rate rate; /* of every account */
    struct rpc_account *accounts;
    uint32_t num_accounts;
};

/* The account of that user, refilled up to now. *out is NULL for a privileged user, which has no
 * shared account. ERR_MEMORY; ERR_BUSY: there are RPC_ACCOUNTS_MAX accounts of addresses. */
int rpc_budget_find(struct rpc_account **out, struct rpc_budget *budget,
                    const struct principal *user, int64_t now_ms);
void rpc_account_refill(struct rpc_account *account, int64_t now_ms);
static inline bool rpc_account_is_empty(const struct rpc_account *account)
{
    return account && account->left <= 0;
}
/* Frees the accounts that are full and without connections. */
void rpc_budget_sweep(struct rpc_budget *budget, int64_t now_ms);
void rpc_budget_deinit(struct rpc_budget *budget);

#endif
