#!/usr/bin/env bash
# Goal: a run can be stopped, resumed, killed, misconfigured and left without ckptd, and ends with
# the numbers of a run to which nothing happened; where it cannot go on it says why and ends with
# the right code. Method: one undisturbed run gives loss file and final checkpoint. Then runs of
# the same settings are disturbed in one way each. debug.pause_at_step holds a run in mid-step, so
# that nothing depends on timing.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

steps=20
plan 223
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
check "a start without a checkpoint says so" says right " run right has no checkpoint yet: "

# ---- asked to stop ----
# A step of 6 ranks is one micro-step, one of 2 is three.
for stop in "TERM 2 7 dropped" "USR1 6 8 finished"; do
    read -r signal ranks last what <<<"$stop"
    run=stop$signal
    in_background "$run" --debug.pause_at_step 8 --comm.ranks "$ranks"
    paused "$run" 8
    kill_ours "$signal" "$pid"
    ended
    check_equal "SIG$signal: it ends with 75" "$status" 75
    check "SIG$signal on $ranks ranks: the step in progress was $what" \
        says "$run" "stopped after step $last"
    check "SIG$signal: the last step is saved" \
        "$BUILD/ckpt-cli" verify "$run@$last" --store "$store"
    check_equal "SIG$signal: its losses end there" "$(wc -l <"$tmp/$run.loss")" "$last"
    check_equal "SIG$signal: started again it ends with 0" \
        "$(status_of train "$run" --comm.ranks 3)" 0
    check "SIG$signal: every bit is the undisturbed run's" same "$run"
done

trainer_of_ctrl_c() { # RUN
    # A script's background jobs ignore Ctrl-C.
    env --default-signal=INT "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" \
        --comm.ranks 2 --ckptd.address "$server" --debug.pause_at_step 8 >>"$tmp/$1.log" 2>&1 &
    pid=$!
    started_pids+=("$pid")
    paused "$1" 8
}
trainer_of_ctrl_c ctrl_c
kill_ours INT "$pid"
ended
check_equal "SIGINT: it ends with 75" "$status" 75
check "SIGINT: the last step is saved" "$BUILD/ckpt-cli" verify ctrl_c@7 --store "$store"
trainer_of_ctrl_c twice
kill_ours STOP "$ckptd_pid" # so the last save takes a while
kill_ours INT "$pid"
wait_for 20 says twice "was not saved|waiting for step" # it is at the last save
kill_ours INT "$pid"
check "a second SIGINT ends it at once" wait_gone "$pid" 1
kill_ours CONT "$ckptd_pid"
ended
check_equal "by the signal" "$status" 130

in_background early --debug.pause_at_step 1
paused early 1
kill_ours TERM "$pid"
ended
check_equal "asked to stop in the first step it ends with 75" "$status" 75
check_equal "nothing of it is saved: there is nothing" \
    "$("$BUILD/ckpt-cli" list --store "$store" | grep -c early@)" 0

# ---- switch files and clocks ----
switched() { # RUN [SETTING...]: seen behind step 8
    in_background "$1" --debug.pause_at_step 8 --comm.ranks 6 --checkpoint.interval 100 \
        --training.kill_switch_path "$tmp/kill" --checkpoint.save_switch_path "$tmp/save" "${@:2}"
    paused "$1" 8
}
goes_on() { # RUN: from its pause, which only a signal ends, to its end
    kill_ours TERM "$pid"
    ended
}
switched kill
touch "$tmp/kill" "$tmp/save"
goes_on kill
check_equal "a kill switch ends a run with 78" "$status" 78
check "its last step is saved" "$BUILD/ckpt-cli" verify kill@8 --store "$store"
check "a save switch that was seen is removed" test ! -e "$tmp/save"
check_equal "while the kill switch is there nothing is started: 78" \
    "$(status_of train kill --training.kill_switch_path "$tmp/kill")" 78
check_equal "which is said once" "$(grep -c 'nothing is started' "$tmp/kill.log")" 1
stops() { "$BUILD/ckpt-cli" stop --server "$server" "$@"; }
rm "$tmp/kill"
switched asked
check "ckptd passes on to the ranks that they are to stop" stops asked
goes_on asked
check_equal "then they end with 78" "$status" 78
check "their last step is saved" "$BUILD/ckpt-cli" verify asked@8 --store "$store"
check "and the journal says who asked" \
    grep -q "stop .*user $(id -u)" <("$BUILD/ckpt-cli" server history asked --server "$server")
