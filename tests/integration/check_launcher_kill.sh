#!/usr/bin/env bash
# Goal: kill -9 of a rank, of all ranks, or of ckptd, at random moments, 12 times: training ends
# with the right loss, no committed checkpoint is lost, none is torn. Method: one run without kills
# gives the loss of every step. Then runs under the launcher (3 ranks, at least 2) are shot at after
# random waits until 12 shots were fired. A run that ends before is followed by the next. Before
# each shot the committed checkpoints are noted. At the end: every run ended with 0, every line of
# every loss file equals the undisturbed run's, every noted checkpoint is still there, and all
# verify. The random numbers come from SEED (printed; give it again to repeat the waits and
# targets); SHOTS= fires so many, SAMPLE=1 thirty.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing"
plan 6
make_tiny
[ "${SAMPLE:-}" != 1 ] || SHOTS=${SHOTS:-30}
shots_wanted=${SHOTS:-12}
seed=${SEED:-$((($$ * 7919 + $(date +%s)) % 100000))}
RANDOM=$seed
note "SEED=$seed SHOTS=$shots_wanted"
export HOLDFAST_BIN=$BUILD
server=unix:$tmp/s store=$tmp/store
steps=400

printf '[memory]\npool_bytes = "256MiB"\nsegment_bytes = "4MiB"\n' >"$tmp/ckptd.conf"

start_run() { # RUN RANKS: under the launcher; process id in $launcher
    deploy/launch --config "$tiny" --ranks "$2" --min-ranks 2 --server "$server" --store "$store" \
        --ckptd-config "$tmp/ckptd.conf" --backoff 0.1 --backoff-max 0.2 --restarts-max 1000 \
        --dir "$tmp/$1.dir" -- --job.run "$1" --metrics.loss_file "$tmp/$1.loss" \
        --training.steps "$steps" --checkpoint.interval 10 >"$tmp/$1.log" 2>&1 &
    launcher=$!
    started_pids+=("$launcher")
}
committed() { # RUN@STEP-aATTEMPT per line
    "$BUILD/ckpt-cli" list --store "$store" | awk '/@/ { print $1 }'
}
still() { # PROGRAM FILE...: the process ids in the files; another program may have got one by now
    local pid
    cat "${@:2}" 2>/dev/null | while read -r pid; do
        [ ! "/proc/$pid/exe" -ef "$BUILD/$1" ] || echo "$pid"
    done
}
shoot() { # RUN: SIGKILL to one of its processes; fails when there is none at this moment
    local notes pids victims what
    notes=$(ls -d "$tmp/$1.dir"/start-* 2>/dev/null | sort -V | tail -n 1)
    mapfile -t pids < <(still trainer "$notes"/rank-*.pid)
    case $((shots % 4)) in # each has its turn
    0 | 1) what=rank && victims=("${pids[@]:RANDOM % (${#pids[@]} + 1):1}") ;;
    2) what=all && victims=("${pids[@]}") ;;
    3) what=ckptd && mapfile -t victims < <(still ckptd "$tmp/$1.dir/ckptd.pid") ;;
    esac
    [ ${#victims[@]} -gt 0 ] && kill -KILL "${victims[@]}" 2>/dev/null && echo "$what" >>"$tmp/hits"
}

start_run undisturbed 2
wait "$launcher"
status=$?
[ "$status" = 0 ] || give_up "an undisturbed run ends with $status" "$tmp/undisturbed.log"
ok "an undisturbed run ends with 0"
sort -un "$tmp/undisturbed.loss" >"$tmp/right"
check_equal "it has a loss for every step" "$(wc -l <"$tmp/right")" "$steps"

shots=0 round=0 bad_ends=0
while [ "$shots" -lt "$shots_wanted" ]; do
    round=$((round + 1))
    run=shot-$round
    start_run "$run" 3
    while kill -0 "$launcher" 2>/dev/null && [ "$shots" -lt "$shots_wanted" ]; do
        sleep "$(printf '%d.%03d' $((RANDOM % 2)) $((RANDOM % 1000)))"
        committed >>"$tmp/committed" 2>/dev/null
        shoot "$run" && shots=$((shots + 1))
    done
    wait "$launcher" || bad_ends=$((bad_ends + 1))
    [ "$bad_ends" = 0 ] || { tail -n 30 "$tmp/$run.log" | sed 's/^/# /' && break; }
done
note "$shots shots in $round runs:" $(sort "$tmp/hits" | uniq -c)
check_equal "every run that was shot at ends with 0" "$bad_ends" 0

wrong=0
for ((i = 1; i <= round; i++)); do
    sort -u "$tmp/shot-$i.loss" | sort -n | diff "$tmp/right" - >"$tmp/diff" ||
        { wrong=$((wrong + 1)) && head -n 10 "$tmp/diff" | sed 's/^/# /'; }
done
check_equal "every step of every run has the undisturbed loss and gradient norm" "$wrong" 0

committed | sort -u >"$tmp/there"
sort -u "$tmp/committed" -o "$tmp/committed"
note "$(wc -l <"$tmp/committed") checkpoints were seen committed between the shots"
lost=$(comm -23 "$tmp/committed" "$tmp/there")
[ -s "$tmp/committed" ] || lost="none was seen: unknown"
check_equal "no committed checkpoint is lost" "$lost" ""

torn=0
while read -r name; do
    "$BUILD/ckpt-cli" verify --store "$store" "$name" >"$tmp/verify.log" 2>&1 ||
        { torn=$((torn + 1)) && sed 's/^/# /' "$tmp/verify.log"; }
done <"$tmp/there"
[ -s "$tmp/there" ] || torn="none is there: unknown"
check_equal "none of the checkpoints is torn" "$torn" 0
note "$(wc -l <"$tmp/there") checkpoints verified"
