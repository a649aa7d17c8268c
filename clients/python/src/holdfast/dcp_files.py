"""dcp_files - the files of torch.distributed.checkpoint, read and written without torch.

A folder has .metadata, a pickle with the place of each box of each tensor, and files of boxes. A
box has the format of torch.save: a zip of a pickle (type, shape, strides) and of the raw bytes.

Foreign pickles: no class or function that they name is looked up. A few names mean a value of
Python; those of DCP and Megatron become records, which only hold their fields; any other name is an
error. Boxes are mapped files; pages that were read are released again.
"""
from __future__ import annotations

import dataclasses
import functools
import io
import mmap
import os
import pickle
import struct
import zipfile
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy

from . import dtypes
from .errors import CorruptError, HoldfastError, InvalidError, NotFoundError

Numbers = Tuple[int, ...]
METADATA = ".metadata"
_RECORDS = ("torch.distributed.checkpoint.", "megatron.core.dist_checkpointing.")
_MAPS = 64  # files, and boxes, that are held at a time
_FORMAT_BYTES_MAX = 1 << 20  # of a box's pickle


# ---- boxes ----


def boxes_between(shape: Sequence[int], low: int, high: int) -> Iterator[Tuple[Numbers, Numbers]]:
    """The boxes, each without a gap, of the elements [low, high) of a row-major array.

    >>> list(boxes_between((3, 4), 2, 9))
    [((0, 2), (1, 2)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]
    """
    if low >= high:
        return
    if not shape:
        yield (), ()
        return
    row = int(numpy.prod(shape[1:], dtype=numpy.int64))
    first, last = -(-low // row), high // row  # the rows that are whole
    for offset, extent in boxes_between(shape[1:], low % row, min(row, high - low + low % row)) \
            if low % row else ():
        yield (low // row, *offset), (1, *extent)
    if first < last:
        yield (first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:])
    for offset, extent in boxes_between(shape[1:], 0, high % row) if first <= last else ():
        yield (last, *offset), (1, *extent)


def overlap(offset: Sequence[int], extent: Sequence[int], other: Sequence[int],
            other_extent: Sequence[int]) -> Optional[List[Tuple[int, int]]]:
    """Begin and end, along each axis, of what two boxes share."""
    spans = [(max(a, b), min(a + length, b + other_length)) for a, length, b, other_length
             in zip(offset, extent, other, other_extent)]
    return spans if all(begin < end for begin, end in spans) else None


# ---- pickles of others ----


class Record:
    """An object of a class that is not looked up: the fields in its pickle."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.values = state


@dataclasses.dataclass
class _Layout:
    """The place of a tensor of torch.save in its storage, in elements."""

    storage: Tuple[str, str]  # class and name
    offset: int
    size: Numbers
    stride: Numbers
    dtype: str


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any,
             dtype: Any = None, *_: Any) -> _Layout:
    typed = _OF_STORAGE.get(storage[0], "")
    return _Layout(storage, offset, tuple(size), tuple(stride),
                   dtype if isinstance(dtype, str) else typed)


_OF_STORAGE = {"FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
               "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
               "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
               "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
               "ComplexDoubleStorage": "complex128"}
_STORAGE_OF = {dtype: storage for storage, dtype in _OF_STORAGE.items()}
_VALUES: Dict[Tuple[str, str], Callable[..., Any]] = {
    ("torch", "Size"): lambda sizes=(): tuple(sizes), ("torch", "device"): lambda *at: str(at),
    ("torch.serialization", "_get_layout"): str, ("collections", "OrderedDict"): dict,
    ("builtins", "set"): set, ("builtins", "getattr"): lambda kind, name: name,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild,
    **{(module, kind): lambda *parts: "/".join(parts) for module in ("pathlib", "pathlib._local")
       for kind in ("PosixPath", "PurePosixPath")}}


class _Unpickler(pickle._Unpickler):
    """In Python, because the memo of the one in C grows to any index that a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        known = _VALUES.get((module.replace("__builtin__", "builtins"), name))
        if known is not None:
            return known
        if module in ("torch", "torch.storage"):  # a type of elements, or a class of storages
            return name
        if module.startswith(_RECORDS):
            return type(name, (Record,), {})
        raise CorruptError(f"a pickle names {module}.{name}, which is not a class of DCP")

    def persistent_load(self, pid: Any) -> Any:
        return str(pid[1]), str(pid[2])


def _unpickle(data: bytes, what: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except HoldfastError:
        raise
    except Exception as error:  # hostile bytes may raise anything
        raise CorruptError(f"{what} cannot be read: {error}") from None


# ---- a folder that is read ----


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a box, or an object."""

    file: str
    offset: int
    length: int


@dataclasses.dataclass
class Tensor:
    dtype: str  # as safetensors calls it
    size: Numbers
    boxes: List[Tuple[Numbers, Numbers, Place]]  # offset, extent


class _Window(io.RawIOBase):
    """A part of a mapped file, as a file."""

    def __init__(self, mapped: mmap.mmap, place: Place) -> None:
        self._mapped, self._place, self._at = mapped, place, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._place.length)[whence])
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._place.length - self._at)
        size = left if size is None or size < 0 else min(size, left)
        begin = self._place.offset + self._at
        self._at += size
        return self._mapped[begin:begin + size]


class Folder:
    """A checkpoint of DCP: `tensors`, `objects` (their places), `paths` (planner_data)."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.isdir(path):
            raise NotFoundError(f"{path} is not a folder")
        if not os.path.exists(os.path.join(path, METADATA)):
            raise NotFoundError(f"{path} is not a checkpoint of DCP: it has no {METADATA}",
                                "an interrupted save has none")
        with open(os.path.join(path, METADATA), "rb") as file:
            metadata = _unpickle(file.read(), METADATA)
        self._map = functools.lru_cache(_MAPS)(self._map_file)
        self._box = functools.lru_cache(_MAPS)(self._read_box)
        self.tensors: Dict[str, Tensor] = {}
        self.objects: Dict[str, Place] = {}
        try:
            self._read_metadata(metadata)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptError(f"{METADATA} is not DCP's: {error!r}") from None

    def _read_metadata(self, metadata: Any) -> None:
        places: Dict[str, Dict[Numbers, Place]] = {}
        for index, info in metadata.storage_data.items():
            if getattr(info, "transform_descriptors", None):
                raise InvalidError("the checkpoint was written with extensions",
                                   "load and save it with DCP without them")
            place = Place(info.relative_path, info.offset, info.length)
            if place.file in ("", ".", "..") or place.file != os.path.basename(place.file) \
                    or min(place.offset, place.length) < 0:
                raise CorruptError(f"{METADATA} names {place.length} bytes at {place.offset} of "
                                   f"the file {place.file}")
            places.setdefault(index.fqn, {})[tuple(getattr(index, "offset", None) or ())] = place
        for name, entry in metadata.state_dict_metadata.items():
            if not hasattr(entry, "chunks"):
                self.objects[name] = next(iter(places[name].values()))
                continue
            dtype = dtypes.of_torch(entry.properties.values[0])
            boxes = [(tuple(chunk.offsets), tuple(chunk.sizes), places[name][tuple(chunk.offsets)])
                     for chunk in entry.chunks]
            self.tensors[name] = Tensor(dtype, tuple(entry.size), boxes)
            self._check(name, self.tensors[name])
        paths = getattr(metadata, "planner_data", None)
        self.paths: Dict[str, Numbers] = paths if isinstance(paths, dict) else {}

    @staticmethod
    def _check(name: str, tensor: Tensor) -> None:
        """Checks that boxes are within the whole, and have as many elements."""
        held = 0
        for offset, extent, _ in tensor.boxes:
            if len(offset) != len(tensor.size) or any(
                    low < 0 or length < 0 or low + length > size
                    for low, length, size in zip(offset, extent, tensor.size)):
                raise CorruptError(f"a box of {name} exceeds its shape")
            held += int(numpy.prod(extent, dtype=object))
        if held != int(numpy.prod(tensor.size, dtype=object)):
            raise CorruptError(f"the boxes of {name} have {held} elements, of shape "
                               f"{list(tensor.size)}")

    @property
    def files(self) -> "set[str]":
        return {place.file for tensor in self.tensors.values() for *_, place in tensor.boxes} | {
            place.file for place in self.objects.values()}

    def object(self, place: Place) -> bytes:
        with open(os.path.join(self.path, place.file), "rb") as file:
            file.seek(place.offset)
            data = file.read(place.length)
        if len(data) != place.length:
            raise CorruptError(f"{place.file} ends within an object")
        return data

    def _map_file(self, name: str) -> mmap.mmap:
        with open(os.path.join(self.path, name), "rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def _read_box(self, place: Place, extent: Numbers, dtype: str) -> Any:
        """The bytes of a box: an array of its shape, followed by the bytes of an element."""
        mapped = self._map(place.file)
        what = f"a tensor at {place.offset} of {place.file}"
        if place.offset + place.length > len(mapped):
            raise CorruptError(f"{what} is truncated")
        try:
            layout, begin, length = _read_format(_Window(mapped, place), what)
        except (zipfile.BadZipFile, KeyError, IndexError, struct.error, NotImplementedError,
                RuntimeError, ValueError, TypeError, AttributeError, EOFError) as error:
            if isinstance(error, HoldfastError):
                raise
            raise CorruptError(f"{what} cannot be read: {error}") from None
        width = dtypes.size(dtype)
        far = layout.offset + 1 + sum((size - 1) * step
                                      for size, step in zip(layout.size, layout.stride))
        empty = 0 in layout.size
        if layout.size != extent or dtypes.of_torch(layout.dtype) != dtype or \
                len(layout.stride) != len(extent) or min((layout.offset, *layout.stride)) < 0 or \
                (not empty and far * width > length):
            raise CorruptError(f"{what} does not match {METADATA}")
        raw = numpy.frombuffer(mapped, numpy.uint8, 0 if empty else length, place.offset + begin)
        return numpy.lib.stride_tricks.as_strided(
            raw[0 if empty else layout.offset * width:], (*extent, width),
            (*(step * width for step in layout.stride), 1), writeable=False)

    def fill(self, memory: Any, at: int, tensor: Tensor) -> None:
        """Bytes of a tensor, from `at` on, into an array of bytes."""
        width, done = dtypes.size(tensor.dtype), 0
        shape = (*tensor.size, width)
        for offset, extent in boxes_between(shape, at, at + memory.size):
            count = int(numpy.prod(extent, dtype=numpy.int64))
            target = memory[done:done + count].reshape(extent)
            done += count
            for box_offset, box_extent, place in tensor.boxes:
                spans = overlap(offset, extent, (*box_offset, 0), (*box_extent, width))
                if spans is None:
                    continue
                box = self._box(place, box_extent, tensor.dtype)
                into = tuple(slice(a - low, b - low) for (a, b), low in zip(spans, offset))
                of = tuple(slice(a - low, b - low) for (a, b), low in zip(spans, (*box_offset, 0)))
                target[into] = box[of]
                self._map(place.file).madvise(mmap.MADV_DONTNEED)


def _read_pickle(archive: zipfile.ZipFile, what: str, limit: int) -> Tuple[Any, str]:
    """The value of what torch.save wrote, and the folder inside that has its parts."""
    if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
        raise CorruptError(f"{what} is compressed, as torch writes none")
    top = [name for name in archive.namelist()
           if name.endswith("/data.pkl")][0][:-len("data.pkl")]
    if archive.getinfo(top + "data.pkl").file_size > limit:
        raise CorruptError(f"{what} has a pickle of more than {limit} bytes")
    return _unpickle(archive.read(top + "data.pkl"), what), top


def read_object(data: bytes, what: str) -> Any:
    """A plain value, a number, a text or a list of them, as torch.save wrote it.

    >>> read_object(object_bytes({"betas": (0.9, 0.95), "steps": [7, None]}), "an object")
    {'betas': (0.9, 0.95), 'steps': [7, None]}
    """
    try:
        return _read_pickle(zipfile.ZipFile(io.BytesIO(data)), what, len(data))[0]
    except (zipfile.BadZipFile, KeyError, IndexError, NotImplementedError, RuntimeError,
            ValueError, EOFError) as error:
        if isinstance(error, HoldfastError):
            raise
        raise CorruptError(f"{what} cannot be read: {error}") from None


def _read_format(window: Any, what: str) -> Tuple[_Layout, int, int]:
    """The layout of the tensor in its bytes, and their begin and number in the window."""
    archive = zipfile.ZipFile(window)
    layout, top = _read_pickle(archive, what, _FORMAT_BYTES_MAX)
    if not isinstance(layout, _Layout):
        raise CorruptError(f"{what} is not a tensor")
    if top + "byteorder" in archive.namelist() and archive.read(top + "byteorder") != b"little":
        raise InvalidError(f"{what} is big-endian", "load and save it with DCP")
    data = archive.getinfo(f"{top}data/{layout.storage[1]}")
    window.seek(data.header_offset)
    head = window.read(30)
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    begin = data.header_offset + len(head) + name_bytes + extra_bytes
    if head[:4] != b"PK\3\4" or begin + data.file_size > window.seek(0, 2):
        raise CorruptError(f"{what} does not lie there as raw bytes")
    return layout, begin, data.file_size


# ---- pickles of ours ----


@dataclasses.dataclass(frozen=True)
class Global:
    module: str
    name: str


@dataclasses.dataclass(eq=False)
class Call:
    function: Global
    arguments: Tuple[Any, ...]


@dataclasses.dataclass(eq=False)
class New:
    kind: Global
    state: Any


@dataclasses.dataclass(eq=False)
class Persistent:
    value: Any


def dump(value: Any) -> bytes:
    """The pickle of values of Python's, and of objects of classes that need not be here.

    >>> pickle.loads(dump({"a": (1, -2, True, None, [2**40, 0.1]),
    ...                    "b": Call(Global("builtins", "set"), ([3],))}))
    {'a': (1, -2, True, None, [1099511627776, 0.1]), 'b': {3}}
    """
    return b"\x80\x02" + _emit(value) + b"."


def _emit(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, (tuple, list)):
        inner = b"".join(map(_emit, value))
        return b"(" + inner + b"t" if isinstance(value, tuple) else b"](" + inner + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_emit(one) for item in value.items() for one in item) + b"u"
    if isinstance(value, Global):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return _emit(value.function) + _emit(value.arguments) + b"R"
    if isinstance(value, New):
        return _emit(value.kind) + b")\x81" + _emit(value.state) + b"b"
    assert isinstance(value, Persistent), value
    return _emit(value.value) + b"Q"


def _size(numbers: Sequence[int]) -> Call:
    return Call(Global("torch", "Size"), (tuple(numbers),))


# ---- a folder that is written ----


class _Behind(io.RawIOBase):
    """The end of a file that is written, as a file: places in a zip count from its begin."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._begin = out, out.tell()

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._out.tell() - self._begin

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._out.seek(offset + (self._begin if whence == 0 else 0), whence) - self._begin

    def write(self, data: Any) -> int:
        return self._out.write(data)


def write_box(out: IO[bytes], dtype: str, extent: Numbers, pieces: Iterator[memoryview]) -> int:
    """Writes a tensor like torch.save; its bytes come in pieces. Returns their number."""
    begin, name = out.tell(), dtypes.torch_name(dtype)
    count = int(numpy.prod(extent, dtype=object))
    strides = [int(numpy.prod(extent[axis + 1:], dtype=object)) for axis in range(len(extent))]
    typed = _STORAGE_OF.get(name)
    storage = Persistent(("storage", Global("torch", typed) if typed is not None else
                          Global("torch.storage", "UntypedStorage"), "0", "cpu",
                          count if typed is not None else count * dtypes.size(dtype)))
    rebuild = Global("torch._utils", f"_rebuild_tensor_v{2 if typed is not None else 3}")
    about: Tuple[Any, ...] = (storage, 0, tuple(extent), tuple(strides), False,
                              Call(Global("collections", "OrderedDict"), ()))
    about += () if typed is not None else (Global("torch", name),)
    with zipfile.ZipFile(_Behind(out), "w") as archive:
        _write_pickle(archive, Call(rebuild, about))
        with archive.open(zipfile.ZipInfo("archive/data/0"), "w", force_zip64=True) as data:
            for piece in pieces:
                data.write(piece)
        archive.writestr(zipfile.ZipInfo("archive/version"), "3\n")
    return out.tell() - begin


def _write_pickle(archive: zipfile.ZipFile, value: Any) -> None:
    archive.writestr(zipfile.ZipInfo("archive/data.pkl"), dump(value))
    archive.writestr(zipfile.ZipInfo("archive/byteorder"), "little")


def object_bytes(value: Any) -> bytes:
    """The bytes of torch.save for a plain value."""
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        _write_pickle(archive, value)
        archive.writestr(zipfile.ZipInfo("archive/version"), "3\n")
    return blob.getvalue()


def metadata_of(tensors: Dict[str, Tensor], objects: Dict[str, Place],
                paths: Optional[Dict[str, Any]]) -> bytes:
    """The .metadata of what was written."""
    kinds, files = _RECORDS[0] + "metadata", _RECORDS[0] + "filesystem"
    entries: Dict[str, Any] = {}
    places: Dict[Any, Any] = {}

    def place(name: str, offset: Any, at: Place) -> None:
        index = New(Global(kinds, "MetadataIndex"), {"fqn": name, "offset": offset, "index": None})
        places[index] = New(Global(files, "_StorageInfo"), {
            "relative_path": at.file, "offset": at.offset, "length": at.length})

    for name, tensor in tensors.items():
        properties = New(Global(kinds, "TensorProperties"), (
            Global("torch", dtypes.torch_name(tensor.dtype)),
            Call(Global("torch.serialization", "_get_layout"), ("torch.strided",)), False,
            Call(Global(kinds, "_MEM_FORMAT_ENCODING"), (0,)), False))
        chunks = [New(Global(kinds, "ChunkStorageMetadata"),
                      {"offsets": _size(offset), "sizes": _size(extent)})
                  for offset, extent, _ in tensor.boxes]
        entries[name] = New(Global(kinds, "TensorStorageMetadata"), {
            "properties": properties, "size": _size(tensor.size), "chunks": chunks})
        for offset, _, at in tensor.boxes:
            place(name, _size(offset), at)
    for name, at in objects.items():
        entries[name] = New(Global(kinds, "BytesStorageMetadata"), {})
        place(name, None, at)
    return dump(New(Global(kinds, "Metadata"), {
        "state_dict_metadata": entries, "planner_data": paths, "storage_data": places,
        "storage_meta": None, "version": "1.0.0"}))
