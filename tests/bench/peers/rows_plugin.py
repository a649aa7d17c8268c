"""rows_plugin.py - holdfast.dcp, the plug-in of torch's DCP, compared with torch's own ways of
saving.

Both sides are the same ranks and the same DTensors (worker.py), of 1 and 4 GiB on two and four
ranks. `held` is how long training may not change the tensors: until all of them are copied, or
written where the saver copies nothing. `durable` is until every file is synced. Nothing runs during
a save. `memory` is the memory of a kept state in addition to the state: of the ranks, their
children and ckptd, shared pages in parts. PLUGIN_MIB, PLUGIN_RANKS and PLUGIN_ROUNDS choose a part.
"""
import os

from fio import fio_read, fio_write, shards
from measure import LOST_MIN, Row
from memory import memory_of
from rows_peers import Job, evict


def numbers(name, default):
    return [int(number) for number in os.environ.get(name, default).split(",")]


SIZES, WORLDS = numbers("PLUGIN_MIB", "1024,4096"), numbers("PLUGIN_RANKS", "2,4")
ROUNDS = numbers("PLUGIN_ROUNDS", "7")[0]
SPARE_MIB, SPARE = 32, 2  # of a pool, for the space that images leave in segments: so many per rank
ALL_MIB, FEW = 1024, ("dcp", "dcp_async_process")  # of larger states, as memory is short
OURS = "plugin"
# The compared saver, and whether it copies the state twice: into memory, then into files.
PEERS = {"dcp": False, "dcp_safetensors": False, "dcp_async_thread": True,
         "dcp_async_process": True, "next": True}
HELD_GOAL, HELD_TWICE_GOAL, DISK_GOAL, LOAD_GOAL, LOAD_FIO_GOAL = 1.0, 0.5, 1.1, 1.5, 0.9
IMAGE_GOAL, WINDOW_GOAL, WINDOW = 1.05, 0.6, 0.5


class PluginJob(Job):
    """Ranks beside a ckptd whose memory is `images` of the state."""

    def __init__(self, bench, name, world, mib, images=1.0):
        self.options = ("--memory.pool_bytes", f"{int(mib * images) + SPARE_MIB}MiB",
                        "--memory.segment_bytes", f"{SPARE_MIB // SPARE // world}MiB",
                        "--storage.usable_fraction", "1.0", "--retention.keep_last", "1")
        self.daemon, server, self.store = bench.start_ckptd(name, *self.options)
        super().__init__(bench, name, world, mib, server, self.store, name)
        self.run = f"{name}-plugin"

    def hold(self, saver):
        """(held, durable) in seconds, of the slowest rank."""
        answers = self.ask("hold", **{"with": saver}, path=self.new_path(saver))
        return max(answer["held"] for answer in answers), self.span(answers)

    def memory(self):
        return sum(answer["bytes"] for answer in self.ask("memory"))

    def costs(self, saver):
        """Of a first save: the memory kept after it, as a part of the state."""
        before = self.memory()
        self.hold(saver)
        daemon = memory_of(self.daemon.pid) if saver.startswith(OURS) else 0
        return (self.memory() + daemon - before) / (self.mib << 20)

    def load_ours(self, run):
        """From the files: ckptd has just started."""
        self.bench.end(self.daemon)
        self.daemon, _, _ = self.bench.start_ckptd(self.name, *self.options)
        self.ask("reopen", **{"with": OURS}, run=run)
        return self.load(OURS, os.path.join(self.store, run))


def rounds(bench, job, savers):
    """{saver: [(held, durable)]}, in turns, and fio's time for as many bytes."""
    taken, disk = {saver: [] for saver in savers}, []
    for _ in range(3 if bench.quick else ROUNDS):
        for saver in savers:
            taken[saver].append(job.hold(saver))
        disk.append(fio_write(bench, job.mib, len(job.ranks))["seconds"])
    return taken, disk


def row_of(name, ours, theirs, **options):
    return Row(f"plugin_{name}", "s", ours, [max(one, LOST_MIN) for one in theirs], "lower",
               **options)


def name_of(mib, world):
    return f"{mib >> 10}g_w{world}"


