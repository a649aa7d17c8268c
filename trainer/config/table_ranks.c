/* table_ranks.c - keys of parallelism, saves and communication (see table.h). */
#include "trainer/config/table_private.h"

const struct option table_of_ranks[] = {
    INT(dp_replicate, "parallelism.data_parallel_replicate_degree", 1, 1, RANKS_MAX,
        "copies of the sharded model"),
    INT(dp_shard, "parallelism.data_parallel_shard_degree", -1, -1, RANKS_MAX,
        "ranks that share one copy (FSDP); -1: all that are left"),
    INT(shard_parts, "parallelism.data_parallel_shard_parts", 0, 0, RANKS_MAX,
        "with canonical.groups above 1: parts of data_parallel_shard_degree, each of which sums "
        "groups of its own before they go to the others; 0: one for each machine, where "
        "canonical.groups is a multiple of them (ours)"),
    CHOICE(text.reshard_after_forward, "parallelism.fsdp_reshard_after_forward", "default",
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
    CHOICE(text.cp_rotate_method, "parallelism.context_parallel_rotate_method", "allgather",
           "allgather,alltoall,ulysses",
           "how keys and values come to all queries: at once, from rank to rank in a ring, or with "
           "them, where each rank takes all rows of its share of the blocks of heads"),
    CHOICE(text.cp_load_balancer, "parallelism.context_parallel_load_balancer", "headtail",
           "headtail,none",
           "which chunks of a sequence are a block of canonical.cp_blocks: head with tail, so that "
           "all cost the same, or neighbours; belongs to the order of sums"),
    CHOICE_BUT(text.pipeline_schedule, "parallelism.pipeline_parallel_schedule", "1F1B",
               "GPipe,LoopedBFS,1F1B,Interleaved1F1B,ZBH1,InterleavedZeroBubble",
               "ZBVZeroBubble,DualPipeV",
               "its first and last stage are one rank's, and here stages go round the ranks in "
               "their order: take InterleavedZeroBubble, or ZBH1, which holds less; a schedule of "
               "your own goes by parallelism.pipeline_parallel_schedule_csv",
               "which stage computes what when"),
    STRING(pipeline_csv, "parallelism.pipeline_parallel_schedule_csv", "",
           "a schedule of your own: a line per rank, actions as 0F0,0B0; in place of the above"),
    INT(first_stage_less, "parallelism.pipeline_parallel_first_stage_less_layers", 1, 0, 1024,
        "layers that the embedding counts for when stages are cut"),
    INT(last_stage_less, "parallelism.pipeline_parallel_last_stage_less_layers", 1, 0, 1024,
        "layers that the output counts for"),
    CHOICE(text.pipeline_cut, "parallelism.pipeline_parallel_cut", "layers", "layers,cost",
           "stages of equally many layers, or whose most expensive one is the cheapest (ours)"),
    STRING(
        stage_names, "parallelism.module_fqns_per_model_part", "",
        "the modules of each stage, in their order: tok_embeddings,layers.0;layers.1,norm,output "
        "(in a file a list of lists); in place of the above"),
    STRING(split_points, "parallelism.pipeline_parallel_split_points", "",
           "the modules with which further stages begin: layers.2,layers.4; likewise"),
    INT(layers_per_stage, "parallelism.pipeline_parallel_layers_per_stage", 0, 0, 1024,
        "layers of a stage; 0: one stage per rank, two with LoopedBFS and the interleaved ones"),
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
    INT_OR(interval, "checkpoint.interval", 500, "auto", 1, COUNT_MAX,
           "steps, or seconds, between two saves; auto (ours): the steps that lose least time, by "
           "what steps and saves take and checkpoint.mtbf, as `ckpt-cli advise` has it"),
    STRING(text.mtbf, "checkpoint.mtbf", "24h",
           "mean time between failures of the job, as 8h or 30d, for interval = auto (ours)"),
    CHOICE(text.interval_type, "checkpoint.interval_type", "steps", "steps,seconds",
           "what checkpoint.interval counts; seconds are rank 0's"),
    ALIAS("training.checkpoint_interval_type", "checkpoint.interval_type"),
    STRING(save_switch, "checkpoint.save_switch_path", "",
           "when this file is there, rank 0 removes it and all ranks save behind that step (ours)"),
    ALIAS("training.checkpoint_interval", "checkpoint.interval"),
    IGNORED("training.checkpoint_folder", BY_CKPTD),
    CHOICE(text.async_mode, "checkpoint.async_mode", "async",
           "disabled,async,async_with_pinned_mem",
           "go on when the save is durable (a disk that hangs then holds training up), when it is "
           "copied, or at once (the copy overlaps the next step)"),
    CHOICE(
        text.when_busy, "checkpoint.when_busy", "skip", "skip,wait,replace",
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
        text.durability, "checkpoint.durability", "local", "local,replicated,bucket",
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
    CHOICE(text.partial_rows, "checkpoint.partial_rows", "mean", "mean,fresh",
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
    CHOICE(text.export_dtype, "checkpoint.export_dtype", "float32", "float16,bfloat16,float32",
           "type of those weights"),

    CHOICE(text.ac_mode, "activation_checkpoint.mode", "none", "none,full,selective,memory_budget",
           "which activations are computed again in the backward; no bit changes (torchtitan's "
           "default is selective)"),
    STRING(text.selective_ac_option, "activation_checkpoint.selective_ac_option", "2",
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
        text.comm_backend, "comm.backend", "local", "local,mpi,nccl",
        "local: ranks are threads of this process; mpi: processes under mpirun; nccl: either, or "
        "processes of torchrun that meet at MASTER_ADDR, with GPUs that exchange by NCCL (ours)"),
    INT(comm_ranks, "comm.ranks", 1, 1, 1024, "ranks that are threads (ours)"),
    CHOICE_BUT(text.comm_mode, "comm.mode", "default", "default,fake_backend",
               "local_tensor,torchcomms",
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

    CHOICE(text.kernels_backend, "kernels.backend", "best", "best,reference",
           "reference: the plain C twins (ours)"),
    CHOICE(text.device, "kernels.device", "cpu", "cpu,cuda",
           "cuda: GPUs, where the trainer was built with nvcc (also --device; ours)"),
    BOOL(kernels_graphs, "kernels.graphs", "true",
         "a GPU queues a block's work at once, as a CUDA graph, when it did so before (ours)"),
    BOOL(no_graphs, "training.disable_cuda_graphs", "false",
         "newer: true is kernels.graphs = false"),
    CHOICE(text.kernels_attention, "kernels.attention", "best", "best,own",
           "own: our flash kernel on a GPU, never cuDNN's, whose backward takes memory that grows "
           "with the square of the sequence (ours)"),
    CHOICE(text.kernels_isa, "kernels.isa", "auto", "auto,avx512,avx2,sse2",
           "vector instructions; auto: the most that the CPU has (ours)"),
    INT(threads, "kernels.threads", 1, 1, 256, "threads of a rank; never changes a bit (ours)"),

    STRING(ckptd_address, "ckptd.address", "",
           "unix:/path, or host:port of one on another node; empty: "
           "unix:/tmp/holdfast-<uid>/ckptd.sock (ours)"),

    IGNORED("compile.enable", NO_COMPILE),
    IGNORED("compile.components", NO_COMPILE),
    IGNORED("compile.backend", NO_COMPILE),

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
    OPTION_END,
};
