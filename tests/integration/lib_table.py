"""lib_table - command lines of ckpt-cli as a table: a test a command.

    -- PLACES
    COMMAND; COMMAND; ... => EXIT CODE [> part of stdout] [! part of stderr] ...

A command that ends with 0 or 1 prints nothing on stderr, another one nothing on stdout and one line
on stderr, unless the row says otherwise. Each runs once for each place of its chapter, whose
options are appended, and must print the same for all. {name} is replaced by a value of `names`. A
line without "=>" continues in the next one.
"""

import json
import re
import shlex

import lib_program
from lib_store import CLI
from lib_tap import test


def is_as_told(done, code, parts):
    """`parts`: texts, each with the sign of where it is."""
    is_answer, signs = code in (0, 1), {part[0] for part in parts}
    return (done.returncode == code and
            (">" in signs or is_answer or done.stdout == "") and
            ("!" in signs or not is_answer or done.stderr == "") and
            (is_answer or done.stderr.count("\n") == 1) and
            all(part[2:] in (done.stdout if part[0] == ">" else done.stderr) for part in parts))


def says(name, command, *place, code=0, out=(), err=(), then=lambda: True):
    """A test of one command line; `out` and `err`: parts of its output, `then`: a condition that
    holds after it. Returns stdout, of --json as the document."""
    done = lib_program.run(CLI, *shlex.split(command), *place)
    parts = [f"{sign} {part}" for sign, parts in ((">", out), ("!", err))
             for part in ([parts] if isinstance(parts, str) else parts)]
    test(name, is_as_told(done, code, parts) and then(), done)
    return json.loads(done.stdout) if "--json" in command.split() and done.stdout else done.stdout


def run_row(commands, code, parts, places, names):
    for command in commands:
        words = [word.format(**names) for word in shlex.split(command)]
        said = [lib_program.run(CLI, *words, *place) for place in places]
        is_same = len({(done.returncode, done.stdout, done.stderr) for done in said}) == 1
        options = [place[0] for place in places if place]
        test(" ".join([command, *options, "ends with", str(code)]),
             is_same and is_as_told(said[0], code, parts), said)


def run_table(table, places, **names):
    """`places`: {name of a chapter: the options of each place}."""
    row = ""
    for line in table.strip().splitlines():
        row += line + " "
        if line.startswith("-- "):
            of, row = places[line[3:]], ""
        elif " => " in line:
            commands, code, *parts = re.split(r" (?:=>|(?=[>!] )) ?", row.strip())
            run_row(commands.split("; "), int(code), [part.format(**names) for part in parts], of,
                    names)
            row = ""
    assert not row, row
