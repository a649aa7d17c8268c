"""cross - a run of torchtitan goes on in our trainer, or one of ours in torchtitan:

    python -m holdfast cross titan@1000 mine                       # then: trainer --job.run mine
    python -m holdfast cross mine@2000 titan --to torchtitan       # then: Config(run="titan")

The checkpoint is copied to another run of the same ckptd under the names of the other form:
weights, both moments of AdamW, the number of updates, the step and the schedule's step. names.json
is the table. It is a checkpoint like any other, so any mesh loads it. One tensor is in memory at a
time.

What does not cross: the place in the data, for each trainer orders its samples in its own way
(ours begins with the first sample, unless `place` names the tokens file, the length of a sample and
how many of its own order count as read; torchtitan needs exclude_from_loading=["dataloader"]); and
the settings, which each reads from its own configuration. torchtitan counts the tokens of each
rank: they are taken for all of them.
"""
from __future__ import annotations

import io
import struct
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import arrays, dtypes, names, sharded
from .arrays import Part
from .checkpoint import Checkpoint
from .client import Client
from .errors import InvalidError
from .names import TABLE, column, forms, rate

_TOKENS = struct.Struct("<8sIIIIQQ")  # the head of a tokens file (trainer/data/tokens_file.h)

MOMENTS = ("exp_avg", "exp_avg_sq")
Get = Callable[[], torch.Tensor]


# ---- a checkpoint, by the names of holdfast ----


