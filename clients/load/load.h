/* load.h - a load in work: what load_newest.c (the calls), load.c (plan, boxes), load_view.c (bytes
 * of shards), load_check.c and load_copy.c share. */
#ifndef HOLDFAST_CLIENTS_LOAD_LOAD_H
#define HOLDFAST_CLIENTS_LOAD_LOAD_H

#include "clients/offline.h"
#include "clients/remote.h"
#include "clients/session.h"

/* Of a ckptd on another node: what is to come of the view at hand. */
struct load_box {
    struct load_item item;
    struct box part;
};
struct load_fetch {
    struct bulk_get *gets;
    uint32_t num_gets, room_gets;
    uint64_t begin, end;    /* bytes of the view that boxes need; they grow to a get */
    struct load_box *boxes; /* to be copied from there */
    uint32_t num_boxes, room_boxes;
};

/* The name of a checkpoint within its run; attempt 0: none. */
struct load_mark {
    uint64_t step, attempt;
};

struct load {
    struct ckpt *ckpt;
    struct session_tensors tensors;         /* what is wanted */
    struct arena_link link;                 /* its own, when the handle has no session */
    struct arena_link *arena;               /* the one in use */
    struct remote_link own_remote, *remote; /* likewise, of a ckptd on another node */
    struct ckpt_loaded *loaded;             /* the caller's; NULL: there is no plan yet */
    struct load_item *items; /* the plan, sorted by shard, then by data_byte: of the file */
    uint32_t num_items;
    struct offline_load *offline; /* NULL: of ckptd */
    uint64_t id;                  /* that ckptd gave the load, */
    bool is_open;                 /* when it did */
    uint64_t segment_bytes;
    uint64_t *covered; /* elements copied, per wanted slice */
    uint64_t bytes_memory, bytes_local;
    int copy_error; /* the first one of copies that were begun */
    struct load_fetch fetch;
    unsigned char *room; /* load_check.c; NULL: none was needed */
    uint64_t room_bytes;
    bool from_file; /* what was lent last was changed meanwhile: ask for the file instead */
    bool asks_together, is_together; /* with the other ranks: asked for; and granted by ckptd */
    bool is_closed;                  /* by ckptd */
    struct load_mark passed;
};

/* Opens the load, copies all of it, and makes *out, which is the caller's also after an error. */
int load_run(struct load *load, const struct ckpt_load_options *options, struct ckpt_loaded **out);
/* `error` is that of a call. 0 when another ckptd has answered and the load is open there; else the
 * error to return: `error` itself where ckptd was not restarted, or is not back in time. */
int load_open_again(struct load *load, int error);
void load_close(struct load *load);

/* Bytes [start, start + bytes) of a shard, mapped as one array: all of it, or a part. */
struct shard_view {
    unsigned char *data;
    uint64_t start, bytes, mapped;
    uint64_t from;      /* what lies before this byte was copied from the parts before */
    uint64_t length;    /* of the shard */
    uint32_t *segments; /* of a ckptd on another node: nothing is there yet, this was lent */
    /* Not 0: ranks may write there. Nothing is taken from this view but by load_check(). */
    uint64_t table_start, table_hash, identity;
    uint64_t *table; /* private, and proven; NULL: not yet */
};

/* Bytes of the shard from byte `at` on, verified, as one array; `until`: so far they are needed. */
int load_view(struct shard_view *out, bool *out_memory, struct load *load, uint32_t shard,
              uint64_t at, uint64_t until);
void load_view_close(struct shard_view *view);

/* The blocks of the view from that of byte `at` on, as far as `until` and the room go, in private
 * memory and verified, as a view of their own, until the next call. ERR_CORRUPT with
 * load->from_file: they were changed. */
int load_check(struct shard_view *out, struct load *load, struct shard_view *view, uint64_t at,
               uint64_t until);
void load_check_free(struct load *load);

/* Receives bytes of the view of a ckptd on another node, from its byte `at` on. */
int load_copy_fetch(struct load *load, const struct shard_view *view, uint64_t at, uint64_t bytes,
                    void *to);
/* Copies a box of the view to where it is wanted; it is there after load_copy_finish(). */
void load_copy_box(struct load *load, const struct shard_view *view, const struct load_item *item,
                   const struct box *part);
/* `error`: of before, or 0. What was begun is finished or given up: the view may go. Returns the
 * first error. */
int load_copy_finish(struct load *load, const struct shard_view *view, int error);
void load_copy_free(struct load *load);

#endif
