"""names - what each form of checkpoint calls the state of a Llama: the table in names.json, read.

A form is a column of names for weights, one for parameters (as the optimizer calls them) and
patterns for AdamW's moments. A model is tied where its embedding is its output projection, too.
cross.py does the copying.
"""
from __future__ import annotations

import itertools
import json
import math
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import numpy

from .errors import MismatchError

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_ROWS = re.compile(r"(?P<matrix>.*)\[(?P<rows>[qkv])\]$")

with open(os.path.join(os.path.dirname(__file__), "names.json"), encoding="utf-8") as _file:
    TABLE: Dict[str, Any] = json.load(_file)


def forms() -> List[str]:
    return list(TABLE["forms"])


def column(form: str, what: str, layers: int, is_tied: bool = False) -> List[str]:
    """The names of `form`'s "weights" or "parameters", in the order of the table.

    >>> column("torchtitan", "weights", 1)[-1], len(column("holdfast", "weights", 2))
    ('lm_head.weight', 21)
    >>> column("huggingface", "weights", 1, is_tied=True)[-1]
    'model.model.norm.weight'
    """
    about = TABLE["forms"][form]
    place = TABLE["columns"].index(about[what])
    pattern = about.get("weight", "{}") if what == "weights" else "{}"
    names = []
    for row in TABLE["rows"][:-1] if is_tied else TABLE["rows"]:
        numbers = range(layers) if "{}" in row[place] else (0,)
        names += [pattern.format(row[place].format(layer)) for layer in numbers]
    return names


def matrix(name: str) -> str:
    """The stored matrix that a parameter is, or is some rows of.

    >>> matrix("layers.0.wqkv.weight[k]"), rows("layers.0.wqkv.weight[k]"), rows("norm.weight")
    ('layers.0.wqkv.weight', 'k', None)
    """
    match = _ROWS.match(name)
    return match["matrix"] if match else name


def rows(name: str) -> Optional[str]:
    match = _ROWS.match(name)
    return match["rows"] if match else None


def count_layers(names: Iterable[str]) -> int:
    found = [int(match[1]) for match in map(_LAYER.search, names) if match]
    return max(found, default=-1) + 1


def form_of(names: Iterable[str]) -> Tuple[str, bool]:
    """The form whose weights are all there, and whose moments are, if there are any; and is the
    model tied?

    >>> form_of(column("torchtitan-0.2", "weights", 2))  # our weights have the same names
    ('holdfast', False)
    >>> form_of(column("torchtitan", "weights", 1) + [
    ...     f"optimizer.state.{name}.exp_avg" for name in column("torchtitan", "weights", 1)])
    ('torchtitan-separate', False)
    >>> form_of(column("huggingface", "weights", 1) + [  # stored, though it is the embedding
    ...     f"optimizer.state.{name}.exp_avg"
    ...     for name in column("huggingface", "parameters", 1, is_tied=True)])
    ('huggingface', True)
    """
    names = set(names)
    layers = count_layers(names)
    has_moments = any("exp_avg" in name for name in names)
    for is_tied, form in itertools.product((False, True), TABLE["forms"]):
        about = TABLE["forms"][form]
        wanted = column(form, "weights", layers, is_tied)
        if has_moments:
            wanted = wanted + [about["exp_avg"].format(matrix(name))
                               for name in column(form, "parameters", layers, is_tied)]
        if names.issuperset(wanted):
            return form, is_tied
    raise MismatchError("the names of the checkpoint match no form of a Llama",
                        f"the forms are {', '.join(forms())}")


def path(trainer: str, name: str) -> List[Union[str, int]]:
    """DCP's way to a name in the nested state of a trainer.

    >>> path("torchtitan", "optimizer.state.norm.weight.step"), path("torchtitan", "norm.weight")
    (['optimizer', 'state.norm.weight.step'], ['norm.weight'])
    >>> path("transformers", "optimizer.state.lm_head.weight.step")
    ['optimizer', 'state', 'lm_head.weight', 'step']
    >>> path("transformers", "optimizer.param_groups.1.lr"), path("transformers", "trainer")
    (['optimizer', 'param_groups', 1, 'lr'], ['trainer'])
    """
    state, _, inner = name.partition(".")
    if trainer == "torchtitan":
        is_nested = state in ("optimizer", "lr_scheduler", "train_state")
        return [state, inner] if is_nested else [name]
    if state == "optimizer":
        kind, _, inner = inner.partition(".")
        of, _, key = inner.rpartition(".")
        return [state, kind, int(of) if kind == "param_groups" else of, key]
    return [state, *inner.split(".", 1 if state == "scheduler" else 0)] if inner else [name]


