#!/usr/bin/env python3
"""full_disk - the real programs on a file system without space, and on one without inodes.

Goal: a save that does not fit fails and says so, ckptd goes on, what was committed stays whole and
loads, a prune works on the full disk and makes room, and then saves are committed again. Method: a
small ext4 in a file, mounted by this test in a mount namespace of its own; a filler takes the
space, empty files take the inodes. Needs root and loop devices, else skipped.
time limit: 120 s
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from lib_tap import end, test

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
CLI = os.path.join(BUILD, "ckpt-cli")
SAVER = os.path.join(BUILD, "tests/clients_ckpt")
MIB = 1 << 20
PATIENCE = 60
CLONE_NEWNS = 0x20000


def skip(reason):
    print(reason)
    sys.exit(77)


class Disk:
    """An ext4 of our own, with nothing kept for root. Mounted for this process alone."""

    def __init__(self, folder, mib, inodes):
        image, self.path = os.path.join(folder, "image"), os.path.join(folder, "disk")
        os.mkdir(self.path)
        with open(image, "wb") as file:
            file.truncate(mib * MIB)
        made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", str(inodes), image],
                              capture_output=True, text=True)
        mounted = made.returncode == 0 and subprocess.run(
            ["mount", "-o", "loop", image, self.path], capture_output=True, text=True)
        if not mounted or mounted.returncode != 0:
            skip("a loop-mounted file system is not permitted here: " +
                 (mounted.stderr if mounted else made.stderr).strip())

    def fill(self):
        """Takes every block."""
        with open(os.path.join(self.path, "filler"), "wb", buffering=0) as file:
            for size in (MIB, 65536, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def use_inodes(self):
        os.mkdir(os.path.join(self.path, "many"))
        try:
            for i in range(1 << 20):
                os.close(os.open(os.path.join(self.path, "many", str(i)), os.O_CREAT))
        except OSError:
            pass

    def free(self):
        for name in ("filler", "many"):
            path = os.path.join(self.path, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.remove(path)

    def close(self):
        subprocess.run(["umount", self.path], check=False)


class World:
    def __init__(self, folder, disk):
        self.server, self.store = f"unix:{folder}/s", os.path.join(disk.path, "store")
        self.log = os.path.join(folder, "log")
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "ckptd"), "--listen", self.server, "--store", self.store,
             "--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "1MiB",
             "--limits.lease_ms", "1000", "--storage.usable_fraction", "1"],
            stderr=open(self.log, "ab"))
        deadline = time.monotonic() + PATIENCE
        while self.cli("health", "--server", self.server)[0] != 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(1.05)  # for so long nothing is removed: readers of a ckptd before

    def cli(self, *arguments):
        done = subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True,
                              timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def save(self, step):
        done = subprocess.run([SAVER, "save", self.server, "2", "1", str(step)], timeout=PATIENCE,
                              capture_output=True, text=True)
        return done.returncode == 0, done.stderr

    def steps(self):
        return sorted(e["step"] for e in json.loads(self.cli("list", "--json", "--store",
                                                              self.store)[1]))

    def whole(self, steps):
        run = json.loads(self.cli("list", "--json", "--store", self.store)[1])[0]["run"]
        return all(self.cli("verify", "--store", self.store, f"{run}@{step}")[0] == 0
                   for step in steps)

    def prune(self, keep):
        run = json.loads(self.cli("list", "--json", "--store", self.store)[1])[0]["run"]
        return self.cli("prune", run, "--server", self.server, "--keep-last", keep, "--most")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def story(what, mib, inodes, take, spare):
    folder = tempfile.mkdtemp(prefix="fd-")
    disk = Disk(folder, mib, inodes)
    world = World(folder, disk)
    try:
        saved = [world.save(step) for step in range(1, 7)]
        test(f"{what}: saves fit at first", all(ok for ok, _ in saved), saved)
        take(disk)
        ok, text = world.save(7)
        test(f"{what}: a save without room fails and says why",
             not ok and world.process.poll() is None and
             ("space" in text.lower() or "does not fit" in text), text)
        test(f"{what}: what was committed is listed and whole",
             world.steps() == list(range(1, 7)) and world.whole(range(1, 7)), world.steps())
        code, out, err = world.prune(2)
        if code != 0 and spare:  # a removal needs one inode: it says so, and leaves all whole
            test(f"{what}: a prune that lacks what it needs leaves all whole",
                 world.process.poll() is None and world.whole(range(1, 7)), (code, out, err))
            os.remove(os.path.join(disk.path, spare))
            code, out, err = world.prune(2)
        test(f"{what}: a prune works and needs no room",
             code == 0 and world.steps() == [5, 6] and world.whole([5, 6]),
             (code, out, err, world.steps()))
        if not spare:
            ok, text = world.save(8)
            test(f"{what}: the room that it made takes the next save",
                 ok and world.steps() == [5, 6, 8] and world.whole([8]), text)
        disk.free()
        ok, text = world.save(9)
        test(f"{what}: saves go on afterwards", ok and world.whole([5, 6, 9]), text)
        test(f"{what}: ckptd ends well", world.end() == 0)
    finally:
        if world.process.poll() is None:
            world.process.kill()
            world.process.wait()
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        skip("only root can mount a file system, and mkfs.ext4 makes it")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        skip("a mount namespace is not permitted here")
    subprocess.run(["mount", "--make-rprivate", "/"], check=False)
    story("full disk", 96, 400, Disk.fill, None)
    story("no inodes", 96, 400, Disk.use_inodes, "many/0")
    end()


if __name__ == "__main__":
    main()
