#!/usr/bin/env bash
# Goal: for any wrong input of the user the trainer prints one line with the error and the remedy,
# and ends with 78 ("do not retry"). It harms no earlier checkpoint. Method: one good run makes
# checkpoints; then one case after the other with one thing wrong. Each must end with 78 and print
# exactly one error line, which matches the case's pattern. At the end the checkpoints are those
# from before, verify, and the good run is found finished. The same for a ckptd with a store that is
# not safe with it.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
plan 33
make_tiny
start_ckptd

train() { "$BUILD/trainer" --job.config_file "$tiny" --ckptd.address "$server" "$@"; }
catalog() { "$BUILD/ckpt-cli" list --store "$store"; }

# Not async: on so fast a run a save may be skipped because two are being written.
check "a good run ends with 0" train --checkpoint.async_mode disabled
catalog >"$tmp/before.txt"
check_equal "it left checkpoints" "$(grep -c tiny "$tmp/before.txt")" 4

refused() { # NAME PATTERN TRAINER-OPTION...: the line matches, and ends with the remedy
    ends_with 78 "$@"
}
ends_with() { # WANTED NAME PATTERN TRAINER-OPTION...
    local wanted=$1 name=$2 pattern=$3 status=0
    shift 3
    train --job.run other "$@" >"$tmp/out.txt" 2>&1 || status=$?
    grep -E ' error [a-z]+: ' "$tmp/out.txt" >"$tmp/errors.txt"
    if [ "$status" = "$wanted" ] && [ "$(wc -l <"$tmp/errors.txt")" = 1 ] &&
        grep -E ' \(.*\)$' "$tmp/errors.txt" | grep -qE "$pattern"; then
        ok "$name"
    else
        not_ok "$name (exit $status, not $wanted, or not one line with /$pattern/ and a hint)" \
            "$tmp/out.txt"
    fi
}

refused "an unknown flavor lists the known ones" 'huge.*debugmodel' --model.flavor huge
refused "a world size that does not fit the mesh is refused with the product" \
    'dp_shard 2 x cp 1 x tp 1 = 2 ranks, but 3 were started' \
    --comm.ranks 3 --parallelism.data_parallel_shard_degree 2
refused "a missing tokens file is named" "$tmp/no.tokens" --training.dataset_path "$tmp/no.tokens"
refused "a missing tokenizer is named" "$tmp/no.model" --model.hf_assets_path "$tmp/no.model"
refused "a file that is no tokens file is named" "$tmp/text.txt" \
    --training.dataset_path "$tmp/text.txt"
refused "a loss file in no folder is named" "$tmp/no/loss" --metrics.loss_file "$tmp/no/loss"
refused "a configuration file to save in no folder is named" "$tmp/no/such" \
    --job.save_config_file c.json --job.dump_folder "$tmp/no/such"
check_exit 78 "the comparison of recorders needs their folder" "$BUILD/trainer" --flight
check_exit 78 "a tokenizer file in no folder is refused" \
    "$BUILD/tokenizer" train --vocab 300 --out "$tmp/no/tokenizer.model" "$tmp/text.txt"
"$BUILD/tokenizer" train --vocab 300 --out "$tmp/other.model" "$tmp/text.txt" >/dev/null
refused "a tokenizer that did not make the tokens is named" "another tokenizer than $tmp/other" \
    --model.hf_assets_path "$tmp/other.model"
refused "a loss that is no number ends the run before anything of it is saved" \
    'diverged in step[^-]* nan[^-]*lower optimizer.lr' --lr_scheduler.warmup_steps 0 \
    --optimizer.lr 1000 --optimizer.weight_decay 1000
refused "a checkpoint of another model is refused, not overwritten" \
    "the checkpoint's model has dim = 64, this configuration 256 .give the model settings" \
    --job.run tiny --model.flavor debugmodel --training.steps 40

