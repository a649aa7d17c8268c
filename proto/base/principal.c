/* principal.c - see principal.h. */
#include "proto/base/principal.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *scheme;
    enum principal_role role;
    bool may_end; /* may be the last component, without a name */
    bool names_a_run;
} roles[] = {{"holdfast://trainer", ROLE_TRAINER, false, true},
             {"holdfast://reader", ROLE_READER, true, true},
             {"holdfast://pruner", ROLE_PRUNER, true, true},
             {"holdfast://operator", ROLE_OPERATOR, false, false},
             {"holdfast://node", ROLE_NODE, false, false}};

/* Checks the name of a run, a person or a machine. */
static bool is_name(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-";
    return text[0] != '\0' && text[0] != '.' && text[strspn(text, allowed)] == '\0';
}

bool principal_parse(struct principal *out, const char *uri)
{
    if (strlen(uri) >= PRINCIPAL_NAME_MAX)
        return false;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        size_t length = strlen(roles[i].scheme);
        if (strncmp(uri, roles[i].scheme, length) != 0)
            continue;
        bool is_bare = uri[length] == '\0';
        if (is_bare ? !roles[i].may_end : uri[length] != '/' || !is_name(uri + length + 1))
            continue;
        *out = (struct principal){
            .kind = PRINCIPAL_CERTIFICATE, .role = roles[i].role, .uid = (uid_t)-1};
        snprintf(out->name, sizeof out->name, "%s", uri);
        if (roles[i].names_a_run && !is_bare)
            snprintf(out->run, sizeof out->run, "%s", uri + length + 1);
        return true;
    }
    return false;
}

struct principal principal_of_user(enum principal_role role, uid_t uid, pid_t pid)
{
    struct principal out = {.kind = PRINCIPAL_USER, .role = role, .uid = uid, .pid = pid};
    snprintf(out.name, sizeof out.name, "user %u", (unsigned)uid);
    return out;
}

struct principal principal_of_address(const char *address)
{
    struct principal out = {.kind = PRINCIPAL_ADDRESS, .role = ROLE_USER, .uid = (uid_t)-1};
    snprintf(out.name, sizeof out.name, "%s", address);
    return out;
}

bool principal_is_same(const struct principal *a, const struct principal *b)
{
    return a->kind == b->kind && strcmp(a->name, b->name) == 0;
}

void principal_text(char out[PRINCIPAL_TEXT_MAX], const struct principal *principal)
{
    if (principal->kind == PRINCIPAL_USER)
        snprintf(out, PRINCIPAL_TEXT_MAX, "%s, process %d", principal->name, (int)principal->pid);
    else
        snprintf(out, PRINCIPAL_TEXT_MAX, "%s", principal->name);
}
