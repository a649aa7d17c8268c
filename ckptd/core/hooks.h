/* hooks.h - functions of upper floors that runs and tiers call; server.c fills it in. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_CORE_HOOKS_H
#define HOLDFAST_CKPTD_CORE_HOOKS_H

#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct part_asking;
struct run;
struct save;
struct service;
struct session;

struct hooks {
    void (*apply_retention)(struct run *run); /* does not change this thread's last error */
    /* A save lacks that much disk space. True: ckptd is emptying that much of the trash, and then
     * retries the saves that wait. */
    bool (*make_room)(struct service *service, uint64_t bytes, uint64_t inodes);
    /* Is a removal of this checkpoint in progress? Then no save of it may begin. */
    bool (*is_being_removed)(const struct service *service, const char *run, uint64_t step,
                             uint64_t attempt);
    /* Of a run that another node coordinates: a rank has described itself; may a rank begin (ask:
     * then asking->go_on is called; ERR_MEMORY: it is not); a part has changed. */
    void (*join)(struct run *run);
    void (*leave)(struct run *run); /* gives its parts up, or leaves them to the next coordinator */
    int (*ask)(struct session *session, const Holdfast__V1__BeginSaveRequest *request,
               uint64_t number, struct part_asking *asking);
    void (*part_changed)(struct save *save);
};

#endif
