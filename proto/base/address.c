/* address.c - see address.h. */
#include "proto/base/address.h"

#include "proto/base/report.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCHEME "unix:"
#define CONNECT_MS 2000
#define BACKLOG 256

static int parse_unix(struct address *out, const char *path)
{
    if (path[0] != '/')
        return report_error(ERR_INVALID, "give unix: and an absolute path",
                            "'" SCHEME "%s' names no socket", path);
    if (strlen(path) >= sizeof out->path)
        return report_error(ERR_INVALID, "name a shorter path",
                            "the path of a socket has at most %zu bytes, and " SCHEME "%s has %zu",
                            sizeof out->path - 1, path, strlen(path));
    *out = (struct address){.kind = ADDRESS_UNIX};
    snprintf(out->path, sizeof out->path, "%s", path);
    return 0;
}

static bool is_port(const char *text)
{
    size_t length = strspn(text, "0123456789");
    return length > 0 && length <= 5 && text[length] == '\0' && atoi(text) >= 1 &&
           atoi(text) <= 65535;
}

/* Copies the host before `end`. An IPv6 address contains colons, so it is in brackets. */
static bool copy_host(char *out, size_t size, const char *text, const char *end)
{
    bool has_brackets = text[0] == '[';
    if (has_brackets && (end - text < 3 || end[-1] != ']'))
        return false;
    const char *from = text + has_brackets, *to = end - has_brackets;
    size_t length = (size_t)(to - from);
    if (length == 0 || length >= size || memchr(from, '/', length) ||
        (!has_brackets && memchr(from, ':', length)))
        return false;
    snprintf(out, size, "%.*s", (int)length, from);
    return true;
}

int address_parse(struct address *out, const char *text)
{
    if (strncmp(text, SCHEME, strlen(SCHEME)) == 0)
        return parse_unix(out, text + strlen(SCHEME));
    const char *colon = strrchr(text, ':');
    *out = (struct address){.kind = ADDRESS_TLS};
    if (!colon || !is_port(colon + 1) || !copy_host(out->host, sizeof out->host, text, colon))
        return report_error(ERR_INVALID, "give unix:/PATH, or HOST:PORT",
                            "'%s' is no address of a ckptd", text);
    snprintf(out->port, sizeof out->port, "%s", colon + 1);
    return 0;
}

int address_connect(int *out, const struct address *address)
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
        errno = reason ? reason : errno == EINPROGRESS ? ETIMEDOUT : errno;
    }
    freeaddrinfo(found);
    *out = fd;
    return rc == 0 ? 0 : report_errno(ERR_UNAVAILABLE, "could not connect", address->host);
}

static int listen_at(int *out, const struct addrinfo *at)
{
    int on = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        *out = fd;
        return 0;
    }
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

int address_listen(int *out, const char *text, const char *key)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct address address;
    ERR_TRY(address_parse(&address, text));
    int rc = getaddrinfo(address.host, address.port, &hints, &found);
    if (rc != 0)
        return report_error(ERR_INVALID, "name an address of this machine",
                            "%s %s cannot be resolved: %s", key, text, gai_strerror(rc));
    rc = listen_at(out, found);
    if (rc != 0)
        rc = report_errno(errno == EADDRINUSE ? ERR_BUSY : ERR_IO,
                          "could not listen on an address of the settings", text);
    freeaddrinfo(found);
    return rc;
}
