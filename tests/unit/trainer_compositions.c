/* trainer_compositions.c - which axes and modes compose, as documented in
 * trainer/parallel/README.md.
 *
 * Goal: the table there is correct. Method: every mode is run alone and with every other on a mesh
 * of threads, and compared byte by byte with one rank that has the same settings of the run;
 * impossible layouts are started for their messages. The resulting text must equal the README's;
 * UPDATE=1 writes it there. */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

#define README "trainer/parallel/README.md"
#define MARK_BEGIN "<!-- written by UPDATE=1 build/tests/trainer_compositions -->\n"
#define MARK_END "<!-- end -->\n"
#define TEXT_MAX 32768
#define STEPS 2

/* Settings that two modes cannot both set. */
enum key { KEY_SHARD, KEY_REPLICATE, KEY_TP, KEY_CP, KEY_PP, KEY_AC, KEY_RESHARD, KEY_OWN };

/* `run` belongs to the run, on one rank as well; `mesh` to the mesh. */
static const struct mode {
    const char *name;
    enum key key;
    uint32_t ranks;
    const char *run, *mesh;
} modes[] = {
    {"FSDP", KEY_SHARD, 2, "", "parallelism.data_parallel_shard_degree=2"},
    {"DDP (with FSDP: HSDP)", KEY_REPLICATE, 2, "", "parallelism.data_parallel_replicate_degree=2"},
    {"DDP with ZeRO-1 (ZeRO-2)", KEY_REPLICATE, 2, "",
     "parallelism.data_parallel_replicate_degree=2 parallelism.zero_stage=1"},
    {"tensor, sequence and loss parallel", KEY_TP, 2, "canonical.tp_blocks=2",
     "parallelism.tensor_parallel_degree=2"},
    {"context parallel", KEY_CP, 2, "canonical.cp_blocks=2",
     "parallelism.context_parallel_degree=2"},
    {"context parallel in a ring", KEY_CP, 2, "canonical.cp_blocks=2",
     "parallelism.context_parallel_degree=2 parallelism.context_parallel_rotate_method=alltoall"},
    {"context parallel, heads shared", KEY_CP, 2, "canonical.cp_blocks=2 canonical.tp_blocks=4",
     "parallelism.context_parallel_degree=2 parallelism.context_parallel_rotate_method=ulysses"},
    {"pipeline, GPipe", KEY_PP, 2, "",
     "parallelism.pipeline_parallel_degree=2 parallelism.pipeline_parallel_schedule=GPipe"},
    {"pipeline, 1F1B, stages by cost", KEY_PP, 2, "",
     "parallelism.pipeline_parallel_degree=2 parallelism.pipeline_parallel_cut=cost"},
    {"pipeline, Interleaved1F1B", KEY_PP, 2, "",
     "parallelism.pipeline_parallel_degree=2 "
     "parallelism.pipeline_parallel_schedule=Interleaved1F1B"},
    {"pipeline, ZBH1, stages by names", KEY_PP, 2, "",
     "parallelism.pipeline_parallel_degree=2 parallelism.pipeline_parallel_schedule=ZBH1 "
     "parallelism.module_fqns_per_model_part=tok_embeddings;layers.0,layers.1,norm,output"},
    {"reshard never", KEY_RESHARD, 1, "", "parallelism.fsdp_reshard_after_forward=never"},
    {"reshard always", KEY_RESHARD, 1, "", "parallelism.fsdp_reshard_after_forward=always"},
    {"recomputation, full", KEY_AC, 1, "", "activation_checkpoint.mode=full"},
    {"recomputation, every second layer", KEY_AC, 1, "", "activation_checkpoint.mode=selective"},
    {"recomputation, all but products", KEY_AC, 1, "",
     "activation_checkpoint.mode=selective activation_checkpoint.selective_ac_option=op"},
    {"recomputation, memory budget", KEY_AC, 1, "", "activation_checkpoint.mode=memory_budget"},
    {"no overlap", KEY_OWN, 1, "", "parallelism.gather_ahead=0 parallelism.exchange_behind=0"},
    {"gradients in buckets", KEY_OWN, 1, "", "parallelism.bucket_cap_mb=1"},
    {"three threads", KEY_OWN, 1, "", "kernels.threads=3"},
    {"tied embeddings", KEY_OWN, 1, "model.tied_embeddings=true", ""},
    {"bfloat16", KEY_OWN, 1, "training.mixed_precision_param=bfloat16", ""},
    {"float8 products", KEY_OWN, 1, "model.converters=quantize.linear.float8", ""},
    {"float8 products, FSDP of codes", KEY_SHARD, 2, "model.converters=quantize.linear.float8",
     "parallelism.data_parallel_shard_degree=2 "
     "quantize.linear.float8.enable_fsdp_float8_all_gather=true"},
    {"document mask", KEY_OWN, 1, "training.document_mask=true", ""},
    {"batch ramp", KEY_OWN, 1, "training.batch_ramp=0:3,1:5", ""},
    {"sums in groups of leaves", KEY_OWN, 1, "canonical.groups=5", ""},
    {"loss in chunks", KEY_OWN, 1, "canonical.loss_chunks=4", ""},
    {"reduction fast", KEY_OWN, 1, "training.reduction=fast", ""},
    {"reduction fast, sums of bfloat16", KEY_OWN, 1,
     "training.reduction=fast training.mixed_precision_reduce=bfloat16", ""},
    {"a vocabulary that blocks do not divide", KEY_OWN, 1, "canonical.tp_blocks=8 model.n_heads=8",
     ""}};
