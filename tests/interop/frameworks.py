#!/usr/bin/env python3
"""frameworks - Lightning and Accelerate save through ckptd and resume; hf_trainer.py: the Trainer.

Goal: a run that was saved by the plug-in resumes with the weights of a run that was never stopped;
none of the frameworks' own files is needed. Method: tiny models on the CPU, the real Trainers, a
real ckptd.
"""
import os
import sys
from unittest import mock

from lib_dcp import end, introduce, meeting, start, torch
from lib_frameworks import data, sum_on_gloo
from lib_store import World
from lib_tap import need, run
from torch import nn

need("accelerate", "lightning")
from accelerate import (Accelerator, DistributedType,  # noqa: E402
                        FullyShardedDataParallelPlugin)
import lightning  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import holdfast  # noqa: E402
import holdfast.dcp  # noqa: E402
from holdfast.accelerate import HoldfastState  # noqa: E402
from holdfast.lightning import HoldfastIO, HoldfastStrategy  # noqa: E402

WORDS = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False,
         "accelerator": "cpu", "devices": 1, "num_sanity_val_steps": 0}


def lightning_saves_and_resumes(world):
    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(6, 2)

        def training_step(self, batch, _):
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    def fit(steps, name, ckpt=None):
        io = HoldfastIO(name, world.server, take_over=True)
        saver = ModelCheckpoint(dirpath=os.path.join(world.folder, "pl"), filename="{step}",
                                every_n_train_steps=8, save_top_k=-1)
        net = Net()
        loader = torch.utils.data.DataLoader(data(), batch_size=4)
        lightning.Trainer(max_steps=steps, max_epochs=-1, plugins=[io], callbacks=[saver],
                          **WORDS).fit(net, loader, ckpt_path=ckpt)
        io.teardown()
        return net

    whole = fit(16, "pl-whole")
    fit(8, "pl-cut")  # an epoch: a DataLoader of Lightning begins at one
    assert not os.path.exists(os.path.join(world.folder, "pl", "step=8.ckpt"))
    again = fit(16, "pl-cut", os.path.join(world.folder, "pl", "step=8.ckpt"))
    assert torch.equal(whole.layer.weight, again.layer.weight)
    with holdfast.open("pl-cut@16", server=world.server) as found:
        assert torch.equal(found["state_dict.layer.weight"].torch(), again.layer.weight)


def accelerate_saves_and_resumes(world):
    def made():
        torch.manual_seed(1)
        net = nn.Linear(6, 2)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        accelerator = Accelerator(cpu=True)
        net, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)
        return accelerator, net, optimizer, schedule

    def train(parts, rows):
        accelerator, net, optimizer, schedule = parts
        for x, y in rows:
            accelerator.backward(nn.functional.mse_loss(net(x), y))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    whole = made()
    keep = HoldfastState(whole[0], "acc", world.server, take_over=True)
    assert keep.load() is None  # a first start
    train(whole, data()[:4])
    folder = os.path.join(world.folder, "checkpoint_4")
    whole[0].save_state(folder)
    assert not [name for name in os.listdir(folder) if name.startswith("model")], folder
    train(whole, data()[4:8])
    keep.close()
    again = made()
    keep = HoldfastState(again[0], "acc", world.server, take_over=True)
    assert keep.load() == 4
    train(again, data()[4:8])
    assert torch.equal(whole[1].weight, again[1].weight)
    assert whole[3].get_last_lr() == again[3].get_last_lr()
    keep.close()


def compare(rank, weight, folder, reference):
    """The weight of a run that was not stopped is kept for one that was."""
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    if reference is None:
        torch.save(weight, folder + f".{rank}")
    else:
        assert torch.equal(weight, torch.load(f"{reference}.{rank}")), (rank, weight)


def twice(world, name, task, *more):
    """A whole run of two processes, and one that continues from the first one's checkpoint."""
    folder = os.path.join(world.folder, name)
    for goes_on, reference in ((False, None), (True, folder)):
        with meeting() as port:
            start(task, (port, folder, world.server, goes_on, reference, *more), 2)
    assert torch.equal(torch.load(folder + ".0"), torch.load(folder + ".1"))


