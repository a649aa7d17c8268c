/* layout.h - the slice algebra: the part of a tensor that each rank holds and writes, and the bytes
 * that a reader needs. Pure functions over small structs; no I/O.
 *
 * A slice is a hyper-rectangle of a global tensor: offset and extent per dimension. A layout cuts a
 * tensor into a grid: cut points per dimension, and for every cell (row-major) the shard that owns
 * it. A shard owns at most one cell of a tensor. Tensors with the same cuts and owners share a
 * layout.
 *
 * Saving: the ranks describe their slices. Equal slices are replicas; the distinct ones must tile
 * the tensor as a grid. If replicas are known to be equal, each slice is cut along dimension 0
 * among them, so they share the work. Otherwise one replica writes a tensor, and the work is split
 * tensor by tensor. Loading: a wanted slice is intersected with the saved grid by binary search in
 * the cuts.
 *
 * Errors: ERR_MISMATCH when slices overlap, leave a hole or disagree on shape or dtype: the message
 * names the tensor. ERR_INVALID: an invalid tensor or slice, or one over a limit. ERR_BUSY: the
 * distinct ones alone are 2^32 slices. ERR_MEMORY. Results are owned by the caller and freed by the
 * *_free functions. */
#ifndef HOLDFAST_PROTO_LAYOUT_LAYOUT_H
#define HOLDFAST_PROTO_LAYOUT_LAYOUT_H

#include "proto/base/checksum.h"

#include <stdbool.h>
#include <stdint.h>

#define LAYOUT_DIMS_MAX 8
#define LAYOUT_NAME_MAX 192
#define LAYOUT_TENSOR_BYTES_MAX (1ull << 56) /* of one global tensor */
#define LAYOUT_BYTES_MAX (1ull << 62) /* of all saved tensors: keeps all sums within 64 bits */

enum dtype {
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_I32,
    DTYPE_F32,
    DTYPE_I64,
    DTYPE_F64,
    DTYPE_BOOL,
    DTYPE_F8_E4M3, /* OCP's 8-bit float without infinities */
    DTYPE_F8_E5M2,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64
};
uint32_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype);           /* safetensors names: "F32" */
int dtype_parse(enum dtype *out, const char *name); /* ERR_INVALID */

struct box {
    uint64_t offset[LAYOUT_DIMS_MAX];
    uint64_t extent[LAYOUT_DIMS_MAX];
};

struct tensor_meta {
    char name[LAYOUT_NAME_MAX];
    enum dtype dtype;
    uint32_t dims;
    uint64_t shape[LAYOUT_DIMS_MAX]; /* global; unused dimensions are 1 */
};

/* Tensors with such names are bytes objects (clients/objects.c). */
#define LAYOUT_OBJECT_PREFIX "object:"
#define LAYOUT_OBJECT_LENGTH_BYTES 8u /* before an object's bytes */
/* Followed by a file's name: an object of a run that was imported from a Hugging Face folder with
 * that file. */
#define LAYOUT_HF_OBJECT "hf/"

struct slice {
    struct tensor_meta tensor;
    struct box box; /* unused dimensions: offset 0, extent 1; any extent 0 means empty */
};

/* Required by every reader and planner: a name of 1 to 191 printable ASCII characters without
 * space, quote and backslash that does not begin with "__", at most LAYOUT_DIMS_MAX dimensions, at
 * most LAYOUT_TENSOR_BYTES_MAX. A box must be within the shape. ERR_INVALID names the tensor. */
int tensor_meta_check(const struct tensor_meta *tensor);
int slice_check(const struct slice *slice);

uint64_t box_elements(const struct box *box, uint32_t dims);
uint64_t slice_bytes(const struct slice *slice);
bool box_intersect(struct box *out, const struct box *a, const struct box *b, uint32_t dims);
bool box_equal(const struct box *a, const struct box *b, uint32_t dims);

/* Copies the box `part` (global coordinates) between two row-major arrays that hold the boxes
 * `from` and `to`. `element_bytes`: bytes per element. */
void box_copy(void *to_data, const struct box *to, const void *from_data, const struct box *from,
              const struct box *part, uint32_t dims, uint32_t element_bytes);

