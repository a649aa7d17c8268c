"""client - saving and loading through ckptd: holdfast.Client.

A client is one rank of a run (by default of a world of one). The first save opens an attempt and
describes the tensors; the next ones only copy, while names, types and shapes stay the same. Arrays
may have another address at each save. Each byte is copied once: from the array, or from its device,
into ckptd's memory.
"""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import operator
import os
import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy

from . import _lib, arrays, state_json
from .arrays import Part
from .errors import (AbortedError, ExistsError, GoesBackError, HoldfastError, InvalidError,
                     MismatchError, NotFoundError, misfit)

_log = logging.getLogger("holdfast")
LEVELS = {"accepted": 1, "local": 2, "replicated": 3, "bucket": 4}
# The step that this process has read of a run since it last saved one, by server and run.
_read: Dict[Tuple[str, str], int] = {}


def default_server() -> str:
    """HOLDFAST_SERVER, else ckptd's default address."""
    return os.environ.get("HOLDFAST_SERVER") or f"unix:/tmp/holdfast-{os.getuid()}/ckptd.sock"


def note_read(server: Optional[str], run: str, step: int) -> None:
    """Training continues from this step: a save of a step below the last one is then a rollback and
    no mistake (Client.is_rollback)."""
    _read[server or default_server(), run] = step


def store_address(store: str) -> str:
    """The `server` of Client for a store that is read without ckptd: a directory, optionally with
    "dir:" or "file://", or "s3://bucket/prefix".

    >>> store_address("/data/store"), store_address("s3://models/runs")
    ('dir:/data/store', 's3://models/runs')
    """
    if store.startswith("s3://"):
        return store
    return "dir:" + store.removeprefix("file://").removeprefix("dir:")


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """One line of a list: which checkpoint, how big, how durable.

    `damage`: why ckptd has quarantined it, or ""; `pin_note`: user and reason of its pin."""

    run: str
    step: int
    attempt: int
    nonce: str
    bytes: int
    time: str
    world_size: int
    durability: str
    in_memory: bool = False
    pinned: bool = False
    read_back: bool = False
    damage: str = ""
    pin_note: str = ""

    @property
    def spec(self) -> str:
        """The spec for holdfast.open()."""
        return f"{self.run}@{self.step}-a{self.attempt}"


def info_of(info: Any, **more: Any) -> CheckpointInfo:
    return CheckpointInfo(run=_lib.text(info.run), step=info.step, attempt=info.attempt,
                          nonce=_lib.text(info.nonce), bytes=info.bytes, time=_lib.text(info.time),
                          world_size=info.world_size, durability=_lib.text(info.durability),
                          in_memory=info.in_memory, **more)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The result of a load. `state` is that of the save; `skipped` has a line for each skipped
    newer checkpoint."""

    info: CheckpointInfo
    state: Any
    config: Any
    identity: Any
    data: Any
    skipped: List[str]
    bytes_memory: int
    bytes_local: int
    seconds: float

    @property
    def step(self) -> int:
        return self.info.step


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A checkpoint's contents: {stored name: (dtype, shape)}, and the data about its run."""

    info: CheckpointInfo
    tensors: Dict[str, Tuple[str, Tuple[int, ...]]]
    digests: Dict[str, Tuple[int, int]]
    state: Any
    config: Any
    identity: Any
    data: Any
    mesh: Any
    damage: str


class Save:
    """A save that has begun; wait() for it, or ignore it."""

    def __init__(self, client: "Client", step: int) -> None:
        self._client, self.step = client, step

    def wait(self, level: str = "local", timeout: float = 600.0) -> str:
        """Until the save is "accepted", "local", "replicated" or in the "bucket"; returns the
        level it has. Raises AbortedError when it failed, TimeoutError after `timeout` seconds."""
        return self._client.wait(self.step, level, timeout)


