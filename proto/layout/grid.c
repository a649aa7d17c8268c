/* grid.c - the layout of one class of equally cut tensors, for plan.c.
 *
 * The boxes of its first tensor are sorted; equal ones are replicas. The distinct ones must be
 * exactly the cells of the grid that their own edges span; this proves that there is no hole and no
 * overlap. Then one replica gets all cells, or each band of them along dimension 0 is cut among all
 * replicas. */
#include "proto/layout/private.h"

#include "proto/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the grid ---- */

/* One distinct box: members[first .. first + replicas) hold it. */
struct group {
    uint32_t first, replicas;
};

struct grid {
    const struct tensor_meta *meta;
    const struct layout_member *members; /* sorted by box, then rank */
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
    const struct layout_member *x = a, *y = b;
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

uint32_t layout_sort_members(struct layout_member *members, uint32_t count, uint32_t dims)
{
    uint32_t least = count;
    qsort_r(members, count, sizeof(*members), compare_members, &dims);
    for (uint32_t i = 0; i < count; i++) {
        bool is_same = i > 0 && box_equal(members[i - 1].box, members[i].box, dims);
        members[i].replica = is_same ? members[i - 1].replica + 1 : 0;
        if (i > 0 && !is_same && members[i - 1].replica + 1 < least)
            least = members[i - 1].replica + 1;
    }
    return count > 0 && members[count - 1].replica + 1 < least ? members[count - 1].replica + 1
                                                               : least;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int find_groups(struct grid *grid)
{
    grid->groups = layout_alloc(grid->num_members, sizeof(*grid->groups));
    if (!grid->groups)
        return layout_fail_memory();
    for (uint32_t i = 0; i < grid->num_members; i++) {
        if (grid->members[i].replica == 0)
            grid->groups[grid->num_groups++] = (struct group){.first = i};
        grid->groups[grid->num_groups - 1].replicas++;
    }
    return 0;
}

/* Finds the edges of all boxes and of the tensor itself, sorted, each once. */
static int find_cuts(struct grid *grid)
{
    for (uint32_t d = 0; d < grid->meta->dims; d++) {
        uint64_t *cuts = layout_alloc(2 * (uint64_t)grid->num_groups + 2, sizeof(*cuts));
        if (!cuts)
            return layout_fail_memory();
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

/* Reports a box that spans several cells: the volumes distinguish an overlap from a hole. */
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

/* The groups are in row-major order, so box number i must be cell number i. */
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

/* ---- the layout ---- */

/* The number of pieces of band `band` (cells_per_band groups): its rows, at most as many as each
 * cell has replicas. */
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

static void refine_rows(struct layout *out, const struct grid *grid, uint64_t cells_per_band,
                        uint32_t replica)
{
    bool is_split = replica == LAYOUT_ALL;
    uint64_t cell = 0;
    uint32_t num_cuts = 0;
    for (uint64_t band = 0; band + 1 < grid->num_cuts[0]; band++) {
        uint64_t start = grid->cuts[0][band];
        uint64_t rows = grid->cuts[0][band + 1] - start;
        uint64_t pieces = is_split ? count_pieces(grid, band, cells_per_band) : 1;
        for (uint64_t piece = 0; piece < pieces; piece++) {
            out->cuts[0][num_cuts++] = start + (uint64_t)((unsigned __int128)rows * piece / pieces);
            for (uint64_t c = 0; c < cells_per_band; c++) {
                const struct group *group = &grid->groups[band * cells_per_band + c];
                uint64_t writer = is_split ? piece : replica;
                out->owners[cell++] = grid->members[group->first + writer].rank;
            }
        }
    }
    out->cuts[0][num_cuts++] = grid->meta->shape[0];
    out->num_cuts[0] = num_cuts;
}

/* A tensor without elements has no cell. */
static void make_empty_layout(struct layout *out, const struct tensor_meta *meta)
{
    for (uint32_t d = 0; d < meta->dims; d++) {
        out->cuts[d][0] = 0;
        out->cuts[d][1] = meta->shape[d];
        out->num_cuts[d] = meta->shape[d] ? 2 : 1;
    }
}

static int make_layout(struct layout *out, const struct grid *grid, bool is_empty, uint32_t replica)
{
    uint32_t dims = grid->meta->dims;
    out->dims = dims;
    out->owners = layout_alloc(grid->num_members, sizeof(*out->owners));
    if (!out->owners)
        return layout_fail_memory();
    uint64_t cells_per_band = 1;
    for (uint32_t d = 0; d < dims; d++) {
        uint64_t room = d == 0 ? (uint64_t)grid->num_members + 2 : grid->num_cuts[d];
        out->cuts[d] = layout_alloc(room > 2 ? room : 2, sizeof(uint64_t));
        if (!out->cuts[d])
            return layout_fail_memory();
        if (d == 0 || is_empty)
            continue;
        memcpy(out->cuts[d], grid->cuts[d], grid->num_cuts[d] * sizeof(uint64_t));
        out->num_cuts[d] = grid->num_cuts[d];
        cells_per_band *= grid->num_cuts[d] - 1;
    }
    if (is_empty)
        make_empty_layout(out, grid->meta);
    else if (dims == 0)
        out->owners[0] = grid->members[replica == LAYOUT_ALL ? 0 : replica].rank;
    else
        refine_rows(out, grid, cells_per_band, replica);
    return 0;
}

int layout_of_class(struct layout *out, const struct tensor_meta *meta,
                    const struct layout_member *members, uint32_t num_members, uint32_t replica)
{
    struct grid grid = {.meta = meta, .members = members, .num_members = num_members};
    bool is_empty = false;
    for (uint32_t d = 0; d < meta->dims; d++)
        is_empty = is_empty || meta->shape[d] == 0;
    int error = find_groups(&grid);
    if (!error)
        error = find_cuts(&grid);
    if (!error && !is_empty)
        error = check_grid(&grid);
    if (!error)
        error = make_layout(out, &grid, is_empty, replica);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        free(grid.cuts[d]);
    free(grid.groups);
    return error;
}
