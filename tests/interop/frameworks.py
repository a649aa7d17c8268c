#!/usr/bin/env python3
"""frameworks - Lightning, Hugging Face's Trainer and Accelerate save through ckptd and resume.

Goal: a run that was saved by the plug-in goes on from it with the weights of a run that was never
stopped; no file of theirs is needed. Method: tiny models on the CPU, the real Trainers, a real
ckptd. What is not installed is skipped and named.
"""
import os
import sys

from lib_dcp import torch
from lib_store import World
from lib_tap import Skip, run
from torch import nn

import holdfast

WORDS = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False,
         "accelerator": "cpu", "devices": 1, "num_sanity_val_steps": 0}


def data():
    generator = torch.Generator().manual_seed(4)
    return [(torch.randn(6, generator=generator), torch.randn(2, generator=generator))
            for _ in range(32)]


def lightning_saves_and_resumes(world):
    try:
        import lightning
        from lightning.pytorch.callbacks import ModelCheckpoint
    except ImportError as missing:
        raise Skip(missing) from None
    from holdfast.lightning import HoldfastIO

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


def the_trainer_of_hugging_face_saves_and_resumes(world):
    try:
        import accelerate  # noqa: F401 - the Trainer needs it
        from transformers import Trainer, TrainingArguments
    except ImportError as missing:
        raise Skip(missing) from None
    from holdfast.transformers import HoldfastCallback

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(6, 2)

        def forward(self, x, y):
            out = self.layer(x)
            return {"loss": nn.functional.mse_loss(out, y), "logits": out}

    def train(steps, resume):
        call = HoldfastCallback("hf", world.server, resume=resume, take_over=True)
        arguments = TrainingArguments(os.path.join(world.folder, "hf"), max_steps=steps,
                                      save_steps=4, learning_rate=0.05, use_cpu=True,
                                      report_to=[], disable_tqdm=True)
        net = Net()
        Trainer(net, arguments, train_dataset=[{"x": x, "y": y} for x, y in data()],
                callbacks=[call]).train()
        return net, call

    net, _ = train(4, False)
    with holdfast.open("hf@4", server=world.server) as found:
        assert torch.equal(found["model.layer.weight"].torch(), net.layer.weight)
        assert "optimizer.state.int:0.exp_avg" in found
    _, call = train(1, True)
    assert call.resumed_step == 4


def accelerate_saves_and_resumes(world):
    try:
        from accelerate import Accelerator
    except ImportError as missing:
        raise Skip(missing) from None
    from holdfast.accelerate import HoldfastState

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


if __name__ == "__main__":
    bed = World()
    bed.start("--memory.pool_bytes", "128MiB", "--limits.takeover_ms", "500")
    tests = [lightning_saves_and_resumes, the_trainer_of_hugging_face_saves_and_resumes,
             accelerate_saves_and_resumes]
    passed = run([test for test in tests if len(sys.argv) < 2
                  or any(word in test.__name__ for word in sys.argv[1:])], bed)
    bed.close()
    sys.exit(not passed)
