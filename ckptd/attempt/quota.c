/* quota.c - limits per identity: saves in work, bytes of the pool in them, and bytes of the disk:
 * its checkpoints here, and its saves in work.
 *
 * A run is charged to the caller who opened its attempt or last described a rank of it, also at a
 * node that does not coordinate it. The attempt's file names who opened it, for a restart of ckptd.
 * Saves count only at the coordinator. In the pool only memory counts that others cannot have:
 * images that a rank fills, or ckptd writes. Images lent ahead, and those of committed checkpoints,
 * are reclaimed when others need the memory, and are not charged. This file keeps no state: it
 * counts when a save begins. */
#include "ckptd/attempt/quota.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "proto/base/report.h"
#include "proto/wire/rpc.h"

#include <stdio.h>

void quota_note_owner(struct run *run, struct rpc_call *call)
{
    char who[RPC_WHO_MAX];
    struct principal principal;
    if (!rpc_call_principal(call, &principal, who))
        return;
    run->coordinator->is_owned = true;
    run->coordinator->owner = principal;
}

static bool has_same_owner(const struct run *a, const struct run *b)
{
    return a->coordinator->is_owned && b->coordinator->is_owned &&
           principal_is_same(&a->coordinator->owner, &b->coordinator->owner);
}

void quota_owner_text(char out[PRINCIPAL_TEXT_MAX], const struct run *run)
{
    out[0] = '\0';
    if (run->coordinator->is_owned)
        snprintf(out, PRINCIPAL_TEXT_MAX, "%s", run->coordinator->owner.name);
}

void quota_read_owner(struct run *run, const char *text)
{
    struct principal owner;
    unsigned uid;
    char end;
    if (sscanf(text, "user %u%c", &uid, &end) == 1)
        owner = principal_of_user(ROLE_USER, uid, 0);
    else if (!principal_parse(&owner, text))
        return;
    run->coordinator->is_owned = true;
    run->coordinator->owner = owner;
}

int quota_check_disk(const struct run *run, uint64_t bytes,
                     uint64_t (*disk_of)(const struct run *run))
{
    const struct service *service = run->service;
    uint64_t limit = (uint64_t)service->config->limit_identity_disk_bytes, used = 0;
    if (limit == 0)
        return 0;
    for (const struct run *other = service->catalog->runs; other; other = other->next)
        used += has_same_owner(run, other) ? disk_of(other) : 0;
    if (used <= limit && bytes <= limit - used)
        return 0;
    return report_error(ERR_SPACE, "remove checkpoints, or raise limits.identity_disk_bytes",
                        "%s has %llu bytes of checkpoints and asks for %llu more, and "
                        "limits.identity_disk_bytes = %llu",
                        run->coordinator->owner.name, (unsigned long long)used,
                        (unsigned long long)bytes, (unsigned long long)limit);
}

int quota_check_save(const struct run *run)
{
    const struct service *service = run->service;
    int64_t limit = service->config->limit_identity_saves, count = 0;
    if (limit == 0)
        return 0;
    for (const struct run *other = service->catalog->runs; other; other = other->next)
        if (has_same_owner(run, other))
            count += commit_num_saves(&other->coordinator->machine);
    if (count < limit)
        return 0;
    return report_error(ERR_BUSY, "save less often, or raise limits.identity_saves",
                        "%s has %lld saves in progress, and limits.identity_saves = %lld",
                        run->coordinator->owner.name, (long long)count, (long long)limit);
}

static int report_arena(const struct run *run, int error, uint64_t used, uint64_t more)
{
    return report_error(error, "save less at once, or raise limits.identity_arena_bytes",
                        "%s has %llu bytes of memory in saves and asks for %llu more, and "
                        "limits.identity_arena_bytes = %lld",
                        run->coordinator->owner.name, (unsigned long long)used,
                        (unsigned long long)more,
                        (long long)run->service->config->limit_identity_arena_bytes);
}

int quota_check_image(const struct session *session)
{
    const struct service *service = session->service;
    uint64_t limit = (uint64_t)service->config->limit_identity_arena_bytes;
    uint64_t used = 0, segment_bytes = pool_segment_bytes(service->pool);
    uint64_t more = session->image_segments * segment_bytes;
    if (limit == 0)
        return 0;
    for (const struct image *image = service->images; image; image = image->next)
        if (image->run && has_same_owner(image->run, session->run) &&
            (image->in_hand || image->state == IMAGE_STAGING || image->state == IMAGE_ENDING))
            used += image->num_segments * segment_bytes;
    return used + more <= limit ? 0 : report_arena(session->run, ERR_BUSY, used, more);
}

int quota_check_plan(const struct run *run, uint64_t segments)
{
    uint64_t limit = (uint64_t)run->service->config->limit_identity_arena_bytes;
    uint64_t need = segments * pool_segment_bytes(run->service->pool);
    return limit == 0 || need <= limit ? 0 : report_arena(run, ERR_SPACE, 0, need);
}
