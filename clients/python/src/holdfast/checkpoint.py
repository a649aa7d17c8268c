"""checkpoint - holdfast.open(): a checkpoint as a mapping of lazy tensors.

It reads only names, types and shapes until a tensor is indexed; then exactly that slice.
"""
from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy

from . import arrays, dtypes, sharded
from .arrays import Part
from .client import Client, Metadata, object_bytes, store_address
from .errors import InvalidError, NotFoundError

Array = numpy.ndarray[Any, Any]  # LazyTensor has a method of the module's name
_SPEC = re.compile(r"(?P<run>[^@]+)(@(?P<step>\d+)(-a0*(?P<attempt>\d+))?)?$")
_FOLDER = re.compile(r"(?P<store>.*?)/*(?P<run>[^/]+)/step-0*(?P<step>\d+)-a0*(?P<attempt>\d+)/*$")
_STORE = re.compile(r"(?P<store>(s3://|dir:|file://).+)/(?P<name>[^/]+)$")


class LazyTensor:
    """One tensor of a checkpoint; indexing reads that slice, and numpy.asarray() all of it.

    It references the client, not the checkpoint, which references it: that avoids a cycle."""

    def __init__(self, checkpoint: "Checkpoint", name: str, dtype: str,
                 shape: Tuple[int, ...]) -> None:
        self._client, self._metadata = checkpoint._client, checkpoint.metadata
        self._stored, self.dtype, self.shape = arrays.carried(name, dtype, shape)
        self.name = arrays.given_name(self._stored)

    @property
    def nbytes(self) -> int:
        return int(numpy.prod(self.shape, dtype=numpy.int64)) * dtypes.size(self.dtype)

    @property
    def digest(self) -> Tuple[int, int]:
        """Two sums over all elements that do not depend on how the tensor is cut."""
        digests = self._metadata.digests
        stored = arrays.carried_name(self._stored, self.dtype)
        if stored not in digests:
            raise NotFoundError(f"{self.name} is stored as boxes, each with a digest of its own")
        return digests[stored]

    def __repr__(self) -> str:
        return f"LazyTensor({self.name!r}, {self.dtype}, {list(self.shape)})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        return self._read(index, dtypes.to_numpy(self.dtype))

    def bits(self, index: Any = ...) -> Array:
        """The elements as unsigned integers of their size, for any type."""
        return self._read(index, dtypes.bits(self.dtype))

    def numpy(self) -> Array:
        return self[...]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        return self[...] if dtype is None else self[...].astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """With it torch.as_tensor and torch.tensor read it at once, and not row by row."""
        return self.torch().__dlpack__(**options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)  # the CPU

    def torch(self, index: Any = ...) -> Any:
        """The slice as a torch tensor."""
        import torch

        bits = numpy.asarray(self.bits(index))
        raw = numpy.ascontiguousarray(bits).reshape(-1).view(numpy.uint8)
        return torch.from_numpy(raw).view(dtypes.to_torch(self.dtype)).reshape(bits.shape)

    def _read(self, index: Any, dtype: Any) -> Array:
        offset, extent, rest = _box_of(index, self.shape)
        out = numpy.empty(extent, dtype)
        if out.size:
            info = self._metadata.info
            self._client.load_parts([Part(self._stored, self.dtype, self.shape, offset, extent,
                                          out.ctypes.data, out)], info.step, info.attempt)
        return out[rest]


def _box_of(index: Any, shape: Sequence[int]) -> Tuple[List[int], List[int], Tuple[Any, ...]]:
    """The box that an index needs, and the index into the read box."""
    given = index if isinstance(index, tuple) else (index,)
    if sum(entry is Ellipsis for entry in given) > 1:
        raise IndexError("an index has one ellipsis")
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given = given[:at] + (slice(None),) * (len(shape) - len(given) + 1) + given[at + 1:]
    if len(given) > len(shape):
        raise IndexError(f"{len(given)} indices for {len(shape)} dimensions")
    given = given + (slice(None),) * (len(shape) - len(given))
    offset: List[int] = []
    extent: List[int] = []
    rest: List[Any] = []  # slices and integers
    for entry, length in zip(given, shape):
        if isinstance(entry, slice):
            places = range(*entry.indices(length))
            low = min(places[0], places[-1]) if len(places) else 0
            high = max(places[0], places[-1]) + 1 if len(places) else 0
            stop = places.stop - low
            rest.append(slice(places.start - low if len(places) else 0,
                              stop if stop >= 0 else None, places.step))
        else:
            place = int(entry) + (length if entry < 0 else 0)
            if not 0 <= place < length:
                raise IndexError(f"index {entry} is out of range of {length}")
            low, high = place, place + 1
            rest.append(0)
        offset.append(low)
        extent.append(high - low)
    return offset, extent, tuple(rest)


