#!/usr/bin/env python3
"""systemd - the unit of ckptd: its exposure, and that ckptd works within its restrictions.

Goal: the installed unit's exposure is at most 1.5 by `systemd-analyze security`; started by it,
ckptd reports that it is ready, saves, loads and shuts down on request. When killed it is started
again, except where an operator must act. It has no network without the drop-in for one. Method: an
installation into a fresh folder, which is mounted over /usr/local, /etc and /var/lib for a private
systemd, the first process of otherwise empty namespaces (mounts, processes, network, control
groups). It has the installed unit, unchanged except for the file of its messages, and only those of
systemd's units that this one needs. The client runs outside of the unit. Needs root, systemd,
namespaces and a control group of version 2, else skipped.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from lib_store import BUILD, is_sanitized
from lib_tap import skip, test

EXPOSURE_MAX = 1.5
DYNAMIC_USERS = range(61184, 65520)  # systemd.exec(5)
SERVER = "unix:/run/holdfast/ckptd.sock"
STORE = "/var/lib/holdfast"
DROP_IN = "/usr/local/share/holdfast/network.conf"
LISTEN = "127.0.0.1:7411"
S3 = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../s3")
SMALL = {"pool": "64MiB", "segment": "4MiB"}  # the operator's settings: starts take no time
SYSTEMD = "/lib/systemd/systemd"
SYS_IO_URING_SETUP = 425
PATIENCE = 20  # seconds, of anything that should take a fraction of one
TESTS = 20


# ---- the installation


def install(folder):
    return subprocess.run(["make", "-s", f"BUILD={BUILD}", f"DESTDIR={folder}/root", "install"],
                          capture_output=True, text=True)


def check_unit(folder):
    done = install(folder)
    test("make install works", done.returncode == 0, done.stderr)
    unit = f"{folder}/root/usr/local/lib/systemd/system/ckptd.service"
    names = ["systemd finds no fault with the unit", f"its exposure is at most {EXPOSURE_MAX}",
             "nor with the drop-in for a network"]
    if not shutil.which("systemd-analyze"):
        skip(names, "no systemd-analyze")
        return
    # Its programs are where the installation will be, not where it is.
    text = open(unit).read().replace("=/usr/local/", f"={folder}/root/usr/local/")
    here = os.path.join(folder, "ckptd.service")
    with open(here, "w") as file:
        file.write(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", here], capture_output=True,
                          text=True)
    test(names[0], done.returncode == 0 and not done.stderr, done.stderr)
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
                          capture_output=True, text=True)
    match = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    os.mkdir(here + ".d")
    shutil.copy(f"{folder}/root{DROP_IN}", here + ".d")
    with_it = subprocess.run(["systemd-analyze", "verify", "--man=no", here], capture_output=True,
                             text=True)
    test(names[2], with_it.returncode == 0 and not with_it.stderr, with_it.stderr)
    test(names[1], match and float(match[1]) <= EXPOSURE_MAX, done.stdout + done.stderr)
    if match:
        print(f"# exposure {match[1]}")


def check_config(folder):
    path = f"{folder}/root/etc/holdfast/ckptd.conf"
    text = open(path).read()
    test("the installed configuration names what the unit makes",
         re.search(f'^listen = "{SERVER}"', text, re.M) and
         re.search(f'^store = "{STORE}"', text, re.M), text[:400])
    changed = re.sub("^#(pool|segment)_bytes = .*",
                     lambda key: f'{key[1]}_bytes = "{SMALL[key[1]]}"', text, flags=re.M)
    with open(path, "w") as file:
        file.write(changed)
    install(folder)
    test("another installation leaves an operator's changes alone",
         open(path).read() == changed and all(size in changed for size in SMALL.values()))


# ---- a systemd of our own

SETUP = r"""
mount --make-rprivate /
umount -R -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t overlay overlay -o "lowerdir=$1/root/etc:/etc" /etc
mount --bind "$1/root/usr/local" /usr/local
mount --bind "$1/lib" /var/lib
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind /dev/null /dev/console
mount --bind "$1/messages" /dev/kmsg
units=/run/units
mkdir -p $units/ckptd.service.d
cp /usr/local/lib/systemd/system/ckptd.service $units
cd /lib/systemd/system
cp basic.target sysinit.target local-fs.target shutdown.target $units
printf '[Unit]\nDefaultDependencies=no\n' >$units/nothing.target
printf '[Service]\nStandardError=append:/run/ckptd.log\n' >$units/ckptd.service.d/log.conf
[ "$2" = run ] || exit 0
exec env -i container=test PATH="$PATH" SYSTEMD_UNIT_PATH=$units SYSTEMD_GENERATOR_PATH=/run/none \
    SYSTEMD_LOG_TARGET=kmsg /lib/systemd/systemd --unit=nothing.target
