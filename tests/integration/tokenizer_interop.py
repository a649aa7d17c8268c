#!/usr/bin/env python3
"""tokenizer_interop - our tokenizer file and our tokens are those of the tiktoken package.

Goal: a tokenizer that we train opens in stock tiktoken, and both give the same tokens for any text.
Method: train on real text (this repository's files and, where installed, Perl's manuals), build a
tiktoken Encoding from the file with Llama 3's expression, and compare the tokens of 1 MB of real
text and of seeded random Unicode. Random characters are those that Unicode 3.2 had already, so that
the tables of PCRE2 and of tiktoken, which may be of different years, agree on them.

SEED=n gives other random text. Skipped when the Python package tiktoken cannot be imported.
"""
import os
import subprocess

from lib_hf import BUILD, TextBed, main, need, test, write
import lib_text

need("tiktoken")
os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no copies of what it reads
import tiktoken  # noqa: E402
from tiktoken.load import load_tiktoken_bpe  # noqa: E402

BEGIN, END = TextBed.vocab - 2, TextBed.vocab - 1
# meta-llama/llama3, llama/tokenizer.py
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def open_in_tiktoken(bed):
    bed.ranks = load_tiktoken_bpe(bed.path("tok"))
    bed.theirs = tiktoken.Encoding(
        "holdfast", pat_str=PATTERN, mergeable_ranks=bed.ranks,
        special_tokens={"<|begin_of_text|>": BEGIN, "<|end_of_text|>": END})


def same_tokens(bed, text):
    ours, theirs = bed.tokens(text), bed.theirs.encode_ordinary(text)
    assert ours == theirs, lib_text.first_difference(ours, theirs, "tiktoken")
    return ours


@test
def tiktoken_reads_the_file(bed):
    assert sorted(bed.ranks.values()) == list(range(BEGIN))


@test
def a_megabyte_of_real_text_gives_the_same_tokens(bed):
    assert 0 < len(same_tokens(bed, bed.text().decode())) < lib_text.TEXT_BYTES / 2


@test
def random_unicode_gives_the_same_tokens_and_they_the_text_back(bed):
    text = lib_text.random_text(200000)
    write(bed.path("numbers"), " ".join(map(str, same_tokens(bed, text))).encode())
    back = subprocess.run([os.path.join(BUILD, "tokenizer"), "decode", "--tokenizer",
                           bed.path("tok"), bed.path("numbers")], capture_output=True)
    assert back.stdout == text.encode(), back.stderr


if __name__ == "__main__":
    main(open_in_tiktoken, TextBed)
