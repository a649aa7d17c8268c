"""rows_checkpoint.py - the checkpoint path: persist and load, beside fio and memcpy."""
import json
import os

from measure import Program

MIB = 512
BLOCK, DEPTH = "1m", 8  # of fio; ckptd's are in its configuration, and of this size by default
POOL = ("--memory.pool_bytes", "2GiB")


def fio(bench, mode):
    """Bytes per second of a sequential O_DIRECT pass over MIB of a file on the store's disk."""
    file = os.path.join(bench.tmp, "fio")
    options = ["--name=x", f"--filename={file}", f"--rw={mode}", f"--bs={BLOCK}",
               f"--iodepth={DEPTH}", f"--size={MIB}m", "--ioengine=io_uring", "--direct=1",
               "--fallocate=posix",
               "--output-format=json"]
    if mode == "write":
        options += ["--end_fsync=1", "--unlink=0"]
    if mode == "write" and os.path.exists(file):
        os.unlink(file)  # a new file, as ours is
    output = bench.run("fio", *options)
    return json.loads(output[output.index("{"):])["jobs"][0][mode]["bw_bytes"]


def row_persist(bench):
    """from the first copied byte to the committed checkpoint, beside fio writing a new file"""
    process, server, _ = bench.start_ckptd("persist", *POOL)
    program = Program(bench.program("bench/save_load"), server, "persist", str(MIB))
    blocked = []

    def ours():
        answer = program.ask("save")
        blocked.append(answer["copied"])
        return MIB * 2**20 / answer["committed"] / 1e9

    ours()  # the first touches fresh memory
    yield bench.pairs("persist rate of ckptd / fio", "GB/s", ours,
                      lambda: fio(bench, "write") / 1e9, note=f"{MIB} MiB, one rank")
    program.close()
    bench.end(process)


def row_first_save(bench):
    """the first save of a process beside its third, when both images have been used"""
    process, server, _ = bench.start_ckptd("first", *POOL)
    state = {}

    def first():
        if state:
            state["program"].close()
        state["program"] = Program(bench.program("bench/save_load"), server, "first", str(MIB))
        return state["program"].ask("save")["copied"]

    def third():
        state["program"].ask("save")
        return state["program"].ask("save")["copied"]

    yield bench.pairs("first save / third save, until the state may change", "s", first, third,
                      pairs_max=20, direction="lower", note=f"{MIB} MiB, one rank")
    state["program"].close()
    bench.end(process)


def row_load_memory(bench):
    """the newest checkpoint out of ckptd's memory, verified, beside memcpy of as many bytes"""
    process, server, _ = bench.start_ckptd("memory", *POOL)
    program = Program(bench.program("bench/save_load"), server, "memory", str(MIB))
    program.ask("save")

    def ours():
        answer = program.ask("load")
        if answer["bytes_local"]:
            raise RuntimeError("the checkpoint was not in memory")
        return MIB * 2**20 / answer["seconds"] / 1e9

    yield bench.pairs("load from memory / memcpy", "GB/s", ours,
                      lambda: MIB * 2**20 / program.ask("memcpy")["seconds"] / 1e9,
                      note=f"{MIB} MiB, one rank, one thread")
    program.close()
    bench.end(process)


def row_load_disk(bench):
    """the newest checkpoint from disk, verified, after a restart of ckptd, beside fio reading"""
    process, server, _ = bench.start_ckptd("disk", *POOL)
    program = Program(bench.program("bench/save_load"), server, "disk", str(MIB))
    program.ask("save")
    fio(bench, "write")
    state = {"process": process}

    def ours():
        bench.end(state["process"])
        state["process"], _, _ = bench.start_ckptd("disk", *POOL)
        program.ask("forget")
        answer = program.ask("load")
        if answer["bytes_memory"]:
            raise RuntimeError("the checkpoint was in memory")
        return MIB * 2**20 / answer["seconds"] / 1e9

    yield bench.pairs("load from disk / fio read", "GB/s", ours, lambda: fio(bench, "read") / 1e9,
                      pairs_max=20, note=f"{MIB} MiB, one rank")
    program.close()
    bench.end(state["process"])
