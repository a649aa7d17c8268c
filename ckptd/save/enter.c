/* enter.c - see enter.h.
 *
 * The first rank's call promises the save its disk space, or refuses it (ERR_SPACE); the other
 * ranks' calls are refused in the same way while there is no space. If the trash holds enough, it
 * is emptied and the call waits (AWAITS_ROOM). Else retention runs, since without a commit no other
 * event makes space. */
#include "ckptd/save/enter.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/quota.h"
#include "ckptd/attempt/remote_lease.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/coordinating.h"
#include "ckptd/memory/stage.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/save/save.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "storage/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- the save ---- */

static int check_state_json(const char *text)
{
    json_t *json = NULL;
    int error = attempt_read_object(&json, text, "state_json");
    json_decref(json);
    return error;
}

/* Promises space for all shards, the manifest, the mark and the directory. It reads the counters of
 * a mounted file system, and does not wait for the disk. AWAITS_ROOM: the trash is being
 * emptied. */
static int promise_space(struct save *save, bool may_wait)
{
    struct service *service = save->service;
    struct storage_space space;
    int error = storage_space(service->storage, &space);
    uint64_t here = 0;
    for (uint32_t i = 0; i < save->world_size; i++) {
        save->bytes += save->group->ranks[i].geometry.file_bytes;
        here += save->group->ranks[i].node == 0 ? save->group->ranks[i].geometry.file_bytes : 0;
    }
    if (error == 0)
        error = save_check_quota(save->run, save->bytes);
    if (error == 0) {
        uint64_t files = save_num_files(save->world_size);
        struct ledger_promise lack = ledger_deficit(&service->ledger, &space, here, files);
        error = ledger_promise(&service->ledger, &save->promise, &space, here, files);
        if (error == ERR_SPACE && may_wait &&
            service->hooks->make_room(service, lack.bytes, lack.inodes))
            return AWAITS_ROOM;
    }
    if (error != 0)
        outcomes_refused(save->run, save->step, save->attempt, error);
    if (error == ERR_SPACE)
        save->run->service->hooks->apply_retention(save->run); /* room for a later save */
    return error;
}

int enter_new(struct save **out, struct run *run, uint64_t step, bool may_wait)
{
    struct save *save = calloc(1, sizeof *save);
    struct stage *stages = calloc(run->coordinator->machine.world_size, sizeof *stages);
    struct remote_part *remote = calloc(run->coordinator->machine.world_size, sizeof *remote);
    struct checkpoint *checkpoint = NULL;
    int error = save && stages && remote ? manifest_new_nonce(save->nonce)
                                         : report_error(ERR_MEMORY, NULL, "no memory for a save");
    if (error == 0)
        error = places_copy(&save->places, &run->coordinator->group->places);
    if (error == 0)
        error = catalog_new(&checkpoint, run, step, run->coordinator->machine.attempt);
    if (error != 0) {
        if (save)
            places_free(&save->places);
        free(save);
        free(stages);
        free(remote);
        return error;
    }
    save->service = run->service;
    save->run = run;
    save->group = run->coordinator->group;
    save->step = step;
    save->attempt = run->coordinator->machine.attempt;
    save->stages = stages;
    save->remote = remote;
    save->checkpoint = checkpoint;
    save->world_size = run->coordinator->machine.world_size;
    save->begun_ms = save->ended_ms = clock_ms();
    shard_dir_key(save->dir, sizeof save->dir, run->name, step, save->attempt);
    error = promise_space(save, may_wait);
    if (error != 0) {
        catalog_drop(checkpoint);
        places_free(&save->places);
        free(stages);
        free(remote);
        free(save);
        return error;
    }
    pthread_mutex_init(&save->mark_lock, NULL);
    save->next = run->coordinator->saves;
    run->coordinator->saves = save;
    attempt_keep_parent(run);
    *out = save;
    return 0;
}

static int set_state(struct save *save, const char *state_json, uint32_t rank)
{
    if (save->state_json && (rank != 0 || !state_json || !*state_json))
        return 0;
    char *copy = strdup(rank == 0 && state_json && *state_json ? state_json : "{}");
    if (!copy)
        return report_error(ERR_MEMORY, NULL, "no memory for the state of a save");
    free(save->state_json);
    save->state_json = copy;
    return 0;
}