/* box_copy by a function that is called for one run of consecutive bytes after the other. */
struct box_mover {
    void (*move)(void *user, void *to, const void *from, uint64_t bytes);
    void *user;
};
void box_copy_by(const struct box_mover *mover, void *to_data, const struct box *to,
                 const void *from_data, const struct box *from, const struct box *part,
                 uint32_t dims, uint32_t element_bytes);

/* The bytes of each of its runs. */
uint64_t box_run_bytes(const struct box *to, const struct box *from, const struct box *part,
                       uint32_t dims, uint32_t element_bytes);

/* The bytes [*out_first, *out_end) of the row-major array of `box` from the first to the last
 * element of `part`, which is not empty and inside. Other elements may be between them. */
void box_span(uint64_t *out_first, uint64_t *out_end, const struct box *box, const struct box *part,
              uint32_t dims, uint32_t element_bytes);

/* Divides elements [first, first + count) of a box, in its own row-major order, into runs that are
 * also consecutive in the row-major order of the whole tensor. `run` gets the index of a run's
 * first element there, the number of elements, and how many came before. */
void box_runs(const struct box *box, const struct tensor_meta *tensor, uint64_t first,
              uint64_t count,
              void (*run)(void *user, uint64_t global, uint64_t count, uint64_t element),
              void *user);
/* Adds these elements, which are contiguous at `data`, to the digest of their tensor. */
void box_digest(struct digest *digest, const struct box *box, const struct tensor_meta *tensor,
                uint64_t first, uint64_t count, const void *data);

struct layout {
    uint32_t dims;
    uint32_t num_cuts[LAYOUT_DIMS_MAX]; /* cells + 1 in that dimension */
    uint64_t *cuts[LAYOUT_DIMS_MAX];    /* strictly ascending, first 0, last shape[d] */
    uint32_t *owners;                   /* shard per cell, row-major over the grid */
};

/* The saved form of a whole checkpoint: its tensors sorted by name, and its distinct layouts. */
struct layout_table {
    uint32_t num_tensors;
    struct tensor_meta *tensors;
    uint32_t *layout_of; /* index into layouts, per tensor */
    uint32_t num_layouts;
    struct layout *layouts;
    struct layout_index *index; /* owned; NULL: each use makes a temporary one (layout.c) */
};
void layout_table_free(struct layout_table *table);
/* Checks every invariant above, for `shards` shards: sorted names, cuts that end at the shapes,
 * owners in range, at most one cell per shard, no unused layout. ERR_CORRUPT names the tensor or
 * the layout; ERR_MEMORY. Writers and readers both call it. */
int layout_table_check(const struct layout_table *table, uint32_t shards);
/* Makes the index from shards to their cells, once, after the check; the table must not change
 * afterwards. Planners and readers of a table call it; without it the functions below give the same
 * results, each in the time of a pass over the whole table. ERR_MEMORY. */
int layout_table_index(struct layout_table *table);
/* Bytes of tensor data of every shard: out[0..shards). The table must have passed the check.
 * ERR_CORRUPT when a sum exceeds LAYOUT_BYTES_MAX. */
int layout_shard_bytes(uint64_t *out, const struct layout_table *table, uint32_t shards);
uint64_t layout_cells(const struct layout *layout);
/* The last index i with cuts[i] <= value: the cell that contains it. */
uint32_t layout_find_cut(const uint64_t *cuts, uint32_t num_cuts, uint64_t value);
/* The box of cell `cell` (row-major over the grid). */
void layout_cell_box(struct box *out, const struct layout *layout, uint64_t cell);
/* Index of a tensor by name, or -1. */
int64_t layout_find(const struct layout_table *table, const char *name);

/* One tensor's slice in one shard, in file order (descending element size, then name). */
struct shard_tensor {
    uint32_t tensor; /* index into the table */
    struct box box;
    uint64_t data_byte; /* offset from the start of the shard's tensor data */
    uint64_t bytes;
};
/* All tensors of shard `shard`, placed back to back, without those that have no elements. */
int layout_shard_tensors(struct shard_tensor **out, uint32_t *out_count, uint64_t *out_bytes,
                         const struct layout_table *table, uint32_t shard);

