#!/usr/bin/env bash
# Goal: before a run, --preflight reports for every rank whether its device copies and multiplies
# correctly and whether it receives the data of each other rank. It ends with 78 when one is
# broken, or far slower than the others. Every host has lines for itself, its ranks' calls and its
# disk; neither a stuck disk nor a rank that stands still holds it up. Links and calls are tried
# with five payloads. --links has a row for each call, payload and group of the mesh, and rates,
# with which --suggest prices a mesh. Method: CPUs, as threads and as processes, one of which
# multiplies by plain C, so it is slow at any load; simulated GPUs (tests/simgpu) that change one
# bit of one copy or refuse memory.
. "$(dirname "$0")/lib.sh"

plan 31
model=(--model.flavor tiny --training.seq_len 64) # small products
look() { # OUTPUT TRAINER [SETTING...]
    local to=$1
    shift
    "$@" --preflight "${model[@]}" >"$tmp/$to.out" 2>"$tmp/$to.log"
}
states() { # OUTPUT: of all ranks; slow is a matter of the moment
    sed -nE 's/.* (ok|slow|broken)  +.*/\1/p' "$tmp/$1.out" | sed 's/slow/ok/' | tr '\n' ' '
}
check "two threads are fit, without data, model and ckptd" \
    look threads "$BUILD/trainer" --comm.ranks 2
check_equal "each has a line, and says that it is not compared" \
    "$(states threads)$(grep -c 'not compared: fewer than 3 ranks' "$tmp/threads.out")" "ok ok 1"
check "two processes are fit" look processes mpirun --allow-run-as-root --oversubscribe -n 2 \
    "$BUILD/trainer" --comm.backend mpi
disk_is_measured() { # by ckptd's own writes, and by fio where it is
    mkdir -p "$tmp/disk"
    look disk "$BUILD/trainer" --comm.ranks 2 --debug.preflight_folder "$tmp/disk" &&
        awk -v fio="$(command -v fio)" '$1 == "disk" { n++; ok = $3 > 0 && $4 > 0 && $5 > 0 &&
            (fio == "") == ($6 == 0) } END { exit n != 1 || !ok }' "$tmp/disk.out" &&
        [ -z "$(ls -A "$tmp/disk")" ]
}
check "the disk of a folder is measured, and left as it was" disk_is_measured
no_disk() {
    look none "$BUILD/trainer" --comm.ranks 2 --debug.preflight_folder "$tmp/none/such" &&
        grep -q "warning: host .*: its disk could not be measured" "$tmp/none.out"
}
check "a folder that is not there is warned of" no_disk
no_model() { # a setting is at fault, not a rank
    local got=0
    "$BUILD/trainer" --preflight --comm.ranks 2 --model.flavor nosuch \
        >"$tmp/nosuch.out" 2>"$tmp/nosuch.log" || got=$?
    [ "$got" = 78 ] && [ ! -s "$tmp/nosuch.out" ] &&
        grep -q 'error.*model.flavor.*nosuch' "$tmp/nosuch.log"
}
check "a setting that names no model ends it with 78, and breaks no rank" no_model
stuck_disk() { # a disk that never answers, as a program that does not end
    mkdir -p "$tmp/stuck"
    cp "$BUILD/trainer" "$tmp/stuck" # it runs the ckpt-cli beside it
    printf '#!/bin/sh\necho $$ >%s\nexec sleep 1000\n' "$tmp/stuck/pid" >"$tmp/stuck/ckpt-cli"
    chmod +x "$tmp/stuck/ckpt-cli"
    look stuck "$tmp/stuck/trainer" --comm.ranks 2 --debug.preflight_folder "$tmp/stuck" \
        --comm.init_timeout_seconds 20 &&
        grep -q "warning: host .*: its disk did not answer in time" "$tmp/stuck.out" &&
        ! kill -0 "$(cat "$tmp/stuck/pid")"
}
check "so is a disk that does not answer, within a time" stuck_disk
cat >"$tmp/stops" <<END
#!/bin/sh
# Rank 1 stands still before it starts.
[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || kill -STOP \$\$
exec "$(realpath "$BUILD")/trainer" "\$@"
END
chmod +x "$tmp/stops"
stopped_rank() {
    look stopped mpirun --allow-run-as-root --oversubscribe -n 2 "$tmp/stops" \
        --comm.backend mpi --comm.init_timeout_seconds 3
    [ $? = 75 ] && grep -q "longer than comm.init_timeout_seconds for all ranks to start" \
        "$tmp/stopped.log"
}
check "a rank that does not start ends the others with 75 within comm.init_timeout_seconds" \
    stopped_rank
slow_is_named() { # three ranks of one host, and one of another
    local got=0 of=("$BUILD/trainer" --preflight --comm.backend mpi)
    of+=("${model[@]}")
    mpirun --allow-run-as-root --oversubscribe -n 3 -x HOLDFAST_HOST=a "${of[@]}" : \
        -n 1 -x HOLDFAST_HOST=b "${of[@]}" --kernels.backend reference \
        >"$tmp/slow.out" 2>"$tmp/slow.log" || got=$?
    [ "$got" = 78 ] &&
        grep -Eq '^3 +b .* broken  products at [0-9]+ % of the median' "$tmp/slow.out"
}
check "of four one that is slower by a factor is broken, and named with the median" slow_is_named
check "one clock is not ahead of itself" \
    awk '$1 == "node" { n++; bad += $12 > 100 || $12 < -100 } END { exit n != 2 || bad }' \
    "$tmp/slow.out"
check_equal "each host has a line with its ranks, and what there is" \
    "$(awk '$1 == "node" && $5 > 0 && $6 > 0 { print $2, $3, $4 ~ /^[13]\/[1-9]/ }' \
        "$tmp/slow.out" | paste -sd,)" "a 3 1,b 1 1"
check_equal "the ranks of a host have rates of sums and gathers, and so have all together" \
    "$(awk '$1 == "calls" && NF == 9 && $6 > 0 && $7 > 0 && $8 > 0 && $9 > 0 {
        print $2, $3, $4 }' "$tmp/slow.out" | paste -sd,)" \
    "a 3 sum,a 3 gather,(all) 4 sum,(all) 4 gather"
