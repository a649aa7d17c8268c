/* diff.c - are two checkpoints the same model state, and if not, where and by how much?
 *
 * Digests do not depend on the layout, so checkpoints of different world sizes compare without
 * reading a byte of tensor data. Only tensors whose digests differ are read: both sides are
 * assembled block by block, for any cuts (assembly.c). diff counts the elements that differ (by
 * bits) and finds the largest absolute difference (by value; a NaN on one side only makes it
 * infinite). It prints the largest differences first, and at last the settings that differ
 * (settings.c). */
#include "clients/cli/engine/scan.h"
#include "proto/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum tensor_state { SAME, VALUES_DIFFER, FORM_DIFFERS, ONLY_IN_A, ONLY_IN_B, NUM_STATES };
static const char *const STATE_NAMES[NUM_STATES] = {
    "same", "values differ", "shape or dtype differ", "only in the first", "only in the second"};

struct difference {
    uint64_t elements, total;
    double largest;
};

struct diff {
    const struct cli *cli;
    struct checkpoint sides[2];
    struct output_file file;   /* the tensors to be read, one after the other; never written */
    struct difference **found; /* per worker, per tensor of `file` */
    uint64_t counts[NUM_STATES];
    uint32_t num_taken;
    bool any_printed;
    json_t *settings; /* settings that differ */
    struct progress progress;
};

#define EQUAL_ELEMENTS 64u /* equal runs of so many elements are skipped at once */

static void compare_chunk(struct difference *out, const unsigned char *a, const unsigned char *b,
                          enum dtype dtype, uint64_t count)
{
    uint32_t size = dtype_bytes(dtype);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t more = count - i < EQUAL_ELEMENTS ? count - i : EQUAL_ELEMENTS;
        if (i % EQUAL_ELEMENTS == 0 && memcmp(a + i * size, b + i * size, more * size) == 0)
            i += more - 1;
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
        printf("%-48s differs in %llu of %s, at most by %.9g\n", text_safe(safe, sizeof safe, name),
               (unsigned long long)values->elements, text_count(values->total, "element").text,
               values->largest);
    } else {
        printf("%-48s %s\n", text_safe(safe, sizeof safe, name), STATE_NAMES[state]);
    }
    diff->any_printed = true;
}

/* ---- reading ---- */

#define PLACE_ALIGN 8u /* of every tensor in `file`: the largest element size */

