"""lib_dcp - jobs of torch on gloo for tests/interop/dcp.py: a model and its optimizer on a mesh.

job() starts ranks as processes, each of which makes the model on its mesh and does one thing. They
are forked from a server that has imported torch, which costs a rank seconds. A rank that takes
longer than LIMIT_SECONDS prints where it is and ends, so that a hang is a failure.
"""
import contextlib
import faulthandler
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "../integration"))
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
os.environ["HOLDFAST_LIBCKPT"] = os.path.join(BUILD, "libckpt.so.1")
import lib_overlay  # noqa: E402,F401 - before torch
from lib_tap import need  # noqa: E402

need("torch")
import warnings  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,  # noqa: E402
                                               parallelize_module)

# The server that ranks are forked from finds lib_overlay there, and so imports it before torch.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
LIMIT_SECONDS = 300 * float(os.environ.get("TEST_TIME_SCALE", "1"))
PRELOAD = ["lib_overlay", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
           "torch.distributed.tensor.parallel", "numpy"]
multiprocessing.set_forkserver_preload(PRELOAD)

# name: (degrees, names of the axes)
MESHES = {"single": ((1,), ("dp",)), "fsdp": ((4,), ("dp",)), "fsdp2": ((2,), ("dp",)),
          "fsdp3": ((3,), ("dp",)), "hsdp": ((2, 2), ("replicate", "dp")), "tp": ((2,), ("tp",)),
          "fsdp+tp": ((2, 2), ("dp", "tp"))}


class Net(nn.Module):
    """Two layers whose sizes no mesh divides, a norm, a buffer."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(12, 26)
        self.down = nn.Linear(26, 10, bias=False)
        self.norm = nn.LayerNorm(10)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.norm(self.down(torch.relu(self.up(x))))


def world_of(mesh):
    size = 1
    for degree in MESHES[mesh][0]:
        size *= degree
    return size


def make(name):
    """The model on its mesh, and an optimizer that has made one step."""
    degrees, axes = MESHES[name]
    torch.manual_seed(11)
    model = Net()
    if name != "single":
        mesh = init_device_mesh("cpu", degrees, mesh_dim_names=axes)
        if "tp" in axes:
            parallelize_module(model, mesh["tp"],
                               {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if "dp" in axes:
            data = mesh if "tp" not in axes else mesh["dp"]
            for layer in (model.up, model.down, model):
                fully_shard(layer, mesh=data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(12)
    model(torch.randn(8, 12)).square().sum().backward()
    optimizer.step()
    model.seen += 7
    return model, optimizer


def state_of(model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments,
            "train": {"step": 3, "note": "words", "list": [1, 2.5, None]}}


def whole(state):
    """Flat, every tensor whole: the form in which two meshes must agree."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    return {name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in flatten_state_dict(state)[0].items()}


def spoil(state):
    for value in state.values():
        if isinstance(value, dict):
            spoil(value)
        elif isinstance(value, torch.Tensor):
            (value.to_local() if isinstance(value, DTensor) else value).fill_(1)
    if "note" in state:
        state.update(step=0, note="", list=[0, 0, 0])


def start(task, arguments, ranks):
    """task(rank, *arguments) in a process for each rank."""
    torch.multiprocessing.start_processes(_limited, (task, arguments), ranks,
                                          start_method="forkserver")


def _limited(rank, task, arguments):
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    task(rank, *arguments)
    faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def meeting():
    """The port of the store at which ranks meet. It is served from here, as torchrun does it: a
    port that rank 0 takes when it starts may be another job's by then, and the ranks meet those."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def introduce(rank, world, port, **more):
    """The environment of a rank, as torchrun makes it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), NODE_RANK="0",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", **more)
    torch.set_num_threads(1)
    torch.manual_seed(1)


def _rank(rank, task, mesh, port, arguments):
    warnings.simplefilter("ignore")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    introduce(rank, world_of(mesh), port)
    dist.init_process_group("gloo")
    try:
        task(rank, mesh, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def job(task, mesh, *arguments):
    """task(rank, mesh, *arguments) on every rank; an exception in one is raised here."""
    with meeting() as port:
        start(_rank, (task, mesh, port, arguments), world_of(mesh))


def end():
    """Ends the server that ranks are forked from, and waits for it, as multiprocessing does where
    it tests itself: on a busy machine it would be there for a while after this process."""
    multiprocessing.forkserver._forkserver._stop()
    multiprocessing.resource_tracker._resource_tracker._stop()
