# lib_nodes.sh - nodes of a cluster on this machine, for scripts that need several hosts.
#
#   . tests/integration/lib_nodes.sh "$0"   # after lib.sh; skips where namespaces are refused
#   start_node n1 1 COMMAND...              # a node that runs COMMAND, at 10.77.0.1
#   on_node n1 hostname
#   end_node n1                             # at once, with all that runs there
#   make_ckptds ctl n1 n2                   # a ckptd for each host, with the others as its peers
#   ckptd_of n1                             # $ckptd: its command; it answers at $local_server
#   status_of n1                            # the answer of ckpt-cli there
#
# The script runs again in new namespaces: all its processes and links disappear when it ends. A
# node is a namespace of processes, mounts (its own /tmp), network and host name, on a bridge with
# this script, which is the host `ctl`, 10.77.0.254. Files are shared, as on a cluster with one file
# system for all.
if [ -z "${HOLDFAST_TEST_INSIDE:-}" ]; then
    apart=(unshare -n -m -u -p -f --kill-child --mount-proc)
    rm -rf "$tmp" # the script makes another
    command -v ip >/dev/null || skip_all "ip is missing (iproute2)"
    "${apart[@]}" true 2>/dev/null || skip_all "namespaces are refused here (unshare)"
    HOLDFAST_TEST_INSIDE=1 exec "${apart[@]}" "$1"
fi
[[ $tmp != /tmp/* ]] || skip_all "TMPDIR is below /tmp, which each node has for itself"

hostname ctl
ip link set lo up
{ ip link add br0 type bridge && ip addr add 10.77.0.254/24 dev br0 && ip link set br0 up; } ||
    skip_all "no bridge can be made here (ip link)"
printf '%s\n' "127.0.0.1 localhost" "10.77.0.254 ctl" >"$tmp/etc-hosts"
for i in 1 2 3 4; do echo "10.77.0.$i n$i"; done >>"$tmp/etc-hosts"
mount --bind "$tmp/etc-hosts" /etc/hosts
export HOSTNAME=ctl # also on the nodes, as where a user's shell exports it

start_node() { # NAME NUMBER COMMAND...
    local name=$1 number=$2 keeper inner
    shift 2
    mkdir -p "$tmp/$name.tmp"
    # shellcheck disable=SC2016 # expanded in the node
    unshare -n -m -u -p -f --kill-child --mount-proc bash -c '
        hostname "$1" && mount --bind "$2" /tmp && ip link set lo up
        until ip link show eth0; do sleep 0.01; done
        ip addr add "$3/24" dev eth0 && ip link set eth0 up
        "${@:4}" &
        wait' node "$name" "$tmp/$name.tmp" "10.77.0.$number" "$@" >"$tmp/$name.log" 2>&1 &
    keeper=$!
    disown "$keeper" # the shell does not remark that it was killed
    started_pids+=("$keeper")
    node_is_apart() {
        inner=$(pgrep -P "$keeper") && [ ! "/proc/$inner/ns/net" -ef /proc/self/ns/net ] &&
            [ ! "/proc/$inner/ns/uts" -ef /proc/self/ns/uts ]
    }
    wait_for 5 node_is_apart || give_up "$name does not begin" "$tmp/$name.log"
    ip link add "p$number" type veth peer name eth0 netns "$inner"
    ip link set "p$number" master br0 up
    echo "$keeper" >"$tmp/$name.keeper"
    echo "$inner" >"$tmp/$name.inner"
}
end_node() { # NAME
    kill_ours KILL "$(cat "$tmp/$1.keeper")"
    rm "$tmp/$1.inner"
}
on_node() { # NAME COMMAND...
    nsenter -t "$(cat "$tmp/$1.inner")" -n -m -u -p "${@:2}"
}

# ---- a ckptd on each host ----

local_server=unix:/tmp/s # another one on each host
address_of() { # HOST
    [ "$1" = ctl ] && echo 10.77.0.254 || echo "10.77.0.${1#n}"
}
make_ckptds() { # HOST...
    local host
    command -v openssl >/dev/null || skip_all "openssl is missing"
    ckptd_hosts=("$@")
    mkdir "$tmp/ctl.tmp" && mount --bind "$tmp/ctl.tmp" /tmp
    {
        deploy/certificates authority "$tmp/authority" && for host; do
            deploy/certificates issue "$tmp/authority" "$tmp/$host.tls" \
                "holdfast://node/$host" "$(address_of "$host")" || break
        done
    } >"$tmp/certificates.log" 2>&1 || give_up "there are no certificates" "$tmp/certificates.log"
}
ckptd_of() { # HOST: its command in $ckptd, with a separate store
    local other peers=() address
    address=$(address_of "$1")
    for other in "${ckptd_hosts[@]}"; do
        [ "$other" = "$1" ] || peers+=("$other@$other=$(address_of "$other"):7070")
    done
    ckptd=("$BUILD/ckptd" --listen "$local_server" --store "$tmp/$1.store"
        --memory.pool_bytes 64MiB --memory.segment_bytes 1MiB
        --tls.listen "$address:7070" --tls.bulk "$address:7071" --tls.directory "$tmp/$1.tls"
        --nodes.name "$1" --nodes.domain "$1" --nodes.peers "$(IFS=, && echo "${peers[*]}")"
        --nodes.silent_ms 2000 --nodes.wait_ms 6000 --tier.quiet false)
}
on_host() { # HOST COMMAND...
    if [ "$1" = ctl ]; then "${@:2}"; else on_node "$@"; fi
}
status_of() { on_host "$1" "$BUILD/ckpt-cli" status --server "$local_server"; }
ckptd_answers() { # HOST
    wait_for 20 status_of "$1" >/dev/null || give_up "ckptd of $1 does not answer" "$tmp/$1.log"
}
ranks_at() { # HOST: how many are connected to its ckptd
    status_of "$1" | sed -n 's/^connected *\([0-9]*\) ranks*,.*/\1/p'
}
