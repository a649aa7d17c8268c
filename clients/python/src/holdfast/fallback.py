"""fallback - DCP's own files for saves that ckptd does not accept: Session(fallback=folder).

A step is a directory step-N that dcp.load reads; kept.py finds the newest. `group` is only for the
files: a thread writes them, while the session's ranks communicate about the next save. `attempts`
returns the session's attempt; 0: none yet.
"""
from __future__ import annotations

import copy
import io
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult
from torch.utils._pytree import tree_map

from . import dtypes, kept
from .boxes import SavePlanner
from .dcp_files import Folder


class _Writer(FileSystemWriter):
    """DCP's, with the note that kept.py reads."""

    def __init__(self, path: str, attempt: int) -> None:
        super().__init__(path)
        self._attempt = attempt

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        kept.write_note(str(self.path), self._attempt)
        super().finish(metadata, results)


class Files:
    def __init__(self, folder: str, group: Any = None,
                 attempts: Callable[[], int] = lambda: 0) -> None:
        self.folder, self._group, self._attempts = folder, group, attempts

    def copy(self, state: Any) -> Any:
        """A state dict on the CPU that shares nothing with `state`."""
        return tree_map(lambda value: value.detach().to("cpu", copy=True)
                        if isinstance(value, torch.Tensor) else copy.deepcopy(value), state)

    def writer(self, step: int) -> FileSystemWriter:
        return _Writer(kept.path_of(self.folder, step), self._attempts())

    def reader(self, step: int) -> FileSystemReader:
        return FileSystemReader(kept.path_of(self.folder, step))

    def save(self, step: int, state: Any) -> None:
        import torch.distributed.checkpoint as dcp

        # A session of one process in a group; the DCP of torch 2.6 has no such argument.
        more = {"no_dist": True} if self._group is None and dist.is_initialized() else {}
        dcp.save(state, storage_writer=self.writer(step), planner=SavePlanner(),
                 process_group=self._group, **more)

    def load(self, step: int, allow_pickle: bool) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """All values of a step, flat, and their paths. No class that a pickle names is looked
        up."""
        found = Folder(kept.path_of(self.folder, step))
        flat: Dict[str, Any] = {}
        for name, tensor in found.tensors.items():
            flat[name] = torch.empty(tensor.size, dtype=dtypes.to_torch(tensor.dtype))
            if flat[name].numel():
                found.fill(flat[name].reshape(-1).view(torch.uint8).numpy(), 0, tensor)
        for name, place in found.objects.items():
            flat[name] = torch.load(io.BytesIO(found.object(place)), weights_only=not allow_pickle)
        return flat, dict(found.paths)
