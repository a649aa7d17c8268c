"""cross - converts a run of torchtitan or of Hugging Face's Trainer for our trainer, or one of ours
for theirs:

    python -m holdfast cross titan@1000 mine                       # then: trainer --job.run mine
    python -m holdfast cross mine@2000 titan --to torchtitan       # then: Config(run="titan")
    python -m holdfast cross mine@2000 hf --to huggingface         # then: HoldfastCallback("hf")

The checkpoint is copied to another run of the same ckptd under the names of the other form:
weights, both moments of AdamW, the number of updates, the step and the schedule's step. names.json
is the table. If rotary embedding rotates other rows in the other form, the rows of weights and
moments are permuted. It is a checkpoint like any other, so any mesh loads it. One tensor is in
memory at a time. The files of Hugging Face's folder, such as its config.json, are copied, too.

What does not cross: the place in the data, for each trainer orders its samples in its own way
(ours begins with the first sample, unless `place` names the tokens file, the length of a sample and
how many of its own order count as read; torchtitan needs exclude_from_loading=["dataloader"];
Hugging Face's passes over as many batches as there were steps); and the settings, which each reads
from its own configuration. torchtitan and Hugging Face's Trainer count the tokens of each rank:
they are taken for all of them.
"""
from __future__ import annotations

import json
import struct
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy

from . import arrays, dcp_files, dtypes, names, sharded
from .arrays import Part
from .checkpoint import Checkpoint
from .client import Client
from .errors import InvalidError
from .names import TABLE, column, forms, rate
from .safetensors_files import FOLDER_OBJECTS

_TOKENS = struct.Struct("<8sIIIIQQ")  # the head of a tokens file (trainer/data/tokens_file.h)

MOMENTS = ("exp_avg", "exp_avg_sq")
HF_SECTIONS = ("hf", "hf_dtypes")  # of the settings, which imports write and trainers hand on
Array = numpy.ndarray[Any, Any]
Get = Callable[[], Array]


# ---- a checkpoint, by the names of holdfast ----


class Source:
    """What a checkpoint of any form holds, by our names and in our order of rows: shapes, and
    tensors when they are asked for."""

    def __init__(self, found: Checkpoint, head_dim: Optional[int]) -> None:
        self.found = found
        self.stored = sharded.tensors_of(found.metadata)
        self.form, self.is_tied = names.form_of(self.stored)
        self.layers = names.count_layers(self.stored)
        self.about = TABLE["forms"][self.form]
        config = found.metadata.config or {}
        self.folder_config = {key: config[key] for key in HF_SECTIONS if key in config}
        hf = config.get("hf") or {}
        if self.about.get("tied_output") and hf.get("tie_word_embeddings"):
            self.is_tied = True  # without moments the names do not tell it
        ours = self.column("weights", "holdfast")
        self.weights = dict(zip(ours, self.column("weights")))
        self.parameters = dict(zip(ours, self.column("parameters")))
        self.has_moments = all(self.about[moment].format(names.matrix(name)) in self.stored
                               for moment in MOMENTS for name in self.parameters.values())
        identity = found.metadata.identity or {}  # by its rest our trainer knows its own order
        self.identity = {key: identity[key] for key in ("model",) if key in identity}
        self.head_dim = (head_dim or identity.get("model", {}).get("head_dim")
                         or _head_dim_of(hf))
        self._objects, _ = sharded.read_objects(found._client, found.metadata)

    def column(self, what: str, form: Optional[str] = None) -> List[str]:
        return column(form or self.form, what, self.layers, self.is_tied)

    def object(self, value: str) -> Any:
        """The trainer's object that has this value; None: there is none."""
        objects = TABLE["trainers"][self.about["trainer"]]["objects"]
        name = next((name for name, has in objects.items() if has == value), None)
        data = self._objects.get(name) if name is not None else None
        return None if data is None else dcp_files.read_object(data, f"object {name}")

    def shape(self, ours: str) -> Tuple[int, ...]:
        return self.stored[self.weights[ours]].size

    def width(self) -> int:
        """Of a head; asked for before anything is written where the heads' rows are moved."""
        if not self.head_dim:
            raise InvalidError(f"{self.found.info.spec} does not say how wide a head is, and rows "
                               "of heads are moved", "say --head-dim, the width of a head")
        rows = [self.shape(name)[0] for name in self.weights if names.is_rotary(name)]
        if self.head_dim % 2 or any(count % self.head_dim for count in rows):
            raise InvalidError(f"heads of width {self.head_dim} do not fit {rows[0]} rows of "
                               "queries", "say --head-dim, the width of a head, an even number")
        return self.head_dim

    def read(self, name: str) -> Array:
        one = self.stored[name]
        whole = numpy.empty(one.size, numpy.float32)
        for offset, extent in one.boxes:
            box = tuple(slice(at, at + size) for at, size in zip(offset, extent))
            bits = self.found[arrays.given_name(one.stored[offset])].bits()
            raw = dtypes.cast(bits.tobytes(), one.dtype, "F32")
            whole[box] = numpy.frombuffer(raw, numpy.float32).reshape(extent)
        return whole

    def weight(self, ours: str) -> Array:
        return self._in_pairs(ours, self.read(self.weights[ours]))

    def moment(self, ours: str, moment: str) -> Array:
        name = self.parameters[ours]
        whole = self.read(self.about[moment].format(names.matrix(name)))
        rows = names.rows(name)
        if rows is None:
            return self._in_pairs(ours, whole)
        layer = name.split(".")[1]
        heads_per_kv = (self.shape(f"layers.{layer}.attention.wq.weight")[0]
                        // self.shape(f"layers.{layer}.attention.wk.weight")[0])
        return names.fused_rows(whole, rows, self.width(), heads_per_kv)

    def _in_pairs(self, ours: str, rows: Array) -> Array:
        is_moved = "rotary" in self.about and names.is_rotary(ours)
        return names.to_pairs(rows, self.width()) if is_moved else rows

    def updates(self) -> int:
        """Of the optimizer: AdamW corrects its moments by this number."""
        if self.form == "holdfast":
            return int(self.found.state["optimizer"]["step"])
        if not self.has_moments:
            return 0
        name = self.about["updates"]
        return int(self.read(name.format(names.matrix(next(iter(self.parameters.values()))))))

    def schedule(self) -> int:
        if self.form == "holdfast":
            return int(self.found.state["schedule"]["step"])
        step = self.object("schedule")
        return self.updates() if step is None else int(step)

    def tokens(self) -> int:
        if self.form == "holdfast":
            return int(self.found.state.get("data", {}).get("tokens", 0))
        trainer = self.object("trainer state")
        if trainer is not None:
            return int(json.loads(trainer).get("num_input_tokens_seen", 0))
        return int(self.object("tokens") or 0)


def _head_dim_of(config: Mapping[str, Any]) -> Optional[int]:
    """By Hugging Face's config.json."""
    heads = config.get("num_attention_heads")
    return config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else None)


