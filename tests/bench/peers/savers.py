"""savers.py - one way of saving and loading per class, all of them on the same tensors.

A saver has
    save(path)     returns when every byte of this rank is durable
    load(path)     fills the state's tensors; or returns others, in memory, that take their place
    begin(path)    returns as soon as training may go on: (staged, durable). The tensors may change
                   when `staged` is done, the checkpoint is durable when `durable` is; both have
                   done() and result()

How each peer is used at its best is said at its class; the settings that depend on the machine
(`threads`, `mmap`) are chosen by measurement in rows_peers.py. README.md names the sources.
"""
import ctypes
import mmap
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

ROWS = COLUMNS = 4096  # of a tensor: 64 MiB of F32, as in tests/bench/ranks.c
TENSOR_MIB = ROWS * COLUMNS * 4 >> 20


def on_pages(tensor):
    """A copy of the tensor that begins on a page, as O_DIRECT requires, on huge pages if possible:
    a disk gets fewer segments then."""
    memory = mmap.mmap(-1, tensor.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    copy = torch.frombuffer(memory, dtype=tensor.dtype).view_as(tensor)
    return copy.copy_(tensor)


class State:
    """The tensors of the job: `local` are this rank's rows, `tensors` the same memory as DTensors
    that know the whole."""

    def __init__(self, rank, world, mib):
        mesh = init_device_mesh("cpu", (world,))
        self.rank, self.world = rank, world
        self.num_rows = ROWS // world
        self.local = {f"layers.{i}.weight": on_pages(self.values(i))
                      for i in range(mib // TENSOR_MIB)}
        self.tensors = {name: DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)
                        for name, tensor in self.local.items()}

    def values(self, index):
        """Every element by its global position; no two rows and no two tensors are equal."""
        first = (index * ROWS + self.rank * self.num_rows) * COLUMNS
        at = torch.arange(first + 1, first + 1 + self.num_rows * COLUMNS, dtype=torch.int64)
        at.mul_(0x9e3779b97f4a7c15 - 2**64).bitwise_right_shift_(40).bitwise_and_(0xffffff)
        return at.to(torch.float32).mul_(2.0**-24).view(self.num_rows, COLUMNS)

    def change(self, step):
        """Simulates the optimizer's update: changes the first element of every tensor."""
        for tensor in self.local.values() if self.rank == 0 else ():
            tensor[0, 0] = step

    def spoil(self):
        for tensor in self.local.values():
            tensor.zero_()

    def is_whole(self, tensors):
        """True when these hold the values of the constructor and change(), all of one step."""
        step = float(next(iter(tensors.values()))[0, 0])
        for index, name in enumerate(self.local):
            wanted = self.values(index)
            if self.rank == 0:
                wanted[0, 0] = step
            if not torch.equal(wanted, tensors[name]):
                return False
        return self.rank != 0 or (step >= 1 and step == int(step))


def done(result=None):
    future = Future()
    future.set_result(result)
    return future


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def sync_all(path):
    for name in os.listdir(path):
        sync(os.path.join(path, name))
    sync(path)


class Blocking:
    """A saver with save() only: training stops until it returns."""

    def begin(self, path):
        self.save(path)
        return done(), done()


class Dcp(Blocking):
    """PyTorch Distributed Checkpoint: one file per rank and thread, os.fsync of each (sync_files),
    the plan cached from the second save on."""

    def __init__(self, state, threads=1):
        self.state, self.threads = state, threads
        self.planner = DefaultSavePlanner(enable_plan_caching=True)

    def writer(self, path):
        return dcp.FileSystemWriter(path, single_file_per_rank=True, sync_files=True,
                                    thread_count=self.threads)

    def save(self, path):
        dcp.save(self.state.tensors, storage_writer=self.writer(path), planner=self.planner)

    def load(self, path):
        dcp.load(self.state.tensors, storage_reader=dcp.FileSystemReader(path))


class DcpAsync(Dcp):
    """async_save: the copy into kept staging memory runs in a thread beside the step, then `kind`
    (a thread, or a process that shares the staging memory) saves. The pinned memory and the
    non-blocking copies of DefaultStager need CUDA: without it they are off."""

    def __init__(self, state, kind, threads=1):
        super().__init__(state, threads)
        kinds = state_dict_saver.AsyncCheckpointerType
        self.kind = {"thread": kinds.THREAD, "process": kinds.PROCESS}[kind]
        has_cuda = torch.cuda.is_available()
        self.stager = DefaultStager(StagingOptions(
            use_pinned_memory=has_cuda, use_shared_memory=kind == "process",
            use_async_staging=True, use_non_blocking_copy=has_cuda))
        # Collectives of the saving thread must not mix with those of the training loop.
        self.group = dist.new_group(backend="gloo")

    def begin(self, path):
        response = dcp.async_save(self.state.tensors, storage_writer=self.writer(path),
                                  planner=self.planner, async_checkpointer_type=self.kind,
                                  async_stager=self.stager, process_group=self.group)
        return response.staging_completion, response.upload_completion

    def save(self, path):
        self.begin(path)[1].result()


class Least:
    """The minimal work of every saver beside the step: a thread copies the state into kept memory,
    then threads write it to one file, past the page cache, and sync it. Nothing is hashed, nothing
    can be loaded."""

    def __init__(self, state):
        self.state = state
        self.kept = [on_pages(tensor) for tensor in state.local.values()]
        self.save_thread = ThreadPoolExecutor(max_workers=1)
        self.writers = ThreadPoolExecutor(max_workers=4)

    def copy(self):
        for kept, tensor in zip(self.kept, self.state.local.values()):
            kept.copy_(tensor)

    def write(self, path):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        parts = [(tensor.numpy().data, i * tensor.nbytes) for i, tensor in enumerate(self.kept)]
        os.posix_fallocate(file, 0, sum(tensor.nbytes for tensor in self.kept))
        for written in self.writers.map(lambda part: os.pwrite(file, *part), parts):
            assert written == self.kept[0].nbytes
        os.fsync(file)
        os.close(file)

    def begin(self, path):
        return self.save_thread.submit(self.copy), self.save_thread.submit(self.write, path)


class Uncopied(Least):
    """Only the write, from the state itself: the update waits until all of it is on disk."""

    def __init__(self, state):
        super().__init__(state)
        self.kept = list(state.local.values())

    def begin(self, path):
        written = self.save_thread.submit(self.write, path)
        return written, written


class TorchSave(Blocking):
    """torch.save of this rank's tensors into its own file, without the zip's CRC-32, then fsync of
    the file and of its folder. A load gives new tensors (that a model takes over by
    load_state_dict(assign=True)); or maps the file and copies into existing ones."""

    def __init__(self, state, mmap=False):
        self.state, self.mmap = state, mmap
        torch.serialization.set_crc32_options(False)

    def save(self, path):
        os.makedirs(path, exist_ok=True)
        file = os.path.join(path, f"rank-{self.state.rank}.pt")
        torch.save(self.state.local, file)
        sync(file)
        sync(path)

    def load(self, path):
        file = os.path.join(path, f"rank-{self.state.rank}.pt")
        loaded = torch.load(file, mmap=self.mmap, weights_only=True)
        if not self.mmap:
            return loaded
        for name, tensor in self.state.local.items():
            tensor.copy_(loaded.pop(name))
        return None


class Safetensors(Blocking):
    """safetensors.torch.save_file likewise. load_file maps the file; the mapped tensors are
    copied."""

    def __init__(self, state):
        self.state = state

    def save(self, path):
        os.makedirs(path, exist_ok=True)
        file = os.path.join(path, f"rank-{self.state.rank}.safetensors")
        safetensors.torch.save_file(self.state.local, file)
        sync(file)
        sync(path)

    def load(self, path):
        file = os.path.join(path, f"rank-{self.state.rank}.safetensors")
        loaded = safetensors.torch.load_file(file)
        for name, tensor in self.state.local.items():
            tensor.copy_(loaded.pop(name))


class DcpSafetensors(Blocking):
    """DCP's writer of safetensors, a file per rank, and fsync of them; without consolidation."""

    def __init__(self, state):
        self.state = state

    def save(self, path):
        dcp.save(self.state.tensors, storage_writer=dcp.HuggingFaceStorageWriter(
            path, fqn_to_index_mapping={name: 1 for name in self.state.tensors},
            save_distributed=True))  # a cached plan fails in its write_data
        sync_all(path)
        dist.barrier()

    def load(self, path):
        dcp.load(self.state.tensors, storage_reader=dcp.HuggingFaceStorageReader(path))


class Next:
    """torch_checkpointing's manager: it stages in a thread, into shared memory that it keeps, and a
    process writes files, one per rank. Pinned memory, non-blocking copies and a resharder (for more
    than one rank) need CUDA; its O_DIRECT needs lengths that ext4 takes. It syncs nothing, so the
    files are synced here, when its future is done."""

    def __init__(self, state):
        import torch_checkpointing as theirs
        from torch_checkpointing.checkpoint_process import CheckpointProcessConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        self.state = state
        self.manager = theirs.CheckpointManager(theirs.CheckpointManager.Config(
            save=theirs.AsyncCheckpointSaverConfig(
                process_config=CheckpointProcessConfig(subprocess_init_timeout_secs=300)),
            storage_config=LocalFileSystemStorageConfig(use_direct_io=False)))
        self.waiter = ThreadPoolExecutor(max_workers=1)

    def begin(self, path):
        written = self.manager.save(path, {"model": self.state.tensors})

        def durable():
            written.result()
            while not os.path.exists(path):  # rank 0 renames the folder after all have written
                time.sleep(1e-3)
            sync_all(path)

        return self.manager._staging_future, self.waiter.submit(durable)

    def save(self, path):
        self.begin(path)[1].result()

    def load(self, path):
        self.manager.load(path, into={"model": self.state.tensors}, strict=True)


class Plugin:
    """holdfast.dcp: the stager's copy goes into ckptd's memory, in a thread. `next`: by
    torch_checkpointing's interface."""

    def __init__(self, state, server, run):
        import holdfast.dcp

        self.state, self.server, self.run, self.step = state, server, run, 0
        self.dcp = holdfast.dcp
        self.target = self.dcp.Session(run, server, on_failure="raise", take_over=True)

    def begin(self, _path):
        self.step += 1
        return self.dcp.async_save(self.state.tensors, self.target, self.step, overlap=True)

    def save(self, _path):
        self.begin(None)[1].result()

    def load(self, _path):
        self.dcp.load(self.state.tensors, self.target)

    def reopen(self, run):
        self.target.close()
        self.__init__(self.state, self.server, run)


class PluginNext(Plugin):
    def __init__(self, state, server, run):
        from holdfast.torch_checkpointing import CheckpointManager

        self.state, self.step = state, 0
        self.manager = CheckpointManager.Config(run=run + "-next", server=server,
                                                on_failure="raise", take_over=True).build()

    def begin(self, _path):
        self.step += 1
        saved = self.manager.save(f"step_{self.step}", {"model": self.state.tensors})
        return self.manager._staging_future, saved

    def load(self, _path):
        self.manager.load(self.manager.newest(), into={"model": self.state.tensors}, strict=True)


class Holdfast:
    """libckpt, through holdfast.c. The copy runs in a thread beside the step, as in the trainer
    with async_with_pinned_mem. The thread then waits for ckptd, which does the rest."""

    def __init__(self, state, libckpt, server, run):
        self.state, self.server = state, server
        self.libckpt = ctypes.CDLL(libckpt)
        self.libckpt.bench_error.restype = ctypes.c_char_p
        self.copier = ThreadPoolExecutor(max_workers=1)
        self.names = [name.encode() for name in state.local]
        shape = (ctypes.c_uint64 * 2)(ROWS, COLUMNS)
        for name, tensor in zip(self.names, state.local.values()):
            self.call("tensor", name, shape, ctypes.c_uint64(state.rank * state.num_rows),
                      ctypes.c_uint64(state.num_rows), ctypes.c_void_p(tensor.data_ptr()))
        self.open(run)

    def call(self, name, *arguments):
        if getattr(self.libckpt, "bench_" + name)(*arguments) != 0:
            raise RuntimeError(f"ckpt {name}: {self.libckpt.bench_error().decode()}")

    def open(self, run):
        self.call("open", self.server.encode(), run.encode(), self.state.rank, self.state.world)
        self.step = None

    def reopen(self, run):
        self.libckpt.bench_close()
        self.open(run)

    def describe(self):
        """Before the first save; a rank that only loads stays a reader."""
        attempt, step = ctypes.c_uint64(), ctypes.c_uint64()
        if self.state.rank == 0:
            self.call("attempt", ctypes.byref(attempt), ctypes.byref(step))
        numbers = [attempt.value, step.value]
        dist.broadcast_object_list(numbers)
        self.call("describe", ctypes.c_uint64(numbers[0]))
        self.step = numbers[1]

    def begin(self, _path):
        self.step += 1
        step = ctypes.c_uint64(self.step)
        return (self.copier.submit(self.call, "copy", step),
                self.copier.submit(self.call, "wait", step))

    def save(self, _path):
        self.step += 1
        self.call("copy", ctypes.c_uint64(self.step))
        if self.state.rank == 0:
            self.call("wait", ctypes.c_uint64(self.step))

    def load(self, _path):
        from_memory = ctypes.c_uint64()
        self.call("load", ctypes.byref(from_memory))
        if from_memory.value:
            raise RuntimeError("the checkpoint was in ckptd's memory")

    def close(self):
        self.libckpt.bench_close()
