"""arrays - describes a NumPy array or a torch tensor for libckpt: a box of a named global tensor
and the address of its first byte. Only a tensor that is not contiguous is copied, once.

torch is never imported here: a tensor is recognised by its module.
"""
from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple

import numpy

from . import _lib, dtypes
from .errors import InvalidError

OBJECT = "object:"  # such names are those of bytes objects (client.py)
_ESCAPED = {code: f"%{code:02X}" for code in (*range(0x21), 0x22, 0x25, 0x5c, 0x7f)}


def stored_name(name: str) -> str:
    """The name under which a tensor is stored: printable ASCII; other characters are escaped as in
    URLs.

    >>> stored_name("a b"), stored_name("layers.0.wq.weight")
    ('a%20b', 'layers.0.wq.weight')
    """
    if not isinstance(name, str):
        raise InvalidError(f"{name!r} is not a valid tensor name", "a string")
    stored = name.translate(_ESCAPED)
    if not stored.isascii():
        stored = "".join(c if c.isascii() else "".join(f"%{b:02X}" for b in c.encode())
                         for c in stored)
    if stored.startswith("__"):
        stored = "%5F" + stored[1:]
    return _checked(stored)


def _checked(stored: str) -> str:
    if not 0 < len(stored) < 192:
        raise InvalidError(f"a tensor's name has 1 to 191 characters, not {len(stored)}: "
                           f"{stored[:64]}", "shorten it; escaped characters count as three")
    return stored


def check_fit(name: str, dtype: str, dims: int) -> None:
    """Raises the InvalidError of a tensor that can never be stored, with its name."""
    last = (dtypes.carrier(dtype) or ("", ()))[1]
    if dims + len(last) > _lib.DIMS_MAX:
        raise InvalidError(f"{name} has {dims} dimensions",
                           f"at most {_lib.DIMS_MAX - len(last)}; reshape it")
    _checked(carried_name(name, dtype))


def type_of(name: str, value: Any) -> str:
    """The type of an array or tensor; the error of one that has none names it."""
    try:
        return (dtypes.of_torch if is_torch(value) else dtypes.of_numpy)(value.dtype)
    except InvalidError as error:
        raise InvalidError(f"{name}: {error.message}", error.hint) from None


def carried_name(name: str, dtype: str) -> str:
    """The name of a stored tensor whose type may be carried."""
    return name if dtypes.carrier(dtype) is None else f"{name}@{dtype}"


def carried(name: str, dtype: str, shape: Tuple[int, ...]) -> Tuple[str, str, Tuple[int, ...]]:
    """Name, type and shape of the original of a stored tensor.

    >>> carried("w@complex64", "F32", (3, 2)), carried("w", "F32", (3, 2))
    (('w', 'complex64', (3,)), ('w', 'F32', (3, 2)))
    """
    head, _, kind = name.rpartition("@")
    stored, last = dtypes.carrier(kind) or ("", ())
    if not head or stored != dtype or shape[len(shape) - len(last):] != last:
        return name, dtype, shape
    return head, kind, shape[:len(shape) - len(last)]


def given_name(stored: str) -> str:
    """The argument of stored_name().

    >>> given_name("a%20b")
    'a b'
    """
    from urllib.parse import unquote

    return unquote(stored)


