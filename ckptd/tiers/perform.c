/* perform.c - performs the decisions of transfer.c for the current checkpoint: claim, shards,
 * names, manifest, and its end. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/history.h"
#include "ckptd/core/service.h"
#include "ckptd/tiers/complete_copy.h"
#include "ckptd/tiers/queue.h"
#include "ckptd/tiers/remote_manifest.h"
#include "ckptd/tiers/replicate_private.h"
#include "ckptd/tiers/space_check.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/origin.h"
#include "proto/format/retain.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void perform_work(struct replication *replication, void (*work)(struct job *),
                  void (*done)(struct event *))
{
    replication->fault = (struct fault){0};
    replication->job = (struct job){.work = work, .done.run = done};
    tier_work(replication->service, tier_of_crew(replication->from, replication->tier),
              &replication->job);
}

static struct storage *target_of(const struct replication *replication)
{
    return replication->service->tiers[replication->tier].storage;
}

/* ---- the end of a copy ---- */

/* Removes the shards of an unfinished copy here: they are useless without a manifest, and take
 * space. */
static void remove_unfinished(const struct replication *replication, const char *prefix)
{
    int error = store_clear(target_of(replication), prefix);
    if (error != 0)
        log_warn("drain", "could not remove %s before the next start: %s", prefix, report_line());
}

/* The note of `ckpt-cli verify` about the damaged copy does not hold for the mended one. */
static void forget_verify(struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + sizeof "/" VERIFIED_NAME];
    snprintf(key, sizeof key, "%s/" VERIFIED_NAME, prefix);
    int error = storage_remove(storage, key);
    if (error != 0 && error != ERR_NOT_FOUND)
        log_warn("drain", "could not remove the outdated %s: %s", key, report_line());
}

static void work_close(struct job *job)
{
    struct replication *replication = CONTAINER_OF(job, struct replication, job);
    char prefix[STORAGE_KEY_MAX];
    memcpy(prefix, replication->claim.prefix, sizeof prefix);
    precommit_left_drop(&replication->left_early, target_of(replication), replication->manifest);
    precommit_left_leave(&replication->left_early);
    hold_end(&replication->claim, replication->is_held);
    if (!replication->is_held && replicate_is_keeping(replication) &&
        !replicate_is_completing(replication) && prefix[0])
        remove_unfinished(replication, prefix);
    if (!replication->is_held || !replication->is_mending)
        return;
    int error = store_remove_note(target_of(replication), STORE_QUARANTINE, prefix);
    if (error != 0 && error != ERR_NOT_FOUND) /* a read error does not write a note */
        log_warn("drain", "%s is in quarantine again after the next start: %s", prefix,
                 report_line());
    forget_verify(target_of(replication), prefix);
}

/* For retention, which drops the local copy, and for the scrub of the far tier. */
static void note_proven(struct replication *replication)
{
    struct checkpoint *checkpoint = replication->checkpoint;
    copies_note(checkpoint, replication->tier)->proven = (int64_t)time(NULL);
    checkpoint->run->proven.must_keep |= replication->tier == TIER_FAR;
}

/* The copy is whole again: updates the catalog, the journal and status. */
static void note_mended(struct replication *replication)
{
    struct checkpoint *checkpoint = replication->checkpoint;
    char detail[128];
    snprintf(detail, sizeof detail, "the copy in the tier %s, from the tier %s",
             tier_name(replication->service, replication->tier),
             tier_name(replication->service, replication->from));
    replication->mended++;
    catalog_mended(checkpoint, replication->tier);
    note_proven(replication);
    history_note(checkpoint->run, &(struct history_event){.name = "mend",
                                                          .step = checkpoint->summary.step,
                                                          .attempt = checkpoint->summary.attempt,
                                                          .by = "ckptd",
                                                          .detail = detail});
    log_info("drain", "run %s, step %llu, attempt %llu: mended %s, %llu bytes",
             checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
             (unsigned long long)checkpoint->summary.attempt, detail,
             (unsigned long long)(replication->copy.bytes_sent - replication->bytes_before));
}

