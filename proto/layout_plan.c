/* layout_plan.c - the plan of a save: from the slices of all ranks to a table of tensors and
 * layouts.
 *
 * The ranks of a big run describe millions of slices but only a handful of different cuts. So:
 *  1. One pass over all slices, rank by rank: names become numbers (the same position in the
 * previous rank's list is tried first, then a hash table), and each tensor gets a hash over (rank,
 * box) of its members.
 *  2. Tensors of equal hash and shape form a class. A second pass proves that its members are equal
 *     box by box; a tensor that only shares the hash leaves the class.
 *  3. For the first tensor of each class the boxes are sorted; equal ones are replicas; the
 * distinct ones must be exactly the cells of the grid that their own edges span. That proves
 * neither hole nor overlap.
 *  4. Each band of cells along dimension 0 is cut again among the replicas. Equal layouts are
 * merged, by a hash table again. Cost: O(n) in the number of slices plus O(m log m) in those of the
 * class heads, whatever the names and the cuts: both hash tables have a seed of the plan. The plan
 * itself does not depend on it. */
#include "proto/layout.h"

#include "proto/checksum.h"
#include "proto/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NONE UINT32_MAX

struct tensor_entry {
    const struct tensor_meta *meta; /* of the first rank that described it; borrowed */
    uint64_t hash;                  /* over (rank, box) of the members */
    uint32_t num_members;           /* slices that are not empty */
    uint32_t last_rank;             /* that described it */
    uint32_t head;                  /* entry that stands for the class */
    uint32_t first_member;          /* heads only: into members */
    uint32_t layout;                /* heads only */
};

struct member {
    const struct box *box;
    uint32_t rank;
};

struct planner {
    const struct slice *const *slices;
    const uint32_t *counts;
    uint32_t num_ranks;
    uint32_t **tensor_of; /* entry of each slice, per rank, in one block */
    struct tensor_entry *entries;
    uint32_t num_entries, entries_capacity;
    uint32_t *buckets; /* open addressing: entry number or NONE; in step 4 layout number */
    uint32_t num_buckets;
    uint64_t seed;          /* of both */
    struct member *members; /* of the heads */
    struct layout_table *table;
};

static int fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory to plan the save");
}

static void *alloc_array(uint64_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

/* ---- step 1: names to numbers ---- */

static uint32_t *find_bucket(const struct planner *planner, const char *name)
{
    uint32_t mask = planner->num_buckets - 1;
    uint32_t at = (uint32_t)checksum_seeded(name, strlen(name), planner->seed) & mask;
    while (planner->buckets[at] != NONE &&
           strcmp(planner->entries[planner->buckets[at]].meta->name, name) != 0)
        at = (at + 1) & mask;
    return &planner->buckets[at];
}

static void clear_buckets(struct planner *planner)
{
    for (uint32_t i = 0; i < planner->num_buckets; i++)
        planner->buckets[i] = NONE;
}

static int grow_entries(struct planner *planner)
{
    uint32_t capacity = planner->entries_capacity ? 2 * planner->entries_capacity : 1024;
    struct tensor_entry *entries =
        realloc(planner->entries, (size_t)capacity * sizeof(*planner->entries));
    uint32_t *buckets = malloc(2 * (size_t)capacity * sizeof(*buckets));
    if (entries)
        planner->entries = entries;
    if (!entries || !buckets) {
        free(buckets);
        return fail_memory();
    }
    free(planner->buckets);
    planner->buckets = buckets;
    planner->num_buckets = 2 * capacity;
    planner->entries_capacity = capacity;
    clear_buckets(planner);
    for (uint32_t i = 0; i < planner->num_entries; i++)
        *find_bucket(planner, entries[i].meta->name) = i;
    return 0;
}

static int intern_tensor(uint32_t *out, struct planner *planner, const struct tensor_meta *meta)
{
    if (planner->num_entries == planner->entries_capacity) {
        int error = grow_entries(planner);
        if (error)
            return error;
    }
    uint32_t *bucket = find_bucket(planner, meta->name);
    if (*bucket == NONE) {
        *bucket = planner->num_entries;
        planner->entries[planner->num_entries++] = (struct tensor_entry){
            .meta = meta,
            .hash = checksum_bytes(meta->shape, meta->dims * sizeof(meta->shape[0])),
            .last_rank = NONE,
        };
    }
    *out = *bucket;
    return 0;
}

static bool is_same_meta(const struct tensor_meta *a, const struct tensor_meta *b)
{
    return a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof(a->shape[0])) == 0;
}

