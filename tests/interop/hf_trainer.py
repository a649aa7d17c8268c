#!/usr/bin/env python3
"""hf_trainer - Hugging Face's Trainer saves through ckptd and resumes.

Goal: a run that ends in the middle, also by SIGKILL, continues from the newest checkpoint with
every bit of one that was not stopped, through dropout and shuffled data: one process, and two by
DDP, FSDP 1 and FSDP 2; so does one that crosses to our trainer's names and back. Method: tiny
models on the CPU, the real Trainer, a real ckptd.
"""
import json
import multiprocessing
import os
import signal
import sys
from unittest import mock

from lib_dcp import PRELOAD, end, introduce, meeting, start, torch
from lib_frameworks import data, sum_on_gloo
from lib_store import World
from lib_tap import need, run
import numpy
from torch import nn

need("accelerate", "transformers")
from transformers import (LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback,  # noqa: E402
                          TrainingArguments)

import holdfast  # noqa: E402
import holdfast.dcp  # noqa: E402
from holdfast import safetensors_files  # noqa: E402
from holdfast.cross import cross  # noqa: E402
from holdfast.transformers import HoldfastCallback  # noqa: E402

HUGGING_FACE = ("accelerate", "transformers.trainer", "transformers.models.llama.modeling_llama")
FSDP = {"fsdp1": 1, "fsdp2": 2}  # and their versions


def committed(world, name, step):
    """A copied save commits, whatever happens to the processes."""
    with holdfast.Client(world.server, name) as client:
        client.wait(step, timeout=120)


def told_losses(trainer):
    return [(one["step"], one["loss"], one["learning_rate"])
            for one in trainer.state.log_history if "loss" in one]


class Net(nn.Module):
    def __init__(self, buffer="b"):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 2)
        self.register_buffer(buffer, torch.zeros(1))

    def forward(self, x, y):
        out = self.layer(nn.functional.dropout(x, 0.3, self.training))
        return {"loss": nn.functional.mse_loss(out, y), "logits": out}


def small_trainer(world, net, *callbacks):
    arguments = TrainingArguments(os.path.join(world.folder, "hf"), max_steps=12,
                                  per_device_train_batch_size=8, save_strategy="no",
                                  logging_steps=1, learning_rate=0.05, use_cpu=True,
                                  report_to=[], disable_tqdm=True)
    return Trainer(net, arguments, callbacks=list(callbacks),
                   train_dataset=[{"x": x, "y": y} for x, y in data()])