#define NUM_MODES (sizeof(modes) / sizeof(modes[0]))

/* Layouts that cannot work. */
static const struct refusal {
    uint32_t ranks;
    const char *settings;
} refusals[] = {
    {4, "parallelism.tensor_parallel_degree=3"},
    {3, "parallelism.tensor_parallel_degree=3"},
    {8, "parallelism.tensor_parallel_degree=8"},
    {4, "parallelism.tensor_parallel_degree=4 canonical.tp_blocks=2"},
    {2, "parallelism.context_parallel_degree=2 training.seq_len=30"},
    {2, "parallelism.context_parallel_degree=2 parallelism.context_parallel_rotate_method=ulysses"},
    {8, "parallelism.pipeline_parallel_degree=8"},
    {4, "parallelism.pipeline_parallel_degree=4 "
        "parallelism.pipeline_parallel_schedule=LoopedBFS"},
    {4, "parallelism.pipeline_parallel_degree=4 "
        "parallelism.pipeline_parallel_schedule=InterleavedZeroBubble"},
    {2, "parallelism.pipeline_parallel_degree=2 parallelism.pipeline_parallel_layers_per_stage=1"},
    {2, "parallelism.pipeline_parallel_degree=2 "
        "parallelism.pipeline_parallel_split_points=layers.0,layers.1"},
    {6, "parallelism.data_parallel_replicate_degree=2 parallelism.data_parallel_shard_degree=2"},
    {4, "canonical.cp_blocks=2 parallelism.context_parallel_degree=4"},
    {1, "canonical.tp_blocks=8"},
    {1, "canonical.tp_blocks=3"},
    {1, "canonical.groups=2"},
    {1, "training.mixed_precision_reduce=bfloat16"},
    {4, "training.mixed_precision_reduce=bfloat16 training.reduction=fast "
        "parallelism.data_parallel_replicate_degree=2 parallelism.zero_stage=2"},
    {1, "canonical.loss_chunks=7"},
    {1, "canonical.tp_blocks=4 model.n_heads=12 model.n_kv_heads=6 model.head_dim=16"}};
#define NUM_REFUSALS (sizeof(refusals) / sizeof(refusals[0]))

/* ---- runs ---- */

static int run_two_steps(struct outcome *out, uint32_t ranks, const char *of)
{
    struct stretch stretch = {.last_step = STEPS, .outcome = out};
    int rc = try_configure(&stretch.config, of);
    return rc != 0 ? rc : comm_local_run(ranks, rank_main, &stretch);
}

static bool is_same(const struct outcome *a, const struct outcome *b,
                    const struct model_table *table)
{
    bool is_same = memcmp(a->loss, b->loss, sizeof(a->loss)) == 0 &&
                   memcmp(a->grad_norm, b->grad_norm, sizeof(a->grad_norm)) == 0;
    for (uint32_t i = 0; i < table->num_tensors && is_same; i++)
        for (int part = 0; part < PARTS; part++)
            is_same = is_same && memcmp(a->whole[part][i], b->whole[part][i],
                                        count_of(&table->tensors[i]) * sizeof(float)) == 0;
    return is_same;
}

enum result { SAME, OTHER, REFUSED, EXCLUDED };

/* Of two modes together, or of one with itself. */
static enum result try_pair(size_t a, size_t b, const struct model_table *table)
{
    static const struct mode nothing = {.ranks = 1, .run = "", .mesh = ""};
    const struct mode *first = &modes[a], *second = a == b ? &nothing : &modes[b];
    if (a != b && first->key == second->key && first->key != KEY_OWN)
        return EXCLUDED;
    const char *run = settings("canonical.micro_batches=5 %s %s", first->run, second->run);
    const char *of_mesh = settings("%s %s %s", run, first->mesh, second->mesh);
    const struct outcome *reference = reference_of(STEPS, run);
    struct outcome *outcome = new_outcome();
    enum result result = REFUSED;
    if (reference != NULL && run_two_steps(outcome, first->ranks * second->ranks, of_mesh) == 0)
        result = is_same(reference, outcome, table) ? SAME : OTHER;
    if (result == SAME)
        assert_true(outcome->loss[STEPS] > 0);
    free_outcomes(outcome);
    return result;
}

