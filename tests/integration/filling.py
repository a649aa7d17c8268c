#!/usr/bin/env python3
"""filling - ckptd serves while it takes the memory of its pool, and ends when it cannot have it.

Goal: list, status, saves and loads are answered before the pool is full, and status says how far it
is; memory that is not there after all ends ckptd as at its start, with an exit code and words that
name what to change, and harms nothing. Method: the real program; build/shims/fill.so lets one
segment wait for its memory for ever, which is where the filling then stands, or refuses it.
"""

import os
import struct
import subprocess

from lib_store import BUILD, PATIENCE, SAVER, World, comes
from lib_tap import end, test

MIB = 1 << 20
EXIT_RUN_AGAIN = 75
SEGMENT = 4  # the one that is refused, or waits
WAITS, REFUSED = 1, 0


def short_of_memory(world, how):
    """The environment of a ckptd that does not get the memory of that segment."""
    path = os.path.join(world.folder, "fill")
    with open(path, "wb") as file:
        file.write(struct.pack("qq", SEGMENT, how))
    return dict(os.environ, LD_PRELOAD=os.path.join(BUILD, "shims/fill.so"), FILL_FILE=path)


def pool(world):
    return world.status()["pool"]


def wait_for(world, ready):
    comes(lambda: pool(world)["bytes_ready"] >= ready)
    return pool(world)


def loads(world, step):
    return subprocess.run([SAVER, "load", world.server, "3", "1", str(step)], timeout=PATIENCE,
                          capture_output=True).returncode == 0


def serves_meanwhile(world):
    world.launch(env=short_of_memory(world, WAITS))
    found = wait_for(world, (SEGMENT - 1) * MIB)
    test("it answers, and says how much of its pool it has",
         found["bytes"] == 64 * MIB and found["bytes_ready"] == (SEGMENT - 1) * MIB, found)
    test("it lists what there is", world.listed("--server", world.server) == [])
    world.save([1, 2])
    test("it saves, with memory made for the save", world.steps() == [1, 2], world.steps())
    test("other ranks load that", loads(world, 2) and loads(world, 1))
    found = pool(world)
    test("all that while its pool was not full",
         found["bytes_ready"] < found["bytes"] and "memory: took" not in world.log(), found)
    world.process.kill()  # a thread waits for ever
    world.process.wait()


def ends_without(world):
    world.spawn(env=short_of_memory(world, REFUSED))
    code = world.process.wait(PATIENCE)
    test("memory that is not there after all ends it with an exit code", code == EXIT_RUN_AGAIN,
         code)
    test("and with words that name what to change",
         "could not take the memory of the pool" in world.log() and
         "lower memory.pool_bytes" in world.log(), world.log())


def fills(world):
    world.launch()
    found = wait_for(world, 64 * MIB)
    test("with memory its pool becomes full", found["segments_ready"] == 64, found)
    comes(lambda: "memory: took" in world.log())
    test("and it says so, once", world.log().count("memory: took 64 MiB in 64 segments") == 1)
    test("nothing was harmed", world.steps() == [1, 2] and loads(world, 2) and
         not world.all_verify())
    test("it ends in order", world.end() == 0, world.log())


def main():
    world = World()
    try:
        serves_meanwhile(world)
        ends_without(world)
        fills(world)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
