"""rows_scale.py - the control path at its largest: 16,384 ranks of 405B, 10,000 checkpoints.

The figures themselves are compared with the goals; only the growth is a ratio, of two sizes. Ranks
are simulated, the code that decides about them is real (scale_commit.c, scale_plan.c,
scale_model.h). The checkpoints are small but genuine (scale_store.c), on disk: `ckpt-cli verify`
verifies one first. Those of 4.9 TB have genuine headers and tables around a hole.
"""
import json
import math
import os
import shutil
import statistics
import subprocess
import time

from fio import fio_read, fio_write, new_files
from measure import Program, Row

MESH, RANKS = "16 128 8", 16384      # pp dp_shard tp
QUICK_MESHES = "1 16 4", "2 64 8", MESH
SIZES = "16 32 8", "16 64 8", MESH
NODE_MESHES = "16 8 8", "16 32 8", MESH  # 1,024, 4,096 and 16,384 ranks, eight on a node
NEW_MESHES = "16 96 8", "12 128 8", "12 64 16", "8 192 8"  # of 12,288
CHECKPOINTS = 10000
SAMPLES = 9


def samples(bench):
    return 3 if bench.quick else SAMPLES


def row_commit_16k(bench):
    """the commit of 16,384 simulated ranks, 405B: CPU seconds of the coordinator, manifest bytes"""
    store = os.path.join(bench.tmp, "commit")
    program = Program("sh", "-c", f"exec {bench.program('bench/scale_commit')} {store} {MESH} "
                                  f"2>{store}.log")
    program.ask("commit")  # the first has no checkpoint before it to compare with and to set free
    answers = [program.ask("commit") for _ in range(samples(bench))]
    plan = program.ask("plan")
    program.close()
    service = max(answer["service_cpu_seconds"] for answer in answers)
    clock = max(answer["seconds"] for answer in answers)
    yield Row("commit_16k", "CPU s", [answer["cpu_seconds"] for answer in answers],
              direction="lower", goal=1,
              note=f"of it the service thread at most {service:.3f}; at most {clock:.3f} s by the "
                   "clock, syncs of the manifest included; without the ranks' calls and rings")
    yield Row("commit_16k_manifest", "bytes per 1,000 ranks",
              [answer["bytes"] * 1000 / RANKS for answer in answers], direction="lower",
              goal=2**20, note=f"{answers[0]['bytes']} bytes in all")
    yield Row("commit_16k_describe", "CPU s", [plan["plan_seconds"] + plan["place_seconds"]],
              direction="lower",
              note=f"once per attempt: plan of the save {plan['plan_seconds']:.3f}, places of "
                   f"every rank {plan['place_seconds']:.3f}")


def row_commit_nodes(bench):
    """the commit of 16,384 ranks on 2,048 nodes: CPU seconds and bytes, and how they grow"""
    programs = [Program(bench.program("bench/scale_nodes"), *mesh.split()) for mesh in NODE_MESHES]
    first = [program.ask("commit") for program in programs]  # not counted: the first touches memory

    def microseconds(i):
        return 1e6 * programs[i].ask("commit")["cpu_seconds"] / first[i]["ranks"]

    def sent(answer):
        return answer["bytes"] + answer["manifests_bytes"]

    few, some, many = [[program.ask("commit") for _ in range(samples(bench))]
                       for program in programs]
    yield Row("commit_nodes", "CPU s", [answer["cpu_seconds"] for answer in many],
              direction="lower", goal=1,
              note="both ends of each message; "
                   + ", ".join(f"{a['ranks']} ranks: {a['cpu_seconds']:.4f} s, {a['messages']} "
                               f"messages, {a['bytes']} bytes; manifests: {a['manifests_bytes']} "
                               f"bytes from the coordinator, {a['between_bytes']} from node to "
                               f"node in {a['rounds']} rounds"
                               for a in (few[0], some[0], many[0])))
    yield bench.pairs("commit_nodes_growth", "us per rank", lambda: microseconds(2),
                      lambda: microseconds(0), pairs_max=20, direction="lower", goal=1.3,
                      note="16,384 ranks against 1,024")
    yield Row("commit_nodes_bytes", "of 1,024 ranks' per rank",
              [sent(many[0]) / sent(few[0]) / 16], direction="lower", goal=1.05,
              note="what the coordinator sends and gets, manifests included")
    for program in programs:
        program.close()


