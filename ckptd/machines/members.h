/* members.h - the nodes of a cluster, from the settings [nodes]: this one, and its peers. */
#ifndef HOLDFAST_CKPTD_MACHINES_MEMBERS_H
#define HOLDFAST_CKPTD_MACHINES_MEMBERS_H

#include <stddef.h>
#include <stdint.h>

#define MEMBERS_PEERS_MAX 255u
#define MEMBER_NAME_MAX 33u /* with the NUL: [A-Za-z0-9._-] */

struct member {
    char name[MEMBER_NAME_MAX]; /* as in its certificate: holdfast://node/NAME */
    char domain[MEMBER_NAME_MAX];
    char address[280]; /* "host:port" */
};

struct members {
    uint32_t count;
    struct member peers[MEMBERS_PEERS_MAX];
    uint16_t by_name[MEMBERS_PEERS_MAX]; /* indexes of peers, sorted */
};

/* Parses "NAME@DOMAIN=HOST:PORT, ..."; "" is none. `own` is this node's name. ERR_INVALID: the
 * message names the fault. */
int members_parse(struct members *out, const char *own, const char *text);
/* The index of the peer of that name; count: none. */
uint32_t members_find(const struct members *members, const char *name, size_t length);

#endif
