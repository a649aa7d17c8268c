/* precommit_copy.c - copies a save to a peer before its commit, or from one. machines/precommit.c
 * decides when; this file does it.
 *
 * A checkpoint's bytes are final long before its commit: chunk after chunk is hashed and written
 * while the ranks copy; then come the table, the sync, the names, the manifest. Meanwhile each
 * shard is sent to the peer, part by part (shard_copy.c). A part is sent when every chunk of it is
 * in the file here, verified by the sums of the image. After the commit the drain continues: it
 * finds the parts by name and nonce, compares their sums with the manifest's table, and sends the
 * rest.
 *
 * With ranks on several nodes the first rank's node becomes whole by fetching the other nodes'
 * shards (queue.c). It does that part by part as well: a node reports how much of a file is
 * written, and no byte of that changes again. This node computes the sums of the bytes that came;
 * after the commit the manifest's table proves that they are the shard. The files are in the save's
 * own directory. A node without a part gets all shards, this node's and those of others, through
 * this node.
 *
 * Invariants (cited in the code), beside those of the machine:
 *   precommit_copy.B1  Only bytes that were hashed and written are sent, and they are verified
 *       again in the buffer that is sent.
 *   precommit_copy.B2  An image is held while a part of it is copied, never longer: no rank waits
 *       for a peer.
 *   precommit_copy.B3  When the lease ends, by a call or with this process, the peer removes files
 *       without a manifest (peers/replica.c).
 *   precommit_copy.B4  Files that come here lie under the mark of their save, which stays until the
 *       last of them is removed: a start removes them as well (commit.I11).
 *   precommit_copy.B5  Of a shard at another node only final bytes are read. They count only when
 *       the manifest's table has the same sums; else the file is removed, and all of it is sent
 *       again.
 *
 * A window's bytes leave memory as they are written: it is sent after its commit. So are the shards
 * that a node with a part lacks. */
#include "ckptd/tiers/precommit_copy.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/stage.h"
#include "ckptd/tiers/copy_io.h"
#include "ckptd/tiers/shard_copy.h"
#include "proto/base/report.h"
#include "proto/format/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum precommit_match match_of(const struct precommit_copy *early,
                                     const struct manifest_summary *summary)
{
    const struct manifest_summary *own = &early->manifest.summary;
    if (own->step != summary->step || own->attempt != summary->attempt ||
        strcmp(own->run, summary->run) != 0)
        return PRECOMMIT_OTHER;
    return strcmp(own->nonce, summary->nonce) == 0 ? PRECOMMIT_SAME : PRECOMMIT_SAME_STEP;
}

static void work_on(struct precommit_copy *early, void (*work)(struct job *),
                    void (*done)(struct event *))
{
    early->job = (struct job){.work = work, .done.run = done};
    tier_work(early->service, early->tier, &early->job);
}

uint64_t precommit_copy_count_bytes(const struct precommit_copy *early)
{
    uint64_t bytes = early->bytes_sent;
    for (uint32_t i = 0; i < early->num_ships; i++)
        bytes += early->ships[i].bytes_sent;
    return bytes;
}

/* ---- the end ---- */

bool precommit_left_has_file(const struct precommit_left *left, uint32_t shard)
{
    return shard < left->count && left->ships[shard].is_made;
}

void precommit_left_drop(struct precommit_left *left, struct storage *storage,
                         const struct manifest *manifest)
{
    for (uint32_t i = 0; i < left->count; i++)
        if (left->ships[i].is_ours)
            copy_io_remove_early(&left->ships[i], storage, &manifest->summary);
}

void precommit_left_leave(struct precommit_left *left)
{
    for (uint32_t i = 0; i < left->count; i++)
        copy_io_close(&left->ships[i]);
}

void precommit_left_free(struct precommit_left *left)
{
    for (uint32_t i = 0; i < left->count; i++)
        shard_copy_close(&left->ships[i]);
    free(left->ships);
    *left = (struct precommit_left){.ships = NULL};
}

static struct precommit_left take_out(struct precommit_copy *early)
{
    struct precommit_left left = {early->claim, early->ships, early->num_ships};
    early->bytes_sent = precommit_copy_count_bytes(early);
    early->claim = (struct hold){.storage = NULL};
    early->ships = NULL;
    early->num_ships = 0;
    return left;
}

static void tell_drain(struct precommit_copy *early)
{
    void (*given)(struct precommit_copy *) = early->given;
    early->given = NULL;
    if (given)
        given(early);
}

