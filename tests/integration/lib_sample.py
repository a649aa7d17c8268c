"""lib_sample - which trials of a matrix a script makes: as tests/unit/sample.h has it for C."""
import os
import random


def sample(trials, usual, seed):
    """One trial in `usual`, from one by chance on; SAMPLE=N another share, SAMPLE=1 every one."""
    one_in = 1 if os.environ.get("TORTURE") else max(1, int(os.environ.get("SAMPLE") or usual))
    return list(trials)[random.Random(seed).randrange(one_in)::one_in]
