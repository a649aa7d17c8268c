/* shut_out.c - blocks users from connecting for a second, after they have used up the budget of one
 * user (proto/wire/rpc_budget.h).
 *
 * A refused connection costs ckptd as much as its peer, and fills the queue in which operators
 * wait. So the kernel refuses them: an entry of the sockets' access lists denies the user, and
 * connect() fails with EACCES. After SHUT_OUT_MS all of them may connect again. Open connections
 * continue.
 *
 * The list has the format of the attribute system.posix_acl_access (Linux,
 * include/uapi/linux/posix_acl_xattr.h and posix_acl.h): a version, then tag, permissions, user. */
#include "ckptd/front/shut_out.h"

#include "proto/base/report.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#define ATTRIBUTE "system.posix_acl_access"
#define VERSION 2u
#define NO_USER UINT32_MAX
enum tag { TAG_OWNER = 1, TAG_USER = 2, TAG_GROUP = 4, TAG_MASK = 16, TAG_OTHER = 32 };
enum { READ_AND_WRITE = 6 };

struct entry {
    uint16_t tag, permissions;
    uint32_t user;
};
_Static_assert(sizeof(struct entry) == 8, "as the kernel has it");

struct list {
    uint32_t version;
    struct entry entries[SHUT_OUT_MAX + 4];
};

static struct entry make_entry(enum tag tag, unsigned permissions, uint32_t user)
{
    return (struct entry){htole16((uint16_t)tag), htole16((uint16_t)permissions), htole32(user)};
}

/* The kernel requires sorted users. */
static size_t make_list(struct list *out, const struct shut_out *shut_out)
{
    uint32_t at = 0;
    out->version = htole32(VERSION);
    out->entries[at++] = make_entry(TAG_OWNER, READ_AND_WRITE, NO_USER);
    for (uint32_t i = 0; i < shut_out->count; i++)
        out->entries[at++] = make_entry(TAG_USER, 0, shut_out->users[i]);
    out->entries[at++] = make_entry(TAG_GROUP, READ_AND_WRITE, NO_USER);
    out->entries[at++] = make_entry(TAG_MASK, READ_AND_WRITE, NO_USER);
    out->entries[at++] = make_entry(TAG_OTHER, READ_AND_WRITE, NO_USER);
    return sizeof out->version + at * sizeof out->entries[0];
}

static bool set_lists(const struct shut_out *shut_out)
{
    struct list list;
    size_t bytes = make_list(&list, shut_out);
    for (int i = 0; i < 2; i++)
        if (setxattr(shut_out->paths[i], ATTRIBUTE, &list, bytes, 0) != 0) {
            log_debug("door", "no access list for %s: %s", shut_out->paths[i], strerror(errno));
            return false;
        }
    return true;
}

void shut_out_end(struct shut_out *shut_out)
{
    loop_timer_cancel(shut_out->loop, &shut_out->over);
    for (int i = 0; i < 2 && shut_out->count > 0; i++)
        if (removexattr(shut_out->paths[i], ATTRIBUTE) != 0 && errno != ENODATA && errno != ENOENT)
            log_warn("door", "could not remove the access list of %s: %s", shut_out->paths[i],
                     strerror(errno));
    shut_out->count = 0;
}

static void is_over(struct timer *timer)
{
    shut_out_end(CONTAINER_OF(timer, struct shut_out, over));
}

void shut_out_init(struct shut_out *out, struct loop *loop, const char *path, const char *other)
{
    *out = (struct shut_out){.loop = loop, .paths = {path, other}, .over.run = is_over};
}

bool shut_out_user(struct shut_out *shut_out, uid_t user)
{
    uint32_t at = 0;
    while (at < shut_out->count && shut_out->users[at] < user)
        at++;
    if (at < shut_out->count && shut_out->users[at] == user)
        return true; /* its connection was in the queue before */
    if (shut_out->count == SHUT_OUT_MAX)
        return false;
    memmove(shut_out->users + at + 1, shut_out->users + at,
            (shut_out->count - at) * sizeof *shut_out->users);
    shut_out->users[at] = user;
    shut_out->count++;
    if (shut_out->count == 1)
        loop_timer(shut_out->loop, &shut_out->over, SHUT_OUT_MS);
    if (set_lists(shut_out))
        return true;
    shut_out_end(shut_out);
    return false;
}
