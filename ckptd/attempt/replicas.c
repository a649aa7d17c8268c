/* replicas.c - finds differences between the copies of a slice that several ranks hold.
 *
 * With LAYOUT_ONE_REPLICA every slice is a cell of its tensor's layout, whose owner writes it. So
 * cells that several ranks describe are found by counting, without comparing slices of ranks; the
 * copy in the checkpoint is the owner's.
 *
 * Pure: no I/O, no state. compare.c has the rest. */
#include "ckptd/attempt/replicas.h"
#include "proto/base/memfile.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEVERAL 2u /* counting stops there */

static int fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory to compare replicas");
}

/* ---- cells ---- */

/* The cells of all tensors, numbered. */
struct cells {
    const struct layout_table *table;
    uint64_t *first; /* per tensor, and one more for the end */
};

static const struct layout *layout_of(const struct layout_table *table, uint32_t tensor)
{
    return &table->layouts[table->layout_of[tensor]];
}

static int number_cells(struct cells *out, const struct layout_table *table)
{
    out->table = table;
    out->first = calloc((size_t)table->num_tensors + 1, sizeof *out->first);
    for (uint32_t t = 0; out->first && t < table->num_tensors; t++)
        out->first[t + 1] = out->first[t] + layout_cells(layout_of(table, t));
    return out->first ? 0 : fail_memory();
}

static uint64_t num_cells(const struct cells *cells)
{
    return cells->first[cells->table->num_tensors];
}

static uint64_t number_of(const struct cells *cells, const struct replica_slice *slice)
{
    return cells->first[slice->tensor] + slice->cell;
}

static uint32_t owner_of(const struct cells *cells, const struct replica_slice *slice)
{
    return layout_of(cells->table, slice->tensor)->owners[slice->cell];
}

/* ---- shared slices ---- */

/* False: it is empty. `guess`: its probable tensor. */
static bool find_cell(struct replica_slice *out, const struct layout_table *table,
                      const struct slice *slice, uint32_t guess)
{
    struct box box;
    uint64_t cell = 0;
    int64_t tensor = guess;
    if (box_elements(&slice->box, slice->tensor.dims) == 0)
        return false;
    if (guess >= table->num_tensors || strcmp(table->tensors[guess].name, slice->tensor.name) != 0)
        tensor = layout_find(table, slice->tensor.name);
    CHECK(tensor >= 0);
    const struct layout *layout = layout_of(table, (uint32_t)tensor);
    for (uint32_t d = 0; d < layout->dims; d++)
        cell = cell * (layout->num_cuts[d] - 1) +
               layout_find_cut(layout->cuts[d], layout->num_cuts[d], slice->box.offset[d]);
    layout_cell_box(&box, layout, cell);
    CHECK(box_equal(&box, &slice->box, layout->dims));
    out->tensor = (uint32_t)tensor;
    out->cell = (uint32_t)cell;
    return true;
}

/* Finds the cells of one rank and counts one more holder of each; `before`: those of another rank,
 * or NULL. */
static int find_cells(struct replica_slice **out, uint32_t *num, const struct cells *cells,
                      const struct slice *slices, uint32_t count,
                      const struct replica_slice *before)
{
    struct replica_slice *list = calloc((size_t)count + 1, sizeof *list);
    if (!list)
        return fail_memory();
    *num = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct replica_slice *slice = &list[*num];
        slice->slice = i;
        *num +=
            find_cell(slice, cells->table, &slices[i], before ? before[*num].tensor : UINT32_MAX);
    }
    *out = list;
    return 0;
}

/* Keeps the cells of one rank that others have as well. */
static uint32_t keep_shared(struct replica_slice *list, uint32_t num, const struct cells *cells,
                            const uint8_t *holders)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < num && kept < REPLICA_SLICES_MAX; i++)
        if (holders[number_of(cells, &list[i])] == SEVERAL)
            list[kept++] = list[i];
    return kept;
}

