/* trainer_config.c - the trainer's configuration.
 *
 * Goal: defaults, file and command line win in that order; torchtitan's whole key surface is
 * known; features that this version lacks are refused by name; batch sizes and the schedule are
 * completed. Method: TOML files written to a scratch folder and argument vectors through
 * trainer_config_load(); the messages of refusals must contain the key, the value and the
 * remedy. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/config/config.h"
#include "trainer/config/table.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARGUMENTS_MAX 16

static char folder[64], file[96], model[96];

static void write_text(const char *path, const char *text)
{
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(folder, sizeof(folder), "%s", tmp != NULL ? tmp : "/tmp");
    snprintf(file, sizeof(file), "%s/config.toml", folder);
    snprintf(model, sizeof(model), "%s/tokenizer.model", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    unlink(model);
    return 0;
}

/* trainer_config_load() of `trainer <arguments, separated by blanks>`. */
static int load_alone(struct config *out, const char *arguments, ...)
    __attribute__((format(printf, 2, 3)));
static int load_alone(struct config *out, const char *arguments, ...)
{
    char text[1024], *argv[ARGUMENTS_MAX] = {"trainer"};
    int argc = 1;
    va_list values;
    va_start(values, arguments);
    vsnprintf(text, sizeof(text), arguments, values);
    va_end(values);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(argc < ARGUMENTS_MAX - 1);
        argv[argc++] = word;
    }
    report_clear();
    return trainer_config_load(out, argc, argv);
}

/* The same of a trainer that has data. */
static int load(struct config *out, const char *arguments)
{
    return load_alone(out, "--training.dataset_path x %s", arguments);
}

/* The same with a file of this text, whose name precedes the arguments. */
static int load_file(struct config *out, const char *text, const char *arguments)
{
    write_text(file, text);
    return load_alone(out, "--training.dataset_path x --config %s %s", file, arguments);
}

/* Refused, with every one of the words in the line that the user sees. */
static void check_said(int result, const char *word1, const char *word2)
{
    assert_int_equal(result, ERR_INVALID);
    assert_non_null(strstr(report_line(), word1));
    assert_non_null(strstr(report_line(), word2));
    assert_null(strchr(report_line(), '\n'));
}

static void check_refused(const char *arguments, const char *word1, const char *word2)
{
    struct config config;
    check_said(load(&config, arguments), word1, word2);
}

static json_t *json_at(json_t *json, const char *key)
{
    char path[96], *rest = NULL;
    snprintf(path, sizeof(path), "%s", key);
    for (char *part = strtok_r(path, ".", &rest); part; part = strtok_r(NULL, ".", &rest))
        json = json_object_get(json, part);
    return json;
}

/* "section.key=value section.key=value": the configuration has these. */
static void check_settings(const struct config *config, const char *wanted)
{
    char *text = trainer_config_to_json(config), words[512], *rest = NULL;
    json_t *json = json_loads(text, 0, NULL);
    snprintf(words, sizeof(words), "%s", wanted);
    for (char *key = strtok_r(words, "= ", &rest); key; key = strtok_r(NULL, "= ", &rest)) {
        const char *value = strtok_r(NULL, " ", &rest);
        const json_t *at = json_at(json, key);
        bool is_same = json_is_string(at)    ? strcmp(json_string_value(at), value) == 0
                       : json_is_boolean(at) ? json_is_true(at) == (value[0] == 't')
                                             : at && json_number_value(at) == strtod(value, NULL);
        if (!is_same)
            fail_msg("%s is not %s", key, value);
    }
    json_decref(json);
    free(text);
}

static void check_set(const char *arguments, const char *wanted)
{
    struct config config;
    assert_int_equal(load(&config, arguments), 0);
    check_settings(&config, wanted);
}

TEST(test_config__defaults_are_torchtitans_or_favour_exact_resume)
{
    struct config config;
    char address[64];
    snprintf(address, sizeof(address), "unix:/tmp/holdfast-%u/ckptd.sock", (unsigned)getuid());
    assert_int_equal(load(&config, ""), 0);
    check_settings(&config,
                   "model.flavor=debugmodel optimizer.lr=8e-4 optimizer.beta1=0.9 "
                   "optimizer.beta2=0.95 optimizer.eps=1e-8 optimizer.weight_decay=0.1 "
                   "training.max_norm=1 lr_scheduler.warmup_steps=200 training.steps=10000 "
                   "training.seq_len=2048 training.local_batch_size=8");
    check_settings(&config, "checkpoint.interval=500 checkpoint.load_step=-1 "
                            "parallelism.data_parallel_shard_degree=-1 "
                            "comm.init_timeout_seconds=300 comm.train_timeout_seconds=100 "
                            "checkpoint.last_save_model_only=false checkpoint.keep_latest_k=0");
    assert_string_equal(config.ckptd_address, address);
    assert_string_equal(config.exclude_from_loading, "");
    assert_true(config.kept_part == 0.5 && config.budget_bytes == 0);
}

