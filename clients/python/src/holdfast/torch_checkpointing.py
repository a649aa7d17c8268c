"""holdfast.torch_checkpointing - torch_checkpointing's CheckpointManager, whose saves go to ckptd:

    from holdfast.torch_checkpointing import CheckpointManager       # not from torch_checkpointing

    manager = CheckpointManager.Config(run="llama", items=...).build()
    saved = manager.save("out/step_1000", {"model": model.state_dict(), "step": 1000})
    with manager.lock():                                # waits until the last save is copied
        optimizer.step()
    manager.load(manager.newest(), into={"model": model.state_dict(), "step": 0})

The interface is torch_checkpointing's (0.1); Saver and Loader are its CheckpointSaver and
CheckpointLoader. The differences:

 - A checkpoint_id ends with a step; the run is the manager's.
 - Tensors are copied once, into ckptd's memory, in a thread if the saver's configuration stages in
   one. lock() waits only for that copy, so saves overlap. A save that was copied commits even if
   every process is killed. The future of a save returns True when it is durable.
 - A save that fails is logged, its future returns False, and training continues. With
   on_failure="raise", after max_failures in a row, and if it can never succeed, the future raises.
 - DTensors load on any mesh, with a resharder or without. The rest of an item is one for all ranks
   if the item has a resharder; if not, each rank has its own, stored under "ITEM_RANK".
 - Python objects are loaded if torch.load(weights_only=True) accepts them, or with
   allow_pickle=True. Names are those of holdfast.dcp, which loads these checkpoints, too.
 - ItemSpec.layout is ignored, because there are no files; callbacks of the writer are refused.
"""
from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch_checkpointing as theirs
from torch_checkpointing.lock import RWLock

from . import dcp, dtypes
from .boxes import Filling, held
from .errors import InvalidError, NotFoundError, UnavailableError

_log = logging.getLogger("holdfast")
from .saving import MAX_FAILURES
from .sharded import Item

# The base manager starts no process and no barrier.
_NOTHING = theirs.SyncCheckpointSaverConfig(writer_config=theirs.CheckpointWriterConfig(
    barrier_config=None, write_to_temp_dir=False))


class CheckpointManager(theirs.CheckpointManager):
    """torch_checkpointing's manager; see the head of this file."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(theirs.CheckpointManager.Config):
        run: str = ""
        """Name of the run in ckptd."""
        server: Optional[str] = None
        """ckptd's address; HOLDFAST_SERVER, or where ckptd listens by default."""
        wait: Optional[str] = "local"
        """When a save is durable: "accepted", "local", "replicated" or "bucket"."""
        on_failure: str = "warn"
        """"warn" or "raise"."""
        max_failures: int = MAX_FAILURES
        """So many failed saves in a row end the run; 0: none do."""
        allow_pickle: bool = False
        """Load Python objects of any kind, if you trust who wrote them."""
        take_over: bool = False
        """Take the run from a trainer that still has it."""
        fallback: bool = False
        """Without ckptd: go on as torch_checkpointing's own manager, which writes files."""

        def build(self) -> "CheckpointManager":
            return CheckpointManager(self)

    def __init__(self, config: "CheckpointManager.Config") -> None:
        if not config.run:
            raise InvalidError("CheckpointManager.Config has no run", 'run="llama", for example')
        if config.pre_finalize_callback or config.finalize_callback:
            raise InvalidError("the writer's callbacks are never called: ckptd commits",
                               "do it when the save's future is done")
        self.session: Optional[dcp.Session] = None
        try:
            self.session = dcp.Session(config.run, config.server, wait=config.wait,
                                       on_failure=config.on_failure,
                                       max_failures=config.max_failures,
                                       take_over=config.take_over)
        except UnavailableError as error:
            if not config.fallback:
                raise
            _log.warning("no ckptd, so torch_checkpointing writes files: %s", error)
        super().__init__(config if self.session is None
                         else dataclasses.replace(config, save=_NOTHING))  # type: ignore[call-arg]
        if self.session is not None:
            self._config = config
            self._saver = Saver(self.session, config.save)
            self._loader = Loader(config.run, config.server, self.session.rank,
                                  allow_pickle=config.allow_pickle)

    def newest(self) -> Optional[str]:
        """The checkpoint_id of the run's newest checkpoint; None: there is none."""
        if self.session is None:
            raise InvalidError("the newest checkpoint is not known without ckptd")
        try:
            info = dcp.Reader(self.session.run, self.session.server).client.metadata().info
        except NotFoundError:
            return None
        return f"{info.run}/step_{info.step}"


