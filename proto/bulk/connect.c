/* connect.c - where the bulk plane is, and a socket to it; see connect.h and bulk.h. */
#include "proto/bulk/connect.h"
#include "proto/bulk/bulk.h"
#include "proto/report.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_MS 2000

int bulk_address(char *out, size_t size, const char *server, const char *told, bool is_plain)
{
    const char *colon = strrchr(server, ':');
    struct address address;
    int length = told[0] == ':' && colon ? (int)(colon - server) : 0;
    if ((size_t)snprintf(out, size, "%.*s%s", length, server, told) >= size)
        return report_error(ERR_INVALID, NULL, "the address of a bulk plane is too long");
    ERR_TRY(address_parse(&address, out));
    if (!is_plain || strcmp(address.host, "127.0.0.1") == 0 || strcmp(address.host, "::1") == 0)
        return 0;
    return report_error(ERR_DENIED, "set tls.bulk_plain to false",
                        "ckptd wants bytes without TLS at %s, which is another machine", out);
}

int bulk_connect(int *out, const struct address *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(address->host, address->port, &hints, &found), fd = -1;
    if (rc != 0)
        return report_error(ERR_UNAVAILABLE, "look at the address", "%s cannot be resolved: %s",
                            address->host, gai_strerror(rc));
    rc = ERR_UNAVAILABLE;
    for (const struct addrinfo *at = found; at && rc != 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int reason = 0;
        socklen_t size = sizeof reason;
        struct pollfd state = {.fd = fd, .events = POLLOUT};
        if (fd >= 0 && (connect(fd, at->ai_addr, at->ai_addrlen) == 0 ||
                        (errno == EINPROGRESS && poll(&state, 1, CONNECT_MS) == 1 &&
                         getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size) == 0 && reason == 0)))
            rc = 0;
        else if (fd >= 0)
            close(fd);
        errno = reason ? reason : errno;
    }
    freeaddrinfo(found);
    *out = fd;
    return rc == 0 ? 0
                   : report_errno(ERR_UNAVAILABLE, "could not connect to the bulk plane",
                                  address->host);
}
