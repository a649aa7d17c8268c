/* trainer_bed.h - shared by the tests of trainer/: the kernels and the lane that they run on. */
#ifndef HOLDFAST_TESTS_TRAINER_BED_H
#define HOLDFAST_TESTS_TRAINER_BED_H

#include "tests/unit/lane_bed.h"
#include "trainer/model/model.h"
#include "trainer/run/optimizer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* HOLDFAST_TEST_KERNELS=reference: the thread sanitizer does not see into the library. */
static inline bool wants_plain_kernels(void)
{
    const char *wanted = getenv("HOLDFAST_TEST_KERNELS");
    return wanted != NULL && strcmp(wanted, "reference") == 0;
}

static inline int new_kernels(struct kernels **out, uint32_t num_threads)
{
    struct kernels_options options = {.num_threads = num_threads};
    if (wants_plain_kernels())
        options.backend = KERNEL_BACKEND_REFERENCE;
    return kernels_new(out, &options);
}

static inline int new_table(struct model_table **out, const char *flavor, uint32_t vocab)
{
    struct model_shape shape;
    int rc = model_shape_of_flavor(&shape, flavor, vocab);
    return rc != 0 ? rc : model_table_new(out, &shape);
}

#endif
