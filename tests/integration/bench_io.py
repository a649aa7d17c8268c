#!/usr/bin/env python3
"""bench_io - ckpt-cli bench io: its counts, comparisons, refusals and remains.

Goal: it counts the bytes that were written and read; the figures are consistent; bytes that changed
on the disk are found. Nothing is written without space for it. It leaves no files, however it ends.
Method: real runs with few bytes; small requests, one at a time, where something has to happen
meanwhile.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile

import lib_program
from lib_store import BUILD, CLI, PATIENCE, comes
from lib_tap import end, skip, test

MIB = 1 << 20
SLOWLY = ("--block", "4KiB", "--depth", "1", "--bytes")


def measured(folder, *options):
    done = lib_program.run(CLI, "bench", "io", folder, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fits(rate):
    return (rate["bytes"] > 0 and
            0 < rate["p50_seconds"] <= rate["p99_seconds"] <= rate["p999_seconds"] <=
            rate["max_seconds"] <= rate["seconds"] and
            abs(rate["bytes_per_second"] * rate["seconds"] / rate["bytes"] - 1) < 1e-6 and
            abs(rate["requests_per_second"] * rate["seconds"] / rate["requests"] - 1) < 1e-6)


def counts(folder):
    found = measured(folder, "--bytes", "20MiB", "--depth", "4")
    write, sync, read = found["write"], found["sync"], found["read"]
    test("each byte is counted once, written and read, of a file each and a sync",
         write["bytes"] == read["bytes"] == 20 * MIB and write["requests"] == read["requests"] == 20
         and found["files"] == sync["requests"] == 8 and sync["bytes"] == 0 and
         (found["block_bytes"], found["depth"]) == (MIB, 4), found)
    test("the figures fit each other", fits(write) and fits(read) and 0 < sync["p50_seconds"] <=
         sync["max_seconds"] <= sync["seconds"] and abs(
             found["durable_bytes_per_second"] * (write["seconds"] + sync["seconds"]) /
             write["bytes"] - 1) < 1e-6, found)
    test("it is gone", os.listdir(folder) == [], os.listdir(folder))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([CLI, "bench", "io", folder, "--bytes", "3MiB", "--block", "64KiB"],
                         capture_output=True, text=True, timeout=PATIENCE).stdout
    written = 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock - before.ru_oublock)
    test("for people it says the same", "3.00 MiB in " in out and "8 files; p50" in out and
         [line.split()[0] for line in out.splitlines()] ==
         ["storage", "write", "sync", "durable", "read"], out)
    name = "the system has counted as many bytes to the disk"
    if "O_DIRECT" in out and written > 0:
        test(name, 3 * MIB <= written < 4 * MIB, written)
    else:
        skip([name], "the system counts none of this process")
    done = subprocess.run([os.path.join(BUILD, "shims/no_uring"), CLI, "bench", "io", folder,
                           "--json", "--bytes", "4MiB"], capture_output=True, text=True,
                          timeout=PATIENCE)
    found = json.loads(done.stdout)
    test("without io_uring threads do it, as ckptd's would", "threads" in found["storage"] and
         found["read"]["bytes"] == 4 * MIB and fits(found["write"]), found)


def ends_in_time(folder):
    found = measured(folder, *SLOWLY, "512MiB", "--time", "0.2")
    write, read = found["write"], found["read"]
    test("--time bounds the writes and the reads, each", 0 < read["bytes"] <= write["bytes"] <
         512 * MIB and write["bytes"] == 4096 * write["requests"] and
         max(write["seconds"], read["seconds"]) < 2 and os.listdir(folder) == [], found)


def refuses(folder):
    done = lib_program.run(CLI, "bench", "io", folder, "--bytes", "1000TiB", "--block", "64MiB",
                           "--depth", "1")
    test("what does not fit is refused before anything is written", done.returncode == 74 and
         "do not fit into" in done.stderr and os.listdir(folder) == [], done)


@contextlib.contextmanager
def under_way(folder, file, size):
    """A slow one that has begun with that file, and the file's path."""
    def found():
        return [os.path.join(folder, name, file) for name in os.listdir(folder)
                if os.path.exists(os.path.join(folder, name, file))]
    with subprocess.Popen([CLI, "bench", "io", folder, *SLOWLY, size], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        paths = comes(found, pause=0.001)
        assert paths, process.poll()
        try:
            yield process, paths[0]
        finally:
            process.kill()


def compares(folder):
    with under_way(folder, "file-1", "64MiB") as (process, path):
        with open(os.path.join(os.path.dirname(path), "file-0"), "r+b") as file:
            file.seek(4096)
            file.write(b"changed!")
        _, err = process.communicate(timeout=PATIENCE)
        test("bytes that changed on the disk are damage", process.returncode == 1 and
             "are not those written" in err and os.listdir(folder) == [], err)


def interrupted(folder):
    for number in (signal.SIGINT, signal.SIGTERM):
        with under_way(folder, "file-0", "512MiB") as (process, _):
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
            test(f"{number.name} ends it as it ends others, and nothing is left",
                 process.returncode == -number and (out, err) == ("", "") and
                 os.listdir(folder) == [], (process.returncode, out, err, os.listdir(folder)))


def main():
    with tempfile.TemporaryDirectory(prefix="be-", dir=os.environ.get("TMPDIR")) as folder:
        counts(folder)
        ends_in_time(folder)
        refuses(folder)
        compares(folder)
        interrupted(folder)
    end()


main()
