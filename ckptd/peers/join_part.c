/* join_part.c - this node's part of a save that another node coordinates.
 *
 *   stage.c makes its shards durable ──► the names, too ──► ReportPart: all that this node
 *        ▲                                                  knows of it, at every change, and
 *        │ WAIT                                             every REPORT_MS
 *        │                                                     ▼
 *        └─────────────────────────────────────────── the coordinator's verdict
 *   PLACE      ──► places and manifest written here, the mark removed ──► reported
 *                  (the manifest is in the answer, or at the node that it names: manifest_fanout.c)
 *   COMMITTED  ──► into the catalog; waiting clients are answered: every holder has the manifest
 *   KEPT       ──► PLACE, into the catalog; waiting clients hear that the outcome is unknown
 *   OVER       ──► its shards are removed, then the mark
 *
 * machines/participating.c makes the decisions and has the invariants. */
#include "ckptd/peers/join_part.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/participating.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/stage.h"
#include "ckptd/peers/peer_call.h"
#include "ckptd/save/publish.h"
#include "ckptd/save/save.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "proto/format/replica.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_MS 250
/* Digests of replicas are at most half of a report. */
#define REPLICA_WORDS_MAX ((size_t)RPC_MESSAGE_BYTES_MAX / 2 / sizeof(uint64_t))

/* A report in progress; it owns all its fields. */
struct reporting {
    struct peer_call peer_call;
    Holdfast__V1__ReportPartRequest request;
    Holdfast__V1__Part *parts, **pointers;
    uint64_t **digests;
    char (*reasons)[sizeof((struct fault *)0)->message];
    char run[RUN_NAME_MAX + 1], dir[STORAGE_KEY_MAX], nonce[33];
    uint32_t num_parts;
    size_t num_replica_words;
    struct participating_report report;
};

static void free_reporting(struct reporting *reporting)
{
    peer_call_end(&reporting->peer_call);
    for (uint32_t i = 0; reporting->digests && i < reporting->num_parts; i++)
        free(reporting->digests[i]);
    free(reporting->digests);
    free(reporting->reasons);
    free(reporting->parts);
    free(reporting->pointers);
    free(reporting);
}

/* ---- the report ---- */

/* The number of replica digests of this rank that go into the report: 0 if they do not fit. */
static size_t replica_words(struct reporting *reporting, const struct stage *stage)
{
    const struct save *save = stage->options.save;
    size_t words = stage->replicas ? stage->num_replica_words : 0;
    if (words > REPLICA_WORDS_MAX - reporting->num_replica_words) {
        log_warn("commit",
                 "run %s, step %llu: replicas of rank %u are not compared: a node's report holds "
                 "at most %zu digests",
                 save->run->name, (unsigned long long)save->step, stage->rank,
                 REPLICA_WORDS_MAX / REPLICA_WORDS);
        return 0;
    }
    reporting->num_replica_words += words;
    return words;
}

/* The digests are most of a report. */
static int fill_digests(struct reporting *reporting, uint32_t index, const struct stage *stage)
{
    Holdfast__V1__Part *part = &reporting->parts[index];
    const struct image *image = stage->image;
    size_t count = 2 * (size_t)image->num_tensors, words = replica_words(reporting, stage);
    uint64_t *digests = malloc((count + words + 1) * sizeof *digests);
    if (!digests)
        return report_error(ERR_MEMORY, NULL, "no memory to report a shard");
    for (size_t i = 0; i < count; i++)
        digests[i] = image->digests[i / 2].sum[i % 2];
    reporting->digests[index] = digests;
    part->bytes = image->geometry.file_bytes;
    part->data_start = image->geometry.data_start;
    part->header_hash = stage->header_hash;
    part->table_hash = stage->table_hash;
    part->digests = digests;
    part->n_digests = count;
    if (words > 0)
        memcpy(digests + count, stage->replicas, words * sizeof *digests);
    part->replicas = digests + count;
    part->n_replicas = words;
    return 0;
}

static int fill_part(struct reporting *reporting, const struct stage *stage)
{
    uint32_t index = reporting->num_parts++;
    Holdfast__V1__Part *part = reporting->pointers[index] = &reporting->parts[index];
    const struct participating_shard shard = {.has_failed = stage->fault.code != 0,
                                              .is_durable = stage->durable,
                                              .is_ended = stage->ended,
                                              .is_told =
                                                  stage->options.save->remote[stage->rank].is_told};
    struct participating_line line = participating_add(&reporting->report, &shard);
    holdfast__v1__part__init(part);
    part->rank = stage->rank;
    part->state = line.state;
    if (shard.has_failed) {
        memcpy(reporting->reasons[index], stage->fault.message, sizeof stage->fault.message);
        part->reason = reporting->reasons[index];
    } else if (!shard.is_durable) {
        part->written = stage_written(stage);
    }
    return line.has_digests ? fill_digests(reporting, index, stage) : 0;
}

