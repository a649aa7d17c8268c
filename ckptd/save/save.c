/* save.c - one save of all ranks: passes its events to commit.c and performs the decisions.
 *
 *   BeginSave of each rank ──► begin.c: an image, a stage   (stage.c makes the shard durable)
 *   COMMIT_SYNC_NAMES      ──► publish.c: the files' names become durable
 *   COMMIT_PUBLISH         ──► publish.c: the manifest
 *   COMMIT_DONE            ──► the catalog, the memory tier, waiting clients; one log line;
 *                              an alarm when every tensor equals the checkpoint before it, or
 *                              replicas differ
 *   COMMIT_DISCARD         ──► stages stop and remove their files; then the directory
 *   COMMIT_KEEP            ──► reported as failed, nothing removed, the store goes offline
 *
 * wait.c has the waiting clients, and ends throttling for them. */
#include "ckptd/save/save.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/quota.h"
#include "ckptd/attempt/replicas.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/policy.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/save/mark.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/tiers/precommit_copy.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding ---- */

void save_identity(struct shard_identity *out, const struct save *save, uint32_t rank)
{
    memset(out, 0, sizeof *out);
    snprintf(out->run, sizeof out->run, "%s", save->run->name);
    snprintf(out->nonce, sizeof out->nonce, "%s", save->nonce);
    out->step = save->step;
    out->attempt = save->attempt;
    out->shard = rank;
    out->shards = save->world_size;
}

struct save *save_find(struct run *run, uint64_t id)
{
    struct save *save = run->coordinator->saves;
    while (save && save->id != id)
        save = save->next;
    return save;
}

/* ---- the end of a save ---- */

/* Of a rank, or of the save itself: the cause of the machine's reason. */
static const struct fault *first_fault(const struct save *save)
{
    const struct fault *fault = &save->fault;
    for (uint32_t i = 0; i < save->world_size && fault->code == 0; i++)
        fault = &save->stages[i].fault;
    return fault;
}

static uint64_t disk_of(const struct run *run)
{
    uint64_t used = 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        used += c->copies.local.is_there ? c->summary.bytes : 0;
    for (const struct save *save = run->coordinator->saves; save; save = save->next)
        used += save->bytes;
    return used;
}

int save_check_quota(const struct run *run, uint64_t bytes)
{
    uint64_t quota = (uint64_t)policy_of(&run->service->policies, run->name)->quota, used = 0;
    ERR_TRY(quota_check_disk(run, bytes, disk_of));
    if (quota == 0)
        return 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        used += c->summary.bytes;
    for (const struct save *save = run->coordinator->saves; save; save = save->next)
        used += save->bytes;
    if (used <= quota && bytes <= quota - used)
        return 0;
    return report_error(
        ERR_SPACE, "remove checkpoints, or raise the quota and `ckpt-cli server reload`",
        "a checkpoint of %llu bytes does not fit: the quota of run %s is %llu "
        "bytes, of which its checkpoints use %llu",
        (unsigned long long)bytes, run->name, (unsigned long long)quota, (unsigned long long)used);
}

static void failure_text(char *out, size_t size, const struct save *save,
                         const struct commit_action *action)
{
    const struct fault *fault = first_fault(save);
    char who[32] = "";
    if (action->rank >= 0)
        snprintf(who, sizeof who, " (rank %lld)", (long long)action->rank);
    snprintf(out, size, "%s%s%s%.200s%s%.200s", action->reason, who, fault->code ? ": " : "",
             fault->code ? fault->message : "", fault->code && fault->detail[0] ? ": " : "",
             fault->code ? fault->detail : "");
}

/* Takes the image out of the save: it becomes a spare of its session, or is freed. */
static void release_image(struct stage *stage)
{
    struct image *image = stage->image;
    if (!image)
        return;
    if (stage->session)
        stage->session->slot_stages[stage->slot] = NULL;
    stage->image = NULL;
    image->stage = NULL;
    image->tensors = NULL;
    image->metas = NULL;
    image->num_tensors = 0;
    if (image->state == IMAGE_STAGING)
        image->state = IMAGE_SPARE;
    if (!image_settle(image))
        service_retry_waiting(image->service); /* kept, but its memory may be reclaimed */
}