check_equal "of a run that nobody trains it is an error" "$(status_of stops asked)" 66
switched unsaved
check "a run may be stopped without a save" stops unsaved --without-save --yes
goes_on unsaved
check_equal "then it ends with 78, too" "$status" 78
check_equal "and nothing is saved" \
    "$("$BUILD/ckpt-cli" list --store "$store" | grep -c unsaved@)" 0
touch "$tmp/save"
check_equal "with a save switch a run goes on to its end" "$(status_of train saved \
    --checkpoint.interval 100 --checkpoint.save_switch_path "$tmp/save")" 0
check "and has saved behind the step" "$BUILD/ckpt-cli" verify saved@1 --store "$store"
train seconds --checkpoint.interval_type seconds --checkpoint.interval 3600
check_equal "an interval in seconds is none in steps" \
    "$("$BUILD/ckpt-cli" list --store "$store" | grep -c seconds@)" 1
check_equal "when its time is over it ends with 79" "$(status_of train timed \
    --training.exit_duration_in_mins 1e-6)" 79
check_equal "short of memory it ends with 75" "$(status_of train short \
    --training.exit_free_memory_gib 1e6)" 75
check "and its last step is saved" "$BUILD/ckpt-cli" verify short@1 --store "$store"

# ---- whose lines the log has ----
lines_of_rank_0() { grep -cE ' info (train|checkpoint): ' "$tmp/$1.log"; }
warnings() { grep -cE ' warn train: .* GiB of memory are left here' "$tmp/$1.log"; }
for ranks in 2 4; do
    check_equal "$ranks ranks, of which rank 0 is not to log, end as they would" \
        "$(status_of train "hushed$ranks" --log-ranks "1-$((ranks - 1))" --comm.ranks "$ranks" \
            --training.exit_free_memory_gib 1e6)" 75
    check_equal "its lines are left out, and warnings of all ranks are there" \
        "$(lines_of_rank_0 "hushed$ranks") $(warnings "hushed$ranks")" "0 $ranks"
done
status_of train others --log-ranks 0 --comm.ranks 4 >"$tmp/others.status"
check "of ranks that are threads each has lines or none" says others " info train: done after"

trap '' HUP # inherited, as below nohup
in_background nohup --debug.pause_at_step 8
trap - HUP
paused nohup 8
outlives_hup() { kill_ours HUP "$pid" && ! wait_gone "$pid" 1; }
check "a trainer that is to outlive its terminal ignores SIGHUP" outlives_hup
kill_ours TERM "$pid"
ended
check_equal "and can be asked to stop all the same" "$status" 75

# ---- asked to stop together with ckptd, as when a node goes down ----
in_background down --debug.pause_at_step 8
paused "down" 8
kill -TERM "$ckptd_pid" "$pid"
ended
check_equal "down: it ends with 75" "$status" 75
check "down: the last save was the step before" says down "step 7 is durable"
check "down: ckptd ends behind it" wait_gone "$ckptd_pid" 4
start_ckptd --limits.takeover_ms 1000 # so long a run that goes on is waited for
check_equal "down: started again it ends with 0" "$(status_of train down)" 0
check "down: it goes on from that step" says down "loaded step 7 "
check "down: every bit is the undisturbed run's" same down

# ---- a step that is not finite ----
skipping() { # RUN [SETTING...]: step 8 updates nothing
    train "$1" --debug.nonfinite_at_step 8 --training.nonfinite skip "${@:2}"
}
check "a step that is not finite may be skipped" skipping skip
check "its place is named" says skip \
    "step 8 updates nothing .*1 in a row.*first on rank 0, stage 0: the gradient of output.weight"
check "on another mesh, too" skipping skip2 --comm.ranks 4 \
    --parallelism.pipeline_parallel_degree 2 --parallelism.zero_stage 1 \
    --parallelism.data_parallel_replicate_degree 2
skip_alike() {
    cmp "$tmp/skip.loss" "$tmp/skip2.loss" && ! cmp "$tmp/skip.loss" "$tmp/right.loss" &&
        "$BUILD/ckpt-cli" diff "skip@$steps" "skip2@$steps" --store "$store"
}
check "with the same bits, which are not those of a run that took it" skip_alike

# ---- a step that is taken back ----
back=(--training.nonfinite roll_back --debug.nonfinite_at_sample 44) # of step 8
train without --training.steps 7 --lr_scheduler.total_steps $steps
check_equal "a run that never had the samples of step 8 ends with 0" \
    "$(status_of train without --checkpoint.load_step 7 --checkpoint.skip_samples 6)" 0