# ---- what is written ----


class _Made:
    """A tensor that get() makes when its turn comes, and that goes when it is copied."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._raw: Optional[Array] = None

    def fill(self, memory: Array, at: int) -> None:
        if self._raw is None:
            made = numpy.ascontiguousarray(self._get(), numpy.float32)
            self._raw = made.reshape(-1).view(numpy.uint8)
        memory[:] = self._raw[at:at + memory.size]
        if at + memory.size == self._raw.size:
            self._raw = None


def _part(name: str, shape: Tuple[int, ...], get: Get) -> Part:
    return sharded.whole_part(name, "F32", shape, _Made(get))


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
    parts = [_part(theirs, source.shape(ours), partial(_weight, source, form, ours))
             for ours, theirs in zip(source.weights, source.column("weights", form))]
    if source.is_tied:
        ours = next(iter(source.weights))
        parts.append(_part(column(form, "weights", 0)[-1], source.shape(ours),
                           partial(source.weight, ours)))
    parameters: Dict[str, List[str]] = {}  # theirs: ours, three of them where they are one
    for ours, theirs in zip(source.weights, source.column("parameters", form)):
        parameters.setdefault(names.matrix(theirs), []).append(ours)
    for theirs, fused in parameters.items():
        for moment in MOMENTS:
            parts.append(_part(about[moment].format(theirs), _fused_shape(source, fused),
                               partial(_moment, source, form, fused, moment)))
        parts.append(_part(about["updates"].format(theirs), (),
                           lambda: numpy.array(source.updates())))
    return parts


def _fused_shape(source: Source, ours: List[str]) -> Tuple[int, ...]:
    shapes = [source.shape(name) for name in ours]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _in_order(source: Source, form: str, ours: str, rows: Array) -> Array:
    is_moved = "rotary" in TABLE["forms"][form] and names.is_rotary(ours)
    return names.to_halves(rows, source.width()) if is_moved else rows


def _weight(source: Source, form: str, ours: str) -> Array:
    return _in_order(source, form, ours, source.weight(ours))


def _moment(source: Source, form: str, ours: List[str], moment: str) -> Array:
    if len(ours) == 1:
        return _in_order(source, form, ours[0], source.moment(ours[0], moment))
    query, key, value = (source.moment(name, moment) for name in ours)
    return names.fuse(query, key, value, source.width())


def _objects(source: Source, form: str) -> Dict[str, bytes]:
    """The other trainer's numbers, each as torch.save writes it."""
    config = source.found.metadata.config or {}
    if "optimizer" not in config:
        raise InvalidError(f"{source.found.info.spec} does not record its settings",
                           "cross a checkpoint that the trainer saved")
    settings, step, schedule = config["optimizer"], source.found.step, source.schedule()
    now, tokens = rate(config, schedule), source.tokens()
    values = {"rate": now, "lr": settings["lr"], "eps": settings["eps"],
              "betas": (settings["beta1"], settings["beta2"]),
              "weight_decay": settings["weight_decay"], "step": step, "schedule": schedule,
              "tokens": tokens, "schedule calls": schedule + 1, "rates": [now] * 2,
              "lrs": [settings["lr"]] * 2, "trainer state": json.dumps(
                  {"global_step": step, "num_input_tokens_seen": tokens})}
    trainer = TABLE["trainers"][TABLE["forms"][form]["trainer"]]
    out = {name: values[value] for name, value in trainer["objects"].items()}
    groups = TABLE["param_groups"]
    for group, more in _param_groups(source, form).items():
        named = {key: values[value] for key, value in groups["values"].items()}
        out.update({groups["prefix"].format(group) + key: value
                    for key, value in {**named, **groups["constants"], **more}.items()})
    out.update(trainer["constants"])
    return {name: dcp_files.object_bytes(value) for name, value in out.items()}