def _close(library: Any, handle: Any, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has the connection of its parent
        library.ckpt_close(handle)


class Client:
    """One rank's connection to ckptd.

    >>> with Client(server, run="doc") as client:              # the run appears with its first save
    ...     weights = {"w": numpy.arange(6.0).reshape(2, 3)}
    ...     client.save(1, weights, state={"epoch": 4}).wait()
    ...     weights["w"][:] = 0
    ...     loaded = client.load(weights)                      # in place; the newest step
    ...     loaded.step, loaded.state, float(weights["w"].sum())
    'local'
    (1, {'epoch': 4}, 15.0)

    Several ranks: rank 0 calls start() and sends its result to the others, which call
    start(attempt); then all save the same step, each its own `holdfast.Slice`s.
    """

    def __init__(self, server: Optional[str] = None, run: str = "default", rank: int = 0,
                 world_size: int = 1, *, connect_seconds: float = 10.0, busy_seconds: float = 0.0,
                 describe_seconds: float = 60.0, config: Any = None, data: Any = None,
                 mesh: Any = None, identity: Any = None, take_over: bool = False) -> None:
        self.server, self.run = server or default_server(), run
        self.rank, self.world_size = rank, world_size
        self.attempt = 0
        self.newest_begun = -1  # step of the attempt; -1: none
        self._is_behind = False  # of a rollback that took no attempt yet
        self._about = {"config_json": config, "data_json": data, "mesh_json": mesh,
                       "identity_json": identity}
        self._take_over = take_over
        self._described: Optional[List[Part]] = None  # None: nothing; a rank may have no tensors
        self._objects: Dict[str, Any] = {}  # name: the buffer that is described
        self._pinned: Any = None  # pinned.Pinned, from the first tensor on a CUDA device on
        self._opened = ctypes.c_void_p()
        options = _lib.Options(self.server.encode(), run.encode(), rank, world_size,
                               int(connect_seconds * 1000), int(describe_seconds * 1000),
                               int(busy_seconds * 1000))
        self._lib = _lib.libckpt()
        _lib.check(self._lib.ckpt_open(_lib.byref(self._opened), _lib.byref(options)))
        self._closer = weakref.finalize(self, _close, self._lib, self._opened, os.getpid())
        self._closer.atexit = False  # a thread may be in a call then

    def close(self) -> None:
        """Saves still become durable. A client without references is closed, too."""
        self._closer()
        self._pinned = None

    @property
    def _handle(self) -> Any:
        if not self._closer.alive:
            raise InvalidError(f"the client of run {self.run} is closed", "open another one")
        return self._opened

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- attempts ----

    def start(self, attempt: Optional[int] = None) -> int:
        """Rank 0 opens a new attempt of the run, durably; other ranks pass its number."""
        if attempt is None:
            if self.rank != 0:
                raise InvalidError(f"rank {self.rank} has no attempt to start",
                                   "rank 0 calls start() and broadcasts the number")
            number, options = ctypes.c_uint64(), _lib.AttemptOptions()
            take_over = self._take_over or self.attempt > 0  # from itself
            for name, value in self._about.items():
                if value is not None:
                    setattr(options, name, state_json.dumps(value, name[:-5]).encode())
            _lib.check(self._lib.ckpt_attempt_take(self._handle, _lib.byref(number), None,
                                                   _lib.byref(options), int(take_over)))
            attempt = number.value
        self.attempt, self._described = attempt, None
        self.newest_begun, self._is_behind = -1, False
        return attempt

    def note_begun(self, step: int) -> None:
        """The attempt has this step, here or in the files of a fallback."""
        self._is_behind = self.is_rollback(step)  # of files: ckptd's attempt is not new yet
        self.newest_begun = step
        _read.pop((self.server, self.run), None)

    def is_rollback(self, step: int) -> bool:
        """Has this process gone back, to a checkpoint that it read since its last save, so that
        `step` is repeated? Then it belongs to a new attempt."""
        read = _read.get((self.server, self.run))
        return self._is_behind or read is not None and (
            read <= step < self.newest_begun or read < step == self.newest_begun)

    def has_step(self, step: int, error: HoldfastError) -> bool:
        """Does the error of a save mean that the attempt has this very step already?"""
        return isinstance(error, ExistsError) and step == self.newest_begun

    def goes_back(self, step: int, newest: int) -> GoesBackError:
        return GoesBackError(
            f"step {step} of run {self.run} goes back: its attempt has begun step {newest}",
            "steps of an attempt only grow. After a rollback load the step that training goes on "
            "from, or take a new attempt: start() of every rank's Client, rollback() of a Session")

    # ---- saving ----

    def save(self, step: int, tensors: Mapping[str, Any], state: Any = None,
             objects: Optional[Mapping[str, bytes]] = None, last: bool = False) -> Save:
        """Copies `tensors` (name: array, tensor or Slice) into ckptd's memory and returns: they may
        change then. ckptd makes them durable and commits them as a whole.

        `state` is anything that JSON has, and NaN and infinities (state_json.py), at most 1 MiB, of
        rank 0. `objects` are bytes by name. Raises BusyError, UnavailableError and others when
        nothing was saved: training may continue. InvalidError: it can never be saved, for example
        when a single rank has nothing to save. GoesBackError: the step is below the last one,
        unless this process has loaded one below it since: then a single rank opens a new attempt.
        `last`: the run ends with it (note_last()).

        >>> w = numpy.ones((4, 3), "float32")                      # [4, 3]
        >>> with Client(server, "saved") as client:
        ...     client.save(7, {"w": w, "lr": 0.1}, {"epoch": 1}, {"loader": b"seen 64"}).wait()
        'local'
        """
        try:
            parts = [arrays.part(name, value) for name, value in tensors.items()]
            if last:
                self.note_last()
            return self.save_parts(step, parts, state, objects)
        except HoldfastError as error:
            self.tell_failed(step, error)
            raise

    def note_last(self) -> None:
        """Later saves of this client are the last of its run; all ranks call this. While ckptd's
        memory is short they get images before the saves of other runs."""
        self._lib.ckpt_save_last(self._handle)

    def tell_failed(self, step: Any, error: HoldfastError) -> None:
        """Tells ckptd, for its status, of a save that failed here; not of one that ckptd refused,
        and not a ckptd that is away."""
        if self._closer.alive and not self.has_step(step, error) and isinstance(
                error, (InvalidError, ExistsError, AbortedError, MismatchError)):
            with contextlib.suppress(InvalidError):  # it may be no step
                self._lib.ckpt_save_failed(self._handle, _step(step), str(error).encode())

    def save_parts(self, step: int, parts: List[Part], state: Any = None,
                   objects: Optional[Mapping[str, bytes]] = None) -> Save:
        step = _step(step)
        if self.world_size == 1 and not parts and not objects and state is None:
            raise InvalidError(f"step {step} has nothing to save: no tensors, state or objects",
                               "give some: an empty checkpoint would become the newest")
        text = (state_json.dumps({} if state is None else state).encode() if self.rank == 0
                else None)
        if self.world_size == 1 and self.is_rollback(step):
            self.start()
        elif step < self.newest_begun:
            raise self.goes_back(step, self.newest_begun)
        parts = parts + [self._object_part(name, value) for name, value in (objects or {}).items()]
        self._describe(parts)
        save = ctypes.c_void_p()
        _lib.check(self._lib.ckpt_save_begin(self._handle, _lib.byref(save), step, text))
        self.note_begun(step)
        try:
            for place in range(len(parts)):
                index = self._lib.ckpt_save_order(self._handle, place)
                if parts[index].on_device:
                    self._fill(save, index, parts[index])
                else:
                    self._lib.ckpt_save_copy(save, index)  # a failure is kept for the end
        except BaseException:
            self._lib.ckpt_save_abort(save)
            raise
        _lib.check(self._lib.ckpt_save_end(save))
        return Save(self, step)

    def wait(self, step: int, level: str = "local", timeout: float = 600.0) -> str:
        if level not in LEVELS:
            raise InvalidError(f"there is no level {level!r}", f"one of {', '.join(LEVELS)}")
        _lib.check(self._lib.ckpt_save_wait_for(self._handle, _step(step), LEVELS[level],
                                                int(timeout * 1000)))
        return _lib.text(self._lib.ckpt_save_durability(self._handle))

    @property
    def warning(self) -> str:
        """A warning about the committed save of the last wait(), or ""."""
        return _lib.text(self._lib.ckpt_save_warning(self._handle))

    def describes(self, parts: Sequence[Part], objects: Mapping[str, bytes]) -> bool:
        """Would a save of these need no new description?"""
        described = self._described or []
        known = {piece.name for piece in described}
        return ([piece.key for piece in described if not piece.name.startswith(arrays.OBJECT)]
                == [piece.key for piece in parts]
                and {name for name in known if name.startswith(arrays.OBJECT)}
                == {arrays.OBJECT + arrays.stored_name(name) for name in objects}
                and all(self._has_room(name, value) for name, value in objects.items()))

    def _describe(self, parts: List[Part]) -> None:
        described = self._described
        if described is not None and [one.key for one in described] == [one.key for one in parts]:
            for index, piece in enumerate(parts):
                if piece.pointer != described[index].pointer:
                    data = None if piece.on_device else piece.pointer
                    _lib.check(self._lib.ckpt_move(self._handle, index, data))
            self._described = parts
            return
        if described is not None and self.world_size > 1:
            raise MismatchError(
                "the tensors of this save differ from those of the previous save: "
                + _first_change(described, parts),
                "call start() again on every rank, with one attempt")
        if self.attempt == 0 or described is not None:
            self.start()
        _lib.check(self._lib.ckpt_describe_arrays(self._handle, self.attempt,
                                                  arrays.describe(parts), len(parts)))
        self._described = parts

    def _fill(self, save: Any, index: int, piece: Part) -> None:
        source = piece.source if hasattr(piece.source, "fill") else _Torch(self, piece.source)
        self._sample(save, index, source)
        place = _lib.Place(size=_lib.sizeof(_lib.Place))
        at = 0
        while True:
            if self._lib.ckpt_save_place(save, index, at, _lib.byref(place)) or not place.bytes:
                return
            memory = (ctypes.c_uint8 * place.bytes).from_address(place.to)
            source.fill(numpy.frombuffer(memory, numpy.uint8), place.from_byte)
            self._lib.ckpt_save_announce(save, _lib.byref(place))
            at = place.from_byte + place.bytes

    def _page_locked(self) -> Any:
        if self._pinned is None:
            from .pinned import Pinned
            self._pinned = Pinned()
        return self._pinned

    def _sample(self, save: Any, index: int, source: Any) -> None:
        """Where other ranks hold it, too: the bytes by which ckptd compares them."""
        spans, count = (_lib.Span * _lib.SAMPLE_MAX)(), ctypes.c_uint32()
        if self._lib.ckpt_save_sample(save, index, spans, _lib.byref(count)) or not count.value:
            return
        places = [(span.from_byte, span.bytes) for span in spans[:count.value]]
        if hasattr(source, "sample"):
            memory = source.sample(places)
        else:
            memory, end = numpy.empty(sum(size for _, size in places), numpy.uint8), 0
            for at, size in places:
                source.fill(memory[end:end + size], at)
                end += size
        self._lib.ckpt_save_sampled(save, index, memory.ctypes.data)

    # ---- bytes objects (clients/ckpt.h, ckpt_object_set) ----

    def _has_room(self, name: str, value: bytes) -> bool:
        buffer = self._objects.get(name)
        return buffer is not None and self._lib.ckpt_object_set(
            _lib.byref(_object(name, buffer)), bytes(value), len(value)) == 0

    def _object_part(self, name: str, value: bytes) -> Part:
        if not self._has_room(name, value):
            self._objects[name] = numpy.zeros(self._lib.ckpt_object_room(len(value)), numpy.uint8)
        buffer, array = self._objects[name], _lib.Array()
        wrapped = _object(name, buffer)
        _lib.check(self._lib.ckpt_object_describe(_lib.byref(wrapped), _lib.byref(array)))
        _lib.check(self._lib.ckpt_object_set(_lib.byref(wrapped), bytes(value), len(value)))
        return Part(_lib.text(array.name), "U8", buffer.shape, (0,), buffer.shape,
                    buffer.ctypes.data, buffer)

    # ---- loading ----

    def load(self, tensors: Mapping[str, Any], step: Optional[int] = None, *, attempt: int = 0,
             below_step: int = 0) -> Loaded:
        """Fills `tensors` (name: array, tensor or Slice) in place from a checkpoint, the newest
        without `step`. Any slices, saved by any ranks; every byte is verified.
        Without `step` a damaged checkpoint is logged, and the one before it is loaded; by one of
        several ranks (`world_size`) it is a CorruptError, and every rank loads again.

        >>> rows = numpy.zeros((2, 3), "float32")                  # [2, 3] of w [4, 3]
        >>> with Client(server, "llama") as client:
        ...     client.load({"w": arrays.Slice(rows, shape=(4, 3), offset=(2, 0))}, step=7).step
        7
        >>> float(rows.sum())
        6.0
        """
        return self.load_parts([arrays.part(name, value, writable=True)
                                for name, value in tensors.items()], step, attempt, below_step)

    def load_parts(self, parts: List[Part], step: Optional[int] = None, attempt: int = 0,
                   below_step: int = 0) -> Loaded:
        staged = [_Staged(piece) for piece in parts if piece.on_device]
        given = iter(staged)
        listed = [next(given).part if piece.on_device else piece for piece in parts]
        request = _lib.LoadRequest(_lib.sizeof(_lib.LoadRequest), len(parts),
                                   _wanted(step), below_step, attempt, arrays.describe(listed))
        found = ctypes.POINTER(_lib.Loaded)()
        code = self._lib.ckpt_load_arrays(self._handle, _lib.byref(request), _lib.byref(found))
        if code in (MismatchError.code, NotFoundError.code):
            self._explain(_lib.error(code), parts, step, attempt)
        _lib.check(code)
        try:
            result = _loaded_of(found.contents)
        finally:
            self._lib.ckpt_loaded_free(found)
        note_read(self.server, self.run, result.step)
        for piece in staged:
            piece.give()
        for line in result.skipped if step is None else []:
            _log.warning("run %s: step %s was loaded; skipped %s", self.run, result.step,
                         line)
        return result

    def _explain(self, error: Exception, parts: List[Part], step: Optional[int],
                 attempt: int) -> None:
        """Adds the first ten differences to the error of a load that does not fit."""
        try:
            metadata = self.metadata(step, attempt)
        except NotFoundError:
            raise error from None
        lines = arrays.differences(parts, metadata.tensors)
        if not lines:
            raise error
        raise misfit(metadata.info.spec, lines)

    # ---- catalog ----

    def metadata(self, step: Optional[int] = None, attempt: int = 0) -> Metadata:
        """Names, types and shapes of a checkpoint of the run, and its state.

        >>> with Client(server, "llama") as client:
        ...     found = client.metadata(7)
        >>> found.tensors["w"], found.tensors["lr"], found.state
        (('F32', (4, 3)), ('F64', ()), {'epoch': 1})
        """
        found = ctypes.POINTER(_lib.Metadata)()
        _lib.check(self._lib.ckpt_metadata(self._handle, _wanted(step), attempt,
                                           _lib.byref(found)))
        try:
            return _metadata_of(found.contents)
        finally:
            self._lib.ckpt_metadata_free(found)

    def list(self, all_runs: bool = False) -> "list[CheckpointInfo]":
        """The checkpoints of the run, or of all runs, newest first within each.

        >>> with Client(server, "llama") as client:
        ...     [(info.spec, info.durability) for info in client.list()]
        [('llama@7-a1', 'local')]
        """
        found = ctypes.POINTER(_lib.List)()
        _lib.check(self._lib.ckpt_list(self._handle, all_runs, _lib.byref(found)))
        try:
            return [info_of(entry.info, pinned=entry.pinned, read_back=entry.read_back,
                            damage=_lib.text(entry.damage), pin_note=_lib.text(entry.pin_note))
                    for entry in found.contents.entries[:found.contents.num_entries]]
        finally:
            self._lib.ckpt_list_free(found)

    def newer(self, after: Tuple[int, int], timeout: float = 0.0) -> CheckpointInfo:
        """The newest intact checkpoint of the run after (attempt, step) `after`; waits for it at
        most `timeout` seconds, then raises TimeoutError."""
        found = _lib.Info()
        _lib.check(self._lib.ckpt_newer(self._handle, *after, int(timeout * 1000),
                                        _lib.byref(found)))
        return info_of(found)

    def pin(self, step: int, attempt: int, note: str = "") -> None:
        """Keeps a checkpoint from being pruned until unpin().

        >>> with Client(server, "llama") as client:
        ...     client.pin(7, attempt=1, note="published")
        ...     client.list()[0].pinned, client.unpin(7, attempt=1), client.list()[0].pinned
        (True, None, False)
        """
        _lib.check(self._lib.ckpt_pin(self._handle, _step(step), attempt, note.encode()))

    def unpin(self, step: int, attempt: int) -> None:
        _lib.check(self._lib.ckpt_pin(self._handle, _step(step), attempt, None))


def _step(step: Any) -> int:
    """A whole number of any type, NumPy's and torch's too."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise InvalidError(f"{step!r} is not a step", "a whole number, 0 or more")
    return number


def _wanted(step: Any) -> int:
    return _lib.NEWEST if step is None else _step(step)


def _first_change(old: List[Part], new: List[Part]) -> str:
    for before, now in zip(old, new):
        if before.key != now.key:
            return f"{before.name} {list(before.shape)} and {now.name} {list(now.shape)}"
    return f"{len(old)} tensors and {len(new)}"


class _Torch:
    """The bytes of a torch tensor on a device."""

    def __init__(self, client: Client, source: Any) -> None:
        import torch

        self.client, self.raw = client, source.reshape(-1).view(torch.uint8)

    def fill(self, memory: Any, at: int) -> None:
        import torch

        raw = self.raw[at:at + memory.size]
        if raw.is_cuda:
            self.client._page_locked().copy(memory, raw)
        else:
            torch.from_numpy(memory).copy_(raw)

    def sample(self, places: Sequence[Tuple[int, int]]) -> Any:
        """Copies the samples together, by one transfer."""
        import torch

        return torch.cat([self.raw[at:at + size] for at, size in places]).cpu().numpy()


class _Staged:
    """A load into a device: through memory of the host."""

    def __init__(self, piece: Part) -> None:
        self.wanted = piece
        self.memory = numpy.empty(max(piece.nbytes, 1), numpy.uint8)
        self.part = Part(piece.name, piece.dtype, piece.shape, piece.offset, piece.extent,
                         self.memory.ctypes.data, self.memory)

    def give(self) -> None:
        import torch

        if self.wanted.nbytes > 0:
            raw = self.wanted.source.reshape(-1).view(torch.uint8)
            raw.copy_(torch.from_numpy(self.memory))


def _object(name: str, memory: "numpy.ndarray[Any, Any]") -> Any:
    return _lib.Object(size=_lib.sizeof(_lib.Object), name=arrays.stored_name(name).encode(),
                       memory=memory.ctypes.data, room=memory.size)


def object_bytes(name: str, memory: "numpy.ndarray[Any, Any]") -> bytes:
    """The object in the bytes of its U8 tensor."""
    data, length = ctypes.c_void_p(), ctypes.c_uint64()
    _lib.check(_lib.libckpt().ckpt_object_get(_lib.byref(_object(name, memory)),
                                              _lib.byref(data), _lib.byref(length)))
    return ctypes.string_at(data, length.value)


def _json(value: Optional[bytes]) -> Any:
    return state_json.loads(_lib.text(value) or "{}")


def _loaded_of(found: Any) -> Loaded:
    return Loaded(info=info_of(found.info), state=_json(found.state_json),
                  config=_json(found.config_json), identity=_json(found.identity_json),
                  data=_json(found.data_json),
                  skipped=_lib.text(found.skipped).splitlines(),
                  bytes_memory=found.bytes_memory, bytes_local=found.bytes_local,
                  seconds=found.seconds)


def _metadata_of(found: Any) -> Metadata:
    tensors, digests = {}, {}
    for entry in found.tensors[:found.num_tensors]:
        name = _lib.text(entry.name)
        tensors[name] = _lib.text(entry.dtype), tuple(entry.shape[:entry.dims])
        digests[name] = tuple(entry.digest)
    damage = _lib.text(found.damage)
    return Metadata(info=info_of(found.info, damage=damage), tensors=tensors, digests=digests,
                    state=_json(found.state_json), config=_json(found.config_json),
                    identity=_json(found.identity_json), data=_json(found.data_json),
                    mesh=_json(found.mesh_json), damage=damage)
