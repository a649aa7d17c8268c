"""lib_train - a tiny Llama on some text of our own, trained by the real trainer.

make_tokens() puts text, tokenizer ("tok") and tokens into a folder; command() is the trainer's
command line on them, later options win. Trainer() starts one.
"""

import os
import subprocess
import tempfile

BUILD = os.path.abspath(os.environ.get("BUILD", "build"))
PROSE = "README.md", "trainer/README.md", "LICENSE"  # always there


def prose():
    text = b""
    for name in PROSE:
        with open(name, "rb") as file:
            text += file.read()
    return text


def make_tokens(folder, text, vocab=512):
    path, tok, tokens = (os.path.join(folder, name) for name in ("text", "tok", "tokens"))
    with open(path, "wb") as file:
        file.write(text)
    for arguments in (("train", "--vocab", vocab, "--out", tok, path),
                      ("tokens", "--tokenizer", tok, "--out", tokens, path)):
        subprocess.run([os.path.join(BUILD, "tokenizer"), *map(str, arguments)], check=True,
                       capture_output=True, timeout=100)


def command(folder, server, run, *options):
    return [os.path.join(BUILD, "trainer"), "--job.run", run, "--model.flavor", "tiny",
            "--training.dataset_path", os.path.join(folder, "tokens"), "--training.seq_len", "64",
            "--training.local_batch_size", "1", "--canonical.micro_batches", "2",
            "--training.mixed_precision_param", "float32", "--lr_scheduler.warmup_steps", "2",
            "--checkpoint.enable", "--ckptd.address", server,
            "--metrics.loss_file", os.path.join(folder, "loss"),
            "--kernels.backend", os.environ.get("HOLDFAST_TEST_KERNELS", "best"),
            *map(str, options)]


class Trainer(subprocess.Popen):
    """Keeps what it says in a file: a fast one soon fills a pipe that nobody reads, and stops."""

    def __init__(self, words, **popen):
        self.said = tempfile.TemporaryFile("w+")
        super().__init__(words, stdout=subprocess.DEVNULL, stderr=self.said, text=True, **popen)

    def communicate(self, *arguments, **named):
        super().communicate(*arguments, **named)
        self.said.seek(0)
        return "", self.said.read()
