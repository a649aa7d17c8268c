"""sharded - saves of the ranks of one job together: tensors cut in any way, whole ones, objects.

The part of holdfast.dcp without torch. Each rank passes its data; `gather` is the only
communication of ranks here: it gives every rank the list of all ranks' values.

Every save begins with one gather: does a rank have other tensors than last time, objects that no
longer fit their room, or a checkpoint that it went back to? If so, the ranks exchange descriptions,
agree on the writers of unsplit data, open a new attempt, and describe. Then each rank copies and
ends, without waiting. A tensor that can never be stored is the same error on every rank.

 - A "shard" may be held by several ranks, and so may a "whole" tensor that has one type and size
   on all that have it: ckptd stores a tensor from one replica, whole, and reports differences of
   the others.
 - Another whole tensor, and an object, is written by one of its holders: the rank with the fewest
   bytes to write, the lowest of equal ones.
 - A rank may have several boxes of a tensor; ckptd stores each as a tensor, "NAME@OFFSETS", and
   joins them again (clients/ckpt.h, ckpt_describe_arrays).
 - The objects of a rank are one bytes object, "dcp/RANK": a JSON index, then the bytes.
 - `files`, which do not change while the job runs, are separate objects, of rank 0.
"""
from __future__ import annotations

import dataclasses
import itertools
import json
import re
import struct
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from . import arrays, state_json
from .arrays import Part
from .client import Client, Metadata, object_bytes
from .errors import CorruptError, HoldfastError, InvalidError

BUSY_SECONDS = 30.0  # a save waits so long while every image is being written, then it fails
OBJECTS = "dcp/"  # names of the bytes objects, and the rank
_PIECE = re.compile(r"(?P<name>.*)@(?P<offset>\d+(,\d+)*)$", re.S)
_LENGTH = struct.Struct("<Q")
Gather = Callable[[Any], List[Any]]


@dataclasses.dataclass
class Item:
    """One box of a tensor that this rank holds. `tensor`: NumPy array or torch tensor."""

    name: str
    size: Tuple[int, ...]
    offset: Tuple[int, ...]
    tensor: Any
    is_shard: bool = False  # all ranks that have it describe it; else where it is alike


def _plain(name: str) -> str:
    """A name that is no piece's: "@" is escaped."""
    return name.replace("%", "%25").replace("@", "%40")


def whole_part(name: str, dtype: str, size: Tuple[int, ...], source: Any) -> Part:
    """A tensor of that name, which `source` fills completely."""
    return Part(arrays.stored_name(_plain(name)), dtype, size, (0,) * len(size), size, 0, source,
                True)


def _given(name: str) -> str:
    return name.replace("%40", "@").replace("%25", "%")


def boxes_of(rows: Sequence[Sequence[int]]) -> List[Tuple[Tuple[int, ...], Tuple[slice, ...]]]:
    """The boxes of a held part of a tensor, from the indices on each of its axes in held order: the
    begin of each box in the whole, and its place in the held part.

    >>> for offset, inner in boxes_of([[0, 1, 4, 5], [6]]): print(offset, inner)
    (0, 6) (slice(0, 2, None), slice(0, 1, None))
    (4, 6) (slice(2, 4, None), slice(0, 1, None))
    """
    axes = []
    for places in rows:
        starts = [at for at, place in enumerate(places) if at == 0 or place != places[at - 1] + 1]
        axes.append([(places[start], slice(start, end))
                     for start, end in zip(starts, [*starts[1:], len(places)])])
    return [(tuple(place for place, _ in box), tuple(inner for _, inner in box))
            for box in itertools.product(*axes)]


# ---- objects of a rank ----


def pack(objects: Mapping[str, bytes], about: Any = None) -> bytes:
    """
    >>> unpack(pack({"a": b"xy", "b": b""}, {"k": 1}))
    ({'a': b'xy', 'b': b''}, {'k': 1})
    """
    index, at = {}, 0
    for name, value in objects.items():
        index[name] = [at, len(value)]
        at += len(value)
    head = json.dumps({"version": 1, "index": index, "about": about}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *objects.values()])


def unpack(blob: bytes) -> Tuple[Dict[str, bytes], Any]:
    try:
        length = _LENGTH.unpack_from(blob)[0]
        head = json.loads(blob[_LENGTH.size:_LENGTH.size + length])
        body = memoryview(blob)[_LENGTH.size + length:]
        return ({name: bytes(body[at:at + size]) for name, (at, size) in head["index"].items()},
                head["about"])
    except (struct.error, ValueError, KeyError, TypeError):
        raise CorruptError("the objects of a rank are not in the format of holdfast.dcp") from None


