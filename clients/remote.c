/* remote.c - a rank whose ckptd is on another node.
 *
 * Callers see no difference to shared memory: a ring, and an image to copy into. Here the image is
 * the rank's private memory, and a thread of the rank reads the ring instead of ckptd. It cuts
 * announced ranges into blocks and sends them by the bulk plane into the segments that ckptd lent.
 * There a proxy announces them again (ckptd/bulk/proxy_rank.c). The thread sends the end of a save
 * after all its blocks have arrived. So training continues while the blocks travel, as it does
 * while a disk writes them.
 *
 * A second thread mirrors the control page (Attend of ckpt.proto): every ATTEND_MS it sends the
 * notes and the time of the phase, and receives what ckptd asks. The rank's other threads write and
 * read the page as they do with shared memory. An older ckptd does not know the call; then requests
 * come with the answers to BeginSave. A ckptd that does not know the session ends it here.
 *
 * There is memory for one image: the next save may begin when the last one has arrived (busy_ms,
 * else ERR_BUSY). Blocks that have not arrived when the rank dies are lost; no caller was told that
 * they are safe.
 *
 * Bounds: those of the bulk plane. A connection without progress for BULK_STALL_MS ends the
 * session: the next save describes again. The end of a session waits for an Attend under way, at
 * most ATTEND_CALL_MS. */
#include "clients/remote.h"

#include "proto/base/address.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/tls/tls.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS 4u
#define FETCH_MS 600000u /* of the lent memory of a shard */
#define POLL_MS 100      /* between checks for the end, beside the eventfd */
#define ATTEND_MS 1000u  /* between two Attends */
#define ATTEND_CALL_MS 1000u

struct remote {
    struct ckpt *ckpt;
    struct remote_link link;
    pthread_t forwards, attends; /* the threads */
    bool has_forwards, has_attends;
    pthread_mutex_t mutex;
    pthread_cond_t changed, closes;
    bool is_closing;
    int error; /* the connection failed: the session is over */
    struct report_text text;
    /* The save under way. */
    uint64_t save;   /* 0: none */
    bool is_sending; /* the thread is sending the last announced entry */
    uint32_t *segments, *generations;
    uint32_t num_segments, number;
};

bool remote_is(const struct ckpt *ckpt)
{
    struct address address;
    return ckpt->rpc != NULL && address_parse(&address, ckpt->server) == 0 &&
           address.kind == ADDRESS_TLS;
}

void remote_want(const struct ckpt *ckpt, uint32_t asked, uint32_t within_s, uint32_t saves_asked)
{
    uint32_t now_s = (uint32_t)(clock_ns() / 1000000000u);
    if (ckpt->remote == NULL)
        return;
    arena_want(ckpt->control, asked, within_s != 0 ? now_s + within_s : 0);
    arena_set_saves_asked(ckpt->control, saves_asked);
}

/* ---- connections ---- */

int remote_link_open(struct remote_link *out, struct ckpt *ckpt, uint64_t token)
{
    struct arena_window window;
    *out = (struct remote_link){.asker = {.rpc = ckpt->rpc,
                                          .server = ckpt->server,
                                          .directory = tls_client_directory(),
                                          .session = token,
                                          .num_connections = CONNECTIONS}};
    ERR_TRY(bulk_open_asker(&out->bulk, &out->asker));
    int error = bulk_window(out->bulk, &window, 0, 0); /* the session has its connection now */
    if (error != 0)
        remote_link_close(out);
    return error;
}

void remote_link_close(struct remote_link *link)
{
    if (link->bulk != NULL)
        bulk_leave(link->bulk);
    bulk_close(link->bulk);
    link->bulk = NULL;
}

int remote_fetch(struct remote_link *link, const struct bulk_get *gets, uint32_t count)
{
    return bulk_get_all(link->bulk, gets, count, FETCH_MS);
}

struct remote_link *remote_session_link(struct ckpt *ckpt)
{
    return &ckpt->remote->link;
}

/* ---- the thread that forwards ---- */

/* The session is over. With the mutex. */
static void lose(struct remote *remote, int error)
{
    remote->error = error;
    report_keep(&remote->text);
}

/* The save has arrived or failed. An error of the connection ends the session; after other errors
 * ckptd knows the outcome of the save. */
