/* hf.h - a Llama as Hugging Face keeps it: names of tensors, order of rows, config.json.
 *
 * Our tensors have torchtitan's names, and rotary embedding turns the pairs (2i, 2i + 1) of a
 * head's rows. Hugging Face turns (i, i + D/2): its rows of wq and wk are ours in another order,
 * first the even ones of a head, then the odd ones. Everything else is the same bits. */
#ifndef HOLDFAST_CLIENTS_HF_H
#define HOLDFAST_CLIENTS_HF_H

#include <stdint.h>

/* Row of the Hugging Face tensor that holds our row `row` of wq or wk; a head has `head_rows`. */
static inline uint64_t heads_to_halves(uint64_t row, uint32_t head_rows)
{
    uint64_t inside = row % head_rows;
    return row - inside + inside % 2 * (head_rows / 2) + inside / 2;
}

#endif
