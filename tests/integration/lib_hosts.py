"""lib_hosts - private resources of a test's node: a network namespace, and a disk.

own_mounts() and own_network() put this process into new namespaces, so everything made here
disappears when it ends; they raise Refused where that is not permitted. Namespace is one for the
programs of a host, connected by lib_switch, and Disk a small ext4 in a file.
"""

import ctypes
import os
import shutil
import subprocess

MIB = 1 << 20
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000


class Refused(Exception):
    """The system does not permit it; str() gives the reason."""


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise Refused((done.stderr or done.stdout).strip() or " ".join(map(str, words)))


def own_mounts():
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        raise Refused("only root can mount a file system, and mkfs.ext4 makes it")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise Refused("a mount namespace is not permitted here")
    run("mount", "--make-rprivate", "/")


def own_network():
    if not shutil.which("ip") or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise Refused("a network namespace is not permitted here")
    run("ip", "link", "set", "lo", "up")


class Namespace:
    """A network namespace; `before`: the command that runs a program in it."""

    def __init__(self):
        if not shutil.which("ip"):
            raise Refused("ip is missing")
        self.keeper = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "ip link set lo up; echo; exec sleep 100000"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.before = "nsenter", f"--net=/proc/{self.keeper.pid}/ns/net", "--"
        if not self.keeper.stdout.readline():
            self.close()
            raise Refused("a network namespace is not permitted here")

    def close(self):
        self.keeper.kill()
        self.keeper.wait()
        self.keeper.stdout.close()


class Disk:
    """An ext4 of our own, with nothing kept for root. Mounted for this process alone."""

    def __init__(self, folder, mib, inodes):
        image, self.path = os.path.join(folder, "image"), os.path.join(folder, "disk")
        os.mkdir(self.path)
        with open(image, "wb") as file:
            file.truncate(mib * MIB)
        run("mkfs.ext4", "-q", "-m", "0", "-N", inodes, image)
        run("mount", "-o", "loop", image, self.path)

    def fill(self):
        """Takes every block, also those of removed files, which are free once the journal is
        written: until nothing fits after two such writes in a row."""
        with open(os.path.join(self.path, "filler"), "ab", buffering=0) as file:
            full = 0
            while full < 2:
                before = os.fstat(file.fileno()).st_size
                for size in (MIB, 65536, 1024):
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        pass
                full = full + 1 if os.fstat(file.fileno()).st_size == before else 0
                ctypes.CDLL(None).syncfs(file.fileno())

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
