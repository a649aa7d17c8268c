/* rpc_guard.c - see rpc_guard.h; rpc_places.c admits clients.
 *
 * One thread, one epoll. A link is a client's connection: two streams and a flow in each direction.
 * A flow reads at most RPC_RELAY_BYTES and writes them to the other side. It keeps the bytes that
 * the other side does not accept, and reads no more until those are written. Links are guarded by
 * the mutex, which the thread holds while it works, but not while it waits. The thread frees an
 * ended link after it has handled the fetched events, because one of them may name it. */
#include "proto/wire/rpc_guard_private.h"

#include "proto/base/clock.h"

#include "proto/tls/tls.h"

#include <malloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PROTOCOL "h2" /* gRPC is HTTP/2 */
#define EVENTS_MAX 8  /* a thread that waits for the mutex waits for as many handshakes at most */
#define TICK_MS 1000  /* interval of the checks of deadlines and TLS files */
#define THROTTLED_TICK_MS 50
/* Relayed since the last quiet time: the next one returns free memory. */
#define TRIM_BYTES (16u << 20)

/* ---- links ---- */

int rpc_guard_open_link(struct link **out, struct rpc_guard *guard, int socket,
                        struct tls_keys *keys)
{
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        close(socket);
        return report_error(ERR_MEMORY, NULL, "no memory for a connection");
    }
    int error = tls_stream_begin(&link->stream[CLIENT], keys, socket, NULL);
    if (error != 0) {
        free(link);
        return error;
    }
    link->fd[CLIENT] = socket;
    link->reads_on[CLIENT] = link->reads_on[LIBRARY] = POLLIN;
    link->added_ms = clock_ms();
    *out = link;
    struct epoll_event event = {.data.u64 = (uintptr_t)link | CLIENT};
    if (epoll_ctl(guard->epoll, EPOLL_CTL_ADD, socket, &event) == 0)
        return 0;
    error = report_errno(ERR_IO, "could not watch a connection", "epoll_ctl");
    rpc_guard_end_link(guard, link);
    return error;
}

static void unlink_link(struct rpc_guard *guard, struct link *link)
{
    struct link **at = &guard->links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    guard->num_links--;
    guard->num_tickets -= link->has_ticket;
    link->account->num_links--;
    link->is_in = false;
}

void rpc_guard_end_link(struct rpc_guard *guard, struct link *link)
{
    link->ended = true;
    tls_crowd_leave(&guard->crowd, &link->newcomer, false);
    if (link->is_in)
        unlink_link(guard, link);
    for (enum side side = CLIENT; side < NUM_SIDES; side++) {
        tls_stream_close(link->stream[side]);
        free(link->from[side].rest);
    }
    link->next = guard->graves;
    guard->graves = link;
}

static void bury(struct rpc_guard *guard)
{
    while (guard->graves) {
        struct link *link = guard->graves;
        guard->graves = link->next;
        free(link);
    }
}

void rpc_guard_expel(struct rpc_guard *guard, struct link *link, const char *why)
{
    char who[PRINCIPAL_TEXT_MAX];
    principal_text(who, &link->peer);
    log_warn_limited(&guard->expelled, "rpc", "closed a connection of %s: %s", who, why);
    rpc_guard_end_link(guard, link);
}

/* ---- what epoll watches ---- */

static bool may_read(const struct link *link, enum side side)
{
    return !link->from[side].rest && (side == LIBRARY || !link->from[LIBRARY].rest);
}

/* Are there bytes that may pass but could not be written? */
static bool is_stuck(const struct flow *flow)
{
    return flow->rest && flow->passed > flow->at;
}

void rpc_guard_watch(struct rpc_guard *guard, struct link *link, enum side side, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = (uintptr_t)link | side};
    if (events == link->events[side])
        return;
    link->events[side] = events;
    if (epoll_ctl(guard->epoll, EPOLL_CTL_MOD, link->fd[side], &event) != 0)
        rpc_guard_expel(guard, link, "it could not be watched");
}

