"""rows_load.py - loading: from disk compared with fio, by other meshes with the same one, from
memory with memcpy.

Cold means: ckptd was restarted, so nothing is in its memory (which it has allocated before the
clock starts), and it reads with O_DIRECT, past the page cache. Every load is verified by ckptd as
always. Once per row and program the state is wiped, checked to be wrong, loaded, and checked to be
right, element by element. A load from disk is measured only when ckptd read each byte of the
checkpoint exactly once, by its own count, and the kernel counts no more reads of its process than
the checkpoint with headers and tables.
"""
import json

from fio import fio_read, shards
from measure import DISK_REPEAT, Program, Row

MIB, RESHARD_MIB = 4096, 2048
READ_MAX = 1.01  # bytes that a load may read from the device, over those of the checkpoint


def checked(program):
    """The first load of a program, compared with the saved state; also checks that the comparison
    can fail."""
    program.ask("wipe")
    if program.ask("check")["equal"]:
        raise RuntimeError("a wiped state passes the check")
    program.ask("load")
    wrong = program.ask("check")["wrong_elements"]
    if wrong:
        raise RuntimeError(f"{wrong} elements of a loaded state are wrong")


def device_reads(process):
    """Bytes that a process has had from block devices until now (proc(5), read_bytes)."""
    with open(f"/proc/{process.pid}/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])


class Cold:
    """A checkpoint by (ranks, layout), and loads of it by a ckptd that was just started."""

    def __init__(self, bench, name, mib, saved):
        self.bench, self.name, self.mib = bench, name, mib
        # Shards have a little more than a whole number of MiB: small segments waste less.
        self.options = ("--memory.pool_bytes", f"{mib * 5 // 4}MiB",
                        "--memory.segment_bytes", "32MiB")
        self.process, self.server, self.store = bench.start_ckptd(name, *self.options)
        program = self.program(saved)
        program.ask("save")
        program.close()
        self.bytes = self.ask("list", self.name)[0]["bytes"]

    def program(self, mesh):
        ranks, layout = mesh
        program = Program(self.bench.program("bench/ranks"), self.server, self.name, str(ranks),
                          str(self.mib), layout)
        program.ask("forget")  # it has connected: from now on ckptd may be stopped
        return program

    def ask(self, *command):
        return json.loads(self.bench.run(self.bench.program("ckpt-cli"), *command, "--json",
                                         "--server", self.server))

    def restart(self, program):
        self.bench.end(self.process)
        self.process, _, _ = self.bench.start_ckptd(self.name, *self.options)
        program.ask("forget")

    def load(self, program):
        """bytes of the state per second"""
        self.restart(program)
        before = device_reads(self.process)
        answer = program.ask("load")
        device = device_reads(self.process) - before
        if not self.bytes <= device <= READ_MAX * self.bytes:
            raise RuntimeError(f"{device} bytes came from the device for a checkpoint of "
                               f"{self.bytes}")
        read = self.ask("status")["since_start"]["bytes_read"]
        if answer["bytes_memory"] or read != self.bytes:
            raise RuntimeError(f"{read} bytes were read for a checkpoint of {self.bytes}, and "
                               f"{answer['bytes_memory']} came from memory")
        return self.mib * 2**20 / answer["seconds"] / 1e9

    def checked(self, program):
        self.restart(program)
        checked(program)

    def close(self):
        self.bench.end(self.process)


def row_load_same(bench):
    """8 ranks, each its own shard, cold, beside fio reading the same files"""
    cold = Cold(bench, "load_same", MIB, (8, "rows"))
    program = cold.program((8, "rows"))
    cold.checked(program)
    files = shards(cold.store, "load_same")
    yield bench.pairs("load_same", "GB/s", lambda: cold.load(program),
                      lambda: fio_read(bench, files)["rate"] / 1e9,
                      repeat=DISK_REPEAT, goal=0.9, note=f"{MIB} MiB, 8 shards, 8 ranks, from disk")
    program.close()
    cold.close()


def reshard(bench, name, saved, loaded):
    cold = Cold(bench, name, RESHARD_MIB, saved)
    same, other = cold.program(saved), cold.program(loaded)
    cold.checked(other)
    row = bench.pairs(name, "GB/s", lambda: cold.load(other), lambda: cold.load(same),
                      repeat=DISK_REPEAT, goal=0.9,
                      note=f"{RESHARD_MIB} MiB, {saved[0]} ranks by {saved[1]} to {loaded[0]} by "
                           f"{loaded[1]}, from disk; reference: the mesh that saved it")
    same.close()
    other.close()
    cold.close()
    return row


RESHARDS = {
    "8_4": ((8, "rows"), (4, "rows")),
    "4_8": ((4, "rows"), (8, "rows")),
    "8_3": ((8, "rows"), (3, "rows")),
    "rows_columns": ((8, "rows"), (8, "columns")),
    "columns_rows": ((8, "columns"), (8, "rows")),
}


def row_load_reshard(bench):
    """saved by one mesh, loaded by another, cold, beside the mesh that saved it"""
    rows = []
    for case, (saved, loaded) in RESHARDS.items():
        rows.append(reshard(bench, f"load_reshard_{case}", saved, loaded))
        yield rows[-1]
    worst = min(rows, key=lambda row: row.interval()[0])
    yield Row("load_reshard", "GB/s", worst.ours, worst.reference, goal=worst.goal,
              note=f"the worst of them: {worst.name}")


def row_load_memory(bench):
    """out of ckptd's memory after the trainer that saved it has gone, beside memcpy"""
    mib = 256 if bench.quick else MIB
    process, server, _ = bench.start_ckptd("memory", "--memory.pool_bytes", f"{mib * 5 // 4}MiB",
                                           "--memory.segment_bytes", "32MiB")
    ranks = (bench.program("bench/ranks"), server, "memory", "2", str(mib), "rows")
    saver = Program(*ranks)
    saver.ask("save")
    saver.close()
    program = Program(*ranks)
    checked(program)

    def ours():
        answer = program.ask("load")
        if answer["bytes_local"]:
            raise RuntimeError("the checkpoint was not in memory")
        return mib * 2**20 / answer["seconds"] / 1e9

    yield bench.pairs("load_memory", "GB/s", ours,
                      lambda: mib * 2**20 / program.ask("memcpy")["seconds"] / 1e9,
                      goal=0.5, note=f"{mib} MiB, 2 ranks, which verify what they copy")
    program.close()
    bench.end(process)
