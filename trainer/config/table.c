/* table.c - every key of the trainer's configuration, in one table.
 *
 * The keys are torchtitan's last TOML form (v0.2.2) with the names that older releases used, and
 * ours where torchtitan has none. Four kinds: a key with a field; an older name, which stands for
 * another key; a key that has nothing to decide here, which is accepted and named with the reason;
 * and FIXED, a key whose silent loss would change the training: the values that mean what the
 * trainer does are accepted, all others are refused. Defaults are torchtitan's unless the line says
 * otherwise. */
#include "trainer/config/table.h"

#define BOOL(field, ...) OPTION_BOOL(struct config, field, __VA_ARGS__)
#define INT(field, ...) OPTION_INT(struct config, field, __VA_ARGS__)
#define DOUBLE(field, ...) OPTION_DOUBLE(struct config, field, __VA_ARGS__)
#define STRING(field, ...) OPTION_STRING(struct config, field, __VA_ARGS__)
#define CHOICE(field, ...) OPTION_CHOICE(struct config, field, __VA_ARGS__)
#define CHOICE_BUT(field, ...) OPTION_CHOICE_BUT(struct config, field, __VA_ARGS__)
#define ALIAS OPTION_ALIAS
#define IGNORED OPTION_IGNORED
#define FIXED OPTION_FIXED

#define COUNT_MAX 1000000000
#define RANKS_MAX 65536

/* Reasons that several keys share. */
#define NO_PYTHON "the trainer runs no Python"
#define ONE_STEP_TRACES "a trace is of one step; profiling.profile_steps lists more"
#define NO_WANDB "this version writes no W&B events; see metrics.enable_tensorboard"
#define ONE_BOARD "rank 0 alone writes: what all ranks share, and its own speed and memory"
#define NO_LOADER "samples are read straight from the tokens file"
#define NO_COMPILE "there is nothing to compile at run time"
#define NO_SNAPSHOT "--estimate prints the plan, of which every buffer is"
#define NO_TENSOR "compute waits for what tensor parallel exchanges"
#define NO_EXPERTS "there is no mixture-of-experts model"
#define NO_RECOMPUTE "recomputation gives the same bits always"
#define OWN_RECOMPUTE "activation_checkpoint.mode alone says what is computed again"
#define NO_MX "this version has no MX products"
#define WIDER_FLOAT8 "a CPU always emulates; a GPU below compute capability 8.9 is refused"
#define FLOAT8_SCALES "scales are made at once where shards are gathered as codes, else per product"
#define FLOAT8_COPIES "a product reads a weight's codes again in its backward"
#define DYNAMIC_SCALES "a scale is made of what it scales, not of the steps before"
#define NO_FT "ranks restart from ckptd's memory; TorchFT is not used"
#define ONE_FORM "there is one implementation"
#define BY_CKPTD "ckptd places and keeps checkpoints; see its configuration"
#define DETERMINISTIC "training is deterministic; with reduction = fast as far as the library is"

