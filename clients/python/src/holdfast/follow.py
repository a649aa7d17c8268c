"""follow - reads each checkpoint of a run as it is committed.

    for version in holdfast.follow("llama", server=server):
        w = version["model.w"].torch()                # this version's, despite later saves

    for version in holdfast.follow("llama", {"model.w": numpy.s_[:128]}, "BF16"):
        use(version.weights["model.w"])               # read by one load, under one lease

Versions are ordered by (attempt, step) and never go back; a reader that is slower than the run
skips those between, and training never waits for it. A version is a committed checkpoint, so it is
never partial; its bytes come from ckptd's memory while they are there, and a lease keeps a
checkpoint until the read is over. A damaged one is logged and skipped. ckpt_newer() of libckpt
finds the next, as for `ckpt-cli follow`.
"""
from __future__ import annotations

import logging
import time
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple

from .checkpoint import Checkpoint
from .client import CheckpointInfo, Client, default_server, store_address
from .errors import BusyError, CorruptError, NotFoundError, TimeoutError, UnavailableError

_log = logging.getLogger("holdfast")


def newest(client: Client, after: Tuple[int, int], seconds: float) -> Optional[CheckpointInfo]:
    """The newest intact checkpoint of the run after (attempt, step), as soon as there is one, or
    None after `timeout` seconds."""
    try:
        return client.newer(after, seconds)
    except TimeoutError:
        return None


def follow(run: str, slices: Optional[Mapping[str, Any]] = None, dtype: Optional[str] = None, *,
           server: Optional[str] = None, store: Optional[str] = None,
           after: Tuple[int, int] = (0, 0), every: float = 0.2, timeout: Optional[float] = None,
           stop: Callable[[], bool] = lambda: False,
           into: Optional[Mapping[str, Any]] = None) -> Iterator[Checkpoint]:
    """Yields the newest checkpoint after (attempt, step) `after`, then the next, as they are
    committed. With `slices` ({name: index, ... for all of it}) these are read before, by one load,
    as `version.weights`, floats as `dtype`. With `into` ({name: array, tensor or Slice}) these
    are filled in place, too; while a version is read, and after one was skipped, their contents
    are undefined. Calls stop() each `every` seconds, and ends when it is true, or with
    TimeoutError when no version came for `timeout` seconds. Waits for a ckptd that is away.

    >>> next(follow("demo", server=server)).info.spec
    'demo@1-a1'
    >>> next(follow("demo", {"w": (0, slice(1, 3))}, "F32", server=server)).weights
    {'w': array([1., 2.], dtype=float32)}
    >>> w = numpy.zeros((2, 3))
    >>> next(follow("demo", server=server, into={"w": w})).step, float(w.sum())
    (1, 15.0)
    """
    address = store_address(store) if store is not None else server or default_server()
    client: Optional[Client] = None
    waited = time.monotonic()
    try:
        while not stop():
            try:
                client = client or Client(address, run, connect_seconds=1.0)
                info = newest(client, after, every)
                if info is not None:
                    try:
                        with Checkpoint(Client(address, run), info.step, info.attempt) as version:
                            version.weights = version.take(slices, dtype) if slices else {}
                            if into is not None:
                                version.load(into)
                            after = info.attempt, info.step
                            yield version
                        waited = time.monotonic()
                    except CorruptError as error:  # the next may be whole
                        after = info.attempt, info.step
                        _log.warning("%s is skipped: %s", info.spec, error)
                    continue
            except (UnavailableError, BusyError, NotFoundError):
                time.sleep(every)  # it restarts, or has removed the found one; poll again
            if timeout is not None and time.monotonic() - waited > timeout:
                raise TimeoutError(f"no checkpoint of {run} was committed within {timeout:g} s",
                                   "check that the run is training")
    finally:
        if client is not None:
            client.close()
