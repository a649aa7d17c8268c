"""lib_evidence - the operations that ran on a GPU, as a file, and the word "ran" in the table of
kernels/cuda/README.md that is based on it.

A file of kernels/cuda/evidence names the GPU, the time, the driver, how many comparisons of each
operation passed, and the digest of each row's sources at that time. write_table() fills in the last
column of the table's rows whose every operation is in a file: the run, or "before: " and the run
when the sources differed. unfounded() names rows that say anything else. `lib_evidence.py` run by
itself writes the table of the tree.
"""

import glob
import hashlib
import os
import re
import sys
import tomllib

CUDA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../kernels/cuda")
BEFORE = "before: "
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
INCLUDE = re.compile(r'^#include "kernels/cuda/([^"]+)"', re.M)


def products(how, kind=""):
    return tuple(f"{how}: {name}{kind}" for name in ("linear", "linear_backward_input",
                                                     "linear_backward_weight"))


# The rows of the table by their first words: the comparisons that the word "ran" requires.
ROWS = {
    "embedding": ("bits: embedding", "bits: embedding_backward"),
    "residual + RMSNorm": ("bits: rmsnorm", "bits: rmsnorm_backward"),
    "RoPE": ("bits: rope",),
    "pack, unpack": ("bits: pack", "bits: unpack", "bits: swiglu", "bits: swiglu_backward",
                     "bits: add", "bits: fold", "bits: convert"),
    "round to float8": ("bits: round_float8",),
    "codes of parts": ("bits: float8_largest", "bits: float8_encode", "bits: float8_decode"),
    "cross entropy": ("bits: cross_entropy",),
    "extremes": ("bits: extremes",),
    "exact sum": ("bits: sum_squares",),
    "digest": ("bits: digest",),
    "products: float": products("bits"),
    "products of bf16 by tensor cores": products("near"),
    "products of bf16 by cuBLASLt": products("cublaslt"),
    "products of float8 by tensor cores": products("near", "_float8"),
    "products of float8 by cuBLASLt": products("cublaslt", "_float8"),
    "several products at once": tuple(f"{how}: linears{of}" for how in ("bits", "near", "cublaslt")
                                      for of in ("", "_backward_weight")),
    "attention, its gradient": ("bits: attention", "bits: attention_backward"),
    "attention by tensor cores": ("near: attention", "near: attention_backward"),
    "attention by cuDNN": ("cudnn: attention", "cudnn: attention_backward"),
    "AdamW": ("bits: adamw",),
}
NOT_RUN = "–"


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def row_of(line):
    """The row's name in ROWS, if it is one."""
    first = cells_of(line)[0] if line.startswith("|") else ""
    return next((name for name in ROWS if first.startswith(name)), None)


def digest_of(names):
    """The digest of files of kernels/cuda and of their includes from there, without comments and
    blanks."""
    texts, left = {}, sorted(names)
    while left:
        name = left.pop()
        with open(os.path.join(CUDA, name), encoding="utf-8") as file:
            text = file.read()
        texts[name] = "".join(COMMENT.sub("", text).split())
        left += [found for found in INCLUDE.findall(text) if found not in texts]
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]


def sources_of(readme):
    """{row: the digest of the files that the table names}"""
    with open(readme, encoding="utf-8") as file:
        rows = {row_of(line): cells_of(line)[1] for line in file if row_of(line)}
    return {row: digest_of(files.split(", ")) for row, files in rows.items()}


def load_all(folder):
    """The evidence files, the newest last."""
    found = []
    for path in glob.glob(os.path.join(folder, "*.toml")):
        with open(path, "rb") as file:
            found.append(tomllib.load(file))
    return sorted(found, key=lambda one: one["date"])


def word(evidence, row, sources):
    """The allowed text of a row: GPU, date and driver, or that it did not run."""
    passed = evidence.get("compared", {})
    if not all(passed.get(name, 0) > 0 for name in ROWS[row]):
        return NOT_RUN
    is_of_now = evidence.get("sources", {}).get(row) == sources[row]
    return (f"{'' if is_of_now else BEFORE}{evidence['gpu']}, {evidence['date']}, "
            f"driver {evidence['driver']}")


def best_word(known, row, sources):
    """Of evidence, the newest last: of these sources, else of others, else none."""
    said = [word(one, row, sources) for one in reversed(known)]
    ran = [one for one in said if one != NOT_RUN]
    return next((one for one in ran if not one.startswith(BEFORE)), ran[0] if ran else NOT_RUN)


def write_table(readme, known):
    """Writes the last column of every row; how many ran as they are."""
    sources = sources_of(readme)
    with open(readme, encoding="utf-8") as file:
        lines = file.read().split("\n")
    said = {}
    for at, line in enumerate(lines):
        row = row_of(line)
        if row:
            said[row] = best_word(known, row, sources)
            lines[at] = "| " + " | ".join([*cells_of(line)[:-1], said[row]]) + " |"
    with open(readme, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return sum(not one.startswith((BEFORE, NOT_RUN)) for one in said.values())


def unfounded(readme, folder):
    """Rows that say anything else than the files; and rows of ROWS that are not in the table."""
    known, sources = load_all(folder), sources_of(readme)
    with open(readme, encoding="utf-8") as file:
        said = {row_of(line): cells_of(line)[-1] for line in file if row_of(line)}
    wrong = [f"{row}: {text}" for row, text in said.items()
             if text != best_word(known, row, sources)]
    return wrong + [f"no row begins with {row}" for row in ROWS if row not in said]


if __name__ == "__main__":
    count = write_table(os.path.join(CUDA, "README.md"), load_all(os.path.join(CUDA, "evidence")))
    print(f"{count} of {len(ROWS)} rows ran as they are")
    sys.exit(0)
