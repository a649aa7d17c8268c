#!/usr/bin/env python3
"""python_client - the package holdfast (clients/python) against a real ckptd, without torch.

Goal: arrays of every type come back bit for bit, whole or in slices, from ckptd and from the
store's directory. Ranks load the saves of other ranks. The examples in the docstrings are correct.
Errors are exceptions that name the remedy. Method: libckpt as built, ctypes.
"""

import doctest
import gc
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from lib_network import Network
from lib_nodes import Cluster
from lib_store import CLI, World, change, comes, logged, take_libckpt
from lib_tap import Skip, need, run, tests_of_script

need("numpy")
import numpy  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "clients/python/src")
sys.path.insert(0, SOURCE)
sys.dont_write_bytecode = True
take_libckpt()
import holdfast  # noqa: E402
from holdfast import arrays, catalog, checkpoint, client, dtypes, errors, state_json  # noqa: E402
from importlib import import_module  # noqa: E402

PLAIN = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
         "float16", "float32", "float64"]


def raises(kind, function, *words):
    try:
        function()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError(f"no {kind.__name__}")


def child(world, text, *more, server=None, **environ):
    """A Python process that has `server` and runs `text`."""
    head = ("import os, sys, time, numpy, holdfast\nserver = sys.argv[1]\n")
    return subprocess.Popen([sys.executable, "-c", head + text, server or world.server, *more],
                            env=dict(os.environ, PYTHONPATH=SOURCE, **environ),
                            stdout=subprocess.PIPE, text=True)


def importing_the_package_imports_no_torch(world):
    code = "import sys, holdfast; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code],
                          env=dict(os.environ, PYTHONPATH=SOURCE)).returncode == 0


def the_examples_in_the_docstrings_are_true(world):
    with holdfast.Client(world.server, run="demo") as saver:
        saver.save(1, {"w": numpy.arange(6.0).reshape(2, 3)}, state={"epoch": 4}).wait()
    with holdfast.Client(world.server, run="llama") as saver:
        saver.save(7, {"w": numpy.ones((4, 3), "f4"), "lr": 0.1}, {"epoch": 1}).wait()
    for module in (arrays, dtypes, client, errors, checkpoint, state_json,
                   import_module("holdfast.follow"), import_module("holdfast.names")):
        result = doctest.testmod(module, extraglobs={"server": world.server, "holdfast": holdfast,
                                                     "numpy": numpy})
        assert result.attempted > 0 and result.failed == 0, (module.__name__, result)


def a_save_that_fails_here_is_told_by_ckptd(world):
    """By health, status and an alarm, until the run commits; a step that is there already is one,
    too. An error of ckptd's own, and a ckptd that is away, are not told."""
    w = {"w": numpy.zeros(3)}
    with holdfast.Client(world.server, "told") as user:
        user.save(1, w).wait()
        assert world.cli("health", *world.where)[0] == 0
        raises(holdfast.InvalidError, lambda: user.save(2, {"when": numpy.zeros(3, "M8[s]")}))
        raises(holdfast.InvalidError, lambda: user.save(3, {"deep": numpy.zeros((1,) * 9)}))
        code, out, err = world.cli("health", *world.where)
        told = "2 saves in a row failed at the client: deep has 9 dimensions"
        assert code == 69 and told in err and f"alarm: run told: {told}" in out, (code, out, err)
        status = world.cli("status", *world.where)[1]
        assert told in status and "failed save" not in status, status
        user.save(4, w).wait()
        assert world.cli("health", *world.where)[0] == 0
        assert "at the client" not in world.cli("status", *world.where)[1]


