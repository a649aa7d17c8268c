#!/usr/bin/env python3
"""hf_tokenizer - our tokenizer, and the one exported with a model, make our tokens in stock
programs.

Goal: a tokenizer that we train opens in stock tiktoken, and tokenizer.json of `export --format hf
--tokenizer` in Hugging Face's tokenizers library: both give the tokens of our tokenizer for any
text, the latter the text back. The special tokens are known there. Method: a tokenizer is trained
on 1 MB of real text, which is encoded again; then random Unicode, of characters that Unicode 3.2
had already, so that tables of different years agree. In tiktoken with Llama 3's expression. SEED=n
gives other random text. Skipped when the Python packages tokenizers and tiktoken cannot be
imported.
"""
import json
import os

from lib_hf import TextBed, main, need, read, test
import lib_text

need("tokenizers", "tiktoken")
os.environ["TIKTOKEN_CACHE_DIR"] = ""  # reads without copies
import tiktoken  # noqa: E402
from tiktoken.load import load_tiktoken_bpe  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

BEGIN, END = TextBed.vocab - 2, TextBed.vocab - 1


def load(bed):
    return Tokenizer.from_file(bed.path("out", "tokenizer.json"))


def same_tokens(bed, text):
    theirs = load(bed)
    theirs.encode_special_tokens = True  # also of those the text is only text
    ours, got = bed.tokens(text), theirs.encode(text, add_special_tokens=False).ids
    assert ours == got, lib_text.first_difference(ours, got, "tokenizers")
    assert theirs.decode(got) == text
    got = bed.tiktoken.encode_ordinary(text)
    assert ours == got, lib_text.first_difference(ours, got, "tiktoken")
    return ours


def prepare(bed):
    bed.export_seed()
    ranks = load_tiktoken_bpe(bed.path("tok"))
    assert sorted(ranks.values()) == list(range(BEGIN))
    bed.tiktoken = tiktoken.Encoding("holdfast", pat_str=lib_text.LLAMA3, mergeable_ranks=ranks,
                                     special_tokens={})


@test
def a_megabyte_of_real_text_gives_the_same_tokens(bed):
    text = bed.text().decode()
    assert 0 < len(same_tokens(bed, text)) < len(text) / 2


@test
def random_unicode_gives_the_same_tokens(bed):
    same_tokens(bed, lib_text.random_text(200000))
    same_tokens(bed, "".join(map(chr, range(256))) + 1000 * "a" + 77 * " " + "<|end_of_text|>")


@test
def a_text_begins_with_the_special_token_and_both_are_known(bed):
    theirs = load(bed)
    assert theirs.get_vocab_size() == TextBed.vocab
    assert theirs.encode("some text").ids == [BEGIN] + bed.tokens("some text")
    assert theirs.encode("a<|end_of_text|>").ids == [BEGIN, *bed.tokens("a"), END]
    assert theirs.decode([BEGIN, *bed.tokens("some text"), END]) == "some text"


@test
def the_configuration_names_the_special_tokens(bed):
    config = json.loads(read(bed.path("out", "tokenizer_config.json")))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    known = {number: token["content"] for number, token in config["added_tokens_decoder"].items()}
    assert known == {str(BEGIN): config["bos_token"], str(END): config["eos_token"]}


if __name__ == "__main__":
    main(prepare, TextBed)
