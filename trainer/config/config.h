/* config.h - the trainer's settings: torchtitan's TOML keys (its v0.2.2 form) and Holdfast's
 * sections.
 *
 * trainer_config_load() applies defaults, the TOML file, the command line, then checks rules
 * between keys. All of torchtitan's keys are known: aliases are accepted with a note, keys without
 * meaning here are logged as ignored, unknown keys are errors with a suggestion. Holdfast's own
 * keys (marked "ours" below) are training.reduction, canonical.*, comm.backend, ckptd.*, kernels.*
 * and others. After trainer_config_load() no field is "unset" unless its comment says so. */
#ifndef HOLDFAST_CONFIG_H
#define HOLDFAST_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define CONFIG_TEXT_MAX 256
#define CONFIG_ROLL_BACKS_MAX 64 /* of a run */
#define CONFIG_OUTLYING_WINDOW_MAX 512
#define CONFIG_RAMP_MAX 32u
/* training.numerics: the newest. 1, 2: run/optimizer.c; from 3 on: float products in one order
 * (kernels_chain_products). */
#define CONFIG_NUMERICS 3
#define CONFIG_NUMERICS_CHAINED 3

enum config_dtype { DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_FLOAT16 };
enum pipe_schedule {
    PIPE_1F1B,
    PIPE_GPIPE,
    PIPE_LOOPED, /* LoopedBFS: GPipe with several stages a rank */
    PIPE_INTERLEAVED,
    PIPE_INTERLEAVED_ZERO,
    PIPE_ZBH1,
    PIPE_FILE
};

/* Choices as the operator wrote them, for messages and manifests. settle.c turns them into enums;
 * no other file compares them. */
struct config_text {
    char model_name[32], tied_embeddings[8], rope_scaling[8];
    char converters[CONFIG_TEXT_MAX], float8_recipe[32], float8_gradients[16];
    char optimizer_name[16], moments_dtype[16], decay_type[16];
    char nonfinite[16], outlying[16];
    char dtype[16], mixed_precision_param[16], mixed_precision_reduce[16];
    char reduction[16], reshard_after_forward[16];
    char cp_rotate_method[16], cp_load_balancer[16], pipeline_schedule[32], pipeline_cut[8];
    char ac_mode[16], selective_ac_option[8];
    char interval_type[8], mtbf[24], async_mode[32], when_busy[8], durability[16];
    char partial_rows[8], export_dtype[16];
    char comm_backend[16], comm_mode[16];
    char kernels_backend[16], device[8], kernels_attention[8], kernels_isa[16];
};

