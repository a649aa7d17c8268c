"""holdfast - training state that survives the trainer, from Python.

    import holdfast

    with holdfast.Client("unix:/run/holdfast/ckptd.sock", run="llama") as client:
        saved = client.save(step, {"w": w, "b": b}, state={"epoch": 3})   # NumPy, torch
        saved.wait()                                              # or train on: ckptd commits

    with holdfast.open("llama@1000") as checkpoint:
        rows = checkpoint["w"][:128]                              # reads these rows, nothing else

torch.distributed.checkpoint: see holdfast.dcp. Importing the package imports no torch.
"""
from . import catalog
from .arrays import Slice
from .checkpoint import Checkpoint, LazyTensor, open
from .client import CheckpointInfo, Client, Loaded, Metadata, Save, store_address
from .errors import *  # noqa: F401,F403 - the exceptions
from .errors import HoldfastError
from .follow import follow

__version__ = "0.1"
__all__ = ["Checkpoint", "CheckpointInfo", "Client", "HoldfastError", "LazyTensor", "Loaded",
           "Metadata", "Save", "Slice", "catalog", "follow", "open", "store_address"]
