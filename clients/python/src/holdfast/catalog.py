"""holdfast.catalog - an operator's work with checkpoints: tag, verify, remove, prune.

    holdfast.catalog.tag("llama@1000", "best", server=server)       # then "llama@best" for ckpt-cli
    holdfast.catalog.verify("llama@1000", store="/data/store")      # CorruptError names the damage
    holdfast.catalog.prune("llama", keep_last=3, keep_every=1000, dry_run=True)

These are ckpt-cli's own commands, run with --json: the program is the one that HOLDFAST_CLI names,
else the one on PATH (`make install`). Lists, metadata and pins are Client's and need no program.
"""
from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, List, Optional

from . import errors
from .errors import CorruptError, InternalError, UnavailableError

_BY_NAME = {kind.__name__[:-len("Error")].lower(): kind for kind in errors.BY_CODE.values()}


def _raise(said: str, code: int) -> None:
    """The error of ckpt-cli's last line."""
    try:
        found = json.loads(said.strip().splitlines()[-1])
        name = found["error"].removeprefix("ERR_").lower().replace("_", "")
        kind = _BY_NAME.get({"io": "storage", "memory": "outofmemory"}.get(name, name),
                            InternalError)
    except (ValueError, KeyError, IndexError):
        raise InternalError(f"ckpt-cli ended with {code}: {said.strip()[-200:]}") from None
    detail = f": {found['detail']}" if found.get("detail") else ""
    raise kind(found["message"] + detail, found["hint"])


def _cli(*words: str, server: Optional[str], store: Optional[str], differs: bool = False) -> Any:
    """The output of a command. `differs`: exit code 1 is a result, too."""
    where = ["--store", store] if store is not None else (
        ["--server", server or os.environ.get("HOLDFAST_SERVER", "")])
    command = [os.environ.get("HOLDFAST_CLI") or "ckpt-cli", *words, "--json",
               *(where if where[1] else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UnavailableError(f"{command[0]} could not be run: {error.strerror}",
                               "`make install`, or name the program in HOLDFAST_CLI") from None
    if done.returncode != 0 and not (differs and done.returncode == 1 and done.stdout.strip()):
        _raise(done.stderr, done.returncode)
    return json.loads(done.stdout)


def tag(checkpoint: str, name: str, *, server: Optional[str] = None,
        store: Optional[str] = None) -> None:
    """Names a checkpoint "RUN@name" for every command of ckpt-cli. A tag may move."""
    _cli("tag", checkpoint, name, server=server, store=store)


def untag(run: str, name: str, *, server: Optional[str] = None,
          store: Optional[str] = None) -> None:
    """Removes a tag; its checkpoint stays."""
    _cli("untag", run, name, server=server, store=store)


def verify(checkpoint: str, *, quick: bool = False, server: Optional[str] = None,
           store: Optional[str] = None) -> Dict[str, Any]:
    """Reads all of a checkpoint again (`quick`: no data) and verifies its checksums.
    CorruptError names the first damage."""
    found = _cli("verify", checkpoint, *(["--quick"] if quick else []), server=server, store=store,
                 differs=True)
    if found["damages"]:
        first, more = found["damage"][0], found["damages"] - 1
        raise CorruptError(f"{found['checkpoint']}: {first['object']} is damaged: {first['what']}"
                           + (f", and {more} more" if more else ""),
                           "`ckpt-cli repair` replaces damaged files")
    return found


def remove(checkpoint: str, *, for_good: bool = False, server: Optional[str] = None,
           store: Optional[str] = None) -> Dict[str, Any]:
    """Removes "RUN@STEP-aATTEMPT" (CheckpointInfo.spec), or all of "RUN"; if the store has a trash
    it can be restored for a while, unless `for_good`."""
    return _cli("rm", checkpoint, "--yes", *(["--now"] if for_good else []), server=server,
                store=store)


def prune(run: str, *, keep_last: Optional[int] = None, keep_every: Optional[int] = None,
          keep_within: Optional[str] = None, dry_run: bool = False, most: bool = False,
          server: Optional[str] = None, store: Optional[str] = None) -> Dict[str, Any]:
    """Removes checkpoints that no rule keeps, except the last two intact ones, pinned and leased
    ones. `most` allows removal of more than half of the run."""
    rules: List[str] = []
    for name, value in (("keep-last", keep_last), ("keep-every", keep_every),
                        ("keep-within", keep_within)):
        rules += [f"--{name}", str(value)] if value is not None else []
    return _cli("prune", run, *rules, *(["--dry-run"] if dry_run else []),
                *(["--most"] if most else []), server=server, store=store)


__all__ = ["prune", "remove", "tag", "untag", "verify"]
