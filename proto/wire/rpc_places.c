/* rpc_places.c - part of the guard: admits clients, from the handshake to a place, and selects the
 * connection that makes room. See rpc_guard.h. */
#include "proto/wire/rpc_guard_private.h"

#include "proto/base/clock.h"

#include "proto/tls/tls.h"
#include "proto/wire/rpc.h"

#include <sys/epoll.h>
#include <unistd.h>

static uint32_t count_of(const struct rpc_guard *guard, const struct principal *peer)
{
    uint32_t count = 0;
    for (const struct link *link = guard->links; link; link = link->next)
        count += principal_is_same(&link->peer, peer);
    return count;
}

static const struct principal *largest_user(const struct rpc_guard *guard)
{
    const struct principal *largest = &guard->links->peer;
    uint32_t most = 0;
    for (const struct link *link = guard->links; link; link = link->next) {
        bool is_counted = most > 0 && principal_is_same(&link->peer, largest);
        uint32_t count = is_counted ? 0 : count_of(guard, &link->peer);
        if (count > most) {
            most = count;
            largest = &link->peer;
        }
    }
    return largest;
}

/* Of the user with most connections the one that has had no open stream for the longest time; or
 * NULL. */
static struct link *find_idle(const struct rpc_guard *guard)
{
    const struct principal *largest = largest_user(guard);
    struct link *idle = NULL;
    for (struct link *link = guard->links; link; link = link->next)
        if (principal_is_same(&link->peer, largest) && link->frames.num_open == 0 &&
            (!idle || link->active_ms <= idle->active_ms)) /* the newest are first in the list */
            idle = link;
    return idle;
}

static int charge(struct rpc_guard *guard, const struct principal *peer, uint32_t cost)
{
    struct rpc_account *account;
    char who[PRINCIPAL_TEXT_MAX];
    ERR_TRY(rpc_budget_find(&account, &guard->budget, peer, clock_ms()));
    if (!rpc_account_is_empty(account)) {
        if (account)
            account->left -= cost;
        return 0;
    }
    principal_text(who, peer);
    return report_error(ERR_BUSY, "let it connect and ask less often",
                        "%s has used up what one user may cost in a second", who);
}

int rpc_guard_charge(struct rpc_guard *guard, const struct principal *peer, uint32_t cost)
{
    pthread_mutex_lock(&guard->mutex);
    int error = charge(guard, peer, cost);
    pthread_mutex_unlock(&guard->mutex);
    return error;
}

/* Makes a place for one more connection of that peer; may close another. */
static int make_room(struct rpc_guard *guard, const struct principal *peer)
{
    uint32_t places = guard->options.num_places;
    if (!principal_is_privileged(peer) && places > 2 * RPC_PLACES_RESERVED)
        places -= RPC_PLACES_RESERVED;
    bool is_full = guard->num_links >= places;
    struct link *idle = is_full ? find_idle(guard) : NULL;
    if (idle)
        rpc_guard_expel(guard, idle, "all places were taken, and it had no request under way");
    if (!is_full || idle)
        return 0;
    return report_error(ERR_BUSY, "close some, or raise limits.sessions",
                        "all %u connections are taken, and each has a request under way", places);
}

/* A privileged peer has a large budget for each connection. */
static int find_account(struct rpc_guard *guard, struct link *link)
{
    const struct rpc_rate *rate = &guard->budget.rate;
    ERR_TRY(rpc_budget_find(&link->account, &guard->budget, &link->peer, link->added_ms));
    if (!link->account) {
        link->account = &link->own;
        link->own.rate = (struct rpc_rate){rate->per_second * RPC_PRIVILEGED_TIMES,
                                           rate->burst * RPC_PRIVILEGED_TIMES};
        link->own.left = link->own.rate.burst;
        link->own.refilled_ms = link->added_ms;
    }
    return 0;
}

/* The peer of the link is known: gives it a place, and an end of the library's. */
static int admit(struct rpc_guard *guard, struct link *link, const struct principal *peer)
{
    int library;
    link->peer = *peer;
    link->added_ms = link->refilled_ms = link->active_ms = clock_ms();
    ERR_TRY(make_room(guard, peer));
    ERR_TRY(find_account(guard, link));
    ERR_TRY(guard->options.connect(guard->options.user, &library, peer));
    ERR_TRY(tls_stream_begin(&link->stream[LIBRARY], NULL, library, NULL));
    link->fd[LIBRARY] = library;
    rpc_guard_set_allowance(link);
    struct epoll_event event = {.data.u64 = (uintptr_t)link | LIBRARY};
    if (epoll_ctl(guard->epoll, EPOLL_CTL_ADD, library, &event) != 0)
        return report_errno(ERR_IO, "could not watch a connection", "epoll_ctl");
    link->account->num_links++;
    link->next = guard->links;
    link->is_in = true;
    guard->links = link;
    guard->num_links++;
    rpc_guard_resume(guard, link);
    return 0;
}

