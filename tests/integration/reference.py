#!/usr/bin/env python3
"""reference - a Llama training step in NumPy that shares no code with the trainer.

    reference.py                                               test of the reference itself (TAP)
    reference.py train  --weights W --config C --tokens T [--steps 20] [--dtype float64]
                        [--compare L]
    reference.py logits --weights W --config C (--ids "1 2 3" | --tokens T [--sample 0])
                        [--compare F]

W: safetensors file with float32 weights under torchtitan's names (ckpt-cli export). C: the
effective configuration as JSON (job.save_config_file). T: a tokens file. `train` prints a line per
step: step, loss, gradient norm, in 17 digits; with --compare it prints instead how many steps of
the trainer's loss file L it compared, and the largest relative differences of loss and norm.
`logits` prints a line per position; with --compare it prints instead the largest difference to the
raw float32 numbers in F, absolute and relative to the largest logit.

The model: h = E[token]; per layer h += wo(attention(rope(wq n), rope(wk n), wv n)) with n =
norm(h), then h += w2(silu(w1 n) * w3 n) with the new n = norm(h); logits = output(norm(h)). RMSNorm
eps 1e-5; RoPE turns the pairs (2i, 2i+1) by position * 500000^(-2i/D); causal grouped-query
attention, head h reads key/value head h // (H/K). Loss: mean cross entropy over a step's tokens.
The update: gradient scaled by min(1, max_norm / (norm + 1e-6)); AdamW with decoupled weight decay
on every parameter; the learning rate is torchtitan v0.2.2's: W warm-up steps (s + 1) / W, then
stable, then D steps of decay with progress (s + 1 - W - S) / D, where S = T + 1 - W - D.

Letters: B sequences, T positions, C dim, F hidden, H heads, K key/value heads, D head width,
V vocabulary.
"""
import argparse
import json
import math
import struct
import sys

import lib_tap

lib_tap.need("numpy")
import numpy as np  # noqa: E402

EPS = 1e-5
THETA = 500000.0
HEADS = {"tiny": (4, 2), "debugmodel": (16, 4), "110M": (12, 4), "8B": (32, 8)}  # heads, kv heads
MASK64 = (1 << 64) - 1


# ---- files and data order ----

