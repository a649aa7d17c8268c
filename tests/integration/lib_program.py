"""lib_program - runs a program as subprocess.run() does, but loads it once (tests/shims/forked.c).

Loading its libraries takes ckpt-cli longer than most commands take. Each thread of a script loads a
separate program for each environment and folder.
"""

import functools
import os
import socket
import subprocess
import sys
import threading

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
SHIM = os.path.join(BUILD, "shims/forked.so")
mine = threading.local()  # programs by their paths


@functools.lru_cache
def is_sanitized(program="ckptd"):
    """The sanitizer's runtime allocates memory, and cannot be loaded into a running program."""
    with open(os.path.join(BUILD, program), "rb") as file:
        return b"san_init" in file.read()


class Program:
    """One that waits for arguments."""

    def __init__(self, path, where):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.environ.get("LD_PRELOAD", "")
        env = dict(os.environ, FORKED_SOCKET=str(theirs.fileno()), LD_PRELOAD=f"{SHIM} {before}")
        if before:
            env["FORKED_PRELOAD"] = before
        self.socket, self.where = ours, where
        self.process = subprocess.Popen([path], env=env, pass_fds=[theirs.fileno()])
        theirs.close()

    def run(self, words, timeout, stdout):
        """The result of a process with these arguments: exit code, stdout and stderr."""
        self.socket.settimeout(timeout)
        with open(os.memfd_create("stdout"), "w+b") as out, \
                open(os.memfd_create("stderr"), "w+b") as err:
            socket.send_fds(self.socket, [b"".join(os.fsencode(word) + b"\0" for word in words)],
                            [(stdout or out).fileno(), err.fileno()])
            try:
                status = self.socket.recv(4)
            except TimeoutError:
                raise subprocess.TimeoutExpired(words, timeout) from None
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(
                words, os.waitstatus_to_exitcode(int.from_bytes(status, sys.byteorder)),
                out.read(), err.read())

    def close(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()

    __del__ = close


def run_bytes(*words, timeout=60, stdout=None):
    """Its output goes to `stdout` when that is a file."""
    words = [str(word) for word in words]
    if is_sanitized(words[0]):
        return subprocess.run(words, stdout=stdout or subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=timeout)
    waiting, where = vars(mine), (dict(os.environ), os.getcwd())
    if words[0] not in waiting or waiting[words[0]].where != where:
        waiting[words[0]] = Program(words[0], where)
    try:
        return waiting[words[0]].run(words, timeout, stdout)
    except BaseException:
        del waiting[words[0]]
        raise


def run(*words, **how):
    """With its output as text."""
    done = run_bytes(*words, **how)
    done.stdout, done.stderr = (done.stdout or b"").decode(), done.stderr.decode()
    return done
