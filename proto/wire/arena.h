/* arena.h - the shared memory between a rank and its ckptd.
 *
 * ckptd owns a pool of equal memfd segments. An image (the bytes of a shard file) is a list of
 * segments: image byte b lies in segment b / segment_bytes of the list. Beside the segments each
 * session has one control page set (its own memfd): a header and a single-producer single-consumer
 * ring of announcements. The rank copies tensor bytes into the image, then announces the range;
 * ckptd copies each entry to private memory before it checks it, and treats it as hostile. The
 * header may hold the phase of the rank's step; in a busy phase ckptd may do less.
 *
 * Where memory is short an image is a window: fewer segments than the file needs, used as a ring.
 * Byte b then lies in segment b / segment_bytes % count, while it is in the window. ckptd stores in
 * the control page up to which byte the rank may write (struct arena_window), and moves that end as
 * bytes reach the file. ckptd never reads these words back.
 *
 * Descriptors travel over a second unix socket, the arena socket, named by HelloReply. The client
 * connects, sends struct arena_request with its session token, gets struct arena_reply with the
 * descriptors as SCM_RIGHTS. The first request names the session and must come at once: ckptd ends
 * a connection without a session, and a session without a connection, after a while. (A reader's
 * first request for segments may come much later.) The connection stays open while the session
 * lives. When it closes, ckptd learns at once that the rank is gone. ckptd never accepts a
 * descriptor.
 *
 * A rank on another node shares no memory with its ckptd. Each side then has a control page of its
 * own, and the call Attend (ckpt.proto) carries notes and requests between the two.
 *
 * All integers are in the host's byte order (both ends are on one host). */
#ifndef HOLDFAST_PROTO_WIRE_ARENA_H
#define HOLDFAST_PROTO_WIRE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_MAGIC 0x31616e657261666cull
#define ARENA_VERSION 2u
#define ARENA_RING_ENTRIES 4096u /* power of two */
/* The most memory that ckptd uses beside the pool. deploy/ckptd.conf states the surplus for very
 * large pools and jobs; tests/unit/clients_budget.c runs ckptd under this limit. */
#define ARENA_BESIDE_BYTES (64ull << 20)
#define ARENA_FDS_MAX 64u /* descriptors in one reply */

enum arena_entry_kind {
    ARENA_ENTRY_RANGE = 1, /* image bytes [offset, offset + bytes) are final */
    ARENA_ENTRY_END = 2,   /* the rank has announced all of this save */
    /* Only if DescribeReply.takes_digests is set, before END. The rank has computed the digest
     * (checksum.h) of the tensor that begins at image byte `offset`. `bytes` is its first, or
     * second, sum. ckptd compares it with the digest of the image before it syncs the file. */
    ARENA_ENTRY_DIGEST_0 = 3,
    ARENA_ENTRY_DIGEST_1 = 4,
    /* Only if DescribeReply.replicated names slices, before END. `offset` and `bytes` are the next
     * two words of their digests (replica.h), slice by slice. A rank announces all of them or
     * none. */
    ARENA_ENTRY_REPLICA = 5
};

struct arena_entry {
    uint32_t kind;
    uint32_t image; /* slot number of BeginSaveReply */
    uint64_t save;
    uint64_t offset;
    uint64_t bytes;
};
_Static_assert(sizeof(struct arena_entry) == 32, "arena_entry is part of the shared-memory layout");

/* The phase of the rank's step, for processes that share memory and disk with it. */
enum arena_phase {
    ARENA_PHASE_NONE = 0, /* the rank never set a phase */
    ARENA_PHASE_BUSY = 1, /* interference costs most */
    ARENA_PHASE_QUIET = 2 /* interference costs least */
};

/* Requests to the rank; or-ed. */
enum arena_asked {
    ARENA_ASKED_STOP = 1,    /* stop after the current step */
    ARENA_ASKED_NO_SAVE = 2, /* and do not save it */
};

