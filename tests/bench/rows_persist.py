"""rows_persist.py - saving: from the copy to the committed checkpoint, beside fio."""
from fio import fio
from measure import Program

MIB = 512
POOL = ("--memory.pool_bytes", "2GiB")


def row_persist(bench):
    """from the first copied byte to the committed checkpoint, beside fio writing a new file"""
    process, server, _ = bench.start_ckptd("persist", *POOL)
    program = Program(bench.program("bench/ranks"), server, "persist", "1", str(MIB), "rows")
    blocked = []

    def ours():
        answer = program.ask("save")
        blocked.append(answer["copied"])
        return MIB * 2**20 / answer["committed"] / 1e9

    ours()  # the first touches fresh memory
    yield bench.pairs("persist rate of ckptd / fio", "GB/s", ours,
                      lambda: fio(bench, "write", MIB)["rate"] / 1e9, note=f"{MIB} MiB, one rank")
    program.close()
    bench.end(process)


def row_first_save(bench):
    """the first save of a process beside its third, when both images have been used"""
    process, server, _ = bench.start_ckptd("first", *POOL)
    state = {}

    def first():
        if state:
            state["program"].close()
        state["program"] = Program(bench.program("bench/ranks"), server, "first", "1", str(MIB),
                                   "rows")
        return state["program"].ask("save")["copied"]

    def third():
        state["program"].ask("save")
        return state["program"].ask("save")["copied"]

    yield bench.pairs("first save / third save, until the state may change", "s", first, third,
                      pairs_max=20, direction="lower", note=f"{MIB} MiB, one rank")
    state["program"].close()
    bench.end(process)
