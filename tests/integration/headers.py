#!/usr/bin/env python3
"""headers - shards whose headers contradict their manifest, under right hashes.

Goal: no reader accepts a checkpoint that `verify` calls damaged: loads by ckptd and from the
directory, export, cp and reshard name the header and leave no files. Method: a checkpoint saved
through libckpt; the type or the name of a tensor is changed in its manifest, which then gets right
hashes.
"""

import glob
import os
import re
import sys

from lib_store import World, sealed, take_libckpt
from lib_tap import need, run

need("numpy")
import numpy  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "clients/python/src"))
sys.dont_write_bytecode = True
take_libckpt()
import holdfast  # noqa: E402

LIES = {"type": (b'{"name":"w","dtype":"F32"', b'{"name":"w","dtype":"I32"', {"w": "i4"}),
        "name": (b'{"name":"w",', b'{"name":"x",', {"x": "f4"})}


def each_lie(world, look):
    """look(the arrays that the changed manifest promises) while the store has such a manifest."""
    path, = glob.glob(os.path.join(world.store, "lies", "step-*", "manifest.json"))
    with open(path, "rb") as file:
        text = file.read()
    try:
        for before, after, wanted in LIES.values():
            assert text.count(before) == 1, text[-2000:]
            with open(path, "wb") as file:
                file.write(sealed(text.replace(before, after)))
            look({name: numpy.zeros((300, 400), kind) for name, kind in wanted.items()})
    finally:
        with open(path, "wb") as file:
            file.write(text)


def is_refused(server, wanted):
    try:
        with holdfast.Client(server, "lies") as client:
            client.load(wanted, 1)
    except holdfast.CorruptError as error:
        assert re.search("header", str(error)), error
        return
    raise AssertionError(f"{server} filled {list(wanted)}")


def verify_names_the_header(world):
    def look(_):
        code, out, err = world.cli("verify", "lies@1", "--store", world.store)
        assert code == 1 and "header" in out, (code, out, err)
    each_lie(world, look)


def tools_take_nothing_of_it(world):
    new, other = os.path.join(world.folder, "new"), os.path.join(world.folder, "other")
    commands = (("export", "lies@1", "--output", new), ("cp", "lies@1", "copied"),
                ("convert", "lies@1", "--output", other, "--shards", "2"))

    def look(_):
        for command in commands:
            code, out, err = world.cli(*command, "--store", world.store)
            assert code != 0 and "header" in err, (command, code, out, err)
            assert not os.path.exists(new)
        assert not glob.glob(os.path.join(world.store, "copied", "step-*", "manifest.json"))
        assert not glob.glob(os.path.join(other, "*", "step-*", "manifest.json"))
    each_lie(world, look)


def a_load_from_the_directory_is_refused(world):
    each_lie(world, lambda wanted: is_refused("dir:" + world.store, wanted))


def a_load_by_ckptd_is_refused(world):
    def look(wanted):
        world.launch()
        is_refused(world.server, wanted)
        world.stop()
        os.system(f"rm -rf '{world.store}/lies/quarantine'")
    each_lie(world, look)


def what_is_whole_again_loads(world):
    arrays = {"w": numpy.zeros((300, 400), "f4")}
    with holdfast.Client("dir:" + world.store, "lies") as client:
        client.load(arrays, 1)
    assert (arrays["w"].reshape(-1) == numpy.arange(120000)).all()


if __name__ == "__main__":
    bed = World()
    bed.start()
    with holdfast.Client(bed.server, "lies") as saver:
        saver.save(1, {"w": numpy.arange(120000, dtype="f4").reshape(300, 400),
                       "v": numpy.ones(7, "f4")}).wait()
    bed.stop()
    passed = run([verify_names_the_header, tools_take_nothing_of_it,
                  a_load_from_the_directory_is_refused, a_load_by_ckptd_is_refused,
                  what_is_whole_again_loads], bed)
    bed.close()
    sys.exit(not passed)
