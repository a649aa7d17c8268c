/* trainer_parallel.c - the recipe and the step on many ranks.
 *
 * Goal: in the canonical order, losses, gradient norms, parameters and moments are the same bits on
 * every mesh, with every number of threads and either way of resharding, also when a run moves from
 * mesh to mesh in between; the fast order agrees to rounding; a replica that comes apart is found;
 * what does not fit is refused with the sum. Method: ranks are threads; each mesh trains the tiny
 * model for a few steps on a text made by a seeded generator, the shards are put together to whole
 * tensors and compared byte by byte.
 *
 * HOLDFAST_TEST_KERNELS=reference takes the plain C kernels (thread sanitizer).
 */
#include "proto/report.h"
#include "tests/unit/trainer_bed.h"
#include "trainer/corpus/corpus.h"
#include "trainer/data/ahead.h"
#include "trainer/data/data.h"
#include "trainer/data/tokens_file.h"
#include "trainer/memory.h"
#include "trainer/parallel.h"
#include "trainer/save/replicas.h"
#include "trainer/schedule.h"
#include "trainer/shape.h"
#include "trainer/tokenizer.h"

#include <math.h>
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

static char folder[64], tokens_path[96], marked_path[96], masked_path[96];

/* ---- a text, and a configuration ---- */

static void write_text(const char *path)
{
    static const char *const words[] = {"rank",  "shard", "holds", "the", "state",
                                        "of",    "a",     "run",   "and", "never",
                                        "loses", "it",    "step",  "by",  "gradient"};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    uint64_t x = 42;
    for (int i = 0; i < 6000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        fprintf(file, "%s%s", words[(x >> 40) % 15], (x >> 50) % 9 == 0 ? ".\n" : " ");
    }
    fclose(file);
}

/* The same tokens for either file: documents of 50, and where has_mask the first 15 not trained on.
 */
static void write_marked(const char *path, bool has_mask)
{
    struct tokens_writer *writer;
    const char *hash = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    struct tokens_writer_options options = {path, hash, VOCAB, -1, -1, has_mask};
    assert_int_equal(tokens_writer_open(&writer, &options), 0);
    for (uint32_t i = 0; i < 4000; i++) {
        int32_t token = (int32_t)((i * 2654435761u >> 16) % VOCAB);
        if (i % 50 == 0)
            tokens_writer_begin(writer);
        tokens_writer_add(writer, &token, 1, !has_mask || i % 50 >= 15);
    }
    assert_int_equal(tokens_writer_commit(writer, NULL), 0);
}

