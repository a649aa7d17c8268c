/* quarantine.c - quarantines a damaged checkpoint: lists it with the reason, keeps it, never serves
 * it. Also records that a copy is whole. Implements parts of catalog.h.
 *
 * Proven damage is noted durably beside the checkpoint, for every later start and every tool. A
 * read error is no proof: the next start checks again. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"
#include "proto/format/flaw.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool catalog_has_flaw(const struct checkpoint *checkpoint, const char *flaw)
{
    return checkpoint->damaged && strcmp(checkpoint->flaw, flaw) == 0;
}

bool catalog_is_quarantined(const struct checkpoint *checkpoint)
{
    return catalog_has_flaw(checkpoint, FLAW_DAMAGED) || catalog_has_flaw(checkpoint, FLAW_UNREAD);
}

bool catalog_is_uncommitted(const struct checkpoint *checkpoint)
{
    return catalog_has_flaw(checkpoint, FLAW_ASIDE) || catalog_has_flaw(checkpoint, FLAW_IN_DOUBT);
}

void catalog_set_aside(struct checkpoint *checkpoint, const char *flaw, const char *text)
{
    snprintf(checkpoint->damage, sizeof checkpoint->damage, "%s", text);
    checkpoint->damaged = true;
    checkpoint->flaw = flaw;
    log_warn("catalog", "run %s, step %llu, attempt %llu is not served: %s", checkpoint->run->name,
             (unsigned long long)checkpoint->summary.step,
             (unsigned long long)checkpoint->summary.attempt, checkpoint->damage);
}

void catalog_quarantine(struct checkpoint *checkpoint, const char *text, bool is_proven)
{
    snprintf(checkpoint->damage, sizeof checkpoint->damage, "%s", text);
    copies_note(checkpoint, catalog_source(checkpoint))->is_damaged = true;
    checkpoint->damaged = true;
    checkpoint->flaw = is_proven ? FLAW_DAMAGED : FLAW_UNREAD;
    log_error("catalog", "run %s, step %llu, attempt %llu %s: %s", checkpoint->run->name,
              (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt,
              is_proven ? "is damaged and quarantined" : "could not be read and is not served",
              checkpoint->damage);
}

void catalog_take_verified(struct checkpoint *checkpoint, const struct verified *verified)
{
    int64_t time = retain_time(verified->time);
    struct copy *local = &checkpoint->copies.local;
    if (verified->known == VERIFIED_WHOLE && time > local->proven)
        local->proven = time;
    if (verified->known == VERIFIED_DAMAGED)
        checkpoint->is_suspect = true;
    else if (!checkpoint->run->service->scrub) /* else the scrub decides */
        checkpoint->is_suspect = false;
}

void catalog_note_whole(struct storage *storage, const struct manifest_summary *summary)
{
    struct verified kept;
    if (store_put_verified(&kept, storage, summary, &(struct verified){.percent = 100}) != 0)
        log_warn(
            "catalog",
            "run %s, step %llu is whole, but the result could not be stored for the next start: %s",
            summary->run, (unsigned long long)summary->step, report_line());
}

bool catalog_is_proof(const struct fault *fault)
{
    return fault->code == ERR_CORRUPT;
}

/* A durable note on a damaged checkpoint, written by a worker. */
struct noting {
    struct service *service;
    struct storage *storage;
    char prefix[STORAGE_KEY_MAX];
    char text[sizeof((struct checkpoint *)0)->damage];
    struct job job;
};

void catalog_write_note(struct storage *storage, const char *prefix, const char *text)
{
    int error = store_put_note(storage, STORE_QUARANTINE, prefix, text);
    if (error != 0 && error != ERR_EXISTS)
        log_warn("catalog", "%s is quarantined only until the next start: %s", prefix,
                 report_line());
}

static void work_note(struct job *job)
{
    struct noting *noting = CONTAINER_OF(job, struct noting, job);
    catalog_write_note(noting->storage, noting->prefix, noting->text);
}

/* A damaged copy in memory is not kept as evidence: erases it, and its sender sends it again. */
static void work_forget(struct job *job)
{
    struct noting *noting = CONTAINER_OF(job, struct noting, job);
    int error = store_erase(noting->storage, noting->prefix);
    if (error != 0)
        log_warn("catalog", "could not remove %s from memory: %s", noting->prefix, report_line());
}

static void noted(struct event *event)
{
    struct noting *noting = CONTAINER_OF(event, struct noting, job.done);
    struct service *service = noting->service;
    free(noting);
    service->catalog->events->changed(service);
}

void catalog_damage_text(char *out, size_t size, const struct fault *fault)
{
    snprintf(out, size, "%s%s%s", fault->message, fault->detail[0] ? ": " : "", fault->detail);
}

/* Another tier has a whole copy and serves it. */
static void report_damaged_copy(struct checkpoint *checkpoint, enum tier_index tier,
                                const char *text)
{
    copies_note(checkpoint, tier)->is_damaged = true;
    log_error("catalog",
              "run %s, step %llu, attempt %llu is damaged in the %s tier, and served "
              "from the %s one: %s",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt,
              tier_name(checkpoint->run->service, tier),
              tier_name(checkpoint->run->service, catalog_source(checkpoint)), text);
}

/* True if the file that this ckptd wrote was never verified whole. */
static bool came_damaged(const struct checkpoint *checkpoint)
{
    const struct manifest_summary *summary = &checkpoint->summary;
    return checkpoint->was_committed && checkpoint->copies.local.proven == 0 &&
           !scrub_has_proven(&checkpoint->run->scrubbed, summary->step, summary->attempt);
}

void catalog_damage(struct checkpoint *checkpoint, enum tier_index tier, const struct fault *fault)
{
    struct service *service = checkpoint->run->service;
    if (tier == TIER_LOCAL && catalog_is_proof(fault))
        checkpoint->came_damaged = came_damaged(checkpoint);
    char text[sizeof checkpoint->damage];
    bool is_elsewhere = false;
    catalog_damage_text(text, sizeof text, fault);
    for (uint32_t i = 0; i < copies_count(checkpoint); i++) {
        enum tier_index other = copies_get(checkpoint, i)->tier;
        is_elsewhere |= other != tier && catalog_has_whole(checkpoint, other);
    }
    if (is_elsewhere)
        report_damaged_copy(checkpoint, tier, text);
    else
        catalog_quarantine(checkpoint, text, catalog_is_proof(fault));
    /* A copy on another node is noted by that node. */
    bool is_noted = catalog_is_proof(fault) && !tier_is_peer(tier);
    struct noting *noting = is_noted ? calloc(1, sizeof *noting) : NULL;
    if (!noting) {
        service->catalog->events->changed(service);
        return;
    }
    noting->service = service;
    noting->storage = service->tiers[tier].storage;
    memcpy(noting->text, text, sizeof text);
    shard_dir_key(noting->prefix, sizeof noting->prefix, checkpoint->run->name,
                  checkpoint->summary.step, checkpoint->summary.attempt);
    noting->job =
        (struct job){.work = tier == TIER_MEMORY ? work_forget : work_note, .done.run = noted};
    tier_work(service, tier, &noting->job);
}
