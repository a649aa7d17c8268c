/* trainer_simgpu.c - steps of training on simulated GPUs (tests/simgpu): the bits of the CPU.
 *
 * Goal: the trainer, the back-end and the kernels together compute on a GPU the same as on the CPU,
 * on every mesh and in every order that CUDA allows, with graphs and without. A step repeats the
 * graphs of the step before and captures none. A block's update is one launch. In bfloat16 the
 * library gets the same products on every mesh, since its bits depend on the extent of a call.
 * Method: parallel_bed.h; in float no tensor core is involved, so every byte is that of the CPU's
 * back-end at the level avx2 or above. The state goes out and in again between two stretches. */
#include "tests/simgpu/simgpu.h"
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

/* Where `cp_blocks` is 1, attention is of whole sequences. */
#define WAY(cp_blocks)                                                   \
    "kernels.isa=avx2 canonical.tp_blocks=2 training.document_mask=true" \
    " canonical.micro_batches=2 canonical.cp_blocks=" cp_blocks " "
#define ROTATE "parallelism.context_parallel_rotate_method="
#define FAST "training.reduction=fast"
static size_t stride; /* from one way to the next */
static const char *const whole = WAY("1") ROTATE "allgather";
static const char *const gathered = WAY("2") ROTATE "allgather";
static const char *const ring = WAY("2") ROTATE "alltoall";
static const char *const shared = WAY("2") ROTATE "ulysses";
static const char *const watched =
    WAY("2") ROTATE "alltoall debug.watch_numbers=true debug.watch_modules=5";
static const char *const filled =
    WAY("1") "canonical.tp_blocks=8 model.n_heads=8 canonical.loss_chunks=4";
static const char *const fast = WAY("1") FAST;
static const char *const narrow =
    WAY("1") FAST " training.mixed_precision_reduce=bfloat16 model.tied_embeddings=true";

static struct simgpu_counts since(const struct simgpu_counts *before)
{
    struct simgpu_counts now = simgpu_counts();
    return (struct simgpu_counts){.captures = now.captures - before->captures,
                                  .graph_launches = now.graph_launches - before->graph_launches};
}

static void open_gpu(struct device **out, const char *of, bool has_no_graphs)
{
    struct device_options options = {.index = 0, .has_no_graphs = has_no_graphs};
    simgpu_set(of);
    assert_int_equal(device_open(out, device_find("cuda"), &options), 0);
}

static void close_gpu(struct device **device)
{
    device_close(*device);
    *device = NULL;
}

static void want_same_on_gpus(const char *way, struct place place, int seed, bool has_no_graphs)
{
    struct outcome *outcome = new_outcome();
    open_gpu(&bed_device, settings("seed=%d", seed), has_no_graphs);
    struct simgpu_counts start = simgpu_counts();
    run_on(outcome, place, 0, 1, way);
    struct simgpu_counts one = since(&start);
    start = simgpu_counts();
    run_on(outcome, place, 1, 3, way);
    struct simgpu_counts two = since(&start);
    assert_int_equal(two.captures, one.captures);
    assert_int_equal(two.graph_launches, 2 * one.graph_launches);
    assert_int_equal(one.graph_launches == 0, has_no_graphs);
    close_gpu(&bed_device);
    want_same(reference_of(3, way), outcome, place);
    free_outcomes(outcome);
}

/* With the fast reduction nothing is summed between ranks; sums of bf16 are rounded alike, those of
 * a tied matrix too. */
TEST(test_simgpu__gpus_have_the_bits_of_the_cpu)
{
    const struct {
        const char *way;
        struct place place;
        int seed;
        bool has_no_graphs;
    } ways[] = {
        {whole, {1, 1, 1, 0, 0, 0}, 0, false},   {whole, {1, 1, 1, 0, 0, 0}, 1, true},
        {whole, {1, 1, 1, 0, 0, 0}, 2, false},   {fast, {1, 1, 1, 0, 0, 0}, 2, false},
        {narrow, {1, 1, 1, 0, 0, 0}, 2, false},  {narrow, {1, 1, 1, 2, 0, 0}, 3, false},
        {whole, {1, 2, 1, 0, 0, 0}, 2, false},   {whole, {1, 1, 1, 2, 0, 2}, 5, false},
        {filled, {1, 1, 1, 0, 0, 2}, 5, false},  {gathered, {1, 1, 1, 0, 2, 0}, 2, false},
        {ring, {1, 1, 1, 0, 2, 0}, 5, false},    {shared, {1, 1, 1, 0, 2, 0}, 3, false},
        {watched, {1, 1, 1, 0, 2, 0}, 5, false},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i += stride)
        want_same_on_gpus(ways[i].way, ways[i].place, ways[i].seed, ways[i].has_no_graphs);
}

