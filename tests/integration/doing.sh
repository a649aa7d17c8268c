#!/usr/bin/env bash
# Goal: when a rank hangs, or dies by SIGKILL, ckptd and ckpt-cli report its call, its step, and for
# how long. They report nothing for ranks that end by themselves. A rank that waits in vain prints
# the stacks of its threads. A save that was asked for comes, even if ckptd is killed before the
# ranks have begun it, or before it is durable. Method: two ranks, each a process; rank 0 is stopped
# within a step, so rank 1 waits for it in a collective, and is killed. In another run rank 1 is
# stopped. Then the launcher starts the ranks.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

command -v mpirun >/dev/null || { echo "mpirun is missing: make deps installs it"; exit 77; }
plan 20
make_tiny
start_ckptd --limits.hang_ms 1000
ranks() { # RUN [SETTING...]: in the background, its id in $pid
    "${mpi[@]}" -n 2 "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" --comm.backend mpi \
        --ckptd.address "$server" --metrics.loss_file "$tmp/$1.loss" "${@:2}" \
        >>"$tmp/$1.log" 2>&1 &
    pid=$!
    started_pids+=("$pid")
}
status_has() { # PATTERN
    "$BUILD/ckpt-cli" status --server "$server" --json >"$tmp/status" &&
        grep -qE "$1" "$tmp/status"
}
rank_1() { # the trainer whose place is 1
    local one
    for one in $(pgrep -P "$pid" trainer); do
        ! grep -zqx OMPI_COMM_WORLD_RANK=1 "/proc/$one/environ" || echo "$one"
    done
}

ranks ends --metrics.prometheus_file "$tmp/ends.prom"
ended
check_equal "an undisturbed run ends with 0" "$status" 0
check_equal "and of its ranks none is said to be gone" "$(grep -c "is gone" "$tmp/ckptd.log")" 0
check_exit 1 "its numbers for Prometheus go with it" test -e "$tmp/ends.prom"

ranks held --debug.pause_at_step 8 --metrics.prometheus_file "$tmp/held.prom"
paused held 8
check "Prometheus gets the step that a run is at" \
    grep -qx 'holdfast_trainer_step{run="held"} 7' "$tmp/held.prom"
doing="step 8, in [a-z_ ]+ of [a-z_]+ \(lane [a-z]+, operation [0-9]+, [0-9]+ bytes\) for [0-9.]+ s"
check "an alarm names a rank that hangs, and its step" wait_for 20 \
    status_has "run held hangs: rank [01] of 2 here has done nothing for [0-9]+ s: step 8, in "
check "status has it for programs" status_has '"silent_doing": ?"step 8, in '
kill -KILL "$(rank_1)"
ended
check "ckptd's log says in which call the killed rank was" wait_for 10 \
    grep -qE "warn session: run held, attempt 1: rank 1 is gone: $doing" "$tmp/ckptd.log"
"$BUILD/ckpt-cli" server history held --server "$server" >"$tmp/history"
check "so does the run's history" \
    grep -qE " lost +- +rank 1: attempt 1: step 8, in " "$tmp/history"
check_equal "once for the attempt" "$(grep -c " lost " "$tmp/history")" 1

ranks asked --training.steps 1000000 --checkpoint.interval 1000000
wait_for 40 says asked "step: +10 " || give_up "asked does not train" "$tmp/asked.log"
check "ckpt-cli save asks the ranks" \
    grep -q "^2 ranks of run 'asked' are to save after the current step" \
    <("$BUILD/ckpt-cli" save asked --server "$server")
saves_are() { [ "$(grep -c "step [0-9]* is $1 " "$tmp/asked.log")" -ge "$2" ]; } # HOW COUNT
check "they save" wait_for 20 saves_are durable 1
mapfile -t trainers < <(pgrep -P "$pid" trainer)
kill -STOP "${trainers[@]}"
"$BUILD/ckpt-cli" save asked --server "$server" >/dev/null
stop_ckptd KILL
kill -CONT "${trainers[@]}"
check "asked for when ckptd dies, a save fails" wait_for 20 says asked "step [0-9]+ was not saved"
start_ckptd --store "fault:least_us=5000000:local:$tmp/store" # each write takes seconds
check "and is begun when ckptd is back" wait_for 60 saves_are accepted 2
stop_ckptd KILL
start_ckptd
check "if ckptd dies again before it is durable, another comes" wait_for 60 saves_are durable 2
stop_ckptd KILL
start_ckptd
stops() { "$BUILD/ckpt-cli" stop asked --server "$server" >/dev/null 2>&1; }
check "without a save of their own the ranks find a ckptd that is back, and can be stopped" \
    wait_for 20 stops
ended
check "and say that they found it" says asked "ckptd is back: the ranks are connected again"
check_equal "then the last step is saved" "$status-$(grep -c "is durable" "$tmp/asked.log")" 78-3

# Without saves, in which a rank may wait longer.
ranks late --training.steps 1000000 --checkpoint.interval 1000000 --comm.train_timeout_seconds 2
wait_for 40 says late "step: +10 " || give_up "late does not train" "$tmp/late.log"
kill -STOP "$(rank_1)"
ended
check "a rank that waits for a stopped one too long ends" says late \
    "rank 0 of [a-z_]+ waited longer than comm.train_timeout_seconds in "
check "and prints the stacks of its threads" says late \
    "stacks of process [0-9]+: a wait for other ranks was too long" "trainer\(\+0x"

"$PYTHON" deploy/launch --config "$tiny" --ranks 2 --server "$server" --dir "$tmp/launch" \
    --restarts-max 0 -- --job.run again --debug.pause_at_step 8 >"$tmp/again.log" 2>&1 &
pid=$!
started_pids+=("$pid")
paused again 8
kill -KILL "$(cat "$tmp/launch/start-1/rank-1.pid")"
ended
check "the launcher says in what the rank was that died" says again \
    "launch: ckptd says of run again: rank 1 of attempt 1: step 8, in [a-z_ ]+ of [a-z_]+ "
