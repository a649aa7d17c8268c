#!/usr/bin/env bash
# Goal: a run can be stopped, resumed, killed, misconfigured and left without ckptd, and ends with
# the numbers of an undisturbed run. Where it cannot continue it logs the reason and ends with the
# right code. Method: one undisturbed run gives loss file and final checkpoint. Then runs of the
# same settings are disturbed in one way each. debug.pause_at_step pauses a run in mid-step, so that
# nothing depends on timing.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

steps=20
plan 199
make_tiny
start_ckptd

train() { # RUN [SETTING...]: output in $tmp/RUN.log
    local run=$1
    shift
    "$BUILD/trainer" --job.config_file "$tiny" --job.run "$run" \
        --ckptd.address "$server" --metrics.loss_file "$tmp/$run.loss" --comm.ranks 2 \
        "$@" >>"$tmp/$run.log" 2>&1
}
status_of() { # COMMAND...: prints its exit status
    local got=0
    "$@" || got=$?
    echo "$got"
}
ends() { # STATUS NAME PATTERN RUN [SETTING...]: a start does, and its log has the pattern
    local got=0
    train "${@:4}" || got=$?
    if [ "$got" = "$1" ] && says "$4" "$3"; then ok "$2"; else
        not_ok "$2: exit $got, or not: $3" "$tmp/$4.log"
    fi
}
saved() { "$BUILD/ckpt-cli" verify "$1" --store "$store"; } # RUN@STEP
count_saved() { "$BUILD/ckpt-cli" list --store "$store" | grep -c "$1@"; } # RUN
restart_ckptd() { stop_ckptd && start_ckptd; }
# Losses (steps made twice must be equal both times) and the final checkpoint.
same() { # RUN
    sort -u "$tmp/$1.loss" | sort -n >"$tmp/$1.sorted"
    cmp "$tmp/right.sorted" "$tmp/$1.sorted" &&
        "$BUILD/ckpt-cli" diff "right@$steps" "$1@$steps" --store "$store"
}

check "an undisturbed run ends with 0" train right
sort -n "$tmp/right.loss" >"$tmp/right.sorted"
version_kept() {
    [ "trainer $("$BUILD/ckpt-cli" show --json --store "$store" "right@$steps" |
        sed -nE 's/.*"code_version": *"([^"]+)".*/\1/p')" = "$("$BUILD/trainer" --version)" ]
}
check "the checkpoint says which trainer wrote it" version_kept
shows_host() {
    "$BUILD/ckpt-cli" show --store "$store" "right@$steps" |
        grep -q "^environment .*\"hosts\":{\"$(uname -n)\":\"0-1\"}"
}
check "and on which hosts" shows_host
saves_cost() { # the last step line, in percent of the time since the first step began
    sed -nE 's/.* info train: step: .* saves: ([0-9.]+)% .*/\1/p' "$tmp/right.log" | tail -n 1
}
check "the step line has the share of the time that saves took" \
    eval 'awk -v s="$(saves_cost)" "BEGIN { exit !(s > 0 && s < 100) }"'
check "the log begins with the description" says right " info train: default job$"
check "a start without a checkpoint says so" says right " run right has no checkpoint to load: "

# ---- asked to stop ----
# By SIGTERM and SIGUSR1, also with a copy under way: snapshot_modes.sh.
trainer_of_ctrl_c() { # RUN
    # A script's background jobs ignore Ctrl-C.
    env --default-signal=INT "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" \
        --comm.ranks 2 --ckptd.address "$server" --debug.pause_at_step 8 >>"$tmp/$1.log" 2>&1 &
    pid=$!
    started_pids+=("$pid")
    paused "$1" 8
}
trainer_of_ctrl_c ctrl_c
ends_by INT 75 "SIGINT: it ends with 75"
check "SIGINT: the last step is saved" saved ctrl_c@7
trainer_of_ctrl_c twice
kill_ours STOP "$ckptd_pid" # so the last save takes a while
kill_ours INT "$pid"
wait_for 20 says twice "was not saved|waiting for step" # it is at the last save
kill_ours INT "$pid"
check "a second SIGINT ends it at once" wait_gone "$pid" 1
kill_ours CONT "$ckptd_pid"
ended
check_equal "by the signal" "$status" 130

held early 1
ends_by TERM 75 "asked to stop in the first step it ends with 75"
check_equal "nothing of it is saved: there is nothing" "$(count_saved early)" 0