sort -u "$tmp/without.loss" | sort -n >"$tmp/without.sorted"
as_without() { # RUN
    sort -u "$tmp/$1.loss" | grep -v nan | sort -n | cmp "$tmp/without.sorted" &&
        "$BUILD/ckpt-cli" diff "without@$steps" "$1@$steps" --store "$store"
}
check_equal "a run that goes back before a step that is not finite ends with 0" \
    "$(status_of train taken "${back[@]}" --metrics.jsonl_file "$tmp/taken.jsonl")" 0
check "the step, its samples and its place are named" says taken "step 8 is taken back \(1 of 3 \
times\), .* without samples 42 to 47: .*first on rank 0, stage 0: the gradient of output.weight"
check "it went on from the checkpoint before" says taken "loaded step 5 of attempt 1"
check "every bit is that of the run that never had them" as_without taken
in_background taken2 "${back[@]}" --comm.ranks 4 --parallelism.pipeline_parallel_degree 2 \
    --parallelism.data_parallel_replicate_degree 2 --debug.pause_at_step 9
paused taken2 9
kill_ours KILL "$pid"
ended
in_background taken2 "${back[@]}" --debug.pause_at_step 13
paused taken2 13
kill_ours KILL "$pid"
ended
check_equal "killed behind it, on other meshes, it ends with 0" \
    "$(status_of train taken2 "${back[@]}" --comm.ranks 3)" 0
check_equal "a start from a checkpoint behind the step does not go back" \
    "$(grep -c 'step 8 is taken back' "$tmp/taken2.log")" 2
check "every bit is the same" as_without taken2
"$BUILD/ckpt-cli" show --json --store "$store" "taken@$steps" | tr -d ' \n' >"$tmp/taken.show"
check "what was left out is in the checkpoint" grep -q '"left_out":\[\[42,6\]\]' "$tmp/taken.show"
check "with a note that older trainers refuse" grep -q '"training.left_out":true' "$tmp/taken.show"
check "and in the lines of JSON" grep -q \
    '"step": 8, .*"rolled_back": true, "first_sample": 42, "last_sample": 47}' "$tmp/taken.jsonl"
check_equal "before its first checkpoint a run begins anew: 0" "$(status_of train young \
    --training.nonfinite roll_back --debug.nonfinite_at_sample 8 --training.steps 5)" 0
check_equal "a step that stays so ends the run with 78" "$(status_of train again_bad \
    --training.nonfinite roll_back --debug.nonfinite_at_step 8 --training.roll_back_times 2)" 78
check_equal "after as many times as it may" "$(grep -c 'is taken back' "$tmp/again_bad.log")" 2
check_equal "without a checkpoint that is old enough it ends with 78" "$(status_of train pruned \
    "${back[@]}" --training.roll_back_steps 4)" 78
check "which is said" says pruned "step 8 cannot be taken back: .* of a step before 5"

# ---- a step made again ----
again() { # RUN STEP [SETTING...]: prints the exit status; output in $tmp/again.log
    local got=0
    "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" --ckptd.address "$server" \
        --metrics.loss_file "$tmp/again.loss" --replay "${@:2}" >"$tmp/again.log" 2>&1 || got=$?
    echo "$got"
}
of_loss_file() { # RUN STEP: as the loss file has them
    awk -v step="$2" '$1 == step { print "step " step ": loss " $2 " .*, gradient norm " $3 " " }' \
        "$tmp/$1.loss" | sed 's/+/[+]/g'
}
check_equal "a step of 2 ranks is made again on 1: 0" "$(again right 13 --comm.ranks 1)" 0
check "from a checkpoint before it" says again "loaded step (10|5) "
check "and printed to the bit" says again "$(of_loss_file right 13)"
check "as are those on the way" says again "step 13: the same bits \(compared: [38] losses\)"
check_equal "on 4 ranks, too: 0" "$(again right $steps --comm.ranks 4 \
    --parallelism.pipeline_parallel_degree 2)" 0
check "where a checkpoint of the step is, with its gradient norm" says again \
    "step $steps: the same bits \(compared: [0-9]+ losses, the gradient norm\)"
check_equal "with another setting it ends with 1" "$(again right 14 --optimizer.lr 1e-3)" 1
check "the first step that differs is named" says again \
    "differs: step (12|7): loss 0x.* then, 0x.* now"
