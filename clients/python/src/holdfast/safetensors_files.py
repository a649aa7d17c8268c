"""safetensors_files - directories of safetensors of any names, to and from checkpoints:
`python -m holdfast from-safetensors DIR RUN@STEP` and `to-safetensors RUN@STEP DIR`.

A directory has *.safetensors of any program: Hugging Face, torchtitan, or DCP's
HuggingFaceStorageWriter, whose files hold boxes of tensors (DCP_SHARDING_INFO). Names, types and
bits stay. Tensors that a checkpoint stores as boxes are written whole; bytes objects are no
tensors, and are left out. Memory does not grow with the checkpoint: a tensor is copied in pieces.

With weights_only the optimizer's tensors are left out, and a save of Hugging Face's Trainer
(transformers.py) becomes the folder of its model: names without the Trainer's "model.",
config.json, generation_config.json, the tokenizer's files.
"""
from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections import Counter
from typing import Any, Dict, List, Mapping, Tuple

import numpy

from . import arrays, convert, dtypes, sharded
from .arrays import Part
from .checkpoint import Checkpoint
from .client import Client
from .dcp_files import Numbers
from .errors import CorruptError, ExistsError, InvalidError, NotFoundError

HEADER_BYTES_MAX = 100 << 20  # the limit of safetensors itself
FILE_BYTES = 5_000_000_000
INDEX = "model.safetensors.index.json"


@dataclasses.dataclass
class _Box:
    """A tensor of a file, which may be a box of one that several files hold."""

    path: str
    begin: int  # in the file
    dtype: str
    extent: Numbers
    offset: Numbers
    tell: Any = None

    def fill(self, memory: Any, at: int) -> None:
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.begin + at)
            done = 0
            while done < memory.size:
                count = file.readinto(memory[done:])
                if not count:
                    raise CorruptError(f"{self.path} ends within a tensor")
                done += count
        self.tell(memory.size)


def _read(path: str) -> Dict[str, _Box]:
    """The contents of a file, checked against its size."""
    length = os.path.getsize(path)
    with open(path, "rb") as file:
        head = int.from_bytes(file.read(8), "little")
        if not 2 <= head <= min(HEADER_BYTES_MAX, length - 8):
            raise CorruptError(f"{path} has no header of safetensors")
        try:
            found = json.loads(file.read(head))
            about = found.pop("__metadata__", {})
            offsets = json.loads(about.get("DCP_SHARDING_INFO", "{}"))
            boxes = {name: _box(path, head + 8, name, one, offsets) for name, one in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"the header of {path} cannot be read: {error!r}") from None
    for name, box in boxes.items():
        size = int(numpy.prod(box.extent, dtype=object)) * dtypes.size(box.dtype)
        if found[name]["data_offsets"][1] - found[name]["data_offsets"][0] != size \
                or box.begin + size > length or box.begin < head + 8:
            raise CorruptError(f"{name} of {path} does not lie in the file as its header says")
    return boxes


def _box(path: str, start: int, name: str, one: Any, offsets: Any) -> _Box:
    extent = tuple(int(length) for length in one["shape"])
    offset = tuple(offsets.get(name, {}).get("saved_offsets", (0,) * len(extent)))
    dtypes.size(one["dtype"])  # it is known
    if min((0, *extent, *offset)) < 0 or len(offset) != len(extent):
        raise ValueError(f"the shape of {name}")
    return _Box(path, start + int(one["data_offsets"][0]), one["dtype"], extent, offset)


def _gather(folder: str) -> Dict[str, List[_Box]]:
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))
    if not paths:
        raise NotFoundError(f"{folder} has no file *.safetensors")
    found: Dict[str, List[_Box]] = {}
    for path in paths:
        for name, box in _read(path).items():
            found.setdefault(name, []).append(box)
    for name, boxes in found.items():
        if len({(box.dtype, len(box.extent)) for box in boxes}) > 1 \
                or len({box.offset for box in boxes}) < len(boxes):
            raise InvalidError(f"{name} is in {boxes[0].path} and in {boxes[1].path}",
                               "name a directory of one model")
    return found


def _size(boxes: List[_Box]) -> Numbers:
    return tuple(max(low + length for low, length in zip(ends, lengths)) for ends, lengths in zip(
        zip(*(box.offset for box in boxes)), zip(*(box.extent for box in boxes))))


def from_safetensors(folder: str, run: str, step: int, server: "str | None" = None,
                     with_bar: bool = False) -> convert.Done:
    """Saves a directory as a step of a run."""
    found = _gather(folder)
    parts = [Part(arrays.stored_name(sharded._plain(name)), box.dtype, _size(boxes), box.offset,
                  box.extent, 0, box, True) for name, boxes in found.items() for box in boxes]
    total = sum(part.nbytes for part in parts)
    with convert.Bar("import", total, with_bar) as tell:
        for part in parts:
            part.source.tell = tell
        with Client(server, run, busy_seconds=60.0) as client:
            durability = client.save_parts(step, parts).wait()
            return convert.Done(f"{run}@{step}-a{client.attempt}", len(found), total, 0, [],
                                durability)


# ---- out ----

