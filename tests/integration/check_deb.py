#!/usr/bin/env python3
"""deb - the Debian packages: their contents, and the effects of installing, upgrading and removing
them.

Goal: lintian warns of nothing. The packages install with the dependencies that they name. The
installed ckptd saves; an upgrade leaves a running ckptd, its session with a trainer and an
operator's configuration alone; a restart after it loses no committed checkpoint; the store survives
a removal and a purge. Method: `make deb`; a root that is this machine's under an overlay in memory,
whose dpkg knows the installed packages. There dpkg and the installed programs run. The higher
version is the same packages with another number.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import lib_train
from lib_hosts import Refused, own_mounts, run
from lib_store import BUILD, PATIENCE, SAVER, comes, is_sanitized
from lib_tap import end, need_programs, skip, test

SERVER, STORE = "unix:/run/holdfast/ckptd.sock", "/var/lib/holdfast"
CONFIG = "/etc/holdfast/ckptd.conf"
SMALL = {"pool": "64MiB", "segment": "1MiB"}
NAMES = ["holdfast-ckptd", "holdfast-trainer", "libckpt-dev", "libckpt1", "python3-holdfast"]
IN_THEM = ["/usr/bin/ckptd", "/usr/bin/ckpt-cli", "/usr/lib/systemd/system/ckptd.service", CONFIG,
           "/usr/share/man/man1/ckpt-cli-verify.1.gz", "/usr/share/holdfast/ckptd.conf",
           "/usr/share/bash-completion/completions/ckpt-cli", "/usr/bin/trainer",
           "/usr/bin/tokenizer", "/usr/bin/holdfast-launch", "/usr/lib/libckpt.so.1",
           "/usr/include/ckpt.h", "/usr/share/holdfast/proto/ckpt.proto"]
MAKE_S = 900


def done(*words, **how):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=how.pop("timeout", PATIENCE), **how)


def higher(folder, package):
    """The same package with a higher version."""
    tree = os.path.join(folder, "higher")
    run("dpkg-deb", "-R", package, tree)
    control = os.path.join(tree, "DEBIAN/control")
    version = done("dpkg-deb", "-f", package, "Version").stdout.strip()
    with open(control, encoding="utf-8") as file:
        text = file.read()
    with open(control, "w", encoding="utf-8") as file:
        file.write(text.replace(version, version + ".1"))
    made = os.path.join(folder, "higher-" + os.path.basename(package))
    run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, made)
    shutil.rmtree(tree)
    return made


class Machine:
    """The root, and a ckptd in it."""

    def __init__(self, folder):
        self.folder, self.root, self.started = folder, os.path.join(folder, "root"), []
        over = os.path.join(folder, "over")
        os.mkdir(self.root)
        os.mkdir(over)
        run("mount", "-t", "tmpfs", "tmpfs", over)
        for name in ("upper", "work"):
            os.mkdir(os.path.join(over, name))
        run("mount", "-t", "overlay", "overlay", "-o",
            f"lowerdir=/,upperdir={over}/upper,workdir={over}/work", self.root)
        os.makedirs(self.root + STORE, 0o700)
        os.mkdir(folder + "/store", 0o700)
        run("mount", "--bind", folder + "/store", self.root + STORE)
        run("mount", "-t", "tmpfs", "tmpfs", self.root + "/run")
        os.mkdir(self.root + "/run/holdfast")
        for name in ("/proc", "/sys", "/dev", folder):
            run("mount", "--rbind", name, self.root + name)

    def do(self, *words, **how):
        return done("chroot", self.root, *words, **how)

    def start(self, *words):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            process = subprocess.Popen(["chroot", self.root, *words], stdout=log, stderr=log,
                                       stdin=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def start_ckptd(self):
        ckptd = self.start("/usr/bin/ckptd", "--config", CONFIG, "--store_must_exist", "true")
        assert comes(lambda: self.do("ckpt-cli", "health", "--server", SERVER).returncode == 0), \
            self.log()
        return ckptd

    def log(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]

    def dpkg(self, *words):
        return self.do("dpkg", *words, timeout=4 * PATIENCE,
                       env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})

    def listed(self, run_name):
        """Steps and attempts."""
        said = self.do("ckpt-cli", "list", run_name, "--json", "--server", SERVER)
        found = json.loads(said.stdout) if said.returncode == 0 else []
        return sorted((entry["step"], entry["attempt"]) for entry in found)

    def verified(self):
        return done(os.path.join(BUILD, "ckpt-cli"), "verify", "--all", "--store",
                    self.folder + "/store", timeout=4 * PATIENCE)

    def text(self, path):
        with open(self.root + path, encoding="utf-8") as file:
            return file.read()

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


def check_packages(packages):
    name = "lintian warns of nothing"
    if shutil.which("lintian"):
        said = done("lintian", "--fail-on", "error,warning", *packages, timeout=4 * PATIENCE)
        test(name, said.returncode == 0, said.stdout)
    else:
        skip([name], "lintian is missing")


def check_install(machine, packages):
    said = machine.dpkg("-i", *packages)
    test("the packages install with the dependencies that they name", said.returncode == 0,
         said.stdout + said.stderr)
    missing = [path for path in IN_THEM if not os.path.exists(machine.root + path)]
    test("what they are for is there", not missing, missing)
    told = machine.do("/usr/bin/ckptd", "--version").stdout.split()[-1]
    version = machine.do("dpkg-query", "-W", "-f", "${Version}", "holdfast-ckptd").stdout
    number, *rest = told.split("-")
    test("their version is what ckptd tells, with the time of the commit",
         version.startswith(number) and version.endswith(".".join(["", *rest])), (told, version))
    test("ckpt-cli tells its commands", machine.do("/usr/bin/ckpt-cli", "--help").returncode == 0)


def check_save(machine):
    """And the configuration is an operator's from here on."""
    text = re.sub("^#(pool|segment)_bytes = .*", lambda key: f'{key[1]}_bytes = "{SMALL[key[1]]}"',
                  machine.text(CONFIG), flags=re.M)
    with open(machine.root + CONFIG, "w", encoding="utf-8") as file:
        file.write(text)
    machine.do("/usr/bin/ckptd", "--store", STORE, "--make_store")
    ckptd = machine.start_ckptd()
    saved = machine.do(SAVER, "save", SERVER, 2, 1, 1)
    test("the installed ckptd saves", saved.returncode == 0, saved.stderr + machine.log())
    return ckptd


