"""lib_hosts - what a node of a test may have for itself: a network namespace, and a disk.

own_mounts() and own_network() put this process into namespaces of its own, so all that is made here
is gone when it ends; Refused where that is not permitted. Then Host(n) is a network namespace on
a bridge with this process (10.77.0.254), and Disk a small ext4 in a file.
"""

import ctypes
import os
import shutil
import subprocess

MIB = 1 << 20
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
HUB = "10.77.0.254"


class Refused(Exception):
    """The system does not let us; str() says what."""


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
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "addr", "add", HUB + "/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")


def add_address(address):
    """One more of this process."""
    run("ip", "addr", "add", address + "/24", "dev", "br0")


class Host:
    """`before`: what puts a program there."""

    def __init__(self, number):
        self.address, self.link = f"10.77.0.{number}", f"p{number}"
        self.keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 100000"],
                                       stdout=subprocess.PIPE)
        self.keeper.stdout.readline()
        self.before = "nsenter", f"--net=/proc/{self.keeper.pid}/ns/net", "--"
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns",
            self.keeper.pid)
        run("ip", "link", "set", self.link, "master", "br0", "up")
        run(*self.before, "ip", "addr", "add", self.address + "/24", "dev", "eth0")
        for link in "eth0", "lo":
            run(*self.before, "ip", "link", "set", link, "up")

    def set_link(self, state):
        """"down": no packet comes through, and nobody is told."""
        run("ip", "link", "set", self.link, state)

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
        written: until nothing fits behind two such writes in a row."""
        with open(os.path.join(self.path, "filler"), "ab", buffering=0) as file:
            full = 0
            while full < 2:
                before = os.fstat(file.fileno()).st_size
                for size in (MIB, 65536, 4096):
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
