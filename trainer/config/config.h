/* config.h - the trainer's settings: torchtitan's TOML keys (its v0.2.2 form) and our own sections.
 *
 * trainer_config_load() applies defaults, the TOML file, the command line, then checks what belongs
 * together. All of torchtitan's keys are known: aliases are accepted with a note, keys without
 * meaning here are named as ignored, unknown keys are errors with a suggestion. Our own keys are in
 * the sections training.reduction, canonical.*, comm.backend, ckptd.*, kernels.*. After
 * trainer_config_load() no field is "unset" unless its comment says so. */
#ifndef HOLDFAST_CONFIG_H
#define HOLDFAST_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define CONFIG_TEXT_MAX 256
#define CONFIG_RAMP_MAX 32u
#define CONFIG_NUMERICS 2 /* the newest arithmetic (run/optimizer.c): a new run's */

struct config {
    /* job */
    char config_file[CONFIG_TEXT_MAX];
    char dump_folder[CONFIG_TEXT_MAX];
    char description[CONFIG_TEXT_MAX];
    char run[CONFIG_TEXT_MAX]; /* job.run: name of the run in ckptd; ours */
    bool run_is_of_file;       /* it was not given: the configuration file's name is */
    bool print_config;
    double peak_tflops; /* of a rank; 0: unknown */
    bool no_color;      /* metrics.disable_color_printing; trainer_config_load() sets NO_COLOR */
    bool color;         /* its older name; settled in no_color */
    char save_config_file[CONFIG_TEXT_MAX];
    /* metrics */
    int64_t log_freq;
    char loss_file[CONFIG_TEXT_MAX]; /* metrics.loss_file: one line per step, "step hexfloat-loss
                                        hexfloat-grad-norm" */
    double data_wait_max_percent;    /* of a step, before a warning; 0: never; ours */
    double spike_deviations;         /* as observe/spikes.h has it; 0: never; ours */
    int64_t spike_window, spike_fast_steps, spike_steps;
    char jsonl_file[CONFIG_TEXT_MAX];         /* metrics.jsonl_file, as observe/jsonl.h has it */
    bool tensorboard;                         /* metrics.enable_tensorboard */
    char tensorboard_folder[CONFIG_TEXT_MAX]; /* metrics.save_tb_folder, below dump_folder */
    /* model */
    char model_name[32];
    char model_flavor[32];
    /* Of the shape: -1 and "default" leave to the flavor, or to model.config, what it says. */
    char model_config[CONFIG_TEXT_MAX]; /* a config.json, or its folder; in place of the flavor */
    int64_t model_dim, model_layers, model_heads, model_kv_heads, model_head_dim, model_hidden;
    int64_t model_vocab; /* may be above the tokenizer's */
    double rope_theta, norm_eps;
    char tied_embeddings[8]; /* "default", "true", "false" */
    char rope_scaling[8];    /* "default", "none", "linear", "llama3" */
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_positions;
    char tokenizer_path[CONFIG_TEXT_MAX]; /* the file; model.hf_assets_path or tokenizer_path; may
                                             be "" */
    char converters[CONFIG_TEXT_MAX];     /* "", or as config_is_float8 has it */
    char float8_recipe[32], float8_filter[CONFIG_TEXT_MAX];
    bool float8_linear; /* settled in converters */
    bool float8_gather;
    char float8_gradients[16];
    /* optimizer */
    char optimizer_name[16];
    char moments_dtype[16];
    double lr, beta1, beta2, eps, weight_decay;
    bool no_decay_norms; /* ours */
    bool cpu_offload;
    double exit_lead_seconds; /* ours */
    /* lr_scheduler: torchtitan v0.2.2's curve. With T = decay_total_steps, W = min(warmup_steps,
     * T), D = decay_ratio < 0 ? T - W : min(round(T * decay_ratio), T - W), S = T + 1 - W - D, and
     * the update number s from 0: factor = s < W ? (s + 1) / W : s < W + S ? 1 : min_lr_factor + (1
     * - min_lr_factor) * decay(min((s + 1 - W - S) / D, 1)); decay(p) linear: 1 - p, sqrt: 1 -
     * sqrt(p), cosine: (1 + cos(pi p)) / 2. round() is to even. */
    int64_t warmup_steps;      /* never more than decay_total_steps */
    int64_t decay_total_steps; /* trainer_config_load() puts training.steps when not given */
    double decay_ratio;        /* < 0: unset */
    char decay_type[16];
    double min_lr_factor;
    /* training */
    char dataset[CONFIG_TEXT_MAX];      /* what is read when dataset_path is "" */
    char dataset_path[CONFIG_TEXT_MAX]; /* a tokens file, or a folder of text; goes first */
    char dataset_field[128], prompt_field[128], answer_field[128]; /* of a folder's JSON; ours */
    double bad_line_share;              /* of those lines, that may be left out; ours */
    char mixture[16 * CONFIG_TEXT_MAX]; /* "NAME:WEIGHT,..." in its place; "": one source; ours */
    int64_t local_batch_size;           /* sequences per micro-batch (leaf) */
    int64_t global_batch_size;          /* sequences per step: local_batch_size x micro_batches */
    char batch_ramp[CONFIG_TEXT_MAX];   /* "STEP:MICRO_BATCHES,..."; "": none; ours */
    struct config_ramp {                /* the same as numbers, steps rising from 0 */
        int64_t step, micro_batches;
    } ramp[CONFIG_RAMP_MAX];
    uint32_t num_ramp;
    int64_t seq_len;
    bool document_mask; /* attention and positions within documents; ours */
    double max_norm;
    int64_t steps;
    double exit_minutes;               /* of a start; 0: no limit */
    double exit_memory_gib;            /* the most that is a process's own; 0: no limit; ours */
    double exit_free_memory_gib;       /* the least that is left of a machine's; likewise */
    char nonfinite[8];                 /* "stop", "skip": of a step whose numbers are not; ours */
    int64_t nonfinite_skips_max;       /* so many in a row end the run */
    char kill_switch[CONFIG_TEXT_MAX]; /* a file; "": none */
    char dtype[16];                    /* of the master weights: "float32" */
    char mixed_precision_param[16];    /* "float32" or "bfloat16" */
    char mixed_precision_reduce[16];   /* of sums of gradients: "float32" or "bfloat16" */
    char reduction[16];                /* "canonical" or "fast" */
    int64_t numerics;                  /* 0: the run's own, until snapshot_look() */
    /* canonical: fixed when the run is created, kept in the manifest */
    int64_t micro_batches; /* per step, the most of a ramp; > 0 after trainer_config_load() */
    int64_t groups;
    int64_t tp_blocks, cp_blocks; /* the degrees, where they are not given */
    int64_t loss_chunks;
    /* parallelism */
    int64_t dp_replicate, dp_shard; /* dp_shard -1: the ranks that are left */
    char reshard_after_forward[16]; /* "default", "always", "never" */
    int64_t zero_stage;             /* 0 to 2: what copies of a shard divide among them */
    int64_t bucket_cap_mb;          /* 0: each block's gradient is exchanged alone */
    int64_t gather_ahead, exchange_behind;
    bool receives_ahead;
    int64_t tp, pp, cp;
    bool disable_loss_parallel;
    char cp_rotate_method[16]; /* "allgather", "alltoall" (a ring), "ulysses" */
    char cp_load_balancer[16]; /* "headtail", "none" */
    int64_t ep;                /* accepted only as 1 by this version */
    char pipeline_schedule[32];
    char pipeline_csv[CONFIG_TEXT_MAX];        /* "": pipeline_schedule */
    int64_t first_stage_less, last_stage_less; /* layers that the ends of a model cost */
    char pipeline_cut[8];                      /* "layers" or "cost" */
    char stage_names[16 * CONFIG_TEXT_MAX];    /* modules of each stage; "": by pipeline_cut */
    char split_points[CONFIG_TEXT_MAX];        /* modules that begin stages; likewise */
    int64_t pp_microbatch, pp_microbatches;    /* settled in local_batch_size; 0: not given */
    int64_t layers_per_stage;                  /* 0: what the schedule asks for */
    /* activation_checkpoint */
    char ac_mode[16];            /* "none", "full", "selective", "memory_budget" */
    char selective_ac_option[8]; /* every n-th layer, or "op" */
    char memory_budget[32];      /* a part of the layers, or bytes; the same as numbers: */
    double kept_part;            /* 1: all is kept */
    int64_t budget_bytes;        /* of a rank's plan; 0: kept_part counts */
    /* checkpoint */
    bool checkpoint_enable;
    int64_t interval;
    char interval_type[8];             /* "steps", "seconds" */
    char save_switch[CONFIG_TEXT_MAX]; /* a file; "": none; ours */
    char async_mode[32];               /* "disabled", "async", "async_with_pinned_mem" */
    char when_busy[8];         /* "skip", "wait", "replace": when ckptd writes older saves */
    int64_t busy_wait_seconds; /* bound of "wait" */
    int64_t copy_rate;         /* bytes a second of a save's copy; 0: no bound; ours */
    int64_t final_seconds;     /* bound of the last save; ours */
    char durability[16];       /* "local", "replicated", "bucket": of the last save; ours */
    int64_t load_step;         /* -1: newest */
    int64_t skip_samples;      /* behind what was loaded; ours */
    bool load_only;
    bool take_over; /* checkpoint.take_over: end who trains the run; ours */
    bool new_order; /* checkpoint.new_order: sizes of a step may change at a resume; ours */
    bool checkpoint_required;    /* checkpoint.required: a failed save stops training; ours */
    bool compare_replicas;       /* before a save; ours */
    bool compare_copies;         /* from a GPU into ckptd's memory; ours */
    bool create_seed_checkpoint; /* save step 0, then end */
    bool first_step_checkpoint; /* checkpoint.enable_first_step_checkpoint: save after step 1 too */
    char exclude_from_loading[CONFIG_TEXT_MAX]; /* of "optimizer,lr_scheduler,dataloader" */
    char initial_load_path[CONFIG_TEXT_MAX];    /* "" or a folder, RUN[@STEP], STORE:RUN[@STEP] */
    bool initial_load_in_hf, initial_load_model_only;
    bool partial;                        /* checkpoint.partial: save/partial.h; ours */
    char partial_rows[8];                /* "mean", "fresh" */
    char partial_fresh[CONFIG_TEXT_MAX]; /* parts of tensors' names */
    bool last_save_model_only, last_save_in_hf;
    char export_folder[CONFIG_TEXT_MAX]; /* "": "hf" below dump_folder */
    char export_dtype[16];
    int64_t keep_latest_k; /* 0: all */
    /* validation */
    bool validation_enable;
    char validation_dataset[CONFIG_TEXT_MAX]; /* what is read when the path is "" */
    char validation_path[CONFIG_TEXT_MAX];
    int64_t validation_batch;   /* sequences of a micro-batch */
    int64_t validation_seq_len; /* at most training.seq_len, which -1 stands for until loaded */
    int64_t validation_freq;
    int64_t validation_steps; /* of canonical.micro_batches micro-batches; -1: the whole set */
    /* comm */
    char comm_backend[16];                   /* "local", "mpi" or "nccl" */
    char comm_mode[16];                      /* "default", "fake_backend"; settled in estimate */
    int64_t comm_ranks;                      /* of "local" */
    int64_t comm_init_timeout, comm_timeout; /* seconds; 0: none */
    int64_t trace_records;                   /* of a flight recorder */
    char trace_folder[CONFIG_TEXT_MAX], trace_prefix[CONFIG_TEXT_MAX];
    /* kernels */
    char kernels_backend[16]; /* "best" or "reference" */
    char device[8];           /* "cpu" or "cuda" */
    bool kernels_graphs;
    bool no_graphs;            /* its newer name; settled in kernels_graphs */
    char kernels_attention[8]; /* "best" or "own" */
    char kernels_isa[16];      /* "auto", ... */
    int64_t threads;           /* per rank */
    /* ckptd */
    char ckptd_address[CONFIG_TEXT_MAX]; /* "unix:/path" */
    /* debug */
    int64_t seed;       /* -1: not drawn yet (save/seed.h) */
    bool estimate;      /* --estimate: print what a step takes and end */
    bool estimate_json; /* --json: of an estimate, or a preflight */
    bool preflight, links;
    int64_t links_max_bytes; /* --preflight: look whether the ranks are fit to train, and end */
    bool suggest;            /* --suggest: print which meshes fit and end */
    int64_t suggestions, machine_ranks;
    double rank_gib, rank_tflops, machine_gb, network_gb, call_us; /* what they are priced with */
    bool print_program;                   /* --print-program: print the steps' operations and end */
    char timeline_file[CONFIG_TEXT_MAX];  /* --timeline: of one step of all ranks; "": none */
    int64_t timeline_step;                /* which of this start's, from 1 */
    bool profiling;                       /* profiling.enable_profiling: as run/trace.h has it */
    char profile_folder[CONFIG_TEXT_MAX]; /* below dump_folder */
    int64_t profile_freq;
    char profile_steps[CONFIG_TEXT_MAX]; /* "10,20-22"; "": every profile_freq-th; ours */
    int64_t stop_after_step;             /* without a save; -1: off */
    char logits_file[CONFIG_TEXT_MAX];  /* debug.logits_file: forward of sample 0, write f32, end */
    bool watch_numbers;                 /* debug.watch_numbers, as parallel/watch.c has it */
    int64_t watch_modules;              /* so many are kept */
    double watch_bound;                 /* 0: what is not finite alone ends the run */
    char watch_steps[CONFIG_TEXT_MAX];  /* "10,20-22"; "": all */
    char watch_folder[CONFIG_TEXT_MAX]; /* "": none */
    int64_t crash_at_step;              /* debug.pause_at_step: for the tests, see README; -1 off */
    int64_t slow_copy_us;               /* debug.slow_copy_us: likewise; 0 off */
    int64_t nonfinite_at_step;          /* debug.nonfinite_at_step: likewise; -1 off */
};

