/* session.c - reaches ckptd, describes, shares memory, and repeats that after ckptd restarted.
 *
 * A session is lost when the arena connection ends (poll, before each save), or a call returns
 * ERR_UNAVAILABLE, or ckptd does not know the session. The next save_begin calls session_renew,
 * which makes a new one. It tries at most once per back-off interval, a time that doubles; one try
 * waits SESSION_HELLO_AGAIN_MS for ckptd. When ckptd answers, the back-off is reset and the rank
 * describes again, waiting SESSION_DESCRIBE_AGAIN_MS for the others. Ranks that reconnected at
 * different saves meet at the next one. Ranks may do the same between saves (ckpt_renew).
 *
 * A ckptd refuses a connection of a user that has spent its budget. libckpt then retries with
 * jitter: for connect_ms in ckpt_open, for the time-out of the call in ckpt_describe.
 *
 * Bounds: one exchange on the arena socket takes at most ARENA_LINK_MS. Segment numbers above
 * SESSION_POOL_SEGMENTS_MAX are rejected. */
#include "clients/session.h"
#include "clients/remote.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const ProtobufCMethodDescriptor *session_method(char path[96], const ProtobufCMessage *request)
{
    const ProtobufCServiceDescriptor *service = &holdfast__v1__checkpoint__descriptor;
    unsigned i = 0;
    while (i < service->n_methods && service->methods[i].input != request->descriptor)
        i++;
    CHECK(i < service->n_methods);
    snprintf(path, 96, "/%s/%s", service->name, service->methods[i].name);
    return &service->methods[i];
}

int session_ask(const struct ckpt *ckpt, ProtobufCMessage **out_reply,
                const ProtobufCMessage *request, uint32_t timeout_ms)
{
    char path[96];
    const ProtobufCMethodDescriptor *method = session_method(path, request);
    if (ckpt->rpc == NULL)
        return report_error(ERR_INVALID, "give the address of a ckptd, such as unix:/path",
                            "%s is a store, which is read-only: %s needs a ckptd", ckpt->server,
                            method->name);
    return rpc_client_call(ckpt->rpc, path, request, method->output, out_reply, timeout_ms);
}

int session_call(struct ckpt *ckpt, ProtobufCMessage **out_reply, const ProtobufCMessage *request,
                 uint32_t timeout_ms)
{
    int error = session_ask(ckpt, out_reply, request, timeout_ms);
    if (error == 0) {
        ckpt->poll_ns = 0;
        ckpt->poll_pause_s = 0;
    }
    return error;
}

int session_send(struct ckpt *ckpt, const ProtobufCMessage *request, uint32_t timeout_ms)
{
    ProtobufCMessage *answer = NULL;
    ERR_TRY(session_call(ckpt, &answer, request, timeout_ms));
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

/* ---- handles ---- */

static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ckpt *handles; /* the open ones; guarded by the mutex */

void session_handle_add(struct ckpt *ckpt)
{
    pthread_mutex_lock(&handles_mutex);
    ckpt->next_open = handles;
    handles = ckpt;
    pthread_mutex_unlock(&handles_mutex);
}

void session_handle_remove(struct ckpt *ckpt)
{
    pthread_mutex_lock(&handles_mutex);
    struct ckpt **at = &handles;
    while (*at != ckpt)
        at = &(*at)->next_open;
    *at = ckpt->next_open;
    pthread_mutex_unlock(&handles_mutex);
}

/* The open handle that is `ckpt`, or whose save is `save`; NULL: there is none. */
static const struct ckpt *find_open(const struct ckpt *ckpt, const struct ckpt_save *save)
{
    pthread_mutex_lock(&handles_mutex);
    const struct ckpt *at = handles;
    while (at != NULL && at != ckpt && &at->save != save)
        at = at->next_open;
    pthread_mutex_unlock(&handles_mutex);
    return at;
}

bool session_handle_is_open(const struct ckpt *ckpt)
{
    return find_open(ckpt, NULL) != NULL;
}

bool session_save_is_open(const struct ckpt_save *save)
{
    const struct ckpt *ckpt = find_open(NULL, save);
    return ckpt != NULL && ckpt->save.is_open;
}

int session_handle_check(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt)
               ? 0
               : report_error(ERR_INVALID, "open one, and set it to NULL at its close",
                              "libckpt was called with no handle, or a closed one");
}

