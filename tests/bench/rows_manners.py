"""rows_manners.py - the cost of saves for concurrent computing, with ckptd's throttling and
without.

A loop on all cores (manners.c) is timed alone and while checkpoints of 1 GiB are saved back to
back. Rows _memory and _compute: the slowdown (the quotient of the two times) of the loop's parts
beside a ckptd with throttling, and beside one without. Throttling makes saves longer, so in the
same time fewer are made: row _save is the seconds that the loop loses for one. No goals are set.
"""
import glob
import os
import shutil
import statistics

from fio import fio_write
from measure import LOST_MIN, Program, Row

MIB, STEPS = 1024, 30
PARTS = ("memory", "compute")
NO_MANNERS = ("--pace.cpu_nice", "0")  # the only one that is on by default
POOL = ("--memory.pool_bytes", "1280MiB", "--memory.segment_bytes", "64MiB")


class Loop:
    """The loop beside its ckptd; the samples, one for each pair."""

    def __init__(self, bench, name, *options):
        self.server, address, self.store = bench.start_ckptd(name, *POOL, *options)
        self.program = Program(bench.program("bench/manners"), address, "loop", str(MIB),
                               str(os.cpu_count()))
        self.forget()

    def sample(self):
        alone, saving = (self.program.ask(f"{word} {STEPS}") for word in ("alone", "saving"))
        for part in PARTS:
            self.slowdown[part].append(saving[part] / alone[part])
        if saving["saves"] >= 1:
            lost = sum(saving[part] - alone[part] for part in PARTS) / saving["saves"]
            self.lost.append(max(lost, LOST_MIN))
        self.saves.append(saving["saves"])
        for path in glob.glob(os.path.join(self.store, "loop", "step-*")):
            shutil.rmtree(path)
        return self.slowdown[PARTS[0]][-1]

    def forget(self):
        self.slowdown, self.lost, self.saves = {part: [] for part in PARTS}, [], []

    def close(self, bench):
        self.program.close()
        bench.end(self.server)


def compare(bench, name, what, *options):
    plain = Loop(bench, f"{name}-off", *NO_MANNERS)
    mannered = Loop(bench, f"{name}-on", *options)
    for loop in (plain, mannered):
        loop.sample()  # the first touches fresh memory
        loop.forget()
    row = bench.pairs(f"interference_{name}_memory", "x", mannered.sample, plain.sample,
                      pairs_max=11, direction="lower")
    row.note = f"slowdown of memory-bound work, {what}"
    yield row
    yield Row(f"interference_{name}_compute", "x", mannered.slowdown["compute"],
              plain.slowdown["compute"], direction="lower",
              note=f"slowdown of compute-bound work, {what}")
    if len(mannered.lost) == len(plain.lost) == len(row.ours):  # a save ended in each sample
        yield Row(f"interference_{name}_save", "s", mannered.lost, plain.lost, direction="lower",
                  note=f"lost for one save of {MIB} MiB, {what}; saves in a sample: "
                       f"{statistics.median(mannered.saves):.1f} with manners, "
                       f"{statistics.median(plain.saves):.1f} without")
    plain.close(bench)
    mannered.close(bench)


def row_interference_priority(bench):
    """saves with pace.cpu_nice 19, beside saves without manners"""
    yield from compare(bench, "priority", "nice 19", "--pace.cpu_nice", "19")


def row_interference_rate(bench):
    """saves with pace.write_rate half of what the disk does, beside saves without manners"""
    rate = statistics.median(fio_write(bench, 512)["rate"] for _ in range(3)) / 2
    yield from compare(bench, "rate", f"at most {rate / 1e9:.2f} GB/s", *NO_MANNERS,
                       "--pace.write_rate", str(int(rate)))


def row_interference_phases(bench):
    """saves with pace.quiet, the memory-bound part announced as busy, beside saves without"""
    yield from compare(bench, "phases", "memory-bound parts announced as busy", *NO_MANNERS,
                       "--pace.quiet")
