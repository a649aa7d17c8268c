"""lib_rules - bugs that are planted by rule: small changes of a line, like those of a programmer.

bugs_of() gives those of a file, as tests/mutants plants them: a condition is negated, a bound moves
by one, == is !=, && is ||, a call is dropped, a function returns 0, a 1 is left out. tests_of()
gives the tests that should notice: the tests that mutants.toml names for the file, the unit tests
of its name, and those that include its header.
"""
import glob
import os
import re

NOT_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.S)
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
SWAP = re.compile(r" (<=|>=|<|>|==|!=|&&|\|\|) ")
CONDITION = re.compile(r"\b(?:if|while) \((.+)\)(?: \{|;)?$")
NOT_DROPPED = "return|if|for|while|else|goto|case|CHECK|free|va_|assert|log_"
CALL = re.compile(rf"^ +((?!{NOT_DROPPED})[a-z_0-9]+\(.*\);)$")
RESULT = re.compile(r"\breturn ((?!0;|false;|NULL;|true;).+);$")
ONE = re.compile(r"( [+-] 1)\b(?!\.)")
TESTS_MAX = 6


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def changes_of(line, code):
    """(rule, the changed line) of a line, whose comments and texts are blank in `code`."""
    for found in SWAP.finditer(code):
        start, end = found.span(1)
        yield f"{found.group(1)} is {SWAPS[found.group(1)]}", (
            line[:start] + SWAPS[found.group(1)] + line[end:])
    for rule, pattern, text in (("negated", CONDITION, "!({})"), ("dropped", CALL, ";"),
                                ("returns 0", RESULT, "0"), ("without the 1", ONE, "")):
        for found in pattern.finditer(code):
            start, end = found.span(1)
            part = line[start:end]
            if part.count("(") == part.count(")"):
                yield rule, line[:start] + text.format(part) + line[end:]


def bugs_of(root, path):
    """Of a C file."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    at = 0
    for number, (line, code) in enumerate(zip(
            text.split("\n"), NOT_CODE.sub(blank, text).split("\n")), 1):
        is_inside = code.startswith("    ") and not code.rstrip().endswith("\\")
        for rule, changed in changes_of(line, code) if is_inside else ():
            yield {"name": f"{path}:{number}: {rule}", "file": path, "line": number, "at": at,
                   "passage": line, "replacement": changed}
        at += len(line) + 1


def tests_of(root, path, listed):
    """`listed`: {file: the tests that mutants.toml names for it}. The most telling first."""
    stem, _ = os.path.splitext(path)
    name = f"{stem.split('/')[0]}_{os.path.basename(stem)}"
    include = f'#include "{stem}.h"'
    named, including = [], []
    for source in sorted(glob.glob(os.path.join(root, "tests/unit/*.c"))):
        test = os.path.basename(source)[:-2]
        with open(source, encoding="utf-8") as file:
            is_including = include in file.read()
        if test == name or test.startswith(name + "_"):
            named.append(test)
        elif is_including and not test.startswith("check_"):
            including.append(test)
    return list(dict.fromkeys(named + list(listed.get(path, ())) + including))[:TESTS_MAX]