"""


def wait_for(what):
    until = time.monotonic() + PATIENCE
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


class Systemd:
    def __init__(self, folder):
        self.folder, self.group, self.process, self.first = folder, None, None, None
        os.makedirs(f"{folder}/lib", exist_ok=True)
        open(f"{folder}/messages", "w").close()

    def make_group(self):
        """A control group below ours; where there is none of version 2 that fails."""
        with open("/proc/self/mounts") as file:
            mount = next(line.split()[1] for line in file if line.split()[2] == "cgroup2")
        with open("/proc/self/cgroup") as file:
            ours = next(line[3:].strip() for line in file if line.startswith("0::"))
        group = f"{mount}{ours}/holdfast-{os.getpid()}"
        os.mkdir(group)
        self.group = group

    def spawn(self, how):
        def enter():
            with open(f"{self.group}/cgroup.procs", "w") as file:
                file.write("0")
        return subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup",
             "--uts", "--ipc", "--net", "sh", "-euc", SETUP, "sh", self.folder, how],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=enter)

    def why_not(self):
        """Why it is impossible here; None when it is possible."""
        if os.geteuid() != 0:
            return "needs root"
        if not os.access(SYSTEMD, os.X_OK) or not shutil.which("systemctl"):
            return "needs systemd"
        if is_sanitized():
            return "sanitizers need what the unit forbids"
        try:
            self.make_group()
        except (OSError, StopIteration) as error:
            return f"no control group of version 2 can be made here: {error}"
        process = self.spawn("try")
        said = process.communicate()[0]
        return "no such namespaces here: " + said.strip() if process.returncode != 0 else None

    def boot(self):
        """Its first process must be there, and answer."""
        self.process = self.spawn("run")
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        wait_for(lambda: open(children).read().split())
        self.first = open(children).read().split()[0]
        return wait_for(lambda: self.systemctl("is-system-running")[1].strip() == "running")

    def inside(self, *command):
        """A command in the same namespaces, but not of the unit."""
        done = subprocess.run(["nsenter", "-t", self.first, "-m", "-p", "-i", "-n", *command],
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def systemctl(self, *arguments):
        return self.inside("systemctl", "--no-pager", *arguments)

    def of_unit(self, name):
        return self.systemctl("show", "--value", "-p", name, "ckptd")[1].strip()

    def said(self):
        return self.inside("cat", "/run/ckptd.log")[1] + open(f"{self.folder}/messages").read()

    def close(self):
        if self.first:
            os.kill(int(self.first), signal.SIGKILL)  # all others of its namespace go with it
        elif self.process:
            self.process.kill()
        if self.process:
            self.process.communicate()
        for path, _, _ in os.walk(self.group, topdown=False) if self.group else ():
            wait_for(lambda: remove_group(path))


def remove_group(path):
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False  # a process of it is still on its way out
    return True


# ---- the unit, started

SMOKE = ["systemd starts it and hears that it is ready", "it runs as a user that it has for itself",
         "it writes by io_uring, and gives up making more rings",
         "a client from outside saves and loads", "what it saved is whole",
         "killed it is started again", "and has what it had",
         "systemctl stop ends it in order", "where a person must act it is not started again",
         "nothing of it is left outside of its store",
         "its start may take as long as a large store needs",
         "without a store it does not start",
         "it has no network: a bucket cannot be reached", "with the drop-in for one it can"]


def uring_is_refused():
    """By the answer to a call without its argument."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(SYS_IO_URING_SETUP, 1, None) < 0 and ctypes.get_errno() != errno.EFAULT


def cli(host, *arguments):
    return host.inside(f"{BUILD}/ckpt-cli", *arguments)


def listed(host):
    code, out, _ = cli(host, "list", "--json", "--server", SERVER)
    return [(e["run"], e["step"], e["attempt"]) for e in json.loads(out)] if code == 0 else None


def make_store(host):
    """As the head of the unit says."""
    place = "/var/lib/private/holdfast"
    code, _, _ = host.systemctl("start", "ckptd")
    result = [host.of_unit(name) for name in ("ExecMainStatus", "NRestarts")]
    test(SMOKE[11], code != 0 and result == ["78", "0"], (code, result, host.said()))
    host.inside("mkdir", "-p", "-m", "700", place)
    host.inside("/usr/local/bin/ckptd", "--store", place, "--make_store")


