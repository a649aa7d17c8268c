#!/usr/bin/env bash
# Goal: a run on GPUs has the losses, weights and moments of the CPU, bit for bit where no tensor
# core has a part, on every mesh, in every order that CUDA allows, and when it is killed and resumed
# on another mesh, or on the CPU. Without a driver, and when a GPU is lost, one line says so.
# Method: the trainer's own objects with simulated GPUs in place of CUDA (tests/simgpu), one for
# each rank. The CPU's run at the level avx2, whose products are those of the plain kernels.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
. tests/integration/lib_gpus.sh

snapshots=(--checkpoint.async_mode async_with_pinned_mem)
twins=(--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 1
    --kernels.graphs false)
plan 44

check "the CPU trains" train cpu - 1
check "two GPUs with shards have them, snapshots during the step" \
    train_same two $random,node=900 2 "${snapshots[@]}" --timeline "$tmp/two.json"
# A row of each lane beside that of the host's: the same operations, none before the host began it.
device_times() {
    python3 - "$tmp/two.json" <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
row = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
spans = {}
for e in events:
    if e["ph"] == "X":
        spans.setdefault((e["pid"], row[e["pid"], e["tid"]]), []).append(e)
for rank in 0, 1:
    for lane in "compute", "gather", "reduce":
        host, device = spans[rank, lane], spans[rank, lane + ", device"]
        assert [e["name"] for e in host] == [e["name"] for e in device], lane
        for on_host, here, after in zip(host, device, device[1:] + [None]):
            assert here["ts"] >= on_host["ts"] - 0.001, (lane, on_host, here)
            assert after is None or here["ts"] + here["dur"] <= after["ts"] + 0.001, (lane, here)
    assert any(e["dur"] > 0 for e in spans[rank, "compute, device"])
END
}
check "the drawing of a step has when the GPUs worked, too" device_times
check_equal "where ckptd cannot place images near the GPUs one line says so" \
    "$(grep -c 'images on NUMA node 900 ' "$tmp/ckptd.log")" 1
check "and the saves of those steps have them" same_saves two
check "so have those of replicas, without graphs, work as late as allowed" \
    eval 'train_same twins $late 2 "${snapshots[@]}" "${twins[@]}" && same_saves twins'
check "killed on two GPUs and resumed on a mesh of four it has them" \
    moved shrunk $early 2 "${snapshots[@]}" -- seed=3 4 "${pp[@]}" "${tp[@]}"
check "killed on a mesh of four and resumed on the CPU it has them" \
    moved grown seed=5 4 "${pp[@]}" "${tp[@]}" -- - 1
before=(--training.numerics 2)
check "with training.numerics = 2, too" eval 'train before - 1 "${before[@]}" &&
    train likewise $random 2 "${before[@]}" && same_as before likewise && ! same before'

# Step 4 of the CPU's run, without its first samples; each run is made again by the other.
back=(--training.nonfinite roll_back --debug.nonfinite_at_sample 6)
taken_back() {
    train back - 1 "${back[@]}" && train fetched $random 2 "${snapshots[@]}" "${back[@]}" &&
        says fetched "step 4 is rolled back" && says fetched "loaded step 2 " &&
        cmp <(sort -u "$tmp/back.loss") <(sort -u "$tmp/fetched.loss") &&
        "$BUILD/ckpt-cli" diff "back@$steps" "fetched@$steps" --store "$store"
}
check "a step that is taken back leaves the same bits" taken_back
made_again() {
    train fetched - 2 "${back[@]}" --replay 5 --blame &&
        train back $late 2 "${pp[@]}" "${back[@]}" --replay 5 --blame &&
        says fetched "step 5: the same bits" && says back "step 5: the same bits" &&
        cmp <(sed -nE 's/.*replay: (.*leaf)/\1/p' "$tmp/fetched.log" | grep -v "largest outlier") \
            <(sed -nE 's/.*replay: (.*leaf)/\1/p' "$tmp/back.log" | grep -v "largest outlier")
}
check "each makes a step of the other again, and both blame the same" made_again

validation=(--validation.enable --validation.dataset_path "$tmp/text.tokens" --validation.freq 3
    --validation.steps 1)
validated() {
    train seen - 1 "${validation[@]}" && train looked $late 1 "${validation[@]}" &&
        same_as seen looked && grep -q validation= "$tmp/looked.loss"
}
check "losses of a validation are those of the CPU" validated

