"""rows_load.py - loading: from memory beside memcpy, from disk beside fio."""
from fio import fio
from measure import Program

MIB = 512
POOL = ("--memory.pool_bytes", "2GiB")


def row_load_memory(bench):
    """the newest checkpoint out of ckptd's memory, verified, beside memcpy of as many bytes"""
    process, server, _ = bench.start_ckptd("memory", *POOL)
    program = Program(bench.program("bench/ranks"), server, "memory", "1", str(MIB), "rows")
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
    program = Program(bench.program("bench/ranks"), server, "disk", "1", str(MIB), "rows")
    program.ask("save")
    fio(bench, "write", MIB)
    state = {"process": process}

    def ours():
        bench.end(state["process"])
        state["process"], _, _ = bench.start_ckptd("disk", *POOL)
        program.ask("forget")
        answer = program.ask("load")
        if answer["bytes_memory"]:
            raise RuntimeError("the checkpoint was in memory")
        return MIB * 2**20 / answer["seconds"] / 1e9

    yield bench.pairs("load from disk / fio read", "GB/s", ours,
                      lambda: fio(bench, "read", MIB)["rate"] / 1e9, pairs_max=20,
                      note=f"{MIB} MiB, one rank")
    program.close()
    bench.end(state["process"])
