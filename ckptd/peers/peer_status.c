/* peer_status.c - the status of the other nodes, as they report it: disk, pool, saves, alarms.
 *
 *   every nodes.look_ms, and after a Status that shows an answer older than a second ──► that
 *   peer's crew: Status with `own`, then Hello, whose time is the round trip ──► service thread:
 *   keeps it until there is a newer one
 *
 * Status shows the kept answer and its age, so no silent node delays an answer. A node reports only
 * itself (status.c), and ckptd reads named fields only: it passes nothing on to a third node. An
 * answer is bounded, and one that is not a JSON object is rejected.
 *
 * A node reports its clock as well. ckptd compares it with its own at the middle of the request, so
 * the offset is known to half the time of that request (ASK_MS / 2 at most). */
#include "ckptd/peers/peer_status.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/tier.h"
#include "ckptd/peers/peer_call.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/engine/measured.h"
#include "storage/storage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ASK_MS 2000u
#define FRESH_MS 1000

struct telling {
    struct service *service;
    uint32_t peer;
    bool is_asking;
    json_t *said; /* NULL: no answer yet */
    int64_t said_ms;
    double rtt_seconds, clock_ahead_s; /* NAN: it does not report its time */
    /* Used by the crew during a request. */
    json_t *answer;
    double answer_seconds, answer_ahead_s;
    bool is_refused; /* logged once, until an answer is accepted again */
    struct job job;
};

struct peer_status {
    struct telling peers[MEMBERS_PEERS_MAX];
};

/* ---- on the crew ---- */

int peer_status_read(json_t **out, const char *text)
{
    static const char *const names[] = {"version", "time_seconds", "draining", "alarms", "pool",
                                        "disk",    "tier",         "bulk",     "saves",  "behind"};
    json_t *root;
    *out = NULL;
    if (strlen(text) > PEER_STATUS_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "a node's status has more than %u bytes",
                            PEER_STATUS_BYTES_MAX);
    ERR_TRY(json_read_object(&root, text, "a node's status"));
    json_begin();
    json_t *told = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (json_object_get(root, names[i]))
            json_object_set(told, names[i], json_object_get(root, names[i]));
    json_decref(root);
    if (json_end()) {
        *out = told;
        return 0;
    }
    json_decref(told);
    return report_error(ERR_MEMORY, NULL, "no memory for a node's status");
}

/* The connection is open by now, and the answer costs the other node nothing. */
static int measure_rtt(double *out, struct rpc_client *client)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.protocol = RPC_PROTOCOL;
    double begin = clock_seconds();
    ERR_TRY(rpc_client_call(client, "/holdfast.v1.Checkpoint/Hello", &request.base,
                            &holdfast__v1__hello_reply__descriptor, &reply, ASK_MS));
    *out = clock_seconds() - begin;
    protobuf_c_message_free_unpacked(reply, NULL);
    return 0;
}

/* `asked_s`: by our wall clock; `seconds`: how long the answer took, by the monotonic clock. */
static double measure_clock(const json_t *told, double asked_s, double seconds)
{
    const json_t *clock = json_object_get(told, "time_seconds");
    return json_is_number(clock) ? json_number_value(clock) - asked_s - seconds / 2 : (double)NAN;
}

static void work_ask(struct job *job)
{
    struct telling *telling = CONTAINER_OF(job, struct telling, job);
    struct rpc_client *client = telling->service->tiers[TIER_PEER + telling->peer].client;
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.own = true;
    double asked_s = clock_wall_seconds(), begin = clock_seconds();
    if (rpc_client_call(client, "/holdfast.v1.Checkpoint/Status", &request.base,
                        &holdfast__v1__status_reply__descriptor, &reply, ASK_MS) != 0)
        return;
    double seconds = clock_seconds() - begin;
    int error =
        peer_status_read(&telling->answer, ((const Holdfast__V1__StatusReply *)reply)->json);
    if (error != 0 && !telling->is_refused)
        log_warn("nodes", "the status of node %s is not shown: %s",
                 telling->service->config->members.peers[telling->peer].name, report_line());
    telling->is_refused = error != 0;
    protobuf_c_message_free_unpacked(reply, NULL);
    telling->answer_ahead_s = measure_clock(telling->answer, asked_s, seconds);
    if (error == 0 && measure_rtt(&telling->answer_seconds, client) != 0)
        telling->answer_seconds = telling->rtt_seconds; /* keep the former figure */
}

