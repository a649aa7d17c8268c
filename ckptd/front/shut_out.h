/* shut_out.h - blocks users from connecting for a second; see shut_out.c. */
#ifndef HOLDFAST_CKPTD_FRONT_SHUT_OUT_H
#define HOLDFAST_CKPTD_FRONT_SHUT_OUT_H

#include "ckptd/core/loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SHUT_OUT_MAX 16u /* users at once; connections of further users are refused one by one */
#define SHUT_OUT_MS 1000

struct shut_out {
    struct loop *loop;
    const char *paths[2]; /* of the sockets */
    uid_t users[SHUT_OUT_MAX];
    uint32_t count;
    struct timer over;
};
void shut_out_init(struct shut_out *out, struct loop *loop, const char *path, const char *other);
/* False: the file system of the sockets has no access lists, or there are too many already. */
bool shut_out_user(struct shut_out *shut_out, uid_t user);
/* Lets all users connect again. */
void shut_out_end(struct shut_out *shut_out);

#endif