FOLDER_OBJECTS = "hf/"  # names of objects that are files beside a model's weights
CONFIG = "config.json"
_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclasses.dataclass
class _Out:
    """A tensor in the output."""

    stored: sharded.Stored
    dtype: str

    @property
    def nbytes(self) -> int:
        return int(numpy.prod(self.stored.size, dtype=numpy.int64)) * dtypes.size(self.dtype)


def _weight_names(checkpoint: Checkpoint, names: List[str]) -> Tuple[Dict[str, str], bool]:
    """The output name of each weight; and whether they are a Trainer's."""
    _, abouts = sharded.read_objects(checkpoint._client, checkpoint.metadata)
    paths = sharded.paths_of(abouts)
    model = {name: ".".join(paths[name][1:]) for name in names
             if len(paths.get(name, ())) > 1 and paths[name][0] == "model"}
    if model:
        return model, True
    return {name: name for name in names if name.split(".")[0] != "optimizer"}, False


def _out_of(stored: sharded.Stored, dtype: str) -> _Out:
    is_cast = stored.dtype in _TORCH_DTYPES
    return _Out(stored, dtypes.SHORT.get(dtype, stored.dtype) if is_cast else stored.dtype)


def _split(tensors: Mapping[str, _Out], limit: int) -> List[List[str]]:
    """Names of each file; larger elements first, so that all are aligned."""
    files: List[List[str]] = [[]]
    filled = 0
    for name in sorted(tensors, key=lambda one: (-dtypes.size(tensors[one].dtype), one)):
        if files[-1] and filled + tensors[name].nbytes > limit:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += tensors[name].nbytes
    return files


def _header(names: List[str], tensors: Mapping[str, _Out]) -> bytes:
    head: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        one = tensors[name]
        if dtypes.carrier(one.dtype) is not None:
            raise InvalidError(f"{name} is of type {one.dtype}, which these files do not hold",
                               "ckpt-cli export --format dcp writes files that hold it")
        head[name] = {"dtype": one.dtype, "shape": list(one.stored.size),
                      "data_offsets": [at, at + one.nbytes]}
        at += one.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(path: str, names: List[str], tensors: Mapping[str, _Out], checkpoint: Checkpoint,
           tell: Any) -> None:
    with open(path + ".part", "wb") as out:
        out.write(_header(names, tensors))
        for name in names:
            one, size = tensors[name].stored, tensors[name].stored.size
            for piece in convert._pieces(checkpoint, one, (0,) * len(size), size, tell):
                out.write(dtypes.cast(piece, one.dtype, tensors[name].dtype))
        out.flush()
        os.fsync(out.fileno())
    os.rename(path + ".part", path)


def _write_rest(checkpoint: Checkpoint, folder: str, tensors: Mapping[str, _Out]) -> List[str]:
    """Writes a model's files beside its weights; config.json is the last."""
    files = {name[len(FOLDER_OBJECTS):]: checkpoint.object(name) for name in checkpoint.objects
             if name.startswith(FOLDER_OBJECTS)}
    config = (checkpoint.metadata.config or {}).get("hf")
    types = Counter(one.dtype for one in tensors.values() if one.dtype in _TORCH_DTYPES)
    if config:
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        if types:
            config = {**config, key: _TORCH_DTYPES[types.most_common(1)[0][0]]}
        files[CONFIG] = (json.dumps(config, indent=2) + "\n").encode()
    for name, value in files.items():
        if os.path.basename(name) != name or name.startswith(".") or ".safetensors" in name:
            raise CorruptError(f"{checkpoint.info.spec} has a file {name!r}, which is not a "
                               "valid name beside weights")
        convert._publish(folder, name, value)
    return list(files)


def to_safetensors(checkpoint: Checkpoint, folder: str, with_bar: bool = False,
                   file_bytes: int = FILE_BYTES, weights_only: bool = False,
                   dtype: str = "keep") -> convert.Done:
    """Writes a checkpoint as files of at most `file_bytes`, and last the index of several files.
    `dtype`: "bf16", "fp16" or "fp32" for floats of 16 and 32 bits, to nearest even."""
    if glob.glob(os.path.join(glob.escape(folder), "*.safetensors*")):
        raise ExistsError(f"{folder} has safetensors already", "name another directory")
    os.makedirs(folder, exist_ok=True)
    stored = sharded.tensors_of(checkpoint.metadata)
    names, is_trainers = _weight_names(checkpoint, list(stored)) if weights_only \
        else ({name: name for name in stored}, False)
    if not names:
        raise InvalidError(f"{checkpoint.info.spec} has no weights", "leave --weights-only out")
    tensors = {theirs: _out_of(stored[name], dtype) for name, theirs in names.items()}
    files, places = _split(tensors, file_bytes), {}
    total = sum(one.nbytes for one in tensors.values())
    read = sum(_Out(one.stored, one.stored.dtype).nbytes for one in tensors.values())
    with convert.Bar("export", read, with_bar) as tell:
        for at, inside in enumerate(files, 1):
            file = "model.safetensors" if len(files) == 1 else \
                f"model-{at:05}-of-{len(files):05}.safetensors"
            _write(os.path.join(folder, file), inside, tensors, checkpoint, tell)
            places.update(dict.fromkeys(inside, file))
    rest = _write_rest(checkpoint, folder, tensors) if is_trainers else []
    if len(files) > 1:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
        convert._publish(folder, INDEX, text.encode())
    return convert.Done(checkpoint.info.spec, len(tensors), total, len(rest), rest, "local")
