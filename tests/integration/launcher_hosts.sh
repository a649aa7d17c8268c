#!/usr/bin/env bash
# Goal: a run over two hosts goes on with one when the other is lost, takes it again when it is
# back, and saves on another host than the launcher's when it is asked to stop; all losses are those
# of the run that was left alone. Method: real mpirun, trainer and ckptd; the hosts are namespaces
# (lib_nodes.sh), and mpirun's agent enters them instead of ssh. The host that is lost ends with all
# its processes, and its link is gone. Both hosts use one ckptd, through the file system they share;
# nothing is shown here of one ckptd per host.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_nodes.sh "$0"
. tests/integration/lib_tiny.sh
command -v mpirun >/dev/null || skip_all "mpirun is missing"
plan 9
make_tiny
export HOLDFAST_BIN=$BUILD
start_ckptd
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
start_node n1 1 sleep 1000
printf '# of this test\nctl\nn1\n' >"$tmp/hosts"

launch() { # RUN
    deploy/launch --config "$tiny" --ranks 1 --hosts-file "$tmp/hosts" --server "$server" \
        --host-check "$tmp/check" --dir "$tmp/$1.dir" --backoff 0.1 --backoff-max 0.5 \
        --mpirun "--mca plm_rsh_agent $tmp/agent --mca plm rsh" -- --job.run "$1" \
        --metrics.loss_file "$tmp/$1.loss" --training.steps 1000000 --checkpoint.interval 20 \
        >>"$tmp/$1.log" 2>&1 &
    launcher=$!
    started_pids+=("$launcher")
}
has_lines() { [ "$(wc -l <"$tmp/$1.loss")" -ge "$2" ]; }
trains() { # RUN: twenty more steps
    wait_for 40 has_lines "$1" $(($(wc -l <"$tmp/$1.loss") + 20)) ||
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
end_node n1
check "a lost host ends the start" wait_for 40 has_starts two 2
trains two
check_equal "the run goes on with the host that is left" "$(starts two)" "2 1"
check_equal "which it says" "$(grep -c 'the host n1 does not answer' "$tmp/two.log")" 1
start_node n1 2 sleep 1000
kill -KILL "$(cat "$tmp/two.dir/start-2/rank-0.pid")"
check "a host that is back is taken again" wait_for 20 has_starts two 3
trains two
check_equal "with all ranks, as the other that lost one but answers" "$(starts two)" "2 1 2"
echo n1 >"$tmp/hosts" # where nothing can be signalled
kill -KILL "$(cat "$tmp/two.dir/start-3/rank-0.pid")"
wait_for 20 has_starts two 4 || give_up "no start without ctl" "$tmp/two.log"
trains two
stop
saved=$(cat "$tmp/two.dir/start-4"/rank-*.end | paste -sd' ')
check_equal "asked to stop, the ranks of another host save" "$status: $saved" "75: 75"
last=$(tail -n 1 "$tmp/two.loss" | cut -d ' ' -f 1)
check "the last step is there" "$BUILD/ckpt-cli" verify --store "$store" "two@$last"

in_background alone --training.steps 1000000
reached() { [ "$(tail -n 1 "$tmp/alone.loss" | cut -d ' ' -f 1)" -gt "$last" ]; }
wait_for 90 reached || give_up "the undisturbed run does not come so far" "$tmp/alone.log"
kill_ours TERM "$pid"
ended
wrong=$(awk 'NR == FNR { right[$1] = $0; next } $0 != right[$1]' "$tmp/alone.loss" "$tmp/two.loss")
check_equal "every loss is that of an undisturbed run" "$wrong" ""
