#!/usr/bin/env python3
"""full_disk - the real programs on a file system without space, and on one without inodes.

Goal: a save that does not fit fails and says so, ckptd goes on, what was committed stays whole and
loads, a prune works on the full disk and makes room, and then saves are committed again. Method: a
small ext4 in a file, mounted by this test in a mount namespace of its own; a filler takes the
space, empty files take the inodes. Needs root and loop devices, else skipped.
also without io_uring
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile

from lib_store import World, mark
from lib_tap import end, test

MIB = 1 << 20
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
        with open(os.path.join(self.path, "filler"), "ab", buffering=0) as file:
            for size in (MIB, 65536, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def use_inodes(self):
        many = os.path.join(self.path, "many")
        os.makedirs(many, exist_ok=True)
        try:
            for i in range(len(os.listdir(many)), 1 << 20):
                os.close(os.open(os.path.join(many, str(i)), os.O_CREAT))
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


def tools(what, disk, world, take):
    """Without a server: what a crash left goes, and so does what a prune of the directory says."""
    unfinished = os.path.join(world.store, world.run, "step-00000077-a0077")
    os.mkdir(unfinished)
    open(os.path.join(unfinished, "shard-00001-of-00001.safetensors"), "w").close()
    mark(unfinished)
    take(disk)
    code, out, err = world.cli("gc", "--store", world.store)
    test(f"{what}: gc removes what a crash left",
         code == 0 and not os.path.exists(unfinished) and not world.all_verify(), (code, out, err))
    kept = world.steps()[-2:]
    take(disk)
    code, out, err = world.cli("verify", f"{world.run}@{kept[1]}", "--store", world.store)
    test(f"{what}: a tool that has no room for its lease says so and reads on",
         code == 0 and "without a lease" in err, (code, out, err))
    code, out, err = world.cli("prune", world.run, "--store", world.store, "--keep-last", 1,
                               "--most")
    test(f"{what}: a prune of the directory works",
         code == 0 and world.steps() == kept and not world.all_verify(),
         (code, out, err, world.steps()))


def story(what, mib, inodes, take, refills):
    """`refills`: what a prune frees is room for a save; of inodes ckptd keeps some for removals."""
    folder = tempfile.mkdtemp(prefix="fd-")
    disk = Disk(folder, mib, inodes)
    world = World(os.path.join(disk.path, "store"))
    try:
        world.launch("--storage.usable_fraction", "1")
        world.save(range(1, 7))
        test(f"{what}: saves fit at first", world.steps() == list(range(1, 7)), world.steps())
        take(disk)
        ok, text = world.try_save(7)
        test(f"{what}: a save without room fails and says why",
             not ok and world.process.poll() is None and
             ("space" in text.lower() or "does not fit" in text), text)
        test(f"{what}: what was committed is listed and whole",
             world.steps() == list(range(1, 7)) and not world.all_verify(), world.steps())
        code, out, err = world.cli("gc", "--store", world.store, "--dry-run")
        test(f"{what}: gc looks at it all the same", code == 0, (code, out, err))
        code, out, err = world.cli("prune", world.run, "--server", world.server, "--keep-last", 3,
                                   "--most")
        test(f"{what}: a prune works and needs no room",
             code == 0 and world.steps() == [4, 5, 6] and not world.all_verify(),
             (code, out, err, world.steps()))
        ok, text = world.try_save(8)
        test(f"{what}: the room that it made takes the next save" if refills else
             f"{what}: what it freed is kept for removals",
             ok == refills and world.steps() == [4, 5, 6] + [8] * refills, text)
        test(f"{what}: ckptd ends well", world.end() == 0, world.log())
        tools(what, disk, world, take)
        world.launch("--storage.usable_fraction", "1")
        disk.free()
        ok, text = world.try_save(9)
        test(f"{what}: saves go on afterwards", ok and 9 in world.steps(), text)
        test(f"{what}: all of it is whole", not world.all_verify(), world.all_verify())
        test(f"{what}: ckptd ends well the second time", world.end() == 0, world.log())
    finally:
        world.close()
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        skip("only root can mount a file system, and mkfs.ext4 makes it")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        skip("a mount namespace is not permitted here")
    subprocess.run(["mount", "--make-rprivate", "/"], check=False)
    story("full disk", 96, 400, Disk.fill, True)
    story("no inodes", 96, 400, Disk.use_inodes, False)
    end()


if __name__ == "__main__":
    main()
