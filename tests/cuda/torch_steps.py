#!/usr/bin/env python3
"""torch_steps - tokens per second of training steps of a Llama in PyTorch, to compare ours with.

    python3 tests/cuda/torch_steps.py --dim D --layers L --heads H --kv-heads K --head-dim E
        --hidden F --vocab V --seq T --batch B --steps N [--tied] [--state float32|bf16]
        [--gradients float32|bf16] [--attention cudnn,flash] [--no-compile] [--device cuda|cpu]
        [--compute bf16|float32]

gpu_bench --torch runs it beside each row, tests/bench/peers/rows_steps.py on CPUs. The step is the
trainer's on one GPU, written as a user of PyTorch would write it for speed: parameters, gradients
and moments in float32, products and the residual stream in bf16 by casts of the parameters (or in
float32), gradients clipped to a norm of 1, AdamW with fused=True, fused attention by cuDNN, or
flash where cuDNN does not take the shape. torch.compile compiles one block, which serves every
layer, and the head with its loss: a whole model takes minutes to compile. Nothing is recomputed on
purpose. With --state bf16 both moments are bf16, rounded to nearest, and AdamW is one compiled
function. With --gradients bf16, too, each gradient is rounded as soon as the backward has made it,
and only that is kept. The tokens are one random batch.

The last line is JSON: the median over the last three quarters of the steps (tokens_per_s, ms), the
last loss, seconds of the first step (it compiles), the attention that was taken, the version of
torch, the GPU, and the largest memory in 1e9 bytes. Each step is timed by CUDA events and waited
for, as the trainer does; copying a batch to the GPU is not in it. Exit status: 0 measured, 1 out
of memory or failed, 2 wrong options, 78 no torch or no GPU.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
import traceback

# Without it the last GB of a GPU are lost between the blocks of its allocator.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except (ImportError, OSError) as error:
    print(f"torch_steps: torch is not here: {error}", file=sys.stderr)
    sys.exit(78)

TYPES = {"bf16": torch.bfloat16, "float32": torch.float32}
RATE, BETA1, BETA2, EPS, DECAY, MAX_NORM = 3e-4, 0.9, 0.95, 1e-8, 0.1, 1.0
THETA, NORM_EPS, DEVIATION = 500000.0, 1e-5, 0.02
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


# B sequences, T tokens of each, C values of a token, H heads and K of keys, E values of a head.

def new(*shape):
    return torch.nn.Parameter(torch.randn(shape).mul_(DEVIATION))


def product(x, weight):
    """Its gradient is cast back to the type of the weight."""
    return F.linear(x, weight.to(x.dtype))


def rmsnorm(x, weight):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)
    return (wide * scale * weight).to(x.dtype)


def rotate(x, cos, sin):
    """x (B, T, H, E), turned in pairs of one value of each half: weights as transformers has."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def rope_tables(seq, head_dim):
    """cos and sin, (T, 1, E / 2)."""
    rates = THETA ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(seq).float(), rates)[:, None]
    return angles.cos(), angles.sin()


class Block(torch.nn.Module):
    def __init__(self, of):
        super().__init__()
        self.head_dim, self.is_grouped = of.head_dim, of.heads != of.kv_heads
        self.attention_norm = torch.nn.Parameter(torch.ones(of.dim))
        self.wq = new(of.heads * of.head_dim, of.dim)
        self.wk = new(of.kv_heads * of.head_dim, of.dim)
        self.wv = new(of.kv_heads * of.head_dim, of.dim)
        self.wo = new(of.dim, of.heads * of.head_dim)
        self.ffn_norm = torch.nn.Parameter(torch.ones(of.dim))
        self.w1, self.w3 = new(of.hidden, of.dim), new(of.hidden, of.dim)
        self.w2 = new(of.dim, of.hidden)

    def forward(self, x, cos, sin):  # x (B, T, C)
        normed = rmsnorm(x, self.attention_norm)
        q, k, v = (product(normed, weight).unflatten(-1, (-1, self.head_dim))
                   for weight in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        heads = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
            enable_gqa=self.is_grouped)
        x = x + product(heads.transpose(1, 2).flatten(2), self.wo)
        normed = rmsnorm(x, self.ffn_norm)
        return x + product(F.silu(product(normed, self.w1)) * product(normed, self.w3), self.w2)


