/* parallel_bed.c - a text and its tokens, runs of many ranks on them, and the results that must
 * agree: the losses and every tensor of the state. */
#include "tests/unit/parallel_bed.h"

char folder[64], tokens_path[96], marked_path[96], masked_path[96];
int (*bed_decide)(struct parallel *p, const struct step_result *result);
void (*bed_at_update)(bool is_posted);
struct device *bed_device;
const struct place places[NUM_PLACES] = {{1, 1, 2, 0, 0, 0}, {1, 2, 1, 0, 0, 0}, {2, 1, 1, 0, 0, 0},
                                         {1, 3, 2, 0, 0, 0}, {1, 4, 1, 0, 0, 0}, {2, 2, 2, 0, 0, 0},
                                         {1, 8, 1, 0, 0, 0}, {3, 1, 1, 0, 0, 0}, {3, 2, 1, 0, 0, 0},
                                         {7, 1, 1, 0, 0, 0}};
const struct place alone = {1, 1, 1, 0, 0, 0};

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

int make_tokens(void **state)
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

int remove_tokens(void **state)
{
    (void)state;
    unlink(tokens_path);
    unlink(marked_path);
    unlink(masked_path);
    return rmdir(folder);
}

const char *settings(const char *format, ...)
{
    static char texts[SETTINGS_KEPT][SETTINGS_BYTES];
    static unsigned next;
    char *text = texts[next++ % SETTINGS_KEPT];
    va_list arguments;
    va_start(arguments, format);
    assert_in_range(vsnprintf(text, SETTINGS_BYTES, format, arguments), 0, SETTINGS_BYTES - 1);
    va_end(arguments);
    return text;
}

int try_configure(struct config *out, const char *of)
{
    char text[4 * SETTINGS_BYTES], *argv[80] = {(char[]){"test"}}, *words[80], *rest = NULL;
    int argc = 1;
    /* 11 is no multiple of most numbers of ranks. */
    snprintf(text, sizeof(text),
             " model.flavor=tiny training.seq_len=32 training.local_batch_size=1"
             " canonical.micro_batches=11 training.mixed_precision_param=float32 training.steps=6"
             " lr_scheduler.warmup_steps=2 optimizer.lr=1e-2 training.dataset_path=%s %s",
             tokens_path, of);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        const char *file = strcmp(word, "marked") == 0   ? marked_path
                           : strcmp(word, "masked") == 0 ? masked_path
                                                         : NULL;
        assert_true(argc < 80);
        assert_true(file != NULL ? asprintf(&argv[argc++], "--training.dataset_path=%s", file) > 0
                                 : asprintf(&argv[argc++], "--%s", word) > 0);
    }
    memcpy(words, argv, sizeof(argv));
    int rc = trainer_config_load(out, argc, argv); /* may put others into argv */
    while (argc > 1)
        free(words[--argc]);
    return rc;
}

struct config configure(const char *of)
{
    struct config config;
    if (try_configure(&config, of) != 0)
        fail_msg("%s", report_line());
    return config;
}

/* ---- a plan ---- */

struct planned open_planned(const char *of)
{
    struct planned planned = {.config = configure(of)};
    struct model_shape shape;
    assert_int_equal(new_kernels(&planned.kernels, 1), 0);
    assert_int_equal(shape_of_settings(&shape, &planned.config, VOCAB), 0);
    assert_int_equal(model_table_new(&planned.table, &shape), 0);
    return planned;
}

void close_planned(struct planned *planned)
{
    model_table_free(planned->table);
    kernels_free(planned->kernels);
}

int estimated(struct dry_rank *out, uint32_t size, const char *of)
{
    struct planned of_run = open_planned(of);
    int rc = estimate_ranks(out, &of_run.config, of_run.table, of_run.kernels, size, NULL);
    close_planned(&of_run);
    return rc;
}

/* ---- a run ---- */

int open_ahead(struct ahead **out, const struct config *config, struct data *data,
               const struct mesh *mesh)
{
    struct ahead_options options = {.data = data,
                                    .batch = (uint32_t)config->local_batch_size,
                                    .rank = mesh_group_place(mesh, GROUP_DATA),
                                    .leaves = mesh_leaves(mesh, config),
                                    .wants_starts = config->document_mask,
                                    .leaves_of_step = trainer_config_leaves,
                                    .user = config};
    return ahead_open(out, &options);
}

size_t count_of(const struct model_tensor *tensor)
{
    return tensor->rows * tensor->width;
}

