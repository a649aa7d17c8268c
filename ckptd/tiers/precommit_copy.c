/* precommit_copy.c - what of a save goes to a peer before its commit, or comes from one.
 *
 *   all ranks have begun ──► GOING ──commit──► AWAITED ──► STOPPING ──► the drain's
 *                              │ error, given up  │ another goes first
 *                              ▼                  ▼
 *                        STOPPING, dropped ──► CLOSING: the lease goes ──► (free)
 *
 * A checkpoint's bytes are final long before it is committed: chunk after chunk is hashed and
 * written while its ranks copy, then come the table, the sync, the names, the manifest. So each
 * shard is on its way to the peer meanwhile, part by part (shard_copy.c): a part goes when every
 * chunk of it is in the file here, proven by the sums of the image. At the commit the drain goes on
 * from there: it finds what went here, by name and nonce, holds the sums by which it was proven
 * against the manifest's table, and sends the rest.
 *
 * Of ranks on several nodes the node of the first one becomes whole by fetching the other nodes'
 * shards (queue.c). It does so part by part, too: a node tells how much of a file is written, and
 * no byte of that changes any more. The sums are made here, of what came; the manifest's table says
 * at the commit whether that is the shard. The files lie in the save's own directory. A node that
 * has no part gets all shards, those of this node and those of others, through this one.
 *
 * Invariants (cited in the code):
 *   precommit.E1  Nothing is published here, so no peer lists, loads or counts what is not
 *       committed.
 *   precommit.E2  Only what was hashed and written goes, and it is proven again in the buffer that
 *       is sent.
 *   precommit.E3  An image is held while a part of it is copied, never longer: no rank waits for a
 *       peer.
 *   precommit.E4  What the save leaves goes from the peer: with the lease, which ends with this
 *       call or this process, the peer removes what has no manifest (peers/replica.c).
 *   precommit.E5  An error of the peer ends this transfer alone. The drain takes its own way at the
 *       commit.
 *   precommit.E6  The drain touches the directory only when nothing of this is under way in it.
 *   precommit.E7  What comes here lies under the mark of its save, which stays until the last of it
 *       is removed: a start removes it, too (commit.I11).
 *   precommit.E8  Of a shard at another node only what is final there is read, and it counts only
 *       when the manifest's table has the same sums; else its file goes, and all of it comes again.
 *
 * One save at a time for each peer, and one that comes; the newest of the others waits for its end.
 * A window's bytes leave memory as they are written: behind its commit it goes. So does what a node
 * lacks that has a part. */
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

static bool is_of(const struct precommit *early, const struct manifest_summary *summary)
{
    const struct manifest_summary *own = &early->manifest.summary;
    return own->step == summary->step && own->attempt == summary->attempt &&
           strcmp(own->run, summary->run) == 0;
}

static void work_on(struct precommit *early, void (*work)(struct job *),
                    void (*done)(struct event *))
{
    early->job = (struct job){.work = work, .done.run = done};
    tier_work(early->service, early->tier, &early->job);
}

uint64_t precommit_count_bytes(const struct precommit *early)
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

static struct precommit_left take_out(struct precommit *early)
{
    struct precommit_left left = {early->claim, early->ships, early->num_ships};
    early->bytes_sent = precommit_count_bytes(early);
    early->claim = (struct hold){.storage = NULL};
    early->ships = NULL;
    early->num_ships = 0;
    early->of = NULL;
    early->state = PRECOMMIT_FREE;
    return left;
}

static void tell(struct precommit *early)
{
    void (*given)(struct precommit *) = early->given;
    early->given = NULL;
    if (given)
        given(early);
}

static void tell_save(struct precommit *early)
{
    void (*left)(void *) = early->left;
    early->left = NULL;
    if (left)
        left(early->user);
}

static void begin_next(struct precommit *early)
{
    const struct precommit_save next = early->next;
    early->next.stages = NULL;
    if (next.stages)
        precommit_begin(early, &next);
}

