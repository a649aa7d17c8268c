"""state_json - the JSON of `state`, `config` and the like, which keeps every float and integer.

JSON has no NaN and no infinity, and ckptd refuses integers beyond 64 bits. These values are stored
as {"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"} and {"$int": "18446744073709551616"}. A
dict of the user with such a form is stored with one more "$" at its key, which a read removes.
Tuples become lists, and keys strings, as in the module json.
"""
from __future__ import annotations

import json
import math
import re
from typing import Any

from .errors import InvalidError

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MARK = re.compile(r"\$+(float|int)$")
_DIGITS = re.compile("-?[0-9]+")
_INT_END = 1 << 63  # JSON's integers are below it in ckptd
_UNSTORED = re.compile("[\0\ud800-\udfff]")


def dumps(value: Any, name: str = "state") -> str:
    """
    >>> dumps({"best": float("inf"), "seed": 1 << 64, "steps": (1, -0.0)})
    '{"best": {"$float": "inf"}, "seed": {"$int": "18446744073709551616"}, "steps": [1, -0.0]}'
    """
    return json.dumps(_pack(value, name))


def loads(text: str) -> Any:
    """
    >>> loads(dumps({"$float": "nan"})), loads(dumps(float("-inf")))
    ({'$float': 'nan'}, -inf)
    """
    return json.loads(text, object_hook=_unpack)


def _mark_of(value: Any) -> str:
    """The key of a dict that has the form of a stored float or integer; "": it has not."""
    key = next(iter(value)) if len(value) == 1 else None
    return key if isinstance(key, str) and _MARK.match(key) else ""


def _pack(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        mark = _mark_of(value)
        return {"$" + mark if mark else _key(key, name): _pack(inner, f"{name}[{key!r}]")
                for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(inner, f"{name}[{at}]") for at, inner in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -_INT_END <= number < _INT_END else {"$int": str(number)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, str):
        return _text(value, name)
    raise InvalidError(f"{name} is of type {type(value).__name__}, which JSON does not have",
                       "convert it with float(), int(), str() or list(), or save it in `objects`")


def _key(key: Any, name: str) -> Any:
    if isinstance(key, str):
        return _text(key, f"a key of {name}")
    if key is None or isinstance(key, (bool, int, float)):
        return key
    raise InvalidError(f"{name} has a key of type {type(key).__name__}: {key!r}",
                       "keys are strings or numbers")


def _text(value: str, name: str) -> str:
    if _UNSTORED.search(value):
        raise InvalidError(f"{name} holds a character that ckptd does not store: {value[:64]!r}",
                           "leave out NUL and lone surrogates, or save it in `objects`")
    return value


def _unpack(found: Any) -> Any:
    mark = _mark_of(found)
    if not mark:
        return found
    inner = found[mark]
    if mark.startswith("$$"):
        return {mark[1:]: inner}
    if not isinstance(inner, str):
        return found
    if mark == "$float":
        return _FLOATS.get(inner, found)
    return int(inner) if _DIGITS.fullmatch(inner) else found
