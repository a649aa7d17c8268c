/* peer.c - the store of a ckptd on another node, over mutual TLS: a tier like any other, and a
 * source for tools. By calls over the socket of their node's ckptd, tools also read checkpoints
 * that only its other tiers have.
 *
 * Every operation is a call of the method Peer (proto/wire/ckpt.proto), carried out there on the
 * objects of that ckptd's own store. Bytes of objects travel over its bulk plane
 * (proto/bulk/bulk.h), or, without one, in messages of CHUNK_BYTES, which cost both ends several
 * times as much. The certificate in the TLS directory is the client's identity; ckptd/peers/serve.c
 * defines its rights. A client that may load may read. A node may also add whole checkpoints; it
 * changes and removes nothing that is committed.
 *
 * Use of any handle of a store keeps all of them alive. A handle that the other ckptd no longer
 * knows (it restarted, or this end was silent for too long) gives ERR_UNAVAILABLE: a writer then
 * begins the object again. A publication whose answer was lost gives ERR_UNSETTLED, as in a bucket.
 * ERR_STALE, from the publication of a manifest: the other ckptd restarted and lost written shards;
 * send them again.
 *
 * Limits: CALL_MS per call, SYNC_MS if it waits for a disk. num_threads connections for bytes, with
 * EACH_CONNECTION transfers each, by THREADS_MAX threads at most for all open peers of a process.
 * The certificate is read when the store is opened, and again for bytes when none are under way and
 * the bulk plane could not be reached. */
#include "proto/bulk/ask.h"

#include "proto/base/clock.h"
#include "proto/tls/tls.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/engine/engine.h"
#include "storage/engine/measured.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CALL_MS 10000u
#define SYNC_MS 60000u
#define CHUNK_BYTES (1u << 20)
#define THREADS_DEFAULT 2u
#define EACH_CONNECTION 2u /* transfers: the peer reads for the next while an answer travels */
#define THREADS_MAX 32u    /* of all open peers of a process */
#define METHOD "/holdfast.v1.Checkpoint/Peer"

/* Transfers of one direction and plane under way, and the time since which there are any. */
struct moving {
    struct storage_flow *flow;
    uint32_t count;
    uint64_t since_ns;
};

struct peer {
    struct storage_base base;
    struct rpc_client *rpc;
    bool is_of_others; /* likewise */
    bool is_here;      /* over a socket: no bulk plane */
    uint64_t client;   /* identifies its handles: a random number */
    struct workers *workers;
    struct bulk_asker asker;
    pthread_mutex_t mutex; /* of the following */
    struct bulk *bulk;     /* NULL: none yet, or the peer has no such plane */
    uint32_t num_objects;
    pthread_mutex_t link_mutex; /* of the following; held briefly */
    struct storage_link link;
    struct moving moving_in[NUM_STORAGE_PLANES], moving_out[NUM_STORAGE_PLANES];
    char where[STORAGE_WHERE_BYTES], directory[STORAGE_WHERE_BYTES];
    char text[STORAGE_WHERE_BYTES + 32];
};

struct peer_object {
    struct storage_base base;
    struct peer *peer;
    struct bulk *bulk; /* the peer's, while the object is open; NULL: transfers by calls */
    uint64_t handle, bytes;
};

struct storage_hold {
    uint64_t handle;
};

static struct peer *peer_of(struct storage *storage)
{
    return (struct peer *)storage;
}

/* The caller frees the reply. */
static int call_peer(Holdfast__V1__PeerReply **out, struct peer *peer,
                     const Holdfast__V1__PeerRequest *request)
{
    bool waits = request->op == HOLDFAST__V1__PEER_OP__PEER_SYNC ||
                 request->op == HOLDFAST__V1__PEER_OP__PEER_CREATE;
    ProtobufCMessage *reply = NULL;
    int error =
        rpc_client_call(peer->rpc, METHOD, &request->base, &holdfast__v1__peer_reply__descriptor,
                        &reply, waits ? SYNC_MS : CALL_MS);
    *out = (Holdfast__V1__PeerReply *)reply;
    return error;
}

