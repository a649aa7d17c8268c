#!/usr/bin/env python3
"""slips - an operator's mistakes: a name, an option, a place, a right.

Goal: a mistake is reported as such, with its exit code, before any change. No existing data is lost
by it, --force included; an answer as JSON is a whole document or none. ckptd repairs mistakes made
to it, or names them: sockets that were removed, a lock that is no file, a pool that is too small, a
crowd of connections. Method: a store with checkpoints and its ckptd; each mistake as a command
line; then the test checks the earlier files.
"""

import json
import os
import re
import shutil
import socket
import stat
import subprocess

import lib_program
from lib_store import CLI, PATIENCE, World, wait_until
from lib_table import run_table
from lib_tap import end, skip, test

EXIT_DO_NOT_RETRY = 78
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


NAMES = """
-- as typed
list --store '' => 2 ! --store is empty
unpin x --server '' => 2 ! --server is empty
list --server {folder}/s; list --server tcp; list --server :1; list --server host:0;
list --server host:65536; list --server a:b:1 => 2 ! is no address
list --server unix:; list --server unix:s => 2 ! names no socket
health --server unix:/{long} => 2 ! ckpt-cli: the path ! at most 107
list --forc => 2 ! '--forc' is unknown (did you mean '--store'?)
gc --dry-rum => 2 ! did you mean '--dry-run'?
advise x --step-time 0; advise x --save-time 0 => 2 ! must be above 0 seconds
advise x --step-time -1 => 2 ! is wanted
advise x --mtbf 0h => 2 ! --mtbf must be above 0
help list show => 2 ! help takes at most 1 argument
server scrub => 2 ! server scrub takes at least 1 argument, not 0
server; server --json => 2 ! server takes an action
server dance => 2 ! server has no action 'dance'
status --interval 1 => 2 ! status does not take --interval
status --watch --all => 2 ! status --watch does not take --all
export x --format dcp --only y => 2 ! export --format dcp does not take --only
export x --format dcp => 2 ! add --output FOLDER
import {folder} --format dcp => 2 ! add --run RUN@STEP
import {folder} --run x --format safetensors --store {store} => 2 ! does not support
list --format hf => 2 ! list does not take --format
bench => 2 ! bench takes an action
bench io => 2 ! bench io takes 1 argument, not 0
bench io {folder} --block 5000; bench io {folder} --bytes 4KiB;
bench io {folder} --bytes 1PiB --block 4KiB; bench io {folder} --block 64MiB --depth 17 => 2 ! (
bench io {folder} --server unix:/x => 2 ! bench io does not take --server
bench io {new} => 66 ! could not create a folder there
doctor x => 2 ! doctor takes 0 arguments, not 1
doctor --store {store} => 2 ! doctor does not take --store
reshard {run}@4 --store '/a b' -o {new} --shards 4
 => 2 ! reshard is convert now (ckpt-cli convert {run}@4 --store '/a b' -o {new} --shards 4)
watch --count 1 => 2 ! (ckpt-cli status --watch --count 1)
scrub start {run}; rescan; reload; history {run}; attempt {run} --force => 2 ! (ckpt-cli server
from-dcp {folder} r@1 --server unix:/a
 => 2 ! (ckpt-cli import --format dcp {folder} --run r@1 --server unix:/a)
to-dcp --server unix:/a {run} {new}
 => 2 ! (ckpt-cli export --format dcp --server unix:/a {run} --output {new})
from-safetensors a b@1 => 2 ! (ckpt-cli import --format safetensors-folder a --run b@1)
to-safetensors a@1 b => 2 ! (ckpt-cli export --format safetensors-folder a@1 --output b)
help reshard => 2 ! reshard is convert now
dance; list --colour red; list --store {store} --server unix:/x;
status --watch --store {store} --server unix:/x => 2 ! (
help dance => 2 ! 'dance'
--store {folder} list => 2 ! the command comes first
list --store {new}; gc --store {new} --dry-run; status --watch --store {new} => 66
-- absent
list; show {run}; status; health; verify {run}; diff {run} {run}; du; gc; status --watch;
convert {run} --dtype bf16 --output {new} => 69 ! start ckptd
-- server
prune {run} --keep-last 1 --best highest => 2 ! applies only to --keep-best
prune {run} --keep-within 7; prune {run} --keep-within '7 parsecs' => 2 ! not a duration
prune {run} => 2 ! no rule
status --watch --interval 0 => 2
-- store
export {run} --output {out} --dtype bf16 --except *nrom*=fp32 => 2 ! matches no tensor
convert {run} --output {out} --dtype bf16 --except x=fp32 => 2 ! matches no tensor
export {run} --output {out} --only *,nosuch => 2 ! matches no tensor
export {run} --output {out} --format hf --only * => 2 ! does not apply to --format hf
export {run} --output {out} --shard-size 1MiB => 2 ! --format hf
report {run} --output {out} --quick => 2 ! report does not take --quick
verify; verify {run}@%; export {run}; convert {run} --dtype bf16; convert {run} --output {new};
convert {run} --dtype bf16 --output {store}; diff {run} {run} --quick; diff {run};
list --dtype fp32; gc {run} => 2 ! (
verify --sample 0%; verify {run} --sample 0%; verify {run} --sample x; verify --all --release => 2
prune {run} --keep-last 2 => 74 ! --server
gc => 74 ! in use by process {pid} ! --server
export {run} --output /nonexistent/folder/file => 74
-- both
show ..; list ..; du 'a b'; pin a/b; unpin ''; verify {long}; prune .. --keep-last 1 => 2
list nobody; du nobody; verify nobody; pin nobody@1-a1; unpin nobody@1-a1; show {run}@1-a9;
pin {run}@1-a9; pin {run}@77 => 66
report ..; report {run}@4 --output {out} => 2
report nobody --output {out}; report {run} --json --metrics {new} => 66
report {run} --json --metrics {folder} => 74 ! {folder}
report {run} --output /nonexistent/folder/file => 74
show nobody => 66 ! nobody
show nobody --json => 66 ! "error": "ERR_NOT_FOUND", "exit_code": 66 ! "hint": "see
prune nobody --keep-last 1; prune nobody --keep-last 1 --dry-run => 66 ! there is no run "nobody"
show {run}@77; du {run}@77 => 66 ! ckpt-cli: run '{run}' has no checkpoint of step 77
"""
# A directory that is none, which no command turns into one.
NO_STORES = """
-- plain
list; list {run}; show {run}; verify {run}; du; gc; gc --dry-run; prune {run} --keep-last 9;
pin {run}; unpin {one}; verify {run} --release; diff {one} {run}; export {run} --output {new};
convert {run} --output {new} --dtype bf16 => 66 ! {plain} is not a Holdfast store
-- as typed
gc --store {new} => 66 ! No such file
list --store {store}/{run} => 66 ! name the directory above
list --store {empty} => 0 > no checkpoints
gc --store {empty} => 0 > 0 files, 0 B removed
"""