check_equal "of links between the hosts the slowest and the fastest are named by payload" \
    "$(awk '$1 == "pairs" && 0 < $8 && $8 <= $4 && ($5 == 3) != ($6 == 3) &&
        ($9 == 3) != ($10 == 3) { print $2 }' "$tmp/slow.out" | paste -sd,)" \
    "16,64,256,1024,4096"
received() { # payloads; each rank of the others: RANK FROM, sorted
    "$BUILD/trainer" --preflight --json --comm.ranks 3 "${model[@]}" 2>"$tmp/pairs.log" |
        python3 -c '
import json, sys
found = json.load(sys.stdin)
payloads = found["payload_bytes"]
print(*payloads)
for rank in found["ranks"]:
    print(rank["rank"], *sorted(link["from"] for link in rank["links"]
                                if sum(rate > 0 for rate in link["bytes_per_second"]) ==
                                len(payloads)))' | paste -sd,
}
check_equal "each rank has rates of links from each other one, by payload" "$(received)" \
    "16384 65536 262144 1048576 4194304,0 1 2,1 0 2,2 0 1"
rows() { # OUTPUT [COMMAND...]: a line for each group and call of how many rows
    "${@:2}" --links --debug.links_max_bytes 131072 >"$tmp/$1.out" 2>"$tmp/$1.log" || return
    awk '/_/ && $8 > 0 { print $1, $2, $3 }' "$tmp/$1.out" | sort | uniq -c | awk '{$1 = $1} 1' |
        paste -sd,
    grep -q -- '--suggest: --memory_estimation.machine_gb_per_s [0-9.]* --mem' "$tmp/$1.out"
}
calls() { # RANKS GROUP
    for call in all_gather all_reduce all_to_all send_recv; do echo "2 $2 $1 $call"; done
}
check_equal "the links of all four and of the groups of the mesh are measured" \
    "$(rows links mpirun --allow-run-as-root --oversubscribe -n 4 "$BUILD/trainer" \
        --comm.backend mpi --parallelism.tensor_parallel_degree 2)" \
    "$({ calls 2 dp_shard && calls 2 tp && calls 4 world; } | paste -sd,)"
check_exit 78 "one rank has no links" "$BUILD/trainer" --links
measure() {
    "$BUILD/trainer" --bench --json --debug.links_max_bytes 32768 --comm.ranks 2 >"$tmp/rates.json"
}
check "they are written as JSON" measure
suggested() { # with these rates: two meshes of two ranks have them, as text and as JSON
    local of=("$BUILD/trainer" --suggest --rates "$tmp/rates.json" --comm.ranks 2)
    of+=(--model.flavor tiny --model.vocab_size 512 --training.seq_len 64)
    "${of[@]}" >"$tmp/suggested.txt" 2>"$tmp/suggested.log" &&
        grep -q "^measured: machine_gb_per_s, call_us ($tmp/rates.json)\$" "$tmp/suggested.txt" &&
        "${of[@]}" --json 2>>"$tmp/suggested.log" | python3 -c 'import json, sys
measured = json.load(open(sys.argv[1]))["memory_estimation"]
rates = json.load(sys.stdin)["rates"]
sys.exit(rates != {"network_gb_per_s": 50, "measured": "machine_gb_per_s, call_us", **measured})
' "$tmp/rates.json"
}
check "--suggest takes them in place of its own, and says so" suggested
below_peak() { # the model's products of each size, beside what the processor should do
    local of=("$BUILD/trainer" --preflight --comm.ranks 2 --model.flavor 110M)
    of+=(--training.seq_len 256 --training.local_batch_size 1)
    of+=(--parallelism.tensor_parallel_degree 2 --metrics.peak_tflops 5)
    "${of[@]}" >"$tmp/peak.out" 2>"$tmp/peak.log" &&
        grep -q "preflight: rank 1 .*: products at the model's shapes at [0-9.]* % of the peak" \
            "$tmp/peak.out" &&
        [ "$(awk '$1 == "shape" && $6 > 0 { print $2, $3, $4, $5 }' "$tmp/peak.out" |
            paste -sd,)" = "256 768 384 12,256 768 128 24,256 384 768 12,256 768 768 36" ]
}
check "products of the model's shapes, cut as it will be, are beside the peak" below_peak
if [ ! -x "$BUILD/tests/trainer_on_simgpu" ]; then
    for i in {20..31}; do echo "ok $i - on GPUs # SKIP NVIDIA's headers are not here"; done
    exit
