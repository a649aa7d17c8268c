/* descriptors.h - how many descriptors this process has, by a call that no test wraps, and whether
 * something has left one behind. */
#ifndef HOLDFAST_TESTS_DESCRIPTORS_H
#define HOLDFAST_TESTS_DESCRIPTORS_H

#include "tests/unit/suite.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 1024u /* counted; the usual soft limit, which poll keeps */
#define PATIENCE_MS 10000u    /* with what ends soon: a ckptd that starts, a connection that ends */

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

/* For who reads of one that was left behind. */
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

/* gRPC closes a connection when the call that used it is over already: *least is the smallest
 * number of descriptors so far. */
static inline bool are_closed(unsigned *least)
{
    for (unsigned waited = 0; waited < PATIENCE_MS; waited++, wait_ms(1)) {
        unsigned now = count_descriptors();
        if (now <= *least) {
            *least = now;
            return true;
        }
    }
    tell_descriptors();
    return false;
}

#endif
