/* clients_rows.c - the cut of a checkpoint into the files that so many ranks would have written.
 *
 * Goal: `reshard` and `import` plan the same as the planner of a save from the slices of all ranks,
 * and the largest accepted plan fits in little memory. Method: random tensors, ranks and replicas,
 * planned in both ways and compared; then 65,536 shards of 1,000 tensors in a process that may not
 * have more than a gigabyte of addresses, where the slices of all ranks would take 19. (A sanitizer
 * needs more addresses than that; there only the plan is made.) */
#include "clients/cli/assemble/writer.h"
#include "proto/base/sanitized.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 200
#define TENSORS_MAX 9
#define PARTS_MAX 13
#define REPLICAS_MAX 3
#define RANKS_MAX (PARTS_MAX * REPLICAS_MAX)
#define MEMORY_MAX (1ull << 30)
#define LARGE_TENSORS 1000u

static int print_seed(void **state)
{
    (void)state;
    seed_random();
    return 0;
}

static struct tensor_meta make_tensor(uint32_t index)
{
    struct tensor_meta out = {.dtype = (enum dtype)next_random(8),
                              .dims = (uint32_t)next_random(5),
                              .shape = {1, 1, 1, 1, 1, 1, 1, 1}};
    snprintf(out.name, sizeof out.name, "t%02u", index);
    for (uint32_t d = 0; d < out.dims; d++)
        out.shape[d] = next_random(3) > 0 ? 6 : next_random(40); /* equal shapes, and empty ones */
    return out;
}

/* As ranks of a trainer would describe them: rows in equal parts, rounded up. */
static int plan_all(struct layout_table **out, const struct layout_table *from, uint32_t replicas,
                    uint32_t parts)
{
    static struct slice slices[RANKS_MAX][TENSORS_MAX];
    const struct slice *list[RANKS_MAX];
    uint32_t counts[RANKS_MAX];
    for (uint32_t rank = 0; rank < replicas * parts; rank++) {
        for (uint32_t i = 0; i < from->num_tensors; i++) {
            struct slice *slice = &slices[rank][i];
            *slice = (struct slice){.tensor = from->tensors[i]};
            memcpy(slice->box.extent, slice->tensor.shape, sizeof slice->box.extent);
            if (slice->tensor.dims == 0)
                continue;
            uint64_t rows = slice->tensor.shape[0], each = (rows + parts - 1) / parts;
            uint64_t begin = rank % parts * each, end = begin + each;
            slice->box.offset[0] = begin < rows ? begin : rows;
            slice->box.extent[0] = (end < rows ? end : rows) - slice->box.offset[0];
        }
        list[rank] = slices[rank];
        counts[rank] = from->num_tensors;
    }
    return layout_plan_save(out, list, counts, replicas * parts, LAYOUT_EQUAL_REPLICAS);
}

static void assert_equal_layouts(const struct layout *a, const struct layout *b)
{
    assert_int_equal(a->dims, b->dims);
    for (uint32_t d = 0; d < a->dims; d++) {
        assert_int_equal(a->num_cuts[d], b->num_cuts[d]);
        assert_memory_equal(a->cuts[d], b->cuts[d], a->num_cuts[d] * sizeof *a->cuts[d]);
    }
    if (layout_cells(a) > 0)
        assert_memory_equal(a->owners, b->owners, layout_cells(a) * sizeof *a->owners);
}

TEST(test_rows__are_cut_as_the_planner_cuts_the_slices_of_all_ranks)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct tensor_meta tensors[TENSORS_MAX];
        struct layout_table from = {.num_tensors = 1 + (uint32_t)next_random(TENSORS_MAX),
                                    .tensors = tensors};
        uint32_t parts = 1 + (uint32_t)next_random(PARTS_MAX);
        uint32_t replicas = 1 + (uint32_t)next_random(REPLICAS_MAX);
        struct layout_table *got, *want;
        for (uint32_t i = 0; i < from.num_tensors; i++)
            tensors[i] = make_tensor(i);
        assert_int_equal(writer_plan_rows(&got, &from, replicas, parts), 0);
        assert_int_equal(plan_all(&want, &from, replicas, parts), 0);
        assert_int_equal(layout_table_check(got, replicas * parts), 0);
        assert_int_equal(got->num_tensors, want->num_tensors);
        assert_int_equal(got->num_layouts, want->num_layouts);
        for (uint32_t i = 0; i < got->num_tensors; i++) {
            assert_memory_equal(&got->tensors[i], &want->tensors[i], sizeof got->tensors[i]);
            assert_int_equal(got->layout_of[i], want->layout_of[i]);
        }
        for (uint32_t i = 0; i < got->num_layouts; i++)
            assert_equal_layouts(&got->layouts[i], &want->layouts[i]);
        layout_table_free(got);
        layout_table_free(want);
    }
}