static void free_reply(Holdfast__V1__PeerReply *reply)
{
    if (reply)
        holdfast__v1__peer_reply__free_unpacked(reply, NULL);
}

/* A call that needs only the handle and the number of the reply. */
static int call_for_handle(uint64_t *out_handle, uint64_t *out_bytes, struct peer *peer,
                           const Holdfast__V1__PeerRequest *request)
{
    Holdfast__V1__PeerReply *reply;
    int error = call_peer(&reply, peer, request);
    if (error == 0 && out_handle)
        *out_handle = reply->handle;
    if (error == 0 && out_bytes)
        *out_bytes = reply->bytes;
    free_reply(reply);
    return error;
}

static Holdfast__V1__PeerRequest make_request(Holdfast__V1__PeerOp op, const char *key)
{
    Holdfast__V1__PeerRequest request = HOLDFAST__V1__PEER_REQUEST__INIT;
    request.op = op;
    request.key = (char *)(uintptr_t)key;
    return request;
}

static Holdfast__V1__PeerRequest make_handle_request(const struct peer *peer,
                                                     Holdfast__V1__PeerOp op, const char *key)
{
    Holdfast__V1__PeerRequest request = make_request(op, key);
    request.client = peer->client;
    return request;
}

/* ---- the bulk plane ---- */

/* Takes the bulk plane for an object that is being opened. A peer without one, or of a release that
 * has it for ranks only, refuses; *out is then NULL. */
static int acquire_bulk(struct bulk **out, struct peer *peer)
{
    int error = 0;
    pthread_mutex_lock(&peer->mutex);
    if (peer->bulk && peer->num_objects == 0 && bulk_check(peer->bulk) != 0) {
        bulk_close(peer->bulk); /* its address may have changed */
        peer->bulk = NULL;
    }
    if (!peer->bulk && !peer->is_here)
        error = bulk_open_asker(&peer->bulk, &peer->asker);
    if (error == ERR_INVALID || error == ERR_NOT_FOUND || error == ERR_DENIED)
        error = 0;
    peer->num_objects += error == 0;
    *out = peer->bulk;
    pthread_mutex_unlock(&peer->mutex);
    return error;
}

static void release_bulk(struct peer *peer)
{
    pthread_mutex_lock(&peer->mutex);
    peer->num_objects--;
    pthread_mutex_unlock(&peer->mutex);
}

/* ---- amounts and rates of transfers ---- */

static struct moving *begin_moving(struct peer *peer, const struct storage_request *request)
{
    const struct peer_object *object = (const struct peer_object *)request->object;
    enum storage_plane plane = object->bulk ? STORAGE_BULK : STORAGE_CALLS;
    bool is_out = request->op == STORAGE_WRITE;
    struct moving *moving = is_out ? &peer->moving_out[plane] : &peer->moving_in[plane];
    pthread_mutex_lock(&peer->link_mutex);
    if (moving->count++ == 0)
        moving->since_ns = clock_ns();
    pthread_mutex_unlock(&peer->link_mutex);
    return moving;
}

/* `bytes` were transferred; 0 after an error. */
static void end_moving(struct peer *peer, struct moving *moving, struct bulk *bulk, uint64_t bytes)
{
    struct bulk_counts counts = {.rtt_seconds = 0};
    if (bulk)
        bulk_count(bulk, &counts);
    pthread_mutex_lock(&peer->link_mutex);
    uint64_t now = clock_ns();
    moving->flow->ns += now - moving->since_ns;
    moving->since_ns = now;
    moving->count--;
    moving->flow->bytes += bytes;
    if (counts.rtt_seconds > 0)
        peer->link.rtt_seconds = counts.rtt_seconds;
    pthread_mutex_unlock(&peer->link_mutex);
}

static void peer_link(struct storage *storage, struct storage_link *out)
{
    struct peer *peer = peer_of(storage);
    pthread_mutex_lock(&peer->link_mutex);
    *out = peer->link;
    pthread_mutex_unlock(&peer->link_mutex);
}

/* ---- transfers ---- */

