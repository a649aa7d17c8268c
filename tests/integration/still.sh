#!/usr/bin/env bash
# Goal: a rank whose process is stopped (SIGSTOP) anywhere, also inside a call that the others are
# in as well, is named by the trainer's error, by ckptd's history and by trainer --flight; by the
# error also without recorders in a common folder, since ckptd knows. Method: three ranks, each a
# process; one trains, is stopped, and the others wait longer than comm.train_timeout_seconds. Once
# it is rank 0, which leads the saves, once another.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh

command -v mpirun >/dev/null || { echo "mpirun is missing: make deps installs it"; exit 77; }
plan 9
make_tiny
start_ckptd
process_of() { # RANK
    local one
    for one in $(pgrep -P "$pid" trainer); do
        ! grep -zqx "OMPI_COMM_WORLD_RANK=$1" "/proc/$one/environ" || echo "$one"
    done
}
history_names() { # RUN RANK
    "$BUILD/ckpt-cli" server history "$1" --server "$server" |
        grep -qE " lost .*the process of rank $2 had shown no sign of life for [0-9.]+ s"
}
stop_rank() { # RANK [SETTING...]: its error in $run.log
    rank=$1
    "${mpi[@]}" -n 3 "$BUILD/trainer" --job.config_file "$tiny" --job.run "$run" \
        --comm.backend mpi --ckptd.address "$server" --metrics.loss_file "$tmp/$run.loss" \
        --training.steps 1000000 --checkpoint.interval 1000000 --checkpoint.final_seconds 1 \
        --comm.train_timeout_seconds 6 "${@:2}" >"$tmp/$run.log" 2>&1 &
    pid=$!
    started_pids+=("$pid")
    wait_for 40 says $run "step: +10 " ||
        give_up "$run does not train" "$tmp/$run.log"
    kill -STOP "$(process_of "$rank")"
    ended
}
names_rank() { # another one does: the launcher wakes the stopped rank to end it
    local what="\(the process of rank $rank has shown no sign of life for [0-9.]+ s\)"
    says "$run" "error train: rank [^$rank], in step [0-9]+: .*$what"
}

for rank in 0 2; do
    run=stopped-$rank
    stop_rank "$rank" --comm.save_traces_folder "$tmp/$run"
    check "rank $rank stopped: another waits too long for it" says $run \
        "waited longer than comm.train_timeout_seconds in "
    check "and its error names rank $rank" names_rank
    check "so does ckptd's history" wait_for 10 history_names $run $rank
    "$BUILD/trainer" --flight "$tmp/$run" >"$tmp/$run-compared.log" 2>&1
    check_equal "and the comparison of their flight recorders" \
        "$(sed -nE 's/^rank ([0-9]+) did not join: its process stood still.*/\1/p' \
            "$tmp/$run-compared.log")" "$rank"
done
run=untraced
stop_rank 1
check "without a folder of recorders the error names the rank, too" names_rank
