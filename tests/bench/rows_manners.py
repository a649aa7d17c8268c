"""rows_manners.py - what saves cost the computing beside them, with ckptd's manners and without.

A loop on all cores (manners.c) is timed alone and while checkpoints of 1 GiB are saved back to
back; the quotient is the slowdown. A row is the slowdown beside a ckptd with manners over the
slowdown beside one without. Manners make saves longer, so in the same time fewer are made: the
note says how many, and what one costs: the seconds lost over the saves made. No goals are set.
"""
import glob
import os
import shutil
import statistics

from fio import fio
from measure import Program, Row

MIB, STEPS = 1024, 30
PARTS = ("memory", "compute")
POOL = ("--memory.pool_bytes", "1280MiB", "--memory.segment_bytes", "64MiB")


class Loop:
    """The loop beside a ckptd of its own; its samples, one for each pair."""

    def __init__(self, bench, name, *options):
        self.server, address, self.store = bench.start_ckptd(name, *POOL, *options)
        self.program = Program(bench.program("bench/manners"), address, "loop", str(MIB),
                               str(os.cpu_count()))
        self.slowdown = {part: [] for part in PARTS}
        self.lost, self.saves = 0.0, 0.0

    def sample(self):
        alone, saving = (self.program.ask(f"{word} {STEPS}") for word in ("alone", "saving"))
        for part in PARTS:
            self.slowdown[part].append(saving[part] / alone[part])
            self.lost += saving[part] - alone[part]
        self.saves += saving["saves"]
        for path in glob.glob(os.path.join(self.store, "loop", "step-*")):
            shutil.rmtree(path)
        return self.slowdown[PARTS[0]][-1]

    def note(self):
        each = f"{self.lost / self.saves:.2f} s lost a save" if self.saves else "none ended in time"
        return f"{self.saves / len(self.slowdown[PARTS[0]]):.1f} saves a sample, {each}"

    def close(self, bench):
        self.program.close()
        bench.end(self.server)


def compare(bench, name, what, *options):
    plain, mannered = Loop(bench, f"{name}-off"), Loop(bench, f"{name}-on", *options)
    for loop in (plain, mannered):
        loop.sample()  # the first touches fresh memory
        loop.__dict__.update(slowdown={part: [] for part in PARTS}, lost=0.0, saves=0.0)
    row = bench.pairs(f"interference_{name}_memory", "x", mannered.sample, plain.sample,
                      pairs_max=9, direction="lower",
                      note="slowdown of memory-bound work, " + what)
    other = Row(f"interference_{name}_compute", "x", mannered.slowdown["compute"],
                plain.slowdown["compute"], direction="lower",
                note="slowdown of compute-bound work, " + what)
    for each in (row, other):
        each.note += f"; with manners {mannered.note()}; without {plain.note()}"
    plain.close(bench)
    mannered.close(bench)
    return row, other


def row_interference_priority(bench):
    """saves with pace.cpu_nice 19 and pace.io_priority idle, beside saves without manners"""
    yield from compare(bench, "priority", "nice 19 and idle I/O", "--pace.cpu_nice", "19",
                       "--pace.io_priority", "idle")


def row_interference_rate(bench):
    """saves with pace.write_rate half of what the disk does, beside saves without manners"""
    rate = statistics.median(fio(bench, "write", 512)["rate"] for _ in range(3)) / 2
    yield from compare(bench, "rate", f"at most {rate / 1e9:.2f} GB/s", "--pace.write_rate",
                       str(int(rate)))


def row_interference_phases(bench):
    """saves with pace.quiet, the memory-bound part announced as busy, beside saves without"""
    yield from compare(bench, "phases", "memory-bound parts announced as busy", "--pace.quiet")