TEST(test_config__an_interval_is_a_number_or_auto)
{
    struct config config;
    assert_int_equal(load(&config, "--checkpoint.interval auto --checkpoint.mtbf 30d"), 0);
    assert_int_equal(config.interval_type, INTERVAL_AUTO);
    assert_true(config.mtbf_seconds == 30 * 86400);
    assert_int_equal(load(&config, "--checkpoint.interval 7"), 0);
    assert_int_equal(config.interval_type, INTERVAL_STEPS);
    assert_true(config.mtbf_seconds == 86400);
}

TEST(test_config__rates_that_links_measured_take_the_place_of_those_that_are_not_given)
{
    static struct config config;
    write_text(model, "{\"rows\": [], \"memory_estimation\": {\"machine_gb_per_s\": 7.5, "
                      "\"call_us\": 33}}");
    assert_int_equal(load_alone(&config, "--training.dataset_path x --suggest --rates %s", model),
                     0);
    assert_true(config.machine_gb == 7.5 && config.network_gb == 50 && config.call_us == 33);
    assert_string_equal(config.rates_measured, "machine_gb_per_s, call_us");
    assert_int_equal(
        load_alone(&config, "--training.dataset_path x --rates %s --memory_estimation.call_us 20",
                   model),
        0);
    assert_true(config.machine_gb == 7.5 && config.call_us == 20);
    assert_string_equal(config.rates_measured, "machine_gb_per_s");
    write_text(model, "{\"ranks\": []}");
    assert_int_equal(load_alone(&config, "--training.dataset_path x --rates %s", model),
                     ERR_INVALID);
    assert_non_null(strstr(report_line(), "tokenizer.model\": it has no rates of --links (write "
                                          "it with `trainer --links --json > FILE`"));
    check_refused("--rates /nowhere/links.json", "/nowhere/links.json", "trainer --links --json");
}

TEST(test_config__command_line_wins_over_file_wins_over_defaults)
{
    struct config config;
    write_text(file, "[training]\nsteps = 7\nseq_len = 64\n[checkpoint]\nenable = true\n"
                     "[model]\nname = \"llama\"\n");
    assert_int_equal(
        load_alone(&config, "--training.dataset_path x --training.steps 9 --config %s", file), 0);
    check_settings(&config, "training.steps=9 training.seq_len=64 checkpoint.enable=true");
    assert_string_equal(config.config_file, file);
    assert_int_equal(config.model_family, FAMILY_LLAMA2);
    assert_int_equal(load_alone(&config,
                                "--training.dataset_path x --job.config_file=%s "
                                "--checkpoint.no_enable --estimate",
                                file),
                     0);
    check_settings(&config, "training.steps=7 checkpoint.enable=false");
    assert_true(config.estimate);
}

/* The file selects by the key that has precedence over the command line's, then by the other
 * one. */
TEST(test_config__what_the_command_line_selects_clears_what_the_file_selected)
{
    static const struct {
        bool is_mixture; /* the file selects by */
        const char *arguments, *data;
    } cases[] = {{false, "--training.dataset c4", "c4"},
                 {false, "--training.mixture a:1,b:2", "a:1,b:2"},
                 {false, "--model.flavor llama2-7B --validation.dataset c4_validation", "theirs"},
                 {true, "--training.dataset_path mine", "mine"},
                 {true, "--training.dataset_path=", "a:1,b:2"}}; /* nothing selects nothing */
    struct config config;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_text(file,
                   cases[i].is_mixture
                       ? "[training]\nmixture = \"a:1,b:2\"\ndataset = \"c4\"\n"
                       : "[training]\ndataset_path = \"theirs\"\n[model]\nconfig = \"there\"\n"
                         "[validation]\nenable = true\ndataset_path = \"v\"\n");
        assert_int_equal(load_alone(&config, "--config %s %s", file, cases[i].arguments), 0);
        assert_string_equal(trainer_config_data(&config), cases[i].data);
        if (i == 2) {
            assert_string_equal(trainer_config_validation_data(&config), "c4_validation");
            assert_string_equal(config.model_config, "");
        }
    }
}

