#!/usr/bin/env python3
"""shapes - Llamas of eight shapes are imported, trained as PyTorch trains them, and exported again.

Goal: a model that transformers saved is imported, computes the logits of transformers, and is
trained for 20 steps as PyTorch trains it. The export after them loads in transformers and computes
the trainer's logits. Untrained tensors come back bit by bit. Method: LlamaForCausalLM with random
weights (norms as well) in each shape; the trainer takes the shape from the folder's config.json.
Its samples and learning rates are those of lib_reference.py. Tolerances: logits 1e-5 of the
largest; loss of the first step 1e-6; loss and gradient norm of each of 20 steps 1e-4, as
numerics.sh has them; and parameters, whose distance from PyTorch's after the steps is at most a
hundredth of their distance from where they began. A model without the features of its shape fails
these, as the logits show.
"""
import copy

from lib_llama import compare, compare_steps, difference, load, save_random, torch, transformers
from lib_hf import SEQ, bits_of_folder, cli, export, main, samples, test
import numpy

STEPS, LOGITS, FIRST_LOSS, LOSS, DISTANCE = 20, 1e-5, 1e-6, 1e-4, 1e-2
BASE = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": SEQ, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
# Name: settings, rotary base, scaling, and the feature that distinguishes the model.
SHAPES = {
    "multi-head, theta 10000, eps 1e-6": (
        {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}, 10000.0, None, {"rope_theta": 500000.0}),
    "grouped queries with llama3 scaling": ({}, 500000.0, LLAMA3, {"rope_scaling": "none"}),
    "linear scaling": (
        {}, 10000.0, {"rope_type": "linear", "factor": 4.0}, {"rope_factor": 2.0}),
    "tied": ({"tie_word_embeddings": True}, 500000.0, None, {"rope_theta": 10000.0}),
    "heads wider than the model": ({"head_dim": 24}, 500000.0, None, {"rope_theta": 10000.0}),
    "the Llama 2 form": (
        {"num_key_value_heads": 4, "intermediate_size": 192, "hidden_size": 96, "head_dim": None,
         "num_attention_heads": 4}, 10000.0, None, {"norm_eps": 1e-2}),
    "padded vocabulary": ({"vocab_size": 608}, 500000.0, None, {"norm_eps": 1e-2}),
    "one key/value head": ({"num_key_value_heads": 1}, 20000.0, None, {"rope_theta": 500000.0}),
}


def make(bed, name):
    changes, theta, scaling, _ = SHAPES[name]
    torch.manual_seed(11)
    rope = dict(scaling or {"rope_type": "default"}, rope_theta=theta)
    config = transformers.LlamaConfig(**{**BASE, **changes}, initializer_range=0.1,
                                      rope_theta=theta, rope_parameters=rope)
    return save_random(bed, config)


def our_logits(bed, store, folder, steps, *options):
    bed.train(store, "shape", steps, "--model.config", folder, "--debug.logits_file",
              bed.path("logits"), *options)
    return torch.from_numpy(numpy.fromfile(bed.path("logits"), numpy.float32).reshape(SEQ, -1))


def their_logits(model, bed):
    with torch.no_grad():
        return model(torch.from_numpy(samples(bed, 1)[0])).logits[0].float()


@torch.no_grad()
def compare_parameters(name, before, ours, theirs):
    ours, theirs = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert set(ours) == set(theirs)
    off = sum((ours[key] - theirs[key]).square().sum().item() for key in ours) ** 0.5
    way = sum((theirs[key] - value).square().sum().item()
              for key, value in before.named_parameters()) ** 0.5
    compare(f"{name}: distance from PyTorch's parameters, in the way of {STEPS} steps",
            off / way, DISTANCE)


def go_round(bed, name):
    folder = make(bed, name)
    before, store = load(folder), bed.fresh("shape.store")
    cli("import", folder, "--run", "shape", "--store", store, "--shards", 2)
    back = export(bed, store, "shape@0", "back")
    assert bits_of_folder(back) == bits_of_folder(folder), "an untrained model came back changed"
    compare(f"{name}: logits of the export", difference(their_logits(load(back), bed),
                                                        their_logits(before, bed)), 0)
    first = our_logits(bed, store, folder, STEPS)
    compare(f"{name}: logits", difference(first, their_logits(before, bed)), LOGITS)
    trained = compare_steps(bed, store, name, folder, STEPS, FIRST_LOSS, LOSS)
    after = load(export(bed, store, f"shape@{STEPS}", "after"))
    compare(f"{name}: logits after {STEPS} steps",
            difference(our_logits(bed, store, folder, STEPS), their_logits(after, bed)), LOGITS)
    compare_parameters(name, before, after, trained)


def another_model(bed, name, changes):
    """By how much the logits of transformers move when the shape changes."""
    model = load(make(bed, name))
    config = copy.deepcopy(model.config)
    rope = dict(config.rope_parameters)
    rope.update({"rope_theta": changes.get("rope_theta", rope["rope_theta"]),
                 "factor": changes.get("rope_factor", rope.get("factor"))})
    if changes.get("rope_scaling") == "none":
        rope = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    config.rope_parameters = rope
    config.rms_norm_eps = changes.get("norm_eps", config.rms_norm_eps)
    other = transformers.LlamaForCausalLM(config)
    other.load_state_dict(model.state_dict())
    return difference(their_logits(other.eval(), bed), their_logits(model, bed))


for shape in SHAPES:
    def check(bed, shape=shape):
        go_round(bed, shape)
        changes = SHAPES[shape][3]
        seen = another_model(bed, shape, changes)
        print(f"# {shape}: {changes} moves the logits by {seen:.2g} of the largest")
        assert seen > 100 * LOGITS, "the comparison does not see the shape"
        assert another_model(bed, shape, {}) == 0
    check.__name__ = "a_model_of_this_shape_goes_round: " + shape
    test(check)


if __name__ == "__main__":
    main(lambda bed: None)
