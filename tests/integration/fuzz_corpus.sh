#!/usr/bin/env bash
# fuzz_corpus - the inputs in tests/fuzz/corpus, and damaged forms of them, through every parser.
#
# Goal: no input from a disk, a socket or a user makes a parser crash or read outside of its bytes;
# former failures stay fixed. Method: each fuzz target, linked with replay.c, over its corpus; under
# `make check` with sanitizers.
set -u
build=${BUILD:-build}
cd "$(dirname "$0")/../fuzz" || exit 1
number=0
for source in *.c; do
    target=${source%.c}
    [ "$target" = replay ] && continue
    number=$((number + 1))
    files=(corpus/"$target"/*)
    if [ -e "${files[0]}" ] && "$build/fuzz/$target" "${files[@]}" >"$TMPDIR/$target" 2>&1; then
        echo "ok $number - $target: ${#files[@]} inputs"
    else
        echo "not ok $number - $target: ${#files[@]} inputs"
        tail -n 40 "$TMPDIR/$target" | sed 's/^/# /'
    fi
done
echo "1..$number"
