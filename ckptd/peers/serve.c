/* serve.c - serves this ckptd's store: other nodes write copies of their checkpoints into the store
 * or its memory (replica.c, invariants replica.M1 to M6), nodes and tools read. The server's side
 * of storage/peer.c.
 *
 *   service thread: checks caller, key, handle ──► crew: the operation on the storage
 *     ──► service thread: the answer; after a manifest, accept_copy.c refreshes the catalog:
 *         the checkpoint is listed, loaded and retained like this ckptd's own
 *
 * Invariants (cited in the code):
 *   serve.P1  ckptd publishes a manifest only when every shard that it names is here, with its
 *       header, size and checksum table. Else the answer is ERR_STALE, and the node sends the
 *       shards again: a restart of this ckptd may have removed the earlier ones as unfinished work.
 *   serve.P2  A node removes no file of a committed copy, and no manifest, attempt, pin or note:
 *       only its own unfinished files. Shards that a part lacks are such.
 *   serve.P3  Only the identity that got a handle may use it (handles.c).
 *   serve.P4  A client that is not a node may only open, read, fetch, list and lease. One whose
 *       rights are for one run may name only files of that run.
 *   serve.P5  ckptd accepts the number of an attempt only as sets.c says (sets.S2).
 *   serve.P6  For a tool ckptd reads a shard that a part lacks from the node that has it. A node
 *       asks that node itself.
 *   serve.P7  A tool reads every checkpoint that this ckptd lists: if it is not in this store, from
 *       the tier that a load reads; lists have its name. A node sees only this ckptd's own store.
 *
 * A node's leases keep this ckptd from removing the files meanwhile. Bytes are sent and received
 * over the bulk plane (bulk/bulk_handles.c) where there is one, else by these calls. */
#include "ckptd/peers/serve.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/sets_file.h"
#include "ckptd/core/store_key.h"
#include "ckptd/machines/sets.h"
#include "ckptd/peers/accept_copy.h"
#include "ckptd/peers/handle_expiry.h"
#include "ckptd/peers/handles.h"
#include "ckptd/peers/replica.h"
#include "ckptd/tiers/complete_copy.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CREW_THREADS 2u
#define TEXT_MAX (RPC_MESSAGE_BYTES_MAX - 4096u)
#define ENTRIES_MAX 65536u
#define HOLD_TEXT_MAX 4096u

struct serving {
    struct crew *crew;
    struct handles *handles;
};

/* A call in progress on the crew. */
struct errand {
    struct service *service;
    struct rpc_call *call;
    const Holdfast__V1__PeerRequest *request; /* owned by the call */
    struct principal principal;
    enum tier_index tier;  /* serve.P7 */
    struct handle *handle; /* in use, or made by this call, or NULL */
    struct handle *old;    /* expired: to be closed */
    void *data;
    uint64_t bytes, data_bytes;
    Holdfast__V1__PeerEntry **entries;
    uint32_t num_entries, room_entries;
    struct sets sets; /* the nodes of an attempt's number that was accepted */
    struct accept_copy arrival;
    struct fault fault;
    struct job job;
};

/* ---- the operations, on the crew ---- */

static int do_create(struct errand *errand, struct storage *storage)
{
    struct storage_space space;
    const Holdfast__V1__PeerRequest *request = errand->request;
    struct ledger ledger = {.usable_fraction = errand->service->config->usable_fraction};
    if (request->bytes == 0 || request->bytes % STORAGE_ALIGN != 0)
        return report_error(ERR_INVALID, NULL, "a shard of %llu bytes is not whole blocks",
                            (unsigned long long)request->bytes);
    ERR_TRY(storage_space(storage, &space));
    if (storage != errand->service->storage)
        ledger.usable_fraction = 1.0; /* replica.M6: the setting is the limit */
    if (space.bytes_total > 0 && ledger_room(&ledger, &space) < request->bytes)
        return report_error(ERR_SPACE, "free space on the node, or raise its usable_fraction",
                            "no room for %llu bytes of a copy", (unsigned long long)request->bytes);
    if (storage != errand->service->storage)
        errand->handle->elsewhere = storage;
    errand->handle->is_writer = true;
    errand->handle->bytes = request->bytes;
    return storage_object_create(storage, &errand->handle->object, request->key, request->bytes);
}

