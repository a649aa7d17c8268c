/* arena.c - the announcement ring, the rank's phase, the mapping of segments and the passing of
 * descriptors (layout in arena.h).
 *
 * The ring has one producer (the rank) and one consumer (ckptd). Each side writes only its own
 * free-running counter: the producer stores `head` with release after the entry is complete, the
 * consumer stores `tail` with release after it has copied the entry out; each loads the other's
 * with acquire. The fields are plain integers used through the compiler's atomic builtins, because
 * the memory is shared with another process. The consumer reads every word of an entry exactly
 * once.
 *
 * The window has one writer, ckptd. The rank sleeps on a futex in the shared page for a bounded
 * time, because ckptd may die.
 *
 * A reply on the arena socket is one message: 32 bytes and its descriptors in one SCM_RIGHTS. The
 * receiver refuses any other message, and closes every descriptor that came with it. */
#include "proto/wire/arena.h"

#include "proto/base/report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* MFD_NOEXEC_SEAL, which the headers of glibc 2.36 lack. */
#define NOEXEC_SEAL 0x0008u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert((ARENA_RING_ENTRIES & (ARENA_RING_ENTRIES - 1)) == 0, "a power of two");

/* ---- the ring ---- */

bool arena_push(struct arena_control *control, const struct arena_entry *entry)
{
    uint64_t head = __atomic_load_n(&control->head, __ATOMIC_RELAXED);
    uint64_t tail = __atomic_load_n(&control->tail, __ATOMIC_ACQUIRE);
    if (head - tail >= ARENA_RING_ENTRIES)
        return false;
    struct arena_entry *slot = &control->ring[head & (ARENA_RING_ENTRIES - 1)];
    __atomic_store_n(&slot->kind, entry->kind, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->image, entry->image, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->save, entry->save, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->offset, entry->offset, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->bytes, entry->bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&control->head, head + 1, __ATOMIC_RELEASE);
    return true;
}

int arena_pop(struct arena_control *control, struct arena_entry *out, bool *out_any)
{
    uint64_t tail = __atomic_load_n(&control->tail, __ATOMIC_RELAXED);
    uint64_t head = __atomic_load_n(&control->head, __ATOMIC_ACQUIRE);
    *out_any = false;
    if (head - tail > ARENA_RING_ENTRIES)
        return report_error(ERR_CORRUPT, NULL,
                            "the counters of an announcement ring are impossible (head %" PRIu64
                            ", tail %" PRIu64 ")",
                            head, tail);
    if (head == tail)
        return 0;
    const struct arena_entry *slot = &control->ring[tail & (ARENA_RING_ENTRIES - 1)];
    out->kind = __atomic_load_n(&slot->kind, __ATOMIC_RELAXED);
    out->image = __atomic_load_n(&slot->image, __ATOMIC_RELAXED);
    out->save = __atomic_load_n(&slot->save, __ATOMIC_RELAXED);
    out->offset = __atomic_load_n(&slot->offset, __ATOMIC_RELAXED);
    out->bytes = __atomic_load_n(&slot->bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&control->tail, tail + 1, __ATOMIC_RELEASE);
    *out_any = true;
    return 0;
}

/* ---- mappings ---- */

int arena_reserve(void **out, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) / page * page;
    uint8_t *all = mmap(NULL, bytes + ARENA_HUGE_BYTES, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return report_errno(ERR_MEMORY, "could not reserve addresses for shared memory", "mmap");
    uint64_t skip = -(uintptr_t)all % ARENA_HUGE_BYTES;
    if (skip > 0)
        munmap(all, skip);
    munmap(all + skip + bytes, ARENA_HUGE_BYTES - skip);
    *out = all + skip;
    return 0;
}

int arena_create(int *out_fd, const char *name, uint64_t bytes)
{
    /* No code is executed from it; kernels before 6.3 refuse NOEXEC_SEAL. */
    *out_fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (*out_fd < 0 && errno == EINVAL)
        *out_fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*out_fd < 0 || ftruncate(*out_fd, (off_t)bytes) != 0 ||
        fcntl(*out_fd, F_ADD_SEALS, SEALS) != 0)
        return report_errno(ERR_MEMORY, "could not make shared memory", name);
    return 0;
}

