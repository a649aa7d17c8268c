/* config.c - makes consistent settings from the command line and a TOML file.
 *
 * Precedence, lowest first: defaults of the table, TOML file, command line. The command line is
 * read first, and the file's values for the same keys, or for keys that select the same thing, are
 * ignored. Then settle.c turns texts into enums, and this file refuses unsupported values. Last,
 * settle.c fills in missing values (batch sizes, paths). A refusal is one line with the key, its
 * value and the remedy. Rules that depend on the number of ranks are checked when the mesh is
 * built. */
#include "trainer/config/config.h"

#include "proto/base/json.h"
#include "proto/base/options.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "trainer/config/launched.h"
#include "trainer/config/settle.h"
#include "trainer/config/table.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const short_keys[] = {"config",
                                         "job.config_file",
                                         "estimate",
                                         "memory_estimation.enable",
                                         "json",
                                         "memory_estimation.json",
                                         "preflight",
                                         "debug.preflight",
                                         "links",
                                         "debug.links",
                                         "bench",
                                         "debug.links",
                                         "print-program",
                                         "debug.print_program",
                                         "timeline",
                                         "debug.timeline_file",
                                         "device",
                                         "kernels.device",
                                         "replay",
                                         "debug.replay_step",
                                         "blame",
                                         "debug.replay_blame",
                                         "log-ranks",
                                         "metrics.log_ranks",
                                         "suggest",
                                         "memory_estimation.suggest",
                                         "rates",
                                         "memory_estimation.rates",
                                         NULL};

/* ---- reading ---- */

static const char *launched_rank(void)
{
    const char *rank = launched(LAUNCHED_RANK);
    return rank != NULL ? rank : "0";
}

bool config_is_first_process(void)
{
    return strcmp(launched_rank(), "0") == 0;
}

/* The host's name up to its first dot: ranks of a run are on one network. */
bool config_name_process(char out[CONFIG_NAME_MAX])
{
    char host[65] = "";
    process_host(host, sizeof(host));
    host[strcspn(host, ".")] = '\0';
    snprintf(out, CONFIG_NAME_MAX, "%s:%.10s", host, launched_rank());
    return config_num_launched() > 1;
}

long config_num_launched(void)
{
    const char *size = launched(LAUNCHED_SIZE);
    return size != NULL ? strtol(size, NULL, 10) : 1;
}

static size_t find_key(const char *key)
{
    for (size_t i = 0; config_table()[i].key != NULL; i++) {
        if (strcmp(config_table()[i].key, key) == 0)
            return i;
    }
    report_check_failed(__FILE__, __LINE__, key);
}

static bool is_given(const bool *is_set, const char *key)
{
    return is_set[find_key(key)];
}

/* Several keys select the same input. If the command line gives one, the others in the file are
 * ignored, since some of them take precedence over it. */
static void finish_selections(bool *is_final, const struct config *config)
{
    static const char *const selections[][3] = {
        {"training.mixture", "training.dataset_path", "training.dataset"},
        {"validation.dataset_path", "validation.dataset"},
        {"model.config", "model.flavor"},
    };
    for (size_t i = 0; i < sizeof(selections) / sizeof(selections[0]); i++) {
        bool is_selected = false;
        for (size_t j = 0; j < 3 && selections[i][j] != NULL; j++) {
            size_t key = find_key(selections[i][j]);
            const char *text = (const char *)config + config_table()[key].offset;
            is_selected = is_selected || (is_final[key] && text[0] != '\0');
        }
        for (size_t j = 0; is_selected && j < 3 && selections[i][j] != NULL; j++)
            is_final[find_key(selections[i][j])] = true;
    }
}

/* ---- unsupported values ---- */

static int not_available(const char *key, const char *value, const char *hint)
{
    return report_error(ERR_INVALID, hint, "%s = %s is not available in this version", key, value);
}

static int check_one(const char *key, int64_t value)
{
    char text[24];
    if (value == 1)
        return 0;
    snprintf(text, sizeof(text), "%lld", (long long)value);
    return not_available(key, text, "set it to 1");
}

