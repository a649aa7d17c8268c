/* layout.c - boxes of tensors on a mesh (see layout.h). */
#include "trainer/plan/layout.h"

void layout_cut(uint64_t *out_first, uint64_t *out_rows, uint64_t rows, uint32_t parts,
                uint32_t part)
{
    uint64_t chunk = (rows + parts - 1) / parts;
    uint64_t first = part * chunk < rows ? part * chunk : rows;
    *out_first = first;
    *out_rows = rows - first < chunk ? rows - first : chunk;
}

/* The number of parts into which tp cuts a tensor; further tp ranks hold copies. */
static uint32_t tp_parts(const struct mesh *mesh, const struct model_tensor *tensor)
{
    uint32_t degree = mesh->degree[AXIS_TP];
    if (tensor->role == MODEL_WHOLE)
        return 1;
    return tensor->role == MODEL_KV_COLUMNS && tensor->heads < degree ? tensor->heads : degree;
}

uint32_t layout_tp_part(const struct mesh *mesh, const struct model_tensor *tensor, uint32_t place)
{
    return place / (mesh->degree[AXIS_TP] / tp_parts(mesh, tensor));
}

struct box layout_tp_box(const struct mesh *mesh, const struct model_tensor *tensor)
{
    struct box box = {.extent = {tensor->rows, tensor->width, 1, 1}};
    uint32_t parts = tp_parts(mesh, tensor), blocks = mesh->tp_blocks;
    if (tensor->role == MODEL_COLUMNS) /* only the vocabulary may not divide evenly */
        box.extent[0] = (tensor->rows + blocks - 1) / blocks * blocks;
    uint32_t part = layout_tp_part(mesh, tensor, mesh->place[AXIS_TP]);
    uint32_t dimension = tensor->role == MODEL_ROWS ? 1 : 0;
    box.extent[dimension] /= parts;
    box.offset[dimension] = part * box.extent[dimension];
    return box;
}

struct part layout_shard(const struct mesh *mesh, const struct box *tp, uint32_t shard)
{
    struct part part;
    layout_cut(&part.first, &part.rows, tp->extent[0], mesh->degree[AXIS_SHARD], shard);
    return part;
}

struct part layout_piece(const struct mesh *mesh, const struct box *tp, uint32_t shard,
                         uint32_t copy)
{
    struct part whole = layout_shard(mesh, tp, shard), piece;
    layout_cut(&piece.first, &piece.rows, whole.rows, mesh_group_size(mesh, GROUP_COPIES), copy);
    piece.first += whole.first;
    return piece;
}

bool layout_is_first(const struct mesh *mesh, const struct model_tensor *tensor)
{
    return mesh->place[AXIS_TP] % (mesh->degree[AXIS_TP] / tp_parts(mesh, tensor)) == 0;
}