class Source:
    """What a checkpoint of any form holds, by our names: shapes, and tensors when they are asked
    for."""

    def __init__(self, found: Checkpoint, head_dim: Optional[int]) -> None:
        self.found = found
        self.stored = sharded.tensors_of(found.metadata)
        self.form = names.form_of(self.stored)
        self.layers = names.count_layers(self.stored)
        ours = column("holdfast", "weights", self.layers)
        about = TABLE["forms"][self.form]
        self.weights = dict(zip(ours, column(self.form, "weights", self.layers)))
        self.parameters = dict(zip(ours, column(self.form, "parameters", self.layers)))
        self.has_moments = all(about[moment].format(names.matrix(name)) in self.stored
                               for moment in MOMENTS for name in self.parameters.values())
        model = (found.metadata.identity or {}).get("model", {})
        self.head_dim = head_dim or model.get("head_dim")
        objects, _ = sharded.read_objects(found._client, found.metadata)
        self.objects = {name: torch.load(io.BytesIO(objects[name]), weights_only=True)
                        for name in TABLE["objects"] if name in objects}

    def shape(self, ours: str) -> Tuple[int, ...]:
        return self.stored[self.weights[ours]].size

    def width(self) -> int:
        if not self.head_dim:
            raise InvalidError("queries, keys and values are one matrix in this form",
                               "say --head-dim, the width of a head")
        return self.head_dim

    def read(self, name: str) -> torch.Tensor:
        one = self.stored[name]
        whole = torch.empty(one.size, dtype=dtypes.to_torch(one.dtype))
        for offset, extent in one.boxes:
            box = tuple(slice(at, at + size) for at, size in zip(offset, extent))
            whole[box] = self.found[arrays.given_name(one.stored[offset])].torch()
        return whole.float()

    def weight(self, ours: str) -> torch.Tensor:
        return self.read(self.weights[ours])

    def moment(self, ours: str, moment: str) -> torch.Tensor:
        name = self.parameters[ours]
        whole = self.read(TABLE["forms"][self.form][moment].format(names.matrix(name)))
        rows = names.rows(name)
        if rows is None:
            return whole
        layer = name.split(".")[1]
        heads_per_kv = (self.shape(f"layers.{layer}.attention.wq.weight")[0]
                        // self.shape(f"layers.{layer}.attention.wk.weight")[0])
        return torch.from_numpy(names.fused_rows(whole.numpy(), rows, self.width(), heads_per_kv))

    def updates(self) -> int:
        """Of the optimizer: AdamW corrects its moments by this number."""
        if self.form == "holdfast":
            return int(self.found.state["optimizer"]["step"])
        if not self.has_moments:
            return 0
        name = TABLE["forms"][self.form]["updates"]
        return int(self.read(name.format(names.matrix(next(iter(self.parameters.values()))))))

    def schedule(self) -> int:
        if self.form == "holdfast":
            return int(self.found.state["schedule"]["step"])
        return int(self.objects.get("lr_scheduler.last_epoch", self.updates()))

    def tokens(self) -> int:
        if self.form == "holdfast":
            return int(self.found.state.get("data", {}).get("tokens", 0))
        return int(self.objects.get("train_state.ntokens_seen", 0))


# ---- what is written ----


def _part(name: str, shape: Tuple[int, ...], get: Get) -> Part:
    """A tensor that get() makes when its turn comes."""
    return Part(arrays.stored_name(sharded._plain(name)), "F32", shape, (0,) * len(shape), shape, 0,
                get, True)


def _to_holdfast(source: Source) -> List[Part]:
    about = TABLE["forms"]["holdfast"]
    parts = [_part(name, source.shape(name), partial(source.weight, name))
             for name in source.weights]
    if source.has_moments:
        parts += [_part(about[moment].format(name), source.shape(name),
                        partial(source.moment, name, moment))
                  for moment in MOMENTS for name in source.weights]
    return parts


def _to_other(source: Source, form: str) -> List[Part]:
    about = TABLE["forms"][form]
    weights = column(form, "weights", source.layers)
    parts = [_part(theirs, source.shape(ours), partial(source.weight, ours))
             for ours, theirs in zip(source.weights, weights)]
    parameters: Dict[str, List[str]] = {}  # theirs: ours, three of them where they are one
    for ours, theirs in zip(source.weights, column(form, "parameters", source.layers)):
        parameters.setdefault(names.matrix(theirs), []).append(ours)
    for theirs, fused in parameters.items():
        for moment in MOMENTS:
            parts.append(_part(about[moment].format(theirs), _fused_shape(source, fused),
                               partial(_moment, source, fused, moment)))
        parts.append(_part(about["updates"].format(theirs), (),
                           lambda: torch.tensor(float(source.updates()))))
    return parts


def _fused_shape(source: Source, ours: List[str]) -> Tuple[int, ...]:
    shapes = [source.shape(name) for name in ours]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _moment(source: Source, ours: List[str], moment: str) -> torch.Tensor:
    if len(ours) == 1:
        return source.moment(ours[0], moment)
    query, key, value = (source.moment(name, moment).numpy() for name in ours)
    return torch.from_numpy(names.fuse(query, key, value, source.width()))


def _objects(source: Source, form: str) -> Dict[str, bytes]:
    """torchtitan's numbers, each as torch.save writes it."""
    config = source.found.metadata.config
    if not config:
        raise InvalidError(f"{source.found.info.spec} says nothing of its settings",
                           "cross a checkpoint that the trainer saved")
    settings = config["optimizer"]
    values = {"rate": rate(config, source.schedule()), "lr": settings["lr"], "eps": settings["eps"],
              "betas": (settings["beta1"], settings["beta2"]),
              "weight_decay": settings["weight_decay"], "step": source.found.step,
              "schedule": source.schedule(), "tokens": source.tokens()}
    groups = TABLE["param_groups"]
    named = {key: values[value] for key, value in groups["values"].items()}
    named.update(groups["constants"])
    out = {name: values[value] for name, value in TABLE["objects"].items()}
    for theirs in {names.matrix(name) for name in column(form, "parameters", source.layers)}:
        out.update({groups["prefix"].format(theirs) + key: value for key, value in named.items()})
    return {name: _saved(value) for name, value in out.items()}


def _saved(value: Any) -> bytes:
    blob = io.BytesIO()
    torch.save(value, blob)
    return blob.getvalue()


def _paths(listed: List[str]) -> Dict[str, List[str]]:
    """DCP's way to each name: the states of torchtitan's Trainer are dicts of one level."""
    states = ("optimizer", "lr_scheduler", "train_state")
    return {name: name.split(".", 1) if name.split(".")[0] in states else [name]
            for name in listed}


def _data(path: str, seq_len: int) -> Dict[str, Any]:
    """What our trainer's checkpoints say of a tokens file."""
    with open(path, "rb") as file:
        head = file.read(_TOKENS.size)
    if len(head) < _TOKENS.size or not head.startswith(b"HFTOKENS"):
        raise InvalidError(f"{path} is no tokens file", "`tokenizer tokens` makes one")
    return {"path": path, "hash": f"{_TOKENS.unpack(head)[-1]:016x}", "seq_len": seq_len}


def cross(found: Checkpoint, run: str, to: str = "holdfast", *, server: Optional[str] = None,
          head_dim: Optional[int] = None, place: Optional[Tuple[str, int, int]] = None) -> str:
    """Copies a checkpoint to `run` in the form `to`, as the same step; returns what holdfast.open()
    takes. `place`: a tokens file, tokens of a sample, samples. MismatchError: its names are those
    of no form."""
    source = Source(found, head_dim)
    if to not in forms() or (to == "holdfast") == (source.form == "holdfast"):
        raise InvalidError(f"{found.info.spec} has the form {source.form}: it cannot cross to {to}",
                           f"the forms are {', '.join(forms())}")
    objects: Dict[str, bytes] = {}
    tokens, seq_len, samples = place or (None, 1, 0)
    if to == "holdfast":
        if source.has_moments and any(names.rows(name) for name in source.parameters.values()):
            source.width()  # before anything is written
        parts = _to_holdfast(source)
        state: Any = {"data": {"next_sample": samples, "tokens": source.tokens()},
                      "schedule": {"step": source.schedule()},
                      "optimizer": {"step": source.updates()}}
    else:
        if not source.has_moments:
            raise InvalidError(f"{found.info.spec} has no moments", "cross a whole checkpoint")
        parts = _to_other(source, to)
        inner = _objects(source, to)
        listed = [sharded._given(arrays.given_name(part.name)) for part in parts] + list(inner)
        state = None
        objects = {f"{sharded.OBJECTS}0": sharded.pack(inner, {"paths": _paths(listed)})}
    with Client(server, run, busy_seconds=60.0, identity=found.metadata.identity,
                data=_data(tokens, seq_len) if tokens else None) as client:
        client.save_parts(found.step, parts, state, objects).wait()
        return f"{run}@{found.step}-a{client.attempt}"