const char *config_describe_type(char out[CONFIG_TYPE_MAX], const struct config *config)
{
    bool has_e4m3 = config->is_float8 && config->float8_gradients == FLOAT8_E4M3;
    bool is_narrow = config->mixed_precision_reduce == DTYPE_BFLOAT16;
    snprintf(out, CONFIG_TYPE_MAX, "%s%s%s%s", config->text.mixed_precision_param,
             config->is_float8 ? ", float8 products" : "", has_e4m3 ? ", e4m3 gradients" : "",
             is_narrow ? ", sums of gradients in bfloat16" : "");
    return out;
}

static int check_available(const struct config *config)
{
    ERR_TRY(check_one("parallelism.expert_parallel_degree", config->ep));
    if (config->text.converters[0] != '\0' && !config->is_float8)
        return not_available("model.converters", config->text.converters,
                             "leave it empty, or give quantize.linear.float8");
    if (config->float8_gather && !config->is_float8)
        log_warn("config", "quantize.linear.float8.enable_fsdp_float8_all_gather has no effect: "
                           "model.converters names no float8 products");
    if (config->float8_gradients == FLOAT8_E4M3 && !config->is_float8)
        return not_available("quantize.linear.float8.grad_output_dtype",
                             config->text.float8_gradients,
                             "set model.converters = \"quantize.linear.float8\" as well");
    if (config->is_float8 && config->text.float8_recipe[0] != '\0' &&
        strcmp(config->text.float8_recipe, "tensorwise") != 0)
        return not_available("quantize.linear.float8.recipe_name", config->text.float8_recipe,
                             "give tensorwise: a product has one scale for all rows");
    return 0;
}

/* ---- single values ---- */

static int check_run_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    if (length == 0 || length > 100 || name[0] == '.' || strspn(name, allowed) != length)
        return report_error(ERR_INVALID, "use up to 100 of: letters, digits, '.', '_' and '-'",
                            "job.run = \"%s\" is not a valid run name", name);
    return 0;
}

/* Every part of the comma separated list must be a known part of the state. */
static int check_exclusions(const char *list)
{
    static const char *const known[] = {"optimizer", "lr_scheduler", "dataloader"};
    for (list += strspn(list, ", "); *list != '\0'; list += strspn(list, ", ")) {
        size_t length = strcspn(list, ", ");
        bool found = false;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            found = found || (strlen(known[i]) == length && strncmp(list, known[i], length) == 0);
        if (!found)
            return report_error(ERR_INVALID, "known parts: optimizer, lr_scheduler, dataloader",
                                "checkpoint.exclude_from_loading names an unknown part \"%.*s\"",
                                (int)length, list);
        list += length;
    }
    return 0;
}

static bool needs_no_data(const struct config *config)
{
    return config->preflight || config->links;
}

/* If the path is a folder, finds the tokenizer in it. An estimate needs none. */
static int find_tokenizer(struct config *config)
{
    char path[CONFIG_TEXT_MAX];
    if (config->tokenizer_path[0] == '\0' || needs_no_data(config))
        return 0;
    int result = tokenizer_find(path, sizeof path, config->tokenizer_path);
    if (result != 0 && config->estimate) {
        log_info("config",
                 "model.hf_assets_path = \"%s\" does not exist: the estimate is made without",
                 config->tokenizer_path);
        config->tokenizer_path[0] = '\0';
        return 0;
    }
    if (result != 0)
        return report_error(ERR_INVALID, "make one with `tokenizer train`",
                            "model.hf_assets_path = \"%s\": no tokenizer.model and no "
                            "tokenizer.json there",
                            config->tokenizer_path);
    strcpy(config->tokenizer_path, path);
    return 0;
}

const char *trainer_config_data(const struct config *config)
{
    return config->mixture[0] != '\0'        ? config->mixture
           : config->dataset_path[0] != '\0' ? config->dataset_path
                                             : config->dataset;
}

const char *trainer_config_validation_data(const struct config *config)
{
    return config->validation_path[0] != '\0' ? config->validation_path
                                              : config->validation_dataset;
}

