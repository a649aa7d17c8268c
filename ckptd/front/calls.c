/* calls.c - the RPC methods of ckptd, and the check of rights.
 *
 * A call arrives on an RPC thread, which only posts it; the service thread checks rights.c and
 * passes it to its handler (table at the end). Every handler answers its call exactly once, now or
 * later. */
#include "ckptd/front/calls.h"
#include "ckptd/bulk/plane.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/history.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/rights.h"
#include "ckptd/core/service.h"
#include "ckptd/front/list.h"
#include "ckptd/front/listen.h"
#include "ckptd/front/reload.h"
#include "ckptd/keep/admit.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/pins.h"
#include "ckptd/keep/remove.h"
#include "ckptd/keep/retain.h"
#include "ckptd/keep/undelete.h"
#include "ckptd/memory/session.h"
#include "ckptd/peers/join_save.h"
#include "ckptd/peers/lead_save.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/peers/serve.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/open.h"
#include "ckptd/restore/shard.h"
#include "ckptd/run/attend.h"
#include "ckptd/run/force.h"
#include "ckptd/run/open.h"
#include "ckptd/run/stop.h"
#include "ckptd/save/begin.h"
#include "ckptd/save/compare.h"
#include "ckptd/save/give_up.h"
#include "ckptd/save/save.h"
#include "ckptd/scrub/scrub.h"
#include "ckptd/scrub/verified.h"
#include "ckptd/status/health.h"
#include "ckptd/status/status.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Hello, Status ---- */

static void do_hello(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__HelloRequest *request)
{
    Holdfast__V1__HelloReply reply = HOLDFAST__V1__HELLO_REPLY__INIT;
    (void)request; /* the client compares versions; an older server may serve a newer client */
    struct principal principal;
    char who[RPC_WHO_MAX];
    bool is_here = rpc_call_principal(call, &principal, who) && principal.kind == PRINCIPAL_USER;
    reply.protocol = RPC_PROTOCOL;
    reply.version = (char *)report_version;
    reply.boot_id = service->boot_id;
    reply.arena_socket = is_here ? service->arena_path : "";
    rpc_call_reply(call, &reply.base);
}

static void do_status(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__StatusRequest *request)
{
    Holdfast__V1__StatusReply reply = HOLDFAST__V1__STATUS_REPLY__INIT;
    if (!request->own) {
        health_check(service); /* grpc.health.v1 has the same answer from now on */
        peer_status_refresh(service);
    }
    char *text = service_status(service, request->own, request->expected_bytes);
    reply.json = text;
    if (text)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for the status"));
    free(text);
}

/* ---- History ---- */

/* Adds the rank that stands still now: no event can tell it before a rank is lost. */
static void do_history(struct service *service, struct rpc_call *call,
                       const Holdfast__V1__HistoryRequest *request)
{
    char now[HISTORY_NOW_MAX] = "", time[32];
    struct run *run;
    uint32_t rank;
    double seconds;
    manifest_now(time);
    if (run_find(&run, service, request->run, false) == 0 &&
        session_find_still(&rank, &seconds, run))
        snprintf(
            now, sizeof now,
            "{\"time\":\"%s\",\"event\":\"still\",\"by\":\"rank %u\",\"detail\":\"its process has "
            "shown no sign of life for %.1f s\",\"rank\":%u,\"seconds\":%.1f}\n",
            time, rank, seconds, rank, seconds);
    history_call(service, call, request, now);
}

/* ---- calls ---- */

/* A call that an RPC thread passes to the service thread. */
struct request {
    struct event event;
    struct service *service;
    struct rpc_call *call;
    const ProtobufCMessage *message;
    void (*handle)(struct service *service, struct rpc_call *call, const ProtobufCMessage *message);
};

static void handle_request(struct event *event)
{
    struct request *request = CONTAINER_OF(event, struct request, event);
    request->handle(request->service, request->call, request->message);
    free(request);
}

static void post_request(void *user, struct rpc_call *call, const ProtobufCMessage *message,
                         void (*handle)(struct service *, struct rpc_call *,
                                        const ProtobufCMessage *))
{
    struct service *service = user;
    struct request *request = calloc(1, sizeof *request);
    if (!request) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for a call"));
        return;
    }
    *request = (struct request){{.run = handle_request}, service, call, message, handle};
    loop_post(service->loop, &request->event);
}