static void watch(struct rpc_guard *guard, struct link *link)
{
    for (enum side side = CLIENT; side < NUM_SIDES && !link->ended; side++)
        if (side == CLIENT || !link->is_parted)
            rpc_guard_watch(guard, link, side,
                            (may_read(link, side) ? (uint32_t)link->reads_on[side] : 0u) |
                                (is_stuck(&link->from[!side]) ? (uint32_t)EPOLLOUT : 0u));
}

/* ---- bytes ---- */

static void refill(struct link *link, int64_t now)
{
    rpc_account_refill(link->account, now);
    if (may_read(link, CLIENT)) /* while the guard holds it back its time stops */
        link->frames.client.now_ms += now - link->refilled_ms;
    link->refilled_ms = now;
}

/* How many of the bytes may pass now. *out_why: the reason to close the connection, or NULL. */
static size_t parse_bytes(struct rpc_guard *guard, struct link *link, enum side from,
                          const uint8_t *data, size_t bytes, const char **out_why)
{
    struct rpc_frames *frames = &link->frames;
    size_t passed = bytes;
    *out_why = NULL;
    if (from == CLIENT)
        refill(link, clock_ms());
    frames->budget = link->account->left;
    if (from == LIBRARY)
        rpc_frames_from_server(frames, data, bytes);
    else
        passed = rpc_frames_from_client(frames, data, bytes, out_why);
    link->account->left = frames->budget;
    if (from == LIBRARY)
        return bytes;
    guard->relayed += passed;
    link->ticket_bytes += passed;
    if (frames->num_open > 0)
        link->active_ms = link->refilled_ms;
    return passed;
}

/* How many bytes the other side accepted; -1: it is gone. */
static ssize_t write_some(struct tls_stream *stream, const uint8_t *data, size_t bytes)
{
    size_t done = 0;
    short events;
    for (ssize_t count = 1; done < bytes && count > 0; done += (size_t)count) {
        count = tls_stream_write_some(stream, data + done, bytes - done, &events);
        if (count < 0)
            return -1;
    }
    return (ssize_t)done;
}

/* Keeps the bytes that may not pass yet or were not accepted. False: no memory. */
static bool keep_rest(struct flow *flow, const uint8_t *data, size_t bytes, size_t passed)
{
    if (bytes == 0)
        return true;
    flow->rest = malloc(bytes);
    if (!flow->rest)
        return false;
    memcpy(flow->rest, data, bytes);
    flow->at = 0;
    flow->bytes = bytes;
    flow->passed = passed;
    flow->stuck_ms = clock_ms();
    return true;
}

static bool relay(struct rpc_guard *guard, struct link *link, enum side from);

/* The other side is gone, so bytes of `from` cannot be written. If the library hung up, the client
 * still gets the bytes that it sent before. */
static void end_unwritable(struct rpc_guard *guard, struct link *link, enum side from)
{
    while (from == CLIENT && !link->ended && relay(guard, link, LIBRARY))
        ;
    if (!link->ended)
        rpc_guard_end_link(guard, link);
}

/* Writes the kept bytes that may pass, and checks whether more may. False: the link has ended. */
static bool flush_rest(struct rpc_guard *guard, struct link *link, enum side from)
{
    struct flow *flow = &link->from[from];
    if (!flow->rest)
        return true;
    const char *why = NULL;
    if (flow->at == flow->passed)
        flow->passed +=
            parse_bytes(guard, link, from, flow->rest + flow->at, flow->bytes - flow->at, &why);
    if (why) {
        rpc_guard_expel(guard, link, why);
        return false;
    }
    ssize_t count = write_some(link->stream[!from], flow->rest + flow->at, flow->passed - flow->at);
    if (count < 0) {
        end_unwritable(guard, link, from);
        return false;
    }
    flow->at += (size_t)count;
    if (count > 0)
        flow->stuck_ms = clock_ms();
    if (flow->at == flow->bytes) {
        free(flow->rest);
        flow->rest = NULL;
    }
    return true;
}

