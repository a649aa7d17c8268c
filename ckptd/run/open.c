/* open.c - OpenAttempt: a start of a run's ranks takes the next fencing number.
 *
 *   OpenAttempt ──► (with a far tier: refreshed) ──► rings drained ──► commit.c settles older
 *     saves ──► COMMIT_TAKE: worker writes "<run>/attempts/0003", exclusively and durably
 *     ──► COMMIT_OPENED: older sessions end, answer
 *
 * A start does not take over a run in training (takeover.h): the start of another launcher is
 * parked and checked every CHECK_MS, for limits.takeover_ms, then refused. A second start of the
 * same launcher, while the first is settling, replaces it: the first call is answered ERR_STALE.
 * For ckptds that share only the far tier, the lease there decides which one trains (tenure.h). */
#include "ckptd/run/open.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/quota.h"
#include "ckptd/attempt/remote_lease.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/history.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/store_key.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/takeover.h"
#include "ckptd/memory/resident.h"
#include "ckptd/memory/session.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/save/save.h"
#include "ckptd/tiers/majority.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPLY_CHECKPOINTS_MAX 64u
#define PARTS_WAIT_MS 3000
#define CHECK_MS 100 /* between two checks of the run's holder */

static void work_take(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct coordinator, take)->run;
    int error = attempt_publish(&work->attempt, run, work->number, work->text);
    if (error != 0)
        fault_take(&work->fault, error);
    else if (store_prepare_run(run->service->storage, run->name) != 0)
        log_warn("session",
                 "run %s: could not reserve the space that a prune needs on a full disk: %s",
                 run->name, report_line());
}

static void end_take(struct run *run, struct attempt_work *work)
{
    struct commit_actions actions = {0};
    work->busy = false;
    free(work->text);
    work->text = NULL;
    commit_taken(&run->coordinator->machine, &actions, work->number, work->fault.code);
    run_perform(run, &actions);
}

static void taken(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct coordinator, take)->run;
    const struct attempt *attempt = work->attempt;
    if (work->fault.code == 0 && work->has_quorum && attempt->sets.count > 1) {
        char key[STORAGE_KEY_MAX + 1];
        store_key_of_attempt(key, run->name, work->number);
        majority_publish_held(run->service, key, attempt->sets.nonce);
    }
    end_take(run, work);
}

static void start_take(struct service *service, struct attempt_work *work)
{
    tier_work(service, attempt_needs_far(service) ? TIER_FAR : TIER_LOCAL, &work->job);
}

/* Most of the nodes hold the number, or too few took it, or another start has it. */
static void asked_quorum(struct majority_waiter *waiter)
{
    struct attempt_work *work = CONTAINER_OF(waiter, struct attempt_work, asked);
    struct run *run = CONTAINER_OF(work, struct coordinator, take)->run;
    bool goes_alone = waiter->fault.code == ERR_UNAVAILABLE && work->is_alone;
    if (goes_alone)
        log_warn("session", "run %s: an attempt is opened without a majority of the nodes: %s",
                 run->name, waiter->fault.message);
    if (waiter->fault.code == 0 || goes_alone) {
        start_take(run->service, work);
        return;
    }
    work->fault = waiter->fault;
    end_take(run, work);
}

static void ask_quorum(struct run *run, struct attempt_work *work)
{
    char key[STORAGE_KEY_MAX + 1], nonce[33];
    store_key_of_attempt(key, run->name, work->number);
    attempt_nonce(nonce, work->text);
    work->asked = (struct majority_waiter){.go_on = asked_quorum};
    majority_publish(run->service, &work->quorum, key, work->text, nonce, &work->asked);
}

/* After a start without most of the nodes only its own set of nodes counts. */
static int write_attempt(struct run *run, struct attempt_work *work)
{
    static const struct sets none;
    const struct config *config = run->service->config;
    const Holdfast__V1__OpenAttemptRequest *request =
        (const Holdfast__V1__OpenAttemptRequest *)run->coordinator->opening.message;
    struct attempt_facts facts = {.is_held = work->is_alone || !work->has_quorum};
    ERR_TRY(sets_next(&facts.sets, facts.is_held ? &none : &run->sets, &config->members,
                      config->nodes_name));
    work->quorum = sets_quorum(&facts.sets, &config->members, config->nodes_name);
    quota_owner_text(facts.owner, run);
    int error = attempt_write(&work->text, run, work->number, &facts, request);
    sets_free(&facts.sets);
    return error;
}

