/* rights.c - see rights.h. */
#include "ckptd/core/rights.h"
#include "proto/base/report.h"

#include <stdbool.h>
#include <string.h>

#define MAY(right) (1u << RIGHT_##right)
#define MAY_LOOK (MAY(CONNECT) | MAY(LOOK))

static const unsigned rights[NUM_ROLES] = {
    [ROLE_USER] = MAY_LOOK | MAY(LOAD) | MAY(SAVE) | MAY(STOP) | MAY(PIN),
    [ROLE_TRAINER] = MAY_LOOK | MAY(LOAD) | MAY(SAVE) | MAY(STOP) | MAY(PIN),
    [ROLE_READER] = MAY_LOOK | MAY(LOAD),
    [ROLE_PRUNER] = MAY_LOOK | MAY(PIN) | MAY(PRUNE),
    [ROLE_OPERATOR] = ((1u << NUM_RIGHTS) - 1) & ~MAY(PEER),
    [ROLE_NODE] = MAY_LOOK | MAY(LOAD) | MAY(PEER),
};

static const char *const what[NUM_RIGHTS] = {
    [RIGHT_CONNECT] = "connect",
    [RIGHT_LOOK] = "look at checkpoints",
    [RIGHT_LOAD] = "load checkpoints",
    [RIGHT_SAVE] = "save checkpoints",
    [RIGHT_STOP] = "stop a run",
    [RIGHT_PIN] = "pin checkpoints",
    [RIGHT_PRUNE] = "prune checkpoints",
    [RIGHT_OPERATE] = "remove, free or add checkpoints",
    [RIGHT_PEER] = "work on the store as another node",
};

int rights_check(const struct principal *principal, const char *who, enum right right,
                 const char *run)
{
    bool is_user = principal->kind == PRINCIPAL_USER;
    if ((rights[principal->role] & (1u << right)) == 0 && is_user && right != RIGHT_PEER)
        return report_error(ERR_DENIED,
                            "connect as ckptd's user or root, or add the user to access.operators",
                            "only operators may %s, and %s is not one", what[right], who);
    if ((rights[principal->role] & (1u << right)) == 0)
        return report_error(ERR_DENIED, "use a certificate whose role allows it", "%s may not %s",
                            who, what[right]);
    if (right != RIGHT_CONNECT && principal->run[0] != '\0' && strcmp(principal->run, run) != 0)
        return report_error(ERR_DENIED, "name that run", "%s may only access run %s", who,
                            principal->run);
    return 0;
}

int rights_check_owner(const struct principal *caller, const char *who,
                       const struct principal *owner, const char *run)
{
    char trains[PRINCIPAL_TEXT_MAX];
    if (caller->role == ROLE_OPERATOR || principal_is_same(caller, owner))
        return 0;
    principal_text(trains, owner);
    return report_error(
        ERR_DENIED, "ask as that user or certificate, or as an operator (access.operators)",
        "run %s is trained by %s; %s may neither stop it nor make it save", run, trains, who);
}
