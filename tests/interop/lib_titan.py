"""lib_titan - torchtitan's own Trainer on the CPU, on the trainer's samples, for crossing.py.

torchtitan takes the accelerator that it finds at import, CUDA where it finds none; here it is given
the CPU instead, gloo, and attention without masks. Everything else is torchtitan's: Trainer, Llama,
parallelize, optimizers, schedulers, loss, checkpoint manager. train() runs ranks as processes and
returns the losses; the samples and their order are those of our trainer. Ranks are forked from a
server that has imported all of it: on a busy machine each import takes a minute.
"""
import multiprocessing
import os
import sys
import tempfile
import warnings

sys.dont_write_bytecode = True
import lib_dcp  # noqa: E402
from lib_tap import need  # noqa: E402
import torch  # noqa: E402

need("torchtitan.tools.utils")
import torchtitan.tools.utils as tools  # noqa: E402

multiprocessing.set_forkserver_preload([*lib_dcp.PRELOAD, "lib_titan"])

SEQ, VOCAB, DIM, HIDDEN, HEADS, KV_HEADS, LAYERS = 64, 512, 64, 192, 4, 2, 2  # flavor tiny
BATCH = 2  # sequences of a step


class NoMemoryMonitor:
    """torchtitan asks CUDA for memory figures, which it prints."""
    device_name = "cpu"

    def get_peak_stats(self):
        from torchtitan.components.metrics import DeviceMemStats

        return DeviceMemStats(*[0] * 6)

    def reset_peak_stats(self):
        pass


def use_the_cpu():
    """Before the other modules of torchtitan are imported, which take the device from this one."""
    tools.device_type, tools.device_module = "cpu", torch.cpu
    os.environ.setdefault("LOCAL_RANK", "0")
    tools.get_local_device = lambda: torch.device("cpu")
    from torchtitan.components import metrics
    from torchtitan.distributed import utils

    utils.set_pg_timeouts = lambda **_: None  # it asks CUDA for a device's number
    metrics.build_device_memory_monitor = NoMemoryMonitor


use_the_cpu()
from torchtitan.models import llama3  # noqa: E402
import torchtitan.trainer  # noqa: E402,F401 - for the ranks


def parallelize(model, **how):
    """torchtitan's, with the sums that gloo has."""
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.llama3 import parallelize_llama

    model = parallelize_llama(model, **how)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def model_spec():
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention

    layers = llama3._build_llama3_layers(
        n_layers=LAYERS, dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS, hidden_dim=HIDDEN,
        rope=ComplexRoPE.Config(dim=DIM // HEADS, max_seq_len=SEQ, theta=500000.0),
        attn_backend="varlen")
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config = llama3.Llama3Model.Config(
        dim=DIM, vocab_size=VOCAB, layers=layers,
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=DIM,
                                        param_init=llama3._EMBEDDING_INIT),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCAB,
                              param_init=llama3._output_linear_init(DIM)))
    spec = llama3.model_registry("debugmodel")
    spec.model, spec.parallelize_fn = config, parallelize
    return spec


def make_config(tokens, checkpoint, steps, folder, mesh, **more):
    """torchtitan's configuration; `mesh` are fields of its ParallelismConfig."""
    import dataclasses

    from torchtitan.components import loss, optimizer, tokenizer
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
    from torchtitan.trainer import Trainer
    import lib_reference as reference

    class NoTokenizer(tokenizer.BaseTokenizer):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(tokenizer.BaseTokenizer.Config):
            pass

        def __init__(self, config, **_):
            super().__init__()

        def encode(self, *_, **__):
            raise NotImplementedError("the samples are tokens")

        decode = encode

        def get_vocab_size(self):
            return VOCAB

    class Samples(torch.utils.data.IterableDataset):
        """This rank's share of each step's samples, from a place that is saved."""

        def __init__(self, rank, ranks):
            self.data, self.rank, self.share = reference.Data(tokens, SEQ, 0), rank, BATCH // ranks
            self.step = more.get("skip_steps", 0)

        def __iter__(self):
            while True:
                inputs, targets = self.data.read(self.step * BATCH + self.rank * self.share,
                                                 self.share)
                self.step += 1
                for one, other in zip(inputs, targets):
                    yield {"input": torch.from_numpy(one)}, torch.from_numpy(other)

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    class Loader(ParallelAwareDataloader):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(ParallelAwareDataloader.Config):
            pass

        def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **_):
            super().__init__(Samples(dp_rank, dp_world_size), dp_rank, dp_world_size,
                             batch_size=local_batch_size)

    ranks = mesh.get("data_parallel_shard_degree", 1) * mesh.get("data_parallel_replicate_degree",
                                                                 1)
    return Trainer.Config(
        model_spec=model_spec(), dump_folder=folder,
        loss=loss.CrossEntropyLoss.Config(global_vocab_size=VOCAB),
        tokenizer=NoTokenizer.Config(), dataloader=Loader.Config(),
        optimizer=dataclasses.replace(optimizer.default_adamw(lr=8e-4), implementation="for-loop"),
        lr_scheduler=optimizer.LRSchedulersContainer.Config(warmup_steps=2, total_steps=10),
        training=TrainingConfig(local_batch_size=BATCH // ranks, seq_len=SEQ, steps=steps,
                                mixed_precision_param="float32", disable_cuda_graphs=True),
        metrics=MetricsProcessor.Config(log_freq=1), debug=DebugConfig(seed=7),
        activation_checkpoint=None,
        parallelism=ParallelismConfig(**mesh), checkpoint=checkpoint())


def _rank(rank, world, port, out, make):
    lib_dcp.introduce(rank, world, port)
    warnings.simplefilter("ignore")
    losses = []
    from torchtitan.components.metrics import MetricsProcessor

    MetricsProcessor.log = lambda self, step, loss, *rest, **more: losses.append((step, loss))
    trainer = make().build()
    trainer.train()
    trainer.close()
    if rank == 0:
        torch.save(losses, out)
    torch.distributed.destroy_process_group()


def train(make, world=2):
    """[(step, loss)] of make().build().train() on `world` ranks."""
    with tempfile.TemporaryDirectory(prefix="titan-") as folder, lib_dcp.meeting() as port:
        out = os.path.join(folder, "losses")
        lib_dcp.start(_rank, (world, port, out, make), world)
        return torch.load(out, weights_only=True)
