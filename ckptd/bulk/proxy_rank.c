/* proxy_rank.c - acts on this node for a rank or reader of another node.
 *
 * ckptd's core identifies ranks by their arena connection, their lent memory, and the ring with
 * their announcements. A proxy is such a rank: it connects to the arena socket, and maps the
 * control pages and, when requested, the segments, by the same requests and checks (listen.c). The
 * remote rank's blocks are received directly into the segments, and each is announced when it is
 * complete and verified. So all rules for a rank, including a hostile one, hold for a remote one,
 * and the core needs no second way.
 *
 * All connections of a session share one proxy. It outlives them by PROXY_RANK_GRACE_MS, and so
 * does the session; received blocks are known by number, so that none is written or announced
 * twice:
 *
 *   proxy_rank.S1  A block with a number is received by one connection at a time. A connection that
 *       sends it again first ends the other one: its peer has given that up.
 *   proxy_rank.S2  The first block of a newer save ends the blocks of older ones that are being
 *       received, before memory is written that both may have been lent.
 *   proxy_rank.S3  A block is announced once, after it is complete.
 *
 * Locks: the mutex of all guards the list and the creation of a proxy; that of a proxy guards its
 * state. Both are held while the core answers on the arena socket: its thread never waits for
 * either while it serves. */
#include "ckptd/bulk/proxy_rank.h"
#include "ckptd/bulk/entered.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"
#include "proto/tls/stream.h"
#include "proto/wire/arena_link.h"
#include "proto/wire/arena_notes.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACTIVE_MAX 64u      /* blocks being received into one session: BULK_CONNECTIONS_EACH */
#define RING_WAIT_MS 10000u /* as a rank waits: clients/save.c */
#define RING_PAUSE_US 200u
#define SEGMENTS_MAX 65536u /* larger pool indices are rejected */
#define SEGMENT_BYTES_MAX (1ull << 30)

struct mapping {
    unsigned char *data; /* NULL: not mapped */
    uint32_t generation;
};

/* A block that is being received. */
struct active {
    uint64_t save;
    uint32_t number, segment;
    struct tls_stream *stream; /* NULL: the row is free */
};

struct proxy_rank {
    struct proxy_rank *next;
    struct proxy_ranks *all;
    uint64_t session;
    uint32_t num_users;
    int64_t left_ms; /* when the last connection ended */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a row of `active` is free */
    struct arena_link link;
    bool has_left;                 /* the rank has announced its end: no reconnect is expected */
    bool is_over;                  /* ckptd has ended the session, or closes */
    struct arena_control *control; /* NULL: for a reader */
    int event;
    uint64_t segment_bytes;
    struct mapping *mappings;
    uint32_t num_mappings;
    uint64_t save; /* the newest save with a received block */
    uint8_t *have; /* a bit per number of a block of it */
    uint32_t num_have;
    struct active active[ACTIVE_MAX];
};

struct proxy_ranks {
    pthread_mutex_t mutex;
    const char *arena_path;
    struct proxy_rank *first;
};

/* ---- one ---- */

static void free_proxy(struct proxy_rank *proxy)
{
    for (uint32_t i = 0; i < proxy->num_mappings; i++)
        if (proxy->mappings[i].data)
            munmap(proxy->mappings[i].data, proxy->segment_bytes);
    if (proxy->control)
        munmap(proxy->control, sizeof *proxy->control);
    if (proxy->event >= 0)
        close(proxy->event);
    arena_link_close(&proxy->link);
    pthread_cond_destroy(&proxy->changed);
    pthread_mutex_destroy(&proxy->mutex);
    free(proxy->mappings);
    free(proxy->have);
    free(proxy);
}

/* A reader has no control pages, and is told so; the link continues. */
static int take_control(struct proxy_rank *proxy)
{
    struct arena_request request = arena_request_make(ARENA_REQUEST_CONTROL, proxy->session);
    void *control = NULL;
    int fds[2];
    int error = arena_link_fetch(&proxy->link, fds, &request, 2);
    if (error == ERR_INVALID)
        return 0;
    if (error != 0)
        return error;
    proxy->event = fds[1];
    error = arena_link_map(&control, fds[0], sizeof *proxy->control, sizeof *proxy->control);
    proxy->control = control;
    return error;
}