void save_free(struct save *save)
{
    struct run *run = save->run;
    struct save **at = &run->coordinator->saves;
    while (*at != save)
        at = &(*at)->next;
    *at = save->next;
    CHECK(!save->waiters);
    replicate_save_over(run->service, save->stages, false);
    ledger_end(&run->service->ledger, &save->promise);
    for (uint32_t i = 0; i < save->world_size; i++) {
        release_image(&save->stages[i]);
        free(save->stages[i].announced);
        free(save->stages[i].told);
        free(save->stages[i].replicas);
        free(save->stages[i].readback.digests);
    }
    free(save->stages);
    for (uint32_t i = 0; i < save->world_size; i++) {
        free(save->remote[i].digests);
        free(save->remote[i].replicas);
    }
    free(save->remote);
    loop_timer_cancel(run->service->loop, &save->report);
    places_free(&save->places);
    free(save->manifest_text);
    catalog_drop(save->checkpoint);
    free(save->digests);
    free(save->replicas);
    free(save->told_of_replicas);
    free(save->state_json);
    pthread_mutex_destroy(&save->mark_lock);
    free(save);
    service_retry_saves(run->service);
}

/* ---- committed ---- */

static double seconds_between(int64_t from_ms, int64_t to_ms)
{
    return (double)(to_ms - from_ms) / 1000.0;
}

static int64_t later(int64_t a_ms, int64_t b_ms)
{
    return a_ms > b_ms ? a_ms : b_ms;
}

/* Shards here may be durable before the last rank of another node has staged. */
static void report_commit(struct save *save)
{
    struct outcomes *outcomes = save->service->outcomes;
    int64_t now = clock_ms(), durable_ms = later(save->ended_ms, save->durable_ms);
    int64_t named_ms = later(durable_ms, save->named_ms);
    double seconds = seconds_between(save->begun_ms, now);
    outcomes->commits++;
    outcomes->bytes_written += save->bytes;
    snprintf(outcomes->newest.run, sizeof outcomes->newest.run, "%s", save->run->name);
    outcomes->newest.step = save->step;
    outcomes->newest.attempt = save->attempt;
    outcomes->newest.bytes = save->bytes;
    outcomes->newest.seconds = seconds;
    outcomes->newest.staging_seconds = seconds_between(save->begun_ms, save->ended_ms);
    outcomes->newest.sync_seconds = seconds_between(save->ended_ms, durable_ms);
    outcomes->newest.names_seconds = seconds_between(durable_ms, named_ms);
    outcomes->newest.manifest_seconds = seconds_between(named_ms, now);
    histogram_add(&outcomes->save, now - save->begun_ms);
    histogram_add(&save->run->save_seconds, now - save->begun_ms);
    histogram_add(&outcomes->commit, now - durable_ms);
    log_info("commit",
             "run %s, step %llu, attempt %llu committed: %llu bytes in %.3f s (%.3f GB/s; staging "
             "%.3f, write and sync %.3f, names %.3f, manifest %.3f), %u shards, durability local",
             save->run->name, (unsigned long long)save->step, (unsigned long long)save->attempt,
             (unsigned long long)save->bytes, seconds,
             seconds > 0 ? (double)save->bytes / seconds / 1e9 : 0.0,
             outcomes->newest.staging_seconds, outcomes->newest.sync_seconds,
             outcomes->newest.names_seconds, outcomes->newest.manifest_seconds, save->world_size);
}

/* Logs the free disk space, and warns in time. */
static void report_disk(const struct save *save)
{
    struct service *service = save->service;
    struct storage_space space;
    int64_t now = clock_ms();
    ledger_note(&service->ledger, now, (int64_t)save->bytes);
    if (storage_space(service->storage, &space) != 0)
        return;
    char hours[48] = "";
    double left = ledger_hours_to_full(&service->ledger, &space, now);
    if (left >= 0)
        snprintf(hours, sizeof hours, "; full in %.1f hours at the last saves' rate", left);
    bool is_short = ledger_must_warn(&service->ledger, &space, now, save->bytes);
    log_print(is_short ? LOG_WARN : LOG_DEBUG, "disk",
              "%llu of %llu usable bytes are in use, %llu are left%s",
              (unsigned long long)ledger_used(&space),
              (unsigned long long)ledger_usable(&service->ledger, &space),
              (unsigned long long)ledger_room(&service->ledger, &space), hours);
}

/* The memory tier: keeps the images of the newest checkpoint, and frees older ones. Nothing is kept
 * of a window, which held a part of the shard at a time, or without memory for the list. */