/* The first tensor of a shard that ends after a byte of its tensor data. */
uint32_t layout_tensor_at(const struct shard_tensor *tensors, uint32_t count, uint64_t data_byte);

/* Call it before a save is planned. If a rank describes a tensor more than once, with different
 * boxes, each box of it on all ranks becomes a separate tensor "NAME@OFFSETS" (boxes.c). *out: the
 * slices of each rank with these names, for the two calls below; NULL: no rank does that. Free with
 * layout_split_free. ERR_MISMATCH: the boxes overlap or leave a hole. */
int layout_split(struct slice ***out, const struct slice *const *slices, const uint32_t *counts,
                 uint32_t num_ranks);
void layout_split_free(struct slice **split);

/* Joins boxes of one tensor in a list sorted by name, like a table's, if they are all of it.
 * Returns the new count; first[i]: index of the first given tensor of the i-th remaining one, with
 * one more entry for the end. */
uint32_t layout_join(struct tensor_meta *tensors, uint32_t *first, uint32_t count);
/* The place of a box in the tensor that it was joined into. */
void layout_joined_box(struct box *out, const struct tensor_meta *part);
/* Do `count` of them tile `whole`? The join checks only their sizes. ERR_CORRUPT: they overlap;
 * ERR_MEMORY. */
int layout_check_joined(const struct tensor_meta *whole, const struct tensor_meta *parts,
                        uint32_t count);

/* Which replicas of a tensor write it. */
enum layout_replicas {
    /* Replicas may differ: one writes each tensor. The holders of a cell count as replicas in the
     * order of their ranks, so on a mesh replica k is at the same place for every cell. All boxes
     * of a tensor (layout_split) come from the same one. Larger tensors choose first; each takes
     * the replica whose busiest rank has the fewest bytes to write. */
    LAYOUT_ONE_REPLICA,
    /* Replicas are verified to be equal. A band of the grid along dimension 0 is cut into as many
     * pieces as it has rows, at most as many as every cell has replicas; the lowest ranks write one
     * each. */
    LAYOUT_EQUAL_REPLICAS
};
/* Plans a save from the slices of every rank (rank r holds slices[r][0..counts[r])); rank r writes
 * shard r. A tensor may appear once per rank. ERR_INVALID, too, when all tensors together exceed
 * LAYOUT_BYTES_MAX. */
int layout_plan_save(struct layout_table **out, const struct slice *const *slices,
                     const uint32_t *counts, uint32_t num_ranks, enum layout_replicas replicas);

/* The contiguous part of a rank's own slice that this rank writes. */
struct save_item {
    uint32_t slice;      /* index into the rank's slices */
    uint64_t slice_byte; /* from the start of the slice's own row-major bytes */
    uint64_t data_byte;  /* from the start of the shard's tensor data */
    uint64_t bytes;
};
int layout_save_items(struct save_item **out, uint32_t *out_count, const struct layout_table *table,
                      uint32_t rank, const struct slice *slices, uint32_t count);

/* A copy of a reader: the box `part` of the saved box `saved`, whose data begin at data_byte (from
 * the start of the tensor data) of shard `shard`. Sorted by shard, then data_byte. */
struct load_item {
    uint32_t slice;
    uint32_t shard;
    uint64_t data_byte;
    struct box saved;
    struct box part;
};
struct load_wish {
    const struct slice *slices; /* may repeat a part of a tensor */
    uint32_t num_slices;
    uint32_t items_max; /* of its plan */
};
/* Plans a load, also of a tensor that is stored as boxes (layout_split). ERR_NOT_FOUND when the
 * checkpoint lacks a tensor, ERR_MISMATCH when shape or dtype differ, ERR_INVALID when the plan has
 * more than items_max, before their memory is allocated. */
int layout_plan_load(struct load_item **out, uint32_t *out_count, const struct layout_table *table,
                     const struct load_wish *wish);
/* The same for tensors that the table has under these names: load.c. */
int layout_plan_cells(struct load_item **out, uint32_t *out_count, const struct layout_table *table,
                      const struct load_wish *wish);

#endif
