#!/usr/bin/env bash
# Goal: a run over two hosts, each with a ckptd that its rank uses, continues with one when the
# other is lost with its ckptd, and uses it again when it is back. When asked to stop it saves on
# another host than the launcher's. All losses are those of an undisturbed run. Method: real mpirun,
# trainer and ckptd; the hosts are namespaces (lib_nodes.sh), and mpirun's agent enters them instead
# of ssh. Each ckptd has a socket in its host's /tmp, a private store, and the others as its peers.
# A third host runs only a ckptd, so two are a majority. The lost host ends with all its processes
# and its link; it comes back with its store. Then its trainer cannot be executed any more: the
# preflight detects it, and the third host replaces it. So it does in another run, when the trainer
# there stands still from its beginning.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_nodes.sh "$0"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing"
plan 16
make_tiny
export HOLDFAST_BIN=$BUILD
make_ckptds ctl n1 n2
begin_host() { # HOST NUMBER
    ckptd_of "$1"
    start_node "$1" "$2" "${ckptd[@]}"
    ckptd_answers "$1"
}
cat >"$tmp/agent" <<END
#!/usr/bin/env bash
# As ssh: HOST COMMAND...
inner=\$(cat "$tmp/\$1.inner") || exit 255
exec nsenter -t "\$inner" -n -m -u -p sh -c "\${*:2}"
END
cat >"$tmp/check" <<END
#!/bin/sh
[ "\$1" = ctl ] || "$tmp/agent" "\$1" true
END
chmod +x "$tmp/agent" "$tmp/check"
ckptd_of ctl
"${ckptd[@]}" >"$tmp/ctl.log" 2>&1 &
started_pids+=("$!")
begin_host n1 1
begin_host n2 2
printf '# of this test\nctl\nn1\nn2\n' >"$tmp/hosts"
echo n2 >"$tmp/excluded"

launch() { # RUN [OPTION...]
    deploy/launch --config "$tiny" --ranks 1 --hosts-file "$tmp/hosts" --server "$local_server" \
        --nodes 2 --exclude-file "$tmp/excluded" --preflight --host-check "$tmp/check" \
        --dir "$tmp/$1.dir" "${@:2}" --backoff 0.1 --backoff-max 0.5 \
        --mpirun "--mca plm_rsh_agent $tmp/agent --mca plm rsh" -- --job.run "$1" \
        --metrics.loss_file "$tmp/$1.loss" --training.steps 1000000 --checkpoint.interval 10 \
        >>"$tmp/$1.log" 2>&1 &
    launcher=$!
    started_pids+=("$launcher")
}
has_lines() { [ "$(wc -l <"$tmp/$1.loss")" -ge "$2" ]; }
trains() { # RUN: ten more steps
    wait_for 40 has_lines "$1" $(($(wc -l <"$tmp/$1.loss") + 10)) ||
        give_up "$1 does not train" "$tmp/$1.log"
}
starts() { awk '$2 == "start" { print $4 }' "$tmp/$1.dir/events" | paste -sd' '; }
has_starts() { [ "$(starts "$1" | wc -w)" -ge "$2" ]; }
stop() { # $status
    status=0
    kill_ours TERM "$launcher"
    wait_gone "$launcher" 60 || kill_ours KILL "$launcher"
    wait "$launcher" || status=$?
}

: >"$tmp/two.loss"
launch two
trains two
check "a rank runs on each host" test -e "$tmp/two.dir/start-1/rank-0.pid" -a \
    -e "$tmp/two.dir/start-1/rank-1.far"
check_equal "and uses the ckptd of its host" "$(for host in ctl n1 n2; do ranks_at "$host"; done |
    paste -sd' ')" "1 1 0"