/* A part lacks the shard and names the node that has it: this node reads it from there for the
 * client. */
static int open_elsewhere(struct errand *errand, struct storage *storage)
{
    struct service *service = errand->service;
    struct handle *handle = errand->handle;
    struct manifest_summary place = {0};
    struct report_text kept;
    const char *name = "", *key = errand->request->key;
    char node[PLACES_NODE_BYTES];
    report_keep(&kept);
    if (!store_key_parse(&place, &name, key) ||
        complete_copy_find_shard(node, storage, &place, name) != 0)
        return report_restore(&kept, ERR_NOT_FOUND);
    unsigned tier = catalog_tier_of(service, node);
    if (tier == NUM_TIERS)
        return report_error(ERR_NOT_FOUND, "add it to nodes.peers",
                            "%s lies on node %s, which is not a peer", key, node);
    handle->elsewhere = service->tiers[tier].storage;
    int error = storage_object_open(handle->elsewhere, &handle->object, key, &handle->bytes);
    if (error == 0)
        return 0;
    char why[512];
    snprintf(why, sizeof why, "%s", report_message());
    return report_error(error, "start that node", "%s lies on node %s: %s", key, node, why);
}

/* serve.P6. */
static int do_open(struct errand *errand, struct storage *storage)
{
    struct handle *handle = errand->handle;
    struct storage *memory = errand->service->tiers[TIER_MEMORY].storage;
    const char *key = errand->request->key;
    int error = storage_object_open(storage, &handle->object, key, &handle->bytes);
    if (error == 0 && errand->tier != TIER_LOCAL)
        handle->elsewhere = storage;
    if (error == ERR_NOT_FOUND && memory) { /* replica.M2 */
        error = storage_object_open(memory, &handle->object, key, &handle->bytes);
        handle->elsewhere = error == 0 ? memory : NULL;
    }
    if (error == ERR_NOT_FOUND && errand->principal.role != ROLE_NODE)
        error = open_elsewhere(errand, storage);
    errand->bytes = handle->bytes;
    return error;
}

static int do_close(struct errand *errand, struct storage *storage)
{
    struct handle *handle = errand->handle;
    errand->handle = NULL;
    (void)storage;
    handle_expiry_end(errand->service, handle,
                      errand->request->stays && errand->principal.role == ROLE_NODE);
    return 0;
}

static int make_room(struct errand *errand, uint64_t bytes)
{
    errand->data_bytes = bytes;
    return posix_memalign(&errand->data, STORAGE_ALIGN, bytes) == 0
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for a chunk");
}

static int do_write(struct errand *errand, struct storage *storage)
{
    const Holdfast__V1__PeerRequest *request = errand->request;
    ERR_TRY(handle_check_writer(errand->handle));
    ERR_TRY(handle_check_range(errand->handle, request->offset, request->data.len));
    ERR_TRY(make_room(errand, request->data.len));
    memcpy(errand->data, request->data.data, request->data.len);
    errand->data_bytes = 0;
    return storage_transfer(handle_storage(errand->handle, storage), STORAGE_WRITE,
                            errand->handle->object, request->offset, errand->data,
                            (uint32_t)request->data.len);
}

static int do_read(struct errand *errand, struct storage *storage)
{
    const Holdfast__V1__PeerRequest *request = errand->request;
    ERR_TRY(handle_check_range(errand->handle, request->offset, request->bytes));
    ERR_TRY(make_room(errand, request->bytes));
    return storage_transfer(handle_storage(errand->handle, storage), STORAGE_READ,
                            errand->handle->object, request->offset, errand->data,
                            (uint32_t)request->bytes);
}

static int do_sync(struct errand *errand, struct storage *storage)
{
    ERR_TRY(handle_check_writer(errand->handle));
    return storage_transfer(handle_storage(errand->handle, storage), STORAGE_SYNC,
                            errand->handle->object, 0, NULL, 0);
}

static int do_sync_names(struct errand *errand, struct storage *storage)
{
    return storage_sync_names(storage, errand->request->key);
}