# ---- switch files and clocks ----
switched() { # RUN: seen after step 8; only a signal ends its pause
    held "$1" 8 --comm.ranks 6 --checkpoint.interval 100 \
        --training.kill_switch_path "$tmp/kill" --checkpoint.save_switch_path "$tmp/save"
}
switched kill
touch "$tmp/kill" "$tmp/save"
ends_by TERM 78 "a kill switch ends a run with 78"
check "its last step is saved" saved kill@8
check "a save switch that was seen is removed" test ! -e "$tmp/save"
check_exit 78 "while the kill switch is there nothing is started: 78" \
    train kill --training.kill_switch_path "$tmp/kill"
check_equal "which is said once" "$(grep -c 'nothing is started' "$tmp/kill.log")" 1
stops() { "$BUILD/ckpt-cli" stop --server "$server" "$@"; }
rm "$tmp/kill"
switched asked
check "ckptd passes on to the ranks that they are to stop" stops asked
ends_by TERM 78 "then they end with 78"
check "their last step is saved" saved asked@8
check "and the journal says who asked" \
    grep -q "stop .*user $(id -u)" <("$BUILD/ckpt-cli" server history asked --server "$server")
check_exit 66 "of a run that nobody trains it is an error" stops asked
switched unsaved
check "a run may be stopped without a save" stops unsaved --without-save --yes
ends_by TERM 78 "then it ends with 78, too"
check_equal "and nothing is saved" "$(count_saved unsaved)" 0
touch "$tmp/save"
check_exit 0 "with a save switch a run goes on to its end" train saved --checkpoint.interval 100 \
    --checkpoint.save_switch_path "$tmp/save"
check "and has saved behind the step" saved saved@1

# ---- whose lines the log has ----
lines_of_rank_0() { grep -cE ' info (train|checkpoint): ' "$tmp/$1.log"; }
warnings() {
    grep -cE ' warn train: .*this host has [0-9.]+ GiB of memory left: .*exit_free_memory_gib' \
        "$tmp/$1.log"
}
export HOLDFAST_JOB_END_TIME=tomorrow
check_exit 75 "short of memory 4 ranks, of which rank 0 is not to log, end with 75" \
    train hushed --log-ranks 1-4 --comm.ranks 4 --training.exit_free_memory_gib 1e6
check "and their last step is saved" saved hushed@1
check_equal "its lines are left out, and warnings of all ranks are there" \
    "$(lines_of_rank_0 hushed) $(warnings hushed)" "0 4"
check "a rank that is not there, and an end of the job that is no time, are warned of" \
    says hushed 'warn config: metrics.log_ranks = "1-4": there is no rank 4, the last one is 3' \
    'warn config: HOLDFAST_JOB_END_TIME = "tomorrow" is no number'
unset HOLDFAST_JOB_END_TIME
ends 0 "of ranks that are threads each has lines or none" " info train: done after" \
    others --log-ranks 0 --comm.ranks 4

trap '' HUP # inherited, as below nohup
in_background nohup --debug.pause_at_step 8
trap - HUP
paused nohup 8
outlives_hup() { kill_ours HUP "$pid" && ! wait_gone "$pid" 1; }
check "a trainer that is to outlive its terminal ignores SIGHUP" outlives_hup
ends_by TERM 75 "and can be asked to stop all the same"

# ---- asked to stop together with ckptd, as when a node goes down ----
held down 8
kill -TERM "$ckptd_pid" "$pid"
ended
check_equal "down: it ends with 75" "$status" 75
check "down: the last save was the step before" says down "step 7 is durable"
check "down: ckptd ends behind it" wait_gone "$ckptd_pid" 4
start_ckptd --limits.takeover_ms 1000 # a run that continues is waited for that long
ends 0 "down: started again it ends with 0" "loaded step 7 " down
check "down: every bit is the undisturbed run's" same down

# ---- a step that is not finite ----
check "a step that is not finite may be skipped" \
    train skip --debug.nonfinite_at_step 8 --training.nonfinite skip # it updates nothing
check "its place is named" says skip \
    "the update of step 8 is skipped .*1 in a row.*\
first on rank 0, stage 0: the gradient of output.weight"
check_exit 1 "its losses are not those of a run that took it" \
    cmp "$tmp/skip.loss" "$tmp/right.loss"

# ---- a step that is taken back ----
back=(--training.nonfinite roll_back --debug.nonfinite_at_sample 44) # of step 8
train without --training.steps 7 --lr_scheduler.total_steps $steps
check_exit 0 "a run that never had the samples of step 8 ends with 0" train without \
    --checkpoint.load_step 7 --checkpoint.skip_samples 6
sort -u "$tmp/without.loss" | sort -n >"$tmp/without.sorted"
as_without() { # RUN
    sort -u "$tmp/$1.loss" | grep -v nan | sort -n | cmp "$tmp/without.sorted" &&
        "$BUILD/ckpt-cli" diff "without@$steps" "$1@$steps" --store "$store"
}
check_exit 0 "a run that goes back before a step that is not finite ends with 0" train taken \
    "${back[@]}" --checkpoint.interval 4 --metrics.jsonl_file "$tmp/taken.jsonl" \
    --metrics.log_freq 1 --metrics.enable_tensorboard --job.dump_folder "$tmp/taken.out"