static void hash_member(struct tensor_entry *entry, const struct box *box, uint32_t rank)
{
    uint64_t words[2 + 2 * LAYOUT_DIMS_MAX];
    uint32_t dims = entry->meta->dims;
    words[0] = entry->hash;
    words[1] = rank;
    memcpy(words + 2, box->offset, dims * sizeof(uint64_t));
    memcpy(words + 2 + dims, box->extent, dims * sizeof(uint64_t));
    entry->hash = checksum_bytes(words, (2 + 2 * dims) * sizeof(uint64_t));
    entry->num_members++;
}

static int add_slice(struct planner *planner, uint32_t rank, uint32_t index, uint32_t guess)
{
    const struct slice *slice = &planner->slices[rank][index];
    uint32_t id = guess;
    int error = slice_check(slice);
    if (error)
        return error;
    if (id == NONE || strcmp(planner->entries[id].meta->name, slice->tensor.name) != 0)
        error = intern_tensor(&id, planner, &slice->tensor);
    if (error)
        return error;
    struct tensor_entry *entry = &planner->entries[id];
    if (entry->last_rank == rank)
        return report_error(ERR_INVALID, "a rank holds one slice of a tensor",
                            "rank %" PRIu32 " described tensor '%s' twice", rank,
                            slice->tensor.name);
    if (!is_same_meta(entry->meta, &slice->tensor))
        return report_error(ERR_MISMATCH, NULL,
                            "rank %" PRIu32 " gave tensor '%s' another shape or element type than "
                            "the ranks before it",
                            rank, slice->tensor.name);
    entry->last_rank = rank;
    planner->tensor_of[rank][index] = id;
    if (box_elements(&slice->box, slice->tensor.dims) > 0)
        hash_member(entry, &slice->box, rank);
    return 0;
}

static int number_tensors(struct planner *planner)
{
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < planner->num_ranks; rank++)
        total += planner->counts[rank];
    planner->tensor_of = alloc_array(planner->num_ranks, sizeof(*planner->tensor_of));
    uint32_t *block = alloc_array(total, sizeof(*block));
    if (!planner->tensor_of || !block) {
        free(block);
        return fail_memory();
    }
    for (uint32_t rank = 0; rank < planner->num_ranks; rank++) {
        planner->tensor_of[rank] = block;
        block += planner->counts[rank];
    }
    int error = 0;
    for (uint32_t rank = 0; !error && rank < planner->num_ranks; rank++) {
        for (uint32_t i = 0; !error && i < planner->counts[rank]; i++) {
            bool has_guess = rank > 0 && i < planner->counts[rank - 1];
            error = add_slice(planner, rank, i, has_guess ? planner->tensor_of[rank - 1][i] : NONE);
        }
    }
    return error;
}

/* Every byte lies in one shard: what holds for all of them holds for each shard. */
static int check_bytes(const struct planner *planner)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < planner->num_entries; i++) {
        const struct tensor_meta *meta = planner->entries[i].meta;
        uint64_t bytes = dtype_bytes(meta->dtype);
        for (uint32_t d = 0; d < meta->dims; d++)
            bytes *= meta->shape[d];
        sum += bytes;
        if (sum > LAYOUT_BYTES_MAX)
            return report_error(ERR_INVALID, NULL, "the tensors together pass %llu bytes",
                                LAYOUT_BYTES_MAX);
    }
    return 0;
}

/* ---- step 2: classes of equally cut tensors ---- */

static int compare_classes(const void *a, const void *b, void *user)
{
    const struct tensor_entry *x = &((const struct tensor_entry *)user)[*(const uint32_t *)a];
    const struct tensor_entry *y = &((const struct tensor_entry *)user)[*(const uint32_t *)b];
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->num_members != y->num_members)
        return x->num_members < y->num_members ? -1 : 1;
    if (x->meta->dims != y->meta->dims)
        return x->meta->dims < y->meta->dims ? -1 : 1;
    return memcmp(x->meta->shape, y->meta->shape, x->meta->dims * sizeof(uint64_t));
}

