#!/usr/bin/env bash
# Goal: the collectives of the mpi back-end move the right bytes, add right, split right, and take
# places beyond 2 GiB; a rank that dies ends the others. Method: the rounds of
# tests/unit/trainer_comm.c, which check every received byte, under mpirun with several numbers of
# ranks; then a paused rank of a run is killed.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing: make deps installs it"
[ -x "$BUILD/tests/trainer_comm" ] || skip_all "tests/trainer_comm is not built"
plan 7

for ranks in 1 2 3 5; do
    check "$ranks ranks: every collective is right" \
        "${mpi[@]}" -n $ranks "$BUILD/tests/trainer_comm" --mpi
done

make_tiny
"${mpi[@]}" -n 3 "$BUILD/trainer" --job.config_file "$tiny" --comm.backend mpi \
    --checkpoint.no_enable --debug.pause_at_step 3 >"$tmp/killed.log" 2>&1 &
job=$!
started_pids+=("$job")
check "a run pauses in mid-step" wait_for 30 grep -q "pauses within step 3" "$tmp/killed.log"
kill -KILL "$(sed -nE 's/.*process ([0-9]+) pauses.*/\1/p' "$tmp/killed.log")"
check "a rank that is killed ends the job" wait_gone "$job" 30
none_left() { ! pgrep -f "job.config_file $tiny"; }
check "and all other ranks" wait_for 10 none_left
