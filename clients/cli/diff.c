/* diff.c - are two checkpoints the same model state, and if not, where and by how much?
 *
 * Digests do not depend on the layout, so checkpoints of different world sizes compare without
 * reading a byte of tensor data. Only tensors whose digests differ are read, from both sides, a
 * chunk of the global tensor at a time, for the number of differing elements (by bits) and the
 * largest absolute difference (by value; a NaN on one side only makes it infinite). */
#include "clients/cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum tensor_state { SAME, VALUES_DIFFER, FORM_DIFFERS, ONLY_IN_A, ONLY_IN_B, NUM_STATES };
static const char *const STATE_NAMES[NUM_STATES] = {
    "same", "values differ", "shape or dtype differ", "only in the first", "only in the second"};

struct diff {
    const struct cli *cli;
    struct checkpoint sides[2];
    unsigned char *data[2];
    uint64_t counts[NUM_STATES];
    bool any_printed;
};

struct difference {
    uint64_t elements, total;
    double largest;
};

static void compare_chunk(struct difference *out, const unsigned char *a, const unsigned char *b,
                          enum dtype dtype, uint64_t count)
{
    uint32_t size = dtype_bytes(dtype);
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(a + i * size, b + i * size, size) == 0)
            continue;
        out->elements++;
        double left = convert_to_double(a, dtype, i), right = convert_to_double(b, dtype, i);
        double distance = fabs(left - right);
        if (isnan(left) != isnan(right))
            distance = INFINITY;
        if (distance > out->largest)
            out->largest = distance;
    }
}

static int compare_values(struct difference *out, struct diff *diff, uint32_t a, uint32_t b,
                          struct progress *progress)
{
    const struct tensor_meta *tensor = &diff->sides[0].manifest->table->tensors[a];
    uint64_t total = 1, elements_max = GATHER_BYTES_MAX / dtype_bytes(tensor->dtype);
    int error = 0;
    *out = (struct difference){0};
    for (uint32_t d = 0; d < tensor->dims; d++)
        total *= tensor->shape[d];
    out->total = total;
    for (uint64_t first = 0; first < total && error == 0;) {
        struct box chunk;
        uint64_t count = chunk_at(&chunk, tensor, first, elements_max);
        error = checkpoint_gather(&diff->sides[0], diff->data[0], a, &chunk);
        if (error == 0)
            error = checkpoint_gather(&diff->sides[1], diff->data[1], b, &chunk);
        if (error == 0)
            compare_chunk(out, diff->data[0], diff->data[1], tensor->dtype, count);
        progress_add(progress, count * dtype_bytes(tensor->dtype));
        first += count;
    }
    return error;
}

static bool same_form(const struct tensor_meta *a, const struct tensor_meta *b)
{
    return a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) == 0;
}

static enum tensor_state compare_meta(const struct diff *diff, int64_t a, int64_t b)
{
    const struct manifest *left = diff->sides[0].manifest, *right = diff->sides[1].manifest;
    if (b < 0)
        return ONLY_IN_A;
    if (a < 0)
        return ONLY_IN_B;
    if (!same_form(&left->table->tensors[a], &right->table->tensors[b]))
        return FORM_DIFFERS;
    return memcmp(&left->digests[a], &right->digests[b], sizeof *left->digests) == 0
               ? SAME
               : VALUES_DIFFER;
}

static void print_tensor(struct diff *diff, const char *name, enum tensor_state state,
                         const struct difference *values)
{
    char safe[LAYOUT_NAME_MAX];
    if (diff->cli->is_json) {
        printf("%s\n    {\"tensor\": ", diff->any_printed ? "," : "");
        text_json(stdout, name);
        printf(", \"state\": \"%s\"", STATE_NAMES[state]);
        if (state == VALUES_DIFFER)
            printf(", \"elements\": %llu, \"differing\": %llu", (unsigned long long)values->total,
                   (unsigned long long)values->elements);
        if (state == VALUES_DIFFER && isfinite(values->largest))
            printf(", \"largest\": %.17g", values->largest);
        else if (state == VALUES_DIFFER)
            printf(", \"largest\": null");
        printf("}");
    } else if (state == VALUES_DIFFER) {
        printf("%-48s %llu of %llu elements differ, at most by %.9g\n",
               text_safe(safe, sizeof safe, name), (unsigned long long)values->elements,
               (unsigned long long)values->total, values->largest);
    } else {
        printf("%-48s %s\n", text_safe(safe, sizeof safe, name), STATE_NAMES[state]);
    }
    diff->any_printed = true;
}

