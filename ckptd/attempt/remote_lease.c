/* remote_lease.c - reads, renews and ends the lease that shows which ckptd trains a run (tenure.h):
 *
 *     {"format": "holdfast-lease", "version": 1, "store": "<32 digits>", "host": "node7",
 *      "boot": "<16 digits>", "attempt": 4, "since": "2026-01-01T00:00:00Z", "step": 1200,
 *      "every_ms": 2000, "time": "2026-01-01T02:00:00Z", "ended": false}
 *
 * `store` distinguishes strangers: it is the identity of the local store (core/store_identity.c),
 * which survives a restart. With other nodes it is a hash of all names, as nodes settle among
 * themselves which one coordinates. So clusters whose nodes have the same names are not strangers
 * to each other; nor is a copied store. Times are only for people.
 *
 * Every tier.lease_ms one timer checks all runs: renews the lease of a run with ranks, and ends
 * that of a run without. A renewal reads first, so one whose answer was lost is resolved by the
 * next. An ended lease stays: its number is not used again. */
#include "ckptd/attempt/remote_lease.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/takeover.h"
#include "ckptd/memory/session.h"
#include "ckptd/tiers/wait_durability.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "storage/numbered.h"
#include "storage/storage.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FORMAT "holdfast-lease"
#define VERSION 1
#define TEXT_BYTES 2048u
#define GATHER_MS 10000 /* time for the ranks of an attempt to come */
#define EVERY_MS_MAX 3600000

bool remote_lease_is_used(const struct service *service)
{
    return tier_has_far(service) && service->config->tier_lease_ms > 0;
}

bool remote_lease_is_busy(const struct run *run)
{
    return run->coordinator->far_lease && run->coordinator->far_lease->busy;
}

/* ---- on the crew ---- */

static int hash_names(char out[STORE_IDENTITY_BYTES], const struct config *config)
{
    const struct members *members = &config->members;
    char all[(MEMBERS_PEERS_MAX + 1) * (MEMBER_NAME_MAX + 1)], sha256[CHECKSUM_SHA256_HEX];
    size_t length = 0;
    bool has_own = false;
    for (uint32_t i = 0; i < members->count || !has_own;) {
        const char *peer =
            i < members->count ? members->peers[members->by_name[i]].name : config->nodes_name;
        bool is_own = !has_own && (i == members->count || strcmp(config->nodes_name, peer) < 0);
        length += (size_t)snprintf(all + length, sizeof all - length, "%s\n",
                                   is_own ? config->nodes_name : peer);
        has_own |= is_own;
        i += !is_own;
    }
    ERR_TRY(checksum_sha256_hex(sha256, all, length));
    memcpy(out, sha256, STORE_IDENTITY_BYTES - 1);
    out[STORE_IDENTITY_BYTES - 1] = '\0';
    return 0;
}

static int identify_store(char out[STORE_IDENTITY_BYTES], const struct service *service)
{
    return service->config->members.count > 0 ? hash_names(out, service->config)
                                              : store_identity_of(out, service->storage);
}

static void copy_text(char *out, size_t size, const json_t *root, const char *name)
{
    const char *text = json_string_value(json_object_get(root, name));
    snprintf(out, size, "%s", text ? text : "");
}

static int parse_lease(struct remote_lease_text *out, const char *text, const char *folder)
{
    json_t *root;
    json_error_t reason;
    ERR_TRY(json_read(&root, text, strlen(text), &reason));
    const char *format = json_string_value(json_object_get(root, "format"));
    json_int_t every_ms = json_integer_value(json_object_get(root, "every_ms"));
    bool is_one = format && strcmp(format, FORMAT) == 0 &&
                  json_integer_value(json_object_get(root, "version")) == VERSION && every_ms > 0 &&
                  every_ms <= EVERY_MS_MAX;
    out->every_ms = every_ms;
    out->step = json_integer_value(json_object_get(root, "step"));
    out->seen.attempt = (uint64_t)json_integer_value(json_object_get(root, "attempt"));
    out->seen.is_ended = json_is_true(json_object_get(root, "ended"));
    copy_text(out->store, sizeof out->store, root, "store");
    copy_text(out->host, sizeof out->host, root, "host");
    copy_text(out->since, sizeof out->since, root, "since");
    json_decref(root);
    return is_one
               ? 0
               : report_error(ERR_VERSION, "use a newer ckptd, or remove it",
                              "%s in the far tier is not a lease that this ckptd can read", folder);
}

static int read_lease(struct remote_lease_text *out, struct service *service, const char *folder,
                      const char *own)
{
    char text[TEXT_BYTES];
    uint64_t number = 0;
    *out = (struct remote_lease_text){.step = -1};
    ERR_TRY(tier_reach(service, TIER_FAR));
    ERR_TRY(storage_fetch_numbered(service->tiers[TIER_FAR].storage, folder, &number, text,
                                   sizeof text));
    if (number == 0)
        return 0;
    ERR_TRY(parse_lease(out, text, folder));
    out->seen.number = number;
    out->seen.is_ours = strcmp(out->store, own) == 0;
    return 0;
}