/* ---- the text ---- */

struct text {
    char at[TEXT_MAX];
    size_t length;
};

static void put(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    t->length += (size_t)vsnprintf(t->at + t->length, TEXT_MAX - t->length, format, arguments);
    va_end(arguments);
    assert_true(t->length < TEXT_MAX);
}

/* The numbers of those whose result is `which`; "all" when all other possible ones are. */
static void put_numbers(struct text *t, const enum result *results, size_t self, enum result which)
{
    size_t num = 0, others = 0;
    for (size_t i = 0; i < NUM_MODES; i++) {
        num += i != self && results[i] == which;
        others += i != self && results[i] != EXCLUDED;
    }
    if (num == others)
        put(t, " all |");
    else if (which == SAME && num > others / 2)
        put(t, " all other |");
    for (size_t i = 0, n = 0; i < NUM_MODES && num < others && (which != SAME || num <= others / 2);
         i++)
        if (i != self && results[i] == which)
            put(t, "%s %zu", n++ > 0 ? "," : "", i + 1);
    if (num < others && (which != SAME || num <= others / 2))
        put(t, " |");
}

static void put_table(struct text *t, const struct model_table *table)
{
    static enum result results[NUM_MODES][NUM_MODES];
    for (size_t a = 0; a < NUM_MODES; a++)
        for (size_t b = a; b < NUM_MODES; b++)
            results[a][b] = results[b][a] = try_pair(a, b, table);
    put(t, "| | axis or mode | one rank's bits with | others with | refused with |\n"
           "|---|---|---|---|---|\n");
    for (size_t a = 0; a < NUM_MODES; a++) {
        assert_int_equal(results[a][a], SAME); /* alone */
        put(t, "| %zu | %s |", a + 1, modes[a].name);
        put_numbers(t, results[a], a, SAME);
        put_numbers(t, results[a], a, OTHER);
        put_numbers(t, results[a], a, REFUSED);
        put(t, "\n");
    }
}

static void put_refusals(struct text *t)
{
    struct outcome *nothing = new_outcome();
    put(t, "| ranks | settings | refused because |\n|---|---|---|\n");
    for (size_t i = 0; i < NUM_REFUSALS; i++) {
        report_clear();
        assert_int_equal(run_two_steps(nothing, refusals[i].ranks, refusals[i].settings),
                         ERR_INVALID);
        put(t, "| %u | ", refusals[i].ranks);
        for (const char *at = refusals[i].settings; *at != '\0'; at++)
            if (*at == '=' || *at == ' ')
                put(t, *at == '=' ? " = " : ", ");
            else
                put(t, "%c", *at);
        put(t, " | %s |\n", report_message());
    }
    free_outcomes(nothing);
}

/* ---- the README ---- */

static void write_readme(const char *before, size_t bytes, const char *text, const char *behind)
{
    FILE *file = fopen(README, "w");
    assert_non_null(file);
    fwrite(before, 1, bytes, file);
    fprintf(file, "%s%s", text, behind);
    assert_int_equal(fclose(file), 0);
}

TEST(test_compositions__the_readme_says_what_happens)
{
    static struct text text;
    static char readme[2 * TEXT_MAX];
    struct model_table *table;
    FILE *file = fopen(README, "r");
    if (wants_plain_kernels()) /* the same runs, fifty times slower: trainer_mesh_any has some */
        skip();
    assert_non_null(file);
    readme[fread(readme, 1, sizeof(readme) - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    put_table(&text, table);
    put(&text, "\nThese layouts are refused:\n\n");
    put_refusals(&text);
    model_table_free(table);
    char *begin = strstr(readme, MARK_BEGIN), *end = strstr(readme, MARK_END);
    assert_true(begin != NULL && end != NULL && begin < end);
    begin += strlen(MARK_BEGIN);
    bool is_equal = strlen(text.at) == (size_t)(end - begin) &&
                    memcmp(text.at, begin, (size_t)(end - begin)) == 0;
    if (!is_equal && getenv("UPDATE") != NULL)
        write_readme(readme, (size_t)(begin - readme), text.at, end);
    else if (!is_equal)
        fail_msg("%s is stale (UPDATE=1 writes it); what happens is:\n%s", README, text.at);
}

SUITE(make_tokens, remove_tokens)