int replicas_find(struct replica_slice **out, uint32_t *num, const struct layout_table *table,
                  const struct slice *const *slices, const uint32_t *counts, uint32_t num_ranks)
{
    struct cells cells;
    uint8_t *holders = NULL;
    int error = number_cells(&cells, table);
    if (error == 0 && (holders = calloc(num_cells(&cells) + 1, sizeof *holders)) == NULL)
        error = fail_memory();
    for (uint32_t r = 0; r < num_ranks && error == 0; r++) {
        bool is_alike = r > 0 && counts[r] <= counts[r - 1];
        error = find_cells(&out[r], &num[r], &cells, slices[r], counts[r],
                           is_alike ? out[r - 1] : NULL);
        for (uint32_t i = 0; error == 0 && i < num[r]; i++) {
            uint8_t *held = &holders[number_of(&cells, &out[r][i])];
            *held = (uint8_t)(*held + (*held < SEVERAL));
        }
    }
    for (uint32_t r = 0; r < num_ranks && error == 0; r++) {
        num[r] = keep_shared(out[r], num[r], &cells, holders);
        struct replica_slice *less = realloc(out[r], ((size_t)num[r] + 1) * sizeof *less);
        out[r] = less ? less : out[r];
    }
    free(holders);
    free(cells.first);
    return error;
}

/* ---- for other nodes ---- */

int replicas_mark(uint8_t **out, size_t *out_bytes, const struct layout_table *table,
                  struct replica_slice *const *replicas, const uint32_t *num, uint32_t num_ranks)
{
    struct cells cells;
    uint64_t sum = 0;
    *out = NULL;
    *out_bytes = 0;
    for (uint32_t r = 0; r < num_ranks; r++)
        sum += num[r];
    if (sum == 0)
        return 0;
    ERR_TRY(number_cells(&cells, table));
    *out_bytes = (size_t)(num_cells(&cells) / 8 + 1);
    *out = calloc(*out_bytes, 1);
    for (uint32_t r = 0; *out && r < num_ranks; r++)
        for (uint32_t i = 0; i < num[r]; i++) {
            uint64_t cell = number_of(&cells, &replicas[r][i]);
            (*out)[cell / 8] |= (uint8_t)(1u << cell % 8);
        }
    free(cells.first);
    return *out ? 0 : fail_memory();
}

int replicas_find_marked(struct replica_slice **out, uint32_t *num,
                         const struct layout_table *table, const struct slice *slices,
                         uint32_t count, const struct replica_marks *marks)
{
    struct cells cells;
    uint32_t kept = 0;
    ERR_TRY(number_cells(&cells, table));
    int error = find_cells(out, num, &cells, slices, count, NULL);
    for (uint32_t i = 0; error == 0 && i < *num && kept < REPLICA_SLICES_MAX; i++) {
        uint64_t cell = number_of(&cells, &(*out)[i]);
        if (cell / 8 < marks->bytes && (marks->bits[cell / 8] >> cell % 8 & 1) != 0)
            (*out)[kept++] = (*out)[i];
    }
    *num = kept;
    free(cells.first);
    return error;
}

/* ---- differences ---- */

struct comparing {
    struct cells cells;
    struct replicas_found *found;
    const struct replica_digest **kept; /* per cell; NULL: its owner reported none */
    bool *differs;                      /* per cell */
    uint64_t step;
};

static bool was_told(const struct replica_digest *digest)
{
    return digest->sum.low != 0 || digest->sum.high != 0;
}

static void take_kept(struct comparing *comparing, const struct replica_rank *rank, uint32_t number)
{
    for (uint32_t i = 0; rank->digests && i < rank->num_replicas; i++)
        if (owner_of(&comparing->cells, &rank->replicas[i]) == number &&
            was_told(&rank->digests[i]))
            comparing->kept[number_of(&comparing->cells, &rank->replicas[i])] = &rank->digests[i];
}