static int make_tokens(void **state)
{
    (void)state;
    char text[96], model[96];
    const char *base = getenv("TMPDIR");
    struct tokenizer *tokenizer;
    struct corpus_result made;
    snprintf(folder, sizeof(folder), "%s/parallel.XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(text, sizeof(text), "%s/text", folder);
    snprintf(model, sizeof(model), "%s/model", folder);
    snprintf(tokens_path, sizeof(tokens_path), "%s/tokens", folder);
    snprintf(marked_path, sizeof(marked_path), "%s/marked", folder);
    snprintf(masked_path, sizeof(masked_path), "%s/masked", folder);
    write_text(text);
    assert_int_equal(tokenizer_train(model, VOCAB, (const char *const[]){text}, 1, NULL), 0);
    assert_int_equal(tokenizer_open(&tokenizer, model), 0);
    struct corpus_options options = {
        .tokenizer = tokenizer, .paths = (const char *const[]){text}, .num_paths = 1, .threads = 1};
    assert_int_equal(corpus_write(tokens_path, &options, &made), 0);
    tokenizer_close(tokenizer);
    assert_true(made.header.num_tokens > 3000);
    write_marked(marked_path, false);
    write_marked(masked_path, true);
    unlink(text);
    unlink(model);
    return 0;
}

static int remove_tokens(void **state)
{
    (void)state;
    unlink(tokens_path);
    unlink(marked_path);
    unlink(masked_path);
    return rmdir(folder);
}

/* Shorter than 2048 bytes of arguments; later ones win. */
static struct config configure(const char *const *extra, int num_extra)
{
    static const char *const base[] = {
        "test",    "--model.flavor",
        "tiny",    "--training.seq_len",
        "32",      "--training.local_batch_size",
        "1",       "--canonical.micro_batches",
        "11",      /* no multiple of most numbers of ranks */ "--training.mixed_precision_param",
        "float32", "--training.steps",
        "6",       "--lr_scheduler.warmup_steps",
        "2",       "--optimizer.lr",
        "1e-2",    "--training.dataset_path"};
    const int num_base = (int)(sizeof(base) / sizeof(base[0]));
    char *argv[64];
    struct config config;
    int argc = 0;
    for (; argc < num_base; argc++)
        argv[argc] = (char *)(uintptr_t)base[argc];
    argv[argc++] = tokens_path;
    for (int i = 0; i < num_extra; i++)
        argv[argc++] = (char *)(uintptr_t)extra[i];
    if (trainer_config_load(&config, argc, argv) != 0)
        fail_msg("%s", report_line());
    return config;
}

/* ---- a run ---- */

/* Everything that must not depend on the mesh. */
struct outcome {
    uint32_t num_tensors;
    float *whole[PARTS][32];
    double loss[STEPS_MAX + 1], grad_norm[STEPS_MAX + 1]; /* by step, from 1 */
};

static int open_ahead(struct ahead **out, const struct config *config, struct data *data,
                      const struct comm *world)
{
    struct ahead_options options = {.data = data,
                                    .batch = (uint32_t)config->local_batch_size,
                                    .rank = world->rank,
                                    .num_ranks = world->size,
                                    .wants_starts = config->document_mask,
                                    .leaves_of_step = trainer_config_leaves,
                                    .user = config,
                                    .max_leaves = (uint32_t)config->micro_batches};
    return ahead_open(out, &options);
}

/* One stretch of training on one mesh. */
struct stretch {
    struct config config;
    int64_t first_step, last_step; /* steps first + 1 .. last are made */
    struct outcome *outcome;       /* state is taken from it when first_step > 0 */
    bool stop_on_rank_1;
    int64_t stopped_after;
};

static size_t count_of(const struct model_tensor *tensor)
{
    return tensor->rows * tensor->width;
}

static void move_state(struct stretch *s, struct parallel *p, bool out)
{
    struct state *state = parallel_state(p);
    float *const parts[PARTS] = {state->param, state->exp_avg, state->exp_avg_sq};
    for (uint32_t i = 0; i < state->num_slices; i++) {
        const struct state_slice *slice = &state->slices[i];
        size_t at = slice->first_row * slice->tensor->width;
        for (int part = 0; part < PARTS; part++) {
            float *whole = s->outcome->whole[part][i] + at, *own = parts[part] + slice->at;
            memcpy(out ? whole : own, out ? own : whole, slice->count * sizeof(float));
        }
    }
    if (!out)
        parallel_params_changed(p);
}

/* Of the step that follows `step` steps. */
static uint64_t first_sample(const struct config *config, int64_t step)
{
    uint64_t leaves = 0;
    for (int64_t i = 0; i < step; i++)
        leaves += trainer_config_leaves(config, i);
    return leaves * (uint64_t)config->local_batch_size;
}

static int train(struct stretch *s, struct parallel *p, struct ahead *ahead,
                 struct kernels *kernels)
{
    const struct config *config = &s->config;
    struct comm *world = parallel_mesh_of(p)->world;
    parallel_init_state(p, 3);
    if (s->first_step > 0)
        move_state(s, p, false);
    for (int64_t step = s->first_step; step < s->last_step; step++) {
        volatile sig_atomic_t stop = s->stop_on_rank_1 && step == 1;
        struct step_input input = {ahead, first_sample(config, step), step + 1,
                                   world->rank == 1 ? &stop : NULL};
        struct step_result result;
        ERR_TRY(parallel_step(p, &input, &result));
        if (result.is_dropped)
            break;
        struct optimizer_step update = {
            .update = step + 1, .lr = schedule_lr(config, step), .grad_norm = result.grad_norm};
        optimizer_update(parallel_state(p), kernels, parallel_lane(p), config, &update);
        parallel_params_changed(p);
        if (world->rank == 0) {
            s->outcome->loss[step + 1] = result.loss;
            s->outcome->grad_norm[step + 1] = result.grad_norm;
        }
        if (world->rank == world->size - 1)
            s->stopped_after = step + 1;
        if (result.stop)
            break;
    }
    /* Replicas hold the same bits: whoever has replica 1, where there is one, writes. */
    ERR_TRY(world->ops->barrier(world));
    if (parallel_mesh_of(p)->replica == parallel_mesh_of(p)->replicas - 1)
        move_state(s, p, true);
    return 0;
}

static int rank_main(struct comm *world, void *user)
{
    struct stretch *s = user;
    struct data *data = NULL;
    struct ahead *ahead = NULL;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    int rc = data_open(&data, s->config.dataset_path, (uint32_t)s->config.seq_len, 3);
    if (rc == 0)
        rc = new_kernels(&kernels, (uint32_t)s->config.threads);
    struct model_shape shape;
    if (rc == 0)
        rc = shape_of_settings(&shape, &s->config, data_info(data)->vocab);
    if (rc == 0)
        rc = model_table_new(&table, &shape);
    if (rc == 0)
        rc = parallel_apply(&p, &(struct parallel_options){&s->config, table, kernels, world});
    if (rc == 0)
        rc = open_ahead(&ahead, &s->config, data, world);
    if (rc == 0)
        rc = train(s, p, ahead, kernels);
    ahead_close(ahead);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    data_close(data);
    return rc;
}

static struct outcome *new_outcome(void)
{
    struct outcome *outcome = calloc(1, sizeof(*outcome));
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    outcome->num_tensors = table->num_tensors;
    for (uint32_t i = 0; i < table->num_tensors; i++)
        for (int part = 0; part < PARTS; part++)
            outcome->whole[part][i] = calloc(count_of(&table->tensors[i]), sizeof(float));
    model_table_free(table);
    return outcome;
}

static void free_outcome(struct outcome *outcome)
{
    for (uint32_t i = 0; i < outcome->num_tensors; i++)
        for (int part = 0; part < PARTS; part++)
            free(outcome->whole[part][i]);
    free(outcome);
}

struct place {
    int replicas, shards, threads;
};

static void run_on(struct outcome *outcome, struct place place, int64_t first, int64_t last,
                   const char *const *extra, int num_extra)
{
    char replicas[16], threads[16];
    const char *arguments[32] = {"--parallelism.data_parallel_replicate_degree", replicas,
                                 "--kernels.threads", threads};
    snprintf(replicas, sizeof(replicas), "%d", place.replicas);
    snprintf(threads, sizeof(threads), "%d", place.threads);
    for (int i = 0; i < num_extra; i++)
        arguments[4 + i] = extra[i];
    struct stretch stretch = {.config = configure(arguments, 4 + num_extra),
                              .first_step = first,
                              .last_step = last,
                              .outcome = outcome};
    uint32_t size = (uint32_t)(place.replicas * place.shards);
    assert_int_equal(comm_local_run(size, rank_main, &stretch), 0);
}

static void want_same(const struct outcome *a, const struct outcome *b, struct place place)
{
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    if (memcmp(a->loss, b->loss, sizeof(a->loss)) != 0 ||
        memcmp(a->grad_norm, b->grad_norm, sizeof(a->grad_norm)) != 0)
        fail_msg("%dx%d: the losses or norms differ", place.replicas, place.shards);
    for (uint32_t i = 0; i < table->num_tensors; i++)
        for (int part = 0; part < PARTS; part++)
            if (memcmp(a->whole[part][i], b->whole[part][i],
                       count_of(&table->tensors[i]) * sizeof(float)) != 0)
                fail_msg("%dx%d: part %d of %s differs", place.replicas, place.shards, part,
                         table->tensors[i].name);
    model_table_free(table);
}

static const struct place places[] = {{1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {1, 3, 2}, {1, 4, 1},
                                      {2, 2, 2}, {1, 8, 1}, {3, 1, 1}, {3, 2, 1}, {7, 1, 1}};
#define NUM_PLACES (sizeof(places) / sizeof(places[0]))
static const struct place alone = {1, 1, 1};

/* The plain kernels are slow, and under the thread sanitizer fifty times slower: fewer meshes. */
static size_t place_stride(void)
{
    return wants_plain_kernels() ? 3 : 1;
}

static void want_same_everywhere(const char *const *extra, int num_extra)
{
    struct outcome *reference = new_outcome();
    run_on(reference, alone, 0, 3, extra, num_extra);
    assert_true(reference->loss[3] > 0 && reference->grad_norm[3] > 0);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        struct outcome *outcome = new_outcome();
        run_on(outcome, places[i], 0, 3, extra, num_extra);
        want_same(reference, outcome, places[i]);
        free_outcome(outcome);
    }
    free_outcome(reference);
}

static void want_near(const struct outcome *a, const struct outcome *b)
{
    for (int step = 1; step <= 3; step++) {
        assert_true(fabs(a->loss[step] / b->loss[step] - 1) < 1e-5);
        assert_true(fabs(a->grad_norm[step] / b->grad_norm[step] - 1) < 1e-4);
    }
}

/* ---- the promise ---- */

static void test_parallel__every_mesh_gives_the_same_bits_in_float(void **state)
{
    (void)state;
    want_same_everywhere(NULL, 0);
}

static void test_parallel__every_mesh_gives_the_same_bits_in_bf16(void **state)
{
    (void)state;
    const char *extra[] = {"--training.mixed_precision_param", "bfloat16",
                           "--canonical.micro_batches", "8"};
    want_same_everywhere(extra, 4);
}

/* Its tensors are the first ones of the untied model: what is compared fits both. */
static void test_parallel__every_mesh_gives_a_tied_model_the_same_bits(void **state)
{
    (void)state;
    const char *extra[] = {"--model.tied_embeddings", "true", "--training.reduction", "fast"};
    struct outcome *canonical = new_outcome(), *fast = new_outcome();
    want_same_everywhere(extra, 2);
    run_on(canonical, alone, 0, 3, extra, 2);
    run_on(fast, alone, 0, 3, extra, 4);
    want_same(canonical, fast, alone);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        free_outcome(fast);
        fast = new_outcome();
        run_on(fast, places[i], 0, 3, extra, 4);
        want_near(fast, canonical);
    }
    free_outcome(canonical);
    free_outcome(fast);
}

