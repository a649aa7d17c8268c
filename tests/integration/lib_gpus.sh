# lib_gpus.sh - the whole trainer on simulated GPUs compared with the CPU, for gpus.sh and
# check_gpus.sh. After lib.sh and lib_tiny.sh.
#
#   train RUN SIMGPU RANKS [SETTING...]      SIMGPU: settings of tests/simgpu/simgpu.h; - is the CPU
#   train_same RUN SIMGPU RANKS [SETTING...] and it has the losses and the checkpoint of the run cpu

steps=6
[ -x "$BUILD/tests/trainer_on_simgpu" ] ||
    skip_all "NVIDIA's headers are not here: make deps-cuda gets them"
make_tiny
start_ckptd

late=seed=0 early=seed=1 random=seed=2
pp=(--parallelism.pipeline_parallel_degree 2)
tp=(--parallelism.tensor_parallel_degree 2)
cp=(--parallelism.context_parallel_degree 2)
in_a_ring=(--parallelism.context_parallel_rotate_method alltoall)

command_of() { # RUN SIMGPU RANKS [SETTING...]: in $command; SIMGPU - is the CPU
    local program=$BUILD/tests/trainer_on_simgpu device=cuda
    [ "$2" != - ] || program=$BUILD/trainer device=cpu
    command=(env SIMGPU="devices=$3,$2" "$program" --job.config_file "$tiny" --job.run "$1"
        --ckptd.address "$server" --metrics.loss_file "$tmp/$1.loss" --comm.ranks "$3"
        --kernels.device $device --kernels.isa avx2 --training.steps $steps --training.seq_len 16
        --canonical.micro_batches 2 --canonical.tp_blocks 2 --checkpoint.interval 2
        --lr_scheduler.total_steps $steps "${@:4}")
}
train() {
    command_of "$@"
    "${command[@]}" >>"$tmp/$1.log" 2>&1
}
same() { # RUN: losses (steps made twice are equal both times) and the final checkpoint
    sort -u "$tmp/$1.loss" | sort -n >"$tmp/$1.sorted"
    sort -n "$tmp/cpu.loss" | cmp - "$tmp/$1.sorted" &&
        "$BUILD/ckpt-cli" diff "cpu@$steps" "$1@$steps" --store "$store"
}
train_same() { train "$@" && same "$1"; }
same_as() { # RUN RUN: neither was resumed
    cmp "$tmp/$1.loss" "$tmp/$2.loss" &&
        "$BUILD/ckpt-cli" diff "$1@$steps" "$2@$steps" --store "$store"
}
# Losses: each step's, as hexadecimal floats, within a part in 500.
near() { # RUN RUN [BOUND]
    python3 - "$tmp/$1.loss" "$tmp/$2.loss" "${3:-0.002}" <<'END'
import sys
a, b = ([float.fromhex(line.split()[1]) for line in open(name)] for name in sys.argv[1:3])
sys.exit(len(a) != len(b) or max(abs(x / y - 1) for x, y in zip(a, b)) > float(sys.argv[3]))
END
}
# Also those that were copied while the next step was made; straight from the GPUs, nothing staged.
same_saves_of() { # RUN STEP...
    local step
    for step in "${@:2}"; do
        "$BUILD/ckpt-cli" diff "cpu@$step" "$1@$step" --store "$store" || return
    done
}
same_saves() { same_saves_of "$1" 2 4 && ! says "$1" "page-locked"; } # RUN

# Paused within step 4, killed: the save of step 2 is there.
killed() { # RUN SIMGPU RANKS [SETTING...]
    command_of "$@" --debug.pause_at_step 4
    "${command[@]}" >>"$tmp/$1.log" 2>&1 &
    pid=$!
    started_pids+=("$pid")
    wait_for "${patience:-60}" says "$1" "pauses within step 4" || return
    kill_ours KILL "$pid"
    ended
    [ "$status" = 137 ]
}
moved() { # RUN, FROM (SIMGPU RANKS SETTING...) -- TO (likewise)
    local run=$1 from=()
    shift
    while [ "$1" != -- ]; do
        from+=("$1")
        shift
    done
    killed "$run" "${from[@]}" && train_same "$run" "${@:2}" && says "$run" "loaded step 2 "
}

