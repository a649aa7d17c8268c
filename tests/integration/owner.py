#!/usr/bin/env python3
"""owner - who may stop a run, or make it save.

Goal: `ckpt-cli stop` and `save` are for the user, or the certificate, that trains the run, and for
operators. Others, whom access.uids or a certificate of a trainer admits, are refused with what to
do, and the run goes on. Method: a real ckptd; a trainer of another user, if root starts this, and
one over TLS with a certificate; ckpt-cli with each identity.
"""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib_tap  # noqa: E402
import lib_train  # noqa: E402

lib_tap.need_programs("openssl")
from lib_network import Network  # noqa: E402
from lib_store import CLI, PATIENCE, comes  # noqa: E402
from lib_tap import skip, test  # noqa: E402

OWNER, STRANGER, CHIEF = 12345, 12346, 12347  # users
LONG = "--training.steps", 1000000, "--checkpoint.interval", 1000000
REFUSED = 74
OF_USERS = ("another user of access.uids may not stop the run",
            "nor make it save", "the refusal says who trains it, and who may", "ckptd logs it",
            "the user who trains it may make it save", "an operator may stop it")


def said_by(process):
    return os.pread(process.said.fileno(), 1 << 20, 0).decode(errors="replace")


def trains(process):
    return comes(lambda: re.search(r"step: +\d+0 ", said_by(process)))


def as_user(user):
    return {"user": user, "group": user, "extra_groups": [], "cwd": "/"}


def of_users(world):
    if os.geteuid() != 0:
        skip(OF_USERS, "not root")
        return
    for folder in (os.path.dirname(world.folder), world.folder):
        os.chmod(folder, os.stat(folder).st_mode | 0o055)
    home = world.path("home")
    os.mkdir(home)
    os.chown(home, OWNER, OWNER)
    tools = {name: shutil.copy(name, world.folder) for name in
             (CLI, os.path.join(lib_train.BUILD, "trainer"))}
    words = lib_train.command(world.folder, world.server, "mine", *LONG,
                              "--metrics.loss_file", os.path.join(home, "loss"))
    process = lib_train.Trainer([tools[words[0]], *words[1:]], **as_user(OWNER))

    def ask(user, *what):
        return subprocess.run([tools[CLI], *what, "mine", *world.where], text=True,
                              capture_output=True, timeout=PATIENCE, **as_user(user))
    assert trains(process), said_by(process)
    stop, save = ask(STRANGER, "stop"), ask(STRANGER, "save")
    test(OF_USERS[0], stop.returncode == REFUSED and process.poll() is None, stop)
    test(OF_USERS[1], save.returncode == REFUSED and process.poll() is None, save)
    test(OF_USERS[2], f"run mine is trained by user {OWNER}, process " in stop.stderr and
         f"user {STRANGER}, process " in stop.stderr and "access.operators" in stop.stderr, stop)
    test(OF_USERS[3], f"Stop or AskSave refused to user {STRANGER}, process " in world.log(),
         world.log()[-2000:])
    save = ask(OWNER, "save")
    test(OF_USERS[4], save.returncode == 0 and
         comes(lambda: " is durable " in said_by(process)), (save, said_by(process)))
    stop = ask(CHIEF, "stop")
    process.wait(3 * PATIENCE)
    test(OF_USERS[5], stop.returncode == 0 and process.returncode == 78,
         (stop, process.returncode, said_by(process)))


def train_far(world, server):
    words = lib_train.command(world.folder, server, "far", *LONG, "--metrics.loss_file",
                              os.path.join(world.folder, "far.loss"))
    process = lib_train.Trainer(words, env={**os.environ, "HOLDFAST_TLS": world.path("far")})
    assert trains(process), said_by(process)
    return process


def of_certificates(world):
    world.issue("far", "holdfast://trainer/far")
    world.issue("anna", "holdfast://operator/anna")
    process = train_far(world, world.address)
    code, said = world.ask("anna", "save", "far")
    test("an operator's certificate may make a run of another one save", code == 0 and
         comes(lambda: " is durable " in said_by(process)), said)
    code, said = world.ask("far", "stop", "far")
    process.wait(3 * PATIENCE)
    test("the one that trains it may stop it", code == 0 and process.returncode == 78,
         (said, process.returncode, said_by(process)))
    process = train_far(world, world.server)
    code, said = world.ask("far", "stop", "far")
    test("a run that a user of this machine trains is not that certificate's to stop",
         code == REFUSED and f"run far is trained by user {os.geteuid()}, process " in said and
         process.poll() is None, said)
    code, _, said = world.cli("stop", "far", *world.where)
    process.wait(3 * PATIENCE)
    test("but that user's", code == 0 and process.returncode == 78, said)


def main():
    world = Network()
    try:
        lib_train.make_tokens(world.folder, lib_train.prose())
        world.serve("--access.uids", f"{OWNER},{STRANGER}", "--access.operators", str(CHIEF))
        of_users(world)
        of_certificates(world)
        world.stop()
    finally:
        world.close()
    lib_tap.end()


main()
