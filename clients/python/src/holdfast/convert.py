"""convert - directories of torch's own DCP to and from checkpoints: `from-dcp`, `to-dcp`.

One tensor is in memory at a time. DCP's `.metadata` is a pickle: it is read by an unpickler that
knows the classes of DCP's metadata and nothing else, and tensors by torch.load(weights_only=True).
Objects are copied as bytes, not looked into.
"""
from __future__ import annotations

import dataclasses
import enum
import os
import pickle
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from . import arrays, dtypes, sharded
from .arrays import Part
from .checkpoint import Checkpoint
from .client import Client
from .errors import CorruptError, InvalidError

_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_CLASSES = {("torch", "Size"), ("torch", "device"), ("torch.serialization", "_get_layout"),
            ("collections", "OrderedDict"), ("pathlib", "PosixPath"), ("builtins", "set")}


def _member(kind: Any, name: str) -> Any:
    """What a pickle may use getattr() for: a member of an enumeration of DCP's."""
    if isinstance(kind, enum.EnumMeta) and kind.__module__ in _MODULES and name in kind.__members__:
        return kind[name]
    raise CorruptError(f".metadata asks for {name} of {kind}")


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if (module, name) in _CLASSES or module in _MODULES or (
                module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise CorruptError(f".metadata names {module}.{name}, which is none of DCP's classes")


def read_metadata(folder: str) -> Any:
    path = os.path.join(folder, ".metadata")
    if not os.path.exists(path):
        raise InvalidError(f"{folder} is no checkpoint of DCP: it has no .metadata",
                           "a save that was cut off has none")
    with open(path, "rb") as file:
        return _Metadata(file).load()


def _read(folder: str, info: Any) -> bytes:
    if info.relative_path != os.path.basename(info.relative_path):
        raise CorruptError(f".metadata names the file {info.relative_path}")
    if getattr(info, "transform_descriptors", None):
        raise InvalidError("the checkpoint was written with extensions",
                           "load and save it with DCP without them")
    with open(os.path.join(folder, info.relative_path), "rb") as file:
        file.seek(info.offset)
        return file.read(info.length)


class _Lazy:
    """The tensor of a part, put together when its turn comes."""

    def __init__(self, folder: str, size: Any, dtype: Any, chunks: List[Tuple[Any, Any]]) -> None:
        self.folder, self.size, self.dtype, self.chunks = folder, size, dtype, chunks

    def __call__(self) -> Any:
        import io

        whole = torch.empty(self.size, dtype=self.dtype)
        for chunk, info in self.chunks:
            part = torch.load(io.BytesIO(_read(self.folder, info)), weights_only=True,
                              map_location="cpu")
            box = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes))
            whole[box] = part
        return whole


def from_dcp(folder: str, run: str, step: int, server: Optional[str] = None) -> str:
    """Saves a directory of DCP as a step of a run; returns what holdfast.open() takes."""
    metadata = read_metadata(folder)
    parts, objects = [], {}
    for name, entry in metadata.state_dict_metadata.items():
        found = [(index, info) for index, info in metadata.storage_data.items()
                 if index.fqn == name]
        if not isinstance(entry, TensorStorageMetadata):
            objects[name] = _read(folder, found[0][1])
            continue
        by_offset = {tuple(index.offset or ()): info for index, info in found}
        chunks = [(chunk, by_offset[tuple(chunk.offsets)]) for chunk in entry.chunks]
        size, dtype = tuple(entry.size), entry.properties.dtype
        parts.append(Part(arrays.stored_name(sharded._plain(name)), dtypes.of_torch(dtype), size,
                          (0,) * len(size), size, 0, _Lazy(folder, size, dtype, chunks), True))
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    about = {"paths": {name: list(path) for name, path in paths.items()}}
    with Client(server, run, busy_seconds=60.0) as client:
        save = client.save_parts(step, parts, None,
                                 {f"{sharded.OBJECTS}0": sharded.pack(objects, about)})
        save.wait()
        return f"{run}@{step}-a{client.attempt}"


class _FromCheckpoint(DefaultSavePlanner):
    """Reads each tensor when the writer asks for it."""

    def __init__(self, checkpoint: Checkpoint, tensors: Dict[str, sharded.Stored],
                 objects: Dict[str, bytes], paths: Dict[str, Any]) -> None:
        super().__init__(flatten_state_dict=False)
        self._checkpoint, self._tensors = checkpoint, tensors
        self._objects, self._paths = objects, paths

    def create_local_plan(self) -> Any:
        return dataclasses.replace(super().create_local_plan(), planner_data=self._paths)

    def create_global_plan(self, all_plans: Any) -> Any:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, dataclasses.replace(metadata, planner_data=self._paths)

    def resolve_data(self, write_item: Any) -> Any:
        import io

        name = write_item.index.fqn
        if name in self._objects:
            return io.BytesIO(self._objects[name])
        stored = self._tensors[name]
        whole = torch.empty(stored.size, dtype=dtypes.to_torch(stored.dtype))
        for offset, extent in stored.boxes:
            box = tuple(slice(at, at + size) for at, size in zip(offset, extent))
            piece = self._checkpoint[arrays.given_name(stored.stored[offset])]
            whole[box] = piece.torch()
        return whole


def to_dcp(checkpoint: Checkpoint, folder: str) -> None:
    """Writes a checkpoint as a directory that dcp.load reads on any mesh."""
    if os.path.exists(os.path.join(folder, ".metadata")):
        raise InvalidError(f"{folder} has a checkpoint already", "name another directory")
    tensors = sharded.tensors_of(checkpoint.metadata)
    objects, abouts = sharded.read_objects(checkpoint._client, checkpoint.metadata)
    paths = {name: tuple(path) for about in abouts if about
             for name, path in about.get("paths", {}).items()}
    state: Dict[str, Any] = {name: torch.empty(one.size, dtype=dtypes.to_torch(one.dtype),
                                               device="meta") for name, one in tensors.items()}
    state.update({name: "" for name in objects})
    dcp.save(state, storage_writer=FileSystemWriter(folder, thread_count=1), no_dist=True,
             planner=_FromCheckpoint(checkpoint, tensors, objects,
                                     paths or {name: (name,) for name in state}))
