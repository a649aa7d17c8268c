/* trainer_hints.c - hints about allowed settings.
 *
 * Goal: each hint applies exactly where it should; its numbers are those of the program and of the
 * model. Method: facts that differ in one number; estimates of the tiny model, which are made of
 * the real program. */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/forecast/estimate.h"

static struct hint_facts plain_facts(void)
{
    struct hint_facts facts = {.degree = {1, 1, 1, 1, 1}, .num_ranks = 16};
    assert_int_equal(model_shape_of_flavor(&facts.shape, "llama3-8B", 0), 0);
    return facts;
}

/* The text of a hint; NULL: it does not apply. The caller's until the next call. */
static const char *hint_of(const struct hint_facts *facts, const char *id)
{
    static struct hint hints[HINTS_MAX];
    uint32_t num = hints_of_facts(hints, facts);
    for (uint32_t i = 0; i < num; i++)
        if (strcmp(hints[i].id, id) == 0)
            return hints[i].text;
    return NULL;
}

static void want_words(const char *text, const char *words)
{
    if (text == NULL || strstr(text, words) == NULL)
        fail_msg("no \"%s\" in: %s", words, text != NULL ? text : "(no hint)");
}

TEST(test_hints__only_a_pipeline_that_drops_shards_gathers_too_often)
{
    const char *id = "gathers_per_micro_batch";
    struct hint_facts facts = plain_facts(), other;
    facts.degree[AXIS_PP] = facts.degree[AXIS_SHARD] = 2;
    facts.drops = true;
    facts.micro_steps = 8;
    assert_non_null(hint_of(&facts, id));
    other = facts, other.drops = false;
    assert_null(hint_of(&other, id));
    other = facts, other.degree[AXIS_PP] = 1;
    assert_null(hint_of(&other, id));
    other = facts, other.degree[AXIS_SHARD] = 1;
    assert_null(hint_of(&other, id));
    other = facts, other.micro_steps = 1;
    assert_null(hint_of(&other, id));
}

TEST(test_hints__tensor_parallel_is_to_stay_on_a_machine)
{
    static const struct {
        uint32_t tp, on_machine;
        const char *words; /* NULL: no hint */
    } cases[] = {{8, 4, "tensor_parallel_degree = 4 stays"},
                 {4, 6, "tensor_parallel_degree = 3 stays"}, /* some groups cross, not all */
                 {2, 1, "tensor_parallel_degree = 1 stays"},
                 {8, 8, NULL},
                 {4, 8, NULL},
                 {1, 4, NULL},
                 {8, 16, NULL}, /* all ranks on one */
                 {3, 16, NULL},
                 {8, 0, NULL}}; /* no launcher says */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hint_facts facts = plain_facts();
        facts.degree[AXIS_TP] = cases[i].tp;
        facts.ranks_on_machine = cases[i].on_machine;
        const char *text = hint_of(&facts, "tensor_across_machines");
        if (cases[i].words != NULL)
            want_words(text, cases[i].words);
        else if (text != NULL)
            fail_msg("tp %u on %u ranks: %s", cases[i].tp, cases[i].on_machine, text);
    }
}

TEST(test_hints__leaves_are_to_be_added_on_a_machine_before_they_leave_it)
{
    const char *id = "leaves_across_machines";
    struct hint_facts facts = plain_facts(), other;
    facts.degree[AXIS_SHARD] = 16;
    facts.ranks_on_machine = 4;
    facts.sums_leaves = true;
    facts.leaves = 16;
    want_words(hint_of(&facts, id), "on 4 machines: 4 times the");
    want_words(hint_of(&facts, id), "one sum per machine; canonical.groups = 4 sums");
    other = facts, other.degree[AXIS_REPLICATE] = 8, other.degree[AXIS_SHARD] = 2;
    want_words(hint_of(&other, id), "replicate_degree = 4 with canonical.groups = 4");
    other = facts, other.degree[AXIS_PP] = 2, other.degree[AXIS_TP] = 2;
    want_words(hint_of(&other, id), "on 2 machines: 2 times the");
    other = facts, other.sums_leaves = false;
    assert_null(hint_of(&other, id));
    other = facts, other.ranks_on_machine = 16;
    assert_null(hint_of(&other, id));
    other = facts, other.ranks_on_machine = 0; /* no launcher says */
    assert_null(hint_of(&other, id));
    other = facts, other.degree[AXIS_TP] = 4; /* a leaf of each machine */
    assert_null(hint_of(&other, id));
    other = facts, other.leaves = 18; /* groups have as many leaves */
    assert_null(hint_of(&other, id));
}

