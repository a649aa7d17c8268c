"""convert - directories of torch's own DCP to and from checkpoints: `from-dcp`, `to-dcp`.

It needs no torch (dcp_files.py), and its memory does not grow with the checkpoint: it copies a
tensor in pieces. Objects are copied as bytes, unparsed. Megatron's common.pt and metadata.json
(torch_dist) become objects of the checkpoint, byte for byte, and files again in to-dcp.
"""
from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy

from . import dcp_files, dtypes, sharded
from .checkpoint import Checkpoint
from .client import Client
from .dcp_files import Folder, Numbers, Place, Tensor
from .errors import ExistsError, InvalidError

PIECE_BYTES = 16 << 20
BOX_BYTES = 256 << 20  # a tensor that is larger is written as several boxes
FILES = ("common.pt", "metadata.json")  # of Megatron, in the order that they are written
FILE = "file/"  # the names of their objects
DATA = "__0_0.distcp"
BAR_CELLS, BAR_SECONDS = 28, 0.1
Tell = Callable[[int], None]


@dataclasses.dataclass
class Done:
    """The result: `checkpoint` is the spec for holdfast.open()."""

    checkpoint: str
    tensors: int
    bytes: int
    objects: int
    files: List[str]  # of Megatron, copied unparsed
    durability: str


def megatron_files(folder: str) -> List[str]:
    """The existing ones of FILES, if the folder's metadata.json has the format torch_dist."""
    path = os.path.join(folder, "metadata.json")
    if not os.path.exists(path):
        return []
    try:
        with open(path, encoding="utf-8") as file:
            backend = json.load(file)["sharded_backend"]
    except (ValueError, KeyError, TypeError):
        return []  # another program's
    if backend != "torch_dist":
        raise InvalidError(f"metadata.json says that {folder} is {backend}, not torch_dist",
                           "load it with Megatron, and save it as torch_dist or through holdfast")
    return [name for name in FILES if os.path.exists(os.path.join(folder, name))]


@dataclasses.dataclass
class _Source:
    """A tensor of a folder, which Client copies piece by piece."""

    folder: Folder
    tensor: Tensor
    tell: Tell

    def fill(self, memory: Any, at: int) -> None:
        self.folder.fill(memory, at, self.tensor)
        self.tell(memory.size)


def from_dcp(folder: str, run: str, step: int, server: Optional[str] = None,
             with_bar: bool = False) -> Done:
    """Saves a directory of DCP as a step of a run."""
    files = megatron_files(folder)
    found = Folder(folder)
    total = sum(tensor_bytes(tensor) for tensor in found.tensors.values())
    with Bar("import", total, with_bar) as tell:
        return _save(found, files, run, step, server, tell)


def _save(found: Folder, files: List[str], run: str, step: int, server: Optional[str],
          tell: "Bar") -> Done:
    parts = [sharded.whole_part(name, tensor.dtype, tensor.size, _Source(found, tensor, tell))
             for name, tensor in found.tensors.items()]
    objects = {name: found.object(place) for name, place in found.objects.items()}
    about = {"paths": {name: list(path) for name, path in found.paths.items()}}
    whole = {f"{sharded.OBJECTS}0": sharded.pack(objects, about)}
    for name in files:
        with open(os.path.join(found.path, name), "rb") as file:
            whole[FILE + name] = file.read()
    with Client(server, run, busy_seconds=60.0) as client:
        durability = client.save_parts(step, parts, None, whole).wait()
        return Done(f"{run}@{step}-a{client.attempt}", len(parts),
                    tell.total, len(objects), files, durability)


# ---- to DCP ----


