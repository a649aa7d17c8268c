#!/usr/bin/env python3
"""step - a model made in transformers, imported, trained one step, exported: PyTorch's, both ways.

Goal: `import` reads the files of save_pretrained, to the bit; one optimizer step of the trainer in
fp32 equals PyTorch's clip_grad_norm_ and AdamW on the same batch; the export after it loads in
transformers with equal parameters. Method: LlamaForCausalLM with random weights (norms as well),
grouped key heads, tied and not, saved in one file or in several. The batch is the trainer's first
(lib_reference.py knows its samples and the learning rate). Tolerances, relative to the largest
element of a tensor unless stated otherwise: loss and gradient norm 1e-6; first moments, which after
one step are the clipped gradients times 1 - beta1, 1e-5, second moments 2e-5. Parameters, in
learning rates plus two units in the last place: 1e-5 where PyTorch's AdamW gets our gradients; 1e-3
where everything is PyTorch's, and the clipped gradient is zero or above 1e-6. AdamW's first step is
g / (|g| + eps): of a gradient of a few eps it follows the last bits of a sum, so the smaller ones,
at most 1 % of all, are left to the first rule.
"""
import copy
import json

from lib_llama import TINY, compare, difference, load, torch, transformers
from lib_hf import bits_of_file, bits_of_folder, cli, export, main, read, samples, test, weights_of
import numpy
import lib_reference as reference

LOSS, FIRST_MOMENT, SECOND_MOMENT = 1e-6, 1e-5, 2e-5
UPDATE, UPDATE_OF_OURS, ROUNDING = 1e-3, 1e-5, 2 ** -22
SMALL_GRADIENT, SMALL_GRADIENTS_MOST = 1e-6, 0.01
NAMES = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
LAYER = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
         "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
         "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
         "feed_forward.w3": "mlp.up_proj"}
HEAD_DIM = TINY["hidden_size"] // TINY["num_attention_heads"]


def their_form(ours):
    """{our name: bits} as {their name: tensor}: other names, and the halves of a head's rows."""
    out = {}
    for name, (_, data, shape) in ours.items():
        array = torch.from_numpy(numpy.frombuffer(data, numpy.float32).reshape(shape).copy())
        name = name.removesuffix(".weight")
        if name in NAMES:
            out[NAMES[name] + ".weight"] = array
            continue
        _, layer, part = name.split(".", 2)
        if part in ("attention.wq", "attention.wk"):
            array = array.reshape(-1, HEAD_DIM // 2, 2, shape[1]).transpose(1, 2).reshape(shape)
        out[f"model.layers.{layer}.{LAYER[part]}.weight"] = array
    return out


def moments(bits, name):
    prefix = f"optimizer.{name}."
    return their_form({key[len(prefix):]: bits[key] for key in bits if key.startswith(prefix)})


def make(bed, name, tied, dtype=torch.float32, **options):
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**TINY, tie_word_embeddings=tied, initializer_range=0.1)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "norm" in key:
                value.add_(0.2 * torch.randn_like(value))
    folder = bed.fresh(name)
    model.to(dtype).save_pretrained(folder, **options)
    return folder


def adamw(model, config, rate):
    """PyTorch's step with the present gradients; its state, by name."""
    o, parameters = config["optimizer"], dict(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), rate, (o["beta1"], o["beta2"]), o["eps"],
                                  o["weight_decay"])
    optimizer.step()
    return {name: optimizer.state[value] for name, value in parameters.items()}


def backward(model, bed, config):
    """Leaves clipped gradients in the model; the loss, and the norm before clipping."""
    count = config["canonical"]["micro_batches"] * config["training"]["local_batch_size"]
    inputs, targets = (torch.from_numpy(part) for part in samples(bed, count))
    loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config["training"]["max_norm"])
    return loss.item(), norm.item()


def our_step(bed, store, name, folder):
    """The configuration, the loss and the norm."""
    line = bed.train(store, name, 1, "--model.config", folder, "--job.dump_folder", bed.root,
                     "--job.save_config_file", "config.json")[0].split()
    assert line[0] == "1", line
    return json.loads(read(bed.path("config.json"))), *map(float.fromhex, line[1:])


def compare_moments(bed, store, name, state):
    """Our first moments."""
    cli("export", f"{name}@1", "--store", store, "--output", bed.path("all"), "--force")
    bits = bits_of_file(bed.path("all"))
    for moment, tolerance in (("exp_avg_sq", SECOND_MOMENT), ("exp_avg", FIRST_MOMENT)):
        ours = moments(bits, moment)
        assert set(ours) == set(state), set(ours) ^ set(state)
        compare(f"{name}: {moment}",
                max(difference(ours[key], state[key][moment]) for key in state), tolerance)
    return ours


