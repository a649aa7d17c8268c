# lib_tiny.sh - a training run small enough for tests: a tiny Llama on text of this repository.
#
#   . tests/integration/lib_tiny.sh     # after lib.sh
#   make_tiny                           # $tiny: its configuration; tokenizer and tokens under $tmp
#   held RUN 8      # within step 8, with start_ckptd's ckptd; process id in $pid
#   ends_by TERM 75 "asked to stop it ends with 75"
#
# The text is the prose of this repository: always there, long enough for a tokenizer of 512 tokens.

# In front of a trainer whose ranks are processes: more of them than CPUs, and for root as well.
mpi=(mpirun --oversubscribe --mca mpi_yield_when_idle 0)
[ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)

make_tokens() {
    cat README.md ./*/README.md LICENSE >"$tmp/text.txt"
    "$BUILD/tokenizer" train --vocab 512 --out "$tmp/tokenizer.model" "$tmp/text.txt" &&
        "$BUILD/tokenizer" tokens --tokenizer "$tmp/tokenizer.model" --out "$tmp/text.tokens" \
            "$tmp/text.txt"
}
make_tiny() {
    make_tokens >"$tmp/make_tiny.log" 2>&1 ||
        give_up "could not make the tokens file" "$tmp/make_tiny.log"
    tiny=$tmp/tiny.toml
    cat >"$tiny" <<END
[job]
run = "tiny"
[model]
flavor = "tiny"
hf_assets_path = "$tmp/tokenizer.model"
[lr_scheduler]
warmup_steps = 5
[training]
dataset_path = "$tmp/text.tokens"
local_batch_size = 1
seq_len = 64
steps = 20
mixed_precision_param = "float32"
[canonical]
micro_batches = 6
[checkpoint]
enable = true
interval = 5
async_mode = "async"
[metrics]
log_freq = 1
loss_file = "$tmp/tiny.loss"
[kernels]
backend = "${HOLDFAST_TEST_KERNELS:-best}"
END
}
in_background() { # RUN [SETTING...]: on 2 ranks, threads of one process; its id in $pid
    "$BUILD/trainer" --job.config_file "$tiny" --job.run "$1" --ckptd.address "$server" \
        --metrics.loss_file "$tmp/$1.loss" --comm.ranks 2 "${@:2}" >>"$tmp/$1.log" 2>&1 &
    pid=$!
    started_pids+=("$pid")
}
paused() { # RUN STEP: waits until in_background's run is there
    wait_for 40 says "$1" "pauses within step $2" ||
        give_up "$1 does not pause within step $2" "$tmp/$1.log"
}
held() { # RUN STEP [SETTING...]: in_background, held within the step
    in_background "$1" --debug.pause_at_step "$2" "${@:3}"
    paused "$1" "$2"
}
ended() { # waits for in_background's run; its exit status in $status
    wait "$pid" 2>/dev/null
    status=$?
}
end_by() { # SIGNAL
    kill_ours "$1" "$pid"
    ended
}
ends_by() { # SIGNAL STATUS NAME
    end_by "$1"
    check_equal "$3" "$status" "$2"
}
says() { # RUN PATTERN...
    local pattern
    for pattern in "${@:2}"; do
        grep -qE -- "$pattern" "$tmp/$1.log" || return
    done
}
