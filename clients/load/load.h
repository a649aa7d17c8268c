/* load.h - a load in progress: shared by load_newest.c (the calls), load.c (plan, boxes),
 * load_view.c (bytes of shards), load_check.c and load_copy.c. */
#ifndef HOLDFAST_CLIENTS_LOAD_LOAD_H
#define HOLDFAST_CLIENTS_LOAD_LOAD_H

#include "clients/offline.h"
#include "clients/remote.h"
#include "clients/session.h"

/* For a ckptd on another node: bytes of the current view that are yet to be fetched. */
struct load_box {
    struct load_item item;
    struct box part;
};
struct load_fetch {
    struct bulk_get *gets;
    uint32_t num_gets, room_gets;
    uint64_t begin, end; /* bytes of the view that boxes need; neighbours are joined into one get */
    struct load_box *boxes; /* boxes to copy from there */
    uint32_t num_boxes, room_boxes;
};

/* A checkpoint within its run; attempt 0: none. */
struct load_mark {
    uint64_t step, attempt;
};

struct load {
    struct ckpt *ckpt;
    struct session_tensors tensors; /* the wanted slices */
    struct arena_link link;         /* the load's own link, when the handle has no session */
    struct arena_link *arena;       /* the link in use */
    struct remote_link own_remote, *remote; /* likewise, for a ckptd on another node */
    struct ckpt_loaded *loaded;             /* the caller's; NULL: there is no plan yet */
    struct load_item *items; /* the plan, sorted by shard, then by data_byte in the file */
    uint32_t num_items;
    struct offline_load *offline; /* NULL: the load is from ckptd */
    uint64_t id;                  /* ckptd's id of the load */
    bool is_open;                 /* that id is valid */
    uint64_t segment_bytes;
    uint64_t *covered; /* elements copied, per wanted slice */
    uint64_t bytes_memory, bytes_local;
    int copy_error; /* the first error of copies under way */
    struct load_fetch fetch;
    unsigned char *room; /* load_check.c; NULL: not needed yet */
    uint64_t room_bytes;
    bool from_file; /* the last lent memory was changed meanwhile: request the file */
    bool asks_together,
        is_together; /* a load together with the other ranks: requested; granted by ckptd */
    bool is_closed;  /* ckptd has closed it */
    struct load_mark passed;
};

/* Opens the load, copies all of it, and makes *out, which the caller frees, also after an error. */
int load_run(struct load *load, const struct ckpt_load_options *options, struct ckpt_loaded **out);
/* Handles `error` of a call. 0: another ckptd has answered and the load is open there. Else returns
 * an error: `error` itself if ckptd was not restarted, or is not back in time. */
int load_open_again(struct load *load, int error);
void load_close(struct load *load);

/* Bytes [start, start + bytes) of a shard, mapped as one array: all of it, or a part. */
struct shard_view {
    unsigned char *data;
    uint64_t start, bytes, mapped;
    uint64_t from;      /* earlier parts had the bytes before this one */
    uint64_t length;    /* of the shard */
    uint32_t *segments; /* lent by a ckptd on another node: no byte is fetched yet */
    /* Not 0: ranks may write there. Bytes of this view are copied by load_check() only. */
    uint64_t table_start, table_hash, identity;
    uint64_t *table; /* private and verified; NULL: not read yet */
};

/* Maps verified bytes of the shard, from byte `at` on, as one array; `until`: the end of the needed
 * bytes. */
int load_view(struct shard_view *out, bool *out_memory, struct load *load, uint32_t shard,
              uint64_t at, uint64_t until);
void load_view_close(struct shard_view *view);

/* Copies blocks of the view, from that of byte `at` up to `until` or the end of the room, to
 * private memory, and verifies them. *out is a view of them until the next call. ERR_CORRUPT with
 * load->from_file: they were changed. */
int load_check(struct shard_view *out, struct load *load, struct shard_view *view, uint64_t at,
               uint64_t until);
void load_check_free(struct load *load);

/* Receives bytes of the view, from its byte `at` on, from a ckptd on another node. */
int load_copy_fetch(struct load *load, const struct shard_view *view, uint64_t at, uint64_t bytes,
                    void *to);
/* Copies a box of the view to its slice; complete after load_copy_finish(). */
void load_copy_box(struct load *load, const struct shard_view *view, const struct load_item *item,
                   const struct box *part);
/* Completes or cancels the copies under way, so that the view may be unmapped. `error`: an earlier
 * error, or 0. Returns the first error. */
int load_copy_finish(struct load *load, const struct shard_view *view, int error);
void load_copy_free(struct load *load);

#endif
