#!/usr/bin/env bash
# benches - the programs behind `make bench` that make the daemon's structures by hand still do.
#
# Goal: a change of these structures that breaks a bench is found here, not when somebody measures.
# Method: each on a world that takes milliseconds; what it answers, and what it left. No figures.
. "$(dirname "$0")/lib.sh"
plan 3

answers() { # WORD...: tmp/out has one line for each word, with a number of that name
    local line
    while read -r line; do
        [ $# -gt 0 ] && grep -q "\"$1\": [0-9]" <<<"$line" || return 1
        shift
    done <"$tmp/out"
    [ $# = 0 ]
}
printf 'commit\ncommit\n' | "$BUILD/bench/scale_commit" "$tmp/commit" 2 2 2 >"$tmp/out" 2>"$tmp/log"
check "commits of simulated ranks" answers cpu_seconds bytes
printf 'save 2 2 2\nrank 1 2 2 4\n' | "$BUILD/bench/scale_plan" >"$tmp/out" 2>"$tmp/log"
check "plans of thousands of ranks" answers parse_seconds boxes_max
"$BUILD/bench/scale_store" "$tmp/store" 160 >"$tmp/log" 2>&1
check_equal "a store of many checkpoints" \
    "$("$BUILD/ckpt-cli" list --store "$tmp/store" --json | grep -o '"step"' | wc -l)" 160