def lightning_strategy(kind, server):
    return HoldfastStrategy(f"pl-{kind}", server, take_over=True,
                            data_parallel_size=2 if kind == "fsdp2" else 1,
                            tensor_parallel_size=2 if kind == "tp" else 1)


def sharded_lightning_on(rank, port, folder, server, goes_on, reference, kind):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)
            self.out = nn.Linear(4, 2)
            self.is_cut = False

        def configure_model(self):
            if self.is_cut:
                return
            self.is_cut = True
            if kind == "tp":
                parallelize_module(self, self.device_mesh["tensor_parallel"],
                                   {"layer": ColwiseParallel(), "out": RowwiseParallel()})
            for layer in (self.layer, self.out) if kind == "fsdp2" else ():
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
                sum_on_gloo(layer)

        def training_step(self, batch, _):
            return nn.functional.mse_loss(self.out(self.layer(batch[0])), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    introduce(rank, 2, port)
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    net = Net()
    options = {**WORDS, "devices": 2, "strategy": lightning_strategy(kind, server),
               "callbacks": [saver]}
    rows = 8 if kind == "tp" else 4  # an epoch of 4 steps: a DataLoader of Lightning begins at one
    trainer, last_ones = lightning.Trainer(max_steps=8, max_epochs=-1, **options), []
    with mock.patch.object(holdfast.dcp.Session, "note_last",
                           lambda session: last_ones.append(trainer.global_step)):
        trainer.fit(net, torch.utils.data.DataLoader(data(), batch_size=rows),
                    ckpt_path=os.path.join(folder, "step=4.ckpt") if goes_on else None)
    assert last_ones == [8], last_ones
    compare(rank, net.layer.weight.detach(), folder, reference)
    assert net.layer.weight.to_local().shape == (2, 6)
    assert not os.listdir(folder)


def lightning_of_sharded_processes_resumes(world):
    for kind in ("fsdp2", "tp"):
        os.mkdir(os.path.join(world.folder, f"pl-{kind}"))
        twice(world, f"pl-{kind}", sharded_lightning_on, kind)
        with holdfast.Client(world.server, f"pl-{kind}") as client:
            assert [(info.step, info.world_size) for info in client.list()][:2] == [(8, 2), (8, 2)]


def accelerator_of_shards():
    """FSDP2 of Accelerate, which supports only accelerators: here a fake one is reported."""
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False)
    return accelerator


def accelerate_on(rank, port, folder, server, goes_on, reference, is_sharded):
    """One of two processes, whose data differ, on gloo, as `accelerate launch --cpu` starts."""
    introduce(rank, 2, port, ACCELERATE_USE_CPU="true")
    net = nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    accelerator = accelerator_of_shards() if is_sharded else Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    net, optimizer = accelerator.prepare(net, optimizer)
    if is_sharded:
        assert net.weight.to_local().shape == (1, 6)
        sum_on_gloo(net)
    keep = HoldfastState(accelerator, os.path.basename(folder), server, take_over=True)
    loaded = 3 if goes_on else None
    assert keep.load() == loaded
    for step in range(loaded or 0, 6):
        x, y = data()[2 * step + rank]
        accelerator.backward(nn.functional.mse_loss(net(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == 3 and is_sharded:
            keep.save(3)
        elif step + 1 == 3:
            accelerator.save_state(os.path.join(folder, "checkpoint_3"))
    compare(rank, accelerator.unwrap_model(net).weight.detach(), folder, reference)
    keep.close()
    torch.distributed.destroy_process_group()


def accelerate_of_two_processes_resumes(world):
    for name, is_sharded in (("acc2", False), ("acc-fsdp", True)):
        twice(world, name, accelerate_on, is_sharded)  # the second begins at step 3
        with holdfast.Client(world.server, name) as client:
            assert client.list()[0].world_size == 2 and client.list()[0].step == 3


if __name__ == "__main__":
    bed = World()
    bed.start("--memory.pool_bytes", "128MiB", "--limits.takeover_ms", "500")
    tests = [lightning_saves_and_resumes, lightning_of_sharded_processes_resumes,
             accelerate_saves_and_resumes, accelerate_of_two_processes_resumes]
    passed = run([test for test in tests if len(sys.argv) < 2
                  or any(word in test.__name__ for word in sys.argv[1:])], bed)
    bed.close()
    end()
    sys.exit(not passed)