static void closed(struct event *event)
{
    struct replication *replication = CONTAINER_OF(event, struct replication, job.done);
    struct checkpoint *checkpoint = replication->checkpoint;
    if (replication->is_held && replication->is_mending)
        note_mended(replication);
    space_end(&replication->room, replication->service);
    precommit_left_free(&replication->left_early);
    manifest_free(replication->manifest);
    replication->manifest = NULL;
    replication->checkpoint = NULL;
    checkpoint->is_going_far &= replication->tier != TIER_FAR;
    catalog_unlease(checkpoint);
    replication->ended(replication, checkpoint->run);
}

void perform_close(struct replication *replication, bool is_held)
{
    replication->is_held = is_held;
    perform_work(replication, work_close, closed);
}

/* The tier accepts data again. */
static void forget_error(struct replication *replication)
{
    replication->newest_error[0] = '\0';
    replication->service->tiers[replication->tier].takes_nothing = false;
}

static const char *event_name(const struct replication *replication)
{
    if (replication->tier == TIER_FAR)
        return "drain";
    return replicate_is_keeping(replication) && !replicate_is_completing(replication) ? "keep"
                                                                                      : "replicate";
}

static void do_held(struct replication *replication)
{
    struct checkpoint *checkpoint = replication->checkpoint;
    const struct manifest_summary *summary = &checkpoint->summary;
    int64_t ms = clock_ms() - replication->begun_ms;
    double seconds = (double)ms / 1000.0;
    uint64_t sent = replication->copy.bytes_sent - replication->bytes_before;
    forget_error(replication);
    if (replication->is_mending) {
        perform_close(replication, true);
        return;
    }
    catalog_completed(checkpoint, replication->tier);
    copies_note(checkpoint, replication->tier)->is_volatile = replication->is_volatile;
    checkpoint->is_wanted_far &= replication->tier != TIER_FAR;
    checkpoint->is_wanted_local &= replication->tier != TIER_LOCAL;
    note_proven(replication);
    copies_note(checkpoint, replication->tier)->manifest_hash = replication->text_hash;
    replication->checkpoints++;
    histogram_add(&replication->seconds, ms);
    replication->rate = seconds > 0 ? (double)sent / seconds : replication->rate;
    history_note(checkpoint->run, &(struct history_event){.name = event_name(replication),
                                                          .step = summary->step,
                                                          .attempt = summary->attempt,
                                                          .by = "ckptd"});
    log_info("drain",
             "run %s, step %llu, attempt %llu is in the tier %s: %llu of %llu bytes sent in "
             "%.3f s (%.3f GB/s), durability %s",
             checkpoint->run->name, (unsigned long long)summary->step,
             (unsigned long long)summary->attempt,
             tier_name(replication->service, replication->tier), (unsigned long long)sent,
             (unsigned long long)summary->bytes, seconds,
             seconds > 0 ? (double)sent / seconds / 1e9 : 0.0, copies_level(checkpoint));
    perform_close(replication, true);
}

void perform_give_up(struct replication *replication, const char *why)
{
    struct checkpoint *checkpoint = replication->checkpoint;
    copies_note(checkpoint, replication->tier)->is_given_up = true;
    if (replication->tier == TIER_FAR)
        snprintf(checkpoint->given_up, sizeof checkpoint->given_up, "%s", why);
    replication->given_up++;
    log_error("drain",
              "run %s, step %llu, attempt %llu is not copied into the tier %s until ckptd is "
              "restarted: %s",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt,
              tier_name(replication->service, replication->tier), why);
}

static void do_over(struct replication *replication)
{
    bool is_damage = replication->copy.is_of_source && catalog_is_proof(&replication->fault) &&
                     catalog_has_copy(replication->checkpoint, replication->copy.from);
    if (!is_damage || replication->copy.from == TIER_LOCAL)
        perform_give_up(replication,
                        replication->fault.message); /* else another tier may have a whole copy */
    if (is_damage)
        catalog_damage(replication->checkpoint, replication->copy.from, &replication->fault);
    perform_close(replication, false);
}

/* ---- a rest ---- */

/* The node that has a shard of the part does not answer: ends this copy, so that the queue chooses
 * another. Shards that have come stay. */
static bool is_without_source(const struct replication *replication)
{
    return replicate_is_completing(replication) && replication->machine.state == TRANSFER_COPYING &&
           replication->copy.is_of_source &&
           replication->service->tiers[replication->copy.from].offline[0];
}