def head_loss(x, norm, weight, targets):
    logits = product(rmsnorm(x, norm), weight)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Llama(torch.nn.Module):
    def __init__(self, of):
        super().__init__()
        self.table = new(of.vocab, of.dim)
        self.blocks = torch.nn.ModuleList(Block(of) for _ in range(of.layers))
        self.norm = torch.nn.Parameter(torch.ones(of.dim))
        self.head = self.table if of.tied else new(of.vocab, of.dim)
        self.cos, self.sin = rope_tables(of.seq, of.head_dim)
        self.compute = TYPES[of.compute]
        self.head_loss = head_loss

    def compile_parts(self):
        for block in self.blocks:
            block.compile(fullgraph=True, dynamic=False)
        self.head_loss = torch.compile(head_loss, fullgraph=True, dynamic=False)

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.table).to(self.compute)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head_loss(x, self.norm, self.head, targets)


def adamw_of_one(value, gradient, first, second, step):
    """A step of AdamW, all in one dimension; `step` counts from 1, on the device."""
    gradient = gradient.float()
    mean = torch.lerp(first.float(), gradient, 1 - BETA1)
    square = torch.lerp(second.float(), gradient.square(), 1 - BETA2)
    first.copy_(mean)
    second.copy_(square)
    root = (square / (1 - BETA2 ** step)).sqrt() + EPS
    value.mul_(1 - RATE * DECAY).sub_(RATE * (mean / (1 - BETA1 ** step)) / root)


class NarrowAdamW:
    """AdamW whose moments are bf16, and on request gradients; with the part of torch's interface
    that step_once() needs."""

    def __init__(self, parameters, is_compiled, has_narrow_gradients):
        self.parameters = list(parameters)
        self.narrow = {}
        for value in self.parameters if has_narrow_gradients else ():
            value.register_post_accumulate_grad_hook(self.keep_narrow)
        self.moments = [[torch.zeros(p.numel(), dtype=torch.bfloat16, device=p.device)
                         for _ in range(2)] for p in self.parameters]
        self.count = torch.zeros((), device=self.parameters[0].device)
        # One compilation for tensors of any length.
        self.update = torch.compile(adamw_of_one, dynamic=True) if is_compiled else adamw_of_one

    def keep_narrow(self, value):
        self.narrow[value] = value.grad.to(torch.bfloat16)
        value.grad = None

    def gradients(self):
        return [self.narrow.get(value, value.grad) for value in self.parameters]

    @torch.no_grad()
    def clip(self):
        gradients = self.gradients()
        norms = torch._foreach_norm(gradients, 2, torch.float32)
        scale = MAX_NORM / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
        torch._foreach_mul_(gradients, scale.clamp(max=1.0))

    @torch.no_grad()
    def step(self):
        self.count += 1
        for value, gradient, moments in zip(self.parameters, self.gradients(), self.moments):
            self.update(value.detach().view(-1), gradient.view(-1), *moments, self.count)

    def zero_grad(self):
        self.narrow.clear()
        for value in self.parameters:
            value.grad = None


def new_optimizer(model, options):
    if options.state == "bf16":
        return NarrowAdamW(model.parameters(), options.is_compiled, options.gradients == "bf16")
    return torch.optim.AdamW(model.parameters(), RATE, (BETA1, BETA2), EPS, DECAY, fused=True)