TEST(test_config__mistakes_are_named)
{
    struct config config;
    check_refused("--training.stepz 5", "training.stepz", "training.steps");
    check_refused("--training.steps -3", "training.steps", "-3");
    check_refused("--optimizer.lr fast", "optimizer.lr", "fast");
    check_refused("--checkpoint.async_mode sometimes", "sometimes", "disabled");
    check_refused("--kernels.isa avx1024", "avx1024", "avx512");
    check_refused("--checkpoint.interval often", "checkpoint.interval", "or auto is wanted");
    check_refused("--checkpoint.interval auto --checkpoint.interval_type seconds", "auto",
                  "interval_type");
    check_refused("--checkpoint.mtbf 24", "checkpoint.mtbf", "24h");
    check_refused("--checkpoint.mtbf 0h", "checkpoint.mtbf", "24h");
    check_refused("--kernels.threads 257", "kernels.threads", "256");
    check_refused("--optimizer.eps 0", "optimizer.eps", "1e-30");
    check_refused("--activation_checkpoint.mode selective "
                  "--activation_checkpoint.selective_ac_option 0",
                  "selective_ac_option = 0", "or op");
    assert_int_equal(load(&config, "--config /nowhere.toml"), ERR_NOT_FOUND);
    assert_non_null(strstr(report_line(), "/nowhere.toml"));
    check_refused("stray", "stray", "--section.key value");
    check_said(load_file(&config, "[training]\n\nseq_lem = 64\n", ""), "config.toml:3", "seq_len");
    check_refused("--checkpoint.exclude_from_loading optimizer,model", "\"model\"", "dataloader");
}

TEST(test_config__what_this_version_lacks_is_refused)
{
    check_refused("--parallelism.pipeline_parallel_schedule DualPipeV", "DualPipeV", "1F1B");
    check_refused("--parallelism.context_parallel_rotate_method ring", "rotate_method", "alltoall");
    check_refused("--model.converters quantize.linear.mx", "model.converters",
                  "quantize.linear.mx");
    check_refused("--model.converters float8 --quantize.linear.float8.recipe_name rowwise",
                  "quantize.linear.float8.recipe_name", "rowwise");
    check_refused("--training.dtype bfloat16", "lose small updates", "one of float32");
    check_refused("--checkpoint.enable --checkpoint.partial", "checkpoint.partial needs",
                  "set checkpoint.initial_load_path");
    check_refused("--checkpoint.enable --replay 0", "replay_step = 0", "training.steps");
    check_refused("--checkpoint.enable --replay 9 --training.steps 8", "replay_step = 9",
                  "training.steps = 8");
    check_refused("--checkpoint.enable --replay 9 --checkpoint.load_step 9", "load_step = 9",
                  "no later");
    check_refused("--replay 9", "debug.replay_step", "checkpoint.enable");
    check_refused("--checkpoint.enable --blame", "debug.replay_blame", "--replay STEP");
    check_refused("--training.nonfinite warn", "training.nonfinite = 'warn'",
                  "every later checkpoint: skip logs a warning and leaves it out");
    check_refused("--training.nonfinite roll_back", "nonfinite = roll_back needs",
                  "checkpoint.enable");
    check_refused("--training.outlying roll_back", "outlying = roll_back needs",
                  "checkpoint.enable");
    check_refused("--training.outlying drop", "training.outlying", "off,warn,skip,roll_back");
    check_refused("--training.outlying_window 513", "training.outlying_window", "16 to 512");
    check_refused("--checkpoint.partial_fresh output", "partial_fresh = \"output\"",
                  "checkpoint.partial = true");
    check_refused("--checkpoint.initial_load_path /x", "checkpoint.initial_load_path",
                  "checkpoint.enable");
}

/* They are refused by key and value, and accepted where they ask for the trainer's behaviour. */
TEST(test_config__keys_whose_loss_would_change_the_training_are_refused)
{
    static const char *const cases[][3] = {
        {"model.norm_type", "layernorm", "rmsnorm"},
        {"training.dtype", "bfloat16", "float32"},
        {"optimizer.implementation", "fused_opt_states_bf16", "fused"},
        {"optimizer.param_groups", "norms", ""},
        {"debug.batch_invariant", "true", "false"},
        {"lr_scheduler.warmup_pct", "0.1", ""},
        {"training.warmup_pct", "0.1", ""},
        {"job.custom_config_module", "mine.config", ""},
        {"experimental.custom_import", "mine", ""},
        {"experimental.custom_model_path", "/mine.py", ""},
        {"fault_tolerance.enable", "true", "false"},
        {"fault_tolerance.semi_sync_method", "diloco", ""},
        {"checkpoint.initial_load_in_hf_quantized", "true", "false"},
        {"training.data_parallel_type", "ddp", "fsdp"},
        {"training.enable_loss_parallel", "false", "true"},
        {"model.attn_mask_type", "block_causal", "causal"},
        {"float8.scaling_type_input", "delayed", "dynamic"},
    };
    struct config config;
    char argument[128];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(argument, sizeof(argument), "--%s=%s", cases[i][0], cases[i][1]);
        check_refused(argument, cases[i][0], cases[i][1]);
        snprintf(argument, sizeof(argument), "--%s=%s", cases[i][0], cases[i][2]);
        assert_int_equal(load(&config, argument), 0);
    }
}

