"""holdfast.megatron - Megatron-Core's distributed checkpoints through ckptd:

    holdfast.megatron.register(run="llama")                      # once, on every rank
    dist_checkpointing.save(state, folder, sharded_strategy=("holdfast", 1))
    dist_checkpointing.load(state, folder)                       # its metadata.json says "holdfast"

Sharded tensors and objects go to ckptd as the step that the folder's name ends with, such as
iter_0000100; Megatron itself writes unsharded data, common.pt and metadata.json, into the folder,
metadata.json last. With async_sharded_save the copy is made at once, and the request's finalization
waits until the step is durable. A failed save raises, so that it leaves no metadata.json. Tensors
load in any other cut. Objects are bytes as torch.save writes them.
"""
from __future__ import annotations

import io
import os
import re
from typing import Any, Dict, List, Optional, Tuple

import torch
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.base import (AsyncSaveShardedStrategy,
                                                              LoadShardedStrategy, StrategyAction,
                                                              register_default_strategy)

from . import dtypes
from .arrays import Part
from .dcp import Reader, Session
from .dcp_files import overlap
from .errors import HoldfastError, InvalidError, misfit
from .sharded import Item, Stored

BACKEND, VERSION = "holdfast", 1
_STEP = re.compile(r"(\d+)/*$")


def step_of(folder: Any) -> int:
    match = _STEP.search(os.fspath(folder))
    if match is None:
        raise InvalidError(f"the folder {folder} does not end with a step", "such as iter_0000100")
    return int(match[1])


def register(run: str, server: Optional[str] = None, *, allow_pickle: bool = False,
             **options: Any) -> Session:
    """Makes ("holdfast", 1) known to Megatron. Returns the session, to be closed at the end;
    `allow_pickle`: load objects that torch.load(weights_only=True) refuses."""
    if options.get("fallback") is not None:
        raise InvalidError("Megatron's own writer is the fall back",
                           'sharded_strategy=("torch_dist", 1) where holdfast raises')
    session = Session(run, server, on_failure="raise", **options)
    register_default_strategy(StrategyAction.SAVE_SHARDED, BACKEND, VERSION, Save(session))
    register_default_strategy(StrategyAction.LOAD_SHARDED, BACKEND, VERSION,
                              Load(run, server, allow_pickle))
    return session


def _local(tensor: ShardedTensor) -> torch.Tensor:
    """With the axes that the global tensor has in front."""
    if tensor.flattened_range is not None:
        raise InvalidError(f"{tensor.key} is a range of a flattened tensor",
                           "save the optimizer in its fully reshardable form")
    return tensor.data.detach().reshape((1,) * tensor.prepend_axis_num + tuple(tensor.local_shape))


class Save(AsyncSaveShardedStrategy):
    def __init__(self, session: Session) -> None:
        super().__init__(BACKEND, VERSION)
        self.session = session

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> AsyncRequest:
        items: List[Item] = []
        objects: Dict[str, bytes] = {}
        for value in nested_values(sharded_state_dict):
            if isinstance(value, ShardedObject):
                blob = io.BytesIO()
                torch.save(value.data, blob)
                objects[value.unique_key] = blob.getvalue()
            else:
                items.append(Item(value.key, tuple(value.global_shape), tuple(value.global_offset),
                                  _local(value), is_shard=True))
        step = step_of(checkpoint_dir)
        self._agree(step, items, objects)
        return AsyncRequest(None, (), [lambda: self.session.finish(step)])

    def _agree(self, step: int, items: List[Item], objects: Dict[str, bytes]) -> None:
        """Saves; what failed on one rank is raised by all, or Megatron's barriers would wait."""
        failed: Optional[HoldfastError] = None
        try:
            self.session.save(step, items, objects, None, None)
        except HoldfastError as error:
            failed = error
        errors = [error for error in self.session._gather(failed) if error is not None]
        if errors:
            raise failed or errors[0]