def arrays_of_every_type_come_back_bit_for_bit(world):
    random = numpy.random.default_rng(7)
    wanted = {name: random.integers(0, 256, (3, 5, 8), numpy.uint8).view(name)
              for name in PLAIN if name != "bool"}
    wanted["bool"] = random.integers(0, 2, (7,), numpy.uint8).view("bool")
    wanted["five.d"] = random.standard_normal((2, 3, 1, 4, 5)).astype("f4")
    wanted["scalar"] = numpy.array(-2.5)
    wanted["c64"] = random.standard_normal((3, 4)).astype("c8") * 1j  # carried, as floats
    wanted["c128"] = numpy.array(0.5 - 2j)
    wanted["odd name \u00e4"] = numpy.arange(4)
    with holdfast.Client(world.server, run="types") as saver:
        assert saver.save(1, wanted).wait() == "local"
    for where in ({"server": world.server}, {"store": world.store}):
        with holdfast.open("types@1", **where) as found:
            assert set(found) == set(wanted)
            for name, array in wanted.items():
                back = found[name][...]
                assert back.dtype == array.dtype and back.shape == array.shape, name
                assert back.tobytes() == array.tobytes(), name
            assert found.metadata.tensors["c64@complex64"] == ("F32", (3, 4, 2))
            assert found["c64"].digest and numpy.array_equal(found["c64"][::2, 1],
                                                             wanted["c64"][::2, 1])