# Products by tensor cores: by the library that is simulated with the CPU's, and by our own kernel.
bf16=(--training.mixed_precision_param bfloat16 --kernels.isa auto)
library() { train bf16 - 1 "${bf16[@]}" && train blas $random 2 "${bf16[@]}" && same_as bf16 blas; }
check "in bfloat16, products by cuBLASLt, two GPUs have its bits" library
# The library of the second start chooses otherwise, and the manifest has the choice of the first.
again=$early,algorithm=1
chosen_before() {
    killed chosen $random 2 "${bf16[@]}" && train chosen "$again" 2 "${bf16[@]}" &&
        sort -u "$tmp/chosen.loss" | sort -n | cmp - <(sort -n "$tmp/blas.loss") &&
        "$BUILD/ckpt-cli" diff "blas@$steps" "chosen@$steps" --store "$store" &&
        ! says chosen "not offered"
}
check "resumed where the library chooses other algorithms it takes those of before" chosen_before
dropped() {
    train chosen "$again,dropped=1" 2 "${bf16[@]}" --training.steps $((steps + 1)) &&
        [ "$(grep -c "algorithms of the run's products are not offered" "$tmp/chosen.log")" = 1 ]
}
check "where they are not offered any more one line says so" dropped
# Codes of 8 bits on a GPU, their numbers in bf16 on the CPU.
float8=("${bf16[@]}" --model.converters quantize.linear.float8)
eight_bits() {
    train numbers - 1 "${float8[@]}" && train codes $random 2 "${float8[@]}" &&
        near numbers codes && ! cmp -s "$tmp/bf16.loss" "$tmp/codes.loss"
}
gathers_codes() {
    train gathered $late 2 "${float8[@]}" --comm.backend nccl \
        --quantize.linear.float8.enable_fsdp_float8_all_gather && same_as codes gathered
}
refuses_float8() {
    ! train older capability=80 1 "${float8[@]}" && says older "has no float8 products"
}
check "in float8, products of codes, two GPUs have its losses within 0.2 %" eight_bits
check "the codes gathered by NCCL, they have the bits of codes made by each" gathers_codes
check "a GPU below compute capability 8.9 refuses them in one line" refuses_float8
check "two GPUs that exchange by NCCL have them" train_same nccl $random 2 --comm.backend nccl
check "and the start says how long NCCL's communicators took" \
    says nccl "NCCL's communicators: [0-9.]* s of init"
apart() {
    train apart "$late,peers=0" 4 --comm.backend nccl "${pp[@]}" "${tp[@]}" --training.steps 1 &&
        [ "$(grep -c "each other's memory (pairs like these: 6)" "$tmp/apart.log")" = 1 ] &&
        ! says nccl "each other's memory"
}
check "where GPUs do not reach each other's memory one line says so" apart
small() { train small devices=1,memory=$room 2 --comm.backend nccl; }
room=50000000
check_exit 78 "a GPU with too little memory for its ranks ends the run at its start" small
check_equal "and one line says how much was wanted" \
    "$(grep " error " "$tmp/small.log" | grep -c "2 ranks on this GPU need [0-9.]* GiB")" 1
# The counts beside the plans of two ranks on one GPU.
command_of beside - 2 --kernels.device cuda --estimate --json
beside=$("${command[@]}" 2>/dev/null | python3 -c 'import json, sys
about = json.load(sys.stdin)["stages"][0]["gpu_about"]
print(about["libraries"] + 2 * (about["graphs"] + about["nccl"]))')
fits() {
    train fits devices=1,memory=$((2 * room + beside)) 2 --training.steps 1 &&
        says fits "memory:  0.07GiB"
}
check "where they fit the step line has what both take of its memory" fits
# The memory that only the optimizer reads: a GPU has room for the rest.
offload=("${bf16[@]}" --training.enable_cpu_offload)
narrow_gpu=devices=1,memory=$((71800000 + beside))
offloaded() {
    ! train crowded $narrow_gpu 2 "${bf16[@]}" && says crowded "2 ranks on this GPU need" &&
        train host $narrow_gpu 2 "${offload[@]}" && same_as blas host
}
check "with parameters and moments on the host it fits a smaller GPU, with the same bits" offloaded
offload+=(--comm.backend nccl)
check "nor do saves of them during the step, killed and resumed on another mesh" eval \
    'killed hosts $late 2 "${offload[@]}" "${snapshots[@]}" &&
     train hosts $early 4 "${offload[@]}" "${pp[@]}" "${tp[@]}" && says hosts "loaded step 2 " &&
     "$BUILD/ckpt-cli" diff "blas@$steps" "hosts@$steps" --store "$store"'
tied=(--model.tied_embeddings true --canonical.micro_batches 4)
in_turn() {
    train tied - 1 "${tied[@]}" &&
        train turns $late 4 --comm.backend nccl "${pp[@]}" "${tp[@]}" "${tied[@]}" \
            --parallelism.pipeline_parallel_schedule Interleaved1F1B && same_as tied turns
}
check "four GPUs, stages in turn that send by NCCL, have them, a tied matrix on both ends" in_turn
blocks=(--canonical.cp_blocks 2)
# The sum of a tied matrix is made of two, on another lane than that of the other sums.
fast=("${blocks[@]}" "${tied[@]}" --training.reduction)
sums() {
    train ordered - 1 "${fast[@]}" canonical &&
        train sums $late 4 "${fast[@]}" fast "${cp[@]}" --comm.backend nccl &&
        near ordered sums 1e-5 && ! cmp -s "$tmp/ordered.loss" "$tmp/sums.loss"
}
check "four GPUs whose gradients NCCL adds, shards and cut sequences, have its losses" sums
host_sums() { train host_sums $late 2 --training.reduction fast; }
check_exit 78 "where the host would add what GPUs hold the fast reduction is refused" host_sums
no_gpu() { train no_gpu - 2 --comm.backend nccl; }
check_exit 78 "NCCL without a GPU is refused" no_gpu

no_driver() { train none driver=0 1; }
check_exit 78 "without a driver a run ends for good" no_driver
shipped() { # where a GPU is, it trains
    [ -e /dev/nvidiactl ] || ! "$BUILD/trainer" --job.config_file "$tiny" --kernels.device cuda \
        --checkpoint.enable false >"$tmp/shipped.log" 2>&1 &&
        grep -qE "CUDA: no GPU|built without CUDA" "$tmp/shipped.log"
}
check "so does the trainer that ships" shipped
check_equal "and one line says why" "$(grep -c "CUDA: no GPU to compute on: " "$tmp/none.log")" 1
lost() { train lost "$late,fail=kernel:300" 1; }
check_exit 75 "a run whose GPU is lost ends to be started again" lost
check "its GPU and the step are named" \
    says lost " error .*: rank 0 on GPU-00102030-[0-9a-f-]* at [0-9a-f:.]*, in step [0-9]*: CUDA: "
check "started again it has the same bits" train_same lost $early 1

# A bit of a weight, then one of a moment, has changed when it arrives; then none has.
wrong_bit() { # N, NAME: of the N-th copy, which is of a tensor called so
    ! train lost "$random,flip=4096:$1" 1 --training.steps 7 &&
        says lost " error .*: $2.* on the devices is not that of step 6 "
}
both_bits() { wrong_bit 2 layers && wrong_bit 40 optimizer; }
check "a resume whose state has another bit on a GPU than was saved ends" both_bits
arrives() {
    train twins $random 2 "${twins[@]}" --training.steps 7 &&
        says twins "the devices hold the saved state: digests of 63 tensors"
}
check "two GPUs with replicas hold what was saved" arrives

part=(--checkpoint.partial --checkpoint.initial_load_path cpu --model.vocab_size 601
    --model.n_layers 3 --training.steps 1)
in_part() {
    train part - 1 "${part[@]}" && train part_gpus $late 2 "${part[@]}" "${tp[@]}" &&
        cmp "$tmp/part.loss" "$tmp/part_gpus.loss" &&
        says part_gpus "the devices hold the saved state: digests of 19 tensors"
}
check "two GPUs that begin with a part of another model have the bits of the CPU" in_part

# A bit of the first tensor that is saved changes on its way into ckptd's memory.
torn() { train_same torn "$random,torn=4096:1" 1 "${snapshots[@]}" && same_saves_of torn 4; }
refused() { says torn "step 2 did not become durable: .*tensor .* has another digest in ckptd's"; }
check "a save that a copy changed is not committed, and the run goes on" eval 'torn && refused'
unseen() {
    train unseen "$random,torn=4096:1" 1 "${snapshots[@]}" --checkpoint.compare_copies false &&
        ! same_saves_of unseen 2 >"$tmp/unseen.diff" 2>&1
}
check "with checkpoint.compare_copies off it is committed" unseen

# Each rank waits for others when the GPU that all of them share is lost.
lost_together() {
    command_of together "devices=1,$late,fail=kernel:60" 8 "${pp[@]}" "${tp[@]}"
    timeout -k 1 60 "${command[@]}" >>"$tmp/together.log" 2>&1
}
check_exit 75 "eight ranks on a GPU that is lost end, too" lost_together
check_equal "and one line says why" "$(grep " error " "$tmp/together.log" |
    grep -c "rank [0-7] on GPU-[0-9a-f-]* at [0-9a-f:.]*.*: CUDA: .*(cudaErrorLaunchFailure)")" 1
never_there() { ! train never "devices=1,fail=cudaMemcpyAsync:2+" 2; }
one_line() { [ "$(grep -c " error .*: CUDA: a copy could not be queued" "$tmp/never.log")" = 1 ]; }
check "so it does when it is lost at the start" eval 'never_there && one_line'
