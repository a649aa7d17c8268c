"""holdfast.dcp - torch.distributed.checkpoint through ckptd.

    session = holdfast.dcp.Session(run="llama")                   # once, on every rank

    dcp.save(state_dict, storage_writer=session.writer(step))     # returns when it is durable
    dcp.async_save(state_dict, storage_writer=session.writer(step),
                   async_stager=session.stager(step))             # copies once, into ckptd's memory
    dcp.load(state_dict, storage_reader=session.reader())         # the newest; reader(step) another

dcp.async_save communicates with all ranks in a thread, so wait for one before the next;
holdfast.dcp.async_save does not, and its saves overlap. A save that was copied commits even if
every process is killed. Loads request exactly the slices of this rank, and ckptd reshards. A save
that fails is logged and training continues, within limits (saving.py); dcp.async_save's future
fails. With `fallback` such a save is written as DCP's own files, and loads use the newest of both.
Python objects are stored as torch.save writes them. They are loaded only if
torch.load(weights_only=True) accepts them, unless reader(allow_pickle=True) is used.

Of DCP's protocol it uses the planner's items, which describe the rank's data. A planner that
changes values (resolve_data) works only with a writer, not with a stager, which copies before DCP
plans. SavePlanner saves a DTensor with several boxes (boxes.py).
"""
from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from concurrent.futures import Future as ThreadFuture
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                   Metadata, TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan, LoadPlanner, SavePlan,
                                                  SavePlanner, WriteItemType)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import dtypes, kept, sharded
from .boxes import Filling, SavePlanner, is_split
from .client import Client, LEVELS, note_read
from .errors import (AbortedError, CorruptError, HoldfastError, InvalidError, NotFoundError,
                     UnavailableError, misfit)
from .fallback import Files
from .saving import MAX_FAILURES, Outcome, Saves, Told
from .sharded import Item, Saver, Stored

_log = logging.getLogger("holdfast")
_ID = re.compile(r"(?:.*[/@])?(?:(?:step|checkpoint)[-_]?)?(?P<step>\d+)/?$")
Id = Union[str, "os.PathLike[str]", None]


def step_of(checkpoint_id: Id) -> int:
    """The step that a checkpoint's id ends with.

    >>> step_of("llama/step-12"), step_of("llama@12"), step_of("/out/checkpoint_12")
    (12, 12, 12)
    """
    match = _ID.match(os.fspath(checkpoint_id)) if checkpoint_id is not None else None
    if match is None:
        raise InvalidError(f"checkpoint_id {checkpoint_id!r} does not end with a step",
                           "such as run/step-12, or give the step to writer(), stager(), reader()")
    return int(match["step"])