def names(world):
    out = os.path.join(world.folder, "out")
    store = ("--store", world.store)
    new, steps = os.path.join(world.folder, "new"), world.steps()
    run_table(NAMES, {"as typed": [()], "server": [world.where], "store": [store],
                      "both": [store, world.where],
                      "absent": [("--server", f"unix:{world.folder}/nobody")]},
              run=world.run, folder=world.folder, store=world.store, out=out, new=new,
              long="x" * 128, pid=world.process.pid)
    test("none of them left an output, or changed the store",
         not os.path.exists(out) and not os.path.exists(new) and world.steps() == steps)


def no_stores(world):
    plain, copy, empty, new = (os.path.join(world.folder, name)
                               for name in ("plain", "bare", "empty", "new"))
    os.makedirs(os.path.join(plain, "letters", "step-by-step"))
    os.mkdir(empty)
    shutil.copy(os.path.join(world.store, ".holdfast.lock"), empty)
    run_table(NO_STORES, {"as typed": [()], "plain": [("--store", plain)]}, run=world.run,
              one=f"{world.run}@1-a1", plain=plain, new=new, empty=empty, store=world.store)
    test("and nothing was left there", os.listdir(plain) == ["letters"] and
         not os.path.exists(new) and ".holdfast.lock" not in os.listdir(
             os.path.join(world.store, world.run)), os.listdir(plain))
    world.copy_store(copy)
    os.remove(os.path.join(copy, ".holdfast.lock"))
    code, out, err = world.cli("list", "--store", copy)
    test("a copy without the lock file is a store", (code, out) ==
         world.cli("list", "--store", world.store)[:2] and
         ".holdfast.lock" not in os.listdir(copy), (out, err))


