/* server.c - the service as a whole: what it is made of, the methods it answers and to whom, how it
 * ends.
 *
 * A call arrives on an RPC thread, which does nothing but post it; the service thread hands it to
 * the file that knows (table at the end). Every handler answers its call exactly once, now or
 * later.
 *
 * The end: draining refuses new work, waits until no save is in work and nothing is under way, at
 * most limits.drain_ms; then saves that still wait for a rank are given up. Calls that wait are
 * answered ERR_UNAVAILABLE. Ranks that are connected may have been told to end as well, and save a
 * last time behind the step that they are in: as long as there are any, saves may begin for
 * limits.last_save_ms. What the others of such a save must do, they may until it is over.
 *
 * Calls are answered while the memory of the pool is still being taken. When it cannot be had, the
 * end comes in the same way, and service_run() says why: saves, loads and plans count on the budget
 * that was set. */
#include "ckptd/server.h"
#include "ckptd/catalog.h"
#include "ckptd/door.h"
#include "ckptd/health.h"
#include "ckptd/keep/admit.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/retain.h"
#include "ckptd/keep/scrub.h"
#include "ckptd/loop.h"
#include "ckptd/metrics.h"
#include "ckptd/node/gate.h"
#include "ckptd/node/image.h"
#include "ckptd/node/pool.h"
#include "ckptd/node/session.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/open.h"
#include "ckptd/restore/shard.h"
#include "ckptd/run/attempt.h"
#include "ckptd/run/begin.h"
#include "ckptd/run/commit.h"
#include "ckptd/run/describe.h"
#include "ckptd/run/run.h"
#include "ckptd/run/save.h"
#include "ckptd/service.h"
#include "ckptd/status.h"
#include "proto/arena.h"
#include "proto/ckpt.pb-c.h"
#include "proto/manifest.h"
#include "proto/report.h"
#include "proto/rpc.h"
#include "proto/shard.h"
#include "proto/toml.h"
#include "storage/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define CLOSE_GRACE_MS 1000u
#define DRAIN_POLL_MS 10
#define LIST_PAGE_MAX 16384u      /* checkpoints in one answer; the others are on further pages */
#define LIST_ENTRY_BYTES_MAX 240u /* of a whole one on the wire: run, nonce, time, numbers */
_Static_assert(LIST_PAGE_MAX *LIST_ENTRY_BYTES_MAX < RPC_MESSAGE_BYTES_MAX, "a page is one reply");
#define LIST_UNREADABLE_MAX 256u /* runs that could not be read, in a list; Status has all */

#define LIST_DAMAGED_BYTES_MAX \
    (LIST_ENTRY_BYTES_MAX + sizeof((struct checkpoint *)0)->damage + PIN_NOTE_MAX + 16u)

/* ---- small things that all use ---- */

void service_random(void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t count = getrandom((uint8_t *)out + done, bytes - done, 0);
        CHECK(count > 0 || errno == EINTR);
        done += count > 0 ? (size_t)count : 0;
    }
}

int service_check_open(const struct service *service)
{
    if (!service->draining)
        return 0;
    return report_error(ERR_UNAVAILABLE, "wait for the next ckptd", "ckptd is shutting down");
}

int service_check_last_saves(const struct service *service)
{
    return service->takes_last_saves ? 0 : service_check_open(service);
}

int service_check_online(const struct service *service)
{
    if (!service->offline[0])
        return 0;
    return report_error(ERR_IO, "replace the disk, then restart ckptd", "the store is offline: %s",
                        service->offline);
}

void service_go_offline(struct service *service, const char *why)
{
    if (service->offline[0])
        return;
    snprintf(service->offline, sizeof service->offline, "%s", why);
    log_error("storage", "the store is offline, nothing more is saved: %s", why);
    health_look(service);
}

/* ---- Hello, List, Show, Status ---- */

