"""lib_llama - transformers' LlamaForCausalLM beside the trainer: finding, loading, comparing.

A difference is the largest of all elements, relative to the largest element of what is expected;
compare() prints it beside its tolerance, so the figures stay in the output.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../integration"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="0")
from lib_hf import SEQ, need  # noqa: E402

need("torch", "transformers", "tiktoken")
import torch  # noqa: E402
import transformers  # noqa: E402

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
