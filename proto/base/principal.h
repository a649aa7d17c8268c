/* principal.h - the identity of the other end of a connection. It is a user of this machine, as the
 * kernel reports it (SO_PEERCRED), or the name in a verified certificate.
 *
 * A certificate names one identity, as a URI among its subject's alternative names:
 *
 *     holdfast://trainer/RUN     saves and loads that run
 *     holdfast://reader[/RUN]    lists and loads
 *     holdfast://pruner[/RUN]    lists, pins and prunes
 *     holdfast://operator/NAME   may do everything
 *     holdfast://node/NAME       another ckptd
 *
 * ckptd/core/rights.c defines the rights of each role. */
#ifndef HOLDFAST_PROTO_BASE_PRINCIPAL_H
#define HOLDFAST_PROTO_BASE_PRINCIPAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PRINCIPAL_NAME_MAX 160u /* of a URI, with the NUL */
#define PRINCIPAL_TEXT_MAX (PRINCIPAL_NAME_MAX + 32u)

enum principal_kind {
    PRINCIPAL_USER,
    PRINCIPAL_CERTIFICATE,
    PRINCIPAL_ADDRESS /* of a machine that has not sent its certificate yet */
};
enum principal_role {
    ROLE_USER, /* of this machine, allowed by access.uids */
    ROLE_TRAINER,
    ROLE_READER,
    ROLE_PRUNER,
    ROLE_OPERATOR,
    ROLE_NODE,
    NUM_ROLES
};

struct principal {
    enum principal_kind kind;
    enum principal_role role;
    uid_t uid;                     /* of a user */
    pid_t pid;                     /* likewise */
    char name[PRINCIPAL_NAME_MAX]; /* of a certificate: its URI; "user 1000"; or the address */
    char run[PRINCIPAL_NAME_MAX];  /* the only run that it may use; "": any */
};

struct principal principal_of_user(enum principal_role role, uid_t uid, pid_t pid);
/* A client at that address before its certificate: it has no rights. */
struct principal principal_of_address(const char *address);
/* Parses the role and the run of a URI. False: the URI names no role. */
bool principal_parse(struct principal *out, const char *uri);
/* Are both the same user, or the same name? Limits per client count them as one. */
bool principal_is_same(const struct principal *a, const struct principal *b);
/* The server admits operators and nodes also when other clients use all connections. */
static inline bool principal_is_privileged(const struct principal *principal)
{
    return principal->role == ROLE_OPERATOR || principal->role == ROLE_NODE;
}
/* "user 1000, process 4711", or the name. */
void principal_text(char out[PRINCIPAL_TEXT_MAX], const struct principal *principal);

#endif