/* ---- on the service thread ---- */

static void status_received(struct event *event)
{
    struct telling *telling = CONTAINER_OF(event, struct telling, job.done);
    telling->is_asking = false;
    if (!telling->answer)
        return;
    json_decref(telling->said);
    telling->said = telling->answer;
    telling->said_ms = clock_ms();
    telling->rtt_seconds = telling->answer_seconds;
    telling->clock_ahead_s = telling->answer_ahead_s;
    telling->answer = NULL;
}

void peer_status_ask(struct service *service, uint32_t peer)
{
    struct telling *telling = &service->peer_status->peers[peer];
    if (telling->is_asking)
        return;
    telling->is_asking = true;
    telling->job = (struct job){.work = work_ask, .done.run = status_received};
    tier_work(service, (enum tier_index)(TIER_PEER + peer), &telling->job);
}

void peer_status_refresh(struct service *service)
{
    for (uint32_t i = 0; service->peer_status && i < service->config->members.count; i++)
        if (clock_ms() - service->peer_status->peers[i].said_ms >= FRESH_MS)
            peer_status_ask(service, i);
}

json_t *peer_status_describe(const struct service *service, uint32_t peer)
{
    const struct telling *telling = &service->peer_status->peers[peer];
    if (!telling->said)
        return json_null();
    json_t *text = json_copy(telling->said);
    double seconds = (double)(clock_ms() - telling->said_ms) / 1000.0;
    json_object_set_new(text, "seconds_ago", json_real(seconds));
    if (service->tiers[TIER_PEER + peer].silent_since_ms != 0) /* its figures are outdated */
        json_object_del(text, "alarms");
    return text;
}

bool peer_status_clock(double *ahead_s, const struct service *service, uint32_t peer)
{
    const struct telling *telling = &service->peer_status->peers[peer];
    *ahead_s = telling->clock_ahead_s;
    return telling->said && service->tiers[TIER_PEER + peer].silent_since_ms == 0 &&
           !isnan(*ahead_s);
}

static double rate_of(const struct storage_flow *flow)
{
    return flow->ns > 0 ? (double)flow->bytes * 1e9 / (double)flow->ns : 0;
}

static json_t *describe_plane(const struct storage_link *link, enum storage_plane plane, double rtt)
{
    const struct storage_flow *in = &link->in[plane], *out = &link->out[plane];
    return json_pack("{s:o, s:I, s:I, s:f, s:f}", "rtt_seconds",
                     rtt > 0 ? json_real(rtt) : json_null(), "bytes_in", (json_int_t)in->bytes,
                     "bytes_out", (json_int_t)out->bytes, "bytes_per_second_in", rate_of(in),
                     "bytes_per_second_out", rate_of(out));
}

json_t *peer_status_links(const struct service *service, uint32_t peer)
{
    struct storage_link link;
    storage_link(service->tiers[TIER_PEER + peer].storage, &link);
    return json_pack(
        "{s:o, s:o}", "control",
        describe_plane(&link, STORAGE_CALLS, service->peer_status->peers[peer].rtt_seconds), "bulk",
        describe_plane(&link, STORAGE_BULK, link.rtt_seconds));
}

int peer_status_open(struct service *service)
{
    if (service->config->members.count == 0)
        return 0;
    service->peer_status = calloc(1, sizeof *service->peer_status);
    if (!service->peer_status)
        return report_error(ERR_MEMORY, NULL, "no memory for what the nodes tell");
    for (uint32_t i = 0; i < service->config->members.count; i++) {
        service->peer_status->peers[i].service = service;
        service->peer_status->peers[i].peer = i;
        peer_status_ask(service, i);
    }
    return 0;
}

void peer_status_close(struct service *service)
{
    for (uint32_t i = 0; service->peer_status && i < MEMBERS_PEERS_MAX; i++) {
        json_decref(service->peer_status->peers[i].said);
        json_decref(service->peer_status->peers[i].answer);
    }
    free(service->peer_status);
    service->peer_status = NULL;
}