def the_trainer_of_hugging_face_saves_and_resumes(world):
    """Cut at step 7 in its second epoch, it continues at 6: with every bit of an undisturbed run,
    through dropout and shuffled data, from ckptd alone."""
    class Crash(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 7:
                raise InterruptedError

    def train(name, *others):
        keep = HoldfastCallback(name, world.server, every=3, take_over=True)
        net = Net()
        trainer = small_trainer(world, net, keep, *others)
        trainer.train(resume_from_checkpoint=keep.folder(trainer))
        return net, told_losses(trainer)

    net, losses = train("hf-whole")
    try:
        train("hf-cut", Crash())
        raise AssertionError("it was not cut")
    except InterruptedError:
        committed(world, "hf-cut", 6)
    again, rest = train("hf-cut")
    assert torch.equal(net.layer.weight, again.layer.weight)
    losses = [line for line in losses if line[0] != 6]  # logged when the step was saved
    assert losses == rest and len(rest) == 11, (losses, rest)
    with holdfast.Client(world.server, "hf-cut") as client:
        assert [info.step for info in client.list()] == [12, 9, 6, 3]
        assert [info.attempt for info in client.list()] == [2, 2, 1, 1]
    assert not os.path.exists(os.path.join(world.folder, "hf", "checkpoint-12"))


def the_trainer_of_hugging_face_ends_without_checkpoints(world):
    """When saves fail in a row, and at the first that can never succeed."""
    def train(name, buffer, **options):
        keep = HoldfastCallback(name, world.server, every=2, **options)
        trainer = small_trainer(world, Net(buffer), keep)
        try:
            trainer.train()
        except holdfast.HoldfastError as error:
            return trainer.state.global_step, str(error)
        return trainer.state.global_step, ""

    with holdfast.Client(world.server, "hf-held") as holder:
        holder.save(1, {"w": numpy.zeros(3)}).wait()
        step, said = train("hf-held", "b", max_failures=3)
        assert step == 6 and "3 saves in a row" in said and "is being trained" in said, (step, said)
    step, said = train("hf-never", "n" * 200)
    assert step == 2 and "191 characters" in said, (step, said)


def llama_trainer(folder, keep, kind, callback, **options):
    """A Llama of transformers, its embeddings tied, in a Trainer, by DDP, FSDP 1 or 2. Accelerate
    supports FSDP only on accelerators, so here a fake one is reported."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin

    class OnGloo(Trainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            if kind not in FSDP:
                return
            state = self.accelerator.state
            state.device = torch.device("cpu")  # FSDP 1 takes no "cpu:0"
            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    options = {"lr_scheduler_type": "cosine", "warmup_steps": 2, **options}
    arguments = TrainingArguments(
        folder + "-hf", max_steps=8, per_device_train_batch_size=2, save_strategy="no",
        logging_steps=1, learning_rate=0.01, use_cpu=True, report_to=[], disable_tqdm=True,
        fsdp=kind in FSDP, fsdp_config={
            "version": FSDP.get(kind, 2), "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
            "sync_module_states": False},  # that needs an accelerator
        **options)
    torch.manual_seed(1)
    net = LlamaForCausalLM(LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, tie_word_embeddings=True, attention_dropout=0.1))
    rows = torch.randint(0, 40, (20, 12), generator=torch.Generator().manual_seed(5))
    return OnGloo(net, arguments, callbacks=[keep, callback],
                  train_dataset=[{"input_ids": row, "labels": row} for row in rows])


def llama_on(rank, port, folder, server, kind, kill_at, losses_to):
    from torch.distributed.fsdp import FSDPModule

    class Test(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **_):
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    sum_on_gloo(module)

        def on_step_end(self, args, state, control, **_):
            if state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    introduce(rank, 2, port, ACCELERATE_USE_CPU="true")
    keep = HoldfastCallback(os.path.basename(folder), server, every=2, take_over=True)
    trainer = llama_trainer(folder, keep, kind, Test())
    trainer.train(resume_from_checkpoint=keep.folder(trainer))
    is_cut = any(hasattr(one, "to_local") and one.to_local().shape != one.shape
                 for one in trainer.model.parameters())
    is_cut = is_cut or "FullyShardedDataParallel" in type(trainer.model).__name__
    assert is_cut == (kind in FSDP), (kind, type(trainer.model))
    if rank == 0:
        with open(losses_to, "w") as file:
            json.dump(told_losses(trainer), file)


def the_trainer_of_hugging_face_resumes_on_two_processes(world):
    """Killed with -9 at step 5, it continues at 4 with every bit of the losses of an undisturbed
    run, through dropout, whose random states differ between the processes."""

    def losses(name, kind, kill_at=0):
        folder = os.path.join(world.folder, name)
        try:
            with meeting() as port:
                start(llama_on, (port, folder, world.server, kind, kill_at, folder + ".losses"), 2)
        except torch.multiprocessing.ProcessExitedException:
            if not kill_at:
                raise
            committed(world, name, kill_at - 1)
            return None
        with open(folder + ".losses") as file:
            return {step: (loss, rate) for step, loss, rate in json.load(file)}

    for kind in ("ddp", *FSDP):
        whole = losses(f"llama-{kind}", kind)
        losses(f"llama-{kind}-cut", kind, kill_at=5)
        rest = losses(f"llama-{kind}-cut", kind)
        assert sorted(rest) == [1, 2, 3, 5, 6, 7, 8], rest  # 4 is logged after its save
        assert {step: whole[step] for step in rest} == rest, (kind, whole, rest)
        with holdfast.Client(world.server, f"llama-{kind}-cut") as client:
            assert [(info.step, info.world_size) for info in client.list()] == [
                (8, 2), (6, 2), (4, 2), (2, 2)]


def a_checkpoint_of_the_trainer_becomes_a_folder_for_from_pretrained(world):
    keep = HoldfastCallback("pretrained", world.server, every=4)
    trainer = llama_trainer(os.path.join(world.folder, "pretrained"), keep, "alone",
                            TrainerCallback())
    trainer.model.generation_config.eos_token_id = [7, 9]
    trainer.train()
    out = os.path.join(world.folder, "pretrained-out")
    with holdfast.open("pretrained", server=world.server) as found:
        safetensors_files.to_safetensors(found, out, weights_only=True)
    model, about = LlamaForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    want = trainer.model.state_dict()
    assert all(torch.equal(value, want[name]) for name, value in model.state_dict().items())
    assert model.config.tie_word_embeddings and model.generation_config.eos_token_id == [7, 9]


def the_last_step_of_the_trainer_is_saved_as_the_last_of_its_run(world):
    """Though its number is none of the requested ones."""
    keep, last_ones = HoldfastCallback("ends", world.server, every=3), []
    trainer = llama_trainer(os.path.join(world.folder, "ends"), keep, "alone", TrainerCallback())
    with mock.patch.object(holdfast.dcp.Session, "note_last",
                           lambda session: last_ones.append(trainer.state.global_step)):
        trainer.train()
    with holdfast.Client(world.server, "ends") as client:
        assert [info.step for info in client.list()] == [8, 6, 3] and last_ones == [8], last_ones


def a_run_of_the_trainer_crosses_to_our_names_and_back(world):
    """With the losses and the weights of an undisturbed run, to the bit: names, rows, moments,
    counts and the optimizer's groups are those that the Trainer asks for."""
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if self.step == state.global_step:
                control.should_training_stop = True

    def train(name, stop=0):
        keep, end = HoldfastCallback(name, world.server, every=4, take_over=True), Stop()
        end.step = stop
        trainer = llama_trainer(os.path.join(world.folder, name), keep, "alone", end,
                                lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.1)
        for layer in trainer.model.model.layers:  # the random states do not cross
            layer.self_attn.attention_dropout = 0.0
        trainer.train(resume_from_checkpoint=keep.folder(trainer))
        return trainer.model.state_dict(), dict(one[:2] for one in told_losses(trainer))

    weights, losses = train("stays")
    train("goes", 4)
    with holdfast.open("goes@4", server=world.server) as found:
        cross(found, "ours", server=world.server)
        config = {"hf": found.metadata.config["hf"], "lr_scheduler": {
            "warmup_steps": 0, "total_steps": 8, "decay_ratio": 0.0, "decay_type": "linear",
            "min_lr_factor": 0.0}, "optimizer": {
            "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1,
            "no_decay_norms": True}}
    with holdfast.open("ours@4", server=world.server) as found, holdfast.Client(
            world.server, "trained", config=config) as client:  # as our trainer saves it
        client.save(4, {name: found[name][...] for name in found}, found.state).wait()
    with holdfast.open("trained@4", server=world.server) as found:
        cross(found, "back", "huggingface", server=world.server)
    again, rest = train("back")
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    assert {step: losses[step] for step in rest} == rest and set(rest) == {5, 6, 7, 8}, (losses,
                                                                                         rest)


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload([*PRELOAD, *HUGGING_FACE])
    bed = World()
    bed.start("--memory.pool_bytes", "128MiB", "--limits.takeover_ms", "500")
    tests = [the_trainer_of_hugging_face_saves_and_resumes,
             the_trainer_of_hugging_face_ends_without_checkpoints,
             the_trainer_of_hugging_face_resumes_on_two_processes,
             a_checkpoint_of_the_trainer_becomes_a_folder_for_from_pretrained,
             the_last_step_of_the_trainer_is_saved_as_the_last_of_its_run,
             a_run_of_the_trainer_crosses_to_our_names_and_back]
    passed = run([test for test in tests if len(sys.argv) < 2
                  or any(word in test.__name__ for word in sys.argv[1:])], bed)
    bed.close()
    end()
    sys.exit(not passed)