def read_safetensors(path):
    with open(path, "rb") as file:
        raw = file.read()
    (header_bytes,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        start, end = entry["data_offsets"]
        values = np.frombuffer(raw, "<f4", (end - start) // 4, 8 + header_bytes + start)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def xxh3_17_to_32(data):
    """XXH3-64 of 17 to 32 bytes: the two mixes of 16 bytes that the format defines for them."""
    secret = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f")
    assert 17 <= len(data) <= 32

    def mix(part, key):
        low, high = struct.unpack("<QQ", part)
        key_low, key_high = struct.unpack("<QQ", key)
        product = (low ^ key_low) * (high ^ key_high)
        return (product & MASK64) ^ (product >> 64)
    value = len(data) * 0x9E3779B185EBCA87
    value += mix(data[:16], secret[:16]) + mix(data[-16:], secret[16:])
    value &= MASK64
    value ^= value >> 37
    value = value * 0x165667919E3779F9 & MASK64
    return value ^ value >> 32


def philox(counter, key):
    """Philox4x32-10: four counter words, two key words."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class Data:
    """A tokens file and the order of its samples."""

    def __init__(self, path, seq_len, seed):
        with open(path, "rb") as file:
            raw = file.read()
        magic, version, start, width, _vocab, count = struct.unpack_from("<8sIIIIQ", raw)
        assert magic == b"HFTOKENS" and version in (1, 2), f"{path} is no tokens file"
        kind = {2: "<u2", 4: "<u4"}[width]
        if version == 1:
            self.tokens = np.frombuffer(raw, kind, count, start).astype(np.int64)
        else:  # blocks of 16,384 tokens, each with its planes of bits
            planes = 2 if struct.unpack_from("<I", raw, 140)[0] & 1 else 1
            block = 16384 * width + planes * 2048
            parts = [np.frombuffer(raw, kind, 16384, at) for at in
                     range(start, start + (count + 16383) // 16384 * block, block)]
            self.tokens = np.concatenate(parts)[:count].astype(np.int64)
        self.seq_len, self.num_samples = seq_len, (count - 1) // seq_len
        stream = xxh3_17_to_32(struct.pack("<Q", seed) + b"data/order")
        self.key = (stream & 0xFFFFFFFF, stream >> 32)
        self.half_bits = 0
        while 1 << 2 * self.half_bits < self.num_samples:
            self.half_bits += 1

    def position(self, index):
        """Keyed permutation: six Feistel rounds, again until the result is a sample."""
        epoch, value = divmod(index, self.num_samples)
        mask = (1 << self.half_bits) - 1
        while True:
            left, right = value >> self.half_bits, value & mask
            for turn in range(6):
                counter = epoch << 64 | right << 8 | turn
                words = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
                left, right = right, left ^ philox(words, self.key)[0] & mask
            value = left << self.half_bits | right
            if value < self.num_samples:
                return value

    def read(self, first, count):
        rows = [self.tokens[(at := self.position(first + i) * self.seq_len):at + self.seq_len + 1]
                for i in range(count)]
        both = np.stack(rows)
        return both[:, :-1], both[:, 1:]


# ---- the model ----

def norm_forward(x, weight):
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * inverse * weight, inverse


def norm_backward(grad, x, inverse, weight):
    scaled = grad * weight
    dx = inverse * scaled - x * inverse ** 3 * (scaled * x).mean(-1, keepdims=True)
    return dx, (grad * x * inverse).reshape(-1, x.shape[-1]).sum(0)


def rope(x, sign):
    """x [B,T,H,D]; sign -1 turns back."""
    T, D = x.shape[1], x.shape[3]
    angle = np.arange(T)[:, None] * THETA ** (-np.arange(0, D, 2) / D)
    cos = np.cos(angle)[None, :, None].astype(x.dtype)
    sin = sign * np.sin(angle)[None, :, None].astype(x.dtype)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    def __init__(self, weights, heads, kv_heads, dtype):
        self.w = {name: value.astype(dtype) for name, value in weights.items()
                  if not name.startswith("optimizer.")}
        self.heads, self.kv_heads = heads, kv_heads
        self.layers = len([name for name in self.w if name.endswith("attention_norm.weight")])

    def attention(self, n, prefix):
        """n [B,T,C] -> output before wo [B,T,C], and what the backward needs."""
        B, T, C = n.shape
        H, K, D = self.heads, self.kv_heads, C // self.heads
        q = rope((n @ self.w[prefix + "wq.weight"].T).reshape(B, T, H, D), 1)
        k = rope((n @ self.w[prefix + "wk.weight"].T).reshape(B, T, K, D), 1)
        v = (n @ self.w[prefix + "wv.weight"].T).reshape(B, T, K, D)
        q = q.transpose(0, 2, 1, 3)                                 # [B,H,T,D]
        k = np.repeat(k.transpose(0, 2, 1, 3), H // K, 1)
        v = np.repeat(v.transpose(0, 2, 1, 3), H // K, 1)
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(D)         # [B,H,T,T]
        scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
        p = softmax(scores)
        return (p @ v).transpose(0, 2, 1, 3).reshape(B, T, C), (q, k, v, p)

    def attention_backward(self, grad, n, kept, prefix, grads):
        q, k, v, p = kept
        B, H, T, D = q.shape
        K, C = self.kv_heads, H * D
        grad = grad.reshape(B, T, H, D).transpose(0, 2, 1, 3)
        dv = p.transpose(0, 1, 3, 2) @ grad
        dp = grad @ v.transpose(0, 1, 3, 2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(D)
        dq, dk = ds @ k, ds.transpose(0, 1, 3, 2) @ q
        dk = dk.reshape(B, K, H // K, T, D).sum(2)
        dv = dv.reshape(B, K, H // K, T, D).sum(2)
        parts = {"wq": rope(dq.transpose(0, 2, 1, 3), -1), "wk": rope(dk.transpose(0, 2, 1, 3), -1),
                 "wv": dv.transpose(0, 2, 1, 3)}
        dn = np.zeros_like(n)
        for name, part in parts.items():
            dn += self.linear_backward(part.reshape(B, T, -1), n, prefix + name + ".weight", grads)
        assert dn.shape[-1] == C
        return dn

    def linear_backward(self, grad, x, name, grads):
        rows = grad.reshape(-1, grad.shape[-1])
        grads[name] = rows.T @ x.reshape(-1, x.shape[-1])
        return grad @ self.w[name]

    def forward(self, inputs):
        """[B,T] -> logits [B,T,V] and what the backward needs."""
        h, kept = self.w["tok_embeddings.weight"][inputs], []
        for layer in range(self.layers):
            p = f"layers.{layer}."
            n1, r1 = norm_forward(h, self.w[p + "attention_norm.weight"])
            mixed, inner = self.attention(n1, p + "attention.")
            h1 = h + mixed @ self.w[p + "attention.wo.weight"].T
            n2, r2 = norm_forward(h1, self.w[p + "ffn_norm.weight"])
            a = n2 @ self.w[p + "feed_forward.w1.weight"].T
            b = n2 @ self.w[p + "feed_forward.w3.weight"].T
            gate = 1 / (1 + np.exp(-a))
            kept.append((h, n1, r1, mixed, inner, h1, n2, r2, a, b, gate))
            h = h1 + (a * gate * b) @ self.w[p + "feed_forward.w2.weight"].T
        n, r = norm_forward(h, self.w["norm.weight"])
        return n @ self.w["output.weight"].T, (kept, h, n, r)

    def layer_backward(self, grad, p, kept, grads):
        h, n1, r1, mixed, inner, h1, n2, r2, a, b, gate = kept
        d = self.linear_backward(grad, a * gate * b, p + "feed_forward.w2.weight", grads)
        da = d * b * gate * (1 + a * (1 - gate))
        dn = self.linear_backward(da, n2, p + "feed_forward.w1.weight", grads)
        dn += self.linear_backward(d * a * gate, n2, p + "feed_forward.w3.weight", grads)
        dx, grads[p + "ffn_norm.weight"] = norm_backward(dn, h1, r2, self.w[p + "ffn_norm.weight"])
        grad = grad + dx
        d = self.linear_backward(grad, mixed, p + "attention.wo.weight", grads)
        dn = self.attention_backward(d, n1, inner, p + "attention.", grads)
        dx, grads[p + "attention_norm.weight"] = norm_backward(
            dn, h, r1, self.w[p + "attention_norm.weight"])
        return grad + dx

    def loss_and_gradients(self, inputs, targets, scale):
        """Sum of the tokens' cross entropies, and the gradients of scale x that sum."""
        logits, (kept, h, n, r) = self.forward(inputs)
        p = softmax(logits)
        rows = np.arange(targets.size)
        flat = p.reshape(-1, p.shape[-1])
        top = logits.max(-1, keepdims=True)
        log_sum = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
        right = logits.reshape(-1, p.shape[-1])[rows, targets.ravel()]
        loss = float(log_sum.astype(np.float64).sum() - right.astype(np.float64).sum())
        flat[rows, targets.ravel()] -= 1
        grads = {}
        grad = self.linear_backward(p * scale, n, "output.weight", grads)
        grad, grads["norm.weight"] = norm_backward(grad, h, r, self.w["norm.weight"])
        for layer in reversed(range(self.layers)):
            grad = self.layer_backward(grad, f"layers.{layer}.", kept[layer], grads)
        table = np.zeros_like(self.w["tok_embeddings.weight"])
        np.add.at(table, inputs.ravel(), grad.reshape(-1, grad.shape[-1]))
        grads["tok_embeddings.weight"] = table
        return loss, grads


# ---- training ----

def learning_rate(config, s):
    """torchtitan v0.2.2, components/lr_scheduler.py: s counts updates from 0."""
    c, training = config["lr_scheduler"], config["training"]
    total = c["total_steps"] if c["total_steps"] > 0 else training["steps"]
    warmup = min(c["warmup_steps"], total)
    decay = total - warmup
    if c["decay_ratio"] >= 0:
        decay = min(round(total * c["decay_ratio"]), decay)
    stable = total + 1 - warmup - decay
    if s < warmup:
        factor = (s + 1) / warmup
    elif s < warmup + stable:
        factor = 1.0
    else:
        p = min((s + 1 - warmup - stable) / decay, 1.0)
        curve = {"linear": 1 - p, "sqrt": 1 - math.sqrt(p),
                 "cosine": (1 + math.cos(math.pi * p)) / 2}
        factor = c["min_lr_factor"] + (1 - c["min_lr_factor"]) * curve[c["decay_type"]]
    return config["optimizer"]["lr"] * factor


class AdamW:
    def __init__(self, model, config):
        self.model, self.config, self.t = model, config, 0
        self.m = {name: np.zeros_like(value) for name, value in model.w.items()}
        self.v = {name: np.zeros_like(value) for name, value in model.w.items()}

    def step(self, grads, norm):
        o, lr = self.config["optimizer"], learning_rate(self.config, self.t)
        scale = min(1.0, self.config["training"]["max_norm"] / (norm + 1e-6))
        self.t += 1
        for name, weight in self.model.w.items():
            grad = grads[name] * scale
            m, v = self.m[name], self.v[name]
            m += (1 - o["beta1"]) * (grad - m)
            v += (1 - o["beta2"]) * (grad * grad - v)
            weight *= 1 - lr * o["weight_decay"]
            denominator = np.sqrt(v / (1 - o["beta2"] ** self.t)) + o["eps"]
            weight -= lr * (m / (1 - o["beta1"] ** self.t)) / denominator


def global_norm(grads):
    return math.sqrt(sum(float((grad.astype(np.float64) ** 2).sum()) for grad in grads.values()))


def train_step(model, optimizer, data, config, step):
    t = config["training"]
    local, batch = t["local_batch_size"], t["global_batch_size"]
    total, sums = 0.0, None
    for first in range(0, batch, local):
        inputs, targets = data.read(step * batch + first, local)
        loss, grads = model.loss_and_gradients(inputs, targets, 1 / (batch * t["seq_len"]))
        total += loss
        sums = grads if sums is None else {name: sums[name] + grads[name] for name in sums}
    norm = global_norm(sums)
    optimizer.step(sums, norm)
    return total / (batch * t["seq_len"]), norm


def open_model(args):
    with open(args.config) as file:
        config = json.load(file)
    heads, kv_heads = HEADS[config["model"]["flavor"]] if args.heads is None else (
        args.heads, args.kv_heads or args.heads)
    return config, Model(read_safetensors(args.weights), heads, kv_heads, np.dtype(args.dtype))


def open_data(args, config):
    return Data(args.tokens, config["training"]["seq_len"], config["debug"]["seed"])


def read_losses(path):
    """metrics.loss_file: {step: (loss, gradient norm)}"""
    with open(path) as file:
        rows = [line.split() for line in file]
    return {int(step): (float.fromhex(loss), float.fromhex(norm)) for step, loss, norm in rows}


def run_train(args):
    config, model = open_model(args)
    data, optimizer = open_data(args, config), AdamW(model, config)
    other = read_losses(args.compare) if args.compare else {}
    worst, compared = [0.0, 0.0], 0
    for step in range(args.steps):
        mine = train_step(model, optimizer, data, config, step)
        if not args.compare:
            print(f"{step + 1} {mine[0]:.17g} {mine[1]:.17g}", flush=True)
        elif step + 1 in other:
            compared += 1
            worst = [max(w, abs(theirs / ours - 1))
                     for w, theirs, ours in zip(worst, other[step + 1], mine)]
    if args.compare:
        print(f"{compared} {worst[0]:.3g} {worst[1]:.3g}")


def run_logits(args):
    config, model = open_model(args)
    if args.ids is not None:
        inputs = np.array([[int(word) for word in args.ids.replace(",", " ").split()]])
    else:
        inputs = open_data(args, config).read(args.sample, 1)[0]
    logits = model.forward(inputs)[0][0]
    if args.compare is None:
        for row in logits:
            print(" ".join(f"{value:.9g}" for value in row))
        return
    other = np.fromfile(args.compare, "<f4").reshape(logits.shape)
    difference = float(np.abs(logits - other).max())
    print(f"{difference:.3g} {difference / float(np.abs(logits).max()):.3g}")


# ---- the reference's own test ----

def random_model(draw):
    C, F, H, K, V, layers = 12, 20, 3, 1, 17, 2
    D = C // H
    shapes = {"tok_embeddings.weight": (V, C), "norm.weight": (C,), "output.weight": (V, C)}
    for layer in range(layers):
        p = f"layers.{layer}."
        shapes.update({p + "attention_norm.weight": (C,), p + "ffn_norm.weight": (C,),
                       p + "attention.wq.weight": (H * D, C), p + "attention.wk.weight": (K * D, C),
                       p + "attention.wv.weight": (K * D, C), p + "attention.wo.weight": (C, C),
                       p + "feed_forward.w1.weight": (F, C), p + "feed_forward.w2.weight": (C, F),
                       p + "feed_forward.w3.weight": (F, C)})
    weights = {name: draw.standard_normal(shape) * 0.5 for name, shape in shapes.items()}
    return Model(weights, H, K, np.float64), V


def worst_gradient(model, inputs, targets, draw):
    """Largest error against central differences, relative to the tensor's largest gradient."""
    _, grads = model.loss_and_gradients(inputs, targets, 1.0)
    worst = 0.0
    for name, weight in model.w.items():
        flat, step = weight.reshape(-1), 1e-5
        for at in draw.choice(flat.size, min(flat.size, 12), replace=False):
            kept = flat[at]
            flat[at] = kept + step
            above = model.loss_and_gradients(inputs, targets, 1.0)[0]
            flat[at] = kept - step
            below = model.loss_and_gradients(inputs, targets, 1.0)[0]
            flat[at] = kept
            error = abs((above - below) / (2 * step) - grads[name].reshape(-1)[at])
            worst = max(worst, error / np.abs(grads[name]).max())
    return worst


def run_self_test():
    draw = np.random.default_rng(5)
    model, V = random_model(draw)
    tokens = draw.integers(0, V, (2, 8))
    worst = worst_gradient(model, tokens[:, :-1], tokens[:, 1:], draw)
    x = draw.standard_normal((1, 6, 2, 8))
    config = {"optimizer": {"lr": 1.0}, "training": {"steps": 10},
              "lr_scheduler": {"total_steps": -1, "warmup_steps": 2, "decay_ratio": -1,
                               "decay_type": "linear", "min_lr_factor": 0.0}}
    rates = [learning_rate(config, s) for s in range(10)]
    logits = model.forward(tokens)[0]
    changed = tokens.copy()
    changed[:, -1] = (changed[:, -1] + 1) % V
    results = [
        ("gradients equal central differences", worst < 1e-6,
         f"largest relative error {worst:.2g}"),
        ("a position does not see the ones after it",
         np.array_equal(model.forward(changed)[0][:, :-1], logits[:, :-1]), ""),
        ("rope turns forth and back", np.allclose(rope(rope(x, 1), -1), x), ""),
        ("Philox gives the published answer",
         philox((0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), (0xa4093822, 0x299f31d0)) ==
         [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1], ""),
        ("the learning rate warms up, then falls without reaching zero",
         np.allclose(rates, [0.5, 1, 1] + [1 - i / 8 for i in range(1, 8)]), str(rates)),
    ]
    print(f"1..{len(results)}")
    for number, (name, passed, remark) in enumerate(results, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {name}")
        if remark:
            print(f"# {remark}")


def main():
    if len(sys.argv) == 1:
        return run_self_test()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "logits"):
        command = commands.add_parser(name)
        command.add_argument("--weights", required=True)
        command.add_argument("--config", required=True)
        command.add_argument("--tokens", required=name == "train")
        command.add_argument("--dtype", choices=("float64", "float32"), default="float64")
        command.add_argument("--heads", type=int)
        command.add_argument("--kv-heads", type=int)
        command.add_argument("--compare")
        if name == "train":
            command.add_argument("--steps", type=int, default=20)
        else:
            command.add_argument("--ids")
            command.add_argument("--sample", type=int, default=0)
    args = parser.parse_args()
    return run_train(args) if args.command == "train" else run_logits(args)


if __name__ == "__main__":
    sys.exit(main())
