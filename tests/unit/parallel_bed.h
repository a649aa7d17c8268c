/* parallel_bed.h - shared by the tests of many ranks: a text, a run on a mesh, its outcome.
 * Ranks are threads. Each mesh trains the tiny model for a few steps on a text made by a seeded
 * generator, the shards are put together to whole tensors and compared byte by byte.
 *
 * HOLDFAST_TEST_KERNELS=reference takes the plain C kernels (thread sanitizer). */
#ifndef HOLDFAST_TESTS_PARALLEL_BED_H
#define HOLDFAST_TESTS_PARALLEL_BED_H

#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "tests/unit/trainer_bed.h"
#include "trainer/base/memory_plan.h"
#include "trainer/corpus/corpus.h"
#include "trainer/data/ahead.h"
#include "trainer/data/data.h"
#include "trainer/data/tokens_file.h"
#include "trainer/forecast/estimate.h"
#include "trainer/model/shape.h"
#include "trainer/parallel/parallel.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/schedule.h"
#include "trainer/save/replicas.h"
#include "trainer/tokenizer/tokenizer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VOCAB 300
#define STEPS_MAX 6
#define PARTS 3 /* param, exp_avg, exp_avg_sq */

extern char folder[64], tokens_path[96], marked_path[96], masked_path[96];

/* ---- a text, and a configuration ---- */

int make_tokens(void **state);
int remove_tokens(void **state);

/* Settings are a text: "canonical.tp_blocks=4 model.tied_embeddings=true"; later ones win. "marked"
 * is a text of documents, "masked" the same whose documents begin with tokens that do not count.
 * The result of settings() is valid for the next SETTINGS_KEPT calls. */
#define SETTINGS_BYTES 2048
#define SETTINGS_KEPT 64
const char *settings(const char *format, ...) __attribute__((format(printf, 1, 2)));
int try_configure(struct config *out, const char *of);
struct config configure(const char *of);

/* ---- a plan ---- */

/* A model by settings, for tests without ranks. */
struct planned {
    struct config config;
    struct kernels *kernels;
    struct model_table *table;
};
struct planned open_planned(const char *of);
void close_planned(struct planned *planned);

/* Rank 0 of each stage of so many ranks; the result of estimate_ranks(). */
int estimated(struct dry_rank *out, uint32_t size, const char *of);

/* ---- a rank ---- */

/* Given to a test's function on each rank: an initialized state, and samples. */
struct rank {
    struct comm *world;
    struct data *data;
    struct ahead *ahead;
    struct kernels *kernels, *used; /* `used` counts, or is the same */
    struct model_table *table;
    struct parallel *p;
};
struct rank_options {
    const struct config *config;
    int (*run)(struct rank *rank, void *user);
    void *user;
    bool has_no_data; /* then a vocabulary of 64 */
    bool counts;
    struct device *device; /* NULL: the CPU */
};
int on_rank(struct comm *world, const struct rank_options *options);
int on_ranks(uint32_t size, const struct rank_options *options); /* so many threads */

/* ---- a run ---- */

/* All results that must not depend on the mesh. */
struct outcome {
    uint32_t num_tensors;
    float *whole[PARTS][32];
    double loss[STEPS_MAX + 1], grad_norm[STEPS_MAX + 1]; /* by step, from 1 */
    uint64_t digest[STEPS_MAX + 1];                       /* likewise, of tokens */
};

int open_ahead(struct ahead **out, const struct config *config, struct data *data,
               const struct mesh *mesh);

/* One stretch of training on one mesh. */
struct stretch {
    struct config config;
    int64_t first_step, last_step; /* steps first + 1 .. last are made */
    struct outcome *outcome;       /* state is taken from it when first_step > 0 */
    bool stop_on_rank_1;
    unsigned (*poll_switches)(void *user); /* as in struct step_input */
    unsigned seen[8];                      /* by the first ranks, in the last step */
    struct device *device;                 /* NULL: the CPU */
    int64_t stopped_after;
};

size_t count_of(const struct model_tensor *tensor);

/* Of the step that follows `step` steps. */
uint64_t first_sample(const struct config *config, int64_t step);

/* For tests that decide otherwise. */
extern int (*bed_decide)(struct parallel *p, const struct step_result *result);

/* For tests that count: called when a block's update begins and when it is posted. */
extern void (*bed_at_update)(bool is_posted);
int rank_main(struct comm *world, void *user);
struct outcome *new_outcome(void);
void free_outcome_list(struct outcome *const *list, size_t num);
#define free_outcomes(...)                                    \
    free_outcome_list((struct outcome *const[]){__VA_ARGS__}, \
                      sizeof((struct outcome *const[]){__VA_ARGS__}) / sizeof(struct outcome *))

/* Of the runs that follow; NULL: the CPU. All their ranks share it. */
extern struct device *bed_device;

struct place {
    int replicas, shards, threads;
    int pp, cp, tp; /* 0: 1 */
};

uint32_t place_size(struct place place); /* ranks */
const char *settings_on(struct place place, const char *of);
void run_on(struct outcome *outcome, struct place place, int64_t first, int64_t last,
            const char *of);
struct outcome *outcome_of(struct place place, int64_t steps, const char *of);
void want_same(const struct outcome *a, const struct outcome *b, struct place place);

/* The result of one rank on the CPU with these settings, kept until the end; NULL: it refuses
 * them. */
#define REFERENCES_MAX 160
const struct outcome *reference_of(int64_t steps, const char *of);

/* One rank with the settings `run` has the bits of a mesh with the settings `run` and `mesh`.
 * The others: the same for many meshes; for a run that changes the mesh at each step. */
void want_same_on(struct place place, int64_t steps, const char *run, const char *mesh);
void want_same_everywhere(const struct place *list, size_t num, const char *run, const char *mesh);
void want_same_moving(const struct place *moves, int64_t steps, const char *run);

#define NUM_PLACES 10u
extern const struct place places[NUM_PLACES], alone;

/* The plain kernels are slow, and under the thread sanitizer fifty times slower: fewer meshes. */
size_t place_stride(void);
void want_near(const struct outcome *a, const struct outcome *b);

#endif