/* Appends one field of a request as text: ", step 10". Skips unset and long fields: lists, and JSON
 * (NAME_json). */
static size_t put_field(char *out, size_t size, const ProtobufCFieldDescriptor *field,
                        const ProtobufCMessage *message)
{
    const void *value = (const char *)message + field->offset;
    const char *end = strrchr(field->name, '_');
    int bytes = 0;
    if (field->label == PROTOBUF_C_LABEL_REPEATED || (end && strcmp(end, "_json") == 0))
        return 0;
    if (field->type == PROTOBUF_C_TYPE_UINT64 && *(const uint64_t *)value != 0)
        bytes = snprintf(out, size, ", %s %llu", field->name,
                         (unsigned long long)*(const uint64_t *)value);
    else if (field->type == PROTOBUF_C_TYPE_UINT32 && *(const uint32_t *)value != 0)
        bytes = snprintf(out, size, ", %s %u", field->name, *(const uint32_t *)value);
    else if (field->type == PROTOBUF_C_TYPE_BOOL && *(const protobuf_c_boolean *)value)
        bytes = snprintf(out, size, ", %s", field->name);
    else if (field->type == PROTOBUF_C_TYPE_STRING && (*(char *const *)value)[0])
        bytes = snprintf(out, size, ", %s %.200s", field->name, *(char *const *)value);
    return (size_t)bytes < size ? (size_t)bytes : size - 1;
}

/* Finds a field of a request; NULL: it has none of that name and type. */
static const void *field_of(const ProtobufCMessage *message, const char *name, ProtobufCType type)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    return field && field->type == type ? (const char *)message + field->offset : NULL;
}

/* The run of the session or load in a request; NULL: no known one is named. */
static const char *owner_of(struct service *service, const ProtobufCMessage *message)
{
    const uint64_t *token = field_of(message, "session", PROTOBUF_C_TYPE_UINT64);
    const uint64_t *number = field_of(message, "load", PROTOBUF_C_TYPE_UINT64);
    struct session *session;
    struct load *load;
    if (token && *token != 0 && session_look(&session, service, *token) == 0)
        return session->run->name;
    if (number && load_find(&load, service, *number) == 0)
        return load->checkpoint->run->name;
    return NULL;
}

/* Checks the run in the request, and the run of its session or load. Any caller may learn that a
 * session does not exist. */
static int check_runs(struct service *service, const ProtobufCMessage *message,
                      const struct principal *principal, const char *who, enum right right)
{
    char *const *field = field_of(message, "run", PROTOBUF_C_TYPE_STRING);
    bool has_owner = field_of(message, "session", PROTOBUF_C_TYPE_UINT64) ||
                     field_of(message, "load", PROTOBUF_C_TYPE_UINT64) ||
                     field_of(message, "handle", PROTOBUF_C_TYPE_UINT64); /* serve.P4 */
    const char *owner = owner_of(service, message), *run = field ? *field : "";
    if (run[0] != '\0' || !has_owner)
        ERR_TRY(rights_check(principal, who, right, run));
    return rights_check(principal, who, right, owner ? owner : has_owner ? principal->run : run);
}

/* The caller, as text as well, and its request. */
struct asking {
    const char *method;
    enum right right;
    bool is_logged;    /* also if it is granted */
    bool takes_memory; /* it is useless without shared memory or the bulk plane */
};

#define ASKED_AGAIN_MS 60000

/* A process that repeats the same call, on a full disk or after a refusal, without waiting, can
 * fill the log. So each is logged once in ASKED_AGAIN_MS; the newest SERVICE_ASKED_MAX are
 * remembered. */
static bool is_news(struct service *service, const char *method, const char *who, const char *what)
{
    struct asked *oldest = &service->asked[0];
    uint64_t hash = checksum_seeded(method, strlen(method), 0);
    hash = checksum_seeded(who, strlen(who), hash);
    hash = checksum_seeded(what, strlen(what), hash);
    for (uint32_t i = 0; i < SERVICE_ASKED_MAX; i++) {
        struct asked *asked = &service->asked[i];
        if (asked->hash == hash && asked->logged_ms != 0 &&
            clock_ms() - asked->logged_ms < ASKED_AGAIN_MS)
            return false;
        oldest = asked->logged_ms < oldest->logged_ms ? asked : oldest;
    }
    *oldest = (struct asked){hash, clock_ms()};
    return true;
}