class Session(Saves):
    """A job's connection to ckptd; made once, by every rank of `process_group`. saving.py handles
    failed saves.

    Its ranks communicate through a separate gloo group: one small gather for each save. `fallback`
    is a directory for DCP's own files when ckptd does not run, or has no space, at the start or
    later; `alone` is for one process of a group that saves by itself.
    """

    def __init__(self, run: str, server: Optional[str] = None, *, process_group: Any = None,
                 wait: Optional[str] = "local", timeout: float = 600.0, on_failure: str = "warn",
                 max_failures: Optional[int] = MAX_FAILURES, fallback: Optional[str] = None,
                 alone: bool = False, take_over: bool = False, **options: Any) -> None:
        if on_failure not in ("warn", "raise"):
            raise InvalidError(f"on_failure {on_failure!r}", '"warn" or "raise"')
        if wait is not None and wait not in LEVELS:
            raise InvalidError(f"there is no level {wait!r}", f"one of {', '.join(LEVELS)}")
        if max_failures is not None and (type(max_failures) is not int or max_failures < 0):
            raise InvalidError(f"max_failures {max_failures!r}", "a number; 0: no limit")
        self._group: Any
        self._group, self.rank, self.world_size = (
            (None, 0, 1) if alone else _own_group(process_group))
        files = None
        if fallback is not None:
            files = Files(fallback, None if alone else _own_group(process_group)[0],
                          lambda: self.saver.client.attempt if self.saver is not None else 0)
        failed: Optional[HoldfastError] = None
        saver: Optional[Saver] = None
        try:
            saver = Saver(server, run, self.rank, self.world_size, self._tell_all,
                          take_over=take_over, **options)
        except UnavailableError as error:
            failed = error
        errors = [error for error in self._tell_all(failed) if error is not None]
        if errors and files is None:
            raise errors[0]
        if errors:
            _log.warning("no ckptd, so DCP's files go to %s: %s", fallback, errors[0])
            saver = None
        super().__init__(run, server, saver, self._tell_all, wait=wait, timeout=timeout,
                         on_failure=on_failure, max_failures=max_failures, files=files)

    def _tell_all(self, value: Any) -> List[Any]:
        if self._group is None:
            return [value]
        values: List[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def writer(self, step: Optional[int] = None, state: Any = None) -> StorageWriter:
        """For dcp.save and dcp.async_save. `state` is JSON that is stored with the step."""
        return Writer(self, step, state)

    def stager(self, step: int, overlap: bool = False, state: Any = None,
               planner: Optional[SavePlanner] = None) -> AsyncStager:
        """For dcp.async_save, with writer(step). With `overlap` the copy runs in a thread: wait for
        the result's staging_completion before the tensors change."""
        return Stager(self, step, overlap, state, planner)

    def reader(self, step: Optional[int] = None, *, attempt: int = 0,
               allow_pickle: bool = False) -> StorageReader:
        """For dcp.load: of a step, or of the newest checkpoint."""
        found = self._find(step) if self.files is not None else None
        if found is not None and found.is_file:
            note_read(self.server, self.run, found.step)
            return self.files.reader(found.step)
        return Reader(self.run, self.server, step, attempt=attempt, allow_pickle=allow_pickle)

    def find(self, step: Optional[int] = None) -> Optional[int]:
        """The step that reader(step) reads; None: there is none."""
        found = self._find(step)
        return found.step if found is not None else None

    def find_for_all(self, step: Optional[int] = None) -> Optional[int]:
        """Rank 0's result, on all ranks, which call this together."""
        found: Any = None
        if self.rank == 0:
            try:
                found = self.find(step)
            except Exception as error:  # sent to all, and raised by all
                found = error
        found = self._tell_all(found)[0]
        if isinstance(found, Exception):
            raise found
        return found

    def _find(self, step: Optional[int]) -> Optional[kept.Kept]:
        return kept.find(self.run, self.server,
                         self.files.folder if self.files is not None else None, step)


class Later:
    """A Session that is made at the first save or load, by all ranks; see Session's arguments."""

    def __init__(self, run: str, server: Optional[str], options: Dict[str, Any]) -> None:
        self.run, self.server, self.options = run, server, options
        self._session: Optional[Session] = None

    def open(self, **more: Any) -> Session:
        if self._session is None:
            self._session = Session(self.run, self.server, **{**more, **self.options})
        return self._session

    def close(self) -> None:
        """Waits for the last save."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _own_group(process_group: Any) -> Tuple[Any, int, int]:
    if not dist.is_available() or not dist.is_initialized():
        return None, 0, 1
    ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
    if len(ranks) == 1:
        return None, 0, 1
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return group, dist.get_rank(group), len(ranks)


# ---- saving ----


def _resolve(plan_items: Any, planner: SavePlanner) -> Tuple[List[Item], Dict[str, bytes]]:
    items, objects = [], {}
    for item in plan_items:
        value = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            assert isinstance(value, io.BytesIO)
            objects[item.index.fqn] = value.getvalue()
            continue
        data = item.tensor_data
        items.append(Item(item.index.fqn, tuple(data.size), tuple(data.chunk.offsets),
                          value.detach(), item.type == WriteItemType.SHARD))
    return items, objects


def _paths(planner_data: Any) -> Any:
    """DCP's mapping from flat names to the nested state dict, for JSON."""
    if not isinstance(planner_data, dict):
        return None
    return {"paths": {name: list(path) for name, path in planner_data.items()}}


def _is_in_async_save() -> bool:
    """Is this the thread of dcp.async_save? DCP passes no such information to the writer, but a
    pool of threads runs DCP's own function there, before torch 2.7 dcp.save itself."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "concurrent.futures.thread":
            item = frame.f_locals.get("self")
            run = getattr(item, "fn", None) or next(iter(getattr(item, "task", ())), None)
            if getattr(run, "__module__", "").startswith("torch.distributed.checkpoint"):
                return True
        frame = frame.f_back
    return False


class Writer(StorageWriter):
    """Of one step; see Session.writer(). A save that is lost fails the future of dcp.async_save;
    dcp.save logs it."""

    def __init__(self, session: Session, step: Optional[int], state: Any) -> None:
        self.session, self.step, self.state = session, step, state
        self._items: Any = []
        self._about: Any = None
        self._files: Any = None  # DCP's writer, of a save that falls back
        self._is_coordinator = self._is_async = self._is_durable = False

    def reset(self, checkpoint_id: Id = None) -> None:
        if self.step is None or checkpoint_id is not None:
            self.step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._is_coordinator = is_coordinator
        if not kwargs.get("use_collectives", True) and self.session.world_size > 1:
            raise InvalidError("holdfast.dcp saves what all ranks have as one checkpoint",
                               "use_collectives=True")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if getattr(plan, "usable", True):
            self._items, self._about = plan.items, _paths(plan.planner_data)
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        files = self.session.files
        assert self.step is not None
        return plans if files is None else files.writer(self.step).prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        assert self.step is not None
        session = self.session
        outcome = session.saved.pop(self.step, None)
        self._is_async = outcome is not None or _is_in_async_save()
        if outcome is None:
            with self._keeping_unseen():
                outcome = self._save(self._items or plan.items, planner)
        if outcome == Outcome.FILES and session.files is not None:
            session.streak.note(self.step, True)
            self._files = session.files.writer(self.step)
            return self._files.write_data(self._files.prepare_local_plan(plan), planner)
        good = outcome == Outcome.SAVED
        if good and not self._is_coordinator:  # which waits until the step is durable
            session.streak.note(self.step, True)
        result = [WriteResult(item.index, 0, None) for item in plan.items] if good else []
        why = "" if good else session.reasons.pop(self.step, "")
        future: "Future[List[WriteResult]]" = Future()
        future.set_result(result + [WriteResult(None, 0, (good, why))])  # type: ignore[arg-type]
        return future

    def _save(self, items: Any, planner: SavePlanner) -> Outcome:
        assert self.step is not None
        outcome = self.session.save(self.step, *_resolve(items, planner), self.state, self._about)
        if outcome == Outcome.SAVED and self.session.files is not None:
            outcome = self.session.keep_or_finish(self.step)  # while the state is still here
            self._is_durable = outcome == Outcome.SAVED
        return outcome

    @contextlib.contextmanager
    def _keeping_unseen(self) -> Iterator[None]:
        """An error that ends the run also reaches a program that ignores DCP's future."""
        try:
            yield
        except HoldfastError as error:
            if self._is_async:
                self.session.keep_unseen(error)
            raise

    def _tell_bad(self, bad: Mapping[int, str]) -> HoldfastError:
        failed = AbortedError(f"step {self.step} was not saved by ranks {sorted(bad)}, so by none: "
                              f"{next(filter(None, bad.values()), '')}")
        assert self.step is not None
        if self.session.rank in bad:  # it has counted that
            _log.warning("%s", failed)
        else:
            self.session.failed(self.step, failed, f"step {self.step} was not saved")
        return failed

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        assert self.step is not None
        if self._files is not None:
            self._files.finish(metadata, results)
            return
        bad = {rank: result[-1].storage_data[1] for rank, result in enumerate(results)
               if not result[-1].storage_data[0]}
        failed: Optional[HoldfastError] = None
        with self._keeping_unseen():
            if bad:
                failed = self._tell_bad(bad)
            elif not self._is_durable:
                failed = self.session.finish(self.step)
        if failed is not None and self._is_async:
            raise failed

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return checkpoint_id is not None and _ID.match(os.fspath(checkpoint_id)) is not None


def _waits_for_devices(items: List[Item]) -> Callable[[], None]:
    """A function for a thread to call before it copies these tensors: it returns when the work that
    the caller's streams have queued on their devices until now is done."""
    events = []
    for device in {item.tensor.device for item in items if item.tensor.is_cuda}:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        events.append(event)

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def _planner_of_dcp() -> Optional[SavePlanner]:
    """The planner argument of dcp.async_save, which DCP passes to the writer but not to a stager.
    Its default does not support tensors with several boxes."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
            frame.f_code.co_name != "async_save"
            or frame.f_globals.get("__name__") != "torch.distributed.checkpoint.state_dict_saver"):
        frame = frame.f_back
    planner = frame.f_locals.get("planner") if frame is not None else None
    return None if type(planner) is DefaultSavePlanner else planner


class Stager(AsyncStager):
    """Copies a state dict into ckptd's memory and ends the save: what DCP does after that changes
    nothing any more. See Session.stager()."""

    def __init__(self, session: Session, step: int, overlap: bool, state: Any,
                 planner: Optional[SavePlanner]) -> None:
        self.session, self.step, self.overlap, self.state = session, step, overlap, state
        self._planner = planner
        self._future: Optional[Told] = None

    @property
    def should_synchronize_after_execute(self) -> bool:
        return not self.overlap

    def copy_later(self, state_dict: Any) -> Told:
        planner = self._planner or _planner_of_dcp() or SavePlanner()
        planner.set_up_planner(state_dict, is_coordinator=self.session.rank == 0)
        plan = planner.create_local_plan()
        items, objects = _resolve(plan.items, planner)  # objects as they are now
        about = _paths(plan.planner_data)
        self._future = self.session.copy_later(self.step, items, objects, self.state, about,
                                               state_dict, _waits_for_devices(items))
        return self._future

    def stage(self, state_dict: Any, **_: Any) -> Any:
        copy = self.copy_later(state_dict)
        return copy.for_torch() if self.overlap else copy.result()

    def synchronize_staging(self) -> None:
        if self._future is not None:
            self._future.result()

    def close(self) -> None:
        self.synchronize_staging()


# ---- loading ----


class Reader(StorageReader):
    """Of one checkpoint; see Session.reader(). Needs no session: any process may read."""

    def __init__(self, run: str, server: Optional[str] = None, step: Optional[int] = None, *,
                 attempt: int = 0, allow_pickle: bool = False) -> None:
        self.client = Client(server, run)
        self.step, self.attempt, self.allow_pickle = step, attempt, allow_pickle
        self.found: Any = None
        self.tensors: Dict[str, Stored] = {}
        self.objects: Dict[str, bytes] = {}

    def reset(self, checkpoint_id: Id = None) -> None:
        if checkpoint_id is not None:
            self.step = step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **named: Any) -> Metadata:  # "kwargs": DCP calls it twice
        self.found = self.client.metadata(self.step, self.attempt)
        self.tensors = sharded.tensors_of(self.found)
        self.objects, abouts = sharded.read_objects(self.client, self.found)
        entries: Dict[str, Any] = {name: _storage_of(one) for name, one in self.tensors.items()}
        entries.update({name: BytesStorageMetadata() for name in self.objects})
        return Metadata(state_dict_metadata=entries, planner_data=sharded.paths_of(abouts) or None)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        """Reports all mismatches; the planner reports only the first. DCP passes the planner to the
        reader only later, so it is taken from DCP's frame, which has just set it up."""
        planner = sys._getframe(1).f_locals.get("planner")
        if isinstance(planner, DefaultLoadPlanner):
            check_fit(planner.state_dict, self, planner.allow_partial_load)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        while True:
            try:
                self._read(plan, planner)
                break
            except CorruptError as error:
                self._go_back(error, plan)
        future: "Future[None]" = Future()
        future.set_result(None)
        return future

    def _go_back(self, error: CorruptError, plan: LoadPlan) -> None:
        """DCP's plan also fits the previous checkpoint if all wanted tensors have the same sizes
        there. Other ranks have their plans."""
        sizes = self._sizes(plan)
        if self.step is None and dist.is_initialized() and dist.get_world_size() > 1:
            raise CorruptError(error.message, "call load again on every rank, with another reader: "
                               "the newest is now an older one")
        self.pass_over(error)
        if self._sizes(plan) != sizes:
            raise error

    def pass_over(self, error: CorruptError) -> Metadata:
        """Goes from a newest checkpoint that was found damaged to the one before."""
        before = self.found.info
        if self.step is not None:
            raise error
        try:
            metadata = self.read_metadata()
        except (CorruptError, NotFoundError):
            raise error from None
        if self.found.info.nonce == before.nonce:  # without ckptd damage is not kept in mind
            raise error
        _log.warning("%s is damaged: %s; step %s is loaded", before.spec, error.message,
                     self.found.info.step)
        return metadata

    def _sizes(self, plan: LoadPlan) -> List[Any]:
        names = [item.storage_index.fqn for item in plan.items]
        return [self.tensors[name].size if name in self.tensors else name in self.objects
                for name in names]

    def _read(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        filling = Filling()
        split: Dict[str, Any] = {}  # tensors of several boxes, which no plan has right
        committed = []
        for item in plan.items:
            name = item.storage_index.fqn
            value = getattr(planner, "state_dict", {}).get(item.dest_index.fqn)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._checked(name)))
            elif is_split(value):
                split[name] = value
            else:
                offset = item.storage_index.offset
                target = planner.resolve_tensor(item)
                filling.add_box(self.tensors[name], offset if offset is not None
                                else (0,) * target.dim(), tuple(item.storage_offsets), target)
                committed.append((item, target))
        for name, value in split.items():
            filling.add(name, self.tensors[name], value)
        filling.load(self.client, self.found.info)
        for item, target in committed:
            planner.commit_tensor(item, target)

    def object(self, name: str) -> Any:
        """An object by torch.load, within the allowed types."""
        try:
            return torch.load(io.BytesIO(self.objects[name]), weights_only=not self.allow_pickle)
        except Exception as error:
            if self.allow_pickle:
                raise
            raise InvalidError(
                f"object {name} of {self.found.info.spec} is a pickle of more than plain values: "
                f"{str(error).splitlines()[0]}",
                "allow_pickle=True loads it, if you trust who wrote it") from None

    def _checked(self, name: str) -> bytes:
        """An object for the planner: DefaultLoadPlanner unpickles without checks, so it gets only
        objects that weights_only accepts."""
        if self.allow_pickle:
            return self.objects[name]
        again = io.BytesIO()
        torch.save(self.object(name), again)
        return again.getvalue()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return checkpoint_id is not None and _ID.match(os.fspath(checkpoint_id)) is not None