/* Compares a float with its value in the state: a moment of bf16 is a float that ends with
 * zeros. */
static void move_row(float *whole, void *own, size_t count, enum kernel_dtype dtype, bool out)
{
    if (dtype == KERNEL_F32) {
        memcpy(out ? (void *)whole : own, out ? own : whole, count * sizeof(float));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        char *narrow = (char *)own + i * 2, *wide = (char *)(whole + i) + 2;
        if (out)
            whole[i] = 0;
        memcpy(out ? wide : narrow, out ? narrow : wide, 2);
    }
}

/* Between the shard of a rank and the whole tensor: row by row of its box. `host` has the parts of
 * the state. */
static void move_slice(struct outcome *outcome, const struct model_table *table,
                       const struct state *state, const struct state_slice *slice,
                       char *const *host, bool out, bool is_last_copy)
{
    size_t index = (size_t)(slice->tensor - table->tensors);
    for (enum state_part part = 0; part < NUM_STATE_PARTS; part++) {
        const struct state_place *place = state_place(slice, part);
        const struct box *box = &place->box;
        size_t width = box->extent[1];
        bool is_own = state->is_zero && part != STATE_PARAM; /* no copy has it */
        for (uint64_t row = 0; row < box->extent[0] && (!out || is_last_copy || is_own); row++) {
            size_t at = (box->offset[0] + row) * slice->tensor->width + box->offset[1];
            enum kernel_dtype dtype = state_dtype(state, part);
            move_row(outcome->whole[part][index] + at,
                     host[part] + (place->at + row * width) * kernel_dtype_bytes(dtype), width,
                     dtype, out);
        }
    }
}

static int move_state(struct stretch *s, struct parallel *p, const struct model_table *table,
                      bool out)
{
    const struct mesh *mesh = parallel_mesh_of(p);
    struct state *state = parallel_state(p);
    struct lane *lane = state->lane;
    char *host[NUM_STATE_PARTS];
    for (enum state_part part = 0; part < NUM_STATE_PARTS; part++) {
        void *at = NULL;
        ERR_TRY(device_alloc(lane->device, &at, state_bytes(state, part), PINNED));
        host[part] = at;
        lane_copy(lane, at, state_at(state, part, 0), state_bytes(state, part));
    }
    int rc = lane_settle(lane);
    /* Copies hold the same bits: the holder of the last one writes. */
    bool is_last = mesh_group_place(mesh, GROUP_COPIES) == mesh_group_size(mesh, GROUP_COPIES) - 1;
    static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER; /* stages share a tied tensor */
    pthread_mutex_lock(&moving);
    for (uint32_t i = 0; i < state->num_slices && rc == 0; i++)
        move_slice(s->outcome, table, state, &state->slices[i], host, out, is_last);
    pthread_mutex_unlock(&moving);
    for (enum state_part part = 0; part < NUM_STATE_PARTS && !out; part++)
        lane_copy(lane, state_at(state, part, 0), host[part], state_bytes(state, part));
    if (rc == 0)
        rc = lane_settle(lane);
    for (enum state_part part = 0; part < NUM_STATE_PARTS; part++)
        device_free(lane->device, host[part]);
    if (!out)
        parallel_params_changed(p);
    return rc;
}

uint64_t first_sample(const struct config *config, int64_t step)
{
    uint64_t leaves = 0;
    for (int64_t i = 0; i < step; i++)
        leaves += trainer_config_leaves(config, i);
    return leaves * (uint64_t)config->local_batch_size;
}

struct updating {
    struct parallel *p;
    struct kernels *kernels;
    const struct config *config;
    int64_t step;
};

static int decide(void *user, const struct step_result *result)
{
    const struct updating *u = user;
    if (bed_decide != NULL)
        return bed_decide(u->p, result);
    struct optimizer_step step = {.update = u->step + 1,
                                  .lr = schedule_lr(u->config, u->step),
                                  .grad_norm = result->grad_norm};
    optimizer_begin(parallel_state(u->p), parallel_lane(u->p), u->config, &step);
    return 0;
}

static void update(void *user, uint32_t block)
{
    const struct updating *u = user;
    if (bed_at_update != NULL)
        bed_at_update(false);
    optimizer_update(parallel_state(u->p), u->kernels, parallel_lane(u->p), block);
    if (bed_at_update != NULL)
        bed_at_update(true);
}

