/* scale_store.c - a store with thousands of small checkpoints, as ckptd writes it.
 *
 *     scale_store DIRECTORY COUNT
 *
 * Manifests and shards are genuine: made by the writers of the formats, with every checksum and
 * digest right, so `ckpt-cli verify` accepts any of them. RUNS runs; each was started ATTEMPTS
 * times, and every start resumed before the newest step of the start before, as after a failure.
 * Two ranks, a layer of a tiny model with its moments. Prints one JSON line. The files are synced
 * at the end, all at once. */
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "tests/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUNS 4u
#define ATTEMPTS 8u
#define RANKS 2u
#define TENSORS 6u
#define STEPS_APART 10u
#define SHARD_BYTES_MAX (1u << 20)

static const char *const names[TENSORS] = {
    "layers.0.attention.wq.weight",
    "layers.0.feed_forward.w1.weight",
    "optimizer.exp_avg.layers.0.attention.wq.weight",
    "optimizer.exp_avg.layers.0.feed_forward.w1.weight",
    "optimizer.exp_avg_sq.layers.0.attention.wq.weight",
    "optimizer.exp_avg_sq.layers.0.feed_forward.w1.weight",
};
static const uint64_t shapes[2][2] = {{16, 16}, {48, 16}};

static struct layout_table *table;
static struct shard_geometry geometry[RANKS];
static struct shard_tensor *tensors[RANKS];
static uint32_t num_tensors[RANKS];

static void plan(const char *run)
{
    static struct slice slices[RANKS][TENSORS];
    const struct slice *list[RANKS];
    uint32_t counts[RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            struct slice *slice = &slices[rank][t];
            const uint64_t *shape = shapes[t % 2];
            snprintf(slice->tensor.name, sizeof slice->tensor.name, "%s", names[t]);
            slice->tensor.dtype = DTYPE_F32;
            slice->tensor.dims = 2;
            slice->tensor.shape[0] = shape[0];
            slice->tensor.shape[1] = slice->box.extent[1] = shape[1];
            slice->tensor.shape[2] = slice->tensor.shape[3] = 1;
            slice->box.extent[0] = shape[0] / RANKS;
            slice->box.offset[0] = rank * slice->box.extent[0];
            slice->box.extent[2] = slice->box.extent[3] = 1;
        }
        list[rank] = slices[rank];
        counts[rank] = TENSORS;
    }
    BENCH_TRY(layout_plan_save(&table, list, counts, RANKS, LAYOUT_EQUAL_REPLICAS), report_line());
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint64_t bytes;
        BENCH_TRY(layout_shard_tensors(&tensors[rank], &num_tensors[rank], &bytes, table, rank),
                  report_line());
        BENCH_TRY(shard_geometry(&geometry[rank], table, rank, run, RANKS), report_line());
        BENCH_TRY(geometry[rank].file_bytes > SHARD_BYTES_MAX, "a shard is too large");
    }
}

static void write_file(const char *root, const char *key, const void *data, size_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, key);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    BENCH_TRY(fd < 0, path);
    BENCH_TRY(write(fd, data, bytes) != (ssize_t)bytes, path);
    close(fd);
}

static void make_directory(const char *root, const char *key)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, key);
    BENCH_TRY(mkdir(path, 0777) != 0 && errno != EEXIST, path);
}