def _check(wanted: List[Any], reader: Reader) -> None:
    """Raises the first ten mismatches, with their shapes."""
    lines = []
    for value in wanted:
        if isinstance(value, ShardedObject):
            if value.unique_key not in reader.objects:
                lines.append(f"{value.unique_key}: not in the checkpoint")
            continue
        stored, here = reader.tensors.get(value.key), list(value.global_shape)
        if stored is None:
            lines.append(f"{value.key} {here}: not in the checkpoint")
        elif not value.allow_shape_mismatch and here != list(stored.size):
            lines.append(f"{value.key}: {list(stored.size)} in the checkpoint, {here} here")
    if lines:
        raise misfit(reader.found.info.spec, lines)


class Load(LoadShardedStrategy):
    def __init__(self, run: str, server: Optional[str], allow_pickle: bool) -> None:
        self.run, self.server, self.allow_pickle = run, server, allow_pickle

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def check_backend_compatibility(self, loaded_backend: str) -> None:
        if loaded_backend != BACKEND:
            raise InvalidError(f"the checkpoint's backend is {loaded_backend}, not {BACKEND}")

    def check_version_compatibility(self, loaded_version: int) -> None:
        if loaded_version > VERSION:
            raise InvalidError(f"version {loaded_version} of {BACKEND} is newer than {VERSION}")

    def _reader(self, folder: Any) -> Reader:
        reader = Reader(self.run, self.server, step_of(folder), allow_pickle=self.allow_pickle)
        reader.read_metadata()
        return reader

    def load(self, sharded_state_dict: Any, checkpoint_dir: Any) -> Any:
        reader = self._reader(checkpoint_dir)
        wanted = [value for value in nested_values(sharded_state_dict)]
        _check(wanted, reader)
        parts: List[Part] = []
        after: List[Tuple[torch.Tensor, torch.Tensor]] = []
        loaded: Dict[int, Any] = {}
        for value in wanted:
            if isinstance(value, ShardedObject):
                loaded[id(value)] = reader.object(value.unique_key)
            else:
                loaded[id(value)] = self._ask(value, reader.tensors[value.key], parts, after)
        if parts:
            reader.client.load_parts(parts, reader.found.info.step, reader.found.info.attempt)
        for target, piece in after:
            target.copy_(piece)
        dict_list_map_inplace(lambda value: loaded.get(id(value), value), sharded_state_dict)
        return sharded_state_dict

    @staticmethod
    def _ask(value: ShardedTensor, stored: Stored, parts: List[Part],
             after: List[Tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The tensor that will hold the value, of which `parts` are read and `after` copied."""
        data = value.data if value.data is not None else torch.empty(value.local_shape,
                                                                     dtype=value.dtype)
        target = _local(value) if value.data is not None else data.view(
            (1,) * value.prepend_axis_num + tuple(value.local_shape))
        at = tuple(value.global_offset)
        for offset, extent in stored.boxes:
            spans = overlap(at, tuple(target.shape), offset, extent)
            if spans is None:
                continue
            piece = torch.empty([end - begin for begin, end in spans],
                                dtype=dtypes.to_torch(stored.dtype))
            inner = tuple(begin - start for (begin, _), start in zip(spans, offset))
            parts.append(stored.part(offset, inner, tuple(piece.shape), piece.data_ptr(), piece))
            box = tuple(slice(begin - start, end - start) for (begin, end), start
                        in zip(spans, at))
            after.append((target[box], piece))
        return data

    def load_tensors_metadata(self, checkpoint_dir: Any) -> Dict[str, ShardedTensor]:
        return {key: ShardedTensor.from_rank_offsets(
            key, torch.empty(one.size, dtype=dtypes.to_torch(one.dtype), device="meta"))
            .without_data() for key, one in self._reader(checkpoint_dir).tensors.items()}

    def load_sharded_metadata(self, checkpoint_dir: Any) -> Dict[str, Any]:
        objects = [ShardedObject.empty_from_unique_key(key)
                   for key in self._reader(checkpoint_dir).objects]
        return {**self.load_tensors_metadata(checkpoint_dir),
                **{one.unique_key: one for one in objects}}