/* precommit.E7. */
static void work_remove(struct job *job)
{
    struct precommit *early = CONTAINER_OF(job, struct precommit, job);
    struct precommit_left left = {.ships = early->ships, .count = early->num_ships};
    precommit_left_drop(&left, early->service->tiers[early->tier].storage, &early->manifest);
}

/* precommit.E4. */
static void work_close(struct job *job)
{
    struct precommit *early = CONTAINER_OF(job, struct precommit, job);
    struct precommit_left left = {.ships = early->ships, .count = early->num_ships};
    precommit_left_leave(&left);
    hold_end(&early->claim, false);
}

static void closed(struct event *event)
{
    struct precommit *early = CONTAINER_OF(event, struct precommit, job.done);
    struct precommit_left left = take_out(early);
    precommit_left_free(&left);
    tell(early);
    begin_next(early);
}

/* Its save does not wait for a peer. */
static void removed(struct event *event)
{
    struct precommit *early = CONTAINER_OF(event, struct precommit, job.done);
    early->of = NULL;
    work_on(early, work_close, closed);
    tell_save(early);
}

/* When nothing is under way the drain takes it, or it goes. */
static void look_whether_stopped(struct precommit *early)
{
    bool is_at_rest = early->state == PRECOMMIT_STOPPING && !early->is_claiming;
    for (uint32_t i = 0; i < early->num_ships; i++)
        is_at_rest = is_at_rest && shard_copy_is_at_rest(&early->ships[i]);
    if (!is_at_rest)
        return;
    if (early->is_dropped) {
        early->state = PRECOMMIT_CLOSING;
        work_on(early, work_remove, removed);
        return;
    }
    tell(early);
}

/* No more of the save is begun. */
static void leave_stages(struct precommit *early)
{
    early->stages = NULL;
    for (uint32_t i = 0; i < early->num_ships; i++)
        shard_copy_stop(&early->ships[i]);
}

static void drop(struct precommit *early)
{
    if (early->state == PRECOMMIT_FREE || early->state == PRECOMMIT_CLOSING)
        return;
    early->is_dropped = true;
    early->state = PRECOMMIT_STOPPING;
    leave_stages(early);
    look_whether_stopped(early);
}

void precommit_end(struct precommit *early, const struct stage *stages, bool is_committed)
{
    if (stages && early->next.stages == stages)
        early->next.stages = NULL;
    if (!stages || early->stages != stages)
        return;
    if (!is_committed) {
        drop(early);
        return;
    }
    early->state = PRECOMMIT_AWAITED;
    leave_stages(early);
}

bool precommit_is_over(struct precommit *early, const struct stage *stages,
                       void (*left)(void *user), void *user)
{
    if (early->of != stages)
        return true;
    early->left = left;
    early->user = user;
    return false;
}

void precommit_pass(struct precommit *early)
{
    if (early->state == PRECOMMIT_AWAITED)
        drop(early);
}

/* precommit.E6. */
bool precommit_give(struct precommit *early, const struct manifest_summary *summary,
                    void (*given)(struct precommit *early))
{
    if (early->state == PRECOMMIT_FREE || !is_of(early, summary)) {
        precommit_pass(early);
        return true;
    }
    early->given = given;
    if (early->state != PRECOMMIT_AWAITED ||
        strcmp(early->manifest.summary.nonce, summary->nonce) != 0) {
        drop(early); /* of a save of this step that was given up */
        return false;
    }
    early->state = PRECOMMIT_STOPPING;
    look_whether_stopped(early);
    return false;
}

struct precommit_left precommit_take(struct precommit *early,
                                     const struct manifest_summary *summary)
{
    bool is_good =
        early->state == PRECOMMIT_STOPPING && !early->is_dropped && is_of(early, summary);
    struct precommit_left left = {.ships = NULL};
    if (is_good) {
        left = take_out(early);
        begin_next(early);
    }
    return left;
}