void open_take(struct run *run, const struct commit_action *action)
{
    uint64_t number = action->number;
    struct attempt_work *work = &run->coordinator->take;
    CHECK(!work->busy && run->coordinator->opening.call);
    attempt_free(work->attempt);
    *work = (struct attempt_work){.job = {.work = work_take, .done.run = taken},
                                  .busy = true,
                                  .number = number,
                                  .is_alone = run->coordinator->is_alone,
                                  .has_quorum = majority_is_needed(run->service, run)};
    int error = write_attempt(run, work);
    if (error == 0 && work->has_quorum) {
        ask_quorum(run, work);
    } else if (error == 0) {
        start_take(run->service, work);
    } else {
        fault_take(&work->fault, error);
        end_take(run, work);
    }
}

/* Reports a full disk in the log and to the ranks. */
static void tell_full(Holdfast__V1__OpenAttemptReply *reply, const struct run *run)
{
    const struct ledger *ledger = &run->service->ledger;
    char text[LEDGER_TEXT_BYTES];
    struct report_text kept;
    struct storage_space space;
    int64_t now = clock_ms();
    report_keep(&kept);
    if (storage_space(run->service->storage, &space) == 0) {
        ledger_say_hours(text, ledger, &space, now);
        reply->knows_full = ledger_knows_growth(ledger, now);
        reply->full_hours = ledger_hours_to_full(ledger, &space, now);
        bool is_short = reply->full_hours >= 0 && reply->full_hours < LEDGER_WARN_HOURS;
        log_print(is_short ? LOG_WARN : LOG_INFO, "disk",
                  "run %s begins attempt %llu: %llu bytes of the disk are left; %s", run->name,
                  (unsigned long long)reply->attempt,
                  (unsigned long long)ledger_room(ledger, &space), text);
    }
    report_restore(&kept, 0);
}

static void reply_opened(struct run *run, uint64_t number)
{
    Holdfast__V1__OpenAttemptReply reply = HOLDFAST__V1__OPEN_ATTEMPT_REPLY__INIT;
    Holdfast__V1__CheckpointSummary summaries[REPLY_CHECKPOINTS_MAX];
    Holdfast__V1__CheckpointSummary *pointers[REPLY_CHECKPOINTS_MAX];
    reply.attempt = number;
    reply.boot_id = run->service->boot_id;
    reply.checkpoints = pointers;
    for (struct checkpoint *c = run->checkpoints; c && reply.n_checkpoints < REPLY_CHECKPOINTS_MAX;
         c = c->next) {
        if (c->damaged)
            continue;
        pointers[reply.n_checkpoints] = &summaries[reply.n_checkpoints];
        resident_summary(&summaries[reply.n_checkpoints++], c);
    }
    tell_full(&reply, run);
    rpc_call_reply(run->coordinator->opening.call, &reply.base);
}

/* Before the call is answered, and before the attempt that it ends is forgotten. */
static void note_opened(struct run *run, struct attempt *attempt)
{
    char detail[PRINCIPAL_TEXT_MAX + 96] = "";
    struct principal principal;
    if (run->coordinator->attempt)
        snprintf(detail, sizeof detail, "%u ranks; takes over from attempt %llu%s%s",
                 attempt->world_size, (unsigned long long)run->coordinator->attempt->number,
                 run->coordinator->attempt->who[0] ? " of " : "", run->coordinator->attempt->who);
    else
        snprintf(detail, sizeof detail, "%u ranks", attempt->world_size);
    rpc_call_principal(run->coordinator->opening.call, &principal, attempt->who);
    history_note(run,
                 &(struct history_event){.name = "attempt", .by = attempt->who, .detail = detail});
}

