/* rpc_places.c - of the guard: who gets a place, and whose connection makes room. See rpc_guard.h.
 */
#include "proto/wire/rpc_guard_private.h"

#include "proto/base/report.h"

#include <stdlib.h>
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

/* The connection of the user with most that has had no open stream for the longest time; or NULL.
 */
static struct link *find_idle(const struct rpc_guard *guard)
{
    const struct principal *largest = largest_user(guard);
    struct link *idle = NULL;
    for (struct link *link = guard->links; link; link = link->next)
        if (principal_is_same(&link->peer, largest) && link->frames.num_open == 0 &&
            (!idle || link->active_ms <= idle->active_ms)) /* the newest come first */
            idle = link;
    return idle;
}

int rpc_guard_charge(struct rpc_guard *guard, const struct principal *peer, uint32_t cost)
{
    struct rpc_account *account;
    char who[PRINCIPAL_TEXT_MAX];
    pthread_mutex_lock(&guard->mutex);
    int error = rpc_budget_find(&account, &guard->budget, peer, rpc_guard_now_ms());
    bool is_empty = rpc_account_is_empty(account);
    if (account && !is_empty)
        account->left -= cost;
    pthread_mutex_unlock(&guard->mutex);
    if (!is_empty)
        return error;
    principal_text(who, peer);
    return report_error(ERR_BUSY, "let it connect and ask less often",
                        "%s has used up what one user may cost in a second", who);
}

int rpc_guard_make_room(struct rpc_guard *guard, const struct principal *peer)
{
    uint32_t places = guard->num_places;
    if (!principal_is_privileged(peer) && places > 2 * RPC_PLACES_RESERVED)
        places -= RPC_PLACES_RESERVED;
    pthread_mutex_lock(&guard->mutex);
    bool is_full = guard->num_links >= places;
    struct link *idle = is_full ? find_idle(guard) : NULL;
    if (idle)
        rpc_guard_expel(guard, idle, "all places were taken, and it had no request under way");
    pthread_mutex_unlock(&guard->mutex);
    if (!is_full || idle)
        return 0;
    return report_error(ERR_BUSY, "close some, or raise limits.sessions",
                        "all %u connections are taken, and each has a request under way", places);
}

static bool watch_first(struct rpc_guard *guard, struct link *link)
{
    for (enum side side = CLIENT; side < NUM_SIDES; side++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uintptr_t)link | side};
        link->events[side] = EPOLLIN;
        if (epoll_ctl(guard->epoll, EPOLL_CTL_ADD, link->fd[side], &event) != 0)
            return false;
    }
    return true;
}

int rpc_guard_add(struct rpc_guard *guard, int client, int library, const struct principal *peer)
{
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        close(client);
        close(library);
        return report_error(ERR_MEMORY, NULL, "no memory for a connection");
    }
    link->fd[CLIENT] = client;
    link->fd[LIBRARY] = library;
    link->peer = *peer;
    link->frames.tokens = RPC_FRAMES_BURST;
    rpc_guard_set_allowance(link);
    link->added_ms = link->refilled_ms = link->active_ms = rpc_guard_now_ms();
    pthread_mutex_lock(&guard->mutex);
    int error = rpc_budget_find(&link->account, &guard->budget, peer, link->added_ms);
    if (link->account)
        link->account->num_links++;
    link->next = guard->links;
    guard->links = link;
    guard->num_links++;
    if (error != 0) {
        rpc_guard_end_link(guard, link);
    } else if (!watch_first(guard, link)) {
        error = report_errno(ERR_IO, "could not watch a connection", "epoll_ctl");
        rpc_guard_end_link(guard, link);
    }
    pthread_mutex_unlock(&guard->mutex);
    uint64_t one = 1;
    (void)!write(guard->wake, &one, sizeof one); /* its deadline begins */
    return error;
}