void precommit_close(struct precommit *early)
{
    struct precommit_left left = take_out(early);
    hold_leave(&left.claim);
    precommit_left_leave(&left);
    precommit_left_free(&left);
}

/* ---- on its way ---- */

/* precommit.E5. */
static void fail(struct precommit *early, const char *why)
{
    const struct manifest_summary *summary = &early->manifest.summary;
    bool is_coming = early->tier == TIER_LOCAL;
    if (!early->is_dropped)
        log_info("drain", "run %s, step %llu %s %s behind its commit alone: %s", summary->run,
                 (unsigned long long)summary->step, is_coming ? "comes" : "goes to node",
                 is_coming ? "here" : tier_name(early->service, early->tier), why);
    drop(early);
}

static void at_rest(struct shard_copy *copy)
{
    struct precommit *early = copy->early;
    if (copy->fault.code != 0)
        fail(early, copy->fault.message);
    else
        look_whether_stopped(early);
}

static void work_claim(struct job *job)
{
    struct precommit *early = CONTAINER_OF(job, struct precommit, job);
    early->outcome =
        hold_take(&early->claim, early->service, early->tier, &early->manifest.summary);
}

/* Of ranks on several nodes some here may begin later. */
static void start_ships(struct precommit *early)
{
    for (uint32_t i = 0; i < early->num_ships && early->state == PRECOMMIT_GOING; i++) {
        const struct image *image = early->stages[i].image;
        if (early->tier != TIER_LOCAL && image && !image->is_window && !early->ships[i].is_early)
            shard_copy_start_early(&early->ships[i], &early->stages[i], &early->manifest);
    }
}

static void claimed(struct event *event)
{
    struct precommit *early = CONTAINER_OF(event, struct precommit, job.done);
    early->is_claiming = false;
    if (early->outcome != PUBLICATION_DURABLE) {
        fail(early, "its directory there could not be claimed");
        return;
    }
    start_ships(early);
    look_whether_stopped(early);
}

void precommit_advance(struct precommit *early, const struct stage *stages)
{
    if (early->stages != stages)
        return;
    if (!early->is_claiming)
        start_ships(early);
    copy_queue_look(early->queue);
}

void precommit_tell(struct precommit *early, const struct stage *stages,
                    const struct precommit_told *told)
{
    if (early->stages != stages || early->state != PRECOMMIT_GOING || early->is_claiming)
        return;
    struct shard_copy *copy = &early->ships[told->rank];
    if (told->written > 0 && !copy->is_early)
        shard_copy_start_pulled(copy, told->rank, told->from, told->geometry, &early->manifest);
    copy->written = told->written;
    copy_queue_look(early->queue);
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

void precommit_begin(struct precommit *early, const struct precommit_save *save)
{
    bool is_coming = early->tier == TIER_LOCAL;
    if (!is_coming && !may_go(save))
        return;
    if (early->state != PRECOMMIT_FREE) {
        early->next = *save;
        return;
    }
    early->ships = calloc(save->world_size, sizeof *early->ships);
    if (!early->ships)
        return;
    take_summary(&early->manifest.summary, save);
    early->num_ships = save->world_size;
    for (uint32_t i = 0; i < early->num_ships; i++) {
        shard_copy_open(&early->ships[i], early->queue);
        early->ships[i].early = early;
        early->ships[i].at_rest = at_rest;
    }
    early->of = early->stages = save->stages;
    early->is_dropped = false;
    early->is_claiming = !is_coming; /* precommit.E7 */
    early->state = PRECOMMIT_GOING;
    if (!is_coming)
        work_on(early, work_claim, claimed);
}

void precommit_init(struct precommit *early, struct service *service, enum tier_index tier,
                    struct copy_queue *queue)
{
    *early = (struct precommit){.service = service, .tier = tier, .queue = queue};
}