TEST(test_config__a_files_value_stops_no_start_where_the_command_line_has_another)
{
    struct config config;
    static const char text[] = "[model]\nname = \"mine\"\n[training]\nsteps = -1\n";
    check_said(load_file(&config, text, "--training.steps 9"), "mine", "model.name");
    assert_int_equal(load_file(&config, text, "--training.steps 9 --model.name llama"), 0);
    assert_int_equal(config.model_family, FAMILY_LLAMA2);
}

TEST(test_config__a_memory_budget_is_a_part_or_bytes)
{
    struct config config;
    assert_int_equal(load(&config, "--activation_checkpoint.memory_budget 1"), 0);
    assert_true(config.kept_part == 1 && config.budget_bytes == 0);
    assert_int_equal(load(&config, "--activation_checkpoint.memory_budget 3GiB"), 0);
    assert_int_equal(config.budget_bytes, 3ll << 30);
    assert_int_equal(load(&config, "--activation_checkpoint.memory_budget 4096"), 0);
    assert_int_equal(config.budget_bytes, 4096);
    static const char *const wrong[] = {"1.5", "-1", "0GiB", "3GB", "all"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char argument[64];
        snprintf(argument, sizeof(argument), "--activation_checkpoint.memory_budget %s", wrong[i]);
        check_refused(argument, "memory_budget", wrong[i]);
    }
}

TEST(test_config__older_names_set_the_key_that_replaced_them)
{
    check_set("--training.batch_size 3 --training.seed 4 "
              "--lr_scheduler.lr_min 0.25 --checkpoint.enable_checkpoint "
              "--training.data_parallel_replicate_degree 2 --job.print_args",
              "training.local_batch_size=3 debug.seed=4 "
              "lr_scheduler.min_lr_factor=0.25 checkpoint.enable=true "
              "job.print_config=true parallelism.data_parallel_replicate_degree=2");
}

/* torchtitan before 0.2 has them in a separate section. */
TEST(test_config__older_float8_keys_decide_as_the_newer_ones)
{
    struct config config;
    assert_int_equal(load_file(&config,
                               "[model]\nconverters = [\"float8\"]\n[float8]\n"
                               "recipe_name = \"tensorwise\"\nfilter_fqns = [\"wk\", \"w2\"]\n"
                               "enable_fsdp_float8_all_gather = true\n",
                               ""),
                     0);
    assert_true(config.is_float8);
    assert_string_equal(config.text.float8_recipe, "tensorwise");
    assert_string_equal(config.float8_filter, "wk,w2");
    assert_true(config.float8_gather);
    assert_int_equal(load(&config, "--quantize.dense.float8.filter_fqns wo"), 0);
    assert_string_equal(config.float8_filter, "wo");
    check_refused("--model.converters float8 --float8.recipe_name rowwise",
                  "quantize.linear.float8.recipe_name = rowwise", "give tensorwise");
    assert_int_equal(config.float8_gradients, FLOAT8_E5M2);
    check_refused("--quantize.linear.float8.grad_output_dtype float8_e4m3fn",
                  "quantize.linear.float8.grad_output_dtype = float8_e4m3fn", "model.converters");
    char type[CONFIG_TYPE_MAX];
    assert_int_equal(load(&config, "--model.converters float8 "
                                   "--quantize.linear.float8.grad_output_dtype float8_e4m3fn"),
                     0);
    assert_string_equal(config_describe_type(type, &config),
                        "bfloat16, float8 products, e4m3 gradients");
    assert_int_equal(load(&config, "--training.mixed_precision_reduce bfloat16"), 0);
    assert_string_equal(config_describe_type(type, &config),
                        "bfloat16, sums of gradients in bfloat16");
    assert_int_equal(load(&config, "--training.enable_fp8_linear"), 0);
    assert_true(config.is_float8);
}

TEST(test_config__names_of_other_releases_of_torchtitan_mean_what_they_meant)
{
    struct config config;
    assert_int_equal(load(&config, "--parallelism.num_pp_microbatches 4 --loss.num_chunks 8 "
                                   "--debug.print_config --debug.save_config_file c.json "
                                   "--training.max_context_length 64"),
                     0);
    check_settings(&config,
                   "parallelism.pipeline_parallel_microbatches=4 canonical.loss_chunks=8 "
                   "job.print_config=true job.save_config_file=c.json training.seq_len=64");
    assert_false(config.estimate || config.no_color);
    assert_int_equal(load(&config, "--comm.mode fake_backend"), 0);
    assert_true(config.estimate);
    assert_int_equal(load(&config, "--metrics.no_enable_color_printing"), 0);
    assert_true(config.no_color);
    unsetenv("NO_COLOR");
    assert_true(config.kernels_graphs);
    assert_int_equal(load(&config, "--training.disable_cuda_graphs --debug.detect_anomaly "
                                   "--profiler.enable_profiling --profiler.profile_freq 7 "
                                   "--profiler.profiler_repeat 2 --dataloader.seed 42"),
                     0);
    assert_false(config.kernels_graphs);
    check_settings(&config, "debug.watch_numbers=true profiling.enable_profiling=true "
                            "profiling.profile_freq=7");
    check_refused("--comm.mode local_tensor", "comm.mode", "comm.backend = local");
    check_refused("--parallelism.pipeline_parallel_schedule ZBVZeroBubble", "ZBVZeroBubble",
                  "InterleavedZeroBubble");
    check_refused("--training.num_tokens_per_microbatch_per_dp_rank 16384",
                  "training.num_tokens_per_microbatch_per_dp_rank", "local_batch_size");
}