static void wake(struct rpc_guard *guard)
{
    uint64_t one = 1;
    (void)!write(guard->wake, &one, sizeof one); /* a deadline begins */
}

int rpc_guard_adopt(struct rpc_guard *guard, int socket, const struct principal *peer)
{
    struct link *link;
    pthread_mutex_lock(&guard->mutex);
    int error = rpc_guard_open_link(&link, guard, socket, NULL);
    if (error == 0 && (error = admit(guard, link, peer)) != 0)
        rpc_guard_end_link(guard, link);
    pthread_mutex_unlock(&guard->mutex);
    wake(guard);
    return error;
}

/* ---- strangers ---- */

static struct link *link_of(struct tls_newcomer *newcomer)
{
    return (struct link *)((char *)newcomer - offsetof(struct link, newcomer));
}

static void refuse_stranger(struct rpc_guard *guard, struct link *link, const char *why)
{
    log_warn_limited(&guard->refused, "tls", "refused a connection from %s: %s",
                     link->newcomer.from, why);
    rpc_guard_end_link(guard, link);
}

int rpc_guard_adopt_stranger(struct rpc_guard *guard, int socket, const char *from)
{
    struct link *link;
    struct tls_newcomer *leaves;
    CHECK(guard->keys);
    pthread_mutex_lock(&guard->mutex);
    int error = rpc_guard_open_link(&link, guard, socket, guard->keys);
    if (error == 0) {
        tls_newcomer_init(&link->newcomer, socket, from);
        tls_crowd_enter(&guard->crowd, &link->newcomer, false, &leaves);
        if (leaves)
            refuse_stranger(guard, link_of(leaves),
                            "its handshake was not finished when others came");
        rpc_guard_watch(guard, link, CLIENT, EPOLLIN);
    }
    pthread_mutex_unlock(&guard->mutex);
    wake(guard);
    return error;
}

/* A handshake costs more than the bytes that a stranger sends for it. A silent stranger pays for
 * its connection alone. Else silent connections from the address of a client shut that client
 * out. */
static int pay_for_handshake(struct rpc_guard *guard, struct link *link)
{
    const struct principal stranger = principal_of_address(link->newcomer.from);
    if (link->has_paid || !tls_newcomer_has_bytes(&link->newcomer))
        return 0;
    link->has_paid = link->newcomer.has_spoken = true;
    return charge(guard, &stranger, RPC_COST_HANDSHAKE);
}

/* The peer was verified. */
static void admit_verified(struct rpc_guard *guard, struct link *link, const struct principal *peer)
{
    log_debug("tls", "%s comes from %s", peer->name, link->newcomer.from);
    tls_crowd_leave(&guard->crowd, &link->newcomer, true);
    int error = charge(guard, peer, RPC_COST_CONNECTION);
    if (error == 0)
        error = admit(guard, link, peer);
    if (error == 0)
        return;
    log_warn_limited(&guard->refused, "tls", "refused %s: %s", peer->name, report_line());
    rpc_guard_end_link(guard, link);
}

void rpc_guard_shake_hands(struct rpc_guard *guard, struct link *link)
{
    struct principal peer;
    short events = 0;
    int rc = pay_for_handshake(guard, link);
    if (rc == 0)
        rc = tls_stream_shake(link->stream[CLIENT], &peer, &events);
    if (rc < 0)
        refuse_stranger(guard, link, report_line());
    else if (rc > 0)
        admit_verified(guard, link, &peer);
    else
        rpc_guard_watch(guard, link, CLIENT, (uint32_t)events);
}

void rpc_guard_check_strangers(struct rpc_guard *guard, int64_t now_ms)
{
    for (struct tls_newcomer *one = guard->crowd.newest, *next; one; one = next) {
        next = one->next;
        if (now_ms - link_of(one)->added_ms >= TLS_HANDSHAKE_MS)
            refuse_stranger(guard, link_of(one), "its handshake took too long");
    }
}

void rpc_guard_end_strangers(struct rpc_guard *guard)
{
    while (guard->crowd.newest)
        rpc_guard_end_link(guard, link_of(guard->crowd.newest));
}

void rpc_guard_end_verified(struct rpc_guard *guard)
{
    rpc_guard_end_strangers(guard);
    for (struct link *link = guard->links, *next; link; link = next) {
        next = link->next;
        if (link->peer.kind == PRINCIPAL_CERTIFICATE)
            rpc_guard_end_link(guard, link);
    }
}