kill_ours USR2 "$launcher"
shown() { [ "$(grep -c 'stacks of process' "$tmp/two.log")" = 2 ]; }
check "SIGUSR2 to the launcher makes the ranks of both hosts print their stacks" wait_for 20 shown
is_replicated() { grep -q 'drain: run two, .* durability replicated' "$tmp/ctl.log"; }
wait_for 40 is_replicated || give_up "no checkpoint would survive a host" "$tmp/two.log"
end_node n1
check "a lost host ends the start" wait_for 40 has_starts two 2
trains two
check_equal "the run goes on with the host that is left" "$(starts two)" "2 1"
check_equal "which it says" "$(grep -c 'the host n1 does not answer' "$tmp/two.log")" 1
link_is_gone() { ! ip link show p1; }
wait_for 10 link_is_gone >"$tmp/link.log" 2>&1 || give_up "the link of n1 stays" "$tmp/link.log"
begin_host n1 1
: >"$tmp/excluded"
kill -KILL "$(cat "$tmp/two.dir/start-2/rank-0.pid")"
check "a host that is back is taken again" wait_for 20 has_starts two 3
trains two
check_equal "with all ranks, as the other that lost one but answers" "$(starts two)" "2 1 2"
check_equal "and the third host is a spare" "$(grep -c 'spare: n2' "$tmp/two.log")" 1
on_node n1 mount --bind /dev/null "$BUILD/trainer"
echo ctl >"$tmp/excluded" # nothing can be signalled where the others are
kill -KILL "$(cat "$tmp/two.dir/start-3/rank-0.pid")"
wait_for 40 has_starts two 4 || give_up "no start without ctl" "$tmp/two.log"
trains two
check_equal "that takes the place of one whose ranks do not pass the preflight" \
    "$(starts two): $(cut -d ' ' -f 1,3- "$tmp/two.dir/excluded")" \
    "2 1 2 1: n1 it ended with status 126"
stop
saved=$(cat "$tmp/two.dir/start-4"/rank-*.end | paste -sd' ')
check_equal "asked to stop, the ranks of another host save" "$status: $saved" "75: 75"
last=$(tail -n 1 "$tmp/two.loss" | cut -d ' ' -f 1)
check "the last step is there" on_node n2 \
    "$BUILD/ckpt-cli" verify --server "$local_server" "two@$last"

# shellcheck disable=SC2016 # of the script
printf '#!/bin/sh\nkill -STOP $$\n' >"$tmp/stands" && chmod +x "$tmp/stands"
on_node n1 umount "$BUILD/trainer"
on_node n1 mount --bind "$tmp/stands" "$BUILD/trainer"
: >"$tmp/excluded"
: >"$tmp/three.loss"
limit=$(awk -v scale="${TEST_TIME_SCALE:-1}" 'BEGIN { print int(30 * scale) }')
launch three --preflight-seconds "$limit"
check "a rank that stands still does not hold the preflight up" wait_for 120 has_lines three 1
check_equal "and its host is named and left out, and a spare takes its place" \
    "$(starts three): $(cut -d ' ' -f 1,3- "$tmp/three.dir/excluded")
$(grep -c 'rank 1 on n1 is broken: it did not answer within' "$tmp/three.log")" \
    "2: n1 it did not answer within $limit s"$'\n1'
nothing_stands() { [ "$(on_node n1 pgrep -fc "$tmp/stands|$BUILD/trainer")" = 0 ]; }
check "and nothing of it is left there" wait_for 10 nothing_stands
stop

start_ckptd
in_background alone --training.steps 1000000
most=$(sort -n "$tmp/two.loss" | tail -n 1 | cut -d ' ' -f 1) # a start may end before the last one
reached() { [ "$(tail -n 1 "$tmp/alone.loss" | cut -d ' ' -f 1)" -gt "$most" ]; }
wait_for 90 reached || give_up "the undisturbed run does not come so far" "$tmp/alone.log"
kill_ours TERM "$pid"
ended
wrong=$(awk 'NR == FNR { right[$1] = $0; next } $0 != right[$1]' "$tmp/alone.loss" "$tmp/two.loss")
check_equal "every loss is that of an undisturbed run" "$wrong" ""