def step_once(model, optimizer, tokens, targets):
    loss = model(tokens, targets)
    loss.backward()
    if isinstance(optimizer, NarrowAdamW):
        optimizer.clip()
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def timed(device, work):
    """The result of work(), and milliseconds until the device had done it."""
    if device == "cpu":
        start = time.perf_counter()
        return work(), 1e3 * (time.perf_counter() - start)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = work()
    stop.record()
    stop.synchronize()
    return result, start.elapsed_time(stop)


def chosen_attention(of, device):
    """The name of the kernels that attention takes; not those that write all scores."""
    q, k = (torch.empty(of.batch, of.seq, heads, of.head_dim, dtype=TYPES[of.compute],
                        device=device, requires_grad=True).transpose(1, 2)
            for heads in (of.heads, of.kv_heads))
    choice = torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=of.heads != of.kv_heads)
    return next((name for name, backend in SDPBackend.__members__.items()
                 if int(backend) == choice), str(choice))


def measure(options):
    torch.manual_seed(0)
    if options.device == "cpu":
        return run_steps(options)
    with sdpa_kernel(options.attention, set_priority=True):  # compiled code keeps the choice
        return run_steps(options)


def run_steps(options):
    with torch.device(options.device):
        model = Llama(options)
        batch = torch.randint(options.vocab, (options.batch, options.seq + 1))
    if options.is_compiled:
        model.compile_parts()
    optimizer = new_optimizer(model, options)
    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    times, start = [], time.perf_counter()
    for step in range(options.steps):
        loss, ms = timed(options.device, lambda: step_once(model, optimizer, tokens, targets))
        times.append(ms)
        if step == 0:
            first = time.perf_counter() - start
    ms = statistics.median(times[len(times) // 4:])
    is_gpu = options.device == "cuda"
    memory = (torch.cuda.max_memory_allocated() if is_gpu else
              1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return {"tokens_per_s": round(1e3 * options.batch * options.seq / ms, 1), "ms": round(ms, 3),
            "loss": loss.item(), "first_step_s": round(first, 1),
            "attention": chosen_attention(options, options.device), "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if is_gpu else "CPU",
            "memory_gb": round(memory / 1e9, 2)}


def read_options():
    def count(text):
        if int(text) < 1:
            raise argparse.ArgumentTypeError("at least 1")
        return int(text)

    def backends(text):
        if not set(text.split(",")) <= set(BACKENDS):
            raise argparse.ArgumentTypeError(f"of {', '.join(BACKENDS)}")
        return [BACKENDS[name] for name in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("dim", "layers", "heads", "kv-heads", "head-dim", "hidden", "vocab", "seq",
                 "batch", "steps"):
        parser.add_argument(f"--{name}", type=count, required=True)
    parser.add_argument("--tied", action="store_true", help="the head is the embedding's table")
    parser.add_argument("--state", choices=("float32", "bf16"), default="float32",
                        help="of both moments")
    parser.add_argument("--gradients", choices=("float32", "bf16"), default="float32",
                        help="bf16 with --state bf16 alone")
    parser.add_argument("--attention", type=backends, default="cudnn,flash",
                        help="on a GPU: the first of these that takes the shape")
    parser.add_argument("--no-compile", dest="is_compiled", action="store_false")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compute", choices=tuple(TYPES), default="bf16",
                        help="of products and the residual stream")
    options = parser.parse_args()
    if options.gradients == "bf16" and options.state != "bf16":
        parser.error("--gradients bf16 is with --state bf16")
    return options


def main():
    options = read_options()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"torch_steps: torch {torch.__version__} finds no GPU", file=sys.stderr)
        return 78
    try:
        result = measure(options)
    except torch.OutOfMemoryError as error:
        print(f"torch_steps: out of memory: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except Exception as error:  # the last line names it: a compiler's own last lines are advice
        traceback.print_exc()
        reason = (str(error).strip() or "no text").splitlines()[0]
        print(f"torch_steps: {type(error).__name__}: {reason}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