/* The first value of an enum is the default of its key, or means the same. */
struct config {
    /* job */
    char config_file[CONFIG_TEXT_MAX];
    char dump_folder[CONFIG_TEXT_MAX];
    char description[CONFIG_TEXT_MAX];
    char run[CONFIG_TEXT_MAX]; /* job.run: name of the run in ckptd; ours */
    bool run_is_of_file;       /* it was not given: the name of the configuration file is used */
    bool print_config;
    double peak_tflops; /* of a rank; 0: unknown */
    bool no_color;      /* metrics.disable_color_printing; trainer_config_load() sets NO_COLOR */
    bool color;         /* older name of the key; settle.c sets no_color */
    char save_config_file[CONFIG_TEXT_MAX];
    /* metrics */
    int64_t log_freq;
    /* "0,3-5": ranks that log lines below warnings; "": all; ours. */
    char log_ranks[CONFIG_TEXT_MAX];
    char loss_file[CONFIG_TEXT_MAX]; /* metrics.loss_file: one line per step, "step hexfloat-loss
                                        hexfloat-grad-norm" */
    double data_wait_max_percent;    /* part of a step that causes a warning; 0: never; ours */
    double straggler_percent;        /* of their time; 0: never; ours */
    double spike_deviations;         /* see observe/spikes.h; 0: never; ours */
    int64_t spike_window, spike_fast_steps, spike_steps;
    char prometheus_file[CONFIG_TEXT_MAX];    /* "": none; ours */
    char jsonl_file[CONFIG_TEXT_MAX];         /* metrics.jsonl_file, see observe/jsonl.h */
    bool tensorboard;                         /* metrics.enable_tensorboard */
    char tensorboard_folder[CONFIG_TEXT_MAX]; /* metrics.save_tb_folder, below dump_folder */
    /* model */
    enum { FAMILY_LLAMA3, FAMILY_LLAMA2 } model_family;
    char model_flavor[32];
    /* Keys of the shape: -1 and "default" mean the value of the flavor, or of model.config. */
    char model_config[CONFIG_TEXT_MAX]; /* a config.json, or its folder; replaces the flavor */
    int64_t model_dim, model_layers, model_heads, model_kv_heads, model_head_dim, model_hidden;
    int64_t model_vocab; /* may be larger than the tokenizer's */
    double rope_theta, norm_eps;
    enum { TIED_DEFAULT, TIED_TRUE, TIED_FALSE } tied_embeddings;
    enum rope_scaling { ROPE_DEFAULT, ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3 } rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_positions;
    char tokenizer_path[CONFIG_TEXT_MAX]; /* the file; model.hf_assets_path or tokenizer_path; may
                                             be "" */
    bool is_float8;                       /* products read float8 operands */
    char float8_filter[CONFIG_TEXT_MAX];
    bool float8_linear; /* settle.c sets is_float8 */
    bool float8_gather;
    enum { FLOAT8_E5M2, FLOAT8_E4M3 } float8_gradients; /* format of gradients in these products */
    /* optimizer */
    enum { OPTIMIZER_ADAMW, OPTIMIZER_ADAM } optimizer;
    enum config_dtype moments_dtype;
    double lr, beta1, beta2, eps, weight_decay;
    bool no_decay_norms; /* ours */
    bool cpu_offload;
    double exit_lead_seconds; /* ours */
    int64_t grace_seconds;    /* from a signal to the end; 0: no limit; ours */
    /* lr_scheduler: torchtitan v0.2.2's curve. With T = decay_total_steps, W = min(warmup_steps,
     * T), D = decay_ratio < 0 ? T - W : min(round(T * decay_ratio), T - W), S = T + 1 - W - D, and
     * the update number s from 0: factor = s < W ? (s + 1) / W : s < W + S ? 1 : min_lr_factor + (1
     * - min_lr_factor) * decay(min((s + 1 - W - S) / D, 1)); decay(p) linear: 1 - p, sqrt: 1 -
     * sqrt(p), cosine: (1 + cos(pi p)) / 2. round() is to even. */
    int64_t warmup_steps;      /* at most decay_total_steps */
    int64_t decay_total_steps; /* if not given, trainer_config_load() sets it to training.steps */
    double decay_ratio;        /* < 0: unset */
    enum decay_type { DECAY_LINEAR, DECAY_SQRT, DECAY_COSINE } decay_type;
    double min_lr_factor;
    /* training */
    char dataset[CONFIG_TEXT_MAX];      /* used if dataset_path is "" */
    char dataset_path[CONFIG_TEXT_MAX]; /* a tokens file, or a folder of text; takes precedence */
    char dataset_field[128], prompt_field[128], answer_field[128]; /* of a folder's JSON; ours */
    double bad_line_share; /* share of lines that may be left out; ours */
    /* "NAME:WEIGHT,...", replaces dataset; "": one source; ours. */
    char mixture[16 * CONFIG_TEXT_MAX];
    int64_t local_batch_size;         /* sequences per micro-batch (leaf) */
    int64_t global_batch_size;        /* sequences per step: local_batch_size x micro_batches */
    char batch_ramp[CONFIG_TEXT_MAX]; /* "STEP:MICRO_BATCHES,..."; "": none; ours */
    struct config_ramp {              /* the same as numbers, steps rising from 0 */
        int64_t step, micro_batches;
    } ramp[CONFIG_RAMP_MAX];
    uint32_t num_ramp;
    int64_t seq_len;
    bool document_mask; /* attention and positions within documents; ours */
    double max_norm;
    int64_t steps;
    double exit_minutes;         /* of a start; 0: no limit */
    double exit_leak_gib;        /* an hour, of a leak; 0: never; ours */
    double exit_memory_gib;      /* limit of a process's private memory; 0: none; ours */
    double exit_free_memory_gib; /* least free memory of the machine; likewise */
    /* For a step whose numbers are not finite; ours. */
    enum { NONFINITE_STOP, NONFINITE_SKIP, NONFINITE_ROLL_BACK } nonfinite;
    int64_t nonfinite_skips_max; /* so many in a row end the run */
    /* The least number of steps to go back; how often in a run. */
    int64_t roll_back_steps, roll_back_times;
    /* For a step whose numbers are finite but out of line: record/outliers.h; ours. */
    enum { OUTLYING_OFF, OUTLYING_WARN, OUTLYING_SKIP, OUTLYING_ROLL_BACK } outlying;
    double outlying_deviations;
    int64_t outlying_window;
    char kill_switch[CONFIG_TEXT_MAX]; /* a file; "": none */
    enum config_dtype mixed_precision_param;
    enum config_dtype mixed_precision_reduce; /* sums of gradients: added, kept and reduced */
    enum { REDUCTION_CANONICAL, REDUCTION_FAST } reduction;
    int64_t numerics; /* 0: that of the run, until snapshot_find_step() sets it */
    /* canonical: fixed when the run is created, kept in the manifest */
    int64_t micro_batches; /* per step, the largest of a ramp; > 0 after trainer_config_load() */
    int64_t groups;
    int64_t tp_blocks, cp_blocks; /* default: the degrees */
    int64_t loss_chunks;
    /* parallelism */
    int64_t dp_replicate, dp_shard; /* dp_shard -1: the ranks that are left */
    int64_t shard_parts;            /* 0: by machine_ranks */
    enum { RESHARD_DEFAULT, RESHARD_ALWAYS, RESHARD_NEVER } reshard_after_forward;
    int64_t zero_stage;    /* 0 to 2: the state that copies of a shard divide among them */
    int64_t bucket_cap_mb; /* 0: each block's gradient is exchanged separately */
    int64_t gather_ahead, exchange_behind;
    bool receives_ahead;
    int64_t tp, pp, cp;
    bool disable_loss_parallel;
    enum { ROTATE_ALLGATHER, ROTATE_RING, ROTATE_ULYSSES } cp_rotate_method;
    enum { BALANCER_HEADTAIL, BALANCER_NONE } cp_load_balancer;
    int64_t ep; /* this version accepts only 1 */
    enum pipe_schedule pipeline_schedule;
    char pipeline_csv[CONFIG_TEXT_MAX];        /* of PIPE_FILE */
    int64_t first_stage_less, last_stage_less; /* layers that an end counts for */
    enum { CUT_LAYERS, CUT_COST } pipeline_cut;
    char stage_names[16 * CONFIG_TEXT_MAX]; /* modules of each stage; "": by pipeline_cut */
    char split_points[CONFIG_TEXT_MAX];     /* modules that begin stages; likewise */
    int64_t pp_microbatch, pp_microbatches; /* settle.c sets local_batch_size; 0: not given */
    int64_t layers_per_stage;               /* 0: what the schedule asks for */
    /* activation_checkpoint */
    enum { RECOMPUTE_NONE, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, RECOMPUTE_BUDGET } ac_mode;
    int64_t recompute_every; /* of RECOMPUTE_SELECTIVE: layers; 0: everything except products */
    char memory_budget[32];  /* a part of the layers, or bytes; as numbers: */
    double kept_part;        /* 1: everything is kept */
    int64_t budget_bytes;    /* of a rank's plan; 0: kept_part applies */
    /* checkpoint */
    bool checkpoint_enable;
    int64_t interval;    /* 0: INTERVAL_AUTO */
    double mtbf_seconds; /* of INTERVAL_AUTO, see save/interval.h; ours */
    enum { INTERVAL_STEPS, INTERVAL_SECONDS, INTERVAL_AUTO } interval_type;
    char save_switch[CONFIG_TEXT_MAX]; /* a file; "": none; ours */
    /* Training continues when a save is copied, when it is durable, or at once. */
    enum { ASYNC_COPIED, ASYNC_DURABLE, ASYNC_AT_ONCE } async_mode;
    enum { BUSY_SKIP, BUSY_WAIT, BUSY_REPLACE } when_busy; /* while ckptd writes older saves */
    int64_t busy_wait_seconds;                             /* limit of "wait" */
    int64_t copy_rate;     /* bytes a second of a save's copy; 0: no limit; ours */
    int64_t final_seconds; /* limit of the last save; ours */
    enum durability {
        DURABLE_LOCAL,
        DURABLE_REPLICATED,
        DURABLE_BUCKET
    } durability;      /* of the last save */
    int64_t load_step; /* -1: newest */
    /* Load the newest below this step; 0: any. Not a key: set by a replay, or when the run goes
     * back. */
    int64_t load_below;
    int64_t skip_samples; /* after the loaded step; ours */
    bool load_only;
    bool take_over; /* checkpoint.take_over: end another start that trains the run; ours */
    bool new_order; /* checkpoint.new_order: sizes of a step may change at a resume; ours */
    bool checkpoint_required;    /* checkpoint.required: a failed save stops training; ours */
    bool compare_replicas;       /* before a save; ours */
    bool compare_copies;         /* copies from a GPU into ckptd's memory; ours */
    bool create_seed_checkpoint; /* save step 0, then end */
    bool first_step_checkpoint; /* checkpoint.enable_first_step_checkpoint: save after step 1 too */
    char exclude_from_loading[CONFIG_TEXT_MAX]; /* of "optimizer,lr_scheduler,dataloader" */
    char initial_load_path[CONFIG_TEXT_MAX];    /* "" or a folder, RUN[@STEP], STORE:RUN[@STEP] */
    bool initial_load_in_hf, initial_load_model_only;
    bool partial; /* checkpoint.partial: record/partial.h; ours */
    enum { PARTIAL_MEAN, PARTIAL_FRESH } partial_rows;
    char partial_fresh[CONFIG_TEXT_MAX]; /* parts of tensors' names */
    bool last_save_model_only, last_save_in_hf;
    char export_folder[CONFIG_TEXT_MAX]; /* "": "hf" in dump_folder */
    enum config_dtype export_dtype;
    int64_t keep_latest_k; /* 0: all */
    /* validation */
    bool validation_enable;
    char validation_dataset[CONFIG_TEXT_MAX]; /* used if the path is "" */
    char validation_path[CONFIG_TEXT_MAX];
    int64_t validation_batch;   /* sequences per micro-batch */
    int64_t validation_seq_len; /* at most training.seq_len; -1: the same */
    int64_t validation_freq;
    int64_t validation_steps; /* of canonical.micro_batches micro-batches; -1: the whole set */
    /* comm */
    enum { BACKEND_LOCAL, BACKEND_MPI, BACKEND_NCCL } comm_backend;
    int64_t comm_ranks;                      /* of "local" */
    int64_t comm_init_timeout, comm_timeout; /* seconds; 0: none */
    int64_t trace_records;                   /* of a flight recorder */
    char trace_folder[CONFIG_TEXT_MAX], trace_prefix[CONFIG_TEXT_MAX];
    /* kernels */
    enum { KERNELS_BEST, KERNELS_REFERENCE } kernels_backend;
    enum { DEVICE_CPU, DEVICE_CUDA } device;
    bool kernels_graphs;
    bool no_graphs; /* newer name of the key; settle.c sets kernels_graphs */
    enum { ATTENTION_BEST, ATTENTION_OWN } kernels_attention;
    bool has_isa;    /* use the level of text.kernels_isa; else the highest of the CPU */
    int64_t threads; /* per rank */
    /* ckptd */
    char ckptd_address[CONFIG_TEXT_MAX]; /* "unix:/path" */
    /* debug */
    int64_t seed;       /* -1: drawn later (run/seed.h) */
    bool estimate;      /* --estimate: print the cost of a step and end */
    bool estimate_json; /* --json: of an estimate, or a preflight */
    bool preflight, links;
    char preflight_folder[CONFIG_TEXT_MAX]; /* on each host's disk; "": disks are not tested */
    int64_t links_max_bytes; /* --preflight: check whether the ranks are fit to train, and end */
    bool suggest;            /* --suggest: print the meshes that fit and end */
    int64_t suggestions, machine_ranks;
    double rank_gib, rank_tflops, machine_gb, network_gb, call_us; /* rates of estimates */
    char rates_file[CONFIG_TEXT_MAX];     /* of --links: source of the last three; "": none */
    char rates_measured[64];              /* names of the measured rates; not a key */
    bool print_program;                   /* --print-program: print the steps' operations and end */
    char timeline_file[CONFIG_TEXT_MAX];  /* --timeline: draws one step of all ranks; "": none */
    int64_t timeline_step;                /* the step of this start, from 1 */
    bool profiling;                       /* profiling.enable_profiling: see run/trace.h */
    char profile_folder[CONFIG_TEXT_MAX]; /* in dump_folder */
    int64_t profile_freq;
    char profile_steps[CONFIG_TEXT_MAX]; /* "10,20-22"; "": every profile_freq-th step; ours */
    int64_t stop_after_step;             /* stop after it without a save; -1: off */
    int64_t replay_step;                 /* --replay: run/replay.h; -1: off */
    bool replay_blame;                   /* --blame */
    char logits_file[CONFIG_TEXT_MAX];  /* debug.logits_file: forward of sample 0, write f32, end */
    bool watch_numbers;                 /* debug.watch_numbers, see parallel/watch.c */
    int64_t watch_modules;              /* number of modules that are kept */
    double watch_bound;                 /* 0: only values that are not finite end the run */
    char watch_steps[CONFIG_TEXT_MAX];  /* "10,20-22"; "": all */
    char watch_folder[CONFIG_TEXT_MAX]; /* "": none */
    int64_t pause_at_step, nonfinite_at_step, nonfinite_at_sample,
        slow_copy_us; /* config/hooks.h */
    struct config_text text;
};