static int new_proxy(struct proxy_rank **out, struct proxy_ranks *all, uint64_t session)
{
    struct proxy_rank *proxy = calloc(1, sizeof *proxy);
    if (!proxy)
        return report_error(ERR_MEMORY, NULL, "no memory for a session of another node");
    proxy->all = all;
    proxy->session = session;
    proxy->link.socket = proxy->event = -1;
    pthread_mutex_init(&proxy->mutex, NULL);
    pthread_cond_init(&proxy->changed, NULL);
    int error = arena_link_open(&proxy->link, all->arena_path, session, 0);
    if (error == 0)
        error = take_control(proxy);
    if (error == 0)
        *out = proxy;
    else
        free_proxy(proxy);
    return error;
}

/* No message comes unasked over the arena connection: an event is its end. With the mutex. */
static bool has_ended(struct proxy_rank *proxy)
{
    struct pollfd state = {.fd = proxy->link.socket, .events = POLLIN | POLLRDHUP};
    if (!proxy->is_over && poll(&state, 1, 0) != 0)
        proxy->is_over = true;
    return proxy->is_over;
}

static int fail_over(void)
{
    return report_error(ERR_NOT_FOUND, "describe the tensors again", "the session has ended");
}

/* How many connections of the rank there are. With the mutex of all. */
static void set_users(struct proxy_rank *proxy, uint32_t count)
{
    proxy->num_users = count;
    if (proxy->control)
        __atomic_store_n(&proxy->control->is_cut, count == 0, __ATOMIC_RELAXED);
}

/* ---- all ---- */

int proxy_ranks_open(struct proxy_ranks **out, const char *arena_path)
{
    struct proxy_ranks *proxies = calloc(1, sizeof *proxies);
    if (!proxies)
        return report_error(ERR_MEMORY, NULL, "no memory for sessions of other nodes");
    proxies->arena_path = arena_path;
    pthread_mutex_init(&proxies->mutex, NULL);
    *out = proxies;
    return 0;
}

void proxy_ranks_cut(struct proxy_ranks *proxies)
{
    if (!proxies)
        return;
    pthread_mutex_lock(&proxies->mutex);
    for (struct proxy_rank *proxy = proxies->first; proxy; proxy = proxy->next)
        /* Without its mutex: the holder may be waiting here. */
        shutdown(proxy->link.socket, SHUT_RDWR);
    pthread_mutex_unlock(&proxies->mutex);
}

void proxy_ranks_close(struct proxy_ranks *proxies)
{
    if (!proxies)
        return;
    while (proxies->first) {
        struct proxy_rank *proxy = proxies->first;
        proxies->first = proxy->next;
        free_proxy(proxy);
    }
    pthread_mutex_destroy(&proxies->mutex);
    free(proxies);
}

int proxy_rank_enter(struct proxy_rank **out, struct proxy_ranks *proxies, uint64_t session)
{
    int error = 0;
    pthread_mutex_lock(&proxies->mutex);
    struct proxy_rank *found = proxies->first;
    while (found && found->session != session)
        found = found->next;
    if (!found) {
        error = new_proxy(&found, proxies, session);
        if (error == 0) {
            found->next = proxies->first;
            proxies->first = found;
        }
    }
    if (error == 0) {
        set_users(found, found->num_users + 1);
        *out = found;
    }
    pthread_mutex_unlock(&proxies->mutex);
    return error;
}

void proxy_rank_leave(struct proxy_rank *proxy, int64_t now_ms)
{
    pthread_mutex_lock(&proxy->all->mutex);
    set_users(proxy, proxy->num_users - 1);
    proxy->left_ms = now_ms;
    pthread_mutex_unlock(&proxy->all->mutex);
}

/* Ends the blocks of saves older than `before`, or of all, that are being received. With the
 * mutex. */
static void cut_active(struct proxy_rank *proxy, uint64_t before)
{
    for (struct active *row = proxy->active; row < proxy->active + ACTIVE_MAX; row++)
        if (row->stream && row->save < before)
            tls_stream_cut(row->stream);
}