/* The sections of torchtitan's documentation with the values its own files carry. */
TEST(test_config__a_torchtitan_file_loads)
{
    struct config config;
    assert_int_equal(
        load_file(
            &config,
            "[job]\ndump_folder = \"./outputs\"\ndescription = \"Llama 3 debug training\"\n"
            "print_config = false\n[profiling]\nenable_profiling = false\nprofile_freq = 10\n"
            "enable_memory_snapshot = false\n[metrics]\nlog_freq = 1\n"
            "enable_tensorboard = false\n[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n"
            "hf_assets_path = \"\"\nconverters = []\n[optimizer]\nname = \"AdamW\"\n"
            "lr = 8e-4\neps = 1e-8\nimplementation = \"fused\"\n[lr_scheduler]\n"
            "warmup_steps = 2\ndecay_ratio = 0.8\ndecay_type = \"linear\"\n"
            "min_lr_factor = 0.0\n[training]\nlocal_batch_size = 8\nseq_len = 2048\n"
            "max_norm = 1.0\nsteps = 10\ndataset = \"c4_test\"\n"
            "[training.dataloader]\nnum_workers = 2\n[parallelism]\n"
            "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1\n"
            "fsdp_reshard_after_forward = \"default\"\ntensor_parallel_degree = 1\n"
            "enable_async_tensor_parallel = false\npipeline_parallel_degree = 1\n"
            "module_fqns_per_model_part = [[\"tok_embeddings\", \"layers.0\"],\n"
            "    [\"norm\", \"output\"]]\n"
            "context_parallel_degree = 1\n[checkpoint]\nenable = false\n"
            "folder = \"checkpoint\"\ninterval = 10\nlast_save_model_only = false\n"
            "export_dtype = \"float32\"\nasync_mode = \"disabled\"\nkeep_latest_k = 10\n"
            "exclude_from_loading = [\"optimizer\", \"lr_scheduler\"]\n[compile]\n"
            "enable = false\ncomponents = [\"model\", \"loss\"]\n[quantize.linear.float8]\n"
            "enable_fsdp_float8_all_gather = false\nfilter_fqns = [\"output\"]\n"
            "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"2\"\n"
            "[comm]\ntrain_timeout_seconds = 15\n[validation]\nenable = false\nfreq = 5\n"
            "[debug]\nseed = 3\ndeterministic = true\n",
            ""),
        0);
    check_settings(&config,
                   "training.steps=10 debug.seed=3 lr_scheduler.decay_ratio=0.8 "
                   "checkpoint.exclude_from_loading=optimizer,lr_scheduler "
                   "parallelism.module_fqns_per_model_part=tok_embeddings,layers.0;norm,output");
}

static bool stores(const struct option *option)
{
    return option->type != OPTION_TYPE_ALIAS && option->type != OPTION_TYPE_IGNORED &&
           option->type != OPTION_TYPE_FIXED;
}

TEST(test_config__every_key_of_the_table_is_sound)
{
    for (const struct option *a = config_table(); a->key != NULL; a++) {
        bool found = a->type != OPTION_TYPE_ALIAS;
        for (const struct option *b = config_table(); b->key != NULL; b++) {
            assert_true(a == b || strcmp(a->key, b->key) != 0); /* no key twice */
            if (a->type == OPTION_TYPE_ALIAS && strcmp(a->choices, b->key) == 0)
                found = stores(b);
        }
        assert_true(found); /* an alias of a key with a field */
        assert_true(a->type == OPTION_TYPE_ALIAS || (a->help != NULL && a->help[0] != '\0'));
    }
}

static void check_batches(const char *arguments, int64_t local, int64_t micro, int64_t global)
{
    struct config config;
    assert_int_equal(load(&config, arguments), 0);
    assert_int_equal(config.local_batch_size, local);
    assert_int_equal(config.micro_batches, micro);
    assert_int_equal(config.global_batch_size, global);
}