check "the step, its samples and its place are named" says taken "step 8 is rolled back \(1 of 3 \
times\), .* without samples 42 to 47: .*first on rank 0, stage 0: the gradient of output.weight"
check "it went on from the checkpoint before" says taken "loaded step 4 of attempt 1"
check "every bit is that of the run that never had them" as_without taken
check_equal "TensorBoard gets the 7 steps before it, and those from 5 on, no other" \
    "$(cat "$tmp"/taken.out/tb/*/events* | grep -ao loss_metrics/global_avg_loss | wc -l)" \
    $((7 + steps - 4))
held taken2 9 "${back[@]}" --comm.ranks 4 --parallelism.pipeline_parallel_degree 2 \
    --parallelism.data_parallel_replicate_degree 2
end_by KILL
held taken2 13 "${back[@]}"
end_by KILL
check_exit 0 "killed behind it, on other meshes, it ends with 0" train taken2 "${back[@]}" \
    --comm.ranks 3
check_equal "a start from a checkpoint behind the step does not go back" \
    "$(grep -c 'step 8 is rolled back' "$tmp/taken2.log")" 2
check "every bit is the same" as_without taken2
"$BUILD/ckpt-cli" show --json --store "$store" "taken@$steps" | tr -d ' \n' >"$tmp/taken.show"
check "what was left out is in the checkpoint" grep -q '"left_out":\[\[42,6\]\]' "$tmp/taken.show"
check "with a note that older trainers refuse" grep -q '"training.left_out":true' "$tmp/taken.show"
check "and with step, policy and reason" grep -qE \
    '"broken":\[\{"step":8,"kind":"nonfinite","policy":"roll_back",[^]]*"reason":"loss' \
    "$tmp/taken.show"
check "and in the lines of JSON" grep -qE \
    '"step": 8, .*"policy": "roll_back".*_back": true, "first_sample": 42, "last_sample": 47\}' \
    "$tmp/taken.jsonl"
check_exit 0 "before its first checkpoint a run begins anew: 0" train young --training.nonfinite \
    roll_back --debug.nonfinite_at_sample 8 --training.steps 5
check_exit 78 "a step that stays so ends the run with 78" train again_bad --training.nonfinite \
    roll_back --debug.nonfinite_at_step 8 --training.roll_back_times 2
check_equal "after as many times as it may" "$(grep -c 'is rolled back' "$tmp/again_bad.log")" 2
ends 78 "without a checkpoint that is old enough it ends with 78" \
    "step 8 cannot be rolled back: .* of a step before 5" pruned "${back[@]}" \
    --training.roll_back_steps 4

# ---- a step made again ----
again() { # RUN STEP [SETTING...]: output in $tmp/again.log
    "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" --ckptd.address "$server" \
        --metrics.loss_file "$tmp/again.loss" --replay "${@:2}" >"$tmp/again.log" 2>&1
}
of_loss_file() { # RUN STEP: as the loss file has them
    awk -v step="$2" '$1 == step { print "step " step ": loss " $2 " .*, gradient norm " $3 " " }' \
        "$tmp/$1.loss" | sed 's/+/[+]/g'
}
check_exit 0 "a step of 2 ranks is made again on 1" again right 13 --comm.ranks 1
check "from a checkpoint before it, printed to the bit, compared as those on the way" \
    says again "loaded step (10|5) " "$(of_loss_file right 13)" \
    "step 13: the same bits \(compared: [38] losses; no checkpoint is known to have the state"
check_exit 0 "on 4 ranks, too" \
    again right $steps --comm.ranks 4 --parallelism.pipeline_parallel_degree 2
check "where a checkpoint of the step is, with its gradient norm" says again \
    "step $steps: the same bits \(compared: [0-9]+ losses, the gradient norm, [0-9]+ tensors of"
check_exit 1 "with another setting it ends with 1" again right 14 --optimizer.lr 1e-3
check "the first step that differs is named, and the setting" says again \
    "differs: step (12|7): loss 0x.* then, 0x.* now" "optimizer.lr was 0.0008 .* now it is 0.001"
check_exit 0 "a step before the first checkpoint is made again from new weights, on 4 ranks" \
    again right 5 --comm.ranks 4 --parallelism.pipeline_parallel_degree 2
check "with the bits of all steps from the first on" says again "it begins with new weights" \
    "$(of_loss_file right 5)" "step 5: the same bits \(compared: 5 losses[,;]" "as the run began$"
