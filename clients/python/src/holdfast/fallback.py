"""fallback - DCP's own files for what ckptd does not take: Session(fallback=folder).

A step is a directory step-N that dcp.load reads. `group` is of the files alone: they are written in
a thread, beside what the session's ranks say to each other of the next save.
"""
from __future__ import annotations

import copy
import io
import os
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.utils._pytree import tree_map

from . import dtypes
from .boxes import SavePlanner
from .dcp_files import METADATA, Folder
from .errors import NotFoundError


class Files:
    def __init__(self, folder: str, group: Any = None) -> None:
        self.folder, self._group = folder, group

    def copy(self, state: Any) -> Any:
        """A state dict on the CPU that shares nothing with `state`."""
        return tree_map(lambda value: value.detach().to("cpu", copy=True)
                        if isinstance(value, torch.Tensor) else copy.deepcopy(value), state)

    def path(self, step: int) -> str:
        return os.path.join(self.folder, f"step-{step}")

    def find(self, step: Optional[int] = None) -> Optional[int]:
        """This step, or the newest that is whole; None: it is not here."""
        steps: List[int] = []
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            number = name[len("step-"):]
            if name.startswith("step-") and number.isdigit() and os.path.exists(
                    os.path.join(self.folder, name, METADATA)):
                steps.append(int(number))
        if step is not None:
            return step if step in steps else None
        return max(steps, default=None)

    def writer(self, step: int) -> FileSystemWriter:
        return FileSystemWriter(self.path(step))

    def reader(self, step: Optional[int]) -> FileSystemReader:
        found = self.find(step)
        if found is None:
            raise NotFoundError(f"neither ckptd nor {self.folder} has "
                                f"{'a checkpoint' if step is None else f'step {step}'}")
        return FileSystemReader(self.path(found))

    def save(self, step: int, state: Any) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(state, storage_writer=self.writer(step), planner=SavePlanner(),
                 process_group=self._group, no_dist=self._group is None)

    def load(self, step: int, allow_pickle: bool) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """All of a step, flat, and the ways to it. No class that a pickle names is looked up."""
        found = Folder(self.path(step))
        flat: Dict[str, Any] = {}
        for name, tensor in found.tensors.items():
            flat[name] = torch.empty(tensor.size, dtype=dtypes.to_torch(tensor.dtype))
            if flat[name].numel():
                found.fill(flat[name].reshape(-1).view(torch.uint8).numpy(), 0, tensor)
        for name, place in found.objects.items():
            flat[name] = torch.load(io.BytesIO(found.object(place)), weights_only=not allow_pickle)
        return flat, dict(found.paths)