check "and the setting" says again "optimizer.lr was 0.0008 .* now it is 0.001"
check_equal "a step without a checkpoint before it ends with 78" "$(again right 5)" 78
check "which names the others" says again "steps (6|11) to $steps can be made again"
check_equal "a skipped step is made again: 0" "$(again skip 8 --debug.nonfinite_at_step 8 \
    --training.nonfinite skip)" 0
check "with where it broke" says again \
    "step 8 is not finite, first on rank 0, stage 0: the gradient of output.weight"
check_equal "what a run left out is left out again: 0" "$(again taken 9 --comm.ranks 1)" 0
check "from a checkpoint that was made before" says again "loaded step 5 "
check "with the same bits" says again "step 9: the same bits \\(compared: 4 losses\\)"
check_equal "a step that is not finite ends a run with 78" \
    "$(status_of train broken --debug.nonfinite_at_step 8 --checkpoint.async_mode disabled)" 78
check_equal "it can be made again: 0" "$(again broken 8 --debug.nonfinite_at_step 8)" 0
check "there is nothing to compare it with" says again "nothing is compared: .* of steps 6 to 8"
check_equal "a replay leaves no loss and no attempt" \
    "$(ls "$tmp/again.loss" "$store"/{right,broken}/attempts/* 2>/dev/null | wc -l)" 2
# Two samples of bytes that are nowhere else, in the middle of a text, with a seed by which the
# first of them is read late.
head -c 6000 "$tmp/text.txt" >"$tmp/before.txt"
python3 -c 'import random, sys
random.seed(5)
sys.stdout.buffer.write(bytes(random.choices(range(0xc4, 0xdf), k=220)))' |
    cat "$tmp/before.txt" - >"$tmp/noisy.txt"
head -c 12000 "$tmp/text.txt" | tail -c 6000 >>"$tmp/noisy.txt"
count_tokens() { # NAME
    "$BUILD/tokenizer" tokens --tokenizer "$tmp/tokenizer.model" --out "$tmp/$1.tokens" \
        "$tmp/$1.txt" 2>&1 | sed -nE 's/.*: ([0-9]+) tokens of .*/\1/p'
}
noise=$(($(count_tokens before) / 64 + 1)) # which sample
read -r seed read_at <<<"$(PYTHONPATH=clients/examples python3 - \
    "$noise" $((($(count_tokens noisy) - 1) / 64)) <<'END'
import sys
from sample_order import sample
noise, samples = map(int, sys.argv[1:])
print(*next((seed, draw) for seed in range(10000) for draw in range(78, samples)
            if sample(seed, samples, draw) == noise))
END
)"
noisy=(--training.dataset_path "$tmp/noisy.tokens" --optimizer.lr 1e-2 --debug.seed "$seed")
train noisy "${noisy[@]}"
blamed() { # RANKS: of the step that reads it
    again noisy $((read_at / 6 + 1)) --blame "${noisy[@]}" --comm.ranks "$1"
    sed -nE 's/.* warn replay: //p' "$tmp/again.log" | grep -v "farthest" >"$tmp/blame$1"
}
check_equal "with --blame a step has the same bits: 0" "$(blamed 1)" 0
check "a module is named" says again \
    "farthest out of line: .* of .*, leaf $((read_at % 6)), reaches "
check "the largest loss is that of the leaf that has noise" says again \
    "step $((read_at / 6 + 1)): leaf $((read_at % 6)) has the largest loss: "
check "so is the largest gradient" says again \
    "step $((read_at / 6 + 1)): leaf $((read_at % 6)) has the largest gradient norm: "
check "and its place in the file is named" says again "leaf $((read_at % 6)): sample $read_at of \
the run is tokens $((noise * 64)) to $((noise * 64 + 64)) of noisy"
check_equal "on 4 ranks, too: 0" "$(blamed 4)" 0
check "with the same leaves and samples" cmp "$tmp/blame1" "$tmp/blame4"

# ---- a look at some steps ----
check_equal "debug.stop_after_step ends with 0" "$(status_of train look --debug.stop_after_step 4 \
    --checkpoint.interval 4 --job.dump_folder "$tmp/look" --profiling.enable_profiling \
    --profiling.profile_freq 3 --metrics.jsonl_file "$tmp/look.jsonl")" 0
unsaved() {
    says look "stopped after step 4$" && ! compgen -G "$store/look/step-*" >/dev/null
}
check "behind that step, of which nothing is saved" unsaved
check_equal "each rank has written a trace of each third step, as torchtitan names it" \
    "$(cd "$tmp/look/profile_traces" && echo */*)" \
    "iteration_3/rank0_trace.json iteration_3/rank1_trace.json"
