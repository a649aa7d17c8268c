#!/usr/bin/env python3
"""sample_order - which samples of a source come when, from trainer/data/README.md alone.

    sample_order.py SEED SAMPLES FIRST COUNT    # the samples of draws FIRST, FIRST + 1, ...
"""

import ctypes
import sys

xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
WORD = 0xFFFFFFFF


def philox(counter, high, key):
    c, k = [counter & WORD, counter >> 32, high & WORD, high >> 32], [key & WORD, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & WORD, p >> 32 ^ c[3] ^ k[1], p & WORD]
        k = [k[0] + 0x9E3779B9 & WORD, k[1] + 0xBB67AE85 & WORD]
    return c[0]


def sample(seed, samples, draw):
    stream = seed.to_bytes(8, "little") + b"data/order"
    key = xxhash.XXH3_64bits(stream, ctypes.c_size_t(len(stream)))
    half = next(bits for bits in range(32) if 4 ** bits >= samples)
    epoch, value = divmod(draw, samples)
    while True:
        left, right = value >> half, value & 2 ** half - 1
        for number in range(6):
            word = philox(right << 8 | number, epoch, key)
            left, right = right, left ^ word & 2 ** half - 1
        value = left << half | right
        if value < samples:
            return value


if __name__ == "__main__":
    seed, samples, first, count = map(int, sys.argv[1:])
    print(*(sample(seed, samples, first + i) for i in range(count)))