static void do_hello(struct service *service, struct rpc_call *call,
                     const Holdfast__V1__HelloRequest *request)
{
    Holdfast__V1__HelloReply reply = HOLDFAST__V1__HELLO_REPLY__INIT;
    (void)request; /* the client compares; an older server may serve a newer client */
    reply.protocol = RPC_PROTOCOL;
    reply.version = (char *)report_version;
    reply.boot_id = service->boot_id;
    reply.arena_socket = service->arena_path;
    rpc_call_reply(call, &reply.base);
}

/* A page of a list: what it holds, and the name of the last one, behind which the next begins. So
 * pages stay right while checkpoints come and go between them. */
struct page {
    Holdfast__V1__CheckpointSummary *summaries, **pointers;
    uint32_t count;
    size_t room; /* bytes of the answer; damage and a pin have a text that makes entries longer */
    char next[STORAGE_KEY_MAX];
};

/* Where the page begins: in which run, and at which checkpoint of it. ERR_INVALID, ERR_NOT_FOUND.
 */
static int find_page(struct run **out_run, struct checkpoint **out, struct service *service,
                     const Holdfast__V1__ListRequest *request)
{
    char name[RUN_NAME_MAX + 1];
    unsigned long long step, attempt;
    int error = 0;
    *out_run = service->runs;
    if (request->page[0]) {
        if (sscanf(request->page, "%100[^/]/step-%llu-a%llu", name, &step, &attempt) != 3)
            return report_error(ERR_INVALID, "give `next` of the page before",
                                "\"%.120s\" does not name a page", request->page);
        error = run_find(out_run, service, name, false);
        *out = error == 0 ? catalog_behind(*out_run, step, attempt) : NULL;
        return error;
    }
    if (request->run[0])
        error = run_find(out_run, service, request->run, false);
    *out = error == 0 && *out_run ? (*out_run)->checkpoints : NULL;
    return error;
}

static Holdfast__V1__CheckpointSummary *add_entry(struct page *page)
{
    Holdfast__V1__CheckpointSummary *entry = &page->summaries[page->count];
    page->pointers[page->count++] = entry;
    return entry;
}

/* Nobody knows which checkpoints they have, but that they are there. */
static void add_unreadable(struct page *page, const struct service *service)
{
    for (struct run *run = service->runs; run && page->count < LIST_UNREADABLE_MAX;
         run = run->next) {
        if (run->unreadable.code == 0)
            continue;
        Holdfast__V1__CheckpointSummary *entry = add_entry(page);
        holdfast__v1__checkpoint_summary__init(entry);
        entry->run = run->name;
        entry->durability = "damaged";
        entry->damage = run->unreadable.message;
        page->room -= LIST_ENTRY_BYTES_MAX + strlen(entry->damage);
    }
}

/* From `checkpoint` of `run` on, to the end of the run or of all of them. */
static int fill_page(struct page *page, struct run *run, struct checkpoint *checkpoint,
                     bool one_run)
{
    const struct checkpoint *last = NULL;
    while (run && page->count < LIST_PAGE_MAX && page->room > LIST_DAMAGED_BYTES_MAX) {
        if (!checkpoint) {
            run = one_run ? NULL : run->next;
            checkpoint = run ? run->checkpoints : NULL;
            continue;
        }
        catalog_summary(add_entry(page), checkpoint);
        page->room -= LIST_ENTRY_BYTES_MAX + strlen(checkpoint->damage) +
                      (checkpoint->pin_note ? strlen(checkpoint->pin_note) : 0);
        last = checkpoint;
        checkpoint = checkpoint->next;
    }
    if (!run || !last)
        return 0;
    return shard_dir_key(page->next, sizeof page->next, run->name, last->summary.step,
                         last->summary.attempt);
}

