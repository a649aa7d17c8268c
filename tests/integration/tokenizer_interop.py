#!/usr/bin/env python3
"""tokenizer_interop - our tokenizer file and our tokens are those of the tiktoken package.

Goal: a tokenizer that we train opens in stock tiktoken, and both give the same tokens for any text.
Method: train on real text (this repository's files and, where installed, Perl's manuals), build a
tiktoken Encoding from the file with Llama 3's expression, and compare the tokens of 1 MB of real
text and of seeded random Unicode. Random characters are those that Unicode 3.2 had already, so that
the tables of PCRE2 and of tiktoken, which may be of different years, agree on them.

SEED=n gives other random text. Skipped when tiktoken cannot be imported.
"""
import os
import subprocess
import sys

PYTHON = os.environ.get("PYTHON")
if PYTHON and os.path.abspath(PYTHON) != os.path.abspath(sys.executable):
    os.environ["PYTHON"] = ""  # once
    os.execv(PYTHON, [PYTHON] + sys.argv)

try:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
except ImportError as error:
    print(f"tiktoken is missing ({error}): make deps installs it where an index is reachable")
    sys.exit(77)

from lib_text import TEXT_BYTES, first_difference, random_text, real_text

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("BUILD", os.path.join(ROOT, "build"))
TMP = os.environ.get("TMPDIR", "/tmp")
VOCAB = 2048
# meta-llama/llama3, llama/tokenizer.py
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
number = 0


def check(name, passed, remark=""):
    global number
    number += 1
    print(f"{'ok' if passed else 'not ok'} {number} - {name}")
    if remark and not passed:
        print(f"# {remark}")
    return passed


def tokenizer(*arguments):
    result = subprocess.run([os.path.join(BUILD, "tokenizer"), *arguments], capture_output=True)
    if result.returncode != 0:
        print(f"# tokenizer {' '.join(arguments)}: {result.stderr.decode().strip()}")
    return result


def encode(model, text):
    path = os.path.join(TMP, "interop.txt")
    with open(path, "wb") as file:
        file.write(text.encode())
    output = tokenizer("encode", "--tokenizer", model, path).stdout
    return [int(word) for word in output.split()]


def main():
    print("1..6")
    text, source, model = real_text(), os.path.join(TMP, "train.txt"), os.path.join(TMP, "model")
    with open(source, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    trained = tokenizer("train", "--vocab", str(VOCAB), "--out", model, source)
    if not check("a tokenizer is trained", trained.returncode == 0):
        return
    ranks = load_tiktoken_bpe(model)
    check("tiktoken reads the file", sorted(ranks.values()) == list(range(VOCAB - 2)),
          f"{len(ranks)} tokens")
    theirs = tiktoken.Encoding("holdfast", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={
        "<|begin_of_text|>": VOCAB - 2, "<|end_of_text|>": VOCAB - 1})
    ours, expected = encode(model, text), theirs.encode_ordinary(text)
    check("1 MB of real text gives the same tokens", ours == expected,
          first_difference(ours, expected, "tiktoken"))
    check("the tokens are fewer than the bytes", 0 < len(ours) < TEXT_BYTES / 2)
    strange = random_text(200000)
    ours, expected = encode(model, strange), theirs.encode_ordinary(strange)
    check("random Unicode gives the same tokens", ours == expected,
          first_difference(ours, expected, "tiktoken"))
    numbers = os.path.join(TMP, "interop.ids")
    with open(numbers, "w") as file:
        file.write(" ".join(map(str, expected)))
    back = tokenizer("decode", "--tokenizer", model, numbers).stdout
    check("tiktoken's tokens decode to the text", back == strange.encode())


main()