def _storage_of(one: Stored) -> TensorStorageMetadata:
    """One chunk for the whole tensor: DCP then requests exactly this rank's part of it."""
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtypes.to_torch(one.dtype)), size=torch.Size(one.size),
        chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(one.size)),
                                     sizes=torch.Size(one.size))])


def _plain(state_dict: Mapping[str, Any]) -> Dict[str, Any]:
    """With the state dicts of what is Stateful, as dcp.save makes them."""
    return {name: value.state_dict() if isinstance(value, Stateful) else value
            for name, value in state_dict.items()}


_INT = re.compile(r"int:-?\d+$")
_EMPTY = "holdfast:{}"


def _keys(value: Any, to_dcp: bool) -> Any:
    """A nested state without, or again with, what DCP's names lose: keys that are numbers, and
    empty dicts."""
    if isinstance(value, dict):
        if to_dcp and not value:
            return _EMPTY
        return {_key(key, to_dcp): _keys(inner, to_dcp) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_keys(inner, to_dcp) for inner in value)
    return {} if not to_dcp and isinstance(value, str) and value == _EMPTY else value


def _key(key: Any, to_dcp: bool) -> Any:
    if to_dcp:
        return f"int:{key}" if type(key) is int else key
    return int(key[4:]) if isinstance(key, str) and _INT.match(key) else key