/* Reads once from one side and writes to the other. False: read no more of it now, or the link has
 * ended. */
static bool relay(struct rpc_guard *guard, struct link *link, enum side from)
{
    uint8_t data[RPC_RELAY_BYTES];
    if (!may_read(link, from))
        return false;
    link->reads_on[from] = POLLIN;
    /* Read without room for control data, so the kernel closes descriptors that a client passes. */
    ssize_t count =
        tls_stream_read_some(link->stream[from], data, sizeof data, &link->reads_on[from]);
    if (count == 0)
        return false;
    if (count < 0) {
        rpc_guard_end_link(guard, link);
        return false;
    }
    const char *why;
    size_t passed = parse_bytes(guard, link, from, data, (size_t)count, &why);
    if (why) {
        rpc_guard_expel(guard, link, why);
        return false;
    }
    ssize_t written = write_some(link->stream[!from], data, passed);
    if (written < 0) {
        end_unwritable(guard, link, from);
        return false;
    }
    if (!keep_rest(&link->from[from], data + written, (size_t)(count - written),
                   passed - (size_t)written)) {
        rpc_guard_end_link(guard, link);
        return false;
    }
    return count == (ssize_t)sizeof data;
}

/* ---- tickets for large requests ---- */

static uint32_t tickets_of(const struct rpc_guard *guard, const struct principal *peer)
{
    uint32_t count = 0;
    for (const struct link *link = guard->links; link; link = link->next)
        count += link->has_ticket && principal_is_same(&link->peer, peer);
    return count;
}

/* The link that has waited longest, of the user with the fewest tickets; or NULL. */
static struct link *next_waiting(const struct rpc_guard *guard)
{
    struct link *best = NULL;
    uint32_t fewest = 0;
    for (struct link *link = guard->links; link; link = link->next) {
        uint32_t count = link->waits ? tickets_of(guard, &link->peer) : 0;
        if (!link->waits || (!principal_is_privileged(&link->peer) && count >= RPC_TICKETS * 3 / 4))
            continue;
        if (!best || count < fewest || (count == fewest && link->ticket_ms < best->ticket_ms)) {
            best = link;
            fewest = count;
        }
    }
    return best;
}

void rpc_guard_set_allowance(struct link *link)
{
    link->frames.allowance = link->has_ticket ? RPC_LARGE_BYTES : RPC_SMALL_BYTES;
}

static void give_tickets(struct rpc_guard *guard)
{
    struct link *link;
    while (guard->someone_waits && guard->num_tickets < RPC_TICKETS) {
        link = next_waiting(guard);
        guard->someone_waits = link != NULL;
        if (!link)
            return;
        link->waits = false;
        link->has_ticket = true;
        link->ticket_ms = clock_ms();
        link->ticket_bytes = 0;
        guard->num_tickets++;
        rpc_guard_set_allowance(link);
        rpc_guard_resume(guard, link);
    }
}

/* Call it after its bytes were parsed. False: the link has ended. */
static bool settle_ticket(struct rpc_guard *guard, struct link *link)
{
    if (link->has_ticket && link->frames.wants_more) {
        rpc_guard_expel(guard, link, "its requests were too large");
        return false;
    }
    if (link->has_ticket && link->frames.unfinished <= RPC_SMALL_BYTES) {
        link->has_ticket = false;
        guard->num_tickets--;
        rpc_guard_set_allowance(link);
    }
    if (link->frames.wants_more && !link->waits && !link->has_ticket) {
        link->waits = guard->someone_waits = true;
        link->ticket_ms = clock_ms();
    }
    return true;
}

void rpc_guard_resume(struct rpc_guard *guard, struct link *link)
{
    while (flush_rest(guard, link, CLIENT) && settle_ticket(guard, link)) {
        if (!may_read(link, CLIENT) || !tls_stream_has_pending(link->stream[CLIENT])) {
            watch(guard, link);
            return;
        }
        relay(guard, link, CLIENT);
        if (link->ended)
            return;
    }
}

