#!/usr/bin/env python3
"""float8 - training with float8 products compared with PyTorch's float8 types.

Goal: forward and backward of the trainer's float8 products are those of PyTorch's casts. Method:
from the same weights and samples, PyTorch with linear layers whose operands are scaled by a power
of two, cast to torch.float8_e4m3fn (gradients: float8_e5m2, or as configured) and cast back. Each
sample on its own, as the trainer's micro-batches are.

Gradients, a tensor at a time: one step of AdamW with eps = 1 and no decay moves a weight by lr g /
(|g| + 1), so the weights before and after give g. A number that lies between two float8 numbers
follows the last bits of a sum, so some elements differ by a step of float8. The distance of a
tensor (norm of the difference / norm) must be at most GRADIENT, and that of PyTorch's gradients in
fp32 at least APART times as much.

Losses: the first within 1e-6; without float8 it is further away. AdamW's usual first steps follow
the sign of a small gradient, so the later steps drift: 20 losses within 1e-2, norms within 5e-2.
"""
import math

from lib_llama import TINY, compare, load, our_steps, save_random, torch, transformers
from lib_hf import SEQ, cli, main, test
import lib_reference as reference

STEPS, FIRST_LOSS, LOSS, NORM = 20, 1e-6, 1e-2, 5e-2
GRADIENT, APART, LR = 5e-3, 10, 100
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CONVERT = "--model.converters", "quantize.linear.float8"
MADE = {}


def rounded(x, dtype):
    scale = 2.0 ** math.floor(math.log2(torch.finfo(dtype).max / x.abs().max().item()))
    return (x * scale).to(dtype).float() / scale


class Product(torch.autograd.Function):
    of_gradients = E5M2

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return rounded(x, E4M3) @ rounded(weight, E4M3).t()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        g = rounded(gradient, Product.of_gradients)
        return g @ rounded(weight, E4M3), g.flatten(0, -2).t() @ rounded(x, E4M3).flatten(0, -2)


def with_float8(model, others):
    """Not the head, and no layer with a name of `others`."""
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head" and not any(
                part in name for part in others):
            layer.forward = lambda x, layer=layer: Product.apply(x, layer.weight)
    return model


def add_gradients(model, data, step, count):
    """The loss of a step."""
    inputs, targets = (torch.from_numpy(part) for part in data.read(step * count, count))
    total = 0
    for i in range(count):
        loss = torch.nn.functional.cross_entropy(model(inputs[i:i + 1]).logits[0],
                                                 targets[i]) / count
        loss.backward()
        total += loss.item()
    return total


def their_steps(model, bed, config):
    settings, data = config["optimizer"], reference.Data(bed.path("tokens"), SEQ, 0)
    count = config["canonical"]["micro_batches"]
    optimizer = torch.optim.AdamW(model.parameters(), 1.0, (settings["beta1"], settings["beta2"]),
                                  settings["eps"], settings["weight_decay"])
    out = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = add_gradients(model, data, step, count)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config["training"]["max_norm"])
        optimizer.param_groups[0]["lr"] = reference.learning_rate(config, step)
        optimizer.step()
        out.append((total, norm.item()))
    return out


def train(bed, *options, steps=STEPS):
    MADE["store"] = store = bed.fresh("float8.store")
    cli("import", MADE["folder"], "--run", "float8", "--store", store, "--shards", 2)
    return our_steps(bed, store, "float8", MADE["folder"], steps, *options)


def our_gradients(bed, *options):
    """{name: gradient of the first step}, and the configuration."""
    _, config = train(bed, *options, "--optimizer.lr", LR, "--optimizer.eps", 1,
                      "--optimizer.weight_decay", 0, "--training.max_norm", 0, steps=1)
    folder, rate = bed.fresh("after"), reference.learning_rate(config, 0)
    cli("export", "float8@1", "--store", MADE["store"], "--output", folder, "--weights-only",
        "--format", "hf", "--dtype", "fp32")
    before, after = (dict(load(path).named_parameters()) for path in (MADE["folder"], folder))
    moved = {name: ((before[name] - after[name]).double() / rate).detach() for name in before}
    return {name: part / (1 - part.abs()) for name, part in moved.items()}, config


def their_gradients(model, bed, config):
    data = reference.Data(bed.path("tokens"), SEQ, 0)
    add_gradients(model, data, 0, config["canonical"]["micro_batches"])
    return {name: value.grad.double() for name, value in model.named_parameters()}


def compare_gradients(bed, name, others, *options):
    ours, config = our_gradients(bed, *CONVERT, *options)
    theirs = their_gradients(with_float8(load(MADE["folder"]).train(), others), bed, config)
    plain = their_gradients(load(MADE["folder"]).train(), bed, config)
    assert ours.keys() == theirs.keys()

    def distance(of, key):
        return float((of[key] - theirs[key]).norm() / theirs[key].norm())

    worst = max(ours, key=lambda key: distance(ours, key))
    least = min((key for key in ours if key != "lm_head.weight"),
                key=lambda key: distance(plain, key) / distance(ours, key))
    compare(f"{name}: gradient of {worst}", distance(ours, worst), GRADIENT)
    apart = distance(plain, least) / distance(ours, least)
    print(f"# {name}: {least}: {distance(ours, least):.3g}, in fp32 {distance(plain, least):.3g}")
    assert apart >= APART, (least, apart)


def prepare(bed):
    torch.manual_seed(3)
    MADE["folder"] = save_random(bed, transformers.LlamaConfig(
        **TINY, tie_word_embeddings=False, initializer_range=0.1))


def compare_ways(bed, name, others, *options):
    ours, config = train(bed, *CONVERT, *options)
    theirs = their_steps(with_float8(load(MADE["folder"]).train(), others), bed, config)
    compare(f"{name}: loss of the first step", abs(ours[0][0] / theirs[0][0] - 1), FIRST_LOSS)
    for part, (what, most) in enumerate((("loss", LOSS), ("gradient norm", NORM))):
        compare(f"{name}: {what} of {STEPS} steps",
                max(abs(a[part] / b[part] - 1) for a, b in zip(ours, theirs)), most)
    return ours


@test
def products_are_those_of_pytorchs_casts(bed):
    compare_gradients(bed, "all layers", ())
    ours = compare_ways(bed, "all layers", ())
    plain, _ = train(bed)
    away = abs(ours[0][0] / plain[0][0] - 1)
    print(f"# without float8 the first loss is {away:.3g} away")
    assert away > 5 * FIRST_LOSS


@test
def gradients_may_be_of_e4m3(bed):
    Product.of_gradients = E4M3
    options = "--quantize.linear.float8.grad_output_dtype", "float8_e4m3fn"
    compare_gradients(bed, "e4m3 gradients", (), *options)
    compare_ways(bed, "e4m3 gradients", (), *options)
    Product.of_gradients = E5M2


@test
def layers_that_are_named_stay(bed):
    without = ("down_proj",), "--quantize.linear.float8.filter_fqns", "feed_forward.w2"
    compare_gradients(bed, "without w2", *without)
    compare_ways(bed, "without w2", *without)


if __name__ == "__main__":
    main(prepare)
