/* peers.c - describes the nodes for Status: their names, whether they answer, which checkpoints
 * lack replicas. */
#include "ckptd/peers/peers.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/sets.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/peers/replica.h"
#include "ckptd/tiers/queue.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/clock.h"
#include "proto/format/retain.h"

#include <jansson.h>

static json_t *describe_peer(const struct service *service, uint32_t index)
{
    const struct member *peer = &service->config->members.peers[index];
    json_t *text = replicate_describe(service, (enum tier_index)(TIER_PEER + index));
    const struct tier *tier = &service->tiers[TIER_PEER + index];
    double ahead_s;
    bool is_clock_known = peer_status_clock(&ahead_s, service, index);
    json_int_t silent_ms = tier->silent_since_ms ? clock_ms() - tier->silent_since_ms : 0;
    json_object_set_new(text, "name", json_string(peer->name));
    json_object_set_new(text, "domain", json_string(peer->domain));
    json_object_set_new(text, "address", json_string(peer->address));
    json_object_set_new(text, "lost", json_boolean(tier->is_lost));
    json_object_set_new(text, "silent_seconds", json_integer(silent_ms / 1000));
    json_object_set_new(text, "clock_ahead_seconds",
                        is_clock_known ? json_real(ahead_s) : json_null());
    json_object_set_new(text, "told", peer_status_describe(service, index));
    json_object_set_new(text, "links", peer_status_links(service, index));
    return text;
}

/* The newest whole checkpoint, and the newest that is replicated: the loss of a node costs the
 * steps between. */
struct backlog {
    const struct checkpoint *newest, *replicated;
    int checkpoints;
    json_int_t bytes, lag_seconds;
};

static struct backlog measure_backlog(const struct run *run)
{
    const struct checkpoint *newest = catalog_newest(run), *replicated = newest;
    struct backlog out = {.newest = newest};
    json_int_t bytes = 0, lag = 0;
    while (replicated && catalog_durability(replicated) < DURABLE_REPLICATED) {
        out.checkpoints += !replicated->damaged;
        bytes += replicated->damaged ? 0 : (json_int_t)replicated->summary.bytes;
        replicated = replicated->next;
    }
    if (newest && replicated)
        lag = retain_time(newest->summary.time) - retain_time(replicated->summary.time);
    out.replicated = replicated;
    out.bytes = bytes;
    out.lag_seconds = lag > 0 ? lag : 0;
    return out;
}

static json_t *step_of(const struct checkpoint *checkpoint)
{
    return checkpoint ? json_integer((json_int_t)checkpoint->summary.step) : json_null();
}

static json_t *describe_run(const struct run *run)
{
    const struct backlog backlog = measure_backlog(run);
    json_t *sets = sets_describe(&run->sets);
    return json_pack("{s:s, s:o, s:o, s:i, s:I, s:I, s:o, s:b}", "run", run->name, "newest_step",
                     step_of(backlog.newest), "replicated_step", step_of(backlog.replicated),
                     "checkpoints_behind", backlog.checkpoints, "bytes_behind", backlog.bytes,
                     "lag_seconds", backlog.lag_seconds, "attempt_nodes", sets ? sets : json_null(),
                     "attempt_held", (int)run->sets.is_held);
}

json_t *peers_describe_lag(const struct service *service)
{
    struct backlog all = {.checkpoints = 0};
    if (service->config->members.count == 0)
        return json_null();
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        const struct backlog backlog = measure_backlog(run);
        all.checkpoints += backlog.checkpoints;
        all.bytes += backlog.bytes;
        if (backlog.lag_seconds > all.lag_seconds)
            all.lag_seconds = backlog.lag_seconds;
    }
    return json_pack("{s:i, s:I, s:I}", "checkpoints", all.checkpoints, "bytes", all.bytes,
                     "lag_seconds", all.lag_seconds);
}

/* "n1,n2,n3", as sets.h writes the nodes of an attempt. */
static json_t *describe_members(const struct config *config)
{
    static const struct sets none;
    struct sets sets;
    if (sets_next(&sets, &none, &config->members, config->nodes_name) != 0)
        return json_null();
    json_t *text = json_string(sets.count > 0 ? sets.names[0] : "");
    sets_free(&sets);
    return text;
}

json_t *peers_describe(const struct service *service)
{
    const struct config *config = service->config;
    json_t *peers = json_array(), *runs = json_array();
    if (config->members.count == 0) {
        json_decref(peers);
        json_decref(runs);
        return json_null();
    }
    queue_begin_scan(service);
    for (uint32_t i = 0; i < config->members.count; i++)
        json_array_append_new(peers, describe_peer(service, i));
    queue_end_scan(service);
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        json_array_append_new(runs, describe_run(run));
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o}", "name", config->nodes_name, "domain",
                     config->nodes_domain, "replicas", (json_int_t)config->nodes_replicas,
                     "members", describe_members(config), "memory", replica_describe(service),
                     "peers", peers, "runs", runs);
}