refused() { # PATTERN RUN STEP [SETTING...]
    [ "$(status_of again "${@:2}")" = 78 ] && says again "$1"
}
check "another seed is refused" refused "step (5|10), .* debug.seed = 0, this .* has 43: .* other \
weights" right 4 --debug.seed 43
check "other sizes of the first steps, too" refused \
    "run has canonical.micro_batches = 6, this configuration has 4" right 4 \
    --canonical.micro_batches 4
check_exit 0 "a skipped step is made again" \
    again skip 8 --debug.nonfinite_at_step 8 --training.nonfinite skip
check "with where it broke" says again \
    "step 8 is not finite, first on rank 0, stage 0: the gradient of output.weight"
bad=(--debug.nonfinite_at_step 10 --training.nonfinite skip --training.steps 10)
check "a skipped step that was saved" train skip10 "${bad[@]}"
check_exit 0 "is made again, too" again skip10 10 "${bad[@]}"
check "and its state is compared" says again "step 10: the same bits .*[0-9] tensors of the check"
check_exit 0 "what a run left out is left out again" again taken 9 --comm.ranks 1 \
    --checkpoint.load_step 4
check "from a checkpoint that was made before, with the same bits" \
    says again "loaded step 4 " "step 9: the same bits \\(compared: 5 losses;"
check_exit 0 "a step that was rolled back is made again as it was at first" \
    again taken 8 "${back[@]}" --blame --comm.ranks 1
check "with the samples that were left out then, which are blamed" says again \
    "step 8 was rolled back and made again without samples 42 to 47: .* with them; loss .* nan" \
    "step 8: sample 44 of the run" "the same bits \(compared: 3 losses and those of the undone step"
check_exit 1 "if it is finite now, a replay ends with 1" again taken 8 --comm.ranks 2
check "and says what it was, of other tokens than step 8 of the checkpoint has" eval \
    'says again "differs: step 8: gradient norm nan .* then, 0x" "computed wrong" &&
    saved taken@8'
check_exit 0 "before the first checkpoint, too" again young 2 --training.nonfinite roll_back \
    --debug.nonfinite_at_sample 8 --training.steps 5 --blame
check "with the same blame" says again "step 2 was rolled back and made again without samples 6" \
    "step 2: sample 8 of the run" "the same bits \(compared: 1 losses and those of the undone step"
check_exit 78 "a step that is not finite ends a run with 78" \
    train broken --debug.nonfinite_at_step 8 --checkpoint.async_mode disabled
check_exit 3 "where a step has no loss to be compared with, a replay ends with 3" \
    again broken 8 --debug.nonfinite_at_step 8
check "and names the steps" says again "nothing is compared: .* of steps 6 to 8"
check_equal "a replay leaves no loss and no attempt" \
    "$(ls "$tmp/again.loss" "$store"/{right,broken}/attempts/* 2>/dev/null | wc -l)" 2

# ---- a step made again of a run that began with another's weights ----
tuned=(--checkpoint.initial_load_path skip10 --checkpoint.partial --model.n_layers 3
    --training.steps 6)
check "a run begins with a part of another model" train tuned "${tuned[@]}"
check_exit 0 "so does a replay of its first steps, on 4 ranks" again tuned 3 "${tuned[@]}" \
    --comm.ranks 4 --parallelism.pipeline_parallel_degree 2
check "with the same bits" says again "starts from the weights of run skip10, step 10;" \
    "step 3: the same bits \(compared: 3 losses;"
check "not with another part" refused 'partial_fresh = "", this configuration has "output"' \
    tuned 3 "${tuned[@]}" --checkpoint.partial_fresh output
second=$(date +%s) # in which tuned was saved, or a later one
wait_for 20 eval '[ "$(date +%s)" -gt "$second" ]'
train skip10 "${bad[@]}" --training.steps 11
check "nor if the other has gone on" refused \
    'initial_load_path = "skip10", which has saved it, or a newer step, since' tuned 3 "${tuned[@]}"
tuned+=(--checkpoint.initial_load_path skip10@10)
check_exit 0 "unless its step is named" again tuned 3 "${tuned[@]}"
"$BUILD/ckpt-cli" rm skip10@10-a1 --server "$server" --yes >>"$tmp/skip10.log" 2>&1
check "if it is gone it is named" refused 'initial_load_path = "skip10@10", which is no longer' \
    tuned 3 "${tuned[@]}"
whole=(--checkpoint.initial_load_path right@5 --checkpoint.no_initial_load_model_only
    --training.steps 8 --lr_scheduler.total_steps $steps)
