"""lib_text - texts on which tokenizers are compared.

real_text() is 1 MB of human text: Perl's manuals where installed, and this repository.
random_text() is seeded random Unicode, of characters that Unicode 3.2 had already, so that the
tables of two libraries, which may be of different years, agree on them. SEED=n gives another one.

A TokenizerBed has these and other texts that are known to differ, and runs the program tokenizer on
them.
"""
import functools
import glob
import os
import random
import subprocess
import tempfile
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEED = int(os.environ.get("SEED", "1"))
TEXT_BYTES = 1 << 20
TOKENIZER = os.path.join(os.path.abspath(os.environ.get("BUILD", "build")), "tokenizer")
META = "\u2581"
SPECIAL = ["<s>", "</s>", "<|eot_id|>", "<|eot_id|>x"]

# meta-llama/llama3, llama/tokenizer.py
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Characters that join, expand and vanish.
COMBINED = ("aeiouAEIO  \u00b4\u00a8\u0301\u0308\u0327\u212b\ufb01\uff21\uff76\uff9e\u3099\u1100"
            "\u1161\u11a8\u00a0\u3000\u200b\ufeff\ufdfa\u00bd\u00b2\t\r\n\u2581\u00ad\x7f\x01~`")


@functools.cache
def real_text():
    paths = sorted(glob.glob("/usr/share/perl/5*/pod/*.pod"))[:40]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    paths += [os.path.join(ROOT, path) for path in tracked.stdout.split()]
    parts = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", newline="") as file:
                parts.append(file.read())
        except (OSError, UnicodeDecodeError):
            continue
    text = "".join(parts)
    return (text * (TEXT_BYTES // len(text) + 1))[:TEXT_BYTES]


@functools.cache
def random_text(length):
    draw = random.Random(SEED)
    old = [chr(code) for code in range(0x20000)
           if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs", "Co")
           and unicodedata.ucd_3_2_0.category(chr(code))[0] == unicodedata.category(chr(code))[0]]
    common = "ab's'T'LLde\u017f\u212a \n\r\t\u00a0\u2003\u3000\x1c\x85 01234\u0661\u00b2\u00bd.,!?-"
    return "".join(draw.choice(common) if draw.random() < 0.4 else
                   chr(draw.randrange(32, 127)) if draw.random() < 0.5 else
                   draw.choice(old) for _ in range(length))


def first_difference(ours, theirs, name):
    for at, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return f"seed {SEED}: token {at}: ours {ours[at:at + 4]}, {name} {theirs[at:at + 4]}"
    return f"seed {SEED}: {len(ours)} tokens, {name} {len(theirs)}"


def adversarial():
    draw = random.Random(SEED)
    parts = SPECIAL + ["<tool>", "<left>", "<right>", "norm_al", "norm_al_er", "of the", " ", "  ",
                       "   ", "\n", "\n\n", " \n", "\t", "a", "the", META, META + META, "<0x41>",
                       "\u00e9", "\u65e5\u672c", "\U0001F600", "'s", "12345", "\r\n", "\u00a0",
                       "<", "<unk>", "..", "\x00"]
    return "".join(draw.choice(parts) for _ in range(3000))


def tests_of(forms, check, what):
    """A test per form: check(bed, form); its name ends with `what`."""
    def of(form):
        def test(bed):
            check(bed, form)
        test.__name__ = f"{form}_{what}".replace(" ", "_")
        return test
    return [of(form) for form in forms]


class TokenizerBed:
    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="tokenizer-", dir=os.environ.get("TMPDIR"))
        self.texts = [real_text()[:150000], random_text(20000), adversarial(),
                      " begins with a space", "", "\n", "\nx", META, "<tool>", " <s> </s> a",
                      "a" * 30000, "ab " * 9000, "   " * 5000]

    def path(self, name):
        return os.path.join(self.root, name)

    def run(self, command, file, content, *options):
        with open(self.path("in"), "wb") as out:
            out.write(content)
        return subprocess.run([TOKENIZER, command, "--tokenizer", self.path(file), *options,
                               self.path("in")], capture_output=True)

    def tokens(self, file, text, *options):
        done = self.run("encode", file, text.encode(), *options)
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]
