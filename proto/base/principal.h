/* principal.h - who is at the other end of a connection: a user of this machine, by the kernel's
 * word (SO_PEERCRED), or the name in a certificate that was verified.
 *
 * A certificate names one identity, as a URI among its subject's alternative names:
 *
 *     holdfast://trainer/RUN     saves and loads that run
 *     holdfast://reader[/RUN]    looks and loads
 *     holdfast://pruner[/RUN]    looks, pins and prunes
 *     holdfast://operator/NAME   all of it
 *     holdfast://node/NAME       another ckptd
 *
 * What a role may is said in ckptd/core/rights.c. */
#ifndef HOLDFAST_PROTO_BASE_PRINCIPAL_H
#define HOLDFAST_PROTO_BASE_PRINCIPAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PRINCIPAL_NAME_MAX 160u /* with the NUL; of a URI */
#define PRINCIPAL_TEXT_MAX (PRINCIPAL_NAME_MAX + 32u)

enum principal_kind {
    PRINCIPAL_USER,
    PRINCIPAL_CERTIFICATE,
    PRINCIPAL_ADDRESS /* of a machine whose certificate has not come yet */
};
enum principal_role {
    ROLE_USER, /* of this machine, let in by access.uids */
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
    char run[PRINCIPAL_NAME_MAX];  /* the only one that it may ask about; "": any */
};

struct principal principal_of_user(enum principal_role role, uid_t uid, pid_t pid);
/* A stranger at that address, who may nothing. */
struct principal principal_of_address(const char *address);
/* The role, and the run, that a URI names. False: it names none. */
bool principal_parse(struct principal *out, const char *uri);
/* Do both count as one where clients share what there is: the same user, or the same name? */
bool principal_is_same(const struct principal *a, const struct principal *b);
/* Operators and nodes come in when everything is taken by others. */
static inline bool principal_is_privileged(const struct principal *principal)
{
    return principal->role == ROLE_OPERATOR || principal->role == ROLE_NODE;
}
/* "user 1000, process 4711", or the name. */
void principal_text(char out[PRINCIPAL_TEXT_MAX], const struct principal *principal);

#endif