class Saver(theirs.CheckpointSaver):
    """A CheckpointSaver of a session: asynchronous or not as `config` is of that kind."""

    def __init__(self, session: dcp.Session, config: Any) -> None:
        self.session = session
        self._is_async = isinstance(config, theirs.AsyncCheckpointSaverConfig)
        self._in_thread = self._is_async and config.staging_config.use_async_staging
        seconds = config.wait_timeout_secs
        self.staging_lock = RWLock(acquire_timeout=600 if seconds is None else seconds)

    def save(self, path: str, checkpoint: theirs.CheckpointBase) -> "tuple[Any, Any] | None":
        """(copied, durable), two futures, or None of a saver that waits."""
        step = dcp.step_of(path)
        self.staging_lock.write.acquire_or_raise()  # the copy of the save before
        try:
            what = _held(checkpoint.get_items(), self.session.rank, self.session.world_size)
            copied = self.session.copy_later(step, *what)
        except BaseException:
            self.staging_lock.write.release()
            raise
        copied.add_done_callback(lambda _: self.staging_lock.write.release())
        durable = self.session.finish_later(step, copied)
        if not self._in_thread:
            copied.result()
        if self._is_async:
            return copied, durable
        durable.result()
        return None

    def close(self) -> None:
        self.session.close()


class Loader(theirs.CheckpointLoader):
    """A CheckpointLoader; any process may load, from any saver."""

    def __init__(self, run: str, server: Optional[str] = None, rank: int = 0, *,
                 allow_pickle: bool = False) -> None:
        self.run, self.server, self.rank, self.allow_pickle = run, server, rank, allow_pickle

    def load(self, path: Any, checkpoint: theirs.CheckpointBase, default_map_location: Any = None,
             strict: bool = False, *, metadata_format: Any = None) -> None:
        """In place: tensors keep their identity, as do dicts and lists. An item without a value is
        made as it was saved, on `default_map_location`; its tuples that hold tensors are lists."""
        if metadata_format is not None:
            raise InvalidError("ckptd does not support metadata_format", "leave it out")
        reader = dcp.Reader(self.run, self.server, dcp.step_of(path),
                            allow_pickle=self.allow_pickle)
        wanted = _Wanted(reader, self.rank)
        items = checkpoint.get_items()
        made = {key: wanted.all_of(key, item.resharder) for key, item in items.items()
                if item.value is None}
        for key, item in items.items():
            if key not in made:
                wanted.add(key, item.value, item.resharder)
        wanted.load()
        if strict and wanted.missing:
            raise RuntimeError(f"Checkpoint at {path} is missing keys: {wanted.missing}")
        checkpoint.load_state_dict(
            {key: _moved(wanted.nested(key, made[key]), default_map_location) if key in made
             else _filled(key, item.value, wanted.found) for key, item in items.items()})


# ---- items, and the names of their values, as in DCP ----


def _children(name: str, value: Any) -> Optional[List[Tuple[str, Any, Any]]]:
    """(name, key, value) of each member of a container; None: it is stored as one value."""
    if isinstance(value, Mapping) and value and all(type(key) in (str, int) for key in value):
        return [(f"{name}.{dcp._key(key, True)}", key, inner) for key, inner in value.items()]
    if isinstance(value, (list, tuple)) and _is_nested(value):
        return [(f"{name}.{at}", at, inner) for at, inner in enumerate(value)]
    return None


def _is_nested(values: Any) -> bool:
    return any(isinstance(value, (torch.Tensor, Mapping))
               or isinstance(value, (list, tuple)) and _is_nested(value) for value in values)


def _leaves(name: str, value: Any, path: Tuple[Any, ...]) -> Iterator[Tuple[str, Any, Any]]:
    children = _children(name, value)
    if children is None:
        yield name, path, value
        return
    for child, key, inner in children:
        yield from _leaves(child, inner, (*path, dcp._key(key, isinstance(value, Mapping))))


