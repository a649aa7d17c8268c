#!/usr/bin/env bash
# Goal: the trainer computes a Llama and AdamW by their definitions. Method: a seed checkpoint fixes
# the initial weights; its export and the tokens file go to an independent reference in NumPy
# (lib_reference.py, float64), which trains 20 steps from them; so does the trainer, in fp32. Losses
# and gradient norms are compared step by step, for one rank and for three. Then the trained weights
# are exported and a forward pass is compared logit by logit.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
python=${PYTHON:-python3}
"$python" -c 'import numpy' 2>/dev/null ||
    skip_all "numpy is missing in $python: make deps installs it"
reference=tests/integration/lib_reference.py
plan 13
make_tiny
start_ckptd

train() { "$BUILD/trainer" --job.config_file "$tiny" --ckptd.address "$server" \
    --job.dump_folder "$tmp" "$@"; }
export_weights() { # RUN@STEP FILE
    "$BUILD/ckpt-cli" export "$1" --store "$store" --weights-only \
        --format safetensors --output "$2"
}
# The numbers of `lib_reference.py ... --compare`, each below its bound.
compare() { # NAME STEPS-OR-EMPTY BOUND COMMAND...
    local name=$1 steps=$2 bound=$3 got
    shift 3
    got=$("$python" "$reference" "$@" 2>&1)
    note "$name: $got"
    if awk -v steps="$steps" -v bound="$bound" '
        NF == 3 && $1 == steps && $2 <= bound && $3 <= bound { fine = 1 }
        NF == 2 && steps == "" && $2 <= bound { fine = 1 }
        END { exit !(fine && NR == 1) }' <<<"$got"; then
        ok "$name"
    else
        not_ok "$name: $got"
    fi
}

for ranks in 1 3; do
    run=numerics$ranks
    loss=$tmp/$run.loss
    settings=(--job.run "$run" --comm.ranks "$ranks" --metrics.loss_file "$loss"
        --job.save_config_file "$run.json" --debug.seed 11)
    check "$ranks ranks: a seed checkpoint is saved" train "${settings[@]}" \
        --checkpoint.create_seed_checkpoint
    check "$ranks ranks: its weights are exported" export_weights "$run@0" "$tmp/$run.seed"
    check "$ranks ranks: 20 steps are trained" train "${settings[@]}"
    compare "$ranks ranks: loss and gradient norm of 20 steps are the reference's to 1e-4" 20 1e-4 \
        train --weights "$tmp/$run.seed" --config "$tmp/$run.json" --tokens "$tmp/text.tokens" \
        --compare "$loss"
done
check "the initial weights do not depend on the number of ranks" \
    "$BUILD/ckpt-cli" diff numerics1@0 numerics3@0 --store "$store"

# Weights after 20 gentle steps hardly attend to anything: another base of RoPE would pass. After 60
# hot ones it shows twentyfold.
settings=(--job.run hot --comm.ranks 3 --job.save_config_file hot.json --debug.seed 11
    --training.steps 60 --optimizer.lr 3e-2)
check "a run with a high rate is trained" train "${settings[@]}"
check "the trained weights are exported" export_weights hot@60 "$tmp/last"
check "the trainer writes the logits of a sample" train "${settings[@]}" \
    --debug.logits_file "$tmp/logits"
compare "a forward pass on the export gives the trainer's logits to 1e-4" "" 1e-4 \
    logits --weights "$tmp/last" --config "$tmp/hot.json" --tokens "$tmp/text.tokens" \
    --compare "$tmp/logits"