static int fill_report(struct reporting *reporting, const struct save *save)
{
    Holdfast__V1__ReportPartRequest *request = &reporting->request;
    uint32_t room = save->num_begun + 1;
    reporting->parts = calloc(room, sizeof *reporting->parts);
    reporting->pointers = calloc(room, sizeof *reporting->pointers);
    reporting->digests = calloc(room, sizeof *reporting->digests);
    reporting->reasons = calloc(room, sizeof *reporting->reasons);
    if (!reporting->parts || !reporting->pointers || !reporting->digests || !reporting->reasons)
        return report_error(ERR_MEMORY, NULL, "no memory to report a part");
    holdfast__v1__report_part_request__init(request);
    snprintf(reporting->run, sizeof reporting->run, "%s", save->run->name);
    memcpy(reporting->dir, save->dir, sizeof reporting->dir);
    memcpy(reporting->nonce, save->nonce, sizeof reporting->nonce);
    request->run = reporting->run;
    request->nonce = reporting->nonce;
    request->attempt = save->attempt;
    request->step = save->step;
    request->boot_id = save->service->boot_id;
    reporting->report = participating_report(&save->part);
    request->placed = reporting->report.is_placed;
    request->missed = reporting->report.has_missed;
    for (uint32_t i = 0; i < save->world_size; i++)
        if (save->stages[i].options.save)
            ERR_TRY(fill_part(reporting, &save->stages[i]));
    request->parts = reporting->pointers;
    request->n_parts = reporting->num_parts;
    return 0;
}

/* On the crew. */
static int sync_names(struct peer_call *peer_call)
{
    struct reporting *reporting = CONTAINER_OF(peer_call, struct reporting, peer_call);
    return reporting->report.must_name
               ? storage_sync_names(peer_call->service->storage, reporting->dir)
               : 0;
}

static void perform_action(struct save *save, enum participating_action action);

/* ---- the manifest ---- */

static int write_manifest(struct storage *storage, const struct manifest_summary *summary,
                          const void *text, size_t bytes)
{
    char key[STORAGE_KEY_MAX];
    ERR_TRY(manifest_key(key, sizeof key, summary));
    switch (tier_publish(storage, key, text, bytes, summary->nonce)) {
    case PUBLICATION_DURABLE:
        return 0;
    case PUBLICATION_TAKEN:
        return report_error(ERR_EXISTS, NULL, "%s belongs to another save", key);
    default:
        return report_error(ERR_IO, NULL, "%s was not written: %s", key, report_message());
    }
}

int part_place(struct manifest_summary *out, struct storage *storage, const void *text,
               size_t bytes, const char *nonce, const struct places *places)
{
    char dir[STORAGE_KEY_MAX];
    size_t head = bytes < MANIFEST_SUMMARY_BYTES ? bytes : MANIFEST_SUMMARY_BYTES;
    struct manifest *manifest = NULL;
    ERR_TRY(manifest_read_summary(out, text, head));
    ERR_TRY(manifest_read(&manifest, text, bytes));
    manifest_free(manifest);
    if (strcmp(out->nonce, nonce) != 0)
        return report_error(ERR_CORRUPT, NULL, "received the manifest of another save");
    ERR_TRY(shard_dir_key(dir, sizeof dir, out->run, out->step, out->attempt));
    ERR_TRY(store_put_places(storage, out, places));
    ERR_TRY(write_manifest(storage, out, text, bytes));
    ERR_TRY(storage_sync_names(storage, dir)); /* the manifest may have been there before */
    store_unmark(storage, dir);
    return 0;
}

/* Fetches the manifest from a node that has it. */
static int fetch_manifest(struct save *save)
{
    char key[STORAGE_KEY_MAX];
    void *text = NULL;
    size_t bytes = 0;
    const struct tier *tier = &save->service->tiers[save->manifest_tier];
    int length = snprintf(key, sizeof key, "%s/" MANIFEST_NAME, save->dir);
    CHECK(length > 0 && (size_t)length < sizeof key);
    ERR_TRY(storage_fetch_all(tier->storage, key, MANIFEST_BYTES_MAX, &text, &bytes));
    save->manifest_text = text;
    save->manifest_bytes = bytes;
    if (checksum_bytes(text, bytes) == save->manifest_hash)
        return 0;
    return report_error(ERR_CORRUPT, NULL, "another manifest came from node %s",
                        tier_name(save->service, save->manifest_tier));
}