fi
gpus() { # OUTPUT SIMGPU RANKS
    SIMGPU=$2 look "$1" "$BUILD/tests/trainer_on_simgpu" --kernels.device cuda \
        --comm.backend nccl --comm.ranks "$3"
}
check_equal "so are those of two GPUs by NCCL, and copies to them and back" \
    "$(SIMGPU=devices=2,seed=7 rows nccl "$BUILD/tests/trainer_on_simgpu" --kernels.device cuda \
        --comm.backend nccl --comm.ranks 2)" \
    "$({ echo "2 device 1 to_device" && echo "2 device 1 to_host" && calls 2 world; } | paste -sd,)"
check_equal "of one GPU the copies are measured, without calls or their rates" \
    "$(SIMGPU=devices=1,seed=7 "$BUILD/tests/trainer_on_simgpu" --kernels.device cuda --bench \
        --json --debug.links_max_bytes 131072 2>"$tmp/one.log" | python3 -c '
import json, sys
found = json.load(sys.stdin)
print(*sorted(found), *sorted(row["call"] for row in found["rows"]))')" \
    "rows to_device to_device to_host to_host"
check "two GPUs are fit" gpus good devices=2,seed=7 2
check_equal "and named as nvidia-smi and the kernel's log name them" \
    "$(grep -o 'GPU-[0-9a-f-]* at [0-9a-f:.]*' "$tmp/good.out" | paste -sd,)" \
    "$(printf 'GPU-%s at %s\n' 00102030-4050-6070-8090-a0b0c0d0e0f0 0000:00:00.0 \
        01112131-4151-6171-8191-a1b1c1d1e1f1 0000:01:00.0 | paste -sd,)"
health() { # OUTPUT: of each rank errors, lanes, links, heat, generation, driver
    awk '$1 == "gpu" { print $3, $4, $5, $6, $7, $8, $9 }' "$tmp/$1.out" | paste -sd,
}
check_equal "NVIDIA's library says how they are" "$(health good)" \
    "0 0 16/16 18/18 45 5/5 550.54.15,1 0 16/16 18/18 45 5/5 550.54.15"
broken() { # OUTPUT SIMGPU RANKS PROBLEM
    local got=0
    gpus "$1" "$2" "$3" || got=$?
    [ "$got" = 78 ] && states "$1" | grep -q broken && grep -q "$4" "$tmp/$1.out"
}
# Copies onto a rank's device: five of 32 MiB, an operand for each size; then the data that it
# sends.
check "a bit that a copy changes breaks a rank" \
    broken copy flip=1000000:3 1 "copies: data copied"
check "so does one on the way back" broken back torn=1000000:3 1 "copies: data copied"
check "so does a product of other numbers" \
    broken product flip=100000:6 1 "products: a product of small integers is wrong"
check "so does what another rank sent otherwise than it says" \
    broken link devices=2,flip=4194304:12 2 "links: data from rank [01] arrived with other bits"
check "so does a sum of other numbers than the ranks have" \
    broken calls devices=2,flip=4194304:23 2 "calls: a sum or a gather of all ranks' numbers"
check "memory that is refused is named" broken memory fail=cudaMalloc:1 1 "out of memory"
sick() { # of two the last one
    gpus hot devices=2,sick=heat 2 &&
        grep -q "rank 1 .*: its clocks are slowed by heat, at 93 degrees" "$tmp/hot.out" &&
        gpus bus devices=2,sick=generation 2 &&
        grep -q "rank 1 .*: its bus is at PCIe generation 3 of 5" "$tmp/bus.out" &&
        broken ecc devices=2,sick=errors 2 "rank 1 .*: 3 errors of its memory"
}
check "one that is not well is named, and broken when its memory has had errors" sick