def floats_that_numpy_lacks_need_ml_dtypes_and_say_so(world):
    raw = numpy.arange(12, dtype=numpy.uint8)
    parts = [arrays.Part(f"w.{name}", name, (12 // dtypes.size(name),), (0,),
                         (12 // dtypes.size(name),), raw.ctypes.data, raw)
             for name in ("BF16", "F8_E4M3", "F8_E5M2")]
    with holdfast.Client(world.server, run="floats") as saver:
        saver.save_parts(1, parts).wait()
    with holdfast.open("floats", server=world.server) as found:
        for part in parts:
            assert found[part.name].bits().tobytes() == raw.tobytes()
        hidden = sys.modules.get("ml_dtypes")
        sys.modules["ml_dtypes"] = None  # as if it were not installed
        try:
            error = raises(holdfast.InvalidError, lambda: found["w.BF16"][:2], "BF16")
            assert "ml_dtypes" in error.hint
            wide = found.take({"w.BF16": numpy.s_[1:3]}, "F32")["w.BF16"]
            assert wide.tobytes() == (numpy.frombuffer(raw[2:6], "u2").astype("u4") << 16).tobytes()
        finally:
            sys.modules.pop("ml_dtypes")
            if hidden is not None:
                sys.modules["ml_dtypes"] = hidden
        try:
            import ml_dtypes
        except ImportError:
            raise Skip("ml_dtypes") from None
        assert found["w.BF16"][...].dtype == ml_dtypes.bfloat16
        with holdfast.Client(world.server, run="floats2") as saver:
            saver.save(1, {"w": found["w.F8_E4M3"][...]}).wait()
        assert holdfast.open("floats2", server=world.server)["w"].dtype == "F8_E4M3"


def slices_are_those_of_numpy(world):
    array = numpy.arange(7 * 5 * 6).reshape(7, 5, 6)
    with holdfast.Client(world.server, run="slices") as saver:
        saver.save(1, {"a": array}).wait()
    indices = [3, -1, slice(2, 5), (slice(None), 4), (..., slice(1, 6, 2)),
               (slice(None, None, -1),), (slice(5, 1, -2), ..., 0), (2, 3, 4), slice(3, 3),
               (slice(None), slice(4, 9), -6), ...]
    with holdfast.open("slices@1", server=world.server) as found:
        for index in indices:
            assert numpy.array_equal(found["a"][index], array[index]), index
        raises(IndexError, lambda: found["a"][7])
        raises(IndexError, lambda: found["a"][0, 0, 0, 0])
        assert numpy.asarray(found["a"]).sum() == array.sum() and len(found["a"]) == 7


def a_slice_reads_little_more_than_itself(world):
    """Of 64 MiB one row; whole ones would be read from a store's directory by whole shards."""
    array = numpy.arange(16 << 20, dtype=numpy.float32).reshape(4096, 4096)
    with holdfast.Client(world.server, run="big") as saver:
        saver.save(1, {"a": array}).wait()
    os.sync()
    read = ("with open('/proc/self/io') as f: before = int(f.read().split()[1])\n"
            "row = holdfast.open('big@1', store=sys.argv[2])['a'][1000]\n"
            "with open('/proc/self/io') as f: after = int(f.read().split()[1])\n"
            "print(after - before, float(row[7]))")
    process = child(world, read, world.store)
    said, value = process.communicate(timeout=60)[0].split()
    assert float(value) == 1000 * 4096 + 7 and int(said) < 4 << 20, said


def arrays_that_moved_are_saved_from_where_they_are(world):
    with holdfast.Client(world.server, run="moved") as saver:
        for step in (1, 2, 3):
            saver.save(step, {"a": numpy.full(1000, step), "b": numpy.float32(step)}).wait()
        assert saver.attempt == 1  # described once
        assert [info.step for info in saver.list()] == [3, 2, 1]
        save = saver.save(4, {"a": numpy.full(1001, 4)})  # other shapes: described anew
        assert save.wait("accepted") in ("accepted", "local") and save.wait() == "local"
        assert saver.attempt == 2
        back = numpy.zeros(1000, int)
        assert saver.load({"a": back}, step=2).step == 2 and (back == 2).all()


def a_save_without_tensors_is_one(world):
    with holdfast.Client(world.server, run="bare") as saver:
        saver.save(1, {}, state={"only": "words"}).wait()
        saver.save(2, {"a": numpy.zeros(3)}).wait()
        saver.save(3, {}, state={}).wait()
        raises(holdfast.InvalidError, lambda: saver.save(4, {}))
        saver.save(4, {"a": numpy.ones(3)}).wait()
        assert [info.step for info in saver.list()] == [4, 3, 2, 1]
        assert saver.metadata(1).state == {"only": "words"} and not saver.metadata(3).tensors


def a_state_keeps_every_float_and_integer(world):
    """NaN, infinities and long integers in the form that state_json.py gives them."""
    inf, nan = math.inf, math.nan
    state = {"metrics": {"best": inf, "worst": -inf, "loss": nan}, "zero": [-0.0, 5e-324, 1e308],
             "odd": (1 << 53) + 1, "edges": [-(1 << 63), (1 << 63) - 1, 1 << 63],
             "rng": {"state": (1 << 127) + 1, "inc": -(1 << 100)}, "list": [[1, [nan, 2.5]], []],
             "own": [{"$float": "nan"}, {"$$int": 7}, {"$int": 1}, {"$float": 1, "b": 2}],
             "rest": [True, None, "", "\u00e4\n"]}
    with holdfast.Client(world.server, run="states", config={"clip": inf}) as saver:
        saver.save(1, {"a": numpy.zeros(3)}, state).wait()
        found = saver.load({"a": numpy.zeros(3)})
        for bad, name in ((numpy.float32(1), "float32"), ({1, 2}, "set"), ("a\0", "NUL")):
            raises(holdfast.InvalidError, lambda: saver.save(2, {}, {"best": [0, {"x": bad}]}),
                   "state['best'][1]['x']", name)
        raises(holdfast.InvalidError, lambda: saver.save(2, {}, {"m": {(1, 2): 3}}), "state['m']")
    assert repr(found.state) == repr(state) and found.config == {"clip": inf}, found.state
    with holdfast.open("states@1", store=world.store) as stored:
        assert repr(stored.state) == repr(state) and stored.metadata.config == {"clip": inf}


def objects_grow_and_come_back(world):
    with holdfast.Client(world.server, run="objects") as saver:
        for step, length in ((1, 0), (2, 3000), (3, 4080), (4, 100000)):
            saver.save(step, {"a": numpy.zeros(3)}, objects={"loader/0": bytes(length)}).wait()
        assert saver.attempt == 2  # of these only the last needed more room
    for step, length in ((1, 0), (2, 3000), (3, 4080), (4, 100000)):
        with holdfast.open(f"objects@{step}", server=world.server) as found:
            assert found.object("loader/0") == bytes(length) and list(found) == ["a"]
            raises(holdfast.NotFoundError, lambda: found.object("other"))


def ckpt_cli_shows_objects(world):
    data = bytes(range(256)) * 20
    with holdfast.Client(world.server, run="shown") as saver:
        saver.save(1, {"a": numpy.zeros(3)}, objects={"loader/0": data, "empty": b""}).wait()
    for where in (["--server", world.server], ["--store", world.store]):
        def cli(*words, want=0):
            done = subprocess.run([CLI, "show", "shown@1", *words, *where], capture_output=True,
                                  timeout=60)
            assert done.returncode == want, done
            return done.stdout

        assert json.loads(cli("--json"))["objects"] == [{"name": "empty", "bytes": 0},
                                                        {"name": "loader/0", "bytes": 5120}]
        rows = [line.split() for line in cli().decode().splitlines()]
        assert ["loader/0", "5120"] in [row[:2] for row in rows], rows
        assert cli("--object", "loader/0") == data and cli("--object", "empty") == b""
        assert cli("--object", "other", want=66) == b""


RANKS = """
rank, world, step = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with holdfast.Client(server, "ranks", rank, world, take_over=True) as client:
    if rank == 0:
        attempt = client.start()
        print(attempt, flush=True)
    else:
        client.start(int(sys.argv[5]))
    rows = numpy.arange(60).reshape(12, 5)
    first, last = 12 * rank // world, 12 * (rank + 1) // world
    mine = rows[first:last] * step
    client.save(step, {"w": holdfast.Slice(mine, (12, 5), (first, 0)), "same": numpy.arange(9)},
                {"by": world}).wait(timeout=30)
"""


def ranks_save_slices_and_others_load_theirs(world):
    first = child(world, RANKS, "0", "3", "1")
    attempt = first.stdout.readline().strip()
    others = [child(world, RANKS, str(rank), "3", "1", attempt) for rank in (1, 2)]
    assert [process.wait(60) for process in (first, *others)] == [0, 0, 0]
    wanted = numpy.arange(60).reshape(12, 5)
    with holdfast.open("ranks@1", server=world.server) as found:
        assert found.state == {"by": 3} and found.info.world_size == 3
        assert numpy.array_equal(found["w"][...], wanted)
        column = numpy.zeros((12, 2), int)  # another cut than that of the ranks
        found.load({"w": holdfast.Slice(column, (12, 5), (0, 3)), "same": numpy.zeros(9, int)})
        assert numpy.array_equal(column, wanted[:, 3:])


REPLICA = """
class Far:  # as on a device: libckpt does not see it
    def __init__(self, array):
        self.raw = array.reshape(-1).view("uint8")

    def fill(self, memory, at):
        memory[:] = self.raw[at:at + memory.size]

rank, step = int(sys.argv[2]), int(sys.argv[3])
with holdfast.Client(server, "apart", rank, 2, take_over=True) as client:
    if rank == 0:
        attempt = client.start()
        print(attempt, flush=True)
    else:
        client.start(int(sys.argv[4]))
    whole = numpy.full((4096, 256), rank if step < 3 else 1, "float32")
    here = {"a": whole, "b": whole, "c": whole[:7], "d": whole[:7], "e": step}
    parts = [holdfast.arrays.part(name, value) for name, value in here.items()]
    parts.append(holdfast.arrays.Part("f", "F32", (3, 256), (0, 0), (3, 256), 0, Far(whole), True))
    try:
        client.save_parts(step, parts).wait(timeout=30)
        print(client.warning)
    except holdfast.AbortedError as error:
        print(error)
"""


def save_apart(world, step, other=None, **where):
    """ckptd's messages to each rank; `other`: the second one's, on another node."""
    first = child(world, REPLICA, "0", str(step), **where)
    second = child(other or world, REPLICA, "1", str(step), first.stdout.readline().strip(),
                   **where)
    said = [process.communicate(timeout=60)[0].strip() for process in (first, second)]
    assert [process.wait(60) for process in (first, second)] == [0, 0], said
    return said


def told_of_replicas(node):
    """By status and metrics: the alarms, and how many saves."""
    code, out, err = node.cli("status", "--json", *node.where)
    status = json.loads(out)
    alarms = [alarm for alarm in status["alarms"] if "apart" in alarm]
    return alarms, status["since_start"]["replicas_differ"]


def replicas_that_differ_are_told_and_not_mixed(world):
    differs = "rank 1 holds other bytes than rank 0, first found in bytes "
    said = save_apart(world, 1)
    assert said[0] == said[1] and differs in said[0] and ", and of 4 more" in said[0], said
    with holdfast.open("apart@1", server=world.server) as found:
        held = {name: numpy.unique(found[name][...]).tolist() for name in "abcdf"}
        listed = found.metadata.mesh["replicas_differ"]
    assert held == {"a": [0], "b": [1], "c": [0], "d": [1], "f": [0]}, held  # each wrote a half
    assert listed["slices"] == 5 and {entry["tensor"]: (entry["kept"], entry["differ"])
                                      for entry in listed["first"]} == \
        {"a": (0, [1]), "b": (1, [0]), "c": (0, [1]), "d": (1, [0]), "f": (0, [1])}, listed
    for where in (world.where, ("--store", world.store)):
        code, out, err = world.cli("show", "apart@1", *where)
        assert code == 0 and "DIFFERS      b: rank 1's copy was kept; others on rank 0" in out, out
    alarms, count = told_of_replicas(world)
    assert count == 1 and len(alarms) == 1 and differs in alarms[0], (alarms, count)
    assert "replicas differ: rank" in world.log()
    metrics = pathlib.Path(world.folder, "metrics")
    assert comes(lambda: "\nholdfast_replicas_differ_total 1\n" in metrics.read_text())
    assert save_apart(world, 3) == ["", ""] and told_of_replicas(world) == ([], 1)


def replicas_that_differ_are_refused_where_that_is_asked_for(world):
    world.stop()
    world.start(*OPTIONS, "--saves.replicas", "refuse")
    said = save_apart(world, 2)
    assert all("replicas differ: rank 1 holds other bytes than rank 0, first found in bytes" in text
               and "of tensor a" in text for text in said), said
    assert save_apart(world, 4) == ["", ""]
    with holdfast.Client(world.server, "apart") as reader:
        assert [info.step for info in reader.list()] == [4, 3, 1]
    world.stop()
    world.start(*OPTIONS)


def replicas_on_two_nodes_are_compared_by_one(world):
    """Two ckptd compare their ranks' slices, and report where they differ."""
    if not shutil.which("openssl"):
        raise Skip("openssl")
    cluster = Cluster(tempfile.mkdtemp(dir=world.folder), "ab")
    try:
        cluster.start("--nodes.replicas", "1")
        first, second = cluster.nodes
        said = save_apart(first, 1, second)
        assert said[0] == said[1] and "rank 1 holds other bytes than rank 0" in said[0], said
        assert [told_of_replicas(node)[1] for node in cluster.nodes] == [1, 0]
        assert save_apart(first, 3, second) == ["", ""]
    finally:
        cluster.close()


def what_does_not_fit_is_told_by_name(world):
    with holdfast.Client(world.server, run="moved") as reader:
        wish = {"a": numpy.zeros(7, int), **{f"no{i:02}": numpy.zeros(1) for i in range(12)}}
        error = raises(holdfast.MismatchError, lambda: reader.load(wish, step=1),
                       "a: I64 [1000] in the checkpoint, I64 [7] here", "no00 [1]: not in",
                       "3 more")
        assert str(error).count("\n") == 11, error


def mistakes_are_exceptions_with_hints(world):
    error = raises(holdfast.UnavailableError,
                   lambda: holdfast.Client("unix:/no/ckptd", connect_seconds=0.2), "/no/ckptd")
    assert error.hint and "\n" not in str(error)
    with holdfast.Client(world.server, run="types") as user:
        for bad in (numpy.zeros(3, "M8[s]"), numpy.array([object()]), numpy.zeros((1,) * 9)):
            raises(holdfast.InvalidError, lambda: user.save(9, {"bad": bad}), "bad")
        raises(holdfast.InvalidError, lambda: user.load({"bool": numpy.zeros(7, bool)[::2]}))
        raises(holdfast.InvalidError, lambda: user.wait(1, "cloud"), "accepted, local")
        raises(holdfast.NotFoundError, lambda: user.metadata(77), "77")
        for step in (-1, 1.5, "2"):
            raises(holdfast.InvalidError, lambda: user.save(step, {"w": numpy.zeros(3)}),
                   f"{step!r} is not a step")
        raises(holdfast.InvalidError, lambda: user.save(9, {5: numpy.zeros(3)}),
               "valid tensor name")
        raises(holdfast.InvalidError, lambda: holdfast.open("a@b@c", server=world.server),
               "run@step")
        raises(holdfast.InvalidError, lambda: holdfast.open("dir:store"),
               "dir:/path/run@step")
        with holdfast.open("types", server=world.server) as found:
            raises(KeyError, lambda: found["nothing"], "nothing")
        user.pin(1, 1, "kept for a test")
        assert [info.pin_note for info in user.list()][0].endswith("kept for a test")
        user.unpin(numpy.int64(1), 1)
        assert not user.list()[0].pinned
    raises(holdfast.InvalidError, lambda: holdfast.Client(f"dir:{world.store}", "x").save(
        1, {"a": numpy.zeros(1)}), "read-only")


def only_a_rollback_takes_a_step_again(world):
    """In a new attempt, once this process has loaded a step below; else the step is a mistake."""
    w = {"w": numpy.zeros(3)}
    with holdfast.Client(world.server, "back") as user:
        for step in (10, 50):
            user.save(step, w).wait()
        error = raises(errors.GoesBackError, lambda: user.save(20, w), "step 20", "step 50", "back")
        assert isinstance(error, errors.ExistsError) and errors.is_final(error) and error.hint
        user.load(w, step=50)
        raises(errors.GoesBackError, lambda: user.save(20, w))
        user.load(w, step=10)
        user.save(20, w).wait()
        raises(errors.GoesBackError, lambda: user.save(15, w))
        user.save(30, w).wait()
        user.load(w, step=20)
        user.save(30, w).wait()
        assert [(info.step, info.attempt) for info in user.list()] == [
            (30, 3), (30, 2), (20, 2), (50, 1), (10, 1)]
        error = raises(errors.ExistsError, lambda: user.save(30, w))
        assert not errors.is_final(error), error


def all_calls_after_close_are_errors(world):
    user = holdfast.Client(world.server, "closed")
    saved = user.save(1, {"w": numpy.arange(6)}, objects={"o": b"bytes"})
    saved.wait()
    for version in holdfast.follow("closed", server=world.server, timeout=10):
        break
    with holdfast.open("closed@1", server=world.server) as found:
        lazy = found["w"]
    with user:
        pass
    user.close()
    w = {"w": numpy.arange(6)}
    for call in (user.start, lambda: user.save(2, w), lambda: user.save(2, {}, {"epoch": 1}),
                 lambda: user.wait(1), saved.wait, lambda: user.warning, lambda: user.load(w),
                 user.metadata, user.list, lambda: user.newer((0, 0)), lambda: user.pin(1, 1),
                 lambda: user.unpin(1, 1), lambda: lazy[...], lazy.bits, lazy.numpy,
                 lambda: numpy.asarray(lazy), lambda: found["w"][0], lambda: found.load(w),
                 lambda: found.take({"w": ...}), lambda: found.object("o"), lambda: found.read([])):
        raises(holdfast.InvalidError, call, "run closed is closed")
    next(holdfast.follow("closed", server=world.server, timeout=10)).close()
    raises(holdfast.InvalidError, lambda: version["w"][...], "run closed is closed")


def dropped_ones_leave_no_descriptor(world):
    """The collector of circles is off: nothing waits for it. A forked child closes nothing."""
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    user = holdfast.Client(world.server, "dropped")
    user.save(1, {"w": numpy.arange(6)}).wait()
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        for _ in range(20):
            assert holdfast.open("dropped@1", server=world.server)["w"][5] == 5
            holdfast.Client(world.server, "dropped").load({"w": numpy.zeros(6, int)})
        assert descriptors() == before, (descriptors(), before)
        child = os.fork()
        if child == 0:
            del user
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert user.save(2, {"w": numpy.arange(6)}).wait() == "local"
    finally:
        gc.enable()
        user.close()


def every_code_of_libckpt_has_an_exception(world):
    with open(os.path.join(ROOT, "clients/ckpt.h")) as header:
        words = header.read().replace(",", " ").split()
    codes = {int(words[at + 2]) for at, word in enumerate(words)
             if word.startswith("CKPT_") and words[at + 1:at + 2] == ["="]
             and words[at + 2].startswith("-")}
    assert codes == set(errors.BY_CODE) and -17 in codes, codes ^ set(errors.BY_CODE)


def tags_verification_removal_and_pruning_are_those_of_ckpt_cli(world):
    os.environ["HOLDFAST_CLI"] = CLI
    with holdfast.Client(world.server, "kept") as saver:
        for step in range(1, 7):
            saver.save(step, {"w": numpy.arange(9000) * step}).wait()
        catalog.tag("kept@3", "best", server=world.server)
        assert world.cli("show", "kept@best", *world.where)[0] == 0
        assert catalog.verify("kept@best", store=world.store)["damages"] == 0
        catalog.untag("kept", "best", server=world.server)
        raises(holdfast.NotFoundError, lambda: catalog.verify("kept@best", server=world.server))
        catalog.remove("kept@1-a1", server=world.server)
        assert [info.step for info in saver.list()] == [6, 5, 4, 3, 2]
        rules = {"keep_last": 2, "keep_every": 3, "server": world.server}
        catalog.prune("kept", dry_run=True, **rules)
        assert len(saver.list()) == 5
        catalog.prune("kept", **rules)
        assert [info.step for info in saver.list()] == [6, 5, 3]
    damage(world, "kept", 3)
    error = raises(holdfast.errors.CorruptError, lambda: catalog.verify("kept@3",
                                                                        store=world.store))
    assert "shard-00001" in str(error) and "repair" in error.hint, error
    os.environ["HOLDFAST_CLI"] = "/no/ckpt-cli"
    error = raises(holdfast.UnavailableError, lambda: catalog.untag("kept", "best"), "/no/ckpt-cli")
    assert "HOLDFAST_CLI" in error.hint


def damage(world, run, step):
    folder = os.path.join(world.store, run, f"step-{step:08}-a0001")
    shard = os.path.join(folder, min(name for name in os.listdir(folder) if "shard" in name))
    change(shard, os.path.getsize(shard) // 2)


def a_damaged_newest_is_logged_and_the_step_before_is_loaded(world):
    weights = numpy.empty(300000)
    with holdfast.Client(world.server, "stepped") as saver:
        for step in (1, 2):
            weights[:] = step
            saver.save(step, {"w": weights}).wait()
    damage(world, "stepped", 2)
    store = client.store_address(world.store)
    with holdfast.Client(store, "stepped") as reader, logged() as said:
        assert reader.load({"w": weights}).step == 1 and (weights == 1).all()
        assert len(said) == 1 and "skipped step 2, attempt 1: " in said[0], said
        raises(holdfast.errors.CorruptError, lambda: reader.load({"w": weights}, 2))
    with holdfast.Client(store, "stepped", 0, 2) as rank:
        raises(holdfast.errors.CorruptError, lambda: rank.load({"w": weights}), "on every rank")


class Held:
    """A tensor of so many bytes, whose copy waits."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def fill(self, memory, at):
        self.begun.set()
        self.go.wait(60)
        memory[:] = 1


def the_last_save_of_a_run_comes_before_those_of_others(world):
    """While a save holds the memory, a last one waits, and no other begins, however small."""
    other, held, size = World(), Held(), 12 << 20
    large = numpy.zeros(size, numpy.uint8)
    other.start("--memory.pool_bytes", "16MiB")
    try:
        with holdfast.Client(other.server, "holds") as holder, holdfast.Client(
                other.server, "ends", busy_seconds=60) as ends, holdfast.Client(
                    other.server, "goes-on") as goes_on:
            goes_on.save(1, {"w": numpy.zeros(9)}).wait()
            part = arrays.Part("w", "U8", (size,), (0,), (size,), 0, held, True)
            threads = [threading.Thread(target=holder.save_parts, args=(1, [part]))]
            threads[0].start()
            assert held.begun.wait(60)
            threads.append(threading.Thread(
                target=lambda: ends.save(1, {"w": large}, last=True).wait()))
            threads[1].start()
            said, step = "", 2
            deadline = time.monotonic() + 60
            while "the last save of another run" not in said and time.monotonic() < deadline:
                try:
                    goes_on.save(step, {"w": numpy.zeros(9)}).wait()
                    step += 1
                except holdfast.BusyError as error:
                    said = str(error)
            held.go.set()
            for thread in threads:
                thread.join()
            assert "the last save of another run waits for memory, and goes first" in said, said
            assert [info.step for info in ends.list()] == [1]
            goes_on.save(step, {"w": numpy.zeros(9)}).wait()
    finally:
        held.go.set()
        other.close()


def replicas_of_a_node_without_ckptd_are_compared(world):
    """Over TCP and TLS, by a client that has the server's address alone."""
    if not shutil.which("openssl"):
        raise Skip("openssl")
    network = Network()
    try:
        network.issue("pair", "holdfast://trainer/apart")
        network.serve()
        said = save_apart(network, 1, server=network.address, HOLDFAST_TLS=network.path("pair"))
        assert "replicas differ: rank 1 holds other bytes than rank 0" in said[0], said
    finally:
        network.close()


FLOW = """
with holdfast.Client(server, "flow") as client:
    for step in range(1, 41):
        client.save(step, {"a": numpy.full(300000, step), "b": numpy.full(7, step)}).wait()
with holdfast.Client(server, "flow", take_over=True) as client:  # rolled back: a higher attempt
    client.save(5, {"a": numpy.full(300000, 500), "b": numpy.full(7, 500)}).wait()
"""


def versions_flow_forwards_and_whole(world):
    """While a run saves 40 steps and then goes back to step 5 in a new attempt."""
    process = child(world, FLOW)
    seen = []
    for version in holdfast.follow("flow", server=world.server, every=0.01, timeout=30):
        first, last = int(version["b"][0]), int(version["a"][-1])
        assert first == last == (500 if version.info.attempt == 2 else version.step)
        seen.append((version.info.attempt, version.step))
        if len(seen) == 1:  # a slow reader: the run continues meanwhile, and the next is its newest
            with holdfast.Client(world.server, "flow") as other:
                newest = other.newer((1, version.step + 2), timeout=30)
        elif len(seen) == 2:
            assert seen[1] >= (newest.attempt, newest.step), (seen, newest)
        if version.info.attempt == 2:
            break
    assert process.wait(30) == 0
    assert seen == sorted(set(seen)) and seen[-1] == (2, 5) and len(seen) > 1, seen
    raises(holdfast.errors.TimeoutError, lambda: next(holdfast.follow(
        "flow", server=world.server, after=seen[-1], every=0.01, timeout=0.1)), "flow")


def the_command_line_lists_shows_and_gets(world):
    def command(*arguments):
        return subprocess.run([sys.executable, "-m", "holdfast", *arguments], capture_output=True,
                              text=True, env=dict(os.environ, PYTHONPATH=SOURCE), timeout=60)

    out = os.path.join(world.folder, "a.npy")
    assert "slices@1-a1" in command("--server", world.server, "list").stdout
    assert " KiB  " in command("list", "slices", "--server", world.server).stdout
    assert "a  I64  [7, 5, 6]" in command("--store", world.store, "show", "slices@1").stdout
    assert command("--store", world.store, "get", "slices@1", "a", out).returncode == 0
    assert numpy.load(out).shape == (7, 5, 6)
    failed = command("--store", world.store, "from-dcp", world.folder, "a@1")
    assert failed.returncode == 2 and "--store" in failed.stderr, failed
    failed = command("--store", world.store, "show", "none@1")
    assert failed.returncode == 66 and failed.stderr.count("\n") == 1, failed.stderr


if __name__ == "__main__":
    bed = World()
    OPTIONS = ("--memory.pool_bytes", "256MiB", "--metrics.every_ms", "100",
               "--metrics.file", os.path.join(bed.folder, "metrics"))
    bed.start(*OPTIONS)
    passed = run(tests_of_script(*sys.argv[1:]), bed)
    bed.close()
    sys.exit(not passed)