# ---- writers ----


def _owners(held: List[List[Tuple[str, int]]]) -> Dict[str, int]:
    """The writer of each name, given the names and bytes of every rank. The same on every rank."""
    ranks_of: Dict[str, List[int]] = {}
    size_of: Dict[str, int] = {}
    for rank, names in enumerate(held):
        for name, size in names:
            ranks_of.setdefault(name, []).append(rank)
            size_of[name] = max(size, size_of.get(name, 0))
    load = [0] * len(held)
    owners = {}
    for name in sorted(ranks_of, key=lambda one: (-size_of[one], one)):
        owner = min(ranks_of[name], key=lambda rank: (load[rank], rank))
        owners[name] = owner
        load[owner] += size_of[name]
    return owners


def _alike(told: List[List[Tuple[str, int, Any]]]) -> Set[str]:
    """The names of one type and size on all ranks that have them."""
    kinds: Dict[str, Set[Any]] = {}
    for name, _, kind in itertools.chain(*told):
        kinds.setdefault(name, set()).add(kind)
    return {name for name, found in kinds.items() if len(found) == 1}


class Saver:
    """One rank's side of the saves of a job. Used by one thread at a time; wait() by any."""

    def __init__(self, server: Optional[str], run: str, rank: int, world_size: int,
                 gather: Gather, files: Optional[Mapping[str, bytes]] = None,
                 **options: Any) -> None:
        options.setdefault("busy_seconds", BUSY_SECONDS)
        self.client = Client(server, run, rank, world_size, **options)
        self.run, self.rank, self.world_size = run, rank, world_size
        self._gather = gather
        self._files = dict(files or {}) if rank == 0 else {}
        self._signature: Any = None  # of the description; None: there is none
        self._owned_objects: Set[str] = set()
        self._owners: Dict[str, int] = {}
        self._alike: Set[str] = set()  # names of whole tensors
        self._lock = threading.Lock()
        self._waiter: Optional[Client] = None

    def close(self) -> None:
        self.client.close()
        if self._waiter is not None:
            self._waiter.close()

    def save(self, step: int, items: Sequence[Item], objects: Mapping[str, bytes],
             state: Any = None, about: Any = None) -> None:
        """All ranks call it with the same step. It returns when everything is copied; then ckptd
        commits the step by itself, even if the ranks end."""
        with self._lock:
            signature = _signature(items, objects)
            blob_parts = self._parts(items) if signature == self._signature else None
            fits = blob_parts is not None and self.client.describes(
                blob_parts, self._blob(objects, about))
            unfit = _unfit(items if signature != self._signature else (),
                           state if self.rank == 0 else None)
            if self._agrees(step, fits, unfit):
                self._signature = None
                self._agree(items, objects)
                blob_parts = self._parts(items)
            self.client.save_parts(step, blob_parts or [], state, self._blob(objects, about))
            self._signature = signature

    def _agrees(self, step: int, fits: bool, unfit: Optional[InvalidError]) -> bool:
        """Do the ranks open a new attempt? Raises on every rank if one can never save this."""
        client = self.client
        answers = self._gather((step, fits, unfit, client.is_rollback(step), client.newest_begun))
        steps, every_fits, errors, rollbacks, newest = zip(*answers)
        if set(steps) != {step}:
            raise InvalidError(f"rank {self.rank} saves step {step}, others {sorted(set(steps))}")
        for error in [unfit, *errors]:
            if error is not None:
                raise error
        if step < max(newest) and not any(rollbacks):
            raise client.goes_back(step, max(newest))
        return any(rollbacks) or not all(every_fits)

    def _agree(self, items: Sequence[Item], objects: Mapping[str, bytes]) -> None:
        """Agrees on writers, and opens a new attempt."""
        wholes = [(item.name, _bytes_of(item), (str(item.tensor.dtype), item.size))
                  for item in items if not item.is_shard]
        told = self._gather((wholes, [(name, len(value)) for name, value in objects.items()]))
        self._owners = _owners([[(name, size) for name, size, _ in names] for names, _ in told])
        self._alike = _alike([names for names, _ in told])
        owners = _owners([names for _, names in told])
        self._owned_objects = {name for name, owner in owners.items() if owner == self.rank}
        attempt: Any = None
        if self.rank == 0:
            try:
                attempt = self.client.start()
            except Exception as error:  # sent to all, and raised by all
                attempt = error
        attempt = self._gather(attempt)[0]
        if isinstance(attempt, Exception):
            raise attempt
        if self.rank != 0:
            self.client.start(attempt)

    def _parts(self, items: Sequence[Item]) -> List[Part]:
        return [arrays.part(_plain(item.name),
                            arrays.Slice(item.tensor, item.size, item.offset))
                for item in items if item.is_shard or item.name in self._alike
                or self._owners.get(item.name) == self.rank]

    def _blob(self, objects: Mapping[str, bytes], about: Any) -> Dict[str, bytes]:
        mine = {name: value for name, value in objects.items() if name in self._owned_objects}
        if not mine and about is None:
            return self._files
        return {f"{OBJECTS}{self.rank}": pack(mine, about), **self._files}

    def tell_failed(self, step: int, error: HoldfastError) -> None:
        with self._lock:
            self.client.tell_failed(step, error)

    def wait(self, step: int, level: str = "local", timeout: float = 600.0) -> str:
        """Waits until the step has that level; on any thread, also during a save."""
        if self._waiter is None:
            self._waiter = Client(self.client.server, self.run)
            self._waiter_attempt = 0
        return self._waiter.wait(step, level, timeout)