static void end_save(struct remote *remote, int error)
{
    bool is_lost = error == ERR_UNAVAILABLE || error == ERR_NOT_FOUND || error == ERR_DENIED ||
                   error == ERR_TIMEOUT;
    struct report_text text;
    report_keep(&text);
    if (error != 0)
        bulk_drop(remote->link.bulk);
    (void)report_restore(&text, error);
    pthread_mutex_lock(&remote->mutex);
    if (is_lost)
        lose(remote, error);
    remote->save = 0;
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->mutex);
}

/* The next block of the range of `entry`, from byte `done` on. False: the save is over. */
static bool next_block(struct remote *remote, struct bulk_put *out, const struct arena_entry *entry,
                       uint64_t done)
{
    const struct ckpt *ckpt = remote->ckpt;
    uint64_t at = entry->offset + done, inside = at % ckpt->segment_bytes;
    uint64_t bytes =
        entry->bytes - done < BULK_BLOCK_BYTES ? entry->bytes - done : BULK_BLOCK_BYTES;
    pthread_mutex_lock(&remote->mutex);
    bool is_on = remote->save == entry->save && !remote->is_closing;
    if (is_on) {
        uint64_t segment = at / ckpt->segment_bytes % remote->num_segments;
        *out = (struct bulk_put){.segment = remote->segments[segment],
                                 .generation = remote->generations[segment],
                                 .image = entry->image,
                                 .number = remote->number++,
                                 .offset = inside,
                                 .bytes = bytes,
                                 .save = entry->save,
                                 .image_byte = at,
                                 .from = ckpt->staging + segment * ckpt->segment_bytes + inside};
    }
    pthread_mutex_unlock(&remote->mutex);
    return is_on;
}

/* Sends an announced range, which lies in one segment (save.c). */
static void send_entry(struct remote *remote, const struct arena_entry *entry)
{
    struct bulk_put put;
    int error = 0;
    uint64_t done = 0;
    do {
        if (!next_block(remote, &put, entry, done))
            return;
        error = bulk_put(remote->link.bulk, &put);
        done += put.bytes;
    } while (error == 0 && done < entry->bytes);
    if (error == 0 && entry->kind == ARENA_ENTRY_END)
        error = bulk_flush(remote->link.bulk);
    if (error != 0 || entry->kind == ARENA_ENTRY_END)
        end_save(remote, error);
}

static void set_sending(struct remote *remote, bool is_sending)
{
    pthread_mutex_lock(&remote->mutex);
    remote->is_sending = is_sending;
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->mutex);
}

static bool is_closing(struct remote *remote)
{
    pthread_mutex_lock(&remote->mutex);
    bool answer = remote->is_closing;
    pthread_mutex_unlock(&remote->mutex);
    return answer;
}

static void *forward_entries(void *argument)
{
    struct remote *remote = argument;
    struct pollfd state = {.fd = remote->ckpt->event, .events = POLLIN};
    uint64_t count;
    while (!is_closing(remote)) {
        struct arena_entry entry;
        bool any = poll(&state, 1, POLL_MS) > 0;
        if (any)
            (void)!read(state.fd, &count, sizeof count);
        for (any = true; any && !is_closing(remote);) {
            set_sending(remote, true);
            /* This process wrote the ring. */
            CHECK(arena_pop(remote->ckpt->control, &entry, &any) == 0);
            if (any)
                send_entry(remote, &entry);
            set_sending(remote, false);
        }
    }
    return NULL;
}

/* ---- the thread that attends ---- */

