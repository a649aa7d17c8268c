#!/usr/bin/env python3
"""limits - ckptd with too few resources: locked memory, descriptors, address space, file size,
threads.

Goal: with too little to start ckptd exits with a code, never by a signal, and a message that names
the setting to change. A shortage later fails only the operation that needs the resource
(descriptors: ckptd_trouble). Method: the real programs under prlimit, as another user where root is
exempt from the limit.
"""

import json
import os
import resource
import shutil
import subprocess
import sys

from lib_store import BUILD, PATIENCE, SAVER, World, is_sanitized
from lib_tap import end, skip, test

NOBODY = 65534
MIB = 1 << 20
EXIT_CODES = (75, 78)


def starts(world):
    name = "a pool beyond the address space is refused"
    if is_sanitized():
        skip([name], "a sanitizer takes the address space")
    else:
        code, _, text = world.refused("--memory.pool_bytes", "2GiB", "--memory.segment_bytes",
                                      "256MiB", before=("prlimit", f"--as={512 * MIB}"))
        test(name, code in EXIT_CODES and "memory.pool_bytes" in text, (code, text))
    code, _, text = world.refused(before=("prlimit", "--nofile=40"))
    test("more segments than descriptors are refused",
         code in EXIT_CODES and "Too many open files" in text, (code, text))
    code, _, text = world.refused("--memory.segment_bytes", "16MiB",
                                  before=("prlimit", f"--fsize={MIB}"))
    test("segments beyond the size of a file are refused",
         code in EXIT_CODES and "File too large" in text, (code, text))
    left = set(os.listdir(world.store) if os.path.exists(world.store) else ())
    test("nothing of that left more in the store than its lock", left <= {".holdfast.lock"}, left)


def memory(world):
    """A limit that is reached when ckptd serves already, and takes the memory of its pool:
    ckptd_fill.c."""
    world.spawn(env=dict(os.environ, LD_PRELOAD=os.path.join(BUILD, "shims/fill.so"),
                         FILL_SEGMENT="4"))
    code = world.process.wait(PATIENCE)
    test("memory that is not there after all ends it with an exit code and words", code == 75 and
         "could not take the memory of the pool" in world.log() and
         "lower memory.pool_bytes" in world.log(), (code, world.log()))


def file_size(world):
    world.launch()
    world.save([1, 2])
    world.stop()
    world.launch(before=("prlimit", f"--fsize={MIB}"))
    done = subprocess.run([SAVER, "save", world.server, "2", "1", "3"], capture_output=True,
                          text=True, timeout=60)
    test("a shard larger than a file may be fails the save and not ckptd",
         done.returncode != 0 and world.process.poll() is None and world.steps() == [1, 2],
         (done.returncode, done.stderr, world.process.poll()))
    test("it says why", "File too large" in done.stderr + world.log(), done.stderr)
    test("and ends in order", world.end() == 0, world.log())


OTHER = ["without the right to lock memory its buffers are not registered, and it says so",
         "and it saves, loads and verifies all the same",
         "without a thread for its workers it is refused"]


def as_another_user(world):
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    os.chmod(world.folder, 0o755)
    ckptd = shutil.copy(world.ckptd, world.folder)  # others may not enter the build
    if os.geteuid() != 0 or not shutil.which("setpriv") or subprocess.run(
            [*other, "prlimit", ckptd, "--version"], capture_output=True).returncode != 0:
        skip(OTHER, "another user cannot be had, or cannot run ckptd from here")
        return
    world.ckptd = ckptd
    world.store = os.path.join(world.folder, "other")
    os.mkdir(world.store)
    os.chown(world.store, NOBODY, NOBODY)
    os.chown(world.folder, NOBODY, NOBODY)
    world.launch(before=(*other, "prlimit", "--memlock=65536:65536"))
    code, out, err = world.cli("status", "--server", world.server, "--json")
    text = json.loads(out)["storage"] if code == 0 else err
    test(OTHER[0], "unregistered buffers" in text or "pwrite threads" in text, text)
    world.run = None
    world.save([1, 2])
    loaded = subprocess.run([SAVER, "load", world.server, "1", "1", "2"], timeout=60,
                            capture_output=True).returncode
    test(OTHER[1], loaded == 0 and world.steps() == [1, 2] and not world.all_verify())
    world.stop()
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # which needs a thread
    done = subprocess.run([*other, "prlimit", "--nproc=1", ckptd, "--listen", world.server,
                           "--store", world.store, "--memory.pool_bytes", "64MiB",
                           "--memory.segment_bytes", "1MiB"],
                          capture_output=True, text=True, timeout=30,
                          env=dict(os.environ, ASAN_OPTIONS=sanitizer))
    test(OTHER[2], done.returncode in EXIT_CODES and "threads.workers" in done.stderr,
         (done.returncode, done.stderr))


def main():
    if not shutil.which("prlimit"):
        print("prlimit (util-linux) is not installed")
        sys.exit(77)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    world = World()
    try:
        starts(world)
        memory(world)
        file_size(world)
        as_another_user(world)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
