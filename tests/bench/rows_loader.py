"""rows_loader.py - what a rank's reader gives where nothing is computed, from the page cache.

Tokens per second of one rank: the rate that a step must not reach. Beside it preads of the same
samples' tokens, without checksums, targets or a thread in between.
"""
import os

from measure import Program

MIB, BATCH = 256, 8
LEAVES = {512: 2048, 2048: 512, 8192: 128}  # of a sample here, by the length of sequences


def row_loader(bench):
    """samples from the reader thread of a rank, beside bare reads of their tokens"""
    for seq, leaves in LEAVES.items():
        path = os.path.join(bench.tmp, f"{seq}.tokens")
        program = Program(bench.program("bench/loader"), path, str(MIB), str(seq), str(BATCH))
        yield bench.pairs(f"loader_{seq}", "tokens/s", pairs_max=12,
                          ours=lambda: program.ask(f"ours {leaves}")["tokens_per_s"],
                          reference=lambda: program.ask(f"reference {leaves}")["tokens_per_s"],
                          note=f"sequences of {seq}, {BATCH} to a micro-batch, {MIB} MiB of tokens")
        program.close()
        os.unlink(path)
