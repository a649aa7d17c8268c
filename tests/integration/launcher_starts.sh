#!/usr/bin/env bash
# Goal: the launcher detects how real processes end: lost ranks, ranks that saved, an mpirun that
# hangs, a ckptd that does not start. It receives each signal. Method: real mpirun, but a stand-in
# for the trainer: a script that ends each rank of each start the way the scenario says ("START RANK
# ACTION" lines; a rank that is not listed waits for its peers and ends with 0). In some tests ckptd
# has a stand-in too, which follows $tmp/ckptd. The decisions after an end: launcher_rules.py.
. "$(dirname "$0")/lib.sh"
command -v mpirun >/dev/null || skip_all "mpirun is missing"
plan 33

bin=$tmp/bin
mkdir "$bin"
cat >"$bin/ckpt-cli" <<'END'
#!/bin/sh
# Stand-in: ckptd answers, except one that is to be started, which reports that itself. None of them
# can save, which is no reason to wait.
if [ "$1" = status ]; then
    printf '{"pool": {\n"segments": 4,\n"segments_ready": %d\n}}\n' "$(cat "$RULES/ready")"
    exit 0
fi
if [ -e "$RULES/ckptd" ]; then
    echo asked >>"$RULES/asked"
    [ -e "$RULES/ckptd-answers" ] || exit 69
fi
printf 'serving: true\nsaving: false\n'
exit 69
END
cat >"$bin/ckptd" <<'END'
#!/usr/bin/env bash
# Stand-in: "exit STATUS", or "serve N" until asked to end; it answers after N requests.
trap 'rm -f "$RULES/ckptd-answers"; exit 0' TERM
read -r action number <"$RULES/ckptd"
[ "$action" = serve ] || exit "$number"
echo $$ >"$RULES/ckptd-pid"
until [ "$(wc -l <"$RULES/asked")" -ge "$number" ]; do sleep 0.05; done
touch "$RULES/ckptd-answers"
while :; do sleep 0.05; done
END
cat >"$bin/trainer" <<'END'
#!/usr/bin/env bash
# Stand-in for a rank. The number of the start ends the name of the folder its wrapper was given.
rank=$OMPI_COMM_WORLD_RANK
folder=$(tr '\0' '\n' <"/proc/$PPID/cmdline" | grep '/start-[0-9]*$')
start=${folder##*-}
until_is() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || exit 70
        sleep 0.01
    done
}
all_have() { # WHAT: as many notes of that name as ranks; their lines are in `all`
    mapfile -t all < <(cat "$RULES/$1.$start".*)
    [ ${#all[@]} = "$OMPI_COMM_WORLD_SIZE" ]
}
save() { # no rank ends before all got the signal, so each can be observed
    echo told >"$RULES/told.$start.$rank"
    until_is 20 all_have told
    echo "$rank" >>"$RULES/saved"
    exit 75
}
echo "rank $rank of start $start" >&2
if [ "$rank" = 0 ]; then echo "$OMPI_COMM_WORLD_SIZE" >>"$RULES/starts"; fi
if [ "$rank" = 0 ] && [ -e "$RULES/places.$start" ]; then
    cat "$RULES/places.$start" >"$RULES/places"
fi
action=$(awk -v s="$start" -v r="$rank" '$1 == s && ($2 == r || $2 == "all") { print $3 }' \
    "$RULES/plan")
# mpirun ends the others when the first wrapper has gone: each must reach its own kill.
[ "$action" = kill-wrapper ] && trap '' TERM
echo $$ >"$RULES/here.$start.$rank"
until_is 60 all_have here # none ends before all have begun
case ${action:-end} in
kill) kill -KILL $$ ;;
crash) kill -SEGV $$ ;;
shows) # until it is asked for its stacks, then until it is killed
    trap 'echo "$rank" >>"$RULES/shown"' QUIT USR2
    touch "$RULES/waits.$rank"
    until_is 60 false
    ;;
kill-all) (kill -KILL "${all[@]}") ;; # a subshell outlives them
kill-all-late) # its own wrapper detects that when the 0.1 s of the others are over
    until_is 20 test -s "$folder/rank-$rank.pid"
    (kill -STOP "$PPID" && kill -KILL "${all[@]}"; sleep 0.5; kill -CONT "$PPID")
    ;;
kill-wrapper) kill -KILL "$PPID" $$ ;;
wait)
    trap save TERM
    touch "$RULES/waits.$rank"
    until_is 60 false
    ;;
deaf) # until it is killed
    trap '' TERM
    touch "$RULES/waits.$rank"
    until_is 60 false
    ;;
wait-ckptd) # its last save is to the ckptd that is started again
    another_serves() { [ "$(cat "$RULES/ckptd-pid")" != "$former" ]; }
    trap 'until_is 20 another_serves; save' TERM
    former=$(cat "$RULES/ckptd-pid")
    touch "$RULES/waits.$rank"
    until_is 60 false
    ;;