void proxy_ranks_sweep(struct proxy_ranks *proxies, int64_t now_ms)
{
    if (pthread_mutex_trylock(&proxies->mutex) != 0)
        return; /* the holder may wait for an answer of this thread; the next sweep retries */
    for (struct proxy_rank **at = &proxies->first; *at;) {
        struct proxy_rank *proxy = *at;
        bool goes = proxy->num_users == 0 &&
                    (proxy->has_left || now_ms - proxy->left_ms >= PROXY_RANK_GRACE_MS);
        if (!goes && pthread_mutex_trylock(&proxy->mutex) == 0) {
            if (has_ended(proxy)) {
                cut_active(proxy, UINT64_MAX);
                goes = proxy->num_users == 0;
            }
            pthread_mutex_unlock(&proxy->mutex);
        }
        if (goes) {
            *at = proxy->next;
            free_proxy(proxy);
        } else
            at = &proxy->next;
    }
    pthread_mutex_unlock(&proxies->mutex);
}

/* ---- segments ---- */

/* The descriptor of a segment; with the mutex. */
static int fetch_segment(struct proxy_rank *proxy, int *out_fd, uint32_t segment, bool writable)
{
    struct arena_request request = arena_request_make(ARENA_REQUEST_SEGMENTS, proxy->session);
    request.num_segments = 1;
    request.writable = writable;
    request.segments[0] = segment;
    if (has_ended(proxy))
        return fail_over();
    return arena_link_fetch(&proxy->link, out_fd, &request, 1);
}

/* A run of bytes of a segment that LoadShard has lent. ERR_DENIED, ERR_INVALID. */
static int begin_session(struct bulk_entered *entered, const struct bulk_request *request)
{
    struct proxy_rank *proxy = entered->proxy;
    int fd = -1;
    if (request->offset + request->bytes > SEGMENT_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "the range ends beyond the largest segment");
    pthread_mutex_lock(&proxy->mutex);
    int error = fetch_segment(proxy, &fd, request->part, false);
    pthread_mutex_unlock(&proxy->mutex);
    if (error != 0)
        return error;
    entered->map.bytes = request->offset + request->bytes;
    error = arena_map(&entered->map.at, NULL, fd, entered->map.bytes, PROT_READ);
    close(fd);
    return error;
}

static int block_session(struct bulk_entered *entered, const struct bulk_request *request,
                         uint64_t offset, uint64_t bytes, void *room, const void **out)
{
    (void)request, (void)bytes, (void)room;
    *out = (const char *)entered->map.at + offset;
    return 0;
}

static void end_session(struct bulk_entered *entered)
{
    if (entered->map.at)
        munmap(entered->map.at, entered->map.bytes);
    entered->map.at = NULL;
}

static int grow_mappings(struct proxy_rank *proxy, uint32_t segment)
{
    if (segment < proxy->num_mappings)
        return 0;
    uint32_t count = (segment | 63u) + 1;
    struct mapping *larger = realloc(proxy->mappings, count * sizeof *larger);
    if (!larger)
        return report_error(ERR_MEMORY, NULL, "no memory for %u mappings", count);
    memset(larger + proxy->num_mappings, 0, (count - proxy->num_mappings) * sizeof *larger);
    proxy->mappings = larger;
    proxy->num_mappings = count;
    return 0;
}

static bool is_receiving(const struct proxy_rank *proxy, uint32_t segment)
{
    for (const struct active *row = proxy->active; row < proxy->active + ACTIVE_MAX; row++)
        if (row->stream && row->segment == segment)
            return true;
    return false;
}

/* The size of segments: from the arena's replies, and equal to the descriptor's size. */
static int segment_size(struct proxy_rank *proxy, int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    if (bytes <= 0 || (uint64_t)bytes > SEGMENT_BYTES_MAX ||
        (proxy->segment_bytes != 0 && (uint64_t)bytes != proxy->segment_bytes))
        return report_error(ERR_INTERNAL, NULL, "a segment has the impossible size %lld",
                            (long long)bytes);
    proxy->segment_bytes = (uint64_t)bytes;
    return 0;
}

/* Maps a segment of that generation writable. With the mutex. */
static int map_writable(struct proxy_rank *proxy, unsigned char **out, uint32_t segment,
                        uint32_t generation)
{
    void *data = NULL;
    int fd = -1;
    if (segment >= SEGMENTS_MAX)
        return report_error(ERR_INVALID, NULL, "there is no segment %u", segment);
    ERR_TRY(grow_mappings(proxy, segment));
    struct mapping *mapping = &proxy->mappings[segment];
    if (mapping->data && mapping->generation == generation) {
        *out = mapping->data;
        return 0;
    }
    if (is_receiving(proxy, segment))
        return report_error(ERR_INVALID, NULL,
                            "segment %u was replaced while a block is written to the old one",
                            segment);
    if (mapping->data)
        munmap(mapping->data, proxy->segment_bytes);
    mapping->data = NULL;
    ERR_TRY(fetch_segment(proxy, &fd, segment, true));
    int error = segment_size(proxy, fd);
    if (error != 0) {
        close(fd);
        return error;
    }
    ERR_TRY(arena_link_map(&data, fd, proxy->segment_bytes, 0));
    *mapping = (struct mapping){data, generation};
    *out = data;
    return 0;
}

