/* alarms.c - one sentence for each condition that needs an operator. This file keeps no state: an
 * alarm ends when its reason ends. */
#include "ckptd/status/alarms.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/service.h"
#include "ckptd/core/tier.h"
#include "ckptd/memory/session.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/status/health.h"
#include "ckptd/status/leak_watch.h"
#include "proto/base/clock.h"
#include "proto/base/process.h"
#include "storage/storage.h"

#include <jansson.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define HOURS_TO_FULL 24.0 /* as for the warning in the log */
#define CERTIFICATE_DAYS 14

static void __attribute__((format(printf, 2, 3))) raise_alarm(json_t *list, const char *format, ...)
{
    char text[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_array_append_new(list, json_string(text));
}

static void check_saving(json_t *list, const struct service *service)
{
    char why[HEALTH_REASON_BYTES];
    struct storage_space space;
    if (!health_can_save(service, why))
        raise_alarm(list, "the next save would fail: %s", why);
    if (storage_space(service->storage, &space) != 0)
        return;
    double hours = ledger_hours_to_full(&service->ledger, &space, clock_ms());
    if (hours >= 0 && hours < HOURS_TO_FULL)
        raise_alarm(list,
                    "the disk is full in %.1f hours at the rate of the last saves "
                    "(retention.keep_last removes older ones)",
                    hours);
}

/* One sentence for a run: the newest failure usually has the cause of the others. */
static void check_drain(json_t *list, const struct run *run)
{
    const struct checkpoint *newest = NULL;
    int count = 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
        newest = c->given_up[0] && !newest ? c : newest;
        count += c->given_up[0] != '\0';
    }
    if (newest)
        raise_alarm(list, "run %s: %d checkpoints do not go into the far tier until a restart: %s",
                    run->name, count, newest->given_up);
}

/* Ranks that have stopped without a time-out of their own: in a disk or socket that never
 * answers. */
static void check_ranks(json_t *list, const struct run *run)
{
    const struct session_ranks ranks = session_ranks_of(run);
    if (ranks.silent_ms > run->service->config->limit_hang_ms)
        raise_alarm(list, "run %s hangs: rank %u of %u here has done nothing for %lld s%s%s",
                    run->name, ranks.silent, ranks.count, (long long)ranks.silent_ms / 1000,
                    ranks.doing[0] != '\0' ? ": " : "", ranks.doing);
}

/* The disk fills up, and no rule removes checkpoints. */
static void check_rules(json_t *list, const struct run *run)
{
    for (int at = 0; at < 2; at++)
        if (run->unpruned[at].code != 0)
            raise_alarm(list, "run %s: the rules remove nothing%s: %s (%s)", run->name,
                        at == 0 ? "" : " in the far tier", run->unpruned[at].message,
                        run->unpruned[at].hint);
}

#define CAME_DAMAGED_MIN 2

/* Do the ranks of a run write to their images after they have announced them? Then most of its
 * checkpoints are damaged at their first read: other bytes were hashed than written. A failing disk
 * damages few, and later; a disk that writes wrong bytes damages those of all runs. So this cause
 * is reported when
 *  - CAME_DAMAGED_MIN or more checkpoints that this ckptd saved were damaged at their first read
 *    here, and
 *  - they are more than those of the run that were read back whole, and
 *  - no other run has such a checkpoint. */
static void check_writers(json_t *list, const struct run *run, int damaged)
{
    int whole = 0, elsewhere = 0;
    for (const struct run *any = run->service->catalog->runs; any; any = any->next)
        for (const struct checkpoint *c = any->checkpoints; c; c = c->next) {
            elsewhere += any != run && c->came_damaged;
            whole += any == run && c->was_committed && catalog_is_read_back(c);
        }
    if (damaged > whole && elsewhere == 0)
        raise_alarm(list,
                    "run %s: its ranks write after announcing: %d checkpoints were damaged when "
                    "they were first read back, and %d whole (storage.verify_after_write = true "
                    "refuses such saves)",
                    run->name, damaged, whole);
}