static void work_place(struct job *job)
{
    struct save *save = CONTAINER_OF(job, struct save, job);
    int error = save->manifest_tier == TIER_LOCAL ? 0 : fetch_manifest(save);
    if (error == 0)
        error = part_place(&save->summary, save->service->storage, save->manifest_text,
                           save->manifest_bytes, save->nonce, &save->places);
    if (error == 0)
        save->manifest_hash = checksum_bytes(save->manifest_text, save->manifest_bytes);
    else
        fault_take(&save->fault, error);
}

static void placed(struct event *event)
{
    struct save *save = CONTAINER_OF(event, struct save, job.done);
    bool is_durable = save->fault.code == 0;
    free(save->manifest_text);
    save->manifest_text = NULL;
    if (!is_durable)
        log_error("commit", "run %s, step %llu: its manifest could not be written: %s",
                  save->run->name, (unsigned long long)save->step, save->fault.message);
    save->fault = (struct fault){0}; /* the machine tries again */
    perform_action(
        save, participating_placed(&save->part, is_durable, save->manifest_tier != TIER_LOCAL));
}

/* Takes the manifest from the answer, or notes the node that the answer names. */
static int take_manifest(struct save *save, const Holdfast__V1__ReportPartReply *reply)
{
    save->manifest_tier = TIER_LOCAL;
    if (reply->manifest_at[0]) {
        save->manifest_tier = catalog_tier_of(save->service, reply->manifest_at);
        save->manifest_hash = reply->manifest_hash;
        log_info("commit", "run %s, step %llu: its manifest comes from node %s", save->run->name,
                 (unsigned long long)save->step, reply->manifest_at);
        if (save->manifest_tier != NUM_TIERS)
            return 0;
        return report_error(ERR_NOT_FOUND, "add it to nodes.peers", "no peer is named %s",
                            reply->manifest_at);
    }
    save->manifest_text = malloc(reply->manifest.len + 1);
    if (!save->manifest_text)
        return report_error(ERR_MEMORY, NULL, "no memory for a manifest");
    memcpy(save->manifest_text, reply->manifest.data, reply->manifest.len);
    save->manifest_bytes = reply->manifest.len;
    return 0;
}

static void place_manifest(struct save *save, const Holdfast__V1__ReportPartReply *reply)
{
    /* The next report makes the coordinator send the manifest itself. */
    if (take_manifest(save, reply) != 0) {
        log_warn("commit", "%s", report_line());
        perform_action(save,
                       participating_placed(&save->part, false, save->manifest_tier != TIER_LOCAL));
        return;
    }
    save->durable_ms = save->named_ms = clock_ms();
    save->job = (struct job){.work = work_place, .done.run = placed};
    loop_work(save->service->loop, &save->job);
}

/* ---- the verdict ---- */

static void end_over(struct save *save, const char *reason)
{
    struct commit_action action = {
        .kind = COMMIT_DISCARD, .save = save->id, .rank = -1, .reason = reason};
    save_discard(save->run, &action);
}

static void end_committed(struct save *save, const char *differ)
{
    struct commit_action action = {.kind = COMMIT_DONE, .save = save->id, .rank = -1};
    save->outcome = OUTCOME_DURABLE;
    /* Without memory the warning is lost. */
    save->told_of_replicas = differ[0] ? strdup(differ) : NULL;
    save_committed(save->run, &action);
}

static void end_kept(struct save *save)
{
    struct commit_action action = {.kind = COMMIT_KEEP,
                                   .save = save->id,
                                   .rank = -1,
                                   .reason = "its coordinator cannot tell whether every node that "
                                             "holds a shard has its manifest"};
    save->outcome = OUTCOME_DURABLE;
    save_keep(save->run, &action);
}

/* Performs the action that follows an answer, with the answer's data. */
static void perform_answer(struct save *save, enum participating_action action,
                           const Holdfast__V1__ReportPartReply *reply)
{
    switch (action) {
    case PARTICIPATING_PLACE:
        place_manifest(save, reply);
        return;
    case PARTICIPATING_DONE:
        end_committed(save, reply->replicas);
        return;
    case PARTICIPATING_KEEP:
        end_kept(save);
        return;
    case PARTICIPATING_DISCARD:
        end_over(save, reply->reason[0] ? reply->reason : "its coordinator has given it up");
        return;
    default:
        perform_action(save, action);
    }
}

