/* plan.c - plans a save: makes a table of tensors and layouts from the slices of all ranks.
 *
 * The ranks of a big run describe millions of slices but only a handful of different cuts. So:
 *  1. One pass over all slices, rank by rank: names become numbers (by the same position in the
 *     previous rank's list, else by a hash table), and each tensor gets a hash over (rank, box) of
 *     its members.
 *  2. Tensors of equal hash and shape form a class. A second pass verifies that its members are
 *     equal box by box; a tensor that only shares the hash leaves the class.
 *  3. If replicas may differ, each tensor gets the replica that writes it: the loads of all its
 *     holders are compared, in another pass over all slices.
 *  4. The first tensor of each class, and replica, gets a layout (grid.c).
 *  5. Equal layouts are merged, by a hash table again.
 *
 * Cost: O(n) in the number of slices plus O(m log m) in those of the class heads, for any names and
 * cuts, because the plan seeds both hash tables. The plan itself does not depend on the seed. */
#include "proto/layout/private.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NONE UINT32_MAX

struct tensor_entry {
    const struct tensor_meta *meta; /* of the first rank that described it; borrowed */
    uint64_t hash;                  /* over (rank, box) of the members */
    uint32_t num_members;           /* nonempty slices */
    uint32_t last_rank;             /* that described it */
    uint32_t head;                  /* the entry that represents its class */
    uint32_t replica;               /* the writing one; LAYOUT_ALL */
    uint32_t first_member;          /* heads only: into members */
    uint32_t num_replicas;          /* heads only: of every box */
};

struct planner {
    const struct slice *const *slices;
    const uint32_t *counts;
    uint32_t num_ranks;
    uint32_t **tensor_of; /* entry of each slice, per rank, in one block */
    struct tensor_entry *entries;
    uint32_t num_entries, entries_capacity;
    uint32_t *buckets; /* open addressing: entry number or NONE; in step 5 layout number */
    uint32_t num_buckets;
    uint64_t seed;                 /* of both */
    struct layout_member *members; /* of the heads */
    uint32_t *layouts;             /* of replica k of a head: [first_member + k]; NONE: none yet */
    struct layout_table *table;
};

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
        return layout_fail_memory();
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
    planner->tensor_of = layout_alloc(planner->num_ranks, sizeof(*planner->tensor_of));
    uint32_t *block = layout_alloc(total, sizeof(*block));
    if (!planner->tensor_of || !block) {
        free(block);
        return layout_fail_memory();
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

static uint64_t tensor_bytes(const struct tensor_meta *meta)
{
    uint64_t bytes = dtype_bytes(meta->dtype);
    for (uint32_t d = 0; d < meta->dims; d++)
        bytes *= meta->shape[d];
    return bytes;
}

/* Every byte is in one shard: a limit for the sum of all is a limit for each shard. */
static int check_bytes(const struct planner *planner)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < planner->num_entries; i++) {
        sum += tensor_bytes(planner->entries[i].meta);
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
static void verify_classes(struct planner *planner, uint32_t rank, uint32_t *slice_at)
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
    uint32_t *order = layout_alloc(count, sizeof(*order));
    if (!order)
        return layout_fail_memory();
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof(*order), compare_classes, planner->entries);
    for (uint32_t i = 0; i < count; i++) {
        bool joins = i > 0 && compare_classes(&order[i - 1], &order[i], planner->entries) == 0;
        planner->entries[order[i]].head = joins ? planner->entries[order[i - 1]].head : order[i];
    }
    memset(order, 0xff, count * sizeof(*order));
    for (uint32_t rank = 0; rank < planner->num_ranks; rank++)
        verify_classes(planner, rank, order);
    free(order);
    return 0;
}