class Checkpoint(Mapping[str, LazyTensor]):
    """A committed checkpoint: tensors by name, and its metadata.

    >>> with holdfast.open("demo@1", server=server) as checkpoint:
    ...     checkpoint.step, sorted(checkpoint), checkpoint.state
    ...     checkpoint["w"][0, 1:3]
    (1, ['w'], {'epoch': 4})
    array([1., 2.])
    """

    def __init__(self, client: Client, step: Optional[int], attempt: int) -> None:
        self._client = client
        self.metadata: Metadata = client.metadata(step, attempt)
        self.info = self.metadata.info
        self.weights: Dict[str, Array] = {}  # of follow()
        self._tensors: Dict[str, LazyTensor] = {}
        self._objects: Dict[str, LazyTensor] = {}
        for stored, (dtype, shape) in self.metadata.tensors.items():
            if stored.startswith(arrays.OBJECT):
                tensor = LazyTensor(self, stored[len(arrays.OBJECT):], dtype, shape)
                tensor._stored = stored
                self._objects[tensor.name] = tensor
            else:
                tensor = LazyTensor(self, stored, dtype, shape)
                self._tensors[tensor.name] = tensor
        self._join_pieces()

    def _join_pieces(self) -> None:
        """Joins a tensor that is stored as boxes (ckpt_describe_arrays)."""
        for one in sharded.tensors_of(self.metadata).values():
            held = sum(int(numpy.prod(extent, dtype=numpy.int64)) for _, extent in one.boxes)
            if len(one.boxes) < 2 or held != int(numpy.prod(one.size, dtype=numpy.int64)):
                continue
            for stored in one.stored.values():
                del self._tensors[arrays.given_name(stored)]
            tensor = LazyTensor(self, one.name, one.dtype, one.size)
            self._tensors[tensor.name] = tensor

    @property
    def step(self) -> int:
        return self.info.step

    @property
    def state(self) -> Any:
        return self.metadata.state

    @property
    def objects(self) -> List[str]:
        """Names of the bytes objects."""
        return list(self._objects)

    def object(self, name: str) -> bytes:
        """A bytes object."""
        if name not in self._objects:
            raise NotFoundError(f"{self.info.spec} has no object {name!r}")
        return object_bytes(name, numpy.ascontiguousarray(self._objects[name][...]))

    def __getitem__(self, name: str) -> LazyTensor:
        if name not in self._tensors:
            raise NotFoundError(f"{self.info.spec} has no tensor {name!r}")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def read(self, parts: List[Part]) -> None:
        """Fills parts, all in one load."""
        self._client.load_parts(parts, self.info.step, self.info.attempt)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Fills arrays, tensors or Slices in place."""
        self.read([arrays.part(name, value, writable=True) for name, value in tensors.items()])

    def take(self, slices: Mapping[str, Any],
             dtype: Optional[str] = None) -> Dict[str, Array]:
        """Arrays of these slices ({name: index}), all by one load; floats as `dtype`. Types that
        NumPy lacks (dtypes.py) are torch tensors where ml_dtypes is not installed."""
        parts, found = [], {}
        for name, index in slices.items():
            tensor = self[name]
            offset, extent, rest = _box_of(index, tensor.shape)
            out = numpy.empty(extent, dtypes.bits(tensor.dtype))
            if out.size:
                parts.append(Part(tensor._stored, tensor.dtype, tensor.shape, offset, extent,
                                  out.ctypes.data, out))
            found[name] = out, rest, tensor.dtype
        self.read(parts)
        return {name: dtypes.of_bits(out[rest], stored,
                                     dtype if dtype and dtypes.is_float(stored) else stored)
                for name, (out, rest, stored) in found.items()}

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open(spec: str, *, server: Optional[str] = None,  # noqa: A001 - as safetensors' safe_open
         store: Optional[str] = None) -> Checkpoint:
    """Opens "run", "run@step" or "run@step-aN" of a ckptd (`server`, by default HOLDFAST_SERVER or
    ckptd's default address), or of a store without ckptd. `store` is its directory or
    "s3://bucket/prefix"; or the store precedes the run, "s3://bucket/prefix/run@step",
    "dir:/path/run", "file:///path/run". `spec` may also be the path of one checkpoint's directory.

    From a bucket a slice reads its blocks of 1 MiB, by ranged GETs. AWS's variables and
    HOLDFAST_S3_* configure the server and the keys, as for ckpt-cli."""
    named = _STORE.match(spec) if server is None and store is None else None
    is_folder = named is None and server is None and store is None and os.path.isdir(spec)
    folder = _FOLDER.match(spec) if is_folder else None
    match = folder or _SPEC.match(named["name"] if named is not None else spec)
    if match is None or (named is None and folder is None and ":" in match["run"]):
        raise InvalidError(f"{spec!r} names no checkpoint",
                           "write run@step, such as llama@1000, or with a store "
                           "dir:/path/run@step, s3://bucket/prefix/run@step")
    if folder is not None:
        store = folder["store"] or ("/" if spec.startswith("/") else ".")
    if named is not None:
        store = named["store"]
    client = Client(store_address(store) if store is not None else server, match["run"])
    try:
        step = None if match["step"] is None else int(match["step"])
        return Checkpoint(client, step, int(match["attempt"] or 0))
    except BaseException:
        client.close()
        raise