PYTHON = """
import holdfast, numpy
values = numpy.arange(5.0)
with holdfast.Client("%s", run="py") as client:
    client.save(3, {"a": values}).wait()
with holdfast.Client("%s", run="py") as client:
    there = numpy.zeros(5)
    client.load({"a": there})
assert (there == values).all() and "dist-packages" in holdfast.__file__
""" % (SERVER, SERVER)


def check_python(machine):
    """In the folder /, so that no other copy is found."""
    said = machine.do("/usr/bin/env", "-C", "/", "-u", "PYTHONPATH", "-u", "HOLDFAST_LIBCKPT",
                      "/usr/bin/python3", "-c", PYTHON)
    test("Python imports its package, saves and loads with it", said.returncode == 0, said.stderr)
    said = machine.do("/usr/bin/python3", "-m", "holdfast", "cli", "list", "py", "--server", SERVER)
    test("and its commands call the installed ckpt-cli",
         said.returncode == 0 and "py@3-a1" in said.stdout, said)


def check_upgrade(machine, ckptd, packages):
    lib_train.make_tokens(machine.folder, lib_train.prose())
    words = lib_train.command(machine.folder, SERVER, "up", "--checkpoint.interval", 5,
                              "--training.steps", 1000000, "--comm.backend", "local")
    trainer = machine.start("/usr/bin/trainer", *words[1:])
    comes(lambda: machine.listed("up"))
    config = machine.text(CONFIG)
    assert SMALL["pool"] in config
    said = machine.dpkg("-i", *packages)
    gone = os.readlink(f"/proc/{ckptd.pid}/exe").endswith(" (deleted)")
    before = machine.listed("up")
    test("an upgrade replaces ckptd's file and not the ckptd that runs",
         said.returncode == 0 and gone and ckptd.poll() is None,
         (said.stdout, said.stderr, gone, machine.log()))
    on = comes(lambda: machine.listed("up")[-1:] > before[-1:])
    test("a trainer saves on in its session", before and on and trainer.poll() is None and
         all(attempt == 1 for _, attempt in machine.listed("up")), machine.log())
    test("an operator's configuration is kept", machine.text(CONFIG) == config)

    ckptd.send_signal(signal.SIGTERM)
    code, kept = ckptd.wait(PATIENCE), machine.verified()
    machine.start_ckptd()
    before = machine.listed("up")
    on = comes(lambda: machine.listed("up")[-1:] > before[-1:])
    test("where the operator restarts ckptd nothing is lost, and the trainer saves to the new one",
         (code, kept.returncode) == (0, 0) and before and on and trainer.poll() is None,
         (code, kept.stdout, before, machine.log()))
    trainer.send_signal(signal.SIGTERM)
    code = trainer.wait(PATIENCE)
    test("and ends with a save when told", code == 75, (code, machine.log()))


def check_removal(machine):
    machine.started[-1].send_signal(signal.SIGTERM)
    machine.started[-1].wait(PATIENCE)
    before = sorted(glob.glob(machine.folder + "/store/*/step-*"))
    for way, rest in (("-r", True), ("-P", False)):
        said = machine.dpkg(way, *NAMES)
        kept, here = machine.verified(), sorted(glob.glob(machine.folder + "/store/*/step-*"))
        what = "removed, they leave the configuration" if rest else "purged, they do not"
        test(f"{what}, and the store is whole", said.returncode == 0 and before == here and before
             and kept.returncode == 0 and os.path.exists(machine.root + CONFIG) == rest and
             not os.path.exists(machine.root + "/usr/bin/ckptd"),
             (said.stdout, said.stderr, kept.stdout, here))


def main():
    need_programs("dpkg-deb", "dh")
    if is_sanitized():
        print("packages are of programs without sanitizers")
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix="deb-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    machine = None
    try:
        own_mounts()
        machine = Machine(folder)
        made = done("make", "-s", f"BUILD={BUILD}", "deb", timeout=MAKE_S)
        packages = sorted(path for name in NAMES for path in glob.glob(f"{BUILD}/deb/{name}_*.deb"))
        test("make deb makes each package once",
             made.returncode == 0 and len(packages) == len(NAMES), made.stderr)
        packages = [shutil.copy(path, folder) for path in packages]
        check_packages(packages)
        check_install(machine, packages)
        ckptd = check_save(machine)
        check_python(machine)
        check_upgrade(machine, ckptd, [higher(folder, path) for path in packages])
        check_removal(machine)
    except Refused as why:
        print(f"no root of its own can be made here: {why}")
        sys.exit(77)
    finally:
        if machine:
            machine.close()
            run("umount", "-R", "-l", machine.root)
        for path in glob.glob(folder + "/over"):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
        shutil.rmtree(folder)
    end()


main()