static void do_list(struct service *service, struct rpc_call *call,
                    const Holdfast__V1__ListRequest *request)
{
    Holdfast__V1__ListReply reply = HOLDFAST__V1__LIST_REPLY__INIT;
    struct run *run = NULL;
    struct checkpoint *checkpoint = NULL;
    uint32_t most = service->num_checkpoints + LIST_UNREADABLE_MAX;
    most = most < LIST_PAGE_MAX ? most : LIST_PAGE_MAX;
    struct page page = {.summaries = calloc(most, sizeof *page.summaries),
                        .pointers = calloc(most, sizeof *page.pointers),
                        .room = RPC_MESSAGE_BYTES_MAX};
    int error = page.summaries && page.pointers
                    ? find_page(&run, &checkpoint, service, request)
                    : report_error(ERR_MEMORY, NULL, "no memory for a list");
    if (error == 0 && !request->run[0] && !request->page[0])
        add_unreadable(&page, service);
    if (error == 0)
        error = fill_page(&page, run, checkpoint, request->run[0]);
    reply.checkpoints = page.pointers;
    reply.n_checkpoints = page.count;
    reply.next = page.next;
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
    free(page.summaries);
    free(page.pointers);
}

struct showing {
    struct service *service;
    Holdfast__V1__SkippedCheckpoint skipped[RPC_SKIPPED_MAX], *pointers[RPC_SKIPPED_MAX];
    uint32_t num_skipped;
    struct rpc_call *call;
    char key[STORAGE_KEY_MAX + 1], prefix[STORAGE_KEY_MAX + 1];
    const char *durability; /* static */
    bool is_read_back;
    char pin_note[PIN_NOTE_MAX];
    bool is_pinned;
    char damage[sizeof((struct checkpoint *)0)->damage];
    void *text;
    struct fault fault;
    struct job job;
};

static void work_show(struct job *job)
{
    struct showing *showing = CONTAINER_OF(job, struct showing, job);
    struct storage *storage = showing->service->storage;
    size_t bytes = 0;
    int error =
        storage_fetch_all(storage, showing->key, MANIFEST_BYTES_MAX, &showing->text, &bytes);
    if (error == 0) /* a note that cannot be read hides no manifest */
        storage_group_find_pin(storage, &showing->is_pinned, showing->prefix, showing->pin_note,
                               sizeof showing->pin_note);
    if (error != 0)
        fault_take(&showing->fault, error);
}

static void free_showing(struct showing *showing)
{
    for (uint32_t i = 0; i < showing->num_skipped; i++)
        free(showing->skipped[i].damage);
    free(showing->text);
    free(showing);
}

static void shown(struct event *event)
{
    struct showing *showing = CONTAINER_OF(event, struct showing, job.done);
    Holdfast__V1__ShowReply reply = HOLDFAST__V1__SHOW_REPLY__INIT;
    reply.manifest_json = showing->text;
    reply.durability = (char *)(uintptr_t)showing->durability;
    reply.damage = showing->damage;
    reply.pinned = showing->is_pinned;
    reply.pin_note = showing->pin_note;
    reply.read_back = showing->is_read_back;
    reply.skipped = showing->pointers;
    reply.n_skipped = showing->num_skipped;
    if (showing->fault.code == 0)
        rpc_call_reply(showing->call, &reply.base);
    else
        rpc_call_fail(showing->call, fault_raise(&showing->fault));
    free_showing(showing);
}

/* Its text is copied: it may be gone by the time of the answer. */
static int skip_damaged(struct showing *showing, const struct checkpoint *checkpoint)
{
    if (showing->num_skipped == RPC_SKIPPED_MAX)
        return 0;
    Holdfast__V1__SkippedCheckpoint *skipped = &showing->skipped[showing->num_skipped];
    holdfast__v1__skipped_checkpoint__init(skipped);
    skipped->step = checkpoint->summary.step;
    skipped->attempt = checkpoint->summary.attempt;
    skipped->damage = strdup(checkpoint->damage);
    if (!skipped->damage)
        return report_error(ERR_MEMORY, NULL, "no memory to show a manifest");
    showing->pointers[showing->num_skipped++] = skipped;
    return 0;
}

