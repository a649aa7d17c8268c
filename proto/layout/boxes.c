/* boxes.c - tensors of which a rank holds several boxes.
 *
 * A shard has at most one cell of a tensor. So if some rank holds more than one box of a tensor (a
 * strided or uneven cut), each distinct box of it, on all ranks, becomes a separate tensor. Its
 * name is "NAME@OFFSETS" and its shape the box's extents: "w@4,0". Ranks that hold the same box are
 * its replicas. The boxes must cover the tensor without overlap.
 *
 * A load that wants NAME, if the table has no such tensor, is planned over its boxes: their names
 * are adjacent in the sorted table. The plan has the places of NAME. */
#include "proto/layout/layout.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the boxes of tensors");
}

/* ---- saving ---- */

static bool is_empty(const struct slice *slice)
{
    return box_elements(&slice->box, slice->tensor.dims) == 0;
}

/* A slice of a rank, by its name. */
struct named {
    uint64_t hash;
    const struct slice *slice;
};

static int compare_named(const void *left, const void *right)
{
    const struct named *a = left, *b = right;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return strcmp(a->slice->tensor.name, b->slice->tensor.name);
}

/* Names, sorted; borrowed from the slices. */
struct names {
    const char **list;
    uint32_t count, room;
};

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static bool has_name(const struct names *names, const char *name)
{
    return names->count > 0 &&
           bsearch(&name, names->list, names->count, sizeof *names->list, compare_names) != NULL;
}

static int add_name(struct names *names, const char *name)
{
    if (names->count == names->room) {
        uint32_t room = names->room == 0 ? 16 : 2 * names->room;
        const char **larger = realloc(names->list, room * sizeof *larger);
        if (!larger)
            return fail_memory();
        names->list = larger;
        names->room = room;
    }
    names->list[names->count++] = name;
    return 0;
}

/* Finds tensors that a rank describes more than once, with elements. */
static int find_split(struct names *names, const struct slice *slices, uint32_t count)
{
    struct named *list = malloc(((size_t)count + 1) * sizeof *list);
    uint32_t filled = 0;
    int error = list ? 0 : fail_memory();
    for (uint32_t i = 0; !error && i < count; i++) {
        const char *name = slices[i].tensor.name;
        if (!is_empty(&slices[i]))
            list[filled++] = (struct named){checksum_bytes(name, strlen(name)), &slices[i]};
    }
    if (!error)
        qsort(list, filled, sizeof *list, compare_named);
    for (uint32_t i = 1; !error && i < filled; i++) {
        if (compare_named(&list[i - 1], &list[i]) == 0)
            error = add_name(names, list[i].slice->tensor.name);
    }
    free(list);
    return error;
}

/* Finds these names over all ranks, once each. */
static int find_names(struct names *names, const struct slice *const *slices,
                      const uint32_t *counts, uint32_t num_ranks)
{
    uint32_t kept = 0;
    int error = 0;
    for (uint32_t rank = 0; !error && rank < num_ranks; rank++)
        error = find_split(names, slices[rank], counts[rank]);
    if (error || names->count == 0)
        return error;
    qsort(names->list, names->count, sizeof *names->list, compare_names);
    for (uint32_t i = 0; i < names->count; i++) {
        if (kept == 0 || strcmp(names->list[kept - 1], names->list[i]) != 0)
            names->list[kept++] = names->list[i];
    }
    names->count = kept;
    return 0;
}

static int compare_boxes(const void *left, const void *right)
{
    const struct slice *const *a = left, *const *b = right;
    int order = strcmp((*a)->tensor.name, (*b)->tensor.name);
    for (uint32_t d = 0; order == 0 && d < LAYOUT_DIMS_MAX; d++) {
        uint64_t x = (*a)->box.offset[d], y = (*b)->box.offset[d];
        order = (x > y) - (x < y);
    }
    for (uint32_t d = 0; order == 0 && d < LAYOUT_DIMS_MAX; d++) {
        uint64_t x = (*a)->box.extent[d], y = (*b)->box.extent[d];
        order = (x > y) - (x < y);
    }
    return order;
}

static int fail_cover(const struct slice *slice, const char *what)
{
    return report_error(ERR_MISMATCH, "the boxes of a tensor tile it; equal ones are replicas",
                        "the boxes of tensor '%s' %s", slice->tensor.name, what);
}