static int train(struct rank *r, void *user)
{
    struct stretch *s = user;
    const struct config *config = &s->config;
    struct comm *world = r->world;
    struct parallel *p = r->p;
    if (s->first_step > 0)
        ERR_TRY(move_state(s, p, r->table, false));
    for (int64_t step = s->first_step; step < s->last_step; step++) {
        volatile sig_atomic_t stop = s->stop_on_rank_1 && step == 1;
        struct updating updating = {p, r->kernels, config, step};
        struct step_input input = {.ahead = r->ahead,
                                   .first_sample = first_sample(config, step),
                                   .step = step + 1,
                                   .want_stop = world->rank == 1 ? &stop : NULL,
                                   .poll_switches = s->poll_switches,
                                   .decide = decide,
                                   .update = update,
                                   .user = &updating};
        struct step_result result;
        ERR_TRY(parallel_step(p, &input, &result));
        if (world->rank < 8)
            s->seen[world->rank] = result.seen;
        if (result.is_dropped)
            break;
        parallel_params_updated(p);
        if (world->rank == 0) {
            s->outcome->loss[step + 1] = result.loss;
            s->outcome->grad_norm[step + 1] = result.grad_norm;
            s->outcome->digest[step + 1] = result.tokens_digest;
        }
        if (world->rank == world->size - 1)
            s->stopped_after = step + 1;
        if (result.stop)
            break;
    }
    ERR_TRY(comm_barrier(world));
    return move_state(s, p, r->table, true);
}

/* ---- a rank ---- */

static int rank_start(struct rank *r, const struct rank_options *options)
{
    const struct config *config = options->config;
    struct kernels_options kernels = {.backend = wants_plain_kernels() ? KERNEL_BACKEND_REFERENCE
                                                                       : KERNEL_BACKEND_BEST,
                                      .num_threads = (uint32_t)config->threads,
                                      .isa = config->has_isa ? config->text.kernels_isa : NULL,
                                      .device = options->device};
    struct model_shape shape;
    if (!options->has_no_data)
        ERR_TRY(data_open(&r->data, config->dataset_path, (uint32_t)config->seq_len, 3));
    ERR_TRY(kernels_new(&r->kernels, &kernels));
    r->used = r->kernels;
    if (options->counts)
        ERR_TRY(kernels_count_new(&r->used, r->kernels));
    ERR_TRY(shape_of_settings(&shape, config, r->data != NULL ? data_info(r->data)->vocab : 64));
    ERR_TRY(model_table_new(&r->table, &shape));
    ERR_TRY(parallel_apply(
        &r->p, &(struct parallel_options){config, r->table, r->used, r->world, options->device}));
    if (r->data != NULL)
        ERR_TRY(open_ahead(&r->ahead, config, r->data, parallel_mesh_of(r->p)));
    return parallel_init_state(r->p, 3);
}

int on_rank(struct comm *world, const struct rank_options *options)
{
    struct rank r = {.world = world};
    int rc = rank_start(&r, options);
    if (rc == 0)
        rc = options->run(&r, options->user);
    ahead_close(r.ahead);
    parallel_free(r.p);
    model_table_free(r.table);
    if (r.used != r.kernels)
        kernels_free(r.used);
    kernels_free(r.kernels);
    data_close(r.data);
    return rc;
}

static int ranks_main(struct comm *world, void *user)
{
    return on_rank(world, user);
}

int on_ranks(uint32_t size, const struct rank_options *options)
{
    return comm_local_run(size, ranks_main, (void *)(uintptr_t)options);
}

int rank_main(struct comm *world, void *user)
{
    const struct stretch *s = user;
    return on_rank(world,
                   &(struct rank_options){
                       .config = &s->config, .run = train, .user = user, .device = s->device});
}

struct outcome *new_outcome(void)
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

void free_outcome_list(struct outcome *const *list, size_t num)
{
    for (size_t i = 0; i < num; i++) {
        for (uint32_t t = 0; t < list[i]->num_tensors; t++)
            for (int part = 0; part < PARTS; part++)
                free(list[i]->whole[part][t]);
        free(list[i]);
    }
}

static int degree(int number)
{
    return number > 0 ? number : 1;
}

uint32_t place_size(struct place place)
{
    return (uint32_t)(place.replicas * place.shards * degree(place.pp) * degree(place.cp) *
                      degree(place.tp));
}

const char *settings_on(struct place place, const char *of)
{
    return settings("parallelism.data_parallel_replicate_degree=%d kernels.threads=%d"
                    " parallelism.pipeline_parallel_degree=%d"
                    " parallelism.context_parallel_degree=%d"
                    " parallelism.tensor_parallel_degree=%d %s",
                    place.replicas, place.threads, degree(place.pp), degree(place.cp),
                    degree(place.tp), of);
}

