"""rows_peers.py - Holdfast beside PyTorch's own checkpointing and safetensors.

Both sides are the same processes (worker.py): ranks of PyTorch, joined by gloo, whose tensors are
saved, loaded and trained on. A row's two sides differ only in the saver. All files lie in the
folder of the bench, on one file system. README.md describes the method and the peers' settings.
"""
import ctypes
import glob
import json
import mmap
import os
import shutil
import statistics
import time

from fio import fio_read, fio_write, shards
from measure import LOST_MIN, ROOT, Program, Row, Share

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(os.environ.get("PEERS_VENV", os.path.join(ROOT, "build/peers-venv")),
                      "bin/python")
RANKS, MIB = 4, int(os.environ.get("PEERS_MIB", 1024))
TRAIN_MIB = MIB // 2
# A segment of the size of a tensor's part, so that an image wastes little; two images per rank.
CKPTD = ("--memory.segment_bytes", "64MiB", "--storage.usable_fraction", "1.0")
PERSIST_GOAL, LOAD_GOAL, LOAD_FIO_GOAL, LOST_GOAL = 5, 3, 0.9, 0.1
LOST_PAIRS = 11
OURS, LEAST, UNCOPIED = "holdfast", "least", "uncopied"
LOAD_PEERS = ("dcp", "torch_save", "safetensors")
SAVE_PEERS = (*LOAD_PEERS, "dcp_async_thread", "dcp_async_process")


class Job:
    """`world` ranks of worker.py beside a ckptd with `store`. `with Job(...)`; leaving it ends
    them."""

    def __init__(self, bench, name, world, mib, server, store, run):
        if not os.path.exists(PYTHON):
            raise RuntimeError(f"{PYTHON} is missing: PyTorch is installed by `make bench-peers`")
        self.bench, self.name, self.mib = bench, name, mib
        self.gb = mib * 2**20 / 1e9
        self.count, self.paths, self.ours = 0, {}, os.path.join(store, run)
        rendezvous = os.path.join(bench.tmp, name + ".rendezvous")
        self.ranks = [Program(PYTHON, os.path.join(HERE, "worker.py"), str(rank), str(world),
                              rendezvous, str(mib), bench.program("bench/peers/libckpt.so"),
                              server, run, self.log(rank)) for rank in range(world)]

    def __enter__(self):
        self.versions = self.answers()[0]
        return self

    def __exit__(self, kind, *unused):
        for rank in self.ranks:
            rank.close()

    def log(self, rank):
        return os.path.join(self.bench.tmp, f"{self.name}-{rank}.log")

    def answers(self):
        lines = []
        for number, rank in enumerate(self.ranks):
            lines.append(rank.process.stdout.readline())
            if not lines[-1]:
                self.kill()
                with open(self.log(number)) as file:
                    raise RuntimeError(f"rank {number} of {self.name} ended: {file.read()[-500:]}")
        return [json.loads(line) for line in lines]

    def kill(self):
        for rank in self.ranks:
            rank.process.kill()

    def ask(self, do, **command):
        """The same command to every rank; their answers."""
        line = json.dumps({"do": do, **command}) + "\n"
        for rank in self.ranks:
            rank.process.stdin.write(line)
            rank.process.stdin.flush()
        return self.answers()

    def new_path(self, saver):
        """A folder that does not exist. The saver's older one is removed, of ours all except the
        newest, and the disk is quiet."""
        old = sorted(glob.glob(os.path.join(self.ours, "step-*")))[:-1] if saver == OURS else \
            [path for path in [self.paths.get(saver, "")] if os.path.exists(path)]
        for path in old:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        os.sync()
        self.count += 1
        self.paths[saver] = os.path.join(self.bench.tmp, f"{self.name}-{saver}-{self.count}")
        return self.paths[saver]

    def save(self, saver, **settings):
        """Seconds from the first rank's begin until the last rank's bytes are durable."""
        return self.span(self.ask("save", **{"with": saver}, path=self.new_path(saver),
                                  settings=settings))

    def load(self, saver, path, **settings):
        """Seconds until every rank has its tensors, from files that are not in memory."""
        evict(path)
        return self.span(self.ask("load", **{"with": saver}, path=path, settings=settings))

    def check(self):
        if not all(answer["equal"] for answer in self.ask("check")):
            raise RuntimeError(f"{self.name}: what was loaded is not what was saved")

    def lost(self, saver, **settings):
        """Seconds by which the slowest rank's training took longer for one save."""
        answers = self.ask("train", **{"with": saver}, path=self.new_path(saver),
                           settings=settings)
        return max(answer["seconds"] - answer["batches"] * statistics.median(answer["quiet"])
                   for answer in answers)

    def span(self, answers):
        return max(a["ended"] for a in answers) - min(a["began"] for a in answers)