const struct option config_table[] = {
    STRING(config_file, "job.config_file", "", "TOML file to read (also --config)"),
    STRING(dump_folder, "job.dump_folder", "./outputs", "folder of what the trainer writes"),
    STRING(description, "job.description", "default job", "free text for the log"),
    STRING(run, "job.run", "",
           "name of the run in ckptd: what resumes what; empty: the name of the file of --config "
           "(ours)"),
    BOOL(print_config, "job.print_config", "false", "print the effective configuration"),
    STRING(save_config_file, "job.save_config_file", "",
           "file under dump_folder for the effective configuration as JSON"),
    FIXED("job.custom_config_module", "", NO_PYTHON),
    IGNORED("job.use_for_integration_test", "it was a mark for torchtitan's own tests"),
    IGNORED("metrics.use_for_integration_test", "it was a mark for torchtitan's own tests"),
    ALIAS("job.print_args", "job.print_config"),
    ALIAS("debug.print_config", "job.print_config"),
    ALIAS("debug.save_config_file", "job.save_config_file"),
    FIXED("job.save_config_folder", "", "name the file with job.save_config_file"),
    ALIAS("global.dump_folder", "job.dump_folder"),

    INT(log_freq, "metrics.log_freq", 10, 1, COUNT_MAX, "steps between two step lines"),
    STRING(loss_file, "metrics.loss_file", "",
           "file that gets a line per step: step, loss, gradient norm, in hexadecimal floats; a "
           "resumed run appends, and steps made again are there twice (ours)"),
    DOUBLE(data_wait_max_percent, "metrics.data_wait_max_percent", 10, 0, 100,
           "a step line whose steps have waited for samples for more of their time comes with a "
           "warning; 0: never (ours)"),
    DOUBLE(spike_deviations, "metrics.spike_deviations", 6, 0, 1e9,
           "a loss so many deviations above the median is said to be a spike; 0: never (ours)"),
    INT(spike_window, "metrics.spike_window", 64, 16, 1024,
        "steps of that median and deviation (ours)"),
    INT(spike_fast_steps, "metrics.spike_fast_steps", 20, 1, COUNT_MAX,
        "the most steps of a fast spike; a longer one is slow (ours)"),
    INT(spike_steps, "metrics.spike_steps", 200, 1, COUNT_MAX,
        "a spike that goes on so long lasts, and is warned of again (ours)"),
    STRING(
        jsonl_file, "metrics.jsonl_file", "",
        "file for a line of JSON per step: attempt, step, losses, gradient norm, range of "
        "samples; in a new one the losses that the checkpoint has of the steps before come first "
        "(observe/jsonl.h; ours)"),
    DOUBLE(peak_tflops, "metrics.peak_tflops", 0, 0, 1e9,
           "of one rank's processor in the compute type, for mfu in the step line; 0: that of a "
           "known GPU "
           "(ours)"),
    BOOL(no_color, "metrics.disable_color_printing", "false", "no colours on terminals"),
    BOOL(tensorboard, "metrics.enable_tensorboard", "false",
         "write a file of events for TensorBoard at each step line, by rank 0"),
    STRING(tensorboard_folder, "metrics.save_tb_folder", "tb",
           "folder of these files, below job.dump_folder; a new one gets the losses of the steps "
           "before, too"),
    IGNORED("metrics.enable_wandb", NO_WANDB),
    IGNORED("metrics.disable_logging_from_checkpoint", "HOLDFAST_LOG chooses what is logged"),
    IGNORED("metrics.save_for_all_ranks", ONE_BOARD),
    IGNORED("metrics.rank_0_only", ONE_BOARD),
    BOOL(color, "metrics.enable_color_printing", "true", "older: false is disable_color_printing"),

    CHOICE(
        model_name, "model.name", "llama3", "llama3,llama2,llama",
        "family of the model; with llama2, which older files call llama, the flavors 7B, 13B and "
        "70B are Llama 2's"),
    STRING(model_flavor, "model.flavor", "debugmodel",
           "tiny, debugmodel, torchtitan-debugmodel (theirs, of 6 layers), 110M, 8B, 70B, 405B: "
           "sizes, with the vocabulary of the tokens; "
           "llama2-7B, 13B, 70B, llama3-8B, 70B, llama3.1-8B, 70B, 405B, llama3.2-1B, 3B, "
           "tinyllama-1.1B: as published, with their own vocabulary"),
    STRING(model_config, "model.config", "",
           "a Hugging Face config.json, or its folder, in place of the flavor (ours)"),
    INT(model_dim, "model.dim", -1, -1, 1 << 24, "width; -1: as the flavor or model.config says"),
    INT(model_layers, "model.n_layers", -1, -1, 4096, "likewise, as are the keys down to norm_eps"),
    INT(model_heads, "model.n_heads", -1, -1, 1 << 24, "query heads"),
    INT(model_kv_heads, "model.n_kv_heads", -1, -1, 1 << 24, "key/value heads; divides n_heads"),
    INT(model_head_dim, "model.head_dim", -1, -1, 4096,
        "width of a head; -1, where dim or n_heads is given: dim / n_heads"),
    INT(model_hidden, "model.hidden_dim", -1, -1, 1 << 24, "width of the feed-forward part (ours)"),
    INT(model_vocab, "model.vocab_size", -1, -1, 1 << 24,
        "rows of the embedding; may be above the tokenizer's vocabulary"),
    DOUBLE(rope_theta, "model.rope_theta", -1, -1, 1e18, "base of rotary embedding"),
    DOUBLE(norm_eps, "model.norm_eps", -1, -1, 1, "added to the mean square in RMSNorm"),
    CHOICE(tied_embeddings, "model.tied_embeddings", "default", "default,true,false",
           "one matrix for embedding and output, trained as one (ours)"),
    CHOICE(rope_scaling, "model.rope_scaling", "default", "default,none,linear,llama3",
           "how positions beyond the first training's are reached (ours)"),
    DOUBLE(rope_factor, "model.rope_factor", -1, -1, 1e6, "of linear and llama3 (ours)"),
    DOUBLE(rope_low_freq_factor, "model.rope_low_freq_factor", -1, -1, 1e6, "of llama3 (ours)"),
    DOUBLE(rope_high_freq_factor, "model.rope_high_freq_factor", -1, -1, 1e6, "of llama3 (ours)"),
    INT(rope_original_positions, "model.rope_original_positions", -1, -1, 1 << 30,
        "of llama3: positions of the first training (ours)"),
    STRING(tokenizer_path, "model.hf_assets_path", "",
           "tokenizer.model or tokenizer.json, or the folder of one; when given, it must be the "
           "one that "
           "made the tokens"),
    ALIAS("model.tokenizer_path", "model.hf_assets_path"),
    STRING(converters, "model.converters", "", "quantize.linear.float8, or nothing"),
    IGNORED("model.print_after_conversion", NO_PYTHON),
    IGNORED("model.use_flex_attn", "attention has one implementation for either mask"),
    FIXED("model.attn_mask_type", "causal", "for block_causal set training.document_mask = true"),
    FIXED("model.norm_type", "rmsnorm,fused_rmsnorm,compiled_rmsnorm", "Llama's norm is RMSNorm"),

    CHOICE(optimizer_name, "optimizer.name", "AdamW", "AdamW,Adam",
           "AdamW, or Adam, whose weight decay is a part of the gradient"),
    DOUBLE(lr, "optimizer.lr", 8e-4, 0, 1e3, "peak learning rate"),
    DOUBLE(beta1, "optimizer.beta1", 0.9, 0, 1, "decay of the first moment"),
    DOUBLE(beta2, "optimizer.beta2", 0.95, 0, 1, "decay of the second moment"),
    DOUBLE(eps, "optimizer.eps", 1e-8, 1e-30, 1, "added to the root of the second moment"),
    DOUBLE(weight_decay, "optimizer.weight_decay", 0.1, 0, 1e3, "of every parameter"),
    BOOL(no_decay_norms, "optimizer.no_decay_norms", "false",
         "the weights of norms do not decay (ours)"),
    CHOICE(moments_dtype, "optimizer.moments_dtype", "float32", "float32,bfloat16",
           "of both moments; bfloat16 rounds them stochastically, the same on every mesh (ours)"),
    FIXED("optimizer.param_groups", "",
          "all tensors have one rate and decay; for norms without decay set "
          "optimizer.no_decay_norms"),
    FIXED("optimizer.implementation", "fused,foreach,for-loop",
          "for moments of bf16 set optimizer.moments_dtype = bfloat16"),
    IGNORED("optimizer.fused", ONE_FORM),
    IGNORED("optimizer.early_step_in_backward", "the update follows the whole gradient"),

    INT(warmup_steps, "lr_scheduler.warmup_steps", 200, 0, COUNT_MAX, "steps of linear warm-up"),
    INT(decay_total_steps, "lr_scheduler.total_steps", -1, -1, COUNT_MAX,
        "length of the curve; -1: training.steps"),
    DOUBLE(decay_ratio, "lr_scheduler.decay_ratio", -1, -1, 1,
           "part of the steps, at the end, that decays; -1: all after the warm-up"),
    CHOICE(decay_type, "lr_scheduler.decay_type", "linear", "linear,sqrt,cosine",
           "form of the decay"),
    DOUBLE(min_lr_factor, "lr_scheduler.min_lr_factor", 0, 0, 1, "floor, as a part of lr"),
    ALIAS("lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"),
    FIXED("lr_scheduler.warmup_pct", "", "give the steps with lr_scheduler.warmup_steps"),
    ALIAS("training.warmup_steps", "lr_scheduler.warmup_steps"),
    FIXED("training.warmup_pct", "", "give the steps with lr_scheduler.warmup_steps"),

    STRING(dataset_path, "training.dataset_path", "",
           "tokens file (made by `tokenizer tokens`), or a folder of text or JSON lines, which is "
           "tokenized once and kept in FOLDER/.holdfast or ~/.cache/holdfast; s3://BUCKET/PATH: "
           "either in a bucket, fetched once into the latter, as AWS_* and HOLDFAST_S3_* say"),
    STRING(dataset, "training.dataset", "",
           "the same when training.dataset_path is empty, or c4, c4_test: their files are in the "
           "folder of that name in ~/.cache/holdfast"),
    STRING(
        dataset_field, "training.dataset_field", "text",
        "member of a folder's JSON that holds the text; A,B: both, joined by a line break (ours)"),
    STRING(prompt_field, "training.dataset_prompt_field", "",
           "member that holds a prompt, whose tokens are not trained on (ours)"),
    STRING(answer_field, "training.dataset_answer_field", "",
           "member that holds the answer to the prompt (ours)"),
    DOUBLE(
        bad_line_share, "training.bad_line_share", 0.001, 0, 1,
        "part of a folder's JSON lines that may lack the text: they are left out and named; more "
        "of those read, over 10, end the run; 0: one does; 1: none does (ours)"),
    INT(local_batch_size, "training.local_batch_size", 8, 1, COUNT_MAX,
        "sequences of a micro-batch"),
    ALIAS("training.batch_size", "training.local_batch_size"),
    FIXED("training.num_tokens_per_microbatch_per_dp_rank", "",
          "set training.local_batch_size to these tokens / training.seq_len"),
    FIXED("training.num_tokens_per_train_step", "-1",
          "set training.global_batch_size to these tokens / training.seq_len"),
    ALIAS("training.max_context_length", "training.seq_len"),
    INT(global_batch_size, "training.global_batch_size", -1, -1, COUNT_MAX,
        "sequences of a step; -1: local_batch_size x canonical.micro_batches"),
    STRING(mixture, "training.mixture", "",
           "NAME:WEIGHT,NAME:WEIGHT,...: tokens files, folders or names as in training.dataset, in "
           "place of training.dataset_path; the weights may change at a resume (ours)"),
    BOOL(document_mask, "training.document_mask", "false",
         "attention does not cross documents, and positions begin again with each (ours)"),
    STRING(batch_ramp, "training.batch_ramp", "",
           "STEP:MICRO_BATCHES,...: micro-batches of a step from that step on, the first from 0; "
           "fixed when the run is created (ours)"),
    INT(seq_len, "training.seq_len", 2048, 1, 1 << 24, "tokens of a sequence"),
    DOUBLE(max_norm, "training.max_norm", 1.0, 0, 1e30,
           "the gradient is scaled down to this norm; 0: never"),
    INT(steps, "training.steps", 10000, 1, COUNT_MAX, "optimizer steps of the run"),
    DOUBLE(exit_minutes, "training.exit_duration_in_mins", 0, 0, 1e7,
           "save and end with 79 when a start has lasted so many minutes; the launcher passes that "
           "on as 75 and starts nothing; 0: no limit (Megatron's)"),
    DOUBLE(exit_lead_seconds, "training.exit_lead_seconds", 10, 0, 1e7,
           "least time before the end of a batch job ($HOLDFAST_JOB_END_TIME, SLURM's) at which a "
           "run saves and ends with 79; more where steps and saves take longer; 0: never (ours)"),
    DOUBLE(exit_memory_gib, "training.exit_memory_gib", 0, 0, 1e7,
           "save and end with 75 when the memory that is a process's own, not a file's nor shared "
           "with ckptd, reaches so many GiB on some rank, as a leak does; 0: no limit (ours)"),
    DOUBLE(exit_free_memory_gib, "training.exit_free_memory_gib", 0, 0, 1e7,
           "likewise when some rank's machine, or control group, has no more left; 0: no limit "
           "(ours)"),
    CHOICE(nonfinite, "training.nonfinite", "stop", "stop,skip",
           "when loss or gradient norm is not finite: end with 78 and save nothing, or go on "
           "without that step's update (ours)"),
    INT(nonfinite_skips_max, "training.nonfinite_skips_max", 10, 1, COUNT_MAX,
        "with skip: so many such steps in a row end the run (ours)"),
    STRING(kill_switch, "training.kill_switch_path", "",
           "while this file is there, a run saves and ends with 78, and none is started; rank 0 "
           "looks behind each step (Megatron's)"),
    CHOICE_BUT(dtype, "training.dtype", "float32", "float32", "bfloat16",
               "updates are smaller than what bfloat16 weights can take up; products have "
               "training.mixed_precision_param",
               "of weights"),
    CHOICE(mixed_precision_param, "training.mixed_precision_param", "bfloat16", "bfloat16,float32",
           "type that products are computed in"),
    CHOICE(mixed_precision_reduce, "training.mixed_precision_reduce", "float32", "float32,bfloat16",
           "type in which gradients are summed, kept and reduced; bfloat16 with the fast reduction "
           "alone (ours: torchtitan has float32)"),
    CHOICE(reduction, "training.reduction", "canonical", "canonical,fast",
           "canonical: the same bits on any number of ranks (ours)"),
    INT(numerics, "training.numerics", 0, 0, CONFIG_NUMERICS,
        "arithmetic of the optimizer: 2 as near to the real numbers as PyTorch's or nearer; 1 that "
        "of runs begun before there was a choice; 0: that of the checkpoint, 2 in a new run "
        "(ours)"),
    BOOL(cpu_offload, "training.enable_cpu_offload", "false",
         "on a GPU: moments, and parameters where products have a copy in bfloat16, lie in the "
         "host's memory, over the bus"),
    IGNORED("training.gc_freq", NO_PYTHON),
    IGNORED("training.gc_debug", NO_PYTHON),
    IGNORED("training.debug_moe_force_load_balance", NO_EXPERTS),
    IGNORED("training.compile", NO_COMPILE),
    IGNORED("training.deterministic", DETERMINISTIC),
    ALIAS("training.seed", "debug.seed"),
    IGNORED("training.dataloader.num_workers", NO_LOADER),
    IGNORED("training.dataloader.persistent_workers", NO_LOADER),
    IGNORED("training.dataloader.pin_memory", NO_LOADER),
    IGNORED("training.dataloader.prefetch_factor", NO_LOADER),
    IGNORED("dataloader.seed", "debug.seed gives the order of the samples"),
    IGNORED("dataloader.streaming_shuffle_buffer_size", "all samples of the data are shuffled"),
    IGNORED("dataloader.num_prefetch_batches", NO_LOADER),

    INT(micro_batches, "canonical.micro_batches", -1, -1, 1 << 20,
        "micro-batches of a step on whatever number of ranks; -1: from global_batch_size (ours)"),
    INT(groups, "canonical.groups", 1, 1, 1 << 20,
        "groups of consecutive micro-batches, each summed by one replica: the number of "
        "replicas, where they should exchange once per step (ours)"),
    INT(tp_blocks, "canonical.tp_blocks", 0, 0, 1024,
        "parts in which sums over heads, hidden width and vocabulary are made: the most that "
        "tensor_parallel_degree can become; they need not divide the vocabulary; 0: that degree "
        "(ours)"),
    INT(cp_blocks, "canonical.cp_blocks", 0, 0, 1024,
        "parts in which sums over the positions of a sequence are made: the most that "
        "context_parallel_degree can become; 0: that degree (ours)"),
    INT(loss_chunks, "canonical.loss_chunks", 1, 1, 1 << 20,
        "parts in which the rows of a micro-batch (of a block of canonical.cp_blocks) go through "
        "the output and the loss, one after the other: logits of one part exist at a time (ours)"),
    ALIAS("loss.num_chunks", "canonical.loss_chunks"),

    INT(dp_replicate, "parallelism.data_parallel_replicate_degree", 1, 1, RANKS_MAX,
        "copies of the sharded model"),
    INT(dp_shard, "parallelism.data_parallel_shard_degree", -1, -1, RANKS_MAX,
        "ranks that share one copy (FSDP); -1: all that are left"),
    CHOICE(reshard_after_forward, "parallelism.fsdp_reshard_after_forward", "default",
           "default,always,never", "drop gathered weights after the forward pass"),
    INT(zero_stage, "parallelism.zero_stage", 0, 0, 2,
        "what replicas divide among them (ZeRO): 1 the optimizer's moments, 2 also the sums of "
        "gradients, which the canonical reduction always divides (ours)"),
    INT(bucket_cap_mb, "parallelism.bucket_cap_mb", 0, 0, 1048576,
        "MiB of a bucket: gradients of neighbouring blocks that are exchanged at once, as DDP's; a "
        "larger block is a bucket, 0: each is (ours)"),
    INT(gather_ahead, "parallelism.gather_ahead", 1, 0, 16,
        "blocks that are gathered while the one in front of them is computed (ours)"),
    INT(exchange_behind, "parallelism.exchange_behind", 1, 0, 16,
        "exchanges of gradients that may be under way while the next is computed (ours)"),
    BOOL(receives_ahead, "parallelism.receives_ahead", "true",
         "what a stage of a pipeline needs next, or a backward of a layer from around the ring of "
         "context parallel, comes while the rank computes (ours)"),
    INT(tp, "parallelism.tensor_parallel_degree", 1, 1, 1024,
        "ranks that share the products of a layer by blocks, and its norms and the loss by rows"),
    BOOL(disable_loss_parallel, "parallelism.disable_loss_parallel", "false",
         "each rank of tensor parallel gathers the logits of all its rows and computes their loss "
         "whole; else of its part of the rows: the same bits in less memory"),
    INT(pp, "parallelism.pipeline_parallel_degree", 1, 1, RANKS_MAX, "stages of a pipeline"),
    INT(cp, "parallelism.context_parallel_degree", 1, 1, 1024,
        "ranks that share each sequence, in chunks from its two ends"),
    CHOICE(cp_rotate_method, "parallelism.context_parallel_rotate_method", "allgather",
           "allgather,alltoall,ulysses",
           "how keys and values come to all queries: at once, from rank to rank in a ring, or with "
           "them, where each rank takes all rows of its share of the blocks of heads"),
    CHOICE(cp_load_balancer, "parallelism.context_parallel_load_balancer", "headtail",
           "headtail,none",
           "which chunks of a sequence are a block of canonical.cp_blocks: head with tail, so that "
           "all cost the same, or neighbours; belongs to the order of sums"),
    CHOICE_BUT(pipeline_schedule, "parallelism.pipeline_parallel_schedule", "1F1B",
               "GPipe,1F1B,Interleaved1F1B,ZBH1",
               "InterleavedZeroBubble,ZBVZeroBubble,DualPipeV,LoopedBFS",
               "of those that split the backward ZBH1 is there, in place of LoopedBFS "
               "Interleaved1F1B, which holds fewer micro-batches; a schedule of your own goes by "
               "parallelism.pipeline_parallel_schedule_csv",
               "which stage computes what when"),
    STRING(pipeline_csv, "parallelism.pipeline_parallel_schedule_csv", "",
           "a schedule of your own: a line per rank, actions as 0F0,0B0; in place of the above"),
    INT(first_stage_less, "parallelism.pipeline_parallel_first_stage_less_layers", 1, 0, 1024,
        "layers that the embedding counts for when stages are cut"),
    INT(last_stage_less, "parallelism.pipeline_parallel_last_stage_less_layers", 1, 0, 1024,
        "layers that the output counts for"),
    CHOICE(pipeline_cut, "parallelism.pipeline_parallel_cut", "layers", "layers,cost",
           "stages of equally many layers, or whose most expensive one is the cheapest (ours)"),
    STRING(
        stage_names, "parallelism.module_fqns_per_model_part", "",
        "the modules of each stage, in their order: tok_embeddings,layers.0;layers.1,norm,output "
        "(in a file a list of lists); in place of the above"),
    STRING(split_points, "parallelism.pipeline_parallel_split_points", "",
           "the modules with which further stages begin: layers.2,layers.4; likewise"),
    INT(layers_per_stage, "parallelism.pipeline_parallel_layers_per_stage", 0, 0, 1024,
        "layers of a stage; 0: one stage per rank, two with Interleaved1F1B"),
    INT(ep, "parallelism.expert_parallel_degree", 1, 1, RANKS_MAX, "only 1 is available"),
    ALIAS("training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"),
    ALIAS("training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"),
    ALIAS("training.data_parallel_degree", "parallelism.data_parallel_shard_degree"),
    ALIAS("training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"),
    ALIAS("training.sequence_parallel_degree", "parallelism.tensor_parallel_degree"),
    ALIAS("training.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"),
    ALIAS("training.fsdp_reshard_after_forward", "parallelism.fsdp_reshard_after_forward"),
    IGNORED("experimental.torch_spmd", ONE_FORM),
    ALIAS("experimental.tensor_parallel_degree", "parallelism.tensor_parallel_degree"),
    ALIAS("experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"),
    ALIAS("experimental.context_parallel_degree", "parallelism.context_parallel_degree"),
    IGNORED("parallelism.enable_compiled_autograd", NO_COMPILE),
    IGNORED("experimental.enable_compiled_autograd", NO_COMPILE),
    ALIAS("training.disable_loss_parallel", "parallelism.disable_loss_parallel"),
    FIXED("training.enable_loss_parallel", "true",
          "for false set parallelism.disable_loss_parallel = true"),
    FIXED("training.data_parallel_type", "fsdp",
          "for ddp set parallelism.data_parallel_replicate_degree"),
    IGNORED("parallelism.enable_async_tensor_parallel", NO_TENSOR),
    IGNORED("experimental.enable_async_tensor_parallel", NO_TENSOR),
    IGNORED("compile.enable_async_tensor_parallel", NO_TENSOR),
    IGNORED("parallelism.enable_fsdp_symm_mem", ONE_FORM),
    IGNORED("parallelism.spmd_backend", ONE_FORM),
    IGNORED("parallelism.context_parallel_ptrr_mask_key",
            "parallelism.context_parallel_load_balancer has no ptrr here"),
    FIXED("parallelism.enable_sequence_parallel", "true",
          "tensor parallel cuts the rows of norms and loss always"),
    INT(pp_microbatch, "parallelism.pipeline_parallel_microbatch_size", 0, 0, COUNT_MAX,
        "sequences of a micro-batch of a pipeline: training.local_batch_size becomes this, and "
        "micro-batches as many more; 0: local_batch_size"),
    INT(pp_microbatches, "parallelism.pipeline_parallel_microbatches", 0, 0, COUNT_MAX,
        "older: parts of local_batch_size, in place of their size"),
    ALIAS("parallelism.num_pp_microbatches", "parallelism.pipeline_parallel_microbatches"),
    IGNORED("parallelism.pipeline_parallel_expert_parallel_overlap", NO_EXPERTS),
    ALIAS("experimental.pipeline_parallel_split_points",
          "parallelism.pipeline_parallel_split_points"),
    FIXED("experimental.pipeline_parallel_split_mode", "manual", "no graph of the model is traced"),
    ALIAS("experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule"),
    ALIAS("experimental.pipeline_parallel_schedule_csv",
          "parallelism.pipeline_parallel_schedule_csv"),
    ALIAS("experimental.pipeline_parallel_microbatches",
          "parallelism.pipeline_parallel_microbatches"),
    ALIAS("experimental.context_parallel_rotate_method",
          "parallelism.context_parallel_rotate_method"),
    IGNORED("parallelism.expert_tensor_parallel_degree", NO_EXPERTS),
    IGNORED("parallelism.expert_parallel_comm_backend", NO_EXPERTS),

    BOOL(checkpoint_enable, "checkpoint.enable", "false",
         "save to and load from ckptd; without, a warning at the start"),
    ALIAS("checkpoint.enable_checkpoint", "checkpoint.enable"),
    INT(interval, "checkpoint.interval", 500, 1, COUNT_MAX, "steps, or seconds, between two saves"),
    CHOICE(interval_type, "checkpoint.interval_type", "steps", "steps,seconds",
           "what checkpoint.interval counts; seconds are rank 0's"),
    ALIAS("training.checkpoint_interval_type", "checkpoint.interval_type"),
    STRING(save_switch, "checkpoint.save_switch_path", "",
           "when this file is there, rank 0 removes it and all ranks save behind that step (ours)"),
    ALIAS("training.checkpoint_interval", "checkpoint.interval"),
    IGNORED("training.checkpoint_folder", BY_CKPTD),
    CHOICE(async_mode, "checkpoint.async_mode", "async", "disabled,async,async_with_pinned_mem",
           "go on when the save is durable (a disk that hangs then holds training up), when it is "
           "copied, or at once (the copy overlaps the next step)"),
    CHOICE(
        when_busy, "checkpoint.when_busy", "skip", "skip,wait,replace",
        "when ckptd still writes older saves and has no image for one more: leave this save out, "
        "hold training up until it has, or give up the newest that waits behind another; the "
        "earliest goes on to its end (ours)"),
    INT(busy_wait_seconds, "checkpoint.busy_wait_seconds", 600, 1, 86400,
        "the longest that when_busy = wait waits; then the save is left out (ours)"),
    INT(copy_rate, "checkpoint.copy_bytes_per_second", 0, 0, 9.2e18,
        "how fast each rank copies a save beside training, until training waits for it, so that "
        "the link of a GPU is left to others; 0: as fast as it goes (ours)"),
    INT(final_seconds, "checkpoint.final_seconds", 600, 1, 86400,
        "the longest that the end waits for the last checkpoint; then it ends with 75 (ours)"),
    CHOICE(
        durability, "checkpoint.durability", "local", "local,replicated,bucket",
        "how much the last checkpoint must survive before training ends: a loss of power, or that "
        "of the node (on others, nodes.peers, or in ckptd's far tier, tier.store) (ours)"),
    INT(load_step, "checkpoint.load_step", -1, -1, COUNT_MAX,
        "step to resume from; -1: newest. A launcher's later starts go on from what its first ones "
        "saved"),
    INT(skip_samples, "checkpoint.skip_samples", 0, 0, COUNT_MAX,
        "samples to leave out behind what is loaded, such as a bad batch; like load_step of a "
        "launcher's starts until one has saved (ours)"),
    BOOL(load_only, "checkpoint.load_only", "false", "load, never save"),
    BOOL(take_over, "checkpoint.take_over", "false",
         "take the run from whoever trains it now, here or through another ckptd that shares the "
         "far tier, on purpose (ours)"),
    BOOL(new_order, "checkpoint.new_order", "false",
         "let batch size, micro-batches, sequence length or training.numerics change at a resume: "
         "a new order of samples and sums begins, whose bits no other run has (ours)"),
    BOOL(checkpoint_required, "checkpoint.required", "false",
         "end training when a save fails (ours)"),
    BOOL(
        compare_replicas, "checkpoint.compare_replicas", "true",
        "before a save all replicas of the state compare digests of it; where one differs training "
        "ends with 75 (ours)"),
    BOOL(compare_copies, "checkpoint.compare_copies", "true",
         "a GPU digests what is saved beside its copy, and ckptd refuses a save whose bytes came "
         "otherwise; the GPU reads the state once more for it (ours)"),
    BOOL(create_seed_checkpoint, "checkpoint.create_seed_checkpoint", "false",
         "save step 0 and end"),
    BOOL(first_step_checkpoint, "checkpoint.enable_first_step_checkpoint", "false",
         "save after step 1 too"),
    STRING(exclude_from_loading, "checkpoint.exclude_from_loading", "",
           "parts that keep their fresh values: optimizer, lr_scheduler, dataloader"),
    STRING(
        initial_load_path, "checkpoint.initial_load_path", "",
        "what a run without a checkpoint starts from: a folder of Hugging Face, RUN[@STEP] of the "
        "same ckptd, or STORE:RUN[@STEP]; without @STEP the newest checkpoint that is not damaged"),
    BOOL(initial_load_in_hf, "checkpoint.initial_load_in_hf", "false",
         "refuse an initial_load_path that is no folder of Hugging Face"),
    BOOL(initial_load_model_only, "checkpoint.initial_load_model_only", "true",
         "start at step 0 with its weights; false: go on from its whole state"),
    ALIAS("checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"),
    BOOL(partial, "checkpoint.partial", "false",
         "take of initial_load_path what fits a model of another vocabulary, of more or fewer "
         "layers, tied or not; the start lists it. What is no run of the same ckptd becomes one, "
         "named RUN.initial-HASH, which may be removed later. A run's own checkpoints fit whole "
         "(ours)"),
    CHOICE(partial_rows, "checkpoint.partial_rows", "mean", "mean,fresh",
           "rows of embedding and output for tokens that the source does not have: the mean of its "
           "rows, or as a new model's (ours)"),
    STRING(partial_fresh, "checkpoint.partial_fresh", "",
           "parts of names, separated by commas: tensors that begin as a new model's although they "
           "fit, as output for another head (ours)"),
    FIXED("checkpoint.initial_load_in_hf_quantized", "false", "quantized weights are not read"),
    IGNORED("checkpoint.enable_ft_dataloader_checkpoints", NO_FT),
    IGNORED("checkpoint.folder", BY_CKPTD),
    INT(keep_latest_k, "checkpoint.keep_latest_k", 0, 0, COUNT_MAX,
        "a wish to ckptd, which follows it with retention.trainers: keep so many; 0: all"),
    BOOL(last_save_model_only, "checkpoint.last_save_model_only", "false",
         "leave the optimizer out of the last step's checkpoint (torchtitan's default is true)"),
    ALIAS("checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"),
    ALIAS("checkpoint.model_weights_only", "checkpoint.last_save_model_only"),
    BOOL(last_save_in_hf, "checkpoint.last_save_in_hf", "false",
         "after the last step, write the weights as Hugging Face has them"),
    ALIAS("checkpoint.last_save_in_safetensors_format", "checkpoint.last_save_in_hf"),
    STRING(export_folder, "checkpoint.export_folder", "",
           "folder of last_save_in_hf; empty: hf/RUN-step-N below job.dump_folder (ours)"),
    CHOICE(export_dtype, "checkpoint.export_dtype", "float32", "float16,bfloat16,float32",
           "type of those weights"),

    CHOICE(ac_mode, "activation_checkpoint.mode", "none", "none,full,selective,memory_budget",
           "which activations are computed again in the backward; no bit changes (torchtitan's "
           "default is selective)"),
    STRING(selective_ac_option, "activation_checkpoint.selective_ac_option", "2",
           "of selective: every so many layers one, or op: norms and SwiGLU, products are kept"),
    IGNORED("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", OWN_RECOMPUTE),
    IGNORED("activation_checkpoint.early_stop", OWN_RECOMPUTE),
    STRING(memory_budget, "activation_checkpoint.memory_budget", "0.5",
           "of memory_budget: 0 to 1, the part of layers that keep theirs; or the bytes that a "
           "rank may take, as 3 GiB: layers compute again as little as that asks for (the bytes "
           "are ours)"),
    IGNORED("activation_checkpoint.visualize_memory_budget_pareto", NO_SNAPSHOT),
    IGNORED("activation_checkpoint.preserve_rng_state", NO_RECOMPUTE),
    IGNORED("activation_checkpoint.determinism_check", NO_RECOMPUTE),
    IGNORED("activation_checkpoint.debug", OWN_RECOMPUTE),
    FIXED("training.enable_selective_ac", "false", "set activation_checkpoint.mode = selective"),

    CHOICE(
        comm_backend, "comm.backend", "local", "local,mpi,nccl",
        "local: ranks are threads of this process; mpi: processes under mpirun; nccl: either, or "
        "processes of torchrun that meet at MASTER_ADDR, with GPUs that exchange by NCCL (ours)"),
    INT(comm_ranks, "comm.ranks", 1, 1, 1024, "ranks that are threads (ours)"),
    CHOICE_BUT(comm_mode, "comm.mode", "default", "default,fake_backend", "local_tensor,torchcomms",
               "comm.backend = local has comm.ranks ranks in one process, as local_tensor",
               "fake_backend: no ranks are started, as with --estimate"),
    INT(comm_init_timeout, "comm.init_timeout_seconds", 300, 0, COUNT_MAX,
        "a rank that waits longer for others, until the first step of a start is made, ends the "
        "run with 75; 0: waits for ever"),
    INT(comm_timeout, "comm.train_timeout_seconds", 100, 0, COUNT_MAX,
        "the same in later steps; a load or save may take checkpoint.busy_wait_seconds, "
        "checkpoint.final_seconds and 600 s more"),
    INT(trace_records, "comm.trace_buf_size", 1024, 0, COUNT_MAX,
        "calls that the flight recorder of a rank keeps"),
    STRING(
        trace_folder, "comm.save_traces_folder", "",
        "folder of the flight recorders' dumps, and of their rings, which outlive a rank that is "
        "killed (those of a start before are in its folder before); empty: dumps go to the log "
        "alone"),
    STRING(trace_prefix, "comm.save_traces_file_prefix", "rank_", "of the dumps' names"),
    ALIAS("comm.timeout_seconds", "comm.train_timeout_seconds"),

    CHOICE(kernels_backend, "kernels.backend", "best", "best,reference",
           "reference: the plain C twins (ours)"),
    CHOICE(device, "kernels.device", "cpu", "cpu,cuda",
           "cuda: GPUs, where the trainer was built with nvcc (also --device; ours)"),
    BOOL(kernels_graphs, "kernels.graphs", "true",
         "a GPU queues a block's work at once, as a CUDA graph, when it did so before (ours)"),
    BOOL(no_graphs, "training.disable_cuda_graphs", "false",
         "newer: true is kernels.graphs = false"),
    CHOICE(kernels_attention, "kernels.attention", "best", "best,own",
           "own: our flash kernel on a GPU, never cuDNN's, whose backward takes memory that grows "
           "with the square of the sequence (ours)"),
    CHOICE(kernels_isa, "kernels.isa", "auto", "auto,avx512,avx2,sse2",
           "vector instructions; auto: the most that the CPU has (ours)"),
    INT(threads, "kernels.threads", 1, 1, 256, "threads of a rank; never changes a bit (ours)"),

    STRING(ckptd_address, "ckptd.address", "",
           "unix:/path, or host:port of one on another node; empty: "
           "unix:/tmp/holdfast-<uid>/ckptd.sock (ours)"),

    INT(seed, "debug.seed", 0, -1, 9.2e18,
        "of initial weights and sample order; -1: rank 0 draws one, which the run keeps "
        "(torchtitan's default)"),
    INT(crash_at_step, "debug.pause_at_step", -1, -1, COUNT_MAX,
        "for tests: stop in this step until killed; -1: off (ours)"),
    INT(nonfinite_at_step, "debug.nonfinite_at_step", -1, -1, COUNT_MAX,
        "for tests: the gradient of this step is not a number; -1: off (ours)"),
    BOOL(watch_numbers, "debug.watch_numbers", "false",
         "of each module how far weights, inputs, outputs and gradients reach: the first number "
         "that is not finite ends the run with what the last modules had (ours)"),
    INT(watch_modules, "debug.watch_modules", 21, 1, 10000,
        "modules of which debug.watch_numbers prints that (ours)"),
    DOUBLE(watch_bound, "debug.watch_bound", 0, 0, 3.4e38,
           "a number beyond this ends the run, too; 0: what is not finite alone (ours)"),
    STRING(watch_steps, "debug.watch_steps", "",
           "steps that debug.watch_numbers watches, as 10,20-22; empty: all (ours)"),
    STRING(watch_folder, "debug.watch_folder", "",
           "folder to which each rank writes what all modules of a watched step had (ours)"),
    INT(slow_copy_us, "debug.slow_copy_us", 0, 0, 10000000,
        "for tests: microseconds to wait before each tensor of a save is copied (ours)"),
    STRING(timeline_file, "debug.timeline_file", "",
           "draw a step of all ranks: a Chrome trace, or where the name ends in .svg a drawing "
           "(also --timeline; ours)"),
    INT(timeline_step, "debug.timeline_step", 2, 1, COUNT_MAX,
        "which step of this start is drawn, from 1 (ours)"),
    INT(stop_after_step, "debug.stop_after_step", -1, -1, COUNT_MAX,
        "end behind this step, without a save; -1: off (ours)"),
    STRING(logits_file, "debug.logits_file", "",
           "for tests: write the logits of sample 0 as raw floats and end (ours)"),
    ALIAS("debug.detect_anomaly", "debug.watch_numbers"),
    IGNORED("debug.spmd_typechecking", "the program of a step is checked before it runs"),
    IGNORED("debug.enable_structured_logging", "metrics.jsonl_file has a line of JSON per step"),
    FIXED("debug.batch_invariant", "false",
          "bits are the same on any number of ranks with training.reduction = canonical, and for "
          "one training.local_batch_size"),
    IGNORED("debug.deterministic", DETERMINISTIC),
    IGNORED("debug.deterministic_warn_only", DETERMINISTIC),
    IGNORED("debug.moe_force_load_balance", NO_EXPERTS),

    BOOL(print_program, "debug.print_program", "false",
         "print the operations of a step, stage by stage, and end (also --print-program; ours)"),
    BOOL(estimate, "memory_estimation.enable", "false",
         "print memory, work and traffic of a step on this mesh, hints on slow settings, and end "
         "(also --estimate)"),
    BOOL(estimate_json, "memory_estimation.json", "false",
         "print the estimate, the preflight or the links as JSON (also --json; ours)"),
    BOOL(preflight, "debug.preflight", "false",
         "look whether each rank's device copies and multiplies right and whether ranks reach each "
         "other, print a line for each rank, and end: 0, or 78 when one is broken (also "
         "--preflight; ours)"),
    BOOL(
        links, "debug.links", "false",
        "measure the calls of each group of the mesh, from 32 KiB on, print a table, and end (also "
        "--links; ours)"),
    INT(links_max_bytes, "debug.links_max_bytes", 67108864, 32 << 10, INT64_C(1) << 40,
        "the largest payload of --links (ours)"),
    BOOL(suggest, "memory_estimation.suggest", "false",
         "estimate every mesh of so many ranks, print those that fit, fastest first, and end (also "
         "--suggest; ours)"),
    INT(suggestions, "memory_estimation.suggestions", 10, 1, 10000,
        "meshes that are printed (ours)"),
    DOUBLE(rank_gib, "memory_estimation.rank_gib", 72, 0, 1e9,
           "GiB that a rank may take; 72 of an H100's 80 (ours)"),
    DOUBLE(
        rank_tflops, "memory_estimation.rank_tflops", 400, 1e-6, 1e9,
        "TFLOP/s that a rank reaches in products and attention, as a run of its own shows (ours)"),
    INT(machine_ranks, "memory_estimation.machine_ranks", 8, 1, 1024, "ranks of a machine (ours)"),
    DOUBLE(machine_gb, "memory_estimation.machine_gb_per_s", 450, 1e-6, 1e9,
           "GB/s that a rank sends within a machine; 450: NVLink of an H100 (ours)"),
    DOUBLE(network_gb, "memory_estimation.network_gb_per_s", 50, 1e-6, 1e9,
           "GB/s that a rank sends to other machines; 50: a link of 400 Gbit/s (ours)"),
    DOUBLE(call_us, "memory_estimation.call_us", 20, 0, 1e9,
           "microseconds of a call of ranks to each other, beside its bytes (ours)"),
    ALIAS("memory_estimation.enabled", "memory_estimation.enable"),
    IGNORED("memory_estimation.disable_fake_mode", "the plan needs no fake tensors"),

    BOOL(profiling, "profiling.enable_profiling", "false",
         "write a Chrome trace of every profile_freq-th step, a file of each rank"),
    ALIAS("profiling.run_profiler", "profiling.enable_profiling"),
    STRING(profile_folder, "profiling.save_traces_folder", "profile_traces",
           "folder of the traces, below job.dump_folder: iteration_N/rankR_trace.json"),
    INT(profile_freq, "profiling.profile_freq", 10, 1, COUNT_MAX, "steps from trace to trace"),
    ALIAS("profiling.profile_every_x_iter", "profiling.profile_freq"),
    STRING(profile_steps, "profiling.profile_steps", "",
           "the steps that have a trace, as 10,20-22; empty: by profile_freq (ours)"),
    IGNORED("profiling.profiler_active", ONE_STEP_TRACES),
    IGNORED("profiling.profiler_warmup", ONE_STEP_TRACES),
    IGNORED("profiling.profiler_repeat", ONE_STEP_TRACES),
    IGNORED("profiling.profiler_skip_first", ONE_STEP_TRACES),
    IGNORED("profiling.profiler_skip_first_wait", ONE_STEP_TRACES),
    IGNORED("profiling.enable_memory_snapshot", NO_SNAPSHOT),
    IGNORED("profiling.save_memory_snapshot_folder", NO_SNAPSHOT),
    IGNORED("profiling.memory_snapshot_freq", NO_SNAPSHOT),
    IGNORED("profiling.memory_snapshot_max_entries", NO_SNAPSHOT),
    ALIAS("profiler.enable_profiling", "profiling.enable_profiling"),
    ALIAS("profiler.save_traces_folder", "profiling.save_traces_folder"),
    ALIAS("profiler.profile_freq", "profiling.profile_freq"),
    IGNORED("profiler.profiler_active", ONE_STEP_TRACES),
    IGNORED("profiler.profiler_warmup", ONE_STEP_TRACES),
    IGNORED("profiler.profiler_repeat", ONE_STEP_TRACES),
    IGNORED("profiler.profiler_skip_first", ONE_STEP_TRACES),
    IGNORED("profiler.profiler_skip_first_wait", ONE_STEP_TRACES),
    IGNORED("profiler.enable_memory_snapshot", NO_SNAPSHOT),
    IGNORED("profiler.save_memory_snapshot_folder", NO_SNAPSHOT),
    IGNORED("profiler.memory_snapshot_freq", NO_SNAPSHOT),
    IGNORED("profiler.memory_snapshot_max_entries", NO_SNAPSHOT),

    IGNORED("compile.enable", NO_COMPILE),
    IGNORED("compile.components", NO_COMPILE),
    IGNORED("compile.backend", NO_COMPILE),

    BOOL(float8_gather, "quantize.linear.float8.enable_fsdp_float8_all_gather", "false",
         "gather shards of the weights of float8 products as codes of one byte, to the same bits"),
    IGNORED("quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", FLOAT8_SCALES),
    STRING(float8_recipe, "quantize.linear.float8.recipe_name", "",
           "tensorwise (the default): one scale, a power of two, for what a product reads"),
    STRING(float8_filter, "quantize.linear.float8.filter_fqns", "",
           "parts of names of products that stay in the compute type; the output always does"),
    CHOICE(float8_gradients, "quantize.linear.float8.grad_output_dtype", "float8_e5m2",
           "float8_e5m2,float8_e4m3fn",
           "of the gradients that float8 products read: the target_dtype of torchao's "
           "cast_config_grad_output; float8_e4m3fn has a bit more and a smaller range (ours)"),
    IGNORED("quantize.linear.float8.emulate", WIDER_FLOAT8),
    IGNORED("quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", NO_MX),
    IGNORED("quantize.linear.mx.recipe_name", NO_MX),
    IGNORED("quantize.linear.mx.filter_fqns", NO_MX),
    IGNORED("quantize.grouped_mm.float8.fqns", NO_EXPERTS),
    IGNORED("quantize.grouped_mm.mx.recipe_name", NO_EXPERTS),
    IGNORED("quantize.grouped_mm.mx.fqns", NO_EXPERTS),
    BOOL(float8_linear, "float8.enable_float8_linear", "false",
         "older: true is model.converters = \"quantize.linear.float8\""),
    ALIAS("training.enable_float8_linear", "float8.enable_float8_linear"),
    ALIAS("training.enable_fp8_linear", "float8.enable_float8_linear"),
    ALIAS("training.fp8_linear", "float8.enable_float8_linear"),
    ALIAS("quantize.dense.float8.enable_fsdp_float8_all_gather",
          "quantize.linear.float8.enable_fsdp_float8_all_gather"),
    IGNORED("quantize.dense.float8.precompute_float8_dynamic_scale_for_fsdp", FLOAT8_SCALES),
    ALIAS("quantize.dense.float8.filter_fqns", "quantize.linear.float8.filter_fqns"),
    ALIAS("quantize.dense.float8.recipe_name", "quantize.linear.float8.recipe_name"),
    IGNORED("quantize.dense.float8.emulate", WIDER_FLOAT8),
    IGNORED("quantize.dense.mx.mxfp8_dim1_cast_kernel_choice", NO_MX),
    IGNORED("quantize.dense.mx.recipe_name", NO_MX),
    IGNORED("quantize.dense.mx.filter_fqns", NO_MX),
    IGNORED("quantize.moe.float8.fqns", NO_EXPERTS),
    IGNORED("quantize.moe.mx.fqns", NO_EXPERTS),
    ALIAS("float8.enable_fsdp_float8_all_gather",
          "quantize.linear.float8.enable_fsdp_float8_all_gather"),
    IGNORED("float8.precompute_float8_dynamic_scale_for_fsdp", FLOAT8_SCALES),
    IGNORED("float8.force_recompute_fp8_weight_in_bwd", FLOAT8_COPIES),
    ALIAS("float8.recipe_name", "quantize.linear.float8.recipe_name"),
    ALIAS("float8.filter_fqns", "quantize.linear.float8.filter_fqns"),
    IGNORED("float8.emulate", WIDER_FLOAT8),
    IGNORED("float8.moe_fqns_prototype", NO_EXPERTS),
    IGNORED("float8.moe_fqns", NO_EXPERTS),
    FIXED("float8.scaling_type_input", "dynamic", DYNAMIC_SCALES),
    FIXED("float8.scaling_type_weight", "dynamic", DYNAMIC_SCALES),
    FIXED("float8.scaling_type_grad_output", "dynamic", DYNAMIC_SCALES),
    FIXED("training.float8_scaling_type_input", "dynamic", DYNAMIC_SCALES),
    FIXED("training.float8_scaling_type_weight", "dynamic", DYNAMIC_SCALES),
    FIXED("training.float8_scaling_type_grad_output", "dynamic", DYNAMIC_SCALES),
    ALIAS("training.enable_fsdp_float8_all_gather",
          "quantize.linear.float8.enable_fsdp_float8_all_gather"),
    IGNORED("training.precompute_float8_dynamic_scale_for_fsdp", FLOAT8_SCALES),
    IGNORED("mx.use_fp8_dim1_cast_triton_kernel", NO_MX),
    IGNORED("mx.mxfp8_dim1_cast_kernel_choice", NO_MX),
    IGNORED("mx.recipe_name", NO_MX),
    IGNORED("mx.filter_fqns", NO_MX),
    IGNORED("mx.moe_fqns_prototype", NO_MX),

    FIXED("fault_tolerance.enable", "false", NO_FT),
    IGNORED("fault_tolerance.process_group", NO_FT),
    IGNORED("fault_tolerance.process_group_timeout_ms", NO_FT),
    IGNORED("fault_tolerance.replica_id", NO_FT),
    IGNORED("fault_tolerance.group_size", NO_FT),
    IGNORED("fault_tolerance.min_replica_size", NO_FT),
    FIXED("fault_tolerance.semi_sync_method", "", NO_FT),
    IGNORED("fault_tolerance.num_fragments", NO_FT),
    IGNORED("fault_tolerance.module_fqns_per_model_fragment", NO_FT),
    IGNORED("fault_tolerance.sync_steps", NO_FT),
    IGNORED("fault_tolerance.should_quantize", NO_FT),
    IGNORED("fault_tolerance.fragment_sync_delay", NO_FT),
    IGNORED("fault_tolerance.fragment_update_alpha", NO_FT),

    FIXED("experimental.custom_import", "", NO_PYTHON),
    FIXED("experimental.custom_args_module", "", NO_PYTHON),
    FIXED("experimental.custom_model_path", "", NO_PYTHON),

    BOOL(validation_enable, "validation.enable", "false",
         "compute the loss of a set that is not trained on"),
    ALIAS("validation.enabled", "validation.enable"),
    STRING(validation_dataset, "validation.dataset", "",
           "as training.dataset, such as c4_validation, when validation.dataset_path is empty"),
    STRING(validation_path, "validation.dataset_path", "",
           "its tokens file, or a folder, as training.dataset_path"),
    INT(validation_batch, "validation.local_batch_size", 8, 1, COUNT_MAX,
        "sequences that a micro-batch of a validation step counts"),
    INT(validation_seq_len, "validation.seq_len", -1, -1, 1 << 24,
        "tokens of a sequence, at most training.seq_len; -1: as many"),
    INT(validation_freq, "validation.freq", 10, 1, COUNT_MAX,
        "steps between two; one follows the first step"),
    INT(validation_steps, "validation.steps", -1, -1, COUNT_MAX,
        "how many times canonical.micro_batches micro-batches are read; -1: the whole set"),
    IGNORED("validation.dataloader.num_workers", NO_LOADER),
    IGNORED("validation.dataloader.persistent_workers", NO_LOADER),
    IGNORED("validation.dataloader.pin_memory", NO_LOADER),
    IGNORED("validation.dataloader.prefetch_factor", NO_LOADER),
    OPTION_END,
};