exit*) exit "${action#exit}" ;;
end) exit 0 ;;
esac
END
chmod +x "$bin"/*
touch "$tmp/config.toml"
export HOLDFAST_BIN=$bin RULES=$tmp

scenario() { # LINES
    printf '%s\n' "$1" >"$tmp/plan"
    echo 4 >"$tmp/ready"
    rm -f "$tmp"/{starts,here.*,told.*,waits.*,saved,shown,ckptd,ckptd-answers,asked}
}
launch() { # RANKS SCENARIO OPTION...: prints "status: ranks of each start"
    local ranks=$1 status=0
    scenario "$2"
    shift 2
    deploy/launch --config "$tmp/config.toml" --ranks "$ranks" --backoff 0.05 --backoff-max 1 \
        --grace 2 --dir "$tmp/dir" "$@" >"$tmp/launch.log" 2>&1 || status=$?
    echo "$status: $(paste -sd' ' "$tmp/starts" 2>/dev/null)"
}

check_equal "a rank lost to a signal is left out of the next start" \
    "$(launch 3 $'1 1 kill\n1 0 wait\n1 2 wait')" "0: 3 2"
check_equal "when one crashes, the others are asked for their stacks before the start ends" \
    "$(launch 3 $'1 1 crash\n1 0 shows\n1 2 shows'; sort "$tmp/shown" | paste -sd' ')" \
    $'0: 3 2\n0 2'
check_equal "and those that this ends, as they are not ready for it, are not lost" \
    "$(launch 3 $'1 1 crash\n1 0 wait\n1 2 wait')" "0: 3 2"
check_equal "when all are lost at once, and one of the wrappers is late, all start again" \
    "$(launch 3 $'1 1 kill-all-late\n1 0 deaf\n1 2 deaf')" "0: 3 3"
LOG_RANK=1 launch 2 "1 all exit75" --print-ranks 0-1 --log-dir "$tmp/logs" >/dev/null
check_equal "with --log-dir what each rank of each start says has a file of its own" \
    "$(cd "$tmp/logs" && grep -r . | sort | paste -sd' ')" \
    "$(printf 'start-%d/rank-%d.log:rank %d of start %d\n' 1 0 0 1 1 1 1 1 2 0 0 2 2 1 1 2 |
        paste -sd' ')"
check_equal "and is said by the launcher as well, of those of --print-ranks" \
    "$(grep -c ' of start ' "$tmp/launch.log")" 4
LOG_RANK=0,2-3 launch 4 "" --log-dir "$tmp/some" >/dev/null
check_equal "or else of LOG_RANK alone" \
    "$(grep -o 'rank . of start 1' "$tmp/launch.log" | sort | paste -sd' ')" \
    "rank 0 of start 1 rank 2 of start 1 rank 3 of start 1"
check_equal "and the files have all" "$(cat "$tmp"/some/start-1/*.log | grep -c 'of start 1')" 4
echo 3 >"$tmp/places"
echo 2 >"$tmp/places.1"
check_equal "the number in --ranks-file is read before each start" \
    "$(launch 4 "1 all kill-all" --ranks-file "$tmp/places")" "0: 3 2"
rm "$tmp/places.1"

# In front of the real one; under its name to the end.
cat >"$bin/mpirun" <<END
#!/usr/bin/env bash
"$(command -v mpirun)" "\$@"
exec -a "$bin/mpirun" sleep 100
END
chmod +x "$bin/mpirun"
check_equal "an mpirun that killed the wrappers and hangs is killed; one rank counts as lost" \
    "$(PATH=$bin:$PATH launch 3 "1 all kill-wrapper")" "0: 3 2"
# Killed processes may take a moment to end.
none_left() { wait_for 5 eval "! pgrep -f '$1'"; }
check "no such mpirun is left" none_left "$bin/mpirun"
rm "$bin/mpirun"

printf 'there\ngone\n' >"$tmp/names"
over_hosts=(--hosts-file "$tmp/names" --host-check "test there =")
check_equal "hosts are asked by --host-check" \
    "$(launch 2 "" "${over_hosts[@]}" --min-nodes 2; grep -c 'gone does not' "$tmp/launch.log")" \
    $'75: \n1'
check_equal "--hosts-file beside --ranks-file is refused with 78" \
    "$(launch 2 "" "${over_hosts[@]}" --ranks-file "$tmp/places")" "78: "
check_equal "so is one without a folder for the notes that the hosts share" \
    "$(launch 2 "" "${over_hosts[@]}" --dir "")" "78: "

check_equal "an unknown option is refused with 78" "$(launch 2 "" --no-such)" "78: "
check_equal "so is a number with a zero in front" \
    "$(launch 2 "" --grace 08; launch 2 "" --ranks 010)" $'78: \n78: '
check_equal "or one without end" "$(launch 2 "" --restarts-max 9223372036854775808)" "78: "

# In a separate group, with the signals of a shell at a terminal: a background job ignores SIGINT, a
# program under nohup SIGHUP, and so does the launcher then.
in_background() { # NAME RANKS OPTION...
    env --default-signal=INT,HUP setsid deploy/launch --config "$tmp/config.toml" --ranks "$2" \
        --dir "$tmp/$1" "${@:3}" >"$tmp/$1.log" 2>&1 &
    launcher=$!
    started_pids+=("$launcher")
}
ranks_wait() { # NAME: until both wait
    wait_for 40 test -e "$tmp/waits.0" -a -e "$tmp/waits.1" ||
        give_up "the ranks do not begin" "$tmp/$1.log"
}
ended() { # $end: "status: ranks that saved, starts"
    local status=0
    wait_gone "$launcher" 60 || kill_ours KILL "$launcher"
    wait "$launcher" || status=$?
    end="$status: $(sort "$tmp/saved" 2>/dev/null | paste -sd' '), $(wc -l <"$tmp/starts") starts"
}
scenario "1 all wait"
in_background group 2
ranks_wait group
kill -USR1 -- "-$launcher"
ended
check_equal "SIGUSR1 to its group: the ranks save, it ends with 75 and starts nothing again" \
    "$end" "75: 0 1, 1 starts"
check "nothing is said of ranks that did not save" \
    eval '! grep "did not end with 75" "$tmp/group.log"'

scenario $'1 0 shows\n1 1 wait'
in_background shows 2
ranks_wait shows
kill_ours USR2 "$launcher"
is_shown() { grep -qx 0 "$tmp/shown"; }
check "SIGUSR2 is passed to the ranks" wait_for 20 is_shown
kill_ours TERM "$launcher"
ended
check_equal "and ends nothing" "${end##*, }" "1 starts"

# As systemd and batch systems do: to every process of the job, here with its own ckptd.
scenario "1 all wait-ckptd"
echo "serve 1" >"$tmp/ckptd"
in_background every 2
ranks_wait every
mapfile -t pids < <(pgrep -f "$tmp/every|$bin/ckptd")
kill -TERM "${pids[@]}"
ended
check_equal "SIGTERM to every process of the job does the same" "$end" "75: 0 1, 1 starts"
check_equal "a ckptd that ended for it was started again for the last save" \
    "$(grep -c 'starting it again' "$tmp/every.log")" 1
check "nothing of it is left" none_left "$tmp/every|$bin/ckptd"

scenario "1 all wait"
echo "serve 20" >"$tmp/ckptd"
echo 3 >"$tmp/ready"
in_background filling 2
says() { # NAME WHAT: its launcher is there, or the following test reports nothing
    wait_for 40 grep -q "$2" "$tmp/$1.log" || give_up "\"$2\" is not said" "$tmp/$1.log"
}
says filling "waiting for ckptd"
check "no rank starts before the pool of the ckptd that was started is full" \
    test ! -e "$tmp/starts"
echo 4 >"$tmp/ready"
ranks_wait filling
kill -TERM "$launcher"
ended
check_equal "then they do" "$end" "75: 0 1, 1 starts"
check_equal "it says once what it waits for" "$(grep -c 'waiting for ckptd' "$tmp/filling.log")" 1

scenario "1 all wait"
echo "serve 1" >"$tmp/ckptd"
in_background between 2
ranks_wait between
kill -TERM "$(cat "$tmp/between/ckptd.pid")"
says between 'starting it again'
kill -TERM "$launcher"
ended
check_equal "asked to stop while ckptd is about to be started again, it ends" "$end" \
    "75: 0 1, 1 starts"
check "and no ckptd is left" none_left "$bin/ckptd"

with_ckptd() { # WHAT-CKPTD-DOES: prints the output of launch
    scenario ""
    echo "$1" >"$tmp/ckptd"
    : >"$tmp/asked"
    local status=0
    deploy/launch --config "$tmp/config.toml" --dir "$tmp/dir" >"$tmp/launch.log" 2>&1 || status=$?
    echo "$status: $(paste -sd' ' "$tmp/starts" 2>/dev/null)"
}
check_equal "a ckptd that ends with 78 ends the launcher with 78" "$(with_ckptd "exit 78")" "78: "
check_equal "one that ends again and again in another way ends it with 75" \
    "$(with_ckptd "exit 1")" "75: "
# A slow mpirun: the launcher is asked to stop before any rank has recorded its process id.
mkdir "$tmp/slow"
cat >"$tmp/slow/mpirun" <<END
#!/bin/bash
for ((i = 0; i < 400; i++)); do
    grep -qs 'asked to stop' "$tmp/early.log" && break
    sleep 0.05
done
exec "$(command -v mpirun)" "\$@"
END
chmod +x "$tmp/slow/mpirun"
scenario "1 all wait"
PATH=$tmp/slow:$PATH in_background early 2
says early 'start 1 with'
kill -TERM "$launcher"
ended
check_equal "SIGTERM before the ranks are there reaches them all the same" "${end%%:*}" 75

scenario $'1 all exit75\n2 all exit75'
in_background pause 2 --backoff 300 --backoff-max 300
says pause 'starting again in 300 s'
kill -TERM "$launcher"
ended
check_equal "SIGTERM breaks off the wait between two starts; the failure before had none" "$end" \
    "75: , 2 starts"