static void handle_answer(struct save *save, const struct reporting *reporting,
                          const Holdfast__V1__ReportPartReply *reply)
{
    bool was_accepted = save->is_accepted;
    enum participating_action action =
        participating_answered(&save->part, &reporting->report, reply->verdict);
    if (action == PARTICIPATING_NOTHING)
        return; /* the part is already ending */
    for (uint32_t i = 0; i < reporting->num_parts; i++)
        save->remote[reporting->parts[i].rank].is_told |= reporting->digests[i] != NULL;
    save->is_accepted |= reply->accepted;
    if (save->is_accepted && !was_accepted)
        save_answer_accepted(save);
    perform_answer(save, action, reply);
}

static struct save *find_save(const struct run *run, const struct reporting *reporting)
{
    struct save *save = run->coordinator->saves;
    while (save && (!save->is_part || save->step != reporting->request.step ||
                    strcmp(save->nonce, reporting->nonce) != 0))
        save = save->next;
    return save;
}

static void reported(struct peer_call *peer_call)
{
    struct reporting *reporting = CONTAINER_OF(peer_call, struct reporting, peer_call);
    struct run *run;
    struct save *save = run_find(&run, peer_call->service, reporting->run, false) == 0
                            ? find_save(run, reporting)
                            : NULL;
    if (save && peer_call->fault.code != 0) {
        log_debug("commit", "run %s, step %llu: no answer of its coordinator: %s", run->name,
                  (unsigned long long)save->step, peer_call->fault.message);
        perform_action(save, participating_unanswered(&save->part));
    } else if (save) {
        handle_answer(save, reporting, (const Holdfast__V1__ReportPartReply *)peer_call->reply);
    }
    free_reporting(reporting);
}

static void send_report(struct save *save)
{
    struct service *service = save->service;
    loop_timer_cancel(service->loop, &save->report);
    unsigned tier = catalog_tier_of(service, save->run->coordinator->attempt->coordinator);
    bool is_peer = tier != NUM_TIERS && tier != TIER_LOCAL;
    struct reporting *reporting = is_peer ? calloc(1, sizeof *reporting) : NULL;
    if (!reporting || fill_report(reporting, save) != 0) {
        if (reporting)
            free_reporting(reporting);
        perform_action(save, participating_unanswered(&save->part));
        return;
    }
    reporting->peer_call =
        (struct peer_call){.service = service,
                           .peer = tier - TIER_PEER,
                           .method = "ReportPart",
                           .request = &reporting->request.base,
                           .reply_type = &holdfast__v1__report_part_reply__descriptor,
                           .before = sync_names,
                           .done = reported};
    peer_call_send(&reporting->peer_call);
}

static void report_again(struct timer *timer)
{
    part_report(CONTAINER_OF(timer, struct save, report));
}

static void perform_action(struct save *save, enum participating_action action)
{
    save->report.run = report_again;
    if (action == PARTICIPATING_SEND)
        send_report(save);
    else if (action == PARTICIPATING_WAIT)
        loop_timer(save->service->loop, &save->report, REPORT_MS);
}

void part_report(struct save *save)
{
    perform_action(save, participating_changed(&save->part));
}

void part_completed(struct run *run, const struct manifest_summary *summary)
{
    for (struct save *save = run->coordinator->saves; save; save = save->next)
        if (save->is_part && save->step == summary->step &&
            strcmp(save->nonce, summary->nonce) == 0)
            perform_action(save, participating_completed(&save->part));
}

/* ---- leaving ---- */

void part_leave(struct save *save)
{
    uint32_t num_durable = 0;
    for (uint32_t i = 0; i < save->world_size; i++)
        num_durable += save->stages[i].durable;
    enum participating_action action =
        participating_leave(&save->part, save->num_begun, num_durable);
    if (action == PARTICIPATING_NOTHING)
        return;
    if (action == PARTICIPATING_DISCARD) {
        end_over(save, "another attempt was opened, and its coordinator does not answer");
        return;
    }
    log_warn(
        "commit",
        "run %s, step %llu, attempt %llu: its files on this node are kept until node %s answers",
        save->run->name, (unsigned long long)save->step, (unsigned long long)save->attempt,
        save->run->coordinator->attempt->coordinator);
    save_answer_waiters(save, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED,
                        "its coordinator does not answer");
    save_free(save);
}
