#!/usr/bin/env python3
"""systemd - the unit of ckptd: how much it leaves exposed, and that ckptd works with what is left.

Goal: the installed unit's exposure is at most 1.5 by `systemd-analyze security`; under its
restrictions ckptd saves, loads, tells its supervisor that it is ready, and ends as told.
Method: an installation into a fresh folder. No systemd needs to run: the restrictions of the unit
that the kernel enforces are put on by this script, from the unit's own text (another uid, no
capabilities, no new privileges, a read-only root, no network, the system call filter, the address
families, no memory that is writable and executable), and the client comes from outside.
time limit: 60 s
"""

import ctypes
import errno
import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

from lib_tap import skip, test

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
EXPOSURE_MAX = 1.5
NOBODY = 61184  # the first of the uids that systemd gives to dynamic users
TESTS = 12

# ---- the sandbox: this script, run once more ----

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
SYS_IO_URING_SETUP = 425
SYS_MOUNT_SETATTR, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, 0x8000, 1
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 24, 38, 22, 65
AUDIT_ARCH_X86_64 = 0xC000003E
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
EPERM, EAFNOSUPPORT = 1, 97


def must(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def settings_of(unit):
    """Key -> values, in order."""
    settings = {}
    for line in open(unit):
        match = re.match(r"(\w+)=(.*)", line)
        if match:
            settings.setdefault(match[1], []).append(match[2])
    return settings


def calls_of(group):
    """The system calls of "@group", or of one name."""
    if not group.startswith("@"):
        return {group}
    text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", group], check=True,
                          capture_output=True, text=True).stdout
    names = re.findall(r"^\s+([@\w-]+)$", text, re.M)
    return set().union(*map(calls_of, names)) if names else set()


def allowed_calls(settings):
    allowed = set()
    for value in settings["SystemCallFilter"]:
        for name in value.lstrip("~").split():
            calls = calls_of(name)
            allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed | calls_of("@default")


def filter_program(allowed, families):
    header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", open(header).read()))
    code = []

    def step(op, value, if_true=0, if_false=0):
        code.append(struct.pack("HBBI", op, if_true, if_false, value))

    load, equal, end = 0x20, 0x15, 0x06
    step(load, 4)  # the architecture
    step(equal, AUDIT_ARCH_X86_64, 1, 0)
    step(end, REFUSE | EPERM)
    step(load, 0)  # the call
    step(equal, int(numbers["socket"]), 0, 1 + len(families) * 2 + 1)
    step(load, 16)  # its first argument
    for family in families:
        step(equal, family, 0, 1)
        step(end, ALLOW)
    step(end, REFUSE | EAFNOSUPPORT)
    for name in sorted(allowed):
        if name in numbers and name != "socket":
            step(equal, int(numbers[name]), 0, 1)
            step(end, ALLOW)
    step(end, REFUSE | EPERM)
    return b"".join(code)


def set_filter(program):
    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]
    value = Program(len(program) // 8, program)
    must(libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(value), 0, 0), "seccomp")


def set_read_only(path, is_read_only, flags):
    value = MOUNT_ATTR_RDONLY if is_read_only else 0
    attributes = struct.pack("QQQQ", value, 0 if is_read_only else MOUNT_ATTR_RDONLY, 0, 0)
    must(libc.syscall(SYS_MOUNT_SETATTR, -100, path.encode(), flags, attributes, len(attributes)),
         "mount_setattr")


def sandbox(unit, state, arguments):
    """Puts the restrictions on, and becomes ckptd. /mnt is its state and its runtime directory."""
    settings = settings_of(unit)
    program = filter_program(allowed_calls(settings), [
        getattr(socket, name) for name in settings["RestrictAddressFamilies"][0].split()])
    executable = os.open(os.path.join(BUILD, "ckptd"), os.O_RDONLY)
    must(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET), "unshare")
    must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount")
    must(libc.mount(state.encode(), b"/mnt", None, MS_BIND, None), "mount")
    set_read_only("/", True, AT_RECURSIVE)
    set_read_only("/mnt", False, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    except ValueError:
        pass  # a container's root: then ckptd's buffers are not registered
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.umask(int(settings["UMask"][0], 8))
    must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    libc.prctl(PR_SET_MDWE, 1, 0, 0, 0)  # Linux 6.3; before, systemd's filter does it
    set_filter(program)
    os.execve(executable, ["ckptd", *arguments], {"NOTIFY_SOCKET": "/mnt/notify"})


# ---- the test ----

def check_unit(root):
    done = subprocess.run(["make", "-s", f"BUILD={BUILD}", f"PREFIX={root}/usr",
                           f"SYSCONFDIR={root}/etc", "install"], capture_output=True, text=True)
    test("make install works", done.returncode == 0, done.stderr)
    unit = f"{root}/usr/lib/systemd/system/ckptd.service"
    names = ["systemd finds no fault with the unit", f"its exposure is at most {EXPOSURE_MAX}"]
    if not shutil.which("systemd-analyze"):
        skip(names, "no systemd-analyze")
        return unit
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True,
                          text=True)
    test(names[0], done.returncode == 0 and not done.stderr, done.stderr)
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
                          capture_output=True, text=True)
    match = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    test(names[1], match and float(match[1]) <= EXPOSURE_MAX, done.stdout + done.stderr)
    if match:
        print(f"# exposure {match[1]}")
    return unit


