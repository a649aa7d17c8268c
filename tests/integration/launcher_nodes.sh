#!/usr/bin/env bash
# Goal: with --emulate-nodes one host acts as several: a run whose ranks are on two nodes saves at
# both and has the bits of threads. Each rank has its node's name, ckptd, place, CPUs and GPUs.
# Method: the real programs, two nodes with two ranks each; a script in front of the trainer records
# each rank's environment. The test reads the ranks' output and the stores. (Several ckptd: nodes.py
# and similar scripts.)
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing"
plan 12
make_tiny
mkdir "$tmp/bin"
ln -s "$(realpath "$BUILD")/ckptd" "$(realpath "$BUILD")/ckpt-cli" "$tmp/bin"
cat >"$tmp/bin/trainer" <<END
#!/bin/sh
echo "\$OMPI_COMM_WORLD_RANK \$HOLDFAST_HOST \$OMPI_COMM_WORLD_LOCAL_RANK \$CUDA_VISIBLE_DEVICES" \
    >>"$tmp/places"
taskset -cp \$\$ | sed "s/.*:/\$HOLDFAST_HOST/" >>"$tmp/cpus"
exec "$(realpath "$BUILD")/trainer" "\$@"
END
chmod +x "$tmp/bin/trainer"
export HOLDFAST_BIN=$tmp/bin CUDA_VISIBLE_DEVICES=4,5,6,7
printf '[memory]\npool_bytes = "64MiB"\nsegment_bytes = "4MiB"\n[nodes]\nreplicas = 1\n' \
    >"$tmp/ckptd.conf"

shape=2x2
nodes() { # RUN [TRAINER-OPTION...]
    deploy/launch --config "$tiny" --emulate-nodes "$shape" --store "$tmp/stores" --dir "$tmp/dir" \
        --ckptd-config "$tmp/ckptd.conf" -- --job.run "$1" --training.steps 6 \
        --checkpoint.interval 3 --metrics.loss_file "$tmp/$1.loss" "${@:2}" >"$tmp/$1.log" 2>&1
}
check "a run on two nodes ends with 0" nodes played
"$BUILD/trainer" --job.config_file "$tiny" --comm.ranks 4 --checkpoint.no_enable \
    --training.steps 6 --metrics.loss_file "$tmp/threads.loss" >"$tmp/threads.log" 2>&1
check "it has the bits of threads" cmp "$tmp/played.loss" "$tmp/threads.loss"
check "what ranks say has the names of their nodes" says played "Z node-0:0 info train: step: +1 "
check_equal "each rank has its place on its node, and that one's GPUs" \
    "$(sort "$tmp/places" | paste -sd';')" \
    "0 node-0 0 4,5;1 node-0 1 4,5;2 node-1 0 6,7;3 node-1 1 6,7"
apart() { # one line for each node: all its ranks have the same CPUs, and the other none of them
    [ "$(sort -u "$tmp/cpus" | wc -l)" = 2 ] &&
        [ "$(cut -d' ' -f2 "$tmp/cpus" | sort -u | wc -l)" = 2 ]
}
[ "$(nproc)" -ge 2 ] || apart() { :; } # they share it
check "each node has CPUs of its own" apart
check_equal "the second node's store has its ranks' shards" \
    "$(cd "$tmp/stores/node-1/played" && echo step-00000006-a0001/shard-*-of-*)" \
    "$(printf 'step-00000006-a0001/shard-0000%d-of-00004.safetensors\n' 3 4 | paste -sd' ')"
check "each node's ckptd has a log of its own" \
    grep -q "step 6, attempt 1 committed" "$tmp/dir/node-0/ckptd.log"
check "the checkpoint is whole" "$BUILD/ckpt-cli" verify --store "$tmp/stores/node-0" played@6
check_equal "nothing that it started is left" "$(pgrep -f "$tmp/dir" | wc -l)" 0
check "a second start goes on from there, with the same certificates" \
    nodes played --training.steps 8
check "with the step that both nodes have" says played "loaded step 6 "
shape=1x2
check "one node is played, too" nodes alone
