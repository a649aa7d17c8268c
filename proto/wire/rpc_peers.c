/* rpc_peers.c - see rpc_peers.h.
 *
 * gRPC does not report the end of a connection. When the list is full, rpc_peers_connect() drops
 * the entries whose number is no open socket any more, or another one. Until then the entry stays
 * for calls that are still unanswered. An entry that still holds memory stays until it has returned
 * it. */
#include "proto/wire/rpc_peers.h"

#include "proto/base/report.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FD_FIRST 64 /* smaller numbers are for other descriptors of the process */
#define ROUNDS 4u   /* so many times as many numbers as connections before one is reused */
#define PAIR_BYTES (32 << 10) /* of kernel memory, per direction and connection */
#define NAME_FORMAT "fd:%d"   /* of grpc_server_add_channel_from_fd */

int rpc_peers_init(struct rpc_peers *out, uint32_t max)
{
    CHECK(max > 0);
    *out = (struct rpc_peers){.max = max, .next_fd = FD_FIRST};
    out->list = calloc(max, sizeof *out->list);
    if (!out->list)
        return report_error(ERR_MEMORY, NULL, "no memory for %u connections", max);
    pthread_mutex_init(&out->mutex, NULL);
    return 0;
}

void rpc_peers_deinit(struct rpc_peers *peers)
{
    pthread_mutex_destroy(&peers->mutex);
    free(peers->list);
}

static bool peer_is_open(const struct rpc_peer *peer)
{
    struct stat status;
    return fstat(peer->fd, &status) == 0 && S_ISSOCK(status.st_mode) &&
           status.st_ino == peer->inode;
}

static bool peer_holds(const struct rpc_peer *peer)
{
    return peer->held[RPC_HELD_REQUESTS] + peer->held[RPC_HELD_ANSWERS] > 0;
}

static void drop_ended(struct rpc_peers *peers)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < peers->count; i++)
        if (peer_holds(&peers->list[i]) || peer_is_open(&peers->list[i]))
            peers->list[kept++] = peers->list[i];
    peers->count = kept;
}

/* The entry with that number, or NULL. */
static struct rpc_peer *find_peer(struct rpc_peers *peers, int fd)
{
    for (uint32_t i = 0; i < peers->count; i++)
        if (peers->list[i].fd == fd)
            return &peers->list[i];
    return NULL;
}

/* Moves the socket to the next free number; -1: it failed. If the limit of the process is lower,
 * the round is shorter. */
static int move_up(struct rpc_peers *peers, int socket)
{
    if (peers->next_fd - FD_FIRST >= (int)(ROUNDS * peers->max))
        peers->next_fd = FD_FIRST;
    int fd = fcntl(socket, F_DUPFD_CLOEXEC, peers->next_fd);
    if (fd < 0)
        fd = fcntl(socket, F_DUPFD_CLOEXEC, FD_FIRST);
    peers->next_fd = fd < 0 ? FD_FIRST : fd + 1;
    return fd;
}

static int add(struct rpc_peers *peers, int *out, int socket, const struct principal *who)
{
    struct stat status;
    if (peers->count == peers->max)
        drop_ended(peers);
    if (peers->count == peers->max)
        return report_error(ERR_BUSY, "close some", "there are %u connections already", peers->max);
    if (fstat(socket, &status) != 0)
        return report_errno(ERR_IO, "could not keep a connection", "fstat");
    int fd = move_up(peers, socket);
    if (fd < 0)
        return report_errno(ERR_IO, "could not keep a connection", "fcntl");
    struct rpc_peer *old = find_peer(peers, fd); /* its connection has ended: the number was free */
    if (!old)
        old = &peers->list[peers->count++];
    /* Calls of the former connection of that number may still return its memory. */
    struct rpc_peer peer = {.fd = fd, .inode = status.st_ino, .peer = *who};
    memcpy(peer.held, old->held, sizeof peer.held);
    *old = peer;
    close(socket);
    *out = fd;
    return 0;
}

static int add_locked(struct rpc_peers *peers, int *out, int socket, const struct principal *peer)
{
    pthread_mutex_lock(&peers->mutex);
    int error = add(peers, out, socket, peer);
    pthread_mutex_unlock(&peers->mutex);
    return error;
}

int rpc_peers_connect(struct rpc_peers *peers, int *out_library, int *out_guard,
                      const struct principal *peer)
{
    int pair[2], size = PAIR_BYTES;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return report_errno(ERR_IO, "could not connect a client to the RPC library", "socketpair");
    for (int i = 0; i < 2; i++) /* best effort */
        setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    int error = add_locked(peers, out_library, pair[0], peer);
    if (error != 0) {
        close(pair[0]);
        close(pair[1]);
        return error;
    }
    *out_guard = pair[1];
    return 0;
}

int rpc_peers_number(const char *name)
{
    int number;
    return sscanf(name, NAME_FORMAT, &number) == 1 ? number : -1;
}

int rpc_peers_find(struct rpc_peers *peers, struct rpc_peer *out, int number)
{
    pthread_mutex_lock(&peers->mutex);
    const struct rpc_peer *found = find_peer(peers, number);
    if (found)
        *out = *found;
    pthread_mutex_unlock(&peers->mutex);
    return found ? 0 : report_error(ERR_NOT_FOUND, NULL, "connection %d has gone", number);
}

/* The bytes held by all connections, or by one peer's. */
static size_t sum_held(const struct rpc_peers *peers, enum rpc_held kind,
                       const struct principal *peer)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < peers->count; i++)
        if (!peer || principal_is_same(&peers->list[i].peer, peer))
            sum += peers->list[i].held[kind];
    return sum;
}

bool rpc_peers_hold(struct rpc_peers *peers, int number, enum rpc_held kind, size_t bytes,
                    size_t max)
{
    pthread_mutex_lock(&peers->mutex);
    struct rpc_peer *peer = find_peer(peers, number);
    size_t all = sum_held(peers, kind, NULL);
    bool fits = peer && bytes <= max && all <= max - bytes &&
                (principal_is_privileged(&peer->peer) ||
                 sum_held(peers, kind, &peer->peer) + bytes <= max / 4 * 3);
    if (fits)
        peer->held[kind] += bytes;
    pthread_mutex_unlock(&peers->mutex);
    return fits;
}

void rpc_peers_let_go(struct rpc_peers *peers, int number, enum rpc_held kind, size_t bytes)
{
    pthread_mutex_lock(&peers->mutex);
    struct rpc_peer *peer = find_peer(peers, number);
    CHECK(bytes == 0 || (peer && peer->held[kind] >= bytes));
    if (peer)
        peer->held[kind] -= bytes;
    pthread_mutex_unlock(&peers->mutex);
}

void rpc_peers_blame(struct rpc_peers *peers, int number)
{
    pthread_mutex_lock(&peers->mutex);
    struct rpc_peer *found = find_peer(peers, number);
    bool shut = found && ++found->num_broken == RPC_BROKEN_MAX && peer_is_open(found) &&
                shutdown(number, SHUT_RDWR) == 0;
    struct rpc_peer peer = found ? *found : (struct rpc_peer){.fd = -1};
    pthread_mutex_unlock(&peers->mutex);
    if (!shut)
        return;
    char who[PRINCIPAL_TEXT_MAX];
    principal_text(who, &peer.peer);
    log_warn("rpc", "closed a connection of %s: it began %u requests and did not finish them", who,
             RPC_BROKEN_MAX);
}