def start(host):
    code, _, errors = host.systemctl("start", "ckptd")
    state = host.of_unit("SubState")
    test(SMOKE[0], code == 0 and state == "running", errors + state + host.said())
    limit = host.of_unit("TimeoutStartUSec")
    test(SMOKE[10], limit == "infinity", limit)
    uid = os.stat(f"/proc/{host.first}/root/proc/{host.of_unit('MainPID')}").st_uid
    test(SMOKE[1], uid in DYNAMIC_USERS, uid)
    code, out, errors = cli(host, "status", "--json", "--server", SERVER)
    text = json.loads(out)["storage"] if code == 0 else errors
    if uring_is_refused():
        skip(SMOKE[2:3], "the system refuses io_uring to everybody here")
    else:
        test(SMOKE[2], text.startswith("io_uring,") and "could not forbid" not in host.said(),
             text + host.said())
    print(f"# {text}")


def save(host):
    code, _, errors = host.inside(f"{BUILD}/ckpt_example", SERVER)
    test(SMOKE[3], code == 0, errors + host.said())
    found = listed(host)
    bad = [(name, step) for name, step, attempt in found or []
           if cli(host, "verify", "--store", STORE, f"{name}@{step}-a{attempt}")[0] != 0]
    test(SMOKE[4], found and not bad, (found, bad))
    return found


def kill(host, found):
    former = host.of_unit("MainPID")
    host.inside("kill", "-KILL", former)
    again = wait_for(lambda: host.of_unit("MainPID") not in ("0", former) and
                     host.of_unit("SubState") == "running")
    test(SMOKE[5], again and host.of_unit("NRestarts") == "1", host.said())
    test(SMOKE[6], listed(host) == found, (listed(host), found))


def use(host, *drop_ins):
    """The exit code of a start with these beside the unit's own."""
    folder = "/run/units/ckptd.service.d"
    host.inside("sh", "-c", f"rm -f {folder}/bucket.conf {folder}/network.conf")
    for path in drop_ins:
        host.inside("cp", path, folder)
    host.systemctl("daemon-reload")
    host.systemctl("stop", "ckptd")
    return host.systemctl("restart", "ckptd")[0]


BUCKET = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lib_server import Server
print(" ".join(f"{name}={value}" for name, value in Server().environment.items()), flush=True)
time.sleep(600)
"""


def tier_of(host):
    return json.loads(cli(host, "status", "--json", "--server", SERVER)[1])["tier"]


def network(host):
    """A bucket on the loopback of that machine."""
    host.inside("ip", "link", "set", "lo", "up")
    server = subprocess.Popen(
        ["nsenter", "-t", host.first, "-n", "python3", "-c", BUCKET, S3], stdout=subprocess.PIPE,
        text=True)
    keys = server.stdout.readline().strip().replace(" ", "\\n")
    host.inside("sh", "-c", f"printf '{keys}\\n' >/run/bucket.env; printf '[Service]\\n"
                "EnvironmentFile=/run/bucket.env\\nExecStart=\\nExecStart=/usr/local/bin/ckptd "
                "--config /etc/holdfast/ckptd.conf --tier.store s3://checkpoints/far\\n'"
                " >/run/bucket.conf")
    for name, drop_ins, wanted in zip(SMOKE[12:], ((), (DROP_IN,)),
                                      ("not reached yet", "conditional PUT"), strict=True):
        code = use(host, "/run/bucket.conf", *drop_ins)
        told = tier_of(host)
        test(name, code == 0 and wanted in told["storage"], (told, host.said()))
    wait_for(lambda: tier_of(host)["waiting"] == 0)  # or its end would wait for the bucket
    use(host)
    server.kill()
    server.wait()


def stop(host):
    code, _, errors = host.systemctl("stop", "ckptd")
    result = [host.of_unit(name) for name in ("Result", "ExecMainStatus", "SubState")]
    test(SMOKE[7], code == 0 and result == ["success", "0", "dead"], (errors, result, host.said()))
    host.inside("sh", "-c", "printf '[Service]\\nExecStart=\\nExecStart=/usr/local/bin/ckptd"
                " --listen nowhere\\n' >/run/units/ckptd.service.d/wrong.conf")
    host.systemctl("daemon-reload")
    code, _, _ = host.systemctl("start", "ckptd")
    result = [host.of_unit(name) for name in ("ExecMainStatus", "SubState", "NRestarts")]
    test(SMOKE[8], code != 0 and result == ["78", "failed", "0"], (code, result))
    left = [os.path.join(path, name) for path, _, names in os.walk(f"{host.folder}/lib")
            for name in names if "/private/holdfast/" not in os.path.join(path, name)]
    test(SMOKE[9], left == [], left)


def main():
    print(f"1..{TESTS}")
    folder = tempfile.mkdtemp(prefix="sd-")
    host = Systemd(folder)
    try:
        check_unit(folder)
        check_config(folder)
        reason = host.why_not()
        if reason:
            skip(SMOKE, reason)
            return
        if not host.boot():
            raise RuntimeError(f"systemd does not come up: {host.systemctl('status')}")
        make_store(host)
        start(host)
        kill(host, save(host))
        network(host)
        stop(host)
    finally:
        host.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
