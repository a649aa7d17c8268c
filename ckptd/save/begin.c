/* begin.c - BeginSave: an image for one rank's part of a save.
 *
 *   the call ──► may this rank save this step? ──► an image: a spare one, free memory, or memory
 *   that nobody needs more ──► zeroed where another run had it ──► the save, its stage, the answer
 *
 * Limits: SLOTS_PER_RANK images a rank, COMMIT_SAVES_MAX saves a run, the pool: ERR_BUSY. */
#include "ckptd/ckptd.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An image whose segments are being zeroed, and the call that waits for it. */
struct cleaning {
    struct service *service;
    struct image *image;
    struct rpc_call *call;
    const Holdfast__V1__BeginSaveRequest *request;
    struct job job;
};

static void work_clean(struct job *job)
{
    struct cleaning *cleaning = CONTAINER_OF(job, struct cleaning, job);
    pool_clean(cleaning->service->pool, cleaning->image->segments, cleaning->image->num_segments);
}

static void cleaned(struct event *event)
{
    struct cleaning *cleaning = CONTAINER_OF(event, struct cleaning, job.done);
    cleaning->image->readers--;
    image_settle(cleaning->image);
    save_begin(cleaning->service, cleaning->call, cleaning->request); /* once more, from the top */
    free(cleaning);
}

/* Zeroes what another run left. Returns 1 when the call will be taken up again later. */
static int clean_image(struct image *image, struct rpc_call *call,
                       const Holdfast__V1__BeginSaveRequest *request)
{
    struct service *service = image->service;
    if (!pool_is_dirty(service->pool, image->segments, image->num_segments))
        return 0;
    struct cleaning *cleaning = calloc(1, sizeof *cleaning);
    if (!cleaning)
        return report_error(ERR_MEMORY, NULL, "no memory to begin a save");
    *cleaning = (struct cleaning){.service = service,
                                  .image = image,
                                  .call = call,
                                  .request = request,
                                  .job = {.work = work_clean, .done.run = cleaned}};
    image->readers++; /* keeps it from being used or reclaimed meanwhile */
    loop_work(service->loop, &cleaning->job);
    return 1;
}

/* May the next save go into this slot? 0: no; higher is better. */
static int slot_rank(const struct session *session, uint32_t slot)
{
    const struct image *image = session->slots[slot];
    if (!image)
        return 2;
    if (image->readers > 0 || image->busy > 0)
        return 0;
    if (image->state == IMAGE_SPARE)
        return 3;
    return image->state == IMAGE_RESIDENT ? 1 : 0; /* the newest in memory: the last resort */
}

static int fill_slot(struct session *session, uint32_t slot)
{
    const struct group_rank *rank = &session->run->group->ranks[session->rank];
    struct image *image = NULL;
    int error = image_new(&image, session->service, &rank->geometry);
    if (error != 0)
        return error;
    error = image_take_segments(image, session->run);
    if (error != 0) {
        image_free(image);
        return error;
    }
    image->session = session;
    image->slot = slot;
    session->slots[slot] = image;
    return 0;
}

/* Never at the cost of another, and never what must be zeroed first: then the save sees to it. */
uint32_t save_lend_ahead(uint32_t *out, struct session *session)
{
    struct service *service = session->service;
    uint64_t bytes = session->run->group->ranks[session->rank].geometry.file_bytes;
    uint32_t need = image_segments_needed(service, bytes), count = 0;
    for (uint32_t slot = 0; slot < SLOTS_PER_RANK; slot++) {
        if (pool_free_count(service->pool) < need || fill_slot(session, slot) != 0)
            return count;
        struct image *image = session->slots[slot];
        if (pool_is_dirty(service->pool, image->segments, image->num_segments)) {
            image_free(image);
            return count;
        }
        memcpy(out + count, image->segments, need * sizeof *out);
        count += need;
    }
    return count;
}

/* The slot for the next save, its image SPARE and with segments. ERR_BUSY. */
static int choose_slot(uint32_t *out_slot, struct session *session)
{
    int error = ERR_BUSY;
    report_error(ERR_BUSY, "skip this save, or wait for the one before",
                 "both images of rank %u are being written", session->rank);
    for (int rank = 3; rank >= 1; rank--) {
        for (uint32_t slot = 0; slot < SLOTS_PER_RANK; slot++) {
            if (slot_rank(session, slot) != rank)
                continue;
            *out_slot = slot;
            if (rank == 1)
                image_leave_checkpoint(session->slots[slot]);
            if (rank != 2)
                return 0;
            error = fill_slot(session, slot);
            if (error != ERR_BUSY)
                return error;
        }
    }
    return error;
}

