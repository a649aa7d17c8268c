"""_lib - libckpt.so.1 by ctypes: the structs and functions of clients/ckpt.h that the package uses.

The library is, in this order: the file of HOLDFAST_LIBCKPT, the one inside the package (a wheel has
it), the system's. Calls release the GIL. check() converts a code to an exception.
"""
from __future__ import annotations

import ctypes
import os
import threading
from ctypes import (POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_int, c_int64,
                    c_uint32, c_uint64, c_void_p, sizeof)
from pathlib import Path
from typing import Any, Optional

from .errors import BY_CODE, HoldfastError, VersionError

DIMS_MAX = 8
NEWEST = -1


class Options(Structure):
    _fields_ = [("server", c_char_p), ("run", c_char_p), ("rank", c_uint32),
                ("world_size", c_uint32), ("connect_ms", c_uint32), ("describe_ms", c_uint32),
                ("busy_ms", c_uint32)]


class AttemptOptions(Structure):
    _fields_ = [(name, c_char_p) for name in
                ("config_json", "identity_json", "mesh_json", "data_json", "code_version")]


class Info(Structure):
    _fields_ = [("run", c_char * 128), ("step", c_uint64), ("attempt", c_uint64),
                ("nonce", c_char * 33), ("bytes", c_uint64), ("time", c_char * 32),
                ("world_size", c_uint32), ("durability", c_char * 16), ("in_memory", c_bool)]


class Loaded(Structure):
    _fields_ = [("info", Info), ("state_json", c_char_p), ("identity_json", c_char_p),
                ("config_json", c_char_p), ("data_json", c_char_p), ("skipped", c_char_p),
                ("bytes_memory", c_uint64), ("bytes_local", c_uint64), ("seconds", c_double)]


class Array(Structure):
    _fields_ = [("size", c_uint32), ("dims", c_uint32), ("name", c_char_p), ("dtype", c_char_p),
                ("shape", c_uint64 * DIMS_MAX), ("offset", c_uint64 * DIMS_MAX),
                ("extent", c_uint64 * DIMS_MAX), ("data", c_void_p)]


class LoadRequest(Structure):
    _fields_ = [("size", c_uint32), ("num_arrays", c_uint32), ("step", c_int64),
                ("below_step", c_int64), ("attempt", c_uint64), ("arrays", POINTER(Array))]


class TensorInfo(Structure):
    _fields_ = [("size", c_uint32), ("dims", c_uint32), ("name", c_char_p), ("dtype", c_char_p),
                ("shape", c_uint64 * DIMS_MAX), ("digest", c_uint64 * 2)]


class Metadata(Structure):
    _fields_ = [("size", c_uint32), ("num_tensors", c_uint32), ("info", Info),
                ("tensors", POINTER(TensorInfo)), ("state_json", c_char_p),
                ("identity_json", c_char_p), ("config_json", c_char_p), ("data_json", c_char_p),
                ("mesh_json", c_char_p), ("damage", c_char_p)]


class ListEntry(Structure):
    _fields_ = [("size", c_uint32), ("pinned", c_bool), ("read_back", c_bool), ("info", Info),
                ("damage", c_char_p), ("pin_note", c_char_p)]


class List(Structure):
    _fields_ = [("size", c_uint32), ("num_entries", c_uint32), ("entries", POINTER(ListEntry))]


class Place(Structure):
    _fields_ = [("size", c_uint32), ("index", c_uint32), ("to", c_void_p),
                ("from_byte", c_uint64), ("bytes", c_uint64), ("image_byte", c_uint64)]


class Span(Structure):
    _fields_ = [("from_byte", c_uint64), ("bytes", c_uint64)]


class Object(Structure):
    _fields_ = [("size", c_uint32), ("name", c_char_p), ("memory", c_void_p), ("room", c_uint64),
                ("stored", c_char * 192)]


SAMPLE_MAX = 16  # CKPT_SAMPLE_MAX

