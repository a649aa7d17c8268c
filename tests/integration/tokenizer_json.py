#!/usr/bin/env python3
"""tokenizer_json - our tokens of a tokenizer.json are those of Hugging Face's tokenizers library.

Goal: for every form of Llama's tokenizer.json the program tokenizer makes the tokens of the stock
library, of real text, of random Unicode, and of texts full of spaces and of added tokens; what the
file asks for and we do not support is refused with its name. Method: the stock library trains small
tokenizers of all forms on real text and writes the files. SEED=n gives other random text. Skipped
when the Python package tokenizers cannot be imported.
"""
import json
import shutil
import sys

import lib_tap
from lib_tap import need
import lib_text
from lib_text import META, SPECIAL

need("tokenizers")
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models,  # noqa: E402
                        normalizers, pre_tokenizers, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TRAINED_ON = 150000
VOCAB = 1500


def byte_level(expression, ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(expression or ""), "isolated")
    tokenizer.pre_tokenizer = (pre_tokenizers.Sequence([split, plain]) if expression else
                               pre_tokenizers.ByteLevel(add_prefix_space=not ignore_merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre_tokenizers.ByteLevel.alphabet()


def byte_fallback(normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if normalizer:
        tokenizer.normalizer = normalizers.Sequence(normalizer)
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    return tokenizer, []


def meta(scheme, split):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


REPLACE = normalizers.Replace(" ", META)
FORMS = {
    "llama3": lambda: byte_level(LLAMA3, True),
    "qwen2": lambda: byte_level(QWEN2, False),
    "gpt2 with a prefix": lambda: byte_level(None, False),
    "gpt2": lambda: byte_level(None, True),
    "llama2": lambda: byte_fallback([normalizers.Prepend(META), REPLACE], None),
    "llama2 without prefix": lambda: byte_fallback([REPLACE], None),
    "metaspace first": lambda: byte_fallback(None, meta("first", False)),
    "metaspace always": lambda: byte_fallback(None, meta("always", True)),
    "metaspace never": lambda: byte_fallback(None, meta("never", False)),
}


def train(form):
    """Of whole lines, so that the forms without a split learn tokens across words, too."""
    tokenizer, alphabet = FORMS[form]()
    text = lib_text.real_text()[:TRAINED_ON]
    is_words = form.startswith(("llama2", "metaspace"))
    byte_names = [f"<0x{byte:02X}>" for byte in range(256)] if is_words else []
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<unk>"] + byte_names + SPECIAL,
                                  initial_alphabet=alphabet, show_progress=False,
                                  limit_alphabet=400)
    normalizer, pre = tokenizer.normalizer, tokenizer.pre_tokenizer
    if is_words and form != "metaspace never":  # published ones never join across words
        tokenizer.normalizer, tokenizer.pre_tokenizer = None, meta("always", True)
    tokenizer.train_from_iterator(text.split("\n"), trainer)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    saved = json.loads(tokenizer.to_str())
    if pre is None:
        saved["pre_tokenizer"] = None
    saved["added_tokens"] = [token for token in saved["added_tokens"]
                             if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), "norm_al", "norm_al_er", "of the",
                          AddedToken("<left>", lstrip=True, normalized=False),
                          AddedToken("<right>", rstrip=True, normalized=False)])
    return tokenizer


def same_tokens(bed, form):
    theirs = train(form)
    theirs.save(bed.path(form))
    for text in bed.texts:
        for is_special in (False, True):
            theirs.encode_special_tokens = not is_special
            want = theirs.encode(text, add_special_tokens=False).ids
            ours = bed.tokens(form, text, *(["--special"] if is_special else []))
            assert ours == want, (form, text[:40],
                                  lib_text.first_difference(ours, want, "tokenizers"))
        if not is_special or "\x00" in text or not text:
            continue
        back = bed.run("decode", form, " ".join(map(str, ours)).encode()).stdout
        want = theirs.decode(ours).encode()
        at = next((at for at, (a, b) in enumerate(zip(back, want)) if a != b), len(want))
        assert back == want or META in text, (form, back[at - 20:][:40], want[at - 20:][:40])


def refused(bed, change, name):
    saved = json.loads(train("llama3").to_str())
    change(saved)
    with open(bed.path("bad"), "w") as file:
        json.dump(saved, file)
    done = bed.run("encode", "bad", b"x")
    assert done.returncode != 0 and name.encode() in done.stderr, (name, done.stderr)


def what_is_not_supported_is_refused_by_name(bed):
    def put(*path, value):
        def change(saved):
            part = saved
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = value
        return change
    split = ("pre_tokenizer", "pretokenizers", 0)
    cases = [(put("normalizer", value={"type": "NFKC"}), "NFKC"),
             (put("pre_tokenizer", value={"type": "Whitespace"}), "Whitespace"),
             (put("decoder", value={"type": "WordPiece"}), "WordPiece"),
             (put(*split, "pattern", value={"Regex": "[a-z]+"}), "[a-z]+"),
             (put(*split, "behavior", value="Removed"), "Removed"),
             (put("model", "type", value="Unigram"), "Unigram"),
             (put("model", "dropout", value=0.1), "dropout"),
             (put("model", "end_of_word_suffix", value="</w>"), "end_of_word_suffix"),
             (put("truncation", value={"max_length": 10}), "truncation"),
             (put("added_tokens", 0, "single_word", value=True), "single_word"),
             (put("model", "merges", 0, value="zzzz qqqq"), "zzzz"),
             (put("model", "vocab", "x", value=5), "model.vocab")]
    for change, name in cases:
        refused(bed, change, name)


if __name__ == "__main__":
    one_bed = lib_text.TokenizerBed()
    try:
        passed = lib_tap.run([
            *lib_text.tests_of(FORMS, same_tokens, "tokens_are_those_of_the_stock_library"),
            what_is_not_supported_is_refused_by_name], one_bed)
    finally:
        shutil.rmtree(one_bed.root, ignore_errors=True)
    sys.exit(not passed)
