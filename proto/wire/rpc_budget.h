/* rpc_budget.h - what the connections of one user may cost a server. Private to proto/rpc*.c.
 *
 * Every user who is not privileged has one account for all of its connections, whatever socket they
 * came by; and every address, for the handshakes of those who come by TCP. Each connection of a
 * privileged user has one for itself (rpc_places.c), with RPC_PRIVILEGED_TIMES as much. Frames and
 * connections take their costs (rpc_frames.h) from it; it fills up at the rate of the server's
 * options. A frame passes while something is there, so an account may be overdrawn by one frame,
 * and by answers. At a cost of 10 microseconds the rate is a twentieth of a processor.
 *
 * Not thread-safe: the guard's mutex is held around every call. Time is the caller's. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_BUDGET_H
#define HOLDFAST_PROTO_WIRE_RPC_BUDGET_H

#include "proto/base/principal.h"

#include <stdbool.h>
#include <stdint.h>

/* What is there at most, and what comes a second. */
struct rpc_rate {
    int64_t per_second, burst;
};

struct rpc_account {
    struct rpc_account *next;
    struct principal user;
    struct rpc_rate rate;
    int64_t left, refilled_ms;
    uint32_t num_links; /* that keep it */
};

#define RPC_PRIVILEGED_TIMES 8
#define RPC_ACCOUNTS_MAX 1024u /* beyond them a new address waits until one has filled up */

struct rpc_budget {
    struct rpc_rate rate; /* of every account */
    struct rpc_account *accounts;
    uint32_t num_accounts;
};

/* The account of that user, filled up to now; *out is NULL for a privileged one, who has none.
 * ERR_MEMORY; ERR_BUSY: of an address, there are RPC_ACCOUNTS_MAX. */
int rpc_budget_find(struct rpc_account **out, struct rpc_budget *budget,
                    const struct principal *user, int64_t now_ms);
void rpc_account_refill(struct rpc_account *account, int64_t now_ms);
static inline bool rpc_account_is_empty(const struct rpc_account *account)
{
    return account && account->left <= 0;
}
/* Frees the accounts that are full and that no connection keeps. */
void rpc_budget_sweep(struct rpc_budget *budget, int64_t now_ms);
void rpc_budget_deinit(struct rpc_budget *budget);

#endif
