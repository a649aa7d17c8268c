/* trainer_watch.c - the range of the numbers in modules (debug.watch_numbers).
 *
 * Goal: the first number that is not finite ends the run on all ranks with the tensor, module and
 * rank that had it, on every mesh; watching changes no bit. Method: parallel_bed.h; a weight is
 * broken, or so large that a product overflows; the rank's output goes to a file. */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define WATCH "debug.watch_numbers=true "
#define BLOCKS "canonical.tp_blocks=2 canonical.cp_blocks=2"

TEST(test_watch__no_bit_changes_on_any_mesh)
{
    static const char *const ways[][2] = {
        {BLOCKS " parallelism.context_parallel_rotate_method=alltoall", "ZBH1"}, /* in halves */
        {BLOCKS " model.tied_embeddings=true", "ZBH1"},
        {BLOCKS " canonical.loss_chunks=2", "1F1B"}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        want_same_on((struct place){1, 2, 1, 0, 0, 2}, 2, ways[i][0], WATCH);
        want_same_on((struct place){1, 1, 1, 2, 2, 0}, 2, ways[i][0],
                     settings(WATCH "parallelism.pipeline_parallel_schedule=%s", ways[i][1]));
    }
}

/* The message of a rank that has an error. */
static char message[1024];
static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

static int watch_main(struct comm *world, void *user)
{
    int rc = rank_main(world, user);
    pthread_mutex_lock(&message_lock);
    if (rc != 0 && report_message()[0] != '\0')
        snprintf(message, sizeof(message), "%s", report_line());
    pthread_mutex_unlock(&message_lock);
    return rc;
}

/* A run of one step, whose weights are those of `broken`; its output is put into `out`. */
#define PRINTED_MAX 20000
static int run_broken(struct outcome *broken, struct place place, const char *of,
                      char out[PRINTED_MAX])
{
    char path[96];
    snprintf(path, sizeof(path), "%s/printed", folder);
    int kept = dup(2), file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    struct stretch stretch = {.config = configure(settings_on(place, settings(WATCH "%s", of))),
                              .first_step = 1,
                              .last_step = 2,
                              .outcome = broken,
                              .device = bed_device};
    assert_true(kept >= 0 && file >= 0 && dup2(file, 2) == 2);
    message[0] = '\0';
    int rc = comm_local_run(place_size(place), watch_main, &stretch);
    dup2(kept, 2);
    close(kept);
    ssize_t length = pread(file, out, PRINTED_MAX - 1, 0);
    assert_true(length >= 0);
    out[length] = '\0';
    close(file);
    unlink(path);
    return rc;
}

static float *weight_of(struct outcome *outcome, const char *name)
{
    struct model_table *table;
    uint32_t i = 0;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    while (strcmp(table->tensors[i].name, name) != 0)
        i++;
    model_table_free(table);
    return outcome->whole[0][i];
}

static void want_message(const char *text)
{
    if (strstr(message, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, message);
}

/* The first to read the row is the rank that computes with it. */
TEST(test_watch__a_broken_weight_is_named_with_its_rank)
{
    static const struct {
        struct place place;
        const char *where;
    } cases[] = {{{1, 1, 1, 0, 0, 0}, "first on rank 0, stage 0"},
                 {{1, 2, 1, 2, 0, 0}, "first on rank 2, stage 1"},
                 {{1, 1, 1, 0, 0, 2}, "first on rank 1, stage 0"},
                 {{1, 1, 1, 2, 2, 0}, "first on rank 2, stage 1"}};
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, BLOCKS);
    struct model_shape shape;
    assert_int_equal(model_shape_of_flavor(&shape, "tiny", VOCAB), 0);
    /* The last row of a layer that the second stage has: of the second half of the columns. */
    weight_of(outcome, "layers.1.feed_forward.w1.weight")[(size_t)shape.hidden * shape.dim - 1] =
        NAN;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(run_broken(outcome, cases[i].place, BLOCKS, printed), ERR_INVALID);
        want_message("step 2: weight of layers.1.feed_forward.w1 has 1 numbers that are not "
                     "finite, forward of leaf 0");
        want_message(cases[i].where);
    }
    free_outcomes(outcome);
}

TEST(test_watch__a_product_that_overflows_is_named_with_what_it_read)
{
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, "");
    float *weights = weight_of(outcome, "layers.0.feed_forward.w3.weight");
    for (int i = 0; i < 64; i++)
        weights[i] = 3e38f;
    assert_int_equal(run_broken(outcome, alone, "debug.watch_modules=3", printed), ERR_INVALID);
    want_message("step 2: output of layers.0.feed_forward.w3 has ");
    const char *rows[] = {"the last 3 modules",
                          "layers.0.ffn_norm, forward, leaf 0\n",
                          "  weight\n",
                          "  input\n",
                          "  output\n",
                          "layers.0.feed_forward.w1, forward, leaf 0\n",
                          "layers.0.feed_forward.w3, forward, leaf 0\n",
                          " 3.00e+38           0  weight\n",
                          "  input\n",
                          "  output\n"};
    const char *at = printed;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *found = strstr(at, rows[i]);
        if (found == NULL)
            fail_msg("\"%s\" is not in, or not there:\n%s", rows[i], printed);
        at = found + strlen(rows[i]);
    }
    assert_int_equal(*at, '\0'); /* the newest is the last */
    assert_null(strstr(printed, "attention"));
    free_outcomes(outcome);
}