# name: (result, arguments); a handle or a save is a void pointer
_FUNCTIONS = {
    "ckpt_open": (c_int, [POINTER(c_void_p), POINTER(Options)]),
    "ckpt_close": (None, [c_void_p]),
    "ckpt_error": (c_char_p, []),
    "ckpt_error_hint": (c_char_p, []),
    "ckpt_attempt_take": (c_int, [c_void_p, POINTER(c_uint64), POINTER(Info),
                                  POINTER(AttemptOptions), c_uint32]),
    "ckpt_describe_arrays": (c_int, [c_void_p, c_uint64, POINTER(Array), c_uint32]),
    "ckpt_move": (c_int, [c_void_p, c_uint32, c_void_p]),
    "ckpt_load_arrays": (c_int, [c_void_p, POINTER(LoadRequest), POINTER(POINTER(Loaded))]),
    "ckpt_loaded_free": (None, [POINTER(Loaded)]),
    "ckpt_metadata": (c_int, [c_void_p, c_int64, c_uint64, POINTER(POINTER(Metadata))]),
    "ckpt_metadata_free": (None, [POINTER(Metadata)]),
    "ckpt_list": (c_int, [c_void_p, c_bool, POINTER(POINTER(List))]),
    "ckpt_list_free": (None, [POINTER(List)]),
    "ckpt_newer": (c_int, [c_void_p, c_uint64, c_uint64, c_uint32, POINTER(Info)]),
    "ckpt_pin": (c_int, [c_void_p, c_uint64, c_uint64, c_char_p]),
    "ckpt_object_room": (c_uint64, [c_uint64]),
    "ckpt_object_describe": (c_int, [POINTER(Object), POINTER(Array)]),
    "ckpt_object_set": (c_int, [POINTER(Object), c_char_p, c_uint64]),
    "ckpt_object_get": (c_int, [POINTER(Object), POINTER(c_void_p), POINTER(c_uint64)]),
    "ckpt_save_begin": (c_int, [c_void_p, POINTER(c_void_p), c_uint64, c_char_p]),
    "ckpt_save_last": (None, [c_void_p]),
    "ckpt_save_order": (c_uint32, [c_void_p, c_uint32]),
    "ckpt_save_copy": (c_int, [c_void_p, c_uint32]),
    "ckpt_save_place": (c_int, [c_void_p, c_uint32, c_uint64, POINTER(Place)]),
    "ckpt_save_sample": (c_int, [c_void_p, c_uint32, POINTER(Span), POINTER(c_uint32)]),
    "ckpt_save_sampled": (c_int, [c_void_p, c_uint32, c_void_p]),
    "ckpt_save_announce": (c_int, [c_void_p, POINTER(Place)]),
    "ckpt_save_end": (c_int, [c_void_p]),
    "ckpt_save_failed": (c_int, [c_void_p, c_uint64, c_char_p]),
    "ckpt_save_abort": (None, [c_void_p]),
    "ckpt_save_wait_for": (c_int, [c_void_p, c_uint64, c_int, c_uint32]),
    "ckpt_save_warning": (c_char_p, [c_void_p]),
    "ckpt_save_durability": (c_char_p, [c_void_p]),
}

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def _load() -> ctypes.CDLL:
    inside = Path(__file__).parent / "_native" / "libckpt.so.1"
    tried = [os.environ.get("HOLDFAST_LIBCKPT"), str(inside) if inside.exists() else None,
             "libckpt.so.1"]
    name = next(path for path in tried if path)
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise VersionError(
            f"libckpt could not be loaded: {error}",
            "install a wheel of holdfast, or `make install`, or set HOLDFAST_LIBCKPT") from None
    for function, (result, arguments) in _FUNCTIONS.items():
        try:
            entry = getattr(library, function)
        except AttributeError:
            raise VersionError(f"{name} has no {function}",
                               "it is older than this package: reinstall both") from None
        entry.restype, entry.argtypes = result, arguments
    return library


def libckpt() -> Any:
    """libckpt, loaded at the first use."""
    global _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def text(value: Optional[bytes]) -> str:
    return (value or b"").decode("utf-8", "replace")


def error(code: int) -> HoldfastError:
    """The exception for a code that the calling thread has just received."""
    hint = text(libckpt().ckpt_error_hint())
    line = text(libckpt().ckpt_error())
    if hint and line.endswith(f" ({hint})"):
        line = line[:-len(hint) - 3]
    return BY_CODE.get(code, HoldfastError)(line, hint)


def check(code: int) -> None:
    if code != 0:
        raise error(code)


__all__ = ["Array", "AttemptOptions", "Info", "List", "Loaded", "LoadRequest", "Metadata",
           "Object", "Options", "Place", "DIMS_MAX", "NEWEST", "byref", "check", "error", "libckpt",
           "sizeof", "text"]