/* Compares the slices of one rank with those of their class heads; `slice_at[entry]` is scratch. */
static void prove_classes(struct planner *planner, uint32_t rank, uint32_t *slice_at)
{
    const struct slice *slices = planner->slices[rank];
    const uint32_t *ids = planner->tensor_of[rank];
    uint32_t count = planner->counts[rank];
    for (uint32_t i = 0; i < count; i++)
        slice_at[ids[i]] = i;
    for (uint32_t i = 0; i < count; i++) {
        struct tensor_entry *entry = &planner->entries[ids[i]];
        uint32_t dims = entry->meta->dims;
        if (entry->head == ids[i] || box_elements(&slices[i].box, dims) == 0)
            continue;
        uint32_t twin = slice_at[entry->head];
        if (twin == NONE || !box_equal(&slices[twin].box, &slices[i].box, dims))
            entry->head = ids[i];
    }
    for (uint32_t i = 0; i < count; i++)
        slice_at[ids[i]] = NONE;
}

static int build_classes(struct planner *planner)
{
    uint32_t count = planner->num_entries;
    uint32_t *order = alloc_array(count, sizeof(*order));
    if (!order)
        return fail_memory();
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof(*order), compare_classes, planner->entries);
    for (uint32_t i = 0; i < count; i++) {
        bool joins = i > 0 && compare_classes(&order[i - 1], &order[i], planner->entries) == 0;
        planner->entries[order[i]].head = joins ? planner->entries[order[i - 1]].head : order[i];
    }
    memset(order, 0xff, count * sizeof(*order));
    for (uint32_t rank = 0; rank < planner->num_ranks; rank++)
        prove_classes(planner, rank, order);
    free(order);
    return 0;
}

/* The members of every class head, in one array, by rank. */
static int collect_members(struct planner *planner)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < planner->num_entries; i++) {
        struct tensor_entry *entry = &planner->entries[i];
        if (entry->head != i)
            continue;
        if (total + entry->num_members > UINT32_MAX)
            return report_error(ERR_BUSY, NULL, "the ranks described too many slices");
        entry->first_member = (uint32_t)total;
        total += entry->num_members;
        entry->num_members = 0;
    }
    planner->members = alloc_array(total, sizeof(*planner->members));
    if (!planner->members)
        return fail_memory();
    for (uint32_t rank = 0; rank < planner->num_ranks; rank++) {
        for (uint32_t i = 0; i < planner->counts[rank]; i++) {
            uint32_t id = planner->tensor_of[rank][i];
            struct tensor_entry *entry = &planner->entries[id];
            const struct box *box = &planner->slices[rank][i].box;
            if (entry->head == id && box_elements(box, entry->meta->dims) > 0)
                planner->members[entry->first_member + entry->num_members++] =
                    (struct member){.box = box, .rank = rank};
        }
    }
    return 0;
}

/* ---- step 3: the grid of one class ---- */

/* One distinct box: members[first .. first + replicas) hold it. */
struct group {
    uint32_t first, replicas;
};

struct grid {
    const struct tensor_meta *meta;
    struct member *members; /* sorted by box, then rank */
    uint32_t num_members;
    struct group *groups; /* row-major order of their boxes */
    uint32_t num_groups;
    uint64_t *cuts[LAYOUT_DIMS_MAX];
    uint32_t num_cuts[LAYOUT_DIMS_MAX];
};

static const struct box *group_box(const struct grid *grid, uint32_t group)
{
    return grid->members[grid->groups[group].first].box;
}

