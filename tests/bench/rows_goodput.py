"""rows_goodput.py - which part of its time a cluster of 16,384 ranks trains, with our times.

The times are measured here, on one node's part of the state of Llama 3 405B: the delay of a save
for the ranks, its time until it is durable, a load, and the coordinator's commit of 16,384 ranks.
Figures that no single machine can measure are in goodput.toml, for a user to change; goodput.py
simulates, and the row prints its arithmetic.
"""
import json
import math
import os
import tomllib

from goodput import arithmetic, bytes_of_node, goodput, simulate
from measure import Program, Row, say
from rows_scale import MESH

HERE = os.path.dirname(os.path.abspath(__file__))
SAVES, QUICK_MIB, SEGMENT_MIB, TENSOR_MIB = 5, 256, 32, 64
SEEDS = range(1, 8)


def measure_node(bench, mib, ranks):
    """The worst of several saves, each of which finds the memory that the one before it leaves."""
    pool = mib * 5 // 2 // SEGMENT_MIB * SEGMENT_MIB  # two images, and the unused space of segments
    _, server, _ = bench.start_ckptd("goodput", "--memory.pool_bytes", f"{pool}MiB",
                                     "--memory.segment_bytes", f"{SEGMENT_MIB}MiB")
    program = Program(bench.program("bench/ranks"), server, "goodput", str(ranks), str(mib), "rows")
    program.ask("save")  # the first opens the attempt
    saves = [program.ask("save") for _ in range(2 if bench.quick else SAVES)]
    program.ask("forget")
    load = program.ask("load")
    program.close()
    return {"held": max(save["copied"] for save in saves),
            "durable": max(save["committed"] for save in saves), "load": load["seconds"]}


def measure_commit(bench):
    store = os.path.join(bench.tmp, "commit")
    program = Program("sh", "-c", f"exec {bench.program('bench/scale_commit')} {store} "
                                  f"{'1 16 4' if bench.quick else MESH} 2>{store}.log")
    program.ask("commit")
    seconds = program.ask("commit")["seconds"]
    program.close()
    return seconds


def row_goodput_16k(bench):
    """the time that 16,384 ranks train at a failure every 3 hours: simulated"""
    with open(os.path.join(HERE, "goodput.toml"), "rb") as file:
        cluster = tomllib.load(file)
    tensors = math.ceil(bytes_of_node(cluster) / 2**20 / TENSOR_MIB)
    mib = QUICK_MIB if bench.quick else tensors * TENSOR_MIB
    times = measure_node(bench, mib, cluster["ranks_per_node"])
    times["commit"] = measure_commit(bench)
    spent = [simulate(cluster, times, seed) for seed in SEEDS]
    for line in arithmetic(spent[0]):
        say(f"    {line}")
    yield Row("goodput_16k", "of the time", [goodput(one) for one in spent], goal=0.98,
              note=f"{mib} MiB a node: held {times['held']:.3f} s, durable behind "
                   f"{times['durable']:.2f}, commit of all ranks {times['commit']:.2f}, load "
                   f"{times['load']:.2f}; taken for granted: {json.dumps(cluster)}")