/* In the words of ckpt-cli on a directory. */
static int report_none(const struct run *run, const Holdfast__V1__ShowRequest *request,
                       bool any_damaged)
{
    char step[32] = "";
    if (request->step < 0 && !request->attempt && any_damaged)
        return report_error(ERR_CORRUPT, "name a step to look at it all the same",
                            "every checkpoint of run '%s' is damaged", run->name);
    if (request->step >= 0)
        snprintf(step, sizeof step, " of step %lld", (long long)request->step);
    return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "run '%s' has no checkpoint%s%s",
                        run->name, step, request->attempt ? " by that attempt" : "");
}

static int find_shown(struct showing *showing, struct checkpoint **out, struct service *service,
                      const Holdfast__V1__ShowRequest *request)
{
    struct run *run;
    int error = run_find(&run, service, request->run, false);
    if (error != 0)
        return error;
    struct checkpoint *found = NULL;
    for (struct checkpoint *c = run->checkpoints; c && !found && error == 0; c = c->next) {
        if ((request->step >= 0 && c->summary.step != (uint64_t)request->step) ||
            (request->attempt && c->summary.attempt != request->attempt))
            continue;
        if (request->step < 0 && c->damaged)
            error = skip_damaged(showing, c);
        else
            found = c;
    }
    *out = found;
    if (error == 0 && !found)
        error = report_none(run, request, showing->num_skipped > 0);
    return error;
}

static void do_show(struct service *service, struct rpc_call *call,
                    const Holdfast__V1__ShowRequest *request)
{
    Holdfast__V1__CheckpointSummary summary;
    struct checkpoint *checkpoint = NULL;
    struct showing *showing = calloc(1, sizeof *showing);
    int error = showing ? 0 : report_error(ERR_MEMORY, NULL, "no memory to show a manifest");
    if (error == 0)
        error = find_shown(showing, &checkpoint, service, request);
    if (error == 0)
        error = manifest_key(showing->key, sizeof showing->key, &checkpoint->summary);
    if (error == 0)
        error = shard_dir_key(showing->prefix, sizeof showing->prefix, checkpoint->run->name,
                              checkpoint->summary.step, checkpoint->summary.attempt);
    if (error != 0) {
        if (showing)
            free_showing(showing);
        rpc_call_fail(call, error);
        return;
    }
    catalog_summary(&summary, checkpoint);
    showing->durability = summary.durability;
    showing->is_read_back = summary.read_back;
    snprintf(showing->damage, sizeof showing->damage, "%s", summary.damage);
    showing->service = service;
    showing->call = call;
    showing->job = (struct job){.work = work_show, .done.run = shown};
    loop_work(service->loop, &showing->job);
}

static void do_status(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__StatusRequest *request)
{
    Holdfast__V1__StatusReply reply = HOLDFAST__V1__STATUS_REPLY__INIT;
    char *text = service_status(service);
    (void)request;
    reply.json = text;
    if (text)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for the status"));
    free(text);
}

/* ---- calls ---- */

/* A call on its way from an RPC thread. */
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

/* What one field of a request says, behind what is there: ", step 10"; nothing of what is not set,
 * or long. */
static size_t put_field(char *out, size_t size, const ProtobufCFieldDescriptor *field,
                        const ProtobufCMessage *message)
{
    const void *value = (const char *)message + field->offset;
    int bytes = 0;
    CHECK(field->label != PROTOBUF_C_LABEL_REPEATED);
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

/* May who asks for something that changes the store have it? The log says who it was, and what was
 * asked for, also when it is refused; the files of keep/ tell what came of it. */
static bool is_granted(struct service *service, struct rpc_call *call, const char *method,
                       const ProtobufCMessage *message, bool for_operators)
{
    char who[RPC_WHO_MAX], what[1024] = "";
    size_t used = 0;
    uid_t uid;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++)
        used +=
            put_field(what + used, sizeof what - used, &message->descriptor->fields[i], message);
    bool is_known = rpc_call_who(call, &uid, who);
    if (!for_operators || (is_known && door_is_operator(service, uid))) {
        log_info("ckptd", "%s asked for by %s%s", method, who, what);
        return true;
    }
    log_warn("ckptd", "%s refused to %s, who is no operator%s", method, who, what);
    rpc_call_fail(call, report_error(ERR_DENIED,
                                     "come as ckptd's user or root, or be one of access.operators",
                                     "only operators may remove, free or add checkpoints, and "
                                     "%s is none",
                                     who));
    return false;
}

