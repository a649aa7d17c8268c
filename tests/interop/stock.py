#!/usr/bin/env python3
"""stock - torchtitan's published debug_model.toml goes to its tenth step with our trainer.

Goal: a file that a user of torchtitan has starts as it is, in the first form that was published and
in the last, which name the same things in other words: the trainer takes every key, trains the ten
steps, the loss falls, and both forms give the same losses to the last digit. Method: the keys and
values of the two files (tests/golden/torchtitan), with the paths of a tokenizer and of c4_test's
place on the command line; the samples are short and a step is one micro-batch, as this model at its
2048 tokens takes minutes a step on two cores. STOCK_WHOLE=1 leaves both as the files say.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
sys.dont_write_bytecode = True
from lib_store import BUILD  # noqa: E402
from lib_tap import run  # noqa: E402

FILES = os.path.join(ROOT, "tests/golden/torchtitan")
SHORT = [] if os.environ.get("STOCK_WHOLE") else ["--training.seq_len", "64",
                                                  "--canonical.micro_batches", "1"]


class Bed:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="sk-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.losses = {}
        with open(os.path.join(ROOT, "README.md")) as file:
            text = 60 * file.read()
        book, place = os.path.join(self.folder, "book.txt"), os.path.join(self.folder, "c4_test")
        os.makedirs(place)
        with open(book, "w") as file:
            file.write(text)
        with open(os.path.join(place, "data.json"), "w") as file:  # as c4's lines are
            for at in range(0, len(text), 400):
                file.write(json.dumps({"text": text[at:at + 400], "timestamp": "", "url": ""}))
                file.write("\n")
        subprocess.run([os.path.join(BUILD, "tokenizer"), "train", "--vocab", "1000", "--out",
                        os.path.join(self.folder, "tokenizer.model"), book], check=True,
                       capture_output=True, timeout=60)

    def train(self, form):
        """The losses of a run by the file of that form, in hexadecimal."""
        losses = os.path.join(self.folder, "losses-" + form)
        done = subprocess.run(
            [os.path.join(BUILD, "trainer"), "--config",
             os.path.join(FILES, f"debug_model_{form}.toml"), "--model.hf_assets_path", self.folder,
             "--training.dataset_path", os.path.join(self.folder, "c4_test"),
             "--metrics.loss_file", losses, *SHORT],
            cwd=self.folder, capture_output=True, text=True, timeout=None if not SHORT else 570)
        assert done.returncode == 0, (done.returncode, done.stderr)
        assert "done after step 10" in done.stderr and "llama3 debugmodel" in done.stderr
        assert "warmup_steps" not in done.stderr, done.stderr  # nothing had to be cut
        with open(losses) as file:
            self.losses[form] = [line.split() for line in file]
        assert [int(line[0]) for line in self.losses[form]] == list(range(1, 11))
        first, last = (float.fromhex(self.losses[form][at][1]) for at in (0, -1))
        print(f"# {form}: loss {first:.4f} at step 1, {last:.4f} at step 10", flush=True)
        assert last < first - 0.3

    def close(self):
        shutil.rmtree(self.folder)


def the_first_form_goes_to_its_tenth_step(bed):
    bed.train("first")


def the_last_form_goes_there_with_the_same_losses(bed):
    bed.train("last")
    assert bed.losses["last"] == bed.losses["first"]


if __name__ == "__main__":
    bed = Bed()
    passed = run([the_first_form_goes_to_its_tenth_step,
                  the_last_form_goes_there_with_the_same_losses], bed)
    bed.close()
    sys.exit(not passed)