static int do_publish(struct errand *errand, struct storage *storage)
{
    struct manifest_summary place = {0};
    const char *name = "";
    const Holdfast__V1__PeerRequest *request = errand->request;
    if (store_key_parse(&place, &name, request->key) && strcmp(name, MANIFEST_NAME) == 0)
        return accept_copy_publish(&errand->arrival, storage, request->key, &place,
                                   request->data.data, request->data.len);
    const char *text = (const char *)request->data.data;
    char run[RUN_NAME_MAX + 1];
    uint64_t number;
    if (store_key_parse_attempt(run, &number, request->key))
        return sets_file_take(&errand->sets, storage, request->key, text, request->data.len);
    if (store_key_is_held(request->key))
        return sets_file_hold(storage, request->key, text, request->data.len);
    return storage_publish(storage, request->key, text, request->data.len);
}

static int do_fetch(struct errand *errand, struct storage *storage)
{
    uint64_t size = errand->request->bytes < TEXT_MAX ? errand->request->bytes : TEXT_MAX;
    ERR_TRY(make_room(errand, size + 1));
    struct storage *memory = errand->service->tiers[TIER_MEMORY].storage;
    const char *key = errand->request->key;
    int error = storage_fetch(storage, key, errand->data, size, &errand->bytes);
    if (error == ERR_NOT_FOUND && memory) /* replica.M2 */
        error = storage_fetch(memory, key, errand->data, size, &errand->bytes);
    errand->data_bytes = errand->bytes < size ? errand->bytes : size;
    return error;
}

static int visit_entry(void *user, const struct storage_entry *entry)
{
    struct errand *errand = user;
    for (uint32_t i = 0; entry->is_volatile && i < errand->num_entries; i++)
        if (strcmp(errand->entries[i]->name, entry->name) == 0)
            return 0; /* it is on the disk as well */
    if (errand->num_entries == ENTRIES_MAX)
        return report_error(ERR_INVALID, NULL, "more than %u names", ENTRIES_MAX);
    ERR_TRY(array_reserve(&errand->entries, &errand->room_entries, errand->num_entries,
                          sizeof(Holdfast__V1__PeerEntry *)));
    Holdfast__V1__PeerEntry *found = malloc(sizeof *found);
    char *name = strdup(entry->name);
    if (!found || !name) {
        free(found);
        free(name);
        return report_error(ERR_MEMORY, NULL, "no memory for names");
    }
    holdfast__v1__peer_entry__init(found);
    found->name = name;
    found->is_dir = entry->is_dir;
    found->bytes = entry->bytes;
    found->in_memory = entry->is_volatile;
    errand->entries[errand->num_entries++] = found;
    return 0;
}

