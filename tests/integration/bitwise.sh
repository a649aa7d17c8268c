#!/usr/bin/env bash
# Goal: a run that is stopped and resumed has the same losses, gradient norms, weights and moments,
# bit for bit, whatever meshes it visits: dp_replicate x dp_shard, with the optimizer cut over the
# replicas (z), in a pipeline (p), context (c) or tensor parallel (t), which does not divide the
# vocabulary, with one thread per rank or two, with ranks as threads or as processes; so has a run
# that gets signals all the time. Method: the tiny model is trained on one rank and one thread; one
# run visits all meshes in a ring, a step on each. It must write the same loss file (hexadecimal
# floats, compared with cmp) and a final checkpoint in which ckpt-cli finds no differing tensor. A
# step has 7 micro-batches: most meshes have ranks without one at its end, 1x8 one in every step.
# unit/trainer_meshes.c tests each mesh alone; resumes.py resumes on random ones. make test visits
# one mesh in two (SAMPLE=1 all).
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

steps=17
meshes=(1x1 1x2 2x1 1x3 1x4 2x2 1x8)
pipes=(1x1p2 1x2p2 2x1p4 1x1t2 1x1c2 1x3c2 1x2c2t2 1x1p2c2t2 3x1z 2x2p2z)
backends=(local mpi)
command -v mpirun >/dev/null || skip_all "mpirun is missing: make deps installs it"
ring=("${meshes[@]}" "${pipes[@]}")
sample ring 2
plan $((${#ring[@]} + 5))
make_tiny
start_ckptd --memory.pool_bytes 512MiB --memory.segment_bytes 8MiB

# Trains run RUN up to STEP; the loss file is RUN's own and grows from stretch to stretch.
train() { # RUN MESH THREADS BACKEND STEP [SETTING...]
    local grid=$2 zero=0 stages=1 context=1 tensor=1 launch=()
    [[ $grid != *z ]] || { zero=1 && grid=${grid%z}; }
    [[ $grid != *t* ]] || { tensor=${grid#*t} && grid=${grid%t*}; }
    [[ $grid != *c* ]] || { context=${grid#*c} && grid=${grid%c*}; }
    [[ $grid != *p* ]] || { stages=${grid#*p} && grid=${grid%p*}; }
    local replicas=${grid%x*} shards=${grid#*x}
    local ranks=$((replicas * shards * stages * context * tensor))
    [ "$4" = local ] || launch=("${mpi[@]}" -n $ranks)
    "${launch[@]}" "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" \
        --ckptd.address "$server" --metrics.loss_file "$tmp/$1.loss" --comm.backend "$4" \
        --comm.ranks $ranks --parallelism.pipeline_parallel_degree $stages \
        --parallelism.zero_stage $zero \
        --parallelism.tensor_parallel_degree $tensor --canonical.tp_blocks 2 \
        --parallelism.context_parallel_degree $context --canonical.cp_blocks 2 \
        --kernels.threads "$3" --training.steps "$5" --model.vocab_size 601 \
        --parallelism.data_parallel_replicate_degree "$replicas" \
        --parallelism.data_parallel_shard_degree "$shards" \
        --lr_scheduler.total_steps $steps --checkpoint.interval 5 \
        --canonical.micro_batches 7 "${@:6}"
}
same() { # RUN STEP: losses, norms and the final checkpoint equal the reference's up to there
    head -n "$2" "$tmp/reference.loss" | cmp - "$tmp/$1.loss" &&
        "$BUILD/ckpt-cli" diff "reference@$2" "$1@$2" --store "$store"
}

check "the reference trains on 1x1 with one thread" train reference 1x1 1 local $steps
signalled() { # a handler must never run on a thread that computes (trainer/run/signals.h)
    LD_PRELOAD=$BUILD/shims/alarms.so ALARMS_FILE=$tmp/alarms \
        train signalled 1x2 2 local $steps && [ "$(cat "$tmp/alarms")" -gt 20 ] &&
        same signalled $steps
}
check "signals that come while it computes change no bit" signalled
check_equal "its loss file has a line per step" "$(wc -l <"$tmp/reference.loss")" $steps
differs() { # the comparison can fail
    train other 1x1 1 local $steps --debug.seed 1 &&
        ! cmp "$tmp/reference.loss" "$tmp/other.loss" &&
        ! "$BUILD/ckpt-cli" diff "reference@$steps" "other@$steps" --store "$store"
}
check "a run from another seed differs in losses and checkpoint" differs

# The ring: the run's own checkpoint is loaded by the next mesh.
stretch=0
for mesh in "${ring[@]}"; do
    stretch=$((stretch + 1))
    upto=$((stretch * steps / ${#ring[@]}))
    check "ring: $mesh trains on to step $upto" \
        train ring "$mesh" $((stretch % 2 + 1)) "${backends[stretch % 2]}" "$upto"
done
check "ring: after all meshes every bit is the same" same ring $steps
