"""lib_tap - the output of the scripts in Python: the lines that tests/run reads.

A script reports each result with test() and ends with end(), or passes its functions to run().
"""

import importlib
import inspect
import os
import shutil
import sys
import traceback

number = num_failed = 0


def need(*modules):
    """Ends with 77 when one is missing here and in $PYTHON, which is tried once."""
    try:
        for name in modules:
            importlib.import_module(name)
    except ImportError as missing:
        python = os.environ.get("PYTHON", "")
        if python and "RETRIED" not in os.environ:
            os.execve(python, [python] + sys.argv, dict(os.environ, RETRIED="1"))
        print(f"the Python module {missing.name} is missing")
        sys.exit(77)


def need_programs(*programs):
    """Ends with 77 when one is missing."""
    for name in programs:
        if not shutil.which(name):
            print(f"{name} is missing")
            sys.exit(77)


def _remark(text):
    print("\n".join("# " + line for line in str(text).split("\n")), flush=True)


def test(name, condition, detail=""):
    global number, num_failed
    number += 1
    num_failed += not condition
    print(f"{'ok' if condition else 'not ok'} {number} - {name}", flush=True)
    if not condition:
        _remark(detail)


def skip(names, reason):
    global number
    for name in names:
        number += 1
        print(f"ok {number} - {name} # SKIP {reason}", flush=True)


class Skip(Exception):
    """The missing requirement; raised by a test of run()."""


def end():
    """Did all pass?"""
    print(f"1..{number}", flush=True)
    return num_failed == 0


def tests_of_script(*words):
    """The script's functions of a world or a bed alone, in their order; if words: with one of them
    in their names."""
    return [one for name, one in vars(sys.modules["__main__"]).items()
            if inspect.isfunction(one)
            and [*inspect.signature(one).parameters] in (["world"], ["bed"])
            and (not words or any(word in name for word in words))]


def run(tests, bed):
    """Runs the functions in turn, each with the bed; their names are the tests' names. Returns
    whether all passed."""
    print(f"1..{len(tests)}", flush=True)
    failed = 0
    for place, function in enumerate(tests, 1):
        name = function.__name__.replace("_", " ")
        try:
            function(bed)
            print(f"ok {place} - {name}", flush=True)
        except Skip as missing:
            print(f"ok {place} - {name} # SKIP {missing}", flush=True)
        except Exception:  # a failed assertion, or another error
            failed += 1
            print(f"not ok {place} - {name}", flush=True)
            _remark(traceback.format_exc())
    return failed == 0
