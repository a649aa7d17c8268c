/* begin.c - BeginSave: an image for one rank's part of a save, now or a little later.
 *
 *   the call ──► may this rank save this step? ──► an image: a spare one, free memory, or memory
 *      ▲                                    │      that can be reclaimed ──► cleaned if others had
 *      └── parked until memory comes back ◄─┘      it, or bare ──► the save, its stage, the answer
 *
 * A rank says how long it can wait for an image (busy_ms, 0: not at all). The call is then parked,
 * and retried from the beginning whenever memory comes back or a save ends, the oldest call first;
 * after that time it is answered ERR_BUSY.
 *
 * The last save of a run (is_last) comes before others: while it lacks memory no other save begins,
 * and no session is lent images ahead. Saves that have begun continue, and their ranks may join,
 * else their memory never comes back; so may parts, whose saves have memory on other nodes. Loads
 * keep their memory.
 *
 * A rank that finds no image, waiting or not, ends the throttling of the saves in work
 * (throttle_queue.c).
 *
 * If the trash holds the space that the save lacks (enter.c), the calls wait until it is emptied
 * (ROOM_WAIT_MS), independent of busy_ms.
 *
 * If another node coordinates the attempt, ckptd asks that node whether the rank may begin, once
 * its image is ready; the save here is only a part (peers/join_save.c).
 *
 * A rank that calls again with the same number has not got the answer, and gets it again.
 *
 * Limits: SLOTS_PER_RANK images a rank, COMMIT_SAVES_MAX saves a run, the pool: ERR_BUSY, at once
 * or after the wait, at most SERVICE_WAIT_MS_MAX. A session has one call in progress; another
 * replaces it. */
#include "ckptd/save/begin.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/quota.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/slots.h"
#include "ckptd/memory/stage.h"
#include "ckptd/save/enter.h"
#include "ckptd/save/save.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>

#define GOES_ON 1          /* the call is answered later; not an error code */
#define LAST_PAUSE_MS 100  /* within this time a rank whose last save must wait calls again */
#define ROOM_WAIT_MS 60000 /* the longest time that a save waits for the trash to be emptied */

/* A BeginSave in progress. */
struct beginning {
    struct beginning *next; /* service->beginnings: the parked calls, oldest first */
    struct service *service;
    struct rpc_call *call;
    const Holdfast__V1__BeginSaveRequest *request; /* valid as long as the call */
    struct timer timer;                            /* armed while parked */
    int64_t until_ms;
    uint64_t number;   /* of this call within its session */
    bool lacks_memory; /* it waits for memory */
    bool is_waiting_said;
    /* It waits for disk space; it has done so as long as it may. */
    bool awaits_room, has_awaited_room;
    struct image *image; /* its segments are being cleaned */
    struct job job;
    struct fault fault;        /* of the cleaning */
    struct part_asking asking; /* the coordinator's answer */
};

static void advance_call(struct beginning *beginning);

/* ---- an image ---- */

static void work_clean(struct job *job)
{
    struct beginning *beginning = CONTAINER_OF(job, struct beginning, job);
    int error = pool_clean(beginning->service->pool, beginning->image->segments,
                           beginning->image->num_segments);
    if (error != 0)
        fault_take(&beginning->fault, error);
}

static void cleaned(struct event *event)
{
    struct beginning *beginning = CONTAINER_OF(event, struct beginning, job.done);
    struct service *service = beginning->service;
    beginning->image->readers--;
    image_settle(beginning->image);
    if (beginning->fault.code == 0) {
        advance_call(beginning);
    } else {
        rpc_call_fail(beginning->call, fault_raise(&beginning->fault));
        free(beginning);
    }
    service_retry_waiting(service); /* if this call has not used the image, others may */
}

/* Others had the memory, and may still map it, or it is not allocated yet. GOES_ON: the call will
 * be retried. */
static int clean_image(struct beginning *beginning, struct image *image)
{
    struct service *service = image->service;
    if (!pool_is_dirty(service->pool, image->segments, image->num_segments))
        return 0;
    beginning->image = image;
    beginning->job = (struct job){.work = work_clean, .done.run = cleaned};
    image->readers++; /* keeps it from being used or reclaimed meanwhile */
    loop_work(service->loop, &beginning->job);
    return GOES_ON;
}