/* Checks the distinct boxes of one tensor, sorted by their offsets. */
static int check_cover(const struct slice *const *boxes, uint32_t count)
{
    const struct tensor_meta *meta = &boxes[0]->tensor;
    struct box whole = {.offset = {0}}, meet;
    uint64_t elements = 0;
    memcpy(whole.extent, meta->shape, sizeof whole.extent);
    for (uint32_t i = 0; i < count; i++) {
        const struct slice *one = boxes[i];
        if (one->tensor.dtype != meta->dtype || one->tensor.dims != meta->dims ||
            memcmp(one->tensor.shape, meta->shape, sizeof meta->shape) != 0)
            return fail_cover(one, "disagree on its type or shape");
        elements += box_elements(&one->box, meta->dims);
        /* Later ones in the order that may begin before this one ends. */
        for (uint32_t k = i + 1;
             k < count && boxes[k]->box.offset[0] < one->box.offset[0] + one->box.extent[0]; k++) {
            if (box_intersect(&meet, &one->box, &boxes[k]->box, meta->dims))
                return fail_cover(one, "overlap");
        }
    }
    return elements == box_elements(&whole, meta->dims) ? 0 : fail_cover(boxes[0], "leave a hole");
}

static int check_covers(const struct names *names, const struct slice *const *slices,
                        const uint32_t *counts, uint32_t num_ranks)
{
    const struct slice **boxes;
    size_t count = 0, kept = 0;
    for (uint32_t rank = 0; rank < num_ranks; rank++)
        count += counts[rank];
    boxes = malloc((count + 1) * sizeof *boxes);
    if (!boxes)
        return fail_memory();
    count = 0;
    for (uint32_t rank = 0; rank < num_ranks; rank++)
        for (uint32_t i = 0; i < counts[rank]; i++)
            if (!is_empty(&slices[rank][i]) && has_name(names, slices[rank][i].tensor.name))
                boxes[count++] = &slices[rank][i];
    qsort(boxes, count, sizeof *boxes, compare_boxes);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || compare_boxes(&boxes[kept - 1], &boxes[i]) != 0)
            boxes[kept++] = boxes[i];
    int error = 0;
    for (size_t first = 0, end; !error && first < kept; first = end) {
        for (end = first + 1;
             end < kept && strcmp(boxes[end]->tensor.name, boxes[first]->tensor.name) == 0;)
            end++;
        error = check_cover(boxes + first, (uint32_t)(end - first));
    }
    free(boxes);
    return error;
}

/* Renames the slice to the tensor of its box. */
static int name_box(struct slice *slice)
{
    char name[LAYOUT_NAME_MAX + LAYOUT_DIMS_MAX * 21];
    struct tensor_meta *meta = &slice->tensor;
    int length = snprintf(name, sizeof name, "%s", meta->name);
    for (uint32_t d = 0; d < meta->dims; d++)
        length += snprintf(name + length, sizeof name - (size_t)length, "%c%" PRIu64,
                           d == 0 ? '@' : ',', slice->box.offset[d]);
    if (length >= LAYOUT_NAME_MAX)
        return report_error(ERR_INVALID,
                            "shorten the names of tensors with several boxes on a rank",
                            "the name '%s' is too long", name);
    memcpy(meta->name, name, (size_t)length + 1);
    memcpy(meta->shape, slice->box.extent, sizeof meta->shape);
    memset(slice->box.offset, 0, sizeof slice->box.offset);
    return 0;
}

void layout_split_free(struct slice **split)
{
    if (split)
        free(split[0]);
    free(split);
}

/* Copies the slices of all ranks into one block and renames those of the names. Drops a slice
 * without elements: it belongs to no box. */
static int copy_split(struct slice ***out, const struct names *names,
                      const struct slice *const *slices, const uint32_t *counts, uint32_t num_ranks)
{
    size_t count = 0;
    for (uint32_t rank = 0; rank < num_ranks; rank++)
        count += counts[rank];
    struct slice **split = *out = calloc((size_t)num_ranks + 1, sizeof *split);
    struct slice *block = split ? calloc(count + 1, sizeof *block) : NULL;
    if (!block)
        return fail_memory();
    split[0] = block;
    for (uint32_t rank = 0; rank < num_ranks; rank++) {
        split[rank] = block;
        for (uint32_t i = 0; i < counts[rank]; i++, block++) {
            *block = slices[rank][i];
            if (has_name(names, block->tensor.name) && !is_empty(block))
                ERR_TRY(name_box(block));
        }
    }
    return 0;
}

int layout_split(struct slice ***out, const struct slice *const *slices, const uint32_t *counts,
                 uint32_t num_ranks)
{
    struct names names = {0};
    *out = NULL;
    int error = find_names(&names, slices, counts, num_ranks);
    if (!error && names.count > 0)
        error = check_covers(&names, slices, counts, num_ranks);
    if (!error && names.count > 0)
        error = copy_split(out, &names, slices, counts, num_ranks);
    free(names.list);
    if (error) {
        layout_split_free(*out);
        *out = NULL;
    }
    return error;
}

