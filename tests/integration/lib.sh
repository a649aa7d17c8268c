# lib.sh - shared by the integration scripts: TAP lines, a private folder, servers that end with the
# script.
#
#   . tests/integration/lib.sh
#   plan 2
#   start_ckptd          # our own: sets $server, $store, $ckptd_pid; log in $tmp/ckptd.log
#   check "a save is committed" test -e "$store/..."
#   check_exit 78 "an unknown key is refused" "$BUILD/trainer" --no.such 1
#
# All files lie under $tmp (a fresh folder with a short name). The script's exit removes them, and
# ends its processes by process id.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
export BUILD=${BUILD:-$PWD/build}
tmp=$(mktemp -d "${TMPDIR:-/var/tmp}/it-XXXX")
tests_done=0
[ -z "${SEED:-}" ] || RANDOM=$SEED
started_pids=()
tries_per_second=$(awk -v scale="${TEST_TIME_SCALE:-1}" 'BEGIN { print int(20 * scale) }')

# Process ids are reused: a signal may only be sent to a process that is still our child.
kill_ours() { # SIGNAL PID
    grep -qsx "PPid:[[:space:]]*$$" "/proc/$2/status" && kill -"$1" "$2" 2>/dev/null
}
cleanup() {
    local pid
    for pid in "${started_pids[@]}"; do kill_ours TERM "$pid"; done
    for pid in "${started_pids[@]}"; do
        ! grep -qsx "PPid:[[:space:]]*$$" "/proc/$pid/status" || wait_gone "$pid" 5 ||
            kill_ours KILL "$pid"
    done
    rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

plan() { echo "1..$1"; }
# As tests/unit/sample.h has it for C: of the trials of a matrix, in its order, one in N is left,
# from one by chance on. SAMPLE=N leaves another share, SAMPLE=1 all.
sample() { # ARRAY N
    local -n trials=$1
    local i one_in=${SAMPLE:-$2} left=()
    for ((i = RANDOM % one_in; i < ${#trials[@]}; i += one_in)); do left+=("${trials[i]}"); done
    trials=("${left[@]}")
}
ok() { tests_done=$((tests_done + 1)) && echo "ok $tests_done - $1"; }
not_ok() { # NAME [FILE of evidence]
    tests_done=$((tests_done + 1))
    echo "not ok $tests_done - $1"
    [ -z "${2:-}" ] || tail -n 40 "$2" | sed 's/^/# /'
}
note() { echo "# $*"; }
skip_all() { echo "$1" && exit 77; }
give_up() { # REASON [FILE of evidence]: the following tests could not run
    note "$1"
    [ -z "${2:-}" ] || tail -n 20 "$2" | sed 's/^/# /'
    exit 1
}

check() { # NAME COMMAND...: passes when the command succeeds
    local name=$1
    shift
    if "$@" >"$tmp/check.log" 2>&1; then
        ok "$name"
    else
        not_ok "$name ($*)" "$tmp/check.log"
    fi
}
check_exit() { # STATUS NAME COMMAND...: passes when it ends with STATUS; output in check.log
    local want=$1 name=$2 got=0
    shift 2
    "$@" >"$tmp/check.log" 2>&1 || got=$?
    if [ "$got" = "$want" ]; then
        ok "$name"
    else
        not_ok "$name: exit $got, not $want" "$tmp/check.log"
    fi
}
check_equal() { # NAME A B
    if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1: \"$2\" is not \"$3\""; fi
}

wait_gone() { # PID SECONDS
    local i
    for ((i = 0; i < $2 * tries_per_second; i++)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.05
    done
    return 1
}
wait_for() { # SECONDS COMMAND...: until it succeeds
    local i tries=$(($1 * tries_per_second))
    shift
    for ((i = 0; i < tries; i++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    return 1
}
ckptd_serves() { # also a damaged checkpoint: then health fails
    [[ $("$BUILD/ckpt-cli" health --server "$server" 2>&1) == "serving: true"* ]]
}
start_ckptd() { # [OPTION...]: on $server with $store, waits until it answers
    server=unix:$tmp/s
    store=$tmp/store
    local program=$BUILD/ckptd
    [[ $* != *fault:* ]] || program=$BUILD/tests/ckptd
    "$program" --listen "$server" --store "$store" --memory.pool_bytes 256MiB \
        --memory.segment_bytes 4MiB "$@" >>"$tmp/ckptd.log" 2>&1 &
    ckptd_pid=$!
    started_pids+=("$ckptd_pid")
    wait_for 20 ckptd_serves ||
        give_up "ckptd does not answer" "$tmp/ckptd.log"
}
stop_ckptd() { # [SIGNAL]
    kill_ours "${1:-TERM}" "$ckptd_pid"
    wait_gone "$ckptd_pid" 40 || give_up "ckptd does not end" "$tmp/ckptd.log"
}