static void reply_begun(const struct beginning *beginning, const struct save *save,
                        struct session *session, uint32_t slot)
{
    Holdfast__V1__BeginSaveReply reply = HOLDFAST__V1__BEGIN_SAVE_REPLY__INIT;
    const struct image *image = session->slots[slot];
    const struct session_asked asked = session_asked_of(session);
    pool_generations(image->service->pool, image->generations, image->segments,
                     image->num_segments);
    reply.save = save->id;
    reply.asked = asked.asked;
    reply.asked_within_s = asked.within_s;
    reply.saves_asked = asked.saves;
    reply.image = slot;
    reply.segments = image->segments;
    reply.generations = image->generations;
    reply.n_segments = reply.n_generations = image->num_segments;
    session->begun = beginning->request->asked;
    rpc_call_reply(beginning->call, &reply.base);
}

/* ERR_BUSY while free memory is reserved for another save. */
static int check_turn(const struct run *run, const Holdfast__V1__BeginSaveRequest *request)
{
    if (request->is_last || run->coordinator->follow ||
        commit_find_step(&run->coordinator->machine, request->step) ||
        run->service->num_last_waiting == 0)
        return 0;
    return report_error(ERR_BUSY, "skip this save, or wait",
                        "the last save of another run waits for memory, and goes first");
}

/* Takes memory for the image if the rank has no usable one. */
static int choose_slot(uint32_t *out_slot, struct session *session, struct beginning *beginning)
{
    int error = slots_choose(out_slot, session);
    beginning->lacks_memory = error == ERR_BUSY && slots_lack_memory(session);
    return error;
}

/* A rank has one save at a time. A save that it left without an end may hold its only image. */
static void leave_earlier(struct session *session, uint64_t step)
{
    session_let_go(session, 0);
    enter_leave(session->run, session->rank, step);
}

/* ---- a part of a save that another node coordinates ---- */

static void asked(struct part_asking *asking)
{
    struct beginning *beginning = CONTAINER_OF(asking, struct beginning, asking);
    beginning->image->readers--;
    image_settle(beginning->image);
    if (asking->fault.code == 0) {
        advance_call(beginning);
        return;
    }
    rpc_call_fail(beginning->call, fault_raise(&asking->fault));
    free(beginning);
}

static int ask_coordinator(struct session *session, struct beginning *beginning,
                           struct image *image)
{
    beginning->asking.go_on = asked;
    const Holdfast__V1__BeginSaveRequest *request = beginning->request;
    uint64_t number = request->asked != 0 ? request->asked : beginning->number;
    ERR_TRY(session->service->hooks->ask(session, request, number, &beginning->asking));
    beginning->image = image;
    image->readers++; /* as in clean_image() */
    return GOES_ON;
}

static struct save *find_part(const struct run *run, const struct session *session, uint64_t step)
{
    struct save *save = run->coordinator->saves;
    while (save && (save->step != step || save->attempt != session->attempt))
        save = save->next;
    return save;
}

/* The answer was lost: the rank, which has copied nothing yet, gets it again. */
static bool answer_again(struct session *session, const struct beginning *beginning)
{
    const struct save *save = find_part(session->run, session, beginning->request->step);
    const struct stage *stage = save ? &save->stages[session->rank] : NULL;
    if (beginning->request->asked == 0 || beginning->request->asked != session->begun || !stage ||
        save->discarding || stage->session != session || stage->num_announced > 0)
        return false;
    reply_begun(beginning, save, session, stage->slot);
    return true;
}

/* The coordinator has one save per step; an earlier one of this step that was given up may still be
 * here. */
