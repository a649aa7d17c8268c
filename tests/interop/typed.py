#!/usr/bin/env python3
"""typed - mypy on the Python package, and on programs that use it.

Goal: every function of the package is annotated and fits its annotations; a user's editor knows the
types of arguments and results. Method: mypy, with NumPy alone beside it (torch and the frameworks
are "Any" then, as for a user without them), in a separate venv. A program that uses the package as
its README does passes; each wrong line of another is found, and no other line.
"""
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "../integration"))
from lib_tap import Skip, run  # noqa: E402

SOURCE = os.path.join(ROOT, "clients/python/src")
VENV = os.environ.get("TYPED_VENV", os.path.join(ROOT, "build/typed-venv"))
PACKAGES = ["mypy==2.4.1", "numpy"]
STRICT = ["--check-untyped-defs", "--disallow-untyped-defs", "--disallow-incomplete-defs",
          "--ignore-missing-imports", "--no-error-summary", "--hide-error-context"]

RIGHT = '''
from typing import Optional

import numpy
import holdfast

with holdfast.Client("unix:/run/holdfast/ckptd.sock", run="llama") as client:
    saved: holdfast.Save = client.save(1, {"w": numpy.ones(3)}, state={"epoch": 3})
    saved.wait()
    steps: list[int] = [info.step for info in client.list()]
    names: list[str] = list(client.metadata().tensors)
with holdfast.open("llama@1000") as checkpoint:
    rows: numpy.ndarray = checkpoint["w"][:128]
try:
    client.load({"w": rows}, step=2)
except holdfast.BusyError as error:
    hint: str = error.hint
except holdfast.TimeoutError as late:
    os_error: OSError = late
'''

WRONG = '''
import holdfast

client = holdfast.Client("unix:/run/holdfast/ckptd.sock", run=3)  # WRONG
client.save("1", {})  # WRONG
client.save(1, {}).wait(level=7)  # WRONG
client.list()[0].stepp  # WRONG
number: int = holdfast.open("llama@1000")["w"][:2]  # WRONG
holdfast.open("llama@1000")["w"].shape.append(3)  # WRONG
number = holdfast.InvalidError("no", "yes").hint  # WRONG
'''


def mypy():
    program = os.path.join(VENV, "bin/mypy")
    if not os.path.exists(program):
        pip = [os.path.join(VENV, "bin/pip"), "install", "-q", "--disable-pip-version-check"]
        made = subprocess.run([sys.executable, "-m", "venv", VENV]).returncode == 0
        if not made or subprocess.run(pip + PACKAGES).returncode != 0:
            raise Skip(f"{' and '.join(PACKAGES)} could not be installed")
    return program


def found_in(*arguments):
    """The lines of mypy's findings."""
    done = subprocess.run([mypy(), *STRICT, *arguments], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def the_package_fits_its_annotations(_):
    found = found_in("-p", "holdfast")
    assert not found, "\n".join(found)


def a_program_like_the_readme_is_typed(_):
    found = found_in("-c", RIGHT)
    assert not found, "\n".join(found)


def each_wrong_use_is_found(_):
    found = found_in("-c", WRONG)
    lines = {int(re.match(r"<string>:(\d+):", line)[1]) for line in found}
    wanted = {i for i, line in enumerate(WRONG.split("\n"), 1) if line.endswith("# WRONG")}
    assert len(wanted) == 7 and lines == wanted, "\n".join(found)


if __name__ == "__main__":
    sys.exit(not run([the_package_fits_its_annotations, a_program_like_the_readme_is_typed,
                      each_wrong_use_is_found], None))
