"""lib_llama - transformers' LlamaForCausalLM compared with the trainer: finding, loading,
comparing.

A difference is the largest of all elements, relative to the largest expected element; compare()
prints it beside its tolerance, so the figures stay in the output. compare_steps() trains a model
from one folder in both; their samples and learning rates are those of lib_reference.py.
"""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="0")
from lib_hf import SEQ, need, read  # noqa: E402

need("torch", "transformers", "tiktoken")
import torch  # noqa: E402
import transformers  # noqa: E402
import lib_reference as reference  # noqa: E402

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(min(2, os.cpu_count()))
print(f"# torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
# Flavor tiny of the trainer, with the 512 tokens and the length of samples of lib_hf.
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": SEQ}


def load(folder, dtype=torch.float32):
    """The model in a folder; every tensor of it was found there, and nothing else was."""
    model, info = transformers.LlamaForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def rope_theta(config):
    """Version 5 keeps it among the rope_parameters."""
    theta = getattr(config, "rope_theta", None)
    return theta if theta is not None else config.rope_parameters["rope_theta"]


def difference(got, want):
    got, want = (torch.as_tensor(part).double() for part in (got, want))
    assert got.shape == want.shape, (got.shape, want.shape)
    return float((got - want).abs().max() / want.abs().max())


def compare(what, figure, tolerance):
    print(f"# {what}: {figure:.3g} (at most {tolerance:g})", flush=True)
    assert figure <= tolerance, f"{what}: {figure:g} is more than {tolerance:g}"


def save_random(bed, config, name="made"):
    """The folder of a model with random weights, norms as well."""
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "norm" in key:
                value.add_(0.2 * torch.randn_like(value))
    folder = bed.fresh(name)
    model.save_pretrained(folder)
    return folder


def their_steps(model, bed, config, steps):
    """[(loss, gradient norm)] of PyTorch's steps, which change the model."""
    settings, data = config["optimizer"], reference.Data(bed.path("tokens"), SEQ, 0)
    count = config["canonical"]["micro_batches"] * config["training"]["local_batch_size"]
    make = getattr(torch.optim, settings["name"])
    optimizer = make(model.parameters(), 1.0, (settings["beta1"], settings["beta2"]),
                     settings["eps"], settings["weight_decay"])
    out = []
    for step in range(steps):
        inputs, targets = (torch.from_numpy(part) for part in data.read(step * count, count))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1),
                                                 targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config["training"]["max_norm"])
        optimizer.param_groups[0]["lr"] = reference.learning_rate(config, step)
        optimizer.step()
        out.append((loss.item(), norm.item()))
    return out


def our_steps(bed, store, run, folder, steps, *options):
    """[(loss, gradient norm)] of the trainer's, and the configuration that it used."""
    lines = bed.train(store, run, steps, "--model.config", folder, "--job.dump_folder", bed.root,
                      "--job.save_config_file", "config.json", *options)
    config = json.loads(read(bed.path("config.json")))
    return [tuple(map(float.fromhex, line.split()[1:])) for line in lines if line], config


def compare_losses(name, ours, theirs, first, most):
    """`first`: tolerance of the first loss; `most`: of each loss and gradient norm."""
    assert len(ours) == len(theirs)
    compare(f"{name}: loss of the first step", abs(ours[0][0] / theirs[0][0] - 1), first)
    for part, what in enumerate(("loss", "gradient norm")):
        compare(f"{name}: {what} of {len(ours)} steps",
                max(abs(a[part] / b[part] - 1) for a, b in zip(ours, theirs)), most)


def compare_steps(bed, store, name, folder, steps, first, most):
    """The model that PyTorch trained."""
    ours, config = our_steps(bed, store, "shape", folder, steps)
    model = load(folder).train()
    compare_losses(name, ours, their_steps(model, bed, config, steps), first, most)
    return model
