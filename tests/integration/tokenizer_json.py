#!/usr/bin/env python3
"""tokenizer_json - our tokens of a tokenizer.json are those of Hugging Face's tokenizers library.

Goal: for every form of tokenizer.json that is read (byte-level and byte-fallback BPE, Unigram with
the normalizers of published files) the program tokenizer makes the tokens of the stock library, of
real text, of random Unicode, and of texts full of spaces and of added tokens; unsupported features
of a file are refused by name. Method: the stock library trains small tokenizers of all forms on
real text and writes the files. Where special tokens are text the library gets a Unigram vocabulary
without them, as ours takes none of its pieces there. SEED=n gives other random text. Skipped when
the Python package tokenizers cannot be imported; the form whose rules come from SentencePiece, when
that cannot.
"""
import functools
import io
import json
import random
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


class Unigram:
    """A form whose tokens have scores: its model's settings, normalizer and pre_tokenizer."""

    def __init__(self, pre_tokenizer, normalizer=(), has_bytes=False):
        self.pre_tokenizer, self.normalizer, self.has_bytes = pre_tokenizer, normalizer, has_bytes


def rules():
    """SentencePiece's nmt_nfkc, as a converted file has it."""
    from sentencepiece import SentencePieceTrainer, sentencepiece_model_pb2
    out = io.BytesIO()
    SentencePieceTrainer.train(sentence_iterator=iter(["a b c", "ab bc"]), model_writer=out,
                               vocab_size=8, minloglevel=2, hard_vocab_limit=False)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(out.getvalue())
    return normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)


FEW = normalizers.Replace(Regex(" {2,}"), META)
UNIGRAMS = {
    "unigram": Unigram(meta("always", True)),
    "unigram of whole texts": Unigram(None, (normalizers.Prepend(META), REPLACE), True),
    "unigram with steps": Unigram(meta("first", True), (
        normalizers.Replace("``", '"'), normalizers.Strip(left=False, right=True),
        normalizers.Prepend("a "), normalizers.Replace(Regex(" {2,}"), " ")), True),
}
try:
    NFKC = rules()
    UNIGRAMS.update({
        "unigram as it is converted": Unigram(meta("always", True), (
            NFKC, normalizers.Strip(left=False, right=True), FEW)),
        "unigram of words": Unigram(pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), meta("always", True)]), (NFKC,), True)})
except ImportError:
    pass


@functools.cache
def trained_unigram(has_bytes):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = meta("always", True)
    byte_names = [f"<0x{byte:02X}>" for byte in range(256)] if has_bytes else []
    tokenizer.train_from_iterator(
        lib_text.real_text()[:TRAINED_ON].split("\n"),
        trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=["<unk>", *SPECIAL, *byte_names],
                                unk_token="<unk>", show_progress=False))
    return tokenizer.to_str()


def train_unigram(form):
    """(the tokenizer, the same without special tokens among those of texts)"""
    settings = UNIGRAMS[form]
    saved = json.loads(trained_unigram(settings.has_bytes))
    saved["added_tokens"] = [token for token in saved["added_tokens"]
                             if not token["content"].startswith("<0x")]
    saved["model"]["byte_fallback"] = settings.has_bytes
    plain = json.loads(json.dumps(saved))
    plain["added_tokens"] = []
    for number in range(len(SPECIAL) + 1):
        plain["model"]["vocab"][number][0] = chr(0xf0000 + number)
    made = []
    for one in saved, plain:
        tokenizer = Tokenizer.from_str(json.dumps(one))
        if settings.normalizer:
            tokenizer.normalizer = normalizers.Sequence(list(settings.normalizer))
        tokenizer.pre_tokenizer = settings.pre_tokenizer
        tokenizer.decoder = decoders.Sequence([
            decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0)])
        tokenizer.add_tokens([AddedToken("<tool>", normalized=False), "norm_al", "norm_al_er",
                              AddedToken("<left>", lstrip=True, normalized=False),
                              AddedToken("<right>", rstrip=True, normalized=False)])
        made.append(Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **(
            {} if settings.pre_tokenizer else {"pre_tokenizer": None})})))
    return made


def same_tokens_of_scores(bed, form):
    theirs, plain = train_unigram(form)
    theirs.save(bed.path(form))
    for text in bed.texts + short_strings():
        want = theirs.encode(text, add_special_tokens=False).ids
        ours = bed.tokens(form, text, "--special")
        assert ours == want, (form, text[:40], lib_text.first_difference(ours, want, "tokenizers"))
        want = plain.encode(text, add_special_tokens=False).ids
        ours = bed.tokens(form, text)
        assert ours == want, (form, text[:40], lib_text.first_difference(ours, want, "tokenizers"))


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


def short_strings():
    """Of characters that join, expand and vanish."""
    draw = random.Random(lib_text.SEED)
    letters = ("aeiouAEIO  \u00b4\u00a8\u0301\u0308\u0327\u212b\ufb01\uff21\uff76\uff9e\u3099\u1100"
               "\u1161\u11a8\u00a0\u3000\u200b\ufeff\ufdfa\u00bd\u00b2\t\r\n\u2581\u00ad\x7f\x01~`")
    return ["".join(draw.choice(letters) for _ in range(200)) for _ in range(10)]


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
             (put("model", "type", value="WordLevel"), "WordLevel"),
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
            *lib_text.tests_of(UNIGRAMS, same_tokens_of_scores,
                               "tokens_are_those_of_the_stock_library"),
            what_is_not_supported_is_refused_by_name], one_bed)
    finally:
        shutil.rmtree(one_bed.root, ignore_errors=True)
    sys.exit(not passed)