static void test_parallel__every_mesh_gives_the_same_bits_within_documents(void **state)
{
    (void)state;
    const char *extra[] = {"--training.document_mask", "--training.dataset_path", marked_path};
    want_same_everywhere(extra, 3);
    struct outcome *within = new_outcome(), *across = new_outcome();
    run_on(within, alone, 0, 1, extra, 3);
    run_on(across, alone, 0, 1, extra + 1, 2);
    assert_true(within->loss[1] != across->loss[1]);
    free_outcome(within);
    free_outcome(across);
}

/* A mean over the tokens that count: the ranks' leaves have different numbers of them. */
static void test_parallel__every_mesh_gives_the_same_bits_with_a_loss_mask(void **state)
{
    (void)state;
    const char *extra[] = {"--training.dataset_path", masked_path};
    want_same_everywhere(extra, 2);
    struct outcome *masked = new_outcome(), *whole = new_outcome();
    run_on(masked, alone, 0, 1, extra, 2);
    extra[1] = marked_path;
    run_on(whole, alone, 0, 1, extra, 2);
    /* Before the first update every token costs about ln V: so does the mean of those that count.
     */
    assert_true(fabs(masked->loss[1] / whole->loss[1] - 1) < 0.05);
    assert_true(masked->loss[1] != whole->loss[1]);
    free_outcome(masked);
    free_outcome(whole);
}