/* Of a layer forward and of its weights: queries, keys with values, the output's, gate with up, and
 * down; seven of its rows. Of the head one: its vocabulary is no multiple of 8. */
#define LAYER_PRODUCTS (2 * 5 + 7)
#define STEP_PRODUCTS (2 /* leaves */ * 2 * 2 /* blocks */ * (2 * LAYER_PRODUCTS + 1))
TEST(test_simgpu__the_library_gets_the_same_products_on_every_mesh)
{
    static const char *const way = "training.mixed_precision_param=bfloat16 canonical.tp_blocks=2"
                                   " canonical.cp_blocks=2 canonical.micro_batches=2";
    static const struct place meshes[] = {
        {1, 1, 1, 0, 0, 0}, {1, 2, 1, 0, 0, 0}, {1, 1, 1, 2, 0, 2}, {1, 1, 1, 0, 2, 2}};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++) {
        open_gpu(&bed_device, "seed=1", true);
        uint64_t before = simgpu_counts().products;
        free_outcomes(outcome_of(meshes[i], 1, way));
        assert_int_equal(simgpu_counts().products - before, STEP_PRODUCTS);
        close_gpu(&bed_device);
    }
}

static char said[2][512]; /* by the only rank: on the CPU, on a GPU */

static int telling_main(struct comm *world, void *user)
{
    const struct stretch *s = user;
    int rc = rank_main(world, user);
    snprintf(said[s->device != NULL], sizeof(said[0]), "%s", report_line());
    return rc;
}

/* A bound that a block's output is the first to exceed. */
TEST(test_simgpu__numbers_are_watched_as_on_the_cpu)
{
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {.config = configure("kernels.isa=avx2 debug.watch_numbers=true"
                                                  " debug.watch_bound=8 debug.watch_modules=1"),
                              .last_step = 1,
                              .outcome = outcome};
    assert_int_equal(comm_local_run(1, telling_main, &stretch), ERR_INVALID);
    open_gpu(&stretch.device, "seed=1", false);
    assert_int_equal(comm_local_run(1, telling_main, &stretch), ERR_INVALID);
    close_gpu(&stretch.device);
    assert_non_null(strstr(said[0], "above debug.watch_bound"));
    assert_string_equal(said[0], said[1]);
    free_outcomes(outcome);
}

static uint64_t updates, update_launches;
static void count_update(bool is_posted)
{
    updates += is_posted ? 1 : 0;
    update_launches += is_posted ? simgpu_counts().kernels : -simgpu_counts().kernels;
}

/* A layer has nine. */
TEST(test_simgpu__a_blocks_tensors_are_updated_by_one_launch)
{
    open_gpu(&bed_device, "seed=1", true);
    bed_at_update = count_update;
    updates = update_launches = 0;
    free_outcomes(outcome_of(alone, 2, whole));
    bed_at_update = NULL;
    assert_int_equal(updates, 2 /* steps */ * (2 /* embedding, head */ + 2 /* layers */));
    assert_int_equal(update_launches, updates);
    close_gpu(&bed_device);
}

int main(void)
{
    if (device_find("cuda") == NULL) {
        printf("skipped: NVIDIA's headers are not here (make deps-cuda)\n");
        return 77;
    }
    /* The plain twins have other bits than a GPU, and call no library that counts products. Under
     * ThreadSanitizer one way in three is enough. */
    stride = place_stride();
    unsetenv("HOLDFAST_TEST_KERNELS");
    return suite_run(make_tokens, remove_tokens);
}
