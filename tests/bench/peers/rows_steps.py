"""rows_steps.py - whole training steps on CPUs compared with the same model in PyTorch, compiled or
not.

The peer is tests/cuda/torch_steps.py, which the rows of GPUs compare with, too; the faster of its
two ways, by a run of each, is used. Both sides compute with all cores, on one process, the same
shape, and as many tokens a step; both update with AdamW and a clipped norm. Rows are of float32,
with _bf16 of products in bfloat16, and with _avx2 both are held to AVX2, with whatever libraries
PyTorch calls.
"""
import functools
import json
import os
import subprocess

from measure import ROOT
from rows_peers import PYTHON
from rows_train import data_110m, train

TORCH_STEPS = os.path.join(ROOT, "tests/cuda/torch_steps.py")
SEQ, GOAL, PAIRS = 256, 1.0, 15
COMPUTES = {"float32": "float32", "bf16": "bfloat16"}  # of the peer; ours
# Of proto/model/model_shape.c; sequences of a step; steps; tokens, where they are not train()'s.
SHAPES = {
    "debug": ({"dim": 256, "layers": 10, "heads": 16, "kv-heads": 4, "head-dim": 16,
               "hidden": 768, "vocab": 4096}, 12, 16, None),
    "110m": ({"dim": 768, "layers": 12, "heads": 12, "kv-heads": 4, "head-dim": 64,
              "hidden": 1536, "vocab": 32000}, 4, 8, data_110m),
}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2"}


def torch_ms(bench, shape, batch, steps, limits, compute, *options):
    """Milliseconds of PyTorch's step, the first ones left out."""
    sizes = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    env = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count()), **limits,
           "TORCHINDUCTOR_CACHE_DIR":
               os.path.join(bench.tmp, "inductor" + compute + "".join(limits))}
    done = subprocess.run(
        [PYTHON, TORCH_STEPS, *sizes, "--seq", str(SEQ), "--batch", str(batch), "--steps",
         str(steps), "--device", "cpu", "--compute", compute, *options],
        env=env, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError("torch_steps: " + done.stderr[-300:])
    return json.loads(done.stdout.splitlines()[-1])["ms"]


def beside_torch(bench, name, limits, compute, *options):
    shape, batch, steps, tokens_of = SHAPES[name]
    peer = functools.partial(torch_ms, bench, shape, batch, steps, limits, compute)
    compiled, eager = peer(), peer("--no-compile")
    way = ["--no-compile"] if eager < compiled else []
    options = ["--kernels.threads", str(os.cpu_count()), "--training.steps", str(steps),
               "--training.local_batch_size", str(batch), "--canonical.micro_batches", "1",
               "--training.mixed_precision_param", COMPUTES[compute], "--checkpoint.no_enable",
               *(tokens_of(bench) if tokens_of else ()), *options]
    tokens = batch * SEQ
    suffix = ("_bf16" if compute == "bf16" else "") + ("_avx2" if limits else "")
    row = bench.pairs(f"peer_step_{name}{suffix}", "tokens/s",
                      pairs_max=PAIRS, goal=GOAL,
                      ours=lambda: tokens / train(bench, "none", *options),
                      reference=lambda: tokens / peer(*way) * 1e3)
    row.note = f"torch.compile {compiled:.0f} ms, eager {eager:.0f} ms a step"
    return row


def row_peer_step(bench):
    """tokens/s of whole float32 steps on all cores, beside the faster of torch.compile and eager"""
    for name in SHAPES:
        yield beside_torch(bench, name, {}, "float32")


def row_peer_step_bf16(bench):
    """the same, with products in bfloat16"""
    for name in SHAPES:
        yield beside_torch(bench, name, {}, "bf16")


def row_peer_step_avx2(bench):
    """the same, both held to AVX2"""
    for name in SHAPES:
        yield beside_torch(bench, name, AVX2, "float32", "--kernels.isa", "avx2")
