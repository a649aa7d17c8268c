/* parallel_bed.h - what the tests of many ranks share: a text, a run on a mesh, its outcome.
 *
 * Ranks are threads; each mesh trains the tiny model for a few steps on a text made by a seeded
 * generator, the shards are put together to whole tensors and compared byte by byte.
 *
 * HOLDFAST_TEST_KERNELS=reference takes the plain C kernels (thread sanitizer). */
#ifndef HOLDFAST_TESTS_PARALLEL_BED_H
#define HOLDFAST_TESTS_PARALLEL_BED_H

#include "proto/base/report.h"
#include "tests/unit/trainer_bed.h"
#include "trainer/base/memory_plan.h"
#include "trainer/corpus/corpus.h"
#include "trainer/data/ahead.h"
#include "trainer/data/data.h"
#include "trainer/data/tokens_file.h"
#include "trainer/model/shape.h"
#include "trainer/parallel/parallel.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/schedule.h"
#include "trainer/save/replicas.h"
#include "trainer/tokenizer/tokenizer.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define VOCAB 300
#define STEPS_MAX 6
#define PARTS 3 /* param, exp_avg, exp_avg_sq */

extern char folder[64], tokens_path[96], marked_path[96], masked_path[96];

/* ---- a text, and a configuration ---- */

int make_tokens(void **state);
int remove_tokens(void **state);

/* Later ones win. */
int try_configure(struct config *out, const char *const *extra, int num_extra);
struct config configure(const char *const *extra, int num_extra);

/* ---- a run ---- */

/* Everything that must not depend on the mesh. */
struct outcome {
    uint32_t num_tensors;
    float *whole[PARTS][32];
    double loss[STEPS_MAX + 1], grad_norm[STEPS_MAX + 1]; /* by step, from 1 */
};

int open_ahead(struct ahead **out, const struct config *config, struct data *data,
               const struct mesh *mesh);

/* One stretch of training on one mesh. */
struct stretch {
    struct config config;
    int64_t first_step, last_step; /* steps first + 1 .. last are made */
    struct outcome *outcome;       /* state is taken from it when first_step > 0 */
    bool stop_on_rank_1;
    unsigned (*look)(void *user); /* as in struct step_input */
    unsigned seen[8];             /* by the first ranks, in the last step */
    struct device *device;        /* NULL: the CPU */
    int64_t stopped_after;
};

size_t count_of(const struct model_tensor *tensor);

/* Of the step that follows `step` steps. */
uint64_t first_sample(const struct config *config, int64_t step);

/* Of a test that decides otherwise. */
extern int (*bed_decide)(struct parallel *p, const struct step_result *result);

/* Of a test that counts: is called when a block's update begins and when it is posted. */
extern void (*bed_at_update)(bool is_posted);
int rank_main(struct comm *world, void *user);
struct outcome *new_outcome(void);
void free_outcome(struct outcome *outcome);

/* Of the runs that follow; NULL: the CPU. All their ranks share it. */
extern struct device *bed_device;

struct place {
    int replicas, shards, threads;
    int pp, cp, tp; /* 0: 1 */
};

int degree(int number);
void run_on(struct outcome *outcome, struct place place, int64_t first, int64_t last,
            const char *const *extra, int num_extra);
void want_same(const struct outcome *a, const struct outcome *b, struct place place);

#define NUM_PLACES 10u
extern const struct place places[NUM_PLACES], alone;

/* The plain kernels are slow, and under the thread sanitizer fifty times slower: fewer meshes. */
size_t place_stride(void);
void want_same_everywhere(const char *const *extra, int num_extra);
void want_near(const struct outcome *a, const struct outcome *b);

#endif