static int transfer_in_bulk(struct peer_object *object, const struct storage_request *request)
{
    const struct bulk_get get = {.offset = request->offset,
                                 .bytes = request->bytes,
                                 .save = object->handle,
                                 .to = request->data};
    int error = request->op == STORAGE_WRITE
                    ? bulk_write(object->bulk, object->handle, request->offset, request->data,
                                 request->bytes, SYNC_MS)
                    : bulk_get(object->bulk, &get, SYNC_MS);
    if (error != ERR_DENIED)
        return error;
    /* The ckptd that issued its tickets is gone, and so is the handle. */
    return report_error(ERR_UNAVAILABLE, "open it again", "the peer's bulk plane: %s",
                        report_message());
}

static int write_chunk(struct peer_object *object, uint64_t offset, void *data, uint32_t bytes)
{
    Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_WRITE, "");
    request.handle = object->handle;
    request.offset = offset;
    request.data = (ProtobufCBinaryData){bytes, data};
    return call_for_handle(NULL, NULL, object->peer, &request);
}

static int read_chunk(struct peer_object *object, uint64_t offset, void *data, uint32_t bytes)
{
    Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_READ, "");
    Holdfast__V1__PeerReply *reply;
    request.handle = object->handle;
    request.offset = offset;
    request.bytes = bytes;
    int error = call_peer(&reply, object->peer, &request);
    if (error == 0 && reply->data.len != bytes)
        error = report_error(ERR_CORRUPT, NULL, "a peer sent %zu bytes instead of %u",
                             reply->data.len, bytes);
    if (error == 0)
        memcpy(data, reply->data.data, bytes);
    free_reply(reply);
    return error;
}

static int transfer(struct storage_request *request)
{
    struct peer_object *object = (struct peer_object *)request->object;
    int (*move)(struct peer_object *, uint64_t, void *, uint32_t) =
        request->op == STORAGE_WRITE ? write_chunk : read_chunk;
    if (request->op != STORAGE_WRITE && request->offset + request->bytes > object->bytes)
        return ERR_CORRUPT;
    if (object->bulk)
        return transfer_in_bulk(object, request);
    for (uint32_t at = 0; at < request->bytes; at += CHUNK_BYTES) {
        uint32_t left = request->bytes - at, bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        ERR_TRY(move(object, request->offset + at, (char *)request->data + at, bytes));
    }
    return 0;
}

static void perform(struct storage_request *request)
{
    struct peer_object *object = (struct peer_object *)request->object;
    if (!engine_is_wanted(request))
        return;
    if (request->op == STORAGE_SYNC) {
        Holdfast__V1__PeerRequest sync = make_request(HOLDFAST__V1__PEER_OP__PEER_SYNC, "");
        sync.handle = object->handle;
        request->error = call_for_handle(NULL, NULL, object->peer, &sync);
    } else {
        struct moving *moving = begin_moving(object->peer, request);
        request->error = transfer(request);
        end_moving(object->peer, moving, object->bulk, request->error == 0 ? request->bytes : 0);
    }
    request->bytes_done = request->error == 0 ? request->bytes : 0;
}

static struct workers_shared shared = {.thread_name = "peer",
                                       .perform = perform,
                                       .num_threads_max = THREADS_MAX,
                                       .mutex = PTHREAD_MUTEX_INITIALIZER};

static void peer_submit(struct storage *storage, struct storage_request *request)
{
    request->error = request->error_number = 0;
    workers_submit(peer_of(storage)->workers, request);
}

/* ---- big objects ---- */

static int new_object(struct storage_object **out, struct peer *peer,
                      const Holdfast__V1__PeerRequest *request, uint64_t *out_bytes)
{
    struct peer_object *object = calloc(1, sizeof *object);
    if (!object)
        return report_error(ERR_MEMORY, NULL, "no memory for an object of a peer");
    object->peer = peer;
    int error = acquire_bulk(&object->bulk, peer);
    if (error != 0) {
        free(object);
        return error;
    }
    error = call_for_handle(&object->handle, &object->bytes, peer, request);
    if (error != 0) {
        release_bulk(peer);
        free(object);
        return error;
    }
    if (out_bytes)
        *out_bytes = object->bytes;
    object->base.ops = peer->base.ops;
    *out = (struct storage_object *)object;
    return 0;
}

