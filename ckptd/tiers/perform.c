/* perform.c - does what transfer.c decides for the checkpoint under way: the claim, the shards, the
 * names, the manifest, and the end of it. */
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
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/origin.h"
#include "proto/format/retain.h"
#include "storage/storage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void perform_work(struct replication *drain, void (*work)(struct job *),
                  void (*done)(struct event *))
{
    drain->fault = (struct fault){0};
    drain->job = (struct job){.work = work, .done.run = done};
    tier_work(drain->service, tier_of_crew(drain->from, drain->tier), &drain->job);
}

static struct storage *far_of(const struct replication *drain)
{
    return drain->service->tiers[drain->tier].storage;
}

/* ---- the end of one ---- */

/* What was not ended here is no use without its manifest, and takes space. */
static void remove_rest(const struct replication *drain, const char *prefix)
{
    int error = storage_group_clear(far_of(drain), &checkpoint_kind, prefix);
    if (error != 0)
        log_warn("drain", "%s stays until the next start: %s", prefix, report_line());
}

/* What `ckpt-cli verify` found in a copy that was damaged is so no more. */
static void forget_verify(struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + sizeof "/" VERIFIED_NAME];
    snprintf(key, sizeof key, "%s/" VERIFIED_NAME, prefix);
    int error = storage_remove(storage, key);
    if (error != 0 && error != ERR_NOT_FOUND)
        log_warn("drain", "%s tells what was mended: %s", key, report_line());
}

static void work_close(struct job *job)
{
    struct replication *drain = CONTAINER_OF(job, struct replication, job);
    char prefix[STORAGE_KEY_MAX];
    memcpy(prefix, drain->claim.prefix, sizeof prefix);
    precommit_left_drop(&drain->left_early, far_of(drain), drain->manifest);
    precommit_left_leave(&drain->left_early);
    hold_end(&drain->claim, drain->is_held);
    if (!drain->is_held && replicate_is_keeping(drain) && !replicate_is_completing(drain) &&
        prefix[0])
        remove_rest(drain, prefix);
    if (!drain->is_held || !drain->is_mending)
        return;
    int error = storage_group_unnote(far_of(drain), STORAGE_QUARANTINE, prefix);
    if (error != 0 && error != ERR_NOT_FOUND) /* an error of a read leaves none */
        log_warn("drain", "%s stays in quarantine for the next start: %s", prefix, report_line());
    forget_verify(far_of(drain), prefix);
}

/* For retention, which gives up the local copy, and for the scrub of the far tier. */
static void note_proven(struct replication *drain)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    copies_note(checkpoint, drain->tier)->proven = (int64_t)time(NULL);
    checkpoint->run->proven.must_keep |= drain->tier == TIER_FAR;
}

/* Whole again: for the list, the journal and status. */
static void note_mended(struct replication *drain)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    char detail[128];
    snprintf(detail, sizeof detail, "the copy in the tier %s, from the tier %s",
             tier_name(drain->service, drain->tier), tier_name(drain->service, drain->from));
    drain->mended++;
    catalog_mended(checkpoint, drain->tier);
    note_proven(drain);
    history_note(checkpoint->run, &(struct history_event){.name = "mend",
                                                          .step = checkpoint->summary.step,
                                                          .attempt = checkpoint->summary.attempt,
                                                          .by = "ckptd",
                                                          .detail = detail});
    log_info("drain", "run %s, step %llu, attempt %llu: mended %s, %llu bytes",
             checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
             (unsigned long long)checkpoint->summary.attempt, detail,
             (unsigned long long)(drain->copy.bytes_sent - drain->bytes_before));
}

static void closed(struct event *event)
{
    struct replication *drain = CONTAINER_OF(event, struct replication, job.done);
    struct checkpoint *checkpoint = drain->checkpoint;
    if (drain->is_held && drain->is_mending)
        note_mended(drain);
    space_end(&drain->room, drain->service);
    precommit_left_free(&drain->left_early);
    manifest_free(drain->manifest);
    drain->manifest = NULL;
    drain->checkpoint = NULL;
    checkpoint->is_going_far &= drain->tier != TIER_FAR;
    catalog_unlease(checkpoint);
    drain->ended(drain, checkpoint->run);
}