static void test_parallel__every_mesh_gives_the_same_bits_on_a_ramp(void **state)
{
    (void)state;
    const char *extra[] = {"--training.batch_ramp", "0:2,1:5,2:11"};
    want_same_everywhere(extra, 2);
}

static void test_parallel__keeping_gathered_weights_changes_no_bit(void **state)
{
    (void)state;
    const char *extra[] = {"--parallelism.fsdp_reshard_after_forward", "never",
                           "--training.local_batch_size", "2"};
    struct outcome *reference = new_outcome();
    run_on(reference, alone, 0, 3, extra + 2, 2);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        struct outcome *outcome = new_outcome();
        run_on(outcome, places[i], 0, 3, extra, 4);
        want_same(reference, outcome, places[i]);
        free_outcome(outcome);
    }
    free_outcome(reference);
}

static void test_parallel__a_run_that_moves_from_mesh_to_mesh_keeps_its_bits(void **state)
{
    (void)state;
    struct outcome *reference = new_outcome(), *moving = new_outcome();
    run_on(reference, alone, 0, STEPS_MAX, NULL, 0);
    for (int64_t step = 0; step < STEPS_MAX; step++)
        run_on(moving, places[(size_t)(step * 3 + 1) % NUM_PLACES], step, step + 1, NULL, 0);
    want_same(reference, moving, alone);
    free_outcome(reference);
    free_outcome(moving);
}