check "a run goes on with the whole state of another" train onward "${whole[@]}"
check_exit 0 "so does a replay" again onward 7 "${whole[@]}" --comm.ranks 1
check "with the same bits" says again "step 7: the same bits \(compared: 2 losses;"
check "steps before it are that run's" refused "onward began with step 5 of .*right@5" \
    onward 5 "${whole[@]}"
"$BUILD/ckpt-cli" export right@5 --store "$store" --output "$tmp/hf" --format hf --weights-only \
    >"$tmp/of_hf.log" 2>&1
check "a run begins with an imported model" train of_hf --checkpoint.initial_load_path "$tmp/hf" \
    --training.steps 2
"$BUILD/ckpt-cli" rm of_hf@0-a1 --server "$server" --yes >>"$tmp/of_hf.log" 2>&1
check "without the import its beginning is not known" refused \
    "of_hf began from checkpoint.initial_load_path = .*/hf.*, whose import.* is no longer there" \
    of_hf 1 --checkpoint.initial_load_path "$tmp/hf" --training.steps 2

# ---- a profile of some steps ----
check_exit 0 "debug.stop_after_step ends with 0" train look --debug.stop_after_step 4 \
    --checkpoint.interval 4 --job.dump_folder "$tmp/look" --profiling.enable_profiling \
    --profiling.profile_freq 3 --metrics.jsonl_file "$tmp/look.jsonl"
unsaved() {
    says look "stopped after step 4; none is durable$" &&
        ! compgen -G "$store/look/step-*" >/dev/null
}
check "behind that step, of which nothing is saved" unsaved
check_exit 3 "a replay of it has nothing to compare: 3" again look 3 --blame
check "it says so, and blames" says again "run look has no undamaged checkpoint" \
    "no checkpoint of the run has a loss of steps 1 to 3" "step 3: sample [0-9]+ of the run .* has"
check "a trace of each third step is in its folder" \
    test -f "$tmp/look/profile_traces/iteration_3/rank1_trace.json"
check "after the first a line counts the calls of rank 0" says look \
    "step 1: [0-9]+ calls of rank 0 sent .* dp_shard all_gather [0-9]+ "
check_equal "each of the four has as many in its line of JSON" \
    "$(sed -n 's/.*"calls": {"/{"/p' "$tmp/look.jsonl" | sort | uniq -c | awk '{ print $1 }')" 4

# ---- killed ----
held killed 13
end_by KILL
NCCL_ALGO=Ring ends 0 "killed in step 13, on another world it says what may change bits there" \
    'warn checkpoint: since the checkpoint was made: variables.NCCL_ALGO was nothing, now "Ring"' \
    killed --comm.ranks 1 --metrics.log_freq 1 --metrics.jsonl_file "$tmp/killed.jsonl" \
    --metrics.enable_tensorboard --job.dump_folder "$tmp/killed.out"
check "killed: it went on from a checkpoint" says killed "loaded step (10|5) "
check "killed: every bit is the undisturbed run's" same killed
whole_curve() { # of a file of the second start alone
    python3 - "$tmp/right.loss" "$tmp/killed.jsonl" <<'END'
import json, sys
right = [line.split()[:2] for line in open(sys.argv[1]) if "validation" not in line]
right = {int(step): float.fromhex(loss) for step, loss in right}
lines = [json.loads(line) for line in open(sys.argv[2])]
made = [(line["step"], line["loss"]) for line in lines if "loss" in line]
sys.exit(made != sorted(right.items()) or lines[0].get("restored") is not True)
END
}
check "killed: in new files the curve has each step once, those before it too" whole_curve
check_equal "killed: TensorBoard's has them" \
    "$(cat "$tmp"/killed.out/tb/*/events* | grep -ao loss_metrics/global_avg_loss | wc -l)" "$steps"

# ---- finished, and odd starts ----
check_exit 0 "without checkpoints it ends with 0" train unsaved --checkpoint.no_enable \
    --model.vocab_size 1001
check_equal "it warns once that nothing is saved" \
    "$(grep -c 'warn.*checkpoint.enable is off: nothing is saved' "$tmp/unsaved.log")" 1
check_equal "a run with checkpoints does not" "$(grep -c 'enable is off' "$tmp/right.log")" 0
check_equal "a hint is a warning, once for all ranks" \
    "$(grep -c 'warn train: model.vocab_size = 1001 is not a multiple of 8' "$tmp/unsaved.log")" 1
# So strict a limit makes every gradient zero, and the moments with it.
ends 0 "a run whose optimizer stands still ends with 0" \
    " error checkpoint: step 10: every tensor equals the checkpoint of step 5, attempt 1" still \
    --training.steps 10 --training.max_norm 1e-60 --optimizer.weight_decay 0
check_equal "a run that trains raises none" \
    "$(grep -c 'every tensor equals' "$tmp/right.log")" 0
lines=$(wc -l <"$tmp/right.loss")
ends 0 "a finished run started again ends with 0" \
    "the run is finished: step $steps of $steps is saved" right
check_equal "it trains nothing" "$(wc -l <"$tmp/right.loss")" "$lines"
ends 78 "another canonical order is refused with 78" "micro_batches = 6, this configuration has 4" \
    right --training.steps 30 --canonical.micro_batches 4
# ---- starts that do not save ----
attempts() { find "$store/$1/attempts" -regex '.*/[0-9]+' | wc -l; }
held busy 8
busy=$pid
beside() { # STATUS NAME [SETTING...]: a start beside the run that is held in step 8
    check_exit "$1" "$2 beside a run that trains ends with $1" train busy "${@:3}"
    check_equal "it opens no attempt" "$(attempts busy)" 1
}
beside 78 "a refused configuration" --canonical.micro_batches 4
beside 0 "a finished run" --training.steps 5 --lr_scheduler.total_steps $steps
beside 0 "load_only" --checkpoint.load_only --metrics.loss_file "$tmp/busy.only"
beside 0 "debug.logits_file" --debug.logits_file "$tmp/busy.logits"
check "and writes the logits" test -s "$tmp/busy.logits"
beside 78 "a stranger that would train it"
check "and names who trains it, and what to do" says busy \
    "is being trained by user [0-9]+, process $busy .*step 5 .*--checkpoint.take_over"
pid=$busy
end_by TERM
check "the run that trained saves its last step" saved busy@7-a1

HOLDFAST_SAVED_FILE=$tmp/saved check "a run that has saved is begun by its launcher" \
    train seen --training.steps 5
check_equal "the save is noted for the launcher" "$(cat "$tmp/saved")" "seen 5"
mv "$store/seen" "$tmp/seen.away"
restart_ckptd
HOLDFAST_SAVED_FILE=$tmp/saved ends 78 "with its checkpoints gone it is not begun at step 0 again" \
    "has saved step 5 .* does not begin at step 0 again" seen --training.steps 5

for how in token told; do
    HOLDFAST_LAUNCH_TOKEN=one held "$how" 8
    case $how in
    token) HOLDFAST_LAUNCH_TOKEN=one check "the same launcher takes over at once" train token ;;
    told) check "so does who is told to (checkpoint.take_over)" \
        train told --checkpoint.take_over ;;
    esac
    ends_by TERM 78 "who lost the run ends with 78"