void open_done(struct run *run, const struct commit_action *action)
{
    uint64_t number = action->number;
    struct attempt *attempt = run->coordinator->take.attempt;
    run->coordinator->take.attempt = NULL;
    CHECK(attempt && attempt->number == number &&
          !run->coordinator->saves); /* commit.I4, commit.I5 */
    sets_merge(&run->sets, &attempt->sets);
    run->newest_attempt = number;
    run->coordinator->is_forced = false;
    session_end_older(run, number);
    note_opened(run, attempt);
    if (run->coordinator->group)
        group_free(run->coordinator->group);
    run->service->hooks->leave(run);
    attempt_free(run->coordinator->attempt);
    run->coordinator->attempt = attempt;
    struct checkpoint *newest = catalog_newest(run);
    char step[32] = "none";
    if (newest)
        snprintf(step, sizeof step, "step %llu", (unsigned long long)newest->summary.step);
    log_info("session", "run %s: attempt %llu of %u ranks is open; newest checkpoint: %s",
             run->name, (unsigned long long)number, attempt->world_size, step);
    run->coordinator->holder.opened_ms = clock_ms();
    remote_lease_opened(run);
    reply_opened(run, number);
    run->coordinator->opening.call = NULL;
}

void open_failed(struct run *run, const struct commit_action *action)
{
    (void)action;
    rpc_call_fail(run->coordinator->opening.call, fault_raise(&run->coordinator->take.fault));
    run->coordinator->opening.call = NULL;
}

/* All checks come before the run's saves are changed. */
static int check_open(struct service *service, const Holdfast__V1__OpenAttemptRequest *request)
{
    const char *texts[] = {request->config_json, request->identity_json, request->mesh_json,
                           request->data_json};
    const char *names[] = {"config_json", "identity_json", "mesh_json", "data_json"};
    int error = service_check_open(service);
    if (error == 0 && (request->world_size == 0 || request->world_size > COMMIT_RANKS_MAX))
        error = report_error(ERR_INVALID, NULL, "a world of %u ranks is outside 1 to %u",
                             request->world_size, COMMIT_RANKS_MAX);
    if (error == 0 && strlen(request->code_version) >= sizeof((struct attempt *)0)->code_version)
        error = report_error(ERR_INVALID, NULL, "code_version is longer than 63 bytes");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && error == 0; i++) {
        json_t *object = NULL;
        error = attempt_read_object(&object, texts[i], names[i]);
        json_decref(object);
    }
    return error;
}

/* ---- the holder of the run ---- */

/* A start that waits for a run. */
struct newcomer {
    struct newcomer *next;
    struct service *service;
    struct rpc_call *call;
    const Holdfast__V1__OpenAttemptRequest *request; /* valid as long as the call */
    struct timer timer;
    int64_t came_ms;
    bool is_alone; /* most of the nodes did not answer, and it continues */
    struct remote_lease_query lease;
    struct tenure_start tenure; /* the results of its lease queries */
    int64_t watched_since_ms;
    struct refresh_waiter refreshed;
    struct majority_waiter asked;
};

static bool is_same_launcher(const struct run *run, struct rpc_call *call,
                             const Holdfast__V1__OpenAttemptRequest *request)
{
    struct principal principal;
    char who[RPC_WHO_MAX];
    return request->launch[0] != '\0' &&
           strcmp(request->launch, run->coordinator->holder.launch) == 0 &&
           rpc_call_principal(call, &principal, who) &&
           principal_is_same(&principal, &run->coordinator->holder.principal);
}

static enum takeover decide_takeover(const struct run *run, const struct newcomer *newcomer)
{
    const struct config *config = run->service->config;
    int64_t now = clock_ms();
    struct takeover_facts facts = {
        .is_forced = newcomer->request->take_over,
        .is_same_launcher = is_same_launcher(run, newcomer->call, newcomer->request),
        .is_opening = run->coordinator->opening.call != NULL,
        .is_gathering = run->coordinator->machine.state == RUN_OPEN &&
                        run->coordinator->holder.opened_ms > 0 &&
                        (!run->coordinator->group || !run->coordinator->group->planned),
        .num_alive = session_num_alive(run, now - config->limit_silent_ms),
        .opened_ms_ago = now - run->coordinator->holder.opened_ms,
        .waited_ms = now - newcomer->came_ms,
        .limit_ms = config->limit_takeover_ms};
    return takeover_decide(&facts);
}

