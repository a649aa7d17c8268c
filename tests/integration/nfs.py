#!/usr/bin/env python3
"""nfs - two ckptd on one shared directory that keeps only the promises of NFS.

Goal: names that are seen late, answers that are lost and files that are open when they are removed
cost no checkpoint: of two writers one owns each attempt, a pin by one blocks the other's removal,
retention removes checkpoints whole, and remains of NFS are not listed. Method: the real programs on
a `dir:` tier through build/shims/nfs.so, each a separate client. IT IS NO NFS MOUNT, which not
every kernel has: the shim shows names as the client of Linux shows them. tests/shims/nfs.c says
how, and lists its gaps. Locks that a server forgets: tests/unit/storage_shared.c.
"""

import glob
import os
import subprocess

from lib_store import BUILD, CLI, PATIENCE, World, make_tier, wait_until
from lib_tap import end, test
from tier import PARTS, drained, races, verified

LOST_EVERY = 3  # of the calls that change a name
RULES = ("--tier.keep_last", "2", "--retention.keep_last", "2", "--retention.may_remove_most",
         "true", "--scrub.period_s", "0")


class Client(World):
    """A ckptd for which the far tier, and that alone, is on NFS."""

    def __init__(self, far=None):
        super().__init__()
        self.far = far or os.path.join(self.folder, "far")
        if not far:
            make_tier(self.folder, self.far)
        self.options = ("--tier.store", "dir:" + self.far, *PARTS, "--tier.look_ms", "0")

    def shim(self, lost=LOST_EVERY):
        return {"LD_PRELOAD": os.path.join(os.path.abspath(BUILD), "shims/nfs.so"),
                "NFS_ROOT": self.far, "NFS_LOST": str(lost)}

    def start(self, *options):
        assert os.path.exists(self.shim()["LD_PRELOAD"]), "the shim is not built"
        settings = (f"{name}={value}" for name, value in self.shim().items())
        self.launch(*(options or self.options), before=("env", *settings))

    def far_steps(self):
        return sorted(entry["step"] for entry in self.listed("--store", self.far))

    def save_and_drain(self, *steps):
        for step in steps:
            self.save_one(step)
            wait_until(drained(self), lambda: self.log()[-3000:])
        self.run = self.run or self.listed()[0]["run"]

    def name(self, step):
        entry = next(one for one in self.listed("--store", self.far) if one["step"] == step)
        return f"{self.run}@{step}-a{entry['attempt']}"

    def rest(self):
        """Unexpected files: objects of steps without a manifest, tombstones, names of NFS."""
        steps = glob.glob(f"{self.far}/{self.run}/step-*")
        return [path for path in steps if not os.path.exists(os.path.join(path, "manifest.json"))] \
            + glob.glob(f"{self.far}/{self.run}/tombstones/step-*") \
            + [os.path.join(folder, name) for folder, _, names in os.walk(self.far)
               for name in names if name.startswith(".nfs")]


def removals(one, other):
    one.start(*one.options, *RULES)
    one.save_and_drain(*range(1, 8))
    wait_until(lambda: one.far_steps() == [6, 7], lambda: (one.far_steps(), one.log()[-3000:]))
    wait_until(lambda: not one.rest(), lambda: (one.rest(), one.log()[-3000:]))
    test("what the rules give up goes whole, also when every third answer is lost",
         verified(one, one.run) is None, (one.far_steps(), one.rest()))
    test("and no lost answer is taken for another's work",
         "error" not in one.log().lower(), one.log()[-3000:])
    other.run = one.run
    other.start(*other.options, *RULES)
    listed = {entry["step"] for entry in other.listed(*other.where)}
    test("the other client lists what is there", listed == {6, 7}, listed)


def pinned_late(one, other):
    """`other` has just looked for pins and tombstones: it may remember that there are none."""
    other.save_and_drain(8)
    wait_until(lambda: one.far_steps() == [7, 8], lambda: (one.far_steps(), other.log()[-3000:]))
    code, out, err = one.cli("pin", one.name(7), *one.where)
    other.save_and_drain(9, 10)
    wait_until(lambda: one.far_steps() == [7, 9, 10],
               lambda: (one.far_steps(), other.log()[-3000:]))
    test("a pin that one client makes holds back the other, which had just seen none",
         code == 0 and 7 in one.far_steps(), (code, out, err))
    code, out, err = one.cli("unpin", one.name(7), *one.where)
    test("and it can be taken back", code == 0, (out, err))
    one.stop()
    other.stop()


def tool(one, lost, *arguments):
    """ckpt-cli as a separate client, which loses the answer of its first change, and of every
    n-th."""
    done = subprocess.run([CLI, *arguments, "--store", "dir:" + one.far], text=True,
                          capture_output=True, timeout=PATIENCE,
                          env=dict(os.environ, **one.shim(lost)))
    return done.returncode, done.stderr


def tools(one):
    names = [one.run, "other"]
    for lost in (2, 3, 4, 5):
        said = tool(one, lost, "rename", *names)
        test(f"a run is renamed, whatever answer is lost ({lost})",
             said[0] == 0 and verified(one, names[1]) is None, said)
        names.reverse()
    said = tool(one, 3, "pin", one.name(10)), tool(one, 3, "unpin", one.name(10))
    test("a pin is taken away by who removed it, though the second answer says it was not there",
         [code for code, _ in said] == [0, 0], said)


def main():
    one = Client()
    removals(one, other := Client(one.far))
    pinned_late(one, other)
    tools(one)
    one = Client()
    races([one, Client(one.far)], one.options, 10)
    end()


if __name__ == "__main__":
    main()