/* Has the caller the right? Logs the caller and the request, also if it is refused; the files of
 * keep/ log the result. */
static bool is_granted(struct service *service, struct rpc_call *call,
                       const ProtobufCMessage *message, const struct asking *asking)
{
    struct principal principal;
    char who[RPC_WHO_MAX], what[1024] = "";
    size_t used = 0;
    bool is_known = rpc_call_principal(call, &principal, who);
    int error = is_known ? check_runs(service, message, &principal, who, asking->right)
                         : report_error(ERR_DENIED, NULL, "the connection was closed");
    if (error == 0 && asking->takes_memory && principal.kind != PRINCIPAL_USER && !service->bulk)
        error = report_error(ERR_DENIED,
                             "set tls.bulk, or ask the ckptd of the node that the ranks run on",
                             "%s needs memory that is shared with ckptd, and %s is on another node",
                             asking->method, who);
    if (error == 0 && !asking->is_logged)
        return true;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++)
        used +=
            put_field(what + used, sizeof what - used, &message->descriptor->fields[i], message);
    bool is_new = is_news(service, asking->method, who, what);
    if (error == 0) {
        log_print(is_new ? LOG_INFO : LOG_DEBUG, "ckptd", "%s asked for by %s%s", asking->method,
                  who, what);
        return true;
    }
    log_print(is_new ? LOG_WARN : LOG_DEBUG, "audit", "%s refused to %s%s: %s", asking->method, who,
              what, report_line());
    rpc_call_fail(call, error);
    return false;
}

/* Handlers that list checkpoints first refresh the tiers, as checkpoints may come or go without
 * ckptd. */
