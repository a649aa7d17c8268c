#!/usr/bin/env python3
"""slips - what an operator gets wrong: a name, an option, a place, a right.

Goal: a slip is told as what it is, with its exit code, before anything is done; nothing that exists
is lost by it, --force included; an answer as JSON is a whole document or none. Method: a store with
checkpoints and its ckptd; each slip as a command line, and a look at what was there before.
"""

import json
import os
import shutil
import stat
import subprocess

from lib_store import CLI, World
from lib_tap import end, skip, test

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def refused(world, name, code, words, *arguments):
    """It ends with that code, says the words, and prints nothing."""
    got, out, err = world.cli(*arguments)
    test(name, got == code and words in err and out == "", (got, out, err))


def names(world):
    refused(world, "an empty --store is not the default", 2, "--store is empty", "list", "--store",
            "")
    refused(world, "nor is an empty --server", 2, "--server is empty", "unpin", "x", "--server", "")
    for server in ("localhost:1", world.folder + "/s", "unix:", "tcp:1"):
        refused(world, f"a server is a socket: {server.replace(world.folder, '')}", 2,
                "is no socket", "list", "--server", server)
    refused(world, "a span of time has a unit", 2, "not a span of time", "prune", world.run,
            *world.where, "--keep-within", "7")
    refused(world, "a pattern that fits no tensor is refused", 2, "fits no tensor", "export",
            world.run, "--store", world.store, "--output", world.folder + "/out", "--dtype", "bf16",
            "--except", "*nrom*=fp32")
    refused(world, "of a conversion too", 2, "fits no tensor", "convert", world.run, "--store",
            world.store, "--output", world.folder + "/out", "--dtype", "bf16", "--except", "x=fp32")
    refused(world, "nor is one of --only", 2, "fits no tensor", "export", world.run, "--store",
            world.store, "--output", world.folder + "/out", "--only", "*,nosuch")
    refused(world, "a folder of Hugging Face is whole", 2, "takes no --only", "export", world.run,
            "--store", world.store, "--output", world.folder + "/out", "--format", "hf", "--only",
            "*")
    refused(world, "one file is not cut", 2, "--format hf", "export", world.run, "--store",
            world.store, "--output", world.folder + "/out", "--shard-size", "1MiB")
    test("none of them left an output", not os.path.exists(world.folder + "/out"))


def no_stores(world):
    """A directory that is none, which no command turns into one."""
    plain, copy, empty, new = (os.path.join(world.folder, name)
                               for name in ("plain", "bare", "empty", "new"))
    os.makedirs(os.path.join(plain, "letters", "step-by-step"))
    run, one = world.run, f"{world.run}@1-a1"
    for words in (["list"], ["list", run], ["show", run], ["verify", run], ["du"], ["gc"],
                  ["gc", "--dry-run"], ["prune", run, "--keep-last", "9"], ["pin", run],
                  ["unpin", one], ["verify", run, "--release"], ["diff", one, run],
                  ["export", run, "--output", new], ["convert", run, "--output", new, "--dtype",
                                                     "bf16"]):
        refused(world, f"of a directory that is no store {' '.join(words[:1])} says that", 66,
                f"{plain} is not a Holdfast store", *words, "--store", plain)
    refused(world, "nor is one made where none is", 66, "No such file", "gc", "--store", new)
    refused(world, "of a run's directory it says whose it is", 66, "name the directory above",
            "list", "--store", os.path.join(world.store, run))
    test("and nothing was left there", os.listdir(plain) == ["letters"] and
         not os.path.exists(new) and ".holdfast.lock" not in os.listdir(
             os.path.join(world.store, run)), os.listdir(plain))
    shutil.copytree(world.store, copy)
    os.remove(os.path.join(copy, ".holdfast.lock"))
    code, out, err = world.cli("list", "--store", copy)
    test("a copy without the lock file is a store", (code, out) ==
         world.cli("list", "--store", world.store)[:2] and
         ".holdfast.lock" not in os.listdir(copy), (out, err))
    os.mkdir(empty)
    shutil.copy(os.path.join(world.store, ".holdfast.lock"), empty)
    test("and so is one without a run", [world.cli(command, "--store", empty)[:2] for command in
         ("list", "gc")] == [(0, "no checkpoints\n"), (0, "0 files, 0 B removed\n")])