static int attend(struct remote *remote)
{
    const struct ckpt *ckpt = remote->ckpt;
    Holdfast__V1__AttendRequest request = HOLDFAST__V1__ATTEND_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    struct arena_notes notes = {0};
    char path[96];
    const ProtobufCMethodDescriptor *method = session_method(path, &request.base);
    arena_notes_copy(&notes, &ckpt->control->notes, 0);
    request.session = ckpt->link.token;
    request.notes = (ProtobufCBinaryData){.len = sizeof notes, .data = (uint8_t *)&notes};
    request.clock_ns = clock_ns();
    request.spoke_s = __atomic_load_n(&ckpt->control->spoke_s, __ATOMIC_RELAXED);
    ERR_TRY(
        rpc_client_call(ckpt->rpc, path, &request.base, method->output, &answer, ATTEND_CALL_MS));
    const Holdfast__V1__AttendReply *reply = (Holdfast__V1__AttendReply *)answer;
    remote_want(ckpt, reply->asked, reply->asked_within_s, reply->saves_asked);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

static void *keep_attending(void *argument)
{
    struct remote *remote = argument;
    int error = 0;
    pthread_mutex_lock(&remote->mutex);
    /* An older ckptd, or one that has ended the session; after other errors it tries again. */
    while (!remote->is_closing && error != ERR_VERSION && error != ERR_NOT_FOUND) {
        struct timespec until = clock_after_ns(CLOCK_MONOTONIC, ATTEND_MS * 1000000ull);
        pthread_mutex_unlock(&remote->mutex);
        error = attend(remote);
        pthread_mutex_lock(&remote->mutex);
        if (error == ERR_NOT_FOUND)
            lose(remote, error);
        while (!remote->is_closing &&
               pthread_cond_timedwait(&remote->closes, &remote->mutex, &until) == 0)
            continue;
    }
    pthread_mutex_unlock(&remote->mutex);
    return NULL;
}

/* ---- the session ---- */

static int make_ring(struct ckpt *ckpt, uint64_t token)
{
    void *pages = mmap(NULL, sizeof *ckpt->control, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return report_errno(ERR_MEMORY, "could not make a ring", "mmap");
    ckpt->control = pages;
    ckpt->control_bytes = sizeof *ckpt->control;
    *ckpt->control = (struct arena_control){.magic = ARENA_MAGIC,
                                            .version = ARENA_VERSION,
                                            .entries = ARENA_RING_ENTRIES,
                                            .session = token};
    ckpt->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return ckpt->event >= 0 ? 0 : report_errno(ERR_MEMORY, "could not make a ring", "eventfd");
}

static int start_threads(struct remote *remote)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    remote->has_forwards = pthread_create(&remote->forwards, NULL, forward_entries, remote) == 0;
    remote->has_attends = pthread_create(&remote->attends, NULL, keep_attending, remote) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return remote->has_forwards && remote->has_attends
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for a thread");
}

int remote_open(struct ckpt *ckpt, uint64_t token)
{
    pthread_condattr_t attributes;
    struct remote *remote = calloc(1, sizeof *remote);
    if (remote == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a session");
    ckpt->remote = remote;
    ckpt->link.token = token;
    remote->ckpt = ckpt;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&remote->mutex, NULL);
    pthread_cond_init(&remote->changed, &attributes);
    pthread_cond_init(&remote->closes, &attributes);
    pthread_condattr_destroy(&attributes);
    ERR_TRY(make_ring(ckpt, token));
    ERR_TRY(remote_link_open(&remote->link, ckpt, token));
    return start_threads(remote);
}

void remote_close(struct ckpt *ckpt)
{
    struct remote *remote = ckpt->remote;
    if (remote == NULL)
        return;
    pthread_mutex_lock(&remote->mutex);
    remote->is_closing = true;
    pthread_cond_broadcast(&remote->closes);
    pthread_mutex_unlock(&remote->mutex);
    if (remote->has_forwards) {
        remote_give_up(ckpt);
        pthread_join(remote->forwards, NULL);
    }
    if (remote->has_attends)
        pthread_join(remote->attends, NULL);
    remote_link_close(&remote->link);
    pthread_cond_destroy(&remote->changed);
    pthread_cond_destroy(&remote->closes);
    pthread_mutex_destroy(&remote->mutex);
    free(remote->segments);
    free(remote->generations);
    free(remote);
    ckpt->remote = NULL;
}

bool remote_alive(const struct ckpt *ckpt)
{
    struct remote *remote = ckpt->remote;
    if (remote == NULL)
        return false;
    pthread_mutex_lock(&remote->mutex);
    bool is_fine = remote->error == 0;
    pthread_mutex_unlock(&remote->mutex);
    return is_fine && bulk_check(remote->link.bulk) == 0;
}

int remote_map(struct ckpt *ckpt, unsigned char **out, uint32_t count)
{
    uint64_t bytes = count * ckpt->segment_bytes;
    if (ckpt->staging_bytes != bytes) {
        void *memory = NULL;
        remote_unmap(ckpt);
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return report_error(ERR_MEMORY, "give the rank's node more memory",
                                "no memory for an image of %llu bytes", (unsigned long long)bytes);
        ckpt->staging = memory;
        ckpt->staging_bytes = bytes;
        madvise(memory, bytes, MADV_HUGEPAGE);
        madvise(memory, bytes, MADV_DONTDUMP);
        madvise(memory, ckpt->image_bytes < bytes ? ckpt->image_bytes : bytes,
                /* If the kernel does not support it, the copies fault the pages in. */
                MADV_POPULATE_WRITE);
    }
    for (uint32_t i = 0; i < count; i++)
        out[i] = ckpt->staging + i * ckpt->segment_bytes;
    return 0;
}

void remote_unmap(struct ckpt *ckpt)
{
    if (ckpt->staging != NULL)
        munmap(ckpt->staging, ckpt->staging_bytes);
    ckpt->staging = NULL;
    ckpt->staging_bytes = 0;
}

/* ---- saves ---- */

int remote_wait(struct ckpt *ckpt, uint32_t timeout_ms)
{
    struct remote *remote = ckpt->remote;
    struct timespec until = clock_after_ns(CLOCK_MONOTONIC, timeout_ms * 1000000ull);
    int rc = 0;
    if (remote == NULL)
        return 0;
    pthread_mutex_lock(&remote->mutex);
    while (remote->save != 0 && rc == 0)
        rc = pthread_cond_timedwait(&remote->changed, &remote->mutex, &until);
    bool is_busy = remote->save != 0;
    int error = remote->error != 0 ? report_restore(&remote->text, remote->error) : 0;
    pthread_mutex_unlock(&remote->mutex);
    if (error == 0 && is_busy)
        error = report_error(ERR_BUSY, "wait longer (busy_ms), or save less often",
                             "the previous save is still being sent to ckptd");
    return error;
}

int remote_begin(struct ckpt *ckpt, uint64_t save, const uint32_t *segments,
                 const uint32_t *generations, uint32_t count)
{
    struct remote *remote = ckpt->remote;
    size_t bytes = (count + 1) * sizeof *segments;
    remote_give_up(ckpt); /* no effect, unless a save was never ended */
    pthread_mutex_lock(&remote->mutex);
    free(remote->segments);
    free(remote->generations);
    remote->segments = malloc(bytes);
    remote->generations = malloc(bytes);
    bool is_made = remote->segments != NULL && remote->generations != NULL;
    if (is_made) {
        memcpy(remote->segments, segments, count * sizeof *segments);
        memcpy(remote->generations, generations, count * sizeof *generations);
        remote->num_segments = count;
        remote->number = 0;
        remote->save = save;
    }
    pthread_mutex_unlock(&remote->mutex);
    return is_made ? 0 : report_error(ERR_MEMORY, NULL, "no memory for %u segments", count);
}

void remote_give_up(struct ckpt *ckpt)
{
    struct remote *remote = ckpt->remote;
    if (remote == NULL)
        return;
    pthread_mutex_lock(&remote->mutex);
    remote->save = 0;
    while (remote->is_sending) { /* it may wait for space in the queue of blocks */
        struct timespec until = clock_after_ns(CLOCK_MONOTONIC, POLL_MS / 10 * 1000000ull);
        pthread_mutex_unlock(&remote->mutex);
        bulk_drop(remote->link.bulk);
        pthread_mutex_lock(&remote->mutex);
        if (remote->is_sending)
            pthread_cond_timedwait(&remote->changed, &remote->mutex, &until);
    }
    pthread_mutex_unlock(&remote->mutex);
    bulk_drop(remote->link.bulk);
}

void remote_window(struct ckpt *ckpt, uint32_t wait_ms)
{
    struct arena_window window, shown;
    arena_window_get(&shown, ckpt->control);
    if (ckpt->remote == NULL ||
        bulk_window(ckpt->remote->link.bulk, &window, ckpt->window_changes, wait_ms) != 0)
        return; /* session_alive() reports the failure */
    ckpt->window_changes = window.changes;
    if (window.save != shown.save || window.end != shown.end)
        arena_window_set(ckpt->control, window.save, window.end);
}