def row_plan_16k(bench):
    """the load of one of 12,288 ranks from a checkpoint of 16,384: planning, and how it grows"""
    programs = [Program(bench.program("bench/scale_plan")) for _ in SIZES]
    saved = [program.ask(f"save {mesh}") for program, mesh in zip(programs, SIZES)]
    of_mesh = {mesh: [programs[-1].ask(f"rank {mesh} 64") for _ in range(samples(bench))]
               for mesh in NEW_MESHES}
    slowest = max(of_mesh, key=lambda mesh: max(a["seconds"] for a in of_mesh[mesh]))
    yield Row("plan_16k", "ms", [1e3 * answer["seconds"] for answer in of_mesh[slowest]],
              direction="lower", goal=50,
              note=f"the slowest of 64 ranks spread over the mesh (pp dp_shard tp) {slowest}, from "
                   f"{MESH}; boxes of one rank: "
                   + ", ".join(f"{mesh}: {max(answer['boxes_max'] for answer in answers)}"
                               for mesh, answers in of_mesh.items()))
    yield Row("plan_16k_parse", "ms", [1e3 * saved[-1]["parse_seconds"]], direction="lower",
              note=f"the manifest's {saved[-1]['bytes']} bytes, hashes and checks included")
    # n: the saved slices, all of which one reader of everything wants.
    all_of = [program.ask("all") for program in programs]
    n_log_n = [answer["boxes"] * math.log(answer["boxes"]) for answer in all_of]

    def nanoseconds(i):
        return 1e9 * programs[i].ask("all")["seconds"] / n_log_n[i]

    middle = nanoseconds(1)
    weights, one = programs[-1].ask("all weights"), [p.ask("rank 16 96 8 64") for p in programs]
    yield bench.pairs("plan_16k_growth", "ns / (n log n)", lambda: nanoseconds(2),
                      lambda: nanoseconds(0), pairs_max=20, direction="lower", goal=1.3,
                      note=f"one reader of all that 16,384 ranks saved, n = {all_of[2]['boxes']} "
                           f"boxes, against 4,096, n = {all_of[0]['boxes']}; 8,192: {middle:.3g}; "
                           f"weights only: {weights['boxes']} boxes in {weights['seconds']:.3f} s; "
                           "one of 12,288 ranks, mean: "
                           + ", ".join(f"{1e3 * answer['mean_seconds']:.3f} ms" for answer in one))
    for program in programs:
        program.close()


def drop_caches():
    """Whether the page cache could be emptied: only root may."""
    try:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3\n")
    except OSError:
        return False
    return True


def read_pages(bench, shards):
    """Seconds that fio needs for two reads of 4 KiB for each shard, in any order."""
    mib = 2 * shards * 4 // 1024
    fio_write(bench, mib)
    seconds = [fio_read(bench, new_files(bench, 1), mode="randread", block="4k")["seconds"]
               for _ in range(3)]
    return statistics.median(seconds)


def row_verify_quick(bench):
    """verify --quick of a 405B checkpoint by 64, 1,024 and 16,384 ranks, page cache cold"""
    for mesh in QUICK_MESHES:
        store = os.path.join(bench.tmp, "quick")
        program = Program("sh", "-c", f"exec {bench.program('bench/scale_commit')} {store} {mesh} "
                                      f"2>{store}.log")
        committed, made = program.ask("commit"), program.ask("shards")
        program.close()
        seconds, is_cold = [], True
        for _ in range(samples(bench)):
            is_cold = drop_caches() and is_cold
            begun = time.monotonic()
            bench.run(bench.program("ckpt-cli"), "verify", "scale", "--quick", "--store", store)
            seconds.append(time.monotonic() - begun)
        shutil.rmtree(store)
        ranks = committed["ranks"]
        name = ("verify_quick" if ranks == RANKS else f"verify_quick_{ranks}") + \
            ("" if is_cold else "_warm")
        fio_note = f"; fio reads {2 * ranks} single pages in {read_pages(bench, ranks):.2f} s" \
            if ranks == RANKS and is_cold else ""
        yield Row(name, "s", seconds, direction="lower", goal=1.0 if is_cold else None,
                  note=f"{ranks} shards, 4.9 TB, of which {(made['bytes']) / 1e6:.0f} MB are "
                       f"headers and tables; page cache {'cold' if is_cold else 'warm'}{fio_note}")


def row_list_10k_and_start_10k(bench):
    """start of ckptd over 10,000 checkpoints until it serves, and ckpt-cli list of them"""
    store = os.path.join(bench.tmp, "many")
    made = json.loads(bench.run(bench.program("bench/scale_store"), store, str(CHECKPOINTS)))
    bench.run(bench.program("ckpt-cli"), "verify", "scale-0", "--store", store)
    pool = ("--memory.pool_bytes", "256MiB")
    start, cold, listed = [], [], []

    def timed_start():
        begun = time.monotonic()
        process, server, _ = bench.start_ckptd("many", *pool, full=False)
        return process, server, time.monotonic() - begun

    for _ in range(samples(bench)):
        process, server, seconds = timed_start()
        start.append(seconds)
        for _ in range(3):
            begun = time.monotonic()
            done = subprocess.run([bench.program("ckpt-cli"), "list", "--server", server],
                                  capture_output=True, text=True)
            listed.append(1e3 * (time.monotonic() - begun))
            lines = done.stdout.count("\n")
            if done.returncode != 0 or lines != CHECKPOINTS + 1:
                raise RuntimeError(f"list: exit {done.returncode}, {lines} lines")
        bench.end(process)
    while len(cold) < 3 and drop_caches():
        process, server, seconds = timed_start()
        cold.append(seconds)
        bench.end(process)
    yield Row("list_10k", "ms", listed, direction="lower", goal=100,
              note="from the start of ckpt-cli to its last line, through gRPC; "
                   f"{made['runs']} runs, {made['attempts']} attempts each")
    yield Row("start_10k", "s", start, direction="lower", goal=2,
              note="from exec of ckptd until `ckpt-cli health` says serving, pool of 256 MiB, page "
                   "cache warm")
    if cold:
        yield Row("start_10k_cold", "s", cold, direction="lower",
                  note="the same after all caches were dropped")