static void tell_save(struct precommit_copy *early)
{
    void (*left)(void *) = early->left;
    early->left = NULL;
    if (left)
        left(early->user);
}

static void begin_next(struct precommit_copy *early)
{
    const struct precommit_save next = early->next;
    if (precommit_next(&early->machine))
        precommit_copy_begin(early, &next);
}

/* precommit_copy.B4. */
static void work_remove(struct job *job)
{
    struct precommit_copy *early = CONTAINER_OF(job, struct precommit_copy, job);
    struct precommit_left left = {.ships = early->ships, .count = early->num_ships};
    precommit_left_drop(&left, early->service->tiers[early->tier].storage, &early->manifest);
}

/* precommit_copy.B3. */
static void work_close(struct job *job)
{
    struct precommit_copy *early = CONTAINER_OF(job, struct precommit_copy, job);
    struct precommit_left left = {.ships = early->ships, .count = early->num_ships};
    precommit_left_leave(&left);
    hold_end(&early->claim, false);
}

static void perform_action(struct precommit_copy *early, enum precommit_action action);

static void cleanup_done(struct event *event)
{
    struct precommit_copy *early = CONTAINER_OF(event, struct precommit_copy, job.done);
    perform_action(early, precommit_gone(&early->machine));
}

void precommit_copy_end(struct precommit_copy *early, const struct stage *stages, bool is_committed)
{
    if (stages)
        perform_action(early, precommit_ended(&early->machine, stages, is_committed));
}

bool precommit_copy_is_over(struct precommit_copy *early, const struct stage *stages,
                            void (*left)(void *user), void *user)
{
    if (!precommit_has(&early->machine, stages))
        return true;
    early->left = left;
    early->user = user;
    return false;
}

void precommit_copy_pass(struct precommit_copy *early)
{
    perform_action(early, precommit_give(&early->machine, PRECOMMIT_OTHER));
}

bool precommit_copy_give(struct precommit_copy *early, const struct manifest_summary *summary,
                         void (*given)(struct precommit_copy *early))
{
    enum precommit_match match = match_of(early, summary);
    bool is_in_the_way = precommit_is_in_the_way(&early->machine, match);
    if (is_in_the_way)
        early->given = given;
    perform_action(early, precommit_give(&early->machine, match));
    return !is_in_the_way;
}

struct precommit_left precommit_copy_take(struct precommit_copy *early)
{
    struct precommit_left left = {.ships = NULL};
    if (precommit_take(&early->machine)) {
        left = take_out(early);
        begin_next(early);
    }
    return left;
}

void precommit_copy_close(struct precommit_copy *early)
{
    struct precommit_left left = take_out(early);
    early->machine = (struct precommit){0};
    hold_leave(&left.claim);
    precommit_left_leave(&left);
    precommit_left_free(&left);
}

/* ---- progress ---- */

/* precommit.E5: only the first error is logged. */
static void report_failure(const struct precommit_copy *early, enum precommit_action action,
                           const char *why)
{
    const struct manifest_summary *summary = &early->manifest.summary;
    bool is_coming = early->tier == TIER_LOCAL;
    if (action == PRECOMMIT_STOP)
        log_info("drain", "run %s, step %llu %s %s only after its commit: %s", summary->run,
                 (unsigned long long)summary->step, is_coming ? "comes" : "goes to node",
                 is_coming ? "here" : tier_name(early->service, early->tier), why);
}

static bool is_moving(const struct precommit_copy *early)
{
    bool moves = false;
    for (uint32_t i = 0; i < early->num_ships; i++)
        moves |= !shard_copy_is_at_rest(&early->ships[i]);
    return moves;
}

static void at_rest(struct shard_copy *copy)
{
    struct precommit_copy *early = copy->early;
    bool has_failed = copy->fault.code != 0;
    enum precommit_action action = precommit_rested(&early->machine, has_failed, is_moving(early));
    if (has_failed)
        report_failure(early, action, copy->fault.message);
    perform_action(early, action);
}

static void work_claim(struct job *job)
{
    struct precommit_copy *early = CONTAINER_OF(job, struct precommit_copy, job);
    early->outcome =
        hold_take(&early->claim, early->service, early->tier, &early->manifest.summary);
}

/* With ranks on several nodes some ranks here may begin later. */
static void start_ships(struct precommit_copy *early)
{
    for (uint32_t i = 0;
         i < early->num_ships && precommit_may_start(&early->machine, early->stages); i++) {
        const struct image *image = early->stages[i].image;
        if (early->tier != TIER_LOCAL && image && !image->is_window && !early->ships[i].is_early)
            shard_copy_start_early(&early->ships[i], &early->stages[i], &early->manifest);
    }
}