/* Reads all settings; argc and argv as main() got them. ERR_INVALID: the error text is the line to
 * print. */
int trainer_config_load(struct config *out, int argc, char **argv);
/* "float32" */
const char *config_dtype_name(enum config_dtype dtype);
/* The name of the run's data in messages and manifests. */
const char *trainer_config_data(const struct config *config);
/* "bfloat16, float8 products", "..., e4m3 gradients", "..., sums of gradients in bfloat16" */
#define CONFIG_TYPE_MAX 96
const char *config_describe_type(char out[CONFIG_TYPE_MAX], const struct config *config);
const char *trainer_config_validation_data(const struct config *config);
/* True if the step is in a list such as "10,20-22". An empty list contains all steps. */
bool config_has_step(const char *list, int64_t step);
bool config_validates_at(const struct config *config, int64_t step);
int config_check_steps(const char *key, const char *list); /* ERR_INVALID */
/* The same for ranks, as "0,3-5". */
bool config_has_rank(const char *list, int64_t rank);
int config_check_ranks(const char *key, const char *list);
int64_t config_last_rank(const char *list); /* the greatest in the list; -1: it is empty */
/* The effective settings as JSON; the caller frees the text. */
char *trainer_config_to_json(const struct config *config);
/* Micro-batches (leaves) of the step that follows `step` steps; `config` is a struct config. */
uint32_t trainer_config_leaves(const void *config, int64_t step);
uint64_t trainer_config_samples(const struct config *config, int64_t step); /* of all leaves */
void trainer_config_print_help(void);

/* The number of processes that the launcher started; 1 without a launcher. */
long config_num_launched(void);
/* Each process reads the same configuration; only the first, by the launcher's number, logs
 * notes. */
bool config_is_first_process(void);
/* "HOST:RANK" of this process. Returns false if it is the only one. */
#define CONFIG_NAME_MAX 80
bool config_name_process(char out[CONFIG_NAME_MAX]);

#endif
