"""lib_text - texts on which tokenizers are compared.

real_text() is 1 MB of what people wrote: Perl's manuals where installed, and this repository.
random_text() is seeded random Unicode, of characters that Unicode 3.2 had already, so that the
tables of two libraries, which may be of different years, agree on them. SEED=n gives another one.
"""
import glob
import os
import random
import subprocess
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEED = int(os.environ.get("SEED", "1"))
TEXT_BYTES = 1 << 20


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
