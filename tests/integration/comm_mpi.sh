#!/usr/bin/env bash
# Goal: the collectives of the mpi back-end move the right bytes, add right, split right, and take
# offsets beyond 2 GiB. They progress while a rank computes, and change no bit. A rank that dies
# ends the others. A slow rank is named, also if steps are quick. Method: the rounds of
# tests/unit/trainer_comm.c, which check every received byte, under mpirun with several numbers of
# ranks. A step in which a call of one rank fails (trainer_execute.c); FSDP on two ranks, whose
# drawn step shows the calls of the flight recorders beside the ranks' computation. Then a paused
# rank of a run is killed.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing: make deps installs it"
for test in trainer_comm trainer_execute; do
    [ -x "$BUILD/tests/$test" ] || skip_all "tests/$test is not built"
done
plan 19

for ranks in 1 2 3 5; do
    check "$ranks ranks: every collective is right" \
        "${mpi[@]}" -n $ranks "$BUILD/tests/trainer_comm" --mpi
done

one_fails() {
    timeout -k 1 60 "${mpi[@]}" -n 4 "$BUILD/tests/trainer_execute" --mpi >"$tmp/fails.log" 2>&1
}
start=$SECONDS
check_exit 75 "a rank that fails in one operation of a step ends the job" one_fails
check "at once, with its reason" \
    eval '((SECONDS - start < 10)) && says fails "rank 1: made to fail"'

make_tiny
axis=(--parallelism.data_parallel_shard_degree 2)
sharded() { # NAME BACKEND [mpirun OPTION...]; axis: the two ranks'
    local launch=()
    [ "$2" = local ] || launch=("${mpi[@]}" -n 2 "${@:3}")
    "${launch[@]}" "$BUILD/trainer" --job.config_file "$tiny" --comm.backend "$2" --comm.ranks 2 \
        --checkpoint.no_enable "${axis[@]}" --training.steps 3 \
        --training.seq_len 256 --metrics.loss_file "$tmp/$1.loss" --timeline "$tmp/$1.json" \
        >"$tmp/$1.log" 2>&1
}
behind() { # NAME: calls of other lanes in whose time a rank began to compute a block
    python3 - "$tmp/$1.json" <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
row = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
spans = [(e["pid"], row[e["pid"], e["tid"]], e) for e in events if e["ph"] == "X"]
begun = [(r, e["ts"]) for r, lane, e in spans if e["name"] in ("forward", "backward")]
calls = [(r, e) for r, lane, e in spans if lane in ("gather calls", "reduce calls")]
print(sum(any(r == of and e["ts"] < at < e["ts"] + e["dur"] for r, at in begun)
          for of, e in calls))
END
}
check "FSDP on two threads" sharded threads local
check "FSDP on two processes" sharded processes mpi
check "has the same bits" cmp "$tmp/threads.loss" "$tmp/processes.loss"
check "each line says which rank's it is" says processes \
    "Z $(hostname | cut -d. -f1):0 info train: step: +1 "
check "and calls under way while blocks are computed" [ "$(behind processes)" -gt 0 ]
one_thread() {
    sharded alone mpi -x LD_PRELOAD="$BUILD/shims/mpi_one_thread.so" &&
        cmp "$tmp/threads.loss" "$tmp/alone.loss" && [ "$(behind alone)" = 0 ]
}
check "where MPI lets one thread call, bits are the same and nothing goes on beside" one_thread
check_equal "which is said once" \
    "$(grep -c 'MPI allows calls from one thread only' "$tmp/alone.log")" 1
axis=(--parallelism.context_parallel_degree 2
    --parallelism.context_parallel_rotate_method alltoall)
ring() {
    sharded around local && sharded passed mpi && cmp "$tmp/around.loss" "$tmp/passed.loss" &&
        sharded in_turn mpi -x LD_PRELOAD="$BUILD/shims/mpi_one_thread.so" &&
        cmp "$tmp/around.loss" "$tmp/in_turn.loss"
}
check "a ring of two processes has the bits of threads, on a lane and where none may be" ring

quick=("$BUILD/trainer" --job.config_file "$tiny" --comm.backend mpi --checkpoint.no_enable
    --training.seq_len 16 --training.steps 1000000 --metrics.log_freq 10
    --metrics.straggler_percent 5 --metrics.loss_file "$tmp/quick.loss")
"${mpi[@]}" -n 2 "${quick[@]}" : -n 1 "${quick[@]}" --kernels.backend reference \
    >"$tmp/quick.log" 2>&1 &
job=$!
started_pids+=("$job")
check "a rank with slow kernels is named a straggler, though steps are quick" \
    wait_for 60 says quick "rank 2 on .* is a straggler"
kill_ours TERM "$job"
wait_gone "$job" 30

"${mpi[@]}" -n 3 "$BUILD/trainer" --job.config_file "$tiny" --comm.backend mpi \
    --checkpoint.no_enable --debug.pause_at_step 3 --comm.save_traces_folder "$tmp/flight" \
    >"$tmp/killed.log" 2>&1 &
job=$!
started_pids+=("$job")
check "a run pauses in mid-step" wait_for 30 grep -q "pauses within step 3" "$tmp/killed.log"
paused=$(sed -nE 's/.*:([0-9]+) info train: process [0-9]+ pauses.*/\1/p' "$tmp/killed.log")
kill -KILL "$(sed -nE 's/.*process ([0-9]+) pauses.*/\1/p' "$tmp/killed.log")"
check "a rank that is killed ends the job" wait_gone "$job" 30
none_left() { ! pgrep -f "job.config_file $tiny"; }
check "and all other ranks" wait_for 10 none_left
"$BUILD/trainer" --flight "$tmp/flight" >"$tmp/compared.log" 2>&1
check_equal "their rings say which rank the others waited for" \
    "$(sed -nE 's/^rank ([0-9]+) did not join: it waits for no other rank.*/\1/p' \
        "$tmp/compared.log")" "$paused"
