"""lib_cuda - the reports of nvcc and ptxas about the kernels, and conclusions without a GPU.

Occupancy: as many blocks fit a multiprocessor as its registers, shared memory, warps and blocks
allow. Registers are given to a warp in units of 256 and to warps in fours, shared memory in units
of 128 bytes (cuda_occupancy.h of the toolkit: cudaOccMaxActiveBlocksPerMultiprocessor). Bound: the
longer of the time to move a kernel's bytes once and to do its operations, at the rates of a data
sheet. It is no measured speed: no kernel can be faster, each may be slower.
"""

import glob
import re
import subprocess
import tomllib

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
THREADS = re.compile(r"\.maxntid (\d+)")
BLOCKS = re.compile(r"\.minnctapersm (\d+)")
# One step of a model of 8 billion parameters on 8,192 tokens: the shapes of the bounds. `moments`
# and `sums`: bytes of a moment, and of a number of the sums of gradients.
SHAPES = {"rows": 8192, "seq": 8192, "dim": 4096, "hidden": 14336, "vocab": 128256, "heads": 32,
          "kv_heads": 8, "head_dim": 128, "parameters": 8e9, "bf16": 2, "float": 4,
          "moments": 4, "sums": 4}


def load(path):
    with open(path, "rb") as file:
        return tomllib.load(file)


def names_of(mangled):
    """Without template arguments and types: the name in the source."""
    text = subprocess.run(["c++filt", *mangled], capture_output=True, text=True, check=True).stdout
    names = [re.sub(r"<.*", "", line.split("(")[0]).split()[-1] for line in text.splitlines()]
    return dict(zip(mangled, names))


def read_logs(folder):
    """The report of ptxas -v for each instance and architecture."""
    found, entry = [], None
    for path in sorted(glob.glob(folder + "/*.log")):
        for line in open(path, encoding="utf-8"):
            entry = ENTRY.search(line) or entry
            stack = STACK.search(line)
            if stack:
                frame, *spills = map(int, stack.groups())
            used, shared = USED.search(line), SHARED.search(line)
            if used:
                found.append({"mangled": entry.group(1), "architecture": entry.group(2),
                              "registers": int(used.group(1)), "spilled": sum(spills),
                              "stack": frame, "shared": int(shared.group(1)) if shared else 0})
    names = names_of(sorted({row["mangled"] for row in found}))
    return [dict(row, kernel=names[row["mangled"]]) for row in found]


def read_ptx(folder):
    """{mangled name: its PTX}"""
    bodies = {}
    for path in sorted(glob.glob(folder + "/*.ptx")):
        parts = re.split(r"^\s*(?:\.visible )?\.entry (\w+)", open(path).read(), flags=re.M)
        bodies.update(zip(parts[1::2], parts[2::2]))
    return bodies


def up(value, unit):
    return (value + unit - 1) // unit * unit


def number(formula, shapes=None):
    """Of budgets.toml: numbers, the letters of SHAPES, + - * /."""
    return eval(formula, {"__builtins__": {}}, shapes or SHAPES)  # the repository's own file


def fitting_blocks(row, threads, dynamic, limits):
    """(blocks that fit one multiprocessor, the resource that limits them)"""
    warps = (threads + 31) // 32
    of_block = up(row["shared"] + dynamic, 128)
    if of_block > limits["shared_of_block"]:
        return 0, "shared memory"
    of_warp = up(max(row["registers"], 1) * 32, 256)
    room = {"registers": limits["registers"] // of_warp // 4 * 4 // warps,
            "shared memory": limits["shared"] // (of_block + limits["reserved"]),
            "warps": limits["warps"] // warps, "blocks": limits["blocks"]}
    least = min(room, key=room.get)
    return room[least], least


def bounds(budget, gpus, shapes=None):
    """{GPU: (seconds, "memory" or the unit of the operations)} of a kernel at SHAPES."""
    moved, done = (number(budget[what], shapes) for what in ("bytes", "operations"))
    beside = number(budget.get("float", "0"), shapes)
    times = {}
    for name, gpu in gpus.items():
        parts = {"memory": moved / gpu["memory"], "float": beside / gpu["float"]}
        parts[budget["unit"]] = max(parts.get(budget["unit"], 0), done / gpu[budget["unit"]])
        slowest = max(parts, key=parts.get)
        times[name] = (parts[slowest], slowest)
    return moved, done, times
