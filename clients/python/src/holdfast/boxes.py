"""boxes - which boxes of a global tensor a torch tensor holds, and DCP's planner that knows them.

Most hold one: a plain tensor the whole, a DTensor of Shard and Replicate a range of rows. A
_StridedShard whose axis is not cut again, from a fused projection or a view of a cut axis, holds
several: of rows 0 to 7 one rank has 0, 1, 4, 5. DCP treats these as the rows 0 to 3: its own
planner refuses to save them and loads the wrong rows. SavePlanner makes an item for each box;
holdfast.dcp's reader loads each box, with any planner.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from . import dtypes
from .arrays import Part
from .errors import misfit
from .sharded import Item, Stored, boxes_of

Box = Tuple[Tuple[int, ...], torch.Tensor]  # offset in the whole, the elements from there on


@dataclasses.dataclass
class Held:
    """This rank's boxes of a tensor. `is_shard`: ranks with the same box have the same bytes."""

    size: Tuple[int, ...]
    boxes: List[Box]
    is_shard: bool = True

    def items(self, name: str) -> List[Item]:
        return [Item(name, self.size, offset, view.detach(), self.is_shard)
                for offset, view in self.boxes]


def held(value: Any) -> Optional[Held]:
    """Of a DTensor, a ShardedTensor, a tensor that describes its shards as torch_checkpointing's
    CheckpointableTensor does, or a plain one; None: it is no tensor."""
    if isinstance(value, DTensor):
        return Held(tuple(value.size()), _boxes_of_dtensor(value))
    if hasattr(value, "local_shards"):
        return Held(tuple(value.size()), [(tuple(shard.metadata.shard_offsets), shard.tensor)
                                          for shard in value.local_shards()])
    if not isinstance(value, torch.Tensor):
        return None
    if hasattr(value, "global_offsets"):
        return Held(tuple(value.global_shape),
                    [(tuple(offset), value[tuple(slice(low, low + length)
                                                 for low, length in zip(inner, sizes))])
                     for offset, inner, sizes in zip(value.global_offsets, value.local_offsets,
                                                     value.local_sizes)])
    return Held(tuple(value.size()), [((0,) * value.dim(), value)], is_shard=False)


def is_split(value: Any) -> bool:
    """Is it a DTensor with several boxes?"""
    return (isinstance(value, DTensor)
            and any(isinstance(one, _StridedShard) for one in value.placements)
            and len(_boxes_of_dtensor(value)) > 1)


def _boxes_of_dtensor(value: DTensor) -> List[Box]:
    local = value.to_local()
    if local.numel() == 0 and value.numel() > 0:
        return []
    if not any(isinstance(one, _StridedShard) for one in value.placements):
        offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh,
                                                       value.placements)[1]
        return [(tuple(offset), local)]
    rows = [_rows_of(value, dim) for dim in range(value.dim())]
    return [(offset, local[inner]) for offset, inner in boxes_of(rows)]


def _rows_of(value: DTensor, dim: int) -> Sequence[int]:
    """The indices on an axis of the whole that this rank holds, in its order."""
    rows = torch.arange(value.size(dim)).view([-1 if axis == dim else 1
                                               for axis in range(value.dim())])
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for axis, placement in enumerate(value.placements):
        if isinstance(placement, (Shard, _StridedShard)) and placement.dim == dim:
            rows = placement._split_tensor(rows, mesh.size(axis), with_padding=False,
                                           contiguous=False)[0][coordinate[axis]]
    return rows.flatten().tolist()


class SavePlanner(DefaultSavePlanner):
    """DCP's planner, with an item for each box. holdfast.dcp.save, async_save and stager() use it;
    pass it to dcp.save: planner=holdfast.dcp.SavePlanner()."""

    def create_local_plan(self) -> SavePlan:
        self._views: Dict[Any, torch.Tensor] = {}
        plan = super().create_local_plan()
        self.plan = dataclasses.replace(
            plan, items=[piece for item in plan.items for piece in self._pieces(item)])
        return self.plan

    def _pieces(self, item: WriteItem) -> List[WriteItem]:
        value = self.state_dict.get(item.index.fqn)
        if item.tensor_data is None or not is_split(value):
            return [item]
        pieces = []
        for offset, view in _boxes_of_dtensor(value):
            self._views[item.index.fqn, offset] = view
            chunk = ChunkStorageMetadata(offsets=torch.Size(offset), sizes=view.size())
            pieces.append(dataclasses.replace(
                item, index=MetadataIndex(item.index.fqn, torch.Size(offset)),
                tensor_data=dataclasses.replace(item.tensor_data, chunk=chunk)))
        return pieces

    def lookup_object(self, index: MetadataIndex) -> Any:
        view = self._views.get((index.fqn, tuple(index.offset or ())))
        return super().lookup_object(index) if view is None else view


class Filling:
    """A load into tensors, box by box."""

    def __init__(self) -> None:
        self._parts: List[Part] = []
        self._after: List[Tuple[torch.Tensor, torch.Tensor]] = []  # to copy: target, memory
        self._differences: List[str] = []

    def add(self, name: str, stored: Stored, value: Any) -> None:
        """Adds all boxes of `value`."""
        whole = held(value)
        assert whole is not None
        if whole.size != stored.size:
            self._differences.append(f"{name}: {list(stored.size)} in the checkpoint, "
                                     f"{list(whole.size)} here")
            return
        for offset, view in whole.boxes:
            self.add_box(stored, offset, (0,) * len(offset), view)

    def add_box(self, stored: Stored, offset: Sequence[int], inner: Sequence[int],
                view: torch.Tensor) -> None:
        memory = _memory_for(view.detach(), stored.dtype)
        self._parts.append(stored.part(offset, inner, tuple(view.shape), memory.data_ptr(), memory))
        if memory.data_ptr() != view.data_ptr():
            self._after.append((view.detach(), memory))

    def load(self, client: Any, info: Any) -> None:
        if self._differences:
            raise misfit(info.spec, self._differences)
        if self._parts:
            client.load_parts(self._parts, info.step, info.attempt)
        for target, memory in self._after:
            target.copy_(memory)


def _memory_for(target: torch.Tensor, dtype: str) -> torch.Tensor:
    """Memory for the bytes: the target itself, if it is plain memory of that type."""
    wanted = dtypes.to_torch(dtype)
    if target.device.type == "cpu" and target.is_contiguous() and target.dtype == wanted:
        return target
    raw = numpy.empty(max(target.numel(), 1) * dtypes.size(dtype), numpy.uint8)
    return torch.from_numpy(raw)[:target.numel() * dtypes.size(dtype)].view(wanted).view(
        target.shape)