/* Checks checkpoint.* for contradictions and settings without effect. */
static int check_checkpoint(const struct config *config)
{
    if (config->load_only && config->create_seed_checkpoint)
        return report_error(
            ERR_INVALID, "set one of them",
            "checkpoint.load_only and create_seed_checkpoint contradict each other");
    if (config->initial_load_path[0] != '\0' && !config->checkpoint_enable)
        return report_error(ERR_INVALID, "set checkpoint.enable = true",
                            "checkpoint.initial_load_path = \"%s\" needs checkpoint.enable",
                            config->initial_load_path);
    if (config->partial && config->initial_load_path[0] == '\0')
        return report_error(ERR_INVALID, "set checkpoint.initial_load_path",
                            "checkpoint.partial needs checkpoint.initial_load_path");
    if (config->partial_fresh[0] != '\0' && !config->partial)
        return report_error(ERR_INVALID, "set checkpoint.partial = true",
                            "checkpoint.partial_fresh = \"%s\" needs checkpoint.partial",
                            config->partial_fresh);
    if (config->last_save_in_hf && !config->checkpoint_enable)
        return report_error(ERR_INVALID, "set checkpoint.enable = true",
                            "checkpoint.last_save_in_hf needs checkpoint.enable");
    if (config->last_save_in_hf && config->load_only)
        return report_error(ERR_INVALID, "set one of them; `ckpt-cli export` writes what is saved",
                            "checkpoint.load_only and last_save_in_hf contradict each other");
    bool is_broken = config->nonfinite == NONFINITE_ROLL_BACK;
    if ((is_broken || config->outlying == OUTLYING_ROLL_BACK) && !config->checkpoint_enable)
        return report_error(ERR_INVALID, "set checkpoint.enable = true",
                            "training.%s = roll_back needs checkpoint.enable",
                            is_broken ? "nonfinite" : "outlying");
    if (config->keep_latest_k == 1)
        return report_error(ERR_INVALID, "keep 2 or more, or 0 for all",
                            "checkpoint.keep_latest_k = 1: the only one could be damaged");
    if (config->create_seed_checkpoint && !config->checkpoint_enable)
        return report_error(ERR_INVALID, "set checkpoint.enable = true",
                            "checkpoint.create_seed_checkpoint needs checkpoint.enable");
    return 0;
}

static int check_replay(const struct config *config)
{
    int64_t step = config->replay_step;
    if (step < 0 && config->replay_blame)
        return report_error(ERR_INVALID, "give --replay STEP as well",
                            "debug.replay_blame needs debug.replay_step");
    if (step < 0)
        return 0;
    if (!config->checkpoint_enable)
        return report_error(ERR_INVALID, "set checkpoint.enable = true",
                            "debug.replay_step needs checkpoint.enable");
    if (step == 0 || step > config->steps || config->load_step >= step)
        return report_error(
            ERR_INVALID, "give a step up to training.steps, and no later checkpoint.load_step",
            "debug.replay_step = %lld: training.steps = %lld, "
            "checkpoint.load_step = %lld",
            (long long)step, (long long)config->steps, (long long)config->load_step);
    return 0;
}