TEST(test_watch__a_gradient_that_breaks_is_named_where_it_began)
{
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, "");
    assert_int_equal(run_broken(outcome, (struct place){1, 2, 1, 2, 0, 0},
                                "debug.nonfinite_at_step=2 training.nonfinite=skip", printed),
                     ERR_INVALID);
    want_message("step 2: gradient of output of output has ");
    want_message("backward of leaf 0, first on rank 2, stage 1");
    free_outcomes(outcome);
}

TEST(test_watch__a_number_above_the_bound_ends_the_run_in_chosen_steps)
{
    static const char *const now = "debug.watch_bound=1e3 debug.watch_steps=2";
    static const char *const later = "debug.watch_bound=1e3 debug.watch_steps=1,3-5";
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, "");
    float kept = *weight_of(outcome, "norm.weight");
    *weight_of(outcome, "norm.weight") = -1001;
    assert_int_equal(run_broken(outcome, alone, now, printed), ERR_INVALID);
    want_message(
        "step 2: weight of norm reaches 1e+03, above debug.watch_bound, forward of leaf 0");
    *weight_of(outcome, "norm.weight") = kept;
    assert_int_equal(run_broken(outcome, alone, now, printed), 0);
    *weight_of(outcome, "norm.weight") = -1001;
    assert_int_equal(run_broken(outcome, alone, later, printed), 0);
    free_outcomes(outcome);
}

/* The position after the text in a file, for the text that may follow. */
static const char *want_in(const char *from, const char *text)
{
    const char *at = strstr(from, text);
    if (at == NULL)
        fail_msg("\"%s\" is not in, or not there:\n%s", text, from);
    return at + strlen(text);
}

TEST(test_watch__what_all_modules_had_goes_to_a_file_of_chosen_steps)
{
    static char text[400000];
    char path[128], file[160];
    snprintf(path, sizeof(path), "%s/watched", folder);
    free_outcomes(outcome_of(alone, 3,
                             settings(WATCH "debug.watch_folder=%s debug.watch_steps=2"
                                            " debug.watch_modules=1",
                                      path)));
    snprintf(file, sizeof(file), "%s/step_2_rank_0.txt", path);
    FILE *in = fopen(file, "r");
    assert_non_null(in);
    text[fread(text, 1, sizeof(text) - 1, in)] = '\0';
    fclose(in);
    const char *at = want_in(text, "not finite\n");
    at = want_in(at, "tok_embeddings, forward, leaf 0\n");
    at = want_in(at, "layers.1.feed_forward.w2, forward, leaf 10\n");
    at = want_in(at, "layers.1.feed_forward.w2, backward, leaf 10\n");
    at = want_in(at, "tok_embeddings, backward, leaf 10\n");
    at = want_in(at, "gradient of output\n");
    at = want_in(at, "0  gradient of weight\n");
    assert_int_equal(*at, '\0');
    unlink(file);
    assert_int_equal(rmdir(path), 0); /* no other step has one */
}

/* ---- debug.replay_blame ---- */

#define BLAME "checkpoint.enable=true debug.replay_step=2 debug.replay_blame=true "

static struct step_blame blamed;
static struct step_result blamed_step;
static atomic_uint have_looked;

/* The rank that fails first may end a call from which another has yet to wake. */
static int look_for_blame(struct parallel *p, const struct step_result *result)
{
    const struct comm *world = parallel_mesh_of(p)->world;
    struct step_blame blame;
    ERR_TRY(parallel_blame(p, &blame));
    if (world->rank == 0) {
        blamed = blame;
        blamed_step = *result;
    }
    atomic_fetch_add(&have_looked, 1);
    while (atomic_load(&have_looked) < world->size)
        sched_yield();
    return report_error(ERR_INVALID, NULL, "the test has seen enough");
}

static struct step_blame blame_on(struct outcome *outcome, struct place place, const char *of,
                                  char printed[PRINTED_MAX])
{
    bed_decide = look_for_blame;
    atomic_store(&have_looked, 0);
    assert_int_equal(run_broken(outcome, place, settings(BLAME "%s", of), printed), ERR_INVALID);
    bed_decide = NULL;
    want_message("the test has seen enough");
    return blamed;
}

static void want_same_sample(struct sample_value a, struct sample_value b)
{
    assert_int_equal(a.sample, b.sample);
    assert_memory_equal(&a.value, &b.value, sizeof(a.value));
    assert_memory_equal(&a.median, &b.median, sizeof(a.median));
}

static const struct place blame_places[] = {{1, 1, 1, 0, 0, 0}, {2, 2, 1, 0, 0, 0},
                                            {1, 2, 1, 2, 0, 0}, {1, 1, 1, 0, 0, 2},
                                            {1, 1, 1, 0, 2, 0}, {1, 1, 1, 2, 2, 2}};

