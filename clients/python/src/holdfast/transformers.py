"""holdfast.transformers - Hugging Face's Trainer through ckptd.

    trainer = Trainer(..., callbacks=[HoldfastCallback(run="llama")])

Wherever the Trainer saves (TrainingArguments.save_steps), the weights, the optimizer, the schedule
and the step go to ckptd in one commit, beside what the Trainer writes itself. With resume=True the
newest checkpoint is loaded when training begins, also after kill -9; the Trainer's own counting of
steps and its place in the data are not changed: give those by resume_from_checkpoint.
For ranks that hold the whole state (one process, DDP): rank 0 saves.
"""
from __future__ import annotations

from typing import Any, Dict, Optional

from transformers import TrainerCallback

from .dcp import Session, load_whole, save_whole
from .errors import NotFoundError


class HoldfastCallback(TrainerCallback):
    def __init__(self, run: str, server: Optional[str] = None, resume: bool = False,
                 **options: Any) -> None:
        self.run, self.server, self.resume, self.options = run, server, resume, options
        self.session: Optional[Session] = None
        self.resumed_step: Optional[int] = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None,
                       optimizer: Any = None, lr_scheduler: Any = None, **_: Any) -> None:
        if not self.resume:
            return
        try:
            found = load_whole(self.run, server=self.server)
        except NotFoundError:
            return  # the first start
        model.load_state_dict(found["model"])
        for target, name in ((optimizer, "optimizer"), (lr_scheduler, "scheduler")):
            if target is not None:
                target.load_state_dict(found[name])
        self.resumed_step = found["trainer"]["global_step"]

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None,
                optimizer: Any = None, lr_scheduler: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        if self.session is None:
            self.session = Session(self.run, self.server, alone=True, **self.options)
        whole: Dict[str, Any] = {"model": model.state_dict(),
                                 "trainer": {"global_step": state.global_step,
                                             "epoch": state.epoch}}
        for source, name in ((optimizer, "optimizer"), (lr_scheduler, "scheduler")):
            if source is not None:
                whole[name] = source.state_dict()
        save_whole(whole, self.session, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None
