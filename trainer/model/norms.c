/* norms.c - norms of rows that are cut (products.c): forward, and the gradients of their weights,
 * which are sums over all blocks of rows. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/model/private.h"

int norm_forward(struct model *m, void *out, uint32_t *largest, float *rstd, void *x,
                 const void *residual, const void *weight, bool is_active)
{
    void *own = out;
    if (m->cut.tp > 1)
        own = model_take_bytes(m, "norm of own rows", 0, model_stream_bytes(m));
    if (is_active)
        kernel_rmsnorm(m->kernels, m->lane,
                       &(struct kernel_rmsnorm){.out = own,
                                                .rstd = rstd,
                                                .x = x,
                                                .residual = residual,
                                                .weight = weight,
                                                .largest = largest,
                                                .rows = m->own_rows,
                                                .dim = m->s.dim,
                                                .eps = (float)m->s.norm_eps,
                                                .dtype = m->dtype});
    if (is_active)
        ERR_TRY(rows_gather(m, out, own, m->s.dim * m->element));
    if (m->cut.tp > 1)
        model_give(m, "norm of own rows", 0);
    return 0;
}

/* The rows of tp block b within row block p. */
static void norm_part(struct model *m, const struct norm_gradient *a, float *dweight, size_t first,
                      uint32_t rows)
{
    size_t at = first * m->s.dim * m->element;
    kernel_rmsnorm_backward(m->kernels, m->lane,
                            &(struct kernel_rmsnorm_backward){.dx = at_byte(a->dx, at),
                                                              .dweight = dweight,
                                                              .dout = at_byte(a->dout, at),
                                                              .x = at_byte(a->x, at),
                                                              .rstd = a->rstd + first,
                                                              .weight = a->weight,
                                                              .rows = rows,
                                                              .dim = m->s.dim,
                                                              .dtype = m->dtype});
}

/* parts: [row_blocks][blocks][C]; all: [tp][row_blocks][C]. */
static int norm_parts(struct model *m, const struct norm_gradient *a, float *parts, float *all)
{
    uint32_t tp = m->cut.tp, rows = m->own_rows / (m->row_blocks * m->blocks);
    size_t c = m->s.dim, mine = m->row_blocks * c;
    size_t *bytes = m->lists, *at = m->lists + tp;
    for (uint32_t i = 0; i < m->row_blocks * m->blocks; i++)
        norm_part(m, a, parts + i * c, (size_t)i * rows, rows);
    for (uint32_t p = 0; p < m->row_blocks; p++) {
        tree_in_place(m, parts + p * m->blocks * c, m->blocks, c, c);
        if (m->blocks > 1)
            lane_copy(m->lane, parts + p * c, parts + p * m->blocks * c, c * sizeof(float));
    }
    model_set_lists(m, tp, mine * sizeof(float));
    if (tp > 1)
        ERR_TRY(comm_all_gather_v(m->cut.tp_group, parts, bytes[0], all, bytes, at));
    else
        lane_copy(m->lane, all, parts, bytes[0]);
    tree_in_place(m, all, tp, mine, mine);
    tree_in_place(m, all, m->row_blocks, c, c);
    lane_copy(m->lane, a->dweight, all, c * sizeof(float));
    return 0;
}

int norm_backward(struct model *m, const struct norm_gradient *a, bool is_active)
{
    size_t c = m->s.dim;
    int rc = 0;
    if (m->cut.tp_blocks * m->row_blocks == 1) {
        if (is_active)
            norm_part(m, a, a->dweight, 0, m->own_rows);
        return 0;
    }
    float *parts = model_take_bytes(m, "partial norm weights", 0,
                                    m->row_blocks * m->blocks * c * sizeof(float));
    float *all = model_take_bytes(m, "partial norm weights", 1,
                                  m->cut.tp * m->row_blocks * c * sizeof(float));
    if (is_active)
        rc = norm_parts(m, a, parts, all);
    model_give(m, "partial norm weights", 0);
    model_give(m, "partial norm weights", 1);
    return rc;
}
