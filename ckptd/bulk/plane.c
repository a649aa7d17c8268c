/* plane.c - the socket of tls.bulk: bytes of checkpoints for ranks and peers on other nodes.
 *
 * OpenBulk finds a checkpoint on the service thread and records the right in a ticket; a connection
 * with that ticket is served from it alone, on its own thread, without the service's state. So a
 * ticket has all that is needed: it is made after the check of rights.c. bulk_read.c reads files,
 * proxy_rank.c has the sessions of ranks, bulk_handles.c other nodes' handles. */
#include "ckptd/bulk/plane.h"
#include "ckptd/bulk/entered.h"
#include "ckptd/bulk/proxy_rank.h"
#include "ckptd/bulk/tickets.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/resident.h"
#include "ckptd/memory/session.h"
#include "ckptd/peers/serve.h"
#include "proto/base/address.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/bulk/server.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS 256u
#define SWEEP_MS 500

struct bulk_plane {
    struct service *service;
    struct tickets *tickets;
    struct proxy_ranks *proxies;
    struct timer sweep; /* of the proxies */
    struct bulk_server *server;
    char address[288]; /* as clients are told */
};

/* ---- sources by ticket; each on its connection's thread ---- */

static const struct bulk_ops *const sources[NUM_TICKET_KINDS] = {[TICKET_STORED] = &stored_source,
                                                                 [TICKET_SESSION] = &session_source,
                                                                 [TICKET_OPENED] = &opened_source};

/* ---- connections ---- */

static int enter(void *user, struct bulk_entered **out, const uint8_t *ticket,
                 const struct principal *peer)
{
    struct bulk_plane *plane = user;
    struct ticket_right right;
    ERR_TRY(tickets_check(plane->tickets, &right, ticket, peer, clock_ms()));
    struct bulk_entered *entered = calloc(1, sizeof *entered);
    if (!entered)
        return report_error(ERR_MEMORY, NULL, "no memory for a connection");
    struct storage *storage = plane->service->storage;
    entered->source = sources[right.kind];
    entered->stored = (struct bulk_read){.storage = right.storage, .summary = right.summary};
    entered->opened =
        (struct bulk_handle){.storage = storage, .handles = serve_handles(plane->service)};
    memcpy(entered->opened.who, right.node, sizeof right.node);
    int error = 0;
    if (right.kind == TICKET_SESSION)
        error = proxy_rank_enter(&entered->proxy, plane->proxies, right.session);
    if (error == 0)
        *out = entered;
    else
        free(entered);
    return error;
}

static void leave(struct bulk_entered *entered)
{
    if (entered->proxy)
        proxy_rank_leave(entered->proxy, clock_ms());
    bulk_read_close(&entered->stored);
    bulk_handle_close(&entered->opened);
    free(entered);
}

static int get_begin(struct bulk_entered *entered, const struct bulk_request *request)
{
    return entered->source->get_begin(entered, request);
}

static int get_block(struct bulk_entered *entered, const struct bulk_request *request,
                     uint64_t offset, uint64_t bytes, void *room, const void **out)
{
    return entered->source->get_block(entered, request, offset, bytes, room, out);
}

static void get_end(struct bulk_entered *entered)
{
    entered->source->get_end(entered);
}

static int refuse_operation(void)
{
    return report_error(ERR_DENIED, NULL, "the ticket only allows reads of a stored checkpoint");
}

static int put_begin(struct bulk_entered *entered, const struct bulk_request *request, void **to,
                     struct tls_stream *cut)
{
    const struct bulk_ops *source = entered->source;
    return source->put_begin ? source->put_begin(entered, request, to, cut) : refuse_operation();
}

static int put_end(struct bulk_entered *entered, const struct bulk_request *request, int error)
{
    return entered->source->put_end(entered, request, error);
}