def save_whole(state: Mapping[str, Any], session: Session, step: int) -> None:
    """Like torch.save: a nested state of one process. DCP's names are strings, so numeric keys,
    which optimizers have, are stored as "int:0" and empty dicts as a mark; load_whole restores
    both."""
    import torch.distributed.checkpoint as dcp

    dcp.save(_keys(dict(state), to_dcp=True), storage_writer=session.writer(step), no_dist=True)


def load_whole(run: str, step: Optional[int] = None, *, server: Optional[str] = None,
               attempt: int = 0, allow_pickle: bool = False,
               fallback: Optional[str] = None) -> Dict[str, Any]:
    """The nested state dict of a checkpoint, whole and on the CPU, like torch.load's; from the
    files in `fallback` if the step, or the newest, is there."""
    found = kept.find(run, server, fallback, step) if fallback is not None else None
    if fallback is not None and found is not None and found.is_file:
        note_read(server, run, found.step)
        return _nested(*Files(fallback).load(found.step, allow_pickle))
    reader = Reader(run, server, step, attempt=attempt, allow_pickle=allow_pickle)
    metadata = reader.read_metadata()
    while True:
        try:
            return _nested(_read_whole(reader), metadata.planner_data or {})
        except CorruptError as error:
            metadata = reader.pass_over(error)


