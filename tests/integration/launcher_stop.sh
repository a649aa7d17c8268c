#!/usr/bin/env bash
# Goal: a run under the launcher that is asked to stop saves its last step, whichever process gets
# the signal: the launcher, its process group (Ctrl-C), or every process of the job (systemd, batch
# systems). Method: the real programs, two ranks and a ckptd that the launcher starts, in a separate
# process group. No save is due by the interval. When some steps are made the signal is sent; then
# the store must hold the last step whose loss was written. Once the output goes to a reader that
# ends first, as `tee` may at Ctrl-C: many more lines are printed before the signal is sent. At last
# the launcher is killed, and all processes that it started must end. SIGUSR1: launcher_starts.sh.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing"
plan 20
make_tiny
export HOLDFAST_BIN=$BUILD
server=unix:$tmp/s store=$tmp/store
printf '[memory]\npool_bytes = "256MiB"\nsegment_bytes = "4MiB"\n' >"$tmp/ckptd.conf"

start_run() { # RUN [LOG]: returns when it has made some steps; process id in $launcher
    env --default-signal=INT,HUP,QUIT setsid deploy/launch --config "$tiny" --ranks 2 \
        --server "$server" --store "$store" --ckptd-config "$tmp/ckptd.conf" \
        --dir "$tmp/$1.dir" -- --job.run "$1" \
        --metrics.loss_file "$tmp/$1.loss" --training.steps 1000000 \
        --checkpoint.interval 1000000 >"${2:-$tmp/$1.log}" 2>&1 &
    launcher=$!
    started_pids+=("$launcher")
    wait_for 40 has_steps "$tmp/$1.loss" || give_up "$1 does not train" "$tmp/$1.log"
}
has_steps() { [ "$(wc -l <"$1")" -ge 10 ]; }
job() { pgrep -f "$tmp/|mpirun.*$tmp"; } # the processes of the launcher
ended() { # $status
    status=0
    wait_gone "$launcher" 60 || kill_ours KILL "$launcher"
    wait "$launcher" || status=$?
}
saved_last() { # RUN: the step after which it stopped is there, whole
    local step
    step=$(tail -n 1 "$tmp/$1.loss" | cut -d ' ' -f 1)
    [ -n "$step" ] && "$BUILD/ckpt-cli" verify --store "$store" "$1@$step" && return
    tail -n 12 "$tmp/$1.log" "$tmp/$1.loss" "$tmp/$1.dir/ckptd.log"
    return 1
}
check_stop() { # RUN WHAT
    ended
    check_equal "$2: the launcher ends with 75" "$status" 75
    check "$2: the last step is saved" saved_last "$1"
    check_equal "$2: nothing of the job is left" "$(job | wc -l)" 0
}

start_run alone
kill_ours USR2 "$launcher"
stacks() { # TIMES: of both ranks
    [ "$(grep -o 'stacks of process [0-9]*' "$tmp/alone.log" | sort | uniq -c |
        awk -v times="$1" '$1 >= times { ranks++ } END { print ranks + 0 }')" = 2 ]
}
check "SIGUSR2 to the launcher: both ranks print their stacks" wait_for 20 stacks 1
check "SIGUSR2 to the launcher: and their last calls" grep -q "asked by a signal" "$tmp/alone.log"
kill_ours QUIT "$launcher"
check "SIGQUIT to the launcher: they do so again" wait_for 20 stacks 2
lines=$(wc -l <"$tmp/alone.loss")
goes_on() { [ "$(wc -l <"$tmp/alone.loss")" -gt "$((lines + 2))" ]; }
check "SIGQUIT to the launcher: and train on" wait_for 20 goes_on
kill_ours TERM "$launcher"
check_stop alone "SIGTERM to the launcher"

start_run every
mapfile -t pids < <(job)
kill -TERM "${pids[@]}"
check_stop every "SIGTERM to every process"

start_run hung_up
mapfile -t pids < <(job)
kill -HUP "${pids[@]}"
check_stop hung_up "SIGHUP to every process"

mkfifo "$tmp/said"
cat "$tmp/said" >"$tmp/piped.log" &
reader=$!
started_pids+=("$reader")
start_run piped "$tmp/said"
kill_ours KILL "$reader"
read_by=$(wc -l <"$tmp/piped.loss")
goes_on() { [ "$(wc -l <"$tmp/piped.loss")" -ge $((read_by + 30)) ]; } # a line is said of each
check "without a reader of its log the run goes on" wait_for 20 goes_on
check_equal "and is not started again" "$(grep -c " start " "$tmp/piped.dir/events")" 1
kill -INT -- "-$launcher"
check_stop piped "SIGINT to its process group, after the reader of its log"

start_run killed
kill_ours KILL "$launcher"
ranks_gone() { ! pgrep -f "trainer.*$tmp" && ! pgrep -f "mpirun.*$tmp"; }
check "when the launcher is killed, its ranks and mpirun end" wait_for 60 ranks_gone
nothing_left() { [ "$(job | wc -l)" = 0 ]; }
check "and then nothing of it runs, ckptd neither" wait_for 60 nothing_left
