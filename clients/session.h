/* session.h - shared by the source files of libckpt: the handle, and its session with ckptd.
 *
 * A session is made in three steps: Hello (boot id, arena socket), Describe (the token and the
 * places of the tensors), and a connection to the arena socket (control page, segments). The
 * connection shows liveness in both directions: each side notices at once when the other is gone. A
 * lost session is dropped completely; the next save makes a new one (session_renew).
 *
 * Writable mappings are cached by pool index for the life of one boot id, because ckptd lends the
 * same segments again. They are replaced when ckptd has replaced the segment's memory (its
 * generation). ckpt_describe makes those of the first saves. A load maps its shards itself,
 * read-only, while it reads them. */
#ifndef HOLDFAST_CLIENTS_SESSION_H
#define HOLDFAST_CLIENTS_SESSION_H

#include "clients/ckpt.h"
#include "proto/format/manifest.h"
#include "proto/layout/layout.h"
#include "proto/wire/arena.h"
#include "proto/wire/arena_link.h"
#include "proto/wire/arena_notes.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <pthread.h>

#define SESSION_RUN_MAX 100             /* bytes of a run's name */
#define SESSION_CALL_MS 10000u          /* deadline of a call that ckptd answers from memory */
#define SESSION_SETTLE_MS 120000u       /* OpenAttempt: ckptd may still have to write older saves */
#define SESSION_HELLO_AGAIN_MS 100u     /* one try to reach ckptd again from save_begin */
#define SESSION_DESCRIBE_AGAIN_MS 1000u /* wait for the other ranks from save_begin */
#define SESSION_BACKOFF_MS_MIN 100u     /* between two tries; doubles up to the next */
#define SESSION_BACKOFF_MS_MAX 5000u
#define SESSION_POOL_SEGMENTS_MAX 65536u /* larger pool indices are rejected */
#define SESSION_SEGMENT_BYTES_MAX (1ull << 30)

/* Tensors as slices, and where their bytes are. */
struct session_tensors {
    struct slice *slices;
    unsigned char **data;
    uint32_t count;
};

/* One contiguous copy of a save: see ImageItem in ckpt.proto. Sorted by tensor. */
struct session_item {
    uint32_t tensor;
    uint64_t slice_byte, image_byte, bytes;
};

/* The save in progress; a handle holds one. */
struct ckpt_save {
    struct ckpt *ckpt;
    bool is_open;
    int error; /* the first failure; later copies do nothing */
    uint64_t id;
    uint32_t image;
    uint64_t step;
    unsigned char **segments; /* mapping of each segment of the image, in file order */
    uint32_t num_segments;
    uint32_t num_in_order; /* leading tensors of ckpt->order that are completely announced */
    uint64_t waited_ns;    /* for space in the window */
};

/* Writable mapping of a pool segment; data NULL: not mapped. */
struct session_mapping {
    unsigned char *data;
    uint32_t generation; /* of the segment when it was mapped */
};

struct ckpt {
    struct ckpt *next_open; /* in the list of open handles of this process */
    struct rpc_client *rpc;
    struct storage *store;    /* a store without ckptd (offline.h); NULL: a ckptd */
    const volatile int *stop; /* set by ckpt_heed_stop; NULL: none */
    char run[SESSION_RUN_MAX + 1];
    char server[1024];
    uint32_t rank, world_size, connect_ms, describe_ms, busy_ms;
    uint64_t attempt;               /* 0: not described yet */
    struct session_tensors tensors; /* as described */

    /* From Hello; fixed for the life of one ckptd. */
    uint64_t boot_id;
    char arena_path[108];

    /* The session; link.socket < 0: none. */
    struct arena_link link;
    uint64_t control_bytes; /* of the control page that are mapped */
    struct arena_control *control;
    pthread_mutex_t alive_lock;      /* guards alive_notes */
    struct arena_notes *alive_notes; /* of the control page, for ckpt_note_alive; NULL: none */
    int event;                       /* eventfd to wake ckptd after a push */
    uint32_t saves_asked;            /* in the sessions before */
    uint64_t image_bytes, segment_bytes;
    uint32_t image_segments; /* of every image */
    bool is_window;          /* fewer segments than the image has bytes (proto/wire/arena.h) */
    struct session_item *items;
    uint32_t *first_item; /* per tensor, and one more for the end */
    uint32_t num_items;
    bool takes_digests;  /* ckptd compares the digests of ckpt_save_digest */
    uint32_t *order;     /* tensors in the order of their places; those without a place are last */
    uint64_t num_begins; /* BeginSaves, without repetitions */
    bool is_last;        /* set by ckpt_save_last */
    uint64_t room_saves; /* of DescribeReply */
    double full_hours;   /* result of ckpt_hours_to_full() */
    bool compares_replicas; /* set by ckpt_compares_replicas */
    uint64_t *left;         /* per tensor: bytes that the save in progress has yet to announce */

    /* replicas.c: the slices that other ranks hold, too. */
    uint32_t *replica_of; /* per tensor: 1 + its index in replica_digests; 0: none */
    struct replica_digest *replica_digests; /* of the save in progress */
    uint32_t num_replicas;

    /* The session with a ckptd on another node (remote.h); NULL: none, or shared memory. */
    struct remote *remote;
    unsigned char *staging; /* memory for an image */
    uint64_t staging_bytes;
    uint32_t window_changes; /* ckptd's count of changes */

    struct ckpt_memory_hooks hooks;
    struct session_mapping *mappings; /* per pool index */
    uint32_t num_mappings;
    uint64_t mapped_bytes; /* size of each */