static void enter_memory(struct save *save, struct checkpoint *checkpoint)
{
    struct run *run = save->run;
    bool newest = catalog_newest(run) == checkpoint;
    for (uint32_t i = 0; i < save->world_size && newest; i++) {
        struct image *image = save->stages[i].image;
        if (!image || image->is_window || image_enter_checkpoint(image, checkpoint, i) != 0)
            continue;
        image->state = IMAGE_RESIDENT;
        image->table_hash = save->stages[i].table_hash;
        image->read_until = 0;
        release_image(&save->stages[i]);
    }
    struct image *next;
    for (struct image *image = run->service->images; image; image = next) {
        const struct checkpoint *holds = image->checkpoint;
        next = image->next; /* leaving may free this image, and no other */
        if (holds && holds->run == run && holds != checkpoint && image->state == IMAGE_RESIDENT &&
            image->readers == 0)
            image_leave_checkpoint(image);
    }
}

/* The newest of this attempt; for its first save the one it loaded, else the newest of the run. */
struct checkpoint *save_before(const struct save *save)
{
    struct run *run = save->run;
    struct checkpoint *newest = catalog_newest(run), *loaded = NULL;
    if (newest && newest->summary.attempt != save->attempt &&
        run->coordinator->attempt->parent_attempt != 0)
        loaded = catalog_find(run, run->coordinator->attempt->parent_step,
                              run->coordinator->attempt->parent_attempt);
    return loaded ? loaded : newest;
}

/* A checkpoint that equals the one of another step, to the bit, is kept. But then training makes no
 * progress, or the saved memory is not the trained one. */
static void compare_content(struct save *save)
{
    struct service *service = save->service;
    struct checkpoint *before = save_before(save);
    if (!before || before->summary.step == save->step)
        return;
    if (!before->content[0] && before->summary.step == save->before.step &&
        before->summary.attempt == save->before.attempt)
        memcpy(before->content, save->before.content, sizeof before->content);
    if (!save->content[0] || strcmp(before->content, save->content) != 0)
        return;
    save->repeat = (struct repeat){before->summary.step, before->summary.attempt};
    service->outcomes->unchanged++;
    snprintf(service->outcomes->unchanged_run, sizeof service->outcomes->unchanged_run, "%s",
             save->run->name);
    service->outcomes->unchanged_save = (struct repeat){save->step, save->attempt};
    service->outcomes->unchanged_before = save->repeat;
    log_error("commit",
              "run %s, step %llu, attempt %llu: every tensor equals the checkpoint of step %llu, "
              "attempt %llu, to the bit: the optimizer changes nothing, or the saved tensors are "
              "not the trained ones; the checkpoint is kept",
              save->run->name, (unsigned long long)save->step, (unsigned long long)save->attempt,
              (unsigned long long)save->repeat.step, (unsigned long long)save->repeat.attempt);
}

/* If copies differed: logs it, raises the alarm, and counts. If not, an earlier alarm of the run
 * ends. */
static void report_replicas(const struct save *save)
{
    char text[REPLICAS_TEXT_BYTES];
    struct run *run = save->run;
    run->replicas[0] = '\0';
    if (!save->replicas)
        return;
    save->service->outcomes->replicas_differ++;
    replicas_text(text, save->replicas, save->group->table);
    snprintf(run->replicas, sizeof run->replicas, "step %llu, attempt %llu: %s",
             (unsigned long long)save->step, (unsigned long long)save->attempt, text);
    log_warn("commit", "run %s, step %llu, attempt %llu: replicas differ: %s%s", run->name,
             (unsigned long long)save->step, (unsigned long long)save->attempt, text,
             save->discarding ? "" : "; the checkpoint has one rank's, whole");
}

static void note_commit(const struct save *save)
{
    const struct attempt *attempt = save->run->coordinator->attempt;
    char detail[80];
    bool is_its = attempt && attempt->number == save->attempt && attempt->who[0];
    snprintf(detail, sizeof detail, "%llu bytes by %u ranks", (unsigned long long)save->bytes,
             save->world_size);
    history_note(save->run, &(struct history_event){.name = "commit",
                                                    .step = save->step,
                                                    .attempt = save->attempt,
                                                    .by = is_its ? attempt->who : "its ranks",
                                                    .detail = detail});
}