static int check_values(struct config *config)
{
    ERR_TRY(check_run_name(config->run));
    ERR_TRY(check_replay(config));
    ERR_TRY(check_exclusions(config->exclude_from_loading));
    ERR_TRY(find_tokenizer(config));
    if (config->dataset_path[0] != '\0' && config->mixture[0] != '\0')
        return report_error(ERR_INVALID, "leave one of them out",
                            "training.dataset_path and training.mixture are both given");
    if (trainer_config_data(config)[0] == '\0' && !config->estimate && !needs_no_data(config))
        return report_error(ERR_INVALID,
                            "give a folder of text, or write tokens with `tokenizer tokens`",
                            "training.dataset_path is not set: there are no data to read");
    if (config->beta1 >= 1 || config->beta2 >= 1)
        return report_error(ERR_INVALID, "torchtitan's are 0.9 and 0.95",
                            "optimizer.beta1 = %g, beta2 = %g: both must be below 1", config->beta1,
                            config->beta2);
    if (config->decay_ratio < 0 && config->decay_ratio != -1)
        return report_error(ERR_INVALID, "give 0 to 1, or -1 for all after the warm-up",
                            "lr_scheduler.decay_ratio = %g", config->decay_ratio);
    ERR_TRY(check_checkpoint(config));
    if (config->comm_backend == BACKEND_NCCL && config->device != DEVICE_CUDA)
        return report_error(
            ERR_INVALID, "set kernels.device to cuda, or comm.backend to local or mpi",
            "comm.backend = nccl, but kernels.device = %s: NCCL moves data of GPUs only",
            config->text.device);
    long num_launched = config_num_launched();
    if (config->comm_backend == BACKEND_LOCAL && num_launched > 1 && !config->estimate)
        return report_error(ERR_INVALID,
                            "add --comm.backend mpi, or nccl for GPUs, or start one process",
                            "comm.backend = local, but %ld processes were started: each would "
                            "train the whole run",
                            num_launched);
    if (config->comm_backend == BACKEND_MPI && config->comm_ranks > 1 && !config->estimate &&
        launched(LAUNCHED_RANK) == NULL)
        return report_error(ERR_INVALID, "start it with mpirun -n, or set comm.backend to local",
                            "comm.backend = mpi, but no launcher started this process: it is one "
                            "rank, and comm.ranks = %lld asks for threads",
                            (long long)config->comm_ranks);
    if (config->comm_backend == BACKEND_MPI && launched_by_torchrun() && !launched_by_mpi())
        return report_error(ERR_INVALID, "set comm.backend to nccl, or start it with mpirun",
                            "comm.backend = mpi, but torchrun started %ld processes: each would "
                            "train the whole run",
                            num_launched);
    ERR_TRY(config_check_steps("debug.watch_steps", config->watch_steps));
    ERR_TRY(config_check_ranks("metrics.log_ranks", config->log_ranks));
    ERR_TRY(config_check_steps("profiling.profile_steps", config->profile_steps));
    if (config->dp_shard == 0)
        return report_error(ERR_INVALID, "give -1 for the ranks that are left, or at least 1",
                            "parallelism.data_parallel_shard_degree = 0");
    return 0;
}

/* ---- all ---- */

/* Uses rates that --links has measured instead of the table's. Rates that the operator gives
 * stay. */
static int read_rates(struct config *config, const bool *is_set)
{
    struct {
        const char *name;
        double *value;
    } rates[] = {{"machine_gb_per_s", &config->machine_gb},
                 {"network_gb_per_s", &config->network_gb},
                 {"call_us", &config->call_us}};
    json_error_t reason = {.text = ""};
    bool is_found = false;
    if (config->rates_file[0] == '\0')
        return 0;
    json_t *root = json_load_file(config->rates_file, 0, &reason);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        char key[64];
        snprintf(key, sizeof(key), "memory_estimation.%s", rates[i].name);
        double value = json_number_value(json_at(root, key));
        if (!(value > 0 && value < 1e9))
            continue;
        is_found = true;
        if (is_given(is_set, key))
            continue;
        *rates[i].value = value;
        size_t at = strlen(config->rates_measured);
        snprintf(config->rates_measured + at, sizeof(config->rates_measured) - at, "%s%s",
                 at > 0 ? ", " : "", rates[i].name);
    }
    json_decref(root);
    if (is_found)
        return 0;
    return report_error(ERR_INVALID, "write it with `trainer --links --json > FILE`",
                        "memory_estimation.rates = \"%s\": %s", config->rates_file,
                        reason.text[0] != '\0' ? reason.text : "it has no rates of --links");
}

/* torchtitan's sizes of Llama 3 have the scaling of Llama 3.1 since October 2025. The trainer's
 * sizes have that of the first release. */
