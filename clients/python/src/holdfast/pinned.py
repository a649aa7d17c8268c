"""pinned - copies a tensor on a CUDA device into ckptd's memory by two page-locked buffers.

ckptd's memory is not page-locked for this process. The driver copies into such memory piece by
piece through internal buffers, and blocks the thread meanwhile. Here a separate stream fills one
buffer while the thread empties the other. A client allocates both at its first such save, keeps
them between saves, and frees them when it is closed. Simulated (tests/interop/dcp.py): no GPU ran
or timed it.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

PIECE_BYTES = 2 << 20  # of a buffer


def _page_locked(size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Pinned:
    """Used by one thread at a time."""

    def __init__(self) -> None:
        self._buffers: List[Any] = []
        self._streams: Dict[Any, Any] = {}

    def copy(self, memory: Any, raw: Any) -> None:
        """All bytes of `raw`, on a device, into an array of as many; returns when they are there.
        """
        if not self._buffers:
            self._buffers = [_page_locked(PIECE_BYTES) for _ in range(2)]
        stream = self._streams.get(raw.device)
        if stream is None:
            stream = self._streams[raw.device] = torch.cuda.Stream(raw.device)
        stream.wait_stream(torch.cuda.current_stream(raw.device))  # which may still make `raw`
        under_way: Optional[Tuple[Any, Any, Any]] = None
        for number, at in enumerate(range(0, memory.size, PIECE_BYTES)):
            target = memory[at:at + PIECE_BYTES]
            buffer = self._buffers[number % 2][:target.size]
            with torch.cuda.stream(stream):
                buffer.copy_(raw[at:at + target.size], non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
            _empty(under_way)
            under_way = event, target, buffer
        _empty(under_way)


def _empty(under_way: Optional[Tuple[Any, Any, Any]]) -> None:
    """Waits for a buffer and copies it to its place."""
    if under_way is not None:
        event, target, buffer = under_way
        event.synchronize()
        target[:] = buffer.numpy()