def saves(bench, mib, world):
    name, peers = name_of(mib, world), list(PEERS if mib <= ALL_MIB else FEW)
    with PluginJob(bench, "plugin", world, mib) as job:
        memory = {saver: job.costs(saver) for saver in (OURS, *peers)}  # makes plans, too
        taken, disk = rounds(bench, job, (OURS, *peers))
    held = {saver: [one for one, _ in pairs] for saver, pairs in taken.items()}
    durable = {saver: [one for _, one in pairs] for saver, pairs in taken.items()}
    yield row_of(f"held_{name}_best", held[OURS], map(min, zip(*(held[peer] for peer in peers))),
                 goal=HELD_GOAL)
    yield row_of(f"durable_{name}_disk", durable[OURS], disk, goal=DISK_GOAL)
    for peer in peers:
        yield row_of(f"held_{name}_{peer}", held[OURS], held[peer],
                     goal=HELD_TWICE_GOAL if PEERS[peer] else None)
        yield row_of(f"durable_{name}_{peer}", durable[OURS], durable[peer])
        yield Row(f"plugin_memory_{name}_{peer}", "of the state", [memory[OURS]], [memory[peer]],
                  "lower", note="one first save of each")


def row_plugin_saves(bench):
    """held, durable and memory of a save by holdfast.dcp, beside torch's own ways"""
    for mib in SIZES:
        for world in WORLDS:
            yield from saves(bench, mib, world)
            bench.clear()


def row_plugin_next(bench):
    """the same through torch_checkpointing's interface, beside its own storage"""
    with PluginJob(bench, "plugin", 2, SIZES[0]) as job:
        job.hold("plugin_next"), job.hold("next")
        taken, _ = rounds(bench, job, ("plugin_next", "next"))
    for at, what, goal in ((0, "held", HELD_TWICE_GOAL), (1, "durable", None)):
        yield row_of(f"next_{what}", *([pair[at] for pair in pairs] for pairs in taken.values()),
                     goal=goal)


def memory_rows(bench, mib, world):
    for name, images, goal in (("image", 1.0, IMAGE_GOAL), ("window", WINDOW, WINDOW_GOAL)):
        with PluginJob(bench, "plugin", world, mib, images) as job:
            yield Row(f"plugin_memory_{name_of(mib, world)}_{name}", "of the state",
                      [job.costs(OURS)], (), "lower", goal)
        bench.clear()


def row_plugin_memory(bench):
    """host memory of ckptd as a part of the state: one image, and a window of half of it"""
    for mib in SIZES:
        for world in WORLDS:
            yield from memory_rows(bench, mib, world)


def load_rows(bench, name, job, run, saved_by, peers):
    """`job` loads the checkpoint of `saved_by`, by ours and by each peer, cold."""
    for peer in peers:
        path, rates = saved_by.paths[peer], []
        row = Row(f"plugin_{name}_{peer}", "GB/s", [], [], "higher", LOAD_GOAL)
        for _ in range(3 if bench.quick else ROUNDS):
            row.add(job.gb / job.load_ours(run), job.gb / job.load(peer, path))
            files = shards(job.store, run)
            evict(os.path.dirname(files[0]))
            rates.append(fio_read(bench, files)["rate"] / 1e9)
        job.check()
        yield row
        yield Row(f"plugin_{name}_{peer}_disk", "GB/s", row.ours, rates, "higher", LOAD_FIO_GOAL,
                  note="beside fio")


def row_plugin_loads(bench):
    """GB/s of cold loads by holdfast.dcp: four ranks, and two of what four saved"""
    for mib in SIZES:
        peers = ("dcp", "next") if mib <= ALL_MIB else ("dcp",)
        with PluginJob(bench, "plugin", 4, mib) as four:
            for saver in (OURS, *peers):
                four.hold(saver)
            yield from load_rows(bench, f"load_{mib >> 10}g_w4", four, four.run, four, peers)
            with Two(bench, four) as two:
                yield from load_rows(bench, f"reshard_{mib >> 10}g_4to2", two, four.run, four,
                                     ("dcp",))
        bench.clear()


class Two(PluginJob):
    """Two ranks on the store of four."""

    def __init__(self, bench, four):
        bench.end(four.daemon)
        self.options = four.options
        self.daemon, server, self.store = bench.start_ckptd("plugin", *four.options)
        Job.__init__(self, bench, "two", 2, four.mib, server, self.store, "two")
        self.name, self.run = "plugin", four.run