static int report_held(const struct run *run, const Holdfast__V1__OpenAttemptRequest *request)
{
    const struct holder *holder = &run->coordinator->holder;
    char who[PRINCIPAL_TEXT_MAX + 128] = "a start before ckptd's last restart",
                                  step[64] = "nothing saved yet";
    if (holder->who[0] != '\0')
        snprintf(who, sizeof who, "%s on %s, since %s", holder->who,
                 holder->host[0] != '\0' ? holder->host : "this host", holder->since);
    if (run->coordinator->machine.latest_max > 0)
        snprintf(step, sizeof step, "its newest save is of step %llu",
                 (unsigned long long)(run->coordinator->machine.latest_max - 1));
    return report_error(request->knows_holder ? ERR_EXISTS : ERR_BUSY,
                        "give the run another name, or " RUN_TAKE_OVER_HINT,
                        "the run %s is being trained by %s; %s", run->name, who, step);
}

static void note_holder(struct run *run, struct rpc_call *call,
                        const Holdfast__V1__OpenAttemptRequest *request)
{
    struct holder *holder = &run->coordinator->holder;
    time_t now = time(NULL);
    struct tm utc;
    *holder = (struct holder){0};
    rpc_call_principal(call, &holder->principal, holder->who);
    strftime(holder->since, sizeof holder->since, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    snprintf(holder->host, sizeof holder->host, "%s", request->host);
    snprintf(holder->launch, sizeof holder->launch, "%s", request->launch);
}

/* Opens the run for this start. */
static void open_run(struct run *run, const struct newcomer *newcomer)
{
    const Holdfast__V1__OpenAttemptRequest *request = newcomer->request;
    struct rpc_call *call = newcomer->call;
    struct commit_actions actions = {0};
    if (run->coordinator->opening.call)
        rpc_call_fail(run->coordinator->opening.call,
                      report_error(ERR_STALE, NULL, "a later start of the run replaced this one"));
    note_holder(run, call, request);
    quota_note_owner(run, call);
    run->coordinator->is_alone = newcomer->is_alone;
    run->coordinator->opening.call = call;
    run->coordinator->opening.message = &request->base;
    save_hurry_run(run); /* they must be settled */
    /* Announcements of the older ranks count, even unread ones. */
    session_drain_run(run);
    commit_hear(&run->coordinator->machine, run->newest_attempt);
    int error = commit_open(&run->coordinator->machine, &actions, request->world_size);
    CHECK(error == 0); /* check_open() has checked it */
    if (run->coordinator->saves)
        log_info("session", "run %s: settling older saves before a new attempt", run->name);
    run_perform(run, &actions);
}

/* Parts of saves that another node coordinates: waits for its decision while it answers. */
static bool awaits_parts(struct run *run, const struct newcomer *newcomer)
{
    bool any = false;
    for (const struct save *save = run->coordinator->saves; save; save = save->next)
        any |= save->is_part;
    if (any && clock_ms() - newcomer->came_ms > PARTS_WAIT_MS)
        run->service->hooks->leave(run);
    return any;
}

static void check_holder(struct newcomer *newcomer);

static void unpark_start(struct newcomer *newcomer)
{
    struct newcomer **at = &newcomer->service->newcomers;
    while (*at != newcomer)
        at = &(*at)->next;
    *at = newcomer->next;
}

static void check_holder_again(struct timer *timer)
{
    struct newcomer *newcomer = CONTAINER_OF(timer, struct newcomer, timer);
    unpark_start(newcomer);
    check_holder(newcomer);
}

/* Retries with `run` after `ms`. */
static void park_start(struct newcomer *newcomer, void (*run)(struct timer *), int64_t ms)
{
    struct newcomer **at = &newcomer->service->newcomers;
    while (*at)
        at = &(*at)->next;
    newcomer->next = NULL;
    *at = newcomer;
    newcomer->timer.run = run;
    loop_timer(newcomer->service->loop, &newcomer->timer, ms);
}

/* The start is opened, parked, or refused. */
static void check_holder(struct newcomer *newcomer)
{
    const Holdfast__V1__OpenAttemptRequest *request = newcomer->request;
    struct run *run = NULL;
    int error = check_open(newcomer->service, request);
    if (error == 0)
        error = run_find(&run, newcomer->service, request->run, true);
    if (error == 0 && run->adopting > run->newest_attempt)
        error = catalog_report_adopting(run);
    enum takeover answer = error == 0 ? decide_takeover(run, newcomer) : TAKEOVER_REFUSED;
    if (answer == TAKEOVER_WAIT || (answer != TAKEOVER_REFUSED && awaits_parts(run, newcomer))) {
        park_start(newcomer, check_holder_again, CHECK_MS);
        return;
    }
    if (error == 0 && answer == TAKEOVER_REFUSED) {
        char who[RPC_WHO_MAX] = "";
        struct principal principal;
        error = report_held(run, request);
        rpc_call_principal(newcomer->call, &principal, who);
        log_warn("audit", "OpenAttempt refused to %s, run %s: %s", who, run->name, report_line());
    }
    if (error == 0)
        error = remote_lease_pass(run, newcomer->tenure.seen.number, request->take_over);
    if (error != 0)
        rpc_call_fail(newcomer->call, error);
    else
        open_run(run, newcomer);
    free(newcomer);
}

/* Time in which the far tier must have answered. */
static int64_t time_left(const struct newcomer *newcomer)
{
    int64_t left = newcomer->service->config->tier_wait_ms - (clock_ms() - newcomer->came_ms);
    return left > 1 ? left : 1;
}

static void ask_nodes(struct newcomer *newcomer);

static void ask_nodes_again(struct timer *timer)
{
    struct newcomer *newcomer = CONTAINER_OF(timer, struct newcomer, timer);
    unpark_start(newcomer);
    ask_nodes(newcomer);
}

/* Without most of the nodes: an operator said so, or the far tier accepts each number once. */
static bool may_go_alone(const struct newcomer *newcomer)
{
    struct service *service = newcomer->service;
    struct run *run = NULL;
    if (run_find(&run, service, newcomer->request->run, false) == 0 && run->coordinator->is_forced)
        return true;
    return attempt_needs_far(service) &&
           clock_ms() - newcomer->came_ms >= service->config->nodes_wait_ms;
}

/* Most of the nodes have answered, or the start must not go on: see majority.c. */
static void asked_nodes(struct majority_waiter *waiter)
{
    struct newcomer *newcomer = CONTAINER_OF(waiter, struct newcomer, asked);
    struct service *service = newcomer->service;
    const struct config *config = service->config;
    newcomer->is_alone = waiter->fault.code == ERR_UNAVAILABLE && may_go_alone(newcomer);
    if (waiter->fault.code == 0 || newcomer->is_alone) {
        newcomer->came_ms = clock_ms(); /* the wait for the run begins now */
        check_holder(newcomer);
        return;
    }
    if (!service->is_closing && !service->draining &&
        clock_ms() - newcomer->came_ms < config->nodes_wait_ms) {
        park_start(newcomer, ask_nodes_again, config->tier_retry_ms);
        return;
    }
    rpc_call_fail(newcomer->call, fault_raise(&waiter->fault));
    free(newcomer);
}

static void ask_nodes(struct newcomer *newcomer)
{
    struct service *service = newcomer->service;
    struct run *run = NULL;
    (void)run_find(&run, service, newcomer->request->run, false);
    if (!majority_is_needed(service, run)) {
        check_holder(newcomer);
        return;
    }
    newcomer->asked = (struct majority_waiter){.go_on = asked_nodes};
    majority_refresh_peers(service, newcomer->request->run, &newcomer->asked,
                           service->config->nodes_wait_ms);
}

/* ---- holders elsewhere ---- */

static void query_lease(struct timer *timer)
{
    struct newcomer *newcomer = CONTAINER_OF(timer, struct newcomer, timer);
    unpark_start(newcomer);
    remote_lease_read(&newcomer->lease);
}

static void refuse_stranger(struct newcomer *newcomer)
{
    char who[RPC_WHO_MAX] = "";
    struct principal principal;
    int error = remote_lease_report(newcomer->request->run, &newcomer->lease.found,
                                    newcomer->request->knows_holder ? ERR_EXISTS : ERR_BUSY);
    rpc_call_principal(newcomer->call, &principal, who);
    log_warn("audit", "OpenAttempt refused to %s, run %s: %s", who, newcomer->request->run,
             report_line());
    rpc_call_fail(newcomer->call, error);
    free(newcomer);
}

/* tenure.T1 to T3. */
static void lease_queried(struct remote_lease_query *query)
{
    struct newcomer *newcomer = CONTAINER_OF(query, struct newcomer, lease);
    struct tenure_start *tenure = &newcomer->tenure;
    int64_t now = clock_ms();
    newcomer->watched_since_ms = tenure->watched != 0 ? newcomer->watched_since_ms : now;
    tenure->seen = query->found.seen;
    tenure->is_unknown = query->fault.code != 0;
    tenure->watched_ms = now - newcomer->watched_since_ms;
    tenure->every_ms = query->found.every_ms;
    if (tenure->is_unknown)
        log_warn("session", "run %s is started, though it may be trained elsewhere: %s",
                 newcomer->request->run, query->fault.message);
    enum tenure_answer answer = tenure_decide(tenure);
    tenure->watched = tenure->watched != 0 ? tenure->watched : tenure->seen.number;
    if (answer == TENURE_WATCH && !newcomer->service->is_closing && !newcomer->service->draining) {
        park_start(newcomer, query_lease, tenure->every_ms / 4 + 1);
        return;
    }
    if (answer == TENURE_REFUSED) {
        refuse_stranger(newcomer);
        return;
    }
    newcomer->came_ms = now; /* the wait for the nodes begins now */
    ask_nodes(newcomer);
}

static void ask_lease(struct newcomer *newcomer)
{
    struct service *service = newcomer->service;
    newcomer->tenure.is_forced = newcomer->request->take_over;
    newcomer->lease = (struct remote_lease_query){
        .service = service, .run = newcomer->request->run, .go_on = lease_queried};
    if (newcomer->refreshed.fault.code == 0 && remote_lease_is_used(service) &&
        run_name_valid(newcomer->request->run)) {
        remote_lease_read(&newcomer->lease);
        return;
    }
    newcomer->came_ms = clock_ms();
    ask_nodes(newcomer);
}

static void refresh_far_again(struct timer *timer)
{
    struct newcomer *newcomer = CONTAINER_OF(timer, struct newcomer, timer);
    unpark_start(newcomer);
    refresh_tier(newcomer->service, TIER_FAR, &newcomer->refreshed, time_left(newcomer));
}

/* The checkpoints and attempts of other ckptds are known now. Without that a start continues from
 * an outdated checkpoint: it waits for the far tier, then fails. */
static void far_refreshed(struct refresh_waiter *waiter)
{
    struct newcomer *newcomer = CONTAINER_OF(waiter, struct newcomer, refreshed);
    struct service *service = newcomer->service;
    const struct fault *fault = &waiter->fault;
    if (fault->code == 0 || (!attempt_needs_far(service) && !service->is_closing)) {
        if (fault->code != 0)
            log_warn("session", "run %s is started without the far tier: %s",
                     newcomer->request->run, fault->message);
        ask_lease(newcomer);
        return;
    }
    if (!service->is_closing && !service->draining &&
        clock_ms() - newcomer->came_ms < service->config->tier_wait_ms) {
        park_start(newcomer, refresh_far_again, service->config->tier_retry_ms);
        return;
    }
    rpc_call_fail(newcomer->call,
                  report_error(ERR_UNAVAILABLE,
                               "start again, or set tier.attempts = \"local\" to start without it",
                               "the far tier does not answer, and a start needs it: %s",
                               fault->message));
    free(newcomer);
}

void attempt_open(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__OpenAttemptRequest *request)
{
    struct newcomer *newcomer = calloc(1, sizeof *newcomer);
    if (!newcomer) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to open an attempt"));
        return;
    }
    *newcomer = (struct newcomer){
        .service = service, .call = call, .request = request, .came_ms = clock_ms()};
    newcomer->refreshed.go_on = far_refreshed;
    if (tier_has_far(service))
        refresh_tier(service, TIER_FAR, &newcomer->refreshed, time_left(newcomer));
    else
        ask_nodes(newcomer);
}

void attempt_open_close(struct service *service)
{
    while (service->newcomers) {
        struct newcomer *newcomer = service->newcomers;
        service->newcomers = newcomer->next;
        loop_timer_cancel(service->loop, &newcomer->timer);
        rpc_call_fail(newcomer->call, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
        free(newcomer);
    }
}
