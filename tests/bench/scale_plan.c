/* scale_plan.c - the time of planning for a 405B model on thousands of ranks.
 *
 *     scale_plan
 *
 * Commands on stdin, an answer of one JSON line each:
 *
 *     save PP DP TP        plans the save of all ranks of the mesh; its table is kept for the next
 *                          commands, as a manifest that was written and parsed again
 *
 *     rank PP DP TP COUNT  plans the load of one rank of another mesh, for COUNT ranks evenly
 *                          spread: the time of the slowest, and the mean of all
 *
 *     all [weights]        plans one reader of everything, or of the weights only
 *
 * Times are CPU seconds of this thread, which are those of the clock on an idle machine; counts are
 * boxes to copy, and the shards that they lie in. */
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "tests/bench/bench.h"
#include "tests/bench/scale_model.h"

#include <inttypes.h>

#define NONCE "0123456789abcdef0123456789abcdef"

/* The saved table, out of a parsed manifest. */
static struct manifest *saved;

static struct layout_table *plan_table(struct model_mesh mesh, double *out_seconds)
{
    uint32_t ranks = model_ranks(mesh);
    const struct slice **slices = bench_allocate(ranks, sizeof *slices);
    uint32_t *counts = bench_allocate(ranks, sizeof *counts);
    /* One block: as many small ones would leave a hole in the heap, in which the plans of small
     * worlds alone would find memory that is there already. */
    uint32_t most = MODEL_COPIES * (MODEL_PER_LAYER * (MODEL_LAYERS / mesh.pp + 1) + MODEL_OTHERS);
    struct slice *block = bench_allocate((size_t)ranks * most, sizeof *block), *at = block;
    struct layout_table *table = NULL;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        slices[rank] = at;
        counts[rank] = model_slices(at, mesh, rank);
        at += counts[rank];
    }
    double start = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    BENCH_TRY(layout_plan_save(&table, slices, counts, ranks, LAYOUT_EQUAL_REPLICAS),
              report_line());
    *out_seconds = bench_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    free(block);
    free(slices);
    free(counts);
    return table;
}

/* The manifest of that plan; digests and hashes are as good as any. */
static void write_manifest(char **out, size_t *out_bytes, struct layout_table *table,
                           uint32_t ranks)
{
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .run = "scale",
                                            .step = 1,
                                            .attempt = 1,
                                            .nonce = NONCE,
                                            .time = "2026-01-01T00:00:00Z",
                                            .world_size = ranks,
                                            .shards = ranks},
                                .table = table,
                                .digests =
                                    bench_allocate(table->num_tensors, sizeof(struct digest)),
                                .shards = bench_allocate(ranks, sizeof(struct manifest_shard))};
    uint64_t *tensor_bytes = bench_allocate(ranks, sizeof *tensor_bytes);
    BENCH_TRY(layout_shard_bytes(tensor_bytes, table, ranks), report_line());
    for (uint32_t i = 0; i < ranks; i++) {
        struct shard_geometry geometry;
        BENCH_TRY(shard_geometry_derive(&geometry, 16 * SHARD_ALIGN, tensor_bytes[i]),
                  report_line());
        manifest.shards[i] =
            (struct manifest_shard){geometry.file_bytes, geometry.data_start, i, UINT64_MAX - i};
        manifest.summary.bytes += geometry.file_bytes;
    }
    BENCH_TRY(manifest_write(out, out_bytes, &manifest), report_line());
    free(tensor_bytes);
    free(manifest.digests);
    free(manifest.shards);
}

static void run_save(struct model_mesh mesh)
{
    char *text = NULL;
    size_t bytes = 0;
    double planned = 0;
    manifest_free(saved);
    struct layout_table *table = plan_table(mesh, &planned);
    write_manifest(&text, &bytes, table, model_ranks(mesh));
    layout_table_free(table);
    double start = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    BENCH_TRY(manifest_read(&saved, text, bytes), report_line());
    printf("{\"ranks\": %u, \"tensors\": %u, \"layouts\": %u, \"plan_seconds\": %.9f, "
           "\"parse_seconds\": %.9f, \"bytes\": %zu}\n",
           model_ranks(mesh), saved->table->num_tensors, saved->table->num_layouts, planned,
           bench_clock(CLOCK_THREAD_CPUTIME_ID) - start, bytes);
    free(text);
}

/* Boxes and shards of one plan. */
struct plan {
    double seconds;
    uint32_t boxes, shards;
};

static struct plan plan_load(const struct slice *wanted, uint32_t count)
{
    struct load_item *items = NULL;
    struct plan plan = {0};
    double start = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    BENCH_TRY(layout_plan_load(&items, &plan.boxes, saved->table,
                               &(struct load_wish){wanted, count, UINT32_MAX}),
              report_line());
    plan.seconds = bench_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    for (uint32_t i = 0; i < plan.boxes; i++)
        plan.shards += i == 0 || items[i].shard != items[i - 1].shard;
    free(items);
    return plan;
}

static void run_rank(struct model_mesh mesh, uint32_t count)
{
    struct slice *wanted = bench_allocate(MODEL_TENSORS, sizeof *wanted);
    struct plan worst = {0}, most = {0};
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank = (uint32_t)((uint64_t)i * model_ranks(mesh) / count);
        struct plan plan = plan_load(wanted, model_slices(wanted, mesh, rank));
        sum += plan.seconds;
        if (plan.seconds > worst.seconds)
            worst = plan;
        if (plan.boxes > most.boxes)
            most = plan;
    }
    printf("{\"seconds\": %.9f, \"mean_seconds\": %.9f, \"boxes_max\": %u, \"shards\": %u}\n",
           worst.seconds, sum / count, most.boxes, most.shards);
    free(wanted);
}

static void run_all(bool weights_only)
{
    const struct layout_table *table = saved->table;
    struct slice *wanted = bench_allocate(table->num_tensors, sizeof *wanted);
    uint32_t count = 0;
    for (uint32_t t = 0; t < table->num_tensors; t++) {
        if (weights_only && strncmp(table->tensors[t].name, "optimizer.", 10) == 0)
            continue;
        wanted[count].tensor = table->tensors[t];
        memcpy(wanted[count++].box.extent, table->tensors[t].shape, sizeof wanted[0].box.extent);
    }
    struct plan plan = plan_load(wanted, count);
    printf("{\"seconds\": %.9f, \"boxes\": %u, \"shards\": %u}\n", plan.seconds, plan.boxes,
           plan.shards);
    free(wanted);
}

int main(void)
{
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        struct model_mesh mesh;
        uint32_t count;
        if (sscanf(line, "save %u %u %u", &mesh.pp, &mesh.dp, &mesh.tp) == 3)
            run_save(mesh);
        else if (saved &&
                 sscanf(line, "rank %u %u %u %u", &mesh.pp, &mesh.dp, &mesh.tp, &count) == 4)
            run_rank(mesh, count);
        else if (saved && strncmp(line, "all", 3) == 0)
            run_all(strstr(line, "weights"));
        else
            BENCH_TRY(1, "an unknown command, or no plan yet");
        fflush(stdout);
    }
    manifest_free(saved);
    return 0;
}