static void format_time(char out[32], time_t at)
{
    struct tm utc;
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &utc));
}

static int publish_lease(const struct service *service, const char *folder, uint64_t number,
                         const struct remote_lease_text *lease, bool is_ended)
{
    char now[32], boot[17];
    format_time(now, time(NULL));
    snprintf(boot, sizeof boot, "%016llx", (unsigned long long)service->boot_id);
    json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:s, s:b}", "format",
                             FORMAT, "version", VERSION, "store", lease->store, "host", lease->host,
                             "boot", boot, "attempt", (json_int_t)lease->seen.attempt, "since",
                             lease->since, "step", (json_int_t)lease->step, "every_ms",
                             (json_int_t)lease->every_ms, "time", now, "ended", is_ended);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    int error =
        text ? storage_publish_numbered(service->tiers[TIER_FAR].storage, folder, number, text)
             : report_error(ERR_INVALID, NULL, "the lease could not be written as JSON");
    free(text);
    return error;
}

static int folder_of(char out[STORAGE_KEY_MAX + 1], const char *run)
{
    return storage_join(out, run, "lease") ? 0
                                           : report_error(ERR_INVALID, NULL, "a key is too long");
}

static void work_read(struct job *job)
{
    struct remote_lease_query *query = CONTAINER_OF(job, struct remote_lease_query, job);
    char folder[STORAGE_KEY_MAX + 1], own[STORE_IDENTITY_BYTES];
    int error = identify_store(own, query->service);
    if (error == 0)
        error = folder_of(folder, query->run);
    if (error == 0)
        error = read_lease(&query->found, query->service, folder, own);
    if (error != 0)
        fault_take(&query->fault, error);
}

static int renew_lease(struct remote_lease *lease, struct run *run)
{
    char folder[STORAGE_KEY_MAX + 1];
    struct remote_lease_text found;
    if (lease->own[0] == '\0') {
        ERR_TRY(identify_store(found.store, run->service));
        memcpy(lease->own, found.store, sizeof lease->own);
    }
    memcpy(lease->text.store, lease->own, sizeof lease->own);
    ERR_TRY(folder_of(folder, run->name));
    ERR_TRY(read_lease(&found, run->service, folder, lease->own));
    lease->renewal.seen = found.seen;
    lease->step = tenure_renew(&lease->renewal);
    if (lease->step == TENURE_PUBLISH || lease->step == TENURE_END)
        return publish_lease(run->service, folder, found.seen.number, &lease->text,
                             lease->step == TENURE_END);
    lease->text = found;
    return 0;
}

static void work_renew(struct job *job)
{
    struct remote_lease *lease = CONTAINER_OF(job, struct remote_lease, job);
    int error = renew_lease(lease, lease->run);
    if (error != 0)
        fault_take(&lease->fault, error);
}

/* ---- on the service thread ---- */

static void lease_read(struct event *event)
{
    struct remote_lease_query *query = CONTAINER_OF(event, struct remote_lease_query, job.done);
    query->go_on(query);
}

void remote_lease_read(struct remote_lease_query *query)
{
    query->fault = (struct fault){0};
    query->job = (struct job){.work = work_read, .done.run = lease_read};
    tier_work(query->service, TIER_FAR, &query->job);
}

int remote_lease_report(const char *run, const struct remote_lease_text *text, int code)
{
    char step[64] = "nothing saved yet";
    if (text->step >= 0)
        snprintf(step, sizeof step, "its newest save is of step %lld", (long long)text->step);
    return report_error(code, "end it there, give the run another name, or " RUN_TAKE_OVER_HINT,
                        "the run %s is being trained through another ckptd, attempt %llu on %s, "
                        "since %s; %s",
                        run, (unsigned long long)text->seen.attempt, text->host, text->since, step);
}

int remote_lease_check(const struct run *run, uint64_t attempt)
{
    if (run->fenced_attempt == 0 || run->fenced_attempt != attempt)
        return 0;
    return report_error(ERR_STALE,
                        "to continue this run here, start it again, and " RUN_TAKE_OVER_HINT, "%s",
                        run->fenced);
}

static void fence_run(struct run *run, const struct remote_lease *lease)
{
    run->fenced_attempt = lease->renewal.attempt;
    snprintf(run->fenced, sizeof run->fenced,
             "attempt %llu was taken over through another ckptd by attempt %llu on %s, since %s",
             (unsigned long long)run->fenced_attempt, (unsigned long long)lease->text.seen.attempt,
             lease->text.host, lease->text.since);
    log_error("session", "run %s: %s", run->name, run->fenced);
    durability_check_waiters(run->service);
}

