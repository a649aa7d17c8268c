"""holdfast.lightning - PyTorch Lightning's checkpoints through ckptd.

    trainer = Trainer(plugins=[HoldfastIO(run="llama")], ...)

A CheckpointIO plug-in for the strategies that save whole (single device, DDP). The name that
ModelCheckpoint makes ends with a step, `...step=100.ckpt`, which becomes the step of the run; no
file is written. ckptd's rules remove old checkpoints, so remove_checkpoint does nothing.
"""
from __future__ import annotations

import os
import re
from typing import Any, Dict, Optional

from lightning.fabric.plugins import CheckpointIO

from .dcp import Session, load_whole, save_whole
from .errors import InvalidError

_STEP = re.compile(r"step[=-](\d+)[^/]*$")


def step_of(path: Any) -> int:
    match = _STEP.search(os.fspath(path))
    if match is None:
        raise InvalidError(f"the checkpoint's name {path} ends with no step",
                           "ModelCheckpoint(filename='{step}') gives it one")
    return int(match[1])


class HoldfastIO(CheckpointIO):
    """`allow_pickle`: load what torch.load(weights_only=True) refuses, such as the types that some
    callbacks put into a checkpoint."""

    def __init__(self, run: str, server: Optional[str] = None, allow_pickle: bool = False,
                 **options: Any) -> None:
        self.run, self.server, self.allow_pickle, self.options = run, server, allow_pickle, options
        self._session: Optional[Session] = None

    def save_checkpoint(self, checkpoint: Dict[str, Any], path: Any,
                        storage_options: Optional[Any] = None) -> None:
        if self._session is None:
            self._session = Session(self.run, self.server, alone=True, **self.options)
        save_whole(checkpoint, self._session, step_of(path))

    def load_checkpoint(self, path: Any, map_location: Optional[Any] = None,
                        **_: Any) -> Dict[str, Any]:
        return load_whole(self.run, step_of(path), server=self.server,
                          allow_pickle=self.allow_pickle, fallback=self.options.get("fallback"))

    def remove_checkpoint(self, path: Any) -> None:
        pass

    def teardown(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