TEST(test_config__batch_sizes_come_out_settled)
{
    check_batches("--training.global_batch_size 24", 8, 3, 24);
    check_batches("--canonical.micro_batches 5", 8, 5, 40);
    check_batches("", 8, 8, 64);
    check_refused("--training.global_batch_size 20", "training.global_batch_size = 20", "multiple");
    check_refused("--training.global_batch_size 24 --canonical.micro_batches 4",
                  "canonical.micro_batches 4", "leave one");
    check_refused("--training.global_batch_size 0", "training.global_batch_size = 0", "-1");
    check_refused("--parallelism.data_parallel_shard_degree 0", "shard_degree = 0", "-1");
    check_refused("--training.local_batch_size 65536 --training.seq_len 65536",
                  "local_batch_size = 65536 x seq_len 65536", "16777216");
}

TEST(test_config__a_pipeline_cuts_a_local_batch_into_micro_batches)
{
#define PP2 "--parallelism.pipeline_parallel_degree 2 "
#define SIZE "--parallelism.pipeline_parallel_microbatch_size "
    struct config config;
    check_batches(SIZE "2", 8, 8, 64); /* no pipeline cuts */
    check_batches(PP2, 8, 8, 64);
    check_batches(PP2 SIZE "8", 8, 8, 64);
    check_batches(PP2 SIZE "2", 2, 32, 64);
    check_batches(PP2 SIZE "2 --training.global_batch_size 24", 2, 12, 24);
    check_batches(PP2 SIZE "2 --canonical.micro_batches 3", 2, 12, 24);
    check_batches(PP2 "--experimental.pipeline_parallel_microbatches 8", 1, 64, 64);
    assert_int_equal(load(&config, PP2 SIZE "4 --training.batch_ramp 0:1,5:3"), 0);
    assert_int_equal(trainer_config_leaves(&config, 4), 2);
    assert_int_equal(trainer_config_leaves(&config, 5), 6);
    check_refused(PP2 SIZE "3", "pipeline_parallel_microbatch_size = 3", "local_batch_size = 8");
    check_refused(PP2 "--parallelism.pipeline_parallel_microbatches 3", "microbatches = 3",
                  "local_batch_size = 8");
}

TEST(test_config__the_schedule_comes_out_settled)
{
    check_set("--training.steps 50 --lr_scheduler.warmup_steps 80",
              "lr_scheduler.total_steps=50 lr_scheduler.warmup_steps=50");
    check_set("--training.steps 50 --lr_scheduler.total_steps 500", "lr_scheduler.total_steps=500");
    check_refused("--lr_scheduler.decay_ratio -0.5", "decay_ratio = -0.5", "0 to 1");
    check_refused("--optimizer.beta1 1", "beta1 = 1", "below 1");
}

TEST(test_config__ranks_are_listed_as_steps_are_and_begin_at_0)
{
    struct config config;
    assert_int_equal(load(&config, "--log-ranks 0,3-5"), 0);
    for (int64_t rank = 0; rank < 8; rank++) {
        assert_int_equal(config_has_rank(config.log_ranks, rank),
                         rank == 0 || (rank >= 3 && rank <= 5));
        assert_true(config_has_rank("", rank));
    }
    assert_int_equal(config_last_rank("0,7-9,3-5"), 9);
    assert_int_equal(config_last_rank(""), -1);
    check_refused("--metrics.log_ranks=1,-1", "metrics.log_ranks = \"1,-1\"", "as 0,3-5");
    check_refused("--metrics.log_ranks 0-", "metrics.log_ranks = \"0-\"", "as 0,3-5");
    check_refused("--metrics.log_ranks all", "metrics.log_ranks = \"all\"", "as 0,3-5");
}

TEST(test_config__steps_are_listed_one_by_one_and_as_ranges)
{
    static const char *const wrong[] = {"0", "3-", "5-4", "3,", ",3", "3 4", "3-4-5", "x"};
    char setting[64], shown[64];
    for (int64_t step = 1; step < 25; step++)
        assert_int_equal(config_has_step("3,10-12,20", step),
                         step == 3 || (step >= 10 && step <= 12) || step == 20);
    assert_true(config_has_step("", 7));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(config_check_steps("debug.watch_steps", wrong[i]), ERR_INVALID);
        snprintf(setting, sizeof(setting), "--debug.watch_steps=%s", wrong[i]);
        snprintf(shown, sizeof(shown), "debug.watch_steps = \"%s\"", wrong[i]);
        if (strchr(wrong[i], ' ') == NULL)
            check_refused(setting, shown, "as 10,20-22");
    }
}

TEST(test_config__a_run_without_a_name_has_that_of_its_file)
{
    struct config config;
    assert_int_equal(load_file(&config, "[training]\ndataset_path = \"/x\"\n", ""), 0);
    assert_true(config.run_is_of_file);
    assert_string_equal(config.run, "config"); /* of config.toml */
    assert_int_equal(load_file(&config, "", "--job.run mine"), 0);
    assert_true(!config.run_is_of_file && strcmp(config.run, "mine") == 0);
    assert_int_equal(load(&config, ""), 0);
    assert_true(!config.run_is_of_file && strcmp(config.run, "default") == 0);
}

