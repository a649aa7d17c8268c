"""lib_streams - streams of CUDA, simulated on the CPU for dcp.py: copies that are late, or early.

A late copy happens when a caller waits for an event after it, and not before; an early one when it
is queued. So a read that comes too soon, or a buffer that is reused too soon, gives wrong bytes.
"""
import contextlib
from unittest import mock

import torch


class Queued:
    """Simulated streams."""

    def __init__(self, is_late):
        self.is_late = is_late
        self.queue, self.current, self.locked, self.most = [], None, [], 0

    def Stream(self, device):
        return self

    def wait_stream(self, stream):
        self.waited = stream

    @contextlib.contextmanager
    def stream(self, stream):
        self.current = stream
        yield
        self.current = None

    def Event(self):
        class Event:
            def record(event, stream):
                event.behind = len(stream.queue)

            def synchronize(event):
                for copy in self.queue[:event.behind]:
                    copy()
                self.queue[:event.behind] = [lambda: None] * event.behind
        return Event()

    def lock(self, size):
        streams = self

        class Buffer:
            def __init__(self, memory):
                self.memory = memory

            def __getitem__(self, place):
                return Buffer(self.memory[place])

            def copy_(self, source, non_blocking):
                assert non_blocking and streams.current is streams and source.device.index == 1
                if streams.is_late:
                    streams.queue.append(lambda: self.memory.copy_(source.memory))
                else:
                    self.memory.copy_(source.memory)
                streams.most = max(streams.most, self.memory.numel())

            def numpy(self):
                return self.memory.numpy()

        self.locked.append(size)
        return Buffer(torch.zeros(size, dtype=torch.uint8))

    @contextlib.contextmanager
    def in_place_of_cuda(self, pinned):
        """And of `pinned`'s page-locked memory, which needs CUDA."""
        with contextlib.ExitStack() as patches:
            for name in ("Stream", "stream", "Event"):
                patches.enter_context(mock.patch.object(torch.cuda, name, getattr(self, name)))
            patches.enter_context(mock.patch.object(
                torch.cuda, "current_stream", lambda device: ("makes", device)))
            patches.enter_context(mock.patch.object(pinned, "_page_locked", self.lock))
            yield


class OnDevice:
    """Bytes that claim to be on the second device."""

    is_cuda, device = True, torch.device("cuda", 1)

    def __init__(self, memory):
        self.memory = memory

    def __getitem__(self, place):
        return OnDevice(self.memory[place])

    def reshape(self, size):
        return OnDevice(self.memory.reshape(size))

    def view(self, dtype):
        return OnDevice(self.memory.view(dtype))