/* The whole file of one rank; adds to the digests. Values depend on step, tensor and place. */
static void write_shard(const char *root, const struct shard_identity *identity,
                        struct digest *digests, struct manifest_shard *out)
{
    static uint8_t data[SHARD_BYTES_MAX];
    const struct shard_geometry *shape = &geometry[identity->shard];
    char key[512];
    uint64_t header_hash;
    memset(data, 0, shape->file_bytes);
    BENCH_TRY(shard_header_write(data, shape, table, identity), report_line());
    BENCH_TRY(!shard_header_hash(&header_hash, data, shape->data_start), "a header has no hash");
    for (uint32_t i = 0; i < num_tensors[identity->shard]; i++) {
        const struct shard_tensor *tensor = &tensors[identity->shard][i];
        uint64_t first = tensor->box.offset[0] * tensor->box.extent[1]; /* whole rows */
        uint8_t *at = data + shape->data_start + tensor->data_byte;
        for (uint64_t e = 0; e < tensor->bytes / sizeof(float); e++) {
            float value = (float)(identity->step + tensor->tensor) + (float)(first + e) / 1024;
            memcpy(at + e * sizeof value, &value, sizeof value);
        }
        digest_add(&digests[tensor->tensor], at, tensor->bytes / sizeof(float), sizeof(float),
                   first);
    }
    uint64_t mixed = checksum_shard_identity(identity->nonce, identity->shard, identity->shards);
    for (uint64_t block = 0; block < shape->num_blocks; block++) {
        uint64_t start, length;
        shard_block(&start, &length, shape, block);
        uint64_t sum = checksum_block(data + start, length, mixed, block);
        memcpy(data + shape->table_start + block * sizeof sum, &sum, sizeof sum);
    }
    *out = (struct manifest_shard){
        shape->file_bytes, shape->data_start, header_hash,
        checksum_bytes(data + shape->table_start, shape->file_bytes - shape->table_start)};
    BENCH_TRY(shard_key(key, sizeof key, identity), report_line());
    write_file(root, key, data, shape->file_bytes);
}

static void write_checkpoint(const char *root, const char *run, uint64_t step, uint64_t attempt,
                             uint64_t number)
{
    struct digest digests[TENSORS] = {{{0}}};
    struct manifest_shard shards[RANKS];
    struct shard_identity identity = {.step = step, .attempt = attempt, .shards = RANKS};
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .step = step,
                                            .attempt = attempt,
                                            .time = "2026-01-01T00:00:00Z",
                                            .world_size = RANKS,
                                            .shards = RANKS},
                                .table = table,
                                .digests = digests,
                                .shards = shards};
    char dir[512], key[600], *text = NULL;
    size_t bytes = 0;
    snprintf(identity.run, sizeof identity.run, "%s", run);
    snprintf(identity.nonce, sizeof identity.nonce, "%032" PRIx64, number);
    memcpy(manifest.summary.run, identity.run, sizeof identity.run);
    memcpy(manifest.summary.nonce, identity.nonce, sizeof identity.nonce);
    BENCH_TRY(shard_dir_key(dir, sizeof dir, run, step, attempt), report_line());
    make_directory(root, dir);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        identity.shard = rank;
        write_shard(root, &identity, digests, &shards[rank]);
        manifest.summary.bytes += shards[rank].bytes;
    }
    BENCH_TRY(manifest_write(&text, &bytes, &manifest), report_line());
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    write_file(root, key, text, bytes);
    free(text);
}

int main(int argc, char **argv)
{
    BENCH_TRY(argc != 3, "use: scale_store DIRECTORY COUNT");
    const char *root = argv[1];
    uint64_t count = strtoull(argv[2], NULL, 10), each = count / RUNS;
    BENCH_TRY(each < 4 * ATTEMPTS || count % RUNS != 0, "the count is too small, or uneven");
    double start = bench_seconds();
    plan("scale-0"); /* names of equal length: the geometry is that of all */
    BENCH_TRY(mkdir(root, 0777) != 0 && errno != EEXIST, root);
    for (uint64_t i = 0; i < count; i++) {
        char run[16];
        uint64_t within = i % each;
        uint64_t attempt = 1 + within * ATTEMPTS / each;
        uint64_t step = STEPS_APART * (each + within - attempt * (each / (4 * ATTEMPTS)));
        snprintf(run, sizeof run, "scale-%u", (unsigned)(i / each % RUNS));
        if (within == 0)
            make_directory(root, run);
        write_checkpoint(root, run, step, attempt, i);
    }
    sync();
    printf("{\"checkpoints\": %" PRIu64 ", \"runs\": %u, \"attempts\": %u, \"shards\": %u, "
           "\"shard_bytes\": %" PRIu64 ", \"seconds\": %.3f}\n",
           count, RUNS, ATTEMPTS, RANKS, geometry[0].file_bytes, bench_seconds() - start);
    return 0;
}