static int ask(struct bulk_entered *entered, const struct bulk_request *request,
               struct bulk_answer *answer)
{
    const struct bulk_ops *source = entered->source;
    return source->ask ? source->ask(entered, request, answer) : refuse_operation();
}

static bool may_cost(void *user, const struct principal *peer, uint32_t cost)
{
    const struct bulk_plane *plane = user;
    return rpc_server_charge(plane->service->rpc, peer, cost) == 0;
}

static const struct bulk_ops ops = {.enter = enter,
                                    .leave = leave,
                                    .may_cost = may_cost,
                                    .get_begin = get_begin,
                                    .get_block = get_block,
                                    .get_end = get_end,
                                    .put_begin = put_begin,
                                    .put_end = put_end,
                                    .ask = ask};

/* ---- tickets ---- */

/* The stored checkpoint in the request: of the given attempt, or of the newest attempt that has the
 * step. */
static int find_stored(struct checkpoint **out, struct service *service,
                       const Holdfast__V1__OpenBulkRequest *request)
{
    struct run *run;
    ERR_TRY(run_find(&run, service, request->run, false));
    *out = NULL;
    for (struct checkpoint *c = run->checkpoints; c && !*out; c = c->next)
        if (c->summary.step == request->step &&
            (request->attempt == 0 || c->summary.attempt == request->attempt))
            *out = c;
    if (!*out)
        return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`",
                            "run '%s' has no checkpoint of step %llu", run->name,
                            (unsigned long long)request->step);
    if ((*out)->damaged)
        return report_error(ERR_CORRUPT, "use another checkpoint",
                            "the checkpoint is in quarantine: %s", (*out)->damage);
    return 0;
}

/* The nearest whole copy of this node. */
static int choose_storage(struct storage **out, const struct checkpoint *checkpoint)
{
    static const enum tier_index own[] = {TIER_LOCAL, TIER_MEMORY};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (catalog_has_copy(checkpoint, own[i])) {
            *out = checkpoint->run->service->tiers[own[i]].storage;
            return 0;
        }
    return report_error(ERR_NOT_FOUND, "read it from the tier that has it",
                        "this node has no whole copy of step %llu of run '%s'",
                        (unsigned long long)checkpoint->summary.step, checkpoint->run->name);
}

static int grant_ticket(struct service *service, const Holdfast__V1__OpenBulkRequest *request,
                        struct ticket_right *right, Holdfast__V1__CheckpointSummary *summary)
{
    struct checkpoint *checkpoint;
    struct session *session;
    if (!service->bulk)
        return report_error(ERR_INVALID, "set tls.bulk", "this ckptd has no bulk plane");
    *right = (struct ticket_right){.kind = request->opened         ? TICKET_OPENED
                                           : request->session != 0 ? TICKET_SESSION
                                                                   : TICKET_STORED,
                                   .session = request->session};
    if (right->kind == TICKET_OPENED)
        return 0;
    if (right->kind == TICKET_SESSION)
        return session_find(&session, service, request->session);
    ERR_TRY(find_stored(&checkpoint, service, request));
    ERR_TRY(choose_storage(&right->storage, checkpoint));
    right->summary = checkpoint->summary;
    resident_summary(summary, checkpoint);
    return 0;
}

void plane_open_bulk(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__OpenBulkRequest *request)
{
    Holdfast__V1__OpenBulkReply reply = HOLDFAST__V1__OPEN_BULK_REPLY__INIT;
    Holdfast__V1__CheckpointSummary summary = HOLDFAST__V1__CHECKPOINT_SUMMARY__INIT;
    struct ticket_right right;
    struct principal principal;
    uint8_t ticket[BULK_TICKET_BYTES];
    char who[RPC_WHO_MAX];
    int error = grant_ticket(service, request, &right, &summary);
    if (error == 0 && !rpc_call_principal(call, &principal, who))
        error = report_error(ERR_DENIED, NULL, "the connection was closed");
    if (error == 0)
        memcpy(right.node, principal.name, sizeof right.node);
    if (error == 0)
        error = tickets_issue(service->bulk->tickets, ticket, &principal, &right, clock_ms());
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    reply.ticket = (ProtobufCBinaryData){sizeof ticket, ticket};
    reply.address = service->bulk->address;
    reply.valid_ms = TICKETS_VALID_MS;
    reply.plain = service->config->tls_bulk_plain;
    if (right.kind == TICKET_STORED)
        reply.checkpoint = &summary;
    rpc_call_reply(call, &reply.base);
}

/* ---- opening, closing ---- */

/* Omits the host if it is any address of this machine: the client has reached one already. */
static void take_address(struct bulk_plane *plane, const char *text)
{
    struct address address;
    CHECK(address_parse(&address, text) == 0); /* checked by config.c */
    bool is_any = strcmp(address.host, "0.0.0.0") == 0 || strcmp(address.host, "::") == 0;
    snprintf(plane->address, sizeof plane->address, "%s%s", is_any ? ":" : "",
             is_any ? address.port : text);
}

static void sweep(struct timer *timer)
{
    struct bulk_plane *plane = CONTAINER_OF(timer, struct bulk_plane, sweep);
    proxy_ranks_sweep(plane->proxies, clock_ms());
    loop_timer(plane->service->loop, &plane->sweep, SWEEP_MS);
}

int plane_open(struct service *service)
{
    const struct config *config = service->config;
    int listener = -1;
    if (config->tls_bulk[0] == '\0')
        return 0;
    struct bulk_plane *plane = calloc(1, sizeof *plane);
    if (!plane)
        return report_error(ERR_MEMORY, NULL, "no memory for the bulk plane");
    service->bulk = plane;
    plane->service = service;
    take_address(plane,
                 config->tls_bulk_advertise[0] ? config->tls_bulk_advertise : config->tls_bulk);
    ERR_TRY(tickets_open(&plane->tickets));
    ERR_TRY(proxy_ranks_open(&plane->proxies, service->arena_path));
    ERR_TRY(address_listen(&listener, config->tls_bulk, "tls.bulk"));
    const struct bulk_server_options options = {
        .ops = &ops,
        .user = plane,
        .listener = listener,
        .directory = config->tls_bulk_plain ? NULL : config->tls_directory,
        .num_connections = CONNECTIONS};
    ERR_TRY(bulk_server_open(&plane->server, &options));
    plane->sweep.run = sweep;
    loop_timer(service->loop, &plane->sweep, SWEEP_MS);
    log_info("bulk", "listening on %s%s", config->tls_bulk,
             config->tls_bulk_plain ? ", without TLS" : "");
    return 0;
}

static double rate_of(uint64_t bytes, uint64_t ns)
{
    return ns > 0 ? (double)bytes * 1e9 / (double)ns : 0.0;
}

json_t *plane_describe(const struct service *service)
{
    struct bulk_server_counts counts;
    if (!service->bulk || !service->bulk->server)
        return json_null();
    bulk_server_count(service->bulk->server, &counts);
    return json_pack("{s:i, s:i, s:I, s:I, s:f, s:f}", "connections", (int)counts.num_connections,
                     "refused", (int)counts.num_refused, "bytes_in", (json_int_t)counts.bytes_in,
                     "bytes_out", (json_int_t)counts.bytes_out, "bytes_per_second_in",
                     rate_of(counts.bytes_in, counts.ns_in), "bytes_per_second_out",
                     rate_of(counts.bytes_out, counts.ns_out));
}

void plane_close(struct service *service)
{
    struct bulk_plane *plane = service->bulk;
    if (!plane)
        return;
    loop_timer_cancel(service->loop, &plane->sweep);
    proxy_ranks_cut(plane->proxies);
    bulk_server_close(plane->server);
    proxy_ranks_close(plane->proxies);
    tickets_close(plane->tickets);
    free(plane);
    service->bulk = NULL;
}