int enter_check(struct run *run, const struct beginner *rank, int64_t *until_ms)
{
    struct service *service = run->service;
    bool is_first = !commit_find_step(&run->coordinator->machine, rank->step);
    /* The other ranks may join a save that one rank has begun, also during a shutdown. */
    int error = is_first ? service_check_last_saves(service) : 0;
    if (error == 0)
        error = service_check_online(service);
    if (error == 0)
        error = remote_lease_check(run, rank->attempt);
    if (error == 0)
        error = commit_may_begin(&run->coordinator->machine, rank->attempt, rank->rank, rank->step);
    if (error == 0 && is_first)
        error = quota_check_save(run);
    if (error == 0 && is_first) {
        error = catalog_check_room(service);
        if (error != 0) {
            *until_ms = 0; /* waiting does not free space */
            outcomes_refused(run, rank->step, rank->attempt, error);
            run->service->hooks->apply_retention(run);
        } else if (service->hooks->is_being_removed(service, run->name, rank->step, rank->attempt))
            error = report_error(ERR_BUSY, "try again", "rubbish of step %llu is being removed",
                                 (unsigned long long)rank->step);
    }
    if (error == 0 && catalog_find(run, rank->step, rank->attempt))
        error = report_error(ERR_EXISTS, NULL, "step %llu of attempt %llu is committed already",
                             (unsigned long long)rank->step, (unsigned long long)rank->attempt);
    if (error == 0 && (!run->coordinator->group || !run->coordinator->group->planned ||
                       !run->coordinator->attempt))
        error =
            report_error(ERR_STALE, "describe the tensors again", "the session belongs to no plan");
    return error == 0 ? check_state_json(rank->state_json) : error;
}

void enter_leave(struct run *run, uint32_t rank, uint64_t step)
{
    struct commit_actions actions = {0};
    commit_leave(&run->coordinator->machine, &actions, rank, step);
    run_perform(run, &actions);
}

int enter_save(struct save **out, struct commit_actions *actions, struct run *run,
               const struct beginner *rank, bool may_wait)
{
    struct commit *machine = &run->coordinator->machine;
    const struct commit_save *known = commit_find_step(machine, rank->step);
    struct save *save = known ? save_find(run, known->id) : NULL;
    int error = 0;
    if (!save)
        error = enter_new(&save, run, rank->step, may_wait);
    if (error == 0)
        error = set_state(save, rank->state_json, rank->rank);
    if (error != 0) {
        if (save && !known)
            save_free(save);
        return error;
    }
    error = commit_begin(machine, actions, &save->id, rank->attempt, rank->rank, rank->step);
    CHECK(error == 0); /* enter_check() has allowed it */
    *out = save;
    return 0;
}

/* ---- ranks of other nodes ---- */

/* The answer was lost and is asked for again. */
static bool has_begun(const struct run *run, const Holdfast__V1__BeginPartRequest *request,
                      char out_nonce[33])
{
    for (const struct save *save = run->coordinator->saves; save; save = save->next) {
        if (save->step != request->step || save->attempt != request->attempt || save->discarding ||
            request->rank >= save->world_size || save->remote[request->rank].asked == 0 ||
            save->remote[request->rank].asked != request->asked)
            continue;
        memcpy(out_nonce, save->nonce, sizeof save->nonce);
        return true;
    }
    return false;
}

/* Takes the ended saves that the rank has announced at its node, before that node's report comes
 * (coordinating.C8). */
static void take_ended(struct run *run, const Holdfast__V1__BeginPartRequest *request)
{
    for (struct save *save = run->coordinator->saves; save; save = save->next)
        for (size_t i = 0; i < request->n_ended; i++) {
            struct commit_actions actions = {0};
            if (save->is_part || strcmp(save->nonce, request->ended[i]) != 0)
                continue;
            save->ended_ms = clock_ms();
            commit_ended(&run->coordinator->machine, &actions, save->id, request->rank);
            save_answer_accepted(save);
        }
}

static int begin_remote(struct run *run, const Holdfast__V1__BeginPartRequest *request,
                        char out_nonce[33])
{
    struct commit_actions actions = {0};
    const struct beginner rank = {request->attempt, request->step, request->rank,
                                  request->state_json};
    struct save *save;
    int64_t until_ms;
    int error = enter_check(run, &rank, &until_ms);
    if (error == ERR_ABORTED) {
        struct report_text text;
        report_keep(&text);
        enter_leave(run, request->rank, request->step);
        report_restore(&text, error);
    }
    if (error != 0)
        return error;
    enter_leave(run, request->rank, request->step);
    ERR_TRY(enter_save(&save, &actions, run, &rank, false));
    save->remote[request->rank].asked = request->asked;
    save->remote[request->rank].heard_ms = clock_ms();
    memcpy(out_nonce, save->nonce, sizeof save->nonce);
    run_perform(run, &actions);
    return 0;
}

int enter_remote(struct service *service, const Holdfast__V1__BeginPartRequest *request,
                 uint32_t node, char out_nonce[33])
{
    struct run *run;
    ERR_TRY(run_find(&run, service, request->run, false));
    const struct group *group = run->coordinator->group;
    bool has_plan = group && group->planned && run->coordinator->attempt;
    ERR_TRY(coordinating_check(&run->coordinator->machine, request->attempt, has_plan));
    if (request->rank >= group->world_size || group->ranks[request->rank].node != node)
        return report_error(ERR_DENIED, NULL, "rank %u is not one of that node", request->rank);
    if (request->asked == 0)
        return report_error(ERR_INVALID, NULL, "a part has no number");
    take_ended(run, request);
    return has_begun(run, request, out_nonce) ? 0 : begin_remote(run, request, out_nonce);
}