void perform_close(struct replication *drain, bool is_held)
{
    drain->is_held = is_held;
    perform_work(drain, work_close, closed);
}

/* It takes what is sent. */
static void forget_error(struct replication *drain)
{
    drain->newest_error[0] = '\0';
    drain->service->tiers[drain->tier].takes_nothing = false;
}

static const char *event_name(const struct replication *drain)
{
    if (drain->tier == TIER_FAR)
        return "drain";
    return replicate_is_keeping(drain) && !replicate_is_completing(drain) ? "keep" : "replicate";
}

static void do_held(struct replication *drain, const struct transfer_action *action)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    const struct manifest_summary *summary = &checkpoint->summary;
    double seconds = (double)(loop_now_ms() - drain->begun_ms) / 1000.0;
    uint64_t sent = drain->copy.bytes_sent - drain->bytes_before;
    (void)action;
    forget_error(drain);
    if (drain->is_mending) {
        perform_close(drain, true);
        return;
    }
    catalog_completed(checkpoint, drain->tier);
    copies_note(checkpoint, drain->tier)->is_volatile = drain->is_volatile;
    checkpoint->is_wanted_far &= drain->tier != TIER_FAR;
    checkpoint->is_wanted_local &= drain->tier != TIER_LOCAL;
    note_proven(drain);
    copies_note(checkpoint, drain->tier)->manifest_hash = drain->text_hash;
    drain->checkpoints++;
    drain->rate = seconds > 0 ? (double)sent / seconds : drain->rate;
    history_note(checkpoint->run, &(struct history_event){.name = event_name(drain),
                                                          .step = summary->step,
                                                          .attempt = summary->attempt,
                                                          .by = "ckptd"});
    log_info("drain",
             "run %s, step %llu, attempt %llu is in the tier %s: %llu of %llu bytes sent in "
             "%.3f s (%.3f GB/s), durability %s",
             checkpoint->run->name, (unsigned long long)summary->step,
             (unsigned long long)summary->attempt, tier_name(drain->service, drain->tier),
             (unsigned long long)sent, (unsigned long long)summary->bytes, seconds,
             seconds > 0 ? (double)sent / seconds / 1e9 : 0.0, copies_level(checkpoint));
    perform_close(drain, true);
}

void perform_give_up(struct replication *drain, const char *why)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    copies_note(checkpoint, drain->tier)->is_given_up = true;
    if (drain->tier == TIER_FAR)
        snprintf(checkpoint->given_up, sizeof checkpoint->given_up, "%s", why);
    drain->given_up++;
    log_error("drain",
              "run %s, step %llu, attempt %llu does not go into the tier %s until ckptd is "
              "started again: %s",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt,
              tier_name(drain->service, drain->tier), why);
}

static void do_over(struct replication *drain, const struct transfer_action *action)
{
    (void)action;
    bool is_damage = drain->copy.is_of_source && catalog_is_proof(&drain->fault) &&
                     catalog_has_copy(drain->checkpoint, drain->copy.from);
    if (!is_damage || drain->copy.from == TIER_LOCAL)
        perform_give_up(drain, drain->fault.message); /* else another tier may have it whole */
    if (is_damage)
        catalog_damage(drain->checkpoint, drain->copy.from, &drain->fault);
    perform_close(drain, false);
}

/* ---- a rest ---- */

/* The node that has the shard of a part is not there: the queue says what may go meanwhile. What
 * has come of it stays. */
static bool is_without_source(const struct replication *drain)
{
    return replicate_is_completing(drain) && drain->machine.state == TRANSFER_COPYING &&
           drain->copy.is_of_source && drain->service->tiers[drain->copy.from].offline[0];
}

void perform_rested(struct timer *timer)
{
    struct replication *drain = CONTAINER_OF(timer, struct replication, rest);
    if (is_without_source(drain)) {
        transfer_forget(&drain->machine);
        perform_close(drain, false);
        return;
    }
    perform_action(drain, transfer_rested(&drain->machine));
}