done

# ---- a state that is lost ----
check "a run makes its first steps" train lost --training.steps 5
rm -f "$store/lost/step-00000005-a0001/manifest.json"
"$BUILD/ckpt-cli" repair lost@5-a1 --server "$server" >>"$tmp/lost.log" 2>&1
ends 78 "from a manifest that was made of the shards it does not go on: 78" \
    "the state of step 5 is lost" lost

# ---- a run without a name ----
grep -v '^run = ' "$tiny" >"$tmp/nameless.toml"
nameless() { # SETTING...: output in $tmp/nameless.log
    "$BUILD/trainer" --job.config_file "$tmp/nameless.toml" --ckptd.address "$server" \
        --metrics.loss_file "$tmp/nameless.loss" --training.steps 5 "$@" >>"$tmp/nameless.log" 2>&1
}
check "a run that was called default" nameless --job.run default
check_exit 78 "is not begun anew under the configuration's name: 78" nameless
check "and both names are said" says nameless \
    'would be "nameless", .*run "default" has step 5 of this model'
check_exit 0 "another model is: 0" nameless --model.norm_eps 0.001
check "under the configuration's name" saved nameless@5

check_exit 0 "load_step goes back to an older step" train right --checkpoint.load_step 5 \
    --comm.ranks 3
sort -u "$tmp/right.loss" | sort -n >"$tmp/again.sorted"
check "load_step: the steps made again have the same bits" \
    cmp "$tmp/right.sorted" "$tmp/again.sorted"
back_once() { # STEPS: a start of one launcher: back to step 5, without the samples of a step
    HOLDFAST_SAVED_FILE="$tmp/back.saved" train back --training.steps "$1" \
        --lr_scheduler.total_steps $steps --checkpoint.load_step 5 --checkpoint.skip_samples 6
}
next_sample() { # STEP-ATTEMPT
    grep -ohE '"next_sample": *[0-9]+' "$store"/back/step-0000000"$1"/manifest.json |
        grep -oE '[0-9]+'
}
train back --training.steps 9 --lr_scheduler.total_steps $steps
check "it may leave samples out behind that step" back_once 7
check "which is said" says back "warn.*6 samples from 30 on are left out"
check_equal "the next ones follow" "$(next_sample 7-a0002)" 48
listed() { # STEP-ATTEMPT: after which steps an order began, and with which sample
    "$BUILD/ckpt-cli" show --json --store "$store" "back@$1" | tr -d ' \n' |
        grep -oE '"orders":\[[^]]*\]' | grep -oE '"(step|data.next_sample)":[0-9]+' | tr '\n' ' '
}
check_equal "and listed in the checkpoint" "$(listed 7-a2)" \
    '"step":0 "step":5 "data.next_sample":36 '