void perform_rested(struct timer *timer)
{
    struct replication *replication = CONTAINER_OF(timer, struct replication, rest);
    if (is_without_source(replication)) {
        transfer_forget(&replication->machine);
        perform_close(replication, false);
        return;
    }
    perform_action(replication, transfer_rested(&replication->machine));
}

static void do_rest(struct replication *replication, int64_t ms)
{
    bool is_first = !replication->newest_error[0];
    replication->service->tiers[replication->tier].takes_nothing = !replication->copy.is_of_source;
    replication->errors++;
    catalog_damage_text(replication->newest_error, sizeof replication->newest_error,
                        &replication->fault);
    if (is_first)
        log_error("drain", "the tier %s accepts nothing, ckptd retries: %s",
                  tier_name(replication->service, replication->tier), replication->newest_error);
    loop_timer(replication->service->loop, &replication->rest, ms);
    if (is_first)
        replication->check_queues(replication->service); /* another node may accept a copy */
}

/* ---- claim ---- */

static void work_claim(struct job *job)
{
    struct replication *replication = CONTAINER_OF(job, struct replication, job);
    replication->outcome = hold_take(&replication->claim, replication->service, replication->tier,
                                     &replication->manifest->summary);
    if (replication->outcome != PUBLICATION_DURABLE)
        fault_take(&replication->fault, ERR_IO);
}

static void claimed(struct event *event)
{
    struct replication *replication = CONTAINER_OF(event, struct replication, job.done);
    perform_action(replication, transfer_claimed(&replication->machine, replication->outcome));
}

/* ---- shards ---- */

/* True if a retry is useless. A source without an answer proves nothing about its copy. A failing
 * local disk is not retried while another tier has the checkpoint. */
static bool no_try_helps(const struct replication *replication, const struct shard_copy *copy)
{
    if (!copy->is_of_source)
        return replicate_is_keeping(replication);
    return copy->from == TIER_LOCAL || replicate_is_loss(&copy->fault);
}

void perform_arrived(struct shard_copy *copy)
{
    struct replication *replication = CONTAINER_OF(copy, struct replication, copy);
    replication->fault = copy->fault;
    if (copy->fault.code == 0) {
        if (replication->tier == TIER_FAR)
            memcpy(replication->manifest->part_sums[copy->file.shard].sha256, copy->sha256,
                   CHECKSUM_SHA256_HEX);
        forget_error(replication);
    }
    if (copy->fault.code == 0 && replicate_is_keeping(replication) &&
        !precommit_left_has_file(&replication->left_early, copy->file.shard))
        space_use(&replication->room, replication->service, copy->file.geometry.file_bytes);
    perform_action(replication, transfer_copied(&replication->machine, copy->file.shard,
                                                copy->fault.code, no_try_helps(replication, copy)));
}

/* Is that shard to be sent? To complete a part: those it lacks. To mend a part: those it has. */
static bool is_due(const struct replication *replication, uint32_t shard)
{
    const struct checkpoint *checkpoint = replication->checkpoint;
    if (replicate_is_completing(replication))
        return !copies_has_shard(checkpoint, replication->tier, shard);
    return !replication->is_of_part || checkpoint->places[shard] == replication->tier;
}

static void do_copy(struct replication *replication, const struct transfer_action *action)
{
    const struct checkpoint *checkpoint = replication->checkpoint;
    struct transfer_action next = *action;
    while (next.kind == TRANSFER_COPY && !is_due(replication, next.shard))
        next = transfer_copied(&replication->machine, next.shard, 0, false);
    if (next.kind != TRANSFER_COPY) {
        perform_action(replication, next);
        return;
    }
    replication->copy.is_hurried = queue_is_wanted(checkpoint, replication->tier);
    shard_copy_start(&replication->copy, replication->checkpoint, replication->manifest, next.shard,
                     next.shard < replication->left_early.count
                         ? &replication->left_early.ships[next.shard]
                         : NULL);
}

/* ---- names and manifest ---- */

static void work_names(struct job *job)
{
    struct replication *replication = CONTAINER_OF(job, struct replication, job);
    int error =
        remote_manifest_publish_origin(target_of(replication), &replication->manifest->summary);
    if (error == 0 && replication->tier == TIER_FAR)
        error = remote_manifest_publish_pin(replication->service, replication->claim.prefix);
    if (error == 0)
        error = storage_sync_names(target_of(replication), replication->claim.prefix);
    if (error != 0)
        fault_take(&replication->fault, error);
}

