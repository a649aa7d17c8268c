/* ckptd_loading.h - loads by the raw client of ckptd_bed.h: shard by shard, every byte compared. It
 * tells ckptd that it verifies writable memory itself, and compares with the saved bytes
 * instead. */
#ifndef HOLDFAST_TESTS_CKPTD_LOADING_H
#define HOLDFAST_TESTS_CKPTD_LOADING_H

#include "tests/unit/ckptd_bed.h"

struct loading {
    struct peer peer;
    uint64_t load, step;
    uint32_t shards;
    uint64_t part_start, part_bytes; /* the last answer's loan */
    uint64_t table_start;            /* of it; 0: ckptd has verified it */
    bool never_checks, from_file;    /* the request */
};

/* static here: libckpt has a function of that name */
static inline void load_close(struct loading *loading)
{
    Holdfast__V1__CloseLoadRequest request = HOLDFAST__V1__CLOSE_LOAD_REQUEST__INIT;
    request.load = loading->load;
    try_call(loading->peer.bed, "CloseLoad", &request.base);
    peer_close(&loading->peer);
}

/* Opens a load whose plan is these slices; none: it plans nothing. */
int load_open_slices(struct loading *out, struct bed *bed, int64_t step,
                     Holdfast__V1__Slice **slices, size_t count);

/* The same for `count` rows of the matrix. */
int load_open_rows(struct loading *out, struct bed *bed, int64_t step, uint64_t first,
                   uint64_t count);
int load_open(struct loading *out, struct bed *bed, int64_t step);
int load_shard_from(struct loading *loading, uint32_t shard, uint64_t from_byte, char tier[16]);
int load_release(struct loading *loading, uint32_t shard);

/* All of the shard, which may come in parts. */
int load_shard(struct loading *loading, uint32_t shard, char tier[16]);

/* True when the shard that the peer was lent holds the matrix of `step`. */
bool shard_is_right(const struct loading *loading, uint32_t shard, uint64_t step);

#define DATA_START 4096u /* of every shard */

/* True when the segments hold the part of shard 0 that the answer names. */
bool part_is_right(const struct loading *loading, uint64_t step);

/* The same from that byte on. */
bool part_is_right_from(const struct loading *loading, uint64_t from, uint64_t step);

/* Loads every shard of a step (-1: the newest) and compares all; 0 or the first error. */
int load_all(struct bed *bed, int64_t step, uint64_t *out_step);

#endif