static int compare_entries(const void *a, const void *b)
{
    const Holdfast__V1__PeerEntry *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int do_list(struct errand *errand, struct storage *storage)
{
    struct storage *memory = errand->service->tiers[TIER_MEMORY].storage;
    int error = storage_list(storage, errand->request->key, visit_entry, errand);
    if (memory && (error == 0 || error == ERR_NOT_FOUND)) /* replica.M2 */
        error = storage_list(memory, errand->request->key, visit_entry, errand);
    if (errand->principal.role != ROLE_NODE && errand->num_entries > 0)
        qsort(errand->entries, errand->num_entries, sizeof(Holdfast__V1__PeerEntry *),
              compare_entries);
    return error;
}

/* serve.P2. */
static int do_remove(struct errand *errand, struct storage *storage)
{
    struct manifest_summary place = {0};
    const char *name = "";
    bool is_in_step = store_key_parse(&place, &name, errand->request->key);
    bool is_mark = is_in_step && strcmp(name, MARK_NAME) == 0;
    bool is_shard =
        is_in_step && shard_is_file_name(name) && !complete_copy_has_shard(storage, &place, name);
    if (!is_mark && !is_shard)
        return report_error(ERR_DENIED, "ask an operator of that node",
                            "a node may not remove %.200s", errand->request->key);
    return storage_remove(storage, errand->request->key);
}

static int do_hold(struct errand *errand, struct storage *storage)
{
    const ProtobufCBinaryData *text = &errand->request->data;
    if (text->len > HOLD_TEXT_MAX)
        return report_error(ERR_INVALID, NULL, "a lease of more than %u bytes", HOLD_TEXT_MAX);
    snprintf(errand->handle->held, sizeof errand->handle->held, "%s", errand->request->key);
    if (errand->tier != TIER_LOCAL)
        errand->handle->elsewhere = storage;
    return storage_hold(storage, &errand->handle->hold, errand->request->key, text->data,
                        text->len);
}

enum handle_use { NO_HANDLE, NEW_HANDLE, USES_HANDLE, LAST_OF_HANDLE };

static const struct operation {
    int (*perform)(struct errand *errand, struct storage *storage);
    enum handle_use use;
    enum store_key_kind key;
    enum right right;
    /* Stored where replica_place() says; other operations use the disk, or the storage of their
     * handle. */
    bool is_placed;
} operations[] = {
    [HOLDFAST__V1__PEER_OP__PEER_CREATE] = {do_create, NEW_HANDLE, STORE_KEY_SHARD, RIGHT_PEER,
                                            true},
    [HOLDFAST__V1__PEER_OP__PEER_OPEN] = {do_open, NEW_HANDLE, STORE_KEY_SHARD, RIGHT_LOAD, false},
    [HOLDFAST__V1__PEER_OP__PEER_CLOSE] = {do_close, LAST_OF_HANDLE, STORE_KEY_NONE, RIGHT_LOAD,
                                           false},
    [HOLDFAST__V1__PEER_OP__PEER_WRITE] = {do_write, USES_HANDLE, STORE_KEY_NONE, RIGHT_PEER,
                                           false},
    [HOLDFAST__V1__PEER_OP__PEER_READ] = {do_read, USES_HANDLE, STORE_KEY_NONE, RIGHT_LOAD, false},
    [HOLDFAST__V1__PEER_OP__PEER_SYNC] = {do_sync, USES_HANDLE, STORE_KEY_NONE, RIGHT_PEER, false},
    [HOLDFAST__V1__PEER_OP__PEER_SYNC_NAMES] = {do_sync_names, NO_HANDLE, STORE_KEY_ANY, RIGHT_PEER,
                                                true},
    [HOLDFAST__V1__PEER_OP__PEER_PUBLISH] = {do_publish, NO_HANDLE, STORE_KEY_SMALL, RIGHT_PEER,
                                             true},
    [HOLDFAST__V1__PEER_OP__PEER_FETCH] = {do_fetch, NO_HANDLE, STORE_KEY_ANY, RIGHT_LOAD, false},
    [HOLDFAST__V1__PEER_OP__PEER_LIST] = {do_list, NO_HANDLE, STORE_KEY_ANY, RIGHT_LOAD, false},
    [HOLDFAST__V1__PEER_OP__PEER_REMOVE] = {do_remove, NO_HANDLE, STORE_KEY_ANY, RIGHT_PEER, true},
    [HOLDFAST__V1__PEER_OP__PEER_HOLD] = {do_hold, NEW_HANDLE, STORE_KEY_LEASE, RIGHT_LOAD, false},
    [HOLDFAST__V1__PEER_OP__PEER_RELEASE] = {do_close, LAST_OF_HANDLE, STORE_KEY_NONE, RIGHT_LOAD,
                                             false},
};

static bool is_known(const Holdfast__V1__PeerRequest *request)
{
    return (unsigned)request->op < sizeof operations / sizeof operations[0];
}

enum right serve_right(const Holdfast__V1__PeerRequest *request)
{
    return is_known(request) ? operations[request->op].right : RIGHT_PEER;
}

static void work_errand(struct job *job)
{
    struct errand *errand = CONTAINER_OF(job, struct errand, job);
    struct storage *storage = errand->service->tiers[errand->tier].storage;
    handle_expiry_end(errand->service, errand->old, false);
    errand->old = NULL;
    const struct operation *operation = &operations[errand->request->op];
    if (operation->is_placed)
        storage = replica_place(errand->service, errand->request->key);
    int error = operation->perform(errand, storage);
    if (error != 0)
        fault_take(&errand->fault, error);
}

/* ---- the answer ---- */

static void free_errand(struct errand *errand)
{
    for (uint32_t i = 0; i < errand->num_entries; i++) {
        free(errand->entries[i]->name);
        free(errand->entries[i]);
    }
    free(errand->entries);
    free(errand->data);
    sets_free(&errand->sets);
    free(errand);
}

static void send_reply(struct errand *errand)
{
    Holdfast__V1__PeerReply send_reply = HOLDFAST__V1__PEER_REPLY__INIT;
    send_reply.handle = errand->handle ? errand->handle->token : 0;
    send_reply.bytes = errand->bytes;
    send_reply.data = (ProtobufCBinaryData){errand->data_bytes, errand->data};
    send_reply.n_entries = errand->num_entries;
    send_reply.entries = errand->entries;
    rpc_call_reply(errand->call, &send_reply.base);
}

static void announced(struct accept_copy *arrival)
{
    free_errand(CONTAINER_OF(arrival, struct errand, arrival));
}

/* Adds the name unless the first `known` entries, which are sorted, have it. */
static int add_name(struct errand *errand, const char *name, uint32_t known)
{
    Holdfast__V1__PeerEntry key = HOLDFAST__V1__PEER_ENTRY__INIT;
    const Holdfast__V1__PeerEntry *pointer = &key;
    key.name = (char *)(uintptr_t)name;
    if (known > 0 && bsearch(&pointer, errand->entries, known, sizeof pointer, compare_entries))
        return 0;
    return visit_entry(errand, &(struct storage_entry){.name = name, .is_dir = true});
}

/* serve.P7: adds the names that only other tiers have, of runs and of a run's checkpoints. */
static int add_elsewhere(struct errand *errand)
{
    const char *key = errand->request->key;
    uint32_t known = errand->num_entries;
    for (struct run *run = errand->service->catalog->runs; run; run = run->next) {
        bool is_run = strcmp(run->name, key) == 0, is_any = false;
        for (struct checkpoint *c = run->checkpoints; c && (is_run || (!key[0] && !is_any));
             c = c->next) {
            char directory[STORAGE_KEY_MAX];
            is_any |= !c->copies.local.is_there;
            if (!is_run || c->copies.local.is_there)
                continue;
            ERR_TRY(shard_dir_key(directory, sizeof directory, run->name, c->summary.step,
                                  c->summary.attempt));
            ERR_TRY(add_name(errand, strrchr(directory, '/') + 1, known));
        }
        if (!key[0] && is_any)
            ERR_TRY(add_name(errand, run->name, known));
    }
    if (errand->num_entries > known && errand->fault.code == ERR_NOT_FOUND)
        errand->fault = (struct fault){0};
    return 0;
}

/* Another node has started, or is starting, a run: no start here may use an older number. */
static void note_attempt(struct errand *errand)
{
    char name[RUN_NAME_MAX + 1];
    uint64_t number;
    struct run *run;
    struct service *service = errand->service;
    if (errand->request->op != HOLDFAST__V1__PEER_OP__PEER_PUBLISH ||
        !store_key_parse_attempt(name, &number, errand->request->key) ||
        run_find(&run, service, name, true) != 0)
        return;
    sets_merge(&run->sets, &errand->sets);
    if (number <= run->newest_attempt)
        return;
    run->newest_attempt = number;
    service->catalog->events->saw(run);
}

static void performed(struct event *event)
{
    struct errand *errand = CONTAINER_OF(event, struct errand, job.done);
    struct service *service = errand->service;
    struct handle *handle = errand->handle;
    bool is_new = operations[errand->request->op].use == NEW_HANDLE;
    if (handle)
        handles_used(service->serving->handles, handle);
    int error = errand->request->op == HOLDFAST__V1__PEER_OP__PEER_LIST &&
                        errand->principal.role != ROLE_NODE
                    ? add_elsewhere(errand)
                    : 0;
    if (error != 0)
        fault_take(&errand->fault, error);
    if (errand->fault.code != 0) {
        rpc_call_fail(errand->call, fault_raise(&errand->fault));
        if (handle && is_new)
            handles_drop(service->serving->handles, handle);
        free_errand(errand);
        return;
    }
    note_attempt(errand);
    send_reply(errand);
    if (errand->arrival.is_commit)
        accept_copy_announce(&errand->arrival);
    else
        free_errand(errand);
}

/* serve.P4. rights.c has checked that it may read at all. */
static int check_reader(const struct errand *errand, const struct operation *operation)
{
    const struct principal *principal = &errand->principal;
    const char *key = errand->request->key;
    size_t run = strcspn(key, "/");
    if (principal->run[0] == '\0' || operation->key == STORE_KEY_NONE ||
        (strlen(principal->run) == run && strncmp(key, principal->run, run) == 0))
        return 0;
    return report_error(ERR_DENIED, "name that run", "%s may only access run %s", principal->name,
                        principal->run);
}

/* serve.P7. */
static enum tier_index find_tier(const struct errand *errand)
{
    struct manifest_summary place;
    struct run *run;
    if (errand->principal.role == ROLE_NODE ||
        !store_key_parse_checkpoint(&place, errand->request->key) ||
        run_find(&run, errand->service, place.run, false) != 0)
        return TIER_LOCAL;
    const struct checkpoint *checkpoint = catalog_find(run, place.step, place.attempt);
    return checkpoint && !checkpoint->copies.local.is_there ? catalog_source(checkpoint)
                                                            : TIER_LOCAL;
}

static int start_errand(struct errand *errand)
{
    const Holdfast__V1__PeerRequest *request = errand->request;
    if (!is_known(request))
        return report_error(ERR_INVALID, "use the same release on both nodes",
                            "a node requested the unknown operation %u", (unsigned)request->op);
    const struct operation *operation = &operations[request->op];
    ERR_TRY(service_check_open(errand->service));
    ERR_TRY(check_reader(errand, operation));
    ERR_TRY(store_key_check(operation->key, request->key));
    errand->tier = find_tier(errand);
    struct handles *handles = errand->service->serving->handles;
    const char *who = errand->principal.name;
    switch (operation->use) {
    case NO_HANDLE:
        return 0;
    case NEW_HANDLE:
        return handles_new(handles, &errand->handle, &errand->principal, request->client);
    case USES_HANDLE:
        return handles_use(handles, &errand->handle, who, request->handle);
    case LAST_OF_HANDLE:
        return handles_take(handles, &errand->handle, who, request->handle);
    }
    return 0;
}

void serve_sweep(struct service *service)
{
    if (service->serving->handles)
        handle_expiry_sweep(service, service->serving->handles, service->serving->crew);
}

void serve_peer(struct service *service, struct rpc_call *call,
                const Holdfast__V1__PeerRequest *request)
{
    char who[RPC_WHO_MAX];
    struct errand *errand = calloc(1, sizeof *errand);
    if (!errand) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory for a node's request"));
        return;
    }
    *errand = (struct errand){.service = service, .call = call, .request = request};
    int error = rpc_call_principal(call, &errand->principal, who)
                    ? start_errand(errand)
                    : report_error(ERR_DENIED, NULL, "the connection was closed");
    if (error != 0) {
        rpc_call_fail(call, error);
        free(errand);
        return;
    }
    errand->arrival =
        (struct accept_copy){.service = service, .from = errand->principal.name, .done = announced};
    errand->old = handle_expiry_take_silent(service, service->serving->handles);
    errand->job = (struct job){.work = work_errand, .done.run = performed};
    crew_work(service->serving->crew, &errand->job);
}

/* ---- beginning and end ---- */

int serve_open(struct service *service)
{
    service->serving = calloc(1, sizeof *service->serving);
    if (!service->serving)
        return report_error(ERR_MEMORY, NULL, "no memory to serve nodes");
    ERR_TRY(handles_open(&service->serving->handles));
    return crew_open(&service->serving->crew, service->loop, CREW_THREADS,
                     (int)service->config->pace_cpu_nice);
}

void serve_end(struct service *service)
{
    if (!service->serving)
        return;
    crew_close(service->serving->crew);
    service->serving->crew = NULL;
}

struct handles *serve_handles(struct service *service)
{
    return service->serving->handles;
}

void serve_close(struct service *service)
{
    if (!service->serving)
        return;
    handles_close(service->serving->handles, service->storage);
    free(service->serving);
    service->serving = NULL;
}
