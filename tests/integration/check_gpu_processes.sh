#!/usr/bin/env bash
# Goal: a run whose ranks are processes with a GPU each has the losses, weights and moments of the
# CPU, bit for bit, whether they meet over TCP, as torchrun starts them, or by MPI. When one of them
# is killed, the others end to be started again. Method: as gpus.sh; the simulated GPUs of several
# processes exchange by files.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
. tests/integration/lib_gpus.sh

plan 5

free_port() {
    python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}
# start RUN SEED RANKS [SETTING...]: the processes as torchrun starts them; their ids in $pids
start() {
    local rank port
    port=$(free_port)
    mkdir -p "$tmp/$1.gpus"
    command_of "$1" "$2,folder=$tmp/$1.gpus" "${@:3}" --comm.backend nccl
    pids=()
    for ((rank = 0; rank < $3; rank++)); do
        RANK=$rank WORLD_SIZE=$3 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$3 MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=$port "${command[@]}" >>"$tmp/$1.log" 2>&1 &
        pids+=($!)
    done
    started_pids+=("${pids[@]}")
}
all_end() { # STATUS: each of $pids
    local pid status=0
    for pid in "${pids[@]}"; do
        wait "$pid"
        [ $? = "$1" ] || status=1
    done
    return $status
}
over_tcp() { start "$@" && all_end 0 && same "$1"; }
by_mpi() { # RUN SEED RANKS [SETTING...]
    mkdir -p "$tmp/$1.gpus"
    command_of "$1" "$2,folder=$tmp/$1.gpus" "${@:3}" --comm.backend nccl
    "${mpi[@]}" -n "$3" "${command[@]}" >>"$tmp/$1.log" 2>&1 && same "$1"
}
one_is_killed() {
    start killed $late 2 --training.steps 500
    wait_for "${patience:-60}" says killed "step:  3 " || return
    kill_ours KILL "${pids[1]}"
    wait "${pids[1]}"
    pids=("${pids[0]}")
    wait_gone "${pids[0]}" 30 && all_end 75 && says killed "rank 1 has ended"
}

check "the CPU trains" train cpu - 1
check "two processes that meet over TCP, a GPU each, have its bits" over_tcp tcp $random 2
check "so have two processes that meet by MPI" by_mpi mpi $late 2
check "so have four over TCP, stages and tensor parallel" \
    over_tcp four $late 4 "${pp[@]}" "${tp[@]}"
check "a process that is killed ends the other one, to be started again" one_is_killed
