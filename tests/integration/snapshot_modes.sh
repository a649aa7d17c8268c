#!/usr/bin/env bash
# Goal: with checkpoint.async_mode async_with_pinned_mem, where the copy of a save overlaps the next
# step, no torn byte is saved: every checkpoint equals that of a run with "disabled", which waits
# until a save is durable; also when ranks or ckptd are killed in mid-copy. Method: the undisturbed
# "disabled" run gives loss file and checkpoints. The others are slowed by debug.slow_copy_us until
# a copy takes much longer than a step, so that an update without a wait overwrites elements that
# are not copied yet. debug.pause_at_step pauses a run in the step that a copy overlaps. make test
# takes one in three of the undisturbed ones (SEED= repeats the choice; SAMPLE=1 takes all).
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

steps=20
command -v mpirun >/dev/null || skip_all "mpirun is missing: make deps installs it"
RANDOM=${SEED:=$RANDOM}
note "SEED=$SEED"
ways=("local 1" "local 2" "local 3" "mpi 1" "mpi 2" "mpi 3")
sample ways 3
plan $((37 + 3 * ${#ways[@]}))
make_tiny
start_ckptd
slow=(--checkpoint.async_mode async_with_pinned_mem --debug.slow_copy_us 2000
    --checkpoint.when_busy wait) # none is left out
slower=(--checkpoint.async_mode async_with_pinned_mem --debug.slow_copy_us 25000)

train() { # RUN BACKEND RANKS [SETTING...]: output in $tmp/RUN.log
    local run=$1 backend=$2 ranks=$3 launch=()
    shift 3
    [ "$backend" = local ] || launch=("${mpi[@]}" -n "$ranks")
    "${launch[@]}" "$BUILD/trainer" --job.config_file "$tiny" --job.run "$run" \
        --ckptd.address "$server" --metrics.loss_file "$tmp/$run.loss" \
        --comm.backend "$backend" --comm.ranks "$ranks" "$@" >>"$tmp/$run.log" 2>&1
}
# A step of 6 ranks is one micro-step: when asked to stop it is finished.
in_mid_copy() { # RUN [SETTING...]: of step 10, which step 11 overlaps
    held "$1" 11 --comm.ranks 6 "${slower[@]}" "${@:2}"
}
same_step() { "$BUILD/ckpt-cli" diff "$1@$3" "$2@$3" --store "$store"; } # RUN RUN STEP
same_steps() { # RUN RUN: the checkpoints before the last one
    local step
    for step in 5 10 15; do same_step "$1" "$2" "$step" || return; done
}
same_end() { # RUN RUN: losses (steps made twice must be equal both times) and final checkpoint
    sort -u "$tmp/$2.loss" | sort -n >"$tmp/$2.sorted"
    sort -n "$tmp/$1.loss" | cmp - "$tmp/$2.sorted" && same_step "$1" "$2" $steps
}

lines() { grep -cE "^[^ ]+ [^ ]+:$2 $3 train: " "$tmp/$1.log"; } # RUN RANK LEVEL
check_equal "processes of which rank 1 alone is to log end as they would" \
    "$(train hushed mpi 2 --log-ranks 1 --training.exit_free_memory_gib 1e6 >/dev/null; echo $?)" 75
check_equal "rank 0 has warnings alone, and rank 1 its own" \
    "$(lines hushed 0 info) $(lines hushed 0 warn) $(lines hushed 1 warn)" "0 1 1"
check "a run that waits for every save ends with 0" \
    train right local 2 --checkpoint.async_mode disabled
for way in "${ways[@]}"; do
    read -r backend ranks <<<"$way"
    run=$backend$ranks
    check "$run: with overlapped copies it ends with 0" \
        train "$run" "$backend" "$ranks" "${slow[@]}"
    check "$run: losses and last checkpoint have the same bits" same_end right "$run"
    check "$run: so have those that were copied during a step" same_steps right "$run"
done
bf16=(--training.mixed_precision_param bfloat16 --parallelism.data_parallel_replicate_degree 2)
train bf16 local 2 "${bf16[@]}" --checkpoint.async_mode disabled
check "replicas in bfloat16: it ends with 0" train bf16slow local 2 "${bf16[@]}" "${slow[@]}"
check "replicas in bfloat16: the same bits at the end" same_end bf16 bf16slow
check "replicas in bfloat16: and on the way" same_steps bf16 bf16slow

# ---- killed and stopped while a copy is in progress ----
in_mid_copy killed
end_by KILL
half() { says killed "step 5 is accepted" && ! says killed "step 10 is accepted"; }
check "killed: the copy of step 10 was in progress" half
check "killed: started again on 3 ranks it ends with 0" \
    train killed local 3 "${slow[@]}"
check "killed: half a copy was no checkpoint" says killed "loaded step 5 "
check "killed: every bit is the undisturbed run's" same_end right killed

# The copy takes more than 1.5 s and a step some milliseconds, unless it is held up.
accepted() { # RUN STEP: milliseconds of the copy, and those that training waited
    local numbers="copied in ([0-9.]+) ms, training waited ([0-9.]+) ms"
    sed -nE "s/.*step $2 is accepted.*$numbers/\\1 \\2/p" "$tmp/$1.log" | head -n 1
}
holds() { awk -v numbers="$1" "BEGIN { split(numbers, ms, \" \"); exit !(ms[1] > 1500 && $2) }"; }
check "killed: the update had waited for the copy of step 5" \
    holds "$(accepted killed 5)" "ms[2] > ms[1] / 2"

in_mid_copy stopped
ends_by TERM 75 "SIGTERM: it ends with 75"
check "SIGTERM: the step in progress was finished and saved" says stopped "stopped after step 11"
check "SIGTERM: the copy in progress was completed" same_step right stopped 10
train stopped local 1 "${slow[@]}"
check "SIGTERM: started again, every bit is the undisturbed run's" same_end right stopped

in_mid_copy dropped --comm.ranks 2
ends_by TERM 75 "SIGTERM before the last micro-step: it ends with 75"
check "SIGTERM before it: the step is dropped" says dropped "stopped after step 10"
check "SIGTERM before it: the copy in progress was completed" same_step right dropped 10
train dropped local 1 "${slow[@]}"
check "SIGTERM before it: started again, every bit is the undisturbed run's" same_end right dropped

# ---- ckptd is killed while a copy is in progress ----
in_mid_copy alone
stop_ckptd KILL
kill_ours USR1 "$pid"
wait_for 30 says alone "step 11 was not saved|waiting for step 5 to become durable" ||
    give_up "it does not miss ckptd" "$tmp/alone.log"
start_ckptd
ended
check_equal "without ckptd: when it comes back in time the last save succeeds: 75" "$status" 75
check_equal "without ckptd: the failed save is said once" \
    "$(grep -c 'warn.*step 10 was not saved' "$tmp/alone.log")" 1
train alone local 3 "${slow[@]}"
check "without ckptd: started again, every bit is the undisturbed run's" same_end right alone
in_mid_copy required --comm.ranks 2 --checkpoint.required --checkpoint.final_seconds 2
stop_ckptd KILL
ends_by USR1 75 "with checkpoint.required a failed copy ends training with 75"
check_equal "required: one line says why" "$(grep -c ' error ' "$tmp/required.log")" 1
check "required: the last save was tried as long as it may be" \
    says required "last checkpoint, of step [0-9]+, could not be saved within checkpoint.final_sec"

# ---- ckptd is busy: a store whose every operation takes a while ----
busy() { # RUN MICROSECONDS STEPS [SETTING...]: saves after every step
    local run=$1 us=$2 steps=$3
    shift 3
    stop_ckptd
    start_ckptd --store "fault:delay_us=$us:local:$tmp/$run.store"
    train "$run" mpi 2 --checkpoint.async_mode async_with_pinned_mem --checkpoint.interval 1 \
        --training.steps "$steps" "$@"
}
saved() { # RUN: the steps in its store
    "$BUILD/ckpt-cli" list --store "$tmp/$1.store" | sed -nE "s/^$1@([0-9]+).*/\1/p" |
        sort -n | paste -sd' '
}
check "busy, wait: it ends with 0" busy waits 400000 6 --checkpoint.when_busy wait
check "busy, wait: training waited for older saves" \
    says waits "step [0-9]+ waited [0-9.]+ s for older"
check_equal "busy, wait: every step is saved" "$(saved waits)" "1 2 3 4 5 6"
# Three of these steps fit into a save, also on a machine that is busy itself.
check "busy, skip: it ends with 0" busy skips 1000000 12
check "busy, skip: a save was left out" says skips "step [0-9]+ was not saved.*images of rank"
check "busy, replace: it ends with 0" busy replaces 1000000 12 --checkpoint.when_busy replace
check "busy, replace: a save made way" says replaces \
    "the save of step [0-9]+ is discarded for that of step [0-9]+"
later=$(sed -nE 's/.* for that of step ([0-9]+),.*/\1/p' "$tmp/replaces.log" | head -n 1)
check "busy, replace: the later one takes its place" says replaces "step $later is accepted"
check_equal "busy, replace: no save counts as failed" \
    "$(grep -c "did not become durable" "$tmp/replaces.log")" 0
check "busy, replace: the first and the last step are saved" \
    grep -Eq '^1 .*12$' <<<"$(saved replaces)"
# No request ends within the second for which a save waits.
check "busy, wait: not for ever" \
    busy bounded 0,least_us=1500000 4 --checkpoint.when_busy wait --checkpoint.busy_wait_seconds 1
check "busy, wait: then the save was left out" \
    says bounded "step [0-9]+ was not saved .rank [01].*images of rank"
