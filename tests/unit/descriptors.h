/* descriptors.h - counts the descriptors of this process by a call that no test wraps, and detects
 * leaks. */
#ifndef HOLDFAST_TESTS_DESCRIPTORS_H
#define HOLDFAST_TESTS_DESCRIPTORS_H

#include "tests/unit/suite.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 1024u /* counted; the usual soft limit, which poll keeps */
/* Including short-lived ones: of a ckptd that starts, of a connection that ends. */
#define PATIENCE_MS 10000u

static inline unsigned count_descriptors(void)
{
    struct pollfd all[DESCRIPTORS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < DESCRIPTORS_MAX; i++)
        all[i] = (struct pollfd){.fd = (int)i};
    assert_true(poll(all, DESCRIPTORS_MAX, 0) >= 0);
    for (unsigned i = 0; i < DESCRIPTORS_MAX; i++)
        count += (all[i].revents & POLLNVAL) == 0;
    return count;
}

static inline void wait_ms(unsigned ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000l}, NULL);
}

/* Prints the leaked descriptors for the reader of the log. */
static inline void tell_descriptors(void)
{
    for (unsigned i = 0; i < DESCRIPTORS_MAX; i++) {
        char path[32], of[256];
        snprintf(path, sizeof(path), "/proc/self/fd/%u", i);
        ssize_t bytes = readlink(path, of, sizeof(of));
        struct sockaddr_un here = {.sun_family = AF_UNIX}, there = here;
        socklen_t length = sizeof(here);
        if (bytes <= 0)
            continue;
        getsockname((int)i, (struct sockaddr *)&here, &length);
        length = sizeof(there);
        getpeername((int)i, (struct sockaddr *)&there, &length);
        fprintf(stderr, "# descriptor %u: %.*s %s to %s\n", i, (int)bytes, of, here.sun_path,
                there.sun_path);
    }
}

/* A client's connection to a server that has gone, and not the arena's. gRPC 1.51 keeps one that
 * was made after its channel was closed (fixed by its pull request 32071). */
static inline bool is_kept_by_grpc(int fd)
{
    struct sockaddr_un here = {.sun_family = AF_UNIX}, there = here;
    struct pollfd ends = {.fd = fd};
    socklen_t length = sizeof(here);
    if (getsockname(fd, (struct sockaddr *)&here, &length) != 0 || here.sun_path[0] != '\0')
        return false;
    length = sizeof(there);
    return getpeername(fd, (struct sockaddr *)&there, &length) == 0 &&
           there.sun_family == AF_UNIX && there.sun_path[0] != '\0' &&
           strstr(there.sun_path, ".arena") == NULL && poll(&ends, 1, 0) == 1 &&
           (ends.revents & POLLHUP) != 0;
}

/* gRPC closes a connection a while after the call that used it: *least is the smallest number of
 * descriptors so far. */
static inline bool are_closed(unsigned *least)
{
    for (unsigned waited = 0; waited < PATIENCE_MS; waited++, wait_ms(1)) {
        unsigned now = count_descriptors();
        for (int fd = 0; now > *least && fd < (int)DESCRIPTORS_MAX; fd++)
            now -= is_kept_by_grpc(fd);
        if (now <= *least) {
            *least = now;
            return true;
        }
    }
    tell_descriptors();
    return false;
}

#endif
