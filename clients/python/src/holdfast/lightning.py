"""holdfast.lightning - PyTorch Lightning's checkpoints through ckptd.

    trainer = Trainer(plugins=[HoldfastIO(run="llama")], ...)
    trainer = Trainer(strategy=HoldfastStrategy(run="llama", data_parallel_size=8), ...)

HoldfastIO is a CheckpointIO plug-in for the strategies that save whole (single device, DDP).
HoldfastStrategy is ModelParallelStrategy (FSDP2, tensor parallelism), whose sharded state dicts
reach no plug-in: every rank saves and loads its own part. ModelCheckpoint's name ends with a step,
`...step=100.ckpt`, which becomes the step of the run; no file is written. ckptd's rules remove old
checkpoints, so remove_checkpoint does nothing.
"""
from __future__ import annotations

import io
import os
import re
from typing import Any, Dict, Optional

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict,
                                                     set_optimizer_state_dict)

from . import dcp
from .dcp import Session, load_whole, save_whole
from .errors import InvalidError

_STEP = re.compile(r"step[=-](\d+)[^/]*$")


def step_of(path: Any) -> int:
    match = _STEP.search(os.fspath(path))
    if match is None:
        raise InvalidError(f"the checkpoint's name {path} does not end with a step",
                           "ModelCheckpoint(filename='{step}') gives it one")
    return int(match[1])


class HoldfastIO(CheckpointIO):
    """`allow_pickle`: load what torch.load(weights_only=True) refuses, such as the types that some
    callbacks put into a checkpoint."""

    def __init__(self, run: str, server: Optional[str] = None, allow_pickle: bool = False,
                 **options: Any) -> None:
        self.allow_pickle, self._later = allow_pickle, dcp.Later(run, server, options)

    def save_checkpoint(self, checkpoint: Dict[str, Any], path: Any,
                        storage_options: Optional[Any] = None) -> None:
        save_whole(checkpoint, self._later.open(alone=True), step_of(path))

    def load_checkpoint(self, path: Any, map_location: Optional[Any] = None,
                        **_: Any) -> Dict[str, Any]:
        where = self._later
        return load_whole(where.run, step_of(path), server=where.server,
                          allow_pickle=self.allow_pickle, fallback=where.options.get("fallback"))

    def remove_checkpoint(self, path: Any) -> None:
        pass

    def teardown(self) -> None:
        self._later.close()


class HoldfastStrategy(ModelParallelStrategy):
    """Sizes are those of ModelParallelStrategy, `allow_pickle` that of HoldfastIO, `options` those
    of holdfast.dcp.Session."""

    def __init__(self, run: str, server: Optional[str] = None, *,
                 data_parallel_size: Any = "auto", tensor_parallel_size: Any = "auto",
                 allow_pickle: bool = False, **options: Any) -> None:
        super().__init__(data_parallel_size, tensor_parallel_size)
        self.allow_pickle, self._later = allow_pickle, dcp.Later(run, server, options)

    @property
    def session(self) -> Session:
        return self._later.open()

    def lightning_module_state_dict(self) -> Dict[str, Any]:
        return get_model_state_dict(self.model)  # where it is: copied once, by the save

    def optimizer_state(self, optimizer: Any) -> Dict[str, Any]:
        return get_optimizer_state_dict(self.model, getattr(optimizer, "_optimizer", optimizer))

    def save_checkpoint(self, checkpoint: Dict[str, Any], filepath: Any,
                        storage_options: Optional[Any] = None) -> None:
        """Returns when all is copied."""
        step = step_of(self.broadcast(filepath))
        trainer = self.lightning_module.trainer if self.lightning_module is not None else None
        if trainer is not None and trainer.global_step >= trainer.estimated_stepping_batches:
            self.session.note_last()
        rest = {name: value for name, value in checkpoint.items()
                if name not in ("state_dict", "optimizer_states")}
        raw = io.BytesIO()
        torch.save(rest, raw)
        moments = dict(enumerate(checkpoint.get("optimizer_states", [])))
        dcp.async_save({"model": checkpoint["state_dict"],
                        "optimizer": {str(place): one for place, one in moments.items()},
                        "trainer": raw.getvalue().decode("latin-1")}, self.session, step)

    def load_checkpoint(self, checkpoint_path: Any,
                        weights_only: Optional[bool] = None) -> Dict[str, Any]:
        """Weights and optimizers are in place then; what Lightning keeps of the rest."""
        step = step_of(self.broadcast(checkpoint_path))
        state: Dict[str, Any] = {
            "model": self.lightning_module_state_dict(), "trainer": "",
            "optimizer": {str(place): self.optimizer_state(one)
                          for place, one in enumerate(self.optimizers)}}
        dcp.load(state, self.session, step)
        set_model_state_dict(self.model, state["model"])
        for place, one in enumerate(self.optimizers):
            set_optimizer_state_dict(self.model, one, state["optimizer"][str(place)])
        raw = io.BytesIO(state["trainer"].encode("latin-1"))
        found: Dict[str, Any] = torch.load(raw, weights_only=not self.allow_pickle)
        return found

    def remove_checkpoint(self, filepath: Any) -> None:
        pass

    def teardown(self) -> None:
        try:
            self._later.close()
        finally:
            super().teardown()