def completions(world):
    """A shell completes exactly the words that the command takes."""
    def offered(*words):
        code, out, err = world.cli("--complete", *words)
        return out.split("\n")[:-1] if (code, err) == (0, "") else (code, err)

    run, steps = world.run, [f"{world.run}@{step}-a{step}" for step in (3, 2, 1)]
    start = world.run[:2]
    for where in (["--store", world.store], list(world.where)):
        for words, want in ((["list", *where, start], [run]), (["prune", *where, run + "@"], []),
                            (["show", *where, run + "@"], steps),
                            (["du", *where, start], [run, *steps]),
                            (["show", run, *where, start], []),
                            (["diff", run, *where, steps[0]], [steps[0]]),
                            (["gc", *where, start], [])):
            test(f"{' '.join(words[:1])} is offered {len(want)} words, {where[0]}",
                 offered(*words) == want, offered(*words))
    test("a folder is offered once", offered("import", "x") == [":files"] and
         offered("import", "x", "y") == [] and offered("export", run, "--output", "") == [":files"])
    test("an action is offered, and what it takes",
         offered("server", "sc")[0].split("\t")[0] == "scrub" and
         offered("server", "history", "--store", world.store, start) == [run] and
         [line.split("\t")[0] for line in offered("status", "--wa")] == ["--watch"])
    test("help is offered commands", offered("help", "unp")[0].split("\t")[0] == "unpin")


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
    for name, path, want in (("a pipe", pipe, "regular file"), ("a link", link, "regular file"),
                             ("a folder", folder, "regular file"),
                             ("a name that ends with a slash", folder + "/new/", "regular file"),
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


def full_outputs(world):
    """An answer that could not be written is an error, short or long, once or again and again: the
    end of main() looks at every command's."""
    said = "could not write the output: stdout: No space left on device"
    for words in ("list", f"show {world.run}", f"diff {world.run} {world.run}@1",
                  "status --watch --interval 0.1", "help", "--version"):
        where = [] if words in ("help", "--version") else ["--store", world.store]
        for how in ([], ["--json"]) if where else ([],):
            with open("/dev/full", "w") as full:
                done = lib_program.run(CLI, *words.split(), *where, *how, stdout=full)
            test(f"{' '.join(words.split()[::2] + how)} into a full disk is code 74",
                 done.returncode == 74 and (
                     json.loads(done.stderr)["detail"] == "stdout: No space left on device"
                     if how else done.stderr == f"ckpt-cli: {said}\n"),
                 (done.returncode, done.stderr))


def damage(world):
    """In a copy of the store."""
    copy = os.path.join(world.folder, "copy")
    world.copy_store(copy)
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
    test("a link in place of a manifest is damage", code == 1 and
         "damage" in links[0], (code, out, err))
    code, out, err = world.cli("du", "--store", copy, "--json")
    test("du counts the rest and fails", code == 74 and "could not be read" in err and
         json.loads(out)["bytes"] > 0 and json.loads(out)["runs"][0]["error"], (code, out, err))


def skipped(world):
    """The newest whole one is shown, and the ones skipped for it are reported."""
    copy = os.path.join(world.folder, "skipping")
    world.copy_store(copy)
    newest, middle, oldest = world.listed("--store", copy)

    def quarantine(entry, reason):
        folder = os.path.join(copy, world.run, "quarantine")
        os.makedirs(folder, exist_ok=True)
        name = f"step-{entry['step']:08d}-a{entry['attempt']:04d}"
        with open(os.path.join(folder, name), "w") as note:
            note.write(reason)

    quarantine(newest, "a bit is wrong")
    quarantine(middle, "another one is")
    other = World(copy)
    other.launch()
    sides = (("--store", copy), other.where)

    def said_by(*words):
        """From both sides, without the times of the lines on stderr."""
        said = [other.cli(*words, *where) for where in sides]
        return [(code, out, [line.split(" ", 1)[1] for line in err.splitlines()])
                for code, out, err in said]

    said = said_by("show", world.run, "--json")
    shown = json.loads(said[0][1])
    test("show says what it passes over, alike from both sides", said[0] == said[1] and
         [line.split(" is damaged and skipped: ")[1] for line in said[0][2]] ==
         ["a bit is wrong", "another one is"], [err for _, _, err in said])
    test("and its JSON too", shown["step"] == oldest["step"] and shown["skipped"] == [
        {"step": newest["step"], "attempt": newest["attempt"], "damage": "a bit is wrong"},
        {"step": middle["step"], "attempt": middle["attempt"], "damage": "another one is"}], shown)
    said = said_by("show", f"{world.run}@{newest['step']}", "--json")
    test("of a step that is named nothing is passed over", said[0] == said[1] and
         "skipped" not in json.loads(said[0][1]) and said[0][2] == [], said)
    said = said_by("unpin", world.run)
    test("what else takes the newest says it as well", said[0][2][:2] == said[1][2][:2] and
         [line.count("skipped") for line in said[0][2][:2]] == [1, 1], said)
    other.stop()
    quarantine(oldest, "and here")
    other.launch()
    said = said_by("show", world.run)
    test("when all are damaged that is the error, alike from both sides", said[0] == said[1] and
         said[0][0] == 1 and "every checkpoint" in said[0][2][0], said)
    other.stop()
    other.close()


def pin_notes(world, copy, name):
    """A pin's text is shown wherever the pin is, from both sides."""
    long = "x" * 30 + " \u00fc " + "y" * 30
    entries = world.listed("--store", copy)
    other = World(copy)
    other.launch()
    code, _, err = other.cli("pin", world.run, *other.where, "--note", long)
    test("a pin through a server has a note", code == 0, err)
    for where in (("--store", copy), other.where):
        notes = [entry.get("pin_note") for entry in other.listed(*where)]
        test(f"list --json tells the notes of pins, {where[0]}", notes ==
             [long] + [None] * (len(entries) - 2) + ["the first"], notes)
        out = other.cli("list", *where)[1]
        test(f"and list the beginning of each, {where[0]}",
             f"pinned ({'x' * 30} ?? {'y' * 6}...)\n" in out and
             ", pinned (the first)\n" in out, out)
        out = other.cli("show", name, *where)[1]
        test(f"and show, {where[0]}", "\npinned       yes: the first\n" in out, out[:300])
        shown = [json.loads(other.cli("show", one, *where, "--json")[1])
                 for one in (world.run, name, f"{world.run}@{entries[1]['step']}")]
        test(f"and show --json, {where[0]}", [(one["pinned"], one.get("pin_note"))
             for one in shown] == [(True, long), (True, "the first"), (False, None)],
             [(one["pinned"], one.get("pin_note")) for one in shown])
    other.cli("unpin", world.run, "--store", copy)  # a pin on the directory, beside the server
    other.cli("pin", world.run, "--store", copy, "--note", "by hand")
    other.cli("prune", world.run, *other.where, "--keep-last", "9", "--dry-run")
    notes = [entry.get("pin_note") for entry in other.listed(*other.where)]
    test("a server that plans reads the notes anew", notes[0] == "by hand", notes)
    other.cli("unpin", world.run, *other.where)
    notes = [entry.get("pin_note") for entry in other.listed(*other.where)]
    test("and forgets them with the pin", notes[0] is None, notes)
    other.stop()
    other.close()


def pinned(world):
    """A pin survives the manifest of its checkpoint."""
    copy = os.path.join(world.folder, "pinned")
    world.copy_store(copy)
    entry = world.listed("--store", copy)[-1]
    name = f"{entry['run']}@{entry['step']}-a{entry['attempt']}"
    world.cli("pin", name, "--store", copy, "--note", "the first")
    code, out, _ = world.cli("pin", name, "--store", copy, "--note", "the second")
    test("a second pin says that the first note stays", code == 0 and "pinned before" in out, out)
    pin_notes(world, copy, name)
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
         "is not served: it has no manifest" in other.log(), other.log())
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
    test("another user's call is denied, not unanswered", code == 74 and "may not connect" in err,
         (code, out, err))
    os.chmod(world.folder, 0o700)
    code, out, err = as_nobody("list", *world.where)
    test("through a closed folder too", code == 74 and "may not connect" in err, (code, out, err))
    os.chmod(world.folder, 0o755)
    entries = world.listed()
    newest = f"step-{entries[0]['step']:08d}-a{entries[0]['attempt']:04d}"
    os.chmod(os.path.join(world.store, world.run, newest, "manifest.json"), 0o600)
    code, out, err = as_nobody("list", "--store", world.store, "--json")
    damaged = [entry["step"] for entry in json.loads(out or "[]") if "damage" in entry]
    test("what may not be read is damaged, and the rest is read", code == 1 and
         damaged == [entries[0]["step"]] and len(entries) > 1, (code, out, err))