# ---- a cold cache ----

def evict(folder):
    """Evicts every file below `folder` from the page cache, and checks that."""
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            os.fsync(descriptor)  # a page that is not on disk stays
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            left = resident_pages(descriptor)
            os.close(descriptor)
            if left:
                raise RuntimeError(f"{parent}/{name}: {left} pages stay in the page cache")


def resident_pages(descriptor):
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0
    pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
    # A writable private mapping: only such a one can be lent to ctypes; nothing is touched.
    with mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE,
                   prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        code = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages)
        del first
    if code != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages)


# ---- choosing a peer's settings ----

def best(measure, candidates, rounds=3):
    """The settings with the shortest median time, each tried `rounds` times in turns."""
    times = [[] for _ in candidates]
    for _ in range(rounds):
        for seconds, settings in zip(times, candidates):
            seconds.append(measure(settings))
    middles = [statistics.median(seconds) for seconds in times]
    tried = [", ".join(f"{key}={value}" for key, value in settings.items()) + f": {seconds:.3f} s"
             for settings, seconds in zip(candidates, middles)]
    chosen = middles.index(min(middles))
    return candidates[chosen], f"; {tried.pop(chosen)} (others: {'; '.join(tried)})"


SAVE_CANDIDATES = {peer: [{"threads": 1}, {"threads": 2}, {"threads": 4}]
                   for peer in ("dcp", "dcp_async_thread", "dcp_async_process")}
LOAD_CANDIDATES = {"torch_save": [{"mmap": False}, {"mmap": True}]}


# ---- rows ----

def limit(bounds, theirs):
    """The machine's limit, as a multiple of the peer's figure."""
    return statistics.median(bounds) / statistics.median(theirs)


def middle(measure, rounds=3):
    """One sample on a disk that others use too."""
    return statistics.median(measure() for _ in range(rounds))


def versions(job):
    return "torch {torch}, safetensors {safetensors}".format(**job.versions)


def persist_row(bench, peer):
    _, server, store = bench.start_ckptd("persist", "--memory.pool_bytes", "3GiB", *CKPTD)
    with Job(bench, "persist", RANKS, MIB, server, store, peer) as job:
        job.save(OURS)  # the first of each makes memory and plans
        job.save(peer, **SAVE_CANDIDATES.get(peer, [{}])[0])
        settings, tried = {}, ""
        if peer in SAVE_CANDIDATES:
            settings, tried = best(lambda s: job.save(peer, **s), SAVE_CANDIDATES[peer])
        disk = []

        def theirs():
            disk.append(fio_write(bench, MIB, RANKS)["rate"] / 1e9)
            return job.gb / job.save(peer, **settings)

        row = bench.pairs(f"peer_persist_{peer}", "GB/s", lambda: job.gb / job.save(OURS), theirs,
                          direction="higher", goal=PERSIST_GOAL)
        row.note = (f"{MIB} MiB, {RANKS} ranks{tried}; fio writes {statistics.median(disk):.2f} "
                    f"GB/s, {limit(disk, row.reference):.2f} times the peer's; {versions(job)}")
        yield row


def of_each(bench, row, peers):
    for peer in peers:
        yield from row(bench, peer)
        bench.clear()


def row_peer_persist(bench):
    """GB/s until a save is durable, beside DCP's ways, torch.save and safetensors, with fsync"""
    return of_each(bench, persist_row, SAVE_PEERS)


class Reader:
    """Loads of ours: each from a ckptd that has just started, so that no image is in memory."""

    def __init__(self, bench, name):
        self.bench, self.name = bench, name
        self.start()

    def start(self):
        self.daemon, self.server, self.store = self.bench.start_ckptd(
            self.name, "--memory.pool_bytes", "3GiB", *CKPTD)

    def load(self, job, run):
        self.bench.end(self.daemon)
        self.start()
        job.ask("reopen", run=run)
        return job.load(OURS, self.store)


