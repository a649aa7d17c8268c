#!/usr/bin/env bash
# benches - the programs of `make bench` that build other modules' structures by hand still work.
#
# Goal: a change of these structures that breaks a bench is found here, not at the next measurement.
# Method: each runs for milliseconds; its answers and files are checked, no figures.
. "$(dirname "$0")/lib.sh"
plan 7

answers() { # WORD...: tmp/out has one line for each word, with a number of that name
    local line
    while read -r line; do
        [ $# -gt 0 ] && grep -q "\"$1\": [0-9]" <<<"$line" || return 1
        shift
    done <"$tmp/out"
    [ $# = 0 ]
}
printf 'commit\ncommit\nshards\n' |
    "$BUILD/bench/scale_commit" "$tmp/commit" 2 2 2 >"$tmp/out" 2>"$tmp/log"
check "commits of simulated ranks" answers cpu_seconds bytes ranks
quick=("$BUILD/ckpt-cli" verify scale --quick --store "$tmp/commit")
"${quick[@]}" >"$tmp/out"
check_equal "the headers and tables of 4.9 TB are the ones that verify --quick expects" $? 0
# Headers of many pages, alike but for a number and the hash: only their ends differ.
cd "$tmp"/commit/scale/step-*2-a0001 || exit 1
mv shard-00006-of-00008.safetensors other
mv shard-00007-of-00008.safetensors shard-00006-of-00008.safetensors
mv other shard-00007-of-00008.safetensors
cd - >/dev/null || exit 1
check_equal "two exchanged shards of one size are both named" \
    "$("${quick[@]}" | grep -c '^DAMAGED .*the header does not agree with the manifest')" 2
echo commit | "$BUILD/bench/scale_nodes" 2 4 2 >"$tmp/out" 2>"$tmp/log"
check "a commit of simulated nodes" answers cpu_seconds
printf 'save 2 2 2\nrank 1 2 2 4\n' | "$BUILD/bench/scale_plan" >"$tmp/out" 2>"$tmp/log"
check "plans of thousands of ranks" answers parse_seconds boxes_max
"$BUILD/bench/scale_store" "$tmp/store" 160 >"$tmp/log" 2>&1
check_equal "a store of many checkpoints" \
    "$("$BUILD/ckpt-cli" list --store "$tmp/store" --json | grep -o '"step"' | wc -l)" 160
options=(--model.flavor tiny --model.vocab_size 300 --training.seq_len 32 --training.dataset_path x
    --training.local_batch_size 1 --canonical.micro_batches 4 --comm.ranks 2 --kernels.threads 1)
echo step | "$BUILD/bench/steps" "${options[@]}" -- "${options[@]}" --training.reduction fast \
    >"$tmp/out" 2>"$tmp/log"
some='[0-9.]*[1-9][0-9]*' # more than zero
spent="\\{\"cpu\": $some, \"wall\": $some, \"compute\": $some, \"leaves\": \\[$some, $some\\]\\}"
check "steps of two orders in turns, with the seconds of their leaves" \
    grep -qE "^\\{\"a\": $spent, \"b\": $spent\\}\$" "$tmp/out"
