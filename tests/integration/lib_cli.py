"""lib_cli - shared by the scripts that test ckpt-cli: a ckptd with three checkpoints of run "trip",
and their expected values.

The stock safetensors library is the second opinion; without it the script is skipped. A script
marks its tests with @test, and main() runs them in turn.
"""

import json
import os
import sys

import lib_program
import lib_tap

lib_tap.need("numpy", "safetensors")
import numpy  # noqa: E402
import safetensors  # noqa: E402
import safetensors.numpy  # noqa: E402

from lib_store import BUILD, CLI, World  # noqa: E402

EXAMPLE = os.path.join(BUILD, "ckpt_example")
MODEL = [  # as in tests/beds/clients_group.c
    ("tok_embeddings.weight", "F32", (517, 1300)),
    ("layers.0.attention.wq.weight", "BF16", (700, 811)),
    ("layers.0.attention_norm.weight", "F32", (37,)),
    ("optimizer.exp_avg.tok_embeddings.weight", "F32", (517, 1300)),
    ("experts", "F16", (3, 5, 7, 11)),
    ("optimizer.step", "I64", ()),
    ("mask", "U8", (13, 1, 29)),
    ("tiny", "F64", (2,)),
]
BYTES = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "U8": 1}
UNSIGNED = {8: numpy.uint64, 4: numpy.uint32, 2: numpy.uint16, 1: numpy.uint8}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Bed(World):
    """With a ckptd that runs."""

    def __init__(self, store=None):
        super().__init__(store)
        self.launch()

    def step_folder(self, step, attempt):
        return os.path.join(self.store, "trip", f"step-{step:08d}-a{attempt:04d}")

    def shards(self, step, attempt):
        folder = self.step_folder(step, attempt)
        return sorted(
            os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("shard-")
        )

    def copy(self, name):
        """A copy of the store, to be damaged."""
        to = os.path.join(self.folder, name)
        self.copy_store(to)
        return to


# ---- the values


def mix(value):
    value = (value ^ value >> numpy.uint64(33)) * numpy.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ value >> numpy.uint64(33)) * numpy.uint64(0xC4CEB9FE1A85EC53)
    return value ^ value >> numpy.uint64(33)


def bits_of(index, step):
    """The bits of the elements of tensor `index` at `step`, as unsigned integers of their size."""
    _, dtype, shape = MODEL[index]
    count = int(numpy.prod(shape, dtype=numpy.int64))
    with numpy.errstate(over="ignore"):
        values = mix(
            numpy.arange(count, dtype=numpy.uint64) + numpy.uint64((index << 40) + (step << 48))
        )
    return values.astype(UNSIGNED[BYTES[dtype]]).reshape(shape)


def as_double(bits, dtype):
    if dtype == "BF16":
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    return bits.view(
        {"F16": numpy.float16, "F32": numpy.float32, "F64": numpy.float64}[dtype]
    ).astype(numpy.float64)


def nearest_bf16(values):
    """Rounded in units of the last place: 8 significant bits, subnormals below 2^-126."""
    _, exponent = numpy.frexp(values)
    unit = numpy.ldexp(1.0, numpy.maximum(exponent, -125) - 8)
    out = numpy.rint(values / unit) * unit
    out[numpy.abs(out) >= 2.0**128] = numpy.sign(values[numpy.abs(out) >= 2.0**128]) * numpy.inf
    return out


def rounded(bits, stored, option):
    """The expected result of converting elements with these bits: (dtype, values as doubles)."""
    dtype = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[option]
    with numpy.errstate(all="ignore"):
        values = as_double(bits, stored)
        if dtype == "BF16":  # the nearest of the two neighbours, by brute force
            return dtype, nearest_bf16(values)
        numpy_type = {"F16": numpy.float16, "F32": numpy.float32}[dtype]
        return dtype, values.astype(numpy_type).astype(numpy.float64)


# ---- the commands


def cli(*arguments, want=0):
    """Runs ckpt-cli; returns its output. Fails when the exit code is not `want`."""
    done = lib_program.run(CLI, *arguments)
    assert done.returncode == want, (arguments, done.returncode, want, done.stdout, done.stderr)
    assert (done.stderr == "") == (want == 0 or (want == 1 and done.stdout != "")), done.stderr
    assert done.stderr.count("\n") <= 1, done.stderr
    return done.stdout if done.stdout else done.stderr


def checked_export(bed, *options):
    """An export as {name: (dtype, bits)}, opened by the stock library."""
    path = os.path.join(bed.folder, "export.safetensors")
    cli("export", "trip@1-a1", "--store", bed.store, "--output", path, "--force", *options)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata()["format"] == "pt"
    out = {}
    for name, tensor in safetensors.deserialize(read(path)):
        bits = numpy.frombuffer(tensor["data"], dtype=UNSIGNED[BYTES[tensor["dtype"]]])
        out[name] = (tensor["dtype"], bits.reshape(tensor["shape"]))
    assert not os.path.exists(path + ".part")
    return out


def ancestors(*where, complete=True):
    shown = json.loads(cli("show", "example", *where, "--json"))
    assert shown["ancestors_complete"] == complete, shown
    lineage, latest = shown["lineage"], shown["ancestors"][0]
    assert (latest["step"], latest["attempt"]) == (lineage["step"], lineage["attempt"])
    return shown["ancestors"]


# ---- files


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main():
    bed, good = Bed(), False
    try:
        bed.save_one(1, ranks=3, seed=31)  # attempt 1
        bed.save_one(2, ranks=2, seed=32)
        bed.save_one(1, ranks=5, seed=33)  # attempt 3: step 1 again, in another layout
        good = lib_tap.run(TESTS, bed)
        bed.stop()
    finally:
        bed.close()
    sys.exit(not good)
