/* load_view.c - the bytes of a shard as an array: segments that ckptd lends, mapped read-only one
 * after the other, or blocks read from a store.
 *
 * Bounds: waits at most BUSY_WAIT_MS per shard for a busy pool (ERR_BUSY). */
#include "clients/load/load.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARD_MS 600000u /* LoadShard: one shard from the slowest tier */
#define BUSY_WAIT_MS 60000u
#define BUSY_PAUSE_MS 20u

/* Allocates memory for the needed bytes of lent segments; load_copy.c fetches them. */
static int make_room(struct shard_view *view, const uint32_t *segments, uint64_t need)
{
    view->segments = malloc(need * sizeof *segments);
    if (view->segments == NULL || mprotect(view->data, view->mapped, PROT_READ | PROT_WRITE) != 0)
        return report_errno(ERR_MEMORY, "no memory for a shard", "mprotect");
    memcpy(view->segments, segments, need * sizeof *segments);
    madvise(view->data, view->mapped, MADV_HUGEPAGE); /* a tenth of the time of small pages */
    return 0;
}

/* Maps `count` segments, from number `first` on, at their places in the view. */
static int map_part(struct shard_view *view, struct load *load, const uint32_t *segments,
                    uint32_t first, uint32_t count)
{
    struct arena_request request = {.magic = ARENA_MAGIC,
                                    .version = ARENA_VERSION,
                                    .kind = ARENA_REQUEST_SEGMENTS,
                                    .session = load->arena->token,
                                    .num_segments = count};
    int fds[ARENA_FDS_MAX];
    memcpy(request.segments, segments + first, count * sizeof *segments);
    int error = arena_link_fetch(load->arena, fds, &request, count);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t start = (first + i) * load->segment_bytes;
        uint64_t bytes =
            view->mapped - start < load->segment_bytes ? view->mapped - start : load->segment_bytes;
        void *mapping;
        if (error == 0)
            error = arena_map(&mapping, view->data + start, fds[i], bytes, PROT_READ);
        close(fds[i]);
    }
    return error;
}

void load_view_close(struct shard_view *view)
{
    if (view->data != NULL)
        munmap(view->data, view->mapped);
    free(view->segments);
    free(view->table);
    *view = (struct shard_view){0};
}

static int map_shard(struct shard_view *view, struct load *load,
                     const Holdfast__V1__LoadShardReply *reply, uint64_t from)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), need;
    int error = 0;
    *view = (struct shard_view){0};
    view->length = reply->bytes;
    view->start = reply->part_start;
    view->bytes = reply->part_bytes;
    view->from = from > view->start ? from : view->start;
    view->table_start = reply->table_start;
    view->table_hash = reply->table_hash;
    view->identity = reply->identity;
    if (view->bytes == 0 || reply->n_segments > SESSION_POOL_SEGMENTS_MAX ||
        view->bytes > reply->n_segments * load->segment_bytes || view->start > view->length ||
        view->bytes > view->length - view->start)
        return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                            "ckptd lent %zu segments for %llu of the %llu bytes of a shard",
                            reply->n_segments, (unsigned long long)reply->part_bytes,
                            (unsigned long long)reply->bytes);
    view->mapped = (view->bytes + page - 1) / page * page;
    need = (view->bytes + load->segment_bytes - 1) / load->segment_bytes;
    ERR_TRY(arena_reserve((void **)&view->data, view->mapped));
    if (load->remote != NULL)
        error = make_room(view, reply->segments, need);
    for (uint64_t first = 0; load->remote == NULL && first < need && error == 0;
         first += ARENA_FDS_MAX) {
        uint64_t count = need - first < ARENA_FDS_MAX ? need - first : ARENA_FDS_MAX;
        error = map_part(view, load, reply->segments, (uint32_t)first, (uint32_t)count);
    }
    if (error != 0)
        load_view_close(view);
    return error;
}

static int call_load_shard(struct load *load, uint32_t shard, uint64_t from_byte,
                           Holdfast__V1__LoadShardReply **out)
{
    Holdfast__V1__LoadShardRequest request = HOLDFAST__V1__LOAD_SHARD_REQUEST__INIT;
    uint64_t end = clock_ns() + BUSY_WAIT_MS * 1000000ull;
    request.load = load->id;
    request.shard = shard;
    request.from_byte = from_byte;
    request.checks = true;
    request.from_file = load->from_file;
    for (;;) {
        int error = session_call(load->ckpt, (ProtobufCMessage **)out, &request.base, SHARD_MS);
        if (error != ERR_BUSY || clock_ns() >= end)
            return error;
        clock_sleep_ms(BUSY_PAUSE_MS);
    }
}

/* Maps the part of the shard around byte `at` that ckptd lends. */
static int view_lent(struct shard_view *out, bool *out_memory, struct load *load, uint32_t shard,
                     uint64_t at)
{
    Holdfast__V1__LoadShardReply *reply = NULL;
    int error = call_load_shard(load, shard, at, &reply);
    if (error != 0)
        return error;
    if (load->from_file && reply->table_start != 0)
        error = report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                             "ckptd lent memory that was changed a second time");
    else
        error = map_shard(out, load, reply, at);
    load->from_file = false;
    *out_memory = strcmp(reply->tier, "memory") == 0;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return error;
}

static int view_offline(struct shard_view *out, struct load *load, uint32_t shard, uint64_t at,
                        uint64_t until)
{
    struct offline_part part;
    int error = offline_load_part(&part, load->offline, shard, at, until);
    if (error == 0)
        *out = (struct shard_view){.data = part.data,
                                   .start = part.start,
                                   .bytes = part.bytes,
                                   .mapped = part.mapped,
                                   .from = at,
                                   .length = part.length};
    return error;
}

int load_view(struct shard_view *out, bool *out_memory, struct load *load, uint32_t shard,
              uint64_t at, uint64_t until)
{
    *out_memory = false;
    return load->offline != NULL ? view_offline(out, load, shard, at, until)
                                 : view_lent(out, out_memory, load, shard, at);
}