int session_save_check(const struct ckpt_save *save)
{
    return session_save_is_open(save)
               ? 0
               : report_error(ERR_INVALID, "begin one; its pointer is invalid after the end",
                              "libckpt was called with no save, or one that has ended");
}

/* ---- shared memory ---- */

/* Gets the control page set and the eventfd of the session that `link` names. */
static int map_control(struct ckpt *ckpt)
{
    int fds[2];
    struct arena_request request = arena_request_make(ARENA_REQUEST_CONTROL, ckpt->link.token);
    ERR_TRY(arena_link_fetch(&ckpt->link, fds, &request, 2));
    ckpt->event = fds[1];
    struct stat about;
    bool has_notes =
        fstat(fds[0], &about) == 0 && about.st_size >= (off_t)sizeof(struct arena_control);
    ckpt->control_bytes = has_notes ? sizeof(struct arena_control) : ARENA_CONTROL_BYTES_LEAST;
    int error =
        arena_link_map((void **)&ckpt->control, fds[0], ckpt->control_bytes, ckpt->control_bytes);
    if (error == 0 &&
        (ckpt->control->magic != ARENA_MAGIC || ckpt->control->version != ARENA_VERSION ||
         ckpt->control->entries != ARENA_RING_ENTRIES ||
         ckpt->control->session != ckpt->link.token))
        error = report_error(ERR_VERSION, "use client and ckptd of the same version",
                             "ckptd's control page has an unknown format");
    return error;
}

/* The bytes of an image in its segment `index`. */
static uint64_t used_bytes(const struct ckpt *ckpt, uint32_t index)
{
    uint64_t start = index * ckpt->segment_bytes;
    uint64_t left = start < ckpt->image_bytes ? ckpt->image_bytes - start : 0;
    return left < ckpt->segment_bytes ? left : ckpt->segment_bytes;
}

/* ---- hooks of the user ---- */

void session_report_mapped(const struct ckpt *ckpt, void *at, uint64_t bytes, bool is_writable)
{
    if (ckpt->hooks.came != NULL)
        ckpt->hooks.came(ckpt->hooks.user, at, bytes, is_writable);
}

void session_report_unmapped(const struct ckpt *ckpt, void *at, uint64_t bytes)
{
    if (ckpt->hooks.goes != NULL)
        ckpt->hooks.goes(ckpt->hooks.user, at, bytes);
}

static void unmap(struct ckpt *ckpt, struct session_mapping *mapping)
{
    if (mapping->data == NULL)
        return;
    session_report_unmapped(ckpt, mapping->data, ckpt->mapped_bytes);
    munmap(mapping->data, ckpt->mapped_bytes);
    mapping->data = NULL;
}

int ckpt_hook_memory(struct ckpt *ckpt, const struct ckpt_memory_hooks *hooks)
{
    ERR_TRY(session_handle_check(ckpt));
    const size_t least = offsetof(struct ckpt_memory_hooks, memory_node);
    if (hooks != NULL && hooks->size != sizeof *hooks && hooks->size != least)
        return report_error(ERR_INVALID, "set it to sizeof(struct ckpt_memory_hooks)",
                            "the size of a ckpt_memory_hooks is %zu, and %u was given",
                            sizeof *hooks, hooks->size);
    for (uint32_t i = 0; hooks == NULL && i < ckpt->num_mappings; i++)
        if (ckpt->mappings[i].data != NULL)
            session_report_unmapped(ckpt, ckpt->mappings[i].data, ckpt->mapped_bytes);
    ckpt->hooks = (struct ckpt_memory_hooks){0};
    if (hooks != NULL)
        memcpy(&ckpt->hooks, hooks, hooks->size);
    for (uint32_t i = 0; hooks != NULL && i < ckpt->num_mappings; i++)
        if (ckpt->mappings[i].data != NULL)
            session_report_mapped(ckpt, ckpt->mappings[i].data, ckpt->mapped_bytes, true);
    return 0;
}

/* ---- mappings ---- */

/* Maps the segments of one exchange, completely, for an image that uses the first used[i] bytes of
 * each. */