check "after the first a line counts the calls of rank 0" says look \
    "step 1: [0-9]+ calls of rank 0 sent .* dp_shard all_gather [0-9]+ "
check_equal "each of the four has as many in its line of JSON" \
    "$(sed -n 's/.*"calls": {"/{"/p' "$tmp/look.jsonl" | sort | uniq -c | awk '{ print $1 }')" 4

# ---- killed ----
in_background killed --debug.pause_at_step 13
paused killed 13
kill_ours KILL "$pid"
ended
check_equal "killed in step 13, on another world it ends with 0" \
    "$(NCCL_ALGO=Ring status_of train killed --comm.ranks 1 --metrics.log_freq 1 \
        --metrics.jsonl_file "$tmp/killed.jsonl" --metrics.enable_tensorboard \
        --job.dump_folder "$tmp/killed.out")" 0
check "killed: it says what is different there and may change bits" says killed \
    'warn checkpoint: since the checkpoint was made: variables.NCCL_ALGO was nothing, now "Ring"'
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
check_equal "without checkpoints it ends with 0" \
    "$(status_of train unsaved --checkpoint.no_enable --model.vocab_size 1001)" 0
check_equal "it warns once that nothing is saved" \
    "$(grep -c 'warn.*checkpoint.enable is off: nothing is saved' "$tmp/unsaved.log")" 1
check_equal "a run with checkpoints does not" "$(grep -c 'enable is off' "$tmp/right.log")" 0
check_equal "a hint is a warning, once for all ranks" \
    "$(grep -c 'warn train: model.vocab_size = 1001 is no multiple of 8' "$tmp/unsaved.log")" 1
check_equal "a run that has none warns of nothing" \
    "$(grep -c 'is no multiple' "$tmp/right.log")" 0
# So strict a limit makes every gradient zero, and the moments with it.
check_equal "a run whose optimizer stands still ends with 0" "$(status_of train still \
    --training.steps 10 --training.max_norm 1e-60 --optimizer.weight_decay 0)" 0
check "its second save raises an alarm" says still \
    " error checkpoint: step 10: every tensor equals the checkpoint of step 5, attempt 1"
check_equal "a run that trains raises none" \
    "$(grep -c 'every tensor equals' "$tmp/right.log")" 0
lines=$(wc -l <"$tmp/right.loss")
check_equal "a finished run started again ends with 0" "$(status_of train right)" 0
check "it says so" says right "the run is finished: step $steps of $steps is saved"
check_equal "it trains nothing" "$(wc -l <"$tmp/right.loss")" "$lines"
check_equal "another canonical order is refused with 78" \
    "$(status_of train right --training.steps 30 --canonical.micro_batches 4)" 78
check "both numbers are named" says right "micro_batches = 6, this configuration has 4"
# ---- starts that do not save ----
attempts() { find "$store/$1/attempts" -regex '.*/[0-9]+' | wc -l; }
trainer_goes_on() { # WHAT: the run that is held in step 8 was left alone
    check_equal "$1 opens no attempt" "$(attempts busy)" 1
}
in_background busy --debug.pause_at_step 8
paused busy 8
busy=$pid
check_equal "a refused configuration beside a run that trains ends with 78" \
    "$(status_of train busy --canonical.micro_batches 4)" 78
trainer_goes_on "it"
check_equal "a finished run beside it ends with 0" \
    "$(status_of train busy --training.steps 5 --lr_scheduler.total_steps $steps)" 0
trainer_goes_on "it"
check_equal "load_only beside it ends with 0" \
    "$(status_of train busy --checkpoint.load_only --metrics.loss_file "$tmp/busy.only")" 0
trainer_goes_on "it"
check_equal "debug.logits_file beside it ends with 0" \
    "$(status_of train busy --debug.logits_file "$tmp/busy.logits")" 0
check "and writes the logits" test -s "$tmp/busy.logits"
trainer_goes_on "it"
check_equal "a stranger that would train it ends with 78" "$(status_of train busy)" 78
trainer_goes_on "it"
check "and names who trains it, and what to do" says busy \
    "is being trained by user [0-9]+, process $busy .*step 5 .*--checkpoint.take_over"
pid=$busy
kill_ours TERM "$pid"
ended
check "the run that trained saves its last step" \
    "$BUILD/ckpt-cli" verify busy@7-a1 --store "$store"

check_equal "a run that has saved is begun by its launcher: 0" \
    "$(HOLDFAST_SAVED_FILE="$tmp/saved" status_of train seen --training.steps 5)" 0
check_equal "the save is noted for the launcher" "$(cat "$tmp/saved")" "seen 5"
mv "$store/seen" "$tmp/seen.away"
stop_ckptd
start_ckptd
check_equal "with its checkpoints gone it is not begun at step 0 again: 78" \
    "$(HOLDFAST_SAVED_FILE="$tmp/saved" status_of train seen --training.steps 5)" 78
check "and the reason is said" says seen "has saved step 5 .* not begun at step 0 again"

for how in token told; do
    HOLDFAST_LAUNCH_TOKEN=one in_background "$how" --debug.pause_at_step 8
    paused "$how" 8
    case $how in
    token) HOLDFAST_LAUNCH_TOKEN=one check "the same launcher takes over at once" train token ;;
    told) check "so does who is told to (checkpoint.take_over)" \
        train told --checkpoint.take_over ;;
    esac
    kill_ours TERM "$pid"
    ended
    check_equal "who lost the run ends with 78" "$status" 78