def _unfit(items: Sequence[Item], state: Any) -> Optional[InvalidError]:
    """The error of the first thing that can never be stored; None: all can."""
    try:
        state_json.dumps(state)
        for item in items:
            arrays.check_fit(arrays.stored_name(_plain(item.name)),
                             arrays.type_of(item.name, item.tensor), len(item.size))
    except InvalidError as error:
        return error
    return None


def _bytes_of(item: Item) -> int:
    return int(item.tensor.nbytes)


def _signature(items: Sequence[Item], objects: Mapping[str, bytes]) -> Any:
    return ([(item.name, item.size, item.offset, tuple(item.tensor.shape), str(item.tensor.dtype),
              item.is_shard) for item in items], sorted(objects))


# ---- what was saved ----


@dataclasses.dataclass
class Stored:
    """A stored tensor: its boxes, each in a separate tensor unless it is the whole. Any part of it
    loads by its own name."""

    name: str  # as stored
    dtype: str
    size: Tuple[int, ...]
    boxes: List[Tuple[Tuple[int, ...], Tuple[int, ...]]]  # offset, extent
    stored: Dict[Tuple[int, ...], str]  # by offset

    def part(self, offset: Sequence[int], inner: Sequence[int], extent: Sequence[int], pointer: int,
             source: Any) -> Part:
        """Of the box at `offset`, the elements from `inner` on."""
        return Part(self.name, self.dtype, self.size,
                    tuple(low + at for low, at in zip(offset, inner)), extent, pointer, source)


def tensors_of(metadata: Metadata) -> Dict[str, Stored]:
    """The tensors of a checkpoint by their original names, with pieces joined."""
    found: Dict[str, Stored] = {}
    for stored, (dtype, shape) in metadata.tensors.items():
        if stored.startswith(arrays.OBJECT):
            continue
        name = arrays.given_name(stored)
        match = _PIECE.match(name)
        offset = (0,) * len(shape)
        if match is not None:
            name = match["name"]
            offset = tuple(int(number) for number in match["offset"].split(","))
        name, dtype, shape = arrays.carried(name, dtype, shape)
        offset = offset[:len(shape)]
        one = found.setdefault(_given(name), Stored(arrays.stored_name(name), dtype,
                                                    (0,) * len(shape), [], {}))
        one.boxes.append((offset, shape))
        one.stored[offset] = stored
        one.size = tuple(max(old, at + length)
                         for old, at, length in zip(one.size, offset, shape))
    return found


def paths_of(abouts: Iterable[Any]) -> Dict[str, Tuple[Any, ...]]:
    """The paths from flat names to the nested state, from the results of read_objects()."""
    return {name: tuple(path) for about in abouts if about
            for name, path in about.get("paths", {}).items()}


def read_objects(client: Client, metadata: Metadata) -> Tuple[Dict[str, bytes], List[Any]]:
    """All objects of a checkpoint, by name, and the ranks' metadata about theirs."""
    import numpy

    buffers, parts = [], []
    for stored, (dtype, shape) in metadata.tensors.items():
        if stored.startswith(arrays.OBJECT + OBJECTS):
            buffer = numpy.empty(shape, numpy.uint8)
            buffers.append(buffer)
            parts.append(Part(stored, dtype, shape, (0,), shape, buffer.ctypes.data, buffer))
    if parts:
        client.load_parts(parts, metadata.info.step, metadata.info.attempt)
    objects: Dict[str, bytes] = {}
    abouts = []
    for part, buffer in zip(parts, buffers):
        some, about = unpack(object_bytes(part.name, buffer))
        objects.update(some)
        abouts.append(about)
    return objects, abouts