/* The current work of the rank (arena_notes.h): a call, or a lane's operation. */
#define ARENA_NOTE_TEXT 24u
struct arena_note {
    uint64_t number; /* of a call: from 1 on; of a lane: 1; 0: empty, or being written */
    uint64_t step, since_ns, until_ns; /* CLOCK_MONOTONIC; until_ns 0: it has not ended */
    uint64_t bytes;                    /* 0: none, or unknown */
    uint32_t operation,
        part; /* index in the step's program; its micro-batch. UINT32_MAX: unknown */
    char what[ARENA_NOTE_TEXT], of[ARENA_NOTE_TEXT], lane[ARENA_NOTE_TEXT];
};
#define ARENA_LANES 8u
#define ARENA_CALLS 16u /* the last calls: calls[number % ARENA_CALLS] */
struct arena_notes {
    uint32_t has_left; /* 1: the rank has ended the session itself */
    /* CLOCK_MONOTONIC modulo 2^32: when the process of the rank last ran; 0: unknown. */
    uint32_t alive_ms;
    struct arena_note lanes[ARENA_LANES], calls[ARENA_CALLS];
};
_Static_assert(sizeof(struct arena_notes) == 8 + 120 * (ARENA_LANES + ARENA_CALLS), "layout");

struct arena_control {
    uint64_t magic;
    uint32_t version;
    uint32_t entries; /* ARENA_RING_ENTRIES */
    uint64_t session;
    /* Written by ckptd. */
    uint64_t window_save;    /* the save that has the window; 0: none, or ckptd gave it up */
    uint64_t window_end;     /* the rank may write image bytes below this */
    uint32_t window_changes; /* number of changes; a futex */
    uint32_t phase_asked;    /* ckptd wants to know the end of the busy phase; the rank clears it */
    uint32_t phase;          /* written by the rank: an enum arena_phase, or any value */
    uint32_t spoke_s; /* written by the rank: CLOCK_MONOTONIC of its newest phase; 0: unknown */
    uint32_t asked;   /* written by ckptd: enum arena_asked */
    /* Written by ckptd before `asked`: CLOCK_MONOTONIC, rounded down, by which the rank should have
     * ended; 0: no deadline (an older ckptd writes nothing here). */
    uint32_t asked_until_s;
    uint64_t head; /* written by the rank: next entry to fill; free-running */
    uint8_t pad1[56];
    uint64_t tail;        /* written by ckptd: next entry to read; free-running */
    uint32_t saves_asked; /* written by ckptd: how many saves it has asked the rank for */
    /* Written by ckptd's proxy of a rank on another node: 1 while it has no connection. */
    uint32_t is_cut;
    uint8_t pad2[48];
    struct arena_entry ring[ARENA_RING_ENTRIES];
    /* Written by the rank. A ckptd from before the notes has a descriptor that ends here; a libckpt
     * from then maps only up to here. */
    struct arena_notes notes;
};
#define ARENA_CONTROL_BYTES_LEAST (192u + 32u * ARENA_RING_ENTRIES)
_Static_assert(offsetof(struct arena_control, notes) == ARENA_CONTROL_BYTES_LEAST, "layout");
_Static_assert(sizeof(struct arena_control) <= (ARENA_CONTROL_BYTES_LEAST | 4095) + 1,
               "notes take no page more");

/* Producer and consumer of the ring. push: false when full. pop: copies the oldest entry out,
 * *out_any is false when empty. ERR_CORRUPT: a hostile peer set the head more than a ring ahead. */
bool arena_push(struct arena_control *control, const struct arena_entry *entry);
int arena_pop(struct arena_control *control, struct arena_entry *out, bool *out_any);

/* Called by ckptd: the window of `save` now ends at byte `end`. Wakes the waiting rank. */
void arena_window_set(struct arena_control *control, uint64_t save, uint64_t end);
struct arena_window {
    uint64_t save, end;
    uint32_t changes;
};
/* Called by the rank: reads the window, and sleeps until it changes (or `timeout_ms`, or
 * spuriously). */
void arena_window_get(struct arena_window *out, const struct arena_control *control);
void arena_window_wait(const struct arena_control *control, uint32_t changes, uint32_t timeout_ms);