TEST(test_config__paths_and_names_are_checked)
{
    struct config config;
    check_refused("--model.hf_assets_path /nowhere", "/nowhere", "tokenizer train");
    check_refused("--model.tokenizer_path /nowhere", "model.hf_assets_path", "tokenizer train");
    assert_int_equal(load(&config, "--model.hf_assets_path /nowhere --estimate"), 0);
    assert_string_equal(config.tokenizer_path, ""); /* an estimate needs none */
    check_refused("--job.run ../x", "job.run", "../x");
    check_refused("--ckptd.address host", "'host'", "unix:");
    check_refused("--checkpoint.create_seed_checkpoint", "create_seed_checkpoint", "enable");
    check_said(load_alone(&config, "--training.steps 9"), "training.dataset_path", "");
    write_text(model, "");
    assert_int_equal(
        load_alone(&config, "--training.dataset_path x --model.hf_assets_path %s", folder), 0);
    assert_string_equal(config.tokenizer_path, model);
}

TEST(test_config__ranks_as_threads_are_refused_in_one_process_of_several)
{
    struct config config;
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    check_refused("", "comm.backend = local", "--comm.backend mpi");
    assert_int_equal(load(&config, "--comm.backend mpi"), 0);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    assert_int_equal(load(&config, ""), 0);
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

/* A launcher's ranks get fewer, down to one, with a file that may name threads. */
TEST(test_config__threads_are_refused_of_mpi_that_no_launcher_started)
{
    struct config config;
    check_refused("--comm.backend mpi --comm.ranks 4", "comm.ranks = 4", "mpirun -n");
    assert_int_equal(load(&config, "--comm.backend mpi"), 0);
    assert_int_equal(load(&config, "--comm.backend mpi --comm.ranks 4 --estimate"), 0);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    assert_int_equal(load(&config, "--comm.backend mpi --comm.ranks 4"), 0);
    unsetenv("OMPI_COMM_WORLD_RANK");
}

/* srun starts torchrun once for each node, so its variables are those of the node. */
TEST(test_config__processes_of_torchrun_are_counted_by_it)
{
    static const char *const variables[][2] = {
        {"SLURM_PROCID", "1"},   {"SLURM_STEP_NUM_TASKS", "2"}, {"RANK", "5"},
        {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"},           {"MASTER_ADDR", "node0"},
        {"MASTER_PORT", "29500"}};
    static const int counted[] = {1, 2, 2, 2, 2, 2, 8}; /* all: a cluster sets some for each job */
    char name[CONFIG_NAME_MAX];
    for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++) {
        setenv(variables[i][0], variables[i][1], 1);
        if (i > 0)
            assert_int_equal(config_num_launched(), counted[i]);
    }
    assert_true(config_name_process(name));
    assert_non_null(strstr(name, ":5"));
    unsetenv("SLURM_PROCID");
    check_refused("--comm.backend mpi", "torchrun started 8 processes", "nccl");
    check_refused("", "8 processes were started", "--comm.backend");
    for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++)
        unsetenv(variables[i][0]);
}

TEST(test_config__the_json_names_every_setting)
{
    struct config config;
    assert_int_equal(load(&config, "--training.steps 33 --job.description a"), 0);
    char *text = trainer_config_to_json(&config);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    size_t count = 0;
    for (const struct option *option = config_table(); option->key != NULL; option++) {
        if (!stores(option))
            continue;
        assert_non_null(json_at(json, option->key));
        count++;
    }
    assert_true(count > 50);
    assert_int_equal(json_integer_value(json_at(json, "training.steps")), 33);
    json_decref(json);
    free(text);
}

#define SETTLED(field, key, text, value)                                                      \
    {                                                                                         \
        key, text, offsetof(struct config, field), sizeof(((struct config *)0)->field), value \
    }