check "a later start of that launcher ends with 0" back_once 8
check "it goes on from what was saved, not from the newest step" says back "loaded step 7 of .* 2 "
check_equal "and leaves nothing out again" "$(next_sample 8-a0003)" 54
train back --training.steps 10 --lr_scheduler.total_steps $steps \
    --checkpoint.exclude_from_loading dataloader
check "data that begin again are said with their step" says back \
    "warn.*samples from 0 on are read again from step 9 on: the run has read 54 "
check_equal "and listed" "$(listed 10-a4)" \
    '"step":0 "step":5 "data.next_sample":36 "step":8 "data.next_sample":0 '
check_exit 78 "a step that is not there is refused with 78" train right --checkpoint.load_step 7
check_exit 78 "a seed checkpoint of a run that has begun is refused with 78" train right \
    --checkpoint.create_seed_checkpoint
check_exit 0 "seed: step 0 is saved" train seed --checkpoint.create_seed_checkpoint
check_exit 0 "seed: training goes on from it with 0" train seed --comm.ranks 3
check "seed: every bit is the undisturbed run's" same seed
check_exit 0 "synchronous saves end with 0" train sync --checkpoint.async_mode disabled \
    --checkpoint.enable_first_step_checkpoint
check "synchronous saves: every bit is the undisturbed run's" same sync
ends 0 "fresh moments are allowed (exclude_from_loading)" \
    'begins fresh: the moments .*exclude_from_loading., the schedule .checkpoint' sync \
    --training.steps 22 --lr_scheduler.total_steps 20 --checkpoint.exclude_from_loading \
    optimizer,lr_scheduler
train library --training.steps 16 --lr_scheduler.total_steps $steps
ends 0 "with other kernels it goes on" 'warn.*kernels was ".*its bits may differ' library \
    --kernels.backend reference --kernels.isa sse2
check "another setting is said" says library "training.steps was 16 .* now it is $steps"

# ---- a chosen seed ----
drawn() { # RUN: the seed that its first start drew
    sed -nE 's/.*debug.seed = -1: ([0-9]+) was drawn$/\1/p' "$tmp/$1.log"
}
short=(--lr_scheduler.total_steps $steps --training.steps)
check_exit 0 "without a seed a run ends with 0" train own --debug.seed -1 "${short[@]}" 5
ends 0 "going on, too" "the run has $(drawn own)\$" own --debug.seed -1 "${short[@]}" 8
train other --debug.seed -1 "${short[@]}" 1
check "which no other run draws" [ "$(drawn other)" != "$(drawn own)" ]
check "a run of that seed ends with 0" train given --debug.seed "$(drawn own)" "${short[@]}" 8
check "and has the same bits" cmp "$tmp/own.loss" "$tmp/given.loss"

# ---- damage ----
damage() { # SHARD...
    local shard
    stop_ckptd
    for shard in "$@"; do printf 'x' | dd of="$shard" bs=1 seek=9000 conv=notrunc status=none; done
    start_ckptd
}
train damaged --training.steps 15 --lr_scheduler.total_steps $steps
damage "$store"/damaged/step-00000015-*/shard-00001-*
ends 0 "with a damaged newest checkpoint it ends with 0" "loaded step 10 " damaged
check "it said what was skipped and why" says damaged "step 15 cannot be loaded.*damaged"
check "damaged: every bit is the undisturbed run's" same damaged
damage "$store"/damaged/step-000000$steps-*/shard-00001-*
: >"$tmp/damaged.log"
check_exit 0 "a finished run whose last checkpoint is damaged is started again: 0" train damaged
check "it is not said to be finished" eval '! says damaged "is finished"'
check "it went on from the one before" says damaged "loaded step 15 "
check "its last step is saved again" saved "damaged@$steps"
check "finished and damaged: every bit is the undisturbed run's" same damaged

train hopeless --training.steps 10 --lr_scheduler.total_steps $steps
damage "$store"/hopeless/step-*/shard-00001-*
ends 78 "with every checkpoint damaged it ends with 78" "none can be loaded" hopeless
check_equal "it still has the losses of the first time only" "$(wc -l <"$tmp/hopeless.loss")" 10