def _filled(name: str, value: Any, found: Mapping[str, Any]) -> Any:
    """`value` with what was found in place of its leaves."""
    children = _children(name, value)
    if children is None:
        return found.get(name, value)
    inner = {key: _filled(child, one, found) for child, key, one in children}
    if isinstance(value, MutableMapping):
        value.update(inner)
        return value
    if isinstance(value, list):
        value[:] = inner.values()
        return value
    if isinstance(value, Mapping):
        return type(value)(inner)  # type: ignore[call-arg]
    return type(value)(*inner.values()) if hasattr(value, "_fields") else tuple(inner.values())


def _moved(value: Any, place: Any) -> Any:
    return value if place is None else torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(place), value)


def _own_name(name: str, key: str, rank: int) -> str:
    return f"{key}_{rank}{name[len(key):]}"


def _held(items: Mapping[str, Any], rank: int, world_size: int) -> Any:
    """The arguments of Session.save: items, objects, state, and their paths."""
    found: List[Item] = []
    objects: Dict[str, bytes] = {}
    paths: Dict[str, Any] = {}
    for key, item in items.items():
        is_own = item.resharder is None and world_size > 1
        for name, path, value in _leaves(key, item.value, (key,)):
            boxes = held(value)
            if is_own and (boxes is None or not boxes.is_shard):
                name, path = _own_name(name, key, rank), (f"{key}_{rank}", *path[1:])
            if name in paths:
                raise InvalidError(f"two values are named {name}")
            paths[name] = path
            if boxes is None:
                raw = io.BytesIO()
                torch.save(value, raw)
                objects[name] = raw.getvalue()
            else:
                found += boxes.items(name)
    return found, objects, None, dcp._paths(paths)


class _Wanted:
    """The targets of a load, by name, and their results."""

    def __init__(self, reader: dcp.Reader, rank: int) -> None:
        self.reader, self.rank = reader, rank
        self.paths: Dict[str, Any] = reader.read_metadata().planner_data or {}
        self.found: Dict[str, Any] = {}
        self.missing: List[str] = []
        self._filling = Filling()

    def _stored(self, name: str, key: str, resharder: Any) -> Optional[str]:
        """The name that a leaf was saved under: of all ranks, or of this one."""
        names = [name, _own_name(name, key, self.rank)]
        known = [one for one in (names if resharder is not None else reversed(names))
                 if one in self.reader.tensors or one in self.reader.objects]
        return known[0] if known else None

    def add(self, key: str, value: Any, resharder: Any) -> None:
        for name, _, leaf in _leaves(key, value, (key,)):
            stored = self._stored(name, key, resharder)
            if stored is None:
                if not (isinstance(leaf, Mapping) and not leaf):
                    self.missing.append(name)
            elif not isinstance(leaf, torch.Tensor):
                self.found[name] = self._whole(stored)
            else:
                self._filling.add(name, self.reader.tensors[stored], leaf)
                self.found[name] = leaf

    def all_of(self, key: str, resharder: Any) -> Dict[str, str]:
        """{name: stored name} of an item that is made anew."""
        own = f"{key}_{self.rank}"
        heads = [own, key] if resharder is None else [key, own]
        names: Dict[str, str] = {}
        for head in heads:
            for stored, path in self.paths.items():
                if path[0] == head:
                    names.setdefault(key + stored[len(head):], stored)
        if not names:
            self.missing.append(key)
        for name, stored in names.items():
            self.found[name] = self._whole(stored)
        return names

    def _whole(self, stored: str) -> Any:
        if stored not in self.reader.tensors:
            return self.reader.object(stored)
        one = self.reader.tensors[stored]
        tensor = torch.empty(one.size, dtype=dtypes.to_torch(one.dtype))
        self._filling.add(stored, one, tensor)
        return tensor

    def load(self) -> None:
        self._filling.load(self.reader.client, self.reader.found.info)

    def nested(self, key: str, names: Mapping[str, str]) -> Any:
        from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

        paths = {name: (key, *self.paths[stored][1:]) for name, stored in names.items()}
        flat = {name: self.found[name] for name in names}
        return dcp._keys(unflatten_state_dict(flat, paths), False).get(key)
