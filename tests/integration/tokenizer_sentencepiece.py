#!/usr/bin/env python3
"""tokenizer_sentencepiece - our tokens of a SentencePiece model are those of SentencePiece itself.

Goal: with a tokenizer.model as Llama 2's, with one of type UNIGRAM, and with every setting of them
that we support, the program tokenizer makes the library's tokens of real text, of random Unicode,
of texts full of spaces and of pieces that are no text, and of thousands of short strings, and the
text back of them. Other settings are refused with their field and value; a folder's tokenizer.json
goes before it. Method: the library trains small models on real text. SEED=n gives other random
text. Skipped when the Python package sentencepiece cannot be imported.
"""
import json
import os
import random
import shutil
import subprocess
import sys

from lib_tap import need
import lib_tap
import lib_text

need("sentencepiece", "google.protobuf", "numpy")
import lib_reference  # noqa: E402
import sentencepiece  # noqa: E402
from sentencepiece import sentencepiece_model_pb2  # noqa: E402

LLAMA2 = {"model_type": "bpe", "vocab_size": 1500, "byte_fallback": True, "split_digits": True,
          "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
          "allow_whitespace_only_pieces": True}
USER = {"user_defined_symbols": ["<tool>", "norm_al", "norm_al_er", "of the", "\n\n"],
        "control_symbols": ["<|eot_id|>"]}
UNIGRAM = {"model_type": "unigram"}
CHANGED = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}
FORMS = {
    "llama2": {},
    "without a prefix": {"add_dummy_prefix": False},
    "across words": {"split_by_whitespace": False},
    "with symbols of the user": USER,
    "that others changed": {},
    "with rules and unknown text": {**CHANGED, **USER, "byte_fallback": False},
    "unigram": UNIGRAM,
    "unigram without a prefix": {**UNIGRAM, "add_dummy_prefix": False},
    "unigram across words": {**UNIGRAM, "split_by_whitespace": False},
    "unigram with symbols of the user": {**UNIGRAM, **USER},
    "unigram with rules": {**UNIGRAM, **CHANGED, **USER, "byte_fallback": False},
    "unigram with rules and bytes": {**UNIGRAM, **CHANGED,
                                     "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram that others changed": UNIGRAM,
    "with other ends": {"bos_piece": "<|begin|>", "eos_id": -1, "unk_id": 2, "bos_id": 0},
}


def train(bed, name, settings):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lib_text.real_text()[:150000].split("\n")),
        model_prefix=bed.path(name), num_threads=1, minloglevel=2, **{**LLAMA2, **settings})
    os.rename(bed.path(name + ".model"), bed.path(name))
    return sentencepiece.SentencePieceProcessor(model_file=bed.path(name))


def change(bed, name):
    """Many pieces of one score, of which the leftmost pair goes first; and a piece that begins like
    a byte's name, which is text and joins no byte. Where scores are summed also pieces that are not
    to be used, and spaces as they are."""
    model = sentencepiece_model_pb2.ModelProto()
    with open(bed.path(name), "rb") as file:
        model.ParseFromString(file.read())
    is_unigram = model.trainer_spec.model_type == 1
    model.normalizer_spec.escape_whitespaces = not is_unigram
    for i, piece in enumerate(model.pieces):
        piece.score = piece.score // (1 if is_unigram else 200)
        if is_unigram and piece.type == piece.NORMAL:
            piece.type = piece.UNUSED if i % 7 == 0 else piece.NORMAL
            piece.piece = piece.piece.replace(lib_text.META, " ")
    model.pieces.add(piece="<0x0A>x")
    with open(bed.path(name), "wb") as file:
        file.write(model.SerializeToString())
    return sentencepiece.SentencePieceProcessor(model_file=bed.path(name))


def same_tokens(bed, form):
    theirs = train(bed, form, FORMS[form])
    if form.endswith("that others changed"):
        theirs = change(bed, form)
    lossless = "rules" not in form and not form.startswith("unigram that")
    for text in bed.texts:
        if "unigram" in form:
            text = text[:16000]  # 64 KiB, beyond which sums begin anew
        ours, want = bed.tokens(form, text), theirs.encode(text)
        assert ours == want, (form, text[:40],
                              lib_text.first_difference(ours, want, "sentencepiece"))
        back = bed.run("decode", form, " ".join(map(str, ours)).encode())
        if lossless:
            assert back.stdout == theirs.decode(ours).encode(), (form, text[:40], back.stderr)


def short_strings():
    draw = random.Random(lib_text.SEED)
    longer = [lib_text.real_text(), lib_text.random_text(20000), lib_text.adversarial()]
    for _ in range(1000):
        for text in longer:
            at = draw.randrange(len(text) - 100)
            yield text[at:at + draw.randrange(1, 100)]
        yield "".join(draw.choice(lib_text.COMBINED) for _ in range(draw.randrange(1, 50)))


