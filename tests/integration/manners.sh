#!/usr/bin/env bash
# Goal: the running ckptd follows the [pace] section's settings of threads, and refuses impossible
# ones. A trainer's updates delay saves, and no other part of a step does; throttling does not delay
# its last save. Method: a ckptd whose threads are read from /proc. A trainer copies slowly, so that
# an update waits in its busy phase for the copy of a save, and debug.pause_at_step pauses it where
# it is not busy. (Rates and phases: unit/ckptd_throttle_queue.c.)
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
plan 15

niceness() { # of each thread: field 19 of stat; the name in field 2 may hold spaces
    cat "/proc/$ckptd_pid/task"/*/stat 2>/dev/null | sed 's/.*) //' | awk '{ print $17 }'
}
status() { "$BUILD/ckpt-cli" status --all --server "$server"; }
pace() { status | sed -nE "s/^pace\.$1 +//p"; } # NAME: its number
refused() { # NAME PATTERN OPTION...
    local name=$1 pattern=$2
    shift 2
    check_exit 78 "$name" "$BUILD/ckptd" --listen "unix:$tmp/r" --store "$tmp/refused" "$@"
    mv "$tmp/check.log" "$tmp/refused.log"
    check "... and named" grep -q "$pattern" "$tmp/refused.log"
}

own=$(nice) # below it no thread of ours goes
start_ckptd --storage.engine pwrite --pace.cpu_nice $((own + 7)) --threads.workers 3
check_equal "three workers and two threads that serve tools, and they alone, are nice" \
    "$(niceness | grep -cx $((own + 7)))" 5
check "a save is committed" "$BUILD/ckpt_example" "$server"
stop_ckptd
start_ckptd
check_equal "the workers are nice unless told otherwise" "$(niceness | sort -un | tail -n 1)" \
    $((own > 10 ? own : 10))
stop_ckptd
start_ckptd --pace.cpu_nice 0
check_equal "none is when told so" "$(niceness | sort -u)" "$own"
stop_ckptd

start_ckptd --pace.quiet --pace.write_rate 100MiB
check "a save is committed with a rate and phases" "$BUILD/ckpt_example" "$server"
check_equal "who announces no phase is not held back by one" "$(pace held_by_phases_seconds)" 0.0
stop_ckptd

# No process waits for a save before the pause. The copies take 2 s each: that of step 1 continues
# in the update of step 2, that of step 2 in the pause. A save held by phases would stay so for ten
# minutes.
make_tiny
start_ckptd --pace.quiet --pace.quiet_wait_ms 600000
in_background phases --comm.ranks 1 --checkpoint.interval 1 --debug.pause_at_step 3 \
    --checkpoint.async_mode async_with_pinned_mem --debug.slow_copy_us 30000
paused phases 3
check_equal "a trainer is not busy while it computes a step" "$(pace ranks_busy)" 0
check "an update held the save back that was copied meanwhile" \
    awk "BEGIN { exit !($(pace held_by_phases_seconds) > 0) }"
check "what is copied while a step is computed is saved at once" \
    wait_for 20 "$BUILD/ckpt-cli" verify phases@2 --store "$store"
check_equal "nothing was written during an update" "$(pace chunks_in_busy_phases)" 0
kill_ours TERM "$pid"
ended
check_equal "that trainer ends with 75" "$status" 75
stop_ckptd
# About 90 MiB, which the rate alone would write in a minute and a half.
start_ckptd --pace.write_rate 1MiB
in_background big --comm.ranks 1 --model.flavor debugmodel --canonical.micro_batches 1 \
    --training.steps 1 --checkpoint.final_seconds 30
ended
check_equal "a trainer that waits for its last save does not wait for the rate" "$status" 0

refused "a rate that is next to nothing is refused" 'pace.write_rate' --pace.write_rate 10

stop_ckptd
renice -n 15 -p $$ >/dev/null # no way back, so at the end
start_ckptd
check_equal "a ckptd that was started nicer stays as it is" "$(niceness | sort -u)" 15