static void test_parallel__fast_order_is_the_same_alone_and_near_elsewhere(void **state)
{
    (void)state;
    const char *extra[] = {"--training.reduction", "fast"};
    struct outcome *reference = new_outcome(), *fast = new_outcome();
    run_on(reference, alone, 0, 3, NULL, 0);
    run_on(fast, alone, 0, 3, extra, 2);
    want_same(reference, fast, alone); /* one rank adds its leaves in the same order */
    free_outcome(fast);
    for (size_t i = 0; i < NUM_PLACES; i += place_stride()) {
        fast = new_outcome();
        run_on(fast, places[i], 0, 3, extra, 2);
        want_near(fast, reference);
        free_outcome(fast);
    }
    free_outcome(reference);
}

static void test_parallel__one_rank_that_is_asked_to_stop_stops_all_before_a_step(void **state)
{
    (void)state;
    struct outcome *outcome = new_outcome();
    struct stretch stretch = {.config = configure(NULL, 0),
                              .last_step = STEPS_MAX,
                              .outcome = outcome,
                              .stop_on_rank_1 = true};
    assert_int_equal(comm_local_run(3, rank_main, &stretch), 0);
    assert_int_equal(stretch.stopped_after, 1);
    free_outcome(outcome);
}

/* What each rank was told by a step and by logits that could not read their samples. */
struct unread {
    struct config config;
    int step_rc[3], logits_rc[3];
    bool has_reason[3]; /* of the step */
};

static int unread_main(struct comm *world, void *user)
{
    struct unread *u = user;
    struct data *data = NULL;
    struct ahead *ahead = NULL;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    static float logits[32 * VOCAB];
    struct step_result result;
    ERR_TRY(data_open(&data, u->config.dataset_path, (uint32_t)u->config.seq_len, 3));
    ERR_TRY(kernels_new(&kernels, &(struct kernels_options){.num_threads = 1}));
    ERR_TRY(new_table(&table, "tiny", VOCAB));
    ERR_TRY(parallel_apply(&p, &(struct parallel_options){&u->config, table, kernels, world}));
    ERR_TRY(open_ahead(&ahead, &u->config, data, world));
    parallel_init_state(p, 3);
    if (world->rank == 0)
        assert_int_equal(truncate(u->config.dataset_path, 4096), 0);
    ERR_TRY(world->ops->barrier(world));
    report_clear();
    struct step_input input = {.ahead = ahead, .step = 1};
    u->step_rc[world->rank] = parallel_step(p, &input, &result);
    u->has_reason[world->rank] = report_message()[0] != 0;
    u->logits_rc[world->rank] = parallel_logits(p, ahead, 0, logits);
    int rc = world->ops->barrier(world);
    ahead_close(ahead);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    data_close(data);
    return rc;
}

static void test_parallel__samples_that_cannot_be_read_end_a_step_on_all_ranks_alike(void **state)
{
    (void)state;
    char shrinking[sizeof(tokens_path) + 8], line[2 * sizeof(shrinking) + 8];
    struct unread u = {.config = configure(NULL, 0)};
    snprintf(shrinking, sizeof(shrinking), "%s.short", tokens_path);
    snprintf(line, sizeof(line), "cp %s %s", tokens_path, shrinking);
    assert_int_equal(system(line), 0);
    snprintf(u.config.dataset_path, sizeof(u.config.dataset_path), "%s", shrinking);
    assert_int_equal(comm_local_run(3, unread_main, &u), 0);
    unlink(shrinking);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(u.step_rc[rank], ERR_CORRUPT);
        assert_true(u.has_reason[rank] == (rank == 0));
        /* Rank 0 alone reads for the logits; the others must not wait for it in vain. */
        assert_int_equal(u.logits_rc[rank], rank == 0 ? ERR_CORRUPT : 0);
    }
}

