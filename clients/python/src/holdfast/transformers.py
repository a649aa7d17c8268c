"""holdfast.transformers - Hugging Face's Trainer through ckptd.

    keep = HoldfastCallback(run="llama", every=500)
    trainer = Trainer(..., args=TrainingArguments(..., save_strategy="no"), callbacks=[keep])
    trainer.train(resume_from_checkpoint=keep.folder())       # None at the first start

Each `every` steps, and wherever the Trainer saves by itself, the weights, the optimizer, the
schedule, the Trainer's state and the random states go to ckptd in one commit. folder() is what the
Trainer resumes from: the newest checkpoint (or `step`) in the Trainer's own form, in a temporary
directory that goes when training ends. The Trainer then finds its step, its place in the data and
the rest by itself, also after kill -9. For ranks that hold the whole state (one process, DDP): rank
0 saves, its random states alone.
"""
from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import tempfile
from typing import Any, Dict, Optional

import numpy
import torch
from transformers import TrainerCallback

from .dcp import Session, load_whole, save_whole
from .errors import NotFoundError


def _random_states() -> torch.Tensor:
    """As the Trainer's rng_state.pth."""
    states: Dict[str, Any] = {"python": random.getstate(), "numpy": numpy.random.get_state(),
                              "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    raw = io.BytesIO()
    torch.save(states, raw)
    return torch.frombuffer(bytearray(raw.getvalue()), dtype=torch.uint8)


class HoldfastCallback(TrainerCallback):
    """`options` are those of holdfast.dcp.Session."""

    def __init__(self, run: str, server: Optional[str] = None, every: int = 0,
                 **options: Any) -> None:
        self.run, self.server, self.every, self.options = run, server, every, options
        self.session: Optional[Session] = None
        self._folder: Optional["tempfile.TemporaryDirectory[str]"] = None
        self._saved = -1

    def folder(self, step: Optional[int] = None) -> Optional[str]:
        """For resume_from_checkpoint; None: the run has no checkpoint."""
        try:
            found = load_whole(self.run, step, server=self.server,
                               fallback=self.options.get("fallback"))
        except NotFoundError:
            if step is not None:
                raise
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-")
        path = self._folder.name
        for name, file in (("model", "pytorch_model.bin"), ("optimizer", "optimizer.pt"),
                           ("scheduler", "scheduler.pt")):
            if name in found:
                torch.save(found[name], os.path.join(path, file))
        world = int(os.environ.get("WORLD_SIZE", "1"))
        with open(os.path.join(path, "rng_state_0.pth" if world > 1 else "rng_state.pth"),
                  "wb") as raw:
            raw.write(found["random"].numpy().tobytes())
        with open(os.path.join(path, "trainer_state.json"), "w", encoding="utf-8") as text:
            text.write(found["trainer"])
        return path

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.every > 0 and state.global_step % self.every == 0:
            self.on_save(args, state, control, **parts)

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None,
                optimizer: Any = None, lr_scheduler: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero or state.global_step == self._saved:
            return
        if self.session is None:
            self.session = Session(self.run, self.server, alone=True, **self.options)
        whole: Dict[str, Any] = {"model": model.state_dict(), "random": _random_states(),
                                 "trainer": json.dumps(dataclasses.asdict(state))}
        for source, name in ((optimizer, "optimizer"), (lr_scheduler, "scheduler")):
            if source is not None:
                whole[name] = source.state_dict()
        save_whole(whole, self.session, state.global_step)
        self._saved = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
