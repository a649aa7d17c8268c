/* table_debug.c - keys that examine a run: debugging, estimates, traces (see table.h). */
#include "trainer/config/table_private.h"

const struct option table_of_debug[] = {
    INT(seed, "debug.seed", 0, -1, 9.2e18,
        "of initial weights and sample order; -1: rank 0 draws one, which the run keeps "
        "(torchtitan's default)"),
    INT(pause_at_step, "debug.pause_at_step", -1, -1, COUNT_MAX,
        "for tests: stop in this step until killed; -1: off (ours)"),
    INT(nonfinite_at_step, "debug.nonfinite_at_step", -1, -1, COUNT_MAX,
        "for tests: the gradient of this step is not a number; -1: off (ours)"),
    INT(nonfinite_at_sample, "debug.nonfinite_at_sample", -1, -1, COUNT_MAX,
        "for tests: the gradient of the step with this sample is not a number; -1: off (ours)"),
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
    INT(replay_step, "debug.replay_step", -1, -1, COUNT_MAX,
        "make this step again from the newest checkpoint before it, compare losses with the run's, "
        "and end: 0, 1 when one differs, 3 when there is none to compare; -1: off (also --replay; "
        "ours)"),
    BOOL(replay_blame, "debug.replay_blame", "false",
         "of debug.replay_step name the module whose numbers are not finite or farthest out of "
         "line, the micro-batches with the largest loss and gradient, and their samples (also "
         "--blame; ours)"),
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
    STRING(preflight_folder, "debug.preflight_folder", "",
           "folder of every host in which --preflight writes and reads 256 MiB as ckptd would, by "
           "`ckpt-cli bench io`, and by fio where it is installed; empty: none (ours)"),
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
    STRING(
        rates_file, "memory_estimation.rates", "",
        "file of `--links --json`: machine_gb_per_s or network_gb_per_s, and call_us, where they "
        "are not given, are those that were measured (also --rates; ours)"),
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

    FIXED("experimental.custom_import", "", NO_PYTHON),
    FIXED("experimental.custom_args_module", "", NO_PYTHON),
    FIXED("experimental.custom_model_path", "", NO_PYTHON),
    OPTION_END,
};
