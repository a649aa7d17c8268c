"""lib_calls - which methods DCP calls of holdfast.dcp, and with which arguments: of each object in
order. Between a stager and a writer there is none, as async_save writes in a thread.

tests/golden/dcp/calls.json keeps them for each torch that they were recorded with, beside the items
of plans: tests/integration/python_dcp.py holds both against the package, without any torch. Equal
recordings are kept once: {"plans": [{"torch": [...], "calls": ...}], "methods": [the same]}.
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lib_dcp import ROOT

import holdfast.dcp

RECORDED = os.path.join(ROOT, "tests/golden/dcp/calls.json")
DCP = "torch.distributed.checkpoint"
VERSION = torch.__version__.split("+")[0]


def watch(one, calls):
    """The same object, whose methods that DCP calls are noted: name, arguments without a name, the
    names of the others, and whether the package has the method (else torch's base class has)."""
    class Watched(type(one)):
        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if name.startswith("_") or not caller.startswith(DCP):
                return value
            is_ours = any(name in vars(kind) for kind in type(self).__mro__[1:]
                          if kind.__module__ == "holdfast.dcp")
            kind = type(self).__mro__[1].__name__
            if not callable(value):
                calls.append([kind, name, None, [], is_ours])
                return value

            def call(*arguments, **named):
                calls.append([kind, name, len(arguments), sorted(named), is_ours])
                return value(*arguments, **named)
            return call

    one.__class__ = Watched
    return one


def calls_on(rank, mesh, server, name, out):
    """Of both ranks: a save, a save through a stager, a load."""
    keep = holdfast.dcp.Session(name, server, take_over=True)
    state = {"w": torch.arange(4.0) + rank, "n": rank}
    found = {}
    for what in ("save", "async_save", "load"):
        calls = found[what] = []
        if what == "save":
            dcp.save(state, storage_writer=watch(keep.writer(1), calls))
        elif what == "load":
            dcp.load(state, storage_reader=watch(keep.reader(1), calls))
        else:
            stager = {"async_stager": watch(keep.stager(2), calls)} if stages() else {}
            dcp.async_save(state, storage_writer=watch(keep.writer(2), calls), **stager).result()
    keep.close()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, {what: sorted(calls, key=lambda call: call[0])
                                   for what, calls in found.items()})
    if rank == 0:
        with open(out, "w") as file:
            json.dump({what: [one[what] for one in every] for what in found}, file)


def stages():
    """Does this DCP take stagers?"""
    import inspect

    return "async_stager" in inspect.signature(dcp.async_save).parameters


def check(kind, calls, is_recorded):
    """That `calls` are those that are recorded for this torch; or else they become them."""
    with open(RECORDED) as file:
        recorded = json.load(file)
    groups = recorded[kind]
    if is_recorded:
        for group in groups:
            group["torch"] = [version for version in group["torch"] if version != VERSION]
        same = [group for group in groups if group["calls"] == calls]
        if same:
            same[0]["torch"].append(VERSION)
        else:
            groups.append({"torch": [VERSION], "calls": calls})
        recorded[kind] = [group for group in groups if group["torch"]]
        with open(RECORDED, "w") as file:
            json.dump(recorded, file, separators=(",", ":"), sort_keys=True)
            file.write("\n")
    # Of a torch between two that were recorded, either's.
    known = [group for group in recorded[kind] if VERSION in group["torch"]] or recorded[kind]
    assert calls in [group["calls"] for group in known], (kind, VERSION, calls)