static void do_rest(struct replication *drain, const struct transfer_action *action)
{
    bool is_first = !drain->newest_error[0];
    drain->service->tiers[drain->tier].takes_nothing = !drain->copy.is_of_source;
    drain->errors++;
    catalog_damage_text(drain->newest_error, sizeof drain->newest_error, &drain->fault);
    if (is_first)
        log_error("drain", "the tier %s takes nothing, and is tried again: %s",
                  tier_name(drain->service, drain->tier), drain->newest_error);
    loop_timer(drain->service->loop, &drain->rest, action->ms);
    if (is_first)
        drain->look(drain->service); /* another node may do */
}

/* ---- claim ---- */

static void work_claim(struct job *job)
{
    struct replication *drain = CONTAINER_OF(job, struct replication, job);
    drain->outcome =
        hold_take(&drain->claim, drain->service, drain->tier, &drain->manifest->summary);
    if (drain->outcome != PUBLICATION_DURABLE)
        fault_take(&drain->fault, ERR_IO);
}

static void claimed(struct event *event)
{
    struct replication *drain = CONTAINER_OF(event, struct replication, job.done);
    perform_action(drain, transfer_claimed(&drain->machine, drain->outcome));
}

static void do_claim(struct replication *drain, const struct transfer_action *action)
{
    (void)action;
    perform_work(drain, work_claim, claimed);
}

/* ---- shards ---- */

/* A source that does not answer says nothing about what lies there; a disk of this node with errors
 * is not troubled for what is whole elsewhere. */
static bool no_try_helps(const struct replication *drain, const struct shard_copy *copy)
{
    if (!copy->is_of_source)
        return replicate_is_keeping(drain);
    return copy->from == TIER_LOCAL || replicate_is_loss(&copy->fault);
}

void perform_arrived(struct shard_copy *copy)
{
    struct replication *drain = CONTAINER_OF(copy, struct replication, copy);
    drain->fault = copy->fault;
    if (copy->fault.code == 0) {
        if (drain->tier == TIER_FAR)
            memcpy(drain->manifest->part_sums[copy->shard].sha256, copy->sha256,
                   CHECKSUM_SHA256_HEX);
        forget_error(drain);
    }
    if (copy->fault.code == 0 && replicate_is_keeping(drain) &&
        !precommit_left_has_file(&drain->left_early, copy->shard))
        space_use(&drain->room, drain->service, copy->geometry.file_bytes);
    perform_action(drain, transfer_copied(&drain->machine, copy->shard, copy->fault.code,
                                          no_try_helps(drain, copy)));
}

bool perform_is_due(const struct replication *drain, uint32_t shard)
{
    const struct checkpoint *checkpoint = drain->checkpoint;
    if (replicate_is_completing(drain))
        return !copies_has_shard(checkpoint, drain->tier, shard);
    return !drain->is_of_part || checkpoint->places[shard] == drain->tier;
}

static void do_copy(struct replication *drain, const struct transfer_action *action)
{
    const struct checkpoint *checkpoint = drain->checkpoint;
    struct transfer_action next = *action;
    while (next.kind == TRANSFER_COPY && !perform_is_due(drain, next.shard))
        next = transfer_copied(&drain->machine, next.shard, 0, false);
    if (next.kind != TRANSFER_COPY) {
        perform_action(drain, next);
        return;
    }
    drain->copy.is_hurried = queue_is_wanted(checkpoint, drain->tier);
    shard_copy_start(&drain->copy, drain->checkpoint, drain->manifest, next.shard,
                     next.shard < drain->left_early.count ? &drain->left_early.ships[next.shard]
                                                          : NULL);
}

/* ---- names and manifest ---- */

static void work_names(struct job *job)
{
    struct replication *drain = CONTAINER_OF(job, struct replication, job);
    int error = remote_manifest_publish_origin(far_of(drain), &drain->manifest->summary);
    if (error == 0 && drain->tier == TIER_FAR)
        error = remote_manifest_publish_pin(drain->service, drain->claim.prefix);
    if (error == 0)
        error = storage_sync_names(far_of(drain), drain->claim.prefix);
    if (error != 0)
        fault_take(&drain->fault, error);
}

static void named(struct event *event)
{
    struct replication *drain = CONTAINER_OF(event, struct replication, job.done);
    perform_action(drain, transfer_named(&drain->machine, drain->fault.code));
}

