/* load.h - a load in work: what load.c (plan, boxes) and load_view.c (bytes of shards) share. */
#ifndef HOLDFAST_CLIENTS_LOAD_H
#define HOLDFAST_CLIENTS_LOAD_H

#include "clients/offline.h"
#include "clients/remote.h"
#include "clients/session.h"

struct load {
    struct ckpt *ckpt;
    struct session_tensors tensors;         /* what is wanted */
    struct arena_link link;                 /* its own, when the handle has no session */
    struct arena_link *arena;               /* the one in use */
    struct remote_link own_remote, *remote; /* likewise, of a ckptd on another node */
    Holdfast__V1__OpenLoadReply *plan;
    struct offline_load *offline; /* NULL: of ckptd */
    uint64_t segment_bytes;
    uint64_t *covered; /* elements copied, per wanted slice */
    uint64_t bytes_memory, bytes_local;
    int hook_error; /* the first one of the user's copies */
};

/* Bytes [start, start + bytes) of a shard, mapped as one array: all of it, or a part. */
struct shard_view {
    unsigned char *data;
    uint64_t start, bytes, mapped;
    uint64_t from;   /* what lies before this byte was copied from the parts before */
    uint64_t length; /* of the shard */
};

/* Bytes of the shard from byte `at` on, verified, as one array; `until`: so far they are needed. */
int load_view(struct shard_view *out, bool *out_memory, struct load *load, uint32_t shard,
              uint64_t at, uint64_t until);
void load_view_close(struct shard_view *view);

#endif
