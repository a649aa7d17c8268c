"""follow - weights that flow: each committed checkpoint of a run, as it comes.

    for version in holdfast.follow("llama", server=server):
        w = version["model.w"].torch()                # this version's, whatever is saved meanwhile

Versions are ordered by (attempt, step) and never go back; a reader that is slower than the run
skips those between, and training never waits for it. A version is a committed checkpoint, so it is
never half there; its bytes come from ckptd's memory while they are there, and ckptd holds what is
being read (a lease) until the read is over.
"""
from __future__ import annotations

import time
from typing import Callable, Iterator, Optional, Tuple

from .checkpoint import Checkpoint
from .client import CheckpointInfo, Client, default_server
from .errors import BusyError, NotFoundError, TimeoutError, UnavailableError


def newest(client: Client, after: Tuple[int, int]) -> Optional[CheckpointInfo]:
    """The newest whole checkpoint of the run behind (attempt, step), or None."""
    try:
        infos = client.list()
    except NotFoundError:
        return None  # the run has not begun
    whole = [info for info in infos if not info.damage and (info.attempt, info.step) > after]
    return max(whole, key=lambda info: (info.attempt, info.step), default=None)


def follow(run: str, *, server: Optional[str] = None, store: Optional[str] = None,
           after: Tuple[int, int] = (0, -1), every: float = 0.2, timeout: Optional[float] = None,
           stop: Callable[[], bool] = lambda: False) -> Iterator[Checkpoint]:
    """Yields the newest checkpoint behind (attempt, step) `after`, then the next, as they are
    committed; looks each `every` seconds. Ends when stop() is true, or with TimeoutError when
    nothing came for `timeout` seconds. A ckptd that is away is waited for.

    >>> next(follow("demo", server=server)).info.spec
    'demo@1-a1'
    """
    address = f"dir:{store}" if store is not None else server or default_server()
    client: Optional[Client] = None
    waited = time.monotonic()
    try:
        while not stop():
            try:
                client = client or Client(address, run, connect_seconds=1.0)
                info = newest(client, after)
                if info is not None:
                    with Checkpoint(Client(address, run), info.step, info.attempt) as version:
                        after = info.attempt, info.step
                        yield version
                    waited = time.monotonic()
                    continue
            except (UnavailableError, BusyError, NotFoundError):
                pass  # it is restarted, or removed what was seen; the next look tells
            if timeout is not None and time.monotonic() - waited > timeout:
                raise TimeoutError(f"no checkpoint of {run} came within {timeout:g} s",
                                   "is the run being trained?")
            time.sleep(every)
    finally:
        if client is not None:
            client.close()
