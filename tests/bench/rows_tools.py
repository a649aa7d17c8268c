"""rows_tools.py - the offline tools, cold, compared with fio doing the same reads and writes.

A checkpoint lies on the disk as ckptd wrote it; that ckptd has ended, so nothing is in its memory,
and both sides bypass the page cache. Ours is the whole run of ckpt-cli, from start to exit: reading
the manifest, checking, syncing and committing included. fio's time is that of its transfers and
syncs alone.
"""
import json
import os
import shutil
import subprocess
import time

from fio import fio_copy, fio_read, shards
from measure import DISK_REPEAT, Program, Row

MIB, RANKS, LAYOUT = 2048, 4, "mesh"
POOL = ("--memory.pool_bytes", "3GiB")


class Stored:
    """A checkpoint in a store that no ckptd has open any more."""

    def __init__(self, bench, name, ranks=RANKS, mib=MIB, layout=LAYOUT, pool=POOL):
        process, server, self.store = bench.start_ckptd(name, *pool)
        program = Program(bench.program("bench/ranks"), server, name, str(ranks), str(mib), layout)
        program.ask("save")
        program.close()
        bench.end(process)
        self.bench, self.name = bench, name
        self.files = shards(self.store, name)
        listed = json.loads(self.run("list")[1])
        self.bytes = listed[0]["bytes"]
        self.mib = round(self.bytes / 2**20)

    def run(self, command, *options):
        """(seconds, its output, its peak of resident memory in MiB) of one run of ckpt-cli."""
        name = [] if command == "list" else [self.name]
        began = time.monotonic()
        process = subprocess.Popen(
            [self.bench.program("ckpt-cli"), command, *name, "--store", self.store, "--json",
             *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"ckpt-cli {command}: exit {process.returncode}: {text[-500:]}")
        return seconds, text, usage.ru_maxrss / 1024

    def end(self):
        shutil.rmtree(self.store)


def row_verify(bench):
    """every block and tensor of a cold checkpoint proved, beside fio reading the same files"""
    stored = Stored(bench, "verified")
    count = len(stored.files)

    def ours():
        seconds, text, _ = stored.run("verify")
        if json.loads(text)["blocks"] < stored.mib - count:
            raise RuntimeError("verify did not read everything")
        return stored.bytes / seconds / 1e9

    yield bench.pairs(
        "verify", "GB/s", ours,
        lambda: fio_read(bench, stored.files)["rate"] / 1e9,
        repeat=DISK_REPEAT, goal=0.95, note=f"{stored.mib} MiB in {count} shards, {LAYOUT}")
    stored.end()


def row_convert_bf16_and_export(bench):
    """a checkpoint of F32 to BF16 and to one file, beside fio reading and writing at once"""
    stored = Stored(bench, "source")
    count = len(stored.files)
    target = os.path.join(bench.tmp, "target")
    output = os.path.join(bench.tmp, "out.safetensors")
    peaks = {"convert": [], "export": []}

    def convert():
        shutil.rmtree(target, ignore_errors=True)
        os.sync()  # removals are over before the clock starts
        seconds, _, peak = stored.run("convert", "--output", target, "--dtype", "bf16")
        peaks["convert"].append(peak)
        return stored.bytes / seconds / 1e9

    def export():
        if os.path.exists(output):
            os.unlink(output)
        os.sync()
        seconds, _, peak = stored.run("export", "--output", output, "--weights-only",
                                       "--format", "safetensors")
        peaks["export"].append(peak)
        return stored.bytes / seconds / 1e9

    def reference(written_mib, written_files):
        return lambda: stored.bytes / fio_copy(bench, stored.files, written_mib,
                                               written_files)["seconds"] / 1e9

    yield bench.pairs("convert_bf16", "GB/s", convert, reference(stored.mib // 2, count),
                      repeat=DISK_REPEAT, goal=0.85,
                      note=f"bytes read; {stored.mib} MiB read and half as much written, "
                           f"{count} shards, {LAYOUT}")
    bench.run(bench.program("ckpt-cli"), "verify", stored.name, "--store", target)
    shutil.rmtree(target)
    yield bench.pairs("export", "GB/s", export, reference(stored.mib, 1),
                      repeat=DISK_REPEAT, goal=0.85,
                      note=f"bytes read; {stored.mib} MiB read and written to one file, "
                           f"{count} shards, {LAYOUT}")
    if os.path.getsize(output) < stored.bytes - count * 2**20:
        raise RuntimeError("the export is shorter than the checkpoint")
    for command, peak in peaks.items():
        yield Row(f"{command}_memory", "MiB", peak, direction="lower", goal=256,
                  note=f"peak of resident memory of every {command} above")
    os.unlink(output)
    stored.end()