/* Reads everything; argc and argv as main() got them. ERR_INVALID with the line to print. */
int trainer_config_load(struct config *out, int argc, char **argv);
/* What the run's data are called in messages and manifests. */
const char *trainer_config_data(const struct config *config);
/* Do products read float8 operands? */
bool config_is_float8(const struct config *config);
/* Does a GPU compute? */
bool config_has_gpu(const struct config *config);
/* The gradients among them as e4m3, else e5m2. */
bool config_gradients_are_e4m3(const struct config *config);
/* Are gradients summed, kept and reduced as bf16? */
bool config_sums_are_narrow(const struct config *config);
/* "bfloat16, float8 products", "..., e4m3 gradients", "..., sums of gradients in bfloat16" */
#define CONFIG_TYPE_MAX 96
const char *config_describe_type(char out[CONFIG_TYPE_MAX], const struct config *config);
const char *trainer_config_validation_data(const struct config *config);
/* Lists of steps, as "10,20-22". Is the step in it? In an empty one all are. */
bool config_has_step(const char *list, int64_t step);
int config_check_steps(const char *key, const char *list); /* ERR_INVALID */
/* The effective settings as JSON, to be freed. */
char *trainer_config_to_json(const struct config *config);
/* Micro-batches (leaves) of the step that follows `step` steps; `config` is a struct config. */
uint32_t trainer_config_leaves(const void *config, int64_t step);
void trainer_config_print_help(void);

/* How many processes a launcher started this one among; 1 without one. */
long config_num_launched(void);
/* Launchers number their processes; every one reads the same configuration, the first comments. */
bool config_is_first_process(void);
/* "HOST:RANK" of this process; false: it is the only one. */
#define CONFIG_NAME_MAX 80
bool config_name_process(char out[CONFIG_NAME_MAX]);

#endif