/* ---- layouts and refusals ---- */

static void test_parallel__a_cut_covers_every_row_once_as_fsdp2_cuts(void **state)
{
    (void)state;
    for (uint64_t rows = 0; rows < 40; rows++)
        for (uint32_t parts = 1; parts < 12; parts++) {
            uint64_t next = 0, chunk = (rows + parts - 1) / parts;
            for (uint32_t part = 0; part < parts; part++) {
                uint64_t first, count;
                parallel_cut(&first, &count, rows, parts, part);
                assert_int_equal(first, next);
                assert_true(count == chunk || first + count == rows);
                next = first + count;
            }
            assert_int_equal(next, rows);
        }
}

static void test_parallel__a_world_that_does_not_fit_is_refused_with_the_sum(void **state)
{
    (void)state;
    const char *extra[] = {"--parallelism.data_parallel_replicate_degree", "2",
                           "--parallelism.data_parallel_shard_degree", "2"};
    struct config config = configure(extra, 4);
    struct mesh mesh;
    assert_int_equal(parallel_mesh(&mesh, &config, 0, 3), ERR_INVALID);
    assert_non_null(strstr(report_message(), "2 x dp_shard 2 = 4 ranks, but 3 were started"));
    assert_int_equal(parallel_mesh(&mesh, &config, 3, 4), 0);
    assert_int_equal(mesh.replica, 1);
    assert_int_equal(mesh.shard, 1);
    config.dp_shard = -1;
    assert_int_equal(parallel_mesh(&mesh, &config, 0, 3), ERR_INVALID);
    assert_int_equal(parallel_mesh(&mesh, &config, 5, 6), 0);
    assert_int_equal(mesh.shards, 3);
    config.tp = 2;
    assert_int_equal(parallel_mesh(&mesh, &config, 0, 4), ERR_INVALID);
}

/* All meshes but the first have ranks without a leaf, some a whole replica of them. */
static void test_parallel__more_ranks_than_micro_batches_change_no_bit(void **state)
{
    (void)state;
    static const struct place wide[] = {{1, 2, 1}, {1, 3, 1}, {3, 1, 1}, {2, 2, 1}, {1, 8, 1}};
    const char *extra[] = {"--canonical.micro_batches", "2", "--training.reduction", "fast"};
    struct outcome *reference = new_outcome();
    run_on(reference, alone, 0, 3, extra, 2);
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        struct outcome *outcome = new_outcome(), *fast = new_outcome();
        run_on(outcome, wide[i], 0, 3, extra, 2);
        want_same(reference, outcome, wide[i]);
        run_on(fast, wide[i], 0, 3, extra, 4);
        want_near(fast, reference);
        free_outcome(fast);
        free_outcome(outcome);
    }
    free_outcome(reference);
}

/* ---- replicas ---- */

/* What each rank of 3 x 2 was told before and after one bit of one replica changed. */
struct apart {
    struct config config;
    int part; /* 0 parameters, 1 exp_avg, 2 exp_avg_sq */
    int before[6], after[6];
    char text[6][512];
};

static int come_apart(struct comm *world, void *user)
{
    struct apart *apart = user;
    struct kernels *kernels = NULL;
    struct model_table *table = NULL;
    struct parallel *p = NULL;
    struct replicas *replicas = NULL;
    uint32_t me = world->rank;
    ERR_TRY(new_kernels(&kernels, 1));
    ERR_TRY(new_table(&table, "tiny", VOCAB));
    ERR_TRY(parallel_apply(&p, &(struct parallel_options){&apart->config, table, kernels, world}));
    parallel_init_state(p, 3);
    struct state *state = parallel_state(p);
    ERR_TRY(replicas_open(&replicas, parallel_mesh_of(p), state));
    apart->before[me] = replicas_compare(replicas);
    const struct state_slice *slice = &state->slices[4];
    float *const parts[PARTS] = {state->param, state->exp_avg, state->exp_avg_sq};
    if (me == 3) /* replica 1, shard 1: the last of its rows */
        ((unsigned char *)(parts[apart->part] + slice->at + slice->count - 1))[0] ^= 1;
    report_clear();
    apart->after[me] = replicas_compare(replicas);
    snprintf(apart->text[me], sizeof(apart->text[me]), "%s", report_message());
    replicas_close(replicas);
    parallel_free(p);
    model_table_free(table);
    kernels_free(kernels);
    return 0;
}

