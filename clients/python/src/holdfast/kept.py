"""kept - finds the newest checkpoint of those in ckptd and those in the folder of `fallback`.

Checkpoints of both are ordered by attempt, then by time of commit. A rollback takes a new attempt,
so its saves are newer than a higher step from before it, in ckptd or in the folder.

DIR/step-N has the file holdfast.json beside DCP's files: {"version": 1, "attempt": 2, "committed":
1767225600.5}, in seconds since the epoch. It is written before .metadata, which completes the
folder. A session that never reached ckptd writes attempt 0; a folder without the file counts as
attempt 0, and as committed when .metadata was written. A checkpoint of attempt 0 belongs to the
highest attempt that was committed before it.
"""
from __future__ import annotations

import calendar
import dataclasses
import json
import os
import time
from typing import Iterable, List, Optional

from .client import Client
from .dcp_files import METADATA
from .errors import NotFoundError, UnavailableError

NOTE = "holdfast.json"


@dataclasses.dataclass(frozen=True)
class Kept:
    """An intact checkpoint; `time` in whole seconds, as in ckptd."""

    step: int
    attempt: int
    time: int
    is_file: bool = True


def path_of(folder: str, step: int) -> str:
    return os.path.join(folder, f"step-{step}")


def write_note(path: str, attempt: int) -> None:
    """Before DCP's .metadata is written to this directory."""
    part = os.path.join(path, NOTE + ".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "attempt": attempt, "committed": time.time()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, os.path.join(path, NOTE))


def _read(path: str, step: int) -> Kept:
    try:
        with open(os.path.join(path, NOTE), encoding="utf-8") as file:
            found = json.load(file)
        return Kept(step, int(found["attempt"]), int(found["committed"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Kept(step, 0, int(os.stat(os.path.join(path, METADATA)).st_mtime))


def in_folder(folder: str) -> List[Kept]:
    """The steps of a folder that are whole."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        number, path = name[len("step-"):], os.path.join(folder, name)
        if name.startswith("step-") and number.isdigit() and os.path.exists(
                os.path.join(path, METADATA)):
            found.append(_read(path, int(number)))
    return found


def newest_of(found: Iterable[Kept]) -> Optional[Kept]:
    """
    >>> newest_of([Kept(50, 1, 100), Kept(20, 2, 200, is_file=False)]).step
    20
    >>> newest_of([Kept(20, 2, 200, is_file=False), Kept(30, 0, 300), Kept(50, 1, 400)]).step
    30
    """
    newest: Optional[Kept] = None
    attempt, best = 0, (0, 0, 0)
    for one in sorted(found, key=lambda each: (each.time, each.step)):
        attempt = max(attempt, one.attempt)
        key = (one.attempt or attempt, one.time, one.step)
        if newest is None or key >= best:
            newest, best = one, key
    return newest


def _in_ckptd(run: str, server: Optional[str], step: Optional[int],
              is_needed: bool) -> Optional[Kept]:
    try:
        with Client(server, run, connect_seconds=10.0 if is_needed else 1.0) as client:
            info = client.metadata(step).info
    except NotFoundError:
        return None
    except UnavailableError:
        if is_needed:
            raise
        return None
    committed = calendar.timegm(time.strptime(info.time, "%Y-%m-%dT%H:%M:%SZ"))
    return Kept(info.step, info.attempt, committed, is_file=False)


def find(run: str, server: Optional[str], folder: Optional[str],
         step: Optional[int]) -> Optional[Kept]:
    """This step, or the newest; None: there is none. A ckptd that is away is an error where there
    is no folder."""
    found = [one for one in (in_folder(folder) if folder is not None else ())
             if step is None or one.step == step]
    stored = _in_ckptd(run, server, step, is_needed=folder is None)
    return newest_of(found + ([stored] if stored is not None else []))