def _param_groups(source: Source, form: str) -> Dict[str, Dict[str, Any]]:
    """The optimizer's groups, and what not all of them have. torchtitan names them by parameter;
    Hugging Face's Trainer has one of matrices and one of norms."""
    parameters = source.column("parameters", form)
    if TABLE["forms"][form]["trainer"] == "torchtitan":
        return {names.matrix(name): {} for name in parameters}
    norms = [name for name in parameters if "norm" in name]
    optimizer = source.found.metadata.config["optimizer"]
    decays_not = {"weight_decay": 0.0} if optimizer.get("no_decay_norms") else {}
    return {"0": {"params": [name for name in parameters if name not in norms]},
            "1": {"params": norms, **decays_not}}


def _folder_files(found: Checkpoint) -> Dict[str, bytes]:
    return {name: found.object(name) for name in found.objects if name.startswith(FOLDER_OBJECTS)}


def _data(path: str, seq_len: int) -> Dict[str, Any]:
    """The entry about a tokens file in our trainer's checkpoints."""
    with open(path, "rb") as file:
        head = file.read(_TOKENS.size)
    if len(head) < _TOKENS.size or not head.startswith(b"HFTOKENS"):
        raise InvalidError(f"{path} is not a tokens file", "`tokenizer tokens` makes one")
    return {"path": path, "hash": f"{_TOKENS.unpack(head)[-1]:016x}", "seq_len": seq_len}


def cross(found: Checkpoint, run: str, to: str = "holdfast", *, server: Optional[str] = None,
          head_dim: Optional[int] = None, place: Optional[Tuple[str, int, int]] = None) -> str:
    """Copies a checkpoint to `run` in the form `to`, as the same step; returns the spec for
    holdfast.open(). `place`: a tokens file, tokens of a sample, samples. MismatchError: its names
    belong to no form."""
    source = Source(found, head_dim)
    if to not in forms() or (to == "holdfast") == (source.form == "holdfast"):
        raise InvalidError(f"{found.info.spec} has the form {source.form}: it cannot cross to {to}",
                           f"the forms are {', '.join(forms())}")
    other = source.form if to == "holdfast" else to
    about = TABLE["forms"][other]
    if source.is_tied and not about.get("tied_output"):
        raise InvalidError(f"{found.info.spec} has one weight for embedding and output, which "
                           f"{other} does not have", "cross it to huggingface")
    if "rotary" in about or (source.has_moments and any(
            names.rows(name) for name in source.column("parameters", other))):
        source.width()  # before anything is written
    objects = _folder_files(found)
    tokens, seq_len, samples = place or (None, 1, 0)
    if to == "holdfast":
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
        paths = {name: names.path(about["trainer"], name) for name in listed}
        objects[f"{sharded.OBJECTS}0"] = sharded.pack(inner, {"paths": paths})
    with Client(server, run, busy_seconds=60.0, identity=source.identity or None,
                config=source.folder_config or None,
                data=_data(tokens, seq_len) if tokens else None) as client:
        client.save_parts(found.step, parts, state, objects).wait()
        return f"{run}@{found.step}-a{client.attempt}"