/* Its manifest is durable here. */
static const struct checkpoint *enter_catalog(struct save *save)
{
    struct checkpoint *checkpoint = save->checkpoint;
    char differ[REPLICAS_TEXT_BYTES];
    if (catalog_set_places(checkpoint, TIER_LOCAL, &save->places) != 0)
        log_warn("commit", "%s", report_line()); /* a load reads the places again */
    save->checkpoint = NULL;
    checkpoint = catalog_enter(checkpoint, &save->summary);
    CHECK(checkpoint); /* it was not listed when the save began, and promised since */
    checkpoint->was_committed = true;
    if (save->part.is_whole)
        catalog_completed(checkpoint, TIER_LOCAL);
    checkpoint->manifest_hash = save->manifest_hash;
    memcpy(checkpoint->content, save->content, sizeof checkpoint->content);
    checkpoint->repeat = save->repeat;
    if (save->replicas) /* without memory only the manifest has them */
        checkpoint->replicas = strdup(replicas_text(differ, save->replicas, save->group->table));
    else if (save->told_of_replicas) {
        checkpoint->replicas = save->told_of_replicas;
        save->told_of_replicas = NULL;
    }
    enter_memory(save, checkpoint);
    note_commit(save);
    return checkpoint;
}

void save_committed(struct run *run, const struct commit_action *action)
{
    struct save *save = save_find(run, action->save);
    const uint64_t attempt = save->attempt;
    char text[SAVE_WARNING_BYTES];
    report_commit(save);
    report_disk(save);
    compare_content(save);
    report_replicas(save);
    save->checkpoint->was_committed = true;
    replicate_save_over(run->service, save->stages, true);
    const struct checkpoint *checkpoint = enter_catalog(save);
    save_answer_waiters(save, HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED,
                        save_warning_text(text, checkpoint));
    save_free(save);
    outcomes_committed(run, attempt);
    run->service->hooks->apply_retention(run);
    replicate_check_queues(run->service);
}

/* ---- failed ---- */

static void work_remove_dir(struct job *job)
{
    struct save *save = CONTAINER_OF(job, struct save, job);
    mark_give_up(save);
}

static void dir_removed(struct event *event)
{
    struct save *save = CONTAINER_OF(event, struct save, job.done);
    struct run *run = save->run;
    struct commit_actions actions = {0};
    commit_discarded(&run->coordinator->machine, &actions, save->id);
    save_free(save);
    run_perform(run, &actions);
}

static void check_stopped(struct save *save);

static void early_left(void *user)
{
    check_stopped(user);
}

/* The mark is removed after all shards, including those of other nodes (precommit_copy.B4). */
static void check_stopped(struct save *save)
{
    if (save->num_stopped < save->num_begun ||
        !replicate_save_left(save->service, save->stages, early_left, save))
        return;
    save->job = (struct job){.work = work_remove_dir, .done.run = dir_removed};
    loop_work(save->service->loop, &save->job);
}

void save_discard(struct run *run, const struct commit_action *action)
{
    struct save *save = save_find(run, action->save);
    char reason[512];
    save->discarding = true;
    replicate_save_over(run->service, save->stages, false);
    failure_text(reason, sizeof reason, save, action);
    if (save->replicas)
        report_replicas(save);
    if (save->has_made_way)
        outcomes_made_way(run, save->step, save->attempt, reason);
    else
        outcomes_failed(run, save->step, save->attempt, first_fault(save)->code, reason);
    save_answer_waiters(save, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, reason);
    /* Stopping is never synchronous, so `save` lives until the next round of the loop. */
    for (uint32_t i = 0; i < save->world_size; i++)
        if (save->stages[i].options.save)
            stage_stop(&save->stages[i]);
    check_stopped(save); /* perhaps no stage has begun */
}

void save_keep(struct run *run, const struct commit_action *action)
{
    struct save *save = save_find(run, action->save);
    char reason[512];
    failure_text(reason, sizeof reason, save, action);
    outcomes_failed(run, save->step, save->attempt, first_fault(save)->code, reason);
    save_answer_waiters(save, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, reason);
    if (save->outcome == OUTCOME_DURABLE) /* durable here; the state at other holders is unknown */
        enter_catalog(save);
    else
        service_go_offline(save->service, reason);
    save_free(save);
}

void save_place(struct run *run, const struct commit_action *action)
{
    (void)run;    /* the holders learn it from the answers to their reports (peers/lead_save.c), */
    (void)action; /* which they send continuously */
}

/* ---- callbacks of stages ---- */

static bool tell_coordinator(struct save *save)
{
    if (save->is_part)
        save->service->hooks->part_changed(save);
    return save->is_part;
}