    struct ckpt_save save;
    char durability[16]; /* of the last save that was waited for */
    char warning[256];   /* ckptd's warning about the last save that was waited for; "": none */
    uint64_t retry_ns;   /* make no try to reconnect before (CLOCK_MONOTONIC) */
    uint32_t backoff_ms;
    uint64_t lost_ns;      /* ckpt_is_lost() is false before (CLOCK_MONOTONIC) */
    uint64_t poll_ns;      /* ckptd did not answer a poll: make no other before; 0: it did */
    uint32_t poll_pause_s; /* the pause of polls */
};

/* Fills the public record of a checkpoint from ckptd's answer, or from a manifest. */
void session_info_fill(struct ckpt_info *out, const Holdfast__V1__CheckpointSummary *summary);
void session_info_read(struct ckpt_info *out, const struct manifest_summary *summary,
                       const char *durability);

/* Public calls check their handles by the list of open handles. ERR_INVALID: a handle that is NULL
 * or closed, or a save that has ended or belongs to no open handle. */
void session_handle_add(struct ckpt *ckpt);
void session_handle_remove(struct ckpt *ckpt);
bool session_handle_is_open(const struct ckpt *ckpt);
bool session_save_is_open(const struct ckpt_save *save);
int session_handle_check(const struct ckpt *ckpt);
int session_save_check(const struct ckpt_save *save);

/* The method of ckptd with that request: each has its own request type. */
const ProtobufCMethodDescriptor *session_method(char path[96], const ProtobufCMessage *request);
/* One call. *out_reply is freed by protobuf_c_message_free_unpacked(). Errors: of rpc_client_call.
 */
int session_call(struct ckpt *ckpt, ProtobufCMessage **out_reply, const ProtobufCMessage *request,
                 uint32_t timeout_ms);
/* The same, from any thread. */
int session_ask(const struct ckpt *ckpt, ProtobufCMessage **out_reply,
                const ProtobufCMessage *request, uint32_t timeout_ms);
/* A call with an empty reply. */
int session_send(struct ckpt *ckpt, const ProtobufCMessage *request, uint32_t timeout_ms);
/* Sends Hello; drops session and mappings when another ckptd answers. */
int session_hello(struct ckpt *ckpt, uint32_t timeout_ms);
/* Describes the tensors of the handle and connects to the arena. With `ahead` it also maps the
 * images that ckptd lends for the first saves. Building page tables takes long where ckptd got no
 * huge pages, and longest where it writes without io_uring and never touched the pages. */
int session_describe(struct ckpt *ckpt, uint32_t timeout_ms, bool ahead);
/* False: no session, or ckptd closed it. Costs one system call. */
bool session_alive(const struct ckpt *ckpt);
/* Makes a new session if back-off allows; ERR_UNAVAILABLE: there is still none. Waits at most
 * SESSION_HELLO_AGAIN_MS for ckptd, and SESSION_DESCRIBE_AGAIN_MS for the other ranks. */
int session_renew(struct ckpt *ckpt);
void session_drop(struct ckpt *ckpt);
/* Does the control page hold notes of the rank's work? */
bool session_has_notes(const struct ckpt *ckpt);
/* Drops the session and the mappings too. */
void session_forget(struct ckpt *ckpt);
/* Fills out[i] with the writable mapping of pool segment segments[i], segment i of an image. */
int session_map_writable(struct ckpt *ckpt, unsigned char **out, const uint32_t *segments,
                         const uint32_t *generations, uint32_t count);

/* Call the user's hooks (ckpt_hook_memory), if any. */
void session_report_mapped(const struct ckpt *ckpt, void *at, uint64_t bytes, bool is_writable);
void session_report_unmapped(const struct ckpt *ckpt, void *at, uint64_t bytes);

/* Checks and copies the user's tensors. ERR_INVALID names the tensor. */
int session_tensors_copy(struct session_tensors *out, const struct ckpt_tensor *tensors,
                         uint32_t count);
int session_arrays_copy(struct session_tensors *out, const struct ckpt_array *arrays,
                        uint32_t count, bool needs_data);
void session_tensors_free(struct session_tensors *tensors);
/* The wire form: one block of memory that borrows names and numbers from `tensors`. */
int session_tensors_pack(Holdfast__V1__Slice ***out, const struct session_tensors *tensors);

/* Checks the items of a DescribeReply against the tensors, sorts them and orders the tensors.
 * ERR_CORRUPT. */
int session_items_read(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply);
void session_items_free(struct ckpt *ckpt);

/* replicas.c: reads which slices ckptd compares (ERR_CORRUPT); begins the digests of a save;
 * computes one from the bytes at `data`, unless it is NULL. save.c sends them. */
int replicas_read(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply);
void replicas_begin(struct ckpt_save *save);
void replicas_hash(struct ckpt_save *save, uint32_t index, const void *data);
void replicas_free(struct ckpt *ckpt);

/* window.c: how far the save may copy now. Waits until the byte at `image_byte`, of tensor
 * `tensor`, may be written; *out_end: all bytes below it may be. ERR_INVALID: it never may, because
 * a tensor before it was left out. ERR_ABORTED, ERR_UNAVAILABLE, ERR_TIMEOUT. */
int window_wait(uint64_t *out_end, struct ckpt_save *save, uint32_t tensor, uint64_t image_byte);
void window_begin(struct ckpt_save *save);
/* The save has announced `bytes` more of a tensor. */
void window_announced(struct ckpt_save *save, uint32_t tensor, uint64_t bytes);

#endif