static int map_batch(struct ckpt *ckpt, const struct arena_request *request,
                     const uint32_t *generations, const uint64_t *used)
{
    int fds[ARENA_FDS_MAX];
    int error = arena_link_fetch(&ckpt->link, fds, request, request->num_segments);
    for (uint32_t i = 0; i < request->num_segments && error == 0; i++) {
        void *mapping = NULL;
        error = arena_link_map(&mapping, fds[i], ckpt->segment_bytes, used[i]);
        ckpt->mappings[request->segments[i]] =
            (struct session_mapping){.data = mapping, .generation = generations[i]};
        if (mapping != NULL)
            session_report_mapped(ckpt, mapping, ckpt->segment_bytes, true);
        for (uint32_t j = i + 1; j < request->num_segments && error != 0; j++)
            close(fds[j]);
    }
    return error;
}

/* Makes room in the cache for the pool indices of `segments`. */
static int grow_mappings(struct ckpt *ckpt, const uint32_t *segments, uint32_t count)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (segments[i] >= SESSION_POOL_SEGMENTS_MAX)
            return report_error(ERR_CORRUPT, NULL, "ckptd lent the invalid segment %u",
                                segments[i]);
        need = segments[i] >= need ? segments[i] + 1 : need;
    }
    if (need <= ckpt->num_mappings)
        return 0;
    struct session_mapping *larger = realloc(ckpt->mappings, need * sizeof *larger);
    if (larger == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u mappings", need);
    memset(larger + ckpt->num_mappings, 0, (need - ckpt->num_mappings) * sizeof *larger);
    ckpt->mappings = larger;
    ckpt->num_mappings = need;
    return 0;
}

/* Is the segment mapped in this generation? Unmaps an older one. */
static bool is_mapped(struct ckpt *ckpt, uint32_t segment, uint32_t generation)
{
    struct session_mapping *mapping = &ckpt->mappings[segment];
    if (mapping->generation != generation)
        unmap(ckpt, mapping);
    return mapping->data != NULL;
}

int session_map_writable(struct ckpt *ckpt, unsigned char **out, const uint32_t *segments,
                         const uint32_t *generations, uint32_t count)
{
    struct arena_request request = arena_request_make(ARENA_REQUEST_SEGMENTS, ckpt->link.token);
    uint64_t used[ARENA_FDS_MAX];
    uint32_t wanted[ARENA_FDS_MAX];
    if (remote_is(ckpt))
        return remote_map(ckpt, out, count);
    int error = grow_mappings(ckpt, segments, count);
    request.writable = 1;
    for (uint32_t i = 0; i < count && error == 0; i++) {
        if (!is_mapped(ckpt, segments[i], generations[i])) {
            used[request.num_segments] = used_bytes(ckpt, i);
            wanted[request.num_segments] = generations[i];
            request.segments[request.num_segments++] = segments[i];
        }
        if (request.num_segments > 0 && (i + 1 == count || request.num_segments == ARENA_FDS_MAX)) {
            error = map_batch(ckpt, &request, wanted, used);
            request.num_segments = 0;
        }
    }
    for (uint32_t i = 0; i < count && error == 0; i++)
        out[i] = ckpt->mappings[segments[i]].data;
    return error;
}

/* ---- life of a session ---- */

bool session_has_notes(const struct ckpt *ckpt)
{
    return ckpt->control != NULL && ckpt->control_bytes == sizeof *ckpt->control;
}

/* Where ckpt_note_alive writes, from any thread; NULL: nowhere. */
static void set_alive_notes(struct ckpt *ckpt, struct arena_notes *notes)
{
    pthread_mutex_lock(&ckpt->alive_lock);
    ckpt->alive_notes = notes;
    pthread_mutex_unlock(&ckpt->alive_lock);
}

void session_drop(struct ckpt *ckpt)
{
    set_alive_notes(ckpt, NULL);
    /* Before the connection ends, which ckptd takes as the end of the rank. */
    if (session_has_notes(ckpt))
        arena_note_leave(&ckpt->control->notes);
    remote_close(ckpt);
    arena_link_close(&ckpt->link);
    if (ckpt->control != NULL) {
        ckpt->saves_asked += arena_saves_asked(ckpt->control);
        munmap(ckpt->control, ckpt->control_bytes);
    }
    ckpt->control = NULL;
    if (ckpt->event >= 0)
        close(ckpt->event);
    ckpt->event = -1;
    ckpt->save.is_open = false;
}