def load_row(bench, name, reader, job, run, peer, path):
    """Ours and the peer's load of the same state by the ranks of `job`, and the disk. The reference
    of a pair is the goal's rate: the less of LOAD_GOAL times the peer's rate and LOAD_FIO_GOAL of
    fio's."""
    settings, tried, disk, theirs = {}, "", [], []
    if peer in LOAD_CANDIDATES:
        settings, tried = best(lambda s: job.load(peer, path, **s), LOAD_CANDIDATES[peer])
    files = shards(reader.store, run)
    reader.load(job, run)
    job.check()
    job.load(peer, path, **settings)
    job.check()

    def asked_rate():
        disk.append(middle(lambda: fio_read(bench, files)["rate"] / 1e9))
        theirs.append(middle(lambda: job.gb / job.load(peer, path, **settings)))
        return min(LOAD_GOAL * theirs[-1], LOAD_FIO_GOAL * disk[-1])

    row = bench.pairs(name, "GB/s", lambda: middle(lambda: job.gb / reader.load(job, run)),
                      asked_rate, direction="higher", goal=1)
    row.note = (f"beside the less of {LOAD_GOAL} times the peer and {LOAD_FIO_GOAL} of fio; "
                f"{MIB} MiB, {len(job.ranks)} ranks, cold{tried}; {versions(job)}")
    yield row
    yield Row(name + "_peer", "GB/s", row.ours, theirs, note="beside the peer itself")
    yield Row(name + "_disk", "GB/s", row.ours, disk, note="beside fio")


def same_ranks(bench, peer):
    reader = Reader(bench, "load")
    with Job(bench, "load", RANKS, MIB, reader.server, reader.store, "load") as job:
        job.save(OURS)
        job.save(peer)
        yield from load_row(bench, f"peer_load_{peer}", reader, job, "load", peer,
                            job.paths[peer])


def row_peer_load(bench):
    """GB/s of a load by the same ranks, page cache cold, beside DCP, torch.load and safetensors"""
    return of_each(bench, same_ranks, LOAD_PEERS)


def row_peer_reshard_dcp(bench):
    """GB/s of a load by other ranks, 4 to 2 and 2 to 4, page cache cold, beside DCP load"""
    reader = Reader(bench, "reshard")
    with Job(bench, "four", 4, MIB, reader.server, reader.store, "four") as four, \
            Job(bench, "two", 2, MIB, reader.server, reader.store, "two") as two:
        for job in four, two:
            job.save(OURS)
            job.save("dcp")
        two.ask("reopen", run="four")
        yield from load_row(bench, "peer_reshard_dcp_4to2", reader, two, "four", "dcp",
                            four.paths["dcp"])
        yield from load_row(bench, "peer_reshard_dcp_2to4", reader, four, "two", "dcp",
                            two.paths["dcp"])


def lost_row(bench, peer):
    _, server, store = bench.start_ckptd("lost", "--memory.pool_bytes", "2GiB", *CKPTD)
    with Job(bench, "lost", 1, TRAIN_MIB, server, store, "lost") as job:
        for saver in OURS, LEAST, UNCOPIED:  # the first makes memory and plans
            job.lost(saver)
        job.lost(peer, **SAVE_CANDIDATES.get(peer, [{}])[0])
        settings, tried = {}, ""
        if peer in SAVE_CANDIDATES:
            settings, tried = best(lambda s: job.lost(peer, **s), SAVE_CANDIDATES[peer])
        bounds = {LEAST: [], UNCOPIED: []}

        def theirs():
            for saver, lost in bounds.items():
                lost.append(job.lost(saver))
            return max(middle(lambda: job.lost(peer, **settings)), LOST_MIN)

        row = bench.pairs(f"peer_lost_{peer}", "s", lambda: middle(lambda: job.lost(OURS)), theirs,
                          pairs_min=LOST_PAIRS, pairs_max=LOST_PAIRS, kind=Share,
                          direction="lower", goal=LOST_GOAL)
        pinned = "" if job.versions["cuda"] else "no CUDA: no pinned staging; "
        copied, uncopied = (f"{statistics.median(lost):.3f} s, {limit(lost, row.reference):.2f} of "
                            "the peer's" for lost in bounds.values())
        row.note = (f"{TRAIN_MIB} MiB, one rank of one thread, {os.cpu_count() - 1} cores "
                    f"free{tried}; a bare copy and write lose {copied}; a bare write, for which "
                    f"the update waits, {uncopied}; {pinned}{versions(job)}")
        yield row


def row_peer_lost(bench):
    """seconds that training loses per save, beside DCP's ways, torch.save and safetensors"""
    return of_each(bench, lost_row, SAVE_PEERS)
