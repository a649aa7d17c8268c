#!/usr/bin/env python3
"""reload - settings of one run, reloaded settings, and a check before a start.

Goal: [run.NAME] sets retention and limits of that run alone. `ckpt-cli server reload` and SIGUSR1
apply new rules without a restart, and name the settings that need one. A refused file changes
nothing; SIGHUP still ends ckptd. `ckptd --check` reports errors and starts nothing. Method: the
real programs.
"""

import glob
import os
import signal
import socket

from lib_store import BUILD, PATIENCE, World, change, comes_to
from lib_tap import end, test


class Configured(World):
    def __init__(self):
        super().__init__()
        self.file = os.path.join(self.folder, "conf")
        self.write("")

    def write(self, text):
        with open(self.file, "w") as file:
            file.write(text)

    def comes_to(self, steps):
        return comes_to(self.steps, steps)


def checked(world):
    folder, outside = world.folder, ["env", "-u", "AWS_ACCESS_KEY_ID", "HOME=/nonexistent"]
    small = ("--memory.pool_bytes", "64TiB", "--memory.segment_bytes", "1GiB")
    taken = socket.create_server(("127.0.0.1", 0))
    port = f"127.0.0.1:{taken.getsockname()[1]}"
    for what, options, before, want, words in (
            ("a store that is not there is made by a start", (), (), 0, "a start makes it"),
            ("but not the directories above it", ("--store", folder + "/deeper/store"), (), 78,
             f"the store's directory cannot be made there: {folder}/deeper"),
            ("a file of metrics that cannot be written is told",
             ("--metrics.file", folder + "/deeper/a.prom"), (), 0,
             f"metrics: {folder}/deeper/a.prom cannot be written"),
            ("a far tier that is not reached is told: a start goes on without it",
             ("--tier.store", f"dir:{folder}/mount/store"), (), 0,
             f"tier: dir:{folder}/mount/store cannot be reached: "),
            ("one that is no store yet, too", ("--tier.store", f"dir:{folder}"), (), 0,
             "starts without it"),
            ("a bucket without credentials ends a start", ("--tier.store", "s3://bucket/runs"),
             outside, 78, "there are no credentials"),
            ("the directory of the socket is made", ("--listen", f"unix:{folder}/a/s.sock"), (), 0,
             "a start makes it"),
            ("but not the one above it", ("--listen", f"unix:{folder}/a/b/s.sock"), (), 78,
             "no socket can be made"),
            ("a port must be free", ("--http.listen", port), (), 78,
             f"{port}: Address already in use"),
            ("and of this machine", ("--http.public", "--http.listen", "192.0.2.1:9464"), (), 78,
             "192.0.2.1:9464: Cannot assign requested address"),
            ("and a pool must fit into the memory", small, (), 78, "lower memory")):
        code, out, _ = world.check(*options, before=before)
        test(f"--check: {what}", code == want and words in out, (code, out))
    taken.close()
    test("it makes nothing, and what can be written is not told", not os.path.exists(world.store)
         and "metrics:" not in world.check("--metrics.file", folder + "/a.prom")[1])
    world.write("[run.a]\nquota = \"1GiB\"\n")
    test("a section of a run is accepted",
         world.check("--config", world.file)[0] == 0)
    for text, why in (("[run.a]\nquota = \"much\"\n", "quota"),
                      ('[run."a/b"]\nquota = 3\n', "this name of a run is invalid"),
                      ("[run.a]\nkeep = 3\n", "'run.a.keep' is unknown"),
                      ("[limits]\nlease_ms = 9\nloads = 9\n", "limits.loads is no key any more"),
                      ("[retention]\nkeep_lots = 3\n", "did you mean")):
        world.write(text)
        code, _, err = world.check("--config", world.file)
        test(f"--check is 78 for a configuration that is wrong: {why}", code == 78 and why in err,
             (code, err))


def system_allows(world):
    shm = os.statvfs("/dev/shm")
    code, out, _ = world.check()
    test("--check tells the size of /dev/shm", code == 0 and
         f"/dev/shm: {shm.f_blocks * shm.f_frsize} bytes" in out, out)
    code, out, _ = world.check(before=[os.path.join(BUILD, "shims/no_uring")])
    test("where io_uring is refused it would start, and it says what to do", code == 0 and
         "io_uring: refused" in out and "io_uring_disabled" in out, (code, out))
    bound = ["setpriv", "--bounding-set=-ipc_lock"] if os.geteuid() == 0 else []
    code, out, _ = world.check(before=[*bound, "prlimit", "--memlock=1048576:1048576"])
    test("likewise where less memory may be locked than the pool has", code == 0 and
         "memlock: RLIMIT_MEMLOCK is less than memory.pool_bytes = 67108864" in out, (code, out))
    code, out, _ = world.check("--memory.pool_bytes", "1MiB",
                               before=[*bound, "prlimit", "--memlock=1048576:1048576"])
    test("and not where it is enough", code == 0 and "memlock: the pool may be" in out, (code, out))


