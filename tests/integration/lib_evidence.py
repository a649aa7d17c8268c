"""lib_evidence - what ran on a GPU, as a file, and the word "ran" in the table of
kernels/cuda/README.md that stands on it.

A file of kernels/cuda/evidence says on which GPU, when, with which driver, and of which operation
how many comparisons passed. write_table() fills in the last column of the table's rows whose every
operation is in the newest file; unfounded() names rows that say more than the files do.
"""

import glob
import os
import tomllib



def products(how, kind=""):
    return tuple(f"{how}: {name}{kind}" for name in ("linear", "linear_backward_input",
                                                     "linear_backward_weight"))


# The rows of the table by how they begin: what has to be compared, and how, for the word.
ROWS = {
    "embedding": ("bits: embedding", "bits: embedding_backward"),
    "residual + RMSNorm": ("bits: rmsnorm", "bits: rmsnorm_backward"),
    "RoPE": ("bits: rope",),
    "pack, unpack": ("bits: pack", "bits: unpack", "bits: swiglu", "bits: swiglu_backward",
                     "bits: add", "bits: fold", "bits: convert"),
    "round to float8": ("bits: round_float8",),
    "codes of parts": ("bits: float8_largest", "bits: float8_decode"),
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


def load_all(folder):
    """The evidence files, the newest last."""
    found = []
    for path in glob.glob(os.path.join(folder, "*.toml")):
        with open(path, "rb") as file:
            found.append(tomllib.load(file))
    return sorted(found, key=lambda one: one["date"])


def word(evidence, row):
    """What the table may say of a row: GPU, date and driver, or that it did not run."""
    passed = evidence.get("compared", {})
    if not all(passed.get(name, 0) > 0 for name in ROWS[row]):
        return NOT_RUN
    return f"{evidence['gpu']}, {evidence['date']}, driver {evidence['driver']}"


def write_table(readme, evidence):
    """Changes the last column of the rows that ran; how many there were."""
    with open(readme, encoding="utf-8") as file:
        lines = file.read().split("\n")
    changed = 0
    for at, line in enumerate(lines):
        row = row_of(line)
        said = word(evidence, row) if row else NOT_RUN
        if said != NOT_RUN:
            lines[at] = "| " + " | ".join([*cells_of(line)[:-1], said]) + " |"
            changed += 1
    with open(readme, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return changed


def unfounded(readme, folder):
    """Rows that say "ran" without a file for it; and rows of ROWS that are not in the table."""
    known = load_all(folder)
    with open(readme, encoding="utf-8") as file:
        said = {row_of(line): cells_of(line)[-1] for line in file if row_of(line)}
    wrong = [f"{row}: {text}" for row, text in said.items()
             if text != NOT_RUN and text not in [word(one, row) for one in known]]
    return wrong + [f"no row begins with {row}" for row in ROWS if row not in said]