def ends_of(bed):
    """The begin and end of a document of the tokens."""
    with open(bed.path("tokens"), "rb") as file:
        header = file.read(4096)
    return [int.from_bytes(header[at:at + 4], "little", signed=True) for at in (144, 148)]


def tokens_of_documents(bed, form, strings):
    """The tokens that `tokenizer tokens` writes for lines of JSON, per line, without the document
    marks."""
    with open(bed.path("lines.jsonl"), "w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in strings)
    done = subprocess.run([lib_text.TOKENIZER, "tokens", "--tokenizer", bed.path(form), "--out",
                           bed.path("tokens"), bed.path("lines.jsonl")], capture_output=True)
    assert done.returncode == 0, done.stderr
    begin, end = ends_of(bed)
    documents = []
    for token in lib_reference.Data(bed.path("tokens"), 1, 0).tokens.tolist():
        if token == begin:
            documents.append([])
        elif token != end:
            documents[-1].append(token)
    return documents


def same_tokens_of_strings(bed, form):
    theirs, strings = sentencepiece.SentencePieceProcessor(model_file=bed.path(form)), \
        list(short_strings())
    ours = tokens_of_documents(bed, form, strings)
    assert len(ours) == len(strings)
    for text, tokens in zip(strings, ours):
        want = theirs.encode(text)
        assert tokens == want, (form, text,
                                lib_text.first_difference(tokens, want, "sentencepiece"))


def what_begins_and_ends_a_document_is_what_the_model_says(bed):
    with open(bed.path("text"), "w") as out:
        out.write("a text")
    for form in ("llama2", "with other ends"):
        theirs = sentencepiece.SentencePieceProcessor(model_file=bed.path(form))
        done = bed.run("tokens", form, b"a text", "--out", bed.path("tokens"))
        assert done.returncode == 0, done.stderr
        ends = ends_of(bed)
        assert ends == [theirs.bos_id(), theirs.eos_id()], (form, ends)


def control_pieces_are_tokens_when_asked_for(bed):
    form = "with symbols of the user"
    theirs = sentencepiece.SentencePieceProcessor(model_file=bed.path(form))
    want = [theirs.bos_id(), *theirs.encode("a"), theirs.piece_to_id("<|eot_id|>"), theirs.eos_id()]
    assert bed.tokens(form, "<s>a<|eot_id|></s>", "--special") == want


def bytes_that_are_not_utf8_are_tokens_of_bytes(bed):
    text = b"a\xff\xe2\x96b\xed\xa0\x80"
    tokens = bed.run("encode", "llama2", text).stdout
    assert bed.run("decode", "llama2", tokens).stdout == text


def what_is_not_supported_is_refused_by_field_and_value(bed):
    for settings, name in [
            ({"model_type": "char", "vocab_size": 400, "hard_vocab_limit": False}, "= CHAR"),
            ({"treat_whitespace_as_suffix": True}, "trainer_spec.treat_whitespace_as_suffix = 1")]:
        train(bed, "refused", settings)
        done = bed.run("encode", "refused", b"x")
        assert done.returncode == 78 and name.encode() in done.stderr, (name, done)


def a_file_that_was_cut_is_refused(bed):
    with open(bed.path("llama2"), "rb") as file:
        whole = file.read()
    for length in range(1, len(whole), 1499):
        with open(bed.path("cut"), "wb") as out:
            out.write(whole[:length])
        assert bed.run("encode", "cut", b"x").returncode == 78, length


def of_a_folder_the_tokenizer_json_is_taken(bed):
    os.mkdir(bed.path("folder"))
    shutil.copy(bed.path("llama2"), bed.path("folder/tokenizer.model"))
    assert bed.tokens("folder", "a text") == bed.tokens("llama2", "a text")
    with open(bed.path("folder/tokenizer.json"), "w") as out:
        out.write("{}")
    assert b"tokenizer.json" in bed.run("encode", "folder", b"x").stderr


if __name__ == "__main__":
    one_bed = lib_text.TokenizerBed()
    try:
        passed = lib_tap.run([
            *lib_text.tests_of(FORMS, same_tokens, "the_tokens_are_sentencepieces"),
            *lib_text.tests_of([form for form in FORMS if "un" in form], same_tokens_of_strings,
                               "so_are_those_of_short_strings"),
            what_begins_and_ends_a_document_is_what_the_model_says,
            control_pieces_are_tokens_when_asked_for, bytes_that_are_not_utf8_are_tokens_of_bytes,
            what_is_not_supported_is_refused_by_field_and_value, a_file_that_was_cut_is_refused,
            of_a_folder_the_tokenizer_json_is_taken], one_bed)
    finally:
        shutil.rmtree(one_bed.root, ignore_errors=True)
    sys.exit(not passed)