/* A side hung up. The client still gets the bytes that the library sent before. */
static void handle_hangup(struct rpc_guard *guard, struct link *link, enum side side)
{
    if (side == CLIENT) {
        rpc_guard_end_link(guard, link);
        return;
    }
    while (relay(guard, link, LIBRARY))
        ;
    if (link->ended || link->is_parted)
        return;
    link->is_parted = true;
    epoll_ctl(guard->epoll, EPOLL_CTL_DEL, link->fd[LIBRARY], NULL);
}

static void handle(struct rpc_guard *guard, const struct epoll_event *event)
{
    enum side side = (enum side)(event->data.u64 & 1);
    struct link *link = (struct link *)(uintptr_t)(event->data.u64 & ~(uint64_t)1);
    if (link->ended)
        return;
    if (!link->is_in) {
        rpc_guard_shake_hands(guard, link);
        return;
    }
    if ((event->events & EPOLLOUT) != 0 && !flush_rest(guard, link, !side))
        return;
    if ((event->events & (uint32_t)link->reads_on[side]) != 0)
        relay(guard, link, side);
    if (!link->ended && (event->events & (EPOLLHUP | EPOLLERR)) != 0)
        handle_hangup(guard, link, side);
    /* epoll no longer watches the library's side: read it until it is empty. */
    while (!link->ended && link->is_parted && relay(guard, link, LIBRARY))
        ;
    /* Answers of the library may let more of the client's frames pass. */
    if (!link->ended)
        rpc_guard_resume(guard, link);
    give_tickets(guard);
}

/* ---- deadlines ---- */

/* How long a link may keep its ticket: longer by the bytes received meanwhile, at the slowest
 * rate. */
static int64_t ticket_ms(const struct link *link)
{
    size_t bytes = link->ticket_bytes < RPC_LARGE_BYTES ? link->ticket_bytes : RPC_LARGE_BYTES;
    return RPC_TICKET_MS + (int64_t)bytes * 1000 / RPC_BYTES_PER_SECOND;
}

static void check_deadlines(struct rpc_guard *guard, struct link *link, int64_t now)
{
    refill(link, now);
    if (link->frames.num_open > 0)
        link->active_ms = now;
    if (is_stuck(&link->from[LIBRARY]) && now - link->from[LIBRARY].stuck_ms >= RPC_STALL_MS)
        rpc_guard_expel(guard, link, "it did not read its answers");
    else if (link->frames.last_stream == 0 && now - link->added_ms >= guard->options.silent_ms)
        rpc_guard_expel(guard, link, "no request came within limits.connect_ms");
    else if (link->has_ticket && now - link->ticket_ms >= ticket_ms(link))
        rpc_guard_expel(guard, link, "its requests did not end");
    else if (rpc_frames_overdue_ms(&link->frames) >= guard->options.silent_ms)
        rpc_guard_expel(guard, link, "a request took longer than limits.connect_ms");
    else
        rpc_guard_resume(guard, link);
}

/* Does it wait for its user's budget? */
static bool is_throttled(const struct link *link)
{
    return link->from[CLIENT].rest && rpc_account_is_empty(link->account);
}

/* The timeout until the next event, ms. */
static int tick(struct rpc_guard *guard, int64_t *last_ms)
{
    int64_t now = clock_ms();
    bool throttled = false, due = now - *last_ms >= TICK_MS;
    for (struct link *link = guard->links, *next; link; link = next) {
        next = link->next; /* an ended link is in the list of graves */
        if (due || is_throttled(link))
            check_deadlines(guard, link, now);
        throttled = throttled || (!link->ended && is_throttled(link));
    }
    give_tickets(guard);
    if (due) {
        *last_ms = now;
        rpc_budget_sweep(&guard->budget, now);
        rpc_guard_check_strangers(guard, now);
        if (guard->keys && tls_keys_refresh(guard->keys))
            rpc_guard_end_verified(guard);
        if (guard->relayed >= TRIM_BYTES) {
            malloc_trim(0);
            guard->relayed = 0;
        }
    }
    return throttled ? THROTTLED_TICK_MS : guard->links || guard->keys ? TICK_MS : -1;
}

