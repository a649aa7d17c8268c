#!/usr/bin/env bash
# Goal: a step of poisoned samples is out of line. It is logged, skipped or taken back, as
# training.outlying says. A run that is killed around it, and continues on other meshes, has the
# bits of an undisturbed one. Method: a tiny Llama learns one paragraph by heart, with a stretch of
# noise in its middle; seeds and text are fixed, so the same step draws it always. Runs with and
# without kills are compared by their losses, norms and last checkpoints.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

steps=60
plan 18
make_tokens() { # lib_tiny's, of text that can be learned by heart
    python3 - >"$tmp/text.txt" <<'END'
import random
paragraph = ("Every checkpoint of a run is a folder whose manifest is written last. "
             "A start loads the newest one that is whole, and goes on with the same bits.\n")
draw = random.Random(7)
noise = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz0123456789 ") for _ in range(60))
print(paragraph * 50 + noise + "\n" + paragraph * 550, end="")
END
    "$BUILD/tokenizer" train --vocab 300 --out "$tmp/tokenizer.model" "$tmp/text.txt" &&
        "$BUILD/tokenizer" tokens --tokenizer "$tmp/tokenizer.model" --out "$tmp/text.tokens" \
            "$tmp/text.txt"
}
make_tiny
start_ckptd
rule=(--training.steps "$steps" --optimizer.lr 5e-3 --training.outlying_window 16)
train() { # RUN POLICY [SETTING...]: output in $tmp/RUN.log
    "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" --ckptd.address "$server" \
        --metrics.loss_file "$tmp/$1.loss" --metrics.jsonl_file "$tmp/$1.jsonl" --comm.ranks 2 \
        "${rule[@]}" --training.outlying "${@:2}" >>"$tmp/$1.log" 2>&1
}
held_in() { # RUN STEP POLICY [SETTING...]: lib_tiny's held, by the rule
    held "$1" "$2" "${rule[@]}" --training.outlying "${@:3}"
}
same() { # RUN RUN: losses, of which steps made twice must be equal, and the last checkpoint
    local run
    for run in "$@"; do sort -u "$tmp/$run.loss" | sort -n >"$tmp/$run.sorted"; done
    cmp "$tmp/$1.sorted" "$tmp/$2.sorted" &&
        "$BUILD/ckpt-cli" diff "$1@$steps" "$2@$steps" --store "$store"
}
state() { # RUN
    "$BUILD/ckpt-cli" show --json --store "$store" "$1@$steps" | tr -d ' \n'
}

check "with outlying = warn a run ends with 0" train warned warn
out=$(sed -nE 's/.*"step": ([0-9]+), .*"outlying": .*/\1/p' "$tmp/warned.jsonl" | head -n 1)
[ "${out:-0}" -gt 20 ] || give_up "no step is out of line behind step 20" "$tmp/warned.log"
first=$(((out - 1) * 6))
check "the step of the noise is said, with how far it is from the others" says warned \
    "warn train: step $out is an outlier: its (loss|gradient norm) .* deviations above the median"
check_exit 1 "it updates the weights: the run is not one that leaves it out" eval \
    'train skipped skip && same warned skipped'
check "with skip its update is left out" says skipped \
    "the update of step $out is skipped \(1 in a row, 1 of this start\): its (loss|gradient norm) "
check "its samples count as read, and it is in the lines of JSON" grep -q \
    "\"step\": $out, .*\"first_sample\": $first, " "$tmp/skipped.jsonl"
check "as a skipped step, too" grep -qE \
    "\"step\": $out, .*\"kind\": \"outlying\", \"policy\": \"skip\", .*\"skipped\": true" \
    "$tmp/skipped.jsonl"
check "which have the numbers" grep -qE \
    "\"step\": $out, .*\"outlying\": .*\"value\": .*\"window\": 16, \"policy\": \"skip\"" \
    "$tmp/skipped.jsonl"
check "a checkpoint has it" grep -qE "\"outlying\":\{.*\"skipped\":\[$out\b" <(state skipped)
check "with a note in the lineage that older trainers refuse" \
    grep -q '"training.outlying":true' <(state skipped)
held_in killed "$out" skip --comm.ranks 4 --parallelism.pipeline_parallel_degree 2
end_by KILL
held_in killed $((out + 3)) skip --comm.ranks 1
end_by KILL
check_exit 0 "killed in it and behind it, on other meshes, a run ends with 0" \
    train killed skip --comm.ranks 3
check "every bit is that of the run that was left alone" same skipped killed

# ---- taken back ----
check_exit 0 "with roll_back a run ends with 0" train taken roll_back --training.roll_back_times 9
check "the step is taken back, with its samples" says taken \
    "step $out is rolled back \(1 of 9 times\), .* without samples $first to $((first + 5)): its "
train without off --training.steps $((out - 1)) --lr_scheduler.total_steps "$steps"
check_exit 0 "a run that never had the samples ends with 0" train without off \
    --checkpoint.load_step $((out - 1)) --checkpoint.skip_samples 6
check "every bit is that of the run that never had them" same taken without
check "made again by a replay it has the samples and the numbers that it had at first" eval \
    'train taken roll_back --replay $out && says taken "step $out was rolled back and made again \
without samples $first to $((first + 5)): .*; its (loss|gradient norm) .* deviations" \
"losses and those of the undone step"'
held_in back "$out" roll_back --training.roll_back_times 9 --comm.ranks 3
end_by KILL
held_in back $((out + 2)) roll_back --training.roll_back_times 9
end_by KILL
check_exit 0 "killed around it, on other meshes, a run ends with 0" \
    train back roll_back --training.roll_back_times 9 --comm.ranks 4
check "every bit is that of the run that was left alone" same taken back