def _boxes(stored: sharded.Stored) -> Iterator[Tuple[Numbers, Numbers]]:
    """The boxes of a tensor as they are written: as they are stored, cut into rows."""
    for offset, extent in stored.boxes:
        row = int(numpy.prod(extent[1:], dtype=numpy.int64)) * dtypes.size(stored.dtype)
        rows = max(1, BOX_BYTES // max(row, 1))
        if not extent or extent[0] <= rows:
            yield tuple(offset), tuple(extent)
            continue
        for first in range(0, extent[0], rows):
            yield ((offset[0] + first, *offset[1:]),
                   (min(rows, extent[0] - first), *extent[1:]))


def _pieces(checkpoint: Checkpoint, stored: sharded.Stored, offset: Numbers, extent: Numbers,
            tell: Tell) -> Iterator[memoryview]:
    """The bytes of a box, each piece by one load."""
    width = dtypes.size(stored.dtype)
    count = int(numpy.prod(extent, dtype=numpy.int64))
    step = max(1, PIECE_BYTES // width)
    for at in range(0, count, step):
        end = min(at + step, count)
        memory = numpy.empty((end - at) * width, numpy.uint8)
        parts, done = [], 0
        for inner, shape in dcp_files.boxes_between(extent, at, end):
            parts.append(stored.part(offset, inner, shape, memory.ctypes.data + done, memory))
            done += parts[-1].nbytes
        checkpoint.read(parts)
        yield memory.data
        tell(memory.size)


def _write_data(out: IO[bytes], checkpoint: Checkpoint, objects: Dict[str, bytes],
                tell: Tell) -> Tuple[Dict[str, Tensor], Dict[str, Place]]:
    tensors: Dict[str, Tensor] = {}
    places: Dict[str, Place] = {}
    for name, stored in sharded.tensors_of(checkpoint.metadata).items():
        tensors[name] = Tensor(stored.dtype, stored.size, [])
        for offset, extent in _boxes(stored):
            begin = out.tell()
            length = dcp_files.write_box(out, stored.dtype, extent,
                                         _pieces(checkpoint, stored, offset, extent, tell))
            tensors[name].boxes.append((offset, extent, Place(DATA, begin, length)))
    for name, value in objects.items():
        places[name] = Place(DATA, out.tell(), len(value))
        out.write(value)
    out.flush()
    os.fsync(out.fileno())
    return tensors, places


def _publish(folder: str, name: str, data: bytes) -> None:
    """A small file that has its name when it is whole and durable."""
    path = os.path.join(folder, name)
    with open(path + ".part", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".part", path)
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def to_dcp(checkpoint: Checkpoint, folder: str, with_bar: bool = False) -> Done:
    """Writes a checkpoint as a directory that dcp.load reads on any mesh; .metadata is the last
    file except Megatron's metadata.json."""
    if os.path.exists(os.path.join(folder, dcp_files.METADATA)):
        raise ExistsError(f"{folder} has a checkpoint already", "name another directory")
    os.makedirs(folder, exist_ok=True)
    objects, abouts = sharded.read_objects(checkpoint._client, checkpoint.metadata)
    given = sharded.paths_of(abouts)
    files = {name: checkpoint.object(FILE + name) for name in FILES
             if FILE + name in checkpoint.objects}
    total = sum(tensor.nbytes for tensor in checkpoint.values())
    with Bar("export", total, with_bar) as tell, open(os.path.join(folder, DATA), "wb") as out:
        tensors, places = _write_data(out, checkpoint, objects, tell)
    paths = None if files else given or {name: (name,) for name in (*tensors, *places)}
    last = files.pop(FILES[-1], None)
    small = {**files, dcp_files.METADATA: dcp_files.metadata_of(tensors, places, paths)}
    if last is not None:
        small[FILES[-1]] = last
    for name, data in small.items():
        _publish(folder, name, data)
    return Done(checkpoint.info.spec, len(tensors), total, len(places),
                [name for name in FILES if name in small], "local")


def tensor_bytes(tensor: Tensor) -> int:
    return int(numpy.prod(tensor.size, dtype=numpy.int64)) * dtypes.size(tensor.dtype)


# ---- for people ----


class Bar:
    """A line on the terminal that is stderr, as ckpt-cli's; none elsewhere."""

    def __init__(self, verb: str, total: int, is_wanted: bool) -> None:
        self.verb, self.total, self.done, self.shown = verb, total, 0, 0.0
        self.begin = time.monotonic()
        self.is_shown = is_wanted and total > 0 and sys.stderr.isatty()

    def __call__(self, bytes: int) -> None:
        self.done += bytes
        now = time.monotonic()
        if not self.is_shown or now - self.shown < BAR_SECONDS:
            return
        self.shown = now
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        part, cells = min(1.0, self.done / self.total), min(BAR_CELLS, width // 3)
        bar = ("#" * int(part * cells)).ljust(cells, ".")
        rate = text_bytes(self.done / (now - self.begin + 1e-9))
        line = f"{self.verb} [{bar}] {100 * part:3.0f} %  {text_bytes(self.done)}  {rate}/s"
        print(f"\r{line[:width - 1]}\033[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def text_bytes(count: float) -> str:
    """
    >>> text_bytes(512), text_bytes(3 << 20)
    ('512 B', '3.00 MiB')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    at = 0
    while count >= 1024 and at + 1 < len(units):
        count, at = count / 1024, at + 1
    return f"{count:.0f} {units[at]}" if at == 0 else f"{count:.2f} {units[at]}"