static int peer_object_create(struct storage *storage, struct storage_object **out, const char *key,
                              uint64_t bytes)
{
    Holdfast__V1__PeerRequest request =
        make_handle_request(peer_of(storage), HOLDFAST__V1__PEER_OP__PEER_CREATE, key);
    request.bytes = bytes;
    return new_object(out, peer_of(storage), &request, NULL);
}

static int peer_object_open(struct storage *storage, struct storage_object **out, const char *key,
                            uint64_t *out_bytes)
{
    const Holdfast__V1__PeerRequest request =
        make_handle_request(peer_of(storage), HOLDFAST__V1__PEER_OP__PEER_OPEN, key);
    return new_object(out, peer_of(storage), &request, out_bytes);
}

/* A handle that could not be closed expires without use. */
static void peer_object_close(struct storage *storage, struct storage_object *object)
{
    Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_CLOSE, "");
    request.handle = ((struct peer_object *)object)->handle;
    call_for_handle(NULL, NULL, peer_of(storage), &request);
    release_bulk(peer_of(storage));
    free(object);
}

/* ---- small objects and names ---- */

static int peer_sync_names(struct storage *storage, const char *prefix)
{
    const Holdfast__V1__PeerRequest request =
        make_request(HOLDFAST__V1__PEER_OP__PEER_SYNC_NAMES, prefix);
    return call_for_handle(NULL, NULL, peer_of(storage), &request);
}

static int peer_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_PUBLISH, key);
    request.data = (ProtobufCBinaryData){bytes, (uint8_t *)(uintptr_t)data};
    int error = call_for_handle(NULL, NULL, peer_of(storage), &request);
    if (error != ERR_UNAVAILABLE && error != ERR_TIMEOUT)
        return error;
    return report_error(ERR_UNSETTLED, NULL, "the peer did not answer the publication of %s: %s",
                        key, report_message());
}

static int peer_fetch(struct storage *storage, const char *key, void *data, size_t size,
                      uint64_t *out_bytes)
{
    Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_FETCH, key);
    Holdfast__V1__PeerReply *reply;
    request.bytes = size;
    int error = call_peer(&reply, peer_of(storage), &request);
    if (error == 0 && reply->data.len > size)
        error = report_error(ERR_CORRUPT, NULL, "a peer sent more of %s than was asked for", key);
    if (error == 0 && reply->data.len < size && reply->data.len < reply->bytes)
        error = report_error(ERR_INVALID, "read it where that store is",
                             "%s has %llu bytes, more than a message may", key,
                             (unsigned long long)reply->bytes);
    if (error == 0 && reply->data.len > 0)
        memcpy(data, reply->data.data, reply->data.len);
    if (error == 0)
        *out_bytes = reply->bytes;
    free_reply(reply);
    return error;
}

static int peer_list(struct storage *storage, const char *prefix,
                     int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    const Holdfast__V1__PeerRequest request =
        make_request(HOLDFAST__V1__PEER_OP__PEER_LIST, prefix);
    Holdfast__V1__PeerReply *reply;
    int error = call_peer(&reply, peer_of(storage), &request);
    for (size_t i = 0; error == 0 && i < reply->n_entries; i++) {
        const Holdfast__V1__PeerEntry *entry = reply->entries[i];
        if (storage_name_is_valid(entry->name, strlen(entry->name)))
            error = visit(user, &(struct storage_entry){.name = entry->name,
                                                        .is_dir = entry->is_dir,
                                                        .bytes = entry->bytes,
                                                        .is_volatile = entry->in_memory});
    }
    free_reply(reply);
    return error;
}

static int peer_remove(struct storage *storage, const char *key)
{
    const Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_REMOVE, key);
    return call_for_handle(NULL, NULL, peer_of(storage), &request);
}

static int peer_space(struct storage *storage, struct storage_space *out)
{
    (void)storage;
    *out = (struct storage_space){0}; /* the peer's own accounting refuses excess */
    return 0;
}

/* ---- holds ---- */

