#!/usr/bin/env bash
# Goal: on meshes of all five axes, up to 8 GPUs, with graphs, whether ranks exchange through one
# memory or by NCCL, a run has the bits of one rank on the CPU, also when it is killed on one mesh
# and resumed on another. Method: that of gpus.sh; sequences in four blocks, four leaves a step. The
# mesh of degree 2 on each axis has 32 ranks, which take 8 GPUs in turn. `make check` runs it.
. "$(dirname "$0")/lib.sh"
. tests/integration/lib_tiny.sh
. tests/integration/lib_gpus.sh

steps=4 patience=600
common=(--canonical.cp_blocks 4 --canonical.micro_batches 4)
replicas=(--parallelism.data_parallel_replicate_degree 2)
shards=(--parallelism.data_parallel_shard_degree 2)
nccl=(--comm.backend nccl)
four_parts=(--parallelism.context_parallel_degree 4 "${in_a_ring[@]}")
eight() { train_same "$@" "${common[@]}"; } # RUN SIMGPU RANKS SETTING...
plan 8

check "the CPU trains" train cpu - 1 "${common[@]}"
check "stages, a ring and tensor parallel have its bits, by NCCL" \
    eight pct $random 8 "${pp[@]}" "${cp[@]}" "${tp[@]}" "${in_a_ring[@]}" "${nccl[@]}"
check "replicas, shards and cut sequences have them, work as late as allowed" \
    eight rsc $late 8 "${replicas[@]}" "${shards[@]}" "${cp[@]}"
check "shards and a ring of four have them, work as early as allowed" \
    eight sc4 $early 8 "${shards[@]}" "${four_parts[@]}"
check "replicas, stages and tensor parallel have them" \
    eight rpt $random 8 "${replicas[@]}" --parallelism.data_parallel_shard_degree 1 "${pp[@]}" \
    "${tp[@]}"
five=("${replicas[@]}" "${shards[@]}" "${pp[@]}" "${cp[@]}" "${tp[@]}" "${in_a_ring[@]}")
check "so has a mesh of all five axes, on 8 GPUs" eight five devices=8,$random 32 "${five[@]}"
check "killed on stages, a ring and tensor parallel, resumed on replicas, shards, cut sequences" \
    moved first $random 8 "${common[@]}" "${pp[@]}" "${cp[@]}" "${tp[@]}" "${in_a_ring[@]}" \
    "${nccl[@]}" -- $late 8 "${common[@]}" "${replicas[@]}" "${shards[@]}" "${cp[@]}"
check "killed on all five axes, resumed on a ring of four" \
    moved second devices=8,$random 32 "${common[@]}" "${five[@]}" \
    -- $early 8 "${common[@]}" "${shards[@]}" "${four_parts[@]}"