# ---- a checkpoint of a later version ----
later_version() { # MANIFEST: becomes one that this version cannot read
    PYTHONPATH=tests/integration python3 - "$1" <<'PYTHON'
import re, sys
from lib_store import sealed
text = open(sys.argv[1], "rb").read()
open(sys.argv[1], "wb").write(sealed(re.sub(rb'"version": *\d', b'"version":9', text, count=1)))
PYTHON
}
have() { # the run's checkpoints in the store, and the losses
    find "$store/newer" -name 'step-*' -o -path '*/attempts/*' | sort
    cat "$tmp/newer.loss"
}
train newer --training.steps 15 --lr_scheduler.total_steps $steps
stop_ckptd
later_version "$store"/newer/step-00000015-*/manifest.json
start_ckptd
have >"$tmp/newer.before"
ends 78 "with a newest checkpoint of a later version it ends with 78" "version 9" newer
check "it does not go back to an older one" eval '! says newer "loaded step"'
check_equal "it takes no attempt, step or loss" "$(have)" "$(cat "$tmp/newer.before")"

# ---- moments of half the size ----
halved=(--optimizer.moments_dtype bfloat16)
train whole "${halved[@]}"
train halved "${halved[@]}" --training.steps 10 --lr_scheduler.total_steps $steps
before=$(attempts halved)
ends 78 "moments of another type: it ends with 78" \
    "moments_dtype = bfloat16, this configuration has float32" halved
check_equal "it takes no attempt" "$(attempts halved)" "$before"
check_exit 0 "with moments of the run's type, on 3 ranks, it ends with 0" train halved \
    "${halved[@]}" --comm.ranks 3
check "its moments are rounded as those of the run that was left alone" \
    "$BUILD/ckpt-cli" diff "whole@$steps" "halved@$steps" --store "$store"

# ---- ckptd comes and goes ---- It is killed while a long run saves every few steps. Other moments
# of kills: snapshot_modes.sh.
in_background goes_on --training.steps 600 --checkpoint.interval 20 --metrics.log_freq 100 \
    --checkpoint.when_busy wait
wait_for 30 says goes_on "is durable"
stop_ckptd KILL
wait_for 30 says goes_on "warn.*was not saved"
start_ckptd
ended
check_equal "with ckptd killed and back, training goes on and ends with 0" "$status" 0
check_equal "goes_on: it made every step once" "$(wc -l <"$tmp/goes_on.loss")" 600
check "goes_on: its last checkpoint is saved" \
    "$BUILD/ckpt-cli" show goes_on@600 --store "$store"
stop_ckptd
in_background nobody
asks_for_ckptd() { grep -qsx grpc_global_tim /proc/"$pid"/task/*/comm; }
wait_for 20 asks_for_ckptd # for 10 s
kill_ours TERM "$pid"
check "a signal ends the wait for ckptd at once" wait_gone "$pid" 1
ended
check_equal "with 75" "$status" 75
# Norms are whole on every tensor-parallel rank: a little more than the parameters is held.
began=$SECONDS
check_equal "405B on 16,384 ranks is estimated, and the stages have its parameters" \
    "$("$BUILD/trainer" --estimate --json --model.flavor 405B --canonical.micro_batches 2048 \
        --parallelism.pipeline_parallel_degree 16 --parallelism.tensor_parallel_degree 8 \
        --parallelism.data_parallel_shard_degree 128 --training.local_batch_size 1 2>/dev/null |
        python3 -c 'import json, sys
said = json.load(sys.stdin)
held = sum(m["elements"] for s in said["stages"] for m in s["modules"].values())
print(said["ranks"], said["parameters"], abs(held * 1024 / said["parameters"] - 1) < 1e-3)')" \
    "16384 405853388800 True"
check_equal "within 5 s" $((SECONDS - began < 5 * ${TEST_TIME_SCALE:-1})) 1
suggested=$("$BUILD/trainer" --job.config_file "$tiny" --suggest --comm.ranks 4 2>/dev/null |
    sed '1,/^settings of the first/ d' | tr -d '\\\n')
read -ra suggested <<<"$suggested"
check_exit 0 "a mesh of 4 ranks is suggested, and trains" train suggested "${suggested[@]}" \
    --comm.ranks 4 --training.steps 1 --checkpoint.no_enable
"$BUILD/trainer" --job.config_file "$tiny" --print-program --comm.ranks 2 \
    --parallelism.pipeline_parallel_degree 2 --canonical.micro_batches 3 \
    >"$tmp/listed.txt" 2>/dev/null
check_equal "the programs of two stages are listed, with as many receives as sends" \
    "$(awk '/of the pipeline/ { ranks++ } $2 == "send" { sends++ } $2 == "receive" { receives++ }
        END { print ranks, sends, sends - receives }' "$tmp/listed.txt")" "2 3 0"