# ---- mistakes made to a ckptd


def removed_sockets(world):
    world.launch("--limits.look_ms", "20")
    world.save_one(1)
    path = world.server[len("unix:"):]
    os.unlink(path)
    os.unlink(path + ".arena")
    wait_until(lambda: os.path.exists(path) and os.path.exists(path + ".arena"), world.log)
    world.save_one(2)
    test("sockets that were removed are made again, and take ranks", world.steps() == [1, 2])
    test("which the log says", world.log().count("was removed, and ckptd created it again") == 2,
         world.log())
    world.stop()
    code, _, err = world.cli("status", *world.where)
    test("without a socket the answer is that there is none", code == 69 and
         "there is no such socket" in err, (code, err))


def full(world):
    world.launch("--limits.sessions", "1", "--limits.connect_ms", "600000")
    path = world.server[len("unix:"):]
    crowd = []
    for _ in range(400):  # until ckptd hangs up
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
        crowd.append(one)
    code, _, err = world.cli("status", *world.where)
    test("with all connections in use an operator gets in, or hears why not", code == 0 or
         re.search("all (are|were) in use", err), (code, err))
    for one in crowd:
        one.close()
    world.stop()


def lock_is_a_fifo(world):
    lock = os.path.join(world.store, ".holdfast.lock")
    os.rename(lock, lock + "-")
    os.mkfifo(lock)
    world.spawn()
    code = world.process.wait(PATIENCE)
    test("a lock that is a FIFO is named, with 78", code == EXIT_DO_NOT_RETRY and
         ".holdfast.lock in the store is not a regular file, but a FIFO" in world.log(),
         (code, world.log()))
    os.unlink(lock)
    os.rename(lock + "-", lock)


def pool_too_small(world):
    world.launch("--memory.pool_bytes", "1MiB")
    good, said = world.try_save(3)
    test("a pool that is too small for the ranks is named, with what to enlarge", not good and
         "too little for rank 0" in said and "enlarge memory.pool_bytes" in said, said)
    world.stop()


def main():
    for_ckptd = World()
    try:
        removed_sockets(for_ckptd)
        full(for_ckptd)
        lock_is_a_fifo(for_ckptd)
        pool_too_small(for_ckptd)
    finally:
        for_ckptd.close()
    world = World()
    try:
        world.launch()
        world.save([1, 2, 3])
        names(world)
        no_stores(world)
        completions(world)
        outputs(world)
        full_outputs(world)
        damage(world)
        skipped(world)
        pinned(world)
        rights(world)
    finally:
        world.close()
    end()


if __name__ == "__main__":
    main()