/* The plan, and the sizes of a few of its shards; 0, or a number that says where it went wrong. */
static int plan_largest(void)
{
    static const uint64_t shapes[][2] = {{128256, 16384}, {16384, 1},     {16384, 16384},
                                         {1024, 16384},   {53248, 16384}, {16384, 53248}};
    struct layout_table from = {.num_tensors = LARGE_TENSORS}, *table = NULL;
    struct shard_geometry geometry;
    uint64_t elements = 0, held = 0, bytes;
    from.tensors = calloc(LARGE_TENSORS, sizeof *from.tensors);
    for (uint32_t i = 0; from.tensors != NULL && i < LARGE_TENSORS; i++) {
        const uint64_t *shape = shapes[i % 6];
        from.tensors[i] = (struct tensor_meta){
            .dtype = DTYPE_F32, .dims = 2, .shape = {shape[0], shape[1], 1, 1}};
        snprintf(from.tensors[i].name, sizeof from.tensors[i].name, "layers.%04u.weight", i);
        elements += shape[0] * shape[1];
    }
    if (from.tensors == NULL || writer_plan_rows(&table, &from, 1, SHARDS_MAX) != 0)
        return 1;
    for (uint32_t shard = 0; shard < SHARDS_MAX; shard += 4099)
        if (shard_geometry(&geometry, table, shard, "run", SHARDS_MAX) != 0)
            return 2;
    uint64_t *sizes = calloc(SHARDS_MAX, sizeof *sizes);
    if (sizes == NULL || layout_shard_bytes(sizes, table, SHARDS_MAX) != 0)
        return 3;
    for (uint32_t shard = 0; shard < SHARDS_MAX; shard++)
        held += sizes[shard];
    bytes = elements * sizeof(float);
    free(sizes);
    free(from.tensors);
    layout_table_free(table);
    return held == bytes ? 0 : 4;
}

TEST(test_rows__the_largest_plan_needs_little_memory)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {MEMORY_MAX, MEMORY_MAX};
        if (!IS_SANITIZED && setrlimit(RLIMIT_AS, &limit) != 0)
            _exit(99);
        _exit(plan_largest());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(test_rows__a_manifest_that_would_be_too_large_is_refused_before_the_data)
{
    struct tensor_meta tensors[78];
    struct layout_table from = {.num_tensors = 0, .tensors = tensors};
    for (uint32_t count = 1; count <= 78; count += 77) { /* each cut another way: a layout each */
        struct writer writer;
        writer_init(&writer);
        for (; from.num_tensors < count; from.num_tensors++) {
            struct tensor_meta *meta = &tensors[from.num_tensors];
            *meta = (struct tensor_meta){
                .dtype = DTYPE_F32, .dims = 1, .shape = {1, 1, 1, 1, 1, 1, 1, 1}};
            meta->shape[0] = (uint64_t)SHARDS_MAX * (from.num_tensors + 1);
            snprintf(meta->name, sizeof meta->name, "t%02u", from.num_tensors);
        }
        strcpy(writer.manifest.summary.run, "run");
        writer.manifest.summary.attempt = 1;
        writer.manifest.summary.shards = writer.manifest.summary.world_size = SHARDS_MAX;
        assert_int_equal(writer_plan_rows(&writer.manifest.table, &from, 1, SHARDS_MAX), 0);
        assert_int_equal(writer_plan(&writer), count == 1 ? 0 : ERR_INVALID);
        assert_true(count == 1 || strstr(report_message(), "a manifest would pass") != NULL);
        writer_deinit(&writer);
    }
}

SUITE(print_seed, NULL)