TEST(test_watch__the_blame_of_the_only_sample_is_the_steps_own)
{
    static const char *const one = BLOCKS " canonical.micro_batches=1";
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, one);
    for (size_t i = 0; i < sizeof(blame_places) / sizeof(blame_places[0]); i++) {
        struct step_blame blame = blame_on(outcome, blame_places[i], one, printed);
        assert_true(blame.gradient.value > 0 && blame.gradient.value == blame.gradient.median);
        assert_true(blame.loss.value == blamed_step.loss && blame.loss.value == blame.loss.median);
        assert_string_equal(blame.module.name, "");
    }
    free_outcomes(outcome);
}

#define SAMPLES 11
#define TOKENS 32

/* The first sample of step 2 that has a token which no other one has. */
static uint32_t find_rare(int32_t *out_token)
{
    int32_t inputs[SAMPLES * TOKENS], targets[SAMPLES * TOKENS];
    struct data_batch batch = {.inputs = inputs, .targets = targets};
    struct data *data;
    assert_int_equal(data_open(&data, marked_path, TOKENS, 3), 0);
    assert_int_equal(data_read(data, SAMPLES, SAMPLES, &batch), 0);
    data_close(data);
    for (uint32_t i = 3 * TOKENS; i < SAMPLES * TOKENS; i++) { /* not of the first sample */
        uint32_t others = 0;
        for (uint32_t j = 0; j < SAMPLES * TOKENS; j++)
            others += inputs[j] == inputs[i] && j / TOKENS != i / TOKENS;
        *out_token = inputs[i];
        if (others == 0)
            return i / TOKENS;
    }
    fail_msg("every token is in two samples");
    return 0;
}

/* An embedding that is nearly 0 is divided by its norm, so its gradient is large. */
static void want_blamed_everywhere(const char *of)
{
    static char printed[PRINTED_MAX];
    int32_t token;
    uint32_t sample = find_rare(&token);
    struct model_shape shape;
    struct step_blame first = {.num_samples = 0};
    struct outcome *outcome = outcome_of(alone, 1, of);
    assert_int_equal(model_shape_of_flavor(&shape, "tiny", VOCAB), 0);
    for (uint32_t i = 0; i < shape.dim; i++)
        weight_of(outcome, "tok_embeddings.weight")[(size_t)token * shape.dim + i] /= 4096;
    for (size_t i = 0; i < sizeof(blame_places) / sizeof(blame_places[0]); i++) {
        struct step_blame blame = blame_on(outcome, blame_places[i], of, printed);
        assert_string_equal(blame.module.what, "gradient of input");
        assert_string_equal(blame.module.name, "layers.0.attention_norm");
        first = i == 0 ? blame : first;
        assert_int_equal(blame.num_samples, SAMPLES);
        assert_true(blame.module.reach == first.module.reach);
        assert_true(blame.module.mean == first.module.mean);
        assert_int_equal(blame.gradient.sample, sample);
        assert_true(blame.gradient.value > 10 * blame.gradient.median);
        want_same_sample(blame.loss, first.loss);
        want_same_sample(blame.gradient, first.gradient);
    }
    free_outcomes(outcome);
}

TEST(test_watch__a_sample_out_of_line_is_blamed_with_the_same_bits_on_every_mesh)
{
    want_blamed_everywhere(BLOCKS " marked");
}

TEST(test_watch__samples_of_one_leaf_are_compared_with_each_other)
{
    want_blamed_everywhere(BLOCKS " marked canonical.micro_batches=1 training.local_batch_size=11");
}

TEST(test_watch__only_the_sample_that_is_told_to_break_breaks)
{
    static const char *const of =
        BLOCKS " canonical.micro_batches=2 training.local_batch_size=4 training.nonfinite=skip "
               "debug.nonfinite_at_sample=14"; /* step 2 has samples 8 to 15 */
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, of);
    for (size_t i = 0; i < sizeof(blame_places) / sizeof(blame_places[0]); i++) {
        struct step_blame blame = blame_on(outcome, blame_places[i], of, printed);
        want_in(printed, "gradient of output of output has 1 numbers that are not finite, "
                         "backward of leaf 1");
        assert_int_equal(blame.gradient.sample, 6);
        assert_false(isfinite(blame.gradient.value));
        assert_int_equal(blame.gradient.num_finite, 7);
    }
    free_outcomes(outcome);
}

TEST(test_watch__a_step_that_is_blamed_goes_on_behind_its_first_broken_number)
{
    static char printed[PRINTED_MAX];
    struct outcome *outcome = outcome_of(alone, 1, "");
    float *weights = weight_of(outcome, "layers.0.feed_forward.w3.weight");
    for (int i = 0; i < 64; i++)
        weights[i] = 3e38f;
    struct step_blame blame = blame_on(outcome, (struct place){1, 2, 1, 2, 0, 0}, "", printed);
    want_in(printed, "replay: step 2: output of layers.0.feed_forward.w3 has ");
    assert_true(blame.is_named);
    assert_false(isfinite(blame.gradient.value));
    free_outcomes(outcome);
}

SUITE(make_tokens, remove_tokens)