def is_torch(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" or hasattr(value, "data_ptr")


@dataclasses.dataclass(frozen=True)
class Slice:
    """A box of a global tensor, for a rank that holds only a part: `data` are the elements from
    `offset` on of a tensor of `shape`.

    >>> Slice(numpy.zeros((2, 8)), shape=(4, 8), offset=(2, 0)).extent
    (2, 8)
    """

    data: Any
    shape: Tuple[int, ...]
    offset: Tuple[int, ...]

    @property
    def extent(self) -> Tuple[int, ...]:
        return tuple(self.data.shape)


class Part:
    """The description of one array for libckpt, in the type that carries it; keeps `source` alive.
    If `on_device`, that is a tensor, or has fill(memory, at), which copies its bytes from `at`
    on."""

    __slots__ = ("name", "dtype", "shape", "offset", "extent", "pointer", "source", "on_device")

    def __init__(self, name: str, dtype: str, shape: Sequence[int], offset: Sequence[int],
                 extent: Sequence[int], pointer: int, source: Any, on_device: bool = False) -> None:
        stored, last = dtypes.carrier(dtype) or (dtype, ())
        check_fit(name, dtype, len(shape))
        if len(shape) != len(offset) or len(shape) != len(extent):
            raise InvalidError(f"shape {tuple(shape)}, offset {tuple(offset)} and data of shape "
                               f"{tuple(extent)} of {name} do not match")
        self.name, self.dtype = carried_name(name, dtype), stored
        self.shape, self.extent = (*shape, *last), (*extent, *last)
        self.offset = (*offset, *(0 for _ in last))
        self.pointer, self.source, self.on_device = pointer, source, on_device

    @property
    def key(self) -> Tuple[Any, ...]:
        """The part of a description that must be equal on all ranks."""
        return self.name, self.dtype, self.shape, self.offset, self.extent

    @property
    def nbytes(self) -> int:
        return int(numpy.prod(self.extent, dtype=numpy.int64)) * dtypes.size(self.dtype)


def _torch_part(name: str, tensor: Any, shape: Optional[Sequence[int]],
                offset: Optional[Sequence[int]], writable: bool) -> Part:
    dtype = type_of(name, tensor)
    local = tensor.detach().resolve_conj()
    if not local.is_contiguous():
        if writable:
            raise InvalidError(f"{name} is not contiguous, so nothing can be loaded into it",
                               "load into tensor.contiguous() and copy_() it")
        local = local.contiguous()
    on_device = local.device.type != "cpu"
    if on_device and local.device.type == "meta":
        raise InvalidError(f"{name} is a meta tensor: it has no data", "to_empty() it first")
    extent = tuple(local.shape)
    return Part(name, dtype, extent if shape is None else shape,
                (0,) * len(extent) if offset is None else offset, extent, local.data_ptr(), local,
                on_device)


def _numpy_part(name: str, value: Any, shape: Optional[Sequence[int]],
                offset: Optional[Sequence[int]], writable: bool) -> Part:
    array = numpy.asarray(value)
    if writable and (array is not value or not array.flags.writeable
                     or not array.flags.c_contiguous):
        raise InvalidError(f"{name} cannot be loaded into",
                           "give a writable, C-contiguous array")
    if array.dtype == object:
        raise InvalidError(f"{name} holds Python objects", "save them as `state` or `objects`")
    dtype = type_of(name, array)
    array = numpy.ascontiguousarray(array).reshape(array.shape)  # of a scalar it makes [1]
    extent = array.shape
    return Part(name, dtype, extent if shape is None else shape,
                (0,) * len(extent) if offset is None else offset, extent, array.ctypes.data, array)


def part(name: str, value: Any, writable: bool = False) -> Part:
    """The Part for a value: an array, a tensor, a number, or a Slice of one."""
    stored = stored_name(name)
    if stored.startswith(OBJECT):
        raise InvalidError(f"{name}: names that begin with {OBJECT} are those of bytes objects")
    shape = offset = None
    if isinstance(value, Slice):
        shape, offset, value = value.shape, value.offset, value.data
    make = _torch_part if is_torch(value) else _numpy_part
    return make(stored, value, shape, offset, writable)


def describe(parts: Sequence[Part], with_data: bool = True) -> Any:
    """The list of struct ckpt_array; it borrows names and data."""
    arrays = (_lib.Array * max(len(parts), 1))()
    for array, piece in zip(arrays, parts):
        array.size = _lib.sizeof(_lib.Array)
        array.dims = len(piece.shape)
        array.name, array.dtype = piece.name.encode(), piece.dtype.encode()
        array.shape[:array.dims] = piece.shape
        array.offset[:array.dims] = piece.offset
        array.extent[:array.dims] = piece.extent
        array.data = piece.pointer if with_data and not piece.on_device else None
    return arrays


def differences(wanted: List[Part], names: Any) -> List[str]:
    """Differences of parts and a checkpoint's tensors ({name: (dtype, shape)}), a line each."""
    lines = []
    for piece in wanted:
        found = names.get(piece.name)
        if found is None:
            lines.append(f"{given_name(piece.name)} {list(piece.shape)}: not in the checkpoint")
        elif found != (piece.dtype, piece.shape):
            lines.append(f"{given_name(piece.name)}: {found[0]} {list(found[1])} in the "
                         f"checkpoint, {piece.dtype} {list(piece.shape)} here")
    return lines
