#!/usr/bin/env python3
"""tokenizer - the tokenizer that goes out with a model makes our tokens in transformers.

Goal: AutoTokenizer, given nothing but the folder of an export, makes our tokens of 1 MB of real
text and of random Unicode, puts the special token where our trainer has it, and gives the text
back; what save_pretrained writes does so, too. Method: a tokenizer is trained on that text and
exported with a model that was never trained.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
from lib_hf import TextBed, main, need, test  # noqa: E402
import lib_text  # noqa: E402

need("transformers", "tokenizers")
import transformers  # noqa: E402

BEGIN, END = TextBed.vocab - 2, TextBed.vocab - 1


def load(bed, folder="out"):
    return transformers.AutoTokenizer.from_pretrained(bed.path(folder))


def compare(theirs, bed, text):
    text = text.replace("<|", "<!")  # what is special there is only text to us
    ours, got = bed.tokens(text), theirs(text, add_special_tokens=False).input_ids
    assert ours == got, lib_text.first_difference(ours, got, "transformers")
    assert theirs.decode(got) == text


@test
def a_megabyte_of_real_text_gives_the_same_tokens(bed):
    compare(load(bed), bed, bed.text().decode())


@test
def random_unicode_gives_the_same_tokens(bed):
    compare(load(bed), bed, lib_text.random_text(200000))


@test
def a_text_begins_with_the_special_token_and_both_are_known(bed):
    theirs = load(bed)
    assert len(theirs) == TextBed.vocab
    assert (theirs.bos_token_id, theirs.eos_token_id) == (BEGIN, END)
    assert theirs("some text").input_ids == [BEGIN] + bed.tokens("some text")
    assert theirs.decode([BEGIN, *bed.tokens("it is , so"), END],
                         skip_special_tokens=True) == "it is , so"


@test
def what_transformers_saves_makes_the_same_tokens(bed):
    load(bed).save_pretrained(bed.path("saved"))
    compare(load(bed, "saved"), bed, bed.text().decode()[:100000])


if __name__ == "__main__":
    main(TextBed.export_seed, TextBed)