static int compare_one(struct diff *diff, int64_t a, int64_t b, struct progress *progress)
{
    const struct layout_table *table = diff->sides[a < 0 ? 1 : 0].manifest->table;
    const char *name = table->tensors[a < 0 ? b : a].name;
    enum tensor_state state = compare_meta(diff, a, b);
    struct difference values = {0};
    int error = 0;
    diff->counts[state]++;
    if (state == SAME)
        return 0;
    if (state == VALUES_DIFFER)
        error = compare_values(&values, diff, (uint32_t)a, (uint32_t)b, progress);
    if (error != 0)
        return error;
    bool was_shown = progress->is_shown;
    progress_end(progress);
    progress->is_shown = was_shown;
    print_tensor(diff, name, state, &values);
    return 0;
}

/* Bytes of the tensors that will have to be read. */
static uint64_t bytes_to_read(const struct diff *diff)
{
    const struct layout_table *left = diff->sides[0].manifest->table;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < left->num_tensors; i++) {
        const struct tensor_meta *tensor = &left->tensors[i];
        int64_t other = layout_find(diff->sides[1].manifest->table, tensor->name);
        uint64_t size = dtype_bytes(tensor->dtype);
        for (uint32_t d = 0; d < tensor->dims; d++)
            size *= tensor->shape[d];
        if (compare_meta(diff, i, other) == VALUES_DIFFER)
            bytes += size;
    }
    return bytes;
}

static int compare_tables(struct diff *diff)
{
    const struct layout_table *left = diff->sides[0].manifest->table;
    const struct layout_table *right = diff->sides[1].manifest->table;
    struct progress progress;
    int error = 0;
    progress_begin(&progress, "diff", bytes_to_read(diff));
    for (uint32_t i = 0; i < left->num_tensors && error == 0; i++)
        error = compare_one(diff, i, layout_find(right, left->tensors[i].name), &progress);
    for (uint32_t i = 0; i < right->num_tensors && error == 0; i++) {
        if (layout_find(left, right->tensors[i].name) < 0)
            error = compare_one(diff, -1, i, &progress);
    }
    progress_end(&progress);
    return error;
}

static void print_begin(const struct diff *diff)
{
    if (!diff->cli->is_json)
        return;
    printf("{\"first\": ");
    text_json(stdout, diff->sides[0].name);
    printf(", \"second\": ");
    text_json(stdout, diff->sides[1].name);
    printf(", \"tensors\": [");
}

static uint64_t count_different(const struct diff *diff)
{
    uint64_t different = 0;
    for (int state = SAME + 1; state < NUM_STATES; state++)
        different += diff->counts[state];
    return different;
}

static void print_end(const struct diff *diff)
{
    uint64_t different = count_different(diff);
    if (diff->cli->is_json)
        printf("%s], \"same\": %llu, \"different\": %llu}\n", diff->any_printed ? "\n" : "",
               (unsigned long long)diff->counts[SAME], (unsigned long long)different);
    else if (different == 0)
        printf("%s and %s are equal: all %llu tensors, bit for bit, by digest (%u and %u ranks).\n",
               diff->sides[0].name, diff->sides[1].name, (unsigned long long)diff->counts[SAME],
               diff->sides[0].manifest->summary.world_size,
               diff->sides[1].manifest->summary.world_size);
    else
        printf("%s and %s differ in %llu tensors; %llu are equal.\n", diff->sides[0].name,
               diff->sides[1].name, (unsigned long long)different,
               (unsigned long long)diff->counts[SAME]);
}

int cli_diff(const struct cli *cli)
{
    struct diff diff = {.cli = cli};
    struct storage *store = NULL;
    int error = store_open(&store, cli);
    for (int side = 0; side < 2 && error == 0; side++) {
        error = checkpoint_open(&diff.sides[side], store, cli->args[side]);
        diff.data[side] = malloc(GATHER_BYTES_MAX);
        if (error == 0 && diff.data[side] == NULL)
            error = report_error(ERR_MEMORY, NULL, "no memory to compare with");
    }
    if (error == 0) {
        print_begin(&diff);
        error = compare_tables(&diff);
        print_end(&diff);
    }
    for (int side = 0; side < 2; side++) {
        checkpoint_close(&diff.sides[side]);
        free(diff.data[side]);
    }
    if (store != NULL)
        storage_close(store);
    return error != 0 ? error : count_different(&diff) > 0 ? CLI_DIFFERS : 0;
}
