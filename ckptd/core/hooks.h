/* hooks.h - what runs and tiers ask of the parts above them; server.c fills it in. On the service
 * thread. */
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
    void (*apply_retention)(struct run *run); /* this thread's last error stays */
    /* A save lacks so much of the disk. True: so much is being removed of what was removed before
     * and could be taken back, and saves that wait are tried again then. */
    bool (*make_room)(struct service *service, uint64_t bytes, uint64_t inodes);
    /* Is what there is of this checkpoint being removed? Then nobody may begin it. */
    bool (*is_being_removed)(const struct service *service, const char *run, uint64_t step,
                             uint64_t attempt);
    /* Of a run that another node coordinates: a rank has described itself; may a rank begin? (then
     * asking->go_on comes; ERR_MEMORY: it does not); something has become of a part. */
    void (*join)(struct run *run);
    void (*leave)(struct run *run); /* its parts are given up, or left to who decides later */
    int (*ask)(struct session *session, const Holdfast__V1__BeginSaveRequest *request,
               uint64_t number, struct part_asking *asking);
    void (*part_changed)(struct save *save);
};

#endif