/* The entry of that cell, a new one if there is room; else NULL. */
static struct replica_difference *find_entry(struct comparing *comparing,
                                             const struct replica_slice *slice)
{
    struct replicas_found *found = comparing->found;
    for (uint32_t i = 0; i < found->num_listed; i++)
        if (found->list[i].tensor == slice->tensor && found->list[i].cell == slice->cell)
            return &found->list[i];
    if (found->num_listed == REPLICAS_LISTED_MAX)
        return NULL;
    struct replica_difference *entry = &found->list[found->num_listed++];
    *entry = (struct replica_difference){.tensor = slice->tensor,
                                         .cell = slice->cell,
                                         .kept = owner_of(&comparing->cells, slice),
                                         .block = UINT32_MAX};
    return entry;
}

static void note_difference(struct comparing *comparing, const struct replica_rank *rank,
                            uint32_t number, const struct replica_slice *replica, uint32_t block)
{
    const struct slice *slice = &rank->slices[replica->slice];
    bool *differs = &comparing->differs[number_of(&comparing->cells, replica)];
    comparing->found->num_differ += !*differs;
    *differs = true;
    struct replica_difference *entry = find_entry(comparing, replica);
    if (!entry)
        return;
    if (entry->num_ranks < REPLICAS_RANKS_MAX)
        entry->ranks[entry->num_ranks] = number;
    entry->num_ranks++;
    if (block >= entry->block)
        return;
    entry->block = block;
    entry->where =
        replica_block(slice_bytes(slice), replica_seed(slice->tensor.name, comparing->step), block);
}

static void compare_rank(struct comparing *comparing, const struct replica_rank *rank,
                         uint32_t number)
{
    for (uint32_t i = 0; rank->digests && i < rank->num_replicas; i++) {
        const struct replica_slice *replica = &rank->replicas[i];
        const struct replica_digest *kept = comparing->kept[number_of(&comparing->cells, replica)];
        uint32_t block;
        if (kept && was_told(&rank->digests[i]) && replica_differs(&block, kept, &rank->digests[i]))
            note_difference(comparing, rank, number, replica, block);
    }
}

