/* ckptd_loading.c - loads by that client: a plan, shards or parts of them, and their contents. */
#include "tests/unit/ckptd_loading.h"

int load_open_slices(struct loading *out, struct bed *bed, int64_t step,
                     Holdfast__V1__Slice **slices, size_t count)
{
    Holdfast__V1__OpenLoadRequest request = HOLDFAST__V1__OPEN_LOAD_REQUEST__INIT;
    Holdfast__V1__OpenLoadReply *reply;
    request.slices = slices;
    request.n_slices = count;
    memset(out, 0, sizeof *out);
    out->peer = (struct peer){.bed = bed, .socket = -1, .event_fd = -1};
    request.run = RUN;
    request.step = step;
    request.below_step = -1;
    int error =
        call(bed, "OpenLoad", &request.base, &holdfast__v1__open_load_reply__descriptor, &reply);
    if (error != 0)
        return error;
    out->load = reply->load;
    out->step = reply->checkpoint->step;
    out->shards = reply->checkpoint->world_size;
    out->peer.token = reply->session;
    FREE_REPLY(reply);
    out->peer.socket = arena_connect(bed);
    error = arena_ask(&out->peer, &(struct arena_request){.kind = ARENA_REQUEST_BIND}, NULL);
    if (error != 0)
        load_close(out);
    return error;
}

int load_open_rows(struct loading *out, struct bed *bed, int64_t step, uint64_t first,
                   uint64_t count)
{
    struct rows rows;
    rows_init(&rows, first, count);
    return load_open_slices(out, bed, step, rows.slices, count > 0);
}

int load_open(struct loading *out, struct bed *bed, int64_t step)
{
    return load_open_rows(out, bed, step, 0, 0);
}

int load_shard_from(struct loading *loading, uint32_t shard, uint64_t from_byte, char tier[16])
{
    Holdfast__V1__LoadShardRequest request = HOLDFAST__V1__LOAD_SHARD_REQUEST__INIT;
    Holdfast__V1__LoadShardReply *reply;
    request.load = loading->load;
    request.shard = shard;
    request.from_byte = from_byte;
    request.checks = !loading->never_checks;
    request.from_file = loading->from_file;
    int error = call(loading->peer.bed, "LoadShard", &request.base,
                     &holdfast__v1__load_shard_reply__descriptor, &reply);
    if (error != 0)
        return error;
    struct peer *peer = &loading->peer;
    peer->num_segments = (uint32_t)reply->n_segments;
    memcpy(peer->segments, reply->segments, reply->n_segments * sizeof *reply->segments);
    peer->image_bytes = reply->bytes;
    loading->part_start = reply->part_start;
    loading->part_bytes = reply->part_bytes;
    loading->table_start = reply->table_start;
    if (tier)
        snprintf(tier, 16, "%s", reply->tier);
    FREE_REPLY(reply);
    return peer_map(peer, peer->segments, peer->num_segments, false);
}

int load_release(struct loading *loading, uint32_t shard)
{
    Holdfast__V1__ReleaseShardRequest request = HOLDFAST__V1__RELEASE_SHARD_REQUEST__INIT;
    request.load = loading->load;
    request.shard = shard;
    return try_call(loading->peer.bed, "ReleaseShard", &request.base);
}

int load_shard(struct loading *loading, uint32_t shard, char tier[16])
{
    int error = load_shard_from(loading, shard, 0, tier);
    bool in_parts = error == 0 && loading->part_bytes < loading->peer.image_bytes;
    for (uint64_t at = loading->part_bytes;
         in_parts && error == 0 && at < loading->peer.image_bytes;
         at = loading->part_start + loading->part_bytes)
        error = load_shard_from(loading, shard, at, tier);
    return in_parts && error == 0 ? load_shard_from(loading, shard, 0, tier) : error;
}

bool shard_is_right(const struct loading *loading, uint32_t shard, uint64_t step)
{
    const struct peer *peer = &loading->peer;
    uint64_t bytes = bed_rows * bed_columns * 4 / loading->shards, first = shard * (bytes / 4);
    uint64_t header = 0;
    for (uint32_t i = 0; i < 8; i++)
        header |= (uint64_t)*peer_byte(peer, i) << (8 * i);
    for (uint64_t i = 0; i < bytes / 4; i++) {
        uint32_t value = element(step, first + i), found;
        memcpy(&found, peer_byte(peer, 8 + header + 4 * i), 4);
        if (found != value)
            return false;
    }
    return true;
}

bool part_is_right(const struct loading *loading, uint64_t step)
{
    return part_is_right_from(loading, loading->part_start, step);
}

bool part_is_right_from(const struct loading *loading, uint64_t from, uint64_t step)
{
    const struct peer *peer = &loading->peer;
    uint64_t to = loading->part_start + loading->part_bytes;
    uint64_t data_end = DATA_START + bed_rows * bed_columns * 4 / loading->shards;
    from = from > DATA_START ? from : DATA_START;
    to = to < data_end ? to : data_end;
    for (uint64_t at = from; at < to; at += 4) {
        uint32_t value = element(step, (at - DATA_START) / 4), found;
        memcpy(&found, peer_byte(peer, at - loading->part_start), 4);
        if (found != value)
            return false;
    }
    return true;
}

int load_all(struct bed *bed, int64_t step, uint64_t *out_step)
{
    struct loading loading;
    int error = load_open(&loading, bed, step);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < loading.shards && error == 0; i++) {
        error = load_shard(&loading, i, NULL);
        loading.from_file = loading.table_start > 0;
        if (error == 0 && loading.from_file && !shard_is_right(&loading, i, loading.step))
            error = load_shard(&loading, i, NULL);
        loading.from_file = false;
        assert_true(error != 0 || shard_is_right(&loading, i, loading.step));
    }
    if (out_step)
        *out_step = loading.step;
    load_close(&loading);
    return error;
}