#define REFRESHES_FIRST(name, type, function)                                                    \
    static void now_##name(struct service *service, struct rpc_call *call,                       \
                           const ProtobufCMessage *request)                                      \
    {                                                                                            \
        function(service, call, (const Holdfast__V1__##type *)request);                          \
    }                                                                                            \
    static void refresh_and_##name(struct service *service, struct rpc_call *call,               \
                                   const Holdfast__V1__##type *request)                          \
    {                                                                                            \
        refresh_first(service, service->config->tier_look_ms, call, &request->base, now_##name); \
    }
REFRESHES_FIRST(list, ListRequest, list_call)
REFRESHES_FIRST(show, ShowRequest, list_show)
REFRESHES_FIRST(load, OpenLoadRequest, restore_open_load)

/* A method needs a right; rights.c says which role has it. A dry run needs only RIGHT_LOOK. The
 * right may depend on the request.
 *
 * X(method, message type, descriptor prefix, handler, right, is it logged when granted, does it
 * need shared memory or the bulk plane) */
#define UNLESS_DRY(right) (request->dry_run ? RIGHT_LOOK : (right))
#define METHODS(X)                                                                                 \
    X(Hello, HelloRequest, hello, do_hello, RIGHT_CONNECT, false, false)                           \
    X(OpenAttempt, OpenAttemptRequest, open_attempt, attempt_open, RIGHT_SAVE, true, true)         \
    X(Describe, DescribeRequest, describe, join_describe, RIGHT_SAVE, false, true)                 \
    X(BeginSave, BeginSaveRequest, begin_save, save_begin, RIGHT_SAVE, false, true)                \
    X(WaitSave, WaitSaveRequest, wait_save, save_wait, RIGHT_LOOK, false, false)                   \
    X(TellReplicas, TellReplicasRequest, tell_replicas, compare_call, RIGHT_SAVE, false, true)     \
    X(AbortSave, AbortSaveRequest, abort_save, save_abort, RIGHT_SAVE, true, true)                 \
    X(OpenLoad, OpenLoadRequest, open_load, refresh_and_load, RIGHT_LOAD, false, true)             \
    X(LoadShard, LoadShardRequest, load_shard, restore_load_shard, RIGHT_LOAD, false, true)        \
    X(ReleaseShard, ReleaseShardRequest, release_shard, restore_release_shard, RIGHT_LOAD, false,  \
      true)                                                                                        \
    X(CloseLoad, CloseLoadRequest, close_load, restore_close_load, RIGHT_LOAD, false, true)        \
    X(List, ListRequest, list, refresh_and_list, RIGHT_LOOK, false, false)                         \
    X(Show, ShowRequest, show, refresh_and_show, RIGHT_LOOK, false, false)                         \
    X(Prune, PruneRequest, prune, retain_prune, UNLESS_DRY(RIGHT_PRUNE), true, false)              \
    X(Pin, PinRequest, pin, pins_call, request->unpin ? RIGHT_OPERATE : RIGHT_PIN, true, false)    \
    X(Release, ReleaseRequest, release, admit_release, RIGHT_OPERATE, true, false)                 \
    X(Adopt, AdoptRequest, adopt, admit_adopt, RIGHT_OPERATE, true, false)                         \
    X(Gc, GcRequest, gc, gc_collect, UNLESS_DRY(RIGHT_OPERATE), true, false)                       \
    X(Scrub, ScrubRequest, scrub, scrub_call, RIGHT_OPERATE, true, false)                          \
    X(KeepVerified, KeepVerifiedRequest, keep_verified, verified_call, RIGHT_OPERATE, true, false) \
    X(History, HistoryRequest, history, do_history, RIGHT_LOOK, false, false)                      \
    X(Rescan, RescanRequest, rescan, refresh_call, RIGHT_LOOK, false, false)                       \
    X(Remove, RemoveRequest, remove, remove_call, UNLESS_DRY(RIGHT_OPERATE), true, false)          \
    X(Undelete, UndeleteRequest, undelete, undelete_call, UNLESS_DRY(RIGHT_OPERATE), true, false)  \
    X(ForceAttempt, ForceAttemptRequest, force_attempt, force_call, UNLESS_DRY(RIGHT_OPERATE),     \
      true, false)                                                                                 \
    X(Stop, StopRequest, stop, stop_call, RIGHT_STOP, true, false)                                 \
    X(AskSave, AskSaveRequest, ask_save, ask_save_call, RIGHT_STOP, true, false)                   \
    X(Attend, AttendRequest, attend, attend_call, RIGHT_SAVE, false, true)                         \
    X(Reload, ReloadRequest, reload, reload_call, RIGHT_OPERATE, true, false)                      \
    X(OpenBulk, OpenBulkRequest, open_bulk, plane_open_bulk, RIGHT_LOAD, false, false)             \
    X(Peer, PeerRequest, peer, serve_peer, serve_right(request), false, false)                     \
    X(Join, JoinRequest, join, lead_save_join, RIGHT_PEER, false, false)                           \
    X(BeginPart, BeginPartRequest, begin_part, lead_save_begin, RIGHT_PEER, false, false)          \
    X(ReportPart, ReportPartRequest, report_part, lead_save_report, RIGHT_PEER, false, false)      \
    X(Status, StatusRequest, status, do_status, RIGHT_LOOK, false, false)

/* Per method: the typed call on the service thread, and the function of the RPC thread. */
#define X(method, type, prefix, function, right, is_logged, takes_memory)                         \
    static void run_##prefix(struct service *service, struct rpc_call *call,                      \
                             const ProtobufCMessage *message)                                     \
    {                                                                                             \
        const Holdfast__V1__##type *request = (const Holdfast__V1__##type *)message;              \
        const struct asking asking = {#method, right, is_logged, takes_memory};                   \
        if (is_granted(service, call, message, &asking))                                          \
            function(service, call, request);                                                     \
    }                                                                                             \
    static void take_##prefix(void *user, struct rpc_call *call, const ProtobufCMessage *message) \
    {                                                                                             \
        post_request(user, call, message, run_##prefix);                                          \
    }
METHODS(X)
#undef X

const struct rpc_method service_calls[] = {
#define X(method, type, prefix, function, right, is_logged, takes_memory)               \
    {"/holdfast.v1.Checkpoint/" #method, &holdfast__v1__##prefix##_request__descriptor, \
     &holdfast__v1__##prefix##_reply__descriptor, take_##prefix},
    METHODS(X)
#undef X
        {NULL, NULL, NULL, NULL}};