static void do_names(struct replication *drain, const struct transfer_action *action)
{
    (void)action;
    perform_work(drain, work_names, named);
}

/* As a peer does of its own: peers/serve.c. */
static enum publication complete_here(const struct replication *drain)
{
    int error = complete_copy(far_of(drain), &drain->manifest->summary);
    bool is_lost = error == ERR_NOT_FOUND || error == ERR_CORRUPT;
    return error == 0 ? PUBLICATION_DURABLE : is_lost ? PUBLICATION_LOST : PUBLICATION_UNKNOWN;
}

static int visit_step(void *user, const struct storage_entry *entry)
{
    struct replication *drain = user;
    const struct manifest_summary *summary = &drain->manifest->summary;
    uint64_t step, attempt;
    if (retain_parse(entry->name, &step, &attempt) && step == summary->step &&
        attempt == summary->attempt)
        drain->is_volatile = entry->is_volatile;
    return 0;
}

/* On the peer's disk, or in its memory? The peer says: each node has that setting for itself. What
 * cannot be asked is not said to be on a disk; the next look at the peer knows. */
static void look_where_it_is(struct replication *drain)
{
    if (drain->outcome != PUBLICATION_DURABLE || !tier_is_peer(drain->tier))
        return;
    drain->is_volatile = true;
    storage_list(far_of(drain), drain->manifest->summary.run, visit_step, drain);
}

static void work_publish(struct job *job)
{
    struct replication *drain = CONTAINER_OF(job, struct replication, job);
    const struct remote_manifest marker = {.service = drain->service,
                                           .manifest = drain->manifest,
                                           .from = drain->from,
                                           .to = drain->tier,
                                           .is_mending = drain->is_mending};
    drain->outcome = remote_manifest_publish(&marker, &drain->text_hash);
    if (drain->outcome == PUBLICATION_DURABLE && replicate_is_keeping(drain) &&
        replicate_is_completing(drain))
        drain->outcome = complete_here(drain);
    if (drain->outcome != PUBLICATION_DURABLE)
        fault_take(&drain->fault, ERR_IO);
    look_where_it_is(drain);
}

static void published(struct event *event)
{
    struct replication *drain = CONTAINER_OF(event, struct replication, job.done);
    perform_action(drain, transfer_published(&drain->machine, drain->outcome));
}

static void do_publish(struct replication *drain, const struct transfer_action *action)
{
    (void)action;
    perform_work(drain, work_publish, published);
}

static void work_settle(struct job *job)
{
    struct replication *drain = CONTAINER_OF(job, struct replication, job);
    char key[STORAGE_KEY_MAX + 1];
    const struct manifest_summary *summary = &drain->manifest->summary;
    drain->outcome = manifest_key(key, sizeof key, summary) == 0
                         ? tier_settle(far_of(drain), key, summary->nonce)
                         : PUBLICATION_UNKNOWN;
    if (drain->outcome != PUBLICATION_DURABLE)
        fault_take(&drain->fault, ERR_IO);
    look_where_it_is(drain);
}

static void settled(struct event *event)
{
    struct replication *drain = CONTAINER_OF(event, struct replication, job.done);
    perform_action(drain, transfer_settled(&drain->machine, drain->outcome));
}

static void do_settle(struct replication *drain, const struct transfer_action *action)
{
    (void)action;
    perform_work(drain, work_settle, settled);
}

/* ---- what is decided, and by whom it is done ---- */

static void do_nothing(struct replication *drain, const struct transfer_action *action)
{
    (void)drain;
    (void)action;
}

void perform_action(struct replication *drain, struct transfer_action action)
{
    static void (*const performers[])(struct replication *, const struct transfer_action *) = {
        [TRANSFER_NOTHING] = do_nothing, [TRANSFER_CLAIM] = do_claim,
        [TRANSFER_COPY] = do_copy,       [TRANSFER_NAMES] = do_names,
        [TRANSFER_PUBLISH] = do_publish, [TRANSFER_SETTLE] = do_settle,
        [TRANSFER_REST] = do_rest,       [TRANSFER_HELD] = do_held,
        [TRANSFER_OVER] = do_over,
    };
    performers[action.kind](drain, &action);
}