static void named(struct event *event)
{
    struct replication *replication = CONTAINER_OF(event, struct replication, job.done);
    perform_action(replication, transfer_named(&replication->machine, replication->fault.code));
}

/* peers/serve.c does the same for a peer. */
static enum publication complete_here(const struct replication *replication)
{
    int error = complete_copy(target_of(replication), &replication->manifest->summary);
    bool is_lost = error == ERR_NOT_FOUND || error == ERR_CORRUPT;
    return error == 0 ? PUBLICATION_DURABLE : is_lost ? PUBLICATION_LOST : PUBLICATION_UNKNOWN;
}

static int visit_step(void *user, const struct storage_entry *entry)
{
    struct replication *replication = user;
    const struct manifest_summary *summary = &replication->manifest->summary;
    uint64_t step, attempt;
    if (retain_parse(entry->name, &step, &attempt) && step == summary->step &&
        attempt == summary->attempt)
        replication->is_volatile = entry->is_volatile;
    return 0;
}

/* Asks the peer whether the copy is on its disk or in its memory: a setting of each node. Without
 * an answer the copy counts as in memory until the next refresh of the peer. */
static void find_copy_medium(struct replication *replication)
{
    if (replication->outcome != PUBLICATION_DURABLE || !tier_is_peer(replication->tier))
        return;
    replication->is_volatile = true;
    storage_list(target_of(replication), replication->manifest->summary.run, visit_step,
                 replication);
}

static void work_publish(struct job *job)
{
    struct replication *replication = CONTAINER_OF(job, struct replication, job);
    const struct remote_manifest marker = {.service = replication->service,
                                           .manifest = replication->manifest,
                                           .from = replication->from,
                                           .to = replication->tier,
                                           .is_mending = replication->is_mending};
    replication->outcome = remote_manifest_publish(&marker, &replication->text_hash);
    if (replication->outcome == PUBLICATION_DURABLE && replicate_is_keeping(replication) &&
        replicate_is_completing(replication))
        replication->outcome = complete_here(replication);
    if (replication->outcome != PUBLICATION_DURABLE)
        fault_take(&replication->fault, ERR_IO);
    find_copy_medium(replication);
}

static void published(struct event *event)
{
    struct replication *replication = CONTAINER_OF(event, struct replication, job.done);
    perform_action(replication, transfer_published(&replication->machine, replication->outcome));
}

static void work_settle(struct job *job)
{
    struct replication *replication = CONTAINER_OF(job, struct replication, job);
    char key[STORAGE_KEY_MAX + 1];
    const struct manifest_summary *summary = &replication->manifest->summary;
    replication->outcome = manifest_key(key, sizeof key, summary) == 0
                               ? tier_settle(target_of(replication), key, summary->nonce)
                               : PUBLICATION_UNKNOWN;
    if (replication->outcome != PUBLICATION_DURABLE)
        fault_take(&replication->fault, ERR_IO);
    find_copy_medium(replication);
}

static void settled(struct event *event)
{
    struct replication *replication = CONTAINER_OF(event, struct replication, job.done);
    perform_action(replication, transfer_settled(&replication->machine, replication->outcome));
}

/* ---- actions of the machine ---- */

void perform_action(struct replication *replication, struct transfer_action action)
{
    switch (action.kind) {
    case TRANSFER_NOTHING:
        break;
    case TRANSFER_CLAIM:
        perform_work(replication, work_claim, claimed);
        break;
    case TRANSFER_COPY:
        do_copy(replication, &action);
        break;
    case TRANSFER_NAMES:
        perform_work(replication, work_names, named);
        break;
    case TRANSFER_PUBLISH:
        perform_work(replication, work_publish, published);
        break;
    case TRANSFER_SETTLE:
        perform_work(replication, work_settle, settled);
        break;
    case TRANSFER_REST:
        do_rest(replication, action.ms);
        break;
    case TRANSFER_HELD:
        do_held(replication);
        break;
    case TRANSFER_OVER:
        do_over(replication);
        break;
    }
}