/* Who may come in may save, load, look, and protect with a pin. What removes checkpoints or other
 * files, takes a protection away, or adds what no rank saved, is for operators; a dry run does
 * none of that. The request is at hand where the last column is asked.
 *
 * X(method, message type, descriptor prefix, handler, is it logged who asks?, for operators?) */
#define METHODS(X)                                                                           \
    X(Hello, HelloRequest, hello, do_hello, false, false)                                    \
    X(OpenAttempt, OpenAttemptRequest, open_attempt, attempt_open, true, false)              \
    X(Describe, DescribeRequest, describe, session_describe, false, false)                   \
    X(BeginSave, BeginSaveRequest, begin_save, save_begin, false, false)                     \
    X(WaitSave, WaitSaveRequest, wait_save, save_wait, false, false)                         \
    X(AbortSave, AbortSaveRequest, abort_save, save_abort, true, false)                      \
    X(OpenLoad, OpenLoadRequest, open_load, restore_open_load, false, false)                 \
    X(LoadShard, LoadShardRequest, load_shard, restore_load_shard, false, false)             \
    X(ReleaseShard, ReleaseShardRequest, release_shard, restore_release_shard, false, false) \
    X(CloseLoad, CloseLoadRequest, close_load, restore_close_load, false, false)             \
    X(List, ListRequest, list, do_list, false, false)                                        \
    X(Show, ShowRequest, show, do_show, false, false)                                        \
    X(Prune, PruneRequest, prune, retain_prune, true, !request->dry_run)                     \
    X(Pin, PinRequest, pin, retain_pin, true, request->unpin)                                \
    X(Release, ReleaseRequest, release, admit_release, true, true)                           \
    X(Adopt, AdoptRequest, adopt, admit_adopt, true, true)                                   \
    X(Gc, GcRequest, gc, gc_collect, true, !request->dry_run)                                \
    X(Status, StatusRequest, status, do_status, false, false)

/* Per method: the typed call on the service thread, and what an RPC thread does. */
#define X(method, type, prefix, function, is_logged, for_operators)                               \
    static void run_##prefix(struct service *service, struct rpc_call *call,                      \
                             const ProtobufCMessage *message)                                     \
    {                                                                                             \
        const Holdfast__V1__##type *request = (const Holdfast__V1__##type *)message;              \
        bool asks_much = (for_operators);                                                         \
        if ((is_logged || asks_much) && !is_granted(service, call, #method, message, asks_much))  \
            return;                                                                               \
        function(service, call, request);                                                         \
    }                                                                                             \
    static void take_##prefix(void *user, struct rpc_call *call, const ProtobufCMessage *message) \
    {                                                                                             \
        post_request(user, call, message, run_##prefix);                                          \
    }
METHODS(X)
#undef X

static const struct rpc_method methods[] = {
#define X(method, type, prefix, function, is_logged, for_operators)                     \
    {"/holdfast.v1.Checkpoint/" #method, &holdfast__v1__##prefix##_request__descriptor, \
     &holdfast__v1__##prefix##_reply__descriptor, take_##prefix},
    METHODS(X)
#undef X
        {NULL, NULL, NULL, NULL}};

/* ---- opening ---- */

/* Where tools on this node find the files, and by what they know that the directory is the same. */
static void note_directory(struct service *service, const char *where)
{
    struct stat status;
    service->store_path = realpath(where, NULL);
    if (service->store_path && stat(service->store_path, &status) == 0)
        snprintf(service->store_id, sizeof service->store_id, "%llx:%llx",
                 (unsigned long long)status.st_dev, (unsigned long long)status.st_ino);
}

static int open_storage(struct service *service)
{
    const struct config *config = service->config;
    const struct storage_ops *ops = &storage_local;
    const char *where = config->store;
    if (strncmp(where, "memory:", 7) == 0 || strncmp(where, "fault:", 6) == 0) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)(strchr(where, ':') - where), where);
        ops = storage_find(name);
        where = strchr(where, ':') + 1;
        CHECK(ops);
    }
    struct storage_options options = {.is_ours_alone = true,
                                      .queue_depth = (uint32_t)config->queue_depth,
                                      .force_pwrite = strcmp(config->engine, "pwrite") == 0,
                                      .num_threads = (uint32_t)config->storage_threads};
    int error = storage_io_priority_parse(&options.io_priority, config->pace_io_priority);
    CHECK(error == 0); /* config_load has asked */
    error = storage_open(&service->storage, ops, where, &options);
    if (error == 0 && ops == &storage_local)
        note_directory(service, where);
    return error == 0 ? storage_lock(service->storage) : error;
}

/* Registered buffers count as locked memory, every session has descriptors: take what is allowed.
 */
static void raise_limits(void)
{
    const int kinds[] = {RLIMIT_MEMLOCK, RLIMIT_NOFILE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)kinds[i], &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit((__rlimit_resource_t)kinds[i], &limit); /* best effort */
        }
    }
}