/* Collects the members of every class head in one array. A head without members has an entry,
 * too. */
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
        total += entry->num_members + (entry->num_members == 0);
        entry->num_members = 0;
    }
    planner->members = layout_alloc(total, sizeof(*planner->members));
    planner->layouts = layout_alloc(total, sizeof(*planner->layouts));
    if (!planner->members || !planner->layouts)
        return layout_fail_memory();
    memset(planner->layouts, 0xff, total * sizeof(*planner->layouts));
    for (uint32_t rank = 0; rank < planner->num_ranks; rank++) {
        for (uint32_t i = 0; i < planner->counts[rank]; i++) {
            uint32_t id = planner->tensor_of[rank][i];
            struct tensor_entry *entry = &planner->entries[id];
            const struct box *box = &planner->slices[rank][i].box;
            if (entry->head == id && box_elements(box, entry->meta->dims) > 0)
                planner->members[entry->first_member + entry->num_members++] =
                    (struct layout_member){.box = box, .rank = rank};
        }
    }
    for (uint32_t i = 0; i < planner->num_entries; i++) {
        struct tensor_entry *entry = &planner->entries[i];
        if (entry->head == i)
            entry->num_replicas = layout_sort_members(planner->members + entry->first_member,
                                                      entry->num_members, entry->meta->dims);
    }
    return 0;
}

/* ---- step 3: the replica that writes ---- */

static int compare_names(const void *a, const void *b, void *user)
{
    const struct tensor_entry *entries = user;
    return strcmp(entries[*(const uint32_t *)a].meta->name,
                  entries[*(const uint32_t *)b].meta->name);
}

/* A tensor, or all boxes of one (boxes.c): entries order[first .. first + count). */
struct family {
    uint64_t bytes;
    uint32_t first, count;
};

static bool is_same_family(const struct tensor_meta *a, const struct tensor_meta *b)
{
    size_t length = strcspn(a->name, "@");
    return strncmp(a->name, b->name, length) == 0 && a->name[length] == '@' &&
           b->name[length] == '@';
}