static void note_rope(const struct config *config, const bool *is_set)
{
    static const char *const sizes[] = {"8B", "70B", "405B"};
    if (config->model_family != FAMILY_LLAMA3 || config->model_config[0] != '\0' ||
        is_given(is_set, "model.rope_scaling"))
        return;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (strcmp(config->model_flavor, sizes[i]) == 0)
            log_info("config",
                     "model.flavor = %s has Llama 3's rotary embedding; torchtitan scales it as "
                     "Llama 3.1 since October 2025: for that set model.flavor = llama3.1-%s",
                     sizes[i], sizes[i]);
}

/* Logs defaults that differ from what users of torchtitan expect. */
static void note_differences(const struct config *config, const bool *is_set)
{
    if (config->config_file[0] == '\0')
        return;
    if (!is_given(is_set, "training.global_batch_size") &&
        !is_given(is_set, "canonical.micro_batches"))
        log_info("config",
                 "neither training.global_batch_size nor canonical.micro_batches is given: a step "
                 "is %lld micro-batches on any number of ranks",
                 (long long)config->micro_batches);
    note_rope(config, is_set);
    if (config->checkpoint_enable && !is_given(is_set, "checkpoint.async_mode"))
        log_info("config",
                 "checkpoint.async_mode is not given: training goes on when a save is copied "
                 "(async), not when it is durable (disabled)");
}

int trainer_config_load(struct config *out, int argc, char **argv)
{
    bool is_set[CONFIG_KEYS_MAX] = {false}, is_final[CONFIG_KEYS_MAX];
    memset(out, 0, sizeof(*out));
    struct options options = {.table = config_table(),
                              .config = out,
                              .is_set = is_set,
                              .quiet = !config_is_first_process()};
    ERR_TRY(options_defaults(&options));
    ERR_TRY(options_read_args(&options, &argc, argv, short_keys));
    if (argc > 1)
        return report_error(ERR_INVALID, "give settings as --section.key value",
                            "unknown argument \"%s\"", argv[1]);
    memcpy(is_final, is_set, sizeof(is_set));
    finish_selections(is_final, out);
    options.is_final = is_final;
    if (out->config_file[0] != '\0') {
        char file[CONFIG_TEXT_MAX];
        strcpy(file, out->config_file); /* the file may set this key to another path */
        ERR_TRY(options_read_toml(&options, file));
    }
    settle_choices(out);
    ERR_TRY(read_rates(out, is_set));
    ERR_TRY(check_available(out));
    ERR_TRY(check_values(out));
    ERR_TRY(settle_sizes(out, options.quiet));
    if (!options.quiet)
        note_differences(out, is_set);
    if (out->no_color)
        setenv("NO_COLOR", "1", 1); /* report.h and the step line check this variable */
    return 0;
}

char *trainer_config_to_json(const struct config *config)
{
    /* options.h takes a writable struct for its readers; writing JSON does not change it. */
    return options_to_json(
        &(struct options){.table = config_table(), .config = (void *)(uintptr_t)config});
}

uint32_t trainer_config_leaves(const void *config, int64_t step)
{
    const struct config *c = config;
    int64_t micro_batches = c->micro_batches;
    for (uint32_t i = 0; i < c->num_ramp && c->ramp[i].step <= step; i++)
        micro_batches = c->ramp[i].micro_batches;
    return (uint32_t)micro_batches;
}

uint64_t trainer_config_samples(const struct config *config, int64_t step)
{
    return trainer_config_leaves(config, step) * (uint64_t)config->local_batch_size;
}

void trainer_config_print_help(void)
{
    printf(
        "usage: trainer --config FILE [--section.key value ...]\n"
        "       trainer --flight FOLDER [PREFIX]   name the missing rank, from all ranks' dumps\n"
        "                                          (comm.save_traces_folder)\n"
        "       trainer --report RUN [OPTIONS]     a page on a run, as `ckpt-cli report`\n\n"
        "Train a model. The keys below are those of the TOML file. --section.key sets a\n"
        "boolean to true, --section.no_key to false.\n\n");
    options_print_help(&(struct options){.table = config_table()}, stdout);
}
