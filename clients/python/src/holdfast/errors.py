"""errors - the exceptions of the package, one for each code of ckpt.h.

Every one has `hint`, what to do about it, and str() ends with it.
"""
from __future__ import annotations

import builtins
from typing import Dict, List, Type


class HoldfastError(Exception):
    """The base of all. `hint` is advice, or ""."""

    code = 0

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidError(HoldfastError, ValueError):
    """An argument, or the order of calls."""
    code = -1


class NotFoundError(HoldfastError, KeyError):
    """No such run, checkpoint or tensor."""
    code = -2


class ExistsError(HoldfastError):
    """The attempt has committed this step, or the run is being trained."""
    code = -3


class GoesBackError(ExistsError):
    """The step of a save is below one that its attempt has begun."""


class StaleError(HoldfastError):
    """A newer attempt of the run has taken over: stop."""
    code = -4


class BusyError(HoldfastError):
    """Every image is still being written: skip this save, or try again."""
    code = -5


class SpaceError(HoldfastError):
    """The checkpoint does not fit on ckptd's disk."""
    code = -6


class StorageError(HoldfastError, OSError):
    """A disk or a socket failed."""
    code = -7


class CorruptError(HoldfastError):
    """Stored data is damaged."""
    code = -8


class UnavailableError(HoldfastError, ConnectionError):
    """ckptd cannot be reached."""
    code = -9


class TimeoutError(HoldfastError, builtins.TimeoutError):  # noqa: A001 - also Python's own
    """It took longer than was allowed."""
    code = -10


class DeniedError(HoldfastError, PermissionError):
    """ckptd does not serve this user."""
    code = -11


class OutOfMemoryError(HoldfastError, MemoryError):
    """This program or ckptd is out of memory."""
    code = -12


class AbortedError(HoldfastError):
    """The save failed or was given up; older checkpoints are unharmed."""
    code = -13


class MismatchError(HoldfastError, ValueError):
    """The requested tensors do not match the checkpoint."""
    code = -14


class VersionError(HoldfastError):
    """The versions of libckpt and ckptd do not fit."""
    code = -15


class InternalError(HoldfastError):
    """A fault of libckpt or ckptd."""
    code = -16


class UnsettledError(HoldfastError):
    """The outcome is not known yet: call again."""
    code = -17


_NEVER = (InvalidError, GoesBackError, StaleError, DeniedError, MismatchError, VersionError)


def is_final(error: BaseException) -> bool:
    """Would the same save fail each time? A type that cannot be stored is such a case; a ckptd that
    is away is none.

    >>> is_final(InvalidError("w has 9 dimensions")), is_final(UnavailableError("no ckptd"))
    (True, False)
    """
    return isinstance(error, _NEVER)


def misfit(spec: str, lines: List[str], limit: int = 10) -> MismatchError:
    """Of a load: the first differences, a line each.

    >>> str(misfit("llama@3", ["w: [2] in the checkpoint, [3] here"] * 12)).count("\\n")
    11
    """
    more = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
    return MismatchError(f"{spec} does not hold what is wanted:\n  "
                         + "\n  ".join(lines[:limit] + more))


def _all(base: Type[HoldfastError]) -> Dict[int, Type[HoldfastError]]:
    return {kind.code: kind for kind in base.__subclasses__()}


BY_CODE = _all(HoldfastError)
