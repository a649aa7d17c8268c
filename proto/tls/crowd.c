/* crowd.c - see crowd.h. */
#include "proto/tls/crowd.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void tls_newcomer_init(struct tls_newcomer *out, int socket, const char *from)
{
    *out = (struct tls_newcomer){.socket = socket};
    snprintf(out->from, sizeof out->from, "%s", from);
}

bool tls_newcomer_has_bytes(const struct tls_newcomer *newcomer)
{
    char byte;
    return recv(newcomer->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static bool is_known(const struct tls_crowd *crowd, const char *from)
{
    for (uint32_t i = 0; i < TLS_KNOWN_MAX; i++)
        if (strcmp(crowd->known[i], from) == 0)
            return true;
    return false;
}

/* The order in which places go to newcomers: the highest first. */
static uint32_t rank_of(const struct tls_crowd *crowd, const struct tls_newcomer *newcomer)
{
    bool is_silent = !newcomer->has_spoken && !tls_newcomer_has_bytes(newcomer);
    return 2u * is_silent + !is_known(crowd, newcomer->from);
}

/* Of all, or of address `from` unless NULL, the one that is replaced first; NULL: there is none. */
static struct tls_newcomer *find_first(const struct tls_crowd *crowd, const char *from)
{
    struct tls_newcomer *found = NULL;
    for (struct tls_newcomer *one = crowd->newest; one; one = one->next)
        if ((!from || strcmp(one->from, from) == 0) &&
            (!found || rank_of(crowd, one) >= rank_of(crowd, found)))
            found = one;
    return found;
}

static void unlink_newcomer(struct tls_crowd *crowd, struct tls_newcomer *newcomer)
{
    struct tls_newcomer **at = &crowd->newest;
    while (*at != newcomer)
        at = &(*at)->next;
    *at = newcomer->next;
    newcomer->is_in = false;
}

bool tls_crowd_enter(struct tls_crowd *crowd, struct tls_newcomer *newcomer, bool is_full,
                     struct tls_newcomer **out_leaves)
{
    uint32_t count = 0, of_it = 0;
    CHECK(!newcomer->is_in);
    for (const struct tls_newcomer *one = crowd->newest; one; one = one->next) {
        count++;
        of_it += strcmp(one->from, newcomer->from) == 0;
    }
    *out_leaves = NULL;
    if (of_it >= crowd->most_each)
        *out_leaves = find_first(crowd, newcomer->from);
    else if (is_full || count >= crowd->most)
        *out_leaves = find_first(crowd, NULL);
    if (*out_leaves)
        unlink_newcomer(crowd, *out_leaves);
    else if (is_full)
        return false;
    newcomer->next = crowd->newest;
    newcomer->is_in = true;
    crowd->newest = newcomer;
    return true;
}

void tls_crowd_leave(struct tls_crowd *crowd, struct tls_newcomer *newcomer, bool is_verified)
{
    if (newcomer->is_in)
        unlink_newcomer(crowd, newcomer);
    if (is_verified && !is_known(crowd, newcomer->from))
        snprintf(crowd->known[crowd->next_known++ % TLS_KNOWN_MAX], TLS_FROM_MAX, "%s",
                 newcomer->from);
}