TEST(test_hints__a_size_that_is_no_multiple_gets_the_nearest)
{
    static const struct {
        uint32_t dim, hidden, vocab;
        const char *words;
    } cases[] = {
        {4096, 14336, 50257, "model.vocab_size = 50257 is not a multiple of 128, 50304 is"},
        {4096, 14336, 128257, "128384 is"}, /* up only: the existing memory has to fit */
        {4096, 11000, 32000, "model.hidden_dim = 11000 is not a multiple of 128, 11008 is"},
        {4096, 11100, 32000, "11136 is"},
        {4096, 11030, 32000, "11008 is"},
        {2050, 5632, 32000, "model.dim = 2050 is not a multiple of 64, 2048 is"},
        {1001, 5632, 32000, "model.dim = 1001 is not a multiple of 8, 1000 is"},
        {1001, 5632, 50257, "model.vocab_size = 50257"}, /* the second of two */
        {2880, 5632, 32000, NULL},                       /* 45 x 64; 128 is more than a 32nd */
        {250, 100, 255, NULL},                           /* too small to matter */
        {1000, 1000, 1000, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hint_facts facts = plain_facts();
        facts.shape.dim = cases[i].dim;
        facts.shape.hidden = cases[i].hidden;
        facts.shape.vocab = cases[i].vocab;
        const char *text = hint_of(&facts, "unaligned_sizes");
        if (cases[i].words != NULL)
            want_words(text, cases[i].words);
        else if (text != NULL)
            fail_msg("%s", text);
    }
}

TEST(test_hints__threads_of_ranks_are_to_have_cores)
{
    struct hint_facts facts = plain_facts();
    facts.sharers = 4;
    facts.threads = 3;
    assert_null(hint_of(&facts, "few_cores")); /* no request */
    facts.cores = 12;
    assert_null(hint_of(&facts, "few_cores"));
    facts.cores = 11;
    want_words(hint_of(&facts, "few_cores"), "4 ranks with 3 threads each");
    want_words(hint_of(&facts, "few_cores"), "share 11 cores");
}

TEST(test_hints__no_flavor_has_one)
{
    char names[512];
    struct hint hints[HINTS_MAX];
    uint32_t num = 0;
    assert_true(snprintf(names, sizeof names, "%s", model_shape_flavors()) < (int)sizeof names);
    for (char *rest = NULL, *name = strtok_r(names, ", ", &rest); name != NULL;
         name = strtok_r(NULL, ", ", &rest), num++) {
        struct hint_facts facts = plain_facts();
        assert_int_equal(model_shape_of_flavor(&facts.shape, name, 0), 0);
        if (hints_of_facts(hints, &facts) > 0)
            fail_msg("%s: %s", name, hints[0].text);
    }
    assert_true(num > 10);
}

static void want_whole(const struct hint_facts *facts, uint32_t want)
{
    struct hint hints[HINTS_MAX];
    assert_int_equal(hints_of_facts(hints, facts), want);
    for (uint32_t i = 0; i < want; i++)
        assert_true(strlen(hints[i].text) < HINT_TEXT_BYTES - 1);
}

/* Of tensor parallel or of leaves across machines, with all others, and the largest numbers. */
TEST(test_hints__no_text_is_cut)
{
    struct hint_facts facts = {
        .degree = {65536, 1, 65536, 1, 65536},
        .num_ranks = UINT32_MAX,
        .ranks_on_machine = 65521,
        .drops = true,
        .micro_steps = UINT32_MAX,
        .gathers = UINT32_MAX,
        .blocks = UINT32_MAX,
        .gathered_bytes = UINT64_MAX,
        .cores = UINT32_MAX,
        .sharers = UINT32_MAX,
        .threads = UINT32_MAX,
        .shape = {.dim = 1 << 23 | 1, .hidden = 1 << 23 | 1, .vocab = 1 << 23 | 1}};
    want_whole(&facts, HINTS_MAX - 1);
    facts.degree[AXIS_PP] = facts.degree[AXIS_TP] = 1;
    facts.num_ranks = 65521 * 65521u;
    facts.sums_leaves = true;
    want_whole(&facts, HINTS_MAX - 2); /* no pipeline that gathers */
}

/* Of rank 0 of four: two stages of two shards. */
static void estimate(struct dry_rank stages[2], const char *policy, uint32_t tp)
{
    const char *of = settings("parallelism.pipeline_parallel_degree=2 canonical.micro_batches=8"
                              " model.vocab_size=384 comm.backend=mpi"
                              " parallelism.fsdp_reshard_after_forward=%s"
                              " parallelism.tensor_parallel_degree=%u",
                              policy, tp);
    assert_int_equal(estimated(stages, 4 * tp, of), 0);
}

static uint64_t calls_of(const struct dry_rank *rank, const char *group)
{
    uint64_t calls = 0;
    for (uint32_t i = 0; i < rank->num_sent; i++)
        calls += strcmp(rank->sent[i].group, group) == 0 && rank->sent[i].kind == COMM_ALL_GATHER
                     ? rank->sent[i].calls
                     : 0;
    return calls;
}

/* Stage 0 has the embedding and a layer. */
TEST(test_hints__an_estimate_counts_the_gathers_of_its_program)
{
    struct dry_rank stages[2];
    char words[96];
    estimate(stages, "default", 1);
    assert_int_equal(stages[0].num_hints, 0);
    assert_int_equal(calls_of(&stages[0], "dp_shard"), 2);
    estimate(stages, "always", 1);
    assert_int_equal(stages[0].num_hints, 1);
    uint64_t calls = calls_of(&stages[0], "dp_shard");
    assert_true(calls >= 4 * 2); /* each block at least once for each micro-batch */
    snprintf(words, sizeof words, "its 2 blocks %u times in a step of 4 micro-batches",
             (uint32_t)calls);
    want_words(stages[0].hints[0].text, words);
}

/* On the CPU, of a plan that is no estimate. */
static int find_few_cores(struct rank *r, void *user)
{
    struct hint hints[HINTS_MAX];
    for (uint32_t i = 0, num = parallel_hints(hints, r->p); i < num; i++)
        *(bool *)user = *(bool *)user || strcmp(hints[i].id, "few_cores") == 0;
    return 0;
}

TEST(test_hints__threads_of_a_rank_on_the_cpu_count)
{
    bool is_found = false;
    if (sysconf(_SC_NPROCESSORS_ONLN) >= 256)
        skip();
    struct config config =
        configure(settings("kernels.threads=%ld", sysconf(_SC_NPROCESSORS_ONLN) + 1));
    struct rank_options options = {
        .config = &config, .run = find_few_cores, .user = &is_found, .has_no_data = true};
    assert_int_equal(on_ranks(1, &options), 0);
    assert_true(is_found);
}

TEST(test_hints__the_launcher_says_how_many_ranks_a_machine_has)
{
    struct dry_rank stages[2];
    estimate(stages, "default", 2);
    assert_int_equal(stages[0].num_hints, 0);
    static const char *const launchers[][2] = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
    for (size_t i = 0; i < sizeof(launchers) / sizeof(*launchers); i++) {
        setenv(launchers[i][0], launchers[i][1], 1);
        estimate(stages, "default", 2);
        unsetenv(launchers[i][0]);
        assert_int_equal(stages[0].num_hints, 1);
        assert_string_equal(stages[0].hints[0].id, "tensor_across_machines");
    }
}

SUITE(make_tokens, remove_tokens)
