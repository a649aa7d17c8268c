/* settle.c - turns written settings into the trainer's values (see settle.h). */
#include "trainer/config/settle.h"

#include "proto/base/address.h"
#include "proto/base/options.h"
#include "proto/base/report.h"
#include "proto/wire/rpc.h"
#include "trainer/config/launched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MICRO_BATCHES_DEFAULT 8
#define MICRO_BATCHES_MAX (1 << 20)
#define MICRO_BATCH_TOKENS_MAX (1 << 24) /* row counts have 32 bits */

/* ---- choices ---- */

/* A run without a name gets that of the configuration file, so that two configurations do not share
 * a run by mistake. */
static void settle_run(struct config *config)
{
    if (config->run[0] != '\0')
        return;
    const char *slash = strrchr(config->config_file, '/');
    const char *name = slash != NULL ? slash + 1 : config->config_file;
    size_t length = strlen(name);
    if (length > 5 && strcmp(name + length - 5, ".toml") == 0)
        length -= 5;
    config->run_is_of_file = length > 0;
    snprintf(config->run, sizeof(config->run), "%.*s", (int)length, name);
    if (length == 0)
        strcpy(config->run, "default");
}

/* The index of a text in `names`, which are in the order of the enum and end with NULL. The option
 * table has refused all others. */
