"""lib_hf - shared by the scripts that export models to Hugging Face's form and import them.

Bed has a store, a tokens file and a ckptd that lives as long as one run of the trainer.
bits_of_folder() reads a folder by the stock safetensors library. Functions marked @test are run by
main(), which prints TAP.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import lib_program
import lib_tap
import lib_text
import lib_train
from lib_store import BUILD, CLI, World
from lib_tap import need

need("numpy", "safetensors")
import lib_reference as reference  # noqa: E402
import safetensors  # noqa: E402

SEQ = 64
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def said(done, want):
    assert done.returncode == want, (done.args, done.returncode, want, done.stdout, done.stderr)
    return done.stdout if done.stdout else done.stderr


def run(*command, want=0, **options):
    return said(subprocess.run([str(c) for c in command], capture_output=True, text=True,
                               timeout=120, **options), want)


def cli(*arguments, want=0):
    return said(lib_program.run(CLI, *arguments, timeout=120), want)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def bits_of_file(path):
    """{name: (dtype, bytes, shape)} by the stock library."""
    with safetensors.safe_open(path, framework="np"):
        pass
    return {name: (tensor["dtype"], bytes(tensor["data"]), tuple(tensor["shape"]))
            for name, tensor in safetensors.deserialize(read(path))}


def bits_of_folder(folder):
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    out = {}
    for name in files:
        part = bits_of_file(os.path.join(folder, name))
        assert not set(part) & set(out)
        out.update(part)
    index = os.path.join(folder, "model.safetensors.index.json")
    if len(files) > 1:
        stored = json.loads(read(index))
        assert set(stored["weight_map"]) == set(out)
        assert stored["metadata"]["total_size"] == sum(len(data) for _, data, _ in out.values())
        for tensor, name in stored["weight_map"].items():
            assert tensor in bits_of_file(os.path.join(folder, name))
    else:
        assert files == ["model.safetensors"] and not os.path.exists(index)
    return out


class Bed:
    pool_bytes = "64MiB"
    vocab = 512

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="hf-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.world = None
        self.make_tokens()
        self.store = self.path("store")

    def path(self, *names):
        return os.path.join(self.root, *names)

    def text(self):
        return lib_train.prose()

    def make_tokens(self):
        lib_train.make_tokens(self.root, self.text(), self.vocab)

    def start(self, store):
        self.world = World(store)
        self.world.launch("--memory.pool_bytes", self.pool_bytes, "--memory.segment_bytes", "4MiB")
        return self.world.server

    def stop(self):
        if self.world is not None:
            self.world.stop()
            self.world.close()
            self.world = None

    def train(self, store, name, steps, *options, want=0):
        """The lines of the loss file, or the output of a failure."""
        server, losses = self.start(store), self.path("loss")
        if os.path.exists(losses):
            os.remove(losses)
        said = run(*lib_train.command(self.root, server, name, "--training.steps", steps,
                                      "--checkpoint.interval", 100, *options), want=want)
        self.stop()
        return read(losses).decode().split("\n") if want == 0 else said

    def fresh(self, name):
        path = self.path(name)
        shutil.rmtree(path, ignore_errors=True)
        return path


class TextBed(Bed):
    """Of the text on which tokenizers are compared, with a model that was never trained."""
    vocab = 2048

    def text(self):
        return lib_text.real_text().encode()

    def export_seed(self):
        self.train(self.store, "seed", 1, "--checkpoint.create_seed_checkpoint")
        return export(self, self.store, "seed", "out", "--tokenizer", self.path("tok"))

    def tokens(self, text):
        write(self.path("encoded"), text.encode())
        return [int(word) for word in run(os.path.join(BUILD, "tokenizer"), "encode", "--tokenizer",
                                          self.path("tok"), self.path("encoded")).split()]


def export(bed, store, checkpoint, name, *options):
    folder = bed.fresh(name)
    cli("export", checkpoint, "--store", store, "--output", folder, "--format", "hf", *options)
    assert not os.path.exists(folder + ".part")
    return folder


def weights_of(bed, store, checkpoint):
    path = bed.path("whole")
    cli("export", checkpoint, "--store", store, "--output", path, "--force", "--weights-only",
        "--format", "safetensors")
    return bits_of_file(path)


HOT_STEPS = 60


def train_hot(bed, *options):
    """The run "run", or more of it. A model after a few gentle steps hardly attends to anything:
    its logits would not show rows in another order.
    """
    return bed.train(bed.store, "run", HOT_STEPS, "--optimizer.lr", "3e-2", *options)


def samples(bed, count, seed=0):
    """Inputs and targets that the trainer begins with, [count, SEQ]."""
    return reference.Data(bed.path("tokens"), SEQ, seed).read(0, count)


def main(prepare, make_bed=Bed):
    """Runs the tests in turn on one bed; `prepare` makes their shared files."""
    bed, good = make_bed(), False
    try:
        prepare(bed)
        good = lib_tap.run(TESTS, bed)
    finally:
        if bed.world is not None:
            bed.world.close()
        shutil.rmtree(bed.root, ignore_errors=True)
    sys.exit(not good)