void session_forget(struct ckpt *ckpt)
{
    session_drop(ckpt);
    for (uint32_t i = 0; i < ckpt->num_mappings; i++)
        unmap(ckpt, &ckpt->mappings[i]);
    remote_unmap(ckpt);
    free(ckpt->mappings);
    ckpt->mappings = NULL;
    ckpt->num_mappings = 0;
}

bool session_alive(const struct ckpt *ckpt)
{
    struct pollfd state = {.fd = ckpt->link.socket, .events = POLLIN | POLLRDHUP};
    if (ckpt->remote != NULL)
        return remote_alive(ckpt);
    /* ckptd sends nothing unrequested, so any event means the end. */
    return ckpt->link.socket >= 0 && poll(&state, 1, 0) == 0;
}

int session_hello(struct ckpt *ckpt, uint32_t timeout_ms)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.protocol = RPC_PROTOCOL;
    int error = session_call(ckpt, &answer, &request.base, timeout_ms);
    if (error != 0)
        return error;
    Holdfast__V1__HelloReply *reply = (Holdfast__V1__HelloReply *)answer;
    if (reply->protocol != RPC_PROTOCOL)
        error = report_error(ERR_VERSION, "use client and ckptd of the same version",
                             "ckptd %s speaks protocol %u, this client %u", reply->version,
                             reply->protocol, RPC_PROTOCOL);
    else if (strlen(reply->arena_socket) >= sizeof ckpt->arena_path)
        error = report_error(ERR_CORRUPT, NULL, "ckptd named an arena socket that is too long");
    if (error == 0) {
        if (reply->boot_id != ckpt->boot_id)
            session_forget(ckpt);
        ckpt->boot_id = reply->boot_id;
        strcpy(ckpt->arena_path, reply->arena_socket);
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

static int read_image_size(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply)
{
    uint64_t need =
        reply->image_bytes / ckpt->segment_bytes +
        (reply->image_bytes % ckpt->segment_bytes != 0); /* avoids an overflow of a sum */
    ckpt->image_bytes = reply->image_bytes;
    ckpt->is_window = reply->image_segments != 0 && reply->image_segments < need;
    if ((ckpt->is_window ? reply->image_segments : need) > SESSION_POOL_SEGMENTS_MAX)
        return report_error(ERR_CORRUPT, NULL, "ckptd has an invalid image size of %llu bytes",
                            (unsigned long long)reply->image_bytes);
    ckpt->image_segments = ckpt->is_window ? reply->image_segments : (uint32_t)need;
    return 0;
}

static int share_memory(struct ckpt *ckpt, uint64_t token, uint32_t timeout_ms)
{
    int error = arena_link_open(&ckpt->link, ckpt->arena_path, token, timeout_ms);
    return error == 0 ? map_control(ckpt) : error;
}

/* Stores the places of the tensors and connects to the arena. */
static int begin_session(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply,
                         uint32_t timeout_ms)
{
    if (reply->segment_bytes == 0 || reply->segment_bytes > SESSION_SEGMENT_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "ckptd has an invalid segment size of %llu bytes",
                            (unsigned long long)reply->segment_bytes);
    if (reply->boot_id != ckpt->boot_id || reply->segment_bytes != ckpt->mapped_bytes)
        session_forget(ckpt);
    session_drop(ckpt);
    ckpt->boot_id = reply->boot_id;
    ckpt->takes_digests = reply->takes_digests && !remote_is(ckpt);
    ckpt->mapped_bytes = ckpt->segment_bytes = reply->segment_bytes;
    int error = read_image_size(ckpt, reply);
    if (error == 0)
        error = session_items_read(ckpt, reply);
    if (error == 0)
        error = remote_is(ckpt) ? remote_open(ckpt, reply->session)
                                : share_memory(ckpt, reply->session, timeout_ms);
    if (error != 0)
        session_drop(ckpt);
    else if (session_has_notes(ckpt))
        set_alive_notes(ckpt, &ckpt->control->notes);
    return error;
}

/* Maps the images of the first saves. It ignores failures: a save maps what it needs again, and
 * reports its failure. */
static void map_ahead(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply)
{
    uint32_t need = ckpt->image_segments;
    size_t count = reply->n_segments;
    if (need == 0 || need > count || count > SESSION_POOL_SEGMENTS_MAX ||
        reply->n_generations != count)
        return;
    unsigned char **mapped = calloc(need, sizeof *mapped);
    struct report_text text;
    report_keep(&text);
    for (size_t i = 0; mapped != NULL && i + need <= count; i += need)
        if (session_map_writable(ckpt, mapped, reply->segments + i, reply->generations + i, need) !=
            0)
            break;
    report_restore(&text, 0);
    free(mapped);
}

int session_describe(struct ckpt *ckpt, uint32_t timeout_ms, bool ahead)
{
    Holdfast__V1__DescribeRequest request = HOLDFAST__V1__DESCRIBE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = ckpt->run;
    request.attempt = ckpt->attempt;
    request.rank = ckpt->rank;
    request.world_size = ckpt->world_size;
    request.memory_node = ckpt->hooks.memory_node;
    request.compares_replicas = ckpt->compares_replicas;
    request.n_slices = ckpt->tensors.count;
    int error = session_tensors_pack(&request.slices, &ckpt->tensors);
    if (error == 0)
        error = session_call(ckpt, &answer, &request.base, timeout_ms);
    free(request.slices);
    if (error != 0)
        return error;
    const Holdfast__V1__DescribeReply *reply = (Holdfast__V1__DescribeReply *)answer;
    error = begin_session(ckpt, reply, timeout_ms);
    ckpt->room_saves = reply->room_saves;
    if (error == 0 && ahead)
        map_ahead(ckpt, reply);
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

/* Postpones the next try; doubles the interval. */
static void increase_backoff(struct ckpt *ckpt)
{
    if (ckpt->backoff_ms == 0)
        ckpt->backoff_ms = SESSION_BACKOFF_MS_MIN;
    ckpt->retry_ns = clock_ns() + (uint64_t)ckpt->backoff_ms * 1000000u;
    ckpt->backoff_ms *= 2;
    if (ckpt->backoff_ms > SESSION_BACKOFF_MS_MAX)
        ckpt->backoff_ms = SESSION_BACKOFF_MS_MAX;
}

/* Twice at most: the first call after a loss may only detect that the old connection is dead. */
static int repeat_hello(struct ckpt *ckpt)
{
    uint64_t begin = clock_ns();
    int error = session_hello(ckpt, SESSION_HELLO_AGAIN_MS);
    uint64_t spent_ms = (clock_ns() - begin) / 1000000u;
    if (error == ERR_UNAVAILABLE && spent_ms < SESSION_HELLO_AGAIN_MS)
        error = session_hello(ckpt, (uint32_t)(SESSION_HELLO_AGAIN_MS - spent_ms));
    return error;
}

int session_renew(struct ckpt *ckpt)
{
    if (clock_ns() < ckpt->retry_ns)
        return report_error(ERR_UNAVAILABLE, "is ckptd running? The client keeps trying",
                            "ckptd at %s cannot be reached", ckpt->server);
    session_drop(ckpt);
    int error = repeat_hello(ckpt);
    if (error == ERR_MEMORY)
        return error; /* tells nothing about ckptd */
    if (error != 0) {
        increase_backoff(ckpt);
        if (error == ERR_VERSION)
            return error;
        return report_error(ERR_UNAVAILABLE, "is ckptd running? The client keeps trying",
                            "ckptd at %s cannot be reached", ckpt->server);
    }
    ckpt->backoff_ms = 0;
    ckpt->retry_ns = 0;
    error = session_describe(ckpt, SESSION_DESCRIBE_AGAIN_MS, false);
    if (error == ERR_TIMEOUT)
        error = report_error(ERR_UNAVAILABLE, "the next save tries again",
                             "ckptd is back, but not every rank has described its tensors again");
    /* ckptd came back with another store: training continues, and the text names the fault. */
    return error == ERR_NOT_FOUND ? ERR_UNAVAILABLE : error;
}