def outgrown(world):
    """By a run of 5 checkpoints, of which a new rule would let 3 go."""
    def reload(rules):
        world.write(f"[retention]\n{rules}")
        world.cli("server", "reload", *world.where)

    def said():
        return world.cli("status", *world.where)[1]

    def alarmed():
        return "the rules remove nothing: 3 of 5 checkpoints" in said()

    reload("")
    world.save_one(8)
    world.save_one(9)
    reload("keep_last = 1\n")
    test("rules that would let most go remove nothing, and that is an alarm, whole",
         comes_to(alarmed, True) and world.steps() == [5, 6, 7, 8, 9] and
         "retention.may_remove_most, allows it)\n" in said(), said())
    reload("")
    test("no rules, no alarm", comes_to(alarmed, False), said())
    reload("keep_last = 1\n")
    comes_to(alarmed, True)
    reload("keep_last = 1\nmay_remove_most = true\n")
    test("it ends when they remove", world.comes_to([8, 9]) and comes_to(alarmed, False), said())


def limited(world):
    world.write("[run.trip]\nquota = 1\n")
    world.launch("--config", world.file)
    world.try_save(1)
    said = world.cli("status", *world.where)[1]
    test("a run that has not saved yet has no newest step in status", "no checkpoint yet" in said
         and "newest step" not in said, said)
    test("what ckptd says is there to its end", max(map(len, said.split("\n"))) > 220 and
         said.count("or raise the quota and `ckpt-cli server reload`)\n") == 4, said)
    world.write("")
    world.cli("server", "reload", *world.where)
    world.save([1, 2, 3])
    size = world.listed()[0]["bytes"]
    world.write(f"[run.{world.run}]\nquota = {3 * size + size // 2}\n")
    code, out, _ = world.cli("server", "reload", *world.where)
    saved, said = world.try_save(4)
    health = world.cli("health", *world.where)
    test("after a reload the quota of a run holds, and health says why", code == 0 and not saved and
         f"the quota of run {world.run} is" in said + health[2] and health[0] == 69,
         (out, said, health))
    world.write(f"[run.other]\nretention.keep_last = 1\n[run.{world.run}]\n"
                f"quota = {3 * size + size // 2}\nretention.keep_last = 2\n"
                "[memory]\npool_bytes = \"128MiB\"\n[scrub]\nrate = 0\n")
    code, out, _ = world.cli("server", "reload", *world.where)
    test("a rule that is reloaded is applied at once, and what needs a restart is named",
         code == 0 and "needs a restart: scrub.rate\n" in out and world.comes_to([2, 3]), out)
    world.save_one(4)
    test("it holds for later saves, which fit again", world.comes_to([3, 4]) and
         world.cli("health", *world.where)[0] == 0,
         (world.steps(), world.cli("health", *world.where), world.log()))
    world.write("[retention]\nkeep_last = \"many\"\n")
    code, _, err = world.cli("server", "reload", *world.where)
    test("a file that is refused changes nothing", code != 0 and "keep_last" in err, (code, err))
    world.write("[retention]\nkeep_last = 3\n")
    world.process.send_signal(signal.SIGUSR1)
    for step in (5, 6, 7):
        world.save_one(step)
    test("SIGUSR1 reads it again", world.comes_to([5, 6, 7]), (world.steps(), world.log()))
    with socket.create_server(("127.0.0.1", 0)) as taken:  # by the ckptd that serves it
        code, out, _ = world.check("--config", world.file, "--http.listen",
                                   f"127.0.0.1:{taken.getsockname()[1]}")
    test("--check of a store that is served says so, and lets it have its ports", code == 0 and
         "1 runs, 3 checkpoints, 0 damaged" in out and "in use now" in out, out)
    test("and which process must end before a start", out.splitlines()[-1] == "ckptd would start "
         "after the ckptd that has the store open has ended; a start before that exits with 75",
         out)
    outgrown(world)
    world.process.send_signal(signal.SIGHUP)
    test("SIGHUP ends ckptd", world.process.wait(PATIENCE) == 0)
    manifest = glob.glob(os.path.join(world.store, world.run, "step-00000009-*", "manifest.json"))
    os.chmod(manifest[0], 0o600)
    change(manifest[0], 20)
    out = world.check()[1]
    test("--check counts what is damaged, and leaves no note", "1 damaged" in out and
         not os.path.exists(os.path.join(world.store, world.run, "quarantine")), out)


def main():
    world = Configured()
    try:
        checked(world)
        system_allows(world)
        limited(world)
    finally:
        world.close()
    end()


main()
