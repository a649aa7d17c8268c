#!/usr/bin/env python3
"""pages - the commands of docs/tour.md, operations.md and cluster.md.

Goal: each command of a page runs as printed; in the tour its output is the printed one. Method: the
indented blocks of a page are a script of one bash, in a separate folder. In the tour "$ " begins a
command, other lines are its output. A number matches any number, and "..." any text of a line, or
any lines. Its pictures are not made again. Of the other pages every line is a command, and none may
fail. A section with Prometheus is skipped where that is not installed. The one with an image is not
run: it needs a network, and check_image.py has such an image served by commands of its own.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from lib_store import BUILD
from lib_tap import end, skip, test

PLACE = "/var/tmp/hf"  # of the pages
IMAGE = "make -s image"  # in a section that is not run
PATIENCE = 100 * int(os.environ.get("TEST_TIME_SCALE", "1"))
NUMBER = re.compile(r"0x[\da-f.]+p[+-]\d+|\d[\d.,:]*(?:e[+-]\d+)?")


def commands(text):
    """[command, [line that it shows]] of the indented blocks."""
    found = []
    for line in re.findall(r"^    (.*)", text, re.M):
        if line.startswith("$ "):
            found.append([line[2:], []])
        elif found and found[-1][0].endswith("\\"):
            found[-1][0] += "\n" + line
        elif line:
            found[-1][1].append(line)
    return found


def pattern(line):
    """A regular expression for a line of the page."""
    return r"\s+".join(".*".join(re.escape(NUMBER.sub("0", part)) for part in word.split("..."))
                       for word in line.split())


def shows(lines, output):
    """Are the page's lines there, in their order?"""
    printed = [NUMBER.sub("0", line) for line in output.splitlines()]
    for line in lines:
        wanted = re.compile(r"\s*" + pattern(line) + r"\s*$")
        while line != "..." and printed and not wanted.match(printed[0]):
            printed.pop(0)
        if line != "..." and not printed:
            return line
    return None


def run(script, folder):
    """The output. Its processes have a separate group, which ends with it. From a mark (@@@) to the
    next one it has PATIENCE seconds."""
    path = os.path.join(folder, "said")
    with open(path, "w") as out:
        bash = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=out,
                                stderr=subprocess.STDOUT, start_new_session=True,
                                env=dict(os.environ, TMPDIR=folder, NO_COLOR="1"))
    marks, until = 0, time.monotonic() + PATIENCE
    while bash.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
        with open(path) as file:
            if (now := file.read().count("@@@")) > marks:
                marks, until = now, time.monotonic() + PATIENCE
    if bash.poll() is None:
        print(f"# the step after mark {marks} took too long")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(bash.pid, signal.SIGKILL)
    bash.wait()
    with open(path) as file:
        return file.read()


def read(page):
    with open(f"docs/{page}", encoding="utf-8") as file:
        return file.read()


def tour():
    steps = commands(read("tour.md").replace("$PWD/build", BUILD))
    script = "".join(f"{command}\necho \"@@@ {number} $?\"\n"
                     for number, (command, _) in enumerate(steps))
    with tempfile.TemporaryDirectory() as folder:
        said = run(script, folder)
    for number, (command, lines) in enumerate(steps):
        mark = re.search(rf"@@@ {number} (\d+)\n", said)
        output, said = (said[:mark.start()], said[mark.end():]) if mark else (said, "")
        name = command.split("\n")[0]
        missing = shows(lines, output)
        status = mark and mark[1]
        test(f"{name}: does, and prints what the page shows", status == "0" and missing is None,
             f"status {status}, missing: {missing}\n{output}")
    test("the tour has commands", len(steps) > 5)


def blocks(page):
    """(heading, its indented lines, why it is not run) of a page's sections."""
    for section in re.split(r"^#+ ", read(page), flags=re.M)[1:]:
        lines = re.findall(r"^    (.*)", section, re.M)
        absent = [name for name in ("promtool", "prometheus")
                  if any(line.startswith(name) for line in lines) and not shutil.which(name)]
        why = ("check_image.py has an image" if IMAGE in lines else
               " and ".join(absent) + " is missing" if absent else "")
        if lines:
            yield section.split("\n")[0], "\n".join(lines) + "\n", why


def operations():
    found = [(page, *block) for page in ("operations.md", "cluster.md") for block in blocks(page)]
    script = "set -E -o pipefail; trap 'echo \"@@@ failed: $BASH_COMMAND\"' ERR\n" + "".join(
        f"{text}echo '@@@ {number}'\n"
        for number, (_, _, text, why) in enumerate(found) if not why)
    with tempfile.TemporaryDirectory() as folder:
        said = run(script.replace(PLACE, folder + "/hf").replace("build/", BUILD + "/"), folder)
    for number, (page, heading, _, why) in enumerate(found):
        name = f"{page}, {heading}: every command ends with 0"
        if why:
            skip([name], why)
            continue
        output, mark, rest = said.partition(f"@@@ {number}\n")
        said = rest if mark else said
        test(name, mark and "@@@ failed" not in output, output)
    test("both pages have commands", len({page for page, *_ in found}) == 2 and len(found) > 5)


tour()
operations()
end()
