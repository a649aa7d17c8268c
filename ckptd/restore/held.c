/* held.c - the files that record which checkpoints readers load over the socket.
 *
 * A reader over the socket has no lock, so ckptd keeps one for it: the lease file
 * "<run>/leases/<checkpoint>.<nonce>", like a tool that reads the directory itself
 * (storage/group.c). ckptd keeps one file per checkpoint, from its first load to the end of its
 * last. The lock ends with ckptd, so a prune without a server works at once when ckptd has ended,
 * and so does one of the next ckptd.
 *
 * A reader continues after a restart of ckptd: libckpt connects again and opens its load again. So
 * a ckptd that is killed, or shuts down while loads are open, leaves their files, and no process
 * locks these. The next ckptd finds them, holds these checkpoints for limits.reopen_ms, and removes
 * the files. No other checkpoint is held after a start.
 *
 * ckptd leases a checkpoint in the remote tier as well when it reads it there, because other
 * machines remove by their own rules. It makes that lease before it reads the first byte, and
 * storage renews it. The lease of a ckptd that has died expires by the clock of the tier's server,
 * or with its lock.
 *
 * If no file can be made, on a full or broken disk, a load works anyway; the lease is in memory
 * only and ends with ckptd. A reader that comes back too late gets an error, never wrong data. */
#include "ckptd/restore/held.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HELD_BY "ckptd" /* the text of such a file begins so */

void held_take(struct storage_hold **out, struct storage *storage,
               const struct manifest_summary *summary)
{
    char prefix[STORAGE_KEY_MAX], text[64];
    struct report_text kept;
    *out = NULL;
    report_keep(&kept);
    snprintf(text, sizeof text, HELD_BY ", process %ld\n", (long)getpid());
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error == 0)
        error = store_lease(storage, out, prefix, text);
    if (error != 0)
        log_debug("restore", "no lease protects the reads of %s: %s", prefix, report_line());
    report_restore(&kept, 0);
}

int held_take_far(struct storage_hold **out, struct service *service,
                  const struct manifest_summary *summary)
{
    char prefix[STORAGE_KEY_MAX];
    *out = NULL;
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    int error = store_lease(service->tiers[TIER_FAR].storage, out, prefix, HELD_BY " loads it\n");
    if (error != 0 && error != ERR_NOT_FOUND)
        log_warn("restore", "%s is loaded from the far tier without a lease there: %s", prefix,
                 report_line());
    return error == ERR_NOT_FOUND ? error : 0;
}

/* ---- releasing ---- */

struct releasing {
    struct service *service;
    enum tier_index tier;
    struct storage_hold *hold;
    struct job job;
};

static void work_release(struct job *job)
{
    struct releasing *releasing = CONTAINER_OF(job, struct releasing, job);
    storage_release(releasing->service->tiers[releasing->tier].storage, releasing->hold);
}

static void released(struct event *event)
{
    struct releasing *releasing = CONTAINER_OF(event, struct releasing, job.done);
    releasing->service->held->num_releases -= releasing->tier == TIER_LOCAL;
    free(releasing);
}

/* Without memory, or when the loop has ended, the file stays for the next start. */
void held_release(struct service *service, enum tier_index tier, struct storage_hold *hold)
{
    struct releasing *releasing =
        hold && !service->is_closing ? calloc(1, sizeof *releasing) : NULL;
    if (!releasing) {
        storage_leave(service->tiers[tier].storage, hold);
        return;
    }
    *releasing =
        (struct releasing){service, tier, hold, {.work = work_release, .done.run = released}};
    service->held->num_releases += tier == TIER_LOCAL; /* retention waits for these */
    tier_work(service, tier, &releasing->job);
}

/* ---- loads ---- */

void held_enter_far(struct checkpoint *checkpoint, struct storage_hold **hold)
{
    struct storage_hold *taken = *hold;
    *hold = NULL;
    if (!checkpoint->far_hold && checkpoint->loads > 0)
        checkpoint->far_hold = taken;
    else if (taken)
        held_release(checkpoint->run->service, TIER_FAR, taken);
}

void held_enter(struct checkpoint *checkpoint, struct storage_hold **hold)
{
    checkpoint->loads++;
    if (checkpoint->hold)
        return;
    checkpoint->hold = *hold;
    *hold = NULL;
}

void held_leave(struct checkpoint *checkpoint)
{
    CHECK(checkpoint->loads > 0);
    if (--checkpoint->loads > 0)
        return;
    held_release(checkpoint->run->service, TIER_LOCAL, checkpoint->hold);
    if (checkpoint->far_hold)
        held_release(checkpoint->run->service, TIER_FAR, checkpoint->far_hold);
    checkpoint->hold = checkpoint->far_hold = NULL;
}

/* ---- the readers of the former ckptd ---- */

static int hold_again(void *user, const struct storage_entry *entry)
{
    struct run *run = user;
    uint64_t step, attempt;
    struct storage_hold *hold;
    struct checkpoint *checkpoint =
        retain_parse(entry->name, &step, &attempt) ? catalog_find(run, step, attempt) : NULL;
    if (!checkpoint || checkpoint->is_awaited)
        return 0;
    held_take(&hold, run->service->storage, &checkpoint->summary);
    held_enter(checkpoint, &hold);
    catalog_lease(checkpoint);
    checkpoint->is_awaited = true;
    return 0;
}

static void forget_files(const struct checkpoint *checkpoint)
{
    char prefix[STORAGE_KEY_MAX];
    const struct manifest_summary *summary = &checkpoint->summary;
    if (shard_dir_key(prefix, sizeof prefix, checkpoint->run->name, summary->step,
                      summary->attempt) == 0)
        store_forget_leases(checkpoint->run->service->storage, prefix);
}

static void end_awaited(struct service *service)
{
    for (struct run *run = service->catalog->runs; run; run = run->next) {
        for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
            if (!c->is_awaited)
                continue;
            c->is_awaited = false;
            held_leave(c);
            catalog_unlease(c);
        }
    }
}

static void none_came(struct timer *timer)
{
    end_awaited(CONTAINER_OF(timer, struct held_files, timer)->service);
}

int held_open(struct service *service)
{
    struct held_files *held = calloc(1, sizeof *held);
    if (!held)
        return report_error(ERR_MEMORY, NULL, "no memory for the leases of readers");
    service->held = held;
    held->service = service;
    uint32_t count = 0;
    for (struct run *run = service->catalog->runs; run; run = run->next) {
        /* A run whose leases cannot be read has none that can be held again. */
        if (run->unreadable.code == 0 && store_for_left_leases(service->storage, run->name, HELD_BY,
                                                               hold_again, run) == ERR_MEMORY)
            return ERR_MEMORY;
        for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
            if (c->is_awaited)
                forget_files(c);
            count += c->is_awaited;
        }
    }
    held->timer.run = none_came;
    if (count > 0) {
        loop_timer(service->loop, &held->timer, service->config->limit_reopen_ms);
        log_info("restore",
                 "%u checkpoints were being loaded when the previous ckptd ended; they are kept "
                 "for %lld ms, until their readers reconnect",
                 count, (long long)service->config->limit_reopen_ms);
    }
    return 0;
}

void held_close(struct service *service)
{
    if (!service->held)
        return;
    end_awaited(service);
    free(service->held);
    service->held = NULL;
}
