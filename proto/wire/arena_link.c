/* arena_link.c - see arena_link.h. */
#include "proto/wire/arena_link.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void arena_link_close(struct arena_link *link)
{
    if (link->socket >= 0)
        close(link->socket);
    *link = (struct arena_link){-1, 0};
}

static int send_request(int socket, const struct arena_request *request)
{
    const char *bytes = (const char *)request;
    for (size_t sent = 0; sent < sizeof *request;) {
        ssize_t now = send(socket, bytes + sent, sizeof *request - sent, MSG_NOSIGNAL);
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0)
            return report_errno(ERR_UNAVAILABLE, "ckptd's arena went away", "send");
        sent += (size_t)now;
    }
    return 0;
}

int arena_link_fetch(struct arena_link *link, int *out_fds, const struct arena_request *request,
                     uint32_t count)
{
    struct arena_reply reply;
    int error = send_request(link->socket, request);
    if (error == 0)
        error = arena_receive_reply(link->socket, &reply, out_fds, count);
    if (error != 0)
        return error;
    if (reply.error == 0 && reply.num_fds == count)
        return 0;
    for (uint32_t i = 0; i < reply.num_fds && i < count; i++)
        close(out_fds[i]);
    if (reply.error != 0)
        return report_error(reply.error, NULL, "ckptd refused to share memory: %s",
                            err_text(reply.error));
    return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                        "ckptd sent %u descriptors for %u", reply.num_fds, count);
}

struct arena_request arena_request_make(uint32_t kind, uint64_t token)
{
    return (struct arena_request){
        .magic = ARENA_MAGIC, .version = ARENA_VERSION, .kind = kind, .session = token};
}

void arena_link_pause(void)
{
    uint16_t chance = 0;
    (void)!getrandom(&chance, sizeof chance, GRND_NONBLOCK);
    long us = ARENA_PAUSE_MS * 500 + chance % (ARENA_PAUSE_MS * 1000);
    clock_sleep_ns((uint64_t)us * 1000);
}

/* One try. *out_refused: ckptd runs but refuses this user now. The kernel returns EACCES, or ckptd
 * closes the queued connection without an answer. */
static int try_open(struct arena_link *out, bool *out_refused, const struct sockaddr_un *address)
{
    struct timeval limit = {.tv_sec = ARENA_LINK_MS / 1000};
    *out_refused = false;
    out->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (out->socket < 0)
        return report_errno(ERR_IO, "could not make a socket", address->sun_path);
    if (setsockopt(out->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(out->socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        connect(out->socket, (const struct sockaddr *)address, sizeof *address) != 0) {
        *out_refused = errno == EACCES || errno == EAGAIN;
        return report_errno(ERR_UNAVAILABLE, "could not connect to ckptd's arena",
                            address->sun_path);
    }
    struct arena_request request = arena_request_make(ARENA_REQUEST_BIND, out->token);
    int error = arena_link_fetch(out, NULL, &request, 0);
    *out_refused = error == ERR_UNAVAILABLE;
    return error;
}

int arena_link_open(struct arena_link *out, const char *arena_path, uint64_t token,
                    uint32_t timeout_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t end = (uint64_t)clock_ms() + (timeout_ms < ARENA_LINK_MS ? timeout_ms : ARENA_LINK_MS);
    *out = (struct arena_link){-1, token};
    if (strlen(arena_path) >= sizeof address.sun_path)
        return report_error(ERR_INVALID, "use a shorter listen path",
                            "the arena path is too long: %s", arena_path);
    strcpy(address.sun_path, arena_path);
    for (;;) {
        bool is_refused;
        *out = (struct arena_link){-1, token};
        int error = try_open(out, &is_refused, &address);
        if (error != 0)
            arena_link_close(out);
        if (!is_refused || (uint64_t)clock_ms() >= end)
            return error;
        arena_link_pause();
    }
}

int arena_link_map(void **out, int fd, uint64_t bytes, uint64_t used)
{
    void *mapping = NULL;
    int error = arena_map(&mapping, NULL, fd, bytes, PROT_READ | PROT_WRITE);
    if (error == 0 && used > 0)
        madvise(mapping, used, MADV_POPULATE_WRITE);
    *out = mapping;
    close(fd);
    return error;
}