/* ---- received blocks; with the mutex ---- */

static bool has_number(const struct proxy_rank *proxy, uint32_t number)
{
    return number < proxy->num_have && (proxy->have[number / 8] >> number % 8 & 1) != 0;
}

static int grow_have(struct proxy_rank *proxy, uint32_t number)
{
    if (number < proxy->num_have)
        return 0;
    uint32_t count = (number | 8191u) + 1; /* number < BULK_NUMBERS_MAX: 2 MiB at most */
    uint8_t *larger = realloc(proxy->have, count / 8);
    if (!larger)
        return report_error(ERR_MEMORY, NULL, "no memory to remember %u blocks", count);
    memset(larger + proxy->num_have / 8, 0, (count - proxy->num_have) / 8);
    proxy->have = larger;
    proxy->num_have = count;
    return 0;
}

static void wait_changed(struct proxy_rank *proxy)
{
    pthread_cond_wait(&proxy->changed, &proxy->mutex); /* every row is freed within a stall */
}

static bool any_older(const struct proxy_rank *proxy, uint64_t save)
{
    for (const struct active *row = proxy->active; row < proxy->active + ACTIVE_MAX; row++)
        if (row->stream && row->save < save)
            return true;
    return false;
}

/* proxy_rank.S2 */
static int turn_to_save(struct proxy_rank *proxy, uint64_t save)
{
    if (save < proxy->save)
        return report_error(ERR_ABORTED, NULL, "a newer save has begun");
    if (save == proxy->save)
        return 0;
    proxy->save = save;
    if (proxy->have)
        memset(proxy->have, 0, proxy->num_have / 8);
    while (any_older(proxy, save) && !proxy->is_over) {
        cut_active(proxy, save);
        wait_changed(proxy);
    }
    /* Another connection may have begun a newer save meanwhile. */
    return proxy->save == save ? 0 : turn_to_save(proxy, save);
}

static struct active *find_active(struct proxy_rank *proxy, uint64_t save, uint32_t number)
{
    for (struct active *row = proxy->active; row < proxy->active + ACTIVE_MAX; row++)
        if (row->stream && row->save == save && row->number == number)
            return row;
    return NULL;
}

/* proxy_rank.S1 */
static void end_other(struct proxy_rank *proxy, uint64_t save, uint32_t number)
{
    struct active *row;
    while ((row = find_active(proxy, save, number)) != NULL) {
        tls_stream_cut(row->stream);
        wait_changed(proxy);
    }
}

static int check_put(struct proxy_rank *proxy, const struct bulk_request *request)
{
    if (!proxy->control)
        return report_error(ERR_DENIED, NULL, "a session that only loads saves nothing");
    if (has_ended(proxy))
        return fail_over();
    ERR_TRY(turn_to_save(proxy, request->save));
    end_other(proxy, request->save, request->number);
    if (has_number(proxy, request->number))
        return report_error(ERR_EXISTS, NULL, "block %u was received already", request->number);
    return grow_have(proxy, request->number);
}

static int take_row(struct proxy_rank *proxy, const struct bulk_request *request,
                    struct tls_stream *cut)
{
    for (struct active *row = proxy->active; row < proxy->active + ACTIVE_MAX; row++)
        if (!row->stream) {
            *row = (struct active){request->save, request->number, request->part, cut};
            return 0;
        }
    return report_error(ERR_BUSY, NULL, "the session receives too many blocks at once");
}

/* Begins to receive a block. ERR_ABORTED: of an older save; ERR_EXISTS: received already;
 * ERR_DENIED: outside the memory lent by BeginSave. */