/* Everything but config/settle.c reads the enums, so a wrong one would train another model. */
TEST(test_config__each_choice_is_settled_as_its_own_enum)
{
    static const struct {
        const char *key, *text;
        size_t at, size;
        unsigned want;
    } choices[] = {
        SETTLED(model_family, "model.name", "llama3", FAMILY_LLAMA3),
        SETTLED(tied_embeddings, "model.tied_embeddings", "true", TIED_TRUE),
        SETTLED(tied_embeddings, "model.tied_embeddings", "false", TIED_FALSE),
        SETTLED(rope_scaling, "model.rope_scaling", "none", ROPE_NONE),
        SETTLED(rope_scaling, "model.rope_scaling", "linear", ROPE_LINEAR),
        SETTLED(rope_scaling, "model.rope_scaling", "llama3", ROPE_LLAMA3),
        SETTLED(optimizer, "optimizer.name", "Adam", OPTIMIZER_ADAM),
        SETTLED(moments_dtype, "optimizer.moments_dtype", "bfloat16", DTYPE_BFLOAT16),
        SETTLED(decay_type, "lr_scheduler.decay_type", "sqrt", DECAY_SQRT),
        SETTLED(decay_type, "lr_scheduler.decay_type", "cosine", DECAY_COSINE),
        SETTLED(nonfinite, "training.nonfinite", "skip", NONFINITE_SKIP),
        SETTLED(mixed_precision_param, "training.mixed_precision_param", "bfloat16",
                DTYPE_BFLOAT16),
        SETTLED(mixed_precision_param, "training.mixed_precision_param", "float32", DTYPE_FLOAT32),
        SETTLED(reduction, "training.reduction", "canonical", REDUCTION_CANONICAL),
        SETTLED(reduction, "training.reduction", "fast", REDUCTION_FAST),
        SETTLED(reshard_after_forward, "parallelism.fsdp_reshard_after_forward", "always",
                RESHARD_ALWAYS),
        SETTLED(reshard_after_forward, "parallelism.fsdp_reshard_after_forward", "never",
                RESHARD_NEVER),
        SETTLED(cp_rotate_method, "parallelism.context_parallel_rotate_method", "alltoall",
                ROTATE_RING),
        SETTLED(cp_rotate_method, "parallelism.context_parallel_rotate_method", "ulysses",
                ROTATE_ULYSSES),
        SETTLED(cp_load_balancer, "parallelism.context_parallel_load_balancer", "none",
                BALANCER_NONE),
        SETTLED(pipeline_schedule, "parallelism.pipeline_parallel_schedule", "GPipe", PIPE_GPIPE),
        SETTLED(pipeline_schedule, "parallelism.pipeline_parallel_schedule", "LoopedBFS",
                PIPE_LOOPED),
        SETTLED(pipeline_schedule, "parallelism.pipeline_parallel_schedule",
                "InterleavedZeroBubble", PIPE_INTERLEAVED_ZERO),
        SETTLED(pipeline_schedule, "parallelism.pipeline_parallel_schedule", "ZBH1", PIPE_ZBH1),
        SETTLED(pipeline_schedule, "parallelism.pipeline_parallel_schedule_csv", "file", PIPE_FILE),
        SETTLED(pipeline_cut, "parallelism.pipeline_parallel_cut", "cost", CUT_COST),
        SETTLED(ac_mode, "activation_checkpoint.mode", "full", RECOMPUTE_FULL),
        SETTLED(ac_mode, "activation_checkpoint.mode", "selective", RECOMPUTE_SELECTIVE),
        SETTLED(ac_mode, "activation_checkpoint.mode", "memory_budget", RECOMPUTE_BUDGET),
        SETTLED(interval_type, "checkpoint.interval_type", "seconds", INTERVAL_SECONDS),
        SETTLED(async_mode, "checkpoint.async_mode", "async", ASYNC_COPIED),
        SETTLED(async_mode, "checkpoint.async_mode", "async_with_pinned_mem", ASYNC_AT_ONCE),
        SETTLED(async_mode, "checkpoint.async_mode", "disabled", ASYNC_DURABLE),
        SETTLED(when_busy, "checkpoint.when_busy", "wait", BUSY_WAIT),
        SETTLED(when_busy, "checkpoint.when_busy", "replace", BUSY_REPLACE),
        SETTLED(durability, "checkpoint.durability", "replicated", DURABLE_REPLICATED),
        SETTLED(durability, "checkpoint.durability", "bucket", DURABLE_BUCKET),
        SETTLED(partial_rows, "checkpoint.partial_rows", "fresh", PARTIAL_FRESH),
        SETTLED(export_dtype, "checkpoint.export_dtype", "float16", DTYPE_FLOAT16),
        SETTLED(comm_backend, "comm.backend", "local", BACKEND_LOCAL),
        SETTLED(comm_backend, "comm.backend", "mpi", BACKEND_MPI),
        SETTLED(kernels_backend, "kernels.backend", "best", KERNELS_BEST),
        SETTLED(kernels_backend, "kernels.backend", "reference", KERNELS_REFERENCE),
        SETTLED(device, "kernels.device", "cuda", DEVICE_CUDA),
        SETTLED(kernels_attention, "kernels.attention", "own", ATTENTION_OWN),
        SETTLED(has_isa, "kernels.isa", "avx2", true),
    };
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        struct config config;
        unsigned settled = 0;
        char argument[128];
        snprintf(argument, sizeof(argument), "--%s %s", choices[i].key, choices[i].text);
        assert_int_equal(load(&config, argument), 0);
        memcpy(&settled, (const char *)&config + choices[i].at, choices[i].size);
        if (settled != choices[i].want)
            fail_msg("%s of %s is settled as %u", choices[i].text, choices[i].key, settled);
    }
}

SUITE(setup, teardown)
