#!/usr/bin/env python3
"""published - our tokens of published tokenizers are those of the libraries they were made for.

Goal: Llama 3's own tokenizer.model gives the tokens of tiktoken, with its special tokens as text
and as tokens, and so does the tokenizer.json that transformers makes of it. A published
SentencePiece model of Llama 2's form (Mistral 7B's) gives SentencePiece's tokens, and made a
tokenizer.json by transformers' rules those of the tokenizers library. Method: the files of the
Python packages llama-models and mistral-common; the texts are 1 MB of real text, random Unicode and
texts that are known to differ between tokenizers.
"""
import glob
import os
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TIKTOKEN_CACHE_DIR="")
from lib_hf import BUILD, main, need, test, write  # noqa: E402
import lib_text  # noqa: E402

need("tiktoken", "tokenizers", "transformers", "sentencepiece", "llama_models", "mistral_common")
import sentencepiece  # noqa: E402
import tiktoken  # noqa: E402
from tiktoken.load import load_tiktoken_bpe  # noqa: E402
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers  # noqa: E402
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges  # noqa: E402
import llama_models  # noqa: E402
import mistral_common  # noqa: E402

META = "\u2581"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# meta-llama/llama3, llama/tokenizer.py
SPECIAL = (["<|begin_of_text|>", "<|end_of_text|>"]
           + [f"<|reserved_special_token_{i}|>" for i in range(4)]
           + ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>",
              "<|eot_id|>"] + [f"<|reserved_special_token_{i}|>" for i in range(5, 251)])
LLAMA3 = os.path.join(list(llama_models.__path__)[0], "llama3", "tokenizer.model")
LLAMA2_FORM = glob.glob(os.path.join(list(mistral_common.__path__)[0], "data",
                                     "tokenizer.model.v1"))[0]
# Case folds beyond ASCII, white space of every kind, marks, digits, joined emoji, unassigned, cut
# names of special tokens.
ODD = ("'S '\u017f \u017f'LL \u0130 \u212a \u2019s \u200b \u00a0 \u2028 \x85 \u180e \ufeff \r \n "
       "\t \x1c \x7f e\u0301 \u0345 \u0663 \u0968 \u2167 \u00bd \U0001f9d1\u200d\U0001f680 \ud55c "
       "\U0001f1e9 \U000e0041 \u1112 \u0e01\u0e47 \u05d0 \U0001d7d8 \u0378 \ue000 \uffff 123 1 ... "
       "\U0010ffff !! <|eot_id|> <| |> <|eot_id x Hello").split(" ") + [" ", "  "]
DRAW = random.Random(5)
TEXTS = ["".join(DRAW.choice(ODD) for _ in range(60000)), lib_text.real_text(),
         lib_text.random_text(200000), "".join(SPECIAL) + "<s>x</s>",
         "", " ", "  a", "a" * 100000, "\n\n \n", "\u2581 \u2581\u2581x", "\x00\x01\t\u00a0 ",
         "if x:\n\tprint('''y''')\n    # 1234567 don't WE'LL\n" * 50]


class Bed:
    def __init__(self):
        self.root, self.world = tempfile.mkdtemp(prefix="hf-"), None

    def path(self, name):
        return os.path.join(self.root, name)

    def tokens(self, file, text, *options):
        write(self.path("text"), text.encode())
        done = subprocess.run([os.path.join(BUILD, "tokenizer"), "encode", "--tokenizer", file,
                               *options, self.path("text")], capture_output=True, check=True)
        return [int(word) for word in done.stdout.split()]


def same(ours, theirs, name, text):
    assert ours == theirs, (text[:40], lib_text.first_difference(ours, theirs, name))


def prepare(bed):
    bed.tiktoken = tiktoken.Encoding(
        "llama3", pat_str=PATTERN, mergeable_ranks=load_tiktoken_bpe(LLAMA3),
        special_tokens={name: 128000 + i for i, name in enumerate(SPECIAL)})


@test
def llama_3s_tokens_are_tiktokens(bed):
    for text in TEXTS:
        same(bed.tokens(LLAMA3, text), bed.tiktoken.encode_ordinary(text), "tiktoken", text)


@test
def llama_3s_special_tokens_are_tokens_when_asked_for(bed):
    for text in TEXTS:
        same(bed.tokens(LLAMA3, text, "--special"),
             bed.tiktoken.encode(text, allowed_special="all"), "tiktoken", text)


@test
def llama_3s_tokenizer_json_gives_the_same_tokens(bed):
    theirs = TikTokenConverter(vocab_file=LLAMA3, pattern=PATTERN).converted()
    theirs.model.ignore_merges = True
    theirs.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    theirs.save(bed.path("tokenizer.json"))
    for is_special in (False, True):
        theirs.encode_special_tokens = not is_special
        for text in TEXTS:
            ours = bed.tokens(bed.path("tokenizer.json"), text, *["--special"] * is_special)
            same(ours, theirs.encode(text, add_special_tokens=False).ids, "tokenizers", text)
            same(ours, bed.tokens(LLAMA3, text, *["--special"] * is_special), "ranks", text)


def converted(bed, is_legacy):
    """tokenizer.json as transformers makes it of SentencePiece's file, in its two forms."""
    spm = sentencepiece.SentencePieceProcessor(model_file=LLAMA2_FORM)
    vocab = {spm.id_to_piece(i): i for i in range(spm.get_piece_size())}
    merges = generate_merges(vocab, {piece: spm.get_score(i) for piece, i in vocab.items()})
    theirs = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True,
                                  byte_fallback=True))
    if is_legacy:
        theirs.normalizer = normalizers.Sequence([normalizers.Prepend(META),
                                                  normalizers.Replace(" ", META)])
    else:
        theirs.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    theirs.add_special_tokens(["<unk>", "<s>", "</s>"])
    theirs.save(bed.path("tokenizer.json"))
    theirs.encode_special_tokens = True
    return theirs


@test
def a_published_tokenizer_of_llama_2s_form_gives_the_same_tokens(bed):
    for is_legacy in (False, True):
        theirs = converted(bed, is_legacy)
        for text in TEXTS:
            same(bed.tokens(bed.path("tokenizer.json"), text),
                 theirs.encode(text, add_special_tokens=False).ids, "tokenizers", text)


@test
def they_are_those_of_sentencepiece(bed):
    converted(bed, True)
    theirs = sentencepiece.SentencePieceProcessor(model_file=LLAMA2_FORM)
    for text in TEXTS:
        same(bed.tokens(LLAMA2_FORM, text), theirs.encode(text), "sentencepiece", text)
    text = lib_text.real_text()
    same(bed.tokens(bed.path("tokenizer.json"), text), theirs.encode(text), "sentencepiece", text)


if __name__ == "__main__":
    main(prepare, Bed)