static void renewed(struct event *event)
{
    struct remote_lease *lease = CONTAINER_OF(event, struct remote_lease, job.done);
    struct run *run = lease->run;
    const struct attempt *attempt = run->coordinator->attempt;
    bool is_current = attempt && attempt->number == lease->renewal.attempt;
    const struct fault *fault = &lease->fault;
    lease->busy = false;
    if (fault->code != 0 && fault->code != ERR_EXISTS && !lease->is_silent)
        log_warn("tier", "run %s: its lease in the far tier was not renewed: %s", run->name,
                 fault->message);
    lease->is_silent = fault->code != 0;
    if (fault->code == 0)
        lease->is_held = lease->step == TENURE_PUBLISH;
    else if (run->service->draining)
        lease->is_held = false; /* it expires */
    if (is_current && fault->code == 0 && lease->step == TENURE_PUBLISH)
        lease->is_forced = false;
    if (is_current && fault->code == 0 && lease->step == TENURE_LOST)
        fence_run(run, lease);
    if (!is_current && attempt)
        remote_lease_opened(run);
}

static bool is_training(const struct run *run)
{
    const struct coordinator *coordinator = run->coordinator;
    const struct service *service = run->service;
    if (!coordinator->attempt || coordinator->follow ||
        (service->draining && !service->takes_last_saves))
        return false;
    if (session_num_alive(run, 0) > 0)
        return true;
    return coordinator->holder.opened_ms > 0 &&
           clock_ms() - coordinator->holder.opened_ms < GATHER_MS &&
           (!coordinator->group || !coordinator->group->planned);
}

/* NULL: no memory, or none is needed. */
static struct remote_lease *lease_of(struct run *run)
{
    struct coordinator *coordinator = run->coordinator;
    if (!coordinator->far_lease && remote_lease_is_used(run->service)) {
        coordinator->far_lease = calloc(1, sizeof *coordinator->far_lease);
        if (coordinator->far_lease)
            coordinator->far_lease->run = run;
    }
    return coordinator->far_lease;
}

static void start_renewal(struct run *run)
{
    const struct coordinator *coordinator = run->coordinator;
    struct remote_lease *lease = run->coordinator->far_lease;
    bool trains = is_training(run);
    uint64_t number = coordinator->attempt ? coordinator->attempt->number : 0;
    if (!lease && trains)
        lease = lease_of(run);
    if (!lease || lease->busy || (!trains && !lease->is_held) ||
        (number != 0 && run->fenced_attempt == number)) /* tenure.T5 */
        return;
    lease->renewal = (struct tenure_renewal){.attempt = trains ? number : lease->renewal.attempt,
                                             .passed = lease->passed,
                                             .is_forced = lease->is_forced,
                                             .is_training = trains};
    lease->text = (struct remote_lease_text){.seen.attempt = lease->renewal.attempt,
                                             .every_ms = run->service->config->tier_lease_ms,
                                             .step = (int64_t)coordinator->machine.latest_max - 1};
    snprintf(lease->text.host, sizeof lease->text.host, "%s", coordinator->holder.host);
    if (lease->text.host[0] == '\0')
        gethostname(lease->text.host, sizeof lease->text.host - 1);
    snprintf(lease->text.since, sizeof lease->text.since, "%s", coordinator->holder.since);
    if (lease->text.since[0] == '\0') /* ckptd was restarted meanwhile */
        format_time(lease->text.since, run->service->start_s);
    lease->fault = (struct fault){0};
    lease->busy = true;
    lease->job = (struct job){.work = work_renew, .done.run = renewed};
    tier_work(run->service, TIER_FAR, &lease->job);
}

int remote_lease_pass(struct run *run, uint64_t passed, bool is_forced)
{
    struct remote_lease *lease = lease_of(run);
    if (!remote_lease_is_used(run->service))
        return 0;
    if (!lease)
        return report_error(ERR_MEMORY, NULL, "no memory for a lease");
    lease->passed = passed;
    lease->is_forced = is_forced;
    return 0;
}

void remote_lease_opened(struct run *run)
{
    run->fenced_attempt = 0;
    if (remote_lease_is_used(run->service))
        start_renewal(run);
}

static void check_all_runs(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, remote_leases);
    for (struct run *run = service->catalog->runs; run; run = run->next)
        start_renewal(run);
    loop_timer(service->loop, &service->remote_leases, service->config->tier_lease_ms);
}

void remote_lease_open(struct service *service)
{
    service->remote_leases.run = check_all_runs;
    if (remote_lease_is_used(service))
        loop_timer(service->loop, &service->remote_leases, service->config->tier_lease_ms);
}

bool remote_lease_end(struct service *service)
{
    bool is_over = true;
    for (struct run *run = service->catalog->runs; run; run = run->next) {
        start_renewal(run);
        const struct remote_lease *lease = run->coordinator->far_lease;
        is_over &= !lease || (!lease->busy && !lease->is_held);
    }
    return is_over;
}