int arena_map(void **out, void *at, int fd, uint64_t bytes, int protection)
{
    struct stat info;
    void *place = at;
    if (fstat(fd, &info) != 0 || (uint64_t)info.st_size < bytes)
        return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                            "a shared memory object of ckptd is too short");
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return report_error(ERR_CORRUPT, "is it ckptd that listens there?",
                            "a shared memory object of ckptd could become shorter");
    int error = at ? 0 : arena_reserve(&place, bytes);
    if (error != 0)
        return error;
    if (mmap(place, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        error = report_errno(ERR_MEMORY, "could not map ckptd's memory", "mmap");
        if (!at)
            munmap(place, bytes);
        return error;
    }
    madvise(place, bytes, MADV_DONTDUMP); /* core dumps omit weights */
    *out = place;
    return 0;
}

/* ---- the window ---- */

void arena_window_set(struct arena_control *control, uint64_t save, uint64_t end)
{
    __atomic_store_n(&control->window_end, end, __ATOMIC_RELAXED);
    /* `end` first: a rank that reads the new save also reads its end, even before it sees the
     * change. The end of the previous save may be larger. */
    __atomic_store_n(&control->window_save, save, __ATOMIC_RELEASE);
    __atomic_add_fetch(&control->window_changes, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->window_changes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void arena_window_get(struct arena_window *out, const struct arena_control *control)
{
    /* `changes` first: a later change then ends the wait at once. */
    out->changes = __atomic_load_n(&control->window_changes, __ATOMIC_ACQUIRE);
    out->save = __atomic_load_n(&control->window_save, __ATOMIC_ACQUIRE);
    out->end = __atomic_load_n(&control->window_end, __ATOMIC_ACQUIRE);
}

void arena_window_wait(const struct arena_control *control, uint32_t changes, uint32_t timeout_ms)
{
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    syscall(SYS_futex, &control->window_changes, FUTEX_WAIT, changes, &timeout, NULL, 0);
}

/* ---- phases ---- */

/* ckptd misses no end of a busy phase. ckptd sets phase_asked, then reads the phase again. The rank
 * sets the phase, then reads phase_asked. These four are sequentially consistent, so at least one
 * side sees the other's store. */

bool arena_set_phase(struct arena_control *control, enum arena_phase phase)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    __atomic_store_n(&control->spoke_s, (uint32_t)now.tv_sec, __ATOMIC_RELAXED);
    if (phase == ARENA_PHASE_BUSY) {
        __atomic_store_n(&control->phase, (uint32_t)phase, __ATOMIC_RELEASE);
        return false;
    }
    __atomic_store_n(&control->phase, (uint32_t)phase, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&control->phase_asked, __ATOMIC_SEQ_CST) == 0)
        return false;
    __atomic_store_n(&control->phase_asked, 0, __ATOMIC_SEQ_CST);
    return true;
}

bool arena_is_busy(struct arena_control *control)
{
    if (__atomic_load_n(&control->phase, __ATOMIC_RELAXED) != ARENA_PHASE_BUSY)
        return false;
    __atomic_store_n(&control->phase_asked, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&control->phase, __ATOMIC_SEQ_CST) == ARENA_PHASE_BUSY;
}

/* ---- what is asked ---- */

void arena_want(struct arena_control *control, uint32_t asked, uint32_t until_s)
{
    uint32_t before = __atomic_load_n(&control->asked_until_s, __ATOMIC_RELAXED);
    if (until_s != 0 && (before == 0 || until_s < before))
        __atomic_store_n(&control->asked_until_s, until_s, __ATOMIC_RELAXED);
    __atomic_or_fetch(&control->asked, asked, __ATOMIC_RELEASE);
}

uint32_t arena_asked(const struct arena_control *control)
{
    return __atomic_load_n(&control->asked, __ATOMIC_ACQUIRE);
}

void arena_want_save(struct arena_control *control)
{
    __atomic_add_fetch(&control->saves_asked, 1, __ATOMIC_RELAXED);
}

