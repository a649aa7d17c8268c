/* stages.h - which blocks each stage of a pipeline has. Pure.
 *
 * Blocks are the embedding, the layers, and norm with output. A stage has one or more consecutive
 * blocks. The cut changes neither results nor the contents of checkpoints: a run may resume with
 * another cut. */
#ifndef HOLDFAST_TRAINER_PLAN_STAGES_H
#define HOLDFAST_TRAINER_PLAN_STAGES_H

#include "trainer/model/model.h"

#include <stdint.h>

struct stages_options {
    const struct model_table *table;
    uint32_t num_stages;
    /* By layers: equal parts; if they do not divide, the first parts are one layer longer; the
     * embedding counts for first_less layers, the output for last_less. */
    int64_t first_less, last_less;
    /* By cost: minimises the most operations that a stage has for a sequence of `seq` tokens
     * (products and causal attention). Of equal cuts the one whose first stages are the longest. */
    bool by_cost;
    uint32_t seq;
    /* By names: the modules of each stage, or "" (torchtitan's module_fqns_per_model_part):
     * "tok_embeddings,layers.0;layers.1,norm,output". */
    const char *names;
    /* By names: the modules with which the second and further stages begin, or "" (torchtitan's
     * older pipeline_parallel_split_points): "layers.2,layers.4". */
    const char *split_points;
};

/* The number of stages that the names ask for; 0: no names are given. */
uint32_t stages_named(const char *names, const char *split_points);
/* first_block: [num_stages + 1] the first block of each stage, and the end. ERR_INVALID: the error
 * text has the product, or the name. */
int stages_cut(uint32_t *first_block, const struct stages_options *options);
/* Operations of a block's forward for one sequence (kernels/dry.c has the formulas). */
double stages_cost(const struct model_table *table, uint32_t block, uint32_t seq);

#endif