def check_config(root):
    path = f"{root}/etc/holdfast/ckptd.conf"
    text = open(path).read()
    test("the installed configuration names what the unit makes",
         re.search(r'^listen = "unix:/run/holdfast/', text, re.M) and
         re.search(r'^store = "/var/lib/holdfast"', text, re.M), text[:400])
    with open(path, "a") as file:
        file.write("# an operator's\n")
    subprocess.run(["make", "-s", f"BUILD={BUILD}", f"PREFIX={root}/usr", f"SYSCONFDIR={root}/etc",
                    "install"], check=True)
    test("another installation leaves it alone", open(path).read().endswith("# an operator's\n"))
    return path


SMOKE = ["ckptd says that it is ready", "it writes by io_uring",
         "a client from outside saves and loads", "what it saved is whole",
         "SIGTERM ends it in order", "it says that it stops", "it ran as the other user"]


def client(state, *command):
    """Runs a command that sees /mnt as ckptd does: paths of its sockets are the same."""
    done = subprocess.run(["unshare", "-m", "sh", "-c", 'mount --bind "$0" /mnt && exec "$@"',
                           state, *command], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def uring_is_refused():
    """By the answer to a call without its argument."""
    return libc.syscall(SYS_IO_URING_SETUP, 1, None) < 0 and ctypes.get_errno() != errno.EFAULT


def heard(news):
    try:
        return news.recv(100)
    except TimeoutError:
        return b""


def smoke(folder, unit, config):
    state = os.path.join(folder, "state")
    os.mkdir(state)
    os.chmod(state, 0o755)
    os.chown(state, NOBODY, NOBODY)
    shutil.copy(config, f"{state}/ckptd.conf")
    os.chmod(f"{state}/ckptd.conf", 0o644)
    news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    news.bind(f"{state}/notify")
    os.chmod(f"{state}/notify", 0o666)
    news.settimeout(20)
    log = open(os.path.join(folder, "log"), "w+")
    process = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "sandbox", unit, state, "--config",
         "/mnt/ckptd.conf", "--listen", "unix:/mnt/s", "--store", "/mnt/store",
         "--memory.pool_bytes", "64MiB", "--memory.segment_bytes", "4MiB"], stderr=log)
    test(SMOKE[0], heard(news) == b"READY=1", open(log.name).read())
    code, out, errors = client(state, f"{BUILD}/ckpt-cli", "status", "--json", "--server",
                               "unix:/mnt/s")
    text = json.loads(out)["storage"] if code == 0 else errors
    if uring_is_refused():
        skip(SMOKE[1:2], "the system refuses io_uring to everybody here")
    else:
        test(SMOKE[1], text.startswith("io_uring,"), text)
    print(f"# {text}")
    code, out, errors = client(state, f"{BUILD}/ckpt_example", "unix:/mnt/s")
    test(SMOKE[2], code == 0, errors + open(log.name).read())
    code, out, errors = client(state, f"{BUILD}/ckpt-cli", "list", "--json", "--store",
                               "/mnt/store")
    entries = json.loads(out) if code == 0 else []
    bad = [entry for entry in entries if client(
        state, f"{BUILD}/ckpt-cli", "verify", "--store", "/mnt/store",
        f"{entry['run']}@{entry['step']}-a{entry['attempt']}")[0] != 0]
    test(SMOKE[3], entries and not bad, errors + str(bad))
    owner = os.stat(f"{state}/store").st_uid if entries else -1
    process.send_signal(signal.SIGTERM)
    code = process.wait(30)
    test(SMOKE[4], code == 0, f"exit {code}\n" + open(log.name).read())
    test(SMOKE[5], heard(news) == b"STOPPING=1")
    test(SMOKE[6], owner == NOBODY, owner)


def why_not():
    """Why the restrictions cannot be put on here; None when they can."""
    if os.geteuid() != 0:
        return "needs root"
    if platform.machine() != "x86_64" or not shutil.which("systemd-analyze"):
        return "needs x86-64 and systemd-analyze"
    if not os.path.exists("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"):
        return "needs the kernel's headers"
    if b"__asan_init" in open(os.path.join(BUILD, "ckptd"), "rb").read():
        return "sanitizers need what the unit forbids"
    probe = subprocess.run(["unshare", "-m", "-n", "true"], capture_output=True)
    return None if probe.returncode == 0 else "no namespaces here"


def main():
    print(f"1..{TESTS}")
    folder = tempfile.mkdtemp(prefix="sd-")
    try:
        unit = check_unit(folder)
        config = check_config(folder)
        reason = why_not()
        if reason:
            skip(SMOKE, reason)
        else:
            smoke(folder, unit, config)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["sandbox"]:
        sandbox(sys.argv[2], sys.argv[3], sys.argv[4:])
    main()
