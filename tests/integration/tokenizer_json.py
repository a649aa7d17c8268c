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

QWEN2 = lib_text.LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TRAINED_ON = 150000
VOCAB = 1500
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = decoders.Sequence([decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse(),
                           decoders.Strip(" ", 1, 0)])
ADDED = [AddedToken("<tool>", normalized=False), "norm_al", "norm_al_er",
         AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False)]


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
    tokenizer.decoder = WORDS
    return tokenizer, []


def meta(scheme, split):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


REPLACE = normalizers.Replace(" ", META)
FORMS = {
    "llama3": lambda: byte_level(lib_text.LLAMA3, True),
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
def trained_unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = meta("always", True)
    tokenizer.train_from_iterator(
        lib_text.real_text()[:TRAINED_ON].split("\n"),
        trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=["<unk>", *SPECIAL],
                                unk_token="<unk>", show_progress=False))
    return tokenizer.to_str()


def train_unigram(form):
    """(the tokenizer, the same without special tokens among those of texts)"""
    settings = UNIGRAMS[form]
    saved, num_special = json.loads(trained_unigram()), 1 + len(SPECIAL)
    if settings.has_bytes:
        saved["model"]["vocab"][num_special:num_special] = [[name, 0.0] for name in BYTES]
    saved["model"]["byte_fallback"] = settings.has_bytes
    plain = json.loads(json.dumps(saved))
    plain["added_tokens"] = []
    for number in range(num_special):
        plain["model"]["vocab"][number][0] = chr(0xf0000 + number)
    made = []
    for one in saved, plain:
        tokenizer = Tokenizer.from_str(json.dumps(one))
        if settings.normalizer:
            tokenizer.normalizer = normalizers.Sequence(list(settings.normalizer))
        tokenizer.pre_tokenizer = settings.pre_tokenizer
        tokenizer.decoder = WORDS
        tokenizer.add_tokens(ADDED)
        made.append(Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **(
            {} if settings.pre_tokenizer else {"pre_tokenizer": None})})))
    return made


def same(bed, form, theirs, text, *options):
    want = theirs.encode(text, add_special_tokens=False).ids
    ours = bed.tokens(form, text, *options)
    assert ours == want, (form, text[:40], lib_text.first_difference(ours, want, "tokenizers"))
    return ours


def has_special(text):
    return any(token in text for token in SPECIAL)


def same_tokens_of_scores(bed, form):
    theirs, plain = train_unigram(form)
    theirs.save(bed.path(form))
    for text in bed.texts + short_strings():
        same(bed, form, plain, text)
        if has_special(text):
            same(bed, form, theirs, text, "--special")


def train(form):
    """Of whole lines, so that the forms without a split learn tokens across words, too."""
    tokenizer, alphabet = FORMS[form]()
    text = lib_text.real_text()[:TRAINED_ON]
    is_words = form.startswith(("llama2", "metaspace"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<unk>", *(BYTES if is_words else []), *SPECIAL],
        initial_alphabet=alphabet, show_progress=False, limit_alphabet=400)
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
    tokenizer.add_tokens([*ADDED, "of the"])
    return tokenizer


def same_tokens(bed, form):
    theirs = train(form)
    theirs.save(bed.path(form))
    for text in bed.texts:
        theirs.encode_special_tokens = True  # of those, too, the text is only text
        ours = same(bed, form, theirs, text)
        if has_special(text):
            theirs.encode_special_tokens = False
            ours = same(bed, form, theirs, text, "--special")
        if "\x00" in text or not text:
            continue
        back = bed.run("decode", form, " ".join(map(str, ours)).encode()).stdout
        want = theirs.decode(ours).encode()
        at = next((at for at, (a, b) in enumerate(zip(back, want)) if a != b), len(want))
        assert back == want or META in text, (form, back[at - 20:][:40], want[at - 20:][:40])


def short_strings():
    draw = random.Random(lib_text.SEED)
    return ["".join(draw.choice(lib_text.COMBINED) for _ in range(200)) for _ in range(10)]


def what_is_not_supported_is_refused_by_name(bed):
    whole = train("llama3").to_str()

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
        saved = json.loads(whole)
        change(saved)
        with open(bed.path("bad"), "w") as file:
            json.dump(saved, file)
        done = bed.run("encode", "bad", b"x")
        assert done.returncode == 78 and name.encode() in done.stderr, (name, done)


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
