#!/usr/bin/env python3
"""read_only - a store that refuses every write while ckptd has nothing to write.

Goal: health reports it without a save. Method: a small ext4 in a file, mounted in a private mount
namespace; the kernel makes it read-only after a simulated error, or shuts it down. Needs root and
loop devices, else skipped.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from lib_hosts import Disk, Refused, own_mounts
from lib_store import World, comes_to
from lib_tap import end, test

EXT4_SHUTDOWN, NO_FLUSH = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN


def mount_read_only(disk):
    """Like the kernel after an error: it becomes read-only, even while files are open for
    writing."""
    subprocess.run(["mount", "-o", "remount,errors=remount-ro", disk.path], check=True)
    with open("/proc/self/mounts") as mounts:
        device, = [line.split()[0] for line in mounts if line.split()[1] == disk.path]
    try:
        with open(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error", "w") as trigger:
            trigger.write("a test")
    except OSError as reason:
        raise Refused(f"this ext4 takes no error: {reason}") from reason


def shut_down(disk):
    fd = os.open(disk.path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_SHUTDOWN, struct.pack("I", NO_FLUSH))
    except OSError as reason:
        raise Refused(f"this ext4 cannot be shut down: {reason}") from reason
    finally:
        os.close(fd)


def story(what, refuse):
    folder, disk, world = tempfile.mkdtemp(prefix="ro-"), None, None
    try:
        disk = Disk(folder, 96, 400)
        world = World(os.path.join(disk.path, "store"))

        def health():
            return world.cli("health", *world.where)
        world.launch("--limits.look_ms", "20")
        world.save([1])
        test(f"{what}: health is good before", health()[0] == 0)
        refuse(disk)
        test(f"{what}: health is 69 although nothing is saved",
             comes_to(lambda: health()[0], 69), health())
        test(f"{what}: health says why", "the store cannot be written: " in health()[2], health())
    finally:
        if world:
            world.close()
        if disk:
            disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    try:
        own_mounts()
        story("a disk that is read only after an error", mount_read_only)
        story("a disk whose file system was shut down", shut_down)
    except Refused as reason:
        print(reason)
        sys.exit(77)
    end()


if __name__ == "__main__":
    main()
