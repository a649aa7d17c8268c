#!/usr/bin/env bash
# Goal: a trainer that is asked to stop while ckptd or its disk does not answer logs what it waits
# for, and ends with 75 when checkpoint.final_seconds are over. Restarted when ckptd answers it ends
# with the numbers of an undisturbed run. Method: ckptd gets SIGSTOP while the trainer is paused
# within a step (debug.pause_at_step), or while a save is being written to a store whose every
# operation takes 0.4 s. And a trainer that finds an image for one rank of its last save and none
# for the other, because another run copies slowly into the same small pool, tries again. A third
# run waits for memory meanwhile: ckptd's log shows whether it knows that the save is the last.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

limit=3     # checkpoint.final_seconds
patience=20 # limit, and 10 s for a call that finds ckptd stopped
plan 22
make_tiny

train() { # RUN [SETTING...]
    in_background "$@"
    ended
    [ "$status" = 0 ]
}
same() { # RUN
    sort -u "$tmp/$1.loss" | sort -n | cmp "$tmp/right.sorted" -
}
check_end() { # RUN WHAT: it was asked to stop
    local start=$SECONDS
    wait_gone "$pid" "$patience" || kill_ours KILL "$pid"
    ended
    check_equal "$2: it ends with 75" "$status" 75
    note "after $((SECONDS - start)) s"
    check "$2: it says that the last checkpoint could not be saved" says "$1" \
        "error.*the last checkpoint, of step [0-9]+, could not be saved within checkpoint.final_sec"
    kill_ours CONT "$ckptd_pid"
    check "$2: started again it ends with 0" train "$1"
    check "$2: every step has the undisturbed loss" same "$1"
}

start_ckptd
check "an undisturbed run ends with 0" train right
sort -n "$tmp/right.loss" >"$tmp/right.sorted"

held stopped 8 --checkpoint.final_seconds $limit
kill_ours STOP "$ckptd_pid"
kill_ours TERM "$pid"
check_end stopped "ckptd does not answer"

stop_ckptd
start_ckptd --store "fault:delay_us=400000:local:$tmp/store"
while_written() { # RUN MODE: ckptd does not answer from when a save is being written; SIGTERM
    in_background "$1" --checkpoint.async_mode "$2" --checkpoint.final_seconds $limit \
        --debug.pause_at_step 6
    wait_for 30 says "$1" "step 5 is accepted" || give_up "$1 does not save" "$tmp/$1.log"
    kill_ours STOP "$ckptd_pid"
    kill_ours TERM "$pid"
    check "$2: when a save does not become durable it says what it waits for" \
        wait_for 15 says "$1" "waiting for step 5 to become durable, at most [1-$limit] s"
    check_end "$1" "$2"
}
while_written late_async async
while_written late_disabled disabled

# ---- no image for every rank ----
stop_ckptd
start_ckptd --memory.pool_bytes 3MiB --memory.segment_bytes 1MiB # a rank's image takes one of three
held last 8
last=$pid
held waits 8 --comm.ranks 1 --checkpoint.when_busy wait
waits=$pid
in_background slow --comm.ranks 1 --training.steps 5 --debug.slow_copy_us 60000 # two, for 4 s
slow=$pid
slow_saves() { "$BUILD/ckpt-cli" status --server "$server" | grep -q "slow@5-a1"; }
wait_for 30 slow_saves || give_up "slow does not save" "$tmp/slow.log"
kill_ours STOP "$slow" # until all others were refused
kill_ours TERM "$last"
kill_ours TERM "$waits"
in_background needed --checkpoint.required
needed=$pid
check "it is refused on one rank" wait_for 30 says last "step 7 was not saved \(rank [01]\)"
check "a trainer whose last save waits for memory has told ckptd that it is the last" \
    wait_for 30 says ckptd "the last save, step 7 of run waits waits for memory"
wait_for 30 says needed "step 5 was not saved" || give_up "needed is not refused" "$tmp/needed.log"
kill_ours CONT "$slow"
pid=$slow
ended
check_equal "the run with a slow copy ends with 0" "$status" 0
pid=$last
ended
check_equal "asked to stop while one rank finds no image it ends with 75" "$status" 75
check "then its last step is saved" "$BUILD/ckpt-cli" verify last@7 --store "$store"
pid=$needed
ended
check_equal "with checkpoint.required a save without an image ends training: 75" "$status" 75
check "and what was trained is saved all the same" \
    "$BUILD/ckpt-cli" verify needed@5 --store "$store"
