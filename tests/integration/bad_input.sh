#!/usr/bin/env bash
# Goal: whatever is wrong with what the user gives, the trainer says in one line what is wrong and
# what to do, ends with 78 ("do not retry"), and harms nothing that was saved before. Method: one
# good run makes checkpoints; then one case after the other with one thing wrong. Each must end
# with 78 and print exactly one error line, which matches the case's pattern. At the end the
# checkpoints are those from before, verify, and the good run is found finished.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
plan 17
make_tiny
start_ckptd

train() { timeout 60 "$BUILD/trainer" --job.config_file "$tiny" --ckptd.address "$server" "$@"; }
catalog() { "$BUILD/ckpt-cli" list --store "$store"; }

check "a good run ends with 0" train
catalog >"$tmp/before.txt"
check_equal "it left checkpoints" "$(grep -c tiny "$tmp/before.txt")" 4

refused() { # NAME PATTERN TRAINER-OPTION...
    local name=$1 pattern=$2 status=0
    shift 2
    train --job.run other "$@" >"$tmp/out.txt" 2>&1 || status=$?
    local errors
    errors=$(grep -ciE '\berror\b' "$tmp/out.txt")
    if [ "$status" = 78 ] && [ "$errors" = 1 ] && grep -qE "$pattern" "$tmp/out.txt"; then
        ok "$name"
    else
        not_ok "$name (exit $status, $errors error lines; wanted 78, one line with /$pattern/)" \
            "$tmp/out.txt"
    fi
}

refused "an unknown key is named, with the nearest known one" \
    'training\.stepz.*training\.steps' --training.stepz 5
refused "a value out of range names key, value and range" 'training\.steps.*-3' --training.steps -3
refused "a value of the wrong type names key and value" 'optimizer\.lr.*fast' --optimizer.lr fast
refused "a choice that does not exist lists those that do" \
    'checkpoint\.async_mode.*sometimes.*disabled' --checkpoint.async_mode sometimes
refused "an unknown flavor lists the known ones" 'huge.*debugmodel' --model.flavor huge
refused "a world size that does not fit the mesh is refused with the product" \
    'data_parallel.*2.*3|3.*2' --comm.ranks 3 --parallelism.data_parallel_shard_degree 2
refused "more data ranks than micro-batches are refused" 'micro_batches|global_batch' --comm.ranks 7
refused "a missing tokens file is named" "$tmp/no.tokens" --training.dataset_path "$tmp/no.tokens"
refused "a missing tokenizer is named" "$tmp/no.model" --model.hf_assets_path "$tmp/no.model"
refused "a file that is no tokens file is named" "$tmp/text.txt" \
    --training.dataset_path "$tmp/text.txt"
refused "a missing configuration file is named" "$tmp/no.toml" --job.config_file "$tmp/no.toml"
printf '[training]\nsteps = = 5\n' >"$tmp/broken.toml"
refused "a syntax error in the file is named with its line" 'broken\.toml:2' \
    --job.config_file "$tmp/broken.toml"
refused "a checkpoint of another model is refused, not overwritten" \
    'tiny.*(shape|model|tensor)|(shape|model|tensor).*tiny' \
    --job.run tiny --model.flavor debugmodel --training.steps 40

catalog >"$tmp/after.txt"
check "the checkpoints are those from before" cmp "$tmp/before.txt" "$tmp/after.txt"
check "the good run is still found finished" train