static int put_session(struct bulk_entered *entered, const struct bulk_request *request, void **to,
                       struct tls_stream *cut)
{
    struct proxy_rank *proxy = entered->proxy;
    unsigned char *segment = NULL;
    pthread_mutex_lock(&proxy->mutex);
    int error = check_put(proxy, request);
    if (error == 0)
        error = map_writable(proxy, &segment, request->part, request->generation);
    if (error == 0 && request->offset + request->bytes > proxy->segment_bytes)
        error = report_error(ERR_INVALID, NULL, "a block reaches over the end of its segment");
    if (error == 0)
        error = take_row(proxy, request, cut);
    if (error == 0)
        *to = segment + request->offset;
    pthread_mutex_unlock(&proxy->mutex);
    return error;
}

/* ---- announcements ---- */

/* Pushes one entry; with the mutex, as the ring has one producer. */
static int announce(struct proxy_rank *proxy, const struct arena_entry *entry)
{
    const uint64_t one = 1;
    for (uint32_t waited_us = 0; !arena_push(proxy->control, entry); waited_us += RING_PAUSE_US) {
        (void)!write(proxy->event, &one, sizeof one);
        if (has_ended(proxy))
            return fail_over();
        if (waited_us >= RING_WAIT_MS * 1000)
            return report_error(ERR_TIMEOUT, "see ckptd's log: it does not read announcements",
                                "ckptd did not empty the ring within %u ms", RING_WAIT_MS);
        clock_sleep_ns(RING_PAUSE_US * 1000u);
    }
    (void)!write(proxy->event, &one, sizeof one);
    return 0;
}

static int came_session(struct bulk_entered *entered, const struct bulk_request *request, int error)
{
    struct proxy_rank *proxy = entered->proxy;
    pthread_mutex_lock(&proxy->mutex);
    struct active *row = find_active(proxy, request->save, request->number);
    CHECK(row != NULL);
    if (error == 0) /* proxy_rank.S3 */
        error = announce(proxy, &(struct arena_entry){.kind = ARENA_ENTRY_RANGE,
                                                      .image = request->image,
                                                      .save = request->save,
                                                      .offset = request->image_byte,
                                                      .bytes = request->bytes});
    if (error == 0 && proxy->save == request->save)
        proxy->have[request->number / 8] |= (uint8_t)(1u << request->number % 8);
    row->stream = NULL;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->mutex);
    return error;
}

/* ---- HAVE, END, WINDOW ---- */

static int end_save(struct proxy_rank *proxy, const struct bulk_request *request)
{
    int error = check_put(proxy, request);
    if (error == ERR_EXISTS)
        return 0; /* repeated: its answer was lost */
    if (error == 0)
        error = announce(proxy, &(struct arena_entry){.kind = ARENA_ENTRY_END,
                                                      .image = request->image,
                                                      .save = request->save});
    if (error == 0)
        proxy->have[request->number / 8] |= (uint8_t)(1u << request->number % 8);
    return error;
}

static void tell_window(struct proxy_rank *proxy, const struct bulk_request *request,
                        struct bulk_answer *answer)
{
    struct arena_window window = {0};
    if (proxy->control) {
        arena_window_get(&window, proxy->control);
        if (window.changes == request->number && request->bytes > 0)
            arena_window_wait(proxy->control, window.changes, (uint32_t)request->bytes);
        arena_window_get(&window, proxy->control);
    }
    answer->window_save = window.save;
    answer->window_end = window.end;
    answer->window_changes = window.changes;
}

static int ask_session(struct bulk_entered *entered, const struct bulk_request *request,
                       struct bulk_answer *answer)
{
    struct proxy_rank *proxy = entered->proxy;
    int error = 0;
    if (request->verb == BULK_WINDOW) {
        tell_window(proxy, request, answer); /* its pages stay while there is a connection */
        return 0;
    }
    pthread_mutex_lock(&proxy->mutex);
    if (request->verb == BULK_LEAVE) {
        proxy->has_left = true;
        if (proxy->control)
            arena_note_leave(&proxy->control->notes);
    } else if (request->verb == BULK_HAVE) {
        end_other(proxy, request->save, request->number);
        answer->bytes = request->save == proxy->save && has_number(proxy, request->number);
    } else
        error = end_save(proxy, request);
    pthread_mutex_unlock(&proxy->mutex);
    return error;
}

const struct bulk_ops session_source = {.get_begin = begin_session,
                                        .get_block = block_session,
                                        .get_end = end_session,
                                        .put_begin = put_session,
                                        .put_end = came_session,
                                        .ask = ask_session};