static int compare_members(const void *a, const void *b, void *user)
{
    const struct member *x = a, *y = b;
    uint32_t dims = *(const uint32_t *)user;
    for (uint32_t d = 0; d < dims; d++) {
        if (x->box->offset[d] != y->box->offset[d])
            return x->box->offset[d] < y->box->offset[d] ? -1 : 1;
    }
    for (uint32_t d = 0; d < dims; d++) {
        if (x->box->extent[d] != y->box->extent[d])
            return x->box->extent[d] < y->box->extent[d] ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int find_groups(struct grid *grid)
{
    uint32_t dims = grid->meta->dims;
    grid->groups = alloc_array(grid->num_members, sizeof(*grid->groups));
    if (!grid->groups)
        return fail_memory();
    qsort_r(grid->members, grid->num_members, sizeof(*grid->members), compare_members, &dims);
    for (uint32_t i = 0; i < grid->num_members; i++) {
        if (i > 0 && box_equal(grid->members[i - 1].box, grid->members[i].box, dims))
            grid->groups[grid->num_groups - 1].replicas++;
        else
            grid->groups[grid->num_groups++] = (struct group){.first = i, .replicas = 1};
    }
    return 0;
}

/* The edges of all boxes and of the tensor itself, sorted, each once. */
static int find_cuts(struct grid *grid)
{
    for (uint32_t d = 0; d < grid->meta->dims; d++) {
        uint64_t *cuts = alloc_array(2 * (uint64_t)grid->num_groups + 2, sizeof(*cuts));
        if (!cuts)
            return fail_memory();
        grid->cuts[d] = cuts;
        uint64_t count = 0;
        cuts[count++] = 0;
        cuts[count++] = grid->meta->shape[d];
        for (uint32_t g = 0; g < grid->num_groups; g++) {
            const struct box *box = group_box(grid, g);
            cuts[count++] = box->offset[d];
            cuts[count++] = box->offset[d] + box->extent[d];
        }
        qsort(cuts, count, sizeof(*cuts), compare_u64);
        uint32_t unique = 1;
        for (uint64_t i = 1; i < count; i++) {
            if (cuts[i] != cuts[unique - 1])
                cuts[unique++] = cuts[i];
        }
        grid->num_cuts[d] = unique;
    }
    return 0;
}

static int fail_grid(const struct grid *grid, const char *what, const struct box *where)
{
    char message[LAYOUT_NAME_MAX + 64], detail[256] = "";
    size_t used = 0;
    for (uint32_t d = 0; where && d < grid->meta->dims; d++)
        used += (size_t)snprintf(detail + used, sizeof(detail) - used, "%s%" PRIu64,
                                 d ? ", " : "at element (", where->offset[d]);
    if (used > 0)
        snprintf(detail + used, sizeof(detail) - used, ")");
    snprintf(message, sizeof(message), "the slices of tensor '%s' %s", grid->meta->name, what);
    return report_set(ERR_MISMATCH, message, detail,
                      "the distinct slices of a tensor must tile it as a grid");
}

/* A box that spans several cells: the volumes tell an overlap from a hole. */
static int fail_spanning(const struct grid *grid, const struct box *box)
{
    unsigned __int128 covered = 0;
    uint64_t whole = 1;
    for (uint32_t d = 0; d < grid->meta->dims; d++)
        whole *= grid->meta->shape[d];
    for (uint32_t g = 0; g < grid->num_groups; g++)
        covered += box_elements(group_box(grid, g), grid->meta->dims);
    if (covered > whole)
        return fail_grid(grid, "overlap", box);
    return fail_grid(grid, covered < whole ? "leave a hole" : "do not form a grid", box);
}

/* The groups are in row-major order, so box number i has to be cell number i. */
static int check_grid(const struct grid *grid)
{
    uint32_t dims = grid->meta->dims;
    for (uint32_t g = 0; g < grid->num_groups; g++) {
        const struct box *box = group_box(grid, g);
        for (uint32_t d = 0; d < dims; d++) {
            const uint64_t *start = bsearch(&box->offset[d], grid->cuts[d], grid->num_cuts[d],
                                            sizeof(uint64_t), compare_u64);
            CHECK(start != NULL);
            if (start[1] != box->offset[d] + box->extent[d])
                return fail_spanning(grid, box);
        }
    }
    uint64_t at[LAYOUT_DIMS_MAX] = {0}; /* cell coordinates */
    for (uint32_t g = 0;; g++) {
        struct box cell = {.offset = {0}};
        bool found = g < grid->num_groups;
        for (uint32_t d = 0; d < dims; d++) {
            cell.offset[d] = grid->cuts[d][at[d]];
            found = found && group_box(grid, g)->offset[d] == cell.offset[d];
        }
        if (!found)
            return fail_grid(grid, "leave a hole", &cell);
        uint32_t d = dims;
        while (d > 0 && ++at[d - 1] == grid->num_cuts[d - 1] - 1)
            at[--d] = 0;
        if (d == 0) {
            CHECK(g + 1 == grid->num_groups);
            return 0;
        }
    }
}

/* ---- step 4: the layout of one class ---- */

/* Pieces of band `band` (cells_per_band groups): its rows among the replicas that every cell has.
 */
static uint64_t count_pieces(const struct grid *grid, uint64_t band, uint64_t cells_per_band)
{
    uint64_t pieces = group_box(grid, (uint32_t)(band * cells_per_band))->extent[0];
    for (uint64_t c = 0; c < cells_per_band; c++) {
        uint32_t replicas = grid->groups[band * cells_per_band + c].replicas;
        if (replicas < pieces)
            pieces = replicas;
    }
    return pieces;
}

static void refine_rows(struct layout *out, const struct grid *grid, uint64_t cells_per_band)
{
    uint64_t cell = 0;
    uint32_t num_cuts = 0;
    for (uint64_t band = 0; band + 1 < grid->num_cuts[0]; band++) {
        uint64_t start = grid->cuts[0][band];
        uint64_t rows = grid->cuts[0][band + 1] - start;
        uint64_t pieces = count_pieces(grid, band, cells_per_band);
        for (uint64_t piece = 0; piece < pieces; piece++) {
            out->cuts[0][num_cuts++] = start + (uint64_t)((unsigned __int128)rows * piece / pieces);
            for (uint64_t c = 0; c < cells_per_band; c++) {
                const struct group *group = &grid->groups[band * cells_per_band + c];
                out->owners[cell++] = grid->members[group->first + piece].rank;
            }
        }
    }
    out->cuts[0][num_cuts++] = grid->meta->shape[0];
    out->num_cuts[0] = num_cuts;
}

/* A tensor without elements: no cell at all. */
static void make_empty_layout(struct layout *out, const struct tensor_meta *meta)
{
    for (uint32_t d = 0; d < meta->dims; d++) {
        out->cuts[d][0] = 0;
        out->cuts[d][1] = meta->shape[d];
        out->num_cuts[d] = meta->shape[d] ? 2 : 1;
    }
}

static int make_layout(struct layout *out, const struct grid *grid, bool is_empty)
{
    uint32_t dims = grid->meta->dims;
    out->dims = dims;
    out->owners = alloc_array(grid->num_members, sizeof(*out->owners));
    if (!out->owners)
        return fail_memory();
    uint64_t cells_per_band = 1;
    for (uint32_t d = 0; d < dims; d++) {
        uint64_t room = d == 0 ? (uint64_t)grid->num_members + 2 : grid->num_cuts[d];
        out->cuts[d] = alloc_array(room > 2 ? room : 2, sizeof(uint64_t));
        if (!out->cuts[d])
            return fail_memory();
        if (d == 0 || is_empty)
            continue;
        memcpy(out->cuts[d], grid->cuts[d], grid->num_cuts[d] * sizeof(uint64_t));
        out->num_cuts[d] = grid->num_cuts[d];
        cells_per_band *= grid->num_cuts[d] - 1;
    }
    if (is_empty)
        make_empty_layout(out, grid->meta);
    else if (dims == 0)
        out->owners[0] = grid->members[0].rank;
    else
        refine_rows(out, grid, cells_per_band);
    return 0;
}

static int plan_class(struct layout *out, struct planner *planner, const struct tensor_entry *entry)
{
    struct grid grid = {.meta = entry->meta,
                        .members = planner->members + entry->first_member,
                        .num_members = entry->num_members};
    bool is_empty = false;
    for (uint32_t d = 0; d < entry->meta->dims; d++)
        is_empty = is_empty || entry->meta->shape[d] == 0;
    int error = find_groups(&grid);
    if (!error)
        error = find_cuts(&grid);
    if (!error && !is_empty)
        error = check_grid(&grid);
    if (!error)
        error = make_layout(out, &grid, is_empty);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        free(grid.cuts[d]);
    free(grid.groups);
    return error;
}

static bool is_same_layout(const struct layout *a, const struct layout *b)
{
    bool same = a->dims == b->dims && layout_cells(a) == layout_cells(b);
    for (uint32_t d = 0; same && d < a->dims; d++)
        same = a->num_cuts[d] == b->num_cuts[d] &&
               memcmp(a->cuts[d], b->cuts[d], a->num_cuts[d] * sizeof(uint64_t)) == 0;
    return same && memcmp(a->owners, b->owners, layout_cells(a) * sizeof(uint32_t)) == 0;
}

static uint64_t hash_layout(const struct layout *layout, uint64_t seed)
{
    uint64_t words[LAYOUT_DIMS_MAX + 1] = {0};
    for (uint32_t d = 0; d < layout->dims; d++)
        words[d] = checksum_seeded(layout->cuts[d], layout->num_cuts[d] * sizeof(uint64_t), seed);
    words[LAYOUT_DIMS_MAX] =
        checksum_seeded(layout->owners, layout_cells(layout) * sizeof(uint32_t), seed);
    return checksum_seeded(words, sizeof(words), seed);
}

static uint32_t *find_layout_bucket(const struct planner *planner, const struct layout *layout)
{
    const struct layout *layouts = planner->table->layouts;
    uint32_t mask = planner->num_buckets - 1;
    uint32_t at = (uint32_t)hash_layout(layout, planner->seed) & mask;
    while (planner->buckets[at] != NONE && !is_same_layout(&layouts[planner->buckets[at]], layout))
        at = (at + 1) & mask;
    return &planner->buckets[at];
}

/* The number of a layout equal to the last one of the table, which is dropped; or the last one's.
 */
static uint32_t merge_layout(struct planner *planner)
{
    struct layout_table *table = planner->table;
    struct layout *last = &table->layouts[table->num_layouts - 1];
    uint32_t *bucket = find_layout_bucket(planner, last);
    if (*bucket == NONE)
        return *bucket = table->num_layouts - 1;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        free(last->cuts[d]);
    free(last->owners);
    memset(last, 0, sizeof(*last));
    table->num_layouts--;
    return *bucket;
}

static int compare_names(const void *a, const void *b, void *user)
{
    const struct tensor_entry *entries = user;
    return strcmp(entries[*(const uint32_t *)a].meta->name,
                  entries[*(const uint32_t *)b].meta->name);
}

/* Layouts are numbered in the order of the names that use them first: the same plan every time. */
static int build_table(struct planner *planner)
{
    uint32_t count = planner->num_entries;
    int error = 0;
    struct layout_table *table = planner->table = calloc(1, sizeof(*table));
    uint32_t *order = alloc_array(count, sizeof(*order));
    if (table) {
        table->tensors = alloc_array(count, sizeof(*table->tensors));
        table->layout_of = alloc_array(count, sizeof(*table->layout_of));
        table->layouts = alloc_array(count, sizeof(*table->layouts));
    }
    if (!order || !table || !table->tensors || !table->layout_of || !table->layouts) {
        error = fail_memory();
        goto out;
    }
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
        planner->entries[i].layout = NONE;
    }
    qsort_r(order, count, sizeof(*order), compare_names, planner->entries);
    clear_buckets(planner);
    for (uint32_t i = 0; !error && i < count; i++) {
        struct tensor_entry *entry = &planner->entries[order[i]];
        struct tensor_entry *head = &planner->entries[entry->head];
        if (head->layout == NONE) {
            error = plan_class(&table->layouts[table->num_layouts++], planner, head);
            head->layout = error ? 0 : merge_layout(planner);
        }
        struct tensor_meta *meta = &table->tensors[i];
        *meta = *entry->meta;
        for (uint32_t d = meta->dims; d < LAYOUT_DIMS_MAX; d++)
            meta->shape[d] = 1;
        table->layout_of[i] = head->layout;
        table->num_tensors++;
    }
out:
    free(order);
    return error;
}

int layout_plan_save(struct layout_table **out, const struct slice *const *slices,
                     const uint32_t *counts, uint32_t num_ranks)
{
    struct planner planner = {.slices = slices, .counts = counts, .num_ranks = num_ranks};
    CHECK(num_ranks > 0 && num_ranks < NONE);
    if (getrandom(&planner.seed, sizeof(planner.seed), 0) != sizeof(planner.seed))
        planner.seed = (uintptr_t)slices; /* then a stranger's names may cost time, no more */
    int error = number_tensors(&planner);
    if (!error)
        error = check_bytes(&planner);
    if (!error)
        error = build_classes(&planner);
    if (!error)
        error = collect_members(&planner);
    if (!error)
        error = build_table(&planner);
    if (!error)
        error = layout_table_index(planner.table);
    if (error)
        layout_table_free(planner.table);
    else
        *out = planner.table;
    if (planner.tensor_of)
        free(planner.tensor_of[0]);
    free(planner.tensor_of);
    free(planner.entries);
    free(planner.buckets);
    free(planner.members);
    return error;
}

/* ---- what one rank copies ---- */

/* slice_of[tensor]: the rank's slice of each tensor of the table, or NONE. */
static int match_slices(uint32_t *slice_of, const struct layout_table *table,
                        const struct slice *slices, uint32_t count)
{
    for (uint32_t t = 0; t < table->num_tensors; t++)
        slice_of[t] = NONE;
    for (uint32_t i = 0; i < count; i++) {
        int64_t index = layout_find(table, slices[i].tensor.name);
        if (index < 0 || !is_same_meta(&table->tensors[index], &slices[i].tensor))
            return report_error(ERR_MISMATCH, NULL, "tensor '%.191s' is not the one of the plan",
                                slices[i].tensor.name);
        slice_of[index] = i;
    }
    return 0;
}

/* The piece `box` must be whole rows of the slice: then it is one contiguous run of it. */
static int locate_piece(uint64_t *out, const struct slice *slice, const struct shard_tensor *piece)
{
    uint32_t dims = slice->tensor.dims;
    uint64_t row_bytes = dtype_bytes(slice->tensor.dtype);
    uint64_t first_row = 0;
    bool fits = true;
    for (uint32_t d = 0; d < dims; d++) {
        uint64_t start = slice->box.offset[d], end = start + slice->box.extent[d];
        uint64_t from = piece->box.offset[d], to = from + piece->box.extent[d];
        fits = fits && (d == 0 ? start <= from && to <= end : start == from && to == end);
        if (d == 0)
            first_row = from - start;
        else
            row_bytes *= slice->box.extent[d];
    }
    if (!fits)
        return report_error(ERR_MISMATCH, NULL, "the slice of tensor '%s' is not the one planned",
                            slice->tensor.name);
    *out = first_row * row_bytes;
    return 0;
}

int layout_save_items(struct save_item **out, uint32_t *out_count, const struct layout_table *table,
                      uint32_t rank, const struct slice *slices, uint32_t count)
{
    struct shard_tensor *pieces = NULL;
    uint32_t num_pieces = 0;
    uint64_t bytes = 0;
    uint32_t *slice_of = alloc_array(table->num_tensors, sizeof(*slice_of));
    struct save_item *items = NULL;
    int error = slice_of ? match_slices(slice_of, table, slices, count) : fail_memory();
    if (!error)
        error = layout_shard_tensors(&pieces, &num_pieces, &bytes, table, rank);
    if (!error && !(items = alloc_array(num_pieces, sizeof(*items))))
        error = fail_memory();
    for (uint32_t i = 0; !error && i < num_pieces; i++) {
        uint32_t slice = slice_of[pieces[i].tensor];
        items[i] = (struct save_item){
            .slice = slice, .data_byte = pieces[i].data_byte, .bytes = pieces[i].bytes};
        error = slice == NONE ? report_error(ERR_MISMATCH, NULL,
                                             "rank %" PRIu32 " lacks its slice of tensor '%s'",
                                             rank, table->tensors[pieces[i].tensor].name)
                              : locate_piece(&items[i].slice_byte, &slices[slice], &pieces[i]);
    }
    free(slice_of);
    free(pieces);
    if (error) {
        free(items);
        return error;
    }
    *out = items;
    *out_count = num_pieces;
    return 0;
}