done

# ---- a state that is lost ----
check "a run makes its first steps" train lost --training.steps 5
rm -f "$store/lost/step-00000005-a0001/manifest.json"
"$BUILD/ckpt-cli" repair lost@5-a1 --server "$server" >>"$tmp/lost.log" 2>&1
check_equal "from a manifest that was made of the shards it does not go on: 78" \
    "$(status_of train lost)" 78
check "and the reason is said" says lost "the state of step 5 is lost"

# ---- a run without a name ----
grep -v '^run = ' "$tiny" >"$tmp/nameless.toml"
nameless() { # SETTING...: output in $tmp/nameless.log
    "$BUILD/trainer" --job.config_file "$tmp/nameless.toml" --ckptd.address "$server" \
        --metrics.loss_file "$tmp/nameless.loss" --training.steps 5 "$@" >>"$tmp/nameless.log" 2>&1
}
check "a run that was called default" nameless --job.run default
check_equal "is not begun anew under the configuration's name: 78" "$(status_of nameless)" 78
check "and both names are said" says nameless \
    'would be "nameless", .*run "default" has step 5 of this model'
check_equal "another model is: 0" "$(status_of nameless --model.norm_eps 0.001)" 0
check "under the configuration's name" "$BUILD/ckpt-cli" verify nameless@5 --store "$store"

check_equal "load_step goes back to an older step" \
    "$(status_of train right --checkpoint.load_step 5 --comm.ranks 3)" 0
sort -u "$tmp/right.loss" | sort -n >"$tmp/again.sorted"
check "load_step: the steps made again have the same bits" \
    cmp "$tmp/right.sorted" "$tmp/again.sorted"
back_once() { # STEPS: a start of one launcher: back to step 5, without the samples of a step
    HOLDFAST_SAVED_FILE="$tmp/back.saved" status_of train back --training.steps "$1" \
        --lr_scheduler.total_steps $steps --checkpoint.load_step 5 --checkpoint.skip_samples 6
}
next_sample() { # STEP-ATTEMPT
    grep -ohE '"next_sample": *[0-9]+' "$store"/back/step-0000000"$1"/manifest.json |
        grep -oE '[0-9]+'
}
train back --training.steps 9 --lr_scheduler.total_steps $steps
check_equal "it may leave samples out behind that step" "$(back_once 7)" 0
check "which is said" says back "warn.*6 samples from 30 on are left out"
check_equal "the next ones follow" "$(next_sample 7-a0002)" 48
listed() { # STEP-ATTEMPT: after which steps an order began, and with which sample
    "$BUILD/ckpt-cli" show --json --store "$store" "back@$1" | tr -d ' \n' |
        grep -oE '"orders":\[[^]]*\]' | grep -oE '"(step|data.next_sample)":[0-9]+' | tr '\n' ' '
}
check_equal "and listed in the checkpoint" "$(listed 7-a2)" \
    '"step":0 "step":5 "data.next_sample":36 '
check_equal "a later start of that launcher ends with 0" "$(back_once 8)" 0
check "it goes on from what was saved, not from the newest step" says back "loaded step 7 of .* 2 "
check_equal "and leaves nothing out again" "$(next_sample 8-a0003)" 54
train back --training.steps 10 --lr_scheduler.total_steps $steps \
    --checkpoint.exclude_from_loading dataloader