static int compare_families(const void *a, const void *b)
{
    const struct family *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static uint64_t member_bytes(const struct tensor_entry *entry, const struct layout_member *member)
{
    return box_elements(member->box, entry->meta->dims) * dtype_bytes(entry->meta->dtype);
}

/* Assigns the family to the replica whose busiest rank has the fewest bytes to write. load: bytes
 * assigned to each rank; busiest: scratch for as many. */
static void choose_replica(struct planner *planner, const uint32_t *order,
                           const struct family *family, uint64_t *load, uint64_t *busiest)
{
    uint32_t num_replicas = planner->num_ranks, best = 0;
    memset(busiest, 0, planner->num_ranks * sizeof(*busiest));
    for (uint32_t i = family->first; i < family->first + family->count; i++) {
        const struct tensor_entry *head = &planner->entries[planner->entries[order[i]].head];
        const struct layout_member *members = planner->members + head->first_member;
        if (head->num_members > 0 && head->num_replicas < num_replicas)
            num_replicas = head->num_replicas;
        for (uint32_t m = 0; m < head->num_members; m++) {
            uint64_t *most = &busiest[members[m].replica];
            *most = load[members[m].rank] > *most ? load[members[m].rank] : *most;
        }
    }
    for (uint32_t k = 1; k < num_replicas; k++)
        best = busiest[k] < busiest[best] ? k : best;
    for (uint32_t i = family->first; i < family->first + family->count; i++) {
        struct tensor_entry *entry = &planner->entries[order[i]];
        const struct tensor_entry *head = &planner->entries[entry->head];
        const struct layout_member *members = planner->members + head->first_member;
        entry->replica = head->num_members > 0 ? best : 0;
        for (uint32_t m = 0; m < head->num_members; m++)
            if (members[m].replica == best)
                load[members[m].rank] += member_bytes(entry, &members[m]);
    }
}

/* `order`: the entries by name. */
static int choose_replicas(struct planner *planner, const uint32_t *order)
{
    struct family *families = layout_alloc(planner->num_entries, sizeof(*families));
    uint64_t *load = layout_alloc(2 * (uint64_t)planner->num_ranks, sizeof(*load));
    uint32_t count = 0;
    for (uint32_t i = 0; families && i < planner->num_entries; i++) {
        const struct tensor_meta *meta = planner->entries[order[i]].meta;
        bool joins = i > 0 && is_same_family(planner->entries[order[i - 1]].meta, meta);
        if (!joins)
            families[count++] = (struct family){.first = i};
        families[count - 1].bytes += tensor_bytes(meta);
        families[count - 1].count++;
    }
    if (families && load) {
        qsort(families, count, sizeof(*families), compare_families);
        for (uint32_t i = 0; i < count; i++)
            choose_replica(planner, order, &families[i], load, load + planner->num_ranks);
    }
    int error = families && load ? 0 : layout_fail_memory();
    free(families);
    free(load);
    return error;
}

/* ---- step 5: equal layouts are merged ---- */

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

/* The number of a layout equal to the last one of the table, which is dropped; or the last
 * one's. */
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

/* The layout of an entry, made if its class has none yet. */
static int find_layout(uint32_t *out, struct planner *planner, const struct tensor_entry *entry)
{
    const struct tensor_entry *head = &planner->entries[entry->head];
    struct layout_table *table = planner->table;
    uint32_t *place =
        &planner->layouts[head->first_member + (entry->replica == LAYOUT_ALL ? 0 : entry->replica)];
    if (*place == NONE) {
        ERR_TRY(layout_of_class(&table->layouts[table->num_layouts++], head->meta,
                                planner->members + head->first_member, head->num_members,
                                entry->replica));
        *place = merge_layout(planner);
    }
    *out = *place;
    return 0;
}

/* Layouts are numbered in the order of the names that use them first, so the plan is
 * deterministic. */
static int build_table(struct planner *planner, enum layout_replicas replicas)
{
    uint32_t count = planner->num_entries;
    int error = 0;
    struct layout_table *table = planner->table = calloc(1, sizeof(*table));
    uint32_t *order = layout_alloc(count, sizeof(*order));
    if (table) {
        table->tensors = layout_alloc(count, sizeof(*table->tensors));
        table->layout_of = layout_alloc(count, sizeof(*table->layout_of));
        table->layouts = layout_alloc(count, sizeof(*table->layouts));
    }
    if (!order || !table || !table->tensors || !table->layout_of || !table->layouts) {
        error = layout_fail_memory();
        goto out;
    }
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
        planner->entries[i].replica = LAYOUT_ALL;
    }
    qsort_r(order, count, sizeof(*order), compare_names, planner->entries);
    if (replicas == LAYOUT_ONE_REPLICA)
        error = choose_replicas(planner, order);
    clear_buckets(planner);
    for (uint32_t i = 0; !error && i < count; i++) {
        const struct tensor_entry *entry = &planner->entries[order[i]];
        error = find_layout(&table->layout_of[i], planner, entry);
        struct tensor_meta *meta = &table->tensors[i];
        *meta = *entry->meta;
        for (uint32_t d = meta->dims; d < LAYOUT_DIMS_MAX; d++)
            meta->shape[d] = 1;
        table->num_tensors++;
    }
out:
    free(order);
    return error;
}

int layout_plan_save(struct layout_table **out, const struct slice *const *slices,
                     const uint32_t *counts, uint32_t num_ranks, enum layout_replicas replicas)
{
    struct planner planner = {.slices = slices, .counts = counts, .num_ranks = num_ranks};
    CHECK(num_ranks > 0 && num_ranks < NONE);
    if (getrandom(&planner.seed, sizeof(planner.seed), 0) != sizeof(planner.seed))
        planner.seed = (uintptr_t)slices; /* then hostile names may cost time, but nothing else */
    int error = number_tensors(&planner);
    if (!error)
        error = check_bytes(&planner);
    if (!error)
        error = build_classes(&planner);
    if (!error)
        error = collect_members(&planner);
    if (!error)
        error = build_table(&planner, replicas);
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
    free(planner.layouts);
    return error;
}

/* ---- the copies of one rank ---- */

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
    uint32_t *slice_of = layout_alloc(table->num_tensors, sizeof(*slice_of));
    struct save_item *items = NULL;
    int error = slice_of ? match_slices(slice_of, table, slices, count) : layout_fail_memory();
    if (!error)
        error = layout_shard_tensors(&pieces, &num_pieces, &bytes, table, rank);
    if (!error && !(items = layout_alloc(num_pieces, sizeof(*items))))
        error = layout_fail_memory();
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