def compare_parameters(what, got, want, rate, tolerance, counts):
    """`counts`: {name: mask of those that are compared}."""
    got, worst = dict(got.named_parameters()), 0.0
    assert set(got) == {name for name, _ in want.named_parameters()}
    for name, value in want.named_parameters():
        off = (got[name] - value).abs() - ROUNDING * value.abs()
        worst = max(worst, (off.clamp(min=0) * counts[name]).max().item() / rate)
    compare(what, worst, tolerance)


@torch.no_grad()
def moved(before, after):
    return max((a - b).abs().max().item()
               for a, b in zip(before.parameters(), after.parameters()))


def compare_step(bed, store, name, folder, model, **their_settings):
    before, given_ours = copy.deepcopy(model), copy.deepcopy(model)
    config, loss, norm = our_step(bed, store, name, folder)
    config["optimizer"].update(their_settings)
    rate = reference.learning_rate(config, 0)
    print(f"# {name}: loss {loss:.7g}, gradient norm {norm:.7g}, learning rate {rate:g}")
    assert norm > config["training"]["max_norm"], "nothing was clipped"
    their_loss, their_norm = backward(model, bed, config)
    compare(f"{name}: loss", abs(loss / their_loss - 1), LOSS)
    compare(f"{name}: gradient norm", abs(norm / their_norm - 1), LOSS)
    ours = compare_moments(bed, store, name, adamw(model, config, rate))
    for key, value in given_ours.named_parameters():
        value.grad = ours[key] / (1 - config["optimizer"]["beta1"])
    adamw(given_ours, config, rate)
    after = load(export(bed, store, f"{name}@1", name + ".after"))
    with torch.no_grad():
        every = {key: torch.ones_like(value) for key, value in after.named_parameters()}
        compare_parameters(f"{name}: parameters, PyTorch's AdamW on our gradients", after,
                           given_ours, rate, UPDATE_OF_OURS, every)
        large = {key: (value.grad == 0) | (value.grad.abs() >= SMALL_GRADIENT)
                 for key, value in model.named_parameters()}
        compare_parameters(f"{name}: parameters, all PyTorch's", after, model, rate, UPDATE, large)
        count = sum(mask.numel() for mask in large.values())
        compare(f"{name}: part of the gradients below {SMALL_GRADIENT:g}",
                1 - sum(int(mask.sum()) for mask in large.values()) / count, SMALL_GRADIENTS_MOST)
    assert moved(before, after) > 0.5 * rate, "the step moved nothing"


def check_bits(bed, store, checkpoint, folder):
    """transformers loads the checkpoint's values, by an independent conversion."""
    want = their_form(weights_of(bed, store, checkpoint))
    for name, value in load(folder).named_parameters():
        assert torch.equal(value, want[name]), name


def imported(bed, name, folder, shards):
    store = bed.fresh(name + ".store")
    cli("import", folder, "--run", name, "--store", store, "--shards", shards)
    return store


@test
def an_untied_model_is_imported_and_trained_as_pytorch_trains_it(bed):
    folder = make(bed, "untied.made", False)
    store = imported(bed, "untied", folder, 1)
    check_bits(bed, store, "untied@0", folder)
    back = export(bed, store, "untied@0", "untied.back")
    assert bits_of_folder(back) == bits_of_folder(folder)
    compare_step(bed, store, "untied", folder, load(folder))
    check_bits(bed, store, "untied@1", bed.path("untied.after"))


@test
def a_tied_model_in_several_files_is_imported_and_trained_tied(bed):
    folder = make(bed, "tied.made", True, max_shard_size="64KB")
    assert "lm_head.weight" not in bits_of_folder(folder)
    store = imported(bed, "tied", folder, 3)
    check_bits(bed, store, "tied@0", folder)
    back = export(bed, store, "tied@0", "tied.back")
    assert bits_of_folder(back) == bits_of_folder(folder)
    assert load(back).config.tie_word_embeddings is True
    compare_step(bed, store, "tied", folder, load(folder))
    check_bits(bed, store, "tied@1", bed.path("tied.after"))


@test
def a_model_saved_in_halves_is_imported_exactly(bed):
    for dtype in (torch.bfloat16, torch.float16):
        folder = make(bed, "halves.made", False, dtype)
        assert load(folder, "auto").dtype == dtype
        check_bits(bed, imported(bed, "halves", folder, 2), "halves@0", folder)


@test
def another_weight_or_setting_of_the_optimizer_is_noticed(bed):
    other = load(bed.path("untied.made"))
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[0, 0] += 0.1
    for model, what, settings in ((other, "loss", {}),
                                  (None, "our gradients", {"eps": 2e-8}),
                                  (None, "our gradients", {"weight_decay": 0.101})):
        store = imported(bed, "other", bed.path("untied.made"), 1)
        try:
            folder = bed.path("untied.made")
            compare_step(bed, store, "other", folder, model or load(folder), **settings)
        except AssertionError as error:
            assert what in str(error) and "is more than" in str(error), error
        else:
            raise AssertionError(f"not noticed: {settings or 'a weight that differs by a tenth'}")


if __name__ == "__main__":
    main(lambda bed: None)