# ---- matrices that hold queries, keys and values ----


def fused_rows(fused: Any, part: str, head_dim: int, heads_per_kv: int) -> Any:
    """The rows of the queries ("q"), keys or values of [groups * (heads_per_kv + 2) * head_dim, C].
    """
    groups = fused.reshape(-1, heads_per_kv + 2, head_dim, fused.shape[-1])
    chosen = {"q": slice(0, heads_per_kv), "k": slice(heads_per_kv, heads_per_kv + 1),
              "v": slice(heads_per_kv + 1, None)}[part]
    return numpy.ascontiguousarray(groups[:, chosen].reshape(-1, fused.shape[-1]))


def fuse(wq: Any, wk: Any, wv: Any, head_dim: int) -> Any:
    """
    >>> q, k, v = numpy.arange(8)[:, None], numpy.arange(10, 14)[:, None], -numpy.ones((4, 1), int)
    >>> fuse(q, k, v, 2)[:8, 0].tolist()   # two query heads, their key head, their value head
    [0, 1, 2, 3, 10, 11, -1, -1]
    >>> [bool((fused_rows(fuse(q, k, v, 2), part, 2, 2) == want).all())
    ...  for part, want in zip("qkv", (q, k, v))]
    [True, True, True]
    """
    groups = [one.reshape(wk.shape[0] // head_dim, -1, head_dim, one.shape[-1])
              for one in (wq, wk, wv)]
    return numpy.concatenate(groups, axis=1).reshape(-1, wq.shape[-1])


# ---- the rows that rotary embedding turns ----


def is_rotary(ours: str) -> bool:
    """
    >>> is_rotary("layers.3.attention.wk.weight"), is_rotary("layers.3.attention.wv.weight")
    (True, False)
    """
    return ours.endswith((".attention.wq.weight", ".attention.wk.weight"))


def to_halves(rows: Any, head_dim: int) -> Any:
    """Of each head of [heads * head_dim, C] first the even rows, then the odd ones.

    >>> to_halves(numpy.arange(8)[:, None], 4)[:, 0].tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return numpy.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def to_pairs(rows: Any, head_dim: int) -> Any:
    """The argument of to_halves().

    >>> to_pairs(numpy.array([0, 2, 4, 1, 3, 5])[:, None], 6)[:, 0].tolist()
    [0, 1, 2, 3, 4, 5]
    """
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[-1])
    return numpy.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


# ---- the schedule ----


def rate(config: Mapping[str, Any], update: int) -> float:
    """The learning rate of the update that follows `update` updates: warm-up, stable, decay, as
    torchtitan and our trainer have it.

    >>> config = {"optimizer": {"lr": 1.0}, "lr_scheduler": {
    ...     "warmup_steps": 2, "total_steps": 10, "decay_ratio": 0.5, "decay_type": "linear",
    ...     "min_lr_factor": 0.0}}
    >>> [round(rate(config, update), 6) for update in (0, 1, 5, 6, 9)]
    [0.5, 1.0, 1.0, 0.8, 0.2]
    """
    schedule, base = config["lr_scheduler"], config["optimizer"]["lr"]
    total, ratio = schedule["total_steps"], schedule["decay_ratio"]
    warmup = min(schedule["warmup_steps"], total)
    decay = total - warmup if ratio < 0 else min(round(total * ratio), total - warmup)
    before_decay = total + 1 - decay
    if update < warmup:
        return base * (update + 1) / warmup
    if update < before_decay:
        return base
    part = (update + 1 - before_decay) / decay
    left = {"linear": 1 - part, "sqrt": 1 - math.sqrt(part),
            "cosine": 0.5 * (1 + math.cos(math.pi * part))}[schedule["decay_type"]]
    least = schedule["min_lr_factor"]
    return base * (least + (1 - least) * left)