static void claimed(struct event *event)
{
    struct precommit_copy *early = CONTAINER_OF(event, struct precommit_copy, job.done);
    bool is_ours = early->outcome == PUBLICATION_DURABLE;
    enum precommit_action action = precommit_claimed(&early->machine, is_ours);
    if (!is_ours)
        report_failure(early, action, "its directory there could not be claimed");
    perform_action(early, action);
}

static void stop_ships(struct precommit_copy *early)
{
    for (uint32_t i = 0; i < early->num_ships; i++)
        shard_copy_stop(&early->ships[i]);
}

static void perform_action(struct precommit_copy *early, enum precommit_action action)
{
    struct precommit_left left;
    switch (action) {
    case PRECOMMIT_NOTHING:
    case PRECOMMIT_LATER:
        break;
    case PRECOMMIT_CLAIM:
        work_on(early, work_claim, claimed);
        break;
    case PRECOMMIT_START:
        start_ships(early);
        break;
    case PRECOMMIT_STOP:
        stop_ships(early);
        perform_action(early, precommit_rested(&early->machine, false, is_moving(early)));
        break;
    case PRECOMMIT_GIVE:
        tell_drain(early);
        break;
    case PRECOMMIT_REMOVE:
        work_on(early, work_remove, cleanup_done);
        break;
    case PRECOMMIT_CLOSE:
        work_on(early, work_close, cleanup_done);
        tell_save(early);
        break;
    case PRECOMMIT_END:
        left = take_out(early);
        precommit_left_free(&left);
        tell_drain(early);
        begin_next(early);
        break;
    }
}

void precommit_copy_advance(struct precommit_copy *early, const struct stage *stages)
{
    if (!precommit_may_start(&early->machine, stages))
        return;
    start_ships(early);
    copy_queue_advance(early->queue);
}

void precommit_copy_tell(struct precommit_copy *early, const struct stage *stages,
                         const struct precommit_told *told)
{
    if (!precommit_may_start(&early->machine, stages))
        return;
    struct shard_copy *copy = &early->ships[told->rank];
    if (told->written > 0 && !copy->is_early)
        shard_copy_start_pulled(copy, told->rank, told->from, told->geometry, &early->manifest);
    copy->written = told->written;
    copy_queue_advance(early->queue);
}

/* ---- the beginning ---- */

static bool may_go(const struct precommit_save *save)
{
    if (save->places->num_shards > 0)
        return true;
    for (uint32_t i = 0; i < save->world_size; i++)
        if (!save->stages[i].image || save->stages[i].image->is_window)
            return false;
    return true;
}

static void take_summary(struct manifest_summary *out, const struct precommit_save *save)
{
    *out = (struct manifest_summary){.step = save->step,
                                     .attempt = save->attempt,
                                     .world_size = save->world_size,
                                     .shards = save->world_size};
    snprintf(out->run, sizeof out->run, "%s", save->run);
    snprintf(out->nonce, sizeof out->nonce, "%s", save->nonce);
}

static void open_ships(struct precommit_copy *early, struct shard_copy *ships, uint32_t count)
{
    early->ships = ships;
    early->num_ships = count;
    for (uint32_t i = 0; i < count; i++) {
        shard_copy_open(&ships[i], early->queue);
        ships[i].early = early;
        ships[i].at_rest = at_rest;
    }
}

void precommit_copy_begin(struct precommit_copy *early, const struct precommit_save *save)
{
    bool is_coming = early->tier == TIER_LOCAL, is_free = early->machine.state == PRECOMMIT_FREE;
    if (!is_coming && !may_go(save))
        return;
    struct shard_copy *ships = is_free ? calloc(save->world_size, sizeof *ships) : NULL;
    if (is_free && !ships)
        return;
    enum precommit_action action = precommit_begin(&early->machine, save->stages, !is_coming);
    if (action == PRECOMMIT_LATER) {
        early->next = *save;
        return;
    }
    take_summary(&early->manifest.summary, save);
    open_ships(early, ships, save->world_size);
    early->stages = save->stages;
    perform_action(early, action);
}

void precommit_copy_init(struct precommit_copy *early, struct service *service,
                         enum tier_index tier, struct copy_queue *queue)
{
    *early = (struct precommit_copy){.service = service, .tier = tier, .queue = queue};
}
