/* descriptors.h - how many descriptors this process has, by a call that no test wraps. Behind
 * cmocka.h. */
#ifndef HOLDFAST_TESTS_DESCRIPTORS_H
#define HOLDFAST_TESTS_DESCRIPTORS_H

#include <poll.h>

#define DESCRIPTORS_MAX 1024u /* counted; the usual soft limit, which poll keeps */

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

#endif