/* Places the tensors of both sides that have to be read one after the other. */
static int plan_file(struct diff *diff)
{
    const struct layout_table *left = diff->sides[0].manifest->table;
    struct output_file *file = &diff->file;
    file->tensors = calloc((size_t)left->num_tensors + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(left->num_tensors, "tensor").text);
    for (uint32_t i = 0; i < left->num_tensors; i++) {
        const struct tensor_meta *tensor = &left->tensors[i];
        int64_t other = layout_find(diff->sides[1].manifest->table, tensor->name);
        if (compare_meta(diff, i, other) != VALUES_DIFFER)
            continue;
        struct output_tensor *out = &file->tensors[file->num_tensors];
        *out = (struct output_tensor){.tensor = {i, (uint32_t)other}, .dtype = tensor->dtype};
        out->start = (file->bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
        output_tensor_whole(out, tensor);
        file->num_tensors += out->bytes > 0;
        file->bytes = out->bytes > 0 ? out->start + out->bytes : file->bytes;
    }
    return 0;
}

static int compare_block(void *user, uint32_t worker, struct output_block *block)
{
    struct diff *diff = user;
    uint64_t block_end = block->start + block->bytes;
    for (uint32_t i = output_tensor_after(block->file, block->start);
         i < block->file->num_tensors && block->file->tensors[i].start < block_end; i++) {
        const struct output_tensor *tensor = &block->file->tensors[i];
        uint64_t from = tensor->start > block->start ? tensor->start : block->start;
        uint64_t end = tensor->start + tensor->bytes;
        end = end < block_end ? end : block_end;
        compare_chunk(&diff->found[worker][i], block->data[0] + (from - block->start),
                      block->data[1] + (from - block->start), tensor->dtype,
                      (end - from) / dtype_bytes(tensor->dtype));
    }
    assembly_release(block);
    return 0;
}

static int read_values(struct diff *diff)
{
    const struct assembly_hooks hooks = {
        .user = diff, .file = &diff->file, .complete = compare_block, .progress = &diff->progress};
    uint32_t num_workers = scan_workers() + 1;
    int error = 0;
    diff->found = calloc(num_workers, sizeof *diff->found);
    for (uint32_t i = 0; i < num_workers && diff->found != NULL; i++)
        diff->found[i] = calloc(diff->file.num_tensors + 1, sizeof **diff->found);
    for (uint32_t i = 0; i < num_workers; i++) {
        if (diff->found == NULL || diff->found[i] == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory to compare with");
    }
    for (int side = 0; side < 2 && error == 0; side++) {
        error = checkpoint_load(&diff->sides[side], LOAD_HEADERS);
        if (error == 0)
            error = checkpoint_need_whole(&diff->sides[side]);
    }
    if (error != 0)
        return error;
    progress_begin(&diff->progress, diff->cli, "diff", 2 * diff->file.bytes);
    error = assembly_run(diff->sides, 2, &hooks);
    progress_end(&diff->progress);
    return error;
}

/* Sums the workers' results for one tensor. */
static struct difference sum_found(const struct diff *diff, uint32_t place)
{
    const struct output_tensor *tensor = &diff->file.tensors[place];
    struct difference sum = {.total = tensor->bytes / dtype_bytes(tensor->dtype)};
    for (uint32_t i = 0; i < scan_workers() + 1; i++) {
        sum.elements += diff->found[i][place].elements;
        if (diff->found[i][place].largest > sum.largest)
            sum.largest = diff->found[i][place].largest;
    }
    return sum;
}

/* ---- the report ---- */

static void print_begin(const struct diff *diff)
{
    if (!diff->cli->is_json)
        return;
    printf("{\"first\": ");
    text_json(stdout, diff->sides[0].name);
    printf(", \"second\": ");
    text_json(stdout, diff->sides[1].name);
    if (!diff->cli->is_settings)
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
        printf("%s], \"same\": %llu, \"different\": %llu", diff->any_printed ? "\n" : "",
               (unsigned long long)diff->counts[SAME], (unsigned long long)different);
    else if (different == 0)
        printf("%s (%s) and %s (%s) are equal: %s, bit for bit, by digest.\n", diff->sides[0].name,
               text_count(diff->sides[0].manifest->summary.world_size, "rank").text,
               diff->sides[1].name,
               text_count(diff->sides[1].manifest->summary.world_size, "rank").text,
               text_count(diff->counts[SAME], "tensor").text);
    else
        printf("%s and %s differ in %llu of %s.\n", diff->sides[0].name, diff->sides[1].name,
               (unsigned long long)different,
               text_count(different + diff->counts[SAME], "tensor").text);
}

static int print_settings(const struct diff *diff)
{
    if (!diff->cli->is_json)
        return settings_print(diff->settings);
    printf(", \"settings\": ");
    json_begin();
    int error = text_json_value(stdout, diff->settings, 0);
    if (!json_end())
        error = report_error(ERR_MEMORY, NULL, "no memory to write the settings");
    printf("}\n");
    return error;
}

static int report_settings(const struct diff *diff)
{
    size_t count = json_array_size(diff->settings);
    print_begin(diff);
    if (!diff->cli->is_json && count == 0)
        printf("%s and %s were made with the same settings.\n", diff->sides[0].name,
               diff->sides[1].name);
    else if (!diff->cli->is_json)
        printf("%s and %s differ in %s.\n", diff->sides[0].name, diff->sides[1].name,
               text_count(count, "setting").text);
    return print_settings(diff);
}

/* The result for one tensor. */
struct finding {
    const char *name;
    enum tensor_state state;
    struct difference values;
};

/* Sorts tensors with differing values first, by the largest difference. */
static int compare_findings(const void *left, const void *right)
{
    const struct finding *a = left, *b = right;
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    if (a->values.largest != b->values.largest)
        return a->values.largest > b->values.largest ? -1 : 1;
    return strcmp(a->name, b->name);
}

static struct finding compare_tensor(struct diff *diff, int64_t a, int64_t b)
{
    const struct layout_table *table = diff->sides[a < 0 ? 1 : 0].manifest->table;
    struct finding out = {.name = table->tensors[a < 0 ? b : a].name,
                          .state = compare_meta(diff, a, b)};
    uint32_t place = diff->num_taken;
    diff->counts[out.state]++;
    if (out.state == VALUES_DIFFER && place < diff->file.num_tensors &&
        diff->file.tensors[place].tensor[0] == a) {
        out.values = sum_found(diff, place);
        diff->num_taken++;
    }
    return out;
}

static int report_findings(struct diff *diff)
{
    const struct layout_table *left = diff->sides[0].manifest->table;
    const struct layout_table *right = diff->sides[1].manifest->table;
    size_t count = 0;
    struct finding *findings =
        calloc((size_t)left->num_tensors + right->num_tensors + 1, sizeof *findings);
    if (findings == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the differences");
    for (uint32_t i = 0; i < left->num_tensors; i++)
        findings[count++] = compare_tensor(diff, i, layout_find(right, left->tensors[i].name));
    for (uint32_t i = 0; i < right->num_tensors; i++) {
        if (layout_find(left, right->tensors[i].name) < 0)
            findings[count++] = compare_tensor(diff, -1, i);
    }
    qsort(findings, count, sizeof *findings, compare_findings);
    print_begin(diff);
    if (!diff->cli->is_json)
        print_end(diff); /* a text report begins with the summary */
    for (size_t i = 0; i < count; i++) {
        if (findings[i].state != SAME)
            print_tensor(diff, findings[i].name, findings[i].state, &findings[i].values);
    }
    if (diff->cli->is_json)
        print_end(diff);
    free(findings);
    return print_settings(diff);
}

static int compare_sides(struct diff *diff)
{
    int error = settings_compare(&diff->settings, diff->sides[0].manifest, diff->sides[1].manifest);
    if (error == 0 && diff->cli->is_settings)
        return report_settings(diff);
    if (error == 0)
        error = plan_file(diff);
    if (error == 0 && diff->file.num_tensors > 0)
        error = read_values(diff);
    if (error != 0)
        return error;
    return report_findings(diff);
}

int cli_diff(const struct cli *cli)
{
    struct diff diff = {.cli = cli};
    struct storage *store = NULL;
    int error = store_open(&store, cli);
    for (int side = 0; side < 2 && error == 0; side++)
        error = checkpoint_open(&diff.sides[side], store, cli->args[side]);
    if (error == 0)
        error = compare_sides(&diff);
    for (uint32_t i = 0; i < scan_workers() + 1 && diff.found != NULL; i++)
        free(diff.found[i]);
    free(diff.found);
    output_file_deinit(&diff.file);
    free(diff.file.tensors);
    for (int side = 0; side < 2; side++) {
        verified_report(cli, &diff.sides[side]);
        checkpoint_close(&diff.sides[side]);
    }
    storage_close(store);
    bool differs =
        cli->is_settings ? json_array_size(diff.settings) > 0 : count_different(&diff) > 0;
    json_decref(diff.settings);
    return error != 0 ? error : differs ? CLI_DIFFERS : 0;
}
