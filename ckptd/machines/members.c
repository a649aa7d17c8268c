/* members.c - the parser of nodes.peers. */
#include "ckptd/machines/members.h"
#include "proto/base/address.h"
#include "proto/base/report.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define ITEM_MAX 400

static int refuse_member(const char *item, const char *why)
{
    return report_error(ERR_INVALID, "write NAME@DOMAIN=HOST:PORT, as n2@rack-b=10.0.0.2:7070",
                        "nodes.peers: \"%.200s\" %s", item, why);
}

/* Takes the name before `end` off the text. False: it is not a name. */
static bool take_name(char out[MEMBER_NAME_MAX], const char **at, char end)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strspn(*at, letters);
    if (length == 0 || length >= MEMBER_NAME_MAX || (*at)[length] != end)
        return false;
    memcpy(out, *at, length);
    out[length] = '\0';
    *at += length + (end != '\0');
    return true;
}

/* The index in by_name of the name, or of the first one after it. */
static uint32_t find_place(const struct members *members, const char *name, size_t length)
{
    uint32_t from = 0, to = members->count;
    while (from < to) {
        uint32_t middle = (from + to) / 2;
        const char *other = members->peers[members->by_name[middle]].name;
        int order = strncmp(other, name, length);
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

uint32_t members_find(const struct members *members, const char *name, size_t length)
{
    uint32_t place = find_place(members, name, length);
    uint32_t peer = place < members->count ? members->by_name[place] : members->count;
    bool is_it = peer < members->count && strlen(members->peers[peer].name) == length &&
                 strncmp(members->peers[peer].name, name, length) == 0;
    return is_it ? peer : members->count;
}

static int add(struct members *members, const char *own, const char *item)
{
    struct member *peer = &members->peers[members->count];
    struct address address;
    const char *at = item;
    if (members->count == MEMBERS_PEERS_MAX)
        return refuse_member(item, "exceeds the limit of 255 peers");
    if (!take_name(peer->name, &at, '@') || !take_name(peer->domain, &at, '='))
        return refuse_member(item, "names no node and domain");
    if (strlen(at) >= sizeof peer->address || address_parse(&address, at) != 0 ||
        address.kind != ADDRESS_TLS)
        return refuse_member(item, "has no address");
    size_t length = strlen(peer->name);
    if (members_find(members, peer->name, length) < members->count)
        return refuse_member(item, "is listed twice");
    if (strcmp(peer->name, own) == 0)
        return refuse_member(item, "is this node itself");
    uint32_t place = find_place(members, peer->name, length);
    memmove(&members->by_name[place + 1], &members->by_name[place],
            (members->count - place) * sizeof members->by_name[0]);
    members->by_name[place] = (uint16_t)members->count;
    snprintf(peer->address, sizeof peer->address, "%s", at);
    members->count++;
    return 0;
}

int members_parse(struct members *out, const char *own, const char *text)
{
    memset(out, 0, sizeof *out);
    while (*(text += strspn(text, ", ")) != '\0') {
        char item[ITEM_MAX];
        size_t length = strcspn(text, ", ");
        if (length >= sizeof item)
            return refuse_member(text, "is too long");
        memcpy(item, text, length);
        item[length] = '\0';
        ERR_TRY(add(out, own, item));
        text += length;
    }
    return 0;
}
