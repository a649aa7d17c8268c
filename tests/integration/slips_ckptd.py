#!/usr/bin/env python3
"""slips_ckptd - what an operator does to a ckptd by mistake: its answer says what is so.

Goal: a socket file that was removed is made again, and ranks that are connected go on; a lock that
is no file ends with 78 and words that name it; a pool that is too small for the ranks is named; a
ckptd whose connections are all in use is not called absent. Method: the real programs.
"""

import os
import re
import socket

from lib_store import PATIENCE, World, wait_until
from lib_tap import end, test

EXIT_DO_NOT_RETRY = 78


def removed_sockets(world):
    world.launch("--limits.look_ms", "20")
    world.save_one(1)
    path = world.server[len("unix:"):]
    os.unlink(path)
    os.unlink(path + ".arena")
    wait_until(lambda: os.path.exists(path) and os.path.exists(path + ".arena"), world.log)
    world.save_one(2)
    test("sockets that were removed are made again, and take ranks", world.steps() == [1, 2])
    test("which the log says", world.log().count("was removed, and is made again") == 2,
         world.log())
    world.stop()
    code, _, err = world.cli("status", *world.where)
    test("without a socket the answer is that there is none", code == 69 and
         "there is no such socket" in err, (code, err))


def full(world):
    world.launch("--limits.sessions", "1", "--limits.connect_ms", "600000")
    path = world.server[len("unix:"):]
    crowd = []
    for _ in range(400):  # until ckptd hangs up
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
        crowd.append(one)
    code, _, err = world.cli("status", *world.where)
    test("with all connections in use an operator gets in, or hears why not", code == 0 or
         re.search("all its connections (are|were) in use", err), (code, err))
    for one in crowd:
        one.close()
    world.stop()


def lock_is_a_fifo(world):
    lock = os.path.join(world.store, ".holdfast.lock")
    os.rename(lock, lock + "-")
    os.mkfifo(lock)
    world.spawn()
    code = world.process.wait(PATIENCE)
    test("a lock that is a FIFO is named, with 78", code == EXIT_DO_NOT_RETRY and
         ".holdfast.lock in the store is no regular file, but a FIFO" in world.log(),
         (code, world.log()))
    os.unlink(lock)
    os.rename(lock + "-", lock)


def pool_too_small(world):
    world.launch("--memory.pool_bytes", "1MiB")
    good, said = world.try_save(3)
    test("a pool that is too small for the ranks is named, with what to enlarge", not good and
         "too little for rank 0" in said and "enlarge memory.pool_bytes" in said, said)
    world.stop()


def main():
    world = World()
    try:
        removed_sockets(world)
        full(world)
        lock_is_a_fifo(world)
        pool_too_small(world)
    finally:
        world.close()
    end()


main()
