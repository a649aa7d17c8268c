#!/usr/bin/env bash
# Goal: a run with a time limit for its shutdown saves its last step if that fits, and begins no
# save otherwise. Saves that ckptd had accepted are durable, the last line names them, and a
# restarted run has the numbers of an undisturbed one. Method: steps of one micro-batch, so a
# trainer that is paused within a step (debug.pause_at_step) is past its last one; SIGTERM with time
# enough, and with less than its saves took to a store whose every operation takes 2 s; and
# `ckpt-cli stop --grace` with time only for the accepted saves. With checkpoint.durability =
# "bucket" the second tier is that slow. An export is not begun within a time limit: the next start
# makes it.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

delay=2000 # ms of each operation of the slow store
plan 29
make_tiny
sed -i 's/^micro_batches = .*/micro_batches = 1/' "$tiny"

train() { # RUN [SETTING...]
    in_background "$@"
    ended
    [ "$status" = 0 ]
}
goes_on() { # RUN: to its end, with the numbers of an undisturbed one
    check "$1: started again it ends with 0" train "$1"
    check "$1: every step has the undisturbed loss" same "$1"
}
same() { # RUN
    sort -u "$tmp/$1.loss" | sort -n | cmp "$tmp/right.sorted" -
}
last_line() { # RUN TEXT: of rank 0
    tail -n 1 "$tmp/$1.log" | grep -qF -- "info train: $2"
}
is_stored() { # RUN@STEP [STORE]
    "$BUILD/ckpt-cli" verify "$1" --store "${2:-$store}" >/dev/null 2>&1
}

start_ckptd
check "an undisturbed run ends with 0" train right
sort -n "$tmp/right.loss" >"$tmp/right.sorted"

held enough 8 --training.grace_seconds 60
ends_by TERM 75 "SIGTERM with time enough ends with 75"
check "the step that was past its last micro-step is saved" is_stored enough@8
check "and is the one that the last line names" last_line enough "stopped after step 8"
goes_on enough

stop_ckptd
start_ckptd --store "fault:least_us=${delay}000:local:$tmp/store"
held short 8 --training.grace_seconds 1
check "a save to a slow disk becomes durable" wait_for 60 is_stored short@5
ends_by TERM 75 "SIGTERM with less time than that save took ends with 75"
check "no save is begun, and the step at hand is not made" \
    says short "step 7 is not saved: [01]\.[0-9] s are left until the deadline, and the longest"
check "the last line names the newest durable step" \
    last_line short "stopped after step 7; step 5 is the newest durable one"
took=$(sed -nE 's/.*step 5 is durable .* at most ([0-9]+)\.[0-9]+ s after.*/\1/p' "$tmp/short.log")
note "the save took at most $took s and a part"
given=$((took * 3 / 2)) # equally far from the accepted save and from another one

held accepted 7
"$BUILD/ckpt-cli" stop accepted --grace "$given" --server "$server" >"$tmp/stop.out"
check "ckpt-cli stop --grace tells the time" \
    grep -q "^2 ranks of run 'accepted' are to save .*, within $given s$" "$tmp/stop.out"
ends_by TERM 78 "with time for what is accepted alone it ends with 78"
check "what was accepted is durable" is_stored accepted@5
check "and the last line says that no more is" \
    last_line accepted "stopped after step 7; step 5 is the newest durable one"
stop_ckptd
start_ckptd --tier.store "fault:least_us=${delay}000:local:$tmp/far"
# Each save is waited for, so the speed of this node's disk is known before the run is paused.
held bucket 8 --training.grace_seconds 3 --checkpoint.durability bucket \
    --checkpoint.async_mode disabled
check "a save reaches the slow second tier" wait_for 60 is_stored bucket@5 "$tmp/far"
ends_by TERM 75 "SIGTERM with less time than a save takes to that tier ends with 75"
check "no save is begun that would be on this node's disk alone" \
    says bucket "step 7 is not saved: [0-3]\.[0-9] s are left .* the longest save took [0-9]+\."
check "the last line names the newest step in that tier" \
    last_line bucket "stopped after step 7; step 5 is the newest durable one"
stop_ckptd
start_ckptd
goes_on short
goes_on accepted
goes_on bucket

export_to=(--checkpoint.last_save_in_hf --checkpoint.export_folder "$tmp/exported")
held exported 18 --training.steps 18 --training.grace_seconds 60 "${export_to[@]}"
ends_by TERM 0 "SIGTERM within a run's last step ends with 0"
check "the step is saved" is_stored exported@18
check "and not exported" says exported "the weights of step 18 are not exported before the deadline"
check "which the next start does" train exported --training.steps 18 "${export_to[@]}"
check "into the folder" test -f "$tmp/exported/config.json"
