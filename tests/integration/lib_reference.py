#!/usr/bin/env python3
"""lib_reference - a Llama training step in NumPy that shares no code with the trainer.

    lib_reference.py train|logits --weights W --config C --tokens T --compare F

W: safetensors file with float32 weights of the flavor "tiny" under torchtitan's names (ckpt-cli
export). C: the effective configuration as JSON (job.save_config_file). T: a tokens file, whose
samples have the documented order. F: the trainer's output, its metrics.loss_file or
debug.logits_file. All computation is in float64.

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
import os
import struct
import sys

import lib_tap

lib_tap.need("numpy")
import numpy as np  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../clients/examples"))
from sample_order import sample  # noqa: E402

EPS = 1e-5
THETA = 500000.0
HEADS = 4, 2  # of queries, of keys and values


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


class Data:
    """A tokens file and the order of its samples."""

    def __init__(self, path, seq_len, seed):
        with open(path, "rb") as file:
            raw = file.read()
        magic, version, start, width, _vocab, count = struct.unpack_from("<8sIIIIQ", raw)
        assert magic == b"HFTOKENS" and version == 2, f"{path} is no tokens file"
        kind = {2: "<u2", 4: "<u4"}[width]
        # blocks of 16,384 tokens, each with its planes of bits
        planes = 2 if struct.unpack_from("<I", raw, 140)[0] & 1 else 1
        block = 16384 * width + planes * 2048
        parts = [np.frombuffer(raw, kind, 16384, at) for at in
                 range(start, start + (count + 16383) // 16384 * block, block)]
        self.tokens = np.concatenate(parts)[:count].astype(np.int64)
        self.seq_len, self.num_samples, self.seed = seq_len, (count - 1) // seq_len, seed

    def read(self, first, count):
        starts = [self.seq_len * sample(self.seed, self.num_samples, first + i)
                  for i in range(count)]
        both = np.stack([self.tokens[at:at + self.seq_len + 1] for at in starts])
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
    def __init__(self, weights, heads, kv_heads):
        self.w = {name: value.astype(np.float64) for name, value in weights.items()
                  if not name.startswith("optimizer.")}
        self.heads, self.kv_heads = heads, kv_heads
        self.layers = len([name for name in self.w if name.endswith("attention_norm.weight")])

    def attention(self, n, prefix):
        """n [B,T,C] -> output before wo [B,T,C], and the inputs of the backward."""
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
        """[B,T] -> logits [B,T,V] and the inputs of the backward."""
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


def compare_training(model, data, config, path):
    """How many steps, and the largest relative differences of loss and gradient norm to those of
    the trainer's metrics.loss_file."""
    optimizer, apart = AdamW(model, config), []
    with open(path) as file:
        rows = [line.split() for line in file]
    for step, (number, *theirs) in enumerate(rows):
        assert int(number) == step + 1, number
        mine = train_step(model, optimizer, data, config, step)
        apart.append([abs(float.fromhex(one) / own - 1) for one, own in zip(theirs, mine)])
    return len(apart), *(f"{max(column):.3g}" for column in zip(*apart))


def compare_logits(model, data, _config, path):
    """The largest difference to the raw float32 numbers of a file, which are of sample 0: absolute,
    and relative to the largest logit."""
    logits = model.forward(data.read(0, 1)[0])[0][0]
    difference = float(np.abs(logits - np.fromfile(path, "<f4").reshape(logits.shape)).max())
    return f"{difference:.3g}", f"{difference / float(np.abs(logits).max()):.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("train", "logits"))
    for name in "weights", "config", "tokens", "compare":
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    with open(args.config) as file:
        config = json.load(file)
    model = Model(read_safetensors(args.weights), *HEADS)
    data = Data(args.tokens, config["training"]["seq_len"], config["debug"]["seed"])
    print(*(compare_training if args.what == "train" else compare_logits)(
        model, data, config, args.compare))


if __name__ == "__main__":
    main()