cut -c 1-400 "$tmp/text.txt" | head -c 30000 >"$tmp/short.txt"
"$BUILD/tokenizer" tokens --tokenizer "$tmp/other.model" --out "$tmp/other.tokens" \
    "$tmp/short.txt" >/dev/null
refused "a checkpoint of another vocabulary than the tokens file's is refused by its name" \
    "the checkpoint's model has a vocabulary of .*, the tokens of $tmp/other.tokens have 30" \
    --job.run tiny --training.dataset_path "$tmp/other.tokens" --training.steps 40 \
    --model.hf_assets_path "$tmp/other.model"
refused "tokens of a larger vocabulary than the model's are refused" \
    "have a vocabulary of .*, the model 64 .*model.vocab_size" --model.vocab_size 64
refused "a plan that the machine has no memory for is refused with its largest parts" \
    'ranks on this machine need .* GiB are available; the largest parts .*parameters .*smaller' \
    --model.flavor 405B
under_a_second() { # CPU time: the wall clock depends on other processes
    local TIMEFORMAT='%U %S'
    { time train --job.run other --model.flavor 405B >/dev/null 2>&1; } 2>"$tmp/seconds.txt"
    awk '{ exit !($1 + $2 < 1) }' "$tmp/seconds.txt"
}
check "that is known within a second" under_a_second
check "and it is said that torchtitan's flavor of that name has another rotary embedding" \
    grep -q "set model.flavor = llama3.1-405B" "$tmp/out.txt"
refused "another order of sums than the run was created with is refused" 'micro_batches' \
    --job.run tiny --canonical.micro_batches 3 --training.steps 40
ends_with 75 "no ckptd on the address may be there later: run again" "$tmp/nobody" \
    --ckptd.address "unix:$tmp/nobody"

mkdir -m 777 "$tmp/open"
check_exit 78 "a ckptd does not serve a store that everybody may change" \
    "$BUILD/ckptd" --listen "unix:$tmp/x" --store "$tmp/open" \
    --memory.pool_bytes 64MiB --memory.segment_bytes 1MiB
check_equal "and says which, and what to do" \
    "$(grep -c "$tmp/open of user.*0777 (chmod go-w" "$tmp/check.log")" 1

check_exit 78 "nor a store that injects faults, which is for tests" \
    "$BUILD/ckptd" --listen "unix:$tmp/x" --store "fault:seed=1:local:$tmp/good"
check_equal "and says so" "$(grep -c 'this ckptd cannot open a "fault:" store' "$tmp/check.log")" 1

listens_in() { # DIRECTORY NAME PATTERN
    check_exit 78 "$2" "$BUILD/ckptd" --listen "unix:$1/socket" --store "$tmp/good" \
        --memory.pool_bytes 64MiB --memory.segment_bytes 1MiB
    check_equal "and says which, and what to do" "$(grep -c "$3" "$tmp/check.log")" 1
}
listens_in "$tmp/open" "nor does it listen where everybody could put another socket" \
    "$tmp/open can be changed by other users: its mode is 0777 (chmod go-w"
if [ "$(id -u)" = 0 ]; then
    mkdir -m 755 "$tmp/theirs" && chown 65534 "$tmp/theirs"
    listens_in "$tmp/theirs" "nor in another user's directory" "$tmp/theirs belongs to user 65534"
else
    ok "nor in another user's directory # SKIP not root"
    ok "and says which, and what to do # SKIP not root"
fi

catalog >"$tmp/after.txt"
check "the checkpoints are those from before" cmp "$tmp/before.txt" "$tmp/after.txt"
verified() {
    local step
    for step in 5 10 15 20; do
        "$BUILD/ckpt-cli" verify --store "$store" "tiny@$step" || return
    done
}
check "they verify" verified
check "the good run goes on with 0" train
mv "$tmp/check.log" "$tmp/finished.log"
check "it is found finished" grep -q "the run is finished" "$tmp/finished.log"
