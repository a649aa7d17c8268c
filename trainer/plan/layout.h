/* layout.h - which part of every tensor a rank holds: boxes.
 *
 * Axes that cut the same dimension cut in the order tp, shard, then copies (replicate x cp), which
 * own pieces while gradients are summed. Tensor parallel cuts dimension 0 of the column products
 * and of the vocabulary, dimension 1 of the row products, and leaves norms whole. The cut of tp is
 * even: a vocabulary that the run's blocks do not divide is padded with rows of zeros. Padding has
 * room in buffers and no place in the state: it is never trained, saved or loaded. If there are
 * fewer key and value heads than tp ranks, several ranks hold each. The other axes cut rows:
 * ceil(rows / parts) each, the last ones shorter or empty, as FSDP2 does. */
#ifndef HOLDFAST_TRAINER_PLAN_LAYOUT_H
#define HOLDFAST_TRAINER_PLAN_LAYOUT_H

#include "proto/layout/layout.h"
#include "trainer/model/model.h"
#include "trainer/plan/mesh.h"

/* Rows [*out_first, *out_first + *out_rows) of `rows` that part `part` of `parts` holds. */
void layout_cut(uint64_t *out_first, uint64_t *out_rows, uint64_t rows, uint32_t parts,
                uint32_t part);

/* The part of a tensor that the tp place `place` holds. Places with the same part hold copies. */
uint32_t layout_tp_part(const struct mesh *mesh, const struct model_tensor *tensor, uint32_t place);
/* The box that one tp place computes with, padding included. */
struct box layout_tp_box(const struct mesh *mesh, const struct model_tensor *tensor);
/* Rows of that box, counted within it: those that shard `shard` holds, and those of them that
 * `copy` of its copies owns. */
struct part {
    uint64_t first, rows;
};
struct part layout_shard(const struct mesh *mesh, const struct box *tp, uint32_t shard);
struct part layout_piece(const struct mesh *mesh, const struct box *tp, uint32_t shard,
                         uint32_t copy);
/* Where several tp places hold the same box, the first one handles the tensor: is it this place? */
bool layout_is_first(const struct mesh *mesh, const struct model_tensor *tensor);

#endif