static void stage_advanced(struct stage *stage)
{
    const struct save *save = stage->options.save;
    replicate_save_advanced(save->service, save->stages);
}

static void stage_ended(struct stage *stage)
{
    struct commit_actions actions = {0};
    struct save *save = stage->options.save;
    struct run *run = save->run;
    save->ended_ms = clock_ms();
    if (tell_coordinator(save))
        return;
    commit_ended(&run->coordinator->machine, &actions, save->id, stage->rank);
    save_answer_accepted(save);
    run_perform(run, &actions);
}

static void stage_durable(struct stage *stage)
{
    struct commit_actions actions = {0};
    struct save *save = stage->options.save;
    struct run *run = save->run;
    if (tell_coordinator(save))
        return;
    commit_durable(&run->coordinator->machine, &actions, save->id, stage->rank);
    run_perform(run, &actions);
}

static void stage_failed(struct stage *stage, const char *reason)
{
    struct commit_actions actions = {0};
    struct save *save = stage->options.save;
    struct run *run = save->run;
    if (tell_coordinator(save))
        return;
    commit_failed(&run->coordinator->machine, &actions, save->id, stage->rank,
                  stage->fault.code != 0 ? stage->fault.code : ERR_ABORTED, reason);
    run_perform(run, &actions);
}

static void stage_stopped(struct stage *stage)
{
    struct save *save = stage->options.save;
    release_image(stage);
    save->num_stopped++;
    check_stopped(save);
}

/* On a worker. commit.I11. */
static int stage_prepare(struct stage *stage)
{
    return mark_make(stage->options.save);
}

const struct stage_events save_stage_events = {.prepare = stage_prepare,
                                               .advanced = stage_advanced,
                                               .ended = stage_ended,
                                               .durable = stage_durable,
                                               .failed = stage_failed,
                                               .stopped = stage_stopped};

int save_begin_stage(struct save *save, struct session *session, uint32_t slot)
{
    const struct group_rank *rank = &save->group->ranks[session->rank];
    const struct coordinator *coordinator = save->run->coordinator;
    struct stage_options options = {
        .events = &save_stage_events,
        .save = save,
        .save_id = save->id,
        .table = save->group->table,
        .tensors = rank->tensors,
        .num_tensors = rank->num_tensors,
        .num_items = rank->num_items,
        .num_replicas = rank->num_replicas,
        .promise = &save->promise,
        .is_urgent = save->urgent || coordinator->opening.call,
    };
    save_identity(&options.identity, save, session->rank);
    return stage_begin(&save->stages[session->rank], &options, session, slot);
}

static void offer_shards(const struct save *save)
{
    const struct precommit_save early = {.run = save->run->name,
                                         .step = save->step,
                                         .attempt = save->attempt,
                                         .nonce = save->nonce,
                                         .stages = save->stages,
                                         .world_size = save->world_size,
                                         .places = &save->places};
    replicate_save_begun(save->service, save->checkpoint, &early);
}

/* For a part here, or with ranks at other nodes, this node lacks some shards. */
void save_all_begun(struct save *save)
{
    if (!save->is_part && save->places.num_shards == 0 && !save->discarding)
        offer_shards(save);
}

/* The node of the first rank fetches the other shards (tiers/queue.c). The mark exists since the
 * file of that rank does. */
void save_part_written(struct save *save, uint32_t rank, uint64_t bytes)
{
    const struct group_rank *of = &save->group->ranks[rank];
    const struct stage *first = &save->stages[0];
    if (save->is_part || save->discarding || of->node == 0 || bytes == 0 || !first->options.save ||
        !first->created)
        return;
    if (!save->is_offered)
        offer_shards(save);
    save->is_offered = true;
    const struct precommit_told told = {
        .rank = rank,
        .from = (enum tier_index)(TIER_PEER + of->node - 1),
        .geometry = &of->geometry,
        .written = bytes < of->geometry.file_bytes ? bytes : of->geometry.file_bytes};
    replicate_save_told(save->service, save->stages, &told);
}

/* ---- given up ---- */

void save_give_up_part(struct save *save, uint32_t rank, const char *why)
{
    struct stage *stage = &save->stages[rank];
    if (!save->is_part || !stage->options.save || stage->ended || save->discarding)
        return;
    if (stage->fault.code == 0) {
        report_error(ERR_ABORTED, NULL, "%.200s", why);
        fault_take(&stage->fault, ERR_ABORTED);
    }
    tell_coordinator(save);
}