static int by_tensor(const void *a, const void *b)
{
    const struct replica_difference *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

int replicas_differ(struct replicas_found *out, const struct layout_table *table,
                    const struct replica_rank *ranks, uint32_t num_ranks, uint64_t step)
{
    struct comparing comparing = {.found = out, .step = step};
    memset(out, 0, sizeof *out);
    ERR_TRY(number_cells(&comparing.cells, table));
    uint64_t count = num_cells(&comparing.cells);
    comparing.kept = calloc(count + 1, sizeof *comparing.kept);
    comparing.differs = calloc(count + 1, sizeof *comparing.differs);
    int error = comparing.kept && comparing.differs ? 0 : fail_memory();
    for (uint32_t r = 0; r < num_ranks && error == 0; r++)
        take_kept(&comparing, &ranks[r], r);
    for (uint32_t r = 0; r < num_ranks && error == 0; r++)
        compare_rank(&comparing, &ranks[r], r);
    qsort(out->list, out->num_listed, sizeof *out->list, by_tensor);
    free(comparing.kept);
    free(comparing.differs);
    free(comparing.cells.first);
    return error;
}

/* ---- as text ---- */

static void print_ranks(FILE *out, const struct replica_difference *entry)
{
    for (uint32_t i = 0; i < entry->num_ranks && i < REPLICAS_RANKS_MAX; i++)
        fprintf(out, "%s%u", i ? "," : "", entry->ranks[i]);
}

/* "its slice at [20, 0] of ", unless it is the whole tensor. */
static void write_slice(char *out, size_t bytes, const struct layout *layout, uint32_t cell)
{
    struct box box;
    size_t used = 0;
    out[0] = '\0';
    if (layout_cells(layout) == 1)
        return;
    layout_cell_box(&box, layout, cell);
    for (uint32_t d = 0; d < layout->dims && used < bytes; d++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%llu", d ? ", " : "its slice at [",
                                 (unsigned long long)box.offset[d]);
    if (used < bytes)
        snprintf(out + used, bytes - used, "] of ");
}

const char *replicas_text(char out[REPLICAS_TEXT_BYTES], const struct replicas_found *found,
                          const struct layout_table *table)
{
    const struct replica_difference *entry = &found->list[0];
    char ranks[12 * REPLICAS_RANKS_MAX] = "", more[48] = "", where[64] = "", slice[128];
    size_t used = 0;
    out[0] = '\0';
    if (found->num_differ == 0)
        return out;
    for (uint32_t i = 0; i < entry->num_ranks && i < REPLICAS_RANKS_MAX; i++)
        used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u", i ? ", " : "",
                                 entry->ranks[i]);
    if (entry->num_ranks > REPLICAS_RANKS_MAX)
        snprintf(more, sizeof more, " and %u more", entry->num_ranks - REPLICAS_RANKS_MAX);
    if (entry->where.bytes > 0)
        snprintf(where, sizeof where, ", first found in bytes %llu to %llu",
                 (unsigned long long)entry->where.first,
                 (unsigned long long)(entry->where.first + entry->where.bytes - 1));
    write_slice(slice, sizeof slice, layout_of(table, entry->tensor), entry->cell);
    snprintf(out, REPLICAS_TEXT_BYTES, "rank%s %s%s hold%s other bytes than rank %u%s of ",
             entry->num_ranks > 1 ? "s" : "", ranks, more, entry->num_ranks > 1 ? "" : "s",
             entry->kept, where);
    used = strlen(out);
    snprintf(out + used, REPLICAS_TEXT_BYTES - used, "%stensor %s", slice,
             table->tensors[entry->tensor].name);
    used = strlen(out);
    if (found->num_differ > 1)
        snprintf(out + used, REPLICAS_TEXT_BYTES - used, ", and of %u more", found->num_differ - 1);
    return out;
}

static void print_entry(FILE *out, const struct replica_difference *entry,
                        const struct layout_table *table)
{
    const struct layout *layout = layout_of(table, entry->tensor);
    struct box box;
    layout_cell_box(&box, layout, entry->cell);
    fprintf(out, "{\"tensor\":\"%s\",\"offset\":[", table->tensors[entry->tensor].name);
    for (uint32_t d = 0; d < layout->dims; d++)
        fprintf(out, "%s%llu", d ? "," : "", (unsigned long long)box.offset[d]);
    fprintf(out, "],\"kept\":%u,\"differ\":[", entry->kept);
    print_ranks(out, entry);
    fprintf(out, "],\"num_differ\":%u", entry->num_ranks);
    if (entry->where.bytes > 0)
        fprintf(out, ",\"first_byte\":%llu,\"bytes\":%llu", (unsigned long long)entry->where.first,
                (unsigned long long)entry->where.bytes);
    fprintf(out, "}");
}

int replicas_add(char **out, const char *mesh, const struct replicas_found *found,
                 const struct layout_table *table)
{
    size_t bytes;
    const char *text = mesh ? mesh : "{}", *end = strrchr(text, '}');
    CHECK(end && end > text); /* it is an object */
    const char *last = end - 1;
    while (strchr(" \t\r\n", *last))
        last--;
    FILE *file = memfile_open(out, &bytes);
    if (!file)
        return fail_memory();
    fprintf(file, "%.*s%s\"" REPLICAS_MEMBER "\":{\"slices\":%u,\"first\":[",
            (int)(last + 1 - text), text, *last == '{' ? "" : ",", found->num_differ);
    for (uint32_t i = 0; i < found->num_listed; i++) {
        fputs(i ? "," : "", file);
        print_entry(file, &found->list[i], table);
    }
    fprintf(file, "]}}");
    if (memfile_close(file))
        return 0;
    free(*out);
    *out = NULL;
    return fail_memory();
}