/* The rank announces a phase. True when ckptd waits for it: the caller then writes to the eventfd.
 * One thread at a time; it need not be the thread that pushes entries. */
bool arena_set_phase(struct arena_control *control, enum arena_phase phase);
/* Called by ckptd: is the rank in a busy phase? If so, the rank signals its end by the eventfd. */
bool arena_is_busy(struct arena_control *control);

/* ckptd adds the requests in `asked`; the rank polls them. `until_s` as in asked_until_s: the
 * earliest one counts. */
void arena_want(struct arena_control *control, uint32_t asked, uint32_t until_s);
uint32_t arena_asked(const struct arena_control *control);
/* ckptd asks the rank for one more save; the rank polls the count. */
void arena_want_save(struct arena_control *control);
/* The same in the page of a rank on another node: ckptd's count was `count`, or is more by now. */
void arena_set_saves_asked(struct arena_control *control, uint32_t count);
uint32_t arena_saves_asked(const struct arena_control *control);
/* Call it after arena_asked(). */
uint32_t arena_asked_until_s(const struct arena_control *control);

enum arena_request_kind {
    ARENA_REQUEST_CONTROL = 1,  /* reply carries: control memfd, eventfd to write after pushing */
    ARENA_REQUEST_SEGMENTS = 2, /* reply carries the descriptors of the requested segments */
    ARENA_REQUEST_BIND = 3 /* reply carries none: it only binds the connection to the session */
};
struct arena_request {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;
    uint64_t session;
    uint32_t num_segments;
    uint32_t writable; /* 1: to save, only segments lent to this session; 0: to load, read-only */
    uint32_t segments[ARENA_FDS_MAX];
};
struct arena_reply {
    uint64_t magic;
    uint32_t version;
    int32_t error; /* 0 or a code of report.h; then without descriptors */
    uint32_t num_fds;
    uint32_t pad;
    uint64_t segment_bytes;
};
_Static_assert(sizeof(struct arena_request) == 32 + 4 * ARENA_FDS_MAX, "layout");
_Static_assert(sizeof(struct arena_reply) == 32, "layout");

/* Every mapping of a segment, in each process, begins at a multiple of ARENA_HUGE_BYTES. Then the
 * kernel maps the huge pages of ckptd's pool as huge pages. Another address maps the same memory in
 * pages of 4 KiB: a first touch takes a hundred times as long, a cold copy four times (0.35 s/GiB
 * instead of 0.09). */
#define ARENA_HUGE_BYTES (2u << 20)
/* Reserves addresses for `bytes`, not accessible, that begin at such a multiple; munmap() releases
 * them. ERR_MEMORY. */
int arena_reserve(void **out, uint64_t bytes);
/* Makes shared memory of `bytes` with a sealed size, so that no mapping of it can lose its pages,
 * and without permission to execute. `name` is shown in /proc. *out_fd is valid or negative, also
 * after an error. ERR_MEMORY. */
int arena_create(int *out_fd, const char *name, uint64_t bytes);
/* Maps the first `bytes` of a descriptor, shared, at `at` (of arena_reserve), or at a new place
 * when `at` is NULL; munmap() unmaps it. `protection` as in mmap. The mapping is not part of core
 * dumps. ERR_CORRUPT: the descriptor is shorter, or not sealed, so that an access past its end
 * could kill the process. ERR_MEMORY. */
int arena_map(void **out, void *at, int fd, uint64_t bytes, int protection);

/* Send and receive one reply with its descriptors (close-on-exec). ERR_UNAVAILABLE when the peer is
 * gone (or, on a non-blocking socket, not ready), ERR_CORRUPT on a truncated or oversized message,
 * ERR_BUSY when this process may open no more descriptors (those received are closed). A
 * well-formed reply that carries an error returns 0: the caller checks reply->error. */
int arena_send_reply(int socket, const struct arena_reply *reply, const int *fds);
int arena_receive_reply(int socket, struct arena_reply *out, int *out_fds, uint32_t max_fds);

#endif
