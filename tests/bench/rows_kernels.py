"""rows_kernels.py - matrix products in tiles of fixed size, beside single calls of the library."""
import os

from measure import Program

DEBUG = [(256, 256, 256), (256, 256, 768), (2048, 256, 768), (2048, 768, 256), (1024, 256, 4096)]
LARGE = [(512, 768, 768), (512, 768, 2048), (512, 768, 32000)]  # the 110M model


def compare(bench, shapes, kinds, types, threads):
    program = Program(bench.program("bench/kernels_products"))
    for dtype in types:
        for kind in kinds:
            for shape in shapes:
                what = f"{kind} {dtype} {threads} " + " ".join(map(str, shape))
                yield bench.pairs(
                    f"{kind} {dtype} {'x'.join(map(str, shape))}, {threads} threads", "GFLOP/s",
                    pairs_max=12, ours=lambda: program.ask("ours " + what)["gflops"],
                    reference=lambda: program.ask("library " + what)["gflops"])
    program.close()


def row_products(bench):
    """products of the debug model and of a 110M model, one thread, beside one library call"""
    kinds = ("forward", "input", "weight")
    yield from compare(bench, DEBUG + LARGE, kinds, ("f32", "bf16"), 1)


def row_products_threads(bench):
    """the same products on two threads; the library's bits change with its threads, ours do not"""
    if (os.cpu_count() or 1) > 1:
        yield from compare(bench, DEBUG[1:4] + LARGE[1:2], ("forward", "weight"), ("f32",), 2)


def row_attention(bench):
    """causal attention whole, beside the library's two products alone (sequence, heads, width)"""
    yield from compare(bench, [(256, 16, 16), (1024, 12, 64)], ("attention",), ("f32", "bf16"), 1)