static int begin_part(struct session *session, struct beginning *beginning, uint32_t slot)
{
    struct run *run = session->run;
    struct save *save = find_part(run, session, beginning->request->step);
    if (beginning->asking.nonce[0] == '\0')
        return ask_coordinator(session, beginning, session->slots[slot]);
    if (save && (save->discarding || strcmp(save->nonce, beginning->asking.nonce) != 0))
        return report_error(ERR_BUSY, "try again",
                            "files of an earlier save of step %llu are being removed",
                            (unsigned long long)save->step);
    if (save && save->stages[session->rank].options.save)
        return report_error(ERR_ABORTED, "begin it again, on all ranks",
                            "rank %u has begun its part before", session->rank);
    bool is_new = !save;
    int error = 0;
    if (is_new)
        error = enter_new(&save, run, beginning->request->step, !beginning->has_awaited_room);
    if (error != 0)
        return error;
    if (is_new) {
        memcpy(save->nonce, beginning->asking.nonce, sizeof save->nonce);
        save->is_part = true;
        save->id = run->coordinator->machine.next_id++;
    }
    error = save_begin_stage(save, session, slot);
    if (error != 0) {
        if (is_new)
            save_free(save);
        return error;
    }
    save->num_begun++;
    reply_begun(beginning, save, session, slot);
    run->service->hooks->part_changed(save);
    return 0;
}

/* 0 when the call is answered, or GOES_ON. */
static int begin_stage(struct session *session, struct beginning *beginning)
{
    const Holdfast__V1__BeginSaveRequest *request = beginning->request;
    struct run *run = session->run;
    struct commit_actions actions = {0};
    uint32_t slot = 0;
    const struct beginner rank = {session->attempt, request->step, session->rank,
                                  request->state_json};
    beginning->lacks_memory = false;
    if (answer_again(session, beginning))
        return 0;
    int error = enter_check(run, &rank, &beginning->until_ms);
    if (error == ERR_ABORTED) { /* the rank's former save is unknown */
        struct report_text text;
        report_keep(&text);
        leave_earlier(session, request->step);
        report_restore(&text, error);
    }
    if (error == 0) {
        leave_earlier(session, request->step);
        error = quota_check_image(session);
    }
    if (error == 0)
        error = check_turn(run, request);
    if (error == 0)
        error = choose_slot(&slot, session, beginning);
    if (error == ERR_BUSY)
        save_hurry_all(session->service);
    if (error == 0)
        error = clean_image(beginning, session->slots[slot]);
    if (error == 0 && run->coordinator->follow)
        return begin_part(session, beginning, slot);
    if (error != 0)
        return error;
    struct save *save;
    ERR_TRY(enter_save(&save, &actions, run, &rank, !beginning->has_awaited_room));
    error = save_begin_stage(save, session, slot);
    if (error != 0) {
        fault_take(&save->fault, error);
        struct fault fault = save->fault;
        commit_failed(&run->coordinator->machine, &actions, save->id, session->rank, error,
                      "its stage could not be made");
        run_perform(run, &actions);
        return fault_raise(&fault);
    }
    save->num_begun++;
    reply_begun(beginning, save, session, slot);
    if (save->num_begun == save->world_size)
        save_all_begun(save);
    run_perform(run, &actions);
    return 0;
}

/* ---- waiting ---- */

static bool waits_last(const struct beginning *beginning)
{
    return beginning->lacks_memory && beginning->request->is_last;
}

/* It delays no other save any more; a caller that parks it again sets this again. */
static void release_turn(struct beginning *beginning)
{
    struct service *service = beginning->service;
    loop_timer_cancel(service->loop, &beginning->timer);
    service->num_last_waiting -= waits_last(beginning);
}

/* Takes it out of the parked calls. */
static void unpark_call(struct beginning *beginning)
{
    struct beginning **at = &beginning->service->beginnings;
    while (*at != beginning)
        at = &(*at)->next;
    *at = beginning->next;
    release_turn(beginning);
}

static void wait_is_over(struct timer *timer)
{
    struct beginning *beginning = CONTAINER_OF(timer, struct beginning, timer);
    unpark_call(beginning);
    beginning->until_ms = 0;
    beginning->has_awaited_room = true;
    advance_call(beginning); /* the last try; its error is the answer */
}

static void say_waiting(struct beginning *beginning, const struct session *session)
{
    if (!beginning->is_waiting_said && beginning->lacks_memory)
        log_info("memory", "%s step %llu of run %s waits for memory, on rank %u: %s",
                 beginning->request->is_last ? "the last save," : "the save of",
                 (unsigned long long)beginning->request->step, session->run->name, session->rank,
                 report_line());
    beginning->is_waiting_said |= beginning->lacks_memory;
}