static int peer_hold(struct storage *storage, struct storage_hold **out, const char *key,
                     const void *data, size_t bytes)
{
    Holdfast__V1__PeerRequest request =
        make_handle_request(peer_of(storage), HOLDFAST__V1__PEER_OP__PEER_HOLD, key);
    request.data = (ProtobufCBinaryData){bytes, (uint8_t *)(uintptr_t)data};
    struct storage_hold *hold = calloc(1, sizeof *hold);
    if (!hold)
        return report_error(ERR_MEMORY, NULL, "no memory for a lease");
    int error = call_for_handle(&hold->handle, NULL, peer_of(storage), &request);
    if (error != 0)
        free(hold);
    else
        *out = hold;
    return error;
}

static void peer_release(struct storage *storage, struct storage_hold *hold, bool stays)
{
    Holdfast__V1__PeerRequest request = make_request(HOLDFAST__V1__PEER_OP__PEER_RELEASE, "");
    request.handle = hold->handle;
    request.stays = stays;
    if (!stays) /* without waiting: the handle expires without use */
        call_for_handle(NULL, NULL, peer_of(storage), &request);
    free(hold);
}

/* The other ckptd knows the holders. */
static int peer_find_holder(struct storage *storage, const char *key)
{
    (void)storage;
    (void)key;
    return 0;
}

/* ---- open, close ---- */

static void peer_close(struct storage *storage)
{
    struct peer *peer = peer_of(storage);
    workers_close(peer->workers);
    bulk_close(peer->bulk);
    if (!peer->is_of_others)
        rpc_client_close(peer->rpc);
    pthread_mutex_destroy(&peer->mutex);
    pthread_mutex_destroy(&peer->link_mutex);
    free(peer);
}

static int peer_open(struct storage **out, const char *where, const struct storage_options *options)
{
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return report_error(ERR_MEMORY, NULL, "no memory for a peer");
    peer->base.ops = &storage_peer;
    peer->base.text = peer->text;
    pthread_mutex_init(&peer->mutex, NULL);
    pthread_mutex_init(&peer->link_mutex, NULL);
    for (int plane = 0; plane < NUM_STORAGE_PLANES; plane++) {
        peer->moving_in[plane].flow = &peer->link.in[plane];
        peer->moving_out[plane].flow = &peer->link.out[plane];
    }
    snprintf(peer->where, sizeof peer->where, "%s", where);
    snprintf(peer->directory, sizeof peer->directory, "%s",
             options->tls_directory ? options->tls_directory : tls_client_directory());
    peer->is_here = strncmp(where, "unix:", 5) == 0;
    snprintf(peer->text, sizeof peer->text, "peer at %.4000s%s", where,
             peer->is_here ? "" : ", TLS");
    peer->rpc = options->rpc;
    peer->is_of_others = options->rpc != NULL;
    int error = getrandom(&peer->client, sizeof peer->client, 0) == (ssize_t)sizeof peer->client
                    ? 0
                    : report_errno(ERR_IO, "could not choose a number", "getrandom");
    if (error == 0 && !peer->rpc)
        error = rpc_client_open_as(&peer->rpc, where, peer->directory);
    uint32_t num_threads = options->num_threads ? options->num_threads : THREADS_DEFAULT;
    peer->asker = (struct bulk_asker){.rpc = peer->rpc,
                                      .server = peer->where,
                                      .directory = peer->directory,
                                      .num_connections = num_threads};
    if (error == 0)
        error = workers_join(&peer->workers, &shared, EACH_CONNECTION * num_threads);
    if (error != 0)
        peer_close((struct storage *)peer);
    else
        *out = (struct storage *)peer;
    return error;
}

const struct storage_ops storage_peer = {
    .name = "peer",
    .version = 1,
    .flags = STORAGE_DURABLE | STORAGE_REMOTE,
    .open = peer_open,
    .close = peer_close,
    .object_create = peer_object_create,
    .object_open = peer_object_open,
    .object_close = peer_object_close,
    .submit = peer_submit,
    .sync_names = peer_sync_names,
    .publish = peer_publish,
    .fetch = peer_fetch,
    .list = peer_list,
    .remove = peer_remove,
    .space = peer_space,
    .hold = peer_hold,
    .release = peer_release,
    .find_holder = peer_find_holder,
    .link = peer_link,
};