/* ---- loading ---- */

/* Parses the offsets after "NAME@", of `dims` dimensions. */
static bool parse_offsets(uint64_t out[LAYOUT_DIMS_MAX], const char *text, uint32_t dims)
{
    memset(out, 0, LAYOUT_DIMS_MAX * sizeof *out);
    for (uint32_t d = 0; d < dims; d++) {
        char *end;
        if (*text < '0' || *text > '9')
            return false;
        out[d] = strtoull(text, &end, 10);
        if (*end != (d + 1 < dims ? ',' : '\0') || out[d] > LAYOUT_TENSOR_BYTES_MAX)
            return false;
        text = end + 1;
    }
    return dims > 0;
}

/* The first tensor of the table that is not before NAME@. */
static uint32_t first_box(const struct layout_table *table, const char *name)
{
    uint32_t low = 0, high = table->num_tensors;
    size_t length = strlen(name);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const char *other = table->tensors[middle].name;
        int order = strncmp(other, name, length);
        if (order == 0)
            order = (unsigned char)other[length] < (unsigned char)'@' ? -1 : 0;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Is tensor `index` a box of that name? *out is its place in NAME. */
static bool is_box(struct box *out, const struct layout_table *table, uint32_t index,
                   const char *name)
{
    size_t length = strlen(name);
    if (index >= table->num_tensors)
        return false;
    const struct tensor_meta *meta = &table->tensors[index];
    memcpy(out->extent, meta->shape, sizeof out->extent);
    return strncmp(meta->name, name, length) == 0 && meta->name[length] == '@' &&
           parse_offsets(out->offset, meta->name + length + 1, meta->dims);
}

struct expansion {
    struct slice *slices;
    struct expanded {
        uint32_t slice; /* index of the wanted slice */
        uint64_t offset[LAYOUT_DIMS_MAX];
    } * origins;
    uint32_t count, room;
};

static int expand(struct expansion *out, const struct slice *slice, uint32_t index,
                  const uint64_t *offset)
{
    if (out->count == out->room) {
        uint32_t room = out->room == 0 ? 64 : 2 * out->room;
        struct slice *slices = realloc(out->slices, room * sizeof *slices);
        out->slices = slices ? slices : out->slices;
        struct expanded *origins = realloc(out->origins, room * sizeof *origins);
        out->origins = origins ? origins : out->origins;
        if (!slices || !origins)
            return fail_memory();
        out->room = room;
    }
    out->slices[out->count] = *slice;
    out->origins[out->count] = (struct expanded){.slice = index};
    if (offset)
        memcpy(out->origins[out->count].offset, offset, sizeof out->origins->offset);
    out->count++;
    return 0;
}

/* Adds the boxes of a wanted slice as separate slices. */
static int expand_slice(struct expansion *out, const struct layout_table *table,
                        const struct slice *wanted, uint32_t index)
{
    const char *name = wanted->tensor.name;
    const uint32_t dims = wanted->tensor.dims;
    uint32_t at = first_box(table, name);
    struct box box, part;
    uint64_t shape[LAYOUT_DIMS_MAX] = {0};
    ERR_TRY(slice_check(wanted));
    if (layout_find(table, name) >= 0 || !is_box(&box, table, at, name))
        return expand(out, wanted, index, NULL); /* unchanged, or missing */
    for (; is_box(&box, table, at, name); at++) {
        const struct tensor_meta *meta = &table->tensors[at];
        if (meta->dims != dims || meta->dtype != wanted->tensor.dtype)
            return report_error(ERR_MISMATCH, "is it a checkpoint of another model?",
                                "tensor '%s' was saved as %s with %u dimensions", name,
                                dtype_name(meta->dtype), meta->dims);
        for (uint32_t d = 0; d < dims; d++) {
            uint64_t end = box.offset[d] + box.extent[d];
            shape[d] = shape[d] > end ? shape[d] : end;
        }
        if (!box_intersect(&part, &box, &wanted->box, dims))
            continue;
        struct slice slice = {.tensor = *meta, .box = part};
        for (uint32_t d = 0; d < dims; d++)
            slice.box.offset[d] -= box.offset[d];
        ERR_TRY(expand(out, &slice, index, box.offset));
    }
    return memcmp(shape, wanted->tensor.shape, dims * sizeof *shape) == 0
               ? 0
               : report_error(ERR_MISMATCH, "is it a checkpoint of another model?",
                              "shape of tensor '%s' differs from the saved one", name);
}

static void shift_box(struct box *box, const uint64_t *offset)
{
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        box->offset[d] += offset[d];
}

int layout_plan_load(struct load_item **out, uint32_t *out_count, const struct layout_table *table,
                     const struct load_wish *wish)
{
    struct expansion expansion = {0};
    bool has_all = true;
    for (uint32_t i = 0; has_all && i < wish->num_slices; i++)
        has_all = layout_find(table, wish->slices[i].tensor.name) >= 0;
    if (has_all)
        return layout_plan_cells(out, out_count, table, wish);
    int error = 0;
    for (uint32_t i = 0; !error && i < wish->num_slices; i++)
        error = expand_slice(&expansion, table, &wish->slices[i], i);
    if (!error)
        error = layout_plan_cells(
            out, out_count, table,
            &(struct load_wish){expansion.slices, expansion.count, wish->items_max});
    for (uint32_t i = 0; !error && i < *out_count; i++) {
        const struct expanded *origin = &expansion.origins[(*out)[i].slice];
        (*out)[i].slice = origin->slice;
        shift_box(&(*out)[i].saved, origin->offset);
        shift_box(&(*out)[i].part, origin->offset);
    }
    free(expansion.slices);
    free(expansion.origins);
    return error;
}

/* ---- whole tensors, for lists ---- */

/* Splits a box's name: the part before "@OFFSETS" to `name`, the offsets to *out; false: it is no
 * box. */
static bool parse_box(struct box *out, char name[LAYOUT_NAME_MAX], const struct tensor_meta *meta)
{
    const char *at = strrchr(meta->name, '@');
    if (at == NULL || at == meta->name || !parse_offsets(out->offset, at + 1, meta->dims))
        return false;
    memcpy(out->extent, meta->shape, sizeof out->extent);
    snprintf(name, LAYOUT_NAME_MAX, "%.*s", (int)(at - meta->name), meta->name);
    return true;
}

/* The number of tensors, from tensors[at] on, that are the boxes of one tensor, then in *out; else
 * 1. */
static uint32_t join_from(struct tensor_meta *out, const struct tensor_meta *tensors, uint32_t at,
                          uint32_t count)
{
    char name[LAYOUT_NAME_MAX], other[LAYOUT_NAME_MAX];
    struct tensor_meta whole = tensors[at];
    struct box box;
    uint64_t held = 0, elements = 1;
    uint32_t end = at;
    *out = tensors[at];
    if (!parse_box(&box, name, &whole))
        return 1;
    strcpy(whole.name, name);
    for (; end < count && parse_box(&box, other, &tensors[end]) && strcmp(other, name) == 0 &&
           tensors[end].dims == whole.dims && tensors[end].dtype == whole.dtype;
         end++) {
        for (uint32_t d = 0; d < whole.dims; d++) {
            uint64_t high = box.offset[d] + box.extent[d];
            whole.shape[d] = whole.shape[d] > high ? whole.shape[d] : high;
        }
        held += box_elements(&box, whole.dims);
    }
    for (uint32_t d = 0; d < whole.dims && elements <= held; d++)
        elements *= whole.shape[d];
    if (end - at < 2 || held != elements)
        return 1;
    *out = whole;
    return end - at;
}

uint32_t layout_join(struct tensor_meta *tensors, uint32_t *first, uint32_t count)
{
    uint32_t joined = 0;
    for (uint32_t at = 0; at < count; joined++) {
        struct tensor_meta whole;
        first[joined] = at;
        at += join_from(&whole, tensors, at, count);
        tensors[joined] = whole; /* of a later one, or itself */
    }
    first[joined] = count;
    return joined;
}

void layout_joined_box(struct box *out, const struct tensor_meta *part)
{
    char name[LAYOUT_NAME_MAX];
    bool is_box = parse_box(out, name, part);
    CHECK(is_box);
}

int layout_check_joined(const struct tensor_meta *whole, const struct tensor_meta *parts,
                        uint32_t count)
{
    struct slice *slices = malloc(count * sizeof *slices);
    const struct slice **boxes = malloc(count * sizeof *boxes);
    int error = slices && boxes ? 0 : fail_memory();
    for (uint32_t i = 0; !error && i < count; i++) {
        slices[i].tensor = *whole;
        layout_joined_box(&slices[i].box, &parts[i]);
        boxes[i] = &slices[i];
    }
    if (!error) {
        qsort(boxes, count, sizeof *boxes, compare_boxes);
        error = check_cover(boxes, count);
    }
    free(slices);
    free(boxes);
    return error == ERR_MISMATCH ? ERR_CORRUPT : error;
}