static void drain(struct event *event);

int service_open(struct service **out, const struct config *config)
{
    struct service *service = calloc(1, sizeof *service);
    if (!service)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    service->config = config;
    service->opened_ms = loop_now_ms();
    service->drain_event.run = drain;
    service->ledger.usable_fraction = config->usable_fraction;
    gate_init(service);
    snprintf(service->socket_path, sizeof service->socket_path, "%s", config->listen + 5);
    snprintf(service->arena_path, sizeof service->arena_path, "%s.arena", service->socket_path);
    while (service->boot_id == 0)
        service_random(&service->boot_id, sizeof service->boot_id);
    raise_limits();
    struct rpc_server_options rpc = {.methods = methods,
                                     .user = service,
                                     .num_threads = (uint32_t)config->threads_rpc,
                                     .num_connections =
                                         (uint32_t)config->limit_sessions + RPC_CONNECTIONS_BESIDE};
    service->failures = calloc(FAILURES_MAX, sizeof *service->failures);
    int error = service->failures ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the service");
    if (error == 0)
        error = loop_open(&service->loop, (uint32_t)config->threads_workers,
                          (int)config->pace_cpu_nice);
    if (error == 0)
        error = open_storage(service);
    if (error == 0)
        error =
            pool_open(&service->pool, (uint64_t)config->pool_bytes, (uint64_t)config->segment_bytes,
                      strcmp(config->huge_pages, "auto") == 0, service->storage);
    if (error == 0)
        error = session_table_open(service);
    if (error == 0)
        error = restore_open(service);
    if (error == 0)
        error = catalog_open(service);
    if (error == 0)
        error = scrub_open(service);
    if (error == 0)
        retain_open(service);
    if (error == 0)
        error = metrics_open(service);
    if (error == 0)
        error = rpc_server_open(&service->rpc, &rpc);
    if (error == 0)
        health_open(service);
    if (error == 0)
        error = door_open(service);
    if (error != 0) {
        service_close(service);
        return error;
    }
    save_renew(service);
    log_info("ckptd", "version %s ready on %s; store %s (%s); pool of %u segments of %llu bytes",
             report_version, config->listen, config->store, storage_describe(service->storage),
             pool_size(service->pool), (unsigned long long)pool_segment_bytes(service->pool));
    *out = service;
    return 0;
}

int service_run(struct service *service)
{
    loop_run(service->loop);
    return fault_raise(&service->fault);
}

/* ---- draining ---- */