void arena_set_saves_asked(struct arena_control *control, uint32_t count)
{
    uint32_t before = __atomic_load_n(&control->saves_asked, __ATOMIC_RELAXED);
    while (before < count &&
           !__atomic_compare_exchange_n(&control->saves_asked, &before, count, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

uint32_t arena_saves_asked(const struct arena_control *control)
{
    return __atomic_load_n(&control->saves_asked, __ATOMIC_RELAXED);
}

uint32_t arena_asked_until_s(const struct arena_control *control)
{
    return __atomic_load_n(&control->asked_until_s, __ATOMIC_RELAXED);
}

/* ---- descriptors ---- */

union control_buffer {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(ARENA_FDS_MAX * sizeof(int))];
};

static int fail_send(void)
{
    return report_errno(ERR_UNAVAILABLE, "could not pass descriptors",
                        "sendmsg on the arena socket");
}

int arena_send_reply(int socket, const struct arena_reply *reply, const int *fds)
{
    CHECK(reply->num_fds <= ARENA_FDS_MAX);
    union control_buffer control;
    struct iovec data = {.iov_base = (void *)reply, .iov_len = sizeof(*reply)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (reply->num_fds > 0) {
        size_t fd_bytes = reply->num_fds * sizeof(int);
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(header), fds, fd_bytes);
    }
    while (data.iov_len > 0) {
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return fail_send();
        data.iov_base = (char *)data.iov_base + sent;
        data.iov_len -= (size_t)sent;
        message.msg_control = NULL; /* the first bytes carried the descriptors */
        message.msg_controllen = 0;
    }
    return 0;
}

static void close_all(const int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
}

/* Appends the descriptors of one message to fds; those beyond ARENA_FDS_MAX are closed and counted.
 */
static void append_fds(int *fds, uint32_t *count, struct msghdr *message)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t num = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < num; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
            if (*count < ARENA_FDS_MAX)
                fds[*count] = fd;
            else
                close(fd);
            *count += 1;
        }
    }
}

/* Reads exactly one reply. On an error the descriptors received so far are still in fds. */
static int receive_message(int socket, struct arena_reply *out, int *fds, uint32_t *num_fds)
{
    union control_buffer control;
    size_t received = 0;
    while (received < sizeof(*out)) {
        struct iovec data = {.iov_base = (char *)out + received,
                             .iov_len = sizeof(*out) - received};
        struct msghdr message = {.msg_iov = &data,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes)};
        ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return report_errno(ERR_UNAVAILABLE, "could not receive descriptors",
                                "recvmsg on the arena socket");
        append_fds(fds, num_fds, &message);
        /* The control buffer has room for ARENA_FDS_MAX: a missing descriptor got no number in this
         * process. */
        if ((message.msg_flags & MSG_CTRUNC) && *num_fds < ARENA_FDS_MAX)
            return report_error(ERR_BUSY,
                                "close clients and checkpoints that are read no more, or raise "
                                "the limit (ulimit -n)",
                                "this process is at its limit of open descriptors: it got %" PRIu32
                                " of those that ckptd sent",
                                *num_fds);
        if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
            return report_error(ERR_CORRUPT, NULL, "a reply on the arena socket is oversized");
        if (n == 0 && received == 0)
            return report_error(ERR_UNAVAILABLE, NULL, "ckptd closed the arena socket");
        if (n == 0)
            return report_error(ERR_CORRUPT, NULL, "a reply on the arena socket is truncated");
        received += (size_t)n;
    }
    return 0;
}

static int check_reply(const struct arena_reply *reply, uint32_t num_fds, uint32_t max_fds)
{
    if (reply->magic != ARENA_MAGIC)
        return report_error(ERR_CORRUPT, NULL, "a reply on the arena socket has no magic number");
    if (reply->version != ARENA_VERSION)
        return report_error(ERR_VERSION, "client and ckptd must be of the same release",
                            "version %" PRIu32 " of the arena is unknown", reply->version);
    if (num_fds != reply->num_fds || num_fds > max_fds || (reply->error != 0 && num_fds > 0))
        return report_error(ERR_CORRUPT, NULL,
                            "a reply on the arena socket brought %" PRIu32
                            " descriptors and announced %" PRIu32 " (at most %" PRIu32 " fit)",
                            num_fds, reply->num_fds, max_fds);
    return 0;
}

int arena_receive_reply(int socket, struct arena_reply *out, int *out_fds, uint32_t max_fds)
{
    int fds[ARENA_FDS_MAX];
    uint32_t num_fds = 0;
    memset(out, 0, sizeof(*out));
    int error = receive_message(socket, out, fds, &num_fds);
    if (!error)
        error = check_reply(out, num_fds, max_fds);
    if (error) {
        close_all(fds, num_fds < ARENA_FDS_MAX ? num_fds : ARENA_FDS_MAX);
        return error;
    }
    if (num_fds > 0)
        memcpy(out_fds, fds, num_fds * sizeof(int));
    return 0;
}