static unsigned place_of(const char *text, const char *const *names)
{
    for (unsigned i = 0; names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    report_check_failed(__FILE__, __LINE__, text);
}

#define PLACE(key, ...) place_of(config->text.key, (const char *const[]){__VA_ARGS__, NULL})
#define DTYPE(key) place_of(config->text.key, dtype_names)

static const char *const dtype_names[] = {"float32", "bfloat16", "float16", NULL};

const char *config_dtype_name(enum config_dtype dtype)
{
    return dtype_names[dtype];
}

static void settle_enums(struct config *config)
{
    config->model_family =
        strcmp(config->text.model_name, "llama3") == 0 ? FAMILY_LLAMA3 : FAMILY_LLAMA2;
    config->tied_embeddings = PLACE(tied_embeddings, "default", "true", "false");
    config->rope_scaling = PLACE(rope_scaling, "default", "none", "linear", "llama3");
    config->float8_gradients = PLACE(float8_gradients, "float8_e5m2", "float8_e4m3fn");
    config->optimizer = PLACE(optimizer_name, "AdamW", "Adam");
    config->moments_dtype = DTYPE(moments_dtype);
    config->decay_type = PLACE(decay_type, "linear", "sqrt", "cosine");
    config->nonfinite = PLACE(nonfinite, "stop", "skip", "roll_back");
    config->outlying = PLACE(outlying, "off", "warn", "skip", "roll_back");
    config->mixed_precision_param = DTYPE(mixed_precision_param);
    config->mixed_precision_reduce = DTYPE(mixed_precision_reduce);
    config->reduction = PLACE(reduction, "canonical", "fast");
    config->reshard_after_forward = PLACE(reshard_after_forward, "default", "always", "never");
    config->cp_rotate_method = PLACE(cp_rotate_method, "allgather", "alltoall", "ulysses");
    config->cp_load_balancer = PLACE(cp_load_balancer, "headtail", "none");
    config->pipeline_schedule = PLACE(pipeline_schedule, "1F1B", "GPipe", "LoopedBFS",
                                      "Interleaved1F1B", "InterleavedZeroBubble", "ZBH1");
    config->pipeline_cut = PLACE(pipeline_cut, "layers", "cost");
    config->ac_mode = PLACE(ac_mode, "none", "full", "selective", "memory_budget");
    config->interval_type = PLACE(interval_type, "steps", "seconds");
    config->async_mode = PLACE(async_mode, "async", "disabled", "async_with_pinned_mem");
    config->when_busy = PLACE(when_busy, "skip", "wait", "replace");
    config->durability = PLACE(durability, "local", "replicated", "bucket");
    config->partial_rows = PLACE(partial_rows, "mean", "fresh");
    config->export_dtype = DTYPE(export_dtype);
    config->comm_backend = PLACE(comm_backend, "local", "mpi", "nccl");
    config->kernels_backend = PLACE(kernels_backend, "best", "reference");
    config->device = PLACE(device, "cpu", "cuda");
    config->kernels_attention = PLACE(kernels_attention, "best", "own");
    config->has_isa = strcmp(config->text.kernels_isa, "auto") != 0;
}

static void settle_float8(struct config *config)
{
    char *converters = config->text.converters;
    if (config->float8_linear && converters[0] == '\0')
        strcpy(converters, "quantize.linear.float8");
    config->is_float8 = strcmp(converters, "quantize.linear.float8") == 0 ||
                        strcmp(converters, "float8") == 0; /* its name before torchtitan 0.2 */
}

/* "op", or every n-th layer. */
static int settle_selective(struct config *config)
{
    const char *option = config->text.selective_ac_option;
    bool is_op = strcmp(option, "op") == 0;
    config->recompute_every = is_op ? 0 : strtol(option, NULL, 10);
    if (config->ac_mode != RECOMPUTE_SELECTIVE || is_op || config->recompute_every >= 1)
        return 0;
    return report_error(ERR_INVALID, "give a number of layers, or op",
                        "activation_checkpoint.selective_ac_option = %s", option);
}

/* A replay changes no checkpoints, files or switches of the run. */
static void settle_replay(struct config *config)
{
    if (config->replay_step < 0)
        return;
    config->load_only = true;
    config->load_below = config->load_step < 0 ? config->replay_step : 0;
    config->stop_after_step = config->replay_step;
    config->skip_samples = 0;
    config->last_save_in_hf = config->validation_enable = config->tensorboard = false;
    config->loss_file[0] = config->jsonl_file[0] = config->save_switch[0] = '\0';
    config->save_config_file[0] = '\0';
    if (!config->replay_blame)
        return;
    config->watch_numbers = true;
    snprintf(config->watch_steps, sizeof(config->watch_steps), "%lld",
             (long long)config->replay_step);
}

void settle_choices(struct config *config)
{
    settle_run(config);
    settle_replay(config);
    settle_enums(config);
    settle_float8(config);
    bool is_fake = strcmp(config->text.comm_mode, "fake_backend") == 0;
    config->estimate = config->estimate || config->print_program || config->suggest || is_fake;
    if (config->pipeline_csv[0] != '\0')
        config->pipeline_schedule = PIPE_FILE;
    config->kernels_graphs = config->kernels_graphs && !config->no_graphs;
    config->no_color = config->no_color || !config->color;
}

/* ---- sizes ---- */

/* Reads "0:4,100:8" as numbers; micro_batches becomes the largest, for which a step needs room. */
static int read_ramp(struct config *config)
{
    int64_t most = 0;
    for (const char *at = config->batch_ramp; *at != '\0';) {
        struct config_ramp *next = &config->ramp[config->num_ramp];
        int length = 0;
        long long step = -1, micro_batches = 0;
        int64_t before = config->num_ramp > 0 ? next[-1].step : -1;
        bool is_number = sscanf(at, " %lld:%lld%n", &step, &micro_batches, &length) == 2;
        if (!is_number || config->num_ramp == CONFIG_RAMP_MAX - 1 || step <= before ||
            (config->num_ramp == 0 && step != 0) || micro_batches < 1 ||
            micro_batches > MICRO_BATCHES_MAX || (at[length] != '\0' && at[length] != ','))
            return report_error(
                ERR_INVALID, "write STEP:MICRO_BATCHES,... with rising steps, the first 0",
                "training.batch_ramp = \"%s\" is wrong at \"%s\"", config->batch_ramp, at);
        *next = (struct config_ramp){step, micro_batches};
        config->num_ramp++;
        most = micro_batches > most ? micro_batches : most;
        at += length + (at[length] == ',');
    }
    if (most == 0)
        return 0;
    if (config->global_batch_size > 0 ||
        (config->micro_batches > 0 && config->micro_batches != most))
        return report_error(ERR_INVALID, "leave them out",
                            "training.batch_ramp gives the sizes of steps: "
                            "training.global_batch_size or canonical.micro_batches contradicts it");
    config->micro_batches = most;
    return 0;
}

/* torchtitan's pipelines cut a local batch into micro-batches. Here this means a smaller local
 * batch and as many more of them in a step. */
static int settle_pipeline_batch(struct config *config)
{
    int64_t local = config->local_batch_size, size = config->pp_microbatch;
    if (size == 0 && config->pp_microbatches > 0)
        size = local % config->pp_microbatches == 0 ? local / config->pp_microbatches : -1;
    if (config->pp <= 1 || size == 0 || size == local)
        return 0;
    if (size < 0 || local % size != 0)
        return report_error(
            ERR_INVALID, "choose parts of equal size",
            "parallelism.pipeline_parallel_microbatch_size = %lld, pipeline_parallel_microbatches "
            "= %lld: training.local_batch_size = %lld cannot be divided like that",
            (long long)config->pp_microbatch, (long long)config->pp_microbatches, (long long)local);
    if (config->global_batch_size < 0 && config->micro_batches < 0)
        config->micro_batches = MICRO_BATCHES_DEFAULT;
    if (config->micro_batches > 0)
        config->micro_batches *= local / size;
    for (uint32_t i = 0; i < config->num_ramp; i++)
        config->ramp[i].micro_batches *= local / size;
    config->local_batch_size = size;
    return 0;
}

/* A step has micro_batches leaves of local_batch_size sequences, for any number of ranks. */
static int settle_batch(struct config *config)
{
    int64_t local = config->local_batch_size, global = config->global_batch_size;
    if (global == 0 || config->micro_batches == 0)
        return report_error(ERR_INVALID, "give at least 1, or -1 to derive it",
                            "training.global_batch_size = %lld, canonical.micro_batches = %lld",
                            (long long)global, (long long)config->micro_batches);
    if (global > 0 && global % local != 0)
        return report_error(ERR_INVALID, "choose a multiple",
                            "training.global_batch_size = %lld is not a multiple of "
                            "training.local_batch_size = %lld",
                            (long long)global, (long long)local);
    if (global > 0 && config->micro_batches > 0 && global != local * config->micro_batches)
        return report_error(ERR_INVALID, "leave one of them out",
                            "training.global_batch_size = %lld is not local_batch_size %lld x "
                            "canonical.micro_batches %lld",
                            (long long)global, (long long)local, (long long)config->micro_batches);
    if (local > MICRO_BATCH_TOKENS_MAX / config->seq_len)
        return report_error(ERR_INVALID, "lower one of them; more micro-batches make a larger step",
                            "training.local_batch_size = %lld x seq_len %lld is above %d tokens",
                            (long long)local, (long long)config->seq_len, MICRO_BATCH_TOKENS_MAX);
    if (config->micro_batches < 0)
        config->micro_batches = global > 0 ? global / local : MICRO_BATCHES_DEFAULT;
    config->global_batch_size = local * config->micro_batches;
    return 0;
}

/* A part, or bytes: a value of at most 1 is a part. */
static int settle_memory_budget(struct config *config)
{
    const char *text = config->memory_budget;
    char *end = NULL;
    config->kept_part = strtod(text, &end);
    if (end != text && *end == '\0' && config->kept_part >= 0 && config->kept_part <= 1)
        return 0;
    if (options_parse_bytes(&config->budget_bytes, text) && config->budget_bytes > 0)
        return 0;
    return report_error(ERR_INVALID, "give 0 to 1, or bytes as 3 GiB",
                        "activation_checkpoint.memory_budget = %s", text);
}

/* By default a run has as many blocks as its first degree; a larger setting lets it move to a
 * larger degree later. */
static void settle_blocks(struct config *config)
{
    if (config->tp_blocks == 0)
        config->tp_blocks = config->tp;
    if (config->cp_blocks == 0)
        config->cp_blocks = config->cp;
}

static int settle_validation(struct config *config)
{
    if (!config->validation_enable)
        return 0;
    if (trainer_config_validation_data(config)[0] == '\0')
        return report_error(ERR_INVALID,
                            "give a tokens file or a folder of text, or validation.dataset",
                            "validation.dataset_path is not set: there is nothing to validate on");
    if (config->validation_seq_len == -1)
        config->validation_seq_len = config->seq_len;
    if (config->validation_seq_len < 1 || config->validation_seq_len > config->seq_len)
        return report_error(ERR_INVALID, "leave it out, or give 1 to training.seq_len",
                            "validation.seq_len = %lld, training.seq_len = %lld",
                            (long long)config->validation_seq_len, (long long)config->seq_len);
    if (config->validation_steps == 0)
        return report_error(ERR_INVALID, "give -1 for the whole set", "validation.steps = 0");
    return 0;
}

static void settle_schedule(struct config *config, bool quiet)
{
    if (config->decay_total_steps <= 0)
        config->decay_total_steps = config->steps;
    if (config->warmup_steps <= config->decay_total_steps)
        return;
    if (!quiet)
        log_warn("config", "lr_scheduler.warmup_steps = %lld is cut to the curve's %lld steps",
                 (long long)config->warmup_steps, (long long)config->decay_total_steps);
    config->warmup_steps = config->decay_total_steps;
}

/* An automatic interval is counted in steps. */
static int settle_interval(struct config *config)
{
    uint64_t seconds = 0;
    if (!options_parse_span(&seconds, config->text.mtbf) || seconds == 0)
        return report_error(ERR_INVALID, "give a number above 0 and s, m, h, d or w, such as 24h",
                            "checkpoint.mtbf = \"%s\" is not a duration", config->text.mtbf);
    config->mtbf_seconds = (double)seconds;
    if (config->interval > 0)
        return 0;
    if (config->interval_type == INTERVAL_SECONDS)
        return report_error(ERR_INVALID, "leave one of them out",
                            "checkpoint.interval = auto counts steps, and "
                            "checkpoint.interval_type = seconds");
    config->interval_type = INTERVAL_AUTO;
    return 0;
}

static int settle_ckptd(struct config *config)
{
    if (config->ckptd_address[0] == '\0') {
        int error = rpc_default_address(config->ckptd_address, sizeof(config->ckptd_address));
        if (error != 0)
            return error;
    }
    struct address address;
    return address_parse(&address, config->ckptd_address);
}

/* For a run that starts; a plan uses only given values. */
static void settle_machine(struct config *config)
{
    const char *said = launched(LAUNCHED_LOCAL_SIZE);
    long ranks = said != NULL ? strtol(said, NULL, 10) : 0;
    if (config->comm_backend == BACKEND_LOCAL)
        ranks = (long)config->comm_ranks;
    if (!config->estimate && ranks > 0)
        config->machine_ranks = ranks;
}

int settle_sizes(struct config *config, bool quiet)
{
    ERR_TRY(read_ramp(config));
    ERR_TRY(settle_pipeline_batch(config));
    ERR_TRY(settle_batch(config));
    ERR_TRY(settle_selective(config));
    ERR_TRY(settle_memory_budget(config));
    settle_blocks(config);
    settle_machine(config);
    ERR_TRY(settle_validation(config));
    ERR_TRY(settle_interval(config));
    ERR_TRY(settle_ckptd(config));
    settle_schedule(config, quiet);
    return 0;
}