static void *guard_thread(void *argument)
{
    struct rpc_guard *guard = argument;
    struct epoll_event events[EVENTS_MAX];
    int64_t last_ms = clock_ms();
    int wait_ms = -1;
    for (;;) {
        int count = epoll_wait(guard->epoll, events, EVENTS_MAX, wait_ms);
        pthread_mutex_lock(&guard->mutex);
        if (guard->closing)
            break;
        for (int i = 0; i < count; i++) {
            uint64_t woken;
            if (events[i].data.u64 == 0)
                (void)!read(guard->wake, &woken, sizeof woken);
            else
                handle(guard, &events[i]);
        }
        wait_ms = tick(guard, &last_ms);
        bury(guard);
        pthread_mutex_unlock(&guard->mutex);
    }
    for (struct link *link = guard->links, *next; link; link = next) { /* write the last answers */
        next = link->next;
        while (!link->ended && relay(guard, link, LIBRARY))
            ;
    }
    while (guard->links)
        rpc_guard_end_link(guard, guard->links);
    rpc_guard_end_strangers(guard);
    bury(guard);
    pthread_mutex_unlock(&guard->mutex);
    return NULL;
}

/* ---- opening, closing ---- */

static int start(struct rpc_guard *guard)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
    guard->epoll = epoll_create1(EPOLL_CLOEXEC);
    guard->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (guard->epoll < 0 || guard->wake < 0 ||
        epoll_ctl(guard->epoll, EPOLL_CTL_ADD, guard->wake, &event) != 0)
        return report_errno(ERR_IO, "could not watch connections", "epoll");
    if (pthread_create(&guard->thread, NULL, guard_thread, guard) != 0)
        return report_error(ERR_MEMORY, NULL, "the thread of the connections could not be started");
    return 0;
}

static void free_guard(struct rpc_guard *guard)
{
    if (guard->epoll >= 0)
        close(guard->epoll);
    if (guard->wake >= 0)
        close(guard->wake);
    tls_keys_close(guard->keys);
    rpc_budget_deinit(&guard->budget);
    pthread_mutex_destroy(&guard->mutex);
    free(guard);
}

int rpc_guard_open(struct rpc_guard **out, const struct rpc_guard_options *options)
{
    CHECK(options->num_places > 0 && options->connect);
    struct rpc_guard *guard = calloc(1, sizeof *guard);
    if (!guard)
        return report_error(ERR_MEMORY, NULL, "no memory for the connections");
    guard->options = *options;
    guard->crowd.most = TLS_HANDSHAKES_MAX;
    guard->crowd.most_each = TLS_HANDSHAKES_EACH;
    guard->budget.rate = (struct rpc_rate){options->budget_per_second, options->budget_burst};
    guard->epoll = guard->wake = -1;
    pthread_mutex_init(&guard->mutex, NULL);
    int error = 0;
    if (options->tls_directory)
        error = tls_keys_open_server(&guard->keys, options->tls_directory, PROTOCOL);
    if (error == 0)
        error = start(guard);
    if (error != 0) {
        free_guard(guard);
        return error;
    }
    *out = guard;
    return 0;
}

int64_t rpc_guard_tls_end_s(const struct rpc_guard *guard)
{
    return tls_keys_end_s(guard->keys);
}

void rpc_guard_close(struct rpc_guard *guard)
{
    if (!guard)
        return;
    pthread_mutex_lock(&guard->mutex);
    guard->closing = true;
    pthread_mutex_unlock(&guard->mutex);
    uint64_t one = 1;
    (void)!write(guard->wake, &one, sizeof one);
    pthread_join(guard->thread, NULL);
    free_guard(guard);
}