def _read_whole(reader: Reader) -> Dict[str, Any]:
    flat: Dict[str, Any] = {}
    filling = Filling()
    for name, stored in reader.tensors.items():
        flat[name] = torch.empty(stored.size, dtype=dtypes.to_torch(stored.dtype))
        filling.add(name, stored, flat[name])
    filling.load(reader.client, reader.found.info)
    for name in reader.objects:
        flat[name] = reader.object(name)
    return flat


def _nested(flat: Dict[str, Any], paths: Mapping[str, Any]) -> Any:
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    nested = unflatten_state_dict(flat, {name: tuple(paths.get(name, (name,))) for name in flat})
    return _keys(nested, to_dcp=False)


def check_fit(state_dict: Mapping[str, Any], reader: Reader, is_partial: bool = False) -> None:
    """Raises the first ten differences of a flat state dict and a checkpoint's metadata. Types may
    differ: DCP casts. `is_partial`: tensors may be missing."""
    lines = []
    for name, value in state_dict.items():
        size = list(value.size()) if isinstance(value, torch.Tensor) else None
        stored = reader.tensors.get(name)
        if stored is None and name not in reader.objects:
            if not is_partial:
                lines.append(f"{name}{'' if size is None else f' {size}'}: not in the checkpoint")
        elif size is not None and (stored is None or list(stored.size) != size):
            has = "an object" if stored is None else list(stored.size)
            lines.append(f"{name}: {has} in the checkpoint, {size} here")
    if lines:
        raise misfit(reader.found.info.spec, lines)


