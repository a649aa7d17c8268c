#!/usr/bin/env python3
"""titan_0_2 - the CheckpointManager of torchtitan 0.2, patched, saves through ckptd and resumes.

Goal: weights, moments, schedule and step come back to a new model, in each async_mode; another
version of torchtitan is refused. Method: the real manager of torchtitan 0.2.2, which pip installs
into a separate folder (without its dependencies: those of 0.3 suffice), on two ranks of FSDP2.
"""
import os
import subprocess
import sys

from lib_dcp import BUILD, end, introduce, meeting, start, torch
from lib_store import World
from lib_tap import Skip, run

OLD = os.path.join(BUILD, "titan-0.2.2")


def fetch(world):
    if not os.path.isdir(OLD):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps",
                               "--target", OLD, "torchtitan==0.2.2"], capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise Skip(done.stderr.strip().splitlines()[-1])


def parts_on(rank, mode):
    """The arguments of torchtitan's Trainer for its manager, small."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.lr_scheduler import LRSchedulersContainer
    from torchtitan.components.optimizer import OptimizersContainer
    from torchtitan.config.job_config import Checkpoint

    class Steps:
        def __init__(self):
            self.step = 0

        def state_dict(self):
            return {"step": torch.tensor(self.step)}

        def load_state_dict(self, state):
            self.step = int(state["step"])

    torch.manual_seed(3)
    model = torch.nn.Linear(6, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model.set_force_sum_reduction_for_comms(True)
    optimizers = OptimizersContainer([model], torch.optim.AdamW, {"lr": 0.05})
    schedulers = LRSchedulersContainer(optimizers, lambda step: 1 / (1 + step))
    steps = Steps()
    manager = CheckpointManager(
        None, [model], optimizers, schedulers, {"train_state": steps},
        Checkpoint(enable=True, interval=2, async_mode=mode, last_save_model_only=False,
                   keep_latest_k=0), None, "/nowhere")
    manager.states.pop("dataloader")
    return model, optimizers, schedulers, steps, manager


def train(rank, model, optimizers, schedulers, steps, manager, last):
    for step in range(steps.step + 1, last + 1):
        torch.manual_seed(10 * step + rank)
        model(torch.randn(3, 6)).square().sum().backward()
        manager.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        steps.step = step
        manager.save(step, last_step=step == last)
    return model.weight.full_tensor().detach()


def resumed_on(rank, port, server, mode):
    introduce(rank, 2, port)
    sys.path.insert(0, OLD)
    torch.distributed.init_process_group("gloo")
    from holdfast import torchtitan_0_2

    torchtitan_0_2.patch("old-" + mode.replace("_", "-"), server, take_over=True)
    parts = parts_on(rank, mode)
    assert not parts[-1].load()
    whole = train(rank, *parts, 5)
    parts[-1].close()
    parts = parts_on(rank, mode)
    assert parts[-1].load(4) and parts[3].step == 4
    assert torch.equal(train(rank, *parts, 5), whole)
    parts[-1].close()
    torch.distributed.destroy_process_group()


def a_patched_manager_saves_and_resumes(world):
    fetch(world)
    for mode in ("disabled", "async", "async_with_pinned_mem"):
        with meeting() as port:
            start(resumed_on, (port, world.server, mode), 2)


def another_version_is_refused(world):
    from importlib import metadata

    from holdfast import InvalidError, torchtitan_0_2

    found = metadata.version("torchtitan")
    assert not found.startswith("0.2.")
    try:
        torchtitan_0_2.patch("any", world.server)
        raise AssertionError("it was patched")
    except InvalidError as refused:
        assert found in str(refused) and "HoldfastManager" in refused.hint


if __name__ == "__main__":
    bed = World()
    bed.start("--memory.pool_bytes", "128MiB", "--limits.takeover_ms", "500")
    passed = run([another_version_is_refused, a_patched_manager_saves_and_resumes], bed)
    bed.close()
    end()
    sys.exit(not passed)