static void check_runs(json_t *list, const struct service *service)
{
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        int damaged = 0, came_damaged = 0;
        for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
            damaged += c->damaged;
            came_damaged += c->came_damaged;
        }
        if (damaged > 0)
            raise_alarm(list, "run %s: %d damaged checkpoints", run->name, damaged);
        if (came_damaged >= CAME_DAMAGED_MIN)
            check_writers(list, run, came_damaged);
        if (run->health.at_client > 0)
            raise_alarm(list, "run %s: %u saves in a row failed at the client: %s", run->name,
                        run->health.at_client, run->health.client_reason);
        if (run->health.failures > run->health.at_client)
            raise_alarm(list, "run %s: %u failed saves in a row: %s", run->name,
                        run->health.failures, run->health.reason);
        if (run->unreadable.code != 0)
            raise_alarm(list, "run %s cannot be read: %s", run->name, run->unreadable.message);
        if (run->fenced_attempt != 0)
            raise_alarm(list, "run %s: %s; what it has saved since is not the run's", run->name,
                        run->fenced);
        if (run->replicas[0])
            raise_alarm(list, "run %s: replicas differ, %s", run->name, run->replicas);
        check_rules(list, run);
        check_drain(list, run);
        check_ranks(list, run);
    }
}

static void check_tiers(json_t *list, const struct service *service)
{
    for (int at = 0; at < NUM_TIERS; at++) {
        const struct tier *tier = &service->tiers[at];
        const char *name = tier_name(service, (enum tier_index)at);
        int64_t silent_ms = clock_ms() - tier->silent_since_ms;
        long long silent_s = (long long)silent_ms / 1000;
        /* The ckptds of a cluster start one after the other: one refused call of a node is no
         * alarm. */
        bool may_start = at != TIER_FAR && silent_ms < service->config->nodes_look_ms;
        if (!tier->storage || at == TIER_LOCAL)
            continue;
        if (tier->is_lost)
            raise_alarm(list, "node %s is lost: it has not answered for %lld s: %s", name, silent_s,
                        tier->offline);
        else if (tier->silent_since_ms != 0 && !may_start)
            raise_alarm(list, "%s%s has not answered for %lld s: %s",
                        at == TIER_FAR ? "the tier " : "node ", name, silent_s, tier->offline);
    }
}

static void check_clocks(json_t *list, const struct service *service)
{
    for (uint32_t i = 0; service->peer_status && i < service->config->members.count; i++) {
        double ahead_s;
        if (peer_status_clock(&ahead_s, service, i) && fabs(ahead_s) > PEER_STATUS_CLOCK_S)
            raise_alarm(list,
                        "the clock of node %s is %.0f s %s this node's: set both by NTP "
                        "(timedatectl), as retention by age and the ends of certificates go by "
                        "them",
                        service->config->members.peers[i].name, fabs(ahead_s),
                        ahead_s < 0 ? "behind" : "ahead of");
    }
}

/* A leak, or clients that use more memory than planned. */
static void check_memory(json_t *list, const struct service *service)
{
    const uint64_t most = (uint64_t)service->config->limit_private_bytes;
    const struct leak *leak = leak_watch_seen(service);
    struct process_memory memory;
    process_measure(&memory, "");
    if (leak_rate(leak) > 0)
        raise_alarm(list,
                    "ckptd leaks: its memory beside the pool rose in each of the last %u half "
                    "hours, from %llu to %llu bytes, %.0f bytes an hour: restart it between two "
                    "saves, and report it (limits.exit_private_bytes makes it exit at a limit)",
                    LEAK_WINDOWS, (unsigned long long)leak->past[0].bytes,
                    (unsigned long long)leak->past[LEAK_WINDOWS - 1].bytes, leak_rate(leak));
    if (most > 0 && memory.private_memory > most)
        raise_alarm(list,
                    "ckptd takes %llu bytes of memory beside its pool, and limits.private_bytes is "
                    "%llu: a restart between two saves gives them back",
                    (unsigned long long)memory.private_memory, (unsigned long long)most);
}

static void check_certificates(json_t *list, const struct service *service)
{
    int64_t left_s;
    if (!service_seconds_left(&left_s, service) || left_s >= CERTIFICATE_DAYS * 86400)
        return;
    if (left_s < 0)
        raise_alarm(list,
                    "the certificate or the authority in %s has expired: no client can connect "
                    "over the network (holdfast-certificates makes new ones)",
                    service->config->tls_directory);
    else
        raise_alarm(list,
                    "the certificate or the authority in %s ends in %.1f days: then no client can "
                    "connect over the network (holdfast-certificates makes new ones)",
                    service->config->tls_directory, (double)left_s / 86400);
}

json_t *alarms_describe(const struct service *service)
{
    json_t *list = json_array();
    if (list) {
        check_saving(list, service);
        check_runs(list, service);
        check_tiers(list, service);
        check_clocks(list, service);
        check_certificates(list, service);
        check_memory(list, service);
    }
    return list;
}