static void test_parallel__a_replica_that_differs_in_one_bit_is_named(void **state)
{
    (void)state;
    static const char *const names[PARTS] = {"", "exp_avg of ", "exp_avg_sq of "};
    const char *extra[] = {"--parallelism.data_parallel_replicate_degree", "3"};
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    for (int part = 0; part < PARTS; part++) {
        struct apart apart = {.config = configure(extra, 2), .part = part};
        char want[256];
        assert_int_equal(comm_local_run(6, come_apart, &apart), 0);
        snprintf(want, sizeof(want),
                 "%s%s is not the same on rank 1 and rank 3; 2 of 3 replicas hold what rank 1 has",
                 names[part], table->tensors[4].name);
        for (int rank = 0; rank < 6; rank++) {
            assert_int_equal(apart.before[rank], 0);
            assert_int_equal(apart.after[rank], ERR_ABORTED);
            if (rank == 1) /* the lowest that saw it */
                assert_non_null(strstr(apart.text[rank], want));
            else
                assert_string_equal(apart.text[rank], "");
        }
    }
    model_table_free(table);
}

static void test_parallel__an_estimate_plans_without_starting_ranks(void **state)
{
    (void)state;
    const char *extra[] = {"--estimate"};
    struct config config = configure(extra, 1);
    struct comm world = {.rank = 0, .size = 4};
    struct kernels *kernels;
    struct model_table *table;
    struct parallel *p;
    uint64_t kept[2], shared[2];
    assert_int_equal(kernels_new(&kernels, &(struct kernels_options){.num_threads = 1}), 0);
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    for (int i = 0; i < 2; i++) {
        world.size = i == 0 ? 4 : 1;
        struct parallel_options options = {&config, table, kernels, &world};
        assert_int_equal(parallel_apply(&p, &options), 0);
        kept[i] = memory_kept_bytes(parallel_memory(p));
        shared[i] = memory_shared_bytes(parallel_memory(p));
        parallel_free(p);
    }
    /* Four parts of each parameter, moment and accumulator are kept alone, one of four by each. */
    uint64_t state_bytes = 4 * 4 * model_shape_parameters(&table->shape);
    assert_true(kept[1] - kept[0] > state_bytes * 70 / 100);
    assert_true(kept[1] - kept[0] < state_bytes * 80 / 100);
    assert_true(shared[0] > shared[1]); /* gathering needs room */
    model_table_free(table);
    kernels_free(kernels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallel__every_mesh_gives_the_same_bits_in_float),
        cmocka_unit_test(test_parallel__every_mesh_gives_the_same_bits_in_bf16),
        cmocka_unit_test(test_parallel__every_mesh_gives_a_tied_model_the_same_bits),
        cmocka_unit_test(test_parallel__every_mesh_gives_the_same_bits_within_documents),
        cmocka_unit_test(test_parallel__every_mesh_gives_the_same_bits_with_a_loss_mask),
        cmocka_unit_test(test_parallel__every_mesh_gives_the_same_bits_on_a_ramp),
        cmocka_unit_test(test_parallel__keeping_gathered_weights_changes_no_bit),
        cmocka_unit_test(test_parallel__a_run_that_moves_from_mesh_to_mesh_keeps_its_bits),
        cmocka_unit_test(test_parallel__fast_order_is_the_same_alone_and_near_elsewhere),
        cmocka_unit_test(test_parallel__one_rank_that_is_asked_to_stop_stops_all_before_a_step),
        cmocka_unit_test(test_parallel__samples_that_cannot_be_read_end_a_step_on_all_ranks_alike),
        cmocka_unit_test(test_parallel__a_cut_covers_every_row_once_as_fsdp2_cuts),
        cmocka_unit_test(test_parallel__a_world_that_does_not_fit_is_refused_with_the_sum),
        cmocka_unit_test(test_parallel__more_ranks_than_micro_batches_change_no_bit),
        cmocka_unit_test(test_parallel__a_replica_that_differs_in_one_bit_is_named),
        cmocka_unit_test(test_parallel__an_estimate_plans_without_starting_ranks),
    };
    return cmocka_run_group_tests(tests, make_tokens, remove_tokens);
}