def save(state_dict: Mapping[str, Any], session: Session, step: int, state: Any = None) -> None:
    """dcp.save of a step."""
    import torch.distributed.checkpoint as dcp

    dcp.save(dict(state_dict), storage_writer=session.writer(step, state), planner=SavePlanner())


def async_save(state_dict: Mapping[str, Any], session: Session, step: int, overlap: bool = False,
               state: Any = None) -> Tuple["ThreadFuture[Any]", "ThreadFuture[Any]"]:
    """(staged, durable): the tensors may change when `staged` is done. Saves may overlap: unlike
    dcp.async_save it does not communicate with other ranks after the bytes are copied."""
    staged = Stager(session, step, overlap, state, None).copy_later(_plain(state_dict))
    if not overlap:
        staged.result()
    return staged, session.finish_later(step, staged)


def _fitting(reader: StorageReader, state_dict: Dict[str, Any]) -> StorageReader:
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    if isinstance(reader, Reader):
        reader.read_metadata()
        check_fit(flatten_state_dict(_plain(state_dict))[0], reader)
    return reader


def load(state_dict: Dict[str, Any], session: Session, step: Optional[int] = None,
         **options: Any) -> int:
    """dcp.load into `state_dict`, in place; returns the step. MismatchError has the first ten
    differences. A newest checkpoint that is found damaged is logged, and every rank loads the one
    before."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    before = None
    while True:
        reader = _fitting(session.reader(step, **options), state_dict)
        try:
            dcp.load(state_dict, storage_reader=reader)
            break
        except CheckpointException as error:  # of any rank, on all
            damage = [one for one, _ in error.failures.values() if isinstance(one, CorruptError)]
            if (step is not None or not isinstance(reader, Reader) or before == reader.found.info
                    or len(damage) < len(error.failures)):
                raise
            before = reader.found.info
            _log.warning("%s is damaged: %s; the one before it is loaded", before.spec,
                         damage[0].message)
    if isinstance(reader, FileSystemReader):
        return step_of(reader.path)
    assert isinstance(reader, Reader)
    return reader.found.info.step
