#!/usr/bin/env bash
# Goal: a run as a job of SLURM saves at the warning before its time limit, ends with 75, is queued
# again and continues. A job that loses a node, with its ckptd, continues on the remaining one, or,
# when it needs both (--min-nodes), is queued again. A task of an array takes its own options. No
# loss differs from the undisturbed run's. Method: a real slurmctld, munged, four slurmd and four
# ckptd, one of each in a separate node (lib_nodes.sh) that ends with all its processes. slurmctld
# checks time limits 30 s after its start: by then the job with a limit must train.
. "$(dirname "$0")/lib.sh"
for program in slurmctld slurmd sbatch munged mpirun; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || skip_all "$program is missing"
done
. tests/integration/lib_nodes.sh "$0"
. tests/integration/lib_tiny.sh
export PATH=$PATH:/usr/sbin HOLDFAST_BIN=$BUILD HOLDFAST_LAUNCH=$PWD/deploy/launch
plan 14
make_tiny

# ---- the cluster ----

cat >"$tmp/slurm.conf" <<END
ClusterName=test
SlurmctldHost=ctl(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$tmp/munge,cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=$tmp/state
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmctldPort=17000
SlurmdSpoolDir=$tmp/%n.spool
SlurmdPidFile=$tmp/%n.pid
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=20
RequeueExit=75
SchedulerParameters=sched_interval=2
PropagateResourceLimits=NONE
END
for i in 1 2 3 4; do
    echo "NodeName=n$i NodeAddr=10.77.0.$i Port=1700$i CPUs=4"
done >>"$tmp/slurm.conf"
echo "PartitionName=all Nodes=ALL Default=YES State=UP" >>"$tmp/slurm.conf"
export SLURM_CONF=$tmp/slurm.conf
mkdir "$tmp/state"
(umask 077 && head -c 1024 /dev/urandom >"$tmp/munge.key")
munged --foreground --force --socket "$tmp/munge" --key-file "$tmp/munge.key" \
    --pid-file "$tmp/munge.pid" --seed-file "$tmp/munge.seed" >"$tmp/munged.log" 2>&1 &
started_pids+=("$!")
wait_for 5 test -S "$tmp/munge" || give_up "munged does not begin" "$tmp/munged.log"
make_ckptds n1 n2 n3 n4
for i in 1 2 3 4; do
    ckptd_of "n$i"
    # shellcheck disable=SC2016 # expanded in the node
    start_node "n$i" "$i" sh -c '"$@" & exec slurmd -D -N "$0"' "n$i" "${ckptd[@]}"
done
slurmctld -D >"$tmp/slurmctld.log" 2>&1 &
started_pids+=("$!")
all_idle() { [ "$(sinfo -h -t idle -o %D)" = 4 ]; }
wait_for 15 all_idle || give_up "the nodes do not come" "$tmp/slurmctld.log"
for i in 1 2 3 4; do ckptd_answers "n$i"; done

# ---- the jobs ----

launcher_options=()
submit() { # RUN SBATCH-OPTION... -- TRAINER-OPTION...: its number in $job
    local run=$1 options=()
    shift
    until [ "$1" = -- ]; do options+=("$1") && shift; done
    shift
    : >"$tmp/$run.loss"
    job=$(HOLDFAST_JOB_DIR=$tmp/$run.dir sbatch --parsable --nodes 2 \
        --output "$tmp/$run.log" "${options[@]}" deploy/slurm/train.sbatch --config "$tiny" \
        --ranks 1 --server "$local_server" --backoff 0.2 --backoff-max 2 --restarts-max 1000 \
        "${launcher_options[@]}" -- \
        --job.run "$run" --metrics.loss_file "$tmp/$run.loss" --training.steps 1000000 \
        --checkpoint.interval 1000000 "$@") || give_up "sbatch refuses $run"
}
has_lines() { [ "$(wc -l <"$tmp/$1.loss")" -ge "$2" ]; }
trains() { # RUN: twenty more steps
    wait_for 40 has_lines "$1" $(($(wc -l <"$tmp/$1.loss") + 20)) || {
        tail -n 5 "$tmp/slurmctld.log" | sed 's/^/# /'
        give_up "$1 does not train" "$tmp/$1.log"
    }
}
starts() { awk '$2 == "start" { print $4 }' "$tmp/$1.dir/events" | paste -sd' '; }
has_starts() { [ "$(starts "$1" | wc -w)" -ge "$2" ]; }
is_over() { [ -z "$(squeue -h -j "$1" -t RUNNING,COMPLETING -o %T)" ]; }
right() { # RUN: every loss is the undisturbed run's
    check_equal "$1: every loss is that of an undisturbed run" \
        "$(awk 'NR == FNR { right[$1] = $0; next } $0 != right[$1]' "$tmp/alone.loss" \
            "$tmp/$1.loss" | head -n 3)" ""
}

submit limit --nodelist n3,n4 --time 1 --signal B:USR1@30 --
limit=$job
submit lost --nodelist n1,n2 -- --checkpoint.interval 20
lost=$job
launcher_options=(--min-nodes 2)
submit few --nodelist n1,n2 --
few=$job
launcher_options=()
trains limit
! grep -q 'asked to stop' "$tmp/limit.log" || give_up "too slow: the warning came first"
trains lost
trains few
at_their_nodes() { [ "$(ranks_at n1), $(ranks_at n2)" = "2, 2" ]; }
at_their_nodes || # a rank that was cut off comes again; the logs name it and the reason
    { status_of n1 && status_of n2 && tail -n 25 "$tmp"/n[12].log "$tmp"/{lost,few}.log; } |
    sed 's/^/# /'
check "each rank uses the ckptd of its node" wait_for 20 at_their_nodes
is_replicated() { grep -q 'drain: run lost, .* durability replicated' "$tmp"/n[12].log; }
wait_for 40 is_replicated || give_up "no checkpoint would survive a node" "$tmp/lost.log"
end_node n2

HOLDFAST_ARRAY_OPTIONS=$tmp/options
printf '%s\n' "--training.steps 1" "--training.steps 30" >"$HOLDFAST_ARRAY_OPTIONS"
export HOLDFAST_ARRAY_OPTIONS
submit array --array 1 --nodelist n3,n4 --
unset HOLDFAST_ARRAY_OPTIONS
array_is_done() { grep -q 'the run is done' "$tmp/array.log"; }
check "a task of an array takes the options of its line" wait_for 150 array_is_done
check_equal "and ends after its steps" "$(wc -l <"$tmp/array.loss")" 30

check "a lost node ends the start" wait_for 120 has_starts lost 2
trains lost
check_equal "the job goes on with the node that is left" \
    "$(starts lost | cut -d ' ' -f 1),$(starts lost | grep -o '.$')" "2,1"
check_equal "and was not queued again" \
    "$(scontrol show job "$lost" | grep -o 'Restarts=[0-9]*')" "Restarts=0"
scancel "$lost"

is_requeued() { scontrol show job "$1" | grep -q 'Restarts=[1-9]'; } # twice on a slow machine
check "one that needs both is queued again" wait_for 60 is_requeued "$few"
check_equal "and starts nothing on the one that is left" \
    "$(starts few | tr ' ' '\n' | sort -u),$(grep -c 'fewer than 2 (--' "$tmp/few.log")" "2,1"
scancel "$few"
check "before the time limit the job ends with 75 and is queued again" \
    wait_for 150 is_requeued "$limit"
begins_again() { [ "$(grep -c 'start 1 with' "$tmp/limit.log")" -ge 2 ]; }
check "the run is started again" wait_for 60 begins_again
trains limit
steps_of() { # START: the steps that it logged
    awk -v n="$1" '/ start 1 with / { i++ }
        i == n && match($0, /step: *[0-9]+ /) { print substr($0, RSTART + 5, RLENGTH - 6) + 0 }' \
        "$tmp/limit.log"
}
saved=$(steps_of 1 | tail -n 1)
check_equal "it goes on from the last step before that" "$(steps_of 2 | head -n 1)" $((saved + 1))
scancel "$limit"
check "cancelled jobs end" wait_for 30 eval 'is_over "$lost" && is_over "$limit"'

last=$(cat "$tmp"/{lost,limit}.loss | sort -n | tail -n 1 | cut -d ' ' -f 1)
start_ckptd
in_background alone --training.steps 1000000 --checkpoint.interval 1000000
note "step $last is the last, step $saved was saved at the warning, $SECONDS s"
reached() { [ "$(tail -n 1 "$tmp/alone.loss" | cut -d ' ' -f 1)" -gt "$last" ]; }
wait_for 60 reached || give_up "the undisturbed run does not come so far" "$tmp/alone.log"
kill_ours TERM "$pid"
ended
right limit
right lost