/* A certificate of one run may not learn of other runs. */
static int refuse_memory(const struct session *session)
{
    if (session->run->coordinator->owner.run[0] == '\0')
        return ERR_BUSY;
    return report_error(ERR_BUSY, "enlarge memory.pool_bytes, or load and save less at once",
                        "there is no memory for the image of rank %u", session->rank);
}

static void park_call(struct beginning *beginning)
{
    struct service *service = beginning->service;
    struct beginning **at = &service->beginnings;
    while (*at)
        at = &(*at)->next;
    beginning->next = NULL;
    *at = beginning;
    service->num_last_waiting += waits_last(beginning);
    beginning->timer.run = wait_is_over;
    loop_timer(service->loop, &beginning->timer, beginning->until_ms - clock_ms());
}

/* One step: the call is answered and freed, parked, or passed to a worker. */
static void advance_call(struct beginning *beginning)
{
    struct session *session;
    struct service *service = beginning->service;
    /* It delayed others. */
    bool has_held = beginning->is_waiting_said && beginning->request->is_last;
    int error = session_find_rank(&session, service, beginning->request->session);
    if (error == 0 && beginning->number != session->num_begins)
        error = report_error(ERR_ABORTED, NULL, "the rank repeated the request");
    if (error == 0) {
        session_drain(session); /* the end of the former save may still be in the ring */
        error = begin_stage(session, beginning);
    }
    if (error == GOES_ON)
        return;
    if (error == AWAITS_ROOM && !beginning->awaits_room) {
        beginning->awaits_room = true;
        beginning->until_ms = clock_ms() + ROOM_WAIT_MS;
    }
    if (error == AWAITS_ROOM || (error == ERR_BUSY && clock_ms() < beginning->until_ms)) {
        say_waiting(beginning, session);
        park_call(beginning);
        return;
    }
    if (error == ERR_BUSY && beginning->lacks_memory)
        error = refuse_memory(session);
    if (error != 0)
        rpc_call_fail(beginning->call, error);
    /* Others continue, unless its rank calls again soon. The request was freed with the answer. */
    if (has_held && !service->retry_saves.armed)
        loop_timer(service->loop, &service->retry_saves, error != 0 ? LAST_PAUSE_MS : 0);
    free(beginning);
}

/* The parked call of this session, or NULL. */
static struct beginning *find_parked(const struct service *service, uint64_t token)
{
    struct beginning *beginning = service->beginnings;
    while (beginning && beginning->request->session != token)
        beginning = beginning->next;
    return beginning;
}

void save_begin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__BeginSaveRequest *request)
{
    struct beginning *former = find_parked(service, request->session);
    struct beginning *beginning = calloc(1, sizeof *beginning);
    struct session *session;
    if (!beginning) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to begin a save"));
        return;
    }
    int64_t wait_ms =
        request->busy_ms < SERVICE_WAIT_MS_MAX ? (int64_t)request->busy_ms : SERVICE_WAIT_MS_MAX;
    *beginning = (struct beginning){
        .service = service, .call = call, .request = request, .until_ms = clock_ms() + wait_ms};
    if (session_find(&session, service, request->session) == 0)
        beginning->number = ++session->num_begins;
    if (former) {
        unpark_call(former);
        advance_call(former); /* it is answered that there is a newer one */
    }
    advance_call(beginning);
}

static void begin_again(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, retry_saves);
    struct beginning *beginning = service->beginnings;
    service->beginnings = NULL;
    while (beginning) {
        struct beginning *next = beginning->next;
        release_turn(beginning);
        /* It is parked again, in the same order, while there is no image. */
        advance_call(beginning);
        beginning = next;
    }
}

void save_begin_close(struct service *service)
{
    while (service->beginnings) {
        struct beginning *beginning = service->beginnings;
        unpark_call(beginning);
        rpc_call_fail(beginning->call, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
        free(beginning);
    }
}

void save_begin_open(struct service *service)
{
    service->retry_saves.run = begin_again;
}