check "data that begin again are said with their step" says back \
    "warn.*samples from 0 on come again from step 9 on: the run has read 54 "
check_equal "and listed" "$(listed 10-a4)" \
    '"step":0 "step":5 "data.next_sample":36 "step":8 "data.next_sample":0 '
check_equal "a step that is not there is refused with 78" \
    "$(status_of train right --checkpoint.load_step 7)" 78
check_equal "a seed checkpoint of a run that has begun is refused with 78" \
    "$(status_of train right --checkpoint.create_seed_checkpoint)" 78
check_equal "seed: step 0 is saved" \
    "$(status_of train seed --checkpoint.create_seed_checkpoint)" 0
check_equal "seed: training goes on from it with 0" "$(status_of train seed --comm.ranks 3)" 0
check "seed: every bit is the undisturbed run's" same seed
check_equal "synchronous saves end with 0" \
    "$(status_of train sync --checkpoint.async_mode disabled \
        --checkpoint.enable_first_step_checkpoint)" 0
check "synchronous saves: every bit is the undisturbed run's" same sync
check_equal "fresh moments are allowed (exclude_from_loading)" "$(status_of train sync \
    --training.steps 22 --lr_scheduler.total_steps 20 \
    --checkpoint.exclude_from_loading optimizer,lr_scheduler)" 0
check "and said" says sync \
    'begins fresh: the moments .*exclude_from_loading., the schedule .checkpoint'
train library --training.steps 16 --lr_scheduler.total_steps $steps
check_equal "with other kernels it goes on" \
    "$(status_of train library --kernels.backend reference --kernels.isa sse2)" 0
check "it says that the bits may differ" says library 'warn.*kernels was ".*its bits may differ'
check "another setting is said" says library "training.steps was 16 .* now it is $steps"

# ---- a seed of its own ----
drawn() { # RUN: what its first start drew
    sed -nE 's/.*debug.seed = -1: ([0-9]+) was drawn$/\1/p' "$tmp/$1.log"
}
short=(--lr_scheduler.total_steps $steps --training.steps)
check_equal "without a seed a run ends with 0" \
    "$(status_of train own --debug.seed -1 "${short[@]}" 5)" 0
check_equal "going on, too" "$(status_of train own --debug.seed -1 "${short[@]}" 8)" 0
check "with the seed that its first start drew" says own "the run has $(drawn own)\$"
train other --debug.seed -1 "${short[@]}" 1
check "which no other run draws" [ "$(drawn other)" != "$(drawn own)" ]
check_equal "a run of that seed ends with 0" \
    "$(status_of train given --debug.seed "$(drawn own)" "${short[@]}" 8)" 0
check "and has the same bits" cmp "$tmp/own.loss" "$tmp/given.loss"

# ---- damage ----
train damaged --training.steps 15 --lr_scheduler.total_steps $steps
stop_ckptd
shard=$(ls "$store"/damaged/step-00000015-*/shard-00001-*)
printf 'x' | dd of="$shard" bs=1 seek=9000 conv=notrunc status=none
start_ckptd
check_equal "with a damaged newest checkpoint it ends with 0" "$(status_of train damaged)" 0
check "it went back to an older one" says damaged "loaded step 10 "
check "it said what was skipped and why" says damaged "step 15 cannot be loaded.*damaged"
check "damaged: every bit is the undisturbed run's" same damaged
stop_ckptd
shard=$(ls "$store"/damaged/step-000000$steps-*/shard-00001-*)
printf 'x' | dd of="$shard" bs=1 seek=9000 conv=notrunc status=none
start_ckptd
: >"$tmp/damaged.log"
check_equal "a finished run whose last checkpoint is damaged is started again: 0" \
    "$(status_of train damaged)" 0
check "it is not said to be finished" eval '! says damaged "is finished"'
check "it went on from the one before" says damaged "loaded step 15 "
check "its last step is saved again" \
    "$BUILD/ckpt-cli" verify "damaged@$steps" --store "$store"
check "finished and damaged: every bit is the undisturbed run's" same damaged

train hopeless --training.steps 10 --lr_scheduler.total_steps $steps
stop_ckptd
for shard in "$store"/hopeless/step-*/shard-00001-*; do
    printf 'x' | dd of="$shard" bs=1 seek=9000 conv=notrunc status=none