void run_on(struct outcome *outcome, struct place place, int64_t first, int64_t last,
            const char *of)
{
    struct stretch stretch = {.config = configure(settings_on(place, of)),
                              .first_step = first,
                              .last_step = last,
                              .outcome = outcome,
                              .device = bed_device};
    if (comm_local_run(place_size(place), rank_main, &stretch) != 0)
        fail_msg("%s", report_line());
}

struct outcome *outcome_of(struct place place, int64_t steps, const char *of)
{
    struct outcome *outcome = new_outcome();
    run_on(outcome, place, 0, steps, of);
    return outcome;
}

void want_same(const struct outcome *a, const struct outcome *b, struct place place)
{
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    if (memcmp(a->loss, b->loss, sizeof(a->loss)) != 0 ||
        memcmp(a->grad_norm, b->grad_norm, sizeof(a->grad_norm)) != 0)
        fail_msg("%dx%d (pp %d, cp %d, tp %d): the losses or norms differ", place.replicas,
                 place.shards, place.pp, place.cp, place.tp);
    if (memcmp(a->digest, b->digest, sizeof(a->digest)) != 0 || a->digest[1] == a->digest[2])
        fail_msg("%dx%d (pp %d, cp %d, tp %d): the digests of tokens differ", place.replicas,
                 place.shards, place.pp, place.cp, place.tp);
    for (uint32_t i = 0; i < table->num_tensors; i++)
        for (int part = 0; part < PARTS; part++)
            if (memcmp(a->whole[part][i], b->whole[part][i],
                       count_of(&table->tensors[i]) * sizeof(float)) != 0)
                fail_msg("%dx%d (pp %d, cp %d, tp %d): part %d of %s differs", place.replicas,
                         place.shards, place.pp, place.cp, place.tp, part, table->tensors[i].name);
    model_table_free(table);
}

size_t place_stride(void)
{
    return wants_plain_kernels() ? 3 : 1;
}

/* ---- one rank beside meshes ---- */

const struct outcome *reference_of(int64_t steps, const char *of)
{
    static struct {
        char *of;
        int64_t steps;
        struct outcome *outcome;
    } kept[REFERENCES_MAX];
    static size_t num;
    for (size_t i = 0; i < num; i++)
        if (kept[i].steps == steps && strcmp(kept[i].of, of) == 0)
            return kept[i].outcome;
    assert_true(num < REFERENCES_MAX);
    struct stretch stretch = {.last_step = steps, .outcome = new_outcome()};
    int rc = try_configure(&stretch.config, settings_on(alone, of));
    if (rc == 0)
        rc = comm_local_run(1, rank_main, &stretch);
    if (rc != 0) {
        free_outcomes(stretch.outcome);
        stretch.outcome = NULL;
    }
    kept[num].of = strdup(of);
    kept[num].steps = steps;
    kept[num++].outcome = stretch.outcome;
    return stretch.outcome;
}

static const struct outcome *want_reference(int64_t steps, const char *of)
{
    const struct outcome *reference = reference_of(steps, of);
    if (reference == NULL)
        fail_msg("%s: %s", of, report_line());
    assert_true(reference->loss[steps] > 0 && reference->grad_norm[steps] > 0);
    return reference;
}

void want_same_on(struct place place, int64_t steps, const char *run, const char *mesh)
{
    struct outcome *outcome = outcome_of(place, steps, settings("%s %s", run, mesh));
    want_same(want_reference(steps, run), outcome, place);
    free_outcomes(outcome);
}

void want_same_everywhere(const struct place *list, size_t num, const char *run, const char *mesh)
{
    for (size_t i = 0; i < num; i += place_stride())
        want_same_on(list[i], 3, run, mesh);
}

void want_same_moving(const struct place *moves, int64_t steps, const char *run)
{
    struct outcome *moving = new_outcome();
    for (int64_t step = 0; step < steps; step++)
        run_on(moving, moves[step], step, step + 1, run);
    want_same(want_reference(steps, run), moving, alone);
    free_outcomes(moving);
}

void want_near(const struct outcome *a, const struct outcome *b)
{
    for (int step = 1; step <= 3; step++) {
        assert_true(fabs(a->loss[step] / b->loss[step] - 1) < 1e-5);
        assert_true(fabs(a->grad_norm[step] / b->grad_norm[step] - 1) < 1e-4);
    }
}
