/* float8.c - chooses the products that read float8 operands, and makes the copies that they read.
 *
 * A copy is made before the product that reads it. Each side of a product has one buffer, which the
 * layer holds while it computes. The scale follows from the largest |x|, which norms and SwiGLU
 * note when they write. Weights may arrive as codes that ranks made of their shards
 * (exchange/codes.c): the copy is the same, and nothing is rounded here. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/model/private.h"

#include <string.h>

#define FLOAT8_MULTIPLE 16u /* of dimensions: required by a GPU's float8 products */

/* Copies the first part of the list to `out` ("" if it is empty or too long) and returns the
 * rest. */
static const char *next_part(char out[MODEL_PART_BYTES], const char *list)
{
    size_t length = strcspn(list, ",");
    size_t kept = length < MODEL_PART_BYTES ? length : 0;
    memcpy(out, list, kept);
    out[kept] = '\0';
    return list + length + (list[length] == ',');
}

bool model_is_named(const char *name, const char *list)
{
    char part[MODEL_PART_BYTES];
    while (*list != '\0') {
        list = next_part(part, list);
        if (part[0] != '\0' && strstr(name, part) != NULL)
            return true;
    }
    return false;
}

bool model_names_nothing(char out[MODEL_PART_BYTES], const struct model_table *table,
                         const char *list)
{
    while (*list != '\0') {
        uint32_t i = 0;
        list = next_part(out, list);
        while (i < table->num_tensors && strstr(table->tensors[i].name, out) == NULL)
            i++;
        if (i == table->num_tensors)
            return true;
    }
    return false;
}

uint8_t model_float8_of(const struct model_table *table, uint32_t layer, const char *others)
{
    uint32_t first;
    uint8_t out = 0;
    model_block_tensors(table, layer + 1, &first);
    for (uint32_t i = WQ; i <= W3; i++) {
        const struct model_tensor *tensor = &table->tensors[first + i];
        bool fits = tensor->rows % FLOAT8_MULTIPLE == 0 && tensor->width % FLOAT8_MULTIPLE == 0;
        if (fits && !model_is_named(tensor->name, others))
            out |= (uint8_t)(1u << i);
    }
    return out;
}

uint32_t model_code_parts(const struct model_table *table, const struct model_cut *cut,
                          uint32_t tensor, const char *not_float8)
{
    const struct model_tensor *t = &table->tensors[tensor];
    uint32_t first, blocks = cut->tp_blocks / cut->tp;
    uint32_t heads = t->heads > cut->tp ? t->heads / cut->tp : 1;
    if (t->block == 0 || t->block > table->shape.layers)
        return 0;
    model_block_tensors(table, t->block, &first);
    if ((model_float8_of(table, t->block - 1, not_float8) >> (tensor - first) & 1) == 0)
        return 0;
    return t->role == MODEL_KV_COLUMNS && heads < blocks ? heads : blocks;
}

size_t model_operand_bytes(const struct model *m, uint32_t width)
{
    return (kernel_float8_bytes(m->block_rows, width, m->dtype) + 63) / 64 * 64;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The largest operands of a layer's products: rows and a block of a weight, and all blocks of the
 * gradients. */
static void operand_bytes(const struct model *m, size_t out[NUM_OPERANDS])
{
    uint32_t q = m->q_width / m->blocks, hidden = m->hidden / m->blocks;
    uint32_t kv = m->kv_width / m->kv_blocks, d_kv = m->d_kv_width / m->blocks;
    size_t blocks = (size_t)m->blocks * m->row_blocks;
    out[OPERAND_X] = model_operand_bytes(m, larger(larger(q, hidden), m->s.dim));
    out[OPERAND_W] = kernel_float8_bytes(m->s.dim, larger(larger(q, hidden), kv), m->dtype);
    out[OPERAND_D_ROWS] = m->row_blocks * model_operand_bytes(m, m->s.dim);
    out[OPERAND_D_FIRST] = blocks * model_operand_bytes(m, larger(q, hidden));
    out[OPERAND_D_SECOND] = blocks * model_operand_bytes(m, larger(d_kv, hidden));
    out[OPERAND_D_THIRD] = blocks * model_operand_bytes(m, d_kv);
}

static uint32_t num_operands(const struct model *m, uint32_t layer, bool is_backward)
{
    if (m->float8 == NULL || m->float8[layer] == 0)
        return 0;
    return is_backward ? NUM_OPERANDS : OPERAND_D_ROWS;
}

void model_take_operands(struct model *m, uint32_t layer, bool is_backward)
{
    size_t bytes[NUM_OPERANDS];
    operand_bytes(m, bytes);
    for (uint32_t i = 0; i < num_operands(m, layer, is_backward); i++)
        m->operands[i] = model_take_bytes(m, "float8 operand", i, bytes[i]);
}

void model_give_operands(struct model *m, uint32_t layer, bool is_backward)
{
    for (uint32_t i = 0; i < num_operands(m, layer, is_backward); i++)
        model_give(m, "float8 operand", i);
}

/* ---- noted largest values ---- */

static size_t noted_of_slot(const struct model *m)
{
    return (size_t)m->s.layers * NUM_NOTED;
}

int model_take_noted(struct model *m)
{
    void *noted = NULL;
    if (m->float8 == NULL || m->cut.tp_blocks > 1 || m->cut.cp_blocks > 1)
        return 0;
    ERR_TRY(device_alloc(m->lane->device, &noted,
                         m->num_slots * noted_of_slot(m) * sizeof(*m->noted), ON_DEVICE));
    m->noted = noted;
    return 0;
}

void model_clear_noted(struct model *m, uint32_t slot)
{
    if (m->noted != NULL)
        lane_zero(m->lane, m->noted + slot * noted_of_slot(m),
                  noted_of_slot(m) * sizeof(*m->noted));
}

uint32_t *model_noted(const struct model *m, uint32_t slot, uint32_t layer, enum noted which)
{
    if (m->noted == NULL || m->float8[layer] == 0)
        return NULL;
    return m->noted + slot * noted_of_slot(m) + layer * NUM_NOTED + which;
}