def outputs(world):
    def export(path, *more):
        return world.cli("export", world.run, "--store", world.store, "--output", path, *more)

    folder = os.path.join(world.folder, "outputs")
    os.mkdir(folder)
    pipe, link, file = (os.path.join(folder, name) for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    os.symlink("nowhere", link)
    step = os.path.join(world.store, world.run, sorted(
        name for name in os.listdir(os.path.join(world.store, world.run))
        if name.startswith("step-"))[0])
    before = {name: os.path.getsize(os.path.join(step, name)) for name in os.listdir(step)}
    for name, path, want in (("a pipe", pipe, "plain file"), ("a link", link, "plain file"),
                             ("a folder", folder, "plain file"),
                             ("a name that ends with a slash", folder + "/new/", "plain file"),
                             ("a manifest", step + "/manifest.json", "lies in a checkpoint"),
                             ("a file in a checkpoint", step + "/new", "lies in a checkpoint")):
        code, _, err = export(path, "--force")
        test(f"--force does not replace {name}", code == 74 and want in err, (code, err))
    test("they are what they were", stat.S_ISFIFO(os.stat(pipe).st_mode) and
         os.readlink(link) == "nowhere" and before == {
             name: os.path.getsize(os.path.join(step, name)) for name in os.listdir(step)})
    with open(file + ".part", "w") as part:
        part.write("of an export that was cut short")
    code, _, err = export(file)
    test("what an export left unfinished is named", code == 74 and "file.part" in err and
         "--force" in err, err)
    code, _, err = export(file, "--force")
    test("and replaced with --force", code == 0 and os.listdir(folder).count("file.part") == 0 and
         os.path.getsize(file) > 4096, (code, err))


def damage(world):
    """In a copy of the store."""
    copy = os.path.join(world.folder, "copy")
    shutil.copytree(world.store, copy)
    run = os.path.join(copy, world.run)
    steps = sorted(name for name in os.listdir(run) if name.startswith("step-"))
    shard = [name for name in os.listdir(os.path.join(run, steps[0])) if "shard-" in name][0]
    with open(os.path.join(run, steps[0], shard), "ab") as file:
        file.write(b"x")
    entries = sorted(world.listed("--store", copy), key=lambda entry: entry["step"])
    name = f"{world.run}@{entries[0]['step']}"
    code, out, err = world.cli("verify", name, "--store", copy, "--json")
    found = json.loads(out)["damage"]
    test("nothing is said of tensors that were not read", code == 1 and len(found) == 1 and
         "instead of" in found[0]["what"], (code, out, err))
    os.truncate(os.path.join(run, steps[1], "manifest.json"), 100)
    code, out, err = world.cli("diff", name, f"{world.run}@{entries[1]['step']}", "--store", copy)
    test("whose manifest is damaged is told", code == 1 and steps[1] in err and out == "", err)
    os.remove(os.path.join(run, steps[2], "manifest.json"))
    os.symlink("/etc/hostname", os.path.join(run, steps[2], "manifest.json"))
    code, out, err = world.cli("list", "--store", copy, "--json")
    links = [entry for entry in json.loads(out) if entry["step"] == entries[2]["step"]]
    test("a link in place of a manifest is damage", code == 0 and
         "damage" in links[0], (code, out, err))
    code, out, err = world.cli("du", "--store", copy, "--json")
    test("du counts the rest and fails", code == 74 and "could not be looked into" in err and
         json.loads(out)["bytes"] > 0 and json.loads(out)["runs"][0]["error"], (code, out, err))


def pinned(world):
    """A pin outlives the manifest of what it is on."""
    copy = os.path.join(world.folder, "pinned")
    shutil.copytree(world.store, copy)
    entry = world.listed("--store", copy)[-1]
    name = f"{entry['run']}@{entry['step']}-a{entry['attempt']}"
    world.cli("pin", name, "--store", copy, "--note", "the first")
    code, out, _ = world.cli("pin", name, "--store", copy, "--note", "the second")
    test("a second pin says that the first note stays", code == 0 and "pinned before" in out, out)
    step = os.path.join(copy, entry["run"], f"step-{entry['step']:08d}-a{entry['attempt']:04d}")
    os.rename(step + "/manifest.json", copy + "/kept")
    code, out, err = world.cli("gc", "--store", copy)
    test("gc names what is pinned and has no manifest, and leaves it", code == 74 and
         "pinned" in err and len(os.listdir(step)) == entry["world_size"], (code, out, err))
    other = World(copy)
    other.start()
    shards = os.listdir(step)
    other.stop()
    test("and so does a start of ckptd", len(shards) == entry["world_size"] and
         "has no manifest, and stays" in other.log(), other.log())
    other.close()
    os.rename(copy + "/kept", step + "/manifest.json")
    test("with its manifest it is whole again", world.cli("verify", name, "--store", copy)[0] == 0)


def rights(world):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        skip(["another user's call is denied, not unanswered", "through a closed folder too",
              "what may not be read is damaged, and the rest is read"],
             "becoming another user needs root and setpriv")
        return

    def as_nobody(*arguments):
        done = subprocess.run([*AS_NOBODY, CLI, *arguments], capture_output=True, text=True,
                              timeout=60)
        return done.returncode, done.stdout, done.stderr

    os.chmod(world.folder, 0o755)
    code, out, err = as_nobody("list", *world.where)
    test("another user's call is denied, not unanswered", code == 74 and "may not come in" in err,
         (code, out, err))
    os.chmod(world.folder, 0o700)
    code, out, err = as_nobody("list", *world.where)
    test("through a closed folder too", code == 74 and "may not come in" in err, (code, out, err))
    os.chmod(world.folder, 0o755)
    entries = world.listed()
    newest = f"step-{entries[0]['step']:08d}-a{entries[0]['attempt']:04d}"
    os.chmod(os.path.join(world.store, world.run, newest, "manifest.json"), 0o600)
    code, out, err = as_nobody("list", "--store", world.store, "--json")
    damaged = [entry["step"] for entry in json.loads(out or "[]") if "damage" in entry]
    test("what may not be read is damaged, and the rest is read", code == 0 and
         damaged == [entries[0]["step"]] and len(entries) > 1, (code, out, err))


def main():
    world = World()
    try:
        world.start()
        world.save([1, 2, 3])
        names(world)
        no_stores(world)
        outputs(world)
        damage(world)
        pinned(world)
        rights(world)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
