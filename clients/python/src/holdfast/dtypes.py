"""dtypes - element types by their safetensors names, and NumPy's and torch's types for them.

NumPy has no bfloat16 and no 8-bit floats: the package ml_dtypes adds them. Without it such
tensors can be saved, loaded into torch tensors, and read as their raw bits (LazyTensor.bits()).

Types without a safetensors name in ckptd are carried: their bytes are in a tensor of another type,
whose name has the original type, NAME@complex64 (arrays.Part).
"""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import numpy

from .errors import InvalidError

# safetensors, or where it is carried torch: (bytes, NumPy, of ml_dtypes, torch)
_TABLE: Dict[str, Tuple[int, Optional[str], Optional[str], Optional[str]]] = {
    "BOOL": (1, "bool", None, "bool"),
    "U8": (1, "uint8", None, "uint8"),
    "I8": (1, "int8", None, "int8"),
    "U16": (2, "uint16", None, "uint16"),
    "I16": (2, "int16", None, "int16"),
    "U32": (4, "uint32", None, "uint32"),
    "I32": (4, "int32", None, "int32"),
    "U64": (8, "uint64", None, "uint64"),
    "I64": (8, "int64", None, "int64"),
    "F16": (2, "float16", None, "float16"),
    "F32": (4, "float32", None, "float32"),
    "F64": (8, "float64", None, "float64"),
    "BF16": (2, None, "bfloat16", "bfloat16"),
    "F8_E4M3": (1, None, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (1, None, "float8_e5m2", "float8_e5m2"),
    "complex64": (8, "complex64", None, "complex64"),
    "complex128": (16, "complex128", None, "complex128"),
    "float8_e8m0fnu": (1, None, "float8_e8m0fnu", "float8_e8m0fnu"),
    "float8_e4m3fnuz": (1, None, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "float8_e5m2fnuz": (1, None, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "float4_e2m1fn_x2": (1, None, None, "float4_e2m1fn_x2"),
}
# The stored type, and how many of it an element is, as a last dimension.
_CARRIERS: Dict[str, Tuple[str, Tuple[int, ...]]] = {
    "complex64": ("F32", (2,)), "complex128": ("F64", (2,)), "float8_e8m0fnu": ("U8", ()),
    "float8_e4m3fnuz": ("U8", ()), "float8_e5m2fnuz": ("U8", ()), "float4_e2m1fn_x2": ("U8", ())}
SHORT = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}  # as commands have them
_OF_NAME = {numpy_name or ml_name: name for name, (_, numpy_name, ml_name, _) in _TABLE.items()}
_OF_TORCH = {torch_name: name for name, (_, _, _, torch_name) in _TABLE.items()}


def size(dtype: str) -> int:
    """Bytes of an element.

    >>> size("BF16")
    2
    """
    return _TABLE[dtype][0]


def carrier(dtype: str) -> Optional[Tuple[str, Tuple[int, ...]]]:
    """The stored type and the last dimension of a type that is carried; None: it is not.

    >>> carrier("complex64"), carrier("F32")
    (('F32', (2,)), None)
    """
    return _CARRIERS.get(dtype)


def is_float(dtype: str) -> bool:
    """Is it one of the floating-point types?"""
    return dtype.startswith(("F", "BF"))


def of_numpy(dtype: Any) -> str:
    """The safetensors name of a NumPy type.

    >>> of_numpy(numpy.dtype("float32"))
    'F32'
    """
    kind = numpy.dtype(dtype)
    name = _OF_NAME.get(kind.name)
    if name is None or not kind.isnative:
        raise InvalidError(f"arrays of type {kind} cannot be saved",
                           f"one of {', '.join(sorted(filter(None, _OF_NAME)))}, little-endian")
    return name


def to_numpy(dtype: str) -> "numpy.dtype[Any]":
    """The NumPy type of a safetensors name; of ml_dtypes where NumPy has none."""
    _, name, ml_name, _ = _TABLE[dtype]
    if name is not None:
        return numpy.dtype(name)
    try:
        import ml_dtypes
        return numpy.dtype(getattr(ml_dtypes, ml_name or ""))
    except (ImportError, AttributeError):
        raise InvalidError(f"NumPy has no type for {dtype}",
                           "pip install ml_dtypes, or use .torch(), or .bits() for the raw bits"
                           ) from None


def bits(dtype: str) -> "numpy.dtype[Any]":
    """The unsigned integer as wide as an element; of 16 bytes, for which there is none, "V16"."""
    return numpy.dtype(f"uint{8 * size(dtype)}" if size(dtype) <= 8 else f"V{size(dtype)}")


def of_torch(dtype: Any) -> str:
    name = _OF_TORCH.get(str(dtype).rsplit(".", 1)[-1])
    if name is None:
        raise InvalidError(f"tensors of type {dtype} cannot be saved",
                           "view them as a type of the same size, such as tensor.view(torch.uint8)")
    return name


def torch_name(dtype: str) -> str:
    """
    >>> torch_name("BF16")
    'bfloat16'
    """
    return _TABLE[dtype][3] or ""


def to_torch(dtype: str) -> Any:
    import torch

    return getattr(torch, torch_name(dtype))


def cast(raw: Any, source: str, to: str) -> Any:
    """The bytes of floats as those of another type, to nearest, ties to even; as they are where
    `to` is theirs. F32, F16 and BF16 need no ml_dtypes.

    >>> bits = cast(numpy.array([1.00390625, 1.01171875, numpy.nan], "f4").tobytes(), "F32", "BF16")
    >>> [hex(one) for one in numpy.frombuffer(bits, "u2")]
    ['0x3f80', '0x3f82', '0x7fc0']
    """
    if source == to:
        return raw
    if not {source, to} <= set(SHORT.values()):
        return numpy.frombuffer(raw, to_numpy(source)).astype(to_numpy(to)).tobytes()
    if source == "BF16":
        wide = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        wide = numpy.frombuffer(raw, to_numpy(source)).astype("<f4")
    if to != "BF16":
        with numpy.errstate(over="ignore"):
            return wide.astype(to_numpy(to)).tobytes()
    bits = wide.view("<u4")
    nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(wide), (bits >> 16) | 0x40, nearest).astype("<u2").tobytes()


def of_bits(raw: Any, source: str, to: str) -> Any:
    """An array of bits as numbers of type `to`; a torch tensor where NumPy has no such type.

    >>> of_bits(numpy.array([[0x3f80, 0x4000]], "u2"), "BF16", "F32")
    array([[1., 2.]], dtype=float32)
    """
    out = raw
    if source != to:
        out = numpy.empty(raw.shape, bits(to))
        if raw.size:
            out.data.cast("B")[:] = cast(raw.tobytes(), source, to)
    try:
        return out.view(to_numpy(to))
    except InvalidError:
        try:
            import torch
        except ImportError:
            torch = None
        if torch is None:
            raise
        return torch.from_numpy(out.view(f"i{size(to)}")).view(to_torch(to))