static int check_state_json(const char *text)
{
    json_error_t detail;
    if (!text || !*text)
        return 0;
    if (strlen(text) > JSON_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "state_json is larger than %u bytes",
                            JSON_BYTES_MAX);
    json_t *json = json_loads(text, 0, &detail);
    bool object = json_is_object(json);
    json_decref(json);
    return object ? 0 : report_error(ERR_INVALID, NULL, "state_json is not a JSON object");
}

static int new_save(struct save **out, struct session *session, uint64_t step)
{
    struct run *run = session->run;
    uint8_t nonce[16];
    struct save *save = calloc(1, sizeof *save);
    struct stage *stages = calloc(run->machine.world_size, sizeof *stages);
    if (!save || !stages) {
        free(save);
        free(stages);
        return report_error(ERR_MEMORY, NULL, "no memory for a save");
    }
    service_random(nonce, sizeof nonce);
    for (uint32_t i = 0; i < sizeof nonce; i++)
        snprintf(save->nonce + 2 * i, 3, "%02x", nonce[i]);
    save->service = session->service;
    save->run = run;
    save->group = run->group;
    save->step = step;
    save->attempt = session->attempt;
    save->stages = stages;
    save->world_size = run->machine.world_size;
    save->begun_ms = save->ended_ms = loop_now_ms();
    shard_dir_key(save->dir, sizeof save->dir, run->name, step, session->attempt);
    for (uint32_t i = 0; i < save->world_size; i++)
        save->bytes += run->group->ranks[i].geometry.file_bytes;
    save->next = run->saves;
    run->saves = save;
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

/* Everything before the first change. */
static int check_begin(struct session *session, const Holdfast__V1__BeginSaveRequest *request)
{
    struct service *service = session->service;
    struct run *run = session->run;
    int error = service_check_open(service);
    if (error == 0 && service->offline[0])
        error = report_error(ERR_IO, "replace the disk, then restart ckptd",
                             "the store is offline: %s", service->offline);
    if (error == 0)
        error = commit_may_begin(&run->machine, session->attempt, session->rank, request->step);
    if (error == 0 && !commit_find_step(&run->machine, request->step))
        error = catalog_check_room(service);
    if (error == 0 && catalog_find(run, request->step, session->attempt))
        error =
            report_error(ERR_EXISTS, NULL, "step %llu of attempt %llu is committed already",
                         (unsigned long long)request->step, (unsigned long long)session->attempt);
    if (error == 0 && (!run->group || !run->group->planned || !run->attempt))
        error =
            report_error(ERR_STALE, "describe the tensors again", "the session belongs to no plan");
    return error == 0 ? check_state_json(request->state_json) : error;
}

/* 0 when the call was answered or will be. */
static int begin(struct session *session, struct rpc_call *call,
                 const Holdfast__V1__BeginSaveRequest *request)
{
    struct run *run = session->run;
    struct commit_actions actions = {0};
    uint32_t slot = 0;
    int error = check_begin(session, request);
    if (error == 0)
        error = choose_slot(&slot, session);
    if (error != 0)
        return error;
    error = clean_image(session->slots[slot], call, request);
    if (error != 0)
        return error < 0 ? error : 0;
    const struct commit_save *known = commit_find_step(&run->machine, request->step);
    struct save *save = known ? save_find(run, known->id) : NULL;
    if (!save)
        error = new_save(&save, session, request->step);
    if (error == 0)
        error = set_state(save, request->state_json, session->rank);
    if (error != 0) {
        if (save && !known)
            save_free(save);
        return error;
    }
    error = commit_begin(&run->machine, &actions, &save->id, session->attempt, session->rank,
                         request->step);
    CHECK(error == 0); /* it may: check_begin has asked */
    error = stage_begin(&save->stages[session->rank], save, session, slot);
    if (error != 0) {
        fault_take(&save->fault, error);
        struct fault fault = save->fault;
        commit_failed(&run->machine, &actions, save->id, session->rank, error,
                      "its stage could not be made");
        run_perform(run, &actions);
        return fault_raise(&fault);
    }
    save->num_begun++;
    Holdfast__V1__BeginSaveReply reply = HOLDFAST__V1__BEGIN_SAVE_REPLY__INIT;
    reply.save = save->id;
    reply.image = slot;
    reply.segments = session->slots[slot]->segments;
    reply.n_segments = session->slots[slot]->num_segments;
    rpc_call_reply(call, &reply.base);
    run_perform(run, &actions);
    return 0;
}

void save_begin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__BeginSaveRequest *request)
{
    struct session *session;
    int error = session_find(&session, service, request->session);
    if (error == 0 && !session->is_rank)
        error = report_error(ERR_NOT_FOUND, "describe first", "the session is not a rank's");
    if (error == 0) {
        session_drain(session);     /* the end of the save before may still be in the ring */
        session_let_go(session, 0); /* a rank has one save at a time */
        error = begin(session, call, request);
    }
    if (error != 0)
        rpc_call_fail(call, error);
}
