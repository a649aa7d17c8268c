"""rows_persist.py - saving: from the copy to the committed checkpoint, compared with fio.

Ours: from the call that begins the save to the answer that the checkpoint is committed: copy,
checksums, reserving and writing the files, their sync, names and manifest. As the reference fio
writes as many bytes to as many files, with the same block size and depth, until they are synced
(fsync; ckptd ends with fdatasync, as sizes are final, and syncs the names, too). Both write new
files; older ones are removed, durably, before the clock starts.
"""
import os
import shutil
import statistics
import time

from fio import fio_write
from measure import DISK_REPEAT, Program, Row

SEGMENT_MIB = 64  # an image takes whole segments: small ones waste little of the pool


def pool_for(mib, ranks, images):
    """Options of a ckptd whose pool holds so many images of each rank and little more: a segment
    for header and table, and one since the shards of a mesh are not all of one size."""
    per_image = -(-mib // ranks // SEGMENT_MIB) + 2
    return ("--memory.segment_bytes", f"{SEGMENT_MIB}MiB",
            "--memory.pool_bytes", f"{per_image * ranks * images * SEGMENT_MIB}MiB")


class Saver:
    """A ckptd and a job of `ranks` that saves through it; only the newest checkpoint is kept."""

    def __init__(self, bench, name, mib, ranks, layout="rows", images=1):
        self.bench, self.name = bench, name
        self.ckptd, server, self.store = bench.start_ckptd(name, *pool_for(mib, ranks, images))
        self.program = Program(bench.program("bench/ranks"), server, name, str(ranks), str(mib),
                               layout)

    def save(self):
        run = os.path.join(self.store, self.name)
        steps = sorted(name for name in os.listdir(run) if name.startswith("step-")) \
            if os.path.isdir(run) else []
        for step in steps[:-1]:
            shutil.rmtree(os.path.join(run, step))
        os.sync()
        return self.program.ask("save")

    def close(self):
        self.program.close()
        self.bench.end(self.ckptd)
        shutil.rmtree(self.store)


def persist(bench, name, mib, ranks, goal, layout="rows", repeat=DISK_REPEAT):
    """`repeat` saves, and as many runs of fio, make one sample."""
    saver = Saver(bench, name, mib, ranks, layout)
    bytes_saved = saver.save()["bytes"]  # the first save touches fresh memory: row first_save

    def ours():
        return bytes_saved / 1e9 / saver.save()["committed"]

    def reference():
        return fio_write(bench, bytes_saved >> 20, ranks)["rate"] / 1e9

    yield bench.pairs(name, "GB/s", ours, reference, pairs_min=11, repeat=repeat, goal=goal,
                      note=f"{bytes_saved >> 20} MiB by {ranks} ranks, one file each")
    saver.close()


def row_persist_4g_w1(bench):
    """4 GiB by one rank, from the first copied byte to the committed checkpoint, beside fio"""
    yield from persist(bench, "persist_4g_w1", 4096, 1, 0.95)


def row_persist_4g_w2(bench):
    """4 GiB by two ranks, beside fio"""
    yield from persist(bench, "persist_4g_w2", 4096, 2, 0.95)


def row_persist_4g_w4(bench):
    """4 GiB by four ranks, beside fio"""
    yield from persist(bench, "persist_4g_w4", 4096, 4, 0.95)


def row_persist_4g_w8(bench):
    """4 GiB by eight ranks, beside fio"""
    yield from persist(bench, "persist_4g_w8", 4096, 8, 0.95)


def row_persist_256m_w4(bench):
    """256 MiB by four ranks, beside fio: what the commit itself costs"""
    yield from persist(bench, "persist_256m_w4", 256, 4, 0.80, repeat=8)


def row_persist_mix(bench):
    """tensors of 1 KiB to 256 MiB cut by a 3-D mesh of eight ranks, beside fio"""
    yield from persist(bench, "persist_mix", 4096, 8, 0.90, layout="mesh")


class CpuCost:
    """The job of row persist_cpu: CPU seconds per GB that a save takes of ckptd and of its client.
    """

    def __init__(self, bench, name="persist_cpu"):
        self.bench, self.saver = bench, Saver(bench, name, 2048, 4)
        self.gigabytes = self.saver.save()["bytes"] / 1e9

    def sample(self):
        before = self.bench.cpu_of(self.saver.ckptd)
        client = self.saver.save()["cpu"]
        ckptd = self.bench.cpu_of(self.saver.ckptd) - before
        return ckptd / self.gigabytes, client / self.gigabytes

    def close(self):
        self.saver.close()


def row_persist_cpu(bench):
    """CPU of ckptd and its client, beside memcpy, XXH3 and fio moving the same bytes"""
    cost = CpuCost(bench)
    saver, gigabytes = cost.saver, cost.gigabytes
    parts = {"ckptd": [], "client": [], "memcpy": [], "hash": [], "fio": []}

    def ours():
        ckptd, client = cost.sample()
        parts["ckptd"].append(ckptd)
        parts["client"].append(client)
        return ckptd + client

    def reference():
        moved = {"memcpy": saver.program.ask("memcpy")["cpu"],
                 "hash": saver.program.ask("hash")["cpu"],
                 "fio": fio_write(bench, 2048, 4)["cpu"]}
        for part, seconds in moved.items():
            parts[part].append(seconds / gigabytes)
        return sum(moved.values()) / gigabytes

    row = bench.pairs("persist_cpu", "s/GB", ours, reference, pairs_min=11,
                      direction="lower", goal=1.25)
    row.note = "2 GiB by 4 ranks; " + ", ".join(
        f"{part} {statistics.median(values):.3f}" for part, values in parts.items())
    yield row
    cost.close()


FIRST_REPEAT = 5
# Before a timed save: the work that the last one or the start left to ckptd is over, as it is in a
# run, whose first save comes a step after its start.
FIRST_PAUSE = 0.5


def row_first_save(bench):
    """the first save of a new process through a new ckptd, beside later ones of the same"""
    found = []  # seconds of the first and of a later save, by their end points

    def first():
        """Means of a few; the later saves of the same processes come with them."""
        pairs = []
        for _ in range(FIRST_REPEAT):
            saver = Saver(bench, "first_save", 512, 1, images=4)
            time.sleep(FIRST_PAUSE)
            first = saver.save()
            saver.save()  # the second image's turn
            time.sleep(FIRST_PAUSE)
            pairs.append((first, saver.save()))
            saver.close()
        found.append({end: [statistics.mean(pair[i][end] for pair in pairs) for i in (0, 1)]
                      for end in ("copied", "committed")})
        return found[-1]["copied"][0]

    note = f"512 MiB, one rank; means of {FIRST_REPEAT} processes"
    yield bench.pairs("first_save", "s", first, lambda: found[-1]["copied"][1], pairs_min=11,
                      direction="lower", goal=1.1, note=note + "; how long training is held up")
    yield Row("first_save_durable", "s", *zip(*(ends["committed"] for ends in found)),
              direction="lower", goal=1.1, note=note + "; until it is committed")