static bool is_quiet(const struct service *service)
{
    for (const struct run *run = service->runs; run; run = run->next)
        if (run->saves || run->opening.call)
            return false;
    for (const struct image *image = service->images; image; image = image->next)
        if (image->busy > 0)
            return false;
    return loop_is_idle(service->loop);
}

/* An idle rank cannot be told from one that computes its last step, so the time is short. */
static bool awaits_last_saves(const struct service *service)
{
    return loop_now_ms() < service->last_saves_until_ms && !service->offline[0] &&
           session_any_rank(service);
}

static void drain_again(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, drain_timer);
    if (service->takes_last_saves && !awaits_last_saves(service)) {
        service->takes_last_saves = false;
        save_begin_wake(service);
    }
    if (!service->takes_last_saves && is_quiet(service)) {
        loop_stop(service->loop);
        return;
    }
    if (loop_now_ms() >= service->drain_until_ms) {
        for (struct run *run = service->runs; run; run = run->next) {
            struct commit_actions actions = {0};
            commit_abort_all(&run->machine, &actions, "ckptd was told to end");
            run_perform(run, &actions);
        }
    }
    loop_timer(service->loop, &service->drain_timer, DRAIN_POLL_MS);
}

static void drain(struct event *event)
{
    struct service *service = CONTAINER_OF(event, struct service, drain_event);
    int64_t drain_ms = service->config->limit_drain_ms;
    int64_t last_ms = service->config->limit_last_save_ms;
    uint32_t saves = 0;
    for (const struct run *run = service->runs; run; run = run->next)
        saves += commit_num_saves(&run->machine);
    last_ms = last_ms < drain_ms ? last_ms : drain_ms;
    log_info("ckptd",
             "ending: %u saves in work get %lld ms; ranks that are connected may begin a last one "
             "for %lld ms",
             saves, (long long)drain_ms, (long long)last_ms);
    service->draining = service->takes_last_saves = true;
    gate_hurry(service);
    service->drain_until_ms = loop_now_ms() + drain_ms;
    service->last_saves_until_ms = loop_now_ms() + last_ms;
    service->drain_timer.run = drain_again;
    rpc_server_set_serving(service->rpc, false);
    loop_timer(service->loop, &service->drain_timer, 0);
}

void service_drain(struct service *service)
{
    if (!atomic_exchange(&service->drain_asked, true)) /* there is one event */
        loop_post(service->loop, &service->drain_event);
}

bool service_is_ending(const struct service *service)
{
    return atomic_load(&service->drain_asked);
}

/* Not at once: saves in work can be finished in the memory that they have. */
void service_give_up(struct service *service, const struct fault *fault)
{
    service->fault = *fault;
    fault_raise(fault);
    log_error("ckptd", "%s", report_line());
    service_drain(service);
}

/* ---- closing ---- */

/* Calls that wait for something that will not come any more. */
static void fail_waiting(struct service *service)
{
    for (struct run *run = service->runs; run; run = run->next) {
        if (run->opening.call)
            rpc_call_fail(run->opening.call, service_check_open(service));
        run->opening.call = NULL;
        if (run->group)
            group_free(run->group);
    }
    save_begin_close(service);
}

void service_close(struct service *service)
{
    if (!service)
        return;
    service->draining = true;
    service->takes_last_saves = false;
    if (service->sessions)
        fail_waiting(service);
    if (service->rpc)
        rpc_server_close(service->rpc, CLOSE_GRACE_MS);
    /* What came in meanwhile is answered, though nobody hears it, so that its memory is freed. */
    if (service->loop)
        loop_run_pending(service->loop);
    door_close(service);
    session_table_close(service);
    restore_close(service);
    CHECK(service->chunks_in_passes == 0); /* the loop ends when it is idle */
    while (service->images) {
        struct image *image = service->images;
        image_detach(image);
        image_free(image);
    }
    catalog_close(service);
    loop_close(service->loop);
    scrub_close(service);
    metrics_close(service);
    if (service->storage)
        storage_close(service->storage);
    pool_close(service->pool);
    free(service->failures);
    free(service->store_path);
    free(service);
}