done
start_ckptd
check_equal "with every checkpoint damaged it ends with 78" "$(status_of train hopeless)" 78
check "it does not begin anew by itself" says hopeless "none can be loaded"
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
have() { # what the run has in the store, and the losses
    find "$store/newer" -name 'step-*' -o -path '*/attempts/*' | sort
    cat "$tmp/newer.loss"
}
train newer --training.steps 15 --lr_scheduler.total_steps $steps
stop_ckptd
later_version "$store"/newer/step-00000015-*/manifest.json
start_ckptd
have >"$tmp/newer.before"
check_equal "with a newest checkpoint of a later version it ends with 78" \
    "$(status_of train newer)" 78
check "it says which version" says newer "version 9"
check "it does not go back to an older one" eval '! says newer "loaded step"'
check_equal "it takes no attempt, step or loss" "$(have)" "$(cat "$tmp/newer.before")"

# ---- moments of half the size ----
halved=(--optimizer.moments_dtype bfloat16)
attempts() { find "$store/halved" -path '*/attempts/*' | wc -l; }
train whole "${halved[@]}"
train halved "${halved[@]}" --training.steps 10 --lr_scheduler.total_steps $steps
before=$(attempts)
check_equal "moments of another type: it ends with 78" "$(status_of train halved)" 78
check "it says both types" says halved "moments_dtype = bfloat16, this configuration has float32"
check_equal "it takes no attempt" "$(attempts)" "$before"
check_equal "with moments of the run's type, on 3 ranks, it ends with 0" \
    "$(status_of train halved "${halved[@]}" --comm.ranks 3)" 0
check "its moments are rounded as those of the run that was left alone" \
    "$BUILD/ckpt-cli" diff "whole@$steps" "halved@$steps" --store "$store"

# ---- ckptd comes and goes ----
in_background alone --debug.pause_at_step 4
paused alone 4
stop_ckptd KILL
kill_ours USR1 "$pid" # it leaves the pause, saves as its last act, finds no ckptd, and waits for it
wait_for 30 says alone "was not saved"
start_ckptd
ended
check_equal "when ckptd comes back in time the last save succeeds: 75" "$status" 75
check "alone: it went on without ckptd, with a warning" says alone "warn.*step 3 was not saved"
check_equal "alone: started again it ends with 0" "$(status_of train alone)" 0
check "alone: every bit is the undisturbed run's" same alone
# It is killed while a long run saves every few steps.
shot() { # RUN [SETTING...]
    in_background "$1" --training.steps 600 --checkpoint.interval 20 --metrics.log_freq 100 \
        --checkpoint.when_busy wait "${@:2}"
    wait_for 30 says "$1" "is durable"
    stop_ckptd KILL
    wait_for 30 says "$1" "warn.*was not saved"
}
shot goes_on
start_ckptd
ended
check_equal "with ckptd killed and back, training goes on and ends with 0" "$status" 0
check_equal "goes_on: it made every step once" "$(wc -l <"$tmp/goes_on.loss")" 600
check "goes_on: its last checkpoint is saved" \
    "$BUILD/ckpt-cli" show goes_on@600 --store "$store"
shot stops --checkpoint.required --checkpoint.final_seconds 2
ended
check_equal "with checkpoint.required it ends with 75" "$status" 75
check_equal "stops: one line says why" "$(grep -c ' error ' "$tmp/stops.log")" 1
in_background nobody
sleep 0.5 # of the 10 s that it waits for ckptd
kill_ours TERM "$pid"
check "a signal ends the wait for ckptd at once" wait_gone "$pid" 1
ended
check_equal "with 75" "$status" 75
check_equal "without any ckptd it ends with 75" "$(status_of train nobody)" 75
check_equal "an estimate needs neither ckptd nor ranks" \
    "$("$BUILD/trainer" --job.config_file "$tiny" --estimate 2>/dev/null | grep -c 'per rank')" 1
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
check_equal "a mesh of 4 ranks is suggested, and trains" \
    "$(status_of train suggested "${suggested[@]}" --comm.ranks 4 --training.steps 1 \
        --checkpoint.no_enable)" 0
"$BUILD/trainer" --job.config_file "$tiny" --print-program --comm.ranks 2 \
    --parallelism.pipeline_parallel_degree 2 --canonical.micro_batches 3 \
    >"$tmp/listed.txt" 2>/dev/null
check_equal "the programs of two stages are listed, with as many receives as sends" \
    "$(awk '/of the pipeline/ { ranks++ } $2 == "send" { sends++ } $2 == "receive" { receives++ }
        END { print ranks, sends, sends - receives }' "$tmp/listed.txt")" "2 3 0"
